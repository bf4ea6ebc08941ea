"""Solutions of lesson 2, softmax and cross-entropy.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def loss_of_a_hint(V, k):
    """k parts for the target and 1 for each other word: its probability is k / (V - 1 + k)."""
    return np.log((V - 1 + k) / k)


def softmax_with_temperature(z, tau):
    """Divide first, then subtract each row's maximum: no exponent is above 0."""
    z = z / tau
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def smoothed_gradient(logits, targets, a):
    """The soft target sums to 1, so the loss is log S - sum_i target_i z_i.  Its gradient is again
    what the model believes minus what is asked for."""
    N, V = logits.shape
    soft = np.full((N, V), a / V)
    soft[np.arange(N), targets] += 1 - a
    return (softmax_with_temperature(logits, 1.0) - soft) / N


def log_softmax_backward(dy, y):
    """y_i = x_i - lse(x): x_j reaches y_j directly, with rate 1, and every y_i through the
    log-sum-exp, with rate -p_j, where p_j = exp(y_j)."""
    return dy - np.exp(y) * dy.sum(axis=-1, keepdims=True)


def loss_scale(gradient):
    """As large as the largest entry allows: that loses the fewest.  Its sign does not matter.

    There is no such scale for a gradient whose entries span more than float16's range, from 6e-8
    to 65504, about twelve powers of ten.  One huge entry is enough to lose all the others.
    """
    return 2.0 ** np.floor(np.log2(30000.0 / np.abs(gradient).max()))


if __name__ == "__main__":
    for solution in (loss_of_a_hint, softmax_with_temperature, smoothed_gradient,
                     log_softmax_backward, loss_scale):
        check(solution.__name__, solution)
