"""ListOps: compute the value of a nested expression of lists."""

from pathlib import Path

import numpy as np

from ..checks import crc, whole
from ..files import one_line, read_text
from .base import COSINE, Classification

OPERATORS = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(np.median(x)),
             "[SM": lambda x: sum(x) % 10}
SYMBOLS = [*map(str, range(10)), *OPERATORS, "]"]         # ids are indices of this list
PAD = len(SYMBOLS)
LIST_PROBABILITY = 0.25                                   # that a part is a list, not a digit
MAX_DEPTH = 500                                           # Python's recursion ends at 1,000
TRIES = 100_000                                           # draws until an expression has its length


class ListOps(Classification):
    """The value of an expression such as ``[MAX 4 3 [MIN 2 3 ] 1 0 ]``, a digit, read at the last
    token.

    x (B, tokens) int64: 15 symbols, and a 16th as padding on the left; y (B, 1).  Expressions are
    drawn by the rules of the Long Range Arena (Nangia and Bowman 2018, arXiv 1804.06028; Tay et
    al. 2020, arXiv 2011.04006).  While fewer than ``depth`` lists are open, a part is a list with
    probability 1/4.  A list has 2 to ``arguments`` parts.  MED is the median rounded down, SM the
    sum modulo 10.  Expressions have ``least`` to ``length`` symbols.

    files   a folder with the Arena's ``basic_train.tsv``, ``basic_val.tsv`` and
            ``basic_test.tsv`` instead; expressions of more than ``length`` symbols are left out.
    cut     unless 0: leave out the closing brackets and show only the first ``cut`` of the other
            symbols, as the code of the paper does; x has ``cut`` tokens.
    """

    name = "listops"
    label = "ListOps"
    chance = 0.1
    input_dim, output_dim, output_tokens, classes, ids = PAD + 1, 10, 1, 10, True
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 8000}

    def __init__(self, length=64, depth=4, arguments=5, least=4, files=None, cut=0):
        self.length = whole(self.name, "length", length, 4)
        self.depth = whole(self.name, "depth", depth, 1, MAX_DEPTH)
        self.arguments = whole(self.name, "arguments", arguments, 2)
        self.least = whole(self.name, "least", least, 4, self.length)
        self.files = None if files is None else str(files)
        self.cut = whole(self.name, "cut", cut, 0)
        self.tokens = self.cut or self.length
        self.options = {name: getattr(self, name) for name in (
            "length", "depth", "arguments", "least", "files", *["cut"] * bool(cut))}
        self.read = {}                                    # {split: (ids, answers)}

    def draw(self, rng, size, split):
        if self.files is not None:
            ids, answers = self.stored(split)
            chosen = rng.integers(0, len(ids), size)
            return ids[chosen], answers[chosen]
        rows, values = zip(*(self.expression(rng) for _ in range(size)), strict=True)
        return np.stack([self.padded(ids) for ids in rows]), np.array(values)[:, None]

    def expression(self, rng):
        """Draw an expression: (ids, value)."""
        for _ in range(TRIES):
            ids = []
            value = self._part(rng, 0, ids)
            if value is not None and len(ids) >= self.least:
                return ids, value
        raise ValueError(f"{self.name}: none of {TRIES:,} expressions of depth {self.depth} had "
                         f"{self.least} to {self.length} symbols: change least, length or depth")

    def _part(self, rng, depth, ids):
        """Append a part's symbols to ``ids``; return its value, or None for too many symbols."""
        if len(ids) >= self.length:
            return None
        if depth > 0 and (depth >= self.depth or rng.random() > LIST_PROBABILITY):
            ids.append(int(rng.integers(10)))
            return ids[-1]
        operator = int(rng.integers(len(OPERATORS)))
        ids.append(10 + operator)
        values = []
        for _ in range(rng.integers(2, self.arguments + 1)):
            values.append(self._part(rng, depth + 1, ids))
            if values[-1] is None:
                return None
        ids.append(SYMBOLS.index("]"))
        return None if len(ids) > self.length else [*OPERATORS.values()][operator](values)

    def tokens_as_text(self, x):
        return [[*SYMBOLS, "·"][i] for i in x]

    def padded(self, ids):
        """Return ids (tokens,) int64, with padding on the left."""
        if self.cut:
            ids = [i for i in ids if i != SYMBOLS.index("]")][:self.cut]
        return np.array([PAD] * (self.tokens - len(ids)) + ids)

    def stored(self, split):
        """Return (ids (N, tokens), answers (N, 1)) of one of the Arena's files."""
        if split not in self.read:
            stem = "val" if split == "validation" else split
            self.read[split] = self._read(Path(self.files) / f"basic_{stem}.tsv")
        return self.read[split]

    def _read(self, path):
        """Return (ids (N, tokens), answers (N, 1)) of a file of expressions."""
        if not path.is_file():
            raise FileNotFoundError(f"{self.name}: there is no file {path}")
        ids, answers = [], []
        for number, line in enumerate(read_text(path).splitlines()):
            if not line.strip() or number == 0 and line.split("\t")[:2] == ["Source", "Target"]:
                continue
            try:
                source, target = line.split("\t")
                row, value = parse(source), int(target)
                if evaluate(row) != value:
                    raise ValueError(f"its value is {evaluate(row)}, not {value}")
            except (ValueError, IndexError, KeyError) as e:
                raise ValueError(f"{path}: line {number + 1} is not an expression and its value "
                                 f"({one_line(e)})") from None
            if len(row) <= self.length:
                ids.append(self.padded(row))
                answers.append([value])
        if not ids:
            raise ValueError(f"{path}: holds no expression of at most {self.length} symbols")
        return np.stack(ids), np.array(answers)

    def fingerprint(self):
        """Return a CRC-32 of all stored expressions, or of a few generated ones."""
        if self.files is None:
            return crc(self.draw(np.random.default_rng(0), 16, "train"))
        return crc(a for split in self.splits for a in self.stored(split))

    def test_set(self):
        """Return the stored test split, or ``None`` if expressions are generated."""
        return None if self.files is None else self.stored("test")


def parse(text):
    """Return the ids of an expression in the Arena's form, whose round brackets are redundant."""
    words = text.replace("(", " ").replace(")", " ").split()
    for word in words:
        if word not in SYMBOLS:
            raise ValueError(f"unknown symbol '{word[:20]}'")
    return [SYMBOLS.index(word) for word in words]


def evaluate(ids):
    """Return the value of an expression, with a stack of open lists."""
    open_lists = [[]]                                     # each begins with its operator
    for i in ids:
        symbol = SYMBOLS[i]
        if symbol in OPERATORS:
            open_lists.append([symbol])
        elif symbol == "]":
            operator, *values = open_lists.pop()
            open_lists[-1].append(OPERATORS[operator](values))
        else:                                             # a digit
            open_lists[-1].append(i)
    if len(open_lists) > 1 or len(open_lists[0]) != 1:
        raise ValueError("its brackets do not match")
    return int(open_lists[0][0])
