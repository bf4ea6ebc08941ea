"""Compare analytical gradients with numerical ones."""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..checks import arrays_in, brief, number, unchanged, whole
from ..plugins import message
from ..spelling import suggestion
from . import nested
from .diagnosis import SMALLEST, Direction, Fault, at, index, rms, unit

__tracebackhide__ = True                                  # pytest shows the caller's frames alone
SETTINGS = {"names": None, "eps": 1e-5, "tolerance": 1e-6, "elementwise": 64, "directions": 8,
            "far": 8.0, "need": (), "train": True, "seed": 0}
STEPS = (1.0, 10.0, 0.1, 1e2, 1e-2)                       # multiples of eps, until one agrees
MOST_FAULTS = 3                                           # inputs that a failed check describes
MOST_TIES = 8                                             # that are checked one by one
LARGEST = np.float64(1e150)                               # of an output: squares stay in range
KEEPS_CACHE = ("a class that keeps its cache is lambda *x: (layer.forward(*x), None) and "
               "lambda dy, _: layer.backward(dy)")


@dataclass(repr=False)
class GradcheckReport:
    """The result of a gradient check; it is true if no relative error exceeds ``tolerance``.

    ``worst`` is (input's name, index, analytical, numerical value) at the largest relative error,
    ``errors`` the largest relative error of each input, by name.  ``notes`` are lines of text that
    say where a fault is, of which kind it is, and which inputs were not checked.  ``unchecked`` are
    the names of inputs whose gradient is ``None`` though they need one.
    """

    max_relative_error: float
    worst: tuple
    errors: dict
    tolerance: float
    notes: tuple = ()
    unchecked: tuple = ()

    def __bool__(self):
        return bool(self.max_relative_error <= self.tolerance)

    def __repr__(self):
        name, place, analytical, numerical = self.worst
        lines = [f"{n:32} {e:9.2e}" for n, e in self.errors.items()]
        return "\n".join([f"{'gradient of':32} {'rel. error':>9}", *lines,
                          f"worst: {at(name, place)}: analytical {analytical:.10g}, "
                          f"numerical {numerical:.10g}", *self.notes,
                          f"{'pass' if self else 'FAIL'}: {self.max_relative_error:.2e} against "
                          f"{self.tolerance:.0e}"])


