"""Every operation: its backward against differences, its values against other formulas."""

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
import scipy.special
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy import ones

from minifpt import functional as F
from minifpt import tracing
from minifpt.gradients import examples, gradcheck
from minifpt.guards import shapes

NAN, INF = math.nan, math.inf
LEAD = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
SEED = st.integers(0, 2**32 - 1)


def case(name, rng, lead=(2, 3), n=6, dtype=np.float64):
    """(op, its backward, inputs) with ``n`` channels under the leading axes ``lead``."""
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    op, seed, start = name.partition(",")[0], int(rng.integers(1 << 30)), int(rng.integers(3))
    B, T = (*lead, 2, 3)[:2]
    c = n + 3                                             # two normalised channels are a step
    ids = rng.integers(0, n, lead)
    options = {"positions": {"start": start}, "rope": {"base": 50.0, "start": start},
               "last_tokens": {"n": 1 + start % T}, "dropout": {"p": 0.3}}.get(op, {}) | ({
                   "causal": False} if "to all" in name else {}) | ({
                       "p": 0.3} if ", dropped" in name else {})
    x = normal(*lead, n)
    H, G = 4, 1 if "1 head" in name else 2 if "2 heads" in name else 4      # of queries, of keys
    S = T + 3 * ("more keys" in name)
    inputs = {
        "linear": lambda: (x, normal(n, 3), normal(3)), "embedding": lambda: (ids, normal(n, 4)),
        "bias": lambda: (x, normal(n)), "unembedding": lambda: (x, normal(4, n)),
        "positions": lambda: (normal(B, T, n), normal(start + T + 1, n)),
        "layer_norm": lambda: (normal(*lead, c), normal(c), normal(c)),
        "rms_norm": lambda: (normal(*lead, c), normal(c)), "multiply": lambda: (x, x[::-1] + 1),
        "rope": lambda: (normal(B, 3, T, 2 * n),),
        "attention": lambda: (normal(B, H, T, n), *normal(2, B, G, S, n), *(
            [normal(H, T, S)] if "biased" in name else [])),
        # Where relu has its kink there is no gradient to compare with.
        "relu": lambda: (x + np.copysign(0.01, x).astype(dtype),),
        "lstm": lambda: (normal(B, T, n), normal(n, 12), normal(3, 12), normal(12)),
        "last_tokens": lambda: (normal(B, T, n),),
        # Of a loss of 1e-13 differences show its rounding alone.
        "cross_entropy": lambda: (x, ids)}.get(op, lambda: (2 * x,))()

    def forward(*inputs, **more):
        if "p" in options:
            more["rng"] = np.random.default_rng(seed)
        if "biased" in name:
            *inputs, more["bias"] = inputs
        return vars(F)[op](*inputs, **options, **more)
    return forward, vars(F)[f"{op}_backward"], inputs


ATTENTIONS = ["".join(["attention", *parts]) for parts in itertools.product(
    ["", ", 2 heads of keys", ", 1 head of keys"], ["", ", more keys"], ["", ", to all"],
    ["", ", biased"], ["", ", dropped"])]
OTHERS = [op for op in tracing.OPERATIONS if op != "attention"]
every_operation = pytest.mark.parametrize("op", tracing.OPERATIONS)


@every_operation
def test_gradients_are_right(op):
    """The first test of all, see ``conftest.py``: of a few examples, so that it fails at once."""
    report = examples.check(op)
    assert report, f"functional.{op} and functional.{op}_backward do not agree\n{report}"


# Every fifth of the forms of attention has each pair of options.
@pytest.mark.parametrize("name", [
    *OTHERS, *ATTENTIONS[::5], "attention, dropped", "attention, to all",
    "attention, 2 heads of keys, more keys, biased, dropped"])
@given(seed=SEED, lead=LEAD, n=st.integers(1, 5))
def test_backward_equals_differences(name, seed, lead, n):
    op, op_backward, inputs = case(name, np.random.default_rng(seed), lead, n)
    report = gradcheck(op, op_backward, inputs, elementwise=12, directions=2)
    assert report.max_relative_error <= 1e-6, str(report)


