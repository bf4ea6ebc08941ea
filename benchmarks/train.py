"""Time whole training steps (forward, backward, clipping, Adam), in turn with PyTorch's.

    python -m benchmarks.train [--rounds 7] [--cores 1,2] [--only "MNIST, 16 x 49"]

The paper's freeze mask: attention and feed-forward are frozen.  The trunk is the small one that
ships, with the batches of its tasks (random numbers in the shapes of MNIST and ListOps), another
trunk of its size, or GPT-2 base, with random weights.  PyTorch is Transformers' GPT2Model,
BertModel, T5EncoderModel or LlamaModel between two linear layers, all but T5's with SDPA attention;
it runs with as many threads as minifpt may use cores.
"""

import argparse
import os
import platform
import random
import statistics
import time
from contextlib import nullcontext

import numpy as np

import minifpt
from minifpt import tasks
from minifpt.fast import kept_transposes
from minifpt.gpt2 import SHAPES
from minifpt.machine import blas_kernels, kept_memory, one_core, single_threaded_blas
from minifpt.optim import Adam
from minifpt.training import step as training_step


class Numbers(tasks.Classification):
    """A task of random numbers with ten classes at the last token.

    49 x 16 is MNIST's shape, 64 x 48 CIFAR-10's."""

    name, output_dim, output_tokens, classes, options = "random numbers", 10, 1, 10, {}

    def __init__(self, tokens, input_dim=48):
        self.tokens, self.input_dim = tokens, input_dim

    def draw(self, rng, size, split):
        return (rng.standard_normal((size, self.tokens, self.input_dim), dtype=np.float32),
                rng.integers(0, 10, (size, 1)))


ROWS = {"bit XOR, 4 x 10": ("minigpt", tasks.get("bit-xor"), 4),
        "bit memory, 16 x 30": ("minigpt", tasks.get("bit-memory"), 16),
        "MNIST, 16 x 49": ("minigpt", Numbers(49, 16), 16),
        "ListOps, 16 x 64": ("minigpt", Numbers(64, 15), 16),
        "MNIST, 16 x 49, BERT": ("bert", Numbers(49, 16), 16),
        "MNIST, 16 x 49, T5": ("t5", Numbers(49, 16), 16),
        "MNIST, 16 x 49, Llama": ("llama", Numbers(49, 16), 16),
        **{f"GPT-2 base, {batch} x {tokens}": ("gpt2", Numbers(tokens), batch)
           for batch, tokens in ((4, 10), (4, 49), (4, 64), (16, 64), (4, 120))}}


def ours(name):
    """Return a function that does training steps of ours within ``setting()``."""
    shape, task, batch = ROWS[name]
    if shape in SHAPES:
        trunk = minifpt.GPT2(minifpt.GPT2Config(**SHAPES[shape], dropout=0.0))
    else:
        trunk = minifpt.trunks.get(f"random:{shape}:6x4x128")
    model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    model.freeze("attn,mlp")
    optimizer, rng = Adam([p for p in model.parameters() if p.trainable]), np.random.default_rng(0)
    frozen = [p.data for p in model.parameters() if not p.trainable and p.data.ndim == 2]
    x, y = task.batch(rng, batch)

    def step(setting):
        with kept_transposes(frozen), single_threaded_blas, setting():          # as in training
            for _ in range(step.repeat):
                training_step(model, task, optimizer, x, y, 1.0, rng)
    step.repeat = 1
    return step


def pytorch_trunk(shape):
    """Return a trunk of Transformers, and parts of the names of its trained parameters."""
    import transformers as hf
    if shape in SHAPES:
        return hf.GPT2Model(hf.GPT2Config(
            **SHAPES[shape], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
            attn_implementation="sdpa")), ("ln_", "wpe")
    c = minifpt.trunks.get(f"random:{shape}:6x4x128").config
    if shape == "llama":
        return hf.LlamaModel(hf.LlamaConfig(
            vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
            num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, use_cache=False,
            attn_implementation="sdpa")), ("norm",)
    if shape == "t5":
        return hf.T5EncoderModel(hf.T5Config(
            vocab_size=c.vocab_size, d_model=c.n_embd, d_kv=c.head_dim, d_ff=c.n_inner,
            num_layers=c.n_layer, num_heads=c.n_head, dropout_rate=0)), ("layer_norm", "relative")
    return hf.BertModel(hf.BertConfig(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head, intermediate_size=c.n_inner, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0, attn_implementation="sdpa"),
        add_pooling_layer=False), ("LayerNorm", "position_embeddings")


