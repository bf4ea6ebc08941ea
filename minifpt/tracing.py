"""Record every value that a forward and a backward pass compute, by name.

    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(dlogits, cache)
    t.outputs["trunk.h.0.attn"], t.attention["trunk.h.0.attn"], t.steps[0]

``changing`` replaces values while a model runs forward.
"""

import copy
import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType

import numpy as np

from . import fast, layers
from . import functional as F
from .changing import ChangedCache, Changes, joined
from .layers import TRACING, named_layers

ONE_TRACE = threading.Lock()                              # held while a trace is open
# All operations of ``functional``, by name, each with its backward pass.
OPERATIONS = {name: (function, vars(F)[f"{name}_backward"]) for name, function in vars(F).items()
              if isinstance(function, FunctionType) and f"{name}_backward" in vars(F)}


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
        self._thread = threading.get_ident()
        self._data = {id(p.data): p.data for _, p in model.named_parameters()}     # not copied
        # The objects are kept, so that no other one may get their ids.
        self._layers = {id(layer): (name, layer, type(layer))
                        for name, layer in named_layers(model)}
        self._root = self._running = Pass((None, ""))     # the innermost pass is running
        operations = {*OPERATIONS, *(getattr(pair[0], "__name__", key)
                                     for key, pair in layers.ACTIVATIONS.items())}
        self._changes = Changes(change, [n for n, *_ in self._layers.values()], operations)

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
        bound = inspect.signature(backward).bind(*args, **kwargs)
        dy, cache, *_ = *bound.args, None
        partner = self._partner(this, cache)
        self.grads[name] = copy.deepcopy(dy)
        dx = self._within(this, backward, *args, **kwargs)
        if partner:
            self._explain([p.step for p in partner.all_inner() if p.step])
        return dx

    def _operation(self, op, function, back, original):
        """Return a function that runs and records ``function`` in the place of ``original``, its
        fast form; ``back`` says that this is a backward pass."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            this = Pass((self._running.place[0], op), self._running, back)
            return (self._step_back(this, function, original, bound) if back
                    else self._step(this, function, bound))
        return recorded

    def _record(self, this, function, bound):
        """Record an operation that begins."""
        layer, op = this.place[0] or "", this.place[1]
        this.step = Step(joined(layer, op), layer, op, this.backward, function, this.outer.step,
                         {k: self._copy(v) for k, v in bound.arguments.items()})
        self.steps.append(this.step)
        return this.step

    def _step(self, this, function, bound):
        """Record a forward pass of an operation."""
        step = self._record(this, function, bound)
        y, cache = self._within(this, function, *bound.args, **bound.kwargs)
        changed = self._ran(this, y, cache)
        step.changed = changed is not y
        step.output, step.cache = self._copy(changed), self._copy(cache)
        step.gradients = {k: None for k, v in step.inputs.items()
                          if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)}
        step.reasons = dict.fromkeys(step.gradients, "backward was not run")
        if hasattr(step.cache, "probabilities"):
            self.attention[step.layer] = step.cache.probabilities.copy()
        return changed, cache

    def _step_back(self, this, function, original, bound):
        """Record a backward pass of an operation."""
        *_, cache = bound.arguments.values()
        partner = self._partner(this, cache)
        # The cache of a forward pass before the trace is the fast form's.
        run = original if type(cache).__module__ == fast.__name__ else function
        step = self._record(this, run, bound)
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

    def _methods(self):
        """Yield (owner, name, function) for each function that is to stand for a method.  The owner
        is the class of a layer, or the layer itself if it has a function of its own."""
        for name, layer, kind in self._layers.values():
            for method, back in (("forward", False), ("backward", True)):
                inherited = getattr(kind, method, None)
                if original := getattr(layer, "__dict__", {}).get(method):
                    yield layer, method, functools.update_wrapper(
                        OwnMethod(self._call, back, name, original), original)
                elif callable(inherited):
                    yield kind, method, self._method(back, inherited)

    def _method(self, back, original):
        """Return a method that stands for a class's own and records the layers of the model."""
        @functools.wraps(original)
        def recorded(layer, *args, **kwargs):
            name, *_ = self._layers.get(id(layer), (None,))
            return self._call(back, name, functools.partial(original, layer), *args, **kwargs)
        return recorded

    def _call(self, back, name, original, *args, **kwargs):
        """Record a pass of a layer, ``original``, unless it is another thread's or model's."""
        running = self._running                           # a layer may call its base class
        if (threading.get_ident() != self._thread or name is None
                or (running.place, running.backward) == ((name, ""), back)):
            return original(*args, **kwargs)
        return (self._backward if back else self._forward)(name, original, args, kwargs)

    def _check(self, model):
        """Raise ``ValueError`` if a change never acted, or if its layers are not there any more."""
        self._changes.check_all_acted(self)
        before = {key: kind for key, (_, _, kind) in self._layers.items()}
        now = {id(layer): type(layer) for _, layer in named_layers(model)}
        if any(now.get(key, kind) is not kind for key, kind in before.items()) or (
                now != before and self._changes.by_place):
            raise ValueError("trace: layers of the model were replaced while it was traced: open "
                             "the trace after that")


