"""Time the import of the package, and loading GPT-2 base against reading its file's bytes.

    python -m benchmarks.load [--model gpt2] [--rounds 5]

The import is timed in new processes, after NumPy's import.  The file is in the system's cache.
Loading means ``LanguageModel.from_pretrained``, which checks every byte against the file's CRC-32.
The figures are medians over the rounds.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("--model", default="gpt2", choices=list(SHAPES))
    top.add_argument("--rounds", type=int, default=5)
    args = top.parse_args()
    imports = [float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True,
                                    check=True).stdout) for _ in range(args.rounds)]
    print(f"import minifpt, beyond NumPy's import: {statistics.median(imports):.3f} s")
    model = minifpt.LanguageModel(minifpt.GPT2Config(**SHAPES[args.model]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        model.save(path)
        size = path.stat().st_size / 1e6
        reading = seconds(path.read_bytes, args.rounds)
        loading = seconds(lambda: minifpt.LanguageModel.from_pretrained(path), args.rounds)
    print(f"{args.model}, {size:.0f} MB: reading the bytes {reading:.3f} s, "
          f"loading {loading:.3f} s")


if __name__ == "__main__":
    main()
