"""The checker itself: it must pass what is right and catch what is wrong."""

import warnings

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import examples, fast, tracing
from minifpt import functional as F
from minifpt.gradients import GradcheckReport, gradcheck
from minifpt.layers import MLP, LayerNorm, Linear


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def broken(op_backward, *changes):
    """The backward pass with its results changed: one function (or None) a result."""
    def wrong(dy, cache):
        grads = op_backward(dy, cache)
        grads = grads if isinstance(grads, tuple) else (grads,)
        changed = [g if f is None else f(g, dy, cache) for g, f in zip(grads, changes, strict=True)]
        return changed if len(changed) > 1 else changed[0]
    return wrong


LN = (normal(3, 5), 1 + normal(5, seed=1), normal(5, seed=2))
# Seed 0 is what many begin with, gradcheck's own seed included: its dy must not be this x.
SQUARE = (normal(4, 4), normal(4, 4, seed=1), normal(4, seed=2))


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 4)), data=st.data())
def test_worst_is_where_the_fault_is(shape, data):
    i = data.draw(st.integers(0, shape[0] - 1))
    j = data.draw(st.integers(0, shape[1] - 1))

    def wrong(dy, x):
        dx = 2 * x * dy
        dx[i, j] += 0.5 + abs(dx[i, j])
        return dx
    x = normal(*shape, seed=3)
    report = gradcheck(lambda x: (x * x, x), wrong, (x,))
    name, index, analytical, numerical = report.worst
    assert not report and (name, index) == ("x", (i, j))
    assert analytical == pytest.approx(numerical + 0.5 + abs(numerical), rel=1e-6)
    # Relative to the entry, or to the gradient's own size where that is larger.
    assert 0.1 < report.max_relative_error <= (1 + 1e-9) * abs(analytical - numerical) / max(
        abs(analytical), abs(numerical))
    assert f"x[{i}, {j}]" in str(report)


def test_small_inputs_are_checked_by_entries_and_large_ones_by_directions():
    counted = []

    def op(x):
        counted.append(1)
        return x * x, x
    for options, least, most in (({}, 2 * 64, 2 * 64 + 20),
                                 ({"elementwise": 63, "directions": 2}, 8, 20)):
        counted.clear()
        assert gradcheck(op, lambda dy, x: 2 * x * dy, normal(64), far=None, **options)
        assert least <= len(counted) <= most


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_no_number_fails(bad):
    def wrong(dy, x):
        dx = 2 * x * dy
        dx[1] = bad
        return dx
    report = gradcheck(lambda x: (x * x, x), wrong, (normal(4),))
    assert not report and report.max_relative_error == np.inf and "FAIL" in str(report)


def test_a_forward_that_is_no_number_fails():
    report = gradcheck(lambda x: (x * np.nan, x), lambda dy, x: dy, (normal(4),))
    assert not report


def test_inputs_come_back_unchanged():
    x, w, b = (a.copy() for a in SQUARE)
    gradcheck(F.linear, F.linear_backward, (x, w, b))
    np.testing.assert_equal([x, w, b], list(SQUARE))
    with pytest.raises(RuntimeError):
        gradcheck(lambda x: (x, x), lambda dy, x: (_ for _ in ()).throw(RuntimeError), (x,))
    np.testing.assert_equal(x, SQUARE[0])


def shifted(a):
    """Write over an array."""
    a += 1.0
    return a


@pytest.mark.parametrize("op, back, message", [
    (lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(shifted(x) - 1),
     "the backward pass changes the inputs of the forward pass"),
    (lambda x: (np.sin(x), {"h": [x.copy()]}), lambda dy, c: dy * np.cos(shifted(c["h"][0]) - 1),
     "the backward pass changes its cache")])
def test_a_pass_that_changes_an_array_in_place_is_refused(op, back, message):
    with pytest.raises(ValueError, match=f"^gradcheck: {message}: let it work on a copy$"):
        gradcheck(op, back, (normal(5),))


