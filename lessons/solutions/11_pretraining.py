"""Solutions of lesson 11, pretraining.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def bits_per_byte(p, n_bytes):
    """The bits of all tokens together, shared out among the bytes."""
    return -np.log2(p).sum() / n_bytes


@exercise(bits_per_byte, {
    "the product of so many probabilities is too small for a number: add their logarithms": [
        "np.log2(p).sum() -> np.log2(p.prod())",
        "-np.log2(p).sum() / n_bytes -> -np.log2(p.prod() ** (1 / n_bytes))"],
    "that is bits per token: divide by the number of bytes": "n_bytes -> len(p)",
    "those are nats per token: what is a bit, and how many bytes are there?":
        "-np.log2(p).sum() / n_bytes -> -np.log(p).mean()",
    "those are nats: a bit is log 2 nats": "np.log2 -> np.log",
    "you multiply by log 2: divide by it": "np.log2(p) -> (np.log(p) * np.log(2))",
    "a logarithm to base 10: bits are to base 2": "np.log2 -> np.log10",
    "bits of the whole text: divide by the number of bytes": "_ / n_bytes -> _",
    "the tokens' bits are summed, not averaged: all of them share the bytes": "_.sum() -> _.mean()",
    "the fraction is upside down: bits over bytes": "_ / n_bytes -> n_bytes / _",
    "the logarithm of the mean: take the mean of the logarithms": [
        "np.log2(p).sum() -> np.log2(p.mean()) * len(p)",
        "-np.log2(p).sum() / n_bytes -> -np.log2(p.mean())"],
    "you take n_bytes for each token: all tokens together have n_bytes bytes":
        "_ / n_bytes -> _ / len(p) / (len(p) / n_bytes)",
    "each token came once: its logarithm is not weighted with p": "np.log2(p) -> (p * np.log2(p))",
    "one number is asked for: add the bits of all tokens": "_.sum() -> _",
    "that is a perplexity: bits are its logarithm": [
        "return _ -> return 2 ** _", "-np.log2(p).sum() / n_bytes -> np.exp(-np.log(p).mean())"],
    "a token's bits are -log2 of its probability": [
        "return _ -> return p.sum() / n_bytes",
        "return _ -> return (1 / p).sum() / n_bytes",
        "return _ -> return (1 - p).sum() / n_bytes",
        "return _ -> return -np.log2(1 - p).sum() / n_bytes"],
    "all tokens count: a sum, not a median": [
        "return _ -> return -np.median(np.log2(p)) * len(p) / n_bytes"],
    "together they have n_bytes bytes, neither more nor fewer": [
        "return _ -> return -np.log2(p).sum() / (n_bytes + 1)",
        "return _ -> return -np.log2(p).sum() / (n_bytes - 1)"],
})
def _(rng):
    N = int(rng.integers(500, 700))                       # about 2,000 bytes
    yield Case((np.exp(-rng.uniform(0.2, 6, N)), int(N * rng.uniform(3, 5))), mistakes={
        "the product of so many probabilities is too small for a number: add their logarithms":
            lambda x: not np.isfinite(x)})


def bigram_bits(train, test, V, alpha):
    """Counts of pairs, one row for each first token; a row with alpha added sums to 1."""
    n = np.full((V, V), float(alpha))
    np.add.at(n, (train[:-1], train[1:]), 1)
    p = n / n.sum(axis=1, keepdims=True)
    return -np.log2(p[test[:-1], test[1:]]).mean()


@exercise(bigram_bits, {
    "those are nats: a bit is log 2 nats": "np.log2 -> np.log",
    "that is a sum over the tokens: bits per token are their mean": "_.mean() -> _.sum()",
    "you divide by all tokens of the test, and the first one is not asked for":
        "_.mean() -> _.sum() / len(test)",
    "the sign is wrong: bits are minus the logarithm": "-_ -> _",
    "the pair's probability, not that of the second token given the first: each row of the table "
    "sums to 1": "n.sum(axis=1, keepdims=True) -> n.sum()",
    "the columns are divided, by sums of the shape (V,): it is the first token that is given, so "
    "each row must sum to 1 (keepdims=True keeps its sum beside it)": [
        "n.sum(axis=1, keepdims=True) -> n.sum(axis=0)",
        "n.sum(axis=1, keepdims=True) -> n.sum(axis=1)"],
    "rows and columns are exchanged: which token is given, and which one follows?": [
        "train[:-1], train[1:] -> train[1:], train[:-1]",
        "test[:-1], test[1:] -> test[1:], test[:-1]",
        ("test[:-1], test[1:] -> test[1:], test[:-1]", "n.sum(axis=1, keepdims=_) -> sum(n)")],
    "n[a, b] += 1 counts equal pairs once: a scatter-add is needed, as in lesson 10":
        "np.add.at(n, _, 1) -> n[_] += 1",
    "alpha is added above the fraction line and not below: the row must sum to 1": [
        f"n / _ -> n / np.maximum(np.round(_ - V * alpha), {least})"
        for least in (0, 1, "V", "alpha", "V * alpha", 1e-6, 1e-8, 1e-9, 1e-10, 1e-12, 1e-16)
    ] + ["n / _ -> n / (_ - (V - 1) * alpha)"],
    "the last token of train has no follower: a row's sum counts what follows":
        "n.sum(axis=1, keepdims=True) -> (np.bincount(train, minlength=V) + V * alpha)[:, None]",
    "those are all pairs of two places: p[a, b] takes one entry for each place":
        "p[test[:-1], test[1:]] -> p[test[:-1]][:, test[1:]]",
    "the test does not come in: which pairs does it have?":
        "-np.log2(p[test[:-1], test[1:]]).mean() -> -(p * np.log2(p)).sum(axis=1).mean()",
    "the counts are from the test: that is the text to be predicted":
        "train[:-1], train[1:] -> test[:-1], test[1:]",
    "alpha is 1, and not the argument": "float(alpha) -> 1.0",
    "that is the unigram: what is given is the token before":
        "p = _ -> m = np.bincount(train, minlength=V) + alpha; p = np.tile(m / m.sum(), (V, 1))",
    "counts are not probabilities: divide each row by its sum": "n / _ -> n",
    "the rows sum to V: divide by a row's sum, not by its mean":
        "n.sum(axis=1, keepdims=True) -> n.mean(axis=1, keepdims=True)",
    "the result is infinite: is alpha added to pairs that never occur?": "n / _ -> (n - alpha) / _",
    "a logarithm of the mean: take the mean of the logarithms":
        "np.log2(_).mean() -> np.log2(_.mean())",
    "the bits are those of the test, the counts those of train": [
        "return _ -> return -np.log2(p[train[:-1], train[1:]]).mean()"],
    "a pair has an order: n[a, b] counts b after a": [
        "p = _ -> n = n + n.T - alpha\np = n / n.sum(axis=1, keepdims=True)"],
    "alpha is added to each of the V counts, as it is": [
        "float(alpha) -> float(alpha) / V"],
    "the first token of test has none before it, and is not asked for": [
        "return _ -> return (-np.log2(p[test[:-1], test[1:]]).sum() + np.log2(V)) / len(test)"],
    "the counts are those of train alone": [
        "p = _ -> np.add.at(n, (test[:-1], test[1:]), 1)\np = n / n.sum(axis=1, keepdims=True)"],
}, rtol=1e-8)                                             # two mistakes may be close
def _(rng):
    V, alpha = int(rng.integers(4, 7)), float(rng.uniform(0.2, 0.8))
    train = rng.integers(0, V - 1, 60)                    # token V - 1 is new in the test
    often = rng.permutation(V - 1)[:3]                    # in this order, and seldom backward
    train[20:50] = np.tile(often, 10)
    test = np.append(rng.integers(0, V, 25), [V - 1, 0, 1, V - 1, V - 1])
    test[:9] = np.tile(often, 3)                          # begins with a frequent token, ends rare
    test[10] = train[-1]                                  # its row counts one token too many
    yield Case((train, test, V, alpha), mistakes={
        "alpha is added above the fraction line and not below: the row must sum to 1":
            lambda x: x == -np.inf,
        "the result is infinite: is alpha added to pairs that never occur?":
            lambda x: np.ndim(x) == 0 and (x == np.inf or np.isnan(x))})


def in_circles(texts):
    """One choice of many: the share of strings of 14 letters that stood there before.  They are
    longer than what a text repeats by chance, or because it likes a word."""
    def again(text):
        strings = [text[i:i + 14] for i in range(len(text) - 13)]
        return 1 - len(set(strings)) / len(strings)

    return int(np.argmax([again(text) for text in texts]))


LETTERS = "abcdefghijklmnopqrstuvwxyz    "


# Any measure will do that finds the loop, so the index alone tells the mistake.
@exercise(in_circles, refused={
    "few letters": ["return 1 - _ -> return -len(set(text))",
        ("text[i:i + 14] -> text[i:i + 3]", "len(text) - 13 -> len(text) - 2"),
        ("text[i:i + 14] -> text[i:i + 2]", "len(text) - 13 -> len(text) - 1")],
    "it is long": "return 1 - _ -> return len(text)",
    "it is short": "return 1 - _ -> return -len(set(strings))",
    "one short phrase": "return 1 - _ -> return len(set(text)) > 2 and max("
                        "text.count(text[i:i + 6]) for i in range(len(text) - 6))",
    "leaves it": ("text[i:i + 14] -> text[i:i + 9]", "len(text) - 13 -> 32"),
    "return the index of one text": ["return int(_) -> return texts[0]",
                                     "return int(_) -> return len(texts)"],
})
def _(rng):
    def random_text(n, letters=LETTERS):
        return "".join(rng.choice(list(letters), n))

    loop = random_text(int(rng.integers(20, 31)))
    a, b = (str(x) for x in rng.choice(list("aehnorst"), 2, replace=False))
    phrase, passage = random_text(6), random_text(30)
    # Neither the first nor the last in the order of an alphabet is the loop.
    texts = {"loop": "m" + random_text(119) + (loop * 20)[:240], "few": random_text(360, a + b),
             "long": "z" + "".join(random_text(100) + passage for _ in range(20)),
             "short": "a" + random_text(59),
             "word": "".join(random_text(int(rng.integers(7, 14))) + phrase for _ in range(22)),
             "early": (random_text(9) * 5)[:40] + random_text(320)}
    hints = {
        "few": "it has only two letters, in no order that comes back: few letters are not a circle",
        "long": "it is long, and little of it comes back: count shares, not numbers",
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


if __name__ == "__main__":
    check_solutions(globals())
