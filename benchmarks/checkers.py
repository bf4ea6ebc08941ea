"""Run the backward passes of ``tests/gradient_cases.py`` through several checkers of gradients.

    pip install torch==2.13.0 jax && python -m benchmarks.checkers

Each checker has its default settings, but ``torch.autograd.gradcheck`` its fast mode for more than
3,000 numbers.  A layer is a function of its inputs and its parameters.  An error counts as refused.
"""

import argparse
import copy
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import minifpt
from minifpt.gradients import _functions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gradient_cases import RIGHT, WRONG  # noqa: E402


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


def accepts(check, *case):
    try:
        return check(*case)
    except Exception:
        return False


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    print(f"| checker | wrong, refused, of {len(WRONG)} | right, accepted, of {len(RIGHT)} "
          "| seconds |\n|---|---|---|---|")
    details = []
    for name, check in ("`minifpt.gradcheck`", ours), ("`torch.autograd.gradcheck`", torch_check), (
            "`jax.test_util.check_grads`", jax_check):
        start = time.perf_counter()
        missed = [case for case, (*call, _) in WRONG.items() if accepts(check, *call)]
        refused = [case for case, call in RIGHT.items() if not accepts(check, *call)]
        print(f"| {name} | {len(WRONG) - len(missed)} | {len(RIGHT) - len(refused)} | "
              f"{time.perf_counter() - start:.1f} |")
        details += [f"{name}: accepts the wrong {', '.join(missed) or '-'}; refuses the right "
                    f"{', '.join(refused) or '-'}"]
    print("", *details, sep="\n")
