"""Plausible wrong answers to lesson 17: (a word of the hint that fits, the answer)."""

import numpy as np


def _scores(low=lambda i, j, w: max(0, i - w + 1), rows=lambda i, j, tile: j - i,
            last=lambda i, j: j, stop=lambda T, tile: T):
    def answer(T, tile, w):
        total = 0
        for i in range(0, stop(T, tile), tile):
            j = min(i + tile, T)
            total += rows(i, j, tile) * (last(i, j) - low(i, j, w))
        return total
    return answer


def _first(a, b, c, d):
    return 2 * a * b * c + 2 * a * c * d


def _second(a, b, c, d):
    return 2 * b * c * d + 2 * a * b * d


def _by(rule):
    """(A B) C where a rule says so."""
    return lambda *n: _first(*n) if rule(*n) else _second(*n)


def _limits(o, m, n, p, w, c):
    return np.array([o / p, m / w, n * c])


WRONG = {
    "scale_intensity": [
        ("how many bytes", lambda N, C, e: N * C / (2 * N * C + C)),
        ("they have bytes_each", lambda N, C, e: N * C / (4 * (2 * N * C + C))),
        ("w is read, too", lambda N, C, e: 1 / (2 * e)),
        ("read once", lambda N, C, e: 1 / (3 * e)),
        ("y is written, too", lambda N, C, e: N * C / (e * (N * C + C))),
        ("nothing is added", lambda N, C, e: 2 * N * C / (e * (2 * N * C + C))),
        ("other way round", lambda N, C, e: e * (2 * N * C + C) / (N * C)),
        ("number of bytes", lambda N, C, e: e * (2 * N * C + C)),
        ("number of operations", lambda N, C, e: N * C),
        ("there are n rows", lambda N, C, e: N * C / (e * (2 * N * C + N))),
    ],
    "fewest_operations": [
        ("dearer", _first),
        ("dearer", _second),
        ("dearer", lambda *n: max(_first(*n), _second(*n))),
        ("twice as many", lambda *n: min(_first(*n), _second(*n)) // 2),
        ("count both", lambda a, b, c, d: min(2 * a * b * c, 2 * b * c * d)),
        ("rows of A", lambda a, b, c, d: 2 * a * b * c + 2 * b * c * d),
        ("rows of A", lambda a, b, c, d: 2 * a * b * c + 2 * a * b * d),
        ("add their operations", lambda a, b, c, d: 2 * a * b * c * d),
        ("not a name", lambda a, b, c, d: "left"),
        ("dearer", _by(lambda a, b, c, d: a * c < b * d)),
        ("dearer", _by(lambda a, b, c, d: a + c < b + d)),
        ("dearer", _by(lambda a, b, c, d: min(a, c) < min(b, d))),
        ("dearer", _by(lambda a, b, c, d: max(a, c) < max(b, d))),
        ("dearer", _by(lambda a, b, c, d: a < d)),
        ("dearer", _by(lambda a, b, c, d: c < b)),
        ("dearer", _by(lambda a, b, c, d: a < c)),
        ("dearer", _by(lambda a, b, c, d: a * b < c * d)),
        ("dearer", _by(lambda a, b, c, d: max(a * b * c, a * c * d) < max(b * c * d, a * b * d))),
        ("dearer", _by(lambda a, b, c, d: a * b * c < b * c * d)),
        ("twice as many", lambda *n: min(_first(*n), _second(*n)) / 2),
        ("count both", lambda a, b, c, d: 2 * a * b * c),
        ("count both", lambda a, b, c, d: 2 * a * c * d),
        ("add their operations", lambda a, b, c, d: a * b * c * d),
        ("not a name", lambda *n: "A (B C)" if _second(*n) < _first(*n) else "(A B) C"),
    ],
    "windowed_scores": [
        ("window is not used", _scores(lambda i, j, w: 0)),
        ("whole rectangle", lambda T, tile, w: sum(min(t + 1, w) for t in range(T))),
        ("every score", lambda T, tile, w: T * T),
        ("w - 1 before it", _scores(lambda i, j, w: max(0, i - w))),
        ("w - 1 before it", _scores(lambda i, j, w: max(0, i - w + 2))),
        ("before token 0", _scores(lambda i, j, w: i - w + 1)),
        ("fewer queries", _scores(rows=lambda i, j, tile: tile)),
        ("last tile is missing", _scores(stop=lambda T, tile: T // tile * tile)),
        ("not that of its last", _scores(lambda i, j, w: max(0, j - w))),
        ("own keys", _scores(last=lambda i, j: i)),
    ],
    "predict": [
        ("one time for each", lambda *a: _limits(*a).max(axis=0).sum()),
        ("not a time", lambda o, m, n, p, w, c: o * p + m * w),
        ("arithmetic is not", lambda *a: _limits(*a)[1:].max(axis=0)),
        ("bytes are not", lambda *a: _limits(*a)[::2].max(axis=0)),
        ("calls are not", lambda *a: _limits(*a)[:2].max(axis=0)),
        ("calls are not", lambda *a: _limits(*a)[:2].sum(axis=0)),
        ("fastest limit", lambda *a: _limits(*a).min(axis=0)),
        ("mean of the limits", lambda *a: _limits(*a).mean(axis=0)),
        ("only one of the three", lambda *a: _limits(*a)[0]),
        ("faster than their slowest", lambda *a: 0.9 * _limits(*a).max(axis=0)),
        ("slower than arithmetic", lambda *a: 1.1 * _limits(*a).sum(axis=0)),
    ],
}
