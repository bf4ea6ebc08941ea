"""Values that a trace replaces while a model runs, by name: ``minifpt.trace(model, change={...})``.

A **change** is a function of the output of a layer or of an operation.  The function's result
replaces that output for everything that comes later.  The backward pass runs through the change,
too, so the gradients are those of the changed computation::

    with minifpt.trace(model, change={"trunk.h.*.attn": lambda y: 0 * y}) as t: ...

For a function that computes each number from the number in the same place, the derivative is
found by differences in float64.  A function that mixes numbers, such as a mean over the batch,
needs a pair ``(function, backward)``, where ``backward(dy, y)`` is the gradient of ``y``.

A change travels with the cache.  A pass in which something was changed gives out its cache as
:class:`Changed`, and so do the passes around it, up to the model.  A backward pass finds there
what was changed, however often it runs.
"""

import difflib
import itertools
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from .checks import brief

STEP = 2.0 ** -17                                         # of a difference, relative to 1 + |y|
FINER = 0.37                                              # a finer step, relative to the step
NEARER = 1e-3                                             # a step beside a kink, relative to it
KINK = 1e-3                                               # difference of slopes of both sides
UNEVEN = 1e-2                                             # difference of slopes that is refused
MIXED = 1e-6                                              # of a step: rounding is far below it
# Operations whose output is also used before their backward pass runs: a change there would give
# wrong gradients.
REFUSED = {"residual": "the layer whose output it is, such as 'trunk.h.0' or 'trunk.h.0.attn'"}


@dataclass(eq=False)
class Pass:
    """One pass of a layer or of an operation, in the tree of a trace.

    place     (layer's name, operation's name), the second "" for a layer; the first is ``None``
              outside of the model, where no change acts.
    outer     the pass within which it runs.
    inner     the forward passes within it; in a backward pass, those that may still run back.
    partner   the forward pass of a backward pass, or ``None``.
    cache     what a forward pass keeps for its backward pass.
    before, after   the output, where a change replaced it.
    changed   whether a change acted on it or within it.
    step      the :class:`minifpt.tracing.Step` of an operation.
    """

    place: tuple
    outer: "Pass" = None
    backward: bool = False
    inner: list = field(default_factory=list)
    partner: "Pass" = None
    cache: object = None
    before: object = None
    after: object = None
    changed: bool = False
    step: object = None

    def __str__(self):
        return f"'{joined(*self.place)}'"

    def all_inner(self):
        """Yield every forward pass within it."""
        for inner in self.inner:
            yield inner
            yield from inner.all_inner()


@dataclass(eq=False, repr=False, slots=True)
class Changed:
    """The cache of a forward pass in which something was changed.  Only a backward pass that the
    same trace records can read it."""

    made_by: Pass
    trace: object

    def refuse(self, *_):
        """Raise ``ValueError``."""
        raise ValueError(f"trace: the cache of {self.made_by} comes from a changed run: run it "
                         "backward inside the same `with`, and read values from the trace")
    __getitem__ = __iter__ = refuse

    def __getattr__(self, name):
        if name.startswith("__"):                         # NumPy and copy look for some
            raise AttributeError(name)
        self.refuse()

    def __deepcopy__(self, memo):
        return self


def plain(value):
    """Return a cache with the caches themselves in the place of each :class:`Changed`."""
    if isinstance(value, Changed):
        return plain(value.made_by.cache)
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(map(plain, value))
    return value


@dataclass(eq=False)
class Change:
    """A function that replaces an output or a gradient, and its backward pass, if it was given."""

    pattern: str
    function: object
    backward: object = None
    acted: bool = False


