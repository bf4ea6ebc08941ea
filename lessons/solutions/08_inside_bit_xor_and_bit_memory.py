"""Solutions of lesson 8, bit XOR and bit memory.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def copy_share(A, which, strings):
    """Asked token p is token strings * P + p; token p of the right string is which * P + p."""
    B, H, T, _ = A.shape
    P = T // (strings + 1)
    n, p = np.arange(B)[:, None], np.arange(P)
    query = strings * P + p                               # (P,)
    same = which[:, None] * P + p                         # (B, P)
    share = A[n, :, query, same]                          # (B, P, H)
    return share.mean(axis=(0, 1))


PARTS = ("k + 0 * same] for k in range(strings * P)", "k * P + p] for k in range(strings)",
         "which[:, None] * P + k] for k in range(P)")


@exercise(copy_share, {
    "that is the attention to the whole right string; for asked token p only its token p counts":
        "share = _ -> share = sum(A[n, :, query, which[:, None] * P + i] for i in range(P))",
    "a sum over the asked tokens instead of a mean": "_.mean(axis=(0, 1)) -> _.mean(0).sum(0)",
    "a sum over the examples instead of a mean": "_.mean(axis=(0, 1)) -> _.sum(0).mean(0)",
    "rows and columns of A are exchanged: the asked token is the one that looks, so it is the row":
        "A[n, :, query, same] -> A[n, :, same, query]",
    "do not divide by the attention to the strings here: the share is of all the token gives": [
        *(f"share = _ -> share = _ / sum(A[n, :, query, {part})" for part in PARTS),
        *(f"return _ -> return _ / sum(A[n, :, query, {part}).mean((0, 1))" for part in PARTS)],
    "p is the same in both strings; yours is a mean over all pairs of tokens":
        "share = _ -> share = sum(A[n, :, query, which[:, None] * P + i] for i in range(P)) / P",
    "each example has its own right string":
        [*(f"which[:, None] -> {k} % strings + 0 * n" for k in range(3)),
         "share = _ -> share = np.mean([A[:, :, query, w * P + p].swapaxes(1, 2) for w in which], "
         "axis=0)",
         "share = _ -> share = sum(A[n, :, query, k * P + p] for k in range(strings)) / strings"],
    "asked token p looks for token p of the right string, not for another of its tokens": [
        "which[:, None] * P + p -> which[:, None] * P + 0 * p"],
    "that is the token after the right one: a copy of p is at token p": [
        "which[:, None] * P + p -> which[:, None] * P + p + 1",
        "which[:, None] * P + p -> which[:, None] * P + (p + 1) % P",
        "which[:, None] * P + p -> which[:, None] * P + np.minimum(p + 1, P - 1)"],
    "that is the token before the right one": [
        "which[:, None] * P + p -> which[:, None] * P + p - 1",
        "which[:, None] * P + p -> which[:, None] * P + (p - 1) % P",
        "query = strings * P + p -> query = strings * P + np.minimum(p + 1, P - 1)",
        "which[:, None] * P + p -> which[:, None] * P + np.maximum(p - 1, 0)"],
    "that is another string than the right one": [
        "which[:, None] -> (which[:, None] + 1) % strings",
        "which[:, None] -> (which[:, None] - 1) % strings",
        "which[:, None] -> (strings - 1 - which[:, None])"],
    "the largest is one example's; take the mean over examples and p": [
        "_.mean(axis=(0, 1)) -> _.max(axis=(0, 1))",
        "_.mean(axis=(0, 1)) -> _.max(axis=1).mean(0)"],
    "token p of every string is in it; only that of the right string counts":
        "share = _ -> share = sum(A[n, :, query, k * P + p] for k in range(strings))",
    "the token of the right string that gets most need not be token p":
        "share = _ -> share = np.max([A[n, :, query, which[:, None] * P + i] for i in range(P)], "
        "axis=0)",
    "that is what the asked token gives to itself": "same = _ -> same = query + 0 * n",
    "that takes all pairs of examples and of tokens: index the examples, too, with np.arange(B)":
        "return _ -> return A[:, :, query][..., same].mean(axis=(0, 2, 3, 4))",
    "which is the number of a string; the first of its tokens is which times P": [
        "which[:, None] * P -> which[:, None]", "which[:, None] * P -> which[:, None] * strings"],
    "a string's tokens stand side by side, P of them; yours are one from each string": [
        "which[:, None] * P + p -> which[:, None] + p * strings",
        "which[:, None] * P + p -> which[:, None] + p * (strings + 1)",
        ("query = strings * P + p -> query = strings + p * (strings + 1)",
         "which[:, None] * P + p -> which[:, None] + p * (strings + 1)")],
    "T tokens are strings + 1 strings: the asked one is the last of them":
        "which[:, None] * P -> which[:, None] * (T // strings)",
    "which counts the strings from 0, and string 0 comes first": [
        "which[:, None] * P -> (which + 1)[:, None] * P",
        "which[:, None] * P -> (which - 1)[:, None] % (strings + 1) * P"],
    "the asked string comes last, after all the others: its tokens are the last P of T":
        ["query = _ -> query = (strings - 1) * P + p", "query = _ -> query = p"],
    "only one of the asked tokens is looked at":
        [f"_.mean(axis=(0, 1)) -> _[:, {i} % P].mean(0)" for i in range(6)],
    "yours is a mean over the heads, too: return one number for each head": [
        f"_.mean(axis=(0, 1)) -> _.mean({axes})" for axes in ("", "(0, 2)", "(1, 2)", "2")],
    "the examples' axis is still there: take the mean over it": "_.mean(axis=(0, 1)) -> _.mean(1)",
    "here P is not the lesson's 4": ("P = _ -> P = 4", "query = _ -> query = T - 4 + p"),
})
def _(rng):
    B, H = (int(n) for n in rng.choice([7, 8, 9], 2, replace=False))
    P, strings = ((5, 2), (5, 3), (6, 2))[int(rng.integers(3))]      # P is not 4, as in the lesson
    T = (strings + 1) * P
    A = np.tril(rng.uniform(0.1, 1, (B, H, T, T)) ** 3)
    which = np.concatenate([np.arange(strings), rng.integers(0, strings, B)])[:B]
    which = rng.permutation(which)
    n, p = np.arange(B)[:, None], np.arange(P)
    more = rng.permutation([0, *rng.uniform(0.5, 3, H - 1)])       # one head has no favourite
    A[n, :, strings * P + p, which[:, None] * P + p] += more
    A /= A.sum(axis=-1, keepdims=True)
    yield Case((A, which, strings), mistakes={
        "rows and columns of A are exchanged: the asked token is the one that looks, so it is the "
        "row": lambda out: np.shape(out) == (H,) and not np.any(out)})


def say_the_mean(y, head, n_head):
    """A head's channels are side by side: C / n_head of them, from head * C / n_head on."""
    D = y.shape[-1] // n_head
    mine = slice(head * D, (head + 1) * D)
    out = y.copy()
    out[..., mine] = y[..., mine].mean(axis=(0, 1))
    return out


