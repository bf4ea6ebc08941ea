"""Every operation: its backward against differences, its values against other formulas."""

import itertools
import math

import numpy as np
import pytest
import scipy.special
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minifpt import functional as F
from minifpt.gradcheck import gradcheck

pytestmark = pytest.mark.filterwarnings("error")

LEAD = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
SEED = st.integers(0, 2**32 - 1)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HUGE = st.one_of(FINITE, st.sampled_from([3e38, -3e38, 1e30, -1e20, 1e19, 0.0, 1e-45]))
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=2, max_side=8), elements=HUGE)


def case(name, rng, lead=(2, 3), n=6, dtype=np.float64):
    """(op, its backward, inputs) with ``n`` channels under the leading axes ``lead``."""
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    seed = int(rng.integers(1 << 30))
    two = (*lead, 2, 3)[:2]
    # Layer norm of two channels is a step function, with gradients lost in rounding.
    c = n + 3
    ids = rng.integers(0, n, lead)
    return {
        "linear": lambda: (F.linear, F.linear_backward, (normal(*lead, n), normal(n, 3),
                                                         normal(3))),
        "embedding": lambda: (F.embedding, F.embedding_backward, (ids, normal(n, 4))),
        "layer_norm": lambda: (F.layer_norm, F.layer_norm_backward,
                               (normal(*lead, c), normal(c), normal(c))),
        "gelu": lambda: (F.gelu, F.gelu_backward, (2 * normal(*lead, n),)),
        "softmax": lambda: (F.softmax, F.softmax_backward, (normal(*lead, n),)),
        "dropout": lambda: (lambda x: F.dropout(x, 0.3, np.random.default_rng(seed)),
                            F.dropout_backward, (normal(*lead, n),)),
        "attention": lambda: (lambda qkv: F.attention(qkv, 2), F.attention_backward,
                              (normal(*two, 6 * n),)),
        "attention, dropout": lambda: (
            lambda qkv: F.attention(qkv, 2, 0.3, np.random.default_rng(seed)),
            F.attention_backward, (normal(*two, 6 * n),)),
        "log_sum_exp": lambda: (F.log_sum_exp, F.log_sum_exp_backward, (normal(*lead, n),)),
        "cross_entropy": lambda: (F.cross_entropy, F.cross_entropy_backward,
                                  (3 * normal(*lead, n), ids)),
    }[name]()


OPS = ["linear", "embedding", "layer_norm", "gelu", "softmax", "dropout", "attention",
       "attention, dropout", "log_sum_exp", "cross_entropy"]


def test_every_pair_is_checked():
    """An operation added to functional.py must be added here."""
    pairs = {n.removesuffix("_backward") for n in vars(F) if n.endswith("_backward")}
    assert pairs == {name.split(",")[0] for name in OPS}


@pytest.mark.parametrize("name", OPS)
@given(seed=SEED, lead=LEAD, n=st.integers(1, 5))
def test_backward(name, seed, lead, n):
    op, op_backward, inputs = case(name, np.random.default_rng(seed), lead, n)
    report = gradcheck(op, op_backward, inputs, elementwise=24, directions=4)
    assert report.max_relative_error <= 1e-6, str(report)


@pytest.mark.parametrize("name", OPS)
def test_backward_leaves_everything_as_it_was(name):
    """A cache may be read twice, and neither inputs nor dy belong to the operation."""
    rng = np.random.default_rng(3)
    op, op_backward, inputs = case(name, rng)
    before = [x.copy() for x in inputs]
    y, cache = op(*inputs)
    dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
    kept = np.copy(dy)
    first = op_backward(dy, cache)
    second = op_backward(dy, cache)
    np.testing.assert_equal(first, second)
    np.testing.assert_array_equal(dy, kept)
    np.testing.assert_equal(list(inputs), before)


@pytest.mark.parametrize("name", OPS)
def test_float32_throughout(name, float32_only, arrays_in):
    op, op_backward, inputs = case(name, np.random.default_rng(0), dtype=np.float32)
    inputs = [float32_only(x) if x.dtype == np.float32 else x for x in inputs]
    y, cache = op(*inputs)
    dy = float32_only(np.ones_like(y)) if np.ndim(y) else 1.0
    grads = op_backward(dy, cache)
    grads = grads if isinstance(grads, tuple) else (grads,)
    floats = [a for a in arrays_in([cache, grads]) if np.issubdtype(a.dtype, np.floating)]
    assert y.dtype == np.float32 and floats
    assert {a.dtype for a in floats} == {np.dtype(np.float32)}


