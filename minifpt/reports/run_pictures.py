"""The pictures of a run's report."""

import numpy as np

from ..files import plots


def curves_pictures(name, history, chance=None):
    """Draw loss and accuracy, in training and in tests; return two figures."""
    (losses, (left,)), (accuracies, (right,)) = plots.figure(), plots.figure()
    plots.draw_curves(left, right, history, name, chance)
    right.plot(history["step"], 100 * history["train_accuracy"], ":",
               color=right.lines[0].get_color(), label="training")
    right.lines[0].set_label("test")
    right.legend(frameon=False)
    return losses, accuracies


def heat(values, rows, columns, label, text=False, xlabel="", ylabel=""):
    """Draw a heat map with its colour bar; with ``text`` each field shows its rounded number."""
    values = np.asarray(values, float)
    fig, (ax,) = plots.figure(width=max(4.2, min(9, 1.8 + 0.42 * values.shape[1])),
                              height=max(1.8, min(16, 0.9 + 0.26 * len(values))))
    ax.grid(False)
    image = ax.imshow(values, aspect="auto", cmap="cividis")
    every = -(-values.shape[1] // 16)
    ax.set_xticks(range(0, values.shape[1], every), columns[::every], fontsize=8)
    ax.set_yticks(range(len(values)), rows, fontsize=8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    for (i, j), v in np.ndenumerate(values) if text else ():
        r, g, b, _ = image.cmap(image.norm(v))
        ax.text(j, i, f"{v:.0f}", ha="center", va="center", fontsize=8,
                color="black" if r + g + b > 1.5 else "white")
    fig.colorbar(image, ax=ax, label=label)
    return fig


def bars(names, values, label):
    """Draw horizontal bars."""
    fig, (ax,) = plots.figure(width=6.4, height=0.8 + 0.2 * len(names))
    ax.barh(range(len(names)), values, color=plots.TRAINED, height=0.7)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel=label)
    return fig
