"""Refuse arrays that NumPy would broadcast or round without a word.

``functional`` declares the shapes of an operation's arrays in the line above it::

    @shapes("x (..., I), w (I, O), b (O,) -> y (..., O)")

``...`` stands for any leading axes, and a letter has one value in a call.  ``3HD`` is a product; H
is the argument ``n_head``, and n the argument of that name.  All arrays hold floating-point
numbers, except ``integers in 0 ... V-1``.  The names of a backward pass are its arguments and the
fields of its cache; a field that is ``None`` is left out.
"""

import functools
import inspect
import math
import re
from collections import namedtuple
from types import FunctionType

import numpy as np

ARRAY = re.compile(r"(\w+) \(([^)]*)\)( integers in 0)?")
# axes: the factors of each axis, such as ("3", "H", "D"); the first axis may be ("...",).
Array = namedtuple("Array", "name axes is_integer")


def shapes(text):
    """Return a decorator that lets an operation refuse all arrays but those of ``text``, and adds
    the text to its docstring.  ``op.raw`` is the formula alone."""
    arrays = [Array(name, tuple(tuple(re.findall(r"\.\.\.|\d+|\w", axis))
                                for axis in axes.split(",") if axis), bool(integers))
              for name, axes, integers in ARRAY.findall(text.partition(" -> ")[0])]

    def decorate(formula):
        code, limit = formula.__code__, LIMITS.get(formula.__name__)
        names = code.co_varnames[:code.co_argcount]
        defaults = formula.__defaults__ or ()
        optional = {name for name, default in zip(names[::-1], defaults[::-1], strict=False)
                    if default is None}

        @functools.wraps(formula)
        def operation(*args, **kwargs):
            arguments = dict(zip(names, args, strict=False)) | kwargs
            check(formula.__name__, arrays, {
                name: value for name, value in arguments.items()
                if value is not None or name not in optional})
            if limit:
                limit(**arguments)
            return formula(*args, **kwargs)
        operation.__doc__ = f"{inspect.cleandoc(formula.__doc__ or '')}\n\n{text}."
        operation.raw = without_guards(formula)
        return operation
    return decorate


def without_guards(formula):
    """Return a copy of a formula that calls the formulas of its module, not the operations."""
    names = formula.__globals__.setdefault("_formulas", {})
    names |= {name: getattr(value, "raw", value) for name, value in formula.__globals__.items()}
    raw = FunctionType(formula.__code__, names, formula.__name__, formula.__defaults__)
    raw.__doc__ = formula.__doc__
    return raw


def check(name, arrays, arguments):
    """Raise ``ValueError`` for the first of an operation's arrays that is not as declared."""
    op, is_back = name.removesuffix("_backward"), name.endswith("_backward")
    fields = getattr(arguments.get("cache"), "_asdict", dict)()
    values, sizes = fields | arguments, {}
    if "n" in values:
        sizes["n"] = values["n"]
    if "n_head" in arguments:
        sizes["H"] = whole(op, "n_head", arguments["n_head"])
    for array in arrays:
        if array.name in arguments:
            check_numbers("the gradient" if is_back else op, array, arguments[array.name])
    for array in arrays[is_back:] + arrays[:is_back]:     # the gradient after the cache's fields
        value = values.get(array.name)
        shape = value if isinstance(value, tuple) else np.shape(value)
        if value is not None and not fits(shape, array.axes, sizes):
            label = "the gradient" if is_back and array.name[0] == "d" else f"{op}: {array.name}"
            raise ValueError(f"{label} has shape {shape}, expected {described(array.axes, sizes)}")
    for array in arrays:
        ids = arguments.get(array.name)
        if array.is_integer and ids.size and not 0 <= ids.min() <= ids.max() < sizes["V"]:
            raise ValueError(f"{op}: {array.name} run from {ids.min()} to {ids.max()}, "
                             f"expected 0 to {sizes['V'] - 1}")


