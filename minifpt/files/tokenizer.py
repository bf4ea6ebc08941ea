"""Text to token ids and back: bytes, and GPT-2's byte-pair encoding.

Byte-pair encoding (Sennrich et al. 2015, arXiv 1508.07909) as GPT-2 does it (Radford et al.
2019): a text is cut into words, each word into bytes, and then the pair of neighbours that
was most frequent in GPT-2's training text becomes one symbol, again and again, until no
neighbours are a known pair.  ``merges.txt`` lists the pairs in that order.
"""

import json
import re
import unicodedata
from heapq import heapify, heappop, heappush
from pathlib import Path

END = "<|endoftext|>"


class Bytes:
    """One token a byte, 256 in all: what the trunks that ship were trained on."""

    vocab_size = 256

    def encode(self, text):
        """str (as UTF-8) or bytes -> a list of ids."""
        return list(text.encode("utf-8") if isinstance(text, str) else bytes(text))

    def decode(self, ids):
        """ids -> str; bytes that are no UTF-8 become U+FFFD.  ``ValueError`` beyond 0 ... 255."""
        ids = [int(i) for i in ids]
        if ids and not 0 <= min(ids) <= max(ids) < 256:
            raise ValueError(f"tokenizer: ids run from {min(ids)} to {max(ids)}, "
                             "bytes from 0 to 255")
        return bytes(ids).decode("utf-8", errors="replace")


# ------------------------------------------------------------------------------- BPE


