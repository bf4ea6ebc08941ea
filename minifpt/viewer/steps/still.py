"""The frames of a step as a filmstrip: forward above, backward below, each under its partner."""

from pathlib import Path

import numpy as np

from ...files import plots
from .. import stored_array

INK, SOFT, HATCH = "#1d2930", "#5b6b74", "#8093a0"
# How a bar looks for an operation or a group, by its parameters; "missing": nothing runs back.
BARS = {"trained": {"color": plots.TRAINED, "edgecolor": plots.TRAINED},
        "frozen": {"color": "#eef2f4", "edgecolor": HATCH, "hatch": "////"},
        "none": {"color": "white", "edgecolor": HATCH},
        "missing": {"color": "white", "edgecolor": HATCH, "linestyle": ":"}}


def still(data, path):
    """Draw the ``data`` of a ``Steps`` into a ``.png`` file.  Raises ``ValueError`` for another
    ending."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a file .png")
    import matplotlib
    with matplotlib.rc_context({"hatch.linewidth": 0.7, "hatch.color": HATCH, "font.size": 9}):
        plots.save(draw(data), path, dpi=110)


def draw(data):
    """Return the filmstrip as a Matplotlib figure."""
    from matplotlib.figure import Figure
    columns = chosen(data["steps"])
    n = len(columns) + 2
    fig = Figure(figsize=(1.55 * n, 5.2), layout="constrained")
    title = ", ".join(filter(None, (data["title"], data["trunk"])))
    fig.suptitle(f"{title}: forward above, backward below", fontsize=11, color=INK, x=0.01,
                 ha="left")
    grid = fig.add_gridspec(3, n, height_ratios=(0.42, 1, 1))
    ribbon(fig.add_subplot(grid[0, :]), data)
    matrix(fig.add_subplot(grid[1, 0]), data, data["x"], "in: x")
    adam(fig.add_subplot(grid[2, 0]), data["adam"], data["losses"])
    for i, step in enumerate(columns, 1):
        layer, _, op = step["name"].removeprefix("trunk.").rpartition(".")
        out = next((p for p in step.get("middle") or step["out"] if "array" in p), {})
        name = out.get("name", "")
        matrix(fig.add_subplot(grid[1, i]), data, out.get("array"),
               f"{layer}\n{op if name == 'y' else name}")
        back = None if step["partner"] is None else data["steps"][step["partner"]]
        backward(fig.add_subplot(grid[2, i]), data, step, back)
    loss(fig.add_subplot(grid[1, n - 1]), fig.add_subplot(grid[2, n - 1]), data)
    return fig


def chosen(steps):
    """Return the operations to draw: one of each kind in the first block."""
    ahead = [s for s in steps if not s["back"]]
    fold = next((s["fold"] for s in ahead if s["fold"]), None)
    block = [s for s in ahead if s["fold"] == fold and s["inside"] is None]
    first = {s["op"]: s for s in reversed(block)}
    last = {s["op"]: s for s in block}                    # the feed-forward part's, not attention's
    shown = [last[op] if op == "linear" else first[op] for op in dict.fromkeys(
        s["op"] for s in block) if op not in ("dropout", "last_tokens", "positions")][:5]
    return sorted(shown, key=block.index)


def values(data, number):
    """Return a matrix: the last two axes of an array of the file, of its first example and head."""
    array = np.atleast_2d(stored_array(data, number))
    return array.reshape(-1, *array.shape[-2:])[0].astype(float)


def matrix(ax, data, number, title):
    """Draw a matrix as colours: blue below 0, orange above; teal where none is negative."""
    from matplotlib.colors import LinearSegmentedColormap
    frame(ax, title)
    if number is None:
        return
    cells, stored = values(data, number), data["arrays"][number]
    limit = float(np.quantile(np.abs(cells), 0.985)) or float(np.abs(cells).max()) or 1.0
    is_positive = not (cells < 0).any()
    colours = ["#fafaf7", "#0c5460"] if is_positive else ["#1c58a0", "#fafafa", "#c45400"]
    ax.imshow(cells, LinearSegmentedColormap.from_list("", colours), aspect="auto",
              vmin=0 if is_positive else -limit, vmax=limit, interpolation="nearest")
    ax.set_xlabel(" × ".join(map(str, stored["shape"]))
                  + ", cut" * (stored["shape"] != stored["shown"]), fontsize=9, color=SOFT)


def frame(ax, title):
    """Give an axis a title and a grey frame, and no ticks."""
    ax.set_title(title, fontsize=9, color=INK, loc="left")
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_color("#b4c0c7")


def backward(ax, data, step, back):
    """Draw the gradient of an operation; hatched if it was never computed."""
    frozen = next((m for m in step["missing"] if m["why"] == "frozen" and m["cost"]), None)
    if back is None or frozen:
        frame(ax, f"← {frozen['name'] if frozen else 'nothing'}")
        ax.set_facecolor("#eef2f4")
        ax.patch.set_hatch("////")
        text = (f"never computed:\nfrozen\nsaves {frozen['cost']:,}\nmultiply-adds" if frozen else
                "nothing runs back:\nnothing below\nlearns")
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=9,
                color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 3})
        return
    out = [p for p in back["out"] if "array" in p]
    part = next((p for p in out if p.get("trained")), out[0])
    matrix(ax, data, part["array"], f"← {part['name']}" + " (trained)" * bool(part.get("trained")))


def loss(top, bottom, data):
    """Draw the probabilities and dlogits, the gradient of the loss."""
    frame(top, f"loss {data['loss']:.4f}")
    frame(bottom, "← dlogits")
    back = next((s for s in data["steps"] if s["back"] and s["op"] == "cross_entropy"), None)
    if back is None or "formula" not in back["out"][0]:
        return
    refs = back["out"][0]["formula"]["refs"]
    matrix(top, data, refs["p"], f"loss {data['loss']:.4f}\np, ○ right")
    for i, j in np.argwhere(values(data, refs["one_hot"]) == 1):
        top.plot(j, i, "o", markersize=5, markerfacecolor="none", markeredgecolor="#c45400")
    matrix(bottom, data, back["out"][0]["array"], "← (p − one-hot) / n")


def adam(ax, update, losses):
    """Draw how far each group of parameters moved."""
    groups = {}
    for row in update["rows"]:
        moved, size = groups.get(row["group"], (0.0, 0))
        n = int(np.prod(row["shape"]))
        groups[row["group"]] = moved + row["moved"] ** 2 * n, size + n
    distances = {g: (total / n) ** 0.5 for g, (total, n) in groups.items()}
    largest = max(distances.values()) or 1.0
    for i, distance in enumerate(distances.values()):
        ax.barh(i, distance or largest, **BARS["trained" if distance else "frozen"])
        if not distance:
            ax.text(largest / 2, i, "frozen", ha="center", va="center", fontsize=9, color=INK,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    ax.set_title(f"Adam: loss of this\nbatch {losses[0]:.3f} → {losses[1]:.3f}", fontsize=9,
                 color=INK, loc="left")
    ax.set(yticks=range(len(distances)), yticklabels=distances, xticks=[])
    ax.tick_params(length=0, labelsize=9)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    ax.set_xlabel("how far each group moved", fontsize=9, color=SOFT)


def ribbon(ax, data):
    """Draw all operations: forward passes in the upper row, backward passes below them."""
    steps = data["steps"]
    ahead = [s for s in steps if not s["back"]]
    for x, step in enumerate(ahead):
        are_trained = [p["trained"] for p in step["in"] if "parameter" in p]
        kind = "trained" if any(are_trained) else "frozen" if are_trained else "none"
        for y, bar in ((1, kind), (0, "missing" if step["partner"] is None else kind)):
            ax.bar(x, 0.8, 0.82, bottom=y, align="edge", linewidth=0.6, **BARS[bar])
    fold = None
    for x, step in enumerate(ahead):
        if step["fold"] and step["fold"] != fold:
            ax.text(x, 1.95, step["fold"].removeprefix("trunk."), fontsize=9, color=SOFT)
        fold = step["fold"]
    ax.text(len(ahead) + 0.4, 0.9, "loss", va="center", fontsize=9, color=INK)
    ax.text(-0.6, 1.4, "forward →", ha="right", va="center", fontsize=9, color=INK)
    ax.text(-0.6, 0.4, "← backward", ha="right", va="center", fontsize=9, color=INK)
    ax.text(0, -0.85, "solid: trained parameters    hatched: frozen    white: none", fontsize=9,
            color=SOFT)
    ax.set(xlim=(-0.09 * len(ahead), len(ahead) * 1.05), ylim=(-0.9, 2.5))
    ax.axis("off")
