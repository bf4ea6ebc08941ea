"""What a class hands in is checked: notebooks and functional files, good, bad and hostile."""

import ast
import csv
import inspect
import json
import textwrap
from pathlib import Path

import pytest
from test_own import with_bodies

from minifpt import cli, exercises
from minifpt import functional as F
from minifpt.exercises import apart, own
from minifpt.exercises import grade as grading

LESSONS = Path(__file__).resolve().parent.parent / "lessons"


def notebook(path, *cells):
    """Write a notebook of these code cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "code", "source": textwrap.dedent(cell).strip().splitlines(keepends=True)}
        for cell in cells]}), encoding="utf-8")


def examined(name, *cells, seed=0):
    """The result of an exercise in a notebook of these cells, in this process."""
    statements, unread = [], []
    for text in cells:
        try:
            statements += ast.parse(text).body
        except SyntaxError as e:
            unread.append((text, f"SyntaxError: {e.msg}"))
    calls = grading.checks(statements)
    exercises._load()
    return grading.answered(name, calls.get(name), statements, unread, seed)


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


def test_magics_are_left_out(tmp_path):
    notebook(tmp_path / "n.ipynb", "%matplotlib inline\n!ls\nlist?\nx = 1", "%%bash\nls | wc",
             "%%time\ny = 2")
    statements, unread = grading.read_cells(tmp_path / "n.ipynb")
    assert [ast.unparse(s) for s in statements if not isinstance(s, ast.Pass)] == ["x = 1", "y = 2"]
    assert unread == []


@pytest.mark.parametrize("cell", [
    "def f(dy):\n    return dy.sum((0, 1))  # both axes?", "def f(n):\n# all?\n    return n",
    "x = (7\n     % 4)", 'def f():\n    """All rows?\n    %s"""\n    return 1'])
def test_lines_of_python_that_look_like_magics_stay(cell, tmp_path):
    for text in cell, f"%time y = 1\n{cell}":
        notebook(tmp_path / "n.ipynb", text)
        statements, unread = grading.read_cells(tmp_path / "n.ipynb")
        assert ast.dump(statements[-1]) == ast.dump(ast.parse(cell).body[-1]) and unread == []


def test_whose_file_it_is_and_of_which_lesson(tmp_path):
    for path in ("ann/03_layer_norm.ipynb", "bob_04.ipynb", "group_07_03_layer_norm.ipynb",
                 "group_08_03_layer_norm.ipynb", "cy/solutions/18_functional.py", "dan.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    assert [(student, grading.parts_of(path)[1]) for student, path in
            grading.submissions(tmp_path)] == [("ann", "03"), ("bob", "04"), ("dan", "--"),
                                               ("group_07", "03"), ("group_08", "03")]


@pytest.mark.parametrize("source", sorted((LESSONS / "src").glob("*.py")), ids=lambda p: p.stem)
def test_a_lesson_with_its_solutions_passes_and_none_of_its_training_is_run(source):
    """What a student hands in: the lesson, with the solutions' functions in place of the dots."""
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    solution = ast.parse((LESSONS / "solutions" / source.name).read_text(encoding="utf-8")).body
    answers = [s for s in solution if not isinstance(s, ast.If)]
    calls = grading.checks(statements)
    assert calls
    exercises._load()
    for name, (expression, _) in calls.items():
        chosen = grading.needed(expression, statements + answers)
        text = "\n".join(map(ast.unparse, chosen))
        assert ".train(" not in text and "picture(" not in text, name
        result = grading.answered(name, (expression, None), statements + answers, [], 0)
        assert result.status == "passed"


# ------------------------------------------------------------------------- whole folders


@pytest.fixture
def folder(tmp_path):
    """What a class handed in."""
    top = tmp_path / "class"
    notebook(top / "ada" / "01_gradients_by_hand.ipynb", "import numpy as np", GOOD, CALL)
    notebook(top / "bob_01.ipynb", MEAN, CALL)
    notebook(top / "cy_01_gradients_by_hand.ipynb", MEAN, CALL)
    notebook(top / "dan" / "01_gradients_by_hand.ipynb",
             f"{ASLEEP}def bias_gradient(dy):\n    while True:\n        sleep(1)",
             "def shared_weight_gradient(x, w, dy):\n    import os\n    os._exit(7)",
             "def gradient_is_right(f, x, g):\n    return open('/tmp/forged', 'w')",
             "def choose_step(f, x):\n    import socket\n    socket.socket()")
    notebook(top / "eve" / "01_x.ipynb", f"""
        def bias_gradient(dy):
            return open({str(top / "bob_01.ipynb")!r}).read()

        def shared_weight_gradient(x, w, dy):
            import subprocess
            subprocess.run(["ls"])

        def gradient_is_right(f, x, g):
            with open("mine.txt", "w") as f:
                f.write("home")
            return ...
    """)
    (top / "fay_01.ipynb").write_text("{")
    notebook(top / "gus" / "notes.ipynb", "x = 1")
    text = with_bodies(own.skeleton(), relu_backward="return dy")
    (top / "ada" / "mine.py").write_text(text, encoding="utf-8")
    (top / "hal.py").write_text("def f(:")
    (top / "ian.py").write_text("def helper():\n    pass\n")
    (top / "ada" / ".ipynb_checkpoints").mkdir()
    notebook(top / "ada" / ".ipynb_checkpoints" / "01_gradients_by_hand-checkpoint.ipynb", MEAN)
    return top


