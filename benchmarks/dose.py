"""Frozen pretrained trunks against random matrices in their likeness.

    python -m benchmarks.dose dose|masks --text FOLDER    # a few hours, an hour
    python -m benchmarks.dose sources                     # an hour
                              [--scale paper] [--tasks NAME ...] [--seeds N] [--rates LR ...]
                              [--jobs N] [--out FOLDER]

``dose`` asks whether the benefit of pretraining rises with its **dose**, the number of its steps.
Its trunks read novels, or text that is drawn from the novels' trigrams.  ``sources`` pretrains on
strings that a procedure makes.  ``masks`` pretrains two trunks without a causal mask, in the place
of the paper's BERT and Vision Transformer.  Each trunk is then frozen and trained on each task with
fresh layer norms and positions, which are the same in all arms of one seed.  The controls are
random matrices with the singular values of the full dose (``spectrum``), or with each matrix's mean
and standard deviation (``statistics``), and random weights as the paper draws them, with the
trunk's own mask (``random``) or a causal one.  The runs of one source and pretraining seed differ
in their frozen weights alone, so all intervals are over pretraining seeds.
"""

import argparse
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import sources
from minifpt import tasks
from minifpt.checks import whole
from minifpt.experiments import compare, tables
from minifpt.experiments.compare import Arm, Column, Job
from minifpt.experiments.pretrain import AS_FPT, ON_TEXT, pretrain
from minifpt.experiments.reproduce import stem
from minifpt.experiments.workers import perform
from minifpt.files import outputs, plots
from minifpt.progress import progress_bar


@dataclass(frozen=True)
class Experiment:
    """Sources of pretraining, the steps of each, the controls of the full dose and the tasks."""

    shows: str
    sources: tuple
    doses: tuple                                          # steps; the last one is the full dose
    controls: tuple
    tasks: tuple

    def needs_text(self):
        """Return whether a source reads novels."""
        return not {*self.sources}.isdisjoint(ON_TEXT)


def recall(source):
    """Return associative recall of symbols of one kind."""
    return Column("recall", {"source": source}, {"steps": 4000}, f"recall-{source}")


MEMORY = Column("bit-memory", {}, {"steps": 4000}, "bit-memory")
EXPERIMENTS = {
    "dose": Experiment(
        "Pretraining in doses, against random matrices with the same singular values and random "
        "weights as the paper draws them; needs --text.",
        ("language", "trigrams"), (500, 1500, 4500), ("spectrum", "statistics"),
        (MEMORY, Column("cifar10", {}, {"steps": 4000}, "cifar10"),
         *(recall(source) for source in ("uniform", "zipf", "markov", "text")))),
    "sources": Experiment(
        "Pretraining on strings that a procedure makes, against random matrices with the same "
        "singular values or standard deviations.",
        # Trunks of this size learn neither set nor reverse in 4,500 steps, and little of stack.
        ("brackets", "sort", "stack", "automata"), (4500,), ("spectrum", "statistics"),
        (replace(MEMORY, settings={"steps": 2000}), recall("uniform"),
         Column("listops", {}, {"steps": 500}, "listops"))),
    "masks": Experiment(
        "Pretraining with a causal mask and from both sides, on text and on digits, against random "
        "weights with the same mask; needs --text.",
        ("language", "masked", "vision"), (4500,), ("statistics", "random"),
        (replace(MEMORY, settings={"steps": 2000}),
         Column("cifar10", {}, {"steps": 1000}, "cifar10"),
         Column("listops", {}, {"steps": 500}, "listops"))),
}
CONTROLS = {"spectrum": "same singular values", "statistics": "statistics",
            "random": "random (paper), same mask"}
RATES = 3e-3, 1e-2, 3e-2
PAPER = "random (paper)"
LOSSES = ["source", "steps", "seed", "nats"]              # the columns of dose-losses.csv
# The mini scale takes a few hours of a core, the other one more than a day.
SCALES = {"mini": {"shape": "2x2x64", "tokens": 64}, "paper": {"shape": "6x4x128", "tokens": 256}}


def models(experiment, folder, seed, scale="mini"):
    """Return ``{label: model}`` of all arms of one pretraining seed, for ``--model``."""
    shape = SCALES[scale]["shape"]
    fresh = f"+ln,pos=random:{shape}@paper"               # layer norms and positions of all arms
    arms = {PAPER: f"random:{shape}@paper", "no pretraining": f"random:{shape}{fresh}"}
    for source in experiment.sources:
        for dose in experiment.doses:
            arms[f"{source} {dose}"] = f"{weights_of(folder, source, dose, seed)}{fresh}"
        full = weights_of(folder, source, experiment.doses[-1], seed)
        for control in experiment.controls:               # only random keeps nothing but the mask
            arms[f"{source} {control}"] = (
                f"{full}+attn,mlp,ln,pos=random:{shape}@paper" if control == "random"
                else f"{control}:{full}{fresh}")
    return arms


def weights_of(folder, source, dose, seed):
    """Return the path of one pretrained trunk."""
    return Path(folder) / "trunks" / f"{source}-{dose}-{seed}.npz"


