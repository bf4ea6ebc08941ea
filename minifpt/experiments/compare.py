"""Grids of runs: task x arm x seed, each run in its own folder.

A grid that was stopped can be resumed: a finished run is read, and an unfinished one goes on from
its checkpoint.  Each trunk may choose its learning rate, on examples that no test uses.
"""

import inspect
import json
import re
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from .. import tasks
from ..checks import brief, number, whole
from ..files import nearest_folder, outputs, plots, read_json, save_text, to_json
from ..files.runs import (
    COLUMNS,
    DIVERGED,
    NAMED,
    History,
    check_same,
    say_what_differs,
    with_defaults,
)
from ..fpt import FPT
from ..plugins import USERS_OWN, users_code
from ..progress import progress_bar
from ..record import texts
from ..spelling import suggestion
from ..tasks import optional, task_class
from ..tasks.base import dry_run
from ..training import Diverged, Settings
from . import tables
from .runs import run
from .tables import AXES, Arm, Column
from .validation import Validation
from .workers import Pool, perform

MODELS = "minigpt-language", "random"                     # that are compared by default
VALIDATION_SEEDS = 2                                      # of a learning-rate sweep, by default
MAX_SEEDS = 1000                                          # of one grid
# Settings of all runs of a task.
SETTINGS = {f.name for f in fields(Settings)} - {"seed", "target_accuracy"} | {"dropout"}
__all__ = ["Arm", "Column", "Job", "Validation", "compare", "grid"]


# ------------------------------------------------------------------------------ a job of a grid


@lru_cache(maxsize=1)                                     # one at a time: it may hold much data
def task_of_grid(name, options, grid_id):
    """Return a task by its name and its options as JSON, the same for all runs of one call of
    :func:`grid`; before the next one its data may change."""
    return tasks.get(name, **json.loads(options))


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a grid, as text and numbers that another process understands; without a seed, all
    runs of one task with one arm."""

    task: str
    task_options: dict
    trunk: str
    seed: int | None
    out: Path                                             # without a seed TASK/MODEL, see jobs
    settings: dict
    validation: bool = False
    grid_id: str = ""                                     # see task_of_grid
    title: str = ""                                       # of the task
    label: str = ""                                       # of the arm
    rates: tuple = ()                                     # that it tries
    texts: dict = field(default_factory=dict)             # of the user's files, at the grid's start

    def __call__(self, progress=False, stop=None):
        """Do the run and return its :class:`minifpt.History`; read it where it has been done.
        ``stop`` is as for :func:`minifpt.train`.

        A run that diverged is not repeated: its folder has a file ``diverged.txt``.  A validation
        run that diverged counts as the worst of all; another one raises ``Diverged``.  Raises
        ``ValueError`` if a file of the user's own has changed since the grid began.
        """
        self.check_texts()
        config = self.out / "config.json"
        resume, token = config.exists(), NAMED.set(self.texts)        # check_folders named them
        try:
            # NumPy's warnings add nothing to the error of a run that diverges.  Another process
            # may not know the class of an error that the user's code raises.
            with np.errstate(all="ignore"), users_code():
                # A task of the user's own may change as it is used, so each run gets a new one.
                task = (tasks.get(self.task, **self.task_options)
                        if USERS_OWN.fullmatch(self.task) else
                        task_of_grid(self.task, to_json(self.task_options), self.grid_id))
                return run(Validation(task) if self.validation else task, self.trunk, self.out,
                           seed=self.seed, resume=resume, stop=stop, progress=progress,
                           source=self.task, **self.settings)[1]
        except Diverged as e:
            text = str(e)
            if config.exists():
                save_text(self.out / DIVERGED, text)
            if not self.validation:
                raise Diverged(f"{self.out}: {text}") from None
            match = re.match(r"step (\d+)", text)
            step = int(match[1]) if match else 0
            return History([dict.fromkeys(COLUMNS, np.nan) | {"step": step}])
        finally:
            NAMED.reset(token)

    def check_texts(self):
        """Raise ``ValueError`` if the text of the task's or the trunk's file is another one than
        at the grid's start: its runs would be of two tasks or trunks."""
        for part, version in texts(self.task, self.trunk).items():
            if self.texts.get(part, version) != version:
                raise ValueError(f"{self.out}: the {part} has changed since the grid began: "
                                 "restore it and give the same command again, or choose another "
                                 "--out")

    def at(self, rate):
        """Return the same with a learning rate, in a folder of its own."""
        return replace(self, out=self.out / tables.rate_text(rate),
                       settings=self.settings | {"lr": rate})

    def jobs(self, out, seeds, validation=False):
        """Return the run of each seed, with its folder below ``out``."""
        return [replace(self, task_options=options_of_seed(self.task, self.task_options, seed),
                        seed=seed, out=out / self.out / str(seed), validation=validation)
                for seed in seeds]

    def best_rate(self, sweep):
        """Return the best learning rate of ``sweep``, {learning rate: validation histories}."""
        if all(map(tables.diverged, sweep.values())):
            raise Diverged(f"compare: {self.label} on {self.title} diverged at every learning rate,"
                           f" {', '.join(f'{rate:g}' for rate in sweep)}: try smaller ones")
        return max(sweep, key=lambda rate: score(sweep[rate]))

    def row(self, history):
        """Return the row of the run in ``runs.csv``."""
        values = {name: axis["none"] if self.settings[name] is None else self.settings[name]
                  for name, axis in AXES.items()}
        return tables.row(history, self.title, self.label, self.settings["lr"], self.seed,
                          int(self.validation), model=self.trunk, **values, folder=str(self.out))

    def is_finished(self):
        """Return whether the run has ended, by a quick look at its folder."""
        try:
            return ((self.out / DIVERGED).exists() or History.load(self.out / "metrics.csv")[-1][
                "step"] == self.settings["steps"])
        except (OSError, ValueError, LookupError):
            return False


