"""Trunks beside the three that ship: mimetic, brackets, copy, masked text, images seen whole."""

import math

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from test_data import write_mnist

import minifpt
from minifpt import tasks
from minifpt.experiments import pretrain
from minifpt.files import weights
from minifpt.layers import standard_normal
from minifpt.tasks.formal import CAPITAL, SMALL, STOP
from minifpt.trunks.names import TrunkSpec

SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 49, "vocab_size": 256}
make = minifpt.trunks.get


# ---------------------------------------------------------------------------- mimetic


@pytest.mark.parametrize("layers, heads, channels", [(2, 2, 16), (1, 1, 12), (1, 4, 64)])
def test_mimetic_products_are_what_the_formula_says(layers, heads, channels):
    C, D, one = channels, channels // heads, np.eye(channels)
    trunk = make(f"mimetic:{layers}x{heads}x{C}", seed=3, dtype=np.float64)

    def z(name):
        return standard_normal((C, C), 3, name) / np.sqrt(C, dtype=np.float64)
    for i, block in enumerate(trunk.h):
        q, k, v = np.split(block.attn.c_attn.weight.data, 3, axis=1)
        product = v @ block.attn.c_proj.weight.data
        np.testing.assert_allclose(product, 0.4 * z(f"h.{i}.value_projection") - 0.4 * one,
                                   atol=1e-12)
        # The same, without knowing how Z is drawn.
        off = product[~one.astype(bool)]
        assert abs(np.diag(product).mean() + 0.4) < 5 * 0.4 / C
        assert abs(off.std() * np.sqrt(C) - 0.4) < 5 * 0.4 / np.sqrt(2 * off.size)
        for h in range(heads):
            part = np.s_[:, h * D:(h + 1) * D]
            product = q[part] @ k[part].T
            expected = 0.7 * z(f"h.{i}.query_key.{h}") + 0.7 * one
            assert np.linalg.matrix_rank(product) == D
            # No product of rank D is closer: what is left is as large as the next singular value.
            s = np.append(np.linalg.svd(expected, compute_uv=False), 0.0)
            assert np.linalg.norm(expected - product, 2) == pytest.approx(s[D], abs=1e-12)
            assert np.linalg.norm(expected - product) == pytest.approx(
                np.linalg.norm(s[D:]), abs=1e-12)
            # Both factors take their share.
            assert np.linalg.norm(q[part]) == pytest.approx(np.linalg.norm(k[part]))
        assert not block.attn.c_attn.bias.data.any() and not block.attn.c_proj.bias.data.any()


def test_mimetic_leaves_the_rest_as_random():
    for spread in ("", "@1.41"):
        a, b = make(f"mimetic:2x2x16{spread}", seed=1), make(f"random:2x2x16{spread}", seed=1)
        assert a.config == b.config and a.config.dropout == 0.1
        for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
            changed = ".attn." in name and name.endswith("weight")
            assert np.array_equal(p.data, q.data) != changed, name


def test_mimetic_seed_and_dtype():
    a, b, c = (make("mimetic:1x2x16", seed=s) for s in (0, 0, 1))
    double = make("mimetic:1x2x16", dtype=np.float64, dropout=0.3)
    assert double.config.dropout == 0.3
    for p, q, r, d in zip(*(t.parameters() for t in (a, b, c, double)), strict=True):
        assert p.data.dtype == np.float32 and d.data.dtype == np.float64
        np.testing.assert_array_equal(p.data, q.data)
        np.testing.assert_allclose(p.data, d.data, atol=1e-6)
        assert (p.data != r.data).any() or np.ptp(p.data) == 0
    heads = a.h[0].attn.c_attn.weight.data[:, :16].reshape(16, 2, 8)
    assert (heads[:, 0] != heads[:, 1]).all()             # each head has a draw of its own


@pytest.mark.parametrize("text, label", [
    ("mimetic", "mimetic"), ("mimetic:gpt2", "mimetic (gpt2)"), ("mimetic@1.41",
     "mimetic (spread 1.41)"), ("minigpt-language+attn=mimetic", "language + attn of mimetic")])
def test_mimetic_trunks_have_labels(text, label):
    assert TrunkSpec.parse(text).label == label
    assert TrunkSpec.parse("mimetic:1x2x16").config().n_embd == 16


@pytest.mark.parametrize("text, drawn", [
    ("minigpt-language", False), ("my-random.npz", False), ("random", True), ("mimetic", True),
    ("statistics:minigpt-language", True), ("lstm:1x8", True), ("mine.py:trunk", True),
    ("minigpt-language+ln=random", True), ("minigpt-language+ln=minigpt-bits", False)])
