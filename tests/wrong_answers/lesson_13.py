"""Plausible wrong answers to lesson 13: (a word of the hint that fits, the answer)."""

import math

import numpy as np
from scipy import special, stats


def _probe(scale=True, onehot=True, decay=1.0, bias=False, sign=1, softmax=True, turn=False,
           rows=False, share=False, axis=1):
    def answer(f, W, b, y, lam):
        N = len(y)
        s = f @ W + b
        d = special.softmax(s, axis=axis) if softmax else s
        d = d - np.eye(len(b))[y] if onehot else d
        n = N if scale else 1
        dW = sign * f.T @ d / n + decay * lam * W / (N if share else 1)
        db = (d if rows else d.sum(axis=0)) / n * sign + (lam * b if bias else 0)
        return (dW.T if turn else dW), db
    return answer


def _plain(squash):
    """With another softmax of the scores, and all else right."""
    def answer(f, W, b, y, lam):
        d = (squash(f @ W + b) - np.eye(len(b))[y]) / len(y)
        return f.T @ d + lam * W, d.sum(axis=0)
    return answer


def _exponential(shift):
    """A softmax that subtracts ``shift(scores)`` before the exponential."""
    def squash(s):
        e = np.exp(s - shift(s))
        return e / e.sum(axis=1, keepdims=True)
    return squash


def _interval(t=None, df=None, ddof=1, q=lambda c: (1 + c) / 2, se=None, flip=False, order=1):
    def answer(a, b, confidence):
        n, m = len(a), len(b)
        va, vb = a.var(ddof=ddof), b.var(ddof=ddof)
        error = math.sqrt(va / n + vb / m) if se is None else se(va, vb, n, m)
        k = stats.t.ppf(q(confidence), min(n, m) - 1 if df is None else df(n, m))
        k = k if t is None else t(confidence)
        d = (a.mean() - b.mean()) * (-1 if flip else 1)
        return (d - k * error, d + k * error)[::order]
    return answer


WRONG = {
    "ranges_apart": [
        ("either", lambda n, m: 1 / math.comb(n + m, n)),
        ("single pair", lambda n, m: 2 * 0.5 ** (n * m)),
        ("within an arm", lambda n, m: 2 / math.factorial(n + m)),
        ("among all", lambda n, m: 2 / math.comb(2 * n, n)),
        ("among all", lambda n, m: 2 / math.comb(2 * m, m)),
        ("coin", lambda n, m: 0.5 ** (n + m)),
        ("overlap", lambda n, m: 1 - 2 / math.comb(n + m, n)),
        ("how many ways", lambda n, m: 0.031),
        ("at most 1", lambda n, m: math.comb(n + m, n) / 2),
    ],
    "probe_gradient": [
        ("mean over the examples", _probe(scale=False)),
        ("one-hot", _probe(onehot=False)),
        ("missing in dW", _probe(decay=0)),
        ("no 2", _probe(decay=2)),
        ("no 2", _probe(decay=0.5)),
        ("once", _probe(share=True)),
        ("decay has the wrong sign", _probe(decay=-1)),
        ("bias has no decay", _probe(bias=True)),
        ("uphill", _probe(sign=-1)),
        ("turn the product", _probe(turn=True)),
        ("softmax", _probe(softmax=False)),
        ("bias is missing", lambda f, W, b, y, lam: _probe()(f, W, 0 * b, y, lam)),
        ("axis 1", _probe(axis=0)),
        ("axis 1", _probe(axis=None)),
        ("each example", _probe(rows=True)),
        ("return 2 values", lambda f, W, b, y, lam: _probe()(f, W, b, y, lam)[0][:1]),
        ("largest of each row", _plain(_exponential(lambda s: 0))),
        ("largest of each row", _plain(_exponential(lambda s: s.max()))),
        ("largest of each row", _plain(_exponential(lambda s: s.mean(axis=1, keepdims=True)))),
        ("largest of each row", _plain(_exponential(lambda s: s.min(axis=1, keepdims=True)))),
        ("largest difference", _plain(_exponential(lambda s: s.max(axis=0)))),
        ("value 1 of 2", lambda f, W, b, y, lam: _probe()(f, W, b, np.zeros_like(y), lam)),
        ("value 2 of 2", lambda f, W, b, y, lam: (
            _probe()(f, W, b, y, lam)[0], _probe()(f, W, b, y, lam)[1] / len(b))),
    ],
    "difference_interval": [
        ("instead of t", _interval(t=lambda c: stats.norm.ppf((1 + c) / 2))),
        ("that you are given", _interval(t=lambda c: 1.96)),
        ("that you are given", _interval(q=lambda c: 0.975)),
        ("ddof", _interval(ddof=0)),
        ("half of it", _interval(q=lambda c: c)),
        ("number of runs", _interval(se=lambda va, vb, n, m: math.sqrt(va + vb))),
        ("squares", _interval(se=lambda va, vb, n, m: math.sqrt(va / n) + math.sqrt(vb / m))),
        ("does not subtract", _interval(se=lambda va, vb, n, m: math.sqrt(abs(
            va / n - vb / m)))),
        ("both arms have an error", _interval(se=lambda va, vb, n, m: math.sqrt(va / n))),
        ("share below 1", _interval(q=lambda c: 1 + c)),
        ("middle of the interval", lambda *args: tuple(
            x + 1 for x in _interval()(*args))),
        ("middle is right", _interval(t=lambda c: 0.5)),
        ("root is missing", _interval(se=lambda va, vb, n, m: va / n + vb / m)),
        ("takes the standard", _interval(se=lambda va, vb, n, m: math.hypot(
            math.sqrt(va) / n, math.sqrt(vb) / m))),
        ("degree", _interval(df=lambda n, m: n + m - 2)),
        ("degree", _interval(df=lambda n, m: n - 1)),
        ("degree", _interval(df=lambda n, m: m - 1)),
        ("degree", lambda a, b, c: tuple(
            stats.ttest_ind(a, b, equal_var=False).confidence_interval(c))),
        ("middle of the interval", lambda a, b, c: (a.min() - b.max(), a.max() - b.min())),
        ("degree", _interval(df=lambda n, m: max(n, m) - 1)),
        ("degree", _interval(df=lambda n, m: min(n, m))),
        ("a minus b", _interval(flip=True)),
        ("lower end", _interval(order=-1)),
        ("without t", _interval(t=lambda c: 1.0)),
    ],
    "seeds_needed": [
        ("whole number", lambda d, s: 2 * (2.8 * s / d) ** 2 + 0.5),
        ("round up", lambda d, s: round(2 * (2.8 * s / d) ** 2)),
        ("round up", lambda d, s: int(2 * (2.8016 * s / d) ** 2)),
        ("round up", lambda d, s: np.floor(2 * ((1.96 + 0.84) * s / d) ** 2)),
        ("either 0.84", lambda d, s: math.ceil((2.8016 * s / d) ** 2)),
        ("either 0.84", lambda d, s: math.ceil(2 * (1.96 * s / d) ** 2)),
        ("square", lambda d, s: math.ceil(2 * 2.8016 ** 2 * s / d)),
        ("exchanged", lambda d, s: math.ceil(2 * (2.8016 * d / s) ** 2)),
        ("too few", lambda d, s: 10),
        ("fewer are enough", lambda d, s: 1000),
        ("both arms together", lambda d, s: math.ceil(4 * (2.8016 * s / d) ** 2)),
    ],
}
