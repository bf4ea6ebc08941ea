"""The pictures of the pages, by name: each lies in docs/results."""

import re
from unittest.mock import patch

import numpy as np
from matplotlib.text import Text

from minifpt import tasks
from minifpt.experiments import tables
from minifpt.files import plots
from studies import directions, memory_map, numbers, trunks, why
from studies.grids import read_rows, task_of
from studies.pages import PAPER
from studies.runs import PAGES, RESULTS
from studies.runs import read_rows as read_csv
from studies.words import word

PICTURE = "xor", "memory", "few", "typos"
TRUNKS = {"language": "language", "images": "images", "statistics": "statistics",
          "statistics:minigpt-language": "statistics",
          "random": "random", "random (spread 0.55)": "random (spread 0.55)",
          "random (0.02)": "random (0.02)"}


def label_of(title):
    """The label of a task, also of its long runs."""
    return tasks.label_of(task_of(title))


# {panel: {row: (file, task, arm)}} of pictures of final accuracies.
LONG = "mnist-long", "cifar10-long", "listops-long"
WHOLE = {label_of(title): {
    "pretrained on novels, frozen": (sweep, title, "language"),
    "pretrained on novels, trained whole": (sweep, title, "language, all trained"),
    "random, frozen": (sweep, title, "random"),
    "random, trained whole": (sweep, title, "random, all trained"),
    "LSTM, trained whole": (figure, title, "LSTM, all trained")}
    for title, sweep, figure in (
        ("bit-xor", "learning-rates", "figure1"), ("bit-memory", "learning-rates", "figure1"),
        *((title, title, title) for title in LONG))}
LINEAR = {title: {"pretrained on novels": (file, task, "language"),
                  "random": (file, task, "random"),
                  "two layers, 256 hidden": ("simple", task, "two layers, 256 hidden"),
                  "linear classifier": ("simple", task, "softmax regression")}
          for title, file, task in (
              *((label_of(title), title, title) for title in LONG),
              ("MNIST, 100 labels", "overfitting", "few-mnist-100"),
              ("digits, 200 labels", "few", "few-digits"))}


def draw_result(ax, y, ends, color, paper=None):
    """Draw an arm's final accuracies: a dot for the mean, a line from the least to the largest, an
    open diamond for the paper's number, if it has one."""
    ax.plot([min(ends), max(ends)], [y, y], "-", color=color, linewidth=3, alpha=0.5)
    ax.plot(np.mean(ends), y, "o", color=color, markersize=7, label="minifpt")
    if paper is not None:
        ax.plot(paper, y, "D", color="black", fillstyle="none", markersize=8, label="paper")


def draw_legend(fig, ax):
    """Write the legend of :func:`draw_result` below the axes."""
    handles = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    fig.legend(handles.values(), handles, loc="outside lower right", ncols=2, frameon=False)


def paper_runs():
    """The rows of ``paper.csv`` with a run of ours, apart from the steps of table 4."""
    return [row for row in read_csv(PAPER) if row["arm"] and row["place"] != "table 4"]


def paper_numbers():
    """The paper's accuracies in per cent, by our file, task and arm.  Where two tables of the paper
    have the arm, the first one counts."""
    return {(row["file"], row["column"], row["arm"]): float(row["paper"].partition(" ")[0])
            for row in reversed(paper_runs())}


def paper_panels():
    """The runs beside five of the paper's models, in the form of ``WHOLE``."""
    runs = {(row["task"], row["model"]): (row["file"], row["column"], row["arm"])
            for row in paper_runs()}
    return {task: {model.replace("language", "pretrained on novels"): runs[task, model]
                   for model in ("language, frozen", "random, frozen", "transformer, trained whole",
                                 "LSTM, frozen", "LSTM, trained whole") if (task, model) in runs}
            for task in dict.fromkeys(task for task, _ in runs)}


