"""The checker itself: it must pass what is right, and refuse and describe what is wrong."""

import re
import warnings

import numpy as np
import pytest
from conftest import refused
from gradient_cases import (
    LINEAR,
    NORM,
    RIGHT,
    TIES,
    WRONG,
    Silent,
    Unscaled,
    X,
    changed,
    maximum,
    maximum_backward,
    normal,
    product,
    product_backward,
    square,
    square_backward,
    with_cache,
)
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import functional as F
from minifpt.gradients import GradcheckReport, gradcheck
from minifpt.layers import MLP, LayerNorm, Linear


@pytest.mark.parametrize("arguments, options, words", [
    pytest.param(*case, id=name, marks=[pytest.mark.slow] if "entry of" in name else [])
    for name, case in WRONG.items()])
def test_a_wrong_backward_pass_is_refused_and_described(arguments, options, words):
    try:
        report = gradcheck(*arguments, **options)
        assert not report
        text = str(report)
    except ValueError as e:
        text = str(e)
        assert "\n" not in text
    for word in words:
        assert re.search(word, text), (word, text)


@pytest.mark.parametrize("arguments, options", [
    pytest.param(*case, id=name, marks=[pytest.mark.slow] if "131,072" in name else [])
    for name, case in RIGHT.items()])
def test_an_unusual_backward_pass_is_accepted(arguments, options):
    report = gradcheck(*arguments, **options)
    assert report, report


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 4)), data=st.data())
def test_worst_is_where_the_fault_is(shape, data):
    place = tuple(data.draw(st.integers(0, n - 1)) for n in shape)

    def wrong(dy, cache):
        dx = square_backward(dy, cache)
        dx[place] += 0.5 + abs(dx[place])
        return dx
    report = gradcheck(square, wrong, (normal(*shape, seed=3),))
    name, index, analytical, numerical = report.worst
    assert not report and (name, index) == ("x", place)
    assert analytical == pytest.approx(numerical + 0.5 + abs(numerical), rel=1e-6)
    # Relative to the entry, or to the gradient's own size where that is larger.
    assert 0.1 < report.max_relative_error <= (1 + 1e-9) * abs(analytical - numerical) / max(
        abs(analytical), abs(numerical))
    assert f"x[{', '.join(map(str, place))}]" in str(report)


@pytest.mark.parametrize("options, least, most", [
    ({}, 2 * 64, 2 * 64 + 20), ({"elementwise": 63, "directions": 2}, 8, 20)])
def test_small_inputs_are_checked_by_entries_and_large_ones_by_directions(options, least, most):
    dtypes, x = [], normal(64).astype(np.float32)

    def op(x):
        dtypes.append(x.dtype)
        return square(x)
    assert gradcheck(op, square_backward, x, far=None, **options)
    assert least <= len(dtypes) <= most
    assert {*dtypes} == {np.dtype(np.float64)} and x.dtype == np.float32


def test_inputs_parameters_and_options_stay_as_they_were():
    x, option, layer = X.copy(), {"n": 0}, Linear(4, 2, dtype=np.float64)
    layer.weight.data[:] = normal(4, 2)
    layer.weight.grad = grad = normal(4, 2)
    data, copy = layer.weight.data, layer.weight.data.copy()

    def op(x, option):
        option["n"] += 1
        return square(x)
    assert gradcheck(op, square_backward, (x,), option=option) and option == {"n": 0}
    assert gradcheck(layer, x)
    with pytest.raises(RuntimeError):
        gradcheck(square, lambda dy, x: (_ for _ in ()).throw(RuntimeError), (x,))
    np.testing.assert_equal([x, data], [X, copy])
    assert layer.weight.data is data and layer.weight.grad is grad and layer.bias.grad is None


def test_only_what_has_a_gradient_is_checked():
    """Not integers, not frozen parameters, not a gradient of ``None``."""
    layer = DoubledBias(5, dtype=np.float64)
    layer.bias.trainable = False
    layer.bias.grad = np.zeros(5)                         # what the wrong backward doubles
    for names, report in (
            (["w"], gradcheck(F.embedding, F.embedding_backward, (np.array([0, 2, 2]), X))),
            (["x", "b"], gradcheck(F.linear, F.linear_backward, LINEAR, need=(True, False, True))),
            (["x", "weight"], gradcheck(layer, normal(3, 5)))):
        assert report and list(report.errors) == names


