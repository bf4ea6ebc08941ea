"""The paper's tables, each by its name: ``minifpt reproduce NAME``.

A table is a grid of tasks and arms (see :mod:`minifpt.experiments.compare`), in which each arm
takes its own learning rate.  All tables of one folder share their runs, so that the second costs
less.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .. import tasks
from ..checks import whole
from ..files import outputs
from ..freeze import FreezeMask
from ..reports import plots
from ..trunks.names import TrunkSpec
from . import compare, tables
from .compare import Arm, Column
from .plan import duration, plan

RATES = 1e-3, 3e-3, 1e-2, 3e-2
LEVELS = 0.5, 0.75, 0.9                                   # of the way to the best arm's accuracy
SMALLER = (3e-4,)                                         # what is trained whole needs it

# ------------------------------------------------------------------------- what tables are made of

XOR = Column("bit-xor", {}, {"steps": 2000})
MEMORY = Column("bit-memory", {}, {"steps": 2000})
MNIST = Column("mnist", {}, {"steps": 500})
LISTOPS = Column("listops", {}, {"steps": 500})
CIFAR = Column("cifar10", {}, {"steps": 500})
NEXT_BYTE = Column("text", {"tokens": 64}, {"steps": 600})
TYPOS = Column("typos", {}, {"steps": 600})
FEW = Column("few", {"labels": 200}, {"steps": 300})
LARGE_MEMORY = Column("bit-memory", {"bits": 1000, "patch": 50},
                      {"steps": 1000, "batch_size": 8}, "bit-memory-1000")

LANGUAGE, BITS, IMAGES = (Arm(f"minigpt-{name}") for name in ("language", "bits", "images"))
STATISTICS = Arm("statistics:minigpt-language")
IMAGE_STATISTICS = Arm("statistics:minigpt-images", label="statistics of images")
# Random weights as the paper's code draws them; at the same spread, with OpenAI's division of the
# matrices that write; at 0.02, which is small for 128 channels.
AS_PAPER, SCALED, RANDOM = Arm("random@paper"), Arm("random@0.55"), Arm("random")
MIMETIC = Arm("mimetic")
BRACKETS = Arm("minigpt-brackets.npz")                    # by minifpt pretrain brackets
BRACKET_STATISTICS = Arm("statistics:minigpt-brackets.npz", label="statistics of brackets")

# The paper's tasks at the paper's size, and its own settings: batch 4, a constant rate, dropout
# 0.1; the steps are those that its random trunk needs (table 4).
PAPER = {"batch_size": 4, "lr": 1e-3, "dropout": 0.1, "schedule": "constant", "warmup": 0}
PAPER_SIZE = {
    "bit-xor": Column("bit-xor", {}, PAPER | {"steps": 20_000}),
    "bit-memory": Column("bit-memory", {"bits": 1000, "patch": 50}, PAPER | {"steps": 40_000}),
    "mnist": Column("mnist", {"size": 32}, PAPER | {"steps": 20_000}),
    "listops": Column("listops", {"length": 512, "depth": 10}, PAPER | {"steps": 6_000}),
    "cifar10": Column("cifar10", {}, PAPER | {"steps": 400_000}),
}
PAPER_TRUNKS = {"minigpt-language": "gpt2", "random@paper": "random:gpt2@paper",
                "random": "random:gpt2", "random@0.55": "random:gpt2",
                "statistics:minigpt-language": "statistics:gpt2",
                "random:2x4x128@0.55": "gpt2", "random:6x4x128@0.55": "gpt2-medium",
                "random:12x4x128@0.55": "gpt2-large"}


@dataclass(frozen=True)
class Table:
    """One table: what it shows, its tasks, its arms, the paper's numbers."""

    shows: str
    columns: tuple
    arms: tuple
    paper: dict = field(default_factory=dict)             # {(arm's label, task): text}
    rates: tuple = RATES
    cell: Callable = tables.final
    picture: Callable = tables.picture
    needs: dict = field(default_factory=dict)             # {a file: the command that makes it}

    def check(self):
        """Raise ``FileNotFoundError`` for a file that it needs in the working folder."""
        for file, command in self.needs.items():
            if not Path(file).exists():
                raise FileNotFoundError(f"reproduce: there is no {file} here: first run {command}")

    def text(self, found):
        """The table as Markdown."""
        return tables.table(found, self.cell, self.paper)

    def at_paper_scale(self):
        """The same on GPT-2, with the paper's sizes and settings: without what has no counterpart
        there."""
        columns = [PAPER_SIZE[c.task] for c in self.columns if not c.title and c.task in PAPER_SIZE]
        arms = {}
        for arm in self.arms:
            if arm.model in PAPER_TRUNKS:                 # at its width 0.02 is the spread 0.55
                theirs = replace(arm, model=PAPER_TRUNKS[arm.model], label=arm.called())
                arms.setdefault((theirs.model, theirs.freeze), theirs)
        if not (columns and arms):
            raise ValueError("reproduce: this table has nothing at the paper's scale")
        paper = {(arm, PAPER_SIZE[task].task): text for (arm, task), text in self.paper.items()}
        return replace(self, columns=tuple(columns), arms=tuple(arms.values()), paper=paper,
                       rates=(1e-4, 3e-4, 1e-3, 3e-3), needs={})


