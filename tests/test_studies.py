"""The studies of benchmarks/: their arms exist, their baselines are right, they go on where they
stopped."""

import itertools

import numpy as np
import pytest

import minifpt
from benchmarks import memory_map, simple, sweeps, why
from benchmarks import tables as studies
from benchmarks.tasks import Few
from benchmarks.words import word
from minifpt import tasks
from minifpt.experiments import compare, reproduce
from minifpt.trunks.names import TrunkSpec

TRUNK = "random:1x2x256@1.0"


def test_the_tables_of_our_own_have_arms_and_tasks_that_can_be_made():
    for name, table in studies.STUDIES.items():
        labels = [arm.full_label() for arm in table.arms]
        titles = [column.title or tasks.get(column.task, **column.options).name
                  for column in table.columns]
        assert len({*labels}) == len(labels) and len({*titles}) == len(titles), name
        assert all(TrunkSpec.parse(arm.model) for arm in table.arms), name
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
            assert arms.setdefault(arm.folder, (arm.model, arm.freeze)) == (arm.model, arm.freeze)


def test_a_sweep_of_short_runs_grows_until_its_best_rate_is_within(tmp_path, monkeypatch):
    monkeypatch.setattr(compare.Cell, "best_rate", lambda cell, sweep: min(max(sweep), 1e-2))
    column = compare.Column("bit-xor", {}, {"steps": 4, "batch_size": 2}, "xor-long")
    arms = [sweeps.LongArm("random:1x2x8", seeds=1), compare.Arm("random:1x1x8")]
    grid = sweeps.grid(tmp_path, [column], arms, range(2), (1e-3, 3e-3), 0.5, progress=False)
    tried, runs = grid.sweeps["xor-long"].values(), grid.results["xor-long"].values()
    assert [[*sweep] for sweep in tried] == [[1e-3, 3e-3, 1e-2, 3e-2]] * 2
    assert {h[-1]["step"] for sweep in tried for short in sweep.values() for h in short} == {2}
    assert [[h[-1]["step"] for h in histories] for histories in runs] == [[4], [4, 4]]
    assert {*grid.rates["xor-long"].values()} == {1e-2} and grid.chance("xor-long") == 0.5


@pytest.mark.parametrize("label, words", [
    ("random (paper), all trained", "random, trained whole"), ("random", "random, too small"),
    ("language, + both", "pretrained on novels, + both"), ("few-mnist-10", "MNIST, 10 labels"),
    ("statistics + first block of random", "matched random + first block of random, too small"),
    ("softmax regression", "linear classifier"),
    ("gains 1, random state", "gains 1, random state")])
def test_arms_are_called_by_words_that_explain_themselves(label, words):
    assert word(label) == words


def test_the_table_of_angles_keeps_scales_and_depths_apart():
    runs = [{"angle": "0", "patch": "20", "reached": "25", "steps": "50", "trunk": f"random:{name}"}
            for name in ("1x2x128@1.41", "1x2x128@0.55", "6x2x128@1.41")]
    _, _, *lines = why.by_angle(runs).splitlines()
    assert [line.split(" | ")[:2] for line in lines] == [
        ["| 2 heads", "25"], ["| 2 heads, scale 0.55", "25"], ["| 2 heads, 6 blocks", "25"]]


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


# ------------------------------------------------------------------------- without a transformer


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


def test_softmax_regression_learns_from_the_trunks_examples(monkeypatch):
    """The same batches in the same order as a run of ``minifpt train`` with that seed."""
    drawn, draw = [], tasks.BitXOR.draw

    def noted(self, rng, size, split):
        x, y = draw(self, rng, size, split)
        drawn.append((split, x))
        return x, y
    monkeypatch.setattr(tasks.BitXOR, "draw", noted)
    monkeypatch.setattr(simple, "RATES", (1e-2,))
    monkeypatch.setattr("minifpt.experiments.job.VALIDATION_EXAMPLES", 8)
    simple.trained(simple.SoftmaxRegression, compare.Column("bit-xor", {}, {"steps": 2}), [3])
    ours = [x for split, x in drawn if split == "train"][-2:]
    drawn.clear()
    task = tasks.get("bit-xor")
    model = minifpt.FPT.for_task(task, "random:1x1x8", seed=3)
    minifpt.train(model, task, steps=2, seed=3, progress=False)
    theirs = [x for split, x in drawn if split == "train"][-2:]
    np.testing.assert_array_equal(ours, theirs)