def test_a_report_is_true_up_to_its_tolerance():
    for error in (1e-7, 2e-6):
        report = GradcheckReport(error, ("x", (0,), 1.0, 1.0), {"x": error}, 1e-6)
        assert bool(report) == (error < 1e-6)


class DoubledBias(LayerNorm):
    def backward(self, dy, cache):
        dx = super().backward(dy, cache)
        self.bias.grad = self.bias.grad * 2
        return dx


class Popping(DoubledBias):
    """A layer whose cache can be read once."""

    def forward(self, x):
        y, cache = super().forward(x)
        return y, iter([cache])

    def backward(self, dy, cache):
        return super().backward(dy, next(cache))


class Moving(Linear):
    def backward(self, dy, cache):
        self.weight.data += 1.0
        return super().backward(dy, cache)


class Logit(Linear):
    """A layer for numbers between 0 and 1."""

    def forward(self, x):
        y, cache = super().forward(np.log(x / (1 - x)))
        return y, (x, cache)

    def backward(self, dy, cache):
        x, cache = cache
        return super().backward(dy, cache) / (x * (1 - x))


def test_a_layer_with_a_domain_is_checked_within_it():
    x = np.random.default_rng(0).uniform(0.3, 0.9, (4, 3))
    with warnings.catch_warnings(action="error"):
        assert gradcheck(Logit(3, 2, dtype=np.float64), x)


def guarded(is_allowed):
    """The square of numbers for which ``is_allowed``."""
    def op(x):
        if not is_allowed(x).all():
            raise RuntimeError("x is not allowed")
        return square(x)
    return op


def shifted(a):
    """Write over an array."""
    a += 1.0
    return a


def clipped(x, tolerance=5.0):
    return np.clip(x, -tolerance, tolerance), x


def ties(x):
    """The largest number of each row, and which entries have it."""
    y = x.max(axis=1, keepdims=True)
    return y, x == y


def elementwise(f, slope):
    """A function of each entry and its backward pass."""
    return lambda x: (f(x), x), lambda dy, x: dy * slope(x)


def arccosh_slope(x):
    return 1 / np.sqrt(x * x - 1)


# (arguments, options, words of the report of a failed check)
FAILURES = [
    ((lambda x: (x * np.nan, x), lambda dy, x: dy, X), {},
     r"^undecided gradients\n(.|\n)*the forward pass gives nan at output\[0, 0\]: 12 of 12"),
    ((*elementwise(np.arccosh, arccosh_slope), np.array([2.0, 0.5, 3.0])), {},
     r"forward pass gives nan at output\[1\]: 1 of 3 numbers .*\nundecided: nan"),
    ((*elementwise(np.sin, lambda x: 2 * np.cos(x)), np.array([1.0, np.nan, 3.0, 4.0])), {},
     r"^wrong gradients\n(.|\n)*at output\[1\](.|\n)*x: 3 of 3 .*2 times what they should be"),
    ((*elementwise(np.sqrt, lambda x: 0.5 / np.sqrt(x)), np.array([1.0, 0.0, 4.0])), {},
     r"x: 1 of 3 entries wrong, the worst x\[1\], .*the backward pass is not finite there"),
    ((ties, lambda dy, is_top: dy * is_top, np.zeros((1, 4))), {},
     r"at a kink at once, which may be ties: analytical (\S+), numerical"),
    ((with_cache(lambda x, y: np.maximum(x, y)), lambda dy, c: (dy * (c[0] >= c[1]),) * 2, TIES,
      TIES), {}, "which may be ties"),
    ((Silent(), X), {}, "^no gradient of x: is a return missing"),
    ((product, changed(product_backward, 1, lambda *_: None), X, X), {}, "^no gradient of y"),
    ((F.linear, changed(F.linear_backward, 0, lambda *_: None), *LINEAR),
     {"need": (True, False, True)}, "^no gradient of x: "),
    ((square, lambda dy, c: c[0] * dy, normal(3)), {},
     "0.5 times what they should be\nFAIL: 5.00e-01"),
    ((lambda x: (np.round(x), None), lambda dy, _: dy, X), {},
     r"12 of 12 entries wrong, the worst x\[., .\]; they should be 0: the output does not change"),
    ((DoubledBias(4, dtype=np.float64), X), {}, "bias: 4 of 4 entries wrong"),
    ((Popping(4, dtype=np.float64), X), {}, "worst: bias"),
    ((Unscaled(), X), {}, "with moved parameters"),
    ((guarded(lambda x: x > 0), lambda dy, c: dy * c[0], np.array([1e-4, 1.0, 2.0])), {},
     "x: 3 of 3 entries wrong.* 0.5 times"),
    ((guarded(lambda x: x == x.round()), square_backward, np.array([1.0, 2.0])), {},
     "the operation raised RuntimeError: x is not allowed"),
    ((F.relu, changed(F.relu_backward, 0, lambda g, dy, c: np.where(c.x == 0, 7.0 * dy, g)),
      np.array([0.0, 1.0, -2.0])), {}, r"x\[0\] is at a kink"),
    ((clipped, lambda dy, x: dy, normal(3)), {}, "at a size of 8 of x"),
    *[((lambda x, offset=offset: (offset + x, None), lambda dy, _, factor=factor: factor * dy,
        X[:2, :3]), {}, "FAIL") for offset, factor in (
            (1e6, 1.001), (1e7, 1.1), (1e8, 2.0), (1.7e9, 1.1), (1e4, 0.0), (1e8, 0.0))]]


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
@pytest.mark.parametrize("arguments, options, words", FAILURES)
def test_assert_gradients_raises_with_the_report(arguments, options, words):
    with pytest.raises(AssertionError) as error:
        minifpt.assert_gradients(*arguments, **options)
    assert re.search(words, str(error.value)), error.value


