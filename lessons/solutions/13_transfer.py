"""Solutions of lesson 13, transfer.  Run the file to have them checked."""

import math

import numpy as np
from scipy import special, stats

from minifpt.exercises import check


def ranges_apart(n, m):
    """Every choice of n places among n + m is equally likely; two of them are apart."""
    return 2 / math.comb(n + m, n)


def probe_gradient(f, W, b, y, decay):
    """Lesson 2's difference, then lesson 1's two products."""
    d = (special.softmax(f @ W + b, axis=1) - np.eye(len(b))[y]) / len(y)
    return f.T @ d + decay * W, d.sum(axis=0)


def difference_interval(a, b, confidence):
    """Variances of means add up, whether the means are added or subtracted."""
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    t = stats.t.ppf((1 + confidence) / 2, min(len(a), len(b)) - 1)
    difference = a.mean() - b.mean()
    return difference - t * error, difference + t * error


def seeds_needed(difference, spread):
    """By the normal distribution, and one more, because t is a little wider."""
    return math.ceil(2 * ((1.96 + 0.8416) * spread / difference) ** 2) + 1


if __name__ == "__main__":
    for solution in (ranges_apart, probe_gradient, difference_interval, seeds_needed):
        check(solution.__name__, solution)
