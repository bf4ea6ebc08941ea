"""The checker itself: it must pass what is right, and refuse and describe what is wrong."""

import functools
import re
import warnings
from contextlib import suppress

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
    Y,
    batch_norm,
    batch_norm_backward,
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
from minifpt.gradients import diagnosis, examples, gradcheck
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


# (arguments, options, words of the report of a failed check)
FAILURES = [
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
       "output.* is .*expected a finite number") for f, slope in (
           (lambda x: np.sinh(60 * x), lambda x: 60 * np.cosh(60 * x)),
           (lambda x: x**200, lambda x: 200 * x**199))],
    ((guarded(lambda x: abs(x) <= 5), square_backward, (normal(4),)), {},
     "not checked at a size of 8 of x: RuntimeError: x is not"),
    *[((guarded(lambda x: abs(x) <= 5), square_backward, (normal(4),)), {"far": far}, "")
      for far in (4.0, None)],
    # An option that an operation lacks is the check's.
    ((clipped, lambda dy, x: dy, (normal(3),)), {"far": None}, ""),
    ((clipped, lambda dy, x: dy, (normal(3),)), {"tolerance": 9.0}, ""),
    *[((lambda x, offset=offset: (offset + x, None), lambda dy, _: dy, (X[:2, :3],)), {}, words)
      for offset, words in ((1e6, ""), (1e7, ""), (1e8, "rounding an error of x below 4e-04"),
                            (1.7e9, "rounding an error of x below 7e-03"))]]


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
        ((F.embedding, F.embedding_backward, (None, X)), "ids is None, expected real num"),
        ((square, square_backward, ([[1.0], [2.0, 3.0]],)), "x is .*expected real numbers"),
        ((lambda x: x * x, square_backward, X), r"ndarray, expected \(output, cache\)"),
        ((Gate().forward, Gate().backward, X), r"keeps its cache is lambda \*x"),
        ((lambda x: (GATE.forward(x), 0), lambda dy, _: GATE.backward(dy), X),
         "two backward passes of one cache, after another forward pass, must give one gradient"),
        ((Gate(), X), "expected a function and its backward pass, or a layer, with named.*"
         r"layer.backward, and a class that keeps its cache is lambda \*x"),
        ((square, square_backward), "no input has a gradient .*expected floating-point"),
        ((*elementwise(np.arccosh, np.cos), np.array([2.0, 0.5])), r"output\[1\] is nan, expected"),
        ((lambda x: ((x, x / 0), x), lambda dy, x: dy[0], X), r"output 1\[0, 0\] is (-)?inf"),
        ((square, square_backward, X[:0]), "no input has a gradient .* or are empty"),
        ((lambda x: (x[:0], x), lambda dy, x: 0 * x, X), "the output is empty"),
        ((lambda x: (x, x, x), square_backward, X), "several outputs are"),
        ((square, lambda dy, c: 1j * dy, X), "gradient of x is .*its input is real"),
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
        ((F.gelu, lambda dy, cache: (dy, dy), X), r"2 gradients, expected 1 \(x\)"),
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
       ((square, square_backward, X), {"tol": 0.1}, "no option 'tol' .did you mean 'tolerance'"),
       *((square_arguments, {name: value}, f"(the )?{name} ")
         for square_arguments in [(square, square_backward, X)] for name, value in (
             ("eps", 0), ("tolerance", np.inf), ("seed", -1), ("elementwise", "3"),
             ("directions", 0), ("far", 0), ("names", ["a", "b"])))])
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero")
def test_what_cannot_be_checked_says_why(arguments, options, message):
    with refused(f"^gradcheck: .*{message}"):
        gradcheck(*arguments, **options)


# ------------------------------------------------------------------------ ties and kinks


def largest_of_pairs(x):
    """The larger one of each pair of max(x, 0), and which entries it is."""
    pairs = np.maximum(x, 0).reshape(-1, 2)
    y = pairs.max(axis=1, keepdims=True)
    return y.ravel(), (x, pairs == y)


def largest_of_pairs_backward(dy, cache, share=lambda is_top: is_top):
    x, is_top = cache
    return (share(is_top) * dy[:, None]).ravel() * (x > 0)


SHARES = {"to the first": lambda is_top: is_top & (np.cumsum(is_top, axis=1) == 1),
          "in halves": lambda is_top: is_top / is_top.sum(axis=1, keepdims=True)}