# ---------------------------------------------------------------------- tasks and trunks


def options_of_seed(name, options, seed):
    """Return a task's options in the run of one seed.

    A task's class may name an option in ``redrawn``, such as the draw of the labels: that option
    is the seed by default."""
    option = optional(task_class(name), "redrawn")
    return ({option: seed} if option else {}) | options


def columns_of(task_names, task_options, options):
    """Return the :class:`Column` of each task, named or given.  An option of a task goes to the
    named tasks that have it; ``options`` replace the settings of all."""
    columns, option_names = [], set()
    for name in dict.fromkeys(name for name in task_names if not isinstance(name, Column)):
        parameters = inspect.signature(task_class(name)).parameters
        columns.append(Column(name, {k: v for k, v in task_options.items() if k in parameters},
                              options))
        option_names |= {*parameters}
    for option in {*task_options} - option_names:
        near = suggestion(option, [*option_names, *SETTINGS, *AXES,
                                   *inspect.signature(compare).parameters])
        raise ValueError(f"compare: none of the tasks has an option '{option}'{near}")
    columns += [replace(column, settings=column.settings | options)
                for column in task_names if isinstance(column, Column)]
    for name in {name for column in columns for name in column.settings} - SETTINGS:
        raise ValueError(f"compare: a run has no setting '{name}'{suggestion(name, SETTINGS)}: "
                         f"expected one of {', '.join(sorted(SETTINGS))}")
    return columns


def check_numbers(seeds, validation_seeds, rates, arms):
    """Raise ``ValueError`` for numbers that a grid cannot have."""
    all_rates = [*rates, *(rate for arm in arms for rate in arm.rates)]
    whole("compare", "the number of seeds", len(seeds), 1, MAX_SEEDS)
    for seed in seeds:
        whole("compare", "seed", seed, 0, np.inf)
    for rate in all_rates:
        number("compare", "a learning rate", rate)
    if rates and {*seeds} & {*validation_seeds}:
        raise ValueError(f"compare: the seeds {validation_seeds[0]} to {validation_seeds[-1]} are "
                         "the validation seeds, expected others for the results")


