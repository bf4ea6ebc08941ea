"""CIFAR-10: its files, its splits, what augmenting does, and the same in grey."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_data import fake_pooch, nowhere  # noqa: F401 (a fixture)

import minifpt
from minifpt import cli, tasks
from minifpt.files import data
from minifpt.tasks import cifar
from minifpt.tasks.cifar import MEAN, STD, moved

BLACK, WHITE = -MEAN / STD, (1 - MEAN) / STD              # of each colour, as a model sees them


def rng(seed=0):
    return np.random.default_rng(seed)


def write_cifar10(folder, n=4, seed=0):
    """A small CIFAR-10 in ``folder``, n pictures a file; {split: (images, labels)}."""
    folder.mkdir(parents=True, exist_ok=True)
    sets, draw = {"train": [], "test": []}, rng(seed)
    for file in data.CIFAR10:
        rows = draw.integers(0, 256, (n, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / file).write_bytes(rows.tobytes())
        sets["test" if file.startswith("test") else "train"].append(rows)
    whole = {split: np.concatenate(rows) for split, rows in sets.items()}
    return {split: (rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])
            for split, rows in whole.items()}


def pixels(x, patch):
    """Tokens (B, T, 3 patch^2) -> (B, 3, 32, 32), pixel by pixel."""
    out, n = np.empty((len(x), 3, 32, 32), x.dtype), 32 // patch
    for row in range(32):
        for column in range(32):
            token, at = row // patch * n + column // patch, row % patch * patch + column % patch
            out[:, :, row, column] = x[:, token, 3 * at:3 * at + 3]
    return out


def scaled(images):
    return ((images.transpose(0, 2, 3, 1) / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


# ---------------------------------------------------------------------------- the files


@pytest.mark.parametrize("inner", [".", "cifar10", "cifar-10-batches-bin"])
def test_files_are_found_in_each_place(tmp_path, nowhere, inner, monkeypatch):  # noqa: F811
    written = write_cifar10(tmp_path / inner)
    monkeypatch.setenv("MINIFPT_DATA", str(tmp_path))
    for folder in (tmp_path, None):
        for split in ("train", "test"):
            for got, want in zip(data.cifar10(split, folder), written[split], strict=True):
                assert got.dtype == np.uint8
                np.testing.assert_array_equal(got, want)
    with pytest.raises(FileNotFoundError, match="does not hold test_batch.bin, neither itself nor "
                                                "in its folder cifar10 or cifar-10-batches-bin$"):
        data.cifar10("test", tmp_path / "empty")


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-py"])
def test_the_python_version_is_named(tmp_path, inner):
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / "data_batch_1").write_bytes(b"a pickle")
    with pytest.raises(FileNotFoundError, match="holds the Python version, .* docs/guide/data.md"):
        data.cifar10("train", tmp_path)


def archive(path, files, folder="cifar-10-batches-bin"):
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def test_the_official_archive_is_downloaded_and_unpacked(tmp_path, nowhere, monkeypatch):  # noqa: F811
    written = write_cifar10(tmp_path / "server")
    files = {p.name: p.read_bytes() for p in (tmp_path / "server").iterdir()}
    # A name that points out of the folder is a name like any other: it is not asked for.
    tar = archive(tmp_path / "a.tar.gz", files | {"../../evil.bin": b"x", "readme.html": b"x"})
    requests = fake_pooch(monkeypatch, lambda name: tar.read_bytes())
    np.testing.assert_array_equal(data.cifar10("train")[0], written["train"][0])
    np.testing.assert_array_equal(data.cifar10("test")[0], written["test"][0])    # now in the cache
    assert requests == [("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                         "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")]
    assert {p.name for p in nowhere.rglob("*") if p.is_file()} == {*data.CIFAR10}
    assert not [*tmp_path.rglob("evil.bin")]


@pytest.mark.parametrize("spoil, message", [
    (lambda raw: raw[:len(raw) // 2], "damaged or cut short"), (lambda raw: b"x" * 999, "damaged"),
    (lambda raw: archive(Path("b"), {"test_batch.bin": b"x"}).read_bytes(),
     "does not hold data_batch_1.bin and data_batch_2.bin and")])
def test_a_damaged_archive_is_refused(tmp_path, nowhere, monkeypatch, spoil, message):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "server")
    files = {p.name: p.read_bytes() for p in (tmp_path / "server").iterdir()}
    raw = spoil(archive(tmp_path / "a", files).read_bytes())
    fake_pooch(monkeypatch, lambda name: raw)
    with pytest.raises(ValueError, match=f"^[^\n]*tar.gz: [^\n]*{message}[^\n]*$"):
        data.cifar10("train")


@pytest.mark.parametrize("damage, message", [
    (lambda raw: raw[:-1], "12,291 bytes, expected 3,073 for each picture"),
    (lambda raw: raw + b"!", "12,293 bytes"), (lambda raw: b"", "0 bytes, expected 3,073"),
    (lambda raw: raw[:3073] + b"\x0a" + raw[3074:], "picture 2 has the label 10, expected 0 to 9"),
    (lambda raw: b"\x1f\x8b" + raw, "damaged or cut short")])
@pytest.mark.parametrize("file", ["data_batch_3.bin", "test_batch.bin"])
def test_damaged_files_are_refused_in_one_line(tmp_path, fails, damage, message, file):
    write_cifar10(tmp_path)
    path = tmp_path / file
    path.write_bytes(damage(path.read_bytes()))
    task = tasks.get("cifar10", data=tmp_path)
    with pytest.raises(ValueError, match=f"^[^\n]*{file}: [^\n]*{message}[^\n]*$"):
        task.batch(rng(), 1, "test" if file.startswith("test") else "train")
    fails("train", "cifar10", "--data", tmp_path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------ the task


@pytest.mark.parametrize("patch", [4, 1, 8, 32])
def test_every_pixel_is_where_it_belongs(tmp_path, patch):
    images, labels = write_cifar10(tmp_path)["test"]
    task = tasks.get("cifar10", patch=patch, data=tmp_path)
    x, y = task.test_set()
    assert (task.tokens, task.input_dim) == ((32 // patch) ** 2, 3 * patch ** 2) == x.shape[1:]
    assert x.dtype == np.float32
    np.testing.assert_allclose(pixels(x, patch), scaled(images), atol=1e-5)
    np.testing.assert_array_equal(y[:, 0], labels)


@pytest.mark.parametrize("name", ["cifar10", "cifar10-gray"])
def test_splits_do_not_overlap(tmp_path, name):
    written = write_cifar10(tmp_path, n=6)
    task = tasks.get(name, data=tmp_path)
    got = {split: {i.tobytes() for i in task.images(split)[0]} for split in task.splits}
    assert list(map(len, got.values())) == [27, 3, 6]     # the last tenth is for choices
    assert {i.tobytes() for i in written["test"][0]} == got["test"]
    assert got["train"] | got["validation"] == {i.tobytes() for i in written["train"][0]}
    assert len(set.union(*got.values())) == 36
    np.testing.assert_array_equal(task.images("validation")[0], written["train"][0][27:])


def test_only_training_is_augmented(tmp_path):
    write_cifar10(tmp_path)
    task, plain = (tasks.get("cifar10", data=tmp_path, augment=a) for a in (True, False))
    for split in ("validation", "test"):
        np.testing.assert_array_equal(task.batch(rng(), 20, split)[0], plain.batch(rng(), 20,
                                                                                   split)[0])
    x, y = task.batch(rng(), 20)
    same, labels = plain.batch(rng(), 20)
    np.testing.assert_array_equal(y, labels)              # the same pictures, ...
    assert (x != same).any(axis=(1, 2)).all()             # ... each of them moved
    np.testing.assert_array_equal(x, tasks.get("cifar10", data=tmp_path).batch(rng(), 20)[0])
    assert task.fingerprint() == plain.fingerprint()


def test_fingerprint_sees_one_byte(tmp_path):
    write_cifar10(tmp_path)
    before = tasks.get("cifar10", data=tmp_path).fingerprint()
    assert before == tasks.get("cifar10-gray", data=tmp_path).fingerprint()
    raw = bytearray((tmp_path / "data_batch_5.bin").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "data_batch_5.bin").write_bytes(raw)
    assert tasks.get("cifar10", data=tmp_path).fingerprint() != before


# ---------------------------------------------------------------------------- augmenting


def still(B):
    return np.zeros((B, 2), int), np.zeros(B, bool), np.zeros(B)


def test_nothing_moved_is_the_same_and_a_flip_is_a_flip():
    images = rng().integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    crop, mirrored, angle = still(5)
    same = moved(images, crop, mirrored, angle)
    assert same.dtype == np.uint8
    np.testing.assert_array_equal(same, images)
    np.testing.assert_array_equal(moved(images, crop, ~mirrored, angle), images[..., ::-1])


@given(st.integers(-4, 4), st.integers(-4, 4), st.booleans())
def test_a_crop_is_a_part_of_the_padded_image(down, right, mirror):
    images = rng(1).integers(1, 256, (2, 3, 32, 32), dtype=np.uint8)
    crop, mirrored, angle = still(2)
    got = moved(images, crop + [down, right], mirrored | mirror, angle)
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    want = padded[:, :, 4 + down:36 + down, 4 + right:36 + right]
    np.testing.assert_array_equal(got, want[..., ::-1] if mirror else want)


def test_a_quarter_turn_is_one_to_the_left():
    images = rng().integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    crop, mirrored, angle = still(3)
    np.testing.assert_array_equal(moved(images, crop, mirrored, angle + np.pi / 2),
                                  np.rot90(images, axes=(2, 3)))
    # The turn is the last of the three: what was cropped away does not come back.
    got = moved(images, crop + [4, 0], ~mirrored, angle + np.pi / 2)
    first = moved(images, crop + [4, 0], ~mirrored, angle)
    assert (first[:, :, -4:] == 0).all()
    np.testing.assert_array_equal(got, np.rot90(first, axes=(2, 3)))


def test_augmentation_draws_from_the_paper_s_ranges(monkeypatch):
    """Crops, flips and turns all happen, in their bounds, and each image gets its own."""
    images = rng().integers(0, 256, (2000, 1, 4, 4), dtype=np.uint8)
    calls = []
    monkeypatch.setattr(cifar, "moved", lambda *args: calls.append(args) or moved(*args))
    got = cifar.augmented(images, rng())
    assert got.shape == images.shape and got.dtype == np.uint8
    np.testing.assert_array_equal(got, cifar.augmented(images, rng()))
    first_images, crop, mirrored, angle = calls[0]
    assert first_images is images and crop.shape == (2000, 2)
    assert mirrored.shape == angle.shape == (2000,)
    for column in crop.T:                                 # -4 to 4, each as often
        values, counts = np.unique(column, return_counts=True)
        assert values.tolist() == [*range(-4, 5)] and counts.min() > 150 and counts.max() < 300
    assert mirrored.dtype == bool and abs(mirrored.mean() - 0.5) < 0.05
    degrees = np.degrees(angle)
    assert -20 <= degrees.min() < -19.5 and 19.5 < degrees.max() <= 20
    assert abs(degrees.mean()) < 1.5 and abs(degrees.std() - 20 / np.sqrt(3)) < 0.6
    both = np.corrcoef([*crop.T, mirrored, angle])        # none of them says anything of another
    assert abs(both - np.eye(4)).max() < 0.1


@pytest.mark.oracle
def test_the_turn_is_pytorch_s():
    """What torchvision's rotation does: an affine grid, sampled at the nearest pixel."""
    torch = pytest.importorskip("torch")
    images = rng().integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    angle = np.radians(rng(1).uniform(-20, 20, 6))
    theta = np.zeros((6, 2, 3))
    theta[:, 0, 0] = theta[:, 1, 1] = np.cos(angle)
    theta[:, 0, 1], theta[:, 1, 0] = -np.sin(angle), np.sin(angle)
    grid = torch.nn.functional.affine_grid(torch.tensor(theta), [6, 3, 32, 32], False)
    want = torch.nn.functional.grid_sample(torch.tensor(images, dtype=torch.float64), grid,
                                           "nearest", "zeros", False).numpy()
    assert (moved(images, *still(6)[:2], angle) == want).mean() > 0.999


