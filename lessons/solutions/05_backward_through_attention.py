"""Solutions of lesson 5, backward through attention.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import check


def value_gradient(dy, A):
    """A value collects from each token that looked at it, times the share that it got."""
    return A.T @ dy


def multi_query_backward(dy, q, k, v, A):
    """As for one head; a key now has a path through each head, and the paths add up."""
    D = q.shape[-1]
    dS = F.softmax_backward(dy @ v.T, F.SoftmaxCache(A)) / np.sqrt(D)     # (H, T, T)
    dk = (dS.swapaxes(-1, -2) @ q).sum(axis=0)
    dv = (A.swapaxes(-1, -2) @ dy).sum(axis=0)
    return dS @ k, dk, dv


def distance_gradient(dA, A):
    """b_d is added to every score on the d-th diagonal below the main one, in every head:
    b_0 has H T paths.  To add one number to all of b changes nothing, so db sums to 0."""
    dS = F.softmax_backward(dA, F.SoftmaxCache(A)).sum(axis=0)            # (T, T)
    return np.array([np.trace(dS, -d) for d in range(len(dS))])


def worth_computing(A, n):
    """One choice of many: for a random dA with variance 1 the mean of dS squared is
    A^2 (1 - 2 A + sum of A^2 over the row).  A (1 - A) is nearly as good, and shorter.
    The largest shares are not: where a share is 1, dS is 0."""
    expected = A ** 2 * (1 - 2 * A + (A ** 2).sum(axis=-1, keepdims=True))
    mask = np.zeros(A.size, bool)
    mask[np.argsort(expected, axis=None)[-n:]] = True
    return mask.reshape(A.shape)


if __name__ == "__main__":
    for solution in (value_gradient, multi_query_backward, distance_gradient, worth_computing):
        check(solution.__name__, solution)
