"""Check what a class hands in: notebooks of the lessons, and files that ``minifpt new`` began.

A submission is a notebook or Python file in a student's folder, or a file ``STUDENT.py``,
``STUDENT_NN.ipynb`` or ``STUDENT_NN_name.ipynb``.  The lesson is found by what the file checks, not
by its name.  Each file has two processes of its own.  One runs what the student wrote (see
``apart``), in bubblewrap (see ``sandbox``), and gets arguments and returns values.  The other draws
the arguments and judges the values.  Whatever becomes of them, the file has its rows.
"""

import contextlib
import json
import os
import re
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from .. import checks, exercises
from ..files import csv_text, one_line, outputs, read_bytes, read_json, save_text
from ..progress import progress_bar
from . import NOT_WRITTEN, PASSED, WRONG, Result, apart, own, sandbox
from .lesson import lessons_folder

COLUMNS = ["student", "exercise", "passed", "hint"]
WORDS = {PASSED: "yes", WRONG: "no", NOT_WRITTEN: "not answered"}      # of the column "passed"
VALUES = [*WORDS.values()]
STUDENTS = ["id", "passed", "not_right", "not_answered", "per_cent"]  # ids as nbgrader imports them
# What ends an answer from outside says nothing about a mistake in it.
MACHINE = re.compile(r"It raised (PermissionError|MemoryError|OSError)")
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
# Files and folders that are passed over, by their names.
LEFT_OUT = {r".*\.(zip|gz|tar|7z|rar)": "an archive: unpack it",
            r"test_.*\.py": "a test as 'minifpt new' writes it",
            r"solutions/": "solutions as 'minifpt lessons' copies them",
            r".*(?<!\.ipynb)(?<!\.py)(?<!/)": "neither a notebook nor Python"}
ROWS = 12                                                 # of each table of the summary
LARGEST = 1 << 26                                         # bytes of a file that is handed in
MARKS = ".minifpt.json"                                   # {file: CRC of it as it was written}


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
    if sandbox.is_below(os.path.realpath(out), os.path.realpath(folder)):
        raise ValueError(f"{out} is in the class's folder, where it would look like a student's: "
                         "choose one outside with --out, such as ../grades")
    checks.whole("grade", "seconds", seconds)
    exercises._load()
    lesson_of = {name: it.__module__[-2:] for name, it in exercises.EXERCISES.items()}
    lesson_of |= {f"own/{name}": "own" for name in own.FUNCTIONS}
    if unknown := set(lessons or ()) - set(lesson_of.values()):
        raise ValueError(f"lessons: there is no lesson {min(unknown).removeprefix('0')}")
    files, rows, left_out = submissions(folder)
    if not files and not rows:
        raise ValueError(f"{folder}: it holds no submission: expected STUDENT/NAME.ipynb, "
                         "STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py")
    students = sorted({student for student, *_ in files + left_out if student}
                      | {row["student"] for row in rows})
    pages = page_names(students)
    names = ["grades.csv", "students.csv", "summary.md", *pages.values()]
    marks = check_outputs(out, names)
    command = sandbox.command([folder, out], answers()) if has_sandbox else []

    contents = list(looked([path for _, path in files], command))
    found = [lessons_of(it, path, lesson_of) for it, (_, path) in zip(contents, files, strict=True)]
    lessons = lessons or commonest([(student, lesson) for (student, _), its in zip(
        files, found, strict=True) for lesson in its])
    jobs, guesses = list(zip(files, contents, found, strict=True)), defaultdict(list)
    for (student, path), it, its in progress_bar(jobs, desc="submissions", unit="file",
                                                 progress=progress):
        guesses[student] += [(", ".join(its), *guess) for guess in it["guesses"]]
        if why := it["error"] or NO_EXERCISE * (not its):
            rows.append(file_row(student, path, why))
        elif not set(its) & set(lessons):
            left_out.append((student, path, f"lesson {', '.join(its)}, which was not set"))
        else:
            set_names = [name for name, lesson in lesson_of.items()
                         if lesson in its and lesson in lessons]
            rows += [row_of(student, f"{lesson_of[r.name]}/{r.name.split('/')[-1]}", r)
                     for r in judge(it["cells"], set_names, seconds, seed, command)]
    rows = filled(rows, students, [f"{lesson}/{name.split('/')[-1]}" for name, lesson in
                                   lesson_of.items() if lesson in lessons])
    left_out = [(student, shown(path.relative_to(folder)), why) for student, path, why in left_out]

    texts = [csv_text([{k: plain(row[k]) for k in COLUMNS} for row in rows], COLUMNS),
             csv_text(by_student(rows), STUDENTS), summary(rows, lessons, left_out),
             *(page(student, rows, guesses[student], left_out) for student in pages)]
    for name, text in zip(names, texts, strict=True):
        save_text(out / name, text)
        save_text(out / MARKS, json.dumps(marks := marks | {name: zlib.crc32(text.encode())}))
    return rows


