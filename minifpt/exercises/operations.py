"""The operations of ``functional`` as exercises, for a reader's file (see ``own``).

The solution is the library's function.  A forward pass must give its y.  A backward pass must give
its gradients, from the cache of the reader's own forward pass.  All numbers are new, in float64.
"""

import copy
import inspect
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import compress

import numpy as np

from .. import functional as F
from .. import tracing
from ..fast import standing_in
from ..files import one_line
from ..gradients.examples import examples, fresh
from .engine import (
    NOT_WRITTEN,
    WRONG,
    Case,
    Exercise,
    Result,
    Wrong,
    ask_all,
    describe,
    hint_of,
    limited,
    mistake_of,
    result_of,
    same,
)
from .mistakes import MISTAKES

CALLS = {"attention": ("softmax", "dropout"), "cross_entropy": ("log_sum_exp",)}
# Inputs whose first axis is the batch.
BATCHES = "x", "q", "k", "v", "ids", "logits", "targets", "gate", "up"
# operation -> the hint for the calls of :func:`far`.
FAR = {"layer_norm": "Here the mean is large beside the spread, and E[x^2] - E[x]^2 loses its "
                     "digits: subtract the mean first, then take the mean of the squares.",
       "relu": "Here some x are 0, or nearly 0.",
       **dict.fromkeys(("gelu", "silu", "lstm"),
                       "Here x is large, and an exponential of it is infinite: use np.tanh, or "
                       "1 / (1 + exp(-x)).")}


def questions(op, rng):
    """Return [(inputs, options, about)]: examples, some of them ten times as large, with a batch of
    one, or with one gradient wanted, and the far ones."""
    near = [call for _ in range(3) for call in examples(op, rng)]
    names = inspect.signature(vars(F)[op]).parameters
    tenfold = [(tuple(10 * x if x.dtype == np.float64 else x for x in inputs), options)
               for inputs, options in near[:2]]
    single = [(tuple(x[:1] if name in BATCHES else x for name, x in zip(
        names, inputs, strict=False)), options) for inputs, options in near[:1]]
    n = len(near[0][0]) * ("need" in names)
    needs = [(near[0][0], near[0][1] | {"need": tuple(i == j for j in range(n))}) for i in range(n)]
    extreme = [(*call, FAR.get(op, "")) for call in far(op, rng)]
    return [(*call, "") for call in near] + extreme + [
        (*call, "") for call in tenfold + single + needs]


def far(op, rng):
    """Return calls with extreme numbers, with a kink, with more keys than queries, with heads that
    share keys, and with a bias."""
    n = rng.standard_normal
    large = 1e3 * n((3, 4)) + 1e4 * np.arange(-1, 2)[:, None]
    huge = 800 + 100 * n((3, 4))                          # exp(huge) is infinite
    grid = rng.permutation(np.linspace(-6, 6, 61)).reshape(1, 61)
    return {"layer_norm": [((1e3 + 0.01 * n((3, 5)), n(5), n(5)), {})],
            "relu": [((0.01 * grid,), {})], "gelu_exact": [((grid,), {})],
            "gelu": [((x,), {}) for x in (grid, huge, -huge)],
            "silu": [((x,), {}) for x in (grid, huge, -huge)],
            "lstm": [((x.reshape(1, 4, 3), n((3, 8)), n((2, 8)), n(8)), {}) for x in (huge, -huge)],
            "softmax": [((large,), {})], "log_sum_exp": [((large,), {})],
            "cross_entropy": [((large, large.argmin(axis=-1)), {})],
            "attention": [((n((2, 2, 3, 5)), *n((2, 2, 2, 7, 5))), {}),
                          ((n((2, 4, 3, 5)), *n((2, 2, 2, 3, 5))), {}),
                          ((n((2, 2, 4, 3)), *n((2, 2, 2, 4, 3))), {"bias": n((2, 4, 4))})],
            }.get(op, [])


# ----------------------------------------------------------------------------- the check


