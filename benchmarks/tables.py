"""Tables that are not the paper's, in the form of ``minifpt reproduce``.

    python -m benchmarks.tables                           # list them
    python -m benchmarks.tables NAME [options of minifpt reproduce]
"""

import itertools
import re
import sys

import numpy as np

from minifpt import cli
from minifpt.experiments import reproduce, tables
from minifpt.experiments.compare import Arm, Column
from minifpt.experiments.reproduce import (
    AS_PAPER,
    BITS,
    CIFAR,
    IMAGES,
    LANGUAGE,
    MEMORY,
    MNIST,
    RANDOM,
    RATES,
    READ_WHOLE,
    SCALED,
    STATISTICS,
    WHOLE,
    XOR,
    Table,
    trained,
)
from minifpt.files import plots

NEXT_BYTE = Column("text", {"tokens": 64}, {"steps": 600})
TYPOS = Column("typos", {}, {"steps": 600})
FEW = Column("few", {"labels": 200}, {"steps": 300})
LARGE_MEMORY = Column("bit-memory", {"bits": 1000, "patch": 50},
                      {"steps": 1000, "batch_size": 8}, "bit-memory-1000")
RECALL = Column("bit-recall", {"items": 16}, {"steps": 6000, "schedule": "constant"})

IMAGE_STATISTICS = Arm("statistics:minigpt-images", label="statistics of images")
MIMETIC = Arm("mimetic")
BRACKETS = Arm("minigpt-brackets.npz")                    # written by minifpt pretrain brackets
BRACKET_STATISTICS = Arm("statistics:minigpt-brackets.npz", label="statistics of brackets")


def gap(grid, task, model):
    """Return a cell: training accuracy less test accuracy, then both."""
    train, test = (100 * np.mean([h[-1][name] for h in grid.results[task][model]])
                   for name in ("train_accuracy", "test_accuracy"))
    return f"{train - test:.1f}: {train:.1f} and {tables.final(grid, task, model)}"


def heat_map(results, path):
    """Draw the final accuracy of random trunks on one task as a map, with an axis for each depth.

    A map has the spread of the weights across and the width of a head upwards.  Each cell shows the
    mean and the range over seeds."""
    (task, models), = results.items()
    cells = {}
    for label, runs in models.items():
        match = re.search(r"(\d+)x(\d+)x(\d+), spread ([\d.]+)", label)
        depth, heads, channels, spread = map(float, match.groups())
        cells[int(depth), int(channels / heads), spread] = [
            100 * h[-1]["test_accuracy"] for h in runs]
    depths, widths, spreads = (sorted({key[i] for key in cells}) for i in range(3))
    fig, axes = plots.figure(len(depths))
    for ax, depth in zip(axes, depths, strict=True):
        values = np.array([[np.mean(cells.get((depth, width, spread), np.nan))
                            for spread in spreads] for width in widths])
        ax.imshow(values, cmap="viridis", vmin=75, vmax=100, aspect="auto", origin="lower")
        for i, width in enumerate(widths):
            for j, spread in enumerate(spreads):
                ends = cells.get((depth, width, spread))
                ax.text(j, i, f"{np.mean(ends):.1f}\n({min(ends):.1f} to {max(ends):.1f})"
                        if ends else "not run", ha="center", va="center", fontsize=8.5,
                        color="white" if ends and np.mean(ends) <= 90 else "black")
        ax.grid(False)
        solved, run = (values > 99).sum(), np.isfinite(values).sum()
        ax.set(title=f"{depth} block{'s' * (depth > 1)}: {solved} of {run} solve it",
               ylabel="channels of a head", xlabel="spread of the weights x sqrt(channels)",
               xticks=range(len(spreads)), xticklabels=spreads, yticks=range(len(widths)),
               yticklabels=widths)
    plots.save(fig, path, tables.KIND)


def adapted(trunks, bottleneck, tokens, ranks=(1,)):
    """Return arms that train other parts than the paper does, besides input and output: layer norms
    or adapters.  ``bottleneck`` channels and ``tokens`` of a prefix make their numbers about equal.
    """
    fixed = "attn,mlp,pos,ln"
    parts = (
        (fixed, "nothing more", None), ("attn,mlp,pos", "layer norms", None),
        (fixed, "biases", "bitfit"),
        *((fixed, f"low rank {rank}", f"lora:rank={rank},on=attn.c_attn") for rank in ranks),
        (fixed, "bottleneck", f"bottleneck:size={bottleneck},on=attn"),
        (fixed, "prefix", f"prefix:tokens={tokens}"))
    return tuple(Arm(trunk.model, mask, f"{trunk.full_label()}, {label}", (), adapter)
                 for trunk in trunks for mask, label, adapter in parts)


TINY = (Arm("minigpt-tiny", label="language"),
        Arm("statistics:minigpt-tiny", label="statistics"),
        Arm("random:2x2x32@paper", label="random (paper)"))

