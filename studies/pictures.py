"""The pictures of the pages, by name: each lies in docs/results."""

import re

import numpy as np

from minifpt import tasks
from minifpt.experiments import tables
from minifpt.files import plots
from studies import directions, memory_map, numbers, style, trunks, why
from studies.grids import task_of
from studies.paper import PAPER
from studies.runs import PAGES, read_rows
from studies.words import word

# ------------------------------------------------------------------------------ final accuracies

LONG = "mnist-long", "cifar10-long", "listops-long"
# {row: (mark, its colour)}: a square is trained whole.
WHOLE_MARKS = {"pretrained on novels, frozen": "o", "pretrained on novels, trained whole": "s",
               "random, frozen": "o", "random, trained whole": "s", "LSTM, trained whole": "s"}
PAPER_MARKS = {"pretrained on novels, frozen": "o", "random, frozen": "o",
               "random, trained whole": "s", "LSTM, frozen": "o", "LSTM, trained whole": "s"}
LINEAR_MARKS = {"pretrained on novels, frozen": "o", "random, frozen": "o",
                "two layers, 256 hidden": "o", "linear classifier": "o"}
OF_NOVELS = {"pretrained on novels, frozen": "language",
             "pretrained on novels, trained whole": "language, all trained",
             "random, frozen": "random", "random, trained whole": "random, all trained"}


def color_of(words):
    """Return the colour of a row."""
    return next(color for name, color in style.COLORS.items()
                if words.replace("pretrained on novels", "language").startswith(name))


def chance_of(title):
    """Return the chance accuracy of a column's task, in per cent."""
    return 100 * tasks.chance_of("mnist" if title.startswith("few") else task_of(title))


def whole(path):
    """Draw frozen and trained whole, at each one's own rate."""
    panels = {tasks.label_of(task_of(title)): {
        **{words: (file, title, arm) for words, arm in OF_NOVELS.items()},
        "LSTM, trained whole": (lstm, title, "LSTM, all trained")}
        for title, file, lstm in (
            ("bit-xor", "learning-rates", "figure1"), ("bit-memory", "learning-rates", "figure1"),
            *((title, title, title) for title in LONG))}
    dots(path, panels, WHOLE_MARKS,
         "Frozen and trained whole part on CIFAR-10 and ListOps")


def linear(path):
    """Draw frozen transformers beside methods without attention."""
    panels = {title: {"pretrained on novels, frozen": (file, task, "language"),
                      "random, frozen": (file, task, "random"),
                      "two layers, 256 hidden": ("simple", task, "two layers, 256 hidden"),
                      "linear classifier": ("simple", task, "softmax regression")}
              for title, file, task in (
                  *((tasks.label_of(task_of(title)), title, title) for title in LONG),
                  ("MNIST, 100 labels", "overfitting", "few-mnist-100"),
                  ("digits, 200 labels", "few", "few-digits"))}
    dots(path, panels, LINEAR_MARKS,
         "Frozen transformers are ahead of a linear classifier, but not with few labels")


def paper(path):
    """Draw our accuracies and the paper's."""
    panels, papers = {}, {}
    for row in read_rows(PAPER):
        words = row["model"].replace("language", "pretrained on novels").replace(
            "transformer,", "random,")
        if row["arm"] and row["place"] != "table 4" and words in PAPER_MARKS:
            run = row["file"], row["column"], row["arm"]
            panels.setdefault(row["task"], {}).setdefault(words, run)
            papers.setdefault(run, float(row["paper"].partition(" ")[0]))
    dots(path, panels, PAPER_MARKS,
         "Ours and the paper's agree on bits, but for random weights and LSTMs",
         papers)


def dots(path, panels, marks, title, papers=()):
    """Draw final accuracies: a panel a task, a dot for the mean of an arm, a line from the least to
    the largest, and the paper's, by file, task and arm; the last panel is the key."""
    fig, axes = style.figure(3, 2, 0.9 + 0.26 * len(marks))
    for ax, (task_words, panel) in zip(axes, panels.items(), strict=False):
        for y, name in enumerate([*marks][::-1]):
            if name not in panel:
                continue
            file, task, arm = panel[name]
            ends = [100 * h[-1]["test_accuracy"]
                    for h in numbers.grid_of(file).results[task].get(arm, ())]
            if not ends:                                  # it was not run
                continue
            color, mean = color_of(name), np.mean(ends)
            ax.plot([min(ends), max(ends)], [y, y], color=color, linewidth=4, alpha=0.45)
            ax.plot(mean, y, marks[name], color=color, markersize=7)
            ax.text(1.01, y, f"{mean:.1f}", va="center", fontsize=9, color=color,
                    transform=ax.get_yaxis_transform())
            if papers:
                ax.plot(papers[panel[name]], y, "D", color="black", fillstyle="none", markersize=8)
        chance = chance_of(task)
        style.mark_chance(ax, chance, across=False)
        ax.set_title(task_words, pad=18)
        ax.set(xlim=(min(chance, 45) - 4, 104), ylim=(-0.6, len(marks) - 0.3),
               xlabel="test accuracy (%)", yticks=[])
    style.key(axes[-1], [*((mark, color_of(name), name) for name, mark in marks.items()),
                         *[("D", "black", "the paper (numbers are ours)")] * bool(papers)])
    style.save(fig, path, title)


