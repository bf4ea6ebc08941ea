"""A run that goes on: to the same bits, and only where it is the same run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from short_runs import (
    FILES,
    Stop,
    build,
    checkpoint,
    contents,
    data,
    go,
    refuse,
    rows,
    same_checkpoint,
    stop_at,
)

import minifpt
from minifpt import cli, training
from minifpt.tasks import BitXOR

GOLDEN = Path(__file__).parent / "golden" / "run"
RESUME = ("train bit-xor --n 3 --model random:1x1x4 --resume --steps 6 --batch-size 2 "
          "--eval-every 2 --test-examples 8").split()


@pytest.mark.parametrize("step, kw", [
    (6, {}), (16, {"schedule": "cosine", "warmup": 4, "weight_decay": 0.1}), (23, {"warmup": 12})],
    ids=["before a checkpoint", "cosine", "warm-up"])
def test_resume_equals_the_undisturbed_run(tmp_path, kw, step):
    undisturbed, history = go(tmp_path / "a", **kw)
    with pytest.raises(Stop):
        go(tmp_path / "b", task=stop_at(step), **kw)
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
    time_drawn = (tmp_path / "a" / "curves.png").stat().st_mtime_ns
    model, again = go(tmp_path / "a", resume=True)
    assert again == history and contents(tmp_path / "a") == before
    assert (tmp_path / "a" / "curves.png").stat().st_mtime_ns == time_drawn        # not drawn again
    np.testing.assert_array_equal(checkpoint(tmp_path / "a")[0]["output.weight"],
                                  model.output.weight.data)


def test_a_parameter_that_no_gradient_reaches_is_resumed(tmp_path):
    models = [build(), build()]
    for model, steps in zip(models, ((24,), (10, 24)), strict=True):
        model.spare = minifpt.layers.Linear(2, 2)
        for n in steps:
            go(tmp_path / f"{steps}", model, steps=n, resume=n != steps[0])
    np.testing.assert_equal(*map(data, models))
    assert "spare.weight" in checkpoint(tmp_path / "(10, 24)")[0]


def test_resume_may_ask_for_more_steps(tmp_path):
    longer = go(tmp_path / "a", steps=31)[0]
    go(tmp_path / "b", config={"model": "tiny"})
    config = json.loads((tmp_path / "b/config.json").read_text())
    (tmp_path / "b/config.json").write_text(json.dumps(config | {"note": "mine"}))
    model, history = go(tmp_path / "b", steps=31, resume=True)
    np.testing.assert_equal(data(model), data(longer))
    assert history[-1]["step"] == 31
    config = json.loads((tmp_path / "b/config.json").read_text())
    assert (config["steps"], config["model"], config["note"]) == (31, "tiny", "mine")
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


def test_a_run_of_an_earlier_state_is_loaded_and_goes_on(tmp_path, capsys):
    """A new setting has a default for runs that lack it."""
    run = shutil.copytree(GOLDEN, tmp_path / "run")
    with np.load(run / "expected.npz") as expected:
        np.testing.assert_allclose(minifpt.load(run).predict(expected["x"]), expected["logits"],
                                   rtol=1e-4, atol=1e-6)
    assert cli.main([*RESUME, "--out", run]) == 0, capsys.readouterr().err
    before, after = (minifpt.History.load(path / "metrics.csv") for path in (GOLDEN, run))
    assert [*after[:len(before)]] == [*before] and after[-1]["step"] == 6


def test_a_run_without_a_newer_setting_goes_on_with_its_default_alone(tmp_path, capsys):
    run = shutil.copytree(GOLDEN, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    with np.load(run / "checkpoint.npz") as file:
        arrays = dict(file)
    state = json.loads(str(arrays["state"]))
    del config["clip"], state["config"]["clip"]           # as if it were newer than the run
    (run / "config.json").write_text(json.dumps(config))
    np.savez(run / "checkpoint.npz", **arrays | {"state": np.array(json.dumps(state))})
    assert cli.main([*RESUME, "--out", run, "--clip", "0.5"]) == 2
    assert "the run has clip = 1.0, not 0.5" in capsys.readouterr().err
    assert cli.main([*RESUME, "--out", run]) == 0, capsys.readouterr().err


# --------------------------------------------------------------------- another run


@pytest.fixture
def stopped(tmp_path):
    """Return the folder of a run whose last checkpoint is that of step 14."""
    with pytest.raises(Stop):
        go(tmp_path / "run", task=stop_at(18))
    return tmp_path / "run"


def altered(change):
    """A model of whose trunk something is changed."""
    model = build()
    change(model.trunk)
    return model


@pytest.mark.parametrize("kw, message", [
    ({"lr": 2e-3}, "lr = 0.003, not 0.002"), ({"seed": 1}, "seed = 0, not 1"),
    ({"steps": 20}, "steps = 24, not 20"), ({"schedule": "cosine"}, "schedule"),
    ({"test_examples": 9}, "test_examples"), ({"config": {"model": "b"}}, "model = None, not b"),
    ({"task": BitXOR(n=3), "model": build(BitXOR(n=3))}, "options"),
    ({"model": build(freeze="attn")}, "freeze = attn,mlp, not attn"),
    *(({"model": build(**kw)}, "other frozen weights") for kw in (
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


@pytest.mark.parametrize("change", [
    None,
    lambda task: setattr(task, "draw", lambda rng, *args: BitXOR.draw(
        task, np.random.default_rng(9), *args)),
    lambda task: task.examples["train"][1].__setitem__(77, 0),
    lambda task: setattr(task, "batch", relabel),
    lambda task: setattr(task, "fingerprint", lambda: "the task's own")],
    ids=["nothing", "draw", "an example", "some labels", "the task's own fingerprint"])
def test_changed_data_are_noticed(tmp_path, change):
    """The name and the options are the same."""
    go(tmp_path / "run", build(Listed()), Listed())
    task = Listed()
    options = {"model": build(task), "task": task, "steps": 30, "resume": True}
    if change is None:
        go(tmp_path / "run", **options)
    else:
        change(task)
        refuse(tmp_path / "run", ValueError, "was made with other data: restore it", **options)


def test_a_run_says_that_it_goes_on_with_other_code_than_it_began_with(stopped, capsys):
    path = stopped / "config.json"
    path.write_text(path.read_text().replace(np.__version__, "1.0"))
    go(stopped, resume=True)
    assert capsys.readouterr().err == (
        f"minifpt: {stopped} was begun with another NumPy: its results may differ\n")
    go(stopped, resume=True)                              # it has ended
    assert not capsys.readouterr().err


OWN = """
import minifpt

