"""The mathematics of a GPT-2, a Llama and an LSTM: each operation, its backward directly below.

Every operation is a pair::

    y, cache     = op(x, ...)
    dx, dw, ...  = op_backward(dy, cache)

``dy`` is the gradient of one scalar loss with respect to ``y`` and has the shape of ``y``;
``dx`` is the gradient with respect to ``x`` and has the shape of ``x``.  The cache is a
``NamedTuple`` of the arrays that the backward pass reads.  Nothing is stored anywhere else, so
an operation can run twice before it runs back.  The cache holds ``x`` itself, not a copy: if
``x`` changes between the two passes, the gradients are wrong.

Operations whose gradients are matrix products take ``need``, a tuple of booleans: which gradients
the backward pass computes, in the order in which it returns them.  It returns ``None`` for the
others, and the cache leaves out the arrays that only they would read.

Letters for shapes: ``B`` batch, ``T`` tokens, ``C`` channels, ``H`` heads, ``D = C / H``,
``V`` vocabulary, ``...`` any leading axes; in attention ``S`` tokens that are read and ``G`` heads
of keys and values.  Results have the dtype of the input.  All constants here are Python floats,
because NumPy gives them the array's dtype; a NumPy scalar would turn float32 into float64.

Lessons 1 to 6 derive these gradients.  GPT-2 has no RMS norm, SiLU, gate, rotary positions or LSTM.

This file shows the formulas.  The line above each declares the shapes of its arrays (in a backward
pass, of ``dy`` and the cache's fields), and ``guards`` refuses others; ``op.__wrapped__`` is the
formula alone.  A model runs the functions of ``fast``, which compute the same, stay finite for
extreme numbers and save time.
"""

import math
from collections import namedtuple
from functools import lru_cache

import numpy as np

from minifpt.guards import shapes

# ---------------------------------------------------------------------------- linear


LinearCache = namedtuple("LinearCache", "x w need")                 # x: None without dw


@shapes("x (..., I), w (I, O), b (O,) -> y (..., O)")
def linear(x, w, b, need=(True, True, True)):
    """Apply an affine map to the last axis: ``y = x @ w + b``.

    The weight multiplies from the right, as in GPT-2's own checkpoints.  ``need`` is for
    (dx, dw, db).
    """
    return x @ w + b, LinearCache(x if need[1] else None, w, need)


@shapes("dy (..., O), x (..., I), w (I, O) -> dx (..., I), dw (I, O), db (O,)")
def linear_backward(dy, cache):
    """Compute ``dx = dy @ w.T``, ``dw = x.T @ dy``, ``db = sum of dy over all rows``.

    y[n, o] is the sum of x[n, i] w[i, o] over i.  So dx[n, i] is the sum of dy[n, o] w[i, o]
    over o, and dw[i, o] the sum of x[n, i] dy[n, o] over n: both are matrix products again.
    """
    x, w, need = cache
    rows = dy.reshape(-1, w.shape[1])                     # (N, O)
    dx = dw = db = None
    if need[0]:
        dx = dy @ w.T
    if need[1]:
        dw = x.reshape(-1, w.shape[0]).T @ rows           # (I, N) @ (N, O) -> (I, O)
    if need[2]:
        db = rows.sum(axis=0)
    return dx, dw, db


# ------------------------------------------------------------------------- embedding


EmbeddingCache = namedtuple("EmbeddingCache", "ids shape")          # the table's shape


@shapes("ids (...) integers in 0 ... V-1, w (V, C) -> y (..., C)")
def embedding(ids, w):
    """Look up a row for each id: ``y = w[ids]``, the product of one-hot vectors with ``w``."""
    return w[ids], EmbeddingCache(ids, w.shape)


@shapes("dy (..., C), ids (...), shape (V, C) -> dw (V, C)")
def embedding_backward(dy, cache):
    """Compute ``dw[v] = sum of dy over the positions where ids is v``."""
    ids, shape = cache
    dw = np.zeros(shape, dy.dtype)
    np.add.at(dw, ids, dy)                                # dw[ids] += dy keeps one of equal ids
    return dw


UnembeddingCache = namedtuple("UnembeddingCache", "x w need")       # x: None without dw


