"""The mathematics of a GPT-2 and of an LSTM: each operation, its backward directly below it.

Every operation is a pair::

    y, cache     = op(x, ...)
    dx, dw, ...  = op_backward(dy, cache)

``dy`` is the gradient of one scalar loss with respect to ``y`` and has the shape of ``y``;
``dx`` is the gradient with respect to ``x`` and has the shape of ``x``.  The cache is a
``NamedTuple`` of what the backward pass reads.  Nothing is stored anywhere else, so an
operation can run twice before it runs back.

Operations with weights take ``need``, which says which gradients will be wanted, in the
order in which the backward pass returns them.  One that is not wanted is ``None`` and is
never computed, and what only it would read is not kept.  Where none is wanted the cache
itself is ``None``.

Letters for shapes: ``B`` batch, ``T`` tokens, ``C`` channels, ``H`` heads, ``D = C / H``,
``V`` vocabulary, ``...`` any leading axes.  The dtype of the input is the dtype of all that
follows: all other numbers here are Python floats, because NumPy lets them take the array's
dtype, where a NumPy scalar would turn float32 into float64.
"""

import math
from collections import namedtuple
from functools import lru_cache

import numpy as np

# ---------------------------------------------------------------------------- caches
# What each operation keeps for its backward pass, by the names of its docstring.

LinearCache = namedtuple("LinearCache", "x w need")                 # x None where dw is not wanted
EmbeddingCache = namedtuple("EmbeddingCache", "ids shape")          # the table's shape
UnembeddingCache = namedtuple("UnembeddingCache", "x w need")
PositionsCache = namedtuple("PositionsCache", "tokens shape need")  # a slice, the table's shape
LayerNormCache = namedtuple("LayerNormCache", "xhat rstd w need")   # rstd: 1 / deviation, (..., 1)
ActivationCache = namedtuple("ActivationCache", "x")
SoftmaxCache = namedtuple("SoftmaxCache", "y")
DropoutCache = namedtuple("DropoutCache", "mask")                   # None where nothing is dropped
AttentionCache = namedtuple("AttentionCache", "q k v probabilities mask")
# A row for each token, (B, T, D), of the gates and the candidate; cell and hidden (B, T+1, D)
# begin with the state before the first token.  x and hidden are None where nobody reads them.
LSTMCache = namedtuple("LSTMCache",
                       "x w_ih w_hh input forget candidate output cell hidden need")
LastTokensCache = namedtuple("LastTokensCache", "T")
LogSumExpCache = namedtuple("LogSumExpCache", "e")                  # exp(x - max(x))
CrossEntropyCache = namedtuple("CrossEntropyCache", "log_sum_exp targets")  # the cache, no value

# ---------------------------------------------------------------------------- linear


def linear(x, w, b, need=(True, True, True)):
    """Affine map of the last axis: ``y = x @ w + b``.

    x (..., I), w (I, O), b (O,) -> y (..., O).  The weight multiplies from the right, as in
    GPT-2's own checkpoints.  ``need`` is for (dx, dw, db).
    """
    if x.shape[-1] != w.shape[0] or b.shape != w.shape[1:]:
        raise ValueError(f"linear: x has shape {x.shape}, w {w.shape} and b {b.shape}, "
                         "expected x (..., I), w (I, O), b (O,)")
    # One product over all rows: matmul on the 3-d array would make one per batch entry.
    y = x.reshape(-1, w.shape[0]) @ w                     # (N, I) @ (I, O) -> (N, O)
    y += b
    y = y.reshape(*x.shape[:-1], w.shape[1])
    return y, LinearCache(x if need[1] else None, w, need) if any(need) else None


