"""Parameters, and the layers of GPT-2: what holds them and calls ``functional``.

A layer's ``forward(x, ...)`` gives ``(y, cache)`` and its ``backward(dy, cache)`` gives
``dx`` and adds into the ``.grad`` of its trainable parameters.  With ``need_dx=False``
nobody below wants ``dx``; a layer of which nothing is wanted (all frozen, no ``dx``)
returns ``cache = None``, and ``backward`` on that is never called.  So what is frozen
costs no gradient, and what lies below the lowest trainable parameter costs no memory.
"""

from contextlib import contextmanager

import numpy as np

from . import fast
from . import functional as F


class Parameter:
    """An array with its gradient: ``.data``, ``.grad`` (``None`` until a backward pass
    reaches it) and ``.trainable``."""

    __slots__ = ("data", "grad", "trainable")

    def __init__(self, data):
        self.data = data
        self.grad = None
        self.trainable = True

    def add_grad(self, grad):
        """Add one backward pass's gradient, an array that is ours from now on; ``None`` adds
        nothing."""
        if self.grad is None:
            self.grad = grad
        elif grad is not None:
            self.grad += grad


class Layer:
    """Finds its parameters by attribute, so that their names are the attributes' path:
    ``h.0.attn.c_attn.weight``."""

    def children(self):
        """(name, Parameter or Layer) in the order of definition; lists are numbered."""
        for name, value in vars(self).items():
            if isinstance(value, (Parameter, Layer)):
                yield name, value
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    yield f"{name}.{i}", item

    def named_parameters(self, prefix=""):
        """(name, Parameter) for every parameter below this layer."""
        for name, child in self.children():
            if isinstance(child, Parameter):
                yield prefix + name, child
            else:
                yield from child.named_parameters(f"{prefix}{name}.")

    def parameters(self):
        """All parameters as a list."""
        return [p for _, p in self.named_parameters()]

    @property
    def trainable(self):
        """Whether any parameter of this layer is trainable."""
        return any(p.trainable for p in self.parameters())

    def zero_grad(self):
        """Forget all gradients."""
        for p in self.parameters():
            p.grad = None

    def freeze(self, mask):
        """Set ``.trainable`` of every parameter from a :class:`minifpt.FreezeMask`."""
        mask.apply(self)

    @contextmanager
    def all_frozen(self):
        """Inference: within ``with layer.all_frozen():`` no cache is kept."""
        trainable = [p for p in self.parameters() if p.trainable]
        for p in trainable:
            p.trainable = False
        try:
            yield self
        finally:
            for p in trainable:
                p.trainable = True


class Linear(Layer):
    """``y = x @ weight + bias``, weight (n_in, n_out), bias (n_out,)."""

    def __init__(self, n_in, n_out, dtype=np.float32):
        self.weight = Parameter(np.zeros((n_in, n_out), dtype))
        self.bias = Parameter(np.zeros(n_out, dtype))

    def forward(self, x, need_dx=True):
        """x (..., n_in) -> y (..., n_out)."""
        y, (x, w) = F.linear(x, self.weight.data, self.bias.data)
        need = need_dx, self.weight.trainable, self.bias.trainable
        # Only the weight's gradient reads x: under a frozen weight x can be forgotten.
        return y, ((x if need[1] else None, w), need) if any(need) else None

    def backward(self, dy, cache):
        """dy (..., n_out) -> dx (..., n_in) or None."""
        cache, need = cache
        dx, dw, db = F.linear_backward(dy, cache, need)
        self.weight.add_grad(dw)
        self.bias.add_grad(db)
        return dx


class LayerNorm(Layer):
    """Layer normalisation of the last axis with scale ``weight`` and offset ``bias``."""

    def __init__(self, n, eps=1e-5, dtype=np.float32):
        self.weight = Parameter(np.ones(n, dtype))
        self.bias = Parameter(np.zeros(n, dtype))
        self.eps = eps

    def forward(self, x, need_dx=True):
        """x (..., C) -> y (..., C)."""
        y, cache = F.layer_norm(x, self.weight.data, self.bias.data, self.eps)
        need = need_dx, self.weight.trainable, self.bias.trainable
        return y, (cache, need) if any(need) else None

    def backward(self, dy, cache):
        """dy (..., C) -> dx (..., C) or None."""
        cache, need = cache
        dx, dw, db = F.layer_norm_backward(dy, cache, need)
        self.weight.add_grad(dw)
        self.bias.add_grad(db)
        return dx


class Embedding(Layer):
    """``y = weight[ids]``, weight (n, C)."""

    def __init__(self, n, n_embd, dtype=np.float32):
        self.weight = Parameter(np.zeros((n, n_embd), dtype))

    def forward(self, ids):
        """ids (...) integers -> y (..., C)."""
        y, cache = F.embedding(ids, self.weight.data)
        return y, cache if self.weight.trainable else None

    def backward(self, dy, cache):
        """dy (..., C) -> None: integers have no gradient."""
        if self.weight.grad is None:
            self.weight.add_grad(F.embedding_backward(dy, cache))
        else:                                             # the rows that were used, not the table
            np.add.at(self.weight.grad, cache[0], dy)


