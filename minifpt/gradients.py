"""Compare analytical gradients with numerical ones."""

import copy
import inspect
import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checks import brief
from .faults import Fault, at
from .users import message


@dataclass(repr=False)
class GradcheckReport:
    """The result of a gradient check; it is true if no relative error exceeds ``tolerance``.

    ``worst`` is (input's name, index or ``"direction k"``, analytical, numerical value) at the
    largest relative error.  ``errors`` is the largest relative error of each input, by name.
    ``notes`` are lines of text: where a fault is and of what kind, and what was not checked.
    """

    max_relative_error: float
    worst: tuple
    errors: dict
    tolerance: float
    notes: tuple = ()

    def __bool__(self):
        return bool(self.max_relative_error <= self.tolerance)      # False for NaN

    def __repr__(self):
        name, place, analytical, numerical = self.worst
        lines = [f"{n:32} {e:9.2e}" for n, e in self.errors.items()]
        return "\n".join([f"{'gradient of':32} {'rel. error':>9}", *lines,
                          f"worst: {at(name, place)}: analytical {analytical:.10g}, "
                          f"numerical {numerical:.10g}", *self.notes,
                          f"{'pass' if self else 'FAIL'}: {self.max_relative_error:.2e} "
                          f"against {self.tolerance:.0e}"])


SETTINGS = {"names": None, "eps": 1e-5, "tolerance": 1e-6, "elementwise": 64, "directions": 8,
            "seed": 0, "far": 8.0, "train": True}
STEPS = (1.0, 10.0, 0.1, 1e2, 1e-2)                       # multiples of eps, until one agrees
MOST_FAULTS = 3                                           # inputs that a failed check describes


def gradcheck(op: Callable | Any, op_backward: Callable | Sequence | None = None,
              inputs: Sequence | None = None, **options: Any) -> GradcheckReport:
    """Compare a backward pass with central differences of its forward pass.

    ``gradcheck(op, op_backward, inputs)`` checks a pair of functions, ``gradcheck(layer, inputs)``
    a layer, a trunk or a model, with its trainable parameters.

    op           ``y, cache = op(*inputs, **options)``; several outputs are a tuple y.  A random op
                 takes a generator as an option, of which each pass gets a copy.
    op_backward  ``dx, ... = op_backward(dy, cache)``: a gradient for each input of floating-point
                 numbers, in order; ``None`` is not checked.  It may write over ``dy`` only if it
                 returns that array as a gradient.
    layer        has ``named_parameters``, ``forward(x, train, rng)`` or ``forward(x)``, and
                 ``backward(dy, cache)``; built with ``dtype=np.float64``.  A copy is checked.
    inputs       arrays, converted to float64 unless they are integers; they stay unchanged.

    Options, with their defaults; an option that op itself has goes to op, as unknown ones do:

    names=None       the inputs' names, by default those of op's arguments.
    eps=1e-5         the step h that is tried first, and again relative to the input's size.
    tolerance=1e-6   the largest relative error that passes.
    elementwise=64   inputs with at most this many entries are checked entry by entry, larger ones
    directions=8     along this many random directions and at as many entries.
    far=8.0          in a second look each input in turn, but no parameter, is scaled to this size
                     of its largest entry, where a clip or a saturation may begin, and a few
                     entries and directions are compared to 100 times the tolerance; ``None`` skips
                     it.
    train=True       whether a layer's dropout is on.
    seed=0           of the random directions, and of a layer's dropout.

    The scalar loss is ``L = sum(y * r)`` with a random r, so ``dy = r``, and

        numerical = (L(x + h d) - L(x - h d)) / 2h

    where d is one entry, or a direction that moves every entry by +1 or -1, so that a single
    wrong entry among thousands shows in full.  The relative error is
    ``|a - n| / max(|a|, |n|, s)`` for an entry and ``|a - n| / s`` for a direction, with ``s``
    the root mean square of that input's gradient.  If they disagree, smaller and larger steps
    are tried: a right gradient agrees at one of them.  Inputs at a kink are moved a little.

    Raises ``ValueError`` if a gradient is missing or has another shape than its input, if either
    pass changes its inputs, its cache or a ``dy`` that it does not return, and if a pass depends on
    more than its arguments: on chance, or on the calls before.
    """
    owner = getattr(op, "__self__", None)
    if hasattr(owner, "named_parameters"):                # whose parameters would not be checked
        if op != owner.forward or op_backward != owner.backward:
            raise ValueError(f"gradcheck: {op.__name__} is a method of a {type(owner).__name__} "
                             "with parameters, expected forward and backward of one object, or "
                             "that object itself: gradcheck(layer, inputs)")
        op, op_backward = owner, inputs
    settings = {name: options.pop(name) for name in SETTINGS if name in options
                and (hasattr(op, "named_parameters") or name not in _arguments(op))}
    return _check(op, op_backward, inputs, options, **SETTINGS | settings)


