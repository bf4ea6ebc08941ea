"""A trunk that is no transformer: a recurrent network, ``h_t = tanh(a_t + h_(t-1) @ state)``.

    minifpt train bit-xor --model rnn.py:RNN --freeze full

``a_t = x_t @ inputs.weight + inputs.bias``, and a layer norm reads h.  Its backward pass runs
through time, from the last token to the first.
"""

from types import SimpleNamespace

import numpy as np

from minifpt.layers import Layer, LayerNorm, Linear, Parameter


class RNN(Layer):
    """x (B, T, C) -> (B, T, C)."""

    def __init__(self, seed=0, dtype=np.float32, n_embd=32):
        self.config, self.dtype = SimpleNamespace(n_embd=n_embd), np.dtype(dtype)
        self.inputs = Linear(n_embd, n_embd, dtype, group="mlp")
        self.state = Parameter(np.zeros((n_embd, n_embd), dtype), group="attn")
        self.ln_f = LayerNorm(n_embd, dtype=dtype)
        rng = np.random.default_rng(seed)
        for p in (self.inputs.weight, self.state):
            p.data[...] = rng.normal(0.0, n_embd ** -0.5, p.data.shape)

    def forward(self, x, train=False, rng=None):
        cache = {}
        a, cache["inputs"] = self.inputs.forward(x)
        h = cache["h"] = np.zeros((len(x), x.shape[1] + 1, x.shape[2]), x.dtype)
        for t in range(x.shape[1]):                       # h[:, t] is the state before token t
            h[:, t + 1] = np.tanh(a[:, t] + h[:, t] @ self.state.data)
        y, cache["ln_f"] = self.ln_f.forward(h[:, 1:])
        return y, cache

    def backward(self, dy, cache):
        dy, h = self.ln_f.backward(dy, cache["ln_f"]), cache["h"]
        da, dh = np.empty_like(dy), 0.0                   # dh: what comes from the next token
        for t in reversed(range(dy.shape[1])):
            da[:, t] = (dy[:, t] + dh) * (1.0 - h[:, t + 1] ** 2)
            dh = da[:, t] @ self.state.data.T
        self.state.add_grad(np.tensordot(h[:, :-1], da, axes=((0, 1), (0, 1))))
        return self.inputs.backward(da, cache["inputs"])
