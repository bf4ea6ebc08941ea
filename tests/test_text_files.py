"""Text files: a byte order mark is no part of a text, and a binary file is none."""

import bz2
import codecs
import gzip
import io
import lzma
import shutil
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_tasks import ARENA

import minifpt
from minifpt.files import read_text, tokenizer
from minifpt.tasks.text import read_book

GOLDEN = Path(__file__).parent / "golden"


def book(folder, capsys):
    (folder / "book.txt").exists() or (folder / "book.txt").write_text("Call me Ishmael.\n")
    return read_book(folder / "book.txt")


def listops(folder, capsys):
    for stem in "train", "val", "test":
        path = folder / f"basic_{stem}.tsv"
        path.exists() or path.write_text(ARENA)
    task = minifpt.tasks.get("listops", files=str(folder))
    return [a.tolist() for a in task.batch(np.random.default_rng(0), 4)]


def saved_tokenizer(folder, capsys):
    if not (folder / "tokenizer.json").exists():
        tokenizers = pytest.importorskip("tokenizers")
        tokenizers.ByteLevelBPETokenizer().save(str(folder / "tokenizer.json"))
    return tokenizer.find(folder, 999).encode("low")


def config(folder, capsys):
    if not (folder / "config.json").exists():
        shutil.copytree(GOLDEN / "sharded", folder, dirs_exist_ok=True)
    return minifpt.GPT2.from_pretrained(folder).config


def users_task(folder, capsys):
    path = folder / "own.py"
    path.exists() or path.write_text("from minifpt.tasks import BitXOR as Own\n")
    return minifpt.tasks.get(f"{path}:Own").tokens


@pytest.mark.parametrize("read", [book, listops, saved_tokenizer, config, users_task],
                         ids=lambda function: function.__name__)
def test_a_byte_order_mark_changes_nothing(tmp_path, capsys, read):
    before = read(tmp_path, capsys)
    texts = [path for path in tmp_path.rglob("*.*")
             if path.suffix in (".txt", ".tsv", ".json", ".csv", ".py")]
    assert texts
    for path in texts:
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read(tmp_path, capsys) == before


# ------------------------------------------------------------------------ binary files


WORDS = np.random.default_rng(0).choice(["the", "whale", "sea", "Ahab's", "café", "ship"], 2000)
BOOK = " ".join(WORDS)


def docx(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f"<w:t>{text}</w:t>")
    return file.getvalue()


def pdf(text, is_compressed=True):
    stream = zlib.compress(text.encode()) if is_compressed else text.encode("ascii", "replace")
    return (b"%%PDF-1.4\n1 0 obj\n<< /Length %d >>\nstream\n" % len(stream) + stream
            + b"\nendstream\nendobj\n" + b"0000000016 00000 n \n" * 400)


def npy(text):
    file = io.BytesIO()
    np.save(file, np.frombuffer(text.encode(), np.uint8).astype(np.float32))
    return file.getvalue()


BINARY = {
    "book.txt.gz": gzip.compress(BOOK.encode()), "small.gz": gzip.compress(b"Call me Ishmael."),
    "book.docx": docx(BOOK), "book.pdf": pdf(BOOK), "plain.pdf": pdf(BOOK, False),
    "book.bz2": bz2.compress(BOOK.encode()), "book.xz": lzma.compress(BOOK.encode()),
    "book.Z": zlib.compress(BOOK.encode()), "book.npy": npy(BOOK),
    "utf16.txt": BOOK.encode("utf-16-le"), "utf32.txt": BOOK.encode("utf-32-be"),
    "cyrillic.txt": "Зовите меня Измаил. ".encode("utf-16-le") * 99,
    "cut.txt": BOOK.encode("utf-16")[:-1], "nul.txt": b"the \0 whale " * 99,
    "nuls.txt": b"\0" * 3000, "noise.txt": np.random.default_rng(0).integers(
        1, 256, 3000, np.uint8).tobytes()}
READERS = [["pretrain", "language", "--text"], ["pretrain", "masked", "--text"],
           ["train", "text", "--files"], ["train", "typos", "--files"], ["perplexity"]]


@pytest.mark.parametrize("name", BINARY)
def test_a_binary_file_is_no_text(tmp_path, monkeypatch, name, fails):
    """For no command that reads texts, also in a folder of them."""
    monkeypatch.chdir(tmp_path)
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
