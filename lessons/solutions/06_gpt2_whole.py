"""Solutions of lesson 6, GPT-2 whole.  Run the file to have them checked."""

from itertools import combinations, count

import numpy as np

from minifpt.exercises import Case, Wrong, check_solutions, exercise


def block_backward(dy, a_backward, m_backward):
    """Two forks, the last one first."""
    du = dy + m_backward(dy)
    return du + a_backward(du)


@exercise(block_backward, {
    "both residual connections are forgotten: the stream also runs past each part":
        "return _ -> return a_backward(m_backward(dy))",
    "one path past both parts is not enough: the stream runs past each of them":
        "return _ -> return dy + a_backward(m_backward(dy))",
    "the outer residual connection is forgotten: du also runs past attention":
        "du + a_backward(du) -> a_backward(du)",
    "the inner residual connection is forgotten: what arrives also runs past the feed-forward part":
        "dy + m_backward(dy) -> m_backward(dy)",
    "attention gets what arrived at the block: on the way back the feed-forward part comes first, "
    "and attention gets du": "a_backward(du) -> a_backward(dy)",
    "the order is the forward pass's: the way back starts with the part that ran last":
        ("m_backward(dy) -> a_backward(dy)", "a_backward(du) -> m_backward(du)"),
    "that leads back through the feed-forward part only: attention is left":
        "du + a_backward(du) -> du",
    "what runs past attention is du, not dy": [
        "du + a_backward(du) -> dy + a_backward(du)",
        "du + a_backward(du) -> m_backward(dy) + a_backward(du)"],
    "that leads back through the feed-forward part twice, and never through attention":
        "a_backward(du) -> m_backward(du)",
    "dy is in du already: it runs past both parts once": "return _ -> return dy + _",
    "attention gets all of du, with what ran past the feed-forward part":
        "a_backward(du) -> a_backward(m_backward(dy))",
    "that leads back through attention only: the feed-forward part is left": [
        "return _ -> return dy + a_backward(dy)"],
    "the ways add up: where two of them meet, their gradients are added": [
        "dy + m_backward(dy) -> dy - m_backward(dy)",
        "du + a_backward(du) -> du - a_backward(du)",
        "dy + m_backward(dy) -> dy * m_backward(dy)",
        "du + a_backward(du) -> du * a_backward(du)",
        "return _ -> dv = dy - m_backward(dy)\nreturn dv - a_backward(dv)",
        "return _ -> dv = dy * m_backward(dy)\nreturn dv * a_backward(dv)"],
    "attention ran first, so its way back comes last": [
        "return _ -> return dy + a_backward(dy) + m_backward(a_backward(dy))"],
})
def _(rng):
    B, T, C = (int(n) for n in rng.choice([2, 3, 4, 5, 6], 3, replace=False))
    wa, wm = rng.standard_normal((2, C, C))
    yield rng.standard_normal((B, T, C)), lambda d: d @ wa, lambda d: d @ wm


def post_norm_backward(dy, a_backward, m_backward, ln_1_backward, ln_2_backward):
    """What arrives goes through a layer norm before each fork, so no path leads past all parts:
    ds contains dy only after two layer norms.  That is why deep models normalise before the part.
    """
    d = ln_2_backward(dy)
    du = ln_1_backward(d + m_backward(d))
    return du + a_backward(du)


@exercise(post_norm_backward, {
    "the residual connections are forgotten: the stream also runs past each part": (
        "d + m_backward(d) -> m_backward(d)", "du + a_backward(du) -> a_backward(du)"),
    "the connection past attention is forgotten": "du + a_backward(du) -> a_backward(du)",
    "the connection past the feed-forward part is forgotten": "d + m_backward(d) -> m_backward(d)",
    "both layer norms are missing": ("d = _ -> d = dy", "ln_1_backward(_) -> _"),
    "ln_2 is missing: it is what the gradient meets first": "d = _ -> d = dy",
    "ln_1 is missing: u is what it returns, and everything above reads u": "ln_1_backward(_) -> _",
    "what runs past a part has gone through the layer norm, too: the sum is formed before it": [
        "d + m_backward(d) -> dy + m_backward(d)",
        "du + a_backward(du) -> d + m_backward(d) + a_backward(du)"],
    "that is the block of GPT-2, which normalises before each part: here ln_2 is the last thing "
    "of the forward pass, so the first on the way back": (
        "d = _ -> d = dy + ln_2_backward(m_backward(dy))", "du = _ -> du = d",
        "du + a_backward(du) -> du + ln_1_backward(a_backward(du))"),
    "each layer norm stands behind its sum, not behind its part alone": (
        "d = _ -> d = dy + m_backward(ln_2_backward(dy))", "du = _ -> du = d",
        "du + a_backward(du) -> du + a_backward(ln_1_backward(du))"),
    "a layer norm comes after its sum, so on the way back before the gradient takes two paths": (
        "d = _ -> d = dy", "ln_1_backward(_) -> ln_2_backward(_)",
        "return _ -> return ln_1_backward(_)"),
    "a part, too, gets what has come back through the layer norm behind it": [
        "m_backward(d) -> m_backward(dy)", "a_backward(du) -> a_backward(d + m_backward(d))"],
    "the feed-forward part ran last, so its backward pass comes first": (
        "m_backward(d) -> a_backward(d)", "a_backward(du) -> m_backward(du)"),
    "dy does not reach ds as it is: every path leads through both layer norms":
        "return _ -> return dy + _",
    "the two layer norms are exchanged": (
        "ln_2_backward(dy) -> ln_1_backward(dy)",
        "ln_1_backward(d + m_backward(d)) -> ln_2_backward(d + m_backward(d))"),
    "the order is the forward pass's: the way back starts with what ran last": (
        "ln_2_backward(dy) -> ln_1_backward(dy)",
        "ln_1_backward(d + m_backward(d)) -> ln_2_backward(d + a_backward(d))",
        "du + a_backward(du) -> du + m_backward(du)"),
    "that leads back through the feed-forward part only: attention is left":
        "du + a_backward(du) -> du",
})
def _(rng):
    B, T, C = (int(n) for n in rng.choice([2, 3, 4, 5, 6], 3, replace=False))
    wa, wm, w1, w2 = rng.standard_normal((4, C, C))
    yield (rng.standard_normal((B, T, C)), lambda d: d @ wa, lambda d: d @ wm, lambda d: d @ w1,
           lambda d: d @ w2)


