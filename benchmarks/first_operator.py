"""Say how much of a model's answers on the paper's ListOps the first operator decides.

    minifpt reproduce listops-long --tasks listops-512 --out my-runs
    python -m benchmarks.first_operator my-runs/listops-long/listops-512/*/*/0 --out my.csv

A trained model answers 1,000 fresh expressions three times: as they are; with all symbols behind
the first one taken from another expression; and with another first operator.  The CSV has, for each
run, the accuracy on the first, and in per cent how often the other answers are the same.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.memory_map import write_rows
from benchmarks.words import word
from minifpt.experiments import reproduce
from minifpt.experiments.runs import read_run, read_settings
from minifpt.freeze import FreezeMask
from minifpt.tasks.listops import OPERATORS, PAD

COLUMNS = ["trunk", "learning rate", "seed", "accuracy", "same answer with other symbols behind",
           "with another first operator", "of another expression"]
ARMS = {(arm.model, str(FreezeMask.parse(arm.freeze))): word(arm.full_label())
        for arm in reproduce.TABLES["listops-long"].arms if not arm.adapt}


def answers(model, x):
    """The model's digit for each expression."""
    return np.concatenate([model.predict(part)[:, -1].argmax(-1)
                           for part in np.array_split(x, -(-len(x) // 16))])


def one(folder, examples):
    """The row of a run."""
    task, run = read_run(folder)
    x, y = task.batch(np.random.default_rng(7), examples, "test")
    x, y = (a[(x != PAD).all(axis=1)] for a in (x, y))    # so that each begins at the same place
    rest, operator = np.roll(x, 1, axis=0), x.copy()
    rest[:, 0] = x[:, 0]
    operator[:, 0] = 10 + (x[:, 0] - 10 + 1) % len(OPERATORS)
    given = answers(run.model, x)
    return [(given == y[:, 0]).mean(), *((given == other).mean() for other in (
        answers(run.model, rest), answers(run.model, operator), np.roll(given, 1)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True, help="a CSV to write")
    args = parser.parse_args()
    rows = []
    for folder in args.runs:
        settings = read_settings(folder)
        values = [f"{100 * value:.1f}" for value in one(folder, args.examples)]
        arm = ARMS[settings["model"], settings["freeze"]]
        rows.append(dict(zip(COLUMNS, [arm, settings["lr"], settings["seed"], *values],
                             strict=True)))
        print(*rows[-1].values(), flush=True)
        write_rows(args.out, rows, COLUMNS)


if __name__ == "__main__":
    main()
