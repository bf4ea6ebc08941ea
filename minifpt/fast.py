"""The operations that layers run: those of ``functional``, checked, protected and faster.

Layers import this module as ``ops``.  An operation that is not defined here comes from
``functional``.  The functions here equal those of ``functional`` up to rounding; in addition they

- raise ``ValueError`` for arrays whose shapes do not fit,
- stay finite for any finite float32 input (softmax, log-sum-exp, attention, layer norm),
- cut the work into pieces that fit into a core's cache, and share the pieces between cores.

BLAS's own threads are not used, for two reasons.  While they wait for the next product they
occupy cores that the work between two products could use.  And they cut a product into equal
parts, so that one busy core delays all.  Here a free core takes the next piece.

While a model is traced, the functions of ``functional`` run instead; see ``tracing``.
"""

import math
from collections import namedtuple

import numpy as np

from . import functional as F
from .machine import shared, single_threaded_blas

TILE = 64                           # queries in a tile of attention
MAX_TILE_SCORES = 65_536            # scores in a tile, over the heads and examples of a piece
MAX_PIECE = 131_072                 # numbers in a piece of an elementwise operation
MAX_PARTS = 4                       # parts of a matrix product; each part copies the other factor
MIN_MULTIPLICATIONS = 16_000_000    # smaller parts of a product cost more than they gain
MIN_WIDTH = 192                     # so do parts with fewer rows or columns
MAX_ROWS_TO_SWAP = 48               # up to here a @ b may run as (b.T @ a.T).T, see product
MIN_SIZE_TO_SWAP = 400_000          # numbers in b from which this is faster

GeluCache = namedtuple("GeluCache", "derivative")
# top: the largest score of each query (B, H, T, 1); total: the sum of its exp(score - top);
# masks: for each tile, which entries dropout keeps, or None; p: the probability of dropout.
TiledAttentionCache = namedtuple("TiledAttentionCache", "qkv n_head causal top total masks p")


def __getattr__(name):
    """Return an operation of ``functional`` that has no faster form here."""
    return getattr(F, name)


def expect(fits, where, arrays, expected):
    """Raise ``ValueError`` with the shapes of ``arrays``, a dict, unless ``fits``."""
    if not fits:
        shapes = ", ".join(f"{name} has shape {np.shape(a)}" for name, a in arrays.items())
        raise ValueError(f"{where}: {shapes}, expected {expected}")


# ------------------------------------------------------------------------ matrix products


