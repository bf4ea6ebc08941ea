"""Measure the peak memory of loading GPT-2 base and doing one FPT step, ours and PyTorch's.

    python -m benchmarks.memory [--model gpt2] [--rows 4x10,4x64] [--dropout 0]

Both load the same folder of random weights, written by Transformers, each in its own process.  The
figure is that process's largest resident set.  Linux starts a new process as a copy of this one and
counts that copy, too, so this process imports neither library.
"""

import argparse
import resource
import subprocess
import sys
import tempfile

ROWS = "4x10,4x64,16x64,4x120,1x1024"
MAKE = """
import sys, transformers
from minifpt.gpt2 import SHAPES
transformers.GPT2Model(transformers.GPT2Config(**SHAPES[sys.argv[1]])).save_pretrained(sys.argv[2])
"""


def child(library, folder, row, dropout):
    """Load the trunk, do one step, print the peak in kilobytes."""
    batch, tokens = map(int, row.split("x"))
    if library == "minifpt":
        import numpy as np

        import minifpt
        trunk = minifpt.GPT2.from_pretrained(folder, dropout=float(dropout))
        model = minifpt.FPT(trunk, 48, 10)
        model.freeze(minifpt.FreezeMask.fpt())
        rng = np.random.default_rng(0)
        x = rng.standard_normal((batch, tokens, 48), dtype=np.float32)
        with minifpt.machine.kept_memory:                    # as in training
            logits, cache = model.forward(x, train=True, rng=rng)
            loss, ce = minifpt.functional.cross_entropy(logits, np.zeros((batch, 1), int))
            model.backward(minifpt.functional.cross_entropy_backward(1.0, ce), cache)
    else:
        import torch
        import transformers
        trunk = transformers.GPT2Model.from_pretrained(
            folder, use_cache=False, attn_implementation="sdpa", resid_pdrop=float(dropout),
            embd_pdrop=float(dropout), attn_pdrop=float(dropout)).train()
        inp, out = torch.nn.Linear(48, trunk.config.n_embd), torch.nn.Linear(trunk.config.n_embd,
                                                                             10)
        for name, p in trunk.named_parameters():
            p.requires_grad = "ln_" in name or "wpe" in name
        hidden = trunk(inputs_embeds=inp(torch.randn(batch, tokens, 48))).last_hidden_state
        loss = torch.nn.functional.cross_entropy(out(hidden[:, -1]),
                                                 torch.zeros(batch, dtype=torch.long))
        loss.backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak(*args):
    """Return the peak of a child process in MiB."""
    process = subprocess.run([sys.executable, "-m", "benchmarks.memory", "--child", *args],
                             capture_output=True, text=True, check=True)
    return int(process.stdout.split()[-1]) / 1024


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--model", default="gpt2")
    top.add_argument("--rows", default=ROWS)
    top.add_argument("--dropout", default="0")
    args = top.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", MAKE, args.model, folder], check=True,
                       capture_output=True)
        print("| batch x tokens | minifpt | PyTorch | minifpt / PyTorch |\n|---|---|---|---|")
        for row in args.rows.split(","):
            a, b = (peak(name, folder, row, args.dropout) for name in ("minifpt", "torch"))
            print(f"| {row} | {a:.0f} MiB | {b:.0f} MiB | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
