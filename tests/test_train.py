"""Training: what a run does and learns, what it takes, and what stops it."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from short_runs import (
    Stop,
    WithTestSet,
    at_step,
    build,
    checkpoint,
    data,
    go,
    rows,
    same_checkpoint,
    stop_at,
)

import minifpt
from minifpt import cli, machine, optim, training
from minifpt.layers import Linear, named_layers
from minifpt.tasks import BitMemory, BitXOR

# ------------------------------------------------------------------- what a run does


def test_a_step_equals_one_by_hand():
    """Two steps equal forward, backward, clipping and Adam called one by one."""
    task = BitXOR(n=2)
    trained, _ = go(model=build(task, dtype=np.float64), steps=2, lr=3e-3, seed=4)
    model, rng = build(task, dtype=np.float64), np.random.default_rng([4, 0])
    parameters = [p for p in model.parameters() if p.trainable]
    adam = optim.Adam(parameters, lr=3e-3)
    for _ in range(2):
        x, y = task.batch(rng, 4)
        logits, cache = model.forward(x, True, rng)
        model.zero_grad()
        model.backward(task.loss(logits, y)[1], cache)
        assert optim.clip_grad_norm(parameters, 1.0) > 0
        adam.step()
    for name, values in data(model).items():
        np.testing.assert_allclose(data(trained)[name], values, rtol=1e-9, atol=1e-12,
                                   err_msg=f"training.step changes {name} otherwise")


def test_evaluate_is_the_mean_over_all_examples():
    task = BitXOR(n=2)
    model = build(task)
    x, y = task.batch(np.random.default_rng(3), 150, "test")      # two batches and a part
    assert [*map(training.examples_at_once, (1, 128, 512, 9999))] == [64, 64, 16, 1]
    got = training.evaluate(model, task, x, y)
    single = [(task.loss(model.predict(x[i:i + 1]), y[i:i + 1])[0],
               task.accuracy(model.predict(x[i:i + 1]), y[i:i + 1])) for i in range(150)]
    np.testing.assert_allclose(got, np.mean(single, axis=0), rtol=1e-5)
    assert all(p.grad is None for p in model.parameters())


def test_the_last_row_is_tested_on_the_whole_test_set():
    task = WithTestSet(n=2)
    model, history = go(task=task)
    x, y = task.test_set()
    logits = np.concatenate([model.predict(x[:64]), model.predict(x[64:])])
    assert history[-1]["test_accuracy"] == pytest.approx(task.accuracy(logits, y), abs=1e-12)
    assert history[-1]["test_loss"] == pytest.approx(task.loss(logits, y)[0], rel=1e-5)
    assert (8 * 2 * history["test_accuracy"][:-1] % 1 == 0).all()         # 8 examples of 2 bits


def test_the_last_test_may_take_some_examples_and_shows_a_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    bar = training.progress_bar
    monkeypatch.setattr(training, "progress_bar", lambda *a, **kw: bar(*a, **kw | (
        {"delay": 0} if kw.get("desc") == "test" else {})))
    task, sizes = WithTestSet(n=2), []
    task.accuracy = lambda logits, y: sizes.append(len(y)) or 0.5
    minifpt.train(build(task), task, steps=1, final_test_examples=30)
    assert 30 in sizes and 64 not in sizes and "test: " in capsys.readouterr().err
    assert cli.main(["train", "bit-xor", "--model", "random:1x2x8", "--steps", 2,
                     "--test-examples", 30, "--out", tmp_path / "cli"]) == 0
    settings = json.loads((tmp_path / "cli/config.json").read_text())
    assert settings["test_examples"] == settings["final_test_examples"] == 30


@pytest.mark.parametrize("freeze", ["fpt", "*.bias"])
def test_frozen_parameters_do_not_change(freeze):
    model = build(freeze=freeze)
    before = data(model)
    go(model=model, lr=1e-2, weight_decay=0.1)
    plain, _ = go(model=build(freeze=freeze), lr=1e-2)
    for (name, p), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (p.data != before[name]).any() == p.trainable, name
        assert p.data.ndim < 2 or (p.data != other.data).any() == p.trainable, name


def test_same_seed_same_bits_another_seed_differs():
    (a, first), (b, second), (c, third) = go(seed=1), go(seed=1), go(seed=2)
    np.testing.assert_equal(data(a), data(b))
    assert rows(first) == rows(second) != rows(third)
    assert (data(a)["output.weight"] != data(c)["output.weight"]).any()


def test_testing_and_checkpoints_do_not_disturb_training(tmp_path):
    np.testing.assert_equal(data(go()[0]), data(go(tmp_path / "a", eval_every=2,
                                                   checkpoint_every=3, test_examples=70)[0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_gradients_and_moments_keep_the_model_s_dtype(tmp_path, dtype):
    model = build(dtype=dtype)
    go(tmp_path / "run", model=model, weight_decay=0.1, schedule="cosine", warmup=3)
    arrays = [*(p.data for p in model.parameters()), *checkpoint(tmp_path / "run")[0].values(),
              *(p.grad for p in model.parameters() if p.trainable)]
    assert {a.dtype for a in arrays} == {np.dtype(dtype)}


# ------------------------------------------------------------------------ settings


SETTINGS = {"steps": None, "batch_size": 1, "lr": None, "seed": 0, "schedule": None, "warmup": None,
            "weight_decay": 0, "clip": 1, "eval_every": 1, "test_examples": 1,
            "final_test_examples": None, "target_accuracy": None}


def test_learning_rates_follow_warm_up_and_schedule():
    def rates(schedule, warmup):
        settings = training.Settings(lr=0.5, steps=6, batch_size=1, schedule=schedule,
                                     warmup=warmup)
        return [settings.lr * settings.factor(step) for step in range(6)]
    assert rates("constant", 0) == [0.5] * 6
    np.testing.assert_allclose(rates("constant", 4), [0.125, 0.25, 0.375, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(rates("cosine", 2), [0.5 * optim.cosine(i, 6, 2) for i in range(6)])
    for steps, given, warmup in (100, None, 10), (101, None, 100), (30, 50, 50):
        changes = {"steps": steps, "warmup": given}
        settings = training.Settings.for_task(BitMemory(), **SETTINGS | changes)
        assert settings.warmup == warmup               # a short run takes a tenth of its steps
    gentle, harsh = (data(go(lr=0.1, steps=1, warmup=warmup)[0]) for warmup in (9, 0))
    assert np.abs(gentle["output.bias"] - harsh["output.bias"]).max() > 0.05      # it is used


def test_a_schedule_may_be_a_function_of_the_step(tmp_path):
    rates = []
    options = {"lr": 1e-2, "schedule": lambda step: 0.5 ** step,
               "callback": lambda run: rates.append(run.optimizer.lr)}
    go(tmp_path / "b", steps=3, **options)
    assert rates == [1e-2, 5e-3, 2.5e-3]                  # without the task's warm-up
    go(tmp_path / "b", steps=4, resume=True, **options)
    assert rates[3:] == [1.25e-3]
    assert json.loads((tmp_path / "b" / "config.json").read_text())["schedule"] == "function"
    with refused("train: the schedule's factor is -1, expected a positive number"):
        go(steps=1, schedule=lambda step: -1)


def test_a_callback_sees_each_step_and_false_ends_the_run_at_a_checkpoint(tmp_path):
    steps = []

    def callback(run):
        steps.append((run.step, run.loss, run.accuracy, run.model))
        return np.bool_(run.step < 9)
    model, history = go(tmp_path / "b", callback=callback)
    assert [step for step, *_ in steps] == [*range(1, 10)] and [r["step"] for r in history] == [5]
    assert all(m is model and 0 < loss < 9 and 0 <= a <= 1 for _, loss, a, m in steps)
    assert history[0]["train_loss"] == pytest.approx(np.mean([loss for _, loss, *_ in steps[:5]]))
    assert checkpoint(tmp_path / "b")[1]["step"] == 9
    go(tmp_path / "b", resume=True, callback=lambda run: 0)       # only False ends it
    go(tmp_path / "a")
    same_checkpoint(tmp_path / "a", tmp_path / "b")
    assert go(callback=lambda run: False)[1] == []


def test_a_learning_rate_that_a_callback_sets_is_used_and_kept_over_a_resume(tmp_path):
    rates = []

    def callback(run):
        rates.append(run.optimizer.lr)
        if run.step == 3:
            run.optimizer.lr = 5e-4
        return run.step < 9
    go(tmp_path / "b", lr=1e-3, callback=callback)
    assert rates == [1e-3] * 3 + [5e-4] * 6
    go(tmp_path / "b", lr=1e-3, resume=True, callback=lambda run: rates.append(run.optimizer.lr))
    assert rates[9:] == [5e-4] * 15
    rates.clear()                                         # also where the schedule's factor is 0
    go(lr=1e-3, steps=5, schedule=lambda step: float(step != 2), callback=callback)
    assert rates == [1e-3, 1e-3, 0.0, 5e-4, 5e-4]
    rates.clear()                                         # elsewhere the factor goes on from it
    go(lr=1e-3, steps=5, schedule=lambda step: 0.5 ** step, callback=callback)
    assert rates == [1e-3, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4]


@pytest.mark.parametrize("change", [
    lambda model: model.freeze("output"), lambda model: model.freeze("full"),
    lambda model: setattr(model, "output", Linear(16, 2, group="output"))],
    ids=["froze", "thawed", "replaced"])
def test_a_callback_may_not_change_which_parameters_are_trained(tmp_path, change):
    def callback(run):
        if run.step == 9:
            change(run.model)
    with refused("train: the callback froze, thawed or replaced a parameter, expected the same"):
        go(tmp_path / "b", callback=callback)
    go(tmp_path / "b", resume=True)                       # from the checkpoint before
    go(tmp_path / "a")
    same_checkpoint(tmp_path / "a", tmp_path / "b")


def test_the_function_trains_as_the_command_does(tmp_path, monkeypatch):
    """``minifpt.train(model, task)`` takes the task's own settings."""
    task = minifpt.tasks.get("bit-memory", strings=2, bits=4, patch=2)
    monkeypatch.setattr(minifpt.tasks.BitMemory, "defaults", task.defaults | {"steps": 3})
    model = minifpt.FPT.for_task(task, "random:1x2x8", seed=1)
    minifpt.train(model, task, seed=1, out=tmp_path / "function", progress=False)
    assert cli.main(["train", "bit-memory", "--strings=2", "--bits=4", "--patch=2", "--seed",
                     "1", "--model", "random:1x2x8", "--out", str(tmp_path / "command")]) == 0
    np.testing.assert_equal(*(checkpoint(tmp_path / name)[0] for name in ("function", "command")))
    model = minifpt.FPT.for_task("bit-xor", "random:1x2x8")
    minifpt.train(model, "bit-xor", steps=2, out=tmp_path / "named", progress=False)
    assert minifpt.load(tmp_path / "named").run["source"] == "bit-xor"


