"""Tokenizers: there and back, by hand, and GPT-2's own."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

from minifpt.files import tokenizer
from minifpt.files.export import tokenizer_files
from minifpt.files.tokenizer import BPE, Bytes

byte_pairs = pytest.mark.skipif(importlib.util.find_spec("tokenizers") is None,
                                reason="byte pairs need the library tokenizers")

HARD = [
    "", " ", "a  b", "\n\n\n", " \n \t\t x", "tab\tand\r\nline",
    "I'll we've it's 'S 'LL don't 're 'd''s",
    "²½ⅧⅯ ١٢٣ ४५ 一二三 x² H₂O ①", "naïve café cafe\u0301 ß ſ ŉ İ",
    "日本語のテキスト 中文,没有空格。 한국어", "עברית العربية ไทย हिन्दी",
    "👍 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u0301\u0323", "\x00\x01\x1b[0m\x7f\x80\x9f\xad",
    "\x85 \xa0a\u1680b\u2003 c\u2028\u2029\u202f\u205f\u3000d\u200b\ufeff",
    "a<|endoftext|> b<|endoftext|>",
    "def f(x):\n    return x ** 2  # comment\n\n\n", "a" * 1000, " " * 500 + "x"]


@pytest.fixture(scope="session")
def gpt2():
    """GPT-2's own encoding, from its merges.txt."""
    pytest.importorskip("tokenizers")
    folder = Path(os.environ.get("MINIFPT_DATA", "")) / "gpt2-tokenizer"
    if "MINIFPT_DATA" not in os.environ or not (folder / "merges.txt").is_file():
        pytest.skip("set MINIFPT_DATA to a folder with gpt2-tokenizer/merges.txt")
    return BPE(folder)


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


# ----------------------------------------------------------------------- a small BPE


MERGES = [("l", "o"), ("lo", "w"), ("e", "r"), ("Ġ", "low"), ("a", "a"), ("aa", "aa"), ("Ã", "©")]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    pytest.importorskip("tokenizers")
    lines = "".join(f"{a} {b}\n" for a, b in MERGES)
    return BPE(save(tmp_path_factory.mktemp("small"), lines))


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


@given(st.text(), st.text("alower ' \n1é"))
def test_a_text_survives_encoding_and_decoding(small, text, likely):
    for s in (text, likely, text + likely):
        ids = small.encode(s)
        assert small.decode(ids) == s and small.encode(s) == ids


# ------------------------------------------------------------------------------ files


def save(folder, merges="#version: 0.2\nl o\nlo w\n", vocab=None, name=""):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}merges.txt").write_text(merges, encoding="utf-8")
    if vocab is not None:
        (folder / f"{name}vocab.json").write_text(
            vocab if isinstance(vocab, str) else json.dumps(vocab), encoding="utf-8")
    return folder


SYMBOLS = [*tokenizer.byte_vocabulary(), "lo", "low"]


@byte_pairs
def test_merges_are_read_from_a_file_or_folder(tmp_path):
    for path in (save(tmp_path), str(tmp_path), tmp_path / "merges.txt"):
        assert BPE(path).encode("low<|endoftext|>") == [257, 258]
    save(tmp_path, "l o\r\nlo w\r\n")
    assert BPE(tmp_path).encode("low") == [257]
    save(tmp_path, "l o\nlo w", name="x.")
    assert BPE(tmp_path / "x.merges.txt").encode("low") == [257]


@byte_pairs
def test_vocab_gives_the_ids(tmp_path):
    vocab = {s: 2 * i + 5 for i, s in enumerate(reversed(SYMBOLS))} | {"<pad → >": 0}
    t = BPE(save(tmp_path, vocab=vocab))
    assert t.encode("low") == [5] and t.decode([5, 0]) == "low<pad → >"
    assert t.vocab_size == max(vocab.values()) + 1
    ids = t.encode("<|endoftext|>")                       # this vocabulary has no such token
    assert len(ids) == 13 and t.decode(ids) == "<|endoftext|>"


DECODER = {"259": {"content": "<user>", "lstrip": True}, "260": {"content": "<s>", "special": True}}


