"""Solutions of lesson 11, pretraining.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def bits_per_byte(p, n_bytes):
    """The bits of all tokens together, shared out among the bytes."""
    return -np.log2(p).sum() / n_bytes


def drawn_from(z, temperature, top_k):
    """The k-th largest score is the least that is kept; a score of minus infinity has the
    probability 0."""
    least = np.sort(z)[-top_k]
    z = np.where(z >= least, z, -np.inf) / temperature
    e = np.exp(z - z.max())
    return e / e.sum()


def bigram_bits(train, test, V, alpha):
    """Counts of pairs, one row for each first token; a row with alpha added sums to 1."""
    n = np.full((V, V), float(alpha))
    np.add.at(n, (train[:-1], train[1:]), 1)
    p = n / n.sum(axis=1, keepdims=True)
    return -np.log2(p[test[:-1], test[1:]]).mean()


def multiplications(P, n, C, L, kept):
    """Token number t, from 1, costs the same whenever it goes through.  Kept, it does so once;
    otherwise once for each token that is written after it."""
    def cost(tokens):
        return sum(12 * C * C + 2 * C * t for t in range(1, tokens + 1))

    if kept:
        return L * cost(P + n - 1)
    return L * sum(cost(tokens) for tokens in range(P, P + n))


def in_circles(texts):
    """One choice of many: the share of strings of 14 letters that stood there before.  They are
    longer than what a text repeats by chance, or because it likes a word."""
    def again(text):
        strings = [text[i:i + 14] for i in range(len(text) - 13)]
        return 1 - len(set(strings)) / len(strings)

    return int(np.argmax([again(text) for text in texts]))


if __name__ == "__main__":
    for solution in (bits_per_byte, drawn_from, bigram_bits, multiplications, in_circles):
        check(solution.__name__, solution)
