"""Files: what counts as a text, how a file is written, and which one is replaced."""

import bz2
import codecs
import gzip
import lzma
import shutil
import signal
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli
from minifpt.experiments import compare
from minifpt.files import outputs, read_text, write_beside
from minifpt.viewer.live import page as live
from minifpt.viewer.steps import page as steps

GOLDEN = Path(__file__).parent / "golden"


def config(folder):
    if not (folder / "config.json").exists():
        shutil.copytree(GOLDEN / "sharded", folder, dirs_exist_ok=True)
    return minifpt.GPT2.from_pretrained(folder).config


def users_task(folder):
    path = folder / "own.py"
    path.exists() or path.write_text("from minifpt.tasks import BitXOR as Own\n")
    return minifpt.tasks.get(f"{path}:Own").tokens


@pytest.mark.parametrize("read", [config, users_task],
                         ids=lambda function: function.__name__)
def test_a_byte_order_mark_changes_nothing(tmp_path, read):
    before = read(tmp_path)
    for path in [*tmp_path.glob("*.json"), *tmp_path.glob("*.py")]:
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read(tmp_path) == before


# ------------------------------------------------------------------------ binary files


WORDS = np.random.default_rng(0).choice(["the", "whale", "sea", "Ahab's", "café", "ship"], 2000)
BOOK = " ".join(WORDS)


def pdf(text, is_compressed=True):
    stream = zlib.compress(text.encode()) if is_compressed else text.encode("ascii", "replace")
    return (b"%%PDF-1.4\n1 0 obj\n<< /Length %d >>\nstream\n" % len(stream) + stream
            + b"\nendstream\nendobj\n" + b"0000000016 00000 n \n" * 400)


BINARY = {
    "book.txt.gz": gzip.compress(BOOK.encode()), "small.gz": gzip.compress(b"Call me Ishmael."),
    "book.pdf": pdf(BOOK), "plain.pdf": pdf(BOOK, False),
    "book.bz2": bz2.compress(BOOK.encode()), "book.xz": lzma.compress(BOOK.encode()),
    "book.Z": zlib.compress(BOOK.encode()),
    "utf16.txt": BOOK.encode("utf-16-le"), "utf32.txt": BOOK.encode("utf-32-be"),
    "cyrillic.txt": "Зовите меня Измаил. ".encode("utf-16-le") * 99,
    "cut.txt": BOOK.encode("utf-16")[:-1], "nul.txt": b"the \0 whale " * 99,
    "nuls.txt": b"\0" * 3000, "noise.txt": np.random.default_rng(0).integers(
        1, 256, 3000, np.uint8).tobytes()}
READERS = [["pretrain", "language", "--text"], ["pretrain", "masked", "--text"],
           ["train", "text", "--files"], ["train", "typos", "--files"], ["perplexity"]]


@pytest.mark.parametrize("name", BINARY)
def test_a_binary_file_is_no_text(cwd, name, fails):
    """For no command that reads texts, also in a folder of them."""
    Path(name).write_bytes(BINARY[name])
    Path("books").mkdir()
    Path("books/a.txt").write_bytes(BINARY[name])
    for command in READERS:
        assert f"{name}: not text" in fails(*command, name)
        if command[0] == "pretrain":
            assert "a.txt: not text" in fails(*command, "books", "--steps", 1)
    for fallback in None, "cp1252":
        with refused(f"^{name}: not text"):
            read_text(name, fallback=fallback)
    assert sorted(path.name for path in Path().iterdir()) == sorted(["books", name])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_text_has_the_same_tokens_in_each_encoding(tmp_path, encoding):
    for name in encoding, "cp1252":
        (tmp_path / f"{name}.txt").write_bytes(BOOK.encode(name))
    of_mark, other = (minifpt.tasks.get("text", files=[str(tmp_path / f"{name}.txt")])
                      for name in (encoding, "cp1252"))
    assert of_mark.fingerprint() == other.fingerprint()
    assert read_text(tmp_path / f"{encoding}.txt") == BOOK


# ------------------------------------------------------------------------------ writing


