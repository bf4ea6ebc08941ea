"""Weight files: what goes in comes out, and what is damaged is refused in one line."""

import io
import os

import numpy as np
import pytest
from conftest import refused

from minifpt.files import cache_folder, weights, write_beside

ARRAYS = {"wte.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
          "ln_f.bias": np.array([0.1, -2.5e-4, 3e4], np.float32)}
CONFIG = {"n_layer": 1, "source": "a test, naïvely"}


def write(path, dtype=np.float32):
    weights.save(path, CONFIG, ARRAYS.items(), dtype)
    return path


def read_into(path, **changed):
    """Fill arrays of the shapes of ``ARRAYS``, or those given, from a file; the arrays."""
    named = {name: np.zeros_like(a) for name, a in ARRAYS.items()} | changed
    weights.read_into(path, list(named.items()), weights.read(path)[1])
    return named


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_arrays_are_filled_from_a_file(tmp_path, compressed, dtype):
    """What NumPy wrote, too, packed or not, and in the other byte order."""
    arrays = {name: a.astype(dtype) for name, a in ARRAYS.items()}
    (np.savez_compressed if compressed else np.savez)(tmp_path / "w.npz", config=np.array("{}"),
                                                      **arrays)
    for name, a in read_into(tmp_path / "w.npz").items():
        assert a.dtype == np.float32 and a.dtype.isnative
        np.testing.assert_array_equal(a, arrays[name].astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_file_is_what_numpy_would_write(tmp_path, dtype):
    path = write(tmp_path / "w.npz", dtype)
    with np.load(path, allow_pickle=False) as file:
        assert list(file) == ["config", *ARRAYS] and file["config"].dtype.kind == "U"
        for name, a in ARRAYS.items():
            assert file[name].dtype == dtype
            np.testing.assert_array_equal(file[name], a.astype(dtype))
    assert weights.read(path)[0] == CONFIG
    assert path.read_bytes() == write(tmp_path / "again.npz", dtype).read_bytes()


@pytest.mark.parametrize("changed, message", [
    ({"ln_f.weight": np.zeros(3)}, "w.npz: lacks 'ln_f.weight': it does not fit the model"),
    ({"wte.weight": np.zeros((4, 3))},
     r"w.npz: 'wte.weight' has shape \(3, 4\), expected \(4, 3\)")])
def test_arrays_that_do_not_fit_are_refused(tmp_path, changed, message):
    with refused(message):
        read_into(write(tmp_path / "w.npz"), **changed)


def test_an_unused_array_is_refused_unless_it_is_allowed(tmp_path):
    path, named = write(tmp_path / "w.npz"), [("ln_f.bias", np.zeros(3))]
    tensors = weights.read(path)[1]
    with refused("w.npz: also holds 'wte.weight'"):
        weights.read_into(path, named, tensors)
    weights.read_into(path, named, tensors, unused={"wte.weight"})
    np.testing.assert_array_equal(named[0][1], ARRAYS["ln_f.bias"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value, dtype):
    bad = ARRAYS["wte.weight"].astype(dtype)
    bad[1, 1] = value
    np.savez(tmp_path / "w.npz", config=np.array("{}"), **ARRAYS | {"wte.weight": bad})
    with refused("w.npz: 'wte.weight' holds a NaN or an inf"):
        read_into(tmp_path / "w.npz")
    with refused("s.npz: 'wte.weight' holds a NaN or an inf"):
        weights.save(tmp_path / "s.npz", {}, [("wte.weight", bad)], dtype)
    assert not (tmp_path / "s.npz").exists()


@pytest.mark.parametrize("bad", [np.ones(3, int), np.ones(3, bool), np.ones(3, complex),
                                 np.array(["a"])])
def test_arrays_of_another_kind_are_refused(tmp_path, bad):
    np.savez(tmp_path / "w.npz", config=np.array("{}"), **ARRAYS | {"ln_f.bias": bad})
    with refused("'ln_f.bias' has dtype .*, expected float16 or"):
        weights.read(tmp_path / "w.npz")


@pytest.mark.parametrize("dtype", ["float64", int, "half a float", None])
def test_other_dtypes_are_refused(tmp_path, dtype):
    with refused("dtype is .*, expected float16 or float32"):
        write(tmp_path / "w.npz", dtype)
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------- find


@pytest.fixture
def folders(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(weights, "folders", lambda: [first, second, tmp_path / "missing"])
    write(first / "both.npz")
    write(second / "both.npz")
    write(second / "only.npz")
    monkeypatch.chdir(tmp_path)
    return first, second


def test_weights_are_found_by_name_and_path(folders):
    first, second = folders
    assert weights.find("both") == first / "both.npz"
    assert weights.find("only") == second / "only.npz"
    assert weights.find(second / "both.npz") == second / "both.npz"
    assert weights.find(str(second / "both.npz")) == second / "both.npz"
    assert weights.available() == ["both", "only"]


@pytest.mark.parametrize("name, message", [
    ("nothing", "no weights 'nothing': neither a path nor one of both, only"),
    ("first/nothing.npz", "no weights"), ("both.npz", "no weights"),
    ("", "^no weights '': expected a name or a path$")])
def test_an_unknown_name_is_refused(folders, name, message):
    with refused(message, FileNotFoundError):
        weights.find(name)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "minifpt"
    assert tmp_path / "minifpt" / "weights" in weights.folders()


# ------------------------------------------------------------------------ damaged files


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("n, place", [(3, 2), (100_000, 0), (100_000, 50_000), (100_000, 99_999)])
def test_a_changed_number_is_noticed(tmp_path, n, place, ours):
    """By the sum that the zip file keeps, in a small array and anywhere in a large one."""
    path, a = tmp_path / "w.npz", np.arange(n, dtype=np.float32) + 0.1
    if ours:
        weights.save(path, {}, [("ln_f.bias", a)], np.float32)
    else:
        np.savez(path, config=np.array("{}"), **{"ln_f.bias": a})
    raw = path.read_bytes()
    at = raw.index(a.tobytes()) + 4 * place
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
    with refused("w.npz: .*damaged.* Bad CRC-32 .*'ln_f.bias"):
        weights.read(path)[1]["ln_f.bias"].read()


# ------------------------------------------------------------------------------ writing


def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch):
    path = write(tmp_path / "w.npz")
    before = path.read_bytes()

    def crash(f):
        f.write(b"half of")
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        write_beside(path, crash)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(KeyboardInterrupt):
        write_beside(tmp_path / "new.npz", crash)
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(os, "replace", lambda *paths: crash(io.BytesIO()))
    with pytest.raises(KeyboardInterrupt):
        write(path, np.float16)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("old")

    def write_new(f):
        f.write("new é")
        f.flush()
        assert path.read_text() == "old"
        assert {p.parent for p in tmp_path.iterdir()} == {tmp_path}
        assert len(list(tmp_path.iterdir())) == 2
    write_beside(path, write_new, "w")
    assert path.read_text(encoding="utf-8") == "new é" and list(tmp_path.iterdir()) == [path]


def test_a_name_of_shipped_weights_and_of_a_file_here_is_told_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = weights.find("minigpt-bits")
    assert path.name == "minigpt-bits.npz" and capsys.readouterr().err == ""
    (tmp_path / "minigpt-bits.npz").write_bytes(b"")
    for _ in range(2):
        assert weights.find("minigpt-bits") == path
    assert capsys.readouterr().err == (f"minifpt: 'minigpt-bits' is {path}; write "
                                       "./minigpt-bits.npz for the file in this folder\n")
    assert weights.find("./minigpt-bits.npz").samefile(tmp_path / "minigpt-bits.npz")
