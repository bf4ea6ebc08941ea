"""Solutions of lesson 12, optimisers.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def largest_rate(H):
    """The steepest direction is the eigenvector of the largest eigenvalue."""
    return 2 / np.linalg.eigvalsh(H).max()


@exercise(largest_rate, {
    "at that rate one step lands on the minimum along the steepest direction; with twice as much "
    "the steps only just do not grow": "2 / _ -> 1 / _",
    "that is for the flattest direction; the steepest one diverges first": [
        "_.max() -> _.min()", "2 / _.max() -> 1 / _.min()"],
    "the gradient of half of x^T H x is H x: the half is used up": "2 / _ -> 4 / _",
    "each direction has a rate of its own; one of them decides": "_.max() -> _",
    "the diagonal holds the curvatures only where the valley lies along the axes: turn to the "
    "eigenvalues": [f"2 / _ -> 2 / np.diag(H){size}" for size in (
        ".max()", ".min()", ".mean()", "[0]", "[-1]")],
    "that is the sum of all curvatures; each direction moves alone": "_.max() -> np.trace(H)",
    "that is the length of the whole matrix; the largest eigenvalue decides":
        "_.max() -> np.linalg.norm(H)",
    "that is the curvature; the rate is 2 divided by it": [
        "2 / _ -> _ / 2", "2 / _ -> _", "2 / _ -> 2 * _"],
    "the best rate of all is smaller; where does it begin to diverge?":
        "_.max() -> (_.max() + _.min())",
    "the eigenvalue counts as it is: no root and no square": [
        "return _ -> return 2 / np.sqrt(np.linalg.eigvalsh(H).max())",
        "return _ -> return 1 / np.linalg.eigvalsh(H).max() ** 2"],
    "the sums of rows are an upper limit of the eigenvalues; the largest itself decides": [
        "return _ -> return 2 / np.abs(H).sum(axis=1).max()"],
    "that is the product of all curvatures; each direction moves alone": [
        "return _ -> return 2 / np.linalg.det(H)"],
    "that is how much the curvatures differ; where does the steepest one diverge?": [
        "return _ -> return 2 * np.linalg.eigvalsh(H).min() / np.linalg.eigvalsh(H).max()",
        "return _ -> return np.linalg.cond(H)",
        "return _ -> return 2 / np.linalg.cond(H)"],
}, about="Along an eigenvector of H with eigenvalue h, a step multiplies x by 1 - lr h.", rtol=1e-5)
def _(rng):
    for n in rng.permutation([3, 4, 5]):
        Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        H = Q * (np.cumsum(rng.uniform(0.5, 3, n)) * rng.uniform(0.5, 5)) @ Q.T
        yield (H + H.T) / 2,


def adamw_step(x, g, m, v, t, lr, b1, b2, eps, decay):
    """As Adam; the decay stands beside the gradient's step and never meets m or v."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    m_hat, v_hat = m / (1 - b1 ** t), v / (1 - b2 ** t)
    step = m_hat / (np.sqrt(v_hat) + eps)
    return x - lr * step - lr * decay * x, m, v


