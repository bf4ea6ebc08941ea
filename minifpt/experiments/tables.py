"""Tables: what stands in their columns and rows, and the results of a grid of runs as Markdown,
as CSV and as pictures."""

import re
import zlib
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Arm:
    """A trunk of a grid as ``--model`` takes it, its freeze mask, its label, learning rates that it
    tries besides the grid's, its adapter and its start as ``--adapt`` and ``--start`` take them."""

    trunk: str
    freeze: str = "fpt"
    label: str = ""
    rates: tuple = ()
    adapt: str | None = None
    start: str | None = None

    def sweep(self, rates):
        """Return the learning rates that the arm tries in a grid of ``rates``; none without."""
        return list(dict.fromkeys([*rates, *self.rates])) if rates else []

    @property
    def folder(self):
        """The name of the folder of its runs, different for each of trunk, mask, adapter, start."""
        mask = str(FreezeMask.parse(self.freeze))
        name = TrunkSpec.parse(self.trunk).folder
        extras = "".join(f"+{extra}" for extra in (self.adapt, self.start) if extra)
        if mask == str(FreezeMask.fpt()) and not extras:
            return name
        mask += extras
        return f"{name}~{re.sub(r'[^a-z0-9_,.]', '-', mask)}-{zlib.crc32(mask.encode()):08x}"

    def full_label(self):
        """Return its label, or the trunk's with the mask where that is not the paper's."""
        mask = FreezeMask.parse(self.freeze)
        label = ", ".join(filter(None, [TrunkSpec.parse(self.trunk).label, self.adapt, self.start]))
        return self.label or (label if mask == FreezeMask.fpt() else f"{label}, frozen: {mask}")


@dataclass
class Grid:
    """The results of :func:`minifpt.experiments.compare.grid`.

    results  {task: {trunk's label: [History, ...]}}, one history for each seed.
    sweeps   {task: {trunk's label: {learning rate: [History, ...]}}} on validation draws; empty
             without a learning-rate sweep.
    rates    {task: {trunk's label: learning rate}} of the results.
    seeds    the seeds of the results, in order.
    chances  {task: chance accuracy, 0 ... 1}; by default empty.
    """

    results: dict
    sweeps: dict
    rates: dict
    seeds: list
    chances: dict = field(default_factory=dict)

    def add(self, task, model, histories, rate, sweep=None):
        """Add the results of a trunk on a task, and the sweep that chose its learning rate."""
        self.results.setdefault(task, {})[model] = histories
        self.rates.setdefault(task, {})[model] = rate
        if sweep:
            self.sweeps.setdefault(task, {})[model] = sweep

    def chance(self, task):
        """Return the chance accuracy of a task, by default that of its default options."""
        return self.chances.get(task, tasks.chance_of(task))


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
    """Return a line that names the arms whose mean accuracy rose by more than two points in the
    last quarter of their steps, or "" if there is none."""
    arms = []
    for task, models in grid.results.items():
        for model, histories in models.items():
            steps, curves = plots.common(histories, "test_accuracy")
            earlier = [i for i, step in enumerate(steps) if step <= 0.75 * steps[-1]]
            if earlier and 100 * (curves[:, -1] - curves[:, earlier[-1]]).mean() > 2:
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


def rows(grid):
    """Return a CSV with a line for each run.

    The column ``curve`` has "step:test accuracy" for each test."""
    ends = [(task, trunk, grid.rates[task][trunk], 0, *end)
            for task, trunks in grid.results.items() for trunk, histories in trunks.items()
            for end in zip(grid.seeds, histories, strict=False)]
    ends += [(task, trunk, rate, 1, *end) for task, trunks in grid.sweeps.items()
             for trunk, sweep in trunks.items() for rate, histories in sweep.items()
             for end in enumerate(histories, FIRST_VALIDATION_SEED)]
    return csv_text([dict(zip(CSV, [
        task, trunk, rate_text(rate), seed, choice, history[-1]["step"],
        *(f"{history[-1][name]:.6f}" for name in CSV[6:9]),
        " ".join(f"{row['step']}:{row['test_accuracy']:.4f}" for row in history)], strict=True))
        for task, trunk, rate, choice, seed, history in ends])


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
