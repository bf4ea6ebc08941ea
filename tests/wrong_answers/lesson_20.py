"""Plausible wrong answers to lesson 20: (a word of the hint that fits, the answer)."""

import numpy as np


def _rank(size, fits=lambda size, budget: size <= budget):
    """The largest rank whose ``size(shapes, rank)`` fits."""
    def answer(shapes, budget):
        return max((rank for rank in range(max(min(shape) for shape in shapes) + 1)
                    if fits(size(shapes, rank), budget)), default=-1)
    return answer


def _size(shapes, rank):
    return sum(min(rank, n, m) * (n + m) for n, m in shapes)


_right_rank = _rank(_size)


def _no_limit(shapes, budget):
    rank = 0
    while rank < 10_000 and _size(shapes, rank + 1) <= budget:
        rank += 1
    return rank


def _merged(scale, chosen=slice(None), sign=1, start=1, mean=False):
    def answer(W, adapters):
        chosen_adapters = adapters[chosen]
        delta = sum((scale(alpha, A, B) * (A @ B) for A, B, alpha in chosen_adapters),
                    np.zeros_like(W))
        return start * W + sign * delta / (len(chosen_adapters) or 1 if mean else 1)
    return answer


def _alpha_r(alpha, A, B):
    return alpha / len(B)


def _merged_in_place(W, adapters):
    for A, B, alpha in adapters:
        W += alpha / len(B) * (A @ B)
    return W


def _one_rank(W, adapters):
    rank = sum(len(B) for _, B, _ in adapters)
    return W + sum((alpha / rank * (A @ B) for A, B, alpha in adapters), np.zeros_like(W))


def _first_scale(W, adapters):
    return W + sum((adapters[0][2] / len(adapters[0][1]) * (A @ B) for A, B, _ in adapters),
                   np.zeros_like(W))


def _last_scale(W, adapters):
    for _, B, alpha in adapters:
        scale = alpha / len(B)
    for A, B, _ in adapters:
        W = W + scale * (A @ B)
    return W


def _rows(a):
    return a.reshape(-1, a.shape[-1])


def _backward(frozen=1.0, new=None, s_a=None, s_b=None, change=lambda dx, dA, dB: (dx, dA, dB)):
    """The right answer with other factors of its terms, functions of s and the rows' number."""
    def answer(dy, x, W, A, B, s):
        def factor(f):
            return s if f is None else f(s, len(_rows(x)))
        dh = dy @ B.T
        f = frozen(s) if callable(frozen) else frozen
        return change(f * dy @ W.T + factor(new) * dh @ A.T,
                      factor(s_a) * _rows(x).T @ _rows(dh), factor(s_b) * _rows(x @ A).T
                      @ _rows(dy))
    return answer


_right_backward = _backward()


def _with(i, value):
    """The right answer with another part i."""
    def answer(dy, x, W, A, B, s):
        out = list(_right_backward(dy, x, W, A, B, s))
        out[i] = value(dy, x, W, A, B, s)
        return tuple(out)
    return answer


def _chosen(score, kind=0, summary=lambda runs: [test for _, test in runs], best=np.argmax):
    """For each arm the rate with the best ``score(of its validation or test scores)``."""
    def answer(train, arms, rates, seeds):
        tests = {}
        for arm in arms:
            runs = [[train(arm, rate, seed) for seed in seeds] for rate in rates]
            tests[arm] = summary(runs[best([score([r[kind] for r in row]) for row in runs])])
        return tests
    return answer


def _one_for_all(train, arms, rates, seeds):
    def score(rate):
        return np.mean([train(arm, rate, seed)[0] for arm in arms for seed in seeds])
    rate = max(rates, key=score)
    return {arm: [train(arm, rate, seed)[1] for seed in seeds] for arm in arms}


def _rate_of_the_first(train, arms, rates, seeds):
    rate = max(rates, key=lambda r: np.mean([train(arms[0], r, seed)[0] for seed in seeds]))
    return {arm: [train(arm, rate, seed)[1] for seed in seeds] for arm in arms}


