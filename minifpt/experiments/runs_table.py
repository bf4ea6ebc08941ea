"""Compare runs that exist: their curves, final numbers, and steps to a threshold.

It reads ``config.json`` and ``metrics.csv`` only, and trains nothing.
"""

import itertools
from pathlib import Path
from textwrap import shorten

import numpy as np

from .. import tasks
from ..files import outputs
from ..trunks.names import TrunkSpec
from .compare import check_outputs
from .runs import names_folder, read_history, read_settings
from .tables import KIND, first_step, markdown, picture, spread

# Settings in which the runs of one arm may differ, or which its label has already.
REDRAWN = {getattr(task, "redrawn", None) for task in tasks.TASKS.values()}   # set to the seed
APART = {"built", "task", "options", "source", "model", "seed", "trunk_crc", "model_crc",
         "test_examples"}
SHARE = 0.99                                              # threshold / best final accuracy
CSV = ["run", "task", "arm", "seed", "steps", "test_accuracy", "test_loss", "threshold",
       "steps_to_threshold", "seconds"]


def are_runs(words):
    """Return whether the words of a command line name folders of runs rather than tasks.

    A task's name is a task, even where a folder has it.  Raises ``ValueError`` for a mixture."""
    folders = [word for word in words if word not in tasks.names() and names_folder(word)]
    if folders and len(folders) < len(words):
        other = next(word for word in words if word not in folders)
        raise ValueError(f"compare: {folders[0]} is the folder of a run, {other} is none: expected "
                         "runs only, or tasks only (./NAME is a folder that has a task's name)")
    return bool(folders)


def read(folders):
    """Return ``[(folder, settings, History), ...]`` of run folders, each once."""
    runs = {}
    for folder in map(Path, folders):
        settings, history = read_settings(folder), read_history(folder)
        runs.setdefault(folder.resolve(), (folder, settings, history))
    return [*runs.values()]


def spec_of(folder, settings):
    """Return the run's :class:`TrunkSpec`, ``None`` for a pretraining."""
    try:
        return TrunkSpec.parse(settings["model"]) if settings.get("model") else None
    except ValueError as e:
        raise ValueError(f"{folder}: its model cannot be read: {shorten(str(e), 300)}") from None


def key_of(run, redrawn):
    """Return a text that is the same for runs that differ in their seed alone; the options
    ``redrawn`` are then drawn by the seed."""
    settings, spec = run[1], spec_of(*run[:2])
    is_random = spec is not None and spec.drawn           # each seed has other weights
    options = {k: v for k, v in settings["options"].items() if k not in redrawn}
    apart = APART | ({"data_crc"} if len(options) < len(settings["options"]) else set())
    code = {} if spec else {"model_crc": settings.get("model_crc"), **settings.get("built", {}),
                            "seed": None}                 # a model built in code has no name
    return repr((settings["task"], settings.get("model"), code,
                 is_random or settings.get("trunk_crc"),
                 options, [(k, settings[k]) for k in sorted(settings) if k not in apart]))


def arms(runs):
    """Return ``{task: {arm: [(folder, settings, History), ...]}}``.

    Runs that differ in their seed alone are one arm.  An arm's label has its trunk and the settings
    in which its task's arms differ.  Raises ``ValueError`` for two runs of an arm with one seed."""
    by_task, named = {}, {}
    # Several seeds have one value of an option that their seeds did not draw.
    fixed = {(key_of(run, REDRAWN), option, run[1]["options"][option]) for run in runs
             for option in REDRAWN & {*run[1]["options"]}
             if run[1]["options"][option] != run[1]["seed"]}
    for run in runs:
        settings, base = run[1], key_of(run, REDRAWN)
        key = key_of(run, {option for option in REDRAWN
                           if (base, option, settings["options"].get(option)) not in fixed})
        same = by_task.setdefault(settings["task"], {}).setdefault(key, [])
        for folder, others, _ in same:
            if others["seed"] == settings["seed"]:
                raise ValueError(f"compare: {folder} and {run[0]} are one run, of seed "
                                 f"{settings['seed']}, and count once: name one of them")
        same.append(run)
    for task, by_key in by_task.items():
        first = [same[0][1] for same in by_key.values()]
        keys = dict.fromkeys(k for s in first for k in s if k not in APART)
        differ = [k for k in keys if len({repr(s.get(k)) for s in first}) > 1]
        options = [k for k in dict.fromkeys(k for s in first for k in s["options"])
                   if len({repr(s["options"].get(k)) for s in first}) > 1]
        follow = {"data_crc"} if options else set()       # settings that follow from others
        files = {tuple(repr(s.get(k)) for k in ("functional", "functional_hash")) for s in first}
        if len(files) == len({name for name, _ in files}):
            follow.add("functional_hash")
        differ = [k for k in differ if k not in follow]
        for same in by_key.values():
            folder, settings, _ = same[0]
            spec = spec_of(folder, settings)
            parts = [spec.label if spec else folder.name]
            parts += [f"hash {settings[k]!s:.6}" if k == "functional_hash" else f"{k} {settings[k]}"
                      for k in differ if settings.get(k) is not None]
            parts += [f"{k} {settings['options'].get(k)}" for k in options]
            label = ", ".join(parts)
            if label in named.get(task, {}):              # two files of one name
                label = f"{label}, {folder}"
            named.setdefault(task, {})[label] = same
    return named


