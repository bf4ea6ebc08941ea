"""The reader's own ``functional.py``: stubs to write, their check, and training on them.

    minifpt new mine.py --lesson 3       append the functions that lesson 3 asks for
    minifpt new mine.py                  append all functions that the file lacks
    minifpt check mine.py                what is done, what is wrong, what is next
    with using("mine.py"): ...           the library runs what is written in it
"""

import ast
import functools
import hashlib
import inspect
import io
import re
import textwrap
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from .. import fast, tracing
from .. import functional as F
from ..files import one_line, outputs, read_text, save_text
from ..gradients.examples import examples
from ..guards import checked_form
from ..plugins import run_file
from .engine import NOT_WRITTEN, PASSED, WRONG, limited, lines_of
from .lesson import lessons_folder
from .operations import examine, learned

# lesson -> the functions that it asks for.
LESSONS = {1: "linear linear_backward", 2: "softmax softmax_backward cross_entropy_backward",
           3: "layer_norm layer_norm_backward", 4: "positions positions_backward attention",
           5: "attention_backward", 6: "gelu gelu_backward", 7: "last_tokens last_tokens_backward",
           10: "embedding embedding_backward unembedding unembedding_backward",
           15: "lstm lstm_backward",
           21: "rms_norm rms_norm_backward silu silu_backward multiply multiply_backward rope "
               "rope_backward"}
LAST = 18                                                 # the lesson of all other functions
OPERATIONS = [f.__name__ for pair in tracing.OPERATIONS.values() for f in pair]
# The reader's functions in the order of the lessons -> the lesson.
FUNCTIONS = {name: lesson for lesson, names in LESSONS.items() for name in names.split()}
FUNCTIONS = dict(sorted(({name: LAST for name in OPERATIONS} | FUNCTIONS).items(),
                        key=lambda item: (item[1], [*FUNCTIONS, *OPERATIONS].index(item[0]))))
INTRODUCTION = '''"""My own functions, which minifpt runs instead of its own.

    minifpt check {file}                        what is done, what is wrong, what is next
    minifpt train bit-xor --functional {file}   train on what is written

Write the bodies, and remove the lines with NotImplementedError.  Where a function is not written,
the library's runs, also where your functions call it.

``need`` may be left alone: compute every gradient, and keep what all of them read.

Keep in each slot of a cache what its name says: while you have written only one function of a
pair, the library's other one reads your cache, or writes the one that yours reads.  Once both are
yours, keep what you like.
"""

'''
IMPORTS = """import math
from collections import namedtuple
from functools import lru_cache

import numpy as np

from minifpt.guards import shapes
"""
# function -> a comment in its stub.
NOTES = {"attention": "Only relative positions and windows pass a bias: you may leave it out.",
         "attention_backward": "The fourth gradient is dbias: None where there is no bias.",
         "dropout": "Draw the mask from rng in any way."}


# --------------------------------------------------------------------------- the stubs


def functions_of(text):
    """Return {name: AST} of the functions of a file's text."""
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def new(path, lesson=None):
    """Append stubs of the functions that a lesson asks for to a file, which need not exist, without
    the formulas that the lesson derives; without a lesson, of all functions, with their formulas.

    What is in the file stays, and a function that it has gets no stub.  Returns their names."""
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected the name of a Python file, such as mine.py")
    if lesson is not None and lesson not in FUNCTIONS.values():
        raise ValueError(f"lesson {lesson} asks for no function: expected one of "
                         f"{', '.join(map(str, sorted({*FUNCTIONS.values()})))}")
    outputs.check(path, force=True)
    text = read_text(path) if path.exists() else ""
    known = {*re.findall(r"(?m)^(?:def |class )?(\w+)(?= ?=|\(|:)", text)}
    names = [name for name, n in FUNCTIONS.items() if lesson in (n, None) and name not in known]
    if names:
        if IMPORTS not in text:
            text += INTRODUCTION.format(file=path.name) * (not text) + IMPORTS
        save_text(path, f"{text.rstrip()}\n{stubs(names, known, is_bare=lesson is not None)}")
    return names


def stubs(names, known, is_bare):
    """Return stubs of functions of ``functional``, each below the caches and helpers that its body
    may use, unless these are ``known``.  In bare stubs a backward pass has no formulas."""
    source = inspect.getsource(F)
    lines, nodes, text = source.splitlines(), functions_of(source), ""
    constants = {n.targets[0].id: n for n in ast.parse(source).body if isinstance(n, ast.Assign)}
    helpers = {name: n for name, n in (constants | nodes).items() if name not in FUNCTIONS}

    def helpers_of(node):
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)
                 and isinstance(n.ctx, ast.Load)} & {*helpers}
        return names.union(*(helpers_of(helpers[name]) for name in names))

    for name in names:
        op, node = name.removesuffix("_backward"), nodes[name]
        helper_names = helpers_of(node) | helpers_of(nodes[op])
        text += "".join(f"\n\n{excerpt(lines, helper)}" for other, helper in helpers.items()
                        if other in helper_names.difference(known))
        known = helper_names.union(known)
        last = node.body[0]                               # the docstring
        task = [f'    """{task_of(op)}"""'] if is_bare and name != op else (
            lines[last.lineno - 1:last.end_lineno])
        note = [f"    # {NOTES[name]}"] if name in NOTES else []
        stub = f'    raise NotImplementedError("lesson {FUNCTIONS[name]}")'
        text += "\n\n" + excerpt(lines, node, last.lineno - 1) + "\n".join([*task, *note, stub, ""])
    return text


