"""Lesson 1, gradients by hand."""

import numpy as np

from . import Case, exercise


@exercise
def bias_gradient(rng):
    dy = rng.standard_normal((*rng.choice([2, 3, 4, 5], 2, replace=False), 7))
    return Case((dy,), dy.sum(axis=(0, 1)), {
        "a mean for a sum: every row adds its whole share to the loss": dy.mean(axis=(0, 1)),
        "the wrong axis: one axis of rows is still there, but b has one number for each output":
            lambda db: np.shape(db) in (dy.sum(axis=0).shape, dy.sum(axis=1).shape),
        "the wrong axis: you sum over the outputs, but each output has its own bias":
            lambda db: np.shape(db) == dy.shape[:2],
        "a sum over everything: b has one number for each output": dy.sum(),
        "only some of the rows: b is used by every token of every sequence": lambda db: any(
            np.allclose(db, part) for part in (dy[0].sum(axis=0), dy[-1].sum(axis=0),
                                               dy[:, 0].sum(axis=0), dy[:, -1].sum(axis=0))),
    })


@exercise
def shared_weight_gradient(rng):
    n, i = rng.integers(2, 7), 3
    x, w, dy = rng.standard_normal((n, i)), rng.standard_normal((i, i)), \
        rng.standard_normal((n, i))
    first, second = x.T @ (dy @ w.T), (x @ w).T @ dy
    return Case((x, w, dy), first + second, {
        "one path is missing: that is the second use of w alone": second,
        "one path is missing: that is the first use of w alone": first,
        "the two paths are averaged: the chain rule adds them": (first + second) / 2,
        "twice the same path: the two uses have different inputs, x and x w": lambda dw: any(
            np.allclose(dw, 2 * path) for path in (first, second)),
        "the first use got dy itself: its gradient must first go back through the second use":
            x.T @ dy + second,
        "a missing transpose: dy goes back through w the other way round than x goes forward":
            x.T @ (dy @ w) + second,
        "the second use got x: its input is x w": first + x.T @ dy,
    })


@exercise
def gradient_is_right(rng):
    r, shift = rng.standard_normal((2, 3)), rng.uniform(0.3, 0.8, (2, 3))

    def function(scale, r=r):
        return lambda x: float(scale * (r * np.sin(x + shift)).sum())

    x = rng.uniform(-0.2, 0.2, (2, 3))
    right = r * np.cos(x + shift)
    yield Case((function(1.0), x, right), True, {
        "the gradient was right and your check says no: is the step of a good size, and the "
        "difference divided by all of it?": False})
    one = right.copy()
    one[tuple(rng.integers(0, (2, 3)))] *= -1.0
    yield Case((function(1.0), x, one), False, {
        "one entry of the gradient was wrong and your check says yes: does it move every entry, "
        "and each alone?": True})
    yield Case((function(1.0), x, 1.001 * right), False, {
        "the gradient was wrong by 0.1 % and your check says yes: the tolerance is too wide":
            True})
    yield Case((function(1e6), x, 1e6 * right), True, {
        "a right gradient with large numbers and your check says no: an absolute tolerance; "
        "compare the error with the size of the gradient": False})
    yield Case((function(1e-7), x, 1.5e-7 * right), False, {
        "a wrong gradient with small numbers and your check says yes: an absolute tolerance; "
        "compare the error with the size of the gradient": True})
    r = r.copy()
    r[0, 1] = 0.0
    yield Case((function(1.0, r), x, r * np.cos(x + shift)), True, {
        "one entry of a right gradient was 0 and your check says no: do you divide by that "
        "entry?": False})


@exercise
def choose_step(rng):
    for exponent in rng.permutation([-4, 0, 4]):
        k = float(10.0 ** exponent * rng.uniform(1, 2))
        x = float(rng.uniform(-1, 1))
        phase = float(rng.uniform(-0.8, 0.8)) - k * x

        def wave(z, k=k, phase=phase):
            return float(np.sin(k * z + phase))

        slope = float(k * np.cos(k * x + phase))

        def right(h, x=x, wave=wave, slope=slope):
            h = float(h)
            return h > 0 and abs((wave(x + h) - wave(x - h)) / (2 * h) / slope - 1) < 1e-6

        yield Case((wave, x), right, {
            "return a step above 0": lambda h: not np.isfinite(h) or h <= 0,
            "the step is too long: the function bends within it": lambda h, k=k: h * k > 1e-3,
            "the step is too short: the difference drowns in rounding":
                lambda h, k=k: h * k < 1e-8,
        }, about="The slope is not right to six digits: try the steps around yours.")
