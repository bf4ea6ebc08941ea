"""minifpt.trace records the values of a run and leaves no mark."""

import copy
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from conftest import rng
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import fast, guards, layers
from minifpt import functional as F
from minifpt.layers import ACTIVATIONS, Layer, Linear

MASKS = {"fpt": minifpt.FreezeMask.fpt(), "full": minifpt.FreezeMask.full(),
         "output_only": minifpt.FreezeMask.output_only()}
BELOW, FROZEN = "nothing below learns", "frozen"

# The layers of a model with one block, in the order in which they finish.
BLOCK = ["ln_1", "attn.c_attn", "attn.c_proj", "attn", "ln_2", "mlp.c_fc", "mlp.act",
         "mlp.c_proj", "mlp"]
GPT2 = ["wpe", *(f"h.0.{name}" for name in BLOCK), "h.0", "ln_f"]
NAMES = ["input", *(f"trunk.{name}" for name in GPT2), "trunk", "output", ""]


def config(T=10, **changes):
    return minifpt.GPT2Config(**dict(n_layer=2, n_head=2, n_embd=8, n_positions=T, vocab_size=11,
                                     dropout=0.2) | changes)


@pytest.fixture
def build(randomise):
    """Return a function that makes an FPT in float64 with no parameter near 0."""
    def make(mask="full", T=10, output_tokens=2, dtype=np.float64, **changes):
        trunk = minifpt.GPT2(config(T, **changes), dtype=dtype)
        model = randomise(minifpt.FPT(trunk, 3, 4, output_tokens))
        model.freeze(MASKS[mask] if isinstance(mask, str) else mask)
        return model
    return make


def batch(T=10, B=2):
    return rng(1).standard_normal((B, T, 3))


def run(model, x, seed=5, train=True):
    """Run forward and backward with dropout: (logits, gradients by name, generator's state)."""
    draws = rng(seed)
    model.zero_grad()
    logits, cache = model.forward(x, train=train, rng=draws)
    _, loss_cache = F.cross_entropy(logits, targets(logits))
    model.backward(F.cross_entropy_backward(1.0, loss_cache), cache)
    return logits, grads_of(model), draws.bit_generator.state


def targets(logits):
    return rng(9).integers(0, logits.shape[-1], logits.shape[:-1])


def grads_of(model):
    return {n: None if p.grad is None else p.grad.copy() for n, p in model.named_parameters()}


def traced(model, x, **options):
    with minifpt.trace(model) as t:
        result = run(model, x, **options)
    return t, result


def close(got, want, tolerance=1e-12):
    """Compare arrays, or trees of arrays, relative to the largest entry."""
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (list, tuple)):
        for g, w in zip(got, want, strict=True):
            close(g, w, tolerance)
    elif isinstance(want, np.ndarray):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0,
                                   atol=tolerance * max(1.0, np.abs(want).max(initial=0)))
    else:
        assert got == want or got is want


def ahead(t):
    return [step for step in t.steps if not step.backward]


def back(t):
    return [step for step in t.steps if step.backward]


# --------------------------------------------------------------------- the same results


@given(st.data())
def test_results_and_draws_are_those_without_a_trace(randomise, data):
    draw = data.draw
    n_head, B, T = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 80))
    c = config(T, n_head=n_head, n_embd=n_head * draw(st.integers(1, 4)),
               n_layer=draw(st.integers(1, 3)), dropout=draw(st.sampled_from([0.0, 0.3])),
               causal=draw(st.booleans()), activation_function=draw(st.sampled_from(
                   ["gelu_new", "gelu", "relu"])))
    model = minifpt.FPT(minifpt.GPT2(c, dtype=np.float64), 3, 4, draw(st.integers(1, T)))
    model.freeze(MASKS[draw(st.sampled_from(list(MASKS)))])
    x = batch(T, B)
    want = run(randomise(model), x)
    t, got = traced(model, x)
    close(got, want, 1e-11)
    assert all(t.attention[f"trunk.h.{i}.attn"].shape == (B, n_head, T, T)
               for i in range(c.n_layer))


