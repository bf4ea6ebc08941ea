"""The way through a trunk (embeddings to hidden states), GPT-2, and the language model."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from . import checks, layers
from .fast import ops
from .files import export, weights
from .machine import single_threaded_blas
from .progress import progress_bar


class Trunk(layers.Layer):
    """The base class of trunks: layers below the blocks, the blocks ``h``, and layers above them.

    A subclass has a ``config_type``, and a method ``build(config, dtype)`` that makes the layers.
    ``below`` and ``above`` are the names of the layers below and above the blocks, in their order.

    Random weights are GPT-2's: matrices are normal with standard deviation ``initializer_range``
    (see :class:`GPT2Config`), biases 0, scales 1.  Each parameter has its own generator, seeded by
    ``seed`` and the parameter's name.  With ``seed=None`` the matrices are 0 and take no memory
    until they are written.
    """

    below, above = (), ("ln_f",)
    dropout_below = True                                  # whether dropout acts below the blocks

    def __init__(self, config: Any = None, seed: int | None = 0, dtype: Any = np.float32):
        name, kind = type(self).__name__, self.config_type
        c = self.config = kind() if config is None else config
        if not isinstance(c, kind):
            raise ValueError(f"{name}: the config is {checks.brief(c)}, expected an instance of "
                             f"{kind.__name__}; minifpt.trunks.get loads weights by their name")
        self.dtype = checks.dtype(name, dtype)
        self.build(c, dtype)
        self.draw(seed)

    def draw(self, seed):
        """Fill the matrices with random numbers."""
        layers.draw_all(self, seed, self.config)

    def lowest_block(self, need_dx):
        """Return the number of the lowest block that runs back.  ``n_layer``: no block does; -1:
        all do, and the layers below them, too."""
        if need_dx or any(getattr(self, name).learns() for name in self.below):
            return -1
        return next((i for i, block in enumerate(self.h) if block.learns()), len(self.h))

    @single_threaded_blas
    def forward(self, x, train=False, rng=None, need_dx=True, past=None, last=None):
        """x (B, T, C), embeddings before positions are added -> y (B, T, C), after ``above``.

        ``need_dx=False`` says that nothing below the trunk learns.  Then no cache is kept, and
        nothing runs back, below the lowest block that learns.

        With ``last``, y is (B, last, C): all tokens supply keys and values to the last block, but
        only the last ones get an output.  ``past``, a ``layers.KVCache`` for each block, holds
        the keys and values of the tokens before these; those of these tokens are appended.  It is
        for inference, with :meth:`all_frozen`.
        """
        kind = type(self).__name__
        start = layers.check_tokens(kind, self.config, x, past, last)     # tokens before these
        p = checks.active_dropout(kind, self.config.dropout, train, rng)
        lowest, reads = self.lowest_block(need_dx), self.reads(past, last)
        x, cache = self.enter(x, start, p, rng)           # in GPT-2: x + wpe, then dropout
        for i, block in enumerate(self.h):
            x, block_cache = block.forward(x, train, rng, **reads[i])
            cache["h"].append(block_cache if i >= lowest else None)
        for name in self.above:                           # in GPT-2: ln_f
            x, cache[name] = getattr(self, name).forward(x)
        cache |= {"lowest": lowest, "shape": x.shape}     # backward compares the shape of dy
        learns = lowest < len(self.h) or any(getattr(self, name).learns() for name in self.above)
        return x, (cache if past is None and learns else None)

    def enter(self, x, start, p, rng):
        """Run the layers below the blocks, and dropout: x (B, T, C) -> (B, T, C), and caches."""
        x, cache = x.astype(self.dtype, copy=False), {"h": []}
        for name in self.below:                           # only positions ask where x stands
            layer = getattr(self, name)
            x, cache[name] = layer.forward(x, start) if name == "wpe" else layer.forward(x)
        if self.dropout_below:
            x, cache["dropout"] = ops().dropout(x, p, rng)
        return x, cache

    def reads(self, past, last):
        """Return for each block the options of its forward pass, a dict."""
        options = [{"past": kv} for kv in past] if past else [{} for _ in self.h]
        if last is not None:
            options[-1]["last"] = last                    # of all blocks only the last one
        return options

    @single_threaded_blas
    def backward(self, dy, cache):
        """dy with the shape of y -> dx (B, T, C), or ``None`` if nothing below the blocks
        learns."""
        dy = checks.incoming_gradient(type(self).__name__, dy, cache, self.dtype)
        lowest = cache["lowest"]
        for name in reversed(self.above):
            dy = getattr(self, name).backward(dy, cache[name])
        for i in reversed(range(max(lowest, 0), len(self.h))):
            dy = self.h[i].backward(dy, cache["h"][i])
        if lowest >= 0:
            return None
        if "dropout" in cache:
            dy = ops().dropout_backward(dy, cache["dropout"])
        for name in reversed(self.below):
            dy = getattr(self, name).backward(dy, cache[name])
        return dy


@dataclass(frozen=True)
class GPT2Config:
    """The sizes and options of a GPT-2, with Hugging Face's names; the defaults are GPT-2 base.

    dropout                one probability for embeddings, attention and residual branches.
    activation_function    one of ``layers.ACTIVATIONS``.
    causal                 whether a token reads only itself and the tokens before it;
                           otherwise it reads all tokens, as in an encoder.
    initializer_range      standard deviation of random weights.
    scaled_residual_init   whether this is divided by ``sqrt(2 n_layer)`` for the matrices that
                           write into the residual stream, as in OpenAI's GPT-2; not so in
                           Transformers 4.1.1, which the paper used.

    Raises ``ValueError`` for values out of range.
    """

    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_positions: int = 1024
    vocab_size: int = 50257
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    causal: bool = True
    initializer_range: float = 0.02
    scaled_residual_init: bool = True

    def __post_init__(self):
        checks.fields(self, sizes=("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"),
                      positive=("layer_norm_epsilon", "initializer_range"),
                      flags=("causal", "scaled_residual_init"))
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT2Config: n_embd {self.n_embd} is not divisible by "
                             f"n_head {self.n_head}")
        checks.one_of("GPT2Config", "activation_function", self.activation_function,
                      layers.ACTIVATIONS)


# Shapes by name: OpenAI's four, and the shape of the weights that come with minifpt.
SHAPES = {"gpt2": dict(n_layer=12, n_head=12, n_embd=768),
          "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),
          "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),
          "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),
          "minigpt": dict(n_layer=6, n_head=4, n_embd=128, n_positions=256, vocab_size=256)}


class GPT2(Trunk):
    """The trunk: it adds positions to embeddings, runs the blocks and the last layer norm."""

    config_type, below = GPT2Config, ("wpe",)
    from_pretrained = classmethod(weights.load)           # (name, dtype, dropout) -> a model
    save = export.save                                    # (path, dtype, force, **provenance)

    def build(self, config, dtype):
        """Make the layers."""
        c, norm = config, partial(layers.LayerNorm, config.n_embd, config.layer_norm_epsilon, dtype)
        self.wpe = layers.Positions(c.n_positions, c.n_embd, dtype)
        self.h = [layers.Block(
            norm(), layers.Attention(c.n_embd, c.n_head, c.dropout, dtype, c.causal),
            norm(), layers.MLP(c.n_embd, c.dropout, dtype, c.activation_function))
            for _ in range(c.n_layer)]
        self.ln_f = norm()

    def add_positions(self, n, seed=0):
        """Append rows to the positional embeddings up to ``n`` positions, drawn as for a new trunk.

        The new rows depend on ``seed`` and ``n`` alone.  A trunk with ``n`` positions or more
        stays as it is."""
        c, old = self.config, self.wpe.weight.data
        seed = checks.seed("add_positions", seed)
        if checks.whole("add_positions", "n", n) > len(old):
            self.config = replace(c, n_positions=n)
            self.wpe.weight.data = np.empty((n, c.n_embd), self.dtype)
            layers.draw_weights("wpe.weight", self.wpe.weight, seed, c)
            self.wpe.weight.data[:len(old)] = old


class LanguageModel(layers.Layer):
    """GPT-2 as a language model: token embedding, trunk, and ``lm_head``, which scores by
    the same table: ``logits = hidden @ wte.weight.T``.

    trunk   a :class:`GPT2` or another trunk, or a :class:`GPT2Config`, from which a GPT-2 is built
            with ``seed`` and ``dtype``.
    seed    seed of the table, too; ``None`` leaves it 0.
    """

    config_type, trunk_type = GPT2Config, GPT2

    def __init__(self, trunk=None, seed=0, dtype=np.float32):
        is_trunk = isinstance(trunk, layers.Layer)
        self.trunk = trunk if is_trunk else self.trunk_type(trunk, seed, dtype)
        self.config, self.dtype = self.trunk.config, self.trunk.dtype
        self.wte = layers.Embedding(self.config.vocab_size, self.config.n_embd, self.dtype)
        self.lm_head = layers.Unembedding(self.wte.weight)
        layers.draw_all(self, seed, self.config)

    from_pretrained = classmethod(weights.load)           # (name, dtype, dropout) -> a model
    save = export.save                                    # (path, dtype, force, **provenance)

    @single_threaded_blas
    def forward(self, ids, train=False, rng=None):
        """ids (B, T) integers -> logits (B, T, V)."""
        if checks.array("LanguageModel", "ids", ids, "iu").ndim != 2:
            raise ValueError(f"LanguageModel: ids has shape {ids.shape}, expected (B, T)")
        x, wte = self.wte.forward(ids)
        y, trunk = self.trunk.forward(x, train, rng, self.wte.learns())
        logits, lm_head = self.lm_head.forward(y)
        if trunk is None and not self.lm_head.learns():
            return logits, None
        return logits, dict(wte=wte, trunk=trunk, lm_head=lm_head, shape=logits.shape)

    @single_threaded_blas
    def backward(self, dlogits, cache):
        """dlogits (B, T, V) -> None; the gradients of the table's two uses add up."""
        dlogits = checks.incoming_gradient("LanguageModel", dlogits, cache, self.dtype)
        dy = self.lm_head.backward(dlogits, cache["lm_head"])
        if cache["trunk"] is None:
            return
        dx = self.trunk.backward(dy, cache["trunk"])
        if dx is not None:
            self.wte.backward(dx, cache["wte"])

    def logits(self, ids):
        """Return the scores of each next token: ids (B, T) integers -> (B, T, V)."""
        with self.all_frozen():
            return self.forward(token_ids(ids, self.config))[0]

    @single_threaded_blas
    def generate(self, ids, n_tokens, temperature=1.0, top_k=None, seed=0, top_p=None,
                 stop=None):
        """Continue a text: ids (T,) or (B, T) integers -> (T + n_tokens,) or (B, T + n_tokens).

        Each token is drawn from ``softmax(logits / temperature)``; temperature 0 takes the most
        likely token.  With ``top_k`` only the k most likely tokens can be drawn, with ``top_p``
        the fewest most likely tokens that together have this probability; as likely ones stay,
        too.  ``seed`` is a number or a ``np.random.Generator``.

        The text ends earlier, behind ``stop``: a token, some tokens in a row, or a function of the
        new tokens so far that returns whether to end.  ``stop`` in the prompt does not count.
        Several texts go on until each has had its ``stop``.

        The trunk reads at most the last ``n_positions`` tokens.  When these are used up, it
        starts again with the newer half, and the keys and values of that half serve for the next
        ``n_positions / 2`` tokens.  Raises ``ValueError`` for bad arguments.
        """
        ids = token_ids(ids, self.config)
        if not self.config.causal:
            raise ValueError("generate: the model is not causal, so it cannot predict a next token")
        n_tokens = checks.whole("generate", "n_tokens", n_tokens, 0)
        temperature = checks.number("generate", "temperature", temperature, zero=True)
        if temperature <= 1e-30:                          # smaller ones may be 0 in float32
            temperature = 0.0
        top_k = None if top_k is None else checks.whole("generate", "top_k", top_k)
        top_p = 1.0 if top_p is None else checks.number("generate", "top_p", top_p, most=1)
        rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(
            checks.seed("generate", seed))
        is_end, T = end_test(stop, self.config), ids.shape[-1]
        text = np.empty((math.prod(ids.shape[:-1]), T + n_tokens), np.int64)
        text[:, :T] = ids
        draw = partial(sample, temperature=temperature, top_k=top_k, rng=rng, top_p=top_p)
        end, ended = T, np.zeros(len(text), bool)
        with self.all_frozen():
            for end in self.write(text, T, draw):
                ended |= [is_end(row[T:end]) for row in text]
                if ended.all():
                    break
        return text[:, :end].reshape(*ids.shape[:-1], -1)

    def write(self, text, T, draw):
        """Write ``text[:, T:]``, a token for each text (B, room) after the other: yield after each
        how many tokens there are now.  ``draw`` returns the next tokens (B,) for logits (B, V)."""
        N, room = self.trunk.config.n_positions, text.shape[1]
        start, past = max(0, T - N), None                 # the trunk reads text[:, start:t]
        for t in range(T, room):
            if t - start > N:                             # go on with the newer half
                start, past = t - max(1, N // 2), None
            if past is None:
                past = [layers.KVCache(min(N, room - start)) for _ in self.trunk.h]
            new = text[:, start + past[0].n:t]            # past has keys and values of the others
            x, _ = self.wte.forward(new)
            y, _ = self.trunk.forward(x, need_dx=False, past=past, last=1)
            logits, _ = self.lm_head.forward(y[:, -1])    # (B, V)
            text[:, t] = draw(logits)
            yield t + 1

    @single_threaded_blas
    def perplexity(self, ids, stride=None, progress=False):
        """Measure how well the model predicts a text: ids (T,), at least two -> a dict.

        Each token but the first is scored once, in windows of ``n_positions`` tokens.  The first
        window scores all its tokens.  Each later window begins ``stride`` tokens further (by
        default half a window) and scores its last ``stride`` tokens, each with at least
        ``n_positions - stride`` tokens of context.  A smaller stride gives more context and takes
        more time.

        The dict holds ``tokens`` (the number of scored tokens), ``nats_per_token`` (the mean of
        ``-log p``), ``perplexity`` (its exponential) and ``bits_per_token``, which for a byte
        model is bits per byte.  Raises ``ValueError`` for bad arguments.
        """
        ids = token_ids(ids, self.config)
        if not self.config.causal:
            raise ValueError("perplexity: the model is not causal: it reads the tokens that it "
                             "should predict")
        N, last = self.trunk.config.n_positions, len(ids) - 1     # the last token is only a target
        stride = max(1, N // 2) if stride is None else checks.whole(
            "perplexity", "stride", stride, 1, N)
        if ids.ndim != 1 or last < 1:
            raise ValueError(f"perplexity: ids has shape {ids.shape}, expected (T,), T at least 2")
        starts = range(0, max(1, last - N + stride), stride)
        # All windows but the last have the same length, and several of them run at once.
        full, batch = starts[:-1], max(1, 4096 // N)
        groups = [*(full[i:i + batch] for i in range(0, len(full), batch)), starts[-1:]]
        total = 0.0
        with self.all_frozen():
            for group in progress_bar(groups, desc="perplexity", unit="batch", delay=2,
                              progress=progress):
                first, t = np.array(group)[:, None], np.arange(min(N, last - group[0]))
                fresh = (first == 0) | (t >= N - stride)  # (B, T): not yet scored
                y, _ = self.trunk.forward(self.wte.forward(ids[first + t])[0], need_dx=False)
                y, targets = y[fresh], ids[first + t + 1][fresh]
                rows = max(1, (1 << 22) // self.config.vocab_size)     # all logits would be large
                for i in range(0, len(y), rows):
                    logits, _ = self.lm_head.forward(y[i:i + rows])
                    loss, _ = ops().cross_entropy(logits, targets[i:i + rows])
                    total += float(loss) * len(logits)
        nats = total / last
        return {"tokens": last, "nats_per_token": nats, "bits_per_token": nats / math.log(2),
                "perplexity": math.exp(nats) if nats < 700 else math.inf}


def token_ids(ids, config):
    """Return ids as an integer array, (T,) or (B, T), not empty and within the vocabulary."""
    ids = np.asarray(ids)
    if ids.ndim not in (1, 2) or ids.size == 0 or ids.dtype.kind not in "iu":
        raise ValueError(f"token ids have shape {ids.shape} and dtype {ids.dtype}, expected "
                         "integers (T,) or (B, T), at least one")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise ValueError(f"token ids run from {ids.min()} to {ids.max()}, the vocabulary from 0 "
                         f"to {config.vocab_size - 1}")
    return ids


def end_test(stop, config):
    """Return a function of new tokens that says whether a text ends behind them, from the ``stop``
    of :meth:`LanguageModel.generate`."""
    if stop is None:
        return lambda tokens: False
    if callable(stop):
        return lambda tokens: bool(stop(tokens))
    try:
        ids = token_ids(np.ravel(stop), config)
    except ValueError as e:
        raise ValueError(f"generate: stop is {checks.brief(stop)}: {e}") from None
    return lambda tokens: np.array_equal(tokens[-len(ids):], ids)


def sample(logits, temperature, top_k, rng, top_p=1.0):
    """Draw a token for each row: logits (B, V) -> (B,) integers, see
    :meth:`LanguageModel.generate`."""
    if not np.isfinite(logits.max(axis=-1)).all():
        raise ValueError("generate: the largest logit is not finite: the weights may be damaged")
    if temperature == 0:
        return logits.argmax(axis=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, axis=-1)[:, -top_k, None]
        logits = np.where(logits >= least, logits, -math.inf)
    # The largest is subtracted first, so that an overflow can only give -inf.
    with np.errstate(over="ignore"):
        p, _ = ops().softmax((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    if top_p < 1:
        falling = -np.sort(-p, axis=-1)                   # the most likely token always stays
        likelier = falling.cumsum(axis=-1, dtype=np.float64) - falling
        p = np.where(p >= np.where(likelier < top_p, falling, 1).min(-1, keepdims=True), p, 0)
    # In float64: a float32 sum over the whole vocabulary would lose the rare tokens.
    total = p.cumsum(axis=-1, dtype=np.float64)
    u = rng.random((len(p), 1)) * total[:, -1:]
    return (total <= u).sum(axis=-1)