@pytest.mark.parametrize("name", OTHERS + ATTENTIONS)
def test_float32_stays_float32_and_nothing_is_written_to(name, float32_only, arrays_in):
    """A cache may be read twice, and neither inputs nor dy belong to the operation."""
    rng = np.random.default_rng(3)
    op, op_backward, inputs = case(name, rng, dtype=np.float32)
    before = [x.copy() for x in inputs]
    y, cache = op(*(float32_only(x) if x.dtype == np.float32 else x for x in inputs))
    dy = float32_only(rng.standard_normal(y.shape)) if np.ndim(y) else 0.7
    dy_before = np.copy(dy)
    grads = op_backward(dy, cache)
    np.testing.assert_equal(op_backward(dy, cache), grads)
    np.testing.assert_equal([dy, *inputs], [dy_before, *before])
    floats = [a for a in arrays_in([y, cache, grads]) if a.dtype.kind == "f"]
    assert floats and {a.dtype for a in floats} == {np.dtype(np.float32)}


# The number of gradients of each operation that can leave some out, and which of them read a field
# of the cache.
NEED = {"linear": (3, {"x": [1]}), "unembedding": (2, {"x": [1]}),
        "lstm": (4, {"x": [1], "hidden": [2]})}


@pytest.mark.parametrize("name, need", [(name, need) for name, (n, _) in NEED.items()
                                        for need in itertools.product([True, False], repeat=n)])
def test_only_needed_gradients_are_computed(name, need):
    """What is not needed is None, and what only it would read is not kept."""
    op, op_backward, inputs = case(name, np.random.default_rng(1))
    whole, cache = op(*inputs)
    dy = np.random.default_rng(2).standard_normal(whole.shape)
    grads = op_backward(dy, cache)
    y, cache = op(*inputs, need=need)
    np.testing.assert_array_equal(y, whole)
    for key, readers in NEED[name][1].items():
        assert (getattr(cache, key) is not None) == any(need[i] for i in readers), key
    np.testing.assert_equal(op_backward(dy, cache), tuple(
        grad if is_needed else None for grad, is_needed in zip(grads, need, strict=True)))


# --------------------------------------------------------------------------- refusals


@every_operation
def test_numbers_of_another_kind_or_shape_are_refused(op):
    """An axis whose letter stands twice in the declaration has one size.  uint8 would wrap around
    in softmax, and complex numbers have no gradient here."""
    inputs, options = examples.examples(op, np.random.default_rng(0))[0]
    text = vars(F)[op].__doc__.splitlines()[-1].partition(" -> ")[0]
    letters = [[*axes.replace("...", ".").replace(", ", ",").rstrip(",").split(",")]
               for _, axes in re.findall(r"(\w+) \((.*?)\)", text)][:len(inputs)]
    for i, x in enumerate(inputs):
        rest = sum(letters[:i] + letters[i + 1:], [])
        bad = [x[axis * (slice(None),) + (slice(-1),)] for letter, axis in zip(
            letters[i][::-1], range(x.ndim - 1, -1, -1), strict=False) if letter in rest]
        bad += [x.tolist(), *map(x.astype, (complex, str, object, bool))]
        bad += [x.astype(np.uint8)] if x.dtype.kind == "f" else []
        for array in bad:
            with refused(f"^{op}: .*(has shape|ha(s|ve) type .*expected an array of)"):
                vars(F)[op](*inputs[:i], array, *inputs[i + 1:], **examples.fresh(options))