def linear_backward(dy, cache):
    """``dx = dy @ w.T``, ``dw = x.T @ dy``, ``db = sum of dy over all rows``.

    Each row of x meets every row of w once, so its gradient is a product again.
    """
    x, w, need = cache
    dy2 = dy.reshape(-1, w.shape[1])                      # (N, O)
    dx = dw = db = None
    if need[0]:
        dx = (dy2 @ w.T).reshape(*dy.shape[:-1], w.shape[0])
    if need[1]:
        dw = x.reshape(-1, w.shape[0]).T @ dy2            # (I, N) @ (N, O) -> (I, O)
    if need[2]:
        db = dy2.sum(axis=0)
    return dx, dw, db


# ------------------------------------------------------------------------- embedding


def embedding(ids, w):
    """Row lookup: ``y = w[ids]``, a linear layer on one-hot vectors without the product.

    ids (...) integers in 0 ... V-1, w (V, C) -> y (..., C).
    """
    if not np.issubdtype(ids.dtype, np.integer):          # booleans would act as a mask
        raise ValueError(f"embedding: ids have dtype {ids.dtype}, expected integers")
    if ids.size and (ids.min() < 0 or ids.max() >= len(w)):
        raise ValueError(f"embedding: ids run from {ids.min()} to {ids.max()}, "
                         f"the table has rows 0 to {len(w) - 1}")
    return w[ids], EmbeddingCache(ids, w.shape)


def embedding_backward(dy, cache):
    """``dw[v] = sum of dy over the positions where ids is v``.  Returns ``dw`` (V, C)."""
    ids, shape = cache
    dw = np.zeros(shape, dy.dtype)
    if ids.size:
        # Sorted, equal ids stand side by side and each run is one sum (np.add.at is slow).
        order = np.argsort(ids, axis=None, kind="stable")
        rows, starts = np.unique(ids.reshape(-1)[order], return_index=True)
        dw[rows] = np.add.reduceat(dy.reshape(-1, shape[1])[order], starts, axis=0)
    return dw


def unembedding(x, w, need=(True, True)):
    """A language model's scores, by the table that embeds its tokens: ``y = x @ w.T``.

    x (..., C), w (V, C) -> y (..., V).  Tying the two tables is due to Press and Wolf (2016,
    arXiv 1608.05859).  ``need`` is for (dx, dw).
    """
    if x.shape[-1] != w.shape[1]:
        raise ValueError(f"unembedding: x has shape {x.shape}, w {w.shape}, expected x (..., C), "
                         "w (V, C)")
    y = (x.reshape(-1, w.shape[1]) @ w.T).reshape(*x.shape[:-1], len(w))
    return y, UnembeddingCache(x if need[1] else None, w, need) if any(need) else None


def unembedding_backward(dy, cache):
    """``dx = dy @ w``, ``dw = dy.T @ x``.  The table's other gradient is the embedding's."""
    x, w, need = cache
    V, C = w.shape
    dx = (dy.reshape(-1, V) @ w).reshape(*dy.shape[:-1], C) if need[0] else None
    dw = dy.reshape(-1, V).T @ x.reshape(-1, C) if need[1] else None
    return dx, dw


def positions(x, w, start=0, need=(True, True)):
    """Add to each token the vector of its position: ``y[:, t] = x[:, t] + w[start + t]``.

    x (B, T, C), w (N, C) with N at least start + T -> y (B, T, C).  ``need`` is for (dx, dw).
    """
    tokens = slice(start, start + x.shape[1])
    if start < 0 or tokens.stop > len(w) or x.shape[2:] != w.shape[1:]:
        raise ValueError(f"positions: x has shape {x.shape}, w {w.shape}, start is {start}: "
                         "expected x (B, T, C), w (N, C), N at least start + T")
    return x + w[tokens], PositionsCache(tokens, w.shape, need) if any(need) else None


def positions_backward(dy, cache):
    """``dx = dy``, ``dw[start + t] = sum of dy[:, t] over the batch``."""
    tokens, shape, need = cache
    dw = None
    if need[1]:
        dw = np.zeros(shape, dy.dtype)
        dw[tokens] = dy.sum(axis=0)
    return dy if need[0] else None, dw


