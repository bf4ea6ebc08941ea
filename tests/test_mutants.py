"""Small mistakes in the lessons' solutions, made by ``tests/mutants.py``, are refused."""

import ast
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutants  # noqa: E402

FOUND = list(mutants.solutions())
IDS = [name for _, name, _, _ in FOUND]


def passing(chosen, seeds):
    """A line for each of these mutants that passes and is not equivalent."""
    lines = []
    for mutant in chosen:
        mutants.judge(mutant, seeds)
        if mutant.passed and not mutants.equivalent(mutant):
            lines.append(f"{mutant.name} passes {len(mutant.passed)} of {len(seeds)}: "
                         f"{mutant.what}")
    return lines


def test_a_sample_of_the_mutants_is_refused(monkeypatch):
    monkeypatch.setattr(mutants, "SECONDS", 0.5)
    rng = random.Random(0)
    for _, name, function, module in rng.sample(FOUND, 10):
        found = list(mutants.mutants(name, function, module))
        assert passing(rng.sample(found, min(4, len(found))), range(2)) == []


def of(source, name="f"):
    module = ast.parse(source)
    return {mutant.what for mutant in mutants.mutants(name, module.body[0], module)}


def test_mutants_have_every_kind_of_small_mistake():
    labels = of("def f(a, b, mask):\n"
                "    'a docstring'\n"
                "    c = np.where(mask, a @ b.T - 1.5, 0)\n"
                "    return c[1:, :n].sum(axis=0, keepdims=True)")
    for label in ("np.where(mask, a @ b.T - 1.5, 0) -> a @ b.T - 1.5", "b.T -> b",
                 "a @ b.T - 1.5 -> a @ b.T", "a @ b.T - 1.5 -> a @ b.T + 1.5", "a @ b.T -> b.T @ a",
                  "1: -> :", ":n -> :n - 1", "1.5 -> 3.0",
                  "c[1:, :n].sum(axis=0, keepdims=True) -> c[1:, :n].mean(axis=0, keepdims=True)",
                  "c[1:, :n].sum(axis=0, keepdims=True) -> c[1:, :n].sum(axis=0)",
                  "c[1:, :n].sum(axis=0, keepdims=True) -> c[1:, :n].sum(axis=1, keepdims=True)"):
        assert label in labels, label
    assert not any("docstring" in label for label in labels)


def test_an_endless_mutant_is_stopped(monkeypatch):
    if not hasattr(mutants.signal, "setitimer"):
        pytest.skip("this system has no timer")
    monkeypatch.setattr(mutants, "SECONDS", 0.05)
    endless = ast.parse("def bias_gradient(dy):\n    while True: pass")
    mutant = mutants.Mutant("bias_gradient", "", endless)
    mutants.judge(mutant, range(2))
    assert mutant.passed == [] and mutant.hints == {"endless": 1}


def test_a_weak_check_is_reported(monkeypatch):
    """With data on which a mistake does not show, its mutant passes."""
    from minifpt import exercises

    def flat(rng):
        yield rng.standard_normal((1, 1, 4)),
    exercises._load()
    monkeypatch.setattr(exercises.EXERCISES["bias_gradient"], "draw", flat)
    found = next(f for f in FOUND if f[1] == "bias_gradient")
    lines = passing(mutants.mutants(*found[1:]), range(2))
    assert any("dy.mean(axis=(0, 1))" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function", "module"), [f[1:] for f in FOUND], ids=IDS)
def test_every_mutant_is_refused(name, function, module):
    assert passing(mutants.mutants(name, function, module), range(20)) == []
