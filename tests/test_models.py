"""Every trunk, model and layer: gradients under any mask, caches, dtypes, dropout."""

import inspect
import re

import numpy as np
import pytest
from conftest import refused, rng
from hypothesis import given, settings
from hypothesis import strategies as st

import minifpt
from minifpt import layers
from minifpt.gradients import gradcheck
from minifpt.layers import Parameter
from minifpt.trunks import Llama, LlamaConfig, LlamaLM
from minifpt.trunks.encoder import Encoder, EncoderConfig
from minifpt.trunks.lstm import LSTM, LSTMConfig
from minifpt.trunks.neox import NeoX, NeoXConfig

GPT2 = dict(n_layer=2, n_head=2, n_embd=6, n_positions=7, vocab_size=9, dropout=0.2)
LLAMA_SIZES = GPT2 | {"n_embd": 8}
LLAMA = LLAMA_SIZES | {"n_group": 1}
IDS = np.array([[0, 8, 3, 3], [1, 3, 0, 0]])


def gpt2(dtype, **changed):
    return minifpt.GPT2(minifpt.GPT2Config(**GPT2 | changed), dtype=dtype)


def llama(dtype, kind=Llama, **changed):
    return kind(LlamaConfig(**LLAMA | changed), dtype=dtype)


def lstm(dtype, **changed):
    return LSTM(LSTMConfig(2, 4, 7, 0.3, **changed), dtype=dtype)


def bert(dtype):
    return Encoder(EncoderConfig("bert", **GPT2), 0, dtype)


TRUNKS = {
    "gpt2": gpt2, "llama": llama, "bert": bert,
    "neox": lambda dtype: NeoX(NeoXConfig(**LLAMA_SIZES, rope_share=0.5), dtype=dtype),
    "gpt2, not causal": lambda dtype: gpt2(dtype, causal=False, activation_function="relu"),
    "llama with biases": lambda dtype: llama(dtype, qkv_bias=True, n_inner=5, rope_base=50.0),
    "lstm": lambda dtype: lstm(dtype, residual=True, positions=True), "lstm alone": lstm}
MODELS = {
    "gpt2 lm": lambda dtype: minifpt.LanguageModel(minifpt.GPT2Config(**GPT2), dtype=dtype),
    "llama lm": lambda dtype: llama(dtype, LlamaLM),
    "llama lm, two tables": lambda dtype: llama(dtype, LlamaLM, tied=False),
    "fpt of ids": lambda dtype: minifpt.FPT(gpt2(dtype), 9, 4, 3),
    **{f"fpt of {name}": lambda dtype, make=make: minifpt.FPT(make(dtype), 3, 4, 2)
       for name, make in TRUNKS.items() if " " not in name}}
LAYERS = {
    "Linear": lambda dtype: layers.Linear(6, 4, dtype),
    "LayerNorm": lambda dtype: layers.LayerNorm(6, dtype=dtype),
    "Attention": lambda dtype: layers.Attention(6, 2, 0.2, dtype),
    "MLP": lambda dtype: layers.MLP(6, 0.2, dtype),
    "Block": lambda dtype: layers.Block(
        layers.LayerNorm(6, dtype=dtype), layers.Attention(6, 2, 0.2, dtype),
        layers.LayerNorm(6, dtype=dtype), layers.MLP(6, 0.2, dtype)),
    "Positions": lambda dtype: layers.Positions(7, 6, dtype)}
ALL = TRUNKS | MODELS | LAYERS
DISTINCT = [name for name in ALL if name not in (         # others hold the same layers
    "llama lm", "fpt of llama", "fpt of bert", "fpt of lstm")]
MADE = {}                                                 # models in float64, made once


@pytest.fixture(scope="module")
def build(randomise):
    """Return ``build(name)``: a model in float64, all of it trainable, and an input of it."""
    def build(name, dtype=np.float64):
        if (name, dtype) not in MADE:
            MADE[name, dtype] = randomise(ALL[name](dtype))
        model = MADE[name, dtype]
        for p in model.parameters():
            p.trainable, p.grad = True, None
        width = 6 if name in LAYERS else 3 if name in MODELS else model.config.n_embd
        x = IDS if "lm" in name or "ids" in name else rng(1).standard_normal((2, 5, width))
        return model, x if x is IDS else x.astype(dtype)
    return build


