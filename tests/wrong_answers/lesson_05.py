"""Plausible wrong answers to lesson 5: (a word of the hint that fits, the answer)."""

import numpy as np


def _dS(dA, A, mean=True):
    return A * (dA - ((dA * A).sum(axis=-1, keepdims=True) if mean else 0))


def _plain(dA, A):
    return A * (dA - dA.mean(axis=-1, keepdims=True))


def _plain_seen(dA, A):
    return A * (dA - np.nanmean(np.where(A > 0, dA, np.nan), axis=-1, keepdims=True))


def _t(M):
    return M.swapaxes(-1, -2)


def _sum(M):
    return M.sum(axis=0)


def _multi(dS=_dS, heads=_sum, scale=True, key=_t, value=_t, key_scale=True):
    def answer(dy, q, k, v, A):
        root = np.sqrt(q.shape[-1])
        d = dS(dy @ v.T, A)
        dq, dk = d @ k, key(d) @ q
        return (dq / root if scale else dq, heads(dk / root if scale and key_scale else dk),
                heads(value(A) @ dy))
    return answer


def _distance(dS=_dS, heads=_sum, reduce=np.sum):
    def answer(dA, A):
        M = heads(dS(dA, A))
        return np.array([reduce(np.diagonal(M, -d)) for d in range(len(M))])
    return answer


def _top(measure):
    def answer(A, n):
        mask = np.zeros(A.size, bool)
        mask[np.argsort(-measure(A), axis=None, kind="stable")[:n]] = True
        return mask.reshape(A.shape)
    return answer


def _each_row(A, n):
    mask = np.zeros(A.shape, bool)
    counts = np.full(len(A), n // len(A))
    counts[len(A) - n % len(A):] += 1
    for row, a, count in zip(mask, A, counts, strict=True):
        row[np.argsort(-a)[:count]] = True
    return mask


def _one_hot(A):
    return np.eye(A.shape[1])[A.argmax(axis=1)]


WRONG = {
    "value_gradient": [
        ("instead of a sum", lambda dy, A: A.T @ dy / len(A)),
        ("shares are missing", lambda dy, A: (A > 0).T.astype(float) @ dy),
        ("shares are missing", lambda dy, A: np.ones_like(A).T @ dy),
        ("need not sum to 1", lambda dy, A: (A / A.sum(axis=0)).T @ dy),
        ("largest share gets", lambda dy, A: _one_hot(A).T @ dy),
        ("ValueError", lambda dy, A: A @ dy),
        ("each of the T values", lambda dy, A: A[:, :len(A)] @ dy),
        ("largest difference", lambda dy, A: (A ** 2).T @ dy),
        ("times as large", lambda dy, A: A.T @ dy / A.shape[1]),
        ("shape", lambda dy, A: dy.T @ A),
        ("largest difference", lambda dy, A: A.T @ dy.cumsum(axis=0)),
    ],
    "multi_query_backward": [
        ("one set of keys", _multi(heads=lambda M: M)),
        ("instead of a sum", _multi(heads=lambda M: M.mean(axis=0))),
        ("only one head", _multi(heads=lambda M: M[0])),
        ("only one head", _multi(heads=lambda M: M[-1])),
        ("only one head", _multi(heads=lambda M: M[1])),
        ("weighted mean is missing", _multi(dS=lambda dA, A: _dS(dA, A, mean=False))),
        ("mean in dS is weighted", _multi(dS=_plain)),
        ("mean in dS is weighted", _multi(dS=_plain_seen)),
        ("through the softmax", _multi(dS=lambda dA, A: dA)),
        ("factor is missing", _multi(scale=False)),
        ("dk: the factor", _multi(key_scale=False)),
        ("column of dS", _multi(key=lambda M: M)),
        ("column of A", _multi(value=lambda M: M)),
    ],
    "distance_gradient": [
        ("shared by all heads", lambda dA, A: np.stack(
            [_distance()(dA[h:h + 1], A[h:h + 1]) for h in range(len(A))])),
        ("mean over the heads", _distance(heads=lambda M: M.mean(axis=0))),
        ("b_0 has T paths", lambda dA, A: _distance(reduce=np.mean)(dA, A) / len(A)),
        ("before the softmax", _distance(dS=lambda dA, A: dA)),
        ("with its weighted mean", _distance(dS=lambda dA, A: A * dA)),
        ("mean in dS is weighted", _distance(dS=_plain)),
        ("mean in dS is weighted", _distance(dS=_plain_seen)),
        ("other way", lambda dA, A: _distance()(dA, A)[::-1]),
        ("diagonal; you sum", lambda dA, A: _dS(dA, A).sum(axis=(0, 1))),
        ("diagonal; you sum", lambda dA, A: _dS(dA, A).sum(axis=(0, 2))),
        ("above the main one", lambda dA, A: _distance(dS=lambda dA, A: _t(_dS(dA, A)))(dA, A)),
        ("only one head", lambda dA, A: _distance()(dA[:1], A[:1])),
        ("only one head", lambda dA, A: _distance()(dA[1:2], A[1:2])),
    ],
    "worth_computing": [
        ("largest shares", _top(lambda A: A)),
        ("from each row", _each_row),
        ("above the diagonal", _top(lambda A: np.random.default_rng(0).random(A.shape))),
        ("exactly n", lambda A, n: A > 0.01),
        ("True and False", lambda A, n: np.argsort(-A, axis=None)[:n]),
        ("True and False", lambda A, n: A * (1 - A)),
        ("bracket", _top(lambda A: np.where(A > 0, A ** 0.1, 0) * (A < 0.2))),
    ],
}
