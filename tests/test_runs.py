"""Runs: what ``train`` takes, what it asks of a task, and what is read back from a run's folder.

Anything else is refused in one line, and leaves the model and the folder as they were.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli, tasks
from minifpt.experiments import runs as run_folders
from minifpt.files import runs

GOLDEN = Path(__file__).parent / "golden"
TINY = dict(n_layer=1, n_head=2, n_embd=8, n_positions=12, vocab_size=16)
QUICK = dict(steps=2, batch_size=2, eval_every=2, test_examples=2, progress=False)


def fpt():
    return minifpt.FPT(minifpt.GPT2(minifpt.GPT2Config(**TINY, dropout=0.1), seed=0), 1, 2, 2)


def xor():
    return tasks.get("bit-xor", n=2)


def refuses(match, do, *args, kind=ValueError, **kw):
    with refused(match, kind):
        do(*args, **kw)


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize("changed, message", [
    ({"model": None}, "the model is None, expected a minifpt.FPT"),
    ({"model": "minigpt-language"}, "the model is .*, expected a minifpt.FPT"),
    ({"model": "parity", "task": None}, "the model is 'parity', expected a minifpt.FPT, as minif"),
    ({"task": None}, "train: None is not a task: it has no 'name'"),
    ({"task": 3}, "3 is not a task"), ({"task": tasks.BitXOR}, "is a class"),
    ({"stop": 1}, "stop is .*expected an object with is_set"), ({"lr": -1.0}, "lr is "),
    ({"clip": np.inf}, "clip is .*, expected a pos"),
    ({"resume": "False"}, "expected True or False"),
    ({"weight_decay": -1}, "weight_decay is -1, expected a positive"),
    ({"out": ""}, "out is .*, expected a path"), ({"out": 3}, "out is 3, expected a path"),
    ({"out": "run", "config": {"a": object()}}, "cannot be kept in a file")])
def test_a_wrong_argument_is_refused_and_leaves_nothing(changed, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(message, minifpt.train, **{"model": fpt(), "task": xor()} | QUICK | changed)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------- a run's folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    minifpt.train(fpt(), xor(), out=out, **QUICK)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def resume(run, **kw):
    return minifpt.train(fpt(), xor(), out=run, resume=True, **QUICK | kw)


def changes_no_model(match, run):
    """Resuming the run is refused, and the model stays as it was, to the last array."""
    model = fpt()
    before = [p.data.copy() for p in model.parameters()]
    refuses(match, minifpt.train, model, xor(), out=run, resume=True, **QUICK)
    np.testing.assert_equal([p.data for p in model.parameters()], before)


@pytest.mark.parametrize("change", [
    lambda s: s["rng"].pop("state"), lambda s: s["rng"].update(bit_generator="MT19937"),
    lambda s: s.update(step=3, t=3), lambda s: s["since_test"].append(0.0),
    lambda s: s["history"].clear(), lambda s: s["history"][0].update(step=True)])
def test_an_inconsistent_checkpoint_is_refused_and_changes_no_model(run, change):
    with np.load(run / "checkpoint.npz") as file:
        arrays = dict(file)
    state = json.loads(str(arrays["state"]))
    change(state)
    np.savez(run / "checkpoint.npz", **arrays | {"state": np.array(json.dumps(state))})
    changes_no_model("checkpoint.npz: not a checkpoint, or damaged", run)


@pytest.mark.parametrize("change, match", [
    (lambda a: a.pop("output.weight"), "'output.weight' has no array, expected shape"),
    (lambda a: a.pop("v/output.bias"), "'v/output.bias' has no array, expected shape"),
    (lambda a: a.update({"v/output.bias": -a["v/output.bias"] - 1}), "wrongly negative values"),
    (lambda a: a["m/output.bias"].fill(np.nan), "'m/output.bias' contains NaN, infinite"),
    (lambda a: a.update({"output.bias": a["output.bias"].astype(">f4")}), "dtype >f4, expected"),
    (lambda a: a.update({"output.bias": np.zeros(10 ** 8, "u1")}), "has shape \\(100000000,\\)"),
    (lambda a: a.pop("state"), "not a checkpoint, or damaged"),
    (lambda a: a.update({"state": np.zeros(3)}), "its state is not a text"),
    (lambda a: a.update({"state": np.array("{}")}), "not a checkpoint, or damaged"),
    (lambda a: a.update({"state": np.array("[]")}), "its state is not a JSON object")])
def test_wrong_arrays_in_a_checkpoint_are_refused_and_change_no_model(run, change, match):
    with np.load(run / "checkpoint.npz") as file:
        arrays = {name: a.copy() for name, a in file.items()}
    change(arrays)
    np.savez(run / "checkpoint.npz", **arrays)
    changes_no_model(f"checkpoint.npz: .*{match}", run)


@pytest.mark.parametrize("text", [
    "[" * 9999, f'{{"steps": {"9" * 5000}}}', json.dumps({"task": "bit\nxor" * 500}),
    '{"steps": -1}', "", "{", "[]", "{}"])
def test_damaged_settings_are_refused_and_stay(run, text):
    (run / "config.json").write_text(text)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    refuses("config.json: ", resume, run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize("text", [
    "", "step\n1\n", "{head}1,2,3\n", "{head}x,,,,,\n", "{head}1,[],,,,\n",
    "{head}1,1,1,1,1,1,1\n", f"{{head}}{'9' * 400},,,,,\n"])
def test_damaged_metrics_are_refused(tmp_path, text):
    path = tmp_path / "metrics.csv"
    path.write_text(text.format(head=",".join(runs.COLUMNS) + "\n"))
    refuses("metrics.csv: not the history of a run, or damaged", minifpt.History.load, path)


MODEL = {"input_dim": 1, "output_dim": 2, "output_tokens": 2, "seed": 0, "trunk": "random:1x2x8"}


@pytest.mark.parametrize("change, match", [
    ({"source": 3}, "run: its task cannot be made again: .*'3'"),
    ({"source": "x" * 99 + ".py:a"}, "run: its task cannot be made again: .*; its paths are"),
    ({"options": {"x" * 999: 3}}, "run: its task cannot be made again"),
    ({"task": "x" * 999}, "run: its task was 'xxx.*, bit-xor now makes 'bit-xor'"),
    ({"recipe": MODEL | {"trunk": "random:0x0x0"}}, "run: its model cannot be made again: "),
    ({"task": ["x" * 500]}, r"config.json: has \['xxx.{1,60} for 'task': it is damaged")])
def test_settings_of_another_type_are_refused(run, change, match):
    settings = json.loads((run / "config.json").read_text()) | {
        "source": "bit-xor", "recipe": MODEL}
    (run / "config.json").write_text(json.dumps(settings | change))
    refuses(match, run_folders.read_run, run, kind=(ValueError, FileNotFoundError))


def test_a_run_s_files_stay_when_memory_ends(run, monkeypatch):

    def step(*args):
        raise MemoryError
    monkeypatch.setattr(minifpt.training, "step", step)
    names = sorted(p.name for p in run.iterdir())
    with pytest.raises(MemoryError):
        resume(run, steps=3)
    assert sorted(p.name for p in run.iterdir()) == names


def test_a_run_of_an_earlier_state_is_loaded_and_goes_on(tmp_path, capsys):
    """A new setting has a default for runs that lack it."""
    run = shutil.copytree(GOLDEN / "run", tmp_path / "run")
    with np.load(run / "expected.npz") as expected:
        np.testing.assert_allclose(minifpt.load(run).predict(expected["x"]), expected["logits"],
                                   rtol=1e-4, atol=1e-6)
    line = "train bit-xor --n 3 --model random:1x1x4 --resume --steps 6 --batch-size 2"
    assert cli.main([*line.split(), "--eval-every", "2", "--test-examples", "8", "--out", run]) == 0
    before, after = (minifpt.History.load(path / "metrics.csv") for path in (GOLDEN / "run", run))
    assert [*after[:len(before)]] == [*before] and after[-1]["step"] == 6


# ------------------------------------------------------------------- a task of the user's own


class Own:
    """No more than what is asked of a task."""

    name, input_dim, tokens, output_dim, output_tokens = "own", 1, 4, 2, 2

    def batch(self, rng, size, split):
        return xor().batch(rng, size, split)

    def loss(self, logits, y):
        return xor().loss(logits, y)

    def accuracy(self, logits, y):
        return np.float32(xor().accuracy(logits, y))


@pytest.mark.parametrize("changed, part", [
    ({"tokens": 5}, r"batch returned x of shape \(1, 4, 1\), expected \(B, 5, ...\)"),
    ({"batch": lambda *a: None}, "batch must return x and y"),
    ({"batch": lambda *a: [[1], [2]]}, "batch must return x and y"),
    ({"batch": lambda t, rng, size, split: (np.random.random((size, 4, 1)), np.zeros((  # noqa: NPY002
        size, 2), int))}, "batch draws from np.random"),
    ({"loss": lambda *a: 0.5}, "loss must return"),
    ({"loss": lambda t, z, y: (0.5, z.astype(float))}, "loss must .* dtype float32"),
    ({"loss": lambda t, z, y: (np.zeros(1), z)}, "loss must return a number"),
    ({"batch": lambda t, rng, size, split: xor().batch(rng, size + 1, split)},
     "batch was asked for 1 examples of 'train' and returned 2"),
    ({"batch": lambda t, rng, size, split: (xor().batch(rng, size, split)[0],
                                            xor().batch(rng, size + 1, split)[1])},
     r"batch returned x of shape \(1, .*expected as many examples"),
    ({"batch": lambda *a: (np.array(1.0), np.array(1))}, "batch must return x and y"),
    ({"accuracy": lambda *a: None}, "accuracy must return a number"),
    ({"accuracy": lambda *a: 1.5}, "accuracy must return a number from 0 to 1, got 1.5"),
    ({"accuracy": lambda *a: np.nan}, "accuracy must return a number from 0 to 1, got nan"),
    ({"test_set": lambda t: (np.zeros((2, 4, 1)), np.zeros((3, 2)))}, "test_set returned x of"),
    ({"test_set": lambda t: xor()}, "test_set must return x and y")])
def test_train_refuses_wrong_results_of_a_task(tmp_path, changed, part):
    refuses(f"train: own: {part}", minifpt.train, fpt(), type("Own", (Own,), changed)(),
            out=tmp_path / "run", **QUICK)
    assert not list(tmp_path.iterdir()) or "test_set" in changed      # what was trained stays


def test_a_task_needs_no_options_and_no_classes(tmp_path):
    minifpt.train(fpt(), Own(), out=tmp_path / "run", **QUICK)


def test_numpys_numbers_and_paths_are_taken(tmp_path):
    n = np.int64
    config = minifpt.GPT2Config(**{k: n(v) for k, v in TINY.items()}, dropout=np.float32(0.1))
    minifpt.GPT2(config, seed=n(1)).save(tmp_path / "w.npz")
    assert minifpt.GPT2.from_pretrained(tmp_path / "w.npz").config == config
    model = minifpt.FPT(fpt().trunk, n(1), np.int32(2), n(2), seed=n(1))
    task = tasks.get("bit-xor", n=n(2))
    options = dict(steps=n(2), batch_size=np.int8(2), lr=np.float32(1e-3), seed=n(1),
                   clip=np.float32(1), weight_decay=np.float64(0.1), warmup=n(1), eval_every=n(2),
                   test_examples=n(2), checkpoint_every=n(2), progress=False,
                   config={"a": np.float32(1), "b": Path("x"), "c": n(3)})
    minifpt.train(model, task, out=tmp_path / "run", **options)
    minifpt.train(model, task, out=str(tmp_path / "text"), **options)
    assert json.loads((tmp_path / "run/config.json").read_text())["c"] == 3
    lm = minifpt.LanguageModel(minifpt.GPT2Config(**TINY))
    lm.generate([1], n(3), temperature=np.float32(0.5), top_k=n(2), seed=n(1))
    lm.perplexity(np.arange(5), stride=n(2))


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
def test_a_run_of_changed_code_says_so(tmp_path, monkeypatch, capsys, old, new, status, message):
    assert old in OWN
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    assert cli.main("train own.py:Walk --model own.py:trunk --steps 2 --out own".split()) == 0
    Path("own.py").write_text(OWN.replace(old, new))
    for command in "report", "attention":
        assert cli.main([command, "own"]) == status
        assert message in capsys.readouterr().err


def test_a_run_needs_no_fcntl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with runs.locked(tmp_path / "run"), runs.locked(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_leaves_none_of_its_parents(tmp_path):
    with pytest.raises(OSError), runs.locked(tmp_path / "a" / "b" / ("x" * 300)):
        pass
    assert not [*tmp_path.iterdir()]
