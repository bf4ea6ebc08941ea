"""Parts of trunks other than GPT-2: fields of their configs, RMS norm, rotary positions, a gated
feed-forward part, and a language model with a table of its own for the scores."""

from dataclasses import dataclass

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..gpt2 import LanguageModel


@dataclass(frozen=True)
class TrunkConfig:
    """The fields that all trunks have; names that ``GPT2Config`` has, too, mean the same.

    model_type   the family's name in files, which tells it from a GPT-2.
    n_inner      channels inside the feed-forward part.
    head_dim     channels of a head; ``None`` is ``n_embd / n_head``.
    """

    model_type: str = ""
    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 128
    n_positions: int = 1024
    vocab_size: int = 256
    n_inner: int | None = None
    head_dim: int | None = None
    dropout: float = 0.1
    initializer_range: float = 0.02
    scaled_residual_init: bool = True
    causal: bool = True

    def check(self, n_inner, kinds=(), sizes=(), positive=(), flags=(), is_divided=False,
              **defaults):
        """Check these fields and others, as :func:`minifpt.checks.fields` does; ``kinds`` are the
        model types, if there are several.  ``is_divided`` says that the heads together have
        ``n_embd`` channels, as they do where ``head_dim`` is ``None``."""
        name, is_divided = type(self).__name__, is_divided or self.head_dim is None
        checks.one_of(name, "model_type", self.model_type, kinds or [type(self).model_type])
        checks.fields(self, sizes=("n_layer", "n_head", "n_embd", "n_positions", "vocab_size",
                                   *sizes), n_inner=n_inner,
                      head_dim=lambda: max(1, self.n_embd // self.n_head),
                      positive=("initializer_range", *positive),
                      flags=("scaled_residual_init", *flags), **defaults)
        if is_divided and self.n_head * self.head_dim != self.n_embd:
            raise ValueError(f"{name}: {self.n_embd} channels cannot be divided into "
                             f"{self.n_head} heads of {self.head_dim} channels")
        if self.causal != type(self).causal:
            raise ValueError(f"{name}: causal is {self.causal}, expected {type(self).causal}")
        if hasattr(self, "activation_function"):
            checks.one_of(name, "activation_function", self.activation_function,
                          layers.ACTIVATIONS)


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


class RotaryAttention(layers.Attention):
    """Self-attention with rotary positions, ``rope_base`` their base: of each head of queries and
    keys the first ``n_turned`` channels are rotated, by angles times ``rope_scale``, if there is
    one."""

    rope_scale = None

    def __init__(self, config, dtype=np.float32):
        super().__init__(config.n_embd, config.n_head, config.dropout, dtype)
        self.rope_base, self.n_turned = config.rope_base, config.n_turned

    def turn(self, q, k, start, cache):
        """Rotate q and k by their positions."""
        (q, cache["rope_q"]), (k, cache["rope_k"]) = (self.rotate(x, start) for x in (q, k))
        return q, k

    def turn_backward(self, dq, dk, cache):
        """Rotate the gradients of q and k back."""
        return (self.rotate_backward(dq, cache["rope_q"]),
                self.rotate_backward(dk, cache["rope_k"]))

    def rotate(self, x, start):
        """x (B, H, T, D), the first token at position ``start`` -> y (B, H, T, D)."""
        n = self.n_turned
        scale = {} if self.rope_scale is None else {"scale": self.rope_scale}
        y, cache = ops().rope(x[..., :n], self.rope_base, start, **scale)
        return self.behind(y, x), cache

    def rotate_backward(self, dy, cache):
        """dy (B, H, T, D) -> dx (B, H, T, D)."""
        return self.behind(ops().rope_backward(dy[..., :self.n_turned], cache), dy)

    def behind(self, turned, x):
        """Return the rotated channels, and behind them those of x that are not."""
        rest = x[..., self.n_turned:]
        return np.concatenate([turned, rest], axis=-1) if rest.size else turned


class GatedMLP(layers.Layer):
    """The feed-forward part: ``down(act(gate(x)) * up(x))``, as a rule without biases."""

    def __init__(self, config, activation, dtype=np.float32, bias=False):
        C, inner = config.n_embd, config.n_inner
        self.gate_proj = layers.Linear(C, inner, dtype, bias=bias)
        self.up_proj = layers.Linear(C, inner, dtype, bias=bias)
        self.down_proj = layers.Linear(inner, C, dtype, bias=bias, writes_stream=True)
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


class TwoTables(LanguageModel):
    """A language model that scores by the table of its tokens, or by one of its own, ``lm_head``,
    unless the config says ``tied``."""

    def __init__(self, trunk=None, seed=0, dtype=np.float32):
        super().__init__(trunk, seed, dtype)
        if not self.config.tied:
            self.lm_head = layers.Unembedding(
                layers.Parameter(np.zeros_like(self.wte.weight.data), "output"))
            layers.draw_all(self, seed, self.config)