TIED = [[0.5, 0.5, 0, -1], [0.5, 0.5], [0.5, 0.5, 0, 0], [-1, 0, 0.5, 0.5, 0, 0, 1, 2],
        [0.5, 0.5, 0, 0] * 20]


@pytest.mark.parametrize("x", TIED, ids=map(len, TIED))
@pytest.mark.parametrize("is_scalar", [False, True])
def test_a_tie_is_found_beside_other_kinks(x, is_scalar):
    """The whole gradient to both ties is wrong; in halves, or to one of them, it is right."""
    def forward(x):
        y, cache = largest_of_pairs(x)
        return (y.sum(), cache) if is_scalar else (y, cache)

    def backward(share):
        return lambda dy, cache: largest_of_pairs_backward(
            dy * np.ones(len(cache[1])), cache, share)
    for seed in range(6 if len(x) < 9 else 2):
        report = gradcheck(forward, backward(lambda is_top: is_top), np.array(x), seed=seed)
        assert not report and "which may be ties: analytical" in str(report)
        for share in SHARES.values():
            assert gradcheck(forward, backward(share), np.array(x), seed=seed)


@pytest.mark.parametrize("shares, is_right", [
    ((0.5, 0.5), True), ((1.0, 0.0), True), ((0.5, 1.0), False), ((1.0, 0.5), False),
    ((1.0, 1.0), False), ((0.0, 0.5), False)])
def test_a_tie_of_two_inputs_counts_also_where_one_of_them_looks_right(shares, is_right):
    """Half of the gradient equals the central difference there."""
    x = np.array([1.0, 2.0, 3.0])

    def backward(dy, cache):
        x, y = cache
        return [dy * np.where(x == y, share, a > b)
                for share, a, b in zip(shares, (x, y), (y, x), strict=True)]
    for seed in range(10):
        report = gradcheck(with_cache(lambda x, y: np.maximum(x, y)), backward, x, x.copy(),
                           seed=seed)
        assert bool(report) == is_right, report


# ------------------------------------------------------------------- what the second look draws


@pytest.mark.parametrize("weight", [
    np.ones((4, 4)), np.eye(4), 2 * np.eye(4), np.zeros((4, 4)), np.ones((30, 30)), np.eye(30),
    np.add.outer(np.arange(4.0), np.arange(4.0))],
    ids=["ones", "identity", "twice", "zeros", "many ones", "large identity", "symmetric"])
def test_a_special_weight_hides_no_missing_transpose(weight):
    x = normal(3, len(weight))
    forward = with_cache(lambda x, w: x @ w)
    for seed in range(6):
        for w, is_right in (lambda w: w, False), (np.transpose, True):
            report = gradcheck(forward, lambda dy, c, w=w: (dy @ w(c[1]), c[0].T @ dy), x, weight,
                               seed=seed)
            assert bool(report) == is_right, report


@pytest.mark.parametrize("f, slope, x", [
    (np.log, lambda x: 1 / x, [1.0, 2.0, 0.5]), (np.sqrt, lambda x: 0.5 / np.sqrt(x), [1.0, 4.0]),
    (np.square, lambda x: 2 * x, [1.0, 0.0])])
def test_the_second_look_stays_in_the_domain(f, slope, x):
    """What was not negative is not drawn negative."""
    seen = []
    gradcheck(lambda x: (seen.append(x.min()), (f(x), x))[1],
              lambda dy, x: dy * slope(x), np.array(x))
    assert min(seen) >= -0.01


# ------------------------------------------------------------------------------- float32


def float32_inside(f, slope):
    return (lambda x: (f(np.float32(x)).astype(float), x)), lambda dy, x: dy * slope(x)


@pytest.mark.parametrize("pair", [
    float32_inside(np.tanh, lambda x: 1 / np.cosh(x) ** 2), float32_inside(np.exp, np.exp),
    (lambda x: (np.float32(x).astype(float) * np.pi, x), lambda dy, x: np.pi * dy),
    (lambda x: (np.sum(np.float32(x) ** 2, dtype=float), x), lambda dy, x: 2 * dy * x)])
