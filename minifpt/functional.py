"""The mathematics of a GPT-2, a Llama and an LSTM: each operation, its backward directly below.

Every operation is a pair::

    y, cache     = op(x, ...)
    dx, dw, ...  = op_backward(dy, cache)

``dy`` is the gradient of one scalar loss with respect to ``y`` and has the shape of ``y``;
``dx`` is the gradient with respect to ``x`` and has the shape of ``x``.  The cache is a
``NamedTuple`` of the arrays that the backward pass reads.  Nothing is stored anywhere else, so
an operation can run twice before it runs back.  The cache holds ``x`` itself, not a copy: if
``x`` changes between the two passes, the gradients are wrong.

Operations with weights take ``need``, a tuple of booleans: which gradients the backward pass
computes, in the order in which it returns them.  It returns ``None`` for the others, and the
cache leaves out the arrays that only they would read.

Letters for shapes: ``B`` batch, ``T`` tokens, ``C`` channels, ``H`` heads, ``D = C / H``,
``V`` vocabulary, ``...`` any leading axes.  Results have the dtype of the input.  All constants
here are Python floats, because NumPy gives them the array's dtype; a NumPy scalar would turn
float32 into float64.

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

# ---------------------------------------------------------------------------- caches
# What each backward pass reads, and shapes that its guard compares.

LinearCache = namedtuple("LinearCache", "x w need")                 # x: None without dw
EmbeddingCache = namedtuple("EmbeddingCache", "ids shape")          # the table's shape
BiasCache = namedtuple("BiasCache", "shape need")                   # shape of x
UnembeddingCache = namedtuple("UnembeddingCache", "x w need")
# tokens: the slice of the table that was added; shape: the table's; x_shape: for the guard.
PositionsCache = namedtuple("PositionsCache", "tokens shape x_shape need")
LayerNormCache = namedtuple("LayerNormCache", "xhat rstd w need")   # rstd: 1 / deviation, (..., 1)
RMSNormCache = namedtuple("RMSNormCache", "xhat rstd w need")
ActivationCache = namedtuple("ActivationCache", "x")
MultiplyCache = namedtuple("MultiplyCache", "gate up")
SoftmaxCache = namedtuple("SoftmaxCache", "y")
DropoutCache = namedtuple("DropoutCache", "mask")                   # None where nothing is dropped
AttentionCache = namedtuple("AttentionCache", "q k v probabilities mask")
BiasedAttentionCache = namedtuple("BiasedAttentionCache", AttentionCache._fields)
RopeCache = namedtuple("RopeCache", "cos sin shape")                # cos, sin (T, 1, D/2)
GroupedHeadsCache = namedtuple("GroupedHeadsCache", "q_shape k_shape n_head")
# The gates and the candidate are (B, T, D).  cell and hidden (B, T+1, D) begin with the state
# before the first token.  x is None without dw_ih, hidden is None without dw_hh.
LSTMCache = namedtuple("LSTMCache", "x w_ih w_hh input forget candidate output cell hidden need")
LastTokensCache = namedtuple("LastTokensCache", "shape n")          # shape of x
LogSumExpCache = namedtuple("LogSumExpCache", "e")                  # exp(x - max(x))
CrossEntropyCache = namedtuple("CrossEntropyCache", "log_sum_exp targets")  # a LogSumExpCache


# ---------------------------------------------------------------------------- linear


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


@shapes("x (..., C), b (C,) -> y (..., C)")
def bias(x, b, need=(True, True)):
    """Add a vector to each token: ``y = x + b``.

    An embedding followed by a bias is a linear layer on one-hot vectors.  ``need`` is for
    (dx, db).
    """
    return x + b, BiasCache(x.shape, need)


@shapes("dy (..., C), shape (..., C) -> dx (..., C), db (C,)")
def bias_backward(dy, cache):
    """Compute ``dx = dy``, ``db = sum of dy over all rows``."""
    shape, need = cache
    db = dy.reshape(-1, shape[-1]).sum(axis=0) if need[1] else None
    return dy if need[0] else None, db


@shapes("x (B, T, C), w (N, C) -> y (B, T, C)")
def positions(x, w, start=0, need=(True, True)):
    """Add to each token the vector of its position: ``y[:, t] = x[:, t] + w[start + t]``.

    N is at least start + T.  ``need`` is for (dx, dw).
    """
    tokens = slice(start, start + x.shape[1])
    return x + w[tokens], PositionsCache(tokens, w.shape, x.shape, need)


@shapes("dy (B, T, C), shape (N, C), x_shape (B, T, C) -> dx (B, T, C), dw (N, C)")
def positions_backward(dy, cache):
    """Compute ``dx = dy``, ``dw[start + t] = sum of dy[:, t] over the batch``."""
    tokens, shape, _, need = cache
    dw = None
    if need[1]:
        dw = np.zeros(shape, dy.dtype)
        dw[tokens] = dy.sum(axis=0)
    return dy if need[0] else None, dw


# ------------------------------------------------------------------------ layer norm


@shapes("x (..., C), w (C,), b (C,) -> y (..., C)")
def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """Normalise the last axis (Ba, Kiros, Hinton 2016, arXiv 1607.06450).

    ``xhat = (x - mean(x)) / sqrt(var(x) + eps)``, ``y = xhat * w + b``.  Mean and variance are
    those of the C channels of each token; the variance is divided by C, not by C - 1.  w is the
    scale and b the bias.  ``need`` is for (dx, dw, db).
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    xhat = centred * rstd
    cache = LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return xhat * w + b, cache


