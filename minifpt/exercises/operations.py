"""Check a reader's form of a function of ``functional``: its values and its gradients.

A forward pass is held against the library's, a backward pass against finite differences of the
reader's own forward pass, both with fresh numbers in float64.
"""

import copy
import inspect
from contextlib import ExitStack

import numpy as np

from .. import functional as F
from ..checks import unchanged
from ..examples import examples, fresh
from ..gradients import gradcheck
from ..tracing import swapped
from . import Case, Result, _hint, _same
from .mistakes import mistakes
from .questions import FAR, far_questions

NOT_WRITTEN, WRONG = "not answered yet", "not right yet"
CALLS = {"attention": ("softmax", "dropout"), "cross_entropy": ("log_sum_exp",)}


class Wrong(Exception):
    """A function of the reader's is wrong; the text is the hint."""


def examine(reader, name, seed=None):
    """Return the :class:`Result` of one function of a reader's file, an :class:`own.Own`; ``seed``
    fixes the numbers."""
    if name not in reader.functions:
        return Result(name, NOT_WRITTEN)
    op, rng = name.removesuffix("_backward"), np.random.default_rng(seed)
    try:
        with np.errstate(all="ignore"):
            (forward if name == op else backward)(reader, op, rng)
            if name == op and f"{op}_backward" not in reader.functions and op != "residual":
                fits(reader, op, op, rng)
            for caller in CALLS if name != op else ():
                both = {caller, f"{caller}_backward"}
                if op in CALLS[caller] and not both <= set(reader.functions):
                    fits(reader, caller, op, rng)
    except Wrong as e:
        for inner in halves(reader, CALLS.get(op, ())):
            if examine(reader, inner, seed).status == WRONG:
                return Result(name, WRONG, f"Mend {inner} first, which is called in it.")
        return Result(name, WRONG, str(e))
    except NotImplementedError:
        return Result(name, NOT_WRITTEN)
    return Result(name, "passed")


def halves(reader, ops):
    """Return the reader's functions among some operations and their backward passes."""
    return [name for op in ops for name in (op, f"{op}_backward") if name in reader.functions]


def run(reader, name, *inputs, **options):
    """Run a function of the reader's; return its result.  Raises :class:`Wrong` if it raises or
    changes its inputs."""
    arguments = copy.deepcopy(inputs)
    try:
        result = reader.functions[name](*arguments, **fresh(options))
    except NotImplementedError:
        raise
    except Exception as e:
        where = reader.line(e)
        raise Wrong(f"It raised {type(e).__name__}: {' '.join(str(e).split())}"
                    + f" ({where})" * bool(where) + f". It was given {shapes(name, inputs)}."
                    ) from None
    for parameter, a, b in zip(inspect.signature(vars(F)[name]).parameters, arguments, inputs,
                               strict=False):
        if not unchanged(a, b):
            where = "an array in its cache" if parameter == "cache" else f"its argument {parameter}"
            raise Wrong(f"It changes {where} in place: work on a copy.")
    return result


def shapes(name, inputs):
    """Describe arguments: arrays by their shapes, a cache by its slots."""
    return ", ".join(f"{n} {described(x)}" for n, x in zip(
        inspect.signature(vars(F)[name]).parameters, inputs, strict=False))


def described(x):
    """Describe a value, such as ``(2, 3, 5)`` for an array."""
    if isinstance(x, np.ndarray):
        return str(x.shape)
    if hasattr(x, "_fields"):
        slots = zip(x._fields, x, strict=True)
        return f"{type(x).__name__}({', '.join(f'{n} {described(v)}' for n, v in slots)})"
    return repr(x) if x is None or isinstance(x, (int, float, slice)) or (
        isinstance(x, tuple) and len(repr(x)) < 40) else f"a {type(x).__name__}"


def pair(reader, op, *inputs, **options):
    """Return y and the cache of a forward pass of the reader's."""
    result = run(reader, op, *inputs, **options)
    if not isinstance(result, tuple) or len(result) != 2:
        raise Wrong("Return two things: y, and the cache that the backward pass will read.")
    if result[0] is None or result[0] is ...:
        raise NotImplementedError
    return result


