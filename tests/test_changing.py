"""minifpt.trace(model, change=...): values changed by name, on the way forward."""

import copy
import re
from contextlib import nullcontext

import numpy as np
import pytest
from conftest import gradients, refused
from test_families import theirs_of

import minifpt
from minifpt import layers

T, CHANNELS = 6, 8
ATTN = "trunk.h.0.attn"


@pytest.fixture
def model(randomise):
    """An FPT of two blocks in float64, without dropout, all of it trained."""
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=CHANNELS, n_positions=T, vocab_size=11,
                                dropout=0.0)
    return randomise(minifpt.FPT(minifpt.GPT2(config, dtype=np.float64), 3, 4, T))


def batch():
    return np.random.default_rng(1).standard_normal((2, T, 3))


def run(model, change=None):
    """Return the trace and the logits of a forward pass."""
    with minifpt.trace(model, change) as t:
        logits, _ = model.forward(batch())
    return t, logits


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9 * max(1.0, np.abs(want).max()))


# ------------------------------------------------------------- as edits by hand


def test_a_muted_head_equals_rows_of_zero(model):
    def mute(y):
        y[:, 1] = 0
        return y
    _, logits = run(model, {"trunk.h.1.attn.attention": mute})
    model.trunk.h[1].attn.c_proj.weight.data[CHANNELS // 2:] = 0
    close(logits, run(model)[1])


def test_changed_attention_is_what_the_trace_shows(model):
    uniform = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    t, _ = run(model, {f"{ATTN}.softmax": lambda a: 0 * a + uniform})
    close(t.attention[ATTN], np.broadcast_to(uniform, (2, 2, T, T)))
    attention = next(step for step in t.steps if step.name == f"{ATTN}.attention")
    close(attention.output, uniform @ attention.inputs["v"])
    assert [step.name for step in t.steps if step.changed] == [f"{ATTN}.softmax"]


def test_the_dropout_of_a_name_is_not_the_one_inside_attention(randomise):
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=T, vocab_size=11)
    model = randomise(minifpt.FPT(minifpt.GPT2(config), 3, 4, T))
    t, _ = run(model, {f"{ATTN}.dropout": lambda y: 0 * y})
    assert not t.outputs[ATTN].any() and t.outputs[f"{ATTN}.c_proj"].any()
    assert [step.inside for step in t.steps if step.changed] == [None]


# ------------------------------------------------------------------- forward only


@pytest.mark.parametrize("place", ["inside", "inside another trace", "outside"])
def test_a_changed_model_does_not_run_backward(model, place):
    x = batch()
    with minifpt.trace(model, {"trunk.h.*.mlp": np.sin, ATTN: np.cos}):
        logits, cache = model.forward(x)
        if place == "inside":
            with refused("'trunk.h.*.mlp', 'trunk.h.0.attn' was changed, .* without the change"):
                model.backward(logits, cache)
    with minifpt.trace(model) if place == "inside another trace" else nullcontext():
        for use in (lambda: model.backward(logits, cache), lambda: cache["trunk"],
                    lambda: [*cache], lambda: cache.probabilities,
                    lambda: model.backward(logits, copy.deepcopy(cache))):
            with refused("a changed model runs forward only"):
                use()
    assert not any(p.grad is not None for p in model.parameters())
    logits, cache = model.forward(x)
    model.backward(logits, cache)                         # and the unchanged one does


def test_a_change_within_another_model_refuses_its_backward_pass(model):
    with minifpt.trace(model.trunk, {"h.0.attn": np.sin}):
        logits, cache = model.forward(batch())
    with refused("'h.0.attn' was changed"):
        model.backward(logits, cache)


def test_float32_stays_float32(randomise):
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=T, vocab_size=11)
    model = randomise(minifpt.FPT(minifpt.GPT2(config), 3, 4, T))
    t, _ = run(model, {"trunk.h.*": lambda y: y * np.float64(2), ATTN: np.sin})
    assert {a.dtype for a in t.outputs.values()} == {np.dtype(np.float32)}


def test_generation_runs_the_changed_model(randomise):
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=11)
    lm = randomise(minifpt.LanguageModel(config))

    def only_seven(logits):
        logits[..., 7] += 1e6
        return logits
    with minifpt.trace(lm, {"lm_head": only_seven}):
        assert lm.generate(np.array([1, 2]), 5).tolist() == [1, 2, 7, 7, 7, 7, 7]
    assert set(lm.generate(np.array([1, 2]), 5, seed=1)[2:]) != {7}


# ------------------------------------------------------- a change belongs to one model


DOUBLE_GELU = {"trunk.h.*.mlp.act.gelu": lambda y: 2 * y, f"{ATTN}.softmax": np.square}


