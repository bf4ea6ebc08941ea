"""A large batch runs in parts, side by side: equal to one pass, and the same bits on all cores."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext

import numpy as np
import pytest

import minifpt
from minifpt import layers, machine, parallel, training
from minifpt.tasks import BitXOR, Text

SMALL = {"bert": "random:bert:1x2x16", "t5": "random:t5:1x2x16", "gpt2": "random:2x2x16",
         "llama": "random:llama:2x4/2x16", "lstm": "lstm:2x16"}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Cut small batches; the real sizes would take long."""
    monkeypatch.setattr(parallel, "PARTS", {24: 2, 60: 4})


def model_of(trunk="gpt2", task=None, dtype=np.float64, **options):
    """Return an FPT of a small trunk, everything trained."""
    trunk = minifpt.trunks.get(SMALL[trunk], dropout=options.pop("dropout", 0.0), dtype=dtype)
    return minifpt.FPT.for_task(task or BitXOR(n=3), trunk, "full", **options)


def gradients(model, x, train=True, seed=0, whole=False):
    """Return logits and gradients of a pass whose loss has random factors on the logits."""
    forward, backward = (type(model).forward, type(model).backward) if whole else (
        parallel.forward_in_parts, parallel.backward_in_parts)
    model.zero_grad()
    logits, cache = forward(model, x, train=train, rng=np.random.default_rng(seed))
    dlogits = np.random.default_rng(1).standard_normal(logits.shape).astype(logits.dtype)
    backward(model, dlogits, cache)
    return {"logits": logits} | {n: p.grad for n, p in model.named_parameters()}


def examples(size, task=None):
    return (task or BitXOR(n=3)).batch(np.random.default_rng(5), size, "train")


@pytest.mark.parametrize("size", [5, 9, 13])              # 2 parts, 2 of other sizes, 4
@pytest.mark.parametrize("trunk, options", [
    ("gpt2", {}), ("gpt2", {"adapt": "lora:rank=2"}), ("gpt2", {"adapt": "bitfit"}),
    ("bert", {}), ("t5", {}), ("llama", {})])
def test_parts_have_the_gradients_of_the_whole(trunk, options, size):
    model, (x, _) = model_of(trunk, **options), examples(size)
    assert len(parallel.parts_of(model, x)) == {5: 2, 9: 2, 13: 4}[size]
    parts, whole = gradients(model, x), gradients(model, x, whole=True)
    for name, grad in whole.items():
        np.testing.assert_allclose(parts[name], grad, rtol=1e-12, atol=1e-12, err_msg=name)


def test_a_language_model_runs_in_parts():
    """Its table is used twice, and its columns may be frozen."""
    config = minifpt.GPT2Config(1, 2, 16, 32, 256, 0.0)
    model = minifpt.LanguageModel(config, dtype=np.float64)
    model.freeze("ln,mlp")
    model.trunk.h[0].attn.c_attn.weight.frozen_columns = (slice(0, 16),)
    x, _ = Text(tokens=8).batch(np.random.default_rng(0), 8, "train")
    assert len(parallel.parts_of(model, x)) == 4
    parts, whole = gradients(model, x), gradients(model, x, whole=True)
    for name, grad in whole.items():
        np.testing.assert_equal(parts[name] is None, grad is None)
        if grad is not None:
            np.testing.assert_allclose(parts[name], grad, rtol=1e-12, atol=1e-12, err_msg=name)


def test_gradients_are_right_with_dropout():
    """Each part has a mask of its own, which its backward pass uses."""
    model, (x, _) = model_of(dropout=0.2), examples(13)
    analytical = gradients(model, x)
    draws = np.random.default_rng(1).standard_normal(analytical["logits"].shape)
    rng, slopes = np.random.default_rng(2), []
    for name, p in model.named_parameters():
        before, d = p.data, rng.standard_normal(p.data.shape)
        for sign in (1, -1):
            p.data = before + sign * 1e-6 * d
            slopes.append(sign * np.sum(gradients(model, x)["logits"] * draws) / 2e-6)
        p.data = before
        numerical = slopes.pop() + slopes.pop()
        assert np.sum(analytical[name] * d) == pytest.approx(numerical, rel=1e-5, abs=1e-7), name


def test_each_part_drops_other_values():
    model, (x, _) = model_of(dropout=0.5), examples(8)
    x = np.repeat(x[:1], 8, axis=0)                       # all examples are equal
    first, second = np.split(gradients(model, x)["logits"], 2)
    assert not np.isclose(first, second).any()
    rng = np.random.default_rng(0)
    parallel.forward_in_parts(model, x, train=True, rng=rng)
    # Nor do two steps have the same masks.
    third = parallel.forward_in_parts(model, x, train=True, rng=rng)[0]
    assert not np.isclose(third, np.concatenate([first, second])).any()


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_any_number_of_cores_gives_the_same_bits(monkeypatch, dropout):
    results = []
    for cores in (1, 2, 3, 5):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        model = model_of(dropout=dropout, dtype=np.float32)
        history = minifpt.train(model, BitXOR(n=3), 6, 13, eval_every=3, test_examples=9,
                                progress=False)
        results.append([[row["test_loss"] for row in history],
                        *(p.data for p in model.parameters())])
    for other in results[1:]:
        np.testing.assert_equal(other, results[0])


