"""Grids of runs: task x trunk x seed, each run in its own folder.

A grid that was stopped can be resumed: a finished run is read, and an unfinished one goes on from
its checkpoint.  Each trunk may choose its learning rate, on examples that no test uses.
"""

import inspect
import json
import re
import uuid
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from .. import tasks
from ..checks import whole
from ..files import nearest_folder, outputs, plots, read_json, save_text, to_json
from ..files.runs import COLUMNS, DIVERGED, History
from ..fpt import FPT
from ..plugins import USERS_OWN, users_code
from ..progress import progress_bar
from ..tasks import optional, task_class
from ..tasks.base import dry_run
from ..training import Diverged
from . import tables
from .runs import run
from .tables import Arm, Column
from .validation import Validation
from .workers import Pool, perform

VALIDATION_SEEDS = 2                                      # of a learning-rate sweep, by default
MAX_SEEDS = 1000                                          # of one grid
__all__ = ["Arm", "Column", "Job", "Validation", "compare", "grid"]


# ------------------------------------------------------------------------------ a job of a grid


@lru_cache(maxsize=1)                                     # one at a time: it may hold much data
def task_of_grid(name, options, grid_id):
    """Return a task by its name and its options as JSON, the same for all runs of one call of
    :func:`grid`; before the next one its data may change."""
    return tasks.get(name, **json.loads(options))


@dataclass(frozen=True)
class Job:
    """One run of a grid, as text and numbers that another process understands."""

    task: str
    task_options: dict
    trunk: str
    seed: int
    out: Path
    settings: dict
    validation: bool = False
    grid_id: str = ""                                     # see task_of_grid

    def __call__(self, progress=False, stop=None):
        """Do the run and return its :class:`minifpt.History`; read it where it has been done.
        ``stop`` is as for :func:`minifpt.train`.

        A run that diverged is not repeated: its folder has a file ``diverged.txt``.  A validation
        run that diverged counts as the worst of all; another one raises ``Diverged``.
        """
        config = self.out / "config.json"
        resume, steps = config.exists(), self.settings["steps"]
        before = read_json(config).get("steps", steps) if resume else steps
        if before != steps:
            # Only train --resume makes a finished run longer: another grid may need it as it is.
            raise ValueError(f"{self.out}: the run has {before} steps, not {steps}: choose another "
                             "--out")
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
        raise ValueError(f"compare: none of the tasks has an option '{option}'")
    return columns + [replace(column, settings=column.settings | options)
                      for column in task_names if isinstance(column, Column)]


def check_numbers(seeds, validation_seeds, rates, arms):
    """Raise ``ValueError`` for numbers that a grid cannot have."""
    all_rates = [*rates, *(rate for arm in arms for rate in arm.rates)]
    whole("compare", "the number of seeds", len(seeds), 1, MAX_SEEDS)
    if any(not 0 < rate < np.inf for rate in all_rates):
        raise ValueError(f"compare: learning rates {all_rates}, expected positive numbers")
    if rates and {*seeds} & {*validation_seeds}:
        raise ValueError(f"compare: the seeds {validation_seeds[0]} to {validation_seeds[-1]} are "
                         "the validation seeds, expected others for the results")


def labels_of(arms):
    """Return a label for each arm.  Two trunks may have one label, as two files of one name in two
    folders; then it names the model."""
    labels = [arm.full_label() for arm in arms]
    labels = [label if labels.count(label) == 1 else ", ".join(filter(None, [
        arm.trunk, arm.freeze if arm.freeze != "fpt" else "", arm.adapt, arm.start]))
              for arm, label in zip(arms, labels, strict=True)]
    if len({arm.folder for arm in arms}) < len(arms):
        raise ValueError(f"compare: two arms are the same: {', '.join(labels)}")
    return labels


