"""A Llama's config, and Llamas in files: folders that Transformers saved, and weight files of
ours."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import checks
from ..checks import brief, one_of
from ..files import huggingface, weights

KINDS = "llama", "qwen2"                                  # model types that are read
# Transformers' names of layers, by ours, where they differ.
THEIRS = {"wte": "embed_tokens", "h": "layers", "ln_1": "input_layernorm", "attn": "self_attn",
          "ln_2": "post_attention_layernorm", "ln_f": "norm"}
OURS = {theirs: ours for ours, theirs in THEIRS.items()}
TABLES = {"wte.weight", "lm_head.weight"}                 # of a language model, not of its trunk
SETTINGS = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
            "n_embd": "hidden_size", "n_positions": "max_position_embeddings",
            "vocab_size": "vocab_size", "n_inner": "intermediate_size",
            "n_group": "num_key_value_heads", "rms_norm_epsilon": "rms_norm_eps",
            "initializer_range": "initializer_range", "tied": "tie_word_embeddings"}
DEFAULTS = {"rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": False,
            "num_key_value_heads": None}                  # where a config.json lacks them


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
        checks.whole("LlamaConfig", "n_embd", self.n_embd)    # of which the defaults are made
        if self.n_group is None:
            object.__setattr__(self, "n_group", self.n_head)
        if self.n_inner is None:
            object.__setattr__(self, "n_inner", 8 * -(-self.n_embd // 3))
        checks.fields(self, sizes=("n_layer", "n_head", "n_embd", "n_positions", "vocab_size",
                                   "n_group", "n_inner"),
                      positive=("rms_norm_epsilon", "rope_base", "initializer_range"),
                      flags=("qkv_bias", "tied", "scaled_residual_init"))
        if self.n_embd % (2 * self.n_head) or self.n_head % self.n_group:
            raise ValueError(f"LlamaConfig: {self.n_embd} channels, {self.n_head} heads, "
                             f"{self.n_group} groups: expected an even number of channels in a "
                             "head, and a number of groups that divides the heads")
        if self.model_type != "llama" or not self.causal:
            raise ValueError("LlamaConfig: expected model_type 'llama' and causal True")


def is_llama(name):
    """Return whether weights, by their name or path, are a Llama's; ``False`` if there are none."""
    try:
        path = weights.find(name)
        if huggingface.is_checkpoint(path):
            return huggingface.settings_of(path)[0].get("model_type") in KINDS
        return weights.read(path)[0].get("model_type") == "llama"
    except (ValueError, OSError):
        return False


def load(path, dropout=None):
    """Return ``(LlamaConfig, tensors)`` of a file: {name of ours:
    :class:`minifpt.files.huggingface.Tensor`}.  Transformers' matrices are transposed."""
    is_theirs = huggingface.is_checkpoint(path)
    settings, tensors = (load_checkpoint if is_theirs else weights.read)(path, dropout)
    if settings.get("model_type") != "llama":
        raise ValueError(f"{path}: this is not a Llama (model_type is "
                         f"{brief(settings.get('model_type'))})")
    config = weights.config_of(settings, path, LlamaConfig)
    check_size(path, vars(config), tensors)
    return config, tensors


def load_checkpoint(path, dropout=None):
    """Return a ``LlamaConfig``'s settings and the tensors of a folder that Transformers saved."""
    settings, tensors = read_config(path, dropout), {}
    for name, tensor in huggingface.read_tensors(huggingface.tensor_file(Path(path))).items():
        name = ".".join(OURS.get(part, part) for part in name.removeprefix("model.").split("."))
        if not name.endswith("rotary_emb.inv_freq"):      # which old versions saved
            tensors[name] = tensor
    if settings["tied"]:
        head, table = (tensors.get(f"{name}.weight") for name in ("lm_head", "wte"))
        # Transformers, too, keeps a head that differs from the table.
        settings["tied"] = head is None or table is None or np.array_equal(head.read(),
                                                                           table.read())
        if settings["tied"]:
            tensors.pop("lm_head.weight", None)
    return settings, tensors


