"""What is wrong is refused where it comes in: in one line, with nothing left behind."""

import io
import itertools
import json
import os
import shutil
import sys
import tracemalloc
import zipfile
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from test_cli import fails
from test_convert import pack, safetensors

import minifpt
from minifpt import cli, layers, tasks
from minifpt import functional as F
from minifpt.experiments import compare, plan, pretrain, runs_table, workers
from minifpt.experiments import runs as run_folders
from minifpt.files import data, huggingface, runs, weights
from minifpt.freeze import FreezeMask
from minifpt.trunks import convert
from minifpt.trunks import names as trunks
from minifpt.trunks.names import TrunkSpec

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


# --------------------------------------------------------------------------- command line


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, where ``random`` is tiny."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("MINIFPT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    monkeypatch.setattr(pretrain, "SHAPE", TINY)
    monkeypatch.setattr(plan, "SECONDS", 0.0)
    return tmp_path / "work"


TRAIN = "train bit-xor --model random --steps 2 "
COMPARE = "compare bit-xor --models random --steps 1 "


@pytest.mark.parametrize("line, part", [
    (TRAIN + "--batch-size 10000000000", "at most 2,147,483,647"),
    (TRAIN + f"--batch-size {BIG}", "at most 2,147,483,647"),
    (TRAIN + f"--steps {BIG}", "at most 2,147,483,647"),
    (TRAIN + f"--checkpoint-every {BIG}", "at most 2,147,483,647"),
    (TRAIN + "--dropout 0.99999999999", "dropout is 0.99999999999, expected a positive number"),
    (TRAIN + "--n 10000000000", "n must be a whole number, at least 1 and at most 2,147,483,647"),
    (TRAIN + f"--n {BIG}", "at most 2,147,483,647"),
    ("train bit-memory --bits 10000000000 --patch 10000000000", "at most 2,147,483,647"),
    ("train bit-memory --strings 10000000000", "at most 2,147,483,647"),
    ("train digits --size 10000000000 --patch 10000000000", "at most 2,147,483,647"),
    ("train few --labels 1000000000000", "at most 2,147,483,647"),
    ("generate --tokens 1000000000000000", "at most 2,147,483,647"),
    ("pretrain bits --batch-size 1000000000000", "at most 2,147,483,647"),
    (f"pretrain bits --steps {BIG}", "at most 2,147,483,647"),
    (f"plan bit-xor --steps {BIG}", "at most 2,147,483,647"),
    (f"plan bit-xor --batch-size {BIG}", "at most 2,147,483,647"),
    (COMPARE + "--seeds 10000000000000000000", "at most 2,147,483,647"),
    (COMPARE + "--seeds 1001", "1001 seeds, expected 1 to"),
    (COMPARE + "--jobs 0", "jobs must be"),
    (COMPARE + "--lrs 1 2 --choices 1001", "1001 validation seeds"),
    (COMPARE + "--choices 3", "--choices is for --rates"),
    ("steps bit-xor --frames 3", "--frames is for --every"),
    ("train typos --data books", "typos has no option 'data'"),
    ("train few --of listops --data lra", "few: listops has no option data"),
    ("train typos --files ''", "text: no file or folder ''"),
    (COMPARE + "--lrs 1 2 --lr 3", "expected --lr or --rates, not both"),
    ("pretrain bits --data nowhere", "data is for images and vision"),
    ("reproduce table3 --plan --seeds -2", "seeds must be"),
    ("summary bit-xor --model random:", "no weights 'random:'"),
    ("summary bit-xor --model random+h.99.*=random", "'h.99.*' matches no parameter"),
    ("summary bit-xor --model random+full=random", "the mask 'full' names no parameter"),
    ("summary bit-xor --model random --freeze tok", "'tok' is neither a preset"),
    ("summary bit-xor --model random --n 7 --freeze attn,mlp,pos",
     "14 tokens, the trunk has 12 positions"),
    ("plan bit-xor --model random+attn=nosuch", "no weights 'nosuch'"),
    ("plan bit-xor --model random+input=random", "the mask 'input' names no parameter"),
    ("plan bit-xor --model random+attn=random:gpt2", "the trunks have different shapes"),
    ("train mnist --data ~nosuchuser/x", "~nosuchuser/x does not hold"),
    ("pretrain images --data ~nosuchuser/x", "~nosuchuser/x does not hold")])