def test_numpys_numbers_and_paths_are_taken(tmp_path):
    n = np.int64
    options = dict(steps=n(2), batch_size=np.int8(2), lr=np.float32(1e-3), seed=n(1),
                   clip=np.float32(1), weight_decay=np.float64(0.1), warmup=n(1), eval_every=n(2),
                   test_examples=n(2), checkpoint_every=n(2),
                   config={"a": np.float32(1), "b": Path("x"), "c": n(3)})
    for out in tmp_path / "run", str(tmp_path / "text"):
        go(out, task=minifpt.tasks.get("bit-xor", n=n(2)), **options)
    assert json.loads((tmp_path / "run/config.json").read_text())["c"] == 3


# ------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("options, message", [
    *[({name: 0}, f"train: {name} must be a whole number, at least 1, got 0") for name in (
        "steps", "batch_size", "eval_every", "test_examples", "final_test_examples",
        "checkpoint_every")],
    ({"steps": "many"}, "train: steps must be a whole number, at least 1, got 'many'"),
    ({"batch_size": 2.5}, "train: batch_size must be a whole number"),
    ({"lr": 0.0}, "train: lr is 0.0, expected a positive number"), ({"lr": np.nan}, "lr is nan"),
    ({"clip": 0}, "train: clip is 0"), ({"clip": np.inf}, "clip is inf, expected a positive"),
    ({"weight_decay": -0.1}, "train: weight_decay is -0.1"),
    ({"seed": -1}, "train: seed must be a whole number, at least 0, got -1"),
    ({"warmup": -1}, "train: warmup must be"), ({"schedule": "linear"}, "schedule is 'linear'"),
    ({"target_accuracy": 99.5}, "train: target_accuracy is 99.5, expected .* at most 1"),
    ({"config": 5}, "train: config is 5, expected a dictionary"),
    ({"config": {"a": object()}}, "cannot be kept in a file"),
    ({"out": ""}, "out is .*, expected a path"), ({"out": 3}, "out is 3, expected a path"),
    ({"stop": 1}, "stop is .*expected an object with is_set"),
    ({"callback": 3}, "train: callback is 3, expected a function of a run"),
    ({"resume": "False"}, "expected True or False"),
    ({"out": None, "resume": True}, "resume needs out"),
    ({"model": "minigpt-language"}, "the model is .*, expected a minifpt.FPT"),
    ({"model": "parity", "task": None}, "the model is 'parity', expected a minifpt.FPT, as minif"),
    ({"task": None}, "train: None is not a task: it has no 'name'"),
    ({"task": 3}, "3 is not a task"), ({"task": BitXOR}, "is a class"),
    # a task and a model that do not fit
    ({"model": build(freeze="*")}, "every parameter is frozen"),
    ({"task": BitXOR(n=9), "model": build(BitXOR(n=9))}, "18 tokens, the trunk has 16 positions"),
    ({"task": BitMemory(1, 4, 2)}, r"expected \(B, T, 1\)"), ({"task": BitXOR(n=3)}, "logits")])
