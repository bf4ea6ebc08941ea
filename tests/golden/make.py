"""Makes the golden files beside it: small GPT-2s that Transformers saved, and what it computes.

    python tests/golden/make.py [FOLDER ...]

makes all of them, or those that are named; it needs PyTorch and Transformers.  Each folder is
as ``save_pretrained`` writes it, and ``expected.npz`` in it holds, computed by Transformers in
float64: ``ids`` (B, T), ``hidden`` (after ln_f), ``logits``, ``loss`` (the mean cross-entropy of
each next token) and the loss's gradient for each parameter, ``grad.NAME``.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
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
    print(sum(f.stat().st_size for f in HERE.rglob("*") if f.is_file()), "bytes")
