"""How long a run will take and how much memory, from a few layers of it.

The blocks of a GPT-2 are alike, so that a step's time and its memory grow by the same amount
with each.  :func:`plan` does real steps of a trunk as wide as the one that is asked for, once
with a single block and once with some more, and adds up the rest.
"""

import time
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from . import weights
from .fpt import FPT
from .gpt2 import GPT2, SHAPES, GPT2Config, config_of
from .huggingface import parameter_shapes
from .optim import Adam
from .train import TEST_BATCH
from .train import step as training_step

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


def shape_of(model, dropout=0.0):
    """The :class:`minifpt.GPT2Config` of what ``--model`` takes; a shape's bare name will do,
    with or without its weights."""
    if not Path(model).exists():
        model = model.partition("+")[0]                   # A+MASK=B has the shape of A
    kind, _, rest = model.partition(":")
    shape = (rest or "minigpt") if kind == "random" else model
    if kind == "random" and shape not in SHAPES:
        raise ValueError(f"--model {model}: no shape '{rest}', expected one of "
                         f"{', '.join(SHAPES)}")
    if kind != "random":
        name = rest if kind == "statistics" else model
        try:
            path = weights.find(name)
        except FileNotFoundError:
            if name not in SHAPES:
                raise
        else:
            config, arrays = weights.load(path, dropout)
            arrays.close()
            return config_of(config, path)
    return GPT2Config(**SHAPES[shape], dropout=dropout)


def parameters(task, config, mask):
    """{name: (shape, whether it is trained)} of the FPT for a task; nothing is allocated.

    Raises ``ValueError`` for a pattern of the mask that matches no parameter.
    """
    C = config.n_embd
    shapes = {"input.weight": (task.input_dim, C), "input.bias": (C,)}
    shapes |= {f"trunk.{name}": shape for name, shape in parameter_shapes(vars(config))
               if name != "wte.weight"}
    shapes |= {"output.weight": (C, task.output_dim), "output.bias": (task.output_dim,)}
    flags = {name: SimpleNamespace(trainable=True) for name in shapes}
    mask.apply(SimpleNamespace(named_parameters=flags.items))
    return {name: (shapes[name], flags[name].trainable) for name in shapes}


def plan(task, config, mask, batch_size):
    """The :class:`Plan` of training an FPT on a task, float32, with random weights.

    task, config, mask  as for a run: a task, a :class:`minifpt.GPT2Config`, a ``FreezeMask``.
    batch_size          examples in a batch.

    Of a batch of more than ``ROWS`` tokens a part is measured: cost grows with it in
    proportion.  Raises ``ValueError`` as the run itself would.
    """
    if batch_size < 1:
        raise ValueError(f"plan: batch_size is {batch_size}, expected at least 1")
    every = parameters(task, config, mask)
    if not any(t for _, t in every.values()):
        raise ValueError("plan: every parameter is frozen, there is nothing to train")
    blocks = _blocks(every, config.n_layer)
    kinds = Counter(blocks[:-1])
    block = sum(prod(shape) for name, (shape, _) in every.items() if name.startswith("trunk.h.0."))
    # More blocks of a small trunk, so that they do not all stay in the processor's cache.
    more = min(config.n_layer - 1, 4 if block < 8e6 else 2)
    trunk = GPT2(replace(config, n_layer=1 + more), seed=0)
    model = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    for name, p in model.named_parameters():
        if not name.startswith("trunk.h."):
            p.trainable = every[name][1]
    *middle, top = trunk.h

    def arrange(kind):
        """One block as the topmost is, and below it some of a kind; ``None`` for none."""
        trunk.h = [top] if kind is None else [*middle, top]
        for b in trunk.h:
            for p, t in zip(b.parameters(), (blocks[-1] if b is top else kind)[0], strict=True):
                p.trainable = t
        # These stand in for what learns further below.
        trunk.wpe.weight.trainable = (kind or blocks[-1])[1]
        top.ln_1.bias.trainable |= blocks[-1][1]
    part, test_part = (min(n, max(1, ROWS // task.tokens)) for n in (batch_size, TEST_BATCH))
    costs, most = _measure(model, task, part, test_part, arrange, [None, *kinds])
    base, *rest = costs
    for each, n in zip(rest, kinds.values(), strict=True):
        base = base + n * (each - costs[0]) / more
    scale, test_scale = batch_size / part, TEST_BATCH / test_part
    step, test, kept = base * [scale, 1 / test_part, scale]
    passing, tested = most * [scale, test_scale]
    size, trained = (4 * sum(prod(shape) for shape, t in every.values() if t or not only)
                     for only in (False, True))
    # Adam keeps two numbers for each that is trained, and a step the gradient.
    arrays = 2 * trained + max(kept + passing + trained, tested)
    peak = PROCESS + size + HOLES * arrays
    return Plan(float(step), float(test), float(peak), size, 1 + more)


def _blocks(every, n_layer):
    """For each block what of its parameters is trained, and whether anything below it is."""
    blocks = []
    below = any(every[name][1] for name in ("input.weight", "input.bias", "trunk.wpe.weight"))
    for i in range(n_layer):
        flags = tuple(t for name, (_, t) in every.items() if name.startswith(f"trunk.h.{i}."))
        blocks.append((flags, below))
        below |= any(flags)
    return blocks


def _measure(model, task, part, test_part, arrange, kinds):
    """For each kind what grows with the number of blocks, an array of three: seconds of a
    step, seconds of a test, bytes of the caches.  And what does not, two numbers: the most
    bytes beside parameters, gradients and caches in a step, and in a test."""
    rng = np.random.default_rng(0)
    (x, y), (test_x, _) = examples(task, rng, part), examples(task, rng, test_part)
    optimizers, times, caches, passing = [], [], [], []
    for kind in kinds:                                    # this warms up, too
        arrange(kind)
        optimizers.append(Adam([p for p in model.parameters() if p.trainable]))
        model.zero_grad()
        with traced() as memory:
            logits, cache = model.forward(x, train=True, rng=rng)
            caches.append(memory()[0])
            model.backward(task.loss(logits, y)[1], cache)
            peak = memory()[1] - caches[-1]
        del logits, cache
        with traced() as memory:
            model.predict(test_x)
            passing.append((peak - sum(p.grad.nbytes for p in optimizers[-1].parameters),
                            memory()[1]))
        times.append([])
    start = time.perf_counter()
    while len(times[0]) < 3 or time.perf_counter() - start < SECONDS:
        for kind, optimizer, so_far in zip(kinds, optimizers, times, strict=True):
            arrange(kind)
            at = [time.perf_counter()]
            training_step(model, task, optimizer, x, y, 1.0, rng)
            at.append(time.perf_counter())
            model.predict(test_x)
            so_far.append(np.diff([*at, time.perf_counter()]))
    return ([np.array([*np.median(t, axis=0), c]) for t, c in zip(times, caches, strict=True)],
            np.max(passing, axis=0))


def examples(task, rng, n):
    """n examples of a task, drawn at random where its data would have to be there."""
    if "data" not in task.options:
        return task.batch(rng, n)
    return (rng.random((n, task.tokens, task.input_dim), dtype=np.float32),
            rng.integers(0, task.classes, (n, task.output_tokens, task.output_dim // task.classes)))


@contextmanager
def traced():
    """Within, a function that tells the bytes of arrays beyond those before: now and at most."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()
