"""Solutions of lesson 18, your own.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import Case, check_solutions, exercise


def swish_backward(dy, x, beta):
    """y = x s with s = sigmoid(beta x): two terms for x, one for beta, which all tokens use."""
    s = 1 / (1 + np.exp(-beta * x))
    slope = s * (1 - s)
    dx, each = dy * (s + x * beta * slope), dy * x * x * slope
    return dx, each.sum(axis=(0, 1))


IN_DX, SLOPE = "dy * (s + x * beta * slope) -> ", "x * beta * slope -> "


@exercise(swish_backward, {
    "return them in the order dx, dbeta": "return _, _1 -> return _1, _",
    "in dx, a product has two terms, and you have the one in which the sigmoid stays":
        "s + x * beta * slope -> s",
    "in dx, a product has two terms, and you have the one in which the sigmoid moves":
        "s + x * beta * slope -> x * beta * slope",
    "in dx, a product's derivative is a sum of two terms, not the product of two derivatives": [
        "s + x * beta * slope -> s * beta * slope", "s + x * beta * slope -> beta * slope"],
    "in dx, where the sigmoid moves, x stands in front of it": SLOPE + "beta * slope",
    "in dx, the two terms add up": "s + x * beta * slope -> s - x * beta * slope",
    "the sigmoid is 1 / (1 + exp(-beta x)), mind its sign": [
        "s + x * beta * slope -> 1 - s - x * beta * slope",
        "s + x * beta * slope -> 1 - s + x * beta * slope"],
    "the sigmoid is 1 / (1 + exp(-beta x)), with beta": [
        "-beta * x -> -x", IN_DX + "dy * (1 / (1 + np.exp(-x)) + x * beta / (2 + 2 * np.cosh(x)))"],
    "in dx, the sigmoid's argument is beta x, so a factor beta comes out": SLOPE + "x * slope",
    "in dx, the slope of the sigmoid s is s (1 - s)": [
        SLOPE + f"x * beta * {factor}"
        for factor in ("s", "(1 - s)", "1", "s * s", "s * (1 - beta * x)")],
    "in dx, dy is missing": IN_DX + "s + x * beta * slope",
    "in dbeta, a mean for a sum: each token adds its whole share": [
        "_.sum(axis=(0, 1)) -> _.mean(axis=(0, 1))", "_.sum(axis=(0, 1)) -> _.sum(0).mean(0)",
        "_.sum(axis=(0, 1)) -> _.mean(0).sum(0)"],
    "in dbeta, one x is the factor in front, the other comes out of the sigmoid": [
        "dy * x * x * slope -> dy * x * slope", "dy * x * x * slope -> dy * slope"],
    "in dbeta, what comes out of the sigmoid is x, not beta":
        "dy * x * x * slope -> dy * x * beta * slope",
    "in dbeta, the slope of the sigmoid s is s (1 - s)": [
        "dy * x * x * slope -> dy * x * x * s", "dy * x * x * slope -> dy * x * x",
        "dy * x * x * slope -> dy * x * s"],
    "in dbeta, dy is missing": "dy * x * x * slope -> x * x * slope",
    "one number for each channel in dbeta; batch and tokens all use it": [
        f"_.sum(axis=(0, 1)) -> {dbeta}"
        for dbeta in ("_", "_.sum(0)", "_.sum(1)", "_.sum(-1)", "_.sum()")],
    "in dx, no factor beta stands before the sigmoid, and one before its slope": [
        "s + x * beta * slope -> beta * s + x * beta * slope",
        "s + x * beta * slope -> s + x * beta * beta * slope"],
    "in dbeta, only the sigmoid moves with beta": [
        "dy * x * x * slope -> dy * x * (s + x * beta * slope)"],
    "that is the slope of a tanh": [
        "slope = _ -> slope = 1 - s * s"],
})
def _(rng):
    B, T, C = (int(n) for n in rng.permutation([2, 3, 4]))
    x, dy = 2 * rng.standard_normal((2, B, T, C))
    yield dy, x, rng.uniform(0.5, 2.0, C) * rng.choice([-1, 1], C)


def chain_backward(pairs, x, dy):
    """There, with a list of caches; and back, with the same list from its end."""
    caches = []
    for forward, _ in pairs:
        x, cache = forward(x)
        caches.append(cache)
    for (_, backward), cache in zip(pairs[::-1], caches[::-1], strict=True):
        dy = backward(dy, cache)
    return dy


BACK = "zip(pairs[::-1], caches[::-1], strict=True) -> "


@exercise(chain_backward, {
    "the last forward pass is the first to go back": BACK + "zip(pairs, caches)",
    "each forward pass takes what the one before it gave, not x":
        "x, cache = forward(x) -> _, cache = forward(x)",
    "each backward pass takes what the one after it gave, not dy": [
        ("dy = backward(dy, cache) -> dx = backward(dy, cache)", "return dy -> return dx"),
        ("caches = [] -> caches = []; dx = 0",
         "dy = backward(dy, cache) -> dx = dx + backward(dy, cache)", "return dy -> return dx"),
        ("caches = [] -> caches = []; dx = 1",
         "dy = backward(dy, cache) -> dx = dx * backward(dy, cache)", "return dy -> return dx")],
    "those are the gradients of all pairs: return that of x alone": (
        "caches = [] -> caches = []; gradients = []",
        "dy = backward(dy, cache) -> dy = backward(dy, cache); gradients.append(dy)",
        "return dy -> return np.array(gradients)"),
    "that is the last pair alone": BACK + "[(pairs[-1], caches[-1])]",
    "one pair stands there twice, and each time has a cache of its own":
        BACK + "[(pair, dict(zip(pairs, caches))[pair]) for pair in pairs[::-1]]",
    "each backward pass needs the cache of its own forward pass": [
        BACK + f"zip({order}, {own})" for order in ("pairs[::-1]", "pairs") for own in (
            "caches[:1] * len(pairs)", "caches[-1:] * len(pairs)",
            "caches" if order != "pairs" else "caches[::-1]")],
    "one backward pass is missing": [BACK + f"[(pairs[i], caches[i]) for i in {order}]"
        for order in ((3, 2, 1), (2, 1, 0), (3, 1, 0), (3, 2, 0))],
    "that is y: run back from it, with dy": "return dy -> return x",
    "a chain has no way past a pair: what comes back replaces dy": [
        "dy = backward(dy, cache) -> dy = dy + backward(dy, cache)"],
    "the start is dy, and it comes in once": [
        "caches = [] -> caches = []\ndy = np.ones_like(dy)"],
    "the forward pass begins with x, not with dy": [
        "caches = [] -> caches = []\nx = dy"],
    "nothing has gone back: dy belongs to the output": [
        "dy = backward(dy, cache) -> pass"],
})
def _(rng):
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
    x, dy = rng.standard_normal((2, n - 1, n))
    yield [first, second, third, second], x, dy           # one of them stands there twice


def wrong_but_useful(dy, y):
    """One of many: the root of y in place of y.  Large shares count less than they should."""
    return np.sqrt(y) * (dy - (dy * y).sum(axis=-1, keepdims=True))


# Whatever points roughly along the gradient is right: the case measures the angle.
@exercise(wrong_but_useful, refused={
    "make it wrong": ["np.sqrt(y) -> y", "np.sqrt(y) -> 0.3 * y"],
    "points away": "return _ -> return -np.sqrt(y) * dy",
    "nothing to do with": "return _ -> return np.random.default_rng(0).standard_normal(y.shape)",
    "below 0.85": ["return _ -> return y * dy", "return _ -> return dy"],
    "something in it": ["return _ -> return 0 * y", "return _ -> return dy.sum(axis=-1)"],
})
def _(rng):
    def case(shape):
        x, dy = 2 * rng.standard_normal((2, *shape))
        y, _ = F.softmax(x)
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


if __name__ == "__main__":
    check_solutions(globals())
