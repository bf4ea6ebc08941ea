"""The baselines without a transformer, against sums over everything."""

import itertools

import numpy as np
import pytest

import minifpt
from benchmarks import simple
from minifpt import tasks
from minifpt.experiments.compare import Column


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
    simple.trained(simple.SoftmaxRegression, Column("bit-xor", {}, {"steps": 2}), [3])
    ours = [x for split, x in drawn if split == "train"][-2:]
    drawn.clear()
    task = tasks.get("bit-xor")
    model = minifpt.FPT.for_task(task, "random:1x1x8", seed=3)
    minifpt.train(model, task, steps=2, seed=3, progress=False)
    theirs = [x for split, x in drawn if split == "train"][-2:]
    np.testing.assert_array_equal(ours, theirs)


def test_logistic_regression_finds_what_is_linear_and_the_test_decides_nothing():
    rng = np.random.default_rng(0)

    class Linear:
        classes, input_dim = 3, 4

    def examples(n):
        x = rng.standard_normal((n, 1, 4)).astype(np.float32)
        return x, x[:, 0, :3].argmax(axis=1)[:, None]
    learned, validation, test = examples(400), examples(100), examples(300)
    accuracies = simple.logistic()(Linear, learned, validation, test)
    assert min(accuracies) > 0.93
    wrong = test[0], (test[1] + 1) % 3
    assert simple.logistic()(Linear, learned, validation, wrong)[0] == accuracies[0]


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
