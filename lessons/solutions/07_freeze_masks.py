"""Solutions of lesson 7, freeze masks.  Run the file to have them checked."""

import re
from functools import cache

from minifpt import FPT, GPT2, FreezeMask, GPT2Config
from minifpt.exercises import Case, check_solutions, exercise


def trained_layers(rng):
    """Layers from the bottom: frozen, trained, frozen, a mixture, trained, frozen."""
    while True:
        low, gap, top = (int(n) for n in rng.integers(1, 5, 3))
        trained = [False] * low + [True] + [False] * gap
        trained += [bool(b) for b in rng.integers(0, 2, top)] + [True, False]
        n, dws = len(trained), sum(trained)
        # Counts that a mistake would confuse must differ.
        known = [n + dws + n - 1 - low, 3 * n, n + 2 * dws, n + dws + n - low, n + dws,
                 2 * n + dws, dws + n - 1 - low, 2 * n - 1 + dws, 2 * n, n,
                 2 * n + dws - 2, 3 * n - 1 - 2 * low, 2 * n - 1 - low, 3 * dws,
                 n + 2 * dws - 1, n + dws + low, 2 * n - 1 - 2 * low + dws, 2 * n - low]
        if len(set(known)) == len(known):
            return trained


@cache
def parameters(n_layer, n_embd):
    """{name: (group, size)} of an FPT, 3 numbers in and 4 out; its weights are never drawn."""
    config = GPT2Config(n_layer=n_layer, n_embd=n_embd, n_head=1, n_positions=20, vocab_size=5)
    model = FPT(GPT2(config, seed=None), 3, 4)
    return {name: (p.group, p.data.size) for name, p in model.named_parameters()}


def products_of_a_step(trained):
    """y for each layer, dw for each trained one, dx for each that has one below it."""
    has_dx = [any(trained[:i]) for i in range(len(trained))]
    return len(trained) + sum(trained) + sum(has_dx)


@exercise(products_of_a_step, {
    "that is a full step, with three products for each layer":
        "return _ -> return 3 * len(trained)",
    "those are the products of the forward pass alone": "return _ -> return len(trained)",
    "that is two products for each layer: count dw and dx for themselves":
        "return _ -> return 2 * len(trained)",
    "the products dx of the frozen layers are missing: those above a trained one hand the gradient "
    "down": ["sum(has_dx) -> sum(trained)", "sum(has_dx) -> max(0, sum(trained) - 1)"],
    "the dx of the trained layers are missing: one above another trained one hands the gradient "
    "down, too": "any(trained[:i]) -> any(trained[:i]) and not trained[i]",
    "you count a dx for the layers below the lowest trained one: it is wanted above it":
        "any(trained[:i]) -> not any(trained[:i + 1])",
    "you count one dx too many: nothing below the lowest trained layer needs it":
        "trained[:i] -> trained[:i + 1]",
    "you count no dx at all: how does the gradient reach the lowest trained layer?":
        "_ + sum(has_dx) -> _",
    "you count a dx for every layer: below the lowest trained one there is none": [
        "sum(has_dx) -> len(trained)", "sum(has_dx) -> len(trained) - 1"],
    "a dx is wanted where something below is trained, not above":
        "trained[:i] -> trained[i + 1:]",
    "a frozen layer that runs back has a dx and no dw": [
        f"_ + sum(_1) + _2 -> _ + 2 * _2 + {more} * any(_1)" for more in (1, 2)],
    "the dw of the trained layers are missing": "len(trained) + sum(trained) -> len(trained)",
    "frozen layers compute, too": "return _ -> return 3 * sum(trained)",
    "return a number of products, not a share": "return _ -> return (_) / (3 * len(trained))",
    "the forward pass is missing: one product for each layer, frozen or not": [
        "len(trained) + sum(trained) -> sum(trained)",
        "len(trained) + sum(trained) -> sum(has_dx) + 1 + sum(trained)"],
}, {"only the forward pass": "sum(trained) -> max(1, sum(trained))"}, rtol=1e-12)
def _(rng):
    yield trained_layers(rng),
    yield trained_layers(rng),
    yield Case(([False] * int(rng.integers(3, 9)),),
               about="Nothing is trained here: only the forward pass is left.")


def freeze_below(k):
    """A range ends with its last number, so it is k - 1."""
    return ",".join(["input", "pos", "attn", "mlp", f"h.0-{k - 1}.*"])


ONLY, WITHOUT_ONLY = "return _ -> return f'only:", "return _ -> return f'"