def examine(answers, name, seed=None):
    """Return the :class:`Result` of one of a reader's functions, {name: function}; ``seed``
    fixes the numbers."""
    if name not in answers:
        return Result(name, NOT_WRITTEN)
    op = name.removesuffix("_backward")
    dropout = masks_of(answers["dropout"]) if "dropout" in answers else F.dropout.checked
    message = ""
    if op == "attention" and op in answers:
        by_attention = dropout_of(answers[op], dropout)
        message = mask_mistake(by_attention)
        dropout = dropout if message else by_attention
    with readers({"dropout": dropout}):
        result = result_of(OPERATIONS[name], answers[name], answers, np.random.default_rng(seed))
    if result.status == WRONG:
        if name == "attention" and message and "largest difference" in result.hint:
            result.hint = f"In the dropout of the probabilities: {message}"
        for inner in halves(answers, CALLS.get(op, ())):     # a forward pass calls no backward pass
            if (op != name or inner in CALLS[op]) and examine(answers, inner, seed).status == WRONG:
                return Result(name, WRONG, f"Mend {inner} first, if yours calls it. {result.hint}")
    return result


def readers(functions):
    """Let functions, {name: function}, run in the place of the library's within a ``with``."""
    return standing_in({vars(F)[name]: function for name, function in functions.items()})


def halves(answers, ops):
    """Return the reader's functions among some operations and their backward passes."""
    return [name for op in ops for name in (op, f"{op}_backward") if name in answers]


def masks_of(dropout):
    """Return the library's dropout with the masks that a reader's draws, if it does not raise."""
    def stand_in(x, p, rng):
        try:
            mask = dropout(np.ones_like(x), p, rng)[0] if p else 1.0
            mask = np.multiply(mask, 1.0, out=np.empty_like(x))      # raises for another shape
            return x * mask, F.DropoutCache(mask if p else None)
        except Exception:                                 # the check of dropout names it
            return F.dropout.checked(x, p, rng)
    return stand_in


def dropout_of(attention, dropout):
    """Return the dropout that a reader's attention applies to its probabilities: where each token
    is as likely as the others and brings a channel of its own, y shows the mask.  Within it, the
    library's ``dropout`` is this one."""
    def stand_in(x, p, rng):
        if not p:
            return x, F.DropoutCache(None)
        B, H, T, S = x.shape
        with readers({"dropout": dropout}):
            mask = S * attention(np.zeros((B, H, T, S)), np.zeros((B, H, S, S)),
                                 np.zeros((B, H, S, S)) + np.eye(S), p, rng, False)[0]
        mask = mask.astype(x.dtype)
        return x * mask, F.DropoutCache(mask)
    return stand_in


def mask_mistake(dropout):
    """Return what is wrong with a dropout of probabilities, as text, or ""."""
    x, options = np.ones((2, 2, 30, 30)), {"p": 0.25, "rng": 0}
    try:
        with limited():
            is_dropout(dropout, x, **options)(dropout(x, **fresh(options))[0])
    except Exception as e:
        return str(e) if isinstance(e, Wrong) else one_line(e)
    return ""


