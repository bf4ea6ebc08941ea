"""Parameters, and the layers of GPT-2, which own parameters and call the operations.

A layer's ``forward(x, ...)`` returns ``(y, cache)``.  Its ``backward(dy, cache)`` returns ``dx``
and adds into the ``.grad`` of its trainable parameters; for a frozen parameter no gradient is
computed.  The cache of a layer is a dictionary of its layers' and operations' caches, by name.  A
layer with a single operation has that operation's cache.

To read how a GPT-2 computes, begin at ``Linear``; ``Layer`` keeps the names of parameters.

Layers and blocks run whole, forward and backward.  The trunk decides which blocks run back: none
does below the lowest one that learns (see ``gpt2.Trunk``).
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from . import checks, fast
from .fast import ops
from .freeze import GROUPS, FreezeMask
from .guards import RUN
from .machine import run_in_threads


class Parameter:
    """An array with its gradient.

    data        the array.
    grad        its gradient, ``None`` until a backward pass reaches it.
    trainable   whether a backward pass computes the gradient.
    group       one of ``freeze.GROUPS``, for freeze masks.
    frozen_columns  slices of the last axis whose gradient is 0.
    heads       what the last axis holds side by side, such as ``{"queries": 4, "keys": 4,
                "values": 4}`` with the numbers of heads: freeze masks name these columns.
    writes_stream  whether its products are added to the residual stream.
    """

    __slots__ = ("data", "grad", "trainable", "group", "frozen_columns", "heads", "writes_stream")

    def __init__(self, data, group):
        self.data, self.group = checks.array("Parameter", "data", data, "f"), group
        self.grad = None
        self.trainable, self.frozen_columns, self.heads = True, (), {}
        self.writes_stream = False

    def add_grad(self, grad):
        """Add the gradient of one backward pass; the array must not change later.  ``None``
        adds nothing, and a frozen parameter takes no gradient."""
        # ``learns(self)`` is written out: it would be a call for each parameter.
        if grad is None or not self.trainable or id(self) in _FROZEN.get():
            return
        if getattr(grad, "shape", None) != self.data.shape or grad.dtype != self.data.dtype:
            checks.gradient("add_grad", grad, self.data.shape)
        if self.frozen_columns:
            grad = grad.copy()
        for columns in self.frozen_columns:
            grad[..., columns] = 0.0
        part = PART_GRADS.get()                           # of a part of a batch, see ``parallel``
        # In place it would change another parameter that was given the same array.
        if part is not None:
            part[self] = part[self] + grad if self in part else grad
        else:
            self.grad = grad if self.grad is None else self.grad + grad

    def trained_size(self):
        """Return how many of the numbers are trained."""
        if not self.trainable:
            return 0
        frozen = [self.data[..., columns].size for columns in self.frozen_columns]
        return self.data.size - sum(frozen)

    def __repr__(self):
        return f"Parameter({self.describe()})"

    def describe(self):
        """Return shape, dtype, group, trained or frozen, and the norm of the gradient, as text."""
        grad = "none" if self.grad is None else f"{np.linalg.norm(self.grad):.3g}"
        return (f"{self.data.shape} {self.data.dtype}, {self.group}, "
                f"{'trained' if self.trainable else 'frozen'}, gradient {grad}")


# The innermost open trace of this context, see ``tracing``.
TRACE = ContextVar("trace", default=None)
# {parameter: gradient} of the part of a batch that runs back in this thread, see ``parallel``.
PART_GRADS = ContextVar("part_grads", default=None)
# Ids of the parameters that :meth:`Layer.all_frozen` holds frozen in this thread.
_FROZEN = ContextVar("frozen", default=frozenset())


def learns(parameter):
    """Return whether a parameter is trainable, and not held frozen by :meth:`Layer.all_frozen`."""
    return parameter.trainable and id(parameter) not in _FROZEN.get()


def standard_normal(shape, seed, name):
    """Return standard normal numbers, float32, which depend on ``seed`` and ``name`` alone."""
    return generator(seed, name).standard_normal(shape, np.float32)


def generator(seed, name):
    """Return a generator that depends on ``seed`` and ``name`` alone."""
    return np.random.default_rng([checks.seed(name, seed), zlib.crc32(name.encode())])


def draw_weights(name, p, seed, config):
    """Fill a parameter with random numbers as GPT-2 does."""
    std = config.initializer_range
    if p.writes_stream and config.scaled_residual_init:
        std /= math.sqrt(2 * config.n_layer)
    p.data[...] = standard_normal(p.data.shape, seed, name)
    p.data *= std


def draw_all(model, seed, config):
    """Fill the matrices of a model, but not those of a trunk inside it, with random numbers, on all
    cores; with ``seed=None`` they stay 0."""
    if seed is not None:
        run_in_threads(lambda pair: draw_weights(*pair, seed, config),
              [(name, p) for name, p in model.named_parameters()
               if p.data.ndim == 2 and not name.startswith("trunk.")])


class Layer:
    """The base class of layers and models.  It names each parameter by the path of attributes
    that leads to it: ``h.0.attn.c_attn.weight``."""

    runs_in_parts = True                                  # whether it may in ``parallel``

    def children(self):
        """Yield (name, child) in the order of definition.  A child is a ``Parameter`` or has
        ``named_parameters``; the children in a list, a tuple or a dictionary have its number or
        key behind the name."""
        def within(name, value):
            if isinstance(value, (list, tuple, dict)):
                for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                    yield from within(f"{name}.{key}", item)
            elif isinstance(value, Parameter) or hasattr(value, "named_parameters"):
                yield name, value
        for name, value in vars(self).items():
            yield from within(name, value)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (name, Parameter) for every parameter in this layer, a shared one once."""
        pairs = {}
        for name, child in self.children():
            if isinstance(child, Parameter):
                pairs.setdefault(id(child), (name, child))
            else:
                for inner, p in child.named_parameters():
                    pairs.setdefault(id(p), (f"{name}.{inner}", p))
        yield from pairs.values()

    def parameters(self) -> list[Parameter]:
        """Return all parameters as a list."""
        return [p for _, p in self.named_parameters()]

    def learns(self) -> bool:
        """Return whether any parameter in this layer is trainable; false in :meth:`all_frozen`."""
        return any(learns(p) for _, p in self.named_parameters())

    def zero_grad(self):
        """Set all gradients to ``None``."""
        for p in self.parameters():
            p.grad = None

    def freeze(self, mask: FreezeMask | str) -> None:
        """Set each ``.trainable`` from a :class:`minifpt.FreezeMask`, or from its text, such as
        ``"attn,mlp"``."""
        FreezeMask.parse(mask).apply(self)

    @contextmanager
    def all_frozen(self):
        """Let nothing learn within ``with layer.all_frozen():``, for inference: models then keep no
        cache.  For other threads nothing changes, so they may train."""
        newly = {id(p) for p in self.parameters()} - _FROZEN.get()
        _FROZEN.set(_FROZEN.get() | newly)
        try:
            yield self
        finally:                                          # generators may end in any order
            _FROZEN.set(_FROZEN.get() - newly)

    def counts(self, tokens=None):
        """Return ``{group: (parameters, trained)}``.

        With ``tokens``, only the positions of an input of that length count: no gradient ever
        reaches the others.
        """
        count = {}
        if tokens is not None:
            tokens = checks.whole("counts", "tokens", tokens)
        for name, p in self.named_parameters():
            group, size, trained = p.group, p.data.size, p.trained_size()
            if tokens is not None and name.endswith("wpe.weight"):
                size = min(tokens, len(p.data)) * p.data.shape[1]
                trained = min(trained, size)
            n, n_trained = count.get(group, (0, 0))
            count[group] = n + size, n_trained + trained
        return {group: count[group] for group in GROUPS if group in count}

    def check_exports(self):
        """Raise ``ValueError`` if the model has low-rank adapters, which Transformers' models
        lack."""
        if any(hasattr(layer, "merged") for _, layer in named_layers(self)):
            raise ValueError("save: the model has adapters, which Transformers' models lack: merge "
                             "low-rank ones with adapters.merge(model)")

    def __repr__(self):
        rows = [(name, p.describe()) for name, p in self.named_parameters()]
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([type(self).__name__, *(f"  {n:{width}}  {text}" for n, text in rows)])


