"""Keep other people's code from doing harm: what a process may do from now on.

On Linux the kernel holds the process: seccomp refuses new processes, the network, signals to
other processes and changes of a file's mode and times; Landlock refuses to write outside the
process's home and to read other people's submissions.  Both need no rights and no program, and
neither can be undone.  Elsewhere Python's audit hook refuses the same by the names of its events.
The hook stops a careless program.  A program that means harm gets past it.
"""

import ctypes
import functools
import os
import platform
import signal
import struct
import subprocess  # noqa: F401  (_replace takes its fork_exec away)
import sys
from pathlib import Path

MEMORY = 4 << 30                                          # bytes of address space of a process
FILE_SIZE = 100 << 20                                     # bytes of each file that it writes

# Python's audit events: what starts a process or sends a signal, ...
NO_PROCESS = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.spawn",
              "os.posix_spawn", "os.kill", "os.killpg", "_winapi.CreateProcess")
# ... what changes a file -> where among its arguments numbers of open folders begin, ...
NO_CHANGE = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.rename": 2, "os.link": 2,
             "os.symlink": 2, "os.chmod": 2, "os.chown": 3, "os.utime": 3, "os.truncate": 2,
             "os.setxattr": 4, "os.removexattr": 2}
NO_LOOK = ("os.listdir", "os.scandir", "os.chdir")
# ... and modules that open files or run code where no event tells of it.
NO_IMPORT = ("_sqlite3", "_dbm", "_gdbm", "readline", "_interpreters", "_xxsubinterpreters",
             "_posixshmem")

# Linux: name of the machine -> its number, and the numbers of its system calls.  "own" are those
# that may only be aimed at the process itself, by their first argument.
CALLS = {
    "x86_64": (0xC000003E, {
        "clone": [56], "clone3": [435], "own": [62, 234, 203, 142, 144, 314, 302],
        "refused": [57, 58, 59, 322,                      # fork, vfork, execve, execveat
                    41, 425,                              # socket, io_uring_setup
                    200, 424, 129, 297, 101, 310, 311,    # tkill ... ptrace, process_vm_*
                    141, 251, 240, 29,                    # setpriority, ioprio_set, mq, shm
                    90, 91, 268, 452, 92, 93, 94, 260,    # chmod, chown and their relatives
                    132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 463, 466]}),  # times, xattr
    "aarch64": (0xC00000B7, {
        "clone": [220], "clone3": [435], "own": [129, 131, 122, 118, 119, 274, 261],
        "refused": [221, 281, 198, 425, 130, 424, 138, 240, 117, 270, 271, 140, 30, 180, 194,
                    52, 53, 452, 54, 55, 88, 5, 6, 7, 14, 15, 16, 463, 466]})}
# Landlock's rights, by their bits: to write a file, to read it, to list a folder, and all but to
# run a file, which seccomp refuses.
WRITE_FILE, READ_FILE, READ_DIR, ALL = 1 << 1, 1 << 2, 1 << 3, (1 << 15) - 2


def by_kernel():
    """Return whether the kernel holds a closed process; else Python's audit hook does."""
    return has_seccomp() and landlock_version() >= 3      # from 3 on it covers truncation


def protection():
    """Return a sentence for the teacher: kernel or Python, which holds a closed process."""
    return ("The kernel held each file in its own folder (Landlock, seccomp)." if by_kernel() else
            "Only Python held these files: a program that means harm gets past it. Check files of "
            "people whom you do not know in a container; 'minifpt grade --help' has the command.")


def limit(seconds):
    """Forbid this process to start others and to use the network.  Limit its memory, its files
    and its time, in seconds of a core, where the system has such limits."""
    try:
        import resource
        for name, most in (("AS", MEMORY), ("FSIZE", FILE_SIZE), ("CORE", 0),
                           ("CPU", int(seconds * (os.cpu_count() or 1)) + 10),
                           *[("NPROC", 1)] * (sys.platform == "darwin")):     # not of threads
            try:
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
            except (ValueError, OSError):                 # there is a lower one
                pass
    except ImportError:                                   # Windows
        pass

    def refuse(event, args):
        if event.startswith("socket.") or event in NO_PROCESS:
            raise PermissionError(f"{event}: there is neither network nor another process here")
    if has_seccomp():
        _seccomp()
    sys.addaudithook(refuse)


def close(others):
    """Also forbid this process to write outside its home and to read below the folder
    ``others``."""
    home, others = (os.path.realpath(path) for path in (Path.home(), others))
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    free = [path for path in (home, os.path.realpath(sys.prefix), package) if below(path, others)]
    if landlock_version() >= 3:
        _landlock(home, others, free)
    is_held = by_kernel()
    if not is_held:
        _replace()
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def check(event, path, folder, changes):
        if isinstance(path, int):                         # an open file's number
            path = _path(path)
        elif folder != -1:
            path = os.path.join(_path(folder), os.fsdecode(path))
        path = os.path.realpath(os.fsdecode(path))
        if below(path, others) and not any(below(path, each) for each in free):
            raise PermissionError(f"{event}: the work of others is closed")
        if changes and not below(path, home) and path != os.devnull:
            raise PermissionError(f"{event}: files are written in the home folder only")

    def refuse(event, args):
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(args[0])
            check(event, path, -1, args[2] & writing)
            if not is_held and args[1] is None:              # os.open: its dir_fd we do not see, so
                check(event, path, -1, os.path.isdir(path))              # nobody gets one
                if ".." in path and not os.path.isabs(path):
                    raise PermissionError(f"{event}: write the path without '..'")
        elif event in NO_CHANGE:
            several = event in ("os.rename", "os.link", "os.symlink")
            folders = [*args[NO_CHANGE[event]:] * 2, -1, -1]
            for path, folder in zip(args[:1 + several], folders, strict=False):
                check(event, path, folder, True)
        elif event in NO_LOOK:
            check(event, "." if args[0] is None else args[0], -1, False)
        elif not is_held and (event.startswith(("ctypes.", "sqlite3.", "resource.prlimit")) or (
                event == "import" and args[0] in NO_IMPORT)):
            raise PermissionError(f"{event}: refused where only Python holds this process")
    sys.addaudithook(refuse)


