"""Weight files: find them by name, load and save them.

A weight file is an ``.npz`` with one array for each parameter under GPT-2's own name
(float16 or float32) and a text ``config``: the model's shape and where it came from, as
JSON.  Loading never unpickles, so no file can run code.  What Transformers saved is read as
it is (see ``huggingface``), or converted once to such a file.
"""

import json
import math
import os
import struct
import zipfile
from pathlib import Path

import numpy as np

from ..fast import shared
from . import DAMAGE, cache_folder, huggingface, one_line, write_beside

PACKAGE = Path(__file__).resolve().parent.parent


def folders():
    """Where weights are looked for by name: what the package ships (inside the package
    when installed, beside it in a checkout), then the user's cache folder."""
    return [PACKAGE / "pretrained", PACKAGE.parent / "weights", cache_folder() / "weights"]


def available():
    """The names of all weights that :func:`find` finds."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.npz")})


def find(name):
    """The path of weights from their name (``minigpt-language``), or their own path: an
    ``.npz`` file, or a folder or file that Transformers saved."""
    if Path(name).is_file() or huggingface.is_checkpoint(name):
        return Path(name)
    for folder in folders():
        path = folder / f"{file_name(name)}.npz"
        if path.exists():
            return path
    if Path(name).is_dir():
        huggingface.tensor_file(Path(name))               # says what the folder lacks
    hint = f"; 'minifpt convert {name}' fetches it" if name in huggingface.HUB else ""
    raise FileNotFoundError(f"no weights '{name}': neither a path nor one of "
                            f"{', '.join(available()) or '(none installed)'}{hint}")


def file_name(name):
    """The name of a hub id's file: ``owner/name`` is ``owner--name``."""
    return str(name).replace("/", "--")


def load(path, dropout=None):
    """``(config, arrays)`` of a weight file, or of what Transformers saved; an array is read
    when it is asked for.  ``dropout`` stands in for the file's.

    Raises ``ValueError`` with one line when the file is no weight file or is damaged.
    """
    if huggingface.is_checkpoint(path):
        checkpoint = huggingface.Checkpoint(path, dropout)
        return checkpoint.config, checkpoint
    arrays = None
    try:
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("a single array")
        config = json.loads(str(arrays["config"]))
        if not isinstance(config, dict):
            raise ValueError("its config is no JSON object")
    except (*DAMAGE, IsADirectoryError) as e:
        if isinstance(arrays, np.lib.npyio.NpzFile):
            arrays.close()
        raise ValueError(f"{path}: not a minifpt weight file, or damaged "
                         f"({one_line(e)})") from None
    return config | ({} if dropout is None else {"dropout": dropout}), CheckedArrays(path, arrays)


class CheckedArrays:
    """The arrays of an ``.npz`` by name; a damaged one raises a one-line ``ValueError``."""

    def __init__(self, path, arrays):
        self.path, self.arrays = path, arrays

    def close(self):
        """Close the file."""
        self.arrays.close()

    def names(self):
        """The names of all arrays."""
        return [name for name in self.arrays if name != "config"]

    def tensor(self, name):
        """One array, not read yet: its ``.shape`` and its ``.blocks()``."""
        try:
            tensor = self._stored(name) or Held(self.arrays[name])
        except DAMAGE as e:
            raise ValueError(f"{self.path}: array '{name}' is damaged "
                             f"({one_line(e)})") from None
        if isinstance(tensor, Held) and tensor.array.dtype.kind != "f":
            raise ValueError(f"{self.path}: '{name}' has dtype {tensor.array.dtype}, expected "
                             "float16 or float32")
        return tensor

    def _stored(self, name):
        """An array that lies in the file as it does in memory, as ours do: to read it there
        is several times faster than through ``zipfile``.  ``None`` for any other."""
        archive = self.arrays.zip
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as f:                     # checks that the entry is whole
            if info.compress_type != zipfile.ZIP_STORED or np.lib.format.read_magic(f) != (1, 0):
                return None
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(f)
            n = f.tell()
        code = {np.dtype(d): code for code, d in huggingface.DTYPES.items()
                if d.startswith("<f")}.get(dtype)
        if code is None or fortran_order or info.file_size != n + math.prod(shape) * dtype.itemsize:
            return None
        with open(self.path, "rb") as f:
            f.seek(info.header_offset)
            local = struct.unpack("<26x2H", f.read(30))   # how long its name and extras are
            start = f.seek(sum(local), os.SEEK_CUR)
            before = f.read(n)
        return huggingface.StoredTensor(self.path, name, code, shape, start + n, info.CRC, before)


