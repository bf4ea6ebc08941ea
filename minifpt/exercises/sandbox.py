"""Hold other people's code: bubblewrap closes a process in, limits end it.

bubblewrap (``bwrap``) gives the process a system that it can read and not write, no network, no
other process to see, and an empty folder of its own.  The folders of people, of temporary files and
of sockets, the submissions and the files with the answers are empty there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import scipy

try:
    import resource
except ImportError:                                       # Windows
    resource = None

ROOT = str(Path(__file__).resolve().parents[2])           # where minifpt is imported from
MEMORY = 4 << 30                                          # bytes of address space of a process
FILE_SIZE = 100 << 20                                     # bytes of each file that it writes
FOLDER_SIZE = 256 << 20                                   # bytes of its own folder, in memory
PROCESSES = 32                                            # of one file; a careful one starts none
NOBODY = 65534                                            # a user and a group without rights
MARK = "MINIFPT_APART"                                    # environment variable of those processes
CLOSED = ("/run", "/tmp", "/var", "/home", "/root")       # sockets and people's files lie there
# Python's audit events of what starts a process, sends a signal or uses the network.
REFUSED = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.spawn",
           "os.posix_spawn", "os.kill", "os.killpg", "_winapi.CreateProcess", "socket.")


def command(closed=(), answers=()):
    """Return the beginning of a command line that runs a program in bubblewrap.

    closed    folders that are empty there, beside ``CLOSED`` and the home folder.
    answers   files and folders that are empty there though they belong to the package.
    """
    hidden = {os.path.realpath(path) for path in (*CLOSED, Path.home(), *closed)}
    shown = {os.path.realpath(path) for path in (
        sys.prefix, sys.base_prefix, ROOT, *(Path(m.__file__).parents[1] for m in (np, scipy)))}
    mounts = [(path, ["--tmpfs", path]) for path in hidden if os.path.isdir(path)]
    for path in shown:
        if any(is_below(path, each) for each in hidden):
            mounts.append((path, ["--ro-bind", path, path]))
            mounts += [(str(p), ["--perms", "755", "--dir", str(p)]) for p in Path(path).parents
                       if str(p) not in hidden and any(is_below(str(p), h) for h in hidden)]
    mounts += [(path, ["--tmpfs", path] if os.path.isdir(path) else
                ["--ro-bind", os.devnull, path])
               for path in map(os.path.realpath, answers) if os.path.exists(path)]
    mounts.sort(key=lambda mount: len(Path(mount[0]).parts))           # outer folders first
    # Linux limits no process of root's: the child of root's becomes NOBODY (see ``hold``).
    user = ["--cap-drop", "ALL", *(["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
                                   if is_root() else ["--unshare-user"])]
    return ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", *user,
            "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev",
            "--proc", "/proc", *(word for _, words in mounts for word in (
                ["--perms", "1777" if words[1] == "/tmp" else "755", "--size", str(FOLDER_SIZE)]
                * (words[0] == "--tmpfs") + words)), "--chdir", "/tmp"]


def is_root():
    return hasattr(os, "geteuid") and os.geteuid() == 0


def missing():
    """Return why bubblewrap cannot be used here, in one line, or ``""``."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    run = subprocess.run([*command(), sys.executable, "-c", "import numpy"], capture_output=True,
                         text=True, errors="replace")
    return "" if run.returncode == 0 else "bubblewrap (bwrap) fails: " + " ".join(
        (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1].split())


def is_below(path, folder):
    """Return whether a real path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def hold(seconds, parent, is_open=False, is_closed=False):
    """Limit this process: its memory, its files, its processes and its time in seconds of a core,
    where the system has such limits; it ends with ``parent``, the number of the process that
    started it.  Unless it ``is_open``, it starts no process and no connection by Python's own
    functions.  If it ``is_closed``, by bubblewrap, it gives up root."""
    if is_closed and is_root():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if resource:
        for name, most in (("AS", MEMORY), ("FSIZE", FILE_SIZE), ("CORE", 0),
                           ("NPROC", 2 * PROCESSES + (0 if is_closed else tasks())),
                           ("CPU", int(seconds * (os.cpu_count() or 1)) + 10)):
            with contextlib.suppress(ValueError, OSError):             # there is a lower one
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))

    def refuse(event, args):
        if event.startswith(REFUSED):
            raise PermissionError(f"{event}: there is neither network nor another process here")
    if not is_open:
        sys.addaudithook(refuse)

    def follow():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)
    if os.getppid() == parent:                            # bwrap is in between, and does it
        threading.Thread(target=follow, daemon=True).start()


def tasks():
    """Return how many processes and threads the user of this process has, as Linux counts them."""
    if sys.platform != "linux":
        return 1000
    n = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):                # it has ended
            n += len(os.listdir(path / "task")) * (path.stat().st_uid == os.geteuid())
    return n


def marked(mark):
    """Return the numbers of the processes with this mark, where the system tells of them."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*/environ") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):                # it has ended, or is not ours
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                numbers.append(int(path.parent.name))
    return numbers


def kill(process, mark):
    """End a process and all that it started."""
    process.kill()
    for _ in range(100):
        numbers = marked(mark)
        for number in numbers:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
        if not numbers:
            break
    with contextlib.suppress(AttributeError, OSError):    # what it left, where there is no mark
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
