"""Train a model on a task: settings, a run, and the loop."""

import math
import os
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from . import parallel, tasks
from .checks import brief, flag, number, one_of, whole
from .fast import kept_transposes
from .files import read_text
from .files.runs import DIVERGED, History, locked
from .layers import Layer
from .machine import kept_memory, single_threaded_blas
from .observers import (
    Bar,
    Callback,
    Checkpoints,
    Interrupted,
    Tests,
    bar_of,
    draw_curves,
    interrupts,
    save,
)
from .optim import Adam, clip_grad_norm, cosine
from .progress import progress_bar
from .record import open_run
from .tasks.base import Task, check_accuracy, draw, dry_run, optional
from .tracing import trace

INPUT = "x, the task's input"
TEST_BATCH, TEST_TOKENS = 64, 8192                        # at most, in one forward pass
TARGET_TESTS = 3                                          # in a row, see Run.is_solved
SCHEDULES = "constant", "cosine", "function"              # the last stands for one in config.json


class Diverged(ValueError):
    """The loss or a gradient is no longer finite."""

    keeps_folder = True                                   # a grid does not repeat the run


@dataclass(kw_only=True)
class Settings:
    """The settings of a run, checked; :func:`train` says what they are."""

    steps: int
    batch_size: int
    lr: float
    seed: int = 0
    schedule: str | Callable[[int], float] = "constant"
    warmup: int = 0
    weight_decay: float = 0.0
    clip: float = 1.0
    eval_every: int = 100
    test_examples: int = 256
    final_test_examples: int | None = None
    target_accuracy: float | None = None

    def __post_init__(self):
        for name in ("steps", "batch_size", "eval_every", "test_examples", "final_test_examples"):
            if getattr(self, name) is not None:
                setattr(self, name, whole("train", name, getattr(self, name)))
        self.seed = whole("train", "seed", self.seed, 0, math.inf)
        self.warmup = whole("train", "warmup", self.warmup, 0)
        for name in ("lr", "clip", "weight_decay"):
            value = getattr(self, name)
            setattr(self, name, number("train", name, value, zero=name == "weight_decay"))
        if self.target_accuracy is not None:
            self.target_accuracy = number("train", "target_accuracy", self.target_accuracy, most=1)
        if not callable(self.schedule):
            one_of("train", "schedule", self.schedule, SCHEDULES)

    @classmethod
    def for_task(cls, task, **settings):
        """Return settings in which each ``None`` is the task's default."""
        explicit = {name: value for name, value in settings.items() if value is not None}
        defaults = tasks.defaults_of(task)
        if "steps" not in explicit:
            defaults["target_accuracy"] = optional(task, "target_accuracy")
        if callable(explicit.get("schedule")):            # the task's warm-up is that of its own
            defaults["warmup"] = 0
        names = {field.name for field in fields(cls)}
        values = cls(**{name: value for name, value in (defaults | explicit).items()
                        if name in names})
        is_long = values.warmup >= values.steps           # the learning rate would not be reached
        if is_long and values.schedule == "cosine" and "warmup" not in explicit:
            values.warmup = values.steps // 10
        return values

    @classmethod
    def from_config(cls, config):
        """Return the settings in a run's ``config.json``."""
        return cls(**{field.name: config[field.name] for field in fields(cls)
                      if field.name in config})

    def as_json(self):
        """Return the settings for ``config.json``."""
        return vars(self) | ({"schedule": "function"} if callable(self.schedule) else {})

    def factor(self, step):
        """Return the factor on the learning rate at a step."""
        if self.schedule == "cosine":
            return cosine(step, self.steps, self.warmup)
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if not callable(self.schedule):
            return rise
        return rise * number("train", "the schedule's factor", self.schedule(step), zero=True)


