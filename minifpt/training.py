"""The training loop."""

import math
import os
import random
import signal
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import parallel
from .checks import arrays_in, brief, flag, number, one_of, whole
from .fast import kept_transposes
from .files import read_text, signals_handled
from .files.plots import curves
from .files.runs import (
    COLUMNS,
    DIVERGED,
    FORMAT,
    History,
    Run,
    crc,
    frozen_crc,
    locked,
    open_folder,
    trained_record,
)
from .layers import Layer, named_layers
from .machine import blas_kernels, kept_memory, single_threaded_blas
from .optim import Adam, clip_grad_norm, cosine
from .progress import progress_bar
from .tasks.base import (
    Task,
    check_accuracy,
    check_examples,
    check_task,
    defaults_of,
    draw,
    member,
)
from .tracing import trace

INPUT = "x, the task's input"
TEST_BATCH, TEST_TOKENS = 64, 8192                        # at most, in one forward pass
COMPARED = 16                                             # examples of each split, see fingerprint
# The progress bar of a run, short enough for 80 columns, with the accuracy of the last test.
BAR = "{desc} {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}"


class Diverged(ValueError):
    """The loss or a gradient is no longer finite."""

    keeps_folder = True                                   # a grid does not repeat the run


def train(model: Layer, task: Task, steps: int | None = None, batch_size: int | None = None,
          lr: float | None = None, seed: int = 0, out: str | os.PathLike | None = None, *,
          resume: bool = False, schedule: str | None = None, warmup: int | None = None,
          weight_decay: float = 0.0, clip: float = 1.0, eval_every: int = 100,
          test_examples: int = 256, last_test: int | None = None, checkpoint_every: int = 500,
          config: dict | None = None, progress: bool = True, until: float | None = None,
          stop: Any = None,
          callback: Callable[[Run], Any] | None = None) -> History:
    """Train the trainable parameters of a model on a task, with Adam.

    model             a :class:`minifpt.FPT`, a :class:`minifpt.LanguageModel`, or another
                      :class:`minifpt.layers.Layer` with their ``forward`` and ``backward``.
    task              a :class:`minifpt.tasks.Task`.
    steps, batch_size, lr, schedule, warmup
                      ``None`` takes the task's default, as ``minifpt train TASK`` does.  The
                      schedule is ``"constant"`` or ``"cosine"``, after ``warmup`` steps of rising
                      learning rate.  A run of the schedule ``"cosine"`` with no more steps
                      than the default warm-up warms up for a tenth of them.
    clip              largest norm of all gradients together.
    eval_every        steps between tests on ``test_examples`` held-out examples.  The last test
                      takes ``last_test`` of them, by default the task's whole test set, if it has
                      one; a run that ``until`` or the callback ends has no such test.
    out               folder for ``config.json``, ``metrics.csv``, ``checkpoint.npz`` and
                      ``curves.png``; ``None`` writes nothing.
    resume            continue from the checkpoint in ``out``, to the same bits as a run without
                      interruption.  With more steps than before, the row of the old last step
                      stays, and the next row's training loss counts from there.  Refused if the
                      settings, the data, the model or a task's loss or accuracy have changed, or
                      if a task does not draw from its generator alone.  A change of minifpt's code,
                      NumPy or BLAS is named on stderr.
    checkpoint_every  steps between checkpoints.
    until             the run ends once three tests in a row have reached this accuracy.  ``None``
                      is the task's own, such as 0.995 for bit XOR, unless ``steps`` is given: then
                      all of them are done.
    config            more entries for ``config.json``, such as the trunk's name.
    stop              an object with ``is_set()``, such as a ``threading.Event``.  Once that is
                      true, the run ends as after Ctrl-C.  Ctrl-C and SIGTERM set an event, also
                      during the last step, when they do not end the run.

    callback          a function that is called with the run after each step.  The run has ``step``,
                      ``loss`` and ``accuracy`` of the step's batch, ``model`` and ``history``.
                      Small frozen matrices are read-only meanwhile: to change one, put another
                      array into ``p.data``.
                      Where the function returns ``False``, the run writes a checkpoint and ends:
                      its history so far is returned, and the run can be resumed.

    A batch of 480 examples x tokens or more runs in parts, side by side on the cores; the same
    bits on any number of them (see ``parallel``).  During the run, glibc keeps freed memory for the
    next arrays (see ``machine.kept_memory``).

    Returns the :class:`History`.  After Ctrl-C or SIGTERM the run finishes its step or breaks off
    its test, writes a checkpoint and raises ``KeyboardInterrupt``.  Raises ``ValueError`` if
    ``out`` holds another run, and ``Diverged`` if the loss is no longer finite; the last checkpoint
    stays.
    """
    # Raises for missing data, or a task that does not fit the model, before anything is written.
    x, loss = first_look(model, task)
    settings = run_settings(
        task, steps=steps, batch_size=batch_size, lr=lr, seed=seed, schedule=schedule,
        warmup=warmup, weight_decay=weight_decay, clip=clip, eval_every=eval_every,
        test_examples=test_examples, last_test=last_test, until=until)
    checkpoint_every = whole("train", "checkpoint_every", checkpoint_every)
    resume, progress = flag("train", "resume", resume), flag("train", "progress", progress)
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
    if not (resume or math.isfinite(loss)):
        raise _diverged("the start", "loss", model, x)
    parameters = [p for p in model.parameters() if p.trainable]
    if not parameters:
        raise ValueError("train: every parameter is frozen, there is nothing to train")
    settings = {"task": task.name, "options": member(task, "options"), **(config or {}),
                **settings}
    if out is not None:                                   # reading all data may take long
        parts = settings.get("fingerprint", {}) | task_fingerprint(task) | model_fingerprint(model)
        built = getattr(model, "built", {}) | {"trained": trained_record(model)}
        settings |= {"built": built, "fingerprint": parts, "format": FORMAT,
                     "made_with": made_with()}
    optimizer = Adam(parameters, settings["lr"], weight_decay=settings["weight_decay"])
    run = Run(model, optimizer, np.random.default_rng([settings["seed"], 0]), settings)
    if out is None:
        _loop(model, task, run, None, checkpoint_every, progress, stop, callback)
        return run.history
    out = Path(out)
    with locked(out):
        open_folder(out, resume, run)
        if 0 < run.step < settings["steps"]:              # of a run that goes on
            check_repeats(task)
        if (out / DIVERGED).exists():                     # written by a grid
            raise Diverged(read_text(out / DIVERGED))
        _loop(model, task, run, out, checkpoint_every, progress, stop, callback)
        if run.history:                                   # none after an early end
            curves(run.history, out / "curves.png", task.name, member(task, "chance"))
    return run.history