def test_a_layer_that_changes_a_parameter_is_told():
    class Changes(Linear):
        def backward(self, dy, cache):
            dx = super().backward(dy, cache)
            self.weight.data += 1.0
            return dx
    with pytest.raises(ValueError, match="the backward pass changes the inputs"):
        gradcheck(Changes(3, 2, np.float64), normal(4, 3))


@pytest.mark.parametrize("op", tracing.OPERATIONS)
def test_the_fast_forms_change_nothing_that_is_not_theirs(op):
    for pair in examples.pairs(op, np.random.default_rng(0), fast):
        assert gradcheck(*pair)


def test_float32_inputs_are_promoted():
    dtypes = set()

    def op(x):
        dtypes.add(x.dtype)
        return x**3, x
    x = normal(5).astype(np.float32)
    assert gradcheck(op, lambda dy, x: 3 * x * x * dy, (x,))
    assert dtypes == {np.dtype(np.float64)} and x.dtype == np.float32


def test_integers_stay_and_have_no_gradient():
    ids = np.array([0, 2, 2])
    report = gradcheck(F.embedding, F.embedding_backward, (ids, normal(3, 2)))
    assert report and list(report.errors) == ["w"]


def test_none_is_not_checked():
    report = gradcheck(F.linear, F.linear_backward, SQUARE, need=(True, False, True))
    assert report and list(report.errors) == ["x", "b"]
    with pytest.raises(ValueError, match="no input has a gradient to check"):
        gradcheck(F.gelu, lambda dy, cache: None, (normal(3),))


def test_missing_and_misshapen_gradients_are_refused():
    with pytest.raises(ValueError, match=r"1 gradients, expected 3 \(x, w, b\)"):
        gradcheck(F.linear, lambda dy, cache: dy, SQUARE)
    with pytest.raises(ValueError, match=r"gradient of b has shape \(1,\), expected \(4,\)"):
        gradcheck(F.linear, broken(F.linear_backward, None, None, lambda g, *_: g[:1]), SQUARE)


def test_report_is_its_tolerance():
    assert GradcheckReport(1e-7, ("x", (0,), 1.0, 1.0), {"x": 1e-7}, 1e-6)
    assert not GradcheckReport(2e-6, ("x", (0,), 1.0, 1.0), {"x": 2e-6}, 1e-6)


# ------------------------------------------------------------------------------ layers


class Broken(LayerNorm):
    def backward(self, dy, cache):
        dx = super().backward(dy, cache)
        self.bias.grad = self.bias.grad * 2
        return dx


def test_a_layer_with_a_domain_is_checked_within_it():
    class Logit(Linear):
        def forward(self, x):
            y, cache = super().forward(np.log(x / (1 - x)))
            return y, (x, cache)

        def backward(self, dy, cache):
            x, cache = cache
            return super().backward(dy, cache) / (x * (1 - x))
    x = np.random.default_rng(0).uniform(0.3, 0.9, (4, 3))
    with warnings.catch_warnings(action="error"):
        assert gradcheck(Logit(3, 2, dtype=np.float64), x)


def test_a_wrong_gradient_is_reported_where_no_second_pass_is_possible():
    class Popping(Broken):
        def forward(self, x):
            y, cache = super().forward(x)
            return y, iter([cache])

        def backward(self, dy, cache):
            return super().backward(dy, next(cache))
    assert gradcheck(Popping(4, dtype=np.float64), normal(3, 4)).worst[0] == "bias"


def test_layer_is_left_as_it_was():
    layer = Linear(3, 2, dtype=np.float64)
    layer.weight.data[:] = normal(3, 2)
    layer.weight.grad = grad = normal(3, 2)
    data, copy = layer.weight.data, layer.weight.data.copy()
    assert gradcheck(layer, normal(4, 3))
    assert layer.weight.data is data and layer.weight.grad is grad and layer.bias.grad is None
    np.testing.assert_array_equal(data, copy)


