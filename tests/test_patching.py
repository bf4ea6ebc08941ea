"""Patching, attribution and lenses: equal to the same by hand, and right on a model that is built
to do a known thing in a known place."""

import copy
import csv
import os

import numpy as np
import pytest

import minifpt
from minifpt import cli
from minifpt.reports import patching

T, H = 6, 2


@pytest.fixture(params=["gpt2", "llama"])
def model(request, randomise):
    shape = {"gpt2": "random:2x2x8", "llama": "random:llama:2x2/1x8"}[request.param]
    return randomise(minifpt.FPT(minifpt.trunks.get(shape, dropout=0.0, dtype=np.float64), 3, 4, 2))


def batch(seed=0, B=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, T, 3)), rng.integers(0, 2, (B, 2, 2))


def score_of(y):
    return lambda logits: float((logits * patching.gradient_of_score(logits, y, 2)).sum())


def test_the_score_is_the_right_logit_minus_the_others():
    logits, y = np.random.default_rng(0).standard_normal((5, 2, 6)), np.ones((5, 2, 2), int)
    by_hand = logits.reshape(5, 2, 2, 3)
    expected = (by_hand[..., 1] - (by_hand[..., 0] + by_hand[..., 2]) / 2).mean()
    gradient = patching.gradient_of_score(logits, y, 3)
    assert np.isclose((logits * gradient).sum(), expected)


def test_maps_equal_traces_with_changes(model):
    (clean, y), (corrupted, _) = batch(0), batch(1)
    score = score_of(y)
    maps = patching.patch(model, clean, corrupted, score)
    with minifpt.trace(model) as t:
        best = score(model.forward(clean)[0])
    worst = score(model.predict(corrupted))
    assert np.isclose(maps.clean, best) and np.isclose(maps.corrupted, worst)
    for part, name in (("block", "trunk.h.{}"), ("attn", "trunk.h.{}.attn"),
                       ("mlp", "trunk.h.{}.mlp")):
        for i in range(2):
            name_i = name.format(i)
            value = t.outputs[name_i]
            for token in range(T):
                at = token - T + value.shape[1]
                if at < 0:                                # not computed in the last block
                    assert maps.parts[part][i, token] == 0
                    continue

                def put(y, value=value, at=at):
                    y[:, at] = value[:, at]
                    return y
                with minifpt.trace(model, {name_i: put}):
                    patched = score(model.forward(corrupted)[0])
                assert np.isclose(maps.parts[part][i, token], (patched - worst) / (best - worst))
    value = next(s.output for s in t.steps if s.name == "trunk.h.0.attn.attention")

    def put_head(y):
        y[..., 4:] = value[..., 4:]
        return y
    with minifpt.trace(model, {"trunk.h.0.attn.attention": put_head}):
        patched = score(model.forward(corrupted)[0])
    assert np.isclose(maps.heads[0, 1], (patched - worst) / (best - worst))


def test_nothing_remains_changed(model):
    (clean, y), (corrupted, _) = batch(0), batch(1)
    for p in model.parameters():                          # of a backward pass before
        p.grad = np.ones_like(p.data)
    before = copy.deepcopy(model)
    patching.patch(model, clean, corrupted, score_of(y))
    patching.attribute(model, clean, y, 2)
    patching.lens(model, clean, y, 2)
    with pytest.raises(ZeroDivisionError):
        patching.patch(model, clean, corrupted, lambda logits: 1 / 0)
    assert not any("forward" in vars(layer) for _, layer in minifpt.layers.named_layers(model))
    for old, p in zip(before.parameters(), model.parameters(), strict=True):
        assert np.array_equal(old.data, p.data) and old.trainable == p.trainable
        assert (p.grad == 1).all()