def test_a_wrong_value_on_the_command_line_is_refused_in_one_line(capsys, folder, line, part):
    fails(capsys, folder, line, part=part)


@pytest.mark.parametrize("line", [
    "train bit-xor --out", "compare bit-xor --out", "pretrain bits --out", "convert gpt2 --out",
    "lessons --no-open", "perplexity"])
def test_an_empty_path_is_refused(capsys, folder, line):
    """Path("") would be the working folder."""
    fails(capsys, folder, line, "", part="expected a path, got an empty text")


def test_an_unknown_user_s_folder_from_the_environment_is_refused(capsys, folder, monkeypatch):
    monkeypatch.setenv("MINIFPT_DATA", "~nosuchuser/x")
    fails(capsys, folder, "train mnist --model random", part="~nosuchuser/x")


@pytest.mark.parametrize("line", [TRAIN, "pretrain bits --steps 2 ", COMPARE])
def test_a_batch_too_large_for_memory_leaves_no_folder(capsys, folder, monkeypatch, line):
    """Not even the folders above the run's own stay."""
    def batch(self, rng, size, split="train", batch=tasks.Choices.batch):
        if size == 12345:
            raise MemoryError("Unable to allocate\n8 EiB")
        return batch(self, rng, size, split)
    monkeypatch.setattr(tasks.Choices, "batch", batch)
    monkeypatch.setattr(pretrain, "SHAPE", TINY | {"n_positions": 30})
    before = sorted(folder.parent.rglob("*"))
    assert cli.main([*line.split(), "--batch-size", "12345"]) == 2
    assert capsys.readouterr().err == "minifpt: not enough memory: Unable to allocate 8 EiB\n"
    assert sorted(folder.parent.rglob("*")) == before


def test_a_run_s_files_stay_when_memory_ends(folder, monkeypatch):
    minifpt.train(fpt(), xor(), out=folder / "run", **QUICK)

    def step(*args):
        raise MemoryError
    monkeypatch.setattr(minifpt.training, "step", step)
    there = sorted(p.name for p in (folder / "run").iterdir())
    with pytest.raises(MemoryError):
        minifpt.train(fpt(), xor(), out=folder / "run", resume=True, **QUICK | {"steps": 3})
    assert sorted(p.name for p in (folder / "run").iterdir()) == there


def test_a_grid_starts_no_more_processes_than_it_has_runs(monkeypatch, tmp_path):
    """As many are started as there is work for: the system has a limit."""
    sizes = []

    def pool(processes, sign):
        sizes.append(processes)
        raise InterruptedError
    monkeypatch.setattr(workers, "pool", pool)
    with pytest.raises(InterruptedError):
        compare.grid(tmp_path, ["bit-xor"], ["random:1x2x8"], [0, 1], jobs=10 ** 9, progress=False)
    assert sizes == [2]


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


def damage(run, change):
    with np.load(run / "checkpoint.npz") as file:
        arrays = dict(file)
    state = json.loads(str(arrays["state"]))
    change(state)
    np.savez(run / "checkpoint.npz", **arrays | {"state": np.array(json.dumps(state))})


def changes_no_model(match, run):
    """Resuming the run is refused, and the model stays as it was, to the last array."""
    model = fpt()
    before = [p.data.copy() for p in model.parameters()]
    refuses(match, minifpt.train, model, xor(), out=run, resume=True, **QUICK)
    np.testing.assert_equal([p.data for p in model.parameters()], before)


@pytest.mark.parametrize("key", ["step", "seconds", "sums", "t", "rng", "history", "settings"])
def test_a_checkpoint_with_another_type_is_refused(run, key):
    for wrong in WRONG:
        if key == "seconds" and wrong in (1.5, 10 ** 30):
            continue                                      # it may have taken so long
        damage(run, lambda s, wrong=wrong: s.update({key: wrong}))
        refuses("checkpoint.npz: (not a checkpoint|was written by)", resume, run)
    damage(run, lambda s: s.pop(key))
    refuses("checkpoint.npz: not a checkpoint", resume, run)