class Held:
    """An array in memory, with what a :class:`minifpt.huggingface.StoredTensor` has."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def blocks(self):
        """All of it at once, flat."""
        yield self.array.reshape(-1)


def matched(named, arrays, unused=()):
    """(name, tensor, array) for each (name, array) of a model: its tensor in a weight file.

    Raises ``ValueError`` with one line for a name that the file lacks, for one that it holds
    besides these and ``unused``, and for another shape.
    """
    known, held = {name for name, _ in named}, set(arrays.names())
    for what, names in (("lacks", known - held), ("also holds", held - known - set(unused))):
        if names:
            raise ValueError(f"{arrays.path}: {what} '{min(names)}': it does not fit the model "
                             "that its config describes")
    for name, y in named:
        tensor = arrays.tensor(name)
        if tensor.shape != y.shape:
            raise ValueError(f"{arrays.path}: '{name}' has shape {tensor.shape}, the model wants "
                             f"{y.shape}")
        yield name, tensor, y


def read_into(named, arrays, unused=()):
    """Fill each (name, array) of a model from a weight file's ``arrays``, on all cores; checked
    as by :func:`matched`, and every number must be finite."""
    def read(piece):
        name, tensor, y = piece
        flat, start = y.reshape(-1), 0
        for block in tensor.blocks():
            if not np.isfinite(block).all():
                raise ValueError(f"{arrays.path}: '{name}' holds a NaN or an infinity")
            flat[start:start + block.size] = block
            start += block.size
    pieces = []
    for piece in matched(named, arrays, unused):
        if isinstance(piece[1], Held):                    # one of these in memory at a time
            read(piece)
        else:
            pieces.append(piece)
    shared(read, sorted(pieces, key=lambda piece: -piece[2].size))


def save(path, config, named_arrays, dtype=np.float16):
    """Write a weight file, beside its target first and then renamed over it."""
    write(path, config, ((name, np.shape(a), [a]) for name, a in named_arrays), dtype)


def write(path, config, tensors, dtype):
    """Write a weight file piece by piece, so that no more than a piece is ever in memory.

    tensors gives (name, shape, blocks), the blocks together the tensor's numbers in order.
    The file is what ``np.savez`` would write, without the time: equal weights, equal bytes.
    Raises ``ValueError`` when a number is too large for ``dtype``.
    """
    dtype = weight_dtype(dtype)

    def entry(archive, name):
        return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)

    def write_all(f):
        with zipfile.ZipFile(f, "w") as archive:
            with entry(archive, "config") as g:
                np.lib.format.write_array(g, np.array(json.dumps(config)), allow_pickle=False)
            for name, shape, blocks in tensors:
                with entry(archive, name) as g:
                    np.lib.format.write_array_header_1_0(g, {
                        "descr": dtype.str, "fortran_order": False, "shape": tuple(shape)})
                    for block in blocks:
                        g.write(_cast(block, dtype, f"{path}: '{name}'").data)
    write_beside(path, write_all)


def weight_dtype(dtype):
    """The dtype of a weight file: float16 or float32."""
    try:
        if np.dtype(dtype) in (np.float16, np.float32):
            return np.dtype(dtype)
    except TypeError:
        pass
    raise ValueError(f"weights: dtype is {dtype}, expected float16 or float32")


def _cast(block, dtype, what):
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(block, dtype)
    except FloatingPointError:
        raise ValueError(f"{what} holds numbers beyond {np.finfo(dtype).max}, the largest "
                         f"{dtype}: write float32") from None
