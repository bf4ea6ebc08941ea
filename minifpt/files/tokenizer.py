"""Text to token ids and back: bytes, and GPT-2's byte-pair encoding.

The shipped trunks read bytes.  GPT-2 reads byte pairs (Sennrich et al. 2015, arXiv 1508.07909;
Radford et al. 2019): its ``merges.txt`` lists, in order, the neighbours that become one symbol.
Other models split text in other ways, which their ``tokenizer.json`` of Transformers describes.
The library ``tokenizers`` does the work (``pip install tokenizers``, or the extra ``gpt2``).
"""

from pathlib import Path

from . import read_json, read_text, refuse_damage

END = "<|endoftext|>"
# Beside weights, or NAME.merges.txt and so on; the first two hold a tokenizer, the others add to
# the second.
FILES = ("tokenizer.json", "merges.txt", "vocab.json", "tokenizer_config.json",
         "added_tokens.json")


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


class BPE:
    """GPT-2's byte-pair encoding, from a ``merges.txt`` or ``NAME.merges.txt``, or from the folder
    of a ``merges.txt``.

    A ``vocab.json`` or ``NAME.vocab.json`` beside it gives the ids.  Without one the ids are in
    GPT-2's order: the 256 bytes, then the result of each merge, then ``<|endoftext|>``.  Tokens of
    an ``added_tokens.json`` or of ``tokenizer_config.json`` follow; each is one token wherever it
    stands in a text.  Raises ``FileNotFoundError`` or ``ValueError``.
    """

    def __init__(self, path):
        path = Path(path)
        path = path / "merges.txt" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file: expected a merges.txt")
        ByteLevelBPETokenizer = library(path).ByteLevelBPETokenizer
        # Not splitlines, which would cut at odd characters.
        merges = [tuple(line.split(" ")) for line in read_text(path).split("\n")
                  if line and not line.startswith("#version")]
        for pair in merges:
            if len(pair) != 2 or "" in pair:
                raise ValueError(f"{path}: the line {' '.join(pair)!r:.60} is not two symbols with "
                                 "one space between them")
        symbols = [*byte_vocabulary(), *map("".join, merges), END]
        vocab = {symbol: i for i, symbol in enumerate(dict.fromkeys(symbols))}
        if beside(path, "vocab.json").is_file():
            vocab = read_vocab(beside(path, "vocab.json"), symbols[:-1])
        with refuse_damage(f"{path}: not merges of this vocabulary"):
            self.bpe = ByteLevelBPETokenizer(vocab, merges)
        if END in vocab:
            self.bpe.add_special_tokens([END])
        self.add_tokens(path)
        self.vocab_size = max(self.bpe.get_vocab().values()) + 1

    def add_tokens(self, merges):
        """Add the tokens that files beside ``merges`` list after its vocabulary."""
        config = read_settings(beside(merges, "tokenizer_config.json"))
        tokens = {content: (number, {}) for content, number
                  in read_settings(beside(merges, "added_tokens.json")).items()}
        AddedToken = library(merges).AddedToken
        with refuse_damage(f"{merges}: the added tokens in the files beside it cannot be read"):
            for number, token in config.get("added_tokens_decoder", {}).items():
                flags = {flag: token[flag] for flag in ("lstrip", "rstrip", "single_word",
                                                        "normalized", "special") if flag in token}
                tokens[token["content"]] = int(number), flags
            for content, (number, flags) in sorted(tokens.items(), key=lambda item: item[1][0]):
                add = self.bpe.add_special_tokens if flags.get("special") else self.bpe.add_tokens
                add([AddedToken(content, **flags)])
                if self.bpe.token_to_id(content) != number:
                    raise ValueError(f"{content!r:.60} has the number {number}, expected "
                                     f"{self.bpe.token_to_id(content)}, the next one")

    def encode(self, text):
        """Return the ids of a text as a list; ``<|endoftext|>`` in the text is one token."""
        return self.bpe.encode(text).ids

    def decode(self, ids):
        """Return the text of ids, with U+FFFD for invalid UTF-8 such as half a character."""
        ids = [int(i) for i in ids]
        unknown = [i for i in ids if i < 0 or self.bpe.id_to_token(i) is None]
        if unknown:
            raise ValueError(f"tokenizer: there is no token {unknown[0]}, the vocabulary has "
                             f"{self.bpe.get_vocab_size()}")
        return self.bpe.decode(ids, skip_special_tokens=False)


