"""Weight files: what goes in comes out, and what is damaged is refused in one line."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import memory, refused

import minifpt
from minifpt.files import cache_folder, weights, write_beside

CONFIG = dict(n_layer=2, n_head=2, n_embd=6, n_positions=7, vocab_size=9, dropout=0.2)
GOLDEN = Path(__file__).parent / "golden" / "plain"
KINDS = pytest.mark.parametrize("kind", [minifpt.GPT2, minifpt.LanguageModel])


def config(**changes):
    return minifpt.GPT2Config(**CONFIG | changes)


def numbers(**changes):
    """{name: array} of a language model's parameters, as a file has them."""
    model = minifpt.LanguageModel(config(**changes), seed=5)
    return {name.removeprefix("trunk."): p.data for name, p in model.named_parameters()}


def write(path, changes=None, save=np.savez, dtype=np.float32):
    """Write a language model's file by NumPy, with some arrays changed, or left out for None."""
    arrays = {name: a.astype(dtype) for name, a in numbers().items()}
    arrays = {"config": np.array(json.dumps(CONFIG))} | arrays | (changes or {})
    save(path, **{name: a for name, a in arrays.items() if a is not None})
    return path


def assert_same(model, expected, dtype=np.float32):
    """Compare a model's parameters to {name: array}, whose numbers are cast to ``dtype``."""
    for name, p in model.named_parameters():
        assert p.data.flags.writeable and p.data.dtype == model.dtype and p.data.dtype.isnative
        np.testing.assert_array_equal(
            p.data, expected[name.removeprefix("trunk.")].astype(dtype), name)


# ---------------------------------------------------------------------- written and read


@KINDS
@pytest.mark.parametrize("dtype", [np.float32, None])      # the default is float16
def test_a_saved_model_is_read_back(tmp_path, kind, dtype, randomise):
    model = randomise(kind(config(activation_function="relu", causal=False), seed=5))
    before = {n.removeprefix("trunk."): p.data for n, p in model.named_parameters()}
    path = tmp_path / "t.npz"
    model.save(path, dtype, source="a test, naïvely")
    dtype = dtype or np.float16
    again = kind.from_pretrained(path)
    assert type(again) is kind and again.config == model.config
    assert_same(again, before, dtype)
    double = kind.from_pretrained(str(path), np.float64, dropout=0.0)
    assert double.config.dropout == 0 and double.dtype == np.float64
    assert_same(double, before, dtype)
    with np.load(path, allow_pickle=False) as file:       # as NumPy would write it
        assert set(file) == {"config", *before} and all(file[n].dtype == dtype for n in before)
        assert json.loads(str(file["config"]))["source"] == "a test, naïvely"
    model.save(tmp_path / "again.npz", dtype, source="a test, naïvely")
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_a_file_by_numpy_is_read(tmp_path, save, dtype):
    """Compressed or not, and in the other byte order; a trunk does not read the token table."""
    path = write(tmp_path / "w.npz", save=save, dtype=dtype)
    expected = {name: a.astype(dtype) for name, a in numbers().items()}
    assert_same(minifpt.LanguageModel.from_pretrained(path), expected)
    write(path, {"wte.weight": np.full((9, 6), np.nan)}, save, dtype)
    assert_same(minifpt.GPT2.from_pretrained(path), expected)


def test_a_model_outlives_its_file(tmp_path):
    """Everything is in memory: the file may be removed or overwritten."""
    expected = minifpt.LanguageModel.from_pretrained(GOLDEN)
    path = Path(shutil.copytree(GOLDEN, tmp_path / "t"))
    model = minifpt.LanguageModel.from_pretrained(path)
    for file in path.iterdir():
        file.write_bytes(bytes(file.stat().st_size))      # in place
        file.unlink()
    assert_same(model, {n.removeprefix("trunk."): p.data for n, p in expected.named_parameters()})


@pytest.mark.parametrize("save, dtype", [(np.savez, np.float16), (np.savez, np.float32),
                                         (np.savez_compressed, np.float32)])
def test_loading_keeps_no_second_copy_and_no_token_table(tmp_path, save, dtype):
    """Files are read block by block, compressed ones array by array."""
    wide = dict(n_embd=192, n_layer=4, vocab_size=5_000)          # 7 MB, and a table of 4
    arrays = {name: a.astype(dtype) for name, a in numbers(**wide).items()}
    save(tmp_path / "t.npz", config=np.array(json.dumps(CONFIG | wide)), **arrays)
    now, peak = memory(lambda: minifpt.GPT2.from_pretrained(tmp_path / "t.npz"))
    assert 7 < now < 8 and peak < now + 4


