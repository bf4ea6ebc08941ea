"""Tasks on text, whose tokens are bytes; most are for pretraining language models."""

import os
import re
from pathlib import Path

import numpy as np

from ..checks import brief, crc, number, whole
from ..fast import ops
from ..files import read_text, weights
from .base import COSINE, Classification

# Where a book of Project Gutenberg begins, also behind the "small print" of old ones, who made it,
# and where it ends; some books announce their end twice.
START = re.compile(r"^\*\*\* ?START OF[^*\n]*(?:\n[^*\n]+)?\*\*\*.*\n|^\*\*\* ?START OF.*\n"
                   r"|^\*END\*? ?THE SMALL PRINT.*\n", re.MULTILINE)
MAKERS = re.compile(r"\s*(?:(?:E-?text )?(?:produced|prepared|transcribed) (?:by|from)"
                    r"|This e-?text was (?:produced|prepared) by).*?\n[ \t]*\n",
                    re.IGNORECASE | re.DOTALL)
END = re.compile(r"^(?:\*\*\* ?END OF|[ *]*End of (?:the |this )?Project Gutenberg)",
                 re.MULTILINE | re.IGNORECASE)
# Signs of Gutenberg's books that take several bytes, and their spelling in ASCII.
ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "--",
                       "…": "...", "\u00a0": " ", "\ufeff": ""})


class Text(Classification):
    """Predict the next byte.  x (B, tokens) and y (B, tokens) int64, y one byte further on.

    ``files`` are text files, or folders of ``*.txt``, see :func:`read_book`.  The default is the
    shipped text: the ends of five novels, which were not in the shipped language model's training
    text.  The end of each book, a share ``held_out`` of its bytes, is the test split.  Each split
    joins the books, so that a passage may run from one book into the next.
    """

    name = "text"
    label = "next byte"
    input_dim, output_dim, classes, ids = 256, 256, 256, True
    defaults = COSINE | {"steps": 2000}

    def __init__(self, files=None, tokens=256, held_out=0.05):
        held_out = number(self.name, "held_out", held_out, most=0.99)
        is_shipped = files is None
        files = weights.shipped("held-out.txt") if is_shipped else files
        files = [files] if isinstance(files, (str, os.PathLike)) else files
        if not isinstance(files, (list, tuple)) or not all(
                isinstance(file, (str, os.PathLike)) for file in files):
            raise ValueError(f"{self.name}: files is {brief(files)}, expected paths of text files "
                             "or folders")
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens)
        self.options = {"files": None if is_shipped else [str(file) for file in files],
                        "tokens": self.tokens, "held_out": held_out}
        self.files = text_files(files)
        books = [np.frombuffer(read_book(path), np.uint8) for path in self.files]
        parts = [np.split(book, [len(book) - round(held_out * len(book))]) for book in books]
        self.bytes = {split: np.concatenate(part) for split, part in zip(
            self.splits, zip(*parts, strict=True), strict=True)}
        for split, text in self.bytes.items():
            if len(text) <= self.tokens:
                raise ValueError(f"{self.name}: the {split} split has {len(text)} bytes, expected "
                                 f"more than tokens={tokens}: give more text or fewer tokens")

    def fingerprint(self):
        """Return a CRC-32 of both splits."""
        return crc(self.bytes.values())

    def draw(self, rng, size, split):
        return self.passages(split, rng.integers(0, len(self.bytes[split]) - self.tokens, size))

    def test_set(self):
        """Return ``(x, y)`` of the test split, cut into passages, so that each byte is predicted
        once.  The last bytes, too few for a passage, are left out."""
        return self.passages("test", np.arange(0, len(self.bytes["test"]) - self.tokens,
                                               self.tokens))

    def tokens_as_text(self, x):
        return [chr(i) if 32 < i < 127 else {32: "␣", 10: "↵"}.get(i, f"\\x{i:02x}") for i in x]

    symbols_as_text = tokens_as_text                      # of answers

    def passages(self, split, start):
        index = start[:, None] + np.arange(self.tokens + 1)
        passage = self.bytes[split][index].astype(np.int64)       # (B, tokens + 1)
        return passage[:, :-1], passage[:, 1:]


