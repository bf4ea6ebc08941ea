"""Backward passes that a check of gradients must refuse, and unusual ones that it must accept.

``WRONG``: {name: (arguments, options, words that the report or the error must contain)}.
``RIGHT``: {name: (arguments, options)}.  ``tests/test_gradcheck.py`` runs them, and
``python -m benchmarks.checkers`` runs the pairs through other checkers.
"""

import functools
from types import SimpleNamespace

import numpy as np
from conftest import normal

from minifpt import functional as F
from minifpt.gpt2 import GPT2Config, LanguageModel
from minifpt.layers import MLP, Layer, Linear, Parameter


def with_cache(f):
    """A forward pass whose cache is its inputs."""
    if getattr(f, "nin", None) or f.__code__.co_argcount == 1:
        return lambda x: (f(x), (x,))
    return lambda x, y: (f(x, y), (x, y))


def changed(op_backward, i, f):
    """A backward pass whose gradient ``i`` is ``f(gradient, dy, cache)``."""
    def wrong(dy, cache):
        grads = op_backward(dy, cache)
        grads = list(grads if isinstance(grads, tuple) else (grads,))
        grads[i] = f(grads[i], dy, cache)
        return tuple(grads)
    return wrong


X, Y = normal(3, 4), normal(3, 4, seed=1)
LINEAR = X, normal(4, 4, seed=1), normal(4, seed=2)
NORM = normal(3, 5), 1 + normal(5, seed=1), normal(5, seed=2)
square, sin, product = (with_cache(f) for f in (lambda x: x * x, np.sin, lambda x, y: x * y))


def square_backward(dy, cache):
    return 2 * cache[0] * dy


def product_backward(dy, cache):
    x, y = cache
    return dy * y, dy * x


class Box:
    """A cache that is an object."""

    def __init__(self, x):
        self.x = x


def boxed(x):
    return np.sin(x), Box(x.copy())


def boxed_backward(dy, box):
    np.cos(box.x, out=box.x)
    return dy * box.x


def in_place(dy, cache):
    dy *= np.cos(cache[0])
    return dy + 0


SUM = np.zeros(4)


def accumulating(dy, cache):
    global SUM
    dx, dw, SUM = dy @ cache.w.T, cache.x.T @ dy, SUM + dy.sum(axis=0)
    return dx, dw, SUM


REMEMBERED = {}


def remembering(x):
    REMEMBERED["x"] = x.copy()
    return np.sin(x), x.shape


def of_one_entry(dy, cache):
    dx = np.cos(cache[0]) * dy
    dx[17, 31] += 1e-3
    return dx


def without_last_token(dy, cache):
    dx = np.cos(cache[0]) * dy
    dx[:, -1] = 0
    return dx


def clipped(limit):
    return with_cache(lambda x: np.clip(x, -limit, limit) ** 2)


def clipped_backward(limit):
    return lambda dy, cache: 2 * cache[0] * dy * (np.abs(cache[0]) < limit)


def unclipped(dy, cache):
    return 2 * cache[0] * dy


def bounded_product(x, y):
    return x * np.clip(y, -5, 5), (x, y)


def bounded_product_wrong(dy, cache):
    x, y = cache
    return dy * np.clip(y, -5, 5), dy * x


def attention_without_mask(dy, cache):
    scores = cache.q @ cache.k.swapaxes(-1, -2) / np.sqrt(cache.q.shape[-1])
    return F.attention_backward(dy, cache._replace(probabilities=F.softmax(scores)[0]))


def batch_norm(x, w, b, state=None):
    """Batch norm that keeps a running variance in a dictionary, as in CS231n."""
    mean, std = x.mean(axis=0), np.sqrt(x.var(axis=0) + 1e-5)
    if state is not None:
        state["var"] = 0.9 * state.get("var", 1.0) + 0.1 * x.var(axis=0)
    xhat = (x - mean) / std
    return xhat * w + b, (xhat, std, w)


