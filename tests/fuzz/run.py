"""Runs a fuzzer in a process of its own, with limits, and gathers what went wrong."""

import faulthandler
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0                                             # of the processor's, for one case
MEGABYTES = 400                                           # that one case may ask for
LONGEST = 1000                                            # characters of a clear line
# What reading a file never does, by the names of Python's audit events.
NEVER = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn",
         "os.fork", "os.remove", "os.rename", "socket.connect", "socket.bind")


class TooLong(BaseException):
    """A case runs on and on; no ``Exception``, which the reader would catch."""


@dataclass
class Report:
    """What a fuzzer found: how many cases were there, loaded and refused, in how many seconds;
    ``findings`` {what went wrong: [how often, number of the first such case]}."""

    name: str
    cases: int = 0
    loaded: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: dict = field(default_factory=dict)
    messages: Counter = field(default_factory=Counter)

    def __str__(self):
        lines = [f"{self.name}: {self.cases:,} cases in {self.seconds:.0f} s, {self.refused:,} "
                 f"refused with {len(self.messages)} kinds of line, {self.loaded:,} loaded, "
                 f"{sum(n for n, _ in self.findings.values()):,} wrong"]
        lines += [f"  {n} times, first in case {case}: {what}"
                  for what, (n, case) in self.findings.items()]
        return "\n".join(lines)


def run(name, cases=None, seconds=None, seed=0, first=0):
    """Run a fuzzer for so many cases or seconds; its :class:`Report`.  A case that ends the
    process is reported, and the others are still run."""
    report, end = Report(name), time.monotonic() + (seconds or 1e9)
    last = first + (cases or 1 << 60)
    while first < last and (report.cases == 0 or time.monotonic() < end):
        with tempfile.TemporaryDirectory(prefix="minifpt-fuzz-") as top:
            paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
            env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1",
                                "OPENBLAS_NUM_THREADS": "1", "TMPDIR": top}
            code = f"from fuzz.run import inside; inside({str(top)!r}, {name!r}, {first}, " \
                   f"{last}, {end - time.monotonic()}, {seed})"
            start = time.monotonic()
            child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, text=True,
                                   stderr=subprocess.PIPE)
            report.seconds += time.monotonic() - start
            progress = Path(top) / "progress"
            if not progress.exists():
                raise RuntimeError(f"{name}: the fuzzer did not start:\n{child.stderr}")
            done = json.loads(progress.read_text())
            at = int((Path(top) / "at").read_text())
            add(report, done)
            if child.returncode:
                died = f"the process ended with {child.returncode}: {last_line(child.stderr)}"
                count = report.findings.setdefault(died, [0, at])
                count[0] += 1
                report.cases += at - first + 1 - done["cases"]
            first = at + 1
    return report


def add(report, done):
    """Add what one process did to a report."""
    for key in ("cases", "loaded", "refused"):
        setattr(report, key, getattr(report, key) + done[key])
    report.messages.update(done["messages"])
    for what, (n, case) in done["findings"].items():
        report.findings.setdefault(what, [0, case])[0] += n


def last_line(text):
    """The last line of a process's errors, where a stack of a crash is printed the first."""
    lines = [line for line in text.splitlines() if line.strip()]
    inner = [line for line in lines if line.startswith("  File")]
    return " ".join([*lines[-1:], *inner[:1]])[:300]


def inside(top, name, first, last, seconds, seed):
    """In the new process: make the valid files, then case after case."""
    from .formats import FORMATS
    faulthandler.enable()
    top, form, report = Path(top), FORMATS[name], Report(name)
    good, folder = top / "good", top / "case"
    good.mkdir()
    form.make(good)
    bytes_of = {path.name: path.read_bytes() for path in sorted(good.iterdir())}
    put(folder, bytes_of)
    right = form.read(folder)                             # imports what there is to import, too
    assert form.check(right, right, None) is None
    watch = None if form.runs else Watch(folder)          # a program is run, of course
    limit_memory()
    end, said, number = time.monotonic() + seconds, time.monotonic(), first
    with open(top / "at", "w") as at:
        while number < last and (number == first or time.monotonic() < end):
            at.seek(0)
            at.write(f"{number:20}")
            at.flush()
            wrong = examine(form, folder, bytes_of, right, seed, number, report, watch)
            report.cases += 1
            if wrong:
                report.findings.setdefault(wrong, [0, number])[0] += 1
            number += 1
            if time.monotonic() > said + 1 or report.cases == 1:
                said = write_progress(top, report)
    write_progress(top, report)


