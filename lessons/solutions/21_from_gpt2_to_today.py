"""Solutions of lesson 21, from GPT-2 to today.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def cache_bytes(n_layer, n_head, n_group, n_embd, tokens, size):
    """Keys and values: a head of each for every group, token and block."""
    return 2 * n_layer * tokens * n_group * n_embd // n_head * size


def rotated_score(q, k, m, n, base):
    """One rotation is enough, of the key by the distance: as complex numbers, plane by plane."""
    half = len(q) // 2
    theta = base ** (-np.arange(half) / half)
    x, y = (a[:half] + 1j * a[half:] for a in (q, k))
    return np.real(np.conj(x) * y * np.exp(1j * (n - m) * theta)).sum() / np.sqrt(len(q))


def gate_backward(dy, x, W_g, W_u):
    """The product rule, then back through silu, then through both matrices."""
    z = x @ W_g
    s = 1 / (1 + np.exp(-z))
    dup = dy * (z * s)
    dgate = dy * (x @ W_u) * (s * (1 + z * (1 - s)))
    return dgate @ W_g.T + dup @ W_u.T, x.T @ dgate, x.T @ dup


def slow_base(D, tokens, turns):
    """1 / theta of the slowest plane is base^((D - 2) / D)."""
    return (tokens / (2 * np.pi * turns)) ** (D / (D - 2))


if __name__ == "__main__":
    for solution in (cache_bytes, rotated_score, gate_backward, slow_base):
        check(solution.__name__, solution)