def named_layers(layer, name="", ids=None):
    """Yield (dotted name, layer) for a model and all layers in it, a shared one once."""
    ids = set() if ids is None else ids                   # of the layers so far
    if id(layer) not in ids:
        ids.add(id(layer))
        yield name, layer
        for key, child in layer.children() if hasattr(layer, "children") else ():
            if hasattr(child, "named_parameters"):
                yield from named_layers(child, f"{name}.{key}".lstrip("."), ids)


def settings_crc(model):
    """Return a CRC-32 of the settings of our layers in a model, such as dropout and number of
    heads."""
    settings = [(name, [(key, value) for key, value in vars(layer).items()
                        if isinstance(value, (int, float, str)) or key == "config"])
                for name, layer in named_layers(model)
                if type(layer).__module__.startswith(f"{__package__}.")]
    return f"{zlib.crc32(repr(settings).encode()):08x}"


def check_sizes(layer, **sizes):
    """Raise ``ValueError`` unless a layer's sizes are whole numbers from 1."""
    for name, size in sizes.items():
        checks.whole(type(layer).__name__, name, size, most=2**63 - 1)


def refuse_channels(layer, x, n):
    """Raise ``ValueError`` for x of other than n channels: a single one would be used n times."""
    raise ValueError(f"{type(layer).__name__}: x has shape {np.shape(x)}, expected (..., {n})")


