"""Lesson 20, one per cent."""

import numpy as np

from . import Case, close_to, exercise, part


def _size(shapes, rank):
    """The numbers in adapters of this rank, or of a layer's smaller side if that is less."""
    return sum(min(rank, n, m) * (n + m) for n, m in shapes)


def _size_of_a(shapes, rank):
    return sum(min(rank, n, m) * n for n, m in shapes)


def _size_of_b(shapes, rank):
    return sum(min(rank, n, m) * m for n, m in shapes)


def _largest(shapes, budget, size=_size):
    """The largest rank whose size is within the budget."""
    return max(rank for rank in range(max(min(shape) for shape in shapes) + 1)
               if size(shapes, rank) <= budget)


@exercise
def largest_rank(rng):
    while True:
        wide = [(int(n), int(m)) for n, m in zip(rng.integers(20, 30, 3), rng.integers(40, 60, 3),
                                                 strict=True)]
        mixed = [(int(rng.integers(2, 4)), int(rng.integers(40, 60))), *wide,
                 (int(rng.integers(40, 60)), int(rng.integers(4, 6)))]
        rank = int(rng.integers(8, 12))
        budget, both = _size(mixed, rank), [n + m for n, m in mixed]
        known = [budget // max(both), budget // min(both), budget // both[0],
                 _largest(mixed, budget, _size_of_a), _largest(mixed, budget, _size_of_b)]
        if len({*known[:3]} | {*known[3:]}) == len({*known[:3]}) + 2:
            break
    step = _size(mixed, rank + 1) - _size(mixed, rank)
    for shapes, budget, about in (
            (mixed, _size(mixed, rank), "Here the budget can be spent to the last number."),
            (mixed, _size(mixed, rank) + step - 1, "One number more, and a higher rank would fit."),
            (wide, _size(wide, rank) + 2, ""),
            (wide, _size(wide, 1) - 1, "Here not even rank 1 fits: that is rank 0."),
            (mixed, 2 * _size(mixed, 1000), "Here the budget is larger than any adapter can be: "
                                            "the rank ends at the largest smaller side.")):
        answer = _largest(shapes, budget)
        both = [n + m for n, m in shapes]
        mistakes = {} if answer == 0 else {
            "return one whole number, the rank of all layers": lambda out: (
                np.ndim(out) != 0 or out != int(out)),
            "the budget is for all layers together": lambda out, b=budget, both=both: out in (
                b // max(both), b // min(both), b // both[0]),
            "A has n_in rows and r columns, B r rows and n_out columns: their numbers add up":
                _largest(shapes, budget, lambda shapes, rank: sum(
                    min(rank, n, m) * n * m for n, m in shapes)),
            "that counts A alone: B has r n_out more": _largest(
                shapes, budget, _size_of_a),
            "that counts B alone: A has n_in r more": _largest(
                shapes, budget, _size_of_b),
            "more than its smaller side adds nothing to a layer: stop there, and the other layers "
            "can have more": budget // sum(both),
            "no layer has more than its smaller side, but the wider ones may still grow": min(
                budget // sum(both), min(min(shape) for shape in shapes)),
            "that is what the adapters hold: return their rank": _size(shapes, answer),
        }
        yield Case((shapes, budget), answer, mistakes | {
            "that is over the budget": lambda out, a=answer: out > a,
            "a higher rank still fits": lambda out, a=answer: 0 <= out < a,
        }, rtol=1e-12, about=about)


@exercise
def merge(rng):
    n_in, n_out = (int(n) for n in rng.choice([5, 6, 7, 8], 2, replace=False))
    W = rng.standard_normal((n_in, n_out))
    ranks = [int(rank) for rank in rng.permutation([2, 3, 4])]
    alphas = [float(alpha) for alpha in rng.permutation([5.0, 7.0, 11.0]) + rng.uniform(0, 1)]
    adapters = [(rng.standard_normal((n_in, r)), rng.standard_normal((r, n_out)), alpha)
                for r, alpha in zip(ranks, alphas, strict=True)]

    def changed(scale, adapters=adapters):
        return W + sum(scale(alpha, len(B)) * (A @ B) for A, B, alpha in adapters)

    def right(alpha, rank):
        return alpha / rank

    delta = changed(right) - W
    yield Case((W, adapters), W + delta, {
        "the scale alpha / r is missing": changed(lambda alpha, rank: 1),
        "the scale is alpha divided by the rank": changed(lambda alpha, rank: alpha),
        "alpha is missing in the scale": changed(lambda alpha, rank: 1 / rank),
        "r divides alpha, it does not multiply it": changed(lambda alpha, rank: alpha * rank),
        "r divides alpha, not alpha r": changed(lambda alpha, rank: rank / alpha),
        "alpha is divided by r, not by its root": changed(lambda a, rank: a / np.sqrt(rank)),
        "r is the columns of A, not its rows": changed(lambda alpha, rank: alpha / n_in),
        "each adapter has its own rank and its own alpha": close_to(
            changed(lambda a, r: a / sum(ranks)),
            *(changed(lambda a, r, k=k: a / k) for k in ranks),
            *(changed(lambda a, r, k=k: k / r) for k in alphas),
            changed(lambda a, r: alphas[-1] / ranks[-1]),
            changed(lambda a, r: alphas[0] / ranks[0])),
        "all adapters count, not the last alone": changed(right, adapters[-1:]),
        "all adapters count, not the first alone": changed(right, adapters[:1]),
        "the adapters add up: no mean": W + delta / 3,
        "that is the change: add it to W": delta,
        "the adapters are added, not taken away": W - delta,
    })
    yield Case((W, []), W, about="Here is no adapter: W stays.")


@exercise
def lora_backward(rng):
    for lead in ((2, 4), (3,), (2, 1, 3)):
        n_in, n_out, r = (int(n) for n in rng.permutation([5, 6, 7]))
        x, dy = rng.standard_normal((*lead, n_in)), rng.standard_normal((*lead, n_out))
        W, A, B = (rng.standard_normal(shape) for shape in ((n_in, n_out), (n_in, r), (r, n_out)))
        s = float(rng.uniform(1.5, 3))
        X, dY = x.reshape(-1, n_in), dy.reshape(-1, n_out)
        rows = len(X)
        dA, dB = s * X.T @ dY @ B.T, s * (X @ A).T @ dY
        frozen, new = dy @ W.T, s * dy @ B.T @ A.T
        mistakes = {
            "return dx, dA and dB: W is frozen and gets no gradient": lambda out: len(out) != 3,
            "dA and dB are exchanged": (frozen + new, dB, dA),
            "dx: x goes two ways, through A as well": part(0, frozen),
            "dx: x goes two ways, through W as well": part(0, new),
            "dx: the two ways add up": part(0, frozen - new, new - frozen),
            "dx: the scale s is missing": part(0, frozen + new / s),
            "dx: the scale s belongs to the adapter alone": part(0, s * frozen + new,
                                                                s * (frozen + new)),
            "dx: the scale s is there twice": part(0, frozen + s * new),
            "dA: the scale s is missing": part(1, dA / s),
            "dA: the scale s is there twice": part(1, s * dA),
            "dA: rows and columns are exchanged: it has the shape of A": part(1, dA.T),
            "dB: the scale s is missing": part(2, dB / s),
            "dB: the scale s is there twice": part(2, s * dB),
            "dB: rows and columns are exchanged: it has the shape of B": part(2, dB.T),
            "dA: a mean for a sum: each row of x adds its whole share": part(1, dA / rows),
            "dB: a mean for a sum: each row of x adds its whole share": part(2, dB / rows),
            "dA: dy goes back through B first": part(1, X.T @ dY, s * X.T @ dY),
            "dB: x goes through A first": part(2, X.T @ dY, s * X.T @ dY),
        }
        if len(lead) > 1:
            mistakes["all axes but the last are rows: all of them add up in dA and dB"] = (
                lambda out: np.ndim(out[1]) > 2 or np.ndim(out[2]) > 2)
            one = s * x[-1].reshape(-1, n_in).T @ dy[-1].reshape(-1, n_out) @ B.T
            first = s * x[0].reshape(-1, n_in).T @ dy[0].reshape(-1, n_out) @ B.T
            mistakes["dA: that is one example: all of the batch add their share"] = part(
                1, one, first)
        yield Case((dy, x, W, A, B, s), (frozen + new, dA, dB), mistakes,
                   about=f"Here x has {len(lead) + 1} axes.")


@exercise
def fair_tests(rng):
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
        test[other] = rng.uniform(80, 82, len(seeds))     # what a choice on the test would take
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

    return Case((train, arms, rates, seeds), is_fair, {
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
