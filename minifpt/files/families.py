"""What Transformers calls the settings and the weights of each family of models: a table, by which
folders are read and written.

Our names are GPT-2's.  Where Transformers holds queries, keys and values apart, ours are joined.
Its linear layers hold the transposed matrix, but for GPT-2's.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..checks import brief, flag, one_of, whole
from . import huggingface
from .huggingface import Tensor


class Family(NamedTuple):
    """A family of models in Transformers.

    model        the name of its trunk's class.
    prefix       of the names of the trunk's parameters in a larger model.
    block        the name of a block, without its number.
    settings     {field of our config: field of ``config.json``}.
    outer        {layer of ours: layer of theirs}, outside of the blocks.
    parts        {layer of ours in a block: layers of theirs, joined along their outputs}.
    fixed        {field of ``config.json``: the values that minifpt builds, the usual one first}.
    dropouts     fields of ``config.json`` for dropout, of which we have one.
    """

    model: str
    prefix: str
    block: str
    settings: dict
    outer: dict
    parts: dict
    fixed: dict
    dropouts: tuple


SIZES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
         "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
         "vocab_size": "vocab_size", "initializer_range": "initializer_range"}
ENCODER_SIZES = SIZES | {"layer_norm_epsilon": "layer_norm_eps",
                         "activation_function": "hidden_act"}
ENCODER_DROPOUTS = "hidden_dropout_prob", "attention_probs_dropout_prob"
SAME = {name: name for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size",
                                "layer_norm_epsilon", "activation_function", "initializer_range")}
GPT2 = Family("GPT2Model", "transformer.", "h", SAME, {
    name: name for name in ("wte", "wpe", "ln_f", "lm_head")}, {
    name: (name,) for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc",
                               "mlp.c_proj")}, {
    "n_inner": (None,), "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,), "pruned_heads": (None, {})},
    ("resid_pdrop", "embd_pdrop", "attn_pdrop"))
LLAMA = Family("LlamaModel", "model.", "layers", SIZES | {
    "n_group": "num_key_value_heads", "rms_norm_epsilon": "rms_norm_eps",
    "tied": "tie_word_embeddings"}, {
    "wte": "embed_tokens", "ln_f": "norm", "lm_head": "lm_head"}, {
    "ln_1": ("input_layernorm",), "ln_2": ("post_attention_layernorm",),
    **{f"attn.{part}_proj": (f"self_attn.{part}_proj",) for part in "qkvo"},
    **{f"mlp.{part}_proj": (f"mlp.{part}_proj",) for part in ("gate", "up", "down")}}, {
    "hidden_act": ("silu", "swish"), "attention_bias": (False, None), "mlp_bias": (False, None),
    "use_sliding_window": (False, None)}, ("attention_dropout",))
BERT = Family("BertModel", "bert.", "encoder.layer", ENCODER_SIZES, {
    "wte": "embeddings.word_embeddings", "wpe": "embeddings.position_embeddings",
    "ln": "embeddings.LayerNorm"}, {
    "attn.c_attn": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
    "attn.c_proj": ("attention.output.dense",), "ln_1": ("attention.output.LayerNorm",),
    "mlp.c_fc": ("intermediate.dense",), "mlp.c_proj": ("output.dense",),
    "ln_2": ("output.LayerNorm",)}, {
    "position_embedding_type": ("absolute",), "is_decoder": (False,)}, ENCODER_DROPOUTS)
VIT = Family("ViTModel", "vit.", "encoder.layer", {
    ours: theirs for ours, theirs in ENCODER_SIZES.items()
    if ours not in ("n_positions", "vocab_size")}, {
    "wpe": "embeddings.position_embeddings", "ln_f": "layernorm"}, {
    "attn.c_attn": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
    "attn.c_proj": ("attention.output.dense",), "ln_1": ("layernorm_before",),
    "mlp.c_fc": ("intermediate.dense",), "mlp.c_proj": ("output.dense",),
    "ln_2": ("layernorm_after",)}, {"qkv_bias": (True,)}, ENCODER_DROPOUTS)
T5 = Family("T5EncoderModel", "transformer.", "encoder.block", {
    "n_layer": "num_layers", "n_head": "num_heads", "n_embd": "d_model", "n_inner": "d_ff",
    "head_dim": "d_kv", "vocab_size": "vocab_size", "layer_norm_epsilon": "layer_norm_epsilon",
    "n_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance"}, {
    "wte": "shared", "ln_f": "encoder.final_layer_norm",
    "relative": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"}, {
    "attn.c_attn": tuple(f"layer.0.SelfAttention.{part}" for part in "qkv"),
    "attn.c_proj": ("layer.0.SelfAttention.o",), "ln_1": ("layer.0.layer_norm",),
    "mlp.c_fc": ("layer.1.DenseReluDense.wi",), "mlp.c_proj": ("layer.1.DenseReluDense.wo",),
    "mlp.gate_proj": ("layer.1.DenseReluDense.wi_0",),
    "mlp.up_proj": ("layer.1.DenseReluDense.wi_1",),
    "mlp.down_proj": ("layer.1.DenseReluDense.wo",), "ln_2": ("layer.1.layer_norm",)},
    {}, ("dropout_rate",))
FAMILIES = {
    "gpt2": GPT2, "llama": LLAMA, "qwen2": LLAMA._replace(model="Qwen2Model"), "bert": BERT,
    "roberta": BERT._replace(model="RobertaModel", prefix="roberta."),
    "longformer": BERT._replace(model="LongformerModel", prefix="longformer.",
                                settings=ENCODER_SIZES | {"window": "attention_window"}),
    "vit": VIT, "t5": T5}
TABLES = "wte.weight", "lm_head.weight", "wpe.weight", "relative.weight"      # not transposed
# Fields of our config that are whole numbers, at least 1.
WHOLE = {*SIZES, "n_group", "head_dim", "n_buckets", "max_distance"} - {"initializer_range"}
# Names in blocks that are not read: the masks of old versions, rotary angles, what Longformer's
# tokens with global attention have.
IGNORED = re.compile(r"attn\.(masked_)?bias$|rotary_emb\.inv_freq$|_global\.")
# Where a config.json lacks a field, as Transformers has it.
DEFAULTS = {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "hidden_act": "gelu",
            "layer_norm_eps": 1e-12, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
            "initializer_range": 0.02, "attention_dropout": 0.0,
            "attention_window": 512, "relative_attention_max_distance": 128,
            "relative_attention_num_buckets": 32}


def read_config(raw, path, dropout=None):
    """Return the fields of our config of a model, from those of its ``config.json``; ``dropout``
    replaces the file's.  Raises ``ValueError`` for mathematics that minifpt does not have.
    GPT-2's ``reorder_and_upcast_attn`` only changes rounding and is ignored."""
    kind = kind_of(raw, path)
    family, usual = FAMILIES[kind], 0.0 if kind == "vit" else 0.1
    settings = {ours: raw.get(theirs, DEFAULTS.get(theirs))
                for ours, theirs in family.settings.items()}
    for ours, theirs in family.settings.items():
        if ours in WHOLE and (ours != "n_group" or settings[ours] is not None):
            whole(path, theirs, settings[ours], most=2**63 - 1)
        elif settings[ours] is None and ours != "n_group":
            raise ValueError(f"{path}: {theirs} is null")
    settings["model_type"] = "llama" if kind == "qwen2" else kind
    rates = {key: raw.get(key, DEFAULTS.get(key, usual)) for key in family.dropouts}
    settings["dropout"] = rates[family.dropouts[0]] if dropout is None else dropout
    if dropout is None and any(rate != settings["dropout"] for rate in rates.values()):
        raise ValueError(f"{path}: {', '.join(f'{k} {brief(v)}' for k, v in rates.items())}: "
                         "minifpt has one dropout for all: pass dropout=")
    fixed = family.fixed | special_settings(kind, raw, settings, path)
    for key, built in fixed.items():
        if raw.get(key, built[0]) not in built:
            raise ValueError(f"{path}: {key} is {brief(raw[key])}, minifpt builds only "
                             f"{' or '.join(map(str, built))}")
    return settings


