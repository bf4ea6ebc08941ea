"""Every operation: its backward against differences, its values against other formulas."""

import itertools
import math

import numpy as np
import pytest
import scipy.special
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import minifpt
from minifpt import examples, layers, tracing
from minifpt import functional as F
from minifpt.gradients import gradcheck

LEAD = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
SEED = st.integers(0, 2**32 - 1)


def case(name, rng, lead=(2, 3), n=6, dtype=np.float64):
    """(op, its backward, inputs) with ``n`` channels under the leading axes ``lead``."""
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    seed = int(rng.integers(1 << 30))
    two = (*lead, 2, 3)[:2]
    start = int(rng.integers(3))
    # Layer norm of two channels is a step function, with gradients lost in rounding.
    c = n + 3
    ids = rng.integers(0, n, lead)
    return {
        "linear": lambda: (F.linear, F.linear_backward, (normal(*lead, n), normal(n, 3),
                                                         normal(3))),
        "embedding": lambda: (F.embedding, F.embedding_backward, (ids, normal(n, 4))),
        "bias": lambda: (F.bias, F.bias_backward, (normal(*lead, n), normal(n))),
        "unembedding": lambda: (F.unembedding, F.unembedding_backward,
                                (normal(*lead, n), normal(4, n))),
        "positions": lambda: (lambda x, w: F.positions(x, w, start), F.positions_backward,
                              (normal(*two, n), normal(start + two[1] + 1, n))),
        "layer_norm": lambda: (F.layer_norm, F.layer_norm_backward,
                               (normal(*lead, c), normal(c), normal(c))),
        "rms_norm": lambda: (F.rms_norm, F.rms_norm_backward, (normal(*lead, c), normal(c))),
        "silu": lambda: (F.silu, F.silu_backward, (2 * normal(*lead, n),)),
        "multiply": lambda: (F.multiply, F.multiply_backward, (normal(*lead, n), normal(*lead, n))),
        "rope": lambda: (lambda x: F.rope(x, 3, 50.0, start), F.rope_backward,
                         (normal(*two, 6 * n),)),
        "grouped_heads": lambda: (lambda q, k, v: F.grouped_heads(q, k, v, 2 * n),
                                  F.grouped_heads_backward,
                                  (normal(*two, 4 * n), normal(*two, 4), normal(*two, 4))),
        "gelu": lambda: (F.gelu, F.gelu_backward, (2 * normal(*lead, n),)),
        "gelu_exact": lambda: (F.gelu_exact, F.gelu_exact_backward, (2 * normal(*lead, n),)),
        "relu": lambda: (F.relu, F.relu_backward, (away_from_0(normal(*lead, n)),)),
        "softmax": lambda: (F.softmax, F.softmax_backward, (normal(*lead, n),)),
        "dropout": lambda: (lambda x: F.dropout(x, 0.3, np.random.default_rng(seed)),
                            F.dropout_backward, (normal(*lead, n),)),
        "attention": lambda: (lambda qkv: F.attention(qkv, 2), F.attention_backward,
                              (normal(*two, 6 * n),)),
        "attention, dropout": lambda: (
            lambda qkv: F.attention(qkv, 2, 0.3, np.random.default_rng(seed)),
            F.attention_backward, (normal(*two, 6 * n),)),
        "attention, not causal": lambda: (
            lambda qkv: F.attention(qkv, 2, causal=False), F.attention_backward,
            (normal(*two, 6 * n),)),
        "attention, not causal, dropout": lambda: (
            lambda qkv: F.attention(qkv, 2, 0.3, np.random.default_rng(seed), causal=False),
            F.attention_backward, (normal(*two, 6 * n),)),
        "lstm": lambda: (F.lstm, F.lstm_backward,
                         (normal(*two, n), normal(n, 12), normal(3, 12), normal(12))),
        "residual": lambda: (residual_of_linear, residual_of_linear_backward,
                             (normal(*lead, n), normal(n, n), normal(n))),
        "last_tokens": lambda: (lambda x: F.last_tokens(x, 1 + start % two[1]),
                                F.last_tokens_backward, (normal(*two, n),)),
        "log_sum_exp": lambda: (F.log_sum_exp, F.log_sum_exp_backward, (normal(*lead, n),)),
        "cross_entropy": lambda: (F.cross_entropy, F.cross_entropy_backward,
                                  # Of a loss of 1e-13 differences show its rounding alone.
                                  (normal(*lead, n), ids)),
    }[name]()


