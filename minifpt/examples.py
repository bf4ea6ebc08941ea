"""Example inputs of each operation: for ``minifpt gradcheck``, the tests and ``minifpt check``."""

import inspect

import numpy as np

from . import functional as F
from .gradients import gradcheck


def examples(op, rng):
    """[(inputs, options)] of a few calls of an operation, by its name.  No two axes are equal but
    where a mistake shows only there.  The option ``rng`` is a seed."""
    n, seed = rng.standard_normal, int(rng.integers(1 << 30))
    qkv, ids = n((2, 4, 18)), rng.permutation([[0, 5, 3], [3, 1, 3]], axis=1)
    return {
        "linear": lambda: [((n((2, 3, 5)), n((5, 4)), n(4)), {}),
                           ((n((3, 4)), n((4, 4)), n(4)), {})],
        "embedding": lambda: [((ids, n((7, 4))), {})],
        "bias": lambda: [((n((2, 3, 4)), n(4)), {})],
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


def fresh(options):
    """Options of a call, with a new generator where they have a seed."""
    return {k: np.random.default_rng(v) if k == "rng" else v for k, v in options.items()}


def pairs(op, rng, module=F):
    """Yield (forward pass, backward pass, inputs) for each example of an operation of a module, as
    :func:`minifpt.gradcheck` takes them.  The branch of a residual is ``factor * x``."""
    ahead, back = getattr(module, op), getattr(module, f"{op}_backward")
    for inputs, options in examples(op, rng):
        if op == "residual":
            factor, inputs = inputs[1], inputs[:1]
            yield (lambda x, f=factor: ahead(x, f.astype(x.dtype) * x),
                   lambda dy, cache, f=factor: back(dy, f.astype(dy.dtype) * dy), inputs)
        else:
            yield lambda *x, o=options: ahead(*x, **fresh(o)), back, inputs


def check(op, seed=0):
    """The worst :class:`minifpt.gradients.GradcheckReport` of an operation's examples."""
    names = list(inspect.signature(vars(F)[op]).parameters)
    return max((gradcheck(*pair, names=names, seed=seed)
                for pair in pairs(op, np.random.default_rng(seed))),
               key=lambda report: (not report, report.max_relative_error))
