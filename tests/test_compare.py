"""Grids of runs: they go on where they stood, and tell it in a table and a picture."""

import csv
import inspect
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_plots import png_size

import minifpt
from minifpt import cli, tasks, training
from minifpt.experiments import compare, tables
from minifpt.files.runs import COLUMNS
from minifpt.trunks import names as trunks
from minifpt.trunks.names import TrunkSpec
from studies.grids import read_rows

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 11}
SMALL = {"steps": 4, "batch_size": 2, "test_examples": 8}


@pytest.fixture
def model(tmp_path):
    """The path of a weight file."""
    path = tmp_path / "minigpt-tiny.npz"
    minifpt.GPT2(minifpt.GPT2Config(**TINY, dropout=0.3), seed=3).save(path)
    return str(path)


@pytest.fixture
def tiny(monkeypatch):
    """``random`` is tiny, too."""
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)


@pytest.fixture
def runs(monkeypatch):
    """The (task, seed, steps) of each run that made any steps."""
    calls, steps, train, step = [], [], training.train, training.step

    def stepping(*args, **kw):
        steps.append(1)
        return step(*args, **kw)

    def recorded(model, task, **kw):
        steps.clear()
        try:
            return train(model, task, **kw)
        finally:
            calls.extend([(task.name, kw["seed"], len(steps))] if steps else [])
    monkeypatch.setattr("minifpt.experiments.runs.train", recorded)
    monkeypatch.setattr(training, "step", stepping)
    return calls


def grid(out, names=("bit-xor",), models=("random",), seeds=range(2), **kw):
    return full_grid(out, names, models, seeds, **kw).results


def full_grid(out, names=("bit-xor",), models=("random",), seeds=range(2), **kw):
    return compare.grid(out, list(names), list(models), seeds,
                            **{"progress": False, "options": SMALL} | kw)


def make_trunk(text, seed=0, dropout=None, dtype=np.float32):
    return minifpt.trunks.get(text, seed, dropout, dtype)


def history(*accuracies):
    return minifpt.History(dict.fromkeys(COLUMNS) | {"step": i + 1, "test_accuracy": a,
                                                   "train_accuracy": 0.25, "test_loss": 0.1}
                           for i, a in enumerate(accuracies))


# ------------------------------------------------------------------------------ trunks


OWN = """
import numpy as np
from minifpt import GPT2, GPT2Config

def small(seed=0, dropout=0.25, dtype=np.float32):
    return GPT2(GPT2Config(1, 2, 8, 64, 11, dropout), seed=seed + 100, dtype=dtype)

def plain():
    return small()

def any_options(**options):
    return small(**options)

class Trunk(GPT2):
    def __init__(self, seed):
        super().__init__(GPT2Config(1, 2, 8, 64, 11), seed)

def no_trunk():
    return 3

number = 5
"""


@pytest.fixture
def own(tmp_path):
    """The path of a file of the user's own."""
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path / "mine.py"


def weights_of(trunk):
    return {name: p.data for name, p in trunk.named_parameters()}


# What --model takes: kind, label, what the folder begins with.
@pytest.mark.parametrize("text, kind, label, folder", [
    ("minigpt-language", "weights", "language", "minigpt-language"),
    ("some/where/minigpt-bits.npz", "weights", "bits", "some-where-minigpt-bits.npz-"),
    ("../x", "weights", "x", "x-"), ("distilgpt2", "weights", "distilgpt2", "distilgpt2"),
    ("random", "random", "random", "random"),
    ("random@gpt2", "random", "random (0.02)", "random-gpt2-"),
    ("random:gpt2@gpt2", "random", "random (gpt2, 0.02)", "random-gpt2-gpt2-"),
    ("random:minigpt", "random", "random", "random-minigpt-"),
    ("random:gpt2", "random", "random (gpt2)", "random-gpt2-"),
    ("statistics:minigpt-language", "statistics", "statistics", "statistics-minigpt-language-"),
    ("mine.py:small", "own", "small", "mine.py-small-"),
    ("a/b.py:Trunk", "own", "Trunk", "a-b.py-Trunk-"),
    ("minigpt-language+attn=random", "mixed", "language + attn of random",
     "minigpt-language+attn=random"),
    ("minigpt-language+attn,h.0.*=statistics:minigpt-language", "mixed",
     "language + attn,h.0.* of statistics", "minigpt-language+attn,h.0.-=statistics-minigpt-l"),
    ("mine.py:small+mlp=a.py:f+ln=random", "mixed", "small + mlp of f + ln of random",
     "mine.py-small+mlp=a.py-f+ln=random-")])
