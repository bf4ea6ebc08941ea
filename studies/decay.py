"""Reading, or weight decay? How many strong directions pretraining leaves in a head.

    python -m studies.decay --text FOLDER [--shape 2x2x32] [--folder runs] [--out FOLDER]

A trunk is pretrained on the same books with another weight decay, or on their characters in random
order, which keeps how often each comes and nothing else.  All else is as ``minifpt pretrain
language`` has it.  Every trunk is a row of ``OUT/decay.csv``, by default in ``studies/results``;
one that is there is skipped.
"""

import argparse
from pathlib import Path

import numpy as np

import minifpt
from minifpt.experiments.pretrain import pretrain
from minifpt.machine import one_core
from minifpt.tasks.text import read_book, text_files
from studies import directions
from studies.runs import RESULTS, fill

ARMS = ("in order", "0"), ("in order", "0.1"), ("in order", "0.3"), ("shuffled", "0.1")
SEEDS = "0", "1"
KEY = "shape", "text", "weight_decay", "seed"


def shuffle(files, folder):
    """Write each book, its characters in random order, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for path in text_files(files):
        characters = [*read_book(path).decode()]
        (folder / path.name).write_text("".join(rng.permutation(characters)), encoding="utf-8",
                                        newline="")


@one_core
def run(setting, files, folder):
    """Pretrain one trunk, and return its row, with means over its heads."""
    shape, text, decay, seed = setting.values()
    if text == "shuffled":
        shuffle(files, folder / "shuffled")
        files = [folder / "shuffled"]
    out = folder / "-".join([shape, text.replace(" ", "-"), decay, seed])
    history = pretrain("language", f"{out}.npz", shape=shape, text=files, seed=int(seed),
                       weight_decay=float(decay), resume=out.exists(), force=True)
    trunk = minifpt.trunks.get(f"{out}.npz")
    numbers = zip(("directions", "norm", "largest", "mean_trace"), directions.measures(trunk),
                  strict=True)
    return setting | {"test_loss": f"{history[-1]['test_loss']:.4f}"} | {
        name: f"{value:.4g}" for name, value in numbers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", nargs="+", required=True, help="books, or folders of *.txt")
    parser.add_argument("--shape", default="2x2x32", help="blocks x heads x channels")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="of the trunks")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    args = parser.parse_args()
    settings = [dict(zip(KEY, (args.shape, *arm, seed), strict=True))
                for seed in SEEDS for arm in ARMS]
    fill(args.out / "decay.csv", settings, lambda setting: run(setting, args.text, args.folder),
         key=lambda row: [row[name] for name in KEY])


if __name__ == "__main__":
    main()
