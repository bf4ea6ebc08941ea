"""The reader's own ``functional.py``: a skeleton of it, its check, and training on it.

    minifpt new mine.py                  write the skeleton; --bare: without the gradients' formulas
    minifpt check mine.py                what is done, what is wrong, what is next
    with using("mine.py"): ...           the library runs what is written in it
"""

import ast
import functools
import hashlib
import inspect
import os
import sys
import types
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .. import fast, tracing
from .. import functional as F
from ..files import one_line, outputs, read_text, save_text
from ..gradients.examples import examples
from ..guards import READERS_MODULE, checked_form
from ..plugins import builtins_for, forget_changed
from .engine import NOT_WRITTEN, PASSED, WRONG, lines_of
from .lesson import lessons_folder
from .operations import examine, learned

# The lesson that asks for each operation, "attention" in two; what is not here is explained in 21.
LESSONS = {"linear": 1, "softmax": 2, "log_sum_exp": 2, "cross_entropy": 2, "layer_norm": 3,
           "positions": 4, "dropout": 4, "attention": 4, "attention_backward": 5, "gelu": 6,
           "last_tokens": 7, "embedding": 10, "unembedding": 10, "bias": 10,
           "lstm": 15}
# The reader's functions in that order -> the lesson; those of no lesson belong to the last.
FUNCTIONS = {name: lesson for op, lesson in
             (LESSONS | {op: 21 for op in tracing.OPERATIONS if op not in LESSONS}).items()
             for name in (op, f"{op}_backward")
             if name in vars(F) and LESSONS.get(name, lesson) == lesson}
INTRODUCTION = '''
# This file is yours.  Write one body after the other, in the order of the lessons that the stubs
# name, and remove the line with NotImplementedError.  As long as a function is not written, the
# library runs its own.
#
#     minifpt check FILE                          what is done, what is wrong, what is next
#     minifpt train bit-xor --functional FILE     train on what is written
#
# ``need`` may be left alone: compute every gradient, and keep what all of them read.
#
# Keep in each slot of a cache what its name says.  Once both halves of a pair are written, the
# cache is your own affair; until then the library's half reads yours, or yours the library's.
#
# ``dropout`` may draw its mask from rng in any way.  Only relative positions and windows pass a
# ``bias`` to ``attention``:
# you may leave that argument out.
'''
STUCK = """#
# Stuck?  ``minifpt new OTHER.py``, without --bare, writes the formulas of the gradients too.  Their
# derivations are in the lessons that the stubs name.
"""
TEST = '''"""The checks of {name}: run ``pytest`` in this folder."""

from pathlib import Path

import pytest

from minifpt.exercises import own

RESULTS = own.results(Path(__file__).with_name("{name}"))


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_function(result):
    if result.status == own.NOT_WRITTEN:
        pytest.skip("not written yet")
    assert result.status == "passed", result.hint
'''


# ------------------------------------------------------------------------ the skeleton


def functions_of(text):
    """Return {name: AST} of the functions of a file's text."""
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def skeleton(bare=False):
    """Return ``functional.py`` without the bodies of operations and backward passes; caches and
    helpers stay.  With ``bare``, the backward passes have no formulas either."""
    source = inspect.getsource(F)
    lines, first = source.splitlines(), ast.parse(source).body[0]
    for name, node in reversed(functions_of(source).items()):          # line numbers stay right
        if name in FUNCTIONS:
            docstring = lines[node.body[0].lineno - 1:node.body[0].end_lineno]
            if bare and name.endswith("_backward"):
                docstring = [f'    """{task(name.removesuffix("_backward"))}"""']
            lines[node.body[0].lineno - 1:node.end_lineno] = [
                *docstring, f'    raise NotImplementedError("lesson {FUNCTIONS[name]}")']
    lines[first.end_lineno:first.end_lineno] = (INTRODUCTION + STUCK * bare).splitlines()
    return "\n".join(lines) + "\n"


def task(op):
    """Describe what a backward pass returns, without a formula: its inputs and their shapes."""
    names = learned(op, examples(op, np.random.default_rng(0))[0][0])
    return (f"Return {', '.join(f'd{n}' for n in names)}, of the shape{'s' * (len(names) > 1)} of "
            f"{', '.join(names)}; dy has the shape of y.")


def new(path, bare=False, force=False):
    """Write the skeleton to a new file, or with ``force`` instead of a file."""
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected the name of a Python file, such as mine.py")
    outputs.write_text(path, skeleton(bare), force)


