"""Where a trained run attends, before and after training, and how much of it where it must.

The maps are those of ``minifpt.trace``, without dropout.  The paper's figures 3 and 4.
"""

from typing import NamedTuple

import numpy as np

from ..checks import whole
from ..files import outputs, plots
from ..tasks import optional
from ..tracing import trace
from ..trunks import TrunkSpec

ROWS = 256                                                # tokens that are traced at a time


class Maps(NamedTuple):
    """The attention of a model.

    mean    (layers, heads, T, T), the mean over examples of the probabilities.
    needed  (layers, heads), the share that lies where the task needs it, the mean over examples
            and over the tokens that need something; ``None`` where the task does not say.
    even    that share if each token attended evenly to all that it may see, or ``None``.
    """

    mean: np.ndarray
    needed: np.ndarray = None
    even: float = None


class Subject(NamedTuple):
    """A run in the picture: its attention before and after training."""

    label: str
    before: Maps
    after: Maps

    @property
    def moved(self):
        """The share of attention that training moved, (layers, heads), 0 ... 1: half the sum of
        the absolute differences of a token's probabilities, in the mean over tokens."""
        return np.abs(self.after.mean - self.before.mean).sum(axis=-1).mean(axis=-1) / 2

    def states(self):
        """Return [(state, its :class:`Maps`, moved or ``None``), ...]."""
        return [("before", self.before, None), ("after", self.after, self.moved)]


# ------------------------------------------------------------------------------ numbers


def maps(model, x, mask=None):
    """Return the :class:`Maps` of a model on examples; ``mask`` is the task's ``needed(x)``."""
    total, share, step = 0.0, 0.0, max(1, ROWS // x.shape[1])
    for i in range(0, len(x), step):
        with model.all_frozen(), trace(model) as t:
            model.forward(x[i:i + step])
        shapes = {a.shape for a in t.attention.values()}
        if len(shapes) != 1:
            raise ValueError("attention: the trunk has no attention layers, or not all of one "
                             f"shape ({len(shapes)} shapes)")
        a = np.stack([*t.attention.values()])             # (layers, B, H, T, T)
        total = total + a.sum(axis=1, dtype=np.float64)
        if mask is not None:
            a *= mask[i:i + step, None]
            share = share + a.sum(axis=(1, 3, 4), dtype=np.float64)
    mean = total / len(x)
    if mask is None:
        return Maps(mean)
    return Maps(mean, share / max(1, mask.any(axis=2).sum()), even_share(mask, mean))


def even_share(mask, mean):
    """Return the share where it is needed if each token attends evenly to all it may see."""
    visible = (mean > 0).any(axis=(0, 1))                 # (T, T)
    share = (mask & visible).sum(axis=2) / visible.sum(axis=1)
    return float(share[mask.any(axis=2)].mean())


def needed(task, x):
    """Return the task's ``needed(x)``, checked; ``None`` if the task does not say."""
    mask = optional(task, "needed")(x)
    want = len(x), x.shape[1], x.shape[1]
    if mask is not None and (mask.shape != want or mask.dtype != bool):
        raise ValueError(f"{task.name}: needed(x) has shape {mask.shape} and dtype {mask.dtype}, "
                         f"expected {want} and bool")
    return mask


def subjects(runs, examples=64):
    """Return ``(task, x, [Subject, ...])``, with maps that are the mean over test ``examples``;
    ``runs`` has (folder, task, run, the model before its first step) of each."""
    whole("attention", "examples", examples)
    first_folder, task, first, _ = runs[0]
    for folder, _, run, _ in runs[1:]:
        for key in ("task", "options"):
            if run.config[key] != first.config[key]:
                raise ValueError(f"{folder}: its {key} is {run.config[key]}, that of "
                                 f"{first_folder} {first.config[key]}: maps stand side by side "
                                 "for one task only")
    x, _ = task.batch(np.random.default_rng([0, 2]), examples, "test")  # no run draws these
    mask = needed(task, x)
    shown = [Subject(TrunkSpec.parse(run.config["recipe"]["trunk"]).label,
                     maps(start, x, mask), maps(run.model, x, mask))
             for _, _, run, start in runs]
    labels = [subject.label for subject in shown]
    return task, x, [
        subject if labels.count(subject.label) == 1 else subject._replace(
            label=f"{subject.label}, {folder}")
        for subject, (folder, *_) in zip(shown, runs, strict=True)]


def summary(shown):
    """Return a table, [[cell, ...], ...]: a header, then each trunk before and after training;
    columns without a number are left out."""
    cells = [["trunk", "training", "where needed", "best map", "if even", "moved", "most"]]
    for subject in shown:
        for state, m, moved in subject.states():
            even = "" if m.even is None else percent(m.even)
            cells.append([subject.label, state, *mean_and_most(m.needed), even,
                          *mean_and_most(moved)])
    filled = [i for i, column in enumerate(zip(*cells[1:], strict=True)) if any(column)]
    return [[line[i] for i in filled] for line in cells]


def mean_and_most(shares):
    """Return two cells: the mean of shares (layers, heads), and the largest with its place,
    counted from 1."""
    if shares is None:
        return "", ""
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    return percent(shares.mean()), f"{percent(shares.max())} ({layer + 1}.{head + 1})"


def percent(share):
    """Return a share as text."""
    return f"{100 * share:.1f} %"


# ------------------------------------------------------------------------------ picture


def interesting(shown):
    """Return (layer, head) of the map to show large: of the first run, the map with the largest
    share where it is needed, else the map that training moved most."""
    scores = shown[0].moved if shown[0].after.needed is None else shown[0].after.needed
    return tuple(map(int, np.unravel_index(scores.argmax(), scores.shape)))


def token_labels(task, x):
    """Return a label for each token: its name, and for a single example also its content."""
    names = optional(task, "token_names")() or [str(i + 1) for i in range(x.shape[1])]
    text = optional(task, "tokens_as_text")(x[0]) if len(x) == 1 else None
    if not text or max(map(len, text)) > 8:               # too long for a picture
        return names
    return [f"{name}: {t}" for name, t in zip(names, text, strict=True)]


def picture(task, x, shown):
    """Return a Matplotlib figure with a row for each run: all maps before and after training,
    then the most interesting one, large."""
    from matplotlib.figure import Figure
    which, mask = interesting(shown), needed(task, x)
    layers, heads = np.max([s.before.mean.shape[:2] for s in shown], axis=0)
    tall = max(3.6, 0.65 * layers)                        # inches
    width = max(2.4, 0.85 * tall * heads / layers)
    fig = Figure((2 * width + 2 * (tall + 0.4) + 1.2, (tall + 0.4) * len(shown) + 0.6),
                 layout="constrained")
    axes = fig.subplots(len(shown), 4, squeeze=False, width_ratios=[width, width, tall, tall])
    for row, subject in zip(axes, shown, strict=True):
        for column, (state, m, _) in enumerate(subject.states()):
            image = draw_all(row[column], m, f"{subject.label}\n{state} training")
            if which[0] < len(m.mean) and which[1] < m.mean.shape[1]:
                draw_one(row[column + 2], m, which, f"{state} training", token_labels(task, x),
                         mask)
    for ax in axes.flat:                                  # a smaller run may lack the large map
        ax.set_visible(ax.has_data())
    fig.colorbar(image, ax=axes, shrink=0.5, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1],
                 label="attention of a token (row) to a token (column)")
    fig.suptitle(f"Attention on {task.name}: " + (
        f"mean over {len(x)} test examples" if len(x) > 1 else "one test example")
        + ("; per cent: how much of it lies where the task needs it (outlined)"
           if mask is not None else ""), fontsize=11)
    return fig


