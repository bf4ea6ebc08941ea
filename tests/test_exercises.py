"""Exercises: each solution is accepted, each mistake refused with its own hint, and so are small
mistakes in the solutions, made by ``tests/mutants.py``."""

import os
import random
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from minifpt import functional as F
from minifpt.exercises import engine as exercises
from minifpt.exercises.engine import EXERCISES, check, examine, exercise

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutants  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
exercises.load_exercises()
SOLUTIONS = {name: e.solution for name, e in EXERCISES.items()}


def test_each_exercise_is_asked_in_its_lesson():
    asked = {path.stem[:2]: re.findall(r'^check\("(\w+)"', path.read_text(encoding="utf-8"), re.M)
             for path in sorted((ROOT / "lessons" / "src").glob("[0-9][0-9]_*.py"))}
    here = {lesson: [name for name, e in EXERCISES.items() if e.lesson == int(lesson)]
            for lesson in asked}
    assert here == asked and min(map(len, asked.values())) >= 3
    readme = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    assert {name for name, e in EXERCISES.items() if e.is_open} == {
        *re.findall(r"open: `(\w+)` \|$", readme, re.M)}
    assert [name for name, e in EXERCISES.items() if len({*e.mistakes, *e.refused}) < 3] == []


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_solution_is_accepted(name, seeds=range(2)):
    for seed in seeds:
        result = examine(name, SOLUTIONS[name], seed)
        assert result.status == "passed", (seed, result)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_each_mistake_is_refused_with_its_own_hint(name, seeds=range(1)):
    for seed in seeds:
        exercise = EXERCISES[name]
        for hint, answer in [*exercise.wrong_answers, *exercise.answers(exercise.refused)]:
            result = examine(name, answer, seed)
            assert result.status == "not right yet" and hint.lower() in result.hint.lower(), (
                seed, hint, result)


def lora_backward(dy, x, W, A, B, s):
    """Two mistakes, of which a hint tells one."""
    dx, dA, dB = SOLUTIONS["lora_backward"](dy, x, W, A, B, s)
    return 3 * dx, dA, dB / s


@pytest.mark.parametrize(("name", "answer", "words"), [
    ("weighted_sums", lambda x, w: x @ w[:, None], "an axis of length 1 is missing or too many."),
    ("seeds_needed", lambda d, s: [0.0] * 3, "expected one number."),
    ("symmetric_form", lambda W_q, W_k: (W_q @ W_k.T, W_k @ W_q.T), "yours returns 2."),
    ("weighted_sums", lambda x, w: x.T @ w, "has length"),
    ("lora_backward", lora_backward, "dB: the scale s is missing"),
    ("parameters_trained", lambda *numbers: 7, "The largest difference, with n_layer "),
    ("bias_gradient", lambda dy: dy[1, 1], "The largest difference, with dy ("),
    ("gradient_for_a_teacher", lambda z, q: F.softmax(z) - q, "return two things: y, cache ="),
    # NumPy's message speaks of an ellipsis, as one does of an answer that still has its dots.
    ("row_gradient", lambda dy, ids, v: dy[v / 2], "IndexError"),
    *(("loss_scale", lambda *args, value=value: value, "complex") for value in (
        1j, np.complex128(2 - 1j), np.zeros(3, complex), [np.zeros(2), np.ones(2, complex)])),
    ("seeds_needed", lambda d, s: int(np.ceil(2 * (2.8 * s / d) ** 2)), "passed"),
    ("seeds_needed", lambda d, s: int(np.ceil(2 * (2.8016 * s / d) ** 2)), "passed")])
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
    (name, form) for name in ("pixel_of", "parameters_trained", "colour_patches", "say_the_mean",
                              "goes_by_position", "unseen_change", "reach", "predict")
    for form in FORMS])
