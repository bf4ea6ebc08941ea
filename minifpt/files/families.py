"""What Transformers calls the settings and the weights of each family of models: a table, by which
folders are read and written.

Our names are GPT-2's.  Where Transformers holds queries, keys and values apart, ours are joined.
Its linear layers hold the transposed matrix, but for GPT-2's.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..checks import brief, flag, one_of, whole
from . import read_json
from .huggingface import Tensor, read_tensors, tensor_file


class Family(NamedTuple):
    """A family of models in Transformers.

    model      the name of its trunk's class.
    prefix     of the names of the trunk's parameters in a larger model.
    block      the name of a block, without its number.
    settings   {field of our config: field of ``config.json``}.
    constants  {field of our config: the family's value}; also ``first_row``, the row of the
               positional embeddings that belongs to the first token.
    defaults   {field of ``config.json``: its value where a file lacks it, as Transformers has it}.
    dropouts   fields of ``config.json`` for dropout, of which we have one.
    outer      {layer of ours: layers of theirs}, outside of the blocks.
    parts      {layer of ours in a block: layers of theirs, joined along their outputs}.
    fixed      a function of our settings: {field of ``config.json``: the values that minifpt
               builds}, of which the first is written, unless it is ``None``.
    others     a function of our config: the other fields of ``config.json`` that are written.
    """

    model: str
    prefix: str
    block: str
    settings: dict
    constants: dict
    defaults: dict
    dropouts: tuple
    outer: dict
    parts: dict
    fixed: Callable
    others: Callable


SIZES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
         "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
         "vocab_size": "vocab_size"}
GPT2 = Family(
    "GPT2Model", "transformer.", "h",
    settings={"tied": "tie_word_embeddings"} | {name: name for name in (
        "n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "layer_norm_epsilon",
        "activation_function", "initializer_range")},
    constants={"first_row": 0},
    defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
              "initializer_range": 0.02, "tie_word_embeddings": True,
              "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    outer={name: (name,) for name in ("wte", "wpe", "ln_f", "lm_head")},
    parts={name: (name,) for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc",
                                      "mlp.c_proj")},
    fixed=lambda settings: {
        "n_inner": (None, 4 * settings["n_embd"]), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
        "pruned_heads": (None, {})},
    others=lambda config: {"tie_word_embeddings": True, "n_ctx": config.n_positions} | (
        dict.fromkeys(("bos_token_id", "eos_token_id"),   # GPT-2's token is <|endoftext|>
                      50256 if config.vocab_size == 50257 else None)))
LLAMA = Family(
    "LlamaModel", "model.", "layers",
    settings=SIZES | {
        "n_group": "num_key_value_heads", "rms_norm_epsilon": "rms_norm_eps",
        "rope_base": "rope_theta", "tied": "tie_word_embeddings",
        "initializer_range": "initializer_range"},
    constants={},
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "initializer_range": 0.02, "attention_dropout": 0.0},
    dropouts=("attention_dropout",),
    outer={"wte": ("embed_tokens",), "ln_f": ("norm",), "lm_head": ("lm_head",)},
    parts={"ln_1": ("input_layernorm",), "ln_2": ("post_attention_layernorm",),
           **{f"attn.{part}_proj": (f"self_attn.{part}_proj",) for part in "qkvo"},
           **{f"mlp.{part}_proj": (f"mlp.{part}_proj",) for part in ("gate", "up", "down")}},
    fixed=lambda settings: {
        "head_dim": (settings["n_embd"] // settings["n_head"], None),
        "hidden_act": ("silu", "swish"), "attention_bias": (False, None),
        "mlp_bias": (False, None), "use_sliding_window": (False, None),
        "rope_type": (None, "default"), "type": (None, "default")},
    others=lambda config: {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "bos_token_id": None, "eos_token_id": None})
BERT = Family(
    "BertModel", "bert.", "encoder.layer",
    settings=SIZES | {"layer_norm_epsilon": "layer_norm_eps", "activation_function": "hidden_act",
                      "initializer_range": "initializer_range"},
    constants={"first_row": 0},
    defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu", "initializer_range": 0.02,
              "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    outer={"wte": ("embeddings.word_embeddings",),
           # Every token has the first token type, whose vector is added.
           "wpe": ("embeddings.position_embeddings", "embeddings.token_type_embeddings"),
           "ln": ("embeddings.LayerNorm",)},
    parts={"attn.c_attn": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
           "attn.c_proj": ("attention.output.dense",), "ln_1": ("attention.output.LayerNorm",),
           "mlp.c_fc": ("intermediate.dense",), "mlp.c_proj": ("output.dense",),
           "ln_2": ("output.LayerNorm",)},
    fixed=lambda settings: {"position_embedding_type": ("absolute",), "is_decoder": (False,)},
    others=lambda config: {"type_vocab_size": 1, "pad_token_id": 0})
ROBERTA = BERT._replace(                                  # counts from behind the padding token
    model="RobertaModel", prefix="roberta.", constants={"first_row": 2},
    defaults=BERT.defaults | {"pad_token_id": 1},
    others=lambda config: {"type_vocab_size": 1, "pad_token_id": 1,
                            "max_position_embeddings": config.n_positions + 2})
VIT = BERT._replace(
    model="ViTModel", prefix="vit.",
    settings={ours: theirs for ours, theirs in BERT.settings.items()
              if ours not in ("n_positions", "vocab_size")},
    constants={"first_row": 1, "vocab_size": 1},          # row 0 is the class token's
    defaults=BERT.defaults | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    outer={"wpe": ("embeddings.position_embeddings",), "ln_f": ("layernorm",)},
    parts=BERT.parts | {
        "attn.c_attn": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
        "ln_1": ("layernorm_before",), "ln_2": ("layernorm_after",)},
    fixed=lambda settings: {"qkv_bias": (True,)},
    others=lambda config: {"image_size": image_size(config.n_positions), "patch_size": 16})
T5 = Family(
    "T5EncoderModel", "transformer.", "encoder.block",
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
    parts={"attn.c_attn": tuple(f"layer.0.SelfAttention.{part}" for part in "qkv"),
           "attn.c_proj": ("layer.0.SelfAttention.o",), "ln_1": ("layer.0.layer_norm",),
           "mlp.c_fc": ("layer.1.DenseReluDense.wi",),
           "mlp.c_proj": ("layer.1.DenseReluDense.wo",),
           "mlp.gate_proj": ("layer.1.DenseReluDense.wi_0",),
           "mlp.up_proj": ("layer.1.DenseReluDense.wi_1",),
           "mlp.down_proj": ("layer.1.DenseReluDense.wo",), "ln_2": ("layer.1.layer_norm",)},
    fixed=lambda settings: {},
    # In Transformers, too, "gated-gelu" is gelu_new.
    others=lambda config: {"feed_forward_proj": "gated-" * config.gated + (
        "gelu" if config.gated and config.activation_function == "gelu_new"
        else config.activation_function)})
FAMILIES = {
    "gpt2": GPT2, "llama": LLAMA,
    "qwen2": LLAMA._replace(model="Qwen2Model",
                            constants={"model_type": "llama", "qkv_bias": True}),
    "bert": BERT, "roberta": ROBERTA,
    "longformer": ROBERTA._replace(
        model="LongformerModel", prefix="longformer.",
        settings=ROBERTA.settings | {"window": "attention_window"},
        defaults=ROBERTA.defaults | {"attention_window": 512}),
    "vit": VIT, "t5": T5}
TABLES = "wte.weight", "lm_head.weight", "wpe.weight", "relative.weight"      # not transposed
# Fields of our config that are whole numbers, at least 1.
WHOLE = {*SIZES, "n_group", "head_dim", "n_buckets", "max_distance"}
# Names in blocks that are not read: the masks of old versions, rotary angles, what Longformer's
# tokens with global attention have.
IGNORED = re.compile(r"attn\.(masked_)?bias$|rotary_emb\.inv_freq$|_global\.")


def image_size(n_patches):
    """Return the height and the width of an image of so many patches of 16 x 16 pixels."""
    side = math.isqrt(n_patches)
    return [16 * side, 16 * side] if side * side == n_patches else [16 * n_patches, 16]


# ----------------------------------------------------------------------------------- reading


def read_config(raw, path, dropout=None):
    """Return the fields of our config of a model, from those of its ``config.json``; ``dropout``
    replaces the file's.  Raises ``ValueError`` for mathematics that minifpt does not have.
    GPT-2's ``reorder_and_upcast_attn`` only changes rounding and is ignored."""
    family = FAMILIES[one_of(path, "model_type", raw.get("model_type"), FAMILIES)]
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{path}: rope_parameters is {brief(rope)}, expected an object")
    raw = family.defaults | raw | {                       # a Llama's rotary angles are in an object
        key: rope[key] for key in ("rope_theta", "rope_type", "type") if key in rope}
    settings = {"model_type": raw["model_type"]} | family.constants | {
        ours: raw.get(theirs) for ours, theirs in family.settings.items()}
    for ours, theirs in family.settings.items():
        if ours in WHOLE and (ours != "n_group" or settings[ours] is not None):
            whole(path, theirs, settings[ours], most=2**63 - 1)
        elif settings[ours] is None and ours != "n_group":
            raise ValueError(f"{path}: {theirs} is null")
    rates = {key: raw[key] for key in family.dropouts}
    settings["dropout"] = rates[family.dropouts[0]] if dropout is None else dropout
    if dropout is None and any(rate != settings["dropout"] for rate in rates.values()):
        raise ValueError(f"{path}: {', '.join(f'{k} {brief(v)}' for k, v in rates.items())}: "
                         "minifpt has one dropout for all: pass dropout=")
    for key, built in family.fixed(settings).items():
        if raw.get(key, built[0]) not in built:
            raise ValueError(f"{path}: {key} is {brief(raw[key])}, minifpt builds only "
                             f"{' or '.join(str(x) for x in built if x is not None)}")
    if family is T5:
        name = str(raw["feed_forward_proj"])
        settings |= {"gated": name.startswith("gated-"), "activation_function": (
            "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"))}
    if "pad_token_id" in family.defaults:
        settings["first_row"] = whole(path, "pad_token_id", raw["pad_token_id"], 0) + 1
        settings["n_positions"] -= settings["first_row"]
    if isinstance(windows := settings.get("window"), list):
        if not windows or windows[1:] != windows[:-1]:
            raise ValueError(f"{path}: attention_window is {brief(windows)}, expected one number "
                             "for all blocks")
        settings["window"] = windows[0]
    return settings


