"""Adam against a loop over plain numbers, clipping, the schedule."""

import math

import numpy as np
import pytest
from conftest import refused

from minifpt import functional as F
from minifpt.layers import Linear, Parameter
from minifpt.optim import Adam, clip_grad_norm, cosine


def parameters(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [Parameter(rng.standard_normal(s).astype(dtype), "mlp")
            for s in [(3, 2), (4,), (2, 2, 2)]]


def give_gradients(ps, step, size=1.0):
    rng = np.random.default_rng([9, step])
    for p in ps:
        p.grad = (size * rng.standard_normal(p.data.shape)).astype(p.data.dtype)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_in_place_is_the_textbooks_formula(decay):
    ps, (b1, b2), lr, eps = parameters(), (0.8, 0.95), 0.02, 1e-4
    arrays, optimizer = [p.data for p in ps], Adam(ps, lr, (b1, b2), eps, decay)
    state = [(p.data.copy(), np.zeros_like(p.data), np.zeros_like(p.data)) for p in ps]
    for t in range(1, 31):
        give_gradients(ps, t)
        optimizer.step()
        for i, p in enumerate(ps):
            x, m, v = state[i]
            if p.data.ndim > 1:
                x = x - lr * decay * x
            state[i] = F.adam(x, p.grad, m, v, t, lr, (b1, b2), eps)
            np.testing.assert_allclose(p.data, state[i][0], rtol=1e-12)
            assert p.data is arrays[i]


def test_parameters_without_a_gradient_are_skipped():
    """Not even weight decay moves them."""
    ps = parameters()
    before = ps[0].data.copy()
    optimizer = Adam(ps, weight_decay=0.5)
    for t in range(3):
        give_gradients(ps[1:], t)
        optimizer.step()
    np.testing.assert_array_equal(ps[0].data, before)
    give_gradients(ps, 3)
    optimizer.step()
    assert (ps[0].data != before).all()


def test_clip_grad_norm_scales_to_the_limit():
    ps = parameters()
    assert clip_grad_norm(ps, 1.0) == clip_grad_norm([], 1.0) == 0.0  # nothing has a gradient
    give_gradients(ps[:2], 0)
    grads = [p.grad.copy() for p in ps[:2]]
    norm = math.sqrt(sum((g**2).sum() for g in grads))
    assert clip_grad_norm(ps, 2 * norm) == pytest.approx(norm, rel=1e-12)
    np.testing.assert_equal([p.grad for p in ps[:2]], grads)          # within: untouched
    got = clip_grad_norm(ps, norm / 3)
    assert got == pytest.approx(norm, rel=1e-12) and isinstance(got, float)
    for p, g in zip(ps, grads, strict=False):
        np.testing.assert_allclose(p.grad, g / 3)
    assert ps[2].grad is None
    for limit in (math.inf, 1e9):
        assert clip_grad_norm(ps, limit) == pytest.approx(norm / 3, rel=1e-12)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-21, 1.4e19, 1e20, 3e38])
def test_clip_grad_norm_is_right_at_the_edges(size):
    """Of two gradients whose squares float32 does not hold, or not the sum of them."""
    g = np.array([3.0, -4.0, 0.0], np.float32) * np.float32(size / 4)
    exact = math.sqrt(2 * sum(float(x) ** 2 for x in g))
    for limit in (exact / 2, 2 * exact):
        ps = [Parameter(np.ones(3, np.float32), "ln") for _ in range(2)]
        for p in ps:
            p.grad = g.copy()
        assert clip_grad_norm(ps, limit) == pytest.approx(exact, rel=1e-6)
        for p in ps:
            np.testing.assert_allclose(p.grad, g * min(1.0, limit / exact), rtol=1e-6, atol=2e-45)
            assert p.grad.dtype == np.float32