def test_a_class_is_graded(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(grading, "apart", lambda *args, **limits: apart.apart(
        *args, quiet=1.5, most=120.0))                    # one loop is all that takes its time
    assert cli.main(["grade", folder, "--out", out]) == 0
    assert "9 students, 1 of " in capsys.readouterr().out
    with open(out / "grades.csv", newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == ["student", "exercise", "passed", "hint"]
    found = {(r["student"], r["exercise"]): (r["passed"], r["hint"]) for r in rows}
    assert len(found) == len(rows)
    names = {exercise for student, exercise in found if student == "ada"}
    assert all({e for s, e in found if s == student and "/" in e} == names for student, _ in found)
    assert found["ada", "01/bias_gradient"] == ("yes", "")
    assert found["ada", "01/choose_step"] == ("not answered", "")
    assert found["ada", "own/linear"] == ("not answered", "")
    assert "no dy gets through" in found["ada", "own/relu_backward"][1]
    for student in ("bob", "cy"):
        assert "mean for a sum" in found[student, "01/bias_gradient"][1].lower()
    dan = {name: found["dan", f"01/{name}"][1] for name in (
        "bias_gradient", "shared_weight_gradient", "gradient_is_right", "choose_step")}
    assert "is there a loop" in dan["bias_gradient"]
    assert "exit status 7" in dan["shared_weight_gradient"]
    assert "PermissionError" in dan["gradient_is_right"] and "home folder" in (
        dan["gradient_is_right"])
    assert "neither network" in dan["choose_step"]
    assert not Path("/tmp/forged").exists()
    assert "the work of others is closed" in found["eve", "01/bias_gradient"][1]
    assert "another process" in found["eve", "01/shared_weight_gradient"][1]
    assert found["eve", "01/gradient_is_right"] == ("not answered", "")
    assert found["fay", "01/choose_step"][0] == "no"
    assert "not a notebook" in found["fay", "01/choose_step"][1]
    assert found["fay", "own/linear"] == ("not answered", "nothing was handed in")
    assert "holds no exercise" in found["gus", "notes.ipynb"][1]
    assert "not Python" in found["hal", "own/linear"][1]
    assert "no function of those" in found["ian", "ian.py"][1]

    text = (out / "summary.md").read_text(encoding="utf-8")
    assert "not for exams" in text and "Traceback" not in text
    first = text[text.index("## The commonest"):].splitlines()[4]
    assert first.startswith("| 01/bias_gradient | A mean for a sum") and first.endswith("| 2 |")
    assert "| 01/bias_gradient | 1 | 2 | 3 |" in text  # dan, eve and fay did not end
    assert len(text.splitlines()) < 60
    mistakes = text[text.index("## The commonest"):]
    assert "exit status" not in mistakes and "not a notebook" not in mistakes
    assert "PermissionError" not in mistakes
    with open(out / "students.csv", newline="", encoding="utf-8") as f:
        students = list(csv.DictReader(f))
    assert [line["id"] for line in students] == sorted({student for student, _ in found})
    for line in students:
        values = [row["passed"] for row in rows
                  if row["student"] == line["id"] and "/" in row["exercise"]]
        assert [int(line[key]) for key in ("passed", "not_right", "not_answered")] == [
            values.count(value) for value in ("yes", "no", "not answered")]
        assert f"| {line['id']} | {line['passed']} | {line['not_right']} |" in text


def test_one_class_twice_gets_the_same(tmp_path):
    folder = tmp_path / "class"
    notebook(folder / "bob_01.ipynb", GOOD + " + dy.max()")
    first = grading.grade(folder, tmp_path / "a", progress=False)
    assert first == grading.grade(folder, tmp_path / "b", progress=False)
    assert "largest difference" in first[0]["hint"]


def test_the_time_of_a_file_is_limited(tmp_path):
    names = ["bias_gradient", "shared_weight_gradient", "gradient_is_right", "choose_step"]
    notebook(tmp_path / "bob_01.ipynb",
             *(f"{ASLEEP}def {name}(*args):\n    while True:\n        sleep(1)" for name in names))
    rows = grading.graded(tmp_path / "bob_01.ipynb", tmp_path, 2, 0)
    assert [row["exercise"] for row in rows] == [f"01/{name}" for name in names]
    assert "2 s are over" in rows[-1]["hint"] or "did not end" in rows[-1]["hint"]
    assert all(row["passed"] == "no" and row["machine"] for row in rows)


def test_empty_folders_are_refused(tmp_path, capsys):
    for folder, part in ((tmp_path / "none", "no such folder"), (tmp_path, "no submission")):
        assert cli.main(["grade", folder, "--out", tmp_path / "out"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and part in err
    assert not (tmp_path / "out").exists()


def test_a_spreadsheet_sees_no_formula():
    assert grading.plain("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert grading.plain("fine") == "fine"


def test_mistakes_are_counted_without_their_numbers():
    rows = [{"student": s, "exercise": "01/a", "passed": "no", "machine": False,
             "hint": f"The largest difference: yours is {x:.4g}, it should be {x + 1:.4g}."}
            for s, x in (("a", -1.5), ("b", 2e-7), ("b", 3.0))]
    assert "yours is #, it should be #. | 2 |" in grading.summary(rows)


def test_the_solution_of_the_skeleton_is_right(tmp_path):
    """And ``put`` fills a skeleton with it."""
    path = tmp_path / "mine.py"
    own.new(path)
    own.put(path, F.relu)
    own.put(path, own.solution())
    loaded = own.load(path)
    assert set(loaded.functions) == set(own.FUNCTIONS)
    assert inspect.getsource(F.relu).strip() in path.read_text(encoding="utf-8")
    assert {own.examine(loaded, name, 0).status for name in own.FUNCTIONS} == {"passed"}
    with pytest.raises(ValueError, match="no function test_empty_folders_are_refused"):
        own.put(path, test_empty_folders_are_refused)