def in_float32(arrays):
    """Return float64 arrays as float32, the others as they are."""
    return [a.astype(np.float32) if getattr(a, "dtype", None) == np.float64 else a for a in arrays]


def same_dtype(values, names):
    """Raise :class:`Wrong` if an array is not float32 though all inputs were."""
    for value, name in zip(values, names, strict=True):
        if np.ndim(value) and np.asarray(value).dtype != np.float32:
            raise Wrong(f"float32 comes in and {name} is {np.asarray(value).dtype}. Usual causes: "
                        "a NumPy number such as np.sqrt(2) instead of math.sqrt(2); np.zeros or "
                        "rng.random without a dtype; a mask of bool that is divided by a number.")


def forward(reader, op, rng):
    """Raise :class:`Wrong` for a forward pass that is not the library's."""
    near = examples(op, rng)
    for i, (inputs, options) in enumerate([*near, *far_questions(op, rng)]):
        y, _ = pair(reader, op, *inputs, **options)
        if op == "dropout":
            dropped_out(reader, y, inputs[0], **options)
        else:
            # The reader's dropout may draw in another way.
            dropout = reader.functions.get("dropout", F.dropout)
            with swapped(vars(F), "dropout", dropout):
                right = vars(F)[op](*inputs, **fresh(options))[0]
                wrong_answers = {hint: f(*inputs, **fresh(options))[0] for hint, f in mistakes(op)}
            if not _same(y, right, 1e-9):
                raise Wrong(_hint(y, Case(inputs, right, wrong_answers, 1e-9,
                                          FAR.get(op, "") * (i >= len(near)))))
        if "past" not in options:
            same_dtype([pair(reader, op, *in_float32(inputs), **options)[0]], ["y"])


def fits(reader, op, written, rng):
    """Raise :class:`Wrong` if the gradients of ``op`` are wrong when the library's functions stand
    in for those that the reader has not written.  ``written`` is the reader's operation that is to
    blame: ``op``, or an operation that ``op`` calls."""
    parameters = list(inspect.signature(vars(F)[op]).parameters)
    theirs = halves(reader, (op, *CALLS.get(op, ())) if written == op else (written,))
    for inputs, options in examples(op, rng):
        names = [n for n, x in zip(parameters, inputs, strict=False) if x.dtype == np.float64]
        with ExitStack() as undo:
            for name in theirs:
                undo.enter_context(swapped(vars(F), name, reader.functions[name]))
            ahead, back = vars(F)[op], vars(F)[f"{op}_backward"]

            def go(*x, ahead=ahead, options=options):
                return ahead(*x, **fresh(options))

            try:
                report = gradcheck(go, back, inputs, names=parameters)
                why = "" if report else f"d{report.worst[0]} is wrong"
                y, cache = go(*in_float32(inputs))
                grads = back(np.ones_like(y) if np.ndim(y) else 0.7, cache)
            except Exception as e:
                why = f"it raised {type(e).__name__}: {' '.join(str(e).split())}"
        if why and written != op:
            cache_of_op = vars(F)[written](*examples(written, rng)[0][0], **fresh(
                examples(written, rng)[0][1]))[1]
            raise Wrong(f"It fits your {written}, but the library's {op} calls both, and {why}. "
                        f"As long as that is the library's, keep to {slots(cache_of_op)}.")
        if why:
            other = other_cache(reader, op, inputs, options)
            raise Wrong(f"y is right, but {op}_backward is not written yet, and the library's, "
                        f"which stands in, cannot read your cache: "
                        f"{other or f'{why}.'}")
        same_dtype(grads if len(names) > 1 else (grads,), [
            f"d{n} (by the library's {op}_backward, from your cache)" for n in names])


def slots(cache):
    """Return a cache's class and slots as text: ``LinearCache(x, w, need)``."""
    return f"{type(cache).__name__}({', '.join(cache._fields)})"