class Typos(Classification):
    """Find the replaced bytes of a passage.  Each byte is replaced, with probability ``share``, by
    a byte drawn from the text.

    x (B, tokens) int64 bytes; y (B, tokens), 1 for a replaced byte, read at every token.
    ``files`` as in :class:`Text`.  The accuracy is balanced: the mean of the accuracy on replaced
    bytes and of that on original bytes.
    """

    name = "typos"
    label = "typos"
    chance = 0.5
    input_dim, output_dim, classes, ids = 256, 2, 2, True
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 2000}

    def __init__(self, files=None, tokens=64, share=0.5):
        self.share = number(self.name, "share", share, most=0.99)
        self.text = Text(files, tokens, held_out=0.2)
        self.tokens = self.output_tokens = self.text.tokens
        held_out = np.array_split(self.text.bytes["test"], 2)
        if len(held_out[1]) <= self.tokens:               # the shorter half
            raise ValueError(f"{self.name}: the test split has {len(held_out[1])} bytes, expected "
                             f"more than tokens={self.tokens}: give more text or fewer tokens")
        self.text.bytes["validation"], self.text.bytes["test"] = held_out
        self.options = {"files": self.text.options["files"], "tokens": self.tokens,
                        "share": self.share}

    def fingerprint(self):
        """Return a CRC-32 of the text."""
        return self.text.fingerprint()

    def draw(self, rng, size, split):
        x, _ = self.text.draw(rng, size, split)
        replaced = rng.random(x.shape) < self.share
        noise = rng.choice(self.text.bytes["train"], x.shape)
        return np.where(replaced, noise, x), replaced.astype(np.int64)

    tokens_as_text = Text.tokens_as_text

    def accuracy(self, logits, y):
        """Return the mean of the accuracies on replaced and on original bytes."""
        right = self.right(logits, y)
        return float(np.mean([right[y == k].mean() for k in (0, 1) if (y == k).any()]))


class Masked(Text):
    """Predict the chosen bytes of a passage, as BERT does (Devlin et al. 2018, arXiv 1810.04805).
    15 % are chosen: 80 % of these become ``MASK``, 10 % become a random byte of the text's bytes,
    and 10 % stay unchanged.

    x (B, tokens) int64; y (B, tokens) int64, the original byte where it was chosen, elsewhere -1,
    which neither loss nor accuracy counts.  ``MASK`` is byte 0, which no text contains.
    """

    name = "masked"
    MASK, SHARE = 0, 0.15

    def __init__(self, files, tokens=256, held_out=0.05):
        super().__init__(files, tokens, held_out)
        self.vocabulary = np.unique(self.bytes["train"])

    def draw(self, rng, size, split):
        return self.masked(rng, super().draw(rng, size, split)[0])

    def test_set(self):
        """Return ``(x, y)`` of the test split, cut into passages, always with the same masks."""
        return self.masked(np.random.default_rng(0xBE27), super().test_set()[0])

    def masked(self, rng, text):
        """Draw masks for passages (B, tokens), and return (x, y)."""
        # Equally many in each passage, so that the mean over batches is the mean over bytes.
        chosen = rng.random(text.shape).argsort(axis=1) < max(1, round(self.SHARE * self.tokens))
        fate, noise = rng.random(text.shape), rng.choice(self.vocabulary, text.shape)
        hidden = np.where(fate < 0.8, self.MASK, np.where(fate < 0.9, noise, text))
        return np.where(chosen, hidden, text), np.where(chosen, text, -1)

    def loss(self, logits, y):
        """Return the cross-entropy, the mean over the chosen bytes in nats, and its gradient."""
        chosen = y >= 0
        loss, cache = ops().cross_entropy(self.choices(logits, y)[chosen], y[chosen])
        dlogits = np.zeros_like(logits)
        dlogits[chosen] = ops().cross_entropy_backward(1.0, cache)
        return float(loss), dlogits

    def accuracy(self, logits, y):
        """Return the share of right choices among the chosen bytes."""
        return float(self.right(logits, y)[y >= 0].mean())


def text_files(files):
    """Return the paths of ``files``, with each folder replaced by its ``*.txt``, by name."""
    paths = []
    if not all(str(file).strip() for file in files):      # Path("") is the working folder
        raise ValueError("text: a path is empty, expected text files or folders of *.txt")
    for path in map(Path, files):
        paths += sorted(path.glob("*.txt")) if path.is_dir() else [path]
        if path.is_dir() and not any(path.glob("*.txt")):
            raise FileNotFoundError(f"text: the folder {path} holds no *.txt file")
        if not path.exists():
            raise FileNotFoundError(f"text: no file or folder {path}")
    if not paths:
        raise ValueError("text: files is empty, expected text files or folders of *.txt")
    return paths


def read_book(path):
    """Return the text of a Project Gutenberg book as UTF-8 bytes, without header and licence.

    The text is between the lines ``*** START OF ...`` and ``*** END OF ...``, or their older forms,
    if these exist; a first paragraph such as ``Produced by ...`` goes with the header.  Lines end
    with ``\\n``; typographic quotes, dashes and dots become ASCII.  A file is read as UTF-16 or
    UTF-32 if its first bytes say so, else as UTF-8 or, where it is not that, as Windows-1252.
    """
    text = read_text(path, fallback="cp1252")
    if start := START.search(text):
        text = text[start.end():]
        if makers := MAKERS.match(text):
            text = text[makers.end():]
    text = END.split(text, maxsplit=1)[0]
    return text.strip().translate(ASCII).encode()