class Saved(BPE):
    """A tokenizer of any kind, from the ``tokenizer.json`` that Transformers writes.  Like
    Transformers' own it adds the tokens of the file's template, such as one before the text."""

    def __init__(self, path):
        Tokenizer, text = library(path).Tokenizer, read_text(path)
        with refuse_damage(f"{path}: not a tokenizer"):   # tokenizers raises no class of its own
            self.bpe = Tokenizer.from_str(text)
        self.vocab_size = max(self.bpe.get_vocab().values(), default=-1) + 1


def library(path):
    """Return the module ``tokenizers``.  Raises ``ValueError`` where it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError(f"{path}: a tokenizer needs the library tokenizers: pip install "
                         "tokenizers") from None
    return tokenizers


def find(path, vocab_size):
    """Return the tokenizer for weights at ``path``: the one of ``NAME.tokenizer.json``,
    ``NAME.merges.txt``, ``tokenizer.json`` or ``merges.txt`` beside them, or in their folder.  For
    256 tokens it is :class:`Bytes`, unless a file there gives 256 bytes another order.

    Raises ``FileNotFoundError`` if there is none, ``ValueError`` if it has more tokens than the
    weights, or if only a ``merges.txt`` is there that is not GPT-2's kind.
    """
    if vocab_size == 256 and is_bytes(path):
        return Bytes()
    for file in files_beside(path, *FILES[:2]):
        is_merges = file.name.endswith("merges.txt")
        if is_merges:
            check_is_gpt2(file)
        tokenizer = (BPE if is_merges else Saved)(file)
        if tokenizer.vocab_size > vocab_size:
            raise ValueError(f"{file}: has {tokenizer.vocab_size} tokens, the weights {path} have "
                             f"{vocab_size}")
        return tokenizer
    raise FileNotFoundError(f"{path}: no tokenizer beside the weights: put tokenizer.json, or "
                            "GPT-2's merges.txt, there")


def files_beside(path, *names):
    """Return the files of these names for weights at ``path``: first those of ``NAME.merges.txt``
    and so on, then those without the weights' name."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    files = (folder / (prefix + name) for prefix in (f"{path.stem}.", "") for name in names)
    return [file for file in files if file.is_file()]


def is_bytes(path):
    """Return whether 256 tokens of weights at ``path`` are the bytes in their order: no file beside
    them has a vocabulary of 256 tokens with other numbers."""
    for file in files_beside(path, "tokenizer.json", "vocab.json"):
        data = read_json(file)
        with refuse_damage(f"{file}: not a vocabulary"):
            vocab = data["model"]["vocab"] if "model" in data else data
            if len(vocab) == 256:
                return vocab == byte_vocabulary()
    return True


def beside(merges, name):
    """Return the path of another file of the tokenizer of a ``merges.txt`` or ``NAME.merges.txt``.
    """
    return merges.with_name(merges.name.removesuffix("merges.txt") + name)


def read_settings(path):
    """Return the JSON object in a file, an empty one if there is no such file."""
    return read_json(path) if path.is_file() else {}


def check_is_gpt2(merges):
    """Raise ``ValueError`` if the file beside a ``merges.txt`` names another tokenizer than
    GPT-2's, or options that :class:`BPE` lacks, which would give other tokens."""
    path = beside(merges, "tokenizer_config.json")
    config = read_settings(path)
    kind = config.get("tokenizer_class")
    if kind and not str(kind).startswith("GPT2"):
        raise ValueError(f"{merges}: is of a {kind!s:.60}, which splits text differently from "
                         "GPT-2's: put its tokenizer.json there")
    for option in "add_prefix_space", "add_bos_token":
        if config.get(option):
            raise ValueError(f"{path}: minifpt's byte pairs have no {option}: put the "
                             "tokenizer.json that Transformers writes there")


def read_vocab(path, needed):
    """Return {symbol: id} of a ``vocab.json``, which must have the ``needed`` symbols."""
    vocab = read_json(path)
    if not all(type(i) is int and 0 <= i < 1 << 31 for i in vocab.values()):
        raise ValueError(f"{path}: must give each symbol its id")
    if len(set(vocab.values())) != len(vocab):
        raise ValueError(f"{path}: gives two symbols one id")
    for symbol in needed:
        if symbol not in vocab:
            raise ValueError(f"{path}: lacks {symbol!r:.60}, which the merges or the 256 bytes "
                             "need")
    return vocab


def byte_vocabulary():
    """Return {character: byte} for all bytes, in GPT-2's order.

    A byte that prints as a Latin-1 character is that character.  The other bytes, such as spaces
    and control characters, follow as U+0100, U+0101, ...: a space is ``Ġ``.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + i): byte for i, byte in enumerate(others)}
