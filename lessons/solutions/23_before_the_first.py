"""Solutions of lesson 23, before the first lesson.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, close_to, exercise


def token_sums(x):
    """The index t is summed over: axis 1."""
    return x.sum(axis=1)


@exercise(token_sums, {
    "that adds over the examples: counting begins with 0, so tokens are axis 1":
        "x.sum(axis=1) -> x.sum(axis=0)",
    "that adds over the channels: tokens are axis 1": "x.sum(axis=1) -> x.sum(axis=2)",
    "a mean for a sum": "x.sum(axis=1) -> x.mean(axis=1)",
    "that is one number for all: give the axis": "x.sum(axis=1) -> x.sum()",
    "that adds over two axes: only the index t is summed over": [
        f"x.sum(axis=1) -> x.sum(axis={axes})" for axes in ("(0, 1)", "(1, 2)", "(0, 2)")],
    "that is one token, not the sum of all": [
        "return _ -> return x[:, 0]",
        "return _ -> return x[:, -1]"],
    "one token is left out": [
        "return _ -> return x[:, :-1].sum(axis=1)",
        "return _ -> return x[:, 1:].sum(axis=1)"],
    "that picks one token for each channel: add them": [
        "return _ -> return x.max(axis=1)",
        "return _ -> return x.min(axis=1)"],
    "the numbers are added as they are: no squares, sizes or products": [
        "return _ -> return abs(x).sum(axis=1)",
        "return _ -> return (x * x).sum(axis=1)",
        "return _ -> return x.prod(axis=1)"],
    "that reshape mixes tokens and channels: axis 1 is added as it is": [
        "return _ -> return x.reshape(len(x), x.shape[2], -1).sum(axis=-1)"],
})
def _(rng):
    yield rng.standard_normal(rng.permutation([3, 4, 5])),


def weighted_sums(x, w):
    """Each row times w, added up over c."""
    return x @ w


@exercise(weighted_sums, {
    "the products are right, and they are not added up yet": "x @ w -> x * w",
    "that adds up everything: the index n stays": "x @ w -> (x * w).sum()",
    "that adds over the rows: the index c is summed over": "x @ w -> (x * w).sum(axis=0)",
    "a mean for a sum": "x @ w -> (x * w).mean(axis=1)",
    "the weights are missing": "x @ w -> x.sum(axis=1)",
    "that is a weighted mean: the sum is not divided by anything": "x @ w -> x @ w / w.sum()",
    "a sum of products is not the product of two sums: multiply first, then add":
        "x @ w -> x.sum(axis=1) * w.sum()",
    "multiply first, then add: yours adds x over c before a weight has met it":
        "x @ w -> x.sum(axis=1)[:, None] * w",
    "the weights multiply: yours adds them": "x @ w -> (x + w).sum(axis=1)",
    "that is one row: the answer has one sum for each n": "x @ w -> x[0] @ w",
    "a weight belongs to a column: w[c], not w[n]": "x @ w -> np.resize(w, len(x)) * x.sum(axis=1)",
    "each weight counts once, as it is": [
        "return _ -> return x @ (w * w)",
        "return _ -> return (x * x) @ w",
        "return _ -> return abs(x) @ w",
        "return _ -> return x @ abs(w)"],
    "weight c belongs to column c, not to another": [
        "return _ -> return x @ w[::-1]",
        "return _ -> return x @ np.sort(w)"],
    "one sum for each row; yours is the same for all": [
        "return _ -> return np.full(len(x), (x * w).mean())",
        "return _ -> return np.full(len(x), (x * w).sum())"],
    "one column is left out": [
        "return _ -> return x[:, :-1] @ w[:-1]",
        "return _ -> return x[:, 1:] @ w[1:]"],
})
def _(rng):
    N, C = rng.permutation([4, 5, 6])[:2]
    yield rng.standard_normal((N, C)), rng.standard_normal(C)


def product_entry(x, w, n, o):
    """Column o of the transpose is row o of w."""
    return x[n] @ w[o]


@exercise(product_entry, {
    "the transpose is forgotten: column o of the transpose is row o of w":
        "x[n] @ w[o] -> x[n] @ w[:, o]",
    "n and o are exchanged": "x[n] @ w[o] -> x[o] @ w[n]",
    "the products are right, and they are not added up yet": "x[n] @ w[o] -> x[n] * w[o]",
    "that is one product of two numbers: add over i": [
        f"x[n] @ w[o] -> {product}" for product in ("x[n, o] * w[n, o]", "x[n, o] * w[o, n]")],
    "that is the whole product: take one entry": "x[n] @ w[o] -> x @ w.T",
    "that is a whole row of the product: take one entry": "x[n] @ w[o] -> x[n] @ w.T",
    "a sum of products is not the product of two sums: multiply first": [
        "return _ -> return x[n].sum() * w[o].sum()"],
    "the products x_i w_i are added; yours adds the numbers": [
        "return _ -> return (x[n] + w[o]).sum()"],
    "counting begins with 0: rows n and o": [
        "return _ -> return x[n - 1] @ w[o - 1]"],
    "one term is left out": [
        "return _ -> return x[n, :-1] @ w[o, :-1]",
        "return _ -> return x[n, 1:] @ w[o, 1:]"],
    "row n of x and row o of w: yours takes one index twice": [
        "return _ -> return x[n] @ w[n]",
        "return _ -> return x[o] @ w[o]"],
    "that is one of the products: add over i": [
        "return _ -> return x[n, 0] * w[o, 0]",
        "return _ -> return (x[n] * w[o]).max()"],
})
def _(rng):
    N, size = int(rng.integers(6, 8)), 5                  # w is square, so its transpose fits
    n, o = (int(i) for i in rng.choice(size, 2, replace=False))
    yield rng.standard_normal((N, size)), rng.standard_normal((size, size)), n, o


def inner_slope(a, b, t):
    """The square's derivative, times the inner one."""
    return 2 * (a * t + b) * a


