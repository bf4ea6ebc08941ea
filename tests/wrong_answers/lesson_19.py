"""Plausible wrong answers to lesson 19: (a word of the hint that fits, the answer)."""

import numpy as np


def _differences(logits, right, other):
    row = np.arange(len(right))
    return logits[row, right] - logits[row, other]


def _restored(share, score=lambda *a: _differences(*a).mean()):
    def answer(clean, corrupted, patched, right, other):
        return share(*(score(logits, right, other) for logits in (clean, corrupted, patched)))
    return answer


def _share(c, d, p):
    return (p - d) / (c - d)


def _induction(column, summary=lambda shares: np.mean(shares, axis=0), turned=False):
    """A mean over tokens whose letter came before, of A at ``column(places, t)``."""
    def answer(A, ids):
        if turned:
            A = A.swapaxes(-1, -2)
        shares = []
        for maps, letters in zip(A, ids, strict=True):
            for t in range(len(letters)):
                places = np.flatnonzero(letters[:t] == letters[t])
                if len(places):
                    shares.append(maps[:, t, column(places, t)])
        return summary(shares)
    return answer


def _with_all_tokens(A, ids):
    return _induction(lambda places, t: places[-1] + 1, lambda shares: np.sum(
        shares, axis=0) / ids.size)(A, ids)


def _by_example(A, ids):
    score = _induction(lambda places, t: places[-1] + 1)
    return np.mean([score(A[i:i + 1], ids[i:i + 1]) for i in range(len(A))], axis=0)


def _next_block(heads, n_head):
    """The same heads of the next block that is not among the given."""
    blocks = {block for block, _ in heads}
    return [(block + max(blocks) + 1, head) for block, head in heads]


def _others(heads, n_head):
    """All heads of these blocks that are not given."""
    return [(block, head) for block in {block for block, _ in heads} for head in range(n_head)
            if (block, head) not in heads]


WRONG = {
    "restored_share": [
        ("mean of shares", lambda *a: _restored(_share, _differences)(*a).mean()),
        ("right letter alone", _restored(_share, lambda logits, right, other: logits[
            np.arange(len(right)), right].mean())),
        ("other letter alone", _restored(_share, lambda logits, right, other: logits[
            np.arange(len(right)), other].mean())),
        ("still missing", _restored(lambda c, d, p: (c - p) / (c - d))),
        ("as well", _restored(lambda c, d, p: p / (c - d))),
        ("not by the clean score", _restored(lambda c, d, p: (p - d) / c)),
        ("share of the clean score", _restored(lambda c, d, p: p / c)),
        ("divide by the difference", _restored(lambda c, d, p: p - d)),
        ("not a percentage", _restored(lambda c, d, p: 100 * _share(c, d, p))),
        ("one number", _restored(_share, _differences)),
        ("its own right letter", _restored(_share, lambda logits, right, other: (
            logits[:, right] - logits[:, other]).mean())),
    ],
    "induction_score": [
        ("the same letter", _induction(lambda places, t: places[-1])),
        ("before the same letter", _induction(lambda places, t: max(places[-1] - 1, 0))),
        ("last time counts", _induction(lambda places, t: places[0] + 1)),
        ("leave them out", _with_all_tokens),
        ("whatever it is", _induction(lambda places, t: t - 1)),
        ("whatever it is", lambda A, ids: A[:, :, np.arange(1, ids.shape[1]), np.arange(
            ids.shape[1] - 1)].mean(axis=(0, 2))),
        ("exchanged", _induction(lambda places, t: places[-1] + 1, turned=True)),
        ("one mean over all", _by_example),
        ("sum in place of a mean", _induction(lambda places, t: places[-1] + 1,
                                              lambda shares: np.sum(shares, axis=0))),
        ("for each head", _induction(lambda places, t: places[-1] + 1, np.mean)),
    ],
    "fair_control": [
        ("among those", lambda heads, n_head: heads),
        ("another place", _next_block),
        ("not as many", lambda heads, n_head: _others(heads, n_head)[:1]),
        ("another place", lambda heads, n_head: [(max(heads)[0] + 1, i)
                                                 for i in range(len(heads))]
         if len(heads) <= n_head else _next_block(heads, n_head)),
        ("no such head", lambda heads, n_head: [(block, 2 * n_head - 1 - head)
                                                for block, head in heads]),
        ("named twice", lambda heads, n_head: [
            next((block, head) for head in range(n_head) if (block, head) not in heads)
            for block, _ in heads]),
        ("no such head", lambda heads, n_head: [(block, head + n_head) for block, head in heads]),
        ("list of pairs", lambda heads, n_head: [head for _, head in heads]),
        ("among those", lambda heads, n_head: [(b, (head + 1) % n_head) for b, head in heads]
         if {(b, (head + 1) % n_head) for b, head in heads} & {*heads} else heads),
    ],
}
