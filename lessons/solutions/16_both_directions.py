"""Solutions of lesson 16, both directions.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def prefix_mask(T, P):
    """The causal mask, and the columns of the prefix for everybody."""
    t, s = np.arange(T)[:, None], np.arange(T)
    return (s <= t) | (s < P)


def masked_gradient(logits, y):
    """Probability minus truth where a byte is asked for, divided by how many are."""
    asked = y >= 0
    z = logits[asked]                                     # (N, V)
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    p[np.arange(len(p)), y[asked]] -= 1
    dlogits = np.zeros(logits.shape)
    dlogits[asked] = p / len(p)
    return dlogits


def missing_token(P, left, right):
    """The token comes with P[left, token], and then the right one follows with P[token, right].
    Only their product counts, as a share of all."""
    both = P[left] * P[:, right]
    return both / both.sum()


def better_of_two(a, b):
    """One choice of many: the mean difference on the same questions against its standard error,
    and the question that counts most left out."""
    d = a - b
    d = np.delete(d, np.abs(d - np.median(d)).argmax())
    z = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return "neither" if abs(z) < 3 else "b" if z > 0 else "a"


if __name__ == "__main__":
    for solution in (prefix_mask, masked_gradient, missing_token, better_of_two):
        check(solution.__name__, solution)
