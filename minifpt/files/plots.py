"""Pictures of runs: learning curves, and the colours, legends and bands of several trunks.

They are drawn without a display; nothing here opens a window.
"""

import os
from importlib.util import find_spec

import numpy as np

from . import write_beside

# A command in a notebook inherits MPLBACKEND, which may name a package that is not installed here:
# then Matplotlib refuses to be imported.  A picture in a file needs no backend.
BACKEND = os.environ.get("MPLBACKEND", "")
if BACKEND.startswith("module://") and not find_spec(BACKEND[9:].partition(".")[0]):
    del os.environ["MPLBACKEND"]

# One colour for each source of frozen weights, the same in every picture.  With its dashes each
# arm is distinct under deuteranopia, too.
COLORS = {"language": "#0072b2", "bits": "#009e73", "images": "#56b4e9",
          "masked": "#49b6c9", "vision": "#8a5fbf", "statistics": "#e69f00", "random": "#5a1a3c",
          "LSTM": "#455a64"}
SMALL, SPREAD = "#d55e00", "#cc79a7"    # random weights of GPT-2's spread, and of another one
DASHES = {"language": "-", "statistics": "-.", "random": ":", "bits": (0, (6, 1, 1, 1)),
          "images": (0, (3, 1)), SPREAD: (0, (8, 2)), SMALL: "--"}
# For lines that have none of their own.
OTHER_COLORS = "#6aa621", "#d6247f", "#1a2a6c", "#8d4a1f", "#7f8c8d", "#e6c229"
OTHER_DASHES = "-", (0, (5, 1)), (0, (2, 1)), (0, (7, 1, 1, 1)), (0, (4, 1, 1, 1)), (0, (1, 2))
TRAINED, FROZEN = "#d6247f", "#9fb0ba"                    # parts of a model


def curves(history, path, name, chance=None):
    """Write a picture of a run's loss and accuracy against steps."""
    fig, axes = figure(2)
    draw_curves(*axes, history, name, chance)
    save(fig, path)


def draw_curves(losses, accuracies, history, name, chance=None):
    """Draw loss and accuracy into two axes, in training and in tests."""
    steps, marker = history["step"], "o" if len(history) < 3 else None
    for split, style, text in (("train", ":", "training"), ("test", "-", "test")):
        options = {"linestyle": style, "marker": marker, "color": COLORS["language"], "label": text}
        losses.plot(steps, history[f"{split}_loss"], **options)
        accuracies.plot(steps, 100 * history[f"{split}_accuracy"], **options)
    losses.set(title="Loss", xlabel="step", ylabel="cross-entropy (nats)")
    accuracies.set(xlabel="step", ylabel="accuracy (%)")
    for ax in losses, accuracies:
        ax.legend(frameon=False)
    mark_level(accuracies, chance, "chance")
    if np.isfinite(end := 100 * history["test_accuracy"][-1]):
        accuracies.set_title(f"{name}: {end:.1f} % right after {steps[-1]:,.0f} steps")


def figure(columns=1, rows=1, width=4.2, height=3.2, **options):
    """Return a Matplotlib figure and the list of its axes, independent of pyplot's state; other
    options are those of ``Figure.subplots``."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = [*fig.subplots(rows, columns, squeeze=False, **options).flat]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return fig, axes


def mark_level(ax, share, text):
    """Draw a dotted line across at a share, 0 ... 1, of the accuracy in per cent."""
    if share is not None:
        ax.axhline(100 * share, color="0.35", linewidth=0.9, linestyle=(0, (1, 2)))
        ax.text(0.99, 100 * share, text, fontsize=8.5, color="0.3", va="top", ha="right",
                transform=ax.get_yaxis_transform())


def save(fig, path, dpi=120):
    """Write a PNG in one rename."""
    write_beside(path, lambda f: fig.savefig(f, format="png", dpi=dpi))


def color_of(label):
    """Return the colour of a trunk by its label; ``None`` if it has no colour of its own."""
    if ")," in label:                                     # as "random (spread 0.55), all trained"
        return None
    if label.startswith("random (") and ("spread" in label or "0.02" in label):
        return SPREAD if "spread" in label else SMALL
    return COLORS.get(label.partition(" ")[0])


def colors_of(labels):
    """Return {label: colour}; a label without a colour of its own, such as "language, all
    trained", gets one of ``OTHER_COLORS``."""
    colors = {label: color_of(label) for label in labels}
    others = [label for label, color in colors.items() if color is None]
    return colors | {label: OTHER_COLORS[i % len(OTHER_COLORS)] for i, label in enumerate(others)}


def dashes_of(labels):
    """Return {label: dash pattern}, as :func:`colors_of` returns colours."""
    patterns = {}
    for label, color in colors_of(labels).items():
        pattern = DASHES.get(color) or (
            color_of(label) and DASHES.get(label.partition(" ")[0], "-"))
        patterns[label] = pattern or OTHER_DASHES[len(patterns) % len(OTHER_DASHES)]
    return patterns


def legend(fig, axes, inside=4):
    """Write a legend in each axis that has new lines; for more than ``inside`` lines in all, write
    one legend below the axes."""
    handles = {label: handle for ax in axes for handle, label in
               zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(handles) > inside:
        columns = min(3, len(axes))
        fig.set_figheight(fig.get_figheight() + 0.22 * -(-len(handles) // columns))
        fig.legend(handles.values(), handles, loc="outside lower center", ncols=columns,
                   frameon=False)
        return
    shown = set()
    for ax in axes:
        labels = {*ax.get_legend_handles_labels()[1]}
        if labels - shown:
            ax.legend(frameon=False)
        shown |= labels


def common(runs, column):
    """Return the steps at which all of several histories were tested, and their column there,
    (runs, steps).  A run that was made longer has one more row, at its first end."""
    steps = sorted(set.intersection(*({row["step"] for row in run} for run in runs)))
    return steps, np.array([[row[column] for row in run if row["step"] in steps] for run in runs])


def band(ax, runs, column, color, label, style="-"):
    """Draw the mean of several histories' column in per cent, and shade the range around it."""
    steps, values = common(runs, column)
    values = 100 * values
    ax.plot(steps, values.mean(axis=0), linestyle=style, color=color, label=label,
            marker="o" if len(steps) == 1 else None)
    ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2,
                    linewidth=0)
