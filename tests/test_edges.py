"""Numbers at the edge: huge, tiny, subnormal, equal, one alone.  In float32 every result is finite
where the exact one is, and equal to float64's but for some units in the last place (ulps) of a
scale that each test states.  What is smaller than the smallest normal number counts as that."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import minifpt
from minifpt import fast
from minifpt import functional as F
from minifpt.trunks.lstm import LSTM, LSTMConfig

ULP = 2.0 ** -23
LARGEST, NORMAL = 3.4028235e38, 1.1754944e-38

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
drawn = given(seed=st.integers(0, 2 ** 32 - 1), n=st.sampled_from([1, 2, 3, 7, 40, 768]))
GRADIENTS = 1.0, 1e36, 1e-30                              # sizes of the upstream gradient
HUGE = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False),
                 st.sampled_from([3e38, -3e38, 1e30, -1e20, 1e19, 0.0, 1e-45]))


def rows(kind, seed, n):
    """Three rows of n numbers in float32, and a generator to draw more from."""
    rng = np.random.default_rng(seed)
    return np.stack([KINDS[kind](g) for g in rng.standard_normal((3, n))]).astype(np.float32), rng


def gradients(rng, shape):
    for size in GRADIENTS:
        yield (size * rng.uniform(-1, 1, shape)).astype(np.float32)


def exactly(x):
    return x.astype(np.float64)


def within(ulps, got, want, scale):
    """Equal but for so many ulps of ``scale``, and finite where ``want`` fits into float32."""
    scale = np.maximum(scale, NORMAL)
    fits = np.abs(want) < LARGEST
    got, want, scale = (np.broadcast_to(a, want.shape)[fits] for a in (got, want, scale))
    assert np.isfinite(got).all()
    off = np.abs(got - want) / (ULP * scale)
    assert (off <= ulps).all(), f"{off.max():.1f} ulps"


@rows_of
@drawn
def test_softmax_is_exact_at_the_edges(kind, seed, n):
    """4 ulps, and one more for each power of e that a number is below its row's largest."""
    x, rng = rows(kind, seed, n)
    (y, cache), (want, want_cache) = fast.softmax(x), F.softmax(exactly(x))
    below = exactly(x).max(axis=-1, keepdims=True) - x
    within(4 + np.minimum(below, 100).max(), y, want, want)
    for dy in gradients(rng, x.shape):
        largest = np.abs(exactly(dy)).max(axis=-1, keepdims=True)
        within(8, F.softmax_backward(dy, cache), F.softmax_backward(exactly(dy), want_cache),
               largest)


def test_softmax_is_exact_with_all_but_one_masked():
    """The one has it all, whatever it is, and nothing comes back to anybody."""
    for x in (0.0, 1e-45, -LARGEST, LARGEST):
        row = np.array([[-np.inf, x, -np.inf]], np.float32)
        y, cache = F.softmax(row)
        np.testing.assert_array_equal(y, [[0, 1, 0]])
        assert not F.softmax_backward(np.array([[3e38, 1e-45, -7]], np.float32), cache).any()
        total, cache = F.log_sum_exp(row)
        assert total == np.float32(x)
        np.testing.assert_array_equal(F.log_sum_exp_backward(np.ones((1, 1)), cache), [[0, 1, 0]])


@rows_of
@drawn
def test_log_sum_exp_is_exact_at_the_edges(kind, seed, n):
    """4 ulps of the row's largest number and of the result; backward 8 of the gradient's."""
    x, rng = rows(kind, seed, n)
    (y, cache), (want, want_cache) = fast.log_sum_exp(x), F.log_sum_exp(exactly(x))
    within(4, y, want, np.maximum(np.abs(want), np.abs(exactly(x)).max(axis=-1, keepdims=True)))
    for dy in gradients(rng, y.shape):
        within(8, F.log_sum_exp_backward(dy, cache),
               F.log_sum_exp_backward(exactly(dy), want_cache), np.abs(exactly(dy)))


@rows_of
@drawn
def test_cross_entropy_is_exact_at_the_edges(kind, seed, n):
    """4 ulps of the largest logit and of the loss, of one example; backward 8 of 1."""
    x, rng = rows(kind, seed, n)
    x, targets = x[:1], rng.integers(0, n, 1)
    loss, cache = fast.cross_entropy(x, targets)
    want, want_cache = F.cross_entropy(exactly(x), targets)
    within(4, np.array(loss), np.array(want), max(abs(want), np.abs(exactly(x)).max()))
    within(8, F.cross_entropy_backward(1.0, cache), F.cross_entropy_backward(1.0, want_cache), 1.0)