class Walk(minifpt.tasks.BitXOR):
    '''Which bits differ.'''
    name = "walk"
    def __init__(self, n=3):
        super().__init__(n=n)
        self.options = {"n": n}
    def batch(self, rng, size, split):
        x, y = super().batch(rng, size, split)
        return x, y

def trunk(seed):
    config = minifpt.GPT2Config(1, 2, 16, 6, 256, dropout=0.0, activation_function="gelu_new")
    return minifpt.GPT2(config, seed)
"""


@pytest.mark.parametrize("old, new, status, message", [
    ("return x, y", "return x, 1 - y", 2, "the run was made with other data"),
    ('"gelu_new"', '"relu"', 2, "the run was made with other layers or settings"),
    ("Which bits", "The bits that", 0, "own was begun with another text of own.py"),
    ("return x, y", "return x y", 2, "SyntaxError")])
def test_a_run_of_changed_code_says_so(cwd, capsys, old, new, status, message):
    assert old in OWN
    Path("own.py").write_text(OWN)
    assert cli.main("train own.py:Walk --model own.py:trunk --steps 2 --out own".split()) == 0
    Path("own.py").write_text(OWN.replace(old, new))
    for command in "report", "attention":
        assert cli.main([command, "own"]) == status
        assert message in capsys.readouterr().err


def test_files_of_another_run_or_version_are_refused(stopped, tmp_path):
    settings = json.loads((stopped / "config.json").read_text())
    for key in "fingerprint", "format":
        (stopped / "config.json").write_text(json.dumps(settings | {key: None}))
        refuse(stopped, ValueError, "or a run of an older version of minifpt: go on with that",
               resume=True)
    (stopped / "config.json").write_text(json.dumps(settings))
    with pytest.raises(Stop):
        go(tmp_path / "other", task=stop_at(18), lr=2e-3)
    shutil.copy(tmp_path / "other" / "checkpoint.npz", stopped)
    refuse(stopped, ValueError, "checkpoint.npz: was written by a run with lr = 0.002, not 0.003",
           resume=True)


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
