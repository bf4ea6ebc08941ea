"""Solutions of lesson 6, GPT-2 whole.  Run the file to have them checked."""

import numpy as np
from scipy.special import ndtr

from minifpt import functional as F
from minifpt.exercises import Case, check_solutions, exercise


def gpt2_parameters(n_layer, n_embd, n_positions, vocab_size):
    """Heads share the same matrices; their number changes no size."""
    C = n_embd
    attention = (C * 3 * C + 3 * C) + (C * C + C)
    feed_forward = (C * 4 * C + 4 * C) + (4 * C * C + C)
    norm = 2 * C
    block = attention + feed_forward + 2 * norm
    return (vocab_size + n_positions) * C + n_layer * block + norm


@exercise(gpt2_parameters, {
    "the token table is counted twice: its rows are also the weights of the scores":
        "vocab_size + n_positions -> 2 * vocab_size + n_positions",
    "the position table is missing": "vocab_size + n_positions -> vocab_size",
    "the token table is missing": "vocab_size + n_positions -> n_positions",
    "the last layer norm is missing": "_ + n_layer * block + norm -> _ + n_layer * block",
    "the last layer norm has a bias, too": "_ + n_layer * block + norm -> _ + n_layer * block + C",
    "C numbers too many in each block: count its biases again": "block = _ -> block = _ + C",
    "the biases of the linear layers are missing (3C, C, 4C and C in each block)":
        "block = _ -> block = _ - 9 * C",
    "4C numbers of each block are missing: the scales and biases of its two layer norms, or the "
    "biases of c_attn and c_proj": "_ + 2 * norm -> _",
    "2C numbers of each block are missing: one of its two layer norms, or two thirds of the bias "
    "of c_attn": "_ + 2 * norm -> _ + norm",
    "a bias has as many numbers as its layer has outputs: 3C for c_attn and 4C for c_fc":
        [("C * 3 * C + 3 * C -> C * 3 * C + C", "C * 4 * C + 4 * C -> C * 4 * C + C"),
         "C * 4 * C + 4 * C -> C * 4 * C + C"],
    "of the layer norms only the scales are counted: each has a bias, too": "norm = _ -> norm = C",
    "you count the weights alone: the layer norms and the linear layers' biases are missing": [
        "block = _ -> block = _ - 13 * C", "block = _ -> block = _ - 13 * C; norm = 0"],
    "one attention matrix is missing: c_attn makes queries, keys and values, and after the heads "
    "comes c_proj": ["_ + (C * C + C) -> _", "C * C + C -> C"],
    "the feed-forward part has two matrices, (C, 4C) and (4C, C)": [
        "_ + (4 * C * C + C) -> _", "4 * C * C + C -> C", "_ + (4 * C * C + C) -> _ - 3 * C"],
    "you count a single block: there are n_layer of them": "n_layer * block -> block",
}, about="Write down the shapes of one block, weight and bias of each layer.", rtol=1e-12)
def _(rng):
    # So that no two mistakes give the same number: V is above all multiples of L C here.
    yield (int(rng.integers(2, 9)), 8 * int(rng.integers(3, 20)), 16 * int(rng.integers(5, 30)) + 1,
           10 * int(rng.integers(500, 900)) + 3)


def block_backward(dy, a_backward, m_backward):
    """Two forks, the last one first."""
    du = dy + m_backward(dy)
    return du + a_backward(du)


@exercise(block_backward, {
    "both residual connections are forgotten: the stream also runs past each part":
        "return _ -> return a_backward(m_backward(dy))",
    "one path past both parts is not enough: the stream runs past each of them":
        "return _ -> return dy + a_backward(m_backward(dy))",
    "the outer residual connection is forgotten: du also runs past attention":
        "du + a_backward(du) -> a_backward(du)",
    "the inner residual connection is forgotten: what arrives also runs past the feed-forward part":
        "dy + m_backward(dy) -> m_backward(dy)",
    "attention gets what arrived at the block: on the way back the feed-forward part comes first, "
    "and attention gets du": "a_backward(du) -> a_backward(dy)",
    "the order is the forward pass's: the way back starts with the part that ran last":
        ("m_backward(dy) -> a_backward(dy)", "a_backward(du) -> m_backward(du)"),
    "that leads back through the feed-forward part only: attention is left":
        "du + a_backward(du) -> du",
    "what runs past attention is du, not dy": [
        "du + a_backward(du) -> dy + a_backward(du)",
        "du + a_backward(du) -> m_backward(dy) + a_backward(du)"],
    "attention gets all of du, with what ran past the feed-forward part":
        "a_backward(du) -> a_backward(m_backward(dy))",
})
def _(rng):
    B, T, C = (int(n) for n in rng.choice([2, 3, 4, 5, 6], 3, replace=False))
    wa, wm = rng.standard_normal((2, C, C))
    yield rng.standard_normal((B, T, C)), lambda d: d @ wa, lambda d: d @ wm


def gelu_exact_backward(dy, x):
    """The product rule: x changes at rate 1, and Φ(x) at the rate of the density."""
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return dy * (ndtr(x) + x * density)


