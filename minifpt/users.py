"""Errors in a task or trunk of the user's own: one line with the file, the line and the method."""

import os
import sys
import traceback
from contextlib import contextmanager

# What the modules are called that a user's files run as: FILE.py:NAME, and --functional FILE.
MODULES = "minifpt_user_", "minifpt_own"


class UsersError(ValueError):
    """An error that was raised in a file of the user's own, as one line."""


def place(error):
    """Return ``FILE, line N, in METHOD`` of the user's code that raised an error, or ``""`` where
    no file of the user's own was running."""
    frames = [(f, line) for f, line in traceback.walk_tb(error.__traceback__)
              if str(f.f_globals.get("__name__")).startswith(MODULES)]
    if not frames:
        return ""
    frame, line = frames[-1]
    method = frame.f_code.co_qualname
    return f"{shown(frame.f_code.co_filename)}, line {line}" + (
        f", in {method}" if method != "<module>" else "")


def loaded():
    """Return whether a file of the user's own has been run."""
    return any(name.startswith(MODULES) for name in sys.modules)


def shown(path):
    """A path as the user may have written it: relative where it lies below the working folder."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):                         # another drive, or no folder any more
        return path
    return path if relative.startswith("..") else relative


def message(error):
    """Return what an error says, on one line; an ending of the program says so."""
    if isinstance(error, SystemExit):
        return "it ends the program, by sys.exit() or quit(): let it raise a ValueError instead"
    try:
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    except Exception:                                     # its class is the user's own, too
        text = ""
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__


@contextmanager
def users_code():
    """Within, an error that a file of the user's own raises becomes a :class:`UsersError`, also
    ``SystemExit``.  Ctrl-C passes, and so does an error that comes from elsewhere."""
    try:
        yield
    except (UsersError, KeyboardInterrupt):
        raise
    except BaseException as e:
        where = place(e)
        if not where:
            raise
        raise UsersError(f"{where}: {message(e)}") from e