def check_numbers(where, array, value):
    """Raise ``ValueError`` unless a value holds floating-point numbers, or integers where they are
    declared: the results have its dtype."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f" if isinstance(value, float) else "")
    if array.is_integer:
        is_right = isinstance(value, np.ndarray) and kind in "iu"        # booleans act as a mask
    else:
        is_right = kind == "f" or array.axes == () and isinstance(value, (int, np.integer))
    if not is_right:
        raise ValueError(f"{where}: {array.name} {'have' if array.is_integer else 'has'} type "
                         f"{getattr(value, 'dtype', type(value).__name__)}, expected an array of "
                         f"{'integers' if array.is_integer else 'floating-point numbers'}")


def fits(shape, axes, sizes):
    """Return whether a shape has these axes; if so, add the sizes of new letters to ``sizes``."""
    new = dict(sizes)
    if axes[:1] == (("...",),):
        n = len(shape) - len(axes) + 1
        if n < 0 or new.setdefault("...", shape[:n]) != shape[:n]:
            return False
        shape, axes = shape[n:], axes[1:]
    if len(shape) != len(axes):
        return False
    for size, factors in zip(shape, axes, strict=True):
        letters = [f for f in factors if f.isalpha() and f not in new]
        known = math.prod(int(new.get(f, f)) for f in factors if f not in letters)
        if letters and known and size % known == 0:
            new[letters[0]] = size // known
        elif letters or size != known:
            return False
    sizes |= new
    return True


def described(axes, sizes):
    """Describe the shape that was expected: numbers, and letters whose sizes are not known."""
    parts, known = [], {}
    for factors in axes:
        if factors == ("...",):
            parts += map(str, sizes.get("...", ["..."]))
        elif all(f.isdecimal() or f in sizes for f in factors):
            parts.append(str(math.prod(int(sizes.get(f, f)) for f in factors)))
        else:
            parts.append("".join(factors))
            known |= {f: sizes[f] for f in factors if f in sizes}
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})" + "".join(
        f" with {letter} = {size}" for letter, size in known.items())


def same_shape(dy, shape):
    """Raise ``ValueError`` if the gradient that comes back to a layer has another shape."""
    if dy.shape != shape:
        raise ValueError(f"the gradient has shape {dy.shape}, expected {shape}")


# -------------------------------------------- limits of single operations, of the same name


def whole(op, name, value, most=None):
    """Return an integer from 1.  Raises ``ValueError`` for others, and for those above ``most``."""
    if not isinstance(value, (int, np.integer)) or value < 1 or most is not None and value > most:
        raise ValueError(f"{op}: {name} is {value!r:.60}, expected "
                         + ("1 or more" if most is None else f"1 to {most}"))
    return value


def positions(x, w, start=0, **_):
    """Raise ``ValueError`` unless the table has all of the positions."""
    stop = start + x.shape[1]
    if start < 0 or stop > len(w):
        raise ValueError(f"positions: {start} to {stop - 1}, w has 0 to {len(w) - 1}")


def dropout(p, rng, **_):
    """Raise ``ValueError`` unless p is a probability below 1 and there is a generator for it."""
    if not isinstance(p, (int, float, np.floating)) or not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: p is {p!r}, expected 0 <= p < 1")
    if p and not isinstance(rng, np.random.Generator):
        raise ValueError(f"dropout: rng is {rng!r:.60}, expected np.random.default_rng(seed)")


def attention(bias=None, causal=True, **_):
    """Raise ``ValueError`` where a bias leaves a token nothing to read: its softmax is NaN."""
    if bias is not None:
        read = bias > -np.inf                             # (H, T, P+T)
        if causal:
            read = read & np.tri(*bias.shape[1:], bias.shape[2] - bias.shape[1], dtype=bool)
        if not read.any(axis=-1).all():
            head, token = np.argwhere(~read.any(axis=-1))[0]
            raise ValueError(f"attention: the bias lets token {token} of head {head} read no "
                             "token, expected a number above -inf in each row")


def last_tokens(x, n):
    """Raise ``ValueError`` unless n is from 1 to T: ``x[:, -0:]`` would be all tokens."""
    whole("last_tokens", "n", n, x.shape[1])


def grouped_heads(q, k, n_head, **_):
    """Raise ``ValueError`` unless the number of heads is a multiple of that of the keys."""
    n_keys = k.shape[2] // (q.shape[2] // n_head)
    if not n_keys or n_head % n_keys:
        raise ValueError(f"grouped_heads: k has {n_keys} heads, expected a divisor of {n_head}")


def cross_entropy(targets, **_):
    """Raise ``ValueError`` without targets: the mean of nothing is NaN."""
    if not targets.size:
        raise ValueError("cross_entropy: targets has no entry, expected at least one")


LIMITS = {f.__name__: f for f in (positions, dropout, attention, last_tokens, grouped_heads,
                                  cross_entropy)}