def test_only_random_trunks_are_drawn_from_the_seed(text, drawn):
    assert TrunkSpec.parse(text).drawn == drawn


@pytest.mark.parametrize("text, message", [
    ("mimetic:gpt3", "--model mimetic:gpt3: no shape 'gpt3', expected one of gpt2"),
    ("mimetic@0", "the spread is '0', expected a positive number"),
    ("mimetic@x", "the spread is 'x'")])
def test_wrong_mimetic_names_are_refused(text, message):
    with refused(message):
        make(text)


# ------------------------------------------------------------------- brackets and copy


def walk(string, depth):
    """The open brackets before each symbol of a string of brackets, which must be legal."""
    stack, before = [], []
    for symbol in map(int, string):
        before.append(list(stack))
        if symbol >= SMALL:
            stack.append(symbol)
            assert len(stack) <= depth
        else:
            assert stack.pop() - SMALL == symbol - CAPITAL
    return before


@given(st.integers(1, 26), st.integers(1, 9), st.integers(0, 30), st.integers(0, 99))
def test_brackets_match(kinds, depth, more, seed):
    task = tasks.Brackets(kinds, depth, depth + more)
    x, y = task.batch(np.random.default_rng(seed), 5)
    assert x.shape == y.shape == (5, depth + more) and x.dtype == y.dtype == np.int64
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    for string in np.column_stack([x[:, 0], y]):
        walk(string, depth)
        assert ((string % 32 - 1 >= 0) & (string % 32 - 1 < kinds)).all()
    assert task.determined(y).any(axis=1).all()


def brackets_chances(task, string):
    """The chances (256,) of each symbol of a string but the first, by the rule."""
    for stack in walk(string, task.depth)[1:]:
        chances = np.zeros(256)
        close = 0.0 if not stack else 1.0 if len(stack) == task.depth else 0.5
        chances[SMALL:SMALL + task.kinds] = (1 - close) / task.kinds
        if stack:
            chances[stack[-1] - SMALL + CAPITAL] = close
        yield chances


def copy_chances(task, string):
    first = 1 + [*map(int, string)].index(STOP)           # symbols of the string and its stop
    for t in range(1, len(string)):
        chances = np.zeros(256)
        if t >= first:
            chances[string[t - first]] = 1.0
        else:
            lengths = task.most + 1 - t                   # lengths that it can still have
            stop = 0.0 if t < task.least else 1 / min(lengths, task.most + 1 - task.least)
            chances[SMALL:SMALL + task.letters] = (1 - stop) / task.letters
            chances[STOP] = stop
        yield chances


@pytest.mark.parametrize("task, rule", [
    (tasks.Brackets(3, 4, 60), brackets_chances), (tasks.Brackets(1, 2, 40), brackets_chances),
    (tasks.Copy(3, 9, 5, 40), copy_chances), (tasks.Copy(6, 6, 2, 9), copy_chances)],
    ids=["brackets", "one kind", "copy", "one length"])
def test_knowing_the_rule_gives_the_entropy_as_loss(task, rule):
    x, y = task.batch(np.random.default_rng(0), 200)
    p = np.array([[*rule(task, s)] for s in np.column_stack([x[:, 0], y])])
    logits = np.log(np.maximum(p, np.exp(-100.0)))
    losses = [task.loss(logits[i:i + 1], y[i:i + 1])[0] for i in range(len(x))]
    gaps = losses + (p * logits).sum(axis=-1).mean(axis=1)
    assert abs(gaps.mean()) < 4 * gaps.std() / np.sqrt(len(x)) + 1e-9
    assert task.accuracy(logits, y) == 1.0
    assert task.accuracy(np.roll(logits, 1, axis=-1), y) == 0.0


def test_a_fair_coin_opens_and_closes():
    x, y = tasks.Brackets(5, 100, 200).batch(np.random.default_rng(0), 50)
    inside = np.array([[bool(stack) for stack in walk(s, 100)[1:]]
                       for s in np.column_stack([x[:, 0], y])])
    opens = (y >= SMALL)[inside]
    assert abs(opens.mean() - 0.5) < 4 * 0.5 / np.sqrt(opens.size)
    kinds = np.bincount(y[y >= SMALL] - SMALL)
    assert len(kinds) == 5 and abs(kinds / kinds.sum() - 0.2).max() < 0.03


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 26), st.integers(1, 20),
       st.integers(0, 99))
