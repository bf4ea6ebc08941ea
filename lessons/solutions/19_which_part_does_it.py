"""Solutions of lesson 19, which part does it.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def restored_share(clean, corrupted, patched, right, other):
    """Three scores, each a mean of differences of two logits; then one share."""
    best, worst, score = (
        np.mean([z[i] - z[j] for z, i, j in zip(logits, right, other, strict=True)])
        for logits in (clean, corrupted, patched))
    return (score - worst) / (best - worst)


def induction_score(A, ids):
    """For each token, the last earlier token with its letter, if there is one."""
    shares = []
    for maps, letters in zip(A, ids, strict=True):
        for t, letter in enumerate(letters):
            places = np.flatnonzero(letters[:t] == letter)
            if len(places):
                shares.append(maps[:, t, places[-1] + 1])
    return np.mean(shares, axis=0)


def fair_control(heads, n_head):
    """For each head, another one of its block that is not yet in use."""
    control = []
    for block, _ in heads:
        control.append(next((block, head) for head in range(n_head)
                            if (block, head) not in heads + control))
    return control


if __name__ == "__main__":
    for solution in (restored_share, induction_score, fair_control):
        check(solution.__name__, solution)
