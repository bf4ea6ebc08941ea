"""Call functions of other people's code, which runs in a process of its own.

Both processes have a :class:`Channel` to the other and call each other's functions through it.
Arguments and results travel as plain data: a line of JSON, with arrays in base64.  An object that
is not plain stays where it is, and the other process gets a :class:`Kept` in its place.  So a check
runs here, with a function that runs there, and nothing that is done there changes the check.
"""

import base64
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, MappingView
from contextlib import ExitStack, suppress

import numpy as np

from .. import functional as F
from ..files import one_line
from ..tracing import swapped
from . import Result, _where, sandbox

LIBRARY = {name: value for name, value in vars(F).items() if callable(value)}
MOST = 1 << 24                                            # bytes of a message from there
# Of the environment's variables, those that an answer may need; others may be secrets.
KEPT_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT",
              "MINIFPT_DATA")
QUIET, SECONDS = 20.0, 120.0                              # of one name, of all of a file


class Lost(BaseException):
    """The other process was ended, or has ended itself; the text says why."""


class Kept:
    """An object of the other process."""

    def __init__(self, channel, number):
        self.channel, self.number = channel, number

    def __deepcopy__(self, memo):
        return self


class Function(Kept):
    """A function of the other process."""

    def __call__(self, *args, **options):
        return self.channel.call(self.number, args, options)


