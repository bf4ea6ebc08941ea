"""The mathematics of a GPT-2: each operation and, right under it, its backward.

Every operation is a pair::

    y, cache     = op(x, ...)
    dx, dw, ...  = op_backward(dy, cache, need=(True, ...))

``dy`` is the gradient of one scalar loss with respect to ``y`` and has the shape of
``y``; ``dx`` is the gradient with respect to ``x`` and has the shape of ``x``.
``cache`` holds what the backward pass reads, and nothing is stored anywhere else, so an
operation can run twice before it runs back.  ``need`` says which results are wanted, in
the order in which they are returned: one that is not wanted is ``None`` and is never
computed, and what only it would have read may be ``None`` in the cache.

Letters for shapes: ``B`` batch, ``T`` tokens, ``C`` channels, ``H`` heads, ``D = C / H``,
``V`` vocabulary, ``...`` any leading axes.  The dtype of the input is the dtype of all
that follows: Python's own floats are the only other numbers here, because NumPy lets them
take the array's dtype, where a NumPy scalar would turn float32 into float64.
"""

import math

import numpy as np

# ---------------------------------------------------------------------------- linear


def linear(x, w, b):
    """Affine map of the last axis: ``y = x @ w + b``.

    x (..., I), w (I, O), b (O,) -> y (..., O).  The weight multiplies from the right, as
    in GPT-2's own checkpoints.
    """
    if x.shape[-1] != w.shape[0]:
        raise ValueError(f"linear: x has {x.shape[-1]} features, w has shape {w.shape}: "
                         f"expected x of shape (..., {w.shape[0]})")
    # One product over all rows; matmul on the 3-d array would make one per batch entry.
    y = x.reshape(-1, w.shape[0]) @ w                     # (N, I) @ (I, O) -> (N, O)
    y += b
    return y.reshape(*x.shape[:-1], w.shape[1]), (x, w)


def linear_backward(dy, cache, need=(True, True, True)):
    """``dx = dy @ w.T``, ``dw = x.T @ dy``, ``db = sum of dy over all rows``.

    Each row of x meets every row of w once, so its gradient is a product again.
    """
    x, w = cache
    dy2 = dy.reshape(-1, dy.shape[-1])                    # (N, O)
    dx = dw = db = None
    if need[0]:
        dx = (dy2 @ w.T).reshape(*dy.shape[:-1], w.shape[0])
    if need[1]:
        dw = x.reshape(-1, x.shape[-1]).T @ dy2           # (I, N) @ (N, O) -> (I, O)
    if need[2]:
        db = dy2.sum(axis=0)
    return dx, dw, db


# ------------------------------------------------------------------------- embedding


def embedding(ids, w):
    """Row lookup: ``y = w[ids]``, a linear layer on one-hot vectors without the product.

    ids (...) integers in 0 ... V-1, w (V, C) -> y (..., C).
    """
    if ids.size and (ids.min() < 0 or ids.max() >= len(w)):
        raise ValueError(f"embedding: ids run from {ids.min()} to {ids.max()}, "
                         f"the table has rows 0 to {len(w) - 1}")
    return w[ids], (ids, w.shape)


def embedding_backward(dy, cache):
    """``dw[v] = sum of dy over the places where ids is v``.  Returns ``dw`` (V, C)."""
    ids, shape = cache
    dw = np.zeros(shape, dy.dtype)
    if ids.size:
        # Sorted, equal ids stand side by side and each run is one sum (np.add.at is slow).
        order = np.argsort(ids, axis=None, kind="stable")
        rows, starts = np.unique(ids.reshape(-1)[order], return_index=True)
        dw[rows] = np.add.reduceat(dy.reshape(-1, shape[1])[order], starts, axis=0)
    return dw


# ------------------------------------------------------------------------ layer norm