# --------------------------------------------------------------------------------- damage


@KINDS
@pytest.mark.parametrize("changes, message", [
    ({"ln_f.weight": np.ones(5)}, r"'ln_f.weight' has shape \(5,\), expected \(6,\)"),
    ({"wpe.weight": np.ones((6, 7))}, r"'wpe.weight' has shape \(6, 7\)"),
    ({"h.1.ln_2.bias": None}, "lacks 'h.1.ln_2.bias': it does not fit the model"),
    ({"wpe.weight": None}, "lacks 'wpe.weight'"),
    ({"h.2.ln_2.bias": np.ones(6)}, "holds 3 blocks|also holds 'h.2.ln_2.bias'"),
    ({"input.weight": np.ones((2, 2))}, "also holds 'input.weight'"),
    ({"config": None}, "not a minifpt weight file"),
    ({"config": np.array("{")}, "not a minifpt weight file"),
    ({"config": np.array("[1]")}, "not a minifpt weight file"),
    ({"config": np.array('{"n_layer": "two"}')}, "n_layer must be a whole number"),
    ({"config": np.array('{"activation_function": "tanh"}')}, "activation_function is 'tanh'"),
    *[({"ln_f.weight": bad}, "ln_f.weight' has dtype") for bad in (
        np.array(["a"] * 6), np.array([None] * 6), np.ones(6, int), np.ones(6, bool),
        np.ones(6, complex))],
    *[({"ln_f.bias": np.array([1, value, 2, 3, 4, 5], dtype)}, "'ln_f.bias' holds a NaN or an inf")
      for value in (np.nan, np.inf, -np.inf) for dtype in ("f2", "f4")]])
def test_damaged_weight_files_are_refused(tmp_path, kind, changes, message):
    with refused(f"t.npz.*{message}"):
        kind.from_pretrained(write(tmp_path / "t.npz", changes))


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("n, place", [(8, 2), (20_000, 119_999)])
def test_a_changed_number_is_noticed(tmp_path, n, place, ours):
    """By the sum that the zip file keeps, in a small array and anywhere in a large one."""
    path, model = tmp_path / "w.npz", minifpt.GPT2(config(n_positions=n))
    model.save(path, np.float32)
    if not ours:
        with np.load(path) as file:
            np.savez(path, **file)
    raw = path.read_bytes()
    at = raw.index(model.wpe.weight.data.tobytes()) + 4 * place
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
    with refused("w.npz: .*damaged.* Bad CRC-32 .*'wpe.weight"):
        minifpt.GPT2.from_pretrained(path)


# --------------------------------------------------------------------------------- find


@pytest.fixture
def folders(cwd, monkeypatch):
    first, second = cwd / "first", cwd / "second"
    monkeypatch.setattr(weights, "folders", lambda: [first, second, cwd / "missing"])
    for path in (first / "both.npz", second / "both.npz", second / "only.npz"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return first, second


def test_weights_are_found_by_name_and_path(folders):
    first, second = folders
    for name, path in (("both", first / "both.npz"), ("only", second / "only.npz"),
                       *((kind(second / "both.npz"), second / "both.npz") for kind in (Path, str))):
        assert weights.find(name) == path
    assert weights.available() == ["both", "only"]


@pytest.mark.parametrize("name, message", [
    ("nothing", "no weights 'nothing': neither a path nor one of both, only"),
    ("first/nothing.npz", "no weights"), ("both.npz", "no weights"),
    ("gpt2-medium", "'minifpt convert gpt2-medium' downloads"),
    ("", "^no weights '': expected a name or a path$")])
def test_an_unknown_name_is_refused(folders, name, message):
    with refused(message, FileNotFoundError):
        weights.find(name)


def test_a_name_of_shipped_weights_is_not_that_of_a_file_here(cwd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cwd))
    assert cache_folder() == cwd / "minifpt"
    assert cache_folder() / "weights" in weights.folders()
    path = weights.find("minigpt-bits")
    (cwd / "minigpt-bits.npz").write_bytes(b"")
    assert weights.find("minigpt-bits") == path and path.name == "minigpt-bits.npz"
    assert weights.find("./minigpt-bits.npz").samefile(cwd / "minigpt-bits.npz")


# ------------------------------------------------------------------------------ writing


def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "w.npz"
    path.write_text("old")

    def crash(file, *_):
        file = file if hasattr(file, "write") else open(file, "wb")
        with file:
            file.write(b"half of")
        raise KeyboardInterrupt
    for target in (path, tmp_path / "new.npz"):
        with pytest.raises(KeyboardInterrupt):
            write_beside(target, crash)
    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_beside(path, lambda file: file.write(b"new"))
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]
