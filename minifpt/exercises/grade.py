"""Run and check submitted notebooks and functional files; write a table and the commonest mistakes.

It is for learning, not for exams: the solutions ship with the lessons, and what runs here could
forge its result.

A submission is ``STUDENT/NN_name.ipynb`` or ``STUDENT_NN.ipynb`` (``STUDENT_NN_name.ipynb``), a
notebook of lesson NN, or ``STUDENT/NAME.py`` or ``STUDENT.py``, a file that ``minifpt new`` began.

Only a part of a notebook is run: the imports, the functions that ``check`` gets, and the statements
that these need.  So a cell that trains or draws is left out unless an answer needs it.  Each file
runs in a process of its own (see ``apart``), which is closed (see ``closed``): it has limits, no
network and no other process, and it cannot read the folder of submissions.
"""

import ast
import functools
import json
import re
import symtable
import zlib
from collections import Counter
from pathlib import Path

from .. import exercises
from ..files import csv_text, one_line, outputs
from ..progress import progress_bar
from . import own
from .apart import apart
from .closed import close

COLUMNS = ["student", "exercise", "passed", "hint"]
VALUES = ["yes", "no", "not answered"]                    # of the column "passed"
STUDENTS = ["id", "passed", "not_right", "not_answered", "per_cent"]  # ids as nbgrader imports them
# What ends an answer from outside says nothing about a mistake in it.
MACHINE = re.compile(r"It raised (PermissionError|MemoryError|OSError|RecursionError)")
NOTE = ("This is for learning, not for exams: the solutions ship with the lessons, and nothing "
        "here keeps a program from forging its result.")
CONTAINER = """\
On Linux 6.2 or newer the kernel holds each file (Landlock, seccomp), elsewhere
Python alone, which a program that means harm gets past. Check files of people
whom you do not know in a container, in a clone of minifpt:

    mkdir -p grades && docker run --rm --network none --user "$(id -u)" \\
        --memory 4g --pids-limit 100 -v "$PWD/class:/class:ro" \\
        -v "$PWD/grades:/grades" $(docker build -q .) grade /class --out /grades
"""
ROWS = 12                                                 # of each table of the summary


def grade(folder, out, seconds=60, seed=0, progress=True):
    """Check all submissions in ``folder``; write ``grades.csv``, ``students.csv`` and
    ``summary.md`` into ``out``.

    seconds   time limit of a file; each exercise may take a quarter of it.
    seed      draws the numbers of the checks, which are the same for all students.

    Returns the rows, a list of dicts: for each student a row for each exercise of the files that
    the class handed in.  Raises ``ValueError`` if there is nothing to check.
    """
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    files = submissions(folder)
    if not files:
        raise ValueError(f"{folder}: it holds no submission: expected STUDENT/NN_name.ipynb, "
                         "STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py")
    check_outputs(out)
    rows = []
    for student, path in progress_bar(files, desc="submissions", unit="file", progress=progress):
        rows += [{"student": student} | row for row in graded(path, folder, seconds, seed)]
    rows = filled(rows)
    text = csv_text([{k: plain(row[k]) for k in COLUMNS} for row in rows], COLUMNS)
    check_outputs(out)
    outputs.write_csv(out / "grades.csv", COLUMNS, text)
    outputs.write_csv(out / "students.csv", STUDENTS, by_student(rows))
    (out / "summary.md").unlink(missing_ok=True)          # its comment names the old table
    outputs.write_text(out / "summary.md", kind(out), summary(rows))
    return rows


def filled(rows):
    """Return one row for each student and exercise, in order; of two files the better counts."""
    exercise_names = sorted({row["exercise"] for row in rows if "/" in row["exercise"]})
    best = {}
    for row in rows:
        key = row["student"], row["exercise"]
        if key not in best or VALUES.index(row["passed"]) < VALUES.index(best[key]["passed"]):
            best[key] = row
    for student in {row["student"] for row in rows}:
        for name in exercise_names:
            best.setdefault((student, name), {
                "student": student, "exercise": name, "passed": "not answered",
                "hint": "nothing was handed in", "machine": False})
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


def check_outputs(out):
    """Raise ``ValueError`` if ``grade`` did not write the files in ``out``, or if a teacher has
    changed them since."""
    outputs.check(out / "grades.csv", COLUMNS)
    outputs.check(out / "students.csv", STUDENTS)
    if not (out / "grades.csv").exists() or not (out / "students.csv").exists():
        outputs.check(out / "summary.md", "grades")       # replaces none
    elif not outputs.is_output(out / "summary.md", kind(out)):
        raise ValueError(f"{out}: grades.csv, students.csv or summary.md was changed since "
                         "minifpt wrote them: choose another folder with --out")


