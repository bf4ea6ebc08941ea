"""Tables that are not the paper's, in the form of ``minifpt reproduce``.

    python -m benchmarks.tables                           # list them
    python -m benchmarks.tables NAME [options of minifpt reproduce]
"""

import itertools
import sys

from minifpt import cli
from minifpt.experiments import reproduce
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
    READ_WHOLE,
    SCALED,
    STATISTICS,
    WHOLE,
    XOR,
    Table,
    trained,
)

NEXT_BYTE = Column("text", {"tokens": 64}, {"steps": 600})
TYPOS = Column("typos", {}, {"steps": 600})
FEW_LABELS = "benchmarks/tasks.py:Few"
FEW = Column(FEW_LABELS, {"labels": 200}, {"steps": 300}, "few-digits")
LARGE_MEMORY = Column("bit-memory", {"bits": 1000, "patch": 50},
                      {"steps": 1000, "batch_size": 8}, "bit-memory-1000")

IMAGE_STATISTICS = Arm("statistics:minigpt-images", label="statistics of images")


def adapted(trunks, ranks=(1,)):
    """Return arms that train other parts than the paper does, besides input and output: layer norms
    or adapters, with about equal numbers of parameters at rank 1."""
    fixed = "attn,mlp,pos,ln"
    parts = (
        (fixed, "nothing more", None), ("attn,mlp,pos", "layer norms", None),
        (fixed, "biases", "bitfit"),
        *((fixed, f"low rank {rank}", f"lora:rank={rank},on=attn.c_attn") for rank in ranks),
        (fixed, "bottleneck", "bottleneck:size=2,on=attn"))
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
        (RANDOM, AS_PAPER, SCALED, STATISTICS, BITS, LANGUAGE)),
    "learning-rates": Table(
        "Frozen trunks and trunks trained in full, each at its own learning rate.",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, STATISTICS, AS_PAPER,
         READ_WHOLE, WHOLE)),
    "overfitting": Table(
        "Frozen and trained whole with few labelled MNIST images.",
        tuple(Column(FEW_LABELS, {"of": "mnist", "labels": n}, {"steps": 300}, f"few-mnist-{n}")
              for n in (10, 100, 1000)),
        (LANGUAGE, AS_PAPER, WHOLE)),
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
        rates=()),
    "adapters": Table(
        "What to train besides input and output, at about equal numbers, on the small trunk that "
        "ships (2 blocks of 32 channels): positions are frozen.",
        (MEMORY, MNIST, CIFAR, TYPOS), adapted(TINY)),
    "architecture": Table(
        "Frozen language and frozen random weights in GPT-2's shape and in Llama's.",
        (XOR, MEMORY, MNIST, TYPOS),
        (LANGUAGE, Arm("minillama-language", label="language (Llama)"), AS_PAPER,
         Arm("random:llama:6x4x128@paper", label="random (paper, Llama)"))),
    "ranks": Table(
        "What to train besides input and output of a trunk of 6 blocks and 128 channels, and the "
        "rank that a low-rank adapter needs: positions are frozen.",
        (MEMORY,), adapted((LANGUAGE, STATISTICS, AS_PAPER), ranks=(1, 4, 8, 16))),
}

ALL = reproduce.TABLES | STUDIES


def main():
    """Run ``minifpt reproduce`` with these tables instead of the paper's."""
    reproduce.TABLES = STUDIES
    return cli.main(["reproduce", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
