"""Files on disk: weights, checkpoints, tokenizers, data sets, run folders.

This module has the functions that all of them use, and lets signals wait for a file.
"""

import csv
import io
import json
import math
import os
import re
import signal
import tempfile
import textwrap
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parent.parent
MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32",  # encodings by the first bytes
         b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
POINTER = b"version https://git-lfs.github.com/spec/"
CONTROLS = re.compile("[\1-\10\16-\31\34-\37\177]")        # in no text but that of terminals


@contextmanager
def refuse_damage(message):
    """Turn any error from the contents of a file into a ``ValueError`` of one line, which begins
    with ``message``: damaged files raise errors of a dozen classes.  A missing file, one without
    permission and a lack of memory keep their own errors."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception as e:
        raise ValueError(f"{message} ({one_line(e)})") from None


def cache_folder():
    """Return the user's cache folder for downloaded data and converted weights."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minifpt"
    except RuntimeError:                                  # a user without a home folder
        return Path(tempfile.gettempdir()) / "minifpt"


def write_beside(path, write, mode="wb"):
    """Call ``write(file)`` with a new file beside ``path``, then rename it to ``path``: after a
    crash there is the old file or the new one, never half of it.  An error, such as that of a full
    disk, has the name ``path``.  Ctrl-C and SIGTERM wait for the end, since a zip file that they
    break off raises errors of its own."""
    path = Path(path)
    nearest_folder(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = unfinished(path)
    with signals_wait(signal.SIGINT, signal.SIGTERM):
        try:
            with open(beside, mode, encoding=None if "b" in mode else "utf-8") as f:
                write(f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(beside, path)
        except OSError as e:
            if e.errno:
                e.filename = str(path)
            raise
        finally:
            with suppress(OSError):                       # its error says less than the first
                beside.unlink()


@contextmanager
def signals_handled(handler, *signals):
    """Let ``handler`` handle these signals.  Only the main thread can.  A signal that this process
    ignores stays ignored, and a handler that is not Python's stays."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, handler) for s in signals
              if is_main and signal.getsignal(s) not in (signal.SIG_IGN, None)}
    try:
        yield
    finally:
        for s, old in reversed(before.items()):           # Ctrl-C last: it may raise at once
            signal.signal(s, old)


@contextmanager
def signals_wait(*signals):
    """Let these signals wait until the end of the ``with``, such as that of a file."""
    arrived = []
    with signals_handled(lambda signum, frame: arrived.append(signum), *signals):
        yield
    for signum in arrived:
        signal.raise_signal(signum)


def nearest_folder(folder):
    """Return the folder, or the nearest one above it that exists.  Raises ``ValueError`` where that
    is a file."""
    nearest = next((p for p in (Path(folder), *Path(folder).parents) if p.exists()), None)
    if nearest is None:
        raise ValueError(f"{folder}: its drive or network folder does not exist")
    if not nearest.is_dir():
        raise ValueError(f"{nearest} is a file, expected a folder")
    return nearest


def unfinished(path):
    """Return the path at which is written what is renamed to ``path`` at the end.  What a process
    that was killed left there is written over by the next one.  It has the suffix of ``path``, by
    which JupyterLite tells text."""
    return path.with_name(f".minifpt.{path.name}")


def save_text(path, text):
    """Write a text file as :func:`write_beside` does."""
    write_beside(path, lambda f: f.write(text), "w")


def csv_text(rows, columns=None):
    """Return dictionaries as the text of a CSV; by default its columns are the first row's keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if columns is None else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def refuse_pointer(path):
    """Raise ``ValueError`` for a Git LFS pointer, a text that stands where a file should be."""
    with open(path, "rb") as f:
        if f.read(len(POINTER)) == POINTER:
            raise ValueError(f"{path}: this is a Git LFS pointer, not the file: 'git lfs pull' "
                             "fetches the file")


def read_text(path, fallback=None):
    """Return the text in a file, with ``\\n`` at its lines' ends and without its byte order mark.

    It is read as UTF-32 or UTF-16 if that mark says so, else as UTF-8 or, where it is not that, in
    the encoding ``fallback``.  Raises ``ValueError`` for a file that is not text, such as a
    compressed one: for a NUL, for many other control characters, and for a PDF."""
    refuse_pointer(path)
    raw = Path(path).read_bytes()
    encoding = next((name for mark, name in MARKS.items() if raw.startswith(mark)), "utf-8-sig")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as e:
        if fallback is None:
            raise ValueError(f"{path}: not text in UTF-8 ({e})") from None
        text = raw.decode(fallback, errors="replace")
    start = text[:1 << 16]
    if "\0" in text or len(CONTROLS.findall(start)) > len(start) / 50 or text.startswith("%PDF-"):
        raise ValueError(f"{path}: not text: it has NULs or control characters, or is a PDF, "
                         "expected a text file in UTF-8, not compressed")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path):
    """Return the JSON object in a file, as a dict."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    text = read_text(path)
    with refuse_damage(f"{path}: not JSON"):
        value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def to_json(value):
    """Return dicts, lists, texts, paths and numbers, also NumPy's, as JSON text.  Raises
    ``ValueError`` for anything else."""
    def plain(x):
        if isinstance(x, np.generic):
            return x.item()
        if isinstance(x, os.PathLike):
            return str(x)
        raise ValueError(f"{x!r:.60} cannot be kept in a file: it is neither a number nor a text")
    return json.dumps(value, default=plain)


def array_headers(archive):
    """Return {name: (shape, dtype)} of the arrays in an ``.npz``, an open ``ZipFile``, without
    reading them.  Raises ``ValueError`` for an array that is larger than its file."""
    headers = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        with archive.open(info) as f:
            read_head = {(1, 0): np.lib.format.read_array_header_1_0,
                         (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = read_head[np.lib.format.read_magic(f)](f)
        if math.prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"{name!r} should have {math.prod(shape):,} numbers, and has "
                             f"{info.file_size:,} bytes")
        headers[name] = shape, dtype
    return headers


def stored_array(archive, name):
    """Return an array of an ``.npz``, an open ``ZipFile``.  Nothing is unpickled."""
    with archive.open(f"{name}.npy") as f:
        return np.lib.format.read_array(f, allow_pickle=False)


def stored_json(archive, name):
    """Return the JSON object in the array ``name`` of an ``.npz``, an open ``ZipFile``, a text."""
    array = stored_array(archive, name)
    if array.dtype.kind != "U" or array.shape:
        raise ValueError(f"its {name} is not a text")
    value = json.loads(str(array))
    if not isinstance(value, dict):
        raise ValueError(f"its {name} is not a JSON object")
    return value


def one_line(error):
    """Return an exception's class and message on one line of at most 200 characters."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200)


def by_gpt2_name(model):
    """Return [(name, array)] of a model's parameters by GPT-2's names, which lack ``trunk.``."""
    return [(name.removeprefix("trunk."), p.data) for name, p in model.named_parameters()]
