"""Lesson 13, transfer."""

import math

import numpy as np
from scipy import special  # scipy.stats takes a second to import

from . import Case, close_to, either, exercise, part


@exercise
def ranges_apart(rng):
    def case(n, m):
        ways = math.comb(n + m, n)
        return Case((n, m), 2 / ways, {
            "either of the two arms may be the upper one": 1 / ways,
            "not every single pair of runs has to be compared: count the orders of all n + m runs":
                2 ** (1 - n * m),
            "the order within an arm does not matter: divide by it": close_to(
                *(k / math.factorial(n + m) for k in (1, 2))),
            "choose the places of one arm among all n + m": close_to(
                *(k / math.comb(a, b)
                  for k in (1, 2) for a, b in ((2 * n, n), (2 * m, m), (n * m, n)))),
            "that is the chance that a coin falls the same way each time; here every order of the "
            "runs is equally likely": close_to(
                *(2.0 ** -k for k in (n + m, n + m - 1, n, m))),
            "that is the chance that the ranges overlap": 1 - 2 / ways,
            "a probability is at most 1: divide by the number of ways": lambda out: out > 1,
        }, about=f"Here the arms have {n} and {m} runs: how many ways are there to choose which of "
                 f"the {n + m} places belong to the first arm?")

    for n in rng.permutation([3, 4, 5]):
        yield case(int(n), int(n + rng.integers(2, 5)))


@exercise
def probe_gradient(rng):
    N, C, K = (int(n) for n in rng.permutation([6, 7, 8]) + rng.integers(0, 2) * 3)
    f = rng.standard_normal((N, C)) * rng.uniform(0.5, 2, C)
    far = f * np.where(np.arange(N) % 2, 1, 1e3)[:, None]
    W, b = 0.7 * rng.standard_normal((C, K)), rng.standard_normal(K)
    y, decay = rng.integers(0, K, N), float(rng.uniform(0.2, 0.6))
    p = special.softmax(f @ W + b, axis=1)
    d = p - np.eye(K)[y]
    dW, db = f.T @ d / N + decay * W, d.sum(axis=0) / N

    yield Case((f, W, b, y, decay), (dW, db), {
        "the loss is a mean over the examples: divide by N":
            either(part(0, f.T @ d + decay * W), part(1, d.sum(axis=0))),
        "the right answer is not subtracted: the gradient of the scores is p minus one-hot":
            either(part(0, f.T @ p / N + decay * W), part(1, p.sum(axis=0) / N)),
        "the decay is missing in dW": part(0, f.T @ d / N),
        "the decay is half of decay times the sum of squares: its gradient has no 2, and no half":
            part(0, *(f.T @ d / N + k * decay * W for k in (2, 0.5))),
        "the decay is divided by N, too; it belongs to the loss once":
            part(0, (f.T @ d + decay * W) / N),
        "the decay has the wrong sign": part(0, f.T @ d / N - decay * W),
        "the bias has no decay": part(1, db + decay * b),
        "both have the wrong sign: the gradient points uphill":
            either(part(0, -dW, 2 * decay * W - dW), part(1, -db)),
        "the bias is missing in the scores": part(0,
            f.T @ (special.softmax(f @ W, axis=1) - np.eye(K)[y]) / N + decay * W),
        "the softmax runs over the classes, axis 1": part(0, *(
            f.T @ (special.softmax(f @ W + b, axis=axis) - np.eye(K)[y]) / N + decay * W
            for axis in (0, None))),
        "dW is (C, K), as W is: turn the product around": part(0, dW.T),
        "dW: the scores are not the probabilities: take the softmax": part(
            0, f.T @ (f @ W + b - np.eye(K)[y]) / N + decay * W),
        "that is one gradient for each example; add them up": lambda out: np.shape(out[1]) == (
            N, K),
    }, rtol=1e-5)
    d = special.softmax(far @ W + b, axis=1) - np.eye(K)[y]
    yield Case((far, W, b, y, decay), (far.T @ d / N + decay * W, d.sum(axis=0) / N), {
        "here some scores are in the thousands: subtract the largest of each row before the "
        "exponential": lambda out: not all(np.isfinite(part).all() for part in out),
    }, rtol=1e-5)


