"""How each entry of an output or a gradient is computed, with the names of the values in it.

``FORMULAS[op][gradient]`` and ``FORWARD[op]`` are each a :class:`Formula`.  Its letters stand for
axes: ``x[bti]`` is x at example b, token t, channel i.  A letter that the entry lacks is summed
over.  The formula on paper is the docstring's, see :func:`text_of`.
"""

import inspect
import re
from collections import namedtuple

import numpy as np

# at: the letters of the entry's axes, ~ for all leading ones.  put: an expression in names.  over:
# the letters it is summed over, ~ too.  times: the name of a number, a factor in front of all.
# plus: what is added to the sum.
Formula = namedtuple("Formula", "at put over times plus", defaults=("", "", ""))

FORWARD = {
    "linear": Formula("~o", "x[~i] * w[io]", "i", plus="b[o]"),
    "unembedding": Formula("~v", "x[~i] * w[vi]", "i"),
    "embedding": Formula("~c", "one_hot[~v] * w[vc]", "v"),
    "bias": Formula("~c", "x[~c] + b[c]"),
    "positions": Formula("btc", "x[btc] + w[tc]"),
    "layer_norm": Formula("~c", "(x[~c] - mean_x[~0]) * rstd[~0] * w[c] + b[c]"),
    "softmax": Formula("~i", "exp_x[~i] / sum_exp_x[~0]"),
    "attention": Formula("bhtd", "kept[bhts] * v[bhsd]", "s"),
}
SLOPE = {"x": Formula("~c", "dy[~c] * slope[~c]")}
FORMULAS = {
    "linear": {"x": Formula("~i", "dy[~o] * w[io]", "o"),
               "w": Formula("io", "x[~i] * dy[~o]", "~"),
               "b": Formula("o", "dy[~o]", "~")},
    "unembedding": {"x": Formula("~i", "dy[~v] * w[vi]", "v"),
                    "w": Formula("vi", "dy[~v] * x[~i]", "~")},
    "embedding": {"w": Formula("vc", "one_hot[~v] * dy[~c]", "~")},
    "bias": {"x": Formula("~c", "dy[~c]"), "b": Formula("c", "dy[~c]", "~")},
    "positions": {"x": Formula("~c", "dy[~c]"), "w": Formula("tc", "dy[btc]", "b")},
    "layer_norm": {"x": Formula("~c", "(dy[~c] * w[c] - mean_g[~0] - xhat[~c] * mean_g_xhat[~0])"
                                      " * rstd[~0]"),
                   "w": Formula("c", "dy[~c] * xhat[~c]", "~"),
                   "b": Formula("c", "dy[~c]", "~")},
    "rms_norm": {"x": Formula("~c", "(dy[~c] * w[c] - xhat[~c] * mean_g_xhat[~0]) * rstd[~0]"),
                 "w": Formula("c", "dy[~c] * xhat[~c]", "~")},
    "multiply": {"gate": Formula("~c", "dy[~c] * up[~c]"),
                 "up": Formula("~c", "dy[~c] * gate[~c]")},
    "rope": {"x": Formula("bhtd", "back[bhtd]")},
    "softmax": {"x": Formula("~i", "y[~i] * (dy[~i] - sum_dy_y[~0])")},
    "attention": {"q": Formula("bhtd", "ds[bhts] * k[bhsd]", "s", "scale"),
                  "k": Formula("bhsd", "ds[bhts] * q[bhtd]", "t", "scale"),
                  "v": Formula("bhsd", "kept[bhts] * dy[bhtd]", "t"),
                  "bias": Formula("hts", "ds[bhts]", "b")},
    "last_tokens": {"x": Formula("~c", "padded[~c]")},
    "log_sum_exp": {"x": Formula("~v", "dy[~0] * e[~v] / sum_e[~0]")},
    "cross_entropy": {"logits": Formula("~v", "(p[~v] - one_hot[~v]) * dy[] / n[]")},
}


