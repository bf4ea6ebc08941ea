"""The reader's own ``functional.py``: a skeleton of it, its check, and training on it.

    minifpt new mine.py                  write the skeleton; --bare leaves the gradients out
    minifpt check mine.py                what is done, what is wrong, what is next
    with using("mine.py"): ...           the library runs what is written in it

What is not written yet is the library's.
"""

import ast
import functools
import hashlib
import inspect
import os
import sys
import traceback
import types
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from .. import fast, layers, tracing
from .. import functional as F
from ..examples import examples
from ..files import one_line, write_beside
from ..files.weights import PACKAGE
from . import Result
from .apart import apart
from .operations import NOT_WRITTEN, WRONG, examine

# In which lesson each operation is derived; "attention" is done in two.
LESSONS = {"linear": 1, "softmax": 2, "log_sum_exp": 2, "cross_entropy": 2, "layer_norm": 3,
           "positions": 4, "dropout": 4, "attention": 4, "attention_backward": 5, "residual": 6,
           "gelu": 6, "gelu_exact": 6, "relu": 6, "last_tokens": 6, "embedding": 10,
           "bias": 10, "unembedding": 10, "lstm": 15}
# The reader's functions in that order -> the lesson; those of no lesson belong to the last.
FUNCTIONS = {name: lesson for op, lesson in
             (LESSONS | {op: 18 for op in tracing.OPERATIONS if op not in LESSONS}).items()
             for name in (op, f"{op}_backward")
             if name in vars(F) and LESSONS.get(name, lesson) == lesson}
INTRODUCTION = '''
# This file is yours.  Write one body after the other, in the order of the lessons that the stubs
# name, in place of the line with NotImplementedError.  What is not written is the library's.
#
#     minifpt check FILE                          what is done, what is wrong, what is next
#     minifpt train bit-xor --functional FILE     train on what is written
#
# ``need`` may be left alone: compute every gradient, and keep what all of them read.
#
# Keep in each slot of a cache what its name says.  Once both halves of a pair are written, the
# cache is your own affair; until then the library's half reads yours, or yours the library's.
#
# ``dropout`` may draw its mask from rng in any way.  Write ``past`` in ``attention`` too: a model
# that generates text passes it.
'''
STUCK = """#
# Stuck?  ``minifpt new OTHER.py``, without --bare, writes the formulas of the gradients too.  Their
# derivations are in the lessons that the stubs name.
"""


# ------------------------------------------------------------------------ the skeleton


def skeleton(bare=False):
    """``functional.py`` with an empty body in each operation and in each backward pass; caches
    and helpers are as they are.  When ``bare``, a backward pass has no formula either."""
    source = inspect.getsource(F)
    lines = source.splitlines()
    tree = ast.parse(source)
    for node in reversed(tree.body):                      # from below: line numbers stay right
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            docstring = lines[node.body[0].lineno - 1:node.body[0].end_lineno]
            if bare and node.name.endswith("_backward"):
                docstring = [f'    """{task(node.name.removesuffix("_backward"))}"""']
            lines[node.body[0].lineno - 1:node.end_lineno] = [
                *docstring, f'    raise NotImplementedError("lesson {FUNCTIONS[node.name]}")']
    introduction = INTRODUCTION.rstrip() + "\n" + STUCK * bare
    lines[tree.body[0].end_lineno:tree.body[0].end_lineno] = introduction.rstrip().splitlines()
    return "\n".join(lines) + "\n"


def task(op):
    """What a backward pass is to return, without a formula: its inputs and their shapes."""
    inputs, _ = examples(op, np.random.default_rng(0))[0]
    names = [n for n, x in zip(inspect.signature(vars(F)[op]).parameters, inputs, strict=False)
             if x.dtype == np.float64][:1 if op == "residual" else None]
    more = "\n    dbranch came back through the branch." * (op == "residual")
    return (f"Return {', '.join(f'd{n}' for n in names)}, of the shape{'s' * (len(names) > 1)} of "
            f"{', '.join(names)}; dy has the shape of y.{more}")


def new(path, bare=False):
    """Write the skeleton to a new file.  Raises ``ValueError`` where there is one already."""
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected the name of a Python file, such as mine.py")
    if os.path.lexists(path):
        raise ValueError(f"{path} is there already, and is left as it is: choose another name")
    write_beside(path, lambda f: f.write(skeleton(bare)), "w")