def test_copies_repeat_their_string(least, more, letters, tokens, seed):
    task = tasks.Copy(least, least + more, letters, least + more + tokens)
    x, y = task.batch(np.random.default_rng(seed), 5)
    for string in np.column_stack([x[:, 0], y]):
        word, *rest = bytes(string.astype(np.uint8)).decode().split(".")
        assert least <= len(word) <= least + more and rest and word.islower()
        assert max(word) < chr(SMALL + letters)
        assert all(part == word for part in rest[:-1]) and word.startswith(rest[-1])
    assert task.determined(y).any(axis=1).all()


@pytest.mark.parametrize("task", [tasks.Brackets(), tasks.Copy()])
def test_strings_are_fresh_and_the_test_set_is_not(task):
    a, b = (task.batch(np.random.default_rng(s), 3)[0] for s in (0, 1))
    assert (a != b).any() and a.shape == (3, 256)
    np.testing.assert_array_equal(a, task.batch(np.random.default_rng(0), 3)[0])
    np.testing.assert_equal(task.test_set(), task.test_set())
    assert type(task)(**task.options).options == task.options


@pytest.mark.parametrize("name, options, message", [
    ("Brackets", {"kinds": 27}, "at most 26"), ("Brackets", {"kinds": 0}, "kinds must be a whole"),
    ("Brackets", {"tokens": 9}, "tokens must be a whole number, at least 16, got 9"),
    ("Copy", {"least": 9, "most": 8}, "expected least <= most < tokens"),
    ("Copy", {"most": 256}, "expected least <= most < tokens"), ("Copy", {"letters": 27}, "<= 26")])
def test_wrong_options_are_refused(name, options, message):
    with refused(message):
        getattr(tasks, name)(**options)


# ------------------------------------------------------------------------- masked text


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    return path


def test_fifteen_per_cent_of_the_bytes_are_masked(book):
    task = tasks.Masked([book], 40)
    x, y = task.batch(np.random.default_rng(0), 2000)
    chosen = y >= 0
    assert (chosen.sum(axis=1) == 6).all()                # 15 % of 40
    assert abs(chosen.mean(axis=0) - 0.15).max() < 0.04   # in all places
    text = np.where(chosen, y, x)
    raw = book.read_bytes()
    assert all(bytes(row) in raw for row in text[:50].astype(np.uint8))
    masked, kept = (x == 0)[chosen], (x == y)[chosen]
    assert not (x[~chosen] == 0).any() and set(y[~chosen]) == {-1}
    assert abs(masked.mean() - 0.8) < 0.02
    # One of 10 is replaced, by itself in one of 27 cases.
    assert abs(kept.mean() - 0.1 - 0.1 / 27) < 0.01
    assert set(x[chosen][~masked]) <= set(raw)
    np.testing.assert_equal(task.test_set(), task.test_set())
    assert (task.batch(np.random.default_rng(1), 2000)[1] != y).any()
    x, y = task.test_set()
    np.testing.assert_array_equal(np.where(y >= 0, y, x), tasks.Text([book], 40).test_set()[0])


@given(st.integers(1, 4), st.integers(7, 20), st.integers(0, 99))
def test_the_loss_of_what_was_chosen(B, T, seed):
    rng = np.random.default_rng(seed)
    task = tasks.Masked.__new__(tasks.Masked)             # loss and accuracy need no text
    task.output_tokens = T
    y = np.where(rng.random((B, T)) < 0.3, rng.integers(0, 256, (B, T)), -1)
    y[0, 0] = 7
    logits = rng.standard_normal((B, T, 256))
    loss, dlogits = task.loss(logits, y)
    chosen = y >= 0
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    assert loss == pytest.approx(-np.log([p[b, t, y[b, t]] for b, t in np.argwhere(chosen)]).mean())
    assert dlogits.dtype == np.float64 and not dlogits[~chosen].any()
    assert minifpt.gradcheck(lambda x: task.loss(x, y), lambda dy, g: dy * g, (logits,))
    moved = logits + ~chosen[..., None] * rng.standard_normal(logits.shape)
    assert task.loss(moved, y)[0] == loss and task.accuracy(moved, y) == task.accuracy(logits, y)
    best = np.eye(256)[y]
    assert task.accuracy(best, y) == 1.0 and task.accuracy(-best, y) == 0.0
    loss, dlogits = task.loss(logits.astype(np.float32), y)
    assert type(loss) is float and dlogits.dtype == np.float32


