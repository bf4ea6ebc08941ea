"""Carry out the runs of a grid: in this process, in child processes, or on a Dask cluster.

A run that was stopped goes on from its checkpoint, so it may be stopped at any moment.  A child
process gets its run by stdin and stops when that closes: when the parent closes it, after Ctrl-C or
an error, and when the parent was killed.
"""

import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from ..files import one_line
from ..files.runs import without_empty
from ..machine import one_core

PATIENCE = 10                                             # seconds to wait for a cluster
BLAS = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"
COMMAND = sys.executable, "-P", "-m", f"{__package__}.workers"


def perform(jobs, folder, bar, processes=1, executor=None):
    """Do the jobs and return their histories in the same order.

    ``folder`` is the grid's.  The tqdm ``bar`` counts the runs.  Several ``processes``, or a
    :class:`Cluster`, do several runs at once, each on one core.  After Ctrl-C or an error the other
    runs stop with a checkpoint.
    """
    finished = [job.is_finished() for job in jobs]
    stopped = f"stopped, go on from {folder} by the same command"
    if not bar.disable:                                   # finished runs do not count as speed
        bar.n = bar.last_print_n = bar.n + sum(finished)
        bar.initial += sum(finished)
        bar.refresh()
    if processes < 2 and executor is None:
        cached, histories, stop = {}, [], threading.Event()
        for job, is_finished in zip(jobs, finished, strict=True):
            try:
                histories.append(job(progress=not bar.disable, stop=stop, cache=cached))
            except KeyboardInterrupt:
                stop.set()
            if stop.is_set():
                raise KeyboardInterrupt(stopped)
            bar.update(0 if is_finished else 1)
        return histories
    workers = executor or Children(min(processes, len(jobs)))
    with without_empty(*(job.out for job in jobs)):       # a run removes only what it has made
        futures = {workers.submit(job, Path(folder)): is_finished
                   for job, is_finished in zip(jobs, finished, strict=True)}
        try:
            for future in as_completed(futures):
                future.result()                           # or the run's error is raised
                bar.update(0 if futures[future] else 1)
        except BaseException as e:
            workers.stop(futures)
            if isinstance(e, KeyboardInterrupt):
                raise KeyboardInterrupt(stopped) from None
            raise
    return [future.result() for future in futures]


# ------------------------------------------------------------------------- processes


class Children:
    """Does each run in a child process, at most ``n`` at a time."""

    def __init__(self, n):
        self.threads, self.children, self.stopped = ThreadPoolExecutor(n), set(), False
        self.environment = os.environ | dict.fromkeys(BLAS, "1") | {
            "PYTHONPATH": os.pathsep.join(sys.path)}

    def submit(self, job, folder):
        """Return the ``concurrent.futures.Future`` of a run's history."""
        return self.threads.submit(self.run, job)

    def run(self, job):
        """Do a run in a child process, and return its history or raise its error."""
        if job.is_finished():
            return job()                                  # only reads it
        try:
            with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env=self.environment, process_group=0) as child:  # no Ctrl-C
                self.children.add(child)
                child.stdin.write(pickle.dumps(job))
                child.stdin.flush()
                if self.stopped:
                    child.stdin.close()
                result = pickle.load(child.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise ChildProcessError("a process of the grid was killed, perhaps for lack of "
                                    "memory: the same command goes on") from None
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self, futures):
        """Let all runs stop, and wait until they have; another Ctrl-C does not end the wait."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
        try:
            self.stopped = True
            self.threads.shutdown(wait=False, cancel_futures=True)
            for child in [*self.children]:
                with suppress(BrokenPipeError):
                    child.stdin.close()
            self.threads.shutdown()
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)


def child():
    """Do the run that comes by stdin, and write its history or its error to stdout."""
    job, stop = pickle.load(sys.stdin.buffer), threading.Event()

    def wait_for_the_end():
        os.read(sys.stdin.fileno(), 1)                    # returns when stdin closes
        stop.set()
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    output, sys.stdout = sys.stdout.buffer, sys.stderr    # for what a user's own task prints
    try:
        with one_core:
            result = job(stop=stop)
    except (Exception, KeyboardInterrupt) as e:
        result = e
    output.write(pickle.dumps(result))
    output.flush()


# ------------------------------------------------------------------------------ Dask


@cache
def versions():
    """Return the versions that the results of a run depend on, {name: text}."""
    crc, package = 0, Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        crc = zlib.crc32(path.read_bytes().replace(b"\r\n", b"\n"), crc)
    return {"NumPy": np.__version__, "SciPy": scipy.__version__, "source of minifpt": f"{crc:08x}"}


class OccasionalCheck:
    """Asks a Dask event at most twice a second whether it is set."""

    def __init__(self, event):
        self.event, self.next, self.stopped = event, 0.0, False

    def is_set(self):
        """Return whether the event is set."""
        if time.monotonic() >= self.next:
            self.next, self.stopped = time.monotonic() + 0.5, self.event.is_set()
        return self.stopped


def work(job, folder, event):
    """Do one run on a machine of a cluster; return ``None`` where it was stopped."""
    if not folder.exists():
        raise FileNotFoundError(f"{socket.gethostname()} does not see {folder}: expected a folder "
                                "that all machines of the cluster share")
    stop = OccasionalCheck(event)
    with one_core, suppress(KeyboardInterrupt):           # which would end a worker of Dask
        return None if stop.is_set() else job(stop=stop)


class Cluster:
    """Does the runs on a Dask cluster; ``event`` tells them to stop."""

    def __init__(self, client, event):
        self.executor, self.event = client.get_executor(), event

    def submit(self, job, folder):
        """Return the ``concurrent.futures.Future`` of a run's history."""
        folder.mkdir(parents=True, exist_ok=True)
        job = replace(job, out=job.out.absolute())
        return self.executor.submit(work, job, folder.absolute(), self.event)

    def stop(self, futures):
        """Let all runs stop, and wait until they have, at most ``PATIENCE`` seconds."""
        with suppress(Exception):                         # the scheduler is gone
            self.event.set()
            wait(futures, PATIENCE)


@contextmanager
def cluster(address):
    """Give the :class:`Cluster` whose scheduler has this address; ``None`` for ``None``.

    Any failure of the cluster is a ``ConnectionError`` of one line.
    """
    if address is None:
        yield None
        return
    if not re.fullmatch(r"((tcp|tls|wss?)://)?[^/\s]+:\d{1,5}", address):
        raise ConnectionError(f"--dask '{address}': expected an address like tcp://HOST:8786")
    try:
        import distributed
    except ImportError:
        raise ConnectionError("--dask needs the package distributed: pip install distributed"
                              ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)     # the errors below say it
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except Exception as e:                                # many classes
        raise ConnectionError(f"--dask {address}: no Dask scheduler answers there ({one_line(e)})"
                              ) from None
    try:
        with client:
            yield Cluster(client, distributed.Event(client=client))
    except (distributed.KilledWorker, CancelledError, RuntimeError, ImportError) as e:
        raise ConnectionError(f"--dask {address}: the cluster failed ({one_line(e)}); mend it, and "
                              "the same command goes on") from None


if __name__ == "__main__":
    child()
