"""What the lessons share: the library's source shown, guesses answered, pictures.

The notebooks in ``lessons/`` import these helpers so that a cell says only what it is about.
Outside a notebook they do nothing that can be seen, apart from :func:`reveal`, which prints.
"""

import base64
import contextlib
import inspect
import io
import itertools
import json
import numbers
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import functional as F
from ..files import PACKAGE, plots, save_text

# The same colours in every lesson: color.trained and color.frozen for parts of a model,
# color.language, .bits, .images, .statistics and .random for where frozen weights are from,
# and four for all else; a wrong or broken thing is ochre.
color = SimpleNamespace(**plots.COLORS, small=plots.SMALL, trained=plots.TRAINED,
                        frozen=plots.FROZEN, ink="#263238", teal="#0097a7", ochre="#a8812a",
                        grey="#90a4ae")

SIGNED, POSITIVE = "RdBu_r", "YlGnBu"                     # colour maps of matrices
LOGARITHMIC = {"powers of ten": "power of ten", "digits": "digit"}       # unit -> its singular
wrong_runs = {}         # number of a cell -> the reader's wrong functions that ran in it
MODEL = ("tokens", "input layer", "positions", "norm", "attention", "norm", "feed-forward", "norm",
         "output layer", "loss")                          # the boxes of model_map


def show(*objects, lines=()):
    """Show the source of functions, classes or methods as the library runs it now; with ``lines``
    only those from the first that has one text to the next that has another."""
    for obj in objects:
        # The test of the committed notebooks finds by this name what has changed since.
        _display(shown(obj, *lines), {"minifpt": {"shows": "|".join(
            [f"{obj.__module__}:{obj.__qualname__}", *lines])}})


def shown(obj, first="", last=None):
    """Return what :func:`show` shows, {MIME type: text}."""
    rows = textwrap.dedent(inspect.getsource(obj)).rstrip().split("\n")
    start = next(i for i, row in enumerate(rows) if first in row)
    stop = None if last is None else next(
        i for i, row in enumerate(rows) if i >= start and last in row) + 1
    source = textwrap.dedent("\n".join(rows[start:stop]))
    file = Path(sys.modules[obj.__module__].__file__)
    where = file.relative_to(PACKAGE.parent).as_posix()
    return {"text/markdown": f"`{where}`\n```python\n{source}\n```",
            "text/plain": f"# {where}\n{source}"}


def reveal(guess, answer, unit=""):
    """Print the answer to a question beside the reader's guess; ``...`` means no guess yet."""
    def words(value):
        value = f"{value:.3g}" if isinstance(value, float) else str(value)
        return f"{value} {LOGARITHMIC.get(unit, unit) if value == '1' else unit}".rstrip()

    if wrong_functions := wrong_runs.pop(cell_number(), ()):
        print(f"With a wrong {', '.join(wrong_functions)} the answer is {words(answer)}. Mend it, "
              "run this cell again, and compare your guess then.")
        return
    if guess is ... or guess is None:
        print(f"No guess yet. Answer: {words(answer)}.")
        return
    if isinstance(guess, str):                            # "5 %" and "5" are 5
        guess = guess.strip().removesuffix(unit).strip()
        with contextlib.suppress(ValueError):
            guess = float(guess) if isinstance(answer, numbers.Real) else guess
    are_numbers = isinstance(guess, numbers.Real) and isinstance(answer, numbers.Real)
    is_right = np.isclose(guess, answer, rtol=0.05) if are_numbers else (
        str(guess).strip().lower() == str(answer).strip().lower())
    text = f"Your guess: {words(guess)}. Answer: {words(answer)}"
    if is_right:
        print(f"{text}: right.")
    elif are_numbers and unit in LOGARITHMIC:
        print(f"{text}: {abs(answer - guess):.2g} {'more' if answer > guess else 'less'}.")
    elif are_numbers and guess > 0 and answer > 0 and not 0.5 < guess / answer < 2:
        print(f"{text}: off by a factor of {max(guess / answer, answer / guess):.2g}.")
    else:
        print(f"{text}.")


def figure(columns=1, rows=1, width=4.0, height=2.9, ratios=None, sharey=False):
    """Return a Matplotlib figure and the list of its axes; :func:`picture` shows it.

    ``width`` and ``height`` are those of one axis in inches, ``ratios`` the columns' widths.
    """
    import matplotlib
    from cycler import cycler
    matplotlib.rcParams.update({"axes.titlesize": 10.5, "axes.labelsize": 9.5,
                                "xtick.labelsize": 9, "ytick.labelsize": 9,
                                "legend.frameon": False, "legend.fontsize": 9})
    fig, axes = plots.figure(columns, rows, width, height, width_ratios=ratios, sharey=sharey)
    for ax in axes:
        ax.set_axisbelow(True)
        ax.set_prop_cycle(cycler(color=[color.ink, color.teal, color.ochre, color.grey]))
    return fig, axes


