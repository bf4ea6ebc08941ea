"""Steps that random frozen trunks need on the paper's bit memory (5 strings of 1,000 bits).

    python -m studies.memory_map [--trunk NAME ...] [--rate RATE ...] [--seed SEED ...]
                                    [--steps N] [--batch-size N] [--dropout SHARE]
                                    [--warmup N] [--every] [--out FILE]

Each trunk is trained at each learning rate, constant after the warm-up, until its test accuracy
reaches 95 %, at most ``--steps`` steps.  A rate is given up once it has taken as many steps as the
best rate of the same trunk and seed, which cannot change the answer of the map; ``--every`` gives
none up.  Every run is a row of the CSV file, written as it ends: the command goes on where it was
stopped.  ``python -m studies scale`` draws the picture and writes the table.
"""

import argparse
import contextlib
import itertools
import math
import re
import time
from pathlib import Path

import numpy as np

import minifpt
from minifpt import optim, training
from minifpt.experiments.tables import markdown
from minifpt.machine import single_threaded_blas
from studies import style
from studies.runs import RESULTS, read_rows, train_until, trained, write_rows

SETTINGS = "trunk", "seed", "batch_size", "dropout", "warmup"
COLUMNS = ("trunk", "rate", "seed", "batch_size", "dropout", "warmup", "steps_to_95", "steps",
           "accuracy", "seconds", "curve")
RATES = 1e-2, 3e-2, 3e-3, 1e-1, 1e-3                      # the likeliest first, see run_all
GOAL, EVAL_EVERY, TEST_EXAMPLES = 0.95, 100, 64
SCALES = 0.55, 1.0, 1.41, 2.0, 2.83, 4.0
TRUNKS = (*(f"random:1x{heads}x256@{scale}" for heads in (8, 4, 2) for scale in SCALES),
          *(f"random:2x{heads}x256@{scale}" for heads in (4, 2) for scale in SCALES[:3]),
          "random:1x12x768", "random:2x12x768", "random:4x12x768",
          "random:12x12x768")                       # with --batch-size 4: it takes an hour


def run(name, rate, seed, steps, batch_size, dropout, warmup):
    """Train one trunk until it reaches ``GOAL`` or ``steps``; return a row of the CSV file."""
    task = minifpt.tasks.get("bit-memory", bits=1000, patch=50)
    model = minifpt.FPT.for_task(task, name, seed=seed, dropout=dropout)
    optimizer = optim.Adam(trained(model), rate)
    start, curve, accuracy, step = time.perf_counter(), [], float("nan"), steps
    with contextlib.suppress(training.Diverged):
        for step, accuracy in train_until(
                GOAL, model, task, optimizer, seed, rate=rate, batch_size=batch_size,
                warmup=warmup, steps=steps, every=EVAL_EVERY, examples=TEST_EXAMPLES):
            curve.append(f"{step}:{accuracy:.4f}")
    reached = accuracy >= GOAL
    return dict(zip(COLUMNS, (name, f"{rate:g}", seed, batch_size, f"{dropout:g}", warmup,
                              step if reached else "", step if reached else steps,
                              round(accuracy, 4), round(time.perf_counter() - start),
                              " ".join(curve)), strict=True))


def best_runs(path):
    """Return ``{trunk: row}`` of seed 0 without dropout: the run with the fewest steps to ``GOAL``,
    or, where no rate reaches it, the run with the highest accuracy."""
    rows = [row for row in read_rows(path)
            if (row["seed"], row["dropout"], row["warmup"]) == ("0", "0", "100")]
    by_trunk = {name: [row for row in rows if row["trunk"] == name]
                for name in TRUNKS}
    return {name: min(runs, key=lambda row: (int(row["steps_to_95"] or 10 ** 9),
                                             -np.nan_to_num(float(row["accuracy"]))))
            for name, runs in by_trunk.items() if runs}


def read_shape(name):
    """Return (blocks, heads, channels, initialisation scale) of a random trunk's name."""
    blocks, heads, channels, scale = re.match(
        r"random:(\d+)x(\d+)x(\d+)(?:@([\d.]+))?", name).groups()
    return int(blocks), int(heads), int(channels), float(scale or 0.55)


