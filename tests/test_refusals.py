"""What is wrong is refused where it comes in: in one line, with nothing left behind."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import adapters, layers, optim, tasks
from minifpt import functional as F
from minifpt.experiments import runs as run_folders
from minifpt.files import runs
from minifpt.freeze import FreezeMask
from minifpt.trunks.parts import RMSNorm

TINY = dict(n_layer=1, n_head=2, n_embd=8, n_positions=12, vocab_size=16)
QUICK = dict(steps=2, batch_size=2, eval_every=2, test_examples=2, progress=False)
BIG = "9" * 400


def trunk(**changed):
    return minifpt.GPT2(minifpt.GPT2Config(**TINY | {"dropout": 0.1} | changed), seed=0)


def fpt():
    return minifpt.FPT(trunk(), 1, 2, 2)


def xor():
    return tasks.get("bit-xor", n=2)


def refuses(match, do, *args, kind=ValueError, **kw):
    with refused(match, kind):
        do(*args, **kw)


def test_a_run_s_files_stay_when_memory_ends(run, monkeypatch):

    def step(*args):
        raise MemoryError
    monkeypatch.setattr(minifpt.training, "step", step)
    names = sorted(p.name for p in run.iterdir())
    with pytest.raises(MemoryError):
        resume(run, steps=3)
    assert sorted(p.name for p in run.iterdir()) == names


# ----------------------------------------------------------------------------------- files

WRONG = [None, [], {}, "x", True, -1, 1.5, 10 ** 30, 10 ** 400, float("inf"), float("nan"), [1, 2],
         "3"]


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
    lambda s: s.update(step=3, t=3), lambda s: s.update(t=1), lambda s: s["since_test"].append(0.0),
    lambda s: s["history"].clear(), lambda s: s["history"][0].pop("test_loss"),
    lambda s: s["history"][0].update(step=True), lambda s: s.update(since_test=[float("inf")] * 3)])
def test_an_inconsistent_checkpoint_is_refused_and_changes_no_model(run, change):
    with np.load(run / "checkpoint.npz") as file:
        arrays = dict(file)
    state = json.loads(str(arrays["state"]))
    change(state)
    np.savez(run / "checkpoint.npz", **arrays | {"state": np.array(json.dumps(state))})
    changes_no_model("checkpoint.npz: not a checkpoint, or damaged", run)


@pytest.mark.parametrize("change, match", [
    (lambda a: a.pop("output.weight"), "'output.weight' has no array, expected shape"),
    (lambda a: a.pop("m/output.bias"), "'m/output.bias' has no array, expected shape"),
    (lambda a: a.pop("v/output.bias"), "'v/output.bias' has no array, expected shape"),
    (lambda a: a.update({"v/output.bias": -a["v/output.bias"] - 1}), "wrongly negative values"),
    (lambda a: a["m/output.bias"].fill(np.nan), "'m/output.bias' contains NaN, infinite"),
    (lambda a: a["output.bias"].fill(np.inf), "'output.bias' contains NaN, infinite"),
    (lambda a: a.update({"output.bias": a["output.bias"].astype(">f4")}), "dtype >f4, expected"),
    (lambda a: a.update({"v/input.bias": a["v/input.bias"].astype(float)}), "dtype float64"),
    (lambda a: a.update({"output.bias": np.zeros(10 ** 8, "u1")}), "has shape \\(100000000,\\)"),
    (lambda a: a.update({"m/output.bias": np.zeros(3, np.float32)}), "'m/output.bias' has shape"),
    (lambda a: a.pop("state"), "not a checkpoint, or damaged"),
    (lambda a: a.update({"state": np.zeros(3)}), "its state is not a text"),
    (lambda a: a.update({"state": np.array("{")}), "not a checkpoint, or damaged"),
    (lambda a: a.update({"state": np.array("{}")}), "not a checkpoint, or damaged"),
    (lambda a: a.update({"state": np.array("[]")}), "its state is not a JSON object")])
def test_wrong_arrays_in_a_checkpoint_are_refused_and_change_no_model(run, change, match):
    with np.load(run / "checkpoint.npz") as file:
        arrays = {name: a.copy() for name, a in file.items()}
    change(arrays)
    np.savez(run / "checkpoint.npz", **arrays)
    changes_no_model(f"checkpoint.npz: .*{match}", run)


@pytest.mark.parametrize("text", [
    "Infinity", "[" * 9999, '{"a":' * 9999, f'{{"steps": {"9" * 5000}}}', '{"steps": [[[1]]]}',
    json.dumps({"task": "bit\nxor" * 500}), '{"steps": -1}', "", "{", "[]", "{}", "3",
    '{"steps": null}'])
def test_damaged_settings_are_refused_and_stay(run, text):
    (run / "config.json").write_text(text)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    refuses("config.json: ", resume, run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize("text", [
    "", "step\n1\n", "{head}1,2,3\n", "{head}x,,,,,\n", "{head},1,1,1,1,1\n", "{head}1,[],,,,\n",
    "{head}1,1,1,1,1,1,1\n", "{head}-1,,,,,\n", f"{{head}}{BIG},,,,,\n",
    "{head}1," + "1" * 200_000 + ",,,,\n", "{head}1,\0,,,,\n"])
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




# ------------------------------------------------------------------------------------- API


X = np.zeros((2, 4, 1), np.float32)
IDS = np.zeros((1, 3), int)


def language_model():
    return minifpt.LanguageModel(minifpt.GPT2Config(**TINY))


def train(model=None, task=None, **changed):
    return minifpt.train(model or fpt(), task or xor(), **QUICK | changed)


def back(model, x, wrong=lambda y: y, is_frozen=False, **options):
    """Call backward of a model with a gradient that ``wrong`` makes of its output."""
    for p in model.parameters() if is_frozen else ():
        p.trainable = False
    y, cache = model.forward(x, **options)
    model.backward(wrong(y), cache)


def each(call, values, message):
    """Return rows of (call, message), one for each value."""
    return [(lambda value=value: call(value), message) for value in values]


SIZES = ["3", 1.5, None, 0, True, 10 ** 10]
WRONG_SEEDS, SEED = [-1, 1.5, "3", (), {"a": 1}], "seed must be a whole number, at least 0"
EXPECTED_SIZE = "must be a whole number, at least 1"
FROZEN, WRONG_SHAPE = "the cache is None: in the forward pass", "the gradient is .*, expected"
BAD = [                                                   # (call, message)
    *each(lambda x: fpt().forward(x), [X.tolist(), None, X[:0], X + 0j, X.astype(str)], "FPT: x "),
    *each(lambda x: fpt().predict(x), [X.tolist(), X[:0]], "FPT: x "),
    *each(lambda x: trunk().forward(x), [None, np.zeros((0, 4, 8)), np.zeros((2, 4, 8), complex)],
          "GPT2: x "),
    *each(lambda ids: language_model().forward(ids), [[[1, 2]], None, IDS[:0], IDS + 0.0, IDS[0]],
          "LanguageModel: ids"),
    *each(lambda rng: fpt().forward(X, train=True, rng=rng), [0, "x", np.random.default_rng],
          "rng is .*: pass rng=np.random.default_rng"),
    *each(lambda rng: xor().batch(rng, 2), [0, "x"], "rng is .*, expected np.random.default_rng"),
    (lambda: back(fpt(), X, is_frozen=True), FROZEN),
    (lambda: back(trunk(), np.repeat(X, 8, 2), is_frozen=True, need_dx=False), FROZEN),
    (lambda: back(language_model(), IDS, is_frozen=True), FROZEN),
    (lambda: back(minifpt.LSTM(minifpt.LSTMConfig(1, 8)), np.repeat(X, 8, 2), is_frozen=True,
                  need_dx=False), FROZEN),
    *[(lambda model=model, x=x, wrong=wrong: back(model(), x, wrong), WRONG_SHAPE)
      for model, x in ((fpt, X), (trunk, np.repeat(X, 8, 2)), (language_model, IDS))
      for wrong in (lambda y: y.tolist(), lambda y: None, lambda y: y[..., :1], lambda y: y.sum())],
    *each(lambda n: minifpt.FPT(trunk(), n, 2), SIZES, f"FPT: input_dim {EXPECTED_SIZE}"),
    *each(lambda n: minifpt.FPT(trunk(), 1, n), SIZES, f"FPT: output_dim {EXPECTED_SIZE}"),
    *each(lambda n: minifpt.FPT(trunk(), 1, 2, n), SIZES, f"FPT: output_tokens {EXPECTED_SIZE}"),
    *each(minifpt.GPT2, [TINY, "gpt2"], "expected an instance of GPT2Config; mini"),
    *each(minifpt.LanguageModel, [TINY, {}], "expected an instance of GPT2Config; mini"),
    *each(minifpt.GPT2.from_pretrained, [None, 3, minifpt.GPT2], "expected a name or a path"),
    *each(lambda mask: fpt().freeze(mask), [None, {"attn": True}, FreezeMask, FreezeMask.fpt],
          "expected a FreezeMask, or its text"),
    *each(FreezeMask.parse, [None, 3, FreezeMask, ["attn"]], "expected a FreezeMask, or its text"),
    (lambda: FreezeMask(atn=True), "'atn' is not a group, expected one of input, pos"),
    (lambda: FreezeMask("fpt"), "input is 'fpt', expected True or False"),
    (lambda: FreezeMask(patterns="h.0.*"), "patterns is 'h.0.*', expected a tuple"),
    (lambda: layers.Linear(2, 2, group="extra").freeze(FreezeMask.fpt()), "its group is 'extra'"),
    *each(lambda model: minifpt.train(model, xor(), **QUICK), [None, "minigpt-language", xor()],
          "train: the model is .*, expected a minifpt.FPT"),
    *each(lambda task: minifpt.train(fpt(), task, **QUICK), [None, fpt()],
          "train: .* is not a task"),
    (lambda: train(task=tasks.BitXOR), "train: .*is a class, expected an object"),
    *each(lambda stop: train(stop=stop), ["x", 1], "stop is .*expected an object with is_set"),
    *each(lambda lr: train(lr=lr), ["x", (), [1e-3], 1j, -1.0, np.nan, 10 ** 400], "train: lr is "),
    *each(lambda clip: train(clip=clip), ["x", -1.0, np.inf], "train: clip is .*, expected a pos"),
    (lambda: train(weight_decay=-1), "train: weight_decay is -1, expected a positive"),
    *each(lambda out: train(out=out), ["", 3, True], "train: out is .*, expected a path"),
    (lambda: train(out="run", config={"a": object()}), "cannot be kept in a file"),
    *each(tasks.Text, [3, [None], {"a.txt": 1}], "text: files is .*expected paths of text files"),
    (lambda: tasks.get(["bit-xor"]), "no task"),
    *[row for do in ("loss", "accuracy") for row in (
        (lambda do=do: getattr(xor(), do)(X.tolist(), IDS), "logits is a list"),
        (lambda do=do: getattr(xor(), do)(np.zeros((2, 2, 2)), [[0, 0]]), "y is a list, expected"),
        (lambda do=do: getattr(xor(), do)(np.array(1.0), IDS), r"logits have shape \(\), expected"),
        (lambda do=do: getattr(xor(), do)(np.zeros((2, 2, 2)), np.array(1)), r"y has shape \(\)"),
        (lambda do=do: getattr(xor(), do)(np.zeros((2, 2, 2)), np.zeros((2, 2))),
         "y is an array of float64"))],
    (lambda: tasks.get("mnist", data="").batch(np.random.default_rng(0), 2), "data is empty"),
    (lambda: trunk().save(3), "save: the path is 3, expected a folder or an .npz file"),
    (lambda: trunk().save("w.safetensors"), "w.safetensors: expected the name of a folder"),
    (lambda: trunk().save(__file__), "test_refusals.py is a file, expected a folder"),
    (lambda: F.cross_entropy(np.ones((2, 3)), np.array([0.5, 1.0])),
     "targets have type float64, expected an array of integers"),
    (lambda: layers.Attention(8, 3), "8 channels cannot be divided into 3 heads"),
    (lambda: minifpt.gradcheck(5, 6, (1.0,)), "expected a function and its backward pass"),
    *each(lambda seed: minifpt.GPT2(minifpt.GPT2Config(**TINY), seed), WRONG_SEEDS, SEED),
    *each(lambda seed: minifpt.LSTM(minifpt.LSTMConfig(1, 8), seed), WRONG_SEEDS, SEED),
    *each(lambda seed: minifpt.FPT(trunk(), 1, 2, seed=seed), [None, *WRONG_SEEDS], f"FPT: {SEED}"),
    *each(lambda seed: adapters.adapt(fpt(), "lora", seed), WRONG_SEEDS, SEED),
    *each(lambda seed: language_model().generate([1], 2, seed=seed), WRONG_SEEDS, SEED),
    *[(lambda make=make, dtype=dtype: make(dtype=dtype), "dtype is .*, expected float32 or float64")
      for make in (lambda **kw: minifpt.GPT2(minifpt.GPT2Config(**TINY), **kw), minifpt.LSTM,
                   lambda **kw: minifpt.trunks.get("random:llama:1x2x8", **kw))
      for dtype in (None, "x", 3, int, "float16", [1, "a"])],
    *each(lambda dtype: fpt().save("f", dtype), ["x", 1j, [1, "a"], float], "expected float16 or"),
    *each(minifpt.LSTM, [0, "", {"n_embd": 8}], "LSTM: the config is .*an instance of LSTMConfig"),
    *each(lambda cache: fpt().backward(np.zeros((2, 2, 2), np.float32), cache),
          [3, "x", {}, [], ()], "FPT: the cache is .*, expected the one that forward returned"),
    *each(lambda past: trunk().forward(X.repeat(8, 2), past=past),
          [[], "x", layers.KVCache(9), [layers.KVCache(9)] * 2, [None], [(X, X)]],
          "GPT2: past is .*, expected for a causal trunk a KVCache for each of 1 blocks"),
    (lambda: trunk(causal=False).forward(X.repeat(8, 2), past=[layers.KVCache(9)]), "causal"),
    (lambda: trunk(n_layer=2).forward(X.repeat(8, 2), past=[layers.KVCache(9)] * 2), "of 2 bl"),
    (lambda: back(trunk(), X.repeat(8, 2), past=[layers.KVCache(9)]), "or it had a past"),
    *each(layers.KVCache, SIZES, f"KVCache: capacity {EXPECTED_SIZE}"),
    *each(lambda names: minifpt.gradcheck(F.relu, F.relu_backward, (X,), names=names),
          ["x", 5, [], [1], ["a", "b"], [["a"]], {"a": 1}], "gradcheck: the names are"),
    (lambda: minifpt.gradcheck(layers.Linear(1, 2, float), X, names=["bias"]), "the names are"),
    *each(lambda n: trunk().add_positions(n), SIZES[:3], f"add_positions: n {EXPECTED_SIZE}"),
    *each(lambda seed: trunk().add_positions(20, seed), WRONG_SEEDS, f"add_positions: {SEED}"),
    *[(lambda name=name, x=x: minifpt.gradcheck(F.relu, F.relu_backward, (X,), **{name: x}),
       f"gradcheck: {name} ") for name, wrong in (
        ("eps", [0, "3", -1.0, np.nan]), ("tolerance", ["3", 0, np.inf]), ("seed", [-1, "x"]),
        ("elementwise", ["3", -1]), ("directions", [0, 1.5]), ("far", [0, "x"])) for x in wrong],
    *each(lambda p: optim.clip_grad_norm(p, 1.0), [None, 3, [1, "a"], {1}], "expected a list of"),
    *each(lambda model: adapters.adapt(model, "lora"), [None, {}, 3], "adapt: the model is"),
    *each(adapters.merge, [None, {}, 3], "merge: the model is"),
    *each(minifpt.FPT.for_task, [None, ..., {}], "FPT: the task is .*, expected a task or its"),
    *((lambda layer=layer: layer.forward(np.ones((1, 2, 8)), train=True),
       f"{type(layer).__name__}: .*rng is")
      for layer in (layers.Attention(8, 2, 0.1), layers.MLP(8, 0.1))),
    *((lambda name=name: minifpt.trunks.get(name, dropout=0.1).forward(np.ones((1, 3, 8)), True),
       "rng is None: pass rng=") for name in ("random:llama:1x2x8", "random:t5:1x2x8", "lstm:1x8")),
    (lambda: minifpt.optim.Adam([], eps=0), "eps is 0"),
    *each(lambda x: FreezeMask(patterns=x), [3, None, 1j], "patterns is .*expected a tuple"),
    *each(minifpt.load, [None, 3.5, b"x"], "load: the folder is .*, expected a path"),
    (lambda: minifpt.steps(5, xor()), "the model is 5"),
    (lambda: minifpt.steps(fpt(), "bit-xor"), "'bit-xor'")]


@pytest.mark.parametrize("call, message", BAD)
def test_a_wrong_argument_is_refused_in_one_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(message, call)
    assert not list(tmp_path.iterdir())


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
    ({"batch": lambda *a: np.zeros((1, 4, 1))}, "batch must return x and y"),
    ({"batch": lambda t, rng, size, split: (np.random.random((size, 4, 1)), np.zeros((  # noqa: NPY002
        size, 2), int))}, "batch draws from np.random"),
    ({"loss": lambda *a: 0.5}, "loss must return"),
    ({"loss": lambda *a: (0.5, None)}, "loss must return"),
    ({"loss": lambda t, z, y: (0.5, z.astype(float))}, "loss must .* dtype float32"),
    ({"loss": lambda t, z, y: (np.zeros(1), z)}, "loss must return a number"),
    ({"batch": lambda t, rng, size, split: xor().batch(rng, size + 1, split)},
     "batch was asked for 1 examples of 'train' and returned 2"),
    ({"batch": lambda t, rng, size, split: xor().batch(rng, max(size - 1, 1), split)},
     "batch was asked for 2 examples of 'train' and returned 1"),
    ({"batch": lambda t, rng, size, split: (xor().batch(rng, size, split)[0],
                                            xor().batch(rng, size + 1, split)[1])},
     r"batch returned x of shape \(1, .*expected as many examples"),
    ({"batch": lambda *a: (np.array(1.0), np.array(1))}, "batch must return x and y"),
    ({"accuracy": lambda *a: None}, "accuracy must return a number"),
    ({"accuracy": lambda *a: 1.5}, "accuracy must return a number from 0 to 1, got 1.5"),
    ({"accuracy": lambda *a: -0.1}, "accuracy must return a number from 0 to 1, got -0.1"),
    ({"accuracy": lambda *a: np.nan}, "accuracy must return a number from 0 to 1, got nan"),
    ({"test_set": lambda t: (np.zeros((2, 4, 1)), np.zeros((3, 2)))}, "test_set returned x of"),
    ({"test_set": lambda t: xor()}, "test_set must return x and y")])
def test_train_refuses_wrong_results_of_a_task(tmp_path, changed, part):
    refuses(f"train: own: {part}", minifpt.train, fpt(), type("Own", (Own,), changed)(),
            out=tmp_path / "run", **QUICK)
    assert not list(tmp_path.iterdir()) or "test_set" in changed      # what was trained stays


@pytest.mark.parametrize("dx", [None, 3, np.zeros((2, 4, 1), np.float32)])
def test_an_fpt_refuses_wrong_results_of_a_trunk_s_backward(dx):
    model = fpt()
    y, cache = model.forward(np.zeros((2, 4, 1), np.float32))
    model.trunk.backward = lambda dy, cache: dx
    refuses("FPT: the trunk's backward must return its input's gradient", model.backward, y, cache)


def test_a_task_needs_no_options_and_no_classes(tmp_path):
    minifpt.train(fpt(), Own(), out=tmp_path / "run", **QUICK)


def test_numpys_numbers_and_paths_are_taken(tmp_path):
    n = np.int64
    config = minifpt.GPT2Config(**{k: n(v) for k, v in TINY.items()}, dropout=np.float32(0.1))
    minifpt.GPT2(config, seed=n(1)).save(tmp_path / "w.npz")
    assert minifpt.GPT2.from_pretrained(tmp_path / "w.npz").config == config
    model = minifpt.FPT(trunk(), n(1), np.int32(2), n(2), seed=n(1))
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


# ------------------------------------------------------------------- arguments of another kind


@pytest.mark.parametrize("make", [
    lambda v: layers.Linear(v, 4), lambda v: layers.Linear(4, v), layers.LayerNorm,
    lambda v: layers.Embedding(v, 4), lambda v: layers.Positions(4, v), layers.MLP,
    lambda v: layers.Attention(v, 2), lambda v: layers.Attention(4, v), layers.KVCache])
def test_a_layer_s_size_of_another_kind_is_refused(make):
    for value in (None, "8", 8.0, True, 0, -8, 10 ** 30, (), np.ones(3)):
        with refused("must be a whole number, at least 1"):
            make(value)


@pytest.mark.parametrize("layer", [layers.LayerNorm(4), layers.Positions(9, 4), RMSNorm(4, 1e-5)])
def test_one_channel_is_not_used_for_all(layer):
    with refused(rf"{type(layer).__name__}: x has shape \(2, 3, 1\), expected \(..., 4\)"):
        layer.forward(np.ones((2, 3, 1), np.float32))


MASKED = np.ma.masked_array(np.ones((2, 4, 1), np.float32), True)


@pytest.mark.parametrize("call", [
    lambda: fpt().forward(MASKED), lambda: fpt().predict(MASKED),
    lambda: minifpt.LanguageModel(trunk()).forward(MASKED[..., 0].astype(int)),
    lambda: minifpt.LanguageModel(trunk()).generate(MASKED[..., 0].astype(int), 1)])
def test_a_mask_is_not_passed_over(call):
    with refused("MaskedArray"):
        call()


@pytest.mark.parametrize("value", ["False", "", None, 1, 0.0, (), np.ones(2)])
def test_a_flag_is_true_or_false(value, tmp_path):
    x = np.ones((2, 4, 1), np.float32)
    for call in (lambda: fpt().forward(x, train=value), lambda: FreezeMask(attn=value),
                 lambda: minifpt.train(fpt(), xor(), out=tmp_path / "run", resume=value, **QUICK),
                 lambda: minifpt.train(fpt(), xor(), **QUICK | {"progress": value}),
                 lambda: minifpt.GPT2Config(causal=value)):
        with refused("expected True or False"):
            call()


def test_the_number_of_last_tokens_is_one_of_the_tokens():
    x = np.ones((2, 4, 8), np.float32)
    for last in (0, 5, -1, True, 2.0, "2", (), np.ones(2)):
        with refused("last must be a whole number"):
            trunk().forward(x, last=last)


@pytest.mark.parametrize("call", [
    tasks.get, minifpt.GPT2.from_pretrained, lambda v: FreezeMask(only=v),
    lambda v: trunk().save("nowhere", v)])
def test_an_argument_of_many_lines_is_refused_in_one(call):
    for value in (np.ones((3, 9)), trunk()):
        with refused("expected"):                         # a line
            call(value)
