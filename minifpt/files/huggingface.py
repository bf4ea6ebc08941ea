"""Read the files that Hugging Face's Transformers saved, also from the hub.

A safetensors file has eight bytes with the length of a header, the header as JSON (each tensor's
dtype, shape and place), then the numbers as they are in memory.  Nothing in it can run code
(https://github.com/huggingface/safetensors#format).
"""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import one_line, read_json, refuse_damage, refuse_pointer

HUB = {name: f"openai-community/{name}" for name in (
    "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")} | {"distilgpt2": "distilbert/distilgpt2"}

# The files that may hold a folder's tensors; the first one that exists is read.
FILES = ("model.safetensors", "model.safetensors.index.json")
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}    # by safetensors' names


class Tensor(NamedTuple):
    """An array in files, whose numbers are not read yet.

    label   its name in errors.
    read    a function that returns the array, which may be a read-only map of a file.  Raises
            ``ValueError`` for a dtype that cannot be read, and for damage.
    """

    label: str
    shape: tuple
    read: Callable


def is_checkpoint(path):
    """Return whether a path looks like Transformers' checkpoint: a folder or file of tensors."""
    path = Path(path)
    return any((path / file).is_file() for file in FILES) or path.is_file() and (
        path.suffix == ".safetensors" or path.name in FILES)


def tensor_file(path):
    """Return the file with the tensors: ``path``, or a file in the folder ``path``."""
    files = [path / file for file in FILES if (path / file).is_file()]
    if not files and not path.is_file():
        raise FileNotFoundError(f"{path}: the folder holds none of {', '.join(FILES)} (PyTorch's "
                                "own .bin files are pickles and are not read: save it as "
                                "safetensors)")
    return files[0] if files else path


def read_tensors(path):
    """Return {name: tensor} of a file of tensors, or of an index and all shards that it names."""
    if path.name.endswith(".index.json"):
        places = read_json(path).get("weight_map")
        if not isinstance(places, dict) or not all(
                isinstance(file, str) and file.isprintable() and file == Path(file).name != ""
                for file in places.values()):
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
    refuse_pointer(path)
    size = path.stat().st_size
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
            if not (isinstance(dtype, str) and re.fullmatch(r"\w{1,19}", dtype)
                    and all(type(n) is int and 0 <= n < 1 << 63 for n in (*shape, begin, end))
                    and begin <= end
                    and (dtype not in DTYPES or end - begin == math.prod(shape) * np.dtype(
                        DTYPES[dtype]).itemsize)):
                raise ValueError(f"{name!r} is {entry!r:.100}")
            tensors[name] = Tensor(f"{path}: {name!r}", tuple(shape), partial(
                read_array, path, name, dtype, first + begin, tuple(shape)))
            pieces.append((begin, end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"{path}: the safetensors header is damaged ({e})") from None
    # Where one tensor ends, the next one begins.
    if [*(begin for begin, _ in sorted(pieces)), size - first] != [
            0, *(end for _, end in sorted(pieces))]:
        raise ValueError(f"{path}: damaged or cut short: the tensors of its header do not fill the "
                         f"{size - first:,} bytes behind it, one after the other")
    return tensors


def read_array(path, name, dtype, start, shape):
    """Return an array of a safetensors file as a map of the file; an empty one cannot be mapped."""
    if dtype not in DTYPES:
        raise ValueError(f"{path}: '{name}' is {dtype}, expected one of {', '.join(DTYPES)}")
    with refuse_damage(f"{path}: '{name}' is damaged"):
        array = np.memmap(path, DTYPES[dtype], "r", start, shape) if math.prod(shape) else (
            np.empty(shape, DTYPES[dtype]))
    # A bfloat16 is the upper half of a float32.
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array


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
        raise FileNotFoundError(f"'{repo}' is no folder here, and to fetch it from the "
                                "hub needs: pip install huggingface_hub") from None
    try:
        return Path(hub.snapshot_download(repo, revision=revision, allow_patterns=[
            "config.json", *files, *FILES, "model-*.safetensors"]))
    except Exception as e:                                # its errors differ by version
        raise FileNotFoundError(f"'{repo}' could not be fetched from huggingface.co "
                                f"({one_line(e)}): go online, or give a folder that "
                                "Transformers saved, or a run's folder") from None
