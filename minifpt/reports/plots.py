"""Pictures of several trunks: colours, legends, bands.  ``files.curves`` draws a run's curves."""

import numpy as np

from ..files.curves import (  # noqa: F401
    curves,
    draw_curves,
    figure,
    finding,
    label_lines,
    mark_level,
    save,
)

# One colour for each source of frozen weights, the same in every picture.  With its dashes each
# arm is distinct under deuteranopia, too.
COLORS = {"language": "#0072b2", "bits": "#009e73", "images": "#56b4e9",
          "brackets": "#7a6a2f", "copy": "#b5a642", "masked": "#49b6c9", "vision": "#8a5fbf",
          "statistics": "#e69f00", "mimetic": "#111111", "random": "#d55e00", "LSTM": "#455a64"}
SPREAD = "#cc79a7"                                        # random weights at another spread
PAPER = "#5a1a3c"                                         # random weights as the paper draws them
DASHES = {"language": "-", "statistics": "-.", "random": "--", "bits": (0, (6, 1, 1, 1)),
          "images": (0, (3, 1)), SPREAD: (0, (8, 2)), PAPER: ":"}
# For lines that have none of their own.
OTHERS = "#6aa621", "#d6247f", "#1a2a6c", "#8d4a1f", "#7f8c8d", "#e6c229"
OTHER_DASHES = "-", (0, (5, 1)), (0, (2, 1)), (0, (7, 1, 1, 1)), (0, (4, 1, 1, 1)), (0, (1, 2))
TRAINED, FROZEN = "#d6247f", "#9fb0ba"                    # parts of a model


def color_of(label):
    """Return the colour of a trunk by its label; ``None`` if it has no colour of its own."""
    if ")," in label:                                     # as "random (spread 0.55), all trained"
        return None
    if label.startswith("random (") and label.endswith("paper)"):
        return PAPER
    return SPREAD if label.startswith("random (spread") else COLORS.get(label.partition(" ")[0])


def colors_of(labels):
    """Return {label: colour}; a label without a colour of its own, such as "language, all
    trained", gets one of ``OTHERS``."""
    colors = {label: color_of(label) for label in labels}
    others = [label for label, color in colors.items() if color is None]
    return colors | {label: OTHERS[i % len(OTHERS)] for i, label in enumerate(others)}


def dashes_of(labels):
    """Return {label: dash pattern}, as :func:`colors_of` returns colours."""
    patterns = {}
    for label, color in colors_of(labels).items():
        known = DASHES.get(color) or (color_of(label) and DASHES.get(label.partition(" ")[0], "-"))
        patterns[label] = known or OTHER_DASHES[len(patterns) % len(OTHER_DASHES)]
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
    """Draw the mean of several histories' column in per cent, and shade the range from least to
    largest."""
    steps, values = common(runs, column)
    values = 100 * values
    ax.plot(steps, values.mean(axis=0), linestyle=style, color=color, label=label,
            marker="o" if len(steps) == 1 else None)
    ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2,
                    linewidth=0)