def test_cross_entropy_of_one_class_is_zero():
    """Nothing to choose from: the loss is 0 and so is its gradient, whatever the logit."""
    for logit in (0.0, 1e-45, -LARGEST, LARGEST):
        loss, cache = F.cross_entropy(np.full((2, 1), logit, np.float32), np.zeros(2, int))
        assert loss == 0 and not F.cross_entropy_backward(1.0, cache).any()


def test_cross_entropy_whose_sum_of_losses_overflows():
    """Each loss fits into float32, and so does their mean; their sum does not."""
    logits = np.array([[3e38, 0], [0, 3e38], [0, 3e38]], np.float32)
    targets = np.array([1, 0, 0])
    loss, cache = fast.cross_entropy(logits, targets)
    assert loss == pytest.approx(3e38, rel=1e-6)
    dlogits = fast.cross_entropy_backward(1.0, cache)
    np.testing.assert_allclose(dlogits, np.array([[1, -1], [-1, 1], [-1, 1]]) / 3, rtol=1e-6)
    assert dlogits.dtype == np.float32


@pytest.mark.parametrize("op", ["gelu", "gelu_exact", "relu"])
@rows_of
@drawn
def test_activations_are_exact_at_the_edges(op, kind, seed, n):
    """4 ulps of x; backward 24 of dy."""
    x, rng = rows(kind, seed, n)
    (y, cache), (want, want_cache) = getattr(fast, op)(x), getattr(F, op)(exactly(x))
    within(4, y, want, np.abs(exactly(x)))
    for dy in gradients(rng, x.shape):
        with np.errstate(over="ignore"):                  # of the exact form's density
            got = getattr(fast, f"{op}_backward")(dy.copy(), cache)
        want = getattr(F, f"{op}_backward")(exactly(dy), want_cache)
        within(24, got, want, np.abs(exactly(dy)))


@rows_of
@drawn
def test_layer_norm_is_exact_at_the_edges(kind, seed, n):
    """32 ulps of 1 in xhat, which is 0 for equal numbers; 32 of the deviation; backward 64 of the
    largest ``dy / deviation``."""
    x, rng = rows(kind, seed, n)
    w, b = rng.uniform(-1, 1, (2, n)).astype(np.float32)
    y, cache = fast.layer_norm(x, w, b)
    want, want_cache = F.layer_norm(exactly(x), exactly(w), exactly(b))
    within(32, cache.xhat, want_cache.xhat, np.maximum(1.0, np.abs(want_cache.xhat)))
    within(32, cache.rstd, want_cache.rstd, want_cache.rstd)
    within(34, y, want, np.maximum(1.0, np.abs(want_cache.xhat)))
    for dy in gradients(rng, x.shape):
        want = F.layer_norm_backward(exactly(dy), want_cache)
        largest = np.abs(exactly(dy)).max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):                  # a dx that float32 does not hold
            got = fast.layer_norm_backward(dy, cache)
        within(64, got[0], want[0], largest * want_cache.rstd)
        within(64, got[1], want[1], 3 * n ** 0.5 * largest.max())
        within(64, got[2], want[2], 3 * largest.max())


@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e10, 1e18, 1e20, 1e30, 3e36])
def test_layer_norm_is_right_at_any_size(size, mean):
    """Also where the mean is far larger than the spread, and with a usual row beside them."""
    rng = np.random.default_rng(0)
    x = (size * (mean + rng.uniform(-1, 1, (5, 32)))).astype(np.float32)
    x[0] = rng.uniform(-1, 1, 32)
    w, b = rng.standard_normal((2, 32)).astype(np.float32)
    y, cache = fast.layer_norm(x, w, b)
    want, want_cache = F.layer_norm(exactly(x), exactly(w), exactly(b))
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=2e-5)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    grads = fast.layer_norm_backward(dy, cache)
    for got, want in zip(grads, F.layer_norm_backward(exactly(dy), want_cache), strict=True):
        largest = np.abs(want).max(axis=-1, keepdims=True)
        np.testing.assert_allclose(exactly(got) / largest, want / largest, atol=1e-4)


@pytest.mark.parametrize("module", [F, fast])
@rows_of
@drawn
def test_products_are_exact_at_the_edges(module, kind, seed, n):
    """As many ulps as there are terms, of the sum of their sizes, where float32 holds that."""
    x, rng = rows(kind, seed, n)
    w, dy = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((n, 2), (3, 2)))
    b = rng.uniform(-1, 1, 2).astype(np.float32)

    def equal(got, a, b, more=0.0):
        scale = np.abs(exactly(a)) @ np.abs(exactly(b)) + np.abs(more)
        want = exactly(a) @ exactly(b) + more
        within(a.shape[1] + 1, got, np.where(scale < LARGEST, want, np.inf), scale)
    with np.errstate(over="ignore", invalid="ignore"):
        (y, cache), (scores, scores_cache) = module.linear(x, w, b), module.unembedding(x, w.T)
        dx, dw, _ = module.linear_backward(dy, cache)
        dh, dtable = module.unembedding_backward(dy, scores_cache)
    equal(y, x, w, exactly(b))
    equal(scores, x, w)
    for got, a, b in ((dx, dy, w.T), (dw, x.T, dy), (dh, dy, w.T), (dtable, dy.T, x)):
        equal(got, a, b)


