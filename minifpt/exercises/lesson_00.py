"""Lesson 0, a language model learns XOR."""

import math

import numpy as np

from . import Case, exercise


@exercise
def parameters_trained(rng):
    L, C = (int(n) for n in rng.permutation([4, 5, 6, 7, 8, 9])[:2])
    C *= 16
    T = int(rng.choice([41, 47, 50, 60]))                 # more than all layer norms have
    n_in, n_out = (int(n) for n in rng.permutation([4, 8, 12, 20, 22, 24])[:2])
    ends = n_in * C + C + C * n_out + n_out
    norms = (2 * L + 1) * 2 * C
    return Case((L, C, T, n_in, n_out), ends + T * C + norms, {
        "the layer norm at the trunk's end is missing": ends + T * C + 4 * L * C,
        "each block has two layer norms": lambda n: n in (
            ends + T * C + (L + 1) * 2 * C, ends + T * C + L * 2 * C),
        "a layer norm has two vectors, a scale and a bias": ends + T * C + norms // 2,
        "the positions are missing: a vector of C numbers for each token": ends + norms,
        "the input and output layer have biases too": lambda n: n in (
            (n_in + n_out + T) * C + norms, ends - C + T * C + norms, ends - n_out + T * C + norms),
        "the layer norms are missing: they are trained in every block": ends + T * C,
        "the trunk's own weights are counted too, and they are frozen": lambda n: (
            n > ends + T * C + norms + 8 * L * C * C),
        "the input and the output layer are missing": T * C + norms,
    }, about="Four parts are trained: input layer, positions, layer norms, output layer. Which "
             "of them comes out as in the table above, for 6 blocks and C = 128?")


@exercise
def strings_right(rng):
    while True:
        B, T = int(rng.integers(7, 12)), int(rng.choice([4, 5, 6]))
        y = rng.integers(0, 2, (B, T))
        is_wrong = rng.random((B, T)) < 0.25
        higher = np.where(is_wrong, 1 - y, y)             # the bit that gets the higher score
        low = rng.normal(size=(B, T))
        high = low + rng.uniform(0.5, 2, (B, T))
        logits = np.where(np.arange(2) == higher[..., None], high[..., None], low[..., None])
        right = ~is_wrong
        answer = float(right.all(axis=1).mean())
        others = {
            "that is the share of bits: a string counts only when all of its bits are right":
                float(right.mean()),
            "one right bit is not enough: all of them must be": float(right.any(axis=1).mean()),
            "the wrong axis: you ask which position is right in all examples":
                float(right.all(axis=0).mean()),
            "that is the share of strings with a mistake": 1 - answer,
            "the share of bits to the power of T is right only if mistakes are independent of each "
            "other; count instead": float(right.mean()) ** T,
            "a number of strings, not their share": float(right.all(axis=1).sum()),
            "the answer is the bit with the *higher* of its two scores, whatever their signs":
                float(((logits[..., 1] > 0) == y).all(axis=1).mean()),
            "the lower score is taken as the answer, or it is one answer for all strings: look at "
            "the axis": float(is_wrong.all(axis=1).mean()),
        }
        if answer > 0.1 and len({round(v, 6) for v in (answer, *others.values())}) > len(others):
            return Case((logits, y), answer, others)


