"""The experiments with pretrained sources, at a tiny scale."""

from dataclasses import replace

import numpy as np
import pytest
from test_plots import png_size

from minifpt import cli, tasks
from minifpt.experiments import compare, dose, pretrain, tables
from minifpt.trunks import names as trunks

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 256, "vocab_size": 256}


@pytest.fixture
def novels(tmp_path, monkeypatch):
    """A folder with a text; everything else is tiny."""
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    monkeypatch.setattr(pretrain, "SHAPE", TINY)
    tiny = {"shape": "1x2x8", "tokens": 40}
    columns = (compare.Column("bit-memory", {}, {"steps": 2}, "bit-memory"),
               compare.Column("recall", {"tokens": 9}, {"steps": 2}, "recall-9"))
    for name, doses in ("dose", (1, 2)), ("sources", (2,)), ("masks", (2,)):
        monkeypatch.setitem(dose.EXPERIMENTS, name, replace(
            dose.EXPERIMENTS[name], doses=doses, tasks=columns))
    monkeypatch.setattr(dose, "SCALES", {"mini": tiny})
    monkeypatch.setattr(dose, "RATES", (1e-2,))
    monkeypatch.setattr(compare, "VALIDATION_EXAMPLES", 20)
    (tmp_path / "novels").mkdir()
    text = np.random.default_rng(0).choice(list("the quick fox\n"), 3000)
    (tmp_path / "novels" / "a.txt").write_text("".join(text))
    return tmp_path / "novels"


def test_the_dose_command_runs_all_arms_and_goes_on(novels, tmp_path, monkeypatch, capsys,
                                                           drawn):
    out = tmp_path / "out"
    line = ["reproduce", "dose", "--text", novels, "--seeds", 2, "--out", out]
    assert cli.main(line) == 0
    first = capsys.readouterr().out
    assert "\nbit memory  language 2 - language spectrum  " in first and "dose.png" in first
    grid = tables.read_rows(out / "dose.csv")
    assert [*grid.results] == ["bit-memory", "recall-9"] and grid.seeds == [0, 1]
    for arms in grid.results.values():
        assert [*arms] == ["random (paper)", "no pretraining", "language 1", "language 2",
                           "language spectrum", "language statistics", "trigrams 1",
                           "trigrams 2", "trigrams spectrum", "trigrams statistics"]
        assert all(len(runs) == 2 for runs in arms.values())
    assert png_size(out / "dose.png")
    head, *losses = (out / "dose-losses.csv").read_text().splitlines()
    assert head == "source,steps,seed,nats" and len(losses) == 2 * 2 * 2
    assert losses[0].startswith("language,1,0,")

    def forbidden(*args, **options):
        raise AssertionError("everything is there")
    monkeypatch.setattr("minifpt.training.step", forbidden)     # again: read, not run
    assert cli.main(line) == 0 and capsys.readouterr().out == first
    (out / "dose-losses.csv").write_text("my notes\n")
    assert cli.main(line) == 2 and (out / "dose-losses.csv").read_text() == "my notes\n"
    assert capsys.readouterr().err.startswith(f"minifpt: {out / 'dose-losses.csv'} is there")


def test_trunks_of_another_text_are_refused(novels, tmp_path):
    experiment = dose.EXPERIMENTS["dose"]
    before = dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False)
    assert dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False) == before
    (novels / "b.txt").write_text("another text\n" * 200)
    with pytest.raises(ValueError, match="language-1-0.*other data"):
        dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False)


def test_the_two_scales_of_doses_share_no_files(novels, tmp_path, monkeypatch, drawn):
    monkeypatch.setitem(dose.SCALES, "paper", {"shape": "1x2x16", "tokens": 32})
    for scale in dose.SCALES:
        dose.run("dose", tmp_path, [novels], scale=scale, only=["bit-memory"], seeds=1,
                 progress=False)
    assert {path.stem for path in tmp_path.glob("dose*.csv")} == {
        "dose", "dose-losses", "dose-paper", "dose-paper-losses"}


def test_arms_of_one_seed_begin_with_the_same_layer_norms_and_positions(novels, tmp_path):
    experiment = dose.EXPERIMENTS["dose"]
    dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False)
    made = [dict(trunks.TrunkSpec.parse(model).make(0).named_parameters())
            for model in dose.models(experiment, tmp_path, 0).values()]
    for name in ("wpe.weight", "h.0.ln_1.weight", "ln_f.bias"):
        for other in made[1:]:
            rows = len(other[name].data)                  # pretrained trunks have fewer positions
            np.testing.assert_array_equal(other[name].data, made[0][name].data[:rows])
    first = [arrays["h.0.attn.c_attn.weight"].data for arrays in made]
    assert not any(np.allclose(a, b) for i, a in enumerate(first) for b in first[:i])


def test_the_sources_need_no_text_and_have_two_controls(novels, tmp_path, capsys, drawn):
    out = tmp_path / "out"
    line = ["reproduce", "sources", "--seeds", 1, "--tasks", "recall-9", "--out", out]
    assert cli.main(line) == 0
    assert "\nrecall-9  sort 2 - sort statistics  " in capsys.readouterr().out
    (arms,) = tables.read_rows(out / "sources.csv").results.values()
    assert {"sort 2", "sort spectrum", "sort statistics", "random (paper)"} < {*arms}
    assert png_size(out / "sources.png") and "sort,2,0," in (out / "sources-losses.csv").read_text()


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


def test_random_weights_of_masks_have_the_mask_of_the_trunk(novels, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MNIST", lambda data=None: tasks.BitMemory())
    experiment = dose.EXPERIMENTS["masks"]
    losses = dose.pretrain_all(experiment, tmp_path, [novels], 1, progress=False)
    assert [source for source, _, _ in losses] == ["language", "masked", "vision"]
    trunk = {label: trunks.TrunkSpec.parse(model).make(0)
             for label, model in dose.models(experiment, tmp_path, 0).items()}
    assert {label: model.config.causal for label, model in trunk.items()} == {
        label: label.split()[0] not in ("masked", "vision") for label in trunk}
    for label in "masked random", "vision random":
        for (name, theirs), (_, ours) in zip(trunk["random (paper)"].named_parameters(),
                                             trunk[label].named_parameters(), strict=True):
            rows = len(ours.data)                         # pretrained trunks have fewer positions
            assert name == "wte.weight" or np.array_equal(theirs.data[:rows], ours.data), name


@pytest.mark.parametrize("argv, message", [
    (["dose"], "give --text"), (["dose", "--text", "x", "--tasks", "mnist"], "no task 'mnist'"),
    (["dose", "--text", "x", "--plan"], "no --plan"), (["table2", "--text", "x"], "for dose"),
    (["sources", "--text", "x"], "for dose")])
def test_dose_refuses_in_one_line(argv, message, tmp_path, capsys):
    assert cli.main(["reproduce", *argv, "--out", tmp_path]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