def load_checkpoint(path, dropout=None):
    """Return ``(settings, tensors)`` of a model that Transformers saved: the fields of our config,
    and {our name: :class:`minifpt.files.huggingface.Tensor`}.

    ``path`` is a folder with tensors and a ``config.json``, or its file of tensors.  What belongs
    to the inputs that FPT replaces, and heads other than a language model's, are left out.  Raises
    ``FileNotFoundError`` or ``ValueError``.
    """
    path = tensor_file(Path(path))
    config_path = path.with_name("config.json")
    raw = read_json(config_path)
    settings = read_config(raw, config_path, dropout)
    family, theirs = FAMILIES[raw["model_type"]], {}
    for name, tensor in read_tensors(path).items():
        name = name.removeprefix(family.prefix)
        # Old versions of BERT have these names.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias")
        if name in theirs:
            raise ValueError(f"{path}: holds '{name}' twice, with the prefix '{family.prefix}' and "
                             "without it, or by an old name, too")
        theirs[name] = tensor
    blocks = {match[1] for name in theirs
              if (match := re.match(rf"{re.escape(family.block)}\.(\d+)\.", name))}
    # Two of ours have the same name in T5, of which a model has one.
    other = "mlp.c_" if settings.get("gated") else "mlp.down_" if family is T5 else "none"
    ours = [*family.outer, *(f"h.{i}.{part}" for i in sorted(blocks) for part in family.parts
                             if not part.startswith(other))]
    tensors = {}
    for name in (f"{layer}.{end}" for layer in ours for end in ("weight", "bias")):
        names = their_names(name, family)
        lacking = [part for part in names if part not in theirs]
        if not lacking:
            parts = [theirs.pop(part) for part in names]
            tensors[name] = (positions(parts, settings["first_row"]) if name == "wpe.weight"
                             else joined(parts, name, settings))
        elif len(lacking) < len(names):
            raise ValueError(f"{path}: lacks '{lacking[0]}'")
    for name in theirs:                                   # what is left
        if name.startswith(f"{family.block}.") and not IGNORED.search(name):
            raise ValueError(f"{path}: also holds '{name}', which minifpt does not build")
    if family is VIT and "wpe.weight" in tensors:         # its images may have any size
        settings["n_positions"] = tensors["wpe.weight"].shape[0]
    if "lm_head" in family.outer:
        tie(config_path, settings, tensors)
    return settings, tensors