def labels_of(arms):
    """Return a label for each arm.  Two trunks may have one label, as two files of one name in two
    folders; then it names the model."""
    labels = [arm.full_label() for arm in arms]
    labels = [label if labels.count(label) == 1 else arm.full_label(arm.trunk)
              for arm, label in zip(arms, labels, strict=True)]
    if len({arm.folder for arm in arms}) < len(arms):
        raise ValueError(f"compare: two arms are the same: {', '.join(labels)}")
    return labels


def cells_of(columns, arms, rates):
    """Return a :class:`Job` without a seed for each task with each arm, and {task's title: chance
    accuracy}.

    Missing data or weights, and a trunk that does not fit, are errors here, before any run."""
    all_tasks = [tasks.get(column.task, **column.options) for column in columns]
    titles = [column.title or task.name for column, task in zip(columns, all_tasks, strict=True)]
    folders = [re.sub(r"[^\w,-]", "-", title) for title in titles]
    if len({*folders}) < len(titles):
        raise ValueError(f"compare: two tasks have one name: {', '.join(titles)}")
    if "choice" in folders:
        raise ValueError("compare: a task has the name choice, which is the folder of the "
                         "validation runs: rename it")
    cells, labels, grid_id = [], labels_of(arms), uuid.uuid4().hex
    for column, task, title, folder in zip(columns, all_tasks, titles, folders, strict=True):
        for arm, label in zip(arms, labels, strict=True):
            dry_run(FPT.for_task(task, arm.trunk, dropout=column.settings.get("dropout"),
                                 **arm.settings), task)
            settings = tasks.defaults_of(task) | column.settings | arm.settings
            if "warmup" not in column.settings:           # train shortens it for a short run
                del settings["warmup"]
            Settings.for_task(task, **settings)           # raises
            cells.append(Job(column.task, column.options, arm.trunk, None,
                             Path(folder, arm.folder), settings, False, grid_id, title, label,
                             arm.sweep(rates), texts(column.task, arm.trunk)))
    return cells, {title: optional(task, "chance")
                   for title, task in zip(titles, all_tasks, strict=True)}


def check_folders(out, jobs):
    """Raise ``ValueError`` where the folder of a job has a run of other settings.  Say on stderr
    which files of the user's own had another text when runs of the grid began."""
    others = {}
    for job in jobs:
        if (config := job.out / "config.json").exists():
            before = with_defaults(read_json(config), Settings)
            # Only train --resume makes a finished run longer: another grid may need it as it is.
            check_same(config, before, before | {
                name: "function" if callable(value) else value
                for name, value in job.settings.items() if name in before},
                "the run has", may_be_longer=False)
            others |= {part: version for part, version in before.get("versions", {}).items()
                       if job.texts.get(part, version) != version}
    say_what_differs(out, {"versions": others}, dict(chain(*(job.texts.items() for job in jobs))))


# ------------------------------------------------------------------------------ the grid


