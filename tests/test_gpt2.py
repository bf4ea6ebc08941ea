"""GPT-2: its names, its initialisation, its causal mask; gradients are in test_models."""

import copy
import pickle
import zlib

import numpy as np
import pytest
from conftest import refused, rng

import minifpt
from minifpt.gpt2 import SHAPES
from minifpt.layers import KVCache, standard_normal


def config(**kw):
    return minifpt.GPT2Config(**{"n_layer": 2, "n_head": 2, "n_embd": 6, "n_positions": 7,
                                 "vocab_size": 9, "dropout": 0.2, **kw})


@pytest.fixture(scope="module")
def lm(randomise):
    """Return a language model in float64, with nothing frozen at the start of each test."""
    return randomise(minifpt.LanguageModel(config(), dtype=np.float64))


@pytest.fixture(scope="module")
def trunk(lm):
    return lm.trunk


@pytest.fixture(autouse=True)
def thaw(lm):
    yield
    lm.freeze(minifpt.FreezeMask.full())
    lm.zero_grad()


@pytest.mark.parametrize("name, parameters", [
    ("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080),
    ("gpt2-xl", 1_557_611_200)])
def test_the_shapes_are_openai_s(name, parameters):
    """They have the checkpoints' number of parameters, and 64 channels in a head."""
    c = minifpt.GPT2Config(**SHAPES[name])
    C = c.n_embd
    block = 12 * C * C + 13 * C
    assert (c.vocab_size + c.n_positions) * C + c.n_layer * block + 2 * C == parameters
    assert C == 64 * c.n_head


def test_a_seed_draws_the_same_weights_in_every_version():
    """Otherwise a later version could not repeat a run."""
    default, drawn = minifpt.LanguageModel(config()), minifpt.LanguageModel(config(), 0)
    want = dict(drawn.named_parameters())
    for name, p in default.named_parameters():
        np.testing.assert_array_equal(p.data, want[name].data)
    for name, p in want.items():                          # residual projections have less
        name = name.removeprefix("trunk.")
        draws = np.random.default_rng([0, zlib.crc32(name.encode())])
        numbers = draws.standard_normal(p.data.shape, np.float32) * (
            0.01 if "c_proj" in name else 0.02)
        np.testing.assert_allclose(p.data, numbers if p.data.ndim > 1 else float(
            "ln" in name and name.endswith("weight")), rtol=1e-5, err_msg=name)


def test_names_and_shapes_are_gpt2_s():
    names = {n: p.data.shape for n, p in minifpt.GPT2(config(n_layer=1)).named_parameters()}
    assert names == {
        "wpe.weight": (7, 6),
        "h.0.ln_1.weight": (6,), "h.0.ln_1.bias": (6,),
        "h.0.attn.c_attn.weight": (6, 18), "h.0.attn.c_attn.bias": (18,),
        "h.0.attn.c_proj.weight": (6, 6), "h.0.attn.c_proj.bias": (6,),
        "h.0.ln_2.weight": (6,), "h.0.ln_2.bias": (6,),
        "h.0.mlp.c_fc.weight": (6, 24), "h.0.mlp.c_fc.bias": (24,),
        "h.0.mlp.c_proj.weight": (24, 6), "h.0.mlp.c_proj.bias": (6,),
        "ln_f.weight": (6,), "ln_f.bias": (6,)}
    model = minifpt.LanguageModel(config(n_layer=1))
    assert {n: p.data.shape for n, p in model.named_parameters()} == {
        **{f"trunk.{n}": shape for n, shape in names.items()}, "wte.weight": (9, 6)}


@pytest.mark.parametrize("kind", [minifpt.GPT2, minifpt.LanguageModel])
def test_a_model_without_a_seed_has_zeros_of_the_same_shapes(kind):
    zeros, drawn = kind(config(), seed=None), kind(config())
    for (name, p), (same, q) in zip(zeros.named_parameters(), drawn.named_parameters(),
                                    strict=True):
        assert (name, p.data.shape, p.group) == (same, q.data.shape, q.group)
        assert not p.data[p.data != 1].any() and (p.data.ndim == 1 or not p.data.any())


@pytest.mark.parametrize("wrong, message", [
    ({"dtype": np.float16}, "dtype is .*, expected float32 or float64$"),
    ({"dtype": np.int64}, "dtype is .*, expected float32 or float64$"),
    ({"n_layer": 0}, "n_layer must .*got 0"), ({"n_head": -1}, "n_head must .*got -1"),
    ({"n_embd": 0}, "n_embd must .*got 0"), ({"n_positions": 0}, "n_positions must .*got 0"),
    ({"vocab_size": 0}, "vocab_size must .*got 0"),
    ({"n_head": 4}, "6 is not divisible by n_head 4"),
    ({"dropout": 1.0}, "dropout is 1.0"), ({"dropout": -0.1}, "dropout is -0.1"),
    ({"n_layer": True}, "n_layer must .*got True"), ({"n_layer": 2.0}, "n_layer must .*got 2.0"),
    ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon is 0.0"),
    ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan"),
    ({"activation_function": "tanh"}, "activation_function is 'tanh', expected one of gelu_new"),
    ({"activation_function": ["relu"]}, "activation_function is"), ({"causal": 1}, "causal is 1")])
def test_wrong_configs_and_dtypes_are_refused(wrong, message):
    dtype = wrong.get("dtype", np.float32)
    with refused(f"^GPT2(Config)?: .*{message}"):
        minifpt.GPT2(config(**{k: v for k, v in wrong.items() if k != "dtype"}), dtype=dtype)


X = np.zeros((2, 3, 6), np.float32)
OF_TWO = KVCache(9)
OF_TWO.n = 2


@pytest.mark.parametrize("call, message", [
    (lambda: minifpt.GPT2({"n_layer": 1}), "expected an instance of GPT2Config"),
    (lambda: minifpt.GPT2.from_pretrained(3), "expected a name or a path"),
    (lambda: minifpt.LanguageModel(config()).forward([[1, 2]]), "LanguageModel: ids"),
    (lambda: minifpt.GPT2(config(), seed=-1), "seed must be a whole number"),
    (lambda: minifpt.GPT2(config()).add_positions(0), "add_positions: n must be"),
    (lambda: minifpt.GPT2(config()).forward(X, last=4), "last must be a whole number"),
    (lambda: minifpt.GPT2(config()).forward(X.repeat(3, axis=1), past=[KVCache(9), KVCache(9)]),
     "9 tokens, the trunk has 7 positions"),
    *((lambda past=past, c=c: minifpt.GPT2(config(**c)).forward(X, past=past), "GPT2: past is")
      for past, c in (("x", {}), ([KVCache(9)], {}), ([None, None], {}), ([KVCache(9), OF_TWO], {}),
                      ([KVCache(9), KVCache(9)], {"causal": False})))])
def test_wrong_arguments_are_refused(call, message):
    with refused(message):
        call()


def test_config_defaults_are_gpt2():
    assert minifpt.GPT2Config() == minifpt.GPT2Config(12, 12, 768, 1024, 50257, 0.1, 1e-5,
                                                      "gelu_new", True)


def test_positions_are_appended_as_a_new_trunk_draws_them():
    trunk, same = (minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8, 5)) for _ in range(2))
    trunk.add_positions(3000, seed=1)
    table = trunk.wpe.weight.data
    assert trunk.config.n_positions == 3000 and table.shape == (3000, 4)
    assert table.dtype == np.float32 and table[8:].std() == pytest.approx(0.02, rel=0.05)
    np.testing.assert_array_equal(table[:8], same.wpe.weight.data)
    same.add_positions(8)
    assert same.config.n_positions == 8 and len(same.wpe.weight.data) == 8


