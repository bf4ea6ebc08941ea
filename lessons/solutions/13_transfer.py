"""Solutions of lesson 13, how sure is a difference.  Run the file to have them checked."""

import math

import numpy as np
from scipy import special  # noqa: F401, for a mistake

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
    "that is for five runs against five": ["2 / ways -> 2 / 252", "2 / ways -> 0.0079365"],
    "choose the places of one arm among all n + m": [
        f"2 / ways -> {k} / math.comb({places})" for k in (1, 2)
        for places in ("2 * n, n", "2 * m, m", "n * m, n", "m, n")],
    "that is the chance that a coin falls the same way each time; here every order of the runs is "
    "equally likely": [f"2 / ways -> 0.5 ** ({k})" for k in ("n + m", "n + m - 1", "n", "m")],
    "that is the chance that the ranges overlap": "2 / ways -> 1 - 2 / ways",
    "the formula is exact: do not round, and do not draw": "2 / ways -> 2.02 / ways",
    "a probability is at most 1: divide by the number of ways": "2 / ways -> ways / 2",
    "return a probability from 0 to 1, not a percentage": [
        "2 / ways -> 200 / ways", "2 / ways -> 100 / ways"],
    "count the ways to choose n places of n + m, not the places": [
        "return _ -> return 2 / (n + m)",
        "return _ -> return (n + m) / ways",
        "return _ -> return 2 / math.comb(n + m - 1, n)",
        "return _ -> return 2 / math.comb(n + m + 1, n)"],
})
def _(rng):
    for n in rng.permutation([3, 4, 6]):
        n, m = int(n), int(n + rng.choice([3, 6]))
        yield Case((n, m), mistakes={
            "a probability is at most 1: divide by the number of ways": lambda out: out > 15,
            "the formula is exact: do not round, and do not draw":
                lambda out, n=n, m=m: abs(out / ranges_apart(n, m) - 1) < 0.1,
        }, about=f"Here the arms have {n} and {m} runs: how many ways are there to choose which of "
                 f"the {n + m} places belong to the first arm?")


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
    "ddof=1 has divided by n - 1; the mean's variance is that over n": [
        ERROR + "math.sqrt(va / (n - 1) + vb / (m - 1))"],
    "that pools both arms into one spread; each arm keeps its own": [
        ERROR + "math.sqrt(((n - 1) * va + (m - 1) * vb) / (n + m - 2) * (1 / n + 1 / m))",
        (ERROR + "math.sqrt(((n - 1) * va + (m - 1) * vb) / (n + m - 2) * (1 / n + 1 / m))",
         "min(n, m) - 1 -> n + m - 2")],
    "each variance is divided by its own arm's number of runs": [
        ERROR + "math.sqrt(va / m + vb / n)",
        *(ERROR + f"math.sqrt((va + vb) / {k})" for k in ("n", "m", "min(n, m)", "(n + m)"))],
    "that t leaves out the whole rest on one side; half of it is on each side":
        "(1 + confidence) / 2 -> confidence",
    "with a confidence of 0.9 a tenth is left out, half of it above: t has 0.95 below it":
        "(1 + confidence) / 2 -> 1 - confidence / 2",
    "the error of a mean: each variance is divided by its number of runs":
        ERROR + "math.sqrt(va + vb)",
    "add the squares of the two errors, not the errors":
        ERROR + "math.sqrt(va / n) + math.sqrt(vb / m)",
    "subtracting the means does not subtract the variances: both errors add to it":
        ERROR + "math.sqrt(abs(va / n - vb / m))",
    "both arms have an error": [ERROR + "math.sqrt(va / n)", ERROR + "math.sqrt(vb / m)"],
    "the root is missing in the error": "math.sqrt(_) -> _",
    "divide a variance by its number of runs; you divide a standard deviation, or by the square": [
        ERROR + "math.sqrt(va) / n + math.sqrt(vb) / m",
        ERROR + "math.sqrt(va / n ** 2 + vb / m ** 2)",
        ERROR + "math.sqrt(math.sqrt(va) / n + math.sqrt(vb) / m)"],
    "one degree of freedom less than the smaller number of runs": [
        f"min(n, m) - 1 -> {df}" for df in (
            "n + m - 2", "n + m - 1", "min(n, m)", "max(n, m) - 1", "max(n, m)", "n + m",
            "(va / n + vb / m) ** 2 / ((va / n) ** 2 / (n - 1) + (vb / m) ** 2 / (m - 1))")],
    "the difference is a minus b": "a.mean() - b.mean() -> b.mean() - a.mean()",
    "the lower end comes first: is your t negative?": [
        "return _, _1 -> return _1, _", "(1 + confidence) / 2 -> (1 - confidence) / 2",
        "(1 + confidence) / 2 -> 1 - confidence", "(1 + confidence) / 2 -> confidence / 2"],
    "an interval has two ends: the difference minus and plus t times the error": [
        "return _, _1 -> return difference, t * error", "return _, _1 -> return difference, error"],
    "that is the standard error alone, without t": "t = _ -> t = 1.0",
}, {"share below 1": "(1 + confidence) / 2 -> 1 + confidence",
    "middle of the interval": ["difference = _ -> difference = _ + 1",
                               "return _ -> return a.min() - b.max(), a.max() - b.min()"],
    "middle is right": "t = _ -> t = 0.5"}, rtol=1e-5)
