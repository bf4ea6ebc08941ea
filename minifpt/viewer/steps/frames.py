"""Describe each operation of a trace as plain JSON: arrays, formulas, source, cache."""

import ast
import copy
import inspect
import re
import sys
import textwrap
from contextlib import suppress

import numpy as np

from ... import functional as F
from ...checks import arrays_in
from .. import encoded
from . import formulas

TOKENS = "token", "query", "key", "position"              # axes that are cut at their front
MIN_TOKENS = 8                                            # that every file shows

# Each operation in words that need no others; its docstring follows.
PLAIN = {
    "linear": "Each number that comes out is a sum: all numbers of a token that go in, each times "
              "a weight, and a bias.",
    "embedding": "Each id gets the row of numbers that a table has for it.",
    "unembedding": "Each token of the vocabulary gets a score: how well its row of numbers fits.",
    "bias": "The same numbers are added to each token.",
    "positions": "Each token gets numbers added that say where it stands.",
    "layer_norm": "The numbers of each token are moved to a mean of 0 and stretched to one spread; "
                  "then each is scaled and moved by trained numbers.",
    "rms_norm": "The numbers of each token are stretched to one size.",
    "multiply": "Each number is made larger or smaller by another one, its gate.",
    "rope": "Pairs of numbers are turned like the hands of a clock, the further the later their "
            "token stands.",
    "lstm": "The tokens are read in turn.  Each changes a memory, from which its own numbers come.",
    "dropout": "Some numbers are set to 0 at random, and the others made larger.",
    "attention": "Each token takes a mean of numbers of the others, their values. The better the "
                 "key of one fits its query, the more it takes from there.",
    "softmax": "Scores become shares, which sum to 1; the highest score gets most.",
    **dict.fromkeys(("gelu", "gelu_exact", "silu"), "Large numbers stay as they are, negative ones "
                                                    "nearly vanish."),
    "relu": "Numbers above 0 stay as they are, the others become 0.",
    "last_tokens": "Only the last tokens go on, where the answers are read.",
    "log_sum_exp": "The largest of some numbers, smoothly.",
    "cross_entropy": "How wrong the answers are: near 0 where each right answer got nearly all, "
                     "large where it got little.",
}
BACK = ("The way back: dy says how the loss changes with each number that this operation put out. "
        "From that follows how it changes with each number that went in.")


class Store:
    """The arrays of a file: cut, each kept once, exact in their own dtype.

    The last tokens are kept, because the answer is read there; ``first`` says where they begin.
    """

    def __init__(self, cut, tokens):
        self.cut, self.tokens = cut, tokens
        self.arrays, self.numbers, self.bytes = [], {}, 0  # numbers: {content: its place in arrays}

    def add(self, a, axes):
        """Store an array whose axes have these names; return its index."""
        a = np.asarray(a)
        a = a.astype(np.int32) if np.issubdtype(a.dtype, np.integer) else a
        shown = tuple(min(n, self.cut.get(axis, 16)) for n, axis in zip(a.shape, axes, strict=True))
        ends = [min(n, self.tokens) if axis == "position" else n
                for n, axis in zip(a.shape, axes, strict=True)]
        first = [max(0, end - n) if axis in TOKENS else 0
                 for end, n, axis in zip(ends, shown, axes, strict=True)]
        region = tuple(slice(i, i + n) for i, n in zip(first, shown, strict=True))
        part = np.ascontiguousarray(a[region])
        key = part.tobytes(), part.dtype.str, a.shape, axes
        if key not in self.numbers:
            self.numbers[key] = len(self.arrays)
            self.bytes += part.nbytes
            self.arrays.append({"shape": list(a.shape), "shown": list(shown), "axes": list(axes),
                                "first": first, "dtype": part.dtype.str,
                                "data": encoded(part)})
        return self.numbers[key]


def axes_of(op, name, a):
    """Return the names of an array's axes."""
    if op in ("cross_entropy", "log_sum_exp"):
        lead = ("example", "token", "choice")
        return lead[:a.ndim] if name == "targets" else (*lead[:a.ndim - 1], "class")[-a.ndim:]
    if a.ndim == 4:
        scores = op in ("softmax", "dropout") or name in ("probabilities", "mask", "kept", "ds")
        return ("example", "head") + (("query", "key") if scores else
                                      ("token", "channel of the head"))
    if op == "embedding" and name == "one_hot":
        return ("example", "token", "symbol")[-a.ndim:]
    if op == "attention" and a.ndim == 3:                 # a bias on the scores
        return "head", "query", "key"
    return {0: (), 1: ("channel",), 3: ("example", "token", "channel")}.get(
        a.ndim, ("token", "channel") if a.ndim == 2 else ("axis",) * a.ndim)