def test_a_model_has_a_kind_a_label_and_a_folder(text, kind, label, folder):
    spec = TrunkSpec.parse(text)
    assert (spec.text, spec.kind, spec.label) == (text, kind, label)
    assert spec.folder.startswith(folder) and (spec.folder == folder) == (spec.folder == text)
    assert TrunkSpec.parse(spec) is spec and TrunkSpec.parse(text) == spec


@pytest.mark.parametrize("name", ["a+attn=b.npz", "a+b.npz", "a,qk=60.npz", "a.py:b-c.npz"])
def test_a_file_that_is_there_is_weights_whatever_its_name(tmp_path, name):
    path = tmp_path / name
    path.touch()
    spec = TrunkSpec.parse(path)
    assert (spec.kind, spec.name) == ("weights", str(path))


def test_each_model_has_its_own_folder():
    """A run's folder is known by its model: no two may share one."""
    names = [f"{base}+{mask}={other}" for base in ("a/x.npz", "random")
             for mask in ("attn", "h.0.*", "h.0.-") for other in ("b/x.npz", "statistics:x")]
    names += ["a/x.npz", "b/x.npz", "a-x.npz", "x.npz", "x", "random", "random:minigpt",
              "random:gpt2", "random@gpt2", "statistics:x", "statistics-x", ".x", "-x", "../x",
              "../../x", "a.py:f", "a.py:g", "gpt-2.5", "gpt-2.7",
              "./w.npz", "statistics:./w.npz", "a/w", "a-w"]
    folders = [TrunkSpec.parse(name).folder for name in names]
    assert len(set(folders)) == len(names) and not set("/:*") & set("".join(folders))
    assert not any(folder.startswith((".", "-")) for folder in folders)


def test_a_random_trunk_takes_the_seed(tiny):
    a, b, c = (make_trunk("random", seed=s) for s in (0, 0, 1))
    assert (a.config.n_layer, a.config.n_embd, a.config.dropout) == (1, 8, 0.1)
    np.testing.assert_array_equal(a.wpe.weight.data, b.wpe.weight.data)
    assert (a.wpe.weight.data != c.wpe.weight.data).all()


def test_statistics_keep_mean_and_spread_of_each_matrix(model):
    ours, a, b, c = (make_trunk(text, seed=seed) for text, seed in (
        (model, 0), (f"statistics:{model}", 0), (f"statistics:{model}", 0),
        (f"statistics:{model}", 1)))
    assert a.config == ours.config
    np.testing.assert_equal(weights_of(a), weights_of(b))
    for name, p in weights_of(ours).items():
        draws = weights_of(a)[name]
        if np.ptp(p) == 0:                                # a scale of 1, a bias of 0
            np.testing.assert_array_equal(draws, p)
            continue
        assert (draws != p).all() and (draws != weights_of(c)[name]).all()
        error = 5 * p.std() / np.sqrt(p.size)
        assert abs(draws.mean() - p.mean()) < error and abs(draws.std() - p.std()) < error, name


def test_a_mixed_trunk_takes_its_parts_from_both(tiny, model):
    ours, theirs = make_trunk(model), make_trunk("random", seed=5)
    mixed = make_trunk(f"{model}+attn,wpe.*=random", seed=5)
    for (name, p), a, b in zip(mixed.named_parameters(), ours.parameters(), theirs.parameters(),
                               strict=True):
        swapped = ".attn." in name or name == "wpe.weight"
        np.testing.assert_array_equal(p.data, (b if swapped else a).data, name)
    twice = make_trunk(f"random+attn={model}+ln=statistics:{model}", seed=5)
    np.testing.assert_array_equal(twice.h[0].attn.c_attn.weight.data,
                                  ours.h[0].attn.c_attn.weight.data)
    np.testing.assert_array_equal(twice.h[0].mlp.c_fc.weight.data, theirs.h[0].mlp.c_fc.weight.data)
    keys = make_trunk(f"{model}+mlp,*.c_attn.*.keys=random", seed=5).h[0].attn.c_attn.weight.data
    parts = zip(*(np.split(h.attn.c_attn.weight.data, 3, axis=1) for h in (ours.h[0], theirs.h[0])),
                strict=True)
    np.testing.assert_array_equal(keys, np.hstack([b if i == 1 else a for i, (a, b) in
                                                   enumerate(parts)]))


