"""Check the user's arguments.  Each function raises a ``ValueError`` of one line, which begins
with ``where``, the name of the function or class that got the argument."""

import math
import operator
import types
import zlib
from contextlib import suppress

import numpy as np

from .guards import brief, is_integer


def whole(where, name, value, least=1, most=2**31 - 1):
    """Return ``value`` as an int, at least ``least``; by default at most 31 bits, as a size."""
    with suppress(TypeError):
        if least <= operator.index(value) <= most and not isinstance(value, bool):
            return operator.index(value)
    limit = f" and at most {most:,}" if is_integer(value) and value > most else ""
    raise ValueError(f"{where}: {name} must be a whole number, at least {least}{limit}, got "
                     f"{brief(value)}")


def number(where, name, value, zero=False, most=math.inf):
    """Return ``value`` as a float, more than 0 and at most ``most``; ``zero`` allows 0."""
    with suppress(TypeError, ValueError, OverflowError):
        is_in_range = (0 < value <= most and value < math.inf) or (zero and value == 0)
        if is_in_range and not isinstance(value, bool):
            return float(value)
    expected = "a positive number or 0" if zero else "a positive number"
    limit = f", at most {most}" if most < math.inf else ""
    raise ValueError(f"{where}: {name} is {brief(value)}, expected {expected}{limit}")


def fields(config, sizes=(), positive=(), flags=(), **defaults):
    """Check the fields of a model's config, and turn NumPy's numbers into Python's.

    ``sizes`` are whole numbers of at least 1, ``positive`` positive numbers, and ``flags`` ``True``
    or ``False``.  The field ``dropout`` is a probability.  ``defaults`` are more sizes: functions
    that return the size where the field is ``None``."""
    where = type(config).__name__
    values = {name: whole(where, name, getattr(config, name), most=2**63 - 1) for name in sizes}
    for name, default in defaults.items():
        size = default() if getattr(config, name) is None else getattr(config, name)
        values[name] = whole(where, name, size, most=2**63 - 1)
    values |= {name: number(where, name, getattr(config, name), most=1e30) for name in positive}
    values["dropout"] = number(where, "dropout", config.dropout, zero=True, most=0.99999)
    for name in flags:
        flag(where, name, getattr(config, name))
    for name, value in values.items():
        object.__setattr__(config, name, value)           # a frozen dataclass has no other way


def one_of(where, name, value, choices):
    """Return ``value``, one of some texts."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{where}: {name} is {brief(value)}, expected one of {', '.join(choices)}")
    return value


def seed(where, value):
    """Return a seed, a whole number of at least 0 and of any size."""
    return whole(where, "seed", value, 0, math.inf)


def dtype(where, value):
    """Return the dtype of a model, float32 or float64."""
    with suppress(TypeError, ValueError):                 # np.dtype(None) would be float64
        if value is not None and np.dtype(value) in (np.float32, np.float64):
            return np.dtype(value)
    raise ValueError(f"{where}: dtype is {brief(value)}, expected float32 or float64")


def generator(where, rng):
    """Return ``rng``, a ``np.random.Generator``."""
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"{where}: rng is {brief(rng)}, expected np.random.default_rng(seed)")
    return rng


def array(where, name, x, kinds="biuf"):
    """Return ``x``, numbers in an array that is not empty; ``kinds`` are NumPy's letters for its
    dtype."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in kinds:
        raise ValueError(f"{where}: {name} is {kind_of(x)}, expected an array of "
                         + {"iu": "integers", "f": "floating-point numbers"}.get(kinds, "numbers"))
    if x.size == 0:
        raise ValueError(f"{where}: {name} has shape {x.shape}, expected at least one example")
    return x


def incoming_gradient(where, dy, cache, dtype):
    """Return ``dy``, the gradient with which a model's backward pass begins, in the model's dtype.
    Raises ``ValueError`` unless there is a cache, and ``dy`` has the shape of forward's output,
    ``cache["shape"]``."""
    if cache is None:
        raise ValueError(f"{where}: the cache is None: in the forward pass everything was frozen, "
                         "or it had a past; expected a cache with something to learn")
    try:
        shape = cache["shape"]
    except (TypeError, LookupError):
        raise ValueError(f"{where}: the cache is {brief(cache)}, expected the one that forward "
                         "returned") from None
    if not isinstance(dy, np.ndarray) or dy.shape != shape or dy.dtype.kind not in "fiu":
        raise ValueError(f"{where}: the gradient is {kind_of(dy)}, expected numbers of the "
                         f"shape of forward's output, {shape}")
    return dy.astype(dtype, copy=False)


def gradient(where, grad, shape):
    """Raise ``ValueError`` unless ``grad`` has floating-point numbers of a parameter's shape."""
    if getattr(grad, "shape", None) != shape or grad.dtype.kind != "f":
        raise ValueError(f"{where}: the gradient is {kind_of(grad)}, expected floating-point "
                         f"numbers of the parameter's shape {shape}")


def flag(where, name, value):
    """Return ``value``, ``True`` or ``False``: a text such as "False" would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{where}: {name} is {brief(value)}, expected True or False")
    return bool(value)


def active_dropout(where, p, train, rng):
    """Return the dropout probability of a forward pass: ``p``, but 0 unless ``train``.  Raises
    ``ValueError`` where dropout has no generator to draw from."""
    flag(where, "train", train)
    if train and p and not isinstance(rng, np.random.Generator):
        raise ValueError(f"{where}: dropout is {p} and rng is {brief(rng)}: pass "
                         "rng=np.random.default_rng(seed)")
    return p if train else 0.0


def arrays_in(value, visited=None):
    """Yield every array in a value, also in collections, objects and closures, but not of
    parameters, which training changes.  Long lists of numbers count, short ones may be counters."""
    visited = {} if visited is None else visited
    if isinstance(value, np.ndarray):
        yield value
    elif type(value) is list and len(value) > 31 and all(type(x) in (int, float) for x in value):
        yield np.array(value, np.float64)
    elif id(value) not in visited and not isinstance(value, (type, types.ModuleType)) and (
            not hasattr(value, "add_grad")):
        visited[id(value)] = value       # kept alive: another object could get its id
        for part in (*(value if isinstance(value, (tuple, list)) else ()),
                     *(value.values() if isinstance(value, dict) else ()),
                     *getattr(value, "__dict__", {}).values(),
                     *(getattr(value, name, None) for kind in type(value).__mro__
                       for name in vars(kind).get("__slots__", ())),
                     *(cell.cell_contents for cell in getattr(value, "__closure__", None) or ())):
            yield from arrays_in(part, visited)


def crc(arrays):
    """Return a CRC-32 of arrays, as text."""
    value = 0
    for a in arrays:
        value = zlib.crc32(str((a.shape, a.dtype)).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(a), value)
    return f"{value:08x}"


def unchanged(now, before):
    """Return whether the arrays in ``now`` equal those in ``before``, a copy."""
    now, before = [*arrays_in(now)], [*arrays_in(before)]
    return len(now) == len(before) and all(np.array_equal(a, b, equal_nan=b.dtype.kind in "fc")
                                           for a, b in zip(now, before, strict=True))


def kind_of(x):
    """Return the dtype and shape of an array, or the type of anything else, as text."""
    if isinstance(x, np.ndarray):
        return f"an array of {x.dtype} and shape {x.shape}"
    return f"a {type(x).__name__}"