def test_attributions_add_up_and_are_what_removing_a_part_would_change(model):
    """With the norm's scale frozen the score is linear in each part, so that a head whose output
    is doubled just before the last norm adds its share once more."""
    x, y = batch()
    direct = patching.attribute(model, x, y, 2)
    score = score_of(y)(model.predict(x))
    total = direct.heads.sum() + direct.mlp.sum() + direct.embedding + direct.rest
    assert np.isclose(total, score)
    with minifpt.trace(model) as t:
        logits, _ = model.forward(x)
    norm = model.trunk.ln_f
    stream = t.outputs["trunk.h.1"]
    centre = stream.mean(-1, keepdims=True) if hasattr(norm, "bias") else 0.0
    scale = np.sqrt(((stream - centre) ** 2).mean(-1, keepdims=True) + norm.eps)

    def frozen(value):
        """The score of a residual stream, the scale of the norm as it was."""
        value = value - (value.mean(-1, keepdims=True) if hasattr(norm, "bias") else 0.0)
        hidden = value / scale * norm.weight.data + (
            norm.bias.data if hasattr(norm, "bias") else 0.0)
        return score_of(y)(hidden @ model.output.weight.data + model.output.bias.data)
    assert np.isclose(frozen(stream), score)
    assert np.isclose(frozen(stream + t.outputs["trunk.h.1.mlp"]) - score, direct.mlp[1])
    block = model.trunk.h[0]
    heads = next(s.output for s in t.steps if s.name == "trunk.h.0.attn.attention")[:, -2:]
    w = patching.projection(block.attn)[1].weight.data
    for head in range(H):
        part = heads[..., 4 * head:4 * head + 4] @ w[4 * head:4 * head + 4]
        assert np.isclose(frozen(stream + part) - score, direct.heads[0, head])


@pytest.mark.parametrize("on", ["attn.*", "attn.c_proj", "mlp.*", "output"])
def test_a_low_rank_adapter_counts_where_it_acts(randomise, on):
    """Merging leaves the outputs as they are, so it must leave every share as it is."""
    task = minifpt.tasks.get("bit-xor")
    adapted = minifpt.FPT.for_task(task, "random:2x2x8", adapt=f"lora:rank=3,on={on}")
    randomise(adapted)
    x, y = task.batch(np.random.default_rng(0), 8, "test")
    before = patching.attribute(adapted, x, y, 2)
    after = patching.attribute(minifpt.adapters.merge(adapted), x, y, 2)
    for name in ("heads", "mlp", "embedding", "rest"):
        np.testing.assert_allclose(getattr(before, name), getattr(after, name), atol=1e-5)


def test_the_lens_after_the_last_block_is_the_model(model):
    x, y = batch()
    result = patching.lens(model, x, y, 2)
    right = model.predict(x).reshape(5, 2, 2, 2).argmax(-1) == y
    assert np.isclose(result.accuracy[-1], right.mean()) and len(result.accuracy) == 3
    assert ((0 <= result.backward) & (result.backward <= 1)).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_language_model_is_read_through_its_table(randomise, kind):
    shape = dict(n_layer=2, n_head=2, n_embd=8, n_positions=T, vocab_size=5, dropout=0.0)
    lm = randomise({"gpt2": lambda: minifpt.LanguageModel(
                        minifpt.GPT2Config(**shape), 0, np.float64),
                    "llama": lambda: minifpt.trunks.LlamaLM(
                        minifpt.trunks.LlamaConfig(**shape, tied=False), 0, np.float64)}[kind]())
    ids = np.random.default_rng(0).integers(0, 5, (3, T))
    x, y = ids[:, :-1], ids[:, 1:]
    result = patching.lens(lm, x, y, 5)
    assert np.isclose(result.accuracy[-1], (lm.logits(x).argmax(-1) == y).mean())
    direct = patching.attribute(lm, x, y, 5)
    score = (lm.logits(x) * patching.gradient_of_score(lm.logits(x), y, 5)).sum()
    assert np.isclose(direct.heads.sum() + direct.mlp.sum() + direct.embedding + direct.rest, score)
    assert np.isclose(direct.rest, 0, atol=1e-9) == (kind == "llama")     # it has no biases


