"""The trunk and the language model: names, gradients under every mask, what is not computed."""

import copy
import gc
import pickle
import shutil
import subprocess
import sys
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import minifpt
from minifpt import functional as F
from minifpt.gradcheck import gradcheck_layer

pytestmark = pytest.mark.filterwarnings("error")

PRESETS = ["full", "fpt", "output_only"]
MASKS = [*PRESETS, "attn", "mlp", "ln", "pos", "tok", "attn,mlp,ln", "ln,pos,tok",
         "attn,mlp,h.0.ln_1.*", "mlp,*.bias", "h.0.*,wpe.weight", "h.1.*,ln_f.*,wte.weight"]


def config(**kw):
    return minifpt.GPT2Config(**{"n_layer": 2, "n_head": 2, "n_embd": 6, "n_positions": 7,
                                 "vocab_size": 9, "dropout": 0.2, **kw})


@pytest.fixture(scope="module")
def trunk(randomise):
    """A trunk in float64; a test that freezes it also thaws it."""
    trunk = minifpt.GPT2(config(), dtype=np.float64)
    randomise(trunk)
    yield trunk


@pytest.fixture(autouse=True)
def thaw(trunk):
    yield
    trunk.freeze(minifpt.FreezeMask.full())
    trunk.zero_grad()


def rng(seed=0):
    return np.random.default_rng(seed)


def test_names_and_shapes():
    names = {n: p.data.shape for n, p in minifpt.GPT2(config(n_layer=1)).named_parameters()}
    assert names == {
        "wte.weight": (9, 6), "wpe.weight": (7, 6),
        "h.0.ln_1.weight": (6,), "h.0.ln_1.bias": (6,),
        "h.0.attn.c_attn.weight": (6, 18), "h.0.attn.c_attn.bias": (18,),
        "h.0.attn.c_proj.weight": (6, 6), "h.0.attn.c_proj.bias": (6,),
        "h.0.ln_2.weight": (6,), "h.0.ln_2.bias": (6,),
        "h.0.mlp.c_fc.weight": (6, 24), "h.0.mlp.c_fc.bias": (24,),
        "h.0.mlp.c_proj.weight": (24, 6), "h.0.mlp.c_proj.bias": (6,),
        "ln_f.weight": (6,), "ln_f.bias": (6,)}


def test_initialisation():
    """Normal with deviation 0.02, residual projections less, scales 1 and offsets 0."""
    trunk = minifpt.GPT2(config(n_layer=8, n_embd=64, n_positions=100, vocab_size=200))
    for name, p in trunk.named_parameters():
        assert p.data.dtype == np.float32 and p.trainable and p.grad is None
        if p.data.ndim == 1:
            assert (p.data == ("ln" in name and name.endswith("weight"))).all()
        else:
            std = 0.02 / 4 if "c_proj" in name else 0.02
            assert p.data.std() == pytest.approx(std, rel=0.05), name
            assert abs(p.data.mean()) < 5 * std / p.data.size**0.5


def test_same_seed_same_bits():
    def all_bits(seed, **kw):
        return [p.data for p in minifpt.GPT2(config(**kw), seed=seed).parameters()]
    np.testing.assert_equal(all_bits(3), all_bits(3))
    for a, b in zip(all_bits(3), all_bits(4), strict=True):
        assert a.ndim == 1 or (a != b).all()
    # Each parameter draws from its own generator: a larger vocabulary moves no block.
    np.testing.assert_equal(all_bits(3, vocab_size=20)[1:], all_bits(3)[1:])


@pytest.mark.parametrize("wrong, message", [
    ({"n_layer": 0}, "n_layer is 0"), ({"n_head": -1}, "n_head is -1"),
    ({"n_embd": 0}, "n_embd is 0"), ({"n_positions": 0}, "n_positions is 0"),
    ({"vocab_size": 0}, "vocab_size is 0"), ({"n_head": 4}, "6 is no multiple of n_head 4"),
    ({"dropout": 1.0}, "dropout is 1.0"), ({"dropout": -0.1}, "dropout is -0.1")])
def test_config_errors(wrong, message):
    with pytest.raises(ValueError, match=f"^GPT2Config: [^\n]*{message}[^\n]*$"):
        config(**wrong)


def test_config_defaults_are_gpt2():
    assert minifpt.GPT2Config() == minifpt.GPT2Config(12, 12, 768, 1024, 50257, 0.1, 1e-5)


