"""Check whole files: a functions file that ``minifpt new`` began, or a notebook of a lesson.

The file runs in a process of its own: a loop or an exit in it ends that process, and a new one
checks the other functions.  This is not a sandbox: the file can do whatever its user can do.
"""

import ast
import csv
import dis
import faulthandler
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ..files import one_line, read_json
from . import operations, own
from .engine import (
    EXERCISES,
    NOT_WRITTEN,
    PASSED,
    SECONDS,
    WRONG,
    Result,
    examine,
    load_exercises,
)

ROOT = str(Path(__file__).resolve().parents[2])           # where minifpt is imported from
CHILD = (f"import sys; sys.path.insert(0, {ROOT!r}); from minifpt.exercises import checking; "
         "checking.serve()")
COLUMNS = ["file", "right", "wrong", "missing", "wrong_functions", "error"]


def results(path):
    """Return a :class:`Result` for each function of a file, in a list, and {name: lesson}.

    A function that ends its process, or computes longer than ``SECONDS``, is wrong.  Raises
    ``ValueError`` or ``FileNotFoundError`` if the file cannot be run."""
    path = Path(path)
    if not path.exists():
        new = f"; 'minifpt new {path}' makes it" * (path.suffix == ".py")
        raise FileNotFoundError(f"{path}: there is no such file{new}")
    lessons, verdicts, stuck = {}, {}, []
    while not lessons or len(verdicts) < len(lessons):
        running = None
        for kind, value in messages(path, [*verdicts], stuck):
            if kind == "lessons":
                lessons = value
            elif kind == "running":
                running = value
            elif kind == "result":
                verdicts[running] = Result(running, *value)
            elif kind == "lost" and running:
                verdicts[running] = Result(running, WRONG, value)
                stuck.append(running)
            elif kind == "lost":
                raise ValueError(f"{path}: {value}")
            elif kind == "error":
                raise ValueError(value)
    return [verdicts[name] for name in lessons], lessons


def messages(path, finished, stuck):
    """Start a process that checks a file but for the ``finished`` functions, and yield its messages
    (kind, value): those of :func:`serve`, and "lost", with the reason, if it ends too early."""
    settings = json.dumps([str(path), SECONDS, finished, stuck])
    kind, log = None, ""
    # -P: a file in this folder, such as random.py, must not replace a library.
    with subprocess.Popen([sys.executable, "-P", "-c", CHILD, settings], text=True,
                          encoding="utf-8", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        for line in process.stdout:
            if log or not line.startswith("["):           # faulthandler says where it stood
                log += line
                continue
            kind, value = json.loads(line)
            yield kind, value
    code, stopped = process.returncode, getattr(signal, "SIGPROF", None)
    if log or stopped and code == -stopped:
        yield "lost", f"It did not end within {SECONDS:g} s: is there a loop?"
    elif kind not in ("finished", "error"):
        end = f"with exit status {code}" if code >= 0 else f"by signal {-code}"
        yield "lost", f"It ended Python, {end}."


def serve():
    """Do the work of the other process: check a file, and send messages through standard output.
    An alarm ends a loop, also within C code, after so many seconds of the processor since the last
    message.  An answer that waits is ended by the watchdog of ``faulthandler``, much later."""
    path, seconds, finished, stuck = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)          # for what C code prints

    def send(kind, value=None):
        print(json.dumps([kind, value]), file=channel, flush=True)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)
        faulthandler.dump_traceback_later(10 * seconds, exit=True, file=channel)

    send("started")
    load = load_notebook if path.endswith(".ipynb") else load_functions
    try:
        with redirect_stdout(io.StringIO()):
            lessons, judge = load(path, stuck)
    except (ValueError, OSError) as e:
        send("error", str(e))
        os._exit(0)
    send("lessons", lessons)
    for name in lessons:
        if name not in finished:
            send("running", name)
            with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
                result = judge(name)
            if result.status != PASSED and (text := printed.getvalue()):
                text = re.sub(r"\S*/(?=\w+\.py\b)", "", text)         # without folders
                result.hint += f" It printed: {textwrap.shorten(text, 80, placeholder=' ...')}"
            send("result", [result.status, result.hint])
    send("finished")
    os._exit(0)                                           # no atexit function, no other thread


