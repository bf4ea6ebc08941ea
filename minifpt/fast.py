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
from .machine import share

# The module whose operations layers run in this context: ``ops().linear(...)``.
OPS = ContextVar("ops", default=sys.modules[__name__])
ops = OPS.get                                             # called some 150 times in a training step


@contextmanager
def run_by(run):
    """Let layers run the operations of ``functional`` within the ``with``.  ``run(operation)``
    returns the function that runs in the place of an operation, or of an activation of the user's
    own.  Other threads run as before."""
    def run_simple(function):
        is_form = function.__module__ in (F.__name__, __name__)       # of one of functional
        return run(vars(F)[function.__name__] if is_form else function)
    ops_before, run_before = OPS.set(F), RUN.set(run_simple)
    try:
        yield
    finally:
        RUN.reset(run_before)
        OPS.reset(ops_before)


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
grouped_heads, grouped_heads_backward = bare(F.grouped_heads), bare(F.grouped_heads_backward)
residual, residual_backward = bare(F.residual), bare(F.residual_backward)
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

# {id of a matrix: (the matrix, its transpose)}, see ``kept_transposes``.
TRANSPOSES = ContextVar("transposes", default={})         # noqa: B039 - nobody changes it
GeluCache = namedtuple("GeluCache", "derivative")
# top: the largest score of each query (B, H, T, 1); total: the sum of its exp(score - top);
# masks: for each tile, which entries dropout keeps, or None; p: the probability of dropout.
TiledAttentionCache = namedtuple("TiledAttentionCache",
                                 "qkv n_head causal top total masks p bias")


def run_bare(formula, *args, **options):
    """Run a formula; the operations that it calls run without their checks, too."""
    before = RUN.set(bare)
    try:
        return formula(*args, **options)
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
    share(part, [slice(*ends[i:i + 2]) for i in range(parts)])
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
    """As :func:`functional.cross_entropy_backward`."""
    return run_bare(bare(F.cross_entropy_backward), dy, cache)


def layer_norm(x, w, b, eps=1e-5, need=(True, True, True)):
    """As :func:`functional.layer_norm`, in place.

    In float64 it computes the rows whose variance overflows (in float32 the square of 1e20 is
    infinite), and those whose mean is so large that its rounding error matters.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.sum(axis=-1, keepdims=True) / len(w)     # x.mean takes longer
        xhat = x - mean
        rstd = 1.0 / np.sqrt(np.vecdot(xhat, xhat)[..., None] / len(w) + eps)
        xhat *= rstd
        mean *= rstd                                      # in deviations
        if rstd.size and not (rstd.min() > 0.0 and np.abs(mean).max() < MAX_RATIO):
            rows = ~((rstd > 0.0) & (np.abs(mean) < MAX_RATIO))[..., 0]
            xhat[rows], rstd[rows], *_ = in_float64(bare(F.layer_norm), x[rows], w, b, eps)[1]
    y = xhat * w
    y += b
    cache = F.LayerNormCache(xhat if any(need[:2]) else None, rstd if need[0] else None, w, need)
    return y, cache


def layer_norm_backward(dy, cache):
    """As :func:`functional.layer_norm_backward`, in place."""
    xhat, rstd, w, need = cache
    if xhat is not None and dy.shape != xhat.shape:
        same_shape(dy, xhat.shape)
    dx = None
    if need[0]:
        g = dy * w
        dx = xhat * (np.vecdot(g, xhat)[..., None] / -len(w))
        dx += g
        dx -= g.sum(axis=-1, keepdims=True) / len(w)
        dx *= rstd
    return dx, _sum_of_rows(dy * xhat) if need[1] else None, _sum_of_rows(dy) if need[2] else None


def _sum_of_rows(a):
    """Return the sum over all axes but the last; of a large array the sum of its pieces' sums."""
    rows = a.reshape(-1, a.shape[-1])
    if rows.size <= MAX_PIECE:
        return rows.sum(axis=0)
    return sum(rows[piece].sum(axis=0) for piece in _even(*rows.shape, MAX_PIECE))


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
        share(lambda piece: part(*(a[piece] for a in flat)), _even(flat[0].size, 1, MAX_PIECE))


# ------------------------------------------------------------------------ attention


def attention(qkv, n_head, p=0.0, rng=None, causal=True, past=None, bias=None):  # noqa: F811
    """As :func:`functional.attention`, in tiles.

    A tile is some queries with only the keys that they may read, so that nearly half of a causal
    model's scores are never computed.  The cache holds no probabilities but each query's largest
    score and sum, from which the backward pass computes them again (Dao et al. 2022, arXiv
    2205.14135), and dropout's masks, one byte for each entry.  Few and short texts take
    ``functional``'s form, which is as fast for them.

    ``past`` is a :class:`minifpt.layers.KeyValues`, to which the new tokens are appended; it is
    for inference, and the cache is then ``None``.
    """
    B, T, _ = qkv.shape
    with np.errstate(over="ignore", invalid="ignore"):
        if past is not None:
            if bias is not None:
                raise ValueError("attention: it has a past and a bias, expected at most one")
            return _attention_after(qkv, n_head, causal, past), None
        state = rng.bit_generator.state if p else None
        is_small = T <= TILE and B * n_head * T * T <= 4 * MAX_TILE_SCORES
        run = bare(F.attention) if is_small else _tiled_attention
        before = RUN.set(bare)                            # run_bare would add a call
        try:
            y, cache = run(qkv, n_head, p, rng, causal, bias=bias)
            if not math.isfinite(y.sum()):                # where only the sum overflows, too
                if p:                                     # draw the same dropout again
                    rng.bit_generator.state = state
                y, cache = in_float64(bare(F.attention), qkv, n_head, p, rng, causal, None, bias)
        finally:
            RUN.reset(before)
        return y, cache


