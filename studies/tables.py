"""Tables that are not the paper's, in the form of ``minifpt reproduce``.

    python -m studies.tables                           # list them
    python -m studies.tables NAME [options of minifpt reproduce]
"""

import itertools
import sys
from dataclasses import replace

from minifpt import cli, tasks
from minifpt.experiments import compare, reproduce
from minifpt.experiments.compare import Arm, Column
from minifpt.experiments.reproduce import (
    BITS,
    CIFAR,
    EXTRA_RATES,
    IMAGES,
    LANGUAGE,
    LSTM,
    LSTM_WHOLE,
    MEMORY,
    MNIST,
    PLUS_ATTENTION,
    PLUS_MLP,
    RANDOM,
    SCALED,
    SMALL,
    STATISTICS,
    WHOLE,
    XOR,
    Table,
)
from studies.sweeps import LongTable, grid_of, long_arm

AS_THE_PAPER = {"length": 1999, "least": 501, "depth": 9, "arguments": 10, "cut": 512}  # ListOps
NEXT_BYTE = Column("text", {"tokens": 64}, {"steps": 600})
TYPOS = Column("typos", {}, {"steps": 600})
FEW_LABELS = "studies/tasks.py:Few"
FEW = Column(FEW_LABELS, {"labels": 200}, {"steps": 300}, "few-digits")
LARGE_MEMORY = Column("bit-memory", {"bits": 1000, "patch": 50},
                      {"steps": 1000, "batch_size": 8}, "bit-memory-1000")

READ_WHOLE = Arm("minigpt-language", "full", "language, all trained", EXTRA_RATES)
# Half of novels' weights each, the other half drawn anew.
HALVES = tuple(Arm(f"{rest}+attn,mlp={frozen}", label=f"novels, {half} part alone")
               for rest, frozen, half in ((STATISTICS.trunk, LANGUAGE.trunk, "frozen"),
                                          (LANGUAGE.trunk, STATISTICS.trunk, "trained")))
IMAGE_STATISTICS = Arm("statistics:minigpt-images", label="statistics of images")


def adapted(trunks, ranks=(1,)):
    """Return arms that train other parts than the paper does, besides input and output: layer norms
    or adapters, with about equal numbers of parameters at rank 1."""
    fixed = "attn,mlp,pos,ln"
    parts = (
        (fixed, "nothing more", None), ("attn,mlp,pos", "layer norms", None),
        (fixed, "biases", "bitfit"),
        *((fixed, f"low rank {rank}", f"lora:rank={rank},on=attn.c_attn") for rank in ranks))
    return tuple(Arm(trunk.trunk, mask, f"{trunk.full_label()}, {label}", (), adapter)
                 for trunk in trunks for mask, label, adapter in parts)


TINY = (Arm("minigpt-tiny", label="language"),
        Arm("statistics:minigpt-tiny", label="statistics"),
        Arm("random:2x2x32", label="random"))


def trained(mask, label):
    """Return an arm of the language trunk with another mask."""
    return Arm("minigpt-language", mask, label)


