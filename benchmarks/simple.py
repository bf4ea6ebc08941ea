"""What methods without attention and without gradients reach on the tasks of the tables.

    python -m benchmarks.simple [--seeds 5] [--only TASK ...] [--draws N]

Each learns from as many drawn examples as a trunk in ``minifpt reproduce`` (steps times batch)
unless told otherwise, the tables of bytes from the whole training text.
"""

import argparse

import numpy as np

from minifpt import tasks
from minifpt.lab import reproduce
from minifpt.lab.compare import LABELS, Validation, spread
from minifpt.tasks.listops import OPERATORS, PAD

PENALTIES = np.logspace(-1, 5, 7)


def inputs(x):
    """All numbers of each example and a 1, (B, tokens * input_dim + 1) float64."""
    return np.c_[x.reshape(len(x), -1), np.ones(len(x))].astype(float)


def linear(task, learned, validation, test):
    """Least squares from the input to each class, with the best of seven penalties."""
    def accuracy(weights, x, y):
        scores = (inputs(x) @ weights).reshape(*y.shape, task.classes)
        return (scores.argmax(axis=-1) == y).mean()
    x, y = learned
    A, targets = inputs(x), np.eye(task.classes)[y].reshape(len(y), -1)
    maps = [np.linalg.solve(A.T @ A + penalty * np.eye(A.shape[1]), A.T @ targets)
            for penalty in PENALTIES]
    return accuracy(max(maps, key=lambda weights: accuracy(weights, *validation)), *test)


def bayes(count):
    """Naive Bayes on ``count(task, x)``, how often each thing occurs, (B, things)."""
    def method(task, learned, validation, test):
        (x, y), (x_test, y_test) = learned, test
        counts = count(task, x)
        totals = np.stack([counts[y[:, 0] == k].sum(axis=0) + 1 for k in range(task.classes)])
        logs = np.log(totals / totals.sum(axis=1, keepdims=True))
        return ((count(task, x_test) @ logs.T).argmax(axis=1) == y_test[:, 0]).mean()
    return method


def letters(task, x):
    return np.stack([np.bincount(row, minlength=task.input_dim) for row in x])


def pairs(task, x):
    n = task.input_dim
    return np.stack([np.bincount(row[:-1] * n + row[1:], minlength=n * n) for row in x])


def after_one(text):
    """How often each byte follows each byte, (256, 256)."""
    counts = np.zeros((256, 256))
    np.add.at(counts, (text[:-1], text[1:]), 1)
    return counts


def next_of_one(task, learned, validation, test):
    """The byte that follows the last one most often."""
    x, y = test
    return (after_one(task.bytes["train"]).argmax(axis=1)[x] == y).mean()


def next_of_two(task, learned, validation, test):
    """The byte that follows the last two most often, or the last one where they are new."""
    text, (x, y) = task.bytes["train"].astype(int), test
    counts = np.zeros((256 * 256, 256), np.int32)
    np.add.at(counts, (256 * text[:-2] + text[1:-1], text[2:]), 1)
    two, one = 256 * x[:, :-1] + x[:, 1:], after_one(text).argmax(axis=1)
    known = counts.any(axis=1)[two]
    return (np.where(known, counts.argmax(axis=1)[two], one[x[:, 1:]]) == y[:, 1:]).mean()


def surprise(task, learned, validation, test):
    """A byte is a typo that a table gives too small a probability after the one before."""
    table = after_one(task.text.bytes["train"]) + 0.02
    logs = np.log(table / table.sum(axis=1, keepdims=True))

    def accuracy(threshold, x, y):
        found = logs[np.roll(x, 1, axis=1), x] < threshold
        found[:, 0] = False                               # nothing stands before it
        return task.accuracy(np.stack([~found, found], axis=-1).astype(float), y)
    return accuracy(max(np.linspace(-10, -1, 91), key=lambda t: accuracy(t, *validation)), *test)


def commonest(task, learned, validation, test):
    """The commonest answer to the outermost operator."""
    def outermost(x):
        return x[np.arange(len(x)), (x != PAD).argmax(axis=1)]
    (x, y), (x_test, y_test) = learned, test
    first = outermost(x)
    best = {k: np.bincount(y[first == k, 0]).argmax() for k in np.unique(first)}
    return np.mean([best[k] == answer for k, answer in zip(outermost(x_test), y_test[:, 0],
                                                           strict=True)])


def flattened(task, learned, validation, test):
    """No learning: the outermost operator, applied to all digits."""
    rules, right = [*OPERATORS.values()], []
    for row, answer in zip(*test, strict=True):
        symbols = row[row != PAD]
        right.append(rules[symbols[0] - 10](symbols[symbols < 10]) == answer[0])
    return np.mean(right)


METHODS = (
    (reproduce.XOR, "linear", linear), (reproduce.MEMORY, "linear", linear),
    (reproduce.MNIST, "linear", linear), (reproduce.FEW, "linear", linear),
    (reproduce.CIFAR, "linear", linear),
    (reproduce.FAMILIES, "how often each amino acid", bayes(letters)),
    (reproduce.FAMILIES, "how often each pair of them", bayes(pairs)),
    (reproduce.LISTOPS, "commonest answer to the first operator", commonest),
    (reproduce.LISTOPS, "the first operator on all digits", flattened),
    (reproduce.NEXT_BYTE, "table, one byte before", next_of_one),
    (reproduce.NEXT_BYTE, "table, two bytes before", next_of_two),
    (reproduce.TYPOS, "table, one byte before", surprise))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[c.task for c, _, _ in METHODS])
    parser.add_argument("--draws", type=int, help="examples to learn from")
    args = parser.parse_args()
    print("| task | method | accuracy |\n|---|---|---|")
    for column, name, method in METHODS:
        if column.task not in args.only:
            continue
        task, found = tasks.get(column.task, **column.options), []
        n = args.draws or column.settings["steps"] * tasks.defaults_of(task)["batch_size"]
        for seed in range(args.seeds):
            rng = np.random.default_rng(seed)
            learned, validation = task.batch(rng, n), Validation(task).batch(rng, 2000, "test")
            test = task.test_set() or task.batch(rng, 2000, "test")
            found.append(100 * method(task, learned, validation, test))
        print(f"| {LABELS[task.name]} | {name} | {spread(found)} |", flush=True)


if __name__ == "__main__":
    main()
