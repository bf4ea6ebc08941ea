"""What a class hands in is checked: notebooks and functional files, good, bad and hostile."""

import ast
import csv
import json
import os
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest
from test_own import with_bodies

from minifpt import cli, exercises
from minifpt import functional as F
from minifpt.exercises import apart, notebooks, own, sandbox
from minifpt.exercises import grade as grading

LESSONS = Path(__file__).resolve().parent.parent / "lessons"
needs_bwrap = pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing())
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are those of Linux")


def notebook(path, *cells):
    """Write a notebook of these code cells; one that begins with "Text: " is Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "markdown" if cell.startswith("Text: ") else "code", "outputs": [],
         "source": textwrap.dedent(cell).strip().splitlines(keepends=True)}
        for cell in cells]}), encoding="utf-8")


def examined(name, *cells, seed=0):
    """The result of an exercise in a notebook of these cells, in this process."""
    exercises._load()
    return grading.examined(notebooks.load(cells), name, seed)


GOOD = "def bias_gradient(dy):\n    return dy.sum(axis=(0, 1))"
MEAN = "def bias_gradient(dy):\n    return dy.mean(axis=(0, 1))"
ASLEEP = "from time import sleep\n"                        # a loop that leaves the others the core
CALL = 'check("bias_gradient", bias_gradient)'


# ------------------------------------------------------------------- which cells are run


@pytest.mark.parametrize(("cells", "status"), [
    ((GOOD, CALL), "passed"),
    ((GOOD,), "passed"),                                  # the call was deleted
    ((MEAN, CALL), "not right yet"),
    ((MEAN, GOOD, CALL), "passed"),                       # the last one counts
    ((CALL,), "not answered yet"),
    (("def bias_gradient(dy):\n    return ...", CALL), "not answered yet"),
    (("mine = lambda dy: dy.sum((0, 1))", 'check("bias_gradient", mine)'), "passed"),
    (("axes = []", "axes.append(0)\naxes.append(1)",
      "def bias_gradient(dy):\n    return dy.sum(tuple(axes))", CALL), "passed"),
    (("axes = []", "for i in range(2):\n    axes.append(i)",
      "def bias_gradient(dy):\n    return dy.sum(tuple(axes))", CALL), "passed"),
    (("def total(dy):\n    return dy.sum((0, 1))", "bias_gradient = lambda dy: total(dy)", CALL,
      "def total(a, b):\n    return a + b"), "passed"),    # of a later exercise
    (("import numpy as np", "table = {}\ntable['f'] = np.sum",
      "def bias_gradient(dy):\n    return table['f'](dy, (0, 1))"), "passed"),
    (("from numpy import *", "def bias_gradient(dy):\n    return sum(dy, axis=(0, 1))"), "passed"),
    (("class Sum:\n    def __call__(self, dy):\n        return dy.sum((0, 1))",
      "bias_gradient = Sum()"), "passed"),
])
def test_what_counts_as_an_answer(cells, status):
    assert examined("bias_gradient", *cells).status == status


def test_what_no_answer_needs_is_not_run():
    """A name inside a function is not the name of a cell."""
    result = examined("bias_gradient", "dy = 1 / 0", "raise KeyError", "x = train(10 ** 9)",
                      "def other():\n    return x", GOOD, "while True: pass", CALL)
    assert result.status == "passed"


def test_what_an_answer_needs_is_run_and_its_error_told():
    result = examined("bias_gradient", "n = 1 / 0",
                      "def bias_gradient(dy):\n    return dy.sum((0, 1)) * n")
    assert "NameError" in result.hint and "'n = 1 / 0' raised ZeroDivisionError" in result.hint


def test_a_cell_that_is_not_python_is_named_by_its_exercise():
    result = examined("bias_gradient", "x = 1", "def bias_gradient(dy)\n    return 1", CALL)
    assert result.status == "not right yet" and "The cell of bias_gradient is not Python" in (
        result.hint)


def test_magics_are_left_out():
    statements, unread = notebooks.read_cells([
        "%matplotlib inline\n!ls\nlist?\nx = 1", "%%bash\nls | wc", "%%time\ny = 2"])
    assert [ast.unparse(s) for s in statements if not isinstance(s, ast.Pass)] == ["x = 1", "y = 2"]
    assert unread == []


@pytest.mark.parametrize("cell", [
    "def f(dy):\n    return dy.sum((0, 1))  # both axes?", "def f(n):\n# all?\n    return n",
    "x = (7\n     % 4)", 'def f():\n    """All rows?\n    %s"""\n    return 1'])
def test_lines_of_python_that_look_like_magics_stay(cell):
    for text in cell, f"%time y = 1\n{cell}":
        statements, unread = notebooks.read_cells([text])
        assert ast.dump(statements[-1]) == ast.dump(ast.parse(cell).body[-1]) and unread == []


@pytest.mark.parametrize("source", sorted((LESSONS / "src").glob("*.py")), ids=lambda p: p.stem)
def test_a_lesson_with_its_solutions_passes_and_none_of_its_training_is_run(source):
    """What a student hands in: the lesson, with the solutions' functions in place of the dots."""
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    solution = ast.parse((LESSONS / "solutions" / source.name).read_text(encoding="utf-8")).body
    answers = [s for s in solution if not isinstance(s, ast.If)]
    calls = notebooks.checks(statements)
    assert calls
    exercises._load()
    for name, (expression, _) in calls.items():
        chosen = notebooks.needed(expression, statements + answers)
        text = "\n".join(map(ast.unparse, chosen))
        assert ".train(" not in text and "picture(" not in text, name
        answer, failed = notebooks.answered(name, (expression, None), statements + answers, [])
        assert failed == ""
        assert exercises.examine(name, answer, 0).status == "passed"