def test_cosine_falls_from_one_to_its_floor():
    assert cosine(0, 100) == 1.0
    assert cosine(100, 100) == pytest.approx(0.1)
    assert cosine(50, 100, floor=0.0) == pytest.approx(0.5)
    assert cosine(100, 100, floor=0.3) == pytest.approx(0.3)
    assert [cosine(s, 100, warmup=4) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine(55, 100, warmup=10) == pytest.approx(0.55)          # half way after the warm-up
    assert cosine(100, 100, warmup=10) == pytest.approx(0.1)
    factors = [cosine(s, 100, warmup=10) for s in range(10, 101)]
    assert factors == sorted(factors, reverse=True)


def test_the_paper_s_numbers_are_the_defaults():
    """lr 0.001, betas 0.9 and 0.999, eps 1e-8, no decay."""
    optimizer = Adam(parameters())
    assert (optimizer.lr, optimizer.betas, optimizer.eps) == (1e-3, (0.9, 0.999), 1e-8)
    assert optimizer.weight_decay == 0


def with_gradient(grad, **frozen):
    """A parameter of two numbers with this gradient."""
    p = Parameter(np.ones(2), "mlp")
    p.grad, p.frozen_columns = grad, frozen.get("columns", ())
    return p


P = with_gradient(None)


@pytest.mark.parametrize("call, message", [
    *[(lambda options=options: Adam([P], **options), f"^Adam: .*{message}")
      for options, message in (
        ({"lr": "x"}, "lr is 'x', expected a positive number"), ({"lr": math.nan}, "lr is nan"),
        ({"betas": (2, 0.9)}, "a beta is 2, expected"), ({"betas": "ab"}, "expected two below 1"),
        ({"betas": (0.9,)}, "expected two below 1"), ({"betas": (0.9, 1)}, "a beta is 1, expected"),
        ({"betas": (-1, 0.9)}, "a beta is -1"), ({"betas": 0.9}, "the betas are 0.9, expected two"),
        ({"eps": 0}, "eps is 0"), ({"weight_decay": "a"}, "weight_decay is 'a'"))],
    *[(lambda wrong=wrong: Adam(wrong), "expected a list of Parameter")
      for wrong in ([np.ones(3)], [P, 3], 5, Linear(2, 3))],
    (lambda: clip_grad_norm([1, "a"], 1.0), "expected a list of Parameter"),
    *[(lambda grad=grad, use=use: use([with_gradient(grad)]), f"the gradient is an? .*{message}")
      for use in (lambda ps: Adam(ps).step(), lambda ps: clip_grad_norm(ps, 1.0))
      for grad, message in ((np.ones(3), r"float64 and shape \(3,\), expected .* \(2,\)"),
                            (np.ones(2, complex), "of complex128"),
                            (np.full(2, 250, np.uint8), "of uint8"))],    # its square is 36
    (lambda: Adam([with_gradient(np.ones(2), columns=(slice(1),))], weight_decay=0.1).step(),
     "weight decay would change frozen columns"),
    (lambda: clip_grad_norm([P], -1), "max_norm is -1, expected a positive number"),
    (lambda: cosine(11, 10), "step must be .* at most 10"),
    *[(lambda v=v: cosine(*v), f"cosine: {name} (must be|is)")
      for name, v in (("step", ("1", 9)), ("steps", (1, None)), ("warmup", (1, 9, -1)),
                      ("floor", (1, 9, 1, np.nan)), ("step", (np.array(["a", "b"]), 9)))]])
def test_wrong_arguments_are_refused(call, message):
    with refused(message):
        call()


def test_a_refused_step_is_not_counted():
    optimizer = Adam([with_gradient(np.ones(3))])
    with refused("the gradient is"):
        optimizer.step()
    assert optimizer.t == 0


def test_a_parameter_that_is_named_twice_counts_once():
    p, q = (Parameter(np.zeros(50_000), "mlp") for _ in range(2))
    p.grad, q.grad = np.ones(50_000), np.ones(50_000)
    assert clip_grad_norm([p, p], 1.0) == clip_grad_norm([q], 1.0)
    Adam([p, p], 1e-3).step()
    Adam([q], 1e-3).step()
    np.testing.assert_array_equal(p.data, q.data)


def test_clipping_scales_an_array_of_two_parameters_once():
    p, q = (Parameter(np.zeros((2, 2)), "mlp") for _ in range(2))
    p.grad = np.full((2, 2), 2.0)
    q.grad = p.grad.T
    assert clip_grad_norm([p, q], 1.0) == pytest.approx(math.sqrt(32))
    np.testing.assert_allclose([p.grad, q.grad], 2 / math.sqrt(32))