def away_from_0(x):
    """Where relu has its kink there is no gradient to compare with."""
    return x + np.copysign(0.01, x).astype(x.dtype)


def residual_of_linear(x, w, b):
    """``y = x + (x @ w + b)``: a residual connection around a branch."""
    branch, cache = F.linear(x, w, b)
    y, nothing = F.residual(x, branch)
    assert nothing is None
    return y, cache


def residual_of_linear_backward(dy, cache):
    dbranch, dw, db = F.linear_backward(dy, cache)
    return F.residual_backward(dy, dbranch), dw, db


OPS = ["linear", "embedding", "bias", "unembedding", "positions", "layer_norm", "rms_norm",
       "silu", "multiply", "rope", "grouped_heads", "gelu",
       "gelu_exact", "relu", "softmax", "dropout", "attention", "attention, dropout",
       "attention, not causal", "attention, not causal, dropout", "lstm", "residual", "last_tokens",
       "log_sum_exp", "cross_entropy"]


def test_every_pair_is_checked():
    """By ``minifpt gradcheck`` too; without examples it is a KeyError."""
    for op in tracing.OPERATIONS:
        report = examples.check(op)
        assert report, str(report)


@pytest.mark.parametrize("name", OPS)
@given(seed=SEED, lead=LEAD, n=st.integers(1, 5))
def test_backward_equals_differences(name, seed, lead, n):
    op, op_backward, inputs = case(name, np.random.default_rng(seed), lead, n)
    report = gradcheck(op, op_backward, inputs, elementwise=24, directions=4)
    assert report.max_relative_error <= 1e-6, str(report)


@pytest.mark.parametrize("name", tracing.OPERATIONS)
def test_a_dy_of_another_shape_or_kind_is_refused(name):
    rng = np.random.default_rng(4)
    inputs, options = examples.examples(name, rng)[0]
    y, cache = getattr(F, name)(*inputs, **examples.fresh(options))
    shapes = {np.shape(y)[:axis] + (1,) + np.shape(y)[axis + 1:] for axis in range(np.ndim(y))}
    shapes |= {np.shape(y)[1:], (1,), np.shape(y)[1::-1] + np.shape(y)[2:], (9, *np.shape(y)[1:])}
    cache = rng.standard_normal(np.shape(y)) if name == "residual" else cache
    for dy in [*map(rng.standard_normal, shapes - {np.shape(y)}), np.atleast_1d(y).tolist(), None,
               *map(np.asarray(y).astype, (np.uint8, bool, complex, str, object))]:
        with refused("has shape|has type"):
            getattr(F, f"{name}_backward")(dy, cache)


@pytest.mark.parametrize("name", OPS)
def test_backward_leaves_everything_as_it_was(name):
    """A cache may be read twice, and neither inputs nor dy belong to the operation."""
    rng = np.random.default_rng(3)
    op, op_backward, inputs = case(name, rng)
    before = [x.copy() for x in inputs]
    y, cache = op(*inputs)
    dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
    dy_before = np.copy(dy)
    first = op_backward(dy, cache)
    second = op_backward(dy, cache)
    np.testing.assert_equal(first, second)
    np.testing.assert_array_equal(dy, dy_before)
    np.testing.assert_equal(list(inputs), before)


