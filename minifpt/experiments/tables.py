"""Tables: what stands in their columns and rows, and the results of a grid of runs as Markdown,
as CSV and as pictures."""

import re
import zlib
from dataclasses import dataclass, field, fields, replace
from itertools import product

import numpy as np

from .. import tasks
from ..files import csv_text, plots
from ..freeze import FreezeMask
from ..trunks import TrunkSpec

FIRST_VALIDATION_SEED = 1000                              # the seeds of the results are others


@dataclass(frozen=True)
class Column:
    """A task of a grid: its name or ``FILE.py:CLASS``, its options, settings of its runs that
    replace the task's defaults, and a title, by default the task's name."""

    task: str
    options: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    title: str = ""


def axis(default, none=None, **option):
    """Return a field of :class:`Arm` in which the arms of a grid may differ, a keyword of
    :meth:`minifpt.FPT.for_task`: its default, the word for ``None``, and what its option on the
    command line has."""
    return field(default=default, metadata={"none": none, "option": option})


@dataclass(frozen=True)
class Arm:
    """An arm of a grid: a trunk as ``--model`` takes it, its value on each axis, its label, and
    learning rates that it tries besides the grid's."""

    trunk: str
    freeze: str = axis("fpt", metavar="MASK", help=(
        "masks of frozen parts, as 'train' takes them (default: fpt)"))
    label: str = ""
    rates: tuple = ()
    adapt: str | None = axis(None, "none", metavar="ADAPTER", help=(
        "adapters: lora:rank=4, bitfit or none (default: none)"))
    start: str | None = axis(None, "drawn", metavar="START", help=(
        "starts of the input layer: drawn, aligned, opposed (default: drawn)"))

    @property
    def settings(self):
        """{axis: the arm's value}, the mask first."""
        return {name: getattr(self, name) for name in AXES}

    def sweep(self, rates):
        """Return the learning rates that the arm tries in a grid of ``rates``; none without."""
        return list(dict.fromkeys([*rates, *self.rates])) if rates else []

    @property
    def folder(self):
        """The name of the folder of its runs, different for each trunk and value of an axis."""
        mask, *others = self.settings.values()
        text = "+".join([str(FreezeMask.parse(mask)), *(str(x) for x in others if x is not None)])
        name = TrunkSpec.parse(self.trunk).folder
        if text == str(FreezeMask.fpt()):
            return name
        return f"{name}~{re.sub(r'[^a-z0-9_,.]', '-', text)}-{zlib.crc32(text.encode()):08x}"

    def full_label(self, trunk=None):
        """Return its label, or its trunk's with each value that is not the paper's; with the name
        ``trunk`` instead of both."""
        mask, *others = self.settings.values()
        mask = FreezeMask.parse(mask)
        parts = [trunk or TrunkSpec.parse(self.trunk).label, *(x for x in others if x is not None),
                 *([f"trained: {','.join(mask.only)}"] if mask.only else
                   [f"frozen: {mask}"] if mask != FreezeMask.fpt() else [])]
        return self.label if self.label and not trunk else ", ".join(map(str, parts))


AXES = {f.name: f.metadata for f in fields(Arm) if f.metadata}


def arms_of(models, axes):
    """Return the :class:`Arm` of each model, or arm, with each value of each axis; ``axes`` are
    {axis: value, or values}."""
    values = {name: [None if x == AXES[name]["none"] else x for x in listed(value)]
              for name, value in axes.items()}
    models = listed(models)
    arms = [x if isinstance(x, Arm) else Arm(TrunkSpec.parse(x).text)
            for i, x in enumerate(models) if x not in models[:i]]
    return [replace(arm, **dict(zip(values, combination, strict=True))) for arm in arms
            for combination in product(*values.values())]


def listed(value):
    """Return a list of the values in a collection, or of a single value."""
    return [*value] if hasattr(value, "__iter__") and not isinstance(value, str) else [value]


