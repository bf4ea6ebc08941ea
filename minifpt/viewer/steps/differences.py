"""Finite differences of a training step, and the same step with a wrong backward pass."""

import copy
from collections import namedtuple
from itertools import islice, zip_longest

import numpy as np

from ... import functional as F
from ... import tracing
from ...exercises.mistakes import MISTAKES
from ...exercises.rewriting import rewrite
from ...fast import standing_in
from ...gradients.diagnosis import rms
from ...progress import progress_bar
from . import formulas
from .frames import MIN_TOKENS

TOLERANCE = 1e-6                                          # of a relative error
NUDGES = 1e-4, 1e-3, 1e-5, 1e-2, 1e-6                     # h, tried in this order
MAX_WORK = 5e9                                            # parameters x tokens of all differences
MIN_CHANNELS = 24                                         # that every file shows
MAX_ENTRIES = 10                                          # compared of one gradient
# A fault that a button of both pages makes; the live page has one more, in a block's sum.
# op: the operation whose backward pass is wrong.  mistake: the hint of ``exercises.mistakes`` for
# it.  why: why it is easily missed.
Break = namedtuple("Break", "id title op mistake why")
BREAKS = [
    Break("mean", "A mean for a sum", "layer_norm",
          "a mean for a sum in dw: each token adds its whole share",
          "dw has the right direction, Adam's step hardly depends on its size, and the dx that is "
          "passed on is right."),
    Break("transpose", "A missing transpose", "linear",
          "dx leads back through the transpose of w, also where w is square",
          "A square weight lets it pass: all shapes fit. Any other one would raise an error."),
    Break("positions", "One example for all", "positions",
          "only one sequence: w serves all sequences of the batch",
          "All examples of a step use the same positions, so their gradients add up. That of one "
          "example points nearly the right way."),
    Break("scale", "A lost 1/√D", "attention",
          "in dQ and dK the factor 1/sqrt(D) is missing",
          "The gradient of queries and keys is √D times as large as it should be. Its direction is "
          "right."),
]


def broken(fault):
    """Return the backward pass of a :class:`Break` with its mistake, a ``rewriting.Rewritten``."""
    name = f"{fault.op}_backward"
    return rewrite(vars(F)[name], MISTAKES[name][fault.mistake])


def breaks(t, model, task, x, y, rng, rows):
    """Return what each of ``BREAKS`` does to the gradients of a step whose trace is ``t``, and to
    the entries of ``rows``: {title, op, why, lines, instead, wrong, first, values}, with ``wrong``
    as {backward step: relative error} and ``first`` as the first of these steps."""
    right, results = {i: step for i, step in enumerate(t.steps) if step.backward}, []
    for fault in BREAKS:
        faulty = broken(fault)
        wrong_pass = {vars(F)[f"{fault.op}_backward"]: faulty.function}
        with standing_in(wrong_pass), tracing.trace(model) as faulty_trace:
            logits, cache = model.forward(x, train=True, rng=copy.deepcopy(rng))
            model.backward(task.loss(logits, y)[1], cache)
        faulty_steps = dict(zip(right, [step for step in faulty_trace.steps if step.backward],
                                strict=True))
        errors = {i: max((float(np.max(relative(a, b, rms(b)), initial=0.0)) for a, b in zip(
            grads_of(faulty_steps[i]), grads_of(step), strict=True)), default=0.0)
            for i, step in right.items()}
        wrong_steps = {i: error for i, error in errors.items() if error > TOLERANCE}
        results.append({
            "title": fault.title, "op": fault.op, "why": fault.why, "lines": faulty.lines,
            "instead": faulty.text, "wrong": wrong_steps,
            "first": min(wrong_steps, default=None),
            "values": [float(formulas.gradients(faulty_steps[row["step"]])[row["name"]][row["at"]])
                       for row in rows]})
    return results


def grads_of(step):
    """Return the gradients that a backward step gave."""
    output = step.output if isinstance(step.output, tuple) else (step.output,)
    return [grad for grad in output if grad is not None]


