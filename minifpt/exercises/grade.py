"""Submitted notebooks and functional files, run and checked: a table, and what the class gets
wrong.

It is for learning, not for exams: the solutions ship with the lessons, and what runs here could
forge its result.

A submission is ``STUDENT/NN_name.ipynb`` or ``STUDENT_NN.ipynb`` (``STUDENT_NN_name.ipynb``), a
notebook of lesson NN, or ``STUDENT/NAME.py`` or ``STUDENT.py``, a file that ``minifpt new`` began.

Of a notebook only a part is run: the imports, the functions that are given to ``check``, and what
these refer to, step by step.  So a cell that trains or draws is left out unless an answer needs
it.  Each file runs in a process of its own (see ``apart``), which is closed (see ``closed``): with
limits, without network, without another process, and without a look at the folder of submissions.
"""

import ast
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
    """Check all submissions in ``folder``; write ``out``/grades.csv and ``out``/summary.md.

    seconds   the most that one file may take; a quarter of it for each exercise.
    seed      the numbers of the checks, the same for all.

    Returns the rows, a list of dicts.  Raises ``ValueError`` where there is nothing to check.
    """
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    found = submissions(folder)
    if not found:
        raise ValueError(f"{folder}: it holds no submission: expected STUDENT/NN_name.ipynb, "
                         "STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py")
    check_outputs(out)
    rows = []
    for student, path in progress_bar(found, desc="submissions", unit="file", progress=progress):
        rows += [{"student": student} | row for row in graded(path, folder, seconds, seed)]
    rows.sort(key=lambda row: row["student"])             # those of a student as they were found
    text = csv_text([{k: plain(v) for k, v in row.items()} for row in rows], COLUMNS)
    check_outputs(out)
    outputs.write_csv(out / "grades.csv", COLUMNS, text)
    (out / "summary.md").unlink(missing_ok=True)          # its comment names the old table
    outputs.write_text(out / "summary.md", kind(out), summary(rows))
    return rows


def kind(out):
    """The kind of output that ``summary.md`` is: it names the CRC of its ``grades.csv``."""
    return f"grades {zlib.crc32((out / 'grades.csv').read_bytes()):08x}"


def check_outputs(out):
    """Raise a ``ValueError`` where ``out`` holds what ``grade`` did not write, or a table in which
    a teacher has written since."""
    outputs.check(out / "grades.csv", COLUMNS)
    if not (out / "grades.csv").exists():
        outputs.check(out / "summary.md", "grades")       # replaces none
    elif not outputs.is_output(out / "summary.md", kind(out)):
        raise ValueError(f"{out}: grades.csv or summary.md was changed since minifpt wrote them: "
                         "choose another folder with --out")


def submissions(folder):
    """[(student, path)] of a folder, in order."""
    found = []
    for path in sorted([*folder.rglob("*.ipynb"), *folder.rglob("*.py")]):
        parts = path.relative_to(folder).parts
        if any(part.startswith((".", "__")) for part in parts) or not path.is_file():
            continue                                      # checkpoints of Jupyter, caches
        alone = re.fullmatch(r"(.+?)_\d\d(_.*)?", path.stem) if path.suffix == ".ipynb" else None
        found.append((parts[0] if len(parts) > 1 else alone[1] if alone else path.stem, path))
    return found


def graded(path, folder, seconds, seed):
    """The rows of one submission, without the student."""
    def row(exercise, passed, hint=""):
        return {"exercise": exercise, "passed": "yes" if passed else "no", "hint": hint}
    where = [str(path.absolute()), str(folder.absolute()), seed]
    limits = {"quiet": max(1.0, seconds / 4), "most": seconds}
    work = own_work if path.suffix == ".py" else notebook_work
    return [row(r["name"] or path.name, r.get("status") == "passed",
                r.get("lost") or (r["hint"] or r["status"]) * (r["status"] != "passed"))
            for r in apart(f"{__name__}:{work.__name__}", *where, **limits)]


def plain(value):
    """A text that no spreadsheet takes for a formula."""
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
    lesson = re.search(r"(?:^|_)(\d\d)(?:_|$)", Path(path).stem)
    lesson = lesson[1] if lesson else "--"
    try:
        statements, unread = read_cells(path)
    except (ValueError, OSError) as e:
        yield {"name": "", "lost": str(e)}
        return
    calls = checks(statements)
    names = [name for name, function in exercises.EXERCISES.items()
             if function.__module__.endswith(f"lesson_{lesson}")]
    names = names or [name for name in calls if name in exercises.EXERCISES]
    if not names:
        yield {"name": "", "lost": "There is no exercise in it: expected a notebook of a lesson, "
                                   "named NN_name.ipynb or STUDENT_NN.ipynb."}
        return
    close(others)
    for name in names:
        if f"{lesson}/{name}" not in skip:
            yield {"begin": f"{lesson}/{name}"}
            result = answered(name, calls.get(name), statements, unread, seed)
            yield {"name": f"{lesson}/{name}", "status": result.status, "hint": result.hint}


