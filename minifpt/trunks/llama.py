"""Llama (Touvron et al. 2023, arXiv 2302.13971) as a trunk and as a language model: RMS norm,
rotary positions, grouped queries, a gated feed-forward part and hardly any bias.

Its blocks run as GPT-2's do.  Llama, and Qwen2 with its biases, are read from folders that
Transformers saved.
"""

from typing import Any

import numpy as np

from .. import checks, layers
from .. import fast as ops
from ..files import export, huggingface, weights
from ..files.weights import by_gpt2_name
from ..gpt2 import LanguageModel, draw
from ..machine import single_threaded_blas
from . import llama_files as stored
from .llama_files import LlamaConfig


class RMSNorm(layers.Layer):
    """Root-mean-square normalisation of the last axis with scale ``weight``."""

    def __init__(self, n, eps, dtype=np.float32):
        self.weight, self.eps = layers.Parameter(np.ones(n, dtype), "ln"), eps

    def forward(self, x):
        """x (..., C) -> y (..., C)."""
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


class GroupedAttention(layers.Layer):
    """Self-attention with rotary positions and fewer heads of keys and values than of queries."""

    def __init__(self, config, dtype=np.float32):
        c, few = config, config.n_embd // config.n_head * config.n_group
        self.q_proj, self.k_proj, self.v_proj = (
            projection(c.n_embd, n, dtype, "attn", c.qkv_bias) for n in (c.n_embd, few, few))
        self.o_proj = projection(c.n_embd, c.n_embd, dtype, "attn")
        self.config = c

    def forward(self, x, train=False, rng=None, past=None, last=None):
        """x (B, T, C) -> y (B, T, C); ``past`` and ``last`` as for GPT-2's."""
        c, start = self.config, past.n if past else 0
        p = c.dropout if train else 0.0
        q, q_proj = self.q_proj.forward(x)
        k, k_proj = self.k_proj.forward(x)
        v, v_proj = self.v_proj.forward(x)
        q, rope_q = ops.rope(q, c.n_head, c.rope_base, start)
        k, rope_k = ops.rope(k, c.n_group, c.rope_base, start)
        qkv, grouped = ops.grouped_heads(q, k, v, c.n_head)
        if past:
            past.shared = c.n_head // c.n_group           # the heads that grouped_heads repeats
        y, heads = ops.attention(qkv, c.n_head, p, rng, True, past)
        y, last = ops.last_tokens(y, last) if last else (y, None)
        y, o_proj = self.o_proj.forward(y)
        y, dropout = ops.dropout(y, p, rng)
        return y, dict(q_proj=q_proj, k_proj=k_proj, v_proj=v_proj, rope_q=rope_q, rope_k=rope_k,
                       grouped=grouped, heads=heads, last=last, o_proj=o_proj, dropout=dropout)

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C)."""
        dy = ops.dropout_backward(dy, cache["dropout"])
        dy = self.o_proj.backward(dy, cache["o_proj"])
        if cache["last"]:
            dy = ops.last_tokens_backward(dy, cache["last"])
        dqkv = ops.attention_backward(dy, cache["heads"])
        dq, dk, dv = ops.grouped_heads_backward(dqkv, cache["grouped"])
        dq = ops.rope_backward(dq, cache["rope_q"])
        dk = ops.rope_backward(dk, cache["rope_k"])
        dx = self.v_proj.backward(dv, cache["v_proj"])    # x went three ways
        dx = dx + self.k_proj.backward(dk, cache["k_proj"])
        return dx + self.q_proj.backward(dq, cache["q_proj"])


class GatedMLP(layers.Layer):
    """The feed-forward part: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config, dtype=np.float32):
        C, inner = config.n_embd, config.n_inner
        self.gate_proj, self.up_proj, self.down_proj = (
            projection(*shape, dtype, "mlp") for shape in ((C, inner), (C, inner), (inner, C)))
        self.dropout = config.dropout

    def forward(self, x, train=False, rng=None):
        """x (B, T, C) -> y (B, T, C)."""
        gate, gate_proj = self.gate_proj.forward(x)
        up, up_proj = self.up_proj.forward(x)
        y, swiglu = ops.swiglu(gate, up)
        y, down_proj = self.down_proj.forward(y)
        y, dropout = ops.dropout(y, self.dropout if train else 0.0, rng)
        return y, dict(gate_proj=gate_proj, up_proj=up_proj, swiglu=swiglu, down_proj=down_proj,
                       dropout=dropout)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dy = ops.dropout_backward(dy, cache["dropout"])
        dy = self.down_proj.backward(dy, cache["down_proj"])
        dgate, dup = ops.swiglu_backward(dy, cache["swiglu"])
        return (self.gate_proj.backward(dgate, cache["gate_proj"])
                + self.up_proj.backward(dup, cache["up_proj"]))