def matrix(ax, values, title, xlabel="", ylabel="", limit=None, signed=None, digits=2,
           columns=None, rows=None):
    """Draw a matrix as colours; a small matrix also shows its values.

    A ``signed`` matrix (by default one with a negative entry) has white at 0, red above and blue
    below.  ``limit`` is the largest value of the scale.  To compare matrices, give both; for
    probabilities, limit 1.  ``digits=None`` writes no values.  ``columns`` and ``rows`` are their
    labels.  A vector is drawn as one row.
    """
    values = np.atleast_2d(np.asarray(values, float))
    n, m = values.shape
    limit = limit or float(np.abs(values).max()) or 1.0
    signed = bool((values < 0).any()) if signed is None else signed
    image = ax.imshow(values, SIGNED if signed else POSITIVE, vmin=-limit if signed else 0,
                      vmax=limit)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.set(title=title, xlabel=xlabel)
    is_letter = 0 < len(ylabel) < 3                       # a letter stands upright
    ax.set_ylabel(ylabel, **({"rotation": 0, "va": "center"} if is_letter else {}))
    ax.set_xticks(range(m), columns if columns is not None else range(m))
    ax.set_yticks(range(n), rows if rows is not None else range(n))
    ax.tick_params(length=0, labelsize=8)
    if max(n, m) > 16 and columns is None and rows is None:
        ax.set(xticks=[], yticks=[])
    if digits is not None and n <= 10 and m <= 10:
        for (i, j), v in np.ndenumerate(values):
            dark = np.dot(image.cmap(image.norm(v))[:3], (0.3, 0.6, 0.1)) < 0.5
            text = f"{v:.{digits}f}"
            ax.text(j, i, text.removeprefix("-") if float(text) == 0 else text,
                    ha="center", va="center", fontsize=8, color="white" if dark else color.ink)
    return image


def descend(layers, x, targets, rate, steps):
    """Train layers, which run one after the other, by gradient descent on the cross-entropy of
    their scores; return the loss before each step."""
    losses = []
    for _ in range(steps):
        y, caches = x, []
        for layer in layers:
            y, cache = layer.forward(y)
            caches.append(cache)
        loss, cache = F.cross_entropy(y, targets)
        losses.append(loss)
        dy = F.cross_entropy_backward(1.0, cache)
        for layer in layers[::-1]:
            dy = layer.backward(dy, caches.pop())
        for parameter in [p for layer in layers for p in layer.parameters()]:
            parameter.data -= rate * parameter.grad
            parameter.grad = None
    return losses


def model_map(*parts, gradient=False):
    """Show the whole model as a row of boxes; ``parts``, what a lesson is about, are in colour.
    "residual" are the lines past attention and feed-forward.  With ``gradient`` an arrow leads
    back."""
    fig, (ax,) = figure(width=8.6, height=1.15)
    ax.axis("off")
    ax.set(xlim=(-0.6, 9.6), ylim=(-0.9, 0.85),
           title=f"The whole model; in colour: {', '.join(parts)}")
    ax.plot([0, 9], [0, 0], color=color.grey, zorder=0)
    ink = color.teal if "residual" in parts else color.grey
    for start in (2.55, 4.55):
        ax.annotate("", (start + 2, 0), (start, 0), zorder=0, arrowprops={
            "arrowstyle": "-", "color": ink, "linewidth": 1 + 2 * ("residual" in parts),
            "connectionstyle": "bar,fraction=-0.22"})
    ax.text(4.55, -0.62, "blocks, one after the other", ha="center", va="center", fontsize=8)
    ax.plot([2.6, 2.6, 6.5, 6.5], [-0.38, -0.45, -0.45, -0.38], color=color.ink, linewidth=0.8)
    for i, name in enumerate(MODEL):
        ax.text(i, 0, name.replace(" ", "\n"), ha="center", va="center", fontsize=8.5,
                color="white" if name in parts else color.ink,
                bbox={"boxstyle": "round,pad=0.35", "edgecolor": "none",
                      "facecolor": color.teal if name in parts else "#e3e8ea"})
    if gradient:
        ax.annotate("gradient", (0, -0.82), (9, -0.82), color=color.ochre, fontsize=8.5,
                    va="center", ha="center", arrowprops={"arrowstyle": "->",
                                                          "color": color.ochre})
    picture(fig)