def gradcheck(op: Callable | Any, op_backward: Callable | Sequence | None = None,
              inputs: Sequence | None = None, *more: Any, **options: Any) -> GradcheckReport:
    """Compare a backward pass with central differences of its forward pass.

    ``gradcheck(op, op_backward, inputs)`` checks a pair of functions, ``gradcheck(layer, inputs)``
    a layer, a trunk or a model, with its trainable parameters.  The inputs are a tuple, or follow
    one by one; a list of numbers is one input.

    op           ``y, cache = op(*inputs, **options)``; several outputs are a tuple y.
    op_backward  ``dx, ... = op_backward(dy, cache)``: a gradient for each input of floating-point
                 numbers, in order; ``None`` is not checked, and the report says so.
    layer        has ``named_parameters``, ``forward(x, train, rng)`` or ``forward(x)``, and
                 ``backward(dy, cache)``; built with ``dtype=np.float64``.  A copy is checked.
    inputs       arrays, converted to float64 unless they are integers; they stay unchanged.  An
                 input may be a dict, list or tuple of arrays, also nested; so is its gradient, in
                 which a missing key is 0.
                 A complex one has the gradient dL/dRe + 1j dL/dIm, and so has a complex output.
    options      for op, which gets a copy of them at each pass, and for the check; one that op has
                 itself, such as eps, goes to op:

    names=None       a list of the inputs' names, by default those of op's arguments.
    eps=1e-5         the step h that is tried first, and again relative to the input's size.
    tolerance=1e-6   the largest relative error that passes.
    elementwise=64   inputs with at most this many entries are checked entry by entry, larger ones
    directions=8     along this many random directions and at as many entries.
    far=8.0          in a second look each input in turn, but no parameter, is scaled so that its
                     largest entry has this size, and a few entries are checked to 100 times the
                     tolerance; ``None`` skips it.
    need=()          for each input, whether it needs a gradient, by default True; others may be
                     ``None``.  An operation that has this option gets it, too.
    train=True       whether a layer's dropout is on.
    seed=0           of the random directions, and of a layer's dropout.

    The loss is ``L = sum(y * r)`` with a random r, so ``dy = r``.  Its slope along d, one entry or
    a direction that moves every entry by +1 or -1, is ``(L(x + h d) - L(x - h d)) / 2h`` at the
    step h that agrees best.  The relative error is ``|a - n| / max(|a|, |n|, s)`` for an entry and
    ``|a - n| / s`` for a direction, with ``s`` the root mean square of that input's gradient.
    Inputs at a kink are moved a little, if the gradient along all of them at once lies between the
    slopes on both sides.

    Raises ``ValueError`` if an output is not finite, if a gradient is missing, has another shape
    than its input or is not proportional to dy, if a pass changes its inputs, its cache or a ``dy``
    that it does not return, and if it depends on chance, or on other calls.
    """
    is_layer, arguments = hasattr(op, "named_parameters"), _arguments(op)
    settings = {name: options.pop(name) for name in SETTINGS
                if name in options and (is_layer or name not in arguments)}
    for name in [*options] if is_layer or arguments else ():
        if is_layer or name not in arguments and all(
                p.kind != p.VAR_KEYWORD for p in arguments.values()):
            others = {"tol": "tolerance"} | ({"rng": "seed"} if is_layer else {})
            raise ValueError(f"gradcheck: no option '{name}'" + suggestion(
                name, [*SETTINGS, *(() if is_layer else arguments)], others))
    values = (inputs, *more) if inputs is not None or more else ()
    if is_layer and op_backward is not None:
        op_backward, values = None, (op_backward, *values)
    if len(values) == 1 and (isinstance(values[0], tuple) or (
            isinstance(values[0], list) and not all(map(np.isscalar, values[0])))):
        values = values[0]
    return _Check(op, op_backward, values, options, SETTINGS | settings).report()


def assert_gradients(op: Callable | Any, *args: Any, **options: Any) -> None:
    """Raise ``AssertionError``, with the report, if a backward pass is wrong, or returns ``None``
    for an input that needs a gradient.

    ``assert_gradients(op, op_backward, *inputs)``, or ``assert_gradients(layer, *inputs)``, with
    the options of :func:`gradcheck`; the inputs may be a tuple."""
    report = gradcheck(op, *args, **options)
    if not report:
        raise AssertionError(f"wrong gradients\n{report}")
    if report.unchecked:
        raise AssertionError(f"no gradient of {', '.join(report.unchecked)}: is a return missing? "
                             "If it needs none, say need=(False, ...), one for each input"
                             f"\n{report}")


