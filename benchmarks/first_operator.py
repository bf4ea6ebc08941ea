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
from minifpt import tasks
from minifpt.experiments import reproduce
from minifpt.experiments.runs import read_run
from minifpt.freeze import FreezeMask
from minifpt.gpt2 import GPT2
from minifpt.reports.attention import maps
from minifpt.tasks.listops import OPERATORS, PAD

COLUMNS = ["trunk", "learning rate", "seed", "accuracy (%)",
           "answer kept, other symbols exchanged (%)", "first operator exchanged (%)",
           "same answer to another expression (%)",
           "most attention to the first symbol (%)"]
ARMS = {(arm.model, str(FreezeMask.parse(arm.freeze))): word(arm.full_label())
        for arm in reproduce.TABLES["listops-long"].arms if not arm.adapt}


def answers_of(model):
    """A function that gives the model's digit for each expression."""
    def answers(x):
        return np.concatenate([model.predict(part)[:, -1].argmax(-1)
                               for part in np.array_split(x, -(-len(x) // 16))])
    return answers


def rule(task):
    """The same without a model: the commonest answer to the first operator, from 5,000 draws."""
    x, y = task.batch(np.random.default_rng(6), 5000, "train")
    best = {first: np.bincount(y[x[:, 0] == first, 0]).argmax() for first in np.unique(x[:, 0])}
    return lambda x: np.array([best[first] for first in x[:, 0]])


def measure(answers, x, y):
    """The first four numbers of a row."""
    rest, operator = np.roll(x, 1, axis=0), x.copy()
    rest[:, 0] = x[:, 0]
    operator[:, 0] = 10 + (x[:, 0] - 10 + 1) % len(OPERATORS)
    digits = answers(x)
    return [(digits == y[:, 0]).mean(), *((digits == other).mean() for other in (
        answers(rest), answers(operator), np.roll(digits, 1)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True, help="a CSV to write")
    args = parser.parse_args()
    task = tasks.get("listops", **reproduce.AS_THE_PAPER)
    x, y = task.batch(np.random.default_rng(7), args.examples, "test")
    x, y = (a[(x != PAD).all(axis=1)] for a in (x, y))    # so that each begins at the same place
    rows = [["the first operator's commonest answer", "", "", *measure(rule(task), x, y)]]
    for folder in args.runs:
        _, run = read_run(folder)
        settings, model = run.settings, run.model
        rows.append([ARMS[settings["model"], settings["freeze"]], settings["lr"], settings["seed"],
                     *measure(answers_of(model), x, y)])
        if isinstance(model.trunk, GPT2):                 # an LSTM has no attention
            rows[-1].append(maps(model, x[:32]).mean[:, :, -1, 0].max())
        print(*rows[-1], flush=True)
    write_rows(args.out, [dict(itertools.zip_longest(COLUMNS, [
        *row[:3], *(f"{100 * share:.1f}" for share in row[3:])], fillvalue="")) for row in rows],
        COLUMNS)


if __name__ == "__main__":
    main()