def test_float32_throughout_in_huge_rows(float32_only):
    """The path that a row takes whose square overflows."""
    x, w, b = (float32_only(a) for a in (1e30 * np.eye(3, 5), np.ones(5), np.zeros(5)))
    y, cache = F.layer_norm(x, w, b)
    grads = F.layer_norm_backward(float32_only(np.ones((3, 5))), cache)
    assert {a.dtype for a in (y, *cache, *grads)} == {np.dtype(np.float32)}


def test_float32_only_notices(float32_only):
    """The watching array itself can fail."""
    x = float32_only(np.ones(3))
    with pytest.raises(AssertionError, match="float64"):
        x += np.ones(3)
    with pytest.raises(AssertionError, match="float64"):
        x * np.float64(2)
    assert type(x @ np.ones((3, 2), np.float32) * 2.0) is type(x)


@pytest.mark.parametrize("name", ["linear", "layer_norm"])
def test_need(name):
    op, op_backward, inputs = case(name, np.random.default_rng(1))
    y, cache = op(*inputs)
    dy = np.random.default_rng(2).standard_normal(y.shape)
    everything = op_backward(dy, cache)
    assert all(g is not None for g in everything)
    for need in itertools.product([True, False], repeat=3):
        for wanted, got, whole in zip(need, op_backward(dy, cache, need), everything, strict=True):
            if wanted:
                np.testing.assert_array_equal(got, whole)
            else:
                assert got is None


def test_linear_without_its_weight_gradient_needs_no_x():
    _, _, (x, w, b) = case("linear", np.random.default_rng(1))
    y, cache = F.linear(x, w, b)
    dx, dw, _ = F.linear_backward(y, (None, cache[1]), (True, False, True))
    np.testing.assert_allclose(dx, y @ w.T)
    assert dw is None


# ----------------------------------------------------------------------------- values


@given(seed=SEED, lead=LEAD)
def test_linear_value(seed, lead):
    _, _, (x, w, b) = case("linear", np.random.default_rng(seed), lead)
    np.testing.assert_allclose(F.linear(x, w, b)[0], np.einsum("...i,io->...o", x, w) + b)


def test_linear_errors():
    with pytest.raises(ValueError, match=r"x has 3 features, w has shape \(4, 2\)"):
        F.linear(np.ones((2, 3)), np.ones((4, 2)), np.ones(2))


def test_embedding_repeated_ids():
    ids = np.array([[3, 0, 3], [3, 1, 0]])
    w = np.arange(10.0).reshape(5, 2)
    y, cache = F.embedding(ids, w)
    np.testing.assert_array_equal(y[1, 2], w[0])
    dy = np.random.default_rng(0).standard_normal(y.shape)
    want = np.zeros_like(w)
    for place in np.ndindex(ids.shape):
        want[ids[place]] += dy[place]
    got = F.embedding_backward(dy, cache)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    np.testing.assert_array_equal(got[[2, 4]], 0.0)


def test_embedding_of_nothing():
    y, cache = F.embedding(np.zeros((0, 3), int), np.ones((4, 2)))
    assert y.shape == (0, 3, 2)
    np.testing.assert_array_equal(F.embedding_backward(y, cache), np.zeros((4, 2)))


@pytest.mark.parametrize("bad", [-1, 4])
def test_embedding_errors(bad):
    with pytest.raises(ValueError, match="rows 0 to 3"):
        F.embedding(np.array([0, bad]), np.ones((4, 2)))


@given(seed=SEED, lead=LEAD, size=st.sampled_from([1e-3, 1.0, 1e4]))
def test_layer_norm_value(seed, lead, size):
    rng = np.random.default_rng(seed)
    _, _, (x, w, b) = case("layer_norm", rng, lead)
    y, _ = F.layer_norm(size * x, w, b, eps=1e-3)
    for row, got in zip((size * x).reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1]),
                        strict=True):
        mean = sum(row) / len(row)
        var = sum((v - mean) ** 2 for v in row) / len(row)
        np.testing.assert_allclose(got, [(v - mean) / math.sqrt(var + 1e-3) * wi + bi
                                         for v, wi, bi in zip(row, w, b, strict=True)],
                                   rtol=1e-9, atol=1e-12)


def test_layer_norm_errors():
    with pytest.raises(ValueError, match=r"x has 3 channels, w has shape \(4,\)"):
        F.layer_norm(np.ones((2, 3)), np.ones(4), np.ones(4))


def test_gelu_value():
    x = np.linspace(-6, 6, 101)
    y, _ = F.gelu(x)
    # The tanh form stays within 5e-4 of x Phi(x), which it approximates ...
    assert np.abs(y - x * scipy.special.ndtr(x)).max() < 5e-4
    # ... and is x times a logistic function of 2u.
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    np.testing.assert_allclose(y, x * scipy.special.expit(2 * u), atol=1e-15)