# ------------------------------------------------------------------------------ against steps

TRUNKS = {"language": "language", "images": "images", "statistics": "statistics",
          "statistics:minigpt-language": "statistics",
          "random": "random", "random (spread 0.55)": "random (spread 0.55)",
          "random (0.02)": "random (0.02)"}
FINDINGS = {"xor": "the smallest weights are late", "memory": "random ends ahead of novels",
            "few": "pretraining on digits helps", "typos": "only novels help"}


def curves(path):
    """Draw accuracy against steps for frozen trunks on four tasks."""
    fig, axes = style.figure(2, 2, 3.0)
    for ax, (name, finding) in zip(axes, FINDINGS.items(), strict=True):
        (task, arms), = numbers.grid_of(name).results.items()
        arms = {TRUNKS.get(arm, arm): runs for arm, runs in arms.items()}
        for arm in dict.fromkeys(TRUNKS.values()):
            if arm in arms:
                plots.band(ax, arms[arm], "test_accuracy", style.COLORS[arm], word(arm),
                           plots.DASHES.get(style.COLORS[arm], plots.DASHES.get(arm)))
        style.mark_chance(ax, chance_of(task))
        ax.set_title(f"{word(tasks.label_of(task))}: {finding}", loc="left", fontsize=11)
        ax.set(xlabel="training steps", ylabel="test accuracy (%)")
    style.legend(fig, axes, 3)
    style.save(fig, path, "Frozen random weights keep up with novels, but not on typos")


def surprise(path):
    """Draw three frozen models on bit memory, the mean over five seeds, and the paper's."""
    runs = numbers.grid_of("memory").results["bit-memory"]
    fig, (ax,) = style.figure(height=3.8)
    for arm, label, shift in (("random", "random", 0.5), ("language", "pretrained on novels", -0.9),
                              ("random (0.02)", "random, too small", 0)):
        steps, values = plots.common(runs[arm], "test_accuracy")
        mean = 100 * values.mean(axis=0)
        ax.plot(steps, mean, color=style.COLORS[arm], linewidth=2.5)
        ax.text(2030, mean[-1] + shift, f"{label}, {mean[-1]:.1f}", color=style.COLORS[arm],
                fontsize=11, va="center")
    number, = numbers.values("table2 / bit-memory / random / paper")
    ax.plot(2000, number, "D", color="black", fillstyle="none", markersize=8)
    ax.text(2040, number + 0.6, f"the paper's random, {number}\n(larger, longer strings, 1e-3)",
            fontsize=10, va="center")
    style.mark_chance(ax, 75)
    ax.set(xlabel="training steps", ylabel="bits right (%)", xlim=(0, 2750), ylim=(73, 101.5),
           yticks=range(75, 101, 5), xticks=range(0, 2001, 500))
    style.save(fig, path, "Frozen random weights learn bit memory, if they are large enough")


def rates(path):
    """Draw validation accuracy against the learning rate: a panel a task, a line an arm; a cross at
    the lower edge marks a rate at which a run diverged."""
    grid = numbers.grid_of("learning-rates")
    fig, axes = style.figure(3, 1, 3.6)
    for ax, (task, models) in zip(axes, grid.sweeps.items(), strict=True):
        for i, (arm, by_rate) in enumerate(models.items()):
            source, _, is_whole = arm.partition(", all ")
            bad = [rate for rate, histories in by_rate.items() if tables.diverged(histories)]
            good = sorted({*by_rate} - {*bad})
            ends = [np.mean([100 * h[-1]["test_accuracy"] for h in by_rate[rate]]) for rate in good]
            ax.plot(good, ends, "s--" if is_whole else "o-", color=style.COLORS[source],
                    label=word(arm))
            ax.plot(bad, [0.03 + 0.05 * i] * len(bad), "x", color=style.COLORS[source],
                    transform=ax.get_xaxis_transform())
        style.mark_chance(ax, chance_of(task))
        ax.set(title=tasks.label_of(task), xlabel="learning rate", xscale="log")
    axes[0].set_ylabel("validation accuracy (%)")
    style.legend(fig, axes, 3)
    style.save(fig, path, "Transformers trained whole need smaller learning rates than frozen ones")


PICTURES = {
    "surprise": surprise, "curves": curves, "rates": rates, "whole": whole, "linear": linear,
    "paper": paper, "memory-map": memory_map.picture, "why": why.picture,
    "trunks": trunks.picture, "trunks-window": trunks.window_picture,
    "trunks-predictions": trunks.predictions_picture,
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
