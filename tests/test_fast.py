"""The fast forms equal the simple ones, on one core and on several."""

import functools
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from conftest import changed, child, on
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import minifpt
from minifpt import fast, layers
from minifpt import functional as F
from minifpt.gradients import examples

DTYPES = st.sampled_from([(np.float32, 1e-5), (np.float64, 1e-12)])      # and a tolerance
CORES = st.integers(1, 4)


def pieces_of(size):
    """Limit pieces to ``size`` numbers within a ``with``, as far as possible."""
    return changed(fast, MAX_PIECE=size, MAX_TILE_SCORES=size)


def products_are_cut():
    """Cut products of any size within a ``with``."""
    return changed(fast, MIN_MULTIPLICATIONS=1, MIN_WIDTH=64, MIN_SIZE_TO_SWAP=1)


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, tolerance, name=""):
    """Compare to ``tolerance`` times the largest entry, as sums of many terms allow."""
    assert (got is None) == (want is None), name
    if got is not None:
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, err_msg=name,
                                   atol=tolerance * np.abs(want).max(initial=1))


@functools.cache
def report_of(op):
    """Return the gradient check of an operation of ``functional``."""
    return examples.check(op)


def compare(op, arrays, tolerance, *contexts, **options):
    """Compare the two forms of an operation, the fast one within ``contexts``, forward and back,
    where the gradients of the simple one are right.

    Return the cache and the gradients of the fast form."""
    assert report_of(op), f"functional.{op} and its backward do not agree\n{report_of(op)}"
    simple_options = {key: np.random.default_rng(2) if key == "rng" else value
                      for key, value in options.items()}
    want, simple = vars(F)[op](*arrays, **simple_options)
    dy = normal(want.shape, want.dtype, 9)
    expected = vars(F)[f"{op}_backward"](dy, simple)
    before = [a.copy() for a in arrays]
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        y, cache = vars(fast)[op](*arrays, **options)
        grads = vars(fast)[f"{op}_backward"](dy.copy(), cache)
    np.testing.assert_equal([*arrays], before)
    close(y, want, tolerance, f"fast.{op}")
    grads, expected = (g if isinstance(g, tuple) else (g,) for g in (grads, expected))
    for i, (grad, right) in enumerate(zip(grads, expected, strict=True), 1):
        close(grad, right, 10 * tolerance, f"fast.{op}_backward, result {i} of {len(grads)}")
    return cache, grads


both = pytest.mark.parametrize("size", [5000, 1 << 30])


@both
@pytest.mark.parametrize("cores", [1, 2, 4])
@given(st.sampled_from([(1, 1), (7, 5), (2, 3, 4), (2, 3, 130), (3, 70, 130), (2, 6000)]), DTYPES,
       st.sampled_from([1e-6, 1.0, 1e6]))
def test_layer_norm_equals_the_simple_form(size, cores, shape, kind, factor):
    """Whole and in pieces, of which the last one may be shorter and a row may fill several."""
    dtype, tolerance = kind
    arrays = normal(shape, dtype) * dtype(factor), *normal((2, shape[-1]), dtype, 2)
    compare("layer_norm", arrays, tolerance, pieces_of(size), on(cores), eps=1e-3)


@both
@given(st.sampled_from([(1,), (2, 3, 4), (fast.MAX_PIECE - 1,), (fast.MAX_PIECE + 1,),
                        (2, fast.MAX_PIECE)]), DTYPES, st.floats(0.1, 20))
@settings(max_examples=5)
def test_gelu_equals_the_simple_form(size, shape, kind, factor):
    dtype, tolerance = kind
    x = normal(shape, dtype) * dtype(factor)
    compare("gelu", [x], tolerance, pieces_of(size))
    compare("gelu_exact", [x], 1e-6 if dtype is np.float32 else 0, pieces_of(size))


@pytest.mark.parametrize("op", ["gelu", "gelu_exact"])
def test_a_gradient_of_gelu_in_another_memory_order_or_of_a_traced_pass_is_right(op):
    x, dy = normal((6, 5), np.float64), np.asfortranarray(normal((6, 5), np.float64))
    cache, backward = getattr(F, op)(x)[1], getattr(fast, f"{op}_backward")
    want = getattr(F, f"{op}_backward")(dy, cache)
    close(backward(dy, getattr(fast, op)(x)[1]), want, 1e-12)
    np.testing.assert_array_equal(backward(dy, cache), want)