def y_of(result):
    """Return y from the result of a forward pass."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Wrong("Return two things: y, and the cache that the backward pass will read.")
    if isinstance(result[0], tuple) and not isinstance(result[1], tuple):
        raise Wrong("Return y first, then the cache.")
    if result[0] is None or result[0] is ...:
        raise NotImplementedError
    return result[0]


def in_float32(arrays):
    """Return float64 arrays as float32, the others as they are."""
    if isinstance(arrays, dict):
        return dict(zip(arrays, in_float32(arrays.values()), strict=True))
    return [a.astype(np.float32) if getattr(a, "dtype", None) == np.float64 else a for a in arrays]


def are_float32(values, names):
    """Return ``True``.  Raises :class:`Wrong` if an array is not float32 though all inputs were."""
    for value, name in zip(values, names, strict=True):
        if np.ndim(value) and np.asarray(value).dtype != np.float32:
            raise Wrong(f"float32 comes in and {name} is {np.asarray(value).dtype}. Usual causes: "
                        "a NumPy number such as np.sqrt(2), not math.sqrt(2); np.zeros, np.eye or "
                        "rng.random without dtype; a mask of bool that is divided by a number.")
    return True


def forward(op, answers, rng):
    """Yield the cases of a forward pass.  Raises :class:`Wrong` if the library's functions cannot
    stand in for those that belong to it and are not written."""
    parameters = inspect.signature(answers[op]).parameters
    for inputs, options, about in questions(op, rng):
        if "bias" in options and "bias" not in parameters:     # attention may have none
            continue
        where, answer = "", None
        if op == "dropout" and options["p"]:
            answer = is_dropout(answers[op], *inputs, **options)
        elif op == "dropout":                             # draws nothing
            inputs, options = (*inputs, 0.0, None), {}
            where = "With p = 0, y is x, and rng may be None. "
        yield Case(inputs, answer, about=about, options=options, take=y_of, where=where)
        yield Case(tuple(in_float32(inputs)), lambda y: are_float32([y], ["y"]),
                   options=in_float32(options), take=y_of, where=where)
    if f"{op}_backward" not in answers:
        fits(answers, op, op, rng)


def is_dropout(dropout, x, p, rng):
    """Return the function that raises :class:`Wrong` unless y is inverted dropout of x, however
    the mask is drawn."""
    def is_right(y):
        if np.shape(y) != x.shape:
            raise Wrong(f"The result has shape {np.shape(y)}, expected {x.shape}.")
        is_kept, share = y != 0, float(np.mean(y != 0))
        if abs(share - (1 - p)) > 0.08 and x.size > 1000:
            raise Wrong(f"With p = {p}, {100 * share:.0f} % of the entries are kept, expected "
                        f"{100 * (1 - p):.0f} %: p is the share that is dropped.")
        if not np.allclose(y[is_kept], x[is_kept] / (1 - p), rtol=1e-4):
            raise Wrong("Multiply the entries that are kept by 1/(1-p), so that the mean stays."
                        + " That factor is missing." * np.allclose(y[is_kept], x[is_kept]))
        if any(n > 1 and (is_kept == is_kept.take([0], axis)).all()
               for axis, n in enumerate(x.shape)):
            raise Wrong("Whole rows or columns are dropped together: draw a number for each entry.")
        same_seed, other_seed = (dropout(x.copy(), **fresh({"p": p, "rng": seed}))[0]
                                 for seed in (rng, rng + 1))
        if not np.array_equal(y, same_seed) or np.array_equal(y, other_seed):
            raise Wrong("Draw from rng, the generator that is passed.")
        return True
    return is_right


# -------------------------------------------------------------------------- the gradients


def learned(op, inputs):
    """Return the names of the inputs that get a gradient."""
    return [n for n, x in zip(inspect.signature(vars(F)[op]).parameters, inputs, strict=False)
            if x.dtype == np.float64]


def gradients(op, inputs, result, need=None):
    """Return the gradients in a backward pass's result that ``need`` wants, and their names; the
    dbias of an attention without a bias, ``None``, is left out."""
    names = [f"d{n}" for n in learned(op, inputs)]
    if op == "attention" and isinstance(result, (tuple, list)):
        if len(result) != 4:
            raise Wrong("Return dq, dk, dv and dbias, which is None where there is no bias.")
        if result[3] is None:
            return tuple(result[:3]), names
        names.append("dbias")
    values = result if len(names) > 1 else (result,)
    if not need or not isinstance(values, (tuple, list)):
        return values, names
    if len(values) != len(need):
        raise Wrong(f"Return {len(need)} values, also where need is False: there any value.")
    return tuple(compress(values, need)), [*compress(names, need)]


def fits(answers, op, written, rng):
    """Raise :class:`Wrong` if the gradients of ``op`` are wrong when the library's functions stand
    in for those that the reader has not written.  ``written`` is the reader's operation that is to
    blame: ``op``, or an operation that ``op`` calls."""
    answers = {name: answers[name] for name in halves(
        answers, (op, *CALLS.get(op, ())) if written == op else (written,))}
    for inputs, options in examples(op, rng):
        y, right_cache = vars(F)[op](*inputs, **fresh(options))
        dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7
        right, names = gradients(op, inputs, vars(F)[f"{op}_backward"](dy, right_cache))
        try:
            with readers(answers):
                run_forward, run_backward = vars(F)[op], vars(F)[f"{op}_backward"]
                result = run_backward(dy, run_forward(*inputs, **fresh(options))[1])
                y, cache = run_forward(*in_float32(inputs), **fresh(options))
                short_result = run_backward(np.ones_like(y) if np.ndim(y) else 0.7, cache)
            why = next((f"{n} is wrong" for n, a, b in zip(
                names, gradients(op, inputs, result)[0], right, strict=True)
                if not same(a, b, 1e-6)), "")
            grads, _ = gradients(op, inputs, short_result)
        except Exception as e:
            why = f"it raised {one_line(e)}"
        if why and written != op:
            inputs, options = examples(written, rng)[0]
            right_cache = vars(F)[written](*inputs, **fresh(options))[1]
            raise Wrong(f"It fits your {written}, but the library's {op} calls both, and {why}. "
                        f"As long as that is the library's, keep to {slots(right_cache)}.")
        if why:
            difference = cache_difference(answers, op, inputs, options)
            raise Wrong(f"y is right, but {op}_backward is not written yet, and the library's, "
                        f"which stands in, cannot read your cache: {difference or f'{why}.'}")
        are_float32(grads, [f"{n} (by the library's {op}_backward, from your cache)"
                            for n in names])


def slots(cache):
    """Return a cache's class and slots as text: ``LinearCache(x, w, need)``."""
    return f"{type(cache).__name__}({', '.join(cache._fields)})"


