"""The paper's tables, each by its name: ``minifpt reproduce NAME``.

A table is a grid of tasks and arms (see :mod:`minifpt.experiments.compare`), in which each arm
takes its own learning rate.  All tables of one folder share their runs: a run that another table
has made is read, not repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .. import tasks
from ..checks import one_of, whole
from ..files import outputs, plots
from ..freeze import FreezeMask
from ..trunks import TrunkSpec
from . import compare, tables
from .compare import Arm, Column
from .plan import duration, plan

RATES = 1e-3, 3e-3, 1e-2, 3e-2
LEVELS = 0.5, 0.75, 0.9                                   # of the way to the best arm's accuracy
SMALLER = (3e-4,)                                         # needed where the trunk is trained, too

# ---------------------------------------------------------------------------- tasks and arms

XOR, MEMORY = (Column(task, {}, {"steps": 2000}) for task in ("bit-xor", "bit-memory"))
MNIST, LISTOPS, CIFAR = (Column(task, {}, {"steps": 500}) for task in (
    "mnist", "listops", "cifar10"))
LANGUAGE, BITS, IMAGES = (Arm(f"minigpt-{name}") for name in ("language", "bits", "images"))
STATISTICS = Arm("statistics:minigpt-language")
# Half of novels' weights each, the other half drawn anew.
HALVES = tuple(Arm(f"{rest}+attn,mlp={frozen}", label=f"novels, {half} part alone")
               for rest, frozen, half in ((STATISTICS.model, LANGUAGE.model, "frozen"),
                                          (LANGUAGE.model, STATISTICS.model, "trained")))
# Random weights: as the paper's code draws them; the same, with the matrices that write into the
# residual divided as OpenAI does; with a standard deviation of 0.02, small for 128 channels.
AS_PAPER, SCALED, RANDOM = Arm("random@paper"), Arm("random@0.55"), Arm("random")

# The paper's tasks at the paper's size and with its settings: batch 4, a constant learning rate,
# dropout 0.1.  The steps are what its random trunk needs (table 4).
PAPER = {"batch_size": 4, "lr": 1e-3, "dropout": 0.1, "schedule": "constant", "warmup": 0}
AS_THE_PAPER = {"length": 1999, "least": 501, "depth": 9, "arguments": 10, "cut": 512}  # ListOps
PAPER_SIZE = {
    "bit-xor": Column("bit-xor", {}, PAPER | {"steps": 20_000}),
    "bit-memory": Column("bit-memory", {"bits": 1000, "patch": 50}, PAPER | {"steps": 40_000}),
    "mnist": Column("mnist", {"size": 32}, PAPER | {"steps": 20_000}),
    "listops": Column("listops", AS_THE_PAPER, PAPER | {"steps": 6_000}),
    "cifar10": Column("cifar10", {}, PAPER | {"steps": 400_000}),
}
PAPER_TRUNKS = {"minigpt-language": "gpt2", "random@paper": "random:gpt2@paper",
                "random": "random:gpt2", "random@0.55": "random:gpt2",
                "statistics:minigpt-language": "statistics:gpt2",
                "random:2x4x128@paper": "gpt2", "random:6x4x128@paper": "gpt2-medium",
                "random:12x4x128@paper": "gpt2-large"}


@dataclass(frozen=True)
class Table:
    """One table: its first sentence, its tasks, its arms, the paper's numbers."""

    shows: str
    columns: tuple
    arms: tuple
    paper: dict = field(default_factory=dict)             # {(arm's label, task): text}
    rates: tuple = RATES
    share: float | None = None                            # see compare.grid
    cell: Callable = tables.final
    picture: Callable = tables.picture

    def text(self, grid):
        """Return the table as Markdown."""
        return tables.table(grid, self.cell, self.paper)

    def at_paper_scale(self):
        """Return this table on GPT-2, with the paper's sizes and settings.

        Tasks and arms without a counterpart in the paper are left out."""
        columns = [PAPER_SIZE[c.task] for c in self.columns if not c.title and c.task in PAPER_SIZE]
        arms = {}
        for arm in self.arms:
            if arm.model in PAPER_TRUNKS:                 # GPT-2's width makes 0.02 the spread 0.55
                theirs = replace(arm, model=PAPER_TRUNKS[arm.model], label=arm.full_label())
                arms.setdefault((theirs.model, theirs.freeze, theirs.adapt), theirs)
        if not (columns and arms):
            raise ValueError("reproduce: this table has nothing at the paper's scale")
        paper = {(arm, PAPER_SIZE[task].task): text for (arm, task), text in self.paper.items()}
        return replace(self, columns=tuple(columns), arms=tuple(arms.values()), paper=paper,
                       rates=(1e-4, 3e-4, 1e-3, 3e-3))


