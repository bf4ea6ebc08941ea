"""Lesson 7, freeze masks."""

from functools import cache

import numpy as np

from ..fpt import FPT
from ..freeze import FreezeMask
from ..gpt2 import GPT2, GPT2Config
from . import Case, exercise


@cache
def parameters(n_layer, n_embd):
    """{name: (group, size)} of an FPT, 3 numbers in and 4 out; its weights are never drawn."""
    config = GPT2Config(n_layer=n_layer, n_embd=n_embd, n_head=1, n_positions=20, vocab_size=5)
    model = FPT(GPT2(config, seed=None), 3, 4)
    return {name: (p.group, p.data.size) for name, p in model.named_parameters()}


def _trained(rng):
    """Layers from the bottom: frozen, trained, frozen, a mixture, trained, frozen."""
    while True:
        low, gap, top = (int(n) for n in rng.integers(1, 5, 3))
        trained = [False] * low + [True] + [False] * gap
        trained += [bool(b) for b in rng.integers(0, 2, top)] + [True, False]
        n, dws = len(trained), sum(trained)
        # Counts that a mistake would confuse must differ.
        known = [n + dws + n - 1 - low, 3 * n, n + 2 * dws, n + dws + n - low, n + dws,
                 2 * n + dws, dws + n - 1 - low, 2 * n - 1 + dws]
        if len(set(known)) == len(known):
            return trained


@exercise
def way_back(rng):
    def case(trained):
        n = len(trained)
        low = trained.index(True) if any(trained) else n
        runs = np.arange(n) >= low
        dx = np.arange(n) > low
        dw = np.array(trained)
        high = n - 1 - trained[::-1].index(True) if any(trained) else -1

        def is_mistake(value, right, mistake):
            value = np.asarray(value, bool)
            return not np.array_equal(value, right) and np.array_equal(value, mistake)

        def first(mistake):
            return lambda out: is_mistake(out[0], runs, mistake)

        def second(mistake):
            return lambda out: is_mistake(out[1], dx, mistake)

        return Case((trained,), (runs, dx), {
            "return two lists, each with a boolean for each layer":
                lambda out: np.shape(out[0]) != (n,) or np.shape(out[1]) != (n,),
            "runs: a frozen layer above a trained one must run, too: the gradient has to get past "
            "it": first(dw),
            "runs: all of them run, but below the lowest trained layer nothing needs a gradient":
                first(np.ones(n, bool)),
            "runs: the wrong end: the gradient comes from the top and ends at the lowest trained "
            "layer": first(np.arange(n) <= high),
            "runs: it is the lowest trained layer that counts, not the highest":
                first(np.arange(n) >= high),
            "runs: the lowest trained layer itself must run: it computes its own gradients":
                first(dx),
            "has_dx: the lowest trained layer has none: what below it would read it?":
                second(runs),
            "has_dx: a dx is for what is below, whether or not the layer itself is trained":
                lambda out: any(second(w)(out) for w in (dw, ~dw & runs, dw & dx)),
        }, about="" if any(trained) else "Nothing is trained here, so nothing runs.")

    yield case(_trained(rng))
    yield case(_trained(rng))
    yield case([True, *(False for _ in range(int(rng.integers(2, 5))))])
    yield case([False] * int(rng.integers(2, 5)))


@exercise
def products_of_a_step(rng):
    for trained in (_trained(rng), _trained(rng)):
        n, dws, low = len(trained), sum(trained), trained.index(True)
        dx = n - 1 - low
        yield Case((trained,), n + dx + dws, {
            "that is a full step, with three products for each layer": 3 * n,
            "the products dx of the frozen layers are missing: those above a trained one hand the "
            "gradient down": n + 2 * dws,
            "you count one dx too many: nothing below the lowest trained layer needs it":
                n + dws + n - low,
            "you count no dx at all: how does the gradient reach the lowest trained layer?":
                n + dws,
            "you count a dx for every layer: below the lowest trained one there is none":
                lambda p, n=n, dws=dws: p in (2 * n + dws, 2 * n - 1 + dws),
            "the forward pass is missing: one product for each layer, frozen or not": dws + dx,
        }, rtol=1e-12)
    n = int(rng.integers(3, 9))
    yield Case(([False] * n,), n, rtol=1e-12,
               about="Nothing is trained here: only the forward pass is left.")


@exercise
def freeze_below(rng):
    """For two values of k: no text is right for both."""
    return [_freeze_below(int(k)) for k in rng.choice(np.arange(2, 9), 2, replace=False)]


