"""Read expressions of the Long Range Arena with the authors' own code, and compare its tokens.

    git clone https://github.com/kzl/universal-computation
    pip install tensorflow-cpu tensorflow-datasets
    python -m benchmarks.authors_listops universal-computation

It draws expressions as the Arena does, writes them in the form of its files, and gives these to the
function from which the authors' program takes its batches.  It prints their symbols, and whether
their tokens are those that our task shows with ``cut=512``, in another order, without padding.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from minifpt import tasks
from minifpt.experiments import reproduce
from minifpt.tasks.listops import PAD, SYMBOLS

SIZES = {"train": 1200, "val": 8, "test": 64}             # they take their symbols from 1,001


def arena(ids):
    """The Arena's form of an expression, a pair of round brackets around each two of its parts:
    ``( ( ( [MAX 4 ) 3 ) ] )``."""
    rest = iter(ids)

    def part(symbol):
        if symbol < 10:
            return SYMBOLS[symbol]
        text = SYMBOLS[symbol]
        while SYMBOLS[symbol := next(rest)] != "]":
            text = f"( {text} {part(symbol)} )"
        return f"( {text} ] )"
    return part(next(rest))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="of their repository")
    args = parser.parse_args()
    sys.path.insert(0, args.folder)
    import tensorflow_datasets
    from universal_computation.datasets.helpers.listops import get_datasets

    task, rng, ours = tasks.get("listops", **reproduce.AS_THE_PAPER), np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as folder:
        for split, size in SIZES.items():
            expressions = [task.expression(rng) for _ in range(size)]
            Path(folder, f"basic_{split}.tsv").write_text("Source\tTarget\n" + "".join(
                f"{arena(ids)}\t{value}\n" for ids, value in expressions))
        for ids, value in expressions:                    # of the test split
            shown = [SYMBOLS[i].strip("[") for i in task.padded(ids) if i != PAD]
            ours.append((shown, int(value)))
        _, _, test, encoder = get_datasets(1, "basic", folder + "/", batch_size=4)
        theirs = [([encoder.tokens[i - 1] for i in row if i > 0], int(value))
                  for batch in tensorflow_datasets.as_numpy(test)
                  for row, value in zip(batch["inputs"], batch["targets"], strict=True)]
    print("their symbols:", *sorted(encoder.tokens))
    print("their tokens are ours:", sorted(theirs) == sorted(ours))
    print(f"{sum(len(row) == task.tokens for row, _ in theirs)} of {len(theirs)} are full")


if __name__ == "__main__":
    main()
