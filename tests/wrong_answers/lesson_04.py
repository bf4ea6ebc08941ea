"""Plausible wrong answers to lesson 4: (a word of the hint that fits, the answer)."""

import numpy as np


def _softmax(S, axis=-1):
    e = np.exp(S - S.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def _count(v):
    return np.arange(1, len(v) + 1)[:, None]


def _windowed(seen, factor=lambda q, v: q.shape[1] ** -0.5, axis=-1, after=False, fill=-np.inf):
    def answer(q, k, v, w):
        S = q @ k.T * factor(q, v)
        back = np.arange(len(q))[:, None] - np.arange(len(k))
        if after:
            return (_softmax(S) * seen(back, w)) @ v
        with np.errstate(all="ignore"):
            return _softmax(np.where(seen(back, w), S, fill), axis) @ v
    return answer


def _right(back, w):
    return (back >= 0) & (back < w)


def _best(measure):
    def answer(maps):
        m = measure(maps)
        return tuple(map(int, np.unravel_index(m.argmax(), m.shape)))
    return answer


def _position(maps):
    return maps.mean(axis=0).max(axis=-1).mean(axis=-1)


WRONG = {
    "answer_to_no_question": [
        ("mask is missing", lambda v: np.tile(v.mean(axis=0), (len(v), 1))),
        ("sum to 1", lambda v: np.cumsum(v, axis=0)),
        ("other way round", lambda v: (np.cumsum(v[::-1], axis=0) / _count(v))[::-1]),
        ("itself too", lambda v: np.vstack([0 * v[:1], (np.cumsum(v, 0) / _count(v))[:-1]])),
        ("divided by T", lambda v: np.cumsum(v, axis=0) / len(v)),
        ("itself alone", lambda v: v.copy()),
        ("share of 0", lambda v: 0 * v),
        ("first token", lambda v: np.tile(v[0], (len(v), 1))),
        ("one row of y", lambda v: v.mean(axis=0)),
    ],
    "windowed_attention": [
        ("factor is missing", _windowed(_right, lambda q, v: 1)),
        ("divided by D", _windowed(_right, lambda q, v: 1 / q.shape[1])),
        ("another axis", _windowed(_right, lambda q, v: len(q) ** -0.5)),
        ("another axis", _windowed(_right, lambda q, v: v.shape[1] ** -0.5)),
        ("causal mask", _windowed(lambda back, w: back < w)),
        ("both sides", _windowed(lambda back, w: np.abs(back) < w)),
        ("window is missing", _windowed(lambda back, w: back >= 0)),
        ("too long", _windowed(lambda back, w: (back >= 0) & (back <= w))),
        ("too short", _windowed(lambda back, w: (back >= 0) & (back < w - 1))),
        ("other way round", _windowed(lambda back, w: (back <= 0) & (back > -w))),
        ("axis", _windowed(_right, axis=0)),
        ("after the softmax", _windowed(_right, after=True)),
        ("score of 0", _windowed(_right, fill=0.0)),
    ],
    "ruler": [
        ("99 %", lambda T, back: (np.eye(T, k=-back), np.eye(T))),
        ("99 %", lambda T, back: (6 * np.eye(T, k=-back), np.eye(T))),
        ("later token", lambda T, back: (99 * np.eye(T, k=back), np.eye(T))),
        ("later token", lambda T, back: (99 * np.eye(T), np.eye(T, k=-back))),
        ("itself", lambda T, back: (99 * np.eye(T), np.eye(T))),
        ("whatever back is", lambda T, back: (99 * np.eye(T, k=-1), np.eye(T))),
        ("off by one", lambda T, back: (99 * np.eye(T, k=-back - 1), np.eye(T))),
        ("one shape", lambda T, back: (99 * np.eye(T, k=-back), np.eye(T)[:, :-1])),
        ("finite", lambda T, back: (np.full((T, T), np.inf), np.eye(T))),
    ],
    "goes_by_position": [
        ("no position", _best(lambda maps: -maps.std(axis=0).mean(axis=(-1, -2)))),
        ("sharpest", _best(lambda maps: maps.max(axis=-1).mean(axis=(0, -1)))),
        ("sharpest", _best(lambda maps: maps[0].max(axis=-1).mean(axis=-1))),
        ("exchanged", lambda maps: _best(_position)(maps)[::-1]),
        ("unravel_index", lambda maps: int(_position(maps).argmax())),
        ("every text", lambda maps: (0, 0)),
    ],
}
