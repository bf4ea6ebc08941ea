"""A GPT-2 with an activation of your own: SiLU, ``y = x * s`` with ``s = 1 / (1 + exp(-x))``.

    minifpt train bit-xor --model silu.py:make_trunk
"""

import numpy as np

import minifpt
from minifpt.layers import ACTIVATIONS


def silu(x):
    """x (...) -> y (...)."""
    s = 0.5 * (1.0 + np.tanh(0.5 * x))                    # the same s, and it never overflows
    return x * s, (x, s)


def silu_backward(dy, cache):
    """``dx = dy * (s + x s (1 - s))``, as ``ds/dx = s (1 - s)``."""
    x, s = cache
    return dy * (s + x * s * (1.0 - s))


def make_trunk(seed=0, dropout=0.0, dtype=np.float32):
    """What ``--model silu.py:make_trunk`` asks for."""
    ACTIVATIONS["my_silu"] = silu, silu_backward
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=256,
                                dropout=dropout, activation_function="my_silu")
    return minifpt.GPT2(config, seed, dtype)
