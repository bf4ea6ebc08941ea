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
import textwrap
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, MappingView
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from .. import exercises
from .. import functional as F
from ..files import one_line
from ..tracing import swapped
from . import NOT_WRITTEN, PASSED, WRONG, Result, lines_of, sandbox

LIBRARY = {name: value for name, value in vars(F).items() if callable(value)}
MOST = 1 << 24                                            # bytes of a message from there
# Of the environment's variables, those that an answer may need; others may be secrets.
KEPT_NAMES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT",
              "MINIFPT_DATA")
QUIET, SECONDS = 20.0, 120.0                              # of one name, of all of a file
# The errors that a check tells from others; of another class only its name travels.
ERRORS = {error.__name__: error for error in (TypeError, ValueError, NotImplementedError)}


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


def named(value):
    """Return a tuple, or a named tuple, of the library's class if it has one of that form."""
    values, fields = value
    if not fields:
        return tuple(values)
    known = LIBRARY.get(fields[0])
    if getattr(known, "_fields", None) != tuple(fields[1:]):
        known = namedtuple(fields[0], fields[1:])
    return known(*values)


def generator(state):
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    return rng


# How values travel as lists and dictionaries: kind -> (type, its form, the value of a form).
FORMS = {
    "tuple": (tuple, lambda v: [[*v], [type(v).__name__, *v._fields] if hasattr(v, "_fields")
                                else []], named),
    "dict": (dict, lambda v: [[*item] for item in v.items()], dict),
    "slice": (slice, lambda v: [v.start, v.stop, v.step], lambda v: slice(*v)),
    "complex": (complex, lambda v: [v.real, v.imag], lambda v: complex(*v)),
    "rng": (np.random.Generator, lambda v: v.bit_generator.state, generator),
    "...": (type(...), lambda v: [], lambda v: ...),
    **{kind.__name__: (kind, kind, kind) for kind in (bool, int, float, str)},     # subclasses
}


@contextmanager
def standing_in(functions):
    """Let functions stand in for the library's of the same name within the ``with``."""
    with ExitStack() as undo:
        for name, function in functions.items():
            undo.enter_context(swapped(vars(F), name, function))
        yield


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
        self.send(["call", number, self.encode([list(args), options, replaced])])
        kind, *rest = self.serve()
        try:
            if kind == "return":
                result, changed, printed = self.decode(rest)
                self.printed += str(printed)
                if changed is not None:
                    put(args, tuple(changed))
                return result
            name, text, lines = str(rest[0])[:80], str(rest[1])[:1000], [*map(int, rest[2])]
            error = type(name, (ERRORS.get(name, Exception),), {})(text)
        except Exception:
            raise Lost("It wrote into the channel of the check.") from None
        if not self.printer:                              # else it is our function that raised
            error.lines = lines
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
                with standing_in(replaced if self.printer else {}):       # as the check has them
                    result = self.encode(function(*args, **options))
                changed = self.encode(args)
                self.send(["return", result, changed if changed != arguments[0] else None,
                           self.printer.take() if self.printer else ""])
            except BaseException as e:
                if isinstance(e, Lost) or not self.printer and not isinstance(e, Exception):
                    raise
                self.send(["raise", type(e).__name__, str(e)[:1000],
                           lines_of(e, getattr(function, "__code__", None))])

    def send(self, message):
        line = json.dumps(message).encode()
        try:
            self.target.write(line + b"\n")
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
        if isinstance(value, np.ndarray):                 # of objects
            value = value.tolist()
        if isinstance(value, list | range | Iterator | MappingView):
            return [self.encode(v) for v in value]
        if isinstance(value, Kept):
            return {"yours": value.number}
        for kind, (known, form_of, _) in FORMS.items():
            if isinstance(value, known):
                return {kind: self.encode(form_of(value))}
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
        if kind == "yours":
            return self.kept[value]
        if kind == "kept":
            number, name, is_function = value
            kind = type(str(name), (Function if is_function else Kept,), {})
            return self.theirs.setdefault(number, kind(self, number))
        return FORMS[kind][2](self.decode(value))


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
            [*command, sys.executable, "-P", "-c", code,
             json.dumps([work, seconds, os.getpid(), is_open, bool(command)])],
            cwd=self.home.name, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True)
        self.channel = Channel(self.process.stdout, self.process.stdin)
        self.load, self.is_ready = (Function(self.channel, number) for number in (0, 1))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while self.process.poll() is None and not self.why:
            now = time.monotonic()
            if now > self.deadline:
                self.why = f"It did not end within {round(now - self.began)} s: is there a loop?"
            elif len(sandbox.marked(self.mark)) > sandbox.PROCESSES:
                self.why = "It started processes."
            time.sleep(0.1 * (not self.why))
        sandbox.kill(self.process, self.mark)

    def begin(self, seconds, end):
        """Begin something that may take ``seconds``, and no longer than until ``end``."""
        self.began = time.monotonic()
        self.deadline, self.channel.printed = min(self.began + seconds, end), ""

    def close(self):
        """End the process and remove what it left."""
        sandbox.kill(self.process, self.mark)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):                       # what it did not read
                stream.close()
        self.home.cleanup()

    def lost(self, error):
        """Close the process; return why it was lost."""
        if not (self.why or str(error)):                  # it has ended, or closed the channel
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        code = self.process.returncode
        self.close()
        if self.why or str(error) or code is None:
            return self.why or str(error) or "It closed the channel of the check."
        code = 128 - code if code > 128 else code         # as bwrap says it
        return (f"It ended Python, with exit status {code}." if code >= 0 else
                f"It ended Python, by signal {-code}.")


