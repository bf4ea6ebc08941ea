"""Files of the user's own: each finds the modules beside it, whatever else has their names."""

import csv
import importlib
import json
import sys
from pathlib import Path

import pytest
from conftest import refused

from minifpt import cli
from minifpt.exercises import own
from minifpt.plugins import load_object

TASK = """
import numpy as np
import minifpt
import {imports}
class T(minifpt.tasks.Classification):
    name, label, chance = "{folder}", "{folder}", 0.5
    tokens = output_tokens = 1
    input_dim, output_dim, classes = 4, 2, 2
    defaults = {{"steps": 2, "test_examples": 8}}
    size = {size}
    def draw(self, rng, size, split):
        return np.zeros((size, 1, 4), np.float32), np.full((size, 1), 1)
    def accuracy(self, logits, y):
        {lazy}
        return {size} / 100
def trunk(seed=0):
    config = minifpt.GPT2Config(n_layer=1, n_head=1, n_embd={size}, n_positions=4)
    return minifpt.GPT2(config, seed)
"""
SIZES = {"a": 24, "b": 52}
pytestmark = pytest.mark.usefixtures("cwd")
# How a file imports ``helper``: (lines at its top, lines in a method, its number, where this is).
WAYS = {
    "a module": ("helper", "", "helper.SIZE", "helper.py"),
    "a name": ("os; from helper import SIZE", "", "SIZE", "helper.py"),
    "a module through another": ("middle", "", "middle.helper.SIZE", "helper.py"),
    "a module of a package": ("pkg.helper as h", "", "h.SIZE", "pkg/helper.py"),
    "a package's module of the folder": ("pkg.outer", "", "pkg.outer.helper.SIZE", "helper.py"),
    "a folder without __init__": ("os; from lib import helper", "", "helper.SIZE", "lib/helper.py"),
    "later": ("os", "import helper", "__import__('helper').SIZE", "helper.py"),
    "by an installed module's name": ("tqdm", "", "tqdm.SIZE", "tqdm.py"),
    "by a standard module's name": ("statistics", "", "statistics.SIZE", "statistics.py"),
    "by a loaded module's name": ("json", "", "json.SIZE", "json.py")}


