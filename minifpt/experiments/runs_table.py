"""Runs that exist, side by side: curves and final numbers, and steps to a threshold.

Nothing is trained and no weights are read: ``config.json`` and ``metrics.csv`` will do.
"""

from pathlib import Path
from textwrap import shorten

import numpy as np

from .. import tasks
from ..files import outputs
from ..trunks.names import TrunkSpec
from .compare import check_outputs
from .runs import read_history, read_settings
from .tables import KIND, first_step, markdown, picture, spread

# Settings that say nothing of how a run was set up beyond its trunk and its seed.
APART = {"task", "options", "source", "model", "seed", "trunk_crc", "test_examples"}
SHARE = 0.99                                              # of the best arm's final accuracy
CSV = ["run", "task", "arm", "seed", "steps", "test_accuracy", "test_loss", "threshold",
       "steps_to_threshold", "seconds"]


def are_runs(words):
    """Whether what stands on a command line names the folders of runs rather than tasks; a word
    that names a task is one, even where there is a folder of that name.  Raises ``ValueError``
    for a mixture."""
    folders = [word for word in words if word not in tasks.names() and (
        Path(word).is_dir() or (Path(word).name != word and ".py:" not in word))]
    if folders and len(folders) < len(words):
        other = next(word for word in words if word not in folders)
        raise ValueError(f"compare: {folders[0]} is the folder of a run, {other} is none: expected "
                         "runs only, or tasks only (./NAME is a folder that has a task's name)")
    return bool(folders)


def read(folders):
    """``[(folder, settings, History), ...]`` of run folders, each once."""
    found = {}
    for folder in map(Path, folders):
        settings, history = read_settings(folder), read_history(folder)
        found.setdefault(folder.resolve(), (folder, settings, history))
    return [*found.values()]


def spec_of(folder, settings):
    """The run's :class:`TrunkSpec`; ``None`` for one of a pretraining, which names none."""
    try:
        return TrunkSpec.parse(settings["model"]) if settings.get("model") else None
    except ValueError as e:
        raise ValueError(f"{folder}: what was its model? {shorten(str(e), 300)}") from None


def arms(runs):
    """``{task: {arm: [(folder, settings, History), ...]}}``: runs that differ in their seed alone
    are one arm; two with one seed in an arm raise a ``ValueError``.  An arm is called by its trunk
    and by the settings in which arms of its task differ."""
    by_task, named = {}, {}
    for run in runs:
        settings, spec = run[1], spec_of(*run[:2])
        drawn = spec is not None and spec.drawn           # by each seed
        options = {option: value for option, value in settings["options"].items()
                   if (option, value) != ("draw", settings["seed"])}    # labels drawn by the seed
        key = repr((settings.get("model"), drawn or settings.get("trunk_crc"), options,
                    [(k, settings[k]) for k in sorted(settings) if k not in APART]))
        same = by_task.setdefault(settings["task"], {}).setdefault(key, [])
        for folder, others, _ in same:
            if others["seed"] == settings["seed"]:
                raise ValueError(f"compare: {folder} and {run[0]} are one run, of seed "
                                 f"{settings['seed']}, and count once: name one of them")
        same.append(run)
    for task, of in by_task.items():
        first = [same[0][1] for same in of.values()]
        keys = dict.fromkeys(k for s in first for k in s if k not in APART)
        differ = [k for k in keys if len({repr(s.get(k)) for s in first}) > 1]
        options = [k for k in dict.fromkeys(k for s in first for k in s["options"])
                   if len({repr(s["options"].get(k)) for s in first}) > 1]
        for same in of.values():
            folder, settings, _ = same[0]
            spec = spec_of(folder, settings)
            parts = [spec.label if spec else folder.name]
            parts += [f"{k} {settings.get(k)}" for k in differ]
            parts += [f"{k} {settings['options'].get(k)}" for k in options]
            label = ", ".join(parts)
            if label in named.get(task, {}):              # two files of one name
                label = f"{label}, {folder}"
            named.setdefault(task, {})[label] = same
    return named


def thresholds(found, percent=None):
    """{task: the accuracy to be reached}: as given, else ``SHARE`` of the final accuracy of the
    task's best arm, in the mean over its seeds."""
    if percent is not None and not 1 < percent <= 100:
        raise ValueError(f"compare: the threshold is {percent:g}, expected per cent, more than 1 "
                         "and at most 100")
    return {task: percent / 100 if percent is not None else SHARE * max(
        np.mean([history[-1]["test_accuracy"] for *_, history in runs]) for runs in of.values())
        for task, of in found.items()}


def table(found, limits):
    """A line for each arm, as Markdown."""
    lines = [["task", "arm", "runs", "steps", "test accuracy (%)", "test loss",
              "steps to threshold", "threshold (%)", "seconds"]]
    for task, of in found.items():
        for arm, runs in of.items():
            ends = [history[-1] for *_, history in runs]
            reached = [first_step(history, limits[task]) for *_, history in runs]
            there = [s for s in reached if s is not None]
            cell = (spread(there, "{:.0f}") if len(there) == len(runs) else
                    f"not reached{f' by {len(runs) - len(there)} of {len(runs)}' * bool(there)}")
            lines.append([tasks.label_of(task), arm, str(len(runs)),
                          spread([e["step"] for e in ends], "{:.0f}"),
                          spread([100 * e["test_accuracy"] for e in ends]),
                          spread([e["test_loss"] for e in ends], "{:.3f}"), cell,
                          f"{100 * limits[task]:.1f}",
                          spread([e["seconds"] for e in ends], "{:.0f}")])
    return markdown(lines)


def rows(found, limits):
    """A line for each run, {column of the CSV: value}."""
    return [{
        "run": folder, "task": task, "arm": arm, "seed": settings["seed"],
        "steps": history[-1]["step"], "test_accuracy": f"{history[-1]['test_accuracy']:.6f}",
        "test_loss": f"{history[-1]['test_loss']:.6f}", "threshold": f"{limits[task]:.6f}",
        "steps_to_threshold": first_step(history, limits[task]),
        "seconds": f"{history[-1]['seconds']:g}"}
        for task, of in found.items() for arm, runs in of.items()
        for folder, settings, history in runs]


def compare_runs(out, folders, threshold=None):
    """Write ``OUT/table.md``, ``runs.csv`` and ``curves.png`` of runs; returns the table.

    Runs of several tasks have an axis for each.  Raises ``ValueError`` or ``FileNotFoundError``
    with one line for a folder that holds no run, or a damaged one.
    """
    found, out = arms(read(folders)), Path(out)
    check_outputs(out, "table.md", "runs.csv", "curves.png", columns=CSV)
    limits = thresholds(found, threshold)
    text = table(found, limits)
    outputs.write_text(out / "table.md", KIND, text + "\n\n")
    outputs.write_csv(out / "runs.csv", CSV, rows(found, limits))
    picture({task: {arm: [history for *_, history in runs] for arm, runs in of.items()}
             for task, of in found.items()}, out / "curves.png", limits)
    return text