@pytest.mark.parametrize("name", OPS)
def test_operations_stay_in_float32(name, float32_only, arrays_in):
    op, op_backward, inputs = case(name, np.random.default_rng(0), dtype=np.float32)
    inputs = [float32_only(x) if x.dtype == np.float32 else x for x in inputs]
    y, cache = op(*inputs)
    dy = float32_only(np.ones_like(y)) if np.ndim(y) else 1.0
    grads = op_backward(dy, cache)
    grads = grads if isinstance(grads, tuple) else (grads,)
    floats = [a for a in arrays_in([cache, grads]) if np.issubdtype(a.dtype, np.floating)]
    assert y.dtype == np.float32 and floats
    assert {a.dtype for a in floats} == {np.dtype(np.float32)}


def test_float32_only_notices(float32_only):
    """The watching array itself can fail."""
    x = float32_only(np.ones(3))
    with pytest.raises(AssertionError, match="float64"):
        x += np.ones(3)
    with pytest.raises(AssertionError, match="float64"):
        x * np.float64(2)
    assert type(x @ np.ones((3, 2), np.float32) * 2.0) is type(x)


# ------------------------------------------------------------------------------- need


class Counting(np.ndarray):
    """An array that counts every ufunc it meets, and passes itself on."""

    count = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        Counting.count += 1
        plain = [x.view(np.ndarray) if isinstance(x, Counting) else x for x in inputs]
        y = getattr(ufunc, method)(*plain, **kwargs)
        return y.view(Counting) if isinstance(y, np.ndarray) else y


# The operations with weights, and which gradients read a field of the cache.
NEED = {"linear": (3, {"x": [1]}), "layer_norm": (3, {"xhat": [0, 1], "rstd": [0]}),
        "unembedding": (2, {"x": [1]}), "positions": (2, {}), "bias": (2, {}),
        "rms_norm": (2, {"xhat": [0, 1], "rstd": [0]}), "lstm": (4, {"x": [1], "hidden": [2]})}


@pytest.mark.parametrize("name, need", [(name, need) for name, (n, _) in NEED.items()
                                        for need in itertools.product([True, False], repeat=n)])
def test_only_needed_gradients_are_computed(name, need):
    """What is not wanted is None, is not computed, and what only it would read is not kept."""
    n, read = NEED[name]
    _, _, inputs = case(name, np.random.default_rng(1))
    op, op_backward = vars(F)[name], vars(F)[f"{name}_backward"]
    whole, cache = op(*inputs)
    dy = np.random.default_rng(2).standard_normal(whole.shape)
    everything = op_backward(dy, cache)
    assert len(everything) == n and all(g is not None for g in everything)
    y, cache = op(*inputs, need=need)
    np.testing.assert_array_equal(y, whole)
    assert cache.need == need
    for key, readers in read.items():
        assert (getattr(cache, key) is not None) == any(need[i] for i in readers), key
    for wanted, got, one in zip(need, op_backward(dy, cache), everything, strict=True):
        assert (got is not None) == wanted
        if wanted:
            np.testing.assert_array_equal(got, one)

    def cost(need):
        _, cache = op(*(x.view(Counting) for x in inputs), need=need)
        Counting.count = 0
        op_backward(dy.view(Counting), cache)
        return Counting.count
    none = cost((False,) * n)                             # of the loop of an LSTM
    alone = [cost(tuple(i == j for j in range(n))) - none for i in range(n)]
    assert sum(alone) > 0 and cost(need) - none == sum(itertools.compress(alone, need))


# ----------------------------------------------------------------------------- values


@given(seed=SEED, lead=LEAD)
def test_linear_equals_einsum(seed, lead):
    _, _, (x, w, b) = case("linear", np.random.default_rng(seed), lead)
    np.testing.assert_allclose(F.linear(x, w, b)[0], np.einsum("...i,io->...o", x, w) + b)


def test_embedding_adds_the_gradients_of_repeated_ids():
    ids = np.array([[3, 0, 3], [3, 1, 0]])
    w = np.arange(10.0).reshape(5, 2)
    y, cache = F.embedding(ids, w)
    np.testing.assert_array_equal(y[1, 2], w[0])
    dy = np.random.default_rng(0).standard_normal(y.shape)
    want = np.zeros_like(w)
    for i in np.ndindex(ids.shape):
        want[ids[i]] += dy[i]
    got = F.embedding_backward(dy, cache)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    np.testing.assert_array_equal(got[[2, 4]], 0.0)


