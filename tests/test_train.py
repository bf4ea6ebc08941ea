"""Training learns, writes its files, and resumes to the same bits."""

import functools
import json
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli, machine, optim, training
from minifpt.files import plots
from minifpt.files.runs import COLUMNS, locked
from minifpt.layers import named_layers
from minifpt.tasks import BitMemory, BitXOR

FILES = ["checkpoint.npz", "config.json", "curves.png", "metrics.csv"]


def trunk(dropout=0.1, dtype=np.float32, seed=0):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16, vocab_size=11,
                                dropout=dropout)
    return minifpt.GPT2(config, seed=seed, dtype=dtype)


def build(task, freeze="fpt", seed=0, **kw):
    model = minifpt.FPT(trunk(seed=seed, **kw), task.input_dim, task.output_dim,
                        task.output_tokens, seed=seed)
    model.freeze(minifpt.FreezeMask.parse(freeze))
    return model


def go(out=None, model=None, task=None, **kw):
    """Train a short run, and return the model and its history."""
    task = task or BitXOR(n=2)
    model = model or build(task)
    options = {"steps": 24, "eval_every": 5, "test_examples": 8, "checkpoint_every": 7} | kw
    return model, minifpt.train(model, task, out=out, progress=False, **options)


def data(model):
    return {n: p.data.copy() for n, p in model.named_parameters()}


def checkpoint(folder):
    """Return a checkpoint's arrays, and its state without the seconds."""
    with np.load(folder / "checkpoint.npz", allow_pickle=False) as file:
        arrays = dict(file)
    state = json.loads(str(arrays.pop("state")))
    state.pop("seconds")
    for row in state["history"]:
        row.pop("seconds")
    return arrays, state


def same_checkpoint(a, b):
    (arrays, state), (others, other) = checkpoint(a), checkpoint(b)
    assert arrays.keys() == others.keys() and state == other
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype
        np.testing.assert_array_equal(array, others[name], name)