def test_a_trunk_of_the_user_s_own_takes_the_options_that_it_has(own):
    trunk = make_trunk(f"{own}:small", seed=3, dtype=np.float64)
    assert trunk.config.dropout == 0.25 and trunk.dtype == np.float64
    np.testing.assert_equal(weights_of(trunk), weights_of(minifpt.GPT2(
        trunk.config, seed=103, dtype=np.float64)))
    assert make_trunk(f"{own}:small", dropout=0.5).config.dropout == 0.5
    assert make_trunk(f"{own}:any_options", dropout=0.5).config.dropout == 0.5
    # A function gets only the arguments that it takes.
    assert make_trunk(f"{own}:plain", seed=3, dropout=0.5).config.dropout == 0.25
    np.testing.assert_equal(weights_of(make_trunk(f"{own}:Trunk", seed=4)), weights_of(
        minifpt.GPT2(make_trunk(f"{own}:Trunk").config, seed=4)))


@pytest.mark.parametrize("shape, channels", [("6x4x128", 128), ("gpt2", 768), ("bert:2x2x32", 32)])
def test_random_is_drawn_as_the_paper_draws_it_for_the_width(shape, channels):
    paper, gpt2, same = (minifpt.trunks.config_for(f"random:{shape}{end}")
                         for end in ("", "@gpt2", "@0.55"))
    assert np.isclose(paper.initializer_range, 0.02 * (768 / channels) ** 0.5)
    assert not paper.scaled_residual_init
    assert gpt2.initializer_range == 0.02 and gpt2.scaled_residual_init
    assert np.isclose(same.initializer_range, paper.initializer_range, rtol=0.01)


def test_only_a_random_trunk_has_a_config_without_being_made(model, own):
    assert minifpt.trunks.config_for("random:gpt2-xl", 0.2).n_embd == 1600
    for text in (model, f"statistics:{model}", f"{model}+attn=random", f"{own}:small"):
        assert minifpt.trunks.config_for(text) is None


BAD_MODELS = [
    ("random:gpt3", ValueError, "--model random:gpt3: no shape 'gpt3', expected one of gpt2, "),
    ("random:2x4/2x16", ValueError, "--model random:2x4/2x16: no shape '2x4/2x16', expected"),
    ("nothing-here", FileNotFoundError, "no weights 'nothing-here'"),
    ("", FileNotFoundError, "no weights ''|holds none of"),
    ("Random", FileNotFoundError, "no weights 'Random'"),
    ("statistics:", ValueError, "expected statistics:NAME"),
    ("statistics:nothing", FileNotFoundError, "no weights 'nothing'"),
    ("random+attn", ValueError, "--model: '\\+attn', expected \\+MASK=MODEL"),
    ("random+=random", ValueError, "--model: '\\+=random', expected \\+MASK=MODEL"),
    ("random+attn=", ValueError, "--model: '\\+attn=', expected \\+MASK=MODEL"),
    ("+attn=random", FileNotFoundError, "no weights ''|holds none of"),
    ("random+attn=Random", FileNotFoundError, "no weights 'Random'"),
    ("random+nothing=random", ValueError, "'nothing' is neither"),
    ("random+h.9.*=random", ValueError, "the pattern 'h.9.\\*' matches no parameter"),
    ("random+input,output=random", ValueError, "the mask 'input,output' names no parameter"),
    ("random+mlp=random:1x1x16", ValueError, "different shapes, see h.0.mlp.c_fc.weight"),
    ("random:1x1x8+attn=random:1x2x8", ValueError, "the trunks have n_head 1 and 2, so their attn"),
    ("nowhere.py:f", FileNotFoundError, "nowhere.py:f: there is no file nowhere.py"),
    ("mine.py:nothing", ValueError, "mine.py: it has no function or class 'nothing'"),
    ("mine.py:number", ValueError, "mine.py: it has no function or class 'number'"),
    ("mine.py:no_trunk", ValueError, "not a trunk: it has no config, dtype, forward"),
    ("broken.py:f", ValueError, "broken.py, line 1: SyntaxError: "),
    ("raises.py:f", ValueError, "raises.py, line 1: ZeroDivisionError: division")]


def test_an_unknown_model_is_refused_in_one_line(tiny, own, monkeypatch):
    monkeypatch.chdir(own.parent)
    (own.parent / "broken.py").write_text("def f(:\n    pass\n")
    (own.parent / "raises.py").write_text("f = 1 / 0\n")
    for name, error, message in BAD_MODELS:
        with refused(message, error):
            make_trunk(name)