@exercise(gelu_exact_backward, {
    "half of the product rule: x stands inside Φ, too": "ndtr(x) + x * density -> ndtr(x)",
    "half of the product rule: 1 times Φ is missing": "ndtr(x) + x * density -> x * density",
    "the chain rule: what arrives, dy, is forgotten": "dy * _ -> _",
    "the second term has lost its factor x": "x * density -> density",
    "the density lacks its constant 1 / sqrt(2 pi)": "_ / np.sqrt(2 * np.pi) -> _",
    "the density is exp(-x^2 / 2): the 2 is missing": "-x * x / 2 -> -x * x",
    "that is the derivative of the approximation with tanh: close, but not the same":
        lambda dy, x: F.gelu_backward(dy, F.ActivationCache(x)),
    "that is the forward pass times dy": "ndtr(x) + x * density -> x * ndtr(x)",
    "the second term has the wrong sign": "_ + x * density -> _ - x * density",
})
def _(rng):
    yield rng.standard_normal((3, 4)), 1.5 * rng.standard_normal((3, 4))


def c_attn_from_three(wq, wk, wv):
    """The loader would see a result of shape (3C, C) and no other mistake: a part that is
    transposed or exchanged has the right shape."""
    return np.concatenate([wq.T, wk.T, wv.T], axis=1)


JOINED = "np.concatenate([wq.T, wk.T, wv.T], axis=1) -> "


@exercise(c_attn_from_three, {
    "not transposed: PyTorch keeps (out, in), GPT-2 multiplies from the right, (in, out). The "
    "shape is right, so the loader would not notice":
        JOINED + "np.concatenate([wq, wk, wv], axis=1)",
    "stacked along the rows: each input channel has one row, with what it adds to queries, keys "
    "and values side by side": [
        JOINED + "np.concatenate([wq.T, wk.T, wv.T])", JOINED + "np.concatenate([wq, wk, wv])"],
    "queries and keys are exchanged": "[_, _1, _2] -> [_1, _, _2]",
    "the order is query, key, value": [f"[_1, _2, _3] -> [{order}]" for order in (
            "_1, _3, _2", "_3, _2, _1", "_2, _3, _1", "_3, _1, _2")],
    "the columns are interleaved: first all queries, then all keys, then all values":
        JOINED + "np.stack([wq.T, wk.T, wv.T], axis=-1).reshape(len(wq), -1)",
    "reshaped, not joined: the numbers of one matrix have run into the rows of another": [
        JOINED + "np.reshape([wq, wk, wv], (len(wq), -1))",
        JOINED + "np.reshape([wq.T, wk.T, wv.T], (len(wq), -1))"],
    "three matrices on a new axis: join them along one that they have": [
        JOINED + "np.stack([wq.T, wk.T, wv.T])", JOINED + "np.stack([wq, wk, wv])"],
})
def _(rng):
    C = int(rng.integers(4, 8))
    yield (*rng.standard_normal((3, C, C)),)


def parts_to_spare(loss_without, n, k):
    """Greedy: n + (n - 1) + ... calls.  Not always the best set, but not fooled by two parts that
    stand in for each other.  On a text without line breaks our model is lost after some seventy
    bytes, where a book's line ends.  Then the cheapest part is h.1.attn, and without it the loss
    even falls: perhaps it is what looks for the last line break."""
    parts = []
    for _ in range(k):
        left = [i for i in range(n) if i not in parts]
        parts.append(min(left, key=lambda i: loss_without([*parts, i])))
    return parts


ALONE = "return parts -> alone = sorted(range(n), key=lambda i: loss_without([i])); return "


# Any set that costs as little is right: the case says what is wrong with others.
@exercise(parts_to_spare, refused={
    "stand in": ALONE + "alone[:k]",
    "cost most": ALONE + "alone[-k:]",
    "neither more": [ALONE + parts for parts in ("alone[:k - 1]", "alone[:k + 1]", "alone", "[]")],
    "twice": ALONE + "alone[:1] * k",
    "cheaper set": ALONE + "alone[-k - 1:-1]",
    "list of part numbers": "return parts -> return loss_without([0])",
})
def _(rng):
    n, k = int(rng.integers(9, 13)), 4
    cost = rng.uniform(0.5, 1.0, n)                       # of each part by itself
    order = rng.permutation(np.arange(1, n - 1))
    twins = order[:k]                                     # two pairs that stand in for each other
    cost[twins] = rng.uniform(0.01, 0.02, k)
    cost[order[k]] = rng.uniform(0.12, 0.15)
    cost[[0, n - 1]] = rng.uniform(0.08, 0.1, 2)          # the first and the last are never missed

    def loss_without(parts):
        parts = frozenset(int(p) for p in parts)
        if not parts <= set(range(n)):
            raise ValueError(f"loss_without: parts are whole numbers from 0 to {n - 1}, got "
                             f"{sorted(parts)}")
        pairs = sum({int(a), int(b)} <= parts for a, b in (twins[:2], twins[2:4]))
        return 1.0 + sum(cost[list(parts)]) + 3.0 * pairs

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

    yield Case((loss_without, n, k), right, {
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


if __name__ == "__main__":
    check_solutions(globals())
