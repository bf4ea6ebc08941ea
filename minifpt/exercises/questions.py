"""More calls by which a reader's form of an operation is judged, beside ``minifpt.examples``."""

import numpy as np


def far_questions(op, rng):
    """Return more calls of the forward pass: with large numbers, and with tokens before these."""
    n = rng.standard_normal
    large = 1e3 * n((3, 4)) + 1e4 * np.arange(3)[:, None]
    huge = 800 + 100 * n((3, 4))                          # exp(huge) is infinite
    return {"layer_norm": [((1e3 + 0.01 * n((3, 5)), n(5), n(5)), {})],
            "gelu": [((huge,), {}), ((-huge,), {})], "silu": [((huge,), {}), ((-huge,), {})],
            "swiglu": [((huge, n((3, 4))), {}), ((-huge, n((3, 4))), {})],
            "lstm": [((x.reshape(1, 4, 3), n((3, 8)), n((2, 8)), n(8)), {}) for x in (huge, -huge)],
            "softmax": [((large,), {})], "log_sum_exp": [((large,), {})],
            "cross_entropy": [((large, np.array([1, 0, 3])), {})],
            "attention": [((n((2, 3, 18)),), {"n_head": 2, "past": (n((2, 2, 4, 3)),
                                                                  n((2, 2, 4, 3)))})],
            }.get(op, [])


FAR = {"layer_norm": "Here the mean is large beside the spread, and E[x^2] - E[x]^2 loses its "
                     "digits: subtract the mean first, then take the mean of the squares.",
       **dict.fromkeys(("gelu", "silu", "swiglu", "lstm"),
                       "Here x is large, and an exponential of it is infinite: use np.tanh, or "
                       "1 / (1 + exp(-x)).")}