def queries_keys_values(B, T, S, H, G, D, dtype=np.float64):
    """Random q (B, H, T, D), k and v (B, G, S, D), as views, in the order in which layers have
    them."""
    return [F.split_heads(normal((B, n, heads * D), dtype, i), heads)
            for i, (n, heads) in enumerate([(T, H), (S, G), (S, G)])]


@both
@settings(max_examples=30)
@given(st.integers(1, 3), st.sampled_from([1, 63, 64, 65, 130, 200]),
       st.sampled_from([0, 0, 1, 37, 60]),
       st.sampled_from([(1, 1), (2, 2), (3, 3), (3, 1), (4, 2), (4, 1), (6, 3)]),
       st.integers(1, 8), DTYPES, st.one_of(st.just(0.0), st.floats(0.05, 0.9)), st.booleans(),
       st.booleans(), CORES)
def test_attention_equals_the_simple_form(size, B, T, more, heads, D, kind, p, causal, biased,
                                          cores):
    """With fewer heads of keys and more keys, too.  With dropout, both forms draw the same mask,
    and equally much from the generator."""
    (dtype, tolerance), (H, G), S = kind, heads, T + more
    rng, qkv = np.random.default_rng(2), queries_keys_values(B, T, S, H, G, D, dtype)
    bias = normal((H, T, S), dtype, 5) if biased else None
    cache, (*grads, dbias) = compare("attention", qkv, 3 * tolerance, pieces_of(size), on(cores),
                                     p=p, rng=rng, causal=causal, bias=bias)
    assert [g.shape for g in grads] == [a.shape for a in qkv] and (dbias is None) != biased
    small = T <= fast.TILE and B * H * T * S <= 4 * size
    assert isinstance(cache, F.AttentionCache) == small
    assert small or cache.top.dtype == cache.total.dtype == dtype
    other = np.random.default_rng(2)
    F.attention(*qkv, p, other, causal)
    assert rng.bytes(8) == other.bytes(8)


@both
@given(st.sampled_from([(1, 9), (65, 64), (130, 7), (200, 63)]),
       st.sampled_from([(2, 2), (4, 2), (4, 1)]), st.booleans(), st.sampled_from([0.0, 0.4]))
def test_attention_to_fewer_keys_equals_the_simple_form(size, tokens, heads, biased, p):
    """As a decoder's queries of an encoder's tokens."""
    qkv = queries_keys_values(2, *tokens, *heads, 3)
    compare("attention", qkv, 1e-12, pieces_of(size), p=p, rng=np.random.default_rng(2),
            causal=False, bias=normal((heads[0], *tokens), np.float64, 5) if biased else None)


def test_a_result_whose_sum_overflows_keeps_dropout_and_gradients():
    """It is computed again in float64, with the same draws of the generator."""
    q, k, v = queries_keys_values(2, 70, 70, 4, 2, 4, np.float32)
    v, dy = np.full_like(v, 2e38), normal(q.shape, np.float32, 9)
    (y, cache), (want, exact) = (
        op.attention(*qkv, 0.3, np.random.default_rng(4))
        for op, qkv in ((fast, (q, k, v)), (F, [a.astype(np.float64) for a in (q, k, v)])))
    fits = np.abs(want) < 3e38
    np.testing.assert_allclose(y[fits], want[fits], rtol=1e-6)
    with np.errstate(over="ignore", invalid="ignore"):    # dq and dk do not fit
        assert not np.isfinite(y.sum()) and fits.any()
        dv = fast.attention_backward(dy, cache)[2]
    close(dv, F.attention_backward(dy.astype(float), exact)[2].astype(np.float32), 1e-5)


def test_keys_in_a_cache_with_room_for_more_give_the_same_bits():
    q, k, v = normal((3, 1, 2, 3 * fast.TILE, 4), np.float32)
    past = layers.KVCache(4 * fast.TILE)
    np.testing.assert_array_equal(fast.attention(q, *past.extend(k, v))[0],
                                  fast.attention(q, k, v)[0])


@given(st.integers(1, 3), st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3),
       st.integers(1, 4), DTYPES)
def test_heads_are_merged_as_in_the_simple_form(B, T, heads, D, kind):
    parts = [normal((B, H, T, D), kind[0], H) for H in heads]
    y = fast.merge_heads(*parts)
    np.testing.assert_array_equal(y, F.merge_heads(*parts), strict=True)
    np.testing.assert_array_equal(
        fast.split_heads(y, sum(heads)), np.concatenate(parts, axis=1), strict=True)
    np.testing.assert_array_equal(fast.merge_heads(fast.split_heads(y, sum(heads))), y)