# -------------------------------------------------------------------------------- runs


def test_a_grid_runs_each_once(tiny, model, tmp_path, runs):
    names = ["bit-xor", "bit-memory"]
    results = grid(tmp_path / "g", names, [model, "random"])
    assert runs == [(t, s, 4) for t in names for _ in (model, "random") for s in (0, 1)]
    assert list(results) == names and list(results["bit-xor"]) == ["tiny", "random"]
    assert all(len(h) == 2 for t in results.values() for h in t.values())
    for task in names:
        for folder in (TrunkSpec.parse(model).folder, "random"):
            for seed in "01":
                assert (tmp_path / "g" / task / folder / seed / "checkpoint.npz").exists()
    runs.clear()
    assert grid(tmp_path / "g", names, [model, "random"]) == results and not runs
    grid(tmp_path / "g", names[:1], ["random"], range(3))         # one seed more
    assert runs == [("bit-xor", 2, 4)]


BAD_GRIDS = [
    ({"options": SMALL | {"steps": 7}}, ValueError, "the run has steps = 4, not 7: give 4 to resu"),
    ({"options": SMALL | {"lr": 1e-2}}, ValueError, "lr = 0.003, not 0.01"),
    ({"options": {"stepz": 3}}, ValueError, r"no setting 'stepz' \(did you mean 'steps'\?\): exp"),
    ({"names": [compare.Column("bit-memory"), compare.Column("bit-xor", {}, {"optimizer": "sgd"})]},
     ValueError, "a run has no setting 'optimizer': expected one of batch_size, clip, dropout, "),
    ({"names": [compare.Column("bit-memory"), compare.Column("bit-xor", {}, {"lr": "fast"})]},
     ValueError, "lr is 'fast', expected a positive number"),
    ({"options": {"dropout": 1.5}}, ValueError, "dropout is 1.5, expected"),
    ({"seeds": [2, -1]}, ValueError, "seed must be a whole number, at least 0, got -1"),
    ({"models": ["random", compare.Arm("random", adapt="lora:rang=4")]}, ValueError, "rang"),
    ({"models": ["random", compare.Arm("random", start="alined")]}, ValueError, "is 'alined'"),
    ({"models": ["random:1x1x4", "random"], "options": SMALL | {"steps": 7}}, ValueError,
     "the run has steps = 4, not 7"),
    ({"models": ["w.npz"]}, ValueError, "other frozen weights: restore it"),
    ({"models": ["random", "nope"]}, FileNotFoundError, "no weights 'nope'"),
    ({"models": [compare.Arm("random", "attn,mlp,pos")], "task_options": {"n": 200}}, ValueError,
     "400 tokens, the trunk has 64 positions: "),
    ({"models": [compare.Arm("random"), compare.Arm("random", rates=(1e-3,))]}, ValueError,
     "compare: two arms are the same: random, random"),
    ({"models": [compare.Arm("random"), compare.Arm("random", "attn,mlp")]}, ValueError,
     "compare: two arms are the same: "),
    ({"all_rates": True}, ValueError, "all_rates needs rates"),
    ({"rates": [1e-3], "choices": 2.5}, ValueError, "the number of validation seeds"),
    ({"models": [compare.Arm("random", rates=(1e-3, np.nan))]}, ValueError, "expected a positive"),
    ({"rates": [1e-3, 0]}, ValueError, "expected a positive number"),
    ({"names": ["bit-xor", "nope"]}, ValueError, "no task 'nope'"),
    ({"names": ["bit-xor", "mnist"], "task_options": {"data": "nowhere"}}, FileNotFoundError,
     "nowhere does not"),
    ({"names": ["bit-xor", "digits"], "task_options": {"n": 3, "m": 4}}, ValueError,
     "none of the tasks has an option 'm'"),
    ({"names": [compare.Column("bit-xor", {"n": n}) for n in (2, 3)]}, ValueError,
     "two tasks have one name: bit-xor, bit-xor"),
    ({"names": [compare.Column("bit-xor", title="choice")]}, ValueError, "has the name choice"),
    ({"task_options": {"n": 0}}, ValueError, "n must be a whole number, at least 1, got 0"),
    ({"task_options": {"n": "five"}}, ValueError, "bit-xor: n must be a whole number, got 'five'"),
    ({"names": []}, ValueError, "at least one task"),
    ({"models": []}, ValueError, "at least one"), ({"seeds": range(0)}, ValueError, "seeds must")]


