"""Plausible wrong answers to lesson 16: (a word of the hint that fits, the answer)."""

import numpy as np
from scipy.special import softmax


def _grid(T):
    return np.arange(T)[:, None], np.arange(T)


def _mask(rule):
    return lambda T, P: rule(*_grid(T), P)


def _gradient(divide="asked", where=True, truth=True, squash=softmax, axis=-1, minus_one=False):
    def answer(logits, y):
        asked = y >= 0
        onehot = np.eye(logits.shape[-1])[y] * (1.0 if minus_one else asked[:, :, None])
        d = squash(logits, axis=axis) - (onehot if truth else 0)
        if where:
            d = d * asked[:, :, None]
        return d / {"asked": asked.sum(), "all": y.size, "passages": len(y), "nothing": 1}[divide]
    return answer


def _scores(z, axis=-1):
    return z


def _unstable(z, axis):
    return np.exp(z) / np.exp(z).sum(axis=axis, keepdims=True)


def _placed(p, logits, y):
    out = np.zeros(logits.shape)
    out[y >= 0] = (p - np.eye(logits.shape[-1])[y[y >= 0]]) / len(p)
    return out


def _share(v):
    return v / v.sum()


def _paired(a, b):
    d = np.delete(a - b, np.abs(a - b - np.median(a - b)).argmax())
    return d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))


def _unpaired(a, b):
    error = np.sqrt(a.var() / len(a) + b.var() / len(b))
    z = (a.mean() - b.mean()) / error
    return "neither" if abs(z) < 3 else "b" if z > 0 else "a"


def _spread(a, b):
    d = a - b
    return "neither" if abs(d.mean()) < d.std() else "b" if d.mean() > 0 else "a"


def _named(z, limit):
    return "neither" if abs(z) < limit else "b" if z > 0 else "a"


def _by_z(limit, drop=False, size=lambda d: np.std(d, ddof=1)):
    """The mean difference against its standard error, the largest left out or not."""
    def answer(a, b):
        d = a - b
        if drop:
            d = np.delete(d, np.abs(d - np.median(d)).argmax())
        return _named(d.mean() / (size(d) / np.sqrt(len(d))), limit)
    return answer


def _larger_than(limit):
    return lambda a, b: _named((a - b).mean(), limit)


WRONG = {
    "prefix_mask": [
        ("causal mask", _mask(lambda t, s, P: s <= t)),
        ("look ahead", _mask(lambda t, s, P: (s <= t) | (t >= 0))),
        ("too long", _mask(lambda t, s, P: (s <= t) | (s <= P))),
        ("too short", _mask(lambda t, s, P: (s <= t) | (s < P - 1))),
        ("row t", _mask(lambda t, s, P: ((s <= t) | (s < P)).T)),
        ("*seen*", _mask(lambda t, s, P: (s > t) & (s >= P))),
        ("see", _mask(lambda t, s, P: (s < P) & (t < P))),
        ("see", _mask(lambda t, s, P: ((s < P) & (t < P)) | (s == t))),
        ("see it as well", _mask(lambda t, s, P: ((s < P) & (t < P)) | ((s <= t) & (s >= P)))),
        ("itself, too", _mask(lambda t, s, P: (s < t) | (s < P))),
        ("or, not and", _mask(lambda t, s, P: (s <= t) & (s < P))),
        ("not after it", _mask(lambda t, s, P: (s >= t) | (s < P))),
        ("itself, too", _mask(lambda t, s, P: (s < t) | ((s < P) & (s != t)))),
        ("not only the prefix", _mask(lambda t, s, P: (s < P) & (t >= 0))),
        ("True and False", lambda T, P: np.where(np.tri(T) > 0, 0, -np.inf)),
    ],
    "masked_gradient": [
        ("sum instead of a mean", _gradient("nothing")),
        ("all positions", _gradient("all")),
        ("passages", _gradient("passages")),
        ("counts from the end", _gradient(where=False, minus_one=True)),
        ("counts from the end", _gradient("all", where=False, minus_one=True)),
        ("nothing is lost", _gradient(where=False)),
        ("truth is missing", _gradient(truth=False)),
        ("softmax is missing", _gradient(squash=_scores)),
        ("shape of the logits", lambda logits, y: _gradient()(logits, y)[y >= 0]),
        ("only the entry", lambda logits, y: (
            _gradient()(logits, y) * np.eye(logits.shape[-1])[y])),
        ("last axis", _gradient(axis=1)),
        ("last axis", _gradient(axis=0)),
        ("last axis", lambda logits, y: _placed(softmax(logits[y >= 0], axis=0), logits, y)),
        ("divided by their sum", lambda logits, y: _placed(np.exp(logits[y >= 0]), logits, y)),
        ("0 is a byte", lambda logits, y: _gradient()(logits, np.where(y == 0, -1, y))),
        ("nothing is asked the gradient is 0", lambda logits, y: (
            _gradient()(logits, y) + (y < 0)[:, :, None])),
        ("scores may be large", _gradient(squash=_unstable)),
        ("sign", lambda logits, y: -_gradient()(logits, y)),
    ],
    "missing_token": [
        ("sum to 1", lambda P, left, right: P[left] * P[:, right]),
        ("right side is not used", lambda P, left, right: P[left]),
        ("right side only", lambda P, left, right: _share(P[:, right])),
        ("right side only", lambda P, left, right: P[:, right]),
        ("follows*", lambda P, left, right: P[right]),
        ("follows*", lambda P, left, right: _share(P[left] * P[right])),
        ("exchanged", lambda P, left, right: _share(P[right] * P[:, left])),
        ("column", lambda P, left, right: _share(P[:, left] * P[:, right])),
        ("sum instead", lambda P, left, right: _share(P[left] + P[:, right])),
        ("sum instead", lambda P, left, right: (P[left] + _share(P[:, right])) / 2),
        ("softmax", lambda P, left, right: softmax(P[left] * P[:, right])),
        ("undone", lambda P, left, right: _share(np.log(P[left] * P[:, right]))),
    ],
    "better_of_two": [
        ("difference", lambda a, b: "b" if b.mean() < a.mean() else "a"),
        ("spread", _unpaired),
        ("spread", _spread),
        ("difference", lambda a, b: "neither"),
        ("other way", lambda a, b: ("neither" if abs(_paired(a, b)) < 3 else
                                    "a" if _paired(a, b) > 0 else "b")),
        ("difference", lambda a, b: (
            "b" if _paired(a, b) > 3 else "a" if _paired(a, b) < -0.0 else "neither")),
        ("difference", lambda a, b: "b" if np.median(b) < np.median(a) else "a"),
        ("return", lambda a, b: a.mean() - b.mean()),
        ("return", lambda a, b: int(a.mean() > b.mean())),
        ("difference", _by_z(1.0)),
        ("1.4 standard errors", _by_z(1.28)),
        ("1.4 standard errors", _by_z(1.0, drop=True)),
        ("difference", _by_z(1.0, size=np.std)),
        ("difference", _by_z(0.0)),
        ("difference", lambda a, b: "b" if (b < a).mean() > 0.55 else
         "a" if (a < b).mean() > 0.55 else "neither"),
        ("difference", _larger_than(0.01)),
        ("difference", _larger_than(0.1)),
        ("difference", _larger_than(1.0)),
        ("difference", lambda a, b: "b" if b.mean() < 0.97 * a.mean() else
         "a" if a.mean() < 0.97 * b.mean() else "neither"),
        ("difference", lambda a, b: "b" if b.min() < a.min() else "a"),
        ("return", lambda a, b: _named(_paired(a, b), 3).upper()),
    ],
}
