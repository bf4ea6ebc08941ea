"""Lesson 2, softmax and cross-entropy."""

from unittest.mock import patch

import numpy as np
from scipy.special import log_softmax, softmax

from .. import functional as F
from . import Case, exercise


def by_hand(*args):
    raise ValueError("write it without calling the library")


@exercise
def loss_of_a_hint(rng):
    for low, high in ((5, 30), (1000, 60000)):            # where V - 1 and V differ, and GPT-2's
        V, k = int(rng.integers(low, high)), float(rng.uniform(2, 50))
        p = k / (V - 1 + k)
        yield Case((V, k), -np.log(p), {
            "that is in bits: take the natural logarithm": -np.log2(p),
            "the probabilities must sum to 1: the target is one of the V words, not one more":
                -np.log(k / (V + k)),
            "that is the loss of a model that knows nothing": np.log(V),
            "k / V is not the probability: when the target gets more, do the others keep 1 / V?":
                -np.log(k / V),
            "the sign is the other way round: a loss is at least 0": np.log(p),
            "that is the probability; the loss is minus its logarithm": p,
        })


@exercise
def softmax_with_temperature(rng):
    z = rng.standard_normal((3, 6))
    for tau, size, about in (
            (float(rng.uniform(0.3, 0.8)), 1, ""),
            (float(rng.uniform(2, 4)), 1, ""),
            (1e-6, 1, "At a temperature of 1e-6 something overflows: what is the largest "
                      "number that you take the exponential of?"),
            (1.0, 2000, "With logits in the thousands something overflows: what is the largest "
                        "number that you take the exponential of?")):
        x = size * z
        naive, top = np.exp(x / tau), x.max(axis=-1).argmax()
        case = Case((x, tau), softmax(x / tau, axis=-1), {
            "the temperature divides the logits, not the probabilities": softmax(x, -1) / tau,
            "the temperature multiplies: it must divide": softmax(x * tau, axis=-1),
            "the wrong axis: each row is a choice of its own": softmax(x / tau, axis=0),
            "one softmax over the whole array: each row is a choice of its own":
                softmax(x / tau),
            "the temperature has no effect: that is softmax(z)": softmax(x, axis=-1),
            "a row is 0 / 0: subtract the maximum row by row, not one maximum for the whole array":
                lambda p, top=top: np.isnan(p).any() and np.isfinite(p[top]).all(),
            "it overflows: what is the largest number that you take the exponential of?":
                lambda p, naive=naive: not np.isfinite(naive).all() and not np.isfinite(p).all(),
            "the rows do not sum to 1: divide by the sum, after the exponential":
                lambda p: not np.allclose(np.sum(p, axis=-1), 1),
        }, about=about)
        with patch.object(F, "softmax", by_hand):         # until the answer to it has run
            yield case


@exercise
def smoothed_gradient(rng):
    N, V = int(rng.integers(3, 7)), int(rng.integers(7, 11))
    logits, targets = 2 * rng.standard_normal((N, V)), rng.integers(0, V, N)
    a = float(rng.uniform(0.1, 0.4))
    p, hot = softmax(logits, axis=-1), np.eye(V)[targets]
    soft = (1 - a) * hot + a / V
    return Case((logits, targets, a), (p - soft) / N, {
        "a sum for a mean: the loss is the mean over the rows": p - soft,
        "a mean over rows and words: the loss is the mean over the rows alone":
            (p - soft) / (N * V),
        "the sign is the other way round: what the model believes minus what is true":
            (soft - p) / N,
        "the smoothing is missing: that is the gradient for a hard target": (p - hot) / N,
        "the soft target does not sum to 1: the one-hot part counts 1 - a":
            (p - hot - a / V) / N,
        "the a / V is missing: every word gets its share, the target too":
            (p - (1 - a) * hot) / N,
        "a is divided among the other words: here every word gets a / V, the target too":
            (p - (1 - a) * hot - a / (V - 1) * (1 - hot)) / N,
        "that scales the whole gradient; the smoothing changes the target alone":
            (1 - a) * (p - hot) / N,
    })


@exercise
def log_softmax_backward(rng):
    x, dy = 2 * rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    y = log_softmax(x, axis=-1)
    p = np.exp(y)
    return Case((dy, y), dy - p * dy.sum(axis=-1, keepdims=True), {
        "that is softmax's backward, with p = exp(y): here y is a logarithm":
            p * (dy - (dy * p).sum(axis=-1, keepdims=True)),
        "the path through the log-sum-exp is missing: it reaches every entry of the row": dy,
        "y is a logarithm; the probability is exp(y)":
            dy - y * dy.sum(axis=-1, keepdims=True),
        "a mean for a sum: every y of the row has its own path through the log-sum-exp":
            dy - p * dy.mean(axis=-1, keepdims=True),
        "the wrong axis: the log-sum-exp belongs to a row":
            dy - p * dy.sum(axis=0, keepdims=True),
        "each entry gets the whole sum: its share is its probability":
            dy - dy.sum(axis=-1, keepdims=True),
        "each entry counts only its own path: the log-sum-exp is shared by the row":
            dy - p * dy,
        "a sign is wrong: y is x minus the log-sum-exp":
            dy + p * dy.sum(axis=-1, keepdims=True),
    })


@exercise
def loss_scale(rng):
    def case(size, sign):
        gradient = size * rng.uniform(0.5, 2) * np.exp(1.5 * rng.standard_normal((50, 20)))
        gradient *= rng.choice([-1.0, 1.0], gradient.shape)
        row, column = rng.integers(50), rng.integers(20)
        gradient[row, column] = 8 * sign * np.abs(gradient).max()

        def scaled(scale):
            return np.float16(gradient * float(scale))

        def lost(scale):
            return float((scaled(scale) == 0).mean())

        def overflows(scale):
            return bool(np.isinf(scaled(scale)).any())

        def power(scale):
            return np.isfinite(scale) and scale > 0 and np.frexp(float(scale))[0] == 0.5

        return Case(
            (gradient,), lambda s: bool(power(s) and not overflows(s) and lost(s) <= 0.01), {
                "not a power of two: any other scale rounds every entry once more":
                    lambda s: not power(s),
                "negative entries overflow to minus infinity: how large an entry is has nothing "
                "to do with its sign":
                    lambda s: overflows(s) and not np.isposinf(scaled(s)).any(),
                "the scale is too large: entries overflow to infinity": overflows,
                "the scale is too small: more than 1 % of the entries become 0":
                    lambda s: lost(s) > 0.01})

    sign = float(rng.choice([-1, 1]))                     # of the largest entry: both in each draw
    for size in rng.permutation([1e-11, 1e-7, 1e4]):
        sign = -sign
        yield case(size, sign)
