"""Solutions of lesson 12, optimisers.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def largest_rate(H):
    """The steepest direction is the eigenvector of the largest eigenvalue."""
    return 2 / np.linalg.eigvalsh(H).max()


def adamw_step(x, g, m, v, t, lr, b1, b2, eps, decay):
    """As Adam; the decay stands beside the gradient's step and never meets m or v."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    step = (m / (1 - b1 ** t)) / (np.sqrt(v / (1 - b2 ** t)) + eps)
    return x - lr * step - lr * decay * x, m, v


def trapezoid(step, steps, warmup, cooldown):
    """Three straight lines; the lowest of them counts."""
    return min((step + 1) / warmup, 1.0, (steps - step) / (cooldown + 1))


def best_rate(rates, accuracy):
    """A mean with a NaN in it is NaN, and never the largest."""
    mean = np.where(np.isnan(accuracy).any(axis=1), -np.inf, accuracy.mean(axis=1))
    best = rates[mean.argmax()]
    return float(best), bool(best in (rates.min(), rates.max()))


if __name__ == "__main__":
    for solution in (largest_rate, adamw_step, trapezoid, best_rate):
        check(solution.__name__, solution)
