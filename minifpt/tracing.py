"""Everything that a forward and a backward pass computed, by name.

    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(dlogits, cache)
    t.outputs["trunk.h.0.attn"], t.attention["trunk.h.0.attn"], t.steps[0]
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

# Every operation of ``functional``: its name -> (itself, its backward).
OPERATIONS = {name: (function, vars(F)[f"{name}_backward"]) for name, function in vars(F).items()
              if isinstance(function, FunctionType) and f"{name}_backward" in vars(F)}
NOTHING_LEARNS = "frozen, and nothing below it learns"
OPEN = threading.Lock()                                   # held while a trace is open


@dataclass(eq=False)
class Step:
    """One operation, as it ran; ``step.function(**step.inputs)`` runs it again.

    name       the layer's dotted name and the operation's: ``trunk.h.0.attn.softmax``.
    layer      the layer's dotted name; "" is the model itself, or no layer at all.
    op         the operation's name, the same for forward and backward.
    backward   whether this is the backward pass of the operation.
    function   the function that ran, of ``functional`` or the user's own activation.
    inside     the :class:`Step` of the operation that called this one, or ``None``.
    inputs     {argument: value}; a backward pass has ``dy`` (or the like) and ``cache``.
    output     what it returned, without the cache.
    cache      what the forward pass kept, or ``None``.
    gradients  {input: gradient, or ``None``} of a step of the forward pass, once its backward
               ran; every input that is an array of floating-point numbers has an entry.  That
               of a residual's x includes what came back through the branch.
    reasons    {input: why its gradient is ``None``}.
    partner    the step of the other direction, or ``None``.

    Arrays are copies, but those of parameters, which are the model's own.
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

    def __repr__(self):
        return f"Step({self.name}{', backward' if self.backward else ''})"


