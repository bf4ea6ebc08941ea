"""What a trace shows is what Transformers' GPT-2 computes: outputs, attention, gradients.

The names are the same in both, so every layer of ours is held against theirs.  Differences are
relative to the largest entry: 1e-5 in float32, 1e-10 in float64.
"""

import numpy as np
import pytest

import minifpt
from minifpt import functional as F
from minifpt.files.weights import by_gpt2_name

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

NOT_THEIRS = "", "trunk", "trunk.wpe", "lm_head"          # lm_head: the logits, compared below
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-10}
LAYERS, HEADS, C, V = 3, 4, 32, 50


def close(got, want, dtype, name):
    want = want.detach().numpy()
    assert got.shape == want.shape and got.dtype == dtype, name
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= TOLERANCE[dtype], f"{name}: relative error {error:.1e}"


def pair(dtype, causal, activation):
    """Their language model without dropout, all its weights well away from 0, and ours."""
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=C, n_positions=128, vocab_size=V, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, activation_function=activation, bos_token_id=None,
        eos_token_id=None, attn_implementation="eager")).to(
            torch.float64 if dtype == np.float64 else torch.float32)
    with torch.no_grad():
        for p in theirs.parameters():
            p += torch.randn_like(p) * 0.15
    ours = minifpt.LanguageModel(minifpt.GPT2Config(
        n_layer=LAYERS, n_head=HEADS, n_embd=C, n_positions=128, vocab_size=V, dropout=0.0,
        activation_function=activation, causal=causal), dtype=dtype)
    weights = dict(theirs.transformer.named_parameters())
    for name, data in by_gpt2_name(ours):
        data[...] = weights.pop(name).detach().numpy()
    assert not weights
    return theirs, ours


def recorded(theirs, names):
    """{name: what that module of theirs returned} of its next pass, gradients kept."""
    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            seen[name] = output[0] if isinstance(output, tuple) else output
            seen[name].retain_grad()
        return hook
    for name in names:
        theirs.transformer.get_submodule(name).register_forward_hook(keep(name))
    return seen


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("T", [12, 120])
@pytest.mark.parametrize("causal, activation", [(True, "gelu_new"), (False, "gelu_new"),
                                                (True, "relu"), (False, "gelu")])
def test_every_layer(dtype, T, causal, activation):
    theirs, ours = pair(dtype, causal, activation)
    ids, targets = np.random.default_rng(1).integers(0, V, (2, 2, T))
    with minifpt.trace(ours) as t:
        logits, cache = ours.forward(ids, train=True, rng=np.random.default_rng(2))
        loss, kept = F.cross_entropy(logits, targets)
        ours.backward(F.cross_entropy_backward(1.0, kept), cache)

    # Ours adds the positions within the layer; in theirs, the table alone is a layer.
    names = [n.removeprefix("trunk.") for n in t.outputs if n not in NOT_THEIRS]
    assert len(names) == LAYERS * 10 + 2                  # wte and ln_f
    seen = recorded(theirs, names)
    # Where a mask is given whole, theirs adds it to the scores: zeros hide nothing.
    mask = None if causal else torch.zeros((2, 1, T, T), dtype=theirs.dtype)
    theirs.train()
    out = theirs(torch.tensor(ids), attention_mask=mask, output_hidden_states=True,
                 output_attentions=True, use_cache=False)
    for hidden in out.hidden_states:
        hidden.retain_grad()
    want = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1),
                                             torch.tensor(targets).flatten())
    want.backward()
    assert loss == pytest.approx(want.item(), rel=1e-6)

    # What Transformers returns by itself: embeddings, after each block, after the last norm.
    hidden = ["trunk.wpe", *(f"trunk.h.{i}" for i in range(LAYERS - 1)), "trunk.ln_f"]
    for name, want in zip(hidden, out.hidden_states, strict=True):
        close(t.outputs[name], want, dtype, name)
        close(t.grads[name], want.grad, dtype, f"gradient of {name}")
    for i, want in enumerate(out.attentions):
        assert want.shape == (2, HEADS, T, T)
        close(t.attention[f"trunk.h.{i}.attn"], want, dtype, f"attention of block {i}")
        assert bool((want[..., 0, 1:] == 0).all()) == causal
    close(t.outputs[""], out.logits, dtype, "logits")
    # And every layer in the blocks, the last block too.
    for name in names:
        ours_name = name if name == "wte" else f"trunk.{name}"
        close(t.outputs[ours_name], seen[name], dtype, name)
        close(t.grads[ours_name], seen[name].grad, dtype, f"gradient of {name}")
    grads = {n: p.grad for n, p in theirs.transformer.named_parameters()}
    for name, p in ours.named_parameters():
        close(p.grad, grads[name.removeprefix("trunk.")], dtype, name)
