"""The operations of ``functional`` as exercises, for a reader's file (see ``own``).

The solution is the library's function.  A forward pass must give its y.  A backward pass must give
its gradients, from the cache of the reader's own forward pass.  All numbers are new, in float64.
"""

import copy
import inspect
from contextlib import ExitStack

import numpy as np

from .. import functional as F
from ..checks import unchanged
from ..examples import examples, fresh
from ..tracing import swapped
from . import Case, Result, _hint, _same
from .mistakes import mistakes

NOT_WRITTEN, WRONG = "not answered yet", "not right yet"
CALLS = {"attention": ("softmax", "dropout"), "cross_entropy": ("log_sum_exp",)}
BATCHES = "x", "qkv", "q", "k", "v", "ids", "logits", "targets", "gate", "up", "branch"
FAR = {"layer_norm": "Here the mean is large beside the spread, and E[x^2] - E[x]^2 loses its "
                     "digits: subtract the mean first, then take the mean of the squares.",
       "relu": "Here some x are 0, or nearly 0.",
       **dict.fromkeys(("gelu", "silu", "swiglu", "lstm"),
                       "Here x is large, and an exponential of it is infinite: use np.tanh, or "
                       "1 / (1 + exp(-x)).")}


class Wrong(Exception):
    """A function of the reader's is wrong; the text is the hint."""


# ------------------------------------------------------------------------- the questions


def questions(op, rng):
    """Return [(inputs, options, about)]: examples, some of them ten times as large, with a batch of
    one, or with one gradient wanted, and the far ones."""
    near, names = [call for _ in range(3) for call in examples(op, rng)], parameters(op)
    tenfold = [(tuple(10 * x if x.dtype == np.float64 else x for x in inputs), options)
               for inputs, options in near[:2]]
    single = [(tuple(x[:1] if name in BATCHES else x for name, x in zip(
        names, inputs, strict=False)), options) for inputs, options in near[:1]]
    n = len(near[0][0]) * ("need" in names)
    needs = [(near[0][0], near[0][1] | {"need": tuple(i == j for j in range(n))}) for i in range(n)]
    return [(*call, about) for calls, about in ((near, ""), (far(op, rng), FAR.get(op, "")), (
        tenfold + single + needs, "")) for call in calls]


def far(op, rng):
    """Return calls with extreme numbers, with a kink, and with tokens before these."""
    n = rng.standard_normal
    large = 1e3 * n((3, 4)) + 1e4 * np.arange(-1, 2)[:, None]
    huge = 800 + 100 * n((3, 4))                          # exp(huge) is infinite
    grid = rng.permutation(np.linspace(-6, 6, 61)).reshape(1, 61)
    targets = np.array([1, 0, 3])
    return {"layer_norm": [((1e3 + 0.01 * n((3, 5)), n(5), n(5)), {})],
            "relu": [((0.01 * grid,), {})], "gelu_exact": [((grid,), {})],
            "gelu": [((x,), {}) for x in (grid, huge, -huge)],
            "silu": [((x,), {}) for x in (grid, huge, -huge)],
            "swiglu": [((huge, n((3, 4))), {}), ((-huge, n((3, 4))), {})],
            "lstm": [((x.reshape(1, 4, 3), n((3, 8)), n((2, 8)), n(8)), {}) for x in (huge, -huge)],
            "softmax": [((large,), {})], "log_sum_exp": [((large,), {})],
            "cross_entropy": [((large, targets), {})],
            "attention": [((n((2, 3, 18)),), {"n_head": 2, "past": (n((2, 2, 4, 3)),
                                                                  n((2, 2, 4, 3)))})],
            }.get(op, [])


def refused(op, rng):
    """Return [(inputs, what they hold)] for which an operation's docstring promises an error."""
    ids = {"-1": np.array([0, -1]), "a number that is too large": np.array([2, 6]),
           "numbers of float64": np.array([0.0, 1.0])}
    return {"embedding": [((i, rng.standard_normal((6, 4))), what) for what, i in ids.items()],
            "cross_entropy": [((rng.standard_normal((2, 6)), i), what) for what, i in ids.items()]
            }.get(op, [])


def parameters(op):
    """Return the names of an operation's arguments."""
    return list(inspect.signature(vars(F)[op]).parameters)


# ----------------------------------------------------------------------------- the check


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
    arguments, names = copy.deepcopy(inputs), parameters(name)
    try:
        result = reader.functions[name](*arguments, **fresh(options))
    except NotImplementedError:
        raise
    except Exception as e:
        where = reader.line(e)
        given = ", ".join(f"{n} {described(x)}" for n, x in zip(names, inputs, strict=False))
        raise Wrong(f"It raised {type(e).__name__}: {' '.join(str(e).split())}"
                    + f" ({where})" * bool(where) + f". It was given {given}.") from None
    for parameter, a, b in zip(names, arguments, inputs, strict=False):
        if not unchanged(a, b):
            where = "an array in its cache" if parameter == "cache" else f"its argument {parameter}"
            raise Wrong(f"It changes {where} in place: work on a copy.")
    return result


