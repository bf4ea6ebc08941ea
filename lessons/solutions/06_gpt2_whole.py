"""Solutions of lesson 6, GPT-2 whole.  Run the file to have them checked."""

import numpy as np
from scipy.special import ndtr

from minifpt.exercises import check


def gpt2_parameters(n_layer, n_embd, n_positions, vocab_size):
    """Heads share the same matrices; their number changes no size."""
    C = n_embd
    attention = (C * 3 * C + 3 * C) + (C * C + C)
    feed_forward = (C * 4 * C + 4 * C) + (4 * C * C + C)
    norm = 2 * C
    return (vocab_size + n_positions) * C + n_layer * (attention + feed_forward + 2 * norm) + norm


def block_backward(dy, a_backward, m_backward):
    """Two forks, the last one first."""
    du = dy + m_backward(dy)
    return du + a_backward(du)


def gelu_exact_backward(dy, x):
    """The product rule: x changes at rate 1, and Φ(x) at the rate of the density."""
    return dy * (ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def c_attn_from_three(wq, wk, wv):
    """The loader would see a result of shape (3C, C) and no other mistake: a part that is
    transposed or exchanged has the right shape."""
    return np.concatenate([wq.T, wk.T, wv.T], axis=1)


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


if __name__ == "__main__":
    for solution in (gpt2_parameters, block_backward, gelu_exact_backward, c_attn_from_three,
                     parts_to_spare):
        check(solution.__name__, solution)
