"""Output files at paths that the user names: a command never replaces a file that minifpt did not
write as the same kind of output.

A page and a table in Markdown end with a comment that names their kind.  A PNG has it in
its field ``Software``.  A CSV has its columns.
"""

import os
from pathlib import Path

from . import nearest_folder, save_text, unfinished


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
    trial = unfinished(nearest_folder(path.parent) / path.name)
    try:
        trial.touch()                                     # also fails for a name that is too long
        trial.unlink()
    except OSError as e:
        e.filename = str(path)
        raise


def is_output(path, kind):
    """Return whether minifpt wrote the file as this kind of output."""
    data = Path(path).read_bytes() if Path(path).is_file() else b""     # a device would not end
    if isinstance(kind, list):
        head = data.partition(b"\n")[0].rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")     # Excel's
        return head == ",".join(kind).encode()
    mark = software(kind).encode()
    return (data.rstrip().endswith(b"<!-- " + mark + b" -->")
            or data.startswith(b"\x89PNG") and b"tEXtSoftware\0" + mark in data[:4096])


def software(kind):
    """Return the mark of an output."""
    return f"minifpt {kind}"


def write_text(path, kind, text):
    """Write a page or a table in Markdown, with its mark; return its size in bytes."""
    check(path, kind)
    text += f"<!-- {software(kind)} -->\n"
    save_text(path, text)
    return len(text.encode())


def write_csv(path, columns, text):
    """Write the text of a CSV with these columns."""
    check(path, columns)
    save_text(path, text)
