"""Layers: gradients, what their caches hold, what frozen parameters cost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import functional as F
from minifpt import layers
from minifpt.fpt import InputLayer
from minifpt.gradients import gradcheck
from minifpt.layers import (
    MLP,
    Activation,
    Attention,
    Block,
    Embedding,
    KeyValues,
    LayerNorm,
    Linear,
    Parameter,
    Positions,
)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [Attention, Block])
def test_gradients_over_many_tokens_equal_differences(kind, causal, randomise):
    """Long enough that attention done in tiles has several."""
    layer = randomise(kind(4, 2, 0.2, dtype=np.float64, causal=causal))
    report = gradcheck(layer, rng(1).standard_normal((2, 70, 4)), elementwise=16)
    assert report, str(report)


@pytest.mark.parametrize("name", layers.ACTIVATIONS)
def test_gradients_of_activations_equal_differences(name, randomise):
    x = rng(1).standard_normal((2, 3, 6))
    assert gradcheck(Activation(name), x)
    assert gradcheck(randomise(MLP(6, dtype=np.float64, activation=name)), x)


def test_an_activation_of_ones_own(monkeypatch, randomise):
    """A pair in the table is all that it takes."""
    def sine(x):
        return np.sin(x), F.ActivationCache(x)

    def sine_backward(dy, cache):
        return dy * np.cos(cache.x)
    monkeypatch.setitem(layers.ACTIVATIONS, "sine", (sine, sine_backward))
    mlp = randomise(MLP(6, dtype=np.float64, activation="sine"))
    x = rng(1).standard_normal((2, 3, 6))
    assert gradcheck(mlp, x)
    h = np.sin(x @ mlp.c_fc.weight.data + mlp.c_fc.bias.data)
    np.testing.assert_allclose(mlp.forward(x)[0], h @ mlp.c_proj.weight.data + mlp.c_proj.bias.data)
    config = minifpt.GPT2Config(n_layer=1, n_head=1, n_embd=2, activation_function="sine")
    assert minifpt.GPT2(config, seed=None).h[0].mlp.act.name == "sine"


SIMPLE = {"gelu_new": F.gelu, "gelu_pytorch_tanh": F.gelu, "gelu": F.gelu_exact, "relu": F.relu,
          "silu": F.silu}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("activation", layers.ACTIVATIONS)
def test_layers_are_their_operations(randomise, activation, causal):
    """A block is the composition that its docstring says, from functional's simple forms."""
    block = randomise(Block(6, 2, 0.2, dtype=np.float64, causal=causal, activation=activation))
    p = {n: q.data for n, q in block.named_parameters()}
    x, g = rng(1).standard_normal((2, 5, 6)), rng(3)

    def lin(x, name):
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])[0]

    def norm(x, name):
        return F.layer_norm(x, p[f"{name}.weight"], p[f"{name}.bias"])[0]

    a = F.attention(lin(norm(x, "ln_1"), "attn.c_attn"), 2, 0.2, g, causal)[0]
    y = x + F.dropout(lin(a, "attn.c_proj"), 0.2, g)[0]
    m = SIMPLE[activation](lin(norm(y, "ln_2"), "mlp.c_fc"))[0]
    y = y + F.dropout(lin(m, "mlp.c_proj"), 0.2, g)[0]
    np.testing.assert_allclose(block.forward(x, True, rng(3))[0], y, rtol=1e-12)


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_block_of_the_last_tokens_equals_the_whole(T, last):
    """As if the other tokens' results were there and nobody read them."""
    block, last = Block(6, 2, dtype=np.float64), min(T, last)
    for i, p in enumerate(block.parameters()):
        p.data[...] = rng(i).standard_normal(p.data.shape)
    x, dy = rng(1).standard_normal((2, T, 6)), rng(2).standard_normal((2, last, 6))
    y, cache = block.forward(x)
    dx = block.backward(np.concatenate([np.zeros((2, T - last, 6)), dy], axis=1), cache)
    grads = [p.grad for p in block.parameters()]
    block.zero_grad()
    y_last, cache = block.forward(x, last=last)
    np.testing.assert_allclose(y_last, y[:, T - last:], rtol=0, atol=1e-12)
    dx_last = block.backward(dy, cache)
    np.testing.assert_allclose(dx_last, dx, rtol=0, atol=1e-11)
    for p, grad in zip(block.parameters(), grads, strict=True):
        np.testing.assert_allclose(p.grad, grad, rtol=0, atol=1e-11)