@exercise(say_the_mean, {
    "nothing has changed: write the mean into the head's channels of the copy":
        "return out -> return y.copy()",
    "the head is mute, 0 everywhere; let it say its mean": "_.mean(axis=(0, 1)) -> 0.0",
    "each channel has its own mean; you take one over all the head's channels": [
        f"_.mean(axis=(0, 1)) -> _.mean({axes})"
        for axes in ("", "(0, 2), keepdims=True", "(1, 2), keepdims=True")],
    "each channel has its own mean; you take one of all of y": "_.mean(axis=(0, 1)) -> y.mean()",
    "the mean stands in place of the output: it is not taken from it, nor added": [
        f"y[..., mine].mean(axis=(0, 1)) -> y[..., mine] {s} y[..., mine].mean(axis=(0, 1))"
        for s in "+-"],
    "a mean over the channels of each token still depends on the example":
        "_.mean(axis=(0, 1)) -> _.mean(axis=-1, keepdims=True)",
    "a sum instead of a mean": "_.mean(axis=(0, 1)) -> _.sum(axis=(0, 1))",
    "another head says its mean: heads count from 0, and head h begins at channel h C / n_head": [
        f"mine = _ -> mine = slice({first}, {first} + D)"
        for first in ("(head + 1) * D", "(head - 1) * D", "0", "head")],
    "that is a mean over the examples only: take it over the tokens, too":
        "_.mean(axis=(0, 1)) -> _.mean(axis=0)",
    "that is a mean over the tokens only: it must be the same for all examples":
        "_.mean(axis=(0, 1)) -> _.mean(axis=1, keepdims=True)",
    "the head's channels are side by side, C / n_head of them": [
        f"mine = _ -> mine = slice({mine})" for mine in (
            "head, None, n_head", "head, head + 1", "head * n_head, (head + 1) * n_head")],
    "all heads say their mean; only this one should": "mine = _ -> mine = slice(None)",
    "return all channels: those of the other heads stay as they are": [
        "return out -> return out[..., mine]", "return out -> return out[0, 0, mine]"],
    "a mean, not a median": [
        "y[..., mine].mean(axis=(0, 1)) -> np.median(y[..., mine], axis=(0, 1))"],
    "the other heads stay as they are": [
        "out = y.copy() -> out = 0 * y"],
    "one example or token alone: take the mean over all of them": [
        "y[..., mine].mean(axis=(0, 1)) -> y[0][..., mine].mean(axis=0)",
        "y[..., mine].mean(axis=(0, 1)) -> y[:, 0][..., mine].mean(axis=0)"],
    "nothing is left of the output itself: the mean takes its place": [
        "y[..., mine].mean(axis=(0, 1)) -> (y[..., mine] + y[..., mine].mean(axis=(0, 1))) / 2"],
}, {"all heads but": "return out -> out[:] = y.mean(axis=(0, 1)); out[..., mine] = y[..., mine]; "
                     "return out"})
