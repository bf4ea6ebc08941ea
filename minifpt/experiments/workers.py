"""Do the runs of a grid: one after the other, or on any ``concurrent.futures.Executor``.

A run that was stopped goes on from its checkpoint, so it may be stopped at any moment.
"""

import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from itertools import chain

from ..files import signals_handled
from ..machine import one_core
from ..observers import Interrupted


def perform(jobs, folder, bar, executor=None, progress=True):
    """Do the jobs and return their histories in the same order.

    ``folder`` is the grid's.  The tqdm ``bar`` counts the runs; where output is redirected, a line
    on stderr for each does, unless ``progress`` is false.  An ``executor`` does several runs at
    once, each on one core.  After Ctrl-C, SIGTERM or an error no other run begins; those that a
    :class:`Pool` does stop with a checkpoint, those of another executor end.
    """
    histories, todo = {}, [i for i, job in enumerate(jobs) if not job.is_finished()]
    finished = sorted({*range(len(jobs))} - {*todo})
    bar.n += len(finished)
    if not bar.disable:                                   # finished runs do not count as speed
        bar.last_print_n = bar.n
        bar.initial += len(finished)
        bar.refresh()
    try:
        for i, history in chain(
                in_this_process(jobs, finished, False),
                in_this_process(jobs, todo, not bar.disable) if executor is None else
                on_executor(executor, jobs, todo)):
            histories[i] = history
            if i in todo:
                bar.update()
                bar.n += bar.disable                  # then update does nothing
                if bar.disable and progress:
                    split = "validation" if jobs[i].validation else "test"
                    print(f"{bar.n} of {bar.total} runs: {jobs[i].out}, "
                          f"{100 * history[-1]['test_accuracy']:.1f} % {split} accuracy",
                          file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        raise Interrupted(folder=folder) from None
    except BrokenExecutor:
        raise ChildProcessError("a process of the grid was killed, perhaps for lack of memory: the "
                                "same command goes on; in a script the call with jobs stands below "
                                "if __name__ == '__main__':") from None
    return [histories[i] for i in range(len(jobs))]


def in_this_process(jobs, chosen, progress):
    """Do the chosen jobs one after the other, and yield the number and the history of each."""
    stop = threading.Event()
    for i in chosen:
        yield i, jobs[i](progress=progress, stop=stop)
        if stop.is_set():                                 # Ctrl-C came in the run's last step
            raise KeyboardInterrupt


def on_executor(executor, jobs, chosen):
    """Do the chosen jobs on an executor, and yield the number and the history of each."""
    with signals_handled(signal.default_int_handler, signal.SIGTERM):
        futures = {executor.submit(work, jobs[i]): i for i in chosen}
        try:
            for future in as_completed(futures):
                history = future.result()                 # or the run's error
                if history is None:
                    raise KeyboardInterrupt
                yield futures[future], history
        except BaseException:
            for future in futures:
                future.cancel()
            raise


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

    def submit(self, *call):
        """Submit a call.  Ctrl-C waits meanwhile, and in a process that this starts until it is
        ready for it: the terminal sends it to all processes."""
        if not hasattr(signal, "pthread_sigmask"):        # Windows
            return super().submit(*call)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(*call)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

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
