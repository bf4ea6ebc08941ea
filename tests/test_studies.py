"""The studies have arms that exist, right baselines, and go on where they stopped; lessons say what
the rows of studies/results hold."""

import ast
import importlib
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import minifpt
from minifpt import tasks
from minifpt.experiments import compare, reproduce
from minifpt.trunks import get
from minifpt.trunks.names import TrunkSpec
from studies import memory_map, simple, sweeps, trunks, why
from studies import runs as rows_of
from studies import tables as studies
from studies.grids import read_rows
from studies.runs import RESULTS
from studies.tasks import Few
from studies.words import word

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="there is no checkout")
TRUNK = "random:1x2x256@1.0"


# ---------------------------------------------------------------------------- lessons


def constants(lesson):
    """{NAME: value} of the constants that a lesson's source assigns."""
    path = next((ROOT / "lessons" / "src").glob(f"{lesson}_*.py"))
    values = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:                            # computed, not a constant
                continue
    return values


def accuracy(history):
    return round(100 * history[-1]["test_accuracy"], 2)


def test_the_sweep_of_lesson_12_is_the_measured_one():
    found, given = read_rows(RESULTS / "memory.csv"), constants("12")
    sweeps, tests = found.sweeps["bit-memory"], found.results["bit-memory"]
    assert set(given["MEMORY_SWEEP"]) == set(given["MEMORY_TESTS"]) <= set(tests)
    for trunk, values in given["MEMORY_SWEEP"].items():
        want = [np.mean([accuracy(h) for h in sweeps[trunk][lr]]) for lr in given["MEMORY_RATES"]]
        np.testing.assert_allclose(values, want, atol=0.006)
        np.testing.assert_allclose(given["MEMORY_TESTS"][trunk], [
            accuracy(history) for history in tests[trunk]], atol=0.006)


def test_the_products_of_lesson_8_are_the_measured_ones():
    rows = rows_of.read_rows(RESULTS / "inside-xor.csv")
    for trunk, values in constants("08")["WITHOUT_PRODUCT"].items():
        want = [tuple(float(row[part]) for part in ("right", "attn", "mlp"))
                for row in rows if row["trunk"] == trunk.replace("matched random", "statistics")]
        np.testing.assert_allclose(values, want, atol=0.51)


def test_the_ladder_of_lesson_14_is_the_measured_one():
    given = constants("14")
    for file, task in (("xor", "bit XOR"), ("memory", "bit memory"), ("few", "few labels"),
                       ("typos", "typos")):
        measured, = read_rows(RESULTS / f"{file}.csv").results.values()
        for trunk, names in (
                ("random, too small", ["random (0.02)"]),
                ("random, rescaled", ["random (spread 0.55)"]),
                ("matched random", ["statistics", "statistics:minigpt-language"]),
                ("pretrained on novels", ["language"])):
            runs = next(measured[name] for name in names if name in measured)
            np.testing.assert_allclose(given["LADDER"][task][trunk],
                                       [accuracy(h) for h in runs], atol=0.051)


def test_the_steps_of_lesson_22_are_the_measured_ones():
    def steps(*studies, start=""):
        """{angle: steps of each seed}, of the runs with the defaults of ``studies.why``."""
        runs = {}
        for study in studies:
            for row in rows_of.read_rows(RESULTS / f"why-{study}.csv"):
                if row["reached"] and row["start"] == start and row["patch"] == "20" and (
                        row["trunk"] == "random:1x1x128@1.41" and float(row["lr"]) == 1e-2):
                    runs.setdefault(row["angle"], []).append(int(row["reached"]))
        return {angle: tuple(values) for angle, values in runs.items()}
    lesson = constants("22")
    for name, measured in (("STEPS", steps("angle", "slope", "budget")),
                           ("ALIGNED", steps("aligned", start="aligned"))):
        for angle, values in lesson[name].items():
            assert values == measured[str(angle)], (name, angle)


def test_one_block_with_a_window_ends_at_what_its_test_has_in_reach():
    """As docs/results/trunks.md says, within 0.6 points."""
    differences = [float(row["accuracy"]) - trunks.in_reach(int(window[1]), int(row["seed"]))
                   for row in rows_of.read_rows(RESULTS / "trunks-window.csv")
                   if (window := re.match(r"random:longformer:(\d+):1x", row["trunk"]))
                   and int(row["seed"]) != trunks.VALIDATION_SEED and int(window[1]) < 40]
    assert len(differences) == 12
    assert np.abs(differences).max() < 0.006


