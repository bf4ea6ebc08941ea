"""Where the runs of a grid are carried out: here, in several processes, or on a Dask cluster.

While a grid goes on there is a file in its folder.  Each run looks for it from time to time and
stops with a checkpoint when it is gone.  That way a Ctrl-C reaches processes, threads and other
machines alike.
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

from .. import __version__
from ..files import one_line
from ..machine import one_core

PATIENCE = 10                                             # seconds to wait for a cluster's answer
NO_WORKER = 60                                            # seconds to wait when no worker is left


def perform(jobs, folder, bar, processes=1, executor=None):
    """The history of each job, in order.

    ``folder`` is the grid's, which every process sees.  ``bar`` (of tqdm) gets one for each run.
    More than one process, or any ``concurrent.futures.Executor``, runs several at once, each
    with one BLAS thread.
    """
    finished = [job.finished() for job in jobs]
    stopped = f"stopped, go on from {folder} by the same command"
    if not bar.disable:                                   # what was there tells no speed
        bar.n = bar.last_print_n = bar.n + sum(finished)
        bar.initial += sum(finished)
        bar.refresh()
    if processes < 2 and executor is None:
        kept, histories, stop = {}, [], threading.Event()
        for job, known in zip(jobs, finished, strict=True):
            try:
                histories.append(job(progress=not bar.disable, stop=stop, kept=kept))
            except KeyboardInterrupt:
                stop.set()
            if stop.is_set():
                raise KeyboardInterrupt(stopped)
            bar.update(not known)
        return histories
    with (running(Path(folder).absolute()) as sign, one_blas_thread(),
          nullcontext(executor) if executor else pool(
              min(processes, len(jobs)), sign) as workers):
        futures = {}
        try:
            with no_interrupts():                         # for the processes that start here
                for job, known in zip(jobs, finished, strict=True):
                    job = replace(job, out=job.out.absolute())
                    futures[workers.submit(work if executor else pool_work, job, sign,
                                           identity())] = known
            for done in as_they_end(futures, executor):
                if done.result() is None:                 # raises what the run raised
                    raise KeyboardInterrupt
                bar.update(not futures[done])
            return [future.result() for future in futures]
        except BaseException as e:                        # the other runs stop
            sign.unlink(missing_ok=True)
            executor.wait(futures) if isinstance(executor, Cluster) else wait(futures)
            if isinstance(e, KeyboardInterrupt):
                raise KeyboardInterrupt(stopped) from None
            if isinstance(e, BrokenExecutor):
                raise ChildProcessError("a process of the grid was killed, perhaps for want of "
                                        "memory: the same command goes on") from None
            raise


def as_they_end(futures, executor):
    """Yield each future once it is done.  Raises ``ConnectionError`` when a :class:`Cluster` has
    had no worker for ``NO_WORKER`` seconds."""
    if not isinstance(executor, Cluster):
        yield from as_completed(futures)
        return
    left = {*futures}
    while left:
        done, left = wait(left, 1, FIRST_COMPLETED)
        yield from done
        if not done:
            executor.check()


@contextmanager
def running(folder):
    """The path of a new file in the folder; it is there as long as the grid goes on.  This process
    holds a lock on it.  Files that nobody holds are of processes that were killed: they go."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".running-", dir=folder)
    hold(handle)
    for left in folder.glob(".running-*"):
        with suppress(OSError), open(left, "rb") as f:
            if left != Path(name) and hold(f.fileno()):
                left.unlink()
    try:
        yield Path(name)
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)
        if made and not any(folder.iterdir()):
            folder.rmdir()


def hold(handle):
    """Lock an open file for this process; whether that succeeds.  Windows and some network file
    systems have no such lock."""
    try:
        import fcntl
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


class Stop:
    """Tells a run whether its grid has stopped; looks at most twice a second."""

    def __init__(self, sign):
        self.sign, self.next, self.stopped = sign, 0.0, False

    def is_set(self):
        """Is the grid's file gone?"""
        if time.monotonic() >= self.next:
            self.next, self.stopped = time.monotonic() + 0.5, not self.sign.exists()
        return self.stopped


KEPT = {}                                                 # a grid's file -> its tasks, already read