@pytest.mark.parametrize("change", [
    lambda s: s["rng"].pop("state"), lambda s: s["rng"].pop("has_uint32"),
    lambda s: s["rng"]["state"].pop("inc"), lambda s: s["rng"].update(bit_generator="MT19937"),
    lambda s: s["rng"].update(uinteger=-1), lambda s: s.update(step=3, t=3),
    lambda s: s.update(t=1), lambda s: s["sums"].append(0.0), lambda s: s["history"].clear(),
    lambda s: s["history"][0].pop("test_loss"), lambda s: s["history"][0].update(more=1),
    *[lambda s, k=k, x=x: s["history"][0].update({k: x})
      for k in ("step", "test_accuracy") for x in (None, [], "3", True)],
    lambda s: s["history"][0].update(test_loss=10 ** 400), lambda s: s.update(sums=[10 ** 400] * 3),
    lambda s: s.update(sums=[float("inf")] * 3)])
def test_an_inconsistent_checkpoint_is_refused_and_changes_no_model(run, change):
    damage(run, change)
    changes_no_model("checkpoint.npz: not a checkpoint, or damaged", run)


@pytest.mark.parametrize("norms", [None, 3, [], [3], [[]], [["x"]], [[0.0]] * 2, {"a": 1}])
def test_wrong_norms_in_a_checkpoint_are_refused(run, norms):
    damage(run, lambda s: s.update(norms=norms))
    refuses("checkpoint.npz: its norms do not fit its history", resume, run)


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
    (lambda a: a.update({"more\nthan": np.zeros(1)}), "it has the name 'more.{1,3}than'"),
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


def test_an_array_that_does_not_fit_is_not_read(run):
    """Neither what the model does not have, nor an array whose head tells of more than follows."""
    path, head = run / "checkpoint.npz", io.BytesIO()
    with np.load(path) as file:
        arrays = dict(file)
    big = np.zeros(3 * 10 ** 7, "u1")
    np.savez_compressed(run / "big", **arrays | {"output.bias": big, "more": big})
    np.lib.format.write_array_header_1_0(head, {"shape": (10 ** 9,), "fortran_order": False,
                                                "descr": "<f4"})
    arrays.pop("output.bias")
    np.savez(run / "lies", **arrays)
    with zipfile.ZipFile(run / "lies.npz", "a") as archive:
        archive.writestr("output.bias.npy", head.getvalue())
    del big
    tracemalloc.start()
    try:
        for name, part in (("big.npz", "'output.bias' has shape"),
                           ("lies.npz", "'output.bias' should have 1,000,000,000 numbers")):
            shutil.copy(run / name, path)
            refuses(part, resume, run)
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


def test_a_member_of_a_checkpoint_without_an_array_is_refused(run):
    with zipfile.ZipFile(run / "checkpoint.npz", "a") as archive:
        archive.writestr("x", b"no array")
    refuses("checkpoint.npz: not a checkpoint, or damaged", resume, run)


def test_a_good_checkpoint_is_read(run):
    assert len(resume(run)) == 1


