"""Report an error in a task or trunk of the user's own in one line: file, line and method, and say
which name a misspelt word may mean."""

import difflib
import os
import sys
import traceback
from contextlib import contextmanager

# A user's files run as modules with these prefixes: FILE.py:NAME, and --functional FILE.
MODULES = "minifpt_user_", "minifpt_own"


class UsersError(ValueError):
    """An error from a file of the user's own, as one line."""


def place(error):
    """Return ``FILE, line N, in METHOD`` of the user's code that raised an error, or ``""`` for
    other code."""
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
    """Return a path as the user may have written it: relative below the working folder."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):                         # another drive, or no folder any more
        return path
    return path if relative.startswith("..") else relative


def message(error):
    """Return the class and text of an error on one line."""
    if isinstance(error, SystemExit):
        return "it ends the program, by sys.exit() or quit(): let it raise a ValueError instead"
    try:
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    except Exception:                                     # the user's own class may fail as text
        text = ""
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__


def suggestion(word, names, synonyms=None):
    """Return " (did you mean 'NAME'?)" with the name that is nearest to a word, or "".

    synonyms   {another word: the name that it stands for}."""
    known = {name.lstrip("-"): name for name in names}    # two dashes make all options alike
    known |= synonyms or {}
    near = difflib.get_close_matches(str(word).lower().lstrip("-"), known, 1)
    return f" (did you mean '{known[near[0]]}'?)" if near else ""


@contextmanager
def users_code():
    """Turn an error from a file of the user's own, also ``SystemExit``, into :class:`UsersError`.

    Ctrl-C and errors from other code pass unchanged."""
    try:
        yield
    except (UsersError, KeyboardInterrupt):
        raise
    except BaseException as e:
        where = place(e)
        if not where:
            raise
        raise UsersError(f"{where}: {message(e)}") from e
