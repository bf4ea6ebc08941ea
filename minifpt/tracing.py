"""Record every value that a forward and a backward pass compute, by name.

    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(dlogits, cache)
    t.outputs["trunk.h.0.attn"], t.attention["trunk.h.0.attn"], t.steps[0]

A **change** is a function of the output of a layer or of an operation.  The function's result
replaces that output for everything that comes later::

    with minifpt.trace(model, change={"trunk.h.*.attn": lambda y: 0 * y}) as t: ...

A changed model runs forward only, because no gradient is known of the change.

A trace belongs to a context (``contextvars``), and so to the thread that opened it.  Operations ask
their context how they run (``guards.RUN``); methods of layers ask for its trace (``layers.TRACE``)
while any is open.
"""

import copy
import difflib
import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import FunctionType

import numpy as np

from . import fast, layers
from . import functional as F
from .checks import brief
from .guards import RUN, checked_form
from .layers import TRACE, named_layers
from .machine import ProcessSetting

# All operations of ``functional``, by name, each with its backward pass.
OPERATIONS = {name: (function, vars(F)[f"{name}_backward"]) for name, function in vars(F).items()
              if isinstance(function, FunctionType) and f"{name}_backward" in vars(F)}
METHODS = {}                        # {(id of a class or layer, name): (the owner, its own method)}


@dataclass(eq=False)
class Step:
    """One call of an operation; ``step.function(**step.inputs)`` runs it again.

    name       the names of layer and operation: ``trunk.h.0.attn.softmax``.
    layer      the layer's name, "" for the model itself and outside of all layers.
    op         the operation's name, the same for forward and backward.
    backward   whether this is a backward pass.
    function   the function that ran: from ``functional``, or the user's own activation.
    inside     the :class:`Step` of the operation that called this one, or ``None``.
    inputs     {argument: value}; a backward pass has the gradient and the cache.
    output     the result, without the cache.
    cache      the cache of a forward pass, or ``None``.
    gradients  {input: gradient} of a forward pass, for each input that is an array of
               floating-point numbers; ``None`` until its backward pass ran, or if none was
               computed.
    reasons    {input: why its gradient is ``None``}.
    partner    the step of the other direction, or ``None``.
    changed    whether a change replaced the output.

    Arrays are copies, except parameters, which are the model's arrays.
    """

    name: str
    layer: str
    op: str
    backward: bool
    function: object
    inside: object
    inputs: dict
    output: object = None
    cache: object = None
    gradients: dict = field(default_factory=dict)
    reasons: dict = field(default_factory=dict)
    partner: object = None
    changed: bool = False

    def __repr__(self):
        return f"Step({self.name}{', backward' if self.backward else ''})"


@dataclass(eq=False)
class Pass:
    """One pass of a layer or of an operation, in the tree of a trace.

    place     (layer's name, operation's name), the second "" for a layer; the first is ``None``
              outside of the model.
    outer     the pass within which it runs.
    inner     the forward passes within it; in a backward pass, those that may still run back.
    cache     what a forward pass keeps for its backward pass.
    step      the :class:`Step` of an operation.
    """

    place: tuple
    outer: "Pass" = None
    backward: bool = False
    inner: list = field(default_factory=list)
    cache: object = None
    step: object = None

    def all_inner(self):
        """Yield every forward pass within it."""
        for inner in self.inner:
            yield inner
            yield from inner.all_inner()