class Run:
    """A model, a task and settings, and all that changes while the model is trained.

    ``loss`` and ``accuracy`` are those of the last step's ``batch``, ``None`` before a step;
    ``lr`` is the learning rate without the schedule."""

    def __init__(self, model, task, settings):
        parameters = [p for p in model.parameters() if p.trainable]
        if not parameters:
            raise ValueError("train: every parameter is frozen, there is nothing to train")
        self.model, self.task, self.settings = model, task, settings
        self.optimizer = Adam(parameters, settings.lr, weight_decay=settings.weight_decay)
        self.rng, self.lr = np.random.default_rng([settings.seed, 0]), settings.lr
        self.step, self.batch, self.loss, self.accuracy = 0, None, None, None
        self.history, self.since_test = History(), np.zeros(3)       # loss, accuracy, steps
        self.config, self.is_ended, self.began = {}, False, time.perf_counter()

    def is_done(self):
        """Return whether the run has no step left, is solved, or was ended by its callback."""
        return self.step >= self.settings.steps or self.is_ended or self.is_solved()

    def is_solved(self):
        """Return whether the last tests all reached the target accuracy."""
        target, last = self.settings.target_accuracy, self.history[-TARGET_TESTS:]
        return target is not None and len(last) == TARGET_TESTS and all(
            row["test_accuracy"] >= target for row in last)

    def is_test_due(self):
        """Return whether the run's step is one of a test, and has none yet."""
        settings, step = self.settings, self.step
        is_due = step == settings.steps or step % settings.eval_every == 0
        return 0 < step and is_due and not (self.history and self.history[-1]["step"] == step)

    def count(self, loss, accuracy):
        """Count a step."""
        self.loss, self.accuracy = float(loss), float(accuracy)
        self.since_test += [loss, accuracy, 1]
        self.step += 1

    def seconds(self):
        """Return how long the run has taken, also before it was resumed."""
        return time.perf_counter() - self.began

    def evaluate(self, x, y, quantity, **options):
        """Return (loss, accuracy) on examples.  Raises ``Diverged`` where the loss, the
        ``quantity`` of its message, is not finite."""
        loss, accuracy = evaluate(self.model, self.task, x, y, **options)
        if not math.isfinite(loss):
            raise _diverged(f"step {self.step}", quantity, self.model, x[:TEST_BATCH])
        return loss, accuracy


def fit(run, observers=()):
    """Train until the run is done."""
    settings = run.settings
    while not run.is_done():
        run.optimizer.lr = run.lr * settings.factor(run.step)
        x, y = run.batch = draw(run.task, run.rng, settings.batch_size, "train")
        loss, accuracy = step(run.model, run.task, run.optimizer, x, y, settings.clip, run.rng)
        run.count(loss, accuracy)
        for observe in observers:
            observe(run)


def step(model, task, optimizer, x, y, clip, rng):
    """Train one step: forward, backward, clip, Adam.  Return (loss, accuracy)."""
    for p in optimizer.parameters:
        p.grad = None
    logits, cache = parallel.forward_in_parts(model, x, train=True, rng=rng)
    loss, dlogits = task.loss(logits, y)
    if not math.isfinite(loss):
        raise _diverged(f"step {optimizer.t + 1}", "loss", model, x)
    parallel.backward_in_parts(model, dlogits, cache)
    if not math.isfinite(clip_grad_norm(optimizer.parameters, clip)):
        raise _diverged(f"step {optimizer.t + 1}", "gradient", model, x)
    accuracy = task.accuracy(logits, y)
    check_accuracy(task, accuracy)
    optimizer.step()
    return loss, accuracy


