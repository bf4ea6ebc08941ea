"""Plausible wrong answers to lesson 8: (a word of the hint that fits, the answer)."""

import math

import numpy as np


def _agree(strings, least=None, among=None):
    n = strings - 1 if among is None else among(strings)
    k = n // 2 if least is None else least(n)
    return sum(math.comb(n, i) for i in range(k, n + 1)) / 2 ** n


def _level(**how):
    return lambda strings, masked: 1 - masked + masked * _agree(strings, **how)


def _on(A, which, strings, looks=None, seen=None):
    """(B, P, H): attention at pairs of tokens."""
    P = A.shape[-1] // (strings + 1)
    n, p = np.arange(len(A))[:, None], np.arange(P)
    rows = strings * P + p if looks is None else looks(n, p, P)
    columns = which[:, None] * P + p if seen is None else seen(n, p, P)
    return A[n, :, rows, columns]


def _whole(A, which, strings):
    P = A.shape[-1] // (strings + 1)
    return np.mean([A[i, :, strings * P:, k * P:(k + 1) * P].sum(axis=-1).mean(axis=-1)
                    for i, k in enumerate(which)], axis=0)


def _mine(y, head, n_head):
    D = y.shape[-1] // n_head
    return slice(head * D, (head + 1) * D)


def _put(value, where=_mine):
    def answer(y, head, n_head):
        out, at = y.copy(), where(y, head, n_head)
        out[..., at] = value(y[..., at])
        return out
    return answer


def _all_but(y, head, n_head):
    out = np.broadcast_to(y.mean(axis=(0, 1)), y.shape).copy()
    out[..., _mine(y, head, n_head)] = y[..., _mine(y, head, n_head)]
    return out


def _sorted(a, b):
    return (a, b) if np.mean(a) > np.mean(b) else (b, a)


def _gap(measure):
    def answer(a, b):
        a, b = (a, b) if measure(a) > measure(b) else (b, a)
        return a.min() - b.max()
    return answer


WRONG = {
    "vote_level": [
        ("masked bits alone", lambda strings, masked: _agree(strings)),
        ("exchanged", lambda strings, masked: masked + (1 - masked) * _agree(strings)),
        ("guessing", lambda strings, masked: 1 - masked / 2),
        ("votes, too: with", _level(least=lambda n: n // 2 + 1)),
        ("not all of the others", lambda strings, masked: 1 - masked + masked / 2 ** (strings - 1)),
        ("is certain", _level(among=lambda s: s, least=lambda n: n // 2)),
        ("share that you are given", lambda strings, masked: 0.5 + 0.5 * _agree(strings)),
        ("not a percentage", lambda strings, masked: 100 * _level()(strings, masked)),
    ],
    "copy_share": [
        ("whole right string", _whole),
        ("sum over the asked tokens instead", lambda *a: _on(*a).sum(axis=1).mean(axis=0)),
        ("sum over the examples", lambda *a: _on(*a).mean(axis=1).sum(axis=0)),
        ("exchanged", lambda A, *a: _on(A.swapaxes(-1, -2), *a).mean(axis=(0, 1))),
        ("same in both", lambda A, which, strings: _whole(A, which, strings) / (
            A.shape[-1] // (strings + 1))),
        ("its own", lambda A, which, strings: _on(A, 0 * which, strings).mean(axis=(0, 1))),
        ("times P", lambda A, which, strings: _on(
            A, which, strings, seen=lambda n, p, P: which[:, None] + p).mean(axis=(0, 1))),
        ("one of the asked", lambda *a: _on(*a)[:, -1].mean(axis=0)),
        ("for each head", lambda *a: _on(*a).mean()),
        ("each head", lambda *a: _on(*a).mean(axis=(0, 2))),
        ("mean over it", lambda *a: _on(*a).mean(axis=1)),
    ],
    "say_the_mean": [
        ("mute", _put(lambda v: 0.0)),
        ("own mean", _put(lambda v: v.mean())),
        ("still depends", _put(lambda v: v.mean(axis=-1, keepdims=True))),
        ("examples only", _put(lambda v: v.mean(axis=0))),
        ("tokens only", _put(lambda v: v.mean(axis=1, keepdims=True))),
        ("side by side", _put(lambda v: v.mean(axis=(0, 1)), lambda y, h, n: slice(h, None, n))),
        ("side by side", _put(lambda v: v.mean(axis=(0, 1)), lambda y, h, n: slice(h, h + 1))),
        ("all heads but", _all_but),
        ("only this one should", lambda y, head, n_head: np.broadcast_to(
            y.mean(axis=(0, 1)), y.shape)),
        ("return all channels", lambda y, head, n_head: y[..., _mine(y, head, n_head)]),
    ],
    "gap": [
        ("means", lambda a, b: abs(a.mean() - b.mean())),
        ("means", lambda a, b: a.mean() - b.mean()),
        ("medians", lambda a, b: np.median(a) - np.median(b)),
        ("either of the two", lambda a, b: a.min() - b.max()),
        ("either of the two", lambda a, b: b.min() - a.max()),
        ("higher mean", _gap(np.median)),
        ("higher mean", _gap(np.sum)),
        ("higher mean", _gap(np.max)),
        ("higher mean", _gap(np.min)),
        ("higher mean", _gap(lambda runs: runs.min() + runs.max())),
        ("higher mean", _gap(lambda runs: runs[0])),
        ("higher mean", lambda a, b: max(a.min() - b.max(), b.min() - a.max())),
        ("take its worst", lambda a, b: _sorted(a, b)[0].max() - _sorted(a, b)[1].max()),
        ("not with its worst", lambda a, b: _sorted(a, b)[0].min() - _sorted(a, b)[1].min()),
        ("keep the sign", lambda a, b: max(0.0, _gap(np.mean)(a, b))),
        ("True or False", lambda a, b: bool(_gap(np.mean)(a, b) > 0)),
    ],
}
