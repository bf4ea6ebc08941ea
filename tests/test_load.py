"""Models that a run gives back, trunks that are objects, and what a file of one's own is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli
from minifpt.plugins import load_object

TRUNK = '''
import numpy as np
from types import SimpleNamespace
from minifpt.layers import Layer, Parameter

class Scale(Layer):
    """Each channel times a weight."""

    def __init__(self, seed=0, dtype=np.float32):
        self.config, self.dtype = SimpleNamespace(n_embd=8), np.dtype(dtype)
        self.w = Parameter(1 + np.random.default_rng(seed).random(8).astype(dtype), "attn")

    def forward(self, x, train=False, rng=None):
        return x * self.w.data, x

    def backward(self, dy, x):
        self.w.add_grad((dy * x).sum(axis=(0, 1)))
        return dy * self.w.data
'''


@pytest.fixture
def scale(cwd):
    """The class of a user's own trunk, in ``scale.py`` in the working folder."""
    (cwd / "scale.py").write_text(TRUNK)
    return load_object("scale.py:Scale")


def predicts_the_same(model, folder, *trunk):
    loaded = minifpt.load(folder, *trunk)
    x, _ = XOR.batch(np.random.default_rng(0), 5)
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    assert [p.trainable for p in loaded.parameters()] == [p.trainable for p in model.parameters()]
    return loaded


XOR = minifpt.tasks.get("bit-xor", n=3)
QUICK = {"steps": 3, "progress": False, "eval_every": 3, "test_examples": 4}


@pytest.mark.parametrize("model, options", [
    ("minigpt-tiny", {}), ("random:1x2x8", {"seed": 5, "dropout": 0.2}),
    ("minigpt-tiny", {"adapt": "lora:rank=2", "freeze": "attn,mlp,h.0.*"}),
    ("scale.py:Scale", {"freeze": "full"})])
def test_load_gives_the_model_of_a_run_in_code_back(scale, model, options):
    fpt = minifpt.FPT.for_task(XOR, model, **options)
    minifpt.train(fpt, XOR, out="run", seed=1, **QUICK)
    loaded = predicts_the_same(fpt, "run")
    assert loaded.run["task"] == "bit-xor" and loaded.run["options"] == {"n": 3}
    minifpt.train(loaded, XOR, out="next", **QUICK)       # and it can be trained on
    predicts_the_same(loaded, "next")


def test_a_stopped_run_says_what_it_was_to_do_and_what_it_has_done(tmp_path):
    model = minifpt.FPT.for_task(XOR, "random:1x2x8")
    minifpt.train(model, XOR, out=tmp_path / "run", callback=lambda run: run.step < 2, **QUICK)
    loaded = predicts_the_same(model, tmp_path / "run")
    assert (loaded.run["steps"], loaded.run["step"]) == (3, 2)


def freeze_heads(model):
    for p in model.trunk.h[0].attn.c_attn.parameters():
        p.trainable, p.frozen_columns = True, (slice(0, 8), slice(10, None, 2))


@pytest.mark.parametrize("freeze", [
    lambda model: setattr(model.trunk.h[0].ln_1.weight, "trainable", False),
    lambda model: model.trunk.freeze("only:ln"), freeze_heads])
def test_a_run_that_was_frozen_by_hand_is_resumed_and_loaded(tmp_path, freeze):
    """Its mask's text says something else."""
    def frozen():
        model = minifpt.FPT.for_task(XOR, "random:1x2x8", seed=2)
        freeze(model)
        return model
    run, model = tmp_path / "run", frozen()
    minifpt.train(model, XOR, out=run, **QUICK)
    loaded = predicts_the_same(model, run)
    assert loaded.summary() == model.summary()
    model = frozen()
    minifpt.train(model, XOR, out=run, resume=True, **QUICK | {"steps": 5})
    predicts_the_same(model, run)
    with refused("run: its trained parameters cannot be read .*the model has no parameter 'x'"):
        config = json.loads((run / "config.json").read_text())
        config["trained"]["x"] = []
        (run / "config.json").write_text(json.dumps(config))
        minifpt.load(run)


def test_load_takes_a_trunk_of_ones_own(scale):
    fpt = minifpt.FPT.for_task(XOR, scale(seed=3))
    minifpt.train(fpt, XOR, out="run", **QUICK)
    predicts_the_same(fpt, "run", lambda: scale(seed=3))
    predicts_the_same(fpt, "run", scale(seed=3))
    with refused("run: its trunk was built in code: pass it"):
        minifpt.load("run")
    for trunk, message in (
            (scale, "other frozen weights: pass the trunk as it was before training"),
            (lambda: None, "'NoneType'> is not a trunk")):
        with refused(message):
            minifpt.load("run", trunk)


@pytest.mark.parametrize("command, folder", [
    ("train bit-xor --n 3 --model scale.py:Scale --out run", "run"),
    ("compare bit-xor --n 3 --models minigpt-tiny --seeds 1 --out run",
     "run/bit-xor/minigpt-tiny/0")])
def test_load_reads_the_runs_of_the_commands(scale, command, folder):
    assert cli.main([*command.split(), "--steps", "2"]) == 0
    assert minifpt.load(folder).run["task"] == "bit-xor"


def test_a_wrong_gradient_of_a_loss_is_named_at_the_start(cwd, capsys):
    text = """
import minifpt
class Mine(minifpt.tasks.BitXOR):
    name = "mine"
    def loss(self, logits, y):
        loss, dlogits = super().loss(logits, y)
        return loss, FACTOR * dlogits
"""
    for factor, count in (0.5, 1), (1.0, 0):
        Path("mine.py").write_text(text.replace("FACTOR", str(factor)))
        assert cli.main(["train", "mine.py:Mine", "--model", "minigpt-tiny", "--steps", "1"]) == 0
        err = capsys.readouterr().err
        assert err.count("mine.py:Mine: the gradient of its loss is wrong") == count
        assert err.count("0.5 times what they should be") == count
    [run, _] = Path("runs").iterdir()
    settings = minifpt.load(run).run
    assert minifpt.tasks.get(settings["source"], **settings["options"]).name == "mine"


@pytest.mark.parametrize("words, message", [
    ("train mine.py", "mine.py:CLASS"), ("train bit-xor --model mine.py", "mine.py:CLASS"),
    ("train mine:Mine", "or FILE.py:CLASS"),
    ("train bit-xor --model mine.py:Mine,size=3", "expected FILE.py:NAME alone")])
def test_a_file_without_a_class_is_refused(fails, words, message):
    assert message in fails(*words.split())


def test_what_is_no_path_is_not_loaded():
    with refused("load: the folder is 3.5, expected a path"):
        minifpt.load(3.5)
