"""Measure what taking subnormal numbers for zero saves in a saturated model.

    python -m benchmarks.saturated [--steps N] [--lr LR]

The smallest shipped trunk learns ListOps at too large a rate.  After a while its softmaxes are so
sure that many probabilities and gradients are below float32's smallest normal number.  Then steps
with and without ``machine.no_subnormals`` take turns, in one thread.  It prints a line for each
1,000 steps: the median times and their ratio.
"""

import argparse
import statistics
import time

import numpy as np

import minifpt
from minifpt import machine, optim, training

ROUNDS = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=3e-2)
    args = parser.parse_args()
    task = minifpt.tasks.get("listops")
    model = minifpt.FPT.for_task(task, "minigpt-tiny", seed=0)
    optimizer = optim.Adam([p for p in model.parameters() if p.trainable], args.lr)
    rng = np.random.default_rng(0)

    def step(function):
        x, y = task.batch(rng, 16, "train")
        start = time.perf_counter()
        function(model, task, optimizer, x, y, 1.0, rng)
        return time.perf_counter() - start
    for number in range(1, args.steps + 1):
        step(training.step)
        if number % 1000 == 0:
            forms = training.step, training.step.__wrapped__          # without the decorator
            with_zeros, without = zip(*([step(form) for form in forms] for _ in range(ROUNDS)),
                                      strict=True)
            ours, plain = statistics.median(with_zeros), statistics.median(without)
            print(f"after {number} steps: {1000 * ours:.1f} ms, without {1000 * plain:.1f} ms, "
                  f"{plain / ours:.1f} times as long", flush=True)


if __name__ == "__main__":
    with machine.one_core:
        main()