@exercise
def difference_interval(rng):
    def case(n, m):
        a = rng.uniform(50, 80) + rng.uniform(1, 4) * rng.standard_normal(n)
        b = a.mean() + rng.uniform(-6, 6) + rng.uniform(1, 4) * rng.standard_normal(m)
        confidence = float(rng.choice([0.8, 0.9, 0.99]))

        def interval(ddof=1, df=None, q=None, se=None, t=None, sign=1):
            va, vb = a.var(ddof=ddof), b.var(ddof=ddof)
            se = math.sqrt(va / n + vb / m) if se is None else se(va, vb)
            q = (1 + confidence) / 2 if q is None else q
            t = special.stdtrit(min(n, m) - 1 if df is None else df, q) if t is None else t
            centre = sign * (a.mean() - b.mean())
            return centre - t * se, centre + t * se

        va, vb = a.var(ddof=1), b.var(ddof=1)
        welch = (va / n + vb / m) ** 2 / ((va / n) ** 2 / (n - 1) + (vb / m) ** 2 / (m - 1))
        normal = special.ndtri((1 + confidence) / 2)

        low, high = interval()
        return Case((a, b, confidence), (low, high), {
            "the normal distribution instead of t: with few runs it is too narrow":
                close_to(interval(t=normal), interval(t=normal, ddof=0)),
            "the level is that of the lesson; use the confidence that you are given":
                close_to(interval(q=0.975), interval(t=1.96), interval(t=2.0)),
            "the standard deviations divide by n - 1 (ddof=1)": close_to(interval(ddof=0)),
            "that t leaves out the whole rest on one side; half of it is on each side":
                close_to(interval(q=confidence)),
            "the error of a mean: each variance is divided by its number of runs":
                close_to(interval(se=lambda va, vb: math.sqrt(va + vb))),
            "add the squares of the two errors, not the errors": close_to(
                interval(se=lambda va, vb: math.sqrt(va / n) + math.sqrt(vb / m))),
            "subtracting the means does not subtract the variances: both errors add to it":
                close_to(interval(se=lambda va, vb: math.sqrt(abs(va / n - vb / m)))),
            "both arms have an error": close_to(interval(se=lambda va, vb: math.sqrt(va / n)),
                                            interval(se=lambda va, vb: math.sqrt(vb / m))),
            "t.ppf takes a share below 1, then the degrees of freedom":
                lambda out: not np.isfinite(out).any(),
            "the root is missing in the error":
                close_to(interval(se=lambda va, vb: va / n + vb / m)),
            "a variance over its number of runs; yours takes the standard deviation over it":
                close_to(interval(se=lambda va, vb: math.sqrt(va) / n + math.sqrt(vb) / m),
                         interval(se=lambda va, vb: math.sqrt(va / n ** 2 + vb / m ** 2))),
            "one degree of freedom less than the smaller number of runs": close_to(
                *(interval(df=df) for df in (n + m - 2, min(n, m), max(n, m) - 1, max(n, m),
                                             n + m, welch))),
            "the difference is a minus b": close_to(interval(sign=-1)),
            "the lower end comes first": close_to((high, low)),
            "that is the standard error alone, without t": close_to(interval(t=1.0)),
            "the middle of the interval is mean(a) - mean(b)": lambda out: (
                not np.isclose(out[0] + out[1], low + high)),
            "the middle is right and the length is not: t times the error on each side":
                lambda out: not np.isclose(out[1] - out[0], high - low),
        }, rtol=1e-5)

    for n, order in zip(rng.permutation([4, 5, 7]), rng.permutation([1, 1, -1]), strict=True):
        yield case(*[int(n), int(n + rng.choice([2, 3]))][::order])        # either arm is smaller


@exercise
def seeds_needed(rng):
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
