"""Numbers at the edge: huge, tiny, subnormal, equal, one alone.  In float32 every result is finite
where the exact one is, and near to float64's.  A number smaller than the smallest normal one counts
as that."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minifpt import fast
from minifpt import functional as F

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
    q, k, v = (F.split_heads(part, 2) for part in (x[..., :4], x[..., 4:], v))
    y, cache = fast.attention(q, k, v, causal=causal)
    assert (y >= 1 - 1e-5).all() and (y <= 2 + 1e-5).all()
    np.testing.assert_allclose(cache.probabilities.sum(axis=-1), 1, rtol=1e-5)
