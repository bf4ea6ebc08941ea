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
import tempfile
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import get_context, parent_process
from pathlib import Path

from tqdm import tqdm

from .. import __version__
from ..files import one_line
from ..machine import one_core

PATIENCE = 10                                             # seconds to wait for a cluster's answer


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
                    futures[workers.submit(work if executor else pool_work, job, sign)] = known
            for done in as_completed(futures):
                if done.result() is None:                 # raises what the run raised
                    raise KeyboardInterrupt
                bar.update(not futures[done])
            return [future.result() for future in futures]
        except BaseException as e:                        # the other runs stop
            sign.unlink(missing_ok=True)
            wait(futures)
            if isinstance(e, KeyboardInterrupt):
                raise KeyboardInterrupt(stopped) from None
            if isinstance(e, BrokenExecutor):
                raise ChildProcessError("a process of the grid was killed, perhaps for want of "
                                        "memory: the same command goes on") from None
            raise


@contextmanager
def running(folder):
    """The path of a new file in the folder; it is there as long as the grid goes on."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".running-", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
        if made and not any(folder.iterdir()):
            folder.rmdir()


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


def work(job, sign):
    """One run, in another thread, process or machine; None where it was stopped."""
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


def pool_work(job, sign):
    """As :func:`work`, in a process of :func:`pool`."""
    with BUSY:
        return work(job, sign)


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


def version():
    """Which minifpt runs here."""
    return __version__


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
    installed, nobody answers, the scheduler or a worker lacks minifpt, a worker dies again and
    again.
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
                client.run_on_scheduler(version)
                client.run(version)
            except Exception as e:                        # it cannot even read the question
                raise ConnectionError(f"--dask {address}: expected minifpt where the scheduler and "
                                      f"each worker run ({one_line(e)})") from None
            yield client.get_executor()
    except (distributed.KilledWorker, CancelledError, RuntimeError, ImportError) as e:
        raise ConnectionError(f"--dask {address}: the cluster failed ({one_line(e)}); mend it, and "
                              "the same command goes on") from None
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