def run_settings(task, **settings):
    """Return the settings of a run, checked, with the task's default for each that is ``None``.
    Raises ``ValueError`` for values out of range."""
    has_warmup, defaults = settings["warmup"] is not None, defaults_of(task)
    until = settings["until"]
    if until is None and settings["steps"] is None:
        until = member(task, "until")
    settings["until"] = None if until is None else number("train", "until", until, most=1)
    settings |= {name: defaults[name] for name, value in settings.items()
                 if value is None and name in defaults}
    for name in ("steps", "batch_size", "eval_every", "test_examples", "last_test"):
        if settings[name] is not None:
            settings[name] = whole("train", name, settings[name])
    settings["seed"] = whole("train", "seed", settings["seed"], 0, math.inf)
    settings["warmup"] = whole("train", "warmup", settings["warmup"], 0)
    for name in ("lr", "clip", "weight_decay"):
        settings[name] = number("train", name, settings[name], zero=name == "weight_decay")
    one_of("train", "schedule", settings["schedule"], ("constant", "cosine"))
    is_long = settings["warmup"] >= settings["steps"]     # the learning rate would not be reached
    if is_long and settings["schedule"] == "cosine" and not has_warmup:
        settings["warmup"] = settings["steps"] // 10
    return settings


def first_look(model, task):
    """Return an example of a task, and the model's loss on it.  Raises ``ValueError`` if task or
    model lack a method, or if a method returns the wrong kind of value."""
    check_task(task, f"train: {brief(task)}")
    if isinstance(model, type) or not all(hasattr(model, part) for part in (
            "forward", "backward", "named_parameters", "all_frozen")):
        raise ValueError(f"train: the model is {brief(model)}, expected a minifpt.FPT or "
                         "LanguageModel, or another minifpt.layers.Layer")
    def global_state():
        state = [np.asarray(part).tobytes() for part in np.random.get_state()]   # noqa: NPY002
        return state, random.getstate()
    before = global_state()
    for split in ("train", "test"):                       # both are there; the second is looked at
        x, y = draw(task, np.random.default_rng(0), 1, split)
    if global_state() != before:
        raise ValueError(f"train: {task.name}: batch draws from np.random or random, expected from "
                         "the generator that it gets: no seed would repeat the run")
    with model.all_frozen():
        logits, _ = model.forward(x)
    pair = task.loss(logits, y)
    form = logits.shape, logits.dtype
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and np.ndim(pair[0]) == 0
            and (getattr(pair[1], "shape", None), getattr(pair[1], "dtype", None)) == form):
        raise ValueError(f"train: {task.name}: loss must return a number and its gradient, of the "
                         f"logits' shape {logits.shape} and dtype {logits.dtype}")
    if math.isfinite(pair[0]):                            # otherwise the caller raises Diverged
        check_accuracy(task, task.accuracy(logits, y))
    return x, float(pair[0])


