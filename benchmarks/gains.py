"""Measure what each fast form saves: a training step without it, in turn with a normal step.

    python -m benchmarks.gains [--seconds 3] [--only "small trunk, 4 x 10"]

All steps use the paper's freeze mask: the shipped trunk on bit XOR (4 x 10) and in MNIST's shape
(16 x 49), and GPT-2 base on 64 and on 120 tokens.  Each number is the median time of a step without
one fast form over the median time of a normal step.
"""

import argparse
import random
import statistics
import time
from contextlib import nullcontext
from unittest.mock import patch

import minifpt
from minifpt import fast, layers, machine, optim, tasks
from minifpt import functional as F
from minifpt.gpt2 import SHAPES

from .plan import Numbers
from .train import our_fpt


class AllTokens(minifpt.GPT2):
    """A trunk that computes every token in its last block: its ``forward`` takes no ``last``,
    so the FPT takes the tokens that it reads from the result."""

    def forward(self, x, train=False, rng=None, need_dx=True):
        return super().forward(x, train, rng, need_dx)


# Each replaces a fast form by the simple one, or switches it off by a constant.
SIMPLE = {
    "more than one core": lambda: patch.object(machine, "cores", lambda: 1),
    "attention in tiles": lambda: patch.object(fast, "TILE", 1 << 30),
    "GELU with its derivative": lambda: patch.dict(
        layers.ACTIVATIONS, gelu_new=(F.gelu, F.gelu_backward)),
    "layer norm in place": lambda: patch.multiple(
        fast, layer_norm=F.layer_norm, layer_norm_backward=F.layer_norm_backward),
    "small parameters joined in Adam": lambda: patch.object(optim, "MAX_JOINED", 0),
}
COLUMNS = {
    "small trunk, 4 x 10": ("minigpt", tasks.get("bit-xor"), 4),
    "small trunk, 16 x 49": ("minigpt", Numbers(49), 16),
    "GPT-2 base, 4 x 64": ("gpt2", Numbers(64, 48), 4),
    "GPT-2 base, 4 x 120": ("gpt2", Numbers(120, 48), 4),
}


def measure(name, task, batch, seconds):
    """Return {name of a fast form: time without it / time of a normal step}."""
    config = minifpt.GPT2Config(**SHAPES[name], dropout=0.0)
    step = our_fpt(minifpt.GPT2(config), task, batch, "fpt")
    forms = {"": (step, nullcontext)}
    forms |= {without: (step, setting) for without, setting in SIMPLE.items()}
    forms["last block: only the tokens that are read"] = (
        our_fpt(AllTokens(config), task, batch, "fpt"), nullcontext)
    forms["frozen weights (all are trained)"] = (
        our_fpt(minifpt.GPT2(config), task, batch, "full"), nullcontext)
    times = {without: [] for without in forms}
    while sum(times[""]) < seconds or len(times[""]) < 3:
        for without in random.sample(list(forms), len(forms)):    # a slow step empties the cache
            form, setting = forms[without]
            with setting():
                form()                                    # bring its weights into the cache
                start = time.perf_counter()
                form()
                times[without].append(time.perf_counter() - start)
    median = {without: statistics.median(t) for without, t in times.items()}
    return {without: t / median[""] for without, t in median.items() if without}


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--seconds", type=float, default=3.0, help="of normal steps, default 3")
    top.add_argument("--only", choices=list(COLUMNS))
    args = top.parse_args()
    names = [args.only] if args.only else list(COLUMNS)
    with machine.kept_memory:
        columns = [measure(*COLUMNS[name], args.seconds) for name in names]
    print(f"| without | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    for without in columns[0]:
        print(f"| {without} | " + " | ".join(f"{c[without]:.2f}" for c in columns) + " |")


if __name__ == "__main__":
    main()