def test_a_forward_pass_inside_the_trace_runs_back_outside(build):
    model, x, grads = build(), batch(), []
    for context in (nullcontext(), minifpt.trace(model)):
        model.zero_grad()
        with context:
            logits, cache = model.forward(x, True, rng(5))
        model.backward(np.ones_like(logits), cache)
        grads.append(grads_of(model))
    close(grads[1], grads[0])


# -------------------------------------------------------------------- outputs and names


def test_the_table_of_a_language_model_is_recorded_twice():
    """The table is used twice, and its gradient is the sum of both."""
    lm = minifpt.LanguageModel(config(n_layer=1, dropout=0.0), dtype=np.float64)
    ids = rng(1).integers(0, 11, (2, 10))
    with minifpt.trace(lm) as t:
        logits, cache = lm.forward(ids)
        lm.backward(np.ones_like(logits) * logits, cache)
    assert list(t.outputs) == ["wte", *(f"trunk.{name}" for name in GPT2), "trunk", "lm_head", ""]
    uses = [step for step in ahead(t) if step.inputs.get("w") is lm.wte.weight.data]
    assert [step.name for step in uses] == ["wte.embedding", "lm_head.unembedding"]
    close(sum(step.gradients["w"] for step in uses), lm.wte.weight.grad)


@pytest.mark.parametrize("T", [10, 120])
def test_recorded_arrays_are_copies(build, T):
    """They stay when the model's arrays, or other recorded arrays, change."""
    model, x = build(T=T, output_tokens=T), batch(T)
    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, True, rng(5))
        model.backward(np.ones_like(logits), cache)

    def of_steps():
        return [[step.output, step.gradients, step.cache] for step in t.steps]
    parameters = {id(p.data): p.data for p in model.parameters()}
    names, steps = copy.deepcopy([t.outputs, t.grads, t.attention]), copy.deepcopy(
        of_steps(), dict(parameters))
    for array in (x, logits, *(p.grad for p in model.parameters())):
        array.fill(np.nan)
    for p in model.parameters():
        p.data += 1.0                                     # as training would
    close([t.outputs, t.grads, t.attention], names, 0.0)
    for arrays in (t.outputs, t.grads, t.attention):
        for array in arrays.values():
            array.fill(np.nan)
    close(of_steps(), steps, 0.0)
    assert all(np.isfinite(data).all() for data in parameters.values())


def test_grads_equal_differences(build, T=70):
    """A small array is added to each layer's output in turn: the loss changes by its product with
    ``t.grads[name]``."""
    model, x = build(T=T), batch(T)
    t, (logits, _, _) = traced(model, x)
    y = targets(logits)
    for name, output in t.outputs.items():
        move, losses = rng(7).standard_normal(output.shape), []
        for h in (1e-5, -1e-5):
            with minifpt.trace(model, {name: lambda y, h=h, move=move: y + h * move}):
                losses.append(F.cross_entropy(model.forward(x, True, rng(5))[0], y)[0])
        slope = (losses[0] - losses[1]) / 2e-5
        assert np.sum(t.grads[name] * move) == pytest.approx(slope, rel=1e-5, abs=1e-9), name


# -------------------------------------------------------------------------------- steps

FORWARD = """input.linear, dropout, trunk.wpe.positions, trunk.dropout,
trunk.h.0.ln_1.layer_norm, trunk.h.0.attn.c_attn.linear,
trunk.h.0.attn.attention, trunk.h.0.attn.softmax, trunk.h.0.attn.dropout,
trunk.h.0.attn.last_tokens, trunk.h.0.attn.c_proj.linear, trunk.h.0.attn.dropout,
trunk.h.0.last_tokens,
trunk.h.0.ln_2.layer_norm, trunk.h.0.mlp.c_fc.linear, trunk.h.0.mlp.act.gelu,
trunk.h.0.mlp.c_proj.linear, trunk.h.0.mlp.dropout,
trunk.ln_f.layer_norm, output.linear, cross_entropy, log_sum_exp""".replace("\n", " ").split(", ")
INSIDE = {"softmax": "attention", "log_sum_exp": "cross_entropy"}


