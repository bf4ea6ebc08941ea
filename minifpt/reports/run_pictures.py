"""The pictures of a run's report."""

import numpy as np

from . import plots


def groups_picture(model, tokens):
    """Draw the number of parameters of each group, trained or frozen."""
    counts = model.counts(tokens)
    fig, (ax,) = plots.figure(width=6.4, height=0.5 + 0.38 * len(counts))
    for i, (_, (total, trained)) in enumerate(counts.items()):
        parts = (0, trained, plots.TRAINED, ""), (trained, total - trained, plots.FROZEN, "///")
        for start, width, color, hatch in parts:
            ax.barh(i, width, left=start, color=color, hatch=hatch, edgecolor="white", height=0.7)
        state = "trained" if trained == total else "frozen" if not trained else "partly trained"
        ax.text(max(total, 1) * 1.15, i, f"{total:,} {state}", va="center", fontsize=8)
    ax.set_yticks(range(len(counts)), counts)
    ax.invert_yaxis()
    most = max(total for total, _ in counts.values())
    ax.set(xscale="log", xlim=(10, most * 60), xlabel="parameters, logarithmic (hatched: frozen)")
    return fig


def curves_picture(name, history, chance=None):
    """Draw loss and accuracy, in training and in tests."""
    fig, axes = plots.figure(2)
    plots.draw_curves(*axes, {name: history}, chance)
    axes[1].plot(history["step"], 100 * history["train_accuracy"], ":",
                 color=axes[1].lines[0].get_color(), label="training")
    axes[1].lines[0].set_label("test")
    axes[1].legend(frameon=False)
    return fig


def heat(values, rows, columns, label, log=False, text=False, xlabel="", ylabel=""):
    """Draw a heat map with its colour bar; with ``text`` each field shows its rounded number."""
    from matplotlib.colors import LogNorm
    values = np.asarray(values, float)
    fig, (ax,) = plots.figure(width=max(4.2, min(9, 1.8 + 0.42 * values.shape[1])),
                              height=max(1.8, min(16, 0.9 + 0.26 * len(values))))
    ax.grid(False)
    positive = values[values > 0]
    norm = LogNorm(positive.min(), positive.max()) if log and len({*positive}) > 1 else None
    image = ax.imshow(values, aspect="auto", norm=norm, cmap="cividis")
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


def costs_picture(costs):
    """Draw the time of each operation, forward and backward, and the memory that it keeps."""
    names = sorted(costs.operations, key=lambda op: -sum(seconds_of(costs.operations[op])))
    fig, (times, memory) = plots.figure(2, width=4.6, height=0.9 + 0.24 * len(names))
    each = [costs.operations[name] for name in names]
    at, forward = range(len(names)), np.array([1e3 * c.forward for c in each])
    times.barh(at, forward, color=plots.TRAINED, height=0.7, label="forward")
    times.barh(at, [1e3 * c.backward for c in each], left=forward, color=plots.FROZEN, height=0.7,
               hatch="///", edgecolor="white", label="backward")
    times.legend(frameon=False, loc="lower right")
    times.set(xlabel="milliseconds in a step")
    memory.barh(at, [c.kept / 1e6 for c in each], color=plots.FROZEN, height=0.7)
    memory.set(xlabel="MB kept for the backward pass")
    for ax, labels in ((times, names), (memory, [""] * len(names))):
        ax.set_yticks(at, labels, fontsize=8)
        ax.invert_yaxis()
    return fig


def seconds_of(cost):
    return cost.forward, cost.backward


def images_picture(images, titles):
    """Draw small pictures with a line above each."""
    columns = 8
    fig, axes = plots.figure(columns, -(-len(images) // columns), width=1.1, height=1.35)
    for ax in axes:
        ax.axis("off")
    for ax, image, title in zip(axes, images, titles, strict=False):
        low, high = image.min(), image.max()
        ax.imshow((image - low) / ((high - low) or 1), cmap="gray_r" if image.ndim == 2 else None)
        ax.set_title(title, fontsize=8)
    return fig
