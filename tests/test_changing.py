"""minifpt.trace(model, change=..., change_grads=...): the changed computation and its gradients."""

import copy
import itertools
from contextlib import nullcontext

import numpy as np
import pytest
from conftest import refused
from fuzz import changes

import minifpt
from minifpt import functional as F
from minifpt import layers
from minifpt.changing import derivative

T, CHANNELS = 6, 8
ATTN = "trunk.h.0.attn"
DRAWS = np.random.default_rng(1)


@pytest.fixture
def model(randomise):
    """An FPT of two blocks in float64, without dropout, all of it trained."""
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=CHANNELS, n_positions=T, vocab_size=11,
                                dropout=0.0)
    return randomise(minifpt.FPT(minifpt.GPT2(config, dtype=np.float64), 3, 4, T))


def batch():
    rng = np.random.default_rng(1)
    return rng.standard_normal((2, T, 3)), rng.integers(0, 4, (2, T))


def run(model, change=None, change_grads=None):
    """(trace, loss, {parameter: gradient}) of a forward and a backward pass."""
    x, targets = batch()
    model.zero_grad()
    with minifpt.trace(model, change, change_grads) as t:
        logits, cache = model.forward(x)
        loss, loss_cache = F.cross_entropy(logits, targets)
        model.backward(F.cross_entropy_backward(1.0, loss_cache), cache)
    return t, float(loss), {name: None if p.grad is None else p.grad.copy()
                            for name, p in model.named_parameters()}


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9 * max(1.0, np.abs(want).max()))


# ------------------------------------------------------------- as edits by hand


