"""Output files at paths that the user names.  A file that minifpt did not write is never replaced.

An output is recognised by its mark.  A page, a table in Markdown or an SVG ends with a comment that
names its kind.  A PNG has its kind in its field ``Software``.  A CSV has its columns.
"""

import os
import struct
from pathlib import Path

from . import csv_text, save_text, unfinished


def check(path, kind):
    """Raise ``ValueError`` or ``OSError`` unless ``path`` can be written: a new file, or one that
    minifpt wrote as this kind of output.

    kind   a text such as "table"; for a CSV the list of its columns.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file")
    if os.path.lexists(path) and not is_output(path, kind):
        raise ValueError(f"{path} is there already, and minifpt did not write it as this kind of "
                         "output: choose another name or folder")
    folder = next(p for p in path.parents if p.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder")
    trial = unfinished(folder / path.name)
    try:
        open(trial, "xb").close()                         # also fails for a name that is too long
        trial.unlink()
    except OSError as e:
        e.filename = str(path)
        raise


def check_picture(where, path, kind):
    """Check a picture's path as :func:`check` does, and that its name ends in .png."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"{where}: the picture would be {path}, expected a name that ends in .png")
    check(path, kind)


def is_output(path, kind):
    """Return whether minifpt wrote the file as this kind of output."""
    path = Path(path)
    if not path.is_file():                                # a device would not end
        return False
    with open(path, "rb") as f:
        head = f.read(4096)
        f.seek(max(0, path.stat().st_size - 200))
        tail = f.read()
    if isinstance(kind, list):
        return head.decode("utf-8", "replace").partition("\n")[0].rstrip("\r") == ",".join(kind)
    if head.startswith(b"\x89PNG"):
        field = b"Software\0" + software(kind).encode()
        return struct.pack(">I", len(field)) + b"tEXt" + field in head
    return tail.rstrip().endswith(f"<!-- {software(kind)} -->".encode())


def software(kind):
    """Return the mark of an output."""
    return f"minifpt {kind}"


def write_text(path, kind, text):
    """Write a page, a table in Markdown or an SVG, with its mark; return its size in bytes."""
    check(path, kind)
    text += f"<!-- {software(kind)} -->\n"
    save_text(path, text)
    return len(text.encode())


def write_csv(path, columns, rows):
    """Write dictionaries as a CSV with these columns; ``rows`` may be its text."""
    check(path, columns)
    save_text(path, rows if isinstance(rows, str) else csv_text(rows, columns))
