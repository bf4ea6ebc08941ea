"""GPT-2: its shape, the trunk (embeddings in, hidden states out), the language model."""

import math
import threading
import zlib
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial

import numpy as np

from . import functional as F
from . import weights
from .fast import KeyValues, shared
from .huggingface import as_array, fill
from .layers import Block, Embedding, Layer, LayerNorm, Parameter


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
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"GPT2Config: {name} is {value}, expected an integer >= 1")
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT2Config: n_embd {self.n_embd} is no multiple of "
                             f"n_head {self.n_head}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GPT2Config: dropout is {self.dropout}, expected 0 <= p < 1")
        if not 0 < self.layer_norm_epsilon < math.inf:
            raise ValueError(f"GPT2Config: layer_norm_epsilon is {self.layer_norm_epsilon}, "
                             "expected more than 0")


# The shapes that have a name: OpenAI's, and the one of the weights that ship.
SHAPES = {"gpt2": dict(n_layer=12, n_head=12, n_embd=768),
          "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
          "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
          "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
          "minigpt": dict(n_layer=6, n_head=4, n_embd=128, n_positions=256, vocab_size=256)}


def config_of(config, path):
    """The :class:`GPT2Config` of a weight file's config, a dict with more in it."""
    known = {f.name for f in fields(GPT2Config)}
    try:
        return GPT2Config(**{k: v for k, v in config.items() if k in known})
    except TypeError as e:
        raise ValueError(f"{path}: bad config: {e}") from None


_making = threading.Lock()


class Later(Parameter):
    """A parameter that takes no memory until its ``.data`` is first asked for, by what
    ``make()`` returns; setting ``.data`` does away with that."""

    __slots__ = ("array", "make")

    def __init__(self, make):
        super().__init__(None)
        self.make = make

    @property
    def data(self):
        """The array."""
        if self.array is None:
            with _making:                                 # two threads may ask at once
                if self.array is None:
                    self.array = self.make()
                    self.make = None                      # and the file that it may hold
        return self.array

    @data.setter
    def data(self, array):
        self.array, self.make = array, None

    def __getstate__(self):                               # no copy of it waits for a file
        return None, {"array": self.data, "make": None, "grad": self.grad,
                      "trainable": self.trainable}