def pretrain_all(experiment, folder, text, seeds, progress, scale="mini"):
    """Pretrain the trunks, or resume them, and return ``{(source, dose, seed): loss}``.

    The loss is on held-out examples, in nats for each byte, for ``vision`` for each picture.
    Raises ``ValueError`` where a trunk was pretrained on another text."""
    losses = {}
    for source, dose, seed in itertools.product(experiment.sources, experiment.doses, range(seeds)):
        path = weights_of(folder, source, dose, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        has_begun = (path.with_suffix("") / "config.json").exists()
        size = {name: value for name, value in SCALES[scale].items()
                if not (name == "tokens" and source in AS_FPT)}
        history = pretrain(source, path, text=text if source in ON_TEXT else None, seed=seed,
                           steps=dose, resume=has_begun, progress=progress, **size)
        losses[source, dose, seed] = history[-1]["test_loss"]
    return losses


def run(kind, out, text=None, *, scale="mini", only=None, seeds=3, rates=None, jobs=1,
        progress=True):
    """Run one of ``EXPERIMENTS``, or resume it, and return its tables as Markdown.

    It writes ``OUT/KIND.md``, ``.csv``, ``-losses.csv`` and ``.png``, at the paper's scale
    ``KIND-paper.md`` and so on.

    text    files or folders of ``*.txt`` to pretrain on, for ``dose`` and ``masks``.
    scale   ``mini``: trunks of 2 blocks and 64 channels, pretrained on passages of 64 bytes.
            ``paper``: 6 blocks and 128 channels, passages of 256 bytes.
    only    titles of the tasks to run, all by default.
    seeds   how many pretraining seeds; each is also the seed of its runs.
    rates   learning rates to try.  Each arm takes the best one with its first pretraining seed, on
            validation draws of two validation seeds, for all seeds.
    """
    sources.add_sources()
    experiment, name = EXPERIMENTS[kind], stem(kind, scale)
    out, seeds = Path(out) / name, whole("dose", "seeds", seeds)
    if experiment.needs_text() != bool(text):
        raise ValueError("dose: --text, files or folders of *.txt, is for dose and masks, which "
                         "need it")
    if {*"+="} & {*str(out)}:
        raise ValueError(f"dose: --out is {out}: + and = have a meaning in names of trunks")
    titles = [column.title for column in experiment.tasks]
    if not {*(only or ())} <= {*titles}:
        raise ValueError(f"dose: --tasks are {' '.join(only)}, expected of {' '.join(titles)}")
    columns = [column for column in experiment.tasks if column.title in (only or titles)]
    compare.check_outputs(out.parent, f"{name}.md", f"{name}.csv", f"{name}.png")
    compare.check_outputs(out.parent, f"{name}-losses.csv", columns=LOSSES)
    losses = pretrain_all(experiment, out, text, seeds, progress, scale)
    arms = [models(experiment, out, seed, scale) for seed in range(seeds)]
    grid = compare.grid(out, columns, [Arm(model, label=label) for label, model in arms[0].items()],
                        [0], rates=rates or RATES, jobs=jobs, progress=progress)
    others = [(column, label, seed) for column in columns for label in arms[0]
              for seed in range(1, seeds)]
    queue = [job_of(arms[seed][label], out, column, label, seed, grid.rates[column.title][label])
             for column, label, seed in others]
    with progress_bar(total=len(queue), unit="run", progress=progress) as bar:
        histories = perform(queue, out, bar) if queue else []
    for (column, label, _), history in zip(others, histories, strict=True):
        grid.results[column.title][label].append(history)
    grid.seeds = [*range(seeds)]
    report = f"{experiment.shows}\n\n{tables.table(grid)}\n\n{differences(experiment, grid)}\n"
    outputs.write_text(out.parent / f"{name}.md", tables.KIND, report + "\n")
    outputs.write_csv(out.parent / f"{name}.csv", tables.CSV, tables.rows(grid))
    outputs.write_csv(out.parent / f"{name}-losses.csv", LOSSES, [
        dict(zip(LOSSES, (*key, f"{loss:.3f}"), strict=True)) for key, loss in losses.items()])
    picture(experiment, grid, out.parent / f"{name}.png")
    return report


def job_of(model, out, column, label, seed, rate):
    """Return the :class:`Job` of one arm with a further pretraining seed."""
    options = compare.options_of_seed(column.task, column.options, seed)
    settings = tasks.defaults_of(compare.make_task(column.task, options)) | column.settings
    folder = (out / "seeds" / column.title / label.replace(" ", "-") / tables.rate_text(rate)
              / str(seed))
    return Job(column.task, options, model, seed, folder,
               settings | {"lr": rate, "freeze": "fpt"})


def differences(experiment, grid):
    """Return a Markdown table of each source's full dose against its controls, random weights, and,
    where there are several doses, the smallest one and the other sources.

    The differences are in points, at the end and in the area, the mean over the whole curve.  The
    95 % intervals are over the pretraining seeds.  They are Student's: of three values a bootstrap
    would give intervals that are too short.  Several tasks of recall have their mean, too."""
    lines = [["task", "difference", "at the end", "area", "pretraining seeds"]]
    results = dict(grid.results)
    recalls = [arms for title, arms in results.items() if title.startswith("recall")]
    if len(recalls) > 1:
        results[f"mean of {len(recalls)} recall tasks"] = {
            label: mean_curves([arms[label] for arms in recalls]) for label in recalls[0]}
    full = {source: f"{source} {experiment.doses[-1]}" for source in experiment.sources}
    for title, arms in results.items():
        for source, ours in full.items():
            others = [*(f"{source} {control}" for control in experiment.controls), PAPER]
            if len(experiment.doses) > 1:
                others += [f"{source} {experiment.doses[0]}",
                           *(other for other in full.values() if other > ours)]
            lines += [[tasks.label_of(title), f"{ours} - {other}",
                       *tables.paired(arms[ours], arms[other])] for other in others]
    return tables.markdown(lines)


def mean_curves(by_task):
    """Return a history for each seed: the mean test accuracy over tasks, [[history, ...], ...]."""
    means = []
    for runs in zip(*by_task, strict=True):               # of one seed
        steps, curves = plots.common(runs, "test_accuracy")
        means.append([{"step": step, "test_accuracy": accuracy}
                      for step, accuracy in zip(steps, curves.mean(axis=0), strict=True)])
    return means


def picture(experiment, grid, path):
    """Draw final accuracies, an axis for each task, a dot for each pretraining seed.

    With several doses accuracy stands over the steps of pretraining, a line for each source, with
    crosses for its controls beside the full dose.  With one dose each source has a row.  Random
    weights are a dashed line."""
    draw = doses_on if len(experiment.doses) > 1 else sources_on
    fig, axes = tables.grid_of_axes(len(grid.results))
    for ax, (title, arms) in zip(axes, grid.results.items(), strict=True):
        ends = {label: [100 * h[-1]["test_accuracy"] for h in runs] for label, runs in arms.items()}
        draw(ax, experiment, ends)
        ax.set_title(tasks.label_of(title))
    plots.legend(fig, axes, inside=0)
    plots.save(fig, path, tables.KIND)


def doses_on(ax, experiment, ends):
    """Draw one task's accuracies against the steps of the pretraining, the doses side by side."""
    doses = 0, *experiment.doses
    for i, (source, color) in enumerate(zip(experiment.sources, ("#1f77b4", "#d62728"),
                                            strict=True)):
        x = np.arange(len(doses)) + 0.06 * (2 * i - 1)    # the two sources beside each other
        y = [ends["no pretraining"], *(ends[f"{source} {dose}"] for dose in experiment.doses)]
        ax.plot(x, np.mean(y, axis=1), color=color, label=source)
        ax.plot(x, y, ".", color=color)
        for j, (control, marker) in enumerate(zip(experiment.controls, "x+", strict=True), 1):
            values = ends[f"{source} {control}"]
            ax.plot([x[-1] + 0.3 * j] * len(values), values, marker, color=color, markersize=7,
                    label=f"{control} of {source}")
    ax.axhspan(min(ends[PAPER]), max(ends[PAPER]), color="0.4", alpha=0.12, linewidth=0)
    ax.axhline(np.mean(ends[PAPER]), color="0.4", linestyle="--", linewidth=1,
               label="random, as the paper draws it")
    ax.set(ylabel="test accuracy (%)", xlabel="steps of pretraining", xticks=range(len(doses)),
           xticklabels=[f"{dose:,}" for dose in doses])


def sources_on(ax, experiment, ends):
    """Draw one task's accuracies in a row for each source and one without pretraining."""
    rows = [*experiment.sources, "no pretraining"]
    kinds = {str(experiment.doses[-1]): ("pretrained", "o"),
             **{control: (CONTROLS[control], marker)
                for control, marker in zip(experiment.controls, "x+", strict=True)}}
    for i, (kind, (label, marker)) in enumerate(kinds.items()):
        values = [(x, row + 0.2 * (i - 1)) for row, source in enumerate(experiment.sources)
                  for x in ends[f"{source} {kind}"]]
        ax.plot(*zip(*values, strict=True), marker, color=f"C{i}", label=label)
    ax.plot(ends["no pretraining"], [len(rows) - 1] * len(ends["no pretraining"]), "o", color="0.6")
    ax.axvspan(min(ends[PAPER]), max(ends[PAPER]), color="0.4", alpha=0.12, linewidth=0)
    ax.axvline(np.mean(ends[PAPER]), color="0.4", linestyle="--", linewidth=1,
               label="random, as the paper draws it")
    ax.set(xlabel="test accuracy (%)", yticks=range(len(rows)), yticklabels=rows)
    ax.invert_yaxis()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=list(EXPERIMENTS))
    parser.add_argument("--text", nargs="+")
    parser.add_argument("--scale", choices=list(SCALES), default="mini")
    parser.add_argument("--tasks", nargs="+", dest="only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    print(run(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
