"""Fast forms of operations of ``functional``, equal to them up to rounding.

The work is cut into pieces small enough to stay in the core's cache, and what the backward
pass would compute again is computed once.  While a model is traced the simple forms run
instead, see ``tracing``.

The pieces of a large operation are shared by all cores, those of a matrix product too: BLAS
itself runs each on one core.  Its own threads busy-wait for the next product, on cores that the
work between two products could use, and they cut a product into equal parts, so that one core
which is busy with something else holds up all.  Here a free core takes the next piece.
"""

import math
from collections import namedtuple

import numpy as np

from . import functional as F
from .machine import shared, single_threaded_blas

TILE = 64                                                 # queries of one attention tile
TILES = 65536                                             # scores in one piece, one tile of them
PIECE = 131072                                            # numbers in an elementwise piece
PARTS = 8                                                 # pieces of a matrix product, or fewer,
PRODUCT = 16_000_000                                      # with so many multiplications or more,
WIDTH = 192                                               # and so many columns or rows or more
FEW = 48                                                  # rows that are too few for a transpose
TRANSPOSE = 400_000                                       # of a matrix with so many numbers

GeluCache = namedtuple("GeluCache", "derivative")
# top, total: of each query's scores the largest, and the sum of exp(score - top), (B, H, T, 1);
# kept: what dropout keeps, a mask for each tile; drop: how many of 65,536 entries are dropped.
TiledAttentionCache = namedtuple("TiledAttentionCache", "qkv n_head causal top total kept drop")