# ------------------------------------------------------------------------- other cells and pictures


def levels(grid, task):
    """Return the accuracies to which steps are counted.

    They are ``LEVELS`` of the way from chance to the final mean of the task's best arm."""
    best = max(np.mean([h[-1]["test_accuracy"] for h in runs])
               for runs in grid.results[task].values())
    floor = tasks.chance_of(task) or 0.0                  # 0 where it is not known
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
    first = [tables.first_step(h, level) for h in runs]
    median = np.median([np.inf if step is None else step for step in first])
    return f"{median:g}" if median < np.inf else "never"


def final_and_steps(grid, task, model):
    """Return a cell: the final accuracy, and the median of the steps until 95 %."""
    return (f"{tables.final(grid, task, model)}; 95 %: "
            f"{median_step(grid.results[task][model], 0.95)}")


# ---------------------------------------------------------------------------------------- tables


def trained(mask, label, model="minigpt-language", rates=()):
    """Return an arm with another mask, by default of the language trunk."""
    return Arm(model, mask, label, rates)


def numbers(arm, *values, tasks=("bit-xor", "bit-memory", "mnist")):
    """Return the paper's numbers of an arm, {(arm's label, task): number}."""
    return {(arm, task): value for task, value in zip(tasks, values, strict=True)}


WHOLE = trained("full", "random (paper), all trained", "random@paper", SMALLER)
READ_WHOLE = trained("full", "language, all trained", rates=SMALLER)
LSTM, LSTM_PLUS = Arm("lstm:3x128"), Arm("lstm:3x128,residual,positions")
LSTM_WHOLE = Arm("lstm:3x128", "full", "LSTM, all trained", SMALLER)
PLUS_MLP, PLUS_ATTENTION, PLUS_BOTH = (
    trained(mask, f"language, + {label}", rates=SMALLER) for mask, label in (
        ("attn", "feed-forward"), ("mlp", "attention"), ("full", "both")))


def long(task, options, steps=None):
    """Return the column of a task in long runs, by default with its own number of steps."""
    steps = steps or tasks.defaults_of(tasks.task_class(task))["steps"]
    return Column(task, options, {"steps": steps, "eval_every": steps // 10,
                                  "test_examples": 2000}, f"{task}-long")


def arm_of(arm, seeds=3):
    """Return an arm of long runs, with its number of seeds and its further learning rates."""
    return replace(arm, rates=(1e-2, 3e-2) if arm.freeze == "fpt" else (1e-4, 3e-4), seeds=seeds)


WHERE_FROM = Table(
    "Where the frozen weights come from (tables 1 and 2 of the paper).",
    (XOR, MEMORY, MNIST), (LANGUAGE, BITS, IMAGES, STATISTICS, AS_PAPER, SCALED, RANDOM),
    numbers("language", 100, 100, 98.0) | numbers("bits", 100, 100, 97.8)
    | numbers("images", 100, 100, 97.8) | numbers("random (paper)", 100, 75.8, 91.7))