def their_names(name, family):
    """Return the names of the tensors that our parameter ``name`` joins."""
    layer, _, end = name.rpartition(".")
    if family is VIT and name == "wpe.weight":            # a parameter without a layer
        return [*family.outer["wpe"]]
    if layer in family.outer:
        return [f"{theirs}.{end}" for theirs in family.outer[layer]]
    _, i, part = layer.split(".", 2)
    return [f"{family.block}.{i}.{theirs}.{end}" for theirs in family.parts[part]]


def query_scale(name, settings):
    """Return by what the queries of ``name`` are multiplied: T5 does not divide its scores by the
    root of a head's channels, so its queries are multiplied by it here."""
    return settings["head_dim"] ** 0.5 if settings.get("model_type") == "t5" and (
        "c_attn" in name) else None


def joined(parts, name, settings):
    """Return a tensor of ours from those of theirs that it joins."""
    scale = query_scale(name, settings)
    is_transposed = settings["model_type"] != "gpt2" and name not in TABLES
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(f"{part.label} has shape {part.shape}, the queries have "
                             f"{parts[0].shape}")

    def read():
        arrays = [part.read() for part in parts]
        if scale:
            arrays[0] = arrays[0].astype(np.float64) * scale
        array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        return array.T if is_transposed else array        # a bias stays
    shape = sum(math.prod(part.shape[:1]) for part in parts), *parts[0].shape[1:]
    return Tensor(parts[0].label, shape[::-1] if is_transposed else shape, read)