@pytest.mark.parametrize("T", [10, 120])
def test_every_step_in_order(build, T):
    t, _ = traced(build(T=T, n_layer=1), batch(T))
    assert [step.name for step in ahead(t)] == FORWARD == [step.name for step in t.steps[:22]]
    close(t.attention["trunk.h.0.attn"], t.steps[7].output)
    assert sorted(step.name for step in back(t)) == sorted(FORWARD)
    for i, step in enumerate(t.steps):
        assert step.layer == step.name.rpartition(".")[0] and step.name.endswith(step.op)
        assert step.function is getattr(F, step.op + "_backward" * step.backward)
        outer = INSIDE.get(step.op)
        if step.name == "trunk.h.0.attn.dropout" and "softmax" in (
                t.steps[i - 1].op, t.steps[i + 1].op):
            outer = "attention"
        assert (step.inside and step.inside.op) == outer
        if outer:
            assert step.inside.backward == step.backward and step.inside.layer == step.layer
    assert list(t.outputs) == list(t.grads) == NAMES and list(t.attention) == ["trunk.h.0.attn"]
    assert repr(t.steps[0]) == "Step(input.linear)"
    assert repr(t.steps[-1]) == "Step(input.linear, backward)"
    assert repr(t) == "Trace: 44 steps, outputs of 16 layers, gradients of 16, attention of 1"


def check_partners(t):
    """Check that each backward step got the cache of its forward step."""
    for step in back(t):
        assert step.partner.partner is step and not step.partner.backward
        assert (step.partner.name, step.partner.op) == (step.name, step.op)
        assert (step.inside and step.inside.partner) is step.partner.inside
        dy, cache = step.inputs.values()
        close(cache, step.partner.cache, 0.0)
        assert np.shape(dy) in ((), np.shape(step.partner.output))


@pytest.mark.parametrize("T", [10, 120])
def test_each_step_has_its_partner(build, T):
    model = build(T=T)
    t, _ = traced(model, batch(T))
    check_partners(t)
    assert all(step.partner for step in t.steps)
    for i in range(2):                                    # that of the output runs back first
        dropped, out, out_back, dropped_back = (
            s for s in t.steps if s.name == f"trunk.h.{i}.attn.dropout")
        assert (out.partner, dropped.partner) == (out_back, dropped_back)


def test_partners_are_right_when_passes_cross(build):
    """Predictions between forward and backward, two batches run back in either order."""
    model = build(T=12, output_tokens=12)
    for order in ([0, 1], [1, 0], [1]):
        with minifpt.trace(model) as t:
            caches = []
            for i in range(2):
                caches.append(model.forward(batch(12) + i, True, rng(i))[1])
                model.predict(batch(12) - i)
            for i in order:
                model.backward(np.ones((2, 12, 4)), cache=caches[i])
        check_partners(t)
        ran = len([s for s in ahead(t) if s.partner])
        assert ran == len(back(t)) == len(order) * len(ahead(t)) / 4
        if order == [1]:                                  # the first batch never ran back
            first = ahead(t)[0]
            assert first.reasons == dict.fromkeys("xwb", "backward was not run")


@pytest.mark.parametrize("T", [10, 70])
def test_a_step_runs_again_to_the_same_bits(build, T):
    """The inputs include dropout's generator."""
    t, _ = traced(build(T=T), batch(T))
    for step in t.steps:
        result = step.function(**step.inputs)
        y, cache = (result, None) if step.backward else result
        close(y, step.output, 0.0)
        close(cache, step.cache, 0.0)


# ---------------------------------------------------------------- gradients and reasons


