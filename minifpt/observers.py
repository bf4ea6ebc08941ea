"""What watches a run: each observer is called with the run after each step."""

import signal
import threading
from contextlib import contextmanager

import numpy as np

from .files import signals_handled
from .files.plots import curves
from .files.runs import COLUMNS, save_checkpoint
from .progress import progress_bar
from .tasks.base import check_examples, draw, optional

# The progress bar of a run, short enough for 80 columns, with the accuracy of the last test.
BAR = "{desc} {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}"


class Interrupted(KeyboardInterrupt):
    """A run or a grid was stopped, by Ctrl-C, SIGTERM or an event, and can be resumed.

    step     of the run, ``None`` for a grid.
    folder   of the run or the grid, ``None`` where nothing was written."""

    def __init__(self, step=None, folder=None):
        super().__init__(step, folder)
        self.step, self.folder = step, folder

    def __str__(self):
        return ("stopped" + (f" at step {self.step}" if self.step is not None else "")
                + (f", go on from {self.folder}" if self.folder is not None else ""))


class Tests:
    """Test the model when the run says so, and write ``metrics.csv``.

    A row of the history has the means over the steps since the row before, and loss and accuracy
    on held-out examples.  ``interrupts`` is called between the batches of a test."""

    def __init__(self, folder, interrupts, progress):
        self.folder, self.interrupts, self.progress = folder, interrupts, progress

    def __call__(self, run):
        if not run.is_test_due():
            return
        is_last = run.step == run.settings.steps
        if is_last:                                       # its test may take long
            save(run, self.folder)
        examples = draw_test(run.task, run.settings, run.step, is_last)
        loss, accuracy = run.evaluate(*examples, "test loss", progress=self.progress,
                                      between=lambda: self.interrupts(run))
        losses, accuracies, n = run.since_test.tolist()
        run.since_test[:] = 0
        run.history.append(dict(zip(COLUMNS, (
            run.step, losses / n, accuracies / n, loss, accuracy, round(run.seconds(), 3)),
            strict=True)))
        if self.folder is not None:
            run.history.save(self.folder / "metrics.csv")


class Callback:
    """Call the user's function, which ends the run where it returns ``False``.  A learning rate
    that it gives the optimizer is that of the following steps, times the schedule.  Raises
    ``ValueError`` if other parameters are trainable than before."""

    def __init__(self, function):
        self.function = function

    def __call__(self, run):
        before = run.optimizer.lr
        answer = self.function(run)
        run.is_ended = isinstance(answer, (bool, np.bool_)) and not answer
        trainable = [p for p in run.model.parameters() if p.trainable]
        if [*map(id, trainable)] != [*map(id, run.optimizer.parameters)]:
            raise ValueError("train: the callback froze, thawed or replaced a parameter, expected "
                             "the same ones in the whole run: end it, and start another")
        if run.optimizer.lr != before:
            run.lr = run.optimizer.lr * (run.lr / before if before else 1)


class Checkpoints:
    """Write a checkpoint every so many steps, and at the end."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def __call__(self, run):
        if run.is_done() or run.step % self.every == 0:
            save(run, self.folder)


class Bar:
    """Show the steps, and loss and accuracy of the last test."""

    def __init__(self, bar):
        self.bar = bar

    def __call__(self, run):
        self.bar.update(run.step - self.bar.n)
        if run.history and run.history[-1]["step"] == run.step:
            row = run.history[-1]
            self.bar.set_postfix_str(f"loss {row['train_loss']:.4f}, accuracy "
                                     f"{100 * row['test_accuracy']:.1f} %")


@contextmanager
def interrupts(folder, stop_event):
    """Yield an observer that raises :class:`Interrupted` after Ctrl-C or SIGTERM, or once
    ``stop_event`` is set, unless the run is done.  The first signal lets the step end; a second
    Ctrl-C interrupts at once.  At the end a signal sets a ``threading.Event``."""
    signals = []

    def observe(run):
        is_asked = signals or (stop_event is not None and stop_event.is_set())
        if is_asked and (run.is_test_due() or not run.is_done()):
            raise Interrupted(run.step, folder)

    def handler(signum, frame):
        if signals and signum == signal.SIGINT:
            raise KeyboardInterrupt
        signals.append(signum)
    try:
        with signals_handled(handler, signal.SIGINT, signal.SIGTERM):
            yield observe
    finally:
        if signals and isinstance(stop_event, threading.Event):
            stop_event.set()


def bar_of(run, progress):
    """Return the progress bar of a run."""
    return progress_bar(total=run.settings.steps, initial=run.step, desc=f"{run.task.name:.20}",
                        progress=progress, mininterval=0.3, leave=None, bar_format=BAR)


def save(run, folder):
    """Write a checkpoint into a folder, if there is one.  Raises ``Diverged`` if the last update
    broke the model."""
    if folder is not None:
        if run.batch is not None:
            run.evaluate(*run.batch, "loss")
        save_checkpoint(folder / "checkpoint.npz", run)


def draw_curves(run, folder):
    """Draw the curves of a run into a folder, if there is one, if there was a test, and if the
    picture there is older than ``metrics.csv``: a grid that goes on comes to all finished runs."""
    if folder is None or not run.history:
        return
    picture, table = folder / "curves.png", folder / "metrics.csv"
    if not picture.exists() or picture.stat().st_mtime < table.stat().st_mtime:
        curves(run.history, picture, run.task.name, optional(run.task, "chance"))


def draw_test(task, settings, step, is_last):
    """Return ``(x, y)`` of the test at a step of a run with these settings: in the last one the
    whole test set, unless the run has another number of examples for it."""
    size = settings.final_test_examples if is_last else settings.test_examples
    test = optional(task, "test_set")() if size is None else None
    if test is None:
        rng = np.random.default_rng([settings.seed, 1, step])
        test = draw(task, rng, size or settings.test_examples, "test")
    check_examples(task, test, "test_set")
    return test