@every_operation
def test_a_dy_of_another_kind_or_shape_is_refused(op):
    rng = np.random.default_rng(4)
    inputs, options = examples.examples(op, rng)[0]
    y, cache = vars(F)[op](*inputs, **examples.fresh(options))
    shapes = {np.shape(y)[:axis] + (1,) + np.shape(y)[axis + 1:] for axis in range(np.ndim(y))}
    shapes |= {np.shape(y)[1:], (1,), np.shape(y)[1::-1] + np.shape(y)[2:], (9, *np.shape(y)[1:])}
    for dy in [*map(rng.standard_normal, shapes - {np.shape(y)}), np.atleast_1d(y).tolist(), None,
               *map(np.asarray(y).astype, (np.uint8, bool, complex, str, object, "m8[s]"))]:
        with refused("has shape|has type"):
            vars(F)[f"{op}_backward"](dy, cache)


@every_operation
def test_a_cache_of_another_operation_is_refused(op):
    for cache in (None, (), {}, "x", F.PositionsCache(1, 2, 3)._asdict(), ones(3),
                  F.LinearCache(ones(3), ones(3), 3) if op != "linear" else F.SoftmaxCache(1)):
        with refused(f"^the gradient: the cache is .*, expected the .*Cache that {op} ret"):
            vars(F)[f"{op}_backward"](ones(3), cache)


X, SCALE, HEADS = np.ones((2, 3, 4), "f4"), np.ones(4, "f4"), np.ones((2, 2, 3, 4), "f4")
QKV = HEADS, HEADS, HEADS


@pytest.mark.parametrize("call, name, values", [
    (lambda v: F.layer_norm(X, SCALE, SCALE, v), "eps", (None, "1", -1, NAN, SCALE, True, [1e-5])),
    (lambda v: F.rms_norm(X, SCALE, v), "eps", (None, INF, 1j)),
    (lambda v: F.rope(HEADS, v), "base", (None, "1", 0, -1, INF, SCALE)),
    (lambda v: F.rope(HEADS, start=v), "start", (None, 1.5, NAN, "1", True)),
    (lambda v: F.positions(X, np.ones((9, 4), "f4"), v), "start", (1.0, True, [1])),
    (lambda v: F.attention(*QKV, v), "p", (None, NAN, 1, HEADS)),
    (lambda v: F.attention(*QKV, 0.5, v), "rng", (None, 1, np.random)),
    (lambda v: F.attention(*QKV, causal=v), "causal", (None, 1, "False", HEADS)),
    (lambda v: F.last_tokens(X, v), "n", (True, 4)),
    (lambda v: F.unembedding(X, X[0], v), "need", (None, True, (), (True,), (True,) * 3))])
def test_an_option_of_another_kind_is_refused(call, name, values):
    for value in values:
        with refused(f": {name} is .*, expected "):
            call(value)


@pytest.mark.parametrize("call", [
    lambda v: F.layer_norm(X, SCALE, SCALE, v(1)), lambda v: F.rope(HEADS, v(9), v(1)),
    lambda v: F.last_tokens(X, v(2)), lambda v: F.positions(X, np.ones((9, 4), "f4"), v(1))])
def test_numpy_s_numbers_as_options_give_the_same_bits(call):
    """A float64 would turn float32 into float64, and -2 would wrap in uint8."""
    for kind in (np.uint8, np.int64):
        np.testing.assert_array_equal(call(kind)[0], call(int)[0], strict=True)
    np.testing.assert_array_equal(F.layer_norm(X, SCALE, SCALE, np.float64(1))[0],
                                  F.layer_norm(X, SCALE, SCALE, 1)[0], strict=True)


@pytest.mark.parametrize("call", [
    lambda: F.softmax(X[..., :0]), lambda: F.log_sum_exp(X[..., :0]), lambda: F.rope(HEADS[:0]),
    lambda: F.attention(*np.array(QKV)[..., :0]), lambda: F.attention(*np.array(QKV)[:, :, :0]),
    lambda: F.attention(HEADS[:, :, :0], HEADS, HEADS),
    lambda: F.attention(HEADS, *2 * [HEADS[:, :, :0]]),
    lambda: F.lstm(X[:0], np.ones((4, 4)), np.ones((1, 4)), np.ones(4)),
    lambda: F.layer_norm(X[..., :0], SCALE[:0], SCALE[:0])])
