"""Formal languages: strings that follow a rule, as text for a language model.

A language model that is pretrained on such strings needs less text afterwards, most of all with
brackets that may cross (Hu et al. 2025, arXiv 2502.19249).  It is also better at algorithmic
tasks, to which attention often transfers best (Shinnick et al. 2025, arXiv 2505.22308).
"""

import numpy as np

from ..checks import whole
from .base import Choices

SMALL, CAPITAL, STOP = ord("a"), ord("A"), ord(".")


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
