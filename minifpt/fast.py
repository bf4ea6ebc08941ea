"""The operations that layers run: those of ``functional``, protected and faster.

Layers take them from ``ops()``, which is this module.  The functions here equal those of
``functional`` up to rounding; in addition they

- stay finite for any finite float32 input (softmax, log-sum-exp, cross-entropy, attention, layer
  norm, GELU, LSTM; not RMS norm),
- cut the work into pieces that fit into a core's cache, and share the pieces between cores.

The shapes of the arrays are checked at the model's door, not here.  There the model also limits
BLAS to one thread (``machine.single_threaded_blas``), for two reasons.  While BLAS's threads wait
for the next product they occupy cores that the work between two products could use.  And they cut a
product into equal parts, so that one busy core delays all.  Here a free core takes the next piece.

While a model is traced, ``ops()`` is ``functional``; see ``run_by``.
"""

import math
import sys
from collections import namedtuple
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from . import functional as F
from .guards import RUN, bare, checked_form, same_shape
from .machine import IN_BROWSER, run_in_threads

# The switch, which says what form of an operation runs:
#
#                    ops().linear in a layer    a call of functional.linear (guards.RUN)
#   as a rule        linear, below              the formula and the checks of shapes
#   inside of fast   not asked                  the formula alone
#   in a trace       functional.linear          a recorder of the checked formula
OPS = ContextVar("ops", default=sys.modules[__name__])
ops = OPS.get                                             # called some 150 times in a training step


@contextmanager
def run_by(run):
    """Let layers run the operations of ``functional`` within the ``with``.  ``run(operation)``
    returns the function that runs in the place of an operation, or of an activation of the user's
    own.  Other threads run as before.  Of several that are open, any may end first."""
    def run_simple(function):
        is_form = function.__module__ in (F.__name__, __name__)       # of one of functional
        return run(vars(F)[function.__name__] if is_form else function)
    run_simple.outer, run_simple.is_open = RUN.get(), True
    OPS.set(F)
    RUN.set(run_simple)
    try:
        yield
    finally:
        run_simple.is_open = False
        while not getattr(innermost := RUN.get(), "is_open", True):
            RUN.set(innermost.outer)                      # also of those that ended before this one
        OPS.set(F if hasattr(innermost, "is_open") else sys.modules[__name__])


def standing_in(functions):
    """Do as :func:`run_by`, with these functions in the place of operations, {operation: function},
    and all others as before."""
    run = RUN.get()
    return run_by(lambda operation: checked_form(functions[operation]) if operation in functions
                  else run(operation))


# These have no faster form: layers run the bare formulas.  The ids of an embedding are checked,
# because they come from outside.
embedding = F.embedding
bias, bias_backward = bare(F.bias), bare(F.bias_backward)
positions, positions_backward = bare(F.positions), bare(F.positions_backward)
rms_norm, rms_norm_backward = bare(F.rms_norm), bare(F.rms_norm_backward)
relu, relu_backward = bare(F.relu), bare(F.relu_backward)
silu, silu_backward = bare(F.silu), bare(F.silu_backward)
multiply, multiply_backward = bare(F.multiply), bare(F.multiply_backward)
softmax_backward = bare(F.softmax_backward)
dropout, dropout_backward = bare(F.dropout), bare(F.dropout_backward)
rope, rope_backward = bare(F.rope), bare(F.rope_backward)
last_tokens, last_tokens_backward = bare(F.last_tokens), bare(F.last_tokens_backward)
log_sum_exp_backward = bare(F.log_sum_exp_backward)

