"""A possible answer to the skeleton that ``minifpt new`` writes: every function, in few lines.

    minifpt check lessons/solutions/18_functional.py

The docstrings are in the skeleton.  Nothing here is fast, and nothing heeds ``need``: all
gradients are computed, and the library leaves out those that nobody wants.
"""

import math

import numpy as np

from minifpt.functional import (
    GELU_A,
    GELU_B,
    ActivationCache,
    AttentionCache,
    BiasCache,
    CrossEntropyCache,
    DropoutCache,
    EmbeddingCache,
    LastTokensCache,
    LayerNormCache,
    LinearCache,
    LogSumExpCache,
    LSTMCache,
    MultiplyCache,
    PositionsCache,
    RMSNormCache,
    RopeCache,
    SoftmaxCache,
    UnembeddingCache,
    causal_mask,
    in_four,
    repeat_heads,
    rotate,
    sigmoid,
    sum_heads,
)

# ------------------------------------------------------------------------------ lesson 1


def linear(x, w, b, need=(True, True, True)):
    return x @ w + b, LinearCache(x, w, need)


def linear_backward(dy, cache):
    x, w, _ = cache
    rows = tuple(range(dy.ndim - 1))                      # batch and tokens
    return dy @ w.T, np.tensordot(x, dy, (rows, rows)), dy.sum(axis=rows)


# ------------------------------------------------------------------------------ lesson 2


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, SoftmaxCache(y)


def softmax_backward(dy, cache):
    y = cache.y
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


def log_sum_exp(x):
    top = x.max(axis=-1, keepdims=True)
    e = np.exp(x - top)
    return top + np.log(e.sum(axis=-1, keepdims=True)), LogSumExpCache(e)


def log_sum_exp_backward(dy, cache):
    return dy * cache.e / cache.e.sum(axis=-1, keepdims=True)


def cross_entropy(logits, targets):
    if targets.dtype.kind not in "iu" or targets.min() < 0 or targets.max() >= logits.shape[-1]:
        raise ValueError(f"targets must be integers from 0 to {logits.shape[-1] - 1}")
    lse, cache = log_sum_exp(logits)
    chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
    return (lse - chosen).mean(), CrossEntropyCache(cache, targets)


def cross_entropy_backward(dy, cache):
    one = np.ones((*cache.targets.shape, 1), np.float32)
    probabilities = log_sum_exp_backward(one, cache.log_sum_exp)
    classes = np.arange(probabilities.shape[-1])
    one_hot = (cache.targets[..., None] == classes).astype(probabilities.dtype)
    return (probabilities - one_hot) * (dy / cache.targets.size)


# ------------------------------------------------------------------------------ lesson 3


def layer_norm(x, w, b, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt((centred ** 2).mean(axis=-1, keepdims=True) + eps)
    xhat = centred * rstd
    return xhat * w + b, LayerNormCache(xhat, rstd, w)


def layer_norm_backward(dy, cache):
    xhat, rstd, w = cache
    g = dy * w
    along = (g * xhat).mean(axis=-1, keepdims=True)
    dx = (g - g.mean(axis=-1, keepdims=True) - xhat * along) * rstd
    rows = tuple(range(dy.ndim - 1))
    return dx, (dy * xhat).sum(axis=rows), dy.sum(axis=rows)


# ------------------------------------------------------------------------------ lesson 4


def positions(x, w, start=0):
    tokens = slice(start, start + x.shape[1])
    return x + w[tokens], PositionsCache(tokens, w.shape, x.shape)


def positions_backward(dy, cache):
    dw = np.zeros(cache.shape, dy.dtype)
    dw[cache.tokens] = dy.sum(axis=0)
    return dy, dw


def dropout(x, p, rng):
    if p == 0:
        return x, DropoutCache(None)
    is_kept = rng.random(x.shape, dtype=np.float32) >= p
    mask = is_kept.astype(x.dtype) / (1.0 - p)
    return x * mask, DropoutCache(mask)


def dropout_backward(dy, cache):
    return dy if cache.mask is None else dy * cache.mask


def attention(q, k, v, p=0.0, rng=None, causal=True):
    H, D = q.shape[1], q.shape[3]
    S = q @ repeat_heads(k, H).swapaxes(-1, -2) / math.sqrt(D)      # (B, H, T, S)
    if causal:
        S = S + causal_mask(*S.shape[-2:], S.dtype)
    A, _ = softmax(S)
    dropped, cache = dropout(A, p, rng)
    return dropped @ repeat_heads(v, H), AttentionCache(q, k, v, A, cache.mask, False)


# ------------------------------------------------------------------------------ lesson 5


def attention_backward(dy, cache):
    q, k, v, A, mask, has_bias = cache
    H, G, D = q.shape[1], k.shape[1], q.shape[3]
    dropped = A if mask is None else A * mask
    dA = dropout_backward(dy @ repeat_heads(v, H).swapaxes(-1, -2), DropoutCache(mask))
    dS = softmax_backward(dA, SoftmaxCache(A))
    dq = dS @ repeat_heads(k, H) / math.sqrt(D)
    dk = sum_heads(dS.swapaxes(-1, -2) @ q, G) / math.sqrt(D)
    dv = sum_heads(dropped.swapaxes(-1, -2) @ dy, G)
    return dq, dk, dv, dS.sum(axis=0) if has_bias else None


# ------------------------------------------------------------------------------ lesson 6


def gelu(x):
    t = np.tanh(GELU_A * (x + GELU_B * x ** 3))
    return 0.5 * x * (1.0 + t), ActivationCache(x)


def gelu_backward(dy, cache):
    x = cache.x
    t = np.tanh(GELU_A * (x + GELU_B * x ** 3))
    du = GELU_A * (1.0 + 3.0 * GELU_B * x ** 2)
    return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t ** 2) * du)