def cache_difference(answers, op, inputs, options):
    """Return in which slots the reader's cache differs from the library's, as text, or ""."""
    right = vars(F)[op](*inputs, **fresh(options))[1]
    cache = answers[op](*copy.deepcopy(inputs), **fresh(options))[1]
    if getattr(cache, "_fields", None) != right._fields and not (
            isinstance(cache, tuple) and len(cache) == len(right)):
        return f"expected {slots(right)}, yours is {describe(cache)}."
    differences = []
    for name, a, b in zip(right._fields, cache, right, strict=True):
        if not same(a, b, 1e-9):
            a, b = describe(a), describe(b)
            differences.append(f"{name} is {a}, " + (
                f"expected {b}" if a != b else "with other values than the library's"))
    if not differences and type(cache) is tuple:
        return f"return {slots(right)} by that name, not a plain tuple."
    return f"in {slots(right)}, {'; '.join(differences)}." if differences else ""


def backward(op, answers, rng):
    """Yield the cases of a backward pass: from the cache of the reader's forward pass, or of the
    library's if the reader's is wrong or not written.  Raises :class:`Wrong` if it does not fit
    the library's functions that call it."""
    def stand_in(*inputs, **options):                     # the library's, calling the reader's
        with readers({name: answers[name] for name in halves(answers, CALLS.get(op, ()))}):
            return vars(F)[op](*inputs, **options)

    run_forward, where = stand_in, ""
    if op in answers:
        try:
            ask_all(OPERATIONS[op], answers[op], answers,
                    np.random.default_rng(rng.integers(1 << 30)))
            run_forward = answers[op]
        except Wrong:
            run_forward = vars(F)[op]
            where = f"Mend {op} first: it is wrong, and this was held against the library's. "
        except NotImplementedError:
            pass
    is_readers = run_forward is answers.get(op)
    parameters = inspect.signature(run_forward).parameters if is_readers else ()
    calls = [call for call in questions(op, rng)
             if (is_readers or "need" not in call[1])     # as it runs, beside the library's
             and ("bias" not in call[1] or "bias" in parameters)]
    for call, next_call in zip(calls, [*calls[1:], calls[0]], strict=True):
        with_need = f"With need = {call[1].get('need')}: " * ("need" in call[1])
        yield from one_backward(answers, op, run_forward, *call, next_call[:2],
                                where or with_need, rng)
    for caller in CALLS:
        if not where and op in CALLS[caller] and not {caller, f"{caller}_backward"} <= set(answers):
            fits(answers, caller, op, rng)


