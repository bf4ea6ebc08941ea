"""Solutions of lesson 2, softmax and cross-entropy.  Run the file to have them checked."""

import numpy as np

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
    "that is the loss of another word: the target has k parts of V - 1 + k": [
        "_ / k -> V - 1 + k", "_ / k -> V + k"],
    "those are odds: all parts together are V - 1 + k, and the target's k are among them": [
        "V - 1 + k -> V - 1", "V - 1 + k -> V - k"],
    "the target has k parts, the others one each: V - 1 + k in all": "_ / k -> V - 1",
    "the target has k parts, not k more than another word": "(V - 1 + k) / k -> (V + k) / (k + 1)",
    "k is a ratio of probabilities: it belongs inside the logarithm": [
        "np.log((V - 1 + k) / k) -> np.log(V) / k", "np.log((V - 1 + k) / k) -> np.log(V) - k",
        "np.log((V - 1 + k) / k) -> np.log(V - 1 + np.exp(k)) - k"],
    "that is one minus it, the probability of any other word": "np.log(_) -> -np.log(1 - 1 / (_))",
    "the loss is that of one word, the target: nothing is multiplied by V":
        "np.log(_) -> V * np.log(_)",
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


def softmax(z):
    """Each row's largest entry is subtracted first: no exponent is above 0."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gradient_for_a_teacher(z, q):
    """As a row of q sums to 1, a row's loss is log S - sum_i q_i z_i.  Its gradient is again what
    the model believes minus what it is told."""
    p = softmax(z)
    return (p - q) / len(z)


SHARES = "_ / len(z) -> _ / len(z)", "_ / len(z) -> _"    # right, and without N
OF_ALL = "p = softmax(z) -> e = np.exp(z - z.max()); p = e / e.sum({})"


@exercise(gradient_for_a_teacher, {
    "a sum for a mean: the loss is the mean over the rows": "_ / len(z) -> _",
    "a mean over rows and words: the loss is the mean over the rows alone":
        "_ / len(z) -> _ / z.size",
    "divided by the words: the loss is the mean over the rows": "_ / len(z) -> _ / z.shape[1]",
    "the sign is the other way round: what the model believes minus what it is told":
        "p - q -> q - p",
    "the teacher's likeliest word is not the whole truth: every word has its share q":
        "p - q -> p - np.eye(z.shape[1])[q.argmax(axis=1)]",
    "that is the rate along p; the logits stand before the softmax": [
        f"(p - q) / len(z) -> -q / p / {n}" for n in ("len(z)", "1")],
    "each logit moves the probabilities of all words of its row, not only its own": [
        f"(p - q) / len(z) -> {rate} / len(z)" for rate in ("q * (p - 1)", "(q * p - q)",
                                                            "-q * p * (1 - p)", "-(1 - p)")],
    "z are scores: softmax makes probabilities of them": [
        (f"p = softmax(z) -> p = {p}", share) for p in ("z", "np.exp(z)") for share in SHARES],
    "that is the difference of logarithms; the gradient has the probabilities": [
        "p - q -> np.log(p) - q", "p - q -> np.log(p) - np.log(q)"],
    "q is asked of each word as it is: nothing multiplies the difference": [
        "p - q -> q * (p - q)", "p - q -> p * (p - q)"],
    "each row is a choice of its own: the exponentials of a row sum to 1": [
        (OF_ALL.format(axis), share) for axis in ("", "axis=0") for share in SHARES],
    "that is the loss; its gradient has an entry for each logit": [
        "return _ -> return -(q * np.log(p)).sum(axis=1).mean()",
        "return _ -> return -q * np.log(p) / len(z)"],
    "q is missing: what the model believes minus what it is told": "p - q -> p",
    "what the model believes is missing: the softmax of z": "p - q -> -q",
    "divided twice: the mean over the rows is one division": "_ / len(z) -> _ / len(z) ** 2",
    "q are probabilities already: softmax belongs to z": "p - q -> p - softmax(q)",
    "softmax's backward gets the rate along p, which is -q / p, not q": [
        f"p - q -> {sign}p * (q - (q * p).sum(axis=-1, keepdims=True))" for sign in ("", "-")],
    "the gradient of each row is asked for, (N, V)": [
        f"return _ -> return (p - q).{way}(axis=0)" for way in ("mean", "sum")],
}, {"overflows": "p = softmax(z) -> p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)",
    "a p of 0 is divided by": "p - q -> p * (-q / p + q.sum(axis=-1, keepdims=True))"})
def _(rng):
    N, V = int(rng.integers(4, 7)), int(rng.integers(7, 10))
    q = softmax(rng.standard_normal((N, V)))
    yield 1.5 * rng.standard_normal((N, V)), q
    yield Case((800 + 300 * rng.standard_normal((N, V)), q), mistakes={
        "an exponential overflows (subtract each row's largest logit first), or a p of 0 is "
        "divided by":
            lambda dz: not np.isfinite(dz).all()})


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
    "y is a logarithm; the probability is exp(y)": [
        "np.exp(y) -> y", "return _ -> return y * (dy - (dy * y).sum(axis=-1, keepdims=True))"],
    "1 / p is the logarithm's rate along p; x stands before the softmax":
        ["return _ -> return dy / np.exp(y)", "return _ -> return dy / y"],
    "dy is missing in the second term: every y of a row sends its dy through the log-sum-exp":
        "np.exp(y) * total -> np.exp(y)",
    "the sum of dy has no weights: each y moves with the log-sum-exp at the same rate, -1":
        "total = _ -> total = (dy * np.exp(y)).sum(axis=-1, keepdims=True)",
    "the first path has rate 1: there dy arrives as it is":
        "dy - _ -> np.exp(y) * dy - _",
    "a mean for a sum: every y of the row has its own path through the log-sum-exp":
        "total = _ -> total = dy.mean(axis=-1, keepdims=True)",
    "the wrong sum: the log-sum-exp belongs to one row": [
        f"total = _ -> total = dy.sum({axis})" for axis in ("axis=0", "")],
    "each entry gets the whole sum: its share is its probability": "np.exp(y) * total -> total",
    "each entry counts only its own path: the log-sum-exp is shared by the row":
        "np.exp(y) * total -> np.exp(y) * dy",
    "a sign is wrong: y is x minus the log-sum-exp": "dy - _ -> dy + _",
    "that is a softmax's backward on y: here dy arrives at x with rate 1": [
        "dy - _ -> dy - (dy * y).sum(axis=-1, keepdims=True)",
        "dy - _ -> dy - (dy * np.exp(y)).sum(axis=-1, keepdims=True)"],
})
def _(rng):
    x, dy = 2 * rng.standard_normal((4, 5)), rng.standard_normal((4, 5))
    yield dy, np.log(softmax(x))


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
    "become 0": ["np.floor(_) -> -40", "30000.0 -> 1e-6"],
    "return one number": "return _ -> return np.full(gradient.shape, _)",
})
def _(rng):
    def case(size, sign):
        # Two or three scales are right: from the 1 % that may be lost to the largest entry it is
        # nearly as far as float16 reaches.  A few entries are smaller than that.
        powers = rng.permutation(np.linspace(0, 35, 1000))
        powers[rng.choice(1000, 5, replace=False)] = -20
        powers[rng.integers(1000)] = 38
        gradient = size * rng.uniform(0.5, 2) * (2 ** powers).reshape(50, 20)
        gradient *= np.where(powers == 38, sign, rng.choice([-1.0, 1.0], 1000)).reshape(50, 20)

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
                "return one number": lambda s: np.ndim(s) > 0,
                "negative entries overflow to minus infinity: the largest entry counts, whatever "
                "its sign": lambda s: (
                    overflows(s) and power(s) and s * gradient.max() <= 65504),
                "the scale is too large: entries overflow to infinity": overflows,
                "the scale is too small: more than 1 % of the entries become 0":
                    lambda s: lost(s) > 0.01})

    sign = float(rng.choice([-1, 1]))                     # of the largest entry: both in each draw
    for size in rng.permutation([1e-16, 1e-12, 0.1]):
        sign = -sign
        yield case(size, sign)


if __name__ == "__main__":
    check_solutions(globals())