def product(a, b, bias=None):
    """``a @ b + bias`` for matrices, a large one cut along the longer side of the result.

    The cuts depend on the sizes alone: BLAS may round a narrow product differently, and the bits
    shall not depend on the number of cores.
    """
    if len(a) <= FEW < b.shape[1] and b.size >= TRANSPOSE and b.flags.f_contiguous and bias is None:
        # BLAS copies a transposed b at a third of its speed, which shows beside so few rows.
        return np.ascontiguousarray(product(b.T, a.T).T)
    long = max(len(a), b.shape[1])
    work = len(a) * b.size + 16 * max(a.size, b.size)     # to read the larger one is work too
    parts = min(PARTS, work // PRODUCT, long // WIDTH)
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
    if x.shape[-1] != w.shape[0] or b.shape != w.shape[1:]:
        return F.linear(x, w, b, need)                    # it says what does not fit
    y = product(x.reshape(-1, w.shape[0]), w, b).reshape(*x.shape[:-1], w.shape[1])
    return y, F.LinearCache(x if need[1] else None, w, need) if any(need) else None


def linear_backward(dy, cache):
    """As :func:`functional.linear_backward`, large products on all cores."""
    x, w, need = cache
    dy2 = dy.reshape(-1, w.shape[1])
    dx = product(dy2, w.T).reshape(*dy.shape[:-1], w.shape[0]) if need[0] else None
    dw = product(x.reshape(-1, w.shape[0]).T, dy2) if need[1] else None
    return dx, dw, dy2.sum(axis=0) if need[2] else None


def unembedding(x, w, need=(True, True)):
    """As :func:`functional.unembedding`, a large product on all cores."""
    if x.shape[-1] != w.shape[1]:
        return F.unembedding(x, w, need)                  # it says what does not fit
    y = product(x.reshape(-1, w.shape[1]), w.T).reshape(*x.shape[:-1], len(w))
    return y, F.UnembeddingCache(x if need[1] else None, w, need) if any(need) else None


def unembedding_backward(dy, cache):
    """As :func:`functional.unembedding_backward`, large products on all cores."""
    x, w, need = cache
    V, C = w.shape
    dx = product(dy.reshape(-1, V), w).reshape(*dy.shape[:-1], C) if need[0] else None
    dw = product(dy.reshape(-1, V).T, x.reshape(-1, C)) if need[1] else None
    return dx, dw


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """As :func:`functional.layer_norm`, in place where it can be: fewer passes over memory."""
    F.check_layer_norm(x, w, b)
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
            F.rescue_rows(xs, mean, xhats, rstds, eps)
        np.multiply(xhats, w, out=ys)
        ys += b
    shared(part, _even(len(flat[0]), len(w), PIECE))
    cache = F.LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return y, cache if any(need) else None


def layer_norm_backward(dy, cache):
    """As :func:`functional.layer_norm_backward`, in place."""
    xhat, rstd, w, need = cache
    dx = np.empty(dy.shape, dy.dtype) if need[0] else None
    flat = [None if a is None else a.reshape(-1, a.shape[-1]) for a in (dy, xhat, rstd, dx)]
    pieces = _even(len(flat[0]), len(w), PIECE) or [slice(0, 0)]
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
                ds[...] = F.gelu_backward(1.0, F.ActivationCache(xs))
    shared(part, _even(x.size, 1, PIECE))
    return y, GeluCache(d)


def gelu_backward(dy, cache):
    """``dx = dy * derivative``, written over ``dy``, which the caller gives away."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_backward(dy, cache)
    return _over(np.multiply, cache.derivative, dy)


def residual_backward(dy, dbranch):
    """``dx = dy + dbranch``, written over ``dbranch``, which the caller gives away."""
    return _over(np.add, dy, dbranch)


def _over(function, a, b):
    """``b = function(a, b)``, in place."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        return function(a, b, out=b)
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    shared(lambda s: function(flat_a[s], flat_b[s], out=flat_b[s]), _even(b.size, 1, PIECE))
    return b


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """As :func:`functional.attention`, tile by tile: some queries, and only the keys that
    they may see, so that close to half of a causal model's scores are never computed.

    No probability is kept: the cache holds each query's largest score and sum, from which the
    backward pass computes them again (Dao et al. 2022, arXiv 2205.14135), and dropout's
    masks, one byte an entry.  For few and short texts the simple form is as fast and runs.

    ``past`` is a :class:`KeyValues`, which takes in the new tokens; it is for inference, the
    cache is then ``None``.
    """
    with single_threaded_blas:
        if past is not None:
            return _attention_after(qkv, n_head, causal, past), None
        if qkv.shape[1] <= TILE and len(qkv) * n_head * qkv.shape[1] ** 2 <= 4 * TILES:
            return F.attention(qkv, n_head, p, rng, causal)
        drop = F.dropout_bits(p, rng)
        before = rng.bit_generator.state if drop else None
        y, cache = _tiled_attention(qkv, n_head, drop, rng, causal)
        if np.isfinite(cache.total).all():
            return y, cache
        if drop:                                          # a score overflowed: draw it again
            rng.bit_generator.state = before
        return F.attention(qkv, n_head, p, rng, causal)


def _tiled_attention(qkv, n_head, drop, rng, causal):
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    y = np.empty((B, T, H * D), qkv.dtype)
    tops, totals = np.empty((2, B, H, T, 1), qkv.dtype)
    heads = y.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    tiles, scale = _tiles(T, causal), 1.0 / math.sqrt(D)
    if drop:      # all T x T entries are drawn, as by the simple form, though half are not computed
        bits = np.frombuffer(rng.bytes(2 * B * H * T * T), np.uint16).reshape(B, H, T, T)
    kept = [bits[:, :, i:j, :seen] >= drop for i, j, seen in tiles] if drop else None
    ones = np.ones((T, 1), qkv.dtype)

    def part(piece):
        with np.errstate(over="ignore", invalid="ignore"):
            qs, kt = q[piece] * scale, _transposed(k[piece])  # cheaper than to scale the scores
            for n, (i, j, seen) in enumerate(tiles):
                s = _scores(qs, kt, i, j, seen, causal)
                s -= s.max(axis=-1, keepdims=True, out=tops[*piece, i:j])
                np.exp(s, out=s)
                total = s @ ones[:seen]                   # a product sums faster than .sum()
                totals[*piece, i:j] = total
                if drop:
                    s *= kept[n][piece]
                    total *= (65536 - drop) / 65536
                np.divide(s @ v[*piece, :seen], total, out=heads[*piece, i:j])
    shared(part, _pieces(B, H, T))
    return y, TiledAttentionCache(qkv, n_head, causal, tops, totals, kept, drop)


def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles.  Returns ``dqkv``."""
    with single_threaded_blas:
        simple = isinstance(cache, F.AttentionCache)
        return (F.attention_backward if simple else _tiled_attention_backward)(dy, cache)


def _tiled_attention_backward(dy, cache):
    qkv, n_head, causal, tops, totals, kept, drop = cache
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
            dyt = dy[*piece, i:j] * (inverse * (65536 / (65536 - drop)) if drop else inverse)
            da = dyt @ vt[..., :seen]                     # dA / total
            if drop:
                da *= kept[n][piece]
            da -= np.vecdot(da, a)[..., None] * inverse
            da *= a                                       # dS
            if drop:
                a *= kept[n][piece]
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
    with single_threaded_blas:
        return F.lstm(x, w_ih, w_hh, b, need)


def lstm_backward(dy, cache):
    """As :func:`functional.lstm_backward`, on one core."""
    with single_threaded_blas:
        return F.lstm_backward(dy, cache)


class KeyValues:
    """The keys and values of the tokens so far, for one block; room for ``room`` tokens."""

    def __init__(self, room):
        self.k = self.v = None                            # (B, H, room, D) from the first call on
        self.room, self.n = room, 0

    def extend(self, k, v):
        """Take in k and v (B, H, T, D) of the next tokens."""
        B, H, T, D = k.shape
        if self.k is None:
            self.k = np.empty((B, H, self.room, D), k.dtype)
            self.v = np.empty_like(self.k)
        new = slice(self.n, self.n + T)
        self.k[:, :, new], self.v[:, :, new] = k, v
        self.n += T

    def so_far(self):
        """``(k, v)`` of all tokens so far, (B, H, n, D) each; ``None`` before the first."""
        return None if self.k is None else (self.k[:, :, :self.n], self.v[:, :, :self.n])


def _attention_after(qkv, n_head, causal, past):
    """To join arrays at each token, as the simple form does, would copy all the past each
    time."""
    T, first = qkv.shape[1], past.n == 0
    q, k, v = F.split_heads(qkv, n_head)
    past.extend(k, v)
    if first:
        return attention(qkv, n_head, causal=causal)[0]
    k, v = past.so_far()
    s = F.dot_products(q, k)                              # (B, H, T, n)
    s *= 1.0 / math.sqrt(q.shape[-1])
    if causal and T > 1:                                  # one query may see every key
        s += F.causal_mask(T, past.n, s.dtype)
    return F.merge_heads(F.softmax(s)[0] @ v)


def _pieces(B, H, T):
    """(batch slice, head slice) pieces: the scores of one tile of them fit in the cache."""
    tile = min(T, TILE) * T
    if H * tile > TILES:                                  # some heads of one batch entry
        return [(slice(b, b + 1), heads) for b in range(B) for heads in _even(H, tile, TILES)]
    return [(entries, slice(0, H)) for entries in _even(B, H * tile, TILES)]


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
