"""Adapters: few new parameters beside frozen ones.

    model = minifpt.FPT.for_task(task, freeze="attn,mlp,ln,pos", adapt="lora:rank=4,on=attn.c_attn")
    minifpt.adapters.adapt(model, "bottleneck:size=8")

=================================  ==============================================================
``lora:rank=4,alpha=4,on=attn.*``  low-rank adapters on linear layers (Hu et al. 2021, arXiv
                                   2106.09685)
``bottleneck:size=8,on=attn+mlp``  a small network behind a part of a block (Houlsby et al. 2019,
                                   arXiv 1902.00751)
``prefix:tokens=4``                learned tokens before the input (Lester et al. 2021, arXiv
                                   2104.08691)
``bitfit``                         the trunk's own biases (Ben Zaken et al. 2021, arXiv 2106.10199)
=================================  ==============================================================

``on`` names layers of a block, or ``output``, several joined by +.  With ``lora`` and
``bottleneck`` the model computes at first what it did without them; with ``prefix`` all tokens see
the new ones.  The parameters of an adapter, for ``bitfit`` the trunk's biases, form the group
``adapter``: they are trained unless the freeze mask names that group, or one of them.
"""

import copy
import inspect
import math
import re
from fnmatch import fnmatchcase
from types import MethodType

import numpy as np

from . import checks
from . import fast as ops
from .layers import Layer, Linear, Parameter, learns, named_layers, standard_normal

OPTIONS = {"lora": {"rank": 4, "alpha": None, "on": "attn.*"},
           "bottleneck": {"size": 8, "on": "attn+mlp"}, "prefix": {"tokens": 4}, "bitfit": {}}


class LoRA(Linear):
    """A linear layer with a low-rank term: ``y = x @ W + b + s (x @ A) @ B``, A (n_in, r), B (r,
    n_out), ``s = alpha / r``.

    With h = x @ A, the gradients are those of two linear layers in a row::

        dB = s h.T @ dy      dh = s dy @ B.T      dA = x.T @ dh      dx = dy @ W.T + dh @ A.T

    B starts at 0, so that y is unchanged, and A is random: if both were 0, both gradients would
    stay 0.
    """

    exports = False

    def __init__(self, linear, name, seed, rank, alpha=None):
        self.weight, self.bias = linear.weight, linear.bias
        (n_in, n_out), dtype = self.weight.data.shape, self.weight.data.dtype
        a = standard_normal((n_in, rank), seed, f"{name}.lora_a").astype(dtype) / math.sqrt(n_in)
        self.lora_a = Parameter(a, "adapter")
        self.lora_b = Parameter(np.zeros((rank, n_out), dtype), "adapter")
        self.scale = (rank if alpha is None else alpha) / rank

    def forward(self, x):
        """x (..., n_in) -> y (..., n_out)."""
        a, b, cache = self.lora_a, self.lora_b, {}
        y, cache["linear"] = super().forward(x)
        no_bias = np.zeros(a.data.shape[1], y.dtype), np.zeros_like(y, shape=y.shape[-1])
        h, cache["a"] = ops.linear(x, a.data, no_bias[0], (True, a.trainable, False))
        z, cache["b"] = ops.linear(h, b.data, no_bias[1], (True, b.trainable, False))
        return y + self.scale * z, cache

    def backward(self, dy, cache):
        """dy (..., n_out) -> dx (..., n_in)."""
        dh, db, _ = ops.linear_backward(self.scale * dy, cache["b"])
        dx, da, _ = ops.linear_backward(dh, cache["a"])
        self.lora_a.add_grad(da)
        self.lora_b.add_grad(db)
        return super().backward(dy, cache["linear"]) + dx

    def merged(self):
        """Return the matrix ``W + s A @ B``."""
        return self.weight.data + self.scale * (self.lora_a.data @ self.lora_b.data)

    def plain(self):
        """Return a linear layer with that matrix.  Its weight is a new parameter, because
        another layer may share the old one."""
        linear = Linear(*self.weight.data.shape, self.weight.data.dtype)
        linear.weight, linear.bias = copy.copy(self.weight), self.bias
        linear.weight.data, linear.weight.grad = self.merged(), None
        return linear