@byte_pairs
@pytest.mark.parametrize("files, message", [
    *[({"merges.txt": text}, "merges.txt: ")
      for text in ("l o\nlow er\n", "l\0 o\n")],
    *[({"merges.txt": line}, f"merges.txt: the line {line!r} is not two symbols")
      for line in ("l o w", "low", "l  o", "l ", " ")],
    *[({"vocab.json": text}, message) for text, message in (
        ("[]", "vocab.json: expected a JSON object"), ('{"a": "b"}', "each symbol its id"),
        ('{"a": -1}', "each symbol its id"), ('{"a": 9999999999}', "each symbol its id"),
        ('{"a": 1, "b": 1}', "two symbols one id"), ('{"a": 1}', "vocab.json: lacks '!'"),
        ("{", "vocab.json: not JSON"), ("[" * 99999, "vocab.json: not JSON"),
        (json.dumps({s: i for i, s in enumerate(SYMBOLS[:-1])}), "lacks 'low'"))],
    *[({"tokenizer_config.json": text}, message) for text, message in (
        ('{"tokenizer_class": "Qwen2Tokenizer"}', "is of a Qwen2Tokenizer, .* put its tokenizer"),
        ('{"tokenizer_class": 3}', "is of a 3, .* put its tokenizer.json"),
        ('{"add_prefix_space": true}', "no add_prefix_space: put the tokenizer.json"),
        ('{"add_bos_token": true}', "no add_bos_token: put the tokenizer.json"),
        ("[]", "tokenizer_config.json: "))],
    *[({"added_tokens.json": text}, message) for text, message in (
        ('{"<user>": 300}', "'<user>' has the number 300, expected 259"),
        ('{"<user>": "x"}', "added tokens in the files beside it cannot be read"),
        ("[]", "^[^:]*added_tokens.json: expected a JSON object"))],
    *[({"tokenizer_config.json": '{"added_tokens_decoder": ' + text + "}"},
       "added tokens in the files beside it cannot be read") for text in (
           "3", '["<user>"]', '{"259": 7}', '{"x": {"content": "<user>"}}', '{"259": {}}',
           '{"259": {"content": "<user>", "special": "yes"}}')],
    ({"tokenizer.json": "{"}, "tokenizer.json: "),
    ({"merges.txt": None}, "expected a merges.txt|GPT-2's merges.txt, there"), ({}, "pip install")])
def test_damaged_or_missing_files_are_refused(tmp_path, monkeypatch, files, message):
    save(tmp_path)
    for name, text in files.items():
        if text is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(text)
    if not files:
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    with refused(message, (ValueError, FileNotFoundError)):
        tokenizer.find(tmp_path, 400)
    if files == {"merges.txt": None}:
        for path in (tmp_path, tmp_path / "x"):
            with refused("expected a merges.txt", FileNotFoundError):
                BPE(path)


@byte_pairs
def test_a_tokenizer_is_found_beside_the_weights(tmp_path):
    path = tmp_path / "gpt2.npz"
    assert isinstance(tokenizer.find(path, 256), Bytes)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    save(tmp_path)
    assert tokenizer.find(path, 300).vocab_size == tokenizer.find(tmp_path, 300).vocab_size == 259
    save(tmp_path, "l o\n", name="gpt2.")
    assert tokenizer.find(path, 258).vocab_size == 258
    with refused("has 258 tokens, the weights .* have 257"):
        tokenizer.find(path, 257)