# ------------------------------------------------------------------------- other cells and pictures


def floor_of(task):
    """Return the chance accuracy of a task, 0 ... 1; 0 where it is not known."""
    return tasks.chance_of(task) or 0.0


def levels(found, task):
    """The accuracies to which steps are counted: ``LEVELS`` of the way from guessing to the final
    mean of the task's best arm."""
    best = max(np.mean([h[-1]["test_accuracy"] for h in runs])
               for runs in found.results[task].values())
    return [floor_of(task) + level * (best - floor_of(task)) for level in LEVELS]


def steps_to(found, task, model):
    """A cell: after how many steps the test accuracy first reaches each of the ``levels``, the
    median over seeds, "never" where half of the runs never do; and the mean accuracy over the
    curve, the *area*, with its range."""
    runs, least = found.results[task][model], levels(found, task)
    medians = []
    for level in least:
        first = [tables.first_step(h, level) for h in runs]
        median = np.median([np.inf if step is None else step for step in first])
        medians.append(f"{median:g}" if median < np.inf else "never")
    area = tables.spread([100 * h["test_accuracy"].mean() for h in runs])
    return (f"{' / '.join(medians)} to {' / '.join(f'{100 * x:.1f}' for x in least)} %; area {area}"
            f"{tables.chosen(found, task, model)}")


def gap(found, task, model):
    """A cell: the mean difference of the accuracies on the last training batches and on the test,
    then both."""
    train, test = (100 * np.mean([h[-1][name] for h in found.results[task][model]])
                   for name in ("train_accuracy", "test_accuracy"))
    return f"{train - test:.1f}: {train:.1f} and {tables.final(found, task, model)}"


def heat_map(results, path):
    """Final accuracy of random trunks on one task: spread against the width of a head, an axis
    a depth, the mean and the range over seeds written into each cell."""
    (task, models), = results.items()
    cells = {}
    for label, runs in models.items():
        found = re.search(r"(\d+)x(\d+)x(\d+), spread ([\d.]+)", label)
        depth, heads, channels, spread = map(float, found.groups())
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
                of = cells.get((depth, width, spread))
                ax.text(j, i, f"{np.mean(of):.1f}\n({min(of):.1f} to {max(of):.1f})" if of else
                        "not run", ha="center", va="center", fontsize=8,
                        color="white" if of and np.mean(of) <= 90 else "black")
        ax.grid(False)
        ax.set(title=f"{depth} block{'s' * (depth > 1)}", ylabel="channels of a head",
               xlabel="spread of the weights x sqrt(channels)", xticks=range(len(spreads)),
               xticklabels=spreads, yticks=range(len(widths)), yticklabels=widths)
    plots.save(fig, path, tables.KIND)