def check_gradients(t, model):
    """Check that each gradient was added to ``.grad``, or is missing for a reason."""
    parameters = {id(p.data): p for p in model.parameters()}
    added = {}
    for step in ahead(t):
        assert step.reasons.keys() == {k for k, g in step.gradients.items() if g is None}
        for key, value in step.inputs.items():
            floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
            assert (key in step.gradients) == floats
            if id(value) in parameters:
                p, grad = parameters[id(value)], step.gradients[key]
                # Of a frozen one only the products are saved.
                assert grad is not None or not p.trainable and step.reasons[key] == FROZEN
                added.setdefault(id(value), []).append(grad)
            else:
                assert step.reasons.get(key, BELOW) == BELOW
            if step.gradients.get(key) is not None:
                assert step.gradients[key].shape == value.shape
    for key, p in parameters.items():
        if p.trainable and key in added:
            close(sum(added[key]), p.grad, 0.0 if len(added[key]) == 1 else 1e-12)


@given(st.data())
def test_gradients_under_any_mask(data):
    """A gradient is missing if the parameter is frozen, or if its block and everything below the
    block is frozen."""
    model = minifpt.FPT(minifpt.GPT2(config(6, n_embd=4), dtype=np.float64), 3, 4, 2)
    named = dict(model.named_parameters())
    learns = data.draw(st.sets(st.sampled_from(list(named)), max_size=4))
    for name, p in named.items():
        p.trainable = name in learns
    x = batch(6)
    with minifpt.trace(model) as t:
        logits, cache = model.forward(x, True, rng(1))
        if learns:
            model.backward(np.ones_like(logits), cache)
    if not learns:
        assert {r for s in ahead(t) for r in s.reasons.values()} == {"backward was not run"}
        return
    check_gradients(t, model)
    position = {name: i for i, name in enumerate(named)}
    lowest = min(position[name] for name in learns)
    for name in t.outputs:
        # A layer runs back if its block, or a layer below, learns.
        block = ".".join(name.split(".")[:3])
        last = max(i for n, i in position.items() if n.startswith(f"{block}.") or not name)
        assert (t.grads[name] is None) == (last < lowest), name


def test_operations_without_a_layer():
    """Within a trace of any model, a call of an operation is recorded, too."""
    x, w, b = rng(1).standard_normal((4, 3)), np.ones((3, 2)), np.zeros(2)
    _, earlier = F.cross_entropy(x, np.zeros(4, int))
    with minifpt.trace(Linear(1, 1)) as t:
        y, cache = F.linear(x, w, b, (False, True, True))
        F.linear_backward(np.ones_like(y), cache)
        F.log_sum_exp(x)
        F.cross_entropy_backward(1.0, earlier)            # its forward pass is not in here
    linear, linear_back, first, outer, inner = t.steps
    assert (linear.name, linear.layer, linear.partner) == ("linear", "", linear_back)
    assert linear.reasons == {"x": BELOW} and first.reasons == {"x": "backward was not run"}
    np.testing.assert_allclose(linear.gradients["w"], x.T @ np.ones((4, 2)))
    assert inner.inside is outer and not (first.partner or outer.partner or inner.partner)


# ------------------------------------------------------------- activations of one's own


def swish(x):
    """Made of another operation, so that one step lies inside another."""
    s, cache = F.softmax(np.stack([x, np.zeros_like(x)], -1))
    return x * s[..., 0], (x, s[..., 0], cache)


def swish_backward(dy, cache):
    x, s, _ = cache
    return dy * (s + x * s * (1.0 - s))


@pytest.mark.parametrize("pair, op", [
    ((swish, swish_backward), "swish"),
    ((functools.partial(swish), functools.partial(swish_backward)), "own"),
    (ACTIVATIONS["gelu"], "gelu_exact"), (ACTIVATIONS["relu"], "relu")])
