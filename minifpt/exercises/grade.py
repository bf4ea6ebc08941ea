"""Check what a class hands in: notebooks of the lessons, and files that ``minifpt new`` began.

It is for learning, not for exams: the solutions ship with the lessons.

A submission is a notebook or Python file in a student's folder, or a file ``STUDENT.py``,
``STUDENT_NN.ipynb`` or ``STUDENT_NN_name.ipynb``.  The lesson is found by what the file checks, not
by its name.  Each file has two processes of its own.  One runs what the student wrote (see
``apart``), in bubblewrap (see ``sandbox``), and gets arguments and returns values.  The other draws
the arguments and judges the values.  Whatever becomes of them, the file has its rows.
"""

import os
import re
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from .. import exercises
from ..files import csv_text, one_line, outputs, read_bytes
from ..progress import progress_bar
from . import apart, own, sandbox
from .lesson import lessons_folder

COLUMNS = ["student", "exercise", "passed", "hint"]
VALUES = ["yes", "no", "not answered"]                    # of the column "passed"
PASSED = {"passed": "yes", "not answered yet": "not answered"}
STUDENTS = ["id", "passed", "not_right", "not_answered", "per_cent"]  # ids as nbgrader imports them
PAGE = "page of a student"
# What ends an answer from outside says nothing about a mistake in it.
MACHINE = re.compile(r"It raised (PermissionError|MemoryError|OSError|RecursionError)")
NOTE = "This is for learning, not for exams: the solutions ship with the lessons."
CONTAINER = """\
On Linux each file runs in bubblewrap (bwrap, 0.7 or newer), which this command
needs. Elsewhere use a container, in a clone of minifpt:

    mkdir -p grades && docker run --rm --network none --user "$(id -u)" \\
        --memory 4g --pids-limit 100 -v "$PWD/class:/class:ro" \\
        -v "$PWD/grades:/grades" $(docker build -q .) grade /class \\
        --out /grades --no-sandbox

Without a sandbox a file that means harm can change whatever you can change.
"""
NO_EXERCISE = "It holds no exercise: neither check(...) of a lesson nor a function of one."
ROWS = 12                                                 # of each table of the summary
LARGEST = 1 << 26                                         # bytes of a file that is handed in


def grade(folder, out, seconds=60, seed=0, lessons=None, has_sandbox=True, progress=True):
    """Check all submissions in ``folder``; write ``grades.csv``, ``students.csv``, ``summary.md``
    and ``students/NAME.md`` into ``out``.

    seconds      time limit of a file; each exercise may take a quarter of it.
    seed         draws the numbers of the checks, which are the same for all students.
    lessons      what was set, such as ["01", "own"]; by default what most students handed in.
    has_sandbox  run each file in bubblewrap.

    Returns the rows, a list of dicts: for each student a row for each exercise that was set, and
    for each file that could not be judged.  Raises ``ValueError`` if there is nothing to check.
    """
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    exercises._load()
    lesson_of = {name: it.__module__[-2:] for name, it in exercises.EXERCISES.items()}
    lesson_of |= {f"own/{name}": "own" for name in own.FUNCTIONS}
    if unknown := set(lessons or ()) - set(lesson_of.values()):
        raise ValueError(f"lessons: there is no lesson {min(unknown)}")
    files, rows, left_out = submissions(folder)
    if not files and not rows:
        raise ValueError(f"{folder}: it holds no submission: expected STUDENT/NAME.ipynb, "
                         "STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py")
    students = sorted({student for student, *_ in files + left_out if student}
                      | {row["student"] for row in rows})
    pages = page_paths(students, out / "students")
    check_outputs(out, pages)
    command = sandbox.command([folder, out], answers()) if has_sandbox else []

    contents = list(looked([path for _, path in files], command))
    found = [lessons_of(it, path, lesson_of) for it, (_, path) in zip(contents, files, strict=True)]
    lessons = lessons or commonest([(student, lesson) for (student, _), its in zip(
        files, found, strict=True) for lesson in its])
    jobs = list(zip(files, contents, found, strict=True))
    for (student, path), it, its in progress_bar(jobs, desc="submissions", unit="file",
                                                 progress=progress):
        if why := it["error"] or NO_EXERCISE * (not its):
            rows.append(file_row(student, path, why))
        elif not set(its) & set(lessons):
            left_out.append((student, path, f"lesson {', '.join(its)}, which was not set"))
        else:
            names = [name for name, lesson in lesson_of.items()
                     if lesson in its and lesson in lessons]
            rows += [{"student": student} | row for row in judge(
                it["cells"], names, lesson_of, seconds, seed, command)]
    rows = filled(rows, students, [f"{lesson}/{name.split('/')[-1]}" for name, lesson in
                                   lesson_of.items() if lesson in lessons])
    left_out = [(student, shown(path.relative_to(folder)), why) for student, path, why in left_out]
    guesses = defaultdict(list)
    for (student, _), it, its in jobs:
        guesses[student] += [(", ".join(its), *guess) for guess in it["guesses"]]

    text = csv_text([{k: plain(row[k]) for k in COLUMNS} for row in rows], COLUMNS)
    check_outputs(out, pages)
    outputs.write_csv(out / "grades.csv", COLUMNS, text)
    outputs.write_csv(out / "students.csv", STUDENTS, by_student(rows))
    (out / "summary.md").unlink(missing_ok=True)          # its comment names the old table
    outputs.write_text(out / "summary.md", kind(out), summary(rows, lessons, left_out))
    for student, path in pages.items():
        outputs.write_text(path, PAGE, page(student, rows, guesses[student], left_out))
    return rows


