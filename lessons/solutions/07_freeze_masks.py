"""Solutions of lesson 7, freeze masks.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def way_back(trained):
    """A layer runs back if it or something below it is trained; its dx is for what is below."""
    n = len(trained)
    runs = [any(trained[:i + 1]) for i in range(n)]
    has_dx = [any(trained[:i]) for i in range(n)]
    return runs, has_dx


def products_of_a_step(trained):
    """y for each layer, dw for each trained one, dx for each that has one below it."""
    _, has_dx = way_back(trained)
    return len(trained) + sum(trained) + sum(has_dx)


def freeze_below(k):
    """The dot after the number matters: h.1* would freeze blocks 10 and 11 as well."""
    return ",".join(["input", "pos", "attn", "mlp", *(f"h.{i}.*" for i in range(k))])


def clipped_step(data, gradients, trained, lr, max_norm):
    """Frozen rows count neither in the norm nor in the step."""
    g = gradients * trained[:, None]
    norm = np.sqrt((g ** 2).sum())
    return data - lr * g * min(1.0, max_norm / norm)


def spend(sizes, budget):
    """One choice of many: the output layer, then the layer norms from the top down, then the rest:
    the way back stays short while the budget is small."""
    chosen = ["output.weight", "output.bias"]
    left = budget - sum(sizes[name] for name in chosen)
    others = [name for name in reversed(list(sizes)) if name not in chosen]
    for name in sorted(others, key=lambda name: "ln_" not in name):
        if sizes[name] <= left:
            chosen.append(name)
            left -= sizes[name]
    return chosen


if __name__ == "__main__":
    for solution in (way_back, products_of_a_step, freeze_below, clipped_step, spend):
        check(solution.__name__, solution)