def test_a_right_answer_may_have_any_form(name, form):
    result = examine(name, lambda *args: FORMS[form](SOLUTIONS[name](*args)), 0)
    # Single precision is enough for a comparison to 1e-4, not always for one to 1e-6.
    assert result.status == "passed" or (form == "float32" and "largest difference" in
                                         result.hint.lower()), result


def raises(error):
    """An answer that raises this error."""
    def answer(*args):
        raise error
    return answer


@pytest.mark.parametrize("name", SOLUTIONS)
def test_whatever_an_answer_is_gives_one_line(name, capsys):
    for empty in (..., None, lambda *args: ..., raises(NotImplementedError),
                  lambda *args: (..., ...), lambda *args: np.ones(3) * ...):
        assert examine(name, empty).status == "not answered yet"
    check(name, ...)
    assert "not answered yet" in capsys.readouterr().out
    for odd in (raises(KeyError("x")), lambda *args: "text", lambda *args: np.full((2, 2), np.nan),
                lambda *args: {}, lambda *args: np.zeros((0, 3)), lambda *args: 1j, 3.0,
                lambda: 0, lambda *args: ([1], [2, 3]), lambda *args: 10 ** 400,
                lambda *args: np.array(["a", "b"]),
                lambda *args: type("Tensor", (), {"__array__": lambda *args: 1 / 0})()):
        text = str(examine(name, odd, 0))
        assert "not right yet" in text and len(text.splitlines()) == 1


@pytest.mark.parametrize("name", SOLUTIONS)
def test_an_output_seen_before_does_not_pass(name):
    """The numbers are drawn anew, and what is drawn from a few is not drawn twice the same."""
    for seed in range(2):
        seen = []

        def remembered(*args, seen=seen):
            seen.extend([] if seen else [SOLUTIONS[name](*args)])
            return seen[0]
        assert examine(name, remembered, seed).status == "not right yet"


def test_require_is_quiet_for_a_right_answer_and_raises_the_hint_of_another():
    exercises.require("bias_gradient", SOLUTIONS["bias_gradient"])
    with pytest.raises(AssertionError, match="bias_gradient: not right yet. A mean for a sum"):
        exercises.require("bias_gradient", lambda dy: dy.mean(axis=(0, 1)))
    with pytest.raises(AssertionError, match="not answered yet"):
        exercises.require("bias_gradient", lambda dy: ...)


def endless(dy):
    while True:
        pass


@pytest.mark.parametrize("alarm", [pytest.param(True, marks=pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="Windows has no such alarm")), False])
def test_require_ends_an_endless_loop_and_leaves_no_alarm_and_no_tracer(monkeypatch, alarm):
    """Also where there is no alarm, as in a browser."""
    if not alarm:
        monkeypatch.delattr(signal, "setitimer", raising=False)
    monkeypatch.setattr(exercises, "SECONDS", 0.1)
    tracer, handler = sys.gettrace(), alarm and signal.getsignal(signal.SIGPROF)
    with pytest.raises(AssertionError, match="not right yet. It did not end within 0.1 s"):
        exercises.require("bias_gradient", endless)
    assert sys.gettrace() is tracer and handler == (alarm and signal.getsignal(signal.SIGPROF))
    assert not alarm or signal.getitimer(signal.ITIMER_PROF)[0] == 0


@pytest.fixture
def asked(monkeypatch):
    """Two exercises that no lesson has: ``squares`` of an array, ``lengths`` of lists."""
    monkeypatch.setattr(exercises, "EXERCISES", dict(EXERCISES))

    @exercise(squares)
    def _(rng):
        yield rng.standard_normal((4, 4)),

    @exercise(lengths)
    def _(rng):
        yield [rng.standard_normal(3)], {"a": [1, 2]}


def squares(x):
    return x * x.sum(axis=0)


def lengths(rows, table):
    return len(rows)


def in_place(x):
    y = squares(x)
    x *= 2
    return y


def wrong_product(x):
    y = x * 2
    return y @ np.zeros(3)


