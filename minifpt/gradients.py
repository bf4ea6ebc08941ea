"""Compare analytical gradients with numerical ones."""

import copy
import inspect
import types
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checks import arrays_in, brief, unchanged
from .faults import Fault, at, index, rms, unit
from .users import message

SETTINGS = {"names": None, "eps": 1e-5, "tolerance": 1e-6, "elementwise": 64, "directions": 8,
            "far": 8.0, "train": True, "seed": 0}
STEPS = (1.0, 10.0, 0.1, 1e2, 1e-2)                       # multiples of eps, until one agrees
MOST_FAULTS = 3                                           # inputs that a failed check describes


@dataclass(repr=False)
class GradcheckReport:
    """The result of a gradient check; it is true if no relative error exceeds ``tolerance``.

    ``worst`` is (input's name, index, analytical, numerical value) at the largest relative error,
    ``errors`` the largest relative error of each input, by name.  ``notes`` are lines of text:
    where a fault is and of what kind, and what was not checked.
    """

    max_relative_error: float
    worst: tuple
    errors: dict
    tolerance: float
    notes: tuple = ()

    def __bool__(self):
        return bool(self.max_relative_error <= self.tolerance)

    def __repr__(self):
        name, place, analytical, numerical = self.worst
        lines = [f"{n:32} {e:9.2e}" for n, e in self.errors.items()]
        return "\n".join([f"{'gradient of':32} {'rel. error':>9}", *lines,
                          f"worst: {at(name, place)}: analytical {analytical:.10g}, "
                          f"numerical {numerical:.10g}", *self.notes,
                          f"{'pass' if self else 'FAIL'}: {self.max_relative_error:.2e} "
                          f"against {self.tolerance:.0e}"])


def gradcheck(op: Callable | Any, op_backward: Callable | Sequence | None = None,
              inputs: Sequence | None = None, **options: Any) -> GradcheckReport:
    """Compare a backward pass with central differences of its forward pass.

    ``gradcheck(op, op_backward, inputs)`` checks a pair of functions, ``gradcheck(layer, inputs)``
    a layer, a trunk or a model, with its trainable parameters.

    op           ``y, cache = op(*inputs, **options)``; several outputs are a tuple y.
    op_backward  ``dx, ... = op_backward(dy, cache)``: a gradient for each input of floating-point
                 numbers, in order; ``None`` is not checked.
    layer        has ``named_parameters``, ``forward(x, train, rng)`` or ``forward(x)``, and
                 ``backward(dy, cache)``; built with ``dtype=np.float64``.  A copy is checked.
    inputs       arrays, converted to float64 unless they are integers; they stay unchanged.
    options      for op, which gets a copy of them at each pass, and for the check; one that op has
                 itself, such as eps, goes to op:

    names=None       the inputs' names, by default those of op's arguments.
    eps=1e-5         the step h that is tried first, and again relative to the input's size.
    tolerance=1e-6   the largest relative error that passes.
    elementwise=64   inputs with at most this many entries are checked entry by entry, larger ones
    directions=8     along this many random directions and at as many entries.
    far=8.0          in a second look each input in turn, but no parameter, is scaled so that its
                     largest entry has this size, and a few entries are checked to 100 times the
                     tolerance; ``None`` skips it.
    train=True       whether a layer's dropout is on.
    seed=0           of the random directions, and of a layer's dropout.

    The loss is ``L = sum(y * r)`` with a random r, so ``dy = r``.  Its slope along d, one entry or
    a direction that moves every entry by +1 or -1, is ``(L(x + h d) - L(x - h d)) / 2h`` at the
    step h that agrees best.  The relative error is ``|a - n| / max(|a|, |n|, s)`` for an entry and
    ``|a - n| / s`` for a direction, with ``s`` the root mean square of that input's gradient.
    Inputs at a kink are moved a little.

    Raises ``ValueError`` if a gradient is missing, has another shape than its input or is not
    proportional to dy, if a pass changes its inputs, its cache or a ``dy`` that it does not return,
    and if it depends on chance, or on other calls.
    """
    is_layer = hasattr(op, "named_parameters")
    settings = {name: options.pop(name) for name in SETTINGS
                if name in options and (is_layer or name not in _arguments(op))}
    if is_layer:
        op_backward, inputs = None, op_backward if inputs is None else inputs
    return _check(op, op_backward, inputs, options, **SETTINGS | settings)