def layer_norm(x, w, b, eps=1e-5):
    """Layer normalisation over the last axis (Ba, Kiros, Hinton 2016, arXiv 1607.06450).

    ``xhat = (x - mean(x)) / sqrt(var(x) + eps)``, ``y = xhat * w + b``; mean and
    (biased) variance are taken over the C channels of each token.

    x (..., C), scale w (C,), offset b (C,) -> y (..., C).  Finite for any finite x.
    """
    if x.shape[-1:] != w.shape:
        raise ValueError(f"layer_norm: x has {x.shape[-1]} channels, w has shape {w.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        xhat, rstd = _standardise(x, eps)
        bad = ~(np.isfinite(rstd) & (rstd > 0))
        if bad.any():
            # The square of a value above 1e19 overflows float32.  The result does not
            # depend on the size of such a row, so shrink it first, and eps with it, down
            # to the variance that rounding makes.
            s = np.where(bad, np.abs(x).max(axis=-1, keepdims=True), 1.0)
            tiny = np.finfo(x.dtype).eps ** 2
            xhat, rstd = _standardise(x / s, np.where(bad, tiny, x.dtype.type(eps)))
            rstd = rstd / s
    y = xhat * w
    y += b
    return y, (xhat, rstd, w)


def _standardise(x, eps):
    """``(x - mean) / sqrt(var + eps)`` along the last axis, and ``1 / sqrt(var + eps)``."""
    xhat = x - x.mean(axis=-1, keepdims=True)
    var = np.vecdot(xhat, xhat)[..., None] / x.shape[-1]  # (..., 1)
    rstd = 1.0 / np.sqrt(var + eps)
    xhat *= rstd
    return xhat, rstd


def layer_norm_backward(dy, cache, need=(True, True, True)):
    """With ``g = dy * w``: ``dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd``.

    The two means are what a shift and a stretch of the row would have done to the loss:
    layer norm removes both, so neither may pass back.  ``dw = sum(dy * xhat)`` and
    ``db = sum(dy)`` over all tokens.
    """
    xhat, rstd, w = cache
    C = dy.shape[-1]
    dx = dw = db = None
    if need[0]:
        g = dy * w
        dx = xhat * (np.vecdot(g, xhat)[..., None] / -C)
        dx += g
        dx -= g.mean(axis=-1, keepdims=True)
        dx *= rstd
    if need[1]:
        dw = (dy * xhat).reshape(-1, C).sum(axis=0)
    if need[2]:
        db = dy.reshape(-1, C).sum(axis=0)
    return dx, dw, db


# ------------------------------------------------------------------------------ GELU

GELU_A = math.sqrt(2.0 / math.pi)
GELU_B = 0.044715


def gelu(x):
    """Gaussian error linear unit, in the tanh form that GPT-2 uses.

    ``y = x/2 * (1 + tanh(u))``, ``u = sqrt(2/pi) * (x + 0.044715 x^3)``
    (Hendrycks, Gimpel 2016, arXiv 1606.08415).  x (...) -> y (...).
    """
    t = _gelu_tanh(x)
    t += 1.0
    t *= x
    t *= 0.5
    return t, x


def _gelu_tanh(x):
    """``tanh(sqrt(2/pi) * (x + 0.044715 x^3))``."""
    u = x * x
    u *= GELU_A * GELU_B
    u += GELU_A
    u *= x
    return np.tanh(u, out=u)


def gelu_backward(dy, cache):
    """``dx = dy * ((1 + t)/2 + x/2 * (1 - t^2) * du/dx)`` with ``t = tanh(u)`` and
    ``du/dx = sqrt(2/pi) * (1 + 3 * 0.044715 x^2)``.

    ``t`` is computed again: that is cheaper than to keep it, it would be as large as x,
    four times the width of the trunk.
    """
    x = cache
    t = _gelu_tanh(x)
    dx = x * x
    dx *= 3.0 * GELU_A * GELU_B
    dx += GELU_A
    dx *= x                                               # x du/dx
    dx *= 1.0 - t * t
    dx += t
    dx += 1.0
    dx *= 0.5
    dx *= dy
    return dx


# --------------------------------------------------------------------------- softmax


def softmax(x):
    """``y_i = exp(x_i) / sum_j exp(x_j)`` along the last axis.

    The largest x of each row is taken away first, which changes nothing in the quotient
    and keeps every exponential at or below 1.  x (..., N) -> y (..., N).
    """
    with np.errstate(over="ignore"):                      # -inf is right: exp gives 0
        y = x - x.max(axis=-1, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=-1, keepdims=True)
    return y, y


def softmax_backward(dy, cache):
    """``dx = y * (dy - sum_j dy_j y_j)``: a row's outputs sum to 1, whatever moves."""
    y = cache
    dx = dy - np.vecdot(dy, y)[..., None]
    dx *= y
    return dx


# --------------------------------------------------------------------------- dropout


def dropout(x, p, rng):
    """Inverted dropout (Srivastava et al. 2014): ``y = x * mask``, ``mask`` 0 or 1/(1-p).

    x (...) -> y (...).  Each entry is kept or not by 16 random bits, so p is rounded to a
    multiple of 2^-16; the scale uses the rounded value and the mean of y is exactly x.
    With p = 0 nothing is drawn and y is x.
    """
    if not 0.0 <= p < 1.0 - 2**-17:
        raise ValueError(f"dropout: p is {p}, expected 0 <= p < 1")
    drop = round(p * 65536)
    if drop == 0:
        return x, None
    if rng is None:
        raise ValueError(f"dropout: p is {p} and rng is None: "
                         "pass rng=np.random.default_rng(seed)")
    bits = np.frombuffer(rng.bytes(2 * x.size), np.uint16).reshape(x.shape)
    mask = np.multiply(bits >= drop, 65536.0 / (65536 - drop), dtype=x.dtype)
    return x * mask, mask


def dropout_backward(dy, cache):
    """``dx = dy * mask``: what was dropped gets nothing, what was kept its scale."""
    return dy if cache is None else dy * cache


# ------------------------------------------------------- causal multi-head attention


def attention(qkv, n_head, p=0.0, rng=None, past=None):
    """Causal multi-head self-attention between the two linear layers of a GPT-2 block.

    For each head, ``A = softmax(Q K^T / sqrt(D))`` over the tokens up to each query's own
    place, ``y = dropout(A) V`` (Vaswani et al. 2017, arXiv 1706.03762, eq. 1).

    qkv (B, T, 3C): queries, keys and values side by side, each H heads of D channels.
    ``past`` (k, v), each (B, H, P, D), are keys and values of P tokens before these.
    -> y (B, T, C); the cache is (q, k, v, A, mask): q (B, H, T, D), k and v
    (B, H, P+T, D), A (B, H, T, P+T) the probabilities before dropout, mask its mask.
    """
    q, k, v = split_heads(qkv, n_head)
    if past is not None:
        k = np.concatenate([past[0], k], axis=2)
        v = np.concatenate([past[1], v], axis=2)
    a = q @ k.swapaxes(-1, -2)                            # (B, H, T, P+T)
    a *= 1.0 / math.sqrt(q.shape[-1])
    a += causal_mask(*a.shape[-2:], a.dtype)
    a, _ = softmax(a)
    kept, mask = dropout(a, p, rng)
    y = merge_heads(kept @ v)                             # (B, H, T, D) -> (B, T, C)
    return y, (q, k, v, a, mask)


def attention_backward(dy, cache):
    """Back through ``y = dropout(A) V``, the softmax, and ``S = Q K^T / sqrt(D)``::

        dV = dropout(A)^T dy      dA = dropout_backward(dy V^T)
        dS = softmax_backward(dA)
        dQ = dS K / sqrt(D)       dK = dS^T Q / sqrt(D)

    A masked entry has A = 0, so softmax_backward gives it dS = 0 and no mask is needed.
    Returns ``dqkv`` (B, T, 3C).
    """
    q, k, v, a, mask = cache
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)     # (B, H, T, D)
    dqkv = np.empty((B, T, 3 * H * D), dy.dtype)
    dq, dk, dv = split_heads(dqkv, H)                     # views: each product lands in place
    kept = a if mask is None else a * mask
    np.matmul(kept.swapaxes(-1, -2), dy, out=dv)
    da = dropout_backward(dy @ v.swapaxes(-1, -2), mask)  # (B, H, T, T)
    ds = softmax_backward(da, a)
    ds *= 1.0 / math.sqrt(D)
    np.matmul(ds, k, out=dq)
    np.matmul(ds.swapaxes(-1, -2), q, out=dk)
    return dqkv


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