def axes_of_weight(op, a):
    """Return the names of the axes of a parameter or its gradient; ``op`` reads it, or is ``None``.
    """
    if a.ndim != 2:
        return ("channel",) * a.ndim
    return {"positions": ("position", "channel"), "embedding": ("symbol", "channel"),
            "unembedding": ("symbol", "channel")}.get(op, ("in", "out"))


class Frames:
    """The ``steps`` of a trace as plain JSON, with the ``sources`` of their functions and the
    ``runs``, the records of :func:`watch`, both by number."""

    def __init__(self, t, store, model):
        self.t, self.store = t, store
        self.number = {step: i for i, step in enumerate(t.steps)}
        self.parameters = {id(p.data): (name, p.trainable) for name, p in model.named_parameters()}
        # {function: its number}, {call: (its number, step)}
        self.functions, self.calls = {}, {}
        self.steps = [self.frame(step) for step in t.steps]

    def frame(self, step):
        """Return one step as plain JSON."""
        block = re.match(r".*?\b\d+(?=\.|$)", step.layer)     # trunk.h.0 of trunk.h.0.attn
        # Equal shapes share one record of the lines that ran.
        call = step.function, repr({n: describe(v) for n, v in step.inputs.items()})
        return {
            "name": step.name, "layer": step.layer, "op": step.op, "back": step.backward,
            "fold": block and block[0],
            "inside": self.number.get(step.inside, None),
            "partner": self.number.get(step.partner, None),
            "source": self.functions.setdefault(step.function, len(self.functions)),
            "run": self.calls.setdefault(call, (len(self.calls), step))[0],
            **(self.backward(step) if step.backward else self.forward(step))}

    def sources(self):
        """Return the source of each function, see :func:`source_of`."""
        return [*map(source_of, self.functions)]

    def runs(self):
        """Return the lines that ran in each call, see :func:`watch`."""
        return [watch(step) for _, step in self.calls.values()]

    def unread(self):
        """Return the parameters that no operation reads, because a trunk's own code does."""
        read = {id(v) for step in self.t.steps for v in step.inputs.values()}
        return [name for key, (name, _) in self.parameters.items() if key not in read]

    def part(self, op, name, value, like=None):
        """Return a value as an array of the file or as text; a parameter gets its name."""
        if not isinstance(value, np.ndarray):
            return {"name": name, "text": describe(value)}
        if name == "ids" or (op == "cross_entropy" and name == "targets"):
            return {"name": name, "array": self.store.add(value, ("example", "token", "choice")[
                :value.ndim])}
        owner = self.parameters.get(id(value))
        axes = axes_of_weight(op, value) if owner or like else axes_of(op, name, value)
        entry = {"name": name, "array": self.store.add(value, axes)}
        return entry | ({"parameter": owner[0], "trained": owner[1]} if owner else {})

    def forward(self, step):
        """Return what a forward step reads, returns and keeps, and which gradients are missing."""
        inputs = {n: v for n, v in step.inputs.items() if n != "need"}
        heads = hasattr(step.cache, "probabilities")
        parts = [self.part(step.op, n, v) for n, v in inputs.items()]
        cached = formulas.fields(step.cache)
        if not cached and step.cache is not None:         # a user's own cache has no names
            cached = {"cache": step.cache}
        stored = [v for v in cached.values() if id(v) not in self.parameters]
        missing = [{"name": f"d{n}", "why": why, "of": self.parameters.get(
            id(step.inputs[n]), (None,))[0], "shape": list(step.inputs[n].shape),
            "cost": int(formulas.cost(step.op, n, step.inputs))}
            for n, why in step.reasons.items()]
        out = self.part(step.op, "y", step.output)
        names = formulas.forward_operands(step)
        formula = formulas.forward_formula(step, names) if "array" in out else None
        if formula:
            out["formula"] = self.formula(step, "y", formula, names)
        return {"in": parts, "out": [out],
                "middle": [self.part(step.op, "probabilities", step.cache.probabilities)
                           ] if heads else [], "missing": missing,
                "keeps": [{"name": n, "text": describe(v)} for n, v in cached.items()],
                "bytes": sum(a.nbytes for a in arrays_in(stored)),
                "form": type(step.cache).__name__}

    def backward(self, step):
        """Return what a backward step reads, and the gradients that it returns."""
        inner = {s.op: s for s in self.t.steps if s.inside is step}
        names = formulas.operands(step, inner)
        grads = formulas.gradients(step) if step.partner else {"": step.output}
        known = formulas.formulas(step, names) if step.partner else {}
        shown = [*step.inputs, *formulas.fields(step.inputs.get("cache"))]
        parts = [self.part(step.op, n, names[n]) | {"cached": n not in step.inputs} for n in shown
                 if n in names and n not in ("cache", "need", "shape")]
        out = []
        for name, grad in grads.items():
            owner = step.partner and self.parameters.get(id(step.partner.inputs.get(name)))
            rows = grad[names["tokens"]] if step.op == "positions" and owner else grad
            entry = self.part(step.op, f"d{name}", rows, owner)
            if rows is not grad and (unused := len(grad) - len(rows)):
                entry["note"] = f"its other {unused} rows are 0: no token stands there"
            entry |= {"parameter": owner[0], "trained": True} if owner else {}
            if name in known:
                entry["formula"] = self.formula(step, f"d{name}", known[name], names)
            out.append(entry)
        return {"in": parts, "out": out}

    def formula(self, step, name, formula, names):
        """Return the formula of the value ``name`` with the indices of the arrays that it names."""
        formula, refs = formulas.spelled(formula, names), {}
        for operand, letters in re.findall(r"(\w+)\[(\w*)\]", formula.put + formula.plus):
            value = names[operand]
            if letters and isinstance(value, np.ndarray):
                refs[operand] = self.part(step.op, operand, value)["array"]
            else:
                refs[operand] = {"number": float(value)}
        paper = vars(F).get(step.op + "_backward" * step.backward, step.function)  # the textbook's
        return {"text": formulas.text_of(paper, name), "at": formula.at, "put": formula.put,
                "over": formula.over, "plus": formula.plus, "refs": refs,
                "times": float(names[formula.times]) if formula.times else 1.0}


