"""The paper's tables by their names."""

import pytest
from test_compare import TINY, history
from test_plots import png_size

from minifpt import cli
from minifpt.experiments import compare, reproduce, tables
from minifpt.experiments.compare import Arm, Column
from minifpt.experiments.reproduce import TABLES, Table
from minifpt.experiments.tables import Grid
from minifpt.trunks import names as trunks
from studies.grids import read_rows


@pytest.fixture
def tiny(monkeypatch):
    """``random`` is tiny, and there is one small table more."""
    monkeypatch.setitem(trunks.SHAPES, "minigpt", TINY)
    small = {"steps": 4, "batch_size": 2, "test_examples": 8}
    table = Table("Small.", (Column("bit-xor", {"n": 2}, small), Column(
        "bit-xor", {"n": 3}, small | {"steps": 2, "warmup": 1}, "xor-3")),
                  (Arm("random"), Arm("random", "full", "all", (3e-4, 1e-3))),
                  {("all", "bit-xor"): 99.5}, (1e-3, 1e-2))
    monkeypatch.setitem(TABLES, "small", table)
    return table


def run(name, out, seeds=1, only=None, rates=None):
    """Run a table, or some tasks of it, as the command does, and return its text."""
    return compare.reproduce(name, reproduce.table_of(name, only, rates), out, seeds,
                             progress=False)


def test_a_table_is_written_and_read_again(tiny, tmp_path):
    text = run("small", tmp_path, seeds=2)
    result = read_rows(tmp_path / "small.csv")
    assert tiny.text(result) == text and text in (tmp_path / "small.md").read_text()
    lines = text.splitlines()
    assert lines[0] == "| trunk | bit XOR | xor-3 |" and len(lines) == 4
    assert "; paper 99.5 |" in lines[3] and "paper" not in lines[2]
    assert "2 seeds, lr 0.01" in text or "2 seeds, lr 0.001" in text
    given = tmp_path / "given"                            # such rates replace an arm's own, too
    run("small", given, rates=[0.02], only=["bit-xor"])
    assert {p.parent.name for p in (given / "choice").rglob("1000")} == {"0.02"}
    assert png_size(tmp_path / "small.png")
    assert result.seeds == [0, 1]
    for tried in result.sweeps.values():                  # one arm tries a smaller one too
        assert {arm: [*rates] for arm, rates in tried.items()} == {
            "random": [1e-3, 1e-2], "all": [1e-3, 1e-2, 3e-4]}
    for column in ("bit-xor", "xor-3"):
        folders = [p.name for p in (tmp_path / column).iterdir()]
        assert len(folders) == 2 and "random" in folders
        whole = tmp_path / column / next(f for f in folders if f != "random")
        config, = whole.glob("*/1/config.json")
        assert '"freeze": "full"' in config.read_text()


def test_runs_are_shared_between_tables(tiny, tmp_path, monkeypatch):
    run("small", tmp_path, only=["bit-xor"])
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.csv")}
    monkeypatch.setitem(TABLES, "other", Table(
        "Other.", tiny.columns[:1], tiny.arms[:1], rates=tiny.rates, cell=reproduce.steps_to))
    text = run("other", tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.csv")} == before
    assert text.count("\n") == 2


def test_a_cell_has_the_steps_to_each_level_and_the_area():
    good, bad = history(0.5, 0.96, 1.0), history(0.5, 0.5, 0.6)
    result = Grid({"bit-xor": {"a": [good, good], "b": [bad, bad], "c": [good, bad, bad]}}, {},
                  {"bit-xor": {"a": 0.1, "b": 0.1, "c": 0.1}}, [0, 1])
    assert reproduce.levels(result, "bit-xor") == pytest.approx([0.75, 0.875, 0.95])
    to = "to 75.0 / 87.5 / 95.0 %; area"
    assert reproduce.steps_to(result, "bit-xor", "a") == f"2 / 2 / 2 {to} 82.0"
    assert reproduce.steps_to(result, "bit-xor", "b") == f"never / never / never {to} 53.3"
    good[1]["test_accuracy"] = 0.8                        # two curves that cross after it
    assert reproduce.steps_to(result, "bit-xor", "a") == f"2 / 3 / 3 {to} 76.7"
    assert reproduce.steps_to(result, "bit-xor", "c") == (
        f"never / never / never {to} 61.1 (53.3 to 76.7)")
    result.sweeps = {"bit-xor": {"a": {0.1: [], 0.01: []}}}
    assert reproduce.steps_to(result, "bit-xor", "a").endswith(", lr 0.1 (edge)")


def test_the_command_lists_and_runs_tables(tiny, tmp_path, capsys):
    assert cli.main(["reproduce"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*TABLES]
    out = tmp_path / "out"
    assert cli.main(["reproduce", "small", "--seeds", 1, "--rates", 1e-2, "--tasks", "bit-xor",
                     "--out", out]) == 0
    output = capsys.readouterr().out
    assert "\n| all | " in output and output.endswith("small.md small.csv small.png\n")


@pytest.mark.parametrize("argv, part", [
    (["tabel2"], "the table is 'tabel2', expected one of figure1,"),
    (["small", "--seeds", 0], "seeds must be a whole number, at least 1"),
    (["small", "--rates", "-1"], "expected a positive number"),
    (["table9"], "expected one of figure1")])
def test_an_impossible_table_is_refused(tiny, tmp_path, fails, argv, part):
    assert part in fails("reproduce", *argv, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_can_have_some_of_its_tasks_only():
    def names(table):
        return [column.task for column in table.columns]
    assert names(reproduce.table_of("table3", only=["mnist"])) == ["mnist"]
    assert names(reproduce.table_of("table3")) == ["bit-xor", "bit-memory", "mnist"]
    with pytest.raises(ValueError, match="table3: the task is 'text', expected one of bit-xor"):
        reproduce.table_of("table3", only=["mnist", "text"])


def test_a_comparison_whose_curves_still_rise_says_so():
    runs = {"language": [history(0.7, 0.9, 0.995, 1.0)], "random": [history(0.5, 0.5, 0.54, 0.6)]}
    line = tables.still_rising(tables.Grid({"bit-xor": runs}, {}, {}, [0]))
    assert line == "Still rising at the end: random on bit XOR. More --steps may change the order."
    runs |= {"random": [history(0.5, 1.0)], "language": [history(0.7, 0.9, 0.91, 0.996)]}
    assert tables.still_rising(tables.Grid({"bit-xor": runs}, {}, {}, [0])) == ""
    assert ": language on mine." in tables.still_rising(tables.Grid({"mine": runs}, {}, {}, [0]))
    runs["short"] = [history(0.5)]
    assert tables.still_rising(tables.Grid({"bit-xor": runs}, {}, {}, [0])) == ""
