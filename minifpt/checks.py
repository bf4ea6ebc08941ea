"""Checks of what comes in from outside: each raises a ``ValueError`` of one line, which says
what was expected.  ``where`` begins the line: who asks."""

import math
import operator

import numpy as np

NO_CACHE = ("the cache is None: everything was frozen in the forward pass, there is nothing to "
            "learn; expected the cache that forward returned")


def whole(where, name, value, least=1, most=2**31 - 1):
    """``value`` as an int, at least ``least``; no size beyond 31 bits fits into a machine."""
    try:
        if least <= operator.index(value) <= most and not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{where}: {name} must be a whole number, at least {least}"
                     + f" and at most {most:,}" * (isinstance(value, int) and value > most)
                     + f", got {brief(value)}")


def number(where, name, value, zero=False):
    """``value`` as a float, more than 0 and finite; ``zero`` allows 0."""
    try:
        if 0 < value < math.inf or (zero and value == 0):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{where}: {name} is {brief(value)}, expected a positive number"
                     + " or 0" * zero)


def generator(where, rng):
    """``rng``, a ``np.random.Generator``."""
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"{where}: rng is {brief(rng)}, expected np.random.default_rng(seed)")
    return rng


def array(where, name, x, kinds="biuf"):
    """``x``, an array of numbers that is not empty; ``kinds`` are NumPy's letters for its dtype."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in kinds:
        raise ValueError(f"{where}: {name} is {_kind(x)}, expected an array of "
                         f"{'integers' if kinds == 'iu' else 'numbers'}")
    if x.size == 0:
        raise ValueError(f"{where}: {name} has shape {x.shape}, expected at least one example")
    return x


def backward(where, dy, cache, shape, dtype):
    """Return ``dy`` (B, ..., *shape) in the model's dtype; raise for a missing cache."""
    if cache is None:
        raise ValueError(f"{where}: {NO_CACHE}")
    if not isinstance(dy, np.ndarray) or dy.shape[-len(shape):] != shape:
        raise ValueError(f"{where}: the gradient is {_kind(dy)}, expected the shape of what "
                         f"forward returned, which ends with {shape}")
    return dy.astype(dtype, copy=False)


def dropout(where, p, train, rng):
    """Return the probability of dropout of this forward pass, 0 unless ``train``."""
    if train and p and not isinstance(rng, np.random.Generator):
        raise ValueError(f"{where}: dropout is {p} and rng is {brief(rng)}: pass "
                         "rng=np.random.default_rng(seed)")
    return p if train else 0.0


def brief(x):
    """An object in at most 60 characters of one line."""
    return f"{' '.join(repr(x).split()):.60}"


def _kind(x):
    if isinstance(x, np.ndarray):
        return f"an array of {x.dtype} and shape {x.shape}"
    return f"a {type(x).__name__}"