class BPE:
    """GPT-2's byte-pair encoding.

    merges  pairs of symbols, the first to be merged first.
    vocab   {symbol: id}; without it the 256 bytes come first, then what each merge makes, then
            ``<|endoftext|>``: that is GPT-2's own order.

    In a symbol each byte is written as one printable character, see :func:`byte_symbols`.
    Make one with :meth:`load`.
    """

    def __init__(self, merges, vocab=None):
        byte = byte_symbols()
        if vocab is None:
            symbols = dict.fromkeys([*byte, *(a + b for a, b in merges), END])
            vocab = {symbol: i for i, symbol in enumerate(symbols)}
        missing = [s for s in (*byte, *(x for a, b in merges for x in (a, b, a + b)))
                   if s not in vocab]
        if missing:
            raise ValueError(f"tokenizer: the vocabulary lacks '{missing[0]}', "
                             "which the merges or the 256 bytes need")
        self.byte_ids = [0] * 256                         # by byte, where byte_symbols is by id
        for symbol, value in byte.items():
            self.byte_ids[value] = vocab[symbol]
        self.merges = {}                                  # (id, id) -> (rank, id of both)
        for rank, (a, b) in enumerate(merges):
            self.merges.setdefault((vocab[a], vocab[b]), (rank, vocab[a + b]))
        self.bytes_of = {i: bytes(byte[c] for c in symbol) if all(c in byte for c in symbol)
                         else symbol.encode("utf-8") for symbol, i in vocab.items()}
        self.end = vocab.get(END)
        self.vocab_size = max(vocab.values()) + 1
        self.known = {}                                   # word -> its ids

    @classmethod
    def load(cls, path):
        """From a folder with ``merges.txt``, or the file itself (``NAME.merges.txt`` too).

        ``vocab.json`` (``NAME.vocab.json``) beside it gives the ids, where it is there.
        Raises ``FileNotFoundError`` or ``ValueError`` with one line.
        """
        path = Path(path)
        path = path / "merges.txt" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no byte-pair merges; GPT-2's merges.txt is needed")
        try:
            merges = parse_merges(path.read_text(encoding="utf-8"))
            beside = path.with_name(path.name.replace("merges.txt", "vocab.json"))
            if beside == path or not beside.is_file():
                return cls(merges)
            return cls(merges, parse_vocab(beside.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{path}: {e}") from None

    def encode(self, text):
        """str -> a list of ids; ``<|endoftext|>`` in the text is the token of that name."""
        ids = []
        for i, part in enumerate(text.split(END) if self.end is not None else [text]):
            if i:
                ids.append(self.end)
            for word in split_words(part):
                found = self.known.get(word)
                if found is None:
                    found = self._merge([self.byte_ids[b] for b in word.encode("utf-8")])
                    if len(self.known) >= 100_000:        # words without end: begin anew
                        self.known.clear()
                    self.known[word] = found
                ids += found
        return ids

    def decode(self, ids):
        """ids -> str; bytes that are no UTF-8, as in half a character, become U+FFFD."""
        try:
            return b"".join([self.bytes_of[int(i)] for i in ids]).decode("utf-8", "replace")
        except KeyError as e:
            raise ValueError(f"tokenizer: there is no token {e}, the vocabulary has "
                             f"{len(self.bytes_of)}") from None

    def _merge(self, ids):
        """Merge the pair of lowest rank, the leftmost of them first, until none is known.

        A heap holds the pairs; one that a merge has taken apart meanwhile is passed over when
        it comes up.  n symbols take n log n steps, so no word is too long.
        """
        n = len(ids)
        left, right = list(range(-1, n)), list(range(1, n + 1))
        merges = self.merges
        heap = [(*merges[pair], i, pair)                  # rank, id of both, place, pair
                for i, pair in enumerate(zip(ids, ids[1:], strict=False)) if pair in merges]
        heapify(heap)
        while heap:
            _, both, i, pair = heappop(heap)
            j = right[i]
            if j >= n or (ids[i], ids[j]) != pair:
                continue
            ids[i], ids[j] = both, None
            right[i] = right[j]
            if right[i] < n:
                left[right[i]] = i
            for a, b in ((left[i], i), (i, right[i])):
                pair = (ids[a], ids[b]) if a >= 0 and b < n else None
                if pair in merges:
                    heappush(heap, (*merges[pair], a, pair))
        return [i for i in ids if i is not None]


def find(path, vocab_size):
    """The tokenizer for weights at ``path``: :class:`Bytes` for 256 tokens, else the ``BPE`` of
    ``NAME.merges.txt`` or ``merges.txt`` beside them, or in them if they are a folder.

    Raises ``FileNotFoundError`` with one line where there is none, ``ValueError`` where it has
    more tokens than the weights.
    """
    if vocab_size == 256:
        return Bytes()
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    for merges in (folder / f"{path.stem}.merges.txt", folder / "merges.txt"):
        if merges.is_file():
            bpe = BPE.load(merges)
            if bpe.vocab_size > vocab_size:
                raise ValueError(f"{merges}: has {bpe.vocab_size} tokens, the weights {path} "
                                 f"have {vocab_size}")
            return bpe
    raise FileNotFoundError(f"{path}: no tokenizer beside the weights: put GPT-2's merges.txt "
                            "there")


def parse_merges(text):
    """The pairs in a ``merges.txt``: two symbols a line, a first line ``#version`` apart."""
    lines = text.split("\n")                              # splitlines would cut at odd characters
    merges, known = [], set(byte_symbols())
    for i, line in enumerate(lines):
        line = line.removesuffix("\r")
        if not line or (i == 0 and line.startswith("#version")):
            continue
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not known.issuperset(pair):
            raise ValueError(f"line {i + 1} is '{line[:60]}', expected two symbols that are bytes "
                             "or made by the lines before")
        merges.append(pair)
        known.add(pair[0] + pair[1])
    return merges


def parse_vocab(text):
    """{symbol: id} from a ``vocab.json``."""
    vocab = json.loads(text)
    if not isinstance(vocab, dict) or not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise ValueError("vocab.json must give each symbol its id")
    if len(set(vocab.values())) != len(vocab):
        raise ValueError("vocab.json gives two symbols one id")
    return vocab


def byte_symbols():
    """{symbol: byte} in GPT-2's order: the character that stands for each byte.

    A byte that prints as a Latin-1 character is that character; the others, spaces and
    control characters among them, follow as U+0100, U+0101, ...: a space is ``Ġ``.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printed]
    return {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}


# ----------------------------------------------------------------------------- words

# GPT-2's own expression, where \p{L} is any letter and \p{N} any number of Unicode:
#   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
# Python's re has no \p, so each character beyond ASCII is first put as an ASCII character of
# its kind; the places of the words are the same.  The last white space before a word is left
# to the word, if it is a space: that is what (?!\S) does.
WORD = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
                  re.ASCII)

# The characters beyond ASCII with Unicode's White_Space, which \s means there.
SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class _Kinds(dict):
    """Code point -> an ASCII character of its kind: letter, number, white space, other."""

    def __missing__(self, code):
        c = chr(code)
        kind = (c if code < 128 else "\n" if c in SPACES else
                {"L": "z", "N": "0"}.get(unicodedata.category(c)[0], "!"))
        self[code] = kind
        return kind


KINDS = _Kinds()


def split_words(text):
    """The pieces of a text that are encoded one by one; together they are the text.

    Equal to GPT-2's expression for all characters that Python's ``unicodedata`` knows.
    """
    kinds = text if text.isascii() else text.translate(KINDS)
    return [text[m.start():m.end()] for m in WORD.finditer(kinds)]