def test_an_operation_in_float32_inside_is_called_so(pair):
    with refused("twelfth digit of x: the operation computes in float32 inside.*tolerance=1e-2"):
        gradcheck(*pair, X)
    assert gradcheck(*pair, X, tolerance=1e-2)
    assert not gradcheck(pair[0], lambda dy, x: 1.1 * pair[1](dy, x), X, tolerance=1e-2)


@pytest.mark.parametrize("f", [
    np.round, np.floor, np.sign, lambda x: x > 0.1, lambda x: 1e6 + x, np.sin,
    lambda x: np.cosh(x - X), lambda x: x[0, 0] + 0 * x])
def test_a_wrong_gradient_is_not_blamed_on_float32(f):
    """Of steps, of a large constant, or of one number that fills all."""
    assert not gradcheck(lambda x: (1.0 * f(x), x), lambda dy, x: 3 * dy, X)


def test_a_gradient_with_float32_s_precision_is_noted():
    report = gradcheck(square, lambda dy, c: np.float32(2 * dy * c[0]).astype(float), X)
    assert report and "the gradient of x is float32, not float64" in str(report)
    assert not gradcheck(square, square_backward, np.round(X, 1)).notes


# ---------------------------------------------------------------------------- large inputs


@pytest.mark.parametrize("work, most", [(1 << 28, 1300), (1 << 22, 500)])
def test_the_search_in_a_large_input_has_a_limit_that_the_report_names(work, most, monkeypatch):
    monkeypatch.setattr(diagnosis, "MOST_WORK", work)
    n, calls = 300, []
    x, w = normal(2, n), normal(n, n, seed=1) / n

    def forward(x, w):
        calls.append(0)
        return x @ w, (x, w)
    right = gradcheck(forward, lambda dy, c: (dy @ c[1].T, c[0].T @ dy), x, w, far=None)
    n_right = len(calls)
    report = gradcheck(forward, lambda dy, c: (dy @ c[1].T, 1.1 * c[0].T @ dy), x, w, far=None)
    assert right and not report and len(calls) - n_right < most
    assert re.search(rf"w: \d+ of \d+ sampled entries wrong .it has {n * n:,}., .*; they are 1.1 "
                     "times", str(report))


@pytest.mark.parametrize("place", [(3, 7), (88, 41)])
def test_the_only_wrong_entry_of_a_large_input_is_found(place):
    def backward(dy, cache):
        dw = cache[0].T @ dy
        dw[place] *= 3
        return dy @ cache[1].T, dw
    report = gradcheck(lambda x, w: (x @ w, (x, w)), backward, normal(2, 90), normal(90, 90))
    assert not report and report.worst[:2] == ("w", place)


def test_no_right_entry_is_named_where_small_errors_add_up():
    rng = np.random.default_rng(0)
    report = gradcheck(lambda x, w: (x @ w, (x, w)), lambda dy, c: (dy @ c[1].T, c[0].T @ dy * (
        1 + 1e-7 * rng.standard_normal(c[1].shape))), normal(2, 90), normal(90, 90), far=None)
    assert not report and report.worst[1].startswith("direction ")
    assert re.search(r"w: none of \d+ sampled .* .it has 8,100. is wrong by itself", str(report))


# ------------------------------------------------------------ nested, complex and random inputs


def mlp(x, params):
    h = np.tanh(x @ params["in"]["w"] + params["in"]["b"])
    return h @ params["out"][0] * params["scale"], (x, params, h)


def mlp_backward(dy, cache):
    x, params, h = cache
    dh = params["scale"] * dy @ params["out"][0].T * (1 - h * h)
    return dh @ params["in"]["w"].T, {
        "in": {"w": x.T @ dh, "b": dh.sum(axis=0)}, "out": [params["scale"] * h.T @ dy],
        "scale": np.sum(dy * (h @ params["out"][0]))}


PARAMS = {"in": {"w": normal(4, 5), "b": normal(5)}, "out": [normal(5, 2)], "scale": 2.0}


