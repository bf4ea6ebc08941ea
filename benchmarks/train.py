"""Time whole training steps (forward, backward, clipping, Adam), in turn with PyTorch's.

    python -m benchmarks.train [--rounds 7] [--only small|full]

First the shipped trunk under the paper's freeze mask, with the batches of its tasks (random numbers
in MNIST's shape); then GPT-2 base with nothing frozen, as a language model (AdamW) and as an FPT
(Adam).
"""

import argparse
import statistics

import numpy as np

import minifpt
from minifpt import tasks
from minifpt.gpt2 import SHAPES
from minifpt.optim import Adam
from minifpt.training import step as training_step

from .step import Numbers, alternate, machine, our_model, ratio, torch_config, torch_model


def our_fpt(trunk, task, batch, mask):
    """Return a function that does one training step of an FPT."""
    model = our_model(trunk, task, mask)
    return our_step(model, task, Adam([p for p in model.parameters() if p.trainable]), batch)


def our_step(model, task, optimizer, batch):
    rng = np.random.default_rng(0)
    x, y = task.batch(rng, batch)
    return lambda: training_step(model, task, optimizer, x, y, 1.0, rng)


def torch_fpt(config, task, batch, mask):
    import torch
    trunk, inp, out, trained = torch_model(config, task, mask)
    optimizer = torch.optim.Adam(trained, lr=1e-3)
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


def torch_lm(config, batch):
    import torch
    import transformers
    model = transformers.GPT2LMHeadModel(torch_config(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    x, y = map(torch.from_numpy, NextToken().batch(np.random.default_rng(0), batch))

    def step():
        optimizer.zero_grad()
        logits = model(x).logits
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
    args = top.parse_args()
    mini = minifpt.GPT2Config(**SHAPES["minigpt"], dropout=0.0)
    base = minifpt.GPT2Config(dropout=0.0)
    rows = []
    if args.only != "full":
        for name, task, batch in (("bit-xor", tasks.get("bit-xor"), 4),
                                  ("bit-memory", tasks.get("bit-memory"), 4),
                                  ("mnist", Numbers(49, 16), 16)):
            rows.append((f"minigpt, FPT, {name}, {batch} x {task.tokens}",
                         our_fpt, torch_fpt, mini, (task, batch, "fpt")))
    if args.only != "small":
        rows += [("GPT-2 base, language model, all trained, AdamW, 4 x 64",
                  our_lm, torch_lm, base, (4,)),
                 ("GPT-2 base, FPT, all trained, Adam, 4 x 64",
                  our_fpt, torch_fpt, base, (Numbers(64), 4, "full"))]
    print(f"{machine()}\nmedians of {args.rounds} rounds\n\n"
          "| step | minifpt | PyTorch | PyTorch / minifpt |\n|---|---|---|---|", flush=True)
    for name, ours, torchs, config, rest in rows:
        table = alternate([ours(minifpt.GPT2(config), *rest), torchs(config, *rest)],
                          args.rounds)
        a, b = (1e3 * statistics.median(column) for column in zip(*table, strict=True))
        print(f"| {name} | {a:.2f} ms, {1e3 / a:.1f}/s | {b:.2f} ms, {1e3 / b:.1f}/s "
              f"| {ratio(table, 1, 0):.2f} |", flush=True)


if __name__ == "__main__":
    main()