class Linear(Layer):
    """An affine map: ``y = x @ weight + bias``, weight (n_in, n_out), bias (n_out,).

    With ``bias=False`` it has none.  ``writes_stream`` says that y is added to the residual
    stream.
    """

    def __init__(self, n_in, n_out, dtype=np.float32, group="mlp", bias=True, writes_stream=False):
        check_sizes(self, n_in=n_in, n_out=n_out)
        self.weight = Parameter(np.zeros((n_in, n_out), dtype), group)
        self.weight.writes_stream = writes_stream
        self.bias = Parameter(np.zeros(n_out, dtype), group) if bias else None

    def forward(self, x, need_dx=True):
        """x (..., n_in) -> y (..., n_out); ``need_dx`` says whether backward computes dx."""
        w, need_db = self.weight, self.bias is not None and self.bias.trainable
        b = np.zeros(w.data.shape[1], w.data.dtype) if self.bias is None else self.bias.data
        return ops().linear(x, w.data, b, (need_dx, w.trainable, need_db))

    def backward(self, dy, cache):
        """dy (..., n_out) -> dx (..., n_in)."""
        dx, dw, db = ops().linear_backward(dy, cache)
        self.weight.add_grad(dw)
        if self.bias is not None:
            self.bias.add_grad(db)
        return dx


class LayerNorm(Layer):
    """Layer normalisation of the last axis, with the scale ``weight`` (n,) and ``bias`` (n,)."""

    def __init__(self, n, eps=1e-5, dtype=np.float32):
        check_sizes(self, n=n)
        self.weight = Parameter(np.ones(n, dtype), "ln")
        self.bias = Parameter(np.zeros(n, dtype), "ln")
        self.eps = eps

    def forward(self, x):
        """x (..., C) -> y (..., C)."""
        if np.shape(x)[-1:] != self.weight.data.shape:    # a call only where it is refused
            refuse_channels(self, x, len(self.weight.data))
        return ops().layer_norm(x, self.weight.data, self.bias.data, self.eps)

    def backward(self, dy, cache):
        """dy (..., C) -> dx (..., C)."""
        dx, dw, db = ops().layer_norm_backward(dy, cache)
        self.weight.add_grad(dw)
        self.bias.add_grad(db)
        return dx


class Embedding(Layer):
    """A table with a row for each id: ``y = weight[ids]``, weight (n, C)."""

    def __init__(self, n, n_embd, dtype=np.float32, group="input"):
        check_sizes(self, n=n, n_embd=n_embd)
        self.weight = Parameter(np.zeros((n, n_embd), dtype), group)

    def forward(self, ids):
        """ids (...) integers -> y (..., C)."""
        return ops().embedding(ids, self.weight.data)

    def backward(self, dy, cache):
        """dy (..., C) -> None: integers have no gradient."""
        if self.weight.trainable:
            self.weight.add_grad(ops().embedding_backward(dy, cache))