gradcheck_layer = gradcheck                               # its name in older versions


def assert_gradients(op: Callable | Any, *args: Any, **options: Any) -> None:
    """Raise ``AssertionError``, with the report, if a backward pass is wrong.

    ``assert_gradients(op, op_backward, *inputs, **options_of_op)``, or ``assert_gradients(layer,
    *inputs)``; see :func:`gradcheck`, which has more options."""
    __tracebackhide__ = True                              # for pytest
    if callable(op):
        report = gradcheck(op, *args[:1], args[1:]) if hasattr(getattr(
            op, "__self__", None), "named_parameters") else _check(
                op, *args[:1], args[1:], options, **SETTINGS)
    else:
        report = gradcheck(op, args, **options)
    if not report:
        raise AssertionError(f"wrong gradients\n{report}")


def _check(op, op_backward, inputs, options, *, names, eps, tolerance, elementwise, directions,
           seed, far, train):
    """Return the report; the arguments as for :func:`gradcheck`."""
    layer = None
    if hasattr(op, "named_parameters") and not isinstance(op, type):
        if options:
            raise ValueError(f"gradcheck: no option '{next(iter(options))}' for a layer, expected "
                             f"one of {', '.join(SETTINGS)}")
        inputs = op_backward if isinstance(op_backward, (tuple, list)) else (op_backward,)
        layer = _Layer(op, len(inputs), train, seed)
        data = [p.data for p in layer.named.values()]
        arguments = [*_arguments(op.forward)]
        names = names or [*arguments[:len(inputs)], *layer.named]
        inputs, op, op_backward = [*inputs, *data], layer.forward, layer.backward
    elif hasattr(op, "forward") and inputs is None:       # without parameters
        if isinstance(op, type):
            raise ValueError(f"gradcheck: got the class {op.__name__}, expected an object of it")
        inputs = op_backward if isinstance(op_backward, (tuple, list)) else (op_backward,)
        op, op_backward = op.forward, op.backward
    if not (callable(op) and callable(op_backward)):
        raise ValueError(f"gradcheck: got {brief(op)} and {brief(op_backward)}, expected a "
                         "function and its backward pass, or a layer and its inputs")
    if not isinstance(inputs, (tuple, list)):
        raise ValueError(f"gradcheck: the inputs are {brief(inputs)}, expected a tuple: (x,)")
    if layer is None:
        op, op_backward = _copy((op, op_backward))        # methods: of a copy of their object
    names = list(names or [n for n, p in _arguments(op).items() if p.kind is not p.VAR_POSITIONAL])
    names += [f"input {i}" for i in range(len(names), len(inputs))]
    inputs = [_input(name, x) for name, x in zip(names, inputs, strict=False)]
    if not any(x.dtype == np.float64 for x in inputs):
        raise ValueError("gradcheck: no input has a gradient to check: all hold integers, expected "
                         "floating-point numbers, such as x.astype(float)")
    try:
        inspect.signature(op_backward).bind("dy", "cache")
    except TypeError as e:
        raise ValueError(f"gradcheck: the backward pass: {e}, expected op_backward(dy, cache)"
                         ) from None
    except ValueError:                                    # compiled code may have no signature
        pass
    with _left_as_it_was(op, op_backward):
        pair = _Pair(op, op_backward, inputs, names, options, eps, tolerance, seed)
        pair.look(directions, elementwise)
        if not pair.errors:
            raise ValueError("gradcheck: no input has a gradient to check: each is None")
        if not pair.failed():
            pair.repeat(layer)
        for name in [n for n in pair.checked if not layer or n not in layer.named]:
            if far is not None:
                pair.look_at(name, far)
    top = max(pair.errors, key=lambda n: _rank(pair.errors[n]))
    error, *worst = pair.errors[top]
    return GradcheckReport(error, (top, *worst), {n: e[0] for n, e in pair.errors.items()},
                           tolerance, tuple(pair.notes))


