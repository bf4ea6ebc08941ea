"""Against PyTorch and Transformers, where they are installed: values, gradients, training."""

import re
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import normal
from conftest import rng as rng_of

import minifpt
from minifpt import functional as F
from minifpt import training
from minifpt.files.weights import by_gpt2_name
from minifpt.layers import MLP, Attention, Block, LayerNorm, Parameter
from minifpt.optim import Adam, clip_grad_norm

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
T = torch.nn.functional
pytestmark = pytest.mark.oracle

torch.set_num_threads(1)


def torch_attention(q, k, v, bias=None, causal=True):
    """By PyTorch's function, with the heads of keys repeated by Transformers' ``repeat_kv``."""
    llama, (n, S), shared = (transformers.models.llama.modeling_llama, (q.shape[2], k.shape[2]),
                             q.shape[1] // k.shape[1])
    mask = torch.zeros(n, S, dtype=q.dtype) if bias is None else bias
    if causal:                                            # the queries are the last of the tokens
        mask = mask.masked_fill(~torch.ones(n, S, dtype=bool).tril(S - n), -torch.inf)
    return T.scaled_dot_product_attention(
        q, llama.repeat_kv(k, shared), llama.repeat_kv(v, shared), attn_mask=mask)


def attention(*inputs, **options):
    return F.attention(*inputs[:3], bias=inputs[3] if len(inputs) > 3 else None, **options)


def torch_rope(x):
    """By Transformers' function; its own angles are float32, these are float64."""
    llama, (n, D) = transformers.models.llama.modeling_llama, x.shape[2:]
    angles = torch.arange(n)[:, None] / 10000.0 ** (torch.arange(0, D, 2).double() / D)
    angles = torch.cat([angles, angles], dim=1)[None]
    y, _ = llama.apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
    return y


def torch_lstm(x, w_ih, w_hh, b):
    """PyTorch's has two biases where we have their sum."""
    zero = torch.zeros(1, len(x), len(w_hh), dtype=x.dtype)
    return torch._VF.lstm(x, (zero, zero), (w_ih.T, w_hh.T, b, 0 * b), True, 1, 0.0, True, False,
                          True)[0]


IDS = np.random.default_rng(1).integers(0, 7, (4, 5))
C = 8
# name: ours, its backward, torch's, inputs
OPS = {
    "linear": (F.linear, F.linear_backward, lambda x, w, b: T.linear(x, w.T, b),
               (normal(3, 4, C), normal(C, 5), normal(5))),
    "embedding": (F.embedding, F.embedding_backward, T.embedding, (IDS, normal(7, 3))),
    "layer_norm": (F.layer_norm, F.layer_norm_backward,
                   lambda x, w, b: T.layer_norm(x, (C,), w, b, 1e-5),
                   (normal(3, 4, C), normal(C), normal(C))),
    "rms_norm": (F.rms_norm, F.rms_norm_backward, lambda x, w: T.rms_norm(x, (C,), w, 1e-6),
                 (normal(3, 4, C), normal(C))),
    "silu": (F.silu, F.silu_backward, T.silu, (3 * normal(5, 6),)),
    "multiply": (F.multiply, F.multiply_backward, lambda gate, up: gate * up,
               (3 * normal(5, 6), normal(5, 6, seed=1))),
    "rope": (lambda x: F.rope(x, 10000.0), F.rope_backward, torch_rope, (normal(2, 3, 5, C),)),
    "unembedding": (F.unembedding, F.unembedding_backward, T.linear,
                    (normal(3, 4, C), normal(7, C))),
    "positions": (lambda x, w: F.positions(x, w, 2), F.positions_backward,
                  lambda x, w: x + w[2:6], (normal(3, 4, C), normal(9, C))),
    "gelu": (F.gelu, F.gelu_backward, lambda x: T.gelu(x, approximate="tanh"),
             (3 * normal(5, 6),)),
    "gelu_exact": (F.gelu_exact, F.gelu_exact_backward, T.gelu, (3 * normal(5, 6),)),
    "relu": (F.relu, F.relu_backward, torch.relu, (3 * normal(5, 6),)),
    "softmax": (F.softmax, F.softmax_backward, lambda x: torch.softmax(x, -1),
                (3 * normal(5, 6),)),
    **{f"attention, {G} heads of keys, {S} keys{', to all' * (not causal)}{', biased' * biased}":
       (partial(attention, causal=causal), F.attention_backward,
        partial(torch_attention, causal=causal),
        (normal(2, 4, 5, 3), *normal(2, 2, G, S, 3, seed=1), *biased * [normal(4, 5, S, seed=2)]))
       for G, S, causal, biased in product((4, 2, 1), (5, 9), (True, False), (False, True))},
    **{f"lstm, {T} tokens": (F.lstm, F.lstm_backward, torch_lstm, (
        normal(2, T, 3), normal(3, 4 * C), normal(C, 4 * C) / 3, normal(4 * C))) for T in (1, 60)},
    "last_tokens": (lambda x: F.last_tokens(x, 2), F.last_tokens_backward,
                    lambda x: x[:, -2:], (normal(3, 5, C),)),
    "log_sum_exp": (F.log_sum_exp, F.log_sum_exp_backward,
                    lambda x: torch.logsumexp(x, -1, keepdim=True), (9 * normal(5, 6),)),
    "cross_entropy": (F.cross_entropy, F.cross_entropy_backward,
                      lambda x, y: T.cross_entropy(x.reshape(-1, 7), y.reshape(-1)),
                      (normal(4, 5, 7), IDS)),
}


@pytest.mark.parametrize("name", OPS)
def test_operation(name):
    op, op_backward, theirs, inputs = OPS[name]
    y, cache = op(*inputs)
    dy = normal(*np.shape(y), seed=5)
    grads = op_backward(dy if np.ndim(y) else float(dy), cache)
    tensors = [torch.tensor(x, requires_grad=x.dtype == np.float64) for x in inputs]
    want = theirs(*tensors)
    want.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, want.detach().numpy(), rtol=1e-9, atol=1e-9)
    expected = [t.grad.numpy() for t in tensors if t.requires_grad]
    grads = [g for g in (grads if isinstance(grads, tuple) else (grads,)) if g is not None]
    for got, grad in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, grad, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------- optimizer


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam(decay):
    """PyTorch's AdamW decays whatever it is given; ours only matrices."""
    data = [normal(4, 3), normal(3, 3, 2, seed=1), normal(5, seed=2)]
    ours = [Parameter(x.copy(), "mlp") for x in data]
    theirs = [torch.nn.Parameter(torch.tensor(x)) for x in data]
    adam = Adam(ours, lr=0.01, weight_decay=decay)
    want = torch.optim.AdamW([{"params": theirs[:2], "weight_decay": decay},
                              {"params": theirs[2:], "weight_decay": 0.0}], lr=0.01)
    for step in range(20):
        for p, t in zip(ours, theirs, strict=True):
            p.grad = normal(*p.data.shape, seed=step) * 10.0 ** (step % 3 - 1)
            t.grad = torch.tensor(p.grad)
        norm = clip_grad_norm(ours, 2.0)
        torch_norm = torch.nn.utils.clip_grad_norm_(theirs, 2.0)
        assert norm == pytest.approx(torch_norm.item(), rel=1e-12)
        for p, t in zip(ours, theirs, strict=True):
            # Torch divides by the norm plus 1e-6.
            np.testing.assert_allclose(p.grad, t.grad.numpy(), rtol=2e-6)
            t.grad = torch.tensor(p.grad)
        adam.step()
        want.step()
        for p, t in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.data, t.detach().numpy(), rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------------- training