@pytest.mark.parametrize("shape, message", [
    ((2, 3), r"expected \(B, T, 6\)"), ((2, 3, 5), r"\(2, 3, 5\), expected \(B, T, 6\)"),
    ((1, 8, 6), "8 tokens, the trunk has 7 positions")])
def test_forward_errors(trunk, shape, message):
    with pytest.raises(ValueError, match=f"^GPT2: [^\n]*{message}"):
        trunk.forward(np.ones(shape))


@pytest.mark.parametrize("mask", MASKS)
def test_gradients(trunk, mask):
    trunk.freeze(minifpt.FreezeMask.parse(mask))
    learns = [n for n, p in trunk.named_parameters() if p.trainable and n != "wte.weight"]
    report = gradcheck_layer(trunk, rng(1).standard_normal((2, 4, 6)), elementwise=12,
                             directions=3)
    assert report, str(report)
    assert set(report.errors) - {"wte.weight"} == {"x", *learns}


@pytest.mark.parametrize("mask", MASKS)
def test_language_model_gradients(trunk, mask):
    model = minifpt.LanguageModel(trunk)
    model.freeze(minifpt.FreezeMask.parse(mask))
    if not model.trainable:                               # output_only: there is no output
        assert model.forward(np.array([[1, 2]]), True, rng())[1] is None
        return
    report = gradcheck_layer(model, np.array([[0, 8, 3, 3], [1, 3, 0, 0]]), elementwise=12,
                             directions=3)
    assert report, str(report)
    assert set(report.errors) == {n for n, p in model.named_parameters() if p.trainable}


@pytest.fixture(scope="module")
def all_gradients(trunk):
    """dx and every gradient with everything trainable."""
    trunk.zero_grad()
    y, cache = trunk.forward(rng(1).standard_normal((2, 5, 6)), True, rng(2))
    dx = trunk.backward(np.cos(y), cache)
    grads = {n: p.grad for n, p in trunk.named_parameters()}
    trunk.zero_grad()
    return dx, grads


# The matrix products and norms of a trunk of two blocks, from the bottom to the top.
ORDER = ["wpe"] + [f"h.{i}.{part}" for i in range(2) for part in (
    "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")] + ["ln_f"]


@settings(max_examples=60)
@given(data=st.data(), need_dx=st.booleans())
def test_any_choice_of_trainable_parameters(trunk, all_gradients, recording, data, need_dx):
    """Trained parameters get the gradients of full training, to the bit; frozen ones none;
    below the lowest trained one nothing runs back and nothing is kept."""
    names = [n for n, _ in trunk.named_parameters() if n != "wte.weight"]
    chosen = data.draw(st.sets(st.sampled_from(names), max_size=4))
    for name, p in trunk.named_parameters():
        p.trainable, p.grad = name in chosen, None
    with recording() as counted:
        y, cache = trunk.forward(rng(1).standard_normal((2, 5, 6)), True, rng(2), need_dx)
        runs_back = bool(chosen) or need_dx
        assert (cache is not None) == runs_back
        dx = trunk.backward(np.cos(y), cache) if runs_back else None
    full_dx, full = all_gradients
    np.testing.assert_equal(dx, full_dx if need_dx else None)
    for name, p in trunk.named_parameters():
        np.testing.assert_equal(p.grad, full[name] if name in chosen else None, name)
    places = [0] if need_dx else [ORDER.index(n.rpartition(".")[0]) for n in chosen]
    above = ORDER[min(places):] if places else []
    products = [need for op, need in counted if op == "linear"]
    norms = [need for op, need in counted if op == "layer_norm"]
    assert len(products) == sum(".c_" in n for n in above)
    assert len(norms) == sum("ln_" in n for n in above)
    # No product was made for a frozen weight.
    assert sum(need[1] for need in products) == sum(
        ".c_" in n and n.endswith("weight") for n in chosen)


def test_no_cache_below_the_lowest_trainable(trunk, arrays_in):
    """Only the last layer norm learns: of the trunk nothing else is kept, dropout masks
    included."""
    trunk.freeze(minifpt.FreezeMask.parse("pos,attn,mlp,tok,h.*"))
    x = rng(1).standard_normal((2, 5, 6))
    _, cache = trunk.forward(x, True, rng(2), need_dx=False)
    # The normalised rows, 1 / deviation of each, and the scales themselves.
    assert sum(a.size for a in arrays_in(cache)) <= x.size + 10 + 6


