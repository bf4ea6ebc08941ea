"""Plausible wrong answers to lesson 6: (a word of the hint that fits, the answer)."""

import numpy as np
from scipy.special import ndtr

from minifpt import functional as F


def _count(heads=1, bias=9, norms=4, last=2, matrices=12, positions=1):
    def answer(L, C, N, V):
        block = matrices * C * C + (bias + norms) * C
        return (heads * V + positions * N) * C + L * block + last * C
    return answer


def _density(x):
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _joined(*parts):
    return np.concatenate(parts, axis=1)


def _alone(loss_without, n):
    return sorted(range(n), key=lambda i: loss_without([i]))


def _inner_forgotten(dy, a, m):
    return m(dy) + a(m(dy))


def _wrong_order(dy, a, m):
    du = dy + a(dy)
    return du + m(du)


def _attention_gets_dy(dy, a, m):
    return dy + m(dy) + a(dy)


WRONG = {
    "gpt2_parameters": [
        ("twice", _count(heads=2)),
        ("position table", _count(positions=0)),
        ("token table is missing", _count(heads=0)),
        ("last layer norm", _count(last=0)),
        ("biases of the linear", _count(bias=0)),
        ("layer norms of the blocks", _count(norms=0)),
        ("only the scales", _count(norms=2, last=1)),
        ("weights alone", _count(bias=0, norms=0)),
        ("weights alone", _count(bias=0, norms=0, last=0)),
        ("one attention matrix", _count(matrices=11, bias=8)),
        ("two matrices", _count(matrices=8, bias=8)),
        ("single block", lambda L, C, N, V: _count()(1, C, N, V)),
    ],
    "block_backward": [
        ("both residual", lambda dy, a, m: a(m(dy))),
        ("outer residual", lambda dy, a, m: a(dy + m(dy))),
        ("inner residual", _inner_forgotten),
        ("du", _attention_gets_dy),
        ("order is the forward", _wrong_order),
        ("attention is left", lambda dy, a, m: dy + m(dy)),
        ("runs past attention", lambda dy, a, m: dy + a(dy + m(dy))),
    ],
    "gelu_exact_backward": [
        ("inside", lambda dy, x: dy * ndtr(x)),
        ("derivative of x itself", lambda dy, x: dy * x * _density(x)),
        ("what arrives", lambda dy, x: ndtr(x) + x * _density(x)),
        ("factor x", lambda dy, x: dy * (ndtr(x) + _density(x))),
        ("constant", lambda dy, x: dy * (ndtr(x) + x * np.exp(-x * x / 2))),
        ("2 is missing", lambda dy, x: dy * (ndtr(x) + x * np.exp(-x * x) / np.sqrt(2 * np.pi))),
        ("tanh", lambda dy, x: F.gelu_backward(dy, F.ActivationCache(x))),
        ("forward pass", lambda dy, x: dy * x * ndtr(x)),
        ("wrong sign", lambda dy, x: dy * (ndtr(x) - x * _density(x))),
    ],
    "c_attn_from_three": [
        ("not transposed", _joined),
        ("along the rows", lambda q, k, v: np.concatenate([q.T, k.T, v.T])),
        ("queries and keys", lambda q, k, v: _joined(k.T, q.T, v.T)),
        ("order", lambda q, k, v: _joined(v.T, k.T, q.T)),
        ("interleaved", lambda q, k, v: np.stack([q.T, k.T, v.T], axis=-1).reshape(len(q), -1)),
        ("reshaped", lambda q, k, v: np.stack([q, k, v]).reshape(len(q), -1)),
        ("new axis", lambda q, k, v: np.stack([q.T, k.T, v.T])),
    ],
    "parts_to_spare": [
        ("stand in", lambda f, n, k: _alone(f, n)[:k]),
        ("cost most", lambda f, n, k: _alone(f, n)[-k:]),
        ("neither more", lambda f, n, k: _alone(f, n)[:k - 1]),
        ("twice", lambda f, n, k: [_alone(f, n)[0]] * k),
        ("cheaper set", lambda f, n, k: _alone(f, n)[-k - 1:-1]),
        ("neither more", lambda f, n, k: _alone(f, n)[:k + 1]),
        ("neither more", lambda f, n, k: list(range(n))),
        ("neither more", lambda f, n, k: []),
        ("list of part numbers", lambda f, n, k: f([0])),
    ],
}