def below(path, folder):
    """Return whether a real path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _path(number):
    """Return the path of an open file."""
    if sys.platform == "darwin":
        import fcntl
        return fcntl.fcntl(number, 50, bytes(1024)).rstrip(b"\0").decode()     # F_GETPATH
    return os.readlink(f"/proc/self/fd/{number}")


def _replace():
    """Replace the functions that reach other processes or make a file without an event."""
    def refused(*args, **options):
        raise PermissionError("no other process can be reached here, and open() alone makes files")
    for module in map(sys.modules.get, ("os", "posix", "subprocess", "_posixsubprocess", "signal")):
        for name in ("mkfifo", "mknod", "fork_exec", "_fork_exec", "pidfd_send_signal",
                     "setpriority", "sched_setaffinity", "sched_setscheduler", "sched_setparam"):
            if hasattr(module, name):
                setattr(module, name, refused)


# ----------------------------------------------------------------------------- the kernel


@functools.cache
def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _system(number, *args):
    """Make a system call, which must succeed, and return its result."""
    result = _libc().syscall(ctypes.c_long(number), *(
        ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: "
                                          f"{os.strerror(ctypes.get_errno())}")
    return result


def _prctl(option, value, argument=None):
    if _libc().prctl(option, ctypes.c_ulong(value), argument, None, None) < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


@functools.cache
def has_seccomp():
    """Return whether the kernel can refuse system calls whose numbers we know."""
    return (sys.platform == "linux" and platform.machine() in CALLS and sys.maxsize > 1 << 32
            and _libc().prctl(21, 0, 0, 0, 0) >= 0)       # PR_GET_SECCOMP


@functools.cache
def landlock_version():
    """Return Landlock's version, 0 where the kernel has none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1)))


def end_with_parent(parent):
    """Have the kernel end this process once the process with the number ``parent`` is gone."""
    _prctl(1, signal.SIGKILL)                             # PR_SET_PDEATHSIG
    if os.getppid() != parent:                            # it is gone already
        os._exit(1)


def _seccomp():
    """Install a filter of system calls, a program for the kernel.  An instruction is (code, jump
    if true, jump if false, number); see ``man 2 seccomp``."""
    load, equal, at_least, bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    machine, calls = CALLS[platform.machine()]
    allow, kill, refuse, unknown = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
    program = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, kill), (load, 0, 0, 0),
               (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse)]        # the x32 calls
    for number in calls["refused"]:
        program += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    for number in calls["clone3"]:                        # the C library then takes clone
        program += [(equal, 0, 1, number), (give, 0, 0, unknown)]
    for number in calls["clone"]:                         # a thread: CLONE_THREAD is set
        program += [(equal, 0, 4, number), (load, 0, 0, 16), (bits, 1, 0, 0x10000),
                    (give, 0, 0, refuse), (give, 0, 0, allow)]
    for number in calls["own"]:
        program += [(equal, 0, 5, number), (load, 0, 0, 16), (equal, 2, 0, os.getpid()),
                    (equal, 1, 0, 0), (give, 0, 0, refuse), (give, 0, 0, allow)]
    program.append((give, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    _prctl(38, 1)                                         # PR_SET_NO_NEW_PRIVS
    _prctl(22, 2, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))


def _landlock(home, others, free):
    """Forbid to read below ``others``, except in the folders ``free``, and to change anything
    outside ``home``.  Give up the superuser's rights."""
    version = landlock_version()
    scope = 3 if version >= 6 else 0                      # sockets and signals stay in here, too
    size = {3: 8, 4: 16, 5: 16}.get(version, 24)          # of the attributes that it knows
    rules = _system(444, struct.pack("QQQ", ALL, 0, scope), size, 0)

    def permit(path, rights):
        try:
            file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:                                   # gone, or not ours
            return
        if not os.path.islink(path):
            _system(445, rules, 1, struct.pack("=Qi", rights, file), 0)
        os.close(file)

    permit("/", READ_DIR)
    permit(os.devnull, WRITE_FILE | READ_FILE)
    permit(home, ALL)
    for path in free:
        permit(path, READ_FILE | READ_DIR)
    for folder in Path(others).parents:                   # all but the way to others
        for name in os.listdir(folder) if os.access(folder, os.R_OK) else ():
            if not below(others, path := os.path.join(folder, name)):
                permit(path, READ_FILE)
    if _libc().capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(38, 1)
    _system(446, rules, 0)
    os.close(rules)
