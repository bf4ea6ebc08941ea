"""The paper's tables as grids of runs: task x trunk x seed, each run in a folder of its own.

A grid that was stopped goes on where it stood: a finished run is read, not run again, and
an unfinished one resumes from its checkpoint.  Each trunk may choose its learning rate, on
examples that no test sees.
"""

import inspect
import itertools
import re
import socket
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import tasks
from ..checks import whole
from ..files import outputs, write_beside
from ..files.runs import COLUMNS, DIVERGED, History, crc
from ..fpt import FPT
from ..freeze import FreezeMask
from ..progress import progress_bar
from ..reports import plots
from ..training import Diverged, fingerprint, first_look, train
from ..trunks.names import USERS_OWN, TrunkSpec, code_crc, load_object
from ..users import users_code
from .tables import (
    CHOICE,
    CSV,
    KIND,
    Grid,
    differences,
    diverged,
    picture,
    rows,
    sweep_picture,
    table,
)
from .workers import perform

CHOICES = 2                                               # validation seeds, unless told otherwise
MOST_SEEDS = 1000                                         # of one grid
VALIDATION_EXAMPLES = 2000                                # by which a learning rate is chosen


def task_class(name):
    """The class of a task by its name, or by ``FILE.py:NAME`` for one of the user's own."""
    return load_object(name) if USERS_OWN.fullmatch(name) else tasks.task_class(name)


def make_task(name, given=None):
    """The task of that name; ``FILE.py:NAME`` is a class or function of the user's own.

    given   {option: value}, or text as it stands on a command line, which is read as what the
            option's default is.  ``data`` is left out where the task has no such option.
    """
    function = task_class(name)
    known, options = inspect.signature(function).parameters, {}
    for option, value in (given or {}).items():
        if option in known:
            options[option] = read_option(f"{name}: {option}", value, known[option])
        elif option != "data":
            options[option] = value                       # an error, which make() words
    return tasks.make(function, name, options)


def read_option(what, value, parameter):
    """An option's value, of the type of its default or its annotation, where it is text."""
    kind = next((k for k in (parameter.annotation, type(parameter.default))
                 if k in (bool, int, float)), str)
    if not isinstance(value, str) or kind is str:
        return value
    try:
        return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{what} must be {expected}, got '{value}'") from None


def run(task, model, out=None, *, freeze="fpt", seed=0, dropout=None, source=None, config=None,
        **options):
    """One run of the paper's protocol: build the FPT for a task, freeze it, train it.

    ``source`` is what :func:`make_task` made the task from, if not by its own name; it is kept
    in ``config.json``, as is the model, so that the run can be read back, and ``config``.
    ``options`` go to :func:`minifpt.train`.  Returns (model, history).
    """
    fpt = FPT.for_task(task, model, freeze, seed, dropout)
    source, spec = source or task.name, TrunkSpec.parse(model)
    code = code_crc(source, spec.text)
    config = (config or {}) | ({"code_crc": code} if code else {}) | {
              "source": source, "model": spec.text,
              "freeze": str(FreezeMask.parse(freeze)),
              "trunk_crc": crc(p.data for _, p in fpt.trunk.named_parameters()),
              "dropout": getattr(fpt.trunk.config, "dropout", 0.0)}
    return fpt, train(fpt, task, seed=seed, out=out, config=config, **options)


def inputs(task, source, model):
    """CRC-32 of what a run depends on that is in files: {what: text}."""
    spec = TrunkSpec.parse(model)
    crcs = {"code in files of your own": code_crc(source, spec.text), "data": fingerprint(task)}
    if spec.kind in ("weights", "statistics"):
        trunk = TrunkSpec.parse(spec.name or spec.text).make()
        crcs["weights"] = crc(p.data for _, p in trunk.named_parameters())
    return crcs