@pytest.mark.oracle
def test_masked_loss_is_pytorch_s():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    task = tasks.Masked.__new__(tasks.Masked)
    task.output_tokens = 12
    y = np.where(rng.random((3, 12)) < 0.3, rng.integers(0, 256, (3, 12)), -1)
    logits = rng.standard_normal((3, 12, 256))
    loss, dlogits = task.loss(logits, y)
    theirs = torch.tensor(logits, requires_grad=True)
    want = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), torch.tensor(y).flatten(),
                                             ignore_index=-1)
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-12)
    np.testing.assert_allclose(dlogits, theirs.grad.numpy(), rtol=1e-10, atol=1e-15)


def test_a_text_with_the_byte_of_the_mask_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some text \x00" * 100)
    with refused("masked: the text contains byte 0"):
        tasks.Masked([tmp_path], 16)


# ------------------------------------------------------------------------- pretraining


@pytest.fixture
def pretrained(book, tmp_path, monkeypatch):
    """Pretrain from a source, a few steps of a tiny trunk; the path of the weights."""
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE)
    write_mnist(tmp_path / "data")

    def run(source, **options):
        options = {"steps": 2, "batch_size": 2, "progress": False} | options
        data = {"masked": {"text": [book]}, "vision": {"data": tmp_path / "data"},
                "images": {"data": tmp_path / "data"}}
        pretrain.pretrain(source, tmp_path / f"minigpt-{source}", **data.get(source, {}), **options)
        return tmp_path / f"minigpt-{source}.npz"
    monkeypatch.setattr(tasks.Copy.__init__, "__defaults__", (8, 20, 26, 256))
    return run


@pytest.mark.parametrize("source, causal, table", [
    ("brackets", True, True), ("copy", True, True), ("masked", False, True),
    ("bits", True, False), ("images", True, False), ("vision", False, False)])
def test_each_source_pretrains_a_trunk_that_loads(pretrained, source, causal, table):
    path = pretrained(source)
    config, tensors = weights.read(path)
    assert config["causal"] is causal and ("wte.weight" in tensors) is table
    last = minifpt.History.load(path.with_suffix(".csv"))[-1]
    assert f"pretrain {source} --steps 2" in config["command"] and config["source"] == source
    assert [config[k] for k in ("test_loss", "test_accuracy")] == [
        round(last[k], 4) for k in ("test_loss", "test_accuracy")]
    assert config["dropout"] == 0.1 and (config.get("text"), config.get("task")) == {
        "masked": (["book.txt"], None), "vision": (None, "mnist"), "images": (None, "mnist"),
        "bits": (None, "bit-memory")}.get(source, (None, source))
    start = dict(minifpt.GPT2(minifpt.GPT2Config(**SHAPE), seed=0).named_parameters())
    for name in "h.0.mlp.c_fc.weight", "h.0.attn.c_attn.weight":          # nothing is frozen
        assert np.abs(tensors[name].read() - start[name].data).max() > 2e-4
    # Whatever is made of it looks as far as it does.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 8)).astype(np.float32)
    later = x.copy()
    later[:, -1] = rng.standard_normal(8)
    for text in (path, f"statistics:{path}", f"{path}+attn,mlp,ln,pos=statistics:{path}"):
        spec = TrunkSpec.parse(text)
        trunk = spec.make()
        assert trunk.config.causal is spec.config().causal is causal
        assert spec.label.startswith(("statistics", source))
        same = np.array_equal(trunk.forward(x)[0][:, 0], trunk.forward(later)[0][:, 0])
        assert same is causal
    task = tasks.get("bit-xor")
    history = minifpt.train(minifpt.FPT(trunk, 1, 2, 5), task, steps=1, progress=False)
    assert math.isfinite(history[-1]["train_loss"])
    if table:
        lm = minifpt.LanguageModel.from_pretrained(path)
        assert lm.config.causal is causal
        if not causal:
            with pytest.raises(ValueError, match="not causal"):
                lm.generate([1, 2], 3)


def test_masked_bytes_are_learned(pretrained, book, monkeypatch):
    """Each is as its neighbours are, which says more than how frequent it is."""
    book.write_text("".join(letter * 100 for letter in "abcdefgh" * 6))
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE | {"n_positions": 20})
    path = pretrained("masked", steps=150, batch_size=16, lr=1e-2)
    loss = minifpt.History.load(path.with_suffix(".csv"))[-1]["test_loss"]
    assert loss < 0.8 * math.log(8)
