"""Fast forms of operations of ``functional``, equal to them up to rounding.

The work is cut into pieces small enough to stay in the core's cache, and what the backward
pass would compute again is computed once.  While a model is traced the simple forms run
instead, see ``tracing``.  All of it runs on one core: Python threads between the matrix
products gained nothing, because OpenBLAS's own threads busy-wait for the next product.
"""

import ctypes
import math
import os
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from . import functional as F

TILE = 64                                                 # queries of one attention tile
TILES = 65536                                             # scores in one piece, one tile of them
PIECE = 131072                                            # numbers in an elementwise piece

GeluCache = namedtuple("GeluCache", "derivative")
# top, total: of each query's scores the largest, and the sum of exp(score - top), (B, H, T, 1);
# kept: what dropout keeps, a mask for each tile; drop: how many of 65,536 entries are dropped.
TiledAttentionCache = namedtuple("TiledAttentionCache", "qkv n_head causal top total kept drop")


@cache
def cores():
    """How many cores this process may use; ``OMP_NUM_THREADS`` lowers it, as it does BLAS's.
    One where no thread can be started, as in a browser."""
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (
        os.cpu_count() or 1)
    limit = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return min(available, int(limit)) if limit.isdecimal() and int(limit) else available


def shared(work, pieces):
    """Call ``work(piece)`` for each of a list, spread over the cores; waits for all.

    For weights that are loaded or drawn, and for Adam on many millions of them.  Between a
    step's matrix products it would gain nothing.
    """
    if cores() == 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(work, pieces))                      # raises what a worker raised


class ProcessSetting:
    """A setting of the whole process: the first ``with`` makes it, the last one to end, in
    whichever thread, undoes it.  A forked child starts without it.

    ``make`` is a generator function that makes the setting, yields and undoes it.
    """

    def __init__(self, make):
        self.make, self.__doc__ = make, make.__doc__
        self.lock, self.users, self.made = threading.Lock(), 0, None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def __enter__(self):
        with self.lock:
            if self.users == 0:
                self.made = self.make()
                next(self.made)
            self.users += 1

    def __exit__(self, *error):
        with self.lock:
            if self.users == 0:                           # begun before this process was forked
                return
            self.users -= 1
            if self.users == 0:
                next(self.made, None)

    def _forked(self):
        self.lock = threading.Lock()
        if self.users:
            self.users = 0
            next(self.made, None)


def _openblas(name, result=ctypes.c_int):
    """A function of NumPy's own OpenBLAS, whose names differ by build, or ``None``."""
    try:
        lib = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (OSError, AttributeError):
        return None
    for spelling in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
        function = getattr(lib, spelling.format(name), None)
        if function:
            function.restype = result
            return function
    return None


def blas_kernels():
    """Which kernels OpenBLAS chose for this processor (``SkylakeX``), as far as it tells."""
    tell = _openblas("get_corename", ctypes.c_char_p)
    return f"kernels for {tell().decode()}" if tell else "kernels unknown"


_get_threads, _set_threads = _openblas("get_num_threads"), _openblas("set_num_threads")


def blas_threads(n=None):
    """How many threads OpenBLAS gives to a product, once it is set to ``n`` where that is given;
    ``None`` where NumPy has no OpenBLAS."""
    if _get_threads is None or _set_threads is None:
        return None
    if n is not None:
        _set_threads(n)
    return _get_threads()


@ProcessSetting
def single_threaded_blas():
    """Within, each matrix product runs on the core that asks for it: sharing one of attention's
    small products costs more than it gains.  Nothing changes without OpenBLAS."""
    if _get_threads is None or _set_threads is None:
        yield
        return
    before = _get_threads()
    _set_threads(1)
    yield
    _set_threads(before)