def source_of(function):
    """Return {module, doc, lines: [[number, text], ...]} of a function, lines without docstring."""
    rows, skip = [], ()
    with suppress(OSError, TypeError, SyntaxError):       # it has no source, or is a lambda
        lines, first = inspect.getsourcelines(function)
        rows = [*enumerate(textwrap.dedent("".join(lines)).splitlines(), first)]
        node = ast.parse("\n".join(line for _, line in rows)).body[0]
        if ast.get_docstring(node) is not None:
            skip = range(first + node.body[0].lineno - 1, first + node.body[0].end_lineno)
    is_back = function.__name__.endswith("_backward")
    words = BACK if is_back else PLAIN.get(function.__name__, "")
    return {"module": function.__module__,
            "doc": "\n\n".join(filter(None, [words, inspect.getdoc(function)])),
            "lines": [[n, line] for n, line in rows if n not in skip]}


def watch(step):
    """Run an operation again; return {line: the names that it assigned} for the lines that ran."""
    code = getattr(inspect.unwrap(step.function), "__code__", None)
    ran, line, before = {None: []}, None, {}              # before the first line: the arguments

    def local(frame, event, arg):
        nonlocal line
        ran[line] += [f"{n} {describe(v)}" for n, v in frame.f_locals.items()
                      if n not in before or before[n] is not v]
        before.update(frame.f_locals)
        if event == "line":
            line = frame.f_lineno
            ran.setdefault(line, [])
        return local
    inputs, tracer = copy.deepcopy(step.inputs), sys.gettrace()
    sys.settrace(lambda frame, *_: local if frame.f_code is code else None)
    try:
        with np.errstate(all="ignore"):
            step.function(**inputs)
    finally:
        sys.settrace(tracer)
    return {n: ", ".join(changes) for n, changes in ran.items() if n}


def describe(value):
    """Describe a value in a few characters: an array's shape, a number or a type."""
    if isinstance(value, np.ndarray):
        return str(value.shape).replace(",)", ")") if value.ndim else f"{value:.4g}"
    if isinstance(value, (float, np.floating)):
        return f"{value:.7g}"
    if isinstance(value, np.random.Generator):
        return "a generator"
    if isinstance(value, slice):
        return f"{value.start} to {value.stop - 1}"
    if isinstance(value, tuple):
        return f"({', '.join(map(describe, value))})"
    return str(value) if isinstance(value, (bool, int, str, type(None))) else type(value).__name__
