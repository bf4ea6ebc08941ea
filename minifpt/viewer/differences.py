"""Finite differences of one training step, number by number, and backward passes broken on purpose.

Both ask the same question of a gradient: does the loss change as it says when one number moves?
"""

import copy
import inspect
from collections import namedtuple
from contextlib import contextmanager

import numpy as np

from .. import functional as F
from .. import tracing
from ..progress import progress_bar
from .faults import FAULTS
from .rewriting import rewrite

TOLERANCE = 1e-6                                          # of a relative error
NUDGES = 1e-4, 1e-3, 1e-5, 1e-2, 1e-6                     # tried in this order
Call = namedtuple("Call", "op inputs result end rng inner")
Difference = namedtuple("Difference", "numerical nudge noise")
BREAKS = [fault for fault in FAULTS if fault.why]         # those of the step page


def in_float64(model):
    """Return a copy of a model in which every parameter is float64."""
    model = copy.deepcopy(model)
    for _, layer in tracing.named_layers(model):
        if hasattr(layer, "dtype"):
            layer.dtype = np.dtype(np.float64)
    for _, p in model.named_parameters():
        p.data, p.grad = p.data.astype(np.float64), None
    return model


class Nudged:
    """The loss of one forward pass in which one number is moved.

    Within ``tracing.replaced(nudged.operation)``, ``nudged.base = nudged.run()`` records the
    operations, then ``nudged.loss(places, index, by)``.  A place is (number of an operation in the
    forward pass, name of its input).  Operations before the first place are not computed again.
    The model is in float64, and its parameters become frozen.
    """

    def __init__(self, model, task, x, y, rng):
        self.model, self.task, self.x, self.y, self.rng = model, task, x, y, rng
        self.calls, self.depth, self.places = [], 0, None
        for _, p in model.named_parameters():
            p.trainable = False                           # nothing need be kept

    def run(self):
        logits, _ = self.model.forward(self.x, train=True, rng=copy.deepcopy(self.rng))
        return float(self.task.loss(logits, self.y)[0])

    def operation(self, op, function, back, ours):
        if back:
            return function
        signature = inspect.signature(function)

        def record(bound):
            n, rng = len(self.calls), bound.arguments.get("rng")
            self.calls.append(None)
            self.depth += 1
            result = function(*bound.args, **bound.kwargs)
            self.depth -= 1
            state = rng.bit_generator.state if rng is not None else None
            self.calls[n] = Call(op, dict(bound.arguments), result, len(self.calls), state,
                                 self.depth)
            return result

        def run(*args, **kwargs):
            if self.places is None:
                return record(signature.bind(*args, **kwargs))
            n = self.at
            if n > self.last:                             # behind all places: as always
                return function(*args, **kwargs)
            if (call := self.calls[n]).end <= self.first:
                self.at = call.end
                if call.rng is not None:                  # as if it had drawn again
                    rng = signature.bind(*args, **kwargs).arguments["rng"]
                    rng.bit_generator.state = call.rng
                return call.result
            self.at += 1
            bound = signature.bind(*args, **kwargs)
            for place, name in self.places:
                if place == n:
                    a = bound.arguments[name] = bound.arguments[name].copy()
                    a[self.index] += self.by
            return function(*bound.args, **bound.kwargs)
        return run

    def loss(self, places, index, by):
        """Return the loss with ``by`` added to one entry of the inputs at these places."""
        self.places, self.index, self.by = places, index, by
        self.first, self.last = min(n for n, _ in places), max(n for n, _ in places)
        self.at = 0
        return self.run()

    def places_of(self, n, name):
        """Return the places where a number is moved to measure the gradient of operation n's input
        ``name``.  The x of a residual also goes through the branch."""
        if self.calls[n].inputs.get("branch") is None:
            return [(n, name)]
        x = self.calls[n].inputs[name]
        maker = next((c for c in self.calls if c.result[0] is x), None)
        if maker and maker.op == "last_tokens":           # its gradient is that of all tokens
            x = maker.inputs["x"]
        source = max((i for i, c in enumerate(self.calls) if c.result[0] is x), default=-1)
        return [(i, key) for i, c in enumerate(self.calls) if i > source and c.inner == 0
                for key, value in c.inputs.items() if value is x]

    def derivative(self, places, index, expected, scale):
        """Return the :class:`Difference` ``(L(x + h) - L(x - h)) / 2h`` at the first h that agrees
        with ``expected``, else at the h that comes nearest.

        If none agrees, ``noise`` is the error that the rounding of L may have caused: a difference
        in float64 cannot resolve a gradient that is tiny beside the loss.
        """
        best = None
        for h in NUDGES:
            n = (self.loss(places, index, h) - self.loss(places, index, -h)) / (2 * h)
            error = relative(expected, n, scale)
            if best is None or error < best[0]:
                best = error, n, h
            if error <= 0.1 * TOLERANCE:
                break
        error, n, h = best
        rounding = 4 * np.finfo(np.float64).eps * abs(self.base) / h
        return Difference(n, h, rounding if error > TOLERANCE else 0.0)


def relative(a, n, scale, noise=0.0):
    """Return ``|a - n| / max(|a|, |n|, scale)``, 0 if all are 0, after ``noise`` is taken off
    ``|a - n|``."""
    return max(0.0, abs(a - n) - noise) / max(abs(a), abs(n), scale, 1e-300)


def measure(nudged, gradients, progress=True):
    """Return the :class:`Difference` of each entry, in order.

    gradients   [(number of the forward operation, name of its input, size of the gradient,
                {index: expected value})]
    """
    entries = [(places, index, expected, scale) for n, name, scale, values in gradients
               for places in [nudged.places_of(n, name)] for index, expected in values.items()]
    return [nudged.derivative(*entry) for entry in progress_bar(
        entries, desc="finite differences", unit="number", progress=progress, delay=1,
        leave=False)]


@contextmanager
def running(it):
    """Let a trace run the wrong backward pass of a fault within the ``with``, which gives the
    ``rewriting.Rewritten``."""
    faulty = rewrite(vars(F)[f"{it.op}_backward"], it.change)
    with tracing.swapped(tracing.OPERATIONS, it.op, (vars(F)[it.op], faulty.function)):
        yield faulty
