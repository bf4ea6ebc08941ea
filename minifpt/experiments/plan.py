"""Predict the time and memory of a run from a few of its steps and one of its tests."""

import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from .. import trunks
from ..checks import whole
from ..fpt import FPT
from ..machine import kept_memory, single_threaded_blas
from ..optim import Adam
from ..tasks import member
from ..training import evaluate, examples_at_once
from ..training import step as training_step

PROCESS = 45e6                                            # bytes of Python, NumPy, BLAS's buffers


class Plan(NamedTuple):
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

    It measures the memory of two steps and one batch of a test, then times three steps and that
    batch again.  Raises ``ValueError`` or ``FileNotFoundError`` where the run itself would.
    """
    batch_size = whole("plan", "batch_size", batch_size)
    trunk = trunks.get(spec, dropout=dropout)
    model = FPT.for_task(task, trunk, mask, dropout=dropout, adapt=adapt)
    trained = [p for p in model.parameters() if p.trainable]
    if not trained:
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    rng, optimizer = np.random.default_rng(0), Adam(trained)
    test_x, test_y = examples(task, rng, examples_at_once(task.tokens))

    def step():
        x, y = examples(task, rng, batch_size)
        training_step(model, task, optimizer, x, y, 1.0, rng)

    def test():
        evaluate(model, task, test_x, test_y)
    with kept_memory, single_threaded_blas:               # as in training
        tracemalloc.start()
        for work in step, step, test:                     # Adam's arrays are there at the second
            work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        step_seconds = np.median([seconds_of(step) for _ in range(3)])
        test_seconds = seconds_of(test) / len(test_x)
    weights = sum(p.data.nbytes for p in model.parameters())
    return Plan(float(step_seconds), test_seconds, PROCESS + weights + peak, weights, model)


def seconds_of(work):
    """Return the seconds that a call of ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def examples(task, rng, n):
    """Return n examples of a task; random numbers where it would need files of data."""
    if "data" not in member(task, "options") or member(task, "classes") is None:
        return task.batch(rng, n, "train")
    if member(task, "ids"):
        x = rng.integers(0, task.input_dim, (n, task.tokens))
    else:
        x = rng.random((n, task.tokens, task.input_dim), dtype=np.float32)
    return x, rng.integers(0, task.classes, (n, task.output_tokens,
                                             task.output_dim // task.classes))


def last_test(task, default):
    """Return how many examples a run's last test takes: the whole test set, or ``default`` where
    each test draws fresh ones; ``None`` where the data are not here."""
    try:
        test_set = member(task, "test_set")()
    except (OSError, ValueError):
        return None
    return default if test_set is None else len(test_set[0])


def duration(seconds):
    """Return seconds as text: ``1.5 ms``, ``2.5 s``, ``3 min 20 s``, ``2 d 5 h``."""
    if seconds < 59.95:                                   # 60 s when rounded
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.99995 else f"{seconds:.1f} s"
    seconds = round(seconds)
    units = (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    size, unit, part, part_unit = next(row for row in units if seconds >= row[0])
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole} {unit} {rest} {part_unit}"
