import dataclasses
import json
import math

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from test_cifar import write_cifar10
from test_data import write_mnist
from test_proteins import write_homology

import minifpt
from minifpt import tasks

TASKS = {"bit-xor": {}, "bit-memory": {"bits": 12, "patch": 4}, "digits": {"size": 8}, "mnist": {},
         "text": {"tokens": 16},
         "listops": {"length": 20, "depth": 3}, "typos": {"tokens": 16}, "cifar10": {},
         "cifar10-gray": {"side": 8}, "homology": {"length": 30}}


@pytest.fixture
def make(tmp_path):
    """A function that makes a task by name, on small files of its own."""
    for write in (write_mnist, write_cifar10, write_homology):
        write(tmp_path)
    rng = np.random.default_rng(0)
    for name in "ab":
        text = "".join(rng.choice(list("the quick fox\n"), 2000))
        (tmp_path / f"{name}.txt").write_bytes(text.encode())
    files = {"files": [str(tmp_path / f"{name}.txt") for name in "ab"]}
    extra = {"text": files, "typos": files} | dict.fromkeys(
        ["mnist", "cifar10", "cifar10-gray", "homology"], {"data": str(tmp_path)})
    return lambda name, **options: tasks.get(
        name, **{**TASKS[name], **extra.get(name, {}), **options})


def rng(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------- every task alike


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_batch_has_the_shapes_that_the_task_says(make, name, split):
    task = make(name)
    if split not in task.splits:
        assert name == "text" and split == "validation"
        return
    x, y = task.batch(rng(), 3, split)
    if task.ids:
        assert x.shape == (3, task.tokens) and x.dtype == np.int64
        assert x.min() >= 0 and x.max() < task.input_dim
    else:
        assert x.shape == (3, task.tokens, task.input_dim) and x.dtype == np.float32
    assert y.shape[:2] == (3, task.output_tokens) and y.dtype == np.int64
    assert y[0].size * task.classes == task.output_tokens * task.output_dim
    assert y.min() >= 0 and y.max() < task.classes


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_gives_the_same_batch(make, name):
    task, again = make(name), make(name)
    (x, y), (x2, y2) = task.batch(rng(7), 8), again.batch(rng(7), 8)
    np.testing.assert_array_equal(x, x2)
    np.testing.assert_array_equal(y, y2)
    assert not np.array_equal(x, task.batch(rng(8), 8)[0])


@pytest.mark.parametrize("name", TASKS)
def test_options_build_the_task_again(make, name):
    task = make(name)
    options = json.loads(json.dumps(task.options))
    again = tasks.get(name, **options)
    assert again.options == task.options
    np.testing.assert_array_equal(again.batch(rng(), 2)[0], task.batch(rng(), 2)[0])
    needed = {"steps", "batch_size", "lr", "dropout"}
    assert needed <= set(task.defaults) <= needed | {"schedule", "warmup"}


@pytest.mark.parametrize("name", TASKS)
def test_the_loss_has_the_right_gradient(make, name):
    task = make(name)
    _, y = task.batch(rng(), 2)
    logits = rng(1).standard_normal((2, task.output_tokens, task.output_dim))
    loss, dlogits = task.loss(logits, y)
    assert type(loss) is float and dlogits.shape == logits.shape
    for index in rng(2).integers(0, logits.size, 20):
        h = np.zeros(logits.size)
        h[index] = 1e-5
        h = h.reshape(logits.shape)
        numeric = (task.loss(logits + h, y)[0] - task.loss(logits - h, y)[0]) / 2e-5
        assert dlogits.flat[index] == pytest.approx(numeric, rel=1e-5, abs=1e-10)
    assert task.loss(logits.astype(np.float32), y)[1].dtype == np.float32


@pytest.mark.parametrize("name", TASKS)
def test_equal_logits_lose_log_classes_and_certain_ones_are_right(make, name):
    task = make(name)
    _, y = task.batch(rng(), 200)
    shape = (200, task.output_tokens, task.output_dim)
    assert task.loss(np.zeros(shape, np.float32), y)[0] == pytest.approx(math.log(task.classes))
    right = np.eye(task.classes, dtype=np.float32)[y].reshape(shape)
    assert task.accuracy(right, y) == 1.0 and type(task.accuracy(right, y)) is float
    assert task.accuracy(-right, y) == 0.0
    assert task.loss(50 * right, y)[0] < 1e-6
    if name != "text":                                    # whose bytes are not equally likely
        guess = rng(3).standard_normal(shape)
        sd = math.sqrt(1 / task.classes * (1 - 1 / task.classes) / y.size)
        assert abs(task.accuracy(guess, y) - 1 / task.classes) < 5 * sd


@pytest.mark.parametrize("name", TASKS)
def test_bad_arguments_of_batch_and_loss_are_refused(make, name):
    task = make(name)
    with pytest.raises(ValueError, match="split is 'dev', expected one of train, .*test"):
        task.batch(rng(), 2, "dev")
    for size in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"size must be a whole number.*{size}"):
            task.batch(rng(), size)
    _, y = task.batch(rng(), 2)
    wrong = np.zeros((2, task.output_tokens, task.output_dim + 1), np.float32)
    for function in (task.loss, task.accuracy):
        with pytest.raises(ValueError, match=r"logits have shape \(2, .* expected \(2, "):
            function(wrong, y)