def check_repeats(task):
    """Raise ``ValueError`` for a task that draws other examples from the same generator: it keeps
    a place in its data, or a generator of its own, which a resumed run begins anew."""
    first, again = (task.batch(np.random.default_rng(0), COMPARED, "train") for _ in range(2))
    if not all(map(np.array_equal, first, again)):
        raise ValueError(f"train: {task.name}: batch returns other examples for the same "
                         "generator, so a resumed run would not see those of a whole one: draw "
                         "from the generator alone, or begin a new run in another folder")


def task_fingerprint(task):
    """Return {part: text} of the parts of a task on which a run depends: a resumed run must have
    the same.  ``files.runs.PARTS`` has the names of the parts.

    data    a CRC-32 by the task's method ``fingerprint``, or of some examples and the arrays that
            the task holds.  Data elsewhere, in files or globals, are not compared.
    loss    loss and accuracy of some examples for random logits.
    """
    examples = [task.batch(np.random.default_rng(0), COMPARED, split)
                for split in ("train", "test")]
    arrays = [np.asarray(a) for pair in examples for a in pair]
    arrays += [a for a in arrays_in(task) if not a.dtype.hasobject]       # some are read by a draw
    y = examples[1][1]
    logits = np.random.default_rng(0).standard_normal(
        (len(y), task.output_tokens, task.output_dim))
    return {"data": member(task, "fingerprint")() or crc(arrays),
            "loss": f"{task.loss(logits, y)[0]:.4g}, {task.accuracy(logits, y):.4g}"}


def model_fingerprint(model):
    """Return {part: text} of the parts of a model on which a run depends, as
    :func:`task_fingerprint` does for a task.

    model   a CRC-32 of the settings of our layers, such as dropout and number of heads.
    frozen  a CRC-32 of the frozen weights, columns included.
    """
    settings = [(name, [(key, value) for key, value in vars(layer).items()
                        if isinstance(value, (int, float, str)) or is_dataclass(value)])
                for name, layer in named_layers(model)
                if type(layer).__module__.startswith(f"{__package__}.")]
    return {"model": f"{zlib.crc32(repr(settings).encode()):08x}", "frozen": frozen_crc(model)}


@cache
def made_with():
    """Return {part: text}: minifpt's code and the libraries, which decide a run's bits, too."""
    package = Path(__file__).parent
    code = [path.read_bytes() for folder in ("", "tasks", "trunks")
            for path in sorted((package / folder).glob("*.py"))]
    return {"code of minifpt": f"{zlib.crc32(b''.join(code)):08x}", "NumPy": np.__version__,
            "BLAS": blas_kernels()}


def _loop(model, task, run, out, checkpoint_every, progress, stop_event, callback):
    """Train, test and save until the run's last step, or until the callback returns ``False``."""
    settings, steps, begin = run.settings, run.settings["steps"], time.perf_counter() - run.seconds
    batch, is_end, where = None, run.is_solved(), "" if out is None else f", go on from {out}"

    def save():
        """Write a checkpoint, unless the last update broke the model."""
        if out is None:
            return
        if batch is not None and not math.isfinite(evaluate(model, task, *batch)[0]):
            raise _diverged(f"step {run.step}", "loss", model, batch[0])
        run.seconds = time.perf_counter() - begin
        run.save(out / "checkpoint.npz")

    bar = progress_bar(total=steps, initial=run.step, desc=f"{task.name:.20}", progress=progress,
                       mininterval=0.3, leave=None, bar_format=BAR)
    frozen = [p.data for p in model.parameters() if not p.trainable and p.data.ndim == 2]
    with (bar, kept_memory, single_threaded_blas, kept_transposes(frozen),
          _interrupts(stop_event) as is_stopped):
        while not is_end and (run.step < steps or run.is_test_due()):
            if not run.is_test_due():                     # it is after a stop in a test
                run.optimizer.lr = learning_rate(settings, run.step)
                batch = draw(task, run.rng, settings["batch_size"], "train")
                loss, accuracy = step(model, task, run.optimizer, *batch, settings["clip"], run.rng)
                run.step += 1
                run.loss, run.accuracy = float(loss), float(accuracy)
                run.sums += [loss, accuracy, 1]           # of the steps since the last test
                bar.update()
            is_last, stop = run.step == steps, is_stopped()
            if run.is_test_due():
                if is_last:                               # its test may take long
                    save()
                try:
                    _test(model, task, run, begin, bar, progress, is_stopped)
                except KeyboardInterrupt:
                    save()
                    raise KeyboardInterrupt(f"stopped at step {run.step}{where}") from None
                if out is not None:
                    run.history.save(out / "metrics.csv")
            answer = None if callback is None else callback(run)
            is_done = is_last or run.is_solved()
            is_end = is_done or (isinstance(answer, (bool, np.bool_)) and not answer)
            if is_end or stop or run.step % checkpoint_every == 0:
                save()
            if stop and not is_done:
                raise KeyboardInterrupt(f"stopped at step {run.step}{where}")


