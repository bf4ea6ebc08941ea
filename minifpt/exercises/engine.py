"""Exercises that check themselves: ``check("softmax_backward", my_function)``.

An exercise is its solution, how its arguments are drawn, and its mistakes, each with a hint.  They
stand in the lesson's file in ``lessons/solutions``.  A mistake is a change of the solution's source
(see ``rewriting``): what it would answer is computed when it is needed.  Numbers are drawn
anew at every call, so an answer can be computed but not copied::

    def bias_gradient(dy):
        return dy.sum(axis=(0, 1))

    @exercise(bias_gradient, {
        "every row adds its share: do you take a mean?": "dy.sum(axis=_) -> dy.mean(axis=_)",
    })
    def _(rng):
        yield rng.standard_normal((2, 5, 3)),
"""

import contextlib
import copy
import functools
import importlib.util
import inspect
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from ..gradients.examples import fresh
from .lesson import lessons_folder
from .rewriting import rewrite

EXERCISES = {}                                            # name -> Exercise
PASSED, WRONG, NOT_WRITTEN = "passed", "not right yet", "not answered yet"
SECONDS = 20                                              # of the processor's, for one function
ENDLESS = "is there a loop?"                              # ends the hint for a longer one
MIN_SCALE = 1e-30                                         # smaller numbers are rounding alone
# What a result may be of the right one.
FORMS = {"the absolute value": np.abs, "the square": np.square, "the root": np.sqrt,
         "the inverse": np.reciprocal, "the logarithm": np.log, "the exponential": np.exp}
DRAWS = 3                                                 # how often each is drawn anew
SHORT_WORDS = {*"a add all an at do in it no not of one the two you".split()}


@dataclass
class Case:
    """One question to the reader's function.

    args       its arguments: arrays, numbers, functions.
    answer     the right output: a number, an array or a tuple of them; or a function of the
               output that returns whether it is right.  By default what the solution returns.
    mistakes   {hint: the output of that mistake, such as ``None``, or a function of the output that
               returns whether the mistake was made}, for mistakes that only this case can tell.
    rtol       tolerance, relative to the answer's largest entry.
    about      the hint if no known mistake fits: what is special about this case.
    exercise   the :class:`Exercise` whose mistakes give the other hints.
    options    further arguments by name; ``rng`` is the seed of a generator.
    take       chooses of the function's result the output that is judged.
    where      what stands before any hint.
    """

    args: tuple
    answer: object = None
    mistakes: dict = field(default_factory=dict)
    rtol: float = None
    about: str = ""
    exercise: object = None
    options: dict = field(default_factory=dict)
    take: object = lambda result: result
    where: str = ""

    @property
    def names(self):
        """Return the names of the arguments, as the solution has them."""
        names = [*inspect.signature(self.exercise.solution).parameters] if self.exercise else []
        return (names + ["args"] * len(self.args))[:len(self.args)]

    def output_of(self, function, args=None):
        """Return what a function puts out for copies of the arguments, or for these."""
        return self.take(function(*args or copy.deepcopy(self.args), **fresh(self.options)))

    @functools.cached_property
    def wrong_outputs(self):
        """Return [(hint, what that mistake of the exercise puts out)]."""
        outputs = []
        for hint, function in self.exercise.wrong_answers if self.exercise else ():
            with contextlib.suppress(Exception), warnings.catch_warnings():    # it may not fit
                warnings.simplefilter("ignore")
                outputs.append((hint, self.output_of(function)))
        return outputs


