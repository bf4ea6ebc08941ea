"""Where a trained run attends, before and after training, and how much of it where it must.

The maps are those of ``minifpt.trace``, without dropout.  The paper's figures 3 and 4.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..checks import whole
from ..experiments.runs import BUILT, at_start, read_run, read_settings
from ..experiments.tables import markdown
from ..files import outputs, plots
from ..fpt import FPT
from ..tracing import trace
from ..trunks import TrunkSpec, config_for

ROWS = 256                                                # tokens that are traced at a time
COLUMNS = ["trunk", "state", "layer", "head", "needed", "even", "moved"]
KIND = "attention maps"                                   # of the picture


class Maps(NamedTuple):
    """The attention of a model.

    mean    (layers, heads, T, T), the mean over examples of the probabilities.
    needed  (layers, heads), the share that lies where the task needs it, the mean over examples
            and over the tokens that need something; ``None`` where the task does not say.
    """

    mean: np.ndarray
    needed: np.ndarray


class Subject(NamedTuple):
    """A trunk of the picture: ``after`` is ``None`` for one that was not trained."""

    label: str
    before: Maps
    after: Maps = None

    @property
    def moved(self):
        """The share of attention that training moved, (layers, heads), 0 ... 1: half the sum of
        the absolute differences of a token's probabilities, in the mean over tokens."""
        return np.abs(self.after.mean - self.before.mean).sum(axis=-1).mean(axis=-1) / 2


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
            m = mask[i:i + step, None]
            share = share + np.where(m, a, 0).sum(axis=(1, 3, 4), dtype=np.float64)
    n_asking = 1 if mask is None else max(1, mask.any(axis=2).sum())
    return Maps(total / len(x), None if mask is None else share / n_asking)


def chance(mask, maps):
    """Return the share where it is needed if each token attends evenly to all it may see."""
    visible = (maps.mean > 0).any(axis=(0, 1))               # (T, T)
    rows = mask.any(axis=2)
    return float(((mask & visible).sum(axis=2) / visible.sum(axis=1))[rows].mean())


def needed(task, x):
    """Return the task's ``needed(x)``, checked; ``None`` if the task has no such method."""
    mask = task.needed(x) if hasattr(task, "needed") else None
    want = len(x), x.shape[1], x.shape[1]
    if mask is not None and (mask.shape != want or mask.dtype != bool):
        raise ValueError(f"{task.name}: needed(x) has shape {mask.shape} and dtype {mask.dtype}, "
                         f"expected {want} and bool")
    return mask


def subjects(folders, models=(), examples=64, example=None):
    """Return ``(task, x, [Subject, ...])``: first the runs, then untrained models as references.

    models    names as ``--model`` takes them; their weights are drawn with the first run's seed.
    examples  number of test examples; the maps are the mean over them.
    example   take only this example, counted from 0.
    """
    if not folders:
        raise ValueError("attention: expected a run")
    whole("attention", "examples", examples)
    whole("attention", "example", example or 0, 0, examples - 1)
    loaded = [(folder, *read_run(folder)) for folder in map(Path, folders)]
    _, task, first = loaded[0]
    for folder, _, run in loaded[1:]:
        for key in ("task", "options"):
            if run.settings[key] != first.settings[key]:
                raise ValueError(f"{folder}: its {key} is {run.settings[key]}, that of "
                                 f"{loaded[0][0]} {first.settings[key]}: maps stand side by side "
                                 "for one task only")
    x, _ = task.batch(np.random.default_rng([0, 2]), examples, "test")  # no run draws these
    x = x if example is None else x[example:example + 1]
    mask = needed(task, x)
    names = [TrunkSpec.parse(model).label for model in (
        *(run.settings["model"] for _, _, run in loaded), *models)]
    shown = []
    for (folder, _, run), name in zip(loaded, names, strict=False):
        label = name if names.count(name) == 1 else f"{name}, {folder}"
        start = at_start(folder, run.settings, task)
        shown.append(Subject(label, maps(start, x, mask), maps(run.model, x, mask)))
    for model, name in zip(models, names[len(loaded):], strict=True):
        fpt = FPT.for_task(task, model, seed=first.settings["seed"], dropout=0.0)
        shown.append(Subject(name if names.count(name) == 1 else model, maps(fpt, x, mask)))
    return task, x, shown


def like(settings):
    """Return the default of ``--model``: random weights of a run's shape.  A run that has random
    weights, a trunk of the user's own, or one without a causal mask gets no reference."""
    spec = TrunkSpec.parse(settings["model"])
    config = None if spec.kind == "random" else config_for(spec)
    if not hasattr(config, "n_head") or not getattr(config, "causal", True):
        return []                                         # an LSTM has no heads
    llama, groups = "llama:" * hasattr(config, "n_group"), getattr(config, "n_group", config.n_head)
    heads = config.n_head if groups == config.n_head else f"{config.n_head}/{groups}"
    return [f"random:{llama}{config.n_layer}x{heads}x{config.n_embd}"]