def long(task, options, steps=None):
    """Return the column of a task in long runs, by default with its own number of steps."""
    steps = steps or tasks.defaults_of(tasks.task_class(task))["steps"]
    return Column(task, options, {"steps": steps, "eval_every": steps // 10,
                                  "test_examples": 2000}, f"{task}-long")


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
        (SMALL, RANDOM, SCALED, STATISTICS, BITS, LANGUAGE)),
    "learning-rates": Table(
        "Frozen trunks and trunks trained in full, each at its own learning rate.",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, STATISTICS, RANDOM,
         READ_WHOLE, WHOLE)),
    "overfitting": Table(
        "Frozen and trained whole with few labelled MNIST images.",
        tuple(Column(FEW_LABELS, {"of": "mnist", "labels": n}, {"steps": 300}, f"few-mnist-{n}")
              for n in (10, 100, 1000)),
        (LANGUAGE, RANDOM, WHOLE)),
    "transfer": Table(
        "Related and unrelated sources and targets: the next byte and the typos in novels, and "
        "printed digits with 200 labels.",
        (NEXT_BYTE, TYPOS, FEW),
        (LANGUAGE, STATISTICS, IMAGES, IMAGE_STATISTICS, RANDOM, SCALED, SMALL)),
    "blocks": Table(
        "Which statistics matter: random weights of which some parts have the standard deviations "
        "of the language trunk's.", (MEMORY,),
        (SMALL, *(Arm(model, label=label) for model, label in (
            ("random@gpt2+attn=statistics:minigpt-language",
             "random (0.02) + attention of statistics"),
            ("random@gpt2+h.0.attn.*=statistics:minigpt-language",
             "random (0.02) + first block's attention of statistics"),
            ("statistics:minigpt-language+h.0.attn.*=random@gpt2",
             "statistics + first block's attention of random (0.02)"),
            ("statistics:minigpt-language+h.0.*=random@gpt2",
             "statistics + first block of random (0.02)"),
            ("statistics:minigpt-language+h.0.attn.*,h.0.mlp.*=random@gpt2",
             "statistics + first block's attention and feed-forward of random (0.02)"))),
         STATISTICS)),
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
        (LANGUAGE, Arm("minillama-language", label="language (Llama)"), RANDOM,
         Arm("random:llama:6x4x128", label="random (Llama)"))),
    "ranks": Table(
        "What to train besides input and output of a trunk of 6 blocks and 128 channels, and the "
        "rank that a low-rank adapter needs: positions are frozen.",
        (MEMORY,), adapted((LANGUAGE, STATISTICS, RANDOM), ranks=(1, 4, 8, 16))),
    "mnist-long": LongTable(
        "MNIST in long runs (tables 1, 2, 3, 4 and 8).",
        (long("mnist", {}),),
        (*(long_arm(arm, 5) for arm in (LANGUAGE, RANDOM, WHOLE, READ_WHOLE)),
         *map(long_arm, (IMAGES, BITS, STATISTICS, LSTM, LSTM_WHOLE, PLUS_MLP, PLUS_ATTENTION,
                       Arm("random:4x8x256", label="random, 4 blocks of 256"))))),
    "cifar10-long": LongTable(
        "CIFAR-10 in long runs (tables 1, 2, 3, 6 and 8).",
        (long("cifar10", {}),),
        (long_arm(LANGUAGE), long_arm(RANDOM), *(long_arm(arm, 2) for arm in (
            replace(WHOLE, trunk="random:3x4x128"), PLUS_MLP, PLUS_ATTENTION, READ_WHOLE,
            IMAGES, BITS, STATISTICS, LSTM, LSTM_WHOLE, *(
                Arm(f"random:{n}x4x128", label=f"random, {n} blocks")
                for n in (2, 12)))))),
    "listops-long": LongTable(
        "ListOps in long runs, and with 512 tokens as in the paper (tables 1, 2, 3, 4 and 8).",
        (long("listops", {}),
         Column("listops", AS_THE_PAPER, {"steps": 2_400, "eval_every": 240, "batch_size": 4,
                                          "test_examples": 1000}, "listops-512")),
        (*map(long_arm, (LANGUAGE, RANDOM, STATISTICS, *HALVES)), *(long_arm(arm, 2) for arm in (
            WHOLE, PLUS_MLP, PLUS_ATTENTION, READ_WHOLE, BITS, IMAGES, LSTM, LSTM_WHOLE)))),
    "memory-long": LongTable(
        "Bit memory in long runs, for a trunk pretrained on images (table 2).",
        (long("bit-memory", {}, 10_000),), (replace(long_arm(IMAGES), rates=(0.1, 0.3)),),
        rates=(1e-2, 3e-2)),
    "gray-long": LongTable(
        "CIFAR-10 in grey, with a pixel in each token, in long runs (tables 1 and 2).",
        (long("cifar10-gray", {}, 10_000),),
        tuple(long_arm(arm, 1) for arm in (LANGUAGE, RANDOM, WHOLE, LSTM_WHOLE))),
}

ALL = reproduce.TABLES | STUDIES


def main():
    """Run ``minifpt reproduce`` with these tables instead of the paper's."""
    reproduce.TABLES, compare.grid_of = STUDIES, grid_of
    return cli.main(["reproduce", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
