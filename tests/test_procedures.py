"""Tasks and pretraining sources that a short rule makes."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import sources
from minifpt import GPT2, GPT2Config, tasks
from minifpt.files import weights
from minifpt.trunks.names import TrunkSpec


def rng(seed=0):
    return np.random.default_rng(seed)


# --------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("source", ["uniform", "zipf", "markov", "text"])
def test_recall_asks_for_what_followed_the_last_time(source):
    task = tasks.get("recall", symbols=16, tokens=12, source=source)
    x, y = task.batch(rng(), 200, "test")
    needed = task.needed(x)[:, -1]
    for row, answer, looks in zip(x.tolist(), y[:, 0], needed, strict=True):
        *passage, query = row
        last = max(i for i in range(len(passage) - 1) if passage[i] == query)
        assert answer == passage[last + 1] and np.flatnonzero(looks).tolist() == [last + 1]


def test_bit_recall_asks_for_the_item_after_the_last_place_of_the_query():
    task = tasks.get("bit-recall", items=9, bits=2)       # few different items: they come again
    x, y = task.batch(rng(), 200, "test")
    needed = task.needed(x)[:, -1]
    for row, answer, looks in zip(x.tolist(), y[:, 0], needed, strict=True):
        *items, query = row
        last = max(i for i in range(len(items) - 1) if items[i] == query)
        assert (2 * answer - 1).tolist() == items[last + 1]
        assert np.flatnonzero(looks).tolist() == [last + 1]


def test_recall_s_sources_go_from_bits_to_text():
    """The more of the text a source has, the better do pairs of neighbours tell its symbols."""
    def entropies(source):
        x = tasks.get("recall", symbols=32, tokens=200, source=source).batch(rng(), 400)[0][:, :-1]
        pairs = np.bincount((32 * x[:, :-1] + x[:, 1:]).ravel(), minlength=1024) / x[:, 1:].size
        alone = pairs.reshape(32, 32).sum(axis=1)
        bits = [-(p[p > 0] * np.log2(p[p > 0])).sum() for p in (alone, pairs)]
        return bits[0], bits[1] - bits[0]
    uniform, zipf, markov, text = map(entropies, ("uniform", "zipf", "markov", "text"))
    assert uniform == pytest.approx((5, 5), abs=0.02)
    assert zipf[0] < 4.6 and zipf[1] == pytest.approx(zipf[0], abs=0.05)
    assert markov[0] == pytest.approx(zipf[0], abs=0.05) and markov[1] < zipf[1] - 0.5
    assert text == pytest.approx(markov, abs=0.15)


@given(st.integers(0, 9), st.integers(1, 12))
def test_addition_adds(seed, digits):
    task = tasks.get("addition", digits=digits)
    x, y = task.batch(rng(seed), 5)
    for row, answer in zip(x, y, strict=True):
        a, b = (int("".join(map(str, part[::-1]))) for part in (row[:digits], row[digits:-1]))
        assert a + b == int("".join(map(str, answer[::-1])))


@pytest.mark.parametrize("digits", [1, 2, 10])
def test_chance_of_addition_is_the_share_of_the_commonest_answers(digits):
    task = tasks.get("addition", digits=digits)
    _, y = task.batch(rng(1), 20000, "train")
    shares = [np.bincount(places).max() / len(places) for places in y.T]
    assert abs(task.chance - np.mean(shares)) < 0.01


@pytest.mark.parametrize("source", ["zipf", "markov", "text"])
def test_chance_of_recall_is_the_share_of_the_commonest_answer(source):
    task = tasks.get("recall", source=source)
    _, y = task.batch(rng(1), 5000, "train")
    assert abs(task.chance - np.bincount(y[:, 0]).max() / 5000) < 0.03


def test_modular_keeps_pairs_for_the_tests():
    task = tasks.get("modular", p=13)
    split = {name: {*map(tuple, task.batch(rng(), 900, name)[0].tolist())} for name in task.splits}
    assert len(split["test"]) == len(task.test_set()[0]) > 4
    for name in "test", "validation":                     # (b, a) has the same sum
        assert not {pair for a, b in split[name] for pair in ((a, b), (b, a))} & split["train"]
    assert not split["test"] & split["validation"]
    x, y = task.test_set()
    np.testing.assert_array_equal(y[:, 0], (x[:, 0] + x[:, 1]) % 13)


@pytest.mark.parametrize("name, options, message", [
    ("recall", {"symbols": 65}, "at most 64"), ("recall", {"source": "bits"}, "expected one of"),
    ("recall", {"tokens": 10**6, "source": "text"}, "at most"),
    ("recall", {"tokens": 2}, "tokens must be"), ("modular", {"p": 4}, "p must be"),
    ("addition", {"digits": 0}, "digits must be")])
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=f"^{name}: [^\n]*{message}[^\n]*$"):
        tasks.get(name, **options)


# ----------------------------------------------------------------------- procedural data


ANSWERS = {"set": lambda q: "".join(dict.fromkeys(q)), "reverse": lambda q: q[::-1],
           "sort": lambda q: "".join(sorted(q))}


def on_a_stack(question):
    stack = []
    for symbol in question:
        stack = stack[:-1] if symbol == "-" else [*stack, symbol]
    return "".join(stack[::-1])


@pytest.mark.parametrize("name", ["set", "reverse", "sort", "stack"])
def test_answers_follow_their_questions(name):
    task = sources.PROCEDURES[name][1](3, 7, tokens=90)
    x, y = task.batch(rng(), 8)
    for row, after in zip(x, y, strict=True):
        text = "".join(map(chr, [*row, after[-1]]))
        parts = text.split(".")[:-1]
        for question, answer in zip(parts[::2], parts[1::2], strict=False):
            assert 3 <= len(question) <= 7
            assert answer == ANSWERS.get(name, on_a_stack)(question)
        # The accuracy is that of answers, each with its full stop.
        asked = "".join(np.where(task.determined(after[None])[0], "^", " "))
        at = text.index(".")
        assert asked[:at] == " " * at and asked[at:at + len(parts[1]) + 1] == "^" * (
            len(parts[1]) + 1) and asked[at + len(parts[1]) + 1] == " "


def test_automata_follow_their_rule():
    task = sources.Automata(width=9, rule=30, tokens=60)
    x, y = task.batch(rng(), 4)
    for row, after in zip(x, y, strict=True):
        rows = [[*map("ab".index, part)] for part in
                "".join(map(chr, [*row, after[-1]])).split(".") if len(part) == 9]
        assert len(rows) > 4
        for now, later in zip(rows, rows[1:], strict=False):
            assert later == [30 >> (4 * now[i - 1] + 2 * now[i] + now[(i + 1) % 9]) & 1
                             for i in range(9)]


def test_trigram_text_has_the_trigrams_of_the_text_and_no_passage_of_it():
    task = tasks.Trigrams([weights.shipped("held-out.txt")], tokens=60)
    book = task.bytes["train"].tobytes()
    around = book + book[:2]
    known = {around[i:i + 3] for i in range(len(book))}
    x, _ = task.batch(rng(), 40)
    passages = [bytes(row.tolist()) for row in x]
    assert all(passage[i:i + 3] in known for passage in passages for i in range(58))
    assert not any(passage in book for passage in passages)
    share = np.mean([passage.count(b"the") for passage in passages]) / 60
    assert share == pytest.approx(book.count(b"the") / len(book), rel=0.4)


# ------------------------------------------------------------------------------ spectrum


def test_a_spectrum_trunk_has_the_singular_values_alone(tmp_path):
    trunk = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=6, vocab_size=7), seed=4)
    matrix = trunk.h[0].mlp.c_fc.weight
    matrix.data[:, 0] *= 50                               # one direction stands out
    trunk.save(tmp_path / "a.npz")
    trunk = GPT2.from_pretrained(tmp_path / "a.npz")      # the file has rounded
    matrix = trunk.h[0].mlp.c_fc.weight
    drawn_trunk, again, other = (TrunkSpec.parse(f"spectrum:{tmp_path / 'a.npz'}").make(seed)
                                 for seed in (0, 0, 1))
    pairs = zip(trunk.named_parameters(), drawn_trunk.named_parameters(), strict=True)
    for (name, p), (_, theirs) in pairs:
        if p.data.ndim == 2:
            matrices = [np.linalg.svd(q.data, compute_uv=False) for q in (p, theirs)]
            np.testing.assert_allclose(matrices[1], matrices[0], rtol=1e-4, atol=1e-6, err_msg=name)
            assert abs(np.corrcoef(p.data.ravel(), theirs.data.ravel())[0, 1]) < 0.6, name
    matrices = [t.h[0].mlp.c_fc.weight.data for t in (drawn_trunk, again, other)]
    np.testing.assert_array_equal(matrices[0], matrices[1])
    assert not np.allclose(matrices[0], matrices[2])
    assert TrunkSpec.parse("spectrum:minigpt-language").label == "spectrum"
