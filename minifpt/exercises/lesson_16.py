"""Lesson 16, both directions."""

import numpy as np
from scipy import special

from . import Case, exercise


@exercise
def prefix_mask(rng):
    T = int(rng.integers(6, 9))
    for P in (int(rng.integers(3, T - 2)), 0, T):
        t, s = np.arange(T)[:, None], np.arange(T)
        causal = s <= t
        right = causal | (s < P)

        def seen(out, T=T):
            out = np.asarray(out)
            if out.shape != (T, T) or not np.isin(out, (0, 1)).all():
                raise ValueError("not a mask")
            return out.astype(bool)

        def same(other, seen=seen):
            return lambda out: (seen(out) == other).all()

        def either(*others, seen=seen):
            return lambda out: any((seen(out) == other).all() for other in others)

        def no_mask(out, seen=seen):
            try:
                seen(out)
            except (TypeError, ValueError):
                return True
            return False

        both = (s < P) & (t < P)
        yield Case((T, P), same(right), {
            "return an array (T, T) of True and False, or of 1 and 0": no_mask,
            "that is the causal mask: the first P tokens see each other in both directions":
                same(causal),
            "everything sees everything: after the first P no token may look ahead":
                same(np.ones((T, T), bool)),
            "the prefix is one token too long": same(causal | (s <= P)),
            "the prefix is one token too short": same(causal | (s < P - 1)),
            "rows and columns are exchanged: row t says what token t sees": same(right.T),
            "True says that a token is *seen*": same(~right),
            "the tokens after the prefix see it as well, and each other backward": same(both),
            "each token sees itself, too": either(right & (s != t), (s < t) | (s < P)),
            "one of the two is enough, before it or in the prefix: or, not and":
                same(causal & (s < P)),
            "a token sees what comes before it, not after it": same((s >= t) | (s < P)),
            "a token after the prefix sees those before it, not only itself":
                same(both | (s == t)),
            "the tokens after the prefix see it as well": same(both | (causal & (s >= P))),
            "a token after the prefix sees the others before it as well, not only the prefix":
                lambda out, r=right, P=P, seen=seen: (seen(out)[:P] == r[:P]).all() and not (
                    seen(out)[P:, P:].any()) and seen(out)[P:, :P].all(),
        }, about=f"T = {T}, P = {P}: what does each token see?")


@exercise
def masked_gradient(rng):
    B, T, V = (int(n) for n in rng.permutation([3, 6, 5]))
    logits = 1.5 * rng.standard_normal((B, T, V))
    y = np.full((B, T), -1)
    places = rng.permutation(B * T)[:4]
    y.flat[places] = rng.integers(0, V - 1, 4)            # so that -1, the last id, is none of them
    y.flat[places[:2]] = 0, 1                             # 0 is a byte like any other
    asked = y >= 0
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    onehot = np.eye(V)[y]                                 # where y is -1, the last id
    each = p - onehot
    right = np.where(asked[:, :, None], each, 0) / 4
    real = np.where(asked[:, :, None], onehot, 0)
    other_axes = [np.where(asked[:, :, None], special.softmax(logits, axis=axis) - onehot, 0)
                  for axis in (0, 1)] + [_placed(special.softmax(logits[asked], axis=axis)
                                                 - onehot[asked], asked) for axis in (0, None)]
    yield Case((logits, y), right, {
        "a sum in place of a mean: divide by the number of questions": 4 * right,
        "you divide by all positions: the mean is over those that are asked":
            4 * right / (B * T),
        "you divide by the number of passages": lambda out: any(
            np.allclose(out, 4 * right / n) for n in (B, T)),
        "positions that are not asked get a gradient, as if their byte was the last id: -1 counts "
        "from the end": lambda out: any(np.allclose(out, each / n) for n in (1, 4, B * T)),
        "positions that are not asked get a gradient: nothing is lost there":
            lambda out: any(np.allclose(out, (p - real) / n) for n in (1, 4, B * T)),
        "the truth is missing: probability minus truth": lambda out: any(
            np.allclose(out, np.where(asked[:, :, None], p, 0) / n) for n in (1, 4)),
        "the truth is subtracted, not added": np.where(asked[:, :, None], p + onehot, 0) / 4,
        "the softmax is missing: probability minus truth, not score minus truth": lambda out: any(
            np.allclose(out, np.where(asked[:, :, None], logits - onehot, 0) / n)
            for n in (1, 4)),
        "the gradient has the shape of the logits, with 0 where nothing is asked":
            lambda out: np.shape(out) == (4, V),
        "only the entry of the true byte: the others have a probability to lose as well":
            lambda out: any(np.allclose(out, right * onehot * n) for n in (1, 4)),
        "the softmax runs over the vocabulary, the last axis": lambda out: any(
            np.allclose(out, w / 4) for w in other_axes),
        "the exponentials must be divided by their sum": lambda out: any(
            np.allclose(out, np.where(asked[:, :, None], w - onehot, 0) / 4)
            for w in (e, np.exp(logits))),
        "0 is a byte like any other: only -1 is not asked": lambda out: np.allclose(
            out, np.where(y[:, :, None] > 0, each, 0) / (y > 0).sum()),
        "where nothing is asked the gradient is 0": lambda out: np.any(
            np.asarray(out)[~asked]),
    }, rtol=1e-5)
    large = logits.copy()
    large[asked] += [[900], [0], [0], [0]]                # exp of it is not finite, ...
    large[asked, 0] += [0, 900, 0, 0]                     # ... nor less the row's smallest score
    p = special.softmax(large[asked], axis=-1)
    yield Case((large, y), _placed(p - np.eye(V)[y[asked]], asked) / 4, {
        "scores may be large: subtract the largest of each row first, as in lesson 2":
            lambda out: not np.isfinite(out).all(),
    }, about="Some scores are large here.", rtol=1e-5)