@given(seed=SEED, lead=LEAD, n=st.integers(1, 6))
def test_softmax_and_log_sum_exp_values(seed, lead, n):
    x = 5 * np.random.default_rng(seed).standard_normal((*lead, n))
    np.testing.assert_allclose(F.softmax(x)[0], scipy.special.softmax(x, axis=-1))
    np.testing.assert_allclose(F.log_sum_exp(x)[0],
                               scipy.special.logsumexp(x, axis=-1, keepdims=True), rtol=1e-12)


def test_cross_entropy_value():
    rng = np.random.default_rng(0)
    logits, targets = 4 * rng.standard_normal((3, 5, 7)), rng.integers(0, 7, (3, 5))
    p = scipy.special.softmax(logits, axis=-1)
    want = -np.mean([math.log(p[i][targets[i]]) for i in np.ndindex(targets.shape)])
    assert F.cross_entropy(logits, targets)[0] == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("targets", [[0, 3], [-1, 0], [0], [[0, 1]], []])
def test_cross_entropy_errors(targets):
    shape = (0, 3) if targets == [] else (2, 3)
    with pytest.raises(ValueError, match="^cross_entropy: [^\n]*$"):
        F.cross_entropy(np.ones(shape), np.array(targets, int))


# ---------------------------------------------------------------- any finite float32


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
@example(x=np.full((2, 4), -3e38, np.float32))
def test_softmax_finite(x):
    y, cache = F.softmax(x)
    want = scipy.special.softmax(x.astype(np.float64), axis=-1)
    np.testing.assert_allclose(y, want, atol=1e-6)
    assert np.isfinite(F.softmax_backward(np.ones_like(y), cache)).all()


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
def test_log_sum_exp_finite(x):
    y, cache = F.log_sum_exp(x)
    want = scipy.special.logsumexp(x.astype(np.float64), axis=-1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)
    assert np.isfinite(F.log_sum_exp_backward(np.ones_like(y), cache)).all()


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
@example(x=np.full((2, 3), 3e38, np.float32))
@example(x=np.array([1e19, 1e-45, 0], np.float32))
def test_layer_norm_finite(x):
    n = x.shape[-1]
    y, cache = F.layer_norm(x, np.ones(n, np.float32), np.zeros(n, np.float32))
    assert np.isfinite(y).all()
    # No standardised row has an entry beyond sqrt(n - 1).
    assert np.abs(y).max() <= math.sqrt(n) * (1 + 1e-5)
    for grad in F.layer_norm_backward(np.ones_like(y), cache):
        assert np.isfinite(grad).all()


@pytest.mark.parametrize("offset", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e10, 1e18, 1e20, 1e30, 3e36])
def test_layer_norm_value_at_any_size(size, offset):
    """Also where the mean is far larger than the spread: the size of a row is no matter."""
    rng = np.random.default_rng(0)
    x = (size * (offset + rng.uniform(-1, 1, (5, 32)))).astype(np.float32)
    w, b = rng.standard_normal((2, 32)).astype(np.float32)
    y, cache = F.layer_norm(x, w, b)
    want, want_cache = F.layer_norm(x.astype(np.float64), w.astype(float), b.astype(float))
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=2e-5)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    dx, want = (F.layer_norm_backward(d, c)[0].astype(float)
                for d, c in [(dy, cache), (dy.astype(float), want_cache)])
    np.testing.assert_allclose(dx / np.abs(want).max(), want / np.abs(want).max(), atol=1e-4)


def test_layer_norm_huge_row_leaves_its_neighbours():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    w, b = np.ones(8, np.float32), np.zeros(8, np.float32)
    alone, _ = F.layer_norm(x, w, b)
    x[1] *= 1e30
    beside, _ = F.layer_norm(x, w, b)
    np.testing.assert_array_equal(beside[[0, 2]], alone[[0, 2]])


# ----------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_at_the_exact_scale(p, dtype):
    x = np.random.default_rng(0).uniform(1, 2, (400, 500)).astype(dtype)
    y, mask = F.dropout(x, p, np.random.default_rng(1))
    scale = dtype(65536 / (65536 - round(p * 65536)))
    assert set(np.unique(mask)) == {0, scale}
    np.testing.assert_array_equal(y, np.where(mask > 0, x * scale, 0))
    # Five standard deviations of a binomial share, and of the mean that follows from it.
    sigma = math.sqrt(p * (1 - p) / x.size)
    assert abs((y == 0).mean() - p) < 5 * sigma + 2**-16
    assert abs(mask.mean(dtype=float) - 1) < 5 * sigma / (1 - p)