@dataclass(frozen=True)
class Job:
    """One run of a grid, in words that another process understands.  ``inputs`` are those of the
    process that asks for it: another machine may have other files under the same paths."""

    task: str
    task_options: dict
    model: str
    seed: int
    out: Path
    settings: dict
    validation: bool = False
    inputs: dict = field(default_factory=dict)

    def __call__(self, progress=False, stop=None, kept=None):
        """The run's :class:`minifpt.History`.  One that has come to its end is read, and checked
        to be this one.

        stop  as for :func:`minifpt.train`.
        kept  a dict that keeps the task for the next run of the same grid.

        A run that diverged is not run again: its folder has a file ``diverged.txt``.  For the
        choice of a learning rate it is the worst of all; elsewhere it raises ``Diverged``.
        """
        with users_code():
            task = self.made({} if kept is None else kept)
            here = inputs(task, self.task, self.model) if self.inputs else {}
        for what, value in self.inputs.items():
            if here[what] != value:
                raise ValueError(f"{self.out}: {socket.gethostname()} has other {what} for "
                                 f"{self.task} and {self.model} than the machine that asks")
        task = Validation(task) if self.validation else task
        resume = (self.out / "config.json").exists()
        try:
            # A run that diverges says so itself.  What the user's code raises may be of a class
            # that another process does not know.
            with np.errstate(all="ignore"), users_code():
                return run(task, self.model, self.out, seed=self.seed, resume=resume, stop=stop,
                           progress=progress, source=self.task, **self.settings)[1]
        except Diverged as e:
            text = str(e)
            if (self.out / "config.json").exists():
                write_beside(self.out / DIVERGED, lambda f: f.write(text), "w")
            if not self.validation:
                raise Diverged(f"{self.out}: {text}") from None
            at = re.match(r"step (\d+)", text)
            return History([dict.fromkeys(COLUMNS, np.nan) | {"step": int(at[1]) if at else 0}])

    def made(self, kept):
        """Its task.  One of the user's own may change as it is used: each run gets a new one."""
        if USERS_OWN.fullmatch(self.task):
            return make_task(self.task, self.task_options)
        key = self.task, repr(self.task_options)
        if key not in kept:
            kept.clear()                                  # one at a time: a task may hold much data
            kept[key] = make_task(self.task, self.task_options)
        return kept[key]

    def finished(self):
        """Has the run come to its end, as far as its folder tells at a glance?"""
        try:
            return ((self.out / DIVERGED).exists() or History.load(self.out / "metrics.csv")[-1][
                "step"] == self.settings["steps"])
        except (OSError, ValueError, LookupError):
            return False


class Validation:
    """A task that is tested on validation draws, where it has them, else on fresh training
    draws: what a learning rate may be chosen by.  The last test has ``VALIDATION_EXAMPLES``,
    the same for all trunks, learning rates and seeds."""

    def __init__(self, task):
        self.task, self.drawn = task, None
        self.options = getattr(task, "options", {}) | {"validation": VALIDATION_EXAMPLES}
        self.split = "validation" if "validation" in getattr(task, "splits", ()) else "train"

    def __getattr__(self, name):
        return getattr(self.task, name)

    def batch(self, rng, size, split):
        """As the task's, with other examples to test on."""
        return self.task.batch(rng, size, self.split if split == "test" else split)

    def test_set(self):
        """``(x, y)`` of the examples that a learning rate is chosen by."""
        if self.drawn is None:
            self.drawn = self.batch(np.random.default_rng(0xC401CE), VALIDATION_EXAMPLES, "test")
        return self.drawn


@dataclass(frozen=True)
class Column:
    """A task of a grid: its name, or ``FILE.py:CLASS``; its options; what its runs take in place
    of its defaults; and what its folder and its column are called, its own name by default."""

    task: str
    options: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True)
class Arm:
    """A trunk of a grid, by what ``--model`` takes, with what is frozen, its label, and learning
    rates that it tries besides the grid's."""

    model: str
    freeze: str = "fpt"
    label: str = ""
    rates: tuple = ()

    def tries(self, rates):
        """The learning rates that it tries in a grid of these; none where the grid tries none."""
        return list(dict.fromkeys([*rates, *self.rates])) if rates else []

    @property
    def folder(self):
        """What the folder of its runs is called: arms of other trunks or masks have another."""
        mask = str(FreezeMask.parse(self.freeze))
        name = TrunkSpec.parse(self.model).folder
        if mask == str(FreezeMask.fpt()):
            return name
        return f"{name}~{re.sub(r'[^a-z0-9_,.]', '-', mask)}-{zlib.crc32(mask.encode()):08x}"

    def called(self):
        """Its label, or the trunk's and what is trained besides the paper's groups."""
        mask = FreezeMask.parse(self.freeze)
        label = TrunkSpec.parse(self.model).label
        return self.label or (label if mask == FreezeMask.fpt() else f"{label}, frozen: {mask}")