@shapes("x (..., C), w (V, C) -> y (..., V)")
def unembedding(x, w, need=(True, True)):
    """Score each token of the vocabulary by its row of the embedding table: ``y = x @ w.T``.

    A language model has one table for both of its ends, as Press and Wolf proposed (2016, arXiv
    1608.05859).  ``need`` is for (dx, dw).
    """
    y = x @ w.T
    return y, UnembeddingCache(x if need[1] else None, w, need)


@shapes("dy (..., V), x (..., C), w (V, C) -> dx (..., C), dw (V, C)")
def unembedding_backward(dy, cache):
    """Compute ``dx = dy @ w``, ``dw = dy.T @ x``; the embedding adds its own part of dw."""
    x, w, need = cache
    V, C = w.shape
    dx = dy @ w if need[0] else None
    dw = dy.reshape(-1, V).T @ x.reshape(-1, C) if need[1] else None
    return dx, dw


BiasCache = namedtuple("BiasCache", "shape")                        # shape of x


@shapes("x (..., C), b (C,) -> y (..., C)")
def bias(x, b):
    """Add a vector to each token: ``y = x + b``.

    An embedding followed by a bias is a linear layer on one-hot vectors.
    """
    return x + b, BiasCache(x.shape)


@shapes("dy (..., C), shape (..., C) -> dx (..., C), db (C,)")
def bias_backward(dy, cache):
    """Compute ``dx = dy``, ``db = sum of dy over all rows``."""
    return dy, dy.reshape(-1, dy.shape[-1]).sum(axis=0)


# tokens: the slice of the table that was added; shape: the table's; x_shape: for the guard.
PositionsCache = namedtuple("PositionsCache", "tokens shape x_shape")


@shapes("x (B, T, C), w (N, C) -> y (B, T, C)")
def positions(x, w, start=0):
    """Add to each token the vector of its position: ``y[:, t] = x[:, t] + w[start + t]``.

    N is at least start + T.
    """
    tokens = slice(start, start + x.shape[1])
    return x + w[tokens], PositionsCache(tokens, w.shape, x.shape)


@shapes("dy (B, T, C), shape (N, C), x_shape (B, T, C) -> dx (B, T, C), dw (N, C)")
def positions_backward(dy, cache):
    """Compute ``dx = dy``, ``dw[start + t] = sum of dy[:, t] over the batch``."""
    dw = np.zeros(cache.shape, dy.dtype)
    dw[cache.tokens] = dy.sum(axis=0)
    return dy, dw


# ------------------------------------------------------------------------ layer norm


LayerNormCache = namedtuple("LayerNormCache", "xhat rstd w")        # rstd: 1 / deviation, (..., 1)