def _freeze_below(k):
    names = parameters(12, 8)

    def frozen(blocks):
        return {n for n in names if ".attn." in n or ".mlp." in n or n.startswith("input")
                or "wpe" in n or any(f".h.{i}." in n for i in range(blocks))}

    def of(text):
        mask = FreezeMask.parse(text)
        return {n for n, (group, _) in names.items() if mask.frozen(n, group)}

    def refused(text):
        try:
            return of(text) is None
        except ValueError:
            return isinstance(text, str)

    def norms(text, i):
        """Whether block i's layer norms, or one of them, are frozen."""
        return any(f".h.{i}.ln" in n for n in of(text))

    return Case((k,), lambda text: of(text) == frozen(k), {
        "return one text, as in the lesson's list of masks": lambda t: not isinstance(t, str),
        "FreezeMask.parse refuses this text: write groups and patterns with commas between them":
            refused,
        "the input layer or the positions are still trained, and they are below block 0: the whole "
        "model runs back": lambda t: not {"input.weight", "input.bias",
                                              "trunk.wpe.weight"} <= of(t),
        "attention and feed-forward are frozen in the lowest blocks only":
            lambda t: "trunk.h.11.mlp.c_fc.weight" not in of(t)
            or "trunk.h.11.attn.c_attn.weight" not in of(t),
        "a pattern reaches too far: blocks 10 and 11 begin with a 1 as well, so mind the dot":
            lambda t: norms(t, 1) and norms(t, 10) and norms(t, 11) and not norms(t, k),
        "every layer norm is frozen: those from block k on are trained":
            lambda t: norms(t, 11) and norms(t, k),
        "one block too many: block k itself is trained":
            lambda t: norms(t, k) and not norms(t, k + 1),
        "block k - 1 is still trained: the k lowest blocks are 0 to k - 1":
            lambda t: norms(t, 0) and not norms(t, k - 1),
        "block 0 is still trained, and with it everything runs back": lambda t: not norms(t, 0),
        "the last layer norm or the output layer is frozen": lambda t: bool(
            {"trunk.ln_f.weight", "trunk.ln_f.bias", "output.weight", "output.bias"} & of(t)),
    }, about=f"Freeze a model with FreezeMask.parse(your text) for k = {k}, print the model, and "
             "compare with what you want.")


@exercise
def clipped_step(rng):
    P, C = int(rng.integers(5, 8)), 4
    lr = float(rng.uniform(0.1, 0.3))
    trained = np.zeros(P, bool)
    trained[rng.choice(P, 3, replace=False)] = True
    data, gradients = rng.standard_normal((2, P, C))
    gradients[~trained] *= 3
    norm = np.linalg.norm(gradients[trained])
    below = "Here the norm of the trained rows is below max_norm: nothing is scaled."
    for max_norm, about in ((0.2 * norm, ""), (1.2 * norm, below)):
        def new(factor, where=trained, max_norm=max_norm):
            return data - lr * np.asarray(factor) * gradients * where[:, None]

        everything = np.linalg.norm(gradients)
        each = np.linalg.norm(gradients, axis=1, keepdims=True)
        yield Case((data, gradients, trained, lr, max_norm), new(min(1, max_norm / norm)), {
            "the frozen rows are moved, too":
                lambda out: np.shape(out) == data.shape and not np.allclose(
                    np.asarray(out)[~trained], data[~trained]),
            "the norm counts the frozen rows, so the trained ones take smaller steps than they "
            "should": new(min(1, max_norm / everything)),
            "small gradients are scaled up: clipping only makes them smaller": new(max_norm / norm),
            "nothing is clipped": new(1),
            "each row is clipped by itself: the norm is of all trained rows together":
                new(np.minimum(1, max_norm / each)),
            "each number is clipped by itself: that changes the direction":
                data - lr * np.clip(gradients, -max_norm, max_norm) * trained[:, None],
            "the norms of the rows are added: add the squares, then take the root":
                new(min(1, max_norm / each[trained].sum())),
            "the root is missing in the norm": new(min(1, max_norm / norm ** 2)),
            "the step goes uphill": 2 * data - new(min(1, max_norm / norm)),
            "that is the scaled gradient; take the step": lambda out: np.shape(out) == data.shape
            and np.allclose(np.asarray(out)[~trained], 0),
        }, about=about)


@exercise
def spend(rng):
    C, L = 8 * int(rng.integers(2, 5)), int(rng.integers(2, 5))
    sizes = {name: size for name, (_, size) in parameters(L, C).items()}
    output = 4 * C + 4
    for budget in (output, output + C * int(rng.integers(3, 8)), output + 40 * C):
        def total(names):
            return sum(sizes[n] for n in names)

        def right(names, budget=budget):
            return (not isinstance(names, str) and len(set(names)) == len(names)
                    and {"output.weight", "output.bias"} <= set(names) <= set(sizes)
                    and budget / 2 <= total(names) <= budget)

        yield Case((sizes, budget), right, {
            "return a list of names, not one text": lambda names: isinstance(names, str),
            "a name is there twice": lambda names: len(set(names)) < len(names),
            "one of these names is not in the dictionary: take the parameters' names from it":
                lambda names: not set(names) <= set(sizes),
            "the output layer is not all there, with weight and bias: it starts at random":
                lambda names: not {"output.weight", "output.bias"} <= set(names),
            "that is more than the budget: add up the sizes":
                lambda names, budget=budget: total(names) > budget,
            "less than half of the budget is used": lambda names, budget=budget:
                total(names) < budget / 2,
        }, about="Return a list of names from the dictionary.")