def train(model: Layer, task: Task | str | None = None, steps: int | None = None,
          batch_size: int | None = None, lr: float | None = None, seed: int = 0,
          out: str | os.PathLike | None = None, *,
          resume: bool = False, schedule: str | Callable[[int], float] | None = None,
          warmup: int | None = None, weight_decay: float = 0.0, clip: float = 1.0,
          eval_every: int = 100, test_examples: int = 256, final_test_examples: int | None = None,
          checkpoint_every: int = 500, config: dict | None = None, progress: bool = True,
          target_accuracy: float | None = None, stop: Any = None,
          callback: Callable[[Run], Any] | None = None) -> History:
    """Train the trainable parameters of a model on a task, with Adam.

    model             a :class:`minifpt.FPT`, a :class:`minifpt.LanguageModel`, or another
                      :class:`minifpt.layers.Layer` with their ``forward`` and ``backward``.
    task              a :class:`minifpt.tasks.Task`, or a task's name.
    steps, batch_size, lr, schedule, warmup
                      ``None`` takes the task's default, as ``minifpt train TASK`` does.  The
                      schedule is ``"constant"`` or ``"cosine"``, after ``warmup`` steps of rising
                      learning rate, or a function that returns a factor on ``lr`` for each step,
                      0, 1, ...; it has no warm-up by default.  A run of the schedule ``"cosine"``
                      with no more steps than the default warm-up warms up for a tenth of them.
    clip              largest norm of all gradients together.
    eval_every        steps between tests on ``test_examples`` held-out examples.  The last test
                      takes ``final_test_examples`` of them, by default the task's whole test set,
                      if it has one; a run that ``target_accuracy`` or the callback ends has no
                      such test.
    out               folder for ``config.json``, ``metrics.csv``, ``checkpoint.npz`` and
                      ``curves.png``; ``None`` writes nothing.
    resume            continue from the checkpoint in ``out``, to the same bits as a run without
                      interruption.  With more steps than before, the row of the old last step
                      stays, and the next row's training loss counts from there.  Refused if the
                      settings, the data or the model have changed, or if a task does not draw from
                      its generator alone.  A schedule that is a function is not compared with the
                      one before.  A change of the text of the task's file, of minifpt's code, NumPy
                      or BLAS is named on stderr.
    checkpoint_every  steps between checkpoints.
    target_accuracy   the run ends once three tests in a row have reached this accuracy.  ``None``
                      is the task's own, such as 0.995 for bit XOR, unless ``steps`` is given: then
                      all of them are done.
    config            more entries for ``config.json``, such as the trunk's name.
    stop              an object with ``is_set()``, such as a ``threading.Event``.  Once that is
                      true, the run ends as after Ctrl-C.  Ctrl-C and SIGTERM set an event, also
                      during the last step, when they do not end the run.

    callback          a function that is called with the run after each step, see below.

    A callback gets the run, and may read and change it:

    step              the number of steps that are done.
    loss, accuracy    of the last step's batch.
    batch             that batch, ``(x, y)``.  A run that was stopped in a test begins with the
                      callback of that step, without batch and gradients: they are ``None``.
    model, task       those that are trained; ``run.model.save("folder")`` writes the trunk.  The
                      same parameters must stay trainable.  Small frozen matrices are read-only
                      meanwhile: to change one, put another array into ``p.data``.  A checkpoint
                      does not have it.
    history           the rows of the tests so far, a :class:`History`.
    settings          all settings of the run, such as ``run.settings.steps``.
    optimizer         :class:`minifpt.optim.Adam`, with the ``parameters`` and their gradients,
                      ``grad``, which ``clip`` has made smaller.  A learning rate that the callback
                      gives ``run.optimizer.lr`` is that of the next steps, times the schedule.
    lr                the learning rate without the schedule.
    rng               the generator of batches and dropout: a number drawn from it changes the run.
    seconds()         how long the run has taken, also before it was resumed.
    config            the entries of ``config.json``; ``{}`` without ``out``.

    Where the callback returns ``False``, the run writes a checkpoint and ends: its history so far
    is returned, and the run can be resumed.

    A batch of 480 examples x tokens or more runs in parts, side by side on the cores; the same
    bits on any number of them (see ``parallel``).  During the run, glibc keeps freed memory for the
    next arrays (see ``machine.kept_memory``).

    Returns the :class:`History`.  After Ctrl-C or SIGTERM the run finishes its step or breaks off
    its test, writes a checkpoint and raises ``Interrupted``, a ``KeyboardInterrupt`` with the
    fields ``step`` and ``folder``.  Raises ``ValueError`` if ``out`` holds another run, and
    ``Diverged`` if the loss is no longer finite; the last checkpoint stays.
    """
    source = task if isinstance(task, str) else getattr(task, "minifpt_source", None)
    task = tasks.get(task) if isinstance(task, str) else task
    # Raises for missing data, or a task that does not fit the model, before anything is written.
    x, loss = dry_run(model, task)
    settings = Settings.for_task(
        task, steps=steps, batch_size=batch_size, lr=lr, seed=seed, schedule=schedule,
        warmup=warmup, weight_decay=weight_decay, clip=clip, eval_every=eval_every,
        test_examples=test_examples, final_test_examples=final_test_examples,
        target_accuracy=target_accuracy)
    checkpoint_every = whole("train", "checkpoint_every", checkpoint_every)
    resume, progress = flag("train", "resume", resume), flag("train", "progress", progress)
    _check_arguments(out, resume, stop, callback, config)
    if not (resume or math.isfinite(loss)):
        raise _diverged("the start", "loss", model, x)
    run, folder = Run(model, task, settings), None if out is None else Path(out)
    with locked(folder) if folder else nullcontext():
        if folder:
            open_run(folder, resume, run, ({"source": source} if source else {}) | (config or {}))
            if (folder / DIVERGED).exists():              # written by a grid
                raise Diverged(read_text(folder / DIVERGED))
        with interrupts(folder, stop) as stop_if_asked, bar_of(run, progress) as bar, _fast(model):
            observers = [Tests(folder, stop_if_asked, progress),
                         *([Callback(callback)] if callback else []),
                         Checkpoints(folder, checkpoint_every), Bar(bar), stop_if_asked]
            try:
                if run.is_test_due():                     # the run was stopped in this test
                    for observe in observers:
                        observe(run)
                fit(run, observers)
            except Interrupted:
                save(run, folder)
                raise
        draw_curves(run, folder)
    return run.history