def _placed(rows, asked):
    """rows (N, V) at the positions that are asked, 0 elsewhere."""
    out = np.zeros((*asked.shape, rows.shape[-1]))
    out[asked] = rows
    return out


@exercise
def missing_token(rng):
    V = int(rng.integers(5, 9))
    P = rng.dirichlet(np.full(V, 0.8), V) + 0.02
    P /= P.sum(axis=1, keepdims=True)
    left, right_id = (int(i) for i in rng.permutation(V)[:2])
    product = P[left] * P[:, right_id]

    def share(v):
        return v / v.sum()

    mean = (P[left] + share(P[:, right_id])) / 2
    return Case((P, left, right_id), share(product), {
        "the probabilities must sum to 1": product,
        "that is what follows `left`: the right side is not used": P[left],
        "that looks at the right side only": lambda p: np.allclose(p, share(P[:, right_id])) or (
            np.allclose(p, P[:, right_id])),
        "that is what *follows* `right`: it is the token that comes after the missing one":
            lambda p: np.allclose(p, P[right_id]) or np.allclose(p, share(P[left] * P[right_id])),
        "left and right are exchanged": share(P[right_id] * P[:, left]),
        "a column for `left`: what follows it stands in its row":
            share(P[:, left] * P[:, right_id]),
        "a sum in place of a product: both must happen": lambda p: any(
            np.allclose(p, w) for w in (mean, share(P[left] + P[:, right_id]),
                                        P[left] + P[:, right_id])),
        "a softmax of probabilities: they only have to be divided by their sum":
            share(np.exp(product)),
        "the logarithm must be undone before the sum is made 1": share(np.log(product)),
    }, rtol=1e-5)


@exercise
def better_of_two(rng):
    n = int(rng.integers(300, 500))
    n += n % 2
    shared = rng.gamma(0.8, 3.0, n)                       # hard questions are hard for both
    noise = rng.uniform(0.05, 0.35, n)

    def balanced(size):
        """Numbers as often up as down, so that their mean is 0."""
        half = size[:n // 2]
        return rng.permutation(np.concatenate([half, -half]))

    steady = 0.12 + balanced(noise)                       # about 10 standard errors, either sign
    tie = balanced(noise)
    tie += 1.4 * tie.std(ddof=1) / np.sqrt(n)             # chance does that one time in six
    one_large = balanced(noise)
    one_large[rng.integers(n)] += 60.0
    few = int(rng.choice([5, 7]))                         # odd: one sign has one more
    cases = [("b", shared, shared - steady), ("a", shared - steady, shared),
             ("neither", shared, shared - tie), ("neither", shared - tie, shared),
             ("neither", shared + one_large, shared.copy()),
             ("neither", shared.copy(), shared + one_large),
             ("neither", shared[:few], shared[:few] - np.linspace(-1.3, 1.5, few))]
    why = ["b is lower on the same questions, steadily: look at the difference of each question, "
           "not at how the two spread",
           "a is lower on the same questions, steadily: look at the difference of each question, "
           "not at how the two spread",
           "b is lower by 1.4 standard errors of the differences: chance does that one time in six",
           "a is lower by 1.4 standard errors of the differences: chance does that one time in six",
           "a single question makes the whole difference of the means",
           "a single question makes the whole difference of the means",
           "so few questions, and differences of both signs: nothing can be said"]
    for i in rng.permutation(len(cases)):
        right, a, b = cases[i]
        scale = 10.0 ** rng.uniform(-2, 1)                # no difference is large by itself
        yield Case((scale * a, scale * b), right, {
            "return 'a', 'b' or 'neither'": lambda out: out not in ("a", "b", "neither"),
            "the difference has the other sign, the other way round: the lower loss is better":
                lambda out, right=right: {out, right} == {"a", "b"},
            why[i]: lambda out, right=right: out != right,
        })
