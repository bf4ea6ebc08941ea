"""What the layers run stays finite and right for any finite float32 numbers."""

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minifpt import fast as ops
from minifpt import functional as F

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HUGE = st.one_of(FINITE, st.sampled_from([3e38, -3e38, 1e30, -1e20, 1e19, 0.0, 1e-45]))
ROWS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=2, max_side=8), elements=HUGE)


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
@example(x=np.full((2, 4), -3e38, np.float32))
def test_softmax_finite(x):
    y, cache = ops.softmax(x)
    want = scipy.special.softmax(x.astype(np.float64), axis=-1)
    np.testing.assert_allclose(y, want, atol=1e-6)
    assert np.isfinite(ops.softmax_backward(np.ones_like(y), cache)).all()


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
def test_log_sum_exp_finite(x):
    y, cache = ops.log_sum_exp(x)
    want = scipy.special.logsumexp(x.astype(np.float64), axis=-1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)
    assert np.isfinite(ops.log_sum_exp_backward(np.ones_like(y), cache)).all()


@given(x=ROWS)
@example(x=np.array([3e38, -3e38, 3e38], np.float32))
@example(x=np.full((2, 3), 3e38, np.float32))
@example(x=np.array([1e19, 1e-45, 0], np.float32))
def test_layer_norm_finite(x):
    n = x.shape[-1]
    y, cache = ops.layer_norm(x, np.ones(n, np.float32), np.zeros(n, np.float32))
    assert np.isfinite(y).all()
    # No standardised row has an entry beyond sqrt(n - 1).
    assert np.abs(y).max() <= math.sqrt(n) * (1 + 1e-5)
    for grad in ops.layer_norm_backward(np.ones_like(y), cache):
        assert np.isfinite(grad).all()


@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e10, 1e18, 1e20, 1e30, 3e36])
def test_layer_norm_value_at_any_size(size, mean):
    """Also where the mean is far larger than the spread: the size of a row is no matter."""
    rng = np.random.default_rng(0)
    x = (size * (mean + rng.uniform(-1, 1, (5, 32)))).astype(np.float32)
    w, b = rng.standard_normal((2, 32)).astype(np.float32)
    y, cache = ops.layer_norm(x, w, b)
    want, want_cache = F.layer_norm(x.astype(np.float64), w.astype(float), b.astype(float))
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=2e-5)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    dx = ops.layer_norm_backward(dy, cache)[0].astype(float)
    want = F.layer_norm_backward(dy.astype(float), want_cache)[0]
    np.testing.assert_allclose(dx / np.abs(want).max(), want / np.abs(want).max(), atol=1e-4)


def test_layer_norm_huge_row_leaves_its_neighbours():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    w, b = np.ones(8, np.float32), np.zeros(8, np.float32)
    alone, _ = ops.layer_norm(x, w, b)
    x[1] *= 1e30
    beside, _ = ops.layer_norm(x, w, b)
    np.testing.assert_array_equal(beside[[0, 2]], alone[[0, 2]])


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 2), st.integers(1, 5), st.just(8)),
                    elements=HUGE), causal=st.booleans())
@example(x=np.full((1, 3, 8), 3e38, np.float32), causal=True)
@example(x=np.array([3e38, -3e38] * 12, np.float32).reshape(1, 3, 8), causal=False)
def test_attention_finite(x, causal):
    """Whatever queries and keys hold, each result is a mean of values."""
    B, T, C = x.shape
    v = np.random.default_rng(0).uniform(1, 2, (B, T, 4)).astype(np.float32)
    y, cache = ops.attention(np.concatenate([x, v], axis=-1), 2, causal=causal)
    assert (y >= 1 - 1e-5).all() and (y <= 2 + 1e-5).all()
    np.testing.assert_allclose(cache.probabilities.sum(axis=-1), 1, rtol=1e-5)


