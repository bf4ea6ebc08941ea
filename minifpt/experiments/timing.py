"""Time and memory of a training step by operation, as it runs: with the fast forms."""

import functools
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from .. import fast, layers, machine, training
from .. import functional as F
from ..optim import Adam
from ..tracing import OPEN, OPERATIONS
from .plan import traced


@dataclass
class Cost:
    """What one operation costs in a step: how often it is called, seconds forward and backward
    (without other operations that it calls), bytes that its caches keep for the way back."""

    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0
    kept: int = 0


@dataclass
class Costs:
    """Of a whole step: {operation: :class:`Cost`}, seconds, most bytes beside the parameters."""

    operations: dict
    seconds: float
    peak: int


@dataclass
class _Clock:
    """What the timed functions write into."""

    costs: dict = field(default_factory=dict)
    running: list = field(default_factory=list)           # [name, seconds of others within]
    seen: dict = field(default_factory=dict)              # arrays that are kept, by id
    memory: bool = False                                  # whether to look into caches
    thread: int = field(default_factory=threading.get_ident)

    def timed(self, name, function, direction="forward"):
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
            own = seconds - self.running.pop()[1]
            if self.running:
                self.running[-1][1] += seconds
            setattr(cost, direction, getattr(cost, direction) + own)
            cost.calls += direction == "forward" and name not in outer
            if self.memory and direction == "forward" and name in OPERATIONS:
                cost.kept += self.bytes_in(result[1])
            return result
        return wrapper

    def bytes_in(self, cache):
        """Bytes of the arrays in a cache, each array counted once in a step."""
        if isinstance(cache, dict):
            cache = tuple(cache.values())
        if isinstance(cache, (tuple, list)):
            return sum(map(self.bytes_in, cache))
        if not isinstance(cache, np.ndarray):
            return 0
        while isinstance(cache.base, np.ndarray):
            cache = cache.base
        if id(cache) in self.seen:
            return 0
        self.seen[id(cache)] = cache                      # held, so that no other gets its id
        return cache.nbytes


def costs(model, task, batch_size, seconds=1.0, seed=0):
    """The :class:`Costs` of a training step of a model, which is trained by it.

    One step is measured by ``tracemalloc``.  One counts bytes: those of every array that a cache
    keeps, at the operation that keeps it first, parameters and inputs left out.  As many more as
    fit into ``seconds``, five at least, are timed, of which the fastest is told.  What an
    operation does in further threads is its own.
    """
    rng = np.random.default_rng(seed)
    optimizer = Adam([p for p in model.parameters() if p.trainable], lr=1e-3)
    x, y = task.batch(rng, batch_size, "train")

    def step():
        start = time.perf_counter()
        training.step(model, task, optimizer, x, y, 1.0, rng)
        return time.perf_counter() - start
    with traced() as memory:                              # this warms up, too
        step()
        peak = memory()[1]
    if not OPEN.acquire(blocking=False):                  # operations are replaced for all
        raise ValueError("timing: a trace is open; close it first")
    found = []
    with ExitStack() as undo, machine.kept_memory:
        undo.callback(OPEN.release)
        clock = _Clock(memory=True)
        _replace(undo, clock, optimizer)
        clock.seen = {id(a): a for a in (x, y, *(p.data for p in model.parameters()))}
        step()
        counted = clock.costs
        clock.memory, clock.seen = False, {}
        begin = time.perf_counter()
        while len(found) < 5 or time.perf_counter() - begin < seconds:
            clock.costs = {}
            found.append((step(), clock.costs))
    whole, fastest = min(found, key=lambda each: each[0])
    for name, cost in fastest.items():
        cost.kept = counted[name].kept
    return Costs(fastest, whole, peak)


def _replace(undo, clock, optimizer):
    """Timed functions in place of all operations, of clipping and of Adam, until ``undo``."""
    def put(table, key, name, direction="forward"):
        undo.callback(table.__setitem__, key, table[key])
        table[key] = clock.timed(name, table[key], direction)
    for key, (forward, backward) in list(layers.ACTIVATIONS.items()):
        undo.callback(layers.ACTIVATIONS.__setitem__, key, (forward, backward))
        name = getattr(forward, "__name__", key)
        layers.ACTIVATIONS[key] = (clock.timed(name, forward),
                                   clock.timed(name, backward, "backward"))
    for op, pair in OPERATIONS.items():
        for function, direction in zip(pair, ("forward", "backward"), strict=True):
            for table in (vars(F), vars(fast)):
                if function.__name__ in table:
                    put(table, function.__name__, op, direction)
    put(vars(training), "clip_grad_norm", "clipping")
    optimizer.step = clock.timed("Adam", optimizer.step)
