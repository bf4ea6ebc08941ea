"""The tasks: what all have in common, and each one's examples by its definition."""

import json
import math

import numpy as np
import pytest
from conftest import refused, rng
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from test_data import WRITE, record, write_homology

import minifpt
from minifpt import cli, tasks
from minifpt.tasks import cifar
from minifpt.tasks.cifar import MEAN, STD, moved
from minifpt.tasks.images import FONTS, GLYPH, HEIGHT, glyphs
from minifpt.tasks.listops import OPERATORS, PAD, SYMBOLS, evaluate, parse
from minifpt.tasks.proteins import LETTERS

TASKS = {"bit-xor": {}, "bit-memory": {"bits": 12, "patch": 4}, "digits": {"size": 8}, "mnist": {},
         "text": {"tokens": 16}, "listops": {"length": 20, "depth": 3}, "typos": {"tokens": 16},
         "cifar10": {}, "cifar10-gray": {"side": 8}, "homology": {"length": 30}}
each_task = pytest.mark.parametrize("name", TASKS)


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A folder with small data sets, and what was written: {data set: {split: (x, y)}}."""
    folder = tmp_path_factory.mktemp("data")
    written = {name: write(folder) for name, write in WRITE.items()}
    for name in "ab":
        text = "".join(rng().choice(list("the quick fox\n"), 2000))
        (folder / f"{name}.txt").write_bytes(text.encode())
    return folder, written


@pytest.fixture
def make(stored):
    """A function that makes a task by name, on small files of its own."""
    files = {"files": [str(stored[0] / f"{name}.txt") for name in "ab"]}
    extra = {"text": files, "typos": files} | dict.fromkeys(
        ["mnist", "cifar10", "cifar10-gray", "homology"], {"data": str(stored[0])})
    return lambda name, **options: tasks.get(
        name, **{**TASKS.get(name, {}), **extra.get(name, {}), **options})


# ------------------------------------------------------------------- every task alike


@each_task
def test_batches_have_the_shapes_that_the_task_says_and_follow_the_seed(make, name):
    task = make(name)
    for split in task.splits:
        x, y = task.batch(rng(), 3, split)
        if task.ids:
            assert x.shape == (3, task.tokens) and x.dtype == np.int64
            assert x.min() >= 0 and x.max() < task.input_dim
        else:
            assert x.shape == (3, task.tokens, task.input_dim) and x.dtype == np.float32
        assert y.shape[:2] == (3, task.output_tokens) and y.dtype == np.int64
        assert y[0].size * task.classes == task.output_tokens * task.output_dim
        assert y.min() >= 0 and y.max() < task.classes
    assert task.splits == ("train", *["validation"] * (name != "text"), "test")
    x, _ = task.batch(rng(7), 8)
    assert not np.array_equal(x, task.batch(rng(8), 8)[0])
    again = tasks.get(name, **json.loads(json.dumps(task.options)))       # as a run's file has them
    assert again.options == task.options
    np.testing.assert_equal(again.batch(rng(7), 8), task.batch(rng(7), 8))
    needed = {"steps", "batch_size", "lr", "dropout"}
    assert needed <= set(task.defaults) <= needed | {"schedule", "warmup"}


@each_task
def test_the_loss_is_the_mean_cross_entropy_with_the_right_gradient(make, name):
    task = make(name)
    _, y = task.batch(rng(), 2)
    logits = rng(1).standard_normal((2, task.output_tokens, task.output_dim))
    scores = log_softmax(logits.reshape(*y.shape, task.classes), axis=-1)
    loss, dlogits = task.loss(logits, y)
    assert loss == pytest.approx(-np.take_along_axis(scores, y[..., None], -1).mean())
    p = (np.exp(scores) - np.eye(task.classes)[y]).reshape(logits.shape)
    np.testing.assert_allclose(dlogits, p / y.size, atol=1e-12)
    assert type(loss) is float and task.loss(logits.astype(np.float32), y)[1].dtype == np.float32


@each_task
def test_certain_scores_are_right_and_guesses_are_right_by_chance(make, name):
    task = make(name)
    _, y = task.batch(rng(), 200)
    shape = (200, task.output_tokens, task.output_dim)
    right = np.eye(task.classes, dtype=np.float32)[y].reshape(shape)
    assert task.accuracy(right, y) == 1.0 and type(task.accuracy(right, y)) is float
    assert task.accuracy(-right, y) == 0.0
    if name != "text":                                    # whose bytes are not equally likely
        guess = rng(3).standard_normal(shape)
        sd = math.sqrt(1 / task.classes * (1 - 1 / task.classes) / y.size)
        assert abs(task.accuracy(guess, y) - 1 / task.classes) < 5 * sd


@each_task
def test_bad_arguments_of_batch_loss_and_accuracy_are_refused(make, name):
    task = make(name)
    _, y = task.batch(rng(), 2)
    shape = (2, task.output_tokens, task.output_dim)
    logits, wide = (np.zeros((*shape[:2], n), np.float32) for n in (shape[2], shape[2] + 1))
    calls = [("split is 'dev', expected one of train, .*test", lambda: task.batch(rng(), 2, "dev")),
             ("rng is 0, expected np.random.default_rng", lambda: task.batch(0, 2)),
             ("logits is a list", lambda: task.loss(logits.tolist(), y)),
             ("y is an array of float64", lambda: task.accuracy(logits, y.astype(float))),
             *((f"size must be a whole number.*{n}", lambda n=n: task.batch(rng(), n))
               for n in (0, -1, 2.5))]
    for function in (task.loss, task.accuracy):
        calls += [(r"logits have shape \(2, .* expected \(2, ", lambda f=function: f(wide, y)),
                  (r"y has shape \(1, .*: logits of shape", lambda f=function: f(logits, y[:1])),
                  ("y has the class", lambda f=function: f(logits, y + task.classes))]
    for message, call in calls:
        with refused(message):
            call()


@pytest.mark.parametrize("name", ["bit-xor", "bit-memory", "typos", "masked"])
def test_nan_logits_are_not_counted_as_right(make, stored, name):
    """One score that is NaN makes the accuracy NaN, as it makes the loss."""
    task = tasks.Masked(stored[0] / "a.txt", 32) if name == "masked" else make(name)
    _, y = task.batch(rng(), 2)
    logits = rng().standard_normal((2, task.output_tokens, task.output_dim)).astype(np.float32)
    with np.errstate(all="ignore"):
        for function in (task.accuracy, lambda *pair: task.loss(*pair)[0]):
            assert np.isnan(function(np.full_like(logits, np.nan), y))
    logits[..., -1] = np.inf                              # an infinite score is the largest
    assert 0 <= task.accuracy(logits, y) <= 1


@pytest.mark.parametrize("name, options, message", [
    ("bitxor", {}, "no task 'bitxor'.*bit-memory, bit-xor, cifar10"),
    ("text", {"files": [None]}, "text: files is .*expected paths of text files"),
    ("bit-memory", {"m": 1}, "no option 'm': its options are strings, bits, patch"),
    ("bit-xor", {"name": "x"}, "bit-xor has no option 'name'"),
    ("bit-xor", {"n": 0}, "n must be a whole number, at least 1, got 0"),
    ("bit-xor", {"n": "five"}, "n must be a whole number, got 'five'"),
    ("bit-memory", {"strings": -1}, "strings must be"),
    ("bit-memory", {"bits": 100, "patch": 30}, "divisible by patch, got bits=100 and patch=30"),
    ("digits", {"size": 7}, "size must be a whole number, at least 8, got 7"),
    ("digits", {"size": 28, "patch": 8}, "divisible by patch, got size=28 and patch=8"),
    ("mnist", {"size": 30}, "size must be 28 or 32, got 30"),
    ("mnist", {"patch": 5}, "divisible by patch, got size=28 and patch=5"),
    ("text", {"files": []}, "files is empty"), ("text", {"files": ""}, "a path is empty"),
    ("text", {"files": ["a", " "]}, "a path is empty"),
    ("text", {"files": "x", "held_out": 1.5}, "held_out is 1.5, expected .*at most 0.99"),
    ("text", {"files": "gone.txt"}, "no file or folder .*gone.txt"),
    ("text", {"files": "empty"}, r"holds no \*.txt"),
    ("text", {"files": "short.txt", "tokens": 30},
     "the test split has 30 bytes, expected more than token"),
    ("typos", {"files": "short.txt", "tokens": 60},
     "the test split has 60 bytes, expected more than tokens=60"),
    ("cifar10", {"patch": 5}, "divisible by patch, got size=32 and patch=5"),
    ("cifar10", {"patch": 0}, "patch must be"), ("cifar10", {"size": 32}, "no option"),
    ("cifar10", {"augment": 1}, "augment is 1, expected True or False"),
    ("cifar10-gray", {"side": 12}, "side must be 32, 16, 8 or 4, got 12"),
    ("cifar10-gray", {"patch": 2}, "no option"),
    ("listops", {"length": 3}, "length must be"), ("listops", {"depth": 0}, "depth must be"),
    ("listops", {"depth": 501}, "depth must be .* at most 500"),
    ("listops", {"arguments": 1}, "arguments must be"),
    ("listops", {"least": 99}, "at most 64"), ("listops", {"cut": -1}, "cut must be"),
    ("typos", {"share": 1}, "share is 1, exp"), ("typos", {"share": np.nan}, "share is nan"),
    ("typos", {"tokens": 20_000}, "expected more than tokens=20000"),
    ("homology", {"length": 0}, "length must be"),
    ("homology", {"holdout": "clan"}, "'clan', expected one of fold, superfamily, family")])
def test_unknown_names_and_bad_options_are_refused(cwd, name, options, message):
    (cwd / "empty").mkdir()
    (cwd / "short.txt").write_text("short " * 100)
    with refused(f"{message}", (ValueError, FileNotFoundError)) as error:
        tasks.get(name, **options)
    assert str(error.value).startswith((name, "text", "no task"))
    if "short.txt" in options.values():                   # a byte more is just enough
        task = tasks.get(name, **options | {"tokens": options["tokens"] - 1})
        assert task.batch(rng(), 2, "test")


# ------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("n", [1, 5, 20])
def test_bit_xor_is_the_xor_of_the_two_halves(n):
    task = tasks.get("bit-xor", n=n)
    x, y = task.batch(rng(), 500)
    assert x.shape == (500, 2 * n, 1) and y.shape == (500, n) and task.test_set() is None
    assert set(np.unique(x)) == {0.0, 1.0}
    np.testing.assert_array_equal(y, (x[:, :n, 0] != x[:, n:, 0]).astype(int))
    for half in (x[:, :n], x[:, n:], y):                  # each on its own is a fair coin
        assert abs(half.mean() - 0.5) < 5 * 0.5 / math.sqrt(half.size)


def test_bit_memory_asks_for_one_of_the_strings_half_masked():
    task = tasks.get("bit-memory", strings=5, bits=100, patch=20)
    x, y, which = task.sample(rng(), 300)
    assert x.shape == (300, 30, 20) and y.shape == (300, 5, 20) and which.shape == (300,)
    np.testing.assert_equal(task.batch(rng(), 300), (x, y))
    strings = x.reshape(300, 6, 100)
    chosen = strings[np.arange(300), which]
    np.testing.assert_array_equal(2 * y.reshape(300, 100) - 1, chosen)
    assert set(np.unique(strings[:, :5])) == {-1.0, 1.0}
    masked, visible = strings[:, 5], strings[:, 5] != 0
    np.testing.assert_array_equal(masked[visible], chosen[visible])
    agree = (strings[:, :5] == masked[:, None]).sum(axis=2) == visible.sum(axis=1)[:, None]
    np.testing.assert_array_equal(agree.sum(axis=1), 1)   # no other string fits what is visible
    assert abs(visible.mean() - 0.5) < 5 * 0.5 / math.sqrt(visible.size)
    assert abs(strings[:, :5].mean()) < 5 / math.sqrt(5 * visible.size)
    assert np.bincount(which, minlength=5).min() > 300 / 5 - 5 * math.sqrt(300 * 0.2 * 0.8)


# ----------------------------------------------------------------------------- images


def whole_images(x, patch, channels=1):
    """Tokens (B, T, patch^2 channels) -> images (B, side, side, channels)."""
    n = math.isqrt(x.shape[1])
    x = x.reshape(len(x), n, n, patch, patch, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), n * patch, n * patch, channels)


def colours(images):
    return (images.transpose(0, 2, 3, 1) / 255 - MEAN) / STD


def grey(images, side):
    """Means of squares of grey pixels, from -1 to 1."""
    pixels = np.rint(np.tensordot([0.2989, 0.5870, 0.1140], images.astype(float), (0, 1)))
    k = 32 // side
    means = pixels.reshape(-1, side, k, side, k).mean(axis=(2, 4))
    return means[..., None] / 127.5 - 1


def bordered(images, size):
    border = (size - 28) // 2
    return np.pad(images / 255, ((0, 0), (border, border), (border, border)))[..., None]


@pytest.mark.parametrize("name, options", [
    *[("mnist", {"size": size, "patch": patch})
      for size, patch in ((28, 4), (32, 32), (28, 1))],
    *[("cifar10", {"patch": patch}) for patch in (4, 32)],
    *[("cifar10-gray", {"side": side}) for side in (32, 8)]])
def test_patches_put_together_are_the_image(make, stored, name, options):
    images, labels = stored[1][name.removesuffix("-gray")]["test"]
    task = make(name, **options)
    x, y = task.test_set()
    expected = (bordered(images, options["size"]) if name == "mnist" else
                colours(images) if name == "cifar10" else grey(images, options["side"]))
    patch, channels = options.get("patch", 1), expected.shape[-1]
    assert x.shape == (len(images), task.tokens, task.input_dim) and x.dtype == np.float32
    assert task.input_dim == patch ** 2 * channels and len(task.token_names()) == task.tokens
    np.testing.assert_allclose(whole_images(x, patch, channels), expected, atol=1e-5)
    np.testing.assert_allclose(task.as_images(x).reshape(expected.shape), expected, atol=1e-5)
    np.testing.assert_array_equal(y[:, 0], labels)


@pytest.mark.parametrize("name, share", [("mnist", 12), ("cifar10", 10), ("cifar10-gray", 10)])
def test_the_last_training_images_are_for_validation(make, stored, name, share):
    task, written = make(name), stored[1][name.removesuffix("-gray")]
    images, labels = written["train"]
    n = len(labels) - len(labels) // share
    for split, expected in (("train", (images[:n], labels[:n])), ("test", written["test"]),
                            ("validation", (images[n:], labels[n:]))):
        np.testing.assert_equal(task.stored(split), expected)
        pairs = {(x.tobytes(), int(y[0])) for x, y in zip(*task.prepare(*expected), strict=True)}
        drawn = {(x.tobytes(), int(y[0]))
                 for x, y in zip(*task.batch(rng(), 200, split), strict=True)}
        is_augmented = name == "cifar10" and split == "train"
        assert not drawn & pairs if is_augmented else drawn == pairs
    plain = make(name, augment=False) if name == "cifar10" else task
    np.testing.assert_array_equal(plain.batch(rng(), 20)[1], task.batch(rng(), 20)[1])


@pytest.mark.parametrize("name, file, place", [
    ("cifar10", "data_batch_5.bin", lambda raw: len(raw) - 1),
    ("homology", "remote_homology_valid.json", lambda raw: raw.rindex(b'"primary": "') + 12)])
def test_a_fingerprint_sees_one_byte(tmp_path, name, file, place):
    WRITE[name](tmp_path)
    before = tasks.get(name, data=tmp_path).fingerprint()
    assert before == tasks.get(name, data=tmp_path).fingerprint()
    raw = bytearray((tmp_path / file).read_bytes())
    raw[place(raw)] = ord("C" if raw[place(raw)] == ord("A") else "A")
    (tmp_path / file).write_bytes(raw)
    assert tasks.get(name, data=tmp_path).fingerprint() != before


def still(B):
    return np.zeros((B, 2), int), np.zeros(B, bool), np.zeros(B)


@given(st.integers(-4, 4), st.integers(-4, 4), st.booleans())
def test_a_crop_is_a_part_of_the_padded_image(down, right, mirror):
    images = rng(1).integers(1, 256, (2, 3, 32, 32), dtype=np.uint8)
    crop, mirrored, angle = still(2)
    result = moved(images, crop + [down, right], mirrored | mirror, angle)
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    expected = padded[:, :, 4 + down:36 + down, 4 + right:36 + right]
    np.testing.assert_array_equal(result, expected[..., ::-1] if mirror else expected)
    # The turn is the last of the three: what was cropped away does not come back.
    turned = moved(images, crop + [down, right], mirrored | mirror, angle + np.pi / 2)
    np.testing.assert_array_equal(turned, np.rot90(result, axes=(2, 3)))


def test_augmentation_draws_from_the_paper_s_ranges(monkeypatch):
    """Crops, flips and turns all happen, in their bounds, and each image gets its own."""
    images = rng().integers(0, 256, (2000, 1, 4, 4), dtype=np.uint8)
    calls = []
    monkeypatch.setattr(cifar, "moved", lambda *args: calls.append(args) or moved(*args))
    result = cifar.augmented(images, rng())
    assert result.shape == images.shape and result.dtype == np.uint8
    _, crop, mirrored, angle = calls[0]
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
    expected = torch.nn.functional.grid_sample(torch.tensor(images, dtype=torch.float64), grid,
                                               "nearest", "zeros", False).numpy()
    assert (moved(images, *still(6)[:2], angle) == expected).mean() > 0.999


def test_a_trunk_gets_new_positions_where_they_are_trained_and_is_refused_where_not(
        stored, cwd, capsys):
    argv = ["train", "cifar10-gray", "--data", stored[0], "--model", "minigpt-tiny",
            "--batch-size", 1, "--schedule", "constant", "--out", "run"]
    assert cli.main([*argv, "--freeze", "attn,mlp,pos"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "1024 tokens, the trunk has 256 positions" in error
    assert "random:6x4x128" in error and not [*cwd.iterdir()]
    assert cli.main([*argv, "--steps", 1]) == 0
    assert "minigpt-tiny has fewer positions than the 1,024 of the task" in capsys.readouterr().out
    recipe = json.loads((cwd / "run" / "config.json").read_text())["recipe"]
    assert recipe["n_positions"] == 1024
    assert cli.main([*argv, "--steps", 2, "--resume"]) == 0              # it makes the same model


# ----------------------------------------------------------------------------- digits


def test_glyphs_are_digits_of_one_height_and_the_test_has_other_fonts():
    families = {split: {name.split("-")[0][:5] for name in names} for split, names in FONTS.items()}
    assert not families["train"] & families["test"]
    for split, fonts in FONTS.items():
        shapes = glyphs(split)
        assert shapes.shape == (len(fonts), 10, GLYPH, GLYPH) and shapes is glyphs(split)
        assert shapes.min() == 0 and shapes.max() == 1 and not shapes.flags.writeable
        ink = shapes.any(axis=3).sum(axis=2)              # rows with ink
        assert (abs(ink - HEIGHT) <= 3).all()             # FreeType's versions round differently
        means = shapes.mean(axis=0)                       # a digit is most like its own kind's mean
        distance = ((shapes[:, :, None] - means) ** 2).sum(axis=(3, 4))
        assert ((distance.argmin(axis=2) == np.arange(10)).mean(axis=0) > 0.7).all()
    train, test = glyphs("train"), glyphs("test")         # no test glyph is a training glyph
    distance = ((test[:, None] - train) ** 2).sum(axis=(3, 4)).min(axis=(0, 1))
    assert (distance > 0.02 * (train ** 2).sum(axis=(2, 3)).mean(axis=0)).all()


def test_digits_are_all_different_and_the_test_set_is_fixed_and_fair():
    task = tasks.get("digits")
    images, labels = task.images(rng(), 200, "train")
    assert images.shape == (200, 28, 28) and images.dtype == np.float32
    assert images.min() >= 0 and 0.7 < images.max() <= 1
    x, y = task.batch(rng(), 200)
    np.testing.assert_array_equal(whole_images(x, 4)[..., 0], images)
    np.testing.assert_array_equal(y, labels[:, None])
    # No digit runs out of its picture: what lies on the border is little.
    mass = images.sum(axis=(1, 2))
    assert (mass - images[:, 1:-1, 1:-1].sum(axis=(1, 2)) < 0.1 * mass).all()
    assert len(np.unique(images, axis=0)) == 200 and set(labels) == set(range(10))
    middle = np.arange(28) - 13.5
    for axis in (1, 2):                                   # shifted, in both directions
        assert ((images.sum(axis=axis) * middle).sum(axis=1) / mass).std() > 0.8
    task = tasks.get("digits", size=8)
    x, y = task.test_set()
    assert x.shape == (1000, 4, 16) and len(np.unique(x, axis=0)) == 1000
    np.testing.assert_array_equal(x, task.test_set()[0])
    assert np.bincount(y[:, 0], minlength=10).min() > 60


# ------------------------------------------------------------------------------- text


def book(path, body, start="*** START OF THE BOOK ***", end="*** END OF THE BOOK ***",
         newline="\r\n"):
    text = f"licence\n{start}\n{body}\n{end}\nlicence\n".replace("\r", "")
    path.write_bytes(text.replace("\n", newline).encode())
    return path


def test_text_y_is_the_next_byte_and_the_splits_are_disjoint(tmp_path):
    letters = {"train": "abcdefghi", "test": "xyz"}
    for name, seed in (("a", 1), ("b", 2)):               # 950 bytes of one, 50 of the other
        parts = [rng(seed).choice(list(letters[s]), n) for s, n in (("train", 950), ("test", 50))]
        book(tmp_path / f"{name}.txt", "".join(np.concatenate(parts)))
    task = tasks.Text(tmp_path, tokens=10)
    for split, size in (("train", 1900), ("test", 100)):
        assert len(task.bytes[split]) == size
        x, y = task.batch(rng(), 2000, split)
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        assert {chr(i) for i in np.unique(x)} == set(letters[split])
        windows = {task.bytes[split][i:i + 11].tobytes() for i in range(size - 10)}
        drawn = {bytes([*a, b[-1]]) for a, b in zip(x.tolist(), y.tolist(), strict=True)}
        assert drawn <= windows
        if split == "test":                               # first and last passage are drawn too
            assert drawn == windows
    x, y = task.test_set()                                # asks for each byte once
    assert x.shape == (9, 10) and x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(x.ravel(), task.bytes["test"][:90])
    np.testing.assert_array_equal(y.ravel(), task.bytes["test"][1:91])


@pytest.mark.parametrize("start, end", [
    ("*** START OF THIS PROJECT GUTENBERG EBOOK ULYSSES ***", "*** END OF THIS EBOOK ***"),
    ("***START OF THE PROJECT GUTENBERG EBOOK X***", "***END OF THE PROJECT GUTENBERG EBOOK X***"),
    ("*** START OF A ***", "End of the Project Gutenberg EBook of A\n\n*** END OF A ***"),
    ("*** START OF THE PROJECT GUTENBERG EBOOK A LONG\nTITLE ***",
     "End of The Project Gutenberg Etext of A"),
    ("*** START OF A ***\n\n\nProduced by A. Person and\nothers\n\n",
     "END OF PROJECT GUTENBERG'S A"),
    ("*** START OF A ***\n\nE-text prepared by A. Person\n\n", "*** END OF A"),
    ("*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
     "\nEnd of this Project Gutenberg Etext"),
])
@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_text_keeps_what_stands_between_the_markers(tmp_path, start, end, newline):
    text = "One.\n\nThe END OF it; *** START OF x.\nProduced by A.\n\nThe end."
    assert tasks.text.read_book(book(tmp_path / "a.txt", text, start, end, newline)
                                ) == text.encode()
    (tmp_path / "b.txt").write_text("Produced by me.\n\nA text of one's own.")
    assert tasks.text.read_book(tmp_path / "b.txt") == b"Produced by me.\n\nA text of one's own."


@pytest.mark.parametrize("text, encoding, expected", [
    ("\ufeff“It’s” — ‘caf\u00e9’…\u00a0Ok", "utf-8", "\"It's\" -- 'caf\u00e9'... Ok"),
    ("caf\u00e9\r\n\u00a31", "latin-1", "caf\u00e9\n\u00a31"),
    *[("\u201cCaf\u00e9\u201d\r\nend", encoding, '"Caf\u00e9"\nend')
      for encoding in ("utf-16", "utf-32", "cp1252")],
    *[("\ufeff\u201cCaf\u00e9\u201d", encoding, '"Caf\u00e9"')
      for encoding in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le")],
    ("A page.\fA menu.\v\x1b[1mbold\x1b[0m the end\x1a", "ascii",
     "A page.\fA menu.\v\x1b[1mbold\x1b[0m the end\x1a")])
def test_texts_of_other_encodings_are_read(tmp_path, text, encoding, expected):
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert tasks.text.read_book(tmp_path / "a.txt") == expected.encode()


def test_fifteen_per_cent_of_the_bytes_are_masked(tmp_path):
    path = tmp_path / "fox.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    task = tasks.Masked([path], 40)
    x, y = task.batch(rng(), 2000)
    chosen = y >= 0
    assert (chosen.sum(axis=1) == 6).all()                # 15 % of 40
    assert abs(chosen.mean(axis=0) - 0.15).max() < 0.04   # in all places
    text, raw = np.where(chosen, y, x), path.read_bytes()
    assert all(bytes(row) in raw for row in text[:50].astype(np.uint8))
    masked, kept = (x == 0)[chosen], (x == y)[chosen]
    assert not (x[~chosen] == 0).any() and set(y[~chosen]) == {-1}
    assert abs(masked.mean() - 0.8) < 0.02
    # One of 10 is replaced, by itself in one of 27 cases.
    assert abs(kept.mean() - 0.1 - 0.1 / 27) < 0.01
    assert set(x[chosen][~masked]) <= set(raw)
    np.testing.assert_equal(task.test_set(), task.test_set())
    x, y = task.test_set()
    np.testing.assert_array_equal(np.where(y >= 0, y, x), tasks.Text([path], 40).test_set()[0])


@given(st.integers(1, 4), st.integers(7, 20), st.integers(0, 99))
def test_only_chosen_bytes_count_in_loss_and_accuracy(B, T, seed):
    numbers, task = rng(seed), tasks.Masked.__new__(tasks.Masked)         # they need no text
    task.output_tokens = T
    y = np.where(numbers.random((B, T)) < 0.3, numbers.integers(0, 256, (B, T)), -1)
    y[0, 0] = 7
    chosen, logits = y >= 0, numbers.standard_normal((B, T, 256))
    loss, dlogits = task.loss(logits, y)
    scores = log_softmax(logits, axis=-1)
    assert loss == pytest.approx(-scores[chosen, y[chosen]].mean()) and type(loss) is float
    expected = (np.exp(scores) - np.eye(256)[y]) * chosen[..., None] / chosen.sum()
    np.testing.assert_allclose(dlogits, expected, atol=1e-12)
    moved = logits + ~chosen[..., None] * numbers.standard_normal(logits.shape)
    assert task.accuracy(moved, y) == task.accuracy(logits, y)
    best = np.eye(256)[y]
    assert task.accuracy(best, y) == 1.0 and task.accuracy(-best, y) == 0.0
    assert task.loss(logits.astype(np.float32), y)[1].dtype == np.float32


def test_typos_have_the_asked_share_and_a_balanced_accuracy():
    task = tasks.get("typos", tokens=32, share=0.25)
    assert task.options["files"] is None                  # the text that ships
    x, y = task.batch(rng(), 400, "test")
    assert x.shape == y.shape == (400, 32) and abs(y.mean() - 0.25) < 0.02
    clean = task.text.draw(rng(), 400, "test")[0]
    assert (x == clean)[y == 0].all() and 0.85 < (x != clean)[y == 1].mean() < 1
    parts = [task.text.bytes[split] for split in ("train", "validation", "test")]
    shipped = minifpt.files.weights.shipped("held-out.txt")
    assert sum(map(len, parts)) == shipped.stat().st_size - 2 and min(map(len, parts)) > 10_000
    assert task.fingerprint() == tasks.get("typos").fingerprint()
    for i, j in ((0, 1), (0, 2), (1, 2)):                 # the splits are disjoint
        piece = len(parts[j]) // 3
        assert parts[j].tobytes()[piece:piece + 200] not in parts[i].tobytes()
    task, y = tasks.get("typos", tokens=4, share=0.25), np.array([[0, 0, 0, 1]])
    original = np.tile(np.array([1.0, 0.0], np.float32), (1, 4, 1))      # "none is replaced"
    assert task.accuracy(original, y) == 0.5
    assert task.accuracy(np.eye(2, dtype=np.float32)[y], y) == 1.0
    assert task.accuracy(original, np.zeros((1, 4), int)) == 1.0         # where there is one kind


# ---------------------------------------------------------------------------- ListOps


ARENA = ("Source\tTarget\n( ( ( [MAX 4 ) 3 ) ] )\t4\n"
         "( ( ( ( [SM 9 ) 8 ) ( ( ( [MIN 2 ) 3 ) ] ) ) ] )\t9\n")


def by_python(ids):
    """The value, depth, largest and smallest number of parts, by nested calls, not a stack."""
    ids, counts = list(ids), []

    def part():
        i = ids.pop(0)
        if i < 10:
            return i, 0
        values = []
        while SYMBOLS[ids[0]] != "]":
            values.append(part())
        ids.pop(0)
        numbers, depths = zip(*values, strict=True)
        counts.append(len(numbers))
        return {"[MIN": min(numbers), "[MAX": max(numbers), "[SM": sum(numbers) % 10,
                "[MED": int(np.floor(np.median(numbers)))}[SYMBOLS[i]], 1 + max(depths)
    value, depth = part()
    assert not ids
    return value, depth, max(counts, default=2), min(counts, default=2)


@given(st.integers(0, 10 ** 6), st.integers(1, 6), st.integers(2, 8), st.integers(8, 80))
def test_expressions_follow_the_rules(seed, depth, arguments, length):
    task = tasks.get("listops", length=length, depth=depth, arguments=arguments)
    ids, value = task.expression(rng(seed))
    expected, deepest, most, fewest = by_python(ids)
    assert value == expected == evaluate(ids) and 4 <= len(ids) <= length
    assert deepest <= depth and 2 <= fewest and most <= arguments


def test_expressions_are_padded_on_the_left_and_cut(monkeypatch):
    x, y = tasks.get("listops", length=20).batch(rng(), 300, "train")
    assert x.shape == (300, 20) and y.shape == (300, 1) and set(np.unique(y)) == set(range(10))
    assert (x[:, -1] == SYMBOLS.index("]")).all()         # the last token is where it is read
    for row, value in zip(x, y[:, 0], strict=True):
        ids = row[row != PAD]
        assert evaluate(ids) == value and (row[:len(row) - len(ids)] == PAD).all()
    cut = tasks.get("listops", length=20, cut=6).batch(rng(), 300, "train")[0].tolist()
    shown = [[i for i in row if i < SYMBOLS.index("]")][:6] for row in x]
    assert cut == [[PAD] * (6 - len(row)) + row for row in shown]
    # A quarter of the parts are lists while fewer than depth are open.
    task = tasks.get("listops", length=400, depth=2, arguments=2)
    lists = [sum(10 <= i < 10 + len(OPERATORS) for i in task.expression(rng(s))[0]) - 1
             for s in range(2000)]
    assert abs(np.mean(lists) / 2 - 0.25) < 0.03
    monkeypatch.setattr("minifpt.tasks.listops.TRIES", 50)
    task = tasks.get("listops", length=64, least=60, depth=1, arguments=2)
    with refused("^listops: none of 50 expressions of depth 1 had 60 "):
        task.batch(rng(), 1)


def test_the_arena_s_files_are_read(tmp_path):
    for stem in ("train", "val", "test"):
        (tmp_path / f"basic_{stem}.tsv").write_text(ARENA)
    def task(**options):
        return tasks.get("listops", files=tmp_path, **options)
    x, y = task(length=8).test_set()
    assert y.tolist() == [[4], [9]] and x[0].tolist() == [PAD] * 4 + parse("[MAX 4 3 ]")
    assert task(length=8).batch(rng(), 5, "validation")[0].shape == (5, 8)
    assert task(length=4).test_set()[1].tolist() == [[4]]
    assert task(cut=2).test_set()[0][0].tolist() == [11, 4]
    before = task(length=8).fingerprint()
    other = ARENA.replace("[MAX 4", "[MAX 2").replace("\t4", "\t3")
    (tmp_path / "basic_train.tsv").write_text(other)
    assert task(length=8).fingerprint() != before


@pytest.mark.parametrize("text, message", [
    ("( [MAX 4 ) 3 ]\t5\n", "line 1 .*its value is 4, not 5"),
    ("[MAX 4 3\t4\n", "line 1 .*brackets"), ("", "holds no"), ("[MAX 1 2 ]\n", "line 1"),
    ("[FIRST 1 2 ]\t1\n", "line 1 .*unknown symbol '.FIRST'"),
    ("[MAX 1 2 ]\tx\n", "line 1"), ("]\t1\n", "line 1"), ("[MAX ]\t1\n", "line 1"),
    ("[MAX 1 2 3 4 5 6 7 8 9 1 2 3 ]\t9\n", "no expression of at most 8 symbols")])
def test_damaged_lists_are_refused(tmp_path, text, message):
    (tmp_path / "basic_train.tsv").write_text(text)
    with refused(message):
        tasks.get("listops", length=8, files=tmp_path).batch(rng(), 1, "train")
    with refused("no file .*basic_val.tsv$", FileNotFoundError):
        tasks.get("listops", length=8, files=tmp_path).batch(rng(), 1, "validation")


# --------------------------------------------------------------------------- proteins


def decode(ids):
    """Ids (length,) -> the protein, with spaces for the padding."""
    return "".join(LETTERS[i] if i < len(LETTERS) else " " for i in ids)


@pytest.mark.parametrize("holdout", ["fold", "superfamily", "family"])
def test_proteins_are_padded_on_the_left_and_each_split_is_its_file(make, stored, holdout):
    task = make("homology", length=32, holdout=holdout)
    assert (task.tokens, task.input_dim, task.output_dim) == (32, 26, 1195)
    for split, stem in (("train", "train"), ("validation", "valid"),
                        ("test", f"test_{holdout}_holdout")):
        proteins, folds = stored[1]["homology"][stem]
        pairs = {(p.rjust(32), int(fold)) for p, fold in zip(proteins, folds, strict=True)}
        x, y = task.batch(rng(), 100, split)
        assert {*zip(map(decode, x), y[:, 0].tolist(), strict=True)} == pairs
    x, y = task.test_set()                                # the last split, in its order
    assert [*map(decode, x)] == [p.rjust(32) for p in proteins] and y[:, 0].tolist() == [*folds]


def test_longer_proteins_are_left_out_and_unknown_letters_refused(tmp_path):
    proteins, _ = write_homology(tmp_path)["test_fold_holdout"]
    lengths = sorted(map(len, proteins))
    x, _ = tasks.get("homology", length=lengths[4], data=tmp_path).test_set()
    assert len(x) == sum(n <= lengths[4] for n in lengths) and x.shape[1] == lengths[4]
    with refused(f"^homology: test_fold_holdout has no protein of at most length=1 amino acids, "
                 f"the shortest has {lengths[0]}$"):
        tasks.get("homology", length=1, data=tmp_path).test_set()
    path = tmp_path / "remote_homology_train.json"
    for protein, letter in (("MKTJ", "J"), ("mktb", "m"), ("MK\u03b1B", "\u03b1")):
        path.write_text(json.dumps([record("MK", 0), record(protein, 0)]))
        with refused(f"record 2 has '{letter}', expected amino acids"):
            tasks.get("homology", data=tmp_path).batch(rng(), 1)


# ------------------------------------------------------------------ tasks of the user


def test_a_task_without_options_of_its_own_gets_those_that_were_given():
    class Mine(tasks.BitXOR):
        def __init__(self, noise=0.0):
            super().__init__()
            self.options = {}
    for options in {"noise": 0.5}, {}:
        assert tasks.make(Mine, "mine", options).options == options
    with refused("mine needs the option 'n'"):
        tasks.make(lambda n: None, "mine", {})
