"""Solutions of lesson 13, transfer.  Run the file to have them checked."""

import math

import numpy as np
from scipy import special

from minifpt.exercises import Case, check_solutions, exercise


def ranges_apart(n, m):
    """Every choice of n places among n + m is equally likely; two of them are apart."""
    ways = math.comb(n + m, n)
    return 2 / ways


@exercise(ranges_apart, {
    "either of the two arms may be the upper one": "2 / ways -> 1 / ways",
    "two of the ways are apart": [f"2 / ways -> {k} / ways" for k in (0.5, 4)],
    "not every single pair of runs has to be compared: count the orders of all n + m runs":
        [f"2 / ways -> {p}" for p in ("2 ** (1 - n * m)", "1 / (n * m)", "2 / (n * m)")],
    "the order within an arm does not matter: divide by it": [
        f"2 / ways -> {k} / {orders}" for k in (1, 2) for orders in (
            "math.factorial(n + m)", "math.perm(n + m, n)", "math.perm(n + m, m)")],
    "choose the places of one arm among all n + m": [
        f"2 / ways -> {k} / math.comb({places})" for k in (1, 2)
        for places in ("2 * n, n", "2 * m, m", "n * m, n")],
    "that is the chance that a coin falls the same way each time; here every order of the runs is "
    "equally likely": [f"2 / ways -> 0.5 ** ({k})" for k in ("n + m", "n + m - 1", "n", "m")],
    "that is the chance that the ranges overlap": "2 / ways -> 1 - 2 / ways",
    "the formula is exact: do not round, and do not draw": "2 / ways -> 2.02 / ways",
    "a probability is at most 1: divide by the number of ways": "2 / ways -> ways / 2",
    "return a probability from 0 to 1, not a percentage": "2 / ways -> 200 / ways",
})
def _(rng):
    for n in rng.permutation([3, 4, 5]):
        n, m = int(n), int(n + rng.integers(2, 4))
        yield Case((n, m), mistakes={
            "a probability is at most 1: divide by the number of ways": lambda out: out > 15,
            "the formula is exact: do not round, and do not draw":
                lambda out, n=n, m=m: abs(out / ranges_apart(n, m) - 1) < 0.1,
        }, about=f"Here the arms have {n} and {m} runs: how many ways are there to choose which of "
                 f"the {n + m} places belong to the first arm?")


def probe_gradient(f, W, b, y, decay):
    """Lesson 2's difference, then lesson 1's two products."""
    z = f @ W + b
    p = special.softmax(z, axis=1)
    d = (p - np.eye(len(b))[y]) / len(y)
    return f.T @ d + decay * W, d.sum(axis=0)


FAR = "p = _ -> e = np.exp(z - %s); p = e / e.sum(axis=1, keepdims=True)"


@exercise(probe_gradient, {
    "the loss is a mean over the examples: divide by N": "_ / len(y) -> _",
    "the right answer is not subtracted: the gradient of the scores is p minus one-hot":
        "p - _ -> p",
    "the decay is missing in dW": "_ + decay * W -> _",
    "add the gradient of the decay, not the decay": "decay * W -> decay / 2 * (W ** 2).sum()",
    "the decay is half of decay times the sum of squares: its gradient has no 2, and no half": [
        "decay * W -> 2 * decay * W", "decay * W -> decay * W / 2", "decay * W -> decay * W ** 2",
        "decay * W -> decay / 2 * W ** 2"],
    "the decay is divided by N, too; it belongs to the loss once":
        "decay * W -> decay * W / len(y)",
    "the decay has the wrong sign": "_ + decay * W -> _ - decay * W",
    "the bias has no decay": "d.sum(axis=0) -> d.sum(axis=0) + decay * b",
    "both have the wrong sign: the gradient points uphill": [
        "return _, _1 -> return -(_), -_1", "d = _ -> d = -(_)"],
    "the bias is missing in the scores": "f @ W + b -> f @ W",
    "the softmax runs over the classes, axis 1": [
        "special.softmax(z, axis=1) -> special.softmax(z, axis=0)",
        "special.softmax(z, axis=1) -> special.softmax(z)"],
    "dW is (C, K), as W is: turn the product around": "return _, _1 -> return (_).T, _1",
    "dW: the scores are not the probabilities: take the softmax": "p = _ -> p = z",
    "that is one gradient for each example; add them up": "d.sum(axis=0) -> d",
}, {"return 2 values": "return _, _1 -> return (_)[:1]",
    "largest of each row": [FAR % "0", FAR % "z.max()", FAR % "z.mean(axis=1, keepdims=True)",
                            FAR % "z.min(axis=1, keepdims=True)"],
    "value 1 of 2": "np.eye(len(b))[y] -> np.eye(len(b))[0 * y]",
    "value 2 of 2": "d.sum(axis=0) -> d.sum(axis=0) / len(b)"}, rtol=1e-5)
