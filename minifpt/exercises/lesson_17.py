"""Lesson 17, how fast can NumPy go?  The checks judge counts, never times."""

import numpy as np

from . import Case, either, exercise


def sizes(rng, n, low, high):
    """n different whole numbers."""
    return [int(i) for i in rng.choice(np.arange(low, high), n, replace=False)]


@exercise
def scale_intensity(rng):
    for e in (4, 8, 2):
        N, C = sizes(rng, 2, 3, 40)
        flops, numbers = N * C, 2 * N * C + C
        yield Case((N, C, e), flops / (e * numbers), {
            "that is operations for each number; how many bytes has a number?": flops / numbers,
            "that counts 4 bytes a number: they have bytes_each": flops / (4 * numbers),
            "w is read, too: C numbers": flops / (e * 2 * N * C),
            "w has C numbers, not N of them for each row: it is read once": flops / (e * 3 * N * C),
            "x is read and y is written, too": flops / (e * (N * C + C)),
            "each number takes one operation: a multiplication, and nothing is added":
                2 * flops / (e * numbers),
            "those are bytes for each operation; it is the other way round": e * numbers / flops,
            "that is the number of bytes; divide the operations by it": e * numbers,
            "that is the number of operations; divide it by the bytes": flops,
            "w has C numbers, as a row of x; there are N rows": flops / (e * (2 * N * C + N)),
        }, about="One multiplication for each number of y. Read are x and w, written is y.")


# Rules that choose (A B) C without counting its operations, and are wrong for some sizes.
RULES = [
    lambda a, b, c, d: a * c < b * d, lambda a, b, c, d: a + c < b + d,
    lambda a, b, c, d: min(a, c) < min(b, d), lambda a, b, c, d: max(a, c) < max(b, d),
    lambda a, b, c, d: a < d, lambda a, b, c, d: c < b, lambda a, b, c, d: a < c,
    lambda a, b, c, d: b > d, lambda a, b, c, d: a < b, lambda a, b, c, d: c < d,
    lambda a, b, c, d: max(a * b * c, a * c * d) < max(b * c * d, a * b * d),
    lambda a, b, c, d: min(a * b * c, a * c * d) < min(b * c * d, a * b * d)]