class Channel:
    """Two streams to and from another process.  ``printed`` is what it has printed since."""

    def __init__(self, source, target, kept=(), printer=None):
        self.source, self.target, self.printer, self.printed = source, target, printer, ""
        self.kept, self.numbers = list(kept), {}          # what is kept here, and id -> its number
        self.theirs = {}                                  # number -> Kept

    def call(self, number, args, options):
        """Call a function of the other process and return its result; what it changes in ``args``
        is changed here, too.  Raises what it raised, an exception with the name of that class."""
        replaced = {n: vars(F)[n] for n, f in LIBRARY.items() if vars(F)[n] is not f}
        self.send(json.dumps(["call", number, self.encode([list(args), options, replaced])]))
        kind, *rest = self.serve()
        try:
            if kind == "return":
                result, changed, printed = self.decode(rest)
                self.printed += str(printed)
                if changed is not None:
                    put(args, changed)
                return result
            name, text, where, line = (str(word)[:1000] for word in rest)
            name = name[:80]
            base = {"TypeError": TypeError, "NotImplementedError": NotImplementedError}
            error = type(name, (base.get(name, Exception),), {})(text)
        except Exception:
            raise Lost("It wrote into the channel of the check.") from None
        if not self.printer:                              # else it is our function that raised
            error.where, error.line = where, line
        raise error

    def serve(self):
        """Answer the calls of the other process until another message comes; return that."""
        while True:
            message = self.receive()
            if message is None or message[0] != "call":
                return message
            function = None
            try:
                _, number, arguments = message
                function = self.kept[number]
                args, options, replaced = self.decode(arguments)
                with ExitStack() as undo:                 # there, as the check has them here
                    for name, other in replaced.items() if self.printer else ():
                        undo.enter_context(swapped(vars(F), name, other))
                    result = self.encode(function(*args, **options))
                changed = self.encode(args)
                line = json.dumps(["return", result, None if changed == arguments[0] else changed,
                                   self.printer.take() if self.printer else ""])
            except BaseException as e:
                if isinstance(e, Lost) or not self.printer and not isinstance(e, Exception):
                    raise
                line = json.dumps(["raise", type(e).__name__, str(e)[:1000], *places(e, function)])
            self.send(line)

    def send(self, line):
        try:
            self.target.write(line.encode() + b"\n")
            self.target.flush()
        except OSError:
            raise Lost("") from None

    def receive(self):
        try:
            line = self.source.readline(MOST << 3 if self.printer else MOST)
            if not line.endswith(b"\n"):
                raise Lost("Its answer is too large." if line else "")
            message = json.loads(line)
            if not isinstance(message, list) or not message:
                raise ValueError("not a message")
            return message
        except (ValueError, RecursionError):
            raise Lost("It wrote into the channel of the check.") from None

    def encode(self, value):
        """Return a value as what JSON can hold."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufcSU":
            array = np.asarray(value)
            return {"array": [array.dtype.str, [*array.shape], base64.b64encode(
                array.tobytes()).decode(), isinstance(value, np.generic)]}
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", None)
            return {"tuple": [[self.encode(v) for v in value], fields and [
                type(value).__name__, *fields]]}
        if isinstance(value, list | range | Iterator | MappingView):
            return [self.encode(v) for v in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, slice):
            return {"slice": self.encode([value.start, value.stop, value.step])}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, np.random.Generator):
            return {"rng": value.bit_generator.state}
        if value is ...:
            return {"...": 0}
        if isinstance(value, np.ndarray):                 # of objects
            return self.encode(value.tolist())
        if isinstance(value, Kept):
            return {"yours": value.number}
        for base in (bool, int, float, str):
            if isinstance(value, base):
                return base(value)
        number = self.numbers.setdefault(id(value), len(self.kept))
        self.kept[number:] = self.kept[number:] or [value]
        return {"kept": [number, type(value).__name__, callable(value)]}

    def decode(self, value):
        """Return the value that :meth:`encode` has made JSON of."""
        if isinstance(value, list):
            return [self.decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        (kind, value), = value.items()
        if kind == "array":
            dtype, shape, text, is_number = value
            if not re.fullmatch(r"[<>|=]?[biufcSU]\d+", dtype):
                raise ValueError("not an array of numbers")
            array = np.frombuffer(base64.b64decode(text), dtype).reshape(shape).copy()
            return array[()] if is_number else array
        if kind == "tuple":
            values, named = tuple(map(self.decode, value[0])), value[1]
            if not named:
                return values
            known = LIBRARY.get(named[0])
            if getattr(known, "_fields", None) != tuple(named[1:]):
                known = namedtuple(named[0], named[1:])
            return known(*values)
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in value}
        if kind == "slice":
            return slice(*self.decode(value))
        if kind == "complex":
            return complex(*value)
        if kind == "rng":
            rng = np.random.default_rng()
            rng.bit_generator.state = value
            return rng
        if kind == "...":
            return ...
        if kind == "yours":
            return self.kept[value]
        number, name, is_function = value
        kind = type(str(name), (Function if is_function else Kept,), {})
        return self.theirs.setdefault(number, kind(self, number))


def places(error, function):
    """Return where a function raised an error: by its own lines, and by those of its file."""
    code, line, trace = getattr(function, "__code__", None), "", error.__traceback__
    while trace is not None and code is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            line = f"line {trace.tb_lineno}"
        trace = trace.tb_next
    return _where(error, function), line


def put(mine, theirs):
    """Make arguments what the other process has made of them."""
    if isinstance(mine, np.ndarray):
        mine[...] = theirs
    elif isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict):
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, np.random.Generator):
        mine.bit_generator.state = theirs.bit_generator.state
    elif isinstance(mine, tuple):
        for a, b in zip(mine, theirs, strict=True):
            put(a, b)


# ------------------------------------------------------------------------- the processes


class Process:
    """A process that calls ``work`` ("module:function"), here ``load``, and is ended once
    ``deadline`` is over, or if it starts too many processes."""

    def __init__(self, work, seconds, command=(), is_open=False):
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.why, self.deadline, self.began = "", time.monotonic() + seconds, time.monotonic()
        self.mark = f"{os.getpid()}-{id(self)}"
        code = (f"import sys; sys.path.insert(0, {sandbox.ROOT!r}); "
                "from minifpt.exercises import apart; apart.child()")
        home = "/tmp" if command else self.home.name
        env = {k: os.environ[k] for k in KEPT_NAMES if k in os.environ} | {
            "HOME": home, "USERPROFILE": home, "TMPDIR": home, "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            sandbox.MARK: self.mark}
        self.process = subprocess.Popen(
            [*command, sys.executable, "-P", "-c", code, work, str(seconds),
             str(os.getpid()), "open" * is_open, "closed" * bool(command)],
            cwd=self.home.name, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True)
        self.channel = Channel(self.process.stdout, self.process.stdin)
        self.load, self.is_ready = (Function(self.channel, number) for number in (0, 1))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while self.process.poll() is None:
            now = time.monotonic()
            if now > self.deadline:
                self.end(f"It did not end within {round(now - self.began)} s: is there a loop?")
            elif len(sandbox.marked(self.mark)) > sandbox.PROCESSES:
                self.end("It started processes.")
            time.sleep(0.1)

    def begin(self, seconds, end):
        """Begin something that may take ``seconds``, and no longer than until ``end``."""
        self.began = time.monotonic()
        self.deadline, self.channel.printed = min(self.began + seconds, end), ""

    def end(self, why=""):
        self.why = self.why or why
        sandbox.kill(self.process, self.mark)

    def close(self):
        """End the process and remove what it left."""
        self.end()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):                       # what it did not read
                stream.close()
        self.home.cleanup()

    def lost(self, error):
        """Close the process; return why it was lost."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        if self.why or str(error) or code is None:
            return self.why or str(error) or "It closed the channel of the check."
        code = 128 - code if code > 128 else code         # as bwrap says it
        return (f"It ended Python, with exit status {code}." if code >= 0 else
                f"It ended Python, by signal {-code}.")