def causal_mask(n_query, n_key, dtype):
    """(n_query, n_key): 0 where a query may look, -inf on the tokens after its own.

    The queries are the last n_query of the n_key tokens.
    """
    return np.triu(np.full((n_query, n_key), -np.inf, dtype), k=n_key - n_query + 1)


# --------------------------------------------------------------------- cross-entropy


def log_sum_exp(x):
    """``y = log(sum_j exp(x_j))`` along the last axis, x (..., N) -> y (..., 1).

    As ``max(x) + log(sum_j exp(x_j - max(x)))``, finite for any finite x.
    """
    top = x.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        e = np.exp(x - top)
    return top + np.log(e.sum(axis=-1, keepdims=True)), (e,)


def log_sum_exp_backward(dy, cache):
    """``dx = dy * softmax(x)``."""
    (e,) = cache
    return e * (dy / e.sum(axis=-1, keepdims=True))


def cross_entropy(logits, targets):
    """Mean negative log-likelihood: ``mean(log_sum_exp(logits) - logits[target])``, nats.

    logits (..., V), targets (...) integers in 0 ... V-1 -> a scalar.
    """
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"cross_entropy: logits {logits.shape} want targets of shape "
                         f"{logits.shape[:-1]}, got {targets.shape}")
    if targets.size == 0 or targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError("cross_entropy: targets must be integers from 0 to "
                         f"{logits.shape[-1] - 1}, at least one")
    lse, cache = log_sum_exp(logits)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
    return (lse - chosen).mean(), (cache, targets)


def cross_entropy_backward(dy, cache):
    """``dlogits = (softmax(logits) - one_hot(targets)) * dy / number of targets``."""
    lse_cache, targets = cache
    dlogits = log_sum_exp_backward(1.0, lse_cache)
    index = targets[..., None]
    np.put_along_axis(dlogits, index, np.take_along_axis(dlogits, index, -1) - 1.0, -1)
    dlogits *= dy / targets.size
    return dlogits
