"""Refuse arrays that NumPy would broadcast or round without a word.

``functional`` declares the shapes of an operation's arrays in the line above it::

    @shapes("x (..., I), w (I, O), b (O,) -> y (..., O)")

``...`` stands for any leading axes, and a letter has one value in a call.  ``2E`` is a product, and
n the argument of that name.  All arrays hold floating-point
numbers, except ``integers in 0 ... V-1``.  The names of a backward pass are its arguments and the
fields of its cache; a field that is ``None`` is left out.  An argument with a default must be of
the default's kind.
"""

import functools
import inspect
import math
import operator
import re
from collections import namedtuple
from contextvars import ContextVar

import numpy as np

AXIS = r"(?:\d+|\d*[A-Z]+|n)"
ARRAY = rf"(\w+) \(((?:\.\.\.|{AXIS})?(?:, {AXIS})*,?)\)( integers in 0 \.\.\. V-1)?"
# axes: the factors of each axis, such as ("3", "H", "D"); the first axis may be ("...",).
Array = namedtuple("Array", "name axes is_integer")
USERS_MODULES = "minifpt_user_"     # as in plugins: functions there may leave out what is declared

bare = operator.attrgetter("__wrapped__")                 # the formula of an operation


def checked_form(function):
    """Return an operation's formula with its checks; return any other function as it is."""
    return getattr(function, "checked", function)


# How operations run in this context: ``RUN.get()(operation)`` is the function that runs.
RUN = ContextVar("run", default=checked_form)


def shapes(text):
    """Return a decorator that lets an operation refuse all arrays but those of ``text``, and adds
    the text to its docstring.  ``op.__wrapped__`` is the formula alone.  Raises ``ValueError``
    for a text of another form, and for names that the operation lacks."""
    def decorate(formula):
        limit, caches = LIMITS.get(formula.__name__), caches_for(formula)
        defaults = {name: p.default for name, p in inspect.signature(formula).parameters.items()}
        known = {*defaults}.union(*(cache._fields for cache in caches))
        is_open = formula.__module__.startswith(USERS_MODULES) or "cache" in defaults and not caches
        arrays = declared(formula.__name__, text, None if is_open else known)

        @functools.wraps(formula)
        def checked(*args, **kwargs):
            if len(args) > len(defaults):
                return formula(*args, **kwargs)           # Python refuses it
            arguments = dict(zip(defaults, args, strict=False)) | kwargs
            if caches and "cache" in arguments:
                check_cache(formula.__name__, arguments["cache"], caches)
            check(formula.__name__, arrays, {
                name: value for name, value in arguments.items()
                if value is not None or defaults.get(name) is not None})
            arguments |= {name: option(formula.__name__, name, value, defaults.get(name))
                          for name, value in arguments.items()}
            if limit:
                limit(**arguments)
            return checked.__wrapped__(**arguments)       # the formula, or fast's in a tab

        @functools.wraps(formula)
        def operation(*args, **kwargs):
            return RUN.get()(operation)(*args, **kwargs)
        operation.__doc__ = f"{inspect.cleandoc(formula.__doc__ or '')}\n\n{text}."
        operation.checked = checked
        return operation
    return decorate


def declared(op, text, known=None):
    """Return an :class:`Array` for each array that the text of an operation declares.  Raises
    ``ValueError`` for a misspelt text, and for names other than the ``known`` ones."""
    inputs, arrow, outputs = text.partition(" -> ")
    if not arrow or not re.fullmatch(f"{ARRAY}(, {ARRAY})*", inputs) or (
            not re.match(ARRAY, outputs) or outputs.count("(") != outputs.count(")")):
        raise ValueError(f"shapes of {op}: '{text}', expected a form such as "
                         "'x (..., I), w (I, O) -> y (..., O)'")
    arrays = [Array(array, tuple(tuple(re.findall(r"\.\.\.|\d+|\w", axis))
                                 for axis in axes.split(",") if axis), bool(integers))
              for array, axes, integers in re.findall(ARRAY, inputs)]
    for array in arrays:
        if known is not None and array.name not in known:
            raise ValueError(f"shapes of {op}: '{array.name}' is no argument and no field of its "
                             f"cache, expected one of {', '.join(sorted(known - {'cache'}))}")
    return arrays


def caches_for(formula):
    """Return the classes of the caches that a backward pass takes: those that its operation, the
    function above it, names."""
    operation = formula.__globals__.get(formula.__name__.removesuffix("_backward"))
    if operation is None:
        return ()
    values = [formula.__globals__.get(name) for name in inspect.unwrap(operation).__code__.co_names]
    return tuple(v for v in values if isinstance(v, type) and issubclass(v, tuple))


def check_cache(name, cache, kinds):
    """Raise ``ValueError`` for another cache than that of a backward pass's own operation."""
    # By name: the reader's own file has its own classes.
    if type(cache).__name__ not in [kind.__name__ for kind in kinds]:
        raise ValueError(f"the gradient: the cache is {brief(cache)}, expected the "
                         f"{kinds[0].__name__} that {name.removesuffix('_backward')} returned")