def other_cache(reader, op, inputs, options):
    """Describe in which slots the reader's cache differs from the library's."""
    simple = vars(F)[op]
    with swapped(vars(F), "dropout", reader.functions.get("dropout", F.dropout)):
        right = simple(*inputs, **fresh(options))[1]
    mine = reader.functions[op](*copy.deepcopy(inputs), **fresh(options))[1]
    if getattr(right, "_fields", None) is None:
        return ""
    if getattr(mine, "_fields", None) != right._fields and not (
            isinstance(mine, tuple) and len(mine) == len(right)):
        return f"expected {slots(right)}, yours is {described(mine)}."
    differences = []
    for name, a, b in zip(right._fields, mine, right, strict=True):
        if not same_slot(a, b):
            a, b = described(a), described(b)
            differences.append(f"{name} is {a}, " + (
                f"expected {b}" if a != b else "with other values than the library's"))
    if not differences and type(mine) is tuple:
        return f"return {slots(right)} by that name, not a plain tuple."
    return f"in {slots(right)}, {'; '.join(differences)}." if differences else ""


def same_slot(a, b):
    """Return whether two slots of a cache hold the same."""
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and _same(a, b, 1e-9)
    if hasattr(b, "_fields"):
        return isinstance(a, tuple) and len(a) == len(b) and all(map(same_slot, a, b))
    return not isinstance(a, np.ndarray) and type(a) is type(b) and a == b


def dropped_out(reader, y, x, p, rng):
    """Raise :class:`Wrong` unless ``y`` is inverted dropout of ``x``, however the mask is drawn."""
    if np.shape(y) != x.shape:
        raise Wrong(f"The result has shape {np.shape(y)}, expected {x.shape}.")
    if p == 0:
        if not np.array_equal(y, x):
            raise Wrong("With p = 0, y is x.")
        return
    is_kept, share = y != 0, float(np.mean(y != 0))
    if abs(share - (1 - p)) > 0.08:
        raise Wrong(f"With p = {p}, {100 * share:.0f} % of the entries are kept, expected "
                    f"{100 * (1 - p):.0f} %: p is the share that is dropped.")
    if not np.allclose(y[is_kept], x[is_kept] / (1 - p), rtol=1e-4):
        raise Wrong("Multiply the entries that are kept by 1/(1-p), so that the mean stays."
                    + " That factor is missing." * np.allclose(y[is_kept], x[is_kept]))
    if any(n > 1 and (is_kept == is_kept.take([0], axis)).all() for axis, n in enumerate(x.shape)):
        raise Wrong("Whole rows or columns are dropped together: draw a number for each entry.")
    again, other = (pair(reader, "dropout", x, p=p, rng=seed)[0] for seed in (rng, rng + 1))
    if not np.array_equal(y, again) or np.array_equal(y, other):
        raise Wrong("Draw from rng, the generator that is passed.")


def backward(reader, op, rng):
    """Raise :class:`Wrong` unless the backward pass gives the gradients of the reader's forward
    pass, or of the library's if the reader's is not written.  If the reader's is wrong, the
    backward pass may fit either of them."""
    simple = vars(F)[op]
    ahead, right_ahead = simple, True
    if op in reader.functions:
        try:
            forward(reader, op, np.random.default_rng(rng.integers(1 << 30)))
            ahead = reader.functions[op]
        except Wrong:
            right_ahead, ahead = False, reader.functions[op]
        except NotImplementedError:
            pass
    calls, others = examples(op, rng), examples(op, rng)
    for (inputs, options), (other, _) in zip(calls, others, strict=True):
        with ExitStack() as undo:
            for name in halves(reader, CALLS.get(op, ())) if ahead is simple else ():
                undo.enter_context(swapped(vars(F), name, reader.functions[name]))
            try:
                one_backward(reader, op, ahead, right_ahead, inputs, options, rng, other)
            except Wrong as e:
                if right_ahead:
                    raise
                try:
                    one_backward(reader, op, simple, True, inputs, options, rng)
                except Wrong:
                    raise Wrong(f"Mend {op} first: it is wrong, and this was held against it. {e}"
                                ) from None
    if "need" in inspect.signature(simple).parameters and ahead is not simple and right_ahead:
        heeds_need(reader, op, rng, *calls[0][0])


