"""Solutions of lesson 2, softmax and cross-entropy.  Run the file to have them checked."""

from unittest.mock import patch

import numpy as np

from minifpt import functional as F
from minifpt.exercises import Case, check_solutions, exercise


def loss_of_a_hint(V, k):
    """k parts for the target and 1 for each other word: its probability is k / (V - 1 + k)."""
    return np.log((V - 1 + k) / k)


@exercise(loss_of_a_hint, {
    "nats are natural logarithms: yours has another base": ["np.log -> np.log2",
                                                            "np.log -> np.log10"],
    "the probabilities must sum to 1: the target is one of the V words, not one more":
        "V - 1 + k -> V + k",
    "that is the loss of a model that knows nothing": "_ / k -> V",
    "k / V is not the probability: when the target gets more, do the others keep 1 / V?":
        "_ / k -> V / k",
    "the sign is the other way round: a loss is at least 0": "np.log(_) -> -np.log(_)",
    "that is the probability; the loss is minus its logarithm": "np.log(_) -> 1 / (_)",
    "that is one over the probability; the loss is its logarithm": "np.log(_) -> _",
    "that is the probability of all other words; the loss is minus the target's logarithm":
        "np.log(_) -> 1 - 1 / (_)",
    "that is the loss of another word: the target has k parts of V - 1 + k": "_ / k -> V - 1 + k",
    "those are odds: all parts together are V - 1 + k, and the target's k are among them": [
        "V - 1 + k -> V - 1", "V - 1 + k -> V - k"],
    "the target has k parts, not k more than another word": "(V - 1 + k) / k -> (V + k) / (k + 1)",
    "k is a ratio of probabilities: it belongs inside the logarithm": [
        "np.log((V - 1 + k) / k) -> np.log(V) / k", "np.log((V - 1 + k) / k) -> np.log(V) - k",
        "np.log((V - 1 + k) / k) -> np.log(V - 1 + np.exp(k)) - k"],
    "the V is missing: how many parts are there in all?": ["_ / k -> k", "_ / k -> 1 / k"],
    "the others have a part each, together V - 1: the more words, the larger the loss":
        "_ / k -> V * k",
    "that is a mean over all words; the loss is that of the target alone": [
        "return _ -> p = k / (V - 1 + k); return -p * np.log(p)",
        "return _ -> p = k / (V - 1 + k); return -p * np.log(p) + (1 - p) * np.log(V - 1 + k)"],
})
def _(rng):
    for low, high in ((5, 30), (1000, 60000)):            # where V - 1 and V differ, and GPT-2's
        yield int(rng.integers(low, high)), float(rng.uniform(2, 50))


def softmax_with_temperature(z, tau):
    """Divide first, then subtract each row's maximum: no exponent is above 0."""
    x = z / tau
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def by_hand(*args):
    raise ValueError("write it without calling the library")


@exercise(softmax_with_temperature, {
    "the temperature divides the logits, not the probabilities": (
        "z / tau -> z", "e / _ -> e / _ / tau"),
    "the temperature multiplies: it must divide": "z / tau -> z * tau",
    "the wrong axis: each row is a choice of its own":
        "return _ -> e = np.exp(x - x.max(axis=0)); return e / e.sum(axis=0)",
    "one softmax over the whole array: each row is a choice of its own": [
        "return _ -> e = np.exp(x - x.max()); return e / e.sum()", "e / _ -> e / e.sum()"],
    "a power of softmax(z): at small tau all numbers of a row become 0, and 0 / 0 is no number": (
        "z / tau -> z", "return _ -> p = (e / e.sum(axis=-1, keepdims=True)) ** (1 / tau); "
        "return p / p.sum(axis=-1, keepdims=True)"),
    "the temperature has no effect: that is softmax(z)": "z / tau -> z",
}, {
    "row by row": "x.max(axis=-1, keepdims=True) -> x.max()",
    "overflows": "x - _ -> x",
    "sum to 1": "e / _ -> e",
    "without calling the library": "return _ -> return F.softmax(x)[0]",
})
def _(rng):
    z = rng.standard_normal((3, 6))
    for tau, size in ((float(rng.uniform(0.3, 0.8)), 1), (float(rng.uniform(2, 4)), 1),
                      (1e-6, 1), (1.0, 2000)):
        x = size * z
        naive, top = np.exp(x / tau), x.max(axis=-1).argmax()
        case = Case((x, tau), mistakes={
            "a row is 0 / 0: subtract the maximum row by row, not one maximum for the whole array":
                lambda p, top=top: np.isnan(p).any() and np.isfinite(p[top]).all(),
            "it overflows: what is the largest number that you take the exponential of?":
                lambda p, naive=naive: not np.isfinite(naive).all() and not np.isfinite(p).all(),
            "the rows do not sum to 1: divide by the sum, after the exponential":
                lambda p: not np.allclose(np.sum(p, axis=-1), 1)})
        with patch.object(F, "softmax", by_hand):         # until the answer to it has run
            yield case


