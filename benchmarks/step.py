"""Time one FPT step, forward and backward: ours, its matrix products alone, and PyTorch's.

    python -m benchmarks.step [--model gpt2] [--rows 4x10,4x64] [--dropout 0] [--rounds 7]

The trunk is GPT-2 base by default, with random weights.  Attention and feed-forward are frozen;
layer norms, positions, input and output are trained.  The three take turns in one process, so that
a slow moment of the machine affects all of them.  The figures are medians over the rounds, the
ratios medians of each round's ratio.  PyTorch is Transformers' GPT2Model with SDPA attention
between two linear layers.  The C library keeps freed memory for all three, as in our training.
"""

import argparse
import os
import platform
import random
import statistics
import time

import numpy as np

import minifpt
from minifpt import tasks
from minifpt.gpt2 import SHAPES
from minifpt.machine import blas_kernels, cores, kept_memory

ROWS = "1x10,4x10,4x49,4x64,16x64,4x120,1x1024"


class Numbers(tasks.Choices):
    """A task of random numbers with ten classes at the last token.

    49 x 16 is MNIST's shape, 64 x 48 CIFAR-10's."""

    name, output_dim, output_tokens, classes, options = "random numbers", 10, 1, 10, {}

    def __init__(self, tokens, input_dim=48):
        self.tokens, self.input_dim = tokens, input_dim

    def draw(self, rng, size, split):
        return (rng.standard_normal((size, self.tokens, self.input_dim), dtype=np.float32),
                rng.integers(0, 10, (size, 1)))


def our_model(trunk, task, mask):
    """Return an FPT of ours under a freeze mask."""
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    model.freeze(minifpt.FreezeMask.parse(mask))
    return model


def torch_model(config, task, mask):
    """Return the same model of PyTorch and Transformers: its trunk, its input and output layer, and
    the parameters that are trained."""
    import torch
    import transformers
    trunk = transformers.GPT2Model(torch_config(config))
    inp = torch.nn.Linear(task.input_dim, config.n_embd)
    out = torch.nn.Linear(config.n_embd, task.output_dim)
    for name, p in trunk.named_parameters():
        p.requires_grad = (mask == "full" or "ln_" in name or "wpe" in name) and "wte" not in name
    trained = [p for m in (inp, trunk, out) for p in m.parameters() if p.requires_grad]
    return trunk.train(config.dropout > 0), inp, out, trained


def torch_config(config):
    """Return the configuration of Transformers for ours."""
    import transformers
    return transformers.GPT2Config(
        n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd,
        n_positions=config.n_positions, vocab_size=config.vocab_size,
        resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.dropout,
        use_cache=False, attn_implementation="sdpa")


def ours(config, batch, tokens, mask="fpt"):
    """Return a function that does one step of ours."""
    rng, task = np.random.default_rng(0), Numbers(tokens)
    model = our_model(minifpt.GPT2(config, seed=0), task, mask)
    x, y = task.batch(rng, batch)

    def step():
        model.zero_grad()
        logits, cache = model.forward(x, train=True, rng=rng)
        loss, ce = minifpt.functional.cross_entropy(logits, y)
        model.backward(minifpt.functional.cross_entropy_backward(1.0, ce), cache)
        return float(loss)
    return step


def pytorch(config, batch, tokens, mask="fpt"):
    """Return a function that does the same step with PyTorch and Transformers."""
    import torch
    task = Numbers(tokens)
    trunk, inp, out, trained = torch_model(config, task, mask)
    x, y = map(torch.from_numpy, task.batch(np.random.default_rng(0), batch))

    def step():
        for p in trained:
            p.grad = None
        hidden = trunk(inputs_embeds=inp(x)).last_hidden_state
        loss = torch.nn.functional.cross_entropy(out(hidden[:, -1]), y[:, 0])
        loss.backward()
        return loss.item()
    return step


