"""Families of models: what Transformers calls the settings and the weights of each, in tables by
which folders are read and written.

Our names are GPT-2's.  Where Transformers holds queries, keys and values apart, ours are joined.
Its linear layers hold the transposed matrix, but for GPT-2's.
"""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..checks import brief, flag, one_of, whole
from . import PACKAGE, read_json
from .huggingface import Tensor, read_tensors, tensor_file

SIZES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embd": "hidden_size",
         "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
         "vocab_size": "vocab_size"}
SHAPE = r"(?P<n_layer>\d{1,4})x(?P<n_head>\d{1,4})x(?P<n_embd>\d{1,5})"
# Not transposed.
TABLES = "wte.weight", "lm_head.weight", "wpe.weight", "relative.weight", "attn.bias.weight"
# Fields of our config that are whole numbers, at least 1.
WHOLE = {*SIZES, "n_group", "head_dim", "n_buckets", "max_distance"}
# Names in blocks that are not read: the masks of old versions, rotary angles, what a model's tokens
# with global attention have.
IGNORED = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|_global\.")
WRAPPERS = re.compile(r"^(_orig_mod\.|module\.)+")        # of torch.compile and DataParallel
# Fields that say how positions are rotated, in an object of their own or beside the others.
ROTARY = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "factor", "low_freq_factor",
          "high_freq_factor", "original_max_position_embeddings")


class Family(NamedTuple):
    """A family of models, which a module in ``minifpt/trunks/`` defines.  All that lists families
    reads :func:`registry`.

    title           its name in texts.
    model_type      its name in ``config.json``.
    config, trunk   its classes.
    language_model  the class of its language model; ``None`` if minifpt has none, and reads a
                    folder of one as a trunk.
    model           the class of its trunk in Transformers; ``""`` if that has none.
    name            before the shape of a random trunk, as in ``random:NAME:6x4x128``; ``""`` for
                    GPT-2, ``None`` if a shape does not say which trunk.
    shape, note     the pattern of that shape, whose groups are fields of the config; an example.
    prefix, block   before the names of a trunk's parameters; before the number of a block.
    settings        {field of our config: field of ``config.json``}.
    optional        fields of our config that may be null.
    constants       {field of our config: the family's value}; also ``first_row``, the row of the
                    positional embeddings that belongs to the first token.
    defaults        {field of ``config.json``: its value where a file lacks it}.
    dropouts        fields of ``config.json`` for dropout: those that Transformers' config of this
                    family has and its model uses.  We have one rate for all, and refuse a file
                    in which two of them differ.
    old             {old name of a tensor or field, or the part of it that changed: the new one}.
    outer           {layer or parameter of ours: those of theirs}, outside of the blocks.
    parts           a function of our settings: {layer of ours in a block: layers of theirs, joined
                    along their outputs}.
    fixed           a function of our settings: {field of ``config.json``: the values that minifpt
                    builds}, of which the first is written, unless it is ``None``.
    others          a function of our config: the other fields of ``config.json``.
    complete        a function of the fields of ``config.json``, our settings and the path: what the
                    tables do not say.
    twin            a function of our config: the ``model_type`` that is written.
    join, split     functions of our name, the arrays and our settings: their arrays, turned into
                    those that are joined; and back.
    copies          a pattern and its replacement: names by which a tensor is written once more.

    A new kind of field or tensor may need an entry in the tables above, ``WHOLE``, ``TABLES``,
    ``IGNORED`` and ``ROTARY``, and in ``COMPUTES`` of ``minifpt/trunks/__init__.py``.
    """

    title: str
    model_type: str
    config: type
    trunk: type
    language_model: type | None = None
    model: str = ""
    name: str | None = None
    shape: str = SHAPE
    note: str = ""
    prefix: str = ""
    block: str = ""
    settings: dict = {}
    optional: tuple = ()
    constants: dict = {}
    defaults: dict = {}
    dropouts: tuple = ()
    old: dict = {}
    outer: dict = {}
    parts: Callable = lambda settings: {}
    fixed: Callable = lambda settings: {}
    others: Callable = lambda config: {}
    complete: Callable = lambda raw, settings, path: {}
    twin: Callable = lambda config: config.model_type
    join: Callable = lambda name, arrays, settings: arrays
    split: Callable = lambda name, arrays, settings: arrays
    copies: tuple = ("$^", "")
    is_transposed: bool = True
    head: str = "ForCausalLM"