# Many texts mean the same mask, so the case asks what the text freezes.
@exercise(freeze_below, refused={
    "input layer": ["'input' -> 'attn'", "'pos' -> 'attn'", "return _ -> return 'fpt'"],
    "mind the dot": "f'h.0-{k - 1}.*' -> ','.join(f'h.{i}*' for i in range(k))",
    "too many": ["k - 1 -> k", "f'h.0-{k - 1}.*' -> f'h.1-{k}.*'"],
    "k - 1": "k - 1 -> k - 2",
    "block 0": ["f'h.0-{k - 1}.*' -> f'h.1-{k - 1}.*'", "f'h.0-{k - 1}.*' -> f'h.{k - 1}.*'",
                "f'h.0-{k - 1}.*' -> ''"],
    "after only: stands": [ONLY + "input,pos,attn,mlp,h.0-{k - 1}.*'",
                           WITHOUT_ONLY + "ln_f.*,output,h.{k}-11.ln_1.*,h.{k}-11.ln_2.*'"],
    "so are those above it": ONLY + "h.{k}.ln_1.*,h.{k}.ln_2.*,ln_f.*,output'",
    "blocks only": [ONLY + "h.{k}-11.*,ln_f.*,output'", ONLY + "h.{k}-11.*,output'",
                    "'attn' -> 'pos'", "'mlp' -> 'pos'"],
    "every layer norm": ["return _ -> return 'input,pos,ln,attn,mlp'"],
    "output layer is frozen": ["'mlp' -> 'mlp,output'",
                               ONLY + "h.{k}-11.ln_1.*,h.{k}-11.ln_2.*,output'"],
    "refuses": ["'input' -> 'inputs'", "return _ -> return ''", "return _ -> return 'input;pos'",
                "f'h.0-{k - 1}.*' -> f'h.[0-{k - 1}].*'"],
    "one text": "','.join(_) -> _",
    "the letter k": ["f'h.0-{k - 1}.*' -> 'h.0-k.*'", "f'h.0-{k - 1}.*' -> 'h.0-{k - 1}.*'"],
    "each block has two": "f'h.0-{k - 1}.*' -> f'h.0-{k - 1}.ln_1*'",
})
def _(rng):
    for k in (int(rng.integers(2, 9)), 11, 1):            # no text is right for all
        yield freeze_case(k)


def freeze_case(k):
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
        "the letter k stands in the text, not its value: write an f before the quotes, k in braces":
            lambda t: re.search(r"\bk\b", t),
        "FreezeMask.parse refuses this text: write groups and patterns with commas between them, "
        "and no brackets": refused,
        "it is the other way round: after only: stands what is trained, and without only: what is "
        "frozen": lambda t: "output.weight" in of(t) and "input.weight" not in of(t),
        "the input layer or the positions are still trained, and they are below block 0: the whole "
        "model runs back": lambda t: not {"input.weight", "input.bias",
                                              "trunk.wpe.weight"} <= of(t),
        "attention and feed-forward are frozen in the lowest blocks only":
            lambda t: "trunk.h.11.mlp.c_fc.weight" not in of(t)
            or "trunk.h.11.attn.c_attn.weight" not in of(t),
        "a pattern reaches too far: blocks 10 and 11 begin with a 1 as well, so mind the dot":
            lambda t: norms(t, 1) and norms(t, 10) and not norms(t, 9) and not norms(t, k),
        "every layer norm is frozen: those from block k on are trained":
            lambda t: norms(t, 11) and norms(t, k),
        "one block too many: block k itself is trained":
            lambda t: norms(t, k) and not norms(t, k + 1),
        "block k is trained, and so are those above it":
            lambda t: norms(t, 11) and not norms(t, k),
        "block k - 1 is still trained: the k lowest blocks are 0 to k - 1":
            lambda t: norms(t, 0) and not norms(t, k - 1),
        "block 0 is still trained, and with it everything runs back": lambda t: not norms(t, 0),
        "each block has two layer norms, ln_1 and ln_2, with a weight and a bias each: some of "
        "these are still trained below block k": lambda t: not {
            n for n in frozen(k) if ".h.0.ln" in n} <= of(t),
        "the last layer norm or the output layer is frozen": lambda t: bool(
            {"trunk.ln_f.weight", "trunk.ln_f.bias", "output.weight", "output.bias"} & of(t)),
    }, about=f"Freeze a model with FreezeMask.parse(your text) for k = {k}, print the model, and "
             "compare with what you want.")


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


# Any list within the budget is right: the case says what is wrong with others.
@exercise(spend, refused={
    "more than the budget": ["return chosen -> return list(sizes)",
                             "left = _ -> budget *= 1.5; left = _"],
    "output layer": "return chosen -> return chosen[2:] or others[:3]",
    "half": "sizes[name] <= left -> False",
    "twice": "return chosen -> return chosen + chosen[:1]",
    "not in the dictionary": "return chosen -> return [*chosen, 'ln_f']",
    "not one text": "return chosen -> return chosen[0]",
})
def _(rng):
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


if __name__ == "__main__":
    check_solutions(globals())