def submissions(folder):
    """Return [(student, path)] of a folder, a row for each link that is refused, and [(student,
    path, why)] of what is left out.  Hidden files and caches are not looked at."""
    files, rows, left_out = [], [], []

    def student_of(path, is_file=True):
        parts = path.relative_to(folder).parts
        if len(parts) > 1 or not is_file:
            return parts[0] if parts else None
        match = re.fullmatch(r"(.+)_\d\d(_.*)?", path.stem)
        return match[1] if match else path.stem

    def unreadable(error):
        path = Path(error.filename)
        left_out.append((student_of(path, False), path, one_line(error)))

    for top, folders, names in os.walk(folder, onerror=unreadable):
        paths = [Path(top) / name for name in sorted(names + folders)
                 if not name.startswith((".", "__"))]
        folders.clear()
        for path in paths:
            is_folder = path.is_dir() and not path.is_symlink()
            parts = path.relative_to(folder).parts
            home = os.path.realpath(folder / parts[0]) if len(parts) > 1 else None
            name = path.name + "/" * is_folder
            why = next((why for form, why in LEFT_OUT.items() if re.fullmatch(form, name)), "")
            if path.is_symlink() and not (home and sandbox.is_below(os.path.realpath(path), home)):
                rows.append(file_row(student_of(path), path, "It is a link to something outside of "
                                     "the student's folder, and was not read."))
            elif path.is_symlink() and path.is_dir():
                left_out.append((student_of(path), path, "a link to a folder"))
            elif why:
                left_out.append((parts[0] if home else None, path, why))
            elif is_folder:
                folders.append(path.name)
            else:
                files.append((student_of(path), path))
    return sorted(files), rows, left_out


def row_of(student, exercise, result):
    """Return a row of the table."""
    return {"student": student, "exercise": exercise, "passed": WORDS.get(result.status, "no"),
            "hint": result.hint, "machine": result.is_lost or bool(MACHINE.match(result.hint))}


def file_row(student, path, why):
    """Return the row of a file that could not be judged."""
    return row_of(student, path.name, Result("", WRONG, why, True))


def looked(paths, command):
    """Yield the contents of each file as :func:`notebooks.contents` does; it may be unreadable."""
    def contents(read, path):
        try:
            raw = np.frombuffer(read_bytes(path, LARGEST), np.uint8)
            return {"guesses": []} | read(raw, path.suffix == ".ipynb")
        except (OSError, ValueError) as e:
            reason = getattr(e, "strerror", None) or str(e).removeprefix(f"{path}: ")
            return {"guesses": [], "error": f"It cannot be read: {reason}."}
    for it in apart.judged(paths, "minifpt.exercises.notebooks:reader", (), contents,
                           quiet=30.0, most=1e6, command=command):
        yield {"guesses": [], "error": it.hint} if isinstance(it, Result) else it


def lessons_of(contents, path, lesson_of):
    """Return the lessons whose exercises a file checks; if it checks none, the one lesson of which
    it defines the most functions.  A functional file has more functions than checks."""
    if contents["error"]:
        return []
    checked = [lesson_of[name] for name in contents["checks"] if name in lesson_of]
    if path.suffix == ".py" and len({*contents["names"]} & {*own.FUNCTIONS}) > len(checked):
        return ["own"]
    if checked:
        return sorted({*checked})
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
        best[key] = min(best.get(key, row), row, key=lambda row: VALUES.index(row["passed"]))
    unread = {row["student"]: row["exercise"] for row in rows if "/" not in row["exercise"]}
    for student in students:
        for name in names:
            best.setdefault((student, name), row_of(student, name, Result(
                name, NOT_WRITTEN, f"see {unread[student]}" if student in unread else
                "nothing was handed in")))
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


def page_names(students):
    """Return {student: name of the page}, with names that any system can have."""
    paths = {}
    for student in students:
        name = base = re.sub(r"[^\w-]", "_", shown(student))[:80]
        while f"students/{name}.md" in paths.values():
            name = f"{base}-{len(paths)}"
        paths[student] = f"students/{name}.md"
    return paths


def check_outputs(out, names):
    """Return the ``MARKS`` of a folder.  Raises ``ValueError`` for a file of these names that
    ``grade`` did not write, or that a teacher has changed since."""
    marks = read_json(out / MARKS) if (out / MARKS).exists() else {}
    for name in names:
        path = out / name
        if os.path.lexists(path) and (not path.is_file() or zlib.crc32(
                path.read_bytes()) != marks.get(name)):
            raise ValueError(f"{path} is there already, and is not as minifpt wrote it: choose "
                             "another folder with --out")
    outputs.check(out / "new", "grades")                  # can be written
    return marks