def judged(names, work, args, examine, quiet=None, most=None, command=(), is_open=False):
    """Yield (:class:`Result`, whether it was lost) for each name.

    ``examine(loaded, name)`` gets what ``work(*args)`` returned.  If a name takes longer than
    ``quiet`` seconds, or ends the process, a new one does the others.  Raises ``Lost`` if ``work``
    does, or raises.  Code of ours is ``is_open``: it may start processes."""
    quiet, most = quiet or QUIET, most or SECONDS
    end, process = time.monotonic() + most, None
    try:
        for name in names:
            if time.monotonic() >= end:
                yield Result(name, "not right yet", f"Its {most:g} s are over; the rest was not "
                                                    "run."), True
                continue
            if process is None:
                process = Process(work, most, command, is_open)
                try:
                    process.is_ready()
                    process.begin(quiet, end)
                    loaded = process.load(*args)
                except (Lost, Exception) as e:
                    raise Lost(process.lost(e if isinstance(e, Lost) else one_line(e))) from None
            process.begin(quiet, end)
            try:
                result, is_lost = examine(loaded, name), False
                if process.channel.printed and getattr(result, "status", "passed") != "passed":
                    result.hint += f" It printed: {' '.join(process.channel.printed.split())[:80]}"
            except Lost as e:
                result, is_lost = Result(name, "not right yet", process.lost(e)), True
                process = None
            yield result, is_lost
    finally:
        if process is not None:
            process.close()


def child():
    """Serve in the new process."""
    work, seconds, parent, is_open, is_closed = sys.argv[1:6]
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    module, name = work.split(":")
    function = getattr(importlib.import_module(module), name)
    sandbox.limit(float(seconds), bool(is_closed))
    sandbox.close(int(parent), bool(is_open))
    sys.argv, printed = [""], Printed()
    sys.stdout = sys.stderr = printed
    Channel(source, target, [function, bool], printed).serve()


class Printed(io.TextIOBase):
    """A stream that keeps the first 500 characters printed."""

    text = ""

    def write(self, text):
        self.text = (self.text + str(text))[:500]
        return len(text)

    def take(self):
        """Return the text, and forget it."""
        text, self.text = self.text, ""
        return text