@dataclass
class Exercise:
    """Called with a random generator, it yields each :class:`Case` of ``draw``, completed.

    mistakes  {hint: mistake}.  A mistake is a change of the solution's source, ``"pattern ->
              replacement"``; a tuple of changes that are made together; a function; or a list of
              them.
    refused   {words of the hint of a case: mistake}, for tests: where many answers are right, the
              cases say what is wrong with others.
    is_file   whether a line of an error is one of the reader's file, not of the function.
    is_open   whether it is a lesson's open question, its last one, which counts in no table.
    """

    solution: object
    mistakes: dict
    refused: dict = field(default_factory=dict)
    draw: object = None
    about: str = ""
    rtol: float = 1e-6
    draws: int = DRAWS
    is_file: bool = False
    is_open: bool = False

    def __call__(self, *args):
        for case in self.draw(*args):
            case = case if isinstance(case, Case) else Case(case)
            case.rtol, case.about = case.rtol or self.rtol, case.about or self.about
            if case.answer is None:
                case.answer = case.output_of(self.solution)
            case.exercise = self
            yield case

    @property
    def lesson(self):
        """The number of its lesson, from the name of the module that holds it."""
        return int(self.draw.__module__[-2:])

    @functools.cached_property
    def wrong_answers(self):
        """Return [(hint, function)]: each mistake as an answer to the exercise."""
        return self.answers(self.mistakes)

    def answers(self, mistakes):
        """Return [(hint, function)] of {hint: mistake}."""
        answers = []
        for hint, ways in mistakes.items():
            for way in ways if isinstance(ways, list) else [ways]:
                changes = (way,) if isinstance(way, str) else way
                try:
                    answers.append((hint, way if callable(way) else
                                    rewrite(self.solution, *changes).function))
                except (ValueError, SyntaxError) as e:
                    raise ValueError(f"{self.solution.__name__}: the mistake '{hint}' cannot be "
                                     f"made by {changes}: {e}") from None
        return answers


@dataclass
class Result:
    """``status`` is ``PASSED``, ``WRONG`` or ``NOT_WRITTEN``."""

    name: str
    status: str
    hint: str = ""

    @property
    def is_endless(self):
        """Whether the function was stopped by :func:`limited`."""
        return ENDLESS in self.hint

    @property
    def mark(self):
        """A tick, a cross, or a dot for a function that is not written."""
        return {PASSED: "\u2713", NOT_WRITTEN: "\u00b7"}.get(self.status, "\u2717")

    def __str__(self):
        return f"{self.mark} {self.name}: {self.status}" + (f". {self.hint}" if self.hint else "")


def exercise(solution, mistakes=None, refused=None, about="", rtol=1e-6):
    """Register an exercise under its solution's name.  It decorates the function of a random
    generator that yields :class:`Case` or the arguments alone; for the rest see :class:`Exercise`.
    """
    def register(draw):
        name = solution.__name__
        if name not in EXERCISES or draw.__module__ != "__main__":    # else: its file as a program
            EXERCISES[name] = Exercise(solution, mistakes or {}, refused or {}, draw, about, rtol)
        return draw
    return register


def check(name, answer):
    """Check a function that answers the exercise ``name``; prints one line."""
    print(examine(name, answer))


def require(name, answer):
    """Raise ``AssertionError`` with the hint unless a function answers the exercise ``name``: a
    test, such as those of nbgrader and otter-grader."""
    result = examine(name, answer)
    if result.status != PASSED:
        raise AssertionError(str(result))


def check_solutions(scope):
    """Check the solutions among the names of a lesson's file."""
    load_exercises()
    for name in filter(EXERCISES.__contains__, list(scope)):
        check(name, scope[name])


def examine(name, answer, seed=None):
    """Check as :func:`check` does, but return a :class:`Result`; ``seed`` fixes the numbers."""
    load_exercises()
    if not isinstance(name, str) or name not in EXERCISES:
        raise ValueError(f"check: no exercise {name!r:.60}, there are {', '.join(EXERCISES)}")
    if answer is ... or answer is None:
        return Result(name, NOT_WRITTEN)
    if not callable(answer):
        return Result(name, WRONG, "Give the function itself, not what it returns: "
                      f'check("{name}", {name}).')
    return result_of(EXERCISES[name], answer, np.random.default_rng(seed))


@contextlib.contextmanager
def limited():
    """Raise :class:`Wrong` in a block that computes longer than ``SECONDS``: an endless loop would
    cost a notebook that nbgrader runs all its points.  The time is the processor's, so that other
    work on the machine does not count.  Without an alarm (a browser, Windows, a thread) each line
    of Python looks at the clock."""
    has_alarm = (hasattr(signal, "setitimer")
                 and threading.current_thread() is threading.main_thread()
                 and signal.getitimer(signal.ITIMER_PROF)[0] == 0)

    def stop(*_):
        raise Wrong(f"It did not end within {SECONDS:g} s: {ENDLESS}")

    if not has_alarm:
        end, tracer = time.monotonic() + SECONDS, sys.gettrace()

        def look(*_):
            return look if time.monotonic() < end else stop()
        sys.settrace(tracer or look)                      # a debugger keeps its own
        try:
            yield
        finally:
            sys.settrace(tracer)
        return
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1)      # again: an answer may catch it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def result_of(exercise, answer, *args):
    """Return the :class:`Result` of a function that answers an exercise drawn with ``args``."""
    name = exercise.solution.__name__
    try:
        with limited(), np.errstate(all="ignore"):      # mistakes divide by 0
            for _ in range(exercise.draws):
                ask_all(exercise, answer, *args)
    except Wrong as e:
        return Result(name, WRONG, str(e))
    except NotImplementedError:
        return Result(name, NOT_WRITTEN)
    return Result(name, PASSED)


