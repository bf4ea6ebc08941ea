"""The results: texts, pictures and lessons say what the CSVs of studies/results hold, and the
studies have arms that exist, right baselines, and go on where they stopped."""

import ast
import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import tasks
from minifpt.experiments import compare, reproduce
from minifpt.trunks import get
from minifpt.trunks.names import TrunkSpec
from studies import memory_map, results, simple, sweeps, trunks, why
from studies import tables as studies
from studies.grids import read_rows
from studies.runs import read_rows as read_csv
from studies.tasks import Few
from studies.words import word

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not results.RESULTS.exists(), reason="there is no checkout")
TRUNK = "random:1x2x256@1.0"


# ------------------------------------------------------------------------------ texts


@pytest.fixture(scope="module")
def covers():
    return results.phrases()[1]


def test_results_say_what_the_runs_say():
    assert results.problems() == []
    marks = 0
    for path in results.TEXTS:                            # a changed cell of a table is found
        text = changed = path.read_text(encoding="utf-8")
        for mark in results.MARK.finditer(text):
            row = text[mark.end():].strip().splitlines()[2]
            changed = changed.replace(row, row.translate(str.maketrans("123456789", "234567891")))
            marks += 1
        assert results.with_tables(changed) == text
    assert marks > 25
    lines = results.problems([ROOT / "README.md"])
    assert "no text has a table or a claim of listops-early.csv" in lines
    assert any(line.startswith("no text has the claim listops-paper-lstm: Our") for line in lines)


def test_a_csv_of_other_columns_becomes_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RUNS", [tmp_path])
    (tmp_path / "own.csv").write_text("trunk,steps\nrandom,600\n", encoding="utf-8")
    want = "<!-- own.csv -->\n\n| trunk | steps |\n|---|---|\n| random | 600 |\n\nText.\n"
    assert results.with_tables("<!-- own.csv -->\n\nText.\n") == want == results.with_tables(want)
    (tmp_path / "own.csv").write_text("trunk,seed,right,curve\na,0,1.0,.10 .20\na,1,2.0,.30 .40\n")
    assert "| a | 1.5 (1.0…2.0) | 0.20 0.30 |\n" in results.with_tables("<!-- own.csv: means -->\n")


@pytest.mark.parametrize(("file", "was", "now"), [
    ("README.md", "| 96.6 %", "| 96.7 %"), ("README.md", "98.8 % | 99.7", "98.8 % | 99.8"),
    ("README.md", "| 75.8 %", "| 75.9 %"), ("README.md", "takes 1,575", "takes 1,600"),
    ("README.md", "at most 25", "at most 20"), ("README.md", "has 60.4", "has 61.4"),
    ("RESULTS.md", "81.4 %", "81.5 %"), ("RESULTS.md", "3,000 and", "3,100 and"),
    ("RESULTS.md", "against 35.7", "against 36.7"), ("RESULTS.md", "above, 62.0", "above, 63.0"),
    ("RESULTS.md", "at 3e-4 to", "at 1e-4 to"), ("RESULTS.md", "60.4", "61.4"),
    ("docs/results/why.md", "2,662 steps", "2,700 steps"),
    ("docs/results/whole.md", "(2.6 to", "(3.7 to"),
    ("docs/results/scale.md", "8,300 steps", "8,400 steps"),
    ("docs/results/images.md", "1,500 and 2,500", "1,500 and 2,700"),
    ("docs/results/language.md", "| random | 100.0", "| random | 100.1"),
    ("docs/results/why.md", "130 to 210", "150 to 210"),
    ("docs/performance.md", "0.4 to 0.8", "0.4 to 0.9"),
    ("docs/guide/change.md", "76.7 %", "78.7 %"), ("docs/guide/gradients.md", "| 45 |", "| 46 |"),
    ("lessons/claims.md", "82 to 84 and 98 %", "92 to 94 and 98 %"),
    ("lessons/claims.md", "300 steps of 4", "350 steps of 4"),
    ("minifpt/viewer/live/tour.md", "375 at", "385 at"),
    ("minifpt/viewer/live/tour.md", "38.0 %", "39 %")])
def test_a_number_that_is_changed_by_hand_is_found(covers, file, was, now):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert was in text
    lines = results.text_problems(file, text.replace(was, now, 1), covers)
    assert [line for line in lines if line.startswith(file)]


def test_a_claim_has_a_run_for_each_of_its_places():
    with refused("1 places and 0 runs"):
        results.claims.fill("It has {} %.", [])


def test_every_picture_of_the_results_is_drawn_and_shown(monkeypatch):
    drawn = set()                                         # names: a drawing takes seconds
    for module, name, place in ((results, "dots", 1), (results.tables, "picture", 1),
                                (results.memory_map, "picture", 1), (results.why, "picture", 1),
                                (results.trunks, "picture", 1), (results, "sweep_picture", 1),
                                (results.trunks, "window_picture", 1),
                                (results.trunks, "predictions_picture", 1),
                                *((results.directions, f"picture_of_{name}", 0)
                                  for name in ("curves", "dose", "plane")),
                                (results, "surprise", 0)):
        monkeypatch.setattr(module, name, lambda *args, place=place, **_: drawn.add(args[place]))
    results.pictures()
    assert len(drawn) == 15 and all(path.stat().st_size > 10_000 for path in drawn)
    shown = {(path.parent / target).resolve() for path in results.TEXTS
             for target in re.findall(r"\]\(([^)\s]+\.png)\)", path.read_text(encoding="utf-8"))}
    assert {path.resolve() for path in drawn} <= shown


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
    found, given = read_rows(results.RESULTS / "memory.csv"), constants("12")
    sweeps, tests = found.sweeps["bit-memory"], found.results["bit-memory"]
    assert set(given["MEMORY_SWEEP"]) == set(given["MEMORY_TESTS"]) <= set(tests)
    for trunk, values in given["MEMORY_SWEEP"].items():
        want = [np.mean([accuracy(h) for h in sweeps[trunk][lr]]) for lr in given["MEMORY_RATES"]]
        np.testing.assert_allclose(values, want, atol=0.006)
        np.testing.assert_allclose(given["MEMORY_TESTS"][trunk], [
            accuracy(history) for history in tests[trunk]], atol=0.006)


def test_the_products_of_lesson_8_are_the_measured_ones():
    path = results.RESULTS / "inside-xor.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    for trunk, values in constants("08")["WITHOUT_PRODUCT"].items():
        want = [tuple(float(row[part]) for part in ("right", "attn", "mlp"))
                for row in rows if row["trunk"] == trunk.replace("matched random", "statistics")]
        np.testing.assert_allclose(values, want, atol=0.51)


def test_the_ladder_of_lesson_14_is_the_measured_one():
    given = constants("14")
    for file, task in (("xor", "bit XOR"), ("memory", "bit memory"), ("few", "few labels"),
                       ("typos", "typos")):
        measured, = read_rows(results.RESULTS / f"{file}.csv").results.values()
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
            path = results.RESULTS / f"why-{study}.csv"
            for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
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
                   for row in read_csv(results.RESULTS / "trunks-window.csv")
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
    first = read_csv(path)
    memory_map.run_all(path, [TRUNK], [1e-2, 3e-2], [0], steps=2, batch_size=2)
    memory_map.run_all(path, [TRUNK], [3e-2], [0, 1], 2, 2, 0.1, warmup=0, every=True)
    rows = read_csv(path)
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
    rows = read_csv(path)
    assert [(row["steps_to_95"], row["steps"]) for row in rows] == expected
    assert "| 1 of 2 at 0.01 |" in memory_map.table(path)         # one step, of two examples