@dataclass
class Grid:
    """The results of :func:`minifpt.experiments.compare.grid`.

    results  {task: {trunk's label: [History, ...]}}, one history for each seed.
    sweeps   {task: {trunk's label: {learning rate: [History, ...]}}} on validation draws; empty
             without a learning-rate sweep.
    rates    {task: {trunk's label: learning rate}} of the results.
    seeds    the seeds of the results, in order.
    chances  {task: chance accuracy, 0 ... 1}; by default empty.
    runs     a dictionary for each run, see :func:`row`; empty where no runs were made.
    """

    results: dict
    sweeps: dict
    rates: dict
    seeds: list
    chances: dict = field(default_factory=dict)
    runs: list = field(default_factory=list)

    def add_runs(self, jobs, histories):
        """Add the histories of jobs, a ``compare.Job`` each."""
        for job, history in zip(jobs, histories, strict=True):
            rate, kind = job.settings["lr"], self.sweeps if job.validation else self.results
            arms = kind.setdefault(job.title, {})
            if job.validation:
                arms.setdefault(job.label, {}).setdefault(rate, []).append(history)
            else:
                arms.setdefault(job.label, []).append(history)
                self.rates.setdefault(job.title, {})[job.label] = rate
            self.runs.append(job.row(history))

    def chance(self, task):
        """Return the chance accuracy of a task, by default that of its default options."""
        return self.chances.get(task, tasks.chance_of(task))


class Runs(list):
    """The runs of a grid, a dictionary each; as text they are its tables in Markdown."""

    def __init__(self, runs, text):
        super().__init__(runs)
        self.text = text

    def __str__(self):
        return self.text


def diverged(histories):
    """Return whether one of these validation runs diverged."""
    return any(np.isnan(history[-1]["test_accuracy"]) for history in histories)


def table(grid, cell=None, paper=None):
    """Return a Markdown table with a row for each trunk and a column for each task.

    cell    a function of a :class:`Grid` and the names of a task and a trunk that gives the text
            of their cell, :func:`final` by default.
    paper   {(trunk, task): the paper's number}, added to the cell.
    """
    models = dict.fromkeys(model for task in grid.results.values() for model in task)
    lines = [["trunk", *(tasks.label_of(task) for task in grid.results)]]
    for model in models:
        lines.append([model])
        for name, task in grid.results.items():
            text = (cell or final)(grid, name, model) if task.get(model) else ""
            number = (paper or {}).get((model, name))
            lines[-1].append(text if number is None else f"{text}; paper {number}".lstrip("; "))
    return markdown(lines)


def markdown(lines):
    """Return lists of texts as the lines of a Markdown table; the first list is the header."""
    head, *rest = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
                   for cells in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *rest])


def final(grid, task, model):
    """Return a cell: the final test accuracy in per cent and the learning rate."""
    runs = grid.results[task][model]
    return (f"{spread([100 * h[-1]['test_accuracy'] for h in runs])}, "
            f"{len(runs)} seed{'s' if len(runs) > 1 else ''}{chosen_rate(grid, task, model)}")


def differences(grid):
    """Return a Markdown table of paired differences from the task's first arm, in points.

    It compares final accuracies and *areas*, the mean accuracy over the whole curve.  A cell has
    the mean over the seeds that both arms have and its 95 % :func:`interval`.  With one arm only
    the table is "".
    """
    lines = [["task", "difference", "at the end", "area", "seeds"]]
    for task, arms in grid.results.items():
        (baseline, baseline_runs), *other_arms = arms.items()
        for name, runs in other_arms:
            lines.append([tasks.label_of(task), f"{name} - {baseline}",
                          *paired(runs, baseline_runs)])
    return markdown(lines) if len(lines) > 1 else ""


def still_rising(grid):
    """Return a line that names the arms whose mean accuracy is more than two points above that of
    the last test in the first three quarters of their steps, or "" if there is none.

    An arm whose seeds have all reached the task's target accuracy, or 100 %, has no way to go."""
    arms = []
    for task, models in grid.results.items():
        target = tasks.optional(tasks.TASKS.get(task), "target_accuracy") or 1
        for model, histories in models.items():
            steps, curves = plots.common(histories, "test_accuracy")
            earlier = [i for i, step in enumerate(steps) if step <= 0.75 * steps[-1]]
            rise = (curves[:, -1] - curves[:, earlier[-1]]).mean() if earlier else 0
            if 100 * rise > 2 and curves[:, -1].min() < target:
                arms.append(f"{model} on {tasks.label_of(task)}")
    if not arms:
        return ""
    return f"Still rising at the end: {', '.join(arms)}. More --steps may change the order."


