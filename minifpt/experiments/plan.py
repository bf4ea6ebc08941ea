"""Predict the time and memory of a run from a few of its steps and one of its tests."""

import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from ..checks import whole
from ..fpt import FPT
from ..machine import kept_memory, single_threaded_blas
from ..optim import Adam
from ..training import evaluate, examples_at_once
from ..training import step as training_step

PROCESS = 100e6                # bytes of Python, NumPy, BLAS's buffers, Matplotlib for the picture


class Plan(NamedTuple):
    """The predicted cost of a run."""

    step: float                                           # seconds of a training step
    test: float                                           # seconds for each test example
    peak: float                                           # bytes of the process, its largest size
    weights: int                                          # bytes of all parameters
    model: FPT                                            # the model that was measured


def plan(task, model, freeze, batch_size, dropout=0.0, adapt=None):
    """Return the :class:`Plan` of training an FPT in float32 on a task; the arguments are those of
    :meth:`minifpt.FPT.for_task`.

    It measures the memory of the data, two steps and one batch of a test, then times three steps
    and that batch again.  Raises ``ValueError`` or ``FileNotFoundError`` where the run itself
    would.
    """
    batch_size = whole("plan", "batch_size", batch_size)
    fpt = FPT.for_task(task, model, freeze, dropout=dropout, adapt=adapt)
    trained = [p for p in fpt.parameters() if p.trainable]
    if not trained:
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    rng, optimizer = np.random.default_rng(0), Adam(trained)

    def step():
        x, y = task.batch(rng, batch_size, "train")
        training_step(fpt, task, optimizer, x, y, 1.0, rng)

    def test():
        evaluate(fpt, task, test_x, test_y)
    with kept_memory, single_threaded_blas:               # as in training
        tracemalloc.start()
        try:
            test_x, test_y = task.batch(rng, examples_at_once(task.tokens), "test")
            for work in step, step, test:                 # Adam's arrays are there at the second
                work()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        step_seconds = np.median([seconds_of(step) for _ in range(3)])
        test_seconds = seconds_of(test) / len(test_x)
    weights = sum(p.data.nbytes for p in fpt.parameters())
    return Plan(float(step_seconds), test_seconds, PROCESS + weights + peak, weights, fpt)


def seconds_of(work):
    """Return the seconds that a call of ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def duration(seconds):
    """Return seconds as text: ``1.5 ms``, ``2.5 s``, ``3 min 20 s``, ``2 d 5 h``."""
    if seconds < 59.95:                                   # 60 s when rounded
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.99995 else f"{seconds:.1f} s"
    seconds = round(seconds)
    units = (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    size, unit, part, part_unit = next(row for row in units if seconds >= row[0])
    n_units, n_parts = divmod(round(seconds / part), size // part)
    return f"{n_units} {unit} {n_parts} {part_unit}"