def work(job, sign, expected):
    """One run, in another thread, process or machine; None where it was stopped.  ``expected`` is
    the :func:`identity` of the process that asks for it."""
    if other := difference(identity(), expected):         # of a worker that came later
        raise ConnectionError(f"the worker on {socket.gethostname()}, process {os.getpid()}, has "
                              f"{other}: {SAME}")
    if not sign.exists():
        raise FileNotFoundError(f"{socket.gethostname()} does not see {sign.parent}: expected a "
                                "folder that all machines of the cluster share")
    if sign not in KEPT:                                  # data may have changed since another grid
        KEPT.clear()
    try:
        with one_core:
            return job(stop=Stop(sign), kept=KEPT.setdefault(sign, {}))
    except KeyboardInterrupt:                             # which would end a worker of Dask
        return None


# ------------------------------------------------------------------------- processes


def pool(processes, sign):
    """An executor whose processes end when this one ends, however it does."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"),
                               initializer=follow_parent, initargs=(sign,))


BUSY = threading.Lock()


def pool_work(job, sign, expected):
    """As :func:`work`, in a process of :func:`pool`."""
    with BUSY:
        return work(job, sign, expected)


def follow_parent(sign):
    """Ends this process when the one that started it was killed, or its grid has stopped: its run
    stops first.  A stopped grid's processes are told to end, too, but one that was killed while it
    waited for work has taken the lock of the queue with it, in which the others would wait."""
    def follow():
        while parent_process().is_alive() and sign.exists():
            parent_process().join(1)
        sign.unlink(missing_ok=True)
        with BUSY:                                        # then its result is on its way, and
            pass
        time.sleep(2 * parent_process().is_alive())       # most end by themselves
        with BUSY:
            os._exit(1)
    tqdm.set_lock(threading.RLock())                      # its own for processes outlives a kill
    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def no_interrupts():
    """Within, Ctrl-C waits; processes that are started never get it: the one that starts them
    tells them to stop."""
    if not hasattr(signal, "pthread_sigmask"):            # Windows
        yield
        return
    caught = []
    main = threading.current_thread() is threading.main_thread()
    # The mask is what new processes inherit.  Here another thread may still be handed the signal,
    # and Python would raise in this one.
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
    """Within, processes that are started give BLAS one thread each."""
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
    """Return what the results of a run depend on besides its settings, {what: a text}.  The first
    call reads the package's source; a process that goes on keeps what it found."""
    crc, package = 0, Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix().encode()
        crc = zlib.crc32(path.read_bytes().replace(b"\r\n", b"\n"), zlib.crc32(name, crc))
    return {"minifpt": __version__, "NumPy": np.__version__, "SciPy": scipy.__version__,
            "minifpt's source with CRC": f"{crc:08x}"}


def difference(theirs, ours):
    """Return in what another process's :func:`identity` differs from ours, or ``""``."""
    if not isinstance(theirs, dict):                      # an error
        return f"none of this version, minifpt {ours['minifpt']} ({one_line(theirs)})"
    return " and ".join(f"{what} {theirs.get(what)}, not {value}" for what, value in ours.items()
                        if theirs.get(what) != value)


class Cluster:
    """An executor that runs on a Dask cluster, and knows whether that has workers."""

    def __init__(self, client, address):
        self.client, self.address, self.since = client, address, None
        self.executor = client.get_executor()

    def submit(self, function, *args):
        """A ``concurrent.futures.Future`` of a call."""
        return self.executor.submit(function, *args)

    def count(self):
        """How many workers there are."""
        return len(answer(self.client.nthreads))

    def check(self):
        """Say so when no worker is left.  Raises ``ConnectionError`` where that lasts."""
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
        """Wait until runs that were told to stop have done so, as long as there are workers, and
        no longer than ``PATIENCE`` seconds."""
        end = time.monotonic() + PATIENCE
        with suppress(Exception):                         # the scheduler is gone
            while wait(futures, 0.5).not_done and time.monotonic() < end and self.count():
                pass


def answer(ask):
    """What ``ask()`` gives.  Raises ``TimeoutError`` where that takes too long: distributed itself
    waits without end for a server of another kind."""
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
    """An executor that runs jobs on the Dask cluster whose scheduler has this address; None for
    the address None.

    What goes wrong with the cluster is a ``ConnectionError`` of one line: the package is not
    installed, nobody answers, the scheduler or a worker lacks minifpt, a worker has another
    version of it, a worker dies again and again, no worker is left.
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
    for logger in loggers:                                # what goes wrong is said below, once
        logger.setLevel(logging.CRITICAL + 1)
    try:
        try:
            client = answer(lambda: distributed.Client(address, timeout=PATIENCE,
                                                       set_as_default=False))
        except Exception as e:                            # of many kinds
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
            except Exception as e:                        # it cannot even read the question
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
