"""The calls by which a reader's form of each function of ``functional`` is judged."""

import numpy as np


def questions(op, rng):
    """[(inputs, options)] of a few calls of an operation; no two axes are equal but where a
    mistake shows only there.  The option ``rng`` is a seed."""
    n, seed = rng.standard_normal, int(rng.integers(1 << 30))
    qkv, ids = n((2, 4, 18)), rng.permutation([[0, 5, 3], [3, 1, 3]], axis=1)
    return {
        "linear": lambda: [((n((2, 3, 5)), n((5, 4)), n(4)), {}),
                           ((n((3, 4)), n((4, 4)), n(4)), {})],
        "embedding": lambda: [((ids, n((7, 4))), {})],
        "unembedding": lambda: [((n((2, 3, 4)), n((5, 4))), {})],
        "positions": lambda: [((n((2, 3, 4)), n((7, 4))), {"start": 2}),
                              ((n((2, 3, 4)), n((7, 4))), {})],
        "layer_norm": lambda: [((3 + n((2, 3, 5)), n(5), n(5)), {"eps": 0.3}),
                               ((0.01 * n((3, 5)), n(5), n(5)), {})],
        "gelu": lambda: [((2 * n((3, 4)),), {})], "gelu_exact": lambda: [((2 * n((3, 4)),), {})],
        "relu": lambda: [((np.copysign(np.abs(n((3, 4))) + 0.1, n((3, 4))),), {})],
        "softmax": lambda: [((n((2, 3, 4)),), {})],
        "dropout": lambda: [((n((30, 40)),), {"p": 0.25, "rng": seed}),
                            ((n((3, 4)),), {"p": 0.0, "rng": seed})],
        "attention": lambda: [
            ((qkv,), {"n_head": 2}), ((qkv,), {"n_head": 2, "causal": False}),
            ((qkv,), {"n_head": 2, "p": 0.25, "rng": seed})],
        "lstm": lambda: [((n((2, 4, 3)), n((3, 8)), n((2, 8)), n(8)), {})],
        "residual": lambda: [((n((2, 3, 4)), n((2, 3, 4))), {})],
        "last_tokens": lambda: [((n((2, 5, 3)),), {"n": 2})],
        "log_sum_exp": lambda: [((n((2, 3, 4)),), {})],
        "cross_entropy": lambda: [((3 * n((2, 3, 6)), ids), {})]}[op]()


def far_questions(op, rng):
    """More for the forward pass: large numbers, and tokens that came before."""
    n = rng.standard_normal
    large = 1e3 * n((3, 4)) + 1e4 * np.arange(3)[:, None]
    return {"layer_norm": [((1e3 + 0.01 * n((3, 5)), n(5), n(5)), {})],
            "softmax": [((large,), {})], "log_sum_exp": [((large,), {})],
            "cross_entropy": [((large, np.array([1, 0, 3])), {})],
            "attention": [((n((2, 3, 18)),), {"n_head": 2, "past": (n((2, 2, 4, 3)),
                                                                  n((2, 2, 4, 3)))})],
            }.get(op, [])


FAR = {"layer_norm": "Here the mean is large beside the spread, and E[x^2] - E[x]^2 loses its "
                     "digits: subtract the mean first, then take the mean of the squares."}


def fresh(options):
    """Options of a call, with a new generator where they have a seed."""
    return {k: np.random.default_rng(v) if k == "rng" else v for k, v in options.items()}
