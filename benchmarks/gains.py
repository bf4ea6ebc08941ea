"""What each fast form brings: a training step without it, in turn with the step as it is.

    python -m benchmarks.gains [--seconds 3]

Steps frozen as the paper freezes: the trunk that ships on bit XOR (4 x 10) and on MNIST's shape
(16 x 49), and GPT-2 base on 64 and on 120 tokens.  A number is how many times as long the step
takes, in the median, when that one thing is as in ``functional``.
"""

import argparse
import statistics
import time
from contextlib import contextmanager

import minifpt
from minifpt import fast, layers, optim, tasks
from minifpt import functional as F
from minifpt.gpt2 import GPT2, SHAPES

from .train import Digits, Patches, our_fpt


@contextmanager
def replaced(*swaps):
    """Within, each (module, name, value) holds."""
    before = [(module, name, getattr(module, name)) for module, name, _ in swaps]
    for module, name, value in swaps:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def gelu(x, keep=True):
    return F.gelu(x)


FORWARD, BACKWARD = GPT2.forward, GPT2.backward


def forward_all(self, *args, last=None, **kwargs):
    """The trunk computes all tokens, whoever reads them."""
    y, cache = FORWARD(self, *args, **kwargs)
    return layers.last_tokens(y, last), (cache, y.shape[1])


def backward_all(self, dy, cache):
    cache, T = cache
    return BACKWARD(self, layers.last_tokens_backward(dy, T), cache)


WITHOUT = {
    "attention in tiles": [(fast, "TILE", 1 << 30)],
    "GELU with its derivative": [(fast, "gelu", gelu), (fast, "gelu_backward", F.gelu_backward)],
    "last block: only tokens that are read": [(GPT2, "forward", forward_all),
                                              (GPT2, "backward", backward_all)],
    "small parameters joined in Adam": [(optim, "SMALL", 0)],
}


def without(step, swaps):
    """The step with other forms in place of ours."""
    def run():
        with replaced(*swaps):
            step()
    return run


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--seconds", type=float, default=3.0, help="of each step and form")
    args = top.parse_args()
    mini = minifpt.GPT2Config(**SHAPES["minigpt"], dropout=0.0)
    base = minifpt.GPT2Config(dropout=0.0)
    long = Patches()
    long.tokens = 120
    columns = {}
    for name, config, task, batch in (("small trunk, 4 x 10", mini, tasks.get("bit-xor"), 4),
                                      ("small trunk, 16 x 49", mini, Digits(), 16),
                                      ("GPT-2 base, 4 x 64", base, Patches(), 4),
                                      ("GPT-2 base, 4 x 120", base, long, 4)):
        step = our_fpt(config, task, batch, "fpt")
        steps = [step, *(without(step, swaps) for swaps in WITHOUT.values()),
                 our_fpt(config, task, batch, "full")]
        seconds = [[] for _ in steps]
        while sum(seconds[0]) < args.seconds:             # step by step in turn
            step()                                        # all but the last have one trunk
            for run, so_far in zip(steps, seconds, strict=True):
                start = time.perf_counter()
                run()
                so_far.append(time.perf_counter() - start)
        each = [statistics.median(s[1:]) for s in seconds]
        columns[name] = [x / each[0] for x in each[1:]]
    print(f"| without | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for row in zip([*WITHOUT, "frozen weights (all are trained)"], *columns.values(), strict=True):
        print(f"| {row[0]} | " + " | ".join(f"{x:.2f}" for x in row[1:]) + " |")


if __name__ == "__main__":
    main()
