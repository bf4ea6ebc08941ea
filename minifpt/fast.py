"""The operations that layers run: those of ``functional``, checked, protected and faster.

Layers import this module as ``ops``.  An operation that is not defined here is ``functional``'s
own.  The forms here equal those of ``functional`` up to rounding; in addition they

- refuse arrays whose shapes do not fit,
- stay finite for any finite float32 input (softmax, log-sum-exp, attention, layer norm),
- cut the work into pieces that fit into a core's cache, and share the pieces between cores.

BLAS runs each piece of a matrix product on one core.  Its own threads busy-wait for the next
product, on cores that the work between two products could use, and they cut a product into
equal parts, so that one core which is busy with something else holds up all.  Here a free core
takes the next piece.

While a model is traced the forms of ``functional`` run instead, see ``tracing``.
"""

import math
from collections import namedtuple

import numpy as np

from . import functional as F
from .machine import shared, single_threaded_blas

TILE = 64                    # queries of one attention tile
MAX_TILE_SCORES = 65536      # scores of one tile, over all heads and examples of a piece
MAX_PIECE = 131072           # numbers in a piece of an elementwise operation
MAX_PARTS = 8                # pieces of a matrix product
PART_WORK = 16_000_000       # multiplications of a piece of a product, at least
PART_WIDTH = 192             # columns or rows of a piece of a product, at least
FEW_ROWS = 48                # with so few rows BLAS is slow to read a transposed matrix
LARGE_MATRIX = 400_000       # of at least so many numbers

GeluCache = namedtuple("GeluCache", "derivative")
# top, total: of each query's scores the largest, and the sum of exp(score - top), (B, H, T, 1);
# masks: for each tile whether dropout keeps an entry, or None; p: the probability of dropout.
TiledAttentionCache = namedtuple("TiledAttentionCache", "qkv n_head causal top total masks p")


def __getattr__(name):
    """An operation without a form of its own here is that of ``functional``."""
    return getattr(F, name)


def expect(fits, where, arrays, expected):
    """Raise a one-line ``ValueError`` with the shapes of ``arrays``, a dict, unless ``fits``."""
    if not fits:
        shapes = ", ".join(f"{name} has shape {np.shape(a)}" for name, a in arrays.items())
        raise ValueError(f"{where}: {shapes}, expected {expected}")


# ------------------------------------------------------------------------ matrix products