def described(x):
    """Describe a value, such as ``(2, 3, 5)`` for an array."""
    if isinstance(x, np.ndarray):
        return str(x.shape)
    if hasattr(x, "_fields"):
        slots = zip(x._fields, x, strict=True)
        return f"{type(x).__name__}({', '.join(f'{n} {described(v)}' for n, v in slots)})"
    return repr(x) if x is None or isinstance(x, (int, float, slice)) or (
        isinstance(x, tuple) and len(repr(x)) < 40) else f"a {type(x).__name__}"


def library(reader, name, *args, **options):
    """Run a function of ``functional``, with the masks that the reader's dropout draws."""
    def dropout(x, p, rng):
        y = reader.functions["dropout"](x, p, rng)[0]
        mask = np.divide(y, x, out=np.zeros_like(x), where=x != 0)
        return y, F.DropoutCache(mask if p else None)

    with ExitStack() as undo:
        if "dropout" in reader.functions:
            undo.enter_context(swapped(vars(F), "dropout", dropout))
        function = name if callable(name) else vars(F)[name]
        return function(*args, **fresh(options))


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
    for inputs, options, about in questions(op, rng):
        y, _ = pair(reader, op, *inputs, **options)
        if op == "dropout":
            dropped_out(reader, y, inputs[0], **options)
        else:
            right = library(reader, op, *inputs, **options)[0]
            if not _same(y, right, 1e-9):
                wrong_answers = {hint: library(reader, f, *inputs, **options)[0]
                                 for hint, f in mistakes(op)}
                raise Wrong(_hint(y, Case(inputs, right, wrong_answers, 1e-9, about)))
        if "past" not in options:
            same_dtype([pair(reader, op, *in_float32(inputs), **options)[0]], ["y"])
    for inputs, what in refused(op, rng):
        try:
            reader.functions[op](*inputs)
            error = "nothing"
        except Exception as e:
            error = type(e).__name__
        if error != "ValueError":
            raise Wrong(f"For {what} among the integers it raises {error}, and the docstring "
                        "promises a ValueError.")


def dropped_out(reader, y, x, p, rng):
    """Raise :class:`Wrong` unless ``y`` is inverted dropout of ``x``, however the mask is drawn."""
    if np.shape(y) != x.shape:
        raise Wrong(f"The result has shape {np.shape(y)}, expected {x.shape}.")
    if p == 0:
        if not np.array_equal(pair(reader, "dropout", x, 0.0, None)[0], x):      # draws nothing
            raise Wrong("With p = 0, y is x.")
        return
    is_kept, share = y != 0, float(np.mean(y != 0))
    if abs(share - (1 - p)) > 0.08 and x.size > 1000:
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


# -------------------------------------------------------------------------- the gradients


def gradients(op, inputs, result):
    """Return a backward pass's result as a tuple, and the names of the inputs that it is for."""
    names = [n for n, x in zip(parameters(op), inputs, strict=False)
             if x.dtype == np.float64][:1 if op == "residual" else None]
    return result if len(names) > 1 else (result,), names


def fits(reader, op, written, rng):
    """Raise :class:`Wrong` if the gradients of ``op`` are wrong when the library's functions stand
    in for those that the reader has not written.  ``written`` is the reader's operation that is to
    blame: ``op``, or an operation that ``op`` calls."""
    theirs = halves(reader, (op, *CALLS.get(op, ())) if written == op else (written,))
    for inputs, options in examples(op, rng):
        y, right_cache = library(reader, op, *inputs, **options)
        dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
        right, names = gradients(op, inputs, library(reader, f"{op}_backward", dy, right_cache))
        with ExitStack() as undo:
            for name in theirs:
                undo.enter_context(swapped(vars(F), name, reader.functions[name]))
            ahead, back = vars(F)[op], vars(F)[f"{op}_backward"]
            try:
                grads, _ = gradients(op, inputs, back(dy, ahead(*inputs, **fresh(options))[1]))
                why = next((f"d{n} is wrong" for n, a, b in zip(names, grads, right, strict=True)
                            if not _same(a, b, 1e-6)), "")
                y, cache = ahead(*in_float32(inputs), **fresh(options))
                grads, _ = gradients(op, inputs, back(np.ones_like(y) if np.ndim(y) else 0.7,
                                                      cache))
            except Exception as e:
                why = f"it raised {type(e).__name__}: {' '.join(str(e).split())}"
        if why and written != op:
            inputs, options = examples(written, rng)[0]
            slots_of = vars(F)[written](*inputs, **fresh(options))[1]
            raise Wrong(f"It fits your {written}, but the library's {op} calls both, and {why}. "
                        f"As long as that is the library's, keep to {slots(slots_of)}.")
        if why:
            other = other_cache(reader, op, inputs, options)
            raise Wrong(f"y is right, but {op}_backward is not written yet, and the library's, "
                        f"which stands in, cannot read your cache: {other or f'{why}.'}")
        same_dtype(grads, [f"d{n} (by the library's {op}_backward, from your cache)"
                           for n in names])