def _rate_of_each_seed(train, arms, rates, seeds):
    return {arm: [max(train(arm, rate, seed) for rate in rates)[1] for seed in seeds]
            for arm in arms}


def _all_rates(train, arms, rates, seeds):
    return {arm: [train(arm, rate, seed)[1] for rate in rates for seed in seeds] for arm in arms}


def _mean_of_rates(train, arms, rates, seeds):
    return {arm: [np.mean([train(arm, rate, seed)[1] for rate in rates]) for seed in seeds]
            for arm in arms}


def _fewer_for_the_rest(train, arms, rates, seeds):
    tests = _chosen(np.mean)(train, arms, rates, seeds)
    return {arm: tests[arm] if arm == arms[0] else tests[arm][1:] for arm in arms}


WRONG = {
    "largest_rank": [
        ("smaller side", lambda shapes, budget: budget // sum(n + m for n, m in shapes)),
        ("may still grow", lambda shapes, budget: min(
            budget // sum(n + m for n, m in shapes), min(min(shape) for shape in shapes))),
        ("add up", _rank(lambda shapes, rank: sum(min(rank, n, m) * n * m for n, m in shapes))),
        ("A alone", _rank(lambda shapes, rank: sum(min(rank, n, m) * n for n, m in shapes))),
        ("B alone", _rank(lambda shapes, rank: sum(min(rank, n, m) * m for n, m in shapes))),
        ("over the budget", lambda shapes, budget: _right_rank(shapes, budget) + 1),
        ("still fits", lambda shapes, budget: max(_right_rank(shapes, budget) - 1, 0)),
        ("still fits", _rank(_size, lambda size, budget: size < budget)),
        ("over the budget", _no_limit),
        ("return their rank", lambda shapes, budget: _size(shapes, _right_rank(shapes, budget))),
        ("all layers together", lambda shapes, budget: budget // max(n + m for n, m in shapes)),
        ("all layers together", lambda shapes, budget: budget // (shapes[0][0] + shapes[0][1])),
        ("one whole number", lambda shapes, budget: [
            min(_right_rank(shapes, budget), *shape) for shape in shapes]),
        ("one whole number", lambda shapes, budget: _right_rank(shapes, budget) + 0.5),
        ("over the budget", lambda shapes, budget: max(_right_rank(shapes, budget), 1)),
        ("still fits", lambda shapes, budget: min(_right_rank(shapes, budget), 4)),
    ],
    "merge": [
        ("is missing", _merged(lambda alpha, A, B: 1)),
        ("divided by the rank", _merged(lambda alpha, A, B: alpha)),
        ("alpha is missing", _merged(lambda alpha, A, B: 1 / len(B))),
        ("does not multiply", _merged(lambda alpha, A, B: alpha * len(B))),
        ("divides alpha", _merged(lambda alpha, A, B: len(B) / alpha)),
        ("not by its root", _merged(lambda alpha, A, B: alpha / np.sqrt(len(B)))),
        ("not its rows", _merged(lambda alpha, A, B: alpha / len(A))),
        ("not the last alone", _merged(_alpha_r, slice(-1, None))),
        ("not the first alone", _merged(_alpha_r, slice(0, 1))),
        ("no mean", _merged(_alpha_r, mean=True)),
        ("add it to W", _merged(_alpha_r, start=0)),
        ("taken away", _merged(_alpha_r, sign=-1)),
        ("in place", _merged_in_place),
        ("its own rank", lambda W, adapters: W if not adapters else _one_rank(W, adapters)),
        ("its own rank", lambda W, adapters: W if not adapters else _first_scale(W, adapters)),
        ("its own rank", lambda W, adapters: W if not adapters else _last_scale(W, adapters)),
        ("raised", lambda W, adapters: W + sum(alpha / len(B) * (B @ A)
                                               for A, B, alpha in adapters)),
        ("raised", lambda W, adapters: W + np.sum([A for A, _, _ in adapters], axis=0)),
    ],
    "lora_backward": [
        ("through A as well", _backward(new=lambda s, n: 0)),
        ("through W as well", _backward(frozen=0)),
        ("two ways add up", _backward(new=lambda s, n: -s)),
        ("dx: the scale s is missing", _backward(new=lambda s, n: 1)),
        ("adapter alone", _backward(frozen=lambda s: s)),
        ("dx: the scale s is there twice", _backward(new=lambda s, n: s * s)),
        ("dA: the scale s is missing", _backward(s_a=lambda s, n: 1)),
        ("dA: the scale s is there twice", _backward(s_a=lambda s, n: s * s)),
        ("dB: the scale s is missing", _backward(s_b=lambda s, n: 1)),
        ("dB: the scale s is there twice", _backward(s_b=lambda s, n: s * s)),
        ("dA: a mean for a sum", _backward(s_a=lambda s, n: s / n)),
        ("dB: a mean for a sum", _backward(s_b=lambda s, n: s / n)),
        ("exchanged", _backward(change=lambda dx, dA, dB: (dx, dB, dA))),
        ("shape of A", _backward(change=lambda dx, dA, dB: (dx, dA.T, dB))),
        ("shape of B", _backward(change=lambda dx, dA, dB: (dx, dA, dB.T))),
        ("W is frozen", _backward(change=lambda dx, dA, dB: (dx, dA, dB, dA @ dB))),
        ("dA: dy goes back", _with(1, lambda dy, x, W, A, B, s: s * _rows(x).T @ _rows(dy))),
        ("dB: x goes through A", _with(2, lambda dy, x, W, A, B, s: _rows(x).T @ _rows(dy))),
        ("all axes but the last", _with(1, lambda dy, x, W, A, B, s: s * x.swapaxes(-1, -2)
                                        @ (dy @ B.T))),
        ("one example", _with(1, lambda dy, x, W, A, B, s: s * _rows(x[0]).T
                              @ _rows(dy[0] @ B.T))),
        ("raised", _with(0, lambda dy, x, W, A, B, s: dy @ W + s * dy @ B @ A)),
    ],
    "fair_tests": [
        ("chosen on the test", _chosen(np.mean, kind=1)),
        ("lucky seed", _chosen(np.max)),
        ("lucky seed", _chosen(lambda scores: scores[0])),
        ("lucky seed", _rate_of_each_seed),
        ("one rate for all", _one_for_all),
        ("one rate for all", _rate_of_the_first),
        ("one rate for all", lambda train, arms, rates, seeds: {
            arm: [train(arm, rates[0], seed)[1] for seed in seeds] for arm in arms}),
        ("several rates", _all_rates),
        ("worst rate", _chosen(np.mean, best=np.argmin)),
        ("validation scores", _chosen(np.mean, summary=lambda runs: [a for a, _ in runs])),
        ("single runs", _chosen(np.mean, summary=lambda runs: np.mean([b for _, b in runs]))),
        ("single runs", _chosen(np.mean, summary=lambda runs: max(b for _, b in runs))),
        ("at least three", _chosen(np.mean, summary=lambda runs: [max(b for _, b in runs)])),
        ("at least three", _chosen(np.mean, summary=lambda runs: [runs[0][1]] * 5)),
        ("at least three", _chosen(np.mean, summary=lambda runs: [b for _, b in runs[:2]])),
        ("at least three", _chosen(np.mean, summary=lambda runs: sorted(
            b for _, b in runs)[-3:])),
        ("same seeds", _fewer_for_the_rest),
        ("dictionary", lambda *a: [*_chosen(np.mean)(*a).values()]),
        ("dictionary", lambda train, arms, rates, seeds: _chosen(np.mean)(
            train, arms[:1], rates, seeds)),
        ("best mean validation", _mean_of_rates),
    ],
}
