"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745), the family of Pythia, as a trunk and as a
language model: rotary positions for a part of each head, and the two parts of a block beside each
other; and how Transformers writes it."""

from dataclasses import dataclass
from functools import partial

from .. import layers
from ..fast import ops
from ..files import export, weights
from ..files.families import SIZES, Family
from ..gpt2 import Trunk
from .parts import RotaryAttention, TrunkConfig, TwoTables


@dataclass(frozen=True)
class NeoXConfig(TrunkConfig):
    """The settings of a GPT-NeoX beside those of :class:`minifpt.trunks.parts.TrunkConfig`.

    n_inner      ``None`` is ``4 n_embd``.
    rope_share   share of each head's channels that is rotated, the first ones.
    parallel     whether both parts of a block read its input; otherwise they stand one behind the
                 other, as in GPT-2.
    tied         whether the scores are computed with the table of the tokens.
    """

    model_type: str = "gpt_neox"
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu"
    rope_base: float = 10000.0
    rope_share: float = 0.25
    parallel: bool = True
    tied: bool = False

    def __post_init__(self):
        self.check(lambda: 4 * self.n_embd, flags=("parallel", "tied"), is_divided=True,
                   positive=("layer_norm_epsilon", "rope_base", "rope_share"))
        if self.rope_share > 1 or self.n_turned % 2 or not self.n_turned:
            raise ValueError(f"NeoXConfig: {self.n_embd} channels, {self.n_head} heads, of which "
                             f"the share {self.rope_share:g} is rotated: expected an even number "
                             "of rotated channels in a head, at least 2")

    @property
    def n_turned(self):
        """How many channels of a head are rotated."""
        return int(self.head_dim * self.rope_share)


class ParallelBlock(layers.Block):
    """A block whose parts both read its input: ``x + attn(ln_1(x)) + mlp(ln_2(x))``."""

    def forward(self, x, train=False, rng=None, **reads):
        """x (B, T, C) -> y (B, T, C), or (B, last, C) for the last tokens only."""
        a, ln_1 = self.ln_1.forward(x)
        a, attn = self.attn.forward(a, train, rng, **reads)
        x, last = ops().last_tokens(x, a.shape[1]) if a.shape[1] < x.shape[1] else (x, None)
        m, ln_2 = self.ln_2.forward(x)
        m, mlp = self.mlp.forward(m, train, rng)
        return x + a + m, dict(ln_1=ln_1, attn=attn, last=last, ln_2=ln_2, mlp=mlp)

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C).  Each x went three ways."""
        dm = self.ln_2.backward(self.mlp.backward(dy, cache["mlp"]), cache["ln_2"])
        da = self.ln_1.backward(self.attn.backward(dy, cache["attn"]), cache["ln_1"])
        dy = dy + dm
        if cache["last"]:
            dy = ops().last_tokens_backward(dy, cache["last"])
        return dy + da


class NeoX(Trunk):
    """A :class:`minifpt.fpt.Trunk`: the blocks and the last layer norm."""

    config_type = NeoXConfig
    from_pretrained, save = classmethod(weights.load), export.save

    def build(self, config, dtype):
        """Make the layers."""
        c, norm = config, partial(layers.LayerNorm, config.n_embd, config.layer_norm_epsilon, dtype)
        block = ParallelBlock if c.parallel else layers.Block
        self.h = [block(norm(), RotaryAttention(c, dtype), norm(), layers.MLP(
            c.n_embd, c.dropout, dtype, c.activation_function, c.n_inner))
            for _ in range(c.n_layer)]
        self.ln_f = norm()


class NeoXLM(TwoTables):
    """A GPT-NeoX as it is pretrained."""

    config_type, trunk_type = NeoXConfig, NeoX


def regrouped(n, m, name, arrays):
    """Turn rows that are n groups of m pieces into m groups of n, where ``name`` is the layer of
    queries, keys and values: Transformers has them head by head, ours are all queries, then all
    keys, then all values."""
    if "c_attn" not in name:
        return arrays
    return [a.reshape(n, m, -1, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape) for a in arrays]


FAMILY = Family(
    "GPT-NeoX", "gpt_neox", NeoXConfig, NeoX, NeoXLM, "GPTNeoXModel", name="neox",
    prefix="gpt_neox.", block="layers",
    settings=SIZES | {
        "layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
        "rope_base": "rope_theta", "rope_share": "partial_rotary_factor",
        "parallel": "use_parallel_residual", "tied": "tie_word_embeddings",
        "initializer_range": "initializer_range"},
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu", "rope_theta": 10000.0,
              "partial_rotary_factor": 0.25, "use_parallel_residual": True,
              "tie_word_embeddings": False, "initializer_range": 0.02,
              "attention_dropout": 0.0, "hidden_dropout": 0.0},
    dropouts=("attention_dropout", "hidden_dropout"),
    old={"embed_out": "lm_head", "rotary_pct": "partial_rotary_factor",
         "rotary_emb_base": "rope_theta"},
    outer={"wte": ("embed_in",), "ln_f": ("final_layer_norm",), "lm_head": ("lm_head",)},
    parts=lambda settings: {
        "ln_1": ("input_layernorm",), "ln_2": ("post_attention_layernorm",),
        "attn.c_attn": ("attention.query_key_value",), "attn.c_proj": ("attention.dense",),
        "mlp.c_fc": ("mlp.dense_h_to_4h",), "mlp.c_proj": ("mlp.dense_4h_to_h",)},
    fixed=lambda settings: {"attention_bias": (True,), "rope_type": (None, "default"),
                            "type": (None, "default"),
                            "head_dim": (None, settings["n_embd"] // settings["n_head"])},
    others=lambda config: {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base,
                            "partial_rotary_factor": config.rope_share},
        # Transformers before version 5 reads these.
        "rotary_emb_base": config.rope_base, "rotary_pct": config.rope_share,
        "bos_token_id": None, "eos_token_id": None},
    join=lambda name, arrays, settings: regrouped(settings["n_head"], 3, name, arrays),
    split=lambda name, arrays, settings: regrouped(3, settings["n_head"], name, arrays))
