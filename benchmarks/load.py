"""Time the import of the package, and loading GPT-2 base against reading its file's bytes.

    python -m benchmarks.load [--model gpt2] [--rounds 5]

The import is timed in new processes, after NumPy's import.  The file is read from the system's
cache.  Reading means all bytes in pieces of 1 MB.  Loading
means ``LanguageModel.from_pretrained``, which checks every byte against the file's CRC-32.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import minifpt
from minifpt.gpt2 import SHAPES

IMPORT = ("import time, numpy; start = time.perf_counter(); import minifpt; "
          "print(time.perf_counter() - start)")


def seconds(work, rounds):
    """Return the median time of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read(path):
    """Read all bytes of a file and forget them."""
    piece = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as f:
        while f.readinto(piece):
            pass


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--model", default="gpt2", choices=list(SHAPES))
    top.add_argument("--rounds", type=int, default=5)
    args = top.parse_args()
    times = [float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True,
                                  check=True).stdout) for _ in range(args.rounds)]
    print(f"import minifpt, beyond NumPy's import: {statistics.median(times):.3f} s (median of "
          f"{args.rounds})\n\n| {args.model}, file | size | reading | loading "
          "| speed of loading / of reading |\n|---|---|---|---|---|")
    model = minifpt.LanguageModel(minifpt.GPT2Config(**SHAPES[args.model]))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (np.float32, np.float16):
            path = Path(folder) / f"{dtype.__name__}.npz"
            model.save(path, dtype)
            size = path.stat().st_size / 1e6
            a = seconds(lambda path=path: read(path), args.rounds)
            b = seconds(lambda path=path: minifpt.LanguageModel.from_pretrained(path), args.rounds)
            print(f"| {dtype.__name__} | {size:.0f} MB | {a:.3f} s, {size / a:.0f} MB/s | "
                  f"{b:.3f} s, {size / b:.0f} MB/s | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