# ---------------------------------------------------------------------------------------- tables


def trained(mask, label, model="minigpt-language", rates=()):
    """An arm of a language trunk with another mask."""
    return Arm(model, mask, label, rates)


WHOLE = trained("full", "random (spread 0.55), all trained", "random@0.55", SMALLER)
LSTM, LSTM_PLUS = Arm("lstm:3x128"), Arm("lstm:3x128,residual,positions")

TABLES = {
    "figure1": Table(
        "A frozen language trunk, a transformer trained whole, an LSTM trained whole (figure 1).",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, WHOLE, Arm("lstm:3x128", "full", "LSTM, all trained", SMALLER)),
        {("language", "bit-xor"): 100, ("language", "bit-memory"): 100, ("language", "mnist"): 98.0,
         (WHOLE.label, "bit-xor"): 100, (WHOLE.label, "bit-memory"): 100,
         (WHOLE.label, "mnist"): 99.1, ("LSTM, all trained", "bit-xor"): 50.1,
         ("LSTM, all trained", "bit-memory"): 60.9, ("LSTM, all trained", "mnist"): 99.5}),
    "table1": Table(
        "The paper's other tasks: ListOps and CIFAR-10 (table 1 and 2).",
        (LISTOPS, CIFAR), (LANGUAGE, STATISTICS, AS_PAPER, SCALED, RANDOM),
        {("language", "listops"): 38.4, ("language", "cifar10"): 68.2,
         ("random (paper)", "listops"): 34.3, ("random (paper)", "cifar10"): 61.7}),
    "table2": Table(
        "Where the frozen weights come from (tables 1 and 2 of the paper).",
        (XOR, MEMORY, MNIST), (LANGUAGE, BITS, IMAGES, STATISTICS, AS_PAPER, SCALED, RANDOM),
        {("language", "bit-xor"): 100, ("language", "bit-memory"): 100, ("language", "mnist"): 98.0,
         ("bits", "bit-xor"): 100, ("bits", "bit-memory"): 100, ("bits", "mnist"): 97.8,
         ("images", "bit-xor"): 100, ("images", "bit-memory"): 100, ("images", "mnist"): 97.8,
         ("random (paper)", "bit-xor"): 100, ("random (paper)", "bit-memory"): 75.8,
         ("random (paper)", "mnist"): 91.7}),
    "table3": Table(
        "Random and frozen: a transformer against LSTMs (table 3).",
        (XOR, MEMORY, MNIST), (AS_PAPER, SCALED, LSTM, LSTM_PLUS),
        {("random (paper)", "bit-xor"): 100, ("random (paper)", "bit-memory"): 75.8,
         ("random (paper)", "mnist"): 91.7, ("LSTM (3x128)", "bit-xor"): 50.0,
         ("LSTM (3x128)", "bit-memory"): 50.9, ("LSTM (3x128)", "mnist"): 70.9}),
    "table4": Table(
        "Steps until a task is learned (table 4): a half, three quarters and nine tenths of the "
        "way from guessing to the best arm's final accuracy.",
        (XOR, MEMORY, MNIST), (LANGUAGE, BITS, IMAGES, STATISTICS, AS_PAPER, SCALED, RANDOM),
        {("language", "bit-xor"): "500", ("language", "bit-memory"): "10,000",
         ("language", "mnist"): "5,000", ("random (paper)", "bit-xor"): "20,000",
         ("random (paper)", "bit-memory"): "40,000",
         ("random (paper)", "mnist"): "20,000"}, cell=steps_to),
    "table6": Table(
        "Size (table 6): here the depth of a random trunk, as one pretrained size ships; at the "
        "paper's scale GPT-2, medium and large.", (CIFAR,),
        tuple(Arm(f"random:{n}x4x128@0.55", label=label) for n, label in (
            (2, "small"), (6, "medium"), (12, "large"))),
        {(size, "cifar10"): f"{language} (random {drawn})" for size, language, drawn in (
            ("small", 68.2, 61.7), ("medium", 69.8, 64.0), ("large", 72.1, 65.7))}),
    "table8": Table(
        "Training more of the language trunk (table 8).",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, *(trained(mask, f"language, + {label}", rates=SMALLER) for mask, label in (
            ("attn", "feed-forward"), ("mlp", "attention"), ("full", "both")))),
        {("language", "bit-xor"): 100, ("language", "bit-memory"): 100, ("language", "mnist"): 98.0,
         ("language, + feed-forward", "bit-xor"): 100,
         ("language, + feed-forward", "bit-memory"): 100,
         ("language, + feed-forward", "mnist"): 98.3,
         ("language, + attention", "bit-xor"): 100, ("language, + attention", "bit-memory"): 100,
         ("language, + attention", "mnist"): "89.0, diverged",
         ("language, + both", "bit-xor"): 100, ("language, + both", "bit-memory"): 100,
         ("language, + both", "mnist"): "93.1, diverged"}),
    "groups": Table(
        "Which of the trained groups matters: added one by one to the output layer, and left out "
        "one by one.",
        (XOR, MNIST),
        (trained("output-only", "output layer alone"),
         trained("attn,mlp,pos,ln", "output, input"),
         trained("attn,mlp,pos", "output, input, layer norms"), LANGUAGE,
         trained("attn,mlp,ln", "all but layer norms"),
         trained("attn,mlp,input", "all but input"),
         trained("attn,mlp,input,pos,output", "layer norms alone"))),
    "statistics": Table(
        "What of pretraining is enough: from random weights to language's, on every task.",
        (XOR, MEMORY, MNIST, TYPOS, FEW),
        (RANDOM, AS_PAPER, SCALED, MIMETIC, STATISTICS, BITS, LANGUAGE)),
    "formal": Table(
        "Pretrained on nested brackets, which are no data at all, against language; needs the file "
        "that minifpt pretrain brackets writes.",
        (XOR, MEMORY, MNIST), (LANGUAGE, BRACKETS, BRACKET_STATISTICS, AS_PAPER, SCALED),
        needs={BRACKETS.model: "minifpt pretrain brackets"}),
    "learning-rates": Table(
        "Each arm at its own learning rate, frozen and trained whole.",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, STATISTICS, AS_PAPER, SCALED,
         trained("full", "language, all trained", rates=SMALLER), WHOLE)),
    "overfitting": Table(
        "Accuracy on the examples trained on, on the test, and the difference, with few labelled "
        "MNIST images.",
        tuple(Column("few", {"of": "mnist", "labels": n}, {"steps": 300}, f"few-mnist-{n}")
              for n in (10, 100, 1000)),
        (LANGUAGE, AS_PAPER, SCALED, WHOLE), cell=gap),
    "transfer": Table(
        "Source and target related, or not: the next byte and the typos in novels, and printed "
        "digits with 200 labels.",
        (NEXT_BYTE, TYPOS, FEW),
        (LANGUAGE, STATISTICS, IMAGES, IMAGE_STATISTICS, AS_PAPER, SCALED, RANDOM)),
    "blocks": Table(
        "Which statistics: parts of random weights at the spread of language's.", (MEMORY,),
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
        "Bit memory at the paper's size on frozen random blocks of 256 channels: the spread of "
        "their weights against the width of a head, one block and two.", (LARGE_MEMORY,),
        tuple(Arm(f"random:{depth}x{256 // width}x256@{spread}") for depth, width, spread in (
            *itertools.product((1,), (32, 64, 128), (0.55, 1.0, 1.41)),
            *itertools.product((2,), (64, 128), (1.0, 1.41)))),
        rates=(), picture=heat_map),
}