def batch_norm_backward(dy, cache, variance=True):
    xhat, std, w = cache
    g = dy * w
    dx = (g - g.mean(axis=0) - variance * xhat * (g * xhat).mean(axis=0)) / std
    return dx, (dy * xhat).sum(axis=0), dy.sum(axis=0)


def series(x):
    """sin(x) / x, by its series near 0."""
    near = np.abs(x) < 0.05
    safe = np.where(near, 1.0, x)
    return np.where(near, 1 - x * x / 6 + x**4 / 120, np.sin(safe) / safe), (x, near, safe)


def series_backward(dy, cache, factor=1.0):
    x, near, safe = cache
    slope = np.where(near, factor * (-x / 3 + x**3 / 30),
                     (np.cos(safe) - np.sin(safe) / safe) / safe)
    return dy * slope


def both(x):
    return (np.sin(x), x.sum(axis=1)), x


def both_backward(dy, x, second=1.0):
    d_sin, d_sum = dy
    return d_sin * np.cos(x) + second * d_sum[:, None]


class Halved(Linear):
    """A layer whose weight gets half of its gradient."""

    def backward(self, dy, cache):
        dx, dw, db = F.linear_backward(dy, cache)
        self.weight.add_grad(0.5 * dw)
        self.bias.add_grad(db)
        return dx


class Overwriting(Linear):
    """A layer whose second backward pass replaces the gradient of the first."""

    def backward(self, dy, cache):
        self.weight.grad = None
        return super().backward(dy, cache)


class Remembering(Linear):
    """A layer that keeps its cache in itself."""

    def forward(self, x):
        y, self.cache = super().forward(x)
        return y, None

    def backward(self, dy, cache):
        return super().backward(dy, self.cache)


def layer(kind, *sizes, seed=0):
    layer = kind(*sizes, dtype=np.float64)
    for i, p in enumerate(layer.parameters()):
        p.data[:] = 1 + normal(*p.data.shape, seed=seed + i)
    return layer


def mlp(kind):
    """An MLP whose last layer is of this class."""
    mlp = layer(MLP, 3)
    mlp.c_proj.__class__ = kind
    return mlp