def ask_all(exercise, answer, *args):
    """Ask all cases of an exercise drawn with ``args``; raises as :func:`ask` does."""
    for case in exercise(*args):
        try:
            ask(answer, case)
        except Wrong as e:
            raise Wrong(case.where + str(e)) from None


class Wrong(Exception):
    """An answer is wrong; the text is the hint."""


def ask(function, case):
    """Raise :class:`Wrong` for a wrong answer to a case, ``NotImplementedError`` for none."""
    is_file = case.exercise.is_file
    try:
        args = copy.deepcopy(case.args)                   # a reader's cache may refuse
        output = case.output_of(function, args)
    except (NotImplementedError, Wrong):
        raise
    except (Exception, SystemExit) as e:                  # the reader's code: anything
        if isinstance(e, TypeError) and "ellipsis" in str(e):          # a "..." met a number
            raise NotImplementedError from None
        code = getattr(inspect.unwrap(function), "__code__", None)
        line = lines_of(e, code)[is_file]
        where = f" in line {line}" + " of your function" * (not is_file) if line else ""
        text = " ".join(str(e).split())
        if sizes := re.search(r"^matmul: .* \(size (\d+) is different from (\d+)\)", text):
            text = ("a product sums over an axis that both factors share; here it has length "
                    f"{sizes[2]} in one and {sizes[1]} in the other: is a transpose missing, or "
                    "does .T turn more than two axes?")
        elif "inhomogeneous" in text:
            text = ("an array cannot have parts of unequal shapes. The library's forward passes "
                    "return two things: y, cache = F.softmax(x)")
        raise Wrong(f"It raised {type(e).__name__}{where}: {text} "
                    f"(arguments: {_described(case.names, case.args)}).") from None
    if output is None:
        raise Wrong(next((_sentence(h) for h, m in case.mistakes.items() if m is None),
                         "It returns nothing: is a return missing?"))
    parts = output if isinstance(output, (tuple, list)) else (output,)
    if parts and all(part is None for part in parts) or any(part is ... for part in parts):
        raise NotImplementedError
    if any(isinstance(part, (complex, np.ndarray, np.generic)) and np.iscomplexobj(part)
           for part in parts):
        raise Wrong("It returns complex numbers: a root or a power of a negative number?")
    if callable(case.answer):
        try:
            is_right = bool(case.answer(output))
        except Wrong:
            raise
        except Exception:                                 # an output of the wrong kind
            is_right = False
    else:
        is_right = same(output, case.answer, case.rtol)
    if not is_right:
        raise Wrong(hint_of(output, case))
    for name, before, after in zip(case.names, case.args, args, strict=True):
        if not _unchanged(after, before):
            raise Wrong("The value is right, but your function changes one of its arguments in "
                        f"place, {name}: work on a copy, or put it back.")


def mistake_of(output, case):
    """Return the hint for the mistake with this output, or ``None``; two may agree by chance."""
    return next((_sentence(hint, case.names) for rtol in (min(1e-10, case.rtol), case.rtol)
                 for hint, mistake in case.wrong_outputs if same(output, mistake, rtol)), None)


def hint_of(output, case):
    """Return the hint for the mistake that the output looks like."""
    mistakes = [] if callable(case.answer) else case.wrong_outputs
    if mistakes and (hint := mistake_of(output, case)):
        return hint
    for hint, mistake in mistakes:                        # beside another mistake
        if any(not np.isscalar(b) and same(a, b, case.rtol) and not same(b, c, case.rtol)
               for a, b, c in _parts(output, mistake, case.answer)):
            return _sentence(hint)                        # numbers may agree by chance
    for hint, mistake in case.mistakes.items():
        with contextlib.suppress(Exception):              # a predicate on an odd output
            if mistake(output) if callable(mistake) else same(output, mistake, case.rtol):
                return _sentence(hint, case.names)
    for hint, mistake in mistakes:                        # with other numbers
        with contextlib.suppress(Exception):              # an output that has no shape
            if any(np.shape(a) == np.shape(b) != np.shape(c) and _is_computed(a, case)
                   for a, b, c in _parts(output, mistake, case.answer)):
                return _sentence(hint, case.names)
    hint = "" if callable(case.answer) else _general_hint(output, case)
    return hint or case.about or "No known mistake looks like this: try it on an array so small " \
                                 "that you can do it by hand."


