"""Encoders as trunks: BERT (Devlin et al. 2018, arXiv 1810.04805), RoBERTa (1907.11692), Longformer
(2004.05150), ViT (2010.11929) and the encoder of T5 (1910.10683; v1.1, with a gated feed-forward
part), and how Transformers writes them.

BERT, RoBERTa and Longformer normalise after each part of a block, ViT and T5 before it.  T5 has RMS
norms, no biases and no positions: a number for the distance of two tokens is added to each score.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from .. import checks, layers
from ..fast import ops
from ..files import export, weights
from ..files.families import SIZES, Family
from ..gpt2 import GPT2, LanguageModel, Trunk
from .parts import GatedMLP, RMSNorm, TrunkConfig

# Families with norms after the parts, and those with relative positions.
POST_NORM = "bert", "roberta", "xlm-roberta", "camembert", "longformer"
RELATIVE = "t5", "mt5", "umt5"
KINDS = *POST_NORM, "vit", *RELATIVE


@dataclass(frozen=True)
class EncoderConfig(TrunkConfig):
    """The settings of an encoder beside those of :class:`minifpt.trunks.parts.TrunkConfig`.

    model_type    a key of ``KINDS``.
    n_positions   rows of the positional embeddings; T5 has none.
    n_inner       ``None`` is ``4 n_embd``.
    gated         whether the feed-forward part is gated, as in T5 v1.1.
    qkv_bias      whether queries, keys and values have biases, where other layers have them.
    window        a token reads ``window / 2`` tokens to each side, in all blocks or, for a tuple,
                  in each one; ``None`` is all tokens.
    n_buckets     T5's classes of distances, and the distance from which all are one class,
    max_distance  see :func:`buckets`.

    By default ``activation_function`` is ``relu`` for T5 and ``gelu`` for the others.
    """

    model_type: str = "bert"
    layer_norm_epsilon: float = 1e-5
    activation_function: str | None = None
    gated: bool = False
    qkv_bias: bool = True
    window: int | tuple | None = None
    n_buckets: int = 32
    max_distance: int = 128
    causal: bool = False

    def __post_init__(self):
        if self.activation_function is None:
            object.__setattr__(self, "activation_function", "gelu" if self.positions else "relu")
        self.check(lambda: 4 * self.n_embd, KINDS, sizes=("n_buckets", "max_distance"),
                   positive=("layer_norm_epsilon",), flags=("gated", "qkv_bias"),
                   is_divided=self.positions)
        if isinstance(self.window, (list, tuple)):
            object.__setattr__(self, "window", tuple(self.window))
            if len(self.window) != self.n_layer:
                raise ValueError(f"EncoderConfig: {len(self.window)} windows, expected one for "
                                 f"each of {self.n_layer} blocks")
        for window in self.window if isinstance(self.window, tuple) else (self.window,):
            if window is not None and checks.whole("EncoderConfig", "window", window, 2) % 2:
                raise ValueError(f"EncoderConfig: window is {window}, expected an even number")
        if self.n_buckets < 4 or 4 * self.max_distance <= self.n_buckets:
            raise ValueError(f"EncoderConfig: {self.n_buckets} buckets up to the distance "
                             f"{self.max_distance}, expected at least 4, and a larger distance")

    @property
    def positions(self):
        """Whether there are positional embeddings."""
        return self.model_type not in RELATIVE


@lru_cache(maxsize=4)
def buckets(T, n_buckets, max_distance):
    """Return T5's class of the distance from each query to each key, (T, T) integers.

    Half of the classes are for keys after the query.  Of each half, one half is for a single
    distance each; the others grow as the logarithm does, up to ``max_distance``.
    """
    distance = np.arange(T) - np.arange(T)[:, None]
    half, size = n_buckets // 2, np.abs(distance)
    exact = half // 2
    share = np.log(np.maximum(size, 1) / exact) / math.log(max_distance / exact)
    large = np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1)
    classes = half * (distance > 0) + np.where(size < exact, size, large)
    classes.flags.writeable = False
    return classes


@lru_cache(maxsize=4)
def window_mask(T, reach, dtype):
    """Return (T, T): 0 for the keys that are at most ``reach`` tokens away, -inf for others."""
    distance = np.abs(np.arange(T) - np.arange(T)[:, None])
    return np.where(distance <= reach, 0.0, -np.inf).astype(dtype)


class RelativePositions(layers.Embedding):
    """A number for each head and each class of distances, added to the scores: ``weight``
    (n_buckets, H), shared by all blocks but in UMT5."""

    def __init__(self, config, dtype=np.float32):
        super().__init__(config.n_buckets, config.n_head, dtype, "pos")
        self.max_distance = config.max_distance

    def forward(self, T):
        """T -> bias (H, T, T)."""
        y, cache = super().forward(buckets(T, len(self.weight.data), self.max_distance))
        return np.ascontiguousarray(y.transpose(2, 0, 1)), cache

    def backward(self, dy, cache):
        """dy (H, T, T) -> None."""
        super().backward(dy.transpose(1, 2, 0), cache)


class Window(layers.Layer):
    """Longformer's window: a token reads only the ``window / 2`` tokens to each side."""

    def __init__(self, window, n_head, dtype=np.float32):
        self.reach, self.n_head, self.dtype = window // 2, n_head, np.dtype(dtype)

    def forward(self, T):
        """T -> bias (H, T, T) of 0 and -inf, or ``None`` where all tokens are near."""
        if T <= self.reach + 1:
            return None, None
        return np.broadcast_to(window_mask(T, self.reach, self.dtype), (self.n_head, T, T)), None

    def backward(self, dy, cache):
        """Take no gradient."""


