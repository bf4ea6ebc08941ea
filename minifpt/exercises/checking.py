"""Check a whole file of functions that ``minifpt new`` began.

The file runs in a process of its own: a loop or an exit in it ends that process, and a new one
checks the other functions.  This is not a sandbox: the file can do whatever its user can do.
"""

import faulthandler
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from . import operations, own
from .engine import PASSED, SECONDS, WRONG, Result

ROOT = str(Path(__file__).resolve().parents[2])           # where minifpt is imported from
CHILD = (f"import sys; sys.path.insert(0, {ROOT!r}); from minifpt.exercises import checking; "
         "checking.serve()")


def results(path):
    """Return a :class:`Result` for each function of a file.

    A function that ends its process, or computes longer than ``SECONDS``, is wrong.  Raises
    ``ValueError`` or ``FileNotFoundError`` if the file cannot be run."""
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"{path}: expected a Python file, such as mine.py. A notebook's own cells "
                         "check its exercises")
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file; 'minifpt new {path}' makes it")
    verdicts, stuck = {}, []
    while len(verdicts) < len(own.FUNCTIONS):
        running = None
        for kind, value in messages(path, [*verdicts], stuck):
            if kind == "running":
                running = value
            elif kind == "result":
                verdicts[running] = Result(running, *value)
            elif kind == "lost" and running:
                verdicts[running] = Result(running, WRONG, value)
                stuck.append(running)
            elif kind == "lost":
                raise ValueError(f"{path}: {value}")
            elif kind == "error":
                raise ValueError(value)
    return [verdicts[name] for name in own.FUNCTIONS]


def messages(path, finished, stuck):
    """Start a process that checks a file but for the ``finished`` functions, and yield its messages
    (kind, value): those of :func:`serve`, and "lost", with the reason, if it ends too early."""
    settings = json.dumps([str(path), SECONDS, finished, stuck])
    kind, log = None, ""
    # -P: a file in this folder, such as random.py, must not replace a library.
    with subprocess.Popen([sys.executable, "-P", "-c", CHILD, settings], text=True,
                          encoding="utf-8", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as process:
        for line in process.stdout:
            if log or not line.startswith("["):           # faulthandler says where it stood
                log += line
                continue
            kind, value = json.loads(line)
            yield kind, value
    code, stopped = process.returncode, getattr(signal, "SIGPROF", None)
    if log or stopped and code == -stopped:
        yield "lost", f"It did not end within {SECONDS:g} s: is there a loop?"
    elif kind not in ("finished", "error"):
        end = f"with exit status {code}" if code >= 0 else f"by signal {-code}"
        yield "lost", f"It ended Python, {end}."


def serve():
    """Do the work of the other process: check a file, and send messages through standard output.
    An alarm ends a loop, also within C code, after so many seconds of the processor since the last
    message.  A function that waits is ended by the watchdog of ``faulthandler``, much later."""
    path, seconds, finished, stuck = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)          # for what C code prints

    def send(kind, value=None):
        print(json.dumps([kind, value]), file=channel, flush=True)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)
        faulthandler.dump_traceback_later(10 * seconds, exit=True, file=channel)

    send("started")
    try:
        with redirect_stdout(io.StringIO()):
            functions = own.load(path).functions
    except (ValueError, OSError) as e:
        send("error", str(e))
        os._exit(0)
    functions = {name: f for name, f in functions.items() if name not in stuck}
    for name in own.FUNCTIONS:
        if name not in finished:
            send("running", name)
            with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed):
                result = operations.examine(functions, name)
            if result.status != PASSED and (text := printed.getvalue()):
                text = re.sub(r"\S*/(?=\w+\.py\b)", "", text)         # without folders
                result.hint += f" It printed: {textwrap.shorten(text, 80, placeholder=' ...')}"
            send("result", [result.status, result.hint])
    send("finished")
    os._exit(0)                                           # no atexit function, no other thread