@exercise(inner_slope, {
    "the inner derivative is missing: a t + b moves a times as fast as t":
        "2 * (a * t + b) * a -> 2 * (a * t + b)",
    "the 2 of the square's derivative is missing": "2 * (a * t + b) * a -> (a * t + b) * a",
    "the derivative of a square is 2 s at s = a t + b, not at t":
        "2 * (a * t + b) * a -> 2 * t * a",
    "that is f(t), not its slope": "2 * (a * t + b) * a -> (a * t + b) ** 2",
    "rates along a path multiply: yours adds them": "2 * (a * t + b) * a -> 2 * (a * t + b) + a",
    "the derivative of a square is 2 s, and here s is a t + b": [
        "2 * (a * t + b) * a -> 2 * a", "2 * (a * t + b) * a -> 2 * a ** 2"],
    "b is missing": "a * t + b -> a * t",
    "the square of a sum has a product, 2 a b t, too: use the chain rule": [
        f"2 * (a * t + b) * a -> {slope}" for slope in ("2 * a ** 2 * t + b", "2 * a * t + b")],
    "the inner derivative is a; b does not move with t":
        "2 * (a * t + b) * a -> 2 * (a * t + b) * (a + b)",
    "that is the slope of a t + b alone: the square has one too": [
        "return _ -> return a"],
    "the whole line is squared, a t and b, and 2 (a t + b) has no t of its own": [
        "return _ -> return 2 * (a * t + b) * t",
        "return _ -> return 2 * (a * t + b) * a * t"],
    "2 a (a t + b) is 2 a a t + 2 a b, term by term": [
        "return _ -> return 2 * a * (t + b)",
        "return _ -> return 2 * a * a * t + 2 * a * b * t",
        "return _ -> return 2 * a * a * t + 2 * b",
        "return _ -> return 2 * a * a * t + a * b",
        "return _ -> return 2 * a * (a * t - b)"],
    "that is an integral: the exponent goes down": [
        "return _ -> return (a * t + b) ** 3 / 3",
        "return _ -> return (a * t + b) ** 3 / (3 * a)"],
    "the inner derivative a comes in once, as a factor": [
        "return _ -> return 2 * a * a * (a * t + b)",
        "return _ -> return a * a"],
    "that is the line itself, without its square's slope 2 (a t + b)": [
        "return _ -> return a * t + b"],
})
def _(rng):
    yield tuple(float(v) for v in rng.uniform(1.5, 4, 3) * rng.choice([-1, 1], 3))


def slope_at(f, t):
    """Up and down by the same small turn."""
    return (f(t + 1e-5) - f(t - 1e-5)) / 2e-5


UP_AND_DOWN = "(f(t + 1e-5) - f(t - 1e-5)) / 2e-5 -> "


@exercise(slope_at, {
    "twice as large: from t - h to t + h is a turn of 2 h":
        UP_AND_DOWN + "(f(t + 1e-5) - f(t - 1e-5)) / 1e-5",
    "half as large: from t to t + h is a turn of h": UP_AND_DOWN + "(f(t + 1e-5) - f(t)) / 2e-5",
    "the sign is the other way round: later minus earlier":
        UP_AND_DOWN + "(f(t - 1e-5) - f(t + 1e-5)) / 2e-5",
    "divide by the turn": UP_AND_DOWN + "f(t + 1e-5) - f(t - 1e-5)",
    "that is f(t), not its slope": UP_AND_DOWN + "f(t)",
    "the turn is too large: the curve bends on the way": [UP_AND_DOWN + "(f(t + 0.1) - f(t)) / 0.1",
        UP_AND_DOWN + "(f(t + 0.1) - f(t - 0.1)) / 0.2"],
    "that is the slope at 0: turn t, f(t + h)": UP_AND_DOWN + "(f(1e-5) - f(-1e-5)) / 2e-5",
    "that is h times t: the turn is added, f(t + h)":
        UP_AND_DOWN + "(f(t + t * 1e-5) - f(t - t * 1e-5)) / 2e-5",
}, rtol=1e-4)
def _(rng):
    for sign in rng.permutation([-1, 1]):
        k, phase = rng.uniform(1, 2), rng.uniform(0, 0.3)
        t = float(rng.uniform(0.2, 0.4))

        def f(t, k=k, phase=phase, sign=sign):
            return 30 + sign * np.sin(k * t + phase)

        slope = float(sign * k * np.cos(k * t + phase))
        yield Case((f, t), slope, {                           # numbers that may agree by chance
            "upside down: how far f moved, divided by how far t was turned":
                close_to(1 / slope, rtol=1e-4),
            "a turn of 1 is too large: the curve bends on the way": close_to(f(t + 1) - f(t)),
            "that is f(t) / t: how far f moves, not how large it is": close_to(f(t) / t),
            "that is the slope of one formula: f is any function, so call it": close_to(2 * t),
            "that is enormous: take the difference first, in brackets, then divide":
                lambda y: abs(y) > 1000,
            "next to nothing: divide by the turn. a / 2 * h divides by 2 and multiplies by h":
                lambda y: 0 < abs(y) < 0.01,
            "near, but not near enough: a large turn lets the curve bend, and of a turn below 1e-9 "
            "rounding leaves little": lambda y, slope=slope: abs(y - slope) < 0.3,
        })


if __name__ == "__main__":
    check_solutions(globals())