def thresholds(runs_of, percent=None):
    """Return {task: threshold accuracy}, by default ``SHARE`` of the best arm's final accuracy.

    The final accuracy is the mean over the arm's seeds."""
    if percent is not None and not 1 < percent <= 100:
        raise ValueError(f"compare: the threshold is {percent:g}, expected per cent, more than 1 "
                         "and at most 100")
    return {task: percent / 100 if percent is not None else SHARE * max(
        np.mean([history[-1]["test_accuracy"] for *_, history in runs])
        for runs in by_arm.values()) for task, by_arm in runs_of.items()}


def table(runs_of, limits):
    """Return a Markdown table with a row for each arm."""
    lines = [["task", "arm", "runs", "steps", "test accuracy (%)", "test loss",
              "steps to threshold", "threshold (%)", "seconds"]]
    for task, by_arm in runs_of.items():
        for arm, runs in by_arm.items():
            ends = [history[-1] for *_, history in runs]
            steps = [first_step(history, limits[task]) for *_, history in runs]
            reached = [step for step in steps if step is not None]
            some = f" by {len(runs) - len(reached)} of {len(runs)}" if reached else ""
            cell = (spread(reached, "{:.0f}") if len(reached) == len(runs) else
                    f"not reached{some}")
            lines.append([tasks.label_of(task), arm, str(len(runs)),
                          spread([e["step"] for e in ends], "{:.0f}"),
                          spread([100 * e["test_accuracy"] for e in ends]),
                          spread([e["test_loss"] for e in ends], "{:.3f}"), cell,
                          f"{100 * limits[task]:.1f}",
                          spread([e["seconds"] for e in ends], "{:.0f}")])
    return markdown(lines)


def rows(runs_of, limits):
    """Return a dictionary for each run, {column of the CSV: value}."""
    return [{
        "run": folder, "task": task, "arm": arm, "seed": settings["seed"],
        "steps": history[-1]["step"], "test_accuracy": f"{history[-1]['test_accuracy']:.6f}",
        "test_loss": f"{history[-1]['test_loss']:.6f}", "threshold": f"{limits[task]:.6f}",
        "steps_to_threshold": first_step(history, limits[task]),
        "seconds": f"{history[-1]['seconds']:g}"}
        for task, by_arm in runs_of.items() for arm, runs in by_arm.items()
        for folder, settings, history in runs]


def compare_runs(out, folders, threshold=None):
    """Compare runs by their folders and return their table.

    It writes ``OUT/table.md``, ``runs.csv`` and ``curves.png``, with an axis for each task.  Raises
    ``ValueError`` or ``FileNotFoundError`` of one line for a folder without a run, or a damaged
    one.
    """
    runs, out = read(folders), Path(out)
    runs_of = arms(runs)
    check_outputs(out, "table.md", "runs.csv", "curves.png", columns=CSV)
    limits = thresholds(runs_of, threshold)
    stopped = [f"{folder} stopped after {history[-1]['step']} of {settings['steps']} steps"
               for folder, settings, history in runs if history[-1]["step"] < settings["steps"]]
    text = "\n\n".join(filter(None, [table(runs_of, limits), ", ".join(stopped)]))
    outputs.write_text(out / "table.md", KIND, text + "\n\n")
    outputs.write_csv(out / "runs.csv", CSV, rows(runs_of, limits))
    picture({task: {arm: [history for *_, history in runs] for arm, runs in by_arm.items()}
             for task, by_arm in runs_of.items()}, out / "curves.png", limits,
            {task: chance_of(itertools.chain(*by_arm.values()))
             for task, by_arm in runs_of.items()})
    return text


def chance_of(runs):
    """Return the chance accuracy of runs of one task, 0 ... 1; ``None`` where their options give
    several, or where the task cannot be made here."""
    chances = set()
    for settings in {repr(settings["options"]): settings for _, settings, _ in runs}.values():
        try:
            task = tasks.get(settings.get("source", settings["task"]), **settings["options"])
            chances.add(getattr(task, "chance", None))
        except Exception:                                 # a user's own task, or missing data
            return None
    return chances.pop() if len(chances) == 1 else None
