"""Tasks on symbols with a rule: recall, modular sums, sums of decimal numbers.

Random transformers learn such tasks even if only their embeddings are trained (Zhong and Andreas
2024, arXiv 2410.04368).
"""

import numpy as np

from ..checks import one_of, whole
from ..files import weights
from .base import COSINE, Choices
from .bits import needed_after, place_after
from .text import read_book

SOURCES = "uniform", "zipf", "markov", "text"


class Recall(Choices):
    """Associative recall: which symbol followed the query the last time?

    A passage of symbols comes in, and then the query, which is the symbol at a random place of
    the passage.  The answer, at the last token, is the symbol that followed it there; if the
    query appears several times, the last time counts.

    x (B, tokens) int64 in 0 ... symbols-1; y (B, 1).

    symbols  the size of the alphabet.
    tokens   the length of a passage with its query.
    source   the distribution of the symbols.  ``uniform``: all equally likely.  ``zipf``:
             independent, with the frequencies of bytes in the shipped text of novels.
             ``markov``: each symbol depends on the one before, as in that text.  ``text``:
             passages of the text.  The text's most frequent bytes have a symbol each; all other
             bytes share the last symbol.
    """

    name = "recall"
    label = "recall"
    chance = 1 / 8
    ids, output_tokens = True, 1
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 4000, "lr": 3e-2}

    def __init__(self, symbols=8, tokens=16, source="uniform"):
        self.symbols = self.input_dim = self.output_dim = self.classes = whole(
            self.name, "symbols", symbols, 2, 64)
        self.chance = 1 / self.symbols
        self.tokens = whole(self.name, "tokens", tokens, 3)
        self.source = one_of(self.name, "source", source, SOURCES)
        self.options = {"symbols": self.symbols, "tokens": self.tokens, "source": source}
        if source == "uniform":
            return
        text = np.frombuffer(read_book(weights.shipped("held-out.txt")), np.uint8)
        rank = np.bincount(text, minlength=256).argsort(kind="stable")[::-1].argsort()
        text = np.minimum(rank, self.symbols - 1)[text]
        # The last tenths of the text are validation and test.
        self.text = dict(zip(self.splits, np.split(text, [len(text) * n // 10 for n in (8, 9)]),
                             strict=True))
        if source == "text":                              # the longest passage of the text
            whole(self.name, "tokens", tokens, 3, min(map(len, self.text.values())))
        after = np.zeros((self.symbols, self.symbols))
        np.add.at(after, (text[:-1], text[1:]), 1)
        self.frequencies = np.bincount(text, minlength=self.symbols) / len(text)
        self.after = np.cumsum(after / after.sum(axis=1, keepdims=True), axis=1)
        _, y = self.draw(np.random.default_rng(0), 20_000, "train")
        self.chance = float(np.bincount(y[:, 0]).max() / len(y))       # of the commonest answer

    def passages(self, rng, size, split):
        """Draw passages: symbols (B, tokens - 1)."""
        shape = size, self.tokens - 1
        if self.source == "uniform":
            return rng.integers(0, self.symbols, shape)
        if self.source == "zipf":
            return rng.choice(self.symbols, shape, p=self.frequencies)
        if self.source == "text":
            start = rng.integers(0, len(self.text[split]) - shape[1], size)
            return self.text[split][start[:, None] + np.arange(shape[1])]
        x = np.empty(shape, np.int64)
        x[:, 0] = rng.choice(self.symbols, size, p=self.frequencies)
        for t, u in enumerate(rng.random((shape[1] - 1, size, 1))):
            x[:, t + 1] = np.minimum((u > self.after[x[:, t]]).sum(axis=1), self.symbols - 1)
        return x

    def draw(self, rng, size, split):
        x = self.passages(rng, size, split)
        row, place = np.arange(size), rng.integers(0, self.tokens - 2, size)
        x = np.c_[x, x[row, place]].astype(np.int64)
        return x, x[row, place_after(x[..., None])][:, None]

    def needed(self, x):
        """Return the mask: the last token needs the symbol that followed the query."""
        return needed_after(x[..., None])


class Modular(Choices):
    """The sum of two numbers modulo ``p``.  One of twenty pairs is held out for validation and one
    for the test, each with its mirror (b, a), so that right answers there cannot be memorised.

    x (B, 2) int64 in 0 ... p-1; y (B, 1), read at the second number.  With a small ``p`` a model
    only memorises the training pairs.
    """

    name = "modular"
    label = "modular sums"
    chance = 1 / 113
    ids, tokens, output_tokens = True, 2, 1
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 4000, "batch_size": 128}

    def __init__(self, p=113):
        self.p = self.input_dim = self.output_dim = self.classes = whole(self.name, "p", p, 5)
        self.chance = 1 / self.p
        self.options = {"p": self.p}
        a, b = np.triu_indices(self.p)
        order, n = np.random.default_rng(0x40D).permutation(len(a)), max(1, len(a) // 20)
        parts = np.split(order, [n, 2 * n])               # of pairs a <= b
        self.pairs = {split: np.union1d(a[part] * self.p + b[part], b[part] * self.p + a[part])
                      for split, part in zip(("test", "validation", "train"), parts, strict=True)}

    def draw(self, rng, size, split):
        return self.sums(rng.choice(self.pairs[split], size))

    def test_set(self):
        """Return ``(x, y)`` of all test pairs."""
        return self.sums(self.pairs["test"])

    def sums(self, pairs):
        """Return (x, y) of pairs, each a number in 0 ... p^2-1."""
        x = np.stack([pairs // self.p, pairs % self.p], axis=1).astype(np.int64)
        return x, x.sum(axis=1, keepdims=True) % self.p


class Addition(Choices):
    """The sum of two decimal numbers of ``digits`` digits, the last digit first.

    x (B, 2 digits + 1) int64: the first number, the second number, and 10 for an equals sign.
    y (B, digits + 1): each digit of the sum, read at the same digit of the second number, and the
    last carry, read at the equals sign.  So a digit is read after all digits that it depends on.
    """

    name = "addition"
    label = "addition"
    chance = 1.5 / 11                                     # see __init__
    ids, input_dim, output_dim, classes = True, 11, 10, 10
    splits = "train", "validation", "test"                # the same: every draw is fresh
    defaults = COSINE | {"steps": 4000}

    def __init__(self, digits=10):
        self.digits = whole(self.name, "digits", digits)
        self.tokens, self.output_tokens = 2 * self.digits + 1, self.digits + 1
        # A digit of the sum is uniform; the last carry is 0 with probability (1 + 10^-digits) / 2.
        self.chance = (0.1 * self.digits + (1 + 10.0 ** -self.digits) / 2) / (self.digits + 1)
        self.options = {"digits": self.digits}

    def draw(self, rng, size, split):
        numbers = rng.integers(0, 10, (2, size, self.digits))
        y, carry = np.zeros((size, self.digits + 1), np.int64), np.zeros(size, np.int64)
        for i in range(self.digits):
            total = numbers[0, :, i] + numbers[1, :, i] + carry
            y[:, i], carry = total % 10, total // 10
        y[:, -1] = carry
        return np.c_[numbers[0], numbers[1], np.full(size, 10)].astype(np.int64), y

    def tokens_as_text(self, x):
        return ["0123456789="[i] for i in x]