def submissions(folder):
    """Return [(student, path)] of a folder, in order."""
    files = []
    for path in sorted([*folder.rglob("*.ipynb"), *folder.rglob("*.py")]):
        parts = path.relative_to(folder).parts
        if any(part.startswith((".", "__")) for part in parts) or not path.is_file():
            continue                                      # checkpoints of Jupyter, caches
        if "solutions" in parts[:-1]:
            continue                                      # written by ``minifpt lessons``
        if path.suffix == ".py" and path.name.startswith("test_"):
            continue                                      # written by ``minifpt new``
        student = path.suffix == ".ipynb" and parts_of(path)[0]
        files.append((parts[0] if len(parts) > 1 else student or path.stem, path))
    return files


def graded(path, folder, seconds, seed):
    """Return the rows of a submission, without the student: one for each exercise that the file
    should answer, even if the file is damaged."""
    where = [str(path.absolute()), str(folder.absolute()), seed]
    limits = {"quiet": max(1.0, seconds / 4), "most": seconds}
    expected = expected_exercises(path)
    work = own_work if path.suffix == ".py" else notebook_work
    rows, lost = [], ""
    for result in apart(f"{__name__}:{work.__name__}", *where, **limits):
        status, hint = result.get("status"), result.get("lost") or result.get("hint", "")
        if result["name"]:
            rows.append({"exercise": result["name"], "hint": hint,
                         "passed": {"passed": "yes", "not answered yet": "not answered"}.get(
                             status, "no"),
                         "machine": "lost" in result or bool(MACHINE.match(hint))})
        else:                                             # the file as a whole, or its rest
            lost = hint
    names = {row["exercise"] for row in rows}
    missing = [name for name in expected if name not in names]
    if lost and not missing:
        missing = [path.name]
    return rows + [{"exercise": name, "passed": "no", "hint": lost, "machine": True}
                   for name in missing if lost]


def expected_exercises(path):
    """Return the exercises, ``NN/name`` or ``own/name``, that a file of this name should answer."""
    if path.suffix == ".py":
        try:
            names = {n.name for n in ast.walk(ast.parse(path.read_bytes()))
                     if isinstance(n, ast.FunctionDef)}
        except (ValueError, SyntaxError, RecursionError):
            names = set(own.FUNCTIONS)                    # begun with ``minifpt new``
        return [f"own/{name}" for name in own.FUNCTIONS] if names & set(own.FUNCTIONS) else []
    lesson = parts_of(path)[1]
    exercises._load()
    return [f"{lesson}/{name}" for name in exercises_of(lesson)]


def parts_of(path):
    """Return (student, lesson) of a notebook's name, ``STUDENT_NN_name``: the student is ``None``
    in ``NN_name``, the lesson ``--`` where there are no two digits.  Of several numbers the last
    one is the lesson's: a student may be called ``group_07``."""
    match = re.fullmatch(r"(\d\d)(_.*)?|(.+)_(\d\d)(_.*)?", Path(path).stem)
    return (match[3], match[1] or match[4]) if match else (None, "--")


def exercises_of(lesson):
    """Return the names of a lesson's exercises."""
    return [name for name, function in exercises.EXERCISES.items()
            if function.__module__.endswith(f"lesson_{lesson}")]


def plain(value):
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value


# ------------------------------------------------------------------- in the other process


def own_work(path, others, seed, skip):
    """Check each function of a functional file; for ``apart``."""
    copy = Path.cwd() / Path(path).name
    copy.write_bytes(Path(path).read_bytes())             # the folder it is in will be closed
    try:
        names = {n.name for n in ast.parse(copy.read_bytes()).body
                 if isinstance(n, ast.FunctionDef)}
    except (ValueError, SyntaxError):
        names = set(own.FUNCTIONS)                        # own.work says what is wrong
    if not names & set(own.FUNCTIONS):
        yield {"name": "", "lost": "It has no function of those that 'minifpt new' writes."}
        return
    close(others)
    for row in own.work(str(copy), seed, [name.removeprefix("own/") for name in skip]):
        yield {key: f"own/{value}" if key in ("name", "begin") and value else value
               for key, value in row.items()}


def notebook_work(path, others, seed, skip):
    """Check each exercise of a notebook; for ``apart``."""
    exercises._load()
    yield {"begin": ""}
    lesson = parts_of(path)[1]
    try:
        statements, unread = read_cells(path)
    except (ValueError, OSError) as e:
        yield {"name": "", "lost": str(e)}
        return
    calls = checks(statements)
    names = exercises_of(lesson) or [name for name in calls if name in exercises.EXERCISES]
    if not names:
        yield {"name": "", "lost": "It holds no exercise: expected a notebook of a lesson, named "
                                   "NN_name.ipynb or STUDENT_NN.ipynb."}
        return
    close(others)
    for name in names:
        if f"{lesson}/{name}" not in skip:
            yield {"begin": f"{lesson}/{name}"}
            result = answered(name, calls.get(name), statements, unread, seed)
            yield {"name": f"{lesson}/{name}", "status": result.status, "hint": result.hint}


