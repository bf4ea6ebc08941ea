"""Solutions of lesson 1, gradients by hand.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def bias_gradient(dy):
    """Every row of every sequence is a path with rate 1: add them all."""
    return dy.sum(axis=(0, 1))


def shared_weight_gradient(x, w, dy):
    """Two paths from w to the loss, so two gradients, and they add.

    With z = x w: the second use is y = z w, its gradient z^T dy.  What it hands down to z is
    dz = dy w^T, and the first use is z = x w, its gradient x^T dz.
    """
    z = x @ w
    dz = dy @ w.T
    return z.T @ dy + x.T @ dz


def gradient_is_right(f, x, gradient):
    """The error is judged by the size of the whole gradient: one entry may well be 0."""
    h = 1e-5
    numerical = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= h
        numerical[index] = (f(up) - f(down)) / (2 * h)
    return bool(np.abs(gradient - numerical).max() <= 1e-6 * np.abs(numerical).max())


def choose_step(f, x):
    """One way of many: estimate both errors at each power of ten, take the least sum.

    Where the function bends, a step ten times shorter gives another slope: the change is the
    error on the right of the lesson's picture.  The error on the left is the rounding of f,
    and of x itself, divided by the step.  This makes 31 calls of f.  Fewer will do: estimate
    the third derivative from a few values and use the lesson's formula.
    """
    eps = np.finfo(np.float64).eps
    steps = 10.0 ** -np.arange(0.0, 15.0)
    slopes = np.array([(f(x + h) - f(x - h)) / (2 * h) for h in steps])
    bends = np.abs(np.diff(slopes))
    rounding = eps * (abs(f(x)) + np.abs(x * slopes[1:])) / steps[1:]
    return float(steps[1:][(bends + rounding).argmin()])


if __name__ == "__main__":
    for solution in (bias_gradient, shared_weight_gradient, gradient_is_right, choose_step):
        check(solution.__name__, solution)