def one_backward(reader, op, ahead, right_ahead, inputs, options, rng, other=None):
    """Do as :func:`backward` for one call of the forward pass ``ahead``; ``other`` are the inputs
    of another call, which comes between forward and backward."""
    name, simple = f"{op}_backward", vars(F)[op]
    parameters = list(inspect.signature(simple).parameters)
    if op == "residual":                                  # its branch is a function of x
        factor, inputs = inputs[1], inputs[:1]
    names = [n for n, x in zip(parameters, inputs, strict=False) if x.dtype == np.float64]

    def pass_ahead(function):
        if op == "residual":
            return lambda x: function(x, factor.astype(x.dtype) * x)
        return lambda *x: function(*x, **fresh(options))

    def gradients(function, dy, cache):
        grads = function(dy, factor.astype(dy.dtype) * dy if op == "residual" else cache)
        return grads if len(names) > 1 else (grads,)

    def mine(dy, cache):
        return gradients(lambda *arguments: run(reader, name, *arguments), dy, cache)

    try:
        y, cache = pass_ahead(ahead)(*inputs)
    except Exception:
        raise Wrong(f"Your {op} does not run, so its backward pass cannot be checked.") from None
    dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
    grads = mine(dy, cache)
    well_formed(grads, names, inputs)
    if other is not None:
        batch = () if op == "residual" else ("x", "qkv", "ids", "logits", "targets")
        shorter = [x[:1] if n in batch else x
                   for n, x in zip(parameters, other, strict=False)][:len(inputs)]
        two_at_once(pass_ahead(ahead), mine, lambda dy, cache: gradients(
            reader.functions[name], dy, cache), inputs, shorter, rng)
    report = gradcheck(pass_ahead(ahead), mine, inputs, names=parameters,
                       seed=int(rng.integers(1 << 30)))
    if not report:
        with swapped(vars(F), "dropout", reader.functions.get("dropout", F.dropout)):
            y, cache = pass_ahead(vars(F)[op])(*inputs)
            if np.shape(y) != np.shape(dy):
                raise Wrong(f"Your {op} returns the shape {np.shape(dy)}, expected {np.shape(y)}.")
            right = gradients(vars(F)[name], dy, cache)
            mistaken = [(hint, gradients(f, dy, cache)) for hint, f in mistakes(name)]
        differences = [f"d{n}{part_of_qkv(grad, good) if n == 'qkv' else ''} is wrong. " + (
            _hint(grad, Case((), good, {hint: m[i] for hint, m in mistaken}, 1e-6))
            if right_ahead and not _same(grad, good, 1e-6) else differs(report, n))
            for i, (n, grad, good) in enumerate(zip(names, grads, right, strict=True))
            if not report.errors.get(n, 0.0) <= report.tolerance]
        if ahead is not simple and right_ahead and op != "residual" and (
                other := other_cache(reader, op, inputs, options)):
            differences.append(f"Your cache is another one than the library's: {other}")
        raise Wrong(" ".join(differences))
    _, cache = pass_ahead(ahead)(*in_float32(inputs))
    same_dtype(mine(np.float32(dy) if np.ndim(dy) else dy, cache), [f"d{n}" for n in names])


