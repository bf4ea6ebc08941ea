"""BERT (Devlin et al. 2018, arXiv 1810.04805) as a trunk: an encoder with layer norms after the
residual connections, read from a checkpoint that Transformers saved."""

from pathlib import Path

import numpy as np

from .. import checks, layers
from .. import fast as ops
from ..checks import brief
from ..files import huggingface, one_line
from ..files.weights import config_of
from ..gpt2 import GPT2Config
from ..machine import single_threaded_blas

# {our name: Hugging Face's names}.  Their linear layers hold the transposed weight.
POSITIONS = "embeddings.position_embeddings"
BERTS = {"wpe": [POSITIONS, "embeddings.token_type_embeddings"], "ln": ["embeddings.LayerNorm"],
         "attn.c_attn": [f"attention.self.{part}" for part in ("query", "key", "value")],
         "attn.c_proj": ["attention.output.dense"], "ln_1": ["attention.output.LayerNorm"],
         "mlp.c_fc": ["intermediate.dense"], "mlp.c_proj": ["output.dense"],
         "ln_2": ["output.LayerNorm"]}
SETTINGS = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
            "n_embd": "hidden_size", "n_positions": "max_position_embeddings",
            "vocab_size": "vocab_size", "layer_norm_epsilon": "layer_norm_eps",
            "activation_function": "hidden_act"}


