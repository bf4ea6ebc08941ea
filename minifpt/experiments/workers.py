"""Carry out the runs of a grid: in this process, in several processes, or on a Dask cluster.

A **sign**, a file in the grid's folder, exists as long as the grid goes on.  Each run looks for it
from time to time and stops with a checkpoint when it is gone.  So Ctrl-C reaches processes, threads
and other machines alike.
"""

import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from multiprocessing import get_context, parent_process
from pathlib import Path

import numpy as np
import scipy
from tqdm import tqdm

from ..files import one_line
from ..machine import one_core

PATIENCE = 10                                             # seconds to wait for a cluster's answer
NO_WORKER = 60                                            # seconds to wait for a worker


def perform(jobs, folder, bar, processes=1, executor=None):
    """Do the jobs and return their histories in the same order.

    ``folder`` is the grid's, which every process sees.  The tqdm ``bar`` counts the runs.  Several
    ``processes``, or a ``concurrent.futures.Executor``, do several runs at once, each with one BLAS
    thread.
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
            bar.update(not is_finished)
        return histories
    with (running(Path(folder).absolute()) as sign, one_blas_thread(),
          nullcontext(executor) if executor else pool(
              min(processes, len(jobs)), sign) as workers):
        futures = {}
        try:
            with no_interrupts():                         # the pool's processes start here
                for job, is_finished in zip(jobs, finished, strict=True):
                    job = replace(job, out=job.out.absolute())
                    futures[workers.submit(work if executor else pool_work, job, sign,
                                           identity())] = is_finished
            for future in as_they_end(futures, executor):
                if future.result() is None:               # or the run's error is raised
                    raise KeyboardInterrupt
                bar.update(not futures[future])
            return [future.result() for future in futures]
        except BaseException as e:                        # the other runs stop
            sign.unlink(missing_ok=True)
            executor.wait(futures) if isinstance(executor, Cluster) else wait(futures)
            if isinstance(e, KeyboardInterrupt):
                raise KeyboardInterrupt(stopped) from None
            if isinstance(e, BrokenExecutor):
                raise ChildProcessError("a process of the grid was killed, perhaps for lack of "
                                        "memory: the same command goes on") from None
            raise


def as_they_end(futures, executor):
    """Yield each future once it is done.

    Raises ``ConnectionError`` when a :class:`Cluster` has had no worker for ``NO_WORKER`` seconds.
    """
    if not isinstance(executor, Cluster):
        yield from as_completed(futures)
        return
    pending = {*futures}
    while pending:
        finished, pending = wait(pending, 1, FIRST_COMPLETED)
        yield from finished
        if not finished:
            executor.check()


@contextmanager
def running(folder):
    """Give the path of a new sign in the folder, which this process locks and removes at the end.

    Signs without a lock are left over from processes that were killed; they are removed."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".running-", dir=folder)
    lock(handle)
    for sign in folder.glob(".running-*"):
        with suppress(OSError), open(sign, "rb") as f:
            if sign != Path(name) and lock(f.fileno()):
                sign.unlink()
    try:
        yield Path(name)
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)
        for path in sorted(folder.rglob("*"), reverse=True) + [folder] if is_new else []:
            with suppress(OSError):                       # runs that fail at once may leave empty
                path.rmdir()                              # folders to each other


def lock(handle):
    """Lock an open file for this process and return whether that succeeds.

    Windows and some network file systems have no such lock."""
    try:
        import fcntl
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


class Stop:
    """Tells a run whether its grid has stopped; looks for the sign at most twice a second."""

    def __init__(self, sign):
        self.sign, self.next, self.stopped = sign, 0.0, False

    def is_set(self):
        """Return whether the grid's sign is gone."""
        if time.monotonic() >= self.next:
            self.next, self.stopped = time.monotonic() + 0.5, not self.sign.exists()
        return self.stopped


CACHED_TASKS = {}                                         # {a grid's sign: its tasks, with data}


def work(job, sign, expected):
    """Do one run in another thread, process or machine; return ``None`` where it was stopped.

    ``expected`` is the :func:`identity` of the process that asks for the run."""
    if other := difference(identity(), expected):         # the worker may have come later
        raise ConnectionError(f"the worker on {socket.gethostname()}, process {os.getpid()}, has "
                              f"{other}: {SAME}")
    if not sign.exists():
        raise FileNotFoundError(f"{socket.gethostname()} does not see {sign.parent}: expected a "
                                "folder that all machines of the cluster share")
    if sign not in CACHED_TASKS:                          # another grid may need other data
        CACHED_TASKS.clear()
    try:
        with one_core:
            return job(stop=Stop(sign), cache=CACHED_TASKS.setdefault(sign, {}))
    except KeyboardInterrupt:                             # would end a worker of Dask
        return None


# ------------------------------------------------------------------------- processes