class _Check:
    """A forward and a backward pass, ``inputs`` by name, which the check moves, and its results:
    ``errors`` {name: (error, place, analytical, numerical value)} and ``notes``."""

    def __init__(self, op, op_backward, inputs, options, settings):
        for name in ("eps", "tolerance", "far"):
            if name != "far" or settings["far"] is not None:
                settings[name] = number("gradcheck", name, settings[name])
        for name, least in (("elementwise", 0), ("directions", 1), ("seed", 0)):
            settings[name] = whole("gradcheck", name, settings[name], least)
        vars(self).update(settings, options=options, parameters={}, errors={}, notes=[])
        self.rng = np.random.default_rng([self.seed, 0x6C])   # not the generator of the inputs
        self.is_moved, self.failure = False, "the forward pass is not finite a step away from it"
        inputs = [*inputs]
        self.need = options.get("need", self.need)
        names = [name for name, p in _arguments(getattr(op, "forward", op)).items()
                 if p.kind < p.VAR_POSITIONAL][:len(inputs)]
        names += [f"input {i}" for i in range(len(names), len(inputs))]
        is_layer = hasattr(op, "named_parameters") and not isinstance(op, type)
        if is_layer:
            op, op_backward, self.parameters = _functions(op, len(inputs), self.train, self.seed)
            inputs += [p.data for p in self.parameters.values()]
        elif not (callable(op) and callable(op_backward)):
            hint = ("; a class whose backward takes dy and the cache is layer.forward and "
                    f"layer.backward, and {KEEPS_CACHE}") if hasattr(op, "backward") else ""
            raise ValueError(f"gradcheck: got {brief(op)} and {brief(op_backward)}, expected a "
                             "function and its backward pass, or a layer, with named_parameters, "
                             "and its inputs" + hint)
        elif any(p.trainable for _, p in getattr(
                getattr(op, "__self__", None), "named_parameters", list)()):
            raise ValueError(f"gradcheck: {op.__name__} is a method of a layer whose parameters "
                             "would not be checked: pass the layer itself, gradcheck(layer, x)")
        else:
            op, op_backward = _copy((op, op_backward))    # methods: of a copy of their object
        if self.names is not None:
            names = [*self.names] if isinstance(self.names, (tuple, list)) else []
        names = [*names, *self.parameters]
        if not (all(isinstance(name, str) for name in names)
                and len({*names}) == len(names) == len(inputs)):
            raise ValueError(f"gradcheck: the names are {brief(names)}, expected different texts, "
                             "one for each input, and no parameter's: pass names=[...]")
        inputs = dict(zip(names, inputs, strict=True))
        self.need = [need for need, (key, value) in zip(np.ravel(self.need), inputs.items(),
                                                        strict=False)
                     for _ in nested.leaves(key, value)]
        self.advice = (
            "let forward(x, train, rng) draw from rng, for which gradcheck passes a generator with "
            "a seed, and from no generator of its own" if is_layer else
            "pass a generator with a seed, rng=np.random.default_rng(0)")
        arrays = {name: _array(name, x, f"other arguments are options, {name}=...")
                  for key, value in inputs.items() for name, x in nested.leaves(key, value)}
        self.op, self.op_backward = nested.flat(op, op_backward, inputs)
        self.checked = {n: x.astype(np.float64, order="C")            # reshape gives a view
                        for n, x in arrays.items() if x.dtype.kind == "f"}
        self.inputs = arrays | self.checked
        if not any(x.size for x in self.checked.values()):
            raise ValueError("gradcheck: no input has a gradient to check: there is none, or all "
                             "hold integers or are empty, expected floating-point numbers, such as "
                             "x.astype(float), behind the functions or the layer")

    def report(self):
        """Look at the gradients in every way and return the report."""
        before = _copy(self.inputs)
        y, _ = self.forward()
        if self.tolerance < 1e-2 and any(a.dtype.itemsize < 8 for a in y):
            raise ValueError(f"gradcheck: the output is {min(a.dtype for a in y)}, not float64, "
                             "and its rounding hides errors below 1e-2: compute it in float64, or "
                             "pass tolerance=1e-2")
        if not any(a.size for a in y):
            raise ValueError("gradcheck: the output is empty, so there is no gradient to check")
        _stays("forward pass", "its inputs", self.inputs, before)
        if not all(map(_close, self.forward()[0], y)):
            raise ValueError("gradcheck: two forward passes of the same inputs give different "
                             f"outputs, the operation is not deterministic: {self.advice}")
        _check_range(y)
        self.r = [self.rng.standard_normal(a.shape) for a in y]
        self.look(self.directions, self.elementwise)
        if not self.errors:
            raise ValueError("gradcheck: no input has a gradient to check: each is None")
        if not self.failed():
            self.check_repetitions()
        elif self.tolerance < 1e-2:
            self.refuse_rounding()
        self.check_proportions()
        self.note_place()
        if self.parameters and not self.failed():
            self.look_moved()
        for name in self.checked:
            if self.far is not None and name not in self.parameters and not self.failed():
                self.look_far(name)
        self.notes += [f"the gradient of {name} is float32, not float64, and its rounding may hide "
                       "small errors" for name in self.rounded]
        self.notes += [f"{name} was not checked: its gradient is None"
                       for name in self.checked if name not in self.errors]
        errors = {name: error for name, (error, *_) in self.errors.items()}
        top = max(errors, key=errors.get)
        excused = {name for name, is_needed in zip(self.inputs, self.need, strict=False)
                   if not is_needed}
        return GradcheckReport(
            errors[top], (top, *self.errors[top][1:]), errors, self.tolerance, tuple(self.notes),
            tuple(n for n in self.checked if n not in errors.keys() | excused))

    def refuse_rounding(self):
        """Raise ``ValueError`` where the outputs are those of an operation in float32: an input's
        twelfth digit changes none of those that its fourth changes."""
        for name, x in self.checked.items():
            d = Direction(x.reshape(-1), slice(None), x.reshape(-1) * self.rng.uniform(
                0.5, 1.0, x.size))
            here, near, far = (self.terms(h, d) or self.r for h in (0.0, 1e-12, 1e-4))
            for y, y_near, y_far in zip(here, near, far, strict=True):
                is_moved = np.abs(y_far - y) > 1e-6 * np.abs(y).max(initial=0.0)
                if np.mean(is_moved) > 0.1 and np.array_equal(y[is_moved], y_near[is_moved]):
                    raise ValueError(
                        f"gradcheck: the output ignores the twelfth digit of {name}: the operation "
                        "computes in float32 inside, or rounds, and that hides errors below 1e-2: "
                        "compute in float64, or pass tolerance=1e-2")

    def note_place(self):
        """Note from which parameter on all gradients are right, where all before it are wrong."""
        before = [name for name, (error, *_) in self.errors.items() if error > self.tolerance]
        right = [name for name in self.parameters if name in self.errors and name not in before]
        if right and before[2:] and [*before, *right] == [*self.errors]:
            self.notes.append(f"all before {right[0]} are wrong, all from it on are right: look "
                              "there, or just before it, at what is handed back as dx")

    def failed(self):
        """Return whether any gradient so far is wrong."""
        return any(error > self.tolerance for error, *_ in self.errors.values())

    def forward(self):
        """Return (list of outputs, cache)."""
        result = self.op(*self.inputs.values(), **_copy(self.options))
        if not (isinstance(result, (tuple, list)) and len(result) == 2):
            raise ValueError(f"gradcheck: the forward pass returned a {type(result).__name__}, "
                             "expected (output, cache): several outputs are ((y1, y2), cache), and "
                             + KEEPS_CACHE)
        y, cache = result
        self.has_outputs = isinstance(y, (tuple, list))
        return [_array("the output", a, "return other results in the cache", "f")
                for a in (y if self.has_outputs else (y,))], cache

    def arrays(self):
        """Yield (name, array) of the inputs, of what the cache holds, and of the outputs."""
        y, cache = self.forward()
        yield from self.inputs.items()
        kept = cache._asdict().items() if hasattr(cache, "_asdict") else [("", cache)]
        for field, value in kept:
            for name, a in nested.leaves(f"cache.{field}" if field else "cache", value):
                if isinstance(a, np.ndarray):
                    yield name, a
        for i, a in enumerate(y):
            yield f"output {i}" if len(y) > 1 else "the output", a

    def backward(self, cache, factor=1.0):
        """Return the gradients by name, without those that are ``None``, for ``dy = factor * r``.

        They are copies: a backward pass may hand out an array that it writes to again."""
        dys = [factor * r if r.ndim else float(factor * r) for r in self.r]
        values = {"its argument dy": dys, "the inputs of the forward pass": self.inputs,
                  "its cache": cache}
        before = [[a.copy() for a in arrays_in(value)] for value in values.values()]
        grads = self.op_backward(tuple(dys) if self.has_outputs else dys[0], cache)
        grads = [*grads] if isinstance(grads, (tuple, list)) else [grads]
        while len(grads) > len(self.inputs) and grads[-1] is None:
            grads.pop()                                   # of an optional input that is not given
        for (name, value), arrays in zip(values.items(), before, strict=True):
            if value is not dys or not any(grad is dy for grad in grads for dy in dys):
                _stays("backward pass", name, value, arrays)          # a returned dy may change
        names = self.inputs if len(grads) == len(self.inputs) else self.checked
        if len(grads) != len(names):
            raise ValueError(f"gradcheck: {len(grads)} gradients, expected {len(names)} ("
                             f"{', '.join(names)}); integers have none, options are given by name")
        grads = {name: grad for name, grad in zip(names, grads, strict=True)
                 if grad is not None and name in self.checked}
        for name, grad in grads.items():
            if np.shape(grad) != (shape := self.checked[name].shape):
                hint = ": sum it over the axes that were broadcast" if np.size(
                    grad) > self.checked[name].size else ""
                raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                                 f"expected {shape}{hint}")
        grads = {name: _array(f"the gradient of {name}", grad, "an array of x's shape")
                 for name, grad in grads.items()}
        with np.errstate(all="ignore"):
            self.rounded = [name for name, grad in grads.items() if grad.dtype.kind == "f"
                            and np.array_equal(grad, np.float32(grad), True)    # its numbers are
                            and not np.array_equal(grad, np.float16(grad), True)]      # not short
        return {name: grad.astype(np.float64) for name, grad in grads.items()}

    def look(self, directions, elementwise, far=False, where=""):
        """Compare all gradients at the inputs as they are; add to ``errors`` and ``notes``."""
        grads, errors = self.backward(self.forward()[1]), {}
        for name, grad in grads.items():
            errors[name], size = (0.0, (), 0.0, 0.0), max(rms(grad), SMALLEST)
            hidden = 0.0
            for place, a, d, is_entry in self.places(name, grad, directions, elementwise, far):
                error, n, rounding = self.compare(d, a, size, is_entry)
                hidden = max(hidden, rounding)
                if far and (n is None or error <= 1e2 * self.tolerance):
                    continue                              # saturated slopes are mostly rounding
                if n is None:
                    raise ValueError("gradcheck: the output is so large beside the gradient of "
                                     f"{name} that rounding hides it: subtract a constant from "
                                     "the output, or compute it in float64")
                if error > errors[name][0]:
                    errors[name] = error, place, float(a), float(n)
            if hidden > 1e2 * self.tolerance and not (far or where):
                self.notes.append(f"beside the output's rounding an error of {name} below "
                                  f"{hidden:.0e} is not seen: subtract a constant from the "
                                  "output")
        worst = sorted((name for name in errors if errors[name][0] > self.tolerance),
                       key=lambda name: -errors[name][0])
        faults = [Fault(self, name, grads) for name in worst[:MOST_FAULTS]]
        if (faults and not self.is_moved and all(fault.is_right_beside_kinks for fault in faults)
                and self.is_right_along_kinks(faults + [
                    Fault(self, name, grads) for name in grads if name not in worst[:MOST_FAULTS]],
                    where)):
            self.is_moved = True
            self.notes += [f"{fault.kink()}, so the inputs were moved a little" for fault in faults]
            for x in self.checked.values():               # farther than any step
                x += 0.01 * (np.abs(x).max(initial=0.0) or 1.0) * self.rng.uniform(
                    0.5, 1.0, x.shape) * self.rng.choice([-1.0, 1.0], x.shape)
            return self.look(directions, elementwise, far, where)
        for fault in faults:
            if not fault.is_small:
                errors[fault.name] = errors[fault.name][0], *fault.worst
            self.notes.append(fault.describe() + where)
        for name, error in errors.items():
            self.errors[name] = max(self.errors.get(name, error), error, key=lambda e: e[0])

    def is_right_along_kinks(self, faults, where):
        """Return whether the gradient lies between the slopes of the outputs on both sides along
        all entries at a kink, which may be ties of several inputs, and along ties; note it if
        not."""
        h = faults[0].h / 30
        kinks = [(fault, i) for fault in faults for i in np.flatnonzero(fault.at_kink)]
        for group in [kinks, *self.ties(kinks, h)]:
            below, here, above = (self.terms(h * sign, *_directions(group)) for sign in (-1, 0, 1))
            if below is None or above is None:
                continue
            sides = np.sort([np.concatenate([np.ravel(b - a) for a, b in zip(*pair, strict=True)])
                             / h for pair in ((below, here), (here, above))], axis=0)
            low, high = sides.sum(axis=1)
            a = float(sum(fault.a[i] for fault, i in group))
            slack = 1e-3 * max(abs(low), abs(high), *(fault.size for fault in faults))
            if not low - slack <= a <= high + slack:
                places = [at(fault.name, index(fault.x, fault.entries[i])) for fault, i in group]
                self.notes.append(
                    f"along {', '.join(places[:4])}{', ...' * (len(places) > 4)} at a kink at once,"
                    f" which may be ties: analytical {a:.4g}, numerical {low:.4g} to {high:.4g}"
                    + where)
                return False
        return True

    def ties(self, kinks, h):
        """Yield groups of entries at a kink that change L together by another number than one by
        one: the slopes of other kinks would hide a tie's."""
        def change(group):
            return self.loss(h, *_directions(group))[0] - here
        here, least = self.loss(0.0)[0], 0.01 * h * kinks[0][0].size
        whole, alone = change(kinks), {kink: change([kink]) for kink in kinks}
        tied = [kink for kink in kinks if abs(
            whole - alone[kink] - change([k for k in kinks if k != kink])) > least]
        for _ in range(MOST_TIES):
            if tied:
                first, *others = tied
                group = [k for k in others
                         if abs(change([first, k]) - alone[first] - alone[k]) > least]
                tied = [k for k in others if k not in group]
                yield [first, *group]

    def look_far(self, name):
        """Look again with an input of the size ``far``: with other ratios of its entries, since
        ones or an identity matrix hide a transpose and zeros what they multiply, or, where the
        operation refuses that, with its own."""
        x = self.checked[name]
        size, before = np.abs(x).max(initial=0.0), x.copy()
        if not size < np.inf:
            return
        drawn = self.rng.standard_normal(x.shape)
        drawn = np.where(x == 0, np.abs(drawn) if size and (x >= 0).all() else drawn,
                         x / (size or 1.0) * self.rng.uniform(0.5, 1.0, x.shape))
        for values in (drawn, before) if size else (drawn,):
            with np.errstate(all="ignore"):
                x[...] = values * (self.far * self.rng.uniform(0.9, 1.0)  # not at a whole number
                                   / np.abs(values).max(initial=1e-300))
            self.is_moved = False                         # at the far size there are other kinks
            refusal = self.look_elsewhere(f"at a size of {self.far:g} of {name}")
            if not refusal:
                break
        self.notes += refusal
        x[...] = before

    def look_moved(self):
        """Look again with other parameters: a scale of 1 or a bias of 0 hides what is left out."""
        for x in (self.checked[name] for name in self.parameters):
            x += 0.3 * (rms(x) or 1.0) * self.rng.standard_normal(x.shape)
        self.notes += self.look_elsewhere("with moved parameters")

    def look_elsewhere(self, where):
        """Look briefly at what is checked as it now is; return a list with a note if the operation
        refuses it."""
        try:
            with np.errstate(all="ignore"):
                _check_range(self.forward()[0])
                self.look(min(2, self.directions), min(4, self.elementwise), True,
                          f", {where}")
        except Exception as e:                            # it guards its domain
            return [f"not checked {where}: {message(e)}"]
        return []

    def check_proportions(self):
        """Note, or raise, that a gradient is not proportional to dy."""
        once, scaled = (self.backward(self.forward()[1], factor) for factor in (1.0, -1024.0))
        for name, grad in once.items():
            if not _close(scaled[name], -1024.0 * grad):
                self.notes.append(f"the gradient of {name} is not proportional to dy")
                if not self.failed():
                    raise ValueError(f"gradcheck: {self.notes[-1]}")

    def check_repetitions(self):
        """Raise ``ValueError`` if gradients depend on other calls."""
        (_, cache), inputs = self.forward(), self.inputs
        once = self.backward(cache)
        if self.parameters or cache is not None:          # a forward pass of other examples
            with suppress(Exception), np.errstate(all="ignore"):
                self.inputs = {name: x if name in self.parameters else
                               0.999 * x if name in self.checked else np.flip(x)
                               for name, x in inputs.items()}
                self.forward()
            self.inputs = inputs
        again, sums = self.backward(cache), self.backward(cache)
        for name, grad in once.items():
            passes = 2 if name in self.parameters else 1  # a layer adds to its gradients
            if not (_close(again[name], grad) and _close(sums[name], passes * grad)):
                must = "add up, by add_grad" if passes == 2 else "give one gradient"
                raise ValueError(f"gradcheck: {name}: two backward passes of one cache, after "
                                 f"another forward pass, must {must}: keep nothing outside of the "
                                 "cache")

    def terms(self, h, *directions):
        """Return the outputs times r where each direction's entries are moved by h, or ``None``
        where the operation raises; they get their bits back."""
        originals = [x[part].copy() for x, part, _ in directions]
        for x, part, d in directions:
            x[part] += h * d
        try:
            y, _ = self.forward()
        except Exception as e:                            # outside of the operation's domain
            self.failure = f"the operation raised {message(e)}"
            return None
        finally:
            for (x, part, _), original in zip(directions, originals, strict=True):
                x[part] = original
        self.rounding = 4 * max(float(np.finfo(a.dtype).eps) for a in y)
        return [a * r for a, r in zip(y, self.r, strict=True)]

    def loss(self, h, *directions):
        """Return L where the directions' entries are moved by h, and a bound on its rounding
        error."""
        terms = self.terms(h, *directions)
        if terms is None:
            return np.nan, np.inf
        total = float(sum(np.sum(term) for term in terms))
        size = abs(total) + float(sum(np.sum(term * term) for term in terms)) ** 0.5
        return total, self.rounding * size

    def slope(self, d, h, order=2):
        """Return the difference along d, of ``order`` 2 or 4, and a bound on its rounding error."""
        (up, noise_up), (down, noise_down) = self.loss(h, d), self.loss(-h, d)
        n, noise = (up - down) / (2 * h), (noise_up + noise_down) / (2 * h)
        return (n, noise) if order == 2 else (
            (4 * n - self.slope(d, 2 * h)[0]) / 3, 5 / 3 * noise)

    def steps(self, d):
        """Return the steps to try along d, the likeliest first."""
        x = d.x[d.part]
        size = float(np.abs(x).max(initial=0.0, where=(d.d != 0) & np.isfinite(x)))
        return sorted({self.eps * step * unit for step in STEPS for unit in (1.0, size) if unit},
                      key=lambda h: abs(np.log(h / self.eps)))

    def places(self, name, grad, directions, elementwise, far):
        """Yield (place, analytical, direction, is_entry) for directions and entries of an input;
        if ``far``, for its largest entries."""
        x = self.checked[name]
        entries = np.arange(x.size)
        if x.size > elementwise:
            for k in range(directions):
                d = self.signs(name, slice(None))
                yield f"direction {k}", np.vdot(grad, d.d), d, False
            entries = (np.argpartition(np.abs(x), x.size - max(elementwise, 1), axis=None)[
                x.size - elementwise:] if far else
                       self.rng.choice(x.size, min(directions, x.size), replace=False))
        for i in entries:
            yield index(x, i), grad.flat[i], unit(x, i), True

    def signs(self, name, part):
        """Return a direction that moves each entry in a part of an input by +1 or -1."""
        x = self.checked[name].reshape(-1)
        return Direction(x, part, 2.0 * self.rng.integers(0, 2, x[part].size, np.int8) - 1.0)

    def compare(self, d, a, size, is_entry):
        """Return (relative error, numerical value, relative rounding) at the step that agrees
        best; the rounding is 0 where all is rounding.

        Those steps count at which rounding cannot hide an error of ``tolerance``, or else those
        with the least rounding, each up to its rounding.  Where that is more than a hundredth the
        gradient is unknown: the numerical value is then ``None``.  A right gradient ends the
        search, and so do two steps that give one slope and another than its own.
        """
        trials = []                                       # (rounding, error, numerical value)
        for order, h in product((2, 4), self.steps(d)):
            n, noise = self.slope(d, h, order)
            if not np.isfinite([a, n]).all():
                continue
            scale = max(size, abs(a), abs(n)) if is_entry else max(size, abs(n) / d.d.size ** 0.5)
            is_clear = noise <= self.tolerance * scale
            error = max(0.0, abs(a - n) - (0.0 if is_clear else noise)) / scale
            is_known = any(abs(n - m) <= 0.03 * self.tolerance * scale for *_, m in trials)
            trials.append((noise / scale, error, n))
            if is_clear and (error <= 0.03 * self.tolerance or error > self.tolerance and is_known):
                break
        least = min(trials, default=(0.0,))[0]
        if least > 0.01 and size > 1e-6:
            return np.inf, None, 0.0
        limit = max(self.tolerance, 10 * least)
        error, n = min((trial[1:] for trial in trials if trial[0] <= limit),
                       default=(np.inf, np.nan))
        return error, n, least if least <= 0.01 else 0.0