class Beside(Layer):
    """The base class of adapters that contain the layer in whose place they are.

    The parts of that layer keep their names.  Its attributes are read and set through the adapter,
    ``block.attn.c_attn``, and its methods run on the adapter.
    """

    exports = False

    def __init__(self, layer):
        self.layer = layer

    def children(self):
        """Yield (name, child), those of the layer first."""
        yield from self.layer.children()
        yield from (pair for pair in super().children() if pair[1] is not self.layer)

    def __getattr__(self, name):
        if name == "layer" or name.startswith("__"):      # a copy asks before it has a layer
            raise AttributeError(name)
        value = getattr(self.layer, name)
        is_method = getattr(value, "__self__", None) is self.layer
        # Saving must see the adapter, too.
        return MethodType(value.__func__, self) if is_method else value

    def __setattr__(self, name, value):
        is_own = name == "layer" or name in vars(self) or hasattr(type(self), name)
        if not is_own and hasattr(self.layer, name):
            setattr(self.layer, name, value)
        else:
            super().__setattr__(name, value)


class Bottleneck(Beside):
    """Behind a part f of a block: ``y = f(x)``, ``y = y + gelu(y @ D + d) @ U + u``, D (C, m),
    U (m, C).

    y goes two ways, so its gradients add up: ``dy = dy + dbranch``, where dbranch runs back
    through ``up``, gelu and ``down``.  U and u start at 0, so that y is unchanged.
    """

    def __init__(self, part, name, seed, channels, size, dtype):
        super().__init__(part)
        self.adapter_down = Linear(channels, size, dtype, "adapter")
        self.adapter_up = Linear(size, channels, dtype, "adapter")
        down = standard_normal((channels, size), seed, f"{name}.adapter_down")
        self.adapter_down.weight.data[...] = down / math.sqrt(channels)

    def forward(self, x, *args, **options):
        """Run as the part does without the adapter."""
        y, cache = self.layer.forward(x, *args, **options)
        cache = cache if isinstance(cache, dict) else {"layer": cache}     # a user's part
        h, cache["adapter_down"] = self.adapter_down.forward(y)
        h, cache["adapter_gelu"] = ops.gelu(h)
        z, cache["adapter_up"] = self.adapter_up.forward(h)
        return ops.residual(y, z)[0], cache

    def backward(self, dy, cache):
        """Run as the part does without the adapter."""
        dbranch = self.adapter_up.backward(dy, cache["adapter_up"])
        dbranch = ops.gelu_backward(dbranch, cache["adapter_gelu"])
        dbranch = self.adapter_down.backward(dbranch, cache["adapter_down"])
        return self.layer.backward(ops.residual_backward(dy, dbranch), cache.get("layer", cache))


class Prefix(Beside):
    """A trunk with P learned vectors before its input: ``y = trunk([prefix; x])[:, P:]``.

    Every example has the same prefix, so its gradient is the sum over the batch of the trunk's dx
    at the first P tokens; the rest of dx is the gradient of x.
    """

    def __init__(self, trunk, seed, tokens):
        super().__init__(trunk)
        prefix = standard_normal((tokens, trunk.config.n_embd), seed, "prefix")
        self.prefix = Parameter(prefix.astype(trunk.dtype), "adapter")

    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C) -> (B, T, C) or (B, last, C), as the trunk's own."""
        if past is not None:
            raise ValueError("prefix: a trunk with a prefix generates no text")
        prefix = np.broadcast_to(self.prefix.data, (len(x), *self.prefix.data.shape))
        joined = np.concatenate([prefix, x.astype(self.dtype, copy=False)], axis=1)
        return self.layer.forward(joined, train, rng, need_dx or learns(self.prefix),
                                  last=last or x.shape[1])

    def backward(self, dy, cache):
        """dy as forward's y -> dx (B, T, C)."""
        dx = self.layer.backward(dy, cache)
        if dx is None:
            return None
        n = len(self.prefix.data)
        self.prefix.add_grad(dx[:, :n].sum(axis=0))
        return dx[:, n:]


def adapt(model, text, seed=0):
    """Add the adapter that ``text`` names to a model's trunk, in place; return the model.

    model  an :class:`minifpt.FPT`, or another model with a ``trunk``.
    seed   draws what starts random.

    Raises ``ValueError`` with one line.
    """
    kind, options = parse(text)
    if not hasattr(model, "trunk"):
        raise ValueError(f"adapt: the model is {checks.brief(model)}, expected one with a trunk")
    trunk = model.trunk
    if any(p.group == "adapter" for p in model.parameters()):
        raise ValueError("adapt: the model has an adapter, expected one without")
    if kind == "bitfit":
        biases = [p for name, p in trunk.named_parameters() if name.endswith("bias")]
        if not biases:
            raise ValueError("adapt: bitfit trains biases, and the trunk has none")
        for p in biases:
            p.trainable, p.group = True, "adapter"
    elif kind == "prefix":
        if "last" not in inspect.signature(trunk.forward).parameters:
            raise ValueError(f"adapt: prefix needs a GPT-2 or a Llama, not {type(trunk).__name__}")
        put(model, trunk, Prefix(trunk, seed, options["tokens"]))
    else:
        adapt_layers(model, kind, options, seed)
    if hasattr(model, "built"):                           # what minifpt.load makes again
        model.built["adapt"] = text
    return model