def products(config, batch, tokens):
    """Return a function that does only the matrix products of a step.

    Each frozen weight has one product forward and one for dx; attention has two products forward
    and four backward."""
    C, H, N = config.n_embd, config.n_head, batch * tokens
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)
    layers = [[normal(i, o) for i, o in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C))]
              for _ in range(config.n_layer)]
    x, out = {n: normal(N, n) for n in (C, 3 * C, 4 * C)}, {}
    for n in x:
        out[n] = np.empty((N, n), np.float32)
    q, a = normal(batch, H, tokens, C // H), normal(batch, H, tokens, tokens)
    qt, at = q.swapaxes(-1, -2), a.swapaxes(-1, -2)
    out_q, out_a = np.empty_like(q), np.empty_like(a)

    def step():
        for layer in layers:
            for w in layer:
                np.matmul(x[len(w)], w, out=out[w.shape[1]])
                np.matmul(x[w.shape[1]], w.T, out=out[len(w)])
            for _ in range(2):
                np.matmul(q, qt, out=out_a)
                np.matmul(a, q, out=out_q)
                np.matmul(at, q, out=out_q)
    return step


def alternate(steps, rounds, seconds=0.6):
    """Return the seconds of a step of each function, [round][function].

    Within a round the order is random.  Each function runs for 0.15 s before it is timed, because
    OpenBLAS's threads keep a core busy for 2^28 ticks after the last product.
    """
    repeat, table = [], []
    with kept_memory:                                # as in training
        for step in steps:
            step()
            start = time.perf_counter()
            step()
            repeat.append(max(1, min(200, int(seconds / (time.perf_counter() - start)))))
        for _ in range(rounds):
            row = [0.0] * len(steps)
            for i in random.sample(range(len(steps)), len(steps)):
                start = time.perf_counter()
                while time.perf_counter() < start + 0.15:
                    steps[i]()
                start = time.perf_counter()
                for _ in range(repeat[i]):
                    steps[i]()
                row[i] = (time.perf_counter() - start) / repeat[i]
            table.append(row)
    return table


def ratio(table, a, b):
    """Return the median over rounds of column a divided by column b."""
    return statistics.median(row[a] / row[b] for row in table)


def machine():
    """Return one line with the processor and the versions."""
    import torch
    import transformers
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            cpu = next(line for line in f if line.startswith("model name")).split(":")[1].strip()
    except (OSError, StopIteration):
        cpu = platform.processor()
    return (f"{cpu}, {cores()} cores; NumPy {np.__version__}, OpenBLAS {blas_kernels()} "
            f"(OPENBLAS_CORETYPE {os.environ.get('OPENBLAS_CORETYPE', 'not set')}); "
            f"PyTorch {torch.__version__}, Transformers {transformers.__version__}, "
            f"{torch.get_num_threads()} threads")


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--model", default="gpt2", choices=list(SHAPES))
    top.add_argument("--rows", default=ROWS, help="batch x tokens, comma-separated")
    top.add_argument("--dropout", type=float, default=0.0)
    top.add_argument("--mask", default="fpt", choices=["fpt", "full"])
    top.add_argument("--rounds", type=int, default=7)
    args = top.parse_args()
    config = minifpt.GPT2Config(**SHAPES[args.model], dropout=args.dropout)
    print(f"{machine()}\n{args.model}, mask {args.mask}, dropout {args.dropout}, "
          f"medians of {args.rounds} rounds\n")
    print("| batch x tokens | minifpt | bare products | PyTorch | PyTorch / minifpt "
          "| minifpt / products |\n|---|---|---|---|---|---|", flush=True)
    for row in args.rows.split(","):
        batch, tokens = map(int, row.split("x"))
        table = alternate([ours(config, batch, tokens, args.mask),
                           products(config, batch, tokens),
                           pytorch(config, batch, tokens, args.mask)], args.rounds)
        ms = [1e3 * statistics.median(column) for column in zip(*table, strict=True)]
        print(f"| {row} | {ms[0]:.1f} ms | {ms[1]:.1f} ms | {ms[2]:.1f} ms | "
              f"{ratio(table, 2, 0):.2f} | {ratio(table, 0, 1):.2f} |", flush=True)
    masks = ["full", "fpt", "output_only"]
    table = alternate([ours(config, 4, 64, mask) for mask in masks], args.rounds)
    print("\nwhat freezing saves, minifpt, 4x64: " + ", ".join(
        f"{mask} {1e3 * statistics.median(column):.0f} ms"
        for mask, column in zip(masks, zip(*table, strict=True), strict=True)))


if __name__ == "__main__":
    main()