class PostNormBlock(layers.Block):
    """A block with layer norm after each part, on the residual stream itself:
    ``x = ln_1(x + attn(x))``, ``x = ln_2(x + mlp(x))``."""

    def forward(self, x, train=False, rng=None, **reads):
        """x (B, T, C) -> y (B, T, C), or (B, last, C) for the last tokens only."""
        a, attn = self.attn.forward(x, train, rng, **reads)
        x, last = ops().last_tokens(x, a.shape[1]) if a.shape != x.shape else (x, None)
        x, ln_1 = self.ln_1.forward(x + a)
        m, mlp = self.mlp.forward(x, train, rng)
        y, ln_2 = self.ln_2.forward(x + m)
        return y, dict(attn=attn, last=last, ln_1=ln_1, mlp=mlp, ln_2=ln_2)

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C)."""
        dy = self.ln_2.backward(dy, cache["ln_2"])
        dm = self.mlp.backward(dy, cache["mlp"])
        dy = self.ln_1.backward(dy + dm, cache["ln_1"])
        da = self.attn.backward(dy, cache["attn"])
        if cache["last"]:
            dy = ops().last_tokens_backward(dy, cache["last"])
        return dy + da


class Encoder(Trunk):
    """A :class:`minifpt.fpt.Trunk`: positions, the blocks, and a norm, before the blocks where they
    normalise after their parts, else behind them.

    What belongs to the inputs that FPT replaces is left out: tokens, ViT's patches and class token,
    Longformer's global attention.  Every token of a BERT has the first token type, whose vector is
    added to the positions.  T5 does not divide its scores by ``sqrt(D)``: its queries are
    multiplied by it, once, when they are read.
    """

    config_type = EncoderConfig
    from_pretrained, save = classmethod(weights.load), export.save
    add_positions = GPT2.add_positions

    def build(self, config, dtype):
        """Make the layers."""
        c, block, self.dropout_below = config, layers.Block, config.positions
        norm = partial(layers.LayerNorm if c.positions else RMSNorm, c.n_embd,
                       c.layer_norm_epsilon, dtype)
        if c.positions:
            self.wpe, self.below = layers.Positions(c.n_positions, c.n_embd, dtype), ("wpe",)
            windows = c.window if isinstance(c.window, tuple) else (c.window,) * c.n_layer
            biases = [window and Window(window, c.n_head, dtype) for window in windows]
        elif c.model_type == "umt5":
            biases = [RelativePositions(c, dtype) for _ in range(c.n_layer)]
        else:
            self.relative = RelativePositions(c, dtype)
            biases = [self.relative] * c.n_layer
        if c.model_type in POST_NORM:
            block, self.below, self.above = PostNormBlock, ("wpe", "ln"), ()
            self.ln = norm()
        else:
            self.ln_f = norm()
        self.h = [block(norm(), layers.Attention(c.n_embd, c.n_head, c.dropout, dtype, False, bias,
                                                 c.head_dim), norm(),
                        GatedMLP(c, c.activation_function, dtype) if c.gated else layers.MLP(
                            c.n_embd, c.dropout, dtype, c.activation_function, c.n_inner))
                  for bias in biases]
        for name, layer in layers.named_layers(self):     # T5 has no biases
            if isinstance(layer, layers.Linear) and not (
                    c.positions and (c.qkv_bias or not name.endswith("c_attn"))):
                layer.bias = None


# ------------------------------------------------------------------------------ the families


def after_padding(raw, settings, path):
    """Return the settings of positions that are counted from behind the padding token."""
    first = checks.whole(path, "pad_token_id", raw["pad_token_id"], 0) + 1
    return {"first_row": first, "n_positions": settings["n_positions"] - first}


def windows(raw, settings, path):
    """Return the settings of a Longformer, whose window may be a number or one for each block."""
    window = settings["window"]
    is_one = isinstance(window, list) and window and window == window[:1] * len(window)
    return after_padding(raw, settings, path) | {"window": window[0] if is_one else window}


def patches(config):
    """Return the size of an image of as many patches of 16 x 16 pixels as there are positions."""
    n = config.n_positions
    side = math.isqrt(n)
    size = [16 * side, 16 * side] if side * side == n else [16 * n, 16]
    return {"image_size": size, "patch_size": 16}


def activation(raw, settings, path):
    """Return the settings of T5's feed-forward part.  In Transformers, too, "gated-gelu" is
    gelu_new, and two more fields, if they are there, decide."""
    name = str(raw["feed_forward_proj"])
    function = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    return {"gated": raw.get("is_gated_act", name.startswith("gated-")),
            "activation_function": str(raw.get("dense_act_fn", function))}


def t5_parts(settings):
    """Return the parts of a block of a T5, with or without a gate."""
    attention, mlp = "layer.0.SelfAttention", "layer.1.DenseReluDense"
    names = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"} if settings["gated"] else {
        "c_fc": "wi", "c_proj": "wo"}
    return {"attn.c_attn": tuple(f"{attention}.{part}" for part in "qkv"),
            "attn.c_proj": (f"{attention}.o",), "ln_1": ("layer.0.layer_norm",),
            "ln_2": ("layer.1.layer_norm",)} | {
                f"mlp.{ours}": (f"{mlp}.{theirs}",) for ours, theirs in names.items()}


def scaled(name, arrays, settings, power=0.5):
    """Multiply T5's queries by the root of a head's channels: it does not divide its scores by
    it."""
    if "c_attn" not in name:
        return arrays
    queries = arrays[0].astype(np.float64) * settings["head_dim"] ** power
    return [queries.astype(arrays[0].dtype) if power < 0 else queries, *arrays[1:]]


BERT = Family(
    "BERT", "bert", EncoderConfig, Encoder, LanguageModel, "BertModel", name="bert",
    prefix="bert.", block="encoder.layer",
    settings=SIZES | {"layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
                      "initializer_range": "initializer_range"},
    constants={"first_row": 0},
    defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu", "initializer_range": 0.02,
              "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    old={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    outer={"wte": ("embeddings.word_embeddings",),
           # Every token has the first token type, whose vector is added.
           "wpe": ("embeddings.position_embeddings", "embeddings.token_type_embeddings"),
           "ln": ("embeddings.LayerNorm",)},
    parts=lambda settings: {
        "attn.c_attn": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
        "attn.c_proj": ("attention.output.dense",), "ln_1": ("attention.output.LayerNorm",),
        "mlp.c_fc": ("intermediate.dense",), "mlp.c_proj": ("output.dense",),
        "ln_2": ("output.LayerNorm",)},
    fixed=lambda settings: {"position_embedding_type": ("absolute",), "is_decoder": (False,)},
    others=lambda config: {"type_vocab_size": 1, "pad_token_id": 0})
ROBERTA = BERT._replace(
    title="RoBERTa", model_type="roberta", model="RobertaModel", name="roberta", prefix="roberta.",
    constants={"first_row": 2}, defaults=BERT.defaults | {"pad_token_id": 1},
    complete=after_padding,
    others=lambda config: {"type_vocab_size": 1, "pad_token_id": 1,
                           "max_position_embeddings": config.n_positions + 2})
XLM = ROBERTA._replace(title="XLM-RoBERTa", model_type="xlm-roberta", model="XLMRobertaModel",
                       name=None)
CAMEMBERT = ROBERTA._replace(title="CamemBERT", model_type="camembert", model="CamembertModel",
                             name=None)
LONGFORMER = ROBERTA._replace(
    title="Longformer", model_type="longformer", model="LongformerModel", name="longformer",
    shape=rf"(?P<window>\d{{1,4}}):{BERT.shape}",
    note="longformer:32:6x4x128 has a window of 32 tokens",
    prefix="longformer.", settings=ROBERTA.settings | {"window": "attention_window"},
    defaults=ROBERTA.defaults | {"attention_window": 512}, complete=windows,
    # Tokens with global attention start from the same matrices, as when it is made of a RoBERTa.
    copies=(r"(self\.\w+)", r"\1_global"))
VIT = BERT._replace(
    title="ViT", model_type="vit", model="ViTModel", name="vit", prefix="vit.",
    settings={ours: theirs for ours, theirs in BERT.settings.items()
              if ours not in ("n_positions", "vocab_size")} | {"qkv_bias": "qkv_bias"},
    constants={"first_row": 1, "vocab_size": 1},          # row 0 is the class token's
    defaults=BERT.defaults | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                              "qkv_bias": True},
    outer={"wpe.weight": ("embeddings.position_embeddings",), "ln_f": ("layernorm",)},
    parts=lambda settings: BERT.parts(settings) | {
        "attn.c_attn": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
        "ln_1": ("layernorm_before",), "ln_2": ("layernorm_after",)},
    fixed=lambda settings: {}, others=patches)
T5 = Family(
    "T5", "t5", EncoderConfig, Encoder, LanguageModel, "T5EncoderModel", name="t5",
    prefix="transformer.", block="encoder.block",
    old={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
         "hidden_size": "d_model", "head_dim": "d_kv"},
    settings={"n_layer": "num_layers", "n_head": "num_heads", "n_embd": "d_model",
              "n_inner": "d_ff", "head_dim": "d_kv", "vocab_size": "vocab_size",
              "layer_norm_epsilon": "layer_norm_epsilon",
              "n_buckets": "relative_attention_num_buckets",
              "max_distance": "relative_attention_max_distance"},
    constants={"n_positions": 1},
    defaults={"layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32,
              "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
              "dropout_rate": 0.1},
    dropouts=("dropout_rate",),
    outer={"wte": ("shared",), "ln_f": ("encoder.final_layer_norm",),
           "relative": ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias",)},
    parts=t5_parts, complete=activation,
    others=lambda config: {
        "feed_forward_proj": "gated-" * config.gated + config.activation_function,
        "is_gated_act": config.gated, "dense_act_fn": config.activation_function},
    join=scaled, split=partial(scaled, power=-0.5))
MT5 = T5._replace(title="mT5", model_type="mt5", model="MT5EncoderModel", name=None,
                  defaults=T5.defaults | {"feed_forward_proj": "gated-gelu"})
UMT5 = MT5._replace(
    title="UMT5", model_type="umt5", model="UMT5EncoderModel",
    outer={ours: theirs for ours, theirs in T5.outer.items() if ours != "relative"},
    parts=lambda settings: t5_parts(settings) | {
        "attn.bias": ("layer.0.SelfAttention.relative_attention_bias",)})