def test_attention_of_huge_queries_and_keys_picks_the_largest_score():
    """As in float64, where nothing overflows; scores beyond 8.5e37 are above all that float32
    can hold once they are subtracted from each other."""
    qkv = np.random.default_rng(0).standard_normal((2, 5, 24))
    for size in (1e10, 1e18, 1e19, 1.5e19, 1e20, 1e38):
        qkv[..., :16] *= size / np.abs(qkv[..., :16]).max()
        y, _ = ops.attention(qkv.astype(np.float32), 2)
        np.testing.assert_allclose(y, F.attention(qkv, 2)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op, op_backward", [
    (ops.gelu, ops.gelu_backward), (ops.gelu_exact, ops.gelu_exact_backward),
    (ops.relu, ops.relu_backward)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_of_huge_numbers(op, op_backward, dtype):
    """Each is x above 0 and 0 below it, and its derivative 1 and 0."""
    x = np.array([1e3, 1e13, 1e18, 1e19, 1.9e19, 3e38], dtype)
    dy = np.array([1, -2, 3, 1e-30, 1e30, 5], dtype)
    for sign, want, slope in [(1, x, dy), (-1, 0 * x, 0 * dy)]:
        with np.errstate(over="ignore"):                  # of the exact form's density
            y, cache = op(sign * x)
            dx = op_backward(dy, cache)
        assert y.dtype == dx.dtype == dtype
        np.testing.assert_array_equal(y, want)
        np.testing.assert_allclose(dx, slope, atol=1e-100)


@pytest.mark.parametrize("op, op_backward", [
    (ops.gelu, ops.gelu_backward), (ops.gelu_exact, ops.gelu_exact_backward)])
@given(x=ROWS)
@example(x=np.linspace(-40, 40, 1001, dtype=np.float32))
def test_activations_in_float32_as_in_float64(op, op_backward, x):
    with np.errstate(over="ignore"):
        y, cache = op(x)
        dx = op_backward(np.ones_like(x), cache)
    want, exact = op(x.astype(np.float64))
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(dx, op_backward(np.ones(x.shape), exact), rtol=1e-5, atol=1e-5)


def test_float32_throughout_in_huge_rows(float32_only, arrays_in):
    """The path that a row takes whose square overflows."""
    x, w, b = (float32_only(a) for a in (1e30 * np.eye(3, 5), np.ones(5), np.zeros(5)))
    y, cache = ops.layer_norm(x, w, b)
    grads = ops.layer_norm_backward(float32_only(np.ones((3, 5))), cache)
    arrays = arrays_in([y, cache, grads])
    assert len(arrays) == 7 and {a.dtype for a in arrays} == {np.dtype(np.float32)}


def test_attention_survives_huge_scores():
    qkv = (1e15 * np.random.default_rng(0).standard_normal((1, 4, 12))).astype(np.float32)
    y, cache = ops.attention(qkv, 2)
    assert np.isfinite(y).all() and np.isfinite(ops.attention_backward(y, cache)).all()


def test_cross_entropy_whose_sum_of_losses_overflows():
    """Each loss fits into float32, and so does their mean; their sum does not."""
    logits = np.array([[3e38, 0], [0, 3e38], [0, 3e38]], np.float32)
    targets = np.array([1, 0, 0])
    loss, cache = ops.cross_entropy(logits, targets)
    assert loss == pytest.approx(3e38, rel=1e-6)
    dlogits = ops.cross_entropy_backward(1.0, cache)
    np.testing.assert_allclose(dlogits, np.array([[1, -1], [-1, 1], [-1, 1]]) / 3, rtol=1e-6)
    assert dlogits.dtype == np.float32


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T", [5, 70])
def test_attention_with_scores_beyond_a_quarter_of_the_largest_number(T, causal):
    """Up to 3.4e38 a score is finite in float32, but not always its difference from another."""
    qkv = np.random.default_rng(0).standard_normal((2, T, 12)).astype(np.float32)
    qkv[..., :8] *= 1e19
    scores = np.abs(qkv[..., :4].astype(float) @ qkv[..., 4:8].astype(float).swapaxes(1, 2)) / 2
    assert scores.max() > 8.5e37
    y, cache = ops.attention(qkv, 1, causal=causal)
    want, exact = F.attention(qkv.astype(np.float64), 1, causal=causal)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    dy = np.ones_like(y)
    np.testing.assert_allclose(ops.attention_backward(dy, cache)[..., 8:],
                               F.attention_backward(dy.astype(float), exact)[..., 8:], rtol=1e-5,
                               atol=1e-6)
