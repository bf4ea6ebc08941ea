"""What the layers run stays finite and right for any finite float32 numbers."""


import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minifpt import fast as ops
from minifpt import functional as F

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HUGE = st.one_of(FINITE, st.sampled_from([3e38, -3e38, 1e30, -1e20, 1e19, 0.0, 1e-45]))


@pytest.mark.parametrize("mean", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e10, 1e18, 1e20, 1e30, 3e36])
def test_layer_norm_is_right_at_any_size(size, mean):
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


@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 2), st.integers(1, 5), st.just(8)),
                    elements=HUGE), causal=st.booleans())
@example(x=np.full((1, 3, 8), 3e38, np.float32), causal=True)
@example(x=np.array([3e38, -3e38] * 12, np.float32).reshape(1, 3, 8), causal=False)
def test_attention_is_finite(x, causal):
    """Whatever queries and keys hold, each result is a mean of values."""
    B, T, C = x.shape
    v = np.random.default_rng(0).uniform(1, 2, (B, T, 4)).astype(np.float32)
    y, cache = ops.attention(np.concatenate([x, v], axis=-1), 2, causal=causal)
    assert (y >= 1 - 1e-5).all() and (y <= 2 + 1e-5).all()
    np.testing.assert_allclose(cache.probabilities.sum(axis=-1), 1, rtol=1e-5)


def test_huge_rows_stay_in_float32(float32_only, arrays_in):
    """The path that a row takes whose square overflows."""
    x, w, b = (float32_only(a) for a in (1e30 * np.eye(3, 5), np.ones(5), np.zeros(5)))
    y, cache = ops.layer_norm(x, w, b)
    grads = ops.layer_norm_backward(float32_only(np.ones((3, 5))), cache)
    arrays = arrays_in([y, cache, grads])
    assert len(arrays) == 7 and {a.dtype for a in arrays} == {np.dtype(np.float32)}


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
def test_attention_is_finite_with_scores_near_the_largest_number(T, causal):
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
