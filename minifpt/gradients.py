"""Numerical against analytical gradients."""

import inspect
from dataclasses import dataclass

import numpy as np


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


def gradcheck(op, op_backward, inputs, *, names=None, eps=1e-5, tolerance=1e-6,
              elementwise=64, directions=8, seed=0, **kwargs):
    """Hold a backward pass against central differences of its forward pass.

    op             ``y, cache = op(*inputs, **kwargs)``; must give the same y each time, so
                   a random op makes its own generator: ``lambda x: dropout(x, .1, rng(0))``.
    op_backward    ``dx, ... = op_backward(dy, cache)``: one gradient for each floating
                   input, in order; integer inputs have none, ``None`` is not checked.
    inputs         arrays, taken as float64 (integers stay); they come back unchanged.
    elementwise    an input of at most this many entries is checked entry by entry; a
                   larger one along ``directions`` random directions and as many entries.
    eps            the step, relative to the size of the entry where that is above 1.

    The scalar loss is ``L = sum(y * r)`` with a random r, so ``dy = r``, and

        numerical = (L(x + h) - L(x - h)) / 2h

    The relative error is ``|a - n| / max(|a|, |n|, s)`` with ``s`` the root mean square of
    that input's gradient: below it a difference is rounding, not a fault.

    Raises ``ValueError`` when a gradient is missing or has another shape than its input.
    """
    inputs = [np.array(x, np.float64) if np.issubdtype(np.asarray(x).dtype, np.floating)
              else np.asarray(x) for x in inputs]
    if names is None:
        names = list(inspect.signature(op).parameters)
        names += [f"input {i}" for i in range(len(names), len(inputs))]
    checked = [(n, x) for n, x in zip(names, inputs, strict=False) if x.dtype == np.float64]
    rng = np.random.default_rng([seed, 0x6C])  # not the stream that made the inputs

    y, cache = op(*inputs, **kwargs)
    r = rng.standard_normal(np.shape(y))
    grads = op_backward(r.copy() if np.ndim(y) else float(r), cache)   # it may write over dy
    grads = grads if isinstance(grads, (tuple, list)) else (grads,)
    if len(grads) != len(checked):
        raise ValueError(f"gradcheck: {len(grads)} gradients for {len(checked)} inputs "
                         f"({', '.join(n for n, _ in checked)})")

    def loss():
        return float(np.sum(op(*inputs, **kwargs)[0] * r))

    errors, top, worst = {}, -1.0, None
    for (name, x), grad in zip(checked, grads, strict=True):
        if grad is None:
            continue
        if np.shape(grad) != x.shape:
            raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                             f"{name} has {x.shape}")
        grad = np.asarray(grad)
        scale = np.sqrt(np.mean(grad * grad)) if grad.size else 0.0
        errors[name] = 0.0
        for where, a, n in _pairs(x, grad, loss, rng, eps, elementwise, directions):
            # The gradient along a direction of unit length is as large as one entry's.
            error = (abs(a - n) / max(abs(a), abs(n), scale, 1e-12)
                     if np.isfinite(a) and np.isfinite(n) else float("nan"))
            errors[name] = max(errors[name], error) if error == error else error
            if not error <= top:
                top, worst = error, (name, where, float(a), float(n))
                if error != error:
                    return GradcheckReport(error, worst, errors, tolerance)
    if worst is None:
        raise ValueError("gradcheck: there is no gradient to check")
    return GradcheckReport(top, worst, errors, tolerance)


def _pairs(x, grad, loss, rng, eps, elementwise, directions):
    """(where, analytical, numerical) for entries of x, and for directions if x is large."""
    original = x.copy()
    entries = np.arange(x.size)
    if x.size > elementwise:
        entries = rng.choice(x.size, directions, replace=False)
        for k in range(directions):
            d = rng.standard_normal(x.shape)
            d /= np.linalg.norm(d)
            yield f"direction {k}", np.sum(grad * d), _slope(x, original, d, eps, loss)
    for i in entries:
        index = np.unravel_index(i, x.shape)
        d = np.zeros_like(x)
        d[index] = 1.0
        h = eps * max(1.0, abs(original[index]))
        yield tuple(map(int, index)), grad[index], _slope(x, original, d, h, loss)


def _slope(x, original, d, h, loss):
    """Central difference along d, in place; x is put back to the bit."""
    try:
        x[...] = original + h * d
        up = loss()
        x[...] = original - h * d
        down = loss()
    finally:
        x[...] = original
    return (up - down) / (2 * h)


def gradcheck_layer(layer, x, train=True, seed=0, **options):
    """Check a layer or model, by its input and by each of its trainable parameters.

    layer   built with ``dtype=np.float64``; ``forward(x, train, rng)`` or ``forward(x)``.
    x       its input, float (checked too, where the layer returns a ``dx``) or integer ids.
    train   with dropout, drawn at each pass from ``np.random.default_rng(seed)``.

    ``options`` as for :func:`gradcheck`.  Gradients and data are left as they were.
    """
    named = [(n, p) for n, p in layer.named_parameters() if p.trainable]
    if any(p.data.dtype != np.float64 for _, p in named):
        raise ValueError("gradcheck_layer: build the layer with dtype=np.float64")
    takes_rng = "rng" in inspect.signature(layer.forward).parameters
    x = np.asarray(x)
    before = [(p.data, p.grad) for _, p in named]

    def op(x, *data):
        for (_, p), d in zip(named, data, strict=True):
            p.data = d
        if takes_rng:
            return layer.forward(x, train=train, rng=np.random.default_rng(seed))
        return layer.forward(x)

    def op_backward(dy, cache):
        for _, p in named:
            p.grad = None
        dx = layer.backward(dy, cache)
        # A parameter that the input did not reach (an unused position) has gradient 0.
        grads = [np.zeros_like(p.data) if p.grad is None else p.grad for _, p in named]
        return grads if np.issubdtype(x.dtype, np.integer) else [dx, *grads]

    try:
        return gradcheck(op, op_backward, [x, *(p.data for _, p in named)], seed=seed,
                         names=["x", *(n for n, _ in named)], **options)
    finally:
        for (_, p), (data, grad) in zip(named, before, strict=True):
            p.data, p.grad = data, grad