def product(a, b, bias=None):
    """Return ``a @ b + bias`` for matrices; cut a large product along its result's longer side.

    The cuts depend on the sizes alone, because BLAS may round a narrow product differently and
    the bits must not depend on the number of cores.
    """
    few = len(a) <= MAX_ROWS_TO_SWAP < b.shape[1] and b.size >= MIN_SIZE_TO_SWAP
    if few and b.flags.f_contiguous and bias is None:
        # BLAS copies a transposed b at a third of the speed, which shows with so few rows.
        return np.ascontiguousarray(product(b.T, a.T).T)
    long = max(len(a), b.shape[1])
    work = len(a) * b.size + 16 * max(a.size, b.size)     # reading the larger array is work, too
    parts = min(MAX_PARTS, work // MIN_MULTIPLICATIONS, long // MIN_WIDTH)
    if parts < 2:
        with single_threaded_blas:
            y = a @ b
            if bias is not None:
                y += bias
            return y
    y = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    ends = [64 * (long * i // parts // 64) for i in range(parts)] + [long]

    def part(cut):
        i, j = (cut, slice(None)) if long == len(a) else (slice(None), cut)
        np.matmul(a[i], b[:, j], out=y[i, j])
        if bias is not None:
            y[i, j] += bias[j]
    with single_threaded_blas:
        shared(part, [slice(*ends[i:i + 2]) for i in range(parts)])
    return y


def linear(x, w, b, need=(True, True, True)):
    """As :func:`functional.linear`, a large product on all cores."""
    expect(x.shape[-1:] == w.shape[:1] and b.shape == w.shape[1:], "linear",
           {"x": x, "w": w, "b": b}, "x (..., I), w (I, O), b (O,)")
    y = product(x.reshape(-1, len(w)), w, b).reshape(*x.shape[:-1], len(b))
    cache = F.LinearCache(x if need[1] else None, w, need)
    return y, cache


def linear_backward(dy, cache):
    """As :func:`functional.linear_backward`, large products on all cores."""
    x, w, need = cache
    F.same_shape(dy, (*(dy if x is None else x).shape[:-1], w.shape[1]))
    rows = dy.reshape(-1, w.shape[1])
    dx = product(rows, w.T).reshape(*dy.shape[:-1], len(w)) if need[0] else None
    dw = product(x.reshape(-1, len(w)).T, rows) if need[1] else None
    return dx, dw, rows.sum(axis=0) if need[2] else None


def unembedding(x, w, need=(True, True)):
    """As :func:`functional.unembedding`, a large product on all cores."""
    expect(x.shape[-1] == w.shape[1], "unembedding", {"x": x, "w": w}, "x (..., C), w (V, C)")
    y = product(x.reshape(-1, w.shape[1]), w.T).reshape(*x.shape[:-1], len(w))
    cache = F.UnembeddingCache(x if need[1] else None, w, need)
    return y, cache


def unembedding_backward(dy, cache):
    """As :func:`functional.unembedding_backward`, large products on all cores."""
    x, w, need = cache
    V, C = w.shape
    F.same_shape(dy, (*(dy if x is None else x).shape[:-1], V))
    dx = product(dy.reshape(-1, V), w).reshape(*dy.shape[:-1], C) if need[0] else None
    dw = product(dy.reshape(-1, V).T, x.reshape(-1, C)) if need[1] else None
    return dx, dw


# ------------------------------------------------------------------------ elementwise


def softmax(x):
    """As :func:`functional.softmax`, without a warning if ``x - max(x)`` overflows: the
    exponential of -inf is 0, as it should be."""
    with np.errstate(over="ignore"):
        return F.softmax(x)


def log_sum_exp(x):
    """As :func:`functional.log_sum_exp`, without a warning, as for :func:`softmax`."""
    with np.errstate(over="ignore"):
        return F.log_sum_exp(x)


def cross_entropy(logits, targets):
    """As :func:`functional.cross_entropy`, with a loss in float64 if float32 overflows."""
    with np.errstate(over="ignore"):
        loss, cache = F.cross_entropy(logits, targets)
        if not math.isfinite(loss):
            loss, _ = F.cross_entropy(logits.astype(np.float64), targets)
    return loss, cache


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """As :func:`functional.layer_norm`, in place and in pieces that the cores share, for fewer
    passes over memory; right for rows of any size, see :func:`rescue_rows`."""
    expect(x.shape[-1:] == w.shape == b.shape, "layer_norm", {"x": x, "w": w, "b": b},
           "x (..., C), w (C,), b (C,)")
    y, xhat = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    rstd = np.empty((*x.shape[:-1], 1), x.dtype)
    flat = [a.reshape(-1, a.shape[-1]) for a in (x, y, xhat, rstd)]

    def part(rows):
        xs, ys, xhats, rstds = (a[rows] for a in flat)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = xs.mean(axis=-1, keepdims=True)
            np.subtract(xs, mean, out=xhats)
            rstds[...] = 1.0 / np.sqrt(np.vecdot(xhats, xhats)[..., None] / len(w) + eps)
            xhats *= rstds
            rescue_rows(xs, mean, xhats, rstds, eps)
        np.multiply(xhats, w, out=ys)
        ys += b
    shared(part, _even(len(flat[0]), len(w), MAX_PIECE))
    cache = F.LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return y, cache


def rescue_rows(x, mean, xhat, rstd, eps):
    """Compute some rows again, in place: those whose variance overflowed (in float32 the square of
    1e20 is infinite), and those whose mean is so large that its rounding error matters.

    Such a row is first divided by a power of two near its largest value, which is exact.  Then it
    is centred twice: the second mean is the rounding error of the first.
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


def layer_norm_backward(dy, cache):
    """As :func:`functional.layer_norm_backward`, in place."""
    xhat, rstd, w, need = cache
    if xhat is not None:
        F.same_shape(dy, xhat.shape)
    dx = np.empty(dy.shape, dy.dtype) if need[0] else None
    flat = [None if a is None else a.reshape(-1, a.shape[-1]) for a in (dy, xhat, rstd, dx)]
    pieces = _even(len(flat[0]), len(w), MAX_PIECE) or [slice(0, 0)]
    dws, dbs = {}, {}

    def part(rows):
        dys, xhats, rstds, dxs = (None if a is None else a[rows] for a in flat)
        if need[0]:
            g = dys * w
            np.multiply(xhats, np.vecdot(g, xhats)[..., None] / -len(w), out=dxs)
            dxs += g
            dxs -= g.mean(axis=-1, keepdims=True)
            dxs *= rstds
        if need[1]:
            dws[rows.start] = (dys * xhats).sum(axis=0)
        if need[2]:
            dbs[rows.start] = dys.sum(axis=0)
    shared(part, pieces)
    dw, db = (sum(sums[s.start] for s in pieces) if sums else None for sums in (dws, dbs))
    return dx, dw, db


def gelu(x):
    """As :func:`functional.gelu`; the cache is the derivative, so that the tanh, the most expensive
    part, is computed once."""
    y, d = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    flat_x, flat_y, flat_d = x.reshape(-1), y.reshape(-1), d.reshape(-1)

    def part(s):
        xs, ys, ds = flat_x[s], flat_y[s], flat_d[s]
        with np.errstate(over="ignore", invalid="ignore"):
            u = xs * xs
            t = u * (F.GELU_A * F.GELU_B)
            t += F.GELU_A
            t *= xs
            np.tanh(t, out=t)                             # tanh(v), as in functional
            t *= 0.5
            t += 0.5                                      # t = (1 + tanh) / 2
            np.multiply(xs, t, out=ys)
            np.subtract(1.0, t, out=ds)                   # d = t + y (1 - t) 2 dv/dx
            ds *= ys
            u *= 6.0 * F.GELU_A * F.GELU_B
            u += 2.0 * F.GELU_A
            ds *= u
            ds += t
            if math.isnan(ds.max()):                      # a square overflowed
                c = np.clip(xs, -30.0, 30.0)              # beyond, tanh is exactly -1 or 1
                ds[...] = F.gelu_backward(np.ones_like(c), F.ActivationCache(c))
    shared(part, _even(x.size, 1, MAX_PIECE))
    return y, GeluCache(d)


def gelu_backward(dy, cache):
    """Compute ``dx = dy * derivative``."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_backward(dy, cache)
    F.same_shape(dy, cache.derivative.shape)
    dx = np.empty(dy.shape, np.result_type(dy, cache.derivative))
    flat_dx, flat_dy, flat_d = (a.reshape(-1) for a in (dx, dy, cache.derivative))
    shared(lambda s: np.multiply(flat_dy[s], flat_d[s], out=flat_dx[s]),
           _even(dy.size, 1, MAX_PIECE))
    return dx


# ------------------------------------------------------------------------ attention


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """As :func:`functional.attention`, in tiles.

    A tile is some queries with only the keys that they may read, so that nearly half of a causal
    model's scores are never computed.  The cache holds no probabilities but each query's largest
    score and sum, from which the backward pass computes them again (Dao et al. 2022, arXiv
    2205.14135), and dropout's masks, one byte for each entry.  Few and short texts take
    ``functional``'s form, which is as fast for them.

    ``past`` is a :class:`minifpt.layers.KeyValues`, to which the new tokens are appended; it is
    for inference, and the cache is then ``None``.
    """
    B, T, C3 = qkv.shape
    expect(C3 % (3 * n_head) == 0, "attention", {"qkv": qkv},
           f"(B, T, 3C), a multiple of 3 x {n_head} heads")
    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        if past is not None:
            return _attention_after(qkv, n_head, causal, past), None
        state = rng.bit_generator.state if p else None
        is_small = T <= TILE and B * n_head * T * T <= 4 * MAX_TILE_SCORES
        run = F.attention if is_small else _tiled_attention
        y, cache = run(qkv, n_head, p, rng, causal)
        if not math.isfinite(cache.probabilities.sum() if is_small else cache.total.sum()):
            if p:                                         # draw the same dropout again
                rng.bit_generator.state = state
            y, cache = _wide_attention(qkv, n_head, p, rng, causal)
        return y, cache


def _wide_attention(qkv, n_head, p, rng, causal):
    """Run ``functional``'s form in float64, in which scores of float32 numbers cannot overflow."""
    y, cache = F.attention(qkv.astype(np.float64), n_head, p, rng, causal)
    arrays = (None if a is None else a.astype(qkv.dtype) for a in cache)
    return y.astype(qkv.dtype), F.AttentionCache(*arrays)


def _tiled_attention(qkv, n_head, p, rng, causal):
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    y = np.empty((B, T, H * D), qkv.dtype)
    tops, totals = np.empty((2, B, H, T, 1), qkv.dtype)
    heads = y.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    tiles, scale = _tiles(T, causal), 1.0 / math.sqrt(D)
    masks = None
    if p:                                                 # draws as many numbers as functional
        keep = rng.random((B, H, T, T), np.float32) >= p
        masks = [keep[:, :, i:j, :n_keys].copy() for i, j, n_keys in tiles]
        del keep
    ones = np.ones((T, 1), qkv.dtype)

    def part(piece):
        qs, kt = q[piece] * scale, _transposed(k[piece])  # there are fewer queries than scores
        for n, (i, j, n_keys) in enumerate(tiles):
            s = _scores(qs, kt, i, j, n_keys, causal)
            s -= s.max(axis=-1, keepdims=True, out=tops[*piece, i:j])
            np.exp(s, out=s)
            total = s @ ones[:n_keys]                     # a product sums faster than .sum()
            totals[*piece, i:j] = total
            if p:
                s *= masks[n][piece]
                total *= 1.0 - p
            np.divide(s @ v[*piece, :n_keys], total, out=heads[*piece, i:j])
    shared(part, _pieces(B, H, T))
    cache = TiledAttentionCache(qkv, n_head, causal, tops, totals, masks, p)
    return y, cache


def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles; return ``dqkv``."""
    is_tiled = isinstance(cache, TiledAttentionCache)
    B, H, T, D = F.split_heads(cache.qkv, cache.n_head)[0].shape if is_tiled else cache.q.shape
    F.same_shape(dy, (B, T, H * D))
    with single_threaded_blas:
        return (_tiled_attention_backward if is_tiled else F.attention_backward)(dy, cache)


def _tiled_attention_backward(dy, cache):
    qkv, n_head, causal, tops, totals, masks, p = cache
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    dqkv = np.empty(qkv.shape, dy.dtype)
    dq, dk, dv = F.split_heads(dqkv, n_head)
    tiles, scale = _tiles(T, causal), 1.0 / math.sqrt(D)

    def part(piece):
        qs, kt, vt = q[piece] * scale, _transposed(k[piece]), _transposed(v[piece])
        for n, (i, j, n_keys) in reversed(list(enumerate(tiles))):
            a = _scores(qs, kt, i, j, n_keys, causal)     # A * total: smaller arrays are divided
            a -= tops[*piece, i:j]
            np.exp(a, out=a)
            inverse = 1.0 / totals[*piece, i:j]
            dyt = dy[*piece, i:j] * (inverse / (1.0 - p))
            da = dyt @ vt[..., :n_keys]                   # dA / total
            if p:
                da *= masks[n][piece]
            da -= np.vecdot(da, a)[..., None] * inverse
            da *= a                                       # dS
            if p:
                a *= masks[n][piece]
            dvt = a.swapaxes(-1, -2) @ dyt
            np.multiply(da @ k[*piece, :n_keys], scale, out=dq[*piece, i:j])
            dkt = da.swapaxes(-1, -2) @ qs[..., i:j, :]
            if j == T:                                    # the last tile reads every key
                dkp, dvp = dkt, dvt
            else:
                dkp[..., :n_keys, :] += dkt
                dvp[..., :n_keys, :] += dvt
        dk[piece], dv[piece] = dkp, dvp
    shared(part, _pieces(B, H, T))
    return dqkv


def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    """As :func:`functional.lstm`, on one core: each token's product is small and the next token
    needs it, so that BLAS's threads would spend most of the time waiting for each other."""
    D = len(w_hh)
    expect(x.ndim == 3 and w_ih.shape == (x.shape[2], 4 * D) and w_hh.shape == (D, 4 * D)
           and b.shape == (4 * D,), "lstm", {"x": x, "w_ih": w_ih, "w_hh": w_hh, "b": b},
           "x (B, T, C), w_ih (C, 4D), w_hh (D, 4D), b (4D,)")
    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        y, cache = F.lstm(x, w_ih, w_hh, b, need)
        if math.isnan(y.sum()):                           # two infinities met in a gate
            wide = F.lstm(*(a.astype(np.float64) for a in (x, w_ih, w_hh, b)), need)
            y, *arrays = (a if a is None or a is need else a.astype(y.dtype)
                          for a in (wide[0], *wide[1]))
            cache = F.LSTMCache(*arrays)
        return y, cache


def lstm_backward(dy, cache):
    """As :func:`functional.lstm_backward`, on one core."""
    with single_threaded_blas:
        # Each token multiplies by w_hh.T, which is faster if its rows lie in order.
        return F.lstm_backward(dy, cache._replace(w_hh=np.asfortranarray(cache.w_hh)))


def _attention_after(qkv, n_head, causal, past):
    """Run attention with a ``KeyValues``, without the copy of all earlier tokens that
    ``functional``'s form makes for each new one."""
    T, first = qkv.shape[1], past.n == 0
    q, k, v = F.split_heads(qkv, n_head)
    past.extend(k, v)
    if first:
        return attention(qkv, n_head, causal=causal)[0]
    k, v = past.so_far()
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])   # (B, H, T, n)
    if not math.isfinite(s.sum()):
        s = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / math.sqrt(q.shape[-1])
    if causal and T > 1:                                  # the last query may read every key
        s += F.causal_mask(T, past.n, s.dtype)
    return F.merge_heads(F.softmax(s)[0].astype(v.dtype, copy=False) @ v)


def _pieces(B, H, T):
    """Return pieces (batch slice, head slice) for which the scores of a tile fit into a cache."""
    tile = min(T, TILE) * T
    if H * tile > MAX_TILE_SCORES:                        # a few heads of one example
        heads = _even(H, tile, MAX_TILE_SCORES)
        return [(slice(b, b + 1), h) for b in range(B) for h in heads]
    return [(entries, slice(0, H)) for entries in _even(B, H * tile, MAX_TILE_SCORES)]


def _even(n, size, most):
    """Return equal slices of n items of ``size`` numbers, each with at most ``most`` numbers."""
    each = max(1, -(-n // max(1, -(-n * size // most))))
    return [slice(i, min(i + each, n)) for i in range(0, n, each)]


def _tiles(T, causal):
    """Return (first query, last query + 1, number of keys that they read) for each tile."""
    tiles = [(i, min(i + TILE, T)) for i in range(0, T, TILE)]
    return [(i, j, j if causal else T) for i, j in tiles]


def _transposed(k):
    """Return a contiguous copy (b, h, D, T), which doubles the speed of small products."""
    return np.ascontiguousarray(k.swapaxes(-1, -2))


def _scores(qs, kt, i, j, n_keys, causal):
    """Return the masked scores of the queries i ... j-1 with the first ``n_keys`` keys."""
    s = qs[..., i:j, :] @ kt[..., :n_keys]
    if causal:                                            # only the keys i ... j-1 need a mask
        s[..., i:] += F.causal_mask(j - i, j - i, s.dtype)
    return s
