"""Output files at paths that the user names.  A file that minifpt did not write is never replaced.

An output is recognised by its content.  A page, a table in Markdown or an SVG ends with a comment
with its kind and the CRC of its text, so that a text to which the user added notes is not replaced
either.  A PNG has its kind in its field ``Software``.  A CSV has its columns.
"""

import os
import struct
import zlib
from pathlib import Path

from . import csv_text, save_text, unfinished

LARGEST = 1 << 28                                         # bytes of a text that is compared


def check(path, kind):
    """Raise ``ValueError`` or ``OSError`` unless ``path`` can be written: a new file, or one that
    minifpt wrote as this kind of output.

    kind   a text such as "table"; for a CSV the list of its columns.
    """
    path = Path(path)
    try:
        os.lstat(path)                                    # also raises for a name that is too long
        exists = True
    except FileNotFoundError:
        exists = False
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file")
    if exists and not is_output(path, kind):
        raise ValueError(f"{path} is there already, and minifpt did not write it as this kind of "
                         "output, or it was changed since: choose another name or folder")
    folder = next(p for p in path.absolute().parents if p.exists())
    trial = unfinished(folder / path.name)
    try:
        open(trial, "xb").close()
        trial.unlink()
    except OSError as e:
        e.filename = str(path)
        raise


def is_output(path, kind):
    """Return whether minifpt wrote the file as this kind of output."""
    path = Path(path)
    if not path.is_file():                                # a device would not end
        return False
    with open(path, "rb") as f:
        head = f.read(4096)
    if isinstance(kind, list):
        return head.decode("utf-8", "replace").partition("\n")[0].rstrip("\r") == ",".join(kind)
    if head.startswith(b"\x89PNG"):
        field = b"Software\0" + software(kind).encode()
        return struct.pack(">I", len(field)) + b"tEXt" + field in head
    if path.stat().st_size > LARGEST:
        return False
    text = path.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")
    return text == signed(text.rpartition("<!--")[0], kind)


def software(kind):
    """Return the field ``Software`` of a PNG."""
    return f"minifpt {kind}"


def signed(text, kind):
    """Return the text with the comment by which it is recognised."""
    text = text.replace("\r\n", "\n")                     # as it is read back
    return f"{text}<!-- minifpt {kind} {zlib.crc32(text.encode()):08x} -->\n"


def write_text(path, kind, text):
    """Write a page, a table in Markdown or an SVG, and return its size in bytes."""
    check(path, kind)
    text = signed(text, kind)
    save_text(path, text)
    return len(text.encode())


def write_csv(path, columns, rows):
    """Write dictionaries as a CSV with these columns; ``rows`` may be its text."""
    check(path, columns)
    save_text(path, rows if isinstance(rows, str) else csv_text(rows, columns))