@pytest.mark.parametrize(("name", "answer", "words"), [
    *(("squares", answer, words) for answer, words in (
        (squares, "passed"), (lambda x: -squares(x), "sign"),
        (lambda x: 4 * squares(x), "4 times as large"), (lambda x: squares(x).T, "transpose"),
        (lambda x: x.sum(axis=0), "shape (4,)"), (in_place, "in place"),
        (lambda x: 0 * x, "0 everywhere"), (lambda x: x * np.nan, "not finite"),
        (lambda x: x, "That is x, unchanged"), (lambda x: abs(squares(x)), "the absolute value of"),
        (lambda x: squares(x)[::-1], "in another order"), (lambda x: x + 1, "largest difference"),
        (lambda x: np.tril(squares(x)), "10 of 16 entries are right"),
        (lambda x: None, "is a return missing"),
        (wrong_product, "ValueError in line 3 of your function"))),
    ("lengths", lengths, "passed"),
    *(("lengths", lambda rows, table, change=change: (len(rows), change(rows, table))[0],
       "in place") for change in (
           lambda rows, table: rows.append(0), lambda rows, table: table["a"].pop(),
           lambda rows, table: rows[0].fill(0), lambda rows, table: table.clear()))])
def test_what_any_exercise_can_see(asked, name, answer, words):
    assert words in str(examine(name, answer))


def test_different_numbers_are_shown_with_as_many_digits_as_it_takes(asked):
    for seed in range(20):
        hint = examine("squares", lambda x: 1000001 * squares(x) / 1e6 + 1e-5, seed).hint
        yours, right = re.findall(r"yours is (\S+), it should be (\S+)\.$", hint)[0]
        assert yours != right


@pytest.mark.parametrize("text, sentence", [
    ("dA is not dS", "dA is not dS."), ("dx: a sum", "dx: a sum."), ("a mean", "A mean."),
    ("alpha is 1", "alpha is 1."), ("about a mean", "About a mean."),
    ("w is read, too", "w is read, too."), ("the sign?", "The sign?"), ("dx_: no.", "dx_: no.")])
def test_a_hint_is_a_sentence(text, sentence):
    assert exercises._sentence(text, ["x", "alpha"]) == sentence


@pytest.mark.parametrize("call, message", [
    (lambda: check("nothing", None), "no exercise 'nothing'"),
    *((lambda change=change: exercises.Exercise(squares, {"a sum": change}).wrong_answers,
       "squares: the mistake 'a sum' cannot be made by") for change in ("x + x -> x", "x -> ("))])
def test_an_exercise_that_cannot_be_is_refused(asked, call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---------------------------------------------------------------------------- mutants


FOUND = list(mutants.solutions())


def test_a_sample_of_the_mutants_is_refused(monkeypatch):
    monkeypatch.setattr(mutants, "SECONDS", 0.5)
    rng = random.Random(0)
    for _, name, function, module in rng.sample(FOUND, 8):
        all_of_them = list(mutants.mutants(name, function, module))
        assert mutants.passing(rng.sample(all_of_them, min(3, len(all_of_them))), range(2)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function", "module"), [f[1:] for f in FOUND],
                         ids=[f[1] for f in FOUND])
def test_every_mutant_is_refused(name, function, module):
    assert mutants.passing(list(mutants.mutants(name, function, module)), range(20)) == []


def test_a_weak_check_is_reported(monkeypatch):
    """With data on which a mistake does not show, its mutant passes."""
    monkeypatch.setattr(EXERCISES["bias_gradient"], "draw", lambda rng: (
        numbers for numbers in [(rng.standard_normal((1, 1, 4)),)]))
    chosen = next(f for f in FOUND if f[1] == "bias_gradient")
    lines = mutants.passing(list(mutants.mutants(*chosen[1:])), range(2))
    assert any("dy.mean(axis=(0, 1))" in line for line in lines)