def test_an_impossible_grid_is_refused_and_changes_nothing(tiny, cwd, runs):
    minifpt.GPT2(minifpt.GPT2Config(**TINY), seed=0).save("w.npz")
    grid("g", models=["random", "w.npz"], seeds=[0])
    Path("w.npz").unlink()
    minifpt.GPT2(minifpt.GPT2Config(**TINY), seed=1).save("w.npz")
    before = {p: p.read_bytes() for p in Path("g").rglob("*") if p.is_file()}
    runs.clear()
    for kw, error, message in BAD_GRIDS:
        with refused(message, error):
            grid("g", **{"seeds": [0]} | kw)
    assert not runs and before == {p: p.read_bytes() for p in Path("g").rglob("*") if p.is_file()}


def test_arms_with_one_label_and_repeated_ones_are_told_apart(tiny, tmp_path, runs):
    """Each arm has runs, a folder and a row in the table of its own."""
    paths = [str(tmp_path / folder / "minigpt-x.npz") for folder in "ab"]
    for seed, path in enumerate(paths):
        minifpt.GPT2(minifpt.GPT2Config(**TINY), seed=seed).save(path)
    arms = [*map(compare.Arm, paths), *(compare.Arm("random", adapt=adapt, freeze="attn,mlp,ln")
                                        for adapt in (None, "bitfit", "lora:rank=1"))]
    results = grid(tmp_path / "g", ["bit-xor"] * 2, arms, [0, 0])["bit-xor"]
    assert len(runs) == 5 and [*results] == [
        *paths, "random, frozen: ln,attn,mlp", "random, bitfit, frozen: ln,attn,mlp",
        "random, lora:rank=1, frozen: ln,attn,mlp"]
    assert len({history[-1]["train_loss"] for history, in results.values()}) == 5
    assert tables.table(grid_of({"bit-xor": results})).count("1 seed |") == 5
    assert grid(tmp_path / "g", models=["random"] * 2, seeds=[0, 1, 1])["bit-xor"].keys() == {
        "random"}
    assert [seed for _, seed, _ in runs[5:]] == [0, 1]


# ------------------------------------------------------------------- table and picture


def grid_of(results, sweeps=None, rates=None, seeds=(0,)):
    return tables.Grid(results, sweeps or {}, rates or {}, list(seeds))


def test_the_table_has_mean_range_and_number_of_seeds():
    results = {"bit-xor": {"language": [history(0.5, 1.0), history(0.98)],
                           "random": [history(0.5)]},
               "mnist": {"language": [history(0.9341)]}}
    assert tables.table(grid_of(results)).splitlines() == [
        "| trunk | bit XOR | MNIST |", "|---|---|---|",
        "| language | 99.0 (98.0 to 100.0), 2 seeds | 93.4, 1 seed |",
        "| random | 50.0, 1 seed |  |"]


DRAWN = """
from minifpt.tasks import BitXOR

class Drawn(BitXOR):
    name, redrawn = "drawn", "draw"

    def __init__(self, n=2, draw=0):
        super().__init__(n)
        self.chance, self.options = 0.5 + 0.25 / n, {"n": n, "draw": draw}
"""


def write_drawn(folder):
    """Write a task of the user's own with an option that a grid sets to the seed."""
    (folder / "drawn.py").write_text(DRAWN)
    return folder / "drawn.py"


def test_compare_writes_a_table_and_a_picture_with_the_chance_of_its_options(tiny, tmp_path, model,
                                                                             monkeypatch):
    levels = []
    monkeypatch.setattr(tables.plots, "mark_level", lambda ax, level, name: levels.append(level))
    task = f"{write_drawn(tmp_path)}:Drawn"
    text = str(minifpt.compare(task, [model, "random"], seeds=2, n="1", out=tmp_path / "g",
                               progress=False, **SMALL))
    assert (tmp_path / "g" / "table.md").read_text() == text + "\n"
    assert "| tiny | " in text and "| random | " in text and text.count("2 seeds") == 2
    assert png_size(tmp_path / "g" / "curves.png")
    assert 0.75 in levels and 0.5 not in levels
    last = [minifpt.History.load(tmp_path / "g" / "drawn" / "random" / s / "metrics.csv")[-1]
            ["test_accuracy"] for s in "01"]
    low, mean, high = (f"{100 * f(last):.1f}" for f in (min, np.mean, max))
    assert f"| random | {mean}" in text and (low == high or f"({low} to {high})" in text)