def smoothed_gradient(logits, targets, a):
    """The soft target sums to 1, so the loss is log S - sum_i target_i z_i.  Its gradient is again
    what the model believes minus what is asked for."""
    N, V = logits.shape
    soft = np.full((N, V), a / V)
    soft[np.arange(N), targets] += 1 - a
    p = softmax_with_temperature(logits, 1.0)
    return (p - soft) / N


@exercise(smoothed_gradient, {
    "a sum for a mean: the loss is the mean over the rows": "_ / N -> _",
    "a mean over rows and words: the loss is the mean over the rows alone": "_ / N -> _ / N / V",
    "the sign is the other way round: what the model believes minus what is true":
        "p - soft -> soft - p",
    "the smoothing is missing: that is the gradient for a hard target":
        "N, V = _ -> N, V = _; a = 0",
    "the soft target does not sum to 1: the one-hot part counts 1 - a": "1 - a -> 1",
    "the a / V is missing: every word gets its share, the target too": "a / V -> 0.0",
    "a is divided among the other words: here every word gets a / V, the target too":
        ("a / V -> a / (V - 1)", "1 - a -> 1 - a - a / (V - 1)"),
    "that scales the whole gradient; the smoothing changes the target alone":
        "p - soft -> (1 - a) * (p - np.eye(V)[targets])",
}, {"times as large": "_ / N -> _ / V"})
def _(rng):
    N, V = int(rng.integers(3, 7)), int(rng.integers(7, 11))
    yield (2 * rng.standard_normal((N, V)), rng.integers(0, V, N), float(rng.uniform(0.1, 0.4)))


def log_softmax_backward(dy, y):
    """y_i = x_i - lse(x): x_j reaches y_j directly, with rate 1, and every y_i through the
    log-sum-exp, with rate -p_j, where p_j = exp(y_j)."""
    total = dy.sum(axis=-1, keepdims=True)
    return dy - np.exp(y) * total


@exercise(log_softmax_backward, {
    "that is softmax's backward, with p = exp(y): here y is a logarithm":
        "return _ -> p = np.exp(y); return p * (dy - (dy * p).sum(axis=-1, keepdims=True))",
    "the path through the log-sum-exp is missing: it reaches every entry of the row":
        "dy - _ -> dy",
    "y is a logarithm; the probability is exp(y)": "np.exp(y) -> y",
    "a mean for a sum: every y of the row has its own path through the log-sum-exp":
        "total = _ -> total = dy.mean(axis=-1, keepdims=True)",
    "the wrong axis: the log-sum-exp belongs to a row": "total = _ -> total = dy.sum(axis=0)",
    "each entry gets the whole sum: its share is its probability": "np.exp(y) * total -> total",
    "each entry counts only its own path: the log-sum-exp is shared by the row":
        "np.exp(y) * total -> np.exp(y) * dy",
    "a sign is wrong: y is x minus the log-sum-exp": "dy - _ -> dy + _",
})
def _(rng):
    x, dy = 2 * rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    yield dy, np.log(softmax_with_temperature(x, 1.0))


def loss_scale(gradient):
    """As large as the largest entry allows: that loses the fewest.  Its sign does not matter.

    There is no such scale for a gradient whose entries span more than float16's range, from 6e-8
    to 65504, about twelve powers of ten.  One huge entry is enough to lose all the others.
    """
    return 2.0 ** np.floor(np.log2(30000.0 / np.abs(gradient).max()))


# Every power of two that is neither too large nor too small is right.
@exercise(loss_scale, refused={
    "power of two": ["2.0 ** np.floor(np.log2(_)) -> _", "2.0 ** _ -> -2.0 ** _"],
    "overflow": [("np.floor -> np.ceil", "30000.0 -> 70000.0"), "np.abs(gradient) -> gradient",
                 "np.abs(gradient) -> (-gradient)",
                 "np.abs(gradient).max() -> np.abs(gradient[0, 0])"],
    "become 0": ["np.floor(_) -> -16", "30000.0 -> 1e-6"],
})
def _(rng):
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


if __name__ == "__main__":
    check_solutions(globals())