def put(path, *functions):
    """Put functions into a file, each in place of the one of its name.  ``functions`` are defined
    in a notebook or in another file; or the path of a file, of which all are taken that are empty
    here."""
    path = Path(path)
    for function in functions:
        text = path.read_text(encoding="utf-8")
        there = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
        if isinstance(function, (str, Path)):
            source = Path(function).read_text(encoding="utf-8")
            new = {n.name: ast.get_source_segment(source, n) for n in ast.parse(source).body
                   if isinstance(n, ast.FunctionDef)}
            new = {name: text for name, text in new.items()
                   if name in there and is_stub(there[name])}
        else:
            new = {function.__name__: inspect.getsource(function).rstrip()}
        if missing := set(new) - set(there):
            raise ValueError(f"{path}: there is no function {', '.join(missing)} in it")
        lines = text.splitlines()
        for name in sorted(new, key=lambda name: -there[name].lineno):
            lines[there[name].lineno - 1:there[name].end_lineno] = new[name].splitlines()
        write_beside(path, lambda f, lines=lines: f.write("\n".join(lines) + "\n"), "w")


def solution():
    """The path of a possible answer to the skeleton, one of the lessons' solutions."""
    for folder in (PACKAGE / "lessons", PACKAGE.parent / "lessons"):
        path = folder / "solutions" / "18_functional.py"
        if path.exists():
            return path
    raise FileNotFoundError("the lessons were not installed with this package")


# ----------------------------------------------------------------------------- loading


class Own:
    """A reader's file that was run: ``functions`` {name: function} are those that are written,
    ``settings`` are for a run's ``config.json``, ``calls`` counts what ran within ``using``,
    ``wrong`` are the results of those that are wrong."""

    def __init__(self, path, text):
        self.path = Path(path)
        self.settings = {"functional": str(path),
                         "functional_hash": hashlib.sha256(text.encode()).hexdigest()[:16]}
        self.calls, self.functions, self.wrong = Counter(), {}, []

    def line(self, error):
        """``line 12`` of the reader's file, where an error came from; "" if from elsewhere."""
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == str(self.path)]
        return f"line {lines[-1]}" if lines else ""


def load(path):
    """Run a reader's file; its :class:`Own`.  Raises ``ValueError`` of one line for a file that
    cannot be read or raises."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file; 'minifpt new {path}' makes it")
    try:
        text = path.read_text(encoding="utf-8")
        tree, code = ast.parse(text), compile(text, str(path), "exec")
    except (ValueError, SyntaxError, RecursionError) as e:
        where = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise ValueError(f"{path}{where}: not Python ({getattr(e, 'msg', None) or one_line(e)})"
                         ) from None
    own, module = Own(path, text), types.ModuleType("minifpt_own")
    sys.modules[module.__name__] = module                 # as dataclasses expect
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as e:
        raise ValueError(f"{path}, {own.line(e) or 'its first line'}: it raised {one_line(e)} when "
                         "it was run") from None
    stubs = {node.name: is_stub(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, theirs in vars(F).items():
        mine = vars(module).get(name)
        if name in FUNCTIONS and callable(mine) and mine is not theirs and not stubs.get(name):
            own.functions[name] = mine
        elif name in FUNCTIONS or getattr(mine, "_fields", 0) == getattr(theirs, "_fields", None):
            setattr(module, name, theirs)                 # the library's functions read its caches
    return own


def is_stub(function):
    """Whether a function's body, an AST, is still to be written."""
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
def using(path, anyway=False):
    """Within, the library runs the functions of a reader's file in place of its own, and the
    simple form of those that are not written; no fast form runs.  Gives the :class:`Own`.

    The file is checked first: raises ``ValueError`` for a function that is wrong, unless
    ``anyway``.  For all threads of the process, as a trace; one may be opened within.
    """
    found = results(path)
    wrong = [r for r in found if r.status == WRONG]
    if wrong and not anyway:
        raise ValueError(f"{path}: {wrong[0].name} is wrong. {wrong[0].hint}")
    own, runs = load(path), {}
    own.wrong = wrong
    for r in found:
        if r.status == NOT_WRITTEN and r.name in own.functions:
            raise ValueError(f"{path}: {r.name} returns nothing. Write it, or let it raise "
                             "NotImplementedError, so that the library's runs")
    for op, pair in tracing.OPERATIONS.items():
        mine = [f.__name__ in own.functions for f in pair]
        runs[op] = tuple(_running(own, *each, mine) for each in zip(pair, mine, strict=True))
    with ExitStack() as undo:
        for op, pair in runs.items():
            undo.enter_context(tracing.swapped(tracing.OPERATIONS, op, pair))
            for function in pair:
                for table in (vars(F), vars(fast)):
                    if function.__name__ in table:
                        undo.enter_context(tracing.swapped(table, function.__name__, function))
        for key, (function, _) in list(layers.ACTIVATIONS.items()):
            if function.__module__ in (F.__name__, fast.__name__) and function.__name__ in runs:
                undo.enter_context(tracing.swapped(layers.ACTIVATIONS, key,
                                                   runs[function.__name__]))
        yield own