def load_functions(path, stuck):
    """Run a file of functions; return {name: lesson} and the function that checks a name.  Its
    ``stuck`` functions, which ended the process before, are not called."""
    functions = own.load(path).functions
    functions = {name: f for name, f in functions.items() if name not in stuck}
    return own.FUNCTIONS, lambda name: operations.examine(functions, name)


# ------------------------------------------------------------------------------ notebooks


def load_notebook(path, stuck):
    """Read a notebook; return {exercise: lesson} of the lessons whose exercises it checks, or else
    defines, without their open ones, and the function that checks an exercise.  Only what the
    exercise needs is run."""
    cells = code_cells(path)
    statements, unreadable = statements_of(cells)
    load_exercises()
    lesson_of = {name: exercise.lesson for name, exercise in EXERCISES.items()}
    checked = re.findall(r'\b(?:check|require)\("(\w+)"', "\n".join(cells))
    functions = [s.name for s in statements if isinstance(s, ast.FunctionDef)]
    names = {*EXERCISES} & {*checked} or {*EXERCISES} & {*functions, *unreadable}
    if not names:
        raise ValueError(f"{path}: no cell defines an exercise of a lesson, such as bias_gradient")
    lessons = {lesson_of[name] for name in names}

    def judge(name):
        if name in unreadable:
            return Result(name, WRONG, f"Its cell is not Python: {unreadable[name]}.")
        namespace, errors = {"__name__": "notebook"}, []
        ends = [i for i, s in enumerate(statements) if f"check('{name}'," in ast.unparse(s)]
        for statement in needed(name, statements[:ends[-1]] if ends else statements):
            try:
                exec(code_of(statement), namespace)
            except Exception as e:
                errors.append(f" Before that, '{ast.unparse(statement):.60}' raised {one_line(e)}.")
        result = examine(name, namespace.get(name))
        if result.status != PASSED:
            result.hint += "".join(errors[:1])
        return result
    return {name: n for name, n in lesson_of.items()
            if n in lessons and not EXERCISES[name].is_open}, judge


def code_cells(path):
    """Return the texts of a notebook's cells of code."""
    try:
        return ["".join(cell["source"]) for cell in read_json(path)["cells"]
                if cell["cell_type"] == "code"]
    except (KeyError, TypeError) as e:
        raise ValueError(f"{path}: not a notebook ({one_line(e)})") from None


def statements_of(cells):
    """Return the statements of cells, as syntax trees, and {function: error} of those in cells that
    are not Python."""
    statements, unreadable = [], {}
    for text in cells:
        text = re.sub(r"^[%!].*|^[\w.]+\?+$", "pass", text, flags=re.M)  # Jupyter's own lines
        try:
            tree = ast.parse(text)
            compile(tree, "notebook", "exec")             # a "return" outside of a function
        except (SyntaxError, ValueError, RecursionError) as e:
            error = getattr(e, "msg", None) or one_line(e)
            unreadable |= dict.fromkeys(re.findall(r"^def (\w+)", text, re.M), error)
        else:
            statements += tree.body
            for name in set().union(*map(defined, tree.body)):
                unreadable.pop(name, None)                # a later cell has it right
    return statements, unreadable


def code_of(statement):
    """Return the code object of a statement."""
    return compile(ast.Module([statement], []), "notebook", "exec")


def defined(statement):
    """Return the names that a statement at the top level defines."""
    return {line.argval for line in dis.get_instructions(code_of(statement))
            if line.opname == "STORE_NAME"}


def names_in(code):
    """Return the names that a code object, or one within it, reads or defines outside itself."""
    return {*code.co_names}.union(*(names_in(c) for c in code.co_consts if hasattr(c, "co_names")))


def needed(name, statements):
    """Return the statements that the definition of a name needs: those that define it, those that
    define a name in these, and so on, and all imports."""
    names, chosen = {name}, []
    while True:
        more = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))
                or defined(s) & names]
        if more == chosen:
            return chosen
        chosen = more
        names = names.union(*(names_in(code_of(s)) for s in chosen))


# ---------------------------------------------------------------------------------- tables


def append_row(table, file, checked, error=""):
    """Append a row on a file to a CSV, which begins with its columns."""
    counts = [sum(r.status == status for r in checked) for status in (PASSED, WRONG, NOT_WRITTEN)]
    mistakes = " ".join(r.name for r in checked if r.status == WRONG)
    with open(table, "a", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        if f.tell() == 0:
            writer.writerow(COLUMNS)
        writer.writerow([file, *counts, mistakes, error])