def test_dropout_rows_and_columns_are_independent():
    _, mask = F.dropout(np.ones((300, 300)), 0.5, np.random.default_rng(0))
    kept = mask > 0
    for axis in (0, 1):
        assert np.abs(kept.mean(axis=axis) - 0.5).max() < 5 * math.sqrt(0.25 / 300)
    assert abs((kept[1:] == kept[:-1]).mean() - 0.5) < 0.01


def test_dropout_at_zero_draws_nothing():
    x, rng = np.ones(5), np.random.default_rng(0)
    before = rng.bit_generator.state
    y, cache = F.dropout(x, 0.0, rng)
    np.testing.assert_array_equal(y, x)
    assert cache is None and rng.bit_generator.state == before
    assert F.dropout(x, 0.0, None)[1] is None
    np.testing.assert_array_equal(F.dropout_backward(x, None), x)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), 0.9999999])
def test_dropout_errors(p):
    with pytest.raises(ValueError, match="^dropout: p is [^\n]*$"):
        F.dropout(np.ones(3), p, np.random.default_rng(0))


def test_dropout_without_a_generator():
    with pytest.raises(ValueError, match="rng is None"):
        F.dropout(np.ones(3), 0.5, None)


# --------------------------------------------------------------------------- attention


@given(seed=SEED, B=st.integers(1, 3), T=st.integers(1, 6), H=st.integers(1, 3),
       D=st.integers(1, 4))
def test_attention_value(seed, B, T, H, D):
    C = H * D
    qkv = np.random.default_rng(seed).standard_normal((B, T, 3 * C))
    y, _ = F.attention(qkv, H)
    want = np.zeros((B, T, C))
    for b, h, t in np.ndindex(B, H, T):
        cols = slice(h * D, (h + 1) * D)
        q, k, v = (qkv[b, :, i * C:(i + 1) * C][:, cols] for i in range(3))
        scores = [q[t] @ k[s] / math.sqrt(D) for s in range(t + 1)]
        want[b, t, cols] = sum(p * v[s] for s, p in enumerate(scipy.special.softmax(scores)))
    np.testing.assert_allclose(y, want, atol=1e-12)


@given(seed=SEED, T=st.integers(2, 7), data=st.data())
def test_attention_is_causal(seed, T, data):
    t = data.draw(st.integers(1, T - 1))
    rng = np.random.default_rng(seed)
    qkv = rng.standard_normal((2, T, 24))
    y, _ = F.attention(qkv, 2)
    qkv[:, t:] = 100 * rng.standard_normal((2, T - t, 24))
    changed, _ = F.attention(qkv, 2)
    np.testing.assert_array_equal(changed[:, :t], y[:, :t])
    assert (changed[:, t:] != y[:, t:]).all()
    dy = np.zeros_like(y)
    dy[:, t - 1] = 1
    dqkv = F.attention_backward(dy, F.attention(qkv, 2)[1])
    assert not dqkv[:, t:].any()


@given(seed=SEED, P=st.integers(1, 4), T=st.integers(1, 4))
def test_attention_with_past_is_the_tail_of_the_whole(seed, P, T):
    qkv = np.random.default_rng(seed).standard_normal((2, P + T, 24))
    whole, _ = F.attention(qkv, 2)
    _, (_, k, v, _, _) = F.attention(qkv[:, :P], 2)
    tail, (q, k, v, a, _) = F.attention(qkv[:, P:], 2, past=(k, v))
    np.testing.assert_allclose(tail, whole[:, P:], atol=1e-13)
    assert q.shape == (2, 2, T, 4) and k.shape == v.shape == (2, 2, P + T, 4)
    assert a.shape == (2, 2, T, P + T)


def test_attention_probabilities_are_in_the_cache():
    qkv = np.random.default_rng(0).standard_normal((2, 5, 24))
    y, (_, _, v, a, mask) = F.attention(qkv, 2, 0.4, np.random.default_rng(0))
    np.testing.assert_allclose(a.sum(axis=-1), 1)
    assert not a[..., np.triu(np.ones((5, 5), bool), 1)].any()
    np.testing.assert_allclose(y, F.merge_heads((a * mask) @ v))


def test_attention_errors():
    with pytest.raises(ValueError, match="qkv has 10 channels, expected a multiple of 3 x 2"):
        F.attention(np.ones((1, 2, 10)), 2)


def test_attention_survives_huge_scores():
    qkv = (1e15 * np.random.default_rng(0).standard_normal((1, 4, 12))).astype(np.float32)
    y, cache = F.attention(qkv, 2)
    assert np.isfinite(y).all() and np.isfinite(F.attention_backward(y, cache)).all()
