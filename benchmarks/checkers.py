"""Run the backward passes of ``tests/gradient_cases.py`` through several checkers of gradients.

    pip install torch==2.13.0 jax==0.10.2 && python -m benchmarks.checkers

writes ``benchmarks/results/checkers.csv`` and prints the cases that each checker judges wrongly.
Each checker has its default settings, but ``torch.autograd.gradcheck`` its fast mode for more than
3,000 numbers.  A layer is a function of its inputs and its parameters.  An error counts as refused.
"""

import argparse
import copy
import csv
import importlib
import importlib.metadata
import random
import sys
import warnings
from pathlib import Path

import numpy as np

import minifpt
from minifpt.gradients.check import _functions

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import gradient_cases  # noqa: E402

KINDS = {                                                 # by the first case of each kind
    "layer norm without the mean": "terms, axes, transposes, factors",
    "dy left out": "`dy` left out or clipped",
    "one entry of 2,000": "some entries or a branch",
    "a fault above 5": "only at larger or smaller inputs",
    "a cache in an object, changed": "in-place changes, state",
    "two gradients in the wrong order": "several inputs or outputs, broadcasting, masks",
    "a layer's weight": "parameters of layers",
    "numbers for arrays": "right ones, accepted"}

# What a checker cannot be asked: PyTorch, JAX and minitorch add up a layer's gradients themselves
# and know no bound methods; JAX wants pure functions; a function of minitorch has one output.
OF_LAYERS = {"a layer by its methods", "a layer that overwrites"}
IMPURE = {"a cache in an object, changed", "an input, changed", "dy, changed", "a sum over calls",
          "a cache in a global", "a layer that remembers"}
OUTPUTS = {"the second output", "two outputs", "two outputs of one shape"}


def functions(arguments, options):
    """Return (forward, backward, arrays) of a case; both functions take and return tuples of
    arrays, and only those of floating-point numbers."""
    if len(arguments) == 2:
        layer, inputs = arguments
        op, back, named = _functions(layer, len(inputs), True, 0)
        inputs = [*inputs, *(p.data for p in named.values())]
    else:
        (op, back, inputs), named = arguments, {}
    inputs = [np.asarray(x) for x in inputs]
    floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]
    options = {k: v for k, v in options.items() if k != "far"}
    many = []

    def forward(*arrays):
        for i, x in zip(floats, arrays, strict=True):
            inputs[i] = np.require(x, np.float64, "W")    # JAX's arrays are read-only
        y, cache = op(*inputs, **copy.deepcopy(options))
        many[:] = [isinstance(y, tuple)]
        return [np.array(a, np.float64) for a in (y if many[0] else (y,))], cache

    def backward(dys, cache):
        for p in named.values():                          # else a second pass adds to the first
            p.grad = None
        dys = [np.require(dy, np.float64, "W") for dy in dys]
        grads = back(tuple(dys) if many[0] else dys[0], cache)
        grads = grads if isinstance(grads, (tuple, list)) else (grads,)
        return [np.array(g, np.float64) for g in grads if g is not None]
    return forward, backward, [np.array(inputs[i], np.float64) for i in floats]


def ours(arguments, options):
    return bool(minifpt.gradcheck(*arguments, **options))


def torch_check(arguments, options):
    import torch
    forward, backward, arrays = functions(arguments, options)

    class Pair(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            y, ctx.cache = forward(*(t.detach().numpy() for t in tensors))
            return tuple(map(torch.from_numpy, y))

        @staticmethod
        def backward(ctx, *dys):
            return tuple(map(torch.from_numpy, backward([d.numpy() for d in dys], ctx.cache)))
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    return torch.autograd.gradcheck(Pair.apply, tensors, fast_mode=sum(
        x.size for x in arrays) > 3000)


def jax_check(arguments, options):
    import jax
    from jax.test_util import check_grads
    jax.config.update("jax_enable_x64", True)
    forward, backward, arrays = functions(arguments, options)
    outputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in forward(*arrays)[0]]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]

    @jax.custom_vjp
    def f(*xs):
        return jax.pure_callback(lambda *xs: forward(*xs)[0], outputs, *xs)
    f.defvjp(lambda *xs: (f(*xs), xs), lambda xs, dys: tuple(jax.pure_callback(
        lambda xs, dys: backward(dys, forward(*xs)[1]), shapes, xs, dys)))
    check_grads(f, arrays, order=1, modes=["rev"])
    return True


def minitorch_check(arguments, options):
    """Apply the rule of minitorch's ``grad_check``: compare one entry of each input, drawn with its
    seed, with a central difference of the sum of the output."""
    forward, backward, arrays = functions(arguments, options)
    ys, cache = forward(*arrays)
    grads, rng = backward([np.ones_like(ys[0])], cache), random.Random(10)
    for i, (x, grad) in enumerate(zip(arrays, grads, strict=True)):
        place, step = tuple(map(rng.randrange, x.shape)), np.zeros_like(x)
        step[place] = 1e-6
        up, down = (forward(*arrays[:i], x + h, *arrays[i + 1:])[0][0] for h in (step, -step))
        grad = grad.sum(axis=tuple(range(grad.ndim - x.ndim)))     # minitorch sums it, too
        np.testing.assert_allclose(grad[place], (up.sum() - down.sum()) / 2e-6, 1e-2, 1e-2)
    return True


def accepts(check, *case):
    try:
        return check(*case)
    except Exception:
        return False


def release(package):
    """Return the first two parts of the installed version."""
    return ".".join(importlib.metadata.version(package).split(".")[:2])


def count(check, unasked=()):
    """Return {kind: (cases, cases asked, right verdicts)} and the cases that are judged wrongly."""
    cases = importlib.reload(gradient_cases)              # without what another check left in it
    counts, mistakes = {}, []
    for case, (arguments, options, *words) in (cases.WRONG | cases.RIGHT).items():
        if case in KINDS:
            row = counts[KINDS[case]] = np.zeros(3, int)
        is_asked = case not in unasked
        is_right = is_asked and accepts(check, arguments, options) == (not words)
        row += 1, is_asked, is_right
        mistakes += [case] * (is_asked and not is_right)
    kind, right_ones = counts.popitem()
    return {**counts, "all wrong ones": sum(counts.values()), kind: right_ones}, mistakes


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    head, rows = ["backward passes", "cases"], {}
    for name, check, unasked in (
            ("minifpt", ours, ()), (f"PyTorch {release('torch')}", torch_check, OF_LAYERS),
            (f"JAX {release('jax')}", jax_check, OF_LAYERS | IMPURE),
            ("minitorch", minitorch_check, OF_LAYERS | OUTPUTS)):
        counts, mistakes = count(check, unasked)
        head.append(name)
        print(f"{name}: {'; '.join(mistakes) or '-'}", flush=True)
        for kind, (n, n_asked, n_right) in counts.items():
            row = rows.setdefault(kind, [kind, n])
            row.append("-" if n_asked == 0 else n_right if n_asked == n else
                       f"{n_right} of {n_asked}")
    with open(HERE / "results" / "checkers.csv", "w", encoding="utf-8", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows([head, *rows.values()])