def shown(text):
    """Return a text, such as the name of a file, with other signs for what is not UTF-8."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def plain(value):
    """Return a text that no spreadsheet takes for a formula."""
    return ("'" if value.startswith(("=", "+", "-", "@")) else "") + shown(value)


def judge(cells, names, seconds, seed, command):
    """Return the :class:`Result` of each exercise of a file, from a process of its own."""
    limits, results = dict.fromkeys(("quiet", "most"), 2 * seconds + 60.0), {}
    with contextlib.suppress(apart.Lost):
        (results,) = apart.judged([""], f"{__name__}:judge_here", (
            cells, names, seconds, seed, command), lambda results, _: results, is_open=True,
            **limits)
    lost = WRONG, "The check of it did not end: what does it return?", True
    return [Result(name, *results.get(name, lost)) for name in names]


def judge_here(cells, names, seconds, seed, command):
    """Return {name: (status, hint, whether it was lost)} of a file; for :mod:`apart`."""
    exercises._load()
    limits = {"quiet": max(1.0, seconds / 4), "most": seconds, "command": command}
    prefix, rows = "own/" * names[0].startswith("own/"), {}
    results = own.judged("mine.py", cells[0], seed, **limits) if prefix else apart.judged(
        names, "minifpt.exercises.notebooks:load", (cells,),
        lambda answer, name: examined(answer, name, seed), **limits)
    try:
        for r in results:
            rows[prefix + r.name] = r.status, r.hint, r.is_lost
    except apart.Lost as e:
        rows = dict.fromkeys(names, (WRONG, str(e), True)) | rows
    return rows


def examined(answer_of, name, seed):
    """Return the result of an exercise; ``answer_of`` is what :func:`notebooks.load` returned."""
    try:
        answer, failed = answer_of(name)
        result = exercises.examine(name, answer, seed)
    except ValueError as e:
        return Result(name, WRONG, str(e))
    except Exception as e:
        return Result(name, WRONG, f"It raised {one_line(e)}.")
    result.hint += failed * (result.status != PASSED)
    return result


def summary(rows, lessons, left_out):
    """Return a page in Markdown: the students, the hardest exercises, the commonest mistakes, and
    what was left out."""
    by = defaultdict(list)                                # exercise -> what each student has
    for row in rows:
        if "/" in row["exercise"]:                        # not a file
            by[row["exercise"]].append(row["passed"])
    counted = [(name, *map(values.count, VALUES)) for name, values in by.items()]
    hardest = sorted((row for row in counted if row[2]),
                     key=lambda row: (row[1] / (row[1] + row[2]), row[0]))
    # Without numbers, two students with one mistake have one hint.
    mistakes = Counter((exercise, hint) for _, exercise, hint in {
        (row["student"], row["exercise"],
         re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", row["hint"])) for row in rows
        if row["passed"] == "no" and not row["machine"]})
    common = sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))
    skipped = [f"- {cell(row['student'])}, {cell(row['exercise'].partition('/')[0])}: "
               f"{cell(row['hint'])}" for row in rows if row["machine"]]
    skipped += [f"- {cell(path)}: {why}" for _, path, why in left_out]
    students = [list(line.values()) for line in by_student(rows)]
    counts = ["passed", "not right yet", "not answered"]
    return "\n".join([
        "# What the class did", "",
        f"Students: {len(students)}. Set: {', '.join(lessons)}. {NOTE}", "",
        *table(["student", *counts, "%"], students, len(students)),
        "## Exercises that not all got right, the hardest first", "",
        *table(["exercise", *counts], hardest), "## The commonest mistakes", "",
        *table(["exercise", "what the check said", "students"], [(*key, n) for key, n in common]),
        "## What could not be judged, and what was left out", "",
        *(dict.fromkeys(skipped) or ["Nothing."]), ""])


def page(student, rows, guesses, left_out):
    """Return a student's page in Markdown: what the checks said, the guesses, what was left out."""
    rows = [row for row in rows if row["student"] == student]
    line = next(iter(by_student(rows)), dict.fromkeys(STUDENTS, 0))      # only an archive: no row
    lines = [f"# {cell(student)}", "", "{passed} passed, {not_right} not right yet, "
             "{not_answered} not answered: {per_cent} %. ".format(**line) + NOTE, "",
             *table(COLUMNS[1:], [[row[k] for k in COLUMNS[1:]] for row in rows], len(rows), 1000)]
    if guesses:
        lines += ["## Guesses", "", *table(
            ["lesson", "question", "guess", "what the lesson said"], guesses, len(guesses))]
    skipped = [f"- {cell(path)}: {why}" for owner, path, why in left_out if owner == student]
    lines += ["## Left out", "", *skipped] if skipped else []
    return "\n".join([*lines, ""])


def table(head, rows, most=ROWS, letters=200):
    """Return the lines of a table in Markdown, and one that counts the rows left out."""
    if not rows:
        return ["None.", ""]
    lines = ["| " + " | ".join(cell(str(value), letters) for value in line) + " |"
             for line in (head, ["---"] * len(head), *rows[:most])]
    more = ["", f"And {len(rows) - most} more, in grades.csv."] * (len(rows) > most)
    return [*lines, *more, ""]


def cell(text, most=200):
    """Return a text for a cell of a Markdown table."""
    return " ".join(shown(text).split()).replace("|", "\\|").replace("<", "&lt;")[:most]
