"""Models that read and write weight files: GPT-2's trunk and language model, and their like."""

import os
from dataclasses import asdict, fields
from typing import Any, Self

import numpy as np

from .files import export, weights
from .layers import Layer, named_layers


class Pretrained(Layer):
    """The base class of trunk and language model: it reads and writes weight files.

    config_type   the class of the model's config.
    their_class   the name of the same model in Transformers.
    their_prefix  what the names of its parameters begin with there.
    """

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike, dtype: Any = np.float32,
                        dropout: float | None = None) -> Self:
        """Return a model with the weights of a name or path.

        name      a name in ``weights/`` or in the user's cache folder, where ``minifpt convert``
                  writes; the path of an ``.npz`` weight file; or a folder or file that
                  Transformers saved: ``config.json`` and ``model.safetensors`` or its shards.
        dropout   replaces the file's dropout.

        Raises ``FileNotFoundError`` for an unknown name.  Raises ``ValueError`` with the
        parameter and its shapes for a file that does not fit.
        """
        path = weights.find(name)
        config, tensors = weights.load(path, dropout)
        config = config_of(config, path, cls.config_type)
        check_size(path, config, tensors)
        model = cls(config, seed=None, dtype=dtype)
        # A weight file may hold the token embeddings, which a trunk does not have.
        weights.read_into(path, by_gpt2_name(model), tensors, unused={"wte.weight"})
        return model

    def save(self, path, dtype=None, **provenance):
        """Write the weights with their config and provenance.

        A path that ends in ``.npz`` gives a weight file of minifpt, by default in float16.  Any
        other path gives a new folder with ``model.safetensors`` and ``config.json``, as
        Transformers saves it, by default in float32.
        """
        if str(path).endswith(".npz"):
            check_exports(self)
            config = asdict(getattr(self, "trunk", self).config)     # it may have got positions
            weights.save(path, config | provenance, by_gpt2_name(self),
                         np.float16 if dtype is None else dtype)
        else:
            self.save_folder(path, dtype, provenance)

    def save_folder(self, folder, dtype=None, provenance=None, files=None):
        """Write a folder that Transformers reads, with more ``files`` {name: bytes}, such as a
        tokenizer's.  By default a model with 256 tokens gets the byte tokenizer."""
        check_exports(self)
        fields, arrays = self.as_transformers()
        if files is None:
            files = export.byte_tokenizer() if self.config.vocab_size == 256 else {}
        export.write_folder(folder, fields | ({"minifpt": provenance} if provenance else {}),
                            arrays, np.float32 if dtype is None else dtype, files)

    def as_transformers(self):
        """Return the fields of a ``config.json`` and [(name, array)], as Transformers has them."""
        return (export.gpt2_config(getattr(self, "trunk", self).config, self.their_class),
                [(self.their_prefix + name, array) for name, array in by_gpt2_name(self)])


def by_gpt2_name(model):
    """Return [(name, array)] of a model's parameters by GPT-2's names, which lack ``trunk.``."""
    return [(name.removeprefix("trunk."), p.data) for name, p in model.named_parameters()]


def config_of(config, path, kind):
    """Return a config of the class ``kind`` from a weight file's, a dict that may hold more."""
    known = {f.name for f in fields(kind)}
    try:
        return kind(**{k: v for k, v in config.items() if k in known})
    except (TypeError, ValueError) as e:
        raise ValueError(f"{path}: bad config: {e}") from None


def check_size(path, config, tensors):
    """Raise ``ValueError`` for a config of a GPT-2 that is larger than the file's tensors, before
    the memory of such a model is asked for."""
    blocks = {name.split(".")[1] for name in tensors if name.startswith("h.")}
    if "wpe.weight" not in tensors:
        raise ValueError(f"{path}: lacks 'wpe.weight': this is not a GPT-2")
    if len(blocks) < config.n_layer:
        raise ValueError(f"{path}: holds {len(blocks)} blocks, its config says n_layer "
                         f"{config.n_layer}")
    for name, n in (("wpe.weight", config.n_positions), ("wte.weight", config.vocab_size)):
        if name in tensors and tensors[name].shape != (n, config.n_embd):
            raise ValueError(f"{path}: '{name}' has shape {tensors[name].shape}, expected "
                             f"{n, config.n_embd}")


def check_exports(model):
    """Raise ``ValueError`` if a model has layers, such as adapters, that Transformers lacks."""
    if not all(getattr(layer, "exports", True) for _, layer in named_layers(model)):
        raise ValueError("save: the model has adapters, which Transformers' models lack: merge "
                         "low-rank ones with adapters.merge(model)")
