"""Lesson 11, pretraining."""

import math

import numpy as np
from scipy.special import softmax

from . import Case, close_to, exercise


@exercise
def bits_per_byte(rng):
    N = int(rng.integers(500, 700))                       # about 2,000 bytes
    n_bytes = int(N * rng.uniform(3, 5))
    p = np.exp(-rng.uniform(0.2, 6, N))
    right = -np.log2(p).sum() / n_bytes
    return Case((p, n_bytes), right, {
        "the product of so many probabilities is too small for a number: add their logarithms":
            lambda x: not np.isfinite(x),
        "that is bits per token: divide by the number of bytes": right * n_bytes / N,
        "those are nats per token: what is a bit, and how many bytes are there?":
            right * n_bytes / N * math.log(2),
        "those are nats: a bit is log 2 nats": right * math.log(2),
        "you multiply by log 2: divide by it": right * math.log(2) ** 2,
        "a logarithm to base 10: bits are to base 2": right * math.log10(2),
        "bits of the whole text: divide by the number of bytes": right * n_bytes,
        "the tokens' bits are summed, not averaged: all of them share the bytes": right / N,
        "the fraction is upside down: bits over bytes": 1 / right,
        "the logarithm of the mean: take the mean of the logarithms":
            close_to(-np.log2(p.mean()), -np.log2(p.mean()) * N / n_bytes),
        "you take n_bytes for each token: all tokens together have n_bytes bytes":
            right * n_bytes / N ** 2,
        "that is a perplexity: bits are its logarithm":
            close_to(2 ** right, 2 ** (right * n_bytes / N)),
    }, rtol=1e-6)


@exercise
def drawn_from(rng):
    V = int(rng.integers(7, 12))
    for large in (False, True):
        z = rng.permutation(np.arange(V) * 0.6 + rng.uniform(0, 0.3, V)) - 2.0
        for extreme, place in ((np.argmax, -1), (np.argmin, -2)):       # neither is among the
            i = extreme(z)                                              # first k
            z[i], z[place] = z[place], z[i]
        z += 3000.0 * large                               # exp of it is not finite
        k = int(rng.integers(3, V - 2))
        t = float(rng.choice([rng.uniform(0.6, 0.8), rng.uniform(1.5, 2.5)]))
        order = np.argsort(-z)
        is_kept = np.isin(np.arange(V), order[:k])

        def cut(scores, is_kept=is_kept):
            return softmax(np.where(is_kept, scores, -np.inf))

        right, divided = cut(z / t), softmax(z) / t
        mistakes = {
            "the temperature multiplies the scores: divide by it": cut(z * t),
            "the temperature is not used": cut(z),
            "the temperature divides probabilities: divide the scores, before the softmax":
                close_to(divided, divided * is_kept),
            "top-k is not used": softmax(z / t),
            "the probabilities of the k likeliest must sum to 1 again":
                lambda p, right=right: np.allclose(p / np.sum(p), right),
            "one too many is kept": cut(z / t, np.isin(np.arange(V), order[:k + 1])),
            "one too few is kept": cut(z / t, np.isin(np.arange(V), order[:k - 1])),
            "the k *least* likely are kept": close_to(*(
                cut(z / t, np.isin(np.arange(V), i)) for i in (order[-k:], order[k:],
                                                               order[k - 1:]))),
            "the k-th largest score is at -k of the *sorted* scores": close_to(*(
                cut(z / t, z >= least) for least in (z[-k], np.sort(z)[k]))),
            "the first k are kept: the k likeliest may stand anywhere":
                cut(z / t, np.arange(V) < k),
            "a score of 0 does not give a probability of 0: set it to minus infinity":
                softmax(np.where(is_kept, z / t, 0)),
            "the probabilities are sorted: each token keeps its place":
                lambda p, right=right, z=z: np.allclose(np.sort(p), np.sort(right)),
            "the exponentials overflow: subtract the largest score first, as in lesson 2":
                lambda p, V=V: np.shape(p) == (V,) and not np.isfinite(p).all(),
        }
        yield Case((z, t, k), right, mistakes, rtol=1e-5)
        t = float(rng.uniform(1.5, 2.5))                  # so that the least likely one shows
        yield Case((z, t, V), softmax(z / t), {
            "with k = V nothing is left out, and one is missing": lambda p: np.any(
                np.asarray(p) == 0)} | dict(list(mistakes.items())[-1:]), rtol=1e-5)