def torch_training(model, theirs, batches):
    """The same model, written with PyTorch's layers, from a copy of our start."""
    enter, leave = (torch.nn.Linear(*layer.weight.data.shape)
                    for layer in (model.input, model.output))
    with torch.no_grad():
        for linear, layer in ((enter, model.input), (leave, model.output)):
            linear.weight.copy_(torch.tensor(layer.weight.data.T.copy()))
            linear.bias.copy_(torch.tensor(layer.bias.data))
    for name, p in theirs.named_parameters():
        p.requires_grad = "attn" not in name and "mlp" not in name
    trained = [p for m in (enter, theirs, leave) for p in m.parameters() if p.requires_grad]
    adam, losses = torch.optim.Adam(trained, lr=1e-3), []
    for x, y in batches:
        hidden = theirs(inputs_embeds=enter(torch.tensor(x))).last_hidden_state
        logits = leave(hidden[:, -model.output_tokens:])
        loss = T.cross_entropy(logits.reshape(-1, 2), torch.tensor(y).reshape(-1))
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        adam.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("n_layer, n_head, n_embd", [(2, 2, 64), (4, 4, 128), (6, 4, 64)])
def test_training_gives_the_losses_of_pytorch(n_layer, n_head, n_embd):
    """Forty steps of bit XOR in float32 from the same start on the same batches."""
    shape = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, n_positions=16, vocab_size=5)
    lm, rng = minifpt.LanguageModel(minifpt.GPT2Config(**shape, dropout=0.0)), rng_of(1)
    for p in lm.parameters():
        p.data += (0.1 * rng.standard_normal(p.data.shape)).astype(np.float32)
    theirs = transformers.GPT2Model(transformers.GPT2Config(
        **shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))
    theirs.load_state_dict({name: torch.tensor(a) for name, a in by_gpt2_name(lm)}, strict=False)
    task, rng = minifpt.tasks.get("bit-xor"), rng_of(0)
    model = minifpt.FPT.for_task(task, lm.trunk)
    batches = [task.batch(rng, 4) for _ in range(40)]
    frozen = {n: p.data.copy() for n, p in model.named_parameters() if not p.trainable}
    want = torch_training(model, theirs, batches)
    adam = Adam([p for p in model.parameters() if p.trainable], lr=1e-3)
    losses = [training.step(model, task, adam, x, y, 1.0, rng)[0] for x, y in batches]
    np.testing.assert_allclose(losses, want, rtol=1e-3)
    assert np.ptp(losses) > 0.1                           # something was learnt or moved
    named = dict(theirs.named_parameters())
    for name, p in model.named_parameters():
        if name in frozen:
            np.testing.assert_array_equal(p.data, frozen[name])
        elif name.startswith("trunk."):
            their = named[name.removeprefix("trunk.")].detach().numpy()
            assert np.abs(p.data - their).max() <= 1e-2 * np.abs(their).max(), name