def test_only_one_mlp_trained(trunk, calls):
    trunk.freeze(minifpt.FreezeMask.parse("tok,pos,ln,attn,h.0.mlp.*"))
    y, cache = trunk.forward(rng(1).standard_normal((2, 5, 6)), True, rng(2), need_dx=False)
    calls.clear()
    assert trunk.backward(np.ones_like(y), cache) is None
    ops = [op for op, _ in calls if op != "dropout"]
    assert ops == ["layer_norm", "linear", "gelu", "linear"]
    assert [need for op, need in calls if op == "linear"] == [(True,) * 3, (False, True, True)]


def test_all_frozen_runs_without_cache(trunk):
    x = rng(1).standard_normal((2, 5, 6))
    with trunk.all_frozen():
        assert trunk.forward(x, need_dx=False)[1] is None
    assert all(p.trainable for p in trunk.parameters())


def test_two_forwards_before_two_backwards(trunk):
    xs, grads = rng(1).standard_normal((2, 2, 5, 6)), []
    for i, x in enumerate(xs):
        y, cache = trunk.forward(x, True, rng(i))
        trunk.backward(np.cos(y), cache)
        grads.append([p.grad for p in trunk.parameters()])
        trunk.zero_grad()
    runs = [trunk.forward(x, True, rng(i)) for i, x in enumerate(xs)]
    for y, cache in runs:
        trunk.backward(np.cos(y), cache)
    for p, a, b in zip(trunk.parameters(), *grads, strict=True):
        np.testing.assert_equal(p.grad, None if a is None else a + b)


def test_dropout_by_seed(trunk):
    x = rng(1).standard_normal((2, 5, 6))
    ys = [trunk.forward(x, True, rng(s))[0] for s in (1, 1, 2)]
    np.testing.assert_array_equal(ys[0], ys[1])
    assert (ys[0] != ys[2]).any()
    np.testing.assert_array_equal(trunk.forward(x, False, rng(1))[0], trunk.forward(x)[0])
    with pytest.raises(ValueError, match="rng is None"):
        trunk.forward(x, train=True)


def test_causal_and_batch_independent(trunk):
    x = rng(1).standard_normal((3, 6, 6))
    y, _ = trunk.forward(x)
    x[:, 4:] = rng(2).standard_normal((3, 2, 6))
    x[2] = 0
    changed, _ = trunk.forward(x)
    np.testing.assert_array_equal(changed[:2, :4], y[:2, :4])
    assert (changed[:2, 4:] != y[:2, 4:]).all()


def test_positions_beyond_the_tokens_get_gradient_zero(trunk):
    y, cache = trunk.forward(rng(1).standard_normal((2, 5, 6)))
    trunk.backward(np.cos(y), cache)
    grad = trunk.wpe.weight.grad
    assert grad.shape == (7, 6) and grad[:5].all() and not grad[5:].any()


def test_float32_throughout(float32_only, arrays_in, randomise):
    model = randomise(minifpt.LanguageModel(minifpt.GPT2(config())))
    for p in model.parameters():
        p.data = float32_only(p.data)
    ids = rng().integers(0, 9, (2, 5))
    logits, cache = model.forward(ids, True, rng())
    _, ce = F.cross_entropy(logits, ids)
    model.backward(F.cross_entropy_backward(1.0, ce), cache)
    floats = [a for a in arrays_in([logits, cache, [p.grad for p in model.parameters()]])
              if np.issubdtype(a.dtype, np.floating)]
    assert len(floats) > 40 and {a.dtype for a in floats} == {np.dtype(np.float32)}


def test_input_of_another_dtype_is_no_silent_mixture():
    """float64 embeddings into a float32 trunk: refused, or computed in float32."""
    trunk = minifpt.GPT2(config())
    try:
        y, _ = trunk.forward(np.ones((1, 2, 6)))
    except ValueError:
        return
    assert y.dtype == np.float32


def test_logits_are_scores_by_the_token_table(trunk):
    ids = np.array([[1, 5, 5], [0, 8, 2]])
    logits = trunk.logits(ids)
    hidden, _ = trunk.forward(trunk.wte.weight.data[ids])
    np.testing.assert_allclose(logits, hidden @ trunk.wte.weight.data.T)
    np.testing.assert_array_equal(trunk.logits(ids.tolist()), logits)
    with pytest.raises(ValueError, match="ids run from 0 to 9"):
        trunk.logits([[0, 9]])


