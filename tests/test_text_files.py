"""A byte order mark is no part of a text, in any kind of text file."""

import codecs
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_tasks import ARENA

import minifpt
from minifpt.files import tokenizer
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
