"""What a grid of runs found, as tables, as CSV and as pictures."""

import csv
import itertools
from dataclasses import dataclass

import numpy as np

from .. import tasks
from ..files import csv_text, regular
from ..files.runs import History
from ..reports import plots

CHOICE = 1000                                             # the first seed that rates are chosen by


@dataclass
class Grid:
    """What :func:`grid` found.

    results  {task: {trunk's label: [History, ...]}}, one history a seed.
    sweeps   {task: {trunk's label: {learning rate: [History, ...]}}} on validation draws; empty
             where no rates were to be tried.
    rates    {task: {trunk's label: the learning rate}} that the results were made with.
    seeds    those of the results, in order.
    """

    results: dict
    sweeps: dict
    rates: dict
    seeds: list


def diverged(histories):
    """Has one of these runs of a choice diverged?"""
    return any(np.isnan(history[-1]["test_accuracy"]) for history in histories)


def table(found, cell=None, paper=None):
    """Final test accuracy in per cent, mean and (least to largest) over seeds, as Markdown; the
    learning rate where it was chosen, "edge" where that is the least or largest tried, and those
    at which a run diverged.

    cell    another text for a task and trunk: a function of a :class:`Grid` and their names.
    paper   {(trunk, task): the paper's number}, which then stands in the cell.
    """
    models = dict.fromkeys(model for task in found.results.values() for model in task)
    lines = [["trunk", *(tasks.label_of(task) for task in found.results)]]
    for model in models:
        lines.append([model])
        for name, task in found.results.items():
            text = (cell or final)(found, name, model) if task.get(model) else ""
            theirs = (paper or {}).get((model, name))
            lines[-1].append(text if theirs is None else f"{text}; paper {theirs}".lstrip("; "))
    return markdown(lines)


