"""Lesson 4, self-attention."""

import numpy as np
from scipy.special import softmax

from . import Case, exercise, fails


@exercise
def answer_to_no_question(rng):
    T = int(rng.integers(4, 8))
    v = rng.standard_normal((T, 3))
    n = np.arange(1, T + 1)[:, None]
    so_far = np.cumsum(v, axis=0)
    return Case((v,), so_far / n, {
        "the mask is missing: a token averages over those that it may see, not over all":
            lambda y: np.shape(y) == v.shape and np.allclose(y, v.mean(axis=0)),
        "the sums are right, but the shares of a row must sum to 1": so_far,
        "the mask is the other way round: each token sees itself and what came before":
            np.cumsum(v[::-1], axis=0)[::-1] / n[::-1],
        "a token may see itself too": lambda y: np.allclose(y[1:], (so_far / n)[:-1]),
        "the sum is divided by T, but token t sees fewer tokens: how many?": so_far / T,
        "each token looks at itself alone: does a query of 0 score it higher than the others?":
            v,
        "a score of 0 is not a share of 0: what is the softmax of a row of zeros?": 0 * v,
        "all tokens look at the first token: does a query of 0 score it higher than the others?":
            lambda y: np.allclose(y, v[0]),
        "return one row of y for each token": lambda y: np.shape(y) == (3,),
    })


def window(q, k, v, w, scale=None, low=0, high=0, flip=False, axis=-1, fill=-np.inf,
           late=False):
    """Windowed attention with one thing wrong: token t sees ``t - w + 1 - low ... t + high``."""
    S = q @ k.T * (q.shape[1] ** -0.5 if scale is None else scale)
    back = np.arange(len(q))[:, None] - np.arange(len(k))
    back = -back if flip else back
    visible = (back >= -high) & (back <= w - 1 + low)
    if late:
        return (softmax(S, axis=axis) * visible) @ v
    return softmax(np.where(visible, S, fill), axis=axis) @ v


@exercise
def windowed_attention(rng):
    T = int(rng.integers(6, 9))
    q, k, v = (2 * rng.standard_normal((T, n)) for n in (3, 3, 5))
    for w, about in ((3, ""), (T + 2, "Here the window is longer than the text: then it is plain "
                                      "causal attention."),
                     (1, "With w = 1 each token sees itself alone, and y is v.")):
        with np.errstate(all="ignore"):
            mistakes = {
                "the factor is missing: the scores are divided by the square root of D":
                    window(q, k, v, w, scale=1),
                "the scores are divided by D: it is its square root":
                    window(q, k, v, w, scale=1 / 3),
                "the square root is of another axis than D, the channels of a query":
                    lambda y, w=w: any(np.allclose(y, window(q, k, v, w, scale=n ** -0.5))
                                       for n in (T, 5)),
                "the causal mask is missing: a token sees those after it":
                    window(q, k, v, w, high=T),
                "the window looks to both sides: a token sees those after it":
                    window(q, k, v, w, high=w - 1),
                "the window is missing: a token sees all those before it":
                    window(q, k, v, w, low=T),
                "the window is one token too long: w includes the token itself":
                    window(q, k, v, w, low=1),
                "the window is one token too short: w includes the token itself":
                    lambda y, w=w: w > 1 and np.allclose(y[1:], window(q, k, v, w, low=-1)[1:]),
                "the mask is the other way round: a token sees itself and those after it":
                    window(q, k, v, w, flip=True),
                "the wrong axis: the shares of each query, a row, sum to 1":
                    lambda y, w=w: np.allclose(y, window(q, k, v, w, axis=0)),
                "you mask after the softmax: the shares that are left no longer sum to 1":
                    window(q, k, v, w, late=True),
                "a masked score of 0 still gets a share: for which score is the share 0?":
                    window(q, k, v, w, fill=0),
            }
            yield Case((q, k, v, w), window(q, k, v, w), mistakes, about=about)


