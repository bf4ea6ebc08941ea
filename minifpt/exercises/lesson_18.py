"""Lesson 18, your own."""

import numpy as np

from . import Case, close_to, exercise, part


def close(a, b):
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


@exercise
def scaled(rng):
    for dtype, other in ((np.float32, np.float64), (np.float64, np.float32)):
        S, D = rng.standard_normal((3, 5)).astype(dtype), int(rng.integers(5, 9))
        right = S / D ** 0.5
        name = dtype.__name__
        yield Case((S, D), lambda out, right=right: isinstance(out, np.ndarray) and (
            out.dtype == right.dtype and close(out, right)), {
            f"{name} comes in and {other.__name__} goes out: " + (
                "np.sqrt(D) is a number of NumPy's, which turns float32 into float64"
                if dtype == np.float32 else "take the dtype of S"):
            lambda out, right=right, other=other: close(out, right) and isinstance(
                out, np.ndarray) and out.dtype == other,
            "return an array": lambda out: not isinstance(out, np.ndarray),
            "divided by D, not by its root": lambda out, S=S, D=D: close(out, S / D),
            "multiplied by the root of D": lambda out, S=S, D=D: close(out, S * D ** 0.5),
            "D is a number here, not the width of S": lambda out, S=S: any(
                close(out, S / n ** 0.5) for n in S.shape),
        }, about=f"Divide by the square root of D, and return {name} for {name}.")


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
        "return them in the order dx, dbeta": lambda out: close(out[0], dbeta),
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


def cosine(a, b):
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@exercise
def wrong_but_useful(rng):
    for shape in ((300, 5), (40, 7, 6)):                  # so many rows that chance has no say
        x, dy = 2 * rng.standard_normal((2, *shape))
        y = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        right = y * (dy - (dy * y).sum(axis=-1, keepdims=True))

        def angle(out, right=right):
            out = np.asarray(out, np.float64)
            if out.shape != right.shape or not np.isfinite(out).all() or not out.any():
                raise ValueError("no such array")
            return cosine(out, right)

        yield Case((dy, y), lambda out, angle=angle: 0.85 <= angle(out) <= 0.999, {
            "return an array of the shape of y, with something in it":
                lambda out, shape=shape: np.shape(out) != shape or not np.any(out),
            "that is the gradient, or a multiple of it: make it wrong":
                lambda out, angle=angle: angle(out) > 0.999,
            "it points away from the gradient: a step against it makes the loss larger":
                lambda out, angle=angle: angle(out) < -0.2,
            "it has nothing to do with the gradient: their cosine is about 0":
                lambda out, angle=angle: abs(angle(out)) < 0.2,
            **{f"its cosine with the gradient is {c:.2f}, below 0.85":
               lambda out, angle=angle, c=c: angle(out) < c + 0.01
               for c in np.arange(0.2, 0.845, 0.01)},
        }, about="Its cosine with the gradient must lie between 0.85 and 0.999.")
