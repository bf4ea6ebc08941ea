"""Plausible wrong answers to lesson 0: (a word of the hint that fits, the answer)."""

import math

import numpy as np


def _parameters(norms=lambda L: 2 * L + 1, vectors=2, positions=True, biases=True, ends=True,
                frozen=False):
    def answer(n_layer, n_embd, tokens, input_dim, output_dim):
        n = norms(n_layer) * vectors * n_embd + positions * tokens * n_embd
        n += ends * n_embd * (input_dim + output_dim) + ends * biases * (n_embd + output_dim)
        return n + frozen * n_layer * 12 * n_embd ** 2
    return answer


def _right(logits, y):
    return logits.argmax(axis=-1) == y


def _same(x, seen):
    return x[:, None, :, 0] == seen[None, :, :, 0]        # (B, N, T)


def _first(steps, good):
    return steps[np.argmax(good)] if good.any() else math.inf


def _after_last(steps, low):
    first = np.flatnonzero(low)[-1] + 1 if low.any() else 0
    return steps[first] if first < len(steps) else math.inf


WRONG = {
    "parameters_trained": [
        ("trunk's end", _parameters(norms=lambda L: 2 * L)),
        ("two layer norms", _parameters(norms=lambda L: L + 1)),
        ("two layer norms", _parameters(norms=lambda L: L)),
        ("two vectors", _parameters(vectors=1)),
        ("positions", _parameters(positions=False)),
        ("biases", _parameters(biases=False)),
        ("every block", _parameters(norms=lambda L: 0)),
        ("frozen", _parameters(frozen=True)),
        ("output layer are missing", _parameters(ends=False)),
    ],
    "strings_right": [
        ("share of bits", lambda logits, y: _right(logits, y).mean()),
        ("one right bit", lambda logits, y: _right(logits, y).any(axis=1).mean()),
        ("wrong axis", lambda logits, y: _right(logits, y).all(axis=0).mean()),
        ("with a mistake", lambda logits, y: 1 - _right(logits, y).all(axis=1).mean()),
        ("independent", lambda logits, y: _right(logits, y).mean() ** y.shape[1]),
        ("not their share", lambda logits, y: _right(logits, y).all(axis=1).sum()),
        ("signs", lambda logits, y: ((logits[..., 1] > 0) == y).all(axis=1).mean()),
        ("lower", lambda logits, y: (logits.argmin(axis=-1) == y).all(axis=1).mean()),
    ],
    "never_seen": [
        ("other way", lambda x, seen: _same(x, seen).all(axis=-1).any(axis=1)),
        ("two known", lambda x, seen: ~(_same(x, seen)[..., :5].all(axis=-1).any(axis=1)
                                              & _same(x, seen)[..., 5:].all(-1).any(axis=1))),
        ("one of the two", lambda x, seen: ~_same(x, seen)[..., :5].all(axis=-1).any(axis=1)),
        ("all ten bits", lambda x, seen: ~_same(x, seen).any(axis=1).all(axis=1)),
        ("all ten bits", lambda x, seen: ~np.isin(x[..., 0], seen).all(axis=1)),
        ("each training", lambda x, seen: ~_same(x, seen).all(axis=-1).any(axis=0)),
        ("one answer", lambda x, seen: ~_same(x, seen).all(axis=-1)),
        ("numbers of the examples", lambda x, seen: np.flatnonzero(
            ~_same(x, seen).all(axis=-1).any(axis=1))),
    ],
    "steps_to_learn": [
        ("falls below the level again", lambda s, a, level: _first(s, a >= level)),
        ("number of the row", lambda s, a, level: _after_last(np.arange(len(s)), a < level)),
        ("exactly at the level", lambda s, a, level: _after_last(s, a <= level)),
        ("last step below", lambda s, a, level: s[np.flatnonzero(a < level)[-1]]),
        ("has not learned", lambda s, a, level: min(_after_last(s, a < level), s[-1])),
        ("never is", lambda s, a, level: math.inf),
    ],
}
