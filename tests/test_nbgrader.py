"""The assignments for nbgrader: each holds its solutions, and nbgrader grades them."""

import csv
import json
import shutil
import subprocess

import pytest

from minifpt import cli, exercises
from minifpt.exercises import grade, nbgrader
from minifpt.files import csv_text


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    assert cli.main(["lessons", "--nbgrader", str(folder)]) == 0
    return folder


def cells_of(path):
    return [(cell["metadata"].get("nbgrader", {}), "".join(cell["source"]))
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


@pytest.mark.slow
def test_the_cells_of_each_assignment_run_and_pass(course):
    """Its imports, its solutions and its hidden checks, one cell after the other."""
    exercises._load()
    names = []
    for path in sorted(course.glob("source/*/*.ipynb")):
        namespace, points = {}, 0
        for marks, source in cells_of(path):
            if marks:
                exec(source, namespace)
                points += marks.get("points", 0)
                names += [marks["grade_id"]] if marks["solution"] else []
        assert points >= 3, path
        lesson = json.loads((path.parent / "lesson" / path.name).read_text(encoding="utf-8"))
        assert f"lesson/{path.name}" in cells_of(path)[0][1] and len(lesson["cells"]) > 20
        assert not any(cell.get("outputs") for cell in lesson["cells"])
    assert sorted(names) == sorted(exercises.EXERCISES)


def test_no_solution_is_left_when_marks_are_cleared(course):
    """Between nbgrader's marks is the whole solution: without it nothing is answered."""
    for path in course.glob("source/*/*.ipynb"):
        for marks, source in cells_of(path):
            if marks.get("solution"):
                head = source.partition("### BEGIN SOLUTION")[0]
                assert source.endswith("### END SOLUTION")
                namespace = {}
                exec(head + "raise NotImplementedError()", namespace)
                result = exercises.examine(marks["grade_id"], namespace[marks["grade_id"]])
                assert result.status == "not answered yet"


def test_an_assignment_is_not_replaced(course, tmp_path, fails):
    shutil.copytree(course / "source" / "lesson_02", tmp_path / "source" / "lesson_02")
    assert "is there already" in fails("lessons", "--nbgrader", tmp_path)
    assert not (tmp_path / "source" / "lesson_01").exists()  # nothing of a refused set is written


def test_a_check_that_fails_says_why(course):
    path = next(course.glob("source/lesson_01/*.ipynb"))
    hidden = next(source for marks, source in cells_of(path)
                  if marks.get("grade_id") == "check-bias_gradient")
    with pytest.raises(AssertionError, match="mean for a sum"):
        exec(hidden, {"check": exercises.check, "bias_gradient": lambda dy: dy.mean(axis=(0, 1))})


@pytest.mark.slow
def test_nbgrader_grades_a_right_a_half_and_a_wrong_submission(tmp_path):
    if shutil.which("nbgrader") is None:
        pytest.skip("nbgrader is not installed")
    nbgrader.write_assignments(tmp_path)
    source, = tmp_path.glob("source/lesson_01/*.ipynb")

    def run(*args):
        subprocess.run(["nbgrader", *args], cwd=tmp_path, check=True, capture_output=True)

    run("generate_assignment", "lesson_01")
    released = tmp_path / "release" / "lesson_01" / source.name
    text = released.read_text(encoding="utf-8")
    assert "SOLUTION" not in text and "HIDDEN" not in text and "NotImplementedError" in text
    solved = json.loads(source.read_text(encoding="utf-8"))["cells"]
    count = sum(bool(cell["metadata"].get("nbgrader", {}).get("solution")) for cell in solved)
    for student, n in (("right", count), ("half", count // 2), ("wrong", 0)):
        notebook, answered = json.loads(text), 0
        for cell in notebook["cells"]:
            marks = cell["metadata"].get("nbgrader", {})
            if marks.get("solution") and answered < n:
                answered += 1
                cell["source"] = next(s["source"] for s in solved if s["metadata"].get(
                    "nbgrader", {}).get("grade_id") == marks["grade_id"])
            elif marks.get("solution") and student == "wrong":
                cell["source"] = ["".join(cell["source"]).replace(
                    "raise NotImplementedError()", "return 0")]
        target = tmp_path / "submitted" / student / "lesson_01" / source.name
        target.parent.mkdir(parents=True)
        target.write_text(json.dumps(notebook), encoding="utf-8")
    run("autograde", "lesson_01")
    run("export")
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8") as f:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(f)
                  if row["assignment"] == "lesson_01"}
    assert scores == {"right": count, "half": count // 2, "wrong": 0}

    rows = [{"student": "ada", "exercise": "01/x", "passed": "yes"}]
    (tmp_path / "students.csv").write_text(csv_text(grade.by_student(rows), grade.STUDENTS))
    run("db", "student", "import", "students.csv")