def reproduce(name, out, *, scale="mini", only=None, seeds=5, jobs=1, rates=None, say=print,
              **options):
    """Make one of ``TABLES``: writes ``OUT/NAME.md``, ``.csv`` and ``.png``, and a picture of the
    learning rates; returns the Markdown table.

    scale   ``mini``: the weights that ship.  ``paper``: the paper's tasks and settings on GPT-2's
            own weights (``minifpt convert gpt2`` first), without the arms that have no counterpart
            there; what that takes is said before, and the files are called ``NAME-paper``.
    only    the names of the tasks to be run, all of the table's by default.
    seeds   how many; ``rates``, learning rates to choose from in place of the table's; ``jobs``
            and what else there is as for :func:`minifpt.experiments.compare.grid`.
    """
    made = table_of(name, scale, only, rates)
    made.check()
    out, name = Path(out), stem(name, scale)
    compare.check_outputs(out, f"{name}.md", f"{name}.csv", f"{name}.png",
                          *[f"{name}-rates.png"] * bool(made.rates))
    found = compare.grid(out, made.columns, made.arms, range(seeds), rates=made.rates, jobs=jobs,
                         ready=(lambda: say(cost(made, seeds))) if scale == "paper" else None,
                         **options)
    text = made.text(found)
    outputs.write_text(out / f"{name}.md", tables.KIND, f"{made.shows}\n\n{text}\n\n")
    outputs.write_csv(out / f"{name}.csv", tables.CSV, tables.rows(found))
    made.picture(found.results, out / f"{name}.png")
    if found.sweeps:
        tables.sweep_picture(found.sweeps, out / f"{name}-rates.png")
    return text