def test_a_fresh_language_model_knows_nothing():
    """At the start every token is about as likely as every other."""
    p = scipy.special.softmax(minifpt.GPT2(config()).logits(rng().integers(0, 9, (4, 7))), -1)
    assert np.abs(p - 1 / 9).max() < 0.03


# ------------------------------------------------------------------------------- files


@pytest.mark.parametrize("dtype, exact", [(np.float32, True), (np.float16, False)])
def test_save_and_load(tmp_path, dtype, exact):
    trunk = minifpt.GPT2(config(), seed=5)
    trunk.save(tmp_path / "t.npz", dtype, source="a test")
    again = minifpt.GPT2.from_pretrained(tmp_path / "t.npz")
    assert again.config == trunk.config
    for (name, p), q in zip(trunk.named_parameters(), again.parameters(), strict=True):
        assert q.data.dtype == np.float32 and q.data.flags.writeable, name
        np.testing.assert_array_equal(q.data, p.data.astype(dtype))
        assert exact == (q.data == p.data).all() or p.data.ndim == 1
    double = minifpt.GPT2.from_pretrained(str(tmp_path / "t.npz"), np.float64, dropout=0.0)
    assert double.config.dropout == 0 and double.logits([[1]]).dtype == np.float64


def save_wrong(path, **changes):
    """A weight file with some arrays changed; ``None`` leaves one out."""
    minifpt.GPT2(config()).save(path)
    with np.load(path) as f:
        arrays = {**f, **{k.replace("__", "."): v for k, v in changes.items()}}
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})


@pytest.mark.parametrize("changes, message", [
    ({"ln_f__weight": np.ones(5)}, r"'ln_f.weight' has shape \(5,\), the model wants \(6,\)"),
    ({"wpe__weight": np.ones((6, 7))}, r"'wpe.weight' has shape \(6, 7\)"),
    ({"h__1__ln_2__bias": None}, "holds no array 'h.1.ln_2.bias'"),
    ({"config": None}, "not a minifpt weight file"),
    ({"config": np.array("{")}, "not a minifpt weight file"),
    ({"config": np.array("[1]")}, ""),
    ({"config": np.array("7")}, ""),
    ({"config": np.array('{"n_layer": "two"}')}, "(bad config|n_layer)"),
    ({"config": np.array('{"n_layer": 2.5, "n_embd": 6, "n_head": 2}')}, ""),
    ({"config": np.array('{"n_layer": 0}')}, "n_layer is 0"),
    ({"ln_f__weight": np.array(["a"] * 6)}, "ln_f.weight"),
    ({"ln_f__weight": np.array([None] * 6)}, "ln_f.weight")])
def test_load_errors(tmp_path, changes, message):
    save_wrong(tmp_path / "t.npz", **changes)
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        minifpt.GPT2.from_pretrained(tmp_path / "t.npz")


def test_load_checks_the_dropout_it_is_given(tmp_path):
    minifpt.GPT2(config()).save(tmp_path / "t.npz")
    with pytest.raises(ValueError, match="dropout is 1.5"):
        minifpt.GPT2.from_pretrained(tmp_path / "t.npz", dropout=1.5)


# ------------------------------------------- the token embedding, read when it is used


GOLDEN = Path(__file__).parent / "golden" / "plain"
MANY = dict(n_layer=1, vocab_size=300_000, n_positions=8)  # 7.2 MB of token embedding


def memory(work):
    """Megabytes of arrays that ``work()`` leaves behind, and its peak."""
    tracemalloc.start()
    try:
        kept = work()
        now, peak = tracemalloc.get_traced_memory()
        del kept
        return now / 1e6, peak / 1e6
    finally:
        tracemalloc.stop()


