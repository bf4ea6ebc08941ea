"""Tasks and trunks in files of the user's own, by the name ``FILE.py:NAME``, and their errors in
one line: file, line and method."""

import builtins
import importlib.util
import os
import re
import sys
import traceback
import types
import zlib
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder, SourceFileLoader
from pathlib import Path

from .spelling import suggestion

USERS_MODULES = "minifpt_user_"                           # the names of modules in a user's files
USERS_OWN = re.compile(r"(?s)(.+\.py):([A-Za-z_]\w*)")
LOADED = {}                                               # {module: (its file, the text that ran)}


class UsersError(ValueError):
    """An error from a file of the user's own, as one line."""


def place(error):
    """Return ``FILE, line N, in METHOD`` of the user's code that raised an error, or ``""`` for
    other code."""
    frames = [(f, line) for f, line in traceback.walk_tb(error.__traceback__)
              if str(f.f_globals.get("__name__")).startswith(USERS_MODULES)]
    if not frames:
        return ""
    frame, line = frames[-1]
    method = frame.f_code.co_qualname
    return f"{shown(frame.f_code.co_filename)}, line {line}" + (
        f", in {method}" if method != "<module>" else "")


def loaded():
    """Return whether a file of the user's own has been run."""
    return any(name.startswith(USERS_MODULES) for name in sys.modules)


def shown(path):
    """Return a path as the user may have written it: relative below the working folder."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def message(error):
    """Return the class and text of an error on one line."""
    if isinstance(error, SystemExit):
        return "it ends the program, by sys.exit() or quit(): let it raise a ValueError instead"
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
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


def compiled(text, path):
    """Return the code of a file of the user's own, from its text.  Raises :class:`UsersError`."""
    try:
        return compile(text, path, "exec", dont_inherit=True)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as e:
        line = f", line {e.lineno}" if getattr(e, "lineno", None) else ""
        raise UsersError(f"{shown(path)}{line}: {message(e)}") from e


class Loader(SourceFileLoader):
    """Runs a file of the user's own, as it is now: no ``*.pyc`` is read or left behind."""

    def get_code(self, fullname):
        text = self.get_data(self.path)
        LOADED[fullname] = Path(self.path), text
        return compiled(text, self.path)

    def exec_module(self, module):
        package = module.__name__.partition(".")[0]
        folder, = getattr(sys.modules.get(package), "__path__", [os.path.dirname(self.path)])
        module.__builtins__ = builtins_for(folder)
        super().exec_module(module)


class Finder:
    """Finds the modules of users' folders.  Each folder is a package of its own, since two folders
    may have modules of one name."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name.startswith(USERS_MODULES) else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)


def package_of(folder):
    """Return the name of the package that a user's folder is."""
    return f"{USERS_MODULES}{zlib.crc32(os.fsencode(folder)):08x}"


def builtins_for(folder):
    """Return Python's builtins with an ``import`` that finds the modules of a folder first, as
    ``python FILE.py`` does."""
    package = types.ModuleType(package_of(folder))
    package.__path__ = [folder]
    sys.modules.setdefault(package.__name__, package)

    def find(name, globals=None, locals=None, fromlist=(), level=0):
        top = name.partition(".")[0]
        if level or not is_in(folder, top):
            return __import__(name, globals, locals, fromlist, level)
        module = __import__(f"{package.__name__}.{name}", globals, locals, fromlist)
        return module if fromlist else getattr(module, top)
    return vars(builtins) | {"__import__": find}


def is_in(folder, name):
    """Return whether ``import name`` in a file of this folder means a module of the folder, and
    not minifpt, a part of Python's program, or what the user's program imported from there."""
    if name == "minifpt" or BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
        return False
    spec, loaded = PathFinder.find_spec(name, [folder]), sys.modules.get(name)
    if spec is None or spec.origin is not None:
        return spec is not None and spec.origin != getattr(loaded, "__file__", None)
    other = importlib.util.find_spec(name)                # a folder without __init__.py comes last
    return other is None or other.origin is None


def load_object(text):
    """Return the class or function ``FILE.py:NAME``; a file that has changed is run again, as is
    one of whose folder a module has changed."""
    path, name = USERS_OWN.fullmatch(text).groups()
    if not Path(path).is_file():
        raise FileNotFoundError(f"{text}: there is no file {path}")
    module = run_file(Path(path).resolve())
    if not callable(getattr(module, name, None)):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(f"{path}: it has no function or class '{name}'{suggestion(name, names)}")
    return getattr(module, name)


def run_file(path):
    """Return a Python file as a module."""
    name = f"{package_of(path.parent)}_{path.stem}"
    forget_changed(path.parent)
    if name not in sys.modules:
        spec = importlib.util.spec_from_loader(name, Loader(name, str(path)))
        sys.modules[name] = importlib.util.module_from_spec(spec)     # as dataclasses expect
        try:
            with users_code():
                spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def forget_changed(folder):
    """Forget all modules of a user's folder where the file of one has changed, so that they run
    again."""
    importlib.invalidate_caches()                         # of what the folders hold
    package = package_of(folder)
    files = {name: pair for name, pair in LOADED.items() if name.startswith(package)}
    if any(not path.is_file() or path.read_bytes() != text for path, text in files.values()):
        for name in [name for name in sys.modules if name.startswith(package)]:
            LOADED.pop(name, None)
            del sys.modules[name]
