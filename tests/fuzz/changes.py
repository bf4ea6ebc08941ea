"""Random changes of random models against finite differences, with a second backward pass of the
same cache:  ``python -m tests.fuzz.changes 1000``."""

import copy
import sys
from types import SimpleNamespace

import numpy as np

import minifpt
from minifpt import adapters
from minifpt import functional as F
from minifpt.trunks.bert import BERT

T, C, B = 5, 8, 3
STEPS = 1e-6, -1e-6, 1e-7, -1e-7                          # of the differences
CONFIG = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=C, n_positions=12, vocab_size=11,
                            dropout=0.0)


def cut(y):
    y[..., 1] = 0.3
    return y


def mean_over_batch(y):
    return np.broadcast_to(y.mean(axis=0), y.shape)


CHANGES = [lambda y: 0 * y, lambda y: 1.5 * y - 0.2, lambda y: 0.5 * y + np.tanh(y * y - 0.3),
           np.sin, cut, lambda y: np.maximum(y, 0.1 * y),
           (mean_over_batch, lambda dy, y: mean_over_batch(dy)),
           (lambda y: y[::-1], lambda dy, y: dy[::-1]),
           (lambda y: y.cumsum(axis=0), lambda dy, y: dy[::-1].cumsum(axis=0)[::-1])]
ADAPTERS = [None, "lora:rank=2,on=*.*+output", "bottleneck:size=3", "bitfit"]


def functions(dropout):
    """A trunk made of functions, without a class and without layers."""
    rng = np.random.default_rng(4)
    w = [minifpt.layers.Parameter(0.5 * rng.standard_normal(shape), "mlp")
         for shape in ((C, 3 * C), (C, C))]
    zero = np.zeros(3 * C)

    def forward(x, train=False, rng=None):
        qkv, first = F.linear(x, w[0].data, zero)
        y, heads = F.attention(qkv, 2)
        y, last = F.linear(y, w[1].data, zero[:C])
        y, mask = F.dropout(y, dropout if train else 0.0, rng)
        return F.residual(x, y)[0], (first, heads, last, mask)

    def backward(dy, cache):
        d, dw, _ = F.linear_backward(F.dropout_backward(dy, cache[3]), cache[2])
        w[1].add_grad(dw)
        d, dw, _ = F.linear_backward(F.attention_backward(d, cache[1]), cache[0])
        w[0].add_grad(dw)
        return F.residual_backward(dy, d)
    return SimpleNamespace(config=SimpleNamespace(n_embd=C, dropout=dropout), forward=forward,
                           backward=backward, dtype=np.dtype(np.float64),
                           named_parameters=lambda: iter([("a.weight", w[0]), ("b.weight", w[1])]))


TRUNKS = {
    "gpt2": lambda p: minifpt.trunks.get("random:2x2x8", dropout=p, dtype=np.float64),
    "llama": lambda p: minifpt.trunks.get("random:llama:2x2/1x8", dropout=p, dtype=np.float64),
    "lstm": lambda p: minifpt.trunks.get("lstm:2x8", dropout=p, dtype=np.float64),
    "bert": lambda p: BERT(copy.copy(CONFIG), np.float64),
    "functions": functions}


def build(rng):
    """Return a random model in float64, and its name."""
    kind = rng.choice([*TRUNKS])
    dropout = float(rng.choice([0.0, 0.2]))
    model = minifpt.FPT(TRUNKS[kind](dropout), 3, 4, int(rng.integers(1, T + 1)))
    adapter = ADAPTERS[rng.integers(len(ADAPTERS))]
    try:
        if adapter:
            adapters.adapt(model, adapter)
    except (ValueError, AttributeError):
        adapter = None
    for p in model.parameters():
        p.data += 0.4 * rng.standard_normal(p.data.shape)
    for p in model.parameters():
        p.trainable = bool(rng.random() < rng.choice([0.1, 0.6, 1.0]))
    if not any(p.trainable for p in model.parameters()):
        model.output.bias.trainable = True
    return model, f"{kind}, {adapter}, dropout {dropout}"


def loss_of(model, x, y, backward=0):
    """Return the loss and the gradients of each backward pass of its cache."""
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(5))
    loss, kept = F.cross_entropy(logits, y)
    grads = []
    for _ in range(backward):
        for p in model.parameters():
            p.grad = None
        model.backward(F.cross_entropy_backward(1.0, kept), cache)
        grads.append([np.zeros(p.data.shape) if p.grad is None else p.grad
                      for p in model.parameters()])
    return float(loss), grads


def attempt(seed):
    """Return "right", "refused" or a description of what is wrong."""
    rng = np.random.default_rng(seed)
    model, name = build(rng)
    x = rng.standard_normal((B, T, 3))
    y = rng.integers(0, 4, (B, model.output_tokens))
    with minifpt.trace(model) as t:
        loss_of(model, x, y)
    places = sorted({*t.outputs, *(s.name for s in t.steps if s.inside is None or s.op == "softmax")
                     } - {"cross_entropy", "log_sum_exp"})
    places = [p for p in places if not p.endswith("residual")]
    change = {str(p): CHANGES[rng.integers(len(CHANGES))]
              for p in rng.choice(places, min(len(places), rng.integers(1, 4)), replace=False)}
    about = f"{seed}: {name}, {[*change]}"
    others = copy.deepcopy(model), minifpt.FPT(TRUNKS["gpt2"](0.0), 3, 4, 2)
    want = [other.predict(x) for other in others]
    disturb = rng.random() < 0.5
    try:
        with minifpt.trace(model, change):
            if disturb:
                loss_of(model, x + 1, y, 1)
                model.predict(x)
            _, (first, second) = loss_of(model, x, y, 2)
            for other, logits in zip(others, want, strict=True):
                if np.abs(other.predict(x) - logits).max() > 1e-9:
                    return f"{about}: another model changed"
        slopes = []
        directions = [rng.standard_normal(p.data.shape) * p.trainable for p in model.parameters()]
        for h in STEPS:
            for p, d in zip(model.parameters(), directions, strict=True):
                p.data += h * d
            with minifpt.trace(model, change):
                slopes.append(loss_of(model, x, y)[0])
            for p, d in zip(model.parameters(), directions, strict=True):
                p.data -= h * d
    except ValueError as e:
        return f"refused: {e}"
    expected = [(slopes[i] - slopes[i + 1]) / (2 * STEPS[i]) for i in (0, 2)]
    for which, grads in (("first", first), ("second", second)):
        got = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
        if min(abs(got - e) / max(1.0, abs(e)) for e in expected) > 1e-6:
            return f"{about}: {which} backward pass {got:.8g}, differences {expected}"
    return "right"


if __name__ == "__main__":
    n = int(sys.argv[1])
    results = [attempt(seed) for seed in range(n)]
    wrong = [r for r in results if r != "right" and not r.startswith("refused")]
    print(n, "tried,", results.count("right"), "right,", len(wrong), "wrong")
    print("\n".join(wrong[:20]))
    print("\n".join(sorted({r for r in results if r.startswith("refused")})[:20]))
