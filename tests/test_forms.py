"""The forms of attention heads: the switch in a trunk's name, the aligned start, the measures."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import refused
from scipy.special import kolmogorov, ndtr

import minifpt
from minifpt import cli, trunks
from minifpt.experiments import runs
from minifpt.trunks import forms
from minifpt.trunks.encoder import Encoder, EncoderConfig

SMALL = "random:2x2x16@1.41"


def heads_of(trunk):
    """Return (W_q, W_k) of each head, cut out of the weights by hand, in float64."""
    C, H = trunk.config.n_embd, trunk.config.n_head
    for block in trunk.h:
        if hasattr(block.attn, "q_proj"):
            q, k = block.attn.q_proj.weight.data, block.attn.k_proj.weight.data
        else:
            q, k = np.split(block.attn.c_attn.weight.data[:, :2 * C], 2, axis=1)
        for h in range(H):
            group = h * k.shape[1] // C                   # heads of a group share their keys
            yield [w.astype(np.float64)[:, i * C // H:(i + 1) * C // H]
                   for w, i in ((q, h), (k, group))]


def parts(q, k):
    m = q @ k.T
    return (m + m.T) / 2, (m - m.T) / 2


def bits(trunk):
    return [p.data.tobytes() for _, p in trunk.named_parameters()]


# ---------------------------------------------------------------------------- the switch: random


@pytest.mark.parametrize("shape", ["2x2x16", "llama:2x2x16"])
def test_ninety_degrees_are_the_bits_without_the_switch(shape):
    for dtype in (np.float32, np.float64):
        plain, right = (trunks.get(f"random:{shape}@1.41{qk}", seed=3, dtype=dtype)
                        for qk in ("", ",qk=90"))
        assert bits(plain) == bits(right)


@pytest.mark.parametrize("angle", [0, 35.5, 105, 180])
def test_keys_are_turned_queries_and_the_old_keys(angle):
    a, (before, after) = np.deg2rad(angle), (heads_of(trunks.get(f"{SMALL}{qk}", seed=1))
                                             for qk in ("", f",qk={angle}"))
    for (q, z), (same_q, k) in zip(before, after, strict=True):
        np.testing.assert_array_equal(q, same_q)
        np.testing.assert_allclose(k, np.cos(a) * q + np.sin(a) * z, atol=1e-6)


def test_words_are_angles_and_antisymmetric_forms_have_no_symmetric_part():
    for word, angle in (("positive", 0), ("negative", 180)):
        assert bits(trunks.get(f"{SMALL},qk={word}")) == bits(trunks.get(f"{SMALL},qk={angle}"))
    for q, k in heads_of(trunks.get(f"{SMALL},qk=antisymmetric")):
        s, a = parts(q, k)
        assert np.abs(s).max() < 1e-7 < 0.1 < np.abs(a).max()
        assert np.array_equal(k, np.hstack([q[:, 4:], -q[:, :4]]))


@pytest.mark.parametrize("qk", [0, 60, 135, "antisymmetric", "negative"])
def test_each_number_keeps_its_distribution(qk):
    name = "random:1x4x128@1.41"
    keys = np.concatenate([k.ravel() for _, k in heads_of(trunks.get(f"{name},qk={qk}", seed=5))])
    gaps = ndtr(np.sort(keys / (1.41 / 128 ** 0.5))) - (np.arange(keys.size) + 0.5) / keys.size
    assert kolmogorov(keys.size ** 0.5 * np.abs(gaps).max()) > 1e-3
    others = [[p.data for n, p in trunks.get(text, seed=5).named_parameters() if "c_attn" not in n]
              for text in (name, f"{name},qk={qk}")]
    assert all(np.array_equal(a, b) for a, b in zip(*others, strict=True))


# ------------------------------------------------------------------------- the switch: pretrained


@pytest.mark.parametrize("name", ["minigpt-tiny", "statistics:minigpt-tiny"])
@pytest.mark.parametrize("part", forms.PARTS)
def test_each_form_becomes_its_part_by_definition(name, part):
    whole, trunk = trunks.get(name, dtype=np.float64), trunks.get(f"{name},qk={part}",
                                                                  dtype=np.float64)
    for (q, k), (new_q, new_k) in zip(heads_of(whole), heads_of(trunk), strict=True):
        D, form = q.shape[1], new_q @ new_k.T
        wanted = best_part(*parts(q, k), part, D)
        wanted *= np.linalg.norm(q @ k.T) / np.linalg.norm(wanted)
        np.testing.assert_allclose(form, wanted, atol=1e-9 * np.abs(wanted).max())
        assert np.linalg.matrix_rank(form, tol=1e-9) <= D
    rest = [{n: p.data for n, p in t.named_parameters() if "c_attn.weight" not in n}
            for t in (whole, trunk)]
    assert all(np.array_equal(rest[0][n], rest[1][n]) for n in rest[0])      # biases among them
    C = whole.config.n_embd
    values = [t.h[0].attn.c_attn.weight.data[:, 2 * C:] for t in (whole, trunk)]
    assert np.array_equal(*values)


def best_part(s, a, part, D):
    """Return the part of rank at most D by the decomposition of the whole (C, C) matrix."""
    if part == "antisymmetric":
        u, sizes, vt = np.linalg.svd(a)                   # equal singular values come in pairs
        return u[:, :D] * sizes[:D] @ vt[:D]
    values, vectors = np.linalg.eigh(s)
    kept = {"symmetric": np.argsort(abs(values))[-D:], "positive": values > 1e-12,
            "negative": values < -1e-12}[part]
    return vectors[:, kept] * values[kept] @ vectors[:, kept].T


def test_the_new_queries_and_keys_are_the_nearest_of_their_form():
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 12, 3))
    new = forms.part_of(q, k, "positive")
    def distance(rotation):
        return sum(((a @ rotation - b) ** 2).sum() for a, b in zip(new, (q, k), strict=True))
    for _ in range(20):
        other, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        assert distance(np.eye(3)) <= distance(other) + 1e-9


def test_a_form_without_the_part_is_refused():
    q = np.random.default_rng(0).standard_normal((8, 2))
    with refused("has no positive part"):
        forms.part_of(q, -q, "positive")


def test_mixtures_take_the_switch_of_each_trunk():
    name = "random:2x2x16@1.41"
    mixed = trunks.get(f"{name},qk=60+attn={name},qk=120")
    turned, plain = trunks.get(f"{name},qk=120"), trunks.get(name)
    assert bits(mixed) == bits(turned) != bits(plain)
    kept = trunks.get(f"{name},qk=60+mlp={name},qk=120")
    assert bits(kept) == bits(trunks.get(f"{name},qk=60"))


def test_a_bert_has_forms_and_a_start():
    rng, trunk = np.random.default_rng(0), Encoder(EncoderConfig("bert", 2, 2, 8, 6, 7))
    for p in trunk.parameters():
        p.data[...] = rng.standard_normal(p.data.shape)
    model, traces = minifpt.FPT(trunk, 3, 2), []
    for start in forms.STARTS:
        forms.start_input(model, start)
        w = model.input.weight.data                       # read by the layer norm of the embeddings
        w = (w - w.mean(axis=1, keepdims=True)) * trunk.ln.weight.data
        traces.append(sum(np.trace(w @ q @ k.T @ w.T) for q, k in list(heads_of(trunk))[:2]))
    assert traces[0] > 0 > traces[1]
    forms.switch(trunk, "positive", False, "bert")
    np.testing.assert_allclose(forms.heads(trunk).share, 1, atol=1e-6)


@pytest.mark.parametrize("text, message", [
    ("random,qk=181", "0 to 180 degrees"), ("random,qk=-1", "0 to 180"),
    ("random,qk=nan", "0 to 180"), ("random,qk=", "0 to 180"), ("random,qk=symmetric", "0 to 180"),
    ("random,qk=60,qk=70", "once"),
    ("minigpt-tiny,qk=60", "angles are for random"), ("minigpt-tiny,qk=odd", "expected symmetric"),
    ("lstm,qk=60", "after a named trunk"), ("own.py:f,qk=60", "after a named trunk"),
    ("random:1x3x9,qk=antisymmetric", "even width, these have 3"),
    ("random:llama:1x4/2x16,qk=60", "as many heads of keys"),
    ("random:llama:1x2x16,qk=antisymmetric", "rotary positions"),
    ("minillama-tiny,qk=positive", "rotary positions|as many heads")])
def test_a_wrong_switch_gets_one_line(text, message):
    with refused(message):
        trunks.get(text)


@pytest.mark.parametrize("text, label", [
    ("random:1x4x128@1.41,qk=105", "random (1x4x128, spread 1.41), 105 degrees"),
    ("minigpt-language,qk=positive", "language, positive"),
    ("statistics:minigpt-tiny,qk=negative", "statistics, negative")])
def test_the_label_names_the_switch(text, label):
    assert trunks.TrunkSpec.parse(text).label == label
    assert trunks.config_for(text) == trunks.config_for(text.rpartition(",")[0])


# ------------------------------------------------------------------------------------- the start


def symmetric_form(trunk):
    """Return the symmetric part of the first block's form (C, C), behind its norm and summed over
    heads, by its definition."""
    norm = trunk.h[0].ln_1
    passed = np.diag(norm.weight.data.astype(np.float64))
    if hasattr(norm, "bias"):                             # a layer norm takes the mean away
        passed = (np.eye(len(passed)) - 1 / len(passed)) @ passed
    m = passed @ sum(q @ k.T for q, k in list(heads_of(trunk))[:trunk.config.n_head]) @ passed.T
    return (m + m.T) / 2


def first_form(model):
    """Return the inputs' form in the first block."""
    w = model.input.weight.data.astype(np.float64)
    return w @ symmetric_form(model.trunk) @ w.T