@shapes("x (..., C), w (C,), b (C,) -> y (..., C)")
def layer_norm(x, w, b, eps=1e-5):
    """Normalise the last axis (Ba, Kiros, Hinton 2016, arXiv 1607.06450).

    ``xhat = (x - mean(x)) / sqrt(var(x) + eps)``, ``y = xhat * w + b``.  Mean and variance are
    those of the C channels of each token; the variance is divided by C, not by C - 1.  w is the
    scale and b the bias.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(variance + eps)
    xhat = centred * rstd
    return xhat * w + b, LayerNormCache(xhat, rstd, w)


@shapes("dy (..., C), xhat (..., C), w (C,) -> dx (..., C), dw (C,), db (C,)")
def layer_norm_backward(dy, cache):
    """Compute ``dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd`` with ``g = dy * w``,
    ``dw = sum(dy * xhat)`` and ``db = sum(dy)``, the sums over all tokens.

    The two means are the parts of g that would shift or stretch the row.  Layer norm removes
    shifts and stretches from x, so x gets no gradient along them.
    """
    xhat, rstd, w = cache
    g = dy * w
    dx = (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)) * rstd
    dw = (dy * xhat).reshape(-1, len(w)).sum(axis=0)
    db = dy.reshape(-1, len(w)).sum(axis=0)
    return dx, dw, db


RMSNormCache = namedtuple("RMSNormCache", "xhat rstd w")


@shapes("x (..., C), w (C,) -> y (..., C)")
def rms_norm(x, w, eps=1e-6):
    """Divide by the root mean square of the last axis (Zhang, Sennrich 2019, arXiv 1910.07467).

    ``xhat = x / sqrt(mean(x^2) + eps)``, ``y = xhat * w``: a layer norm without mean and bias.
    w is the scale.
    """
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    xhat = x * rstd
    return xhat * w, RMSNormCache(xhat, rstd, w)


@shapes("dy (..., C), xhat (..., C), w (C,) -> dx (..., C), dw (C,)")
def rms_norm_backward(dy, cache):
    """Compute ``dx = (g - xhat * mean(g * xhat)) * rstd`` with ``g = dy * w``, and
    ``dw = sum(dy * xhat)`` over all tokens.

    The mean is the part of g that would stretch the row; the norm removes stretches from x.
    """
    xhat, rstd, w = cache
    g = dy * w
    dx = (g - xhat * (g * xhat).mean(-1, keepdims=True)) * rstd
    dw = (dy * xhat).reshape(-1, len(w)).sum(axis=0)
    return dx, dw


# ----------------------------------------------------------------------- activations


ActivationCache = namedtuple("ActivationCache", "x")                # of all activations
GELU_A = math.sqrt(2.0 / math.pi)
GELU_B = 0.044715


@shapes("x (...) -> y (...)")
def gelu(x):
    """Apply the Gaussian error linear unit, in the tanh form that GPT-2 uses.

    ``y = x/2 * (1 + tanh(u))``, ``u = sqrt(2/pi) * (x + 0.044715 x^3)``.  Hendrycks
    and Gimpel proposed it (2016, arXiv 1606.08415).
    """
    t = np.tanh(GELU_A * (x + GELU_B * x * x * x))
    return 0.5 * x * (1.0 + t), ActivationCache(x)


@shapes("dy (...), x (...) -> dx (...)")
def gelu_backward(dy, cache):
    """Compute ``dx = dy * ((1 + t)/2 + x/2 * (1 - t^2) * du/dx)`` with ``t = tanh(u)`` and
    ``du/dx = sqrt(2/pi) * (1 + 3 * 0.044715 x^2)``."""
    x = cache.x
    t = np.tanh(GELU_A * (x + GELU_B * x * x * x))
    du = GELU_A * (1.0 + 3.0 * GELU_B * x * x)
    return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du)


@shapes("x (...) -> y (...)")
def gelu_exact(x):
    """Apply the Gaussian error linear unit by its definition: ``y = x * P(x)`` with the normal
    distribution function ``P(x) = (1 + erf(x / sqrt(2))) / 2``."""
    from scipy.special import ndtr  # slow to import, and rarely needed
    return x * ndtr(x), ActivationCache(x)


@shapes("dy (...), x (...) -> dx (...)")
def gelu_exact_backward(dy, cache):
    """Compute ``dx = dy * (P(x) + x p(x))``, the density ``p(x) = exp(-x^2 / 2) / sqrt(2 pi)``."""
    from scipy.special import ndtr
    x = cache.x
    return dy * (ndtr(x) + x * np.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi)))


@shapes("x (...) -> y (...)")
def relu(x):
    """Apply the rectified linear unit: ``y = max(x, 0)``."""
    return np.maximum(x, 0.0), ActivationCache(x)


@shapes("dy (...), x (...) -> dx (...)")
def relu_backward(dy, cache):
    """Compute ``dx = dy where x > 0``, and 0 elsewhere."""
    return dy * (cache.x > 0.0)


@shapes("x (...) -> y (...)")
def silu(x):
    """Apply the sigmoid linear unit: ``y = x * sigmoid(x)`` (Elfwing et al. 2017, arXiv
    1702.03118)."""
    return x * sigmoid(x), ActivationCache(x)


@shapes("dy (...), x (...) -> dx (...)")
def silu_backward(dy, cache):
    """Compute ``dx = dy * s * (1 + x * (1 - s))`` with ``s = sigmoid(x)``: ``s' = s (1 - s)``."""
    x = cache.x
    s = sigmoid(x)
    return dy * s * (1.0 + x * (1.0 - s))


MultiplyCache = namedtuple("MultiplyCache", "gate up")


@shapes("gate (...), up (...) -> y (...)")
def multiply(gate, up):
    """Gate one array by another: ``y = gate * up`` (Shazeer 2020, arXiv 2002.05202).

    Both come from linear layers of the same x, and the gate from an activation: SwiGLU is
    ``silu(gate) * up``.
    """
    return gate * up, MultiplyCache(gate, up)


@shapes("dy (...), up (...) -> dgate (...), dup (...)")
def multiply_backward(dy, cache):
    """Compute ``dgate = dy * up`` and ``dup = dy * gate``, by the product rule."""
    gate, up = cache
    return dy * up, dy * gate


