"""How long a run will take and how much memory, from a few layers of it.

The blocks of a GPT-2 are alike, so a step's time and its memory grow by the same amount with
each.  :func:`plan` does real steps of a trunk as wide as the one that is asked for, once with
its topmost block and once with some more, and adds up the rest.
"""

import re
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ..fpt import FPT
from ..gpt2 import GPT2, GPT2Config
from ..machine import kept_memory
from ..optim import Adam
from ..training import TEST_BATCH
from ..training import step as training_step

ROWS = 512                                                # tokens of a measured batch, or one text
SECONDS = 3.0                                             # of measuring, and three rounds at least
PROCESS = 45e6                                            # bytes of Python, NumPy, BLAS's buffers
HOLES = 1.1                                               # what lies free between arrays


@dataclass(frozen=True)
class Plan:
    """What a run will cost."""

    step: float                                           # seconds of a training step
    test: float                                           # seconds for each test example
    peak: float                                           # bytes of the process at most
    weights: int                                          # bytes of them, all parameters
    measured: int                                         # how many blocks were timed
    model: FPT                                            # in shape only, as it would be trained


def plan(task, spec, mask, batch_size, dropout=0.0):
    """The :class:`Plan` of training an FPT on a task, float32, with random weights.

    task         a :class:`minifpt.tasks.Task`.
    spec         a :class:`minifpt.trunks.names.TrunkSpec`.
    mask         a :class:`minifpt.FreezeMask`.
    batch_size   examples in a batch.

    Of a batch of more than ``ROWS`` tokens a part is measured: cost grows with it in
    proportion.  A trunk that is no GPT-2 is made and measured whole.  Raises ``ValueError`` as
    the run itself would.
    """
    if batch_size < 1:
        raise ValueError(f"plan: batch_size is {batch_size}, expected at least 1")
    config = spec.config(dropout)
    # The whole model in shape only: its weights are zeros that take no memory.
    is_gpt2 = isinstance(config, GPT2Config)
    trunk = GPT2(config, seed=None) if is_gpt2 else spec.make(dropout=dropout)
    model = whole = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    whole.freeze(mask)
    if not any(p.trainable for p in whole.parameters()):
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    blocks, more = config.n_layer if is_gpt2 else 0, 0
    if blocks:
        # More blocks of a small trunk, so that they do not all stay in the processor's cache.
        size = sum(p.data.size for p in trunk.h[0].parameters())
        more = min(blocks - 1, 4 if size < 8e6 else 2)
        model = _topmost(task, whole, replace(config, n_layer=1 + more))
    part, test_part = (min(n, max(1, ROWS // task.tokens)) for n in (batch_size, TEST_BATCH))
    models = [model, _topmost(task, whole, replace(config, n_layer=1))] if more else [model]
    (cost, *few), most = _measure(models, task, part, test_part)
    if more:
        each = np.maximum(cost - few[0], 0.0) / more      # the clock may have been disturbed
        # What lies below the lowest trained parameter runs forward only, as in a test.
        forward = np.array([each[1] * part / test_part, each[1], 0.0])
        n = max(_running_back(whole), 1 + more)
        cost = cost + (n - 1 - more) * each + (blocks - n) * forward
    scale, test_scale = batch_size / part, TEST_BATCH / test_part
    step, test, kept = cost * [scale, 1 / test_part, scale]
    passing, tested = most * [scale, test_scale]
    size = sum(p.data.nbytes for p in whole.parameters())
    trained = sum(p.data.nbytes for p in whole.parameters() if p.trainable)
    # Adam keeps two numbers for each that is trained, and a step the gradient.
    arrays = 2 * trained + max(kept + passing + trained, tested)
    peak = PROCESS + size + HOLES * arrays
    return Plan(float(step), float(test), float(peak), size, 1 + more if blocks else 0, whole)


def _running_back(model):
    """How many of the blocks, from the topmost down, the backward pass runs through."""
    if any(p.trainable for p in (*model.input.parameters(), model.trunk.wpe.weight)):
        return len(model.trunk.h)
    learns = [any(p.trainable for p in block.parameters()) for block in model.trunk.h]
    return len(learns) - learns.index(True) if any(learns) else 0


def _topmost(task, whole, config):
    """A model with the topmost blocks only, drawn at random, trained as the whole one is there.
    What learns further below is stood in for by the positions."""
    model = FPT(GPT2(config, seed=0), task.input_dim, task.output_dim, task.output_tokens)
    cut = len(whole.trunk.h) - config.n_layer
    trained = {name: p.trainable for name, p in whole.named_parameters()}
    for name, p in model.named_parameters():
        found = re.fullmatch(r"trunk\.h\.(\d+)\.(.*)", name)
        p.trainable = trained[f"trunk.h.{int(found[1]) + cut}.{found[2]}" if found else name]
    if _running_back(whole) > config.n_layer:
        model.trunk.wpe.weight.trainable = True
    return model


def _measure(models, task, part, test_part):
    """For each model what grows with the number of blocks, an array of three: seconds of a
    step, seconds of a test, bytes of the caches.  And what does not, two numbers: the most
    bytes beside parameters, gradients and caches in a step, and in a test."""
    rng = np.random.default_rng(0)
    (x, y), (test_x, _) = examples(task, rng, part), examples(task, rng, test_part)
    optimizers, times, caches, passing = [], [[] for _ in models], [], []
    for model in models:                                  # this warms up, too
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
            for model, optimizer, so_far in zip(models, optimizers, times, strict=True):
                begin = time.perf_counter()
                training_step(model, task, optimizer, x, y, 1.0, rng)
                middle = time.perf_counter()
                model.predict(test_x)
                so_far.append((middle - begin, time.perf_counter() - middle))
    return ([np.array([*np.median(t, axis=0), c]) for t, c in zip(times, caches, strict=True)],
            np.max(passing, axis=0))


def examples(task, rng, n):
    """n examples of a task, drawn at random where its data would have to be there."""
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
    """Within, a function that tells the bytes of arrays beyond those before: now and at most."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def duration(seconds):
    """Seconds as text in two units at most: ``1.5 ms``, ``2.5 s``, ``3 min 20 s``, ``2 d 5 h``."""
    if seconds < 60:
        return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
    size, unit, part, of = next(row for row in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")) if seconds >= row[0])
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole} {unit} {rest} {of}"
