"""Output files at paths that the user names: one that is there is replaced only by force."""

import os
from pathlib import Path

from . import nearest_folder, save_text, unfinished


def check(path, force=False):
    """Raise ``ValueError`` or ``OSError`` unless a file can be written at ``path``: a new one, or
    with ``force`` one instead of the file there."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file")
    if os.path.lexists(path) and not force:
        raise ValueError(f"{path} is there already: choose another name, or replace it with "
                         "--force (in Python force=True)")
    trial = unfinished(nearest_folder(path.parent) / path.name)
    try:
        trial.touch()                                     # also fails for a name that is too long
        trial.unlink()
    except OSError as e:
        e.filename = str(path)
        raise


def write_text(path, text, force=False):
    """Write a text file and return its size in bytes."""
    check(path, force)
    save_text(path, text)
    return len(text.encode())