class OwnMethod(functools.partial):
    """Records the calls of a layer's own method; a copy of the layer gets the original one."""

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.__wrapped__, memo)


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
    opened the trace is recorded.  Raises ``ValueError`` if ``model`` is not a model, for unknown
    names, and while another trace is open.
    """
    if isinstance(model, type) or not (hasattr(model, "named_parameters")
                                       and hasattr(model, "forward")):
        raise ValueError(f"trace: got {model if isinstance(model, type) else type(model)}, "
                         "expected a model, an object with forward and named_parameters")
    t = Trace(model, change)
    if not ONE_TRACE.acquire(blocking=False):             # operations are replaced for all threads
        raise ValueError("trace: another trace is open; close it first")
    with ExitStack() as undo:
        undo.callback(ONE_TRACE.release)
        undo.enter_context(swapped(vars(TRACING), "is_open", True))
        undo.enter_context(replaced(t._operation))
        for owner, name, method in [*t._methods()]:       # before any of them is replaced
            put = type.__setattr__ if isinstance(owner, type) else object.__setattr__
            if name in vars(owner):
                undo.callback(put, owner, name, vars(owner)[name])
            else:
                undo.callback(delattr, owner, name)
            put(owner, name, method)
        try:
            yield t
            t._check(model)
        finally:
            t._layers, t._root, t._running = {}, None, None


@contextmanager
def replaced(wrap):
    """Replace each operation, and each backward pass (``back``), wherever the library finds it, by
    ``wrap(op, function, back, original)`` within a ``with``.

    ``function`` is that of ``OPERATIONS`` and ``original`` the function that would have run; for an
    activation of the user's own both are this activation.
    """
    with ExitStack() as undo:
        for op, pair in OPERATIONS.items():
            for simple, back in zip(pair, (False, True), strict=True):
                for table in (vars(F), vars(fast)):
                    if original := table.get(simple.__name__):
                        undo.enter_context(swapped(
                            table, simple.__name__, wrap(op, simple, back, original)))
        for key, pair in list(layers.ACTIVATIONS.items()):
            op = getattr(pair[0], "__name__", key)
            simple = OPERATIONS[op] if pair[0].__module__ in (F.__name__, fast.__name__) else pair
            undo.enter_context(swapped(layers.ACTIVATIONS, key, tuple(
                wrap(op, *each) for each in zip(simple, (False, True), pair, strict=True))))
        yield


@contextmanager
def swapped(table, key, value):
    """Set ``table[key]`` to ``value`` within a ``with``."""
    existed, before = key in table, table.get(key)
    table[key] = value
    try:
        yield
    finally:
        if existed:
            table[key] = before
        else:
            del table[key]