def _(rng):
    sign = rng.choice([-1, 1])
    for n, order in zip(rng.permutation([4, 5, 7]), rng.permutation([1, 1, -1]), strict=True):
        n, m = [int(n), int(n + rng.choice([2, 3]))][::order]         # either arm is smaller
        a = rng.uniform(50, 80) + rng.uniform(1, 4) * rng.standard_normal(n)
        sign *= -1                                        # either mean is the higher one
        b = a.mean() + sign * rng.uniform(4, 9) + rng.uniform(1, 4) * rng.standard_normal(m)
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
    """Twice the square of 2.8 spreads over the difference, rounded up."""
    n = 2 * (2.8 * (spread / difference)) ** 2
    return math.ceil(n)


@exercise(seeds_needed, {
    "round up: one run less than the formula says is too few (math.ceil)": [
        "math.ceil(n) -> round(n)", "math.ceil(n) -> int(n)", "math.ceil(n) -> n"],
    "one run fewer is enough: rounding up already gives the smallest whole number":
        "math.ceil(n) -> math.floor(n) + 2",
    "the variances of both arms add up: e squared is 2 s squared / n": "n = 2 * _ -> n = _",
    "that is for both arms together; return the seeds in each": [
        "n = 2 * _ -> n = 4 * _", "math.ceil(n) -> 2 * math.ceil(n)"],
    "with 1.96 alone a study finds the difference in half of the cases: add 0.84": [
        "2.8 -> 1.96", ("2.8 -> 1.96", "n = 2 * _ -> n = _")],
    "the difference must be 1.96 + 0.84 of e": ["2.8 -> 0.84", "2.8 -> 1.96 - 0.84"],
    "the number grows with the square of spread / difference": [
        "(_) ** 2 -> 2.8 ** 2 * spread / abs(difference)",
        "(_) ** 2 -> 2.8 * spread / abs(difference)", "(_) ** 2 -> 2.8 * spread / difference",
        "(_) ** 2 -> 2.8 ** 2 * spread / difference ** 2", "n = _ -> n = np.sqrt(_)"],
    "the difference may be negative, the number of runs may not":
        "(_) ** 2 -> 2.8 ** 2 * spread ** 2 / (difference * abs(difference))",
    "the difference is squared, as the spread":
        "(_) ** 2 -> 2.8 ** 2 * spread ** 2 / abs(difference)",
    "2.8 is squared as well": "(_) ** 2 -> 2.8 * (spread / difference) ** 2",
    "difference and spread are exchanged: a small difference needs many runs":
        "spread / difference -> difference / spread",
}, rtol=1e-9)
def _(rng):
    sign = rng.choice([-1, 1])
    for ratio in rng.permutation([0.2, 0.3, 0.4]):        # about the difference in spreads
        spread = float(rng.uniform(7, 9))
        # A little above a whole number, with 2.8 as with the exact 2.8016.
        n = round(2 * (2.8 / (ratio * rng.uniform(0.95, 1.05))) ** 2) + rng.uniform(0.08, 0.2)
        sign *= -1                                        # the first arm may be the lower one
        yield sign * 2.8 * spread * math.sqrt(2 / n), spread


if __name__ == "__main__":
    check_solutions(globals())