WRONG = {
    "layer norm without the mean": ((F.layer_norm, changed(
        F.layer_norm_backward, 0, lambda g, dy, c: g + (dy * c.w).mean(-1, keepdims=True) * c.rstd),
        NORM), {}, ["x: 15 of 15", "differ by one number along axis 1"]),
    "softmax without the sum": ((F.softmax, lambda dy, c: c.y * dy, (X,)), {}, ["x: 12 of 12"]),
    "nothing beside a large output": ((lambda x, w: (1e6 * x + 1e-4 * w, None), lambda dy, c: (
        1e6 * dy, 0 * dy), (X, normal(3, 4))), {}, ["w: "]),
    "a small gradient": ((lambda x: (1e-20 * x**3, x), lambda dy, x: 3e-20 * dy * x, (X,)), {},
                         ["x: 12 of 12"]),
    "half of a residual": ((with_cache(lambda x: x + np.sin(x)), lambda dy, c: dy, (X,)), {},
                           ["x: 12 of 12"]),
    "a sum over the wrong axis": ((F.linear, changed(
        F.linear_backward, 2, lambda g, dy, c: dy.sum(axis=1)), (normal(4, 4), *LINEAR[1:])), {},
        ["b: 4 of 4"]),
    "a sum forgotten": ((F.linear, changed(F.linear_backward, 2, lambda g, dy, c: dy), LINEAR), {},
                        [r"b has shape \(3, 4\), expected \(4,\)", "sum it over"]),
    "a mean for a sum": ((F.linear, changed(
        F.linear_backward, 2, lambda g, dy, c: dy.mean(axis=0)), LINEAR), {},
        ["b: 4 of 4", "0.333.* times"]),
    "a transpose of dw": ((F.linear, changed(F.linear_backward, 1, lambda g, *_: g.T), LINEAR), {},
                          ["w: 12 of 16|w: 16 of 16", "transposed"]),
    "w for its transpose": ((F.linear, changed(F.linear_backward, 0, lambda g, dy, c: dy @ c.w),
                             LINEAR), {}, ["x: 12 of 12"]),
    "a factor of 2": ((square, lambda dy, c: c[0] * dy, (normal(2, 5, 8),)), {},
                      [r"x: 80 of 80 .* x\[\d, \d, \d\]", "0.5 times"]),
    "a sign": ((with_cache(np.cos), lambda dy, c: dy * np.sin(c[0]), (X,)), {}, ["wrong sign"]),
    "a gradient of 0": ((F.linear, changed(F.linear_backward, 2, lambda g, *_: 0 * g), LINEAR), {},
                        ["b: 4 of 4", "0: a term is missing"]),
    "a factor of 1.00001": ((F.gelu, changed(F.gelu_backward, 0, lambda g, *_: g * (1 + 1e-5)),
                             (X,)), {}, ["x: .* of 12", "1.00001 times"]),
    "dy left out": ((square, lambda dy, c: 2 * c[0], (X,)), {}, ["x: 12 of 12",
                                                                  "not proportional to dy"]),
    "dy clipped": ((square, lambda dy, c: 2 * c[0] * np.clip(dy, -9, 9), (X,)), {},
                   ["gradient of x is not proportional to dy"]),
    "one entry of 2,000": ((sin, of_one_entry, (normal(40, 50),)), {}, [r"x\[17, 31\]"]),
    "one entry of 131,072": ((sin, of_one_entry, (normal(256, 512),)), {}, [r"x\[17, 31\]"]),
    "the last token": ((sin, without_last_token, (normal(2, 5, 3),)), {},
                       ["x: 6 of 30", r"x\[:, 4, :\]", "0: a term is missing"]),
    "a branch": ((with_cache(lambda x: np.maximum(x, 0.1 * x)), lambda dy, c: dy, (X,)), {},
                 [r"x: \d of 12", "where x < ", "10 times"]),
    "a fault above 5": ((clipped(5), unclipped, (X,)), {}, ["at a size of 8", r"where \|x\| > "]),
    "a fault above 5, from 0.1": ((clipped(5), unclipped, (0.1 * X,)), {}, ["at a size of 8"]),
    "a fault above 5 in the second input": ((bounded_product, bounded_product_wrong, (X, Y)), {},
                                            ["y: ", "at a size of 8"]),
    "a fault below 0.05": ((series, functools.partial(series_backward, factor=1.1), (X + 3,)),
                           {"far": 0.04}, ["x: .* of 12", "1.1 times", "at a size of 0.04"]),
    "a cache in an object, changed": ((boxed, boxed_backward, (X,)), {}, ["changes its cache"]),
    "an input, changed": ((with_cache(lambda x: np.exp(x, out=x)), lambda dy, c: dy * c[0], (X,)),
                          {}, ["forward pass changes its inputs"]),
    "dy, changed": ((sin, in_place, (X,)), {}, ["changes its argument dy"]),
    "a sum over calls": ((F.linear, accumulating, LINEAR), {}, ["b: two backward passes"]),
    "a cache in a global": ((remembering, lambda dy, _: dy * np.cos(REMEMBERED["x"]), (X,)), {},
                            ["another forward pass"]),
    "two gradients in the wrong order": ((product, lambda dy, c: product_backward(dy, c)[::-1],
                                          (X, Y)), {}, ["the gradient of y", "the gradient of x"]),
    "a broadcast, taken from one": ((with_cache(lambda x, y: x * y), lambda dy, c: (
        (dy * c[1])[:, :1], dy * c[0]), (X[:, :1], Y)), {}, ["x: 3 of 3"]),
    "ids that repeat": ((F.embedding, changed(F.embedding_backward, 0, lambda g, dy, c: np.stack(
        [dy[0], dy[1], 0 * dy[0]])), (np.array([0, 1, 1]), normal(3, 2))), {},
        ["w: 2 of 6", r"w\[1, :\]"]),
    "a reversed sum": ((with_cache(lambda x: np.cumsum(x, axis=1)),
                        lambda dy, c: np.cumsum(dy[:, ::-1], axis=1), (X,)), {},
                       ["reversed along axis 1"]),
    "attention without its mask": ((F.attention, attention_without_mask,
                                    (*normal(3, 1, 2, 4, 2),)), {}, ["[qk]: "]),
    "another dropout": ((lambda x: F.dropout(x, 0.5, np.random.default_rng(0)), lambda dy, c: dy,
                         (X,)), {}, ["x: "]),
    "the second output": ((both, functools.partial(both_backward, second=0.0), (X,)), {},
                          ["x: 12 of 12", "one number along axis 1"]),
    "batch norm without the variance": ((batch_norm, functools.partial(
        batch_norm_backward, variance=False), (normal(6, 3), *LINEAR[1][:2, :3])), {},
        ["x: 18 of 18"]),
    "a number that is none": ((sin, changed(lambda dy, c: dy * np.cos(c[0]), 0, lambda g, *_: (
        np.where(g == g[1, 2], np.nan, g))), (X,)), {}, [r"x: 1 of 12", r"x\[1, 2\]", "nan"]),
    "a layer's weight": ((layer(Halved, 3, 2), (normal(4, 3),)), {},
                        ["weight: 6 of 6", "0.5 times"]),
    "a layer in a layer": ((mlp(Halved), (normal(2, 4, 3),)), {},
                           ["c_proj.weight: 36 of 36", "0.5 times"]),
    "a layer by its methods": ((*(lambda t: (t.forward, t.backward))(layer(Halved, 3, 2)),
                                (normal(4, 3),)), {}, ["pass the layer itself"]),
    "a layer that overwrites": ((layer(Overwriting, 3, 2), (normal(4, 3),)), {}, ["must add up"]),
    "a layer that remembers": ((layer(Remembering, 3, 2), (normal(4, 3),)), {}, ["must add up"]),
    "no product at 0": ((with_cache(lambda x: x * x), lambda dy, c: 0 * dy, (np.zeros((2, 2)),)),
                        {}, ["at a size of 8 of x"]),
    "a complex gradient": ((square, lambda dy, c: square_backward(dy, c) + 0j, (X,)), {},
                           ["its input is real"]),
}