def markdown(lines):
    """Lists of texts as the lines of a Markdown table, the first its head."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|---" * len(lines[0]) + "|", *rest])


def final(found, task, model):
    """A cell of the table: final test accuracy."""
    runs = found.results[task][model]
    return (f"{spread([100 * h[-1]['test_accuracy'] for h in runs])}, "
            f"{len(runs)} seed{'s' * (len(runs) > 1)}{chosen(found, task, model)}")


def differences(found):
    """A Markdown table of each arm's accuracy less that of the task's first arm, in points: at
    the end, and in the mean over the whole curve, its *area*.  Each is the mean over the seeds
    that both have and a 95 % interval, see :func:`interval`; "" where there is one arm only."""
    lines = [["task", "difference", "at the end", "area", "seeds"]]
    for task, arms in found.results.items():
        (first, ours), *others = arms.items()
        for name, theirs in others:
            pairs = [*zip(theirs, ours, strict=False)]
            ends, areas = ([100 * (measure(a["test_accuracy"]) - measure(b["test_accuracy"]))
                            for a, b in pairs] for measure in (lambda curve: curve[-1], np.mean))
            lines.append([tasks.label_of(task), f"{name} - {first}", interval(ends),
                          interval(areas), str(len(pairs))])
    return markdown(lines) if len(lines) > 1 else ""


def interval(values):
    """The mean of paired differences and its 95 % interval by Student's t, which takes them for
    draws from a normal distribution, as text; of one value there is no interval."""
    from scipy.stats import t
    mean, n = np.mean(values), len(values)
    if n == 1:
        return f"{mean:+.1f}"
    half = t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def spread(values, text="{:.1f}"):
    """The mean of numbers, and (least to largest) where these differ, as text."""
    mean, low, high = (text.format(v) for v in (np.mean(values), np.min(values), np.max(values)))
    return mean if low == high else f"{mean} ({low} to {high})"


def first_step(history, accuracy):
    """The first step at which a test is at least that accurate, or ``None``."""
    return next((row["step"] for row in history if row["test_accuracy"] >= accuracy), None)


def chosen(found, task, model):
    """", lr 0.01", with "(edge)" where it is the least or largest tried, and the rates at which a
    run diverged; "" where none was tried."""
    tried = found.sweeps.get(task, {}).get(model)
    if not tried:
        return ""
    rate = found.rates[task][model]
    edge = len(tried) > 1 and rate in (min(tried), max(tried))
    bad = " and ".join(f"{x:g}" for x, histories in tried.items() if diverged(histories))
    return f", lr {rate:g}{' (edge)' * edge}" + (f", {bad} diverged" if bad else "")


KIND = "comparison"                                       # of tables and pictures of grids
CSV = ["task", "trunk", "lr", "seed", "choice", "steps", "train_accuracy", "test_accuracy",
       "test_loss", "curve"]


def rows(found):
    """Every run as a line of a CSV, from which :func:`read_rows` makes all tables again.  The
    ``curve`` is "step:test accuracy" at each test."""
    ends = [(task, trunk, found.rates[task][trunk], 0, *end)
            for task, trunks in found.results.items() for trunk, histories in trunks.items()
            for end in zip(found.seeds, histories, strict=True)]
    ends += [(task, trunk, rate, 1, *end) for task, trunks in found.sweeps.items()
             for trunk, tried in trunks.items() for rate, histories in tried.items()
             for end in enumerate(histories, CHOICE)]
    return csv_text([dict(zip(CSV, [
        task, trunk, f"{rate:g}", seed, choice, history[-1]["step"],
        *(f"{history[-1][name]:.6f}" for name in CSV[6:9]),
        " ".join(f"{row['step']}:{row['test_accuracy']:.4f}" for row in history)], strict=True))
        for task, trunk, rate, choice, seed, history in ends])


def read_rows(path):
    """The :class:`Grid` of a file that :func:`rows` wrote."""
    found = Grid({}, {}, {}, [])
    with open(regular(path), newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            task, trunk, rate = row["task"], row["trunk"], float(row["lr"])
            points = [point.split(":") for point in row["curve"].split()]
            history = History({"step": int(step), "test_accuracy": float(accuracy)}
                              for step, accuracy in points)
            history[-1] |= {name: float(row[name]) for name in CSV[6:9]}
            if row["choice"] == "1":
                tried = found.sweeps.setdefault(task, {}).setdefault(trunk, {})
                tried.setdefault(rate, []).append(history)
            else:
                found.results.setdefault(task, {}).setdefault(trunk, []).append(history)
                found.rates.setdefault(task, {})[trunk] = rate
                found.seeds += [int(row["seed"])] * (int(row["seed"]) not in found.seeds)
    return found


def sweep_picture(sweeps, path):
    """Validation accuracy against the learning rate, an axis a task, a line a trunk; a cross at
    the lower edge where a run diverged."""
    fig, axes = plots.figure(len(sweeps))
    for ax, (task, models) in zip(axes, sweeps.items(), strict=True):
        colors = plots.colors_of(models)
        for i, (model, by_rate) in enumerate(models.items()):
            bad = [rate for rate, histories in by_rate.items() if diverged(histories)]
            rates = sorted({*by_rate} - {*bad})
            ends = [np.mean([100 * h[-1]["test_accuracy"] for h in by_rate[r]]) for r in rates]
            line, = ax.plot(rates, ends, marker=("osv^D*XPph" * 9)[i], label=model,
                            color=colors[model])
            ax.plot(bad, [0.03 + 0.05 * i] * len(bad), "x", color=line.get_color(),
                    label=f"{model}: diverged" if bad else None,
                    transform=ax.get_xaxis_transform())
        ax.set(title=tasks.label_of(task), xlabel="learning rate",
               ylabel="validation accuracy (%)", xscale="log")
    plots.legend(fig, axes)
    plots.save(fig, path, KIND)


def picture(results, path, limits=None):
    """Test accuracy against steps, an axis a task, a line a trunk, its range shaded; a line at
    each accuracy of ``limits``, {task: accuracy}.  More than three axes stand in two rows."""
    rows = 1 if len(results) < 4 else 2
    fig, axes = plots.figure(-(-len(results) // rows), rows)
    for ax in axes[len(results):]:
        ax.remove()
    labels = dict.fromkeys(model for models in results.values() for model in models)
    colors = plots.colors_of(labels)
    styles = dict(zip(labels, itertools.cycle(["-", "--", "-.", ":"]), strict=False))
    for ax, (task, models) in zip(axes, results.items(), strict=False):
        for model, runs in models.items():                # a second sign beside the colour
            plots.band(ax, runs, "test_accuracy", colors[model], model, style=styles[model])
        levels = {"chance": tasks.chance_of(task), "threshold": (limits or {}).get(task)}
        for text, share in levels.items():
            if share is not None:
                ax.axhline(100 * share, color="0.5", linewidth=0.8, linestyle=":")
                ax.text(0.01, 100 * share, text, fontsize=7, color="0.4", va="top",
                        transform=ax.get_yaxis_transform())
        ax.set(title=tasks.label_of(task), xlabel="step", ylabel="test accuracy (%)")
    plots.legend(fig, axes[:len(results)])
    plots.save(fig, path, KIND)