def test_parameters_in_dicts_and_lists_are_one_input():
    report = gradcheck(mlp, mlp_backward, X, PARAMS)
    assert report and [*report.errors] == [
        "x", "params['in']['w']", "params['in']['b']", "params['out'][0]", "params['scale']"]

    def changed(**parts):
        return lambda dy, cache: (lambda dx, grads: (dx, grads | parts))(*mlp_backward(dy, cache))

    def wrong(dy, cache):
        dx, grads = mlp_backward(dy, cache)
        grads["in"]["b"] *= 2
        return dx, grads
    assert "params['in']['b']: 5 of 5 entries wrong" in str(gradcheck(mlp, wrong, X, PARAMS))
    report = gradcheck(mlp, changed(out=None), X, PARAMS)
    assert report.unchecked == ("params['out'][0]",)
    assert gradcheck(mlp, changed(out=None), X, PARAMS, need=(True, False)).unchecked == ()
    with pytest.raises(AssertionError, match=r"no gradient of params\['scale'\]"):
        minifpt.assert_gradients(mlp, changed(scale=None), X, PARAMS)
    for name, is_used in (("scale", True), ("other", False)):        # a key that is missing is 0
        report = gradcheck(mlp, lambda dy, cache, name=name: (lambda dx, grads: (dx, {
            key: g for key, g in grads.items() if key != name}))(*mlp_backward(dy, cache)),
            X, PARAMS | {"other": Y})
        assert bool(report) != is_used and report.unchecked == ()
        assert ("params['scale']: 1 of 1 entries wrong" in str(report)) == is_used
    with refused(r"gradient of params\['bias'\] is 0, expected what the input params is"):
        gradcheck(mlp, changed(bias=0), X, PARAMS)
    with refused(r"gradient of params\['in'\] is .*expected what the input params is"):
        gradcheck(mlp, changed(**{"in": [1.0]}), X, PARAMS)


ALONE = {                                                 # (a's and b's input, a and b, back again)
    "a dict": ({"a": X, "b": Y}, lambda p: (p["a"], p["b"]), lambda a, b: {"a": a, "b": b}),
    "a list": ([X, Y], tuple, lambda a, b: [a, b]), "a tuple": ((X, Y), tuple, lambda a, b: (a, b)),
    "a list in a tuple": ((X, [Y]), lambda p: (p[0], p[1][0]), lambda a, b: (a, [b])),
    "a dict in a list": ([{"a": X}, Y], lambda p: (p[0]["a"], p[1]), lambda a, b: [{"a": a}, b])}


@pytest.mark.parametrize("name", ALONE)
def test_one_nested_input_alone_may_have_its_gradient_alone(name):
    value, parts, together = ALONE[name]

    def forward(value):
        a, b = parts(value)
        return a * b, (a, b)
    for factor in 1.0, 1.1:
        def backward(dy, cache, factor=factor):
            return together(factor * dy * cache[1], dy * cache[0])
        for back in backward, lambda dy, cache: (backward(dy, cache),):
            assert bool(gradcheck(forward, back, (value,))) == (factor == 1.0)


def test_ids_beside_nested_parameters_need_no_gradient():
    ids, table = np.array([0, 2, 2]), {"w": normal(3, 4)}
    def forward(ids, table):
        return table["w"][ids], (ids, table["w"].shape)

    def backward(dy, cache):
        dw = np.zeros(cache[1])
        np.add.at(dw, cache[0], dy)
        return {"w": dw}
    for back in backward, lambda dy, cache: (None, backward(dy, cache)):
        assert [*gradcheck(forward, back, ids, table).errors] == ["table['w']"]


Z, W = X + 1j * Y, normal(4, 4, seed=2) + 1j * normal(4, 4, seed=3)
COMPLEX = {
    "a product": (lambda z, w: (z @ w, (z, w)),
                  lambda dy, c: (dy @ c[1].conj().T, c[0].conj().T @ dy), (Z, W)),
    "a size": (lambda z: (np.abs(z) ** 2, z), lambda dy, z: 2 * dy * z, (Z,)),
    "a transform": (lambda x: (np.fft.fft(x), x.shape[-1]),
                    lambda dy, n: (n * np.fft.ifft(dy)).real, (X,)),
    "a real and a complex output": (
        lambda z: ((z.real, 1j * z), None), lambda dy, _: dy[0] - 1j * dy[1], (Z,)),
    "in a dict": (lambda p: (p["z"] * p["x"], p), lambda dy, p: {
        "z": dy * p["x"], "x": (dy * p["z"].conj()).real}, ({"z": Z, "x": X},))}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_checked_by_their_parts(name):
    forward, backward, inputs = COMPLEX[name]
    report = gradcheck(forward, backward, inputs)
    assert report and (name == "a transform") == (".real" not in str(report))
    for wrong in (lambda g: {k: 1.01 * v for k, v in g.items()} if isinstance(g, dict) else
                  [1.01 * a for a in g] if isinstance(g, tuple) else 1.01 * g,
                  lambda g: {k: v.conj() for k, v in g.items()} if isinstance(g, dict) else
                  [a.conj() for a in g] if isinstance(g, tuple) else g.conj()):
        if name == "a transform" and "conj" in wrong.__code__.co_names:
            continue                                      # its gradient is real
        assert not gradcheck(forward, lambda dy, c, f=wrong: f(backward(dy, c)), inputs)


