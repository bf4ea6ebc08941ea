"""Predict the time and memory of a run from a few of its blocks.

The blocks of a GPT-2 are alike, so each adds the same amount to a step's time and memory.
:func:`plan` measures steps of the model with its topmost block alone and with some more, and
extrapolates to all blocks.
"""

import re
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from .. import adapters
from ..fpt import FPT
from ..gpt2 import GPT2, GPT2Config
from ..machine import kept_memory
from ..optim import Adam
from ..training import TEST_BATCH
from ..training import step as training_step

MAX_ROWS = 512                                            # tokens of a measured batch, or 1 example
SECONDS = 3.0                                             # to measure, for at least three rounds
PROCESS = 45e6                                            # bytes of Python, NumPy, BLAS's buffers
HOLES = 1.1                                               # memory per byte of arrays, with gaps


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a run."""

    step: float                                           # seconds of a training step
    test: float                                           # seconds for each test example
    peak: float                                           # bytes of the process, its largest size
    weights: int                                          # bytes of all parameters
    measured: int                                         # how many blocks were timed
    model: FPT                                            # the model to train, without its weights


def plan(task, spec, mask, batch_size, dropout=0.0, adapt=None):
    """Return the :class:`Plan` of training an FPT in float32 on a task.

    task         a :class:`minifpt.tasks.Task`.
    spec         a :class:`minifpt.trunks.names.TrunkSpec`.
    mask         a :class:`minifpt.FreezeMask`.
    batch_size   examples in a batch.
    adapt        an adapter, as :func:`minifpt.adapters.adapt` takes it.

    Only a part of a batch of more than ``MAX_ROWS`` tokens is measured, as the cost is
    proportional to the batch.  A trunk with an adapter, or other than a GPT-2, is measured whole.
    Raises ``ValueError`` where the run itself would.
    """
    if batch_size < 1:
        raise ValueError(f"plan: batch_size is {batch_size}, expected at least 1")
    config = spec.config(dropout)
    if isinstance(config, GPT2Config) and not mask.pos:   # as FPT.for_task does
        config = replace(config, n_positions=max(config.n_positions, task.tokens))
    # The whole model only has its shapes: its weights are zeros that take no memory.
    has_few = isinstance(config, GPT2Config) and adapt is None        # measured on a few blocks
    trunk = GPT2(config, seed=None) if has_few else spec.make(dropout=dropout)
    model = whole = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    if adapt is not None:
        adapters.adapt(whole, adapt)
    whole.freeze(mask)
    if not any(p.trainable for p in whole.parameters()):
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    blocks, more = config.n_layer if has_few else 0, 0
    if blocks:
        # Small blocks: measure more of them, so that not all stay in the processor's cache.
        size = sum(p.data.size for p in trunk.h[0].parameters())
        more = min(blocks - 1, 4 if size < 8e6 else 2)
        model = _topmost(task, whole, replace(config, n_layer=1 + more))
    part, test_part = (min(n, max(1, MAX_ROWS // task.tokens)) for n in (batch_size, TEST_BATCH))
    models = [model, _topmost(task, whole, replace(config, n_layer=1))] if more else [model]
    (cost, *topmost), most = _measure(models, task, part, test_part)
    if more:
        each = np.maximum(cost - topmost[0], 0.0) / more  # other work may disturb the clock
        # Blocks below the lowest trained parameter only run forward, as in a test.
        forward = np.array([each[1] * part / test_part, each[1], 0.0])
        n = max(_running_back(whole), 1 + more)
        cost = cost + (n - 1 - more) * each + (blocks - n) * forward
    scale, test_scale = batch_size / part, TEST_BATCH / test_part
    step, test, caches = cost * [scale, 1 / test_part, scale]
    passing, tested = most * [scale, test_scale]
    size = sum(p.data.nbytes for p in whole.parameters())
    trained = sum(p.data.nbytes for p in whole.parameters() if p.trainable)
    # Adam has two arrays for each trained parameter, and a step has its gradient.
    arrays = 2 * trained + max(caches + passing + trained, tested)
    peak = PROCESS + size + HOLES * arrays
    return Plan(float(step), float(test), float(peak), size, 1 + more if blocks else 0, whole)


def _running_back(model):
    """Return how many blocks the backward pass runs through, from the topmost down."""
    if any(p.trainable for p in (*model.input.parameters(), model.trunk.wpe.weight)):
        return len(model.trunk.h)
    learns = [any(p.trainable for p in block.parameters()) for block in model.trunk.h]
    return len(learns) - learns.index(True) if any(learns) else 0


def _topmost(task, whole, config):
    """Return a random model with the topmost blocks only, frozen where the whole one is.

    The positions learn where a block further below does, so that all blocks run back."""
    model = FPT(GPT2(config, seed=0), task.input_dim, task.output_dim, task.output_tokens)
    cut = len(whole.trunk.h) - config.n_layer
    trained = {name: p.trainable for name, p in whole.named_parameters()}
    for name, p in model.named_parameters():
        match = re.fullmatch(r"trunk\.h\.(\d+)\.(.*)", name)
        p.trainable = trained[f"trunk.h.{int(match[1]) + cut}.{match[2]}" if match else name]
    if _running_back(whole) > config.n_layer:
        model.trunk.wpe.weight.trainable = True
    return model


def _measure(models, task, part, test_part):
    """Return ``(costs, peaks)``.

    costs  for each model the seconds of a step, the seconds of a test and the bytes of the caches,
           an array of three that grows with the number of blocks.
    peaks  the largest number of further bytes in a step, beside parameters, gradients and caches,
           and in a test, which do not grow with it.
    """
    rng = np.random.default_rng(0)
    (x, y), (test_x, _) = examples(task, rng, part), examples(task, rng, test_part)
    optimizers, times, caches, passing = [], [[] for _ in models], [], []
    for model in models:                                  # also a warm-up
        optimizers.append(Adam([p for p in model.parameters() if p.trainable]))
        with traced() as memory:
            logits, cache = model.forward(x, train=True, rng=rng)
            caches.append(memory()[0])
            model.backward(task.loss(logits, y)[1], cache)
            peak = memory()[1] - caches[-1]
        del logits, cache
        peak -= sum(p.grad.nbytes for p in optimizers[-1].parameters if p.grad is not None)
        with traced() as memory:
            model.predict(test_x)
            passing.append((peak, memory()[1]))
    start = time.perf_counter()
    with kept_memory:                                     # as in training
        while len(times[0]) < 3 or time.perf_counter() - start < SECONDS:
            for model, optimizer, pairs in zip(models, optimizers, times, strict=True):
                begin = time.perf_counter()
                training_step(model, task, optimizer, x, y, 1.0, rng)
                middle = time.perf_counter()
                model.predict(test_x)
                pairs.append((middle - begin, time.perf_counter() - middle))
    return ([np.array([*np.median(t, axis=0), c]) for t, c in zip(times, caches, strict=True)],
            np.max(passing, axis=0))


def examples(task, rng, n):
    """Return n examples of a task; random numbers where it would need files of data."""
    if "data" not in getattr(task, "options", {}) or not hasattr(task, "classes"):
        return task.batch(rng, n, "train")
    if getattr(task, "ids", False):
        x = rng.integers(0, task.input_dim, (n, task.tokens))
    else:
        x = rng.random((n, task.tokens, task.input_dim), dtype=np.float32)
    return x, rng.integers(0, task.classes, (n, task.output_tokens,
                                             task.output_dim // task.classes))


@contextmanager
def traced():
    """Give a function that returns the bytes of new arrays: at this moment and at their peak."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def duration(seconds):
    """Return seconds as text: ``1.5 ms``, ``2.5 s``, ``3 min 20 s``, ``2 d 5 h``."""
    if seconds < 60:
        return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
    units = (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    size, unit, part, part_unit = next(row for row in units if seconds >= row[0])
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole} {unit} {rest} {part_unit}"