# ------------------------------------------------------------------------ layer norm


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """Layer normalisation over the last axis (Ba, Kiros, Hinton 2016, arXiv 1607.06450).

    ``xhat = (x - mean(x)) / sqrt(var(x) + eps)``, ``y = xhat * w + b``; mean and (biased)
    variance are those of the C channels of each token.

    x (..., C), scale w (C,), bias b (C,) -> y (..., C).  Finite for any finite x.  ``need`` is
    for (dx, dw, db).
    """
    check_layer_norm(x, w, b)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.mean(axis=-1, keepdims=True)
        centred = x - mean
        rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
        xhat = centred * rstd
        rescue_rows(x, mean, xhat, rstd, eps)
    y = xhat * w + b
    cache = LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return y, cache if any(need) else None


def layer_norm_backward(dy, cache):
    """With ``g = dy * w``: ``dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd``,
    ``dw = sum(dy * xhat)`` and ``db = sum(dy)`` over all tokens.

    The two means are the parts of g that would shift or stretch the row.  Layer norm removes
    both from x, so neither of them passes back.
    """
    xhat, rstd, w, need = cache
    dx = dw = db = None
    if need[0]:
        g = dy * w
        dx = (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)) * rstd
    if need[1]:
        dw = (dy * xhat).reshape(-1, len(w)).sum(axis=0)
    if need[2]:
        db = dy.reshape(-1, len(w)).sum(axis=0)
    return dx, dw, db


def check_layer_norm(x, w, b):
    """Raise a ``ValueError`` for shapes that do not fit."""
    if x.shape[-1:] != w.shape or b.shape != w.shape:
        raise ValueError(f"layer_norm: x has shape {x.shape}, w {w.shape} and b {b.shape}, "
                         "expected x (..., C), w (C,), b (C,)")


def rescue_rows(x, mean, xhat, rstd, eps):
    """Compute again, in place, the rows whose variance overflowed (float32 holds no square of a
    value above 1e19) and those whose mean is so large that its rounding shows beside their spread.

    Such a row is first divided by the power of two next to its largest value, which rounds
    nothing, and then centred twice: what the first mean lost to rounding is the second one.
    """
    ratio = mean * rstd
    if rstd.size and not (rstd.min() > 0.0 and -16.0 < ratio.min() and ratio.max() < 16.0):
        bad = ~((rstd > 0.0) & (np.abs(ratio) < 16.0))[..., 0]
        _, exponent = np.frexp(np.abs(x[bad]).max(axis=-1, keepdims=True))
        size = np.ldexp(x.dtype.type(1.0), exponent - 1)
        row = x[bad] / size
        row -= row.mean(axis=-1, keepdims=True)
        row -= row.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((row * row).mean(axis=-1, keepdims=True))
        xhat[bad] = row / np.hypot(deviation, math.sqrt(eps) / size)
        rstd[bad] = 1.0 / np.hypot(deviation * size, math.sqrt(eps))


# ----------------------------------------------------------------------- activations


GELU_A = math.sqrt(2.0 / math.pi)
GELU_B = 0.044715
GELU_FLAT = 30.0                                          # beyond it tanh(u) is -1 or 1 exactly


def gelu(x):
    """Gaussian error linear unit, in the tanh form that GPT-2 uses.

    ``y = x/2 * (1 + tanh(u))``, ``u = sqrt(2/pi) * (x + 0.044715 x^3)``
    (Hendrycks, Gimpel 2016, arXiv 1606.08415).  x (...) -> y (...).
    """
    c = np.clip(x, -GELU_FLAT, GELU_FLAT)                 # so that the cube stays finite
    t = np.tanh(GELU_A * (c + GELU_B * c * c * c))
    return 0.5 * x * (1.0 + t), ActivationCache(x)


def gelu_backward(dy, cache):
    """``dx = dy * ((1 + t)/2 + x/2 * (1 - t^2) * du/dx)`` with ``t = tanh(u)`` and
    ``du/dx = sqrt(2/pi) * (1 + 3 * 0.044715 x^2)``."""
    c = np.clip(cache.x, -GELU_FLAT, GELU_FLAT)
    t = np.tanh(GELU_A * (c + GELU_B * c * c * c))
    du = GELU_A * (1.0 + 3.0 * GELU_B * c * c)
    return dy * (0.5 * (1.0 + t) + 0.5 * c * (1.0 - t * t) * du)


