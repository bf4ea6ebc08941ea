"""Parts of trunks other than GPT-2: RMS norm, linear layers without biases, a gated feed-forward
layer, a block of any parts, and the way through the blocks."""

from typing import Any

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..files import export, weights
from ..machine import single_threaded_blas


class RMSNorm(layers.Layer):
    """Root-mean-square normalisation of the last axis with scale ``weight``."""

    def __init__(self, n, eps, dtype=np.float32):
        self.weight, self.eps = layers.Parameter(np.ones(n, dtype), "ln"), eps

    def forward(self, x):
        """x (..., C) -> y (..., C)."""
        if np.shape(x)[-1:] != self.weight.data.shape:
            layers.refuse_channels(self, x, len(self.weight.data))
        return ops().rms_norm(x, self.weight.data, self.eps, (True, self.weight.trainable))

    def backward(self, dy, cache):
        """dy (..., C) -> dx (..., C)."""
        dx, dw = ops().rms_norm_backward(dy, cache)
        self.weight.add_grad(dw)
        return dx


class NoBias:
    """Zeros in the place of a bias, which are not a parameter."""

    trainable = False

    def __init__(self, data):
        self.data = data

    def add_grad(self, grad):
        """Take no gradient."""


def remove_biases(model):
    """Put a :class:`NoBias` in the place of the bias of each linear layer of a new model."""
    for _, layer in layers.named_layers(model):
        if isinstance(layer, layers.Linear):
            layer.bias = NoBias(layer.bias.data)


class GatedMLP(layers.Layer):
    """The feed-forward part: ``down(act(gate(x)) * up(x))``, without biases."""

    def __init__(self, config, activation, dtype=np.float32):
        C, inner = config.n_embd, config.n_inner
        self.gate_proj, self.up_proj, self.down_proj = (
            layers.Linear(*shape, dtype) for shape in ((C, inner), (C, inner), (inner, C)))
        remove_biases(self)
        self.act = layers.Activation(activation)
        self.dropout = config.dropout

    def forward(self, x, train=False, rng=None):
        """x (B, T, C) -> y (B, T, C)."""
        gate, gate_proj = self.gate_proj.forward(x)
        up, up_proj = self.up_proj.forward(x)
        gate, act = self.act.forward(gate)
        y, multiply = ops().multiply(gate, up)
        y, down_proj = self.down_proj.forward(y)
        p = checks.active_dropout("GatedMLP", self.dropout, train, rng)
        y, dropout = ops().dropout(y, p, rng)
        return y, dict(gate_proj=gate_proj, up_proj=up_proj, act=act, multiply=multiply,
                       down_proj=down_proj, dropout=dropout)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dy = ops().dropout_backward(dy, cache["dropout"])
        dy = self.down_proj.backward(dy, cache["down_proj"])
        dgate, dup = ops().multiply_backward(dy, cache["multiply"])
        dgate = self.act.backward(dgate, cache["act"])
        return (self.gate_proj.backward(dgate, cache["gate_proj"])
                + self.up_proj.backward(dup, cache["up_proj"]))


class PreNormBlock(layers.Block):
    """GPT-2's block of other parts: ``x = x + attn(ln_1(x))``, ``x = x + mlp(ln_2(x))``."""

    def __init__(self, ln_1, attn, ln_2, mlp):
        self.ln_1, self.attn, self.ln_2, self.mlp = ln_1, attn, ln_2, mlp


class Stack(layers.Layer):
    """The base class of trunks: layers below the blocks, the blocks, and a norm above them.

    A subclass has a ``config_type``, and a method ``build(config, dtype)`` that makes the layers.
    ``below`` and ``above`` are the names of the layers below and above the blocks, in their order.

    Random weights start as GPT-2's do, scales at 1 and biases at 0; with ``seed=None`` all matrices
    are 0.
    """

    below, above = (), ("ln_f",)
    from_pretrained, save = classmethod(weights.load), export.save

    def __init__(self, config: Any = None, seed: int | None = 0, dtype: Any = np.float32):
        name, kind = type(self).__name__, self.config_type
        c = self.config = kind() if config is None else config
        if not isinstance(c, kind):
            raise ValueError(f"{name}: the config is {checks.brief(c)}, expected an instance of "
                             f"{kind.__name__}")
        self.dtype = checks.dtype(name, dtype)
        self.build(c, dtype)
        layers.draw_all(self, seed, c)

    @single_threaded_blas
    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C), embeddings before positions are added -> y (B, T, C); the options are those
        of :meth:`minifpt.GPT2.forward`."""
        name = type(self).__name__
        layers.check_tokens(name, self.config, x, past)
        p = checks.active_dropout(name, self.config.dropout, train, rng)
        x = x.astype(self.dtype, copy=False)
        cache = {"keep": need_dx or any(getattr(self, layer).learns() for layer in self.below)}
        for layer in self.below:
            x, cache[layer] = getattr(self, layer).forward(x)
        if self.below:
            x, cache["dropout"] = ops().dropout(x, p, rng)
        x, cache["h"], keep = layers.blocks_forward(
            self.h, x, cache["keep"], train, rng, past, last)
        for layer in self.above:
            x, cache[layer] = getattr(self, layer).forward(x)
        cache["shape"] = x.shape
        keep = keep or any(getattr(self, layer).learns() for layer in self.above)
        return x, cache if past is None and keep else None

    @single_threaded_blas
    def backward(self, dy, cache):
        """dy with the shape of y -> dx (B, T, C), or ``None`` if nothing below the blocks
        learns."""
        dy = checks.incoming_gradient(type(self).__name__, dy, cache, self.dtype)
        for layer in reversed(self.above):
            dy = getattr(self, layer).backward(dy, cache[layer])
        dy = layers.blocks_backward(self.h, dy, cache["h"])
        if not cache["keep"]:
            return None
        if self.below:
            dy = ops().dropout_backward(dy, cache["dropout"])
        for layer in reversed(self.below):
            dy = getattr(self, layer).backward(dy, cache[layer])
        return dy
