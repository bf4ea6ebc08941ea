"""How Transformers writes a GPT-2, which :mod:`minifpt.gpt2` computes."""

from ..files.families import SIZES, Family
from ..gpt2 import GPT2, GPT2Config, LanguageModel


def other_fields(config):
    """Return the fields of ``config.json`` that only Transformers reads.  Raises ``ValueError`` for
    a model without a causal mask, which Transformers' always has."""
    if not config.causal:
        raise ValueError("save: the model is not causal, and Transformers' GPT-2 is: expected "
                         "a path that ends in .npz")
    end = 50256 if config.vocab_size == 50257 else None   # <|endoftext|>
    return {"tie_word_embeddings": True, "n_ctx": config.n_positions, "bos_token_id": end,
            "eos_token_id": end}


# ``reorder_and_upcast_attn`` only changes rounding and is ignored.
FAMILY = Family(
    "GPT-2", "gpt2", GPT2Config, GPT2, LanguageModel, "GPT2Model",
    name="", prefix="transformer.", block="h",
    settings={"tied": "tie_word_embeddings"} | {name: name for name in (
        "n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "layer_norm_epsilon",
        "activation_function", "initializer_range")},
    constants={"first_row": 0},
    old={theirs: ours for ours, theirs in SIZES.items() if ours not in ("n_inner", "vocab_size")},
    defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
              "initializer_range": 0.02, "tie_word_embeddings": True,
              "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    outer={name: (name,) for name in ("wte", "wpe", "ln_f", "lm_head")},
    parts=lambda settings: {name: (name,) for name in (
        "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")},
    fixed=lambda settings: {
        "n_inner": (None, 4 * settings["n_embd"]), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
        "pruned_heads": (None, {})},
    others=other_fields, twin=lambda config: "gpt2", is_transposed=False, head="LMHeadModel")
