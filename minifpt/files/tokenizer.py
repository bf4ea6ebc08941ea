"""Text to token ids and back: bytes, and the tokenizers that Transformers writes.

The shipped trunks read bytes.  GPT-2 reads byte pairs (Sennrich et al. 2015, arXiv 1508.07909;
Radford et al. 2019), other models other parts of words.  The library ``tokenizers`` does that work
(``pip install tokenizers``, or the extra ``gpt2``).
"""

from pathlib import Path

from . import read_json, read_text, refuse_damage

END = "<|endoftext|>"
# Beside weights, or NAME.tokenizer.json and so on.
FILES = ("tokenizer.json", "vocab.json", "merges.txt")


class Bytes:
    """The tokenizer of the shipped trunks: each byte is a token, 256 in all."""

    vocab_size = 256

    def encode(self, text):
        """Return the ids of a str (as UTF-8) or of bytes, as a list."""
        return list(text.encode("utf-8") if isinstance(text, str) else bytes(text))

    def decode(self, ids):
        """Return the text of ids, with U+FFFD for invalid UTF-8.  Raises ``ValueError`` for ids
        outside 0 ... 255."""
        ids = [int(i) for i in ids]
        if ids and not 0 <= min(ids) <= max(ids) < 256:
            raise ValueError(f"tokenizer: ids run from {min(ids)} to {max(ids)}, "
                             "bytes from 0 to 255")
        return bytes(ids).decode("utf-8", errors="replace")


class Tokenizer:
    """A tokenizer of the library ``tokenizers``, from the ``tokenizer.json`` that Transformers
    writes, or GPT-2's from its ``vocab.json``, with a ``merges.txt`` beside it.  Like Transformers'
    own it adds the tokens of the file's template, such as one before the text."""

    def __init__(self, path):
        path = Path(path)
        try:
            import tokenizers
        except ImportError:
            raise ValueError(f"{path}: a tokenizer needs the library tokenizers: pip install "
                             "tokenizers") from None
        with refuse_damage(f"{path}: not a tokenizer"):   # tokenizers raises no class of its own
            if path.name.endswith("tokenizer.json"):
                self.library = tokenizers.Tokenizer.from_str(read_text(path))
            else:
                merges = path.with_name(path.name.removesuffix("vocab.json") + "merges.txt")
                self.library = tokenizers.ByteLevelBPETokenizer.from_file(str(path), str(merges))
                if self.library.token_to_id(END) is not None:
                    self.library.add_special_tokens([END])
        self.vocab_size = max(self.library.get_vocab().values(), default=-1) + 1

    def encode(self, text):
        """Return the ids of a text as a list; an added token in the text, such as GPT-2's
        ``<|endoftext|>``, is one token."""
        return self.library.encode(text).ids

    def decode(self, ids):
        """Return the text of ids, with U+FFFD for invalid UTF-8 such as half a character."""
        ids = [int(i) for i in ids]
        unknown = [i for i in ids if i < 0 or self.library.id_to_token(i) is None]
        if unknown:
            raise ValueError(f"tokenizer: there is no token {unknown[0]}, the vocabulary has "
                             f"{self.library.get_vocab_size()}")
        return self.library.decode(ids, skip_special_tokens=False)


def find(path, vocab_size):
    """Return the tokenizer for weights at ``path``: the one of ``NAME.tokenizer.json``,
    ``NAME.vocab.json``, ``tokenizer.json`` or ``vocab.json`` beside them, or in their folder.  For
    256 tokens it is :class:`Bytes`, unless a file there gives 256 bytes another order.

    Raises ``FileNotFoundError`` if there is none, ``ValueError`` if it has more tokens than the
    weights.
    """
    if vocab_size == 256 and is_bytes(path):
        return Bytes()
    file = next(iter(files_beside(path)), None)
    if file is None:
        raise FileNotFoundError(f"{path}: no tokenizer beside the weights: put tokenizer.json, or "
                                "GPT-2's vocab.json and merges.txt, there")
    tokenizer = Tokenizer(file)
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(f"{file}: has {tokenizer.vocab_size} tokens, the weights {path} have "
                         f"{vocab_size}")
    return tokenizer


def files_beside(path):
    """Return the files with a vocabulary for weights at ``path``: first those of
    ``NAME.tokenizer.json`` and so on, then those without the weights' name."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = (folder / (prefix + name) for prefix in (f"{path.stem}.", "") for name in FILES[:2])
    return [file for file in files if file.is_file()]


def is_bytes(path):
    """Return whether 256 tokens of weights at ``path`` are the bytes in their order: no file beside
    them has a vocabulary of 256 tokens with other numbers."""
    for file in files_beside(path):
        data = read_json(file)
        with refuse_damage(f"{file}: not a vocabulary"):
            vocab = data["model"]["vocab"] if "model" in data else data
            if len(vocab) == 256:
                return vocab == byte_vocabulary()
    return True


def byte_vocabulary():
    """Return {character: byte} for all bytes, in GPT-2's order.

    A byte that prints as a Latin-1 character is that character.  The other bytes, such as spaces
    and control characters, follow as U+0100, U+0101, ...: a space is ``Ġ``.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)}
