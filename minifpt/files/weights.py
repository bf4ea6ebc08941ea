"""Weight files: find them by name and load them; ``export`` writes them.

A weight file is an ``.npz`` with an array for each parameter under GPT-2's name, float16 or
float32, and a text ``config``, the model's shape and origin as JSON.  Loading never unpickles, so
no file can run code.  A checkpoint of Transformers is read directly (see ``huggingface``), or
converted once to such a file.
"""

import os
import re
import zipfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np

from .. import checks
from ..machine import run_in_threads
from ..spelling import suggestion
from . import (
    PACKAGE,
    array_headers,
    by_gpt2_name,
    cache_folder,
    families,
    huggingface,
    one_line,
    refuse_damage,
    refuse_pointer,
    stored_array,
    stored_json,
)
from .huggingface import Tensor

Model = TypeVar("Model")
TABLES = "wte.weight", "lm_head.weight"                   # of a language model, not of its trunk
# What ``minifpt pretrain`` trains on, by the ``source`` in the config of the file that it writes.
PRETRAINED_ON = {
    "language": "the next byte of a text", "masked": "masked bytes of a text",
    "bits": "bit memory", "images": "handwritten digits, MNIST",
    "vision": "handwritten digits, every token seeing all"}


def folders():
    """Return the folders with weights: the package's (in the package when installed, beside it in
    a checkout), then the user's cache folder."""
    return [PACKAGE / "pretrained", PACKAGE.parent / "weights", cache_folder() / "weights"]


def available():
    """Return the names of all weights in these folders."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.npz")})


def origin(name):
    """Return the origin of the weights ``name`` as text: hub id and commit, or a command."""
    try:
        config, _ = read(find(name))
    except (ValueError, OSError) as e:
        return one_line(e)
    parts = [str(config[key]) for key in ("command", "source", "revision") if key in config]
    return shorten(" ".join(parts[:1] if "command" in config else parts) or "not known", 120)


def find(name):
    """Return the path of weights, from a name such as ``minigpt-language``, or from a path: an
    ``.npz`` file, or a folder or file that Transformers saved."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"no weights {checks.brief(name)}: expected a name or a path")
    if not str(name).strip():                             # Path("") is the working folder
        raise FileNotFoundError(f"no weights {checks.brief(name)}: expected a name or a path")
    if Path(name).is_file() or huggingface.is_checkpoint(name):
        return Path(name)
    for folder in folders():
        path = folder / f"{file_name(name)}.npz"
        if path.exists():
            return path
    if (Path(name) / "checkpoint.npz").is_file():
        raise ValueError(f"{name} is the folder of a run: 'minifpt convert {name} --out FILE.npz' "
                         "writes its trunk")
    if Path(name).is_dir():
        huggingface.tensor_file(Path(name))               # its error names the missing files
    hint = f"; 'minifpt convert {name}' downloads it" if name in huggingface.HUB else ""
    near = "" if hint else " (it is drawn, not read)" if re.match(
        "(random|lstm)([:@+,]|$)", str(name)) else suggestion(
            name, {*available(), "random", *huggingface.HUB} - {str(name)})
    raise FileNotFoundError(f"no weights {str(name)!r}{near}: neither a path nor one of "
                            f"{', '.join(available()) or '(none installed)'}{hint}")


def shipped(file):
    """Return the path of another file that comes with the shipped weights."""
    for folder in folders()[:2]:
        if (folder / file).is_file():
            return folder / file
    raise FileNotFoundError(f"{file} was not installed with this package")


def file_name(name):
    """Return the file name of a hub id: ``owner--name`` for ``owner/name``."""
    return str(name).replace("/", "--")


def load(kind: type[Model], name: str | os.PathLike, dtype: Any = np.float32,
         dropout: float | None = None) -> Model:
    """Return a model of the class ``kind``, a GPT-2's trunk or language model, with weights.  As
    the method ``from_pretrained`` of these classes it has no argument ``kind``.

    name      a name in ``weights/`` or in the user's cache folder, where ``minifpt convert``
              writes; the path of an ``.npz`` weight file; or a folder or file that Transformers
              saved: ``config.json`` and ``model.safetensors`` or its shards.
    dropout   replaces the file's dropout.

    Raises ``FileNotFoundError`` for an unknown name.  Raises ``ValueError`` with the parameter and
    its shapes for a file that does not fit.
    """
    config, _, tensors, path = described(name, dropout, kind.config_type)
    model = kind(config, seed=None, dtype=dtype)
    read_into(path, by_gpt2_name(model), tensors)
    return model