@exercise
def ruler(rng):
    def case(T, back):
        positions = np.arange(T)

        def scores(out):
            W_q, W_k = (np.asarray(W, float) for W in out)
            S = W_q @ W_k.T / np.sqrt(W_q.shape[1])       # x is the identity
            if W_q.shape != W_k.shape or S.shape != (T, T) or not np.isfinite(S).all():
                raise ValueError
            return S

        def shares(out):
            return softmax(scores(out) + np.triu(np.full((T, T), -np.inf), 1), axis=-1)

        def right(out):
            return (shares(out)[positions[back:], positions[:-back]] >= 0.99).all()

        def looks(out, away, rows):
            return (shares(out).argmax(axis=-1)[rows] == positions[rows] - away).all()

        def later(out):
            return (scores(out).argmax(axis=-1)[:-back] == positions[back:]).all()

        rest = slice(back, None)
        return Case((T, back), right, {
            "two arrays of one shape (T, D), with finite numbers": fails(scores),
            "the right token wins, but with less than 99 %: how far apart must two scores be, "
            "after the division by the square root of D?":
                lambda out: looks(out, back, rest),
            "the scores point to a later token, which the mask hides: which of the two weights is "
            "shifted, and which way?": later,
            "each token looks at itself: one of the two weights must be shifted":
                lambda out: looks(out, 0, rest),
            "it measures a distance of 1, whatever back is":
                lambda out: back != 1 and looks(out, 1, rest),
            "the distance is off by one":
                lambda out: any(looks(out, near, slice(back + 1, None))
                                for near in (back - 1, back + 1)),
        }, about=f"Asked for T = {T} and back = {back}: some token does not look where it should. "
                 "Which row of W_q meets which row of W_k?")

    short = int(rng.integers(6, 10))
    yield case(short, 1)
    yield case(short + 3, int(rng.integers(2, 5)))


@exercise
def goes_by_position(rng):
    texts, blocks, H, T = 4, 3, 4, 12
    mask = np.triu(np.full((T, T), -np.inf), 1)
    heads = [(b, h) for b in range(blocks) for h in range(H) if b != h and (h, b) != (2, 1)]
    near, far = rng.permutation(heads)[:2]
    for winner, pattern in (
            (near, np.eye(T, k=-int(rng.integers(1, 4)))),            # so many positions back
            (far, np.eye(T)[int(rng.integers(2))] * np.ones((T, 1)))):      # always the same one
        winner = tuple(map(int, winner))
        swapped = winner[::-1]
        others = [n for n in heads if n not in (winner, swapped)]
        even, content, latest = (tuple(map(int, n)) for n in rng.permutation(others)[:3])
        S = 1.2 * rng.standard_normal((texts, blocks, H, T, T))
        S[:, *winner] += 4.5 * pattern
        S[:, *even] = 0
        positions = (rng.random((texts, T)) * np.arange(1, T + 1)).astype(int)      # at most t
        S[:, *content] += 9 * np.eye(T)[positions]
        S[:, *latest] *= 0.1
        S[:, *latest] -= 0.15 * np.abs(np.arange(T)[:, None] - np.arange(T))
        maps = softmax(S + mask, axis=-1)

        def chosen(head):
            return lambda out: tuple(out) == head

        yield Case((maps,), chosen(winner), {
            "that head looks everywhere equally: it is the same in every text because it picks "
            "no position": chosen(even),
            "that head's look fades with distance, the same in every text, but it picks no "
            "position":
                chosen(latest),
            "that head is the sharpest, but it picks another position in each text: how do the "
            "texts enter your measure?": chosen(content),
            "block and head are exchanged": chosen(swapped),
            "return (block, head): one number is an index into all heads; np.unravel_index":
                lambda out: np.ndim(out) == 0,
        }, about="Another head picks one position with a larger share, and does so in every text.")