def option(op, name, value, default):
    """Return the value of an option with a default as a plain Python number: NumPy's would change
    the dtype of the results, and its small integers wrap.  Raises ``ValueError`` unless it is like
    the default."""
    if isinstance(default, bool):
        fits, expected = isinstance(value, (bool, np.bool_)), "True or False"
    elif isinstance(default, tuple):
        fits = isinstance(value, (tuple, list)) and len(value) == len(default)
        expected = f"a tuple of {len(default)} booleans"
    elif isinstance(default, float):
        is_number = isinstance(value, (float, np.floating)) or is_integer(value)
        fits = is_number and 0.0 <= value < math.inf
        value, expected = float(value) if fits else value, "a number from 0"
    elif isinstance(default, int):
        fits, expected = is_integer(value), "an integer"
    else:
        fits, expected = True, ""
    if not fits:
        raise ValueError(f"{op}: {name} is {brief(value)}, expected {expected}")
    return int(value) if isinstance(value, np.integer) else value


def is_integer(value):
    """Return whether a value is an integer, Python's or NumPy's, and not a boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def brief(value):
    """Return a value as text: one line of at most 60 characters."""
    return f"{' '.join(repr(value).split()):.60}"


def check(name, arrays, arguments):
    """Raise ``ValueError`` for the first of an operation's arrays that is not as declared."""
    op, is_back = name.removesuffix("_backward"), name.endswith("_backward")
    fields = getattr(arguments.get("cache"), "_asdict", dict)()
    values = fields | arguments
    sizes = {"n": values.get("n")}
    for array in arrays:
        if array.name in arguments:
            check_numbers("the gradient" if is_back else op, array, arguments[array.name])
    for array in arrays[is_back:] + arrays[:is_back]:     # the gradient after the cache's fields
        value = values.get(array.name)
        shape = value if isinstance(value, tuple) else np.shape(value)
        if value is not None and not fits(shape, array.axes, sizes):
            label = "the gradient" if is_back and array.name[0] == "d" else f"{op}: {array.name}"
            raise ValueError(f"{label} has shape {shape}, expected {described(array.axes, sizes)}"
                             f"{', no axis of length 0' if 0 in shape else ''}")
    for array in arrays:
        ids = arguments.get(array.name)
        if array.is_integer and ids.size and not 0 <= ids.min() <= ids.max() < sizes["V"]:
            raise ValueError(f"{op}: {array.name} run from {ids.min()} to {ids.max()}, "
                             f"expected 0 to {sizes['V'] - 1}")


def check_numbers(where, array, value):
    """Raise ``ValueError`` unless a value holds floating-point numbers, or integers where they are
    declared: the results have its dtype."""
    dtype = getattr(value, "dtype", type(value).__name__)
    kind = getattr(dtype, "kind", "f" if isinstance(value, float) else None)
    if array.is_integer:                                  # booleans would act as a mask
        is_right = isinstance(value, np.ndarray) and kind in ("i", "u")
    else:
        is_right = kind == "f" or array.axes == () and is_integer(value)
    if not is_right:
        raise ValueError(f"{where}: {array.name} {'have' if array.is_integer else 'has'} type "
                         f"{dtype}, expected an array of "
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
        if letters and size and size % known == 0:
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


def positions(x, w, start=0, **_):
    """Raise ``ValueError`` unless the table has all of the positions."""
    stop = start + x.shape[1]
    if start < 0 or stop > len(w):
        raise ValueError(f"positions: {start} to {stop - 1}, w has 0 to {len(w) - 1}")


def dropout(p, rng, **_):
    """Raise ``ValueError`` unless p is a probability below 1 and there is a generator for it."""
    if not isinstance(p, (int, float, np.floating)) or not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: p is {brief(p)}, expected 0 <= p < 1")
    if p and not isinstance(rng, np.random.Generator):
        raise ValueError(f"dropout: rng is {brief(rng)}, expected np.random.default_rng(seed)")


def attention(q, k, v, bias=None, causal=True, **_):
    """Raise ``ValueError`` unless the heads of queries are a multiple of those of keys, and each
    query reads a token: a softmax of nothing is NaN."""
    (_, H, T, _), (_, G, S, _) = q.shape, k.shape
    if H % G:
        raise ValueError(f"attention: k has {G} heads, expected a divisor of the {H} of q")
    if causal and T > S:
        raise ValueError(f"attention: q has {T} tokens and k {S}, expected at least as many in k, "
                         "or causal=False")
    if bias is not None:
        can_read = bias > -np.inf                         # (H, T, S)
        if causal:
            can_read &= np.tri(T, S, S - T, dtype=bool)
        if not can_read.any(axis=-1).all():
            head, token = np.argwhere(~can_read.any(axis=-1))[0]
            raise ValueError(f"attention: the bias lets token {token} of head {head} read no "
                             "token, expected a number above -inf in each row")


def rope(base=1.0, **_):
    """Raise ``ValueError`` for a base of 0, which has no negative powers."""
    if not base:
        raise ValueError(f"rope: base is {base}, expected a number above 0")


def last_tokens(x, n):
    """Raise ``ValueError`` unless n is from 1 to T: ``x[:, -0:]`` would be all tokens."""
    if not is_integer(n) or not 1 <= n <= x.shape[1]:
        raise ValueError(f"last_tokens: n is {brief(n)}, expected 1 to {x.shape[1]}")


def cross_entropy(targets, **_):
    """Raise ``ValueError`` without targets: the mean of nothing is NaN."""
    if not targets.size:
        raise ValueError("cross_entropy: targets has no entry, expected at least one")


LIMITS = {f.__name__: f for f in (positions, dropout, attention, rope, last_tokens, cross_entropy)}
