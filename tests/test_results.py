"""The texts say what the rows hold: tables, numbers and pictures."""

from pathlib import Path

import pytest
from conftest import refused

from studies import numbers, pages, pictures
from studies.runs import PAGES, RESULTS

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="there is no checkout")
TEXT = "It has 99.7 % after 90 steps on 128 channels.\n\n<!-- numbers\n99.7 = a\n90: b\n-->\n"


@pytest.mark.parametrize("path", pages.TEXTS, ids=lambda path: path.stem)
def test_a_text_says_what_the_rows_say(path):
    assert pages.problems(path) == []
    text = path.read_text(encoding="utf-8")               # and a changed cell of a table is found
    digits = str.maketrans("123456789", "234567891")
    changed = numbers.TABLE.sub(lambda table: table[0].replace(
        table[3], table[3].translate(digits)), text)
    assert pages.with_tables(changed) == text


def test_each_csv_is_used(monkeypatch):
    assert pages.unused() == []
    monkeypatch.setattr(pages, "TEXTS", [ROOT / "README.md"])
    assert "no text has a table or a number of listops-early.csv" in pages.unused()


def test_a_csv_of_other_columns_becomes_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "RUNS", [tmp_path])
    (tmp_path / "own.csv").write_text("trunk,steps\nrandom,600\n", encoding="utf-8")
    want = "<!-- own.csv -->\n\n| trunk | steps |\n|---|---|\n| random | 600 |\n\nText.\n"
    assert pages.with_tables("<!-- own.csv -->\n\nText.\n") == want == pages.with_tables(want)
    (tmp_path / "own.csv").write_text("trunk,seed,right,curve\na,0,1.0,.10 .20\na,1,2.0,.30 .40\n")
    assert "| a | 1.5 (1.0…2.0) | 0.20 0.30 |\n" in pages.with_tables("<!-- own.csv: means -->\n")


@pytest.mark.parametrize(("file", "was", "now"), [
    ("README.md", "| 96.6 %", "| 96.7 %"), ("README.md", "98.8 % | 99.7", "98.8 % | 99.8"),
    ("README.md", "| 75.8 %", "| 75.9 %"), ("README.md", "needs 1,575", "needs 1,600"),
    ("README.md", "at most 25", "at most 20"), ("README.md", "2,300 lines", "2,400 lines"),
    ("RESULTS.md", "81.4 %", "81.5 %"), ("RESULTS.md", "3,000 and", "3,100 and"),
    ("RESULTS.md", "at 3e-4 to", "at 1e-4 to"), ("RESULTS.md", "60.4", "61.4"),
    ("docs/results/why.md", "2,662 steps", "2,700 steps"),
    ("docs/results/whole.md", "(2.6 to", "(3.7 to"),
    ("docs/results/images.md", "1,500 and 2,500", "1,500 and 2,700"),
    ("docs/results/why.md", "130 to 210", "150 to 210"),
    ("docs/performance.md", "0.4 to 0.8", "0.4 to 0.9"),
    ("docs/guide/change.md", "76.7 %", "78.7 %"),
    ("lessons/claims.md", "82 to 84 and 98 %", "92 to 94 and 98 %"),
    ("minifpt/viewer/live/tour.md", "375 at", "385 at")])
def test_a_number_that_is_changed_by_hand_is_found(file, was, now):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert was in text
    assert numbers.with_numbers(text.replace(was, now, 1))[1]


@pytest.mark.parametrize(("was", "now", "words"), [
    ("% after", "% soon after", None), ("90 steps", "80 steps", "has 80, its comment has '90: b'"),
    ("channels", "things", "has 128, its comment lists no such"),
    (" 90", "", "no text above it has 90, in this order: '90: b'"),
    ("99.7 % after 90", "90 % after 99.7", "has 90, its comment has '99.7 = a'")])
def test_words_are_free_and_each_number_is_listed(monkeypatch, was, now, words):
    monkeypatch.setattr(numbers, "values", lambda run: [99.7])
    _, problems = numbers.with_numbers(TEXT.replace(was, now, 1))
    assert [words in line for line in problems] == [True] * (words is not None)


def test_a_number_of_new_rows_is_written_into_text_and_comment(monkeypatch):
    monkeypatch.setattr(numbers, "values", lambda run: [98.55, 97, 99.9])
    assert numbers.with_numbers(TEXT) == (TEXT.replace("99.7", "98.5"), [])


def test_a_line_of_a_comment_without_a_number_is_refused():
    with refused("expected 'NUMBER = FILE / TASK / ARM'"):
        numbers.listed("about 90 = a\n")


def test_every_picture_is_shown():
    shown = {name for path in pages.TEXTS for name in pictures.shown(path.read_text("utf-8"))}
    assert shown == {*pictures.PICTURES}
    assert all((PAGES / f"{name}.png").stat().st_size > 10_000 for name in shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", pictures.PICTURES)
def test_every_picture_is_drawn(drawn, name, tmp_path):
    pictures.PICTURES[name](tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
