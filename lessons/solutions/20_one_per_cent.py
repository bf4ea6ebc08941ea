"""Solutions of lesson 20, one per cent.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def largest_rank(shapes, budget):
    """Of all ranks that some layer can use, the largest that fits."""
    def size(rank):
        return sum(min(rank, n, m) * (n + m) for n, m in shapes)
    widest = max(min(shape) for shape in shapes)
    return max(rank for rank in range(widest + 1) if size(rank) <= budget)


@exercise(largest_rank, {
    "return one whole number, the rank of all layers": [
        "max(_ for rank in range(_1) if _2) -> [min(max(_ for rank in range(_1) if _2), n, m)"
        " for n, m in shapes]", "max(_ for rank in range(_1) if _2) -> 0.5"],
    "the budget is for all layers together":
        [f"return max(_ for rank in _1 if _2) -> return budget // {size}" for size in (
            "max(map(sum, shapes))", "min(map(sum, shapes))", "sum(shapes[0])")],
    "A has n_in rows and r columns, B r rows and n_out columns: their numbers add up":
        "n + m -> n * m",
    "that counts A alone: B has r n_out more": "n + m -> n",
    "that counts B alone: A has n_in r more": "n + m -> m",
    "more than its smaller side adds nothing to a layer: stop there, and the other layers can have "
    "more": "return max(_ for rank in _1 if _2) -> return budget // sum(n + m for n, m in shapes)",
    "no layer has more than its smaller side, but the wider ones may still grow":
        "return max(_ for rank in _1 if _2) -> "
        "return min(budget // sum(n + m for n, m in shapes), *map(min, shapes))",
    "that is what the adapters hold: return their rank":
        "max(_ for rank in _1 if _2) -> size(max(_ for rank in _1 if _2))",
    "that is over the budget": ["max(_ for rank in _1 if _2) -> max(_ for rank in _1 if _2) + 1",
        "max(_ for rank in _1 if _2) -> max(1, *(_ for rank in _1 if _2))"],
    "a higher rank still fits": [
        "max(_ for rank in _1 if _2) -> max(0, max(_ for rank in _1 if _2) - 1)",
        "max(_ for rank in _1 if _2) -> min(4, max(_ for rank in _1 if _2))",
        "_ <= budget -> _ < budget"],
}, rtol=1e-12)
def _(rng):
    def size(shapes, rank):
        return sum(min(rank, n, m) * (n + m) for n, m in shapes)

    def largest(shapes, budget, side):
        return max(rank for rank in range(max(map(min, shapes)) + 1) if sum(
            min(rank, *shape) * shape[side] for shape in shapes) <= budget)

    while True:
        wide = [(int(n), int(m)) for n, m in zip(rng.integers(20, 30, 3), rng.integers(40, 60, 3),
                                                 strict=True)]
        mixed = [(int(rng.integers(2, 4)), int(rng.integers(40, 60))), *wide,
                 (int(rng.integers(40, 60)), int(rng.integers(4, 6)))]
        rank = int(rng.integers(8, 12))
        budget, both = size(mixed, rank), [n + m for n, m in mixed]
        known = {budget // max(both), budget // min(both), budget // both[0]}
        if len(known | {largest(mixed, budget, 0), largest(mixed, budget, 1)}) == len(known) + 2:
            break
    step = size(mixed, rank + 1) - size(mixed, rank)
    for shapes, budget, about in (
            (mixed, size(mixed, rank), "Here the budget can be spent to the last number."),
            (mixed, size(mixed, rank) + step - 1, "One number more, and a higher rank would fit."),
            (wide, size(wide, rank) + 2, ""),
            (wide, size(wide, 1) - 1, "Here not even rank 1 fits: that is rank 0."),
            (mixed, 2 * size(mixed, 1000), "Here the budget is larger than any adapter can be: "
                                           "the rank ends at the largest smaller side.")):
        answer = largest_rank(shapes, budget)
        yield Case((shapes, budget), answer or (lambda out: np.ndim(out) == 0 and out == 0), {
            "return one whole number, the rank of all layers": lambda out: (
                np.ndim(out) != 0 or out != int(out)),
            "that is over the budget": lambda out, a=answer: out > a,
            "a higher rank still fits": lambda out, a=answer: 0 <= out < a}, about=about)


def lora_backward(dy, x, W, A, B, s):
    """Two linear layers in a row, beside a frozen one."""
    n_in, n_out = W.shape
    X, dY = x.reshape(-1, n_in), dy.reshape(-1, n_out)
    dh = s * (dY @ B.T)
    dx = dY @ W.T + dh @ A.T
    return dx.reshape(x.shape), X.T @ dh, s * (X @ A).T @ dY


@exercise(lora_backward, {
    "return dx, dA and dB: W is frozen and gets no gradient":
        "return _, _1, _2 -> return _, _1, _2, W",
    "dA and dB are exchanged": "return _, _1, _2 -> return _, _2, _1",
    "dx: x goes two ways, through A as well": "dY @ W.T + dh @ A.T -> dY @ W.T",
    "dx: x goes two ways, through W as well": "dY @ W.T + dh @ A.T -> dh @ A.T",
    "dx: the two ways add up": ["_ + dh @ A.T -> _ - dh @ A.T", "_ + dh @ A.T -> dh @ A.T - _"],
    "dx: the scale s is missing": "dh @ A.T -> dh @ A.T / s",
    "dx: the scale s belongs to the adapter alone": [
        "dY @ W.T -> s * dY @ W.T", "dx = _ -> dx = s * (_)"],
    "dx: the scale s is there twice": "dh @ A.T -> s * dh @ A.T",
    "dA: the scale s is missing": "X.T @ dh -> X.T @ dh / s",
    "dA: the scale s is there twice": "X.T @ dh -> s * X.T @ dh",
    "dA: rows and columns are exchanged: it has the shape of A": "X.T @ dh -> dh.T @ X",
    "dB: the scale s is missing": "s * (X @ A).T -> (X @ A).T",
    "dB: the scale s is there twice": "s * (X @ A).T -> s * s * (X @ A).T",
    "dB: rows and columns are exchanged: it has the shape of B":
        "s * (X @ A).T @ dY -> s * dY.T @ X @ A",
    "dA: a mean for a sum: each row of x adds its whole share": "X.T @ dh -> X.T @ dh / len(X)",
    "dB: a mean for a sum: each row of x adds its whole share":
        "s * (X @ A).T -> s / len(X) * (X @ A).T",
    "dA: dy goes back through B first": ["X.T @ dh -> X.T @ dY", "X.T @ dh -> s * X.T @ dY"],
    "dB: x goes through A first": ["s * (X @ A).T -> X.T", "X @ A -> X"],
    "all axes but the last are rows: all of them add up in dA and dB":
        "X.T @ dh -> s * x.swapaxes(-1, -2) @ (dy @ B.T) if x.ndim > 2 else X.T @ dh",
    "dA: that is one example: all of the batch add their share": [
        f"X.T @ dh -> x[{i}].reshape(-1, n_in).T @ dh.reshape(*dy.shape[:-1], -1)[{i}].reshape("
        "-1, len(B)) if x.ndim > 2 else X.T @ dh" for i in (0, -1)],
})
def _(rng):
    for lead in ((2, 4), (3,), (2, 1, 3)):
        n_in, n_out, r = (int(n) for n in rng.permutation([5, 6, 7]))
        x, dy = rng.standard_normal((*lead, n_in)), rng.standard_normal((*lead, n_out))
        W, A, B = (rng.standard_normal(shape) for shape in ((n_in, n_out), (n_in, r), (r, n_out)))
        yield Case((dy, x, W, A, B, float(rng.uniform(1.5, 3))), mistakes={
            "return dx, dA and dB: W is frozen and gets no gradient": lambda out: len(out) != 3,
        }, about=f"Here x has {len(lead) + 1} axes.")


def fair_tests(train, arms, rates, seeds):
    """The rate by the mean of the validation scores; then that rate's test scores."""
    tests = {}
    for arm in arms:
        runs = {rate: [train(arm, rate, seed) for seed in seeds] for rate in rates}
        best = max(rates, key=lambda rate: np.mean([score for score, _ in runs[rate]]))
        tests[arm] = [score for _, score in runs[best]]
    return tests