class _Layer:
    """A copy of a layer, as a pair of functions of its inputs and its parameters."""

    def __init__(self, layer, n_inputs, train, seed):
        self.layer, self.n_inputs = copy.deepcopy(layer), n_inputs
        self.named = {n: p for n, p in self.layer.named_parameters() if p.trainable}
        if any(getattr(p.data, "dtype", None) != np.float64 for p in self.named.values()):
            raise ValueError("gradcheck: build the layer with dtype=np.float64")
        arguments = _arguments(layer.forward)
        self.options = {k: v for k, v in (("train", train), ("rng", seed)) if k in arguments}
        self.start = [None] * len(self.named)             # gradients before a backward pass

    def forward(self, *inputs):
        for p, data in zip(self.named.values(), inputs[self.n_inputs:], strict=True):
            p.data = data
        rng = {"rng": np.random.default_rng(self.options["rng"])} if "rng" in self.options else {}
        return self.layer.forward(*inputs[:self.n_inputs], **self.options | rng)

    def backward(self, dy, cache):
        for p, grad in zip(self.named.values(), self.start, strict=True):
            p.grad = grad
        dx = self.layer.backward(dy, cache)
        dx = list(dx if isinstance(dx, (tuple, list)) else (dx,))
        # The gradient of a parameter that this input does not use, a position, is 0.
        return dx + [np.zeros_like(p.data) if p.grad is None else p.grad
                     for p in self.named.values()]


