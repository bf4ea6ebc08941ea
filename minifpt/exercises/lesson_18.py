"""Lesson 18, your own."""

import numpy as np
from scipy.special import softmax

from . import Case, close_to, exercise, part


@exercise
def scaled(rng):
    def case(dtype, other):
        S, D = rng.standard_normal((3, 5)).astype(dtype), int(rng.integers(5, 9))
        name, is_right = dtype.__name__, close_to(S / D ** 0.5)

        def has_dtype(out, dtype):
            return isinstance(out, np.ndarray) and out.dtype == dtype

        return Case((S, D), lambda out: has_dtype(out, dtype) and is_right(out), {
            f"{name} comes in and {other.__name__} goes out: " + (
                "np.sqrt(D) is a number of NumPy's, which turns float32 into float64"
                if dtype == np.float32 else "take the dtype of S"):
                lambda out: has_dtype(out, other) and is_right(out),
            "return an array": lambda out: not isinstance(out, np.ndarray),
            "divided by D, not by its root": close_to(S / D),
            "multiplied by the root of D": close_to(S * D ** 0.5),
            "D is a number here, not the width of S": close_to(*(S / n ** 0.5 for n in S.shape)),
        }, about=f"Divide by the square root of D, and return {name} for {name}.")

    yield case(np.float32, np.float64)
    yield case(np.float64, np.float32)


@exercise
def swish_backward(rng):
    B, T, C = (int(n) for n in rng.permutation([2, 3, 4]))
    x, dy = 2 * rng.standard_normal((2, B, T, C))
    beta = rng.uniform(0.5, 2.0, C) * rng.choice([-1, 1], C)
    s, plain = 1 / (1 + np.exp(-beta * x)), 1 / (1 + np.exp(-x))
    slope = s * (1 - s)
    each = dy * x * x * slope
    dx, dbeta = dy * (s + x * beta * slope), each.sum(axis=(0, 1))

    return Case((dy, x, beta), (dx, dbeta), {
        "return them in the order dx, dbeta": part(0, dbeta),
        "in dx, a product has two terms, and you have the one in which the sigmoid stays":
            part(0, dy * s),
        "in dx, a product has two terms, and you have the one in which the sigmoid moves":
            part(0, dy * x * beta * slope),
        "in dx, the two terms add up": part(0, dy * (s - x * beta * slope)),
        "the sigmoid is 1 / (1 + exp(-beta x)), mind its sign": part(
            0, dy * (1 - s + x * beta * slope), dy * (1 - s - x * beta * slope)),
        "the sigmoid is 1 / (1 + exp(-beta x)), with beta": part(
            0, dy * (plain + x * beta * plain * (1 - plain))),
        "in dx, the sigmoid's argument is beta x, so a factor beta comes out": part(
            0, dy * (s + x * slope)),
        "in dx, the slope of the sigmoid s is s (1 - s)": part(
            0, *(dy * (s + x * beta * factor) for factor in (s, 1 - s, 1, s * s))),
        "in dx, dy is missing": part(0, s + x * beta * slope),
        "for dbeta, one number for each channel; batch and tokens all use it": lambda out: (
            np.shape(out[1]) == each.shape or np.shape(out[1]) in (
                each.sum(axis=0).shape, each.sum(axis=1).shape, ())),
        "in dbeta, a mean for a sum: each token adds its whole share": part(
            1, each.mean(axis=(0, 1)), dbeta / B, dbeta / T),
        "in dbeta, one x is the factor in front, the other comes out of the sigmoid": part(
            1, (dy * x * slope).sum(axis=(0, 1)), (dy * slope).sum(axis=(0, 1))),
        "in dbeta, what comes out of the sigmoid is x, not beta": part(
            1, (dy * x * beta * slope).sum(axis=(0, 1))),
        "in dbeta, the slope of the sigmoid s is s (1 - s)": part(
            1, (dy * x * x * s).sum(axis=(0, 1)), (dy * x * x).sum(axis=(0, 1))),
    })


@exercise
def chain_backward(rng):
    n = int(rng.integers(3, 6))

    def layer():
        w, factor = rng.standard_normal((n, n)), float(rng.uniform(0.5, 1.5))

        def forward(x):
            y = np.tanh(factor * x @ w)
            return y, (y, x.shape)

        def backward(dy, cache):
            y, shape = cache
            return (factor * dy * (1 - y * y) @ w.T).reshape(shape)
        return forward, backward

    first, second, third = layer(), layer(), layer()
    pairs = [first, second, third, second]                # one of them stands there twice
    x, dy = rng.standard_normal((2, n - 1, n))

    def caches(chained=True):
        value, saved = x, []
        for forward, _ in pairs:
            y, cache = forward(value)
            saved.append(cache)
            value = y if chained else value
        return saved, y

    def back(saved, order, start=dy):
        grad = start
        for i in order:
            grad = pairs[i][1](grad, saved[i])
        return grad

    (saved, y), backwards = caches(), [3, 2, 1, 0]
    by_pair = {pair: cache for pair, cache in zip(pairs, saved, strict=True)}
    return Case((pairs, x, dy), back(saved, backwards), {
        "the last forward pass is the first to go back": back(saved, range(4)),
        "each forward pass takes what the one before it gave, not x":
            back(caches(chained=False)[0], backwards),
        "each backward pass takes what the one after it gave, not dy": close_to(
            pairs[0][1](dy, saved[0]), sum(p[1](dy, c) for p, c in zip(pairs, saved, strict=True))),
        "that is the last pair alone": pairs[3][1](dy, saved[3]),
        "one pair stands there twice, and each time has a cache of its own": back(
            [by_pair[pair] for pair in pairs], backwards),
        "each backward pass needs the cache of its own forward pass": close_to(
            *(back([cache] * 4, backwards) for cache in (saved[0], saved[3])),
            *(back(saved[::-1], order) for order in (backwards, range(4)))),
        "one backward pass is missing": close_to(*(
            back(saved, order) for order in ([3, 2, 1], [2, 1, 0], [3, 1, 0], [3, 2, 0]))),
        "that is y: run back from it, with dy": y,
    })


@exercise
def wrong_but_useful(rng):
    def case(shape):
        x, dy = 2 * rng.standard_normal((2, *shape))
        y = softmax(x, axis=-1)
        right = y * (dy - (dy * y).sum(axis=-1, keepdims=True))

        def cosine(out):
            out = np.asarray(out, np.float64)
            if out.shape != right.shape or not np.isfinite(out).all() or not out.any():
                raise ValueError("no such array")
            return float((out * right).sum() / np.linalg.norm(out) / np.linalg.norm(right))

        return Case((dy, y), lambda out: 0.85 <= cosine(out) <= 0.999, {
            "return an array of the shape of y, with something in it":
                lambda out: np.shape(out) != shape or not np.any(out),
            "that is the gradient, or a multiple of it: make it wrong":
                lambda out: cosine(out) > 0.999,
            "it points away from the gradient: a step against it makes the loss larger":
                lambda out: cosine(out) < -0.2,
            "it has nothing to do with the gradient: their cosine is about 0":
                lambda out: abs(cosine(out)) < 0.2,
            **{f"its cosine with the gradient is {c:.2f}, below 0.85":
               lambda out, c=c: cosine(out) < c + 0.01 for c in np.arange(0.2, 0.845, 0.01)},
        }, about="Its cosine with the gradient must lie between 0.85 and 0.999.")

    for shape in ((300, 5), (40, 7, 6)):                  # so many rows that chance has no say
        yield case(shape)