def slots(cache):
    """Return a cache's class and slots as text: ``LinearCache(x, w, need)``."""
    return f"{type(cache).__name__}({', '.join(cache._fields)})"


def other_cache(reader, op, inputs, options):
    """Describe in which slots the reader's cache differs from the library's."""
    right = library(reader, op, *inputs, **options)[1]
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


def backward(reader, op, rng):
    """Raise :class:`Wrong` unless the backward pass gives the library's gradients: from the cache
    of the reader's forward pass, or of the library's if the reader's is wrong or not written."""
    def stand_in(*inputs, **options):                     # the library's, calling the reader's
        with ExitStack() as undo:
            for name in halves(reader, CALLS.get(op, ())):
                undo.enter_context(swapped(vars(F), name, reader.functions[name]))
            return vars(F)[op](*inputs, **options)

    ahead, is_right = stand_in, True
    if op in reader.functions:
        try:
            forward(reader, op, np.random.default_rng(rng.integers(1 << 30)))
            ahead = reader.functions[op]
        except Wrong:
            ahead, is_right = vars(F)[op], False
        except NotImplementedError:
            pass
    calls = [call for call in questions(op, rng) if "past" not in call[1]]
    for call, other in zip(calls, [*calls[1:], calls[0]], strict=True):
        try:
            one_backward(reader, op, ahead, *call, other, rng)
        except Wrong as e:
            where = f"With need = {call[1]['need']}: " if "need" in call[1] else ""
            raise Wrong(where + str(e) if is_right else f"Mend {op} first: it is wrong, and this "
                        f"was held against the library's. {e}") from None


def one_backward(reader, op, ahead, inputs, options, about, other, rng):
    """Do as :func:`backward` for one call of the forward pass ``ahead``; the call ``other`` comes
    between two backward passes."""
    name = f"{op}_backward"
    try:
        y, cache = ahead(*copy.deepcopy(inputs), **fresh(options))
    except Exception as e:
        raise Wrong(f"{op} raised {type(e).__name__}: {' '.join(str(e).split())}.") from None
    right_cache = library(reader, op, *inputs, **options)[1]
    dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
    if op == "residual":                                  # what came back through the branch
        cache = right_cache = rng.standard_normal(dy.shape)
    right, names = gradients(op, inputs, library(reader, name, dy, right_cache))
    grads, _ = gradients(op, inputs, run(reader, name, dy, cache))
    if "need" in options:                                 # the others may be anything
        grads, right, names = ([value for value, is_wanted in zip(
            values, options["need"], strict=True) if is_wanted] for values in (grads, right, names))
    else:
        well_formed(grads, names, right)
    if not _same(grads, right, 1e-6):
        mistaken = [] if "need" in options else [
            (hint, gradients(op, inputs, f(dy, right_cache))[0]) for hint, f in mistakes(name)]
        differences = [f"d{n}{part_of_qkv(grad, good) if n == 'qkv' else ''} is wrong. " + _hint(
            grad, Case((), good, {hint: m[i] for hint, m in mistaken}, 1e-6, about))
            for i, (n, grad, good) in enumerate(zip(names, grads, right, strict=True))
            if not _same(grad, good, 1e-6)]
        if ahead is reader.functions.get(op) and op != "residual" and (
                cache_text := other_cache(reader, op, inputs, options)):
            differences.append(f"Your cache is another one than the library's: {cache_text}")
        raise Wrong(" ".join(differences))
    if "need" in options:
        return
    if op != "residual":                                  # as where a layer is used twice
        _, cache = ahead(*copy.deepcopy(inputs), **fresh(options))
        ahead(*copy.deepcopy(other[0]), **fresh(other[1]))
    for _ in range(2):
        try:
            again = gradients(op, inputs, run(reader, name, dy, cache))[0]
        except Wrong:
            again = None
        if not _same(again, right, 1e-6):
            raise Wrong("The gradients change if other calls come before: a backward pass reads "
                        "its cache, not a global variable, and changes neither its cache nor a "
                        "weight.")
    if op != "residual":
        _, cache = ahead(*in_float32(inputs), **fresh(options))
    dy, cache = in_float32((dy, cache))
    same_dtype(gradients(op, inputs, run(reader, name, dy, cache))[0], [f"d{n}" for n in names])


def well_formed(grads, names, right):
    """Raise :class:`Wrong` unless each floating-point input has a gradient of its shape."""
    d, shapes = ", ".join(f"d{n}" for n in names), [np.shape(g) for g in right]
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