def _(rng):
    N, C, K = (int(n) for n in rng.permutation([6, 7, 8]) + rng.integers(0, 2) * 3)
    f = rng.standard_normal((N, C)) * rng.uniform(0.5, 2, C)
    far = f * np.where(np.arange(N) % 2, 1, 1e3)[:, None]
    rest = (0.7 * rng.standard_normal((C, K)), rng.standard_normal(K), rng.integers(0, K, N),
            float(rng.uniform(0.2, 0.6)))
    yield f, *rest
    yield Case((far, *rest), mistakes={
        "here some scores are in the thousands: subtract the largest of each row before the "
        "exponential": lambda out: not all(np.isfinite(part).all() for part in out)})


def difference_interval(a, b, confidence):
    """Variances of means add up, whether the means are added or subtracted."""
    from scipy import stats  # here: it takes a second to import

    n, m, va, vb = len(a), len(b), a.var(ddof=1), b.var(ddof=1)
    error = math.sqrt(va / n + vb / m)
    t = stats.t.ppf((1 + confidence) / 2, min(n, m) - 1)
    difference = a.mean() - b.mean()
    return difference - t * error, difference + t * error


ERROR = "math.sqrt(va / n + vb / m) -> "
VAR = "n, m, va, vb = _ -> n, m, va, vb = len(a), len(b), a.var(), b.var()"


@exercise(difference_interval, {
    "the normal distribution instead of t: with few runs it is too narrow": [
        "t = _ -> t = special.ndtri((1 + confidence) / 2)",
        (VAR, "t = _ -> t = special.ndtri((1 + confidence) / 2)")],
    "the level is that of the lesson; use the confidence that you are given": [
        "(1 + confidence) / 2 -> 0.975", "t = _ -> t = 1.96", "t = _ -> t = 2.0"],
    "the standard deviations divide by n - 1 (ddof=1)": VAR,
    "that t leaves out the whole rest on one side; half of it is on each side":
        "(1 + confidence) / 2 -> confidence",
    "the error of a mean: each variance is divided by its number of runs":
        ERROR + "math.sqrt(va + vb)",
    "add the squares of the two errors, not the errors":
        ERROR + "math.sqrt(va / n) + math.sqrt(vb / m)",
    "subtracting the means does not subtract the variances: both errors add to it":
        ERROR + "math.sqrt(abs(va / n - vb / m))",
    "both arms have an error": [ERROR + "math.sqrt(va / n)", ERROR + "math.sqrt(vb / m)"],
    "the root is missing in the error": "math.sqrt(_) -> _",
    "a variance over its number of runs; yours takes the standard deviation over it": [
        ERROR + "math.sqrt(va) / n + math.sqrt(vb) / m",
        ERROR + "math.sqrt(va / n ** 2 + vb / m ** 2)"],
    "one degree of freedom less than the smaller number of runs": [
        f"min(n, m) - 1 -> {df}" for df in (
            "n + m - 2", "min(n, m)", "max(n, m) - 1", "max(n, m)", "n + m",
            "(va / n + vb / m) ** 2 / ((va / n) ** 2 / (n - 1) + (vb / m) ** 2 / (m - 1))")],
    "the difference is a minus b": "a.mean() - b.mean() -> b.mean() - a.mean()",
    "the lower end comes first": "return _, _1 -> return _1, _",
    "that is the standard error alone, without t": "t = _ -> t = 1.0",
}, {"share below 1": "(1 + confidence) / 2 -> 1 + confidence",
    "middle of the interval": ["difference = _ -> difference = _ + 1",
                               "return _ -> return a.min() - b.max(), a.max() - b.min()"],
    "middle is right": "t = _ -> t = 0.5"}, rtol=1e-5)