def pytorch(name):
    """Return a function that does the same steps with PyTorch, on a number of threads."""
    import torch
    shape, task, batch = ROWS[name]
    trunk, trained_names = pytorch_trunk(shape)
    inp = torch.nn.Linear(task.input_dim, trunk.config.hidden_size)
    out = torch.nn.Linear(trunk.config.hidden_size, task.output_dim)
    for name_of_parameter, p in trunk.named_parameters():
        p.requires_grad = any(name in name_of_parameter for name in trained_names)
    trained = [p for m in (inp, trunk, out) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-3)
    x, y = map(torch.from_numpy, task.batch(np.random.default_rng(0), batch))

    def step(threads):
        torch.set_num_threads(threads)
        for _ in range(step.repeat):
            optimizer.zero_grad()
            hidden = trunk(inputs_embeds=inp(x)).last_hidden_state[:, -task.output_tokens:]
            logits = out(hidden).reshape(-1, task.classes)
            loss = torch.nn.functional.cross_entropy(logits, y.reshape(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
    step.repeat = 1
    return step


def seconds(step, *args):
    start = time.perf_counter()
    step(*args)
    return time.perf_counter() - start


def alternate(calls, rounds, length=0.4):
    """Return the seconds of a step of each ``(step, argument)``, [round][call].

    Within a round the order is random.  A step runs once, for a quarter of its time, before it is
    timed, because OpenBLAS's threads keep a core busy for 2^28 ticks after the last product.
    """
    table = []
    with kept_memory:                                     # as in training
        for step, argument in calls:
            step(argument)
            step.repeat = max(1, int(length / seconds(step, argument)))
        for _ in range(rounds):
            row = [0.0] * len(calls)
            for i in random.sample(range(len(calls)), len(calls)):
                step, argument = calls[i]
                repeat, step.repeat = step.repeat, max(1, step.repeat // 4)
                step(argument)
                step.repeat = repeat
                row[i] = seconds(step, argument) / repeat
            table.append(row)
    return table


def machine():
    """Return one line with the processor and the versions."""
    import torch
    import transformers
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            cpu = next(line for line in f if line.startswith("model name")).split(":")[1].strip()
    except (OSError, StopIteration):
        cpu = platform.processor()
    return (f"{cpu}; NumPy {np.__version__}, OpenBLAS {blas_kernels()} "
            f"(OPENBLAS_CORETYPE {os.environ.get('OPENBLAS_CORETYPE', 'not set')}); "
            f"PyTorch {torch.__version__}, Transformers {transformers.__version__}")


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--rounds", type=int, default=7)
    top.add_argument("--cores", default="1,2", help="1, or the number of this machine's cores")
    top.add_argument("--only", choices=list(ROWS))
    args = top.parse_args()
    cores = [*map(int, args.cores.split(","))]
    print(f"{machine()}\nmedians of {args.rounds} rounds\n\n"
          "| training step | cores | minifpt (ms) | PyTorch (ms) | PyTorch / minifpt |\n"
          "|---|---|---|---|---|", flush=True)
    for name in [args.only] if args.only else ROWS:
        step, other = ours(name), pytorch(name)
        settings = [(lambda: one_core) if n == 1 else nullcontext for n in cores]
        calls = [call for setting, n in zip(settings, cores, strict=True)
                 for call in ((step, setting), (other, n))]
        table = np.array(alternate(calls, args.rounds))
        for i, n in enumerate(cores):
            a, b = table[:, 2 * i:2 * i + 2].T
            print(f"| {name} | {n} | {1e3 * statistics.median(a):.4g} "
                  f"| {1e3 * statistics.median(b):.4g} | {statistics.median(b / a):.2f} |",
                  flush=True)


if __name__ == "__main__":
    main()
