"""Say how much of a model's answers on the paper's ListOps the first operator decides.

    minifpt reproduce listops-long --tasks listops-512 --out my-runs
    python -m benchmarks.first_operator my-runs/listops-long/listops-512/*/*/0 --out my.csv

A trained model answers 1,000 fresh expressions three times: as they are; with all symbols behind
the first one taken from another expression; and with another first operator.  The CSV has, for each
run and in per cent, the accuracy on the first, how often the other answers are the same, and the
most attention that a head gives, at the last token, to the first one, in the mean over 32
expressions.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

from benchmarks.memory_map import write_rows
from benchmarks.words import word
from minifpt.experiments import reproduce
from minifpt.experiments.runs import read_run, read_settings
from minifpt.freeze import FreezeMask
from minifpt.gpt2 import GPT2
from minifpt.reports.attention import maps
from minifpt.tasks.listops import OPERATORS, PAD

COLUMNS = ["trunk", "learning rate", "seed", "accuracy", "same answer with other symbols behind",
           "with another first operator", "of another expression", "attention to the first symbol"]
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
    shares = [(given == y[:, 0]).mean(), *((given == other).mean() for other in (
        answers(run.model, rest), answers(run.model, operator), np.roll(given, 1)))]
    if isinstance(run.model.trunk, GPT2):                 # an LSTM has no attention
        shares.append(maps(run.model, x[:32]).mean[:, :, -1, 0].max())
    return [f"{100 * share:.1f}" for share in shares]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True, help="a CSV to write")
    args = parser.parse_args()
    rows = []
    for folder in args.runs:
        settings = read_settings(folder)
        arm = ARMS[settings["model"], settings["freeze"]]
        values = [arm, settings["lr"], settings["seed"], *one(folder, args.examples)]
        rows.append(dict(itertools.zip_longest(COLUMNS, values, fillvalue="")))
        print(*rows[-1].values(), flush=True)
        write_rows(args.out, rows, COLUMNS)


if __name__ == "__main__":
    main()
