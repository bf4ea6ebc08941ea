"""Pretrain a trunk on procedural data: strings that a short procedure makes, as text for a language
model.

    python -m benchmarks.sources sort --out sort.npz [further options of minifpt pretrain]

The sources are ``set``, ``reverse``, ``sort``, ``stack`` and ``automata``: the answer to a string
is its set of letters, its reverse, its sorted form, or the content of a stack; other strings are
the rows of elementary cellular automata.  Shinnick et al. (2025, arXiv 2505.22308) pretrain on such
data, which have no meaning; these generators are our own.
"""

import sys

import numpy as np

from benchmarks.tasks import SMALL, STOP, Copy, Formal
from minifpt import cli
from minifpt.checks import whole
from minifpt.experiments import pretrain

POP = ord("-")


class Procedure(Formal):
    """The base class: ``question.answer.`` pairs until there are tokens + 1 symbols.  A question
    has ``least`` to ``most`` symbols.  The accuracy counts the answers with their full stops.

    A subclass has ``pair(rng, n)``, which returns a question of n symbols and its answer, two
    lists.
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
        """Draw strings: bytes int64 (B, tokens + 1)."""
        rows = []
        for _ in range(size):
            row = []
            while len(row) <= self.tokens:
                for part in self.pair(rng, int(rng.integers(self.least, self.most + 1))):
                    row += [*part, STOP]
            rows.append(row[:self.tokens + 1])
        return np.array(rows, np.int64)

    def word(self, rng, n):
        """Draw n letters."""
        return (SMALL + rng.integers(0, self.letters, n)).tolist()

    def determined(self, y):
        """Return True in answers: after an odd number of full stops."""
        stop = y == STOP
        return (np.cumsum(stop, axis=1) - stop) % 2 == 1


class Set(Procedure):
    """A string, then each of its letters once, in the order of its first appearance."""

    name = "set"

    def pair(self, rng, n):
        """Draw a question and its answer."""
        word = self.word(rng, n)
        return word, [*dict.fromkeys(word)]


class Reverse(Procedure):
    """A string, then its letters backwards."""

    name = "reverse"

    def pair(self, rng, n):
        """Draw a question and its answer."""
        word = self.word(rng, n)
        return word, word[::-1]


class Sort(Procedure):
    """A string, then its letters in alphabetical order."""

    name = "sort"

    def pair(self, rng, n):
        """Draw a question and its answer."""
        word = self.word(rng, n)
        return word, sorted(word)


class Stack(Procedure):
    """Letters that are put on a stack, with ``-`` for one that is taken off; then the letters on
    the stack, from the top."""

    name = "stack"

    def pair(self, rng, n):
        """Draw a question and its answer."""
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
    a full stop, the next row by the rule, and so on.  The ends of a row are neighbours.

    rule   number of the rule in Wolfram's scheme.

    The accuracy counts all symbols after the first full stop.
    """

    name = "automata"
    determined = Copy.determined                          # after the first full stop

    def __init__(self, width=15, rule=110, tokens=256):
        self.width, self.rule = whole(self.name, "width", width, 3), whole(
            self.name, "rule", rule, 0, 255)
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens, self.width + 1)
        self.options = {"width": self.width, "rule": self.rule, "tokens": self.tokens}

    def strings(self, rng, size):
        """Draw strings: bytes int64 (B, tokens + 1)."""
        row, parts = rng.integers(0, 2, (size, self.width)), []
        for _ in range(self.tokens // (self.width + 1) + 1):
            parts += [SMALL + row, np.full((size, 1), STOP)]
            place = 4 * np.roll(row, 1, axis=1) + 2 * row + np.roll(row, -1, axis=1)
            row = self.rule >> place & 1
        return np.concatenate(parts, axis=1)[:, :self.tokens + 1]


PROCEDURES = {
    "set": ("a string and its set", Set), "reverse": ("a string and its reverse", Reverse),
    "sort": ("a string and its sorted form", Sort), "stack": ("what a stack holds", Stack),
    "automata": ("rows of a cellular automaton", Automata)}


def add_sources():
    """Let ``minifpt.experiments.pretrain`` know these sources."""
    for name, (text, task) in PROCEDURES.items():
        pretrain.SOURCES[name], pretrain.TASKS[name] = text, task
        pretrain.DEFAULTS[name] = {"steps": 1500, "batch_size": 16, "lr": 3e-3}


def main():
    """Run ``minifpt pretrain`` with these sources, too."""
    add_sources()
    return cli.main(["pretrain", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