def test_a_file_of_runs_keeps_labels_and_every_digit_of_a_rate(tmp_path):
    grid = grid_of({"bit-xor": {"a|b": [history(0.9)]}}, {}, {"bit-xor": {"a|b": 0.0123456789}})
    (tmp_path / "runs.csv").write_text(tables.rows(grid))
    again = read_rows(tmp_path / "runs.csv")
    assert again.rates == grid.rates
    assert tables.table(again).splitlines()[2] == r"| a\|b | 90.0, 1 seed |"


# ------------------------------------------------------------------ rates, and many at once


def test_each_trunk_takes_the_rate_that_is_best_on_validation_draws(tiny, tmp_path, monkeypatch):
    """Of three rates one is absurd and one hardly moves; the tests see none of it."""
    calls = []
    run = compare.run

    def noted(task, model, out, **kw):
        calls.append((isinstance(task, compare.Validation), kw["seed"], kw["lr"]))
        return run(task, model, out, **kw)
    monkeypatch.setattr(compare, "run", noted)
    options = dict(steps=20, batch_size=8, eval_every=10, test_examples=64)
    result = full_grid(tmp_path / "g", seeds=[0, 1], rates=[1e-9, 2e-2, 1e3], choices=2,
                       options=options)
    (task, label, rates), = [(t, m, r) for t, ms in result.sweeps.items() for m, r in ms.items()]
    ends = {rate: np.mean([h[-1]["test_accuracy"] for h in hs]) for rate, hs in rates.items()}
    best = result.rates[task][label]
    assert set(rates) == {1e-9, 2e-2, 1e3} and all(len(hs) == 2 for hs in rates.values())
    assert ends[best] == max(ends.values())
    assert [s for s in calls if s[0]] == [(True, tables.FIRST_VALIDATION_SEED + i, r)
                                          for r in rates for i in (0, 1)]
    assert [s for s in calls if not s[0]] == [(False, i, best) for i in (0, 1)]
    assert len(result.results[task][label]) == 2
    calls.clear()                                         # again: read, and the same
    assert full_grid(tmp_path / "g", seeds=[0, 1], rates=[1e-9, 2e-2, 1e3], choices=2,
                     options=options) == result


def test_all_rates_are_run_with_all_seeds_masks_and_adapters(tiny, tmp_path, capsys):
    assert cli.main(["compare", "bit-xor", "--models", "random", "random:1x1x4", "--adapt", "none",
                     "lora:rank=1", "--freeze", "fpt", "only:ln", "--rates", 1e-3, 1e-2,
                     "--all-rates", "--steps", 1, "--seeds", 2, "--out", tmp_path / "out"]) == 0
    text = capsys.readouterr().out
    for arm in ("random, lr 0.001", "random (1x1x4), lora:rank=1, lr 0.001",
                "random (1x1x4), lora:rank=1, trained: ln, lr 0.01"):
        assert f"\n| {arm} |" in text
    assert not (tmp_path / "out" / "choice").exists() and "edge" not in text


def test_compare_in_python_does_what_the_command_does(tiny, cwd):
    """The same runs, and their rows."""
    assert cli.main(["compare", "bit-xor", "bit-memory", "--models", "random:1x1x4", "--freeze",
                     "fpt", "full", "--adapt", "none", "bitfit", "--start", "aligned",
                     "--rates", 1e-2, "--choices", 1, "--seeds", 1, "--first-seed", 3,
                     "--steps", 2, "--batch-size", 2, "--schedule", "cosine", "--dropout", 0.1,
                     "--n", 2, "--strings", 2, "--out", "a"]) == 0
    rows = minifpt.compare(
        ["bit-xor", "bit-memory"], "random:1x1x4", freeze=["fpt", "full"], adapt=["none", "bitfit"],
        start="aligned", rates=1e-2, choices=1, seeds=1, first_seed=3, steps=2,
        batch_size=2, schedule="cosine", dropout=0.1, n=2, task_options={"strings": 2}, out="b",
        progress=False)
    a, b = (Path(folder, "runs.csv").read_text() for folder in "ab")
    assert re.sub(r"\ba/(?=bit|choice)", "b/", a) == b
    assert str(rows) + "\n" == Path("b/table.md").read_text()
    written = [*csv.DictReader(b.splitlines())]
    assert len(written) == len(rows) == 2 * 4 * 2
    for row, line in zip(rows, written, strict=True):
        assert [*row] == [*line] == [
            "task", "trunk", "lr", "seed", "choice", "steps", "train_accuracy", "test_accuracy",
            "test_loss", "model", *tables.AXES, "folder", "curve"]
        config = json.loads(Path(row["folder"], "config.json").read_text())
        recipe = config["recipe"]
        for name, value in {
                "task": config["task"], "lr": config["lr"], "seed": config["seed"], "steps": 2,
                "choice": int("choice" in Path(row["folder"]).parts), "model": "random:1x1x4",
                "freeze": {"attn,mlp": "fpt", "full": "full"}[recipe["freeze"]],
                "adapt": recipe["adapt"] or "none", "start": recipe["start"] or "drawn",
                "folder": row["folder"]}.items():
            assert (row[name], line[name]) == (value, str(value)), name
        assert row["curve"] == [(2, row["test_accuracy"])]
    assert minifpt.load(rows[-1]["folder"]).run["options"]["strings"] == 2


