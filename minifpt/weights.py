"""Weight files: find them by name, load and save them.

A weight file is an ``.npz`` with one array for each parameter under GPT-2's own name
(float16 or float32) and a text ``config``: the model's shape and where it came from, as
JSON.  Loading never unpickles, so no file can run code.  What Transformers saved is read as
it is (see ``huggingface``), or converted once to such a file.
"""

import json
import math
import os
import re
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from . import huggingface

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
                         f"({huggingface.one_line(e)})") from None
    return config | ({} if dropout is None else {"dropout": dropout}), CheckedArrays(path, arrays)


# What reading a damaged zip file, or one that is encrypted, or a damaged array may raise.
DAMAGE = (ValueError, KeyError, EOFError, TypeError, RuntimeError, OverflowError, MemoryError,
          zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError)


class CheckedArrays:
    """The arrays of an ``.npz`` by name; a damaged one raises a one-line ``ValueError``."""

    def __init__(self, path, arrays):
        self.path, self.arrays = path, arrays

    def close(self):
        """Close the file; nothing can be read after, but what is held."""
        self.arrays.close()

    def __contains__(self, name):
        return name in self.arrays

    def __getitem__(self, name):
        return huggingface.as_array(self.tensor(name))

    def tensor(self, name):
        """One array, not read yet: its ``.shape`` and its ``.blocks()``."""
        try:
            tensor = self._stored(name) or Held(self.arrays[name])
        except KeyError:
            raise ValueError(f"{self.path}: holds no array '{name}'") from None
        except DAMAGE as e:
            raise ValueError(f"{self.path}: array '{name}' is damaged "
                             f"({huggingface.one_line(e)})") from None
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

    def hold(self):
        """Nothing to do."""

    def blocks(self):
        """All of it at once, flat."""
        yield self.array.reshape(-1)


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


def convert(source, out=None, dtype="float16", progress=True, dropout=None):
    """Write a GPT-2 that Transformers saved as a weight file of ours; returns its path.

    source   ``gpt2``, ``gpt2-medium``, ``gpt2-large``, ``gpt2-xl``, ``distilgpt2``, any hub id
             ``owner/name``, or the path of a folder or file that Transformers saved (see
             :class:`minifpt.huggingface.Checkpoint`).
    out      the file to write, or a folder for it; without one it lies in the user's cache
             folder under the source's name, where ``GPT2.from_pretrained`` finds it by name.
    dtype    ``float16`` or ``float32``.
    dropout  stands in for the source's.

    Tensor by tensor, in blocks: the whole model is never in memory.  The byte-pair encoding's
    ``merges.txt`` and ``vocab.json`` are copied beside the file as ``NAME.merges.txt`` and
    ``NAME.vocab.json``.  Raises ``FileNotFoundError`` or ``ValueError`` with one line.
    """
    from tqdm import tqdm
    dtype = weight_dtype(dtype)
    source = os.fspath(source)
    hub = huggingface.HUB.get(source, source)
    if huggingface.is_checkpoint(source):
        path = Path(source)
        whole = path.stem.split(".")[0] not in ("model", "pytorch_model")
        name = path.stem if path.is_file() and whole else huggingface.tensor_file(
            path.resolve()).parent.name
        origin = {"source": path.resolve().name}
    elif Path(source).exists():
        huggingface.tensor_file(Path(source))             # says what a folder lacks
        raise ValueError(f"convert: {source} is neither a folder that Transformers saved, nor a "
                         ".safetensors or .bin file")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", hub):
        path, name = huggingface.download(hub, progress), file_name(source)
        origin = {"source": hub, "revision": path.name}
    else:
        raise FileNotFoundError(f"convert: '{source}' is neither a path, nor one of "
                                f"{', '.join(huggingface.HUB)}, nor a hub id owner/name")
    out = Path(out) if out else cache_folder() / "weights"
    if out.is_dir() or out == cache_folder() / "weights":
        out = out / f"{name}.npz"
    if out.suffix != ".npz":
        out = out.with_name(out.name + ".npz")
    checkpoint = huggingface.Checkpoint(path, dropout)
    shapes = list(huggingface.parameter_shapes(checkpoint.config))
    bar = tqdm(shapes, desc=name, unit="tensor", delay=1, disable=not progress)
    write(out, checkpoint.config | origin,
          ((key, shape, checkpoint.tensors[key].blocks()) for key, shape in bar), dtype)
    for file in ("merges.txt", "vocab.json"):
        if (checkpoint.folder / file).is_file():
            data = (checkpoint.folder / file).read_bytes()
            write_beside(out.with_name(f"{out.stem}.{file}"), lambda f, data=data: f.write(data))
    return out


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