@ProcessSetting
def kept_memory():
    """Within, the C library keeps the memory that arrays give back, for the next arrays.

    By default glibc returns each large array to the system, and the system clears every page
    of the next one, which takes up to a fifth of a training step.  At the end glibc's default
    returns and so does the memory.  Does nothing where there is no glibc.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc_trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError, TypeError):
        yield
        return
    mallopt(-4, 0)                                        # M_MMAP_MAX: no mapping of its own
    mallopt(-1, 2**31 - 1)                                # M_TRIM_THRESHOLD: nothing goes back
    yield
    mallopt(-4, 65536)
    mallopt(-1, 128 * 1024)
    malloc_trim(0)


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """As :func:`functional.layer_norm`, in place where it can be: fewer passes over memory."""
    F.check_layer_norm(x, w, b)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.mean(axis=-1, keepdims=True)
        xhat = x - mean
        rstd = 1.0 / np.sqrt(np.vecdot(xhat, xhat)[..., None] / x.shape[-1] + eps)
        xhat *= rstd
        F.rescue_rows(x, mean, xhat, rstd, eps)
    y = xhat * w
    y += b
    cache = F.LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return y, cache if any(need) else None


def layer_norm_backward(dy, cache):
    """As :func:`functional.layer_norm_backward`, in place."""
    xhat, rstd, w, need = cache
    dx = None
    if need[0]:
        g = dy * w
        dx = xhat * (np.vecdot(g, xhat)[..., None] / -len(w))
        dx += g
        dx -= g.mean(axis=-1, keepdims=True)
        dx *= rstd
    dw = (dy * xhat).reshape(-1, len(w)).sum(axis=0) if need[1] else None
    db = dy.reshape(-1, len(w)).sum(axis=0) if need[2] else None
    return dx, dw, db


def gelu(x):
    """As :func:`functional.gelu`; the cache is the derivative, computed in the same pass.

    Forward and backward share their most expensive part, the tanh; the derivative is as
    large as the x that it replaces.
    """
    y, d = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    flat_x, flat_y, flat_d = x.reshape(-1), y.reshape(-1), d.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for s in _even(x.size, 1, PIECE):
            xs, ys, ds = flat_x[s], flat_y[s], flat_d[s]
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
    return y, GeluCache(d)


def gelu_backward(dy, cache):
    """``dx = dy * derivative``, written over ``dy``, which the caller gives away."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_backward(dy, cache)
    return np.multiply(dy, cache.derivative, out=dy)


def residual_backward(dy, dbranch):
    """``dx = dy + dbranch``, written over ``dbranch``, which the caller gives away."""
    dbranch += dy
    return dbranch


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """As :func:`functional.attention`, tile by tile: some queries, and only the keys that
    they may see, so that close to half of a causal model's scores are never computed.

    No probability is kept: the cache holds each query's largest score and sum, from which the
    backward pass computes them again (Dao et al. 2022, arXiv 2205.14135), and dropout's
    masks, one byte an entry.  Where one tile is enough the simple form is as fast and runs.

    ``past`` is a :class:`KeyValues`, which takes in the new tokens; it is for inference, the
    cache is then ``None``.
    """
    with single_threaded_blas:
        if past is not None:
            return _attention_after(qkv, n_head, causal, past), None
        if qkv.shape[1] <= TILE:
            return F.attention(qkv, n_head, p, rng, causal)
        drop = F.dropout_bits(p, rng)
        before = rng.bit_generator.state if drop else None
        with np.errstate(over="ignore", invalid="ignore"):
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
    for piece in _pieces(B, H, T):
        qs, kt = q[piece] * scale, _transposed(k[piece])  # cheaper than to scale the scores
        for n, (i, j, seen) in enumerate(tiles):
            s = _scores(qs, kt, i, j, seen, causal)
            s -= s.max(axis=-1, keepdims=True, out=tops[*piece, i:j])
            np.exp(s, out=s)
            total = s @ ones[:seen]                       # a product sums faster than .sum()
            totals[*piece, i:j] = total
            if drop:
                s *= kept[n][piece]
                total *= (65536 - drop) / 65536
            np.divide(s @ v[*piece, :seen], total, out=heads[*piece, i:j])
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
    for piece in _pieces(B, H, T):
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