def _(rng):
    for n, order in zip(rng.permutation([4, 5, 7]), rng.permutation([1, 1, -1]), strict=True):
        n, m = [int(n), int(n + rng.choice([2, 3]))][::order]         # either arm is smaller
        a = rng.uniform(50, 80) + rng.uniform(1, 4) * rng.standard_normal(n)
        b = a.mean() + rng.uniform(-6, 6) + rng.uniform(1, 4) * rng.standard_normal(m)
        args = a, b, float(rng.choice([0.8, 0.9, 0.99]))
        low, high = difference_interval(*args)
        yield Case(args, mistakes={
            "t.ppf takes a share below 1, then the degrees of freedom":
                lambda out: not np.isfinite(out).any(),
            "the middle of the interval is mean(a) - mean(b)":
                lambda out, middle=low + high: not np.isclose(out[0] + out[1], middle),
            "the middle is right and the length is not: t times the error on each side":
                lambda out, length=high - low: not np.isclose(out[1] - out[0], length)})


def seeds_needed(difference, spread):
    """By the normal distribution, and one more, because t is a little wider."""
    return math.ceil(2 * ((1.96 + 0.8416) * spread / difference) ** 2) + 1


# A few runs more are right as well, since t is wider: the case judges the number alone.
@exercise(seeds_needed, refused={
    "whole number": "math.ceil(_) + 1 -> _ + 0.5",
    "round up": ["math.ceil(_) + 1 -> round(_)", "math.ceil(_) + 1 -> int(_)",
                 "math.ceil(_) + 1 -> np.floor(_)"],
    "either 0.84": ["math.ceil(2 * _ ** 2) + 1 -> math.ceil(_ ** 2)",
                    "_ + 1 -> math.ceil(2 * (1.96 * spread / difference) ** 2)"],
    "square": "_ + 1 -> math.ceil(2 * 2.8016 ** 2 * spread / difference)",
    "exchanged": "_ + 1 -> math.ceil(2 * (2.8016 * difference / spread) ** 2)",
    "both arms together": "math.ceil(2 * _ ** 2) + 1 -> math.ceil(4 * _ ** 2)",
    "too few": "return _ -> return 10",
    "fewer are enough": "return _ -> return 1000",
})
def _(rng):
    def case(ratio):                                      # about the difference in spreads
        spread = float(rng.uniform(1, 4))
        # A whole number and a little, by the lesson's 2.8 as by the exact 2.8016: who rounds to
        # the nearest one, or down, has a run too few.
        per_arm = round(2 * (2.8 / (ratio * rng.uniform(0.95, 1.05))) ** 2) + rng.uniform(0.08, 0.2)
        enough = math.ceil(per_arm)
        difference = 2.8 * spread * math.sqrt(2 / per_arm)

        def right(out):                                   # a few more: t is wider than 1.96
            return float(out) == int(out) and enough <= out <= 1.1 * per_arm + 4

        def near(value):
            return lambda out: abs(float(out) - value) <= 1.5 + 0.02 * value

        return Case((difference, spread), right, {
            "return a whole number of runs":
                lambda out: float(out) != int(out),
            "round up: the formula says a little more than that, and one run less than it says is "
            "too few (math.ceil)":
                lambda out: out == enough - 1,
            "that is half of what is needed: either 0.84 or one of the two variances is missing":
                near(per_arm / 2),
            "that is for both arms together; return the number in each": near(2 * per_arm),
            "the number grows with the square of spread / difference": near(
                2 * 2.8 ** 2 * spread / difference),
            "spread and difference are exchanged: a small difference needs many runs":
                near(2 * (2.8 * difference / spread) ** 2),
            "too few: in more than a fifth of the studies the interval would hold 0":
                lambda out: out < enough,
            "that would do, but fewer are enough":
                lambda out: out > 1.1 * per_arm + 4,
        })

    for ratio in rng.permutation([0.3, 0.4, 0.6]):
        yield case(ratio)


if __name__ == "__main__":
    check_solutions(globals())