@shapes("dy (..., C), xhat (..., C), w (C,) -> dx (..., C), dw (C,), db (C,)")
def layer_norm_backward(dy, cache):
    """Compute ``dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd`` with ``g = dy * w``,
    ``dw = sum(dy * xhat)`` and ``db = sum(dy)``, the sums over all tokens.

    The two means are the parts of g that would shift or stretch the row.  Layer norm removes
    shifts and stretches from x, so x gets no gradient along them.
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


@shapes("x (..., C), w (C,) -> y (..., C)")
def rms_norm(x, w, eps=1e-6, need=(True, True)):
    """Divide by the root mean square of the last axis (Zhang, Sennrich 2019, arXiv 1910.07467).

    ``xhat = x / sqrt(mean(x^2) + eps)``, ``y = xhat * w``: a layer norm without mean and bias.
    w is the scale.  ``need`` is for (dx, dw).
    """
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    xhat = x * rstd
    cache = RMSNormCache(xhat if any(need) else None, rstd if need[0] else None, w, need)
    return xhat * w, cache


@shapes("dy (..., C), xhat (..., C), w (C,) -> dx (..., C), dw (C,)")
def rms_norm_backward(dy, cache):
    """Compute ``dx = (g - xhat * mean(g * xhat)) * rstd`` with ``g = dy * w``, and
    ``dw = sum(dy * xhat)`` over all tokens.

    The mean is the part of g that would stretch the row; the norm removes stretches from x.
    """
    xhat, rstd, w, need = cache
    dx = dw = None
    if need[0]:
        g = dy * w
        dx = (g - xhat * (g * xhat).mean(-1, keepdims=True)) * rstd
    if need[1]:
        dw = (dy * xhat).reshape(-1, len(w)).sum(axis=0)
    return dx, dw


# ----------------------------------------------------------------------- activations


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

    The outputs of a row always sum to 1, so a gradient that is the same for all of them changes
    nothing: the sum, a mean of dy weighted by y, is taken out.
    """
    y = cache.y
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


# --------------------------------------------------------------------------- dropout


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