@exercise
def fewest_operations(rng):
    lefts = rng.permutation(np.arange(len(RULES)) % 2 == 0)
    for rule, ab_first in zip(RULES, lefts, strict=True):
        while True:
            a, b, c, d = sizes(rng, 4, 3, 60)
            ab, bc = 2 * a * b * c, 2 * b * c * d         # A B, B C
            left_last, right_last = 2 * a * c * d, 2 * a * b * d           # (A B) C, A (B C)
            cheap, dear = sorted([ab + left_last, bc + right_last])
            one = {ab, bc, left_last, right_last}
            inner = {ab + bc, ab + right_last, bc + left_last}
            longer = {a * b * c * d, 2 * a * b * c * d}
            if ab_first == (cheap == ab + left_last) != rule(a, b, c, d) and (
                    cheap < 0.95 * dear
                    and len(one | inner | longer | {cheap, dear, cheap // 2}) == 12):
                break
        yield Case((a, b, c, d), cheap, {
            "that is the dearer of the two orders: count all operations of each, then compare":
                dear,
            "each term takes a multiplication and an addition: twice as many": cheap // 2,
            "that is one of the two products; count both": lambda out, one=one: out in one,
            "A B has the rows of A and the columns of B, (a, c); B C is (b, d)":
                lambda out, inner=inner: out in inner,
            "there are two products, one after the other: add their operations":
                lambda out, longer=longer: out in longer,
            "return the operations, not a name": lambda out: isinstance(out, str),
        }, rtol=1e-9,
            about="Here (A B) C is cheaper." if ab_first else "Here A (B C) is cheaper.")


def scores(T, tile, low, last=lambda i, j: j):
    """Scores of causal attention in tiles: the queries i ... j-1 with the keys from low(i, j) to
    last(i, j) - 1."""
    tiles = [(i, min(i + tile, T)) for i in range(0, T, tile)]
    return sum((j - i) * (last(i, j) - low(i, j)) for i, j in tiles)


def scores_mistakes(T, tile, w):
    """hint -> the numbers that this mistake may give."""
    def low(i, j):
        return max(0, i - w + 1)

    starts = range(0, T, tile)
    return {
        "the window is not used: a tile needs no key that is before the window of all its queries":
            [scores(T, tile, lambda i, j: 0)],
        "those are the scores that count; a tile computes a whole rectangle":
            [sum(min(t + 1, w) for t in range(T))],
        "that is every score of T tokens": [T * T],
        "the last tile has fewer queries than the others": [
            sum(tile * (min(i + tile, T) - low(i, 0)) for i in starts),
            sum(tile * (i + tile - low(i, 0)) for i in starts)],
        "the last tile is missing": [scores(T // tile * tile, tile, low)],
        "a window cannot begin before token 0": [scores(T, tile, lambda i, j: i - w + 1)],
        "a token sees itself and w - 1 before it: the tile's first query i begins at i - w + 1":
            [scores(T, tile, lambda i, j, d=d: max(0, i - w + d)) for d in (0, 2)],
        "it is the window of the tile's *first* query that reaches back furthest, not that of its "
        "last": [scores(T, tile, lambda i, j, d=d: max(0, j - w + d)) for d in (0, 1)],
        "each query of a tile looks at all keys of the tile, so its own keys are counted, too":
            [scores(T, tile, low, lambda i, j: i)],
    }


@exercise
def windowed_scores(rng):
    for kind, about in (("within", ""), ("wide", "Here the window is wider than the text."),
                        ("narrow", "Here the window is narrower than a tile.")):
        while True:
            tile = int(rng.integers(5, 9))
            T = int(rng.integers(4, 7)) * tile + int(rng.integers(2, tile - 1))
            w = int({"within": rng.integers(tile + 2, 2 * tile), "wide": T + rng.integers(3, 9),
                     "narrow": rng.integers(2, tile - 1)}[kind])
            answer = scores(T, tile, lambda i, j, w=w: max(0, i - w + 1))
            # With a wide window some mistakes give the right number.
            mistakes = {hint: {n for n in numbers if n != answer}
                     for hint, numbers in scores_mistakes(T, tile, w).items()}
            if len(set.union(*mistakes.values())) == sum(map(len, mistakes.values())):
                break                                     # no number can be two mistakes
        yield Case((T, tile, w), answer, {
            hint: lambda out, numbers=numbers: any(out == n for n in numbers)
            for hint, numbers in mistakes.items()}, rtol=1e-12, about=about)


@exercise
def predict(rng):
    peak, bandwidth, call = 10.0 ** rng.uniform([9, 9, -7], [11, 11, -5])
    N = int(rng.integers(12, 16))
    limits = 10.0 ** rng.uniform(-6, -2, (3, N))          # seconds by each limit alone
    slow = rng.permutation(np.arange(N) % 3)              # which limit is the slowest
    limits[slow, np.arange(N)] = limits.max(axis=0) * 10.0 ** rng.uniform(0, 1, N)
    limits[2] = np.ceil(limits[2] / call) * call          # whole calls
    slowest, after_each_other = limits.max(axis=0), limits.sum(axis=0)
    args = limits[0] * peak, limits[1] * bandwidth, np.round(limits[2] / call)

    def right(out):
        out = np.asarray(out, float)
        return (out.shape == (N,) and (out >= slowest * (1 - 1e-9)).all()
                and (out <= after_each_other * (1 + 1e-9)).all())

    def near(times):
        return lambda out: np.shape(out) == (N,) and np.allclose(out, times, rtol=1e-6, atol=0)

    return Case((*args, peak, bandwidth, call), right, {
        "return one time for each of the N operations": lambda out: np.shape(out) != (N,),
        "operations times the rate is not a time: divide by the rate": lambda out: (
            np.max(out) > 1e6 * after_each_other.max()),
        "arithmetic is not counted": near(np.maximum(limits[1], limits[2])),
        "the bytes are not counted": near(np.maximum(limits[0], limits[2])),
        "the calls are not counted":
            either(near(np.maximum(limits[0], limits[1])), near(limits[0] + limits[1])),
        "the fastest limit does not decide, but the slowest": near(limits.min(axis=0)),
        "a mean of the limits is less than the slowest of them": near(limits.mean(axis=0)),
        "only one of the three limits is counted": either(*map(near, limits)),
        "some are faster than their slowest limit allows": lambda out: (
            np.asarray(out) < slowest * (1 - 1e-9)).any(),
        "some are slower than arithmetic, bytes and calls after each other": lambda out: (
            np.asarray(out) > after_each_other * (1 + 1e-9)).any(),
    }, about="For each operation, what does each of the three limits need alone?")