STUDIES = {
    "groups": Table(
        "Which of the trained groups matters: each is added to the output layer in turn, or left "
        "out.",
        (XOR, MNIST),
        (trained("output-only", "output layer alone"),
         trained("attn,mlp,pos,ln", "output, input"),
         trained("attn,mlp,pos", "output, input, layer norms"), LANGUAGE,
         trained("attn,mlp,ln", "all but layer norms"),
         trained("attn,mlp,input", "all but input"),
         trained("attn,mlp,input,pos,output", "layer norms alone"))),
    "statistics": Table(
        "Which part of pretraining is enough: steps from random weights to the language trunk's.",
        (XOR, MEMORY, MNIST, TYPOS, FEW),
        (RANDOM, AS_PAPER, SCALED, MIMETIC, STATISTICS, BITS, LANGUAGE)),
    "formal": Table(
        "Pretraining on nested brackets, which a rule makes, against pretraining on language.  "
        "It needs the file that minifpt pretrain brackets writes.",
        (XOR, MEMORY, MNIST), (LANGUAGE, BRACKETS, BRACKET_STATISTICS, AS_PAPER, SCALED)),
    "learning-rates": Table(
        "Frozen trunks and trunks trained in full, each at its own learning rate.",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, STATISTICS, AS_PAPER,
         READ_WHOLE, WHOLE)),
    "overfitting": Table(
        "Training accuracy, test accuracy and their difference with few labelled MNIST images.",
        tuple(Column("few", {"of": "mnist", "labels": n}, {"steps": 300}, f"few-mnist-{n}")
              for n in (10, 100, 1000)),
        (LANGUAGE, AS_PAPER, WHOLE), cell=gap),
    "transfer": Table(
        "Related and unrelated sources and targets: the next byte and the typos in novels, and "
        "printed digits with 200 labels.",
        (NEXT_BYTE, TYPOS, FEW),
        (LANGUAGE, STATISTICS, IMAGES, IMAGE_STATISTICS, AS_PAPER, SCALED, RANDOM)),
    "blocks": Table(
        "Which statistics matter: random weights of which some parts have the standard deviations "
        "of the language trunk's.", (MEMORY,),
        (RANDOM, *(Arm(model, label=label) for model, label in (
            ("random+attn=statistics:minigpt-language", "random + attention of statistics"),
            ("random+h.0.attn.*=statistics:minigpt-language",
             "random + first block's attention of statistics"),
            ("statistics:minigpt-language+h.0.attn.*=random",
             "statistics + first block's attention of random"),
            ("statistics:minigpt-language+h.0.*=random", "statistics + first block of random"),
            ("statistics:minigpt-language+h.0.attn.*,h.0.mlp.*=random",
             "statistics + first block's attention and feed-forward of random"))), STATISTICS)),
    "memory": Table(
        "Bit memory at the paper's size on one and two frozen random blocks of 256 channels: the "
        "spread of the weights against the width of a head.", (LARGE_MEMORY,),
        tuple(Arm(f"random:{depth}x{256 // width}x256@{spread}") for depth, width, spread in (
            *itertools.product((1,), (32, 64, 128), (0.55, 1.0, 1.41)),
            *itertools.product((2,), (64, 128), (1.0, 1.41)))),
        rates=(), picture=heat_map),
    "recall": Table(
        "Associative recall of bits: the string that followed the query, one of 16.",
        (RECALL,),
        (LANGUAGE, STATISTICS, AS_PAPER, SCALED, RANDOM, Arm("random:2x2x128@1.41"), WHOLE)),
    "adapters": Table(
        "What to train besides input and output, at about equal numbers, on the small trunk that "
        "ships (2 blocks of 32 channels): positions are frozen.",
        (MEMORY, MNIST, CIFAR, TYPOS), adapted(TINY, bottleneck=2, tokens=10)),
    "architecture": Table(
        "Frozen language and frozen random weights in GPT-2's shape and in Llama's.",
        (XOR, MEMORY, MNIST, TYPOS),
        (LANGUAGE, Arm("minillama-language", label="language (Llama)"), AS_PAPER,
         Arm("random:llama:6x4x128@paper", label="random (paper, Llama)"))),
    "width": Table(
        "Trained embeddings alone, against the paper's trained parts, on two frozen random blocks "
        "of several widths, with heads of 32 channels.",
        (Column("modular"), Column("recall"), Column("addition")),
        tuple(Arm(f"random:2x{width // 32}x{width}@paper", mask, f"{width}, {label}", rates)
              for label, mask, rates in (("embeddings alone", "attn,mlp,ln", (1e-3, 3e-4)),
                                         ("FPT", "fpt", ()))
              for width in (32, 64, 128)), rates=RATES[1:]),
    "ranks": Table(
        "What to train besides input and output of a trunk of 6 blocks and 128 channels, and the "
        "rank that a low-rank adapter needs: positions are frozen.",
        (MEMORY,), adapted((LANGUAGE, STATISTICS, AS_PAPER), bottleneck=2, tokens=26,
                           ranks=(1, 4, 8, 16))),
}

ALL = reproduce.TABLES | STUDIES


def main():
    """Run ``minifpt reproduce`` with these tables instead of the paper's."""
    reproduce.TABLES = STUDIES
    return cli.main(["reproduce", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