def read_config(path, dropout=None):
    """Return the fields of a ``LlamaConfig`` from a ``config.json``, as a dict; ``dropout``
    replaces the file's.  Raises ``ValueError`` for settings that minifpt does not build."""
    raw, path = huggingface.settings_of(path)
    kind = one_of(path, "model_type", raw.get("model_type"), KINDS)
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    base = rope.get("rope_theta", raw.get("rope_theta", 10000.0)) if isinstance(rope, dict) else 0
    settings = {ours: raw.get(theirs, DEFAULTS.get(theirs)) for ours, theirs in SETTINGS.items()}
    for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "n_inner"):
        if type(settings[key]) is not int or settings[key] < 1:
            raise ValueError(f"{path}: {SETTINGS[key]} is {brief(settings[key])}, expected an "
                             "integer, at least 1")
    width = settings["n_embd"] // settings["n_head"]
    for key, value, built in (
            ("hidden_act", raw.get("hidden_act", "silu"), ("silu", "swish")),
            ("head_dim", raw.get("head_dim"), (None, width)),
            ("attention_bias", raw.get("attention_bias", False), (False, None)),
            ("mlp_bias", raw.get("mlp_bias", False), (False, None)),
            ("use_sliding_window", raw.get("use_sliding_window", False), (False, None)),
            ("rope_type", rope.get("rope_type", rope.get("type", "default")) if isinstance(
                rope, dict) else rope, ("default",))):
        if value not in built:
            raise ValueError(f"{path}: {key} is {brief(value)}, which minifpt does not build; it "
                             f"builds {built[-1] if built[0] is None else built[0]}")
    rate = raw.get("attention_dropout", 0.0) if dropout is None else dropout
    return settings | {"model_type": "llama", "rope_base": base, "qkv_bias": kind == "qwen2",
                       "dropout": rate}


def their_name(ours, prefix):
    """Return Transformers' name of a parameter; ``prefix`` stands before all but the head."""
    name = ".".join(THEIRS.get(part, part) for part in ours.split("."))
    return name if name.startswith("lm_head.") else prefix + name


def is_transposed(name, array):
    """Return whether Transformers stores a parameter of ours as the transposed matrix."""
    return array.ndim == 2 and name not in TABLES


def check_size(path, settings, tensors):
    """Raise a ``ValueError`` before a model is made that is larger than its weight file."""
    blocks = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    if len(blocks) != settings["n_layer"]:
        raise ValueError(f"{path}: holds {len(blocks)} blocks, its config says "
                         f"{settings['n_layer']}")
    for name, sizes in (("h.0.mlp.up_proj.weight", ("n_embd", "n_inner")),
                        ("wte.weight", ("n_embd", "vocab_size"))):
        shape = tuple(settings[size] for size in sizes)
        if name in tensors and {*tensors[name].shape} != {*shape}:
            raise ValueError(f"{path}: '{name}' has shape {tensors[name].shape}, its config says "
                             f"{shape}")


def fill(path, named, tensors, is_theirs):
    """Fill a model's (name, array) pairs from a file, ``is_theirs`` if Transformers wrote it."""
    targets = [(name, array.T if is_theirs and is_transposed(name, array) else array)
               for name, array in named]
    weights.read_into(path, targets, tensors, TABLES)


def config_json(config, has_head):
    """Return the fields of a ``config.json`` for a ``LlamaConfig``."""
    kind = "qwen2" if config.qkv_bias else "llama"
    name = {"qwen2": "Qwen2", "llama": "Llama"}[kind]
    fields = {theirs: getattr(config, ours) for ours, theirs in SETTINGS.items()}
    return fields | {
        "architectures": [f"{name}{'ForCausalLM' if has_head else 'Model'}"], "model_type": kind,
        "hidden_act": "silu", "head_dim": config.n_embd // config.n_head,
        "attention_dropout": config.dropout, "rope_theta": config.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
        "bos_token_id": None, "eos_token_id": None}
