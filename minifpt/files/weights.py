"""Weight files: find them by name, load and save them.

A weight file is an ``.npz`` with an array for each parameter under GPT-2's name, float16 or
float32, and a text ``config``, the model's shape and origin as JSON.  Loading never unpickles, so
no file can run code.  A checkpoint of Transformers is read directly (see ``huggingface``), or
converted once to such a file.
"""

import os
import sys
import zipfile
from functools import cache
from pathlib import Path
from textwrap import shorten

import numpy as np

from ..machine import shared
from ..users import suggestion
from . import (
    DAMAGE,
    cache_folder,
    huggingface,
    one_line,
    printable,
    read_head,
    regular,
    stored_json,
    to_json,
    write_beside,
)
from .huggingface import Tensor

PACKAGE = Path(__file__).resolve().parent.parent
MOST_CONFIG = 1 << 20                                     # bytes of a file's config


def folders():
    """Return the folders with weights: the package's (in the package when installed, beside it in
    a checkout), then the user's cache folder."""
    return [PACKAGE / "pretrained", PACKAGE.parent / "weights", cache_folder() / "weights"]


def available():
    """Return the names of all weights in these folders."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.npz")})


def origin(name):
    """Return the origin of the weights ``name`` as text: hub id and commit, or a command."""
    try:
        config, _ = load(find(name))
    except (ValueError, OSError) as e:
        return one_line(e)
    parts = [str(config[key]) for key in ("command", "source", "revision") if key in config]
    return shorten(" ".join(parts[:1] if "command" in config else parts) or "not known", 120)


def find(name):
    """Return the path of weights, from a name such as ``minigpt-language``, or from a path: an
    ``.npz`` file, or a folder or file that Transformers saved."""
    if not isinstance(name, (str, os.PathLike)):
        raise ValueError(f"no weights {name!r:.60}: expected a name or a path")
    if not str(name).strip():                             # Path("") is the working folder
        raise FileNotFoundError(f"no weights {name!r}: expected a name or a path")
    if Path(name).is_file() or huggingface.is_checkpoint(name):
        return Path(name)
    for folder in folders():
        path = folder / f"{file_name(name)}.npz"
        if path.exists():
            local = Path(f"{name}.npz")
            if local.is_file() and not local.samefile(path):
                _tell_apart(name, path, local)
            return path
    if Path(name).is_dir():
        huggingface.tensor_file(Path(name))               # its error names the missing files
    hint = f"; 'minifpt convert {name}' downloads it" if name in huggingface.HUB else ""
    near = suggestion(name, [*available(), "random", "mimetic", *huggingface.HUB])
    raise FileNotFoundError(f"no weights '{name}'{near}: neither a path nor one of "
                            f"{', '.join(available()) or '(none installed)'}{hint}")


@cache                                                    # once in a process
def _tell_apart(name, path, local):
    print(f"minifpt: '{name}' is {path}; write ./{local} for the file in this folder",
          file=sys.stderr)


def shipped(file):
    """Return the path of another file that comes with the shipped weights."""
    for folder in folders()[:2]:
        if (folder / file).is_file():
            return folder / file
    raise FileNotFoundError(f"{file} was not installed with this package")


def file_name(name):
    """Return the file name of a hub id: ``owner--name`` for ``owner/name``."""
    return str(name).replace("/", "--")


def load(path, dropout=None):
    """Return ``(config, tensors)`` of a weight file or a checkpoint of Transformers: a dict, and
    {name: :class:`minifpt.files.huggingface.Tensor`}, whose numbers are not read yet.
    ``dropout`` replaces the file's.

    Raises ``ValueError`` if the file is not a weight file or is damaged.
    """
    if huggingface.is_checkpoint(path):
        return huggingface.load_checkpoint(path, dropout)
    try:
        archive = zipfile.ZipFile(regular(path))          # closes with its last tensor
        tensors = {}
        for info in archive.infolist():
            name = printable(info.filename.removesuffix(".npy"))
            if name != "config":
                tensors[name] = _tensor(archive, info, f"{path}: '{name}'")
        config = stored_json(archive, "config", MOST_CONFIG)
    except (FileNotFoundError, PermissionError):
        raise
    except (*DAMAGE, OSError) as e:
        raise ValueError(f"{path}: not a minifpt weight file, or damaged "
                         f"({one_line(e)})") from None
    return config | ({} if dropout is None else {"dropout": dropout}), tensors


def _tensor(archive, info, label):
    """Return an array of an ``.npz``, of which only the header is read."""
    with archive.open(info) as f:
        shape, fortran_order, dtype = read_head(f)
        start = f.tell()
    if dtype.kind != "f" or fortran_order:
        raise ValueError(f"{label} has dtype {dtype}{' in Fortran order' * fortran_order}, "
                         "expected float16 or float32 in C order")

    def open_at_numbers():
        f = archive.open(info)
        f.read(start)
        return f
    return Tensor(label, shape, dtype, open_at_numbers)


def matched(path, named, tensors, unused=()):
    """Return [(name, tensor, array)] for the (name, array) pairs of a model, with the tensors of a
    weight file.

    Raises ``ValueError`` for a name that the file lacks, for a name that is neither a parameter
    nor in ``unused``, and for another shape.
    """
    expected, names = {name for name, _ in named}, {*tensors}
    for verb, wrong_names in (("lacks", expected - names),
                              ("also holds", names - expected - {*unused})):
        if wrong_names:
            raise ValueError(f"{path}: {verb} '{min(wrong_names)}': it does not fit the model that "
                             "its config describes")
    for name, y in named:
        if tensors[name].shape != y.shape:
            raise ValueError(f"{path}: '{name}' has shape {tensors[name].shape}, expected "
                             f"{y.shape}")
    return [(name, tensors[name], y) for name, y in named]


def read_into(path, named, tensors, unused=()):
    """Fill the (name, array) pairs of a model from the ``tensors`` of a weight file, on all cores.
    Raises ``ValueError`` as :func:`matched` does, and for numbers that are not finite."""
    def read(piece):
        name, tensor, y = piece
        flat, start = y.reshape(-1), 0
        for block in tensor.blocks():
            if not np.isfinite(block).all():
                raise ValueError(f"{path}: '{name}' holds a NaN or an infinity")
            flat[start:start + block.size] = block
            start += block.size
    pieces = matched(path, named, tensors, unused)
    shared(read, sorted(pieces, key=lambda piece: -piece[2].size))       # the largest first


def save(path, config, named_arrays, dtype=np.float16):
    """Write a weight file of (name, array) pairs."""
    write(path, config, ((name, np.shape(a), [a]) for name, a in named_arrays), dtype)


def write(path, config, tensors, dtype):
    """Write a weight file block by block, so that only one block is in memory.

    ``tensors`` yields (name, shape, blocks); the blocks hold the tensor's numbers in order.  The
    file is as ``np.savez`` writes it, but without the time, so that equal weights give equal
    bytes.  Raises ``ValueError`` if a number is not finite or too large for ``dtype``.
    """
    dtype = weight_dtype(dtype)

    def entry(archive, name):
        return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)

    def write_all(f):
        with zipfile.ZipFile(f, "w") as archive:
            with entry(archive, "config") as g:
                np.lib.format.write_array(g, np.array(to_json(config)), allow_pickle=False)
            for name, shape, blocks in tensors:
                with entry(archive, name) as g:
                    np.lib.format.write_array_header_1_0(g, {
                        "descr": dtype.str, "fortran_order": False, "shape": tuple(shape)})
                    for block in blocks:
                        g.write(cast(block, dtype, f"{path}: '{name}'").data)
    write_beside(path, write_all)


def weight_dtype(dtype):
    """Return the dtype of a weight file: float16 or float32."""
    if dtype not in ("float16", "float32", np.float16, np.float32):
        raise ValueError(f"weights: dtype is {dtype}, expected float16 or float32")
    return np.dtype(dtype)


def cast(block, dtype, label):
    """Return numbers in a file's dtype.  Raises ``ValueError``, which begins with ``label``, for
    numbers that the dtype cannot hold."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(block, dtype)
    if np.isfinite(cast).all():
        return cast
    if not np.isfinite(block).all():
        raise ValueError(f"{label} holds a NaN or an infinity")
    raise ValueError(f"{label} holds numbers beyond {np.finfo(dtype).max}, the largest {dtype}: "
                     "write float32")
