"""minifpt.trace(model, change=..., change_grads=...): the changed computation and its gradients."""

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import fast, layers
from minifpt import functional as F
from minifpt.changing import derivative, matches

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


def loss_of(model, change):
    x, targets = batch()
    with minifpt.trace(model, change):
        return float(F.cross_entropy(model.forward(x)[0], targets)[0])


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9 * max(1.0, np.abs(want).max()))


# ------------------------------------------------------------- as edits by hand


def test_a_muted_layer_equals_a_projection_of_zero(model):
    t, loss, grads = run(model, {ATTN: lambda y: 0 * y})
    assert not t.outputs[ATTN].any() and t.outputs["trunk.h.1.attn"].any()
    for p in model.trunk.h[0].attn.c_proj.parameters():
        p.data[:] = 0
    _, expected, by_hand = run(model)
    close(loss, expected)
    for name, grad in grads.items():
        if ".h.0.attn.c_proj." in name:                   # by hand these would still learn
            assert not grad.any() and by_hand[name].any()
        else:
            close(grad, by_hand[name])


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


def test_an_addition_equals_a_bias(model):
    v = np.random.default_rng(2).standard_normal(CHANNELS)
    _, loss, grads = run(model, {"trunk.h.*.mlp": lambda y: y + v})
    for block in model.trunk.h:
        block.mlp.c_proj.bias.data += v
    _, expected, by_hand = run(model)
    close(loss, expected)
    for name, grad in grads.items():
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


NAMES = ["input", "input.linear", "trunk.wpe", "trunk.wpe.positions", "trunk.h.*.ln_1",
         "trunk.h.0.ln_2.layer_norm", "trunk.h.*.attn.c_attn", ATTN, f"{ATTN}.attention",
         f"{ATTN}.softmax", "trunk.h.*.attn.softmax", "trunk.h.1.attn.c_proj.linear",
         "trunk.h.0.mlp", "trunk.h.0.mlp.act", "trunk.h.*.mlp.act.gelu", "trunk.h.0", "trunk.h.*",
         "trunk.ln_f", "trunk", "output", ""]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_changed_computation(model, name):
    change = {name: lambda y: 0.5 * y + np.tanh(y * y - 0.3)}
    _, loss, grads = run(model, change)
    assert abs(loss - run(model)[1]) > 1e-4
    rng = np.random.default_rng(3)
    for _ in range(3):
        direction = {n: rng.standard_normal(p.data.shape) for n, p in model.named_parameters()}
        losses = []
        for step in (1e-6, -2e-6):
            for n, p in model.named_parameters():
                p.data += step * direction[n]
            losses.append(loss_of(model, change))
        for n, p in model.named_parameters():
            p.data += 1e-6 * direction[n]
        expected = (losses[0] - losses[1]) / 2e-6
        got = sum((grads[n] * d).sum() for n, d in direction.items())
        assert abs(got - expected) < 1e-6 * max(1.0, abs(expected))


def mean_over_batch(y):
    return np.broadcast_to(y.mean(axis=0), y.shape)


def test_a_function_that_mixes_numbers_needs_its_backward_pass(model):
    with refused("mixes numbers"):
        run(model, {"trunk.h.0": mean_over_batch})
    pair = mean_over_batch, lambda dy, y: np.broadcast_to(dy.mean(axis=0), dy.shape)
    t, _, grads = run(model, {"trunk.h.0": pair})
    close(t.outputs["trunk.h.0"][0], t.outputs["trunk.h.0"][1])
    p, h = model.trunk.h[0].attn.c_attn.weight, 1e-5
    p.data[2, 3] += h
    above = loss_of(model, {"trunk.h.0": pair})
    p.data[2, 3] -= 2 * h
    below = loss_of(model, {"trunk.h.0": pair})
    assert abs((above - below) / (2 * h) - grads[f"{ATTN}.c_attn.weight"][2, 3]) < 1e-8


@pytest.mark.parametrize("function, jumps", [
    (lambda y: np.round(y, 3), True), (lambda y: y.astype(np.float16), True),
    (lambda y: np.maximum(y, 0), False), (lambda y: y * (np.abs(y) > 0.5), False),
    (lambda y: 100 * np.maximum(y - 1, 0), False)])
def test_a_staircase_needs_its_backward_pass_and_a_kink_does_not(function, jumps):
    y = np.random.default_rng(0).standard_normal((40, 100))
    if jumps:
        with pytest.raises(ValueError, match="jumps, as rounding does"):
            derivative(function, y, "name")
    else:
        assert np.abs(derivative(function, y, "name")).max() < 101


def test_a_number_copied_to_another_place_is_noticed():
    def copies(y, a, b):
        y = y.copy()
        y.flat[a] = y.flat[b]
        return y
    for seed in range(5):
        a, b = np.random.default_rng(seed).choice(640, 2, replace=False)
        with pytest.raises(ValueError, match="mixes"):
            derivative(lambda y, a=a, b=b: copies(y, a, b), np.ones((4, 10, 16)), "name")


def test_a_function_that_mixes_numbers_needs_none_without_a_backward_pass(model):
    with minifpt.trace(model, {"trunk.h.0": mean_over_batch}) as t:
        model.forward(batch()[0])
    close(t.outputs["trunk.h.0"][0], t.outputs["trunk.h.0"][1])


