"""Solutions of lesson 3, layer norm.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def unseen_change(x):
    """A shift: the same number for all channels of a row.  A stretch by a positive factor would
    do as well, for rows without a number near 0."""
    return x + 1.0


def sees_the_future(op, x):
    """Move each row in turn; no output before it may move, not by a single bit.

    Each channel moves by another amount, because layer norm is blind to a shift.  Layer norm over
    the tokens fails: its mean and deviation know the whole sequence.  In training such a model
    looks excellent, because the question contains the answer.  When it writes, there is no later
    token yet, and it falls apart.
    """
    y = op(x)
    for t in range(1, len(x)):
        moved = x.copy()
        moved[t] += np.arange(1, x.shape[1] + 1)
        if (op(moved)[:t] != y[:t]).any():
            return True
    return False


def rms_norm(x, w, eps=1e-5):
    """Still blind to a stretch of the row, no longer to a shift."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def rms_norm_backward(dy, x, w, eps=1e-5):
    """As layer norm's, without the mean term: a shift is not removed, so it passes back."""
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    xhat = x * rstd
    g = dy * w
    dx = (g - xhat * (g * xhat).mean(axis=-1, keepdims=True)) * rstd
    return dx, (dy * xhat).sum(axis=0)


def most_moved_scale(before, after):
    """One choice of many: the root mean square of the difference.  Divided by the scale's own size
    it is as good a choice, since the scales of a trained trunk differ in size."""
    moves = {name: np.sqrt(np.mean((after[name] - before[name]) ** 2))
             for name in before if "ln_" in name and name.endswith("weight")}
    return max(moves, key=moves.get)


if __name__ == "__main__":
    for solution in (unseen_change, sees_the_future, rms_norm, rms_norm_backward,
                     most_moved_scale):
        check(solution.__name__, solution)