def test_embedding_takes_no_ids():
    y, cache = F.embedding(np.zeros((0, 3), int), np.ones((4, 2)))
    assert y.shape == (0, 3, 2)
    np.testing.assert_array_equal(F.embedding_backward(y, cache), np.zeros((4, 2)))


@given(seed=SEED, lead=LEAD)
def test_unembedding_scores_each_token(seed, lead):
    """Each score is the product of a hidden state and a token's row."""
    _, _, (x, w) = case("unembedding", np.random.default_rng(seed), lead)
    y, _ = F.unembedding(x, w)
    np.testing.assert_allclose(y, np.einsum("...c,vc->...v", x, w), atol=1e-13)


@pytest.mark.parametrize("start", [0, 2])
def test_positions_add_the_rows_from_the_start(start):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4, 2)), rng.standard_normal((7, 2))
    y, cache = F.positions(x, w, start)
    want, sums = x.copy(), np.zeros_like(w)
    dy = rng.standard_normal(x.shape)
    for b, t in np.ndindex(3, 4):
        want[b, t] += w[start + t]
        sums[start + t] += dy[b, t]
    np.testing.assert_array_equal(y, want)
    dx, dw = F.positions_backward(dy, cache)
    np.testing.assert_array_equal(dx, dy)
    np.testing.assert_allclose(dw, sums, rtol=1e-12)