def read_cells(path):
    """(statements, unread) of a notebook: the syntax trees of all top-level statements in order,
    and (cell's number, its text, the error) of cells that are not Python."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        cells = ["".join(cell["source"]) for cell in notebook["cells"]
                 if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as e:
        raise ValueError(f"It is not a notebook, or damaged ({one_line(e)}).") from None
    statements, unread = [], []
    for number, text in enumerate(cells, 1):
        lines = [re.sub(r"^(\s*)([%!?].*|.*\?)$", r"\1pass", line) for line in text.splitlines()]
        if text.startswith("%%") and not text.startswith(("%%time", "%%capture")):
            continue                                      # another language
        try:
            statements += ast.parse("\n".join(lines)).body
        except (SyntaxError, ValueError, RecursionError) as e:
            unread.append((number, text, one_line(e)))
    return statements, unread


def checks(statements):
    """{exercise: the expression that the last ``check("exercise", expression)`` was given}."""
    return {node.args[0].value: node.args[1]
            for statement in statements for node in ast.walk(statement)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"
            and len(node.args) == 2 and isinstance(node.args[0], ast.Constant)}


def answered(name, expression, statements, unread, seed):
    """The result of an exercise: what the answer needs is run, then the answer is examined."""
    expression = expression or ast.Name(name, ast.Load())
    namespace, failed = {"__name__": "notebook"}, ""
    for statement in needed(expression, statements):
        try:
            exec(compile(ast.Module([statement], []), "notebook", "exec"), namespace)
        except Exception as e:
            failed = failed or f" Before that, '{ast.unparse(statement):.60}' raised {one_line(e)}."
    try:
        answer = eval(compile(ast.Expression(ast.fix_missing_locations(expression)), "notebook",
                              "eval"), namespace)
    except Exception as e:
        broken = [f"Cell {number} is not Python: {error}." for number, text, error in unread
                  if re.search(rf"\b{name}\b", text)]
        why = broken[0] if broken else "" if isinstance(e, NameError) and not failed else (
            f"It raised {one_line(e)}.{failed}")
        return exercises.Result(name, "not right yet" if why else "not answered yet", why)
    result = exercises.examine(name, answer, seed)
    if failed and result.status != "passed":
        result.hint += failed
    return result


def needed(expression, statements):
    """The statements that an expression depends on, in order: those that define or change a name
    which it reads, what these read, and so on."""
    parts = [names_of(statement) for statement in statements]
    modules = set().union(*(gives for statement, (gives, _, _) in zip(
        statements, parts, strict=True) if isinstance(statement, (ast.Import, ast.ImportFrom))))
    wanted = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    taken = set()
    while True:
        more = {i for i, (gives, changes, _) in enumerate(parts)
                if (gives | changes - modules) & wanted or "*" in gives}
        if more == taken:
            return [statements[i] for i in sorted(taken)]
        taken = more
        wanted = wanted.union(*(parts[i][2] for i in taken))


def names_of(statement):
    """Names that a top-level statement defines, that it changes as in ``a.append(1)``, and that
    it reads."""
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
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        changes.add(root(statement.value.func))
    changes |= {root(node) for node in ast.walk(statement)             # a[0] = 1, a.b = 1
                if isinstance(node, (ast.Attribute, ast.Subscript))
                and isinstance(node.ctx, (ast.Store, ast.Del))}
    return gives, changes - {None}, reads


def root(node):
    """The name ``a`` of ``a.b[0].c``; ``None`` for what has none, and for ``a`` itself."""
    name = getattr(node, "value", None)
    while isinstance(name, (ast.Attribute, ast.Subscript)):
        name = name.value
    return getattr(name, "id", None)


# ------------------------------------------------------------------------------ the summary


def summary(rows):
    """A page in Markdown: how many passed what, and the commonest mistakes."""
    students = {row["student"] for row in rows}
    by = {}                                               # exercise -> how each student did
    for row in rows:
        how = ("passed" if row["passed"] == "yes" else
               "blank" if row["hint"] == "not answered yet" else "wrong")
        by.setdefault(row["exercise"], {})[row["student"]] = how
    counted = [(name, *(list(hows.values()).count(how) for how in ("passed", "wrong", "blank")))
               for name, hows in by.items()]
    hardest = sorted(counted, key=lambda row: (row[1] / max(1, row[1] + row[2]), row[0]))
    mistakes = Counter((exercise, hint) for _, exercise, hint in {
        (row["student"], row["exercise"], general(row["hint"])) for row in rows
        if row["passed"] == "no" and row["hint"] != "not answered yet"})
    lines = ["# What the class did", "", f"Students: {len(students)}. {NOTE}", "",
             "## Exercises that not all got right, the hardest first", "",
             "| exercise | passed | not right yet | not answered |", "|---|---|---|---|"]
    hardest = [row for row in hardest if row[2]]
    lines += [f"| {cell(name)} | {passed} | {wrong} | {blank} |"
              for name, passed, wrong, blank in hardest[:ROWS]]
    lines += rest(len(hardest)) + ["", "## The commonest mistakes", ""]
    lines += (["| exercise | what the check said | students |", "|---|---|---|"]
              if mistakes else ["None."])
    common = sorted(mistakes.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"| {cell(name)} | {cell(hint)} | {n} |" for (name, hint), n in common[:ROWS]]
    return "\n".join(lines + rest(len(common))) + "\n"


def rest(n):
    """A line for what a table leaves out."""
    return ["", f"And {n - ROWS} more, in grades.csv."] if n > ROWS else []


def general(hint):
    """A hint without its numbers, so that two students with one mistake have one hint."""
    return re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", hint)


def cell(text):
    """A text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")[:200]
