"""Grids of runs: they go on where they stood, and tell it in a table and a picture."""

import json

import numpy as np
import pytest
from test_data import write_mnist
from test_plots import png_size

import minifpt
from minifpt import experiments, plots, tasks
from minifpt.train import COLUMNS

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 11}
SMALL = {"steps": 4, "batch_size": 2}


@pytest.fixture
def model(tmp_path):
    """The path of a weight file."""
    path = tmp_path / "minigpt-tiny.npz"
    minifpt.GPT2(minifpt.GPT2Config(**TINY, dropout=0.3), seed=3).save(path)
    return str(path)


@pytest.fixture
def tiny(monkeypatch):
    """``random`` is tiny, too."""
    monkeypatch.setitem(experiments.SHAPES, "minigpt", TINY)


@pytest.fixture
def runs(monkeypatch):
    """The (task, seed, resume) of each call of ``train``."""
    seen, train = [], experiments.train

    def recorded(model, task, **kw):
        seen.append((task.name, kw["seed"], kw["resume"]))
        return train(model, task, **kw)
    monkeypatch.setattr(experiments, "train", recorded)
    return seen


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Runs draw no curves, which take longer than they do."""
    monkeypatch.setattr(plots, "curves", lambda histories, path: path.write_bytes(b"quick"))


def grid(out, names=("bit-xor",), models=("random",), seeds=range(2), **kw):
    return experiments.grid(out, list(names), list(models), seeds,
                            **{"progress": False, "options": SMALL} | kw)


def history(*accuracies):
    return minifpt.History(dict.fromkeys(COLUMNS) | {"step": i + 1, "test_accuracy": a}
                           for i, a in enumerate(accuracies))


# ------------------------------------------------------------------------------ trunks


def test_make_trunk_random_takes_the_seed(tiny):
    a, b, c = (experiments.make_trunk("random", seed=s) for s in (0, 0, 1))
    assert (a.config.n_layer, a.config.n_embd, a.config.dropout) == (1, 8, 0.1)
    np.testing.assert_array_equal(a.wpe.weight.data, b.wpe.weight.data)
    assert (a.wpe.weight.data != c.wpe.weight.data).all()


def test_make_trunk_of_a_named_shape(monkeypatch):
    monkeypatch.setitem(experiments.SHAPES, "gpt2", TINY | {"n_layer": 2})
    assert len(experiments.make_trunk("random:gpt2").h) == 2
    assert {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "minigpt"} == set(experiments.SHAPES)


def test_make_trunk_with_parts_of_another(tiny, model):
    ours, theirs = experiments.make_trunk(model), experiments.make_trunk("random", seed=5)
    mixed = experiments.make_trunk(f"{model}+attn,wpe.*=random", seed=5)
    for (name, p), a, b in zip(mixed.named_parameters(), ours.parameters(), theirs.parameters(),
                               strict=True):
        swapped = ".attn." in name or name == "wpe.weight"
        np.testing.assert_array_equal(p.data, (b if swapped else a).data, name)
    twice = experiments.make_trunk(f"random+attn={model}+ln=statistics:{model}", seed=5)
    np.testing.assert_array_equal(twice.h[0].attn.c_attn.weight.data,
                                  ours.h[0].attn.c_attn.weight.data)
    np.testing.assert_array_equal(twice.h[0].mlp.c_fc.weight.data, theirs.h[0].mlp.c_fc.weight.data)


def test_parts_of_another_shape(model):
    with pytest.raises(ValueError, match="different shapes, see h.0.mlp.c_fc.weight"):
        experiments.make_trunk(f"random+mlp={model}")


def test_folder_names_of_mixed_trunks_differ():
    names = [f"{base}+{mask}={other}" for base in ("a/x.npz", "random")
             for mask in ("attn", "h.0.*") for other in ("b/x.npz", "statistics:x")]
    names += ["a/x.npz", "random", "statistics:x"]
    folders = [experiments.folder_name(name) for name in names]
    assert len(set(folders)) == len(names) and not set("/:*") & set("".join(folders))
    assert folders[-3:] == ["x", "random", "statistics-x"]


def test_make_trunk_from_a_file(model):
    trunk = experiments.make_trunk(model, dtype=np.float64)
    assert trunk.config.dropout == 0.3 and trunk.dtype == np.float64
    assert experiments.make_trunk(model, dropout=0.0).config.dropout == 0.0
    assert experiments.make_trunk("random", dropout=0.2).config.dropout == 0.2


@pytest.mark.parametrize("name, error, message", [
    ("random:gpt3", ValueError, "no shape 'gpt3', expected one of gpt2, "),
    ("nothing-here", FileNotFoundError, "no weights 'nothing-here'"),
    ("Random", FileNotFoundError, "no weights 'Random'"),
    ("random+attn", ValueError, "--model: '\\+attn', expected \\+MASK=MODEL"),
    ("random+attn=Random", FileNotFoundError, "no weights 'Random'"),
    ("random+nothing=random", ValueError, "'nothing' is neither")])
def test_make_trunk_errors(name, error, message):
    with pytest.raises(error, match=message) as raised:
        experiments.make_trunk(name)
    assert "\n" not in str(raised.value)


# -------------------------------------------------------------------------------- runs


def test_run_builds_the_paper_s_model(model, tmp_path):
    task = tasks.get("bit-xor", n=3)
    fpt, _ = experiments.run(task, model, tmp_path / "run", seed=5, dropout=0.0, progress=False,
                             **SMALL)
    assert {n for n, p in fpt.named_parameters() if not p.trainable} == {
        n for n, _ in fpt.named_parameters() if ".attn." in n or ".mlp." in n}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["model"], config["freeze"], config["dropout"], config["seed"]) == (
        model, "attn,mlp", 0.0, 5)
    trunk = minifpt.GPT2.from_pretrained(model)
    np.testing.assert_array_equal(fpt.trunk.h[0].mlp.c_fc.weight.data,
                                  trunk.h[0].mlp.c_fc.weight.data)


@pytest.mark.parametrize("kw", [{"freeze": "nonsense"}, {"freeze": "h.7.*"}, {"dropout": 1.0}])
def test_run_errors_write_nothing(model, tmp_path, kw):
    with pytest.raises(ValueError):
        experiments.run(tasks.get("bit-xor"), model, tmp_path / "run", **kw, **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_grid_runs_each_once(tiny, model, tmp_path, runs):
    names = ["bit-xor", "bit-memory"]
    results = grid(tmp_path / "g", names, [model, "random"])
    assert runs == [(t, s, False) for t in names for _ in (model, "random") for s in (0, 1)]
    assert list(results) == names and list(results["bit-xor"]) == [model, "random"]
    assert all(len(h) == 2 for t in results.values() for h in t.values())
    for task in names:
        for folder in ("minigpt-tiny", "random"):
            for seed in "01":
                assert (tmp_path / "g" / task / folder / seed / "checkpoint.npz").exists()
    runs.clear()
    assert grid(tmp_path / "g", names, [model, "random"]) == results and not runs
    grid(tmp_path / "g", names[:1], ["random"], range(3))         # one seed more
    assert runs == [("bit-xor", 2, False)]


def test_a_stopped_grid_goes_on(tiny, tmp_path, runs, monkeypatch):
    whole = grid(tmp_path / "whole", options=SMALL | {"steps": 6})
    runs.clear()
    asked, draw = [], tasks.BitXOR.draw

    def stopping(self, rng, size, split):
        asked.append(split)
        if (size, asked.count("train")) == (2, 11):       # in the second run
            raise KeyboardInterrupt
        return draw(self, rng, size, split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.BitXOR, "draw", stopping)
        with pytest.raises(KeyboardInterrupt):
            grid(tmp_path / "g", options=SMALL | {"steps": 6})
    assert runs == [("bit-xor", 0, False), ("bit-xor", 1, False)]
    runs.clear()
    results = grid(tmp_path / "g", options=SMALL | {"steps": 6})
    assert runs == [("bit-xor", 1, True)]
    for a, b in zip(whole["bit-xor"]["random"], results["bit-xor"]["random"], strict=True):
        np.testing.assert_array_equal(a["test_loss"], b["test_loss"])


def test_longer_runs_go_on(tiny, tmp_path, runs):
    grid(tmp_path / "g")
    results = grid(tmp_path / "g", options=SMALL | {"steps": 7})
    assert [resume for _, _, resume in runs] == [False, False, True, True]
    assert all(h[-1]["step"] == 7 for h in results["bit-xor"]["random"])


def test_other_settings_are_not_answered_from_old_runs(tiny, tmp_path):
    grid(tmp_path / "g")
    with pytest.raises(ValueError, match="lr = 0.003, not 0.01"):
        grid(tmp_path / "g", options=SMALL | {"lr": 1e-2})


@pytest.mark.parametrize("kw, error, message", [
    ({"models": ["random", "nope"]}, FileNotFoundError, "no weights 'nope'"),
    ({"models": ["random", "random:gpt9"]}, ValueError, "no shape 'gpt9'"),
    ({"names": ["bit-xor", "nope"]}, ValueError, "no task 'nope'"),
    ({"names": ["bit-xor", "mnist"], "data": "nowhere"}, FileNotFoundError, "nowhere does not"),
    ({"names": []}, ValueError, "at least one task"),
    ({"models": []}, ValueError, "at least one"), ({"seeds": range(0)}, ValueError, "one seed")])
def test_a_grid_s_errors_come_before_its_first_run(tiny, tmp_path, runs, kw, error, message):
    with pytest.raises(error, match=message):
        grid(tmp_path / "g", **kw)
    assert not runs and not (tmp_path / "g").exists()


def test_mnist_in_a_grid(tiny, tmp_path):
    write_mnist(tmp_path / "data")
    results = grid(tmp_path / "g", ["mnist"], seeds=[0], data=tmp_path / "data")
    assert 10 * results["mnist"]["random"][0][-1]["test_accuracy"] % 1 < 1e-9     # 10 digits


# ------------------------------------------------------------------- table and picture


def test_table():
    results = {"bit-xor": {"minigpt-language": [history(0.5, 1.0), history(0.98)],
                           "random": [history(0.5)]},
               "mnist": {"minigpt-language": [history(0.9341)]}}
    assert experiments.table(results).splitlines() == [
        "| trunk | bit XOR | MNIST |", "|---|---|---|",
        "| language | 99.0 (98.0 to 100.0), 2 seeds | 93.4 (93.4 to 93.4), 1 seed |",
        "| random | 50.0 (50.0 to 50.0), 1 seed |  |"]


@pytest.mark.parametrize("model, label", [
    ("minigpt-language", "language"), ("some/where/minigpt-bits.npz", "bits"),
    ("random", "random"), ("random:gpt2", "random (gpt2)"),
    ("statistics:minigpt-language", "statistics"),
    ("minigpt-language+attn,h.0.*=statistics:minigpt-language",
     "language + attn,h.0.* of statistics")])
def test_label(model, label):
    assert experiments.label(model) == label


def test_picture(tmp_path):
    runs = [history(0.5, 0.7, 0.9), history(0.5, 0.6, 0.8)]
    results = {"bit-xor": {"minigpt-language": runs, "random:gpt2": runs[:1]},
               "something": {"x": runs}}
    experiments.picture(results, tmp_path / "p.png")
    width, height = png_size(tmp_path / "p.png")
    assert width == 2 * 5.2 * 120 and height == 3.6 * 120


def test_compare(tiny, tmp_path, model):
    text = experiments.compare(tmp_path / "g", ["bit-xor"], [model, "random"], range(2),
                               options=SMALL, progress=False)
    assert (tmp_path / "g" / "table.md").read_text() == text + "\n"
    assert "| tiny | " in text and "| random | " in text and text.count("2 seeds") == 2
    assert png_size(tmp_path / "g" / "curves.png")
    last = [minifpt.History.load(tmp_path / "g" / "bit-xor" / "random" / s / "metrics.csv")[-1]
            ["test_accuracy"] for s in "01"]
    assert f"{100 * np.mean(last):.1f} ({100 * min(last):.1f} to {100 * max(last):.1f})" in text


def test_every_task_of_the_command_line_has_a_label():
    assert set(experiments.LABELS) == set(tasks.names()) - {"text"}