# --------------------------------------------------------------------------- softmax


SoftmaxCache = namedtuple("SoftmaxCache", "y")


@shapes("x (..., N) -> y (..., N)")
def softmax(x):
    """Compute ``y_i = exp(x_i) / sum_j exp(x_j)`` along the last axis.

    The largest x of each row is subtracted first.  That does not change the quotient, and no
    exponential is larger than 1.
    """
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, SoftmaxCache(y)


@shapes("dy (..., N), y (..., N) -> dx (..., N)")
def softmax_backward(dy, cache):
    """Compute ``dx = y * (dy - sum_j dy_j y_j)``.

    By the quotient rule the derivative of y_j by x_i is ``y_j ([i = j] - y_i)``; its sum with
    dy_j over j is the formula.  The outputs of a row always sum to 1, so adding a constant to dy
    must not change dx: subtracting the mean of dy, weighted by y, ensures it.
    """
    y = cache.y
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


# --------------------------------------------------------------------------- dropout


DropoutCache = namedtuple("DropoutCache", "mask")                   # None where nothing is dropped


@shapes("x (...) -> y (...)")
def dropout(x, p, rng):
    """Set some entries to 0 (inverted dropout; Srivastava et al. 2014): ``y = x * mask``.

    An entry of ``mask`` is 0 with probability p and ``1 / (1 - p)`` otherwise, so that the mean
    of y is x.  With p = 0 nothing is drawn from ``rng`` and y is x.
    """
    if p == 0.0:
        return x, DropoutCache(None)
    mask = (rng.random(x.shape, np.float32) >= p).astype(x.dtype) / (1.0 - float(p))
    return x * mask, DropoutCache(mask)


@shapes("dy (...), mask (...) -> dx (...)")
def dropout_backward(dy, cache):
    """Compute ``dx = dy * mask``: the gradient is 0 where dropout set y to 0."""
    if cache.mask is None:
        return dy
    return dy * cache.mask


# -------------------------------------------------------------- multi-head attention


# mask: dropout's; has_bias: whether there was a bias.
AttentionCache = namedtuple("AttentionCache", "q k v probabilities mask has_bias")


@shapes("q (B, H, T, D), k (B, G, S, D), v (B, G, S, D), bias (H, T, S) -> y (B, H, T, D)")
def attention(q, k, v, p=0.0, rng=None, causal=True, bias=None):
    """Let each query read the tokens' values, by multi-head attention.

    For each head, ``scores = Q K^T / sqrt(D)``, ``A = softmax(scores)``, ``y = dropout(A) V``
    (Vaswani et al. 2017, arXiv 1706.03762, eq. 1).  ``bias`` is added to the scores of every
    example.

    Of S tokens the last T ask; S is larger than T only where a text is continued.  When
    ``causal``, a query reads only its own token and the tokens before it.  Each of the G heads of
    keys and values serves H / G heads of queries in a row (Ainslie et al. 2023, arXiv 2305.13245);
    in GPT-2 G is H.  The cache holds the probabilities A (B, H, T, S) before dropout.
    """
    H, G, D = q.shape[1], k.shape[1], q.shape[3]
    keys, values = k, v
    if G < H:                                             # never in GPT-2
        keys, values = repeat_heads(k, H), repeat_heads(v, H)
    scores = q @ keys.swapaxes(-1, -2) / math.sqrt(D)     # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores + causal_mask(*scores.shape[-2:], scores.dtype)
    probabilities, _ = softmax(scores)
    dropped, dropout_cache = dropout(probabilities, p, rng)
    y = dropped @ values                                  # (B, H, T, S) @ (B, H, S, D)
    return y, AttentionCache(q, k, v, probabilities, dropout_cache.mask, bias is not None)


@shapes("dy (B, H, T, D), q (B, H, T, D), k (B, G, S, D) -> dq (B, H, T, D), dk (B, G, S, D), "
        "dv (B, G, S, D), dbias (H, T, S) or None without a bias")