def pool(processes, sign):
    """Return an executor whose processes end when this one ends, even when it is killed."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"),
                               initializer=follow_parent, initargs=(sign,))


BUSY = threading.Lock()                                   # held during a run


def pool_work(job, sign, expected):
    """Do the same as :func:`work` in a process of :func:`pool`."""
    with BUSY:
        return work(job, sign, expected)


def follow_parent(sign):
    """End this process, after its run has stopped, when its parent was killed or its grid stopped.

    A stopped grid also tells its processes to end.  But a process that was killed while it waited
    for work still holds the lock of the queue, and the others would wait for that forever.  The
    executor then sends SIGTERM to the others, which could end them while they write a file."""
    def follow():
        while parent_process().is_alive() and sign.exists():
            parent_process().join(1)
        sign.unlink(missing_ok=True)
        with BUSY:                                        # then the run's result is on its way
            pass
        time.sleep(2 * parent_process().is_alive())       # most processes end by themselves
        with BUSY:
            os._exit(1)
    if os.name != "nt":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())                      # tqdm's lock of processes outlives a kill
    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def no_interrupts():
    """Delay Ctrl-C until the block ends; processes that start in the block never get it.

    Their parent tells them to stop."""
    if not hasattr(signal, "pthread_sigmask"):            # Windows
        yield
        return
    caught = []
    main = threading.current_thread() is threading.main_thread()
    # New processes inherit the mask.  In this process another thread may still get the signal, and
    # Python would raise KeyboardInterrupt in the main thread.
    handler = signal.signal(signal.SIGINT, lambda *_: caught.append(1)) if main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    if caught:
        raise KeyboardInterrupt


@contextmanager
def one_blas_thread():
    """Give BLAS one thread in each process that starts in the block."""
    names = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


# ------------------------------------------------------------------------------ Dask


SAME = "expected the same on all machines; install it there and restart the worker"


@cache
def identity():
    """Return the versions that the results of a run depend on, {name: text}.

    The first call reads the package's source; later calls return the same."""
    crc, package = 0, Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix().encode()
        crc = zlib.crc32(path.read_bytes().replace(b"\r\n", b"\n"), zlib.crc32(name, crc))
    version = sys.modules[__name__.partition(".")[0]].__version__
    return {"minifpt": version, "NumPy": np.__version__, "SciPy": scipy.__version__,
            "minifpt's source with CRC": f"{crc:08x}"}


def difference(theirs, ours):
    """Return how another process's :func:`identity` differs from ours, or ``""``."""
    if not isinstance(theirs, dict):                      # an error
        return f"none of this version, minifpt {ours['minifpt']} ({one_line(theirs)})"
    return " and ".join(f"{name} {theirs.get(name)}, not {text}" for name, text in ours.items()
                        if theirs.get(name) != text)


class Cluster:
    """An executor that runs on a Dask cluster and knows how many workers that has."""

    def __init__(self, client, address):
        self.client, self.address, self.since = client, address, None
        self.executor = client.get_executor()

    def submit(self, function, *args):
        """Return the ``concurrent.futures.Future`` of a call."""
        return self.executor.submit(function, *args)

    def count(self):
        """Return the number of workers."""
        return len(answer(self.client.nthreads))

    def check(self):
        """Print a line when no worker is left; raise ``ConnectionError`` when none comes."""
        if self.count():
            self.since = None
        elif self.since is None:
            self.since = time.monotonic()
            tqdm.write(f"minifpt: --dask {self.address}: no worker is left; waiting up to "
                       f"{NO_WORKER} s for one", file=sys.stderr)
        elif time.monotonic() - self.since > NO_WORKER:
            raise ConnectionError(f"--dask {self.address}: no worker came within {NO_WORKER} s: "
                                  "start some, and the same command goes on")

    def wait(self, futures):
        """Wait for runs to stop, while there are workers, at most ``PATIENCE`` seconds."""
        end = time.monotonic() + PATIENCE
        with suppress(Exception):                         # the scheduler is gone
            while wait(futures, 0.5).not_done and time.monotonic() < end and self.count():
                pass


def answer(ask):
    """Return ``ask()``; raise ``TimeoutError`` where that takes too long.

    The package distributed itself waits forever for a server of another kind."""
    future = Future()

    def thread():
        try:
            future.set_result(ask())
        except Exception as e:
            future.set_exception(e)
    threading.Thread(target=thread, daemon=True).start()
    return future.result(2 * PATIENCE)


@contextmanager
def cluster(address):
    """Give an executor on the Dask cluster whose scheduler has this address; ``None`` for ``None``.

    Any failure of the cluster is a ``ConnectionError`` of one line: the package is not installed,
    nobody answers, the scheduler or a worker lacks minifpt or has another version of it, a worker
    dies again and again, no worker is left.
    """
    if address is None:
        yield None
        return
    try:
        import distributed
    except ImportError:
        raise ConnectionError("--dask needs the package distributed: pip install distributed"
                              ) from None
    if not re.fullmatch(r"((tcp|tls|wss?)://)?[^/\s]+:\d{1,5}", address):
        raise ConnectionError(f"--dask '{address}': expected an address like tcp://HOST:8786")
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:                                # the errors below say it once
        logger.setLevel(logging.CRITICAL + 1)
    try:
        try:
            client = answer(lambda: distributed.Client(address, timeout=PATIENCE,
                                                       set_as_default=False))
        except Exception as e:                            # many classes
            raise ConnectionError(f"--dask {address}: no Dask scheduler answers there "
                                  f"({one_line(e)})") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except TimeoutError:
                raise ConnectionError(f"--dask {address}: this scheduler has no worker") from None
            try:
                client.run_on_scheduler(identity)
                answers = client.run(identity, on_error="return")
            except Exception as e:                        # it cannot import minifpt
                raise ConnectionError(f"--dask {address}: expected minifpt where the scheduler and "
                                      f"each worker run ({one_line(e)})") from None
            for worker, theirs in answers.items():
                if other := difference(theirs, identity()):
                    raise ConnectionError(f"--dask {address}: the worker {worker} has {other}: "
                                          f"{SAME}")
            yield Cluster(client, address)
    except (distributed.KilledWorker, CancelledError, RuntimeError, ImportError) as e:
        raise ConnectionError(f"--dask {address}: the cluster failed ({one_line(e)}); mend it, and "
                              "the same command goes on") from None
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