class _Pair:
    """A forward and a backward pass, inputs that the check moves, and what it has found."""

    def __init__(self, op, op_backward, inputs, names, options, eps, tolerance, seed):
        self.op, self.op_backward, self.inputs, self.options = op, op_backward, inputs, options
        self.eps, self.tolerance = eps, tolerance
        self.checked = {n: x for n, x in zip(names, inputs, strict=False) if x.dtype == np.float64}
        self.rng = np.random.default_rng([seed, 0x6C])    # not the generator of the inputs
        self.errors, self.notes = {}, []                  # {name: (error, place, a, n)}
        before = [x.copy() for x in inputs]
        first = [a.copy() for a in self.outputs(self.forward()[0])]
        _unchanged("forward pass", inputs, before, "its inputs")
        again = self.outputs(self.forward()[0])
        if not all(np.allclose(a, b, 1e-9, 1e-12, equal_nan=True)
                   for a, b in zip(first, again, strict=True)):
            raise ValueError("gradcheck: two forward passes of the same inputs give different "
                             "outputs, the operation is not deterministic: pass a generator with "
                             "a seed, rng=np.random.default_rng(0)")
        self.r = [self.rng.standard_normal(a.shape) for a in first]

    def failed(self):
        return any(not error <= self.tolerance for error, *_ in self.errors.values())

    def forward(self):
        """Return (output, cache)."""
        pair = self.op(*self.inputs, **_copy(self.options))
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise ValueError(
                f"gradcheck: the forward pass returned a {type(pair).__name__}, expected (output, "
                "cache); " + ("several outputs are a tuple, ((y1, y2), cache)"
                              if isinstance(pair, tuple) else
                              "where a class keeps its cache in itself, write lambda *x: "
                              "(layer.forward(*x), None) and lambda dy, _: layer.backward(dy)"))
        return pair

    def outputs(self, y):
        """Return the arrays of an output."""
        arrays = [_array("output", a) for a in (y if isinstance(y, (tuple, list)) else (y,))]
        for a in arrays:
            if a.dtype.kind != "f":
                raise ValueError(f"gradcheck: an output holds {a.dtype}, which has no gradient, "
                                 "expected floating-point numbers: return it in the cache")
        return arrays

    def loss(self):
        """Return L, and a bound on its rounding error."""
        y = self.outputs(self.forward()[0])
        terms = [a * r for a, r in zip(y, self.r, strict=True)]
        total = float(sum(np.sum(t) for t in terms))
        size = abs(total) + float(sum(np.sum(t * t) for t in terms)) ** 0.5
        return total, 4 * max(float(np.finfo(a.dtype).eps) for a in y) * size

    def loss_at(self, x, d, h):
        """Return L at x + h d, and a bound on its rounding error; x gets its bits back."""
        original = x.copy()
        try:
            x += h * d
            return self.loss()
        finally:
            x[...] = original

    def slope(self, x, d, h, order=2):
        """Return the central difference along d, and a bound on its rounding error."""
        (up, noise_up), (down, noise_down) = self.loss_at(x, d, h), self.loss_at(x, d, -h)
        n, noise = (up - down) / (2 * h), (noise_up + noise_down) / (2 * h)
        if order == 4:
            n, noise = (4 * n - self.slope(x, d, 2 * h)[0]) / 3, 5 / 3 * noise
        return n, noise

    def steps(self, x, d):
        """Return the steps to try along d, the likeliest first."""
        size = float(np.abs(x).max(initial=0.0, where=d != 0))
        return sorted({self.eps * step * unit for step in STEPS for unit in (1.0, size) if unit},
                      key=lambda h: abs(np.log(h / self.eps)))

    def backward(self, y, cache, factor=1.0):
        """Return the gradient of each checked input, or ``None``, for ``dy = factor * r``."""
        dys = [factor * r if r.ndim else float(factor * r) for r in self.r]
        before = [np.array(dy) for dy in dys]
        grads = self.op_backward(tuple(dys) if isinstance(y, (tuple, list)) else dys[0], cache)
        grads = grads if isinstance(grads, (tuple, list)) else (grads,)
        if not any(grad is dy for grad in grads for dy in dys):     # a returned dy may change
            _unchanged("backward pass", dys, before, "its argument dy")
        if len(grads) == len(self.inputs):                # with one for each array of integers
            grads = [g for g, x in zip(grads, self.inputs, strict=True) if x.dtype == np.float64]
        if len(grads) != len(self.checked):
            integers = len(self.inputs) - len(self.checked)
            raise ValueError(f"gradcheck: {len(grads)} gradients, expected {len(self.checked)} "
                             f"({', '.join(self.checked)})" + f"; {integers} of the inputs hold "
                             "integers, which have none" * bool(integers))
        for (name, x), grad in zip(self.checked.items(), grads, strict=True):
            if isinstance(grad, dict):
                raise ValueError("gradcheck: the backward pass returned a dictionary, expected "
                                 "gradients in the order of the inputs")
            if grad is not None and np.shape(grad) != x.shape:
                raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                                 f"expected {x.shape}" + ": sum it over the axes that were "
                                 "broadcast" * (np.size(grad) > x.size))
        # Copies: a backward pass may hand out an array that it writes to again.
        return [None if grad is None else np.array(grad, np.float64) for grad in grads]

    def gradients(self):
        """Return the analytical gradients; raise ``ValueError`` for a pass that changes arrays."""
        before = [x.copy() for x in self.inputs]
        y, cache = self.forward()
        cache_before = [a.copy() for a in _arrays_in(cache)]
        grads = self.backward(y, cache)
        _unchanged("backward pass", self.inputs, before, "the inputs of the forward pass")
        _unchanged("backward pass", cache, cache_before, "its cache")
        return grads

    def look(self, directions, elementwise, far=None, where=""):
        """Compare all gradients at the inputs as they are; add to ``errors`` and ``notes``."""
        grads = dict(zip(self.checked, self.gradients(), strict=True))
        grads, errors = {n: grad for n, grad in grads.items() if grad is not None}, {}
        for name, grad in grads.items():
            errors[name], x = (0.0, (), 0.0, 0.0), self.checked[name]
            for place, a, d, is_entry in _places(x, grad, self.rng, directions, elementwise, far):
                error, n = self.error(x, a, d, max(rms(grad), 1e-12), is_entry)
                if far and (n is None or error <= 1e2 * self.tolerance):
                    continue                              # saturated slopes are mostly rounding
                if n is None:
                    raise ValueError("gradcheck: the output is so large beside the gradient of "
                                     f"{name} that rounding hides it: subtract a constant from "
                                     "the output")
                errors[name] = max(errors[name], (float(error), place, float(a), float(n)),
                                   key=_rank)
        faults = sorted((n for n, e in errors.items() if not e[0] <= self.tolerance),
                        key=lambda n: _rank(errors[n]))[-MOST_FAULTS:]
        with np.errstate(all="ignore"):
            faults = {name: Fault(self, name, grads) for name in faults}
        kinks = [note for fault in faults.values() for note in fault.kinks()]
        if kinks and all(fault.is_right_beside_kinks for fault in faults.values()) and not any(
                "kink" in note for note in self.notes):
            self.notes += kinks
            for x in self.checked.values():
                x += 0.01 * np.abs(x).max(initial=0.0) * self.rng.uniform(  # beyond any step
                    0.5, 1.0, x.shape) * self.rng.choice([-1.0, 1.0], x.shape)
            self.look(directions, elementwise, far, where)
            return
        for name, fault in faults.items():
            errors[name] = (errors[name][0], *fault.worst)
            self.notes.append(f"{name}: {fault.describe()}{where}")
        self.notes += kinks
        for name, error in errors.items():
            self.errors[name] = max(self.errors.get(name, error), error, key=_rank)

    def look_at(self, name, far):
        """Look again with an input scaled to the size ``far``."""
        x = self.checked[name]
        size, before = np.abs(x).max(initial=0.0), x.copy()
        if self.failed() or not 0 < size < np.inf:
            return
        try:
            with np.errstate(all="ignore"):
                x *= far / size
                if not np.isfinite(self.loss()[0]):
                    raise ValueError("the output is not finite")
                self.look(2, 4, far, f", at a size of {far:g} of {name}")
        except Exception as e:                            # the operation guards its domain
            self.notes.append(f"not checked at a size of {far:g} of {name}: {message(e)}")
        x[...] = before

    def error(self, x, a, d, size, is_entry):
        """Return (relative error, numerical value) at the step that agrees best.

        A step is clear if rounding cannot hide an error of ``tolerance``.  If no step is clear, for
        example because the output is large beside the gradient, the steps with the least rounding
        count, each up to its rounding.  Where that is more than a hundredth the gradient is
        unknown: the numerical value is then ``None``.
        """
        trials, failure = [], None
        for order in 2, 4:                                # of the differences
            for h in self.steps(x, d):
                try:
                    n, noise = self.slope(x, d, h, order)
                except Exception as e:                    # outside of the operation's domain
                    failure = e
                    continue
                scale = max(size, abs(a), abs(n)) if is_entry else max(size, abs(n) / x.size ** .5)
                if np.isfinite(a) and np.isfinite(n):
                    clear = noise <= self.tolerance * scale
                    error = max(0.0, abs(a - n) - noise * (not clear)) / scale
                    trials.append((error, n, noise / scale))
                    if clear and error <= 0.03 * self.tolerance:
                        break
            least = min((rounding for *_, rounding in trials), default=0.0)
            if least > 0.01 and size > 1e-6:
                result = np.nan, None
            else:                         # a gradient of 0, but for rounding: every step counts
                limit = np.inf if least > 0.01 else max(self.tolerance, 10 * least)
                result = min(((error, n) for error, n, rounding in trials if rounding <= limit),
                             default=(np.nan, np.nan))
            if result[0] <= self.tolerance:
                break
        if failure and not trials:
            raise failure
        return result

    def repeat(self, layer):
        """Raise ``ValueError`` if gradients depend on more than the cache, or not linearly on
        dy."""
        (y, cache), inputs = self.forward(), self.inputs[:layer.n_inputs if layer else None]
        once = self.backward(y, cache)
        before = self.inputs
        scaled, expected = self.backward(y, cache, -1024.0), list(once)
        if layer:                                         # a second pass adds to these
            n = len(once) - len(layer.named)
            layer.start, expected[n:] = once[n:], [2 * grad for grad in once[n:]]
        for when in "", ", after another forward pass,":
            if when and (layer or cache is not None):
                is_float = any(x.dtype == np.float64 for x in inputs)
                with suppress(Exception), np.errstate(all="ignore"):    # of other examples
                    self.inputs = [0.999 * x if x.dtype == np.float64 else x if is_float else
                                   x[::-1] for x in inputs] + self.inputs[len(inputs):]
                    self.forward()
                self.inputs = before
            grads = self.backward(y, cache)
            for name, a, b in zip(self.checked, grads, expected, strict=True):
                if not _close(a, b):
                    raise ValueError(f"gradcheck: {name}: two backward passes of one cache{when} " +
                                     ("must add up to twice the gradient: add with add_grad, and "
                                      "keep nothing in the layer" if layer else
                                      "differ: keep nothing outside of the cache"))
        if layer:
            layer.start = [None] * len(layer.named)
        for name, a, b in zip(self.checked, scaled, once, strict=True):
            if not _close(a, None if b is None else -1024.0 * b):
                raise ValueError(f"gradcheck: the gradient of {name} is not proportional to dy")