@dataclass(frozen=True, eq=False)
class Cell:
    """One task with one arm in a grid."""

    column: Column
    arm: Arm
    title: str                                            # of the task
    label: str                                            # of the arm
    path: Path                                            # TASK/MODEL, below OUT and OUT/choice
    settings: dict
    rate: float | None = None                             # that of all rates which is the cell's

    def jobs(self, out, seeds, rate=None, validation=False):
        """Return a :class:`Job` for each seed, with runs below ``out``."""
        folder = out / self.path / ("" if rate is None else tables.rate_text(rate))
        settings = self.settings | ({} if rate is None else {"lr": rate})
        task, options = self.column.task, self.column.options
        return [Job(task, options_of_seed(task, options, seed), self.arm.trunk, seed,
                    folder / str(seed), settings, validation) for seed in seeds]

    def best_rate(self, sweep):
        """Return the best learning rate of ``sweep``, {learning rate: validation histories}."""
        if all(map(tables.diverged, sweep.values())):
            raise Diverged(f"compare: {self.label} on {self.title} diverged at every learning rate,"
                           f" {', '.join(f'{rate:g}' for rate in sweep)}: try smaller ones")
        return max(sweep, key=lambda rate: score(sweep[rate]))


def cells_of(columns, arms):
    """Return a list of :class:`Cell`, task by task, and {task's title: chance accuracy}.

    Missing data or weights, and a trunk that does not fit, are errors here, before any run."""
    all_tasks = [tasks.get(column.task, **column.options) for column in columns]
    titles = [column.title or task.name for column, task in zip(columns, all_tasks, strict=True)]
    folders = [re.sub(r"[^\w,-]", "-", title) for title in titles]
    if len({*folders}) < len(titles):
        raise ValueError(f"compare: two tasks have one name: {', '.join(titles)}")
    if "choice" in folders:
        raise ValueError("compare: a task has the name choice, which is the folder of the "
                         "validation runs: rename it")
    cells, labels = [], labels_of(arms)
    for column, task, title, folder in zip(columns, all_tasks, titles, folders, strict=True):
        for arm, label in zip(arms, labels, strict=True):
            dry_run(FPT.for_task(task, arm.trunk, arm.freeze, adapt=arm.adapt, start=arm.start),
                       task)
            settings = tasks.defaults_of(task) | column.settings | {
                "freeze": arm.freeze, "adapt": arm.adapt, "start": arm.start}
            if "warmup" not in column.settings:           # train shortens it for a short run
                del settings["warmup"]
            cells.append(Cell(column, arm, title, label, Path(folder, arm.folder), settings))
    return cells, {title: optional(task, "chance")
                   for title, task in zip(titles, all_tasks, strict=True)}


# ------------------------------------------------------------------------------ the grid