def gelu_exact(x):
    """Gaussian error linear unit as it is defined: ``y = x * P(x)``, ``P(x) = (1 +
    erf(x / sqrt(2))) / 2`` the normal distribution function.  x (...) -> y (...)."""
    from scipy.special import ndtr  # slow to import, and rarely wanted
    return x * ndtr(x), ActivationCache(x)


def gelu_exact_backward(dy, cache):
    """``dx = dy * (P(x) + x p(x))``, ``p(x) = exp(-x^2 / 2) / sqrt(2 pi)`` the density."""
    from scipy.special import ndtr
    x = cache.x
    c = np.clip(x, -GELU_FLAT, GELU_FLAT)
    return dy * (ndtr(x) + c * np.exp(-0.5 * c * c) * (1.0 / math.sqrt(2.0 * math.pi)))


def relu(x):
    """Rectified linear unit: ``y = max(x, 0)``.  x (...) -> y (...)."""
    return np.maximum(x, 0.0), ActivationCache(x)


def relu_backward(dy, cache):
    """``dx = dy where x > 0``, and 0 elsewhere."""
    return dy * (cache.x > 0.0)


# --------------------------------------------------------------------------- softmax


def softmax(x):
    """``y_i = exp(x_i) / sum_j exp(x_j)`` along the last axis.

    The largest x of each row is subtracted first, which changes nothing in the quotient and
    keeps every exponential at or below 1.  x (..., N) -> y (..., N).
    """
    with np.errstate(over="ignore"):                      # -inf is right: exp gives 0
        e = x - x.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e, SoftmaxCache(e)


def softmax_backward(dy, cache):
    """``dx = y * (dy - sum_j dy_j y_j)``: a row's outputs always sum to 1."""
    y = cache.y
    dx = dy - np.vecdot(dy, y)[..., None]
    dx *= y
    return dx


# --------------------------------------------------------------------------- dropout


def dropout(x, p, rng):
    """Inverted dropout (Srivastava et al. 2014): ``y = x * mask``, ``mask`` 0 or 1/(1-p).

    x (...) -> y (...).  Each entry is kept or not by 16 random bits, so p is rounded to a
    multiple of 2^-16; the scale uses the rounded value, so the mean of y is exactly x.  With
    p = 0 nothing is drawn and y is x.
    """
    drop = dropout_bits(p, rng)
    if drop == 0:
        return x, DropoutCache(None)
    bits = np.frombuffer(rng.bytes(2 * x.size), np.uint16).reshape(x.shape)
    mask = np.multiply(bits >= drop, 65536.0 / (65536 - drop), dtype=x.dtype)
    return x * mask, DropoutCache(mask)


def dropout_backward(dy, cache):
    """``dx = dy * mask``: what was dropped gets nothing, what was kept its scale."""
    return dy if cache.mask is None else dy * cache.mask


def dropout_bits(p, rng):
    """How many of the 65,536 numbers of 16 bits mean that an entry is dropped."""
    if not 0.0 <= p < 1.0 - 2**-17:
        raise ValueError(f"dropout: p is {p}, expected 0 <= p < 1")
    drop = round(p * 65536)
    if drop and not hasattr(rng, "bytes"):
        raise ValueError(f"dropout: p is {p} and rng is {rng!r:.60}: "
                         "pass rng=np.random.default_rng(seed)")
    return drop


