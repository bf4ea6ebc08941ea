"""Time a training step on one core, with BLAS's threads, and in pieces that the cores share.

    python -m benchmarks.cores [--rounds 5] [--busy 0,1] [--only "GPT-2 base, 4 x 64"]

Attention and feed-forward are frozen.  The three forms take turns in one process, first without
other work, then beside a process that keeps one core busy.  *BLAS's threads* lets OpenBLAS share
each matrix product and shares nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import minifpt
from minifpt import fast, machine, tasks
from minifpt.gpt2 import SHAPES

from .step import Numbers, alternate
from .train import our_fpt

ROWS = {
    "small trunk, 4 x 10": ("minigpt", tasks.get("bit-xor"), 4),
    "small trunk, 4 x 120": ("minigpt", Numbers(120, 16), 4),
    "small trunk, 16 x 49": ("minigpt", Numbers(49, 16), 16),
    "GPT-2 base, 4 x 10": ("gpt2", Numbers(10), 4),
    "GPT-2 base, 4 x 64": ("gpt2", Numbers(64), 4),
    "GPT-2 base, 4 x 120": ("gpt2", Numbers(120), 4),
}


def uncut(a, b, bias=None):
    """Return a product computed in one piece."""
    y = a @ b
    if bias is not None:
        y += bias
    return y


@contextmanager
def blas_threads():
    """Let OpenBLAS share the products, and share nothing else, within the block."""
    with ExitStack() as undo:
        undo.enter_context(patch.object(fast, "product", uncut))
        undo.enter_context(patch.object(machine, "cores", lambda: 1))
        yield


FORMS = {"one core": lambda: machine.one_core, "BLAS's threads": blas_threads,
         "shared": nullcontext}


def within(form, step):
    """Return a function that does the step in that form."""
    def run():
        with form():
            step()
    return run


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--rounds", type=int, default=5)
    top.add_argument("--busy", default="0,1", help="numbers of busy processes")
    top.add_argument("--only", choices=list(ROWS))
    args = top.parse_args()
    print(f"{machine.cores()} cores, OpenBLAS {machine.blas_kernels()}, medians of {args.rounds} "
          f"rounds\n\n| step | busy beside it | {' | '.join(FORMS)} |\n|---|---|---|---|---|",
          flush=True)
    for name in [args.only] if args.only else ROWS:
        shape, task, batch = ROWS[name]
        config = minifpt.GPT2Config(**SHAPES[shape], dropout=0.0)
        step = our_fpt(minifpt.GPT2(config), task, batch, "fpt")
        for busy in map(int, args.busy.split(",")):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                      for _ in range(busy)]
            time.sleep(0.2)
            try:
                table = alternate([within(form, step) for form in FORMS.values()], args.rounds)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            median = [1e3 * statistics.median(row[i] for row in table) for i in range(len(FORMS))]
            cells = " | ".join(f"{ms:.4g} ms" for ms in median)
            print(f"| {name} | {busy} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
