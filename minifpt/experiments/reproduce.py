"""The paper's tables, each by its name: ``minifpt reproduce NAME``.

A table is a grid of tasks and arms, which ``compare.reproduce`` runs; each arm takes its own
learning rate.  All tables of one folder share their runs: a run that another table has made is
read, not repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ..checks import one_of
from ..files import plots
from . import tables
from .tables import Arm, Column

RATES = 1e-3, 3e-3, 1e-2, 3e-2
LEVELS = 0.5, 0.75, 0.9                                   # of the way to the best arm's accuracy
EXTRA_RATES = (3e-4,)                                     # needed where the trunk is trained, too

# ---------------------------------------------------------------------------- tasks and arms

XOR, MEMORY = (Column(task, {}, {"steps": 2000}) for task in ("bit-xor", "bit-memory"))
MNIST, LISTOPS, CIFAR = (Column(task, {}, {"steps": 500}) for task in (
    "mnist", "listops", "cifar10"))
LANGUAGE, BITS, IMAGES = (Arm(f"minigpt-{name}") for name in ("language", "bits", "images"))
STATISTICS = Arm("statistics:minigpt-language")
# Random weights: as the paper's code draws them; the same, with the matrices that write into the
# residual divided as OpenAI does; with a standard deviation of 0.02, small for 128 channels.
RANDOM, SCALED, SMALL = Arm("random"), Arm("random@0.55"), Arm("random@gpt2")


@dataclass(frozen=True)
class Table:
    """One table: its first sentence, its tasks, its arms, the paper's numbers, learning rates."""

    shows: str
    columns: tuple
    arms: tuple
    paper: dict = field(default_factory=dict)             # {(arm's label, task): text}
    rates: tuple = RATES
    cell: Callable = tables.final

    def text(self, grid):
        """Return the table as Markdown."""
        return tables.table(grid, self.cell, self.paper)


# ------------------------------------------------------------------------- the cells of table 4


def levels(grid, task):
    """Return the accuracies to which steps are counted.

    They are ``LEVELS`` of the way from chance to the final mean of the task's best arm."""
    best = max(np.mean([h[-1]["test_accuracy"] for h in runs])
               for runs in grid.results[task].values())
    floor = grid.chance(task) or 0.0                      # 0 where it is not known
    return [floor + level * (best - floor) for level in LEVELS]


def steps_to(grid, task, model):
    """Return a cell: the steps until each of the :func:`levels`, and the area.

    The steps are the median over seeds, "never" where half of the runs never reach the level.  The
    *area* is the mean accuracy over the curve, with its range over seeds."""
    runs, accuracies = grid.results[task][model], levels(grid, task)
    medians = [median_step(runs, level) for level in accuracies]
    area = tables.spread(100 * plots.common(runs, "test_accuracy")[1].mean(axis=1))
    return (f"{' / '.join(medians)} to {' / '.join(f'{100 * x:.1f}' for x in accuracies)} %; "
            f"area {area}{tables.chosen_rate(grid, task, model)}")


def median_step(runs, level):
    """Return the median over runs of the first step at an accuracy, or "never", as text."""
    first = [next((row["step"] for row in history if row["test_accuracy"] >= level), np.inf)
             for history in runs]
    median = np.median(first)
    return f"{median:g}" if median < np.inf else "never"


# ---------------------------------------------------------------------------------------- tables


def numbers(arm, *values, tasks=("bit-xor", "bit-memory", "mnist")):
    """Return the paper's numbers of an arm, {(arm's label, task): number}."""
    return {(arm, task): value for task, value in zip(tasks, values, strict=True)}


