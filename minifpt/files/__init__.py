"""Files on disk: weights, checkpoints, tokenizers, data sets, run folders.

Here is what all of them share.
"""

import csv
import glob
import io
import json
import math
import os
import struct
import tempfile
import textwrap
import tokenize
import zipfile
import zlib
from itertools import takewhile
from pathlib import Path

import numpy as np

# What reading a damaged zip file, or one that is encrypted, or a damaged array may raise.
DAMAGE = (ValueError, KeyError, EOFError, TypeError, RuntimeError, OverflowError, MemoryError,
          AttributeError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
          SyntaxError)


def cache_folder():
    """The user's cache folder for downloaded data and converted weights."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "minifpt"
    try:
        return Path.home() / ".cache" / "minifpt"
    except RuntimeError:                                  # a user without a home folder
        return Path(tempfile.gettempdir()) / "minifpt"


def make_folder(path):
    """Make a folder and those above it.  ``Path.mkdir`` calls itself for each of them, which a
    path of 1,000 levels does not survive."""
    path = Path(path)
    missing = takewhile(lambda folder: not folder.exists(), (path, *path.parents))
    for folder in reversed([*missing]):
        folder.mkdir(exist_ok=True)


def write_beside(path, write, mode="wb"):
    """Call ``write(file)`` on a new file beside ``path``, then rename it over ``path``:
    after a crash the old file stands, or the new one, never half of it."""
    path = regular(path, or_folder=True)                  # os.replace refuses a folder
    make_folder(path.parent)
    remove_leftovers(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    except OSError as e:
        if e.errno and e.filename is None:                # a full disk does not say whose
            e.filename = str(path)
        raise
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(path):
    """Remove what :func:`write_beside` left beside ``path`` in processes that were killed."""
    if os.name == "nt":                                   # no harmless signal to ask a process by
        return
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        pid = left.name.rpartition(".")[2]
        if pid.isdecimal() and len(pid) < 10:
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                left.unlink(missing_ok=True)
            except OSError:                               # another user's process
                pass


def csv_text(rows, columns=None):
    """Dictionaries as the lines of a CSV; its columns are by default those of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if columns is None else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


MOST_TEXT = 1 << 30                                       # bytes of a text, 1 GiB
MOST_JSON = 1 << 28                                       # of a file of settings
MOST_CODE = 1 << 24                                       # of a Python file


def regular(path, or_folder=False):
    """Return a path.  Raises ``ValueError`` for what is there and is no regular file: to read a
    pipe may wait for ever, and a device may have no end."""
    path = Path(path)
    if path.exists() and not path.is_file() and not (or_folder and path.is_dir()):
        raise ValueError(f"{path}: expected a regular file, it is "
                         + ("a folder" if path.is_dir() else "a pipe, a device or a socket"))
    return path


def read_bytes(path, most):
    """Return the bytes of a regular file.  Raises ``ValueError`` for more than ``most``."""
    # Some files in /proc look regular and let a reader wait, unless it asks not to.
    with open(regular(path), "rb", opener=lambda name, flags: os.open(
            name, flags | getattr(os, "O_NONBLOCK", 0))) as f:
        size = os.fstat(f.fileno()).st_size               # 0 of what /proc holds
        raw = (f.read(min(most, size + (1 << 20)) + 1) or b"") if size <= most else b""
    if size > most or len(raw) > min(most, size + (1 << 20)):
        raise ValueError(f"{path}: has more than {most:,} bytes, the most that is read of it")
    return raw


def read_text(path, most=MOST_TEXT):
    """Return the text in a regular file, in UTF-8, of at most so many bytes."""
    try:
        return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: not text in UTF-8 ({e})") from None


def read_json(path):
    """The JSON object in a file, as a dict."""
    try:
        raw = read_bytes(path, MOST_JSON)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file") from None
    try:
        raw = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path}: not JSON ({one_line(e)})") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(raw).__name__}")
    return raw


def to_json(value):
    """JSON text of dicts, lists, texts and numbers, also NumPy's, and paths.  ``ValueError`` with
    one line for anything else."""
    def plain(x):
        if isinstance(x, np.generic):
            return x.item()
        if isinstance(x, os.PathLike):
            return str(x)
        raise ValueError(f"{x!r:.60} cannot be kept in a file: it is neither a number nor a text")
    return json.dumps(value, default=plain)


def heads(archive):
    """{name: (shape, dtype)} of the arrays in an ``.npz``, an open ``ZipFile``, without reading
    them.  Raises ``ValueError`` for one that is to be larger than its file."""
    found = {}
    for info in archive.infolist():
        name = printable(info.filename.removesuffix(".npy"))
        with archive.open(info) as f:
            shape, _, dtype = read_head(f)
        if math.prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"'{name}' should have {math.prod(shape):,} numbers, and has "
                             f"{info.file_size:,} bytes")
        found[name] = shape, dtype
    return found


def read_head(f):
    """(shape, whether in Fortran order, dtype) at the beginning of an ``.npy`` file."""
    head = {(1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0}[np.lib.format.read_magic(f)]
    return head(f)


def stored_json(archive, name, most):
    """The JSON object in a text of at most so many bytes in an ``.npz``, an open ``ZipFile``."""
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > most:
        raise ValueError(f"its {name} has {info.file_size:,} bytes")
    with archive.open(info) as f:
        shape, _, dtype = read_head(f)
        raw = f.read()
    if dtype.kind != "U" or shape or len(raw) != dtype.itemsize:
        raise ValueError(f"its {name} is no text")
    value = json.loads(str(np.frombuffer(raw, dtype)[0]))
    if not isinstance(value, dict):
        raise ValueError(f"its {name} is no JSON object")
    return value


def is_name(x):
    """Whether this may be the name of an array or of a file: a text that fits on a line."""
    return isinstance(x, str) and x.isprintable() and 0 < len(x) < 200


def printable(name):
    """The name of an array in a file.  Raises ``ValueError`` for one that fits on no line."""
    if not is_name(name):
        raise ValueError(f"it has the name {name!r:.60}")
    return name


def one_line(error):
    """An exception's kind and message on one line of at most 200 characters."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200)
