"""Measure the accuracy of methods without a transformer on the tasks of the tables.

    python -m studies.simple [--seeds 5] [--only TASK ...] [--out FILE]

Each method learns from as many examples as a trunk in ``minifpt reproduce``, steps times batch.
Softmax regression learns from the same examples in the same order, with the same optimiser and
schedule, and chooses its learning rate like a trunk.  The letter tables count the whole training
text.  Where labels are few, each seed draws its own.  This command writes
``studies/results/simple.csv``, from which the tables of docs/results take rows.
"""

import argparse
import itertools
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import numpy as np

from minifpt import layers, tasks
from minifpt.experiments import compare, reproduce, tables
from minifpt.files import write_beside
from minifpt.files.runs import COLUMNS, History
from minifpt.tasks.listops import OPERATORS, PAD
from minifpt.training import train
from studies import tables as studies

HIDDEN = 256
RATES = 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1


def inputs(x, symbols):
    """Return all numbers of each example in a row, float32; ids become one-hot vectors."""
    x = x if x.dtype == np.float32 else np.eye(symbols, dtype=np.float32)[x]
    return x.reshape(len(x), -1)


class SoftmaxRegression(layers.Layer):
    """A linear layer from the whole example to the scores of all choices, with weights of 0."""

    def __init__(self, task, seed=0):
        self.task = task
        self.shape = -1, task.output_tokens, task.output_dim
        self.output = layers.Linear(task.tokens * task.input_dim,
                                    task.output_tokens * task.output_dim, group="output")

    def forward(self, x, train=False, rng=None):
        """Return scores (B, output_tokens, output_dim) and the cache."""
        y, cache = self.output.forward(inputs(x, self.task.input_dim))
        return y.reshape(self.shape), cache

    def backward(self, dy, cache):
        """Add to the gradients of the weights."""
        self.output.backward(dy.reshape(len(dy), -1), cache)


class TwoLayers(SoftmaxRegression):
    """A linear layer from the whole example to ``HIDDEN`` numbers, ReLU, and a linear layer to the
    scores: no convolution, no attention."""

    def __init__(self, task, seed=0):
        super().__init__(task)
        self.hidden = layers.Linear(task.tokens * task.input_dim, HIDDEN, group="input")
        self.act = layers.Activation("relu")
        self.output = layers.Linear(HIDDEN, task.output_tokens * task.output_dim, group="output")
        rng = np.random.default_rng(seed)
        for layer in (self.hidden, self.output):          # He and others 2015, arXiv 1502.01852
            w = layer.weight.data
            w[...] = rng.standard_normal(w.shape) * np.sqrt(2 / len(w))

    def forward(self, x, train=False, rng=None):
        """Return scores (B, output_tokens, output_dim) and the cache."""
        x, hidden = self.hidden.forward(inputs(x, self.task.input_dim))
        x, act = self.act.forward(x)
        y, output = self.output.forward(x)
        return y.reshape(self.shape), (hidden, act, output)

    def backward(self, dy, cache):
        """Add to the gradients of the weights."""
        hidden, act, output = cache
        dy = self.output.backward(dy.reshape(len(dy), -1), output)
        self.hidden.backward(self.act.backward(dy, act), hidden)


def trained(make, column, seeds):
    """Train ``make(task, seed)`` like a trunk; return ``(histories, sweep, learning rate)``."""
    def run(task, seed, rate):
        settings = tasks.defaults_of(task) | column.settings | {"lr": rate}
        settings.pop("dropout")
        return train(make(task, seed), task, seed=seed, progress=False, **settings)

    def made(seed):
        return tasks.get(column.task, **compare.options_of_seed(
            column.task, column.options, seed))
    choosers = range(tables.FIRST_VALIDATION_SEED, tables.FIRST_VALIDATION_SEED + 2)
    sweep = {rate: [run(compare.Validation(made(seed)), seed, rate) for seed in choosers]
             for rate in RATES}
    rate = max(sweep, key=lambda rate: compare.score(sweep[rate]))
    return [run(made(seed), seed, rate) for seed in seeds], sweep, rate


