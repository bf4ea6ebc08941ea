"""Fast forms of operations of ``functional``, equal to them up to rounding.

The work is cut into pieces small enough to stay in the core's cache, and what the backward
pass would do again is done once.  One core does it all: threads of our own gained nothing,
because between two products OpenBLAS's wait by spinning.  Nor did a layer norm in fewer
passes, nor tiles for a text of one tile: there the simple forms are used.
"""

import ctypes
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import numpy as np

from . import functional as F

TILE = 64                                                 # queries of one attention tile
TILES = 65536                                             # scores in one piece, one tile of them
PIECE = 131072                                            # numbers in an elementwise piece


@cache
def cores():
    """How many cores this process may use; ``OMP_NUM_THREADS`` lowers it, as it does BLAS's."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (
        os.cpu_count() or 1)
    limit = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    return min(available, int(limit)) if limit.isdigit() and int(limit) else available


def shared(work, pieces):
    """Call ``work(piece)`` for each of a list, spread over the cores; waits for all.

    For weights that are loaded or drawn, and for Adam on many millions of them.  Not between a
    step's products: there OpenBLAS's own threads, which wait for the next one by spinning, leave
    another thread nothing to gain.
    """
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(work, pieces):                  # raises what a worker raised
            pass


@cache
def _blas_threads():
    """``set_num_threads`` and ``get_num_threads`` of NumPy's own OpenBLAS, or None."""
    try:
        lib = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (OSError, AttributeError):
        return None
    for name in ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads",
                 "openblas_{}_num_threads64_", "openblas_{}_num_threads"):
        if hasattr(lib, name.format("set")):
            return getattr(lib, name.format("set")), getattr(lib, name.format("get"))
    return None


def blas_kernels():
    """Which kernels OpenBLAS chose for this processor (``SkylakeX``), as far as it tells."""
    try:
        lib = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (OSError, AttributeError):
        return "kernels unknown"
    for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename",
                 "openblas_get_corename64_", "openblas_get_corename"):
        if hasattr(lib, name):
            tell = getattr(lib, name)
            tell.restype = ctypes.c_char_p
            return f"kernels for {tell().decode()}"
    return "kernels unknown"


@contextmanager
def single_threaded_blas():
    """Within, each matrix product runs on the core that asks for it: to share one of
    attention's small products costs more than it gains.  Nothing changes without OpenBLAS."""
    blas = _blas_threads()
    if blas is None:
        yield
        return
    put, get = blas
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


def keep_memory():
    """Have the C library keep the memory that arrays give back, for the next arrays.

    By default glibc returns each large array to the system, and the system clears every
    page of the next one: up to a fifth of a training step.  Does nothing elsewhere.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(-4, 0)                                        # M_MMAP_MAX: no array of its own
    mallopt(-1, 2**31 - 1)                                # M_TRIM_THRESHOLD: nothing goes back


keep_memory()


# ------------------------------------------------------------------------------ GELU


def gelu(x, keep=True):
    """As :func:`functional.gelu`; the cache is the derivative, found in the same pass.

    Forward and backward share their most expensive part, the tanh; the derivative is as
    large as the x that it replaces.  With ``keep=False`` the cache is None.
    """
    y = np.empty(x.shape, x.dtype)
    d = np.empty(x.shape, x.dtype) if keep else None
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    flat_d = d.reshape(-1) if keep else None
    for s in _even(x.size, 1, PIECE):
        xs, ys = flat_x[s], flat_y[s]
        u = xs * xs
        t = u * (F.GELU_A * F.GELU_B)
        t += F.GELU_A
        t *= xs
        np.tanh(t, out=t)
        t *= 0.5
        t += 0.5                                          # s = (1 + tanh) / 2
        np.multiply(xs, t, out=ys)
        if keep:                                          # s + x s (1 - s) 2 du/dx
            ds = flat_d[s]
            np.subtract(1.0, t, out=ds)
            ds *= ys
            u *= 6.0 * F.GELU_A * F.GELU_B
            u += 2.0 * F.GELU_A
            ds *= u
            ds += t
    return y, d


def gelu_backward(dy, cache):
    """``dx = dy * derivative``, written over ``dy``, which the caller gives away."""
    return np.multiply(dy, cache, out=dy)


# ------------------------------------------------------- causal multi-head attention


@single_threaded_blas()
def attention(qkv, n_head, p=0.0, rng=None):
    """As :func:`functional.attention`, tile by tile: some queries, and only the keys that
    they may see, so that close to half of the scores are never computed.

    No probability is kept: the cache holds each query's log-sum-exp, from which the
    backward pass finds them again (Dao et al. 2022, arXiv 2205.14135), and the dropout
    masks, one byte an entry.  Where one tile is all, the simple form is as fast, and does it.
    """
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    if T <= TILE:
        y, cache = F.attention(qkv, n_head, p, rng)
        return y, (cache, None)
    drop = round(p * 65536)
    if not 0 <= drop < 65536 or (drop and rng is None):
        raise ValueError(f"attention: dropout is {p} and rng is {rng}: expected 0 <= p < 1, and "
                         "rng=np.random.default_rng(seed) with p above 0")
    y = np.empty((B, T, H * D), qkv.dtype)
    lse = np.empty((B, H, T, 1), qkv.dtype)
    heads = y.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    tiles = _tiles(T)
    kept = _dropout_masks(B, H, tiles, drop, rng) if drop else None
    ones = np.ones((T, 1), qkv.dtype)
    for piece in _pieces(B, H, T):
        qs, kt = _scaled(q[piece]), _transposed(k[piece])
        for n, (i, j) in enumerate(tiles):
            s = _scores(qs, kt, i, j)
            top = s.max(axis=-1, keepdims=True)
            s -= top
            np.exp(s, out=s)
            total = s @ ones[:j]                          # a product sums faster than .sum()
            np.add(top, np.log(total), out=lse[*piece, i:j])
            if drop:
                s *= kept[n][piece]
                total *= (65536 - drop) / 65536
            np.divide(s @ v[*piece, :j], total, out=heads[*piece, i:j])
    return y, (None, (qkv, n_head, lse, kept, drop))


@single_threaded_blas()
def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles.  Returns ``dqkv``."""
    whole, tiled = cache
    if tiled is None:
        return F.attention_backward(dy, whole)
    qkv, n_head, lse, kept, drop = tiled
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    dqkv = np.empty(qkv.shape, dy.dtype)
    dq, dk, dv = F.split_heads(dqkv, n_head)
    tiles, scale = _tiles(T), 1.0 / math.sqrt(D)
    for piece in _pieces(B, H, T):
        qs, kt, vt = _scaled(q[piece]), _transposed(k[piece]), _transposed(v[piece])
        dkp = dvp = None
        for n, (i, j) in reversed(list(enumerate(tiles))):
            a = _scores(qs, kt, i, j)
            a -= lse[*piece, i:j]
            np.exp(a, out=a)
            dyt = dy[*piece, i:j]
            if drop:
                dyt = dyt * (65536 / (65536 - drop))
            da = dyt @ vt[..., :j]
            if drop:
                da *= kept[n][piece]
            da -= np.vecdot(da, a)[..., None]
            da *= a                                       # dS
            if drop:
                a *= kept[n][piece]
            dvt = a.swapaxes(-1, -2) @ dyt
            np.multiply(da @ k[*piece, :j], scale, out=dq[*piece, i:j])
            dkt = da.swapaxes(-1, -2) @ qs[..., i:j, :]
            if dkp is None:                               # the last tile sees every key
                dkp, dvp = dkt, dvt
            else:
                dkp[..., :j, :] += dkt
                dvp[..., :j, :] += dvt
        dk[piece] = dkp
        dv[piece] = dvp
    return dqkv