# ---------------------------------------------------------------------------- studies


def test_the_tables_have_arms_and_tasks_that_can_be_made():
    for name, table in (reproduce.TABLES | studies.STUDIES).items():
        labels = [arm.full_label() for arm in table.arms]
        titles = [column.title or tasks.get(column.task, **column.options).name
                  for column in table.columns]
        assert len({*labels}) == len(labels) and len({*titles}) == len(titles), name
        assert {*table.paper} <= {*itertools.product(labels, titles)}, name
        assert table.shows.endswith(".") and "\n" not in table.shows
        assert all(TrunkSpec.parse(arm.trunk) for arm in table.arms), name
    for model in {arm.trunk for table in reproduce.TABLES.values() for arm in table.arms}:
        assert get(model) is not None
    settings = [*itertools.chain(*why.STUDIES.values())]
    assert all(tasks.task_class(task) for task in {setting["task"] for setting in settings})
    names = {why.name_of(setting["trunk"], setting["angle"]) for setting in settings}
    assert all(TrunkSpec.parse(name) for name in names)


def test_tables_that_share_a_folder_agree_on_its_runs():
    """One folder, one run: else the second table finds a folder that another run holds."""
    columns, arms = {}, {}
    for name, table in (reproduce.TABLES | studies.STUDIES).items():
        for column in table.columns:
            title = column.title or tasks.get(column.task, **column.options).name
            title = (name, title) if hasattr(table, "share") else title     # its own folder
            assert columns.setdefault(title, column) == column
            for arm in table.arms:
                rates = arm.sweep(table.rates)
                assert columns.setdefault((title, arm.folder), rates) == rates
        for arm in table.arms:
            assert arms.setdefault(arm.folder, (arm.trunk, arm.freeze)) == (arm.trunk, arm.freeze)


def test_a_sweep_of_short_runs_grows_until_its_best_rate_is_within(tmp_path, monkeypatch):
    monkeypatch.setattr(compare.Cell, "best_rate", lambda cell, sweep: min(max(sweep), 1e-2))
    column = compare.Column("bit-xor", {}, {"steps": 4, "batch_size": 2, "test_examples": 8},
                            "xor-long")
    arms = [sweeps.LongArm("random:1x2x8", seeds=1), compare.Arm("random:1x1x8")]
    grid = sweeps.grid(tmp_path, [column], arms, range(2), (1e-3, 3e-3), 0.5, progress=False)
    tried, runs = grid.sweeps["xor-long"].values(), grid.results["xor-long"].values()
    assert [[*sweep] for sweep in tried] == [[1e-3, 3e-3, 1e-2, 3e-2]] * 2
    assert {h[-1]["step"] for sweep in tried for short in sweep.values() for h in short} == {2}
    assert [[h[-1]["step"] for h in histories] for histories in runs] == [[4], [4, 4]]
    assert {*grid.rates["xor-long"].values()} == {1e-2} and grid.chance("xor-long") == 0.5


@pytest.mark.parametrize("label, words", [
    ("random, all trained", "random, trained whole"), ("random (0.02)", "random, too small"),
    ("language, + both", "pretrained on novels, + both"), ("few-mnist-10", "MNIST, 10 labels"),
    ("statistics + first block of random (0.02)",
     "matched random + first block of random, too small"),
    ("softmax regression", "linear classifier"),
    ("gains 1, random state", "gains 1, random state"),
    ("mnist-long", "MNIST, long runs"), ("masked-longformer", "masked-longformer")])
def test_arms_are_called_by_words_that_explain_themselves(label, words):
    assert word(label) == words


def test_few_examples_are_a_choice_of_the_other_task_s_training_examples():
    task = Few("digits", labels=5, draw=1)
    x, y = task.batch(np.random.default_rng(0), 40)
    assert len(np.unique(x.reshape(40, -1), axis=0)) == 5
    assert {*y.ravel().tolist()} == {*task.examples()[1].ravel().tolist()}
    same, other = (Few("digits", labels=5, draw=draw).examples()[0] for draw in (1, 2))
    assert np.array_equal(same, task.examples()[0]) and not np.array_equal(other, same)
    test = np.random.default_rng(3), 8, "test"
    assert np.array_equal(task.batch(*test)[0],
                          tasks.get("digits").batch(np.random.default_rng(3), 8, "test")[0])


