"""Lesson 5, backward through attention."""

import numpy as np
from scipy.special import softmax

from . import Case, as_mask, close_to, either, exercise, fails, part


def causal_map(rng, *shape, size=1.5):
    """A random attention map (..., T, T)."""
    mask = np.triu(np.full(shape[-2:], -np.inf), 1)
    return softmax(size * rng.standard_normal(shape) + mask, axis=-1)


def softmax_backward(dA, A):
    return A * (dA - (dA * A).sum(axis=-1, keepdims=True))


def plain_means(dA, A):
    """The same with means that are not weighted: over the row, and over what A leaves of it."""
    for entries in (np.ones_like(A), A > 0):
        yield A * (dA - (dA * entries).sum(axis=-1, keepdims=True) / entries.sum(-1, keepdims=True))


@exercise
def value_gradient(rng):
    T = int(rng.integers(6, 9))
    n = T - 2
    A, dy = causal_map(rng, T, T)[-n:], rng.standard_normal((n, 3))
    largest = np.zeros_like(A)
    largest[np.arange(n), A.argmax(axis=1)] = 1
    return Case((dy, A), A.T @ dy, {
        "a mean instead of a sum: each token that looked adds its whole share": A.T @ dy / n,
        "the shares are missing: a token that looked with a share of 0.1 adds a tenth of its dy":
            lambda dv: np.allclose(dv, (A > 0).T @ dy) or np.allclose(dv, dy.sum(axis=0)),
        "the shares of a column need not sum to 1: a value that many look at gets more":
            A.T / A.T.sum(axis=1, keepdims=True) @ dy,
        "only the token with the largest share gets something: every share counts":
            largest.T @ dy,
        "one gradient for each of the T values, not for each of the n queries":
            lambda dv: np.shape(dv) == dy.shape,
    })


@exercise
def multi_query_backward(rng):
    H, T, D = (int(n) for n in rng.permutation([2, 5, 3]))
    q, dy = rng.standard_normal((2, H, T, D))
    k, v = rng.standard_normal((2, T, D))
    mask = np.triu(np.full((T, T), -np.inf), 1)
    A = softmax(q @ k.T / np.sqrt(D) + mask, axis=-1)
    dA = dy @ v.T
    dS = softmax_backward(dA, A)
    scale = D ** -0.5
    dq = scale * dS @ k
    keys, values = scale * dS.swapaxes(-1, -2) @ q, A.swapaxes(-1, -2) @ dy
    bare = A * dA

    return Case((dy, q, k, v, A), (dq, keys.sum(axis=0), values.sum(axis=0)), {
        "one set of keys and values, so one gradient for them: what do the paths through the heads "
        "do?": lambda out: np.shape(out[1]) == keys.shape or np.shape(out[2]) == keys.shape,
        "a mean over the heads instead of a sum: each head is a path, and rates add up":
            either(part(1, keys.mean(axis=0)), part(2, values.mean(axis=0))),
        "only one head's part: all heads read the same keys and values":
            either(part(1, *keys), part(2, *values)),
        "the weighted mean is missing in dS: a row of A sums to 1, whatever moves":
            part(0, scale * bare @ k),
        "the mean in dS is weighted: each entry of the row of dA counts with its share in A":
            part(0, *(scale * plain @ k for plain in plain_means(dA, A))),
        "dS is not dA: the way back leads through the softmax": part(0, scale * dA @ k),
        "the factor is missing on the way back: S was divided by the square root of D":
            part(0, dS @ k),
        "dk: each key collects from the queries that looked at it: a column of dS, not a row":
            part(1, scale * (dS @ q).sum(axis=0)),
        "dk: the factor is missing on the way back": part(1, keys.sum(axis=0) / scale),
        "dv: each value collects from the tokens that looked at it: a column of A, not a row":
            part(2, (A @ dy).sum(axis=0)),
        "dv: y is the product of v with A, not with the scores": part(
            2, (dS.swapaxes(-1, -2) @ dy).sum(axis=0)),
    })


@exercise
def distance_gradient(rng):
    H, T = (int(n) for n in rng.permutation([3, 6]))
    A, dA = causal_map(rng, H, T, T), rng.standard_normal((H, T, T))
    dS = softmax_backward(dA, A)

    def along(M, reduce=np.sum):
        return np.array([reduce(np.diagonal(M, -d, axis1=1, axis2=2)) for d in range(T)])

    per_head = np.stack([along(M[None]) for M in dS])
    return Case((dA, A), along(dS), {
        "b is shared by all heads: one number for each distance":
            lambda db: np.shape(db) in (per_head.shape, per_head.T.shape),
        "a mean over the heads instead of a sum: each head is a path, and rates add up":
            along(dS) / H,
        "a mean instead of a sum: b_0 has T paths in each head, b_1 has T - 1":
            along(dS, np.mean),
        "dA is not dS: b is added to the scores, before the softmax": along(dA),
        "dA is not dS: the way back leads through the softmax, with its weighted mean":
            along(A * dA),
        "the mean in dS is weighted: each entry of the row of dA counts with its share in A":
            close_to(*map(along, plain_means(dA, A))),
        "the distances run the other way: b_0 is a token and itself, the diagonal":
            along(dS)[::-1],
        "a distance is a diagonal; you sum over rows or columns":
            close_to(dS.sum(axis=(0, 1)), dS.sum(axis=(0, 2))),
        "those are the diagonals above the main one: t - s is the distance back, and later tokens "
        "are masked": along(dS) * (np.arange(T) == 0),
        "only one head: b is shared by all of them": close_to(*per_head),
    })


@exercise
def worth_computing(rng):
    def case(T):
        n = T * T // 16
        size = rng.permutation(np.repeat([0.5, 2.5, 15.0, 15.0], T // 4))[:, None]
        A = causal_map(rng, T, T, size=size)
        gain = A ** 2 * (1 - 2 * A + (A ** 2).sum(axis=-1, keepdims=True))     # mean of dS^2

        def top(measure):
            chosen = np.zeros(measure.size, bool)
            chosen[np.argsort(-measure, axis=None, kind="stable")[:n]] = True
            return chosen.reshape(measure.shape)

        best = gain[top(gain)].sum()

        def chosen(out):
            return as_mask(out, (T, T))

        def right(out):
            return chosen(out).sum() == n and gain[chosen(out)].sum() >= 0.95 * best

        return Case((A, n), right, {
            "return an array (T, T) of True and False": fails(chosen),
            "choose exactly n entries, in the whole array": lambda out: chosen(out).sum() != n,
            "you choose entries above the diagonal: what is dS there?":
                lambda out: np.triu(chosen(out), 1).any(),
            "you choose the largest shares: what is dS for a token that gets a whole row?":
                lambda out: (chosen(out) & top(A)).sum() > 0.97 * n,
            "you choose as many from each row: does each row hold as much of dS?":
                lambda out: np.ptp(chosen(out).sum(axis=1)[4:]) <= 1,
        }, about="Other entries hold more of dS: look at A times its bracket.")

    for T in rng.permutation([24, 28]):
        yield case(int(T))