TABLES = {
    "figure1": Table(
        "A frozen language trunk, a transformer trained whole, an LSTM trained whole (figure 1).",
        (XOR, MEMORY, MNIST),
        (LANGUAGE, WHOLE, LSTM_WHOLE),
        numbers("language", 100, 100, 98.0) | numbers(WHOLE.label, 100, 100, 99.1)
        | numbers("LSTM, all trained", 50.1, 60.9, 99.5)),
    "table1": Table(
        "The paper's other tasks: ListOps and CIFAR-10 (table 1 and 2).",
        (LISTOPS, CIFAR), (LANGUAGE, STATISTICS, AS_PAPER, SCALED, RANDOM),
        numbers("language", 38.4, 68.2, tasks=("listops", "cifar10"))
        | numbers("random (paper)", 34.3, 61.7, tasks=("listops", "cifar10"))),
    "table2": WHERE_FROM,
    "table3": Table(
        "Random and frozen: a transformer against LSTMs (table 3).",
        (XOR, MEMORY, MNIST), (AS_PAPER, SCALED, LSTM, LSTM_PLUS),
        numbers("random (paper)", 100, 75.8, 91.7) | numbers("LSTM (3x128)", 50.0, 50.9, 70.9)),
    "table4": replace(
        WHERE_FROM, cell=steps_to,
        shows="Steps until a task is learned (table 4): a half, three quarters and nine tenths of "
              "the way from chance to the best arm's final accuracy.  The runs are table2's.",
        paper=numbers("language", "500", "10,000", "5,000")
        | numbers("random (paper)", "20,000", "40,000", "20,000")),
    "table6": Table(
        "Size (table 6).  Only one pretrained size ships, so the mini scale varies the depth of a "
        "random trunk; the paper's scale has GPT-2, medium and large.", (CIFAR,),
        tuple(Arm(f"random:{n}x4x128@paper", label=label) for n, label in (
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
    "cliff": Table(
        "The angle between queries and keys of a frozen random block: with the input layer as "
        "drawn, and started in the directions in which the heads look for likeness (aligned) or "
        "away from it (opposed).", (MEMORY, XOR),
        tuple(Arm(f"random:1x4x128@1.41,qk={angle}",
                  label=f"{angle} degrees" + (f", {start}" if start else ""), start=start)
              for start, step in ((None, 15), ("aligned", 30), ("opposed", 30))
              for angle in range(0, 181, step)),
        rates=(), cell=final_and_steps, picture=tables.angle_picture),
    "mnist-long": Table(
        "MNIST in long runs (tables 1, 2, 3, 4 and 8).",
        (long("mnist", {}),),
        (*(arm_of(arm, 5) for arm in (LANGUAGE, AS_PAPER, WHOLE, READ_WHOLE)),
         *map(arm_of, (IMAGES, BITS, STATISTICS, LSTM, LSTM_WHOLE, PLUS_MLP, PLUS_ATTENTION,
                       Arm("random:4x8x256@paper", label="random (paper), 4 blocks of 256")))),
        rates=(1e-3, 3e-3), share=0.25),
    "cifar10-long": Table(
        "CIFAR-10 in long runs (tables 1, 2, 3, 6 and 8).",
        (long("cifar10", {}),),
        (arm_of(LANGUAGE), arm_of(AS_PAPER), *(arm_of(arm, 2) for arm in (
            replace(WHOLE, model="random:3x4x128@paper"), PLUS_MLP, PLUS_ATTENTION, READ_WHOLE,
            IMAGES, BITS, STATISTICS, LSTM, LSTM_WHOLE, *(
                Arm(f"random:{n}x4x128@paper", label=f"random (paper), {n} blocks")
                for n in (2, 12))))),
        rates=(1e-3, 3e-3), share=0.25),
    "listops-long": Table(
        "ListOps in long runs, and with 512 tokens as in the paper (tables 1, 2, 3, 4 and 8).",
        (long("listops", {}),
         Column("listops", AS_THE_PAPER, {"steps": 2_400, "eval_every": 240, "batch_size": 4,
                                          "test_examples": 1000}, "listops-512")),
        (*map(arm_of, (LANGUAGE, AS_PAPER, STATISTICS, *HALVES)), *(arm_of(arm, 2) for arm in (
            WHOLE, PLUS_MLP, PLUS_ATTENTION, READ_WHOLE, BITS, IMAGES, LSTM, LSTM_WHOLE))),
        rates=(1e-3, 3e-3), share=0.25),
    "memory-long": Table(
        "Bit memory in long runs, for a trunk pretrained on images (table 2).",
        (long("bit-memory", {}, 10_000),), (replace(IMAGES, rates=(0.1, 0.3), seeds=3),),
        rates=(1e-2, 3e-2), share=0.25),
    "gray-long": Table(
        "CIFAR-10 in grey, with a pixel in each token, in long runs (tables 1 and 2).",
        (long("cifar10-gray", {}, 10_000),),
        tuple(arm_of(arm, 1) for arm in (LANGUAGE, AS_PAPER, WHOLE, LSTM_WHOLE)),
        rates=(1e-3, 3e-3), share=0.25),
}


def reproduce(name, out, *, scale="mini", only=None, seeds=5, jobs=1, rates=None, say=print,
              **options):
    """Run one of ``TABLES`` and return it as Markdown.

    It writes ``OUT/NAME.md``, ``.csv`` and ``.png``, and ``NAME-rates.png``, a picture of the
    learning-rate sweep.

    scale   ``mini``: the weights that ship.  ``paper``: the paper's tasks and settings on GPT-2's
            own weights, which ``minifpt convert gpt2`` writes.  It prints its cost first and
            writes ``NAME-paper.md`` and so on.
    only    names of the tasks to run, all of the table's by default.
    seeds   how many seeds.
    rates   learning rates to try instead of the table's.

    Further options go to :func:`minifpt.experiments.compare.grid`.
    """
    table = table_of(name, scale, only, rates)
    out, name = Path(out), stem(name, scale)
    compare.check_outputs(out, f"{name}.md", f"{name}.csv", f"{name}.png",
                          *([f"{name}-rates.png"] if table.rates else []))
    grid = compare.grid(out / name if table.share else out, table.columns, table.arms,
                        range(seeds), rates=table.rates, jobs=jobs, share=table.share,
                        ready=(lambda: say(cost(table, seeds))) if scale == "paper" else None,
                        **options)
    text = table.text(grid)
    outputs.write_text(out / f"{name}.md", tables.KIND, f"{table.shows}\n\n{text}\n\n")
    outputs.write_csv(out / f"{name}.csv", tables.CSV, tables.rows(grid))
    table.picture(grid.results, out / f"{name}.png")
    if grid.sweeps:
        tables.sweep_picture(grid.sweeps, out / f"{name}-rates.png")
    return text


def stem(name, scale):
    """Return the name of a table's files, without their ending."""
    return name if scale == "mini" else f"{name}-{scale}"


def table_of(name, scale="mini", only=None, rates=None):
    """Return a :class:`Table`, with the columns of the tasks ``only`` and the learning rates
    ``rates`` where they are given."""
    one_of("reproduce", "the table", name, TABLES)
    one_of("reproduce", "scale", scale, ("mini", "paper"))
    table = TABLES[name] if scale == "mini" else TABLES[name].at_paper_scale()
    names = dict.fromkeys(name for column in table.columns for name in (column.task, column.title)
                          if name)
    for task in only or ():
        one_of(f"reproduce {name}", "the task", task, names)
    if rates is not None:
        arms = tuple(replace(arm, rates=()) for arm in table.arms)
        table = replace(table, rates=tuple(rates), arms=arms)
    return replace(table, columns=tuple(c for c in table.columns
                                        if {c.task, c.title} & {*(only or names)}))


def cost(table, seeds):
    """Return time and memory of a table's runs on this machine, a line for each task and arm."""
    lines, total, seeds = [], 0.0, whole("reproduce", "seeds", seeds)
    for column in table.columns:
        task = compare.make_task(column.task, column.options)
        settings = tasks.defaults_of(task) | column.settings
        for arm in table.arms:
            prediction = plan(task, TrunkSpec.parse(arm.model), FreezeMask.parse(arm.freeze),
                              settings["batch_size"], settings["dropout"], arm.adapt)
            each = prediction.step * settings["steps"]
            choices = compare.CHOICES * len(arm.sweep(table.rates)) * (table.share or 1)
            runs = min(seeds, arm.seeds or seeds) + choices
            total += runs * each
            lines.append(f"{task.name}, {arm.full_label()}: {runs:g} runs of "
                         f"{settings['steps']:,} steps, {duration(each)} each, "
                         f"{prediction.peak / 1e6:,.0f} MB")
    return "\n".join([*lines, f"in total about {duration(total)} in one process, without tests"])
