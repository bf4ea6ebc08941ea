"""Lesson 6, GPT-2 whole."""

import numpy as np
from scipy.special import ndtr

from .. import functional as F
from . import Case, close_to, exercise


@exercise
def gpt2_parameters(rng):
    L, C = int(rng.integers(2, 9)), 8 * int(rng.integers(3, 20))
    # So that no two mistakes give the same number: V is above all multiples of L C here.
    N, V = 16 * int(rng.integers(5, 30)) + 1, 10 * int(rng.integers(500, 900)) + 3
    block = 12 * C * C + 13 * C
    right = (V + N) * C + L * block + 2 * C
    return Case((L, C, N, V), right, {
        "the token table is counted twice: its rows are also the weights of the scores":
            right + V * C,
        "the position table is missing": right - N * C,
        "the token table is missing": right - V * C,
        "the last layer norm is missing": right - 2 * C,
        "the biases of the linear layers are missing (3C, C, 4C and C in each block)":
            right - L * 9 * C,
        "the layer norms of the blocks are missing: two in each, scale and bias":
            right - L * 4 * C,
        "of the layer norms only the scales are counted: each has a bias, too":
            right - L * 2 * C - C,
        "you count the weights alone: the layer norms and the linear layers' biases are missing":
            lambda n: n in (right - L * 13 * C, right - L * 13 * C - 2 * C),
        "one attention matrix is missing: c_attn makes queries, keys and values, and after the "
        "heads comes c_proj": lambda n: n in (right - L * C * C, right - L * (C * C + C)),
        "the feed-forward part has two matrices, (C, 4C) and (4C, C)":
            lambda n: n in (right - L * 4 * C * C, right - L * (4 * C * C + C),
                            right - L * (4 * C * C + 4 * C)),
        "you count a single block: there are n_layer of them": (V + N) * C + block + 2 * C,
    }, rtol=1e-12, about="Write down the shapes of one block, weight and bias of each layer, and "
                         "compare with the names printed in the lesson.")


@exercise
def block_backward(rng):
    B, T, C = (int(n) for n in rng.choice([2, 3, 4, 5, 6], 3, replace=False))
    wa, wm = rng.standard_normal((2, C, C))
    dy = rng.standard_normal((B, T, C))

    def a_backward(d):
        return d @ wa

    def m_backward(d):
        return d @ wm

    du = dy + m_backward(dy)
    return Case((dy, a_backward, m_backward), du + a_backward(du), {
        "both residual connections are forgotten: the stream also runs past each part":
            a_backward(m_backward(dy)),
        "the outer residual connection is forgotten: du also runs past attention": a_backward(du),
        "the inner residual connection is forgotten: what arrives also runs past the feed-forward "
        "part":
            m_backward(dy) + a_backward(m_backward(dy)),
        "attention gets what arrived at the block: on the way back the feed-forward part comes "
        "first, and attention gets du": du + a_backward(dy),
        "the order is the forward pass's: the way back starts with the part that ran last":
            (dy + a_backward(dy)) + m_backward(dy + a_backward(dy)),
        "that leads back through the feed-forward part only: attention is left": du,
        "the gradient that runs past attention is du, not what arrived at the block":
            dy + a_backward(du),
    })


@exercise
def gelu_exact_backward(rng):
    x = 1.5 * rng.standard_normal((3, 4))
    dy = rng.standard_normal((3, 4))
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return Case((dy, x), dy * (ndtr(x) + x * density), {
        "half of the product rule: x stands inside Φ, too": dy * ndtr(x),
        "half of the product rule: the derivative of x itself, 1, times Φ, is missing":
            dy * x * density,
        "the chain rule: what arrives, dy, is forgotten": ndtr(x) + x * density,
        "the second term has lost its factor x": dy * (ndtr(x) + density),
        "the density lacks its constant 1 / sqrt(2 pi)":
            dy * (ndtr(x) + x * density * np.sqrt(2 * np.pi)),
        "the density is exp(-x^2 / 2): the 2 is missing":
            dy * (ndtr(x) + x * np.exp(-x * x) / np.sqrt(2 * np.pi)),
        "that is the derivative of the approximation with tanh: close, but not the same":
            F.gelu_backward(dy, F.ActivationCache(x)),
        "that is the forward pass times dy": dy * x * ndtr(x),
        "the second term has the wrong sign": dy * (ndtr(x) - x * density),
    })