ones, BAD = np.ones, layers.Parameter(np.ones((2, 3)), "mlp")
BAD.grad = np.ones((3, 2))
COMPLEX = layers.Parameter(np.ones(2), "mlp")
COMPLEX.grad = np.ones(2, complex)
UINT8 = layers.Parameter(np.ones(2), "mlp")
UINT8.grad = np.full(2, 250, np.uint8)                    # whose square is 36 in uint8
SILENT = {
    "a bias of one number": (lambda: F.linear(ones((2, 3)), ones((3, 4)), ones(1)),
                             r"linear: b has shape \(1,\), expected \(4,\)"),
    **{f"the ids {ids}": (lambda ids=ids: F.embedding(np.array(ids), ones((4, 2))), message)
       for ids, message in (([0, -1], "from -1 to 0, expected 0 to 3"),
                            ([0, 4], "from 0 to 4, expected 0 to 3"),
                            ([True, False], "ids have type bool"), ([0.0], "type float64"))},
    "ids in a list": (lambda: F.embedding([1, 0], ones((4, 2))), "ids have type list, expected"),
    **{f"the targets {targets}": (lambda targets=targets: F.cross_entropy(
        ones((2, 3)), np.array(targets)), "cross_entropy: targets")
       for targets in ([0, 3], [-1, 0], [0], [[0, 1]], [0.0, 1.0], [True, False])},
    "no targets": (lambda: F.cross_entropy(ones((0, 3)), np.array([], int)), "at least one"),
    **{f"the last {n} tokens": (lambda n=n: F.last_tokens(ones((2, 5, 3)), n),
                                f"^last_tokens: n is {n!r}, expected 1 to 5$")
       for n in (0, 6, -1, 1.0, "1")},                    # x[:, -0:] would be all of them
    "a column as bias": (lambda: F.bias(ones((2, 3)), ones((2, 1))), "bias: b has shape"),
    "positions before the first": (lambda: F.positions(ones((1, 2, 3)), ones((4, 3)), -1),
                                   "positions: -1 to 0, w has 0 to 3"),
    "positions past the last": (lambda: F.positions(ones((1, 3, 3)), ones((5, 3)), 4),
                                "positions: 4 to 6, w has 0 to 4"),
    "positions of one channel": (lambda: F.positions(ones((1, 2, 3)), ones((4, 1))),
                                 r"positions: w has shape \(4, 1\), expected \(N, 3\)"),
    "a scale of one number": (lambda: F.layer_norm(ones((2, 3)), ones(1), ones(3)),
                              "layer_norm: w has shape"),
    "a layer norm's bias of one number": (lambda: F.layer_norm(ones((2, 3)), ones(3), ones(1)),
                                          "layer_norm: b has shape"),
    "an RMS norm's scale of one number": (lambda: F.rms_norm(ones((2, 3)), ones(1)),
                                          "rms_norm: w has shape"),
    "one gate for all": (lambda: F.multiply(ones((1, 3)), ones((2, 3))), "multiply: up has shape"),
    "a negative probability": (lambda: F.dropout(ones(3), -1, None), "p is -1, expected 0 <= p"),
    "a probability of 1": (lambda: F.dropout(ones(3), 1, None), "dropout: p is 1, expected"),
    **{f"rope of {n!r} heads": (lambda n=n: F.rope(ones((1, 2, 6)), n),
                                f"rope: n_head is {n!r}, expected 1 ")
       for n in (0, -1, "1", None, 1.0)},
    "rope of one channel in a head": (lambda: F.rope(ones((1, 2, 6)), 6),
                                      r"\(B, T, 2HE\) with H = 6"),
    "attention of 5 heads": (lambda: F.attention(ones((1, 2, 12)), 5),
                             r"qkv has shape \(1, 2, 12\), expected \(B, T, 3HD\) with H = 5"),
    "keys of no head": (lambda: F.grouped_heads(*map(ones, [(1, 2, 8)] + 2 * [(1, 2, 6)]), 4),
                        "k has 3 heads, expected a divisor of 4"),
    "an lstm's state of one number": (lambda: F.lstm(*map(
        ones, ((1, 2, 3), (3, 8), (2, 1), (8,)))), "lstm: w_hh has shape"),
    "a branch of one token": (lambda: F.residual(ones((2, 3, 4)), ones((2, 1, 4))),
                              "residual: branch has shape"),
    "a gradient of another shape in Adam": (lambda: minifpt.optim.Adam([BAD]).step(),
                                            r"float64 and shape \(3, 2\), expected .* \(2, 3\)"),
    "a complex gradient in Adam": (lambda: minifpt.optim.Adam([COMPLEX]).step(), "of complex128"),
    "a uint8 gradient to clip": (lambda: minifpt.optim.clip_grad_norm([UINT8], 1.0), "of uint8"),
    "a parameter of integers": (lambda: layers.Parameter(ones(2, int), "mlp"), "data is an"),
    "-1 heads": (lambda: layers.Attention(8, -1), "Attention: n_head must be a whole"),
    "no activation": (lambda: layers.Activation("gel"), "Activation: name is 'gel', expec"),
    **{f"cosine of {v}": (lambda v=v: minifpt.optim.cosine(*v), f"cosine: {name} (must be|is)")
       for name, v in (("step", ("1", 9)), ("steps", (1, None)), ("warmup", (1, 9, -1)),
                       ("floor", (1, 9, 1, np.nan)), ("step", (np.array(["a", "b"]), 9)))},
    "one beta": (lambda: minifpt.optim.Adam([BAD], betas=0.9), "the betas are 0.9, expected two"),
    "a schedule past its end": (lambda: minifpt.optim.cosine(11, 10), "step must be .* at most 10"),
    **{f"{type(layer).__name__}'s dy of one {part}": (lambda layer=layer, shape=shape:
                                                      layer.backward(ones(shape), layer.forward(
                                                          ones((2, 3, 8)))[1]), "the gradient has")
       for layer in (layers.Linear(8, 8, float), layers.LayerNorm(8, dtype=float),
                     layers.Attention(8, 2, dtype=float), layers.Activation("gelu_new"),
                     layers.Unembedding(layers.Parameter(ones((8, 8)), "mlp")))
       for part, shape in (("example", (1, 3, 8)), ("token", (2, 1, 8)), ("order", (3, 2, 8)))},
    "fewer than no tokens": (lambda: minifpt.FPT.for_task("bit-xor", "random:1x1x4").counts(-1),
                             "tokens must be a whole number, at least 1, got -1"),
}