# -------------------------------------------------------------- multi-head attention


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """Multi-head self-attention between the two linear layers of a GPT-2 block.

    For each head, ``S = Q K^T / sqrt(D)``, ``A = softmax(S)``, ``y = dropout(A) V`` (Vaswani
    et al. 2017, arXiv 1706.03762, eq. 1).  When ``causal``, A covers the tokens up to each
    query's own position; otherwise it covers all of them.

    qkv (B, T, 3C): queries, keys and values side by side, each H heads of D channels.
    ``past`` (k, v), each (B, H, P, D), are keys and values of P tokens before these.
    -> y (B, T, C).  The cache holds the probabilities (B, H, T, P+T) before dropout.
    """
    q, k, v = split_heads(qkv, n_head)                    # (B, H, T, D) each
    if past is not None:
        k, v = (np.concatenate(pair, axis=2) for pair in zip(past, (k, v), strict=True))
    scores = dot_products(q, k)                           # (B, H, T, P+T)
    scores *= 1.0 / math.sqrt(q.shape[-1])
    if causal:
        scores += causal_mask(*scores.shape[-2:], scores.dtype)
    probabilities, _ = softmax(scores)
    kept, (mask,) = dropout(probabilities, p, rng)
    y = merge_heads(kept @ v)                             # (B, H, T, D) -> (B, T, C)
    return y, AttentionCache(q, k, v, probabilities, mask)


def attention_backward(dy, cache):
    """Back through ``y = dropout(A) V``, the softmax, and ``S = Q K^T / sqrt(D)``::

        dV = dropout(A)^T dy      dA = dropout_backward(dy V^T)
        dS = softmax_backward(dA)
        dQ = dS K / sqrt(D)       dK = dS^T Q / sqrt(D)

    A masked entry has A = 0, so softmax_backward gives it dS = 0 and no mask is needed.
    Returns ``dqkv`` (B, T, 3C).
    """
    q, k, v, probabilities, mask = cache
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)     # (B, H, T, D)
    dqkv = np.empty((B, T, 3 * H * D), dy.dtype)
    dq, dk, dv = split_heads(dqkv, H)                     # views: each product lands in place
    kept = probabilities if mask is None else probabilities * mask
    np.matmul(kept.swapaxes(-1, -2), dy, out=dv)
    da = dropout_backward(dy @ v.swapaxes(-1, -2), DropoutCache(mask))      # (B, H, T, T)
    ds = softmax_backward(da, SoftmaxCache(probabilities))
    ds *= 1.0 / math.sqrt(D)
    np.matmul(ds, k, out=dq)
    np.matmul(ds.swapaxes(-1, -2), q, out=dk)
    return dqkv


