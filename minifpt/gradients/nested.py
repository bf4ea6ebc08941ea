"""Inputs and outputs that are not real arrays: dicts, lists and tuples of arrays, such as a model's
parameters, and complex numbers, whose gradient is that of the real part plus 1j times that of the
imaginary part, as in PyTorch."""

import numpy as np

from ..checks import brief


def items(value):
    """Return [(text, key, part)] of a dict, of a list or tuple that holds arrays (one of numbers is
    an array itself), or of a complex array; ``None`` for any other value."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", key, part) for key, part in value.items()]
    if isinstance(value, (list, tuple)) and any(
            isinstance(part, np.ndarray) or items(part) for part in value):
        return [(f"[{i}]", i, part) for i, part in enumerate(value)]
    if isinstance(value, (np.ndarray, np.number, complex)) and np.iscomplexobj(value):
        return [(".real", 0, np.real(value)), (".imag", 1, np.imag(value))]


def leaves(name, value):
    """Yield (name, array) of every real array in a value: ``params['w'][0]``, ``z.real``."""
    if (parts := items(value)) is None:
        yield name, value
    for text, _, part in parts or ():
        yield from leaves(name + text, part)


def rebuilt(value, arrays):
    """Return a value with other arrays, from an iterator, in place of its own."""
    if (parts := items(value)) is None:
        return next(arrays)
    parts = {key: rebuilt(part, arrays) for _, key, part in parts}
    if isinstance(value, (dict, list, tuple)):
        return parts if isinstance(value, dict) else type(value)(*parts.values()) if hasattr(
            value, "_fields") else type(value)(parts.values())
    return parts[0] + 1j * parts[1]


def gradients(name, value, grad):
    """Return the gradient of every real array in a value: that of a missing key is 0, as it is of a
    parameter that is not used; ``None`` is not checked."""
    places = dict(leaves(name, value))
    if items(value) is None or grad is None:
        return [grad for _ in places]
    grads = dict(leaves(name, grad))
    left_out = tuple(place for place, part in grads.items() if part is None)
    for place in [place for place in grads if place not in {*places, *left_out}]:
        raise ValueError(f"gradcheck: the gradient of {place} is {brief(grads[place])}, expected "
                         f"what the input {name} is, {brief(value)}")
    return [None if place.startswith(left_out) else grads.get(place, np.zeros_like(part))
            for place, part in places.items()]


def flat(op, op_backward, inputs):
    """Return an operation of the inputs {name: value} as one of their real arrays."""
    has_float = {name: any(np.asarray(x).dtype.kind == "f" for _, x in leaves(name, value))
                 for name, value in inputs.items()}
    outputs = []                                          # as op returned them

    def flat_op(*arrays, **options):
        arrays = iter(arrays)
        result = op(*(rebuilt(value, arrays) for value in inputs.values()), **options)
        if isinstance(result, (tuple, list)) and len(result) == 2:
            outputs[:] = [*result[0]] if isinstance(result[0], (tuple, list)) else [result[0]]
            if any(map(np.iscomplexobj, outputs)):
                return tuple(part for y in outputs for _, part in leaves("", y)), result[1]
        return result

    def flat_backward(dy, cache):
        if any(map(np.iscomplexobj, outputs)):
            parts = iter(dy)
            dy = tuple(rebuilt(y, parts) for y in outputs)
            dy = dy[0] if len(dy) == 1 else dy
        grads = op_backward(dy, cache)
        names = [*inputs]
        if not isinstance(grads, (tuple, list)) or len(names) == 1 and isinstance(
                inputs[names[0]], (tuple, list)) and items(inputs[names[0]]) and len(grads) != 1:
            grads = [grads]
        if len(grads) != len(names):
            names = [name for name in names if has_float[name]]
        if len(grads) != len(names):
            return grads                                  # gradcheck says what it expects
        grads = dict(zip(names, grads, strict=True))
        return [grad for name, value in inputs.items()
                for grad in gradients(name, value, grads.get(name))]
    return flat_op, flat_backward