def write(folder, way="a module", number=None):
    """Write FOLDER/task.py and what it imports, with this number in it."""
    imports, lazy, size, place = WAYS[way]
    folder = Path(folder)
    for name in ("pkg", "lib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("middle.py", "pkg/__init__.py", "pkg/outer.py"):
        (folder / name).write_text("import helper" * (name in ("middle.py", "pkg/outer.py")))
    (folder / "helper.py").write_text("SIZE = -1")
    (folder / place).write_text(f"SIZE = {number or SIZES[folder.name]}")
    (folder / "task.py").write_text(TASK.format(
        folder=folder.name, imports=imports, lazy=lazy or "pass", size=size))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_file_s_imports_are_those_of_its_folder(way, order):
    """In both orders, twice, and after a change of what one of them imports."""
    before = {name: sys.modules.get(name) for name in ("json", "tqdm", "statistics", "helper")}
    for name in order:
        write(name, way)
    for name in order * 2:
        assert load_object(f"{name}/task.py:T").size == SIZES[name]
        assert load_object(f"{name}/task.py:trunk")().config.n_embd == SIZES[name]
    write(order[0], way, number=76)
    assert load_object(f"{order[0]}/task.py:T").size == 76
    assert load_object(f"{order[1]}/task.py:T").size == SIZES[order[1]]
    assert load_object(f"{order[0]}/task.py:T")().accuracy(0, 0) == 0.76
    assert before == {name: sys.modules.get(name) for name in before}
    assert not [*Path().rglob("*.pyc")]


@pytest.mark.parametrize("order, more", [
    ("ab", ()), ("ba", ()), ("ab", ("--jobs", "2")),
    pytest.param("ba", ("--jobs", "2"), marks=pytest.mark.slow)])
def test_a_grid_of_two_files_whose_helpers_have_one_name(order, more):
    for name in order:
        write(name)
    assert cli.main(["compare", *(f"{name}/task.py:T" for name in order), "--models",
                     *(f"{name}/task.py:trunk" for name in order), "--seeds", 1, *more]) == 0
    with open(next(Path().rglob("runs.csv"))) as f:
        accuracies = {row["task"]: float(row["test_accuracy"]) for row in csv.DictReader(f)}
    assert accuracies == {"a": 0.24, "b": 0.52}
    widths = {path.parts[-3]: json.loads(path.read_text())["recipe"] for path in Path().rglob(
        "0/config.json")}
    assert len(widths) == 2


def test_two_files_of_a_folder_share_the_modules_that_they_import():
    """Also after a change: neither keeps the old one."""
    write("a")
    Path("a/other.py").write_text("import helper\ndef f():\n    return helper\n")
    other = load_object("a/other.py:f")
    assert other() is load_object("a/task.py:T").accuracy.__globals__["helper"]
    Path("a/helper.py").write_text("SIZE = 3")
    helper = load_object("a/task.py:T").accuracy.__globals__["helper"]
    assert helper.SIZE == 3 and load_object("a/other.py:f")() is helper


def test_a_module_that_the_program_has_imported_is_the_file_s_too(cwd, monkeypatch):
    """As in a notebook that sets something in it."""
    write("a")
    monkeypatch.syspath_prepend(cwd / "a")
    helper = importlib.import_module("helper")
    helper.SIZE = 7
    assert load_object("a/task.py:T").size == 7
    sys.modules.pop("helper", None)


def test_minifpt_is_the_running_one_also_beside_another():
    """As in a clone."""
    write("a")
    Path("a/minifpt").mkdir()
    Path("a/minifpt/__init__.py").write_text("raise RuntimeError('another one')")
    assert load_object("a/task.py:T").size == 24


def test_libraries_that_a_file_imports_find_the_standard_modules():
    """Under ``python task.py`` they would find the file's."""
    write("a")
    Path("a/task.py").write_text("import pyclbr, numbers\nimport helper\n"
                                 "class T:\n    size = helper.SIZE")
    Path("a/importlib.py").write_text("raise RuntimeError")
    Path("a/token.py").write_text("raise RuntimeError")
    sys.modules.pop("pyclbr", None)
    assert load_object("a/task.py:T").size == 24


@pytest.mark.parametrize("text, message", [
    ("SIZE = (\n", "a/helper.py, line 1: SyntaxError: "),
    ("\n\n1 / 0", "a/helper.py, line 3: ZeroDivisionError: division by zero")])
def test_an_error_in_a_module_beside_the_file_names_its_line(text, message):
    write("a")
    Path("a/helper.py").write_text(text)
    for _ in range(2):
        with refused(message):
            load_object("a/task.py:T")
    Path("a/helper.py").write_text("SIZE = 5")
    assert load_object("a/task.py:T").size == 5


def test_functions_of_ones_own_import_what_is_beside_them():
    for name, number in SIZES.items():
        Path(name).mkdir()
        Path(name, "statistics.py").write_text(f"SCALE = {number}")
        text = "import statistics\ndef gelu(x):\n    return statistics.SCALE, x"
        Path(name, "mine.py").write_text(text)
    assert [own.load(f"{name}/mine.py").functions["gelu"](0)[0] for name in "aba"] == [24, 52, 24]
    Path("a/statistics.py").write_text("SCALE = 3")
    assert own.load("a/mine.py").functions["gelu"](0)[0] == 3


# ------------------------------------------- errors in a file of the user's own


OWN_TASK = """
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
OWN_TRUNK = """
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
RANDOM = "random:1x2x8"


def write_own(text, **lines):
    """Write own.py, with ``pass`` where no line is given; the number of the given line."""
    for name in ("init", "draw", "accuracy", "forward", "backward"):
        text = text.replace("{" + name + "}", lines.get(name, "pass"))
    Path("own.py").write_text(text)
    return 1 + next((i for i, line in enumerate(text.split("\n"))
                     if line.strip() in lines.values()), -1)


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
    text, task, model = (OWN_TRUNK, "bit-xor", "own.py:Trunk") if of_trunk else (
        OWN_TASK, "own.py:Task", RANDOM)
    line = write_own(text, **{where: statement})
    method = ("Trunk." if of_trunk else "Task.") + where.replace("init", "__init__")
    for command in (["train", task, "--model", model, "--steps", 2],
                    ["compare", task, "--models", model, "--steps", 2, "--seeds", 1]):
        assert f"own.py, line {line}, in {method}: {message}" in fails(*command)


@pytest.mark.parametrize("place", [["--traceback", "train"], ["train", "--traceback"]])
def test_traceback_shows_the_traceback(place, capsys):
    write_own(OWN_TASK, draw="1 / 0")
    assert cli.main([*place, "own.py:Task", "--model", RANDOM]) == 2
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
    write_own(OWN_TRUNK, forward="return 3, 4")
    line = "train", "bit-xor", "--model", "own.py:Trunk", "--steps", 2
    assert "must return a pair: hidden, of shape (1, 10, 8)" in fails(*line)
    write_own(OWN_TRUNK, forward="self.named_parameters = 3")
    assert "or takes or returns something else than it should" in fails(*line)


@pytest.mark.parametrize("name", ["../../x", ".hidden", "", "a\nb", None, "a:b"])
def test_a_task_s_name_must_be_that_of_a_folder(name, fails, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    write_own(OWN_TASK.replace('"mine"', repr(name)))
    before = {*tmp_path.rglob("*")}
    assert "expected a folder's name" in fails("train", "own.py:Task", "--model", RANDOM)
    assert {*tmp_path.rglob("*")} == before