def grid(out, task_names, models, seeds, *, rates=(), all_rates=False, choices=VALIDATION_SEEDS,
         task_options=None, options=None, jobs=1, executor=None, progress=True):
    """Run every task with every model and seed and return a ``tables.Grid``.

    task_names    names of tasks, or :class:`Column` objects.
    models        texts that ``--model`` takes, or :class:`Arm` objects.
    rates         learning rates to try: each trunk takes the one with the highest final accuracy
                  on validation draws, in the mean over ``choices`` validation seeds.  Between
                  equal ones the mean accuracy over the whole run decides.
    all_rates     run each rate with each seed instead of choosing one.
    task_options  each goes to the named tasks that have it.
    options       steps, batch_size, lr and so on, for all tasks instead of their own defaults.
    jobs          number of processes.
    executor      any ``concurrent.futures.Executor`` instead of them, such as
                  ``distributed.Client(address).get_executor()``.  Its machines have minifpt and see
                  ``out``, weights and data under the same paths.

    A run's folder is ``OUT/TASK/MODEL/SEED``, with learning rates ``OUT/TASK/MODEL/RATE/SEED``;
    the validation runs are in ``OUT/choice``.  Raises ``Diverged`` if a run of the results
    diverges, or if an arm diverges at each learning rate.
    """
    out, jobs = Path(out), whole("compare", "jobs", jobs)
    if not (task_names and models):
        raise ValueError("compare: expected at least one task and one model")
    if all_rates and not rates:
        raise ValueError("compare: all_rates needs rates")
    whole("compare", "the number of validation seeds", choices, 1, MAX_SEEDS)
    nearest_folder(out)
    arms = [x if isinstance(x, Arm) else Arm(str(x)) for x in dict.fromkeys(models)]
    validation_seeds = [tables.FIRST_VALIDATION_SEED + i for i in range(choices if rates else 1)]
    check_numbers(seeds, validation_seeds, rates, arms)
    columns = columns_of(task_names, task_options or {}, options or {})
    seeds = list(dict.fromkeys(seeds))
    cells, chances = cells_of(columns, arms)
    tries = [(cell, rate) for cell in cells for rate in cell.arm.sweep(rates)]
    if all_rates:
        cells = [replace(cell, rate=rate, label=f"{cell.label}, lr {tables.rate_text(rate)}")
                 for cell, rate in tries]
        tries = []
    if executor is not None:                              # its processes may work elsewhere
        out = out.absolute()
    total = len(tries) * len(validation_seeds) + len(cells) * len(seeds)
    grid_id = uuid.uuid4().hex
    pool = Pool(jobs) if executor is None and jobs > 1 else nullcontext(executor)
    with pool as executor, progress_bar(total=total, unit="run", progress=progress) as bar:
        def histories_of(job_lists):
            """Do all jobs of several lists at once and return a list of histories for each."""
            flat = [replace(job, grid_id=grid_id) for job in chain(*job_lists)]
            histories = iter(perform(flat, out, bar, executor))
            return [list(islice(histories, len(job_list))) for job_list in job_lists]

        sweeps = {cell: {} for cell in cells}
        sweep_jobs = [cell.jobs(out / "choice", validation_seeds, rate, validation=True)
                      for cell, rate in tries]
        for (cell, rate), histories in zip(tries, histories_of(sweep_jobs), strict=True):
            sweeps[cell][rate] = histories
        best = {cell: cell.best_rate(sweep) if sweep else cell.rate
                for cell, sweep in sweeps.items()}
        runs = histories_of([cell.jobs(out, seeds, best[cell]) for cell in cells])
    results = tables.Grid({}, {}, {}, seeds, chances)
    for cell, histories in zip(cells, runs, strict=True):
        results.add(cell.title, cell.label, histories, best[cell] or cell.settings["lr"],
                    sweeps[cell])
    return results


def score(histories):
    """Return the final accuracy and the mean accuracy over the run, by which learning rates are
    compared.  A rate at which a run diverged has the lowest score."""
    if tables.diverged(histories):
        return -np.inf, -np.inf
    _, curves = plots.common(histories, "test_accuracy")
    return curves[:, -1].mean(), curves.mean()


def compare(out, task_names, models, seeds, *, force=False, **options):
    """Run a grid and return its table and the differences between its arms.

    It writes ``OUT/table.md``, ``runs.csv`` and ``curves.png``; in a folder without runs it
    replaces files of these names only by ``force``."""
    out = Path(out)
    check_outputs(out, force, "table.md", "runs.csv", "curves.png")
    results = grid(out, task_names, models, seeds, **options)
    text = "\n\n".join(filter(None, [tables.table(results), tables.differences(results),
                                    tables.still_rising(results)]))
    save_text(out / "table.md", text + "\n")
    save_text(out / "runs.csv", tables.rows(results))
    tables.picture(results, out / "curves.png")
    return text


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
    """Raise ``ValueError`` for a file of these names in a folder without runs, which is not a
    grid's, unless ``force`` replaces it."""
    # OUT/TASK/MODEL/SEED, or with a rate before the seed.
    is_grid = any(chain(out.glob("*/*/*/config.json"), out.glob("*/*/*/*/config.json")))
    for name in names:
        outputs.check(out / name, force or is_grid)
