"""Tasks of the studies in this folder, which the package does not have.

    minifpt train benchmarks/tasks.py:BitRecall --items 16

- symbols with a rule: ``Recall``, ``Modular``, ``Addition``.  Random transformers learn such tasks
  even if only their embeddings are trained (Zhong and Andreas 2024, arXiv 2410.04368);
- recall of bits: ``BitRecall``;
- formal languages, strings that follow a rule, as text for a language model: ``Brackets``,
  ``Copy``.  A language model that is pretrained on such strings needs less text afterwards, most of
  all with brackets that may cross (Hu et al. 2025, arXiv 2502.19249).  It is also better at
  algorithmic tasks, to which attention often transfers best (Shinnick et al. 2025, arXiv
  2505.22308);
- text without language: ``Trigrams``;
- another task with a few training examples: ``Few``.
"""

import inspect

import numpy as np

from minifpt.checks import generator, one_of, whole
from minifpt.files import weights
from minifpt.files.runs import crc
from minifpt.tasks import (
    CIFAR10,
    MNIST,
    BitMemory,
    BitXOR,
    Choices,
    CIFAR10Gray,
    Digits,
    Homology,
    ListOps,
    Text,
    Typos,
)
from minifpt.tasks.base import COSINE
from minifpt.tasks.text import read_book

SOURCES = "uniform", "zipf", "markov", "text"
SMALL, CAPITAL, STOP = ord("a"), ord("A"), ord(".")
OF = {task.name: task for task in (BitMemory, BitXOR, CIFAR10, CIFAR10Gray, Digits, Homology,
                                   ListOps, MNIST, Typos)}


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


class BitRecall(Choices):
    """Associative recall of bits: which item followed the query?

    ``items`` random strings of ``bits`` bits come in, a token each, and then the query, which is
    one of them but not the last.  The answer, at the last token, is the item that followed it; if
    the query appears several times, the last time counts.

    x (B, items + 1, bits), -1 or 1; y (B, 1, bits), 0 or 1.  Accuracy is a mean over bits.
    """

    name = "bit-recall"
    label = "bit recall"
    chance = 0.5
    splits = "train", "validation", "test"                # the same: every draw is fresh
    output_tokens, classes = 1, 2
    defaults = COSINE | {"steps": 4000}

    def __init__(self, items=30, bits=8):
        self.items = whole(self.name, "items", items, 2)
        self.bits = self.input_dim = whole(self.name, "bits", bits)
        self.output_dim, self.tokens = 2 * self.bits, self.items + 1
        self.options = {"items": self.items, "bits": self.bits}

    def draw(self, rng, size, split):
        items, row = rng.integers(0, 2, (size, self.items, self.bits)), np.arange(size)
        query = items[row, rng.integers(0, self.items - 1, size)]
        x = (2 * np.concatenate([items, query[:, None]], axis=1) - 1).astype(np.float32)
        return x, items[row, place_after(x)][:, None]

    def tokens_as_text(self, x):
        return ["".join("01"[int(bit > 0)] for bit in item) for item in x]

    def needed(self, x):
        """Return the mask: the last token needs the item that followed the query."""
        return needed_after(x)


def place_after(x):
    """Return the place after the query's last one, (B,): x (B, items + 1, numbers), the items and
    then the query, which is one of them but not the last."""
    same = (x[:, -3::-1] == x[:, -1:]).all(axis=2)        # from the last item but one backwards
    return x.shape[1] - 2 - same.argmax(axis=1)


def needed_after(x):
    """Return the mask (B, T, T) in which the last token needs the item that :func:`place_after`
    names; x as there."""
    mask = np.zeros((len(x), x.shape[1], x.shape[1]), bool)
    mask[np.arange(len(x)), -1, place_after(x)] = True
    return mask