def attention_backward(dy, cache):
    """Go back through ``y = dropout(A) V``, the softmax, and ``scores = Q K^T / sqrt(D)``, whose
    gradient is dS::

        dV = dropout(A)^T dy      dA = dropout_backward(dy V^T)
        dS = softmax_backward(dA)
        dQ = dS K / sqrt(D)       dK = dS^T Q / sqrt(D)       dbias = sum of dS over the batch

    A masked entry has A = 0, so softmax_backward gives it dS = 0 and no mask is needed.  A head of
    keys or values collects from all heads of queries that it serves.
    """
    q, k, v, probabilities, mask, has_bias = cache
    H, G, D = q.shape[1], k.shape[1], q.shape[3]
    keys, values = k, v
    if G < H:
        keys, values = repeat_heads(k, H), repeat_heads(v, H)
    dropped = probabilities if mask is None else probabilities * mask
    da = dropout_backward(dy @ values.swapaxes(-1, -2), DropoutCache(mask))
    ds = softmax_backward(da, SoftmaxCache(probabilities))          # (B, H, T, S)
    dq = ds @ keys / math.sqrt(D)
    dk = ds.swapaxes(-1, -2) @ q / math.sqrt(D)
    dv = dropped.swapaxes(-1, -2) @ dy
    if G < H:
        dk, dv = sum_heads(dk, G), sum_heads(dv, G)
    return dq, dk, dv, ds.sum(axis=0) if has_bias else None


def split_heads(x, n_head):
    """Return the heads, which stand side by side, as a view: (B, T, H * D) -> (B, H, T, D)."""
    B, T, _ = x.shape
    return x.reshape(B, T, n_head, -1).transpose(0, 2, 1, 3)


def merge_heads(*heads):
    """Put heads side by side: (B, H, T, D), (B, G, T, D), ... -> (B, T, (H + G + ...) * D)."""
    B, _, T, _ = heads[0].shape
    return np.concatenate([x.transpose(0, 2, 1, 3).reshape(B, T, -1) for x in heads], axis=-1)