TILE = 64                           # queries in a tile of attention
MAX_TILE_SCORES = 65_536            # scores in a tile, over the heads and examples of a piece
MAX_PIECE = 131_072                 # numbers in a piece of an elementwise operation
MAX_PARTS = 4                       # parts of a matrix product; each part copies the other factor
MIN_MULTIPLICATIONS = 16_000_000    # smaller parts of a product cost more than they gain
MIN_WIDTH = 192                     # so do parts with fewer rows or columns
MAX_ROWS_TO_SWAP = 48               # up to here a @ b may run as (b.T @ a.T).T, see large_product
MIN_SIZE_TO_SWAP = 400_000          # numbers in b from which this is faster
MAX_RATIO = 16.0                    # of a row's mean to its deviation; beyond, layer norm rounds
MAX_JOINED = 1 << 15                # smaller parameters are updated together, as one array
ADAM_PIECE = 1 << 18                # numbers that Adam updates at once: they fit into a cache

# {id of a matrix: (the matrix, its transpose)}, see ``kept_transposes``.
TRANSPOSES = ContextVar("transposes", default={})         # noqa: B039 - nobody changes it


def run_bare(formula, *args):
    """Run a formula; the operations that it calls run without their checks, too."""
    before = RUN.set(bare)
    try:
        return formula(*args)
    finally:
        RUN.reset(before)


def in_float64(op, x, *args):
    """Run an operation of ``functional`` in float64, in which no square and no product of float32
    numbers overflows.  The result and the arrays of its cache have the dtype of ``x``."""
    y, cache = op(*(cast(a, np.float64) for a in (x, *args)))
    return cast(y, x.dtype), type(cache)(*(cast(a, x.dtype) for a in cache))


def cast(value, dtype):
    """Return an array with this dtype; return any other value as it is."""
    return value.astype(dtype) if isinstance(value, np.ndarray) else value


# ------------------------------------------------------------------------ matrix products


