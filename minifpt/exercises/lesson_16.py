"""Lesson 16, both directions."""

import numpy as np
from scipy import special

from . import Case, as_mask, close_to, exercise, fails


@exercise
def prefix_mask(rng):
    T = int(rng.integers(6, 9))
    t, s = np.arange(T)[:, None], np.arange(T)
    causal = s <= t

    def mask_of(out):
        return as_mask(out, (T, T))

    def same(*masks):
        return lambda out: any((mask_of(out) == mask).all() for mask in masks)

    def case(P):
        right = causal | (s < P)
        both = (s < P) & (t < P)
        return Case((T, P), same(right), {
            "return an array (T, T) of True and False, or of 1 and 0": fails(mask_of),
            "that is the causal mask: the first P tokens see each other in both directions":
                same(causal),
            "everything sees everything: after the first P no token may look ahead":
                same(np.ones((T, T), bool)),
            "the prefix is one token too long": same(causal | (s <= P)),
            "the prefix is one token too short": same(causal | (s < P - 1)),
            "rows and columns are exchanged: row t says what token t sees": same(right.T),
            "True says that a token is *seen*": same(~right),
            "the tokens after the prefix see it as well, and each other backward": same(both),
            "each token sees itself, too": same(right & (s != t), (s < t) | (s < P)),
            "a token is seen if it stands before or in the prefix: or, not and":
                same(causal & (s < P)),
            "a token sees what comes before it, not after it": same((s >= t) | (s < P)),
            "a token after the prefix sees those before it, not only itself":
                same(both | (s == t)),
            "the tokens after the prefix see it as well": same(both | (causal & (s >= P))),
            "a token after the prefix sees the others before it as well, not only the prefix":
                lambda out: (
                    (mask_of(out)[:P] == right[:P]).all() and not mask_of(out)[P:, P:].any()
                    and mask_of(out)[P:, :P].all()),
        }, about=f"T = {T}, P = {P}: what does each token see?")

    for P in (int(rng.integers(3, T - 2)), 0, T):
        yield case(P)


@exercise
def masked_gradient(rng):
    B, T, V = (int(n) for n in rng.permutation([3, 6, 5]))
    logits = 1.5 * rng.standard_normal((B, T, V))
    y = np.full((B, T), -1)
    places = rng.permutation(B * T)[:4]
    y.flat[places] = rng.integers(0, V - 1, 4)            # so that -1, the last id, is none of them
    y.flat[places[:2]] = 0, 1                             # 0 is a byte like any other
    is_asked = y >= 0
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    onehot = np.eye(V)[y]                                 # where y is -1, the last id
    each = p - onehot
    right = np.where(is_asked[:, :, None], each, 0) / 4
    real = np.where(is_asked[:, :, None], onehot, 0)
    other_axes = [np.where(is_asked[:, :, None], special.softmax(logits, axis=axis) - onehot, 0)
                  for axis in (0, 1)]
    other_axes += [_placed(special.softmax(logits[is_asked], axis) - onehot[is_asked], is_asked)
                   for axis in (0, None)]
    yield Case((logits, y), right, {
        "a sum instead of a mean: divide by the number of questions": 4 * right,
        "you divide by all positions: the mean is over those that are asked":
            4 * right / (B * T),
        "you divide by the number of passages": close_to(
            4 * right / B, 4 * right / T),
        "positions that are not asked get a gradient, as if their byte was the last id: -1 counts "
        "from the end": close_to(*(each / n for n in (1, 4, B * T))),
        "positions that are not asked get a gradient: nothing is lost there":
            close_to(*((p - real) / n for n in (1, 4, B * T))),
        "the truth is missing: the gradient is probability minus truth": close_to(
            *(np.where(is_asked[:, :, None], p, 0) / n for n in (1, 4))),
        "the truth is subtracted, not added": np.where(is_asked[:, :, None], p + onehot, 0) / 4,
        "the softmax is missing: probability minus truth, not score minus truth": close_to(
            *(np.where(is_asked[:, :, None], logits - onehot, 0) / n for n in (1, 4))),
        "the gradient has the shape of the logits, with 0 where nothing is asked":
            lambda out: np.shape(out) == (4, V),
        "only the entry of the true byte has a gradient: the other bytes have one as well":
            close_to(right * onehot, 4 * right * onehot),
        "the softmax runs over the vocabulary, the last axis": close_to(
            *(w / 4 for w in other_axes)),
        "the exponentials must be divided by their sum": close_to(
            *(np.where(is_asked[:, :, None], w - onehot, 0) / 4 for w in (e, np.exp(logits)))),
        "0 is a byte like any other: only -1 is not asked":
            np.where(y[:, :, None] > 0, each, 0) / (y > 0).sum(),
        "where nothing is asked the gradient is 0": lambda out: np.any(
            np.asarray(out)[~is_asked]),
    }, rtol=1e-5)
    large = logits.copy()
    large[is_asked] += [[900], [0], [0], [0]]                # exp of it is not finite, ...
    large[is_asked, 0] += [0, 900, 0, 0]                     # ... nor less the row's smallest score
    p = special.softmax(large[is_asked], axis=-1)
    yield Case((large, y), _placed(p - np.eye(V)[y[is_asked]], is_asked) / 4, {
        "scores may be large: subtract the largest of each row first, as in lesson 2":
            lambda out: not np.isfinite(out).all(),
    }, about="Some scores are large here.", rtol=1e-5)


def _placed(rows, is_asked):
    """rows (N, V) at the positions that are asked, 0 elsewhere."""
    out = np.zeros((*is_asked.shape, rows.shape[-1]))
    out[is_asked] = rows
    return out


@exercise
def missing_token(rng):
    V = int(rng.integers(5, 9))
    P = rng.dirichlet(np.full(V, 0.8), V) + 0.02
    P /= P.sum(axis=1, keepdims=True)
    left_id, right_id = (int(i) for i in rng.permutation(V)[:2])
    product = P[left_id] * P[:, right_id]

    def share(v):
        return v / v.sum()

    mean = (P[left_id] + share(P[:, right_id])) / 2
    return Case((P, left_id, right_id), share(product), {
        "the probabilities must sum to 1": product,
        "that is what follows `left`: the right side is not used": P[left_id],
        "that looks at the right side only": close_to(
            share(P[:, right_id]), P[:, right_id]),
        "that is what *follows* `right`: it is the token that comes after the missing one":
            close_to(P[right_id], share(P[left_id] * P[right_id])),
        "left and right are exchanged": share(P[right_id] * P[:, left_id]),
        "you take a column for `left`: what follows it stands in its row":
            share(P[:, left_id] * P[:, right_id]),
        "a sum instead of a product: both must happen": close_to(
            mean, share(P[left_id] + P[:, right_id]), P[left_id] + P[:, right_id]),
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
