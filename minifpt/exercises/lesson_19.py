"""Lesson 19, which part does it."""

import numpy as np

from . import Case, close_to, exercise, fails


@exercise
def restored_share(rng):
    B, V = int(rng.integers(5, 8)), int(rng.integers(9, 12))
    clean, corrupted, patched = rng.standard_normal((3, B, V))
    ids = rng.permuted(np.tile(np.arange(V), (B, 1)), axis=1)
    right, other = ids[:, 0], ids[:, 1]
    row = np.arange(B)
    clean[row, right] += 6
    corrupted[row, other] += 4
    patched[row, right] += rng.uniform(1, 5)

    def share(score):
        c, d, p = score(clean), score(corrupted), score(patched)
        return (p - d) / (c - d)

    def difference(logits):
        return logits[row, right] - logits[row, other]

    answer = float(share(lambda logits: difference(logits).mean()))
    c, d, p = (float(difference(logits).mean()) for logits in (clean, corrupted, patched))
    return Case((clean, corrupted, patched, right, other), answer, {
        "a mean of shares: take the mean of each score first, then one share of the means":
            float(share(difference).mean()),
        "that is the score of the right letter alone: subtract the other letter's logit":
            float(share(lambda logits: logits[row, right].mean())),
        "that is the score of the other letter alone: the right letter's logit comes first":
            float(share(lambda logits: logits[row, other].mean())),
        "that is what is still missing: 0 is the corrupted score, and 1 the clean score":
            1 - answer,
        "subtract the corrupted score from the patched one as well": p / (c - d),
        "divide by the difference of the clean and the corrupted score, not by the clean score":
            (p - d) / c,
        "that is a share of the clean score: the corrupted score must come out as 0": p / c,
        "divide by the difference of the clean and the corrupted score": p - d,
        "return a share, not a percentage": 100 * answer,
        "return one number for all examples": lambda out: np.shape(out) == (B,),
        "each example has its own right letter and its own other letter":
            float(share(lambda logits: (logits[:, right] - logits[:, other]).mean())),
    }, about="0 is the corrupted score, and 1 the clean score.")


@exercise
def induction_score(rng):
    B, H = (int(n) for n in rng.choice([4, 6, 7], 2, replace=False))
    T, V = int(rng.integers(11, 14)), 8                   # with V = 8 letters come again
    ids = rng.integers(0, V, (B, T))
    A = np.tril(rng.uniform(0.05, 1, (B, H, T, T)) ** 3)
    t, s = np.arange(T)[:, None], np.arange(T)
    earlier = (ids[:, :, None] == ids[:, None, :]) & (s < t)          # (B, T, T)
    asked = earlier.any(axis=-1)
    last = T - 1 - earlier[:, :, ::-1].argmax(axis=-1)
    first = earlier.argmax(axis=-1)
    n, q = np.nonzero(asked)
    A[n, :, q, last[n, q] + 1] += rng.uniform(0.5, 3, H)
    A /= A.sum(axis=-1, keepdims=True)

    def mean(columns):
        return A[n, :, q, columns].mean(axis=0)

    answer = mean(last[n, q] + 1)
    every = np.zeros((B, T, H))
    every[n, q] = A[n, :, q, last[n, q] + 1]
    by_example = np.stack([every[b][asked[b]].mean(axis=0) for b in range(B)])
    return Case((A, ids), answer, {
        "that is attention to the same letter: an induction head looks at the token after it":
            mean(last[n, q]),
        "that is the token before the same letter: look at the token after it":
            mean(np.maximum(last[n, q] - 1, 0)),
        "a letter may have come several times: its last time counts": mean(first[n, q] + 1),
        "tokens whose letter has not come before do not count: leave them out of the mean":
            every.mean(axis=(0, 1)),
        "that is attention to the token before, whatever it is":
            close_to(A[:, :, s[1:], s[:-1]].mean(axis=(0, 2)), mean(np.maximum(q - 1, 0))),
        "rows and columns of A are exchanged: the token that looks is the row":
            A[n, :, last[n, q] + 1, q].mean(axis=0),
        "take one mean over all tokens that count: examples with few of them count less":
            by_example.mean(axis=0),
        "a sum in place of a mean": answer * len(n),
        "return one number for each head": lambda out: np.shape(out) != (H,),
        "only the last token of each example is looked at": lambda out: np.allclose(
            out, every[asked[:, -1], -1].mean(axis=0)),
    })


@exercise
def fair_control(rng):
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
                raise ValueError("not a list of pairs")
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
            "return a list of pairs (block, head)": fails(pairs),
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
