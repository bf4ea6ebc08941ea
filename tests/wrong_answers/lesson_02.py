"""Plausible wrong answers to lesson 2: (a word of the hint that fits, the answer)."""

import numpy as np
from scipy.special import softmax

from minifpt import functional as F


def _hot(logits, targets):
    return np.eye(logits.shape[1])[targets]


def _smoothed(scale=1.0, hot=1.0, uniform=1.0):
    """The gradient with its three parts weighed by functions of (N, V, a)."""
    def answer(logits, targets, a):
        N, V = logits.shape
        p = softmax(logits, axis=-1)
        soft = (1 - a) ** hot * _hot(logits, targets) + uniform * a / V
        return scale * (p - soft) / N
    return answer


def _sum_for_mean(logits, targets, a):
    return len(logits) * _smoothed()(logits, targets, a)


def _mean_over_words_too(logits, targets, a):
    return _smoothed()(logits, targets, a) / logits.shape[1]


def _among_the_others(logits, targets, a):
    N, V = logits.shape
    hot = _hot(logits, targets)
    return (softmax(logits, axis=-1) - (1 - a) * hot - a / (V - 1) * (1 - hot)) / N


def _temperature_global_max(z, tau):
    e = np.exp((z - z.max()) / tau)
    return e / e.sum(axis=-1, keepdims=True)


def _temperature_naive(z, tau):
    e = np.exp(z / tau)
    return e / e.sum(axis=-1, keepdims=True)


def _total(v):
    return v.sum(axis=-1, keepdims=True)


WRONG = {
    "loss_of_a_hint": [
        ("natural", lambda V, k: np.log2((V - 1 + k) / k)),
        ("sum to 1", lambda V, k: np.log((V + k) / k)),
        ("knows nothing", lambda V, k: np.log(V)),
        ("not the probability", lambda V, k: np.log(V / k)),
        ("sign", lambda V, k: np.log(k / (V - 1 + k))),
        ("that is the probability", lambda V, k: k / (V - 1 + k)),
    ],
    "softmax_with_temperature": [
        ("divides the logits", lambda z, tau: softmax(z, axis=-1) / tau),
        ("must divide", lambda z, tau: softmax(z * tau, axis=-1)),
        ("axis", lambda z, tau: softmax(z / tau, axis=0)),
        ("whole array", lambda z, tau: softmax(z / tau)),
        ("overflows", _temperature_naive),
        ("row by row", _temperature_global_max),
        ("no effect", lambda z, tau: softmax(z, axis=-1)),
        ("without calling the library", lambda z, tau: F.softmax(z / tau)[0]),
        ("sum to 1", lambda z, tau: np.exp((z - z.max(axis=-1, keepdims=True)) / tau)),
    ],
    "smoothed_gradient": [
        ("sum for a mean", _sum_for_mean),
        ("mean over rows and words", _mean_over_words_too),
        ("sign", _smoothed(scale=-1.0)),
        ("hard target", lambda z, t, a: _smoothed()(z, t, 0.0)),
        ("does not sum to 1", _smoothed(hot=0.0)),
        ("mean", lambda z, t, a: _smoothed()(z, t, a) * len(z) / z.shape[1]),
        ("a / V is missing", _smoothed(uniform=0.0)),
        ("among the other words", _among_the_others),
    ],
    "log_softmax_backward": [
        ("softmax's backward", lambda dy, y: np.exp(y) * (dy - _total(dy * np.exp(y)))),
        ("missing", lambda dy, y: dy),
        ("logarithm", lambda dy, y: dy - y * _total(dy)),
        ("mean", lambda dy, y: dy - np.exp(y) * dy.mean(axis=-1, keepdims=True)),
        ("axis", lambda dy, y: dy - np.exp(y) * dy.sum(axis=0)),
        ("sign", lambda dy, y: dy + np.exp(y) * _total(dy)),
        ("own path", lambda dy, y: dy - np.exp(y) * dy),
        ("its share", lambda dy, y: dy - _total(dy)),
    ],
    "loss_scale": [
        ("power of two", lambda g: 30000.0 / np.abs(g).max()),
        ("overflow", lambda g: 2.0 ** np.ceil(np.log2(70000.0 / np.abs(g).max()))),
        ("overflow", lambda g: 2.0 ** np.floor(np.log2(30000.0 / g.max()))),
        ("overflow", lambda g: 2.0 ** np.floor(np.log2(30000.0 / -g.min()))),
        ("overflow", lambda g: 2.0 ** np.floor(np.log2(30000.0 / abs(g[0, 0])))),
        ("power of two", lambda g: -2.0 ** np.floor(np.log2(30000.0 / np.abs(g).max()))),
        ("become 0", lambda g: 2.0 ** -16),
        ("become 0", lambda g: 2.0 ** np.floor(np.log2(1e-6 / np.abs(g).max()))),
    ],
}