@rows_of
@drawn
def test_sums_and_lookups_are_exact_at_the_edges(kind, seed, n):
    """An ulp of the result, two with dropout; of a sum over positions, three of its largest term.
    What is dropped is 0."""
    x, rng = rows(kind, seed, n)
    other = x[::-1].copy()
    want = exactly(x) + other
    with np.errstate(over="ignore"):
        within(1, F.residual(x, other)[0], want, np.abs(want))
        within(1, F.residual_backward(x, other), want, np.abs(want))
        y, cache = F.positions(np.stack([x, x]), other)
        within(1, y[0], want, np.abs(want))
        dx, dw = F.positions_backward(np.stack([x, other]), cache)
        within(1, dw, want, np.abs(want))
        y, (mask,) = F.dropout(x, 0.3, rng)
        is_kept = mask > 0
        within(2, y, np.where(is_kept, exactly(x) / 0.7, 0), np.abs(exactly(y)))
        y, cache = F.embedding(np.array([1, 0, 1, 1]), x)
        np.testing.assert_array_equal(y, x[[1, 0, 1, 1]])
        back = np.stack([x[0], x[1], x[2], -x[0]])
        table = F.embedding_backward(back, cache)
    np.testing.assert_array_equal(table[0], x[1])
    assert not table[2].any()
    scale = np.abs(exactly(back[[0, 2, 3]])).sum(axis=0)
    within(3, table[1], np.where(scale < LARGEST, exactly(x[2]), np.inf), scale)


SMALL = dict(n_layer=2, n_embd=8, n_positions=3)
TRUNKS = {"gpt2": lambda: minifpt.GPT2(minifpt.GPT2Config(n_head=2, vocab_size=2, **SMALL)),
          "lstm": lambda: LSTM(LSTMConfig(residual=True, positions=True, **SMALL))}


@pytest.mark.parametrize("trunk", TRUNKS)
@rows_of
def test_a_whole_trunk_stays_finite(trunk, kind):
    """Forward and backward, of three tokens and of one; of half of what there is, as dropout
    scales it up."""
    x, rng = rows(kind, 0, 8)
    x *= 0.5
    trunk = TRUNKS[trunk]()
    for tokens in (x[None], x[:, None]):
        y, cache = trunk.forward(tokens, True, rng)
        dx = trunk.backward(rng.uniform(-1, 1, y.shape).astype(np.float32), cache)
        for a in (y, dx, *(p.grad for p in trunk.parameters())):
            assert np.isfinite(a).all() and a.dtype == np.float32


ATTENTIONS = {"simple": (F.attention, F.attention_backward),
              "fast": (fast.attention, fast.attention_backward)}
attention_of = pytest.mark.parametrize("form", ATTENTIONS)


@attention_of
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T", [1, 2, 7, 70])
@pytest.mark.parametrize("size", [1e-43, 1e-30, 1.0, 10.0])
@given(seed=st.integers(0, 2 ** 32 - 1), D=st.integers(1, 8))
def test_attention_is_exact_at_the_edges(form, causal, T, size, seed, D):
    """16 ulps of the largest value, and as many times more as the largest score is large;
    backward of the largest gradient."""
    attention, attention_backward = ATTENTIONS[form]
    rng = np.random.default_rng(seed)
    qkv = (size * rng.uniform(-1, 1, (2, T, 6 * D))).astype(np.float32)
    dy = rng.uniform(-1, 1, (2, T, 2 * D)).astype(np.float32)
    y, cache = attention(qkv, 2, causal=causal)
    want, want_cache = F.attention(exactly(qkv), 2, causal=causal)
    ulps = 16 * (1 + size * size * D ** 0.5)
    within(ulps, y, want, np.abs(exactly(qkv)).max())
    got, want = attention_backward(dy, cache), F.attention_backward(exactly(dy), want_cache)
    within(ulps, got, want, np.abs(want).max())


@pytest.mark.parametrize("form, size", [
    *((form, size) for form in ATTENTIONS for size in (1e-45, 1e-20, 1.0, 1e10)),
    ("fast", LARGEST)])
