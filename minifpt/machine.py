"""The machine: cores that share the pieces of an operation, OpenBLAS's threads, and the memory that
the C library keeps.
"""

import ctypes
import math
import os
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ContextDecorator, suppress
from contextvars import copy_context
from functools import cache
from pathlib import Path

import numpy as np

IN_BROWSER = sys.platform == "emscripten"               # a tab has no threads, NumPy there no BLAS


@cache
def cores_and_why():
    """Return how many cores this process may use, and what limits them."""
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return 1, "a system that starts no threads, as in a browser"
    limits = {"the machine": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
              else os.cpu_count() or 1}
    limits["the container's quota"] = max(1, math.floor(min(quota(), 1 << 20)))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name) or ""
        if value.isdecimal() and int(value):
            limits[name] = int(value)
            break
    why = min(limits, key=limits.get)
    return limits[why], why


def cores():
    """Return how many cores share the work: those of the machine, limited by a container's quota
    and, as for BLAS, by ``OPENBLAS_NUM_THREADS`` or ``OMP_NUM_THREADS``."""
    return cores_and_why()[0]


def quota(root="/sys/fs/cgroup", group="/proc/self/cgroup"):
    """Return how many cores' time the control groups of this process allow, or infinity.  It is in
    their ``cpu.max``; old systems with version 1 of control groups have no such file."""
    least = math.inf
    with suppress(OSError, ValueError):
        _, path = Path(group).read_text(encoding="utf-8").split("0::", 1)
        folder = Path(root) / path.strip().lstrip("/")
        for each in (folder, *folder.parents):            # it also limits all subgroups
            if (each / "cpu.max").exists():
                most, period = (each / "cpu.max").read_text(encoding="utf-8").split()
                if most != "max":
                    least = min(least, int(most) / int(period))
    return least


def run_in_threads(work, pieces):
    """Call ``work(piece)`` for each piece of a list, spread over the cores; wait for all.

    A free core takes the next piece.  If the result's rounding depends on how the work is cut,
    the pieces must not depend on the number of cores.
    """
    helpers = min(1 if one_core.users else cores(), len(pieces)) - 1
    todo, running = deque(pieces), []                     # threads may share it

    def run():
        while todo:
            try:
                piece = todo.popleft()
            except IndexError:                            # another thread took the last one
                return
            work(piece)
    with suppress(RuntimeError):                          # no more threads can start
        while len(running) < helpers:
            running.append(_team().submit(copy_context().run, run))
    try:
        run()
    finally:
        todo.clear()                                      # after an error nobody takes another
        wait([helper for helper in running if not helper.cancel()])
    for helper in running:
        if not helper.cancelled():
            helper.result()                               # raises the worker's error


@cache
def _team():
    """Return the pool of helper threads, which sleep when all work is done."""
    return ThreadPoolExecutor(max(1, cores() - 1), "minifpt")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.cache_clear)  # a child starts without them


class ProcessSetting(ContextDecorator):
    """A setting of the whole process, for all threads: the first ``with`` makes it, and the end
    of the last ``with`` undoes it.  It may decorate a function.

    ``make`` is a generator function that makes the setting, yields and undoes it.
    """

    def __init__(self, make):
        self.make, self.__doc__ = make, make.__doc__
        self.lock, self.users, self.generator = threading.Lock(), 0, None

    def __enter__(self):
        with self.lock:
            if self.users == 0:
                self.generator = self.make()
                next(self.generator)
            self.users += 1

    def __exit__(self, *error):
        with self.lock:
            self.users -= 1
            if self.users == 0:
                next(self.generator, None)


def _openblas(name, result=ctypes.c_int):
    """Return a function of the OpenBLAS in NumPy, or ``None``; its name depends on the build."""
    try:
        lib = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    except (OSError, AttributeError):
        return None
    for spelling in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
        function = getattr(lib, spelling.format(name), None)
        if function:
            function.restype = result
            return function
    return None


def blas_kernels():
    """Return as text which kernels OpenBLAS chose for this processor, such as ``SkylakeX``."""
    core_name = _openblas("get_corename", ctypes.c_char_p)
    return f"kernels for {core_name().decode()}" if core_name else "kernels unknown"


_get_threads, _set_threads = _openblas("get_num_threads"), _openblas("set_num_threads")


def blas_threads(n=None):
    """Return OpenBLAS's number of threads, ``None`` without OpenBLAS; with ``n``, set it first."""
    if _get_threads is None or _set_threads is None:
        return None
    if n is not None:
        _set_threads(n)
    return _get_threads()


@ProcessSetting
def single_threaded_blas():
    """Run each matrix product on one core within ``with single_threaded_blas:``, because sharing
    a small product costs more than it gains.  Without OpenBLAS nothing changes."""
    before = blas_threads()
    blas_threads(1)
    yield
    blas_threads(before)


@ProcessSetting
def kept_memory():
    """Let the C library keep freed memory for the next arrays within ``with kept_memory:``.

    By default glibc returns each large array to the system, and the system clears every page
    of the next one, which takes up to a fifth of a training step.  The end of the ``with``
    restores glibc's default and returns the memory.  Without glibc nothing changes.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc_trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError, TypeError):
        yield
        return
    mallopt(-4, 0)                                        # M_MMAP_MAX: no mapping of its own
    mallopt(-1, 2**31 - 1)                                # M_TRIM_THRESHOLD: nothing goes back
    yield
    mallopt(-4, 65536)
    mallopt(-1, 128 * 1024)
    malloc_trim(0)


@ProcessSetting
def one_core():
    """Run everything on one core within ``with one_core:``, for one of several processes."""
    with single_threaded_blas:
        yield
