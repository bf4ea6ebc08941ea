"""Measure how the time of a training step grows with depth, width, batch and tokens.

    python -m benchmarks.growth [--rounds 3] [--out benchmarks/growth.png]

One size at a time differs from four blocks of 256 channels on 4 x 64 tokens, under the paper's
freeze mask.  The table also has the prediction of ``minifpt plan``.  The shapes take turns; the
figures are medians over the rounds.  The exponent is the slope of log time over log size at the
four largest sizes.
"""

import argparse
from pathlib import Path

import numpy as np

import minifpt
from minifpt import machine
from minifpt.experiments import plan, tables
from minifpt.files import plots

from .plan import Numbers, random_trunk, true_step

BASE = dict(depth=4, width=256, batch=4, tokens=64)
SWEEPS = {"depth": ([1, 2, 4, 8, 16, 32], "blocks"),
          "width": ([64, 128, 256, 512, 1024], "channels"),
          "batch": ([1, 2, 4, 8, 16, 32], "examples in a batch"),
          "tokens": ([16, 32, 64, 128, 256, 512, 1024], "tokens in an example")}


def parts(size, value):
    """Return (TrunkSpec, task, batch) of the base with one size changed."""
    at = BASE | {size: value}
    return random_trunk(f"{at['depth']}x{at['width']}"), Numbers(at["tokens"]), at["batch"]


def exponent(x, y):
    """Return slope and intercept of log y over log x for the last four points."""
    return np.polyfit(np.log(x[-4:]), np.log(y[-4:]), 1)


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--rounds", type=int, default=3)
    top.add_argument("--only", choices=list(SWEEPS), help="one size")
    top.add_argument("--out", type=Path, default=Path("benchmarks/growth.png"))
    args = top.parse_args()
    from matplotlib.ticker import LogLocator
    sweeps = {size: SWEEPS[size] for size in ([args.only] if args.only else SWEEPS)}
    shapes = [(size, value) for size, (values, _) in sweeps.items() for value in values]
    measured = {shape: [] for shape in shapes}
    planned = {shape: [] for shape in shapes}
    for _ in range(args.rounds):
        for shape in shapes:
            spec, task, batch = parts(*shape)
            measured[shape].append(true_step(spec, task, batch, seconds=0.5))
            planned[shape].append(plan.plan(task, spec, minifpt.FreezeMask.fpt(), batch).step)
    fig, axes = tables.grid_of_axes(len(sweeps))
    fig.suptitle(f"Time of a training step, from {BASE['depth']} blocks x {BASE['width']} "
                 f"channels, {BASE['batch']} x {BASE['tokens']} tokens, on {machine.cores()} "
                 f"core{'s' * (machine.cores() > 1)}")
    print("| size | value | measured | planned | error |\n|---|---|---|---|---|")
    for ax, (size, (values, unit)) in zip(axes, sweeps.items(), strict=True):
        x = np.array(values, float)
        y, guess = (1e3 * np.array([np.median(seconds[size, v]) for v in values])
                    for seconds in (measured, planned))
        slope, intercept = exponent(x, y)
        ax.loglog(x, np.exp(intercept) * x ** slope, color="0.6", linewidth=1,
                  label=f"exponent {slope:.2f} (the last four)")
        ax.loglog(x, guess, "o", markerfacecolor="none", markersize=9,
                  color=plots.COLORS["statistics"], label="minifpt plan")
        ax.loglog(x, y, "o", markersize=4, color=plots.COLORS["language"], label="measured")
        ax.set_xticks(values, list(map(str, values)))
        ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")
        ax.minorticks_off()
        ax.set(title=size.capitalize(), xlabel=unit, ylabel="a step (ms)")
        ax.legend(frameon=False, loc="upper left")
        for row in zip(values, y, guess, strict=True):
            print(f"| {size} | {row[0]} | {row[1]:.1f} ms | {row[2]:.1f} ms | "
                  f"{100 * (row[2] / row[1] - 1):+.0f} % |")
        print(f"| {size} | exponent | {slope:.2f} | {exponent(x, guess)[0]:.2f} | |", flush=True)
    plots.save(fig, args.out)
    print(f"\n{args.out}")


if __name__ == "__main__":
    main()