def dot_products(q, k):
    """``Q K^T``, (B, H, T, D) and (B, H, S, D) -> (B, H, T, S), finite for any finite float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        s = q @ k.swapaxes(-1, -2)
        if not math.isfinite(np.vdot(s, s)):              # in float64, and as far as q's dtype goes
            largest = float(np.finfo(q.dtype).max) / 4
            s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)
            s = np.clip(s, -largest, largest).astype(q.dtype)
    return s


def split_heads(qkv, n_head):
    """(B, T, 3C) -> three views (B, H, T, D): queries, keys, values."""
    B, T, C3 = qkv.shape
    if C3 % (3 * n_head):
        raise ValueError(f"attention: qkv has {C3} channels, expected a multiple of "
                         f"3 x {n_head} heads")
    return qkv.reshape(B, T, 3, n_head, -1).transpose(2, 0, 3, 1, 4)


def merge_heads(y):
    """(B, H, T, D) -> (B, T, C)."""
    B, H, T, D = y.shape
    return y.transpose(0, 2, 1, 3).reshape(B, T, H * D)


@lru_cache(maxsize=16)
def causal_mask(n_query, n_key, dtype):
    """(n_query, n_key): 0 where a query may look, -inf on the tokens after its own.

    The queries are the last n_query of the n_key tokens.  The array is shared: read-only.
    """
    mask = np.triu(np.full((n_query, n_key), -np.inf, dtype), k=n_key - n_query + 1)
    mask.flags.writeable = False
    return mask


# ------------------------------------------------------------ long short-term memory


def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    """One layer of long short-term memory, over all tokens (Hochreiter, Schmidhuber 1997, with
    the forget gate of Gers, Schmidhuber, Cummins 2000).

    Each token reads its own x and the state, h and c, that the token before it left::

        a = x_t @ w_ih + h_(t-1) @ w_hh + b               in four parts: a_i, a_f, a_g, a_o
        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
        g = tanh(a_g)
        c_t = f * c_(t-1) + i * g
        h_t = o * tanh(c_t)

    The input gate i says how much of the candidate g goes into the cell c, the forget gate f
    how much of the cell stays, the output gate o how much of it is seen.  h and c start at 0.

    x (B, T, C), w_ih (C, 4D), w_hh (D, 4D), b (4D,), columns in PyTorch's order i, f, g, o
    -> h (B, T, D).  Finite for any finite float32.  ``need`` is for (dx, dw_ih, dw_hh, db).
    """
    D = len(w_hh)
    if x.ndim != 3 or w_ih.shape != (x.shape[2], 4 * D) or (
            w_hh.shape != (D, 4 * D) or b.shape != (4 * D,)):
        raise ValueError(f"lstm: x has shape {x.shape}, w_ih {w_ih.shape}, w_hh {w_hh.shape} and "
                         f"b {b.shape}, expected x (B, T, C), w_ih (C, 4D), w_hh (D, 4D), b (4D,)")
    B, T, C = x.shape
    c = np.zeros((B, T + 1, D), x.dtype)                  # [:, t] is the state before token t
    h = np.zeros_like(c)
    with np.errstate(over="ignore"):                      # the sigmoid of inf is 1, of -inf 0
        # x needs no state: one product for all tokens.  dot_products(x, w.T) is x @ w, finite.
        a = dot_products(x.reshape(-1, C), w_ih.T).reshape(B, T, 4 * D) + b
        i, f, g, o = in_four(a)                           # views: a turns into the gates
        for t in range(T):
            a[:, t] += dot_products(h[:, t], w_hh.T)
            i[:, t], f[:, t], o[:, t] = sigmoid(i[:, t]), sigmoid(f[:, t]), sigmoid(o[:, t])
            g[:, t] = np.tanh(g[:, t])
            c[:, t + 1] = f[:, t] * c[:, t] + i[:, t] * g[:, t]
            h[:, t + 1] = o[:, t] * np.tanh(c[:, t + 1])
    cache = LSTMCache(x if need[1] else None, w_ih, w_hh, i, f, g, o, c, h if need[2] else None,
                      need)
    return h[:, 1:], cache if any(need) else None


def lstm_backward(dy, cache):
    """Back through time, from the last token to the first.  h is an output, and the next token
    reads it; the next token also keeps some of c::

        dh = dy_t + da_(t+1) @ w_hh.T
        dc = dc_(t+1) * f_(t+1) + dh * o * (1 - tanh(c_t)^2)
        da_i = dc * g * i * (1 - i)                       da_f = dc * c_(t-1) * f * (1 - f)
        da_g = dc * i * (1 - g^2)                         da_o = dh * tanh(c_t) * o * (1 - o)

    as the derivative of s = sigmoid(a) is s (1 - s), that of g = tanh(a) is 1 - g^2.  Then, as in
    a linear layer, ``dx = da @ w_ih.T``, ``dw_ih = x.T @ da``, ``dw_hh = h_(t-1).T @ da`` and
    ``db = sum of da``.
    """
    x, w_ih, w_hh, i, f, g, o, c, h, need = cache
    B, T, D = dy.shape
    da = np.empty((B, T, 4 * D), dy.dtype)
    da_i, da_f, da_g, da_o = in_four(da)
    back = np.ascontiguousarray(w_hh.T)                   # a copy: each product is faster
    dh = dc = 0.0                                         # what comes back from the next token
    for t in reversed(range(T)):
        tanh_c = np.tanh(c[:, t + 1])
        dh = dy[:, t] + dh
        dc = dc + dh * o[:, t] * (1.0 - tanh_c * tanh_c)
        da_i[:, t] = dc * g[:, t] * i[:, t] * (1.0 - i[:, t])
        da_f[:, t] = dc * c[:, t] * f[:, t] * (1.0 - f[:, t])
        da_g[:, t] = dc * i[:, t] * (1.0 - g[:, t] * g[:, t])
        da_o[:, t] = dh * tanh_c * o[:, t] * (1.0 - o[:, t])
        dh, dc = da[:, t] @ back, dc * f[:, t]
    da = da.reshape(-1, 4 * D)                            # all tokens at once again
    dx = (da @ w_ih.T).reshape(B, T, -1) if need[0] else None
    dw_ih = x.reshape(len(da), -1).T @ da if need[1] else None
    dw_hh = h[:, :-1].reshape(-1, D).T @ da if need[2] else None
    return dx, dw_ih, dw_hh, da.sum(axis=0) if need[3] else None


def sigmoid(x):
    """``1 / (1 + exp(-x))``, in the form ``(1 + tanh(x / 2)) / 2``, which does not overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def in_four(a):
    """(B, T, 4D) -> four views (B, T, D)."""
    return a.reshape(*a.shape[:2], 4, -1).transpose(2, 0, 1, 3)