def judged(names, work, args, examine, quiet=None, most=None, command=(), is_open=False):
    """Yield the result of each name, or a :class:`Result` that says why there is none.

    ``examine(loaded, name)`` gets what ``work(*args)`` returned.  If a name takes longer than
    ``quiet`` seconds, or ends the process, a new one does the others.  Raises ``Lost`` if ``work``
    does, or raises.  Code of ours is ``is_open``: it may start processes."""
    quiet, most = quiet or QUIET, most or SECONDS
    end, process = time.monotonic() + most, None
    try:
        for name in names:
            if time.monotonic() >= end:
                yield Result(name, WRONG, f"Its {most:g} s are over; the rest was not run.", True)
                continue
            if process is None:
                process = Process(work, most, command, is_open)
                try:
                    process.is_ready()
                    process.begin(quiet, end)
                    loaded = process.load(*args)
                except (Exception, Lost) as e:
                    why = e if isinstance(e, (ValueError, Lost)) else one_line(e)
                    raise Lost(process.lost(why)) from None
            process.begin(quiet, end)
            try:
                result = examine(loaded, name)
                if process.channel.printed and getattr(result, "status", PASSED) != PASSED:
                    text = re.sub(r"\S*/(?=\w+\.py\b)", "", process.channel.printed)   # no folders
                    result.hint += f" It printed: {textwrap.shorten(text, 80, placeholder=' ...')}"
            except Lost as e:
                is_over = time.monotonic() >= end         # it may have been right
                result, process = Result(name, WRONG, process.lost(e), is_over), None
            yield result
    finally:
        if process is not None:
            process.close()


def child():
    """Serve in the new process.  Checks that other people's code itself calls do nothing there: the
    answers may be hidden, and the caller checks all."""
    work, seconds, parent, is_open, is_closed = json.loads(sys.argv[1])
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    module, name = work.split(":")
    function = getattr(importlib.import_module(module), name)
    sandbox.hold(seconds, parent, is_open, is_closed)
    if not is_open:
        exercises.examine = lambda name, *args, **options: Result(name, NOT_WRITTEN)
    sys.argv, printed = [""], Printed()
    sys.stdout = sys.stderr = printed
    Channel(source, target, [function, bool], printed).serve()


class Printed(io.StringIO):
    """A stream that keeps the first 500 characters printed."""

    def write(self, text):
        super().write(str(text)[:max(0, 500 - self.tell())])
        return len(text)

    def take(self):
        """Return the text, and forget it."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text