class Trace:
    """The record of a :func:`trace`.

    outputs    {layer's name: output}, in the order in which layers finished; the model itself
               has the name "".
    grads      {layer's name: gradient of its output}, ``None`` where none came back.
    attention  {layer's name: probabilities (B, H, T, T)}, before dropout.
    steps      all :class:`Step` objects in the order in which they began, forward and then
               backward.

    Of a layer that runs twice, ``outputs`` and ``grads`` hold the last run.  The last block
    computes only the tokens that are read, so its arrays may have fewer tokens.  Changed outputs
    are recorded after the change.
    """

    def __init__(self, model, change=None):
        self.outputs, self.grads, self.attention = {}, {}, {}
        self.steps = []
        self._data = {id(p.data): p.data for _, p in model.named_parameters()}     # not copied
        # The objects are kept, so that no other one may get their ids.
        self._layers = {id(layer): (name, layer, type(layer))
                        for name, layer in named_layers(model)}
        self._root = self._running = Pass((None, ""))     # the innermost pass is running
        operations = {op for op, _ in named_pairs()}
        self._changes = Changes(change, [n for n, *_ in self._layers.values()], operations)
        # What runs without this trace: another one may be open, and records, too.
        self._outer, self._outer_run = TRACE.get(), RUN.get()

    def __repr__(self):
        return (f"Trace: {len(self.steps)} steps, outputs of {len(self.outputs)} layers, "
                f"gradients of {sum(g is not None for g in self.grads.values())}, attention of "
                f"{len(self.attention)}")

    # ------------------------------------------------------------- while it records

    def _copy(self, value):
        """Copy a value and the arrays in it, except the model's parameters."""
        return copy.deepcopy(value, dict(self._data))

    def _within(self, this, function, *args, **kwargs):
        """Return what a function returns as the innermost pass."""
        self._running = this
        try:
            return function(*args, **kwargs)
        finally:
            self._running = this.outer

    def _ran(self, this, y, cache):
        """Return the output that a forward pass gives out, after its change."""
        this.cache = cache
        y = self._changes.act(this.place, y, is_inner=bool(this.outer.place[1]))
        this.outer.inner.append(this)
        this.outer = None                                 # a cycle would keep the caches alive
        return y

    def _partner(self, this, cache):
        """Return the forward pass of a backward pass, or ``None``: the pass that made this cache,
        or else the last one that the layer around it ran in this place."""
        outer = this.outer
        passes = outer.inner if outer.backward else self._root.all_inner()
        here = [p for p in passes if p.place == this.place]
        same = [p for p in here if p.cache is cache]
        candidates = same or (here if outer.backward else [])
        if not candidates:
            return None
        partner = candidates[-1]
        this.inner = [*partner.inner]
        if outer.backward:
            outer.inner = [p for p in outer.inner if p is not partner]
        return partner

    def _forward(self, name, forward, args, kwargs):
        """Record a forward pass of a layer."""
        this = Pass((name, ""), self._running)
        is_outermost = self._running is self._root
        result = self._within(this, forward, *args, **kwargs)
        is_pair = isinstance(result, tuple) and len(result) == 2
        y, cache = result if is_pair else (result, None)  # a user's layer may return y alone
        y = self._ran(this, y, cache)
        self.outputs.pop(name, None)                      # in the order of the last run
        self.outputs[name] = copy.deepcopy(y)
        self.grads[name] = None
        if is_outermost and cache is not None and self._changes.by_place:
            cache = ChangedCache(self._changes)
        return (y, cache) if is_pair else y

    def _backward(self, name, backward, args, kwargs):
        """Record a backward pass of a layer."""
        if self._changes.by_place:
            self._changes.refuse_backward()
        this = Pass((name, ""), self._running, backward=True)
        bound = inspect.signature(shown(backward)).bind(*args, **kwargs)
        dy, cache, *_ = *bound.args, None
        partner = self._partner(this, cache)
        self.grads[name] = copy.deepcopy(dy)
        dx = self._within(this, backward, *args, **kwargs)
        if partner:
            self._explain([p.step for p in partner.all_inner() if p.step])
        return dx

    def _run(self, function):
        """Return what runs in the place of an operation, or of an activation: a function that
        records, unless it is of neither kind."""
        run = self._outer_run(function)
        if self._root is None:                            # it ended before a trace inside it
            return run
        op, back = next(((op, each is pair[1]) for op, pair in named_pairs() for each in pair
                         if each is function), ("", False))
        if not op:
            return run
        original = function if run is checked_form(function) else shown(run)
        signature = inspect.signature(original)

        def recorded(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            this = Pass((self._running.place[0], op), self._running, back)
            return (self._step_back if back else self._step)(this, original, run, bound)
        recorded.shown = original
        return recorded

    def _record(self, this, function, bound):
        """Record an operation that begins."""
        layer, op = this.place[0] or "", this.place[1]
        this.step = Step(joined(layer, op), layer, op, this.backward, function, this.outer.step,
                         {k: self._copy(v) for k, v in bound.arguments.items()})
        self.steps.append(this.step)
        return this.step

    def _step(self, this, function, run, bound):
        """Record a forward pass of an operation."""
        step = self._record(this, function, bound)
        y, cache = self._within(this, run, *bound.args, **bound.kwargs)
        changed = self._ran(this, y, cache)
        step.changed = changed is not y
        step.output, step.cache = self._copy(changed), self._copy(cache)
        step.gradients = {k: None for k, v in step.inputs.items()
                          if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)}
        step.reasons = dict.fromkeys(step.gradients, "backward was not run")
        if hasattr(step.cache, "probabilities"):
            self.attention[step.layer] = step.cache.probabilities.copy()
        return changed, cache

    def _step_back(self, this, function, run, bound):
        """Record a backward pass of an operation."""
        *_, cache = bound.arguments.values()
        partner = self._partner(this, cache)
        if type(cache).__module__ == fast.__name__:       # of a forward pass before the trace
            function = run = vars(fast)[function.__name__]
        step = self._record(this, function, bound)
        result = self._within(this, run, *bound.args, **bound.kwargs)
        step.output = self._copy(result)
        if partner is None:                               # its forward pass ran before the trace
            return result
        step.partner = ahead = partner.step
        if ahead.partner is None:                         # the first backward pass of this cache
            ahead.partner = step
            grads = result if isinstance(result, tuple) else (result,)
            ahead.gradients |= zip(ahead.gradients, self._copy(grads), strict=False)
            self._explain([ahead])
        return result

    def _explain(self, steps):
        """Write the reason of each gradient that is missing after a backward pass."""
        for step in steps:
            missing = [name for name, grad in step.gradients.items() if grad is None]
            step.reasons = {name: "frozen" if id(step.inputs[name]) in self._data else
                            "nothing below learns" for name in missing}

    # ------------------------------------------------------------- opened and closed

    def _pass(self, back, layer, run, *args, **kwargs):
        """Return what ``run``, a method of a layer, returns; record it if the layer is the model's.
        """
        if self._outer:
            method, run = run, functools.partial(self._outer._pass, back, layer, run)
            run.shown = method
        name, *_ = self._layers.get(id(layer), (None,))
        running = self._running                           # a layer may call its base class
        if name is None or (running.place, running.backward) == ((name, ""), back):
            return run(*args, **kwargs)
        return (self._backward if back else self._forward)(name, run, args, kwargs)

    def _check(self, model):
        """Raise ``ValueError`` if a change never acted, or if its layers are not there any more."""
        self._changes.check_all_acted(self)
        before = {key: kind for key, (_, _, kind) in self._layers.items()}
        now = {id(layer): type(layer) for _, layer in named_layers(model)}
        if any(now.get(key, kind) is not kind for key, kind in before.items()) or (
                now != before and self._changes.by_place):
            raise ValueError("trace: layers of the model were replaced while it was traced: open "
                             "the trace after that")


