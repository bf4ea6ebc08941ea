"""``minifpt check``: whole files and notebooks, in a process of their own."""

import json
import os
import re
from pathlib import Path

import pytest
from conftest import refused
from test_own import SKELETON, body, with_bodies

from minifpt import cli
from minifpt.exercises import checking, own

GOOD = "def bias_gradient(dy):\n    return dy.sum(axis=(0, 1))"
MEAN = "def bias_gradient(dy):\n    return dy.mean(axis=(0, 1))"
CALL = 'check("bias_gradient", bias_gradient)'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, and four seconds of the processor for a function that loops."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "SECONDS", 4)
    return tmp_path


def notebook(path, *cells):
    """Write a notebook of these cells of code."""
    path.write_text(json.dumps({"cells": [
        {"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]}),
        encoding="utf-8")


def test_the_table_has_what_is_done_wrong_and_next(here, capsys):
    (here / "mine.py").write_text(with_bodies(
        SKELETON, linear=body("linear"), linear_backward="return dy, dy, dy",
        relu="while True: pass", relu_backward="return dy * (cache.x > 0)",
        gelu="import os\nos._exit(3)", gelu_exact="raise SystemExit(0)",
        bias="print('/tmp/a/mine.py:3: here')\nreturn x - b, BiasCache(x.shape)",
        softmax="x = softmax(x)"), encoding="utf-8")
    assert cli.main(["check", "mine.py"]) == 1
    out = capsys.readouterr().out.splitlines()
    lines = {line.split()[3].rstrip(":"): line for line in out}
    for name, part in {
            "linear": "✓ linear: done", "relu": "not end within 4 s: is there a loop?",
            "linear_backward": "wrong. dx is wrong. The result has shape",
            "relu_backward": "✓ relu_backward: done",     # with the library's forward pass
            "gelu": "It ended Python, with exit status 3.", "softmax": "RecursionError",
            "gelu_exact": "SystemExit in line", "bias": "It printed: mine.py:3: here"}.items():
        assert part in lines[name]
    assert "lesson 15  · not written: lstm, lstm_backward" in out
    assert "2 of 40 done, 6 wrong. Next: linear_backward, lesson 1." in " ".join(out[-2:])
    assert sum("not written:" in line for line in out) == 9      # all but lesson 1, which is begun
    assert os.listdir() == ["mine.py"]


@pytest.mark.parametrize(("text", "part"), [
    ("raise KeyError('x')", "line 1: it raised KeyError"),
    ("\nraise SystemExit(4)", "line 2: it raised SystemExit"),
    ("def f(:", "line 1: not Python (invalid syntax)"), ("x = '\0'", "not text")])
def test_a_file_that_cannot_be_run_is_one_line(here, text, part):
    (here / "bad.py").write_text(text)
    with refused(f"^bad.py.*{re.escape(part)}"):
        own.load(Path("bad.py"))


def test_a_file_that_ends_its_process_each_time_it_loads_anew_is_one_line(here, fails):
    (here / "mine.py").write_text("import os\nfrom pathlib import Path\n"
                                  "if Path('seen').exists():\n    os._exit(3)\n"
                                  "Path('seen').touch()\n"
                                  "def relu(x):\n    os._exit(4)\n", encoding="utf-8")
    assert "mine.py: It ended Python, with exit status 3" in fails("check", "mine.py")


@pytest.mark.parametrize(("text", "part"), [
    ("x = 1", "not JSON"), ("{}", "not a notebook"),
    ('{"cells": []}', "no cell defines an exercise of a lesson")])
def test_a_file_that_is_no_notebook_is_one_line(here, text, part):
    (here / "bad.ipynb").write_text(text)
    with refused(f"^bad.ipynb: {part}"):
        checking.load_notebook(Path("bad.ipynb"), [])


@pytest.mark.parametrize(("name", "text", "part"), [
    ("bad.py", "import os; os._exit(5)", "exit status 5"),
    ("bad.py", "\n1 / 0", "line 2: it raised ZeroDivisionError"),
    ("bad.py", None, "'minifpt new bad.py' makes it"),
    ("bad.ipynb", None, "there is no such file")])
def test_the_process_of_a_bad_file_ends_in_one_line(here, fails, name, text, part):
    if text is not None:
        (here / name).write_text(text)
    line = fails("check", name)
    assert part in line and line.count(f"{name}") == 1 + ("new" in part)


@pytest.mark.parametrize(("cells", "status", "part"), [
    ((GOOD, CALL), "passed", ""), ((GOOD,), "passed", ""), ((MEAN, CALL), "not right yet", "mean"),
    ((MEAN, GOOD, CALL), "passed", ""),                   # the last one counts
    (("def bias_gradient(dy):\n    return ...", CALL), "not answered yet", ""),
    ((CALL,), "not answered yet", ""),
    (("def total(dy):\n    return dy.sum((0, 1))", "bias_gradient = lambda dy: total(dy)", CALL,
      "def total(a, b):\n    return a + b"), "passed", ""),            # of a later exercise
    (("from numpy import *", "def bias_gradient(dy):\n    return sum(dy, axis=(0, 1))"), "passed",
     ""),
    (("dy = 1 / 0", "raise KeyError", "while True: pass", GOOD, CALL), "passed", ""),
    (("n = 1 / 0", "def bias_gradient(dy):\n    return dy.sum((0, 1)) * n"), "not right yet",
     "'n = 1 / 0' raised ZeroDivisionError"),
    (("x = 1", "def bias_gradient(dy)\n    return 1", CALL), "not right yet",
     "Its cell is not Python: expected ':'."),
    (("def bias_gradient(dy)\n    return 1", GOOD, CALL), "passed", ""),
    (("%matplotlib inline\n!ls\nlist?\n" + GOOD, "%%bash\nls | wc", CALL), "passed", "")])
def test_of_a_notebook_only_what_an_answer_needs_is_run(here, cells, status, part):
    notebook(here / "x.ipynb", *cells)
    _, judge = checking.load_notebook(here / "x.ipynb", [])
    result = judge("bias_gradient")
    assert result.status == status and part in result.hint


def test_each_file_has_a_row_in_the_table(here, capsys):
    notebook(here / "ada.ipynb", MEAN, CALL,
             "import os\ndef shared_weight_gradient(x, w, dy):\n    os.abort()")
    own.new("mine.py")
    assert cli.main("check ada.ipynb none.py --csv table.csv".split()) == 2
    assert cli.main("check mine.py --csv table.csv".split()) == 0
    out = capsys.readouterr().out
    assert "ada.ipynb:\nlesson  1  ✗ bias_gradient: wrong. A mean" in out and "signal 6" in out
    head, *rows = (here / "table.csv").read_text().splitlines()
    assert head == "file,right,wrong,missing,wrong_functions,error" and len(rows) == 3
    assert rows[0] == "ada.ipynb,0,2,0,bias_gradient shared_weight_gradient,"
    assert rows[1].startswith("none.py,0,0,0,,none.py: there is no such file")
    assert rows[2] == "mine.py,0,0,40,,"
