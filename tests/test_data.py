import gzip
import hashlib
import os
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from minifpt import tasks
from minifpt.files import data

FILES = ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


def idx(array):
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def write_mnist(folder, name="{}-ubyte.gz", seed=0):
    """A small MNIST in ``folder``; returns {split: (images, labels)}."""
    rng, sets = np.random.default_rng(seed), {}
    for split, stem, n in (("train", "train", 12), ("test", "t10k", 10)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        images[0, 0, :2] = 0, 255
        sets[split] = images, np.arange(n, dtype=np.uint8) % 10
        for kind, array in zip(("images-idx3", "labels-idx1"), sets[split], strict=True):
            path = folder / name.format(f"{stem}-{kind}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(idx(array)) if path.suffix == ".gz" else idx(array))
    return sets


@pytest.fixture
def real_data():
    if not os.environ.get("MINIFPT_DATA"):
        pytest.skip("MINIFPT_DATA is not set: the folder with the real data sets")
    return Path(os.environ["MINIFPT_DATA"])


@pytest.fixture
def real_mnist(real_data):
    try:
        data.find("mnist", FILES, real_data)
    except FileNotFoundError as e:
        pytest.skip(str(e))
    return real_data


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither MINIFPT_DATA nor a filled cache nor pooch; the cache's folder of data."""
    monkeypatch.delenv("MINIFPT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)               # import pooch fails
    return tmp_path / "cache" / "minifpt" / "data"


def fake_pooch(monkeypatch, raw_of):
    """Let pooch download the bytes ``raw_of(file name)``; the list of (url, hash) asked for."""
    requests = []

    def retrieve(url, known_hash, fname, path, progressbar):
        requests.append((url, known_hash))
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / fname).write_bytes(raw_of(fname))
        return str(Path(path) / fname)
    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    return requests


# ------------------------------------------------------------------------------- find


@pytest.mark.parametrize("name", ["{}-ubyte.gz", "{}-ubyte", "mnist/{}-ubyte.gz"])
def test_all_spellings_give_the_same_arrays(tmp_path, nowhere, name):
    written = write_mnist(tmp_path, name)
    for split in ("train", "test"):
        for got, want in zip(data.mnist(split, tmp_path), written[split], strict=True):
            assert got.dtype == np.uint8
            np.testing.assert_array_equal(got, want)


def test_dotted_names_and_unzipped_gz_are_read(tmp_path, nowhere):
    images = write_mnist(tmp_path)["test"][0]
    for i, dotted in enumerate(("t10k-images.idx3-ubyte.gz", "t10k-labels.idx1-ubyte.gz")):
        (tmp_path / FILES[i]).rename(tmp_path / dotted)
    np.testing.assert_array_equal(data.mnist("test", tmp_path)[0], images)
    for dotted in tmp_path.glob("t10k-*.gz"):
        dotted.with_suffix("").write_bytes(gzip.decompress(dotted.read_bytes()))
        dotted.unlink()
    np.testing.assert_array_equal(data.mnist("test", tmp_path)[0], images)
    (tmp_path / "t10k-images.idx3-ubyte").rename(tmp_path / FILES[0])
    np.testing.assert_array_equal(data.mnist("test", tmp_path)[0], images)


def test_a_folder_comes_before_the_environment_and_the_cache(tmp_path, nowhere, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    sets = {path: write_mnist(path, "mnist/{}-ubyte.gz", seed)["test"][0]
            for seed, path in enumerate((nowhere, first, second))}

    def found(folder=None):
        images = data.mnist("test", folder)[0]
        return [path for path in sets if np.array_equal(sets[path], images)]

    assert found() == [nowhere]                           # the cache
    monkeypatch.setenv("MINIFPT_DATA", str(first))
    assert found() == [first]
    assert found(second) == [second]
    (first / "mnist" / FILES[1]).unlink()                 # not all files there: look on
    assert found() == [nowhere]


def test_explicit_folder_is_the_only_one(tmp_path, nowhere, monkeypatch):
    write_mnist(nowhere)
    fake_pooch(monkeypatch, lambda name: pytest.fail("must not download"))
    with refused("mnist: .*empty does not hold t10k-images", FileNotFoundError):
        data.mnist("test", tmp_path / "empty")


def test_nothing_found_says_where_and_what_to_do(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("MINIFPT_DATA", str(tmp_path / "mine"))
    with pytest.raises(FileNotFoundError) as e:
        data.mnist("test")
    line = str(e.value)
    for part in ("t10k-images-idx3-ubyte.gz", str(tmp_path / "mine"), str(nowhere),
                 "MINIFPT_DATA", "--data"):
        assert part in line
    assert "\n" not in line


# --------------------------------------------------------------------------- download


def test_download_asks_for_the_official_file_and_its_hash(tmp_path, nowhere, monkeypatch):
    written = write_mnist(tmp_path / "server")
    requests = fake_pooch(monkeypatch, lambda name: (tmp_path / "server" / name).read_bytes())
    images = data.mnist("test")[0]
    np.testing.assert_array_equal(images, written["test"][0])
    assert requests == [(f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}",
                         f"sha256:{data.SHA256[file]}") for file in FILES]
    data.mnist("test")                                    # now from the cache
    assert len(requests) == 2 and (nowhere / "mnist" / FILES[0]).exists()


@pytest.mark.parametrize("error", [OSError("no route\nto host"), ValueError("hash differs")])
def test_failed_download_is_one_line(nowhere, monkeypatch, error):
    def failing(name):
        raise error
    fake_pooch(monkeypatch, failing)
    with refused("download from https://ossci.* failed", FileNotFoundError) as e:
        data.mnist("train")
    assert "MINIFPT_DATA" in str(e.value)
    assert not [path for path in nowhere.rglob("*") if path.is_file()]


def test_hashes_are_those_of_the_real_files(real_mnist):
    paths = data.find("mnist", list(data.SHA256), real_mnist)
    if paths[0].suffix != ".gz":
        pytest.skip("the real MNIST files are unzipped here")
    for path in paths:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == data.SHA256[path.name]


# ---------------------------------------------------------------------------- damaged


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, zipped):
    """Whether the header says so, or a little gzip unpacks to more than the header says."""
    head = bytes([0, 0, 8, 2]) + (2 ** 31).to_bytes(4, "big") * 2
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(head) if zipped else head)
    with pytest.raises(ValueError, match="x: its header says 4,611,686,018,427,387,904 bytes of "
                                         "numbers, at most 268,435,456 are read"):
        data.read_idx(path, 2)
    raw = idx(np.zeros((3, 4), np.uint8)) + bytes(10 ** 7)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    tracemalloc.start()
    with pytest.raises(ValueError, match="the file has more"):
        data.read_idx(path, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 ** 6


IDX = idx(np.zeros((3, 4), np.uint8))


@pytest.mark.parametrize("raw, message", [
    (b"", "starts with ''"), (IDX[:7], "damaged or cut short"),
    (gzip.compress(IDX, mtime=0)[:20], "x: damaged or cut short"),
    (IDX + b"more", "its header says 12 bytes of numbers, the file has more: damaged"),
    (IDX[:-5], "says 12 bytes of numbers, the file has 7: damaged"),
    (gzip.compress(IDX, mtime=0) + b"more", "x: damaged"),
    (idx(np.zeros(3, np.uint8)), "starts with '00 00 08 01', expected '00 00 08 02'"),
    (b"<html>not found</html>", "starts with '3c 68 74 6d'")])
def test_a_damaged_file_is_named(tmp_path, raw, message):
    (tmp_path / "x").write_bytes(raw)
    with refused(message):
        data.read_idx(tmp_path / "x", 2)


@pytest.mark.parametrize("images, labels", [
    ((3, 28, 28), [0, 1]), ((3, 27, 28), [0, 1, 2]), ((3, 28, 28), [0, 1, 10]), ((0, 28, 28), [])])
def test_images_and_labels_that_do_not_fit_are_refused(tmp_path, images, labels):
    for file, array in zip(FILES, (np.zeros(images), np.array(labels)), strict=True):
        (tmp_path / file).write_bytes(gzip.compress(idx(array.astype(np.uint8))))
    with refused(r"t10k-images.*expected \(N, 28, 28\)"):
        data.mnist("test", tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_the_official_size_that_is_another_one_is_named(
        tmp_path, real_mnist, capsys, zipped):
    for path in data.find("mnist", FILES, real_mnist):
        with data.unzipped(path) as f:
            raw = bytearray(f.read())
        raw[-1] ^= 1                                      # one wrong bit
        (tmp_path / path.name).write_bytes(gzip.compress(raw, 1) if zipped else raw)
    data.mnist("test", real_mnist)
    assert capsys.readouterr().err == ""
    data.mnist("test", tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("another SHA-256 than MNIST's file" in line for line in lines)


# -------------------------------------------------------------------------- real data


def test_real_mnist_is_read(real_mnist):
    task = tasks.get("mnist", data=real_mnist)
    x, y = task.test_set()
    assert x.shape == (10000, 49, 16) and list(y[:10, 0]) == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    images, labels = task.images("train")
    assert images.shape == (55000, 28, 28) and images.dtype == np.uint8
    assert list(labels[:10]) == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.mean() / 255 == pytest.approx(0.1307, abs=2e-4)         # the known mean


def test_real_books_are_read(real_data):
    folder = real_data / "books"
    if not any(folder.glob("*.txt")):
        pytest.skip("no books/*.txt in MINIFPT_DATA")
    path = min(folder.glob("*.txt"), key=lambda p: p.stat().st_size)
    task = tasks.Text(path, tokens=64)
    text = np.concatenate([task.bytes["train"], task.bytes["test"]]).tobytes()
    assert len(text) > 0.8 * path.stat().st_size and b"\r" not in text
    assert b"EBOOK" not in text and b"*** START" not in text and b"LICENSE" not in text