# ------------------------------------------------------------------------------ numbers


def rows(task, x, shown):
    """Return a row for each map: {trunk, state, layer, head, needed, even, moved}.  ``needed`` is
    ``None`` if the task does not say it, ``moved`` if nothing was trained."""
    mask, lines = needed(task, x), []
    for subject in shown:
        for state, m in (("before", subject.before), ("after", subject.after)):
            if m is None:
                continue
            even = None if mask is None else chance(mask, m)
            moved = subject.moved if state == "after" else None
            lines += [{"trunk": subject.label, "state": state, "layer": layer, "head": head,
                       "needed": None if mask is None else float(m.needed[layer, head]),
                       "even": even, "moved": None if moved is None else float(moved[layer, head])}
                      for layer, head in np.ndindex(m.mean.shape[:2])]
    return lines


def summary(lines):
    """Return a table, [[cell, ...], ...]: a header, then each trunk before and after training."""
    cells = [["trunk", "training", "where needed", "best map", "if even", "moved", "most"]]
    for trunk, state in dict.fromkeys((line["trunk"], line["state"]) for line in lines):
        mine = [x for x in lines if (x["trunk"], x["state"]) == (trunk, state)]
        cells.append([trunk, state])
        for key in ("needed", "moved"):
            if mine[0][key] is None:
                cells[-1] += [""] * (3 if key == "needed" else 2)
                continue
            most = max(mine, key=lambda x, key=key: x[key])
            cells[-1] += [percent(np.mean([x[key] for x in mine])),
                          f"{percent(most[key])} ({most['layer']}.{most['head']})"]
            if key == "needed":
                cells[-1].append(percent(most["even"]))
    filled = [i for i, column in enumerate(zip(*cells[1:], strict=True)) if any(column)]
    return [[line[i] for i in filled] for line in cells]


def percent(share):
    return f"{100 * share:.1f} %"


# ------------------------------------------------------------------------------ picture


def interesting(shown):
    """Return (layer, head) of the map to show large: of the first trunk, the map with the largest
    share where it is needed, else the map that training moved most."""
    last = shown[0].after or shown[0].before
    score = last.needed if last.needed is not None else (
        shown[0].moved if shown[0].after else last.mean.max(axis=-1).mean(axis=-1))
    return tuple(map(int, np.unravel_index(score.argmax(), score.shape)))


def token_labels(task, x):
    """Return a label for each token: its name, and for a single example also its content."""
    T = x.shape[1]
    names = task.token_names() if hasattr(task, "token_names") else [str(i + 1) for i in range(T)]
    if len(x) > 1 or not hasattr(task, "tokens_as_text"):
        return names
    text = task.tokens_as_text(x[0])
    if max(map(len, text)) > 8:                           # too long for a picture
        return names
    return [f"{name}: {t}" for name, t in zip(names, text, strict=True)] if hasattr(
        task, "token_names") else text


def picture(task, x, shown, which=None):
    """Return a Matplotlib figure with a row for each trunk: all maps before and after training,
    then the map ``which = (layer, head)``, large."""
    which = which or interesting(shown)
    layers, heads = np.max([s.before.mean.shape[:2] for s in shown], axis=0)
    tall = max(3.6, 0.65 * layers)                        # inches
    width = max(2.4, 0.85 * tall * heads / layers)
    fig, axes = plots.figure(4, len(shown), width_ratios=[width, width, tall, tall])
    fig.set_size_inches(2 * width + 2 * (tall + 0.4) + 1.2, (tall + 0.4) * len(shown) + 0.6)
    for ax in axes:
        clear(ax)
    for row, column, _, draw in drawings(task, x, shown, which):
        image = draw(axes[4 * row + column])
    fig.colorbar(image, ax=axes, shrink=0.5, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1],
                 label="attention of a token (row) to a token (column)")
    fig.suptitle(f"Attention on {task.name}: " + (
        f"mean over {len(x)} test examples" if len(x) > 1 else "one test example")
        + ("; per cent: how much of it lies where the task needs it (outlined)"
           if needed(task, x) is not None else ""), fontsize=11)
    return fig


def panels(task, x, shown):
    """Yield the parts of :func:`picture` as figures of their own, each with a description."""
    for _, column, text, draw in drawings(task, x, shown, interesting(shown)):
        blocks = len(shown[0].before.mean) if column < 2 else 0
        fig, (ax,) = plots.figure(width=4.4, height=max(3.8, 0.6 * blocks))
        draw(ax)
        yield fig, text