class Attention(Layer):
    """Causal multi-head self-attention: ``c_attn`` (C, 3C), heads, ``c_proj`` (C, C).

    Dropout on the attention probabilities and on the result, as in GPT-2.
    """

    def __init__(self, n_embd, n_head, dropout=0.0, dtype=np.float32):
        self.c_attn = Linear(n_embd, 3 * n_embd, dtype)
        self.c_proj = Linear(n_embd, n_embd, dtype)
        self.n_head = n_head
        self.dropout = dropout

    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C) -> y (B, T, C), or of the ``last`` tokens only.  ``past``, a
        ``fast.KeyValues``, holds the tokens before these and takes these in; there is no way
        back through it."""
        p = self.dropout if train else 0.0
        qkv, c_in = self.c_attn.forward(x, need_dx)
        if past is None:
            a, c_heads = fast.attention(qkv, self.n_head, p, rng)
        else:
            a, c_heads = fast.attention_after(qkv, self.n_head, past), None
        y, c_out = self.c_proj.forward(last_tokens(a, last), c_in is not None)
        y, mask = F.dropout(y, p, rng)
        if c_out is None:
            return y, None
        return y, (c_in, None if c_in is None else c_heads, c_out, mask, x.shape[1])

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C) or None."""
        c_in, c_heads, c_out, mask, T = cache
        da = self.c_proj.backward(F.dropout_backward(dy, mask), c_out)
        if c_in is None:
            return None
        da = last_tokens_backward(da, T)
        return self.c_attn.backward(fast.attention_backward(da, c_heads), c_in)


class MLP(Layer):
    """The feed-forward part of a block: ``c_fc`` (C, 4C), GELU, ``c_proj`` (4C, C)."""

    def __init__(self, n_embd, dropout=0.0, dtype=np.float32):
        self.c_fc = Linear(n_embd, 4 * n_embd, dtype)
        self.c_proj = Linear(4 * n_embd, n_embd, dtype)
        self.dropout = dropout

    def forward(self, x, train=False, rng=None, need_dx=True):
        """x (B, T, C) -> y (B, T, C)."""
        u, c_in = self.c_fc.forward(x, need_dx)
        g, c_gelu = fast.gelu(u, c_in is not None)
        y, c_out = self.c_proj.forward(g, c_in is not None)
        y, mask = F.dropout(y, self.dropout if train else 0.0, rng)
        if c_out is None:
            return y, None
        return y, (c_in, c_gelu, c_out, mask)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C) or None."""
        c_in, c_gelu, c_out, mask = cache
        dg = self.c_proj.backward(F.dropout_backward(dy, mask), c_out)
        if c_in is None:
            return None
        return self.c_fc.backward(fast.gelu_backward(dg, c_gelu), c_in)


class Block(Layer):
    """One block of GPT-2, layer norm before each part:
    ``x = x + attn(ln_1(x))``, ``x = x + mlp(ln_2(x))``."""

    def __init__(self, n_embd, n_head, dropout=0.0, eps=1e-5, dtype=np.float32):
        self.ln_1 = LayerNorm(n_embd, eps, dtype)
        self.attn = Attention(n_embd, n_head, dropout, dtype)
        self.ln_2 = LayerNorm(n_embd, eps, dtype)
        self.mlp = MLP(n_embd, dropout, dtype)

    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C) -> y (B, T, C); for ``past`` see :class:`Attention`.

        With ``last``, y (B, last, C): all tokens serve as keys and values, and nothing more
        is computed for those that nobody reads.
        """
        # Each part must run back if it, or anything before it, has something to learn.
        a, c_ln_1 = self.ln_1.forward(x, need_dx)
        a, c_attn = self.attn.forward(a, train, rng, c_ln_1 is not None, past, last)
        a += last_tokens(x, last)
        m, c_ln_2 = self.ln_2.forward(a, c_attn is not None)
        m, c_mlp = self.mlp.forward(m, train, rng, c_ln_2 is not None)
        m += a
        if c_mlp is None:
            return m, None
        return m, (c_ln_1, c_attn, c_ln_2, c_mlp, need_dx)

    def backward(self, dy, cache):
        """dy (B, T, C) or (B, last, C) -> dx (B, T, C) or None."""
        c_ln_1, c_attn, c_ln_2, c_mlp, need_dx = cache
        dm = self.mlp.backward(dy, c_mlp)
        if c_ln_2 is None:
            return None
        dx = self.ln_2.backward(dm, c_ln_2)
        if c_attn is None:
            return None
        dx += dy                                          # the residual passes dy as it is
        da = self.attn.backward(dx, c_attn)
        if c_ln_1 is None:
            return None
        da = self.ln_1.backward(da, c_ln_1)
        if not need_dx:
            return None
        da[:, -dx.shape[1]:] += dx
        return da


def last_tokens(x, n=None):
    """x (B, T, C) -> (B, n, C), the last n tokens; ``None`` is all of them."""
    return x if n in (None, x.shape[1]) else np.ascontiguousarray(x[:, -n:])


def last_tokens_backward(dy, T):
    """dy (B, n, C) -> dx (B, T, C): nothing for the tokens that were not read."""
    if dy.shape[1] == T:
        return dy
    dx = np.zeros((len(dy), T, dy.shape[2]), dy.dtype)
    dx[:, -dy.shape[1]:] = dy
    return dx