# ------------------------------------------------------------------------------ Adam


@pytest.mark.parametrize("joined, piece", [(0, 1 << 20), (100, 1 << 20), (5, 3), (0, 7)])
@given(st.lists(st.sampled_from([(1,), (4,), (3, 5), (2, 3, 4), (40, 3)]), min_size=1, max_size=4),
       DTYPES, CORES, st.sampled_from([1.0, 0.9]), st.sampled_from("CF"))
def test_adam_equals_the_formula(joined, piece, shapes, kind, cores, shrink, order):
    """Of arrays of any size and order, joined or in pieces; matrices are multiplied by ``shrink``
    first."""
    dtype, tolerance = kind
    states = [[np.array(normal(shape, dtype, i), order=order), None, *np.zeros((2, *shape), dtype)]
              for i, shape in enumerate(shapes)]
    options = 0.02, (0.8, 0.95), 1e-4
    with changed(fast, MAX_JOINED=joined, ADAM_PIECE=piece), on(cores):
        for t in range(1, 4):
            wanted = []
            for i, (x, _, m, v) in enumerate(states):
                states[i][1] = g = normal(x.shape, dtype, 10 * t + i)
                wanted.append(F.adam(x * dtype(shrink if x.ndim > 1 else 1), g, m, v, t, *options))
            fast.adam(states, t, *options, shrink)
            for (x, _, m, v), want in zip(states, wanted, strict=True):
                for got, right in zip((x, m, v), want, strict=True):
                    close(got, right, tolerance, "fast.adam")


# ------------------------------------------------------------------------- products


@given(st.sampled_from([(1,), (2, 3), (130,), (2, 200)]), st.integers(1, 300), st.integers(1, 300),
       DTYPES, st.tuples(st.booleans(), st.booleans(), st.booleans()), CORES)
@settings(max_examples=50)                                # eight left out dw
def test_linear_equals_the_simple_form(lead, n, m, kind, need, cores):
    dtype, tolerance = kind
    arrays = [normal(shape, dtype, i) for i, shape in enumerate([(*lead, n), (n, m), (m,)])]
    cache, grads = compare("linear", arrays, 10 * tolerance, products_are_cut(), on(cores),
                           need=need)
    assert cache.x is (arrays[0] if need[1] else None)
    assert all(g is None or g.flags.c_contiguous for g in grads)


@given(st.sampled_from([(1,), (2, 3), (2, 100)]), st.integers(1, 9), st.integers(1, 300), DTYPES,
       st.tuples(st.booleans(), st.booleans()), CORES)
@settings(max_examples=20)
def test_unembedding_equals_the_simple_form(lead, C, V, kind, need, cores):
    dtype, tolerance = kind
    compare("unembedding", [normal((*lead, C), dtype), normal((V, C), dtype, 1)], 10 * tolerance,
            products_are_cut(), on(cores), need=need)


@given(st.sampled_from([(0,), (5,), (2, 3), (4, 30)]), st.integers(1, 9), st.integers(1, 9), DTYPES)
@settings(max_examples=20)
def test_embedding_equals_the_simple_form(shape, C, V, kind):
    """With ids that occur many times, once and never."""
    dtype, tolerance = kind
    ids = np.random.default_rng(C).integers(0, V, shape)
    compare("embedding", [ids, normal((V, C), dtype)], tolerance)


@pytest.mark.parametrize("product", [fast.product, fast.product_by_scipy])
@pytest.mark.parametrize("rows", [1, 3, 48, 49])
@pytest.mark.parametrize("columns", [48, 400])
def test_products_of_few_rows_equal_numpys(product, rows, columns):
    """With a transposed weight, with and without a bias, up to the limit for few rows."""
    x, w = normal((rows, 100), np.float64, rows), normal((400, 100), np.float64).T[:, :columns]
    with products_are_cut():
        y = product(x, w)
        np.testing.assert_allclose(product(x, w, w[0]), x @ w + w[0], atol=1e-12)
        assert product(*map(np.float32, (x, w))).dtype == np.float32
    assert y.flags.c_contiguous
    np.testing.assert_allclose(y, x @ w, atol=1e-12)


