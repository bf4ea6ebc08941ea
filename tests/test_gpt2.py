"""The trunk and the language model: names, gradients under every mask, files."""

import copy
import gc
import pickle
import shutil
import subprocess
import sys
import weakref
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import memory

import minifpt
from minifpt.gpt2 import SHAPES
from minifpt.gradients import gradcheck
from minifpt.layers import standard_normal

IDS = np.array([[0, 8, 3, 3], [1, 3, 0, 0]])


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


def rng(seed=0):
    return np.random.default_rng(seed)


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


def test_the_shape_of_the_weights_that_ship():
    assert SHAPES["minigpt"] == dict(n_layer=6, n_head=4, n_embd=128, n_positions=256,
                                     vocab_size=256)


def test_a_seed_draws_the_same_weights_in_every_version():
    """Otherwise a later version could not repeat a run."""
    default, drawn = minifpt.LanguageModel(config()), minifpt.LanguageModel(config(), 0)
    want = dict(drawn.named_parameters())
    for name, p in default.named_parameters():
        np.testing.assert_array_equal(p.data, want[name].data)
    for name, std in (("wte.weight", 0.02), ("wpe.weight", 0.02), ("h.1.mlp.c_proj.weight", 0.01)):
        got = want.get(f"trunk.{name}", want.get(name)).data
        draws = np.random.default_rng([0, zlib.crc32(name.encode())])
        np.testing.assert_allclose(got, std * draws.standard_normal(got.shape, np.float32),
                                   rtol=1e-5)


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


def test_initialisation_has_gpt2_s_deviations():
    """Matrices have deviation 0.02, residual projections less; scales are 1 and biases 0."""
    model = minifpt.LanguageModel(config(n_layer=8, n_embd=64, n_positions=100, vocab_size=200))
    for name, p in model.named_parameters():
        assert p.data.dtype == np.float32 and p.trainable and p.grad is None
        if p.data.ndim == 1:
            assert (p.data == ("ln" in name and name.endswith("weight"))).all()
        else:
            std = 0.02 / 4 if "c_proj" in name else 0.02
            assert p.data.std() == pytest.approx(std, rel=0.05), name
            assert abs(p.data.mean()) < 5 * std / p.data.size**0.5