class Unembedding(Layer):
    """The head of a language model: a score for each row of a table, ``y = x @ weight.T``; the
    ``weight`` (n, C) may be the embedding's."""

    def __init__(self, weight):
        self.weight = weight

    def forward(self, x):
        """x (..., C) -> y (..., n)."""
        return ops().unembedding(x, self.weight.data, (True, self.weight.trainable))

    def backward(self, dy, cache):
        """dy (..., n) -> dx (..., C)."""
        dx, dw = ops().unembedding_backward(dy, cache)
        self.weight.add_grad(dw)
        return dx


class Positions(Layer):
    """Positional embeddings: each token plus the row of its position, ``weight`` (n, C)."""

    def __init__(self, n, n_embd, dtype=np.float32):
        check_sizes(self, n=n, n_embd=n_embd)
        self.weight = Parameter(np.zeros((n, n_embd), dtype), "pos")

    def forward(self, x, start=0):
        """x (B, T, C), the first token at position ``start`` -> y (B, T, C)."""
        if np.shape(x)[-1:] != self.weight.data.shape[1:]:
            refuse_channels(self, x, self.weight.data.shape[1])
        return ops().positions(x, self.weight.data, start)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dx, dw = ops().positions_backward(dy, cache)
        self.weight.add_grad(dw)
        return dx


# The values of ``GPT2Config.activation_function``, with Hugging Face's names: each operation and
# its backward pass.  Add a pair to use an activation of your own.
ACTIVATIONS = {"gelu_new": (fast.gelu, fast.gelu_backward),
               "gelu_pytorch_tanh": (fast.gelu, fast.gelu_backward),
               "gelu": (fast.gelu_exact, fast.gelu_exact_backward),
               "gelu_python": (fast.gelu_exact, fast.gelu_exact_backward),
               "relu": (fast.relu, fast.relu_backward),
               "silu": (fast.silu, fast.silu_backward)}


class Activation(Layer):
    """The nonlinearity of a feed-forward layer; its name is one of ``ACTIVATIONS``."""

    def __init__(self, name):
        self.name = checks.one_of("Activation", "name", name, ACTIVATIONS)

    def forward(self, x):
        """x (...) -> y (...)."""
        function, _ = ACTIVATIONS[self.name]
        return (function if ops() is fast else RUN.get()(function))(x)     # as a rule it is fast's

    def backward(self, dy, cache):
        """dy (...) -> dx (...)."""
        _, function = ACTIVATIONS[self.name]
        return (function if ops() is fast else RUN.get()(function))(dy, cache)


class KVCache:
    """The keys and values of the ``n`` tokens so far, in one block with space for ``capacity``."""

    def __init__(self, capacity):
        self.k = self.v = None                            # (B, G, capacity, D) after extend
        self.capacity, self.n = checks.whole("KVCache", "capacity", capacity), 0

    def extend(self, k, v):
        """Append k and v (B, G, T, D) of the next tokens; return those of all tokens so far, two
        views (B, G, n, D)."""
        B, G, T, D = k.shape
        if self.k is None:
            self.k, self.v = (np.empty((B, G, self.capacity, D), k.dtype) for _ in range(2))
        if self.n + T > self.capacity or B != len(self.k):
            raise ValueError(f"KVCache: {B} x {T} tokens do not fit, there is room for "
                             f"{len(self.k)} x {self.capacity - self.n}")
        new = slice(self.n, self.n + T)
        self.k[:, :, new], self.v[:, :, new] = k, v
        self.n += T
        return self.k[:, :, :self.n], self.v[:, :, :self.n]


def mark_heads(layer, **heads):
    """Tell the parameters of a layer which heads' columns they hold, for freeze masks."""
    for p in layer.parameters():
        p.heads = heads