class Formal(Choices):
    """The base class: predict the next symbol.  x (B, tokens) and y (B, tokens) int64 are bytes of
    letters, y one symbol further on.  Every string is fresh.

    A subclass has ``strings(rng, size)`` and ``determined(y)``, which is True where the rule
    leaves no choice.
    """

    input_dim, output_dim, classes, ids = 256, 256, 256, True

    def draw(self, rng, size, split):
        strings = self.strings(rng, size)                         # (B, tokens + 1)
        return strings[:, :-1], strings[:, 1:]

    def test_set(self):
        """Return ``(x, y)`` of 256 strings, always the same."""
        return self.draw(np.random.default_rng(0xF0), 256, "test")

    def accuracy(self, logits, y):
        """Return the share of right choices among the symbols that the rule determines."""
        right = self.right(logits, y)
        return float(right[self.determined(y)].mean())


class Brackets(Formal):
    """Nested brackets of several ``kinds``: a small letter opens one, its capital closes it, as
    in ``abBcCA``.

    At each symbol a fair coin decides whether a bracket of any kind opens, or the innermost open
    one closes.  If none is open a bracket opens, and if ``depth`` are open one closes.  A string
    begins with no open bracket and is cut after tokens + 1 symbols.  This is the k-Dyck language.

    The accuracy counts closing brackets only.  A model that remembers the open brackets gets all
    of them; chance is 1 / kinds.
    """

    name = "brackets"

    def __init__(self, kinds=16, depth=16, tokens=256):
        self.kinds = whole(self.name, "kinds", kinds, 1, 26)          # a letter each
        self.depth = whole(self.name, "depth", depth)
        # Among more than ``depth`` symbols at least one bracket closes.
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens, self.depth)
        self.options = {"kinds": self.kinds, "depth": self.depth, "tokens": self.tokens}

    def strings(self, rng, size):
        """Draw strings: bytes int64 (B, tokens + 1)."""
        T = self.tokens + 1
        coins, kinds = rng.random((T, size)) < 0.5, rng.integers(0, self.kinds, (T, size))
        strings, row = np.empty((size, T), np.int64), np.arange(size)
        stack, n = np.empty((size, self.depth + 1), np.int64), np.zeros(size, np.int64)
        for t in range(T):
            opens = (n == 0) | (coins[t] & (n < self.depth))
            stack[row, n] = kinds[t]                      # used only if a bracket opens
            strings[:, t] = np.where(opens, SMALL + kinds[t], CAPITAL + stack[row, n - 1])
            n += np.where(opens, 1, -1)
        return strings

    def determined(self, y):
        """Return True where a bracket closes."""
        return y < SMALL


class Copy(Formal):
    """A string of ``least`` to ``most`` random letters and a full stop, repeated until there are
    tokens + 1 symbols, as in ``qxb.qxb.qxb.q``.

    The accuracy counts the symbols after the first full stop.  A model that copies gets all of
    them; chance is 1 / letters.
    """

    name = "copy"

    def __init__(self, least=8, most=100, letters=26, tokens=256):
        self.least, self.most = whole(self.name, "least", least), whole(self.name, "most", most)
        self.letters = whole(self.name, "letters", letters)
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens)
        if not (self.least <= self.most <= self.tokens - 1 and self.letters <= 26):
            raise ValueError(f"{self.name}: least {least}, most {most}, letters {letters}, tokens "
                             f"{tokens}, expected least <= most < tokens and letters <= 26")
        self.options = {"least": self.least, "most": self.most, "letters": self.letters,
                        "tokens": self.tokens}

    def strings(self, rng, size):
        """Draw strings: bytes int64 (B, tokens + 1)."""
        letters = SMALL + rng.integers(0, self.letters, (size, self.most + 1))
        n = rng.integers(self.least, self.most + 1, (size, 1))
        np.put_along_axis(letters, n, STOP, axis=1)
        return np.take_along_axis(letters, np.arange(self.tokens + 1) % (n + 1), axis=1)

    def determined(self, y):
        """Return True after the first full stop."""
        stop = y == STOP
        return (np.cumsum(stop, axis=1) - stop) > 0


