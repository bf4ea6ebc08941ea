"""Lesson 1, gradients by hand."""

import numpy as np

from . import Case, close_to, exercise


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
        "only some of the rows: b is used by every token of every sequence": close_to(
            *(rows.sum(axis=0) for rows in (dy[0], dy[-1], dy[:, 0], dy[:, -1]))),
    })


@exercise
def shared_weight_gradient(rng):
    n, i = int(rng.choice([2, 4, 5, 6])), 3
    x, w, dy = rng.standard_normal((n, i)), rng.standard_normal((i, i)), \
        rng.standard_normal((n, i))
    first, second = x.T @ (dy @ w.T), (x @ w).T @ dy
    return Case((x, w, dy), first + second, {
        "one path is missing: that is the second use of w alone": second,
        "one path is missing: that is the first use of w alone": first,
        "the two paths are averaged: the chain rule adds them": (first + second) / 2,
        "twice the same path: the two uses have different inputs, x and x w": close_to(
            2 * first, 2 * second),
        "the first use got dy itself: its gradient must first go back through the second use":
            x.T @ dy + second,
        "a missing transpose: x goes forward through w, and dy goes back through its transpose":
            x.T @ (dy @ w) + second,
        "the second use got x: its input is x w": first + x.T @ dy,
    })


@exercise
def gradient_is_right(rng):
    def question(shape, scale=1.0, zero=None):
        """A function, a point and the function's gradient there; no entry is small."""
        r = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
        if zero is not None:
            r[zero] = 0.0
        shift, x = rng.uniform(0.3, 0.8, shape), rng.uniform(-0.2, 0.2, shape)
        return (lambda x: float(scale * (r * np.sin(x + shift)).sum())), x, (
            scale * r * np.cos(x + shift))

    alarm = "the gradient was right and your check says no: "
    miss = "the gradient was wrong and your check says yes: "
    f, x, gradient = question((2, 3))
    yield Case((f, x, gradient), True, {
        f"{alarm}is the step of a good size, and the difference divided by all of it?": False})
    for shape in ((5,), (2, 4, 3)):                       # loops over fixed axes fail here
        f, x, gradient = question(shape)
        about = f"The array has shape {shape}: np.ndindex(x.shape) gives every index."
        yield Case((f, x, gradient), True, {
            f"{alarm}x may have any number of axes; np.ndindex(x.shape) gives every index":
                False}, about=about)
    f, x, gradient = question((2, 3))
    for index in np.ndindex(2, 3):                        # each entry alone, once
        one = gradient.copy()
        one[index] *= -1.0
        yield Case((f, x, one), False, {
            f"{miss}one entry was wrong. Does it move every entry?": True})
    for axis in range(3):
        f, x, gradient = question((2, 4, 3))
        one = [int(rng.integers(n)) for n in x.shape]
        other = one.copy()
        other[axis] = (one[axis] + 1) % x.shape[axis]
        two = gradient.copy()
        two[tuple(one)] += 0.3
        two[tuple(other)] -= 0.3
        yield Case((f, x, two), False, {
            f"{miss}two entries were wrong, one too large and one too small by as much. Does it "
            "move each entry alone?": True})
    f, x, gradient = question((2, 3))
    yield Case((f, x, 1.001 * gradient), False, {
        f"{miss}it was 0.1 % too large. Is the tolerance too wide?": True})
    f, x, gradient = question((3, 2), 1e6)
    yield Case((f, x, gradient), True, {
        f"{alarm}its numbers were large. Compare the error with the size of the gradient, not "
        "with an absolute tolerance": False})
    f, x, gradient = question((3, 2), 1e-7)
    yield Case((f, x, gradient), True, {
        f"{alarm}its numbers were small. Compare the error with the size of the gradient, not "
        "with an absolute tolerance": False})
    yield Case((f, x, 1.5 * gradient), False, {
        f"{miss}its numbers were small. Compare the error with the size of the gradient, not "
        "with an absolute tolerance": True})
    f, x, gradient = question((3, 2))
    down = -2 * np.abs(gradient).max() - gradient         # the gradient's entries: all below 0

    def falls(x, f=f, down=down):
        return f(x) + float((x * (down - gradient)).sum())

    yield Case((falls, x, down), True, {
        f"{alarm}all of its entries were below 0. Is the size of the gradient its largest entry "
        "whatever the sign?": False})
    f, x, gradient = question((2, 3), zero=(0, 1))
    yield Case((f, x, gradient), True, {
        f"{alarm}one of its entries was 0. Do you divide by that entry?": False})


def _turns(rng, low, high):
    """10^low <= k < 10^high, such that no step in powers of ten or two is close to a whole number
    of half turns: there all longer steps of the row would agree on one wrong slope."""
    steps = np.concatenate([10.0 ** np.arange(-4, 4), 2.0 ** np.arange(-14, 11)])
    while True:
        k = float(10.0 ** rng.uniform(low, high))
        if (np.abs(np.sin(k * steps[k * steps > 1])) > 0.02).all():
            return k


@exercise
def choose_step(rng):
    def case(low, high):
        k, x = _turns(rng, low, high), float(rng.uniform(-1, 1))
        # Neither flat there (the slope is at least 0.7 k) nor straight (the curvature is not 0).
        at_x = float(rng.uniform(0.2, 0.8) * rng.choice([-1, 1]))
        phase, c = at_x - k * x, float(rng.uniform(1, 3))

        def wave(z):
            return float(c + np.sin(k * z + phase))

        slope = float(k * np.cos(k * x + phase))

        def right(h):
            h = float(h)
            return h > 0 and abs((wave(x + h) - wave(x - h)) / (2 * h) / slope - 1) < 1e-6

        return Case((wave, x), right, {
            "return a step above 0": lambda h: not np.isfinite(h) or h <= 0,
            f"the step is too long for k = {k:.1g}: the function curves within it":
                lambda h: h * k > 1e-3,
            f"the step is too short for k = {k:.1g}: the difference drowns in rounding":
                lambda h: h * k < 1e-8 or h < 1e-9,
        }, about="The relative error is above 1e-6: try the steps around yours.")

    for low, high in rng.permutation([(-4.0, -3.7), (-4.0, -3.7), (-3.0, 3.0), (3.7, 4.0),
                                      (3.7, 4.0)]):
        yield case(low, high)