def stem(name, scale):
    """What the files of a table are called, without their ending."""
    return name if scale == "mini" else f"{name}-{scale}"


def table_of(name, scale="mini", only=None, rates=None):
    """The :class:`Table` of that name, or its columns of the tasks ``only``; each arm with the
    learning rates ``rates`` where they are given."""
    if name not in TABLES:
        raise ValueError(f"reproduce: no table '{name}', expected one of {', '.join(TABLES)}")
    if scale not in ("mini", "paper"):
        raise ValueError(f"reproduce: scale is '{scale}', expected mini or paper")
    made = TABLES[name] if scale == "mini" else TABLES[name].at_paper_scale()
    there = dict.fromkeys(name for column in made.columns for name in (column.task, column.title)
                          if name)
    for task in only or ():
        if task not in there:
            raise ValueError(f"reproduce: {name} has no task '{task}', expected of "
                             f"{', '.join(there)}")
    if rates is not None:
        arms = tuple(replace(arm, rates=()) for arm in made.arms)
        made = replace(made, rates=tuple(rates), arms=arms)
    return replace(made, columns=tuple(c for c in made.columns
                                       if {c.task, c.title} & {*(only or there)}))


def cost(table, seeds):
    """What a table's runs take on this machine, as text: a line for each task and arm."""
    table.check()
    lines, total, seeds = [], 0.0, whole("reproduce", "seeds", seeds)
    for column in table.columns:
        task = compare.make_task(column.task, column.options)
        settings = tasks.defaults_of(task) | column.settings
        for arm in table.arms:
            made = plan(task, TrunkSpec.parse(arm.model), FreezeMask.parse(arm.freeze),
                        settings["batch_size"], settings["dropout"])
            each = made.step * settings["steps"]
            runs = seeds + compare.CHOICES * len(arm.tries(table.rates))
            total += runs * each
            lines.append(f"{task.name}, {arm.called()}: {runs} runs of {settings['steps']:,} "
                         f"steps, {duration(each)} each, {made.peak / 1e6:,.0f} MB")
    return "\n".join([*lines, f"in all about {duration(total)} in one process, without the tests"])