class GPT2(Layer):
    """The trunk: adds positions to embeddings, runs the blocks and the last layer norm.

    Initialised as GPT-2 is: normal with deviation 0.02, the projections that write into
    the residual stream divided by ``sqrt(2 n_layer)``, offsets 0, scales 1.  Each
    parameter draws from a generator of its own, seeded by ``seed`` and its name.

    The token embedding, which an FPT does not use and which is a third of GPT-2 base, is
    drawn, or read from its file, when it is first used.
    """

    def __init__(self, config=None, seed=0, dtype=np.float32):
        c = self.config = config or GPT2Config()
        self.dtype = np.dtype(dtype)
        self.wte = Embedding(0, c.n_embd, dtype)
        self.wpe = Embedding(c.n_positions, c.n_embd, dtype)
        self.h = [Block(c.n_embd, c.n_head, c.dropout, c.layer_norm_epsilon, dtype)
                  for _ in range(c.n_layer)]
        self.ln_f = LayerNorm(c.n_embd, c.layer_norm_epsilon, dtype)
        tokens = c.vocab_size, c.n_embd
        if seed is None:
            self.wte.weight = Later(lambda: np.zeros(tokens, dtype))
            return
        # Not with self, which would keep the trunk in a circle after its last use.
        self.wte.weight = Later(lambda: _initial("wte.weight", tokens, seed, 0.02, dtype))

        def draw(piece):
            name, p = piece
            std = 0.02 / math.sqrt(2 * c.n_layer) if "c_proj" in name else 0.02
            p.data = _initial(name, p.data.shape, seed, std, dtype)
        shared(draw, [(name, p) for name, p in self.named_parameters()
                      if not isinstance(p, Later) and p.data.ndim == 2])

    @classmethod
    def from_pretrained(cls, name, dtype=np.float32, dropout=None):
        """A trunk from its weights' name or path.

        name is one in ``weights/`` or in the user's cache folder (what ``minifpt convert``
        wrote), the path of an ``.npz`` weight file, or what Transformers saved: a folder with
        ``config.json`` and ``model.safetensors``, its shards or ``pytorch_model.bin``, or
        such a file.  ``dropout`` overrides the file's.  Raises ``FileNotFoundError`` for an
        unknown name, ``ValueError`` for a file that does not fit, naming parameter and shapes.
        """
        path = weights.find(name)
        config, arrays = weights.load(path, dropout)
        with closing(arrays):
            shape = config_of(config, path)
            trunk = cls(shape, seed=None, dtype=dtype)

            def read(piece):
                tensor, y = piece
                if y is None:
                    tensor.hold()
                else:
                    fill(y, tensor.blocks())
            pieces = []
            for key, p in trunk.named_parameters():
                tensor, later = arrays.tensor(key), isinstance(p, Later)
                want = (shape.vocab_size, shape.n_embd) if later else p.data.shape
                if tensor.shape != want:
                    raise ValueError(f"{path}: '{key}' has shape {tensor.shape}, "
                                     f"the model wants {want}")
                if later:
                    p.make = partial(as_array, tensor, dtype)
                pieces.append((tensor, None if later else p.data))
                if isinstance(tensor, weights.Held):
                    read(pieces.pop())                    # so that there is one at a time
            pieces.sort(key=lambda piece: -math.prod(piece[0].shape))    # fair shares
            shared(read, pieces)
        return trunk

    def save(self, path, dtype=np.float16, **provenance):
        """Write the weights with their config and provenance as an ``.npz``."""
        weights.save(path, asdict(self.config) | provenance,
                     ((name, p.data) for name, p in self.named_parameters()), dtype)

    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C), embeddings before positions are added -> (B, T, C), after ln_f.

        With ``last``, (B, last, C): the last block computes those tokens only, as keys and
        values all of them.  ``past``, a ``fast.KeyValues`` for each block, holds the tokens
        before these and takes these in: for inference, with :meth:`all_frozen`.
        """
        c = self.config
        if x.ndim != 3 or x.shape[2] != c.n_embd:
            raise ValueError(f"GPT2: x has shape {x.shape}, expected (B, T, {c.n_embd})")
        start = past[0].n if past else 0
        end = start + x.shape[1]
        if end > c.n_positions:
            raise ValueError(f"GPT2: {end} tokens, the trunk has {c.n_positions} positions")
        x = x.astype(self.dtype, copy=False) + self.wpe.weight.data[start:end]
        x, mask = F.dropout(x, c.dropout if train else 0.0, rng)
        need = need_dx, self.wpe.weight.trainable
        runs_back = any(need)
        caches = []
        for block, its_past in zip(self.h, past or [None] * len(self.h), strict=True):
            x, cache = block.forward(x, train, rng, runs_back, its_past,
                                     last if block is self.h[-1] else None)
            runs_back = cache is not None
            caches.append(cache)
        y, c_ln_f = self.ln_f.forward(x, runs_back)
        if c_ln_f is None:
            return y, None
        return y, (mask if any(need) else None, need, caches, c_ln_f)

    def backward(self, dy, cache):
        """dy as forward's y -> dx (B, T, C) or None; stops at the lowest trainable parameter."""
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

    def generate(self, ids, n_tokens, temperature=1.0, top_k=None, seed=0):
        """Continue a text: ids (T,) or (B, T) integers -> (T + n_tokens,) or (B, T + n_tokens).

        Each token is drawn from ``softmax(logits / temperature)``; with temperature 0 it is
        the likeliest.  ``top_k`` draws among the k likeliest only.  ``seed`` is a number or a
        ``np.random.Generator``.

        The trunk sees the last ``n_positions`` tokens at most.  When they are full it starts
        again from the newer half of them, so that the keys and values it keeps serve for
        ``n_positions / 2`` tokens more.  Raises ``ValueError`` for bad arguments.
        """
        ids = token_ids(ids, self.config)
        if type(n_tokens) is bool or not isinstance(n_tokens, (int, np.integer)) or n_tokens < 0:
            raise ValueError(f"generate: n_tokens is {n_tokens}, expected an integer, at least 0")
        if not 0 <= temperature < math.inf:
            raise ValueError(f"generate: temperature is {temperature}, expected 0 or more")
        if top_k is not None and top_k < 1:
            raise ValueError(f"generate: top_k is {top_k}, expected at least 1, or None for all")
        rng = np.random.default_rng(seed)
        N, T = self.config.n_positions, ids.shape[-1]
        text = np.empty((math.prod(ids.shape[:-1]), T + n_tokens), np.int64)
        text[:, :T] = ids
        start, past = max(0, T - N), None
        with self.all_frozen():
            for t in range(T, T + n_tokens):              # text[:, start:t] is what is seen
                if t - start > N:
                    start, past = t - max(1, N // 2), None
                if past is None:
                    past = [KeyValues(min(N, T + n_tokens - start)) for _ in self.h]
                x, _ = self.wte.forward(text[:, start + past[0].n:t])
                y, _ = self.forward(x, need_dx=False, past=past)
                logits = y[:, -1] @ self.wte.weight.data.T                    # (B, V)
                text[:, t] = sample(logits, temperature, top_k, rng)
        return text.reshape(*ids.shape[:-1], -1)


def _initial(name, shape, seed, std, dtype):
    w = standard_normal(shape, seed, name).astype(dtype, copy=False)
    w *= std
    return w


def standard_normal(shape, seed, name):
    """Normal numbers, float32, from a generator of their own for each seed and name."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.standard_normal(shape, np.float32)


def token_ids(ids, config):
    """ids as an integer array, (T,) or (B, T), at least one token, each in the vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim not in (1, 2) or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"token ids have shape {ids.shape} and dtype {ids.dtype}, expected "
                         "integers (T,) or (B, T), at least one")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise ValueError(f"token ids run from {ids.min()} to {ids.max()}, the vocabulary from 0 "
                         f"to {config.vocab_size - 1}")
    return ids


