"""Layers: they are their operations, what their caches hold, what frozen parameters cost."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import refused, rng
from hypothesis import given
from hypothesis import strategies as st
from numpy import ones

import minifpt
from minifpt import functional as F
from minifpt import layers
from minifpt.gradients import gradcheck
from minifpt.layers import (
    MLP,
    Activation,
    Attention,
    Block,
    Embedding,
    KVCache,
    LayerNorm,
    Linear,
    Parameter,
    Positions,
    Unembedding,
)
from minifpt.trunks.parts import RMSNorm


def block(n_embd, n_head, dropout=0.0, dtype=np.float32, causal=True, activation="gelu_new"):
    """A block of GPT-2."""
    return Block(LayerNorm(n_embd, dtype=dtype),
                 Attention(n_embd, n_head, dropout, dtype, causal), LayerNorm(n_embd, dtype=dtype),
                 MLP(n_embd, dropout, dtype, activation))


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_over_many_tokens_equal_differences(causal, randomise):
    """Long enough that attention done in tiles has several."""
    layer = randomise(block(4, 2, 0.2, dtype=np.float64, causal=causal))
    report = gradcheck(layer, rng(1).standard_normal((1, 70, 4)), elementwise=1, directions=1)
    assert report, str(report)


SIMPLE = {"gelu_new": F.gelu, "gelu_pytorch_tanh": F.gelu, "gelu": F.gelu_exact,
          "gelu_python": F.gelu_exact, "relu": F.relu, "silu": F.silu}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("activation", layers.ACTIVATIONS)
def test_layers_are_their_operations(randomise, activation, causal):
    """A block is the composition that its docstring says, from functional's simple forms."""
    layer = randomise(block(6, 2, 0.2, dtype=np.float64, causal=causal, activation=activation))
    layer.ln_1.eps, layer.ln_2.eps = 0.1, 0.3
    p = {n: q.data for n, q in layer.named_parameters()}
    x, g = rng(1).standard_normal((2, 5, 6)), rng(3)

    def run(op, x, name, *eps):
        return op(x, p[f"{name}.weight"], p[f"{name}.bias"], *eps)[0]

    qkv = np.split(run(F.linear, run(F.layer_norm, x, "ln_1", 0.1), "attn.c_attn"), 3, axis=-1)
    a, _ = F.attention(*(F.split_heads(part, 2) for part in qkv), 0.2, g, causal)
    y = x + F.dropout(run(F.linear, F.merge_heads(a), "attn.c_proj"), 0.2, g)[0]
    m = SIMPLE[activation](run(F.linear, run(F.layer_norm, y, "ln_2", 0.3), "mlp.c_fc"))[0]
    y = y + F.dropout(run(F.linear, m, "mlp.c_proj"), 0.2, g)[0]
    np.testing.assert_allclose(layer.forward(x, True, rng(3))[0], y, rtol=1e-12)
    assert gradcheck(Activation(activation), x)


def test_layers_in_lists_tuples_and_dictionaries_have_names():
    class Net(layers.Layer):
        def __init__(self):
            self.rows = [Linear(2, 3), (Linear(3, 4), None)]
            self.by_name = {"last": Linear(4, 1)}
    assert [name for name, _ in Net().named_parameters()] == [
        f"{path}.{part}" for path in ("rows.0", "rows.1.0", "by_name.last")
        for part in ("weight", "bias")]


def test_all_frozen_ends_in_any_order_and_by_an_error():
    """As two streams of tokens of one model do."""
    layer = Linear(2, 2)
    first, second = layer.all_frozen(), layer.all_frozen()
    first.__enter__(), second.__enter__()
    assert not layer.learns()
    first.__exit__(None, None, None), second.__exit__(None, None, None)
    assert layer.learns()
    with pytest.raises(RuntimeError), layer.all_frozen():
        raise RuntimeError
    assert layer.learns()


def test_inference_in_another_thread_takes_no_gradient_away():
    layer, x = Linear(4, 3), ones((2, 4), np.float32)
    with ThreadPoolExecutor(1) as pool, layer.all_frozen():
        assert not layer.learns()
        assert pool.submit(layer.learns).result()
        _, cache = pool.submit(layer.forward, x).result()
        pool.submit(layer.backward, ones((2, 3), np.float32), cache).result()
    assert layer.weight.grad is not None and layer.learns()


def test_what_a_layer_is_not_given_is_gpt2_s_without_dropout():
    whole = minifpt.GPT2(minifpt.GPT2Config(1, 1, 2, 4, 2, 0.0), seed=None).h[0]
    assert LayerNorm(2).eps == whole.ln_1.eps == whole.ln_2.eps == 1e-5
    assert MLP(2).act.name == whole.mlp.act.name == "gelu_new"
    assert Attention(2, 1).causal is whole.attn.causal is True
    assert {part.dropout for part in (Attention(2, 1), whole.attn, MLP(2), whole.mlp)} == {0}


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
    assert repr(mlp.c_proj.bias) == "Parameter((2,) float64, mlp, trained, gradient 5)"