# (arguments, options, words of the report, "" without notes)
PASSES = [
    ((square, square_backward, (normal(3),)), {}, ""),
    ((F.layer_norm, F.layer_norm_backward, NORM), {"eps": 0.3}, ""),
    ((Silent(), (X,)), {}, "x was not checked: its gradient is None"),
    ((square, lambda dy, cache: np.float32(2 * dy * cache[0]), (X,)), {},
     "the gradient of x is float32, not float64"),
    ((F.relu, F.relu_backward, (np.array([0.0, 1.0, -2.0]),)), {},
     r"x\[0\] is at a kink: below it the slope is"),
    ((F.relu, F.relu_backward, (np.zeros(3),)), {}, r"x\[0\] is at a kink"),
    ((maximum, maximum_backward, (np.zeros((2, 4)),)), {}, r"x\[0, 0\] is at a kink"),
    ((ties, lambda dy, is_top: dy * is_top / is_top.sum(axis=1, keepdims=True),
      (np.zeros((2, 4)),)), {}, r"x\[0, 0\] is at a kink"),
    *[((*elementwise(f, slope), (np.array([0.2, 0.9]),)), {}, "not checked at a size of 8 of x: .*"
       "the output is not finite, or above") for f, slope in (
           (lambda x: np.sinh(60 * x), lambda x: 60 * np.cosh(60 * x)),
           (lambda x: x**200, lambda x: 200 * x**199))],
    ((guarded(lambda x: abs(x) <= 5), square_backward, (normal(4),)), {},
     "not checked at a size of 8 of x: RuntimeError: x is not"),
    *[((guarded(lambda x: abs(x) <= 5), square_backward, (normal(4),)), {"far": far}, "")
      for far in (4.0, None)],
    # An option that an operation lacks is the check's.
    ((clipped, lambda dy, x: dy, (normal(3),)), {"far": None}, ""),
    ((clipped, lambda dy, x: dy, (normal(3),)), {"tolerance": 9.0}, ""),
    *[((lambda x, offset=offset: (offset + x, None), lambda dy, _: dy, (X[:2, :3],)), {}, "")
      for offset in (1e6, 1e7, 1e8, 1.7e9)]]


@pytest.mark.parametrize("arguments, options, words", PASSES)
def test_what_a_passed_check_left_out_is_noted(arguments, options, words):
    report = gradcheck(*arguments, **options)
    assert report and bool(report.notes) == bool(words) and re.search(words, str(report)), report
    assert repr(report) == str(report) and "np.float64" not in repr(report)


@pytest.mark.parametrize("arguments, options", [
    ((Silent(), X), {"need": (False,)}), ((Silent(), (X,)), {"need": [False]}),
    ((F.linear, F.linear_backward, *LINEAR), {"need": (True, False, True)}),
    ((F.linear, F.linear_backward, LINEAR), {}), ((F.linear, F.linear_backward, [*LINEAR]), {}),
    ((Linear(4, 2, np.float64), (X,)), {})])
def test_inputs_may_be_a_tuple_or_follow_one_by_one(arguments, options):
    minifpt.assert_gradients(*arguments, **options)
    assert gradcheck(*arguments, **options)


