"""Tokenizers: there and back, by hand, and GPT-2's own."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

from minifpt.files import tokenizer
from minifpt.files.export import tokenizer_files
from minifpt.files.tokenizer import Bytes, Tokenizer

byte_pairs = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None,
                                reason="byte pairs need the library tokenizers")


def save(folder, merges, end=("<|endoftext|>",), name=""):
    """Write GPT-2's files: ids are the 256 bytes in their order, each merge, the end."""
    folder.mkdir(exist_ok=True)
    symbols = [*tokenizer.byte_vocabulary(), *map("".join, merges), *end]
    (folder / f"{name}vocab.json").write_text(json.dumps({s: i for i, s in enumerate(symbols)}))
    (folder / f"{name}merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges),
                                              encoding="utf-8")
    return folder


# ----------------------------------------------------------------------------- bytes


@given(st.text(st.sampled_from("a \n\0é漢\u2028\U0001f642")))
def test_bytes_survive_encoding_and_decoding(text):
    t = Bytes()
    ids = t.encode(text)
    assert ids == list(text.encode()) == t.encode(text.encode())
    assert t.decode(ids) == t.decode(np.array(ids, int)) == text


def test_bytes_decode_and_other_ids_are_refused():
    t = Bytes()
    assert t.decode([0xE2, 0x82]) == "\ufffd" and t.decode([]) == "" and t.vocab_size == 256
    for ids in ([256], [-1, 5]):
        with refused("bytes from 0 to 255"):
            t.decode(ids)


# ----------------------------------------------------------------------- byte pairs


MERGES = [("l", "o"), ("lo", "w"), ("e", "r"), ("Ġ", "low"), ("a", "a"), ("aa", "aa"), ("Ã", "©")]
FEW = MERGES[:2]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    pytest.importorskip("tokenizers")
    return tokenizer.find(save(tmp_path_factory.mktemp("small"), MERGES), 264)


def test_ids_equal_those_by_hand(small):
    def symbols(text):
        return [small.decode([i]) for i in small.encode(text)]
    assert symbols("low lower slow") == ["low", " low", "er", " ", "s", "low"]
    assert symbols("aaaaaaa") == ["aaaa", "aa", "a"]
    assert symbols("é") == ["é"]
    assert small.vocab_size == 256 + len(MERGES) + 1
    # "!" is the first printed character; a merge's id is 256 and its rank; the end is last.
    assert small.encode("!low<|endoftext|>") == [0, 257, 263]
    assert small.decode([0, 257, 263]) == "!low<|endoftext|>"


def test_half_a_character_decodes_and_an_unknown_id_is_refused(small):
    first = [*tokenizer.byte_vocabulary()].index("Ã")           # the first of the two bytes of "é"
    assert small.decode([first]) == "\ufffd" and small.decode([first, 0]) == "\ufffd!"
    for bad in (264, -1):
        with refused(f"no token {bad}, the vocabulary has 264"):
            small.decode([1, bad])


# ------------------------------------------------------------------------------ files


@byte_pairs
@pytest.mark.parametrize("name, text, message", [
    ("vocab.json", "{", "vocab.json: not a tokenizer"),
    ("vocab.json", '{"a": 1}', "vocab.json: not a tokenizer"),
    ("merges.txt", "l o\nlow er\n", "vocab.json: not a tokenizer"),
    ("merges.txt", None, "vocab.json: not a tokenizer"),
    ("vocab.json", None, "put tokenizer.json, or GPT-2's vocab.json and merges.txt, there"),
    ("tokenizer.json", "{", "tokenizer.json: not a tokenizer")])
def test_damaged_or_missing_files_are_refused(tmp_path, name, text, message):
    path = save(tmp_path, FEW) / name
    path.unlink() if text is None else path.write_text(text)
    with refused(message, (ValueError, FileNotFoundError)):
        tokenizer.find(tmp_path, 400)


def test_without_the_library_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused("pip install tokenizers"):
        tokenizer.find(save(tmp_path, FEW), 400)


@byte_pairs
def test_a_tokenizer_is_found_beside_the_weights(tmp_path):
    path = save(tmp_path, FEW) / "gpt2.npz"
    assert isinstance(tokenizer.find(path, 256), Bytes)
    assert tokenizer.find(path, 300).vocab_size == tokenizer.find(tmp_path, 300).vocab_size == 259
    save(tmp_path, FEW[:1], name="gpt2.")
    assert tokenizer.find(path, 258).vocab_size == 258
    with refused("has 258 tokens, the weights .* have 257"):
        tokenizer.find(path, 257)


@byte_pairs
def test_256_tokens_are_bytes_unless_a_file_orders_them_otherwise(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')    # of another model
    assert isinstance(tokenizer.find(tmp_path / "w.npz", 256), Bytes)
    (tmp_path / "tokenizer.json").unlink()
    save(tmp_path, [], (), "other.")
    (tmp_path / "bytes.vocab.json").write_text(json.dumps(tokenizer.byte_vocabulary()))
    assert isinstance(tokenizer.find(tmp_path / "bytes.npz", 256), Bytes)
    assert tokenizer.find(tmp_path / "other.npz", 256).encode("!") == [0]
    assert tokenizer_files(tmp_path / "other.npz", 256)["vocab.json"].startswith(b'{"!": 0')


@byte_pairs
def test_a_tokenizer_json_is_read_as_it_is(tmp_path):
    """One that splits digits, unlike GPT-2's, and starts each text with a token."""
    import tokenizers as library
    from tokenizers import decoders, models, pre_tokenizers, processors
    symbols = [*tokenizer.byte_vocabulary(), "lo", "low", "12", "<s>"]
    saved = library.Tokenizer(models.BPE({s: i for i, s in enumerate(symbols)},
                                         [*FEW, ("1", "2")]))
    saved.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    saved.decoder = decoders.ByteLevel()
    saved.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 259)])
    saved.save(str(tmp_path / "tokenizer.json"))
    save(tmp_path, FEW)                                   # tokenizer.json comes first
    loaded = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.find(tmp_path, 300).encode("low12") == loaded.encode("low12")
    one, two = symbols.index("1"), symbols.index("2")
    assert loaded.encode("low12") == [259, 257, one, two] and loaded.vocab_size == 260
    assert loaded.decode(loaded.encode("low12")[1:]) == "low12"
    with refused("tokenizer.json: has 260 tokens"):
        tokenizer.find(tmp_path, 259)


# ---------------------------------------------------------------------------- oracle


@byte_pairs
@pytest.mark.oracle
def test_transformers_reads_an_exported_tokenizer_that_is_not_gpt2_s(tmp_path):
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    trained = library.SentencePieceBPETokenizer()
    trained.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9, 80)
    trained.save(str(tmp_path / "w.tokenizer.json"))
    (tmp_path / "back").mkdir()
    for name, data in tokenizer_files(tmp_path / "w.npz", 300).items():
        (tmp_path / "back" / name).write_bytes(data)
    (tmp_path / "back" / "config.json").write_text('{"model_type": "gpt2"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ours = tokenizer.find(tmp_path / "w.npz", 300)
    assert theirs.encode("the lazy fox") == ours.encode("the lazy fox")