def one_backward(answers, op, run_forward, inputs, options, about, next_call, where, rng):
    """Do as :func:`backward` for one call of the forward pass ``run_forward``; ``next_call`` comes
    between two backward passes."""
    name, need = f"{op}_backward", options.get("need")

    def forward_pass(inputs, options):
        try:
            return run_forward(*copy.deepcopy(inputs), **fresh(options))
        except Exception as e:
            raise Wrong(f"{where}{op} raised {one_line(e)}.") from None
    y, cache = forward_pass(inputs, options)
    right_cache = vars(F)[op](*inputs, **fresh(options))[1]
    dy = rng.standard_normal(np.shape(y)) if np.ndim(y) else 0.7

    def take(result):
        return gradients(op, inputs, result, need)[0]
    right, names = gradients(op, inputs, vars(F)[name](dy, right_cache), need)

    def are_right(grads):
        if same(grads, right, 1e-6):
            return True
        if not isinstance(grads, (tuple, list)) or len(grads) != len(names):
            raise Wrong(f"Return {len(names)} gradients: {', '.join(names)}.")
        shapes, expected = [*map(np.shape, grads)], [*map(np.shape, right)]
        if shapes != expected and sorted(shapes) == sorted(expected):
            raise Wrong(f"Return the gradients in the order of the inputs: {', '.join(names)}.")
        hints = {}                                        # hint -> the gradients that it is for
        case = Case((dy, right_cache), exercise=None if need else OPERATIONS[name], take=take,
                    rtol=1e-6, about=about)
        hint_for_all = mistake_of(grads, case)
        for i, (n, a, b) in enumerate(zip(names, grads, right, strict=True)):
            if not same(a, b, 1e-6):
                hint = hint_for_all or hint_of(a, replace(
                    case, answer=b, take=lambda result, i=i: take(result)[i]))
                hints.setdefault(hint, []).append(n)
        texts = [f"{', '.join(wrong_names)} {'are' if len(wrong_names) > 1 else 'is'} wrong. {hint}"
                 for hint, wrong_names in hints.items()]
        if run_forward is answers.get(op) and (
                difference := cache_difference(answers, op, inputs, options)):
            texts.append(f"Your cache is another one than the library's: {difference}")
        raise Wrong(" ".join(texts))
    yield Case((dy, cache), are_right, take=take, where=where)
    if need:
        return
    _, cache = forward_pass(inputs, options)              # as where a layer is used twice
    forward_pass(*next_call)
    for _ in range(2):
        with suppress(Exception):
            if same(take(answers[name](dy, cache)), right, 1e-6):
                continue
        raise Wrong(f"{where}The gradients change if other calls come before: a backward pass "
                    "reads its cache, not a global variable, and changes neither its cache nor a "
                    "weight.")
    _, cache = forward_pass(in_float32(inputs), in_float32(options))
    yield Case(tuple(in_float32((dy, cache))), lambda grads: are_float32(grads, names), take=take,
               where=where)


OPERATIONS = {f.__name__: Exercise(f, MISTAKES.get(f.__name__, {}), draw=partial(draw, op),
                                   rtol=1e-9, draws=1, is_file=True)
              for op, pair in tracing.OPERATIONS.items()
              for f, draw in zip(pair, (forward, backward), strict=True)}