class Attention(Layer):
    """Multi-head self-attention: ``c_attn`` (C, 3C), heads, ``c_proj`` (C, C).

    Dropout acts on the attention probabilities and on the result, as in GPT-2.  ``bias``, if there
    is one, is a layer whose ``forward(T)`` returns numbers (H, T, T) for the scores.  ``head_dim``
    is another width of a head than ``C / n_head``.

    A family of trunks has a subclass if its queries, keys and values come from other layers
    (``project``), if positions turn them (``turn``, which takes q, k, the first token's position
    and the dict of caches, and ``turn_backward``), or if the result goes through another layer
    (``output``, its name).
    """

    output, turn = "c_proj", None

    def __init__(self, n_embd, n_head, dropout=0.0, dtype=np.float32, causal=True, bias=None,
                 head_dim=None):
        check_sizes(self, n_embd=n_embd, n_head=n_head)
        if head_dim is None and n_embd % n_head:
            raise ValueError(f"Attention: {n_embd} channels cannot be divided into {n_head} heads")
        inner = n_head * (head_dim or n_embd // n_head)
        self.c_attn = Linear(n_embd, 3 * inner, dtype, "attn")
        self.c_proj = Linear(inner, n_embd, dtype, "attn", writes_stream=True)
        self.n_head, self.dropout, self.causal, self.bias = n_head, dropout, causal, bias
        mark_heads(self.c_attn, queries=n_head, keys=n_head, values=n_head)

    def project(self, x):
        """x (B, T, C) -> q, k, v (B, H, T, D), of which k and v may have fewer heads, and a dict of
        caches."""
        qkv, c_attn = self.c_attn.forward(x)
        heads, n = ops().split_heads(qkv, 3 * self.n_head), self.n_head
        return heads[:, :n], heads[:, n:2 * n], heads[:, 2 * n:], {"c_attn": c_attn}

    def project_backward(self, dq, dk, dv, cache):
        """The gradients of q, k, v -> dx (B, T, C)."""
        return self.c_attn.backward(ops().merge_heads(dq, dk, dv), cache["c_attn"])

    def forward(self, x, train=False, rng=None, past=None, last=None):
        """x (B, T, C) -> y (B, T, C), or (B, last, C) for the last tokens only.

        ``past``, a ``KVCache``, holds the keys and values of the tokens before these; those of
        these tokens are appended.  It is for inference: no backward pass goes through it.
        """
        p = self.dropout if train else 0.0
        if p and rng is None:                             # a call only where it is refused
            checks.generator(type(self).__name__, rng)
        q, k, v, cache = self.project(x)
        if self.turn:
            q, k = self.turn(q, k, past.n if past else 0, cache)
        if past is not None:
            k, v = past.extend(k, v)
        bias, cache["bias"] = self.bias.forward(x.shape[1]) if self.bias else (None, None)
        y, cache["heads"] = ops().attention(q, k, v, p, rng, self.causal, bias)
        y = ops().merge_heads(y)
        y, cache["last"] = ops().last_tokens(y, last) if last else (y, None)
        y, cache[self.output] = getattr(self, self.output).forward(y)
        y, cache["dropout"] = ops().dropout(y, p, rng)
        return y, cache

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C)."""
        dy = ops().dropout_backward(dy, cache["dropout"])
        dy = getattr(self, self.output).backward(dy, cache[self.output])
        if cache["last"]:
            dy = ops().last_tokens_backward(dy, cache["last"])
        dy = ops().split_heads(dy, self.n_head)
        dq, dk, dv, dbias = ops().attention_backward(dy, cache["heads"])
        if dbias is not None:
            self.bias.backward(dbias, cache["bias"])      # adds to the other blocks' gradients
        if self.turn:
            dq, dk = self.turn_backward(dq, dk, cache)
        return self.project_backward(dq, dk, dv, cache)


class MLP(Layer):
    """The feed-forward part of a block: ``c_fc`` (C, 4C), activation, ``c_proj`` (4C, C).
    ``n_inner`` is another width than 4C."""

    def __init__(self, n_embd, dropout=0.0, dtype=np.float32, activation="gelu_new", n_inner=None):
        check_sizes(self, n_embd=n_embd)
        n_inner = n_inner or 4 * n_embd
        self.c_fc = Linear(n_embd, n_inner, dtype)
        self.act = Activation(activation)
        self.c_proj = Linear(n_inner, n_embd, dtype, writes_stream=True)
        self.dropout = dropout

    def forward(self, x, train=False, rng=None):
        """x (B, T, C) -> y (B, T, C)."""
        x, c_fc = self.c_fc.forward(x)
        x, act = self.act.forward(x)
        y, c_proj = self.c_proj.forward(x)
        p = self.dropout if train else 0.0
        if p and rng is None:
            checks.generator("MLP", rng)
        y, dropout = ops().dropout(y, p, rng)
        return y, dict(c_fc=c_fc, act=act, c_proj=c_proj, dropout=dropout)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dy = ops().dropout_backward(dy, cache["dropout"])
        dy = self.c_proj.backward(dy, cache["c_proj"])
        dy = self.act.backward(dy, cache["act"])
        return self.c_fc.backward(dy, cache["c_fc"])


class Block(Layer):
    """A block, with a norm before each part: ``x = x + attn(ln_1(x))``, then
    ``x = x + mlp(ln_2(x))``."""

    def __init__(self, ln_1, attn, ln_2, mlp):
        self.ln_1, self.attn, self.ln_2, self.mlp = ln_1, attn, ln_2, mlp

    def forward(self, x, train=False, rng=None, **reads):
        """x (B, T, C) -> y (B, T, C); ``reads`` are ``past`` and ``last`` of the attention.

        With ``last``, y is (B, last, C): all tokens supply keys and values, but only the last
        ones get an output.
        """
        a, ln_1 = self.ln_1.forward(x)
        a, attn = self.attn.forward(a, train, rng, **reads)
        # Attention may have given the last tokens only.
        x, last = ops().last_tokens(x, a.shape[1]) if a.shape[1] < x.shape[1] else (x, None)
        x = x + a                                         # x + attn(ln_1(x))
        m, ln_2 = self.ln_2.forward(x)
        m, mlp = self.mlp.forward(m, train, rng)
        y = x + m                                         # x + mlp(ln_2(x))
        return y, dict(ln_1=ln_1, attn=attn, last=last, ln_2=ln_2, mlp=mlp)

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C).  Each x went two ways: past a part and
        through it, and the gradients of both add up."""
        dm = self.mlp.backward(dy, cache["mlp"])
        dm = self.ln_2.backward(dm, cache["ln_2"])
        dy = dy + dm
        da = self.attn.backward(dy, cache["attn"])
        da = self.ln_1.backward(da, cache["ln_1"])
        if cache["last"]:
            dy = ops().last_tokens_backward(dy, cache["last"])
        return dy + da


