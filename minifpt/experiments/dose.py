"""``minifpt reproduce dose``: does the benefit of pretraining rise with its dose, and does it
exceed the benefit of the matrices' spectra alone?

Trunks are pretrained for several numbers of steps, their **dose**, with several seeds.  They read
novels, or text that is drawn from the novels' trigrams.  Each trunk is then frozen and trained on
each task with fresh layer norms and positions, which are the same in all arms of one seed.  There
are two controls: random matrices with the singular values of the full dose (``spectrum``), and
random weights as the paper draws them.  The runs of one pretraining seed differ in their frozen
weights alone, so all intervals are over pretraining seeds.
"""

import itertools
from pathlib import Path

import numpy as np

from .. import tasks
from ..checks import whole
from ..files import outputs
from ..files.runs import History
from ..progress import progress_bar
from ..reports import plots
from . import compare, tables
from .compare import Arm, Column, Job
from .pretrain import pretrain
from .reproduce import stem
from .workers import perform

SHOWS = ("Pretraining in doses, against random matrices with the same singular values and random "
         "weights as the paper draws them; needs --text.")
PRETRAINED_ON = "language", "trigrams"
DOSES = 500, 1500, 4500                                   # steps; the last one is the full dose
RATES = 3e-3, 1e-2, 3e-2
STEPS = 4000
TASKS = (("bit-memory", {}, ""), ("cifar10", {}, ""),
         *(("recall", {"source": source}, f"recall-{source}")
           for source in ("uniform", "zipf", "markov", "text")))
PAPER = "random (paper)"
LOSSES = ["source", "steps", "seed", "nats"]              # the columns of dose-losses.csv
# The mini scale takes a few hours of a core, the other one more than a day.
SCALES = {"mini": {"shape": "2x2x64", "tokens": 64}, "paper": {"shape": "6x4x128", "tokens": 256}}


def models(folder, seed, scale="mini"):
    """Return ``{label: model}`` of all arms of one pretraining seed, for ``--model``."""
    shape = SCALES[scale]["shape"]
    fresh = f"+ln,pos=random:{shape}@paper"               # layer norms and positions of all arms
    arms = {PAPER: f"random:{shape}@paper", "no pretraining": f"random:{shape}{fresh}"}
    for source in PRETRAINED_ON:
        for dose in DOSES:
            arms[f"{source} {dose}"] = f"{weights_of(folder, source, dose, seed)}{fresh}"
        full = weights_of(folder, source, DOSES[-1], seed)
        arms[f"{source} spectrum"] = f"spectrum:{full}{fresh}"
    return arms


def weights_of(folder, source, dose, seed):
    """Return the path of one pretrained trunk."""
    return Path(folder) / "trunks" / f"{source}-{dose}-{seed}.npz"


def pretrain_all(folder, text, seeds, progress, scale="mini"):
    """Pretrain the trunks that do not exist yet and return ``{(source, dose, seed): loss}``.

    The loss is on held-out text, in nats for each byte."""
    losses = {}
    for source, dose, seed in itertools.product(PRETRAINED_ON, DOSES, range(seeds)):
        path = weights_of(folder, source, dose, seed)
        if not path.with_suffix(".csv").exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            has_begun = (path.with_suffix("") / "config.json").exists()
            pretrain(source, path, text=text, seed=seed, steps=dose, resume=has_begun,
                     progress=progress, **SCALES[scale])
        losses[source, dose, seed] = History.load(path.with_suffix(".csv"))[-1]["test_loss"]
    return losses