class Trigrams(Text):
    """Predict the next byte of text drawn from another text's trigram counts: it has the letters,
    pairs and triples of that text, but not its language.

    x and y as in :class:`Text`.  Each byte follows the two bytes before it as often as in
    ``files``.  A passage begins with two neighbours of the text.  Every passage is fresh.
    """

    name = "trigrams"

    def __init__(self, files, tokens=256, held_out=0.05):
        super().__init__(files, tokens, held_out)
        text = self.bytes["train"].astype(np.int64)
        pairs = 256 * text + np.roll(text, -1)            # the end is followed by the beginning
        self.order = np.argsort(pairs, kind="stable")     # places in the text, sorted by pair
        self.starts = np.searchsorted(pairs[self.order], np.arange(256 ** 2 + 1))

    def draw(self, rng, size, split):
        text, n = self.bytes["train"], len(self.order)
        place, passage = rng.integers(0, n, size), np.empty((size, self.tokens + 1), np.int64)
        passage[:, 0] = text[place]
        for t in range(1, self.tokens + 1):
            passage[:, t] = text[(place + 1) % n]
            pair = 256 * passage[:, t - 1] + passage[:, t]
            # Continue from a random place of this pair in the text.
            first, last = self.starts[pair], self.starts[pair + 1]
            place = (self.order[first + (rng.random(size) * (last - first)).astype(int)] + 1) % n
        return passage[:, :-1], passage[:, 1:]

    def test_set(self):
        """Return ``(x, y)`` of 256 passages, always the same."""
        return self.draw(np.random.default_rng(0x3F), 256, "test")


class Few:
    """The task ``of``, trained on only ``labels`` of its training examples.

    These are drawn like a batch, so that a stored example may be drawn twice.  The choice depends
    only on ``draw``, for which ``minifpt compare`` and ``minifpt reproduce`` take the seed of
    each run.  Nothing is augmented.  The tests are those of the other task.
    """

    name = "few"
    splits = "train", "validation", "test"
    redrawn = "draw"                                      # the option that a grid sets to the seed

    def __init__(self, of="digits", labels=200, draw=0, data=None):
        one_of("few", "of", of, OF)
        takes = inspect.signature(OF[of]).parameters
        if data is not None and "data" not in takes:
            raise ValueError(f"few: {of} has no option data")
        self.task = OF[of](**{option: value for option, value in (("data", data), (
            "augment", False)) if option in takes})
        self.labels = whole("few", "labels", labels)
        self.which = whole("few", "draw", draw, 0, np.inf)
        self.name = f"few-{of}"
        self.options = {"of": of, "labels": self.labels, "draw": self.which, "data": data}
        self.training_set = None

    def __getattr__(self, name):
        if name == "task":                                # during __init__
            raise AttributeError(name)
        return getattr(self.task, name)

    def examples(self):
        """Return ``(x, y)`` of the training examples."""
        if self.training_set is None:
            rng = np.random.default_rng([self.which, 0xFE3])
            self.training_set = self.task.batch(rng, self.labels, "train")
        return self.training_set

    def batch(self, rng, size, split="train"):
        """Draw a batch as the other task does, but for "train" from the few examples."""
        if split != "train":
            return self.task.batch(rng, size, split)
        x, y = self.examples()
        chosen = generator("few", rng).integers(0, self.labels, whole("few", "size", size))
        return x[chosen], y[chosen]

    def fingerprint(self):
        """Return a CRC-32 of the training and some test examples, and of the other task's own."""
        other = self.task.fingerprint() if hasattr(self.task, "fingerprint") else ""
        return crc([*self.examples(), *self.task.batch(np.random.default_rng(0), 16, "test"),
                    np.frombuffer(other.encode(), np.uint8)])