def write_progress(top, report):
    (top / "new").write_text(json.dumps({
        key: getattr(report, key) for key in ("cases", "loaded", "refused", "findings",
                                              "messages")}))
    os.replace(top / "new", top / "progress")
    return time.monotonic()


def put(folder, bytes_of):
    """Write a case's files; nothing else stays in its folder."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in bytes_of:
            path.unlink()
    for name, raw in bytes_of.items():
        (folder / name).write_bytes(raw)


def damaged(form, bytes_of, seed, number):
    """(the files of a case, the function that damaged one of them)."""
    rng = random.Random(f"{seed} {number}")
    file = rng.choice([*form.damage])
    how = rng.choice(form.damage[file])
    return bytes_of | {file: how(rng, bytes_of[file])}, how


def examine(form, folder, bytes_of, right, seed, number, report=None, watch=None):
    """Read one case; what went wrong, in a line, or None."""
    files, how = damaged(form, bytes_of, seed, number)
    put(folder, files)
    report = report or Report("one")
    signal.signal(signal.SIGVTALRM, stop)
    faulthandler.dump_traceback_later(60, exit=True)      # of what no signal interrupts
    signal.setitimer(signal.ITIMER_VIRTUAL, form.seconds)
    try:
        if watch:
            watch.seen = []
        with watch or nullcontext():
            found = form.read(folder)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        wrong = form.check(found, right, how)
        report.loaded += 1
    except (ValueError, OSError) as e:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        report.refused += 1
        wrong = unclear(str(e), folder, form)
        report.messages[kind_of(str(e).replace(str(folder), ""))] += 1
    except TooLong:
        wrong = f"it took more than {form.seconds:g} s, in {where(sys.exc_info()[1])}"
    except BaseException as e:
        wrong = f"{type(e).__name__} from {where(e)}: {kind_of(str(e))}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        faulthandler.cancel_dump_traceback_later()
    if watch and watch.seen:
        wrong = f"it did what reading never does: {watch.seen[0]}"
    return wrong


def unclear(text, folder, form):
    """What is wrong with an error's text, or None."""
    if ("MemoryError" in text or "Unable to allocate" in text) and not form.runs:
        return f"it asked for more than {MEGABYTES} MB: {kind_of(text)}"
    if "\n" in text or not text:
        return f"not one line: {kind_of(text)!r}"
    if len(text) > LONGEST:
        return f"a line of many characters: {kind_of(text)}"
    if str(folder) not in text:
        return f"it names no file: {kind_of(text)}"


def kind_of(text):
    """A message without what differs from case to case."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\d[\d,.]*", "0", text)
    return re.sub(r"[^\x20-\x7e]", "?", text)[:120]


def where(error):
    """The innermost line of the package, or of a fuzzer, that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    ours = [f for f in frames if "minifpt/" in f.filename.replace(os.sep, "/")] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def stop(*args):
    raise TooLong


def limit_memory():
    """From now on this process gets so many megabytes more, where the system can."""
    try:
        import resource
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (MEGABYTES << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError):
        pass


class Watch:
    """Within, notes what reading a file never does: start a program, unpickle, run code that is in
    no file of the libraries, write elsewhere."""

    def __init__(self, folder):
        self.on, self.seen, self.folder = False, [], str(folder)
        sys.addaudithook(self.hook)

    def __enter__(self):
        self.on = True

    def __exit__(self, *args):
        self.on = False

    def hook(self, event, args):
        if not self.on:
            return
        if event == "open" and isinstance(args[0], str) and isinstance(args[1], str):
            if set(args[1]) & set("wxa+") and not args[0].startswith(self.folder):
                self.seen.append(f"open {args[0]} to write")
        elif event == "exec":
            file = getattr(args[0], "co_filename", "")
            if not os.path.exists(file) and not file.startswith("<frozen"):
                self.seen.append(f"run code of {file}")
        elif event.startswith(NEVER) and not (
                event.startswith(("os.remove", "os.rename")) and self.folder in str(args[0])):
            self.seen.append(f"{event} {args!r:.100}")