def dots(panels, path, paper=None):
    """Final accuracies, a panel a task; ``paper`` has the paper's by file, task and arm.  An arm
    that was not run is left out."""
    rows = 1 if len(panels) < 4 else 2
    columns = -(-len(panels) // rows)
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    fig, axes = plots.figure(columns, rows, 3.3, 0.9 + 0.32 * len(names))
    for ax in axes[len(panels):]:
        ax.remove()
    inks = plots.COLORS["language"], plots.COLORS["random"], *plots.OTHER_COLORS
    colors = dict(zip(names, inks, strict=False))
    for i, (ax, (title, panel)) in enumerate(zip(axes, panels.items(), strict=False)):
        for y, name in enumerate(names[::-1]):
            if name not in panel:
                continue
            file, task, arm = panel[name]
            ends = [100 * h[-1]["test_accuracy"]
                    for h in numbers.grid_of(file).results[task].get(arm, ())]
            if ends:
                draw_result(ax, y, ends, colors[name], (paper or {}).get((file, task, arm)))
                ax.text(np.mean(ends), y + 0.2, f"{np.mean(ends):.1f}", ha="center", fontsize=8)
        chance = tasks.chance_of("mnist" if task.startswith("few") else task_of(task))
        if chance:                                        # of the next byte it is not known
            ax.axvline(100 * chance, color="0.5", linestyle=":", linewidth=1)
        ax.set(title=title, xlim=(min(100 * (chance or 0), 45) - 4, 104),
               ylim=(-0.6, len(names) - 0.3), xlabel="test accuracy (%)", yticks=range(len(names)),
               yticklabels=names[::-1] if i % columns == 0 else [])
    if paper:
        draw_legend(fig, axes[0])
    plots.save(fig, path)


def surprise(path):
    """Draw the README's picture: three frozen models on bit memory, the mean over five seeds."""
    runs = read_rows(RESULTS / "memory.csv").results["bit-memory"]
    fig, (ax,) = plots.figure(width=8, height=3.4)
    for arm, label, right in (("random", "random", 101.3), ("language", "has read novels", 95.5),
                              ("random (0.02)", "random, too small", 83.5)):
        steps, curves = plots.common(runs[arm], "test_accuracy")
        color = plots.color_of(arm)
        ax.plot(steps, 100 * curves.mean(axis=0), color=color, linewidth=2.5)
        ax.text(2000, right, label, color=color, fontsize=12, ha="right")
    ax.axhline(75, color="0.5", linestyle=":")
    ax.text(2000, 73.2, "a guess at the hidden bits", color="0.35", fontsize=10, ha="right")
    ax.set(title="Does it find the string? Three frozen models", xlabel="training steps",
           ylabel="bits right (%)", xlim=(0, 2010), ylim=(72, 104), yticks=range(75, 101, 5),
           xticks=range(0, 2001, 500))
    plots.save(fig, path)


def save_in_words(fig, path, save=plots.save):
    """Save a figure whose texts call the arms by their words."""
    for ax in fig.axes:
        labels = [text.get_text() for text in ax.get_yticklabels()]
        if [*map(word, labels)] != labels:                # set anew, or a drawing restores them
            ax.set_yticklabels(map(word, labels))
    for text in fig.findobj(Text):
        text.set_text(word(text.get_text()))
    save(fig, path)


def in_words(draw):
    """Return a function that draws a picture whose texts call the arms by their words."""
    def draw_in_words(path):
        with patch.object(plots, "save", save_in_words):
            draw(path)
    return draw_in_words


def curves(path):
    """Draw accuracy against steps for the frozen trunks on four tasks."""
    panels = {}
    for name in PICTURE:
        (task, arms), = read_rows(RESULTS / f"{name}.csv").results.items()
        arms = {TRUNKS.get(arm, arm): runs for arm, runs in arms.items()}
        panels[task] = {arm: arms[arm] for arm in TRUNKS.values() if arm in arms}
    tables.picture(tables.Grid(panels, {}, {}, []), path)


def sweep_picture(grid, path):
    """Draw validation accuracy against the learning rate.

    Each task has an axis, each trunk a line.  A cross at the lower edge marks a rate at which a run
    diverged."""
    fig, axes = plots.figure(len(grid.sweeps), width=3.3)
    for ax, (task, models) in zip(axes, grid.sweeps.items(), strict=True):
        colors, dashes = plots.colors_of(models), plots.dashes_of(models)
        for i, (model, by_rate) in enumerate(models.items()):
            bad = [rate for rate, histories in by_rate.items() if tables.diverged(histories)]
            rates = sorted({*by_rate} - {*bad})
            ends = [np.mean([100 * h[-1]["test_accuracy"] for h in by_rate[r]]) for r in rates]
            line, = ax.plot(rates, ends, marker=("osv^D*XPph" * 9)[i], label=model,
                            color=colors[model], linestyle=dashes[model])
            ax.plot(bad, [0.03 + 0.05 * i] * len(bad), "x", color=line.get_color(),
                    label=f"{model}: diverged" if bad else None,
                    transform=ax.get_xaxis_transform())
        plots.mark_level(ax, grid.chance(task), "chance")
        ax.set(title=tasks.label_of(task), xlabel="learning rate",
               ylabel="validation accuracy (%)", xscale="log")
    plots.legend(fig, axes)
    plots.save(fig, path)


PICTURES = {
    "surprise": surprise, "curves": in_words(curves),
    "statistics": in_words(lambda path: tables.picture(
        read_rows(RESULTS / "statistics.csv"), path)),
    "rates": in_words(lambda path: sweep_picture(read_rows(RESULTS / "learning-rates.csv"), path)),
    "whole": lambda path: dots(WHOLE, path), "linear": lambda path: dots(LINEAR, path),
    "paper": lambda path: dots(paper_panels(), path, paper_numbers()),
    "memory-map": lambda path: memory_map.picture(RESULTS / "memory-map.csv", path),
    "why": lambda path: why.picture(RESULTS, path),
    "trunks": lambda path: trunks.picture(RESULTS / "trunks-pretrained.csv", path),
    "trunks-window": lambda path: trunks.window_picture(RESULTS / "trunks-window.csv", path),
    "trunks-predictions": lambda path: trunks.predictions_picture(RESULTS, path),
    "directions-curves": directions.picture_of_curves,
    "directions-dose": directions.picture_of_dose,
    "directions-plane": directions.picture_of_plane}


def shown(text):
    """Return the names of the pictures that a text shows."""
    return {name for name in re.findall(r"\]\([^)\s]*?([\w-]+)\.png\)", text) if name in PICTURES}


def draw(path):
    """Draw the pictures that a text shows."""
    for name in sorted(shown(path.read_text(encoding="utf-8"))):
        PICTURES[name](PAGES / f"{name}.png")
