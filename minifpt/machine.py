"""What the machine gives: cores that share the pieces of one operation, OpenBLAS's threads, and the
memory that the C library keeps.
"""

import ctypes
import math
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from pathlib import Path

import numpy as np


@cache
def cores_and_why():
    """How many cores this process may use, and what it is that says so."""
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return 1, "a system that starts no threads, as in a browser"
    said = {"the machine": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1}
    said["the container's quota"] = max(1, math.floor(min(quota(), 1 << 20)))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        limit = os.environ.get(name) or ""
        if limit.isdecimal() and int(limit):
            said[name] = int(limit)
            break
    why = min(said, key=said.get)
    return said[why], why


def cores():
    """How many cores share the work: a container's quota lowers it, and so does
    ``OMP_NUM_THREADS``, as it does for BLAS."""
    return cores_and_why()[0]


def quota(root="/sys/fs/cgroup", group="/proc/self/cgroup"):
    """How many cores' time the control groups of this process give it: from their ``cpu.max``, or
    in version 1 from ``cpu.cfs_quota_us``; infinity where none is set or none can be read."""
    least = math.inf
    with suppress(OSError, ValueError):
        for line in Path(group).read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":                         # version 2
                base, files = Path(root), ("cpu.max",)
            elif "cpu" in controllers.split(","):
                base, files = Path(root, "cpu"), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            else:
                continue
            folder = base / path.strip().lstrip("/")
            for each in (folder, *folder.parents):        # a group's quota holds for all in it
                if (each / files[0]).exists():
                    said = " ".join((each / name).read_text(encoding="utf-8") for name in files)
                    most, period = said.split()
                    if most not in ("max", "-1"):
                        least = min(least, int(most) / int(period))
    return least


def shared(work, pieces):
    """Call ``work(piece)`` for each of a list, spread over the cores; waits for all.

    A core that is free takes the next piece.  What the pieces are must not depend on the number
    of cores where the result's rounding depends on the pieces.
    """
    helpers = min(1 if one_core.users else cores(), len(pieces)) - 1
    if helpers < 1:
        for piece in pieces:
            work(piece)
        return
    todo, running = deque(pieces), []

    def run():
        while todo:
            try:
                piece = todo.popleft()
            except IndexError:                            # another thread took the last one
                return
            work(piece)
    with suppress(RuntimeError):                          # no further thread can start
        while len(running) < helpers:
            running.append(_team().submit(copy_context().run, run))
    try:
        run()
    finally:
        todo.clear()
        for helper in running:
            if not helper.cancel():
                helper.result()                           # raises what a worker raised


@cache
def _team():
    """The threads that help; they sleep while there is nothing to share."""
    return ThreadPoolExecutor(max(1, cores() - 1), "minifpt")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.cache_clear)  # a child starts without them


class ProcessSetting:
    """A setting of the whole process: the first ``with`` makes it, the last one to end, in
    whichever thread, undoes it.  A forked child starts without it.

    ``make`` is a generator function that makes the setting, yields and undoes it.
    """

    def __init__(self, make):
        self.make, self.__doc__ = make, make.__doc__
        self.lock, self.users, self.made = threading.Lock(), 0, None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def __enter__(self):
        with self.lock:
            if self.users == 0:
                self.made = self.make()
                next(self.made)
            self.users += 1

    def __exit__(self, *error):
        with self.lock:
            if self.users == 0:                           # begun before this process was forked
                return
            self.users -= 1
            if self.users == 0:
                next(self.made, None)

    def _forked(self):
        self.lock = threading.Lock()
        if self.users:
            self.users = 0
            next(self.made, None)


def _openblas(name, result=ctypes.c_int):
    """A function of NumPy's own OpenBLAS, whose names differ by build, or ``None``."""
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
    """Which kernels OpenBLAS chose for this processor (``SkylakeX``), as far as it tells."""
    tell = _openblas("get_corename", ctypes.c_char_p)
    return f"kernels for {tell().decode()}" if tell else "kernels unknown"


_get_threads, _set_threads = _openblas("get_num_threads"), _openblas("set_num_threads")


def blas_threads(n=None):
    """How many threads OpenBLAS gives to a product, once it is set to ``n`` where that is given;
    ``None`` where NumPy has no OpenBLAS."""
    if _get_threads is None or _set_threads is None:
        return None
    if n is not None:
        _set_threads(n)
    return _get_threads()


@ProcessSetting
def single_threaded_blas():
    """Within, each matrix product runs on the core that asks for it: sharing one of attention's
    small products costs more than it gains.  Nothing changes without OpenBLAS."""
    if _get_threads is None or _set_threads is None:
        yield
        return
    before = _get_threads()
    _set_threads(1)
    yield
    _set_threads(before)


@ProcessSetting
def kept_memory():
    """Within, the C library keeps the memory that arrays give back, for the next arrays.

    By default glibc returns each large array to the system, and the system clears every page
    of the next one, which takes up to a fifth of a training step.  At the end glibc's default
    returns and so does the memory.  Does nothing where there is no glibc.
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
    """Within, all runs on the core that asks for it, as in one of several processes."""
    with single_threaded_blas:
        yield
