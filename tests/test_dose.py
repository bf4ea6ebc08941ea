"""benchmarks/dose.py and benchmarks/tables.py: our own studies, at a tiny scale."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import refused
from test_plots import png_size

from benchmarks import dose
from benchmarks import tables as studies
from benchmarks.grids import read_rows
from minifpt import tasks
from minifpt.experiments import compare, job, pretrain, reproduce, tables
from minifpt.trunks import names as trunks

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 256, "vocab_size": 256}


@pytest.fixture
def novels(tmp_path, monkeypatch):
    """A folder with a text; everything else is tiny."""
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    monkeypatch.setattr(pretrain, "SHAPE", TINY)
    monkeypatch.setitem(pretrain.TASKS, "vision", lambda data=None: tasks.BitMemory())
    columns = (compare.Column("bit-memory", {}, {"steps": 2}, "bit-memory"),
               compare.Column("recall", {"tokens": 9}, {"steps": 2}, "recall-9"))
    for name, doses in ("dose", (1, 2)), ("sources", (2,)), ("masks", (2,)):
        monkeypatch.setitem(dose.EXPERIMENTS, name, replace(
            dose.EXPERIMENTS[name], doses=doses, tasks=columns))
    monkeypatch.setattr(dose, "SCALES", {"mini": {"shape": "1x2x8", "tokens": 40}})
    monkeypatch.setattr(dose, "RATES", (1e-2,))
    monkeypatch.setattr(job, "VALIDATION_EXAMPLES", 20)
    (tmp_path / "novels").mkdir()
    text = np.random.default_rng(0).choice(list("the quick fox\n"), 3000)
    (tmp_path / "novels" / "a.txt").write_text("".join(text))
    return tmp_path / "novels"


@pytest.mark.slow
def test_the_command_runs_all_arms_and_goes_on(novels, tmp_path, monkeypatch, capsys, drawn):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["dose", "dose", "--text", str(novels), "--seeds", "2",
                                      "--tasks", "recall-9", "--out", str(out)])
    dose.main()
    first = capsys.readouterr().out
    assert "| recall-9 | language 2 - language spectrum | " in first
    grid = read_rows(out / "dose.csv")
    assert grid.seeds == [0, 1] and {arm: len(runs) for arm, runs in grid.results[
        "recall-9"].items()} == dict.fromkeys([
            "random (paper)", "no pretraining", "language 1", "language 2", "language spectrum",
            "language statistics", "trigrams 1", "trigrams 2", "trigrams spectrum",
            "trigrams statistics"], 2)
    assert png_size(out / "dose.png")
    head, *losses = (out / "dose-losses.csv").read_text().splitlines()
    assert head == "source,steps,seed,nats" and len(losses) == 2 * 2 * 2

    def forbidden(*args, **options):
        raise AssertionError("everything is there")
    monkeypatch.setattr("minifpt.training.step", forbidden)     # again: read, not run
    dose.main()
    assert capsys.readouterr().out == first
    (novels / "b.txt").write_text("another text\n" * 200)
    with pytest.raises(ValueError, match="language-1-0.*other data"):
        dose.main()


@pytest.mark.slow
def test_the_sources_need_no_text_and_have_two_controls(novels, tmp_path, drawn):
    text = dose.run("sources", tmp_path, seeds=1, only=["recall-9"], progress=False)
    assert "| recall-9 | sort 2 - sort statistics | " in text
    (arms,) = read_rows(tmp_path / "sources.csv").results.values()
    assert {"sort 2", "sort spectrum", "sort statistics", "random (paper)"} < {*arms}
    assert png_size(tmp_path / "sources.png")
    assert "sort,2,0," in (tmp_path / "sources-losses.csv").read_text()


@pytest.mark.parametrize("name", ["dose", "masks"])
def test_arms_differ_in_their_frozen_weights_alone(novels, tmp_path, name):
    experiment = dose.EXPERIMENTS[name]
    dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False)
    made = {label: trunks.TrunkSpec.parse(model).make(0)
            for label, model in dose.models(experiment, tmp_path, 0).items()}
    assert {label: trunk.config.causal for label, trunk in made.items()} == {
        label: label.split()[0] not in ("masked", "vision") for label in made}
    parameters = {label: dict(trunk.named_parameters()) for label, trunk in made.items()}
    paper = parameters.pop("random (paper)")
    for label, ours in parameters.items():
        for key, p in paper.items():                      # pretrained trunks have fewer positions
            rows, is_random = len(ours[key].data), label.endswith(" random")
            if is_random or ".ln_" in key or key in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
                assert key == "wte.weight" or np.array_equal(ours[key].data, p.data[:rows]), key
            elif key == "h.0.attn.c_attn.weight":
                assert not np.allclose(ours[key].data, p.data)


def test_the_mean_over_recall_tasks_is_paired_by_seed():
    experiment = replace(dose.EXPERIMENTS["dose"], sources=("language",), controls=("spectrum",))

    def runs(*ends):
        return [[{"step": 1, "test_accuracy": 0.1}, {"step": 2, "test_accuracy": x}] for x in ends]
    low = {"random (paper)": runs(0.5, 0.5), "language 500": runs(0.1, 0.1),
           "language spectrum": runs(0.2, 0.3)}
    grid = tables.Grid({"recall-a": low | {"language 4500": runs(0.3, 0.5)},
                        "recall-b": low | {"language 4500": runs(0.5, 0.5)}}, {}, {}, [0, 1])
    lines = dose.differences(experiment, grid).splitlines()
    assert len(lines) == 2 + 3 * 3 and "4500 - language 500" in lines[-1]
    means = [line for line in lines if line.startswith("| mean of 2 recall tasks")]
    # 0.4 - 0.2 and 0.5 - 0.3, half of it in the area
    assert "| language 4500 - language spectrum | +20.0 (+20.0 to +20.0) | +10.0" in means[0]


@pytest.mark.parametrize("kind, options, message", [
    ("dose", {}, "--text, files"), ("sources", {"text": ["x"]}, "--text, files"),
    ("dose", {"text": ["x"], "only": ["mnist"]}, "--tasks are mnist, expected of bit-memory"),
    ("sources", {"out": "a+b"}, "a meaning in names of trunks")])
def test_dose_refuses_in_one_line(kind, options, message, tmp_path):
    with refused(message):
        dose.run(kind, **{"out": tmp_path} | options)


def test_the_tables_of_our_own_have_arms_and_tasks_that_can_be_made(monkeypatch, capsys):
    models = set()
    for name, table in studies.STUDIES.items():
        labels = [arm.full_label() for arm in table.arms]
        titles = [column.title or compare.make_task(column.task, column.options).name
                  for column in table.columns]
        assert len({*labels}) == len(labels) and len({*titles}) == len(titles), name
        models |= {arm.model for arm in table.arms if "brackets" not in arm.model}
    assert all(trunks.TrunkSpec.parse(model).config() for model in models)
    monkeypatch.setattr(reproduce, "TABLES", reproduce.TABLES)
    monkeypatch.setattr(sys, "argv", ["tables"])
    assert studies.main() == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*studies.STUDIES] and not {*listed} & {"table2", "cliff"}


def test_tables_that_share_a_folder_agree_on_its_runs():
    """One folder, one run: else the second table finds a folder that another run holds."""
    columns, arms = {}, {}
    for name, table in (reproduce.TABLES | studies.STUDIES).items():
        for column in table.columns:
            title = column.title or compare.make_task(column.task, column.options).name
            title = (name, title) if table.share else title         # in a folder of its own
            assert columns.setdefault(title, column) == column
            for arm in table.arms:
                rates = arm.sweep(table.rates)
                assert columns.setdefault((title, arm.folder), rates) == rates
        for arm in table.arms:
            assert arms.setdefault(arm.folder, (arm.model, arm.freeze)) == (arm.model, arm.freeze)
    assert not set("/:*\\") & set("".join(arms))


def test_the_gap_is_training_less_test_accuracy_and_the_map_is_drawn(tmp_path, drawn):
    def end(train, test):
        return [{"step": 1, "train_accuracy": train, "test_accuracy": test}]
    grid = tables.Grid({"x": {"a": [end(0.9, 0.5), end(1.0, 0.7)]}}, {}, {}, [0, 1])
    assert studies.gap(grid, "x", "a") == "35.0: 95.0 and 60.0 (50.0 to 70.0), 2 seeds"
    labels = [f"random ({depth}x{heads}x256, spread {spread})"
              for depth, heads, spread in itertools.product((1, 2), (4, 8), (0.55, 1.41))]
    runs = {label: [end(1.0, 0.75 + i / 40)] for i, label in enumerate(labels[:-1])}
    studies.heat_map({"bit-memory": runs}, tmp_path / "map.png")
    assert png_size(tmp_path / "map.png")
