"""Tasks and trunks in files of the user's own, by the name ``FILE.py:NAME``."""

import ast
import importlib.util
import re
import sys
import zlib
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path

from .files import one_line, read_bytes
from .users import message, shown, suggestion, users_code

USERS_OWN = re.compile(r"(?s)(.+\.py):([A-Za-z_]\w*)")


def load_object(text):
    """Return the class or function ``FILE.py:NAME``; a file that has changed is run again."""
    path, name = USERS_OWN.fullmatch(text).groups()
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{text}: there is no file {path}")
    module = run_file(path.resolve(), read_bytes(path))
    if not callable(getattr(module, name, None)):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(f"{path}: it has no function or class '{name}'{suggestion(name, names)}")
    return getattr(module, name)


@cache
def run_file(path, code):
    """Return a Python file as a module; it may import modules beside it."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"minifpt_user_{path.stem}", path)
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
    names = [name for text in texts for name in own_names(text)]
    for name in names:
        if not Path(name[1]).is_file():
            raise FileNotFoundError(f"{name[0]}: there is no file {name[1]}")
    try:
        code = [ast.unparse(ast.parse(read_bytes(path)))
                for name in names for path in with_imports(Path(name[1]))]
    except (SyntaxError, RecursionError, ValueError) as e:
        raise ValueError(f"{names[0][1]}: not Python ({one_line(e)})") from None
    return f"{zlib.crc32(''.join(code).encode()):08x}" if code else None


def own_names(text):
    """Return the match of every ``FILE.py:NAME`` in the name of a task or trunk."""
    whole = USERS_OWN.fullmatch(text)
    parts = [text] if whole and Path(whole[1]).is_file() else re.split("[+=]", text)
    return [match for part in parts if (match := USERS_OWN.fullmatch(part))]


def with_imports(path):
    """Return a Python file, and the modules that it imports from its folder or from folders in it,
    without running them."""
    finder = ModuleFinder([str(path.parent)], excludes=["minifpt"])
    finder.run_script(str(path))
    files = {module.__file__ for module in finder.modules.values() if module.__file__}
    return [path, *sorted(Path(file) for file in files - {str(path)} if file.endswith(".py"))]