def witten_bell(text, x, order):
    """Return the probability of each byte after each byte of passages x (B, T), (B, T, 256).

    The contexts are the last ``order`` bytes and all shorter ones, as far as the passage goes
    back.  A context c that was seen n times with t different bytes after it gives a byte b that
    followed k times (k + t p) / (n + t), where p is what the next shorter context gives b.
    """
    text = text.astype(np.int64)
    probability = np.full((*x.shape, 256), 1 / 256)
    for k in range(order + 1):
        if k > x.shape[1]:
            break
        weights = 256 ** np.arange(k)[::-1]
        def contexts(sequences, k=k, weights=weights):
            windows = np.lib.stride_tricks.sliding_window_view(sequences, max(k, 1), axis=-1)
            return windows @ weights if k else 0 * sequences
        keys, where = np.unique(contexts(text[:-1]), return_inverse=True)
        pairs, counts = np.unique(256 * where + text[max(k, 1):], return_counts=True)
        queries = contexts(x)                             # (B, T - k + 1), the last T - k + 1
        place = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
        known = keys[place] == queries
        table = np.zeros((len(keys), 256), np.float32)
        table.ravel()[pairs] = counts
        rows = table[place] * known[..., None]
        total, kinds = rows.sum(axis=-1, keepdims=True), (rows > 0).sum(axis=-1, keepdims=True)
        longer = probability[:, -queries.shape[1]:]
        longer[...] = np.where(total > 0, (rows + kinds * longer) / np.maximum(total + kinds, 1),
                               longer)
    return probability


def contexts_of(order):
    """Return a method: the likeliest next byte after contexts of up to ``order`` bytes."""
    def method(task, learned, validation, test):
        def accuracy(x, y):
            return (witten_bell(task.bytes["train"], x, order).argmax(axis=-1) == y).mean()
        return accuracy(*learned) if len(learned[0]) < 500 else np.nan, accuracy(*test)
    return method


def letter_pairs(text):
    """Return Witten and Bell's estimates of the probability of each byte, (256,), and of each byte
    after each other one, (256, 256)."""
    alone = witten_bell(text, np.zeros((1, 1), np.int64), 0)[0, 0]
    return alone, witten_bell(text, np.arange(256)[:, None], 1)[:, 0]


def replaced(score):
    """Return a method: a byte is a typo where ``score`` exceeds the best validation threshold."""
    def method(task, learned, validation, test):
        alone, after = letter_pairs(task.text.bytes["train"])

        def accuracy(scores, y, threshold):
            choice = scores > threshold
            return task.accuracy(np.stack([~choice, choice], axis=-1).astype(float), y)
        scores = score(validation[0], alone, after, task.share)
        best = max(np.quantile(scores, np.linspace(0.1, 0.9, 161)),
                   key=lambda threshold: accuracy(scores, validation[1], threshold))
        return np.nan, accuracy(score(test[0], alone, after, task.share), test[1], best)
    return method


def surprise(x, alone, after, share):
    """Return -log P(byte | the byte before it)."""
    return -np.log(np.c_[alone[x[:, 0]], after[x[:, :-1], x[:, 1:]]])


def forward_filter(x, alone, after, share):
    """Return log P(replaced | all bytes so far) / P(not replaced | all bytes so far).

    The writer's bytes follow the table of pairs; each is shown with probability 1 - share, else a
    byte drawn from the text.  ``belief`` is the probability of each writer's byte, given what was
    shown before it.
    """
    scores, belief = np.empty(x.shape), np.tile(alone, (len(x), 1))
    row = np.arange(len(x))
    for t, shown in enumerate(x.T):
        noise, writer = share * alone[shown], (1 - share) * belief[row, shown]
        scores[:, t] = np.log(noise / writer)
        belief *= noise[:, None]
        belief[row, shown] += writer
        belief = belief / belief.sum(axis=1, keepdims=True) @ after
    return scores


def commonest(key):
    """Return a method: the commonest answer among the learned expressions with the same key, a
    function of their symbols."""
    def method(task, learned, validation, test):
        def pairs(x, y):
            return [(key(row[row != PAD].tolist()), answer)
                    for row, answer in zip(x, y[:, 0], strict=True)]
        counts = defaultdict(lambda: np.zeros(task.classes))
        for k, answer in pairs(*learned):
            counts[k][answer] += 1
        return [np.mean([counts[k].argmax() == answer for k, answer in pairs(*part)])
                for part in (learned, test)]
    return method


def beginning(symbols):
    """The first operator, and its value on the digits that follow it."""
    digits = [*itertools.takewhile(lambda symbol: symbol < 10, symbols[1:])]
    return symbols[0], [*OPERATORS.values()][symbols[0] - 10](digits) if digits else None


def flattened(task, learned, validation, test):
    """Apply the outermost operator to all digits, without learning."""
    rules, right = [*OPERATORS.values()], []
    for row, answer in zip(*test, strict=True):
        symbols = row[row != PAD]
        right.append(rules[symbols[0] - 10](symbols[symbols < 10]) == answer[0])
    return np.nan, np.mean(right)