@pytest.mark.parametrize("fault", SILENT)
def test_what_numpy_would_compute_without_a_word_is_refused(fault):
    call, message = SILENT[fault]
    with refused(message):
        call()


def model_of(kind):
    """Return a small model, and an input of it for two examples."""
    if kind == "fpt":
        return minifpt.FPT.for_task("bit-xor", "random:1x1x4"), np.zeros((2, 5, 1), np.float32)
    if kind == "lm":
        return minifpt.LanguageModel(minifpt.GPT2Config(1, 1, 4, 8, 3)), np.zeros((2, 5), int)
    trunk = minifpt.trunks.get({"gpt2": "random:1x1x4", "lstm": "lstm:1x4",
                                "llama": "random:llama:1x1x4"}[kind])
    return trunk, np.ones((2, 5, 4), np.float32)


@pytest.mark.parametrize("kind", ["fpt", "lm", "gpt2", "lstm", "llama"])
def test_a_models_door_takes_no_other_gradient_than_its_output_has(kind):
    model, x = model_of(kind)
    y, cache = model.forward(x)
    for dy in (y[:1], y[:, :1, :-1], np.concatenate([y, y]), y.swapaxes(0, 1), y.swapaxes(1, 2),
               y[0], y.astype(complex), y.astype(str), [*y], None):
        if np.shape(dy) != y.shape or getattr(dy, "dtype", None) != y.dtype:
            with refused("expected numbers of the shape of forward's output"):
                model.backward(dy, cache)
    model.backward(y, cache)


@pytest.mark.parametrize("op", tracing.OPERATIONS)
def test_operations_take_floating_point_numbers_only(op):
    """uint8 would wrap around in softmax, and complex numbers have no gradient here."""
    forward, _, inputs = case(op, np.random.default_rng(0))
    for i, wrong in itertools.product(range(len(inputs)), (np.uint8, complex, str, object, list)):
        x = inputs[i].tolist() if wrong is list else inputs[i].astype(wrong)
        if inputs[i].dtype.kind == "f":
            with refused(": .* has type (list|uint8|complex128|<U32|object), expected an ar"):
                forward(*inputs[:i], x, *inputs[i + 1:])


def test_last_tokens_are_cut_and_padded_back():
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    for n in range(1, 6):
        y, cache = F.last_tokens(x, n)
        np.testing.assert_array_equal(y, x[:, 5 - n:])
        assert y.flags.c_contiguous
        dx = F.last_tokens_backward(y, cache)
        np.testing.assert_array_equal(dx[:, 5 - n:], y)
        assert dx.shape == x.shape and not dx[:, :5 - n].any()


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


def test_gelu_value():
    x = np.linspace(-6, 6, 101)
    y, _ = F.gelu(x)
    # The tanh form stays within 5e-4 of x Phi(x), which it approximates ...
    assert np.abs(y - x * scipy.special.ndtr(x)).max() < 5e-4
    # ... and is x times a logistic function of 2u.
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    np.testing.assert_allclose(y, x * scipy.special.expit(2 * u), atol=1e-15)


def test_gelu_exact_value():
    x = np.linspace(-6, 6, 101)
    y, _ = F.gelu_exact(x)
    np.testing.assert_allclose(y, [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x], rtol=1e-12)


def test_relu_value():
    x = np.array([-2.0, -1e-300, 0.0, 1e-300, 3.0])
    y, cache = F.relu(x)
    np.testing.assert_array_equal(y, [0, 0, 0, 1e-300, 3])
    np.testing.assert_array_equal(F.relu_backward(np.full(5, 7.0), cache), [0, 0, 0, 7, 7])


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


