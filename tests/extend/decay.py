"""A trunk from nothing but what ``minifpt.fpt.Trunk`` asks for: ``h_t = keep * h_(t-1) + x_t``.

    minifpt train bit-xor --model decay.py:Decay --freeze full

It inherits from no class of ours.  ``config.n_embd``, ``dtype``, ``forward``, ``backward`` and
``named_parameters`` are all that is used.
"""

from types import SimpleNamespace

import numpy as np

from minifpt.layers import Parameter


class Decay:
    """x (B, T, C) -> (B, T, C): in each channel a sum of the past that fades."""

    def __init__(self, dtype=np.float32, n_embd=32):
        self.config, self.dtype = SimpleNamespace(n_embd=n_embd), np.dtype(dtype)
        self.keep = Parameter(np.linspace(0.5, 1.0, n_embd, dtype=dtype), group="attn")

    def forward(self, x, train=False, rng=None):
        h = x.copy()
        for t in range(1, x.shape[1]):
            h[:, t] += self.keep.data * h[:, t - 1]
        return h, h

    def backward(self, dy, cache):
        dx, h = dy.copy(), cache
        for t in reversed(range(1, dy.shape[1])):
            dx[:, t - 1] += self.keep.data * dx[:, t]
        self.keep.add_grad((dx[:, 1:] * h[:, :-1]).sum(axis=(0, 1)))
        return dx

    def named_parameters(self):
        yield "keep", self.keep