FEW = [compare.Column(studies.FEW_LABELS, {"of": name, "labels": n}, {"steps": 300},
                      f"few-{name}-{n}")
       for name, n in (("mnist", 10), ("mnist", 100), ("mnist", 1000), ("digits", 100),
                       ("digits", 1000))]
LONG, CIFAR_LONG, LISTOPS_LONG = (studies.STUDIES[f"{name}-long"].columns[0]
                                  for name in ("mnist", "cifar10", "listops"))
LISTOPS_PAPER = studies.STUDIES["listops-long"].columns[1]
OF_OPERATOR = "commonest answer to the first operator"
OF_BEGINNING = "commonest answer to the first operator and the digits behind it"
SOFTMAX = "softmax regression"
TWO_LAYERS = "two layers, 256 hidden"
FILTER, CONTEXTS = "letter pairs, forward filter", "contexts of up to 5 bytes"
PICTURES = reproduce.MNIST, studies.FEW, reproduce.CIFAR, *FEW
METHODS = (
    *((column, SOFTMAX, SoftmaxRegression) for column in (
        reproduce.XOR, reproduce.MEMORY, reproduce.LISTOPS, *PICTURES)),
    (LONG, SOFTMAX, SoftmaxRegression),
    (LONG, TWO_LAYERS, TwoLayers),
    (CIFAR_LONG, SOFTMAX, SoftmaxRegression), (CIFAR_LONG, TWO_LAYERS, TwoLayers),
    (LISTOPS_LONG, SOFTMAX, SoftmaxRegression), (LISTOPS_LONG, TWO_LAYERS, TwoLayers),
    (reproduce.LISTOPS, OF_OPERATOR, commonest(itemgetter(0))),
    (reproduce.LISTOPS, "the first operator on all digits", flattened),
    (LISTOPS_PAPER, SOFTMAX, SoftmaxRegression),
    (LISTOPS_PAPER, "commonest answer", commonest(lambda symbols: None)),
    (LISTOPS_PAPER, OF_OPERATOR, commonest(itemgetter(0))),
    (LISTOPS_PAPER, OF_BEGINNING, commonest(beginning)),
    (studies.NEXT_BYTE, "one byte before", contexts_of(1)),
    (studies.NEXT_BYTE, "two bytes before", contexts_of(2)),
    (studies.NEXT_BYTE, CONTEXTS, contexts_of(5)),
    (studies.TYPOS, "letter pairs, surprise", replaced(surprise)),
    (studies.TYPOS, FILTER, replaced(forward_filter)))


def measure(column, method, seeds):
    """Return ``(histories, sweep, learning rate)`` of a method, with a history for each seed."""
    if method in (SoftmaxRegression, TwoLayers):
        return trained(method, column, seeds)
    histories = []
    for seed in seeds:
        task = tasks.get(column.task, **compare.options_of_seed(
            column.task, column.options, seed))
        settings = tasks.defaults_of(task) | column.settings
        n = settings["steps"] * settings["batch_size"]
        rng = np.random.default_rng(seed)
        learned = task.batch(rng, n)
        validation = compare.Validation(task).test_set()
        test = task.test_set() or task.batch(rng, 2000, "test")
        train_accuracy, test_accuracy = method(task, learned, validation, test)
        histories.append(History([dict.fromkeys(COLUMNS, np.nan) | {
            "step": column.settings["steps"], "train_accuracy": train_accuracy,
            "test_accuracy": test_accuracy}]))
    return histories, {}, 0


def main():
    """Measure, print a line for each, and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="TASK", help="default: all")
    parser.add_argument("--out", type=Path, help="a CSV to write")
    args = parser.parse_args()
    grid = tables.Grid({}, {}, {}, [*range(args.seeds)])
    for column, name, method in METHODS:
        title = column.title or tasks.get(column.task, **column.options).name
        if args.only and title not in args.only:
            continue
        histories, sweep, rate = measure(column, method, grid.seeds)
        grid.results.setdefault(title, {})[name] = histories
        grid.rates.setdefault(title, {})[name] = rate
        if sweep:
            grid.sweeps.setdefault(title, {})[name] = sweep
        print(f"{title}, {name}: {tables.final(grid, title, name)}", flush=True)
        if args.out:
            text = tables.rows(grid)
            write_beside(args.out, lambda f, text=text: f.write(text), "w")


if __name__ == "__main__":
    main()