gradcheck_layer = gradcheck                               # its name in older versions


def assert_gradients(op: Callable | Any, *args: Any, **options: Any) -> None:
    """Raise ``AssertionError``, with the report, if a backward pass is wrong.

    ``assert_gradients(op, op_backward, *inputs, **options_of_op)``, or ``assert_gradients(layer,
    *inputs)``; see :func:`gradcheck`, which has more options."""
    __tracebackhide__ = True                              # for pytest
    report = gradcheck(op, args, **options) if hasattr(op, "named_parameters") else _check(
        op, args[0] if args else None, args[1:], options, **SETTINGS)
    if not report:
        raise AssertionError(f"wrong gradients\n{report}")


def _check(op, op_backward, inputs, options, *, names, eps, tolerance, elementwise, directions,
           far, train, seed):
    """Return the report; the arguments as for :func:`gradcheck`."""
    inputs, parameters = inputs if isinstance(inputs, (tuple, list)) else (inputs,), {}
    if hasattr(op, "named_parameters") and not isinstance(op, type):
        if options:
            raise ValueError(f"gradcheck: no option '{next(iter(options))}' for a layer, expected "
                             f"one of {', '.join(SETTINGS)}")
        names = names or [*_arguments(op.forward)][:len(inputs)]
        op, op_backward, parameters = _functions(op, len(inputs), train, seed)
        names, inputs = [*names, *parameters], [*inputs, *(p.data for p in parameters.values())]
    elif not (callable(op) and callable(op_backward)):
        raise ValueError(f"gradcheck: got {brief(op)} and {brief(op_backward)}, expected a "
                         "function and its backward pass, or a layer, with named_parameters, and "
                         "its inputs")
    elif any(p.trainable for _, p in getattr(
            getattr(op, "__self__", None), "named_parameters", list)()):
        raise ValueError(f"gradcheck: {op.__name__} is a method of a layer whose parameters would "
                         "not be checked: pass the layer itself, gradcheck(layer, x)")
    else:
        op, op_backward = _copy((op, op_backward))        # methods: of a copy of their object
    names = [*(names or (n for n, p in _arguments(op).items() if p.kind is not p.VAR_POSITIONAL))]
    names += [f"input {i}" for i in range(len(names), len(inputs))]
    arrays = [_array(name, x) for name, x in zip(names, inputs, strict=False)]
    if not any(x.dtype.kind == "f" for x in arrays):
        raise ValueError("gradcheck: no input has a gradient to check: all hold integers, expected "
                         "floating-point numbers, such as x.astype(float)")
    arrays = [np.array(x, np.float64) if x.dtype.kind == "f" else x for x in arrays]
    with _left_as_it_was(op, op_backward):
        pair = _Pair(op, op_backward, arrays, names, options, eps, tolerance, seed)
        pair.look(directions, elementwise)
        if not pair.errors:
            raise ValueError("gradcheck: no input has a gradient to check: each is None")
        if not pair.failed():
            pair.repeat(len(parameters))
        for name in pair.disproportionate():
            pair.notes.append(f"the gradient of {name} is not proportional to dy")
            if not pair.failed():
                raise ValueError(f"gradcheck: {pair.notes[-1]}")
        for name in [n for n in pair.checked if far is not None and n not in parameters]:
            pair.look_far(name, far)
    errors = {name: error for name, (error, *_) in pair.errors.items()}
    top = max(errors, key=errors.get)
    return GradcheckReport(errors[top], (top, *pair.errors[top][1:]), errors, tolerance,
                           tuple(pair.notes))


