"""The forms of a model's heads, as a table, a CSV and a picture: ``minifpt heads``."""

from pathlib import Path

import numpy as np

from .. import trunks
from ..experiments.runs import at_start, read_run
from ..experiments.tables import markdown
from ..files import outputs, plots
from ..trunks.forms import Heads, heads

NAMES = Heads._fields[:4]
COLUMNS = ["state", "block", "head", *NAMES]
KIND = "heads"                                            # of the picture


def of_model(name, seed=0):
    """Return {state: :class:`Heads`} of a trunk's name, or of a run's folder before and after
    training; ``seed`` is for random weights."""
    if not (Path(name) / "checkpoint.npz").exists():
        return {"": heads(trunks.get(name, seed))}
    task, run = read_run(name)
    if task.input_dim == 1:
        raise ValueError(f"heads: a token of {task.name} is one number, and so is the form that "
                         "its heads see: give the trunk's name instead")
    return {"before": heads(at_start(name, run.settings, task)), "after": heads(run.model)}


def rows(states):
    """Yield the rows of the CSV; the last two are the mean and the deviation of random heads."""
    for state, forms in states.items():
        for (block, head), _ in np.ndenumerate(forms.share):
            yield {"state": state, "block": block, "head": head} | {
                name: f"{getattr(forms, name)[block, head]:.6g}" for name in NAMES}
    for state, values in zip(("random mean", "random deviation"), zip(*forms.random.values(),
                                                                      strict=True), strict=True):
        yield {"state": state, "block": "", "head": ""} | {
            name: f"{value:.6g}" for name, value in zip(NAMES, values, strict=True)}


def table(states):
    """Return a Markdown table: a row for each head, with "before → after" for a run."""
    forms = [*states.values()]
    lines = [["head", "share of S", "trace", "positive", "negative"]]
    for block, head in np.ndindex(*forms[0].share.shape):
        lines.append([f"{block}.{head}"] + [" → ".join(
            number(name, getattr(form, name)[block, head]) for form in forms) for name in NAMES])
    lines.append(["random"] + [
        f"{number(name, mean)} ± {number(name, deviation).lstrip('+')}"
        for name, (mean, deviation) in forms[0].random.items()])
    return markdown(lines)


def number(name, value):
    """Return a measure as text."""
    return f"{100 * value:.1f} %" if name == "share" else f"{value:+.2f}"


def picture(states, path):
    """Draw each head's measures, over the band of random heads: mean and two deviations."""
    fig, axes = plots.figure(2, width=5)
    for ax, names, scale in (axes[0], ["share"], 100), (axes[1], ["positive", "negative"], 1):
        for name, color in zip(names, (plots.COLORS["language"], plots.COLORS["random"]),
                               strict=False):
            for state, forms in states.items():
                values = scale * getattr(forms, name).ravel()
                ax.plot(values, "o", color=color, fillstyle="none" if state == "before" else "full",
                        label=f"{name} {state}".strip())
            mean, deviation = (scale * x for x in forms.random[name])
            ax.axhspan(mean - 2 * deviation, mean + 2 * deviation, color="0.8", zorder=0,
                       label=None if name == "negative" else "random heads")
        blocks, width = forms.share.shape
        step = -(-blocks // 12)                           # at most twelve ticks
        ax.set(xticks=range(0, blocks * width, step * width), xlabel="block",
               xticklabels=range(0, blocks, step))
        ax.legend(frameon=False)
    axes[0].set(ylabel="share (%)", title="Symmetric part of each head's form")
    axes[1].set(ylabel="sum over the form's norm", title="Its eigenvalues")
    plots.save(fig, path, KIND)


def report(name, seed=0, csv=None, png=None):
    """Return the :func:`table` of a trunk's name or a run's folder; write CSV and picture to the
    paths that are given.  Raises ``ValueError`` or ``FileNotFoundError`` with one line."""
    if csv is not None:
        outputs.check(csv, COLUMNS)
    if png is not None:
        outputs.check_picture("heads", png, KIND)
    states = of_model(name, seed)
    if csv is not None:
        outputs.write_csv(csv, COLUMNS, rows(states))
    if png is not None:
        picture(states, png)
    return table(states)
