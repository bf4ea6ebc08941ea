"""ListOps, typos and few labels: what they ask, and what they refuse."""

import numpy as np
import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

import minifpt
from minifpt import tasks
from minifpt.tasks.listops import OPERATORS, PAD, SYMBOLS


def rng(seed=0):
    return np.random.default_rng(seed)


def by_python(ids):
    """Return the value again, as a reader works it out."""
    ids = list(ids)

    def part():
        i = ids.pop(0)
        if i < 10:
            return i
        values = []
        while SYMBOLS[ids[0]] != "]":
            values.append(part())
        ids.pop(0)
        return {"[MIN": min(values), "[MAX": max(values), "[SM": sum(values) % 10,
                "[MED": int(np.floor(np.median(values)))}[SYMBOLS[i]]
    value = part()
    assert not ids
    return value


# ------------------------------------------------------------------------------ ListOps


@given(st.integers(0, 10 ** 6), st.integers(1, 6), st.integers(2, 8), st.integers(8, 80))
def test_expressions_follow_the_rules(seed, depth, arguments, length):
    task = tasks.get("listops", length=length, depth=depth, arguments=arguments)
    ids, value = task.expression(rng(seed))
    assert value == by_python(ids) and 4 <= len(ids) <= length
    level = deepest = 0
    counts = []
    for i in ids:
        if 10 <= i < 10 + len(OPERATORS):
            level, counts = level + 1, [*counts, 0]
        elif SYMBOLS[i] == "]":
            assert 2 <= counts.pop() <= arguments
            level -= 1
            if counts:
                counts[-1] += 1
        else:
            counts[-1] += 1
        deepest = max(deepest, level)
    assert level == 0 and deepest <= depth


def test_batches_have_the_right_answers():
    task = tasks.get("listops", length=20)
    x, y = task.batch(rng(), 300, "train")
    assert x.shape == (300, 20) and y.shape == (300, 1) and set(np.unique(y)) == set(range(10))
    assert (x[:, -1] == SYMBOLS.index("]")).all()         # the last token is where it is read
    for row, value in zip(x, y[:, 0], strict=True):
        ids = row[row != PAD]
        assert by_python(ids) == value and (row[:len(row) - len(ids)] == PAD).all()
    cut = tasks.get("listops", length=20, cut=6).batch(rng(), 300, "train")[0].tolist()
    shown = [[i for i in row if i < SYMBOLS.index("]")][:6] for row in x]
    assert cut == [[PAD] * (6 - len(row)) + row for row in shown]
    # A quarter of the parts are lists while fewer than depth are open.
    task = tasks.get("listops", length=400, depth=2, arguments=2)
    lists = [sum(10 <= i < PAD - 1 for i in task.expression(rng(s))[0]) - 1 for s in range(2000)]
    assert abs(np.mean(lists) / 2 - 0.25) < 0.03


def test_listops_that_cannot_be_drawn(monkeypatch):
    monkeypatch.setattr("minifpt.tasks.listops.TRIES", 50)
    task = tasks.get("listops", length=64, least=60, depth=1, arguments=2)
    with pytest.raises(ValueError, match="^listops: none of 50 expressions of depth 1 had 60 "):
        task.batch(rng(), 1)


# -------------------------------------------------------------------------------- typos


def test_typos_have_the_asked_share():
    task = tasks.get("typos", tokens=32, share=0.25)
    x, y = task.batch(rng(), 400, "test")
    assert x.shape == y.shape == (400, 32) and abs(y.mean() - 0.25) < 0.02
    clean = task.text.draw(rng(), 400, "test")[0]
    assert (x == clean)[y == 0].all() and 0.85 < (x != clean)[y == 1].mean() < 1
    spots = np.concatenate([task.text.bytes[s] for s in ("train", "validation", "test")])
    assert len(spots) == minifpt.files.weights.shipped("held-out.txt").stat().st_size - 2
    assert task.fingerprint() == tasks.get("typos").fingerprint()


@pytest.mark.slow
def test_the_language_model_never_saw_the_text_that_ships():
    import os
    from pathlib import Path
    books = Path(os.environ.get("MINIFPT_DATA", "nowhere")) / "books"
    if not books.is_dir():
        pytest.skip("set MINIFPT_DATA to a folder with books/")
    shipped = minifpt.files.weights.shipped("held-out.txt").read_bytes()
    text = tasks.get("text", files=[books])
    parts = [p for p in shipped.split(b"\n\n") if len(p) > 200]
    held_out, trained = text.bytes["test"].tobytes(), text.bytes["train"].tobytes()
    assert len(shipped) < 200_000 and len(parts) > 100
    assert all(part in held_out for part in parts)
    assert not any(part in trained for part in parts)


def test_typos_refuse_a_text_whose_test_part_is_as_short_as_a_passage(tmp_path):
    (tmp_path / "t.txt").write_text("ab cd" * 129)        # a fifth: 65 to validate, 64 to test
    with refused("typos: the test split has 64 bytes, expected more than tokens=64"):
        tasks.get("typos", files=[tmp_path / "t.txt"])
    assert tasks.get("typos", files=[tmp_path / "t.txt"], tokens=63).batch(rng(), 2, "test")


def test_typos_accuracy_is_balanced():
    task = tasks.get("typos", tokens=4, share=0.25)
    y = np.array([[0, 0, 0, 1]])
    nothing = np.tile(np.array([1.0, 0.0], np.float32), (1, 4, 1))      # "all are kept"
    assert task.accuracy(nothing, y) == 0.5
    assert task.accuracy(np.eye(2, dtype=np.float32)[y], y) == 1.0
    assert task.accuracy(nothing, np.zeros((1, 4), int)) == 1.0         # where there is one kind