def gelu_exact(x):
    from scipy.special import ndtr
    return x * ndtr(x), ActivationCache(x)


def gelu_exact_backward(dy, cache):
    from scipy.special import ndtr
    density = np.exp(-0.5 * cache.x ** 2) / math.sqrt(2.0 * math.pi)
    return dy * (ndtr(cache.x) + cache.x * density)


def relu(x):
    return np.maximum(x, 0.0), ActivationCache(x)


def relu_backward(dy, cache):
    return dy * (cache.x > 0)


def last_tokens(x, n):
    return x[:, -n:], LastTokensCache(x.shape, n)


def last_tokens_backward(dy, cache):
    dx = np.zeros(cache.shape, dy.dtype)
    dx[:, -dy.shape[1]:] = dy
    return dx


# ----------------------------------------------------------------------------- lesson 10


def embedding(ids, w):
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= len(w):
        raise ValueError(f"ids must be integers from 0 to {len(w) - 1}")
    return w[ids], EmbeddingCache(ids, w.shape)


def embedding_backward(dy, cache):
    dw = np.zeros(cache.shape, dy.dtype)
    np.add.at(dw, cache.ids, dy)                          # an id may stand there twice
    return dw


def bias(x, b):
    return x + b, BiasCache(x.shape)


def bias_backward(dy, cache):
    return dy, dy.sum(axis=tuple(range(dy.ndim - 1)))


def unembedding(x, w, need=(True, True)):
    return x @ w.T, UnembeddingCache(x, w, need)


def unembedding_backward(dy, cache):
    x, w, _ = cache
    rows = tuple(range(dy.ndim - 1))
    return dy @ w, np.tensordot(dy, x, (rows, rows))


# ----------------------------------------------------------------------------- lesson 15


def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    B, T, _ = x.shape
    c = np.zeros((B, T + 1, len(w_hh)), x.dtype)          # [:, t] is the state before token t
    h = np.zeros_like(c)
    gates = np.empty((B, T, 4 * len(w_hh)), x.dtype)
    i, f, g, o = in_four(gates)                           # views
    for t in range(T):
        gates[:, t] = x[:, t] @ w_ih + h[:, t] @ w_hh + b
        for gate in (i, f, o):
            gate[:, t] = sigmoid(gate[:, t])
        g[:, t] = np.tanh(g[:, t])
        c[:, t + 1] = f[:, t] * c[:, t] + i[:, t] * g[:, t]
        h[:, t + 1] = o[:, t] * np.tanh(c[:, t + 1])
    return h[:, 1:], LSTMCache(x, w_ih, w_hh, i, f, g, o, c, h, need)


def lstm_backward(dy, cache):
    x, w_ih, w_hh, i, f, g, o, c, h, _ = cache
    B, T, D = dy.shape
    da = np.empty((B, T, 4 * D), dy.dtype)
    da_i, da_f, da_g, da_o = in_four(da)                  # views
    dh, dc = np.zeros_like(dy[:, 0]), np.zeros_like(dy[:, 0])
    for t in reversed(range(T)):
        tanh_c = np.tanh(c[:, t + 1])
        dh = dy[:, t] + dh
        dc = dc + dh * o[:, t] * (1.0 - tanh_c ** 2)
        da_i[:, t] = dc * g[:, t] * i[:, t] * (1.0 - i[:, t])
        da_f[:, t] = dc * c[:, t] * f[:, t] * (1.0 - f[:, t])
        da_g[:, t] = dc * i[:, t] * (1.0 - g[:, t] ** 2)
        da_o[:, t] = dh * tanh_c * o[:, t] * (1.0 - o[:, t])
        dh, dc = da[:, t] @ w_hh.T, dc * f[:, t]
    rows = (0, 1)
    return (da @ w_ih.T, np.tensordot(x, da, (rows, rows)),
            np.tensordot(h[:, :-1], da, (rows, rows)), da.sum(axis=rows))


def rms_norm(x, w, eps=1e-6):
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x * rstd * w, RMSNormCache(x * rstd, rstd, w)


def rms_norm_backward(dy, cache):
    xhat, rstd, w = cache
    g = dy * w
    dx = (g - xhat * (g * xhat).mean(axis=-1, keepdims=True)) * rstd
    return dx, (dy * xhat).sum(axis=tuple(range(dy.ndim - 1)))


def silu(x):
    return x * sigmoid(x), ActivationCache(x)


def silu_backward(dy, cache):
    s = sigmoid(cache.x)
    return dy * (s + cache.x * s * (1.0 - s))


def multiply(gate, up):
    return gate * up, MultiplyCache(gate, up)


def multiply_backward(dy, cache):
    return dy * cache.up, dy * cache.gate


def rope(x, base=10000.0, start=0):
    T, half = x.shape[2], x.shape[3] // 2
    angles = np.arange(start, start + T)[:, None] / base ** (np.arange(half) / half)
    cos, sin = (f(angles).astype(x.dtype) for f in (np.cos, np.sin))
    return rotate(x, cos, sin), RopeCache(cos, sin, x.shape)


def rope_backward(dy, cache):
    return rotate(dy, cache.cos, -cache.sin)


if __name__ == "__main__":
    from minifpt.exercises.own import check as check_file
    check_file(__file__)