def test_help_names_each_option_of_compare_and_what_a_callback_may_use():
    text = inspect.getdoc(minifpt.compare)
    options = {action.dest for action in cli.parser(["compare"])._subparsers._group_actions[0]
               .choices["compare"]._actions if not action.dest.startswith("option:")}
    for name in options - {"help", "traceback", "tasks", "dask"} | {"task_names", "executor"}:
        assert re.search(rf"(?m)^(\w+, )*{name}(, \w+)*( {{2,}}|$)", text), name
    for name in compare.SETTINGS - {"steps", "lr"} | {*compare.tables.AXES}:
        assert re.search(rf"\b{name}\b", text), name
    text = inspect.getdoc(minifpt.train)
    run = training.Run(minifpt.FPT.for_task("bit-xor", "minigpt-tiny"), tasks.get("bit-xor"),
                       training.Settings(steps=1, batch_size=1, lr=1))
    for name in {*vars(run), "seconds()"} - {"since_test", "is_ended", "began"}:
        assert re.search(rf"(?m)^(\w+, )*{re.escape(name)}(, \w+)*  ", text), name
    assert 'run.model.save("folder")' in text and "run.optimizer.lr" in text


@pytest.mark.parametrize("options, message", [
    ({"freez": "fpt"}, r"no.* option 'freez' \(did you mean 'freeze'\?\)"),
    ({"stepz": 3}, r"no.* option 'stepz' \(did you mean 'steps'\?\)"),
    ({"seed": 3}, r"no.* option 'seed' \(did you mean 'seeds'\?\)"),
    ({"bits": 3}, "none of the tasks has an option 'bits'"),
    ({"models": minifpt.GPT2(minifpt.GPT2Config(1, 1, 8))}, "--model: got .*expected a name or a"),
    ({"seeds": [0, 1], "first_seed": 3}, "first_seed is for a number of seeds, got the seeds"),
    ({"executor": 3}, "executor is 3, expected an object with submit"),
    ({"freeze": [["attn", "mlp"]]}, r"freeze: \['attn', 'mlp'\], expected a FreezeMask, or its"),
    ({"seeds": "0 1"}, "seeds must be a whole number, at least 1"),
    ({"lr": 1e-2, "rates": [1e-2]}, "expected lr or rates, not both"),
    ({"choices": 3}, "choices is for rates, among which it chooses"),
    ({"choices": 3, "rates": 1e-2, "all_rates": True}, "choices is for rates"),
    ({"freeze": ["fpt", "atn"]}, r"'atn' \(did you mean 'attn'\?\)")])
def test_compare_refuses_a_wrong_option_before_any_run(options, message, tmp_path):
    with refused(message):
        minifpt.compare("bit-xor", **{"models": "random:1x1x4", "out": tmp_path / "g",
                                      "steps": 1} | options)
    assert not [*tmp_path.iterdir()]


def test_compare_takes_any_collection(tmp_path):
    rows = minifpt.compare(("bit-xor",), {"random:1x1x4": 0}, n=2, seeds=np.arange(2),
                           rates=np.array([1e-3, 1e-2]), all_rates=True, steps=1, progress=False,
                           freeze=(mask for mask in ("fpt", "full")), out=str(tmp_path))
    assert [(row["freeze"], row["lr"], row["seed"]) for row in rows] == [*itertools.product(
        ("fpt", "full"), (1e-3, 1e-2), (0, 1))]


