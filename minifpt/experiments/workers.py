"""Do the runs of a grid: one after the other, or on any ``concurrent.futures.Executor``.

A run that was stopped goes on from its checkpoint, so it may be stopped at any moment.  The runs on
an executor stop once a hidden file appears in the grid's folder, which works on other machines that
share the folder, too.
"""

import multiprocessing
import os
import signal
import sys
import threading
import uuid
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from operator import setitem
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from ..files import signals_handled, signals_wait
from ..files.runs import without_empty
from ..machine import one_core

# For child processes: one BLAS thread each, and no import from the working folder.
ENVIRONMENT = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH"


def perform(jobs, folder, bar, executor=None):
    """Do the jobs and return their histories in the same order.

    ``folder`` is the grid's.  The tqdm ``bar`` counts the runs.  An ``executor`` does several runs
    at once, each on one core.  After Ctrl-C, SIGTERM or an error the other runs stop with a
    checkpoint.
    """
    finished = [job.is_finished() for job in jobs]
    if not bar.disable:                                   # finished runs do not count as speed
        bar.n = bar.last_print_n = bar.n + sum(finished)
        bar.initial += sum(finished)
        bar.refresh()
    try:
        if executor is None:
            return in_this_process(jobs, finished, bar)
        return on_executor(executor, jobs, finished, Path(folder), bar)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped, go on from {folder} by the same command") from None
    except BrokenExecutor:
        raise ChildProcessError("a process of the grid was killed, perhaps for lack of memory: the "
                                "same command goes on") from None


def in_this_process(jobs, finished, bar):
    """Do the jobs one after the other."""
    histories, stop = [], threading.Event()
    for job, is_finished in zip(jobs, finished, strict=True):
        histories.append(job(progress=not bar.disable, stop=stop))
        if stop.is_set():                                 # Ctrl-C came in the run's last step
            raise KeyboardInterrupt
        bar.update(0 if is_finished else 1)
    return histories


def on_executor(executor, jobs, finished, folder, bar):
    """Do the jobs on an executor; finished runs are read here."""
    stop = folder.absolute() / f".stop-{uuid.uuid4().hex}"
    futures = {}
    histories = [job() if is_finished else None
                 for job, is_finished in zip(jobs, finished, strict=True)]
    with without_empty(*(job.out for job in jobs)):       # a run removes only what it has made
        try:
            with held_back(signal.SIGINT):                # Ctrl-C is for this process, and waits
                for i, job in enumerate(jobs):
                    if not finished[i]:
                        futures[executor.submit(work, job, stop)] = i
            with signals_handled(signal.default_int_handler, signal.SIGTERM):
                for future in as_completed(futures):
                    histories[futures[future]] = future.result()      # or the run's error
                    if future.result() is None:
                        raise KeyboardInterrupt
                    bar.update()
        except BaseException:
            with signals_handled(signal.SIG_IGN, signal.SIGINT):
                folder.mkdir(parents=True, exist_ok=True)
                stop.touch()
                wait(futures)
                stop.unlink()
            raise
    return histories


@contextmanager
def held_back(signum):
    """Let a signal to this process wait within the ``with``; processes that start there never get
    it."""
    mask = getattr(signal, "pthread_sigmask", lambda *_: None)      # none on Windows
    with signals_wait(signum):
        before = mask(signal.SIG_BLOCK, {signum})         # new processes inherit this, no handler
        try:
            yield
        finally:
            mask(signal.SIG_SETMASK, before)


class Stop(threading.Event):
    """An event that a signal sets, and that is also set while the file of a path is there."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def is_set(self):
        """Return whether the run should stop."""
        return self.got_signal() or self.path.exists()

    def got_signal(self):
        """Return whether a signal came to this process."""
        return super().is_set()


def work(job, path):
    """Do a run in a process of an executor.  Return its history, or ``None`` after a stop."""
    history, stop = None, Stop(path)
    start_child()
    if not stop.is_set():
        with one_core, suppress(KeyboardInterrupt):       # which would end a worker of Dask
            history = job(stop=stop)
    if stop.got_signal() and multiprocessing.parent_process():
        os._exit(1)                                       # its pool or its parent is gone
    return history


class ProcessPool(ProcessPoolExecutor):
    """Processes that end when this one ends, each with one BLAS thread."""

    def __init__(self, n):
        super().__init__(n, multiprocessing.get_context("spawn"), start_child)

    def submit(self, *args):
        """Return the future of a call.  Here new processes start, with these settings."""
        settings = [(os.environ, name, "1") for name in ENVIRONMENT]
        settings.append((sys.modules, "__main__", ModuleType("__main__")))    # the user's would run
        with ExitStack() as undo:
            for table, key, value in settings:
                if key in table:
                    undo.callback(setitem, table, key, table[key])
                else:
                    undo.callback(table.pop, key)
                table[key] = value
            return super().submit(*args)


@cache                                                    # once in a process
def start_child():
    """Let a process of a pool, also of the user's own, end when its parent is gone, a run with a
    checkpoint."""
    parent = multiprocessing.parent_process()

    def watch():
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
        tqdm.set_lock(threading.RLock())                  # its own would outlive a killed process