class Changes:
    """The changes of a trace; ``by_place`` holds {(layer, operation): (pattern, function)}, with ""
    as the operation of a change of the layer's own output.

    change      {pattern: function}, as for :func:`minifpt.trace`.
    layers      names of the model's layers.
    operations  names of the operations that a layer may run.
    """

    def __init__(self, change, layers, operations):
        self.layers, self.operations = layers, operations
        self.by_place, self.acted = {}, set()
        if change is not None and not isinstance(change, dict):
            raise ValueError(f"trace: change is {brief(change)}, expected a dictionary "
                             "{name: function}")
        for pattern, function in (change or {}).items():
            if not callable(function):
                raise ValueError(f"trace: change['{pattern}'] is {brief(function)}, expected a "
                                 "function")
            for place in self.places(pattern):
                if place in self.by_place:
                    raise ValueError(f"trace: both '{self.by_place[place][0]}' and '{pattern}' "
                                     f"change '{joined(*place)}': expected one change for each "
                                     "name")
                self.by_place[place] = pattern, function

    def places(self, pattern):
        """Return (layer, "") of the layers, or else (layer, operation), that match a pattern."""
        if not isinstance(pattern, str):
            raise ValueError(f"trace: got the name {brief(pattern)}, expected a text such as "
                             "'trunk.h.0.attn'")
        if names := [name for name in self.layers if matches(name, pattern)]:
            return [(name, "") for name in names]
        outer, _, op = pattern.rpartition(".")
        names = [name for name in self.layers if matches(name, outer)]
        if names and op in self.operations:
            return [(name, op) for name in names]
        known = [*self.layers, *(joined(name, op) for name in names for op in self.operations)]
        near = difflib.get_close_matches(pattern, known, 3, 0.3)
        raise ValueError(f"trace: no layer or operation '{pattern}'"
                         + (f", the nearest are {', '.join(map(repr, near))}" if near else ""))

    def act(self, place, y, is_inner):
        """Return the array that replaces an output, or the output itself; ``is_inner`` says that
        an operation runs within another one."""
        # Attention has a dropout of its probabilities inside, and one of its output behind it:
        # the name stands for the second.
        if place not in self.by_place or (is_inner and place[1] == "dropout"):
            return y
        self.acted.add(place)
        label = f"trace: change of '{joined(*place)}'"
        if not (isinstance(y, np.ndarray) and np.issubdtype(y.dtype, np.floating)):
            raise ValueError(f"{label}: there is no array of numbers to change, got {brief(y)}")
        answer = self.by_place[place][1](y.copy())
        z = np.asarray(answer)
        if z.shape != y.shape or not np.issubdtype(z.dtype, np.floating):
            result = answer if answer is None else f"shape {z.shape} and dtype {z.dtype}"
            raise ValueError(f"{label}: the function returned {result}, "
                             f"expected {y.shape} and {y.dtype}")
        return np.array(z, y.dtype)

    def refuse_backward(self):
        """Raise ``ValueError``: a changed model was to run backward."""
        names = ", ".join(f"'{pattern}'" for pattern in dict.fromkeys(
            pattern for pattern, _ in self.by_place.values()))
        raise ValueError(f"trace: {names} was changed, and a changed model runs forward only: run "
                         "forward and backward without the change")

    def check_all_acted(self, t):
        """Raise ``ValueError`` for a change that never acted in a trace in which the model ran."""
        for (layer, op), (pattern, _) in self.by_place.items():
            if t.outputs and (layer, op) not in self.acted:
                ran = sorted({step.op for step in t.steps if step.layer == layer})
                raise ValueError(f"trace: '{pattern}' changed nothing: '{joined(layer, op)}' never "
                                 f"ran; '{layer}' ran {', '.join(ran) or 'no operation'}")