class Trace:
    """What :func:`trace` records.

    outputs    {layer's name: what it returned}, in the order in which layers finished; the
               model itself is the layer "".
    grads      {layer's name: the gradient that came back to it}, ``None`` where there was none.
    reasons    {layer's name: why there was none}.
    attention  {layer's name: probabilities (B, H, T, T)}, before dropout.
    steps      every :class:`Step` in the order in which it began, forward and then backward.

    A layer that runs twice leaves what its last run left.  Of the last block only the tokens
    that are read are computed, so its outputs and gradients may have fewer tokens.
    """

    def __init__(self, model):
        self.outputs, self.grads, self.reasons, self.attention = {}, {}, {}, {}
        self.steps = []
        self._thread = threading.get_ident()
        self._own = {id(p.data): p.data for _, p in model.named_parameters()}
        # For each layer that is running, innermost last, its name and the steps that it may be
        # the backward pass of; then the operations that are running.
        self._running, self._open = [("", slice(None))], []
        self._runs, self._kept = {}, {}                   # the caches of layers and of steps

    def __repr__(self):
        return (f"Trace: {len(self.steps)} steps, outputs of {len(self.outputs)} layers, "
                f"gradients of {sum(g is not None for g in self.grads.values())}, attention of "
                f"{len(self.attention)}")

    # ------------------------------------------------------------- while it records

    def _copy(self, value):
        """A copy, with all arrays in it but the model's own parameters."""
        return copy.deepcopy(value, dict(self._own))

    def _forward(self, name, forward):
        @functools.wraps(forward)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            first = len(self.steps)
            self._running.append((name, slice(0)))
            try:
                result = forward(*args, **kwargs)
            finally:
                self._running.pop()
            pair = isinstance(result, tuple) and len(result) == 2
            y, cache = result if pair else (result, ...)  # what is no layer may have no cache
            self._runs.setdefault(name, []).append((cache, slice(first, len(self.steps))))
            self.outputs.pop(name, None)                  # in the order of the last run
            self.outputs[name] = copy.deepcopy(y)
            self.grads[name] = None
            self.reasons[name] = NOTHING_LEARNS if cache is None else "backward was not run"
            return result
        return recorded

    def _backward(self, name, backward):
        @functools.wraps(backward)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return backward(*args, **kwargs)
            dy, cache = [*args, *kwargs.values()][:2]
            steps = next((steps for kept, steps in reversed(self._runs.get(name, []))
                          if kept is cache), slice(0))    # of the run that left this cache
            self.grads[name] = copy.deepcopy(dy)
            self.reasons.pop(name, None)
            self._running.append((name, steps))
            try:
                dx = backward(*args, **kwargs)
            finally:
                self._running.pop()
            self._explain(self.steps[steps])
            for inner, grad in self.grads.items():        # the way back ended above these
                if grad is None and inner.startswith(f"{name}." if name else ""):
                    self.reasons[inner] = NOTHING_LEARNS
            return dx
        return recorded

    def _operation(self, op, function, back, ours):
        """``ours`` in place of ``function`` records it; ``back``: this is a backward pass."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return ours(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            if isinstance(bound.arguments.get("past"), layers.KeyValues):
                bound.arguments["past"] = before(**bound.arguments)
            *_, last = bound.arguments.values()           # a backward pass's cache
            # A forward pass before the trace left the cache of a fast form.
            run = ours if back and type(last).__module__ == fast.__name__ else function
            layer, inside = self._running[-1][0], self._open[-1] if self._open else None
            step = Step(f"{layer}.{op}".lstrip("."), layer, op, back, run, inside,
                        {k: self._copy(v) for k, v in bound.arguments.items()})
            if back:
                step.partner = self._partner(step, last)
            self.steps.append(step)
            self._open.append(step)
            try:
                result = run(*bound.args, **bound.kwargs)
            finally:
                self._open.pop()
            (self._ran_back if back else self._ran)(step, result)
            return result
        return recorded

    def _partner(self, step, cache):
        """The forward step that a backward step belongs to, in the same run of its layer: the
        one that left this cache, or else the last."""
        outer = step.inside and step.inside.partner
        ahead = [] if step.inside and not outer else [
            s for s in self.steps[self._running[-1][1]] if s.partner is None and not s.backward
            and (s.layer, s.op, s.inside) == (step.layer, step.op, outer)]
        return next((s for s in reversed(ahead) if self._kept.get(s) is cache),
                    ahead[-1] if ahead else None)

    def _ran(self, step, result):
        y, self._kept[step] = result
        step.output, step.cache = self._copy(y), self._copy(self._kept[step])
        step.gradients = {k: None for k, v in step.inputs.items()
                          if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)}
        step.reasons = dict.fromkeys(step.gradients, "backward was not run")
        if hasattr(step.cache, "probabilities"):
            self.attention[step.layer] = step.cache.probabilities.copy()

    def _ran_back(self, step, result):
        step.output = self._copy(result)
        ahead = step.partner
        if ahead is None:                                 # its forward ran before the trace
            return
        ahead.partner = step
        grads = result if isinstance(result, tuple) else (result,)
        if step.op == "residual":                         # x and branch get dx and dy, which in
            grads = [g if g.shape == ahead.output.shape else g[:, -ahead.output.shape[1]:]
                     for g in (result, step.inputs["dy"])]  # the last block are of all tokens
        ahead.gradients |= zip(ahead.gradients, self._copy(grads), strict=False)
        self._explain([ahead])

    def _explain(self, steps):
        """Say of each gradient that is missing after a backward pass why it is."""
        for step in steps:
            missing = [name for name, grad in step.gradients.items() if grad is None]
            step.reasons = {name: "frozen" if id(step.inputs[name]) in self._own else
                            "nothing below x learns" if name == "branch" else
                            "nothing below learns" for name in missing}


@contextmanager
def trace(model: layers.Layer) -> Iterator[Trace]:
    """Record all that a model computes, within ``with trace(model) as t:``; see :class:`Trace`.

    While it records, the simple forms of ``functional`` run in place of the fast ones: the
    source that ``inspect.getsource(step.function)`` shows is the source that ran.  The results
    are the fast forms' to rounding, and dropout is the same for the same generator.  Only the
    thread that opened the trace is recorded.  Raises ``ValueError`` for what is no model, and
    while another trace is open.
    """
    if isinstance(model, type) or not (hasattr(model, "named_parameters")
                                       and hasattr(model, "forward")):
        raise ValueError(f"trace: {model if isinstance(model, type) else type(model)} is no model, "
                         "expected an object with forward and named_parameters")
    t = Trace(model)
    with replaced(t._operation) as replace:
        for name, layer in named_layers(model):
            for method, wrap in (("forward", t._forward), ("backward", t._backward)):
                if hasattr(layer, method):                # on this object, over its class's
                    replace(vars(layer), method, wrap(name, getattr(layer, method)))
        yield t
        t._runs, t._kept = {}, {}                         # they held on to every cache


@contextmanager
def replaced(wrap):
    """Within, ``wrap(op, function, back, ours)`` runs in place of each operation and of each
    backward pass (``back``): of ``function``, the simple form, and of ``ours``, the one that would
    have run.  Gives ``replace(table, key, value)``, which is undone at the end too."""
    if not OPEN.acquire(blocking=False):                  # operations are replaced for all
        raise ValueError("trace: another trace is open; close it first")

    def replace(table, key, value):
        undo.enter_context(swapped(table, key, value))
    with ExitStack() as undo:
        undo.callback(OPEN.release)
        for op, pair in OPERATIONS.items():
            for simple, back in zip(pair, (False, True), strict=True):
                for table in (vars(F), vars(fast)):
                    if ours := table.get(simple.__name__):
                        replace(table, simple.__name__, wrap(op, simple, back, ours))
        for key, pair in list(layers.ACTIVATIONS.items()):
            op = getattr(pair[0], "__name__", key)
            simple = OPERATIONS[op] if pair[0].__module__ == fast.__name__ else pair
            replace(layers.ACTIVATIONS, key, tuple(
                wrap(op, *each) for each in zip(simple, (False, True), pair, strict=True)))
        yield replace


@contextmanager
def swapped(table, key, value):
    """Within, ``table[key]`` is ``value``."""
    there = key in table
    before = table.get(key)
    table[key] = value
    try:
        yield
    finally:
        if there:
            table[key] = before
        else:
            del table[key]


def before(past, qkv, n_head, **_):
    """``(k, v)`` of the tokens before these, from a ``KeyValues``, which takes these in."""
    before = past.so_far()
    past.extend(*F.split_heads(qkv, n_head)[1:])
    return before


def named_layers(layer, name="", seen=()):
    """(dotted name, layer) of a model and all that is in it; a shared one by its first name."""
    seen = seen or set()
    if id(layer) not in seen:
        seen.add(id(layer))
        yield name, layer
        for key, child in layer.children() if hasattr(layer, "children") else ():
            if hasattr(child, "named_parameters"):
                yield from named_layers(child, f"{name}.{key}".lstrip("."), seen)