@pytest.mark.parametrize("name, y, expected", [("bit-xor", (1, 1), "(1, 5)"),
                                               ("bit-memory", (1, 1, 9), "(1, 1, 10)")])
def test_a_y_of_another_shape_is_named(name, y, expected):
    """The logits are as expected: the line speaks of y."""
    task = tasks.get(name, **({} if name == "bit-xor" else {"bits": 10, "patch": 10}))
    logits = np.zeros((1, task.output_tokens, task.output_dim), np.float32)
    for function in (task.loss, task.accuracy):
        with pytest.raises(ValueError) as error:
            function(logits, np.zeros(y, np.int64))
        assert f"y has shape {y}, expected {expected}: logits of shape" in str(error.value)


@pytest.mark.parametrize("name", ["bit-xor", "bit-memory", "typos", "masked"])
def test_nan_logits_are_not_counted_as_right(name, tmp_path):
    """One score that is NaN makes the accuracy NaN, as it makes the loss."""
    (tmp_path / "a.txt").write_text("It was a dark and stormy night. " * 200)
    task = tasks.Masked(tmp_path / "a.txt", 32) if name == "masked" else tasks.get(name)
    x, y = task.batch(rng(), 2, "train")
    logits = rng().standard_normal((2, task.output_tokens, task.output_dim)).astype(np.float32)
    assert 0 <= task.accuracy(logits, y) <= 1
    with np.errstate(all="ignore"):
        assert np.isnan(task.accuracy(np.full_like(logits, np.nan), y))
        assert np.isnan(task.loss(np.full_like(logits, np.nan), y)[0])
    logits[..., -1] = np.inf                              # an infinite score is the largest
    assert 0 <= task.accuracy(logits, y) <= 1


def test_get_lists_the_tasks_in_its_error():
    assert tasks.names() == [
        "bit-memory", "bit-xor", "cifar10", "cifar10-gray", "digits", "homology", "listops",
        "mnist", "text", "typos"]
    with pytest.raises(ValueError, match="no task 'bitxor'.*bit-memory, bit-xor, cifar10"):
        tasks.get("bitxor")
    with pytest.raises(ValueError, match="no option 'm': its options are strings, bits, patch"):
        tasks.get("bit-memory", m=1)
    with pytest.raises(ValueError, match="mine needs the option 'n'"):
        tasks.make(lambda n: None, "mine", {})