def draw_one(ax, m, which, title, labels, mask):
    """Draw one map, large, with at most about 64 labels, and a frame around each place that is
    needed: solid where all examples need it."""
    from matplotlib.patches import Rectangle
    ax.imshow(m.mean[which], cmap="Blues", norm=scale())
    share = "" if m.needed is None else f": {percent(m.needed[which])} where needed"
    ax.set_title(f"{title}, block {which[0] + 1}, head {which[1] + 1}{share}", fontsize=9)
    every = -(-len(labels) // 64)
    places, size = range(0, len(labels), every), min(7, 220 / len(labels) * every)
    ax.set_xticks(places, labels[::every], rotation=90, fontsize=size)
    ax.set_yticks(places, labels[::every], fontsize=size)
    for i, j in () if mask is None else np.argwhere(mask.any(axis=0)):
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#c0392b",
                               linewidth=0.8, linestyle="-" if mask[:, i, j].all() else ":"))


def scale():
    """Return the scale of the colours: the square root shows small probabilities, too."""
    from matplotlib.colors import PowerNorm
    return PowerNorm(0.5, 0, 1)


def draw_all(ax, m, title):
    """Draw all maps of a model in one image: a row for each layer, a tile for each head."""
    layers, heads, T, _ = m.mean.shape
    above, beside = max(1, round((0.3 if m.needed is not None else 0.08) * T)), max(1, T // 12)
    height, width = T + above, T + beside                 # of a tile
    tiles = np.pad(m.mean, ((0, 0), (0, 0), (above, 0), (0, beside)), constant_values=np.nan)
    image = ax.imshow(tiles.swapaxes(1, 2).reshape(layers * height, heads * width), cmap="Blues",
                      norm=scale(), interpolation="nearest")
    ax.set_facecolor("0.9")                               # between the tiles
    for layer, head in () if m.needed is None else np.ndindex(layers, heads):
        ax.text(head * width + T / 2 - 0.5, layer * height + above / 2 - 0.5,
                percent(m.needed[layer, head]), ha="center", va="center",
                fontsize=min(7, 40 / heads))
    ax.set_xticks([head * width + T / 2 for head in range(heads)],
                  range(1, heads + 1), fontsize=7)
    ax.set_yticks([layer * height + above + T / 2 for layer in range(layers)],
                  range(1, layers + 1), fontsize=7)
    ax.set(title=title, xlabel="head", ylabel="block")
    return image


def check_place(out, force=False):
    """Raise ``ValueError`` where the picture cannot be written."""
    if out.suffix.lower() != ".png":
        raise ValueError(f"attention: the picture would be {out}, expected a name that ends in "
                         ".png")
    outputs.check(out, force)


def attention(runs, out, examples=64):
    """Write the picture and return the :func:`summary`; ``runs`` and ``examples`` are those of
    :func:`subjects`.  Each number of a map is in ``minifpt.trace(model).attention``."""
    task, x, shown = subjects(runs, examples)
    plots.save(picture(task, x, shown), out)
    return summary(shown)
