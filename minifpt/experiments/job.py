"""One run of a grid: its task by name, its model by name, training, and what it left."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import tasks
from ..files import read_json, save_text
from ..files.runs import COLUMNS, DIVERGED, History, crc
from ..fpt import FPT
from ..freeze import FreezeMask
from ..tasks import member
from ..training import Diverged, fingerprint, train
from ..trunks import TrunkSpec
from ..user_files import USERS_OWN, code_crc
from ..users import users_code

VALIDATION_EXAMPLES = 2000                                # used to choose a learning rate


def run(task, model, out=None, *, freeze="fpt", seed=0, dropout=None, source=None, config=None,
        adapt=None, start=None, **options):
    """Do one run of the paper's protocol: build the FPT for a task, freeze it, train it.

    ``source`` is the name by which ``tasks.get`` made the task, by default the task's own.
    ``config.json`` holds it, the model and ``config``, so that the run can be read back.
    ``options`` go to :func:`minifpt.train`.  Returns (model, history).
    """
    fpt = FPT.for_task(task, model, freeze, seed, dropout, adapt, start)
    source, spec, config = source or task.name, TrunkSpec.parse(model), config or {}
    parts = {"weights": crc(p.data for _, p in fpt.trunk.named_parameters()),
             "code": code_crc(source, spec.text), "functions": None}
    config = config | {
        "source": source, "model": spec.text, "freeze": str(FreezeMask.parse(freeze)),
        "dropout": getattr(fpt.trunk.config, "dropout", 0.0), "adapt": adapt, "start": start,
        "fingerprint": parts | config.get("fingerprint", {})}
    return fpt, train(fpt, task, seed=seed, out=out, config=config, **options)


@dataclass(frozen=True)
class Job:
    """One run of a grid, as text and numbers that another process understands."""

    task: str
    task_options: dict
    model: str
    seed: int
    out: Path
    settings: dict
    validation: bool = False

    def __call__(self, progress=False, stop=None, known_tasks=None):
        """Do the run and return its :class:`minifpt.History`; read it where it has been done.

        stop         as for :func:`minifpt.train`.
        known_tasks  a dictionary that keeps the task for the next run of the same grid.

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
                task = self.make_task({} if known_tasks is None else known_tasks)
                return run(Validation(task) if self.validation else task, self.model, self.out,
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

    def make_task(self, known_tasks):
        """Return the task, from ``known_tasks`` if it is there.

        A task of the user's own may change as it is used, so each run gets a new one."""
        if USERS_OWN.fullmatch(self.task):
            return tasks.get(self.task, **self.task_options)
        key = self.task, repr(self.task_options)
        if key not in known_tasks:
            known_tasks.clear()                           # one at a time: a task may hold much data
            known_tasks[key] = tasks.get(self.task, **self.task_options)
        return known_tasks[key]

    def is_finished(self):
        """Return whether the run has ended, by a quick look at its folder."""
        try:
            return ((self.out / DIVERGED).exists() or History.load(self.out / "metrics.csv")[-1][
                "step"] == self.settings["steps"])
        except (OSError, ValueError, LookupError):
            return False


class Validation:
    """A task whose tests use its validation split, or fresh training draws where it has none.

    Learning rates are chosen by it.  The last test of a run has ``VALIDATION_EXAMPLES`` examples,
    the same for all trunks, learning rates and seeds."""

    def __init__(self, task):
        self.task, self.validation_set = task, None
        self.options = member(task, "options") | {"validation": VALIDATION_EXAMPLES}
        self.split = "validation" if "validation" in member(task, "splits") else "train"

    def __getattr__(self, name):
        if name == "task":                                # a copy asks before it has one
            raise AttributeError(name)
        return getattr(self.task, name)

    def fingerprint(self):
        """Return that of the task."""
        return fingerprint(self.task)["data"]

    def batch(self, rng, size, split):
        """Return a batch of the task, with validation examples for the split ``test``."""
        return self.task.batch(rng, size, self.split if split == "test" else split)

    def test_set(self):
        """Return ``(x, y)`` of the validation examples."""
        if self.validation_set is None:
            rng = np.random.default_rng(0xC401CE)
            self.validation_set = self.batch(rng, VALIDATION_EXAMPLES, "test")
        return self.validation_set
