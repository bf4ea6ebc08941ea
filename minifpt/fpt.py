"""The Frozen Pretrained Transformer: input layer -> trunk -> output layer.

After *Pretrained Transformers as Universal Computation Engines* (arXiv 2103.05247).
"""

import math

import numpy as np

from . import functional as F
from .freeze import GROUPS, group_of
from .layers import Layer, Linear


class FPT(Layer):
    """A trunk between a new input layer and a new output layer.

    trunk           what :class:`minifpt.GPT2` is: ``forward``, ``backward``, ``config``.
    input_dim       numbers in a token, or for integer ids the number of symbols.
    output_dim      scores at each token that is read.
    output_tokens   how many of the last tokens are read.

    The input layer starts orthogonal with gain 1.41 and zero offset, the output layer
    uniform within ``1 / sqrt(C)``, as in the paper's code.  Everything is trainable until
    :meth:`freeze` is called.
    """

    def __init__(self, trunk, input_dim, output_dim, output_tokens=1, seed=0):
        if min(input_dim, output_dim, output_tokens) < 1:
            raise ValueError("FPT: input_dim, output_dim and output_tokens must be at least 1, "
                             f"got {input_dim}, {output_dim}, {output_tokens}")
        C, dtype = trunk.config.n_embd, trunk.dtype
        self.input = Linear(input_dim, C, dtype)
        self.trunk = trunk
        self.output = Linear(C, output_dim, dtype)
        self.output_tokens = output_tokens
        rng = np.random.default_rng([seed, 0xF47])
        self.input.weight.data[:] = orthogonal(rng, input_dim, C, gain=1.41)
        for p in self.output.parameters():
            p.data[:] = rng.uniform(-1 / math.sqrt(C), 1 / math.sqrt(C), p.data.shape)

    def named_parameters(self, prefix=""):
        """As every layer's, without the trunk's token embedding, which FPT does not use."""
        for name, p in super().named_parameters(prefix):
            if group_of(name.removeprefix(prefix)) != "tok":
                yield name, p

    def forward(self, x, train=False, rng=None):
        """x (B, T, input_dim), or ids (B, T) -> logits (B, output_tokens, output_dim).

        With ``train=True`` dropout is on, drawn from ``rng``.
        """
        ids = np.issubdtype(x.dtype, np.integer)
        want = "(B, T)" if ids else f"(B, T, {len(self.input.weight.data)})"
        if x.ndim != 3 - ids or (not ids and x.shape[2] != len(self.input.weight.data)):
            raise ValueError(f"FPT: x has shape {x.shape}, expected {want}")
        if x.shape[1] < self.output_tokens:
            raise ValueError(f"FPT: x has {x.shape[1]} tokens, "
                             f"{self.output_tokens} of them are to be read")
        if ids:                                           # a linear layer on one-hot vectors
            e, c_in = F.embedding(x, self.input.weight.data)
            e += self.input.bias.data
            c_in = c_in if self.input.trainable else None
        else:
            e, c_in = self.input.forward(x.astype(self.trunk.dtype, copy=False), need_dx=False)
        e, mask = F.dropout(e, self.trunk.config.dropout if train else 0.0, rng)
        y, c_trunk = self.trunk.forward(e, train, rng, need_dx=c_in is not None,
                                        last=self.output_tokens)
        logits, c_out = self.output.forward(y, c_trunk is not None)
        if c_out is None:
            return logits, None
        return logits, (c_in, ids, None if c_in is None else mask, c_trunk, c_out)

    def backward(self, dlogits, cache):
        """dlogits (B, output_tokens, output_dim) -> None; fills the trainable ``.grad``."""
        c_in, ids, mask, c_trunk, c_out = cache
        dy = self.output.backward(dlogits, c_out)
        if c_trunk is None:
            return
        de = self.trunk.backward(dy, c_trunk)
        if c_in is None:
            return
        de = F.dropout_backward(de, mask)
        if not ids:
            self.input.backward(de, c_in)
            return
        weight, bias = self.input.parameters()
        if weight.trainable:
            weight.add_grad(F.embedding_backward(de, c_in))
        if bias.trainable:
            bias.add_grad(de.sum(axis=(0, 1)))

    def predict(self, x):
        """Logits without dropout and without a cache."""
        with self.all_frozen():
            return self.forward(x)[0]

    def counts(self, tokens=None):
        """``{group: (parameters, trained)}``.  With ``tokens``, only as many positions count
        as an input of that length uses: no gradient ever reaches the others."""
        count = {}
        for name, p in self.named_parameters():
            group = group_of(name)
            size = p.data.size
            if group == "pos" and tokens is not None:
                size = min(tokens, len(p.data)) * p.data.shape[1]
            total, trained = count.get(group, (0, 0))
            count[group] = total + size, trained + size * p.trainable
        return {group: count[group] for group in GROUPS if group in count}

    def summary(self, tokens=None):
        """A table as text: each group, its parameters, how many of them are trained, and
        the share; ``tokens`` as for :meth:`counts`."""
        rows = self.counts(tokens)
        total, trained = (sum(n) for n in zip(*rows.values(), strict=True))
        lines = [f"{'group':8}{'':34}{'parameters':>13}{'trained':>13}"]
        lines += [f"{group:8}{GROUPS[group]:34}{n:>13,}{f'{t:,}' if t else 'frozen':>13}"
                  for group, (n, t) in rows.items()]
        lines += [f"{'total':42}{total:>13,}{trained:>13,}",
                  f"{100 * trained / total:.2f} % of the parameters are trained"]
        return "\n".join(lines)


def orthogonal(rng, n_in, n_out, gain):
    """A random (n_in, n_out) matrix whose shorter side is orthogonal with norm ``gain``:
    the QR factor of a normal matrix, signs fixed (Saxe et al. 2013, arXiv 1312.6120)."""
    n, m = max(n_in, n_out), min(n_in, n_out)
    q, r = np.linalg.qr(rng.standard_normal((n, m)))
    q *= gain * np.sign(np.diag(r))
    return q if n_in >= n_out else q.T