@pytest.mark.parametrize("T", [49, 120])
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_reads_later_tokens_only_if_not_causal(randomise, causal, T):
    """With one tile of attention and with two: the gradient reaches the tokens that are read."""
    trunk = randomise(minifpt.GPT2(config(n_positions=120, causal=causal), dtype=np.float64))
    y, cache = trunk.forward(rng(1).standard_normal((2, T, 6)))
    dy = np.zeros_like(y)
    dy[:, 1] = rng(3).standard_normal((2, 6))             # only the second token is read
    reached = trunk.backward(dy, cache).any(axis=-1)
    assert reached[:, :2].all() and (reached[:, 2:] != causal).all()


def test_logits_are_scores_by_the_token_table_of_the_trunk_s_dtype(trunk):
    lm = minifpt.LanguageModel(trunk, seed=7)
    assert lm.trunk is trunk and lm.config is trunk.config and lm.dtype == np.float64
    table = 0.02 * standard_normal((9, 6), 7, "wte.weight").astype(np.float64)
    np.testing.assert_allclose(lm.wte.weight.data, table, rtol=1e-6)
    ids = np.array([[1, 5, 5], [0, 8, 2]])
    hidden, _ = trunk.forward(lm.wte.weight.data[ids])
    np.testing.assert_allclose(lm.logits(ids), hidden @ lm.wte.weight.data.T)
    np.testing.assert_array_equal(lm.logits(ids.tolist()), lm.logits(ids))
    with refused("ids run from 0 to 9, the vocabulary from 0 to 8$"):
        lm.logits([[0, 9]])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_model_can_be_copied(lm, again):
    lm.wte.weight.trainable = False
    other = again(lm)
    np.testing.assert_array_equal(other.logits([[1, 2]]), lm.logits([[1, 2]]))
    assert [p.trainable for p in other.parameters()] == [p.trainable for p in lm.parameters()]
    other.wte.weight.data += 1
    assert (other.logits([[1, 2]]) != lm.logits([[1, 2]])).any()