@shapes("qkv (B, T, 3HD), bias (H, T, T) -> y (B, T, HD)")
def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None, bias=None):
    """Let each token read the others, by multi-head self-attention.

    For each head, ``S = Q K^T / sqrt(D)``, ``A = softmax(S)``, ``y = dropout(A) V`` (Vaswani
    et al. 2017, arXiv 1706.03762, eq. 1).  When ``causal``, a token reads only itself and the
    tokens before it.

    qkv holds queries, keys and values side by side, each H heads of D channels.  ``past`` (k, v),
    each (B, H, P, D), are keys and values of the P tokens before these.  ``bias`` is added to the
    scores S of every example.  The cache holds the probabilities (B, H, T, P+T) before dropout.
    """
    q, k, v = split_heads(qkv, n_head)                    # (B, H, T, D) each
    if past is not None:
        k = np.concatenate([past[0], k], axis=2)          # (B, H, P+T, D)
        v = np.concatenate([past[1], v], axis=2)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])        # (B, H, T, P+T)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores + causal_mask(*scores.shape[-2:], scores.dtype)
    probabilities, _ = softmax(scores)
    dropped, dropout_cache = dropout(probabilities, p, rng)
    y = merge_heads(dropped @ v)                          # (B, H, T, D) -> (B, T, C)
    cache = AttentionCache(q, k, v, probabilities, dropout_cache.mask)
    return y, cache if bias is None else BiasedAttentionCache(*cache)


@shapes("dy (B, T, HD), q (B, H, T, D), k (B, H, T, D) -> dqkv (B, T, 3HD), with a bias "
        "(dqkv, dbias (H, T, T))")
def attention_backward(dy, cache):
    """Go back through ``y = dropout(A) V``, the softmax, and ``S = Q K^T / sqrt(D)``::

        dV = dropout(A)^T dy      dA = dropout_backward(dy V^T)
        dS = softmax_backward(dA)
        dQ = dS K / sqrt(D)       dK = dS^T Q / sqrt(D)       dbias = sum of dS over the batch

    A masked entry has A = 0, so softmax_backward gives it dS = 0 and no mask is needed.
    """
    q, k, v, probabilities, mask = cache
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)     # (B, H, T, D)
    dqkv = np.empty((B, T, 3 * H * D), dy.dtype)
    dq, dk, dv = split_heads(dqkv, H)                     # views of dqkv
    dropped = probabilities if mask is None else probabilities * mask
    da = dropout_backward(dy @ v.swapaxes(-1, -2), DropoutCache(mask))      # (B, H, T, T)
    ds = softmax_backward(da, SoftmaxCache(probabilities))
    dq[...] = ds @ k / math.sqrt(D)
    dk[...] = ds.swapaxes(-1, -2) @ q / math.sqrt(D)
    dv[...] = dropped.swapaxes(-1, -2) @ dy
    return (dqkv, ds.sum(axis=0)) if isinstance(cache, BiasedAttentionCache) else dqkv


def split_heads(qkv, n_head):
    """Return queries, keys and values: (B, T, 3C) -> three views (B, H, T, D)."""
    B, T, _ = qkv.shape
    return qkv.reshape(B, T, 3, n_head, -1).transpose(2, 0, 3, 1, 4)


def merge_heads(y):
    """Put the heads side by side: (B, H, T, D) -> (B, T, C)."""
    B, H, T, D = y.shape
    return y.transpose(0, 2, 1, 3).reshape(B, T, H * D)


@lru_cache(maxsize=16)
def causal_mask(n_query, n_key, dtype):
    """Return (n_query, n_key): 0 for the tokens that a query reads, -inf for later ones.

    The queries are the last n_query of the n_key tokens.  All callers share the array, so it is
    read-only.
    """
    mask = np.triu(np.full((n_query, n_key), -np.inf, dtype), k=n_key - n_query + 1)
    mask.flags.writeable = False
    return mask


@shapes("x (B, T, 2HE) -> y (B, T, 2HE)")
def rope(x, n_head, base=10000.0, start=0):
    """Rotate queries or keys by their positions (Su et al. 2021, arXiv 2104.09864).

    In each head the channels i and i + D/2 are a point in the plane.  It is rotated by an angle
    that grows with the token's position t::

        angle = (start + t) * base^(-2i / D)
        y_i = x_i cos(angle) - x_(i+D/2) sin(angle)
        y_(i+D/2) = x_(i+D/2) cos(angle) + x_i sin(angle)

    Positions enter the product of a rotated query and a rotated key only by the difference of
    their angles, so only by the distance of the two tokens.  D is even, D = 2E.
    """
    T, half = x.shape[1], x.shape[2] // n_head // 2
    angles = np.arange(start, start + T)[:, None] * base ** (-np.arange(half) / half)
    angles = angles[:, None]                              # (T, 1, D/2): the same for each head
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    return rotate(x, cos, sin), RopeCache(cos, sin, x.shape)