class Changes:
    """The changes of a trace: of the outputs of a forward pass (``outputs``) and of the gradients
    that come back to them (``grads``), each {place of a :class:`Pass`: :class:`Change`}.

    layers and operations are the names that a model has: of its layers, and of operations that a
    layer may run.
    """

    def __init__(self, change, change_grads, layers, operations):
        self.layers, self.operations = layers, operations
        self.outputs = self._resolve("change", change, pairs=True)
        self.grads = self._resolve("change_grads", change_grads, pairs=False)

    def _resolve(self, argument, changes, pairs):
        if not isinstance(changes or {}, dict):
            raise ValueError(f"trace: {argument} is {brief(changes)}, expected a dictionary "
                             "{name: function}")
        resolved = {}
        for pattern, function in (changes or {}).items():
            parts = function if pairs and isinstance(function, tuple) else (function,)
            if not all(map(callable, parts)) or len(parts) not in (1, 2):
                kind = "function or a pair (function, backward)" if pairs else "function"
                raise ValueError(f"trace: {argument}['{pattern}'] is {brief(function)}, expected a "
                                 f"{kind}")
            change = Change(pattern, *parts)
            for place in self._places(pattern):
                if place in resolved:
                    raise ValueError(f"trace: both '{resolved[place].pattern}' and '{pattern}' "
                                     f"change '{joined(*place)}': expected one change for each "
                                     "name")
                resolved[place] = change
        return resolved

    def _places(self, pattern):
        """Return (layer, "") of the layers, or else (layer, op), that match a pattern."""
        if not isinstance(pattern, str):
            raise ValueError(f"trace: got the name {brief(pattern)}, expected a text such as "
                             "'trunk.h.0.attn'")
        if names := [name for name in self.layers if matches(name, pattern)]:
            return [(name, "") for name in names]
        outer, _, op = pattern.rpartition(".")
        if op in REFUSED:
            raise ValueError(f"trace: '{pattern}' cannot be changed: expected {REFUSED[op]}")
        names = [name for name in self.layers if matches(name, outer)]
        if names and op in self.operations:
            return [(name, op) for name in names]
        known = itertools.chain(self.layers, (joined(name, op) for name in self.layers
                                              for op in self.operations if op not in REFUSED))
        near = difflib.get_close_matches(pattern, known, 3, 0.3)
        raise ValueError(f"trace: no layer or operation '{pattern}'"
                         + (f", the nearest are {', '.join(map(repr, near))}" if near else ""))

    def act(self, changes, this, value, label):
        """Return what replaces the output or the gradient of a pass, or the value itself."""
        change, (_, op) = changes.get(this.place), this.place
        # The backward pass of attention does not use the output of its dropout.
        if change is None or value is None or (op == "dropout" and this.outer.place[1]):
            return value
        change.acted = True
        return replaced_by(change.function, value, f"{label} of {this}")

    def backward(self, this, dy):
        """Return the gradient of the output before its change, from that of the changed one."""
        if this is None or this.before is None:
            return dy
        change, y = self.outputs[this.place], this.before
        if change.backward:
            return replaced_by(lambda dy: change.backward(dy, y.copy()), dy, f"backward of {this}")
        slope = derivative(change.function, y, joined(*this.place)).astype(dy.dtype)
        again = replaced_by(change.function, y, f"change of {this}")    # a counter has gone on
        if not np.array_equal(again, this.after, equal_nan=True):
            raise ValueError(f"trace: change of {this}: called again with the same output, the "
                             "function returned other numbers, so its gradient is not known")
        return dy * slope

    def check_all_acted(self, t):
        """Raise ``ValueError`` for a change that never acted in a trace in which the model ran."""
        for changes in (self.outputs, self.grads):
            for (layer, op), change in changes.items():
                if t.outputs and not change.acted:
                    ran = sorted({step.op for step in t.steps if step.layer == layer})
                    name = f"'{joined(layer, op)}'"
                    raise ValueError(f"trace: '{change.pattern}' changed nothing: " + (
                        f"no gradient came to {name} within the trace"
                        if changes is self.grads and (op in ran or layer in t.outputs and not op)
                        else f"{name} never ran; '{layer}' ran {', '.join(ran) or 'no operation'}"))