def _directions(kinks):
    """Return the directions that move all of some entries, (fault, number of its entry), by 1."""
    entries = {}
    for fault, i in kinks:
        entries.setdefault(fault, []).append(fault.entries[i])
    return [Direction(fault.x.reshape(-1), part, 1.0) for fault, part in entries.items()]


def _functions(layer, n, train, seed):
    """Return a copy of a layer as a pair of functions of n inputs and its trainable parameters,
    and these by name.  A backward pass adds to the gradients since the last forward pass."""
    layer = copy.deepcopy(layer)
    named = {name: p for name, p in layer.named_parameters() if p.trainable}
    for name, p in named.items():
        if p.data.dtype != np.float64:
            raise ValueError(f"gradcheck: {name} is {p.data.dtype}: build the layer with "
                             "dtype=np.float64")
        p.frozen_columns = ()                             # frozen columns have a gradient, too
    keys = {"train", "rng"} & {*_arguments(layer.forward)}

    def op(*inputs):
        for p, data in zip(named.values(), inputs[n:], strict=True):
            p.data, p.grad = data, None
        options = {"train": train, "rng": np.random.default_rng(seed)}
        return layer.forward(*inputs[:n], **{key: options[key] for key in keys})

    def op_backward(dy, cache):
        dx = layer.backward(dy, cache)
        # The gradient of a parameter that this input does not use, a position, is 0.
        return [*(dx if isinstance(dx, (tuple, list)) else (dx,)),
                *(np.zeros_like(p.data) if p.grad is None else p.grad for p in named.values())]
    return op, op_backward, named