def positions(parts, first):
    """Return the positional embeddings from row ``first`` on, in a BERT with the vector of the
    first token type."""
    table, types = (*parts, None)[:2]
    n, C = (0, 0, *table.shape)[-2:]
    if math.prod(table.shape[:-2]) != 1:
        raise ValueError(f"{table.label} has shape {table.shape}, expected a row for each position")
    if types is not None and (0 in types.shape or types.shape[1:] != (C,)):
        raise ValueError(f"{types.label} has shape {types.shape}, expected rows of {C} "
                         "channels, as the positions have")

    def read():
        rows = table.read().reshape(n, C)[first:]
        return rows if types is None else rows.astype(np.float64) + types.read()[:1]
    return Tensor(table.label, (n - first, C), read)


def tie(path, settings, tensors):
    """Set in ``settings`` whether a language model's head is the table of its tokens.  A GPT-2 with
    another head loses the table, because ours has one for both ends: it is read as a trunk."""
    is_tied = flag(path, "tie_word_embeddings", settings["tied"])
    head = tensors.get("lm_head.weight")
    if head and is_tied:
        tensors.setdefault("wte.weight", head)
    table = tensors.get("wte.weight")
    # Transformers, too, keeps a Llama's head that differs from the table.
    is_same = head in (None, table) or table is not None and (
        head.shape == table.shape and np.array_equal(head.read(), table.read()))
    if settings["model_type"] == "gpt2" and not (is_same if head else is_tied):
        tensors.pop("wte.weight", None)
    settings["tied"] = is_tied and is_same


# ----------------------------------------------------------------------------------- writing


def as_transformers(config, named):
    """Return the fields of a ``config.json`` and [(name, array)] as Transformers has them, from
    (name, array) as we have them.  What a trunk lacks, such as tables of tokens, Transformers draws
    when it loads the folder.  Raises ``ValueError`` for a GPT-2 that is not causal, which
    Transformers' always is."""
    kind = "qwen2" if getattr(config, "qkv_bias", False) else getattr(config, "model_type", "gpt2")
    if kind == "gpt2" and not config.causal:
        raise ValueError("save: the model is not causal, and Transformers' GPT-2 is: expected "
                         "a path that ends in .npz")
    family, arrays = FAMILIES[kind], []
    has_head = "wte.weight" in dict(named) and config.causal
    head = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
    fields = {
        "model_type": kind,
        "architectures": [family.model.removesuffix("Model") + head if has_head else family.model],
        **{key: built[0] for key, built in family.fixed(vars(config)).items()
           if built[0] is not None},
        **{theirs: getattr(config, ours) for ours, theirs in family.settings.items()
           if hasattr(config, ours)},
        **dict.fromkeys(family.dropouts, config.dropout),
        **family.others(config)}
    # A ViT has no tokens.
    named = [pair for pair in named if pair[0] != "wte.weight" or "wte" in family.outer]
    for name, array in named:
        names, parts = their_names(name, family), [array]
        if kind != "gpt2" and name not in TABLES:
            parts = [part.T for part in np.split(array, len(names), axis=-1)]
        if scale := query_scale(name, vars(config)):
            parts[0] = (parts[0].astype(np.float64) / scale).astype(array.dtype)
        if name == "wpe.weight":                          # the token type is in the positions
            table = np.pad(array, ((family.constants["first_row"], 0), (0, 0)))
            parts = [table[None] if kind == "vit" else table, np.zeros_like(array[:1])][:len(names)]
        prefix = family.prefix if has_head and not name.startswith("lm_head") else ""
        arrays += [(prefix + theirs, part) for theirs, part in zip(names, parts, strict=True)]
        if kind == "longformer" and "c_attn" in name:     # as it is made from a RoBERTa
            arrays += [(re.sub(r"(self\.\w+)", r"\1_global", theirs), part)
                       for theirs, part in arrays[-len(names):]]
    return fields, arrays