WHOLE = Arm("random", "full", "random, all trained", EXTRA_RATES)
LSTM, LSTM_PLUS = Arm("lstm:3x128"), Arm("lstm:3x128,residual,positions")
LSTM_WHOLE = Arm("lstm:3x128", "full", "LSTM, all trained", EXTRA_RATES)
PLUS_MLP, PLUS_ATTENTION, PLUS_BOTH = (
    Arm("minigpt-language", mask, f"language, + {label}", EXTRA_RATES) for mask, label in (
        ("attn", "feed-forward"), ("mlp", "attention"), ("full", "both")))


WHERE_FROM = Table(
    "Where the frozen weights come from (tables 1 and 2 of the paper).",
    (XOR, MEMORY, MNIST), (LANGUAGE, BITS, IMAGES, STATISTICS, RANDOM, SCALED, SMALL),
    numbers("language", 100, 100, 98.0) | numbers("bits", 100, 100, 97.8)
    | numbers("images", 100, 100, 97.8) | numbers("random", 100, 75.8, 91.7))

TABLES = {
    "figure1": Table(
        "A frozen language trunk, a transformer trained whole, an LSTM trained whole (figure 1).",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, WHOLE, LSTM_WHOLE),
        numbers("language", 100, 100, 98.0) | numbers(WHOLE.label, 100, 100, 99.1)
        | numbers("LSTM, all trained", 50.1, 60.9, 99.5)),
    "table1": Table(
        "The paper's other tasks: ListOps and CIFAR-10 (table 1 and 2).",
        (LISTOPS, CIFAR), (LANGUAGE, STATISTICS, RANDOM, SCALED, SMALL),
        numbers("language", 38.4, 68.2, tasks=("listops", "cifar10"))
        | numbers("random", 34.3, 61.7, tasks=("listops", "cifar10"))),
    "table2": WHERE_FROM,
    "table3": Table(
        "Random and frozen: a transformer against LSTMs (table 3).",
        (XOR, MEMORY, MNIST), (RANDOM, SCALED, LSTM, LSTM_PLUS),
        numbers("random", 100, 75.8, 91.7) | numbers("LSTM (3x128)", 50.0, 50.9, 70.9)),
    "table4": replace(
        WHERE_FROM, cell=steps_to,
        shows="Steps until a task is learned (table 4): a half, three quarters and nine tenths of "
              "the way from chance to the best arm's final accuracy.  The runs are table2's.",
        paper=numbers("language", "500", "10,000", "5,000")
        | numbers("random", "20,000", "40,000", "20,000")),
    "table6": Table(
        "Size (table 6).  Only one pretrained size ships, so the depth of a random trunk varies "
        "here; the paper has GPT-2, medium and large.", (CIFAR,),
        tuple(Arm(f"random:{n}x4x128", label=label) for n, label in (
            (2, "small"), (6, "medium"), (12, "large"))),
        {(size, "cifar10"): f"{language} (random {random})" for size, language, random in (
            ("small", 68.2, 61.7), ("medium", 69.8, 64.0), ("large", 72.1, 65.7))}),
    "table8": Table(
        "Training more of the language trunk (table 8).",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, PLUS_MLP, PLUS_ATTENTION, PLUS_BOTH),
        numbers("language", 100, 100, 98.0) | numbers("language, + feed-forward", 100, 100, 98.3)
        | numbers("language, + attention", 100, 100, "89.0, diverged")
        | numbers("language, + both", 100, 100, "93.1, diverged")),
}


def table_of(name, only=None, rates=None):
    """Return one of ``TABLES``, with the columns of the tasks ``only`` and the learning rates
    ``rates`` where they are given."""
    table = TABLES[one_of("reproduce", "the table", name, TABLES)]
    names = dict.fromkeys(name for column in table.columns for name in (column.task, column.title)
                          if name)
    for task in only or ():
        one_of(f"reproduce {name}", "the task", task, names)
    if rates is not None:
        arms = tuple(replace(arm, rates=()) for arm in table.arms)
        table = replace(table, rates=tuple(rates), arms=arms)
    return replace(table, columns=tuple(c for c in table.columns
                                        if {c.task, c.title} & {*(only or names)}))
