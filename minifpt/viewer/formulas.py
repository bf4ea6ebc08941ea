"""The formula of each entry of a gradient, with the names of the values that go into it.

``FORMULAS[op][gradient]`` is a :class:`Formula`.  Its letters stand for axes: ``x[bti]`` is x at
example b, token t, channel i.  A letter that the gradient lacks is summed over.
"""

import re
from collections import namedtuple

import numpy as np

from .. import functional as F

# text: as on paper.  at: the letters of the gradient's axes, ~ for all leading ones.  put: an
# expression in {names}.  over: the letters it is summed over, ~ too.  times: one of EXTRA's
# numbers, a factor in front of all.
Formula = namedtuple("Formula", "text at put over times", defaults=("", ""))

SLOPE = {"x": Formula("dx = dy * f'(x)", "~c", "dy[~c] * slope[~c]")}
FORMULAS = {
    "linear": {
        "x": Formula("dx = dy @ w.T", "~i", "dy[~o] * w[io]", "o"),
        "w": Formula("dw = x.T @ dy", "io", "x[~i] * dy[~o]", "~"),
        "b": Formula("db = sum of dy over all rows", "o", "dy[~o]", "~")},
    "unembedding": {
        "x": Formula("dx = dy @ w", "~i", "dy[~v] * w[vi]", "v"),
        "w": Formula("dw = dy.T @ x", "vi", "dy[~v] * x[~i]", "~")},
    "embedding": {
        "w": Formula("dw[v] = sum of dy where ids is v", "vc", "one_hot[~v] * dy[~c]", "~")},
    "bias": {
        "x": Formula("dx = dy", "~c", "dy[~c]"),
        "b": Formula("db = sum of dy over all rows", "c", "dy[~c]", "~")},
    "positions": {
        "x": Formula("dx = dy", "~c", "dy[~c]"),
        "w": Formula("dw = sum of dy over the batch", "tc", "dy[btc]", "b")},
    "layer_norm": {
        "x": Formula("dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, g = dy * w", "~c",
                     "(dy[~c] * w[c] - mean_g[~0] - xhat[~c] * mean_g_xhat[~0]) * rstd[~0]"),
        "w": Formula("dw = sum(dy * xhat)", "c", "dy[~c] * xhat[~c]", "~"),
        "b": Formula("db = sum(dy)", "c", "dy[~c]", "~")},
    "softmax": {
        "x": Formula("dx = y * (dy - sum_j dy_j y_j)", "~i", "y[~i] * (dy[~i] - sum_dy_y[~0])")},
    "attention": {
        "q": Formula("dQ = dS K / sqrt(D)", "bhtd", "ds[bhts] * k[bhsd]", "s", "scale"),
        "k": Formula("dK = dS^T Q / sqrt(D)", "bhsd", "ds[bhts] * q[bhtd]", "t", "scale"),
        "v": Formula("dV = dropout(A)^T dy", "bhsd", "kept[bhts] * dy[bhtd]", "t")},
    "residual": {"x": Formula("dx = dy + dbranch", "~c", "dy[~c] + dbranch[~c]")},
    "last_tokens": {"x": Formula("dx = dy, and 0 for the tokens that were not read", "~c",
                                 "padded[~c]")},
    "log_sum_exp": {"x": Formula("dx = dy * softmax(x)", "~v", "dy[~0] * e[~v] / sum_e[~0]")},
    "cross_entropy": {
        "logits": Formula("dlogits = (softmax - one_hot) * dy / number of targets", "~v",
                          "(p[~v] - one_hot[~v]) * dy[] / n[]")},
}


