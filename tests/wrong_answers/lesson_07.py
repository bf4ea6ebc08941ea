"""Plausible wrong answers to lesson 7: (a word of the hint that fits, the answer)."""

import numpy as np


def _runs(trained):
    return [any(trained[:i + 1]) for i in range(len(trained))]


def _dx(trained):
    return [any(trained[:i]) for i in range(len(trained))]


def _from_the_top(trained):
    return [any(trained[i:]) for i in range(len(trained))]


def _above_the_highest(trained):
    high = max((i for i, t in enumerate(trained) if t), default=len(trained))
    return [i >= high for i in range(len(trained))]


def _step(norm, frozen=False, up=False, sign=-1):
    def answer(data, gradients, trained, lr, max_norm):
        g = gradients if frozen else gradients * trained[:, None]
        factor = max_norm / norm(gradients, trained)
        factor = factor if up else np.minimum(1, factor)
        return data + sign * lr * factor * g
    return answer


def _own(g, trained):
    return np.linalg.norm(g[trained])


def _rows(g, trained):
    return np.linalg.norm(g, axis=1, keepdims=True)


def _text(first, last, groups="input,pos,attn,mlp", pattern="h.{}.*"):
    def answer(k):
        patterns = [pattern.format(i) for i in range(first(k), last(k))]
        return ",".join([groups, *patterns])
    return answer


def _zero(k):
    return 0


def _k(k):
    return k


def _smallest_first(sizes, budget, chosen=("output.weight", "output.bias"), factor=1.0):
    chosen = list(chosen)
    left = factor * budget - sum(sizes[n] for n in chosen)
    for name in sorted(set(sizes) - set(chosen), key=lambda n: sizes[n]):
        if sizes[name] <= left:
            chosen.append(name)
            left -= sizes[name]
    return chosen


WRONG = {
    "way_back": [
        ("above a trained one", lambda t: (t, t)),
        ("all of them run", lambda t: ([True] * len(t), [True] * len(t))),
        ("wrong end", lambda t: (_from_the_top(t), _from_the_top(t))),
        ("not the highest", lambda t: (_above_the_highest(t), _above_the_highest(t))),
        ("itself must run", lambda t: (_dx(t), _dx(t))),
        ("what below it", lambda t: (_runs(t), _runs(t))),
        ("whether or not", lambda t: (_runs(t), t)),
        ("for each layer", lambda t: (sum(_runs(t)), sum(_dx(t)))),
        ("Value 2 of 2", lambda t: (_runs(t), [False] * len(t))),
        ("Value 1 of 2", lambda t: ([not trained for trained in t], _dx(t))),
    ],
    "products_of_a_step": [
        ("full step", lambda t: 3 * len(t)),
        ("of the frozen layers", lambda t: len(t) + 2 * sum(t)),
        ("one dx too many", lambda t: len(t) + sum(t) + sum(_runs(t))),
        ("no dx at all", lambda t: len(t) + sum(t)),
        ("every layer", lambda t: 2 * len(t) + sum(t)),
        ("forward pass", lambda t: sum(t) + sum(_dx(t))),
        ("only the forward pass", lambda t: len(t) + sum(_dx(t)) + max(1, sum(t))),
        ("largest difference", lambda t: 4 * len(t)),
        ("largest difference", sum),
    ],
    "freeze_below": [
        ("input layer", _text(_zero, _k, groups="attn,mlp")),
        ("mind the dot", _text(_zero, _k, pattern="h.{}*")),
        ("too many", _text(_zero, lambda k: k + 1)),
        ("k - 1", _text(_zero, lambda k: k - 1)),
        ("block 0", _text(lambda k: 1, _k)),
        ("blocks only", _text(_zero, _k, groups="input,pos")),
        ("every layer norm", lambda k: "input,pos,ln,attn,mlp"),
        ("output layer is frozen", _text(_zero, _k, groups="input,pos,attn,mlp,output")),
        ("refuses", _text(_zero, _k, groups="inputs,pos,attn,mlp")),
        ("one text", lambda k: ["input", "pos"]),
        ("block 0", lambda k: "input,pos,attn,mlp"),
        ("input layer", lambda k: "fpt"),
        ("refuses", lambda k: ""),
        ("block 0", lambda k: f"input,pos,attn,mlp,h.{k - 1}.*"),
        ("every layer norm", _text(_k, lambda k: 12)),
        ("too many", _text(lambda k: 1, lambda k: k + 1)),
        ("refuses", lambda k: "input;pos;attn;mlp"),
        ("input layer", _text(_zero, _k, groups="attn,mlp")),
        ("blocks only", _text(_zero, _k, groups="input,pos,mlp")),
        ("compare with what you want", _text(_zero, _k, pattern="h.{}.ln_1*")),
    ],
    "clipped_step": [
        ("counts the frozen", _step(lambda g, t: np.linalg.norm(g))),
        ("rows are moved", _step(_own, frozen=True)),
        ("scaled up", _step(_own, up=True)),
        ("nothing is clipped", _step(lambda g, t: 1e-9)),
        ("each row", _step(_rows)),
        ("squares", _step(lambda g, t: _rows(g, t)[t].sum())),
        ("root", _step(lambda g, t: _own(g, t) ** 2)),
        ("uphill", _step(_own, sign=1)),
        ("each number", lambda d, g, t, lr, m: d - lr * np.clip(g, -m, m) * t[:, None]),
    ],
    "spend": [
        ("more than the budget", lambda sizes, budget: list(sizes)),
        ("output layer", lambda sizes, budget: _smallest_first(sizes, budget, ())[:3]),
        ("half", lambda sizes, budget: ["output.weight", "output.bias"]),
        ("twice", lambda sizes, budget: ["output.weight", "output.bias", "output.bias"]),
        ("not in the dictionary", lambda sizes, budget: ["output.weight", "output.bias", "ln_f"]),
        ("not one text", lambda sizes, budget: "output.weight"),
        ("more than the budget", lambda s, b: _smallest_first(s, b, factor=1.5)),
    ],
}
