"""Mimetic initialisation: attention that looks pretrained, in closed form and without data."""

import numpy as np

from ..layers import standard_normal
from ..machine import single_threaded_blas

QUERY_KEY = 0.7, 0.7                                      # alpha, beta
VALUE_PROJECTION = 0.4, -0.4


@single_threaded_blas
def mimetic(trunk, seed=0):
    """Set the attention weights of a :class:`minifpt.GPT2` in place, and return the trunk.

    Trockman and Kolter (2023, *Mimetic Initialization of Self-Attention Layers*, arXiv
    2305.09828) observed these products of weights in pretrained transformers and train from
    them::

        W_Q W_K^T    ~  0.7 Z + 0.7 I     a token attends to similar tokens
        W_V W_proj   =  0.4 Z - 0.4 I     and subtracts their values

    with Z normal, variance 1/C.  From the singular value decomposition of a product,
    ``M = U diag(s) V^T``, one factor is ``U diag(sqrt(s))`` and the other ``diag(sqrt(s)) V^T``.

    Each head has its own Z and its own ``W_Q W_K^T``, which has at most rank D = C / H: the D
    largest singular values give the best approximation of that rank.  ``W_V W_proj`` joins all
    heads, so the formula holds exactly.

    The constants are the paper's for images; its changes for language and its sinusoidal
    positions are left out.  Biases are 0; feed-forward, positions and layer norms stay unchanged.
    Each block takes H + 1 decompositions of C x C matrices: an instant for a small trunk, minutes
    for GPT-2's shape.
    """
    C, H = trunk.config.n_embd, trunk.config.n_head
    for i, block in enumerate(trunk.h):
        q, k, v = np.split(block.attn.c_attn.weight.data, 3, axis=1)     # views (C, C)
        for h in range(H):
            columns = np.s_[:, h * (C // H):(h + 1) * (C // H)]
            query, key = factors(C, *QUERY_KEY, seed, f"h.{i}.query_key.{h}")
            q[columns], k[columns] = query[:, :C // H], key[:C // H].T
        v[...], block.attn.c_proj.weight.data[...] = factors(
            C, *VALUE_PROJECTION, seed, f"h.{i}.value_projection")
        block.attn.c_attn.bias.data[...] = block.attn.c_proj.bias.data[...] = 0.0
    return trunk


def factors(C, alpha, beta, seed, name):
    """Return two (C, C) matrices with the product ``alpha Z + beta I``.  The first n columns of
    one and the first n rows of the other give its best approximation of rank n."""
    z = standard_normal((C, C), seed, name).astype(np.float64) / np.sqrt(C)
    u, s, vt = np.linalg.svd(alpha * z + beta * np.eye(C))
    return u * np.sqrt(s), np.sqrt(s)[:, None] * vt