def _tiled_attention(qkv, n_head, p, rng, causal, bias):  # noqa: F811
    """Run attention tile by tile; return ``(y, TiledAttentionCache)``."""
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
            s = _scores(qs, kt, i, j, n_keys, causal, bias, piece)
            s -= s.max(axis=-1, keepdims=True, out=tops[*piece, i:j])
            np.exp(s, out=s)
            total = s @ ones[:n_keys]                     # a product sums faster than .sum()
            totals[*piece, i:j] = total
            if p:
                s *= masks[n][piece]
                total *= 1.0 - p
            np.divide(s @ v[*piece, :n_keys], total, out=heads[*piece, i:j])
    share(part, _pieces(B, H, T))
    return y, TiledAttentionCache(qkv, n_head, causal, tops, totals, masks, p, bias)


def attention_backward(dy, cache):
    """As :func:`functional.attention_backward`, over the same tiles."""
    if not isinstance(cache, TiledAttentionCache):
        before = RUN.set(bare)
        try:
            return bare(F.attention_backward)(dy, cache)
        finally:
            RUN.reset(before)
    qkv, n_head, causal, tops, totals, masks, p, bias = cache  # noqa: F811
    q, k, v = F.split_heads(qkv, n_head)
    B, H, T, D = q.shape
    same_shape(dy, (B, T, H * D))
    dy = dy.reshape(B, T, H, D).transpose(0, 2, 1, 3)
    dqkv = np.empty(qkv.shape, dy.dtype)
    dq, dk, dv = F.split_heads(dqkv, n_head)
    tiles, scale, pieces = _tiles(T, causal), 1.0 / math.sqrt(D), _pieces(B, H, T)
    dbias = None if bias is None else np.zeros((H, T, T), dy.dtype)

    def part(piece):
        qs, kt, vt = q[piece] * scale, _transposed(k[piece]), _transposed(v[piece])
        for n, (i, j, n_keys) in reversed(list(enumerate(tiles))):
            a = _scores(qs, kt, i, j, n_keys, causal, bias, piece)
            a -= tops[*piece, i:j]
            np.exp(a, out=a)                              # A * total: smaller arrays are divided
            inverse = 1.0 / totals[*piece, i:j]
            dyt = dy[*piece, i:j] * (inverse / (1.0 - p))
            da = dyt @ vt[..., :n_keys]                   # dA / total
            if p:
                da *= masks[n][piece]
            da -= np.vecdot(da, a)[..., None] * inverse
            da *= a                                       # dS
            if bias is not None:
                dbias[piece[1], i:j, :n_keys] += da.sum(axis=0)
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
    if bias is None:
        share(part, pieces)
        return dqkv
    for piece in pieces:                                  # in order: they add to one dbias
        part(piece)
    return dqkv, dbias


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
    return F.merge_heads(bare(F.softmax)(s)[0].astype(v.dtype, copy=False) @ v)


def _pieces(B, H, T):
    """Return pieces (batch slice, head slice) for which the scores of a tile fit into a cache."""
    tile = min(T, TILE) * T
    if H * tile > MAX_TILE_SCORES:                        # a few heads of one example
        heads = _even(H, tile, MAX_TILE_SCORES)
        return [(slice(b, b + 1), h) for b in range(B) for h in heads]
    return [(entries, slice(0, H)) for entries in _even(B, H * tile, MAX_TILE_SCORES)]


def _even(n, size, most):
    """Return equal slices of n items of ``size`` numbers, each with at most ``most`` numbers."""
    parts = max(1, math.ceil(n * size / most))
    each = max(1, math.ceil(n / parts))
    return [slice(i, min(i + each, n)) for i in range(0, n, each)]


def _tiles(T, causal):
    """Return (first query, last query + 1, number of keys that they read) for each tile."""
    tiles = [(i, min(i + TILE, T)) for i in range(0, T, TILE)]
    return [(i, j, j if causal else T) for i, j in tiles]


def _transposed(k):
    """Return a contiguous copy (b, h, D, T), which doubles the speed of small products."""
    return np.ascontiguousarray(k.swapaxes(-1, -2))


def _scores(qs, kt, i, j, n_keys, causal, bias, piece):  # noqa: F811
    """Return the masked scores of the queries i ... j-1 with the first ``n_keys`` keys."""
    s = qs[..., i:j, :] @ kt[..., :n_keys]
    if bias is not None:
        s += bias[piece[1], i:j, :n_keys]
    if causal:                                            # only the keys i ... j-1 need a mask
        s[..., i:] += F.causal_mask(j - i, j - i, s.dtype)
    return s
