"""Measure the time and memory of each operation in a training step, with its fast forms."""

import functools
import threading
import time
from dataclasses import dataclass, field

import numpy as np

from .. import machine, training
from ..checks import arrays_in
from ..optim import Adam
from ..tracing import OPERATIONS, replaced, swapped
from .plan import traced


@dataclass
class Cost:
    """The cost of one operation in a step: its calls, its seconds forward and backward, without
    other operations that it calls, and the bytes in its caches."""

    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0
    kept: int = 0


@dataclass
class Costs:
    """The costs of a whole step: {operation: :class:`Cost`}, its seconds, and its largest number
    of bytes beside the parameters."""

    operations: dict
    seconds: float
    peak: int


@dataclass
class _Clock:
    """Collects the costs that timed functions measure."""

    costs: dict = field(default_factory=dict)
    running: list = field(default_factory=list)           # [name, seconds of others within]
    arrays: dict = field(default_factory=dict)            # cached arrays by id
    memory: bool = False                                  # whether to count the caches' bytes
    thread: int = field(default_factory=threading.get_ident)

    def timed(self, name, function, back=False):
        """Return the function with a clock around it; ``back`` says that it is a backward pass."""
        direction = "backward" if back else "forward"

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if threading.get_ident() != self.thread:
                return function(*args, **kwargs)
            cost = self.costs.setdefault(name, Cost())
            outer = [name for name, _ in self.running]
            self.running.append([name, 0.0])
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds = time.perf_counter() - start
            net_seconds = seconds - self.running.pop()[1]
            if self.running:
                self.running[-1][1] += seconds
            setattr(cost, direction, getattr(cost, direction) + net_seconds)
            if direction == "forward" and name not in outer:
                cost.calls += 1
            if self.memory and direction == "forward" and name in OPERATIONS:
                cost.kept += self.bytes_in(result[1])
            return result
        return wrapper

    def bytes_in(self, cache):
        """Return the bytes of the arrays in a cache, each array counted once in a step."""
        total = 0
        for a in arrays_in(cache):
            while isinstance(a.base, np.ndarray):
                a = a.base
            total += a.nbytes if id(a) not in self.arrays else 0
            self.arrays[id(a)] = a                        # no other array may get its id
        return total


def costs(model, task, batch_size, seconds=1.0):
    """Return the :class:`Costs` of a training step of a model, whose parameters this changes.

    ``tracemalloc`` measures the peak of the first step.  A second step counts the bytes of every
    cached array, at the operation that caches it first, without parameters and inputs.  Then steps
    are timed for ``seconds``, at least five, and the fastest is returned.  The time of an operation
    includes its work in other threads.
    """
    rng = np.random.default_rng(0)
    optimizer = Adam([p for p in model.parameters() if p.trainable], lr=1e-3)
    x, y = task.batch(rng, batch_size, "train")

    def step():
        start = time.perf_counter()
        training.step(model, task, optimizer, x, y, 1.0, rng)
        return time.perf_counter() - start
    with traced() as memory:                              # also a warm-up
        step()
        peak = memory()[1]
    timings, clock = [], _Clock(memory=True)
    optimizer.step = clock.timed("Adam", optimizer.step)
    clip = clock.timed("clipping", training.clip_grad_norm)
    with (replaced(lambda op, _, back, ours: clock.timed(op, ours, back)),
          swapped(vars(training), "clip_grad_norm", clip), machine.kept_memory):
        clock.arrays = {id(a): a for a in (x, y, *(p.data for p in model.parameters()))}
        step()
        counted = clock.costs
        clock.memory, clock.arrays = False, {}
        begin = time.perf_counter()
        while len(timings) < 5 or time.perf_counter() - begin < seconds:
            clock.costs = {}
            timings.append((step(), clock.costs))
    whole, fastest = min(timings, key=lambda timing: timing[0])
    for name, cost in fastest.items():
        cost.kept = counted[name].kept
    return Costs(fastest, whole, peak)