def described(name, dropout=None, kind=None):
    """Return ``(config, settings, tensors, path)`` of weights by their name or path, whose numbers
    are not read yet.  ``dropout`` replaces the file's.  Raises ``ValueError`` or
    ``FileNotFoundError``, also for a config that is not of the class ``kind``."""
    path = find(name)
    settings, tensors = read(path, dropout)
    config = config_of(settings, path, kind)
    check_size(path, config, tensors)
    return config, settings, tensors, path


def config_of(settings, path, kind=None):
    """Return the config of a model from a weight file's, a dict that may hold more.  Raises
    ``ValueError`` if it is not of the class ``kind``."""
    types = {name: family.config for name, family in families.readable().items()
             if kind in (None, family.config)}
    kind = types[checks.one_of(path, "model_type", settings.get("model_type", "gpt2"), types)]
    known = {f.name for f in fields(kind)}
    try:
        return kind(**{k: v for k, v in settings.items() if k in known})
    except (TypeError, ValueError) as e:
        raise ValueError(f"{path}: bad config: {e}") from None


def check_size(path, config, tensors):
    """Raise ``ValueError`` for a config of a model that is larger than the file's tensors, before
    the memory of such a model is asked for."""
    blocks = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    if len(blocks) != config.n_layer:
        raise ValueError(f"{path}: holds {len(blocks)} blocks, its config says n_layer "
                         f"{config.n_layer}")
    inner = getattr(config, "n_inner", 4 * config.n_embd)
    head = getattr(config, "head_dim", config.n_embd // config.n_head)
    for name, *shape in (("wpe.weight", config.n_positions, config.n_embd),
                         ("wte.weight", config.vocab_size, config.n_embd),
                         ("relative.weight", getattr(config, "n_buckets", 0), config.n_head),
                         ("h.0.attn.c_attn.weight", config.n_embd, 3 * config.n_head * head),
                         ("h.0.mlp.c_fc.weight", config.n_embd, inner),
                         ("h.0.mlp.up_proj.weight", config.n_embd, inner)):
        if name in tensors and tensors[name].shape != tuple(shape):
            raise ValueError(f"{path}: '{name}' has shape {tensors[name].shape}, expected "
                             f"{tuple(shape)}")


def read(path, dropout=None):
    """Return ``(config, tensors)`` of a weight file or a checkpoint of Transformers: a dict, and
    {name: :class:`minifpt.files.huggingface.Tensor`}, whose numbers are not read yet.
    ``dropout`` replaces the file's.

    Raises ``ValueError`` if the file is not a weight file or is damaged.
    """
    if huggingface.is_checkpoint(path):
        return families.load_checkpoint(path, dropout)
    refuse_pointer(path)
    with refuse_damage(f"{path}: not a minifpt weight file, or damaged"):
        archive = zipfile.ZipFile(path)              # closes with its last tensor
        headers = array_headers(archive)
        config = stored_json(archive, "config")
    tensors = {}
    for name, (shape, dtype) in headers.items():
        if dtype.kind == "f":
            tensors[name] = Tensor(f"{path}: {name!r}", shape,
                                   partial(read_array, path, archive, name))
        elif name != "config":
            raise ValueError(f"{path}: {name!r} has dtype {dtype}, expected float16 or float32")
    return config | ({} if dropout is None else {"dropout": dropout}), tensors


def read_array(path, archive, name):
    """Return an array of a weight file, an open ``ZipFile``, which checks a CRC at its end."""
    with refuse_damage(f"{path}: '{name}' is damaged"):
        return stored_array(archive, name)


def read_into(path, named, tensors):
    """Fill the (name, array) pairs of a model from the ``tensors`` of a weight file, on all cores.

    Raises ``ValueError`` for a name that the file lacks, for a name that is neither a parameter
    nor a language model's table, which a trunk does not have, for another shape, and for numbers
    that are not finite.
    """
    expected = {name for name, _ in named}
    # A bias of zeros, as old norms have, changes nothing.
    extra = [name for name in tensors.keys() - expected - {*TABLES}
             if not name.endswith(".bias") or tensors[name].read().any()]
    for verb, wrong_names in (("lacks", expected - tensors.keys()), ("also holds", extra)):
        if wrong_names:
            raise ValueError(f"{path}: {verb} {min(wrong_names)!r}: " + (
                "it is a trunk, not a language model with one table for both ends"
                if [*wrong_names] == ["wte.weight"] else
                "it does not fit the model that its config describes"))
    for name, y in named:
        if tensors[name].shape != y.shape:
            raise ValueError(f"{path}: '{name}' has shape {tensors[name].shape}, expected "
                             f"{y.shape}")

    def read(piece):
        name, y = piece
        with np.errstate(over="ignore"):
            y[...] = tensors[name].read()
        if not np.isfinite(y).all():
            raise ValueError(f"{path}: '{name}' holds a NaN or an infinity")
    run_in_threads(read, sorted(named, key=lambda piece: -piece[1].size))        # the largest first