def _array(name, x, hint, kinds="fiub"):
    """Return a copy of an array of real numbers."""
    a = np.array(None)                                    # where lists have several lengths
    with suppress(ValueError):
        a = np.array(x)
    if a.dtype.kind == "c":
        hint = "its input is real, take its real part"
    if a.dtype.kind not in kinds:
        raise ValueError(f"gradcheck: {name} is {brief(x)}, expected real numbers that have a "
                         f"gradient: {hint}")
    return a


def _check_range(y):
    """Raise ``ValueError`` for an output that is not finite, or too large for its square."""
    for i, a in enumerate(y):
        for place in np.flatnonzero(~(np.abs(a) <= LARGEST))[:1]:
            name = f"output {i}" if len(y) > 1 else "output"
            raise ValueError(f"gradcheck: {at(name, index(a, place))} is {a.flat[place]:.3g}, "
                             f"expected a finite number, at most {LARGEST:g}: choose other "
                             "inputs, or leave such outputs out, as those of a mask")


def _close(a, b):
    """Return whether arrays are equal up to rounding, compared with the largest entry of b."""
    return np.allclose(a, b, 1e-6, 1e-9 * np.abs(np.nan_to_num(b)).max(initial=0.0), equal_nan=True)


def _arguments(function):
    """Return the parameters of a function's signature, none where it has no signature."""
    with suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return {}


def _copy(value):
    """Return a copy, or the value itself where it cannot be copied."""
    with suppress(Exception):
        return copy.deepcopy(value)
    return value


def _stays(which, name, now, before):
    """Raise ``ValueError`` if an array in ``now`` differs from the one in ``before``."""
    if not unchanged(now, before):
        raise ValueError(f"gradcheck: the {which} changes {name}: let it work on a copy")