def grid(out, task_names, models, seeds, *, rates=(), all_rates=False, choices=VALIDATION_SEEDS,
         task_options=None, options=None, jobs=1, executor=None, progress=True):
    """Run every task with every model and seed and return a ``tables.Grid``.

    ``options`` are settings of all runs; the other arguments are those of :func:`compare`.  Raises
    ``Diverged`` if a run of the results diverges, or if an arm diverges at each learning rate.
    """
    out, jobs = Path(out), whole("compare", "jobs", jobs)
    if not (task_names and models):
        raise ValueError("compare: expected at least one task and one model")
    if all_rates and not rates:
        raise ValueError("compare: all_rates needs rates")
    whole("compare", "the number of validation seeds", choices, 1, MAX_SEEDS)
    if executor is not None and not hasattr(executor, "submit"):
        raise ValueError(f"compare: executor is {brief(executor)}, expected an object with "
                         "submit(), such as a concurrent.futures.Executor")
    nearest_folder(out)
    arms = tables.arms_of(models, {})
    validation_seeds = [tables.FIRST_VALIDATION_SEED + i for i in range(choices if rates else 1)]
    check_numbers(seeds, validation_seeds, rates, arms)
    columns = columns_of(task_names, task_options or {}, options or {})
    seeds = list(dict.fromkeys(seeds))
    cells, chances = cells_of(columns, arms, rates)
    tries = [cell.at(rate) for cell in cells for rate in cell.rates]
    if all_rates:
        cells = [replace(cell, label=f"{cell.label}, lr {cell.out.name}") for cell in tries]
        tries = []
    if executor is not None:                              # its processes may work elsewhere
        out = out.absolute()
    sweep_jobs = [job for cell in tries
                  for job in cell.jobs(out / "choice", validation_seeds, validation=True)]
    check_folders(out, [*sweep_jobs,
                        *(job for cell in tries or cells for job in cell.jobs(out, seeds))])
    results = tables.Grid({}, {}, {}, seeds, chances)
    pool = Pool(jobs) if executor is None and jobs > 1 else nullcontext(executor)
    total = len(sweep_jobs) + len(cells) * len(seeds)
    with pool as executor, progress_bar(total=total, unit="run", progress=progress) as bar:
        results.add_runs(sweep_jobs, perform(sweep_jobs, out, bar, executor, progress))
        if tries:
            cells = [cell.at(cell.best_rate(results.sweeps[cell.title][cell.label]))
                     for cell in cells]
        run_jobs = [job for cell in cells for job in cell.jobs(out, seeds)]
        results.add_runs(run_jobs, perform(run_jobs, out, bar, executor, progress))
    results.runs.sort(key=lambda run: run["choice"])
    return results


def score(histories):
    """Return the final accuracy and the mean accuracy over the run, by which learning rates are
    compared.  A rate at which a run diverged has the lowest score."""
    if tables.diverged(histories):
        return -np.inf, -np.inf
    _, curves = plots.common(histories, "test_accuracy")
    return curves[:, -1].mean(), curves.mean()


