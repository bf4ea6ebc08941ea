"""Solutions of lesson 10, tokens and vectors.  Run the file to have them checked."""

from collections import Counter

import numpy as np
from scipy.special import expit

from minifpt.exercises import check


def merge_step(words, times):
    """A word that occurs n times adds n at each of its places.  The new list is made from the left:
    a symbol that completes the pair joins the symbol before it."""
    pairs = Counter()
    for word, n in zip(words, times, strict=True):
        for pair in zip(word[:-1], word[1:], strict=True):
            pairs[pair] += n
    best = max(pairs, key=pairs.get)
    after = []
    for word in words:
        after.append([])
        for symbol in word:
            if after[-1] and (after[-1][-1], symbol) == best:
                after[-1][-1] += symbol
            else:
                after[-1].append(symbol)
    return best, after


def row_gradient(dy, ids, v):
    """Each place where v stands adds its gradient; where it stands nowhere the sum is 0."""
    return dy[ids == v].sum(axis=0)


def mean_gradient(dy, ids, V):
    """Each word of text b has the share 1 / (number of words of b) in y_b, and a word that stands
    twice has it twice.  ``np.add.at`` adds for equal ids, where ``dw[ids] +=`` does not."""
    real = ids > 0
    each = dy[:, None] * (real / real.sum(axis=1, keepdims=True))[:, :, None]     # (B, T, C)
    dw = np.zeros((V, dy.shape[1]))
    np.add.at(dw, ids, each)
    return dw


def cbow_backward(u, v):
    """ds is the probability minus the label.  All scores share x, so dx collects from all; x is a
    mean, so each neighbour gets an N-th of dx."""
    x = u.mean(axis=0)
    ds = expit(v @ x)
    ds[0] -= 1
    dx = ds @ v
    return np.tile(dx / len(u), (len(u), 1)), np.outer(ds, x)


def tied_gradient(dx, ids, dlogits, y):
    """The table is used twice, and the gradients of both uses add up."""
    V, C = dlogits.shape[-1], y.shape[-1]
    dw = dlogits.reshape(-1, V).T @ y.reshape(-1, C)
    np.add.at(dw, ids, dx)
    return dw


def best_table(tables, pairs):
    """One choice of many: how much larger the pairs' cosines are than those of all words, in the
    mean.  The share of words that are nearer than the partner is as good."""
    def gap(table):
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        cosines = unit @ unit.T
        a, b = np.array(pairs).T
        return cosines[a, b].mean() - cosines[np.triu_indices(len(unit), 1)].mean()

    return int(np.argmax([gap(table) for table in tables]))


if __name__ == "__main__":
    for solution in (merge_step, row_gradient, mean_gradient, cbow_backward, tied_gradient,
                     best_table):
        check(solution.__name__, solution)