@given(place=st.integers(0, 10 ** 6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_checkpoint_is_noticed_or_changes_nothing(finished, place, bit):
    """It is noticed, or where it changes nothing that is read, the numbers are the same."""
    path = finished.parent / "flipped.npz"
    raw = bytearray((finished / "checkpoint.npz").read_bytes())
    raw[place % len(raw)] ^= 1 << bit
    path.write_bytes(raw)

    def load(path):
        model = fpt()
        adam = minifpt.optim.Adam(model.parameters())
        settings = json.loads((finished / "config.json").read_text())
        run = runs.Run(model, adam, np.random.default_rng(0), settings)
        run.load(path)
        return [*(p.data for p in model.parameters()), *adam.m, *adam.v], run.rng.random()
    want = load(finished / "checkpoint.npz")
    try:
        got = load(path)
    except ValueError as e:
        assert str(e).startswith(str(path)) and "\n" not in str(e)
    else:
        np.testing.assert_equal(got, want)


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


@pytest.mark.parametrize("change, match", [
    ({"source": 3}, "run: its task cannot be made again: .*'3'"),
    ({"source": "x" * 99 + ".py:a"}, "run: its task cannot be made again: .*; its paths are"),
    ({"options": {"x" * 999: 3}}, "run: its task cannot be made again"),
    ({"task": "x" * 999}, "run: its task was 'xxx.*, bit-xor now makes 'bit-xor'"),
    ({"model": "random:0x0x0x0"}, "run: its model cannot be made again: --model random:0x0x0x0"),
    ({"task": ["x" * 500]}, r"config.json: has \['xxx.{1,60} for 'task': it is damaged")])
def test_settings_of_another_type_are_refused(run, change, match):
    settings = json.loads((run / "config.json").read_text()) | {
        "source": "bit-xor", "model": "random:1x2x8", "freeze": "fpt", "dropout": 0.1,
        "trunk_crc": "0"}
    (run / "config.json").write_text(json.dumps(settings | change))
    refuses(match, run_folders.load_run, run, kind=(ValueError, FileNotFoundError))
    if "model" in change:
        refuses("its model cannot be read", runs_table.compare_runs, run / "out", [run])


def test_good_metrics_are_read(run):
    assert minifpt.History.load(run / "metrics.csv") == resume(run)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that writes a tiny language model with another config, or other numbers: as
    ours and as Transformers'.  Returns both paths."""
    model = minifpt.LanguageModel(minifpt.GPT2Config(**TINY, dropout=0.1), seed=0)
    named = {n.removeprefix("trunk."): p.data for n, p in model.named_parameters()}
    folder = tmp_path_factory.mktemp("saved")

    def save(config=None, **arrays):
        config, arrays = asdict(model.config) | (config or {}), named | arrays
        np.savez(folder / "w.npz", config=np.array(json.dumps(config)), **arrays)
        drop = config.get("dropout")
        raw = config | {k: drop for k in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
        (folder / "config.json").write_text(json.dumps(raw))
        (folder / "model.safetensors").write_bytes(safetensors(arrays))
        return folder / "w.npz", folder
    save.named = named
    return save


@pytest.mark.parametrize("key", [*TINY, "dropout", "layer_norm_epsilon", "activation_function"])
def test_a_config_with_another_type_is_refused(saved, key):
    for wrong in (None, [], {}, "x", True, -1, 10 ** 9, 10 ** 30, 10 ** 400, float("nan"), [1],
                  {"a": 1}, "3"):
        if key == "layer_norm_epsilon" and wrong in (10 ** 9, 10 ** 30) and wrong is not True:
            continue
        for path in saved({key: wrong}):
            refuses(".", minifpt.LanguageModel.from_pretrained, path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["wpe.weight", "h.0.attn.c_attn.bias", "wte.weight"])
def test_weights_that_are_not_finite_numbers_are_refused(saved, tmp_path, name, bad):
    array = saved.named[name].copy()
    array.flat[-1] = bad
    models = [minifpt.LanguageModel, minifpt.GPT2][:1 + (name != "wte.weight")]
    for path, model in itertools.product(saved(**{name: array}), models):
        refuses(f"'{name}' holds a NaN or an infinity", model.from_pretrained, path)
    refuses(f"'{name}' holds a NaN", convert.convert, path, tmp_path / "out.npz", progress=False)
    assert not list(tmp_path.iterdir())


def test_the_unchanged_files_are_read(saved):
    for path in saved():
        minifpt.LanguageModel.from_pretrained(path)


@pytest.mark.parametrize("name", ["a\nb", "", "x" * 300, "\0"])
def test_an_unprintable_name_is_refused(saved, name):
    ours, theirs = saved(**{name: np.zeros(3, np.float32)})
    for path in (ours, theirs) if name != "\0" else (theirs,):    # zipfile ends a name there
        refuses(f"{path.name}.*it has the name", minifpt.LanguageModel.from_pretrained, path)


@pytest.mark.parametrize("dtype", ["x" * 500, "F\n32", ""])
def test_an_unprintable_dtype_is_refused(saved, dtype):
    _, folder = saved()
    path = folder / "model.safetensors"
    path.write_bytes(pack({"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}, b"1234"))
    refuses("model.safetensors: the safetensors header is damaged", huggingface.read_safetensors,
            path)


@pytest.mark.parametrize("places", [{"a": ""}, {"a": "a\nb"}, {"a\nb": "x"}, {"a": "."}])
def test_an_index_with_wrong_names_is_refused(tmp_path, places):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": places}))
    refuses("index.json: (weight_map must give|.*there is no such file)|there is no such file",
            huggingface.read_tensors, path, kind=(ValueError, FileNotFoundError))


def test_files_without_text_or_json_are_refused(tmp_path):
    (tmp_path / "basic_train.tsv").write_bytes(b"\xff\xfe1\t1\n")
    refuses("basic_train.tsv: not text in UTF-8", tasks.get("listops", files=tmp_path).batch,
            np.random.default_rng(0), 1)
    (tmp_path / "remote_homology_valid.json").write_text("{\n")
    refuses("starts with '{.n', expected", data.remote_homology, "valid", tmp_path)


def test_converted_weights_appear_after_their_tokenizer(saved, tmp_path, monkeypatch):
    """From the moment on at which they are there."""
    _, folder = saved()
    (folder / "merges.txt").write_text("l o\n")
    replace, there = os.replace, []
    monkeypatch.setattr(os, "replace", lambda a, b: (there.append(Path(b).name), replace(a, b)))
    convert.convert(folder, tmp_path / "w.npz", progress=False)
    (folder / "merges.txt").unlink()
    assert there == ["w.merges.txt", "w.npz"]


def test_a_flipped_bit_of_the_end_of_the_zip_names_the_file(tmp_path):
    path = tmp_path / "w.npz"
    trunk().save(path)
    raw = bytearray(path.read_bytes())
    raw[-6:-2] = b"\xff" * 4                              # where the list of members begins
    path.write_bytes(raw)
    refuses("w.npz: not a minifpt weight file, or damaged", weights.load, path)


# ------------------------------------------------------------------------------------- API


@pytest.mark.parametrize("x, part", [
    ([[[0.0]]], "a list"), (None, "a NoneType"), (np.zeros((0, 4, 1)), "at least one example"),
    (np.zeros((2, 4, 1), complex), "array of complex128"), (np.zeros((2, 4, 1), str), "array of")])
def test_models_refuse_inputs_other_than_arrays_of_numbers(x, part):
    wide = x if x is None or isinstance(x, list) else np.repeat(x, 8, axis=2)
    refuses(f"FPT: x .*{part}", fpt().forward, x)
    refuses(f"FPT: x .*{part}", fpt().predict, x)
    refuses(f"GPT2: x .*{part}", trunk().forward, wide)


@pytest.mark.parametrize("ids", [[[1, 2]], None, np.zeros((0, 3), int), np.zeros((1, 3))])
def test_a_language_model_refuses_ids_other_than_integers(ids):
    refuses("LanguageModel: ids", minifpt.LanguageModel(minifpt.GPT2Config(**TINY)).forward, ids)


@pytest.mark.parametrize("rng", [0, "x", np.random.default_rng])
def test_dropout_and_batches_refuse_an_rng_other_than_a_generator(rng):
    refuses("rng is .*: pass rng=np.random.default_rng", fpt().forward,
            np.zeros((2, 4, 1), np.float32), train=True, rng=rng)
    refuses("rng is .*, expected np.random.default_rng", xor().batch, rng, 2)
    refuses("rng is .*, expected np.random.default_rng", tasks.get("few").batch, rng, 2)


def test_backward_of_a_frozen_model_is_refused():
    lm, ids = minifpt.LanguageModel(minifpt.GPT2Config(**TINY)), np.zeros((1, 3), int)
    x = np.zeros((2, 4, 8), np.float32)
    lstm = minifpt.LSTM(minifpt.LSTMConfig(1, 8))
    for model, inputs, kw in ((fpt(), x[..., :1], {}), (trunk(), x, {"need_dx": False}),
                              (lstm, x, {"need_dx": False}), (lm, ids, {})):
        for p in model.parameters():
            p.trainable = False
        y, cache = model.forward(inputs, **kw)
        assert cache is None
        refuses("the cache is None: everything was frozen", model.backward, y, cache)


@pytest.mark.parametrize("wrong", [lambda y: y.tolist(), lambda y: None, lambda y: y[..., :1],
                                   lambda y: y.sum()])
def test_backward_refuses_a_gradient_of_another_shape(wrong):
    lm, ids = minifpt.LanguageModel(minifpt.GPT2Config(**TINY)), np.zeros((1, 3), int)
    x = np.zeros((2, 4, 8), np.float32)
    for model, inputs in ((fpt(), x[..., :1]), (trunk(), x), (lm, ids)):
        y, cache = model.forward(inputs)
        refuses("the gradient is .*, expected the shape", model.backward, wrong(y), cache)


@pytest.mark.parametrize("T", [4, 130])
def test_backward_twice_gives_the_same(T):
    model = minifpt.FPT(trunk(n_positions=T), 1, 2, 2)
    x = np.random.default_rng(0).standard_normal((2, T, 1)).astype(np.float32)
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
    dlogits, grads = np.ones_like(logits), []
    for _ in range(2):
        model.zero_grad()
        model.backward(dlogits, cache)
        grads.append([p.grad for p in model.parameters()])
    np.testing.assert_equal(*grads)


@pytest.mark.parametrize("wrong", ["3", 1.5, None, [1], 0, -1, True, 10 ** 10])
def test_an_fpt_refuses_impossible_sizes(wrong):
    expected = "must be a whole number, at least 1"
    refuses(f"FPT: input_dim {expected}", minifpt.FPT, trunk(), wrong, 2)
    refuses(f"FPT: output_dim {expected}", minifpt.FPT, trunk(), 1, wrong)
    refuses(f"FPT: output_tokens {expected}", minifpt.FPT, trunk(), 1, 2, wrong)


@pytest.mark.parametrize("do, part, wrong", [
    (minifpt.GPT2, "expected a GPT2Config; GPT2.from_pretrained", [TINY, "gpt2", {}]),
    (minifpt.LanguageModel, "expected a GPT2Config; GPT2.from_pretrained", [TINY, "gpt2", {}]),
    (minifpt.GPT2.from_pretrained, "expected a name or a path", [None, 3, minifpt.GPT2]),
    (lambda mask: fpt().freeze(mask), "expected a FreezeMask, or its text",
     [None, {"attn": True}, FreezeMask, FreezeMask.fpt]),
    (lambda model: minifpt.train(model, xor(), **QUICK), "train: the model is .*, expected a "
     "minifpt.FPT", [None, "minigpt-language", minifpt.FPT, xor()]),
    (lambda stop: minifpt.train(fpt(), xor(), stop=stop, **QUICK),
     "train: stop is .*expected an object with is_set", ["x", 1, print]),
    (tasks.Text, "text: files is .*expected paths of text files", [3, [None], [3], {"a.txt": 1}]),
    *[(lambda x, n=name: minifpt.train(fpt(), xor(), **QUICK | {n: x}),
       f"train: {name} is .*, expected a positive",
       ["x", (), [1e-3], 1j, -1.0, np.nan, np.array([1.0, 2.0]), 10 ** 400])
      for name in ("lr", "clip", "weight_decay")]])
def test_a_wrong_argument_is_refused(do, part, wrong):
    for value in wrong:
        refuses(part, do, value)


def test_a_mask_refuses_unknown_groups_and_types():
    refuses("'atn' is not a group, expected one of input, pos", FreezeMask, atn=True)
    refuses("input is 'fpt', expected True or False", FreezeMask, "fpt")
    refuses("patterns is 'h.0.*', expected a tuple", FreezeMask, patterns="h.0.*")
    for wrong in (None, 3, FreezeMask, ["attn"]):
        refuses("expected a FreezeMask, or its text, such as 'fpt'", FreezeMask.parse, wrong)
    mask = FreezeMask(attn=np.bool_(True), patterns=["h.0.*"])
    assert replace(mask, attn=False) == FreezeMask(patterns=["h.0.*"])


def test_a_config_cannot_be_changed():
    """What a trunk was built with cannot differ from what its config says."""
    for name, value in (("n_embd", 16), ("n_head", 4), ("dropout", 0.0)):
        refuses(f"cannot assign to field '{name}'", setattr, trunk().config, name, value,
                kind=FrozenInstanceError)


@pytest.mark.parametrize("task, part", [
    ("bit-xor", "'bit-xor' is not a task: it has no 'name' .*minifpt.tasks.get makes one"),
    (tasks.BitXOR, "is a class, expected an object"), (None, "None is not a task"),
    (fpt(), "is not a task: it has no 'name'")])
def test_train_refuses_what_is_not_a_task(task, part):
    refuses(f"train: .*{part}", minifpt.train, fpt(), task, **QUICK)


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
    ({"batch": lambda *a: None}, "batch must return x and y"),
    ({"batch": lambda *a: [[1], [2]]}, "batch must return x and y"),
    ({"batch": lambda *a: np.zeros((1, 4, 1))}, "batch must return x and y"),
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
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dx", [None, 3, np.zeros((2, 4, 1), np.float32)])
def test_an_fpt_refuses_wrong_results_of_a_trunk_s_backward(dx):
    model = fpt()
    y, cache = model.forward(np.zeros((2, 4, 1), np.float32))
    model.trunk.backward = lambda dy, cache: dx
    refuses("FPT: the trunk's backward must return its input's gradient", model.backward, y, cache)


def test_a_task_needs_no_options_and_no_classes(tmp_path):
    minifpt.train(fpt(), Own(), out=tmp_path / "run", **QUICK)
    own = Own()
    own.options = {"data": "x"}                           # and yet without classes
    plan.examples(own, np.random.default_rng(0), 2)


@pytest.mark.parametrize("out", ["", 3, True])
def test_train_refuses_an_out_that_is_not_a_path(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses("train: out is .*, expected a path", minifpt.train, fpt(), xor(), out=out, **QUICK)
    assert not list(tmp_path.iterdir())


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


def test_train_refuses_settings_that_json_cannot_hold(tmp_path):
    refuses("cannot be kept in a file", minifpt.train, fpt(), xor(), out=tmp_path / "run",
            config={"a": object()}, **QUICK)
    assert not list(tmp_path.iterdir())


def test_a_task_refuses_logits_and_answers_of_another_type():
    task, logits, y = xor(), np.zeros((2, 2, 2), np.float32), np.zeros((2, 2), int)
    for do in (task.loss, task.accuracy):
        refuses("logits is a list", do, logits.tolist(), y)
        refuses("y is a list, expected an array of integers", do, logits, y.tolist())
        refuses("y is an array of float64", do, logits, y.astype(float))
        refuses("logits has shape .*at least one", do, logits[:0], y[:0])


@pytest.mark.parametrize("get", [
    lambda: tasks.get(["bit-xor"]), lambda: tasks.get("few", of=["digits"]),
    lambda: tasks.get("typos", share="x"), lambda: tasks.get("bit-xor", n=True),
    lambda: TrunkSpec.parse("random:1x2x8@x")])
def test_further_wrong_arguments_are_refused_in_one_line(get):
    refuses(".", get)


def test_freeze_refuses_a_parameter_of_an_unknown_group():
    """A parameter's group must be one of the paper's, or no mask would reach it."""
    layer = layers.Linear(2, 2, group="extra")
    refuses("in the group 'extra', expected one of", layer.freeze, FreezeMask.fpt())


def test_operations_and_tools_refuse_wrong_arguments():
    refuses("targets must be integers from 0 to 2", F.cross_entropy, np.ones((2, 3)),
            np.array([0.5, 1.0]))
    refuses("8 channels cannot be divided into 3 heads", layers.Attention, 8, 3)
    refuses("expected a function and its backward pass", minifpt.gradcheck, 5, 6, (1.0,))
    refuses("the model is 5", minifpt.steps, 5, xor())
    refuses("'bit-xor'", minifpt.steps, fpt(), "bit-xor")