# --------------------------------------------------------------------------------- grey


@pytest.mark.parametrize("side", [32, 16, 8, 4])
def test_grey_pixels_row_by_row(tmp_path, side):
    images, labels = write_cifar10(tmp_path)["test"]
    task = tasks.get("cifar10-gray", side=side, data=tmp_path)
    x, y = task.test_set()
    assert x.shape == (4, side * side, 1) and x.dtype == np.float32
    grey = np.rint(np.tensordot([0.2989, 0.5870, 0.1140], images.astype(float), (0, 1)))
    k = 32 // side
    want = grey.reshape(-1, side, k, side, k).mean(axis=(2, 4)).reshape(4, -1, 1) / 127.5 - 1
    np.testing.assert_allclose(x, want, atol=1e-6)
    np.testing.assert_array_equal(y[:, 0], labels)
    assert task.as_images(x).shape == (4, side, side) and len(task.token_names()) == side * side
    one, _ = task.batch(rng(), 50)                        # and nothing is augmented
    assert {i.tobytes() for i in one} <= {i.tobytes() for i in task.prepare(
        *task.images("train"))[0]}


def test_a_trunk_with_too_few_positions_gets_new_ones_where_they_are_trained(
        tmp_path, capsys, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.chdir(tmp_path)
    argv = ["train", "cifar10-gray", "--data", tmp_path, "--model", "minigpt-tiny",
            "--batch-size", 1, "--schedule", "constant", "--out", "run"]
    assert cli.main([*argv, "--steps", 1]) == 0
    model = minifpt.GPT2.from_pretrained("minigpt-tiny")
    old = model.config.n_positions
    out = capsys.readouterr().out
    assert f"minigpt-tiny has {old} positions: the other {1024 - old} were drawn" in out
    built = json.loads((tmp_path / "run" / "config.json").read_text())["built"]
    assert built["n_positions"] == 1024
    assert cli.main([*argv, "--steps", 2, "--resume"]) == 0              # it makes the same model
    model = minifpt.FPT.for_task(tasks.get("cifar10-gray"), "minigpt-tiny", seed=3)
    table, new = model.trunk.wpe.weight.data, minifpt.GPT2(minifpt.GPT2Config(
        n_layer=1, n_head=1, n_embd=32, n_positions=1024), seed=3).wpe.weight.data
    np.testing.assert_array_equal(table[old:], new[old:])
    np.testing.assert_array_equal(
        table[:old], minifpt.GPT2.from_pretrained("minigpt-tiny").wpe.weight.data)


def test_a_trunk_whose_positions_are_frozen_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    write_cifar10(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "cifar10-gray", "--data", tmp_path, "--freeze", "attn,mlp,pos"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "1024 tokens, the trunk has 256 positions" in error
    assert "random:6x4x128" in error and not (tmp_path / "runs").exists()


# ---------------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def real():
    """The folder of the real CIFAR-10, and its arrays."""
    try:
        paths = data.find("cifar10", data.CIFAR10, os.environ.get("MINIFPT_DATA", "nowhere"))
    except FileNotFoundError as e:
        pytest.skip(f"MINIFPT_DATA names no folder with CIFAR-10's binary version: {e}")
    return paths[0].parent, tasks.get("cifar10", data=paths[0].parent)


def test_the_real_pictures_have_the_known_mean_and_deviation(real):
    folder, task = real
    assert [len(task.images(split)[0]) for split in task.splits] == [45000, 5000, 10000]
    assert (np.bincount(task.images("test")[1]) == 1000).all()
    images = task.images("train")[0][::9]                 # 5,000; what was a JPEG is 0.002 off
    for c in range(3):
        plane = images[:, c].astype(np.float32) / 255
        assert plane.mean() == pytest.approx(MEAN[c], abs=3e-3)
        assert plane.std() == pytest.approx(STD[c], abs=4e-3)
    x, _ = task.batch(rng(), 500, "validation")
    assert x.mean() == pytest.approx(0, abs=0.1) and x.std() == pytest.approx(1, abs=0.1)


def test_hashes_are_those_of_the_real_files(real):
    path = real[0] / "test_batch.bin"
    if hashlib.sha256(path.read_bytes()).hexdigest() != (
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"):
        pytest.skip("CIFAR-10 is not byte for byte the official one here")
    assert tasks.get("cifar10", data=real[0]).test_set()[1][:5, 0].tolist() == [3, 8, 8, 0, 6]
