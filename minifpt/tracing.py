"""Record every value that a forward and a backward pass compute, by name.

    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(dlogits, cache)
    t.outputs["trunk.h.0.attn"], t.attention["trunk.h.0.attn"], t.steps[0]

``changing`` has the changes of values while a model runs.
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
from .changing import Changes
from .layers import named_layers

# All operations of ``functional``, by name, each with its backward pass.
OPERATIONS = {name: (function, vars(F)[f"{name}_backward"]) for name, function in vars(F).items()
              if isinstance(function, FunctionType) and f"{name}_backward" in vars(F)}
NOTHING_LEARNS = "frozen, and nothing below it learns"
OPEN = threading.Lock()                                   # held while a trace is open


@dataclass(eq=False)
class Step:
    """One call of an operation; ``step.function(**step.inputs)`` runs it again.

    name       the names of layer and operation: ``trunk.h.0.attn.softmax``.
    layer      the layer's name, "" for the model itself and outside of all layers.
    op         the operation's name, the same for forward and backward.
    backward   whether this is a backward pass.
    function   the function that ran: from ``functional``, or the user's own activation.
    inside     the :class:`Step` of the operation that called this one, or ``None``.
    inputs     {argument: value}; a backward pass has ``dy`` and ``cache``.
    output     the result, without the cache.
    cache      the cache of a forward pass, or ``None``.
    gradients  {input: gradient} of a forward pass, for each input that is an array of
               floating-point numbers; ``None`` until its backward pass ran, or if none was
               computed.  The gradient of a residual's x includes the branch's part.
    reasons    {input: why its gradient is ``None``}.
    partner    the step of the other direction, or ``None``.
    changed    whether a change replaced the output, or the incoming gradient of a backward pass.

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