def parts_to_spare(loss_without, n, k):
    """Greedy: n + (n - 1) + ... calls.  Not always the best set, but not fooled by two parts that
    stand in for each other.  On a text without line breaks our model is lost after some seventy
    bytes, where a book's line ends.  Then the cheapest part is h.1.attn, and without it the loss
    even falls: perhaps it is what looks for the last line break."""
    parts = []
    for _ in range(k):
        left = [i for i in range(n) if i not in parts]
        parts.append(min(left, key=lambda i: loss_without([*parts, i])))
    return parts


ALONE = "return parts -> alone = sorted(range(n), key=lambda i: loss_without([i])); return "


# Any set that costs as little is right: the case says what is wrong with others.
@exercise(parts_to_spare, refused={
    "stand in": ALONE + "alone[:k]",
    "cost most": ALONE + "alone[-k:]",
    "neither more": [ALONE + parts for parts in ("alone[:k - 1]", "alone[:k + 1]", "alone", "[]")],
    "twice": ALONE + "alone[:1] * k",
    "cheaper set": ALONE + "alone[-k - 1:-1]",
    "list of part numbers": "return parts -> return loss_without([0])",
    "every set": lambda loss_without, n, k: min(combinations(range(n), k), key=loss_without),
})
def _(rng):
    n, k = int(rng.integers(9, 13)), 4
    cost = rng.uniform(0.5, 1.0, n)                       # of each part by itself
    order = rng.permutation(np.arange(1, n - 1))
    twins = order[:k]                                     # two pairs that stand in for each other
    cost[twins] = rng.uniform((0.01, 0.01, 0.016, 0.016), (0.014, 0.014, 0.02, 0.02))
    cost[order[k]] = rng.uniform(0.12, 0.15)
    cost[[0, n - 1]] = rng.uniform(0.08, 0.1, 2)          # the first and the last are never missed

    def loss_without(parts):
        parts = frozenset(int(p) for p in parts)
        if not parts <= set(range(n)):
            raise ValueError(f"loss_without: parts are whole numbers from 0 to {n - 1}, got "
                             f"{sorted(parts)}")
        pairs = sum({int(a), int(b)} <= parts for a, b in (twins[:2], twins[2:4]))
        return 1.0 + sum(cost[list(parts)]) + 3.0 * pairs

    calls = count(1)

    def counted(parts):
        if next(calls) > n * n:
            raise Wrong("You ask for more losses than you need, and each runs the model: do not "
                        "try every set.")
        return loss_without(parts)

    greedy = []
    for _ in range(k):
        greedy.append(min(set(range(n)) - set(greedy), key=lambda i: loss_without([*greedy, i])))
    good = loss_without(greedy)
    alone = sorted(range(n), key=lambda i: cost[i])

    def parts_of(out):
        return [int(i) for i in out]

    def right(out):
        parts = parts_of(out)
        return len(parts) == len(set(parts)) == k and loss_without(parts) <= good + 1e-9

    yield Case((counted, n, k), right, {
        "the same part is there twice": lambda out: len(set(parts_of(out))) < len(parts_of(out)),
        "return k parts, neither more nor fewer": lambda out: len(parts_of(out)) != k,
        "those are the parts that cost most: a small loss is wanted":
            lambda out: set(parts_of(out)) == set(alone[-k:]),
        "each of these is cheap when it alone is cut, but two of them stand in for each other: cut "
        "both and nothing does their work. Ask for the loss of the whole set":
            lambda out: set(parts_of(out)) == set(alone[:k]),
        "there is a cheaper set, found by adding one part at a time, each time the one that costs "
        "least together with those already cut": lambda out: loss_without(parts_of(out)) > good,
    }, about="Return a list of part numbers.")


if __name__ == "__main__":
    check_solutions(globals())