def matches(name, pattern):
    """Return whether a pattern matches a dotted name; a * stands for one part of the name.  The
    model's own name is empty, and only the empty pattern matches it."""
    names, patterns = name.split("."), pattern.split(".")
    return (len(names) == len(patterns) and bool(name) == bool(pattern)
            and all(map(fnmatchcase, names, patterns)))


def joined(layer, op):
    """Return the full name of an operation in a layer; the model itself has an empty name."""
    return f"{layer or ''}.{op}".strip(".")


def replaced_by(function, y, label):
    """Return ``function(y)`` in y's dtype.  Raises ``ValueError`` unless it is an array like y."""
    if not (isinstance(y, np.ndarray) and np.issubdtype(y.dtype, np.floating)):
        raise ValueError(f"trace: {label}: there is no array of numbers to change, got {brief(y)}")
    z = np.asarray(function(y.copy()))
    if z.shape != y.shape or not np.issubdtype(z.dtype, np.floating):
        raise ValueError(f"trace: {label}: the function returned shape {z.shape} and dtype "
                         f"{z.dtype}, expected {y.shape} and {y.dtype}")
    return np.array(z, y.dtype)


@np.errstate(all="ignore")
def derivative(function, y, name):
    """Return the derivative, number by number, of a function that computes each number from the
    number in the same place.  Raises ``ValueError`` for a function that mixes them, that jumps as
    rounding does, or that is not finite near y."""
    def refuse(reason):
        raise ValueError(f"trace: change of '{name}': the function {reason}, so its gradient is "
                         "not known: expected a pair (function, backward) with backward(dy, y)")

    def evaluate(x):
        z = np.asarray(function(x), np.float64)
        if not np.isfinite(z).all():
            refuse("is not finite at or near this output")
        return z
    y, rng = y.astype(np.float64), np.random.default_rng(0)
    step = STEP * (1.0 + np.abs(y)) * rng.uniform(1.0, 2.0, y.shape)
    above, below, middle = evaluate(y + step), evaluate(y - step), evaluate(y.copy())
    allowed = MIXED * step + 1e-12 * np.abs(middle).max(initial=0.0)
    place = np.arange(y.size).reshape(y.shape)
    for bit in range(max(y.size - 1, 0).bit_length()):    # any two places differ in some bit
        moved = place >> bit & 1 == 1
        mixed = evaluate(y + step * moved)
        if (np.abs(mixed - np.where(moved, above, middle)) > allowed).any():
            refuse("mixes numbers of different places, or differs from call to call")
    ahead, behind = (above - middle) / step, (middle - below) / step
    slope = (ahead + behind) / 2.0
    usual = max(1.0, np.quantile(np.abs(slope), 0.9)) if y.size else 1.0
    jumps = np.abs(ahead - behind) > 2.0 * usual          # more than at a kink of relu
    if jumps.sum() > 0.01 * y.size:
        refuse("jumps, as rounding does")
    finer_step = FINER * step                             # finer jumps make the two slopes differ
    finer_slope = (evaluate(y + finer_step) - evaluate(y - finer_step)) / (2.0 * finer_step)
    if y.size and np.quantile(np.abs(finer_slope - slope), 0.99) > UNEVEN * usual:
        refuse("jumps in small steps, as rounding does, or is too steep")
    # The error of both slopes grows with the square of the step, so that it can be taken off.
    better = finer_slope + (finer_slope - slope) * FINER ** 2 / (1.0 - FINER ** 2)
    kinks = np.abs(ahead - behind) > KINK * usual         # within the step
    if kinks.any():
        tiny = NEARER * step
        nearer_slope = (evaluate(y + tiny) - evaluate(y - tiny)) / (2.0 * tiny)
        better = np.where(kinks, nearer_slope, better)
    return np.where(jumps, np.where(np.abs(ahead) < np.abs(behind), ahead, behind), better)