def text_of(function, name):
    """Return the formula of a value, such as y or dx, in a function's docstring, or "" if there is
    none: a piece of code, or a part of an indented line, that begins with ``NAME =``."""
    doc = inspect.getdoc(function) or ""
    pieces = [*re.findall(r"``([^`]+)``", doc), *re.split(r"\n| {2,}", doc)]
    return next((" ".join(piece.split()) for piece in pieces
                 if re.match(rf"{name}(_\S+|\[[^]]*\])? = ", piece, re.IGNORECASE)), "")


def operands(step, inner):
    """Return {name: array or number} of all that a backward step's formulas name.

    ``inner``: {op: backward step} of the operations that ran inside it.
    """
    op, (dy, *_, cache) = step.op, step.inputs.values()   # a user may name them otherwise
    names = {**step.inputs, "dy": dy, **fields(cache)}
    if op in ("layer_norm", "rms_norm"):
        g = dy * names["w"]
        if names.get("xhat") is not None:
            names["mean_g"] = g.mean(-1, keepdims=True)
            names["mean_g_xhat"] = (g * names["xhat"]).mean(-1, keepdims=True)
    elif op == "softmax":
        names["sum_dy_y"] = np.vecdot(dy, names["y"])[..., None]
    elif op == "attention":
        q, mask = names["q"], names["mask"]
        names["kept"] = names["probabilities"] * (1 if mask is None else mask)
        names["scale"] = 1.0 / q.shape[-1] ** 0.5
        if "softmax" in inner:
            names["ds"] = inner["softmax"].output
    elif op == "rope":
        names["back"] = step.output
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
        names["slope"] = step.function(np.ones_like(dy), cache)
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
        return Formula("~c", "x[~c]" if names.get("mask") is None else "x[~c] * mask[~c]")
    if step.op == "attention" and ("kept" not in names or is_shared(names)):
        return None
    is_elementwise = (
        step.op not in FORMULAS and isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
        and x.shape == y.shape and len(step.gradients) == 1)
    return FORWARD.get(step.op) or (
        Formula("~c", f"{step.op}(x[~c])") if is_elementwise else None)


def formulas(step, names):
    """Return {forward input's name: :class:`Formula`}.  An operation that is not in ``FORMULAS``
    has one only if it is elementwise."""
    if step.op == "dropout":
        return {"x": Formula("~c", "dy[~c]" if names["mask"] is None else "dy[~c] * mask[~c]")}
    if step.op == "attention" and is_shared(names):
        return {"bias": FORMULAS["attention"]["bias"]}    # which has all heads of queries
    if step.op in FORMULAS:
        return FORMULAS[step.op]
    slope, dy = names.get("slope"), names.get("dy")
    is_elementwise = (isinstance(slope, np.ndarray) and slope.shape == np.shape(dy)
                      and np.allclose(step.output, dy * slope, rtol=1e-5, atol=0))
    return SLOPE if is_elementwise else {}


def is_shared(names):
    """Return whether several heads of queries share a head of keys in an attention."""
    return names["q"].shape[1] != names["k"].shape[1]


def gradients(step):
    """Return {input's name: gradient} of a backward step, without those that are ``None``."""
    result = step.output if isinstance(step.output, tuple) else (step.output,)
    return {name: grad for name, grad in zip(step.partner.gradients, result, strict=False)
            if grad is not None}


def fields(cache):
    """Return {name: value} of a cache, with the values of caches inside it."""
    values = {}
    for name, value in (cache._asdict() if hasattr(cache, "_asdict") else {}).items():
        values |= fields(value) if hasattr(value, "_asdict") else {name: value}
    return values


def one_hot(ids, n, dtype):
    """Return one-hot vectors, ids (...) -> (..., n), 1 at each id."""
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
    if op in ("layer_norm", "rms_norm", "positions", "embedding"):
        return inputs.get("x", inputs.get("ids")).size * (
            inputs["w"].shape[-1] if op == "embedding" else 1)
    return 0