def product(a, b, bias=None):
    """``a @ b + bias`` for matrices, a large one cut along the longer side of the result.

    The cuts depend on the sizes alone: BLAS may round a narrow product differently, and the bits
    shall not depend on the number of cores.
    """
    few = len(a) <= FEW_ROWS < b.shape[1] and b.size >= LARGE_MATRIX
    if few and b.flags.f_contiguous and bias is None:
        # BLAS copies a transposed b at a third of its speed, which shows beside so few rows.
        return np.ascontiguousarray(product(b.T, a.T).T)
    long = max(len(a), b.shape[1])
    work = len(a) * b.size + 16 * max(a.size, b.size)     # to read the larger one is work too
    parts = min(MAX_PARTS, work // PART_WORK, long // PART_WIDTH)
    if parts < 2:
        with single_threaded_blas:
            y = a @ b
            if bias is not None:
                y += bias
            return y
    y = np.empty((len(a), b.shape[1]), a.dtype)
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
    dx = product(dy.reshape(-1, V), w).reshape(*dy.shape[:-1], C) if need[0] else None
    dw = product(dy.reshape(-1, V).T, x.reshape(-1, C)) if need[1] else None
    return dx, dw


# ------------------------------------------------------------------------ elementwise


def softmax(x):
    """As :func:`functional.softmax`, without a warning where ``x - max(x)`` overflows: the
    exponential of -inf is 0, which is right."""
    with np.errstate(over="ignore"):
        return F.softmax(x)


def log_sum_exp(x):
    """As :func:`functional.log_sum_exp`, without a warning, as for :func:`softmax`."""
    with np.errstate(over="ignore"):
        return F.log_sum_exp(x)


def cross_entropy(logits, targets):
    """As :func:`functional.cross_entropy`, the loss in float64 where float32 overflows."""
    with np.errstate(over="ignore"):
        loss, cache = F.cross_entropy(logits, targets)
        if not math.isfinite(loss):
            loss, _ = F.cross_entropy(logits.astype(np.float64), targets)
    return loss, cache


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """As :func:`functional.layer_norm`, in place and in pieces that the cores share: fewer passes
    over memory.  Rows of any size are right, see :func:`rescue_rows`."""
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
    """As :func:`functional.gelu`; the cache is the derivative, computed in the same pass.

    Forward and backward share their most expensive part, the tanh; the derivative is as
    large as the x that it replaces.
    """
    y, d = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    flat_x, flat_y, flat_d = x.reshape(-1), y.reshape(-1), d.reshape(-1)

    def part(s):
        xs, ys, ds = flat_x[s], flat_y[s], flat_d[s]
        with np.errstate(over="ignore", invalid="ignore"):
            u = xs * xs
            t = u * (F.GELU_A * F.GELU_B)
            t += F.GELU_A
            t *= xs
            np.tanh(t, out=t)                             # tanh(v), as the textbook form
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
                c = np.clip(xs, -30.0, 30.0)              # beyond, tanh is -1 or 1 exactly
                ds[...] = F.gelu_backward(np.ones_like(c), F.ActivationCache(c))
    shared(part, _even(x.size, 1, MAX_PIECE))
    return y, GeluCache(d)


def gelu_backward(dy, cache):
    """``dx = dy * derivative``, written over ``dy``, which the caller gives away."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_backward(dy, cache)
    F.same_shape(dy, cache.derivative.shape)
    if not dy.flags.c_contiguous:
        return np.multiply(dy, cache.derivative, out=dy)
    flat_dy, flat_d = dy.reshape(-1), cache.derivative.reshape(-1)
    shared(lambda s: np.multiply(flat_dy[s], flat_d[s], out=flat_dy[s]),
           _even(dy.size, 1, MAX_PIECE))
    return dy


# ------------------------------------------------------------------------ attention


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """As :func:`functional.attention`, tile by tile: some queries, and only the keys that
    they may see, so that close to half of a causal model's scores are never computed.

    No probability is kept: the cache holds each query's largest score and sum, from which the
    backward pass computes them again (Dao et al. 2022, arXiv 2205.14135), and dropout's
    masks, one byte an entry.  For few and short texts the simple form is as fast and runs.

    ``past`` is a :class:`minifpt.layers.KeyValues`, which takes in the new tokens; it is for
    inference, the cache is then ``None``.
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
            if p:                                         # the same dropout once more
                rng.bit_generator.state = state
            y, cache = _wide_attention(qkv, n_head, p, rng, causal)
        return y, cache


def _wide_attention(qkv, n_head, p, rng, causal):
    """The simple form in float64, where the scores of float32 queries and keys do not overflow."""
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
    if p:         # all T x T entries are drawn, as by the simple form, though half are not computed
        keep = rng.random((B, H, T, T), np.float32) >= p
        masks = [keep[:, :, i:j, :seen].copy() for i, j, seen in tiles]
        del keep
    ones = np.ones((T, 1), qkv.dtype)

    def part(piece):
        qs, kt = q[piece] * scale, _transposed(k[piece])  # cheaper than to scale the scores
        for n, (i, j, seen) in enumerate(tiles):
            s = _scores(qs, kt, i, j, seen, causal)
            s -= s.max(axis=-1, keepdims=True, out=tops[*piece, i:j])
            np.exp(s, out=s)
            total = s @ ones[:seen]                       # a product sums faster than .sum()
            totals[*piece, i:j] = total
            if p:
                s *= masks[n][piece]
                total *= 1.0 - p
            np.divide(s @ v[*piece, :seen], total, out=heads[*piece, i:j])
    shared(part, _pieces(B, H, T))
    cache = TiledAttentionCache(qkv, n_head, causal, tops, totals, masks, p)
    return y, cache


def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles.  Returns ``dqkv``."""
    with single_threaded_blas:
        simple = isinstance(cache, F.AttentionCache)
        return (F.attention_backward if simple else _tiled_attention_backward)(dy, cache)


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
        for n, (i, j, seen) in reversed(list(enumerate(tiles))):
            a = _scores(qs, kt, i, j, seen, causal)       # A but for the factor 1 / total, which
            a -= tops[*piece, i:j]                        # is put on smaller arrays
            np.exp(a, out=a)
            inverse = 1.0 / totals[*piece, i:j]
            dyt = dy[*piece, i:j] * (inverse / (1.0 - p))
            da = dyt @ vt[..., :seen]                     # dA / total
            if p:
                da *= masks[n][piece]
            da -= np.vecdot(da, a)[..., None] * inverse
            da *= a                                       # dS
            if p:
                a *= masks[n][piece]
            dvt = a.swapaxes(-1, -2) @ dyt
            np.multiply(da @ k[*piece, :seen], scale, out=dq[*piece, i:j])
            dkt = da.swapaxes(-1, -2) @ qs[..., i:j, :]
            if j == T:                                    # the last tile sees every key
                dkp, dvp = dkt, dvt
            else:
                dkp[..., :seen, :] += dkt
                dvp[..., :seen, :] += dvt
        dk[piece], dv[piece] = dkp, dvp
    shared(part, _pieces(B, H, T))
    return dqkv


def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    """As :func:`functional.lstm`, on one core.

    A token's product is small and the next one waits for it.  On a busy machine BLAS's threads
    spend many times as long waiting for each other at each of them.
    """
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
        # Each token multiplies by w_hh.T, which is faster when that lies row by row.
        return F.lstm_backward(dy, cache._replace(w_hh=np.asfortranarray(cache.w_hh)))


def _attention_after(qkv, n_head, causal, past):
    """To join arrays at each token, as the simple form does, would copy all the past each
    time."""
    T, first = qkv.shape[1], past.n == 0
    q, k, v = F.split_heads(qkv, n_head)
    past.extend(k, v)
    if first:
        return attention(qkv, n_head, causal=causal)[0]
    k, v = past.so_far()
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])   # (B, H, T, n)
    if not math.isfinite(s.sum()):
        s = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / math.sqrt(q.shape[-1])
    if causal and T > 1:                                  # one query may see every key
        s += F.causal_mask(T, past.n, s.dtype)
    return F.merge_heads(F.softmax(s)[0].astype(v.dtype, copy=False) @ v)


def _pieces(B, H, T):
    """(batch slice, head slice) pieces: the scores of one tile of them fit in the cache."""
    tile = min(T, TILE) * T
    if H * tile > MAX_TILE_SCORES:                        # some heads of one example
        heads = _even(H, tile, MAX_TILE_SCORES)
        return [(slice(b, b + 1), h) for b in range(B) for h in heads]
    return [(entries, slice(0, H)) for entries in _even(B, H * tile, MAX_TILE_SCORES)]


def _even(n, size, most):
    """Slices of n items of ``size`` numbers, as many items in each, ``most`` numbers or less."""
    each = max(1, -(-n // max(1, -(-n * size // most))))
    return [slice(i, min(i + each, n)) for i in range(0, n, each)]


def _tiles(T, causal):
    """(first query, last + 1, number of keys that they see) for each tile."""
    tiles = [(i, min(i + TILE, T)) for i in range(0, T, TILE)]
    return [(i, j, j if causal else T) for i, j in tiles]


def _transposed(k):
    """A contiguous copy (b, h, D, T): small products with it run at twice the speed."""
    return np.ascontiguousarray(k.swapaxes(-1, -2))


def _scores(qs, kt, i, j, seen, causal):
    """Masked scores of the queries i ... j-1 with the keys 0 ... seen-1."""
    s = qs[..., i:j, :] @ kt[..., :seen]
    if causal:                                            # only a tile's own keys need a mask
        s[..., i:] += F.causal_mask(j - i, j - i, s.dtype)
    return s
