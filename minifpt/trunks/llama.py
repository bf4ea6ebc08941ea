"""Llama (Touvron et al. 2023, arXiv 2302.13971) as a trunk and as a language model: RMS norm,
rotary positions, grouped queries, a gated feed-forward part and hardly any bias.

Its blocks run as GPT-2's do.  Llama, and Qwen2 with its biases, are read from folders that
Transformers saved.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..files import export, weights
from ..files.families import SIZES, Family
from ..gpt2 import LanguageModel, Trunk
from .parts import GatedMLP, RMSNorm


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and settings of a Llama; names that ``GPT2Config`` has, too, mean the same.

    n_group    heads of keys and values; ``None`` is as many as of queries.
    n_inner    channels inside the feed-forward part; ``None`` is 8/3 of ``n_embd``, rounded up to
               a multiple of 8, with which it has as many parameters as GPT-2's.
    qkv_bias   whether queries, keys and values have biases, as in Qwen2.
    tied       whether the scores are computed with the table of the tokens.
    """

    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 128
    n_positions: int = 1024
    vocab_size: int = 256
    n_group: int | None = None
    n_inner: int | None = None
    dropout: float = 0.1
    rms_norm_epsilon: float = 1e-6
    rope_base: float = 10000.0
    qkv_bias: bool = False
    tied: bool = True
    initializer_range: float = 0.02
    scaled_residual_init: bool = True
    causal: bool = True
    model_type: str = "llama"                             # in a weight file, tells it from GPT-2

    def __post_init__(self):
        checks.fields(self, sizes=("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"),
                      n_group=lambda: self.n_head, n_inner=lambda: 8 * -(-self.n_embd // 3),
                      positive=("rms_norm_epsilon", "rope_base", "initializer_range"),
                      flags=("qkv_bias", "tied", "scaled_residual_init"))
        if self.n_embd % (2 * self.n_head) or self.n_head % self.n_group:
            raise ValueError(f"LlamaConfig: {self.n_embd} channels, {self.n_head} heads, "
                             f"{self.n_group} groups: expected an even number of channels in a "
                             "head, and a number of groups that divides the heads")
        if self.model_type != "llama" or not self.causal:
            raise ValueError("LlamaConfig: expected model_type 'llama' and causal True")


class GroupedAttention(layers.Attention):
    """Self-attention with rotary positions and fewer heads of keys and values than of queries:
    ``q_proj`` (C, C), ``k_proj`` and ``v_proj`` (C, G D), heads, ``o_proj`` (C, C)."""

    output = "o_proj"

    def __init__(self, config, dtype=np.float32):
        c, few = config, config.n_embd // config.n_head * config.n_group
        self.q_proj, self.k_proj, self.v_proj = (
            layers.Linear(c.n_embd, n, dtype, "attn", bias=c.qkv_bias)
            for n in (c.n_embd, few, few))
        self.o_proj = layers.Linear(c.n_embd, c.n_embd, dtype, "attn", bias=False,
                                    writes_stream=True)
        layers.mark_heads(self.q_proj, queries=c.n_head)
        layers.mark_heads(self.k_proj, keys=c.n_group)
        layers.mark_heads(self.v_proj, values=c.n_group)
        self.n_head, self.n_group, self.rope_base = c.n_head, c.n_group, c.rope_base
        self.dropout, self.causal, self.bias = c.dropout, True, None

    def project(self, x):
        """x (B, T, C) -> q (B, H, T, D), k and v (B, G, T, D), and a dict of caches."""
        q, q_proj = self.q_proj.forward(x)
        k, k_proj = self.k_proj.forward(x)
        v, v_proj = self.v_proj.forward(x)
        return (ops().split_heads(q, self.n_head), ops().split_heads(k, self.n_group),
                ops().split_heads(v, self.n_group),
                dict(q_proj=q_proj, k_proj=k_proj, v_proj=v_proj))

    def project_backward(self, dq, dk, dv, cache):
        """The gradients of q, k, v -> dx (B, T, C): x went three ways."""
        return (self.v_proj.backward(ops().merge_heads(dv), cache["v_proj"])
                + self.k_proj.backward(ops().merge_heads(dk), cache["k_proj"])
                + self.q_proj.backward(ops().merge_heads(dq), cache["q_proj"]))

    def turn(self, q, k, start, cache):
        """Rotate q and k by their positions."""
        q, cache["rope_q"] = ops().rope(q, self.rope_base, start)
        k, cache["rope_k"] = ops().rope(k, self.rope_base, start)
        return q, k

    def turn_backward(self, dq, dk, cache):
        """Rotate the gradients of q and k back."""
        return (ops().rope_backward(dq, cache["rope_q"]), ops().rope_backward(dk, cache["rope_k"]))


class Llama(Trunk):
    """A :class:`minifpt.fpt.Trunk`: the blocks and the last RMS norm."""

    config_type = LlamaConfig
    from_pretrained, save = classmethod(weights.load), export.save

    def build(self, config, dtype):
        """Make the layers."""
        c, norm = config, partial(RMSNorm, config.n_embd, config.rms_norm_epsilon, dtype)
        self.h = [layers.Block(norm(), GroupedAttention(c, dtype), norm(),
                               GatedMLP(c, "silu", dtype)) for _ in range(c.n_layer)]
        self.ln_f = norm()


class LlamaLM(LanguageModel):
    """A Llama as it is pretrained: token embedding, trunk, and scores by the same table, or by one
    of their own, ``lm_head``, unless the config says ``tied``."""

    config_type = LlamaConfig

    def __init__(self, trunk=None, seed=0, dtype=np.float32):
        super().__init__(trunk if isinstance(trunk, Llama) else Llama(trunk, seed, dtype), seed)
        if not self.config.tied:
            self.lm_head = layers.Unembedding(
                layers.Parameter(np.zeros_like(self.wte.weight.data), "output"))
            layers.draw_all(self, seed, self.config)


FAMILY = Family(
    "Llama", "llama", LlamaConfig, Llama, LlamaLM, "LlamaModel", name="llama",
    shape=r"(?P<n_layer>\d{1,4})x(?P<n_head>\d{1,4})(/(?P<n_group>\d{1,4}))?x(?P<n_embd>\d{1,5})",
    note="llama:6x4/2x128 has 2 heads of keys and values", prefix="model.", block="layers",
    settings=SIZES | {
        "n_group": "num_key_value_heads", "rms_norm_epsilon": "rms_norm_eps",
        "rope_base": "rope_theta", "tied": "tie_word_embeddings",
        "initializer_range": "initializer_range"},
    optional=("n_group",),
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "initializer_range": 0.02, "attention_dropout": 0.0},
    dropouts=("attention_dropout",),
    outer={"wte": ("embed_tokens",), "ln_f": ("norm",), "lm_head": ("lm_head",)},
    parts=lambda settings: {
        "ln_1": ("input_layernorm",), "ln_2": ("post_attention_layernorm",),
        **{f"attn.{part}_proj": (f"self_attn.{part}_proj",) for part in "qkvo"},
        **{f"mlp.{part}_proj": (f"mlp.{part}_proj",) for part in ("gate", "up", "down")}},
    fixed=lambda settings: {
        "head_dim": (settings["n_embd"] // settings["n_head"], None),
        "hidden_act": ("silu", "swish"), "attention_bias": (False, None),
        "mlp_bias": (False, None), "use_sliding_window": (False, None),
        "rope_type": (None, "default"), "type": (None, "default")},
    others=lambda config: {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "bos_token_id": None, "eos_token_id": None},
    twin=lambda config: "qwen2" if config.qkv_bias else "llama")
QWEN2 = FAMILY._replace(title="Qwen2", model_type="qwen2", model="Qwen2Model", name=None,
                        constants={"model_type": "llama", "qkv_bias": True})