def test_the_block_in_pytorch_that_lesson_6_shows_is_ours():
    """Its text is run: the output and the gradient of the input equal those of ``layers.Block``."""
    source = Path(__file__).parent.parent / "lessons/src/06_gpt2_whole.py"
    if not source.exists():
        pytest.skip("the lessons are not in this checkout")
    shown = source.read_text(encoding="utf-8").partition("# ```python\n")[2].partition("# ```\n")[0]
    namespace = {}
    exec(re.sub(r"(?m)^# ?", "", shown), namespace)
    ours = Block(LayerNorm(C, dtype=float), Attention(C, 2, dtype=float),
                 LayerNorm(C, dtype=float), MLP(C, dtype=float))
    theirs = namespace["TorchBlock"](C, 2).double()
    places = {"attn.c_": "c_", "mlp.c_fc": "mlp.0", "mlp.c_proj": "mlp.2"}
    for i, (name, p) in enumerate(ours.named_parameters()):
        p.data[...] = 0.5 * normal(*p.data.shape, seed=i)
        for old, new in places.items():
            name = re.sub(f"^{old}", new, name)
        theirs.get_parameter(name).data = torch.tensor(p.data.T)
    x, dy = normal(2, 2, 5, C)
    y, cache = ours.forward(x)
    inputs = torch.tensor(x, requires_grad=True)
    outputs = theirs(inputs)
    outputs.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, outputs.detach(), atol=1e-12)
    np.testing.assert_allclose(ours.backward(dy, cache), inputs.grad, atol=1e-12)