@pytest.mark.parametrize("name, options, message", [
    ("bit-xor", {"n": 0}, "n must be a whole number, at least 1, got 0"),
    ("bit-xor", {"n": "x"}, "n must be a whole number, got 'x'"),
    ("bit-memory", {"strings": -1}, "strings must be"),
    ("bit-memory", {"bits": 100, "patch": 30}, "divisible by patch, got bits=100 and patch=30"),
    ("digits", {"size": 7}, "size must be a whole number, at least 8, got 7"),
    ("digits", {"size": 28, "patch": 8}, "divisible by patch, got size=28 and patch=8"),
    ("mnist", {"size": 30}, "size must be 28 or 32, got 30"),
    ("mnist", {"patch": 5}, "divisible by patch, got size=28 and patch=5"),
    ("text", {"files": []}, "files is empty"), ("text", {"files": ""}, "a path is empty"),
    ("text", {"files": ["a", " "]}, "a path is empty"),
    ("text", {"files": "x", "held_out": 1.5}, "held_out must be between 0 and 1"),
    ("cifar10", {"patch": 5}, "divisible by patch, got size=32 and patch=5"),
    ("cifar10", {"patch": 0}, "patch must be"), ("cifar10", {"augment": "yes"}, "augment must be"),
    ("cifar10", {"augment": 1}, "true or false, got 1"), ("cifar10", {"size": 32}, "no option"),
    ("cifar10-gray", {"side": 12}, "side must be 32, 16, 8 or 4, got 12"),
    ("cifar10-gray", {"side": "10"}, "side must be"), ("cifar10-gray", {"patch": 2}, "no option"),
    ("listops", {"length": 3}, "length must be"), ("listops", {"depth": 0}, "depth must be"),
    ("listops", {"depth": 501}, "depth must be .* at most 500"),
    ("listops", {"arguments": 1}, "arguments must be"),
    ("listops", {"least": 99}, "at most 64"), ("listops", {"cut": -1}, "cut must be"),
    ("typos", {"share": 1}, "share must be"), ("typos", {"share": np.nan}, "share must be"),
    ("typos", {"tokens": 20_000}, "expected more than tokens=20000"),
    ("homology", {"length": 0}, "length must be"),
    ("homology", {"length": "x"}, "length must be"),
    ("homology", {"holdout": "clan"}, "'clan', expected one of fold, superfamily, family")])
def test_bad_options_are_refused(name, options, message):
    with refused(f"^({name}|text).*{message}"):
        tasks.get(name, **options)


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
    np.testing.assert_array_equal(agree.argmax(axis=1), which)
    assert abs(visible.mean() - 0.5) < 5 * 0.5 / math.sqrt(visible.size)
    assert abs(strings[:, :5].mean()) < 5 / math.sqrt(5 * visible.size)
    assert set(which) == set(range(5))
    assert np.bincount(which).min() > 300 / 5 - 5 * math.sqrt(300 * 0.2 * 0.8)


def test_bit_memory_visible_bits_alone_score_75_percent():
    task = tasks.get("bit-memory")
    x, y = task.batch(rng(), 200)
    masked = x[:, -task.output_tokens:]                   # (B, P, patch)
    logits = np.stack([-masked, masked], axis=-1)         # a tie where masked: says 0
    assert task.accuracy(logits.reshape(200, task.output_tokens, -1), y) == pytest.approx(0.75,
                                                                                      abs=0.02)


# ----------------------------------------------------------------------------- images


def whole_images(x, size, patch):
    """(B, T, patch^2) -> (B, size, size), patch by patch."""
    n, whole = size // patch, np.zeros((len(x), size, size), x.dtype)
    for t in range(n * n):
        i, j = t // n * patch, t % n * patch
        whole[:, i:i + patch, j:j + patch] = x[:, t].reshape(-1, patch, patch)
    return whole


