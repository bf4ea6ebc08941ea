"""ListOps: compute the value of a nested expression of lists."""

import numpy as np

from ..checks import whole
from .base import COSINE, Choices

OPERATORS = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(np.median(x)),
             "[SM": lambda x: sum(x) % 10}
SYMBOLS = [*map(str, range(10)), *OPERATORS, "]"]         # ids are indices of this list
PAD = len(SYMBOLS)
OPERATOR = 0.25                                           # probability that a part is a list
DEEPEST = 500                                             # Python's recursion ends at 1,000
TRIES = 100_000                                           # draws until an expression has its length


class ListOps(Choices):
    """The value of an expression such as ``[MAX 4 3 [MIN 2 3 ] 1 0 ]``, a digit, read at the last
    token.

    x (B, tokens) int64: 15 symbols, and a 16th as padding on the left; y (B, 1).  Expressions are
    drawn by the rules of the Long Range Arena (Nangia and Bowman 2018, arXiv 1804.06028; Tay et
    al. 2020, arXiv 2011.04006).  While fewer than ``depth`` lists are open, a part is a list with
    probability 1/4.  A list has 2 to ``arguments`` parts.  MED is the median rounded down, SM the
    sum modulo 10.  Expressions have ``least`` to ``length`` symbols.

    With ``cut`` the closing brackets are left out and x shows only the first ``cut`` of the other
    symbols, as in the code of the paper.
    """

    name = "listops"
    label = "ListOps"
    chance = 0.1
    input_dim, output_dim, output_tokens, classes, ids = PAD + 1, 10, 1, 10, True
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 8000}

    def __init__(self, length=64, depth=4, arguments=5, least=4, cut=0):
        self.length = whole(self.name, "length", length, 4)
        self.depth = whole(self.name, "depth", depth, 1, DEEPEST)
        self.arguments = whole(self.name, "arguments", arguments, 2)
        self.least = whole(self.name, "least", least, 4, self.length)
        self.cut = whole(self.name, "cut", cut, 0)
        self.tokens = self.cut or self.length
        self.options = {name: getattr(self, name) for name in (
            "length", "depth", "arguments", "least", *["cut"] * bool(cut))}

    def draw(self, rng, size, split):
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
        if depth > 0 and (depth >= self.depth or rng.random() > OPERATOR):
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