# Settings that the config of a trunk may lack, with what holds then.  ``n_positions`` None: no
# limit.  ``positions`` False: ``n_positions`` is no limit.
OPTIONAL = {"dropout": 0.0, "causal": True, "n_positions": None, "positions": True}


def setting(config, name):
    """Return a setting of a trunk's config, by default that of ``OPTIONAL``."""
    return getattr(config, name, OPTIONAL[name])


def check_tokens(where, config, x, past=None, last=None):
    """Check the tokens of a trunk's forward pass, and return how many stand before them in
    ``past``, 0 for ``None``.

    Raises ``ValueError`` unless x is (B, T, C), each block has its own :class:`KVCache`, all
    tokens have a position, and ``last`` is ``None`` or from 1 to T."""
    if checks.array(where, "x", x).ndim != 3 or x.shape[2] != config.n_embd:
        raise ValueError(f"{where}: x has shape {x.shape}, expected (B, T, {config.n_embd})")
    if last is not None and (type(last) is not int or not 1 <= last <= x.shape[1]):
        checks.whole("forward", "last", last, most=x.shape[1])     # a call only where it is refused
    all_kv = past if isinstance(past, (tuple, list)) else ()
    n = getattr(all_kv[0], "n", 0) if all_kv else 0
    if past is not None and not (
            len({*map(id, all_kv)}) == len(all_kv) == config.n_layer
            and all(isinstance(kv, KVCache) and kv.n == n for kv in all_kv)
            and setting(config, "causal")):
        raise ValueError(f"{where}: past is {checks.brief(past)}, expected for a causal trunk a "
                         f"KVCache for each of {config.n_layer} blocks, with the same tokens")
    total, most = n + x.shape[1], setting(config, "n_positions")
    if most is not None and total > most and setting(config, "positions"):
        raise ValueError(f"{where}: {total} tokens, the trunk has {most} positions: use fewer "
                         "tokens, or a trunk with more positions (random:6x4x128 has 1024)")
    return n
