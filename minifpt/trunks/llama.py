"""Llama (Touvron et al. 2023, arXiv 2302.13971) as a trunk and as a language model: RMS norm,
rotary positions, grouped queries, a gated feed-forward part and hardly any bias.

Its blocks run as GPT-2's do.  Llama, and Qwen2 with its biases, are read from folders that
Transformers saved.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..files import export, weights
from ..files.families import SIZES, Family
from ..gpt2 import Trunk
from .parts import GatedMLP, RMSNorm, RotaryAttention, TrunkConfig, TwoTables

SCALING = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"


@dataclass(frozen=True)
class LlamaConfig(TrunkConfig):
    """The settings of a Llama beside those of :class:`minifpt.trunks.parts.TrunkConfig`.

    n_group         heads of keys and values; ``None`` is as many as of queries.
    n_inner         ``None`` is 8/3 of ``n_embd``, rounded up to a multiple of 8, with which the
                    feed-forward part has as many parameters as GPT-2's.
    qkv_bias        whether queries, keys and values have biases, as in Qwen2.
    o_bias          whether the layer behind the attention has one, too.
    mlp_bias        whether the feed-forward part has biases.
    rope_scaling    how Llama 3.1 turns slow pairs of channels slower: ``factor``,
                    ``low_freq_factor``, ``high_freq_factor``, ``original_max_position_embeddings``,
                    see :func:`rope_scale`.
    tied            whether the scores are computed with the table of the tokens.
    """

    model_type: str = "llama"
    n_group: int | None = None
    rms_norm_epsilon: float = 1e-6
    rope_base: float = 10000.0
    rope_scaling: tuple | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = True

    def __post_init__(self):
        self.check(lambda: 8 * -(-self.n_embd // 3), n_group=lambda: self.n_head,
                   positive=("rms_norm_epsilon", "rope_base"),
                   flags=("qkv_bias", "o_bias", "mlp_bias", "tied"))
        if self.head_dim % 2 or self.n_head % self.n_group:
            raise ValueError(f"LlamaConfig: {self.n_embd} channels, {self.n_head} heads, "
                             f"{self.n_group} groups: expected an even number of channels in a "
                             "head, and a number of groups that divides the heads")
        if self.o_bias > self.qkv_bias or self.qkv_bias and self.mlp_bias > self.o_bias:
            raise ValueError("LlamaConfig: o_bias needs qkv_bias, and both biases need o_bias")
        if self.rope_scaling is not None:
            factor, low, high, tokens = self.rope_scaling
            numbers = *(checks.number("LlamaConfig", *pair) for pair in zip(
                SCALING, (factor, low, high), strict=False)), checks.whole(
                    "LlamaConfig", SCALING[3], tokens)
            if numbers[1] >= numbers[2]:
                raise ValueError(f"LlamaConfig: {SCALING[1]} is {low}, expected less than "
                                 f"{SCALING[2]}, {high}")
            object.__setattr__(self, "rope_scaling", numbers)


def rope_scale(config):
    """Return Llama 3.1's factors of the angles (D/2,): 1 for pairs of channels that turned often
    in the texts of pretraining, ``1 / factor`` for those that did not turn once or so, and between
    them for the others; ``None`` for a config without ``rope_scaling``."""
    if config.rope_scaling is None:
        return None
    factor, low, high, tokens = config.rope_scaling
    half = config.head_dim // 2
    turns = tokens / (2 * math.pi) * config.rope_base ** (-np.arange(half) / half)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return share + (1 - share) / factor


class GroupedAttention(RotaryAttention):
    """Self-attention with rotary positions and fewer heads of keys and values than of queries:
    ``q_proj`` (C, H D), ``k_proj`` and ``v_proj`` (C, G D), heads, ``o_proj`` (H D, C)."""

    output = "o_proj"

    def __init__(self, config, dtype=np.float32):
        c = config
        self.q_proj, self.k_proj, self.v_proj = (
            layers.Linear(c.n_embd, n * c.head_dim, dtype, "attn", bias=c.qkv_bias)
            for n in (c.n_head, c.n_group, c.n_group))
        self.o_proj = layers.Linear(c.n_head * c.head_dim, c.n_embd, dtype, "attn", bias=c.o_bias,
                                    writes_stream=True)
        layers.mark_heads(self.q_proj, queries=c.n_head)
        layers.mark_heads(self.k_proj, keys=c.n_group)
        layers.mark_heads(self.v_proj, values=c.n_group)
        self.n_head, self.n_group, self.n_turned = c.n_head, c.n_group, c.head_dim
        self.rope_base, self.rope_scale = c.rope_base, rope_scale(c)
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


class Llama(Trunk):
    """A :class:`minifpt.fpt.Trunk`: the blocks and the last RMS norm."""

    config_type, dropout_below = LlamaConfig, False
    from_pretrained, save = classmethod(weights.load), export.save

    def build(self, config, dtype):
        """Make the layers."""
        c, norm = config, partial(RMSNorm, config.n_embd, config.rms_norm_epsilon, dtype)
        self.h = [layers.Block(norm(), GroupedAttention(c, dtype), norm(),
                               GatedMLP(c, "silu", dtype, c.mlp_bias)) for _ in range(c.n_layer)]
        self.ln_f = norm()


class LlamaLM(TwoTables):
    """A Llama as it is pretrained."""

    config_type, trunk_type = LlamaConfig, Llama


def rotary(config):
    """Return ``rope_parameters`` as Transformers has them."""
    kind = "default" if config.rope_scaling is None else "llama3"
    return {"rope_type": kind, "rope_theta": config.rope_base} | dict(
        zip(SCALING, config.rope_scaling or (), strict=False))


def scaling(raw, settings, path):
    """Return the settings of biases and of rotary positions that the tables do not have."""
    is_scaled = "llama3" in (raw.get("rope_type"), raw.get("type"))
    return {"rope_scaling": [raw.get(name) for name in SCALING] if is_scaled else None,
            "qkv_bias": settings.get("qkv_bias", settings.get("o_bias"))}


FAMILY = Family(
    "Llama", "llama", LlamaConfig, Llama, LlamaLM, "LlamaModel", name="llama",
    shape=r"(?P<n_layer>\d{1,4})x(?P<n_head>\d{1,4})(/(?P<n_group>\d{1,4}))?x(?P<n_embd>\d{1,5})",
    note="llama:6x4/2x128 has 2 heads of keys and values", prefix="model.", block="layers",
    settings=SIZES | {
        "n_group": "num_key_value_heads", "rms_norm_epsilon": "rms_norm_eps",
        "rope_base": "rope_theta", "tied": "tie_word_embeddings", "head_dim": "head_dim",
        "initializer_range": "initializer_range", "o_bias": "attention_bias",
        "mlp_bias": "mlp_bias"},
    optional=("n_group", "head_dim"),
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "initializer_range": 0.02, "attention_dropout": 0.0, "attention_bias": False,
              "mlp_bias": False},
    dropouts=("attention_dropout",),
    outer={"wte": ("embed_tokens",), "ln_f": ("norm",), "lm_head": ("lm_head",)},
    parts=lambda settings: {
        "ln_1": ("input_layernorm",), "ln_2": ("post_attention_layernorm",),
        **{f"attn.{part}_proj": (f"self_attn.{part}_proj",) for part in "qkvo"},
        **{f"mlp.{part}_proj": (f"mlp.{part}_proj",) for part in ("gate", "up", "down")}},
    fixed=lambda settings: {
        "hidden_act": ("silu", "swish"), "partial_rotary_factor": (None, 1.0),
        **dict.fromkeys(("rope_type", "type"), (None, "default", "llama3"))},
    others=lambda config: {"rope_parameters": rotary(config), "bos_token_id": None,
                           "eos_token_id": None},
    complete=scaling, twin=lambda config: "qwen2" if config.qkv_bias > config.o_bias else "llama")
QWEN2 = FAMILY._replace(
    title="Qwen2", model_type="qwen2", model="Qwen2Model", name=None,
    settings={ours: theirs for ours, theirs in FAMILY.settings.items()
              if ours not in ("o_bias", "mlp_bias")},
    constants={"model_type": "llama", "qkv_bias": True},
    fixed=lambda settings: FAMILY.fixed(settings) | {"use_sliding_window": (False, None)})