def test_layers_in_lists_tuples_and_dictionaries_have_names():
    class Net(layers.Layer):
        def __init__(self):
            self.rows = [layers.Linear(2, 3), (layers.Linear(3, 4), None)]
            self.by_name = {"last": layers.Linear(4, 1)}
    assert [name for name, _ in Net().named_parameters()] == [
        f"{path}.{part}" for path in ("rows.0", "rows.1.0", "by_name.last")
        for part in ("weight", "bias")]


def test_all_frozen_is_undone_by_an_error():
    layer = Linear(2, 2)
    with pytest.raises(RuntimeError), layer.all_frozen():
        raise RuntimeError
    assert layer.weight.trainable and layer.bias.trainable


def test_all_frozen_ends_in_any_order():
    """As two streams of tokens of one model do, or a stream that another thread began."""
    def stream(layer):
        with layer.all_frozen():
            yield
    layer = Linear(2, 2)
    first, second, third = (stream(layer) for _ in range(3))
    next(first), next(second)
    assert not layer.learns()
    assert [*first] == [*second] == [] and layer.learns()
    thread = threading.Thread(target=next, args=(third,))
    thread.start()
    thread.join()
    assert [*third] == [] and layer.learns()


def test_frozen_parts_cost_no_memory(arrays_in):
    """In a frozen block that must run back, no linear layer keeps its input."""
    block = Block(8, 2, 0.0)
    x = rng().standard_normal((2, 5, 8)).astype(np.float32)

    def kept():
        weights = [p.data for p in block.parameters()]
        return sum(a.size for a in arrays_in(block.forward(x)[1])
                   if not any(np.shares_memory(a, w) for w in weights))
    everything = kept()
    for p in block.parameters():
        p.trainable = False
    tokens = x.size // 8
    # The inputs of c_attn, c_proj and c_fc (8 channels each) and of mlp.c_proj (32).
    assert kept() <= everything - (8 + 8 + 8 + 32) * tokens


def test_layers_start_with_zeros_and_unit_scales():
    """Weights and biases are 0, scales 1; what is not given is GPT-2's, without dropout."""
    block = Block(2, 1)
    for layer, groups in ((Linear(2, 3), "mlp"), (LayerNorm(2), "ln"), (Embedding(4, 2), "input"),
                          (Positions(4, 2), "pos"), (Attention(2, 1), "attn"), (MLP(2), "mlp"),
                          (block, "ln attn mlp")):
        for name, p in layer.named_parameters():
            assert p.group in groups and p.data.dtype == np.float32
            assert p.trainable and p.grad is None
            scale = p.group == "ln" and name.endswith("weight")
            np.testing.assert_array_equal(p.data, np.full(p.data.shape, float(scale)))
    assert LayerNorm(2).eps == block.ln_1.eps == block.ln_2.eps == 1e-5
    assert MLP(2).act.name == block.mlp.act.name == "gelu_new"
    for attn in (Attention(2, 1), block.attn):
        assert attn.causal is True and attn.dropout == 0
    assert MLP(2).dropout == block.mlp.dropout == 0


def test_a_cache_is_keyed_like_the_attributes():
    """A layer of several parts has a dictionary, one of a single operation the operation's."""
    block = Block(6, 2)
    _, cache = block.forward(rng().standard_normal((2, 4, 6)).astype(np.float32))
    assert {key for key in cache if hasattr(block, key)} == {"ln_1", "attn", "ln_2", "mlp"}
    assert cache["attn"]["heads"].probabilities.shape == (2, 2, 4, 4)
    assert isinstance(cache["ln_1"], F.LayerNormCache)
    for part, linears in (("attn", ["c_attn", "c_proj"]), ("mlp", ["c_fc", "c_proj"])):
        assert [key for key, part_cache in cache[part].items()
                if isinstance(part_cache, F.LinearCache)] == linears


def test_a_parameter_prints_its_shape_and_state():
    p = Parameter(np.zeros((3, 2), np.float32), "mlp")
    assert repr(p) == "Parameter((3, 2) float32, mlp, trained, gradient none)"
    with refused("int64 and shape .2,., expected an array of floating-point numbers"):
        Parameter(np.zeros(2, int), "mlp")
    p.grad, p.trainable = np.full((3, 2), 2.0), False
    assert repr(p) == "Parameter((3, 2) float32, mlp, frozen, gradient 4.9)"