def product(a, b, offset=None):
    """Return ``a @ b + offset`` for matrices, a large product on all cores."""
    work = len(a) * b.size + 16 * max(a.size, b.size)     # reading the larger array is work, too
    if work >= 2 * MIN_MULTIPLICATIONS or b.size >= MIN_SIZE_TO_SWAP:
        return large_product(a, b, offset, min(MAX_PARTS, work // MIN_MULTIPLICATIONS))
    y = a @ b
    if offset is not None:
        y += offset
    return y


def product_by_scipy(a, b, offset=None):
    """Return ``a @ b + offset`` for matrices, by SciPy's BLAS.

    NumPy has no BLAS in a browser, where SciPy's makes the step of a small model two to three times
    as fast.  BLAS stores a matrix by columns, so it is given the transposes."""
    from scipy.linalg import blas  # takes long to import
    gemm = blas.sgemm if np.result_type(a, b) == np.float32 else blas.dgemm
    y = np.ascontiguousarray(gemm(1.0, b.T, a.T).T)
    return y if offset is None else y + offset


if IN_BROWSER:
    product = product_by_scipy


def large_product(a, b, offset, parts):
    """Return ``a @ b + offset``, cut along its longer side into at most so many parts.

    The cuts depend on the sizes alone, because BLAS may round a narrow product differently and
    the bits must not depend on the number of cores.
    """
    few = len(a) <= MAX_ROWS_TO_SWAP < b.shape[1] and b.size >= MIN_SIZE_TO_SWAP
    if few and b.flags.f_contiguous and offset is None:
        # BLAS copies a transposed b at a third of the speed, which shows with so few rows.
        return np.ascontiguousarray(product(b.T, a.T).T)
    y = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    long = max(y.shape)
    parts = max(1, min(parts, long // MIN_WIDTH))
    ends = [64 * (long * i // parts // 64) for i in range(parts)] + [long]

    def part(cut):
        i, j = (cut, slice(None)) if long == len(a) else (slice(None), cut)
        np.matmul(a[i], b[:, j], out=y[i, j])
        if offset is not None:
            y[i, j] += offset[j]
    run_in_threads(part, [slice(*ends[i:i + 2]) for i in range(parts)])
    return y


@contextmanager
def kept_transposes(matrices):
    """Keep a contiguous transpose of each small matrix within the ``with``, by which a few rows are
    multiplied in two thirds of the time.  Meanwhile the matrices are read-only."""
    small = [w for w in matrices if w.size < MIN_SIZE_TO_SWAP]
    writeable = [w for w in small if w.flags.writeable]
    before = TRANSPOSES.set({id(w): (w, np.ascontiguousarray(w.T)) for w in small})
    try:
        for w in writeable:
            w.flags.writeable = False
        yield
    finally:
        TRANSPOSES.reset(before)
        for w in writeable:
            w.flags.writeable = True


def linear(x, w, b, need=(True, True, True)):
    """As :func:`functional.linear`, a large product on all cores."""
    y = product(x.reshape(-1, len(w)), w, b).reshape(*x.shape[:-1], len(b))
    return y, F.LinearCache(x if need[1] else None, w, need)


def linear_backward(dy, cache):
    """As :func:`functional.linear_backward`, large products on all cores."""
    x, w, need = cache
    shape = *(dy if x is None else x).shape[:-1], w.shape[1]
    if dy.shape != shape:                                 # a call only where it is refused
        same_shape(dy, shape)
    rows = dy.reshape(-1, w.shape[1])
    _, wt = TRANSPOSES.get().get(id(w)) or (w, w.T)       # a contiguous one where it is kept
    dx = product(rows, wt).reshape(*dy.shape[:-1], len(w)) if need[0] else None
    dw = product(x.reshape(-1, len(w)).T, rows) if need[1] else None
    return dx, dw, rows.sum(axis=0) if need[2] else None


def unembedding(x, w, need=(True, True)):
    """As :func:`functional.unembedding`, a large product on all cores."""
    y = product(x.reshape(-1, w.shape[1]), w.T).reshape(*x.shape[:-1], len(w))
    return y, F.UnembeddingCache(x if need[1] else None, w, need)


def unembedding_backward(dy, cache):
    """As :func:`functional.unembedding_backward`, large products on all cores."""
    x, w, need = cache
    V, C = w.shape
    same_shape(dy, (*(dy if x is None else x).shape[:-1], V))
    dx = product(dy.reshape(-1, V), w).reshape(*dy.shape[:-1], C) if need[0] else None
    dw = product(dy.reshape(-1, V).T, x.reshape(-1, C)) if need[1] else None
    return dx, dw


if IN_BROWSER:                      # the checked operations, which a trace runs, take SciPy's, too
    for operation in (linear, linear_backward, unembedding, unembedding_backward):
        vars(F)[operation.__name__].checked.__wrapped__ = operation


def embedding_backward(dy, cache):
    """As :func:`functional.embedding_backward`, in half of its time: after sorting, equal ids are
    neighbours, and one sum serves each id."""
    ids, shape = cache
    dw = np.zeros(shape, dy.dtype)
    order = np.argsort(ids, axis=None, kind="stable")
    rows, starts = np.unique(ids.reshape(-1)[order], return_index=True)
    dw[rows] = np.add.reduceat(dy.reshape(-1, shape[1])[order], starts, axis=0)
    return dw


# ------------------------------------------------------------------------ elementwise


def softmax(x):
    """As :func:`functional.softmax`, without a warning if ``x - max(x)`` overflows: the
    exponential of -inf is 0, as it should be."""
    with np.errstate(over="ignore"):
        return bare(F.softmax)(x)


def log_sum_exp(x):
    """As :func:`functional.log_sum_exp`, without a warning, as for :func:`softmax`."""
    with np.errstate(over="ignore"):
        return bare(F.log_sum_exp)(x)


def cross_entropy(logits, targets):
    """As :func:`functional.cross_entropy`, with a loss in float64 if float32 overflows."""
    with np.errstate(over="ignore"):
        loss, cache = run_bare(F.cross_entropy.checked, logits, targets)
        if not math.isfinite(loss):
            loss, _ = run_bare(bare(F.cross_entropy), logits.astype(np.float64), targets)
    return loss, cache


def cross_entropy_backward(dy, cache):
    """As :func:`functional.cross_entropy_backward`, without the rows of the one-hot vectors."""
    index = cache.targets[..., None]
    dlogits = log_sum_exp_backward(np.ones(index.shape, np.float32), cache.log_sum_exp)
    chosen = np.take_along_axis(dlogits, index, axis=-1)
    np.put_along_axis(dlogits, index, chosen - 1.0, axis=-1)
    dlogits *= dy / cache.targets.size
    return dlogits


def layer_norm(x, w, b, eps=1e-5):
    """As :func:`functional.layer_norm`, in place, a large one in pieces on all cores.

    In float64 it computes the rows whose variance overflows (in float32 the square of 1e20 is
    infinite), and those whose mean is so large that its rounding error matters.
    """
    y, xhat = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
    rstd = np.empty((*x.shape[:-1], 1), x.dtype)
    if x.size <= MAX_PIECE:
        _normalise(x, w, b, eps, y, xhat, rstd)
    else:
        rows, ys, hs, rs = (a.reshape(-1, a.shape[-1]) for a in (x, y, xhat, rstd))
        run_in_threads(lambda i: _normalise(rows[i], w, b, eps, ys[i], hs[i], rs[i]),
                       _even(*rows.shape, MAX_PIECE))
    return y, F.LayerNormCache(xhat, rstd, w)


def _normalise(x, w, b, eps, y, xhat, rstd):
    """Write layer norm's result and cache for some rows into y, xhat and rstd."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.sum(axis=-1, keepdims=True) / len(w)     # x.mean takes longer
        np.subtract(x, mean, out=xhat)
        np.divide(1.0, np.sqrt(np.vecdot(xhat, xhat)[..., None] / len(w) + eps), out=rstd)
        xhat *= rstd
        mean *= rstd                                      # in deviations
        if not (rstd.min() > 0.0 and np.abs(mean).max() < MAX_RATIO):
            extreme = ~((rstd > 0.0) & (np.abs(mean) < MAX_RATIO))[..., 0]
            _, accurate = in_float64(bare(F.layer_norm), x[extreme], w, b, eps)
            xhat[extreme], rstd[extreme], _ = accurate
    np.multiply(xhat, w, out=y)
    y += b


def layer_norm_backward(dy, cache):
    """As :func:`functional.layer_norm_backward`, in place, a large one in pieces on all cores."""
    xhat, rstd, w = cache
    if dy.shape != xhat.shape:                            # a call only where it is refused
        same_shape(dy, xhat.shape)
    dx = np.empty(dy.shape, dy.dtype)
    if dy.size <= MAX_PIECE:
        return dx, *_normalise_backward(dy, xhat, rstd, w, dx)
    rows, hs, rs, dxs = (a.reshape(-1, a.shape[-1]) for a in (dy, xhat, rstd, dx))
    pieces, sums = _even(*rows.shape, MAX_PIECE), {}

    def part(n):
        i = pieces[n]
        sums[n] = _normalise_backward(rows[i], hs[i], rs[i], w, dxs[i])
    run_in_threads(part, range(len(pieces)))
    dws, dbs = zip(*(sums[n] for n in range(len(pieces))), strict=True)    # in a fixed order
    return dx, sum(dws), sum(dbs)


def _normalise_backward(dy, xhat, rstd, w, dx):
    """Write layer norm's dx for some rows, and return their parts of dw and db."""
    g = dy * w
    np.multiply(xhat, np.vecdot(g, xhat)[..., None] / -len(w), out=dx)
    dx += g
    dx -= g.sum(axis=-1, keepdims=True) / len(w)
    dx *= rstd
    np.multiply(dy, xhat, out=g)
    return g.reshape(-1, len(w)).sum(axis=0), dy.reshape(-1, len(w)).sum(axis=0)


GeluCache = namedtuple("GeluCache", "derivative")


def gelu(x):
    """As :func:`functional.gelu`; the cache is the derivative, so that the tanh, the most expensive
    part, is computed once."""
    y, d = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)

    def part(xs, ys, ds):
        with np.errstate(over="ignore", invalid="ignore"):
            u = xs * xs
            t = u * (F.GELU_A * F.GELU_B)
            t += F.GELU_A
            t *= xs
            np.tanh(t, out=t)                             # v = a (x + b x^3), t = tanh v
            t *= 0.5
            t += 0.5                                      # t = (1 + tanh) / 2
            np.multiply(xs, t, out=ys)
            np.subtract(1.0, t, out=ds)                   # d = t + 2 y (1 - t) v'
            ds *= ys
            u *= 6.0 * F.GELU_A * F.GELU_B
            u += 2.0 * F.GELU_A
            ds *= u
            ds += t
            if math.isnan(ds.max()):                      # a square overflowed
                c = np.clip(xs, -30.0, 30.0)              # beyond, tanh is exactly -1 or 1
                ds[...] = bare(F.gelu_backward)(np.ones_like(c), F.ActivationCache(c))
    _in_pieces(part, x, y, d)
    return y, GeluCache(d)


def gelu_backward(dy, cache):
    """Compute ``dx = dy * derivative``."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_backward.checked(dy, cache)
    if dy.shape != cache.derivative.shape:
        same_shape(dy, cache.derivative.shape)
    if dy.size <= MAX_PIECE:
        return dy * cache.derivative
    dx = np.empty(dy.shape, np.result_type(dy, cache.derivative))
    _in_pieces(np.multiply, dy, cache.derivative, dx)     # the third array is the result
    return dx


def gelu_exact(x):
    """As :func:`functional.gelu_exact`; the cache is the derivative, as of :func:`gelu`."""
    y, d = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)

    def part(xs, ys, ds):
        with np.errstate(over="ignore", under="ignore"):
            p, bell = _normal(xs)
            np.multiply(xs, p, out=ys)
            np.multiply(xs, bell, out=ds)
        ds *= 1.0 / math.sqrt(2.0 * math.pi)
        ds += p                                           # d = P(x) + x p(x)
    _in_pieces(part, x, y, d)
    return y, GeluCache(d)


def _normal(x):
    """Return the normal distribution function of x, and ``exp(-x^2 / 2)``.

    In float32 by a formula of Abramowitz and Stegun (1964, 7.1.26) with an error below 4e-7, in a
    quarter of SciPy's time; it gives ``tail``, the smaller one of P(x) and P(-x) = 1 - P(x).
    """
    bell = -0.5 * x * x
    np.exp(bell, out=bell)
    if x.dtype != np.float32:
        from scipy.special import ndtr  # slow to import, and rarely needed
        return ndtr(x), bell
    t = 1.0 / (1.0 + 0.3275911 / math.sqrt(2.0) * np.abs(x))
    tail = 1.061405429 * t
    for a in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += a
        tail *= t
    tail *= 0.5 * bell
    return np.abs((x > 0.0) - tail), bell                 # 1 - tail, or tail; np.where is slower


def gelu_exact_backward(dy, cache):
    """Compute ``dx = dy * derivative``."""
    if isinstance(cache, F.ActivationCache):              # its forward pass was traced
        return F.gelu_exact_backward.checked(dy, cache)
    return gelu_backward(dy, cache)


def _in_pieces(part, *arrays):
    """Call ``part`` with pieces of arrays of one shape, on all cores."""
    if arrays[0].size <= MAX_PIECE:
        part(*arrays)
    else:
        flat = [a.reshape(-1) for a in arrays]
        run_in_threads(lambda piece: part(*(a[piece] for a in flat)),
                       _even(flat[0].size, 1, MAX_PIECE))


# ------------------------------------------------------------------------ attention


def attention(q, k, v, p=0.0, rng=None, causal=True, bias=None):  # noqa: F811
    """As :func:`functional.attention`, in tiles.

    A tile is some queries with only the keys that they may read, so that nearly half of a causal
    model's scores are never computed.  The cache holds no probabilities but each query's largest
    score and sum, from which the backward pass computes them again (Dao et al. 2022, arXiv
    2205.14135), and dropout's masks, one byte for each entry.  Few and short texts take
    ``functional``'s form, which is as fast for them.
    """
    (B, H, T, _), S = q.shape, k.shape[2]
    with np.errstate(over="ignore", invalid="ignore"):
        state = rng.bit_generator.state if p else None
        is_small = T <= TILE and B * H * T * S <= 4 * MAX_TILE_SCORES
        run = bare(F.attention) if is_small else _tiled_attention
        before = RUN.set(bare)                            # run_bare would add a call
        try:
            y, cache = run(q, k, v, p, rng, causal, bias)
            if not math.isfinite(y.sum()):                # where only the sum overflows, too
                if p:                                     # draw the same dropout again
                    rng.bit_generator.state = state
                y, cache = in_float64(bare(F.attention), q, k, v, p, rng, causal, bias)
        finally:
            RUN.reset(before)
        return y, cache


# top: the largest score of each query (B, G, H / G, T, 1); total: the sum of its exp(score - top);
# masks: for each tile, which entries dropout keeps, or None; p: the probability of dropout.
TiledAttentionCache = namedtuple("TiledAttentionCache", "q k v causal top total masks p bias")


def _tiled_attention(q, k, v, p, rng, causal, bias):  # noqa: F811
    """Run attention tile by tile; return ``(y, TiledAttentionCache)``.

    Here queries are (B, G, H / G, T, D), and keys and values (B, G, 1, S, D), so that NumPy serves
    several heads of queries with one head of keys without a copy of it."""
    (B, H, T, D), S = q.shape, k.shape[2]
    y = np.empty((B, T, H, D), q.dtype).transpose(0, 2, 1, 3)       # merging copies nothing
    tiles, scale = _tiles(T, S, causal), 1.0 / math.sqrt(D)
    masks = None
    if p:                                                 # draws as many numbers as functional
        keep = rng.random((B, H, T, S), np.float32) >= p
        masks = [_grouped(keep, k)[..., i:j, :n_keys].copy() for i, j, n_keys in tiles]
        del keep
    ones = np.ones((S, 1), q.dtype)
    queries, heads, keys, values = _grouped(q, k), _grouped(y, k), k[:, :, None], v[:, :, None]
    tops, totals = np.empty((2, *queries.shape[:-1], 1), q.dtype)
    biases = None if bias is None else _grouped(bias[None], k)[0]

    def part(piece):
        qs, kt = queries[piece] * scale, _transposed(keys[piece])   # fewer queries than scores
        for n, (i, j, n_keys) in enumerate(tiles):
            s = _scores(qs, kt, i, j, n_keys, causal, biases, piece)
            s -= s.max(axis=-1, keepdims=True, out=tops[*piece, :, i:j])
            np.exp(s, out=s)
            total = s @ ones[:n_keys]                     # a product sums faster than .sum()
            totals[*piece, :, i:j] = total
            if p:
                s *= masks[n][piece]
                total *= 1.0 - p
            np.divide(s @ values[*piece, :, :n_keys], total, out=heads[*piece, :, i:j])
    run_in_threads(part, _pieces(B, k.shape[1], H // k.shape[1], T, S))
    return y, TiledAttentionCache(q, k, v, causal, tops, totals, masks, p, bias)


def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles."""
    if not isinstance(cache, TiledAttentionCache):
        before = RUN.set(bare)
        try:
            return bare(F.attention_backward)(dy, cache)
        finally:
            RUN.reset(before)
    q, k, v, causal, tops, totals, masks, p, bias = cache  # noqa: F811
    (B, H, T, D), (G, S) = q.shape, k.shape[1:3]
    same_shape(dy, q.shape)
    dq, dk, dv = (np.empty(a.shape, dy.dtype) for a in (q, k, v))
    queries, dqs, dys = (_grouped(a, k) for a in (q, dq, dy))
    keys, values = k[:, :, None], v[:, :, None]
    tiles, scale, pieces = _tiles(T, S, causal), 1.0 / math.sqrt(D), _pieces(B, G, H // G, T, S)
    dbias = None if bias is None else np.zeros((H, T, S), dy.dtype)
    biases, dbiases = (None if a is None else _grouped(a[None], k)[0] for a in (bias, dbias))

    def part(piece):
        qs = queries[piece] * scale
        kt, vt = _transposed(keys[piece]), _transposed(values[piece])
        for n, (i, j, n_keys) in reversed(list(enumerate(tiles))):
            a = _scores(qs, kt, i, j, n_keys, causal, biases, piece)
            a -= tops[*piece, :, i:j]
            np.exp(a, out=a)                              # A * total: smaller arrays are divided
            inverse = 1.0 / totals[*piece, :, i:j]
            dyt = dys[*piece, :, i:j] * (inverse / (1.0 - p))
            da = dyt @ vt[..., :n_keys]                   # dA / total
            if p:
                da *= masks[n][piece]
            da -= np.vecdot(da, a)[..., None] * inverse
            da *= a                                       # dS
            if bias is not None:
                dbiases[piece[1], :, i:j, :n_keys] += da.sum(axis=0)
            if p:
                a *= masks[n][piece]
            dvt = a.swapaxes(-1, -2) @ dyt                # (b, g, H / G, keys, D)
            np.multiply(da @ keys[*piece, :, :n_keys], scale, out=dqs[*piece, :, i:j])
            dkt = da.swapaxes(-1, -2) @ qs[..., i:j, :]
            if j == T:                                    # the last tile reads every key
                dkp, dvp = dkt, dvt
            else:
                dkp[..., :n_keys, :] += dkt
                dvp[..., :n_keys, :] += dvt
        dkp.sum(axis=2, out=dk[piece])                    # over the heads that a key serves
        dvp.sum(axis=2, out=dv[piece])
    if bias is None:
        run_in_threads(part, pieces)
    else:
        for piece in pieces:                              # in order: they add to one dbias
            part(piece)
    return dq, dk, dv, dbias


split_heads = F.split_heads


def merge_heads(*heads):
    """As :func:`functional.merge_heads`, with one copy at most."""
    B, n, T, D = heads[0].shape
    if len(heads) == 1:
        return heads[0].transpose(0, 2, 1, 3).reshape(B, T, -1)
    for x in heads[1:]:
        n += x.shape[1]
    y, start = np.empty((B, T, n, D), heads[0].dtype), 0
    for x in heads:
        y[:, :, start:start + x.shape[1]] = x.transpose(0, 2, 1, 3)
        start += x.shape[1]
    return y.reshape(B, T, -1)


def _grouped(x, k):
    """Return, as a view, the heads of queries beside the head of keys that serves them:
    (B, H, ...) -> (B, G, H / G, ...)."""
    return x.reshape(len(x), k.shape[1], -1, *x.shape[2:])


def lstm(x, w_ih, w_hh, b, need=(True, True, True, True)):
    """As :func:`functional.lstm`, finite for any finite float32 input."""
    with np.errstate(over="ignore", invalid="ignore"):
        y, cache = F.lstm.checked(x, w_ih, w_hh, b, need)
        if math.isnan(y.sum()):                           # two infinities met in a gate
            y, cache = in_float64(bare(F.lstm), x, w_ih, w_hh, b, need)
        return y, cache


def lstm_backward(dy, cache):
    """As :func:`functional.lstm_backward`, with w_hh in another order: each token multiplies by
    w_hh.T, which is faster if its rows lie in order."""
    return F.lstm_backward.checked(dy, cache._replace(w_hh=np.asfortranarray(cache.w_hh)))


def _pieces(B, G, shared, T, S):
    """Return pieces (batch slice, slice of the heads of keys) for which the scores of a tile fit
    into a cache; each head of keys serves ``shared`` heads of queries."""
    tile = shared * min(T, TILE) * S
    if G * tile > MAX_TILE_SCORES:                        # a few heads of one example
        heads = _even(G, tile, MAX_TILE_SCORES)
        return [(slice(b, b + 1), h) for b in range(B) for h in heads]
    return [(entries, slice(0, G)) for entries in _even(B, G * tile, MAX_TILE_SCORES)]


def _even(n, size, most):
    """Return equal slices of n items of ``size`` numbers, each with at most ``most`` numbers."""
    parts = max(1, math.ceil(n * size / most))
    each = max(1, math.ceil(n / parts))
    return [slice(i, min(i + each, n)) for i in range(0, n, each)]


def _tiles(T, S, causal):
    """Return (first query, last query + 1, number of keys that they read) for each tile."""
    tiles = [(i, min(i + TILE, T)) for i in range(0, T, TILE)]
    return [(i, j, S - T + j if causal else S) for i, j in tiles]


def _transposed(k):
    """Return a contiguous copy (b, g, 1, D, S), which doubles the speed of small products."""
    return np.ascontiguousarray(k.swapaxes(-1, -2))


def _scores(qs, kt, i, j, n_keys, causal, bias, piece):  # noqa: F811
    """Return the masked scores of the queries i ... j-1 with the first ``n_keys`` keys."""
    s = qs[..., i:j, :] @ kt[..., :n_keys]
    if bias is not None:
        s += bias[piece[1], :, i:j, :n_keys]
    if causal:                                            # only the last j - i keys need a mask
        s[..., n_keys - (j - i):] += F.causal_mask(j - i, j - i, s.dtype)
    return s


# ------------------------------------------------------------------------ Adam


def adam(states, t, lr, betas, eps, shrink=1.0):
    """Update parameters as :func:`functional.adam` does, in place: ``states`` is a list of
    (x, g, m, v).  Those with as many numbers as a matrix are multiplied by ``shrink`` first.

    Small ones are updated as one array, because each update is a dozen calls of NumPy, and a call
    takes longer than its work on a few hundred numbers.  Large ones are cut into pieces that fit
    into a core's cache, on all cores.
    """
    small, pieces = [], []
    for state in states:
        x = state[0]
        factor = shrink if x.ndim > 1 else 1.0
        if x.size < MAX_JOINED and factor == 1.0:
            small.append(state)
        elif not all(a.flags.c_contiguous for a in state):
            pieces.append((state, factor))
        else:
            flat = [a.reshape(-1) for a in state]
            pieces += [([a[n:n + ADAM_PIECE] for a in flat], factor)
                       for n in range(0, x.size, ADAM_PIECE)]
    if small:
        joined = [np.concatenate([a.reshape(-1) for a in arrays])
                  for arrays in zip(*small, strict=True)]
        _adam_in_place(joined, t, lr, betas, eps, 1.0)
        start = 0
        for x, _, m, v in small:
            here = slice(start, start + x.size)
            for a, new in zip((x, m, v), (joined[0], joined[2], joined[3]), strict=True):
                a[...] = new[here].reshape(a.shape)
            start += x.size
    run_in_threads(lambda piece: _adam_in_place(piece[0], t, lr, betas, eps, piece[1]), pieces)


def _adam_in_place(state, t, lr, betas, eps, shrink):
    """Apply the formula of Adam to arrays x, g, m, v; x is multiplied by ``shrink`` first."""
    (x, g, m, v), (b1, b2) = state, betas
    m *= b1
    m += (1 - b1) * g
    v *= b2
    update = (1 - b2) * g
    update *= g
    v += update
    if shrink != 1.0:                                     # weight decay
        x *= shrink
    np.sqrt(v, out=update)
    update *= 1 / math.sqrt(1 - b2 ** t)
    update += eps
    np.divide(m, update, out=update)
    update *= lr / (1 - b1 ** t)
    x -= update
