"""The formula of each entry of an output or a gradient, with the names of the values in it.

``FORMULAS[op][gradient]`` and ``FORWARD[op]`` are each a :class:`Formula`.  Its letters stand for
axes: ``x[bti]`` is x at example b, token t, channel i.  A letter that the entry lacks is summed
over.
"""

import re
from collections import namedtuple

import numpy as np

from .. import functional as F

# text: as on paper.  at: the letters of the entry's axes, ~ for all leading ones.  put: an
# expression in names.  over: the letters it is summed over, ~ too.  times: the name of a number, a
# factor in front of all.  plus: what is added to the sum.
Formula = namedtuple("Formula", "text at put over times plus", defaults=("", "", ""))

FORWARD = {
    "linear": Formula("y = x @ w + b", "~o", "x[~i] * w[io]", "i", plus="b[o]"),
    "unembedding": Formula("y = x @ w.T", "~v", "x[~i] * w[vi]", "i"),
    "embedding": Formula("y = w[ids]", "~c", "one_hot[~v] * w[vc]", "v"),
    "bias": Formula("y = x + b", "~c", "x[~c] + b[c]"),
    "positions": Formula("y = x + w[t]", "btc", "x[btc] + w[tc]"),
    "layer_norm": Formula("y = xhat * w + b, xhat = (x - mean(x)) * rstd", "~c",
                          "(x[~c] - mean_x[~0]) * rstd[~0] * w[c] + b[c]"),
    "softmax": Formula("y = exp(x) / sum_j exp(x_j)", "~i", "exp_x[~i] / sum_exp_x[~0]"),
    "attention": Formula("y = dropout(A) V", "bhtd", "kept[bhts] * v[bhsd]", "s"),
    "residual": Formula("y = x + branch", "~c", "x[~c] + branch[~c]"),
}
ELEMENTWISE = Formula("y = f(x)", "~c", "f(x[~c])")
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
    "rms_norm": {
        "x": Formula("dx = (g - xhat * mean(g * xhat)) * rstd, g = dy * w", "~c",
                     "(dy[~c] * w[c] - xhat[~c] * mean_g_xhat[~0]) * rstd[~0]"),
        "w": Formula("dw = sum(dy * xhat)", "c", "dy[~c] * xhat[~c]", "~")},
    "swiglu": {
        "gate": Formula("dgate = silu'(gate) * dy * up", "~c", "slope_gate[~c] * dy[~c] * up[~c]"),
        "up": Formula("dup = dy * silu(gate)", "~c", "dy[~c] * activated[~c]")},
    "rope": {"x": Formula("dx = dy, rotated back", "btc", "back[btc]")},
    "grouped_heads": {
        "q": Formula("dq = the first third of dqkv", "btc", "dq[btc]"),
        "k": Formula("dk = sum of its copies' dk", "btc", "dk[btcr]", "r"),
        "v": Formula("dv = sum of its copies' dv", "btc", "dv[btcr]", "r")},
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
    """Return {name: array or number} of all that a backward step's formulas name.

    ``inner``: {op: backward step} of the operations that ran inside it.
    """
    names = {**step.inputs, **fields(step.inputs.get("cache"))}
    names.pop("cache", None)
    op, dy = step.op, names.get("dy")
    if op in ("layer_norm", "rms_norm"):
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
    elif op == "swiglu":
        names["slope_gate"] = F.silu_backward(np.ones_like(dy), F.ActivationCache(names["x"]))
    elif op == "rope":
        names["back"] = step.output
    elif op == "grouped_heads":
        (B, T, C), (*_, few), n_head = *names["shapes"], names["n_head"]
        D = C // n_head
        names["dq"], dk, dv = np.split(names["dqkv"], 3, axis=2)
        for name, d in (("dk", dk), ("dv", dv)):          # (B, T, few, copies)
            names[name] = np.moveaxis(d.reshape(B, T, few // D, -1, D), 3, 4).reshape(
                B, T, few, -1)
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


def forward_operands(step):
    """Return {name: array or number} of all that a forward step's formula names."""
    names = {**fields(step.cache), **step.inputs}         # a cache leaves out what no one needs
    x = names.get("x")
    if step.op == "layer_norm":
        names["mean_x"] = x.mean(-1, keepdims=True)
        names["rstd"] = 1 / np.sqrt(x.var(-1, keepdims=True) + names.get("eps", 1e-5))
    elif step.op == "softmax":
        names["exp_x"] = np.exp(x - x.max(-1, keepdims=True))
        names["sum_exp_x"] = names["exp_x"].sum(-1, keepdims=True)
    elif step.op == "embedding":
        names["one_hot"] = one_hot(names["ids"], len(names["w"]), names["w"].dtype)
    elif step.op == "attention" and "probabilities" in names:
        mask = names["mask"]
        names["kept"] = names["probabilities"] * (1 if mask is None else mask)
    return names


def forward_formula(step, names):
    """Return the :class:`Formula` of a forward step's output, or ``None``."""
    x, y = names.get("x"), step.output
    if step.op == "dropout":
        kept_all = names.get("mask") is None
        return Formula("y = x: nothing is dropped" if kept_all else "y = x * mask", "~c",
                       "x[~c]" if kept_all else "x[~c] * mask[~c]")
    if step.op == "attention" and "kept" not in names or step.op == "residual" and (
            x.shape != names["branch"].shape):
        return None
    isolated = (step.op not in FORMULAS and isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
                and x.shape == y.shape and len(step.gradients) == 1)
    return FORWARD.get(step.op) or (ELEMENTWISE._replace(text=f"y = {step.op}(x)",
                                                         put=f"{step.op}(x[~c])")
                                    if isolated else None)


def formulas(step, names):
    """Return {forward input's name: :class:`Formula`}.  An operation that is not in ``FORMULAS``
    has one only if it is elementwise."""
    if step.op == "dropout":
        kept_all = names["mask"] is None
        return {"x": Formula("dx = dy: nothing is dropped" if kept_all else "dx = dy * mask", "~c",
                             "dy[~c]" if kept_all else "dy[~c] * mask[~c]")}
    if step.op in FORMULAS:
        return FORMULAS[step.op]
    slope, dy = names.get("slope"), names.get("dy")
    known = (isinstance(slope, np.ndarray) and slope.shape == np.shape(dy)
             and np.allclose(step.output, dy * slope, rtol=1e-5, atol=0))
    return SLOPE if known else {}


def gradients(step, names):
    """Return {input's name: gradient or ``None``} of a backward step; attention has three parts."""
    result = step.output if isinstance(step.output, tuple) else (step.output,)
    grads = dict(zip(step.partner.gradients, result, strict=False))
    if step.op == "attention":
        dqkv = grads.pop("qkv")
        grads |= dict(zip("qkv", F.split_heads(dqkv, names["q"].shape[1]), strict=True))
    return grads


def fields(cache):
    """Return {name: value} of a cache, with the values of caches inside it."""
    values = {}
    for name, value in (cache._asdict() if hasattr(cache, "_asdict") else {}).items():
        values |= fields(value) if hasattr(value, "_asdict") else {name: value}
    return values


def one_hot(ids, n, dtype):
    """ids (...) -> (..., n), 1 at each id."""
    return (ids[..., None] == np.arange(n)).astype(dtype)


def spelled(formula, names):
    """Replace each ~ of a formula by letters, one for each leading axis of the array."""
    pieces = re.findall(r"(\w+)\[(~?)\w*\]", formula.put)
    axes = next((np.ndim(names[name]) for name, rest in pieces if rest), 1)
    return formula._replace(**{key: getattr(formula, key).replace("~", "btu"[:axes - 1])
                               for key in ("put", "at", "over", "plus")})


def cost(op, name, inputs):
    """Return the multiply-adds of a gradient that was never computed; 0 if it is only a copy."""
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
