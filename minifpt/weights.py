"""Weight files: find them by name, load and save them.

A weight file is an ``.npz`` with one array for each parameter under GPT-2's own name
(float16 or float32) and a text ``config``: the model's shape and where it came from, as
JSON.  Loading never unpickles, so no file can run code.
"""

import json
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def cache_folder():
    """The user's cache folder for downloaded data and converted weights."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "minifpt"


def folders():
    """Where weights are looked for by name: what the package ships (inside the package
    when installed, beside it in a checkout), then the user's cache folder."""
    return [HERE / "pretrained", HERE.parent / "weights", cache_folder() / "weights"]


def available():
    """The names of all weights that :func:`find` finds."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.npz")})


def find(name):
    """The path of a weight file from its name (``minigpt-language``) or its own path."""
    if Path(name).exists():
        return Path(name)
    for folder in folders():
        path = folder / f"{name}.npz"
        if path.exists():
            return path
    raise FileNotFoundError(f"no weights '{name}': neither a path nor one of "
                            f"{', '.join(available()) or '(none installed)'}")


def load(path):
    """``(config, arrays)`` of a weight file; an array is read when it is asked for.

    Raises ``ValueError`` with one line when the file is no weight file or is damaged.
    """
    try:
        arrays = np.load(path, allow_pickle=False)
        return json.loads(str(arrays["config"])), CheckedArrays(path, arrays)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, TypeError) as e:
        raise ValueError(f"{path}: not a minifpt weight file, or damaged ({e})") from None


class CheckedArrays:
    """The arrays of an ``.npz`` by name; a damaged one raises a one-line ``ValueError``."""

    def __init__(self, path, arrays):
        self.path, self.arrays = path, arrays

    def __contains__(self, name):
        return name in self.arrays

    def __getitem__(self, name):
        try:
            return self.arrays[name]
        except KeyError:
            raise ValueError(f"{self.path}: holds no array '{name}'") from None
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise ValueError(f"{self.path}: array '{name}' is damaged ({e})") from None


def save(path, config, named_arrays, dtype=np.float16):
    """Write a weight file, beside its target first and then renamed over it."""
    config = np.array(json.dumps(config))
    arrays = {name: np.asarray(a, dtype) for name, a in named_arrays}
    write_beside(path, lambda f: np.savez(f, config=config, **arrays))


def write_beside(path, write, mode="wb"):
    """Call ``write(file)`` on a new file beside ``path``, then rename it over ``path``:
    after a crash the old file stands, or the new one, never half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