def excerpt(lines, node, end=None):
    """Return the lines of a definition, with its decorators, up to the line ``end``."""
    start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join([*lines[start - 1:end or node.end_lineno], ""])


def task_of(op):
    """Describe what a backward pass returns, without a formula: its inputs and their shapes."""
    names = learned(op, examples(op, np.random.default_rng(0))[0][0])
    return (f"Return {', '.join(f'd{n}' for n in names)}, of the shape{'s' * (len(names) > 1)} of "
            f"{', '.join(names)}; dy has the shape of y.")


def put(path, *functions):
    """Replace functions of a file by those of the same name in ``functions``, which are functions
    of a notebook or of another file.  The path of a file stands for all of its functions that are
    still stubs here."""
    path = Path(path)
    for function in functions:
        text = path.read_text(encoding="utf-8-sig")
        nodes = functions_of(text)
        if isinstance(function, (str, Path)):
            source = Path(function).read_text(encoding="utf-8-sig")
            new = {name: ast.get_source_segment(source, node)
                   for name, node in functions_of(source).items()
                   if name in nodes and is_stub(nodes[name])}
        else:
            source = inspect.getsource(function)
            new = {function.__name__: ast.get_source_segment(source, ast.parse(source).body[0])}
        if missing := set(new) - set(nodes):
            raise ValueError(f"{path}: it has no function {', '.join(missing)}")
        lines = text.removesuffix("\n").split("\n")       # splitlines would cut at form feeds
        for name in sorted(new, key=lambda name: -nodes[name].lineno):
            lines[nodes[name].lineno - 1:nodes[name].end_lineno] = new[name].splitlines()
        save_text(path, "\n".join(lines) + "\n")


def solution():
    """Return the path of an answer to the skeleton, one of the lessons' solutions."""
    return lessons_folder() / "solutions" / "18_functional.py"


# ----------------------------------------------------------------------------- loading


class ReaderFile:
    """A reader's file that was run: ``functions`` {name: function} are the written ones,
    ``settings`` are for a run's ``config.json``, ``calls`` counts the calls within ``using``,
    ``wrong`` holds the results of the wrong functions, and ``stub_lines`` {name: line} those of a
    NotImplementedError in a function that has a body, too."""

    def __init__(self, path, text):
        self.path = Path(path)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.settings = {"functional": str(path), "fingerprint": {"functions": digest}}
        self.calls, self.functions, self.wrong, self.stub_lines = Counter(), {}, [], {}


def load(path):
    """Run a reader's file; return its :class:`ReaderFile`.  Raises ``ValueError`` of one line for a
    file that cannot be read, or that raises an error, and ``FileNotFoundError``."""
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected a Python file, such as mine.py. A notebook's own cells "
                         "check its exercises")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file; 'minifpt new {path}' makes it")
    text = read_text(path)
    reader, module = ReaderFile(path, text), run_file(path.resolve())
    nodes = functions_of(text)
    stubs = {name: is_stub(node) for name, node in nodes.items()}
    reader.stub_lines = {name: s.lineno for name, node in nodes.items()
                         if len(body := body_of(node)) > 1 for s in body if is_stub_line(s)}
    for name, ours in vars(F).items():
        theirs = vars(module).get(name)
        if name in FUNCTIONS and callable(theirs) and theirs is not ours and not stubs.get(name):
            reader.functions[name] = theirs
        elif name in FUNCTIONS or getattr(theirs, "_fields", 0) == getattr(ours, "_fields", None):
            setattr(module, name, ours)                   # the library's functions read its caches
    return reader


def is_stub(function):
    """Return whether a function's body, an AST, is still to be written."""
    body = body_of(function)
    return not body or any(
        is_stub_line(s)
        or isinstance(s, (ast.Assign, ast.Return)) and any(         # dx = ..., return ...
            isinstance(v, ast.Constant) and v.value is ... for v in getattr(
                s.value, "elts", [s.value])) for s in body)


def body_of(function):
    """Return the statements of a function, an AST, but its docstring and ``pass``."""
    return [s for s in function.body if not (isinstance(s, ast.Pass) or (
        isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)))]


def is_stub_line(statement):
    """Return whether a statement raises ``NotImplementedError``."""
    return isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)


# ------------------------------------------------------------------------------ running


class Raised(ValueError):
    """A function raised while it stood in for another; the text says whose.  A notebook shows the
    text alone."""

    def _render_traceback_(self):                         # asked for by IPython
        return [str(self)]