def test_longer_contexts_fall_back_on_shorter_ones():
    text = np.frombuffer(b"abcabdabcab", np.uint8)
    x = np.frombuffer(b"abzab", np.uint8)[None].astype(np.int64)
    p = simple.witten_bell(text, x, 2)
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    # After "ab": c, d, c; "ab" at the end has no successor.  3 seen, 2 kinds.
    one = simple.witten_bell(text, x, 1)
    for place in (1, 4):
        np.testing.assert_allclose(p[0, place, ord("c")], (2 + 2 * one[0, place, ord("c")]) / 5)
    none = simple.witten_bell(text, x, 0)
    np.testing.assert_allclose(p[0, 2], none[0, 2])       # no z was seen, nor anything after it
    np.testing.assert_allclose(p[0, 0], one[0, 0])        # nothing stands before the first byte


def test_the_forward_filter_is_the_sum_over_all_writers():
    rng = np.random.default_rng(0)
    alone, after, share = rng.dirichlet([1] * 3), rng.dirichlet([1] * 3, 3), 0.3
    x = np.array([[0, 2, 1, 1]])
    scores = simple.forward_filter(x, alone, after, share)[0]
    for t in range(4):
        chance = {True: 0.0, False: 0.0}                  # of what is shown, byte t replaced or not
        shown = x[0, :t + 1]
        for written in itertools.product(range(3), repeat=t + 1):
            p = alone[written[0]] * np.prod([after[a, b] for a, b in itertools.pairwise(written)])
            for i in range(t):
                p *= share * alone[shown[i]] + (1 - share) * (written[i] == shown[i])
            chance[True] += p * share * alone[shown[t]]
            chance[False] += p * (1 - share) * (written[t] == shown[t])
        assert scores[t] == pytest.approx(np.log(chance[True] / chance[False]))


def test_two_layers_have_the_gradients_of_their_scores():
    task = tasks.get("listops", length=8)
    model = simple.TwoLayers(task, seed=1)
    for p in model.parameters():
        p.data = p.data.astype(np.float64)
    x, _ = task.batch(np.random.default_rng(0), 3)
    report = minifpt.gradcheck(model, x, elementwise=3, directions=1)
    assert report, str(report)


# -------------------------------------------------------------------------- the map of bit memory


def test_a_stopped_map_goes_on_and_settings_are_rows_of_their_own(tmp_path):
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2], [0], steps=2, batch_size=2)
    first = rows_of.read_rows(path)
    memory_map.run_all(path, [TRUNK], [1e-2, 3e-2], [0], steps=2, batch_size=2)
    memory_map.run_all(path, [TRUNK], [3e-2], [0, 1], 2, 2, 0.1, warmup=0, every=True)
    rows = rows_of.read_rows(path)
    assert [(row["rate"], row["dropout"], row["seed"]) for row in rows] == [
        ("0.01", "0", "0"), ("0.03", "0", "0"), ("0.03", "0.1", "0"), ("0.03", "0.1", "1")]
    assert rows[0] == first[0]                            # seconds, too


@pytest.mark.parametrize("every, expected", [(False, [("1", "1"), ("", "1")]),
                                             (True, [("1", "1"), ("", "3")])])
def test_a_rate_gets_no_more_steps_than_the_best_one_needed(tmp_path, monkeypatch, every, expected):
    accuracies = itertools.chain([1.0], itertools.repeat(0.0))    # of the two rates
    monkeypatch.setattr(memory_map.training, "evaluate", lambda *_: (0.0, next(accuracies)))
    monkeypatch.setattr(memory_map, "EVAL_EVERY", 1)
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2, 3e-2], [0], steps=3, batch_size=2, every=every)
    rows = rows_of.read_rows(path)
    assert [(row["steps_to_95"], row["steps"]) for row in rows] == expected
    assert "| 1 of 2 at 0.01 |" in memory_map.table(path)         # one step, of two examples


@pytest.mark.parametrize("name", [f"{path.parent.name}.{path.stem}" for folder in (
    "benchmarks", "studies") for path in sorted((ROOT / folder).glob("[!_]*.py"))])
def test_each_program_can_be_imported(name):
    text = (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert name == "benchmarks.checkers" or not re.search(r"import .*\b_\w", text)    # private
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("needs torch")
