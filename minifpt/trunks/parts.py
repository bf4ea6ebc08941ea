"""Parts of trunks other than GPT-2: RMS norm and a gated feed-forward layer."""

import numpy as np

from .. import checks, layers
from ..fast import ops


class RMSNorm(layers.Layer):
    """Root-mean-square normalisation of the last axis with scale ``weight``."""

    def __init__(self, n, eps, dtype=np.float32):
        self.weight, self.eps = layers.Parameter(np.ones(n, dtype), "ln"), eps

    def forward(self, x):
        """x (..., C) -> y (..., C)."""
        if np.shape(x)[-1:] != self.weight.data.shape:
            layers.refuse_channels(self, x, len(self.weight.data))
        return ops().rms_norm(x, self.weight.data, self.eps)

    def backward(self, dy, cache):
        """dy (..., C) -> dx (..., C)."""
        dx, dw = ops().rms_norm_backward(dy, cache)
        self.weight.add_grad(dw)
        return dx


class GatedMLP(layers.Layer):
    """The feed-forward part: ``down(act(gate(x)) * up(x))``, without biases."""

    def __init__(self, config, activation, dtype=np.float32):
        C, inner = config.n_embd, config.n_inner
        self.gate_proj = layers.Linear(C, inner, dtype, bias=False)
        self.up_proj = layers.Linear(C, inner, dtype, bias=False)
        self.down_proj = layers.Linear(inner, C, dtype, bias=False, writes_stream=True)
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
