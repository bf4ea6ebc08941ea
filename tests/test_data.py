"""The files of MNIST, CIFAR-10 and TAPE's proteins: found, downloaded, read, refused if damaged."""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

from minifpt import tasks
from minifpt.files import data
from minifpt.tasks.cifar import MEAN, STD
from minifpt.tasks.proteins import LETTERS

FILES = ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
PROTEINS = "train", "valid", "test_fold_holdout", "test_superfamily_holdout", "test_family_holdout"
RECORD = {"id": "d1a0aa_", "primary": "MKTB", "protein_length": 4, "class_label": 0,
          "fold_label": 1194, "superfamily_label": 0, "family_label": 0,
          "evolutionary": [[0.0] * 20] * 4, "secondary_structure": [[1.0, 0.0, 0.0]] * 4}


def idx(array):
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def write_mnist(folder, seed=0):
    """A small MNIST in ``folder``; returns {split: (images, labels)}."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, sets = np.random.default_rng(seed), {}
    for split, stem, n in (("train", "train", 12), ("test", "t10k", 10)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        images[0, 0, :2] = 0, 255
        sets[split] = images, np.arange(n, dtype=np.uint8) % 10
        for kind, array in zip(("images-idx3", "labels-idx1"), sets[split], strict=True):
            (folder / f"{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return sets


def write_cifar10(folder, n=4, seed=0):
    """A small CIFAR-10 in ``folder``, n pictures a file; {split: (images, labels)}."""
    folder.mkdir(parents=True, exist_ok=True)
    sets, rng = {"train": [], "test": []}, np.random.default_rng(seed)
    for file in data.CIFAR10:
        rows = rng.integers(0, 256, (n, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / file).write_bytes(rows.tobytes())
        sets["test" if file.startswith("test") else "train"].append(rows)
    whole = {split: np.concatenate(rows) for split, rows in sets.items()}
    return {split: (rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])
            for split, rows in whole.items()}


def record(primary, fold):
    return RECORD | {"primary": primary, "protein_length": len(primary), "fold_label": fold}


def write_homology(folder, seed=0):
    """TAPE's five files with a few proteins each, in ``folder``; {split: (proteins, folds)}."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, sets = np.random.default_rng(seed), {}
    for split in PROTEINS:
        proteins = ["".join(rng.choice(list(LETTERS), n)) for n in rng.integers(3, 30, 8)]
        sets[split] = proteins, rng.integers(1195, size=8).astype(np.uint16)
        (folder / f"remote_homology_{split}.json").write_text(
            json.dumps([record(p, int(fold)) for p, fold in zip(*sets[split], strict=True)]))
    return sets


WRITE = {"mnist": write_mnist, "cifar10": write_cifar10, "homology": write_homology}
READ = {"mnist": data.mnist, "cifar10": data.cifar10, "homology": data.remote_homology}


def assert_read(name, written, folder):
    """The files of a data set in a folder are read as they were written."""
    for split, arrays in written.items():
        for result, expected in zip(READ[name](split, folder), arrays, strict=True):
            assert np.asarray(result).dtype == np.asarray(expected).dtype
            np.testing.assert_array_equal(result, expected)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither MINIFPT_DATA nor a filled cache nor pooch; the cache's folder of data."""
    monkeypatch.delenv("MINIFPT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)               # import pooch fails
    return tmp_path / "cache" / "minifpt" / "data"


@pytest.fixture
def server(tmp_path, monkeypatch, nowhere):
    """A pooch that serves files by name; an exception is raised.  ``requests``: (URL, hash)."""
    server = types.SimpleNamespace(files={}, requests=[])

    def retrieve(url, known_hash, fname, path, progressbar):
        server.requests.append((url, known_hash))
        if isinstance(server.files[fname], Exception):
            raise server.files[fname]
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / fname).write_bytes(server.files[fname])
        return str(Path(path) / fname)
    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    return server


# ------------------------------------------------------------------------------- find


@pytest.mark.parametrize("name, inner", [
    ("mnist", "."), ("mnist", "mnist"), ("cifar10", "."), ("cifar10", "cifar10"),
    ("cifar10", "cifar-10-batches-bin"), ("homology", "."), ("homology", "homology"),
    ("homology", "remote_homology")])
def test_files_are_found_in_each_place(tmp_path, nowhere, monkeypatch, name, inner):
    written = WRITE[name](tmp_path / inner)
    monkeypatch.setenv("MINIFPT_DATA", str(tmp_path))
    for folder in (tmp_path, None):
        assert_read(name, written, folder)


@pytest.mark.parametrize("spelling, zipped", [
    ("-idx3-ubyte.gz", False), ("-idx3-ubyte", False), ("-idx3-ubyte", True),
    (".idx3-ubyte.gz", True), (".idx3-ubyte", False)])
def test_every_spelling_is_read_and_gzip_is_seen_by_the_bytes(tmp_path, spelling, zipped):
    written = write_mnist(tmp_path)
    for path in [*tmp_path.glob("*-images-*")]:
        raw = path.read_bytes()
        path.unlink()
        path.with_name(path.name.replace("-idx3-ubyte.gz", spelling)).write_bytes(
            raw if zipped else gzip.decompress(raw))
    assert_read("mnist", written, tmp_path)