def test_an_axis_of_length_0_is_refused_where_nothing_could_be_computed(call):
    with refused(r"has shape \(.*, expected \(.*\).*, no axis of length 0"):
        call()


REFUSALS = [
    (lambda: F.linear(ones((2, 3)), ones((3, 4)), ones(1)),
     r"linear: b has shape \(1,\), expected \(4,\)"),
    (lambda: F.bias(ones((2, 3)), ones((2, 1))), "bias: b has shape"),
    (lambda: F.positions(ones((1, 2, 3)), ones((4, 1))),
     r"positions: w has shape \(4, 1\), expected \(N, 3\)"),
    *[(lambda ids=ids: F.embedding(ids, ones((4, 2))), f"embedding: ids {message}")
      for ids, message in ((np.array([0, -1]), "run from -1 to 0, expected 0 to 3"),
                           (np.array([0, 4]), "run from 0 to 4, expected 0 to 3"),
                           ([1, 0], "have type list, expected an array of integers"))],
    *[(lambda targets=targets: F.cross_entropy(ones((2, 3)), np.array(targets)),
       "cross_entropy: targets") for targets in ([0, 3], [-1, 0], [0], [[0, 1]])],
    (lambda: F.cross_entropy(ones((0, 3)), np.array([], int)), "at least one"),
    *[(lambda n=n: F.last_tokens(ones((2, 5, 3)), n),
       f"^last_tokens: n is {n!r}, expected 1 to 5$")     # x[:, -0:] would be all of them
      for n in (0, 6, -1, 1.0, "1")],
    (lambda: F.positions(ones((1, 2, 3)), ones((4, 3)), -1), "positions: -1 to 0, w has 0 to 3"),
    (lambda: F.positions(ones((1, 3, 3)), ones((5, 3)), 4), "positions: 4 to 6, w has 0 to 4"),
    *[(lambda p=p: F.dropout(ones(3), p, None), f"dropout: p is {p!r}, expected 0 <= p < 1")
      for p in (-1, 1, "0.5")],
    (lambda: F.dropout(ones(3), 0.5, None), "dropout: rng is None, expected np.random.default_rng"),
    (lambda: F.rope(ones((1, 2, 6, 3))), r"rope: x has .* expected \(B, H, T, 2E\)"),
    (lambda: F.attention(*map(ones, [(1, 4, 2, 3)] + 2 * [(1, 3, 2, 3)])),
     "attention: k has 3 heads, expected a divisor of the 4 of q"),
    (lambda: F.attention(*map(ones, [(1, 2, 2, 3)] + 2 * [(1, 4, 2, 3)])), "k has 4 heads, exp"),
    (lambda: F.attention(*map(ones, [(1, 2, 5, 3)] + 2 * [(1, 2, 4, 3)])),
     "q has 5 tokens and k 4, expected at least as many in k, or causal=False"),
    *[(lambda k=k, v=v: F.attention(ones((2, 2, 3, 4)), ones(k), ones(v)),
       rf"attention: {'k' if k[0] == 1 or k[3] == 1 else 'v'} has shape \(.*, expected \(2, ")
      for k, v in [((1, 2, 3, 4), (1, 2, 3, 4)), ((2, 2, 3, 1), (2, 2, 3, 1)),
                   ((2, 2, 3, 4), (2, 1, 3, 4)), ((2, 2, 3, 4), (2, 2, 1, 4)),
                   ((2, 2, 3, 4), (2, 2, 3, 1))]],
    *[(lambda bias=bias: F.attention(ones((2, 2, 3, 4)), *2 * [ones((2, 1, 5, 4))], bias=bias),
       r"attention: bias has shape \(.*, expected \(2, 3, 5\)")
      for bias in (ones((3, 5)), ones((1, 3, 5)), ones((2, 3, 3)), ones((2, 2, 3, 5)))],
    *[(lambda bias=bias: F.attention(*QKV, bias=bias), "attention: bias has type")
      for bias in (1, ones((2, 3, 3), int), ones((2, 3, 3), bool), ones((2, 3, 3)).tolist())],
    (lambda: F.adam(*map(ones, (3, 3, 3, 1))), r"adam: m? ?v has shape \(1,\), expected \(3,\)"),
    (lambda: F.adam(ones(3), ones(3, int), ones(3), ones(3)), "adam: g has type int64")]