def kind_of(raw, path):
    """Return the family of a model, from the fields of its ``config.json``.  Old files have no
    ``model_type``: the name of the class tells it, or BERT's two types of tokens."""
    kind = raw.get("model_type")
    for name, family in FAMILIES.items() if kind is None else ():
        if f"'{family.model.removesuffix('Model').removesuffix('Encoder')}" in str(
                raw.get("architectures")):
            kind = name
    if kind is None and raw.get("type_vocab_size") == 2:
        kind = "bert"
    if kind is None and "hidden_size" not in raw:
        kind = "gpt2"
    return one_of(path, "model_type", kind, FAMILIES)


def special_settings(kind, raw, settings, path):
    """Change ``settings`` in place by what a family alone has; return more ``Family.fixed``."""
    if kind == "gpt2":
        return {"n_inner": (None, 4 * settings["n_embd"])}
    if kind in ("llama", "qwen2"):
        rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        if not isinstance(rope, dict):
            raise ValueError(f"{path}: rope_parameters is {brief(rope)}, expected an object")
        settings |= {"rope_base": rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
                     "qkv_bias": kind == "qwen2"}
        scaling = rope.get("rope_type", rope.get("type", "default"))
        if scaling != "default":
            raise ValueError(f"{path}: rope_type is {brief(scaling)}, minifpt builds only "
                             "'default'")
        return {"head_dim": (None, settings["n_embd"] // settings["n_head"])}
    if kind == "t5":
        name = str(raw.get("feed_forward_proj", "relu"))
        act = name.removeprefix("gated-")
        # "gated-gelu" is gelu_new in Transformers, too.
        settings |= {"n_positions": 1, "gated": act != name, "activation_function":
                     "gelu_new" if name == "gated-gelu" else act,
                     "layer_norm_epsilon": raw.get("layer_norm_epsilon", 1e-6)}
    elif kind == "vit":
        images, patches = (sides(path, key, raw.get(key)) for key in ("image_size", "patch_size"))
        settings |= {"vocab_size": 1, "n_positions": math.prod(
            image // patch for image, patch in zip(images, patches, strict=True))}
    else:
        if kind != "bert":
            whole(path, "pad_token_id", raw.get("pad_token_id", 1), 0)
        settings["n_positions"] -= first_position(kind, raw)
    if kind == "longformer" and isinstance(settings["window"], list):
        windows = settings["window"]
        if not windows or windows.count(windows[0]) < len(windows):
            raise ValueError(f"{path}: attention_window is {brief(windows)}, expected one number "
                             "for all blocks")
        settings["window"] = windows[0]
    return {}


def sides(path, key, value):
    """Return the height and the width of an image or of its patches, one number or two."""
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2:
        raise ValueError(f"{path}: {key} is {brief(value)}, expected one number or two")
    return [whole(path, key, side) for side in pair]


def first_position(kind, raw):
    """Return the row of the first token: RoBERTa and Longformer count from behind the padding
    token, and ViT's first row is the class token's."""
    if kind in ("roberta", "longformer"):
        return raw.get("pad_token_id", 1) + 1
    return int(kind == "vit")


def load_checkpoint(path, dropout=None):
    """Return ``(settings, tensors)`` of a model that Transformers saved: the fields of our config,
    and {our name: :class:`minifpt.files.huggingface.Tensor`}.

    ``path`` is a folder with tensors and a ``config.json``, or its file of tensors.  What belongs
    to the inputs that FPT replaces, and heads other than a language model's, are left out.  Raises
    ``FileNotFoundError`` or ``ValueError``.
    """
    path = huggingface.tensor_file(Path(path))
    raw, config_path = huggingface.settings_of(path)
    settings = read_config(raw, config_path, dropout)
    kind = kind_of(raw, config_path)
    family, first = FAMILIES[kind], first_position(kind, raw)
    theirs = {}
    for name, tensor in huggingface.read_tensors(path).items():
        name = name.removeprefix(family.prefix)
        # Old versions of BERT have these names.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias")
        if name in theirs:
            raise ValueError(f"{path}: holds '{name}' twice, with the prefix '{family.prefix}' and "
                             "without it, or by an old name, too")
        theirs[name] = tensor
    if kind == "vit" and family.outer["wpe"] in theirs:
        theirs[f"{family.outer['wpe']}.weight"] = theirs.pop(family.outer["wpe"])
    blocks = {match[1] for name in theirs
              if (match := re.match(rf"{re.escape(family.block)}\.(\d+)\.", name))}
    # Two of ours have the same name in T5, of which a model has one.
    other = "mlp.c_" if settings.get("gated") else "mlp.down_" if kind == "t5" else "none"
    ours = [*family.outer, *(f"h.{i}.{part}" for i in sorted(blocks) for part in family.parts
                             if not part.startswith(other))]
    tensors, used = {}, set()
    for name in (f"{layer}.{end}" for layer in ours for end in ("weight", "bias")):
        names = their_names(name, family)
        lacking = [part for part in names if part not in theirs]
        if not lacking:
            tensors[name] = joined([theirs[part] for part in names], name, kind, settings)
            used.update(names)
        elif len(lacking) < len(names):
            raise ValueError(f"{path}: lacks '{lacking[0]}'")
    for name in theirs:
        if name.startswith(f"{family.block}.") and name not in used and not IGNORED.search(name):
            raise ValueError(f"{path}: also holds '{name}', which minifpt does not build")
    if "wpe.weight" in tensors and kind != "gpt2":
        types = theirs.get("embeddings.token_type_embeddings.weight")
        tensors["wpe.weight"] = positions(tensors["wpe.weight"], types, first)
    if "lm_head" in family.outer:
        tie(path, kind, raw, settings, tensors)
    return settings, tensors


def their_names(name, family):
    """Return the names of the tensors that our parameter ``name`` joins."""
    layer, _, end = name.rpartition(".")
    if layer in family.outer:
        return [f"{family.outer[layer]}.{end}"]
    _, i, part = layer.split(".", 2)
    return [f"{family.block}.{i}.{theirs}.{end}" for theirs in family.parts[part]]


def query_scale(name, kind, settings):
    """Return by what the queries of ``name`` are multiplied: T5 does not divide its scores by the
    root of a head's channels, so its queries are multiplied by it here."""
    return settings["head_dim"] ** 0.5 if kind == "t5" and "c_attn" in name else None


def joined(parts, name, kind, settings):
    """Return a tensor of ours from those of theirs that it joins."""
    scale, is_linear = query_scale(name, kind, settings), kind != "gpt2" and name not in TABLES
    if len(parts) == 1 and not (is_linear and len(parts[0].shape) == 2):
        return parts[0]
    for part in parts:
        part.check_dtype()
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(f"{part.label} has shape {part.shape}, the queries have "
                             f"{parts[0].shape}")

    def read():
        arrays = [part.read() for part in parts]
        if scale:
            arrays[0] = arrays[0].astype(np.float64) * scale
        return np.concatenate(arrays).T                   # a bias stays
    shape = sum(math.prod(part.shape[:1]) for part in parts), *parts[0].shape[1:]
    return Tensor(parts[0].label, shape[::-1], np.dtype(np.float32), read)


def positions(table, types, first):
    """Return the positional embeddings from row ``first`` on, with the vector of the first token
    type, which every token has."""
    n, C = (0, 0, *table.shape)[-2:]
    if math.prod(table.shape[:-2]) != 1:
        raise ValueError(f"{table.label} has shape {table.shape}, expected a row for each position")
    if types is not None and (0 in types.shape or types.shape[1:] != (C,)):
        raise ValueError(f"{types.label} has shape {types.shape}, expected rows of {C} "
                         "channels, as the positions have")
    for tensor in filter(None, (table, types)):
        tensor.check_dtype()

    def read():
        rows = table.read().reshape(n, C)[first:]
        return rows if types is None else rows.astype(np.float64) + types.read()[:1]
    return Tensor(table.label, (n - first, C), np.dtype(np.float32), read)


def tie(path, kind, raw, settings, tensors):
    """Remove a language model's head where it is the table of its tokens.  A GPT-2 with another
    head loses both, because ours has one table for both ends: it is read as a trunk."""
    is_tied = flag(path.with_name("config.json"), "tie_word_embeddings",
                   raw.get("tie_word_embeddings", kind == "gpt2"))
    head = tensors.get("lm_head.weight")
    if head and is_tied:
        tensors.setdefault("wte.weight", head)
    table = tensors.get("wte.weight")
    # Transformers, too, keeps a Llama's head that differs from the table.
    is_same = head in (None, table) or table is not None and (
        head.shape == table.shape and np.array_equal(head.read(), table.read()))
    if kind == "gpt2" and not (is_same and (is_tied or head)):
        tensors.pop("wte.weight", None)
    settings["tied"] = is_tied and is_same
    if kind == "gpt2" or settings["tied"]:
        tensors.pop("lm_head.weight", None)


# ----------------------------------------------------------------------------------- writing


def config_json(config, has_head):
    """Return the fields of a ``config.json`` for a config of ours.  Raises ``ValueError`` for a
    GPT-2 that is not causal, which Transformers' always is."""
    kind = "qwen2" if getattr(config, "qkv_bias", False) else getattr(config, "model_type", "gpt2")
    family = FAMILIES[kind]
    fields = {key: built[0] for key, built in family.fixed.items()} | {
        theirs: getattr(config, ours) for ours, theirs in family.settings.items()
        if hasattr(config, ours)} | dict.fromkeys(family.dropouts, config.dropout)
    head = {"gpt2": "LMHeadModel"}.get(kind, "ForCausalLM")
    fields |= {"model_type": kind, "architectures": [
        family.model.removesuffix("Model") + head if has_head else family.model]}
    if kind == "gpt2":
        if not config.causal:
            raise ValueError("save: the model is not causal, and Transformers' GPT-2 is: expected "
                             "a path that ends in .npz")
        end = 50256 if config.vocab_size == 50257 else None       # GPT-2's token <|endoftext|>
        return fields | {"n_ctx": config.n_positions, "tie_word_embeddings": True,
                         "bos_token_id": end, "eos_token_id": end}
    if kind in ("llama", "qwen2"):
        return fields | {"head_dim": config.n_embd // config.n_head, "rope_theta": config.rope_base,
                         "rope_parameters": {"rope_type": "default",
                                             "rope_theta": config.rope_base},
                         "bos_token_id": None, "eos_token_id": None}
    if kind == "t5":
        act = "gelu" if config.gated and config.activation_function == "gelu_new" else (
            config.activation_function)
        return fields | {"feed_forward_proj": "gated-" * config.gated + act}
    if kind == "vit":                                     # only the number of patches counts
        n, side = config.n_positions, math.isqrt(config.n_positions)
        sides = (side, side) if side * side == n else (n, 1)
        return fields | {"image_size": [16 * n for n in sides], "patch_size": 16}
    fields |= {"type_vocab_size": 1, "pad_token_id": 0 if kind == "bert" else 1}
    return fields | {
        "max_position_embeddings": config.n_positions + first_position(kind, fields)}


def as_transformers(config, named):
    """Return the fields of a ``config.json`` and [(name, array)] as Transformers has them, from
    (name, array) as we have them.  What a trunk lacks, such as tables of tokens, Transformers draws
    when it loads the folder."""
    has_head = "wte.weight" in dict(named) and config.causal
    fields = config_json(config, has_head)
    kind = fields["model_type"]
    family, arrays = FAMILIES[kind], []
    for name, array in named:
        if name == "wte.weight" and "wte" not in family.outer:
            continue
        names = their_names(name, family)
        scale, parts = query_scale(name, kind, vars(config)), [array]
        if kind != "gpt2" and name not in TABLES:
            parts = [part.T for part in np.split(array, len(names), axis=-1)]
        if scale:
            parts[0] = (parts[0].astype(np.float64) / scale).astype(array.dtype)
        if name == "wpe.weight" and kind != "gpt2":
            before = np.zeros((first_position(kind, fields), config.n_embd), array.dtype)
            parts = [np.concatenate([before, array])]
            if kind == "vit":
                names, parts = [family.outer["wpe"]], [parts[0][None]]
            else:                                         # the token type is in the positions
                names.append("embeddings.token_type_embeddings.weight")
                parts.append(np.zeros((1, config.n_embd), array.dtype))
        prefix = family.prefix if has_head and not name.startswith("lm_head") else ""
        arrays += [(prefix + theirs, part) for theirs, part in zip(names, parts, strict=True)]
        if kind == "longformer" and "c_attn" in name:     # as it is made from a RoBERTa
            arrays += [(re.sub(r"(self\.\w+)", r"\1_global", theirs), part)
                       for theirs, part in arrays[-len(names):]]
    return fields, arrays