def rms(a):
    """Return the root mean square."""
    return float(np.sqrt(np.mean(a * a))) if a.size else 0.0


def _rank(error):
    return np.inf if np.isnan(error[0]) else error[0]


def _close(a, b):
    return a is b or np.allclose(a, b, 1e-6, 1e-9 * np.abs(b).max(initial=0.0), equal_nan=True)


def _array(name, x):
    """Return an array of real numbers."""
    try:
        a = np.asarray(x)
    except ValueError:                                    # of lists of several lengths
        a = np.array(None)
    if a.dtype.kind == "c":
        raise ValueError(f"gradcheck: {name} is complex, expected real numbers: check its real and "
                         "its imaginary part, as two arrays")
    if a.dtype.kind not in "fiub":
        raise ValueError(f"gradcheck: {name} is {brief(x)}, expected an array of numbers; other "
                         f"arguments are options, {name}=...")
    return a


def _input(name, x):
    """Return a copy in float64 of an array of floating-point numbers, or integers as they are."""
    x = _array(name, x)
    return np.array(x, np.float64) if x.dtype.kind == "f" else x


def _arguments(function):
    """Return the parameters of a function's signature, none where it has no signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _copy(value):
    """Return a copy, or the value itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _unchanged(which, now, before, name):
    """Raise ``ValueError`` if an array in ``now`` differs from the one in ``before``."""
    if not all(a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
               for a, b in zip(_arrays_in(now), before, strict=False)):
        raise ValueError(f"gradcheck: the {which} changes {name}: let it work on a copy")


