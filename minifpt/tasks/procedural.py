"""Procedural data: strings that a short procedure makes, as text for a language model.

What is a string's set, its reverse, its sorted form?  What does a stack hold at last?  And the
rows of elementary cellular automata.  Such data carry no meaning; others pretrain on the like
(Shinnick et al. 2025, arXiv 2505.22308).  The generators are our own.
"""

import numpy as np

from ..checks import whole
from .formal import SMALL, STOP, Formal

POP = ord("-")


class Procedure(Formal):
    """``question.answer.`` again and again until tokens + 1 symbols are full; each question has
    ``least`` to ``most`` symbols.  The accuracy is that of the answers, with their full stops.

    A subclass has ``pair(rng, n)``: a question of about n symbols and its answer, two lists.
    """

    def __init__(self, least=4, most=16, letters=26, tokens=256):
        self.least, self.most = whole(self.name, "least", least), whole(self.name, "most", most)
        self.letters = whole(self.name, "letters", letters)
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens)
        if not (self.least <= self.most < self.tokens // 2 and self.letters <= 26):
            raise ValueError(f"{self.name}: least {least}, most {most}, letters {letters}, tokens "
                             f"{tokens}, expected least <= most < tokens / 2 and letters <= 26")
        self.options = {"least": self.least, "most": self.most, "letters": self.letters,
                        "tokens": self.tokens}

    def strings(self, rng, size):
        """Bytes int64 (B, tokens + 1)."""
        rows = []
        for _ in range(size):
            row = []
            while len(row) <= self.tokens:
                for part in self.pair(rng, int(rng.integers(self.least, self.most + 1))):
                    row += [*part, STOP]
            rows.append(row[:self.tokens + 1])
        return np.array(rows, np.int64)

    def word(self, rng, n):
        """n random letters."""
        return (SMALL + rng.integers(0, self.letters, n)).tolist()

    def determined(self, y):
        """True in answers: after an odd number of full stops.  (The string's first symbol, which y
        lacks, is a question's.)"""
        stop = y == STOP
        return (np.cumsum(stop, axis=1) - stop) % 2 == 1


class Set(Procedure):
    """A string, then each of its letters once, in the order of its first appearance."""

    name = "set"

    def pair(self, rng, n):
        """A question and its answer."""
        word = self.word(rng, n)
        return word, [*dict.fromkeys(word)]


class Reverse(Procedure):
    """A string, then the same backwards."""

    name = "reverse"

    def pair(self, rng, n):
        """A question and its answer."""
        word = self.word(rng, n)
        return word, word[::-1]


class Sort(Procedure):
    """A string, then its letters in alphabetical order."""

    name = "sort"

    def pair(self, rng, n):
        """A question and its answer."""
        word = self.word(rng, n)
        return word, sorted(word)


class Stack(Procedure):
    """Letters that are put on a stack and ``-``, which takes one off, then what the stack holds,
    from the top."""

    name = "stack"

    def pair(self, rng, n):
        """A question and its answer."""
        stack, question = [], []
        for letter, pops in zip(self.word(rng, n), rng.random(n) < 0.4, strict=True):
            if pops and stack:
                stack.pop()
                question.append(POP)
            else:
                stack.append(letter)
                question.append(letter)
        return question, stack[::-1]


class Automata(Formal):
    """Rows of an elementary cellular automaton: a random row of ``width`` cells, ``a`` or ``b``,
    a full stop, the row that follows by the rule, and so on.  The ends of a row are neighbours.

    rule   its number in Wolfram's scheme; 110 by default.

    The accuracy is that of all symbols after the first full stop.
    """

    name = "automata"

    def __init__(self, width=15, rule=110, tokens=256):
        self.width, self.rule = whole(self.name, "width", width, 3), whole(
            self.name, "rule", rule, 0, 255)
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens, self.width + 1)
        self.options = {"width": self.width, "rule": self.rule, "tokens": self.tokens}

    def strings(self, rng, size):
        """Bytes int64 (B, tokens + 1)."""
        row, parts = rng.integers(0, 2, (size, self.width)), []
        for _ in range(self.tokens // (self.width + 1) + 1):
            parts += [SMALL + row, np.full((size, 1), STOP)]
            place = 4 * np.roll(row, 1, axis=1) + 2 * row + np.roll(row, -1, axis=1)
            row = self.rule >> place & 1
        return np.concatenate(parts, axis=1)[:, :self.tokens + 1]

    def determined(self, y):
        """True after the first full stop."""
        stop = y == STOP
        return (np.cumsum(stop, axis=1) - stop) > 0