@pytest.mark.parametrize("wrong, message", [
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
def test_wrong_configs_are_refused(wrong, message):
    with pytest.raises(ValueError, match=f"^GPT2Config: [^\n]*{message}[^\n]*$"):
        config(**wrong)


def test_config_defaults_are_gpt2():
    assert minifpt.GPT2Config() == minifpt.GPT2Config(12, 12, 768, 1024, 50257, 0.1, 1e-5,
                                                      "gelu_new", True)


@pytest.mark.parametrize("kind", [minifpt.GPT2, minifpt.LanguageModel])
@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_other_dtypes_are_refused(kind, dtype):
    with pytest.raises(ValueError, match="^GPT2: dtype is [^\n]*, expected float32 or float64$"):
        kind(config(), dtype=dtype)


def test_positions_are_appended_as_a_new_trunk_draws_them(tmp_path):
    config = minifpt.GPT2Config(1, 1, 4, 8, 5)
    trunk, other = minifpt.GPT2(config), minifpt.GPT2(config, seed=0)
    np.testing.assert_array_equal(trunk.wpe.weight.data, other.wpe.weight.data)
    before, model = trunk.wpe.weight.data, minifpt.LanguageModel(trunk)
    trunk.add_positions(3000, seed=1)
    after = trunk.wpe.weight.data
    assert trunk.config.n_positions == 3000 and after.shape == (3000, 4)
    assert after.dtype == np.float32 and after[8:].std() == pytest.approx(0.02, rel=0.05)
    np.testing.assert_array_equal(after[:8], before)
    model.save(tmp_path / "a.npz")
    assert minifpt.LanguageModel.from_pretrained(tmp_path / "a.npz").config.n_positions == 3000
    other.add_positions(8)
    assert other.config.n_positions == 8 and len(other.wpe.weight.data) == 8


def test_the_table_gets_both_of_its_gradients(lm):
    """It embeds the tokens and scores them; tokens outside the text are scored, too."""
    lm.freeze(minifpt.FreezeMask(pos=True, ln=True, attn=True, mlp=True))
    report = gradcheck(lm, IDS, elementwise=54)
    assert report and list(report.errors) == ["wte.weight"], str(report)
    with minifpt.trace(lm) as t:
        logits, cache = lm.forward(IDS)
        lm.backward(np.cos(logits), cache)
    parts = {s.op: s.gradients["w"] for s in t.steps if s.gradients.get("w") is not None}
    assert set(parts) == {"embedding", "unembedding"} and parts["unembedding"].all()
    used = np.isin(np.arange(9), IDS)
    assert parts["embedding"][used].all() and not parts["embedding"][~used].any()
    np.testing.assert_allclose(lm.wte.weight.grad, sum(parts.values()), rtol=1e-12)


def test_nothing_is_cached_below_the_lowest_trainable(trunk, arrays_in):
    """If only the last layer norm learns, the cache holds nothing else, not even dropout masks."""
    trunk.freeze(minifpt.FreezeMask.parse("pos,attn,mlp,h.*"))
    x = rng(1).standard_normal((2, 5, 6))
    _, cache = trunk.forward(x, True, rng(2), need_dx=False)
    # The normalised rows, 1 / deviation for each, and the scales.
    assert sum(a.size for a in arrays_in(cache)) <= x.size + 10 + 6


@pytest.mark.parametrize("T", [49, 120])
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_reads_later_tokens_only_if_not_causal(randomise, causal, T):
    """With one tile of attention and with two: outputs and gradients."""
    trunk = randomise(minifpt.GPT2(config(n_positions=120, causal=causal), dtype=np.float64))
    x = rng(1).standard_normal((2, T, 6))
    y, cache = trunk.forward(x)
    other = x.copy()
    other[:, -1] = rng(2).standard_normal((2, 6))         # the last token changes
    changed, _ = trunk.forward(other)
    assert (changed[:, -1] != y[:, -1]).all()
    if causal:
        np.testing.assert_array_equal(changed[:, :-1], y[:, :-1])
    else:
        assert (changed[:, :-1] != y[:, :-1]).any(axis=-1).all()
    dy = np.zeros_like(y)
    dy[:, 0] = rng(3).standard_normal((2, 6))             # only the first token is read
    reached = trunk.backward(dy, cache).any(axis=-1)
    assert reached[:, 0].all() and (reached[:, 1:] != causal).all()


def test_logits_are_scores_by_the_token_table(lm):
    ids = np.array([[1, 5, 5], [0, 8, 2]])
    logits = lm.logits(ids)
    hidden, _ = lm.trunk.forward(lm.wte.weight.data[ids])
    np.testing.assert_allclose(logits, hidden @ lm.wte.weight.data.T)
    np.testing.assert_array_equal(lm.logits(ids.tolist()), logits)
    assert all(p.trainable for p in lm.parameters())
    with pytest.raises(ValueError, match="ids run from 0 to 9, the vocabulary from 0 to 8$"):
        lm.logits([[0, 9]])


def test_a_language_model_around_a_trunk(trunk):
    """It holds that trunk, and a table in the trunk's dtype."""
    model = minifpt.LanguageModel(trunk, seed=7)
    assert model.trunk is trunk and model.config is trunk.config and model.dtype == np.float64
    want = 0.02 * standard_normal((9, 6), 7, "wte.weight").astype(np.float64)
    np.testing.assert_allclose(model.wte.weight.data, want, rtol=1e-6)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_model_can_be_copied(lm, again):
    lm.wte.weight.trainable = False
    other = again(lm)
    np.testing.assert_array_equal(other.logits([[1, 2]]), lm.logits([[1, 2]]))
    assert [p.trainable for p in other.parameters()] == [p.trainable for p in lm.parameters()]
    other.wte.weight.data += 1
    assert (other.logits([[1, 2]]) != lm.logits([[1, 2]])).any()


# ------------------------------------------------------------------------------- files


GOLDEN = Path(__file__).parent / "golden" / "plain"
KINDS = pytest.mark.parametrize("kind", [minifpt.GPT2, minifpt.LanguageModel])


def assert_same(a, b, dtype=np.float32):
    """Compare the parameters of two models, the first model's cast to ``dtype``."""
    for (name, p), (same, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert name == same and q.data.flags.writeable, name
        np.testing.assert_array_equal(q.data, p.data.astype(dtype), name)


@KINDS
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_saved_model_is_read_back(tmp_path, kind, dtype, randomise):
    model = randomise(kind(config(activation_function="relu", causal=False), seed=5))
    model.save(tmp_path / "t.npz", dtype, source="a test")
    again = kind.from_pretrained(tmp_path / "t.npz")
    assert type(again) is kind and again.config == model.config
    assert_same(model, again, dtype)
    assert {p.data.dtype for p in again.parameters()} == {np.dtype(np.float32)}
    double = kind.from_pretrained(str(tmp_path / "t.npz"), np.float64, dropout=0.0)
    assert double.config.dropout == 0 and double.dtype == np.float64
    assert_same(again, double)
    assert {p.data.dtype for p in double.parameters()} == {np.dtype(np.float64)}
    assert minifpt.files.weights.read(tmp_path / "t.npz")[0]["source"] == "a test"


def test_names_in_a_file_are_gpt2_s(tmp_path):
    minifpt.LanguageModel(config()).save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as f:
        assert set(f) == {"config", "wte.weight",
                          *(n for n, _ in minifpt.GPT2(config()).named_parameters())}


def test_a_trunk_from_a_language_model_s_file(tmp_path):
    """A trunk loads from a language model's file, whatever the table holds, and from a trunk's."""
    lm = minifpt.LanguageModel(config(), seed=5)
    lm.save(tmp_path / "lm.npz", np.float32)
    lm.trunk.save(tmp_path / "trunk.npz", np.float32)
    save_wrong(tmp_path / "nan.npz", wte__weight=np.full((9, 6), np.nan))
    for path in ("lm.npz", "trunk.npz", "nan.npz"):
        assert_same(lm.trunk, minifpt.GPT2.from_pretrained(tmp_path / path))
    with pytest.raises(ValueError, match="^[^\n]*lacks 'wte.weight'[^\n]*$"):
        minifpt.LanguageModel.from_pretrained(tmp_path / "trunk.npz")


def test_a_folder_that_transformers_saved():
    model = minifpt.LanguageModel.from_pretrained(GOLDEN)
    assert_same(model.trunk, minifpt.GPT2.from_pretrained(GOLDEN))
    assert_same(model, minifpt.LanguageModel.from_pretrained(GOLDEN / "model.safetensors"))


def save_wrong(path, **changes):
    """Write a language model's file with some arrays changed, or left out for ``None``."""
    minifpt.LanguageModel(config(), seed=5).save(path, np.float32)
    with np.load(path) as f:
        arrays = {**f, **{k.replace("__", "."): v for k, v in changes.items()}}
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})


@KINDS
@pytest.mark.parametrize("changes, message", [
    ({"ln_f__weight": np.ones(5)}, r"'ln_f.weight' has shape \(5,\), expected \(6,\)"),
    ({"wpe__weight": np.ones((6, 7))}, r"'wpe.weight' has shape \(6, 7\)"),
    ({"h__1__ln_2__bias": None}, "lacks 'h.1.ln_2.bias'"),
    ({"wpe__weight": None}, "lacks 'wpe.weight'"),
    ({"h__2__ln_2__bias": np.ones(6)}, "also holds 'h.2.ln_2.bias'"),
    ({"input__weight": np.ones((2, 2))}, "also holds 'input.weight'"),
    ({"config": None}, "not a minifpt weight file"),
    ({"config": np.array("{")}, "not a minifpt weight file"),
    ({"config": np.array("[1]")}, "not a minifpt weight file"),
    ({"config": np.array('{"n_layer": "two"}')}, "n_layer must be a whole number"),
    ({"config": np.array('{"activation_function": "tanh"}')}, "activation_function is 'tanh'"),
    ({"ln_f__weight": np.array(["a"] * 6)}, "ln_f.weight"),
    ({"ln_f__weight": np.array([None] * 6)}, "ln_f.weight")])
def test_damaged_weight_files_are_refused(tmp_path, kind, changes, message):
    save_wrong(tmp_path / "t.npz", **changes)
    with pytest.raises(ValueError, match=f"^[^\n]*t.npz[^\n]*{message}[^\n]*$"):
        kind.from_pretrained(tmp_path / "t.npz")


@pytest.mark.parametrize("changes, message", [
    ({"wte__weight": np.ones((8, 6))}, r"'wte.weight' has shape \(8, 6\), expected"),
    ({"wte__weight": None}, "lacks 'wte.weight'"),
    ({"wte__weight": np.ones((9, 6), int)}, "'wte.weight' (has dtype|is) int64"),
    ({"wte__weight": np.array([None])}, "'wte.weight' ")])
def test_a_wrong_token_table_is_refused(tmp_path, changes, message):
    save_wrong(tmp_path / "t.npz", **changes)
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        minifpt.LanguageModel.from_pretrained(tmp_path / "t.npz")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_trunk_takes_no_memory_for_the_token_table(tmp_path, dtype):
    """The table, 7.2 MB, is not read."""
    many = config(n_layer=1, vocab_size=300_000, n_positions=8)
    minifpt.LanguageModel(many, seed=1).save(tmp_path / "t.npz", dtype)
    now, peak = memory(lambda: minifpt.GPT2.from_pretrained(tmp_path / "t.npz"))
    assert now < 0.3 and peak < 1
    assert memory(lambda: minifpt.LanguageModel.from_pretrained(tmp_path / "t.npz"))[0] > 7


@pytest.mark.parametrize("how", ["npz", "folder"])
def test_a_model_outlives_its_file(tmp_path, how):
    """Everything is in memory: the file may be removed or overwritten."""
    path = tmp_path / "t.npz" if how == "npz" else tmp_path / "t"
    if how == "npz":
        minifpt.LanguageModel.from_pretrained(GOLDEN).save(path, np.float32)
    else:
        shutil.copytree(GOLDEN, path)
    model = minifpt.LanguageModel.from_pretrained(path)
    for file in ([path] if how == "npz" else path.iterdir()):
        file.write_bytes(bytes(file.stat().st_size))      # in place
        file.unlink()
    assert_same(minifpt.LanguageModel.from_pretrained(GOLDEN), model)


@pytest.mark.parametrize("write", ["float16", "float32", np.savez_compressed])
def test_loading_keeps_no_second_copy(tmp_path, write):
    """Files are read block by block, compressed ones array by array."""
    wide = config(n_embd=192, n_layer=4)                  # 7 MB
    minifpt.GPT2(wide).save(tmp_path / "t.npz", np.float32 if callable(write) else write)
    if callable(write):
        with np.load(tmp_path / "t.npz") as f:
            write(tmp_path / "t.npz", **f)
    now, peak = memory(lambda: minifpt.GPT2.from_pretrained(tmp_path / "t.npz"))
    assert 7 < now < 8 and peak < now + 4


@pytest.mark.parametrize("make", [lambda path: minifpt.GPT2(config()),
                                  lambda path: minifpt.GPT2.from_pretrained(path)])
def test_a_trunk_is_gone_after_its_last_use(tmp_path, make):
    """It is in no reference cycle, which would keep it until the garbage collector runs."""
    minifpt.GPT2(config()).save(tmp_path / "t.npz")
    trunk = make(tmp_path / "t.npz")
    reference = weakref.ref(trunk)
    gc.disable()
    try:
        del trunk
        assert reference() is None
    finally:
        gc.enable()


def test_importing_loads_nothing_heavy():
    code = ("import sys, minifpt.tasks, minifpt.training, minifpt.trunks\n"
            "print(*{name.split('.')[0] for name in sys.modules})")
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True).stdout.split()
    assert "minifpt" in modules
    assert not {"matplotlib", "scipy", "torch", "transformers", "pooch", "huggingface_hub",
                "IPython", "PIL"} & {*modules}