@pytest.mark.parametrize("best, edge", [(1e-3, True), (1e-2, False), (1e-1, True)])
def test_a_rate_at_the_edge_of_the_sweep_is_marked(best, edge, tmp_path):
    tried = {rate: [history(0.5, 0.9 if rate == best else 0.6)] for rate in (1e-3, 1e-2, 1e-1)}
    result = grid_of({"bit-xor": {"random": [history(0.9)]}}, {"bit-xor": {"random": tried}},
                     {"bit-xor": {"random": best}})
    assert max(tried, key=lambda rate: compare.score(tried[rate])) == best
    assert (f"lr {best:g} (edge)" in tables.table(result)) == edge
    assert f"lr {best:g}" in tables.table(result)
    lines = tables.rows(result).splitlines()
    assert lines[1] == f"bit-xor,random,{best:g},0,0,1,0.250000,0.900000,0.100000,1:0.9000"
    last = 0.9 if best == 1e-3 else 0.6
    assert lines[2].endswith(f",1,2,0.250000,{last:.6f},0.100000,1:0.5000 2:{last:.4f}")
    (tmp_path / "runs.csv").write_text(tables.rows(result))
    again = read_rows(tmp_path / "runs.csv")      # the same table from the file
    assert tables.rows(again) == tables.rows(result) and tables.table(again) == tables.table(result)
    assert len(lines) == 5 and lines[-1].split(",")[3:5] == [str(tables.FIRST_VALIDATION_SEED), "1"]


def test_the_best_rate_has_the_highest_end_then_area_and_no_run_that_diverged():
    """Runs that were made longer have a row more, which counts for nothing."""
    def score(*curves):
        return compare.score([minifpt.History({"step": step, "test_accuracy": accuracy}
                                              for step, accuracy in curve) for curve in curves])
    slow, fast = ((1, 0.5), (2, 0.5), (3, 1.0)), ((1, 0.5), (2, 1.0), (3, 1.0))
    assert score(fast) > score(slow) > score(((3, 0.9),)) > score(fast, ((3, np.nan),))
    longer, other = ((1, 0.5), (2, 1.0), (3, 0.9)), ((1, 0.7), (2, 0.0), (3, 0.9))
    short = (1, 0.6), (3, 0.9)
    assert score(other, short) > score(longer, short)


def test_validation_draws_differ_from_the_test(tmp_path):
    task = tasks.get("typos")
    view = compare.Validation(task)
    x, y = view.test_set()                                # the same for all trunks and seeds
    assert len(x) == 2000 and (view.name, view.options) == (task.name, task.options)
    assert compare.Validation(tasks.get("typos")).test_set()[0].tolist() == x.tolist()
    assert {*x.ravel()} <= {*task.text.bytes["train"], *task.text.bytes["validation"]}
    rng = np.random.default_rng
    np.testing.assert_array_equal(view.batch(rng(0), 4, "test")[0],
                                  task.batch(rng(0), 4, "validation")[0])
    assert not np.array_equal(view.batch(rng(0), 4, "test")[0], task.batch(rng(0), 4, "test")[0])


def test_differences_are_paired_and_carry_an_interval():
    """The seeds differ by much, the arms by 2 points in each seed but the last: so does the
    interval say."""
    runs = {"language": [history(0.2, x) for x in (0.5, 0.7, 0.9, 0.6)],
            "random": [history(0.2, x) for x in (0.48, 0.68, 0.88, 0.60)]}
    line = tables.differences(grid_of({"bit-xor": runs}, {}, {})).splitlines()[2]
    # mean -1.5, deviation 1, t(0.975, 3) = 3.182: half of the interval is 1.59
    assert line == ("| bit XOR | random - language | -1.5 (-3.1 to +0.1) | -0.7 (-1.5 to +0.0) "
                    "| 4 |"), line
    one = {label: histories[:1] for label, histories in runs.items()}
    assert "| -2.0 | -1.0 | 1 |" in tables.differences(grid_of({"bit-xor": one}, {}, {}))
    assert tables.differences(grid_of({"bit-xor": {"random": runs["random"]}}, {}, {})) == ""


def test_a_grid_sets_the_option_that_a_task_redraws_to_the_seed(tmp_path, tiny):
    draws = []
    for options, seeds in ({}, range(2)), ({"draw": "2"}, range(2, 5)):
        out = tmp_path / f"grid{len(options)}"
        minifpt.compare(f"{write_drawn(tmp_path)}:Drawn", "random", seeds=seeds, out=out, steps=2,
                        batch_size=2, progress=False, **options)
        draws += [json.loads(path.read_text())["options"]["draw"]
                  for path in sorted(out.rglob("config.json"))]
    assert draws == [0, 1, 2, 2, 2]
