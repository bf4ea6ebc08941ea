"""The lessons as assignments of nbgrader, which ``lessons/release.py`` writes."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import child, load_module

from minifpt.exercises import engine as exercises

ROOT = Path(__file__).resolve().parent.parent
release = load_module(ROOT / "lessons" / "release.py")
LESSONS = sorted(ROOT.glob("lessons/[0-9][0-9]_*.ipynb"))


def graded(notebook):
    """Return [(grade_id, cell)] of the cells that nbgrader knows."""
    return [(cell["metadata"]["nbgrader"]["grade_id"], cell) for cell in notebook["cells"]
            if "nbgrader" in cell["metadata"]]


def text_of(notebook):
    """Return the text of a notebook's Markdown cells."""
    return "\n".join("".join(cell["source"]) for cell in notebook["cells"]
                     if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_the_solutions_of_an_assignment_pass_and_nothing_is_left_of_them_without(lesson):
    cells = graded(json.loads(release.assignment(lesson)))
    first = next("".join(cell["source"]) for cell in json.loads(lesson.read_text("utf-8"))["cells"]
                 if cell["cell_type"] == "code")
    namespace, points = {}, 0
    exec(first, namespace)
    for name, cell in cells:
        exec(cell["source"], namespace)                   # a test raises for a wrong answer
        points += cell["metadata"]["nbgrader"].get("points", 0)
        if cell["metadata"]["nbgrader"]["solution"]:
            head = cell["source"].partition("### BEGIN SOLUTION")[0]
            exec(f"{head}raise NotImplementedError()", without := dict(namespace))
            assert exercises.examine(name, without[name]).status == exercises.NOT_WRITTEN
    asked = [name for name, cell in cells if cell["metadata"]["nbgrader"]["solution"]]
    assert [exercises.EXERCISES[name].is_open for name in asked] == [
        False] * (len(asked) - 1) + [True]
    assert points == len(asked) - 1 >= 2


def test_the_open_exercise_is_worth_points_where_they_are_asked_for():
    cells = graded(json.loads(release.assignment(LESSONS[1], open_points=2)))
    assert [cell["metadata"]["nbgrader"]["points"] for _, cell in cells[1::2]][-2:] == [1, 2]


@pytest.mark.parametrize("answer", [0, 1, 0.0, np.zeros(3), []], ids=str)
def test_an_answer_that_computes_nothing_has_no_hint_by_its_shape(answer):
    """A mistake is named only if it gives these numbers, too."""
    exercises.load_exercises()
    for name, exercise in exercises.EXERCISES.items():
        hint = exercises.examine(name, lambda *args, **options: answer, seed=0).hint
        with np.errstate(all="ignore"):                   # as mistakes do
            cases = [*exercise(np.random.default_rng(0))]
            [case.wrong_outputs for case in cases]
        outputs = [(case, output) for case in cases for words, output in case.wrong_outputs
                   if words not in case.mistakes and hint.startswith(exercises._sentence(words))]
        assert not outputs or any(exercises.same(answer, output, case.rtol)
                                  for case, output in outputs), (name, hint)


def test_an_assignment_is_not_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release.py", "1", "--out", str(tmp_path)])
    release.main()
    for lesson, message in ("1", "is there already"), ("99", "lesson 99 does not exist"):
        sys.argv[1] = lesson
        with pytest.raises(SystemExit):
            release.main()
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_nbgrader_releases_marks_and_answers(tmp_path, monkeypatch):
    if not shutil.which("nbgrader"):
        pytest.skip("nbgrader is not on the PATH: pip install nbgrader")
    lesson = next(path for path in LESSONS if path.stem[:2] == "23")
    monkeypatch.setattr(sys, "argv", ["release.py", "23", "--out", str(tmp_path)])
    release.main()
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]

    def nbgrader(*words):
        child("nbgrader", *words, cwd=tmp_path, timeout=600,
              env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})

    nbgrader("generate_assignment", "lesson_23")
    name = f"lesson_23/{lesson.name}"
    source, released = (json.loads((tmp_path / folder / name).read_text("utf-8"))
                        for folder in ("source", "release"))
    assert text_of(released) == text_of(source)
    assert len(text_of(released)) > 0.95 * len(text_of(json.loads(lesson.read_text("utf-8"))))
    assert "BEGIN SOLUTION" not in json.dumps(released)
    solutions = {name: cell["source"] for name, cell in graded(source)}
    answers = {"right": solutions, "missing": {}, "wrong": {
        name: text.replace("### BEGIN SOLUTION", "return 0") for name, text in solutions.items()}}
    for student, texts in answers.items():
        notebook = json.loads(json.dumps(released))
        for grade_id, cell in graded(notebook):
            cell["source"] = texts.get(grade_id, cell["source"])
        target = tmp_path / "submitted" / student / name
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(notebook), encoding="utf-8")

    nbgrader("autograde", "lesson_23")
    nbgrader("generate_feedback", "lesson_23")
    nbgrader("export")
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8") as f:
        rows = [*csv.DictReader(f)]
    scores = {row["student_id"]: float(row["score"]) for row in rows}
    assert {float(row["max_score"]) for row in rows} == {len(solutions) / 2 - 1}
    assert scores == {"right": len(solutions) / 2 - 1, "wrong": 0, "missing": 0}
    hints = {student: (tmp_path / "feedback" / student / name).with_suffix(".html").read_text(
        encoding="utf-8") for student in answers}
    assert "AssertionError" not in hints["right"] and "not right yet" in hints["wrong"]
    assert "not answered yet" in hints["missing"]