class BatchNorm:
    """Batch norm whose running variance is its own attribute."""

    def __init__(self):
        self.var = np.ones(3)

    def forward(self, x, w, b):
        self.var *= 0.9
        self.var += 0.1 * x.var(axis=0)
        return batch_norm(x, w, b)

    def backward(self, dy, cache):
        return batch_norm_backward(dy, cache)


def guarded(x):
    """The square root of numbers between 0 and 2."""
    if (x <= 0).any() or (x > 2).any():
        raise RuntimeError("x must be between 0 and 2")
    return np.sqrt(x), (x,)


def scaled(x, eps=0.0):
    return x * (1 + eps), eps


def in_float32(x):
    x = np.float32(x)
    return np.tanh(x), x


def drop(x, *, rng):
    mask = rng.random(x.shape) < 0.5
    return x * mask, mask


def maximum(x):
    """The largest of each row; the first where there are several."""
    return x.max(axis=1), (x.shape, x.argmax(axis=1))


def maximum_backward(dy, cache):
    dx = np.zeros(cache[0])
    dx[np.arange(len(dx)), cache[1]] = dy
    return dx


def sigmoid(x):
    y = 1 / (1 + np.exp(-np.abs(x)))
    y = np.where(x < 0, 1 - y, y)
    return y, y


def power_of_fft(x):
    z = np.fft.fft(x)
    return (z * z.conj()).real, z


class Mean(Layer):
    """A layer without parameters, whose backward pass takes no random numbers."""

    def forward(self, x):
        return x - x.mean(axis=1, keepdims=True), None

    def backward(self, dy, cache):
        return dy - dy.mean(axis=1, keepdims=True)


