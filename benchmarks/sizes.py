"""Measure a training step of three sizes on one core: seconds of computing, and memory.

    python -m benchmarks.sizes

Each size has a process of its own.  Seconds are the smallest of several steps, of the process and
not of the clock, so that other work on the machine counts little.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from minifpt.files import csv_text, save_text

FILE = Path(__file__).parent / "results" / "speed-sizes.csv"
# (name, trunk, task, examples, steps); the task gives the tokens.
SIZES = (("the shape that ships, 6 blocks of 128 channels", "random", "mnist", 16, 60),
         ("GPT-2 base, 12 blocks of 768 channels", "random:gpt2", "mnist", 4, 12),
         ("GPT-2 base", "random:gpt2", "listops", 16, 6))


def measure(model, name, examples, steps):
    """Print the seconds of a step, and the process's largest size in MB."""
    import numpy as np

    import minifpt
    task, rng, seconds = minifpt.tasks.get(name), np.random.default_rng(0), []
    fpt = minifpt.FPT.for_task(task, model)
    optimizer = minifpt.optim.Adam([p for p in fpt.parameters() if p.trainable])
    with minifpt.machine.kept_memory, minifpt.machine.single_threaded_blas:     # as in training
        for _ in range(int(steps)):
            x, y = task.batch(rng, int(examples), "train")
            start = time.process_time()
            minifpt.training.step(fpt, task, optimizer, x, y, 1.0, rng)
            seconds.append(time.process_time() - start)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(task.tokens, f"{min(seconds):.2g} {megabytes:.2g}")


def main():
    if sys.argv[1:2] == ["--child"]:
        return measure(*sys.argv[2:])
    rows = []
    for name, *size in SIZES:
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.sizes", "--child", *map(str, size)], text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
        tokens, seconds, megabytes = process.stdout.split()
        rows.append({"trunk": name, "examples x tokens": f"{size[2]} x {tokens}",
                     "a step (s)": seconds, "memory (MB)": f"{float(megabytes):.0f}"})
    save_text(FILE, csv_text(rows))


if __name__ == "__main__":
    main()