def _(rng):
    B, T, D = (int(n) for n in rng.permutation([3, 4, 6]))
    n_head = 5
    y = rng.standard_normal((B, T, n_head * D)) + rng.uniform(-2, 2, n_head * D)
    head = int(rng.integers(2, min(D, n_head - 1)))       # D and head * D differ; not the last
    mine, means = slice(head * D, (head + 1) * D), y.mean(axis=(0, 1)) * np.ones_like(y)
    means[..., mine] = y[..., mine]
    yield Case((y, head, n_head), mistakes={
        "all heads but this one say their mean; it is the other way round":
            lambda out: np.allclose(out, means)})


def gap(a, b):
    """The worst run of the better kind minus the best run of the other."""
    if np.mean(a) < np.mean(b):
        a, b = b, a
    return np.min(a) - np.max(b)


BETTER = "np.mean(a) < np.mean(b) -> "


@exercise(gap, {
    "that is the difference of the means; it says nothing about the spread": [
        "return _ -> return np.mean(a) - np.mean(b)",
        (BETTER + "False", "return _ -> return np.mean(a) - np.mean(b)")],
    "that is the difference of the medians; it says nothing about the spread": [
        "return _ -> return np.median(a) - np.median(b)",
        "return _ -> return np.median(b) - np.median(a)",
        (BETTER + "False", "return _ -> return np.median(a) - np.median(b)")],
    "standard deviations are one measure of the spread; here it is the worst run and the best": [
        "return _ -> return np.mean(a) - np.mean(b) - np.std(a) - np.std(b)",
        "return _ -> return np.mean(a) - np.mean(b) - np.std(a, ddof=1) - np.std(b, ddof=1)",
        "return _ -> return (np.mean(a) - np.mean(b)) / np.hypot(np.std(a), np.std(b))"],
    "you take the best run of the better kind: take its worst": [
        "np.min(a) -> np.max(a)", "np.min(a) - np.max(b) -> np.max(a) - np.min(b)"],
    "compare with the best run of the other kind, not with its worst": "np.max(b) -> np.min(b)",
    "you take the other kind for the better one: the better one has the higher mean, and it may be "
    "either of the two arguments": [BETTER + better for better in (
        "np.mean(a) > np.mean(b)", "False", "True", "np.median(a) < np.median(b)",
        "sum(a) < sum(b)", "np.max(a) < np.max(b)", "np.min(a) < np.min(b)", "a[0] < b[0]",
        "np.min(a) + np.max(a) < np.min(b) + np.max(b)",
        "np.min(a) - np.max(b) < np.min(b) - np.max(a)")],
}, {"keep the sign": "return _ -> return max(0.0, _)", "True or False": "return _ -> return _ > 0"})
def _(rng):
    def case(better, worse, about=""):
        """The two in random order, with the given runs of each."""
        answer = float(better.min() - worse.max())
        args = (better, worse) if rng.random() < 0.5 else (worse, better)
        return Case(args, mistakes={
            "where the runs overlap the gap is below 0: keep the sign":
                lambda out: out >= 0 > answer,
            "that is True or False; return a number that says how far": lambda out: isinstance(
                out, (bool, np.bool_)),
        }, about=about)

    def runs(low, high, n, *more):
        return rng.permutation([*rng.uniform(low, high, n), *more])

    def first(a, value):
        """The same runs, ``value`` the first of them."""
        return np.array([value, *(v for v in a if v != value)])

    # The better kind by the mean is the worse one by the sum, the median, the best or the worst
    # run, the middle of both, the first run or the last.
    far = runs(0.90, 0.98, 3), runs(0.70, 0.80, 5)
    yield case(*far, "One kind is far better.")
    yield case(*far, "One kind is far better.")
    failed = float(rng.uniform(0.20, 0.35))
    a, b = runs(0.80, 0.84, 5), runs(0.86, 0.90, int(rng.integers(3, 5)), failed)
    yield case(a, first(b, b.max()), "One run failed, of the kind that is better in most runs.")
    failed = float(rng.uniform(0.40, 0.45))
    a, b = runs(0.92, 0.96, int(rng.integers(3, 5)), failed), runs(0.72, 0.77, 3)
    yield case(first(a, failed), b, "One run failed, and its kind has the higher mean all the "
                                    "same.")
    a, b = runs(0.84, 0.90, 3, 0.81), runs(0.77, 0.80, 2, 0.87)
    yield case(a, b, "The two kinds overlap.")


if __name__ == "__main__":
    check_solutions(globals())