@exercise
def bigram_bits(rng):
    V, alpha = int(rng.integers(4, 7)), float(rng.uniform(0.2, 0.8))
    train = rng.integers(0, V - 1, 60)                    # token V - 1 is new in the test
    often = rng.permutation(V - 1)[:3]                    # in this order, and seldom backward
    train[20:50] = np.tile(often, 10)
    test = np.append(rng.integers(0, V, 25), [V - 1, 0, 1, V - 1, V - 1])
    test[:9] = np.tile(often, 3)                          # begins with a frequent token, ends rare

    def counted(pairs, add=True):
        n = np.zeros((V, V))
        if add:
            np.add.at(n, (pairs[:-1], pairs[1:]), 1)
        else:
            n[pairs[:-1], pairs[1:]] += 1
        return n

    n = counted(train)
    a, b = test[:-1], test[1:]

    def bits(q, a=a, b=b):
        return float(-np.log2(q[a, b]).mean())

    def rows(m):
        return m / m.sum(axis=1, keepdims=True)

    right = bits(rows(n + alpha))
    joint = (n + alpha) / (n + alpha).sum()
    columns = (n + alpha) / (n + alpha).sum(axis=0)
    total = n.sum(axis=1, keepdims=True)                  # 0 for token V - 1: a floor is needed
    floors = (1, V, alpha, V * alpha, 1e-6, 1e-8, 1e-9, 1e-10, 1e-12, 1e-16, 1e-300)
    low = [(n + alpha) / np.where(total > 0, total, floor) for floor in floors]
    low.append((n + alpha) / (total + alpha))
    unigram = np.tile((np.bincount(train, minlength=V) + alpha) / (len(train) + V * alpha), (V, 1))
    return Case((train, test, V, alpha), right, {
        "those are nats: a bit is log 2 nats": right * math.log(2),
        "that is a sum over the tokens: bits per token are their mean": right * len(a),
        "you divide by all tokens of the test, and the first one is not asked for":
            right * len(a) / len(test),
        "the sign is wrong: bits are minus the logarithm": -right,
        "the pair's probability, not that of the second token given the first: each row of the "
        "table sums to 1": bits(joint),
        "the columns are divided, by sums of the shape (V,): it is the first token that is given, "
        "so each row must sum to 1 (keepdims=True keeps its sum beside it)":
            close_to(bits(columns), bits((n + alpha) / (n + alpha).sum(axis=1))),
        "rows and columns are exchanged: which token is given, and which one follows?":
            close_to(bits(rows(n + alpha), b, a), bits(rows(n.T + alpha)), bits(columns, b, a)),
        "n[a, b] += 1 counts equal pairs once: a scatter-add is needed, as in lesson 10":
            bits(rows(counted(train, False) + alpha)),
        "alpha is added above the fraction line and not below: the row must sum to 1":
            lambda x: x == -np.inf or any(np.isclose(x, bits(y), 1e-9) for y in low),
        "the counts are from the test: that is the text to be predicted": bits(
            rows(counted(test) + alpha)),
        "alpha is 1, and not the argument": bits(rows(n + 1)),
        "that is the unigram: what is given is the token before": bits(unigram),
        "counts are not probabilities: divide each row by its sum": bits(n + alpha),
        "the rows sum to V: divide by a row's sum, not by its mean": right - math.log2(V),
        "the result is infinite: is alpha added to pairs that never occur?": lambda x: x == np.inf,
        "a logarithm of the mean: take the mean of the logarithms":
            float(-np.log2(rows(n + alpha)[a, b].mean())),
    }, rtol=1e-8)                                         # two mistakes may be close