class Drawing(Linear):
    """A layer with a generator of its own."""

    def __init__(self):
        super().__init__(4, 2, dtype=np.float64)
        self.rng, self.weight.data = np.random.default_rng(0), normal(4, 2)

    def forward(self, x):
        return super().forward(x * (self.rng.random(x.shape) < 0.5))


def test_a_layer_with_a_generator_of_its_own_gets_advice_that_fits():
    with refused(r"let forward\(x, train, rng\) draw from rng, for which gradcheck passes"):
        gradcheck(Drawing(), X)

    class Passed(Drawing):
        def forward(self, x, train=False, rng=None):
            self.rng = rng
            mask = rng.random(x.shape) < 0.5
            y, cache = Linear.forward(self, x * mask)
            return y, (mask, cache)

        def backward(self, dy, cache):
            return Linear.backward(self, dy, cache[1]) * cache[0]
    assert gradcheck(Passed(), X)


# ------------------------------------------------------------------------------ diagnoses


def linear3(x, w, b):
    return x @ w + b, (x, w)


def linear3_backward(dy, cache):
    x, w = cache
    return dy @ w.T, np.einsum("btc,btd->cd", x, dy), dy.sum(axis=(0, 1))


CUBE = normal(3, 3, 3)
DIAGNOSES = {
    "dy @ w": ((F.linear, changed(F.linear_backward, 0, lambda g, dy, c: dy @ c.w), LINEAR),
               r"they are dy @ w, and should be dy @ w.T"),
    "in three axes": ((linear3, changed(linear3_backward, 0, lambda g, dy, c: dy @ c[1]), (
        normal(2, 3, 4), LINEAR[1], LINEAR[2])), r"they are dy @ w, and should be dy @ w.T"),
    "another axis": ((F.linear, changed(F.linear_backward, 2, lambda g, dy, c: dy.sum(axis=1)), (
        normal(4, 4), *LINEAR[1:])), "dy summed over axis 1, and should be dy summed over axis 0"),
    "no sum": ((F.linear, changed(F.linear_backward, 2, lambda g, dy, c: dy[0]), LINEAR),
               "they should be dy summed over axis 0"),
    "no factor": ((product, lambda dy, c: (dy, dy * c[0]), (X, Y)),
                  r"they are dy, and should be dy \* y"),
    "no dy": ((square, lambda dy, c: 2 * c[0], (X,)), r"are 2 \* x, and should be 2 \* dy \* x"),
    "no mask": ((lambda x: F.dropout(x, 0.5, np.random.default_rng(0)), lambda dy, c: dy, (X,)),
                r"they are dy, and should be .*dy \* cache.mask"),
    "softmax": ((F.softmax, lambda dy, c: c.y * dy, (X,)),
                r"they are dy \* cache.y: a term or a factor is missing"),
    "a residual": ((with_cache(lambda x: x + np.sin(x)), lambda dy, c: dy, (X,)),
                   "they are dy: a term or a factor is missing"),
    "the residual": ((with_cache(lambda x: x + np.sin(x)), lambda dy, c: dy * np.cos(c[0]), (X,)),
                     "they lack the term dy"),
    "dy times an input": ((with_cache(lambda x, y: x * y + np.sin(x)), lambda dy, c: (
        dy * np.cos(c[0]), dy * c[0]), (X, Y)), r"x: .* they lack the term dy \* y"),
    "a norm's factor": ((F.rms_norm, changed(F.rms_norm_backward, 0, lambda g, dy, c: g / c.rstd), (
        normal(5, 4), normal(4))), "they lack the factor cache.rstd"),
    "a norm's term": ((F.rms_norm, changed(
        F.rms_norm_backward, 0, lambda g, dy, c: dy * c.w * c.rstd), (normal(5, 4), normal(4))),
        "differ by x times one number along axis 1: a sum or mean over it is wrong"),
    "softmax's factor": ((F.softmax, lambda dy, c: dy - (dy * c.y).sum(-1, keepdims=True), (X,)),
                         "they lack the factor cache.y"),
    "a factor twice": ((F.softmax, lambda dy, c: F.softmax_backward(dy, c) * c.y, (X,)),
                       "they have the factor cache.y, and should not, or once less"),
    "the variance": ((batch_norm, functools.partial(batch_norm_backward, variance=False), (
        normal(6, 3), *LINEAR[1][:2, :3])),
        r"differ by cache\[0\] times one number along axis 0: a sum or mean over it is wrong"),
    "axes exchanged": ((with_cache(lambda x: x**3), changed(
        lambda dy, c: 3 * dy * c[0] ** 2, 0, lambda g, *_: g.swapaxes(0, 1)), (CUBE,)),
        "its axes 0 and 1 are exchanged"),
    "shifted": ((with_cache(lambda x: np.roll(x, 1, axis=1) ** 2), lambda dy, c: np.roll(
        2 * dy, 0, 1) * np.roll(c[0], 1, 1), (X,)), "it is shifted along axis 1 by 1"),
    "flipped": ((with_cache(lambda x: np.cumsum(x)), lambda dy, c: np.cumsum(dy[::-1]), (X[0],)),
                "reversed along axis 0"),
    "a kernel turned by 180 degrees": ((with_cache(lambda x: x[:, ::-1, ::-1] ** 3), lambda dy, c: (
        3 * dy * c[0][:, ::-1, ::-1] ** 2), (CUBE,)), "it is reversed along axes 1 and 2"),
    "permuted": ((lambda x: (np.sort(x), np.argsort(x)), lambda dy, i: dy[i], (normal(8),)),
                 "right in another order along axis 0"),
    "permuted rows": ((with_cache(lambda x: x[[2, 0, 1, 4, 3]] ** 2), lambda dy, c: 2 * dy * c[0][
        [2, 0, 1, 4, 3]], (normal(5, 3),)), "right in another order along axis 0"),
    "rank 1": ((with_cache(lambda x, w: np.tanh(x @ w)), lambda dy, c: (
        dy / np.cosh(c[0] @ c[1]) ** 2 @ c[1].T, c[0].T @ (dy / np.cosh(c[0] @ c[1]) ** 2)
        + np.outer(np.sin(c[0]).sum(axis=0), dy.cumsum(axis=1).sum(axis=0))), LINEAR[:2]),
        "they differ by a matrix of rank 1"),
    "clipped": ((with_cache(lambda x: 3 * x + np.sin(x)), lambda dy, c: np.clip(
        dy * (3 + np.cos(c[0])), -0.1, 0.1), (X,)), "0.1, and should be more: they are clipped")}