@cache
def registry():
    """Return {model type: family} of all families: each :class:`Family` in the modules of
    ``minifpt/trunks/``.  They are imported here, and not above, because they import this module."""
    modules = [import_module(f"minifpt.trunks.{path.stem}")
               for path in sorted((PACKAGE / "trunks").glob("[!_]*.py"))]
    return {family.model_type: family for module in modules for family in vars(module).values()
            if isinstance(family, Family)}


def family_of(config):
    """Return the family of a config of ours."""
    return next(family for family in registry().values() if family.config is type(config)
                and family.model_type == getattr(config, "model_type", family.model_type))


def readable():
    """Return {model type: family} of those that Transformers has, too."""
    return {kind: family for kind, family in registry().items() if family.model}


# ----------------------------------------------------------------------------------- reading


def read_config(raw, path, dropout=None):
    """Return the fields of our config of a model, from those of its ``config.json``; ``dropout``
    replaces the file's.  Raises ``ValueError`` for mathematics that minifpt does not have."""
    family = readable()[one_of(path, "model_type", raw.get("model_type"), readable())]
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"{path}: rope_parameters is {brief(rope)}, expected an object")
    for old, new in family.old.items():                   # one setting by two names
        read = raw.get(old, family.defaults[new] if new in ROTARY else raw.get(new))
        if new in raw.keys() - {*rope} and raw[new] != read:
            raise ValueError(f"{path}: {new} is {brief(raw[new])}, and {old}, as Transformers "
                             f"calls it, {brief(read)}: make them equal")
    raw = family.defaults | {family.old.get(key, key): value for key, value in raw.items()} | {
        key: rope[key] for key in ROTARY if key in rope}
    settings = {"model_type": raw["model_type"]} | family.constants | {
        ours: raw.get(theirs) for ours, theirs in family.settings.items()}
    for ours, theirs in family.settings.items():
        if settings[ours] is None and ours in family.optional:
            continue
        if ours in WHOLE:
            whole(path, theirs, settings[ours], most=2**63 - 1)
        elif settings[ours] is None:
            raise ValueError(f"{path}: {theirs} is null")
    rates = {key: raw[key] for key in family.dropouts}
    settings["dropout"] = rates[family.dropouts[0]] if dropout is None else dropout
    if dropout is None and any(rate != settings["dropout"] for rate in rates.values()):
        raise ValueError(f"{path}: {', '.join(f'{k} {brief(v)}' for k, v in rates.items())}: "
                         "minifpt has one dropout for all: pass dropout=, on the command line "
                         "--dropout")
    for key, built in family.fixed(settings).items():
        if raw.get(key, built[0]) not in built:
            raise ValueError(f"{path}: {key} is {brief(raw[key])}, minifpt builds only "
                             f"{' or '.join(str(x) for x in built if x is not None)}")
    return settings | family.complete(raw, settings, path)


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
    family, theirs = registry()[raw["model_type"]], {}
    for name, tensor in read_tensors(path).items():
        name = WRAPPERS.sub("", name).removeprefix(family.prefix)
        for old, new in family.old.items():
            name = name.replace(old, new)
        if name in theirs:
            raise ValueError(f"{path}: holds '{name}' twice, with the prefix '{family.prefix}' and "
                             "without it, or by an old name, too")
        theirs[name] = tensor
    blocks = {match[1] for name in theirs
              if (match := re.match(rf"{re.escape(family.block)}\.(\d+)\.", name))}
    parts, tensors = family.parts(settings), {}
    for layer in (*family.outer, *(f"h.{i}.{part}" for i in sorted(blocks) for part in parts)):
        for name in [layer] if "." in layer and layer in family.outer else (
                f"{layer}.weight", f"{layer}.bias"):
            names = their_names(name, family, parts)
            lacking = [part for part in names if part not in theirs]
            if not lacking:
                pieces = [theirs.pop(part) for part in names]
                tensors[name] = (positions(pieces, settings["first_row"]) if name == "wpe.weight"
                                 else joined(pieces, name, settings, family))
            elif len(lacking) < len(names):
                raise ValueError(f"{path}: lacks '{lacking[0]}'")
    for name in theirs:                                   # what is left
        if name.startswith(f"{family.block}.") and not IGNORED.search(name):
            raise ValueError(f"{path}: also holds '{name}', which minifpt does not build")
    if "n_positions" not in settings and "wpe.weight" in tensors:      # its images have any size
        settings["n_positions"] = tensors["wpe.weight"].shape[0]
    if "lm_head" in family.outer:
        tie(config_path, settings, tensors, family)
    return settings, tensors