def _functions(layer, n, train, seed):
    """Return a copy of a layer as a pair of functions of n inputs and its trainable parameters,
    and these by name.  A backward pass adds to the gradients since the last forward pass."""
    layer = copy.deepcopy(layer)
    named = {name: p for name, p in layer.named_parameters() if p.trainable}
    if any(getattr(p.data, "dtype", None) != np.float64 for p in named.values()):
        raise ValueError("gradcheck: build the layer with dtype=np.float64")
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


class _Pair:
    """A forward and a backward pass, inputs that the check moves, and its results: ``errors``
    {name: (error, place, analytical, numerical value)} and ``notes``."""

    def __init__(self, op, op_backward, inputs, names, options, eps, tolerance, seed):
        self.op, self.op_backward, self.inputs, self.options = op, op_backward, inputs, options
        self.eps, self.tolerance = eps, tolerance
        self.checked = {n: x for n, x in zip(names, inputs, strict=False) if x.dtype == np.float64}
        self.rng = np.random.default_rng([seed, 0x6C])    # not the generator of the inputs
        self.errors, self.notes, before = {}, [], _copy(inputs)
        first = [a.copy() for a in _outputs(self.forward()[0])]
        _stays("forward pass", inputs, before, "its inputs")
        if not all(map(_close, _outputs(self.forward()[0]), first)):
            raise ValueError("gradcheck: two forward passes of the same inputs give different "
                             "outputs, the operation is not deterministic: pass a generator with "
                             "a seed, rng=np.random.default_rng(0)")
        self.r = [self.rng.standard_normal(a.shape) for a in first]

    def failed(self):
        return any(error > self.tolerance for error, *_ in self.errors.values())

    def forward(self):
        """Return (output, cache)."""
        pair = self.op(*self.inputs, **_copy(self.options))
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
            raise ValueError(f"gradcheck: the forward pass returned a {type(pair).__name__}, "
                             "expected (output, cache): several outputs are ((y1, y2), cache), and "
                             "a class that keeps its cache is lambda *x: (layer.forward(*x), None) "
                             "and lambda dy, _: layer.backward(dy)")
        return pair

    def loss(self, x, d, h):
        """Return L at x + h d, and a bound on its rounding error; x gets its bits back."""
        original = x.copy()
        try:
            x += h * d
            y = _outputs(self.forward()[0])
            terms = [a * r for a, r in zip(y, self.r, strict=True)]
        finally:
            x[...] = original
        total = float(sum(np.sum(term) for term in terms))
        size = abs(total) + float(sum(np.sum(term * term) for term in terms)) ** 0.5
        return total, 4 * max(float(np.finfo(a.dtype).eps) for a in y) * size

    def slope(self, x, d, h, order=2):
        """Return the central difference along d, and a bound on its rounding error."""
        (up, noise_up), (down, noise_down) = self.loss(x, d, h), self.loss(x, d, -h)
        n, noise = (up - down) / (2 * h), (noise_up + noise_down) / (2 * h)
        return (n, noise) if order == 2 else (
            (4 * n - self.slope(x, d, 2 * h)[0]) / 3, 5 / 3 * noise)

    def steps(self, x, d):
        """Return the steps to try along d, the likeliest first."""
        size = float(np.abs(x).max(initial=0.0, where=d != 0))
        return sorted({self.eps * step * unit for step in STEPS for unit in (1.0, size) if unit},
                      key=lambda h: abs(np.log(h / self.eps)))

    def backward(self, y, cache, factor=1.0):
        """Return the gradient of each checked input, or ``None``, for ``dy = factor * r``."""
        dys = [factor * r if r.ndim else float(factor * r) for r in self.r]
        before = _copy(dys)
        grads = self.op_backward(tuple(dys) if isinstance(y, (tuple, list)) else dys[0], cache)
        grads = grads if isinstance(grads, (tuple, list)) else (grads,)
        if not any(grad is dy for grad in grads for dy in dys):     # a returned dy may change
            _stays("backward pass", dys, before, "its argument dy")
        if len(grads) == len(self.inputs):                # with one for each array of integers
            grads = [g for g, x in zip(grads, self.inputs, strict=True) if x.dtype == np.float64]
        if len(grads) != len(self.checked):
            raise ValueError(f"gradcheck: {len(grads)} gradients, expected {len(self.checked)} "
                             f"({', '.join(self.checked)}); integers have none")
        for (name, x), grad in zip(self.checked.items(), grads, strict=True):
            if grad is not None and np.shape(grad) != x.shape:
                raise ValueError(f"gradcheck: the gradient of {name} has shape {np.shape(grad)}, "
                                 f"expected {x.shape}" + ": sum it over the axes that were "
                                 "broadcast" * (np.size(grad) > x.size))
        # Copies: a backward pass may hand out an array that it writes to again.
        return [None if grad is None else np.array(grad, np.float64) for grad in grads]

    def look(self, directions, elementwise, far=None, where=""):
        """Compare all gradients at the inputs as they are; add to ``errors`` and ``notes``."""
        before, (y, cache), errors = _copy(self.inputs), self.forward(), {}
        cache_before = [a.copy() for a in arrays_in(cache)]
        grads = dict(zip(self.checked, self.backward(y, cache), strict=True))
        _stays("backward pass", self.inputs, before, "the inputs of the forward pass")
        _stays("backward pass", cache, cache_before, "its cache")
        grads = {name: grad for name, grad in grads.items() if grad is not None}
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
                if error > errors[name][0]:
                    errors[name] = error, place, float(a), float(n)
        names = sorted((n for n in errors if errors[n][0] > self.tolerance),
                       key=lambda n: -errors[n][0])[:MOST_FAULTS]
        faults = [Fault(self, name, grads) for name in names]
        kinks = [note for fault in faults for note in fault.kinks()]
        if kinks and all(fault.is_right_beside_kinks for fault in faults) and not any(
                "kink" in note for note in self.notes):
            self.notes += kinks
            for x in self.checked.values():               # farther than any step
                x += 0.01 * np.abs(x).max(initial=0.0) * self.rng.uniform(
                    0.5, 1.0, x.shape) * self.rng.choice([-1.0, 1.0], x.shape)
            self.look(directions, elementwise, far, where)
            return
        for fault in faults:
            errors[fault.name] = errors[fault.name][0], *fault.worst
            self.notes.append(f"{fault.name}: {fault.describe()}{where}")
        self.notes += kinks
        for name, error in errors.items():
            if name not in self.errors or error[0] > self.errors[name][0]:
                self.errors[name] = error

    def look_far(self, name, far):
        """Look again with an input scaled to the size ``far``."""
        x = self.checked[name]
        size, before = np.abs(x).max(initial=0.0), x.copy()
        if self.failed() or not 0 < size < np.inf:
            return
        try:
            with np.errstate(all="ignore"):
                x *= far / size
                if not np.isfinite(self.loss(x, 0.0, 0.0)[0]):
                    raise ValueError("the output is not finite")
                self.look(2, 4, far, f", at a size of {far:g} of {name}")
        except Exception as e:                            # the operation guards its domain
            self.notes.append(f"not checked at a size of {far:g} of {name}: {message(e)}")
        x[...] = before

    def error(self, x, a, d, size, is_entry):
        """Return (relative error, numerical value) at the step that agrees best, by differences of
        second order or, if none agrees, of fourth.

        Those steps count at which rounding cannot hide an error of ``tolerance``, or else those
        with the least rounding, each up to its rounding.  Where that is more than a hundredth the
        gradient is unknown: the numerical value is then ``None``.
        """
        for order in 2, 4:
            trials, failure = [], None                    # (rounding, error, numerical value)
            for h in self.steps(x, d):
                try:
                    n, noise = self.slope(x, d, h, order)
                except Exception as e:                    # outside of the operation's domain
                    failure = e
                    continue
                if not np.isfinite([a, n]).all():
                    continue
                scale = max(size, abs(a), abs(n)) if is_entry else max(size, abs(n) / x.size ** .5)
                is_clear = noise <= self.tolerance * scale
                error = max(0.0, abs(a - n) - noise * (not is_clear)) / scale
                trials.append((noise / scale, error, n))
                if is_clear and error <= 0.03 * self.tolerance:
                    break
            if failure and not trials:
                raise failure
            least = min(trials, default=(0.0,))[0]
            if least > 0.01 and size > 1e-6:
                return np.inf, None
            # Where a gradient is 0 but for rounding, every step counts.
            limit = np.inf if least > 0.01 else max(self.tolerance, 10 * least)
            result = min((trial[1:] for trial in trials if trial[0] <= limit),
                         default=(np.inf, np.nan))
            if result[0] <= self.tolerance:
                break
        return result

    def disproportionate(self):
        """Return the names of the inputs whose gradient is not proportional to dy."""
        once, scaled = (self.backward(*self.forward(), factor) for factor in (1.0, -1024.0))
        return [name for name, a, b in zip(self.checked, once, scaled, strict=True)
                if a is not None and not _close(b, -1024.0 * a)]

    def repeat(self, n_parameters):
        """Raise ``ValueError`` if gradients depend on other calls."""
        (y, cache), inputs = self.forward(), self.inputs
        once, n = self.backward(y, cache), len(inputs) - n_parameters
        if n_parameters or cache is not None:             # other examples
            with suppress(Exception), np.errstate(all="ignore"):
                self.inputs = [0.999 * x if x.dtype == np.float64 else np.flip(x)
                               for x in inputs[:n]] + inputs[n:]
                self.forward()
            self.inputs = inputs
        again, sums = self.backward(y, cache), self.backward(y, cache)
        for i, name in enumerate(self.checked):
            is_sum = i >= len(once) - n_parameters        # a layer adds to its gradients
            if once[i] is None:
                continue
            if not (_close(again[i], once[i]) and _close(sums[i], (1 + is_sum) * once[i])):
                raise ValueError(f"gradcheck: {name}: two backward passes of one cache, after "
                                 "another forward pass, must " + (
                                     "add up to twice the gradient: add with add_grad, and keep "
                                     "nothing in the layer" if n_parameters else
                                     "give one gradient: keep nothing outside of the cache"))