def test_a_check_says_the_same_of_an_answer_in_another_process(monkeypatch):
    """Its arguments, results, errors, changes in place and what it calls back are the same."""
    cells = [textwrap.dedent("""
        from minifpt import functional as F
        def doubled(dy):
            dy *= 2
            return dy.sum((0, 1)) / 2
        def text(dy):
            return {"a": (1j, None, "\\ud800", slice(1), {1})}
        def tallest(dy):
            x = 1
            return dy[::-1] @ 1
        def calls(f, x, gradient):
            return f(x) > 1e9
        def none(dy):
            pass
        def library(z, tau):
            return F.softmax(z / tau)[0]
    """)]
    process = apart.Process("minifpt.exercises.notebooks:load", 60)
    try:
        there, here = process.load(cells), notebooks.load(cells)
        for name, answer in (
                ("bias_gradient", "doubled"), ("bias_gradient", "text"), ("bias_gradient", "none"),
                ("bias_gradient", "tallest"), ("gradient_is_right", "calls"),
                ("softmax_with_temperature", "library"), ("bias_gradient", "missing")):
            results = [str(exercises.examine(name, load(answer)[0], 3)) for load in (there, here)]
            assert results[0] == results[1]
            assert "not" in results[0]
    finally:
        process.close()


# ------------------------------------------------------------------------- whole folders


