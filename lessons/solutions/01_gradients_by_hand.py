"""Solutions of lesson 1, gradients by hand.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def bias_gradient(dy):
    """Every row of every sequence is a path with rate 1: add them all."""
    return dy.sum(axis=(0, 1))


def shared_weight_gradient(x, w, dy):
    """Two paths lead from w to the loss, so there are two gradients, and they add.

    With z = x w, the second use is y = z w, and its gradient is z^T dy.  What it passes back to z
    is dz = dy w^T; the first use is z = x w, and its gradient is x^T dz.
    """
    z = x @ w
    dz = dy @ w.T
    return z.T @ dy + x.T @ dz


def gradient_is_right(f, x, gradient):
    """Move each entry alone.  The error is judged by the size of the whole gradient, because one
    entry may well be 0."""
    h = 1e-5
    numerical = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= h
        numerical[index] = (f(up) - f(down)) / (2 * h)
    return bool(np.abs(gradient - numerical).max() <= 1e-6 * np.abs(numerical).max())


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


if __name__ == "__main__":
    for solution in (bias_gradient, shared_weight_gradient, gradient_is_right, choose_step):
        check(solution.__name__, solution)