@shapes("dy (B, T, C), shape (B, T, C) -> dx (B, T, C)")
def rope_backward(dy, cache):
    """Rotate dy by the opposite angle, which is the transpose of the rotation."""
    cos, sin, shape = cache
    return rotate(dy, cos, -sin)


def rotate(x, cos, sin):
    """Rotate each pair of channels (i, i + D/2) of each head by an angle."""
    pairs = x.reshape(*x.shape[:2], -1, 2, cos.shape[2])  # (B, T, H, 2, D/2)
    a, b = pairs[:, :, :, 0], pairs[:, :, :, 1]
    return np.stack((a * cos - b * sin, b * cos + a * sin), axis=3).reshape(x.shape)


@shapes("q (B, T, HD), k (B, T, GD), v (B, T, GD) -> qkv (B, T, 3HD)")
def grouped_heads(q, k, v, n_head):
    """Repeat keys and values that several heads share (Ainslie et al. 2023, arXiv 2305.13245).

    Queries have H heads of D channels, keys and values have G heads, and each of these serves
    H / G consecutive heads of queries.  The result is for :func:`attention`.
    """
    (B, T, C), D = q.shape, q.shape[2] // n_head
    G = k.shape[2] // D
    kv = (a.reshape(B, T, G, D).repeat(n_head // G, axis=2).reshape(B, T, C) for a in (k, v))
    return np.concatenate([q, *kv], axis=2), GroupedHeadsCache(q.shape, k.shape, n_head)


@shapes("dqkv (B, T, 3C), q_shape (B, T, C) -> dq (B, T, C), dk (B, T, GD), dv (B, T, GD)")
def grouped_heads_backward(dqkv, cache):
    """Split dqkv; dk and dv are sums over the heads that share a key or value."""
    (B, T, C), shape = cache.q_shape, cache.k_shape
    D = C // cache.n_head
    dq, dk, dv = np.split(dqkv, 3, axis=2)
    dk, dv = (d.reshape(B, T, shape[2] // D, -1, D).sum(axis=3).reshape(shape) for d in (dk, dv))
    return dq, dk, dv


# ------------------------------------------------------------ long short-term memory


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


# -------------------------------------------------------------------------- residual


@shapes("x (..., C), branch (..., C) -> y (..., C)")
def residual(x, branch):
    """Add a branch, which is a function of x, to x: ``y = x + branch``.

    The backward pass needs no cache: it is ``None``.
    """
    return x + branch, None


@shapes("dy (..., C), dbranch (..., C) -> dx (..., C)")
def residual_backward(dy, dbranch):
    """Compute ``dx = dy + dbranch``: x reaches y in two ways, and both gradients add up.

    ``dbranch`` is the gradient that came back through the branch.
    """
    return dy + dbranch


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


@shapes("logits (..., V), targets (...) integers in 0 ... V-1 -> loss ()")
def cross_entropy(logits, targets):
    """Return the mean negative log-likelihood, ``mean(log_sum_exp(logits) - logits[target])``, in
    nats."""
    lse, lse_cache = log_sum_exp(logits)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
    return (lse - chosen).mean(), CrossEntropyCache(lse_cache, targets)


@shapes("dy () -> dlogits (..., V)")
def cross_entropy_backward(dy, cache):
    """Compute ``dlogits = (softmax(logits) - one_hot(targets)) * dy / number of targets``."""
    index = cache.targets[..., None]
    dlse = np.ones(index.shape, np.float32)               # the factor dy / N comes last
    dlogits = log_sum_exp_backward(dlse, cache.log_sum_exp)         # softmax(logits)
    chosen = np.take_along_axis(dlogits, index, axis=-1)
    np.put_along_axis(dlogits, index, chosen - 1.0, axis=-1)        # - one_hot(targets)
    dlogits *= dy / cache.targets.size
    return dlogits