def drawings(task, x, shown, which):
    """Yield (row, column, description, a function that draws into an axis): for each trunk all maps
    before and after training, then the map ``which``, if a reference's shape has it."""
    for row, subject in enumerate(shown):
        for column, m in enumerate((subject.before, subject.after)):
            if m is None:
                continue
            state = "not trained" if subject.after is None else (
                "after training" if column else "before training")
            yield (row, column, f"All attention maps of {subject.label}, {state}",
                   partial(draw_all, m=m, title=f"{subject.label}\n{state}"))
            if which[0] < len(m.mean) and which[1] < m.mean.shape[1]:
                yield (row, column + 2, f"One attention map of {subject.label}, {state}",
                       partial(draw_one, m=m, which=which, state=state, task=task, x=x))


def draw_one(ax, m, which, state, task, x):
    """Draw one map, large, with the labels of at most about 64 tokens, and a frame around each
    place that is needed: solid where all examples need it."""
    from matplotlib.patches import Rectangle
    clear(ax)
    image = ax.imshow(m.mean[which], cmap="Blues", norm=scale())
    share = "" if m.needed is None else f": {percent(m.needed[which])} where needed"
    ax.set_title(f"{state}, layer {which[0]}, head {which[1]}{share}", fontsize=9)
    labels, mask = token_labels(task, x), needed(task, x)
    every = -(-len(labels) // 64)
    at, size = range(0, len(labels), every), min(7, 220 / len(labels) * every)
    ax.set_xticks(at, labels[::every], rotation=90, fontsize=size)
    ax.set_yticks(at, labels[::every], fontsize=size)
    ax.tick_params(length=1)
    for i, j in () if mask is None else np.argwhere(mask.any(axis=0)):
        ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#c0392b",
                               linewidth=0.8, linestyle="-" if mask[:, i, j].all() else ":"))
    return image


def scale():
    """Return the scale of the colours: the square root shows small probabilities, too."""
    from matplotlib.colors import PowerNorm
    return PowerNorm(0.5, 0, 1)


def clear(ax):
    """Take frame, grid and ticks from an axis."""
    ax.spines[:].set_visible(False)
    ax.grid(False)
    ax.set(xticks=[], yticks=[])


def draw_all(ax, m, title):
    """Draw all maps of a model in one image: a row for each layer, a tile for each head."""
    clear(ax)
    ax.set_title(title, fontsize=10)
    layers, heads, T, _ = m.mean.shape
    above, beside = max(1, round((0.3 if m.needed is not None else 0.08) * T)), max(1, T // 12)
    canvas = np.full((layers * (T + above), heads * (T + beside)), np.nan)
    for layer, head in np.ndindex(layers, heads):
        y, x = layer * (T + above) + above, head * (T + beside)
        canvas[y:y + T, x:x + T] = m.mean[layer, head]
        if m.needed is not None:
            ax.text(x + T / 2 - 0.5, y - above / 2 - 0.5, percent(m.needed[layer, head]),
                    ha="center", va="center", fontsize=min(7, 40 / heads))
    image = ax.imshow(canvas, cmap="Blues", norm=scale(), interpolation="nearest")
    for layer, head in np.ndindex(layers, heads):         # where each tile ends
        y, x = layer * (T + above) + above - 0.5, head * (T + beside) - 0.5
        ax.plot([x, x + T, x + T, x, x], [y, y, y + T, y + T, y], color="0.75", linewidth=0.5)
    ax.set_xticks([head * (T + beside) + T / 2 for head in range(heads)], range(heads), fontsize=7)
    ax.set_yticks([layer * (T + above) + above + T / 2 for layer in range(layers)], range(layers),
                  fontsize=7)
    ax.set_xlabel("head", fontsize=8)
    ax.set_ylabel("layer", fontsize=8)
    ax.tick_params(length=0)
    return image


def attention(folders, out, models=None, examples=64, example=None, which=None):
    """Write the picture, and beside it a CSV with a row for each map; return a Markdown table.

    models   references as for :func:`subjects`; for a single run ``None`` takes :func:`like`.
    which    the map to show large, as text: ``2.3`` is layer 2, head 3, both from 0.
    """
    out = Path(out)
    outputs.check_picture("attention", out, KIND)
    outputs.check(out.with_suffix(".csv"), COLUMNS)
    if models is None:
        models = like(read_settings(folders[0], BUILT)) if len(folders) == 1 else []
    task, x, shown = subjects(folders, models, examples, example)
    if which is not None:
        layers, heads = shown[0].before.mean.shape[:2]
        known = {f"{i}.{j}": (i, j) for i, j in np.ndindex(layers, heads)}
        if which not in known:
            raise ValueError(f"attention: no map '{which}', expected LAYER.HEAD from 0.0 to "
                             f"{layers - 1}.{heads - 1}")
        which = known[which]
    lines = rows(task, x, shown)
    plots.save(picture(task, x, shown, which), out, KIND)
    outputs.write_csv(out.with_suffix(".csv"), COLUMNS, lines)
    return markdown(summary(lines))