def curves(series, title, xlabel="step", ylabel="", x=None, ax=None, inks=(), log="", level=None,
           note="", styles=("-", "--", "-.", ":"), width=5.4, height=2.8, **options):
    """Plot {name: y}, with y (n,) or (runs, n), in ``ax`` or in a picture of its own.

    ``log`` names the logarithmic axes, ``level`` is the height of a dotted line and ``note`` the
    text at it, and ``options`` are those of ``Axes.set``.
    """
    fig, (target,) = (None, (ax,)) if ax else figure(width=width, height=height)
    inks = inks or (color.ink, color.teal, color.ochre, color.grey)
    for (name, y), style, ink in zip(series.items(), itertools.cycle(styles),
                                     itertools.cycle(inks), strict=False):
        target.plot(range(np.shape(y)[-1]) if x is None else x, np.transpose(y), style, color=ink,
                    markersize=4, linewidth=2 - (np.ndim(y) == 2), label=[name] + [None] * (
                        len(y) - 1) if np.ndim(y) == 2 else name)
    target.set(title=title, xlabel=xlabel, ylabel=ylabel,
               **{f"{axis}scale": "log" for axis in log}, **options)
    if level is not None:
        target.axhline(level, color=color.grey, linestyle=":")
        target.text(0.99, level, note, fontsize=8.5, color="0.3", va="top", ha="right", zorder=1,
                    transform=target.get_yaxis_transform(),      # below the curves
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8})
    if len(series) > 1:                                   # many names stand beside the picture
        target.legend(**{"loc": "upper left", "bbox_to_anchor": (1, 1)} if fig and len(
            series) > 3 else {})
    if fig:
        picture(fig)


def bars(values, title, xlabel, ink=None, digits=1, levels=(), notes=(), width=5.4, height=0.35,
         **options):
    """Show {name: number or numbers of several runs} as bars to the mean, with a dot for a run.

    ``ink`` is one colour or one for each bar, ``levels`` are the places of dotted lines and
    ``notes`` the texts at them.
    """
    fig, (ax,) = figure(width=width, height=1 + height * len(values))
    means = [np.mean(runs) for runs in values.values()]
    ax.barh(list(values), means, color=ink or color.teal, height=0.6)
    for i, (mean, runs) in enumerate(zip(means, values.values(), strict=True)):
        ends = np.atleast_1d(runs)                        # the label stands beyond the last dot
        ax.plot(ends, [i] * len(ends), "o", color=color.ink, markersize=3 * (len(ends) > 1))
        ax.annotate(f"{mean:z.{digits}f}", (max(ends) if mean > 0 else min(ends), i),
                    (6 if mean > 0 else -6, 0), textcoords="offset points", fontsize=8,
                    va="center", ha="left" if mean > 0 else "right",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    for level, note in itertools.zip_longest(levels, notes, fillvalue=""):
        ax.axvline(level, color=color.ink, linestyle=":", linewidth=1)
        ax.text(level, 1, note, fontsize=8.5, color="0.3", va="bottom", ha="center",
                transform=ax.get_xaxis_transform())
    ax.invert_yaxis()
    ax.set(xlabel=xlabel, **options)
    ax.set_title(title, pad=14 if any(notes) else None)
    picture(fig)


def picture(fig):
    """Show a figure in the notebook, sharp and small: a PNG of at most 256 colours."""
    from PIL import Image
    raw, small = io.BytesIO(), io.BytesIO()
    fig.savefig(raw, format="png", dpi=150, bbox_inches="tight", pad_inches=0.05)
    image = Image.open(raw).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE,
                                                    dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True)
    titles = "; ".join(t for ax in fig.axes for side in ("left", "center")
                       if (t := ax.get_title(side).strip()))
    _display({"image/png": base64.b64encode(small.getvalue()).decode(),
              "text/plain": f"Picture: {titles}"},
             {"image/png": {"width": round(image.width * 90 / 150), "alt": titles or "picture"}})


def notebook():
    """Return the shell of the notebook that runs this, or ``None``."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def cell_number():
    """Return the number of the cell that runs, or ``None`` outside a notebook."""
    return getattr(notebook(), "execution_count", None)


def _display(data, metadata):
    """Show {MIME type: text} in a notebook; do nothing elsewhere."""
    if notebook():
        from IPython.display import display
        display(data, metadata=metadata, raw=True)


def lessons_folder():
    """Return the folder of the lessons' notebooks and solutions, in the package or its checkout."""
    for path in (PACKAGE / "lessons", PACKAGE.parent / "lessons"):
        if any(path.glob("*.ipynb")):
            return path
    raise FileNotFoundError("the lessons were not installed with this package")


def unpack(folder, solutions=True):
    """Copy the lessons into ``folder``, without their outputs, and their solutions.

    Existing files stay unchanged: they may hold the reader's work.  Returns the paths of the files
    that were written.
    """
    source, written, folder = lessons_folder(), [], Path(folder)
    for path in sorted([*source.glob("*.ipynb"),
                        *(source.glob("solutions/*.py") if solutions else ())]):
        target = folder / path.relative_to(source)
        if not target.exists():
            save_text(target, without_outputs(path) if path.suffix == ".ipynb" else
                      path.read_text(encoding="utf-8"))
            written.append(target)
    return written


def without_outputs(path):
    """Return the text of a notebook without its outputs, which would spoil the guesses."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"], cell["metadata"] = [], None, {}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