def _running(own, simple, mine, pair):
    """A function as the library is to run it: the reader's where it is ``mine``, else the simple
    form.  Where only one of the ``pair`` is the reader's, the caches keep all that any gradient
    reads."""
    name, signature = simple.__name__, inspect.signature(simple)
    function = own.functions[name] if mine else simple

    @functools.wraps(function)
    def run(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if isinstance(given.get("past"), layers.KeyValues):
            given["past"] = tracing.before(**given)
        if "need" in given and any(pair) and not all(pair):
            given["need"] = (True,) * len(given["need"])
        if mine:
            own.calls[name] += 1
        try:
            result = function(*bound.args, **bound.kwargs)
            if name.endswith("_backward"):
                return result
            y, cache = result
            return y, cache
        except Raised:
            raise
        except Exception as e:
            if mine:
                raise Raised(f"{own.path}, {own.line(e) or name}: {name} raised {one_line(e)}"
                             ) from e
            if not own.calls:                             # nothing of the reader's has run yet
                raise
            raise Raised(f"{own.path}: the library's {name} raised {one_line(e)}, on what your "
                         "functions returned") from e
    run.__name__ = name
    return run


# ----------------------------------------------------------------------------- checking


def check(path):
    """Print what is done, what is wrong and what is next; what is not written is one line for
    each lesson.  Returns how many are wrong."""
    found = results(path)
    for lesson in sorted({*FUNCTIONS.values()}):
        missing = []
        for r in (r for r in found if FUNCTIONS[r.name] == lesson):
            if r.status == NOT_WRITTEN:
                missing.append(r)
            else:
                word = "done" if r.status == "passed" else f"wrong. {r.hint}"
                print(f"lesson {lesson:2}  {str(r)[0]} {r.name}: {word}")
        if missing:
            print(f"lesson {lesson:2}  {str(missing[0])[0]} not written: "
                  f"{', '.join(r.name for r in missing)}")
    done, wrong = (sum(r.status == s for r in found) for s in ("passed", WRONG))
    following = next((r for s in (WRONG, NOT_WRITTEN) for r in found if r.status == s), None)
    print(f"{done} of {len(found)} done, {wrong} wrong. " + (
        f"Next: {following.name}, lesson {FUNCTIONS[following.name]}." if following else
        "All of it is yours."))
    return wrong


def results(path, seed=None):
    """A :class:`Result` for each function of a reader's file, in the order of the lessons; the
    file is run in a process of its own.  Raises ``ValueError`` where it cannot be run."""
    path = Path(path).absolute()
    return as_results(path, apart(f"{__name__}:work", str(path), seed))


def as_results(path, rows):
    """The results in the rows of :func:`work`."""
    found, missing = {}, ""
    for row in rows:
        if not row["name"]:
            missing = row["lost"]
            continue
        hint = row.get("lost") or row["hint"]
        if row.get("printed") and row["status"] != "passed":
            hint += f" It printed: {' '.join(row['printed'].split())[:80]}"
        found[row["name"]] = Result(row["name"], row.get("status", WRONG), hint)
    if missing and not found:
        raise ValueError(f"{path}: {missing}")
    return [found.get(name, Result(name, WRONG, missing)) for name in FUNCTIONS]


def work(path, seed, skip):
    """Check each function of a file but some; for :func:`apart`."""
    yield {"begin": ""}
    try:
        own = load(path)
    except (ValueError, OSError) as e:
        yield {"name": "", "lost": str(e).removeprefix(f"{path}").lstrip(":, ")}
        return
    for name in FUNCTIONS:
        if name not in skip:
            yield {"begin": name}
            result = examine(own, name, seed)
            yield {"name": name, "status": result.status, "hint": result.hint}