def test_a_muted_head_equals_rows_of_zero(model):
    def mute(y):
        y[..., CHANNELS // 2:] = 0
        return y
    t, loss, grads = run(model, {"trunk.h.1.attn.attention": mute})
    model.trunk.h[1].attn.c_proj.weight.data[CHANNELS // 2:] = 0
    _, expected, by_hand = run(model)
    close(loss, expected)
    for name, grad in grads.items():
        if name == "trunk.h.1.attn.c_proj.weight":
            assert not grad[CHANNELS // 2:].any()
            grad, by_hand[name] = grad[:CHANNELS // 2], by_hand[name][:CHANNELS // 2]
        close(grad, by_hand[name])


def test_changed_attention_is_what_the_trace_shows(model):
    uniform = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    t, _, grads = run(model, {f"{ATTN}.softmax": lambda a: 0 * a + uniform})
    close(t.attention[ATTN], np.broadcast_to(uniform, (2, 2, T, T)))
    assert not grads[f"{ATTN}.c_attn.weight"][:, :2 * CHANNELS].any()      # queries and keys
    assert grads[f"{ATTN}.c_attn.weight"][:, 2 * CHANNELS:].any()          # values
    changed = [step.name for step in t.steps if step.changed]
    assert changed == [f"{ATTN}.softmax"]


# ----------------------------------------------------------------------- gradients


@pytest.mark.parametrize("part", range(5))
def test_gradients_of_random_changes_equal_differences(part):
    """Also those of a second backward pass of the same cache; see ``fuzz.changes``."""
    results = [changes.attempt(seed) for seed in range(3000 + part, 3030, 5)]
    assert set(results) == {"right"}


@pytest.mark.parametrize("function, says", [
    (lambda y: y.cumsum(axis=1), "mixes"), (lambda y: y * y.max(), "mixes"),
    (lambda y: y - y.mean(axis=-1, keepdims=True), "mixes"),
    (lambda y: y * DRAWS.random(y.shape), "mixes"), (np.sqrt, "not finite"),
    (lambda y: y + 1e-5 * np.roll(y, 1, -1), "mixes"),
    (lambda y: np.round(y, 3), "jumps, as rounding"), (lambda y: y.astype(np.float16), "jumps, as"),
    (lambda y: np.round(y, 5), "jumps in small steps")])
def test_a_function_whose_derivative_is_not_found_is_refused(function, says):
    with refused(says):
        derivative(function, np.random.default_rng(0).standard_normal((4, 5, 50)), "name")


@pytest.mark.parametrize("function, slope", [
    (lambda y: 3 * y, lambda y: 3 + 0 * y), (lambda y: 0 * y + 5, lambda y: 0 * y),
    (np.tanh, lambda y: 1 - np.tanh(y) ** 2), (lambda y: np.sin(30 * y),
                                               lambda y: 30 * np.cos(30 * y)),
    (lambda y: np.maximum(y, 0), lambda y: 1.0 * (y > 0)),
    (lambda y: y * (np.abs(y) > 0.5), lambda y: 1.0 * (np.abs(y) > 0.5))])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e2])
def test_the_derivative_by_differences_equals_the_formula(function, slope, scale):
    y = scale * np.random.default_rng(0).standard_normal((30, 20))
    if scale < 1 and slope(y).any() and not slope(y).all():
        return                                            # every number is at the kink
    want = slope(y)
    np.testing.assert_allclose(derivative(function, y, "name"), want, rtol=0,
                               atol=1e-6 * max(1.0, np.abs(want).max()))


def test_the_derivative_beside_a_kink_is_that_of_its_own_side():
    y = np.linspace(-4e-6, 4e-6, 40)[:, None] + np.zeros(3)        # a step is 8e-6 or more
    y = np.concatenate([y, np.random.default_rng(0).standard_normal((4000, 3))])
    got = derivative(lambda y: np.maximum(y, 0.1 * y), y, "name")
    np.testing.assert_allclose(got, np.where(y > 0, 1.0, 0.1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("calls", [1, 2, 3, 7])
def test_a_change_that_stops_after_some_calls_is_refused(model, calls):
    left = itertools.count(calls, -1)
    with refused("called again|mixes"):
        run(model, {"trunk.h.0.mlp": lambda y: y * (next(left) <= 0)})


def test_a_changed_gradient_goes_on_in_place_of_the_true_one(model):
    t, loss, grads = run(model, change_grads={"trunk.h.0.mlp": lambda dy: 0 * dy,
                                              "trunk.h.1.attn.attention": lambda dy: 2 * dy})
    true, same, before = run(model)
    close(loss, same)                                     # the forward pass is as before
    for name, grad in grads.items():
        if ".h.0.mlp." in name or ".h.0.ln_2." in name:
            assert not grad.any()
        elif ".h.1.attn.c_attn" in name:
            close(grad, 2 * before[name])
        elif any(part in name for part in (".h.1.mlp", ".h.1.ln_2", "ln_f", "output",
                                           ".h.1.attn.c_proj")):
            close(grad, before[name])
        else:
            assert np.abs(grad - before[name]).max() > 1e-9, name
    assert not t.grads["trunk.h.0.mlp"].any() and true.grads["trunk.h.0.mlp"].any()
    assert [step.name for step in t.steps if step.changed] == ["trunk.h.1.attn.attention"]


def test_a_change_and_a_changed_gradient_of_one_name(model):
    """The gradient that comes back is replaced first, and then runs through the change."""
    name = "trunk.h.1.mlp"
    _, _, grads = run(model, {name: lambda y: 3 * y}, {name: lambda dy: 0.5 * dy})
    _, _, scaled = run(model, {name: lambda y: 3 * y})
    close(grads[f"{name}.c_fc.weight"], 0.5 * scaled[f"{name}.c_fc.weight"])


def test_float32_stays_float32(randomise):
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=T, vocab_size=11)
    model = randomise(minifpt.FPT(minifpt.GPT2(config), 3, 4, T))
    t, _, grads = run(model, {"trunk.h.*": lambda y: y * np.float64(2), ATTN: np.sin},
                      {"trunk.h.0.mlp": lambda dy: dy * np.float64(2)})
    arrays = [*t.outputs.values(), *t.grads.values(), *grads.values()]
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


def test_generation_runs_the_changed_model(randomise):
    config = minifpt.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=11)
    lm = randomise(minifpt.LanguageModel(config))

    def only_seven(logits):
        logits[..., 7] += 1e6
        return logits
    with minifpt.trace(lm, {"lm_head": only_seven}):
        assert lm.generate(np.array([1, 2]), 5).tolist() == [1, 2, 7, 7, 7, 7, 7]
    assert set(lm.generate(np.array([1, 2]), 5, seed=1)[2:]) != {7}


# ------------------------------------------------ a change belongs to one model and its caches


DOUBLE_GELU = {"trunk.h.*.mlp.act.gelu": lambda y: 2 * y, f"{ATTN}.softmax": np.square}


def backward(model, logits, cache):
    model.zero_grad()
    model.backward(np.cos(logits), cache)
    return [p.grad.copy() for p in model.parameters()]


def test_every_backward_pass_of_a_cache_runs_through_the_change(model):
    with minifpt.trace(model, DOUBLE_GELU):
        logits, cache = model.forward(batch()[0])
        first, second = backward(model, logits, cache), backward(model, logits, cache)
    assert all(map(np.array_equal, first, second))


def test_a_copy_of_the_model_does_not_have_the_change(model):
    x = batch()[0]
    logits, cache = model.forward(x)
    want, grads = logits, backward(model, logits, cache)
    with minifpt.trace(model, DOUBLE_GELU):
        copied = copy.deepcopy(model)
        logits, cache = copied.forward(x)
        model.zero_grad()
        for got, expected in zip(backward(copied, logits, cache), grads, strict=True):
            close(got, expected)
        close(logits, want)
        assert not any(p.grad is not None for p in model.parameters())
        copied.output.bias.data += 1.0
        close(copied.forward(x)[0], want + 1.0)
    close(copied.forward(x)[0], want + 1.0)


def test_a_copy_of_a_trunk_of_functions_does_not_have_the_change():
    model, x = minifpt.FPT(changes.functions(dropout=0.0), 3, 4, T), batch()[0]
    want = model.predict(x)
    with minifpt.trace(model, {"trunk": lambda y: 0 * y}) as t:
        copied = copy.deepcopy(model)
        close(copied.predict(x), want)
        assert np.abs(model.predict(x) - want).max() > 0.1
    assert not t.outputs["trunk"].any()


def test_another_model_inside_is_not_changed(model):
    other, x = copy.deepcopy(model), batch()[0]
    want = other.predict(x)
    with minifpt.trace(model, {"dropout": lambda y: 0 * y, "trunk.h.*.attn.softmax": np.square}):
        close(other.predict(x), want)
        assert np.abs(model.predict(x) - want).max() > 1e-3


def test_the_dropout_before_a_traced_trunk_is_not_the_trunk_s(model):
    x = batch()[0]
    with minifpt.trace(model.trunk) as t:
        model.predict(x)
    hidden = t.outputs["wpe"]
    with minifpt.trace(model.trunk, {"dropout": lambda y: 0 * y}) as t:
        model.predict(x)
    close(t.outputs["wpe"], hidden)
    assert not next(s.output for s in t.steps if s.name == "h.0.ln_1.layer_norm").any() or (
        model.trunk.h[0].ln_1.bias.data.any())


def test_an_adapter_that_is_added_or_merged_inside_acts_at_once(model):
    x = batch()[0]
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
        model.predict(batch()[0])
        minifpt.adapters.adapt(model, "lora:on=attn.*")
    model.output.__class__, plain = type("Other", (layers.Linear,), {}), layers.Linear
    with refused("layers of the model were replaced"), minifpt.trace(model):
        model.output.__class__ = plain


class Bare(layers.Layer):
    """A layer that keeps no cache, and one that runs it so often."""

    def forward(self, x):
        return 1.0 * x, None

    def backward(self, dy, cache):
        return dy


class Often(layers.Layer):
    def __init__(self, times):
        self.bare, self.times = Bare(), times

    def forward(self, x):
        for _ in range(self.times):
            x, _ = self.bare.forward(x)
        return x, self.times

    def backward(self, dy, cache):
        for _ in range(self.times):
            dy = self.bare.backward(dy, None)
        return dy


def test_a_changed_layer_without_a_cache_may_run_only_once():
    x = np.linspace(0.1, 0.9, 5)
    for times in (1, 2):
        model = Often(times)
        with refused("ran 2 times") if times == 2 else nullcontext():
            with minifpt.trace(model, {"bare": np.sin}):
                y, cache = model.forward(x)
                close(model.backward(np.ones(5), cache), np.cos(x))


def test_a_change_that_never_acts_is_refused(model):
    model.spare = layers.Linear(2, 2)
    for kind in ("change", "change_grads"):
        with refused("'spare' changed nothing"):
            run(model, **{kind: {"spare": np.sin}})
    for name in ATTN, "trunk.h.0.ln_1.layer_norm":
        with refused("no gradient came to"), minifpt.trace(model, None, {name: np.sin}):
            model.predict(batch()[0])                     # nothing ran backward


def test_a_star_does_not_stand_for_the_model_itself(model):
    t, _, _ = run(model, {"*": lambda y: y + 1})
    close(t.outputs[""], t.outputs["output"])


def test_every_swap_of_two_numbers_is_noticed():
    y = np.random.default_rng(0).standard_normal((1, 24))
    for a, b in itertools.combinations(range(24), 2):
        order = np.arange(24)
        order[[a, b]] = b, a
        with pytest.raises(ValueError, match="mixes"):
            derivative(lambda y, order=order: y[:, order], y, "name")


def test_a_slope_that_is_not_finite_is_refused(model):
    with refused("is not finite"):
        run(model, {f"{ATTN}.softmax": lambda a: a ** 1.5})


class Slots:
    """A trunk without a dictionary of attributes."""

    __slots__ = ("inner", "config", "dtype")

    def __init__(self):
        self.inner = minifpt.trunks.get("random:1x2x8", dtype=np.float64)
        self.config, self.dtype = self.inner.config, self.inner.dtype

    def forward(self, x, train=False, rng=None):
        return self.inner.forward(x, train, rng)

    def backward(self, dy, cache):
        return self.inner.backward(dy, cache)

    def named_parameters(self):
        return self.inner.named_parameters()


def test_a_trunk_with_slots_is_traced_and_its_divergence_is_named():
    model = minifpt.FPT(Slots(), 3, 4, T)
    t, _, grads = run(model, {"trunk": lambda y: 0 * y})
    assert not t.outputs["trunk"].any() and not grads["input.weight"].any()
    x = batch()[0]
    x[0, 0, 0] = np.inf
    assert minifpt.training.first_nonfinite(model, x) == "x, the task's input"


def test_a_changed_cache_is_refused_outside_its_trace(model):
    with minifpt.trace(model, DOUBLE_GELU):
        logits, cache = model.forward(batch()[0])
    for use in (lambda: model.backward(logits, cache), lambda: cache["trunk"], lambda: [*cache],
                lambda: cache.probabilities, lambda: model.backward(logits, copy.deepcopy(cache))):
        with refused("comes from a changed run"):
            use()
    with refused("comes from a changed run"), minifpt.trace(model, DOUBLE_GELU):
        model.backward(logits, cache)


def test_a_layer_with_an_operation_s_name_is_not_that_operation():
    class Named(layers.Layer):
        def __init__(self):
            self.softmax = Bare()

        def forward(self, x):
            x, _ = F.softmax(x)
            return self.softmax.forward(x)
    with minifpt.trace(Named(), {"softmax": lambda y: y + 1}) as t:
        y, _ = Named.forward(t._layers and next(iter(t._layers.values()))[1], np.zeros((1, 4)))
    close(y, np.full((1, 4), 1.25))


def test_a_changed_operation_that_does_not_run_back_is_refused(monkeypatch):
    def swish(x):
        s, _ = F.softmax(np.stack([x, 0 * x], -1))
        return x * s[..., 0], (x, s[..., 0])
    monkeypatch.setitem(layers.ACTIVATIONS, "swish", (
        swish, lambda dy, cache: dy * (cache[1] + cache[0] * cache[1] * (1 - cache[1]))))
    act = layers.Activation("swish")
    with refused("does not run the changed 'softmax' backward"):
        with minifpt.trace(act, {"softmax": np.square}):
            y, cache = act.forward(np.ones(3))
            act.backward(y, cache)


# ------------------------------------------------------------------------- cut a line


def test_an_answer_of_bit_xor_falls_to_chance_without_the_line_that_carries_its_bit():
    """Cut in both blocks: no other answer falls, and no other line of that token matters."""
    task = minifpt.tasks.get("bit-xor", n=5)
    model = minifpt.FPT.for_task(task, "minigpt-tiny")
    minifpt.train(model, task, steps=1000, progress=False)
    x, y = task.batch(np.random.default_rng(0), 512, "test")
    names = task.token_names()

    def accuracies(query, key):
        def cut(a):
            a[..., names.index(query), names.index(key)] = 0
            return a / a.sum(axis=-1, keepdims=True)
        with minifpt.trace(model, {"trunk.h.*.attn.softmax": cut}):
            logits, _ = model.forward(x)
        return (logits.reshape(512, 5, 2).argmax(-1) == y.reshape(512, 5)).mean(axis=0)
    before = accuracies("b4", "a3")
    assert before.min() > 0.9
    after = accuracies("b4", "a4")
    assert 0.4 < after[3] < 0.6 and np.array_equal(np.delete(after, 3), np.delete(before, 3))


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("change, says", [
    ({"trunk.h.0.atn": np.sin}, "'trunk.h.0.attn'"), ({"h.0.attn": np.sin}, "'trunk.h.0.attn'"),
    ({"trunk.h.0.attn.sofmax": np.sin}, "'trunk.h.0.attn.softmax'"),
    ({"trunk.h.2.attn": np.sin}, "the nearest are"), ({"x": np.sin}, "no layer or operation 'x'"),
    ({"trunk.*.attn": np.sin}, "no layer or operation"), ({1: np.sin}, "got the name 1"),
    ({"trunk.h.0.residual": np.sin}, "'trunk.h.0'"), ({ATTN: 3}, "expected a function"),
    ({ATTN: (np.sin, 3)}, "pair"), ({ATTN: (np.sin,) * 3}, "pair"), ([ATTN], "dictionary"),
    ({ATTN: np.sin, "trunk.h.*.attn": np.sin}, "one change for each name"),
    ({ATTN: lambda y: y[0]}, "expected (2, 6, 8)"), ({ATTN: lambda y: None}, "returned shape"),
    ({ATTN: lambda y: "text"}, "returned shape"), ({ATTN: lambda y: y > 0}, "dtype bool"),
    ({"trunk.h.0.attn.gelu": np.sin}, "ran attention")])
def test_what_is_refused_in_one_line(model, change, says):
    loss = run(model)[1]
    with refused() as error:
        run(model, change)
    assert says in str(error.value) and run(model)[1] == loss
    if isinstance(change, dict):                          # the same of gradients, but for pairs
        with refused():
            run(model, change_grads=change)


# ----------------------------------------------------------------------------- oracle


@pytest.mark.oracle
@pytest.mark.parametrize("ours, theirs", [
    ("trunk.h.*.attn", r"h\.\d+\.attn"), ("trunk.h.1.mlp", r"h\.1\.mlp"),
    ("trunk.h.0", r"h\.0"), ("trunk.h.*.mlp.act", r"h\.\d+\.mlp\.act"),
    ("trunk.h.0.attn.c_attn", r"h\.0\.attn\.c_attn"), ("trunk.ln_f", "ln_f")])
@pytest.mark.parametrize("kind", ["zero", "scaled", "curved"])
def test_transformers_with_forward_hooks(ours, theirs, kind, tmp_path):
    """Logits and every gradient equal those of Transformers whose modules have hooks."""
    import re
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    reference = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, n_positions=8, vocab_size=13, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        attn_implementation="eager")).double()
    with torch.no_grad():
        for p in reference.parameters():
            p += 0.3 * torch.randn_like(p)
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
    ids, targets = np.random.default_rng(1).integers(0, 13, (2, 2, 7))
    expected = reference(torch.tensor(ids)).logits
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), torch.tensor(targets).flatten()
                                      ).backward()
    with minifpt.trace(lm, {ours: change}):
        logits, cache = lm.forward(ids)
        _, loss_cache = F.cross_entropy(logits, targets)
        lm.backward(F.cross_entropy_backward(1.0, loss_cache), cache)
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-9)
    weights = dict(reference.transformer.named_parameters())
    for name, p in lm.named_parameters():
        want = weights.pop(name.removeprefix("trunk.")).grad
        want = np.zeros(p.data.shape) if want is None else want.numpy()
        got = np.zeros(p.data.shape) if p.grad is None else p.grad
        np.testing.assert_allclose(got, want, atol=1e-8 * max(1.0, np.abs(want).max()),
                                   err_msg=name)
    assert not weights