def test_layer_in_float32_is_refused():
    with pytest.raises(ValueError, match="dtype=np.float64"):
        gradcheck(Linear(3, 2), normal(4, 3))


def test_only_trainable_parameters_are_checked():
    layer = Broken(4, dtype=np.float64)
    layer.bias.trainable = False
    layer.bias.grad = np.zeros(4)                         # what the broken backward doubles
    assert set(gradcheck(layer, normal(3, 4)).errors) == {"x", "weight"}


@pytest.mark.parametrize("offset, factor", [
    (1e6, 1.001), (1e7, 1.1), (1e8, 2.0), (1.7e9, 1.1), (1e4, 0.0), (1e8, 0.0)])
def test_a_wrong_gradient_of_a_large_output_fails(offset, factor):
    x = np.random.default_rng(0).standard_normal((2, 3))
    reports = [gradcheck(lambda x: (offset + x, None), lambda dy, _, f=f: f * dy, [x])
               for f in (1.0, factor)]
    assert [bool(report) for report in reports] == [True, False]


def test_a_gradient_that_rounding_hides_is_refused():
    x = np.random.default_rng(0).standard_normal((2, 3))
    with pytest.raises(ValueError, match="rounding hides it"):
        gradcheck(lambda x: (1e13 + x, None), lambda dy, _: dy, [x])


# ------------------------------------------------------------------------------ the door


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * x * dy


def test_assert_gradients_raises_with_the_table():
    minifpt.assert_gradients(square, square_backward, normal(3))
    minifpt.assert_gradients(F.layer_norm, F.layer_norm_backward, *LN, eps=0.3)
    minifpt.assert_gradients(LayerNorm(4, dtype=np.float64), normal(3, 4))
    with pytest.raises(AssertionError, match="0.5 times what they should be\nFAIL: 5.00e-01"):
        minifpt.assert_gradients(square, lambda dy, x: x * dy, normal(3))
    with pytest.raises(AssertionError, match="bias: 4 of 4 entries wrong"):
        minifpt.assert_gradients(Broken(4, dtype=np.float64), normal(3, 4))
    report = gradcheck(square, square_backward, (normal(3),))
    assert repr(report) == str(report) and "np.float64" not in repr(report)


def test_options_that_an_operation_lacks_are_those_of_the_check():
    def clipped(x, tolerance=5.0):
        return np.clip(x, -tolerance, tolerance), x
    with pytest.raises(AssertionError, match="at a size of 8 of x"):
        minifpt.assert_gradients(clipped, lambda dy, x: dy, normal(3))
    minifpt.assert_gradients(clipped, lambda dy, x: dy, normal(3), far=None)
    minifpt.assert_gradients(clipped, lambda dy, x: dy, normal(3), tolerance=9.0)


def guarded(is_allowed):
    """The square of numbers for which ``is_allowed``."""
    def op(x):
        if not is_allowed(x).all():
            raise RuntimeError("x is not allowed")
        return x * x, x
    return op


def test_a_fault_near_the_edge_of_a_domain_is_described():
    x = np.array([1e-4, 1.0, 2.0])
    report = gradcheck(guarded(lambda x: x > 0), lambda dy, x: dy * x, (x,))
    assert not report and "x: 3 of 3 entries wrong" in str(report) and "0.5 times" in str(report)


def test_an_operation_that_takes_no_step_fails_with_its_own_error():
    report = gradcheck(guarded(lambda x: x == x.round()), square_backward, (np.array([1.0, 2.0]),))
    assert not report and "the operation raised RuntimeError: x is not allowed" in str(report)


RNG = np.random.default_rng(0)


class Gate:
    """A class that keeps its cache in itself."""

    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return 2 * self.x * dy


GATE = Gate()