def adapt_layers(model, kind, options, seed):
    """Put low-rank adapters or bottlenecks in the place of the layers that ``on`` names."""
    in_block = re.compile(r"h\.\d+\.")
    fits = (lambda name, layer: type(layer) is Linear) if kind == "lora" else (
        lambda name, layer: in_block.sub("", name) in ("attn", "mlp"))
    trunk = model.trunk
    layers = [(name.removeprefix("trunk."), layer) for name, layer in named_layers(model)]
    parts = [(name, in_block.sub("", name), layer) for name, layer in layers if fits(name, layer)]
    chosen = {}
    for pattern in options["on"].split("+"):
        matching = {name: layer for name, part, layer in parts
                    if fnmatchcase(part, pattern) or fnmatchcase(name, pattern)}
        if not matching:
            known = ", ".join(dict.fromkeys(part for _, part, _ in parts)) or "nothing"
            raise ValueError(f"adapt: on={pattern} names no layer that {kind} fits, expected some "
                             f"of {known}")
        chosen |= matching
    for name, layer in chosen.items():
        put(model, layer, LoRA(layer, name, seed, options["rank"], options["alpha"])
            if kind == "lora" else
            Bottleneck(layer, name, seed, trunk.config.n_embd, options["size"], trunk.dtype))


def parse(text):
    """Return ``(kind, options)`` of an adapter's name.  Raises ``ValueError`` with one line."""
    if not isinstance(text, str):
        raise ValueError(f"adapt: got {checks.brief(text)}, expected a text such as 'lora:rank=4'")
    kind, _, rest = text.partition(":")
    checks.one_of("adapt", "the adapter", kind, OPTIONS)
    options, keys = dict(OPTIONS[kind]), set()
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key in keys:
            raise ValueError(f"adapt: {text} gives {key} twice")
        keys.add(key)
        if not equals or key not in options:
            known = ", ".join(f"{name}=..." for name in options) or "no options"
            raise ValueError(f"adapt: '{item}' in {text}, expected {known}")
        options[key] = value
    for key in {"rank", "size", "tokens"} & options.keys():
        value = options[key]
        options[key] = checks.whole("adapt", key, int(value) if str(value).isdecimal() else value)
    if options.get("alpha") is not None:
        try:
            options["alpha"] = checks.number("adapt", "alpha", float(options["alpha"]))
        except ValueError:
            raise ValueError(f"adapt: alpha is {options['alpha']}, expected a positive number"
                             ) from None
    return kind, options


def merge(model):
    """Put a plain linear layer in the place of each low-rank adapter, in place; return the model.

    The outputs stay the same up to rounding.  Raises ``ValueError`` for a bottleneck or a prefix,
    which cannot be merged.
    """
    if not hasattr(model, "named_parameters"):
        raise ValueError(f"merge: the model is {checks.brief(model)}, expected a Layer")
    layers = [layer for _, layer in named_layers(model)]
    for layer in layers:
        if isinstance(layer, Beside):
            raise ValueError("merge: only low-rank adapters can be merged into the weights, the "
                             f"model has a {type(layer).__name__.lower()}")
    merged = [layer for layer in layers if isinstance(layer, LoRA)]
    for layer in merged:
        put(model, layer, layer.plain())
    if merged and hasattr(model, "built"):                # minifpt.load cannot make it again
        model.built = {k: v for k, v in model.built.items() if k not in ("adapt", "model")}
    return model


def put(model, old, new):
    """Set the layer ``new`` in the place of ``old``, everywhere in a model; ``new`` may contain
    ``old``, which stays as it is.  Raises ``ValueError`` if no layer of the model holds it."""
    def exchanged(value):
        if isinstance(value, list):                       # stays the same object
            value[:] = map(exchanged, value)
        elif isinstance(value, dict):
            value |= {key: exchanged(item) for key, item in value.items()}
        elif type(value) is tuple:
            return tuple(map(exchanged, value))
        return new if value is old else value
    layers = [layer for _, layer in named_layers(model)]
    if not any(layer is old for layer in layers[1:]):
        raise ValueError(f"put: the model holds no such {type(old).__name__}, expected one of its "
                         "layers")
    for layer in layers:
        parts = getattr(layer, "__dict__", {})
        parts |= {key: exchanged(value) for key, value in parts.items()}
