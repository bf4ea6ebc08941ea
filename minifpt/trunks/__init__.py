"""Trunks by name, and trunks other than GPT-2.

    trunk = minifpt.trunks.get("random:1x4x256@1.41", seed=0)

See :class:`TrunkSpec` for the names.
"""


import inspect
import re
from dataclasses import replace

import numpy as np

from ..files import weights
from ..files.families import family_of, registry
from ..layers import standard_normal
from ..plugins import load_object
from . import forms
from .base import check_trunk
from .lstm import LSTMConfig
from .names import TrunkSpec, shape_of

__all__ = ["TrunkSpec", "config_for", "get", "language_model"]

PAPER_SPREAD = 0.02 * 768 ** 0.5                          # of the paper's random GPT-2
# Settings besides its arrays that say what a part computes.
COMPUTES = {"attn": ("n_head", "rope_base", "rope_share", "rope_scaling", "window"),
            "mlp": ("activation_function",)}


def get(name, seed=0, dropout=None, dtype=np.float32):
    """Return the trunk of ``--model NAME``, with random weights drawn from ``seed``.

    ``name`` may be a :class:`TrunkSpec`.  ``dropout`` replaces the dropout of the weights; random
    ones have 0.1.  Raises ``ValueError`` for an unknown name, ``FileNotFoundError`` for missing
    weights.
    """
    spec = TrunkSpec.parse(name)
    if spec.kind == "own":
        return users_trunk(spec.name, seed, dropout, dtype)
    if spec.kind == "mixed":
        return mix(spec, *(get(part, seed, dropout, dtype) for part in (spec.base, spec.other)))
    if config := config_for(spec, 0.1 if dropout is None else dropout):
        trunk = family_of(config).trunk(config, seed, dtype)
    else:
        config, *_ = weights.described(spec.name, dropout)
        trunk = family_of(config).trunk.from_pretrained(spec.name, dtype, dropout)
    for name, p in trunk.named_parameters() if spec.kind == "statistics" else ():
        mean, std = float(p.data.mean()), float(p.data.std())
        p.data[...] = mean + std * standard_normal(p.data.shape, seed, name)
    if spec.qk is not None:
        forms.switch(trunk, spec.qk, spec.kind == "random", spec.text)
    return trunk


def language_model(name, dtype=np.float32, dropout=None):
    """Return the language model of weights by their name or path, of the class of its family.

    Raises ``ValueError`` or ``FileNotFoundError`` with one line, as ``from_pretrained`` does.
    """
    config, *_ = weights.described(name, dropout)
    family = family_of(config)
    if family.language_model is None:
        raise ValueError(f"{name}: minifpt has no language model of a {family.title}, only the "
                         "trunk")
    return family.language_model.from_pretrained(name, dtype, dropout)


def users_trunk(name, seed, dropout, dtype):
    """Return the trunk of ``FILE.py:NAME``, whose function gets the arguments that it takes."""
    function = load_object(name)
    options = {"seed": seed, "dtype": dtype} | ({} if dropout is None else {"dropout": dropout})
    takes = inspect.signature(function).parameters
    if all(p.kind != p.VAR_KEYWORD for p in takes.values()):
        options = {k: v for k, v in options.items() if k in takes}
    trunk = function(**options)
    check_trunk(trunk)
    return trunk


def mix(spec, trunk, other):
    """Return a trunk in which the parameters that the mask names are those of ``other``."""
    for ours, theirs in pairs(spec, trunk, other):
        ours[...] = theirs
    return trunk


def pairs(spec, trunk, other):
    """Yield (array of the trunk, the other trunk's) for each that a mixed trunk replaces, a
    parameter or some of its columns.  Of more positions than the trunk has, the first serve."""
    whole = (slice(None),)
    replaced = {name: whole if is_whole else spec.mask.columns(name, p) for (name, p), is_whole
                in zip(trunk.named_parameters(), spec.mask.select(trunk).values(), strict=True)}
    theirs = {name: p.data for name, p in other.named_parameters()}
    if not any(replaced.values()):
        raise ValueError(f"--model {spec.text}: the mask '{spec.mask}' names no parameter of "
                         "the trunk")
    for name, p in trunk.named_parameters():
        if replaced[name]:
            if name == "wpe.weight" and name in theirs:
                theirs[name] = theirs[name][:len(p.data)]
            if name not in theirs or theirs[name].shape != p.data.shape:
                raise ValueError(f"--model {spec.text}: the trunks have different shapes, "
                                 f"see {name}")
            for field in COMPUTES.get(p.group, ()):
                a, b = (getattr(t.config, field, None) for t in (trunk, other))
                if a != b:
                    raise ValueError(f"--model {spec.text}: the trunks have {field} {a} and "
                                     f"{b}, so their {p.group} computes something else")
            for columns in replaced[name]:
                yield p.data[..., columns], theirs[name][..., columns]
    for name, is_whole in spec.mask.select(other).items():
        # More blocks than the trunk has are left out, as more positions are.
        if is_whole and re.sub(r"^h\.\d+", "h.0", name) not in replaced:
            raise ValueError(f"--model {spec.text}: the other trunk has {name}, this one "
                             "lacks it")


def config_for(name, dropout=0.1):
    """Return the config of the trunk of ``--model NAME``, if it is a random one, without building
    it; ``None`` for another trunk."""
    spec = TrunkSpec.parse(name)
    if spec.kind == "lstm":
        sizes, *flags = spec.name.split(",")
        config = LSTMConfig(*map(int, sizes.split("x")), dropout=dropout,
                            **dict.fromkeys(flags, True))
        return config if spec.spread is None else replace(
            config, initializer_range=spec.spread / config.n_embd ** 0.5)
    if spec.kind != "random":
        return None
    shape = shape_of(spec.name) | {"dropout": dropout}
    if spec.spread != "gpt2":                             # whose numbers are the config's own
        spread = PAPER_SPREAD if spec.spread is None else spec.spread
        shape |= {"initializer_range": spread / max(1, shape["n_embd"]) ** 0.5,
                  "scaled_residual_init": spec.spread is not None}
    return registry()[shape.get("model_type", "gpt2")].config(**shape)


# The classes of all families by their names, such as ``trunks.GPT2Config``.
globals().update({kind.__name__: kind for family in registry().values() for kind in (
    family.config, family.trunk, family.language_model) if kind})