def test_resume_draws_the_same_dropout(tmp_path):
    weights = []
    for folder, n, resume in ("a", 9, False), ("b", 4, False), ("b", 9, True):
        model = model_of(dropout=0.2, dtype=np.float32)
        minifpt.train(model, BitXOR(n=3), n, 13, out=tmp_path / folder, resume=resume,
                      eval_every=9, progress=False)
        weights.append(model.output.weight.data)
    np.testing.assert_array_equal(weights[0], weights[2])
    assert not np.array_equal(weights[0], weights[1])


def test_a_loss_that_is_no_mean_over_examples_is_right():
    """The loss sees the whole batch, as that of masked bytes must, which counts the chosen ones."""
    class Half(BitXOR):
        def loss(self, logits, y):
            n = len(y) // 2
            loss, dlogits = super().loss(logits[:n], y[:n])
            return loss, np.concatenate([dlogits, np.zeros_like(logits[n:])])
    task, (x, y) = Half(n=3), examples(8)
    model, other = model_of(), model_of()
    loss, _ = training.step(model, task, minifpt.optim.Adam(model.parameters()), x, y, 1e9, None)
    half, _ = training.step(other, BitXOR(n=3), minifpt.optim.Adam(other.parameters()),
                            x[:4], y[:4], 1e9, None)
    assert loss == pytest.approx(half, rel=1e-12)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-9, atol=1e-12)


class Mine(layers.MLP):
    """A layer of the user's own."""


@pytest.mark.parametrize("change", [
    "nothing", "layer", "method", "lstm", "trace", "small", "wide", "no trunk"])
def test_where_one_pass_runs(monkeypatch, change):
    monkeypatch.setattr(parallel, "MAX_CHANNELS", 15 if change == "wide" else 16)
    model, (x, _) = model_of("lstm" if change == "lstm" else "gpt2"), examples(13)
    x = x[:2] if change == "small" else x
    if change == "no trunk":
        model = model.trunk
    if change == "layer":
        model.trunk.h[0].mlp = Mine(16, dtype=np.float64)
    if change == "method":
        model.trunk.h[0].mlp.forward = model.trunk.h[0].mlp.forward
    with minifpt.trace(model) if change == "trace" else nullcontext():
        assert len(parallel.parts_of(model, x)) == (4 if change == "nothing" else 1)


def test_predict_and_evaluate_run_in_parts_and_keep_no_gradient(monkeypatch):
    task, model, (x, y) = BitXOR(n=3), model_of(), examples(13)
    want, sizes, forward = model.forward(x)[0], [], minifpt.GPT2.forward
    monkeypatch.setattr(minifpt.GPT2, "forward", lambda self, x, *args, **options: (
        sizes.append(len(x)), forward(self, x, *args, **options))[1])
    np.testing.assert_allclose(model.predict(x), want, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"x has shape \(13, 6, 2\)"):
        model.predict(np.repeat(x, 2, axis=2))
    loss, accuracy = training.evaluate(model, task, x, y)
    assert loss == pytest.approx(task.loss(want, y)[0]) and accuracy == task.accuracy(want, y)
    assert sorted(sizes) == [1, 1, 4, 4, 4, 4, 4, 4]
    assert all(p.grad is None for p in model.parameters())


def test_a_trace_in_another_thread_changes_no_bit_of_a_training():
    """The training goes on in parts; the models that are traced run whole, here and there."""
    def losses(callback=None):
        history = minifpt.train(model_of(dtype=np.float32), BitXOR(n=3), 4, 13, eval_every=1,
                                test_examples=13, callback=callback, progress=False)
        return history["train_loss"].tolist(), history["test_loss"].tolist()
    want, opened = losses(), ExitStack()

    def start(run):
        if run.step == 2:
            other.submit(opened.enter_context, minifpt.trace(model_of())).result()
    with ThreadPoolExecutor(1) as other:
        assert losses(start) == want
        with minifpt.trace(model_of()):
            pass
        other.submit(opened.close).result()


def test_threads_share_no_gradient(monkeypatch):
    """Each part adds into its own; the parameter's own is filled when all have ended."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    model, (x, _) = model_of(), examples(8)
    weight, together, seen = model.output.weight, threading.Barrier(2, timeout=20), []
    backward = layers.Linear.backward

    def slow(self, dy, cache):
        dx = backward(self, dy, cache)
        if self is model.output:
            together.wait()                               # both parts have added theirs
            seen.append(weight.grad)
        return dx
    monkeypatch.setattr(layers.Linear, "backward", slow)
    assert gradients(model, x)["output.weight"] is not None
    assert seen == [None, None]