@pytest.mark.parametrize("arguments, message", [
    ((square, square_backward, (np.arange(3),)), r"all hold integers, expected .* x.astype"),
    ((square, square_backward, (1j * normal(3),)), "x is .*its real and its imaginary part"),
    ((F.embedding, F.embedding_backward, (None, normal(3, 2))), "ids is None, expected real num"),
    ((square, square_backward, ([[1.0], [2.0, 3.0]],)), "x is .*expected real numbers"),
    ((lambda x: x * x, square_backward, (normal(3),)), r"ndarray, expected \(output, cache\)"),
    ((Gate().forward, Gate().backward, (normal(3),)), r"keeps its cache is lambda \*x"),
    ((lambda x: (GATE.forward(x), 0), lambda dy, _: GATE.backward(dy), (normal(3),)),
     "two backward passes of one cache, after another forward pass, must give one gradient"),
    ((Gate(), (normal(3),)), "expected a function and its backward pass, or a layer, with named"),
    ((lambda x: (x, x, x), square_backward, (normal(3),)), "several outputs are"),
    ((lambda x: (1j * x, x), square_backward, (normal(3),)), "the output is .*imaginary part"),
    ((lambda x: ((x, x.argmax()), x), square_backward, (normal(3),)), "results in the cache"),
    ((lambda x: (x * RNG.random(3), x), square_backward, (normal(3),)),
     "not deterministic: pass a generator with a seed"),
    ((Linear(3, 2, np.float64), (normal(4, 3),), None), "no option 'epz' .did you mean 'eps'"),
    ((square, square_backward, (normal(3),), None), "no option 'epz' .did you mean 'eps'"),
    ((lambda x: (np.float32(x) ** 2, x), square_backward, (normal(3),)),
     "the output is not float64, and its rounding hides errors"),
])
def test_what_cannot_be_checked_says_why(arguments, message):
    with refused(f"^gradcheck: .*{message}"):
        if arguments[-1] is None:
            gradcheck(*arguments[:-1], epz=1)
        gradcheck(*arguments)


def test_a_wrong_dx_inside_a_model_is_placed():
    class Wrong(MLP):
        def backward(self, dy, cache):
            return 1.1 * super().backward(dy, cache)
    trunk = minifpt.trunks.get("random:2x1x8", dtype=np.float64)
    trunk.h[1].mlp.__class__ = Wrong
    report = gradcheck(trunk, normal(2, 5, 8))
    assert "all from it on are right" in report.notes[-1] and "h.1.mlp.c_fc" in report.notes[-1]


def test_the_second_look_says_what_it_left_out():
    small = guarded(lambda x: abs(x) <= 5)
    report = gradcheck(small, square_backward, (normal(4),))
    assert report and "not checked at a size of 8 of x: RuntimeError: x is not" in str(report)
    assert not gradcheck(small, square_backward, (normal(4),), far=4.0).notes
    assert not gradcheck(small, square_backward, (normal(4),), far=None).notes


@pytest.mark.parametrize("x", [np.array([0.0, 1.0, -2.0]), np.zeros(3)])
def test_a_kink_is_named_and_a_wrong_slope_there_is_none_of_both(x):
    report = gradcheck(F.relu, F.relu_backward, (x,))
    assert report and "x[0] is at a kink: below it the slope is" in str(report)
    wrong = broken(F.relu_backward, lambda g, dy, c: np.where(x == 0, 7.0 * dy, g))
    report = gradcheck(F.relu, wrong, (x,))
    assert not report and "x[0] is at a kink" in str(report) and "moved" not in str(report)


def test_the_worst_of_equal_errors_is_the_largest_entry():
    grads = []

    def half(dy, x):
        grads.append(x * dy)
        return x * dy
    report = gradcheck(square, half, (normal(60),))
    assert report.worst[1] == (int(abs(grads[0]).argmax()),)


def test_a_check_leaves_an_option_as_it_was():
    option = {"n": 0}

    def op(x, option):
        option["n"] += 1
        return x * x, x
    assert gradcheck(op, square_backward, (normal(3),), option=option) and option == {"n": 0}
