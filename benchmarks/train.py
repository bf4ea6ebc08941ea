"""Time whole training steps (forward, backward, clipping, Adam), in turn with PyTorch's.

    python -m benchmarks.train [--rounds 7] [--only small|full] [--compile]

First the shipped trunk under the paper's freeze mask, with the batches of its tasks (random numbers
in MNIST's shape); then GPT-2 base with nothing frozen, as a language model (AdamW) and as an FPT
(Adam).  With ``--compile`` PyTorch's trunk is compiled by ``torch.compile``.
"""

import argparse
import statistics

import numpy as np

import minifpt
from minifpt import tasks
from minifpt.gpt2 import SHAPES
from minifpt.optim import Adam
from minifpt.training import step as training_step

from .plan import Numbers
from .step import alternate, machine, ratio


def our_fpt(trunk, task, batch, mask):
    """Return a function that does one training step of an FPT."""
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    model.freeze(minifpt.FreezeMask.parse(mask))
    return our_step(model, task, Adam([p for p in model.parameters() if p.trainable]), batch)


def our_step(model, task, optimizer, batch):
    rng = np.random.default_rng(0)
    x, y = task.batch(rng, batch)
    return lambda: training_step(model, task, optimizer, x, y, 1.0, rng)


def torch_trunk(config):
    import transformers
    return transformers.GPT2Config(
        n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd,
        n_positions=config.n_positions, vocab_size=config.vocab_size, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa")


def torch_fpt(config, task, batch, mask, compiled=False):
    import torch
    import transformers
    trunk = transformers.GPT2Model(torch_trunk(config))
    inp = torch.nn.Linear(task.input_dim, config.n_embd)
    out = torch.nn.Linear(config.n_embd, task.output_dim)
    for name, p in trunk.named_parameters():
        p.requires_grad = (mask == "full" or "ln_" in name or "wpe" in name) and "wte" not in name
    trained = [p for m in (inp, trunk, out) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-3)
    if compiled:
        trunk = torch.compile(trunk)
    x, y = map(torch.from_numpy, task.batch(np.random.default_rng(0), batch))

    def step():
        optimizer.zero_grad()
        hidden = trunk(inputs_embeds=inp(x)).last_hidden_state[:, -task.output_tokens:]
        logits = out(hidden).reshape(-1, task.classes)
        loss = torch.nn.functional.cross_entropy(logits, y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return loss.item(), float((logits.argmax(-1) == y.reshape(-1)).float().mean())
    return step


class NextToken(tasks.Choices):
    """A task of random tokens from GPT-2's vocabulary, to measure time only."""

    name, input_dim, output_dim, classes = "next-token", 50257, 50257, 50257
    tokens = output_tokens = 64

    def draw(self, rng, size, split):
        ids = rng.integers(0, self.classes, (size, self.tokens + 1))
        return ids[:, :-1], ids[:, 1:]


def our_lm(trunk, batch):
    model = minifpt.LanguageModel(trunk)
    return our_step(model, NextToken(), Adam(model.parameters(), weight_decay=0.1), batch)


def torch_lm(config, batch, compiled=False):
    import torch
    import transformers
    model = transformers.GPT2LMHeadModel(torch_trunk(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    forward = torch.compile(model) if compiled else model
    x, y = map(torch.from_numpy, NextToken().batch(np.random.default_rng(0), batch))

    def step():
        optimizer.zero_grad()
        logits = forward(x).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size),
                                                 y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()
    return step


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--rounds", type=int, default=7)
    top.add_argument("--only", choices=["small", "full"])
    top.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    args = top.parse_args()
    mini = minifpt.GPT2Config(**SHAPES["minigpt"], dropout=0.0)
    base = minifpt.GPT2Config(dropout=0.0)
    rows = []
    if args.only != "full":
        for name, task, batch in (("bit-xor", tasks.get("bit-xor"), 4),
                                  ("bit-memory", tasks.get("bit-memory"), 4),
                                  ("mnist", Numbers(49), 16)):
            rows.append((f"minigpt, FPT, {name}, {batch} x {task.tokens}",
                         our_fpt, torch_fpt, mini, (task, batch, "fpt")))
    if args.only != "small":
        rows += [("GPT-2 base, language model, all trained, AdamW, 4 x 64",
                  our_lm, torch_lm, base, (4,)),
                 ("GPT-2 base, FPT, all trained, Adam, 4 x 64",
                  our_fpt, torch_fpt, base, (Numbers(64, 48), 4, "full"))]
    print(f"{machine()}\nmedians of {args.rounds} rounds\n\n"
          "| step | minifpt | PyTorch | PyTorch / minifpt |\n|---|---|---|---|", flush=True)
    for name, ours, torchs, config, rest in rows:
        table = alternate([ours(minifpt.GPT2(config), *rest), torchs(config, *rest, args.compile)],
                          args.rounds)
        a, b = (1e3 * statistics.median(column) for column in zip(*table, strict=True))
        print(f"| {name} | {a:.2f} ms, {1e3 / a:.1f}/s | {b:.2f} ms, {1e3 / b:.1f}/s "
              f"| {ratio(table, 1, 0):.2f} |", flush=True)


if __name__ == "__main__":
    main()