def compare(task_names: str | Column | Sequence[str | Column],
            models: str | Arm | Sequence[str | Arm] = MODELS, *, seeds: int | Sequence[int] = 5,
            first_seed: int = 0, rates: float | Sequence[float] = (), all_rates: bool = False,
            choices: int | None = None, task_options: dict[str, Any] | None = None, jobs: int = 1,
            executor: Any = None, out: str | Path = "runs/compare",
            force: bool = False, progress: bool = True, **options: Any) -> tables.Runs:
    """Train every model on every task with every seed, as ``minifpt compare`` does, and return the
    runs: a list with a dictionary for each, which prints as Markdown tables.

    task_names    a task's name or ``FILE.py:CLASS``, or a list of such, or of :class:`Column`.
    models        a trunk as ``--model`` takes it, or a list of such, or of :class:`Arm`.
    freeze        a mask of frozen parts, or a list: each with every trunk; by default ``"fpt"``.
    adapt         the same for adapters, such as ``"lora:rank=4"``, ``"bitfit"`` or ``"none"``.
    start         the same for starts of the input layer: ``"drawn"``, ``"aligned"``, ``"opposed"``.
    seeds         the number of seeds, or the seeds themselves.
    first_seed    the lowest of that number of seeds.
    rates         learning rates to try: each trunk takes the one with the highest final accuracy
                  on validation draws.  Between equal ones the mean accuracy over the whole run
                  decides.
    choices       the number of validation seeds over whose mean a rate is chosen, by default 2.
    all_rates     run each rate with each seed instead of choosing one.
    steps, batch_size, lr, schedule, dropout
                  settings of all runs, instead of their task's; so are ``warmup``, ``clip``,
                  ``weight_decay``, ``eval_every``, ``test_examples`` and ``final_test_examples``.
    task_options  {option: value}, each for the tasks that have it.  Any other name is such an
                  option, too, as in ``compare("bit-xor", n=7)``.
    jobs          number of processes.
    executor      any ``concurrent.futures.Executor`` instead of them, such as
                  ``distributed.Client(address).get_executor()``.  Its machines have minifpt and see
                  ``out``, weights and data under the same paths.
    out           folder for ``table.md``, ``runs.csv``, ``curves.png`` and the runs.
    force         replace files of these names in a folder without runs.
    progress      show a bar, or print a line for each finished run where output is redirected.

    A row has ``task``, ``trunk`` (the label of the arm), ``lr``, ``seed``, ``choice`` (1 for a run
    that chose a learning rate), ``steps``, ``train_accuracy``, ``test_accuracy``, ``test_loss``,
    ``model``, ``freeze``, ``adapt``, ``start``, ``folder`` and ``curve``, the pairs of step and
    test accuracy.  :func:`minifpt.load` reads the model of a folder.

    A run's folder is ``OUT/TASK/MODEL/SEED``, with learning rates ``OUT/TASK/MODEL/RATE/SEED``;
    the validation runs are in ``OUT/choice``.  The same call continues a grid that was stopped.
    Raises ``ValueError`` or ``FileNotFoundError`` of one line before any run for what can be known
    then, and ``Diverged`` for a run that diverges, also at one rate of ``all_rates``, or an arm
    that does at each rate among which it chooses.
    """
    out, rates = Path(out), tables.listed(rates)
    check_outputs(out, force, "table.md", "runs.csv", "curves.png")
    if rates and options.get("lr") is not None:
        raise ValueError("compare: expected lr or rates, not both")
    if choices is not None and (all_rates or not rates):
        raise ValueError("compare: choices is for rates, among which it chooses")
    is_number = isinstance(seeds, str) or not hasattr(seeds, "__iter__")
    if first_seed and not is_number:
        raise ValueError("compare: first_seed is for a number of seeds, got the seeds themselves")
    if is_number:
        first_seed = whole("compare", "first_seed", first_seed, 0, np.inf)
        seeds = range(first_seed, first_seed + whole("compare", "seeds", seeds, 1, MAX_SEEDS))
    options = {name: value for name, value in options.items() if value is not None}
    axes = {name: options.pop(name) for name in AXES if name in options}
    settings = {name: options.pop(name) for name in [*options] if name in SETTINGS}
    results = grid(out, tables.listed(task_names), tables.arms_of(models, axes), [*seeds],
                   rates=rates, all_rates=all_rates,
                   choices=VALIDATION_SEEDS if choices is None else choices,
                   task_options=options | (task_options or {}), options=settings, jobs=jobs,
                   executor=executor, progress=progress)
    text = "\n\n".join(filter(None, [tables.table(results), tables.differences(results),
                                    tables.still_rising(results)]))
    save_text(out / "table.md", text + "\n")
    save_text(out / "runs.csv", tables.rows(results))
    tables.picture(results, out / "curves.png")
    return tables.Runs(results.runs, text)


def reproduce(name, table, out, seeds=5, *, force=False, **options):
    """Run one of the paper's tables, a ``reproduce.Table``, with a number of seeds, and return it
    as Markdown.  ``options`` are those of :func:`grid`.

    It writes ``OUT/NAME.md``, ``.csv`` and ``.png``."""
    out = Path(out)
    check_outputs(out, force, f"{name}.md", f"{name}.csv", f"{name}.png")
    results = grid_of(table, out, seeds, **options)
    text = table.text(results)
    save_text(out / f"{name}.md", f"{table.shows}\n\n{text}\n")
    save_text(out / f"{name}.csv", tables.rows(results))
    tables.picture(results, out / f"{name}.png")
    return text


def grid_of(table, out, seeds, **options):
    """Do the runs of a table and return their ``tables.Grid``."""
    return grid(out, table.columns, table.arms, range(seeds), rates=table.rates, **options)


def check_outputs(out, force, *names):
    """Raise ``ValueError`` for the folder of a run, and for a file of these names in a folder
    without runs, which is not a grid's, unless ``force`` replaces it."""
    if (out / "config.json").exists():
        raise ValueError(f"{out} is the folder of a run: choose another folder")
    # OUT/TASK/MODEL/SEED, or with a rate before the seed.
    is_grid = any(chain(out.glob("*/*/*/config.json"), out.glob("*/*/*/*/config.json")))
    for name in names:
        outputs.check(out / name, force or is_grid)
