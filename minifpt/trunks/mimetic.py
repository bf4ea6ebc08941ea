"""Mimetic initialisation: attention that looks pretrained, in closed form and without data."""

import numpy as np

from ..layers import standard_normal

QUERY_KEY = 0.7, 0.7                                      # alpha, beta
VALUE_PROJECTION = 0.4, -0.4


def mimetic(trunk, seed=0):
    """Set the attention weights of a :class:`minifpt.GPT2`, in place; returns the trunk.

    After Trockman and Kolter 2023 (*Mimetic Initialization of Self-Attention Layers*, arXiv
    2305.09828), who saw these products of weights in pretrained transformers and train from
    them::

        W_Q W_K^T    ~  0.7 Z + 0.7 I     so that a token attends to those like itself
        W_V W_proj   =  0.4 Z - 0.4 I     so that what it finds there is taken off

    with Z normal, variance 1/C.  For a product M of singular values ``M = U diag(s) V^T``, the
    one factor is ``U diag(sqrt(s))`` and the other one ``diag(sqrt(s)) V^T``.

    With several heads each has a Z and a ``W_Q W_K^T`` of its own, which has rank D = C / H only:
    the D largest singular values are kept, which is as close to the formula as that rank allows.
    ``W_V W_proj`` is over all heads together, the formula holds exactly.

    The constants are those for images.  What the paper changes for language is not taken over,
    nor are its sinusoidal positions.  Biases are 0; feed-forward, positions and layer norms stay
    as they are.  The singular values of a C x C matrix are computed H + 1 times in each block:
    at once for a small trunk, minutes for GPT-2's shape.
    """
    C, H = trunk.config.n_embd, trunk.config.n_head
    for i, block in enumerate(trunk.h):
        q, k, v = np.split(block.attn.c_attn.weight.data, 3, axis=1)     # views (C, C)
        for h in range(H):
            of_head = np.s_[:, h * (C // H):(h + 1) * (C // H)]
            left, right = factors(C, *QUERY_KEY, seed, f"h.{i}.query_key.{h}")
            q[of_head], k[of_head] = left[:, :C // H], right[:C // H].T
        v[...], block.attn.c_proj.weight.data[...] = factors(
            C, *VALUE_PROJECTION, seed, f"h.{i}.value_projection")
        block.attn.c_attn.bias.data[...] = block.attn.c_proj.bias.data[...] = 0.0
    return trunk


def factors(C, alpha, beta, seed, name):
    """Two (C, C) matrices with the product ``alpha Z + beta I``; the first n columns of the one
    and rows of the other give its best approximation of rank n."""
    z = standard_normal((C, C), seed, name).astype(np.float64) / np.sqrt(C)
    u, s, vt = np.linalg.svd(alpha * z + beta * np.eye(C))
    return u * np.sqrt(s), np.sqrt(s)[:, None] * vt
