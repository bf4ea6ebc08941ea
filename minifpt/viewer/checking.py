"""Check the gradients of one step by finite differences, and run the faults of :data:`BREAKS`."""

import copy

import numpy as np

from ..faults import rms
from ..tracing import replaced, trace
from . import decoded, differences, encoded, formulas
from .frames import SURE, TOKENS, axes_of, axes_of_weight

FLOATS = "value", "numerical", "nudge", "scale", "noise"  # of a difference


def checked(t, double, task, x, y, rng, count, progress):
    """Return differences of the loss for ``count`` entries of the gradients of a trace ``t``, and
    what each fault gives there; ``{"unchecked": reason}`` if it does not run in float64."""
    frozen = copy.deepcopy(double)
    try:
        right = traced(double, task, x, y, rng)
        if [s.name for s in right.steps] != [s.name for s in t.steps]:
            raise ValueError("it runs other operations in float64")
        parameters = {id(p.data) for _, p in double.named_parameters()}
        gradients = thinned(list(gradients_of_steps(right.steps)), count)
        entries = []
        for i, (step_number, forward_number, name, grad) in enumerate(gradients):
            step = right.steps[step_number]
            share = count // len(gradients) + (i < count % len(gradients))
            is_weight = id(step.partner.inputs.get(name)) in parameters
            region = shown_region(step, name, grad, is_weight, x.shape[1])
            entries.append((step_number, forward_number, name, grad, largest(grad, region, share)))
        nudged = differences.Nudged(frozen, task, x, y, rng)
        with replaced(nudged.operation):
            nudged.base = nudged.run()
            if len(nudged.calls) != sum(not s.backward for s in right.steps):
                raise ValueError("it runs other operations without gradients")
            results = differences.measure(nudged, list(as_inputs(entries, right.steps)), progress)
    except (ValueError, TypeError, AttributeError) as e:
        return left_out(f"this model does not run in float64 ({' '.join(str(e).split())})")
    flat = [(i, name, at, grad) for i, _, name, grad, places in entries for at in places]
    rows = [{"step": i, "name": name, "at": at, "value": float(grad[at]),
             "numerical": d.numerical, "nudge": d.nudge, "scale": rms(grad),
             "noise": d.noise} for (i, name, at, grad), d in zip(flat, results, strict=True)]
    return {"differences": packed(rows),
            "breaks": [run_fault(f, double, task, x, y, rng, rows) for f in differences.BREAKS]}


def left_out(reason):
    return {"differences": packed([]), "breaks": [], "unchecked": reason}


def traced(model, task, x, y, rng):
    """Return a trace of forward, loss and backward."""
    for _, p in model.named_parameters():
        p.grad = None
    with trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=copy.deepcopy(rng))
        _, dlogits = task.loss(logits, y)
        model.backward(dlogits, cache)
    return t


def gradients_of_steps(steps):
    """Yield (step's number, its forward operation's number, input's name, gradient)."""
    forward = [s for s in steps if not s.backward]
    for i, step in enumerate(steps):
        if step.backward and step.partner is not None and not (
                step.op == "log_sum_exp" and step.inside):      # its dy belongs to no loss
            for name, grad in formulas.gradients(step).items():
                if grad is not None:
                    yield i, forward.index(step.partner), name, grad


def thinned(gradients, count):
    """Return at most ``count`` gradients: the first half that ran back, and the last half."""
    half = count // 2
    return gradients if len(gradients) <= count else gradients[:count - half] + gradients[
        len(gradients) - half:]


def shown_region(step, name, grad, is_weight, tokens):
    """Return the slices of a gradient that every file shows: of the first example and head."""
    axes = axes_of_weight(step.op, grad) if is_weight else axes_of(step.op, f"d{name}", grad)
    region = []
    for n, axis in zip(grad.shape, axes, strict=True):
        end = min(n, tokens) if axis == "position" else n
        region.append(slice(max(0, end - SURE), end) if axis in TOKENS else
                      slice(0, 1 if axis in ("example", "head") and grad.ndim > 1 else 24))
    return tuple(region)


def largest(grad, region, count):
    """Return the indices of the ``count`` largest entries of a region of a gradient."""
    part = np.abs(grad[region])
    best = np.argsort(-part, axis=None, kind="stable")[:count]
    starts = [r.start for r in region]
    return [tuple(int(i) + start for i, start in zip(at, starts, strict=True))
            for at in zip(*np.unravel_index(best, part.shape), strict=True)]


def packed(rows):
    """Return rows as columns, with the floats as base64 of float64."""
    floats = np.array([[row[name] for name in FLOATS] for row in rows], "<f8")
    return {**{name: [row[name] for row in rows] for name in ("step", "name", "at")},
            "floats": encoded(floats)}


def unpacked(columns):
    """Return the rows that were :func:`packed`, each with the relative error of its gradient."""
    floats = decoded(columns["floats"]).reshape(-1, len(FLOATS))
    rows = [{"step": i, "name": name, "at": tuple(at)} | dict(zip(FLOATS, row, strict=True))
            for i, name, at, row in zip(columns["step"], columns["name"], columns["at"],
                                        floats.tolist(), strict=True)]
    return [row | {"error": differences.relative(row["value"], row["numerical"], row["scale"],
                                                 row["noise"])} for row in rows]


def as_inputs(entries, steps):
    """Yield the entries for :func:`differences.measure`, to which q, k and v are parts of qkv."""
    for i, n, name, grad, places in entries:
        expected = {at: grad[at] for at in places}
        if steps[i].op == "attention":
            _, H, _, D = grad.shape
            expected = {(b, t, "qkv".index(name) * H * D + h * D + d): value
                        for (b, h, t, d), value in expected.items()}
            name = "qkv"
        yield n, name, rms(grad), expected


def run_fault(fault, model, task, x, y, rng, rows):
    """Run one broken backward pass, and compare it with the same differences."""
    with differences.running(fault) as faulty:
        steps = [s for s in traced(model, task, x, y, rng).steps
                 if s.backward or s.inside is None or not s.inside.backward]
    values, worst = [], {}
    for row in rows:
        i, name = row["step"], row["name"]
        value = float(formulas.gradients(steps[i])[name][tuple(row["at"])])
        error = differences.relative(value, row["numerical"], row["scale"], row["noise"])
        worst[i] = max(worst.get(i, 0.0), float(error))
        values.append(value)
    wrong = {i: worst[i] for i in sorted(worst) if worst[i] > differences.TOLERANCE}
    return {"title": fault.title, "op": fault.op, "lines": faulty.lines, "instead": faulty.text,
            "why": fault.why, "wrong": wrong, "values": encoded(np.array(values, "<f8")),
            "first": min(wrong, default=None)}