def new_test(path):
    """Write ``test_NAME.py`` beside a reader's file, which runs its checks under pytest, unless a
    file of this name exists.  Returns the path, and whether it was written."""
    path = Path(path)
    test = path.with_name(f"test_{path.name}")
    is_new = not os.path.lexists(test)
    if is_new:
        save_text(test, TEST.format(name=path.name))
    return test, is_new


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
    ``settings`` are for a run's ``config.json``, ``calls`` counts the calls within ``using``, and
    ``wrong`` holds the results of the wrong functions."""

    def __init__(self, path, text):
        self.path = Path(path)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.settings = {"functional": str(path), "fingerprint": {"functions": digest}}
        self.calls, self.functions, self.wrong = Counter(), {}, []


def load(path):
    """Run a reader's file; return its :class:`ReaderFile`.  Raises ``ValueError`` of one line for a
    file that cannot be read, or that raises an error."""
    path, text = Path(path), read_text(Path(path))
    try:
        stubs = {name: is_stub(node) for name, node in functions_of(text).items()}
        code = compile(text, str(path), "exec")
    except (ValueError, SyntaxError, RecursionError) as e:
        where = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise ValueError(f"{path}{where}: not Python ({getattr(e, 'msg', None) or one_line(e)})"
                         ) from None
    reader, module = ReaderFile(path, text), types.ModuleType(READERS_MODULE)
    sys.modules[module.__name__] = module                 # as dataclasses expect
    module.__file__ = str(path)
    forget_changed(path.resolve())
    module.__builtins__ = builtins_for(str(path.resolve().parent))
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as e:
        _, line = lines_of(e, code)
        raise ValueError(f"{path}, line {line}: it raised {one_line(e)} when it was run") from None
    for name, ours in vars(F).items():
        theirs = vars(module).get(name)
        if name in FUNCTIONS and callable(theirs) and theirs is not ours and not stubs.get(name):
            reader.functions[name] = theirs
        elif name in FUNCTIONS or getattr(theirs, "_fields", 0) == getattr(ours, "_fields", None):
            setattr(module, name, ours)                   # the library's functions read its caches
    return reader


def is_stub(function):
    """Return whether a function's body, an AST, is still to be written."""
    body = [s for s in function.body if not (isinstance(s, ast.Pass) or (
        isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)))]
    return not body or any(
        isinstance(s, ast.Raise) and "NotImplementedError" in ast.unparse(s)
        or isinstance(s, (ast.Assign, ast.Return)) and any(         # dx = ..., return ...
            isinstance(v, ast.Constant) and v.value is ... for v in getattr(
                s.value, "elts", [s.value])) for s in body)


# ------------------------------------------------------------------------------ running


class Raised(ValueError):
    """A function raised while it stood in for another; the text says whose."""


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
        arguments = bound.arguments
        for option in [n for n, value in arguments.items() if value is None]:
            if signature.parameters[option].default is None:
                del arguments[option]                     # an older file may lack it
        if need and is_half:
            arguments["need"] = (True,) * len(need.default)
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
    """Return a :class:`Result` for each function of a reader's file, in the order of the lessons.
    The file runs in this process.  Raises ``ValueError`` if it cannot be run."""
    functions = load(path).functions
    return [examine(functions, name, seed) for name in FUNCTIONS]


def check(path):
    """Check a reader's file in this process and print its table; return how many functions are
    wrong."""
    return print_results(results(path), FUNCTIONS)


def print_results(checked, lessons):
    """Print which functions are done or wrong, a line for each lesson with those not written, and
    the next function; ``lessons`` is {name: lesson}.  Returns how many functions are wrong."""
    for lesson in sorted({*lessons.values()}):
        rows = [r for r in checked if lessons[r.name] == lesson]
        for r in rows:
            if r.status != NOT_WRITTEN:
                verdict = "done" if r.status == PASSED else f"wrong. {r.hint}"
                print(f"lesson {lesson:2}  {r.mark} {r.name}: {verdict}")
        if missing := [r for r in rows if r.status == NOT_WRITTEN]:
            print(f"lesson {lesson:2}  {missing[0].mark} not written: "
                  f"{', '.join(r.name for r in missing)}")
    mistakes = [r for r in checked if r.status == WRONG]
    last = max((i for i, r in enumerate(checked) if r.status != NOT_WRITTEN), default=-1)
    unwritten = [r for r in checked[last + 1:] + checked if r.status == NOT_WRITTEN]
    name = next((r.name for r in mistakes + unwritten), "")    # one left out comes at the end
    n_done = sum(r.status == PASSED for r in checked)
    print(f"{n_done} of {len(checked)} done, {len(mistakes)} wrong. " + (
        f"Next: {name}, lesson {lessons[name]}." if name else "All of it is yours."))
    return len(mistakes)