def _arrays_in(value, seen=None):
    """Yield every array in a value, also in collections, objects and closures."""
    seen = {} if seen is None else seen
    if isinstance(value, np.ndarray):
        yield value
    elif id(value) not in seen and not isinstance(value, (type, types.ModuleType)):
        seen[id(value)] = value
        parts = value if isinstance(value, (tuple, list)) else [
            *(value.values() if isinstance(value, dict) else ()), *getattr(
                value, "__dict__", {}).values(), *(
                cell.cell_contents for cell in getattr(value, "__closure__", None) or ())]
        for part in parts:
            yield from _arrays_in(part, seen)


@contextmanager
def _left_as_it_was(*functions):
    """Give the dictionaries, objects and arrays that functions refer to their contents back."""
    values = [v for f in functions if inspect.isfunction(f)
              for scope in inspect.getclosurevars(f)[:2] for v in scope.values()
              if not isinstance(v, (type, types.ModuleType, types.FunctionType))]
    owners = [v if isinstance(v, dict) else getattr(v, "__dict__", {}) for v in values]
    owners, arrays = [(d, dict(d)) for d in owners], [(a, a.copy()) for a in _arrays_in(values)]
    try:
        yield
    finally:
        for owner, before in owners:
            owner.clear()
            owner.update(before)
        for a, before in arrays:
            if a.flags.writeable:
                a[...] = before


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
