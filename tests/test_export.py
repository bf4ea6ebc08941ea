"""Weights written as Transformers reads them."""

import json
import os

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli
from minifpt.files import huggingface

CONFIG = dict(n_layer=2, n_head=2, n_embd=8, n_positions=6, vocab_size=11, dropout=0.2)


def language_model(seed=3, dtype=np.float32, **changes):
    model = minifpt.LanguageModel(minifpt.GPT2Config(**CONFIG | changes), seed, dtype)
    rng = np.random.default_rng(seed)
    for p in model.parameters():                          # no bias 0, no scale 1
        p.data += 0.1 * rng.standard_normal(p.data.shape)
    return model


def test_a_saved_folder_is_read_back_to_the_same_bits(tmp_path):
    lm = language_model()
    lm.save(tmp_path / "new" / "folder", source="a test")
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["config.json", "model.safetensors"]
    assert os.listdir(tmp_path / "new") == ["folder"]
    again = minifpt.LanguageModel.from_pretrained(tmp_path / "new" / "folder")
    assert again.config == lm.config
    for (name, p), (_, q) in zip(lm.named_parameters(), again.named_parameters(), strict=True):
        assert np.array_equal(p.data, q.data), name
    file = (tmp_path / "new" / "folder" / "model.safetensors").read_bytes()
    length = int.from_bytes(file[:8], "little")           # of the header, which is aligned
    header = json.loads(file[8:8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(file) - 8 - length
    raw = json.loads((tmp_path / "new" / "folder" / "config.json").read_text())
    assert raw["minifpt"] == {"source": "a test"} and raw["dtype"] == "float32"
    assert raw["architectures"] == ["GPT2LMHeadModel"]


def test_a_trunk_is_saved_without_a_table(tmp_path):
    trunk = language_model().trunk
    trunk.save(tmp_path / "trunk")
    tensors = huggingface.read_safetensors(tmp_path / "trunk" / "model.safetensors")
    assert "wte.weight" not in tensors and tensors["h.1.mlp.c_fc.weight"].shape == (8, 32)
    raw = json.loads((tmp_path / "trunk" / "config.json").read_text())
    assert raw["architectures"] == ["GPT2Model"]
    again = minifpt.GPT2.from_pretrained(tmp_path / "trunk")
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    assert np.array_equal(trunk.forward(x)[0], again.forward(x)[0])


def test_float16_halves_the_file_and_byte_models_get_a_tokenizer(tmp_path):
    sizes = []
    for dtype in (None, "float16"):
        lm = language_model(vocab_size=256)
        lm.save(tmp_path / str(dtype), dtype)
        sizes.append(os.path.getsize(tmp_path / str(dtype) / "model.safetensors"))
        assert (tmp_path / str(dtype) / "vocab.json").exists()
        minifpt.LanguageModel.from_pretrained(tmp_path / str(dtype))
    assert 1.4 < sizes[0] / sizes[1] < 2


def damaged(value):
    lm = language_model()
    lm.trunk.ln_f.bias.data[2] = value
    return lm


@pytest.mark.parametrize("make, path, dtype, message", [
    (lambda: damaged(np.nan), "folder", None, "ln_f.bias"),
    (lambda: damaged(np.inf), "folder", None, "ln_f.bias"),
    (lambda: damaged(1e5), "folder", np.float16, "ln_f.bias"),
    (lambda: damaged(np.nan), "m.npz", np.float32, "'ln_f.bias' holds a NaN or an inf"),
    (lambda: damaged(1e5), "m.npz", np.float16, "'ln_f.bias' holds numbers beyond 65"),
    (language_model, "m.npz", "float64", "dtype is .*, expected float16 or float32"),
    (lambda: minifpt.FPT(minifpt.GPT2(minifpt.GPT2Config(1, 1, 8)), 1, 2), "m.npz", None,
     "m.npz, expected the name of a new folder"),
    (lambda: language_model(causal=False), "folder", None, "causal"),
    (language_model, "w.safetensors", None, "w.safetensors: expected the name of a folder"),
    (language_model, "folder", "float8", "expected float16 or float32"),
    (lambda: minifpt.FPT(minifpt.trunks.get("lstm:1x8"), 3, 4), "folder", None,
     "LSTM trunks, expected one of a family that it has: .*Llama")])
def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path, make, path, dtype, message):
    with refused(message):
        make().save(tmp_path / path, *[dtype] if dtype else [])
    with refused("save: the path is 3, expected a folder or an .npz file"):
        language_model().save(3)
    assert not os.listdir(tmp_path)


def test_a_folder_with_files_stays_and_a_crash_leaves_none(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    language_model().save(tmp_path / "a")                 # an empty folder is filled
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with refused("holds files"):
        language_model(seed=4).save(tmp_path / "a")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before

    def crash(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError):
        language_model().save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["a"]


def test_convert_exports_a_run(cwd, capsys):
    trunk = language_model(n_positions=16).trunk
    trunk.save("small.npz")
    assert cli.main(["train", "bit-xor", "--model", "small.npz", "--steps", 3, "--out", "run"]) == 0
    assert cli.main(["convert", "run", "--out", "folder"]) == 0
    assert "layers.safetensors" in capsys.readouterr().out
    exported = dict(minifpt.GPT2.from_pretrained("folder").named_parameters())
    checkpoint = np.load("run/checkpoint.npz")
    trained = [name for name in checkpoint.files if name.startswith("trunk.")]
    assert len(trained) == 11                             # positions, 5 layer norms
    for name in trained:
        assert np.array_equal(exported[name.removeprefix("trunk.")].data, checkpoint[name])
    layers = huggingface.read_safetensors(cwd / "folder" / "layers.safetensors")
    numbers = layers["output.weight"].read().reshape(-1)
    assert np.array_equal(numbers.reshape(8, 2), checkpoint["output.weight"])
    assert cli.main(["convert", "run", "--out", "run.npz", "--dtype", "float32"]) == 0
    again = dict(minifpt.GPT2.from_pretrained("run.npz").named_parameters())
    assert all(np.array_equal(again[name].data, p.data) for name, p in exported.items())


def test_convert_exports_a_run_of_a_task_that_was_built_in_code(tmp_path):
    class Own(type(minifpt.tasks.get("bit-xor"))):
        name = "own"

    language_model(n_positions=16).trunk.save(tmp_path / "small.npz")
    model = minifpt.FPT.for_task(Own(n=3), tmp_path / "small.npz")
    minifpt.train(model, Own(n=3), steps=2, out=tmp_path / "run", progress=False)
    assert cli.main(["convert", tmp_path / "run", "--out", tmp_path / "folder"]) == 0
    exported = dict(minifpt.GPT2.from_pretrained(tmp_path / "folder").named_parameters())
    assert all(np.array_equal(exported[name].data, p.data)
               for name, p in model.trunk.named_parameters())


@pytest.mark.parametrize("argv, says", [
    (["run"], "needs --out, the folder to write, or an .npz file"),
    (["run", "--out", "x", "--dropout", "0.1"], "--dropout and --revision"),
    (["empty", "--out", "x"], "holds none of model.safetensors"),
    (["begun", "--out", "x"], "begun/config.json: has no 'options'"),         # as a run
    (["small.npz", "--out", "."], "holds files"),
    (["small.npz", "--out", "small.npz"], "neither a folder")])
def test_convert_refuses_in_one_line(cwd, fails, argv, says):
    for name in ("run", "empty", "begun"):
        (cwd / name).mkdir()
    (cwd / "run" / "checkpoint.npz").touch()
    (cwd / "begun" / "metrics.csv").touch()
    (cwd / "begun" / "config.json").write_text('{"task": "bit-xor"}')
    language_model().trunk.save("small.npz")
    assert says in fails("convert", *argv)


def test_convert_exports_shipped_weights_with_the_tokenizer_of_bytes(tmp_path, capsys):
    assert cli.main(["convert", "minigpt-tiny", "--out", tmp_path / "tiny"]) == 0
    vocab = json.loads((tmp_path / "tiny" / "vocab.json").read_text())
    assert sorted(vocab.values()) == list(range(256)) and vocab["A"] == 65 and vocab["Ġ"] == 32
    ids = np.arange(12)[None] + 60
    a = minifpt.LanguageModel.from_pretrained("minigpt-tiny").logits(ids)
    assert np.array_equal(a, minifpt.LanguageModel.from_pretrained(tmp_path / "tiny").logits(ids))


@pytest.mark.oracle
def test_transformers_reads_the_tokenizer_of_bytes(tmp_path):
    transformers = pytest.importorskip("transformers")
    minifpt.LanguageModel.from_pretrained("minigpt-tiny").save(tmp_path / "tiny")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "tiny")
    text = "It's Ähm – 你好\n\n  <|x|>\x00 end  "
    assert words.encode(text) == list(text.encode()) and words.decode(words.encode(text)) == text
