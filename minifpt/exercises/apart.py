"""Run other people's code in a process of its own, where it may loop, exit, print or raise.

The process works through items (functions, exercises) one by one and writes a line of JSON before
and after each.  So an item that never ends is known by name, and a new process does the others.
"""

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import closed

ROOT = str(Path(__file__).resolve().parents[2])           # where minifpt is imported from
MOST_ROWS = 10 << 20                                      # bytes that are read of the rows


def apart(work, *args, quiet=20.0, most=120.0):
    """Run the generator ``work`` ("module:function") with JSON arguments in a new process, whose
    home is an empty folder; return its rows, a list of dicts with a ``name``.

    ``work(*args, skip)`` yields ``{"begin": ""}`` after its imports, then ``{"begin": name}``
    before each item that is not in ``skip``, and a row after it.  An item that is silent for
    ``quiet`` seconds, or ends the process, gets a row ``{"name": name, "lost": why}``, and a new
    process does the others.  If the process ends outside of an item, or ``most`` seconds are over,
    the last row has the name "".
    """
    answers, end = [], time.monotonic() + most
    while True:
        rows, begun, why = _once(work, [*args, [row["name"] for row in answers]], quiet, most, end)
        answers += rows
        if why is None:
            return answers
        answers.append({"name": begun, "lost": why})
        if begun and time.monotonic() >= end:
            answers.append({"name": "", "lost": f"Its {most:g} s are over; the rest was not run."})
        if not answers[-1]["name"]:
            return answers


def _once(work, args, quiet, most, end):
    """Run one process: (rows, the item that it worked on last, why it did not finish)."""
    with (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
          open(Path(home) / "rows", "w+b") as lines):     # open: what runs may exchange the file
        code = (f"import sys; sys.path.insert(0, {ROOT!r}); "
                "from minifpt.exercises import apart; apart._child()")
        env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")} | {
            "HOME": home, "USERPROFILE": home, "TMPDIR": home, "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, work, lines.name, str(most), str(os.getpid()),
             json.dumps(args)], cwd=home, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        why, size, since = None, 0, time.monotonic()
        try:
            while process.poll() is None and why is None:
                time.sleep(0.02)
                now = time.monotonic()
                if (grown := os.fstat(lines.fileno()).st_size) != size:
                    size, since = grown, now
                if now > min(since + quiet if size else end, end):
                    why = f"It did not end within {round(now - since)} s: is there a loop?"
        finally:
            _kill(process)
        rows, begun, is_done = [], "", False
        for line in lines.read(MOST_ROWS).decode(errors="replace").splitlines():
            try:
                row = dict(json.loads(line))
            except (ValueError, TypeError):               # cut off in the middle
                continue
            is_done = row == {"done": True}
            begun = str(row.get("begin", ""))
            if row.keys() >= {"name", "status", "hint"} or row.keys() >= {"name", "lost"}:
                rows.append({key: str(value) for key, value in row.items()})
        if is_done:
            why = None
        elif why is None:
            code = process.returncode
            why = (f"It ended Python, with exit status {code}." if code >= 0 else
                   f"It ended Python, by signal {-code}.")
        return rows, begun, why


def _kill(process):
    """End a process and all that it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):     # it has ended
            pass
    else:
        process.kill()
    process.wait()


def _child():
    """Do the work in the new process and write a line for each row."""
    work, path, most, parent, args = sys.argv[1:6]
    if sys.platform == "linux":
        closed.end_with_parent(int(parent))
    else:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    closed.limit(float(most))
    module, name = work.split(":")
    function = getattr(importlib.import_module(module), name)
    # Kept open: no later open() is needed, which a closed process might refuse.
    with open(path, "a", encoding="utf-8") as file:
        sys.argv, printed = [""], Printed()
        sys.stdout = sys.stderr = printed
        for row in function(*json.loads(args)):
            if "begin" not in row and printed.text:
                row["printed"] = printed.text
            printed.text = ""
            file.write(json.dumps(row) + "\n")
            file.flush()
        file.write('{"done": true}\n')


def _end_with(parent):
    """End this process once its parent has ended: an endless loop would outlive it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Printed(io.TextIOBase):
    """A stream that keeps the first 500 characters printed."""

    text = ""

    def write(self, text):
        self.text = (self.text + str(text))[:500]
        return len(text)
