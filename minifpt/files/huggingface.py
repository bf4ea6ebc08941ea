"""Read the files that Hugging Face's Transformers saved, also from the hub.

A safetensors file has eight bytes with the length of a header, the header as JSON (each tensor's
dtype, shape and place), then the numbers as they are in memory.  Nothing in it can run code
(https://github.com/huggingface/safetensors#format).
"""

import json
import math
import os
import re
from functools import partial
from pathlib import Path

import numpy as np

from . import is_name, one_line, printable, read_json, refuse_damage

HUB = {name: f"openai-community/{name}" for name in (
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")} | {"distilgpt2": "distilbert/distilgpt2"}

# The files that may hold a folder's tensors; the first one that exists is read.
FILES = ("model.safetensors", "model.safetensors.index.json")
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}    # by safetensors' names


def is_checkpoint(path):
    """Return whether a path looks like Transformers' checkpoint: a folder or file of tensors."""
    path = Path(path)
    if path.is_dir():
        return any((path / file).is_file() for file in FILES)
    return path.is_file() and (path.suffix == ".safetensors" or path.name in FILES)


def settings_of(path):
    """Return the ``config.json`` of a checkpoint as a dict, and its path."""
    path = tensor_file(Path(path)).with_name("config.json")
    return read_json(path), path


class Tensor:
    """An array in a file, whose numbers are read by :meth:`read`.

    label        its name in errors.
    dtype        the file's dtype, uint16 for bfloat16; or the name of a dtype that cannot be
                 read, such as a mask's or float8's.
    read_array   a function that returns the array.
    """

    def __init__(self, label, shape, dtype, read_array):
        self.label, self.shape, self.dtype, self.read_array = label, shape, dtype, read_array

    def is_readable(self):
        """Return whether the array has one of the dtypes that can be read."""
        return not isinstance(self.dtype, str)

    def check_dtype(self):
        """Raise ``ValueError`` for a dtype that cannot be read."""
        if not self.is_readable():
            raise ValueError(f"{self.label} is {self.dtype}, expected one of {', '.join(DTYPES)}")

    def read(self):
        """Return the array, which may be a read-only map of the file.  Raises ``ValueError``."""
        self.check_dtype()
        with refuse_damage(f"{self.label} is damaged"):   # zipfile checks a CRC at the end
            array = self.read_array()
        if self.dtype.kind == "u":                        # the upper half of a float32
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def tensor_file(path):
    """Return the file with the tensors: ``path``, or a file in the folder ``path``."""
    if not path.is_dir():
        return path
    for file in FILES:
        if (path / file).is_file():
            return path / file
    raise FileNotFoundError(f"{path}: the folder holds none of {', '.join(FILES)} (PyTorch's own "
                            ".bin files are pickles and are not read: save it as safetensors)")


def read_tensors(path):
    """Return {name: tensor} of a file of tensors, or of an index and all shards that it names."""
    if path.name.endswith(".index.json"):
        places = read_json(path).get("weight_map")
        if not isinstance(places, dict) or not all(
                is_name(name) and is_name(file) and file == Path(file).name
                for name, file in places.items()):
            raise ValueError(f"{path}: weight_map must give each tensor the name of a file")
        shards = {file: read_safetensors(path.with_name(file))
                  for file in sorted(set(places.values()))}
        for name, file in places.items():
            if name not in shards[file]:
                raise ValueError(f"{path}: says that '{name}' is in {file}, which lacks it")
        return {name: shards[file][name] for name, file in places.items()}
    return read_safetensors(path)


def read_safetensors(path):
    """Return {name: tensor} of a ``.safetensors`` file, without reading the numbers.

    Raises ``ValueError`` if the header does not fit the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        first = 8 + int.from_bytes(f.read(8), "little")   # where the numbers begin
        if not 8 < first <= min(size, 100_000_000):
            raise ValueError(f"{path}: not a safetensors file, or cut short (its header would "
                             f"end at byte {first:,} of {size:,})")
        header = f.read(first - 8)
    tensors, pieces = {}, []
    try:
        for name, entry in json.loads(header).items():
            if name == "__metadata__":
                continue
            dtype, shape, (begin, end) = (entry[key] for key in ("dtype", "shape", "data_offsets"))
            shape = tuple(shape)
            if not (isinstance(dtype, str) and re.fullmatch(r"\w{1,19}", dtype)
                    and all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, begin, end))):
                raise ValueError(f"'{printable(name)}' is {entry!r:.100}")
            if dtype in DTYPES:
                if end - begin != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize:
                    raise ValueError(f"'{name}', {dtype} {shape}, has {end - begin} bytes")
                dtype = np.dtype(DTYPES[dtype])
            tensors[printable(name)] = Tensor(
                f"{path}: '{name}'", shape, dtype,
                partial(_mapped, path, dtype, first + begin, shape))
            pieces.append((begin, end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"{path}: the safetensors header is damaged ({e})") from None
    at = 0
    for begin, end in sorted(pieces):                     # one after the other, without a gap
        if begin != at or end < begin:
            raise ValueError(f"{path}: the safetensors header is damaged (a tensor begins at byte "
                             f"{begin:,}, the one before ends at {at:,})")
        at = end
    if first + at != size:
        raise ValueError(f"{path}: has {size:,} bytes, its header says {first + at:,}: damaged or "
                         "cut short")
    return tensors


def _mapped(path, dtype, start, shape):
    """Return an array in a file as a map of the file; an empty array cannot be mapped."""
    return np.memmap(path, dtype, "r", start, shape) if math.prod(shape) else np.empty(shape, dtype)


def download(repo, revision=None, files=()):
    """Download a model from https://huggingface.co into huggingface_hub's cache, and return its
    folder, whose name is the commit.

    ``repo`` is a hub id, ``owner/name``; ``revision`` a commit, tag or branch; ``files`` the names
    of more files, such as a tokenizer's.  Complete files are not downloaded again, and partial
    ones are continued.  Raises ``FileNotFoundError``.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise FileNotFoundError(f"'{repo}' is fetched with huggingface_hub: "
                                "pip install huggingface_hub") from None
    patterns = ["config.json", *files, *FILES, "model-*.safetensors"]
    try:
        folder = Path(hub.snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except Exception as e:                                # its errors differ by version
        raise FileNotFoundError(f"'{repo}' could not be fetched from huggingface.co "
                                f"({one_line(e)}): go online, or give a folder that "
                                "Transformers saved, or a run's folder") from None
    if not is_checkpoint(folder):
        raise FileNotFoundError(f"'{repo}' on huggingface.co holds none of {', '.join(FILES)}")
    return folder