def rows_of(out):
    """{(student, exercise): (passed, hint)} of the table in a folder."""
    with open(out / "grades.csv", newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["student", "exercise", "passed", "hint"]
    table = {(r["student"], r["exercise"]): (r["passed"], r["hint"]) for r in rows}
    assert len(table) == len(rows)
    return table


@pytest.fixture
def folder(tmp_path):
    """What a class handed in."""
    top = tmp_path / "class"
    notebook(top / "ada" / "Copy of 01_gradients_by_hand.ipynb", "import numpy as np", GOOD,
             "Text: # Title\n\nHow many numbers move?", "guess = 4  # a number", CALL)
    notebook(top / "bob_01.ipynb", MEAN, CALL)
    notebook(top / "cy" / "gradients.ipynb", MEAN, CALL)
    for lesson in LESSONS.glob("*.ipynb"):                # the whole folder
        (top / "dan").mkdir(exist_ok=True)
        (top / "dan" / lesson.name).write_bytes(lesson.read_bytes())
    (top / "dan" / "solutions").mkdir()
    (top / "eve_01.ipynb").write_text("{")
    notebook(top / "fay" / "notes.ipynb", "x = 1")
    text = with_bodies(own.skeleton(), relu_backward="return dy")
    (top / "ada" / "mine.py").write_text(text, encoding="utf-8")
    (top / "gus.py").write_text("def f(:")
    (top / "hal").mkdir()
    (top / "hal" / "work.zip").write_text("")
    (top / "=ian.py").write_text(f"{GOOD}\n{CALL}\n")     # as Colab writes a notebook
    (top / "ada" / ".ipynb_checkpoints").mkdir()
    notebook(top / "ada" / ".ipynb_checkpoints" / "01_gradients_by_hand-checkpoint.ipynb", MEAN)
    return top


def test_a_class_is_graded(folder, tmp_path, capsys):
    out, line = tmp_path / "out", ["grade", folder, "--no-sandbox"]
    assert cli.main([*line, "--out", out]) == 0
    assert "9 students, 2 of 36 passed, 3 files could not be judged" in capsys.readouterr().out
    table = rows_of(out)
    names = [exercise for student, exercise in table if student == "ada"]
    assert len(names) == 4 and all(name.startswith("01/") for name in names)
    for student in "ada", "bob", "cy", "dan", "eve", "fay", "gus", "hal", "'=ian":
        assert [e for s, e in table if s == student and "/" in e] == names
    assert table["ada", "01/bias_gradient"] == table["'=ian", "01/bias_gradient"] == ("yes", "")
    assert table["ada", "01/choose_step"] == table["dan", "01/choose_step"] == ("not answered", "")
    for student in ("bob", "cy"):
        assert "mean for a sum" in table[student, "01/bias_gradient"][1].lower()
    assert "not a notebook" in table["eve", "eve_01.ipynb"][1]
    assert table["eve", "01/choose_step"] == ("not answered", "see eve_01.ipynb")
    assert table["hal", "01/choose_step"] == ("not answered", "nothing was handed in")
    assert "holds no exercise" in table["fay", "notes.ipynb"][1]
    assert "not Python" in table["gus", "gus.py"][1]

    text = (out / "summary.md").read_text(encoding="utf-8")
    assert "Set: 01. " in text and "not for exams" in text and "Traceback" not in text
    first = text[text.index("## The commonest"):].splitlines()[4]
    assert first.startswith("| 01/bias_gradient | A mean for a sum") and first.endswith("| 2 |")
    assert "| 01/bias_gradient | 2 | 2 | 5 |" in text
    assert "- hal/work.zip: an archive: unpack it" in text
    assert "- dan/solutions: solutions as" in text and "dan/02_softmax" in text
    assert "- ada/mine.py: lesson own, which was not set" in text
    assert "not a notebook" in text and "checkpoint" not in text
    with open(out / "students.csv", newline="", encoding="utf-8") as f:
        students = {line["id"]: line for line in csv.DictReader(f)}
    assert students["ada"] == {"id": "ada", "passed": "1", "not_right": "0", "not_answered": "3",
                               "per_cent": "25"}
    assert students["dan"]["per_cent"] == students["eve"]["per_cent"] == "0"
    page = (out / "students" / "ada.md").read_text(encoding="utf-8")
    assert "1 passed, 0 not right yet, 3 not answered: 25 %" in page and "mine.py" in page
    assert "| 01 | How many numbers move? | 4 |  |" in page
    assert "bob" not in page

    assert cli.main([*line, "--out", out, "--lessons", "own"]) == 0   # over its own files
    table = rows_of(out)
    assert "no dy gets through" in table["ada", "own/relu_backward"][1]
    assert table["ada", "own/linear"] == ("not answered", "")
    assert ("ada", "01/bias_gradient") not in table
    (out / "students" / "bob.md").write_text("mine")
    assert cli.main([*line, "--out", out]) == 2           # a teacher's notes
    assert "bob.md is there already" in capsys.readouterr().err


@pytest.mark.parametrize(("pairs", "lessons"), [
    ("a1 b1 c1 c2", ["1"]), ("a1 a2", ["1", "2"]), ("a1 b2 c3", ["1", "2", "3"]),
    ("a1 b1 a2 b2 c1", ["1", "2"]), ("", [])])
def test_what_most_handed_in_was_set(pairs, lessons):
    assert grading.commonest([tuple(pair) for pair in pairs.split()]) == lessons


def test_a_guess_and_what_the_lesson_said_of_it_are_found():
    cells = [(False, "# A\n\nHow\nmany?", []), (True, "guess = 4 # n", []),
             (True, "reveal()", [{"text": ["Your guess: 4. Answer: 5.\n"]}]),
             (True, "guess = ...", []), (True, "reveal()", [{"text": "No guess yet."}])]
    assert notebooks.guesses(cells) == [["How many?", "4", "Your guess: 4. Answer: 5."]]


@pytest.mark.slow
def test_one_class_twice_gets_the_same(tmp_path):
    folder = tmp_path / "class"
    notebook(folder / "bob_01.ipynb", GOOD + " + dy.max()")
    first, second = (grading.grade(folder, tmp_path / out, has_sandbox=False, progress=False)
                     for out in "ab")
    assert first == second and "largest difference" in first[0]["hint"]


def test_the_time_of_a_file_is_limited():
    names = ["bias_gradient", "shared_weight_gradient", "gradient_is_right", "choose_step"]
    cells = [f"{ASLEEP}def {name}(*args):\n    while True:\n        sleep(1)" for name in names]
    results = grading.judge(cells, names, 3, 0, [])
    assert [result.name for result in results] == names
    assert all(result.status == exercises.WRONG for result in results)
    rows = [grading.row_of("ada", f"01/{result.name}", result) for result in results]
    text = grading.summary(rows, ["01"], [])
    assert all(f"| {row['exercise']} | 0 | 1 | 0 |" in text for row in rows)
    assert "| 01/bias_gradient | It did not end within # s: is there a loop? | 1 |" in text
    assert "- ada, 01: Its 3 s are over; the rest was not run." in text and "# s are" not in text


def test_what_cannot_be_graded_is_refused_in_one_line(tmp_path, capsys):
    notebook(tmp_path / "class" / "ada.ipynb", GOOD)
    (tmp_path / "empty").mkdir()
    for name, option, part in (("none", "1", "no such folder"), ("empty", "1", "no submission"),
                               ("class", "1,77", "no lesson 77"), ("class", "own,x", "lesson x"),
                               ("class", f"1 --out {tmp_path}/class/x", "class's folder"),
                               ("class", "1 --seconds 0", "at least 1, got 0"),
                               ("class", "1 --seconds -5", "at least 1, got -5")):
        assert cli.main(["grade", tmp_path / name, "--no-sandbox", "--out", tmp_path / "out",
                         "--lessons", *option.split()]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and part in err
    assert not (tmp_path / "out").exists()


def test_mistakes_are_counted_without_their_numbers():
    rows = [{"student": s, "exercise": "01/a", "passed": "no", "machine": False,
             "hint": f"The largest difference: yours is {x:.4g}, it should be {x + 1:.4g}."}
            for s, x in (("a", -1.5), ("b", 2e-7), ("b", 3.0))]
    assert "yours is #, it should be #. | 2 |" in grading.summary(rows, ["01"], [])


@pytest.mark.slow
def test_the_solution_of_the_skeleton_is_right(tmp_path):
    """And ``put`` fills a skeleton with it."""
    path = tmp_path / "mine.py"
    own.new(path)
    own.put(path, F.relu)
    own.put(path, own.solution())
    assert set(own.load(path).functions) == set(own.FUNCTIONS)
    assert "def relu(x):" in path.read_text(encoding="utf-8")
    assert {result.status for result in own.results(path, 0)} == {"passed"}
    with pytest.raises(ValueError, match="no function examined"):
        own.put(path, examined)


# --------------------------------------------------------------------------- hostile files

SOLUTION = LESSONS / "solutions" / "01_gradients_by_hand.py"
# attack -> (what the answer does, what grade says with bubblewrap, what it says without).  The
# answer is right, unless it says "return".
ATTACKS = {
    "delete": ("open(TEACHER + '/grades', 'w')", "No such file", "passed"),
    "read a classmate's": ("open(CLASS + '/ada/x.ipynb').read()", "No such file", "passed"),
    "network": ("import socket; socket.socket()", "neither network", "neither network"),
    "network from C": (
        "import ctypes, struct; c = ctypes.CDLL(None); assert 0 == c.connect(c.socket(2, 1, 0), "
        "struct.pack('=H', 2) + struct.pack('>H', PORT) + bytes([127, 0, 0, 1] + [0] * 8), 16)",
        "AssertionError", "passed"),
    "fork": ("import os; os.fork()", "nor another process", "nor another process"),
    "forks from C": (
        "import ctypes, time; c = ctypes.CDLL(None)\n"
        "for _ in range(60):\n    if c.fork() == 0:\n        c.setsid(); time.sleep(1e6)\n"
        "time.sleep(1e6)", "It started processes", "It started processes"),
    "end the grader": ("import os, ctypes; assert 0 == ctypes.CDLL(None).kill(PID, 0)",
                       "AssertionError", "passed"),
    "memory": ("bytearray(5 << 30)", "MemoryError", "MemoryError"),
    "loop": ("import time\nwhile True: time.sleep(1)", "is there a loop", "is there a loop"),
    "exit": ("import os; os._exit(0)", "exit status 0", "exit status 0"),
    "patch NumPy": ("import numpy as np; np.allclose = np.array_equal = lambda *a, **k: True\n"
                    "return 0", "not right", "not right"),
    "patch the check": (
        "from minifpt import exercises as e; e._same = e._unchanged = lambda *a: True\n"
        "e.examine = lambda *a: e.Result(a[0], 'passed')\nreturn 0", "not right", "not right"),
    "the solution": (f"n = {{}}; exec(open({str(SOLUTION)!r}).read().partition('@exercise')[0], n)",
                     "[Errno ", "passed"),
    "forge rows": ("import os\nfor n in range(3, 30):\n    try:\n        os.write(n, b'[\"return\","
                   " 1, null, \"\"]\\n[\"bias_gradient\", \"passed\", \"\", false]\\n')\n"
                   "    except OSError: pass\nreturn 0", "", ""),
    "a lone surrogate": ("raise ValueError('\\udcff')", "\\udcff", "\\udcff"),
    "an endless list": ("return iter(int, 1)", "", ""),
    "a huge text": ("return 'x' * (1 << 24)", "too large", "too large"),
    "deep lists": ("x = []\nfor _ in range(100000): x = [x]\nreturn x", "RecursionError",
                   "RecursionError"),
    "its own folder": ("open('x', 'w').write('x')\nimport os; os.makedirs('d', exist_ok=True)",
                       "passed", "passed"),
    "a thread": ("import threading; t = threading.Thread(target=int); t.start(); t.join()",
                 "passed", "passed"),
}
ANSWERS = {"bias_gradient": ("dy", "dy.sum((0, 1))"),
           "shared_weight_gradient": ("x, w, dy", "x.T @ (dy @ w.T) + (x @ w).T @ dy")}


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("has_sandbox", [pytest.param(True, marks=needs_bwrap), False])
def test_a_hostile_file_changes_no_other_grade(has_sandbox, tmp_path):
    top, out, teacher = tmp_path / "class", tmp_path / "out", tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "grades").write_text("mine")
    notebook(top / "ada" / "x.ipynb", GOOD, CALL)
    notebook(top / "bob" / "x.ipynb", MEAN, CALL)
    attacks, place = list(ATTACKS), {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = (f"TEACHER, CLASS, PORT, PID = {str(teacher)!r}, {str(top)!r}, "
                  f"{server.getsockname()[1]}, {os.getpid()}")
        for i in range(0, len(attacks), 2):               # two in each file
            cells = [values]
            for attack, (name, (given, right)) in zip(attacks[i:i + 2], ANSWERS.items(),
                                                      strict=False):
                body = textwrap.indent(f"{ATTACKS[attack][0]}\nreturn {right}", "    ")
                cells.append(f"def {name}({given}):\n{body}")
                place[attack] = f"x{i}", f"01/{name}"
            notebook(top / f"x{i}" / "hostile.ipynb", *cells)
        notebook(top / "minus" / "x.ipynb", f"x = {'-' * 7000}1", GOOD, CALL)
        (top / "minus.py").write_text(f"x = {'-' * 7000}1\n{GOOD}\n")
        os.mkdir(os.fsencode(top) + b"/\xff")
        os.rename(top / "minus" / "x.ipynb", os.fsencode(top) + b"/\xff/\xfe.ipynb")
        (top / "link").mkdir()
        (top / "link" / "x.ipynb").symlink_to(top / "ada" / "x.ipynb")
        (top / "linked").symlink_to(top / "ada")
        os.mkfifo(top / "link" / "y.ipynb")
        (top / "link" / "z.ipynb").mkdir()
        began = time.monotonic()
        grading.grade(top, out, 8, has_sandbox=has_sandbox, lessons=["01"], progress=False)
        assert time.monotonic() - began < 240
    table = rows_of(out)
    for attack, key in place.items():
        passed, hint = table[key]
        expected = ATTACKS[attack][1 if has_sandbox else 2]
        assert (passed == "yes") == (expected == "passed"), (attack, passed, hint)
        assert expected in ("passed", "not right") or expected in hint, (attack, hint)
    assert (teacher / "grades").read_text() == ("mine" if has_sandbox else "")
    assert table["ada", "01/bias_gradient"] == ("yes", "")
    assert "mean for a sum" in table["bob", "01/bias_gradient"][1].lower()
    assert table["\\udcff", "01/bias_gradient"] == ("yes", "")
    assert "not Python" in table["minus", "minus.py"][1]
    for key in ("link", "x.ipynb"), ("linked", "linked"):
        assert "link to something outside" in table[key][1]
    assert "a pipe" in table["link", "y.ipynb"][1]
    assert ("link", "01/bias_gradient") in table
    assert not sandbox.marked(f"{os.getpid()}")


@pytest.mark.parametrize("has_sandbox", [pytest.param(True, marks=needs_bwrap), False])
def test_a_file_that_checks_itself_is_graded_though_the_answers_are_hidden(has_sandbox, tmp_path):
    top = tmp_path / "class"
    calls = ("from minifpt.exercises import check, examine, own\n"
             "check('bias_gradient', None)\nassert examine('choose_step', None).status\n")
    inside = GOOD.replace("return", "check(1, 2)\n    return")
    notebook(top / "bob" / "x.ipynb", calls, inside, CALL)
    (top / "ada.py").write_text(calls + "own.check(__file__)\n" + with_bodies(
        own.skeleton(), residual="return x + branch, None"), encoding="utf-8")
    grading.grade(top, tmp_path / "out", 20, lessons=["01", "own"], has_sandbox=has_sandbox,
                  progress=False)
    table = rows_of(tmp_path / "out")
    assert table["bob", "01/bias_gradient"] == table["ada", "own/residual"] == ("yes", "")
    assert table["ada", "own/relu"] == ("not answered", "")


def test_a_file_that_cannot_be_read_is_a_row(tmp_path, monkeypatch):
    def refused(path, most):
        raise PermissionError(13, "Permission denied")
    monkeypatch.setattr(grading, "read_bytes", refused)
    (tmp_path / "class" / "ada").mkdir(parents=True)
    (tmp_path / "class" / "ada" / "x.ipynb").write_text("")
    (row,) = grading.grade(tmp_path / "class", tmp_path / "out", has_sandbox=False, progress=False)
    assert (row["exercise"], row["hint"]) == ("x.ipynb", "It cannot be read: Permission denied.")


def test_without_bubblewrap_grade_says_so_and_stops(tmp_path, capsys, monkeypatch):
    notebook(tmp_path / "ada.ipynb", GOOD)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["grade", tmp_path, "--out", tmp_path / "out"]) == 2
    err = capsys.readouterr().err
    assert "bubblewrap (bwrap) is not installed" in err.splitlines()[-1] and "docker run" in err
    assert "--no-sandbox" in err.splitlines()[-1] and not (tmp_path / "out").exists()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no user namespaces here >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert sandbox.missing() == "bubblewrap (bwrap) fails: no user namespaces here"


def test_outer_folders_are_mounted_first(tmp_path, monkeypatch):
    """A package below the home folder is seen, and a class below the package is not."""
    (tmp_path / "minifpt" / "class").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sandbox, "ROOT", str(tmp_path / "minifpt"))
    words = " ".join(sandbox.command([tmp_path / "minifpt" / "class"], [__file__]))
    parts = [f"--tmpfs {tmp_path} ", f"--ro-bind {tmp_path}/minifpt {tmp_path}/minifpt ",
             f"--tmpfs {tmp_path}/minifpt/class "]
    assert sorted(parts, key=words.index) == parts
    assert f"--ro-bind /dev/null {__file__} " in words and "--unshare-net" in words


CAREFREE = """
def relu(x):
    import os
    while True:
        os.fork()

def gelu_exact(x):
    return bytearray(5 << 30)

def gelu(x):
    open("big", "wb").truncate(200 << 20)
"""


@needs_linux
def test_check_limits_processes_memory_and_files(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(own.skeleton() + CAREFREE)
    hints = {r.name: r.hint for r in own.results(path)}
    assert "PermissionError in line" in hints["relu"] and "os.fork" in hints["relu"]
    assert "MemoryError" in hints["gelu_exact"]
    assert "File too large" in hints["gelu"]


def test_the_help_of_grade_and_the_teachers_page_have_the_command_for_a_container(capsys):
    with pytest.raises(SystemExit):
        cli.main(["grade", "--help"])
    command = grading.CONTAINER.split("\n\n")[1]
    assert command in capsys.readouterr().out
    page = (LESSONS / "teaching.md").read_text(encoding="utf-8")
    assert textwrap.dedent(command).strip() in page