@pytest.mark.parametrize("call, message", REFUSALS)
def test_what_numpy_would_compute_without_a_word_is_refused(call, message):
    with refused(message):
        call()


# ----------------------------------------------------------------------------- values


def attention_by_loops(q, k, v, bias=None, causal=True):
    """Each token's mean of values, one head and one token after the other."""
    (B, H, T, D), (G, S), y = q.shape, k.shape[1:3], np.zeros(q.shape)
    for b, h, t in np.ndindex(B, H, T):
        g = h * G // H                                    # heads of keys serve heads in a row
        scores = [q[b, h, t] @ k[b, g, s] / math.sqrt(D) + (0 if bias is None else bias[h, t, s])
                  for s in range(S - T + t + 1 if causal else S)]
        y[b, h, t] = sum(p * v[b, g, s] for s, p in enumerate(scipy.special.softmax(scores)))
    return y


def mean(x):
    return x.sum(axis=-1, keepdims=True) / x.shape[-1]


def negative_log_likelihood(x, targets):
    p = scipy.special.softmax(x, axis=-1)
    return -np.mean([math.log(p[i][targets[i]]) for i in np.ndindex(targets.shape)])


VALUES = {
    "linear": lambda x, w, b: np.einsum("...i,io->...o", x, w) + b,
    "unembedding": lambda x, w: np.einsum("...c,vc->...v", x, w),
    "embedding": lambda ids, w: np.eye(len(w))[ids] @ w,
    "bias": lambda x, b: np.stack([row + b for row in x.reshape(-1, len(b))]).reshape(x.shape),
    "layer_norm": lambda x, w, b: (x - mean(x)) / np.sqrt(mean((x - mean(x)) ** 2) + 1e-5) * w + b,
    "rms_norm": lambda x, w: x / np.sqrt(mean(x ** 2) + 1e-6) * w,
    "gelu": lambda x: x * scipy.special.expit(
        2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)),
    "gelu_exact": lambda x: x * 0.5 * scipy.special.erfc(-x / math.sqrt(2)),
    "relu": lambda x: np.where(x > 0, x, 0), "silu": lambda x: x * scipy.special.expit(x),
    "multiply": lambda x, up: np.einsum("...,...->...", x, up),
    "softmax": lambda x: scipy.special.softmax(x, axis=-1),
    "log_sum_exp": lambda x: scipy.special.logsumexp(x, axis=-1, keepdims=True),
    "cross_entropy": negative_log_likelihood,
    **{name: partial(attention_by_loops, causal="to all" not in name) for name in ATTENTIONS
       if "dropped" not in name}}