every = pytest.mark.parametrize("name", ALL)
distinct = pytest.mark.parametrize("name", DISTINCT)
trunks = pytest.mark.parametrize("name", TRUNKS)


def run(model, x, seed=2, **options):
    """Run forward, with dropout where there is any."""
    takes = inspect.signature(model.forward).parameters
    options = {key: value for key, value in options.items() if key in takes}
    return model.forward(x, *((True, rng(seed)) if "train" in takes else ()), **options)


def step(model, x, seed=2, **options):
    """Return dx, and {parameter: gradient} with the output, of a pass forward and back."""
    model.zero_grad()
    y, cache = run(model, x, seed, **options)
    dx = None if cache is None else model.backward(np.cos(y), cache)
    return dx, {"": y} | {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in (
    "gpt2", "gpt2, not causal", "llama", "lstm alone", "fpt of gpt2")])
def test_gradients_equal_differences(build, name):
    model, x = build(name)
    report = gradcheck(model, x, elementwise=0, directions=1, far=None)
    assert report, str(report)
    assert {*report.errors} - {"x"} == {*dict(model.named_parameters())}


def needs_of(model, x, **options):
    """Return {layer: ``need`` of its operation, or ``None`` if it has none} of the layers with
    parameters that run back, in that order."""
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    with minifpt.trace(model) as t:
        step(model, x, **options)
    return {s.layer: getattr(s.inputs.get("cache"), "need", None) for s in t.steps
            if s.backward and s.inside is None and s.layer in owners}


def start_of_block(order, i):
    """Where in ``order``, layers' names from the bottom to the top, the block of the i-th begins: a
    block runs back as a whole."""
    block = re.match(r".*\bh\.\d+\.", f"{order[i]}" if i < len(order) else "")
    return next(k for k, name in enumerate(order) if name.startswith(block[0])) if block else i


@pytest.mark.parametrize("name", DISTINCT)
@settings(max_examples=3)
@given(data=st.data(), need_dx=st.booleans())
def test_any_choice_of_trainable_parameters(build, name, data, need_dx):
    """Trained parameters get the gradients of full training, to the bit, and frozen ones none: they
    are not even computed.  Below the lowest block that learns nothing runs back."""
    model, x = build(name)
    full_dx, full = step(model, x)
    order = [*needs_of(model, x)][::-1]
    chosen = data.draw(st.sets(st.sampled_from([*full][1:]), max_size=3))
    for parameter, p in model.named_parameters():
        p.trainable = parameter in chosen
    dx, grads = step(model, x, need_dx=need_dx)
    np.testing.assert_equal(grads, {n: full[n] if n in {"", *chosen} else None for n in full})
    if name in LAYERS or (name in TRUNKS and need_dx):
        if name != "Linear" or need_dx:                   # it need not compute dx
            np.testing.assert_array_equal(dx, full_dx)
        lowest = 0
    else:
        assert dx is None or np.array_equal(dx, full_dx)
        owners = [parameter.rpartition(".")[0] for parameter in chosen]
        lowest = start_of_block(order, min(
            (order.index(n) if n in order else 0 for n in owners), default=len(order)))
        if "bert" in name and order[lowest:lowest + 1] in (["ln"], ["trunk.ln"]):
            lowest -= 1                                   # with the positions before it
    needs = needs_of(model, x, need_dx=need_dx)
    assert list(needs) == order[lowest:][::-1]
    for key, layer in layers.named_layers(model):
        own = [p for p in vars(layer).values() if isinstance(p, Parameter)]
        if needs.get(key) and not (x is IDS and key == "input"):          # two operations
            # Nobody reads the dx of an input layer, or of a linear layer that says so.
            assert needs[key][0] == (key != "input" and (name != "Linear" or need_dx))
            assert sum(needs[key][1:]) == sum(p.trainable for p in own), key