def test_a_head_that_copies_is_found():
    """A trunk in which head 1 of block 0 alone moves the first token's channels to the last."""
    trunk = minifpt.GPT2(minifpt.GPT2Config(2, 2, 8, T, 1, 0.0), dtype=np.float64)
    for p in trunk.parameters():
        if p.data.ndim == 2:
            p.data[:] = 0
    model = minifpt.FPT(trunk, 3, 2, 1)
    attn = trunk.h[0].attn
    attn.c_attn.weight.data[:, 20:24] = np.random.default_rng(0).standard_normal((8, 4))  # values
    attn.c_proj.weight.data[4:, :4] = np.eye(4)
    trunk.wpe.weight.data[0, 7] = 5.0                     # position 0 is looked at by all
    attn.c_attn.bias.data[4] = 30.0                       # queries of head 1
    attn.c_attn.weight.data[7, 12] = 3.0                  # its keys
    (clean, _), (corrupted, _) = batch(0), batch(1)
    corrupted[:, 1:] = clean[:, 1:]                       # they differ in the first token
    y = np.zeros((5, 1, 1), int)
    maps = patching.patch(model, clean, corrupted, score_of(y))
    assert np.unravel_index(np.abs(maps.heads).argmax(), (2, 2)) == (0, 1)
    assert maps.heads[0, 1] > 0.9 and np.abs(maps.heads[0, 0]) < 0.1
    assert maps.parts["attn"][0].argmax() == T - 1 and maps.parts["attn"][0, -1] > 0.9


@pytest.mark.parametrize("make, says", [
    (lambda m, x: patching.patch(m, x, x, lambda logits: 1.0), "one score"),
    (lambda m, x: patching.patch(m, x, x[:2], lambda logits: 1.0), "one shape"),
    (lambda m, x: patching.patch(minifpt.FPT(minifpt.trunks.get("lstm:1x8"), 3, 4), x, x,
                                 lambda logits: 1.0), "LSTM"),
    *((lambda m, x, f=f, y=y: f(m, x, y, 2), "expected integers below 2")
      for f in (patching.attribute, patching.lens)
      for y in (np.full((5, 1, 2), 2), np.full((5, 1, 2), -1), np.zeros((5, 1, 2)),
                np.zeros((5, 1), int)))])
def test_what_is_refused_in_one_line(make, says):
    model = minifpt.FPT(minifpt.trunks.get("random:2x2x8"), 3, 4)
    with pytest.raises(ValueError) as error:
        make(model, batch()[0].astype(np.float32))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_command_draws_a_run(tmp_path, monkeypatch, capsys, fails, drawn):
    monkeypatch.chdir(tmp_path)
    line = ["train", "bit-xor", "--model", "random:2x2x8", "--steps", 2, "--out", "r"]
    assert cli.main(line) == 0
    assert cli.main(["patch", "r", "--examples", 8]) == 0
    assert "nothing to restore" in capsys.readouterr().out      # it has learned nothing yet
    assert os.path.getsize("r/patch.png") > 10_000
    with open("r/patch.csv", newline="") as f:
        lines = list(csv.DictReader(f))
    assert sum(line["map"] == "patch head" for line in lines) == 4
    assert sum(line["map"] == "patch block" for line in lines) == 20
    real = patching.patch
    for share, text in (-0.004, "no head restores any of"), (0.25, "restores most, 25 % of the"):
        monkeypatch.setattr(patching, "patch", lambda *given, share=share: real(*given)._replace(
            heads=np.full((2, 2), share), clean=1.0, corrupted=0.0))
        assert cli.main(["patch", "r", "--examples", 8]) == 0  # its own files are replaced
        assert text in capsys.readouterr().out
    (tmp_path / "r" / "patch.csv").write_text("notes")
    for argv in (["patch", "r"], ["patch", "r", "--examples", 1], ["patch", "none"],
                 ["patch", "r", "--out", "a.svg"]):
        fails(*argv)
