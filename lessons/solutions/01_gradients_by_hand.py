"""Solutions of lesson 1, gradients by hand.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def bias_gradient(dy):
    """Every row of every sequence is a path with rate 1: add them all."""
    return dy.sum(axis=(0, 1))


@exercise(bias_gradient, {
    "a mean for a sum: every row adds its whole share to the loss": [
        f"_.sum(axis=_1) -> _.{way}" for way in (
            "mean(axis=(0, 1))", "sum(axis=0).mean(axis=0)", "mean(axis=0).sum(axis=0)")],
    "a sum over everything: b has one number for each output": "_.sum(axis=_1) -> _.sum()",
    "dy is forgotten: each row's path has rate 1, and dy arrives at its end": [
        f"dy.sum(axis=(0, 1)) -> np.ones(dy.shape[-1]) * {rows}" for rows in (
            "1", "dy.shape[0] * dy.shape[1]")],
    "only some of the rows: b is used by every token of every sequence": [
        f"_.sum(axis=_1) -> dy[{rows}].sum(axis=0)" for rows in ("0", "-1", ":, 0", ":, -1")] + [
        "_.sum(axis=_1) -> dy[0, 0]", "_.sum(axis=_1) -> dy[-1, -1]"],
    "dy is added as it is, with its sign": ["_.sum(axis=_1) -> abs(_).sum(axis=_1)",
                                            "_.sum(axis=_1) -> (_ * _).sum(axis=_1)"],
    "that takes one row for each output; all rows are added": [
        "_.sum(axis=_1) -> _.max(axis=_1)", "_.sum(axis=_1) -> _.min(axis=_1)"],
    "that reshape mixes outputs: rows first, dy.reshape(-1, O), and then add over them":
        "_.sum(axis=_1) -> _.reshape(dy.shape[-1], -1).sum(axis=1)",
    "the wrong axis: one axis of rows is still there, but b has one number for each output": [
        "(0, 1) -> 0", "(0, 1) -> 1"],
    "the wrong axis: you sum over the outputs, but each output has its own bias": [
        "(0, 1) -> -1", "(0, 1) -> (0, 2)", "(0, 1) -> (1, 2)"],
})
def _(rng):
    yield rng.standard_normal((*rng.choice([2, 3, 4, 5], 2, replace=False), 7)),


def shared_weight_gradient(x, w, dy):
    """Two paths lead from w to the loss, so there are two gradients, and they add.

    With z = x w, the second use is y = z w, and its gradient is z^T dy.  What it passes back to z
    is dz = dy w^T; the first use is z = x w, and its gradient is x^T dz.
    """
    z = x @ w
    dz = dy @ w.T
    return z.T @ dy + x.T @ dz


@exercise(shared_weight_gradient, {
    "one path is missing: that is the second use of w alone": "_ + x.T @ dz -> _",
    "one path is missing: that is the first use of w alone": "z.T @ dy + _ -> _",
    "w w is a product of matrices: w.T w.T belongs to the way back to x": [
        "return _ -> return x.T @ dy @ (w @ w).T", "return _ -> return x.T @ dy @ w.T @ w.T"],
    "the two paths are averaged: the chain rule adds them": "return _ -> return (_) / 2",
    "twice the same path: the two uses have different inputs, x and x w": [
        "z.T @ dy + _ -> 2 * _", "_ + x.T @ dz -> 2 * _"],
    "the first use got dy itself: its gradient must first go back through the second use":
        "x.T @ dz -> x.T @ dy",
    "a missing transpose: x goes forward through w, and dy goes back through its transpose":
        ["dy @ w.T -> dy @ w", "return _ -> return x.T @ dy @ w"],
    "the second use got x: its input is x w": "z.T @ dy -> x.T @ dy",
    "w w is a product of matrices, and the order of the factors counts: its derivative is not 2 w":
        ["return _ -> return 2 * x.T @ dy @ w", "return _ -> return 2 * w @ x.T @ dy",
         "return _ -> return 2 * w * (x.T @ dy)"],
    "of w and its transpose one belongs to the left, the other to the right: z.T is w.T x.T": [
        "return _ -> return x.T @ dy @ (w + w.T)", "return _ -> return (w + w.T) @ x.T @ dy",
        "return _ -> return w @ x.T @ dy + x.T @ dz",
        "return _ -> return w @ x.T @ dy + x.T @ dy @ w"],
    "a use's gradient takes what went into it: x into the first, z = x w into the second": [
        "return _ -> return z.T @ dy + z.T @ dz", "return _ -> return z.T @ dz",
        "return _ -> return (z @ w).T @ dy + z.T @ dz", "return _ -> return (z @ w).T @ dy",
        "return _ -> return (z @ w).T @ dy + x.T @ dz"],
    "that is the gradient of x: of w it has w's shape": "return _ -> return dz @ w.T",
    "the two paths add up: yours is their product": [
        "z.T @ dy + _ -> z.T @ dy * _", "z.T @ dy + _ -> z.T @ dy @ _"],
    "a mean for a sum: every row adds its whole share": "return _ -> return (_) / len(x)",
    "in dw a row belongs to an input: what went in is transposed, not what came back": [
        "z.T @ dy -> dy.T @ z", "x.T @ dz -> dz.T @ x"],
    "the two paths add up: yours is their difference": [
        "z.T @ dy + _ -> z.T @ dy - _", "z.T @ dy + _ -> _ - z.T @ dy"],
    "w was used twice: yours is the gradient of y = x w": [
        "return _ -> return x.T @ dy", "return _ -> return 2 * x.T @ dy"],
})
def _(rng):
    n = int(rng.choice([4, 5, 6, 7]))
    yield rng.standard_normal((n, 3)), rng.standard_normal((3, 3)), rng.standard_normal((n, 3))


def wave_number(rng, low, high):
    """10^low <= k < 10^high, such that no step in powers of ten or two is close to a whole number
    of half turns: there all longer steps of the row would agree on one wrong slope."""
    steps = np.concatenate([10.0 ** np.arange(-4, 4), 2.0 ** np.arange(-14, 11)])
    while True:
        k = float(10.0 ** rng.uniform(low, high))
        if (np.abs(np.sin(k * steps[k * steps > 1])) > 0.02).all():
            return k


def choose_step(f, x):
    """One way of many: make the step shorter until the slope stops changing.

    Seven times shorter, and the error is fifty times smaller, on the right of the lesson's
    picture.  So when two slopes agree to 1e-6, the second is right to about 2e-8, and its step is
    still far from where rounding rules.  Two long steps can agree by accident, so the slope
    before them has to be near as well.  Why 7.3 and not 10?  Where k h is close to a whole number
    of turns, 10 k h and 100 k h are too, and all of them agree on a slope that is wrong.  This
    makes 6 to 22 calls of f.
    """
    h, slopes = 10.0, []
    while True:
        slopes.append((f(x + h) - f(x - h)) / (2 * h))
        changes = np.abs(np.array(slopes[-3:-1]) / slopes[-1] - 1)
        if len(changes) == 2 and changes[0] < 1e-3 and changes[1] < 1e-6:
            return h
        h /= 7.3


# Many steps are right: the case says whether one is too long or too short.
@exercise(choose_step, refused={
    "too long": [lambda f, x: 1e-5, lambda f, x: 1e-3 * max(1, abs(x))],
    "too short": [lambda f, x: 1e-15, lambda f, x: 1e-9, lambda f, x: 1e-7,
                  lambda f, x: (3 * np.finfo(float).eps * abs(f(x))) ** (1 / 3) * 1e-2],
    "above 0": lambda f, x: 0.0,
})
def _(rng):
    def case(k):
        x = float(rng.uniform(-1, 1))
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
        yield case(wave_number(rng, low, high))
    # Steps of 1, 1/2 and 1/10 are nearly whole turns here, and agree on a slope of next to 0.
    yield case(float(20 * np.pi * rng.integers(15, 50) + 1e-4))


if __name__ == "__main__":
    check_solutions(globals())
