"""benchmarks/memory_map.py: what it writes, what it skips."""

import pytest

from benchmarks import memory_map

TRUNK = "random:1x2x256@1.0"


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
    assert memory_map.settings_table(path).splitlines()[2:] == [
        "| 1 | 0.01 | 0 | 0 | 2 | 1; 1 |", "| 1 | 0.03 | 0 | 0 | 2 | 1; 1 |",
        "| 1 | 0.03 | 0.1 | 0 | 2 | 1; 1 |"]


@pytest.mark.parametrize("name, shape", [("random:1x12x768@paper", (1, 12, 768, 0.55)),
                                         ("random:2x4x256@1.41", (2, 4, 256, 1.41))])
def test_a_trunks_name_gives_its_shape(name, shape):
    assert memory_map.read_shape(name) == shape


def test_the_picture_shows_every_cell(tmp_path, drawn):
    path = tmp_path / "map.csv"
    memory_map.run_all(path, [TRUNK], [1e-2], [0], steps=1, batch_size=1)
    memory_map.picture(path, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000
