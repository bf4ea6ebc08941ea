"""Damaged files: they load and are right, or are refused in one line.  See ``tests/fuzz``."""

import json
import os
import random
import sys

import numpy as np
import pytest
from fuzz import damage, examine, run
from fuzz.formats import FORMATS, Format
from fuzz.run import Watch, put

needs_unix = pytest.mark.skipif(sys.platform == "win32", reason="needs a timer and limits")


@pytest.mark.slow
@needs_unix
@pytest.mark.parametrize("name", FORMATS)
def test_a_thousand_damaged_files_are_read_or_refused(name):
    if name in ("merges", "vocab"):
        pytest.importorskip("tokenizers")
    report = run(name, cases=1000)
    assert report.cases == 1000 and not report.findings, str(report)
    assert min(report.refused, report.loaded) > 20, str(report)     # else little is tried


@pytest.fixture
def one(tmp_path):
    """``one(read, check)``: what is said of a case of a reader, which reads ``a.json``."""
    def case(read, check=lambda *a: None):
        form = Format(None, read, {"a.json": [lambda rng, raw: b"[1]"]}, check, seconds=0.2)
        return examine(form, tmp_path / "case", {"a.json": b"[]"}, None, 0, 0)
    return case


def raising(error):
    def read(folder):
        raise error if isinstance(error, BaseException) else error(folder)
    return read


@needs_unix
@pytest.mark.parametrize("read, message", [
    (lambda folder: 3, None),
    (raising(lambda folder: ValueError(f"{folder}/a.json: it is damaged")), None),
    (raising(lambda folder: ValueError(f"{folder}: two\nlines")), "not one line"),
    (raising(lambda folder: ValueError(f"{folder}: {'x' * 9999}")), "a line of many characters"),
    (raising(lambda folder: ValueError(f"{folder}: MemoryError")), "it asked for more than"),
    (raising(ValueError("which file?")), "it names no file"),
    (raising(KeyError("x")), "KeyError from test_fuzz.py"),
    (raising(SystemExit(1)), "SystemExit from test_fuzz.py"),
    (lambda folder: [i for i in iter(int, 1)], "it took more than 0.2 s, in test_fuzz.py"),
])
def test_a_reader_that_fails_is_reported(one, read, message):
    finding = one(read)
    assert finding is message or finding.startswith(message)


@needs_unix
def test_a_wrong_result_is_reported(one):
    assert one(lambda folder: 3, lambda found, right, how: f"it is {found}") == "it is 3"


@needs_unix
def test_a_forbidden_act_of_a_reader_is_reported(tmp_path):
    import pickle
    watch, bomb = Watch(tmp_path / "a"), pickle.dumps(damage.Bomb())
    for forbidden in (lambda: pickle.loads(bomb), lambda: exec("1"), lambda: os.system("true"),
                      lambda: open(tmp_path / "x", "w").close()):
        watch.seen = []
        with watch:
            forbidden()
        assert watch.seen, forbidden
    watch.seen = []
    with watch:
        json.loads("[1]")
        np.zeros(3).sum()
        put(tmp_path / "a", {"b": b"c"})
    assert not watch.seen


def test_the_same_seed_gives_the_same_damage(tmp_path):
    for name in ("npz", "safetensors", "index", "idx", "tsv"):
        form = FORMATS[name]
        (tmp_path / name).mkdir()
        form.make(tmp_path / name)
        for file, ways in form.damage.items():
            raw = (tmp_path / name / file).read_bytes()
            for how in ways:
                made = [how(random.Random(i), raw) for i in range(20, 32)]
                assert made == [how(random.Random(i), raw) for i in range(20, 32)]
                assert len({*made}) > 5 and sum(m != raw for m in made) > 5