@exercise
def c_attn_from_three(rng):
    C = int(rng.integers(4, 8))
    q, k, v = rng.standard_normal((3, C, C))

    def joined(*parts):
        return np.concatenate(parts, axis=1)

    return Case((q, k, v), joined(q.T, k.T, v.T), {
        "not transposed: PyTorch keeps (out, in), GPT-2 multiplies from the right, (in, out). The "
        "shape is right, so the loader would not notice": joined(q, k, v),
        "stacked along the rows: each input channel has one row, with what it adds to queries, "
        "keys and values side by side": lambda w: np.shape(w) == (3 * C, C),
        "queries and keys are exchanged": joined(k.T, q.T, v.T),
        "the order is query, key, value": close_to(*(joined(*p) for p in (
            (q.T, v.T, k.T), (v.T, k.T, q.T), (k.T, v.T, q.T), (v.T, q.T, k.T)))),
        "the columns are interleaved: first all queries, then all keys, then all values":
            np.stack([q.T, k.T, v.T], axis=-1).reshape(C, 3 * C),
        "reshaped, not joined: the numbers of one matrix have run into the rows of another":
            close_to(*(np.reshape(a, (C, 3 * C)) for a in ([q, k, v], [q.T, k.T, v.T]))),
        "three matrices on a new axis: join them along one that they have":
            lambda w: np.ndim(w) == 3,
    })


@exercise
def parts_to_spare(rng):
    n, k = int(rng.integers(9, 13)), 4
    cost = rng.uniform(0.5, 1.0, n)                       # of each part by itself
    order = rng.permutation(np.arange(1, n - 1))
    twins = order[:k]                                     # two pairs that stand in for each other
    cost[twins] = rng.uniform(0.01, 0.02, k)
    cost[order[k]] = rng.uniform(0.12, 0.15)
    cost[[0, n - 1]] = rng.uniform(0.08, 0.1, 2)          # the first and the last are never missed
    known = {}

    def loss_without(parts):
        parts = frozenset(int(p) for p in parts)
        if not parts <= set(range(n)):
            raise ValueError(f"loss_without: parts are whole numbers from 0 to {n - 1}, got "
                             f"{sorted(parts)}")
        pairs = sum({int(a), int(b)} <= parts for a, b in (twins[:2], twins[2:4]))
        known[parts] = 1.0 + sum(cost[list(parts)]) + 3.0 * pairs
        return known[parts]

    greedy = []
    for _ in range(k):
        greedy.append(min(set(range(n)) - set(greedy), key=lambda i: loss_without([*greedy, i])))
    good = loss_without(greedy)
    alone = sorted(range(n), key=lambda i: cost[i])

    def parts_of(out):
        return [int(i) for i in out]

    def right(out):
        parts = parts_of(out)
        return len(parts) == len(set(parts)) == k and loss_without(parts) <= good + 1e-9

    return Case((loss_without, n, k), right, {
        "the same part is there twice": lambda out: len(set(parts_of(out))) < len(parts_of(out)),
        "return k parts, neither more nor fewer": lambda out: len(parts_of(out)) != k,
        "those are the parts that cost most: a small loss is wanted":
            lambda out: set(parts_of(out)) == set(alone[-k:]),
        "each of these is cheap when it alone is cut, but two of them stand in for each other: cut "
        "both and nothing does their work. Ask for the loss of the whole set":
            lambda out: set(parts_of(out)) == set(alone[:k]),
        "there is a cheaper set, found by adding one part at a time, each time the one that costs "
        "least together with those already cut": lambda out: loss_without(parts_of(out)) > good,
    }, about="Return a list of part numbers.")