@pytest.mark.parametrize("name", VALUES)
@given(seed=SEED, lead=LEAD)
def test_values_are_those_of_another_formula(name, seed, lead):
    op, _, inputs = case(name, np.random.default_rng(seed), lead)
    np.testing.assert_allclose(op(*inputs)[0], VALUES[name](*inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [None, np.array([1.0, 0.5, 0.25, 0.1])])
def test_rope_is_a_product_with_a_complex_number(scale):
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    y, _ = F.rope(x, 100.0, 2, scale)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(
        1j * np.arange(2, 7)[:, None] * 100.0 ** (-np.arange(4) / 4)
        * (1 if scale is None else scale))
    np.testing.assert_allclose(y, np.concatenate([turned.real, turned.imag], axis=-1))


def test_lstm_equals_its_formula_number_by_number():
    """Number by number, with no product of arrays."""
    _, _, (x, w_ih, w_hh, b) = case("lstm", np.random.default_rng(0), (2, 5))
    (B, T, C), D = x.shape, len(w_hh)
    y, cache = F.lstm(x, w_ih, w_hh, b)
    assert y.shape == (B, T, D) and not cache.cell[:, 0].any() and not cache.hidden[:, 0].any()
    for n in range(B):
        h, c = [0.0] * D, [0.0] * D
        for t in range(T):
            a = [b[k] + sum(x[n, t, j] * w_ih[j, k] for j in range(C))
                 + sum(h[j] * w_hh[j, k] for j in range(D)) for k in range(4 * D)]
            i, f, o = (scipy.special.expit(a[k * D:(k + 1) * D]) for k in (0, 1, 3))
            c = [f[k] * c[k] + i[k] * math.tanh(a[2 * D + k]) for k in range(D)]
            h = [o[k] * math.tanh(c[k]) for k in range(D)]
            np.testing.assert_allclose(y[n, t], h, rtol=1e-10)


def test_positions_begin_behind_the_tokens_before():
    x, w = ones((3, 4, 2)), np.arange(10.0).reshape(5, 2)
    y, cache = F.positions(x, w, 1)
    np.testing.assert_array_equal(y, x + w[1:])
    np.testing.assert_array_equal(F.positions_backward(x, cache)[1], 3 * (np.arange(5) > 0)[
        :, None] * ones(2))


@pytest.mark.parametrize("n", range(1, 5))
def test_last_tokens_are_the_last_and_give_the_others_no_gradient(n):
    x = np.arange(24.0).reshape(3, 4, 2)
    y, cache = F.last_tokens(x, n)
    np.testing.assert_array_equal(y, x[:, 4 - n:])
    assert y.flags.c_contiguous
    dx = F.last_tokens_backward(ones(y.shape), cache)
    assert dx[0, :, 0].tolist() == (4 - n) * [0.0] + n * [1.0]


def test_relu_has_no_gradient_at_0():
    y, cache = F.relu(np.array([-2.0, -1e-300, 0.0, 1e-300, 3.0]))
    np.testing.assert_array_equal(F.relu_backward(np.full(5, 7.0), cache), [0, 0, 0, 7, 7])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_at_the_exact_scale(p, dtype):
    """Of all entries, of each row and of each column."""
    x = np.random.default_rng(0).uniform(1, 2, (300, 400)).astype(dtype)
    y, (mask,) = F.dropout(x, p, np.random.default_rng(1))
    scale = dtype(1) / dtype(1 - p)
    assert set(np.unique(mask)) == {0, scale}
    np.testing.assert_array_equal(y, np.where(mask > 0, x * scale, 0))
    for axis, n in ((None, x.size), (0, 300), (1, 400)):  # five deviations of a binomial share
        assert np.abs((y == 0).mean(axis) - p).max() < 5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("text", [
    "x (..., C) w (C,) -> y (..., C)", "x (..., C), w (C,)", "x (..., C), w (C,) - > y (..., C)",
    "x (..., C), w (C, -> y (..., C)", "x ..., C), w (C,) -> y (..., C)", "x (..., C), w (C,) -> y",
    "x (..., C), w (C,) -> y (..., C", "x (C, ...), w (C,) -> y (..., C)",
    "x (..., C), w C -> y (..., C)", "x (..., C), v (C,) -> y (..., C)",
    "x (...) integer in 0 ... V-1, w (V, C) -> y (..., C)", ""])
def test_a_misspelt_declaration_of_shapes_is_an_error_at_once(text):
    def op(x, w):
        raise AssertionError("it ran")
    with refused("shapes of op: "):
        shapes(text)(op)
    assert shapes("x (..., C), w (C,) -> y (..., C)")(op).__wrapped__ is op


def test_a_backward_pass_may_declare_the_fields_of_its_cache_alone():
    names = vars(F) | {"__name__": "mine"}
    exec("def op(x, w): return x * w, MultiplyCache(x, w)\n"
         "def op_backward(dy, cache): return dy", names)
    with refused("shapes of op_backward: 'x' is no argument .* one of dy, gate, up"):
        shapes("dy (...), x (...) -> dx (...)")(names["op_backward"])
    assert shapes("dy (...), up (...) -> dx (...)")(names["op_backward"])


def test_dropout_at_zero_draws_nothing():
    x, rng = ones(5), np.random.default_rng(0)
    y, cache = F.dropout(x, 0.0, rng)
    assert y is x and cache.mask is None and F.dropout_backward(x, cache) is x
    assert rng.random() == np.random.default_rng(0).random() and F.dropout(x, 0.0, None)[0] is x


def test_the_causal_mask_hides_later_tokens():
    mask = F.causal_mask(2, 4, np.dtype(np.float32))
    np.testing.assert_array_equal(mask, [[0, 0, 0, -math.inf], [0, 0, 0, 0]])
    assert mask.dtype == np.float32 and F.causal_mask(2, 4, np.dtype(np.float32)) is mask
    with pytest.raises(ValueError, match="read-only"):
        mask[0, 0] = 1


def test_attention_probabilities_are_in_the_cache():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 2, 5, 4))
    y, cache = F.attention(q, k, v, 0.4, np.random.default_rng(0), bias=None)
    a = cache.probabilities
    np.testing.assert_allclose(a.sum(axis=-1), 1)
    assert not a[..., np.triu(ones((5, 5), bool), 1)].any()
    np.testing.assert_allclose(y, (a * cache.mask) @ cache.v)