@pytest.mark.parametrize("function", [
    lambda y: y[::-1], lambda y: y.cumsum(axis=1), lambda y: y - y.mean(axis=-1, keepdims=True),
    lambda y: y * y.max(), lambda y: y * DRAWS.random(y.shape)])
def test_mixing_is_found(function):
    y = np.random.default_rng(0).standard_normal((4, 5, 6))
    with pytest.raises(ValueError, match="mixes"):
        derivative(function, y, "name")


@pytest.mark.parametrize("function, slope", [
    (lambda y: 3 * y, lambda y: 3 + 0 * y), (lambda y: 0 * y + 5, lambda y: 0 * y),
    (np.tanh, lambda y: 1 - np.tanh(y) ** 2), (lambda y: y ** 3, lambda y: 3 * y * y)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_the_derivative_by_differences(function, slope, scale):
    y = scale * np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)
    want = slope(y.astype(np.float64))
    np.testing.assert_allclose(derivative(function, y, "name"), want, rtol=0,
                               atol=1e-8 * max(1.0, np.abs(want).max()))


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


# ------------------------------------------------------------------ nothing remains


def state(model):
    tables = vars(F), vars(fast), layers.ACTIVATIONS, *(
        vars(layer) for _, layer in minifpt.tracing.named_layers(model))
    return [dict(table) for table in tables], [p.data.copy() for p in model.parameters()]


def boom(*_):
    raise KeyError("boom")


def leave_normally(model, change):
    with minifpt.trace(model, change):
        model.forward(batch()[0])


def leave_by_error(model, change):
    with minifpt.trace(model, change):
        model.forward(batch()[0])
        raise KeyboardInterrupt


def leave_early(model, change):
    with minifpt.trace(model, change):
        return model.forward(batch()[0])


def leave_by_changing_function(model, change):
    run(model, change | {"trunk.h.1": boom})


def leave_by_backward(model, change):
    run(model, change | {"trunk.h.1": (np.sin, boom)})


def leave_by_changed_gradient(model, change):
    run(model, change, {"trunk.h.1": boom})


def leave_by_wrong_shape(model, change):
    run(model, change | {"trunk.h.1": lambda y: y[0]})


def leave_by_unknown_name(model, change):
    run(model, change | {"trunk.h.7": np.sin})


def leave_by_operation_that_never_ran(model, change):
    run(model, change | {"trunk.h.0.gelu": np.sin})


def leave_a_generator(model, change):
    def steps():
        with minifpt.trace(model, change):
            yield model.forward(batch()[0])
    steps_of_model = steps()
    next(steps_of_model)
    steps_of_model.close()


@pytest.mark.parametrize("leave", [value for name, value in list(globals().items())
                                   if name.startswith("leave_")])
def test_nothing_remains_changed_after_the_block(model, leave):
    before, loss = state(model), run(model)[1]
    try:
        leave(model, {ATTN: lambda y: 0 * y, f"{ATTN}.softmax": np.square})
    except (KeyError, KeyboardInterrupt, ValueError):
        pass
    for then, now in zip(before[0], state(model)[0], strict=True):
        assert then.keys() == now.keys() and all(now[key] is then[key] for key in then)
    for then, now in zip(before[1], state(model)[1], strict=True):
        assert np.array_equal(then, now)
    assert run(model)[1] == loss


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
    ({"trunk.h.0.attn.gelu": np.sin}, "it ran attention")])
def test_what_is_refused_in_one_line(model, change, says):
    with pytest.raises(ValueError) as error:
        run(model, change)
    assert says in str(error.value) and "\n" not in str(error.value), error.value
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("grads, says", [
    ({ATTN: (np.sin, np.cos)}, "expected a function"),
    ({"trunk.h.0.residual": np.sin}, "trunk.h.0"),
    ({"trunk.h.0.attn.gelu": np.sin}, "it ran attention"), ({ATTN: lambda dy: dy[0]}, "(2, 6, 8)")])
def test_what_is_refused_of_gradients(model, grads, says):
    with pytest.raises(ValueError) as error:
        run(model, change_grads=grads)
    assert says in str(error.value) and "\n" not in str(error.value), error.value


def test_a_star_stands_for_one_part():
    assert matches("trunk.h.0.attn", "trunk.h.*.attn") and matches("trunk.h.10", "trunk.h.*")
    assert not matches("trunk.h.0.attn", "trunk.h.*") and not matches("trunk.h", "trunk.h.*")
    assert matches("trunk.h.1", "trunk.h.[01]") and matches("", "")


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


@pytest.mark.parametrize("function", [lambda y: np.round(y, 5), lambda y: 2 * np.round(y, 6)])
def test_the_derivative_of_fine_rounding_is_refused(function):
    with refused("jumps in small steps"):
        derivative(function, np.random.default_rng(0).standard_normal((4, 50)), "name")


@pytest.mark.parametrize("function, slope", [
    (lambda y: np.sin(30 * y), lambda y: 30 * np.cos(30 * y)),
    (lambda y: (100 * y) ** 3, lambda y: 3e6 * y ** 2)])
def test_the_derivative_of_a_steep_function_is_found(function, slope):
    y = np.random.default_rng(0).standard_normal((4, 50))
    np.testing.assert_allclose(derivative(function, y, "name"), slope(y), rtol=1e-2, atol=1e-2)