class PostNormBlock(layers.Block):
    """A block with layer norm after each part, on the residual stream itself:
    ``x = ln_1(x + attn(x))``, ``x = ln_2(x + mlp(x))``."""

    def forward(self, x, train=False, rng=None):
        """x (B, T, C) -> y (B, T, C)."""
        a, attn = self.attn.forward(x, train, rng)
        x, _ = ops.residual(x, a)
        x, ln_1 = self.ln_1.forward(x)
        m, mlp = self.mlp.forward(x, train, rng)
        x, _ = ops.residual(x, m)
        y, ln_2 = self.ln_2.forward(x)
        return y, dict(attn=attn, ln_1=ln_1, mlp=mlp, ln_2=ln_2)

    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C)."""
        dy = self.ln_2.backward(dy, cache["ln_2"])
        dm = self.mlp.backward(dy, cache["mlp"])
        dy = self.ln_1.backward(ops.residual_backward(dy, dm), cache["ln_1"])
        da = self.attn.backward(dy, cache["attn"])
        return ops.residual_backward(dy, da)


class BERT(layers.Layer):
    """The trunk: it adds positions, then runs a layer norm and the blocks.

    Every token has the first of BERT's two token types.  That type's vector is the same for all
    tokens, so it is added to the positions.
    """

    def __init__(self, config, dtype=np.float32):
        c = self.config = config
        self.dtype = np.dtype(dtype)
        self.wpe = layers.Positions(c.n_positions, c.n_embd, dtype)
        self.ln = layers.LayerNorm(c.n_embd, c.layer_norm_epsilon, dtype)
        self.h = [PostNormBlock(c.n_embd, c.n_head, c.dropout, c.layer_norm_epsilon, dtype,
                                c.causal, c.activation_function) for _ in range(c.n_layer)]

    @single_threaded_blas
    def forward(self, x, train=False, rng=None, need_dx=True):
        """x (B, T, C), embeddings before positions are added -> y (B, T, C); ``need_dx`` is that
        of :meth:`minifpt.GPT2.forward`."""
        c = self.config
        layers.tokens_before("BERT", c, x)
        p, cache = checks.dropout("BERT", c.dropout, train, rng), {}
        x, cache["wpe"] = self.wpe.forward(x.astype(self.dtype, copy=False))
        x, cache["ln"] = self.ln.forward(x)
        x, cache["dropout"] = ops.dropout(x, p, rng)
        keep = need_dx or self.wpe.learns() or self.ln.learns()
        if not keep:
            cache["wpe"] = cache["ln"] = cache["dropout"] = None
        x, cache["h"], keep = layers.blocks_forward(self.h, x, keep, train, rng)
        cache["shape"] = x.shape
        return x, cache if keep else None

    @single_threaded_blas
    def backward(self, dy, cache):
        """dy (B, T, C) -> dx (B, T, C), or ``None`` if nothing from ln down learns."""
        dy = checks.backward("BERT", dy, cache, self.dtype)
        dy = layers.blocks_backward(self.h, dy, cache["h"])
        if cache["wpe"] is None:
            return None
        dy = self.ln.backward(ops.dropout_backward(dy, cache["dropout"]), cache["ln"])
        return self.wpe.backward(dy, cache["wpe"])

    @classmethod
    def from_pretrained(cls, path, dtype=np.float32, dropout=None):
        """Return the encoder of a BERT that Transformers saved, with or without a head, from its
        folder or file.  Raises ``FileNotFoundError`` or ``ValueError``."""
        path = huggingface.tensor_file(Path(path))
        config = read_config(path, dropout)
        tensors = {name.removeprefix("bert.").replace("gamma", "weight").replace("beta", "bias"): t
                   for name, t in huggingface.read_tensors(path).items()}
        shape, table = (config.n_positions, config.n_embd), tensors.get(f"{POSITIONS}.weight")
        blocks = {name.split(".")[2] for name in tensors if name.startswith("encoder.layer.")}
        if table is None or table.shape != shape or len(blocks) != config.n_layer:
            raise ValueError(f"{path}: does not hold the {config.n_layer} blocks and the "
                             f"{POSITIONS} {shape} of its config")
        model = cls(config, dtype)
        for name, p in model.named_parameters():
            try:
                array = of_bert(name, tensors)
                if array.shape != p.data.shape:
                    raise ValueError(f"its shape is {array.shape}")
            except (KeyError, IndexError, ValueError) as e:
                raise ValueError(f"{path}: holds no {name} of shape {p.data.shape} "
                                 f"({one_line(e)})") from None
            p.data[...] = array
            if not np.isfinite(p.data).all():
                raise ValueError(f"{path}: {name} holds a NaN or an infinity")
        return model


def of_bert(name, tensors):
    """Return the array of our parameter ``name``, from BERT's tensors."""
    layer, _, kind = name.rpartition(".")
    prefix, layer = ("", layer) if layer in BERTS else (
        f"encoder.layer.{layer.split('.')[1]}.", layer.split(".", 2)[2])
    parts = [tensors[f"{prefix}{theirs}.{kind}"].read() for theirs in BERTS[layer]]
    if layer == "wpe":
        return parts[0] + parts[1][0]                     # positions and the first token type
    return np.concatenate(parts).T                        # .T leaves a bias unchanged


def is_bert(path):
    """Return whether a path is a checkpoint of a BERT that Transformers saved."""
    return (huggingface.is_checkpoint(path)
            and huggingface.settings_of(path)[0].get("model_type") == "bert")


def read_config(path, dropout=None):
    """Return a BERT's config as a :class:`minifpt.GPT2Config`; ``dropout`` replaces both of the
    file's.  Raises ``ValueError`` for settings that are not implemented."""
    raw, path = huggingface.settings_of(path)
    drop, other = (raw.get(f"{part}_prob", 0.1) for part in ("hidden_dropout",
                                                             "attention_probs_dropout"))
    if dropout is None and drop != other:
        raise ValueError(f"{path}: dropout is {brief(drop)}, and {brief(other)} in attention: "
                         "minifpt has one for both: pass dropout=")
    config = config_of({name: raw.get(theirs) for name, theirs in SETTINGS.items()} | {
        "dropout": drop if dropout is None else dropout, "causal": False}, path, GPT2Config)
    for key, built in (("model_type", "bert"), ("intermediate_size", 4 * config.n_embd),
                       ("position_embedding_type", "absolute"), ("is_decoder", False)):
        if raw.get(key, built) != built:
            raise ValueError(f"{path}: {key} is {brief(raw[key])}, minifpt builds {built}")
    return config