def test_a_wrong_dx_inside_a_model_is_placed():
    class Wrong(MLP):
        def backward(self, dy, cache):
            return 1.1 * super().backward(dy, cache)
    trunk = minifpt.GPT2(minifpt.GPT2Config(2, 1, 4, 3, 1), dtype=np.float64)
    trunk.h[1].mlp.__class__ = Wrong
    report = gradcheck(trunk, normal(1, 3, 4), elementwise=1, directions=1)
    assert "all from it on are right" in report.notes[-1] and "h.1.mlp.c_fc" in report.notes[-1]


RNG = np.random.default_rng(0)


class Gate:
    """A class that keeps its cache in itself."""

    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, dy):
        return 2 * self.x * dy


GATE = Gate()


@pytest.mark.parametrize("arguments, options, message", [
    (arguments, {"epz": 1} if "epz" in message else {}, message) for arguments, message in (
        ((square, square_backward, (np.arange(3),)), "all hold integers or are empty, .*x.astype"),
        ((square, square_backward, (1j * X,)), "x is .*its real and its imaginary part"),
        ((F.embedding, F.embedding_backward, (None, X)), "ids is None, expected real num"),
        ((square, square_backward, ([[1.0], [2.0, 3.0]],)), "x is .*expected real numbers"),
        ((lambda x: x * x, square_backward, X), r"ndarray, expected \(output, cache\)"),
        ((Gate().forward, Gate().backward, X), r"keeps its cache is lambda \*x"),
        ((lambda x: (GATE.forward(x), 0), lambda dy, _: GATE.backward(dy), X),
         "two backward passes of one cache, after another forward pass, must give one gradient"),
        ((Gate(), X), "expected a function and its backward pass, or a layer, with named.*"
         r"layer.backward, and a class that keeps its cache is lambda \*x"),
        ((square, square_backward), "got no inputs, expected arrays behind the functions"),
        ((square, square_backward, X[:0]), "no input has a gradient .* or are empty"),
        ((lambda x: (x[:0], x), lambda dy, x: 0 * x, X), "the output is empty"),
        ((lambda x: (x, x, x), square_backward, X), "several outputs are"),
        ((lambda x: (1j * x, x), square_backward, X), "the output is .*imaginary part"),
        ((lambda x: ((x, x.argmax()), x), square_backward, X), "results in the cache"),
        ((lambda x: (x * RNG.random(4), x), square_backward, X),
         "not deterministic: pass a generator with a seed"),
        ((5, 6, (1.0,)), "expected a function and its backward pass"),
        ((Linear(4, 2, np.float64), X), "no option 'epz' .did you mean 'eps'"),
        ((square, square_backward, X), "no option 'epz' .did you mean 'eps'"),
        ((lambda x: (np.float32(x) ** 2, x), square_backward, X),
         "the output is float32, not float64, and its rounding hides errors"),
        ((lambda x: (1e13 + x, None), lambda dy, _: dy, X), "rounding hides it"),
        ((Linear(4, 2), X), "dtype=np.float64"),
        ((F.linear, lambda dy, cache: dy, LINEAR), r"1 gradients, expected 3 \(x, w, b\)"),
        ((F.linear, changed(F.linear_backward, 2, lambda g, *_: g[:1]), LINEAR),
         r"gradient of b has shape \(1,\), expected \(4,\)"),
        ((F.gelu, lambda dy, cache: None, X), "no input has a gradient to check: each is None"),
        ((lambda x: (np.sin(x), x), lambda dy, x: dy * np.cos(shifted(x) - 1), X),
         "the backward pass changes the inputs of the forward pass: let it work on a copy$"),
        ((lambda x: (np.sin(x), {"h": [x.copy()]}),
          lambda dy, c: dy * np.cos(shifted(c["h"][0]) - 1), X),
         "the backward pass changes its cache: let it work on a copy$"),
        ((Moving(4, 2, np.float64), X), "the backward pass changes the inputs"))]
    + [((Linear(4, 2, np.float64), X), {"rng": 0}, "no option 'rng' .did you mean 'seed'"),
       *((square_arguments, {name: value}, f"(the )?{name} ")
         for square_arguments in [(square, square_backward, X)] for name, value in (
             ("eps", 0), ("tolerance", np.inf), ("seed", -1), ("elementwise", "3"),
             ("directions", 0), ("far", 0), ("names", ["a", "b"])))])
def test_what_cannot_be_checked_says_why(arguments, options, message):
    with refused(f"^gradcheck: .*{message}"):
        gradcheck(*arguments, **options)