def operands(step, inner):
    """{name: array or number} of all that a backward step's formulas name.

    ``inner``: {op: backward step} of the operations that ran inside it.
    """
    names = {**step.inputs, **fields(step.inputs.get("cache"))}
    names.pop("cache", None)
    op, dy = step.op, names.get("dy")
    if op == "layer_norm":
        g = dy * names["w"]
        if names.get("xhat") is not None:
            names["mean_g"] = g.mean(-1, keepdims=True)
            names["mean_g_xhat"] = (g * names["xhat"]).mean(-1, keepdims=True)
    elif op == "softmax":
        names["sum_dy_y"] = np.vecdot(dy, names["y"])[..., None]
    elif op == "attention":
        q = names["q"]
        names["dy"] = F.split_heads(np.concatenate([dy] * 3, -1), q.shape[1])[0]
        mask = names["mask"]
        names["kept"] = names["probabilities"] * (1 if mask is None else mask)
        names["scale"] = 1.0 / q.shape[-1] ** 0.5
        if "softmax" in inner:
            names["ds"] = inner["softmax"].output
    elif op == "last_tokens":
        names["padded"] = step.output
    elif op == "log_sum_exp":
        names["sum_e"] = names["e"].sum(-1, keepdims=True)
    elif op == "cross_entropy":
        names["p"] = inner["log_sum_exp"].output
        names["one_hot"] = one_hot(names["targets"], names["p"].shape[-1], names["p"].dtype)
        names["n"] = names["targets"].size
    elif op == "embedding":
        names["one_hot"] = one_hot(names["ids"], names["shape"][0], dy.dtype)
    elif op not in FORMULAS and op != "dropout" and isinstance(step.output, np.ndarray):
        names["slope"] = step.function(np.ones_like(dy), step.inputs["cache"])
    return names


def formulas(step, names):
    """{the forward input's name: its :class:`Formula`}; empty for an operation that is not known,
    which has to be elementwise to have one."""
    if step.op == "dropout":
        kept = names["mask"] is None
        return {"x": Formula("dx = dy: nothing is dropped" if kept else "dx = dy * mask", "~c",
                             "dy[~c]" if kept else "dy[~c] * mask[~c]")}
    if step.op in FORMULAS:
        return FORMULAS[step.op]
    slope, dy = names.get("slope"), names.get("dy")
    known = (isinstance(slope, np.ndarray) and slope.shape == np.shape(dy)
             and np.allclose(step.output, dy * slope, rtol=1e-5, atol=0))
    return SLOPE if known else {}


def gradients(step, names):
    """{input's name: its gradient, or ``None``} of a backward step; attention's in three parts."""
    result = step.output if isinstance(step.output, tuple) else (step.output,)
    found = dict(zip(step.partner.gradients, result, strict=False))
    if step.op == "attention":
        dqkv = found.pop("qkv")
        found |= dict(zip("qkv", F.split_heads(dqkv, names["q"].shape[1]), strict=True))
    return found


def fields(cache):
    """{name: value} of a cache, those of a cache within it included."""
    found = {}
    for name, value in (cache._asdict() if hasattr(cache, "_asdict") else {}).items():
        found |= fields(value) if hasattr(value, "_asdict") else {name: value}
    return found


def one_hot(ids, n, dtype):
    """ids (...) -> (..., n), 1 at each id."""
    return (ids[..., None] == np.arange(n)).astype(dtype)


def spelled(formula, names):
    """A formula with each ~ written out, by the axes of what it stands for."""
    pieces = re.findall(r"(\w+)\[(~?)\w*\]", formula.put)
    axes = next((np.ndim(names[name]) for name, rest in pieces if rest), 1)
    return formula._replace(**{key: getattr(formula, key).replace("~", "btu"[:axes - 1])
                               for key in ("put", "at", "over")})


def cost(op, name, inputs):
    """Multiply-adds of a gradient that was never computed; 0 where it is no more than a copy."""
    x = inputs.get("x")
    rows = x.size // x.shape[-1] if isinstance(x, np.ndarray) and x.ndim else 0
    if op in ("linear", "unembedding") and name in ("x", "w"):
        return rows * inputs["w"].size
    if op == "lstm":
        return rows * inputs["w_ih" if name == "x" else name].size
    if op == "linear":
        return rows * inputs["b"].size
    if op in ("layer_norm", "positions", "embedding"):
        return inputs.get("x", inputs.get("ids")).size * (
            inputs["w"].shape[-1] if op == "embedding" else 1)
    return 0
