"""Compare analytical gradients with numerical ones."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .checks import brief


@dataclass
class GradcheckReport:
    """The result of a gradient check; it is true if no relative error exceeds ``tolerance``.

    ``worst`` is (input's name, index or ``"direction k"``, analytical, numerical value) at the
    largest relative error.  ``errors`` is the largest relative error of each input, by name.
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


FAR = 8.0                                                 # scale of the inputs in the second check
STEPS = (1.0, 10.0, 0.1, 1e2, 1e-2)                       # multiples of eps, until one agrees


def gradcheck(op: Callable, op_backward: Callable, inputs: Sequence[np.ndarray], *,
              names: Sequence[str] | None = None, eps: float = 1e-5, tolerance: float = 1e-6,
              elementwise: int = 64, directions: int = 8, seed: int = 0, **kwargs
              ) -> GradcheckReport:
    """Compare a backward pass with central differences of its forward pass.

    op             ``y, cache = op(*inputs, **kwargs)``.  It must return the same y each time, so
                   a random op makes its own generator: ``lambda x: dropout(x, .1, rng(0))``.
    op_backward    ``dx, ... = op_backward(dy, cache)``: a gradient for each input of
                   floating-point numbers, in order; ``None`` is not checked.  It may write over
                   ``dy`` only if it returns that array as a gradient.
    inputs         arrays, converted to float64 unless they are integers; they stay unchanged.
    elementwise    inputs with at most this many entries are checked entry by entry; larger ones
                   along ``directions`` random directions and at as many entries.
    eps            the step h that is tried first, and again relative to the input's size.

    The scalar loss is ``L = sum(y * r)`` with a random r, so ``dy = r``, and

        numerical = (L(x + h d) - L(x - h d)) / 2h

    where d is one entry, or a direction that moves every entry by +1 or -1, so that a single
    wrong entry among thousands shows in full.  The relative error is
    ``|a - n| / max(|a|, |n|, s)`` for an entry and ``|a - n| / s`` for a direction, with ``s``
    the root mean square of that input's gradient.  If they disagree, smaller and larger steps
    are tried: a right gradient agrees at one of them.  A second check multiplies the first input
    by ``FAR``, where a clip or a saturation may begin, and takes a few entries and directions to
    100 times the tolerance.

    Raises ``ValueError`` if a gradient is missing or has another shape than its input, or if
    either pass changes its inputs, its cache or a ``dy`` that it does not return.
    """
    if not (callable(op) and callable(op_backward)):
        raise ValueError(f"gradcheck: got {brief(op)} and {brief(op_backward)}, expected a "
                         "function and its backward pass")
    inputs = [np.array(x, np.float64) if np.issubdtype(np.asarray(x).dtype, np.floating)
              else np.asarray(x) for x in inputs]
    if names is None:
        names = list(inspect.signature(op).parameters)
        names += [f"input {i}" for i in range(len(names), len(inputs))]
    checked = [(n, x) for n, x in zip(names, inputs, strict=False) if x.dtype == np.float64]
    rng = np.random.default_rng([seed, 0x6C])             # not the generator of the inputs
    y, _ = op(*inputs, **kwargs)
    r = rng.standard_normal(np.shape(y))

    def loss():
        """Return L, and a bound on its rounding error."""
        terms = op(*inputs, **kwargs)[0] * r
        total = float(np.sum(terms))
        return total, 4 * np.finfo(float).eps * (abs(total) + float(np.linalg.norm(terms)))

    errors, top, worst = {}, -1.0, None
    for far in (False, True):
        if far and top > tolerance:                       # the first check shows the fault
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
            limits = (2, 4) if far else (directions, elementwise)
            for where, a, d, is_entry in _places(x, grad, rng, *limits, far):
                error, n = _error(x, a, d, loss, eps, max(size, 1e-12), is_entry, tolerance)
                if far and (n is None or error <= 1e2 * tolerance):
                    continue                              # saturated slopes are mostly rounding
                if n is None:
                    raise ValueError(f"gradcheck: the output is so large beside the gradient of "
                                     f"{name} that rounding hides it: subtract a constant from "
                                     "the output")
                if not error <= errors[name]:
                    errors[name] = error
                if not error <= top:
                    top, worst = error, (name, where, float(a), float(n))
                if np.isnan(error):
                    return GradcheckReport(error, worst, errors, tolerance)
        if far:
            checked[0][1][...] = before
    if worst is None:
        raise ValueError("gradcheck: no input has a gradient to check")
    return GradcheckReport(top, worst, errors, tolerance)


def _gradients(op, op_backward, inputs, checked, r, kwargs):
    """Return the analytical gradient of each checked input, or ``None``."""
    before = [x.copy() for x in inputs]
    _, cache = op(*inputs, **kwargs)
    unchanged("forward pass", inputs, before, "its inputs")
    cache_before = copy.deepcopy(cache)
    dy = r.copy() if np.ndim(r) else float(r)
    grads = op_backward(dy, cache)
    grads = grads if isinstance(grads, (tuple, list)) else (grads,)
    unchanged("backward pass", inputs, before, "the inputs of the forward pass")
    unchanged("backward pass", cache, cache_before, "its cache")
    if not any(grad is dy for grad in grads):             # a returned dy may be written over
        unchanged("backward pass", dy, r, "its argument dy")
    if len(grads) != len(checked):
        raise ValueError(f"gradcheck: {len(grads)} gradients, expected {len(checked)} "
                         f"({', '.join(n for n, _ in checked)})")
    for (name, x), grad in zip(checked, grads, strict=True):
        if grad is not None and np.shape(grad) != x.shape:
            raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                             f"expected {x.shape}")
    # Copies: a backward pass may hand out an array that it writes to again.
    return [None if grad is None else np.array(grad, np.float64) for grad in grads]


