"""Solutions of lesson 4, self-attention.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import Case, check_solutions, exercise


def answer_to_no_question(v):
    """All scores are 0, so each token looks evenly at those it may see: y is a running mean.  A
    head that has nothing to ask does this."""
    counts = np.arange(1, len(v) + 1)[:, None]            # tokens that each row sees
    return np.cumsum(v, axis=0) / counts


@exercise(answer_to_no_question, {
    "the mask is missing: a token averages over those that it may see, not over all":
        "return _ -> return np.tile(v.mean(axis=0), (len(v), 1))",
    "the sums are right, but the shares of a row must sum to 1": "_ / counts -> _",
    "the mask is the other way round: each token sees itself and what came before":
        "return _ -> return (np.cumsum(v[::-1], axis=0) / counts)[::-1]",
    "the sum is divided by T, but token t sees fewer tokens: how many?": "_ / counts -> _ / len(v)",
    "each token looks at itself alone: does a query of 0 score it higher than the others?":
        "return _ -> return v.copy()",
    "a score of 0 is not a share of 0: what is the softmax of a row of zeros?":
        "return _ -> return 0 * v",
    "all tokens look at the first token: does a query of 0 score it higher than the others?":
        "return _ -> return np.tile(v[0], (len(v), 1))",
    "each channel is averaged over the tokens, not over the channels":
        "np.cumsum(v, axis=0) -> np.cumsum(v, axis=1)",
    "softmax is for the scores, which are all 0: it does not touch the values":
        "return _ -> return F.softmax(v)[0]",
    "a token adds up all that it sees before it divides": "np.cumsum(v, axis=0) -> v",
    "return one row of y for each token": "return _ -> return v.mean(axis=0)",
    "the sum runs over tokens, axis 0": [
        "return _ -> return np.cumsum(v, axis=1) / np.arange(1, v.shape[1] + 1)"],
    "all tokens that it may see have a share, not the last two": [
        "return _ -> return np.array([v[max(0, t - 1):t + 1].mean(axis=0) "
        "for t in range(len(v))])"],
    "token 0 sees one token, itself": [
        "np.arange(1, len(v) + 1) -> np.arange(2, len(v) + 2)"],
}, {"itself too": "return _ -> return np.roll(_, 1, axis=0) * (counts > 1)"})
def _(rng):
    v = rng.standard_normal((int(rng.integers(4, 8)), 3))
    yield Case((v,), mistakes={
        "a token may see itself too": lambda y: np.allclose(y[1:], answer_to_no_question(v)[:-1]),
        "token t, counted from 0, sees t + 1 tokens": lambda y: np.allclose(
            y[1:], np.cumsum(v, axis=0)[1:] / np.arange(1, len(v))[:, None])})


def windowed_attention(q, k, v, w):
    """The causal mask hides what comes after t, a second one what is w or more tokens back."""
    back = np.arange(len(q))[:, None] - np.arange(len(k))            # (T, T): t - s
    S = q @ k.T / np.sqrt(q.shape[1])
    mask = (back >= 0) & (back < w)
    A, _ = F.softmax(np.where(mask, S, -np.inf))
    return A @ v


@exercise(windowed_attention, {
    "the factor is missing: the scores are divided by the square root of D": "_ / np.sqrt(_1) -> _",
    "the scores are divided by D: it is its square root": "np.sqrt(_) -> _",
    "the square root is of another axis than D, the channels of a query": [
        f"q.shape[1] -> {n}" for n in ("len(q)", "v.shape[1]", "w")],
    "the scores are divided by the square root of D, not multiplied by it":
        "_ / np.sqrt(_1) -> _ * np.sqrt(_1)",
    "the causal mask is missing: a token sees those after it": [
        "mask = _ -> mask = back < w", "mask = _ -> mask = back == back"],
    "the window looks to both sides: a token sees those after it":
        "mask = _ -> mask = np.abs(back) < w",
    "the window is missing: a token sees all those before it": "mask = _ -> mask = back >= 0",
    "the window is one token too long: w includes the token itself": "back < w -> back <= w",
    "the mask is the other way round: a token sees itself and those after it":
        "back = _ -> back = -(_)",
    "the wrong axis: the shares of each query, a row, sum to 1":
        "A, _ = _1 -> A = np.where(mask, np.exp(S - S.max()), 0); A /= A.sum(axis=0) + 1e-300",
    "each key has its own score: the shares of a window are not equal":
        "A, _ = _1 -> A = mask / mask.sum(axis=1, keepdims=True)",
    "each token averages over all that it sees, not only over the best key":
        "A, _ = _1 -> A = np.eye(len(q))[np.where(mask, S, -np.inf).argmax(axis=1)]",
    "you mask after the softmax: the shares that are left no longer sum to 1":
        ["A, _ = _1 -> A = F.softmax(S)[0] * mask",
         "A, _ = _1 -> A = F.softmax(np.where(back >= 0, S, -np.inf))[0] * mask"],
    "queries and keys are exchanged: a row of the scores belongs to a query": "q @ k.T -> k @ q.T",
    "each token sees itself, too: it is the first of the w": [
        f"A, _ = _1 -> A = np.nan_to_num(F.softmax(np.where({allowed}, S, -np.inf))[0])"
        for allowed in ("mask & (back > 0)", "(0 < back) & (back <= w)")],
    "that is the map A; y is A times the values": "return _ -> return A",
    "the map is transposed: row t of A holds the shares that token t gives": "A @ v -> A.T @ v",
    "a masked score still gets a share: for which score is the share 0?": [
        f"-np.inf -> {score}" for score in (0, -1, -10)],
}, {"one token too short": "back < w -> back < w - 1"})
def _(rng):
    T = int(rng.integers(6, 9))
    q, k, v = (2 * rng.standard_normal((T, n)) for n in (4, 4, 5))
    for w, about in ((3, ""), (T + 2, "Here the window is longer than the text: then it is plain "
                                      "causal attention."),
                     (1, "With w = 1 each token sees itself alone, and y is v.")):
        yield Case((q, k, v, w), mistakes={
            "the window is one token too short: w includes the token itself": lambda y, w=w: (
                w > 1 and np.allclose(y[1:], windowed_attention(q, k, v, w - 1)[1:])),
        }, about=about)
    yield Case((1e3 * q, k, v, 3), about="Here some scores are in the thousands, and their "
                                         "exponentials are infinite or 0: mask first, then take "
                                         "F.softmax, which subtracts each row's largest.")


def goes_by_position(maps):
    """One choice of many: average the maps over the texts, then take each row's largest share.
    A position that is picked in every text keeps its share; positions that differ from text to text
    average out."""
    measure = maps.mean(axis=0).max(axis=-1).mean(axis=-1)           # (blocks, H)
    block, head = np.unravel_index(measure.argmax(), measure.shape)
    return int(block), int(head)


# Any measure is right that picks this head: the case says which other head was taken.
MEASURE = "measure = _ -> measure = "


@exercise(goes_by_position, refused={
    "no position": MEASURE + "-maps.std(axis=0).mean(axis=(-1, -2))",
    "last token": [MEASURE + "maps.mean(axis=0)[..., -1, :].max(axis=-1)"],
    "sharpest": [MEASURE + "maps.max(axis=-1).mean(axis=(0, -1))",
                 MEASURE + "maps[0].max(axis=-1).mean(axis=-1)"],
    "exchanged": "return _, _1 -> return _1, _",
    "unravel_index": "return _ -> return int(measure.argmax())",
    "every text": "return _ -> return 0, 0",
})
def _(rng):
    texts, blocks, H, T = 4, 3, 4, 12
    mask = np.triu(np.full((T, T), -np.inf), 1)
    heads = [(b, h) for b in range(blocks) for h in range(H) if b != h and (h, b) != (2, 1)]
    near, far = rng.permutation(heads)[:2]
    for winner, pattern in (
            (near, np.eye(T, k=-int(rng.integers(1, 4)))),            # so many positions back
            (far, np.eye(T)[int(rng.integers(2))] * np.ones((T, 1)))):      # always the same one
        winner = tuple(map(int, winner))
        swapped = winner[::-1]
        others = [n for n in heads if n not in (winner, swapped)]
        even, content, latest, at_end = (tuple(map(int, n)) for n in rng.permutation(others)[:4])
        S = 1.2 * rng.standard_normal((texts, blocks, H, T, T))
        S[:, *winner] += 4.5 * pattern
        S[:, *even] = 0
        positions = (rng.random((texts, T)) * np.arange(1, T + 1)).astype(int)      # at most t
        S[:, *content] += 9 * np.eye(T)[positions]
        S[:, *latest] *= 0.1
        S[:, *latest] -= 0.25 * np.abs(np.arange(T)[:, None] - np.arange(T))
        S[:, *at_end, -1, int(rng.integers(T))] += 9
        maps, _ = F.softmax(S + mask)

        def chosen(head):
            return lambda out: tuple(out) == head

        yield Case((maps,), chosen(winner), {
            "that head looks everywhere equally: it is the same in every text because it picks "
            "no position": chosen(even),
            "that head's look fades with distance, the same in every text, but it picks no "
            "position": chosen(latest),
            "that head is the sharpest, but it picks another position in each text: how do the "
            "texts enter your measure?": chosen(content),
            "that head picks one position at the last token alone: all rows count": chosen(at_end),
            "block and head are exchanged": chosen(swapped),
            "return (block, head): one number is an index into all heads; np.unravel_index":
                lambda out: np.ndim(out) == 0,
        }, about="Another head picks one position with a larger share, and does so in every text.")


if __name__ == "__main__":
    check_solutions(globals())
