"""Text, byte by byte: what a language model is trained on."""

import os
import re
from pathlib import Path

import numpy as np

from .. import fast as ops
from ..checks import brief, whole
from ..files import MOST_TEXT, read_bytes, weights
from ..files.runs import crc
from .base import COSINE, Choices

# One sign, one byte: what Gutenberg's books write in several bytes where ASCII has a way.
ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "--",
                       "…": "...", "\u00a0": " ", "\ufeff": ""})


class Text(Choices):
    """Which byte comes next?  x (B, tokens) and y (B, tokens) int64, y one byte further on.

    ``files`` are text files, or folders of ``*.txt``, see :func:`read_book`; without them it is
    the text that ships, the ends of five novels that the shipped language model was not trained
    on.  The last part of each book, ``held_out`` of its bytes (5 %), is the test split.  The
    books stand one after the other in each split, so that a passage may run from one into the
    next.
    """

    name = "text"
    label = "next byte"
    input_dim, output_dim, classes, ids = 256, 256, 256, True
    defaults = COSINE | {"steps": 2000}

    def __init__(self, files=None, tokens=256, held_out=0.05):
        if not (isinstance(held_out, float) and 0 < held_out < 1):
            raise ValueError(f"{self.name}: held_out must be between 0 and 1, got {held_out!r}")
        given, files = files, [weights.shipped("held-out.txt")] if files is None else files
        files = [files] if isinstance(files, (str, os.PathLike)) else files
        if not isinstance(files, (list, tuple)) or not all(
                isinstance(file, (str, os.PathLike)) for file in files):
            raise ValueError(f"{self.name}: files is {brief(files)}, expected paths of text files "
                             "or folders")
        self.tokens = self.output_tokens = whole(self.name, "tokens", tokens)
        self.options = {"files": None if given is None else [str(file) for file in files],
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
        """CRC-32 of both splits."""
        return crc(self.bytes.values())

    def draw(self, rng, size, split):
        return self.passages(split, rng.integers(0, len(self.bytes[split]) - self.tokens, size))

    def test_set(self):
        """``(x, y)`` of the test split, cut into passages: each byte is asked for once.

        Up to ``tokens`` bytes at the end fill no passage and are left out.
        """
        return self.passages("test", np.arange(0, len(self.bytes["test"]) - self.tokens,
                                               self.tokens))

    def tokens_as_text(self, x):
        return [chr(i) if 32 < i < 127 else {32: "␣", 10: "↵"}.get(i, f"\\x{i:02x}") for i in x]

    def passages(self, split, start):
        index = start[:, None] + np.arange(self.tokens + 1)
        passage = self.bytes[split][index].astype(np.int64)       # (B, tokens + 1)
        return passage[:, :-1], passage[:, 1:]


class Trigrams(Text):
    """Which byte comes next, in text that is drawn from another text's trigram counts?  It has the
    letters and the pairs and triples of neighbours of the novels, and none of their language.

    x and y as for :class:`Text`.  Each byte follows the two before it as often as in ``files``; a
    passage begins with two neighbours of the text.  Every passage is fresh.
    """

    name = "trigrams"

    def __init__(self, files, tokens=256, held_out=0.05):
        super().__init__(files, tokens, held_out)
        text = self.bytes["train"].astype(np.int64)
        pairs = 256 * text + np.roll(text, -1)            # the end is followed by the beginning
        self.order = np.argsort(pairs, kind="stable")     # places of the text, alike ones together
        self.starts = np.searchsorted(pairs[self.order], np.arange(256 ** 2 + 1))

    def draw(self, rng, size, split):
        text, n = self.bytes["train"], len(self.order)
        place, passage = rng.integers(0, n, size), np.empty((size, self.tokens + 1), np.int64)
        passage[:, 0] = text[place]
        for t in range(1, self.tokens + 1):
            passage[:, t] = text[(place + 1) % n]
            pair = 256 * passage[:, t - 1] + passage[:, t]
            # Go on from any place of the text where these two stand.
            first, last = self.starts[pair], self.starts[pair + 1]
            place = (self.order[first + (rng.random(size) * (last - first)).astype(int)] + 1) % n
        return passage[:, :-1], passage[:, 1:]

    def test_set(self):
        """``(x, y)`` of 256 passages, always the same."""
        return self.draw(np.random.default_rng(0x3F), 256, "test")


class Typos(Choices):
    """Which bytes of a passage are not the writer's?  Each is replaced, with probability
    ``share``, by a byte drawn from the text.

    x (B, tokens) int64 bytes; y (B, tokens), 1 where a byte was replaced, read at every token.
    ``files`` as for :class:`Text`.  The accuracy is balanced: the mean of the share of replaced
    bytes that are found and of kept ones that are left alone.
    """

    name = "typos"
    label = "typos"
    chance = 0.5
    input_dim, output_dim, classes, ids = 256, 2, 2, True
    splits = "train", "validation", "test"
    defaults = COSINE | {"steps": 2000}

    def __init__(self, files=None, tokens=64, share=0.5):
        if not (isinstance(share, (float, np.floating)) and 0 < share < 1):
            raise ValueError(f"{self.name}: share must be between 0 and 1, got {share!r}")
        self.text = Text(files or None, tokens, held_out=0.2)
        self.tokens = self.output_tokens = self.text.tokens
        held_out = np.array_split(self.text.bytes["test"], 2)
        if len(held_out[0]) <= self.tokens:
            raise ValueError(f"{self.name}: {len(held_out[0])} bytes to choose by, expected more "
                             f"than tokens={self.tokens}: give more text or fewer tokens")
        self.text.bytes["validation"], self.text.bytes["test"] = held_out
        self.share = float(share)
        self.options = {"files": self.text.options["files"], "tokens": self.tokens,
                        "share": self.share}

    def fingerprint(self):
        """CRC-32 of the text."""
        return self.text.fingerprint()

    def draw(self, rng, size, split):
        x, _ = self.text.draw(rng, size, split)
        replaced = rng.random(x.shape) < self.share
        noise = rng.choice(self.text.bytes["train"], x.shape)
        return np.where(replaced, noise, x), replaced.astype(np.int64)

    def tokens_as_text(self, x):
        return self.text.tokens_as_text(x)

    def accuracy(self, logits, y):
        """The mean of the share found among the replaced and of that among the kept."""
        right = self.right(logits, y)
        return float(np.mean([right[y == k].mean() for k in (0, 1) if (y == k).any()]))


class Masked(Text):
    """Which byte was here?  15 % of each passage are chosen, as by BERT (Devlin et al. 2018,
    arXiv 1810.04805): 80 % of these become ``MASK``, 10 % a byte drawn from those of the text,
    and 10 % stay as they are.  All others are there to be read.

    x (B, tokens) int64; y (B, tokens) int64, the byte itself where it was chosen and -1, which
    neither loss nor accuracy counts, elsewhere.  ``MASK`` is byte 0, which no text has.
    """

    name = "masked"
    MASK, SHARE = 0, 0.15

    def __init__(self, files, tokens=256, held_out=0.05):
        super().__init__(files, tokens, held_out)
        self.vocabulary = np.unique(self.bytes["train"])
        if any((text == self.MASK).any() for text in self.bytes.values()):
            raise ValueError(f"{self.name}: the text holds byte {self.MASK}, which is to stand for "
                             "a masked one")

    def draw(self, rng, size, split):
        return self.masked(rng, super().draw(rng, size, split)[0])

    def test_set(self):
        """``(x, y)`` of the test split, cut into passages, always masked in the same places."""
        return self.masked(np.random.default_rng(0xBE27), super().test_set()[0])

    def masked(self, rng, text):
        """(x, y) of passages (B, tokens)."""
        # As many in each passage, at least one, so that the mean over batches is that over bytes.
        chosen = rng.random(text.shape).argsort(axis=1) < max(1, round(self.SHARE * self.tokens))
        fate, noise = rng.random(text.shape), rng.choice(self.vocabulary, text.shape)
        hidden = np.where(fate < 0.8, self.MASK, np.where(fate < 0.9, noise, text))
        return np.where(chosen, hidden, text), np.where(chosen, text, -1)

    def loss(self, logits, y):
        """Cross-entropy, the mean over the chosen bytes, in nats, and dlogits, 0 elsewhere."""
        chosen = y >= 0
        loss, cache = ops.cross_entropy(self.choices(logits, y)[chosen], y[chosen])
        dlogits = np.zeros_like(logits)
        dlogits[chosen] = ops.cross_entropy_backward(1.0, cache)
        return float(loss), dlogits

    def accuracy(self, logits, y):
        """The share of right choices among the chosen bytes."""
        return float(self.right(logits, y)[y >= 0].mean())


def text_files(files):
    """The paths meant by ``files``: each folder stands for its ``*.txt``, by name."""
    paths = []
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
    """The text of a Project Gutenberg book as UTF-8 bytes, without header and licence.

    That is what stands between the lines ``*** START OF ...`` and ``*** END OF ...``, or all
    of it without such a line.  Lines end with ``\\n``; typographic quotes, dashes and dots
    become ASCII.  A file that is not UTF-8 is read as Latin-1.  It is a
    regular file of at most 1 GiB.
    """
    raw = read_bytes(path, MOST_TEXT).replace(b"\r\n", b"\n")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    text = re.split(r"^\*\*\* ?START OF.*\n", text, maxsplit=1, flags=re.MULTILINE)[-1]
    text = re.split(r"^(?:\*\*\* ?END OF|End of (?:the )?Project Gutenberg)", text, maxsplit=1,
                    flags=re.MULTILINE)[0]            # some books announce their end twice
    return text.strip().translate(ASCII).encode()
