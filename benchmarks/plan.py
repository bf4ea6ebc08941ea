"""Compare the time and memory that ``minifpt plan`` predicts with those of whole steps.

    python -m benchmarks.plan [--rows gpt2:4x10,12x256:16x64] [--rounds 2]

A row is a shape, by name or as layers x channels, and batch x tokens.  Prediction and measurement
take turns, each in its own process; the figures are medians over the rounds.  The measurement is
the median training step on random inputs, and the process's largest resident set after a test on 64
examples.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import minifpt
from minifpt import machine, tasks
from minifpt.experiments import plan
from minifpt.gpt2 import SHAPES
from minifpt.optim import Adam
from minifpt.training import step as training_step
from minifpt.trunks.names import TrunkSpec

ROWS = ("6x128:4x10,12x256:16x64,24x256:4x64,8x512:4x120,gpt2:4x10,gpt2:4x64,gpt2:16x64,"
        "4x768:1x512,gpt2-medium:4x64,gpt2-large:4x10")


class Numbers(tasks.Choices):
    """A task of random numbers with ten classes at the last token.

    49 x 16 is MNIST's shape, 64 x 48 CIFAR-10's."""

    name, output_dim, output_tokens, classes, options = "random numbers", 10, 1, 10, {}

    def __init__(self, tokens, input_dim=16):
        self.tokens, self.input_dim = tokens, input_dim

    def draw(self, rng, size, split):
        return (rng.standard_normal((size, self.tokens, self.input_dim), dtype=np.float32),
                rng.integers(0, 10, (size, 1)))


def random_trunk(shape):
    """Return the ``TrunkSpec`` of a shape: a name, or layers x channels, 64 channels per head."""
    if shape not in SHAPES:
        layers, width = map(int, shape.split("x"))
        SHAPES[shape] = dict(n_layer=layers, n_head=max(1, width // 64), n_embd=width)
    return TrunkSpec.parse(f"random:{shape}")


def parts(row):
    """Return (TrunkSpec, task, batch) of a row."""
    name, size = row.split(":")
    batch, tokens = map(int, size.split("x"))
    return random_trunk(name), Numbers(tokens), batch


def true_step(spec, task, batch, seconds=3.0):
    """Return the median seconds of at least three whole training steps after a first one."""
    model = minifpt.FPT(spec.make(dropout=0.0), task.input_dim, task.output_dim)
    model.freeze(minifpt.FreezeMask.fpt())
    rng, times = np.random.default_rng(0), []
    optimizer = Adam([p for p in model.parameters() if p.trainable])
    model.predict(task.batch(rng, 64)[0])
    x, y = task.batch(rng, batch)
    with machine.kept_memory:
        while len(times) < 4 or sum(times) < seconds:
            start = time.perf_counter()
            training_step(model, task, optimizer, x, y, 1.0, rng)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def child(kind, row):
    """Print the seconds of a step, the peak memory, and the time that this took."""
    spec, task, batch = parts(row)
    start = time.perf_counter()
    if kind == "measured":
        step = true_step(spec, task, batch)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    else:
        prediction = plan.plan(task, spec, minifpt.FreezeMask.fpt(), batch)
        step, peak = prediction.step, prediction.peak
    print(step, peak, time.perf_counter() - start)


def run_child(kind, row):
    """Return what a child process prints, as numbers."""
    process = subprocess.run([sys.executable, "-m", "benchmarks.plan", "--child", kind, row],
                             capture_output=True, text=True, check=True)
    return list(map(float, process.stdout.split()))


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--rows", default=ROWS)
    top.add_argument("--rounds", type=int, default=2)
    args = top.parse_args()
    print("| shape, batch x tokens | a step, planned | measured | error | memory, planned "
          "| measured | error | planning took |\n|---|---|---|---|---|---|---|---|")
    errors = []
    for row in args.rows.split(","):
        both = [(run_child("plan", row), run_child("measured", row)) for _ in range(args.rounds)]
        (a, m, took), (b, n, _) = np.median(both, axis=0)
        errors.append((a / b - 1, m / n - 1))
        print(f"| {row.replace(':', ', ')} | {1e3 * a:.1f} ms | {1e3 * b:.1f} ms | "
              f"{100 * (a / b - 1):+.0f} % | {m / 1e6:.0f} MB | {n / 1e6:.0f} MB | "
              f"{100 * (m / n - 1):+.0f} % | {took:.0f} s |", flush=True)
    worst = 100 * np.abs(errors).max(axis=0)
    print(f"\nlargest error: time {worst[0]:.0f} %, memory {worst[1]:.0f} %")


if __name__ == "__main__":
    main()