def rows(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


class Stop(Exception):
    """Raised to end a run in the middle."""


def at_step(task, step, action):
    """Have the task call ``action()`` before the training batch of that step."""
    batch, sizes = task.batch, []

    def acting(rng, size, split="train"):
        if split == "train" and size == 4:                # a step's batch
            sizes.append(size)
            if len(sizes) == step:
                action()
        return batch(rng, size, split)
    task.batch = acting
    return task


def stop_at(task, step):
    """Have the task raise ``Stop`` at that step."""
    def stop():
        raise Stop
    return at_step(task, step, stop)


def poison(task, model, step, name, value):
    """Put ``value`` into a parameter just before that step."""
    def put():
        p = dict(model.named_parameters())[name]
        p.data = p.data.copy()                            # a frozen matrix is read-only meanwhile
        p.data.flat[1] = value
    return at_step(task, step, put)


# ------------------------------------------------------------------- what a run does


def test_bit_xor_is_learnt():
    task = BitXOR(n=2)
    _, history = go(model=build(task, "full", dropout=0.0), task=task, steps=200, batch_size=32,
                    lr=1e-2, eval_every=25, test_examples=64)
    assert history["train_loss"][0] > 0.3 and history["test_loss"][-1] < 0.1
    assert history["test_accuracy"][-1] > 0.95


def test_a_run_writes_its_files_and_history(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr("minifpt.observers.curves", plots.curves)
    out = tmp_path / "a" / "run"
    _, history = go(out, lr=2e-3, batch_size=3, seed=5, config={"model": "tiny"})
    assert sorted(p.name for p in out.iterdir()) == FILES
    text = (out / "metrics.csv").read_text().splitlines()
    assert text[0] == ",".join(COLUMNS) == \
        "step,train_loss,train_accuracy,test_loss,test_accuracy,seconds"
    assert [int(line.split(",")[0]) for line in text[1:]] == [5, 10, 15, 20, 24]
    assert minifpt.History.load(out / "metrics.csv") == history
    settings = json.loads((out / "config.json").read_text())
    want = {"task": "bit-xor", "options": {"n": 2}, "steps": 24, "batch_size": 3, "lr": 2e-3,
            "seed": 5, "schedule": "constant", "model": "tiny"}
    assert {k: settings[k] for k in want} == want
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    arrays, state = checkpoint(out)
    assert state["step"] == state["t"] == 24 and all(a.dtype == np.float32 for a in arrays.values())


def test_history_has_empty_cells_for_missing_values(tmp_path):
    history = minifpt.History([dict.fromkeys(COLUMNS) | {"step": 3, "train_loss": 0.1}])
    history.save(tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text().splitlines()[1] == "3,0.1,,,,"
    assert minifpt.History.load(tmp_path / "m.csv") == history
    assert np.isnan(history["test_loss"]).all()
    with pytest.raises(KeyError, match="no column 'loss', expected one of step, train_loss, "):
        history["loss"]


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
        np.testing.assert_allclose(data(trained)[name], values, rtol=1e-9, atol=1e-12)


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


class Small(BitXOR):
    """Bit XOR with a test set of its own."""

    def test_set(self):
        return self.batch(np.random.default_rng(99), 70, "test")


def test_the_last_row_is_tested_on_the_whole_test_set():
    task = Small(n=2)
    model, history = go(task=task)
    x, y = task.test_set()
    logits = np.concatenate([model.predict(x[:64]), model.predict(x[64:])])
    assert history[-1]["test_accuracy"] == pytest.approx(task.accuracy(logits, y), abs=1e-12)
    assert history[-1]["test_loss"] == pytest.approx(task.loss(logits, y)[0], rel=1e-5)
    assert (8 * 2 * history["test_accuracy"][:-1] % 1 == 0).all()         # 8 examples of 2 bits


@pytest.mark.parametrize("freeze", ["fpt", "*.bias"])
def test_frozen_parameters_do_not_change(freeze):
    model = build(BitXOR(n=2), freeze)
    before = data(model)
    go(model=model, lr=1e-2, weight_decay=0.1)
    plain, _ = go(model=build(BitXOR(n=2), freeze), lr=1e-2)
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
    model = build(BitXOR(n=2), dtype=dtype)
    go(tmp_path / "run", model=model, weight_decay=0.1, schedule="cosine", warmup=3)
    arrays = [*(p.data for p in model.parameters()), *checkpoint(tmp_path / "run")[0].values(),
              *(p.grad for p in model.parameters() if p.trainable)]
    assert {a.dtype for a in arrays} == {np.dtype(dtype)}


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


@pytest.mark.parametrize("options, message", [
    *[({name: value}, f"train: {name} must be a whole number, at least 1, got {value}")
      for name in ("steps", "batch_size", "eval_every", "test_examples", "checkpoint_every")
      for value in (0, 2.5)],
    ({"config": 5}, "train: config is 5, expected a dictionary"),
    ({"steps": "many"}, "train: steps must be a whole number, at least 1, got 'many'"),
    *[({"lr": value}, f"train: lr is {value}, expected a positive number")
      for value in (0.0, float("nan"), float("inf"))],
    *[({name: value}, f"train: {name} is {value}") for name, value in (
        ("clip", 0), ("clip", -1), ("clip", np.nan), ("weight_decay", -0.1),
        ("weight_decay", np.nan))],
    ({"seed": -1}, "train: seed must be a whole number, at least 0, got -1"),
    ({"steps": np.nan}, "train: steps must be"), ({"warmup": 1.5}, "train: warmup must be"),
    ({"target_accuracy": 99.5}, "train: target_accuracy is 99.5, expected .* at most 1"),
    ({"warmup": -1}, "train: warmup must be"), ({"schedule": "linear"}, "schedule is 'linear'")])
def test_bad_arguments_write_nothing(tmp_path, options, message):
    with refused(message):
        go(tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task, model, message", [
    (BitXOR(n=2), build(BitXOR(n=2), "*"), "every parameter is frozen"),
    (BitXOR(n=9), build(BitXOR(n=9)), "18 tokens, the trunk has 16 positions"),
    (BitMemory(1, 4, 2), build(BitXOR(n=2)), r"expected \(B, T, 1\)"),
    (BitXOR(n=3), build(BitXOR(n=2)), "logits")])
def test_a_task_that_does_not_fit_writes_nothing(tmp_path, task, model, message):
    with refused(message):
        go(tmp_path / "run", model=model, task=task)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------- stopping, going on


@pytest.mark.parametrize("step, kw", [
    (6, {}), (16, {"schedule": "cosine", "warmup": 4, "weight_decay": 0.1}), (23, {"warmup": 12})],
    ids=["before a checkpoint", "cosine", "warm-up"])
def test_resume_equals_the_undisturbed_run(tmp_path, kw, step):
    undisturbed, history = go(tmp_path / "a", **kw)
    with pytest.raises(Stop):
        go(tmp_path / "b", task=stop_at(BitXOR(n=2), step), **kw)
    assert step == 6 or checkpoint(tmp_path / "b")[1]["step"] == 7 * ((step - 1) // 7)
    resumed, continued = go(tmp_path / "b", resume=True, **kw)
    np.testing.assert_equal(data(resumed), data(undisturbed))
    assert rows(continued) == rows(history)
    assert rows(minifpt.History.load(tmp_path / "b" / "metrics.csv")) == rows(history)
    same_checkpoint(tmp_path / "a", tmp_path / "b")
    assert sorted(contents(tmp_path / "b")) == FILES


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    _, history = go(tmp_path / "a")
    before = contents(tmp_path / "a")
    model, again = go(tmp_path / "a", resume=True)
    after = contents(tmp_path / "a")
    assert again == history and before.pop("curves.png") and after.pop("curves.png")
    assert before == after
    np.testing.assert_array_equal(checkpoint(tmp_path / "a")[0]["output.weight"],
                                  model.output.weight.data)


def test_resume_may_ask_for_more_steps(tmp_path):
    longer = go(tmp_path / "a", steps=31)[0]
    go(tmp_path / "b")
    model, history = go(tmp_path / "b", steps=31, resume=True)
    np.testing.assert_equal(data(model), data(longer))
    assert history[-1]["step"] == 31
    assert json.loads((tmp_path / "b" / "config.json").read_text())["steps"] == 31
    with pytest.raises(ValueError, match="steps = 31, not 24"):
        go(tmp_path / "b", resume=True)


def test_a_solved_run_is_a_finished_one_and_more_steps_give_the_same_bits(tmp_path):
    """Each accuracy is at least 0.01, so three tests are enough."""
    whole, history = go(tmp_path / "a")
    solved, short = go(tmp_path / "b", target_accuracy=0.01)
    assert rows(short) == rows(history)[:3] and short[-1]["step"] == 15
    assert sorted(contents(tmp_path / "b")) == FILES
    again, same = go(tmp_path / "b", target_accuracy=0.01, resume=True)
    assert same == short
    np.testing.assert_equal(data(again), data(solved))
    longer, more = go(tmp_path / "b", resume=True)
    np.testing.assert_equal(data(longer), data(whole))
    assert rows(more) == rows(history)


def test_seconds_are_counted_on_after_a_resume(tmp_path, monkeypatch):
    clock = iter(range(10**6, 10**7))                     # a second each time it is read
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(clock))
    _, before = go(tmp_path, target_accuracy=0.01)
    _, after = go(tmp_path, resume=True)
    assert 0 < before[-1]["seconds"] < after[-1]["seconds"] < 1000


@pytest.mark.parametrize("options, last", [
    ({}, 15), ({"steps": 24}, 24), ({"target_accuracy": 1.0}, 24)])
def test_a_task_s_own_accuracy_ends_a_run_whose_steps_are_not_given(monkeypatch, options, last):
    monkeypatch.setattr(BitXOR, "defaults", BitXOR.defaults | {"steps": 24, "lr": 1e-5})
    monkeypatch.setattr(BitXOR, "target_accuracy", 0.01)
    assert go(**{"steps": None} | options)[1][-1]["step"] == last


def refuse(out, error, message, **kw):
    before = contents(out)
    with refused(message, error):
        go(out, **kw)
    assert contents(out) == before


@pytest.fixture
def stopped(tmp_path):
    """Return the folder of a run whose last checkpoint is that of step 14."""
    with pytest.raises(Stop):
        go(tmp_path / "run", task=stop_at(BitXOR(n=2), 18))
    return tmp_path / "run"


def altered(change):
    """A model of whose trunk something is changed."""
    model = build(BitXOR(n=2))
    change(model.trunk)
    return model


@pytest.mark.parametrize("kw, message", [
    ({"lr": 2e-3}, "lr = 0.003, not 0.002"), ({"seed": 1}, "seed = 0, not 1"),
    ({"steps": 20}, "steps = 24, not 20"), ({"schedule": "cosine"}, "schedule"),
    ({"test_examples": 9}, "test_examples"), ({"config": {"model": "b"}}, "model = None, not b"),
    ({"task": BitXOR(n=3), "model": build(BitXOR(n=3))}, "options"),
    ({"model": build(BitXOR(n=2), freeze="attn")}, "freeze = attn,mlp, not attn"),
    *(({"model": build(BitXOR(n=2), **kw)}, "other frozen weights") for kw in (
        {"seed": 1}, {"dtype": np.float64})),
    *(({"model": altered(change)}, "other layers or settings of the model, such as heads, dropout")
      for change in (lambda trunk: setattr(trunk.h[1].attn, "n_head", 4),
                     lambda trunk: setattr(trunk.h[0].mlp.act, "name", "relu"),
                     lambda trunk: setattr(trunk.h[0].attn, "dropout", 0.5))),
    ({"model": altered(lambda trunk: setattr(trunk.h[0].ln_1.weight, "frozen_columns",
                                             (slice(0, 16),)))}, "other frozen weights")])
def test_resume_with_other_settings_is_refused(stopped, kw, message):
    refuse(stopped, ValueError, message, resume=True, **kw)


class Listed(BitXOR):
    """A task of a user's own, with data in lists of a dictionary."""

    __module__ = "own"

    def __init__(self):
        super().__init__(2)
        self.examples = {"train": [np.arange(100), np.arange(100)]}


def relabel(rng, size, split):
    """Bit XOR with one wrong answer in a hundred."""
    x, y = BitXOR(n=2).batch(rng, size, split)
    return x, np.where(np.random.default_rng(y.sum()).random(y.shape) < 0.01, 1 - y, y)


@pytest.mark.parametrize("part", ["a draw", "an example", "some labels", "nothing"])
def test_changed_data_are_noticed(tmp_path, part):
    go(tmp_path / "run", build(Listed()), Listed())
    task = Listed()
    if part == "a draw":                                  # the name and the options are the same
        task.draw = lambda rng, *args: BitXOR.draw(task, np.random.default_rng(9), *args)
    elif part == "an example":
        task.examples["train"][1][77] += 1
    elif part == "some labels":
        task.batch = relabel
    options = {"model": build(task), "task": task, "steps": 30, "resume": True}
    if part == "nothing":
        go(tmp_path / "run", **options)
    else:
        refuse(tmp_path / "run", ValueError, "was made with other data: restore it", **options)


def test_a_task_may_tell_its_own_fingerprint(tmp_path):
    task = BitXOR(n=2)
    task.fingerprint = lambda: "the first"
    go(tmp_path / "run", task=task)
    task.fingerprint = lambda: "another"
    refuse(tmp_path / "run", ValueError, "other data", task=task,
           resume=True)


def test_a_run_says_that_it_goes_on_with_other_code_than_it_began_with(stopped, capsys):
    path = stopped / "config.json"
    path.write_text(path.read_text().replace(np.__version__, "1.0"))
    go(stopped, resume=True)
    assert capsys.readouterr().err == (
        f"minifpt: {stopped} was begun with another NumPy: its results may differ\n")
    go(stopped, resume=True)                              # it has ended
    assert not capsys.readouterr().err


def test_a_folder_of_an_older_version_is_refused(stopped):
    settings = json.loads((stopped / "config.json").read_text())
    for key in "fingerprint", "format":
        (stopped / "config.json").write_text(json.dumps(settings | {key: None}))
        refuse(stopped, ValueError, "or a run of an older version of minifpt: go on with that",
               resume=True)


def test_a_checkpoint_of_another_run_is_refused(stopped, tmp_path):
    with pytest.raises(Stop):
        go(tmp_path / "other", task=stop_at(BitXOR(n=2), 18), lr=2e-3)
    shutil.copy(tmp_path / "other" / "checkpoint.npz", stopped)
    refuse(stopped, ValueError, "checkpoint.npz: was written by a run with lr = 0.002, not 0.003",
           resume=True)


@pytest.mark.parametrize("name", FILES[:2])
def test_a_folder_that_holds_part_of_a_run_is_refused(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    content = r"a run \(config.json\): resume it, or" if name == "config.json" else f"{name}:"
    refuse(tmp_path / "run", ValueError, f"already holds {content} choose another folder")


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")
def test_one_run_at_a_time_writes_into_a_folder(stopped):
    with locked(stopped):
        refuse(stopped, ValueError, "another run is writing there", resume=True)
        refuse(stopped, ValueError, "another run is writing there")
    go(stopped, resume=True)


class InEpochs(BitXOR):
    """Bit XOR with a fixed set of examples, in a new order in each epoch."""

    def __init__(self, n):
        super().__init__(n)
        self.examples, self.order = super().batch(np.random.default_rng(0), 64, "train"), []

    def batch(self, rng, size, split="train"):
        self.order = [*self.order[size:]] or [*rng.permutation(64)]
        return tuple(np.resize(a[self.order[:size]], (size, *a.shape[1:])) for a in self.examples)


def test_a_task_that_keeps_its_place_is_trained_but_not_resumed(tmp_path):
    """A resumed run would begin its epoch anew."""
    go(tmp_path / "whole", task=InEpochs(n=2))
    go(tmp_path / "run", task=InEpochs(n=2), callback=lambda run: run.step < 9)
    with refused("bit-xor: batch returns other examples for the same generator"):
        go(tmp_path / "run", task=InEpochs(n=2), resume=True)
    go(tmp_path / "whole", task=InEpochs(n=2), resume=True)      # it has come to its end


def test_resume_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        go(tmp_path / "none", resume=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="resume needs out"):
        go(resume=True)


# ----------------------------------------------------------------------- divergence


@pytest.mark.parametrize("name, value", [
    ("input.weight", np.nan), ("trunk.h.1.attn.c_attn.weight", np.inf), ("output.bias", -np.inf)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_value_that_is_not_finite_stops_the_run(tmp_path, name, value):
    task = BitXOR(n=2)
    model = build(task)
    with refused(rf"^step 17: the .* first in {name}; ", minifpt.Diverged) as error:
        go(tmp_path / "run", model=model, task=poison(task, model, 17, name, value))
    assert isinstance(error.value, ValueError)
    assert not any("forward" in vars(layer) for _, layer in named_layers(model))
    with pytest.raises(Stop):                             # the checkpoint is that of step 14
        go(tmp_path / "good", task=stop_at(BitXOR(n=2), 17))
    same_checkpoint(tmp_path / "run", tmp_path / "good")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_first_layer_is_named_where_parameters_are_finite():
    task = BitXOR(n=2)
    for name in ("trunk.h.1.mlp.c_fc", "trunk.h.0.attn.c_attn", "output"):
        model = build(task, dropout=0.0)
        p = dict(model.named_parameters())[f"{name}.weight"]
        p.data[:] = 3e38                                  # finite, its product is not
        x, _ = task.batch(np.random.default_rng(0), 4)
        assert training.first_nonfinite(model, x) == name
        p.data[:] = 1.0
        assert training.first_nonfinite(model, x) == "the backward pass"
        for q in model.parameters():
            q.grad = np.ones_like(q.data) if q is not p else q.data * np.nan
        assert training.first_nonfinite(model, x) == f"the gradient of {name}.weight"
        p.data[:] = 3e38
        with minifpt.trace(model):                        # it opens a second one
            assert training.first_nonfinite(model, x) == name
        p.data[:] = 1.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_gradient_that_is_not_finite_is_named(tmp_path):
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
def test_broken_weights_at_the_start_write_nothing(tmp_path):
    model = build(BitXOR(n=2))
    model.trunk.h[0].mlp.c_fc.weight.data[0, 0] = np.nan
    with pytest.raises(minifpt.Diverged, match="first in trunk.h.0.mlp.c_fc.weight$"):
        go(tmp_path / "run", model=model)
    task = BitXOR(n=2)
    task.batch = lambda rng, size, split: (np.full((size, 4, 1), np.nan, np.float32),
                                           np.zeros((size, 2), int))
    with pytest.raises(minifpt.Diverged, match="first in x, the task's input$"):
        go(tmp_path / "run", task=task)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverged_resumes_from_its_last_good_checkpoint(tmp_path):
    task = BitXOR(n=2)
    model = build(task)
    with pytest.raises(minifpt.Diverged):
        go(tmp_path / "run", model=model, task=poison(task, model, 17, "output.bias", np.nan))
    go(tmp_path / "run", model=model, resume=True)        # the same, broken model
    go(tmp_path / "good")
    same_checkpoint(tmp_path / "run", tmp_path / "good")


# ------------------------------------------------------- real processes, real signals


@pytest.fixture(scope="module")
def weight_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.npz"
    trunk().save(path)
    return path


STEPS = 200


def command(weight_file, out, checkpoint_every, *more):
    return ["train", "bit-xor", "--n", "2", "--model", str(weight_file), "--steps", str(STEPS),
            "--batch-size", "8", "--out", str(out), "--checkpoint-every", str(checkpoint_every),
            *more]


# The program of a process that is killed at a random moment after a file of the run has been
# written: the command line, and a timer.  It counts the process's own time, so that a busy machine
# does not delay it.
HIT = """
import signal, sys
from minifpt import cli
from minifpt.files import runs
first, seconds = sys.argv[1], float(sys.argv[2])
write_beside = runs.write_beside
def writing(path, *args):
    write_beside(path, *args)
    if path.name == first:
        runs.write_beside = write_beside
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
runs.write_beside = writing
sys.exit(cli.main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def undisturbed(weight_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert cli.main(command(weight_file, out, 50)) == 0
    return out


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX's timers")
@pytest.mark.parametrize("first, seed", [
    ("checkpoint.npz", 0), pytest.param("checkpoint.npz", 1, marks=pytest.mark.slow),
    pytest.param("config.json", 2, marks=pytest.mark.slow)])
def test_killed_run_ends_with_the_same_bits(weight_file, undisturbed, tmp_path, first, seed):
    out = tmp_path / "run"
    every = 7 if first == "checkpoint.npz" else 10 * STEPS
    seconds = str(random.Random(seed).uniform(0.001, 0.05))
    killed = subprocess.run([sys.executable, "-c", HIT, first, seconds,
                             *command(weight_file, out, every)], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGVTALRM, killed.stderr
    assert (out / "checkpoint.npz").exists() == (first == "checkpoint.npz")
    assert cli.main(command(weight_file, out, 50, "--resume")) == 0
    same_checkpoint(out, undisturbed)
    histories = [minifpt.History.load(f / "metrics.csv") for f in (out, undisturbed)]
    assert rows(histories[0]) == rows(histories[1])


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
    with refused("train: callback is 3, expected a function of a run"):
        go(callback=3)


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


def test_train_takes_the_name_of_a_task(tmp_path):
    model = minifpt.FPT.for_task("bit-xor", "random:1x2x8")
    minifpt.train(model, "bit-xor", steps=2, out=tmp_path / "run", progress=False)
    assert minifpt.load(tmp_path / "run").run["source"] == "bit-xor"


def test_the_loop_alone_trains_as_train_does():
    task = BitXOR(n=2)
    model = build(task)
    run = training.Run(model, task, training.Settings.for_task(task, steps=24))
    seen = []
    training.fit(run, [lambda run: seen.append(run.step)])
    assert seen == [*range(1, 25)]
    for name, values in data(go()[0]).items():            # with other products of matrices
        np.testing.assert_allclose(data(model)[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_step_and_writes_a_checkpoint(tmp_path, signum):
    """The step is finished, the checkpoint written, the old handler restored."""
    before = signal.getsignal(signum)
    task = at_step(BitXOR(n=2), 10, lambda: signal.raise_signal(signum))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 10") as error:
        go(tmp_path / "b", task=task)
    assert (error.value.step, error.value.folder) == (10, tmp_path / "b")
    assert signal.getsignal(signum) is before
    assert checkpoint(tmp_path / "b")[1]["step"] == 10
    go(tmp_path / "b", resume=True)
    go(tmp_path / "a")
    same_checkpoint(tmp_path / "a", tmp_path / "b")


def test_a_second_interrupt_waits_for_the_checkpoint(tmp_path, monkeypatch):
    savez, ctrl_c = np.savez, functools.partial(signal.raise_signal, signal.SIGINT)
    monkeypatch.setattr(np, "savez", lambda *args, **arrays: (ctrl_c(), savez(*args, **arrays)))
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "b", task=at_step(BitXOR(n=2), 10, ctrl_c), checkpoint_every=99)
    assert checkpoint(tmp_path / "b")[1]["step"] == 10


@pytest.mark.parametrize("step", [10, 24])                # a test on the way, and the last one
def test_a_signal_ends_a_test_and_the_run_goes_on_with_it(tmp_path, step):
    task, batches = Small(n=2), []

    def accuracy(logits, y):
        batches.append(len(y))
        if len(y) == 64 and batches.count(64) == -(-step // 5):
            signal.raise_signal(signal.SIGTERM)
        return Small.accuracy(task, logits, y)
    task.accuracy = accuracy
    with pytest.raises(KeyboardInterrupt, match=f"stopped at step {step}, go on from"):
        go(tmp_path / "b", task=task, test_examples=70)
    _, state = checkpoint(tmp_path / "b")
    assert state["step"] == step and state["history"][-1]["step"] < step
    assert batches.count(6) == batches.count(64) - 1      # its second batch was not run
    go(tmp_path / "b", task=Small(n=2), test_examples=70, resume=True)
    go(tmp_path / "a", task=Small(n=2), test_examples=70)
    same_checkpoint(tmp_path / "a", tmp_path / "b")


def test_the_last_test_may_take_some_examples_and_shows_a_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    bar = training.progress_bar
    monkeypatch.setattr(training, "progress_bar", lambda *a, **kw: bar(*a, **kw | (
        {"delay": 0} if kw.get("desc") == "test" else {})))
    task, sizes = Small(n=2), []
    task.accuracy = lambda logits, y: sizes.append(len(y)) or 0.5
    minifpt.train(build(task), task, steps=1, final_test_examples=30, out=tmp_path / "run")
    assert sizes[-3:] == [4, 30, 4] or 30 in sizes and 64 not in sizes
    assert "test: " in capsys.readouterr().err
    assert cli.main(["train", "bit-xor", "--model", "random:1x2x8", "--steps", 2,
                     "--test-examples", 30, "--out", tmp_path / "cli"]) == 0
    settings = json.loads((tmp_path / "cli/config.json").read_text())
    assert settings["test_examples"] == settings["final_test_examples"] == 30


# ----------------------------------------------------------------------------- threads


class Fails(BitXOR):
    """Bit XOR whose third training batch raises an error."""

    def draw(self, rng, size, split):
        self.drawn = getattr(self, "drawn", 0) + (size == 3)
        if self.drawn == 3:
            raise OSError("the disk is gone")
        return super().draw(rng, size, split)


def test_four_models_in_four_threads_train_as_one_after_the_other():
    """Their histories are the same as one after the other, also while a fifth one fails, and the
    settings of the process are restored."""
    def run(seed):
        config = minifpt.GPT2Config(2, 2, 16, n_positions=70, vocab_size=2, dropout=0.1)
        task = (Fails if seed == 4 else BitXOR)(n=35)     # 70 tokens: more than one tile
        model = minifpt.FPT(minifpt.GPT2(config, seed=seed), 1, 2, 35, seed=seed)
        try:
            history = training.train(model, task, 3, 3, seed=seed, eval_every=1, test_examples=2,
                            progress=False)
            return [{k: v for k, v in row.items() if k != "seconds"} for row in history]
        except OSError as e:
            return str(e)
    threads, put = machine._get_threads, machine._set_threads
    before = threads and threads()
    try:
        if threads:
            put(2)
        want = [run(seed) for seed in range(5)]
        assert want[4] == "the disk is gone" and len(want[0]) == 3
        with ThreadPoolExecutor(5) as pool:
            assert list(pool.map(run, range(5))) == want
        assert (threads and threads()) == (threads and 2)
        assert machine.single_threaded_blas.users == machine.kept_memory.users == 0
    finally:
        if threads:
            put(before)


def test_the_function_trains_as_the_command_does(tmp_path, monkeypatch):
    """``minifpt.train(model, task)`` takes the task's own settings."""
    task = minifpt.tasks.get("bit-memory", strings=2, bits=4, patch=2)
    monkeypatch.setattr(minifpt.tasks.BitMemory, "defaults", task.defaults | {"steps": 3})
    model = minifpt.FPT.for_task(task, "random:1x2x8", seed=1)
    minifpt.train(model, task, seed=1, out=tmp_path / "function", progress=False)
    assert cli.main(["train", "bit-memory", "--strings=2", "--bits=4", "--patch=2", "--seed",
                 "1", "--model", "random:1x2x8", "--out", str(tmp_path / "command")]) == 0
    np.testing.assert_equal(*(checkpoint(tmp_path / name)[0] for name in ("function", "command")))


def test_resume_from_python_keeps_what_the_command_line_wrote(tmp_path):
    task, model = BitXOR(n=2), build(BitXOR(n=2))
    go(tmp_path / "r", model, task, steps=5, config={"model": "random:1x2x16", "source": "bit-xor"})
    for steps in 7, 9:
        config = json.loads((tmp_path / "r/config.json").read_text())
        (tmp_path / "r/config.json").write_text(json.dumps(config | {"note": "mine"}))
        go(tmp_path / "r", build(task), task, steps=steps, resume=True)
    config = json.loads((tmp_path / "r/config.json").read_text())
    assert (config["steps"], config["model"], config["note"]) == (9, "random:1x2x16", "mine")