@distinct
def test_two_forwards_before_two_backwards(build, name):
    """Nothing is stored on a layer: the gradients add up as if run one after the other."""
    model, x = build(name)
    xs = x, x[::-1, 1:]
    singles = [step(model, x, seed) for seed, x in enumerate(xs)]
    model.zero_grad()
    runs = [run(model, x, seed) for seed, x in enumerate(xs)]
    for (y, cache), (dx, _) in zip(runs, singles, strict=True):
        dy = np.cos(y)
        np.testing.assert_equal(model.backward(dy, cache), dx)
        np.testing.assert_array_equal(dy, np.cos(y))      # the caller's array is as it was
    for parameter, p in model.named_parameters():
        np.testing.assert_allclose(p.grad, sum(grads[parameter] for _, grads in singles),
                                   rtol=1e-12, atol=1e-15)


@distinct
def test_without_anything_to_learn_there_is_no_cache(build, name):
    model, x = build(name)
    y, _ = run(model, x)
    model.parameters()[0].trainable = False
    with model.all_frozen() as same:
        assert same is model and not model.learns()
        frozen, cache = run(model, x, need_dx=False)
    np.testing.assert_array_equal(frozen, y)
    assert cache is None or name in LAYERS                # which run back whole
    assert [p.trainable for p in model.parameters()] == [False] + [True] * (
        len(model.parameters()) - 1)


@every
def test_float32_stays_float32(build, name, float32_only, arrays_in):
    model, x = build(name, np.float32)
    for p in model.parameters():
        p.data = float32_only(p.data)
    y, cache = run(model, x if x is IDS else float32_only(x))
    dx = model.backward(np.copy(y), cache)
    floats = [a for a in arrays_in([y, cache, dx, [p.grad for p in model.parameters()]])
              if a.dtype.kind == "f"]
    assert floats and {a.dtype for a in floats} == {np.dtype(np.float32)}
    for p in model.parameters():
        p.data = np.array(p.data)
    if name in TRUNKS:                                    # an input of another dtype is cast
        y = model.forward(x.astype(np.float64))[0]
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, model.forward(x)[0], atol=1e-5)


@pytest.mark.parametrize("name", [*TRUNKS, *MODELS, "Attention", "MLP", "Block"])
def test_dropout_repeats_for_a_seed_and_is_off_in_a_test(build, name):
    model, x = build(name)
    a, b, c = (run(model, x, seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    np.testing.assert_array_equal(model.forward(x, False, rng(1))[0], model.forward(x)[0])
    if name not in LAYERS:
        with refused("rng is None"):
            model.forward(x, train=True)


@pytest.mark.parametrize("name", ["random:1x2x8", "lstm:1x8", "random:llama:1x2x8",
                                  "random:bert:1x2x8"])
def test_a_trunk_refuses_a_wrong_seed_and_dtype(name):
    for options, message in (({"seed": -1}, "seed must be"), ({"dtype": "float16"}, "dtype is ")):
        with refused(message):
            minifpt.trunks.get(name, **options)


@trunks
@pytest.mark.parametrize("shape, message", [
    ((2, 3), r"x has shape \(2, 3\), expected \(B, T, "), ((2, 3, 99), r"expected \(B, T, "),
    ((1, 8, 0), "8 tokens|0 to 7")])
def test_a_trunk_refuses_wrong_shapes(build, name, shape, message):
    trunk, _ = build(name)
    shape = tuple(n or trunk.config.n_embd for n in shape)
    if name == "lstm alone" and shape[1] == 8:            # without positions there is no limit
        assert trunk.forward(np.ones(shape))[0].shape == shape
        return
    with refused(message):
        trunk.forward(np.ones(shape))


@pytest.mark.parametrize("name, layer", [
    *((name, "ln_f") for name in ("random:1x2x8", "lstm:1x8", "random:llama:1x2x8")),
    *((name, "wpe") for name in ("random:1x2x8", "lstm:1x8,positions", "random:bert:1x2x8")),
    ("random:bert:1x2x8", "ln")])
def test_a_layer_below_or_above_the_blocks_may_learn_alone(name, layer):
    trunk = minifpt.trunks.get(name)
    trunk.freeze(f"only:{layer}.*")
    y, cache = trunk.forward(rng().standard_normal((2, 3, 8)), need_dx=False)
    trunk.backward(y, cache)
    gradients = {key for key, p in trunk.named_parameters() if p.grad is not None}
    assert gradients and all(key.startswith(f"{layer}.") for key in gradients)
