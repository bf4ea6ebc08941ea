"""Pretraining: a weight file that loads and says where it comes from."""

import math

import numpy as np
import pytest
from conftest import refused
from test_data import write_mnist

import minifpt
from minifpt.experiments import pretrain
from minifpt.files import weights
from minifpt.tasks import Text
from minifpt.trunks.names import TrunkSpec

SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 256}


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A folder of two short books; the shape is a tiny one."""
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE)
    for name in "ba":
        (tmp_path / "books").mkdir(exist_ok=True)
        (tmp_path / "books" / f"{name}.txt").write_text("the quick brown fox jumps over. " * 50)
    return tmp_path / "books"


def arrays_of(path):
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file if name != "config"}


def language(text, out, **kw):
    options = {"steps": 6, "batch_size": 4, "seed": 2, "progress": False} | kw
    return pretrain.pretrain("language", out, text=[text], **options)


@pytest.mark.parametrize("name", ["w.npz", "folder/w"])
def test_the_weight_file_has_its_config_and_its_source(text, tmp_path, name):
    history = language(text, tmp_path / name)
    path = (tmp_path / name).with_suffix(".npz")
    config, _ = weights.read(path)
    arrays = arrays_of(path)
    assert {k: config[k] for k in SHAPE} == SHAPE and config["dropout"] == 0.1
    assert config["source"] == "language" and config["text"] == ["a.txt", "b.txt"]
    assert config["test_loss"] == round(history[-1]["test_loss"], 4)
    for part in ("pretrain language", "--steps 6", "--batch-size 4", "--seed 2", "--lr 0.003"):
        assert part in config["command"]
    lm = minifpt.LanguageModel.from_pretrained(str(path))
    assert {name.removeprefix("trunk.") for name, _ in lm.named_parameters()} == {*arrays}
    with np.load(path.with_suffix("") / "checkpoint.npz") as trained:
        for name, p in lm.named_parameters():
            assert arrays[name.removeprefix("trunk.")].dtype == np.float16
            np.testing.assert_array_equal(p.data, trained[name].astype(np.float16))
    assert minifpt.History.load(path.with_suffix("") / "metrics.csv") == history
    assert {p.name for p in path.parent.iterdir()} - {"books"} == {"w", "w.npz"}


def test_the_last_loss_is_that_of_all_held_out_text(text, tmp_path):
    history = language(text, tmp_path / "a")
    lm, task = minifpt.LanguageModel.from_pretrained(tmp_path / "a.npz"), Text([text], tokens=16)
    x, y = task.test_set()
    assert history[-1]["test_loss"] == pytest.approx(task.loss(lm.logits(x), y)[0], rel=1e-3)


def test_a_shape_is_taken_and_kept_in_the_file(text, tmp_path):
    language(text, tmp_path / "w", shape="2x4x16")
    config, _ = weights.read(tmp_path / "w.npz")
    expected = SHAPE | {"n_layer": 2, "n_head": 4, "n_embd": 16}
    assert {k: config[k] for k in SHAPE} == expected and "--shape 2x4x16" in config["command"]
    parameters = dict(minifpt.GPT2.from_pretrained(tmp_path / "w.npz").named_parameters())
    assert parameters["wpe.weight"].data.shape == (16, 16) and "h.1.ln_1.weight" in parameters
    (tmp_path / "w.npz").unlink()
    with refused("n_layer = 2, not 1"):
        language(text, tmp_path / "w", resume=True)
    assert not (tmp_path / "w.npz").exists()


def test_shorter_passages_leave_the_later_positions_untrained(text, tmp_path):
    language(text, tmp_path / "w", tokens=9)
    config, _ = weights.read(tmp_path / "w.npz")
    start = minifpt.GPT2(minifpt.GPT2Config(**SHAPE), seed=2).wpe.weight.data
    rows = arrays_of(tmp_path / "w.npz")["wpe.weight"]
    is_trained = np.abs(rows - start).max(axis=1) > 1e-4
    assert config["n_positions"] == 16 and "--tokens 9" in config["command"]
    assert [*is_trained] == [True] * 9 + [False] * 7


def test_pretraining_refuses_to_resume_another_source(tmp_path, monkeypatch):
    """Heads and the mask show in no array's shape."""
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE | {"n_positions": 49})
    write_mnist(tmp_path / "data")
    options = {"data": tmp_path / "data", "steps": 2, "batch_size": 2, "progress": False}
    pretrain.pretrain("images", tmp_path / "w", **options)
    (tmp_path / "w.npz").unlink()
    for source, shape, message in (("vision", None, "pretraining = images, not vision"),
                                   ("images", "1x4x8", "n_head = 2, not 4")):
        with pytest.raises(ValueError, match=message):
            pretrain.pretrain(source, tmp_path / "w", shape=shape, resume=True, **options)
    pretrain.pretrain("images", tmp_path / "w", resume=True, **options)