def read_cells(path):
    """Return (statements, unread) of a notebook: the syntax trees of all top-level statements in
    order, and (text, error) of each cell that is not Python."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        cells = ["".join(cell["source"]) for cell in notebook["cells"]
                 if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as e:
        raise ValueError(f"It is not a notebook, or damaged ({one_line(e)}).") from None
    statements, unread = [], []
    for text in cells:
        if text.startswith("%%") and not text.startswith(("%%time", "%%capture")):
            continue                                      # another language
        try:
            statements += parsed(text)
        except (SyntaxError, ValueError, RecursionError) as e:
            unread.append((text, one_line(e)))
    return statements, unread


def parsed(text):
    """Return the statements of a cell.  Lines for Jupyter that are not Python, such as
    ``%time f()``, ``!ls`` and ``np.sum?``, become ``pass``."""
    lines = text.split("\n")
    while True:
        try:
            return ast.parse("\n".join(lines)).body
        except SyntaxError as e:
            i = min(e.lineno or 1, len(lines)) - 1
            line = re.sub(r"^(\s*)([%!?].*|.*\?\s*)$", r"\1pass", lines[i])
            if line == lines[i]:
                raise
            lines[i] = line


def checks(statements):
    """Return {exercise: (expression, end)} of the last ``check("exercise", expression)`` of each.
    The statements before ``end`` had run by then."""
    return {node.args[0].value: (node.args[1], i + 1)
            for i, statement in enumerate(statements) for node in ast.walk(statement)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"
            and len(node.args) == 2 and isinstance(node.args[0], ast.Constant)}


def answered(name, call, statements, unread, seed):
    """Run the statements that an answer needs, then examine it; return the result.

    ``call`` is its value of :func:`checks`, ``None`` where no ``check`` has the answer."""
    expression, end = call or (ast.Name(name, ast.Load()), None)
    namespace, failed = {"__name__": "notebook"}, ""
    for statement in needed(expression, statements[:end]):
        try:
            exec(compile(ast.Module([statement], []), "notebook", "exec"), namespace)
        except Exception as e:
            failed = failed or f" Before that, '{ast.unparse(statement):.60}' raised {one_line(e)}."
    try:
        answer = eval(compile(ast.Expression(ast.fix_missing_locations(expression)), "notebook",
                              "eval"), namespace)
    except Exception as e:
        broken = [f"The cell of {name} is not Python: {error}." for text, error in unread
                  if re.search(rf"\b{name}\b", text)]
        why = broken[0] if broken else "" if isinstance(e, NameError) and not failed else (
            f"It raised {one_line(e)}.{failed}")
        return exercises.Result(name, "not right yet" if why else "not answered yet", why)
    result = exercises.examine(name, answer, seed)
    if failed and result.status != "passed":
        result.hint += failed
    return result


def needed(expression, statements):
    """Return the statements that an expression depends on, in order: those that define or change a
    name that it reads, or that one of these statements reads, and so on."""
    parts = [names_of(statement) for statement in statements]
    modules = set().union(*(gives for statement, (gives, _, _) in zip(
        statements, parts, strict=True) if isinstance(statement, (ast.Import, ast.ImportFrom))))
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    chosen = set()
    while True:
        more = {i for i, (gives, changes, _) in enumerate(parts)
                if (gives | changes - modules) & names or "*" in gives}
        if more == chosen:
            return [statements[i] for i in sorted(chosen)]
        chosen = more
        names = names.union(*(parts[i][2] for i in chosen))


@functools.cache
def names_of(statement):
    """Return the names that a top-level statement defines, the names that it changes, as in
    ``a.append(1)``, and the names that it reads."""
    gives, changes, reads = set(), set(), set()
    table = symtable.symtable(ast.unparse(statement), "notebook", "exec")
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            gives.add(symbol.get_name())
        if symbol.is_referenced():
            reads.add(symbol.get_name())
    inner = table.get_children()
    while inner:
        child = inner.pop()
        reads |= {s.get_name() for s in child.get_symbols() if s.is_global()}
        inner += child.get_children()
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        gives.add("*")
    if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        changes |= {root(node.value.func) for node in ast.walk(statement)
                    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)}
    changes |= {root(node) for node in ast.walk(statement)             # a[0] = 1, a.b = 1
                if isinstance(node, (ast.Attribute, ast.Subscript))
                and isinstance(node.ctx, (ast.Store, ast.Del))}
    return gives, changes - {None}, reads


def root(node):
    """Return the name ``a`` of ``a.b[0].c``; ``None`` if there is none, and for ``a`` itself."""
    name = getattr(node, "value", None)
    while isinstance(name, (ast.Attribute, ast.Subscript)):
        name = name.value
    return getattr(name, "id", None)


# ------------------------------------------------------------------------------ the summary


def summary(rows):
    """Return a page in Markdown: the students, the hardest exercises, the commonest mistakes."""
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
    lines = ["# What the class did", "", f"Students: {len(students)}. {NOTE}", "",
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
    return "\n".join(lines + rest(len(common))) + "\n"


def rest(n):
    """Return a line that counts the rows which a table leaves out."""
    return ["", f"And {n - ROWS} more, in grades.csv."] if n > ROWS else []


def general(hint):
    """Return a hint without its numbers, so that two students with one mistake have one hint."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", hint)


def cell(text):
    """Return a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:200]
