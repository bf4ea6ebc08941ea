"""Numerical against analytical gradients."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .checks import brief


@dataclass
class GradcheckReport:
    """The result of a gradient check; true when the worst error is within ``tolerance``.

    ``worst`` is (input's name, index or ``"direction k"``, analytical, numerical value)
    at the largest relative error, ``errors`` the largest of each input by name.
    """

    max_relative_error: float
    worst: tuple
    errors: dict
    tolerance: float

    def __bool__(self):
        return bool(self.max_relative_error <= self.tolerance)      # False for NaN

    def __str__(self):
        name, index, analytical, numerical = self.worst
        where = f"[{', '.join(map(str, index))}]" if isinstance(index, tuple) else f" {index}"
        lines = [f"{n:32} {e:9.2e}" for n, e in self.errors.items()]
        return "\n".join([f"{'gradient of':32} {'rel. error':>9}", *lines,
                          f"worst: {name}{where}: analytical {analytical:.10g}, "
                          f"numerical {numerical:.10g}",
                          f"{'pass' if self else 'FAIL'}: {self.max_relative_error:.2e} "
                          f"against {self.tolerance:.0e}"])


FAR = 8.0                                                 # how far out the second look is
STEPS = (1.0, 10.0, 0.1, 1e2, 1e-2)                       # of eps, until one agrees


def gradcheck(op: Callable, op_backward: Callable, inputs: Sequence[np.ndarray], *,
              names: Sequence[str] | None = None, eps: float = 1e-5, tolerance: float = 1e-6,
              elementwise: int = 64, directions: int = 8, seed: int = 0, **kwargs
              ) -> GradcheckReport:
    """Hold a backward pass against central differences of its forward pass.

    op             ``y, cache = op(*inputs, **kwargs)``; must give the same y each time, so
                   a random op makes its own generator: ``lambda x: dropout(x, .1, rng(0))``.
    op_backward    ``dx, ... = op_backward(dy, cache)``: one gradient for each floating
                   input, in order; integer inputs have none, ``None`` is not checked.
                   It may write over ``dy`` only if it returns that array as a gradient.
    inputs         arrays, taken as float64 (integers stay); they come back unchanged.
    elementwise    an input of at most this many entries is checked entry by entry; a larger
                   one along ``directions`` random directions and as many entries.
    eps            the step, tried first as it is and relative to the input's size.

    The scalar loss is ``L = sum(y * r)`` with a random r, so ``dy = r``, and

        numerical = (L(x + h d) - L(x - h d)) / 2h

    along an entry, or along a direction d that moves every entry by +1 or -1, so that a
    single wrong entry among thousands shows in full.  The relative error is
    ``|a - n| / max(|a|, |n|, s)`` for an entry and ``|a - n| / s`` for a direction, with ``s``
    the root mean square of that input's gradient.  Where a step does not agree, smaller and
    larger ones are tried: a right gradient agrees with one of them.  A few entries and
    directions are checked again with the first input ``FAR`` times as large, where a clip or a
    saturation may begin, to 100 times the tolerance.

    Raises ``ValueError`` when a gradient is missing or has another shape than its input, and when
    either pass changes its inputs, its cache or a ``dy`` that it does not return.
    """
    if not (callable(op) and callable(op_backward)):
        raise ValueError(f"gradcheck: {brief(op)} and {brief(op_backward)}, expected a function "
                         "and its backward pass")
    inputs = [np.array(x, np.float64) if np.issubdtype(np.asarray(x).dtype, np.floating)
              else np.asarray(x) for x in inputs]
    if names is None:
        names = list(inspect.signature(op).parameters)
        names += [f"input {i}" for i in range(len(names), len(inputs))]
    checked = [(n, x) for n, x in zip(names, inputs, strict=False) if x.dtype == np.float64]
    rng = np.random.default_rng([seed, 0x6C])  # not the stream that made the inputs
    y, _ = op(*inputs, **kwargs)
    r = rng.standard_normal(np.shape(y))

    def loss():
        """L, and how far rounding may have moved it."""
        terms = op(*inputs, **kwargs)[0] * r
        total = float(np.sum(terms))
        return total, 4 * np.finfo(float).eps * (abs(total) + float(np.linalg.norm(terms)))

    errors, top, worst = {}, -1.0, None
    for far in (False, True):
        if far and top > tolerance:                       # the fault is found, with its entry
            break
        before = checked[0][1].copy() if checked else None
        if far:
            checked[0][1][...] *= FAR
            with np.errstate(all="ignore"):
                finite = np.isfinite(loss()[0])
            if not finite:
                checked[0][1][...] = before
                break
        grads = _gradients(op, op_backward, inputs, checked, r, kwargs)
        for (name, x), grad in zip(checked, grads, strict=True):
            if grad is None:
                continue
            errors.setdefault(name, 0.0)
            size = float(np.sqrt(np.mean(grad * grad))) if grad.size else 0.0
            some = (2, 4) if far else (directions, elementwise)
            for where, a, d, scale in _places(x, grad, rng, *some, far):
                error, n = _error(x, a, d, loss, eps, max(size, 1e-12), scale, tolerance)
                if far and error <= 1e2 * tolerance:      # rough: there a slope may be all rounding
                    continue
                if not error <= errors[name]:
                    errors[name] = error
                if not error <= top:
                    top, worst = error, (name, where, float(a), float(n))
                if np.isnan(error):
                    return GradcheckReport(error, worst, errors, tolerance)
        if far:
            checked[0][1][...] = before
    if worst is None:
        raise ValueError("gradcheck: there is no gradient to check")
    return GradcheckReport(top, worst, errors, tolerance)


def _gradients(op, op_backward, inputs, checked, r, kwargs):
    """The analytical gradient of each checked input, or ``None``."""
    before = [x.copy() for x in inputs]
    _, cache = op(*inputs, **kwargs)
    unchanged("forward pass", inputs, before, "its inputs")
    kept = copy.deepcopy(cache)
    dy = r.copy() if np.ndim(r) else float(r)
    grads = op_backward(dy, cache)
    grads = grads if isinstance(grads, (tuple, list)) else (grads,)
    unchanged("backward pass", inputs, before, "the inputs of the forward pass")
    unchanged("backward pass", cache, kept, "its cache")
    if not any(grad is dy for grad in grads):             # else it was written over on purpose
        unchanged("backward pass", dy, r, "the dy that it is given")
    if len(grads) != len(checked):
        raise ValueError(f"gradcheck: {len(grads)} gradients for {len(checked)} inputs "
                         f"({', '.join(n for n, _ in checked)})")
    for (name, x), grad in zip(checked, grads, strict=True):
        if grad is not None and np.shape(grad) != x.shape:
            raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                             f"{name} has {x.shape}")
    # Copies: a backward pass may hand out an array that it writes to again.
    return [None if grad is None else np.array(grad, np.float64) for grad in grads]


def unchanged(which, now, before, name):
    """Raise ``ValueError`` of one line where one of some arrays is not what it was."""
    if not all(map(_equal, arrays_in(now), arrays_in(before))):
        raise ValueError(f"gradcheck: the {which} changes {name}, expected it to leave all but its "
                         "results as they were: work on a copy")


def _equal(a, b):
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def arrays_in(value):
    """Yield every array in a cache: in tuples, lists and dictionaries, and by itself."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


def _places(x, grad, rng, directions, elementwise, far):
    """(where, analytical, d, whether relative to itself) for directions and entries of x; far
    out, the entries that are largest."""
    entries = np.arange(x.size)
    if x.size > elementwise:
        for k in range(directions):
            d = rng.choice([-1.0, 1.0], x.shape)
            yield f"direction {k}", np.sum(grad * d), d, False
        entries = (np.argsort(np.abs(x), axis=None)[-elementwise:] if far else
                   rng.choice(x.size, directions, replace=False))
    for i in entries:
        index = np.unravel_index(i, x.shape)
        d = np.zeros_like(x)
        d[index] = 1.0
        yield tuple(map(int, index)), grad[index], d, True


def _error(x, a, d, loss, eps, size, relative, tolerance):
    """(relative error, numerical value) at the step that agrees best; x is put back to the bit.

    A step at which rounding may hide an error of ``tolerance`` is not clear.  It counts only where
    none is, as where the gradient is tiny beside the loss, and then up to rounding.
    """
    original, tried = x.copy(), []
    own = float(np.abs(x).max(initial=0.0, where=d != 0))
    for h in sorted({eps * step * of for step in STEPS for of in (1.0, own) if of},
                    key=lambda h: abs(np.log(h / eps))):
        try:
            x[...] = original + h * d
            up, noise_up = loss()
            x[...] = original - h * d
            down, noise_down = loss()
        finally:
            x[...] = original
        n, noise = (up - down) / (2 * h), (noise_up + noise_down) / (2 * h)
        of = max(size, abs(a), abs(n)) if relative else max(size, abs(n) / x.size ** 0.5)
        if np.isfinite(a) and np.isfinite(n):
            clear = noise <= tolerance * of
            tried.append((clear, max(0.0, abs(a - n) - noise * (not clear)) / of, n))
            if clear and tried[-1][1] <= 0.03 * tolerance:
                break
    any_clear = any(clear for clear, _, _ in tried) and size > 1e-6
    return min(((error, n) for clear, error, n in tried if clear or not any_clear),
               default=(float("nan"), float("nan")))


def gradcheck_layer(layer, x, train=True, seed=0, **options):
    """Check a layer or model, by its input and by each of its trainable parameters.

    layer   built with ``dtype=np.float64``; ``forward(x, train, rng)`` or ``forward(x)``.
    x       its input, float (checked too, where the layer returns a ``dx``) or integer ids.
    train   with dropout, drawn at each pass from ``np.random.default_rng(seed)``.

    ``options`` as for :func:`gradcheck`.  Gradients and data are left as they were.
    """
    named = {n: p for n, p in layer.named_parameters() if p.trainable}
    if any(p.data.dtype != np.float64 for p in named.values()):
        raise ValueError("gradcheck_layer: build the layer with dtype=np.float64")
    takes_rng = "rng" in inspect.signature(layer.forward).parameters
    x, before = np.asarray(x), [(p, p.data, p.grad) for p in named.values()]

    def op(x, *data):
        for p, d in zip(named.values(), data, strict=True):
            p.data = d
        if takes_rng:
            return layer.forward(x, train=train, rng=np.random.default_rng(seed))
        return layer.forward(x)

    def op_backward(dy, cache):
        for p in named.values():
            p.grad = None
        dx = layer.backward(dy, cache)
        # A parameter that the input did not reach (an unused position) has gradient 0.
        grads = [np.zeros_like(p.data) if p.grad is None else p.grad for p in named.values()]
        return grads if np.issubdtype(x.dtype, np.integer) else [dx, *grads]

    try:
        return gradcheck(op, op_backward, [x, *(p.data for p, *_ in before)], seed=seed,
                         names=["x", *named], **options)
    finally:
        for p, data, grad in before:
            p.data, p.grad = data, grad