class KeyValues:
    """The keys and values of the tokens so far, for one block; room for ``room`` tokens."""

    def __init__(self, room):
        self.k = self.v = None                            # (B, H, room, D) from the first call on
        self.room, self.n = room, 0

    def extend(self, k, v):
        """Take in k and v (B, H, T, D) of the next tokens; all so far, (B, H, n, D) each."""
        B, H, T, D = k.shape
        if self.k is None:
            self.k = np.empty((B, H, self.room, D), k.dtype)
            self.v = np.empty_like(self.k)
        new = slice(self.n, self.n + T)
        self.k[:, :, new], self.v[:, :, new] = k, v
        self.n += T
        return self.k[:, :, :self.n], self.v[:, :, :self.n]


def attention_after(qkv, n_head, past):
    """As :func:`functional.attention` with a past and without dropout; returns y only.

    ``past`` is a :class:`KeyValues`, which takes in the new tokens: to join arrays at each
    token, as the simple form does, would copy all the past each time.
    """
    T = qkv.shape[1]
    q, k, v = F.split_heads(qkv, n_head)
    k, v = past.extend(k, v)
    if past.n == T:                                       # there was no past
        return attention(qkv, n_head)[0]
    s = _scaled(q) @ k.swapaxes(-1, -2)                   # (B, H, T, n)
    if T > 1:                                             # one query may see every key
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


def _tiles(T):
    """(first, end) of each tile of queries; the tile sees the keys before ``end``."""
    return [(i, min(i + TILE, T)) for i in range(0, T, TILE)]


def _scaled(q):
    """A contiguous ``q / sqrt(D)``: to scale the queries costs less than the scores."""
    return q * (1.0 / math.sqrt(q.shape[-1]))


def _transposed(k):
    """A contiguous copy (b, h, D, T): small products with it run at twice the speed."""
    return np.ascontiguousarray(k.swapaxes(-1, -2))


@cache
def _mask(n, dtype):
    """The causal mask of a tile's own keys, (n, n)."""
    mask = F.causal_mask(n, n, dtype)
    mask.flags.writeable = False
    return mask


def _scores(qs, kt, i, j):
    """Masked scores of the queries i ... j-1 with the keys 0 ... j-1."""
    s = qs[..., i:j, :] @ kt[..., :j]
    s[..., i:] += _mask(j - i, s.dtype)
    return s


def _dropout_masks(B, H, tiles, drop, rng):
    """For each tile a boolean (B, H, queries, keys): what dropout keeps."""
    shapes = [(B, H, j - i, j) for i, j in tiles]
    return [(np.frombuffer(rng.bytes(2 * math.prod(s)), np.uint16) >= drop).reshape(s)
            for s in shapes]
