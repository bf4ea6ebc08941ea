"""Results of the lessons' long functions, which a browser's tab reads."""

import json
from pathlib import Path

import numpy as np
import pytest

import minifpt
from minifpt.exercises import records

ROOT = Path(__file__).resolve().parent.parent
CALLS = []


def helper(x):
    return 2 * x


def long_function(x):
    """A function of a lesson."""
    CALLS.append(x)
    return np.array([helper(x), 0.1])


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """A lesson's decorated function, with the results that it has written for 1 and 2."""
    monkeypatch.setenv("MINIFPT_RECORDS", str(tmp_path / "results"))
    monkeypatch.setattr(records, "lessons_folder", lambda: tmp_path)
    function = records.recorded("00")(long_function)
    CALLS.clear()
    for x in (1, 2, 2):
        function(x)
    assert CALLS == [1, 2]                                # equal arguments run once
    monkeypatch.delenv("MINIFPT_RECORDS")
    monkeypatch.setattr(records, "IN_BROWSER", True)
    monkeypatch.setattr(records, "RUNS", records.Counter())
    CALLS.clear()
    return tmp_path / "results" / "00.json"


def test_a_browser_runs_the_first_call_and_reads_the_others(lesson):
    function = records.recorded("00")(long_function)
    assert [function(x).tolist() for x in (1, 2, 3)] == [[2, 0.1], [4, 0.1], [6, 0.1]]
    assert CALLS == [1, 3]                                # nothing is written of 3
    CALLS.clear()
    assert records.recorded("00", live=0)(long_function)(1).tolist() == [2, 0.1] and CALLS == []


def test_a_browser_runs_what_has_changed(lesson):
    written = json.loads(lesson.read_text(encoding="utf-8"))
    assert sorted(written["long_function"]["sources"]) == ["helper", "long_function"]
    written["long_function"]["sources"]["helper"] += "# changed\n"
    lesson.write_text(json.dumps(written), encoding="utf-8")
    records.recorded("00", live=0)(long_function)(2)
    assert CALLS == [2]


def test_a_trained_model_is_read_as_it_was_written():
    model = minifpt.FPT.for_task("bit-xor", "random:1x1x8", seed=1, dropout=0.0)
    model.freeze(minifpt.FreezeMask.fpt())
    for parameter in model.parameters():
        if parameter.trainable:
            parameter.data += np.float32(0.1)
    again, step = records.decode(json.loads(json.dumps(records.encode((model, np.arange(3))))))
    for (name, p), (_, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert np.array_equal(p.data, q.data), name
        assert p.trainable == q.trainable
    assert step.tolist() == [0, 1, 2]


@pytest.mark.parametrize("path", sorted((ROOT / "lessons" / "results").glob("*.json")),
                         ids=lambda path: path.stem)
def test_written_results_come_from_the_lesson_as_it_is(path):
    source, = (ROOT / "lessons" / "src").glob(f"{path.stem}_*.py")
    text = source.read_text(encoding="utf-8")
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
        assert all(part in text for part in entry["sources"].values()), (
            f"{name}: python lessons/build.py {path.stem}")
