"""Values that a trace replaces while a model runs, by name: ``minifpt.trace(model, change={...})``.

A **change** is a function of the output of a layer or of an operation.  The function's result
replaces that output for everything that comes later.  The backward pass runs through the change,
too, so the gradients are those of the changed computation::

    with minifpt.trace(model, change={"trunk.h.*.attn": lambda y: 0 * y}) as t: ...

For a function that computes each number from the number in the same place, the derivative is
found by differences in float64.  A function that mixes numbers, such as a mean over the batch,
needs a pair ``(function, backward)``, where ``backward(dy, y)`` is the gradient of ``y``.
"""

import difflib
import itertools
from fnmatch import fnmatchcase

import numpy as np

from .checks import brief

STEP = 2.0 ** -17                                         # of a difference, relative to 1 + |y|
FINER = 0.37                                              # a finer step, relative to the step
UNEVEN = 1e-2                                             # difference of slopes that is refused
MIXED = 1e-4                                              # of a step: rounding is far below it
# Operations whose output is also used before their backward pass runs: a change there would give
# wrong gradients.
REFUSED = {"residual": "the layer whose output it is, such as 'trunk.h.0' or 'trunk.h.0.attn'"}


class Changes:
    """The changes of a trace: of the outputs of a forward pass (``outputs``) and of the gradients
    that come back to them (``grads``), each {full name: function or pair}.

    layers and operations are the names that a model has: of its layers, and of operations that a
    layer may run.
    """

    def __init__(self, change, change_grads, layers, operations):
        self.layers, self.operations, self.ran = layers, operations, set()
        self.outputs = self._resolve("change", change, pairs=True)
        self.grads = self._resolve("change_grads", change_grads, pairs=False)

    def _resolve(self, argument, changes, pairs):
        """Return {full name: function} from {pattern: function}."""
        if not isinstance(changes or {}, dict):
            raise ValueError(f"trace: {argument} is {brief(changes)}, expected a dictionary "
                             "{name: function}")
        functions, patterns = {}, {}
        for pattern, function in (changes or {}).items():
            parts = function if pairs and isinstance(function, tuple) else (function,)
            if not all(map(callable, parts)) or len(parts) not in (1, 2):
                raise ValueError(f"trace: {argument}['{pattern}'] is {brief(function)}, expected a "
                                 "function" + " or a pair (function, backward)" * pairs)
            for name in self._names(pattern):
                if name in functions:
                    raise ValueError(f"trace: both '{patterns[name]}' and '{pattern}' change "
                                     f"'{name}': expected one change for each name")
                functions[name], patterns[name] = function, pattern
        return functions

    def _names(self, pattern):
        """Return the full names of the layers, or else of the operations, that match a pattern."""
        if not isinstance(pattern, str):
            raise ValueError(f"trace: got the name {brief(pattern)}, expected a text such as "
                             "'trunk.h.0.attn'")
        if names := [name for name in self.layers if matches(name, pattern)]:
            return names
        outer, _, op = pattern.rpartition(".")
        if op in REFUSED:
            raise ValueError(f"trace: '{pattern}' cannot be changed: expected {REFUSED[op]}")
        names = [joined(name, op) for name in self.layers if matches(name, outer)]
        if names and op in self.operations:
            return names
        known = itertools.chain(self.layers, (joined(name, op) for name in self.layers
                                              for op in self.operations if op not in REFUSED))
        near = difflib.get_close_matches(pattern, known, 3, 0.3)
        raise ValueError(f"trace: no layer or operation '{pattern}'"
                         + (f", the nearest are {', '.join(map(repr, near))}" if near else ""))

    def output(self, name, y):
        """Return the changed output."""
        self.ran.add(name)
        function = self.outputs[name]
        return replaced_by(function[0] if isinstance(function, tuple) else function, y,
                           f"change of '{name}'")

    def grad(self, name, dy):
        """Return the changed gradient, or ``dy`` itself if no change has that name."""
        if name not in self.grads or dy is None:
            return dy
        self.ran.add(name)
        return replaced_by(self.grads[name], dy, f"change_grads of '{name}'")

    def backward(self, name, y, dy):
        """Return the gradient of ``y``, an output before its change, from the changed one's."""
        function = self.outputs[name]
        if isinstance(function, tuple):
            return replaced_by(lambda dy: function[1](dy, y.copy()), dy, f"backward of '{name}'")
        return dy * derivative(function, y, name).astype(dy.dtype)

    def check_all_ran(self, steps):
        """Raise ``ValueError`` for a change of an operation that never ran in a layer, if other
        operations ran there."""
        for changes, is_backward in ((self.outputs, False), (self.grads, True)):
            for name in changes.keys() - self.ran - {*self.layers}:
                layer, _, op = name.rpartition(".")
                others = {step.op for step in steps
                          if step.layer == layer and step.backward == is_backward}
                if others:
                    raise ValueError(f"trace: '{layer}' never ran an operation '{op}' that can be "
                                     f"changed; it ran {', '.join(sorted(others))}")


def matches(name, pattern):
    """Return whether a pattern matches a dotted name; a * stands for one part of the name."""
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def joined(layer, op):
    """Return the full name of an operation in a layer; the model itself has an empty name."""
    return f"{layer}.{op}".lstrip(".")


def replaced_by(function, y, label):
    """Return ``function(y)`` in y's dtype.  Raises ``ValueError`` unless it is an array like y."""
    if not (isinstance(y, np.ndarray) and np.issubdtype(y.dtype, np.floating)):
        raise ValueError(f"trace: {label}: there is no array of numbers to change, got {brief(y)}")
    z = np.asarray(function(y.copy()))
    if z.shape != y.shape or not np.issubdtype(z.dtype, np.floating):
        raise ValueError(f"trace: {label}: the function returned shape {z.shape} and dtype "
                         f"{z.dtype}, expected {y.shape} and {y.dtype}")
    return np.array(z, y.dtype)


def derivative(function, y, name):
    """Return the derivative, number by number, of a function that computes each number from the
    number in the same place.  Raises ``ValueError`` for a function that mixes them, or that jumps
    as rounding does."""
    def refuse(reason):
        raise ValueError(f"trace: change of '{name}': the function {reason}, so its gradient is "
                         "not known: expected a pair (function, backward) with backward(dy, y)")
    y, rng = y.astype(np.float64), np.random.default_rng(0)

    def evaluate(x):
        return np.asarray(function(x), np.float64)
    step = STEP * (1.0 + np.abs(y)) * rng.uniform(1.0, 2.0, y.shape)
    above, below, middle = evaluate(y + step), evaluate(y - step), evaluate(y.copy())
    allowed = MIXED * step + 1e-12 * np.abs(middle).max(initial=0.0)
    for _ in range(8):                                    # one may miss two numbers that are mixed
        there = rng.random(y.shape) < 0.5                 # a step in some of the numbers
        mixed = evaluate(y + step * there)
        if (np.abs(mixed - np.where(there, above, middle)) > allowed).any():
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
    return np.where(jumps, np.where(np.abs(ahead) < np.abs(behind), ahead, behind), slope)