# ----------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_at_the_exact_scale(p, dtype):
    x = np.random.default_rng(0).uniform(1, 2, (400, 500)).astype(dtype)
    y, (mask,) = F.dropout(x, p, np.random.default_rng(1))
    scale = dtype(1) / dtype(1 - p)
    assert set(np.unique(mask)) == {0, scale}
    np.testing.assert_array_equal(y, np.where(mask > 0, x * scale, 0))
    # Five standard deviations of a binomial share, and of the mean that follows from it.
    sigma = math.sqrt(p * (1 - p) / x.size)
    assert abs((y == 0).mean() - p) < 5 * sigma
    assert abs(mask.mean(dtype=float) - 1) < 5 * sigma / (1 - p)


def test_dropout_rows_and_columns_are_independent():
    _, (mask,) = F.dropout(np.ones((300, 300)), 0.5, np.random.default_rng(0))
    kept = mask > 0
    for axis in (0, 1):
        assert np.abs(kept.mean(axis=axis) - 0.5).max() < 5 * math.sqrt(0.25 / 300)
    assert abs((kept[1:] == kept[:-1]).mean() - 0.5) < 0.01


def test_dropout_at_zero_draws_nothing():
    x, rng = np.ones(5), np.random.default_rng(0)
    before = rng.bit_generator.state
    y, cache = F.dropout(x, 0.0, rng)
    np.testing.assert_array_equal(y, x)
    assert cache.mask is None and rng.bit_generator.state == before
    assert F.dropout(x, 0.0, None)[1].mask is None
    np.testing.assert_array_equal(F.dropout_backward(x, cache), x)


# --------------------------------------------------------------------------- attention


@given(seed=SEED, B=st.integers(1, 3), T=st.integers(1, 6), H=st.integers(1, 3),
       D=st.integers(1, 4), causal=st.booleans())
def test_attention_value(seed, B, T, H, D, causal):
    C = H * D
    qkv = np.random.default_rng(seed).standard_normal((B, T, 3 * C))
    y, _ = F.attention(qkv, H, causal=causal)
    want = np.zeros((B, T, C))
    for b, h, t in np.ndindex(B, H, T):
        cols = slice(h * D, (h + 1) * D)
        q, k, v = (qkv[b, :, i * C:(i + 1) * C][:, cols] for i in range(3))
        scores = [q[t] @ k[s] / math.sqrt(D) for s in range(t + 1 if causal else T)]
        want[b, t, cols] = sum(p * v[s] for s, p in enumerate(scipy.special.softmax(scores)))
    np.testing.assert_allclose(y, want, atol=1e-12)


def test_the_causal_mask_hides_later_tokens():
    mask = F.causal_mask(2, 4, np.dtype(np.float32))
    inf = math.inf
    np.testing.assert_array_equal(mask, [[0, 0, 0, -inf], [0, 0, 0, 0]])
    assert mask.dtype == np.float32 and F.causal_mask(2, 4, np.dtype(np.float32)) is mask
    with pytest.raises(ValueError, match="read-only"):
        mask[0, 0] = 1


@given(seed=SEED, P=st.integers(1, 4), T=st.integers(1, 4), causal=st.booleans())
def test_attention_with_past_is_the_tail_of_the_whole(seed, P, T, causal):
    qkv = np.random.default_rng(seed).standard_normal((2, P + T, 24))
    whole, _ = F.attention(qkv, 2, causal=causal)
    _, past = F.attention(qkv[:, :P], 2, causal=causal)
    tail, (q, k, v, a, _) = F.attention(qkv[:, P:], 2, causal=causal, past=(past.k, past.v))
    np.testing.assert_allclose(tail, whole[:, P:], atol=1e-13)
    assert q.shape == (2, 2, T, 4) and k.shape == v.shape == (2, 2, P + T, 4)
    assert a.shape == (2, 2, T, P + T)


def test_attention_probabilities_are_in_the_cache():
    qkv = np.random.default_rng(0).standard_normal((2, 5, 24))
    y, cache = F.attention(qkv, 2, 0.4, np.random.default_rng(0))
    a = cache.probabilities
    np.testing.assert_allclose(a.sum(axis=-1), 1)
    assert not a[..., np.triu(np.ones((5, 5), bool), 1)].any()
    np.testing.assert_allclose(y, F.merge_heads((a * cache.mask) @ cache.v))
