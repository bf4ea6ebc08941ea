"""Plausible wrong answers to lesson 18: (a word of the hint that fits, the answer)."""

import numpy as np


def _swish(dx=None, dbeta=None):
    def answer(dy, x, beta):
        s = 1 / (1 + np.exp(-beta * x))
        slope = s * (1 - s)
        return (dx(dy, x, beta, s, slope) if dx else dy * (s + x * beta * slope),
                dbeta(dy, x, beta, s, slope) if dbeta else (dy * x * x * slope).sum(axis=(0, 1)))
    return answer


def _sigmoid(a):
    return 1 / (1 + np.exp(-a))


def _swapped(dy, x, beta):
    return _swish()(dy, x, beta)[::-1]


def _chain(order=reversed, chained=True, start=True, which=None):
    def answer(pairs, x, dy):
        caches, value = [], x
        for forward, _ in pairs:
            y, cache = forward(value)
            caches.append(cache)
            value = y if chained else value
        total = 0
        for i in order(range(len(pairs))):
            cache = caches[i if which is None else which]
            grad = pairs[i][1](dy, cache)
            dy, total = (grad, 0) if start else (dy, total + grad)
        return dy if start else total
    return answer


def _by_pair(pairs, x, dy):
    caches = {}
    for pair in pairs:
        x, caches[pair] = pair[0](x)
    for pair in reversed(pairs):
        dy = pair[1](dy, caches[pair])
    return dy


def _crossed(pairs, x, dy):
    caches = []
    for forward, _ in pairs:
        x, cache = forward(x)
        caches.append(cache)
    for (_, backward), cache in zip(pairs, reversed(caches), strict=True):
        dy = backward(dy, cache)
    return dy


def _last(pairs, x, dy):
    for forward, _ in pairs:
        x, cache = forward(x)
    return pairs[-1][1](dy, cache)


def _only_forward(pairs, x, dy):
    for forward, _ in pairs:
        x, _ = forward(x)
    return x


def _gradient(dy, y):
    return y * (dy - (dy * y).sum(axis=-1, keepdims=True))


WRONG = {
    "scaled": [
        ("np.sqrt(D) is a number of NumPy's", lambda S, D: S / np.sqrt(D)),
        ("take the dtype of S", lambda S, D: (S / np.sqrt(D)).astype(np.float32)),
        ("not by its root", lambda S, D: S / D),
        ("multiplied", lambda S, D: S * D ** 0.5),
        ("not the width of S", lambda S, D: S / S.shape[-1] ** 0.5),
        ("return an array", lambda S, D: (S / D ** 0.5).tolist()),
        ("Divide by the square root", lambda S, D: S),
        ("Divide by the square root", lambda S, D: S * D),
        ("Divide by the square root", lambda S, D: S / D ** 2),
        ("not the width of S", lambda S, D: S / len(S) ** 0.5),
        ("Divide by the square root", lambda S, D: (S / D ** 0.5).T),
    ],
    "swish_backward": [
        ("in which the sigmoid stays", _swish(lambda dy, x, beta, s, slope: dy * s)),
        ("two terms add up", _swish(lambda dy, x, beta, s, slope: dy * (s - x * beta * slope))),
        ("mind its sign", lambda dy, x, beta: _swish()(dy, x, -beta)),
        ("mind its sign", _swish(lambda dy, x, beta, s, slope: dy * (1 - s + x * beta * slope))),
        ("with beta", _swish(lambda dy, x, beta, s, slope: dy * (
            _sigmoid(x) + x * beta * _sigmoid(x) * _sigmoid(-x)))),
        ("in which the sigmoid moves", _swish(lambda dy, x, beta, s, slope: dy * x * beta * slope)),
        ("factor beta", _swish(lambda dy, x, beta, s, slope: dy * (s + x * slope))),
        ("in dx, the slope of the sigmoid", _swish(
            lambda dy, x, beta, s, slope: dy * (s + x * beta * (1 - s)))),
        ("dy is missing", _swish(lambda dy, x, beta, s, slope: s + x * beta * slope)),
        ("batch and tokens", _swish(None, lambda dy, x, beta, s, slope: dy * x * x * slope)),
        ("batch and tokens", _swish(None, lambda dy, x, beta, s, slope: (dy * x * x * slope).sum(
            axis=0))),
        ("mean for a sum", _swish(None, lambda dy, x, beta, s, slope: (dy * x * x * slope).mean(
            axis=(0, 1)))),
        ("one x is the factor", _swish(None, lambda dy, x, beta, s, slope: (dy * x * slope).sum(
            axis=(0, 1)))),
        ("is x, not beta", _swish(None, lambda dy, x, beta, s, slope: (
            dy * x * beta * slope).sum(axis=(0, 1)))),
        ("in the order", _swapped),
    ],
    "chain_backward": [
        ("first to go back", _chain(order=list)),
        ("not x", _chain(chained=False)),
        ("not dy", _chain(start=False)),
        ("last pair alone", _last),
        ("a cache of its own", _by_pair),
        ("cache of its own forward pass", _chain(which=-1)),
        ("cache of its own forward pass", _chain(which=0)),
        ("cache of its own forward pass", _crossed),
        ("one backward pass is missing", lambda pairs, x, dy: _chain(
            order=lambda r: list(reversed(r))[:-1])(pairs, x, dy)),
        ("that is y", _only_forward),
    ],
    "wrong_but_useful": [
        ("make it wrong", _gradient),
        ("make it wrong", lambda dy, y: 0.3 * _gradient(dy, y)),
        ("points away", lambda dy, y: -np.sqrt(y) * dy),
        ("nothing to do with", lambda dy, y: np.random.default_rng(0).standard_normal(y.shape)),
        ("below 0.85", lambda dy, y: y * dy),
        ("below 0.85", lambda dy, y: dy),
        ("something in it", lambda dy, y: np.zeros_like(y)),
        ("something in it", lambda dy, y: dy.sum(axis=-1)),
    ],
}