def sample(logits, temperature, top_k, rng):
    """One token a row: logits (B, V) -> (B,) integers; see :meth:`GPT2.generate`."""
    if temperature == 0:
        return logits.argmax(axis=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, axis=-1)[:, -top_k, None]
        logits = np.where(logits >= least, logits, -math.inf)
    # The largest is taken away first, so that whatever overflows does so to -inf.
    with np.errstate(over="ignore"):
        p, _ = F.softmax((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    # The sum runs over the whole vocabulary: in float64, or the rare tokens would be lost.
    total = p.cumsum(axis=-1, dtype=np.float64)
    u = rng.random((len(p), 1)) * total[:, -1:]
    return (total <= u).sum(axis=-1)


def perplexity(trunk, ids, stride=None, progress=False):
    """How well the language model predicts a text: ids (T,), at least two -> a dict.

    Each token but the first is scored once, in windows of ``n_positions``: the first window
    scores all of its tokens, each later one begins ``stride`` further (half a window when not
    given) and scores its last ``stride``, so that these see ``n_positions - stride`` tokens
    before them at least.  A smaller stride costs more and gives each token more to go by.

    The dict holds ``tokens`` (how many were scored), ``nats_per_token`` (the mean of
    ``-log p``), ``perplexity`` (its exponential) and ``bits_per_token``, which for a byte
    model is bits per byte.  Raises ``ValueError`` for bad arguments.
    """
    from tqdm import tqdm
    ids = token_ids(ids, trunk.config)
    N, last = trunk.config.n_positions, len(ids) - 1      # the last token is no input
    stride = max(1, N // 2) if stride is None else stride
    if ids.ndim != 1 or last < 1:
        raise ValueError(f"perplexity: ids has shape {ids.shape}, expected (T,), T at least 2")
    if not 1 <= stride <= N:
        raise ValueError(f"perplexity: stride is {stride}, expected 1 to {N}, a whole window")
    starts = range(0, max(1, last - N + stride), stride)
    # The windows between the first and the last have one length and run several at once.
    inner, batch = starts[1:-1], max(1, 4096 // N)
    groups = [starts[:1], *(inner[i:i + batch] for i in range(0, len(inner), batch))]
    groups += [starts[-1:]] if len(starts) > 1 else []
    total = 0.0
    table = trunk.wte.weight.data
    with trunk.all_frozen():
        for group in tqdm(groups, desc="perplexity", unit="batch", delay=2, disable=not progress):
            T = min(N, last - group[0])
            skip = 0 if group[0] == 0 else N - stride     # scored by the window before
            at = np.array(group)[:, None] + np.arange(T)  # (B, T)
            y, _ = trunk.forward(trunk.wte.forward(ids[at])[0], need_dx=False)
            y = y[:, skip:].reshape(-1, y.shape[-1])
            targets = ids[at + 1][:, skip:].reshape(-1)
            rows = max(1, (1 << 22) // len(table))        # never all logits at once
            for i in range(0, len(y), rows):
                loss, _ = F.cross_entropy(y[i:i + rows] @ table.T, targets[i:i + rows])
                total += float(loss) * len(y[i:i + rows])
    nats = total / last
    return {"tokens": last, "nats_per_token": nats, "bits_per_token": nats / math.log(2),
            "perplexity": math.exp(nats) if nats < 700 else math.inf}


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
        dy, _, _ = F.linear_backward(dlogits, (y, w), (c_trunk is not None, False, False))
        if c_wte is not None:                             # dw.T, as the table lies in memory
            C, V = w.shape
            self.trunk.wte.weight.add_grad(dlogits.reshape(-1, V).T @ y.reshape(-1, C))
        if c_trunk is not None:
            dx = self.trunk.backward(dy, c_trunk)
            if c_wte is not None:
                self.trunk.wte.backward(dx, c_wte)