def submissions(folder):
    """Return [(student, path)] of a folder, a row for each link that is refused, and [(student,
    path, why)] of what is left out.  Hidden files and caches are not looked at."""
    files, rows, left_out = [], [], []

    def student_of(path):
        parts = path.relative_to(folder).parts
        if len(parts) > 1:
            return parts[0]
        match = re.fullmatch(r"(.+)_\d\d(_.*)?", path.stem)
        return match[1] if match else path.stem

    def unreadable(error):
        path = Path(error.filename)
        left_out.append((path != folder and student_of(path / "x"), path, one_line(error)))

    for top, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        links = [name for name in folders if (Path(top) / name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(top) / name
            nested = path.parent != folder
            student, home = student_of(path), os.path.realpath(folder / path.relative_to(
                folder).parts[0]) if nested else None
            if name.startswith((".", "__")):
                continue
            if path.is_symlink() and not (home and sandbox.is_below(os.path.realpath(path), home)):
                rows.append(file_row(student, path, "It is a link to something outside of the "
                                                    "student's folder, and was not read."))
            elif name in links:
                left_out.append((student, path, "a link to a folder"))
            elif path.suffix not in (".ipynb", ".py"):
                is_archive = path.suffix in (".zip", ".gz", ".tar", ".7z", ".rar")
                left_out.append((nested and student, path, "an archive: unpack it" if is_archive
                                 else "neither a notebook nor Python"))
            elif path.suffix == ".py" and name.startswith("test_"):
                left_out.append((nested and student, path, "a test as 'minifpt new' writes it"))
            else:
                files.append((student, path))
        if "solutions" in folders:
            path = Path(top) / "solutions"
            folders.remove("solutions")
            left_out.append((path.parent != folder and student_of(path), path,
                             "solutions as 'minifpt lessons' copies them"))
    return sorted(files), rows, left_out


def file_row(student, path, why):
    """Return the row of a file that could not be judged."""
    return {"student": student, "exercise": path.name, "passed": "no", "hint": why,
            "machine": True}


def looked(paths, command):
    """Yield the contents of each file as :func:`notebooks.contents` does; it may be unreadable."""
    def contents(read, path):
        try:
            raw = np.frombuffer(read_bytes(path, LARGEST), np.uint8)
            return {"guesses": []} | read(raw, path.suffix == ".ipynb")
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or str(e).removeprefix(f"{path}: ")
            return {"guesses": [], "error": f"It cannot be read: {reason}."}
    for it, is_lost in apart.judged(paths, "minifpt.exercises.notebooks:reader", (), contents,
                                    quiet=30.0, most=1e6, command=command):
        yield {"guesses": [], "error": it.hint} if is_lost else it


def lessons_of(contents, path, lesson_of):
    """Return the lessons whose exercises a file checks; if it checks none, the one lesson of which
    it defines the most functions."""
    if contents["error"]:
        return []
    if checked := {lesson_of[name] for name in contents["checks"] if name in lesson_of}:
        return sorted(checked)
    if path.suffix == ".py" and set(contents["names"]) & set(own.FUNCTIONS):
        return ["own"]
    counts = Counter(lesson_of[name] for name in contents["names"] if name in lesson_of)
    return [lesson for lesson, _ in counts.most_common(1)]


def commonest(pairs):
    """Return the lessons that more than half of the students handed in, or the commonest ones."""
    counts = Counter(lesson for _, lesson in set(pairs))
    half = len({student for student, _ in pairs}) / 2
    most = max(counts.values(), default=0)
    return sorted(lesson for lesson, n in counts.items() if n > half or most <= half and n == most)


def answers():
    """Return the files and folders of the package with answers to the exercises."""
    modules = {sys.modules[it.__module__].__file__ for it in exercises.EXERCISES.values()}
    return [lessons_folder() / "solutions", *modules, Path(exercises.__file__).parent /
            "__pycache__"]


def filled(rows, students, names):
    """Return one row for each student and exercise, in order; of two files the better counts."""
    best = {}
    for row in rows:
        key = row["student"], row["exercise"]
        if key not in best or VALUES.index(row["passed"]) < VALUES.index(best[key]["passed"]):
            best[key] = row
    unread = {row["student"]: row["exercise"] for row in rows if "/" not in row["exercise"]}
    for student in students:
        for name in names:
            best.setdefault((student, name), {
                "student": student, "exercise": name, "passed": "not answered", "machine": False,
                "hint": f"see {unread[student]}" if student in unread else
                        "nothing was handed in"})
    return [best[key] for key in sorted(best)]


def by_student(rows):
    """Return a row of ``STUDENTS`` for each student; nbgrader's ``db student import`` reads it."""
    lines = []
    for student in sorted({row["student"] for row in rows}):
        counts = Counter(row["passed"] for row in rows
                         if row["student"] == student and "/" in row["exercise"])
        numbers = [counts[value] for value in VALUES]
        lines.append(dict(zip(STUDENTS, [plain(student), *numbers, round(
            100 * numbers[0] / max(1, sum(numbers)))], strict=True)))
    return lines


def kind(out):
    """Return the kind of output of ``summary.md``, which names the CRC of the tables."""
    tables = b"".join((out / name).read_bytes() for name in ("grades.csv", "students.csv"))
    return f"grades {zlib.crc32(tables):08x}"


def page_paths(students, folder):
    """Return {student: path of the page}, with names that any system can have."""
    paths = {}
    for student in students:
        name = base = re.sub(r"[^\w-]", "_", shown(student))[:80]
        while folder / f"{name}.md" in paths.values():
            name = f"{base}-{len(paths)}"
        paths[student] = folder / f"{name}.md"
    return paths


def check_outputs(out, pages):
    """Raise ``ValueError`` if ``grade`` did not write the files in ``out``, or if a teacher has
    changed them since."""
    outputs.check(out / "grades.csv", COLUMNS)
    outputs.check(out / "students.csv", STUDENTS)
    for path in pages.values():
        outputs.check(path, PAGE)
    if not (out / "grades.csv").exists() or not (out / "students.csv").exists():
        outputs.check(out / "summary.md", "grades")       # replaces none
    elif not outputs.is_output(out / "summary.md", kind(out)):
        raise ValueError(f"{out}: grades.csv, students.csv or summary.md was changed since "
                         "minifpt wrote them: choose another folder with --out")


def shown(text):
    """Return a text, such as the name of a file, with other signs for what is not UTF-8."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def plain(value):
    """Return a text that no spreadsheet takes for a formula."""
    return ("'" if value.startswith(("=", "+", "-", "@")) else "") + shown(value)


# ------------------------------------------------------------------------------ the judge


def judge(cells, names, lesson_of, seconds, seed, command):
    """Return the rows of a file, without the student, from a process of its own."""
    limits = dict.fromkeys(("quiet", "most"), 2 * seconds + 60.0)
    lost = "not right yet", "The check of it did not end: what does it return?", True
    try:
        ((results, _),) = apart.judged([""], f"{__name__}:judge_here", (
            cells, names, seconds, seed, command), lambda rows, _: rows, is_open=True, **limits)
    except apart.Lost:
        results = {}
    return [{"exercise": f"{lesson_of[name]}/{name.split('/')[-1]}", "hint": hint,
             "passed": PASSED.get(status, "no"),
             "machine": is_lost or bool(MACHINE.match(hint))}
            for name in names for status, hint, is_lost in [results.get(name, lost)]]


def judge_here(cells, names, seconds, seed, command):
    """Return {name: (status, hint, whether it was lost)} of a file; for :mod:`apart`."""
    exercises._load()
    limits = {"quiet": max(1.0, seconds / 4), "most": seconds, "command": command}
    if is_own := names[0].startswith("own/"):
        results = own.judged("mine.py", cells[0], seed, **limits)
    else:
        results = apart.judged(names, "minifpt.exercises.notebooks:load", (cells,),
                               lambda answer, name: examined(answer, name, seed), **limits)
    rows = {}
    try:
        for result, is_lost in results:
            rows["own/" * is_own + result.name] = result.status, result.hint, is_lost
    except (apart.Lost, own.Refused) as e:
        rows |= {name: ("not right yet", str(e), True) for name in names if name not in rows}
    return rows


def examined(answer_of, name, seed):
    """Return the result of an exercise; ``answer_of`` is what :func:`notebooks.load` returned."""
    try:
        answer, failed, why = answer_of(name)
        if why:
            return exercises.Result(name, "not right yet", why)
        result = exercises.examine(name, answer, seed)
    except Exception as e:
        return exercises.Result(name, "not right yet", f"It raised {one_line(e)}.")
    if result.status != "passed":
        result.hint += failed
    return result


# ------------------------------------------------------------------------------ the summary


def summary(rows, lessons, left_out):
    """Return a page in Markdown: the students, the hardest exercises, the commonest mistakes, and
    what was left out."""
    students = by_student(rows)
    by = {}                                               # exercise -> what each student has
    for row in rows:
        if not row["machine"]:                            # such as a loop, or a damaged file
            by.setdefault(row["exercise"], []).append(row["passed"])
    counted = [(name, *map(values.count, VALUES)) for name, values in by.items()]
    hardest = sorted((row for row in counted if row[2]),
                     key=lambda row: (row[1] / (row[1] + row[2]), row[0]))
    mistakes = Counter((exercise, hint) for _, exercise, hint in {
        (row["student"], row["exercise"], general(row["hint"])) for row in rows
        if row["passed"] == "no" and not row["machine"]})
    common = sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))
    lines = ["# What the class did", "",
             f"Students: {len(students)}. Set: {', '.join(lessons)}. {NOTE}", "",
             "| student | passed | not right yet | not answered | % |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cell(str(value)) for value in line.values()) + " |"
              for line in students]
    lines += ["", "## Exercises that not all got right, the hardest first", "",
              "| exercise | passed | not right yet | not answered |", "|---|---|---|---|"]
    lines += [f"| {cell(name)} | {passed} | {not_right} | {blank} |"
              for name, passed, not_right, blank in hardest[:ROWS]]
    lines += rest(len(hardest)) + ["", "## The commonest mistakes", ""]
    lines += (["| exercise | what the check said | students |", "|---|---|---|"]
              if mistakes else ["None."])
    lines += [f"| {cell(name)} | {cell(hint)} | {n} |" for (name, hint), n in common[:ROWS]]
    lines += rest(len(common)) + ["", "## What could not be judged, and what was left out", ""]
    lines += [f"- {cell(row['student'])}, {cell(row['exercise'])}: {cell(row['hint'])}"
              for row in rows if "/" not in row["exercise"]]
    lines += [f"- {cell(path)}: {why}" for _, path, why in left_out]
    return "\n".join(lines + ["Nothing."] * lines[-1:].count("")) + "\n"


def page(student, rows, guesses, left_out):
    """Return a student's page in Markdown: what the checks said, the guesses, what was left out."""
    rows = [row for row in rows if row["student"] == student]
    line = next(iter(by_student(rows)), dict.fromkeys(STUDENTS, 0))      # only an archive: no row
    lines = [f"# {cell(student)}", "", "{passed} passed, {not_right} not right yet, "
             "{not_answered} not answered: {per_cent} %. ".format(**line) + NOTE, "",
             "| exercise | passed | hint |", "|---|---|---|"]
    lines += [f"| {cell(row['exercise'])} | {row['passed']} | {cell(row['hint'], 1000)} |"
              for row in rows]
    if guesses:
        lines += ["", "## Guesses", "", "| lesson | question | guess | what the lesson said |",
                  "|---|---|---|---|"]
        lines += ["| " + " | ".join(map(cell, guess)) + " |" for guess in guesses]
    skipped = [f"- {cell(path)}: {why}" for owner, path, why in left_out if owner == student]
    lines += ["", "## Left out", "", *skipped] if skipped else []
    return "\n".join(lines) + "\n"


def rest(n):
    """Return a line that counts the rows which a table leaves out."""
    return ["", f"And {n - ROWS} more, in grades.csv."] if n > ROWS else []


def general(hint):
    """Return a hint without its numbers, so that two students with one mistake have one hint."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", hint)


def cell(text, most=200):
    """Return a text for a cell of a Markdown table."""
    return " ".join(shown(text).split()).replace("|", "\\|").replace("<", "&lt;")[:most]