# -------------------------------------------------------------------------- residual


def residual(x, branch):
    """The residual connection: ``y = x + branch``, where the branch is a function of x.

    x, branch (..., C) -> y (..., C).  There is nothing to keep: the cache is ``None``.
    """
    return x + branch, None


def residual_backward(dy, dbranch):
    """``dx = dy + dbranch``: x went two ways, and the gradients of both add up.

    ``dbranch`` is the gradient that came back through the branch.
    """
    return dy + dbranch


def last_tokens(x, n):
    """The last n tokens, n at least 1: x (B, T, C) -> y (B, n, C)."""
    return np.ascontiguousarray(x[:, -n:]), LastTokensCache(x.shape[1])


def last_tokens_backward(dy, cache):
    """dy (B, n, C) -> dx (B, T, C): 0 for the tokens that were not read."""
    B, n, C = dy.shape
    dx = np.zeros((B, cache.T, C), dy.dtype)
    dx[:, -n:] = dy
    return dx


# --------------------------------------------------------------------- cross-entropy


def log_sum_exp(x):
    """``y = log(sum_j exp(x_j))`` along the last axis, x (..., N) -> y (..., 1).

    As ``max(x) + log(sum_j exp(x_j - max(x)))``, finite for any finite x.
    """
    top = x.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        e = np.exp(x - top)
    return top + np.log(e.sum(axis=-1, keepdims=True)), LogSumExpCache(e)


def log_sum_exp_backward(dy, cache):
    """``dx = dy * softmax(x)``."""
    e = cache.e
    return e * (dy / e.sum(axis=-1, keepdims=True))


def cross_entropy(logits, targets):
    """Mean negative log-likelihood: ``mean(log_sum_exp(logits) - logits[target])``, nats.

    logits (..., V), targets (...) integers in 0 ... V-1 -> a scalar.
    """
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"cross_entropy: logits {logits.shape} want targets of shape "
                         f"{logits.shape[:-1]}, got {targets.shape}")
    if targets.dtype.kind not in "iu" or not targets.size or targets.min() < 0 or (
            targets.max() >= logits.shape[-1]):
        raise ValueError("cross_entropy: targets must be integers from 0 to "
                         f"{logits.shape[-1] - 1}, at least one")
    lse, cache = log_sum_exp(logits)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
    return (lse - chosen).mean(), CrossEntropyCache(cache, targets)


def cross_entropy_backward(dy, cache):
    """``dlogits = (softmax(logits) - one_hot(targets)) * dy / number of targets``."""
    dlogits = log_sum_exp_backward(1.0, cache.log_sum_exp)          # softmax(logits)
    index = cache.targets[..., None]
    np.put_along_axis(dlogits, index, np.take_along_axis(dlogits, index, -1) - 1.0, -1)
    dlogits *= dy / cache.targets.size
    return dlogits
