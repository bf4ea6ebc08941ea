"""Parts of trunks other than GPT-2: RMS norm, linear layers without biases, a gated feed-forward
layer, and the way through the blocks."""

import numpy as np

from .. import checks, layers
from .. import fast as ops
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
        return ops.rms_norm(x, self.weight.data, self.eps, (True, self.weight.trainable))

    def backward(self, dy, cache):
        """dy (..., C) -> dx (..., C)."""
        dx, dw = ops.rms_norm_backward(dy, cache)
        self.weight.add_grad(dw)
        return dx


class NoBias:
    """Zeros in the place of a bias, which are not a parameter."""

    trainable = False

    def __init__(self, n, dtype):
        self.data = np.zeros(n, dtype)

    def add_grad(self, grad):
        """Take no gradient."""


def projection(n_in, n_out, dtype, group, bias=False):
    """Return a linear layer, with or without ``bias``."""
    layer = layers.Linear(n_in, n_out, dtype, group)
    if not bias:
        layer.bias = NoBias(n_out, dtype)
    return layer


class GatedMLP(layers.Layer):
    """The feed-forward part: ``down(act(gate(x)) * up(x))``."""

    def __init__(self, config, activation, dtype=np.float32):
        C, inner = config.n_embd, config.n_inner
        self.gate_proj, self.up_proj, self.down_proj = (
            projection(*shape, dtype, "mlp") for shape in ((C, inner), (C, inner), (inner, C)))
        self.act = layers.Activation(activation)
        self.dropout = config.dropout

    def forward(self, x, train=False, rng=None):
        """x (B, T, C) -> y (B, T, C)."""
        gate, gate_proj = self.gate_proj.forward(x)
        up, up_proj = self.up_proj.forward(x)
        gate, act = self.act.forward(gate)
        y, multiply = ops.multiply(gate, up)
        y, down_proj = self.down_proj.forward(y)
        p = checks.active_dropout("GatedMLP", self.dropout, train, rng)
        y, dropout = ops.dropout(y, p, rng)
        return y, dict(gate_proj=gate_proj, up_proj=up_proj, act=act, multiply=multiply,
                       down_proj=down_proj, dropout=dropout)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dy = ops.dropout_backward(dy, cache["dropout"])
        dy = self.down_proj.backward(dy, cache["down_proj"])
        dgate, dup = ops.multiply_backward(dy, cache["multiply"])
        dgate = self.act.backward(dgate, cache["act"])
        return (self.gate_proj.backward(dgate, cache["gate_proj"])
                + self.up_proj.backward(dup, cache["up_proj"]))


class Stack(layers.Layer):
    """The base class of trunks: layers below the blocks, the blocks, and a norm above them.

    below   names of the layers below the blocks, in their order.
    above   names of the layers above the blocks.
    """

    below, above = (), ("ln_f",)
    from_pretrained, save = classmethod(weights.load), export.save

    @single_threaded_blas
    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C), embeddings before positions are added -> y (B, T, C); the options are those
        of :meth:`minifpt.GPT2.forward`."""
        name, cache, keep = type(self).__name__, {}, need_dx
        layers.check_tokens(name, self.config, x, past)
        p = checks.active_dropout(name, self.config.dropout, train, rng)
        x = x.astype(self.dtype, copy=False)
        for layer in self.below:
            x, cache[layer] = getattr(self, layer).forward(x)
            keep = keep or getattr(self, layer).learns()
        if self.below:
            x, cache["dropout"] = ops.dropout(x, p, rng)
        cache["keep"] = keep
        x, cache["h"], keep = layers.blocks_forward(self.h, x, keep, train, rng, past, last)
        for layer in self.above:
            x, cache[layer] = getattr(self, layer).forward(x)
            keep = keep or getattr(self, layer).learns()
        cache["shape"] = x.shape
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
            dy = ops.dropout_backward(dy, cache["dropout"])
        for layer in reversed(self.below):
            dy = getattr(self, layer).backward(dy, cache[layer])
        return dy
