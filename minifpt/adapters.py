"""Adapters: few new parameters beside frozen ones.

    model = minifpt.FPT.for_task(task, freeze="attn,mlp,ln,pos", adapt="lora:rank=4,on=attn.c_attn")
    minifpt.adapters.adapt(model, "lora:rank=2,on=mlp.*+output")

=================================  ==============================================================
``lora:rank=4,alpha=4,on=attn.*``  low-rank adapters on linear layers (Hu et al. 2021, arXiv
                                   2106.09685)
``bitfit``                         the trunk's own biases (Ben Zaken et al. 2021, arXiv 2106.10199)
=================================  ==============================================================

``on`` names layers of a block, or ``output``, several joined by +.  The model computes at first
what it did without the adapter.  The parameters of an adapter, for ``bitfit`` the trunk's biases,
form the group ``adapter``: they are trained unless the freeze mask names that group, or one of
them.
"""

import copy
import math
import re
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from . import checks
from .fast import ops
from .layers import Linear, Parameter, named_layers, standard_normal

OPTIONS = {"lora": {"rank": 4, "alpha": None, "on": "attn.*"},
           "bitfit": {}}


class LoRA(Linear):
    """A linear layer with a low-rank term: ``y = x @ W + b + s (x @ A) @ B``, A (n_in, r), B (r,
    n_out), ``s = alpha / r``.

    With h = x @ A, the gradients are those of two linear layers in a row::

        dB = s h.T @ dy      dh = s dy @ B.T      dA = x.T @ dh      dx = dy @ W.T + dh @ A.T

    B starts at 0, so that y is unchanged, and A is random: if both were 0, both gradients would
    stay 0.
    """

    def add(self, name, seed, rank, alpha=None):
        """Add the term to a linear layer that has become a LoRA."""
        (n_in, n_out), dtype = self.weight.data.shape, self.weight.data.dtype
        a = standard_normal((n_in, rank), seed, f"{name}.lora_a").astype(dtype) / math.sqrt(n_in)
        self.lora_a = Parameter(a, "adapter")
        self.lora_b = Parameter(np.zeros((rank, n_out), dtype), "adapter")
        self.scale = (rank if alpha is None else alpha) / rank

    def forward(self, x):
        """x (..., n_in) -> y (..., n_out)."""
        a, b, cache = self.lora_a, self.lora_b, {}
        y, cache["linear"] = super().forward(x)
        no_bias = np.zeros(a.data.shape[1], y.dtype), np.zeros(y.shape[-1], y.dtype)
        h, cache["a"] = ops().linear(x, a.data, no_bias[0], (True, a.trainable, False))
        z, cache["b"] = ops().linear(h, b.data, no_bias[1], (True, b.trainable, False))
        return y + self.scale * z, cache

    def backward(self, dy, cache):
        """dy (..., n_out) -> dx (..., n_in)."""
        dh, db, _ = ops().linear_backward(self.scale * dy, cache["b"])
        dx, da, _ = ops().linear_backward(dh, cache["a"])
        self.lora_a.add_grad(da)
        self.lora_b.add_grad(db)
        return super().backward(dy, cache["linear"]) + dx

    def merged(self):
        """Return the matrix ``W + s A @ B``."""
        return self.weight.data + self.scale * (self.lora_a.data @ self.lora_b.data)


def adapt(model, text, seed=0):
    """Add the adapter that ``text`` names to a model's trunk, in place; return the model.

    model  an :class:`minifpt.FPT`, or another model with a ``trunk``.
    text   such as ``lora:rank=4,on=attn.c_attn`` or ``bitfit``.
    seed   draws what starts random; of an FPT the model's own, with which ``minifpt.load`` makes
           it again.

    Raises ``ValueError`` with one line.
    """
    kind, options = parse(text)
    if not hasattr(model, "trunk"):
        raise ValueError(f"adapt: the model is {checks.brief(model)}, expected one with a trunk")
    if any(p.group == "adapter" for p in model.parameters()):
        raise ValueError("adapt: the model has an adapter, expected one without")
    if kind == "bitfit":
        biases = [p for name, p in model.trunk.named_parameters() if name.endswith("bias")]
        if not biases:
            raise ValueError("adapt: bitfit trains biases, and the trunk has none")
        for p in biases:
            p.trainable, p.group = True, "adapter"
    else:
        for name, layer in layers_for(model, options.pop("on")).items():
            layer.__class__ = LoRA
            layer.add(name, seed, **options)
    if hasattr(model, "recipe"):                          # what minifpt.load makes again
        model.recipe = replace(model.recipe, adapt=text)
    return model


def layers_for(model, on):
    """Return {name: linear layer} for the names and patterns in ``on``."""
    layers = {name.removeprefix("trunk."): layer for name, layer in named_layers(model)
              if type(layer) is Linear}
    in_block = {name: re.sub(r"^h\.\d+\.", "", name) for name in layers}
    chosen = {}
    for pattern in on.split("+"):
        matches = {name: layer for name, layer in layers.items()
                   if fnmatchcase(name, pattern) or fnmatchcase(in_block[name], pattern)}
        if not matches:
            known = ", ".join(dict.fromkeys(in_block.values())) or "nothing"
            raise ValueError(f"adapt: on={pattern} names no linear layer, expected some of "
                             f"{known}")
        chosen |= matches
    return chosen


def parse(text):
    """Return ``(kind, options)`` of an adapter's name.  Raises ``ValueError`` with one line."""
    if not isinstance(text, str):
        raise ValueError(f"adapt: got {checks.brief(text)}, expected a text such as 'lora:rank=4'")
    kind, _, rest = text.partition(":")
    checks.one_of("adapt", "the adapter", kind, OPTIONS)
    options = dict(OPTIONS[kind])
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in options:
            known = ", ".join(f"{name}=..." for name in options) or "no options"
            raise ValueError(f"adapt: '{item}' in {text}, expected {known}")
        if key != "on":
            is_whole = isinstance(OPTIONS[kind][key], int)
            with suppress(ValueError):                    # the check refuses what is no number
                value = (int if is_whole else float)(value)
            value = (checks.whole if is_whole else checks.number)("adapt", key, value)
        options[key] = value
    return kind, options


def merge(model):
    """Merge each low-rank adapter of a model into its weight, in place; return the model.

    The outputs stay the same up to rounding."""
    if not hasattr(model, "named_parameters"):
        raise ValueError(f"merge: the model is {checks.brief(model)}, expected a Layer")
    adapted = [layer for _, layer in named_layers(model) if isinstance(layer, LoRA)]
    for layer in adapted:
        weight = copy.copy(layer.weight)                  # another layer may share the old one
        weight.data, weight.grad = layer.merged(), None
        layer.weight, layer.__class__ = weight, Linear
        del layer.lora_a, layer.lora_b, layer.scale
    if adapted and hasattr(model, "recipe"):              # minifpt.load cannot make it again
        model.recipe = replace(model.recipe, adapt=None, trunk=None)
    return model