def repeat_heads(x, n_head):
    """Repeat each head for the H / G heads of queries that it serves: (B, G, S, D) ->
    (B, H, S, D)."""
    return x.repeat(n_head // x.shape[1], axis=1)


def sum_heads(dx, n_group):
    """Add up the gradients of the copies of :func:`repeat_heads`: (B, H, S, D) -> (B, G, S, D)."""
    B, _, S, D = dx.shape
    return dx.reshape(B, n_group, -1, S, D).sum(axis=2)


@lru_cache(maxsize=16)
def causal_mask(n_query, n_key, dtype):
    """Return (n_query, n_key): 0 for the tokens that a query reads, -inf for later ones.

    The queries are the last n_query of the n_key tokens.  All callers share the array, so it is
    read-only.
    """
    mask = np.triu(np.full((n_query, n_key), -np.inf, dtype), k=n_key - n_query + 1)
    mask.flags.writeable = False
    return mask


RopeCache = namedtuple("RopeCache", "cos sin shape")                # cos, sin (T, D / 2)


@shapes("x (B, H, T, 2E), scale (E,) -> y (B, H, T, 2E)")
def rope(x, base=10000.0, start=0, scale=None):
    """Rotate queries or keys by their positions (Su et al. 2021, arXiv 2104.09864).

    In each head the channels i and i + D/2 are a point in the plane.  It is rotated by an angle
    that grows with the token's position t::

        angle = (start + t) * base^(-2i / D)
        y_i = x_i cos(angle) - x_(i+D/2) sin(angle)
        y_(i+D/2) = x_(i+D/2) cos(angle) + x_i sin(angle)

    Positions enter the product of a rotated query and a rotated key only by the difference of
    their angles, so only by the distance of the two tokens.  D is even, D = 2E.  ``scale``
    are factors of the angles, where a model was trained further on longer texts.
    """
    T, half = x.shape[2], x.shape[3] // 2
    angles = np.arange(start, start + T)[:, None] * base ** (-np.arange(half) / half)   # (T, D/2)
    angles = angles if scale is None else angles * scale
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    return rotate(x, cos, sin), RopeCache(cos, sin, x.shape)


@shapes("dy (B, H, T, D), shape (B, H, T, D) -> dx (B, H, T, D)")
def rope_backward(dy, cache):
    """Rotate dy by the opposite angle, which is the transpose of the rotation."""
    return rotate(dy, cache.cos, -cache.sin)


def rotate(x, cos, sin):
    """Rotate each pair of channels (i, i + D/2) of each head by an angle."""
    a, b = x[..., :cos.shape[1]], x[..., cos.shape[1]:]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


# ------------------------------------------------------------ long short-term memory


# The gates and the candidate are (B, T, D).  cell and hidden (B, T+1, D) begin with the state
# before the first token.  x is None without dw_ih, hidden is None without dw_hh.
LSTMCache = namedtuple("LSTMCache", "x w_ih w_hh input forget candidate output cell hidden need")


@shapes("x (B, T, C), w_ih (C, 4D), w_hh (D, 4D), b (4D,) -> h (B, T, D)")
def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    """Run one layer of long short-term memory over all tokens (Hochreiter, Schmidhuber 1997, with
    the forget gate of Gers, Schmidhuber, Cummins 2000).

    Each token reads its own x and the state of the token before it, h and c::

        a = x_t @ w_ih + h_(t-1) @ w_hh + b               in four parts: a_i, a_f, a_g, a_o
        i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o)
        g = tanh(a_g)
        c_t = f * c_(t-1) + i * g
        h_t = o * tanh(c_t)

    The input gate i decides how much of the candidate g enters the cell c, the forget gate f how
    much of the cell stays, and the output gate o how much of it enters h.  h and c start at 0.

    The columns of w_ih, w_hh and b are in PyTorch's order: i, f, g, o.  ``need`` is for
    (dx, dw_ih, dw_hh, db).
    """
    B, T, _ = x.shape
    c = np.zeros((B, T + 1, len(w_hh)), x.dtype)          # [:, t] is the state before token t
    h = np.zeros_like(c)
    a = x @ w_ih + b                                      # x needs no state: all tokens at once
    i, f, g, o = in_four(a)                               # views: a turns into the gates
    for t in range(T):
        a[:, t] += h[:, t] @ w_hh
        i[:, t], f[:, t], o[:, t] = sigmoid(i[:, t]), sigmoid(f[:, t]), sigmoid(o[:, t])
        g[:, t] = np.tanh(g[:, t])
        c[:, t + 1] = f[:, t] * c[:, t] + i[:, t] * g[:, t]
        h[:, t + 1] = o[:, t] * np.tanh(c[:, t + 1])
    cache = LSTMCache(x if need[1] else None, w_ih, w_hh, i, f, g, o, c, h if need[2] else None,
                      need)
    return h[:, 1:], cache


@shapes("dy (B, T, D), input (B, T, D) -> dx (B, T, C), dw_ih (C, 4D), dw_hh (D, 4D), db (4D,)")
def lstm_backward(dy, cache):
    """Go back through time, from the last token to the first.

    h is an output and also goes to the next token, and so does c::

        dh = dy_t + da_(t+1) @ w_hh.T
        dc = dc_(t+1) * f_(t+1) + dh * o * (1 - tanh(c_t)^2)
        da_i = dc * g * i * (1 - i)                       da_f = dc * c_(t-1) * f * (1 - f)
        da_g = dc * i * (1 - g^2)                         da_o = dh * tanh(c_t) * o * (1 - o)

    The derivative of s = sigmoid(a) is s (1 - s), and the derivative of g = tanh(a) is 1 - g^2.
    Then, as in a linear layer, ``dx = da @ w_ih.T``, ``dw_ih = x.T @ da``,
    ``dw_hh = h_(t-1).T @ da`` and ``db = sum of da``.
    """
    x, w_ih, w_hh, i, f, g, o, c, h, need = cache
    B, T, D = dy.shape
    da = np.empty((B, T, 4 * D), dy.dtype)
    da_i, da_f, da_g, da_o = in_four(da)
    dh = dc = 0.0                                         # the gradients from the next token
    for t in reversed(range(T)):
        tanh_c = np.tanh(c[:, t + 1])
        dh = dy[:, t] + dh
        dc = dc + dh * o[:, t] * (1.0 - tanh_c * tanh_c)
        da_i[:, t] = dc * g[:, t] * i[:, t] * (1.0 - i[:, t])
        da_f[:, t] = dc * c[:, t] * f[:, t] * (1.0 - f[:, t])
        da_g[:, t] = dc * i[:, t] * (1.0 - g[:, t] * g[:, t])
        da_o[:, t] = dh * tanh_c * o[:, t] * (1.0 - o[:, t])
        dh, dc = da[:, t] @ w_hh.T, dc * f[:, t]
    da = da.reshape(-1, 4 * D)                            # all tokens at once again
    dx = (da @ w_ih.T).reshape(B, T, -1) if need[0] else None
    dw_ih = x.reshape(len(da), -1).T @ da if need[1] else None
    dw_hh = h[:, :-1].reshape(-1, D).T @ da if need[2] else None
    return dx, dw_ih, dw_hh, da.sum(axis=0) if need[3] else None


def sigmoid(x):
    """Compute ``1 / (1 + exp(-x))`` as ``(1 + tanh(x / 2)) / 2``, which does not overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def in_four(a):
    """Return the four parts of the last axis: (B, T, 4D) -> four views (B, T, D)."""
    return a.reshape(*a.shape[:2], 4, -1).transpose(2, 0, 1, 3)


# ----------------------------------------------------------------------- last tokens


LastTokensCache = namedtuple("LastTokensCache", "shape n")           # shape of x


@shapes("x (B, T, C) -> y (B, n, C)")
def last_tokens(x, n):
    """Return the last n tokens, n from 1 to T."""
    return np.ascontiguousarray(x[:, -n:]), LastTokensCache(x.shape, n)


@shapes("dy (B, n, C), shape (B, T, C) -> dx (B, T, C)")
def last_tokens_backward(dy, cache):
    """Put dy into dx, which is 0 for the other tokens."""
    (B, T, C), n = cache
    dx = np.zeros((B, T, C), dy.dtype)
    dx[:, -n:] = dy
    return dx


# --------------------------------------------------------------------- cross-entropy


LogSumExpCache = namedtuple("LogSumExpCache", "e")                  # exp(x - max(x))


@shapes("x (..., N) -> y (..., 1)")
def log_sum_exp(x):
    """Compute ``y = log(sum_j exp(x_j))`` along the last axis.

    In the form ``max(x) + log(sum_j exp(x_j - max(x)))`` no exponential is larger than 1.
    """
    top = x.max(axis=-1, keepdims=True)
    e = np.exp(x - top)
    return top + np.log(e.sum(axis=-1, keepdims=True)), LogSumExpCache(e)


@shapes("dy (..., 1), e (..., N) -> dx (..., N)")
def log_sum_exp_backward(dy, cache):
    """Compute ``dx = dy * softmax(x)``."""
    e = cache.e
    return e * (dy / e.sum(axis=-1, keepdims=True))


CrossEntropyCache = namedtuple("CrossEntropyCache", "log_sum_exp targets")  # a LogSumExpCache


@shapes("logits (..., V), targets (...) integers in 0 ... V-1 -> loss ()")
def cross_entropy(logits, targets):
    """Return the mean negative log-likelihood, ``mean(log_sum_exp(logits) - logits[target])``, in
    nats."""
    lse, lse_cache = log_sum_exp(logits)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
    return (lse - chosen).mean(), CrossEntropyCache(lse_cache, targets)


@shapes("dy () -> dlogits (..., V)")
def cross_entropy_backward(dy, cache):
    """Compute ``dlogits = (softmax(logits) - one_hot(targets)) * dy / number of targets``.

    The log-sum-exp of a row has the gradient softmax, and the chosen logit has the one-hot vector.
    """
    targets = cache.targets[..., None]
    dlse = np.ones(targets.shape, np.float32)             # first lse - chosen of each target
    dlogits = log_sum_exp_backward(dlse, cache.log_sum_exp)         # softmax(logits)
    one_hot = np.arange(dlogits.shape[-1]) == targets
    dlogits -= one_hot
    dlogits *= dy / cache.targets.size                    # then the mean of all
    return dlogits


# ------------------------------------------------------------------------------ Adam


@shapes("x (...), g (...), m (...), v (...) -> x (...), m (...), v (...)")
def adam(x, g, m, v, t=1, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
    """Return a parameter after the step t = 1, 2, ... of Adam, and its two running means (Kingma,
    Ba 2014, arXiv 1412.6980)::

        m = b1 * m + (1 - b1) * g                         a running mean of the gradients
        v = b2 * v + (1 - b2) * g^2                       and of their squares
        x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    m and v start at 0, so at step t they have ``1 - b1^t`` and ``1 - b2^t`` of their size.
    """
    b1, b2 = betas
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1 ** t), v / (1 - b2 ** t)
    x = x - lr * m_hat / (np.sqrt(v_hat) + eps)
    return x, m, v