def _is_computed(a, case):
    """Return whether numbers may come from a computation, so that their shape says something: they
    are not one whole number throughout, as of ``return 0``, nor one of the arguments."""
    a = np.asarray(a, np.float64)
    return not ((a == np.round(a.flat[0])).all() or any(np.array_equal(a, arg) for arg in case.args
                                                        if _is_numeric(arg)))


def _parts(output, mistake, answer):
    """Return [(a value of the output, the mistake's, the right one)], of tuples each."""
    values = output, mistake, answer
    if isinstance(answer, tuple) and all(
            isinstance(v, (tuple, list)) and len(v) == len(answer) for v in values):
        return [*zip(*values, strict=True)]
    return [values]


def _sentence(hint, names=()):
    """Return a hint as a sentence: a symbol at its beginning (``dA``, ``w``) stays as it is, and so
    does an argument, one of ``names``."""
    word = re.match(r"[a-z]+(?=[ ,'])", hint)
    if word and word[0] not in names and (len(word[0]) > 3 or word[0] in SHORT_WORDS):
        hint = hint[0].upper() + hint[1:]
    return hint if hint.endswith(("?", ".")) else hint + "."


def lines_of(error, code):
    """Return the last lines that led to an error, of a function's code and of its file, or 0."""
    in_code = of_file = 0
    for frame, line in traceback.walk_tb(error.__traceback__ if code else None):
        in_code = line - code.co_firstlineno + 1 if frame.f_code is code else in_code
        of_file = line if frame.f_code.co_filename == code.co_filename else of_file
    return in_code, of_file


def _general_hint(output, case):
    """Return a hint that suits any exercise: shape, NaN, sign, factor, axis."""
    if isinstance(case.answer, tuple):
        n = len(output) if isinstance(output, (tuple, list)) else 1
        if n != len(case.answer):
            return f"Return {len(case.answer)} values; yours returns {n}."
        for i, (a, b) in enumerate(zip(output, case.answer, strict=True)):
            if not same(a, b, case.rtol):
                hint = _general_hint(a, replace(case, answer=b))
                return f"Value {i + 1} of {len(case.answer)}: {hint}"
    if not _is_numeric(case.answer):
        return case.about
    if output is None or not _is_numeric(output):
        return f"It returns a {type(output).__name__}, expected numbers."
    a, b = np.asarray(output, np.float64), np.asarray(case.answer, np.float64)
    if a.shape != b.shape:
        if a.size and not _is_computed(a, case):
            return f"The result has shape {a.shape}, expected {b.shape or 'one number'}."
        return _shape_hint(a.shape, b.shape, isinstance(output, tuple))
    if not np.isfinite(a).all():
        return case.about or "The result is not finite: something overflowed or was " \
                             "divided by zero."
    if a.ndim == 0 and isinstance(case.answer, (bool, np.bool_)):
        return case.about
    if not a.any() and b.any():
        return "The result is 0 everywhere."
    if same(-a, b, case.rtol):
        return "The sign is the other way round."
    if a.ndim == 2 and a.shape[0] == a.shape[1] and same(a.T, b, case.rtol):
        return "Rows and columns are exchanged: a transpose is missing or too many."
    for name, argument in zip(case.names, case.args, strict=True):
        if a.ndim and same(argument, a, case.rtol):
            return f"That is {name}, unchanged."
    for name, form in FORMS.items():
        if same(a, form(b), case.rtol):
            return f"That is {name} of the right result."
    if a.size > 2 and same(np.sort(a, None), np.sort(b, None), case.rtol):
        return "Those are the right numbers in another order."
    factor = float((a * b).sum() / (b * b).sum()) if b.any() else 0.0
    if factor > 0 and abs(factor - 1) > 0.01 and same(a, factor * b, case.rtol) and (
            a.size > 1 or any(same(f, round(f), 1e-9) for f in (factor, 1 / factor))):
        subject, it = ("All entries are", "they") if a.size > 1 else ("It is", "it")
        return (f"{subject} {factor:.4g} times as large as {it} should be: look for a constant "
                "factor, a sum for a mean or a mean for a sum.")
    n_right = int(np.isclose(a, b, case.rtol, 1e-9).sum())
    right = f"{n_right} of {a.size} entries are right. " * (n_right > 0)
    i = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
    where = f"at [{', '.join(map(str, i))}] " * bool(i)
    is_function = case.exercise and not case.exercise.is_file
    arguments = f", with {_described(case.names, case.args)}" if is_function else ""
    a, b = a[i], b[i]
    start = max(4, len(f"{abs(b):.0f}"))                  # 186620, not 1.866e+05
    digits = next((n for n in range(start, 17) if f"{a:.{n}g}" != f"{b:.{n}g}"), 17)
    return f"{case.about} {right}The largest difference{arguments}: {where}yours is " \
           f"{a:.{digits}g}, it should be {b:.{digits}g}.".lstrip()