def unchanged(which, now, before, name):
    """Raise ``ValueError`` if an array in ``now`` differs from the one in ``before``."""
    if not all(map(_equal, arrays_in(now), arrays_in(before))):
        raise ValueError(f"gradcheck: the {which} changes {name}: let it work on a copy")


def _equal(a, b):
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def arrays_in(value):
    """Yield every array in a value, also in tuples, lists and dictionaries."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item)


def _places(x, grad, rng, directions, elementwise, far):
    """Yield (where, analytical, d, is_entry) for directions and entries of x; in the second check
    (``far``) for its largest entries."""
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


def _error(x, a, d, loss, eps, size, is_entry, tolerance):
    """Return (relative error, numerical value) at the step that agrees best; x gets its bits back.

    A step is clear if rounding cannot hide an error of ``tolerance``.  If no step is clear, for
    example because the output is large beside the gradient, the steps with the least rounding
    count, each up to its rounding.  Where that is more than a hundredth the gradient is unknown:
    the numerical value is then ``None``.
    """
    original, trials = x.copy(), []
    x_size = float(np.abs(x).max(initial=0.0, where=d != 0))
    for h in sorted({eps * step * unit for step in STEPS for unit in (1.0, x_size) if unit},
                    key=lambda h: abs(np.log(h / eps))):
        try:
            x[...] = original + h * d
            up, noise_up = loss()
            x[...] = original - h * d
            down, noise_down = loss()
        finally:
            x[...] = original
        n, noise = (up - down) / (2 * h), (noise_up + noise_down) / (2 * h)
        scale = max(size, abs(a), abs(n)) if is_entry else max(size, abs(n) / x.size ** 0.5)
        if np.isfinite(a) and np.isfinite(n):
            clear = noise <= tolerance * scale
            error = max(0.0, abs(a - n) - noise * (not clear)) / scale
            trials.append((error, n, noise / scale))
            if clear and error <= 0.03 * tolerance:
                break
    least = min((rounding for *_, rounding in trials), default=0.0)
    if least > 0.01:
        if size > 1e-6:
            return np.nan, None
        limit = np.inf                                    # 0, but for rounding: every step counts
    else:
        limit = tolerance if least <= tolerance else 10 * least
    return min(((error, n) for error, n, rounding in trials if rounding <= limit),
               default=(np.nan, np.nan))


def gradcheck_layer(layer, x, train=True, seed=0, **options):
    """Check the gradients of a layer or model: of its input and its trainable parameters.

    layer   built with ``dtype=np.float64``; ``forward(x, train, rng)`` or ``forward(x)``.
    x       its input: floating-point numbers, which are checked if the layer returns a ``dx``, or
            integer ids.
    train   whether dropout is on, drawn in each pass from ``np.random.default_rng(seed)``.

    ``options`` as for :func:`gradcheck`.  The layer's data and gradients stay unchanged.  Raises
    ``ValueError`` for a layer whose gradients do not add up over two backward passes.
    """
    named = {n: p for n, p in layer.named_parameters() if p.trainable}
    if any(p.data.dtype != np.float64 for p in named.values()):
        raise ValueError("gradcheck_layer: build the layer with dtype=np.float64")
    takes_rng = "rng" in inspect.signature(layer.forward).parameters
    x, before = np.asarray(x), [(p, p.data, p.grad) for p in named.values()]
    ids = np.issubdtype(x.dtype, np.integer)

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
        # The gradient of a parameter that this input does not use, a position, is 0.
        grads = [np.zeros_like(p.data) if p.grad is None else p.grad for p in named.values()]
        return grads if ids else [dx, *grads]

    def gradients(passes, between):
        data = [p.data for p, *_ in before]
        y, cache = op(x, *data)
        if between:
            op(x[::-1] if ids else 0.999 * x, *data)      # other examples, of the same kind
        dy = np.random.default_rng(seed).standard_normal(y.shape)
        for p in named.values():
            p.grad = None
        for _ in range(passes):
            layer.backward(dy.copy(), cache)
        return [np.zeros_like(p.data) if p.grad is None else p.grad for p in named.values()]

    try:
        report = gradcheck(op, op_backward, [x, *(p.data for p, *_ in before)], seed=seed,
                         names=["x", *named], **options)
        if not report:
            return report
        for name, once, twice in zip(named, gradients(1, False), gradients(2, True), strict=True):
            if not np.allclose(twice, 2 * once, 1e-6, 1e-9 * np.abs(once).max(initial=0.0)):
                raise ValueError(
                    f"gradcheck_layer: {name}: two backward passes of one cache, after another "
                    "forward pass, must add up to twice the gradient: add with add_grad, and keep "
                    "nothing in the layer")
        return report
    finally:
        for p, data, grad in before:
            p.data, p.grad = data, grad