def answer(row):
    """Return "300", "3,000 of 4" for another batch than 8, or "not in 8,000: 77.9 %", of a row."""
    if row["steps_to_95"]:
        batch = "" if row["batch_size"] == "8" else f" of {row['batch_size']}"
        return f"{int(row['steps_to_95']):,}{batch}"
    return f"not in {int(row['steps']):,}: {100 * float(row['accuracy']):.1f} %"


def table(path):
    """Return the Markdown table of the runs: the steps of each trunk at its best learning rate, a
    row for each shape and a column for each scale."""
    rows = {}
    for name, row in best_runs(path).items():
        blocks, heads, channels, scale = read_shape(name)
        shape = f"{blocks}x{heads}x{channels}{' as the paper' * ('@' not in name)}"
        rows.setdefault((shape, channels // heads), {})[scale] = (
            f"{answer(row)} at {float(row['rate']):g}")
    scales = sorted({scale for cells in rows.values() for scale in cells})
    return markdown([["shape", "channels of a head", *(f"scale {scale:g}" for scale in scales)], *(
        [shape, str(width), *(cells.get(scale, "") for scale in scales)]
        for (shape, width), cells in rows.items())])


def picture(target, path=RESULTS / "memory-map.csv"):
    """Draw the steps to 95 % of the trunks of 256 channels: scale against the width of a head."""
    cells = {}
    for name, row in best_runs(path).items():
        blocks, heads, channels, scale = read_shape(name)
        if channels == 256:
            cells.setdefault(blocks, {})[channels // heads, scale] = row
    fig, axes = style.figure(len(cells), 1, 3.2, width_ratios=(2, 1))
    for ax, (blocks, rows) in zip(axes, sorted(cells.items()), strict=True):
        widths, scales = (sorted({place[i] for place in rows}) for i in (0, 1))
        for (width, scale), row in rows.items():
            i, j, steps = widths.index(width), scales.index(scale), int(row["steps_to_95"])
            ax.imshow([[math.log(steps)]], cmap="Purples", vmin=math.log(100),
                      vmax=math.log(8000), extent=(j - 0.5, j + 0.5, i - 0.5, i + 0.5))
            ax.text(j, i, answer(row), ha="center", va="center",
                    color="white" if steps > 1700 else "black")
        ax.grid(False)
        ax.set(title=f"{blocks} random block{'s' * (blocks > 1)}", ylabel="channels of a head",
               xlabel="initialisation scale (GPT-2: 0.55)", xticks=range(len(scales)),
               xticklabels=scales, yticks=range(len(widths)), yticklabels=widths,
               xlim=(-0.5, len(scales) - 0.5), ylim=(-0.5, len(widths) - 0.5), aspect="auto")
    style.save(fig, target, "Wide heads and larger weights need fewer steps to 95 % of 1,000 bits")


def run_all(path, trunks, rates, seeds, steps, batch_size, dropout=0.0, warmup=100, every=False):
    """Fill the CSV file with a row for each trunk, seed and learning rate."""
    with single_threaded_blas:
        for seed, name, rate in itertools.product(seeds, trunks, rates):
            rows = read_rows(path)                        # another process may write there, too
            setting = name, seed, batch_size, f"{dropout:g}", warmup
            same = [row for row in rows  # numbers, or texts from the file
                    if [str(row[key]) for key in SETTINGS] == [*map(str, setting)]]
            earlier = [row for row in same if float(row["rate"]) == rate]
            limit = min([steps, *(int(row["steps_to_95"]) for row in (earlier if every else same)
                                  if row["steps_to_95"])])
            if any(int(row["steps"]) >= limit for row in earlier):
                continue
            row = run(name, rate, seed, limit, batch_size, dropout, warmup)
            rows = [other for other in read_rows(path) if other not in earlier]
            write_rows(path, [*rows, row], COLUMNS)
            print(*list(row.values())[:-1], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trunk", nargs="+", default=TRUNKS)
    parser.add_argument("--rate", nargs="+", type=float, default=RATES)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory-map.csv")
    args = parser.parse_args()
    run_all(args.out, args.trunk, args.rate, args.seed, args.steps, args.batch_size,
            args.dropout, args.warmup, args.every)


if __name__ == "__main__":
    main()