def test_a_copy_of_the_model_does_not_have_the_change(model):
    x = batch()
    want, _ = model.forward(x)
    grads = gradients(model, x)
    with minifpt.trace(model, DOUBLE_GELU):
        copied = copy.deepcopy(model)
        close(copied.forward(x)[0], want)
        for name, grad in gradients(copied, x).items():
            close(grad, grads[name])
        copied.output.bias.data += 1.0
        close(copied.forward(x)[0], want + 1.0)
        assert np.abs(model.predict(x) - want).max() > 1e-3
    close(copied.forward(x)[0], want + 1.0)


def test_an_adapter_that_is_added_or_merged_inside_acts_at_once(model):
    x = batch()
    with minifpt.trace(model):
        before = model.predict(x)
        minifpt.adapters.adapt(model, "lora:on=attn.*")
        for _, p in model.named_parameters():
            if p.group == "adapter":
                p.data[...] = 0.3
        adapted = model.predict(x)
        close(minifpt.adapters.merge(model).predict(x), adapted)
    assert np.abs(adapted - before).max() > 1e-3
    close(model.predict(x), adapted)


def test_layers_that_are_replaced_while_a_change_is_open_are_refused(model):
    with refused("layers of the model were replaced"), minifpt.trace(model, {ATTN: np.sin}):
        model.predict(batch())
        minifpt.adapters.adapt(model, "lora:on=attn.*")


def test_a_change_that_never_acts_is_refused(model):
    model.spare = layers.Linear(2, 2)
    with refused("'spare' changed nothing"):
        run(model, {"spare": np.sin})


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("change, says", [
    ({"trunk.h.0.atn": np.sin}, "'trunk.h.0.attn'"), ({"h.0.attn": np.sin}, "'trunk.h.0.attn'"),
    ({"trunk.h.0.attn.sofmax": np.sin}, "'trunk.h.0.attn.softmax'"),
    ({"trunk.h.2.attn": np.sin}, "the nearest are 'trunk.h.1.attn', 'trunk.h.0.attn'"),
    ({"x": np.sin}, "no layer or operation 'x'"),
    ({"trunk.*.attn": np.sin}, "no layer or operation"), ({1: np.sin}, "got the name 1"),
    ({ATTN: 3}, "expected a function"), ({ATTN: (np.sin, np.cos)}, "expected a function"),
    ([ATTN], "dictionary"),
    ({ATTN: np.sin, "trunk.h.*.attn": np.sin}, "one change for each name"),
    ({ATTN: lambda y: y[0]}, "expected (2, 6, 8)"), ({ATTN: lambda y: None}, "returned None"),
    ({ATTN: lambda y: "text"}, "returned shape"), ({ATTN: lambda y: y > 0}, "dtype bool"),
    ({"trunk.h.0.attn.gelu": np.sin}, "ran attention")])
def test_what_is_refused_in_one_line(model, change, says):
    logits = run(model)[1]
    with refused() as error:
        run(model, change)
    assert says in str(error.value) and np.array_equal(run(model)[1], logits)


# ----------------------------------------------------------------------------- oracle


@pytest.mark.oracle
@pytest.mark.parametrize("ours, theirs", [
    ("trunk.h.*.attn", r"h\.\d+\.attn"), ("trunk.h.1.mlp", r"h\.1\.mlp"),
    ("trunk.h.0", r"h\.0"), ("trunk.h.*.mlp.act", r"h\.\d+\.mlp\.act"),
    ("trunk.h.0.attn.c_attn", r"h\.0\.attn\.c_attn"), ("trunk.ln_f", "ln_f")])
@pytest.mark.parametrize("kind", ["zero", "scaled", "curved"])
def test_transformers_with_forward_hooks(ours, theirs, kind, tmp_path):
    """The logits equal those of Transformers whose modules have hooks."""
    torch = pytest.importorskip("torch")
    reference = theirs_of("GPT2LMHeadModel", dict(n_layer=2, n_head=2, n_embd=8), 0.3).double()
    reference.save_pretrained(tmp_path)
    lm = minifpt.LanguageModel.from_pretrained(tmp_path, dtype=np.float64, dropout=0.0)
    change = {"zero": lambda y: 0 * y, "scaled": lambda y: 1.5 * y - 0.2,
              "curved": lambda y: y * y}[kind]

    def hook(module, inputs, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)
    modules = [m for n, m in reference.transformer.named_modules() if re.fullmatch(theirs, n)]
    assert modules
    for module in modules:
        module.register_forward_hook(hook)
    ids = np.random.default_rng(1).integers(0, 11, (2, 7))
    expected = reference(torch.tensor(ids)).logits
    with minifpt.trace(lm, {ours: change}):
        logits = lm.logits(ids)
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-9)