def relative(a, b, scale):
    """Return ``|a - b| / max(|a|, |b|, scale)``, 0 where all are 0."""
    size = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)     # float32 has no 1e-300
    return np.abs(a - b) / np.maximum(size, max(scale, 1e-300))


def in_float64(model):
    """Return a copy of a model in which every parameter is float64."""
    model = copy.deepcopy(model)
    for _, layer in tracing.named_layers(model):
        if hasattr(layer, "dtype"):
            layer.dtype = np.dtype(np.float64)
    for _, p in model.named_parameters():
        p.data, p.grad = p.data.astype(np.float64), None
    return model


def differences(t, model, task, x, y, rng, count, progress):
    """Compare entries of the gradients of parameters with finite differences in float64, at most
    ``count``, the largest of each gradient first.

    Returns [{step, name, at, value, numerical, nudge, scale, error}], where ``step`` is the
    backward step of the trace ``t`` that gave the gradient.  Raises ``ValueError`` for a model that
    does not run in float64.
    """
    work = sum(p.data.size for _, p in model.named_parameters()) * x.shape[0] * x.shape[1]
    rows = [*islice(entries(t, model, x.shape[1]), min(count, max(1, int(MAX_WORK / work))))]
    try:
        double = in_float64(model)
        parameters = dict(double.named_parameters())
        logits, cache = double.forward(x, train=True, rng=copy.deepcopy(rng))
        double.backward(task.loss(logits, y)[1], cache)
        return [{"step": step, "name": name, "at": at}
                | difference(parameters[owner], at, lambda: task.loss(double.forward(
                    x, train=True, rng=copy.deepcopy(rng))[0], y)[0])
                for step, name, owner, at in progress_bar(
                    rows, desc="finite differences", unit="number", progress=progress, delay=1,
                    leave=False)]
    except (ValueError, TypeError, AttributeError) as e:
        raise ValueError(f"this model does not run in float64 ({' '.join(str(e).split())})"
                         ) from None


def entries(t, model, tokens):
    """Yield (backward step, input's name, parameter's name, index): first the largest entry of each
    parameter's gradient that every file shows, then the second of each, and so on.  A parameter
    that several steps read is left out."""
    names, places = {id(p.data): name for name, p in model.named_parameters()}, {}
    for i, step in enumerate(t.steps):
        grads = formulas.gradients(step) if step.backward and step.partner else {}
        for name, grad in grads.items():
            owner = names.get(id(step.partner.inputs.get(name)))
            if owner:
                places.setdefault(owner, []).append((i, name, grad, step.op))
    ranked, read_once = [], {owner: reads[0] for owner, reads in places.items() if len(reads) == 1}
    for owner, (i, name, grad, op) in read_once.items():
        start, end = (
            (max(0, tokens - MIN_TOKENS), tokens) if op == "positions" else (0, MIN_CHANNELS))
        region = np.abs(grad[slice(start, end), *[slice(MIN_CHANNELS)] * (grad.ndim - 1)])
        largest = np.argsort(-region, axis=None, kind="stable")[:MAX_ENTRIES]
        ranked.append([(i, name, owner, (int(first) + start, *map(int, rest))) for first, *rest
                       in zip(*np.unravel_index(largest, region.shape), strict=True)])
    for group in zip_longest(*ranked):
        yield from filter(None, group)


def difference(p, at, loss):
    """Return the gradient of a parameter's entry and its finite difference, at the first step h
    that agrees, or else at the one that comes nearest."""
    x, value, scale, best = p.data[at], float(p.grad[at]), rms(p.grad), None
    for h in NUDGES:
        losses = []
        for moved in (x + h, x - h):
            p.data[at] = moved
            losses.append(loss())
        p.data[at] = x
        numerical = float((losses[0] - losses[1]) / (2 * h))
        error = float(relative(value, numerical, scale))
        if best is None or error < best["error"]:
            best = {"value": value, "numerical": numerical, "nudge": h, "scale": scale,
                    "error": error}
        if error <= TOLERANCE:
            break
    return best