def dose(out, text, *, scale="mini", only=None, seeds=3, rates=None, jobs=1, executor=None,
         progress=True):
    """Run the whole experiment, or resume it, and return its tables as Markdown.

    It writes ``OUT/dose.md``, ``dose.csv``, ``dose-losses.csv`` and ``dose.png``, at the paper's
    scale ``dose-paper.md`` and so on.

    text    files or folders of ``*.txt`` to pretrain on.
    scale   ``mini``: trunks of 2 blocks and 64 channels, pretrained on passages of 64 bytes.
            ``paper``: 6 blocks and 128 channels, passages of 256 bytes.
    only    titles of the tasks to run, all by default.
    seeds   how many pretraining seeds; each is also the seed of its runs.
    rates   learning rates to try.  Each arm takes the best one with its first pretraining seed, on
            validation draws of two validation seeds, for all seeds.
    """
    name = stem("dose", scale)
    out, seeds = Path(out) / name, whole("reproduce", "seeds", seeds)
    if not text:
        raise ValueError("reproduce: dose pretrains on novels: give --text, files or folders of "
                         "*.txt")
    titles = [title or name for name, _, title in TASKS]
    for title in only or ():
        if title not in titles:
            raise ValueError(f"reproduce: dose has no task '{title}', expected of "
                             f"{', '.join(titles)}")
    columns = [Column(name, options, {"steps": STEPS}, title or name)
               for name, options, title in TASKS if (title or name) in (only or titles)]
    compare.check_outputs(out.parent, f"{name}.md", f"{name}.csv", f"{name}.png")
    compare.check_outputs(out.parent, f"{name}-losses.csv", columns=LOSSES)
    losses = pretrain_all(out, text, seeds, progress, scale)
    grid = compare.grid(out, columns, [Arm(model, label=label) for label, model in
                                        models(out, 0, scale).items()], [0],
                         rates=rates or RATES, jobs=jobs, executor=executor, progress=progress)
    others = [(column, label, seed) for column in columns for label in models(out, 0, scale)
              for seed in range(1, seeds)]
    queue = [job_of(models(out, seed, scale)[label], out, column, label, seed,
                    grid.rates[column.title][label])
             for column, label, seed in others]
    with progress_bar(total=len(queue), unit="run", progress=progress) as bar:
        histories = perform(queue, out, bar, jobs, executor) if queue else []
    for (column, label, _), history in zip(others, histories, strict=True):
        grid.results[column.title][label].append(history)
    grid.seeds = [*range(seeds)]
    report = f"{SHOWS}\n\n{tables.table(grid)}\n\n{differences(grid)}\n"
    outputs.write_text(out.parent / f"{name}.md", tables.KIND, report + "\n")
    outputs.write_csv(out.parent / f"{name}.csv", tables.CSV, tables.rows(grid))
    outputs.write_csv(out.parent / f"{name}-losses.csv", LOSSES, [
        dict(zip(LOSSES, (*key, f"{loss:.3f}"), strict=True)) for key, loss in losses.items()])
    picture(grid, losses, out.parent / f"{name}.png")
    return report


def job_of(model, out, column, label, seed, rate):
    """Return the :class:`Job` of one arm with a further pretraining seed."""
    options = compare.options_of_seed(column.task, column.options, seed)
    settings = tasks.defaults_of(compare.make_task(column.task, options)) | column.settings
    folder = out / "seeds" / column.title / label.replace(" ", "-") / str(seed)
    return Job(column.task, options, model, seed, folder,
               settings | {"lr": rate, "freeze": "fpt"})


def differences(grid):
    """Return a Markdown table of the full dose against its spectrum and against random weights.

    The differences are in points, at the end and in the area, the mean over the whole curve.  The
    95 % intervals are over the pretraining seeds.  They are Student's: of three values a bootstrap
    would give intervals that are too short."""
    lines = [["task", "difference", "at the end", "area", "pretraining seeds"]]
    for title, arms in grid.results.items():
        for source, control in itertools.product(PRETRAINED_ON, ("spectrum", PAPER)):
            other = f"{source} spectrum" if control == "spectrum" else PAPER
            ours = f"{source} {DOSES[-1]}"
            curves = [[100 * h["test_accuracy"] for h in arms[name]] for name in (ours, other)]
            ends, areas = ([measure(a) - measure(b) for a, b in zip(*curves, strict=True)]
                           for measure in (lambda curve: curve[-1], np.mean))
            lines.append([tasks.label_of(title), f"{ours} - {other}", tables.interval(ends),
                          tables.interval(areas), str(len(ends))])
    return tables.markdown(lines)


def picture(grid, losses, path):
    """Draw final accuracy against the pretraining's loss.

    Each task has an axis, each source a line, each dose and seed a point.  A cross at the full
    dose is its spectrum; random weights are a horizontal line."""
    fig, axes = tables.grid_of_axes(len(grid.results))
    for ax, (title, arms) in zip(axes, grid.results.items(), strict=True):
        ends = {label: [100 * h[-1]["test_accuracy"] for h in runs] for label, runs in arms.items()}
        for source, color in zip(PRETRAINED_ON, ("#1f77b4", "#d62728"), strict=True):
            x = [[np.log(256)] * len(grid.seeds), *([losses[source, dose, s] for s in grid.seeds]
                                                     for dose in DOSES)]
            y = [ends["no pretraining"], *(ends[f"{source} {dose}"] for dose in DOSES)]
            ax.plot(np.mean(x, axis=1), np.mean(y, axis=1), color=color, label=source)
            ax.plot(np.ravel(x), np.ravel(y), ".", color=color)
            ax.plot(x[-1], ends[f"{source} spectrum"], "x", color=color, markersize=7,
                    label=f"spectrum of {source}")
        ax.axhline(np.mean(ends[PAPER]), color="0.4", linestyle="--", linewidth=1,
                   label="random, as the paper draws it")
        ax.invert_xaxis()
        ax.set(title=tasks.label_of(title), ylabel="test accuracy (%)",
               xlabel="loss of the pretraining (nats for each byte)")
    plots.legend(fig, axes)
    plots.save(fig, path, tables.KIND)