@exercise(adamw_step, {
    "neither m nor v is corrected for its start at 0": "m_hat, v_hat = _ -> m_hat, v_hat = m, v",
    "m is not corrected for its start at 0: divide by 1 - b1^t": "m / (1 - b1 ** t) -> m",
    "v is not corrected for its start at 0: divide by 1 - b2^t": "v / (1 - b2 ** t) -> v",
    "the corrected m and v are for the step only; return those without correction":
        "return _, m, v -> return _, m_hat, v_hat",
    "the correction counts from t = 1 at the first step; yours is one step late": "t -> (t + 1)",
    "the correction fades with t: 1 - b1^t, not 1 - b1": "t -> 1",
    "1 - b1^t is a power: b1 ** t, not b1 * t":
        "m_hat, v_hat = _ -> m_hat, v_hat = m / (1 - b1 * t), v / np.abs(1 - b2 * t)",
    "b1 and b2 are exchanged": "m = _ -> b1, b2 = b2, b1; m = _",
    "the decay went into the gradient, so that m and v see it, and it is divided by the root as "
    "well; here it acts on x alone": "m = _ -> g = g + decay * x; decay = 0; m = _",
    "the decay is multiplied by the learning rate, too": "lr * decay -> decay",
    "the decay is missing": "_ - lr * decay * x -> _",
    "the decay takes the same share of each x, not the same amount": "lr * decay * x -> lr * decay",
    "the learning rate is missing in Adam's step": "lr * step -> step",
    "the decay has the wrong sign: it makes x smaller": "_ - lr * decay * x -> _ + lr * decay * x",
    "the decay acts on the x that the step has moved already; take both from the old x":
        "_ - lr * decay * x -> (_) * (1 - lr * decay)",
    "eps is added to the root, not inside of it": "np.sqrt(v_hat) + eps -> np.sqrt(v_hat + eps)",
    "eps is missing, and one gradient is so small that it counts": [
        "_ + eps -> _", "_ + eps -> _ + 1e-8"],
    "the root of v is missing": "np.sqrt(v_hat) -> v_hat",
    "the gradient is divided by the root; divide m, which remembers": "m_hat / _ -> g / _",
    "the step takes the old m: update it first": (
        "m = _ -> m, old = _, m", "m_hat / _ -> old / (1 - b1 ** t) / _"),
    "the step takes the old m and v: update them first": (
        "m = _ -> m, old_m = _, m", "v = _ -> v, old_v = _, v",
        "m_hat, v_hat = _ -> m_hat, v_hat = old_m / (1 - b1 ** t), old_v / (1 - b2 ** t)"),
    "the step goes uphill": "x - lr * step -> x + lr * step",
    "v is the mean of the squares of g": "_ * g * g -> _ * g",
    "m must be a mean: the new gradient counts 1 - b1": "(1 - b1) * g -> g",
    "m: old and new are exchanged: the old one counts b1":
        "b1 * m + (1 - b1) * g -> (1 - b1) * m + b1 * g",
}, {
    "m is not b1 m": "b1 * m + (1 - b1) * g -> b1 * m - (1 - b1) * g",
    "v is not b2 v": "b2 * v + _ -> _",
    "m and v are right": "_ + eps -> _ - eps",
    "return 3 values": "return _ -> return x",
}, rtol=1e-5)
def _(rng):
    n = int(rng.integers(4, 7))
    x, g, m = rng.standard_normal((3, n))
    g[0] = rng.choice([-1, 1]) * rng.uniform(0.005, 0.02)  # where eps matters
    v = rng.uniform(0.1, 2, n) * g ** 2
    lr, decay, eps = rng.uniform(0.05, 0.2), rng.uniform(0.2, 0.6), rng.uniform(0.02, 0.05)
    b1, b2 = rng.uniform(0.7, 0.85), rng.uniform(0.9, 0.97)
    for t, m0, v0 in ((int(rng.integers(3, 9)), m, v), (1, 0 * m, 0 * v)):
        args = x, g, m0, v0, t, lr, b1, b2, eps, decay
        right = adamw_step(*args)

        def differs(i, right=right):
            return lambda out: len(out) == 3 and np.shape(out[i]) == (n,) and not np.allclose(
                out[i], right[i], rtol=1e-5)

        yield Case(args, mistakes={
            "m is not b1 m + (1 - b1) g": differs(1), "v is not b2 v + (1 - b2) g^2": differs(2),
            "m and v are right, and the new x is not": differs(0)})


def best_rate(rates, accuracy):
    """A mean with a NaN in it is NaN, and never the largest."""
    mean = np.where(np.isnan(accuracy).any(axis=1), -np.inf, accuracy.mean(axis=1))
    best = rates[mean.argmax()]
    return float(best), bool(best in (rates.min(), rates.max()))


MEAN = "mean = _ -> mean = np.nan_to_num(%s, nan=-9)"
EDGE = "best in (rates.min(), rates.max()) -> "