class LlamaBlock(layers.Block):
    """GPT-2's block of other parts: ``x = x + attn(ln_1(x))``, ``x = x + mlp(ln_2(x))``."""

    def __init__(self, config, dtype=np.float32):
        self.ln_1 = RMSNorm(config.n_embd, config.rms_norm_epsilon, dtype)
        self.attn = GroupedAttention(config, dtype)
        self.ln_2 = RMSNorm(config.n_embd, config.rms_norm_epsilon, dtype)
        self.mlp = GatedMLP(config, dtype)


class LlamaWeights(layers.Layer):
    """The base class of trunk and language model: it reads and writes weights in files."""

    @classmethod
    def from_pretrained(cls, name, dtype=np.float32, dropout=None):
        """Return a model with the weights of a name or path: a folder of a Llama or a Qwen2 that
        Transformers saved, or a weight file of ours.  ``dropout`` replaces the file's.  Raises
        ``FileNotFoundError`` or ``ValueError`` with one line."""
        path = weights.find(name)
        config, tensors = stored.load(path, dropout)
        model = cls(config, seed=None, dtype=dtype)
        stored.fill(path, by_gpt2_name(model), tensors, huggingface.is_checkpoint(path))
        return model

    def save(self, path, dtype=None, **provenance):
        """Write the weights with their config; see :func:`minifpt.files.export.save`."""
        export.save(self, path, dtype, provenance)

    def as_transformers(self):
        """Return the fields of a ``config.json`` and [(name, array)], as Transformers has them."""
        has_head = isinstance(self, LlamaLM)
        prefix = "model." if has_head else ""
        return stored.config_json(self.config, has_head), [
            (stored.their_name(name, prefix),
             array.T if stored.is_transposed(name, array) else array)
            for name, array in by_gpt2_name(self)]


class Llama(LlamaWeights):
    """A :class:`minifpt.fpt.Trunk`: the blocks and the last RMS norm.  Random weights start as
    GPT-2's do, scales at 1 and biases at 0; with ``seed=None`` all matrices are 0."""

    def __init__(self, config: LlamaConfig | None = None, seed: int | None = 0,
                 dtype: Any = np.float32):
        c = self.config = LlamaConfig() if config is None else config
        if not isinstance(c, LlamaConfig):
            raise ValueError(f"Llama: the config is {checks.brief(c)}, expected a LlamaConfig")
        self.dtype = checks.dtype("Llama", dtype)
        self.h = [LlamaBlock(c, dtype) for _ in range(c.n_layer)]
        self.ln_f = RMSNorm(c.n_embd, c.rms_norm_epsilon, dtype)
        draw_all(self, seed, c)

    @single_threaded_blas
    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C), embeddings -> (B, T, C), after ln_f; the options are those of
        :meth:`minifpt.GPT2.forward`."""
        layers.tokens_before("Llama", self.config, x, past)
        checks.dropout("Llama", self.config.dropout, train, rng)
        x, cache = x.astype(self.dtype, copy=False), {"need_dx": need_dx}
        x, cache["h"], keep = layers.blocks_forward(self.h, x, need_dx, train, rng, past, last)
        y, cache["ln_f"] = self.ln_f.forward(x)
        cache["shape"] = y.shape
        return y, cache if past is None and (keep or self.ln_f.learns()) else None

    @single_threaded_blas
    def backward(self, dy, cache):
        """dy as forward's y -> dx (B, T, C), or ``None`` if nothing below it learns."""
        dy = checks.backward("Llama", dy, cache, self.dtype)
        dy = self.ln_f.backward(dy, cache["ln_f"])
        dy = layers.blocks_backward(self.h, dy, cache["h"])
        return dy if cache["need_dx"] else None


class LlamaLM(LlamaWeights, LanguageModel):
    """A Llama as it is pretrained: token embedding, trunk, and scores by the same table, or by one
    of their own, ``lm_head``, unless the config says ``tied``."""

    def __init__(self, trunk=None, seed=0, dtype=np.float32):
        self.trunk = trunk if isinstance(trunk, Llama) else Llama(trunk, seed, dtype)
        c, self.dtype = self.trunk.config, self.trunk.dtype
        self.config = c
        self.wte = layers.Embedding(c.vocab_size, c.n_embd, self.dtype)
        self.lm_head = layers.Unembedding(self.wte.weight if c.tied else layers.Parameter(
            np.zeros((c.vocab_size, c.n_embd), self.dtype), "output"))
        draw_all(self, seed, c)


def draw_all(model, seed, config):
    """Fill the matrices of a model, but not those of a trunk inside it, with random weights."""
    for name, p in model.named_parameters() if seed is not None else ():
        if p.data.ndim == 2 and not name.startswith("trunk."):
            draw(name, p, seed, config)
