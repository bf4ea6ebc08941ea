"""Makes the golden files beside it: small models that Transformers saved, and what it computes.

    python tests/golden/make.py [FOLDER ...]

makes all of them, or those that are named; it needs PyTorch and Transformers.  Each folder is
as ``save_pretrained`` writes it, and ``expected.npz`` in it holds what Transformers computes in
float64.  Of a GPT-2: ``ids`` (B, T), ``hidden`` (after ln_f), ``logits``, ``loss`` (the mean
cross-entropy of each next token) and the loss's gradient for each parameter, ``grad.NAME``.  Of
another family, in ``families``: embeddings ``x`` (B, T, C), and their ``hidden``.

``run`` is the folder of a run, with the logits of its model.  It stays as it was made, and is made
anew only for a version that refuses older runs and says so:

    minifpt train bit-xor --n 3 --model random:1x1x4 --steps 4 --batch-size 2 --eval-every 2
        --test-examples 8 --out tests/golden/run
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent
SHAPE = dict(n_layer=2, n_head=2, n_embd=16, n_positions=12, vocab_size=31,
             bos_token_id=None, eos_token_id=None)

# folder: (what differs in the config, the dtype that is saved, what is saved and how)
MODELS = {
    "plain": ({}, torch.float32, lambda m, out: m.save_pretrained(out)),
    "sharded": (dict(n_embd=8, n_head=4, layer_norm_epsilon=1e-3,
                     activation_function="gelu_pytorch_tanh"), torch.float32,
                lambda m, out: m.save_pretrained(out, max_shard_size="4KB")),
    "trunk-bfloat16": (dict(n_embd=8, n_layer=3, n_head=1, resid_pdrop=0.0, embd_pdrop=0.0,
                            attn_pdrop=0.0), torch.bfloat16,
                       lambda m, out: m.transformer.save_pretrained(out)),
    "float16": (dict(n_embd=8, n_inner=32, scale_attn_weights=True), torch.float16,
                lambda m, out: m.save_pretrained(out)),
    "gelu": (dict(n_embd=8, n_layer=1, activation_function="gelu"), torch.float32,
             lambda m, out: m.save_pretrained(out)),
    "relu": (dict(n_embd=8, n_layer=1, activation_function="relu"), torch.float32,
             lambda m, out: m.save_pretrained(out)),
}

SIZES = dict(hidden_size=8, num_attention_heads=2, intermediate_size=12, num_hidden_layers=1,
             max_position_embeddings=12, vocab_size=11)
FAMILIES = {
    "bert": ("BertModel", SIZES), "roberta": ("RobertaModel", SIZES),
    "longformer": ("LongformerModel", SIZES | {"attention_window": 4}),
    "vit": ("ViTModel", SIZES | {"image_size": 12, "patch_size": 4}),
    "t5": ("T5EncoderModel", dict(d_model=8, num_heads=2, d_kv=4, d_ff=12, num_layers=1,
                                  vocab_size=11)),
    "umt5": ("UMT5EncoderModel", dict(d_model=8, num_heads=2, d_kv=4, d_ff=12, num_layers=1,
                                      vocab_size=11)),
    "llama": ("LlamaModel", SIZES | {"num_key_value_heads": 1}),
    "gpt_neox": ("GPTNeoXModel", SIZES | {"rotary_pct": 0.5}),
    "qwen2": ("Qwen2Model", SIZES | {"num_key_value_heads": 1})}


def make_family(folder, kind, options):
    """Write the trunk of another family, in float32, and its hidden states of embeddings."""
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    options = {key: value for key, value in options.items()
               if kind != "ViTModel" or key not in ("vocab_size", "max_position_embeddings")}
    model = cls(cls.config_class(**options, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():                      # no bias 0, no scale 1
            p += 0.3 * torch.randn_like(p)
    model.save_pretrained(folder)
    model.double()
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        if kind == "ViTModel":                            # behind its patches
            hidden = x + model.embeddings.position_embeddings[:, 1:9]
            for layer in model.layers:
                hidden = layer(hidden)
            hidden = model.layernorm(hidden)
        else:
            hidden = model(inputs_embeds=x).last_hidden_state
    np.savez_compressed(folder / "expected.npz", x=x.numpy(), hidden=hidden.numpy())


def make(folder, changes, dtype, save, seed):
    """Write one model and its expected numbers."""
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**SHAPE | changes, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():                      # no bias 0, no scale 1
            p += 0.1 * torch.randn_like(p)
    model.to(dtype)
    save(model, folder)
    for file in folder.glob("generation_config.json"):
        file.unlink()
    model.double()                                        # the saved numbers, in float64
    ids = torch.randint(SHAPE["vocab_size"], (2, SHAPE["n_positions"]))
    hidden = model.transformer(ids).last_hidden_state
    logits = model(ids).logits
    # Transformers' own loss would go through float32.
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    arrays = {f"grad.{name}": p.grad for name, p in model.transformer.named_parameters()}
    arrays |= {"hidden": hidden.detach(), "logits": logits.detach(),
               "loss": loss.detach(), "ids": ids}
    np.savez_compressed(folder / "expected.npz", **{k: a.numpy() for k, a in arrays.items()})


if __name__ == "__main__":
    for number, (name, (changes, dtype, save)) in enumerate(MODELS.items()):
        if name in sys.argv[1:] or not sys.argv[1:]:
            make(HERE / name, changes, dtype, save, number)
    for name, (kind, options) in FAMILIES.items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            make_family(HERE / "families" / name, kind, options)
    print(sum(f.stat().st_size for f in HERE.rglob("*") if f.is_file()), "bytes")