@pytest.mark.parametrize("name", DIAGNOSES)
def test_a_diagnosis_names_the_kind(name):
    arguments, words = DIAGNOSES[name]
    assert re.search(words, str(gradcheck(*arguments))), gradcheck(*arguments)


def test_a_wrong_gradient_gets_a_kind_or_a_place():
    """All of those that are refused by a report, and not by an error."""
    silent = []
    for name, (arguments, options, _) in WRONG.items():
        with suppress(ValueError), np.errstate(all="ignore"):
            if "entry of" not in name and not any(
                    ";" in note for note in gradcheck(*arguments, **options).notes):
                silent.append(name)
    assert silent == []


def test_attention_is_checked_with_shared_heads_of_keys(monkeypatch):
    """The gradients of neighbouring heads of queries belong to one head of keys."""
    assert examples.check("attention")
    monkeypatch.setattr(F, "sum_heads", lambda dx, n_group: dx.reshape(
        len(dx), -1, n_group, *dx.shape[2:]).sum(axis=1))
    assert not examples.check("attention")


def test_the_gradient_of_attention_s_bias_is_checked(monkeypatch):
    right = F.attention_backward
    monkeypatch.setattr(F, "attention_backward", lambda dy, cache: [
        2 * grad if np.ndim(grad) == 3 else grad for grad in right(dy, cache)])
    assert "bias" in examples.check("attention").worst[0]