@pytest.fixture
def pretrained(text, tmp_path, monkeypatch):
    """Pretrain from a source, a few steps of a tiny trunk; the path of the weights."""
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE | {"n_positions": 49})
    write_mnist(tmp_path / "data")

    def run(source, **options):
        options = {"steps": 2, "batch_size": 2, "progress": False} | options
        data = {"language": {"text": [text]}, "masked": {"text": [text]},
                "vision": {"data": tmp_path / "data"},
                "images": {"data": tmp_path / "data"}}
        pretrain.pretrain(source, tmp_path / f"minigpt-{source}", **data.get(source, {}), **options)
        return tmp_path / f"minigpt-{source}.npz"
    return run


@pytest.mark.parametrize("source, causal, table", [
    ("language", True, True), ("masked", False, True), ("bits", True, False),
    ("images", True, False), ("vision", False, False)])
def test_each_source_pretrains_a_trunk_that_loads(pretrained, source, causal, table):
    path = pretrained(source)
    config, tensors = weights.read(path)
    assert config["causal"] is causal and ("wte.weight" in tensors) is table
    assert f"pretrain {source} --steps 2" in config["command"] and config["source"] == source
    assert config["dropout"] == 0.1 and (config.get("text"), config.get("task")) == {
        "bits": (None, "bit-memory"), "images": (None, "mnist"), "vision": (None, "mnist")}.get(
            source, (["a.txt", "b.txt"], None))
    start = dict(minifpt.GPT2(minifpt.GPT2Config(**SHAPE), seed=0).named_parameters())
    for name in "h.0.mlp.c_fc.weight", "h.0.attn.c_attn.weight":          # nothing is frozen
        assert np.abs(tensors[name].read() - start[name].data).max() > 2e-4
    # Whatever is made of it looks as far as it does.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 8)).astype(np.float32)
    later = x.copy()
    later[:, -1] = rng.standard_normal(8)
    for text in (path, f"statistics:{path}", f"{path}+attn,mlp,ln,pos=statistics:{path}"):
        spec = TrunkSpec.parse(text)
        trunk = minifpt.trunks.get(spec)
        assert trunk.config.causal is causal
        assert spec.label.startswith(("statistics", source))
        same = np.array_equal(trunk.forward(x)[0][:, 0], trunk.forward(later)[0][:, 0])
        assert same is causal
    if table:
        assert minifpt.LanguageModel.from_pretrained(path).config.causal is causal


def test_masked_bytes_are_learned(pretrained, text, monkeypatch):
    """Each is as its neighbours are, which says more than how frequent it is."""
    for path in text.iterdir():
        path.write_text("".join(letter * 100 for letter in "abcdefgh" * 3))
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE | {"n_positions": 20})
    path = pretrained("masked", steps=150, batch_size=16, lr=1e-2)
    loss = minifpt.History.load(path.with_suffix("") / "metrics.csv")[-1]["test_loss"]
    assert loss < 0.8 * math.log(8)


@pytest.mark.parametrize("source, kw, message", [
    ("novels", {}, "the source is 'novels'"), ("language", {}, "needs text"),
    ("bits", {"text": ["x"]}, "takes no text"), ("bits", {"data": "x"}, "data is for images"),
    ("bits", {"tokens": 9}, "tokens is for language"),
    ("masked", {"text": ["short.txt"], "tokens": 17}, "tokens must .* at least 2 and at most 16"),
    ("bits", {"shape": ""}, "pretrain: no shape ''"),
    ("bits", {"shape": "2x16"}, "pretrain: no shape '2x16', expected one of gpt2,"),
    ("bits", {"shape": "1x3x16"}, "n_embd"),
    ("masked", {"text": ["short.txt"], "shape": "llama:1x2x8"}, "without a causal mask"),
    ("language", {"text": ["none.txt"]}, "no file or folder"),
    ("language", {"text": ["empty"]}, "no \\*.txt"),
    ("language", {"text": ["short.txt"]}, "give more text"),
    ("bits", {"out": "mine.npz"}, "mine.npz is there already: choose another"),
    ("bits", {"out": "mine"}, "mine.npz is there already: choose another")])
def test_impossible_pretraining_is_refused_and_writes_nothing(source, kw, message, cwd,
                                                              monkeypatch):
    monkeypatch.setattr(pretrain, "SHAPE", SHAPE)
    (cwd / "empty").mkdir()
    (cwd / "short.txt").write_text("too short")
    (cwd / "mine.npz").write_bytes(b"mine")
    before = {path: path.is_dir() or path.read_bytes() for path in cwd.rglob("*")}
    with refused(message, (ValueError, FileNotFoundError)):
        pretrain.pretrain(source, **{"out": "out/w"} | kw)
    assert before == {path: path.is_dir() or path.read_bytes() for path in cwd.rglob("*")}
