"""Predict the time and memory of a run from a few of its steps."""

import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .. import trunks
from ..checks import whole
from ..fpt import FPT
from ..gpt2 import GPT2, GPT2Config
from ..machine import kept_memory
from ..optim import Adam
from ..training import step as training_step
from ..training import test_batch

MAX_ROWS = 512                                            # tokens of a measured batch, or 1 example
SECONDS = 1.0                                             # to measure, for at least three steps
PROCESS = 45e6                                            # bytes of Python, NumPy, BLAS's buffers
HOLES = 1.1                                               # memory per byte of arrays, with gaps


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a run."""

    step: float                                           # seconds of a training step
    test: float                                           # seconds for each test example
    peak: float                                           # bytes of the process, its largest size
    weights: int                                          # bytes of all parameters
    model: FPT                                            # the model that was measured


def plan(task, spec, mask, batch_size, dropout=0.0, adapt=None):
    """Return the :class:`Plan` of training an FPT in float32 on a task.

    task         a :class:`minifpt.tasks.Task`.
    spec         a :class:`minifpt.trunks.TrunkSpec`.
    mask         a :class:`minifpt.FreezeMask`.
    batch_size   examples in a batch.
    adapt        an adapter, as :func:`minifpt.adapters.adapt` takes it.

    It times three steps of the model.  Of a batch of more than ``MAX_ROWS`` tokens only a part is
    measured, as the cost is proportional to the batch.  A GPT-2's weights are not read: their
    numbers do not change the time.  Raises ``ValueError`` where the run itself would.
    """
    batch_size = whole("plan", "batch_size", batch_size)
    config = trunks.config_for(spec, dropout)
    if isinstance(config, GPT2Config):
        trunk = GPT2(config, seed=None)
        for p in trunk.parameters():
            p.data[...] = 0.02
    else:
        trunk = trunks.get(spec, dropout=dropout)
    model = FPT.for_task(task, trunk, mask, dropout=dropout, adapt=adapt)
    trained = [p for p in model.parameters() if p.trainable]
    if not trained:
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    tested = test_batch(task.tokens)
    part, test_part = (min(n, max(1, MAX_ROWS // task.tokens)) for n in (batch_size, tested))
    rng = np.random.default_rng(0)
    (x, y), (test_x, _) = examples(task, rng, part), examples(task, rng, test_part)
    optimizer, times = Adam(trained), []
    with traced() as memory:                              # also a warm-up
        logits, cache = model.forward(x, train=True, rng=rng)
        model.backward(task.loss(logits, y)[1], cache)
        gradients = sum(p.grad.nbytes for p in trained if p.grad is not None)
        step_peak = memory()[1] - gradients
    del logits, cache
    with traced() as memory:
        model.predict(test_x)
        test_peak = memory()[1]
    start = time.perf_counter()
    with kept_memory:                                     # as in training
        while len(times) < 3 or time.perf_counter() - start < SECONDS:
            begin = time.perf_counter()
            training_step(model, task, optimizer, x, y, 1.0, rng)
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        model.predict(test_x)
        test = time.perf_counter() - begin
    size, moved = (sum(p.data.nbytes for p in ps) for ps in (model.parameters(), trained))
    # Adam has two arrays for each trained parameter, and a step has its gradient.
    arrays = 2 * moved + max(step_peak * batch_size / part + moved, test_peak * tested / test_part)
    return Plan(float(np.median(times) * batch_size / part), test / test_part,
                PROCESS + size + HOLES * arrays, size, model)


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
    if seconds < 59.95:                                   # 60 s when rounded
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.99995 else f"{seconds:.1f} s"
    seconds = round(seconds)
    units = (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    size, unit, part, part_unit = next(row for row in units if seconds >= row[0])
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole} {unit} {rest} {part_unit}"
