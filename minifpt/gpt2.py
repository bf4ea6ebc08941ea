"""GPT-2: its shape, the trunk (embeddings in, hidden states out), the language model."""

import math
import zlib
from dataclasses import asdict, dataclass, fields

import numpy as np

from . import functional as F
from . import weights
from .layers import Block, Embedding, Layer, LayerNorm


@dataclass
class GPT2Config:
    """The shape of a GPT-2; the defaults are GPT-2 base."""

    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_positions: int = 1024
    vocab_size: int = 50257
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self):
        for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPT2Config: {name} is {getattr(self, name)}, expected >= 1")
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT2Config: n_embd {self.n_embd} is no multiple of "
                             f"n_head {self.n_head}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GPT2Config: dropout is {self.dropout}, expected 0 <= p < 1")


class GPT2(Layer):
    """The trunk: adds positions to embeddings, runs the blocks and the last layer norm.

    Initialised as GPT-2 is: normal with deviation 0.02, the projections that write into
    the residual stream divided by ``sqrt(2 n_layer)``, offsets 0, scales 1.  Each
    parameter draws from a generator of its own, seeded by ``seed`` and its name.
    """

    def __init__(self, config=None, seed=0, dtype=np.float32):
        c = self.config = config or GPT2Config()
        self.dtype = np.dtype(dtype)
        self.wte = Embedding(c.vocab_size, c.n_embd, dtype)
        self.wpe = Embedding(c.n_positions, c.n_embd, dtype)
        self.h = [Block(c.n_embd, c.n_head, c.dropout, c.layer_norm_epsilon, dtype)
                  for _ in range(c.n_layer)]
        self.ln_f = LayerNorm(c.n_embd, c.layer_norm_epsilon, dtype)
        if seed is not None:
            for name, p in self.named_parameters():
                if p.data.ndim == 2:
                    std = 0.02 / math.sqrt(2 * c.n_layer) if "c_proj" in name else 0.02
                    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
                    p.data[:] = rng.standard_normal(p.data.shape, np.float32)
                    p.data *= std

    @classmethod
    def from_pretrained(cls, name, dtype=np.float32, dropout=None):
        """A trunk from a name in ``weights/`` or the path of an ``.npz`` weight file.

        ``dropout`` overrides the file's.  Raises ``FileNotFoundError`` for an unknown
        name, ``ValueError`` for a file that does not fit, naming parameter and shapes.
        """
        path = weights.find(name)
        config, arrays = weights.load(path)
        known = {f.name for f in fields(GPT2Config)}
        try:
            shape = GPT2Config(**{k: v for k, v in config.items() if k in known})
        except TypeError as e:
            raise ValueError(f"{path}: bad config: {e}") from None
        if dropout is not None:
            shape.dropout = dropout
        trunk = cls(shape, seed=None, dtype=dtype)
        for key, p in trunk.named_parameters():
            data = arrays[key]
            if data.shape != p.data.shape:
                raise ValueError(f"{path}: '{key}' has shape {data.shape}, "
                                 f"the model wants {p.data.shape}")
            p.data = data.astype(dtype)
        return trunk

    def save(self, path, dtype=np.float16, **provenance):
        """Write the weights with their config and provenance as an ``.npz``."""
        weights.save(path, asdict(self.config) | provenance,
                     ((name, p.data) for name, p in self.named_parameters()), dtype)

    def forward(self, x, train=False, rng=None, need_dx=True):
        """x (B, T, C), embeddings before positions are added -> (B, T, C), after ln_f."""
        c = self.config
        if x.ndim != 3 or x.shape[2] != c.n_embd:
            raise ValueError(f"GPT2: x has shape {x.shape}, expected (B, T, {c.n_embd})")
        T = x.shape[1]
        if T > c.n_positions:
            raise ValueError(f"GPT2: {T} tokens, the trunk has {c.n_positions} positions")
        x = x + self.wpe.weight.data[:T]
        x, mask = F.dropout(x, c.dropout if train else 0.0, rng)
        need = need_dx, self.wpe.weight.trainable
        runs_back = any(need)
        caches = []
        for block in self.h:
            x, cache = block.forward(x, train, rng, runs_back)
            runs_back = cache is not None
            caches.append(cache)
        y, c_ln_f = self.ln_f.forward(x, runs_back)
        return y, None if c_ln_f is None else (mask, need, caches, c_ln_f)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C) or None; stops at the lowest trainable parameter."""
        mask, need, caches, c_ln_f = cache
        dx = self.ln_f.backward(dy, c_ln_f)
        for block, cache in zip(reversed(self.h), reversed(caches), strict=True):
            if cache is None:
                return None
            dx = block.backward(dx, cache)
        if not any(need):
            return None
        dx = F.dropout_backward(dx, mask)
        if need[1]:
            grad = np.zeros_like(self.wpe.weight.data)
            grad[:dx.shape[1]] = dx.sum(axis=0)
            self.wpe.weight.add_grad(grad)
        return dx if need[0] else None

    def logits(self, ids):
        """The language model's scores: ids (B, T) integers -> (B, T, V)."""
        with self.all_frozen():
            return LanguageModel(self).forward(np.asarray(ids), need_dx=False)[0]


class LanguageModel(Layer):
    """GPT-2 as it was pretrained: token embedding, trunk, and scores by the same table,
    ``logits = hidden @ wte.weight.T``."""

    def __init__(self, trunk):
        self.trunk = trunk

    def forward(self, ids, train=False, rng=None, need_dx=False):
        """ids (B, T) -> logits (B, T, V)."""
        table = self.trunk.wte.weight
        x, c_wte = self.trunk.wte.forward(ids)
        y, c_trunk = self.trunk.forward(x, train, rng, c_wte is not None)
        logits, (y, w) = F.linear(y, table.data.T, np.zeros(len(table.data), y.dtype))
        if c_trunk is None and c_wte is None:
            return logits, None
        return logits, (c_wte, c_trunk, y, w)

    def backward(self, dlogits, cache):
        """dlogits (B, T, V) -> None; the table gets a gradient from both of its uses."""
        c_wte, c_trunk, y, w = cache
        need = c_trunk is not None, c_wte is not None, False
        dy, dw, _ = F.linear_backward(dlogits, (y, w), need)
        if c_wte is not None:
            self.trunk.wte.weight.add_grad(dw.T)
        if c_trunk is not None:
            dx = self.trunk.backward(dy, c_trunk)
            if c_wte is not None:
                self.trunk.wte.backward(dx, c_wte)
