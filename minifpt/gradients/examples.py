"""Example inputs of each operation: for ``minifpt gradcheck``, the tests and ``minifpt check``."""

import inspect

import numpy as np

from .. import functional as F
from .check import gradcheck


def examples(op, rng):
    """Return [(inputs, options)], a few example calls of an operation.

    Axes differ in length, except where only equal ones reveal a mistake; ``rng`` is a seed."""
    n, seed = rng.standard_normal, int(rng.integers(1 << 30))
    q, k, v = n((3, 2, 2, 4, 3))
    ids = rng.permutation([[0, 5, 3], [3, 1, 3]], axis=1)
    calls = {
        "linear": lambda: [((n((2, 3, 5)), n((5, 4)), n(4)), {}),
                           ((n((3, 4)), n((4, 4)), n(4)), {})],
        "embedding": lambda: [((ids, n((7, 4))), {})],
        "bias": lambda: [((n((2, 3, 4)), n(4)), {})],
        "unembedding": lambda: [((n((2, 3, 4)), n((5, 4))), {})],
        "positions": lambda: [((n((2, 3, 4)), n((7, 4))), {"start": 2}),
                              ((n((2, 3, 4)), n((3, 4))), {})],
        "layer_norm": lambda: [((3 + n((2, 3, 5)), n(5), n(5)), {"eps": 0.3}),
                               ((0.01 * n((3, 5)), n(5), n(5)), {})],
        "rms_norm": lambda: [((n((2, 3, 5)), n(5)), {"eps": 0.3}),
                             ((0.01 * n((3, 5)), n(5)), {})],
        "gelu": lambda: [((2 * n((3, 4)),), {})], "gelu_exact": lambda: [((2 * n((3, 4)),), {})],
        "relu": lambda: [((np.copysign(np.abs(n((3, 4))) + 0.1, n((3, 4))),), {})],
        "silu": lambda: [((2 * n((3, 4)),), {})],
        "multiply": lambda: [((2 * n((2, 3, 4)), n((2, 3, 4))), {})],
        "rope": lambda: [((n((2, 2, 3, 6)),), {}),
                         ((n((2, 3, 2, 4)),), {"base": 50.0, "start": 4})],
        "softmax": lambda: [((n((2, 3, 4)),), {})],
        "dropout": lambda: [((n((30, 40)),), {"p": 0.25, "rng": seed}),
                            ((n((3, 4)),), {"p": 0.0, "rng": seed})],
        "attention": lambda: [((q, k, v), {}), ((q, k, v), {"causal": False}),
                              ((q, k, v), {"p": 0.25, "rng": seed})],
        "lstm": lambda: [((n((2, 4, 3)), n((3, 8)), n((2, 8)), n(8)), {})],
        "last_tokens": lambda: [((n((2, 5, 3)),), {"n": k}) for k in (2, 1, 5)],
        "log_sum_exp": lambda: [((n((2, 3, 4)),), {})],
        "cross_entropy": lambda: [((3 * n((2, 3, 6)), ids), {})]}
    if op not in calls:
        raise ValueError(f"gradcheck: '{op}' has no example inputs: add it to `examples` in "
                         "minifpt/gradients/examples.py")
    return calls[op]()


def fresh(options):
    """Return the options of a call, with a new generator instead of the seed ``rng``."""
    return {k: np.random.default_rng(v) if k == "rng" else v for k, v in options.items()}


def pairs(op, rng, module=F):
    """Yield (forward pass, backward pass, inputs, their names) for each example of a module's
    operation; of attention also with shared heads of keys, and with a bias on the scores."""
    forward, backward = getattr(module, op), getattr(module, f"{op}_backward")
    calls, n = examples(op, rng), rng.standard_normal
    names = [*inspect.signature(getattr(F, op)).parameters]
    if op == "attention":                                 # ``examples`` are a reader's first tests
        q, k, v = n((2, 4, 3, 2)), n((2, 2, 3, 2)), n((2, 2, 3, 2))
        calls += [((q, k, v), {}), ((q, k, v, n((4, 3, 3))), {}, "q", "k", "v", "bias")]
    for inputs, options, *others in calls:
        keywords = others or names[:len(inputs)]
        yield (lambda *x, keywords=keywords, options=options: forward(
            **dict(zip(keywords, x, strict=True)), **fresh(options)), backward, inputs, keywords)


def check(op, seed=0):
    """Return the worst :class:`minifpt.gradients.GradcheckReport` of an operation's examples."""
    return max((gradcheck(*pair, names=names, seed=seed)
                for *pair, names in pairs(op, np.random.default_rng(seed))),
               key=lambda report: (not report, report.max_relative_error))