def test_a_layer_prints_its_parameters():
    mlp = MLP(2, dtype=np.float64)
    mlp.c_fc.weight.trainable = False
    mlp.c_proj.bias.grad = np.array([3.0, 4.0])
    assert repr(mlp) == """MLP
  c_fc.weight    (2, 8) float64, mlp, frozen, gradient none
  c_fc.bias      (8,) float64, mlp, trained, gradient none
  c_proj.weight  (8, 2) float64, mlp, trained, gradient none
  c_proj.bias    (2,) float64, mlp, trained, gradient 5"""
    assert repr(Activation("relu")) == "Activation"


def test_add_grad_adds():
    p = Parameter(np.zeros(2), "ln")
    p.add_grad(None)
    assert p.grad is None
    first = np.ones(2)
    p.add_grad(first)
    p.add_grad(np.full(2, 2.0))
    np.testing.assert_array_equal(p.grad, [3, 3])
    np.testing.assert_array_equal(first, [1, 1])          # another parameter may have it, too
    p.add_grad(None)
    np.testing.assert_array_equal(p.grad, [3, 3])


def test_add_grad_leaves_a_frozen_parameter_alone():
    p = Parameter(np.zeros(2), "ln")
    p.trainable = False
    p.add_grad(np.ones(2))
    assert p.grad is None
    p.grad = np.ones(2)                                   # from before it was frozen
    p.add_grad(np.ones(2))
    np.testing.assert_array_equal(p.grad, [1, 1])


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_ids_into_an_input_layer_half_frozen(frozen):
    """The frozen one costs nothing: its gradient is not computed."""
    layer, ids = InputLayer(5, 2, np.float64, "input"), np.array([[0, 4, 0], [2, 2, 2]])
    getattr(layer, frozen).trainable = False
    with minifpt.trace(layer) as t:
        y, cache = layer.forward(ids)
        assert layer.backward(np.ones_like(y), cache) is None
    assert getattr(layer, frozen).grad is None
    ahead = {s.op: s.gradients for s in t.steps if not s.backward}
    assert (ahead["bias"]["b"] is None) == (frozen == "bias")
    assert (ahead["embedding"]["w"] is None) == (frozen == "weight")
    want = {"bias": [6.0, 6], "weight": np.array([2.0, 0, 3, 0, 1])[:, None] * np.ones(2)}
    del want[frozen]
    for name, grad in want.items():
        np.testing.assert_array_equal(getattr(layer, name).grad, grad)


@pytest.mark.parametrize("layer, x", [(Linear(4, 2), np.ones((2, 3))),
                                      (LayerNorm(4), np.ones((2, 3))),
                                      (Embedding(4, 2), np.array([0, 7]))])
def test_shapes_and_ids_that_do_not_fit_are_refused(layer, x):
    with refused():
        layer.forward(x)


def test_a_gradient_of_another_shape_or_kind_is_refused():
    for grad in (np.zeros((3, 2)), np.zeros((2, 3), complex), np.full((2, 3), "1"), [[0.0] * 3] * 2,
                 np.zeros((2, 3), np.uint8)):
        with refused(r"gradient is an? .*, expected floating-point .* shape \(2, 3\)"):
            Parameter(np.zeros((2, 3)), "mlp").add_grad(grad)


def test_two_parameters_may_be_given_one_array():
    a, b, g = Parameter(np.zeros(2), "mlp"), Parameter(np.zeros(2), "mlp"), np.ones(2)
    b.frozen_columns = (slice(0, 1),)
    for _ in range(2):
        a.add_grad(g)
        b.add_grad(g)
    np.testing.assert_array_equal([a.grad, b.grad], [[2, 2], [0, 2]])
    assert (a.trained_size(), b.trained_size()) == (2, 1)


def test_inference_in_another_thread_takes_no_gradient_away():
    layer, x = Linear(4, 3), np.ones((2, 4), np.float32)
    with ThreadPoolExecutor(1) as pool, layer.all_frozen():
        assert not layer.learns()
        assert pool.submit(layer.learns).result()
        _, cache = pool.submit(layer.forward, x).result()
        pool.submit(layer.backward, np.ones((2, 3), np.float32), cache).result()
    assert layer.weight.grad is not None and layer.learns()


def test_a_full_key_value_cache_refuses_more():
    past, k = KeyValues(3), np.zeros((2, 1, 2, 4), np.float32)
    past.extend(k, k)
    with refused("2 x 2 tokens do not fit, there is room for 2 x 1"):
        past.extend(k, k)
    with refused("1 x 1 tokens do not fit"):
        past.extend(k[:1, :, :1], k[:1, :, :1])
    past.extend(k[:, :, :1], k[:, :, :1])
    assert past.n == 3