def _close(a, b):
    return np.allclose(a, b, 1e-6, 1e-9 * np.abs(np.nan_to_num(b)).max(initial=0.0),
                       equal_nan=True)


def _array(name, x, kinds="fiub", hint=""):
    """Return an array of numbers whose dtype is of these kinds."""
    try:
        a = np.asarray(x)
    except ValueError:                                    # of lists of several lengths
        a = np.array(None)
    if a.dtype.kind not in kinds:
        hint = "its real and its imaginary part are two arrays" * (a.dtype.kind == "c") or (
            hint or f"other arguments are options, {name}=...")
        raise ValueError(f"gradcheck: {name} is {brief(x)}, expected real numbers that have a "
                         f"gradient: {hint}")
    return a


def _outputs(y):
    """Return the arrays of an output."""
    return [_array("the output", a, "f", "return other results in the cache")
            for a in (y if isinstance(y, (tuple, list)) else (y,))]


def _arguments(function):
    """Return the parameters of a function's signature, none where it has no signature."""
    with suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return {}


def _copy(value):
    """Return a copy, or the value itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _stays(which, now, before, name):
    """Raise ``ValueError`` if an array in ``now`` differs from the one in ``before``."""
    if not unchanged(now, before):
        raise ValueError(f"gradcheck: the {which} changes {name}: let it work on a copy")


@contextmanager
def _left_as_it_was(*functions):
    """Give the dictionaries, objects and arrays that functions refer to their contents back."""
    values = [v for f in functions if inspect.isfunction(f)
              for scope in inspect.getclosurevars(f)[:2] for v in scope.values()
              if not isinstance(v, (type, types.ModuleType, types.FunctionType))]
    owners = [v if isinstance(v, dict) else getattr(v, "__dict__", {}) for v in values]
    before = [(owner, dict(owner)) for owner in owners]
    arrays = [(a, a.copy()) for a in arrays_in(values) if a.flags.writeable]
    try:
        yield
    finally:
        for owner, contents in before:
            owner.clear()
            owner.update(contents)
        for a, contents in arrays:
            a[...] = contents


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
        yield index(x, i), grad.flat[i], unit(x, i), True