def _test(model, task, run, begin, bar, progress, is_stopped):
    """Append a row to the run's history: the means of its steps since the last row, and the loss
    and accuracy on held-out examples."""
    test = held_out(task, run.settings, run.step, run.step == run.settings["steps"])
    loss, accuracy = evaluate(model, task, *test, progress, is_stopped=is_stopped)
    if not math.isfinite(loss):
        raise _diverged(f"step {run.step}", "test loss", model, test[0][:TEST_BATCH])
    losses, accuracies, n = run.sums.tolist()
    train_loss, train_accuracy = losses / n, accuracies / n
    run.sums[:] = 0
    run.history.append(dict(zip(COLUMNS, (
        run.step, train_loss, train_accuracy, loss, accuracy,
        round(time.perf_counter() - begin, 3)), strict=True)))
    bar.set_postfix_str(f"loss {train_loss:.4f}, accuracy {100 * accuracy:.1f} %")


def held_out(task, settings, step, is_last):
    """Return ``(x, y)`` of the test at a step of a run with these settings: in the last one the
    whole test set, unless the run has another number of examples for it."""
    size = settings.get("last_test") if is_last else settings["test_examples"]
    test = member(task, "test_set")() if size is None else None
    if test is None:
        rng = np.random.default_rng([settings["seed"], 1, step])
        test = draw(task, rng, size or settings["test_examples"], "test")
    check_examples(task, test, "test_set")
    return test


def learning_rate(settings, step):
    """Return the learning rate of a step, from a run's settings."""
    lr, warmup = settings["lr"], settings["warmup"]
    if settings["schedule"] == "cosine":
        return lr * cosine(step, settings["steps"], warmup)
    return lr * min(1.0, (step + 1) / warmup) if warmup else lr


def step(model, task, optimizer, x, y, clip, rng):
    """Train one step: forward, backward, clip, Adam.  Return (loss, accuracy)."""
    for p in optimizer.parameters:
        p.grad = None
    logits, cache = parallel.forward_in_parts(model, x, train=True, rng=rng)
    loss, dlogits = task.loss(logits, y)
    if math.isfinite(loss):
        parallel.backward_in_parts(model, dlogits, cache)
        if math.isfinite(clip_grad_norm(optimizer.parameters, clip)):
            accuracy = task.accuracy(logits, y)
            check_accuracy(task, accuracy)
            optimizer.step()
            return loss, accuracy
    quantity = "gradient" if math.isfinite(loss) else "loss"
    raise _diverged(f"step {optimizer.t + 1}", quantity, model, x)


def _diverged(when, quantity, model, x):
    """Return the error for a loss or gradient that is not finite, with the place of the first."""
    where = first_nonfinite(model, x)
    hint = "" if when == "the start" or where == INPUT else "; try a smaller learning rate"
    return Diverged(f"{when}: the {quantity} is not finite, first in {where}{hint}")


def examples_at_once(tokens):
    """Return how many examples a test takes at once: few long ones, whose attention is large."""
    return max(1, min(TEST_BATCH, TEST_TOKENS // tokens))


def evaluate(model, task, x, y, progress=False, answers=None, is_stopped=None):
    """Return (loss, accuracy) on examples of a task, without dropout.

    The list ``answers`` gets the logits.  Raises ``KeyboardInterrupt`` once ``is_stopped()``."""
    total, n = np.zeros(2), examples_at_once(x.shape[1])
    starts = range(0, len(x), n)
    with model.all_frozen():
        for i in progress_bar(starts, desc="test", leave=False, delay=2, progress=progress):
            if is_stopped is not None and is_stopped():
                raise KeyboardInterrupt
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


@contextmanager
def _interrupts(stop_event):
    """Yield a function that says whether the run should stop: after Ctrl-C or SIGTERM, or once
    ``stop_event`` is set.  The first signal lets the step end; a second Ctrl-C interrupts at once.
    At the end a signal sets a ``threading.Event``."""
    signals = []

    def is_stopped():
        return bool(signals) or (stop_event is not None and stop_event.is_set())

    def handler(signum, frame):
        if signals and signum == signal.SIGINT:
            raise KeyboardInterrupt
        signals.append(signum)
    try:
        with signals_handled(handler, signal.SIGINT, signal.SIGTERM):
            yield is_stopped
    finally:
        if signals and isinstance(stop_event, threading.Event):
            stop_event.set()