def test_add_grad_adds_where_a_parameter_learns():
    """Two parameters may be given one array; a frozen one, or its frozen columns, take nothing."""
    p, half, frozen = (Parameter(np.zeros(2), "mlp") for _ in range(3))
    half.frozen_columns, frozen.trainable, g = (slice(0, 1),), False, ones(2)
    for _ in range(2):
        for each in (p, half, frozen):
            each.add_grad(g)
            each.add_grad(None)
    np.testing.assert_array_equal([p.grad, half.grad, g], [[2, 2], [0, 2], [1, 1]])
    assert frozen.grad is None
    assert [each.trained_size() for each in (p, half, frozen)] == [2, 1, 0]


def full_cache(*sizes):
    """Give keys and values of these (batch, tokens) to a cache with room for three tokens."""
    past = KVCache(3)
    for B, T in sizes:
        past.extend(*2 * [np.zeros((B, 1, T, 4), np.float32)])
    return past


@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_a_key_value_cache_returns_all_so_far(B, G, parts):
    """In order, as views of one block; what was returned before stays as it was."""
    whole = rng().standard_normal((2, B, G, sum(parts), 4))
    past, before = KVCache(sum(parts) + 1), []
    assert past.n == 0 and past.k is past.v is None and past.capacity == sum(parts) + 1
    for start, T in zip(np.cumsum([0, *parts]), parts, strict=False):
        before.append(past.extend(*whole[:, :, :, start:start + T]))
        assert past.n == start + T == before[-1][0].shape[2]
        for both in before:
            np.testing.assert_array_equal(both, whole[:, :, :, :both[0].shape[2]])
            assert np.shares_memory(both[0], past.k) and np.shares_memory(both[1], past.v)


HIDDEN = ones((2, 3, 8))
REFUSALS = [
    *((lambda layer=layer, shape=shape: layer.backward(ones(shape), layer.forward(HIDDEN)[1]),
       "the gradient has")
      for layer in (Linear(8, 8, float), LayerNorm(8, dtype=float), Attention(8, 2, dtype=float),
                    Activation("gelu_new"), Unembedding(Parameter(ones((8, 8)), "mlp")))
      for shape in ((1, 3, 8), (2, 1, 8), (3, 2, 8))),
    (lambda: Linear(4, 2).forward(HIDDEN), None), (lambda: LayerNorm(4).forward(HIDDEN), None),
    (lambda: Embedding(4, 2).forward(np.array([0, 7])), "from 0 to 7, expected 0 to 3"),
    (lambda: Parameter(ones(2, int), "mlp"),
     r"int64 and shape \(2,\), expected an array of floating-point numbers"),
    *((lambda grad=grad: Parameter(ones((2, 3)), "mlp").add_grad(grad),
       r"gradient is an? .*, expected floating-point .* shape \(2, 3\)")
      for grad in (ones((3, 2)), ones((2, 3), complex), np.full((2, 3), "1"), [[0.0] * 3] * 2,
                   ones((2, 3), np.uint8))),
    (lambda: Attention(8, -1), "Attention: n_head must be a whole"),
    *((lambda make=make: make(0), "must be a whole number, at least 1") for make in (
        lambda n: Linear(n, 4), lambda n: Linear(4, n), LayerNorm, lambda n: Embedding(n, 4),
        lambda n: Positions(4, n), MLP, lambda n: Attention(n, 2), KVCache)),
    *((lambda layer=layer: layer.forward(np.ones((2, 3, 1), np.float32)),
       r"x has shape \(2, 3, 1\), expected \(..., 4\)")       # one channel is not used for all
      for layer in (LayerNorm(4), Positions(9, 4), RMSNorm(4, 1e-5))),
    *((lambda layer=layer: layer.forward(np.ones((1, 3, 8)), train=True), "rng is None: pass rng=")
      for layer in (minifpt.trunks.get(name, dropout=0.1) for name in (
          "random:1x2x8", "random:llama:1x2x8", "lstm:1x8"))),
    (lambda: Attention(8, 3), "8 channels cannot be divided into 3 heads"),
    (lambda: Activation("gel"), "Activation: name is 'gel', expec"),
    (lambda: full_cache((2, 2), (2, 2)), "2 x 2 tokens do not fit, there is room for 2 x 1"),
    (lambda: full_cache((2, 2), (1, 1)), "1 x 1 tokens do not fit")]


@pytest.mark.parametrize("call, message", REFUSALS)
def test_what_a_layer_cannot_take_is_refused(call, message):
    with refused(message):
        call()