def paired(runs, baseline_runs):
    """Return three cells: the difference of two arms at the end, in the area, and its seeds."""
    n = min(len(runs), len(baseline_runs))                # the seeds that both have
    _, curves = plots.common([*runs[:n], *baseline_runs[:n]], "test_accuracy")
    gaps = 100 * (curves[:n] - curves[n:])
    return interval(gaps[:, -1]), interval(gaps.mean(axis=1)), str(n)


def interval(values):
    """Return the mean of paired differences and its 95 % interval by Student's t, as text.

    The interval assumes a normal distribution.  One value has no interval."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import
    mean, n = np.mean(values), len(values)
    if n == 1:
        return f"{mean:+.1f}"
    half = stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(n)
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def spread(values, text="{:.1f}"):
    """Return the mean of numbers as text, with (least to largest) where these differ."""
    mean, low, high = (text.format(v) for v in (np.mean(values), np.min(values), np.max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def rate_text(rate):
    """Return a learning rate as a short text that ``float`` reads back exactly."""
    return f"{rate:g}" if float(f"{rate:g}") == rate else repr(float(rate))


def chosen_rate(grid, task, model):
    """Return ", lr 0.01" for the chosen learning rate, or "" without a learning-rate sweep.

    "(edge)" marks the sweep's smallest and largest rate.  Rates at which a run diverged follow."""
    sweep = grid.sweeps.get(task, {}).get(model)
    if not sweep:
        return ""
    rate = grid.rates[task][model]
    edge = " (edge)" if len(sweep) > 1 and rate in (min(sweep), max(sweep)) else ""
    bad = " and ".join(rate_text(x) for x, histories in sweep.items() if diverged(histories))
    return f", lr {rate_text(rate)}{edge}" + (f", {bad} diverged" if bad else "")


CSV = ["task", "trunk", "lr", "seed", "choice", "steps", "train_accuracy", "test_accuracy",
       "test_loss", "curve"]


def row(history, *values, **columns):
    """Return a dictionary of a run: the first columns of ``CSV``, its last test, more columns, and
    its curve of (step, test accuracy)."""
    ends = (history[-1][name] for name in ("step", *CSV[6:9]))
    curve = [(test["step"], test["test_accuracy"]) for test in history]
    return dict(zip(CSV, (*values, *ends), strict=False)) | columns | {"curve": curve}


def rows(grid):
    """Return a CSV with a line for each run of a grid, also of one without ``runs``.

    The column ``curve`` has "step:test accuracy" for each test."""
    runs = grid.runs or [
        *(row(history, task, trunk, grid.rates[task][trunk], seed, 0)
          for task, trunks in grid.results.items() for trunk, histories in trunks.items()
          for seed, history in zip(grid.seeds, histories, strict=False)),
        *(row(history, task, trunk, rate, seed, 1) for task, trunks in grid.sweeps.items()
          for trunk, sweep in trunks.items() for rate, histories in sweep.items()
          for seed, history in enumerate(histories, FIRST_VALIDATION_SEED))]
    return csv_text([run | {name: f"{run[name]:.6f}" for name in CSV[6:9]} | {
        "lr": rate_text(run["lr"]),
        "curve": " ".join(f"{step}:{accuracy:.4f}" for step, accuracy in run["curve"])}
        for run in runs])


def picture(grid, path):
    """Draw test accuracy against steps.

    Each task has an axis, at most two in a row, and each trunk a line with its range shaded."""
    results, columns = grid.results, min(2, len(grid.results))
    fig, axes = plots.figure(columns, -(-len(results) // columns), width=5.2)
    for ax in axes[len(results):]:
        ax.remove()
    axes = axes[:len(results)]
    labels = dict.fromkeys(model for models in results.values() for model in models)
    colors, dashes = plots.colors_of(labels), plots.dashes_of(labels)
    for ax, (task, models) in zip(axes, results.items(), strict=True):
        for model, runs in models.items():
            plots.band(ax, runs, "test_accuracy", colors[model], model, style=dashes[model])
        plots.mark_level(ax, grid.chance(task), "chance")
        ax.set(title=tasks.label_of(task), xlabel="step", ylabel="test accuracy (%)")
    plots.legend(fig, axes, inside=0)
    plots.save(fig, path)