def options_of_seed(name, options, seed):
    """A task's options in the run of one seed.  Where the task's class names an option in
    ``redrawn``, such as the draw of the labels, that option is the seed unless it is given."""
    option = getattr(task_class(name), "redrawn", None)
    return ({option: seed} if option else {}) | options


def columns_of(names, task_options, options):
    """The :class:`Column` of each task's name; each option goes to the tasks that have it."""
    columns, taken = [], {"data"}
    for name in dict.fromkeys(names):                     # each once
        known = inspect.signature(task_class(name)).parameters
        columns.append(Column(name, {k: v for k, v in task_options.items() if k in known}, options))
        taken |= {*known}
    for option in {*task_options} - taken:
        raise ValueError(f"compare: none of the tasks has an option '{option}'")
    return columns


def grid(out, task_names, models, seeds, *, rates=(), choices=CHOICES, task_options=None,
         options=None, jobs=1, executor=None, progress=True, ready=None):
    """Run every task with every model and seed; a :class:`Grid`.

    task_names    names of tasks, or :class:`Column` objects, which say more.
    models        what ``--model`` takes, or :class:`Arm` objects.
    rates         learning rates to try: each trunk takes the one with the highest final accuracy
                  on validation draws, in the mean over ``choices`` further seeds.  Equals are
                  told apart by the mean accuracy over the whole run.
    task_options  each goes to the named tasks that have it.
    options       replace a task's own defaults of steps, batch_size, lr, ... for all of them.
    jobs          how many processes; or give an ``executor``, whose workers all see ``out``.
    ready         called when everything has been checked, before the first run.

    Each run has its folder ``OUT/TASK/MODEL/SEED``, where rates are tried
    ``OUT/TASK/MODEL/RATE/SEED``; those of a choice are in ``OUT/choice``.  Raises ``Diverged``
    when a run of the results diverges, or one at each learning rate.
    """
    out, jobs = Path(out), whole("compare", "jobs", jobs)
    if not (task_names and models):
        raise ValueError("compare: expected at least one task and one model")
    for what, number in ("seeds", len(seeds)), ("seeds to choose by", choices if rates else 1):
        if not 0 < number <= MOST_SEEDS:
            raise ValueError(f"compare: {number} {what}, expected 1 to {MOST_SEEDS}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, expected a folder")
    arms = [x if isinstance(x, Arm) else Arm(str(x)) for x in dict.fromkeys(models)]
    tried = [*rates, *(rate for arm in arms for rate in arm.rates)]
    if any(not 0 < rate < np.inf for rate in tried):
        raise ValueError(f"compare: learning rates {tried}, expected positive numbers")
    seeds, rates = list(dict.fromkeys(seeds)), list(dict.fromkeys(rates))
    chosen_by = range(CHOICE, CHOICE + choices)
    if rates and {*seeds} & {*chosen_by}:
        raise ValueError(f"compare: the seeds {CHOICE} to {chosen_by[-1]} choose the learning "
                         "rates, expected others for the results")
    columns = columns_of([t for t in task_names if not isinstance(t, Column)],
                         task_options or {}, options or {})
    columns += [t for t in task_names if isinstance(t, Column)]
    made = [make_task(column.task, column.options) for column in columns]
    titles = [column.title or task.name for column, task in zip(columns, made, strict=True)]
    folders = {title: re.sub(r"[^\w,-]", "-", title) for title in titles}
    if len({*folders.values()}) < len(titles):
        raise ValueError(f"compare: two tasks have one name: {', '.join(titles)}")
    if "choice" in folders.values():
        raise ValueError("compare: a task is called choice, as is the folder of what is tried")
    # Missing data or weights, and a trunk that does not fit, show before the first run.
    read = {}
    for (column, task), arm in itertools.product(zip(columns, made, strict=True), arms):
        first_look(FPT.for_task(task, arm.model, arm.freeze), task)
        if executor:
            read[id(task), arm] = inputs(task, column.task, arm.model)
    # Two trunks may have one label: two files of one name in two folders.
    labels = [arm.called() for arm in arms]
    labels = [x if labels.count(x) == 1 else f"{arm.model}, {arm.freeze}" if arm.freeze != "fpt"
              else arm.model for arm, x in zip(arms, labels, strict=True)]

    if ready is not None:
        ready()

    def perform_all(seeds, rates_of, choice=False):
        """{task: {trunk's label: {learning rate: [History, ...]}}}, one history a seed."""
        found, places, queue = {}, [], []
        for (column, task, title), (arm, label) in itertools.product(
                zip(columns, made, titles, strict=True), zip(arms, labels, strict=True)):
            settings = tasks.defaults_of(task) | column.settings | {"freeze": arm.freeze}
            of = found.setdefault(title, {}).setdefault(label, {})
            for rate in rates_of(title, label, arm) or [settings["lr"]]:
                folder = out / ("choice" if choice else "") / folders[title] / arm.folder
                if rates:
                    folder /= f"{rate:g}" if float(f"{rate:g}") == rate else repr(rate)
                queue += [Job(column.task, options_of_seed(column.task, column.options, seed),
                              arm.model, seed, folder / str(seed), settings | {"lr": rate}, choice,
                              read.get((id(task), arm), {}))
                          for seed in seeds]
                places += [of.setdefault(rate, [])] * len(seeds)
        for histories, history in zip(places, perform(queue, out, bar, jobs, executor),
                                      strict=True):
            histories.append(history)
        return found

    tries = sum(len(arm.tries(rates)) for arm in arms)
    with progress_bar(total=len(made) * (tries * choices + len(arms) * len(seeds)), unit="run",
              progress=progress) as bar:
        sweeps = perform_all(chosen_by, lambda task, label, arm: arm.tries(rates),
                             choice=True) if rates else {}
        best = {(task, label): [best_rate(task, label, tried)]
                for task, trunks in sweeps.items() for label, tried in trunks.items()}
        found = perform_all(seeds, lambda task, label, arm: best.get((task, label)))
    results = {task: {label: histories for label, of in trunks.items() for histories in of.values()}
               for task, trunks in found.items()}
    used = {task: {label: rate for label, of in trunks.items() for rate in of}
            for task, trunks in found.items()}
    return Grid(results, sweeps, used, seeds)