def test_an_activation_of_the_user_s_own(build, monkeypatch, pair, op):
    monkeypatch.setitem(ACTIVATIONS, "own", pair)
    model, x = build(activation_function="own"), batch()
    want = run(model, x)
    t, got = traced(model, x)
    close(got, want)
    step, = [s for s in ahead(t) if s.layer == "trunk.h.0.mlp.act" and not s.inside]
    assert step.name == f"trunk.h.0.mlp.act.{op}" and step.function is getattr(F, op, pair[0])
    np.testing.assert_array_equal(step.output, t.outputs["trunk.h.0.mlp.act"])
    np.testing.assert_array_equal(step.gradients["x"], t.grads["trunk.h.0.mlp.c_fc"])
    if pair[0] is swish:
        inside, = [s for s in ahead(t) if s.inside is step]
        assert inside.name == "trunk.h.0.mlp.act.softmax" and inside.function is F.softmax


def test_a_layer_with_methods_of_its_own(build):
    """A layer whose methods return no pair, or take more arguments, works as without a trace."""
    class Odd(Layer):
        def __init__(self):
            self.weight = layers.Parameter(np.ones(3), "mlp")

        def forward(self, x):
            return x * self.weight.data

        def backward(self, dy, cache=None, *, scale=1.0):
            return dy * scale
    odd, x = Odd(), np.arange(6.0).reshape(2, 3)
    with minifpt.trace(odd) as t:
        np.testing.assert_array_equal(odd.forward(x), x)
        np.testing.assert_array_equal(odd.backward(x, None, scale=2.0), 2.0 * x)
    np.testing.assert_array_equal(t.outputs[""], x)
    np.testing.assert_array_equal(t.grads[""], x)


# ---------------------------------------------------------------- it leaves no mark


def state(model):
    """Return all that a trace replaces, and all that is set on layers."""
    tables = [vars(F), vars(fast), ACTIVATIONS]
    for _, layer in minifpt.layers.named_layers(model):
        tables += [vars(layer), vars(type(layer))]
    return [dict(table) for table in tables]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_all_is_restored_also_after_an_exception(build, error):
    model = build()
    before = state(model)
    with pytest.raises(error, match="boom") if error else nullcontext(), minifpt.trace(model) as t:
        assert state(model)[:3] == before[:3]             # no table is touched
        assert all("forward" not in vars(layer) for _, layer in layers.named_layers(model))
        run(model, batch())
        if error:
            raise error("boom")
    assert state(model) == before and t.outputs[""].shape == (2, 2, 4)
    assert (layers.TRACE.get(), guards.RUN.get(), fast.ops()) == (None, guards.checked_form, fast)
    with minifpt.trace(model):                            # and another can begin
        pass


def test_an_operation_that_fails_is_recorded_without_output(build):
    """The steps until the error are there, and later steps are not inside of the failed one."""
    model = build()
    with minifpt.trace(model) as t:
        with pytest.raises(ValueError, match="ids run from 0 to 99"):
            model.forward(np.array([[0, 99]]))
        with pytest.raises(ValueError, match="q has shape"):
            F.attention(*np.ones((3, 1, 2, 7)))
        model.forward(batch())
    assert [s.name for s in t.steps[:3]] == ["input.embedding", "attention", "input.linear"]
    assert not any(s.inside for s in t.steps if s.op not in ("softmax", "dropout"))
    assert t.steps[0].output is None


def test_two_traces_of_a_model_record_the_same(build):
    """The inner one ends first, and the outer one goes on."""
    model, x = build(), batch()
    with minifpt.trace(model) as outer:
        with minifpt.trace(model) as inner:
            want = run(model, x)
            check_partners(inner)
        n = len(outer.steps)
        run(model, x)
    check_partners(outer)
    assert [s.name for s in outer.steps] == [s.name for s in inner.steps] * 2
    assert [s.function for s in outer.steps[:n]] == [s.function for s in inner.steps]
    close([s.output for s in outer.steps[:n]], [s.output for s in inner.steps], 0.0)
    close([outer.outputs, outer.grads, outer.attention],
          [inner.outputs, inner.grads, inner.attention], 0.0)
    close(run(model, x), want)