def _check_arguments(out, resume, stop, callback, config):
    """Raise ``ValueError`` for arguments of :func:`train` of another kind."""
    if out is None and resume:
        raise ValueError("train: resume needs out, the folder of the run")
    for name, value, fits, expected in (
            ("out", out, isinstance(out, (str, os.PathLike)) and str(out),
             "a path, or None to write nothing"),
            ("stop", stop, callable(getattr(stop, "is_set", None)),
             "an object with is_set(), such as a threading.Event"),
            ("callback", callback, callable(callback), "a function of a run"),
            ("config", config, isinstance(config, dict), "a dictionary, or None")):
        if value is not None and not fits:
            raise ValueError(f"train: {name} is {brief(value)}, expected {expected}")


@contextmanager
def _fast(model):
    """Keep memory, one BLAS thread and the transposes of small frozen matrices during a run."""
    frozen = [p.data for p in model.parameters() if not p.trainable and p.data.ndim == 2]
    with kept_memory, single_threaded_blas, kept_transposes(frozen):
        yield


def _diverged(when, quantity, model, x):
    """Return the error for a loss or gradient that is not finite, with the place of the first."""
    where = first_nonfinite(model, x)
    hint = "" if when == "the start" or where == INPUT else "; try a smaller learning rate"
    return Diverged(f"{when}: the {quantity} is not finite, first in {where}{hint}")


def examples_at_once(tokens):
    """Return how many examples a test takes at once: few long ones, whose attention is large."""
    return max(1, min(TEST_BATCH, TEST_TOKENS // tokens))


def evaluate(model, task, x, y, progress=False, answers=None, between=None):
    """Return (loss, accuracy) on examples of a task, without dropout.

    The list ``answers`` gets the logits.  ``between`` is called before each batch."""
    total, n = np.zeros(2), examples_at_once(x.shape[1])
    starts = range(0, len(x), n)
    with model.all_frozen():
        for i in progress_bar(starts, desc="test", leave=False, delay=2, progress=progress):
            if between is not None:
                between()
            xi, yi = x[i:i + n], y[i:i + n]
            logits, _ = parallel.forward_in_parts(model, xi)
            if answers is not None:
                answers.append(logits)
            loss, accuracy = task.loss(logits, yi)[0], task.accuracy(logits, yi)
            if math.isfinite(loss):
                check_accuracy(task, accuracy)
            total += np.multiply((loss, accuracy), len(xi))
    return tuple(map(float, total / len(x)))


def first_nonfinite(model, x):
    """Return the name of the first value that is infinite or NaN.

    It looks at ``x``, at the parameters, then at the layers' outputs for ``x`` without dropout,
    then at the parameters' gradients, the last one first, as the backward pass goes.
    """
    if not np.isfinite(x).all():
        return INPUT
    for name, p in model.named_parameters():
        if not np.isfinite(p.data).all():
            return name
    with np.errstate(all="ignore"), model.all_frozen(), trace(model) as t:
        model.forward(x)
    for name, y in t.outputs.items():
        if not np.isfinite(y).all():
            return name or "the model's output"
    for name, p in reversed([*model.named_parameters()]):
        if p.grad is not None and not np.isfinite(p.grad).all():
            return f"the gradient of {name}"
    return "the backward pass"