@pytest.mark.parametrize("size, patch", [(28, 4), (32, 4), (28, 7), (32, 32), (28, 1)])
def test_mnist_patches_put_together_are_the_image(tmp_path, size, patch):
    images, labels = write_mnist(tmp_path)["test"]
    x, y = tasks.get("mnist", data=tmp_path, size=size, patch=patch).test_set()
    assert x.shape == (len(images), (size // patch) ** 2, patch ** 2) and x.dtype == np.float32
    whole = whole_images(x, size, patch)
    border = (size - 28) // 2
    inner = whole[:, border:size - border, border:size - border]
    np.testing.assert_array_equal(np.rint(inner * 255), images)
    assert whole.sum(dtype=float) == inner.sum(dtype=float)       # the border is zero
    assert x.min() == 0.0 and x.max() == 1.0
    np.testing.assert_array_equal(y, labels[:, None])


def test_mnist_splits_are_their_files(tmp_path):
    written = write_mnist(tmp_path)
    task = tasks.get("mnist", data=tmp_path)
    images, labels = written["train"]                     # the last twelfth is for choices
    n = len(labels) - len(labels) // 12
    assert n < len(labels)
    written |= {"train": (images[:n], labels[:n]), "validation": (images[n:], labels[n:])}
    for split, (images, labels) in written.items():
        pairs = {(i.tobytes(), int(n)) for i, n in zip(images, labels, strict=True)}
        other = {i.tobytes() for i in written["test" if split == "train" else "train"][0]}
        x, y = task.batch(rng(), 50, split)
        drawn = np.rint(whole_images(x, 28, 4) * 255).astype(np.uint8)
        assert {(i.tobytes(), int(n)) for i, n in zip(drawn, y[:, 0], strict=True)} == pairs
        assert not {i.tobytes() for i in drawn} & other


@pytest.mark.parametrize("size, patch", [(28, 4), (28, 7), (16, 4), (12, 1)])
def test_digits_are_the_images_in_patches(size, patch):
    task = tasks.get("digits", size=size, patch=patch)
    x, y = task.batch(rng(), 20)
    images, labels = task.images(rng(), 20, "train")
    assert images.shape == (20, size, size) and images.dtype == np.float32
    np.testing.assert_array_equal(whole_images(x, size, patch), images)
    np.testing.assert_array_equal(y, labels[:, None])
    assert images.min() >= 0 and 0.7 < images.max() <= 1
    # No digit runs out of its picture: what lies on the border is little.
    border = images.sum(axis=(1, 2)) - images[:, 1:-1, 1:-1].sum(axis=(1, 2))
    assert (border < 0.1 * images.sum(axis=(1, 2))).all()


def test_digits_glyphs_are_digits_of_one_height():
    from minifpt.tasks.images import FONTS, GLYPH, HEIGHT, glyphs
    for split, fonts in FONTS.items():
        shapes = glyphs(split)
        assert shapes.shape == (len(fonts), 10, GLYPH, GLYPH) and shapes is glyphs(split)
        assert shapes.min() == 0 and shapes.max() == 1 and not shapes.flags.writeable
        ink = shapes.any(axis=3).sum(axis=2)              # rows with ink
        assert (abs(ink - HEIGHT) <= 3).all()             # FreeType's versions round differently
        for digit in range(10):                           # most like its own kind's mean
            others = np.stack([shapes[:, d].mean(axis=0) for d in range(10)])
            distance = ((shapes[:, digit, None] - others) ** 2).sum(axis=(2, 3))
            assert (distance.argmin(axis=1) == digit).mean() > 0.7


def test_digits_test_split_has_other_fonts():
    from minifpt.tasks.images import FONTS, glyphs
    families = {split: {name.split("-")[0][:5] for name in names} for split, names in FONTS.items()}
    assert not families["train"] & families["test"]
    train, test = (glyphs(split).reshape(-1, 10, 56 * 56) for split in ("train", "test"))
    for digit in range(10):                               # no test glyph is a training glyph
        distance = ((test[:, None, digit] - train[None, :, digit]) ** 2).sum(axis=-1)
        assert distance.min() > 0.02 * (train[:, digit] ** 2).sum(axis=-1).mean()


def test_digits_test_set_is_fixed_and_fair():
    task = tasks.get("digits", size=8)
    x, y = task.test_set()
    assert x.shape == (1000, 4, 16) and y.shape == (1000, 1)
    np.testing.assert_array_equal(x, task.test_set()[0])
    assert np.bincount(y[:, 0], minlength=10).min() > 60
    assert len(np.unique(x, axis=0)) == 1000


def test_digits_are_all_different():
    images, labels = tasks.get("digits").images(rng(), 200, "train")
    assert len(np.unique(images, axis=0)) == 200
    assert set(labels) == set(range(10))
    middle = np.arange(28) - 13.5
    mass = images / images.sum(axis=(1, 2), keepdims=True)
    places = np.stack([(mass.sum(axis=2) * middle).sum(axis=1),
                       (mass.sum(axis=1) * middle).sum(axis=1)])
    assert (places.std(axis=1) > 0.8).all()               # shifted, in both directions


# ------------------------------------------------------------------------------- text


def test_typos_text_ships_and_its_splits_are_disjoint():
    task = tasks.get("typos")
    assert task.options["files"] is None
    books = task.text.bytes
    assert min(map(len, books.values())) > 10_000 and set(books) == {"train", "validation", "test"}
    for a, b in (("train", "test"), ("train", "validation"), ("validation", "test")):
        whole = books[a].tobytes()
        piece = len(books[b]) // 3
        assert books[b].tobytes()[piece:piece + 200] not in whole


def book(path, body, start="*** START OF THE BOOK ***", end="*** END OF THE BOOK ***"):
    path.write_bytes(f"licence\r\n{start}\r\n{body}\r\n{end}\r\nlicence\r\n".encode())
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


def test_text_test_set_asks_for_each_byte_once(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(32, 127)) * 20)
    task = tasks.Text([tmp_path / "a.txt"], tokens=7, held_out=0.1)
    x, y = task.test_set()
    held = task.bytes["test"]
    assert x.shape == ((len(held) - 1) // 7, 7) and x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(x.ravel(), held[:x.size])
    np.testing.assert_array_equal(y.ravel(), held[1:x.size + 1])


@pytest.mark.parametrize("start, end", [
    ("*** START OF THIS PROJECT GUTENBERG EBOOK ULYSSES ***", "*** END OF THIS EBOOK ***"),
    ("***START OF THE PROJECT GUTENBERG EBOOK X***", "***END OF THE PROJECT GUTENBERG EBOOK X***"),
    ("*** START OF A ***", "End of the Project Gutenberg EBook of A\r\n\r\n*** END OF A ***"),
])
def test_text_keeps_what_stands_between_the_markers(tmp_path, start, end):
    path = book(tmp_path / "a.txt", "One.\r\n\r\nThe END OF it; *** START OF x.", start, end)
    assert tasks.text.read_book(path) == b"One.\n\nThe END OF it; *** START OF x."


def test_texts_of_other_encodings_are_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff“It’s” — ‘caf\u00e9’…\u00a0Ok".encode())
    assert tasks.text.read_book(path) == "\"It's\" -- 'caf\u00e9'... Ok".encode()
    path.write_bytes("caf\u00e9\r\n\u00a31".encode("latin-1"))
    assert tasks.text.read_book(path) == "caf\u00e9\n\u00a31".encode()
    for encoding in "utf-16", "cp1252":
        path.write_bytes("\u201cCaf\u00e9\u201d\r\nend".encode(encoding))
        assert tasks.text.read_book(path) == '"Caf\u00e9"\nend'.encode()


def test_wrong_texts_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder .*gone.txt"):
        tasks.Text([tmp_path / "gone.txt"])
    with pytest.raises(FileNotFoundError, match=r"holds no \*.txt"):
        tasks.Text(tmp_path)
    (tmp_path / "short.txt").write_text("short " * 100)
    with pytest.raises(ValueError, match="the test split has 30 bytes, expected more than token"):
        tasks.Text(tmp_path, tokens=30)
    tasks.Text(tmp_path, tokens=29).batch(rng(), 4, "test")       # 30 bytes are just enough


def test_fifteen_per_cent_of_the_bytes_are_masked(tmp_path):
    path = tmp_path / "fox.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    task = tasks.Masked([path], 40)
    x, y = task.batch(rng(), 2000)
    chosen = y >= 0
    assert (chosen.sum(axis=1) == 6).all()                # 15 % of 40
    assert abs(chosen.mean(axis=0) - 0.15).max() < 0.04   # in all places
    text = np.where(chosen, y, x)
    raw = path.read_bytes()
    assert all(bytes(row) in raw for row in text[:50].astype(np.uint8))
    masked, kept = (x == 0)[chosen], (x == y)[chosen]
    assert not (x[~chosen] == 0).any() and set(y[~chosen]) == {-1}
    assert abs(masked.mean() - 0.8) < 0.02
    # One of 10 is replaced, by itself in one of 27 cases.
    assert abs(kept.mean() - 0.1 - 0.1 / 27) < 0.01
    assert set(x[chosen][~masked]) <= set(raw)
    np.testing.assert_equal(task.test_set(), task.test_set())
    assert (task.batch(rng(1), 2000)[1] != y).any()
    x, y = task.test_set()
    np.testing.assert_array_equal(np.where(y >= 0, y, x), tasks.Text([path], 40).test_set()[0])


@given(st.integers(1, 4), st.integers(7, 20), st.integers(0, 99))
def test_the_loss_of_what_was_chosen(B, T, seed):
    numbers = rng(seed)
    task = tasks.Masked.__new__(tasks.Masked)             # loss and accuracy need no text
    task.output_tokens = T
    y = np.where(numbers.random((B, T)) < 0.3, numbers.integers(0, 256, (B, T)), -1)
    y[0, 0] = 7
    logits = numbers.standard_normal((B, T, 256))
    loss, dlogits = task.loss(logits, y)
    chosen = y >= 0
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert loss == pytest.approx(-np.log([p[b, t, y[b, t]] for b, t in np.argwhere(chosen)]).mean())
    assert dlogits.dtype == np.float64 and not dlogits[~chosen].any()
    assert minifpt.gradcheck(lambda x: task.loss(x, y), lambda dy, g: dy * g, (logits,))
    moved = logits + ~chosen[..., None] * numbers.standard_normal(logits.shape)
    assert task.loss(moved, y)[0] == loss and task.accuracy(moved, y) == task.accuracy(logits, y)
    best = np.eye(256)[y]
    assert task.accuracy(best, y) == 1.0 and task.accuracy(-best, y) == 0.0
    loss, dlogits = task.loss(logits.astype(np.float32), y)
    assert type(loss) is float and dlogits.dtype == np.float32


@pytest.mark.oracle
def test_masked_loss_is_pytorch_s():
    torch = pytest.importorskip("torch")
    numbers = rng()
    task = tasks.Masked.__new__(tasks.Masked)
    task.output_tokens = 12
    y = np.where(numbers.random((3, 12)) < 0.3, numbers.integers(0, 256, (3, 12)), -1)
    logits = numbers.standard_normal((3, 12, 256))
    loss, dlogits = task.loss(logits, y)
    theirs = torch.tensor(logits, requires_grad=True)
    want = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), torch.tensor(y).flatten(),
                                             ignore_index=-1)
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-12)
    np.testing.assert_allclose(dlogits, theirs.grad.numpy(), rtol=1e-10, atol=1e-15)


def test_a_text_with_the_byte_of_the_mask_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some text \x00" * 100)
    with refused("masked: the text contains byte 0"):
        tasks.Masked([tmp_path], 16)


# ------------------------------------------------------------------ tasks of the user


def test_a_task_without_options_of_its_own_gets_those_that_were_given():
    class Mine(tasks.BitXOR):
        def __init__(self, noise=0.0):
            super().__init__()
            self.options = {}
    assert tasks.make(Mine, "mine", {"noise": 0.5}).options == {"noise": 0.5}
    assert tasks.make(Mine, "mine", {}).options == {}
    with refused("bit-xor has no option 'name'"):         # not the function's own argument
        tasks.get("bit-xor", name="x")

    class Fixed(Mine):
        options = property(lambda self: {}, lambda self, options: None)
    assert tasks.make(Fixed, "mine", {"noise": 0.5}).options == {}

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        noise: float = 0.0
        batch, loss, accuracy = (getattr(tasks.BitXOR, name) for name in (
            "batch", "loss", "accuracy"))
        name, input_dim, tokens, output_dim, output_tokens = "mine", 2, 1, 2, 1
    assert tasks.make(Frozen, "mine", {"noise": 0.5}).noise == 0.5