def test_a_trace_of_a_part_inside_a_trace_of_the_whole_has_its_own_names(build):
    model, x = build(), batch()
    with minifpt.trace(model) as whole, minifpt.trace(model.trunk.h[1]) as part:
        run(model, x)
    assert list(part.outputs) == [*BLOCK, ""]
    close({f"trunk.h.1.{name}".rstrip("."): y for name, y in part.outputs.items()},
          {name: whole.outputs[name] for name in whole.outputs if "h.1" in name}, 0.0)
    names = {s.name for s in part.steps}
    assert {"attn.softmax", "cross_entropy"} <= names and "output.linear" not in names
    assert [s.op for s in part.steps] == [s.op for s in whole.steps]


def test_a_change_acts_inside_another_trace_and_is_seen_there(build):
    model, x = build(), batch()
    with minifpt.trace(model, {"trunk.h.0.attn": lambda y: 0 * y}):
        with minifpt.trace(model) as t:
            logits, cache = model.forward(x)
        with pytest.raises(ValueError, match="'trunk.h.0.attn' was changed"):
            model.backward(logits, cache)
    assert not t.outputs["trunk.h.0.attn"].any() and t.outputs["trunk.h.1.attn"].any()


def test_of_two_open_traces_the_outer_may_end_first(build):
    model, x = build(), batch()
    want, (outer, inner) = run(model, x), (minifpt.trace(model) for _ in range(2))
    first, t = outer.__enter__(), inner.__enter__()
    outer.__exit__(None, None, None)
    close(run(model, x), want)
    inner.__exit__(None, None, None)
    assert t.outputs and not first.outputs
    assert fast.ops() is fast and layers.TRACE.get() is None
    assert guards.RUN.get() is guards.checked_form
    close(run(model, x), want, 0.0)                       # to the same bits: the fast ones


def test_a_layer_that_calls_its_base_class_is_one_pass(build):
    class Twice(Linear):
        def forward(self, x):
            y, cache = super().forward(x)
            return 2.0 * y, cache

        def backward(self, dy, cache):
            return super().backward(2.0 * dy, cache)
    model, x = build(), batch()
    model.output.__class__ = Twice
    want = run(model, x)
    t, got = traced(model, x)
    close(got, want)
    logits, _ = model.forward(x, True, rng(5))
    close(t.outputs["output"], logits)
    close(t.outputs[""], logits)


@pytest.mark.parametrize("thing", [None, 3, np.zeros(3), minifpt.GPT2, F, {"forward": 1}])
def test_only_a_model_can_be_traced(thing):
    with pytest.raises(ValueError, match="^trace: got [^\n]*, expected a model"):
        with minifpt.trace(thing):
            raise AssertionError("it entered")


# ------------------------------------------------------------------------ other threads


def test_two_threads_trace_one_model_at_once(build):
    """Each trace has what its own thread runs, and the methods are as before when both ended."""
    model, x = build(), batch()
    before, together = state(model), threading.Barrier(2, timeout=60)

    def work(i):
        together.wait()
        for _ in range(4):                                # one opens while the other one is open
            with minifpt.trace(model, {f"trunk.h.{i}.mlp": lambda y: 0 * y}) as t:
                model.forward((1.0 + i) * x)
        return t
    with ThreadPoolExecutor(2) as pool:
        traces = [*pool.map(work, range(2))]
    assert state(model) == before
    for i, t in enumerate(traces):
        with minifpt.trace(model, {f"trunk.h.{i}.mlp": lambda y: 0 * y}) as alone:
            model.forward((1.0 + i) * x)
        close(t.outputs, alone.outputs, 0.0)
        assert [s.name for s in t.steps] == [s.name for s in alone.steps]