def fpt_step(trunk):
    """A whole step of an FPT over this trunk."""
    model = minifpt.FPT(trunk, 3, 2)
    model.freeze(minifpt.FreezeMask.fpt())
    y, cache = model.forward(np.ones((2, 4, 3), np.float32), True, rng())
    model.backward(np.ones_like(y), cache)
    model.summary()
    return model


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_fpt_s_token_embedding_takes_no_memory(tmp_path, dtype):
    minifpt.GPT2(config(**MANY), seed=1).save(tmp_path / "t.npz", dtype)
    for make in (lambda: minifpt.GPT2(config(**MANY), seed=1),
                 lambda: minifpt.GPT2.from_pretrained(tmp_path / "t.npz")):
        now, peak = memory(lambda make=make: fpt_step(make()))
        assert now < 0.3 and peak < 3                     # blocks of 1 MB are read and checked
        trunk = make()
        assert memory(lambda trunk=trunk: trunk.wte.weight.data)[0] > 7


@pytest.mark.parametrize("use", [
    lambda t: t.logits([[1, 2]]), lambda t: t.generate([1, 2], 3),
    lambda t: minifpt.LanguageModel(t).forward(np.array([[1]]))[0],
    lambda t: dict(t.named_parameters())["wte.weight"].data, copy.deepcopy,
    lambda t: pickle.loads(pickle.dumps(t))])
def test_the_token_embedding_is_there_when_it_is_used(tmp_path, use):
    made = minifpt.GPT2(config(), seed=5)
    made.save(tmp_path / "t.npz", np.float32)
    want = 0.02 * minifpt.gpt2.standard_normal((9, 6), 5, "wte.weight")
    trunk = minifpt.GPT2.from_pretrained(tmp_path / "t.npz")
    used = [use(trunk), use(minifpt.GPT2(config(), seed=5))]
    np.testing.assert_allclose(trunk.wte.weight.data, want, rtol=1e-6)
    np.testing.assert_array_equal(made.wte.weight.data, trunk.wte.weight.data)
    if isinstance(used[0], np.ndarray):
        np.testing.assert_array_equal(*used)
    else:
        np.testing.assert_array_equal(used[0].wte.weight.data, used[1].wte.weight.data)


def test_the_token_embedding_can_be_set_and_trained():
    trunk = minifpt.GPT2(config(), seed=5)
    trunk.wte.weight.data = np.zeros((9, 6), np.float32)
    assert not trunk.wte.weight.data.any()
    trunk = minifpt.GPT2(config(), seed=5)
    trunk.wte.weight.data -= trunk.wte.weight.data
    assert not trunk.wte.weight.data.any()


@pytest.mark.parametrize("how", ["removed", "replaced", "folder removed"])
def test_the_token_embedding_outlives_its_file(tmp_path, how):
    path = tmp_path / "t.npz"
    if how == "folder removed":
        path = tmp_path / "t"
        shutil.copytree(GOLDEN, path)
    else:
        minifpt.GPT2.from_pretrained(GOLDEN).save(path, np.float32)
    trunk = minifpt.GPT2.from_pretrained(path, np.float64)
    if how == "replaced":
        minifpt.GPT2(trunk.config, seed=9).save(path)
    elif how == "removed":
        path.unlink()
    else:
        shutil.rmtree(path)
    want = minifpt.GPT2.from_pretrained(GOLDEN).wte.weight.data
    assert trunk.wte.weight.data.dtype == np.float64 != want.dtype
    np.testing.assert_array_equal(trunk.wte.weight.data, want)


def test_a_trunk_is_saved_over_its_own_file(tmp_path):
    minifpt.GPT2(config(), seed=5).save(tmp_path / "t.npz")
    trunk = minifpt.GPT2.from_pretrained(tmp_path / "t.npz")
    before = (tmp_path / "t.npz").read_bytes()
    trunk.save(tmp_path / "t.npz")
    assert (tmp_path / "t.npz").read_bytes() == before


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_a_file_that_was_written_to_is_refused(tmp_path, kind):
    """In place, as safetensors does it, so that what is kept open is another's numbers."""
    path = tmp_path / "t.npz" if kind == "npz" else tmp_path / "t"
    if kind == "npz":
        minifpt.GPT2(config()).save(path)
    else:
        shutil.copytree(GOLDEN, path)
    trunk = minifpt.GPT2.from_pretrained(path)
    with open(path if kind == "npz" else path / "model.safetensors", "r+b") as f:
        f.seek(-1, 2)
        f.write(b"!?")
    for _ in range(2):                                    # also when asked again
        with pytest.raises(ValueError, match="^[^\n]*was written to since[^\n]*$"):
            trunk.logits([[1]])


