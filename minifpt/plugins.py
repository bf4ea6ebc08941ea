"""Tasks and trunks in files of the user's own, by the name ``FILE.py:NAME``, and their errors in
one line: file, line and method."""

import ast
import importlib.util
import os
import re
import sys
import traceback
import zlib
from contextlib import contextmanager, suppress
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path

from .spelling import suggestion

USERS_OWN = re.compile(r"(?s)(.+\.py):([A-Za-z_]\w*)")
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


def load_object(text):
    """Return the class or function ``FILE.py:NAME``; a file that has changed is run again, as is
    one that imports a changed module from its folder."""
    match, imports = USERS_OWN.fullmatch(text), ()
    path, name = Path(match[1]), match[2]
    with suppress(SyntaxError, ValueError, RecursionError):           # run_file tells it better
        imports = tuple((file.resolve(), file.read_bytes()) for file in with_imports(match)[1:])
    module = run_file(path.resolve(), Path(path).read_bytes(), imports)
    if not callable(getattr(module, name, None)):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(f"{path}: it has no function or class '{name}'{suggestion(name, names)}")
    return getattr(module, name)


@cache
def run_file(path, code, imports=()):
    """Return a Python file as a module; it may import modules beside it.

    imports   (path, code) of each of them; where the file runs again, so do they."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"minifpt_user_{path.stem}", path)
    files = [str(file) for file, _ in imports if spec.name in sys.modules]
    for name, other in [*sys.modules.items()]:
        if getattr(other, "__file__", None) in files:
            del sys.modules[name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module                       # as dataclasses and pickle expect
    try:
        code = compile(code, path, "exec")                # leaves no *.pyc behind
    except (ValueError, SyntaxError, RecursionError, MemoryError) as e:
        line = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise ValueError(f"{shown(path)}{line}: {message(e)}") from e
    with users_code():
        exec(code, vars(module))
    return module


def code_crc(*texts):
    """Return a CRC-32 of the code, without comments and layout, of every ``FILE.py:NAME`` in names
    of tasks and trunks, and of modules beside these files that they import; or ``None``."""
    matches = [match for text in texts for match in own_names(text)]
    try:
        code = [ast.unparse(ast.parse(Path(path).read_bytes()))
                for match in matches for path in with_imports(match)]
    except (SyntaxError, RecursionError, ValueError) as e:
        raise ValueError(f"{matches[0][1]}: not Python ({message(e)})") from None
    return f"{zlib.crc32(''.join(code).encode()):08x}" if code else None


def own_names(text):
    """Return the match of every ``FILE.py:NAME`` in the name of a task or trunk."""
    whole = USERS_OWN.fullmatch(text)
    parts = [text] if whole and Path(whole[1]).is_file() else re.split("[+=]", text)
    return [match for part in parts if (match := USERS_OWN.fullmatch(part))]


def with_imports(match):
    """Return the path of the file of a ``FILE.py:NAME``, and those of the modules that it imports
    from its folder or from folders in it, without running them."""
    path = Path(match[1])
    if not path.is_file():
        raise FileNotFoundError(f"{match[0]}: there is no file {path}")
    finder = ModuleFinder([str(path.parent)], excludes=["minifpt"])
    finder.run_script(str(path))
    files = {module.__file__ for module in finder.modules.values() if module.__file__}
    return [path, *sorted(Path(file) for file in files - {str(path)} if file.endswith(".py"))]