@pytest.mark.parametrize("T", [1, 7, 70])
def test_attention_is_exact_with_all_but_one_masked(form, size, T):
    """The first token sees itself alone, whatever its score: it gives its value to the bit, and
    nothing comes back to its query and key."""
    attention, attention_backward = ATTENTIONS[form]
    rng = np.random.default_rng(0)
    qkv = rng.uniform(-1, 1, (2, T, 24)).astype(np.float32)
    qkv[:, :1, :16] *= np.float32(size)
    y, cache = attention(qkv, 2)
    np.testing.assert_array_equal(y[:, 0], qkv[:, 0, 16:])
    dy = np.zeros((2, T, 8), np.float32)
    dy[:, 0] = rng.standard_normal((2, 8))
    dqkv = attention_backward(dy, cache)
    np.testing.assert_array_equal(dqkv[:, 0, 16:], dy[:, 0])
    assert not dqkv[:, 0, :16].any() and not dqkv[:, 1:].any()


@attention_of
@pytest.mark.parametrize("T", [3, 70])
@pytest.mark.parametrize("size", [0.0, 1e-45, 1.0, 1e10, 1e18])
def test_attention_of_equal_tokens(form, T, size):
    """To equal keys, any query gives the mean of the values."""
    attention, attention_backward = ATTENTIONS[form]
    rng = np.random.default_rng(0)
    qkv = np.empty((2, T, 24), np.float32)
    qkv[..., :16] = size * rng.choice([-1.0, 1.0], 16)
    qkv[..., 16:] = rng.standard_normal((2, T, 8))
    y, cache = attention(qkv, 2, causal=False)
    mean = exactly(qkv[..., 16:]).mean(axis=1, keepdims=True)
    within(16, y, np.broadcast_to(mean, y.shape), 1.0)
    dy = rng.uniform(-1, 1, y.shape).astype(np.float32)
    dv = exactly(dy).mean(axis=1, keepdims=True)
    within(16, attention_backward(dy, cache)[..., 16:], np.broadcast_to(dv, dy.shape), 1.0)


@attention_of
@pytest.mark.parametrize("T", [5, 70])
@pytest.mark.parametrize("size", [1e2, 1e10, 1e17])
def test_attention_is_exact_with_scores_far_apart(form, T, size):
    """Each query has one key that is far ahead: it gives that key's value to the bit, and what
    comes back goes to that value alone."""
    attention, attention_backward = ATTENTIONS[form]
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(T) / T                  # keys on a circle, a query at each
    at = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    qkv = np.empty((1, T, 6), np.float32)
    qkv[0, :, :2] = qkv[0, :, 2:4] = 10 * size * at
    qkv[..., 4:] = rng.standard_normal((1, T, 2))
    y, cache = attention(qkv, 1, causal=False)
    np.testing.assert_array_equal(y, qkv[..., 4:])
    dy = rng.standard_normal(y.shape).astype(np.float32)
    dqkv = attention_backward(dy, cache)
    np.testing.assert_array_equal(dqkv[..., 4:], dy)
    assert not dqkv[..., :4].any()


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 2), st.integers(1, 5), st.just(8)),
                    elements=HUGE), causal=st.booleans())
@example(x=np.full((1, 3, 8), 3e38, np.float32), causal=True)
@example(x=np.array([3e38, -3e38] * 12, np.float32).reshape(1, 3, 8), causal=False)
def test_attention_is_finite(x, causal):
    """Whatever queries and keys hold, each result is a mean of values."""
    B, T, C = x.shape
    v = np.random.default_rng(0).uniform(1, 2, (B, T, 4)).astype(np.float32)
    y, cache = fast.attention(np.concatenate([x, v], axis=-1), 2, causal=causal)
    assert (y >= 1 - 1e-5).all() and (y <= 2 + 1e-5).all()
    np.testing.assert_allclose(cache.probabilities.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T", [5, 70])
def test_attention_is_finite_with_scores_near_the_largest_number(T, causal):
    """Up to 3.4e38 a score is finite in float32, but not always its difference from another."""
    qkv = np.random.default_rng(0).standard_normal((2, T, 12)).astype(np.float32)
    qkv[..., :8] *= 1e19
    scores = np.abs(qkv[..., :4].astype(float) @ qkv[..., 4:8].astype(float).swapaxes(1, 2)) / 2
    assert scores.max() > 8.5e37
    y, cache = fast.attention(qkv, 1, causal=causal)
    want, exact = F.attention(qkv.astype(np.float64), 1, causal=causal)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    dy = np.ones_like(y)
    np.testing.assert_allclose(fast.attention_backward(dy, cache)[..., 8:],
                               F.attention_backward(dy.astype(float), exact)[..., 8:], rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize("T", [5, 100])
@pytest.mark.parametrize("size", [1e18, 1e19, 3e38])
def test_attention_of_huge_numbers_is_finite(T, size):
    qkv = np.random.default_rng(0).uniform(-1, 1, (2, T, 24)).astype(np.float32) * np.float32(size)
    y, _ = fast.attention(qkv, 2)
    assert np.isfinite(y).all() and np.abs(y).max() > 0.1 * size
