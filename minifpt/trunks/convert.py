"""Weights that Transformers saved, converted to a weight file of ours."""

import os
import re
from pathlib import Path

from ..files import cache_folder, huggingface, outputs, write_beside
from ..files.weights import file_name, matched, weight_dtype, write
from ..gpt2 import SHAPES, GPT2Config, LanguageModel, by_gpt2_name, check_size, config_of
from ..progress import progress_bar


def convert(source, out=None, dtype="float16", progress=True, dropout=None, revision=None):
    """Write a GPT-2 that Transformers saved as a weight file of ours; returns its path.

    source   one of ``minifpt.files.huggingface.HUB``, any hub id ``owner/name``, or the path of
             a folder or file that Transformers saved.
    out      the file to write, or a folder for it; without one it lies in the user's cache
             folder under the source's name, where ``GPT2.from_pretrained`` finds it by name.
    dtype    ``float16`` or ``float32``.
    dropout  stands in for the source's.
    revision a commit, tag or branch of a hub id; by default the newest that can be fetched.  The
             file's config holds the commit that was fetched.

    Tensor by tensor, in blocks: the whole model is never in memory.  The byte-pair encoding's
    ``merges.txt`` and ``vocab.json`` are copied beside the file as ``NAME.merges.txt`` and
    ``NAME.vocab.json``.  Raises ``FileNotFoundError`` or ``ValueError`` with one line.
    """
    dtype, source = weight_dtype(dtype), os.fspath(source)
    hub, path = huggingface.HUB.get(source, source), Path(source)
    if revision is not None and (path.exists() or not revision):
        raise ValueError(f"convert: revision '{revision}' of {source}, expected a commit, tag or "
                         "branch of a hub id owner/name" + ", not of a path" * path.exists())
    if dropout is not None:
        GPT2Config(**SHAPES["gpt2"], dropout=dropout)     # raises before anything is fetched
    if huggingface.is_checkpoint(path):
        named = path.is_file() and path.stem.split(".")[0] != "model"
        name = path.stem if named else huggingface.tensor_file(path.resolve()).parent.name
        origin = {"source": path.resolve().name}
    elif path.exists():
        huggingface.tensor_file(path)                     # says what a folder lacks
        raise ValueError(f"convert: {source} is neither a folder that Transformers saved, nor a "
                         ".safetensors file")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", hub):
        path, name, origin = None, file_name(source), {"source": hub}
    else:
        raise FileNotFoundError(f"convert: '{source}' is neither a path, nor one of "
                                f"{', '.join(huggingface.HUB)}, nor a hub id owner/name")
    out = Path(out) if out else cache_folder() / "weights" / f"{name}.npz"
    if out.is_dir():
        out = out / f"{name}.npz"
    if out.suffix != ".npz":
        out = out.with_name(out.name + ".npz")
    if out.exists():
        raise ValueError(f"convert: {out} is there already: choose another --out, or remove it")
    outputs.check(out, "weights")
    if path is None:                                      # fetched once it can be written
        path = huggingface.download(hub, revision)
        origin["revision"] = path.name
    settings, tensors = huggingface.load_checkpoint(path, dropout)
    config = config_of(settings, path)
    check_size(path, config, tensors)
    pieces = matched(path, by_gpt2_name(LanguageModel(config, seed=None)), tensors)
    bar = progress_bar(pieces, desc=name, unit="tensor", delay=1, progress=progress)
    folder = huggingface.tensor_file(path).parent
    tokenizer = {file: (folder / file).read_bytes() for file in ("merges.txt", "vocab.json")
                 if (folder / file).is_file()}
    for file, data in tokenizer.items():
        beside = out.with_name(f"{out.stem}.{file}")
        if beside.exists() and not (beside.is_file() and beside.read_bytes() == data):
            raise ValueError(f"convert: {beside} is there already, and is another tokenizer's: "
                             "choose another --out, or remove it")

    def tensors_then_tokenizer():                         # once the weights are there, all is
        for key, tensor, _ in bar:
            yield key, tensor.shape, tensor.blocks()
        for file, data in tokenizer.items():
            write_beside(out.with_name(f"{out.stem}.{file}"), lambda f, data=data: f.write(data))
    write(out, settings | origin, tensors_then_tokenizer(), dtype)
    return out