def test_proteins_are_read_gzipped_or_not(tmp_path):
    path = tmp_path / "remote_homology_valid.json"
    text = json.dumps([record("MKV", 3), record("ACD", 0)], indent=1)
    for raw in (text.encode(), f"\n {text}\n".encode(), gzip.compress(text.encode())):
        path.write_bytes(raw)
        assert_read("homology", {"valid": (["MKV", "ACD"], np.array([3, 0], np.uint16))}, tmp_path)


def test_a_folder_comes_before_the_environment_and_the_cache(tmp_path, nowhere, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    cached, own, given = (write_mnist(path / "mnist", seed)
                          for seed, path in enumerate((nowhere, first, second)))
    assert_read("mnist", cached, None)
    monkeypatch.setenv("MINIFPT_DATA", str(first))
    assert_read("mnist", own, None)
    assert_read("mnist", given, second)
    (first / "mnist" / FILES[1]).unlink()                 # not all files there: look on
    np.testing.assert_array_equal(data.mnist("test")[0], cached["test"][0])


HOMOLOGY = ("homology: .*remote_homology_train.json.*data_raw_pytorch/remote_homology.tar.gz"
            ".*unpack it")


@pytest.mark.parametrize("name, folder, message", [
    ("mnist", None, "mnist: train-images-idx3-ubyte.gz and .* not found in .*mine or .*data: "
                    "install pooch .* MINIFPT_DATA or --data"),
    ("mnist", "empty", "mnist: .*empty does not hold train-images"),
    ("cifar10", "empty", "does not hold data_batch_1.bin .*, neither itself nor in its folder "
                         "cifar10 or cifar-10-batches-bin$"),
    ("cifar10", "python", "holds the Python version, .* docs/guide/data.md"),
    ("cifar10", "python/cifar-10-batches-py", "holds the Python version, .* docs/guide/data.md"),
    ("homology", None, f"{HOMOLOGY} and give the folder as MINIFPT_DATA or --data$"),
    ("homology", "empty", f"{HOMOLOGY}$")])
def test_missing_files_are_named_with_their_places(tmp_path, server, monkeypatch, name, folder,
                                                   message):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setenv("MINIFPT_DATA", str(tmp_path / "mine"))
    (tmp_path / "python" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "python" / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"a pickle")
    with refused(message, FileNotFoundError):
        READ[name]("train", folder and tmp_path / folder)


# --------------------------------------------------------------------------- download


def archive(files):
    """The bytes of a tar archive with CIFAR-10's folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def test_downloads_ask_for_the_official_files_and_their_hashes(tmp_path, nowhere, server):
    mnist, cifar10 = write_mnist(tmp_path / "server"), write_cifar10(tmp_path / "pictures")
    server.files = {path.name: path.read_bytes() for path in (tmp_path / "server").iterdir()}
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    # A name that points out of the folder is a name like any other: it is not asked for.
    server.files["cifar-10-binary.tar.gz"] = archive(pictures | {
        "../../evil.bin": b"x", "readme.html": b"x"})
    for _ in range(2):                                    # the second time from the cache
        assert_read("mnist", mnist, None)
        assert_read("cifar10", cifar10, None)
    assert server.requests == [
        *((f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}", f"sha256:{data.SHA256[file]}")
          for file in data.SHA256),
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
         "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")]
    assert {p.name for p in nowhere.rglob("*") if p.is_file()} == {*data.CIFAR10, *data.SHA256}
    assert not [*tmp_path.rglob("evil.bin")]


@pytest.mark.parametrize("file, raw, kind, message", [
    *[("train-images-idx3-ubyte.gz", error, FileNotFoundError,
       "download from https://ossci.* failed.*MINIFPT_DATA")
      for error in (OSError("no route\nto host"), ValueError("hash differs"))],
    *[("cifar-10-binary.tar.gz", raw, ValueError, "tar.gz: not CIFAR-10's archive")
      for raw in (b"x" * 999, archive({"test_batch.bin": b"x"}))]],
    ids=["no route", "another hash", "no archive", "without pictures"])
def test_failed_downloads_are_one_line(server, file, raw, kind, message):
    server.files[file] = raw
    with refused(message, kind):
        READ["cifar10" if "cifar" in file else "mnist"]("train")


# ---------------------------------------------------------------------------- damaged


IDX = idx(np.zeros((3, 2, 2), np.uint8))
BATCH = bytes(4 * 3073)


@pytest.mark.parametrize("file, raw, message", [
    *[(FILES[0], raw, message) for raw, message in (
        (b"", "starts with ''"), (IDX[:7], "damaged or cut short"),
        (gzip.compress(IDX, mtime=0)[:20], "damaged or cut short"),
        (IDX + b"more", "its header says 12 bytes of numbers, the file has 16: damaged"),
        (IDX[:-5], "says 12 bytes of numbers, the file has 7: damaged"),
        (gzip.compress(IDX, mtime=0) + b"more", "damaged"),
        (idx(np.zeros(3, np.uint8)), "starts with '00 00 08 01', expected '00 00 08 03'"),
        (b"<html>not found</html>", "starts with '3c 68 74 6d'"),
        *((idx(np.zeros(shape, np.uint8)), r"expected \(N, 28, 28\)")
          for shape in ((9, 28, 28), (10, 27, 28), (0, 28, 28))))],
    (FILES[1], idx(np.full(10, 10, np.uint8)), "N labels from 0 to 9"),
    *[("test_batch.bin", raw, message) for raw, message in (
        (BATCH[:-1], "12,291 bytes, expected 3,073 for each picture"),
        (BATCH + b"!", "12,293 bytes"), (b"", "0 bytes, expected 3,073"),
        (BATCH[:3073] + b"\x0a" + BATCH[3074:], "picture 2 has the label 10, expected 0 to 9"),
        (b"\x1f\x8b" + BATCH, "damaged or cut short"))],
    *[("remote_homology_valid.json", text.encode(), message) for text, message in (
        ("{}", "expected a JSON list of records"), ("[]", "holds no record"),
        ("[1]", "record 1: expected primary"),
        *((text, "not JSON, or cut short") for text in (
            "", json.dumps([RECORD])[:-1], json.dumps([RECORD])[:-9], "[" * 99999, "[nonsense]",
            "9" * 5000)),
        *((json.dumps([RECORD, RECORD | wrong]), message) for wrong, message in (
            ({"fold_label": 1195}, "record 2: expected .*0 to 1194"),
            *(({"fold_label": fold}, "record 2") for fold in (-1, True, 1.0)),
            ({"primary": [4, 5]}, "record 2: expected primary, a string"),
            ({"primary": "", "protein_length": 0}, "record 2"),
            ({"protein_length": 5}, "record 2: .*of protein_length letters"))))]])
def test_a_damaged_file_is_named(tmp_path, file, raw, message):
    name = "cifar10" if file.endswith("bin") else "homology" if "homology" in file else "mnist"
    WRITE[name](tmp_path)
    (tmp_path / file).write_bytes(raw)
    with refused(f"{file if 'labels' not in file else 'images'}.*: .*{message}"):
        READ[name]("valid" if name == "homology" else "test", tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name, file", [
    *(("mnist", file) for file in data.SHA256), *(("cifar10", file) for file in data.CIFAR10)])
def test_a_file_of_the_official_size_with_other_contents_is_named(tmp_path, monkeypatch, capsys,
                                                                 name, file, zipped):
    """Whichever file of the data set, whether one bit or its end is damaged, and only then."""
    WRITE[name](tmp_path)
    raw = (tmp_path / file).read_bytes()
    raw = gzip.decompress(raw) if name == "mnist" else raw
    parts = [raw] if name == "mnist" else [
        (tmp_path / part).read_bytes() for part in data.CIFAR10
        if part.startswith("test") == file.startswith("test")]
    shape = ((12, 28, 28) if "train-im" in file else (10, 28, 28) if "t10k-im" in file else
             (12,) if "train-l" in file else (10,)) if name == "mnist" else (4 * len(parts), 3073)
    monkeypatch.setitem(data.OFFICIAL, shape, hashlib.sha256(b"".join(parts)).hexdigest())
    split = "train" if file.startswith(("train", "data")) else "test"
    # One bit of the last label or pixel; a copy that broke off and was filled up with zeros.
    half = raw[:len(raw) // 2].ljust(len(raw), b"\0")
    for contents in raw, raw[:-1] + bytes([raw[-1] ^ 1]), half:
        (tmp_path / file).write_bytes(gzip.compress(contents) if zipped else contents)
        READ[name](split, tmp_path)
        err = capsys.readouterr().err
        assert err.count("\n") == (contents != raw) == (file in err) == ("damaged" in err)


# -------------------------------------------------------------------------- real data


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MINIFPT_DATA"), reason="needs MINIFPT_DATA")
def test_real_digits_and_pictures_have_the_known_labels_mean_and_deviation(capsys):
    _, y = tasks.get("mnist").test_set()
    assert len(y) == 10000 and list(y[:10, 0]) == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    if not Path(os.environ["MINIFPT_DATA"], "cifar10", data.CIFAR10[0]).exists():
        pytest.skip("there is no CIFAR-10 in MINIFPT_DATA")
    paths, task = data.find("cifar10", data.CIFAR10), tasks.get("cifar10")
    assert [len(task.stored(split)[0]) for split in task.splits] == [45000, 5000, 10000]
    assert (np.bincount(task.stored("test")[1]) == 1000).all()
    pixels = task.stored("train")[0][::9] / np.float32(255)       # what was a JPEG is 0.002 off
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), MEAN, atol=3e-3)
    np.testing.assert_allclose(pixels.std(axis=(0, 2, 3)), STD, atol=4e-3)
    is_official = sha256(paths[-1]) == data.OFFICIAL[10000, 3073]         # it was never a JPEG
    assert is_official == ("another SHA-256" not in capsys.readouterr().err)
    if is_official:
        assert task.stored("test")[1][:5].tolist() == [3, 8, 8, 0, 6]