class Trace:
    """The record of a :func:`trace`.

    outputs    {layer's name: output}, in the order in which layers finished; the model itself
               has the name "".
    grads      {layer's name: gradient of its output}, ``None`` where none came back.
    reasons    {layer's name: why its gradient is ``None``}.
    attention  {layer's name: probabilities (B, H, T, T)}, before dropout.
    steps      all :class:`Step` objects in the order in which they began, forward and then
               backward.

    Of a layer that runs twice, ``outputs`` and ``grads`` hold the last run.  The last block
    computes only the tokens that are read, so its arrays may have fewer tokens.  Changed outputs
    and gradients are recorded after the change.
    """

    def __init__(self, model, change=None, change_grads=None):
        self.outputs, self.grads, self.reasons, self.attention = {}, {}, {}, {}
        self.steps = []
        self._thread = threading.get_ident()
        self._own = {id(p.data): p.data for _, p in model.named_parameters()}
        # The layers that are running, innermost last: name, and in a backward pass the steps of
        # its forward pass.  Then the operations that are running.
        self._running, self._open = [("", slice(None))], []
        self._runs, self._caches = {}, {}                 # the caches of layers and of steps
        self._before = {}                                 # outputs of steps, before a change
        operations = {*OPERATIONS, *(getattr(pair[0], "__name__", key)
                                     for key, pair in layers.ACTIVATIONS.items())}
        self._changes = Changes(change, change_grads, [n for n, _ in named_layers(model)],
                                operations)

    def __repr__(self):
        return (f"Trace: {len(self.steps)} steps, outputs of {len(self.outputs)} layers, "
                f"gradients of {sum(g is not None for g in self.grads.values())}, attention of "
                f"{len(self.attention)}")

    # ------------------------------------------------------------- while it records

    def _copy(self, value):
        """Copy a value and the arrays in it, except the model's parameters."""
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
            y, cache = result if pair else (result, ...)  # a user's layer may return y alone
            before = None
            if name in self._changes.outputs:
                before, y = y, self._changes.output(name, y)
                result = (y, cache) if pair else y
            self._runs.setdefault(name, []).append((cache, slice(first, len(self.steps)), before))
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
            steps, before = next(((steps, before) for run_cache, steps, before in reversed(
                self._runs.get(name, [])) if run_cache is cache), (slice(0), None))
            dy = self._changes.grad(name, dy)             # steps are those of this cache's run
            self.grads[name] = copy.deepcopy(dy)
            self.reasons.pop(name, None)
            if before is not None:
                dy = self._changes.backward(name, before, dy)
            if args:
                args = dy, *args[1:]
            else:
                kwargs[next(iter(kwargs))] = dy
            self._running.append((name, steps))
            try:
                dx = backward(*args, **kwargs)
            finally:
                self._running.pop()
            self._explain(self.steps[steps])
            for inner, grad in self.grads.items():        # the backward pass ended above these
                if grad is None and inner.startswith(f"{name}." if name else ""):
                    self.reasons[inner] = NOTHING_LEARNS
            return dx
        return recorded

    def _operation(self, op, function, back, ours):
        """Return a function that records a call of ``function`` and stands for ``ours``, its fast
        form; ``back`` says that this is a backward pass."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            if threading.get_ident() != self._thread:
                return ours(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            if isinstance(bound.arguments.get("past"), layers.KeyValues):
                bound.arguments["past"] = before(**bound.arguments)
            *_, last = bound.arguments.values()           # a backward pass's cache
            # The cache of a forward pass before the trace is the fast form's.
            run = ours if back and type(last).__module__ == fast.__name__ else function
            layer, inside = self._running[-1][0], self._open[-1] if self._open else None
            name, changes = f"{layer}.{op}".lstrip("."), self._changes
            # The backward pass of attention does not use the output of its dropout.
            may_change = not (op == "dropout" and inside)
            if is_changed := may_change and back and name in changes.grads:
                key = next(iter(bound.arguments))
                bound.arguments[key] = changes.grad(name, bound.arguments[key])
            step = Step(name, layer, op, back, run, inside,
                        {k: self._copy(v) for k, v in bound.arguments.items()},
                        changed=is_changed)
            if back:
                step.partner = self._partner(step, last)
                if step.partner in self._before:          # the cache is from before the change
                    first, cache = bound.arguments
                    bound.arguments[cache] = self._caches[step.partner]
                    bound.arguments[first] = changes.backward(
                        name, self._before[step.partner], bound.arguments[first])
            self.steps.append(step)
            self._open.append(step)
            try:
                result = run(*bound.args, **bound.kwargs)
            finally:
                self._open.pop()
            if may_change and not back and name in changes.outputs:
                self._before[step], step.changed = result[0], True
                result = changes.output(name, result[0]), result[1]
            (self._ran_back if back else self._ran)(step, result)
            return result
        return recorded

    def _partner(self, step, cache):
        """Return the forward step of a backward step, from the same run of its layer: the step
        with this cache, or else the last."""
        outer = step.inside and step.inside.partner
        ahead = [] if step.inside and not outer else [
            s for s in self.steps[self._running[-1][1]] if s.partner is None and not s.backward
            and (s.layer, s.op, s.inside) == (step.layer, step.op, outer)]
        return next((s for s in reversed(ahead) if self._caches.get(s) is cache),
                    ahead[-1] if ahead else None)

    def _ran(self, step, result):
        y, self._caches[step] = result
        step.output, step.cache = self._copy(y), self._copy(self._caches[step])
        step.gradients = {k: None for k, v in step.inputs.items()
                          if isinstance(v, np.ndarray) and np.issubdtype(v.dtype, np.floating)}
        step.reasons = dict.fromkeys(step.gradients, "backward was not run")
        if hasattr(step.cache, "probabilities"):
            self.attention[step.layer] = step.cache.probabilities.copy()

    def _ran_back(self, step, result):
        step.output = self._copy(result)
        ahead = step.partner
        if ahead is None:                                 # its forward pass ran before the trace
            return
        ahead.partner = step
        grads = result if isinstance(result, tuple) else (result,)
        if step.op == "residual":                         # x and branch get dx and dy; in the last
            grads = [g if g.shape == ahead.output.shape else g[:, -ahead.output.shape[1]:]
                     for g in (result, step.inputs["dy"])]          # block these have all tokens
        ahead.gradients |= zip(ahead.gradients, self._copy(grads), strict=False)
        self._explain([ahead])

    def _explain(self, steps):
        """Write the reason of each gradient that is missing after a backward pass."""
        for step in steps:
            missing = [name for name, grad in step.gradients.items() if grad is None]
            step.reasons = {name: "frozen" if id(step.inputs[name]) in self._own else
                            "nothing below x learns" if name == "branch" else
                            "nothing below learns" for name in missing}


@contextmanager
def trace(model: layers.Layer, change: dict | None = None, change_grads: dict | None = None
          ) -> Iterator[Trace]:
    """Record all that a model computes, within ``with trace(model) as t:``; see :class:`Trace`.

    change        {name: function}: the function's result replaces the output of a layer
                  (``trunk.h.0.attn``) or an operation (``trunk.h.0.attn.softmax``), and the
                  gradients are those of the changed computation.  A * stands for one part of a
                  name (``trunk.h.*.attn``).  A function that mixes numbers of different places
                  needs a pair ``(function, backward)``; see ``changing``.
    change_grads  {name: function}: the function's result replaces the gradient of that output.

    A function gets a copy.  The backward pass may call a function of ``change`` again, with values
    close to those of the forward pass.  The changes end with the ``with``, also after an error: run
    the backward pass inside it, too, or it is that of the model without the changes.

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
    t = Trace(model, change, change_grads)
    with replaced(t._operation) as replace:
        for name, layer in named_layers(model):
            for method, wrap in (("forward", t._forward), ("backward", t._backward)):
                if hasattr(layer, method):                # on the object: its class stays
                    replace(vars(layer), method, wrap(name, getattr(layer, method)))
        yield t
        t._changes.check_all_ran(t.steps)
        t._runs, t._caches, t._before = {}, {}, {}        # frees the caches


@contextmanager
def replaced(wrap):
    """Replace each operation, and each backward pass (``back``), by
    ``wrap(op, function, back, ours)`` within a ``with``.

    ``function`` is the textbook form and ``ours`` the function that would have run.  Gives
    ``replace(table, key, value)`` for more replacements, which end with the ``with``, too.
    """
    if not OPEN.acquire(blocking=False):                  # operations are replaced for all threads
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


def before(past, qkv, n_head, **_):
    """Return ``(k, v)`` of the earlier tokens in a ``KeyValues``, then append these tokens."""
    pair = past.so_far()
    past.extend(*F.split_heads(qkv, n_head)[1:])
    return pair