def two_at_once(ahead, copied, back, first, second, rng):
    """Raise :class:`Wrong` if two calls disturb each other: both forward passes run before both
    backward passes, as they do when a layer is used twice.  The backward pass ``copied`` gets
    copies, as in the other checks, ``back`` the arrays themselves, as in training."""
    calls = copy.deepcopy([first, second])
    alone = []
    for inputs in copy.deepcopy(calls):
        try:
            y, cache = ahead(*inputs)
        except Exception as e:
            raise Wrong(f"The forward pass raised {type(e).__name__}: {' '.join(str(e).split())}, "
                        "on a batch of one.") from None
        dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else float(rng.standard_normal())
        alone.append((dy, copy.deepcopy((y, copied(dy, cache)))))
    outputs = [ahead(*inputs) for inputs in calls]
    before = copy.deepcopy((calls, outputs))
    for (y, cache), (dy, (right_y, right)) in zip(outputs, alone, strict=True):
        dy_copy, grads = copy.deepcopy(dy), None
        try:
            grads = copy.deepcopy(back(dy_copy, cache))
        except Exception:                                 # it met the other call's numbers
            pass
        if not _same(y, right_y, 1e-9) or not _same(grads, right, 1e-9):
            raise Wrong("Two forward passes and then their two backward passes give other results "
                        "than each pair by itself: a backward pass reads its cache, and nothing "
                        "that a forward pass left in a global variable.")
        if not unchanged(dy_copy, dy) or not unchanged((calls, outputs), before):
            raise Wrong("The backward pass changes an input, a weight or the cache: work on "
                        "copies.")
        if not _same(back(dy_copy, cache), grads, 1e-9):
            raise Wrong("A second backward pass from the same cache gives other gradients.")


def well_formed(grads, names, inputs):
    """Raise :class:`Wrong` unless each floating-point input has a gradient of its shape."""
    d, shapes = ", ".join(f"d{n}" for n in names), [
        x.shape for x in inputs if x.dtype == np.float64]
    if all(g is None or g is ... for g in (grads if isinstance(grads, (tuple, list)) else [0])):
        raise NotImplementedError
    if not isinstance(grads, (tuple, list)) or len(grads) != len(names):
        raise Wrong(f"Return {len(names)} gradients: {d}.")
    own_shapes = [np.shape(g) for g in grads]
    if own_shapes != shapes and sorted(own_shapes) == sorted(shapes):
        raise Wrong(f"Return the gradients in the order of the inputs: {d}.")
    for n, grad, shape in zip(names, grads, shapes, strict=True):
        if grad is None or isinstance(grad, tuple) or np.shape(grad) != shape:
            kind = f"a {type(grad).__name__}" if grad is None or isinstance(grad, tuple) else (
                f"of shape {np.shape(grad)}")
            raise Wrong(f"d{n} is {kind}, expected an array of {n}'s shape {shape}.")


def part_of_qkv(grad, good):
    """Return the names of those of dq, dk, dv that differ."""
    parts = zip("qkv", np.split(grad, 3, axis=-1), np.split(good, 3, axis=-1), strict=True)
    names = [f"d{n}" for n, a, b in parts if not _same(a, b, 1e-6)]
    return f" ({', '.join(names)})" if names else ""


def differs(report, name):
    """Describe the numbers of a gradient check."""
    worst, where, analytical, numerical = report.worst
    if worst != name:
        return "It does not fit the differences of your forward pass."
    at = f" at [{', '.join(map(str, where))}]" if isinstance(where, tuple) else ""
    return (f"It does not fit your forward pass: yours is {analytical:.4g}{at}, differences give "
            f"{numerical:.4g}.")


def heeds_need(reader, op, rng, *inputs):
    """Raise :class:`Wrong` if a gradient changes or is missing when it alone is wanted."""
    def gradients(need):
        _, cache = pair(reader, op, *inputs, need=need)
        return run(reader, f"{op}_backward", dy, cache)
    dy = rng.standard_normal(np.shape(reader.functions[op](*inputs)[0]))
    names = list(inspect.signature(vars(F)[op]).parameters)[:len(inputs)]
    whole = gradients((True,) * len(names))
    for i, n in enumerate(names):
        need = tuple(j == i for j in range(len(names)))
        try:
            right = _same(gradients(need)[i], whole[i], 1e-9)
        except Wrong as e:
            raise Wrong(f"With need = {need}, where only d{n} is wanted: {e}") from None
        if not right:
            raise Wrong(f"With need = {need}, d{n} is wanted, and is not what it is with all "
                        "of them.")
