"""Solutions of lesson 19, which part does it.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, Wrong, check_solutions, exercise


def restored_share(clean, corrupted, patched, right, other):
    """Three scores, each a mean of differences of two logits; then one share."""
    best, worst, score = (
        np.mean([z[i] - z[j] for z, i, j in zip(logits, right, other, strict=True)])
        for logits in (clean, corrupted, patched))
    return (score - worst) / (best - worst)


PAIRS = "np.mean([z[i] - z[j] for z, i, j in zip(logits, right, other, strict=True)]) -> "
SHARE = "return (score - worst) / (best - worst) -> return "


@exercise(restored_share, {
    "a mean of shares: take the mean of each score first, then one share of the means":
        (PAIRS + "np.array([z[i] - z[j] for z, i, j in zip(logits, right, other)])",
         SHARE + "((score - worst) / (best - worst)).mean()"),
    "that is the score of the right letter alone: subtract the other letter's logit":
        "z[i] - z[j] -> z[i]",
    "that is the score of the other letter alone: the right letter's logit comes first":
        "z[i] - z[j] -> z[j]",
    "that is what is still missing: 0 is the corrupted score, and 1 the clean score":
        "score - worst -> best - score",
    "subtract the corrupted score from the patched one as well": "score - worst -> score",
    "divide by the difference of the clean and the corrupted score, not by the clean score":
        "best - worst -> best",
    "that is a share of the clean score: the corrupted score must come out as 0":
        SHARE + "score / best",
    "divide by the difference of the clean and the corrupted score": [
        SHARE + "score - worst", SHARE + "(score - worst) / score"],
    "the fraction is upside down": SHARE + "(best - worst) / (score - worst)",
    "return a share, not a percentage": "return _ -> return 100 * _",
    "the score is a difference of logits, not of probabilities":
        "z[i] - z[j] -> (np.exp(z[i]) - np.exp(z[j])) / np.exp(z).sum()",
    "that is how often the right letter is ahead: take the difference of the logits":
        "z[i] - z[j] -> float(z[i] > z[j])",
    "each example has its own right letter and its own other letter":
        PAIRS + "(logits[:, right] - logits[:, other]).mean()",
    "return one number for all examples":
        PAIRS + "np.array([z[i] - z[j] for z, i, j in zip(logits, right, other)])",
}, about="0 is the corrupted score, and 1 the clean score.")
def _(rng):
    B, V = int(rng.integers(5, 8)), int(rng.integers(9, 12))
    clean, corrupted, patched = rng.standard_normal((3, B, V))
    ids = rng.permuted(np.tile(np.arange(V), (B, 1)), axis=1)
    right, other, row = ids[:, 0], ids[:, 1], np.arange(B)
    clean[row, right] += 6
    corrupted[row, other] += 4
    patched[row, right] += rng.uniform(1, 5)
    yield clean, corrupted, patched, right, other
    worse = 1.5 * corrupted - 0.5 * clean                 # a share below 0, and one above 1
    yield Case((clean, corrupted, worse, right, other), about="A patch can make it worse: the "
               "share is below 0.")
    yield Case((clean, corrupted, 1.5 * clean - 0.5 * corrupted, right, other), about="A patch can "
               "do more than restore: the share is above 1.")


def induction_score(A, ids):
    """For each token, the last earlier token with its letter, if there is one."""
    shares = []
    for maps, letters in zip(A, ids, strict=True):
        for t, letter in enumerate(letters):
            places = np.flatnonzero(letters[:t] == letter)
            if len(places):
                after = places[-1] + 1
                shares.append(maps[:, t, after])
    return np.mean(shares, axis=0)


@exercise(induction_score, {
    "that is attention to the same letter: an induction head looks at the token after it":
        "places[-1] + 1 -> places[-1]",
    "that is the token before the same letter: look at the token after it":
        "places[-1] + 1 -> max(places[-1] - 1, 0)",
    "a letter may have come several times: its last time counts": [
        "places[-1] -> places[0]", "maps[:, t, after] -> maps[:, t, places + 1].sum(axis=1)",
        "maps[:, t, after] -> maps[:, t, places + 1].mean(axis=1)",
        "maps[:, t, after] -> maps[:, t, places + 1].max(axis=1)"],
    "tokens whose letter has not come before do not count: leave them out of the mean":
        "return _ -> return np.sum(shares, axis=0) / ids.size",
    "that is attention to the token before, whatever it is": ["after = _ -> after = t - 1",
        "return _ -> t = np.arange(1, ids.shape[1]); return A[:, :, t, t - 1].mean(axis=(0, 2))"],
    "rows and columns of A are exchanged: the token that looks is the row":
        "maps[:, t, after] -> maps[:, after, t]",
    "take one mean over all tokens that count: examples with few of them count less":
        lambda A, ids: np.mean([induction_score(A[i:i + 1], ids[i:i + 1]) for i in range(len(A))],
                               axis=0),
    "a sum in place of a mean": "np.mean -> np.sum",
    "return one number for each head": "return _ -> return np.mean(shares)",
    "that is another token than the one right after": [
        "after = _ -> after = places[-1] - 1",
        "after = _ -> after = min(places[-1] + 2, t)"],
    "each example has letters of its own, and all examples count": [
        "zip(A, ids, strict=True) -> zip(A[:1], ids[:1], strict=True)",
        "zip(A, ids, strict=True) -> zip(A, np.broadcast_to(ids[0], ids.shape), strict=True)"],
    "that is the largest share, wherever it goes": [
        "return _ -> return A.max(axis=(0, 2, 3))"],
    "that is attention to the token itself": [
        "return _ -> return A[:, :, np.arange(A.shape[2]), np.arange(A.shape[2])].mean(axis=(0, "
        "2))"],
    "earlier is to the left: those are letters that come later": [
        "letters[:t] == letter -> letters[::-1][:t] == letters[::-1][t]"],
})
def _(rng):
    B, H = (int(n) for n in rng.choice([4, 6, 7], 2, replace=False))
    T, V = int(rng.integers(11, 14)), 8                   # with V = 8 letters come again
    ids = rng.integers(0, V, (B, T))
    ids[0, -1] = ids[0, 0]                                # one last token, at least, came before
    A = np.tril(rng.uniform(0.05, 1, (B, H, T, T)) ** 3)
    s = np.arange(T)
    earlier = (ids[:, :, None] == ids[:, None, :]) & (s < s[:, None])          # (B, T, T)
    asked = earlier.any(axis=-1)
    after = T - earlier[:, :, ::-1].argmax(axis=-1)
    n, q = np.nonzero(asked)
    for token in after, earlier.argmax(axis=-1) + 1:      # of the last and of the first time
        A[n, :, q, token[n, q]] += rng.uniform(0.5, 3, (len(n), H))
    A /= A.sum(axis=-1, keepdims=True)
    ends = asked[:, -1]
    last = A[ends, :, -1, after[ends, -1]].mean(axis=0)
    yield Case((A, ids), mistakes={
        "only the last token of each example is looked at": lambda out: np.allclose(out, last)})


def fair_control(heads, n_head):
    """For each head, another one of its block that is not yet in use."""
    control = []
    for block, _ in heads:
        control.append(next((block, head) for head in range(n_head)
                            if (block, head) not in heads + control))
    return control


OTHERS = ("return control -> others = [(b, h) for b in {b for b, _ in heads} for h in range(n_head)"
          " if (b, h) not in heads]; return ")


# Any heads of the same blocks will do: the case says what is unfair about others.
@exercise(fair_control, refused={
    "among those": ["return control -> return heads",
                    "return control -> return [(b, (h + 1) % n_head) for b, h in heads]"],
    "another place": ["return control -> return [(b + max(heads)[0] + 1, h) for b, h in heads]",
                      "return control -> return [(max(heads)[0] + 1 + i // n_head, i % n_head)"
                      " for i in range(len(heads))]"],
    "not as many": OTHERS + "others[:1]",
    "no such head": ["return control -> return [(b, 2 * n_head - 1 - h) for b, h in heads]",
                     "return control -> return [(b, h + n_head) for b, h in heads]"],
    "named twice": "heads + control -> heads",
    "list of pairs": "return control -> return [h for _, h in control]",
})
def _(rng):
    def case(n_head):
        blocks = int(rng.integers(2, 5))
        heads = [(int(block), int(head)) for block in rng.permutation(blocks) + 1
                 for head in rng.permutation(n_head)[:rng.integers(2, n_head // 2 + 1)]]
        # In block 0 half of the heads, neither the first nor the last: its control is the rest.
        heads += [(0, 1 + int(head)) for head in rng.permutation(n_head - 2)[:n_head // 2]]
        heads = [heads[i] for i in rng.permutation(len(heads))]

        def pairs(out):
            heads = np.asarray(out)
            if heads.ndim != 2 or heads.shape[1] != 2 or (heads < 0).any():
                raise Wrong("Return a list of pairs (block, head).")
            return [(int(block), int(head)) for block, head in heads]

        def counts(out):
            out = [block for block, _ in pairs(out)]
            return {block: out.count(block) for block in out}

        def is_fair(out):
            new = pairs(out)
            return (np.array_equal(out, new) and len({*new}) == len(new)
                    and not {*new} & {*heads} and counts(new) == counts(heads)
                    and all(head < n_head for _, head in new))

        return Case((heads, n_head), is_fair, {
            "a head is named twice: muting it twice is muting it once":
                lambda out: len({*pairs(out)}) < len(pairs(out)),
            "some heads of the control are among those that it is compared with":
                lambda out: bool({*pairs(out)} & {*heads}),
            "there is no such head: they count from 0 to n_head - 1":
                lambda out: any(head >= n_head for _, head in pairs(out)),
            "the control has not as many heads: then it differs in two things":
                lambda out: len(pairs(out)) != len(heads),
            "each block must lose as many heads as before: another block is another place":
                lambda out: counts(out) != counts(heads),
        }, about="As many heads, in the same blocks, and none of the given ones.")

    for n_head in (6, int(rng.integers(6, 9)), 8):
        yield case(n_head)


if __name__ == "__main__":
    check_solutions(globals())