def best_rate(task, label, tried):
    """The learning rate that a trunk takes among ``tried``, {learning rate: [History, ...]}."""
    if all(map(diverged, tried.values())):
        raise Diverged(f"compare: {label} on {task} diverged at every learning rate, "
                       f"{', '.join(f'{rate:g}' for rate in tried)}: try smaller ones")
    return max(tried, key=lambda rate: score(tried[rate]))


def score(histories):
    """What a learning rate is chosen by: final accuracy, then that over the whole run.  One at
    which a run diverged is worse than all others."""
    if diverged(histories):
        return -np.inf, -np.inf
    _, curves = plots.common(histories, "test_accuracy")
    return curves[:, -1].mean(), curves.mean()


def compare(out, task_names, models, seeds, **options):
    """Run a grid, write ``OUT/table.md``, ``runs.csv``, ``curves.png`` and, where learning rates
    were chosen, ``sweep.png``; returns the table and the differences between its arms.  Files
    that are not ours are not replaced."""
    out = Path(out)
    check_outputs(out, "table.md", "runs.csv", "curves.png", *["sweep.png"] * bool(
        options.get("rates")))
    found = grid(out, task_names, models, seeds, **options)
    text = "\n\n".join(filter(None, [table(found), differences(found)]))
    outputs.write_text(out / "table.md", KIND, text + "\n\n")
    outputs.write_csv(out / "runs.csv", CSV, rows(found))
    picture(found.results, out / "curves.png")
    if found.sweeps:
        sweep_picture(found.sweeps, out / "sweep.png")
    elif outputs.is_output(out / "sweep.png", KIND):      # of another grid in this folder
        (out / "sweep.png").unlink()
    return text


def check_outputs(out, *names, columns=CSV):
    """Raise a ``ValueError`` for a file of these names that is not ours to replace."""
    for name in names:
        outputs.check(out / name, columns if name.endswith(".csv") else KIND)