@exercise
def multiplications(rng):
    P, n = (int(x) for x in rng.permutation(np.arange(3, 12))[:2])
    C, L = int(rng.integers(41, 80)), int(rng.integers(3, 9))

    def through(first, last):
        """Tokens number first to last, from 1, through one block."""
        return sum(12 * C * C + 2 * C * t for t in range(first, last + 1))

    def again(start, stop, cost=through):
        return sum(cost(1, m) for m in range(start, stop))

    M = P + n - 1                                         # tokens that go through
    right = {True: L * through(1, M), False: L * again(P, P + n)}
    for cached in (True, False):
        r, other = right[cached], right[not cached]
        yield Case((P, n, C, L, cached), r, {
            "that is the count for the other case: look at kept": other,
            "you count a single block: there are L of them": r // L,
            "the last token that is written goes through nothing": (
                L * through(1, M + 1) if cached else L * again(P, P + n + 1)),
            "a token is missing: to write the last one, the one before it must go through":
                L * through(1, M - 1) if cached else L * again(P, P + n - 1),
            "the prompt must go through as well": lambda x, cached=cached: x in (
                (L * through(P + 1, M), L * through(1, n - 1)) if cached else (L * again(1, n),)),
            "2 C for each token that is *seen*: how many does token number t see?": (
                r - L * 2 * C * (sum(range(M)) if cached else
                                 sum(sum(range(m)) for m in range(P, P + n)))),
            "a token sees itself, too":
                L * (through(1, M) - 2 * C * M) if cached else
                r - L * 2 * C * sum(range(P, P + n)),
            "a token sees those up to itself, not the whole text": (
                L * M * (12 * C * C + 2 * C * M) if cached else
                L * sum(m * (12 * C * C + 2 * C * m) for m in range(P, P + n))),
            "you count the linear layers alone: what does attention cost each token?": (
                L * M * 12 * C * C if cached else L * 12 * C * C * sum(range(P, P + n))),
            "you count attention alone: each token also goes through the linear layers":
                r - (L * M * 12 * C * C if cached else L * 12 * C * C * sum(range(P, P + n))),
            "2 C for each token that is seen: one for the score, one for its value": (
                L * sum(12 * C * C + C * t for t in range(1, M + 1)) if cached else
                L * sum(12 * C * C + C * t for m in range(P, P + n) for t in range(1, m + 1))),
        }, rtol=1e-9, about="With a prompt of one token and one token to write, a single token "
                            "goes through each block, and sees itself. Count on from there.")


LETTERS = "abcdefghijklmnopqrstuvwxyz    "


@exercise
def in_circles(rng):
    def random_text(n, letters=LETTERS):
        return "".join(rng.choice(list(letters), n))

    loop = random_text(int(rng.integers(20, 31)))
    a, b = (str(x) for x in rng.choice(list("aehnorst"), 2, replace=False))
    phrase = random_text(6)
    texts = {"loop": random_text(120) + (loop * 20)[:240], "few": random_text(360, a + b),
             "long": random_text(1500), "short": random_text(60),
             "word": "".join(random_text(int(rng.integers(7, 14))) + phrase for _ in range(22)),
             "early": (random_text(9) * 5)[:40] + random_text(320)}
    hints = {
        "few": "it has only two letters, in no order that comes back: few letters are not a circle",
        "long": "it is long, but nothing in it comes back: count shares, not numbers",
        "short": "it is short, but nothing in it comes back: count shares, not numbers",
        "word": "one short phrase comes back in it, each time after something new: how long are "
                "the strings that you compare?",
        "early": "it begins with a loop and leaves it: the whole text counts"}
    for place in rng.permutation(6)[:3]:                  # the same texts, at other places
        shown = [str(k) for k in rng.permutation([k for k in texts if k != "loop"])]
        shown.insert(int(place), "loop")

        def chose(k, shown=shown):
            return lambda out: np.ndim(out) == 0 and int(out) == out >= 0 and shown[int(out)] == k

        yield Case(([texts[k] for k in shown],), chose("loop"), {
            **{hint: chose(k) for k, hint in hints.items()},
            "return the index of one text, a whole number": lambda out, c=chose: not any(
                c(k)(out) for k in texts)},
            about="Return the index of one text, a whole number from 0.")