class Scale(Layer):
    """A layer that scales channels; ``Unscaled`` forgets that on the way back."""

    def __init__(self):
        self.w = Parameter(np.ones(4), "ln")

    def forward(self, x):
        return x * self.w.data, x

    def backward(self, dy, x):
        self.w.add_grad((dy * x).sum(axis=0))
        return dy * self.w.data


class Unscaled(Scale):
    def backward(self, dy, x):
        super().backward(dy, x)
        return dy


class Silent(Scale):
    def backward(self, dy, x):
        super().backward(dy, x)


def outer(x, y):
    def back(dy):
        return dy @ y, dy.T @ x
    return np.outer(x, y), back


TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 0.5], [0.0, 1.0, 4.0]])

RIGHT = {
    "numbers for arrays": ((with_cache(lambda x, y: x * y), product_backward, (2.0, 3.0)), {}),
    "a scalar": ((with_cache(lambda x: np.sum(x * x)), square_backward, (X,)), {}),
    "lists": ((with_cache(lambda x: np.sum(x**3)), lambda dy, c: 3 * dy * c[0] ** 2,
               ([1.0, 2.0, 3.0],)), {}),
    "a list of gradients": ((product, lambda dy, c: [*product_backward(dy, c)], (X, Y)), {}),
    "None for ids": ((F.embedding, lambda dy, c: (None, F.embedding_backward(dy, c)),
                      (np.array([0, 1, 1]), normal(3, 2))), {}),
    "dy written over": ((sin, lambda dy, c: np.multiply(dy, np.cos(c[0]), out=dy), (X,)), {}),
    "ReLU at 0": ((F.relu, F.relu_backward, (np.array([[0.0, 1.0, -2.0], [0.0, 0.0, 3.0]]),)), {}),
    "ReLU at many zeros": ((F.relu, F.relu_backward, (np.maximum(normal(20, 30), 0),)), {}),
    "the absolute value at 0": ((with_cache(np.abs), lambda dy, c: dy * np.sign(c[0]),
                                 (np.array([0.0, 1.0, -2.0]),)), {}),
    "a largest one of equals": ((maximum, maximum_backward, (TIES,)), {}),
    "a guarded domain": ((guarded, lambda dy, c: dy / (2 * np.sqrt(c[0])),
                          (np.linspace(0.2, 1.8, 6),)), {}),
    "a logarithm": ((with_cache(np.log), lambda dy, c: dy / c[0], (0.1 + np.abs(X),)), {}),
    "an arc cosine": ((with_cache(np.arccos), lambda dy, c: -dy / np.sqrt(1 - c[0] ** 2),
                       (np.tanh(X),)), {}),
    "float32 inside": ((in_float32, lambda dy, x: dy * (1 - np.tanh(x) ** 2), (X,)),
                       {"tolerance": 1e-2}),
    "a large constant": ((lambda x: (1e6 + np.sin(x), x), lambda dy, x: dy * np.cos(x), (X,)), {}),
    "inputs of 1e6": ((square, square_backward, (1e6 * X,)), {}),
    "inputs of 1e-8": ((square, square_backward, (1e-8 * X,)), {}),
    "softmax at 50": ((F.softmax, F.softmax_backward, (50 * X,)), {}),
    "softmax at 50, log": ((F.cross_entropy, F.cross_entropy_backward, (
        50 * X, np.array([0, 3, 1]))), {}),
    "a saturated sigmoid": ((sigmoid, lambda dy, y: dy * y * (1 - y), (20 * X,)), {}),
    "exp at 90": ((lambda x: (np.exp(x),) * 2, lambda dy, y: dy * y, (np.linspace(90, 100, 4),)),
                  {}),
    "1 / x": ((with_cache(lambda x: 1 / x), lambda dy, c: -dy / c[0] ** 2, (0.01 + np.abs(X),)),
              {}),
    "batch norm with its state": ((batch_norm, batch_norm_backward, (
        normal(6, 3), *LINEAR[1][:2, :3])), {"state": {"var": np.ones(3)}}),
    "batch norm as an object": ((*(lambda b: (b.forward, b.backward))(BatchNorm()), (
        normal(6, 3), *LINEAR[1][:2, :3])), {}),
    "dropout with a generator": ((drop, lambda dy, mask: dy * mask, (X,)), {
        "rng": np.random.default_rng(3)}),
    "an option called eps": ((scaled, lambda dy, eps: dy * (1 + eps), (X,)), {"eps": 0.5}),
    "an option called seed": ((lambda x, seed: (x * seed, seed), lambda dy, seed: dy * seed, (X,)),
                              {"seed": 3}),
    "two outputs": ((both, both_backward, (X,)), {}),
    "two outputs of one shape": ((lambda x: ((np.sin(x), np.cos(x)), x), lambda dy, x: (
        dy[0] * np.cos(x) - dy[1] * np.sin(x)), (X,)), {}),
    "no cache": ((lambda x: (3 * x, None), lambda dy, _: 3 * dy, (X,)), {}),
    "a cache in an object": ((boxed, lambda dy, box: dy * np.cos(box.x), (X,)), {}),
    "a namespace": ((lambda x: (x * x, SimpleNamespace(x=x)), lambda dy, c: 2 * c.x * dy, (X,)),
                    {}),
    "a function as the cache": ((outer, lambda dy, back: back(dy), (X[0], Y[1])), {}),
    "a partial function": ((functools.partial(F.layer_norm, eps=0.3), F.layer_norm_backward, NORM),
                           {}),
    "None for an option": ((F.attention, F.attention_backward, (*normal(3, 1, 2, 4, 2),)), {}),
    "broadcasting": ((with_cache(lambda x, y: x + y), lambda dy, c: (
        dy.sum(axis=1, keepdims=True), dy.sum(axis=0)), (X[:, :1], Y[0])), {}),
    "a gradient of 0 everywhere": ((lambda x: (0 * x + 1, None), lambda dy, _: 0 * dy, (X,)), {}),
    "a step": ((with_cache(np.floor), lambda dy, c: 0 * dy, (X,)), {}),
    "a permutation": ((lambda x: (np.sort(x), np.argsort(x)), lambda dy, i: dy[np.argsort(i)],
                       (X[0],)), {}),
    "complex numbers inside": ((power_of_fft, lambda dy, z: 2 * np.fft.ifft(dy * z).real * 4, (X,)),
                               {}),
    "a view of the input": ((lambda x: (x.T, None), lambda dy, _: dy.T, (X,)), {}),
    "inputs that are views": ((F.linear, F.linear_backward, (
        X.T, LINEAR[1][:3].T[:3], normal(6)[::2])), {}),
    "a gradient that cannot be written": ((
        with_cache(lambda x: x.sum()), lambda dy, c: np.broadcast_to(dy, c[0].shape), (X,)), {}),
    "saturated everywhere": ((clipped(5), clipped_backward(5), (20 + X,)), {}),
    "a clip that is kept": ((clipped(5), clipped_backward(5), (X,)), {}),
    "sin(x) / x near 0": ((series, series_backward, (X + 3,)), {"far": 0.04}),
    "131,072 entries": ((sin, lambda dy, c: dy * np.cos(c[0]), (normal(256, 512),)), {}),
    "a scale of 1": ((Scale(), (X,)), {}),
    "a step at whole numbers": ((with_cache(np.floor), lambda dy, c: 0 * dy, (TIES,)), {}),
    "more directions than entries": ((square, square_backward, (normal(70),)), {"directions": 100}),
    "a shared weight": ((LanguageModel(GPT2Config(1, 1, 4, 3, 5), dtype=np.float64), (
        np.array([[0, 4, 4]]),)), {}),
    "a layer without parameters": ((Mean(), (X,)), {}),
    "tanh at 1e-3": ((with_cache(np.tanh), lambda dy, c: dy / np.cosh(c[0]) ** 2, (1e-3 * X,)), {}),
}
