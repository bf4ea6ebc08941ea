"""Pictures: learning curves.  Drawn without a display; nothing here opens a window."""

import numpy as np

from ..files import outputs, write_beside

# One colour for each source of frozen weights, the same in every picture.
COLORS = {"language": "#1f6fb4", "bits": "#2a9d6f", "images": "#8a5fbf",
          "brackets": "#7a6a2f", "copy": "#b5a642", "masked": "#49b6c9", "vision": "#c58be0",
          "statistics": "#e08a1e", "mimetic": "#111111", "random": "#c0392b", "LSTM": "#455a64"}
SPREAD = "#e39a8e"                                        # random weights at another spread
PAPER = "#6d1a36"                                         # random weights as the paper draws them
# For lines that have none of their own.
OTHERS = "#6aa621", "#d6247f", "#1a2a6c", "#8d4a1f", "#7f8c8d", "#e6c229"
TRAINED, FROZEN = "#d6247f", "#9fb0ba"                    # parts of a model


def color_of(label):
    """The colour of a trunk by its label, ``None`` where it has none of its own."""
    if ")," in label:                                     # as "random (spread 0.55), all trained"
        return None
    if label.startswith("random (") and label.endswith("paper)"):
        return PAPER
    return SPREAD if label.startswith("random (spread") else COLORS.get(label.partition(" ")[0])


def colors_of(labels):
    """{label: colour}: a trunk's own, another one for what has none, as "language, all trained"."""
    found = {label: color_of(label) for label in labels}
    others = [label for label, color in found.items() if color is None]
    return found | {label: OTHERS[i % len(OTHERS)] for i, label in enumerate(others)}


def figure(columns=1, rows=1, width=5.2, height=3.6):
    """A Matplotlib figure and its axes (a list), independent of pyplot's state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    fig = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(fig)
    axes = [fig.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return fig, axes


def legend(fig, axes):
    """What the lines are, in the first axis that has them; beside all where these are many."""
    handles = {label: handle for ax in axes for handle, label in
               zip(*ax.get_legend_handles_labels(), strict=True)}
    if len(handles) > 5:
        fig.set_figwidth(fig.get_figwidth() + 2.8)
        fig.legend(handles.values(), handles, loc="outside right upper", frameon=False)
        return
    shown = set()
    for ax in axes:
        labels = {*ax.get_legend_handles_labels()[1]}
        if labels - shown:
            ax.legend(frameon=False)
        shown |= labels


def curves(histories, path):
    """Loss and test accuracy against steps, one line for each ``{label: History}``."""
    fig, (left, right) = figure(2)
    for label, history in histories.items():
        steps = history["step"]
        line, = left.plot(steps, history["train_loss"], label=f"{label}, training")
        left.plot(steps, history["test_loss"], "--", color=line.get_color(),
                  label=f"{label}, test")
        right.plot(steps, 100 * history["test_accuracy"], color=line.get_color(), label=label)
    left.set(title="Loss", xlabel="step", ylabel="cross-entropy (nats)")
    right.set(title="Test accuracy", xlabel="step", ylabel="accuracy (%)")
    left.legend(frameon=False)
    save(fig, path)


def common(runs, column):
    """The steps at which all of several histories were tested, and their column there, (runs,
    steps): a run that was made longer has a row more, at its first end."""
    steps = sorted(set.intersection(*({row["step"] for row in run} for run in runs)))
    return steps, np.array([[row[column] for row in run if row["step"] in steps] for run in runs])


def band(ax, runs, column, color, label, scale=100, style="-"):
    """The mean of several histories' column, the range from least to largest shaded."""
    steps, values = common(runs, column)
    values = scale * values
    ax.plot(steps, values.mean(axis=0), style, color=color, label=label,
            marker="o" if len(steps) == 1 else None)
    ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color, alpha=0.2,
                    linewidth=0)


def save(fig, path, kind=None, dpi=120):
    """Write a PNG in one rename; one with a kind replaces only its like (see ``files.outputs``)."""
    if kind is not None:
        outputs.check(path, kind)
    metadata = {} if kind is None else {"Software": outputs.software(kind)}
    write_beside(path, lambda f: fig.savefig(f, format="png", dpi=dpi, metadata=metadata))