def _shape_hint(shape, expected, is_tuple):
    """Return a hint for an output of another shape."""
    if is_tuple and shape[0] != 1:
        return f"Return one value; yours returns {shape[0]}."
    text = f"The result has shape {shape}, expected {expected or 'one number'}"
    if [n for n in shape if n != 1] == [n for n in expected if n != 1]:
        return f"{text}: an axis of length 1 is missing or too many."
    if sorted(shape) == sorted(expected):
        return f"{text}: the axes stand in another order."
    if expected and (len(shape) != len(expected) or len(shape) == 1):
        return f"{text}: look at the axis that you sum or average over."
    return f"{text}."


def same(a, b, rtol):
    """Return whether numbers, arrays, texts or tuples of them are equal up to ``rtol`` of b's
    largest entry, or of 1 where that is below ``MIN_SCALE``.  For a tuple, an array or a list of
    texts in b, a may have any of them."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    if isinstance(b, tuple) or isinstance(b, list) and not _is_numeric(b):
        try:
            a = tuple(a)
        except TypeError:
            return False
        return len(a) == len(b) and all(same(x, y, rtol) for x, y in zip(a, b, strict=True))
    if not _is_numeric(a) or not _is_numeric(b):
        return type(a) is type(b) and np.array_equal(a, b)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return False
    finite = b[np.isfinite(b)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    scale = scale if scale > MIN_SCALE else 1.0
    with np.errstate(invalid="ignore"):                   # inf - inf
        return bool(((np.abs(a - b) <= rtol * scale) | (a == b) | (a != a) & (b != b)).all())


def _is_numeric(a):
    """Return whether NumPy takes a value as an array of numbers."""
    with contextlib.suppress(Exception):                  # an int may be too large, too
        np.asarray(a, np.float64)
        return True
    return False


def close_to(*values, rtol=1e-5):
    """Return a mistake's function: whether an output is close to one of ``values``."""
    return lambda output: any(same(output, value, rtol) for value in values)


def either(*mistakes):
    """Return a mistake's function: whether one of these functions of mistakes is true."""
    return lambda output: any(mistake(output) for mistake in mistakes)


def _unchanged(a, b):
    """Return whether arguments, and what lists and dictionaries in them hold, are still the same.
    An array's last bits may differ: adding and subtracting a step again does not restore them."""
    if isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_unchanged, a, b))
    if isinstance(b, dict):
        return [*a] == [*b] and all(map(_unchanged, a.values(), b.values()))
    if isinstance(b, (np.ndarray, str, int, float)):
        return same(a, b, 1e-12)
    return True


def describe(x):
    """Describe a value: an array by its shape, a long list by its length."""
    if isinstance(x, np.ndarray):
        return str(x.shape)
    if hasattr(x, "_fields"):
        return f"{type(x).__name__}({_described(x._fields, x)})"
    if isinstance(x, list) and not (len(x) < 9 and all(
            isinstance(y, (bool, int, float, str)) for y in x)):
        return f"a list of {len(x)}"
    text = f"{x:.6g}" if isinstance(x, float) else " ".join(repr(x).split())[:60]
    return "a function" if callable(x) else f"a {type(x).__name__}" if " at 0x" in text else text


def _described(names, values):
    """Return names with their values, described, as text."""
    return ", ".join(f"{n} {describe(x)}" for n, x in zip(names, values, strict=True))


@functools.cache
def load_exercises():
    """Run every lesson's file of solutions, so that its exercises are known."""
    for notebook in sorted(lessons_folder().glob("[0-9][0-9]_*.ipynb")):
        name = f"{__name__}.lesson_{notebook.stem[:2]}"
        path = notebook.parent / "solutions" / f"{notebook.stem}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        [*EXERCISES.values()][-1].is_open = True