# Some of these choices agree by chance, so the case says which rate was taken, and why.
@exercise(best_rate, refused={
    "best single run": [MEAN % "np.fmax.reduce(accuracy, axis=1)", MEAN % "accuracy.max(axis=1)"],
    "does not count": [MEAN % mean for mean in (
        "np.nanmean(accuracy, axis=1)", "np.nan_to_num(accuracy).mean(axis=1)",
        "np.nan_to_num(accuracy).sum(axis=1)")],
    "not its number": "float(best) -> mean.argmax()",
    "in no order": [EDGE + edge for edge in (
        "mean.argmax() in (0, len(rates) - 1)", "False", "True")],
    "and diverged": EDGE + "best in (rates[mean > 0].min(), rates[mean > 0].max())",
    "2 values": ["return _, _1 -> return _", "return _, _1 -> return rates[0]"],
    "mean over the seeds": ["best = _ -> best = rates.min()", "best = _ -> best = rates.max()",
                            "best = _ -> best = np.median(rates)"],
    "best worst run": [MEAN % mean for mean in (
        "np.nanmedian(accuracy, axis=1)", "np.nanmin(accuracy, axis=1)", "accuracy.min(axis=1)",
        "np.median(accuracy, axis=1)", "(accuracy.mean(axis=1) - accuracy.std(axis=1))")],
}, about="Take the rate with the highest mean over the seeds.")
def _(rng):
    def case(edge, diverged):
        n = 5
        rates = np.sort(np.exp(rng.uniform(-8, -1, n)))
        best = {0: int(rng.integers(1, n - 1)), 1: n - 1, -1: 0}[edge]
        if diverged:                                      # then the best is not at an edge
            best = n - 2
        accuracy = rng.uniform(0.2, 0.4, (n, 1)) + rng.uniform(-0.02, 0.02, (n, 3))
        # The best mean, 0.62, has neither the best run nor the best worst or middle run.
        accuracy[best] = rng.permutation([0.9, 0.5, 0.46]) + rng.uniform(-0.02, 0.02, 3)
        lucky, steady = (int(i) for i in rng.permutation([
            i for i in range(n) if i != best and not (diverged and i == n - 1)])[:2])
        accuracy[lucky] = rng.permutation([0.95, 0.3, 0.1]) + rng.uniform(-0.02, 0.02, 3)
        accuracy[steady] = 0.56 + rng.uniform(-0.02, 0.02, 3)
        if diverged:                                      # 0.66 if NaN is taken for 0
            accuracy[n - 1] = rng.permutation([np.nan, 0.98, 0.99])
        order = rng.permutation(n)
        while order[0] == best or order[-1] == best:      # in no order, the best not at an end
            order = rng.permutation(n)
        rates, accuracy = rates[order], accuracy[order]
        at = [float(rates[list(order).index(i)]) for i in range(n)]      # by size

        def first(value):
            return lambda out: np.isclose(float(out[0]), value)

        def second(out):
            return bool(out[1]) != bool(edge)

        return Case((rates, accuracy), (at[best], bool(edge)), {
            "return the rate and whether it lies at the edge of the sweep":
                lambda out: len(out) != 2,
            "a rate at which a run diverged does not count, however good the others are":
                lambda out: bool(diverged) and first(at[n - 1])(out),
            "that rate has the best single run, but not the best mean over the seeds":
                first(at[lucky]),
            "that rate has the best worst run, or the best middle one, but not the best mean over "
            "the seeds": first(at[steady]),
            "return the rate itself, not its number in the list":
                lambda out: not np.isclose(rates, float(out[0])).any(),
            "the edge: a larger rate was tried and diverged, so the best one is not at the edge":
                lambda out: bool(diverged) and first(at[best])(out) and second(out),
            "the edge: the rates come in no order; compare with the smallest and the largest":
                lambda out: first(at[best])(out) and second(out),
        })

    for edge, diverged in ((0, 0), (0, 1), (1, 0), (-1, 0)):
        yield case(edge, diverged)


if __name__ == "__main__":
    check_solutions(globals())