@given(seed=SEED, shape=hnp.array_shapes(min_dims=3, max_dims=3, max_side=5), H=st.integers(1, 5))
def test_heads_lie_side_by_side_in_a_token(seed, shape, H):
    B, T, D = shape
    x = np.random.default_rng(seed).standard_normal((B, T, H * D))
    heads = F.split_heads(x, H)
    assert heads.shape == (B, H, T, D) and np.shares_memory(heads, x)
    np.testing.assert_array_equal(np.concatenate(heads.swapaxes(0, 1), axis=-1), x)
    np.testing.assert_array_equal(F.merge_heads(heads), x)
    np.testing.assert_array_equal(F.merge_heads(heads[:, :1], heads[:, 1:]), x)
    np.testing.assert_array_equal(F.split_heads(F.merge_heads(heads), H), heads)


@given(seed=SEED, B=st.integers(1, 3), S=st.integers(1, 3), G=st.integers(1, 3),
       shared=st.integers(1, 3))
def test_the_gradients_of_repeated_heads_add_up(seed, B, S, G, shared):
    x = np.random.default_rng(seed).standard_normal((B, G, S, 2))
    many = F.repeat_heads(x, G * shared)
    for head in range(G * shared):
        np.testing.assert_array_equal(many[:, head], x[:, head // shared])
    np.testing.assert_allclose(F.sum_heads(many, G), shared * x)


def test_adam_takes_its_steps_number_by_number():
    """Against a loop over Python's floats, with the paper's numbers, which are the default; the
    arguments stay as they are."""
    rng, (b1, b2), lr, eps = np.random.default_rng(0), (0.9, 0.999), 1e-3, 1e-8
    x, zero = rng.standard_normal((2, 3)), np.zeros((2, 3))
    state, want = (x, zero, zero), [[float(value), 0.0, 0.0] for value in x.flat]
    for t in range(1, 6):
        g = rng.standard_normal((2, 3))
        before = [a.copy() for a in state]
        x, m, v = F.adam(state[0], g, *state[1:], t)
        np.testing.assert_equal([*state], before)
        state = x, m, v
        for number, slope in zip(want, g.flat, strict=True):
            number[1] += (1 - b1) * (slope - number[1])
            number[2] += (1 - b2) * (slope * slope - number[2])
            mean, square = number[1] / (1 - b1 ** t), number[2] / (1 - b2 ** t)
            number[0] -= lr * mean / (math.sqrt(square) + eps)
        np.testing.assert_allclose(np.stack([a.ravel() for a in state], axis=1), want, rtol=1e-12)