def their_names(name, family, parts):
    """Return the names of the tensors that our parameter ``name`` joins."""
    layer, _, end = name.rpartition(".")
    if name in family.outer:                              # a parameter without a layer
        return [*family.outer[name]]
    if layer in family.outer:
        return [f"{theirs}.{end}" for theirs in family.outer[layer]]
    _, i, part = layer.split(".", 2)
    return [f"{family.block}.{i}.{theirs}.{end}" for theirs in parts[part]]


def is_turned(name, family):
    """Return whether Transformers holds the transposed array."""
    return family.is_transposed and not name.endswith(TABLES)


def joined(parts, name, settings, family):
    """Return a tensor of ours from those of theirs that it joins."""
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(f"{part.label} has shape {part.shape}, the queries have "
                             f"{parts[0].shape}")

    def read():
        arrays = family.join(name, [part.read() for part in parts], settings)
        array = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        return array.T if is_turned(name, family) else array      # a bias stays
    shape = sum(math.prod(part.shape[:1]) for part in parts), *parts[0].shape[1:]
    return Tensor(parts[0].label, shape[::-1] if is_turned(name, family) else shape, read)


def positions(parts, first):
    """Return the positional embeddings from row ``first`` on; where there are token types, with the
    vector of the first one."""
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


def tie(path, settings, tensors, family):
    """Set in ``settings`` whether a language model's head is the table of its tokens.  A model
    whose head differs, of a family that has one table for both ends, loses the table: it is read
    as a trunk."""
    is_tied = flag(path, "tie_word_embeddings", settings["tied"])
    head = tensors.get("lm_head.weight")
    if head and is_tied:
        tensors.setdefault("wte.weight", head)
    table = tensors.get("wte.weight")
    # Transformers, too, keeps a head that differs from the table.
    is_same = head in (None, table) or table is not None and (
        head.shape == table.shape and np.array_equal(head.read(), table.read()))
    has_two = "tied" in (field.name for field in fields(family.config))
    if not has_two and not (is_same if head else is_tied):
        tensors.pop("wte.weight", None)
    settings["tied"] = is_tied and is_same


# ----------------------------------------------------------------------------------- writing


def as_transformers(config, named):
    """Return the fields of a ``config.json`` and [(name, array)] as Transformers has them, from
    (name, array) as we have them.  What a trunk lacks, such as tables of tokens, Transformers draws
    when it loads the folder.  Raises ``ValueError`` for a model that Transformers lacks."""
    family, arrays = registry()[family_of(config).twin(config)], []
    settings = vars(config)
    parts = family.parts(settings)
    has_head = "wte.weight" in dict(named) and config.causal
    raw = {
        "model_type": family.model_type,
        "architectures": [family.model.removesuffix("Model") + family.head if has_head
                          else family.model],
        **{key: built[0] for key, built in family.fixed(settings).items() if built[0] is not None},
        **{theirs: settings[ours] for ours, theirs in family.settings.items() if ours in settings},
        **dict.fromkeys(family.dropouts, config.dropout),
        **family.others(config)}
    # A model of images has no tokens.
    named = [pair for pair in named if pair[0] != "wte.weight" or "wte" in family.outer]
    for name, array in named:
        names, pieces = their_names(name, family, parts), [array]
        if is_turned(name, family):
            pieces = [piece.T for piece in np.split(array, len(names), axis=-1)]
        pieces = family.split(name, pieces, settings)
        if name == "wpe.weight":                          # the token type is in the positions
            table = np.pad(array, ((family.constants["first_row"], 0), (0, 0)))
            pieces = [table if "wpe" in family.outer else table[None], np.zeros_like(array[:1])]
        prefix = family.prefix if has_head and not name.startswith("lm_head") else ""
        for theirs, piece in zip(names, pieces, strict=False):
            arrays += [(prefix + key, piece) for key in dict.fromkeys(
                (theirs, re.sub(*family.copies, theirs)))]
    return raw, arrays
