"""What all studies share: their folders, their rows, and training up to a test accuracy."""

import csv
from pathlib import Path

import numpy as np

from minifpt import optim, training
from minifpt.files import csv_text, save_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGES = ROOT / "studies" / "results", ROOT / "docs" / "results"
NEVER = 10 ** 9                                           # the steps of a run that did not end


def read_rows(path):
    """Return the rows of a CSV file, dictionaries of texts; none where it does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path, rows, columns):
    """Write a CSV file: the rows, dictionaries, under their columns."""
    save_text(path, csv_text(rows, columns))


def fill(path, settings, run, key):
    """Write a row into a CSV file, as its run ends, for each of the settings whose ``key`` no row
    of the file has."""
    for setting in settings:
        rows = read_rows(path)                            # another process may write there, too
        if key(setting) not in map(key, rows):
            rows.append(run(setting))
            write_rows(path, rows, list(rows[-1]))
            print(path.stem, *[value for value in rows[-1].values() if len(str(value)) < 40],
                  flush=True)


def curve_of(row):
    """Return the tests of a run, {step: accuracy}, from its column *curve*."""
    return {int(step): float(accuracy) for step, accuracy in
            (point.split(":") for point in row["curve"].split())}


def first_step(goal, row):
    """Return the step of a run's first test at an accuracy, or ``NEVER``."""
    return next((step for step, accuracy in curve_of(row).items() if accuracy >= goal), NEVER)


def number(steps, most):
    """Return a number of steps as text.  ``NEVER`` is more than ``most``, and ``NEVER`` plus some
    steps is more than those."""
    if steps < NEVER / 2:
        return f"{steps:,.0f}"
    return f"> {steps - NEVER if steps > NEVER else most:,.0f}"


def spread(steps, most):
    """Return the median of some steps, and the least and the largest in brackets."""
    median, least, largest = (number(f(steps), most) for f in (np.median, min, max))
    return median + f" ({least}…{largest})" * (least != largest)


def train_until(goal, model, task, optimizer, seed, *, rate, steps, batch_size=16, warmup=0,
                every=25, examples=128):
    """Train a model at a constant rate after a warm-up; yield the step and the test accuracy every
    few steps, until the accuracy reaches the goal."""
    rng = np.random.default_rng([seed, 0])
    test = task.batch(np.random.default_rng([seed, 1]), examples, "test")
    for step in range(1, steps + 1):
        optimizer.lr = rate * min(1, step / max(1, warmup))
        x, y = task.batch(rng, batch_size, "train")
        training.step(model, task, optimizer, x, y, 1.0, rng)
        if step % every == 0:
            accuracy = training.evaluate(model, task, *test)[1]
            yield step, accuracy
            if accuracy >= goal:
                return


def trained(model):
    """Return the parameters that are trained."""
    return [p for p in model.parameters() if p.trainable]


def train_to(model, task, lr, seed, most, goal):
    """Train a model until its test accuracy reaches a goal, at most ``most`` steps.

    Returns the curve, texts ``STEP:ACCURACY``, the step at which it got there or "", and the last
    step; of a run that diverged, the step of its last test."""
    curve, step, accuracy = [], 0, 0.0
    try:
        for step, accuracy in train_until(goal, model, task, optim.Adam(trained(model), lr), seed,
                                          rate=lr, steps=most):
            curve.append(f"{step}:{accuracy:.4f}")
    except training.Diverged:
        return curve, "", step
    return (curve, step, step) if accuracy >= goal else (curve, "", most)