@pytest.mark.parametrize("name", [SMALL, "minigpt-tiny"])
@pytest.mark.parametrize("task", [minifpt.tasks.get("bit-memory", bits=8, patch=4),
                                  minifpt.tasks.get("listops")])
def test_the_start_has_the_sign_and_the_norm_that_it_says(name, task):
    drawn, aligned, opposed, again = (minifpt.FPT.for_task(task, name, start=start)
                                      for start in (None, "aligned", "opposed", "aligned"))
    assert np.array_equal(aligned.input.weight.data, again.input.weight.data)
    traces = [np.trace(first_form(m)) for m in (opposed, drawn, aligned)]
    assert traces[0] < -abs(traces[1]) and traces[2] > abs(traces[1])
    for model in (aligned, opposed):
        norms = [np.linalg.norm(m.input.weight.data) for m in (model, drawn)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
        rest = [[p.data for n, p in m.named_parameters() if n != "input.weight"]
                for m in (drawn, model)]
        assert all(np.array_equal(a, b) for a, b in zip(*rest, strict=True))


@pytest.mark.parametrize("trunk", [SMALL, "random:llama:2x2x16@1.41"])
def test_no_orthogonal_rows_have_a_more_positive_form(trunk):
    """Their form has the sum of the largest eigenvalues, the most that Ky Fan's theorem allows."""
    task = minifpt.tasks.get("bit-memory", bits=8, patch=4)
    model = minifpt.FPT.for_task(task, trunk, start="aligned")
    w = model.input.weight.data
    square = np.linalg.norm(w) ** 2 / 4
    np.testing.assert_allclose(w @ w.T, square * np.eye(4), atol=1e-5 * square)
    largest = np.linalg.eigvalsh(symmetric_form(model.trunk))[-4:]
    assert np.trace(first_form(model)) == pytest.approx(square * largest.sum(), rel=1e-4)


def test_a_run_records_its_start(tmp_path, fails):
    words = ["train", "bit-memory", "--bits", 8, "--patch", 4, "--model", SMALL, "--out",
             tmp_path / "run", "--start"]
    assert cli.main([*words, "aligned", "--steps", 2]) == 0
    task, run = runs.read_run(tmp_path / "run")
    assert run.config["recipe"]["start"] == "aligned"
    assert np.trace(first_form(runs.at_start(tmp_path / "run", run.config))) > 0
    assert "start = aligned, not opposed" in fails(*words, "opposed", "--steps", 4, "--resume")


OWN = SimpleNamespace(trunk=SimpleNamespace(h=[object()]),
                      input=minifpt.layers.Linear(2, 8, group="input"))


@pytest.mark.parametrize("call, message", [
    *((lambda model=model, start=start: minifpt.FPT.for_task("bit-memory", model, start=start),
       message) for model, start, message in (
        ("lstm:1x8", "aligned", "LSTM, has no attention heads"),
        ("random:1x1x1", "aligned", "one channel"),
        (SMALL, "up", "expected one of aligned, opposed"))),
    (lambda: forms.start_input(OWN, "aligned"), "has no attention heads")])
def test_a_start_without_a_form_gets_one_line(call, message):
    with refused(message):
        call()


# ----------------------------------------------------------------------------------- the measures


def by_definition(m):
    """Return the four measures from the whole form."""
    s, size = (m + m.T) / 2, np.linalg.norm(m)
    values = np.linalg.eigvalsh(s)
    return (np.linalg.norm(s) ** 2 / size ** 2, np.trace(m) / size,
            values[values > 0].sum() / size, values[values < 0].sum() / size)


def numbers(measured):
    return np.stack(measured[:4], axis=-1).reshape(-1, 4)


@pytest.mark.parametrize("name", ["minigpt-tiny", SMALL, "random:2x1x8", "random:llama:1x4/2x16"])
def test_a_trunk_s_measures_are_those_of_the_whole_forms(name):
    trunk = trunks.get(name)
    expected = [by_definition(q @ k.T) for q, k in heads_of(trunk)]
    np.testing.assert_allclose(numbers(minifpt.heads(trunk)), expected, atol=1e-9)


def test_a_model_s_measures_have_norm_and_input_layer_inside():
    model = minifpt.FPT.for_task("bit-memory", "minigpt-tiny", adapt="lora:rank=2,on=attn.c_attn")
    trunk, w = model.trunk, model.input.weight.data.astype(np.float64)
    w = w - w.mean(axis=1, keepdims=True)
    for block in trunk.h:                                 # the adapter changes the form
        block.attn.c_attn.lora_b.data[...] = 0.3
    measured, wanted = minifpt.heads(model), []
    minifpt.adapters.merge(model)
    for i, (q, k) in enumerate(heads_of(trunk)):
        gain = trunk.h[i // trunk.config.n_head].ln_1.weight.data
        wanted.append(by_definition((w * gain) @ q @ k.T @ (w * gain).T))
    np.testing.assert_allclose(numbers(measured), wanted, atol=1e-6)


def test_the_norm_before_a_block_of_a_bert_is_the_last_one_of_the_block_below(randomise):
    model = minifpt.FPT.for_task("bit-memory", "random:bert:3x2x8")
    trunk, w = randomise(model.trunk), model.input.weight.data.astype(np.float64)
    w, norms = w - w.mean(axis=1, keepdims=True), [trunk.ln, trunk.h[0].ln_2, trunk.h[1].ln_2]
    expected = [by_definition((w * norms[i // 2].weight.data) @ q @ k.T
                              @ (w * norms[i // 2].weight.data).T)
                for i, (q, k) in enumerate(heads_of(trunk))]
    np.testing.assert_allclose(numbers(minifpt.heads(model)), expected, atol=1e-6)


def test_random_heads_lie_within_the_random_spread_and_trained_ones_do_not():
    random, bits_ = (minifpt.heads(trunks.get(name)) for name in ("random", "minigpt-bits"))
    for name in ("share", "trace", "positive", "negative"):
        mean, deviation = random.random[name]
        assert np.abs(getattr(random, name) - mean).max() < 5 * deviation
        assert np.abs(getattr(bits_, name) - mean).min() > 10 * deviation


def test_a_form_of_zeros_has_measures_of_zero():
    measured = minifpt.heads(minifpt.GPT2(minifpt.GPT2Config(1, 2, 8), seed=None))
    assert not numbers(measured).any()
