"""The LSTM trunk: the usual model of sequences before there were transformers."""

import math
from dataclasses import dataclass

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..files.families import Family
from ..gpt2 import Trunk


@dataclass(frozen=True)
class LSTMConfig:
    """The sizes and options of an LSTM trunk, with the names of :class:`minifpt.GPT2Config`.

    residual            whether each layer's input is added to its output.
    positions           whether ``n_positions`` vectors are added to the tokens, as in GPT-2.
    initializer_range   standard deviation of random weights; ``None`` is PyTorch's,
                        ``1 / sqrt(3 n_embd)``.
    """

    n_layer: int = 3
    n_embd: int = 128
    n_positions: int = 1024
    dropout: float = 0.1
    residual: bool = False
    positions: bool = False
    layer_norm_epsilon: float = 1e-5
    initializer_range: float | None = None

    def __post_init__(self):
        checks.fields(self, sizes=("n_layer", "n_embd", "n_positions"),
                      positive=("layer_norm_epsilon",), flags=("residual", "positions"))
        if self.initializer_range is not None:
            checks.fields(self, positive=("initializer_range",))


class Recurrence(layers.Layer):
    """One layer of long short-term memory: ``weight_ih`` (C, 4C) reads the token, ``weight_hh``
    (C, 4C) the state, and ``bias`` (4C,) is the sum of PyTorch's two.

    All three are in the group ``attn``: like attention in GPT-2 they mix tokens, and the paper
    freezes them.
    """

    runs_in_parts = False                                 # half a batch takes as long

    def __init__(self, n_embd, dtype=np.float32):
        self.weight_ih = layers.Parameter(np.zeros((n_embd, 4 * n_embd), dtype), "attn")
        self.weight_hh = layers.Parameter(np.zeros((n_embd, 4 * n_embd), dtype), "attn")
        self.bias = layers.Parameter(np.zeros(4 * n_embd, dtype), "attn")

    def forward(self, x):
        """x (B, T, C) -> h (B, T, C)."""
        weights = self.weight_ih, self.weight_hh, self.bias
        need = True, *(p.trainable for p in weights)
        return ops().lstm(x, *(p.data for p in weights), need)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dx, dw_ih, dw_hh, db = ops().lstm_backward(dy, cache)
        self.weight_ih.add_grad(dw_ih)
        self.weight_hh.add_grad(dw_hh)
        self.bias.add_grad(db)
        return dx


class RecurrentBlock(layers.Layer):
    """Layer norm, recurrence, dropout: ``y = dropout(lstm(ln_1(x)))``, with ``residual`` plus x."""

    def __init__(self, config, dropout, dtype=np.float32):
        self.ln_1 = layers.LayerNorm(config.n_embd, config.layer_norm_epsilon, dtype)
        self.lstm = Recurrence(config.n_embd, dtype)
        self.dropout, self.residual = dropout, config.residual

    def forward(self, x, train=False, rng=None, last=None):
        """x (B, T, C) -> y (B, T, C), or (B, last, C) for the last tokens only."""
        y, ln_1 = self.ln_1.forward(x)
        y, lstm = self.lstm.forward(y)
        p = checks.active_dropout("RecurrentBlock", self.dropout, train, rng)
        y, dropout = ops().dropout(y, p, rng)
        y = x + y if self.residual else y
        y, last = ops().last_tokens(y, last) if last else (y, None)
        return y, dict(ln_1=ln_1, lstm=lstm, dropout=dropout, last=last)

    def backward(self, dy, cache):
        """dy with the shape of y -> dx (B, T, C)."""
        if cache["last"]:
            dy = ops().last_tokens_backward(dy, cache["last"])
        dx = ops().dropout_backward(dy, cache["dropout"])
        dx = self.lstm.backward(dx, cache["lstm"])
        dx = self.ln_1.backward(dx, cache["ln_1"])
        return dy + dx if self.residual else dx


class LSTM(Trunk):
    """The trunk: optional positions, the layers, the last layer norm.

    Dropout acts on the output of each layer but the last, as in PyTorch's LSTM.  Weights and
    biases start uniform with mean 0, positions normal as in GPT-2.

    As in GPT-2, a layer norm stands before each layer and after the last.  The LSTM in the
    paper's code has layer norms inside: on both products and on the cell.
    """

    config_type, dropout_below = LSTMConfig, False

    def build(self, config, dtype):
        """Make the layers."""
        c = config
        if c.positions:
            self.wpe, self.below = layers.Positions(c.n_positions, c.n_embd, dtype), ("wpe",)
        self.h = [RecurrentBlock(c, c.dropout if i < c.n_layer - 1 else 0.0, dtype)
                  for i in range(c.n_layer)]
        self.ln_f = layers.LayerNorm(c.n_embd, c.layer_norm_epsilon, dtype)

    def draw(self, seed):
        """Fill the weights with random numbers, and the positions."""
        c = self.config
        for name, p in self.named_parameters():
            if p.group == "attn":
                p.data[...] = uniform(p.data.shape, seed, name)
                p.data *= c.initializer_range or 1 / math.sqrt(3 * c.n_embd)
            elif p.group == "pos":
                p.data[...] = layers.standard_normal(p.data.shape, seed, name)
                p.data *= 0.02


def uniform(shape, seed, name):
    """Return uniform numbers of mean 0 and standard deviation 1, float32, which depend on
    ``seed`` and ``name`` alone."""
    return math.sqrt(3) * (2 * layers.generator(seed, name).random(shape, np.float32) - 1)


FAMILY = Family("LSTM", "lstm", LSTMConfig, LSTM)
