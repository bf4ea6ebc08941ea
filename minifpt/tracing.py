"""Everything that a forward and a backward pass computed, by name.

    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(dlogits, cache)
    t.outputs["trunk.h.0.attn"], t.attention["trunk.h.0.attn"], t.steps[0]
"""

import functools
import inspect
import threading
from dataclasses import dataclass, field
from types import FunctionType

import numpy as np

from . import fast, layers
from . import functional as F

# Every operation of ``functional``: its name -> (itself, its backward).
OPERATIONS = {name: (function, vars(F)[f"{name}_backward"]) for name, function in vars(F).items()
              if isinstance(function, FunctionType) and f"{name}_backward" in vars(F)}


@dataclass
class Step:
    """One operation, as it ran.

    name       the layer's dotted name and the operation's: ``trunk.h.0.attn.softmax``.
    layer      the layer's dotted name; "" where no layer was running.
    op         the operation's name, the same for forward and backward.
    backward   whether this is the backward pass of the operation.
    function   the function that ran, of ``functional`` or the user's own activation.
    inside     the :class:`Step` of the operation that called this one, or ``None``.
    inputs     {argument: value}; a backward pass has ``dy`` (or the like) and ``cache``.
    output     what it returned, without the cache.
    cache      what the forward pass kept, or ``None``.
    gradients  {input: gradient, or ``None``} of a step of the forward pass, once its backward
               ran; every input that is an array of floating-point numbers has an entry.
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

    outputs    {layer's name: what it returned}, in the order in which layers finished.
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
        self._model, self._thread = model, threading.get_ident()
        self._layers = dict(_named_layers(model))         # dotted name -> layer
        self._own = {id(p.data) for _, p in model.named_parameters()}
        self._path, self._open, self._waiting = [], [], {}

    def __repr__(self):
        return (f"Trace: {len(self.steps)} steps, outputs of {len(self.outputs)} layers, "
                f"gradients of {sum(g is not None for g in self.grads.values())}, attention of "
                f"{len(self.attention)}")

    # ------------------------------------------------------------- while it records

    def _copy(self, value):
        """Copies of all arrays in a value, but not of the model's own parameters."""
        if isinstance(value, np.ndarray):
            base = value if value.base is None else value.base
            return value if id(base) in self._own else value.copy()
        if isinstance(value, tuple):
            items = [self._copy(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def _forward(self, name, forward):
        @functools.wraps(forward)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return forward(*args, **kwargs)
            self._path.append(name)
            try:
                y, cache = forward(*args, **kwargs)
            finally:
                self._path.pop()
            self.outputs.pop(name, None)                  # in the order of the last run
            self.outputs[name] = self._copy(y)
            self.grads[name] = None
            self.reasons[name] = "backward was not run"
            return y, cache
        return recorded

    def _backward(self, name, backward):
        @functools.wraps(backward)
        def recorded(dy, cache):
            if threading.get_ident() != self._thread:
                return backward(dy, cache)
            self.grads[name] = self._copy(dy)
            self.reasons.pop(name, None)
            self._path.append(name)
            try:
                return backward(dy, cache)
            finally:
                self._path.pop()
        return recorded

    def _operation(self, op, function, back, ours):
        """``ours`` in place of ``function`` records it; ``back``: this is a backward pass."""
        @functools.wraps(function)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return ours(*args, **kwargs)
            layer = self._path[-1] if self._path else ""
            inside = self._open[-1] if self._open else None
            bound = inspect.signature(function).bind(*args, **kwargs).arguments
            step = Step(f"{layer}.{op}".lstrip("."), layer, op, back, function, inside,
                        {k: self._copy(v) for k, v in bound.items()})
            self.steps.append(step)
            self._open.append(step)
            try:
                result = function(*args, **kwargs)
            finally:
                self._open.pop()
            (self._ran_back if back else self._ran)(step, result)
            return result
        return recorded

    def _ran(self, step, result):
        y, cache = result
        step.output, step.cache = self._copy(y), self._copy(cache)
        inputs = [k for k, v in step.inputs.items()
                  if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)]
        step.gradients = dict.fromkeys(inputs)
        step.reasons = dict.fromkeys(inputs, "backward was not run")
        probabilities = getattr(cache, "probabilities", None)
        if probabilities is not None:
            self.attention[step.layer] = step.cache.probabilities
        outer = step.inside and step.inside.op
        self._waiting.setdefault((step.layer, outer, step.op), []).append(step)

    def _ran_back(self, step, result):
        step.output = self._copy(result)
        outer = step.inside and step.inside.op
        waiting = self._waiting.get((step.layer, outer, step.op))
        if not waiting:                                   # its forward ran before the trace
            return
        ahead = step.partner = waiting.pop()
        ahead.partner = step
        grads = result if isinstance(result, tuple) else (result,)
        if step.op == "residual":                         # x and branch get dx and dy
            grads = result, step.inputs["dy"]
        for name, grad in zip(ahead.gradients, grads, strict=False):
            ahead.gradients[name] = self._copy(grad)
            if grad is not None:
                del ahead.reasons[name]

    def _explain(self):
        """Say of each gradient that is missing after a backward pass why it is."""
        if not any(step.backward for step in self.steps):
            return
        for name in self.reasons:
            self.reasons[name] = "frozen, and nothing below it learns"
        for step in self.steps:
            for name in step.reasons:
                step.reasons[name] = ("frozen" if id(step.inputs[name]) in self._own else
                                      "nothing below learns")


def trace(model):
    """Record all that a model computes, within ``with trace(model) as t:``; see :class:`Trace`.

    While it records, the simple forms of ``functional`` run in place of the fast ones: the
    source that ``inspect.getsource(step.function)`` shows is the source that ran.  The results
    are the fast forms' to rounding, and dropout is the same for the same generator.  Only the
    thread that opened the trace is recorded.  Raises ``ValueError`` for what has no layers, and
    for a model that is being traced already.
    """
    if not (hasattr(model, "named_parameters") and hasattr(model, "forward")):
        raise ValueError(f"trace: {type(model).__name__} is no model: it has no named_parameters "
                         "or no forward")
    return Recording(model)


class Recording:
    """The context manager that :func:`trace` returns."""

    active = threading.Lock()                             # operations are replaced for all

    def __init__(self, model):
        self.model, self.undo, self.trace = model, [], None

    def __enter__(self):
        if not self.active.acquire(blocking=False):
            raise ValueError("trace: another trace is open; close it first")
        try:
            t = Trace(self.model)
            for name, layer in t._layers.items():
                for method, wrap in (("forward", t._forward), ("backward", t._backward)):
                    if hasattr(layer, method):            # on this object, over its class's
                        self.undo.append((vars(layer), method, vars(layer).get(method)))
                        setattr(layer, method, wrap(name, getattr(layer, method)))
            for op, pair in OPERATIONS.items():
                for simple, back in zip(pair, (False, True), strict=True):
                    name = simple.__name__
                    for module in (F, fast):
                        if name in vars(module):
                            ours = vars(module)[name]
                            self._replace(vars(module), name, t._operation(
                                op, _with_past if ours is fast.attention else simple, back, ours))
            for name, (op, op_backward) in list(layers.ACTIVATIONS.items()):
                simple = (OPERATIONS[op.__name__] if op.__module__ == fast.__name__ else
                          (op, op_backward))
                self._replace(layers.ACTIVATIONS, name, tuple(
                    t._operation(op.__name__, function, back, ours) for function, back, ours in
                    zip(simple, (False, True), (op, op_backward), strict=True)))
        except BaseException:
            self.__exit__()
            raise
        self.trace = t
        return t

    def _replace(self, table, key, value):
        self.undo.append((table, key, table.get(key)))
        table[key] = value

    def __exit__(self, *error):
        for table, key, before in reversed(self.undo):
            if before is None:
                table.pop(key, None)
            else:
                table[key] = before
        self.undo.clear()
        self.active.release()
        if self.trace is not None:
            self.trace._explain()


@functools.wraps(F.attention)
def _with_past(qkv, n_head, p=0.0, rng=None, causal=True, past=None):
    """``F.attention`` as ``fast.attention`` takes it: ``past`` is a ``KeyValues``."""
    if past is None:
        return ATTENTION(qkv, n_head, p, rng, causal)
    before = past.so_far()
    past.extend(*F.split_heads(qkv, n_head)[1:])
    return ATTENTION(qkv, n_head, p, rng, causal, before)


ATTENTION = F.attention


def _named_layers(layer, name=""):
    """(dotted name, layer) of a model and all that is in it."""
    yield name, layer
    if hasattr(layer, "children"):
        for key, child in layer.children():
            if hasattr(child, "named_parameters"):
                yield from _named_layers(child, f"{name}.{key}".lstrip("."))