def test_a_wrong_argument_is_refused_and_writes_nothing(cwd, options, message):
    with refused(message):
        minifpt.train(**{"model": build(), "task": BitXOR(n=2), "out": "run", "steps": 2,
                         "progress": False} | options)
    assert not list(cwd.iterdir())


class Own:
    """No more than what is asked of a task."""

    name, input_dim, tokens, output_dim, output_tokens = "own", 1, 4, 2, 2

    def batch(self, rng, size, split):
        return BitXOR(n=2).batch(rng, size, split)

    def loss(self, logits, y):
        return BitXOR(n=2).loss(logits, y)

    def accuracy(self, logits, y):
        return np.float32(BitXOR(n=2).accuracy(logits, y))


def drawn(rng, size, split):
    return BitXOR(n=2).batch(rng, size, split)


@pytest.mark.parametrize("changed, part", [
    ({"tokens": 5}, r"batch returned x of shape \(1, 4, 1\), expected \(B, 5, ...\)"),
    ({"batch": lambda *a: None}, "batch must return x and y"),
    ({"batch": lambda *a: [[1], [2]]}, "batch must return x and y"),
    ({"batch": lambda t, rng, size, split: (np.random.random((size, 4, 1)), np.zeros((  # noqa: NPY002
        size, 2), int))}, "batch draws from np.random"),
    ({"loss": lambda *a: 0.5}, "loss must return"),
    ({"loss": lambda t, z, y: (0.5, z.astype(float))}, "loss must .* dtype float32"),
    ({"loss": lambda t, z, y: (np.zeros(1), z)}, "loss must return a number"),
    ({"batch": lambda t, rng, size, split: drawn(rng, size + 1, split)},
     "batch was asked for 1 examples of 'train' and returned 2"),
    ({"batch": lambda t, rng, size, split: (drawn(rng, size, split)[0],
                                            drawn(rng, size + 1, split)[1])},
     r"batch returned x of shape \(1, .*expected as many examples"),
    ({"batch": lambda *a: (np.array(1.0), np.array(1))}, "batch must return x and y"),
    ({"accuracy": lambda *a: None}, "accuracy must return a number"),
    ({"accuracy": lambda *a: 1.5}, "accuracy must return a number from 0 to 1, got 1.5"),
    ({"accuracy": lambda *a: np.nan}, "accuracy must return a number from 0 to 1, got nan"),
    ({"test_set": lambda t: (np.zeros((2, 4, 1)), np.zeros((3, 2)))}, "test_set returned x of"),
    ({"test_set": lambda t: BitXOR(n=2)}, "test_set must return x and y"),
    ({}, None)])