@contextmanager
def using(path, skip_check=False, names=FUNCTIONS, checked=None):
    """Let the library run the functions of a reader's file instead of its own within the ``with``,
    which gives the :class:`ReaderFile`.  For functions that are not written, the functions of
    ``functional`` run, never the fast ones.

    Checks the file first, unless ``checked`` has its :func:`results`, and raises ``ValueError`` for
    a wrong function, unless ``skip_check``.  If a function that is not one of ``names`` is wrong,
    the library's runs instead, and its partner's.
    Other threads run the library's functions.  A trace may be opened inside the ``with``.
    """
    checked = checked or results(path)
    mistakes = [r for r in checked if r.status == WRONG and r.name in names]
    if mistakes and not skip_check:
        raise ValueError(f"{path}: {mistakes[0].name} is wrong. {mistakes[0].hint}")
    reader = load(path)
    reader.wrong = mistakes
    for r in checked:
        if r.status == WRONG and r.name not in names:
            op = r.name.removesuffix("_backward")
            for name in {op, f"{op}_backward"}.difference(names):
                reader.functions.pop(name, None)
        if r.status == NOT_WRITTEN and r.name in reader.functions:
            raise ValueError(f"{path}: {r.name} returns nothing. Write it, or let it raise "
                             "NotImplementedError, so that the library's runs")
    stand_ins = {}
    for pair in tracing.OPERATIONS.values():
        is_half = sum(f.__name__ in reader.functions for f in pair) == 1
        stand_ins |= {function: _running(reader, function, is_half) for function in pair}
    with fast.standing_in(stand_ins):
        yield reader


def _running(reader, simple, is_half):
    """Return the function that the library runs: the reader's if it is written, else ``simple``,
    that of ``functional``.  Where the reader wrote only half of a pair, ``is_half``, the caches
    keep the values that any gradient reads."""
    name, signature = simple.__name__, inspect.signature(simple)
    function = checked_form(reader.functions.get(name, simple))
    need = signature.parameters.get("need")

    @functools.wraps(function)
    def run(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.arguments = {n: value for n, value in bound.arguments.items() if value is not None
                           or signature.parameters[n].default is not None}    # a file may lack it
        if need and is_half:
            bound.arguments["need"] = (True,) * len(need.default)
        if name in reader.functions:
            reader.calls[name] += 1
        try:
            result = function(*bound.args, **bound.kwargs)
            if name.endswith("_backward"):
                return result
            y, cache = result
            return y, cache
        except Raised:
            raise
        except Exception as e:
            if name in reader.functions:
                code = getattr(inspect.unwrap(function), "__code__", None)
                line = lines_of(e, code)[1] or getattr(code, "co_firstlineno", 0)
                raise Raised(f"{reader.path}, line {line}: {name} raised {one_line(e)}") from e
            if not reader.calls:                             # nothing of the reader's has run yet
                raise
            raise Raised(f"{reader.path}: the library's {name} raised {one_line(e)}, on what your "
                         "functions returned") from e
    run.__name__ = name
    return run


# ----------------------------------------------------------------------------- checking


def results(path, seed=None):
    """Return a :class:`Result` for each function of a reader's file, in the order of the lessons; a
    function that computes longer than ``engine.SECONDS`` is wrong.  Raises as :func:`load` does."""
    with limited():
        reader = load(path)
    checked = []
    for name in FUNCTIONS:
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
            result = examine(reader.functions, name, seed)
        if name in reader.stub_lines:
            result.hint = f"Its line {reader.stub_lines[name]} still raises NotImplementedError."
        if result.status != PASSED and (text := printed.getvalue()[:1000]):
            text = re.sub(r"\S*/(?=\w+\.py\b)", "", text)     # without folders
            result.hint += f" It printed: {textwrap.shorten(text, 80, placeholder=' ...')}"
        checked.append(result)
    return checked


def print_results(checked):
    """Print which functions are done or wrong, a line for each lesson with those not written, and
    the next function.  Returns how many functions are wrong."""
    for lesson in sorted({*FUNCTIONS.values()}):
        rows = [r for r in checked if FUNCTIONS[r.name] == lesson]
        for r in rows:
            if r.status != NOT_WRITTEN or r.hint:
                verdict = {PASSED: "done", WRONG: "wrong. "}.get(r.status, "not written. ")
                print(f"lesson {lesson:2}  {r.mark} {r.name}: {verdict}{r.hint}")
        if missing := [r for r in rows if r.status == NOT_WRITTEN and not r.hint]:
            print(f"lesson {lesson:2}  {missing[0].mark} not written: "
                  f"{', '.join(r.name for r in missing)}")
    mistakes = [r for r in checked if r.status == WRONG]
    last = max((i for i, r in enumerate(checked) if r.status != NOT_WRITTEN), default=-1)
    unwritten = [r for r in checked[last + 1:] + checked if r.status == NOT_WRITTEN]
    name = next((r.name for r in mistakes + unwritten), "")    # one left out comes at the end
    n_done = sum(r.status == PASSED for r in checked)
    print(f"{n_done} of {len(checked)} done, {len(mistakes)} wrong. " + (
        f"Next: {name}, lesson {FUNCTIONS[name]}." if name else "All of it is yours."))
    return len(mistakes)
