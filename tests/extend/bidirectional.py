"""A GPT-2 in which each token attends to all of them, as in an encoder.

    minifpt train bit-xor --model bidirectional.py:make_trunk

Pretrained weights look both ways after ``for block in trunk.h: block.attn.causal = False``.
"""

import numpy as np

import minifpt


def make_trunk(seed=0, dropout=0.0, dtype=np.float32):
    """What ``--model bidirectional.py:make_trunk`` asks for."""
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=256,
                                dropout=dropout, causal=False)
    return minifpt.GPT2(config, seed, dtype)