def test_train_refuses_wrong_results_of_a_task(tmp_path, changed, part):
    """And takes a task without options and classes, but with right results."""
    task = type("Own", (Own,), changed)()
    if part is None:
        go(tmp_path / "run", build(), task, steps=2)
        return
    with refused(f"train: own: {part}"):
        go(tmp_path / "run", build(), task, steps=2)
    assert not list(tmp_path.iterdir()) or "test_set" in changed      # what was trained stays


def test_an_accuracy_that_is_wrong_only_in_the_test_is_refused():
    accuracies = iter([0.5, 0.5])                         # of the trial, and of the step
    task = type("Own", (Own,), {"accuracy": lambda *a: next(accuracies, 1.5)})()
    with refused("train: own: accuracy must return a number from 0 to 1, got 1.5"):
        go(None, build(), task, steps=1)


# ----------------------------------------------------------------------- divergence


@pytest.mark.parametrize("name, value", [
    ("input.weight", np.nan), ("trunk.h.1.attn.c_attn.weight", np.inf), ("output.bias", -np.inf)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_value_that_is_not_finite_stops_the_run_which_may_go_on(tmp_path, name, value):
    """From its last good checkpoint, even if the broken model is passed again."""
    task, model = BitXOR(n=2), build()

    def poison():
        p = dict(model.named_parameters())[name]
        p.data = p.data.copy()                            # a frozen matrix is read-only meanwhile
        p.data.flat[1] = value
    with refused(rf"^step 17: the .* first in {name}; ", minifpt.Diverged) as error:
        go(tmp_path / "run", model=model, task=at_step(task, 17, poison))
    assert isinstance(error.value, ValueError)
    assert not any("forward" in vars(layer) for _, layer in named_layers(model))
    with pytest.raises(Stop):                             # the checkpoint is that of step 14
        go(tmp_path / "good", task=stop_at(17))
    same_checkpoint(tmp_path / "run", tmp_path / "good")
    if "trunk" not in name:                               # frozen weights are not in a checkpoint
        go(tmp_path / "run", model=model, resume=True)
        go(tmp_path / "good", resume=True)
        same_checkpoint(tmp_path / "run", tmp_path / "good")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_first_layer_is_named_where_parameters_are_finite():
    task = BitXOR(n=2)
    for name in ("trunk.h.1.mlp.c_fc", "trunk.h.0.attn.c_attn", "output"):
        model = build(task, dropout=0.0)
        p = dict(model.named_parameters())[f"{name}.weight"]
        p.data[:] = 3e38                                  # finite, its product is not
        x, _ = task.batch(np.random.default_rng(0), 4)
        with minifpt.trace(model):                        # it opens a second one
            assert training.first_nonfinite(model, x) == name
        p.data[:] = 1.0
        assert training.first_nonfinite(model, x) == "the backward pass"
        for q in model.parameters():
            q.grad = np.ones_like(q.data) if q is not p else q.data * np.nan
        assert training.first_nonfinite(model, x) == f"the gradient of {name}.weight"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_is_not_finite_is_named():
    task, loss = BitXOR(n=2), BitXOR.loss
    task.loss = lambda logits, y: (loss(task, logits, y)[0],
                                   np.full_like(logits, np.inf if len(y) > 1 else 0))
    with pytest.raises(minifpt.Diverged, match="step 1: the gradient is not finite, first in "
                                               "the gradient of output.bias"):
        go(task=task)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("steps", [1, 24])
def test_a_huge_learning_rate_saves_no_broken_value(tmp_path, steps):
    """No broken value is saved, even if a checkpoint or the end comes first."""
    with pytest.raises(minifpt.Diverged, match="^step [12]: the .*loss is not finite, first in "):
        go(tmp_path / "run", lr=1e38, steps=steps, checkpoint_every=1, eval_every=24)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["config.json"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_broken_numbers_at_the_start_write_nothing(tmp_path):
    model, task = build(), BitXOR(n=2)
    model.trunk.h[0].mlp.c_fc.weight.data[0, 0] = np.nan
    task.batch = lambda rng, size, split: (np.full((size, 4, 1), np.nan, np.float32),
                                           np.zeros((size, 2), int))
    for place, options in (("trunk.h.0.mlp.c_fc.weight", {"model": model}),
                           ("x, the task's input", {"task": task})):
        with pytest.raises(minifpt.Diverged, match=f"first in {place}$"):
            go(tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------- threads


def test_four_models_in_four_threads_train_as_one_after_the_other():
    """Their histories are the same, and the settings of the process are restored."""
    def run(seed):
        config = minifpt.GPT2Config(2, 2, 16, n_positions=70, vocab_size=2, dropout=0.1)
        model = minifpt.FPT(minifpt.GPT2(config, seed=seed), 1, 2, 35, seed=seed)
        task = BitXOR(n=35)                               # 70 tokens: more than one tile
        return rows(go(None, model, task, steps=3, batch_size=3, seed=seed, eval_every=1)[1])
    before = machine.blas_threads()
    try:
        threads, want = machine.blas_threads(2), [run(seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(run, range(4))) == want
        assert machine.blas_threads() == threads
        assert machine.single_threaded_blas.users == machine.kept_memory.users == 0
    finally:
        machine.blas_threads(before)
