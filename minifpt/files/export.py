"""Write a model's weights: to a weight file, or for Transformers to a folder with ``config.json``
and ``model.safetensors``.

``huggingface`` reads such folders and describes a safetensors file.
"""

import json
import os
import shutil
import sys
import zipfile
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np

from ..checks import brief
from . import (
    by_gpt2_name,
    families,
    nearest_folder,
    outputs,
    to_json,
    unfinished,
    write_beside,
)
from .tokenizer import FILES, byte_vocabulary, files_beside, is_bytes

SUFFIXES = (".safetensors", ".json", ".bin", ".pt")       # of files, not of folders


def save(model, /, path, dtype=None, force=False, **provenance):
    """Write a trunk or language model with its config and ``provenance``, more keys of the config.
    As the method ``save`` of these classes it has no argument ``model``.

    A path that ends in ``.npz`` gives a weight file of minifpt, by default in float16; only by
    ``force`` it replaces a file.  Any other
    path gives a new folder as Transformers saves it, by default in float32; a model with 256 tokens
    gets the byte tokenizer.
    """
    model.check_exports()
    if not str(path).endswith(".npz"):
        files = byte_tokenizer() if model.config.vocab_size == 256 else {}
        return save_folder(model, path, dtype, provenance, files)
    outputs.check(path, force)
    # The trunk's config, not the language model's: the trunk may have got positions.
    save_weights(path, asdict(getattr(model, "trunk", model).config) | provenance,
                 by_gpt2_name(model), np.float16 if dtype is None else dtype)


def save_weights(path, config, named_arrays, dtype=np.float16):
    """Write a weight file of (name, array) pairs, one after the other.

    The file is as ``np.savez`` writes it, but without the time, so that equal weights give equal
    bytes.  Raises ``ValueError`` if a number is not finite or too large for ``dtype``.
    """
    stored = chain([("config", np.array(to_json(config)))],
                   cast_all(named_arrays, weight_dtype(dtype), path))

    def write(f):
        with zipfile.ZipFile(f, "w") as archive:
            for name, array in stored:
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, array, allow_pickle=False)
    write_beside(path, write)


def weight_dtype(dtype):
    """Return the dtype of a weight file: float16 or float32."""
    if isinstance(dtype, np.ndarray) or dtype not in (
            "float16", "float32", np.float16, np.float32):
        raise ValueError(f"weights: dtype is {brief(dtype)}, expected float16 or float32")
    return np.dtype(dtype)


def cast_all(named_arrays, dtype, path):
    """Yield (name, array in a file's dtype); at the end say how many numbers became 0, because they
    are smaller than the dtype's smallest one.  Raises ``ValueError`` for numbers that the dtype
    cannot hold."""
    lost = 0
    for name, a in named_arrays:
        with np.errstate(over="ignore"):
            stored = np.array(a, dtype, order="C")
        if not np.isfinite(stored).all():
            numbers = "a NaN or an infinity" if not np.isfinite(a).all() else (
                f"numbers beyond {np.finfo(dtype).max}, the largest {dtype}: write float32")
            raise ValueError(f"{path}: '{name}' holds {numbers}")
        lost += np.count_nonzero(a) - np.count_nonzero(stored)
        yield name, stored
    if lost:
        print(f"minifpt: {path}: {lost:,} numbers are so small that they became 0 in {dtype}: "
              "float32 keeps them", file=sys.stderr)


def save_folder(model, folder, dtype, provenance, files):
    """Write a new folder that Transformers reads, by default in float32, with more ``files``
    {name: bytes}, such as a tokenizer's.

    The folder is written beside its place and then renamed: after a crash there is a whole
    folder or none.  Raises ``ValueError`` if the path exists.
    """
    folder, dtype = check_folder(folder), weight_dtype(np.float32 if dtype is None else dtype)
    config, arrays = families.as_transformers(getattr(model, "trunk", model).config,
                                              by_gpt2_name(model))
    config = to_json(config | {"dtype": dtype.name} | (
        {"minifpt": provenance} if provenance else {}))
    files = files | {"config.json": json.dumps(json.loads(config), indent=2).encode() + b"\n"}
    beside = unfinished(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(beside, ignore_errors=True)             # of a process that was killed
    try:
        beside.mkdir()
        for name, data in files.items():
            write_beside(beside / name, lambda f, data=data: f.write(data))
        write_beside(beside / "model.safetensors",
                     lambda f: write_safetensors(f, arrays, dtype, folder))
        if folder.is_dir():
            folder.rmdir()                                # an empty folder
        os.replace(beside, folder)
    except OSError as e:
        e.filename = str(folder)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_folder(folder):
    """Return the path of a folder that can be made, neither one with files nor a file's name."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise ValueError(f"save: the path is {brief(folder)}, expected a folder or an .npz file")
    folder = Path(folder)
    if folder.suffix in SUFFIXES:
        raise ValueError(f"{folder}: expected the name of a folder, in which model.safetensors "
                         "and config.json are written, or of an .npz file")
    nearest_folder(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is there already and holds files: choose another folder, or "
                         "remove it")
    return folder


def write_safetensors(f, named_arrays, dtype, path):
    """Write a list of (name, array) to an open binary file as safetensors: eight bytes with the
    length of the header, the header as JSON, then the numbers of each array as they lie in memory.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0   # as Transformers writes it
    for name, a in named_arrays:
        begin, end = end, end + a.size * dtype.itemsize
        header[name] = {"dtype": f"F{8 * dtype.itemsize}", "shape": a.shape,
                        "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)                       # the numbers begin at a multiple of 8
    f.write(len(text).to_bytes(8, "little") + text)
    for _, array in cast_all(named_arrays, dtype.newbyteorder("<"), path):
        f.write(array.data)


def byte_tokenizer():
    """Return the files of a tokenizer whose tokens are the 256 bytes: GPT-2's byte-pair encoding
    without a merge.  Transformers' ``AutoTokenizer`` reads them."""
    vocab = dict(sorted(byte_vocabulary().items(), key=lambda item: item[1]))
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False,
              **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"))}
    return {"vocab.json": json.dumps(vocab).encode(), "merges.txt": b"#version: 0.2\n",
            "tokenizer_config.json": json.dumps(config).encode()}


def tokenizer_files(path, vocab_size):
    """Return {name: bytes} of the tokenizer for weights at ``path``: the byte tokenizer where the
    tokens are bytes, else the files beside the weights, if there are any."""
    if vocab_size == 256 and is_bytes(path):
        return byte_tokenizer()
    first = next(iter(files_beside(path)), Path(path))
    prefix = first.name.removesuffix("tokenizer.json").removesuffix("vocab.json")
    files = {name: file.read_bytes() for name in FILES
             if (file := first.with_name(prefix + name)).is_file()}
    if "tokenizer.json" in files:                         # else AutoTokenizer makes GPT-2's own
        files["tokenizer_config.json"] = b'{"tokenizer_class": "PreTrainedTokenizerFast"}'
    return files