IN_A_TAB = """
import inspect, sys
import numpy as np, scipy.linalg, tqdm
sys.platform = "emscripten"
from minifpt import fast, functional as F
products = []
fast.product = lambda *args: products.append(args) or fast.product_by_scipy(*args)
x, w, b = (np.random.default_rng(0).standard_normal(s) for s in ((2, 3, 4), (4, 5), (5,)))
y, cache = F.linear(x, w, b)
np.testing.assert_allclose(y, x @ w + b)
dx, dw, db = F.linear_backward(y, cache)
np.testing.assert_allclose(dx, y @ w.T)
np.testing.assert_allclose(F.unembedding(x, w.T)[0], x @ w)
assert len(products) == 4 and "x @ w + b" in inspect.getsource(F.linear)
try:
    F.linear(x, w.T, b)
except ValueError as error:
    print(error)
"""


def test_in_a_tab_the_checked_operations_multiply_by_scipy_and_still_check():
    assert "linear" in child(sys.executable, "-c", IN_A_TAB).stdout


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_number_of_cores_changes_no_bit(dropout):
    """Outputs and gradients are equal even if all operations are cut."""
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=130, n_positions=80, dropout=dropout)
    model = minifpt.FPT(minifpt.GPT2(config), 3, 2)
    results = []
    for cores in (1, 2, 3, 4):
        with products_are_cut(), pieces_of(5000), on(cores):
            model.zero_grad()
            y, cache = model.forward(normal((5, 70, 3), np.float32), True, np.random.default_rng(0))
            model.backward(np.ones_like(y), cache)
        results.append([y, *(p.grad for p in model.parameters())])
    for other in results[1:]:
        np.testing.assert_equal(other, results[0])


def test_a_frozen_matrix_has_a_transpose_and_cannot_change():
    """Within the ``with`` alone, also where two overlap; a matrix in its place is used."""
    w, x = normal((5, 7), np.float64), normal((3, 5), np.float64)
    y, cache = fast.linear(x, w, np.zeros(7), (True, False, False))
    with fast.kept_transposes([w]), fast.kept_transposes([w]):
        fast.TRANSPOSES.get()[id(w)][1][:] *= 2           # so that one sees who uses it
        np.testing.assert_allclose(fast.linear_backward(y, cache)[0], 2 * y @ w.T)
        other = cache._replace(w=w.copy())
        np.testing.assert_allclose(fast.linear_backward(y, other)[0], y @ w.T)
        with pytest.raises(ValueError, match="read-only"):
            w[0, 0] = 1
    w[0, 0] = 1
    np.testing.assert_allclose(fast.linear_backward(y, cache)[0], y @ w.T)


def test_lstm_has_the_bits_of_the_simple_form():
    arrays = [normal(shape, np.float32) for shape in ((2, 5, 3), (3, 16), (4, 16), (16,))]
    want, simple = F.lstm(*arrays)
    y, cache = fast.lstm(*arrays)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_equal(fast.lstm_backward(y, cache), F.lstm_backward(want, simple))


# ------------------------------------------------------------------- numbers at the edge

# Huge, tiny, subnormal, equal, one alone: in float32 every result is finite where the exact one is,
# and near to float64's.  A number smaller than the smallest normal one counts as that.
LARGEST, NORMAL = 3.4028235e38, 1.1754944e-38
NEAR = 3e-5                                               # of the scale that a test states

# Of n normal numbers g, a row of each kind.  1e19 is about where squares overflow.
KINDS = {
    "normal": lambda g: g,
    "saturated": lambda g: 60 * g,
    "square overflows in part": lambda g: 1e19 * g,
    "huge": lambda g: 1e37 * g,
    "largest": lambda g: np.copysign(LARGEST, g),
    "tiny": lambda g: 1e-30 * g,
    "subnormal": lambda g: 1e-42 * g,
    "zero": lambda g: 0 * g,
    "equal": lambda g: 0 * g + g[0],
    "equal and large": lambda g: 0 * g + 1e4 * g[0],
    "equal and huge": lambda g: 0 * g + 1e38 * np.tanh(g[0]),
    "close together": lambda g: 1e4 + 1e-2 * g,
    "of every size": lambda g: np.sign(g) * 10.0 ** (30 * np.tanh(g)),
    "one is huge": lambda g: np.where(np.arange(len(g)) == 0, 3e38, g),
    "one is hugely negative": lambda g: np.where(np.arange(len(g)) == 0, -3e38, g),
}
rows_of = pytest.mark.parametrize("kind", KINDS)
few = settings(max_examples=3)
drawn = given(seed=st.integers(0, 2 ** 32 - 1), n=st.sampled_from([1, 2, 3, 7, 40, 768]))
HUGE = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False),
                 st.sampled_from([3e38, -3e38, 1e30, -1e20, 1e19, 0.0, 1e-45]))