@pytest.mark.parametrize("changes, message", [
    ({"wte__weight": np.ones((8, 6))}, r"'wte.weight' has shape \(8, 6\), the model wants"),
    ({"wte__weight": None}, "holds no array 'wte.weight'"),
    ({"wte__weight": np.ones((9, 6), int)}, "'wte.weight' has dtype int64"),
    ({"wte__weight": np.array([None])}, "'wte.weight' is damaged")])
def test_a_wrong_token_embedding_is_an_error_at_once(tmp_path, changes, message):
    save_wrong(tmp_path / "t.npz", **changes)
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        minifpt.GPT2.from_pretrained(tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["wte.weight", "h.1.mlp.c_fc.weight", "ln_f.bias"])
def test_a_changed_number_is_an_error_at_once(tmp_path, name):
    trunk = minifpt.GPT2(config(), seed=5)
    trunk.ln_f.bias.data += 3
    trunk.save(tmp_path / "t.npz", np.float32)
    raw = (tmp_path / "t.npz").read_bytes()
    at = raw.index(dict(trunk.named_parameters())[name].data.tobytes())
    (tmp_path / "t.npz").write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
    with pytest.raises(ValueError, match=f"^[^\n]*'{name}' is damaged[^\n]*$"):
        minifpt.GPT2.from_pretrained(tmp_path / "t.npz")


@pytest.mark.parametrize("write", [np.savez_compressed, np.savez])
@pytest.mark.parametrize("change", [np.asfortranarray, lambda a: a.astype(">f4"),
                                    lambda a: a.astype(np.float64)])
def test_files_that_others_wrote(tmp_path, write, change):
    """Compressed, column by column, the other byte order, float64."""
    trunk = minifpt.GPT2(config(), seed=5)
    trunk.save(tmp_path / "t.npz", np.float32)
    with np.load(tmp_path / "t.npz") as f:
        arrays = {k: f[k] if k == "config" else change(f[k]) for k in f}
    write(tmp_path / "t.npz", **arrays)
    again = minifpt.GPT2.from_pretrained(tmp_path / "t.npz")
    for (name, p), q in zip(trunk.named_parameters(), again.parameters(), strict=True):
        assert q.data.dtype == np.float32 and q.data.dtype.isnative
        np.testing.assert_array_equal(q.data, p.data, name)


@pytest.mark.parametrize("write", ["float16", "float32", np.savez_compressed])
def test_loading_keeps_no_second_copy(tmp_path, write):
    """float16 goes block by block into float32; what is compressed array by array."""
    wide = config(n_embd=192, n_layer=8)                  # 14 MB
    minifpt.GPT2(wide).save(tmp_path / "t.npz", np.float32 if callable(write) else write)
    if callable(write):
        with np.load(tmp_path / "t.npz") as f:
            write(tmp_path / "t.npz", **f)
    now, peak = memory(lambda: minifpt.GPT2.from_pretrained(tmp_path / "t.npz"))
    assert 14 < now < 15 and peak < now + 4


@pytest.mark.parametrize("make", [lambda path: minifpt.GPT2(config()),
                                  lambda path: minifpt.GPT2.from_pretrained(path)])
def test_a_trunk_is_gone_after_its_last_use(tmp_path, make):
    """It is in no circle of references, which would stay until the collector comes by."""
    minifpt.GPT2(config()).save(tmp_path / "t.npz")
    trunk = make(tmp_path / "t.npz")
    gone = weakref.ref(trunk)
    gc.disable()
    try:
        del trunk
        assert gone() is None
    finally:
        gc.enable()


def test_two_threads_may_ask_for_the_token_embedding_at_once(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "t")
    want = minifpt.GPT2.from_pretrained(GOLDEN).wte.weight.data
    for _ in range(20):
        trunk = minifpt.GPT2.from_pretrained(tmp_path / "t")
        with ThreadPoolExecutor(4) as pool:
            tables = list(pool.map(lambda i, t=trunk: t.wte.weight.data, range(4)))
        assert all(table is tables[0] for table in tables)
        np.testing.assert_array_equal(tables[0], want)


def test_importing_loads_nothing_heavy():
    code = "import sys, minifpt; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "minifpt" in done.stdout.split()
    assert not {"matplotlib", "scipy", "torch", "transformers", "pooch", "huggingface_hub",
                "IPython", "PIL"} & set(done.stdout.split())