class ChangedCache:
    """The cache of a changed run.  Reading anything of it raises ``ValueError``."""

    def __init__(self, changes):
        self.changes = changes

    def refuse(self, *_):
        """Raise ``ValueError``."""
        self.changes.refuse_backward()
    __getitem__ = __iter__ = refuse

    def __getattr__(self, name):
        if name.startswith("__") or name == "changes":    # Python itself looks for some
            raise AttributeError(name)
        self.refuse()


def matches(name, pattern):
    """Return whether a pattern matches a dotted name; a * stands for one part of the name.  The
    model's own name is empty, and only the empty pattern matches it."""
    names, patterns = name.split("."), pattern.split(".")
    return (len(names) == len(patterns) and bool(name) == bool(pattern)
            and all(map(fnmatchcase, names, patterns)))


def joined(layer, op):
    """Return the full name of an operation in a layer; the model itself has an empty name."""
    return f"{layer or ''}.{op}".strip(".")


# ---------------------------------------------------------------------- methods of layers


@ProcessSetting
def watched_methods():
    """Let the methods in ``METHODS`` be watched until the last trace ends.

    They are wrapped while a trace is open, not where a class is made: without a trace, a training
    step would make a fifth more calls.
    """
    yield
    while METHODS:
        (_, name), (owner, method) = METHODS.popitem()
        setattr(owner, name, method)