def rows(kind, seed, n):
    """Return three rows of n numbers in float32, and a generator to draw more from."""
    rng = np.random.default_rng(seed)
    return np.stack([KINDS[kind](g) for g in rng.standard_normal((3, n))]).astype(np.float32), rng


def exactly(x):
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x


def near(got, want, scale):
    """Check numbers against float64's, and that they are finite where float32 holds these."""
    assert np.asarray(got).dtype == np.float32
    got, want, scale = np.broadcast_arrays(got, want, np.maximum(scale, NORMAL))
    fits = np.abs(want) < LARGEST
    assert np.isfinite(got[fits]).all()
    assert (np.abs(got - want)[fits] <= (NEAR * scale)[fits]).all()


def largest(x):
    return np.abs(exactly(x)).max(axis=-1, keepdims=True)


# Of each operation: the scale of y from x and float64's cache, and the scale of dx / dy.
SCALES = {
    "softmax": (lambda x, cache: 1.0, lambda cache: 1.0),
    "log_sum_exp": (lambda x, cache: 3.0 + largest(x), lambda cache: 1.0),
    "gelu": (lambda x, cache: np.abs(exactly(x)), lambda cache: 1.0),
    "gelu_exact": (lambda x, cache: np.abs(exactly(x)), lambda cache: 1.0),
    "relu": (lambda x, cache: np.abs(exactly(x)), lambda cache: 1.0),
    "layer_norm": (lambda x, cache: np.maximum(1.0, largest(cache.xhat)),
                   lambda cache: cache.rstd * np.maximum(1.0, largest(cache.xhat))),
}


@pytest.mark.parametrize("op", SCALES)
@rows_of
@few
@drawn
def test_operations_are_right_at_the_edges(op, kind, seed, n):
    x, rng = rows(kind, seed, n)
    more = rng.uniform(-1, 1, (2, n)).astype(np.float32) if op == "layer_norm" else ()
    forward, backward = (getattr(fast, name) for name in (op, f"{op}_backward"))
    (y, cache), (want, exact) = forward(x, *more), getattr(F, op)(exactly(x), *map(exactly, more))
    scale, back_scale = SCALES[op]
    near(y, want, scale(x, exact))
    for size in (1.0, 1e36, 1e-30):
        dy = (size * rng.uniform(-1, 1, y.shape)).astype(np.float32)
        with np.errstate(over="ignore"):                  # a dx that float32 does not hold
            dx, want = backward(dy, cache), getattr(F, f"{op}_backward")(exactly(dy), exact)
        if op == "layer_norm":
            dx, want = dx[0], want[0]
        near(dx, want, largest(dy) * back_scale(exact))


def test_cross_entropy_whose_sum_of_losses_overflows():
    """Each loss fits into float32, and so does their mean; their sum does not."""
    logits = np.array([[3e38, 0], [0, 3e38], [0, 3e38]], np.float32)
    targets = np.array([1, 0, 0])
    loss, cache = fast.cross_entropy(logits, targets)
    assert loss == pytest.approx(3e38, rel=1e-6)
    dlogits = fast.cross_entropy_backward(1.0, cache)
    np.testing.assert_allclose(dlogits, np.array([[1, -1], [-1, 1], [-1, 1]]) / 3, rtol=1e-6)
    assert dlogits.dtype == np.float32


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 2), st.integers(1, 5), st.just(8)),
                    elements=HUGE), causal=st.booleans())
@example(x=np.full((1, 3, 8), 3e38, np.float32), causal=True)
@example(x=np.array([3e38, -3e38] * 12, np.float32).reshape(1, 3, 8), causal=False)
def test_attention_is_finite(x, causal):
    """Whatever queries and keys hold, each result is a mean of values."""
    B, T, C = x.shape
    v = np.random.default_rng(0).uniform(1, 2, (B, T, 4)).astype(np.float32)
    q, k, v = (F.split_heads(each, 2) for each in (x[..., :4], x[..., 4:], v))
    y, cache = fast.attention(q, k, v, causal=causal)
    assert (y >= 1 - 1e-5).all() and (y <= 2 + 1e-5).all()
    np.testing.assert_allclose(cache.probabilities.sum(axis=-1), 1, rtol=1e-5)