def test_what_killed_processes_left_is_not_in_the_way(tmp_path):
    (tmp_path / ".minifpt.gpt").mkdir()
    (tmp_path / ".minifpt.gpt" / "vocab.json").write_text("{")
    (tmp_path / ".minifpt.page.html").write_text("half")
    minifpt.LanguageModel(minifpt.GPT2Config(1, 1, 4, 8, 11), seed=0).save(tmp_path / "gpt")
    outputs.write_text(tmp_path / "page.html", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt", "page.html"]
    assert sorted(path.name for path in (tmp_path / "gpt").iterdir()) == [
        "config.json", "model.safetensors"]


def test_ctrl_c_waits_until_a_file_is_whole(tmp_path):
    """A zip file that it broke off would raise ``ValueError``."""
    def write(f):
        with zipfile.ZipFile(f, "w") as archive, archive.open("a", "w") as part:
            part.write(b"first, ")
            signal.raise_signal(signal.SIGINT)
            part.write(b"second")
    with pytest.raises(KeyboardInterrupt):
        write_beside(tmp_path / "a.npz", write)
    assert zipfile.ZipFile(tmp_path / "a.npz").read("a") == b"first, second"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_ctrl_c_right_behind_a_file_leaves_no_handler_of_sigterm(tmp_path, monkeypatch):
    before, set_handler = signal.getsignal(signal.SIGTERM), signal.signal

    def interrupted(signum, handler):
        old = set_handler(signum, handler)
        if handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)
        return old
    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_beside(tmp_path / "a.txt", lambda f: f.write("a"), "w")
    assert signal.getsignal(signal.SIGTERM) is before


# ----------------------------------------------------------------- files of the user's


TINY = "--n 3 --model random:1x2x16 --steps 4 --batch-size 2"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("runs")
    assert cli.main([*f"train bit-xor {TINY} --out".split(), folder / "r0"]) == 0
    return folder


@pytest.fixture
def here(runs, cwd):
    """A copy of this folder, in which commands run."""
    shutil.copytree(runs, cwd, dirs_exist_ok=True)
    return cwd


def contents():
    return {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}


# ----------------------------------------------------------- files of the user's


@pytest.mark.parametrize("line, file", [
    ("attention r0 --out mine.png", "mine.png"), ("report r0", "r0/report.html"),
    ("steps bit-xor --out mine.py", "mine.py"),
    (f"compare bit-xor --models random:1x2x16 --out c {TINY[TINY.index('--steps'):]}",
     "c/table.md"),
    ("reproduce table3 --out c", "c/table3.csv"),
    ("playground --out mine.html", "mine.html"), ("pretrain bits --out w", "w.npz"),
    ("convert r0 --out w.npz", "w.npz")])
def test_a_file_is_not_replaced_without_force(here, fails, monkeypatch, line, file):
    monkeypatch.setattr(compare, "perform", None)         # refused before anything is computed
    monkeypatch.setattr(live, "playground", None)
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("step,notes\n1,mine\n")
    before = contents()
    assert f"{path} is there already: choose another name, or replace it with --force" in (
        fails(*line.split()))
    assert contents() == before


@pytest.mark.parametrize("line, file", [
    ("attention r0 --out mine.png", "mine.png"), ("report r0 --out mine.html", "mine.html"),
    ("convert r0 --out w.npz", "w.npz"),
    ("compare bit-xor --models random:1x2x16 --seeds 1 --n 3 --steps 4 --batch-size 2 --out c",
     "c/table.md")])
def test_force_replaces_a_file(here, line, file):
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert cli.main(line.split() + ["--force"]) == 0
    assert path.read_bytes() != b"mine"


def test_a_grid_is_refused_in_the_folder_of_a_run_also_by_force(here, fails):
    before = contents()
    for line in ("compare bit-xor --out r0", "reproduce table3 --out r0 --force"):
        assert "r0 is the folder of a run: choose another folder" in fails(*line.split())
    assert contents() == before


# --------------------------------------------------- checked before it is computed


@pytest.mark.parametrize("place", ["r0/config.json/x{}", "r0/" + 300 * "x" + "{}", "/proc/x{}",
                                   "folder{}"])
@pytest.mark.parametrize("line, ending", [
    ("report r0 --out", ".html"), ("attention r0 --out", ".png"),
    ("steps bit-xor --out", ".html"),
    ("reproduce table3 --out", "/"),
    ("compare bit-xor --out", "/")])
def test_a_place_that_cannot_be_written_is_refused_first(here, fails, monkeypatch, line, ending,
                                                         place):
    for ending_ in ".html", ".png":
        Path(f"folder{ending_}").mkdir()
    if ending == "/":
        Path("folder").write_text("")
    for module, name in ((steps, "of_task"), (compare, "perform")):
        monkeypatch.setattr(module, name, lambda *args, **options: pytest.fail("computes"))
    monkeypatch.setattr("minifpt.experiments.runs.read_run", None)
    fails(*f"{line} {place.format(ending)}".split())


def test_a_model_is_not_saved_over_a_file_without_force(tmp_path):
    trunk = minifpt.GPT2(minifpt.GPT2Config(1, 2, 8, 8, 8), seed=0)
    trunk.save(tmp_path / "w.npz")
    with pytest.raises(ValueError, match="w.npz is there already"):
        trunk.save(tmp_path / "w.npz")
    trunk.save(tmp_path / "w.npz", force=True)
