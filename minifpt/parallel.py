"""A large batch in parts, each of which runs through the whole model, side by side on the cores.

The parts depend on the sizes alone, so that any number of cores gives the same bits.
"""

import math
from collections import namedtuple
from contextlib import nullcontext

import numpy as np

from . import machine
from .layers import PART_GRADS, TRACE, named_layers

PARTS = {480: 2, 1920: 4, 7680: 8}  # {least examples x tokens of a batch: its number of parts}
MAX_CHANNELS = 512                  # parts of a wider model would each read its weights from memory
PartsCache = namedtuple("PartsCache", "parts caches")


def parts_of(model, x):
    """Return a slice of the examples for each part of a batch.

    There is one part for a small batch, for a recurrence, for a wide trunk, for a model with a
    layer of the user's own or without a trunk, and within a trace.
    """
    shape = np.shape(x)[:2]
    n = max((n for rows, n in PARTS.items() if math.prod(shape) >= rows), default=1)
    if n == 1 or TRACE.get() or not hasattr(model, "trunk") or not all(
            runs_in_parts(layer) for _, layer in named_layers(model)) or (
            model.trunk.config.n_embd > MAX_CHANNELS):
        return [slice(None)]
    size = math.ceil(shape[0] / n)
    return [slice(i, i + size) for i in range(0, shape[0], size)]


def runs_in_parts(layer):
    """Return whether a layer is one of ours that may run several parts at once."""
    return (type(layer).__module__.startswith(f"{__package__}.") and layer.runs_in_parts
            and "forward" not in vars(layer))


def forward_in_parts(model, x, **options):
    """Return the logits as ``model.forward(x, train=..., rng=...)`` does, and a cache for
    :func:`backward_in_parts`.

    The first part draws its dropout from ``rng``, the others from generators far ahead of it.
    """
    parts = parts_of(model, x)
    if len(parts) == 1:
        return model.forward(x, **options)
    rng = options.pop("rng", None)
    rngs = [rng] * len(parts) if rng is None else [rng, *(
        np.random.Generator(rng.bit_generator.jumped(i)) for i in range(1, len(parts)))]
    pairs = in_parts(lambda i: model.forward(x[parts[i]], rng=rngs[i], **options), len(parts))
    logits, caches = zip(*pairs, strict=True)
    return np.concatenate(logits), PartsCache(parts, caches)


def backward_in_parts(model, dlogits, cache):
    """Run back for the cache of :func:`forward_in_parts`; the parts' gradients add up in a fixed
    order."""
    if not isinstance(cache, PartsCache):
        return model.backward(dlogits, cache)

    def run(i):
        token = PART_GRADS.set({})
        try:
            model.backward(dlogits[cache.parts[i]], cache.caches[i])
            return PART_GRADS.get()
        finally:
            PART_GRADS.reset(token)
    for grads in in_parts(run, len(cache.parts)):
        for parameter, grad in grads.items():
            parameter.add_grad(grad)


def in_parts(run, n):
    """Return ``[run(0), ..., run(n - 1)]``.  Operations use the cores that the parts leave."""
    results = [None] * n

    def part(i):
        with machine.one_core if n >= machine.cores() else nullcontext():
            results[i] = run(i)
    machine.run_in_threads(part, range(n))
    return results