@byte_pairs
def test_256_tokens_are_bytes_unless_a_file_orders_them_otherwise(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')    # of another model
    assert isinstance(tokenizer.find(tmp_path / "w.npz", 256), Bytes)
    for name in "bytes.", "other.":
        vocab = tokenizer.byte_vocabulary() if name == "bytes." else {
            symbol: i for i, symbol in enumerate(tokenizer.byte_vocabulary())}
        save(tmp_path, "#version: 0.2\n", vocab, name)
    (tmp_path / "tokenizer.json").unlink()
    assert isinstance(tokenizer.find(tmp_path / "bytes.npz", 256), Bytes)
    assert tokenizer.find(tmp_path / "other.npz", 256).encode("!") == [0]
    assert tokenizer_files(tmp_path / "other.npz", 256)["vocab.json"].startswith(b'{"!": 0')


@byte_pairs
def test_a_tokenizer_json_is_read_as_it_is(tmp_path):
    """One that splits digits, unlike GPT-2's, and starts each text with a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    saved = Tokenizer(models.BPE({s: i for i, s in enumerate([*SYMBOLS, "12", "<s>"])}, [
        ("l", "o"), ("lo", "w"), ("1", "2")]))
    saved.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    saved.decoder = decoders.ByteLevel()
    saved.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 259)])
    saved.save(str(tmp_path / "tokenizer.json"))
    save(tmp_path, "l o\nlo w\n1 2\n")
    loaded = tokenizer.find(tmp_path, 300)
    one, two = SYMBOLS.index("1"), SYMBOLS.index("2")
    assert loaded.encode("low12") == [259, 257, one, two] and loaded.vocab_size == 260
    assert loaded.decode(loaded.encode("low12")[1:]) == "low12"
    with refused("tokenizer.json: has 260 tokens"):
        tokenizer.find(tmp_path, 259)


@byte_pairs
@pytest.mark.parametrize("file, settings, ids", [
    ("added_tokens.json", {"<user>": 259, "<s>": 260}, [257, 220, 259, 71, 260]),
    ("tokenizer_config.json", {"added_tokens_decoder": DECODER}, [257, 259, 71, 260])])
def test_an_added_token_is_one_token(tmp_path, file, settings, ids):
    (save(tmp_path) / file).write_text(json.dumps(settings))
    t = tokenizer.find(tmp_path, 261)
    assert t.encode("low <user>h<s>") == ids and t.decode([259, 260]) == "<user><s>"
    assert tokenizer_files(tmp_path, 261)[file] == (tmp_path / file).read_bytes()
    with pytest.raises(ValueError, match="has 261 tokens"):
        tokenizer.find(tmp_path, 260)


# ----------------------------------------------------------------------------- GPT-2


def test_gpt2_gives_the_known_ids(gpt2):
    """From OpenAI's own encoder, as it is often quoted."""
    assert gpt2.vocab_size == 50257
    assert gpt2.encode("Hello, world!") == [15496, 11, 995, 0]
    assert gpt2.encode("<|endoftext|>") == [50256] and gpt2.decode([50256]) == "<|endoftext|>"
    assert gpt2.decode([220, 198]) == " \n"


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


@pytest.fixture(scope="module")
def merges(gpt2):
    path = Path(os.environ["MINIFPT_DATA"]) / "gpt2-tokenizer" / "merges.txt"
    lines = path.read_text(encoding="utf-8").split("\n")[1:]
    return [tuple(line.split()) for line in lines if line]


@pytest.fixture(scope="module")
def reference(merges):
    """Transformers' tokenizer, with a vocabulary counted by its own table of bytes."""
    pytest.importorskip("transformers")
    from transformers import GPT2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    symbols = [*bytes_to_unicode().values(), *(a + b for a, b in merges), "<|endoftext|>"]
    return GPT2Tokenizer(vocab={s: i for i, s in enumerate(symbols)}, merges=merges)


@pytest.mark.oracle
@pytest.mark.parametrize("text", HARD)
def test_equals_transformers(gpt2, reference, text):
    assert gpt2.encode(text) == reference.encode(text)
    assert gpt2.decode(gpt2.encode(text)) == text


@pytest.mark.oracle
def test_equals_transformers_on_any_text(gpt2, reference):
    @given(st.one_of(st.text(max_size=60), st.text("aAsSlL've 1²\n\t \xa0\u3000é日👍\u200d!",
                                                   max_size=60)))
    def check(text):
        assert gpt2.encode(text) == reference.encode(text)
    check()


@pytest.mark.oracle
def test_a_book_equals_transformers(gpt2, reference):
    books = sorted((Path(os.environ["MINIFPT_DATA"]) / "books").glob("*.txt"))
    if not books:
        pytest.skip("no books in MINIFPT_DATA")
    text = books[0].read_text(encoding="utf-8")[:300_000]
    assert gpt2.encode(text) == reference.encode(text)


@byte_pairs
@pytest.mark.oracle
def test_added_tokens_equal_transformers(tmp_path):
    """In a folder as older versions of Transformers wrote it, without tokenizer.json."""
    transformers = pytest.importorskip("transformers")
    vocab = {symbol: i for i, symbol in enumerate([*SYMBOLS, "<|endoftext|>"])}
    (save(tmp_path, vocab=vocab) / "added_tokens.json").write_text('{"<user>": 259, "<b>": 260}')
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    ours = tokenizer.find(tmp_path, 300)
    for text in ("<user>hi", "low <user> low<b>", "<b><|endoftext|> <user>", "<use>"):
        assert ours.encode(text) == theirs(text)["input_ids"]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer"])
def test_a_folder_s_tokenizer_equals_transformers(reference, merges, tmp_path, name):
    """Qwen2's splits each digit, GPT-2's does not."""
    import transformers
    theirs = getattr(transformers, name)(vocab=reference.get_vocab(), merges=merges)
    theirs.save_pretrained(tmp_path)
    ours = tokenizer.find(tmp_path, 60_000)
    for text in (*HARD, "year 1234"):
        assert ours.encode(text) == theirs(text)["input_ids"]
