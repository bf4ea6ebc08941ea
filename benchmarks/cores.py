"""Time a training step on one core, with BLAS's threads, and with work that the cores share.

    python -m benchmarks.cores [--rounds 5] [--busy 0,1] [--only "GPT-2 base, 4 x 64"]

The steps are those of ``benchmarks.train``.  The three forms take turns in one process, first
without other work, then beside a process that keeps one core busy.  *BLAS's threads* lets OpenBLAS
share each matrix product and shares nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

from minifpt import fast, machine

from .train import ROWS, alternate, ours


def uncut(a, b, bias=None):
    """Return a product computed in one piece."""
    y = a @ b
    if bias is not None:
        y += bias
    return y


@contextmanager
def blas_threads():
    """Let OpenBLAS share the products, and share nothing else, within the block."""
    with patch.object(fast, "product", uncut), machine.one_core:
        machine.blas_threads(machine.cores())
        yield
        machine.blas_threads(1)


FORMS = {"one core": lambda: machine.one_core, "BLAS's threads": blas_threads,
         "shared": nullcontext}


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
        step = ours(name)
        for busy in map(int, args.busy.split(",")):
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                      for _ in range(busy)]
            time.sleep(0.2)
            try:
                table = alternate([(step, form) for form in FORMS.values()], args.rounds)
            finally:
                for other in others:
                    other.kill()
                    other.wait()
            cells = " | ".join(f"{1e3 * statistics.median(column):.4g} ms"
                               for column in zip(*table, strict=True))
            print(f"| {name} | {busy} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
