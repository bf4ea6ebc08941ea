"""Lesson 8, bit XOR and bit memory from inside."""

import math

import numpy as np

from . import Case, close_to, exercise


@exercise
def vote_level(rng):
    strings = int(rng.choice([5, 7, 9, 11]))
    masked = float(rng.choice([0.2, 0.3, 0.6, 0.7, 0.8])) + float(rng.uniform(-0.04, 0.04))

    def at_least(k, n):
        return sum(math.comb(n, i) for i in range(k, n + 1)) / 2 ** n

    def level(agree, masked=masked):
        return (1 - masked) + masked * agree

    others = strings - 1
    agree = at_least(others // 2, others)
    return Case((strings, masked), level(agree), {
        "that is the score on the masked bits alone; the visible ones are always right": agree,
        "the visible and the masked bits are exchanged: with probability 1 - masked a bit is "
        "copied": level(agree, 1 - masked),
        "that is guessing; the vote does better, because the asked string votes, too": level(0.5),
        "the asked string votes, too: with its own vote, half of the others are enough":
            level(at_least(others // 2 + 1, others)),
        "not all of the others have to agree, half of them are enough":
            level(at_least(others, others)),
        "one other string that agrees is not a majority": level(at_least(1, others)),
        "the asked string's own vote is certain, only the others are random: count among "
        "strings - 1": close_to(*(level(at_least(k, strings))
                                  for k in (strings // 2, others // 2 - 1) if k >= 0)),
        "half of the bits are masked in the lesson; here it is the share that you are given":
            0.5 + 0.5 * agree,
        "return a share from 0 to 1, not a percentage": 100 * level(agree),
    }, about="A visible bit is right; a masked one is right if the asked string is in the "
             "majority.")


@exercise
def copy_share(rng):
    B, H = (int(n) for n in rng.choice([6, 7, 8], 2, replace=False))
    P, strings = ((4, 2), (5, 2), (5, 3))[int(rng.integers(3))]      # T / strings is not P
    T = (strings + 1) * P
    A = np.tril(rng.uniform(0.1, 1, (B, H, T, T)) ** 3)
    which = np.concatenate([np.arange(strings), rng.integers(0, strings, B)])[:B]
    which = rng.permutation(which)
    n, p = np.arange(B)[:, None], np.arange(P)
    A[n, :, strings * P + p, which[:, None] * P + p] += rng.uniform(0.5, 3, H)
    A /= A.sum(axis=-1, keepdims=True)

    def on(rows, columns):                                # (B, P, H) at each pair of tokens
        return A[n, :, rows, columns]

    query, key = strings * P + p, which[:, None] * P + p
    answer = on(query, key).mean(axis=(0, 1))
    whole = np.stack([A[i, :, strings * P:, k * P:(k + 1) * P].sum(axis=-1).mean(axis=-1)
                      for i, k in enumerate(which)])      # (B, H)
    five = A[:, :, strings * P:, :strings * P].sum(axis=-1).transpose(0, 2, 1)     # (B, P, H)
    return Case((A, which, strings), answer, {
        "that is the attention to the whole right string; for asked token p only its token p "
        "counts": whole.mean(axis=0),
        "a sum over the asked tokens instead of a mean": answer * P,
        "a sum over the examples instead of a mean": answer * B,
        "rows and columns of A are exchanged: the asked token is the one that looks, so it is the "
        "row":
            lambda out: not np.any(out) or np.allclose(out, on(key, query).mean(axis=(0, 1))),
        "do not divide by the attention to the strings here: the share is of all that the token "
        "gives":
            (on(query, key) / five).mean(axis=(0, 1)),
        "p is the same in both strings; yours is a mean over all pairs of tokens":
            whole.mean(axis=0) / P,
        "each example has its own right string": close_to(
            *(on(query, k * P + p + 0 * n).mean(axis=(0, 1)) for k in range(strings))),
        "which is the number of a string; the first of its tokens is which times P":
            on(query, which[:, None] + p).mean(axis=(0, 1)),
        "only one of the asked tokens is looked at": close_to(
            *on(query, key).mean(axis=0)),
        "yours is a mean over the heads, too: return one number for each head":
            lambda out: np.ndim(out) == 0 or np.shape(out) in ((B,), (P,), (B, P)),
        "the examples' axis is still there: take the mean over it":
            lambda out: np.shape(out)[:1] == (B,),
    })


@exercise
def say_the_mean(rng):
    B, T, D = (int(n) for n in rng.permutation([2, 3, 4]))
    n_head = 5
    y = rng.standard_normal((B, T, n_head * D)) + rng.uniform(-2, 2, n_head * D)
    head = int(rng.integers(2, n_head - 1))               # D and head * D differ; not the last
    mine = slice(head * D, (head + 1) * D)

    def put(value, where=mine):
        out = y.copy()
        out[..., where] = value
        return out

    means = y[..., mine].mean(axis=(0, 1))
    return Case((y, head, n_head), put(means), {
        "nothing has changed: write the mean into the head's channels of the copy": y,
        "the head is mute, 0 everywhere; let it say its mean": put(0.0),
        "each channel has its own mean; you take one over all the head's channels":
            put(y[..., mine].mean()),
        "a mean over the channels of each token still depends on the example":
            put(y[..., mine].mean(axis=-1, keepdims=True)),
        "that is a mean over the examples only: take it over the tokens, too":
            put(y[..., mine].mean(axis=0)),
        "that is a mean over the tokens only: it must be the same for all examples":
            put(y[..., mine].mean(axis=1, keepdims=True)),
        "the head's channels are side by side, C / n_head of them": close_to(*(
            put(y[..., where].mean(axis=(0, 1)), where)
            for where in (slice(head, None, n_head), slice(head, head + 1),
                          slice(head * n_head, head * n_head + n_head)))),
        "all heads but this one say their mean; it is the other way round": lambda out: (
            np.allclose(out[..., mine], y[..., mine])),
        "all heads say their mean; only this one should": np.broadcast_to(
            y.mean(axis=(0, 1)), y.shape),
        "return all channels: those of the other heads stay as they are":
            lambda out: np.shape(out)[-1:] == (D,),
    })


@exercise
def gap(rng):
    def case(better, worse, about=""):
        """The two in random order, with the given runs of each."""
        answer = float(better.min() - worse.max())
        args = (better, worse) if rng.random() < 0.5 else (worse, better)
        return Case(args, answer, {
            "that is the difference of the means; it says nothing about the spread":
                close_to(better.mean() - worse.mean(), worse.mean() - better.mean()),
            "that is the difference of the medians; it says nothing about the spread":
                close_to(*(s * (np.median(better) - np.median(worse)) for s in (1, -1))),
            "you take the best run of the better kind: take its worst": close_to(
                better.max() - worse.min(), better.max() - worse.max()),
            "compare with the best run of the other kind, not with its worst": (
                better.min() - worse.min()),
            "you take the other kind for the better one: the better one has the higher mean, and "
            "it may be either of the two arguments": (
                worse.min() - better.max()),
            "a gap below 0 says that the runs overlap: keep the sign":
                lambda out: out >= 0 > answer,
            "that is True or False; return a number that says how far": lambda out: isinstance(
                out, (bool, np.bool_)),
        }, about=about)

    def runs(low, high, n, *more):
        return rng.permutation([*rng.uniform(low, high, n), *more])

    def first(a, value):
        """The same runs, ``value`` the first of them."""
        return np.array([value, *(v for v in a if v != value)])

    # The better kind by the mean is the worse one by the sum, the median, the best or the worst
    # run, the middle of both, the first run or the last.
    far = runs(0.90, 0.98, 3), runs(0.70, 0.80, 5)
    yield case(*far, "One kind is far better.")
    yield case(*far, "One kind is far better.")
    failed = float(rng.uniform(0.20, 0.35))
    a, b = runs(0.80, 0.84, 5), runs(0.86, 0.90, int(rng.integers(3, 5)), failed)
    yield case(a, first(b, b.max()), "One run failed, of the kind that is better in most runs.")
    failed = float(rng.uniform(0.40, 0.45))
    a, b = runs(0.92, 0.96, int(rng.integers(3, 5)), failed), runs(0.72, 0.77, 3)
    yield case(first(a, failed), b, "One run failed, and its kind has the higher mean all the "
                                    "same.")
    a, b = runs(0.84, 0.90, 3, 0.81), runs(0.77, 0.80, 2, 0.87)
    yield case(a, b, "The two kinds overlap.")