def watch(layer):
    """Put a watched method in the place of ``forward`` and ``backward``: in the class that defines
    it, or in the layer itself if it has a function of its own."""
    for name, back in (("forward", False), ("backward", True)):
        owner = next((each for each in (layer, *type(layer).__mro__)
                      if name in getattr(each, "__dict__", ())), None)
        if owner is None or (id(owner), name) in METHODS:
            continue
        method = vars(owner)[name]
        METHODS[id(owner), name] = owner, method
        setattr(owner, name, watched_method(back, method) if isinstance(owner, type) else
                functools.partial(watched_pass, back, layer, method))     # a copy's is of the copy


def watched_method(back, method):
    """Return a method of a class whose passes an open trace records."""
    @functools.wraps(method)
    def watched(layer, *args, **kwargs):
        return watched_pass(back, layer, method.__get__(layer), *args, **kwargs)
    return watched


def watched_pass(back, layer, run, *args, **kwargs):
    """Return what ``run``, a method of a layer, returns; a trace that is open here records it."""
    trace = TRACE.get()
    return trace._pass(back, layer, run, *args, **kwargs) if trace else run(*args, **kwargs)


def shown(run):
    """Return the function that a trace records with ``run``, or any other function as it is."""
    return getattr(run, "shown", run)


def named_pairs():
    """Yield (name, (forward, backward)) for each operation and for each activation."""
    yield from OPERATIONS.items()
    for key, pair in layers.ACTIVATIONS.items():
        yield getattr(pair[0], "__name__", key), pair


@contextmanager
def trace(model: layers.Layer, change: dict | None = None) -> Iterator[Trace]:
    """Record all that a model computes, within ``with trace(model) as t:``; see :class:`Trace`.

    change  {name: function}: the function gets a copy of the output of a layer
            (``trunk.h.0.attn``) or of an operation (``trunk.h.0.attn.softmax``), and its result
            replaces that output.  A * stands for one part of a name (``trunk.h.*.attn``).

    A change belongs to this model.  A changed model runs forward only: a backward pass within the
    ``with``, or of a cache that was made there, raises ``ValueError``.  So does a change that never
    acted, at the end of the ``with``.

    While it records, the functions of ``functional`` run instead of the fast ones, so that
    ``inspect.getsource(step.function)`` shows the source that ran.  The results equal the fast
    ones up to rounding, and dropout is the same for the same generator.  Only the thread that
    opened the trace is recorded.  Of two traces that are open in it both record.  Raises
    ``ValueError`` if ``model`` is not a model, and for unknown names.
    """
    if isinstance(model, type) or not (hasattr(model, "named_parameters")
                                       and hasattr(model, "forward")):
        raise ValueError(f"trace: got {model if isinstance(model, type) else type(model)}, "
                         "expected a model, an object with forward and named_parameters")
    t = Trace(model, change)
    with watched_methods, fast.run_by(t._run):
        with watched_methods.lock:                        # another thread may open one, too
            for _, layer, _ in t._layers.values():
                watch(layer)
        TRACE.set(t)
        try:
            yield t
            t._check(model)
        finally:
            t._layers, t._root, t._running = {}, None, None
            while (innermost := TRACE.get()) and innermost._root is None:
                TRACE.set(innermost._outer)               # also of those that ended before this one
