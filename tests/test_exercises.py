"""The exercises: each solution is accepted, each mistake refused with its own hint."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from minifpt import exercises
from minifpt import functional as F
from minifpt.exercises import EXERCISES, check, examine, exercise

ROOT = Path(__file__).resolve().parent.parent
exercises._load()
SOLUTIONS = {name: e.solution for name, e in EXERCISES.items()}


def test_each_exercise_is_asked_in_its_lesson():
    asked = {path.stem[:2]: re.findall(r'^check\("(\w+)"', path.read_text(encoding="utf-8"), re.M)
             for path in sorted((ROOT / "lessons" / "src").glob("[0-9][0-9]_*.py"))}
    here = {lesson: [name for name, e in EXERCISES.items() if e.__module__[-2:] == lesson]
            for lesson in asked}
    assert here == asked and min(map(len, asked.values())) >= 3
    assert [name for name, e in EXERCISES.items() if len({*e.mistakes, *e.refused}) < 3] == []


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_solution_is_accepted(name, seeds=range(2)):
    for seed in seeds:
        result = examine(name, SOLUTIONS[name], seed)
        assert result.status == "passed", (seed, result)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_mistake_is_refused_with_its_own_hint(name, seeds=range(1)):
    for seed in seeds:
        for hint, answer in [*EXERCISES[name].wrong_answers, *EXERCISES[name].refused_answers]:
            result = examine(name, answer, seed)
            assert result.status == "not right yet" and hint.lower() in result.hint.lower(), (
                seed, hint, result)


def lora_backward(dy, x, W, A, B, s):
    """Two mistakes, of which a hint tells one."""
    dx, dA, dB = SOLUTIONS["lora_backward"](dy, x, W, A, B, s)
    return 3 * dx, dA, dB / s


@pytest.mark.parametrize(("name", "answer", "words"), [
    ("weighted_sums", lambda x, w: x @ w[:, None], "an axis of length 1 is missing or too many."),
    ("trace_after", lambda W, S, eta, n: [0.0] * n, "expected one number."),
    ("symmetric_form", lambda W_q, W_k: (W_q @ W_k.T, W_k @ W_q.T), "yours returns 2."),
    ("weighted_sums", lambda x, w: x.T @ w, "has length"),
    ("lora_backward", lora_backward, "dB: the scale s is missing"),
    # NumPy's message speaks of an ellipsis, as one does of an answer that still has its dots.
    ("drawn_from", lambda z, temperature, top_k: np.sort(z)[-temperature], "IndexError"),
    *(("loss_scale", lambda *args, value=value: value, "complex") for value in (
        1j, np.complex128(2 - 1j), np.zeros(3, complex), [np.zeros(2), np.ones(2, complex)])),
    ("seeds_needed", lambda d, s: int(np.ceil(2 * (2.8 * s / d) ** 2)), "passed")])
def test_an_answer_gets_these_words(name, answer, words):
    assert words in str(examine(name, answer, 0))


SEEDS = int(os.environ.get("MINIFPT_SEEDS", 1000))        # all of them take 25 minutes of a core


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLUTIONS)
def test_right_and_wrong_answers_on_many_seeds(name):
    test_the_solution_is_accepted(name, range(SEEDS))
    test_each_mistake_is_refused_with_its_own_hint(name, range(SEEDS))


FORMS = {"a list": lambda out: np.asarray(out).tolist(), "an array": np.asarray,
         "float32": lambda out: np.asarray(out, np.float32)}


@pytest.mark.parametrize(("name", "form"), [
    (name, form) for name in ("pixel_of", "never_seen", "rms_norm", "parameters_trained",
                              "colour_patches", "say_the_mean", "goes_by_position", "way_back",
                              "unseen_change", "windowed_scores", "reach", "predict")
    for form in FORMS if (name, form) != ("windowed_scores", "float32")])
def test_a_right_answer_may_have_any_form(name, form):
    for seed in range(3):
        result = examine(name, lambda *args: FORMS[form](SOLUTIONS[name](*args)), seed)
        # Single precision is enough for a comparison to 1e-4, not always for one to 1e-6.
        assert result.status == "passed" or (form == "float32" and "largest difference" in
                                             result.hint.lower()), (seed, result)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_no_answer_is_no_failure(name, capsys):
    def not_implemented(*args):
        raise NotImplementedError

    for empty in (..., None, lambda *args: ..., not_implemented,
                  lambda *args: (..., ...), lambda *args: np.ones(3) * ...):
        assert examine(name, empty).status == "not answered yet"
        check(name, empty)
        assert "not answered yet" in capsys.readouterr().out


@pytest.mark.parametrize("name", SOLUTIONS)
def test_an_output_seen_before_does_not_pass(name):
    """The numbers are drawn anew, and what is drawn from a few is not drawn twice the same."""
    def status(seed):
        seen = []

        def remembered(*args):
            seen.extend([] if seen else [SOLUTIONS[name](*args)])
            return seen[0]
        return examine(name, remembered, seed).status
    assert [status(seed) for seed in range(2)] == ["not right yet"] * 2


@pytest.mark.parametrize("name", SOLUTIONS)
def test_whatever_an_answer_returns_or_raises_gives_one_line(name):
    def raises(*args):
        raise KeyError("x")

    for odd in (raises, lambda *args: "text", lambda *args: np.full((2, 2), np.nan),
                lambda *args: {}, lambda *args: np.zeros((0, 3)), lambda *args: 1j, 3.0,
                lambda: 0, lambda *args: ([1], [2, 3]), lambda *args: 10 ** 400,
                lambda *args: np.array(["a", "b"]),
                lambda *args: type("Tensor", (), {"__array__": lambda *args: 1 / 0})()):
        text = str(examine(name, odd, 0))
        assert "not right yet" in text and len(text.splitlines()) == 1


def test_require_is_quiet_for_a_right_answer_and_raises_the_hint_of_another():
    exercises.require("bias_gradient", SOLUTIONS["bias_gradient"])
    with pytest.raises(AssertionError, match="bias_gradient: not right yet. A mean for a sum"):
        exercises.require("bias_gradient", lambda dy: dy.mean(axis=(0, 1)))
    with pytest.raises(AssertionError, match="not answered yet"):
        exercises.require("bias_gradient", lambda dy: ...)


def test_lists_and_dictionaries_may_not_change_either(monkeypatch):
    monkeypatch.setattr(exercises, "EXERCISES", dict(exercises.EXERCISES))

    def lengths(rows, table):
        return len(rows)

    @exercise(lengths)
    def _(rng):
        yield [rng.standard_normal(3)], {"a": [1, 2]}

    assert examine("lengths", lengths).status == "passed"
    for change in (lambda rows, table: rows.append(0), lambda rows, table: table["a"].pop(),
                   lambda rows, table: rows[0].sort(), lambda rows, table: table.clear()):
        def answer(rows, table, change=change):
            n = len(rows)
            change(rows, table)
            return n
        assert "in place" in examine("lengths", answer).hint


def test_a_check_that_is_stopped_leaves_the_library_as_it_was():
    def stopped(z, tau):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt) as error:       # as IPython keeps it
        examine("softmax_with_temperature", stopped)
    assert error.tb is not None and F.softmax(np.zeros((1, 2)))[0].tolist() == [[0.5, 0.5]]


def test_what_any_exercise_can_see(monkeypatch):
    monkeypatch.setattr(exercises, "EXERCISES", dict(exercises.EXERCISES))

    def squares(x):
        return x * x.sum(axis=0)

    @exercise(squares)
    def draw(rng):
        yield rng.standard_normal((4, 4)),

    def hint(answer):
        return examine("squares", answer).hint

    def in_place(x):
        y = x * x.sum(axis=0)
        x *= 2
        return y

    def raises(x):
        y = x * 2
        return y @ np.zeros(3)

    assert examine("squares", squares).status == "passed"
    for words, answer in {
            "sign": lambda x: -squares(x), "4 times as large": lambda x: 4 * squares(x),
            "transpose": lambda x: squares(x).T, "shape (4,)": lambda x: x.sum(axis=0),
            "in place": in_place, "0 everywhere": lambda x: 0 * x,
            "not finite": lambda x: x * np.nan, "largest difference": lambda x: x,
            "ValueError in line 3 of your function": raises,
            "is a return missing": lambda x: None}.items():
        assert words in hint(answer)
    for seed in range(100):
        close = examine("squares", lambda x: 1000001 * (x * x.sum(axis=0)) / 1e6 + 1e-5, seed).hint
        a, b = re.findall(r"yours is (\S+), it should be (\S+)\.$", close)[0]
    assert a != b                                         # as many digits as it takes
    for text, sentence in (("dA is not dS", "dA is not dS."), ("dx: a sum", "dx: a sum."),
                           ("w is read, too", "w is read, too."), ("the sign?", "The sign?"),
                           ("a mean", "A mean."), ("has_dx: none.", "has_dx: none.")):
        assert exercises._sentence(text) == sentence
    with pytest.raises(ValueError, match="exists twice"):
        exercise(squares)(draw)
    for change in "x + x -> x", "x -> (":
        with pytest.raises(ValueError, match="squares: the mistake 'a sum' cannot be made by"):
            exercises.Exercise(squares, {"a sum": change}).wrong_answers  # noqa: B018
    with pytest.raises(ValueError, match="no exercise 'nothing'"):
        check("nothing", None)
