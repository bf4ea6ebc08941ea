"""Values that a trace replaces while a model runs forward: ``minifpt.trace(model, change={...})``.

A **change** is a function of the output of a layer or of an operation.  The function's result
replaces that output for everything that comes later::

    with minifpt.trace(model, change={"trunk.h.*.attn": lambda y: 0 * y}) as t: ...

A changed model runs forward only, because no gradient is known of the change.
"""

import difflib
from fnmatch import fnmatchcase

import numpy as np

from .checks import brief


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
        known = [*self.layers, *(joined(name, op) for name in self.layers
                                 for op in self.operations)]
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
        z = np.asarray(self.by_place[place][1](y.copy()))
        if z.shape != y.shape or not np.issubdtype(z.dtype, np.floating):
            raise ValueError(f"{label}: the function returned shape {z.shape} and dtype {z.dtype}, "
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
