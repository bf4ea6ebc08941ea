"""Files that a user names: errors of a task or trunk of their own, endless files, leftovers."""

import signal
import zipfile
from pathlib import Path

import pytest

import minifpt
from minifpt import cli
from minifpt.files import outputs, runs, write_beside

TASK = """
import sys
from minifpt.tasks import BitXOR
class Task(BitXOR):
    name = "mine"
    defaults = {"steps": 2, "batch_size": 2}
    def __init__(self):
        super().__init__(2)
        {init}
    def draw(self, rng, size, split):
        {draw}
        return super().draw(rng, size, split)
    def accuracy(self, logits, y):
        {accuracy}
        return super().accuracy(logits, y)
"""
TRUNK = """
import sys
import minifpt
class Trunk(minifpt.GPT2):
    def __init__(self):
        super().__init__(minifpt.GPT2Config(1, 1, 8, 16, 4, 0.0))
    def forward(self, x, train=False, rng=None):
        {forward}
        return super().forward(x, train, rng)
    def backward(self, dy, cache):
        {backward}
        return super().backward(dy, cache)
"""
SMALL = "random:1x2x8"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text, **lines):
    """Write own.py, with ``pass`` where no line is given; the number of the given line."""
    for name in ("init", "draw", "accuracy", "forward", "backward"):
        text = text.replace("{" + name + "}", lines.get(name, "pass"))
    Path("own.py").write_text(text)
    return 1 + next((i for i, line in enumerate(text.split("\n"))
                     if line.strip() in lines.values()), -1)


# -------------------------------------------------- errors in a user's own file


EXIT = "it ends the program, by sys.exit() or quit(): let it raise a ValueError instead"


@pytest.mark.parametrize("where, statement, message", [
    ("init", "sys.exit(0)", EXIT), ("draw", "quit()", EXIT), ("accuracy", "sys.exit(0)", EXIT),
    ("forward", "raise SystemExit", EXIT), ("backward", "sys.exit(0)", EXIT),
    ("draw", "1 / 0", "ZeroDivisionError: division by zero"),
    ("accuracy", "raise ValueError('two\\nlines')", "ValueError: two lines"),
    ("draw", "assert False", "AssertionError"),
    ("draw", "raise OSError(28, 'No space left on device')", "OSError: [Errno 28] No space")])
def test_an_error_in_a_method_is_one_line_with_its_place(where, statement, message, fails):
    of_trunk = where in ("forward", "backward")
    text, task, model = (TRUNK, "bit-xor", "own.py:Trunk") if of_trunk else (
        TASK, "own.py:Task", SMALL)
    line = write(text, **{where: statement})
    method = ("Trunk." if of_trunk else "Task.") + where.replace("init", "__init__")
    for command in (["train", task, "--model", model, "--steps", 2],
                    ["compare", task, "--models", model, "--steps", 2, "--seeds", 1]):
        assert f"own.py, line {line}, in {method}: {message}" in fails(*command)


@pytest.mark.parametrize("place", [["--traceback", "train"], ["train", "--traceback"]])
def test_traceback_shows_the_traceback(place, capsys):
    write(TASK, draw="1 / 0")
    assert cli.main([*place, "own.py:Task", "--model", SMALL]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err and "ZeroDivisionError" in err
    assert err.split("\n")[-2].startswith("minifpt: own.py, line")


@pytest.mark.parametrize("text, message", [
    ("def Trunk(:\n", "own.py, line 1: SyntaxError: "),
    ("import sys\nsys.exit()\n", "own.py, line 2: it ends the program"),
    ("\0", "own.py: "), ("é = '\udce9'", "own.py")])
def test_a_file_that_is_no_python_is_named(text, message, fails):
    Path("own.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    for command in (["--model", "own.py:Trunk"], ["own.py:Task"]):
        assert message in fails("summary", *command)


def test_what_a_trunk_must_not_return_is_one_line(fails):
    write(TRUNK, forward="return 3, 4")
    line = "train", "bit-xor", "--model", "own.py:Trunk", "--steps", 2
    assert "must return a pair: hidden, of shape (1, 10, 8)" in fails(*line)
    write(TRUNK, forward="self.named_parameters = 3")
    assert "or takes or returns something else than it should" in fails(*line)


@pytest.mark.parametrize("name", ["../../x", ".hidden", "", "a\nb", None, "a:b"])
def test_a_task_s_name_must_be_that_of_a_folder(name, fails, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    write(TASK.replace('"mine"', repr(name)))
    before = {*tmp_path.rglob("*")}
    assert "expected a folder's name" in fails("train", "own.py:Task", "--model", SMALL)
    assert {*tmp_path.rglob("*")} == before


# ------------------------------------------------------------------ endless files


def test_more_bytes_than_the_limit_are_not_read(tmp_path, fails):
    with open(tmp_path / "long.txt", "wb") as f:          # takes no room on the disk
        f.truncate((1 << 30) + 1)
    assert "has more than 1,073,741,824 bytes" in fails("train", "text", "--files", "long.txt")


# ------------------------------------------------------------------------ leftovers


def test_what_killed_processes_left_is_not_in_the_way(tmp_path):
    (tmp_path / ".gpt.minifpt").mkdir()
    (tmp_path / ".gpt.minifpt" / "vocab.json").write_text("{")
    (tmp_path / ".page.html.minifpt").write_text("half")
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


def test_a_folder_that_cannot_be_made_leaves_none_of_its_parents(tmp_path):
    with pytest.raises(OSError), runs.locked(tmp_path / "a" / "b" / ("x" * 300)):
        pass
    assert not [*tmp_path.iterdir()]