def test_two_layers_have_the_gradients_of_their_scores():
    task = tasks.get("digits")
    model = simple.TwoLayers(task, seed=1)
    for p in model.parameters():
        p.data = p.data.astype(np.float64)
    x = np.random.default_rng(0).standard_normal(
        (3, task.tokens, task.input_dim)).astype(np.float32)
    dy = np.random.default_rng(1).standard_normal((3, 1, 10))
    model.backward(dy, model.forward(x)[1])
    w, h = model.hidden.weight, 1e-6
    for index in ((3, 5), (100, 200), (783, 0)):
        numerical = 0.0
        for sign in (1, -1):
            w.data[index] += sign * h
            numerical += sign * (model.forward(x)[0] * dy).sum() / (2 * h)
            w.data[index] -= sign * h
        assert w.grad[index] == pytest.approx(numerical, rel=1e-5, abs=1e-9)


# -------------------------------------------------------------------------- the map of bit memory


def test_a_stopped_map_goes_on_and_runs_nothing_twice(tmp_path):
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2], [0], steps=2, batch_size=2)
    first = memory_map.read_rows(path)
    memory_map.run_all(path, [TRUNK], [1e-2, 3e-2], [0], steps=2, batch_size=2)
    assert [row["rate"] for row in memory_map.read_rows(path)] == ["0.01", "0.03"]
    assert memory_map.read_rows(path)[0] == first[0]  # seconds, too


def test_a_rate_gets_no_more_steps_than_the_best_one_needed(tmp_path, monkeypatch):
    accuracies = iter([1.0, 0.0])                         # the first rate reaches the goal at once
    monkeypatch.setattr(memory_map.training, "evaluate", lambda *_: (0.0, next(accuracies)))
    monkeypatch.setattr(memory_map, "EVAL_EVERY", 1)
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2, 3e-2], [0], steps=3, batch_size=2)
    rows = memory_map.read_rows(path)
    assert [(row["steps_to_95"], row["steps"]) for row in rows] == [("1", "1"), ("", "1")]
    assert "| 1 of 2 at 0.01 |" in memory_map.table(path)         # one step, of two examples


def test_settings_are_rows_of_their_own_and_no_rate_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map.training, "evaluate", lambda *_: (0.0, 1.0))
    monkeypatch.setattr(memory_map, "EVAL_EVERY", 1)
    path = tmp_path / "map.csv"
    for rate, dropout in (1e-2, 0.0), (3e-2, 0.1), (3e-2, 0.0):
        memory_map.run_all(path, [TRUNK], [rate], [0, 1], 3, 2, dropout, warmup=0, every=True)
    assert [(row["rate"], row["dropout"], row["seed"]) for row in memory_map.read_rows(path)] == [
        ("0.01", "0", "0"), ("0.01", "0", "1"), ("0.03", "0.1", "0"), ("0.03", "0.1", "1"),
        ("0.03", "0", "0"), ("0.03", "0", "1")]


@pytest.mark.parametrize("name, shape", [("random:1x12x768@paper", (1, 12, 768, 0.55)),
                                         ("random:2x4x256@1.41", (2, 4, 256, 1.41))])
def test_a_trunks_name_gives_its_shape(name, shape):
    assert memory_map.read_shape(name) == shape


def test_the_picture_shows_every_cell(tmp_path, drawn):
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2], [0], steps=1, batch_size=1)
    memory_map.picture(path, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000