@exercise
def never_seen(rng):
    A, B = rng.permutation(32), rng.permutation(32)       # strings of five bits as numbers
    pairs = [(A[i], B[i]) for i in range(13)]             # known: the first 13 of each
    x = [pairs[i] for i in rng.permutation(13)[:5]]
    x += [(A[i], B[(i + 3) % 13]) for i in range(4)]      # known strings, joined anew
    x += [(A[i + 13], B[i + 13]) for i in range(3)]
    x += [(A[i], B[i + 16]) for i in range(2)] + [(A[i + 16], B[i]) for i in range(2)]
    x, training = (np.concatenate([np.array(p)[:, :1] >> np.arange(5) & 1,
                                   np.array(p)[:, 1:] >> np.arange(5) & 1], axis=1)
                   for p in (rng.permutation(x), pairs))      # (16, 10), (13, 10)
    answer = ~(x[:, None] == training[None]).all(-1).any(1)

    def half(part):
        return (x[:, None, part] == training[None][..., part]).all(-1).any(1)
    first, second = half(slice(0, 5)), half(slice(5, 10))
    at_a_place = (x[:, None] == training[None]).any(1).all(1)
    known = {a.tobytes() for a in (~answer, first & second, first, second, at_a_place)}
    if len(known) < 5:
        return never_seen(rng)                            # two mistakes would look alike
    return Case((x[..., None].astype(np.float32), training[..., None].astype(np.float32)), answer, {
        "the other way round: those are the ones that were seen": ~answer,
        "two known strings that were never seen together make a new example": lambda out: (
            np.array_equal(out, ~(first & second))),
        "only one of the two strings is looked at": lambda out: (
            np.array_equal(out, ~first) or np.array_equal(out, ~second)),
        "all ten bits of one training example have to agree, not some of them with this one and "
        "some with that one": lambda out: np.array_equal(out, ~at_a_place) or not np.any(out),
        "one answer for each test example: reduce over its bits, and over the training examples":
            lambda out: np.size(out) > len(x),
        "one answer for each test example, not one for each training example":
            lambda out: np.shape(out) == (len(training),),
        "those are the numbers of the examples; return True or False for each":
            lambda out: np.array_equal(out, np.flatnonzero(answer)),
        "that is one number for all; return True or False for each":
            lambda out: np.ndim(out) == 0,
        "a test example must be compared with every training example, not only with the one in the "
        "same row":
            lambda out: np.array_equal(out[:13], (x[:13] != training[:len(x)]).any(1)[:13]),
    }, about="Some of the answers are wrong. Compare each test example with each training "
             "example, all bits at once.")


@exercise
def steps_to_learn(rng):
    n, every = int(rng.integers(9, 13)), int(rng.choice([20, 25, 50]))
    steps = every * np.arange(1, n + 1)
    level = 0.9

    def case(high, about="", exact=None, more=None):
        high = np.asarray(high)
        accuracy = np.where(high, rng.uniform(0.92, 1.0, n), rng.uniform(0.5, 0.88, n))
        if exact is not None:
            accuracy[exact] = level
        below = np.flatnonzero(~high)
        first = below[-1] + 1 if len(below) else 0
        answer = math.inf if first == n else int(steps[first])
        mistakes = dict(more or {})
        if first < n:
            mistakes |= {
                "that is the number of the row; return the step": first,
                "that is the last step below the level: the one after it is the first that is not":
                    float(steps[below[-1]]) if len(below) else None,
                "it is learned there, and you say that it never is": math.inf,
            }
            up = np.flatnonzero(high)
            if up[0] != first:
                mistakes["it falls below the level again after that: from which step on does it "
                         "stay?"] = int(steps[up[0]])
            mistakes["that is how many steps it stays, not where that begins"] = \
                int(steps[-1] - steps[first])
        mistakes = {hint: value for hint, value in mistakes.items() if value is not None}
        return Case((steps, accuracy, level), answer, mistakes, about=about)

    dip = int(rng.integers(4, n - 2))
    high = np.arange(n) >= 2
    high[dip] = False
    yield case(high, "A curve that rises, falls once, and rises again.")
    yield case(np.arange(n) >= dip, "A curve that is exactly at the level for a step.",
               exact=dip, more={
        "a value exactly at the level is not below it": int(steps[dip + 1])})
    never = np.arange(n) >= 3
    never[-1] = False
    yield case(never, "A curve that is below the level at its last step: math.inf.", more={
        "it is below the level at its last step: it has not learned, answer math.inf":
            lambda out: np.ndim(out) == 0 and np.isfinite(out)})
    yield case(np.ones(n, bool), "A curve that is never below the level: the first step.")