# Any three runs or more of the best rate will do, so the case says what is wrong with others.
@exercise(fair_tests, refused={
    "chosen on the test": "[score for score, _ in _1] -> [test for score, test in _1]",
    "lucky seed": ["np.mean -> max", "np.mean([score for score, _ in _1]) -> _1[0][0]",
        "[score for _, score in runs[best]] -> [max(row)[1] for row in zip(*runs.values())]"],
    "one rate for all": ["best = _ -> best = max(rates, key=lambda rate: sum(train(a, rate, s)[0]"
        " for a in arms for s in seeds))",
        "best = _ -> best = best if tests else _", "best = _ -> best = rates[0]"],
    "several rates": "runs[best] -> sum(runs.values(), [])",
    "worst rate": "max(_, key=_1) -> min(_, key=_1)",
    "validation scores": "[score for _, score in _1] -> [score for score, _ in _1]",
    "single runs": [f"tests[arm] = _ -> tests[arm] = {mean}(_)" for mean in ("np.mean", "max")],
    "at least three": [f"tests[arm] = _ -> tests[arm] = {scores}" for scores in (
        "[max(_)]", "_[:1] * 5", "_[:2]", "sorted(_)[-3:]", "_[len(tests) > 0:]")],
    "dictionary": ["return tests -> return [*tests.values()]",
                   "return tests -> return {arms[0]: tests[arms[0]]}"],
    "best mean validation":
        "tests[arm] = _ -> tests[arm] = [*np.mean([*runs.values()], axis=0)[:, 1]]",
})
def _(rng):
    arms = [str(arm) for arm in rng.permutation(["biases", "lora", "norms"])]
    rates = [float(rate) for rate in rng.permutation([0.001, 0.003, 0.01, 0.03, 0.1])]
    seeds = [int(seed) for seed in rng.permutation(100)[:int(rng.integers(6, 9))]]
    # Which rate is best in validation, which in the test, and which has one lucky seed; neither
    # the first nor the last of the list, nor the smallest nor the largest, is best for each arm.
    inner = [i for i in (1, 2, 3) if 0.001 < rates[i] < 0.1]
    best = {arm: int(i) for arm, i in zip(arms, [inner[0], *rng.permutation(
        [i for i in range(5) if i != inner[0]])[:2]], strict=True)}
    while True:
        traps = [rng.permutation([i for i in range(5) if i != best[arm]])[:3] for arm in arms]
        if (np.ptp(traps, axis=0) > 0).all():             # not the same for all arms
            break
    scores, lucky = {}, {}
    for arm, (trap, other, worst) in zip(arms, traps, strict=True):
        lucky[arm] = int(trap)
        validation = rng.uniform(50, 60, (5, len(seeds)))
        validation[best[arm]] = rng.uniform(79, 80, len(seeds))
        validation[worst] = rng.uniform(40, 50, len(seeds))
        validation[other] = rng.uniform(62, 63, len(seeds))
        validation[trap] = rng.uniform(72, 73, len(seeds))
        validation[trap, 0] = rng.uniform(83, 84)         # the first seed misleads
        test = rng.uniform(50, 60, (5, len(seeds)))
        test[best[arm]] = rng.uniform(70, 72, len(seeds))
        test[other] = rng.uniform(92, 94, len(seeds))     # what a choice on the test would take
        scores[arm] = validation, test

    def train(arm, rate, seed):
        validation, test = (score[rates.index(rate), seeds.index(seed)] for score in scores[arm])
        return float(validation), float(test)

    def places(arm, values, kind=1):
        """[(rate, seed)] of the runs that gave these values."""
        runs = []
        for value in np.ravel(np.asarray(values, float)):
            near = np.argwhere(np.isclose(scores[arm][kind], value, rtol=0, atol=1e-9))
            runs.append(tuple(int(i) for i in near[0]) if len(near) else None)
        return runs

    def is_fair(out):
        if set(out) != set(arms) or any(np.ndim(out[arm]) != 1 for arm in arms):
            return False
        runs = {arm: places(arm, out[arm]) for arm in arms}
        if any(place is None for arm in arms for place in runs[arm]):
            return False
        which = [sorted(seed for _, seed in runs[arm]) for arm in arms]
        return (all(rate == best[arm] for arm in arms for rate, _ in runs[arm])
                and all(s == which[0] for s in which)
                and len(set(which[0])) == len(which[0]) >= 3)

    def all_from(choice, kind=1):
        """Whether the output has runs of one rate for each arm: that of ``choice(arm)``."""
        return lambda out: all(place is not None and place[0] == choice(arm) for arm in arms
                               for place in places(arm, out[arm], kind))

    yield Case((train, arms, rates, seeds), is_fair, {
        "return a dictionary with an entry for each arm": lambda out: (
            not isinstance(out, dict) or set(out) != set(arms)),
        "return the scores of the single runs, one for each seed, not their mean": lambda out: any(
            np.ndim(out[arm]) == 0 for arm in arms),
        "those are validation scores: they made the choice, so report those of the test":
            lambda out: all(None not in places(arm, out[arm], 0) for arm in arms),
        "the rate was chosen on the test: choose it on validation scores": all_from(
            lambda arm: int(scores[arm][1].mean(axis=1).argmax())),
        "one rate for all arms: each arm has its own best rate": lambda out: len(
            {place[0] for arm in arms for place in places(arm, out[arm])}) == 1,
        "that is the worst rate: scores are accuracies": all_from(
            lambda arm: int(scores[arm][0].mean(axis=1).argmin())),
        "one lucky seed has made the choice: take the mean over the seeds": lambda out: any(
            place is not None and place[0] == lucky[arm] for arm in arms
            for place in places(arm, out[arm])) and all(
                place[0] in (lucky[arm], best[arm]) for arm in arms
                for place in places(arm, out[arm])),
        "these runs have several rates: choose one rate for each arm": lambda out: any(
            len({place[0] for place in places(arm, out[arm])}) > 1 for arm in arms),
        "all arms get the same seeds, each once, and at least three of them": all_from(
            lambda arm: best[arm]),
    }, about="For each arm: the rate with the best mean validation score, and the test scores of "
             "its runs.")


if __name__ == "__main__":
    check_solutions(globals())
