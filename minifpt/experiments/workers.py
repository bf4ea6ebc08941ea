"""Do the runs of a grid: one after the other, or on any ``concurrent.futures.Executor``.

A run that was stopped goes on from its checkpoint, so it may be stopped at any moment.
"""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed

from ..files import signals_handled
from ..files.runs import without_empty
from ..machine import one_core
from ..observers import Interrupted


def perform(jobs, folder, bar, executor=None):
    """Do the jobs and return their histories in the same order.

    ``folder`` is the grid's.  The tqdm ``bar`` counts the runs.  An ``executor`` does several runs
    at once, each on one core.  After Ctrl-C, SIGTERM or an error no other run begins; those that a
    :class:`Pool` does stop with a checkpoint, those of another executor end.
    """
    finished = [job.is_finished() for job in jobs]
    if not bar.disable:                                   # finished runs do not count as speed
        bar.n = bar.last_print_n = bar.n + sum(finished)
        bar.initial += sum(finished)
        bar.refresh()
    try:
        if executor is None:
            return in_this_process(jobs, finished, bar)
        with without_empty(*(job.out for job in jobs)):   # a run removes only what it has made
            return on_executor(executor, jobs, finished, bar)
    except KeyboardInterrupt:
        raise Interrupted(folder=folder) from None
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


def on_executor(executor, jobs, finished, bar):
    """Do the jobs on an executor; finished runs are read here."""
    histories = [job() if is_finished else None
                 for job, is_finished in zip(jobs, finished, strict=True)]
    with signals_handled(signal.default_int_handler, signal.SIGTERM):
        futures = {executor.submit(work, job): i for i, job in enumerate(jobs) if not finished[i]}
        try:
            for future in as_completed(futures):
                histories[futures[future]] = future.result()          # or the run's error
                if future.result() is None:
                    raise KeyboardInterrupt
                bar.update()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return histories


def work(job):
    """Do a run in a process of an executor.  Return its history, or ``None`` after a stop: the
    interrupt itself would end a worker of Dask."""
    try:
        with one_core:
            return job(stop=STOP)
    except KeyboardInterrupt:
        return None


class Pool(ProcessPoolExecutor):
    """Processes with one BLAS thread each, which the end of the ``with`` stops, their runs with a
    checkpoint."""

    def __init__(self, n):
        context = multiprocessing.get_context("spawn")
        self.stop = context.Event()
        super().__init__(n, context, start_worker, (self.stop,))

    def __exit__(self, *error):
        self.stop.set()
        self.shutdown(cancel_futures=True)


STOP = None                                               # in a process of a Pool: its event


def start_worker(stop):
    """Begin a process of a :class:`Pool`: Ctrl-C is for the command, and the process ends with
    it."""
    global STOP
    STOP = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
