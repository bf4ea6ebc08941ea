"""Solutions of lesson 14, which part of pretraining is enough.  Run the file to have them
checked."""

import numpy as np

from minifpt.exercises import check


def same_spread(std, channels, new_channels):
    """A product is a sum over the channels; its spread is std times the root of their number."""
    return std * np.sqrt(channels / new_channels)


def directions(w_v, w_o):
    """The participation ratio of the squared singular values."""
    s2 = np.linalg.svd(w_v @ w_o, compute_uv=False) ** 2
    return s2.sum() ** 2 / (s2 ** 2).sum()


def keep_directions(w_v, w_o, k):
    """The best approximation of rank k, made as long as the product was."""
    M = w_v @ w_o
    U, s, V = np.linalg.svd(M)
    cut = U[:, :k] * s[:k] @ V[:k]
    return cut * np.linalg.norm(M) / np.linalg.norm(cut)


def fair_arms(control, arms):
    """A setting that one of the two lacks is a difference as well."""
    missing = object()
    return [sum(control.get(name, missing) != arm.get(name, missing)
                for name in control.keys() | arm.keys()) == 1 for arm in arms]


if __name__ == "__main__":
    for solution in (same_spread, directions, keep_directions, fair_arms):
        check(solution.__name__, solution)
