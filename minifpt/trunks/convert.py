"""Convert weights that Transformers saved to a weight file of minifpt."""

import os
import re
from pathlib import Path

from ..files import by_gpt2_name, cache_folder, huggingface, outputs, write_beside
from ..files.export import save_weights, weight_dtype
from ..files.tokenizer import FILES
from ..files.weights import TABLES, file_name, matched
from ..gpt2 import SHAPES, GPT2Config
from ..progress import progress_bar
from . import factory


def convert(source, out=None, dtype="float16", progress=True, dropout=None, revision=None):
    """Write a weight file of a model that Transformers saved, and return its path.  A language
    model, a GPT-2 or a Llama, keeps its tables of tokens; other files hold the trunk.

    source     a name in ``minifpt.files.huggingface.HUB``, any hub id ``owner/name``, or the
               path of a folder or file that Transformers saved.
    out        the file to write, or a folder for it; by default the user's cache folder, where
               ``GPT2.from_pretrained`` finds it by the source's name.
    dtype      ``float16`` or ``float32``.
    dropout    replaces the source's.
    revision   a commit, tag or branch of a hub id; by default the newest.  The file's config
               holds the commit.

    Tensors are converted one by one, so that the whole model is never in memory.  The
    tokenizer's files are copied beside the file as ``NAME.merges.txt`` and so on.

    Raises ``FileNotFoundError`` or ``ValueError``.
    """
    dtype, source = weight_dtype(dtype), os.fspath(source)
    hub, path = huggingface.HUB.get(source, source), Path(source)
    if revision is not None and (path.exists() or not revision):
        end = ", not of a path" if path.exists() else ""
        raise ValueError(f"convert: revision '{revision}' of {source}, expected a commit, tag or "
                         f"branch of a hub id owner/name{end}")
    if dropout is not None:
        GPT2Config(**SHAPES["gpt2"], dropout=dropout)     # raises before any download
    if huggingface.is_checkpoint(path):
        named = path.is_file() and path.stem.split(".")[0] != "model"
        name = path.stem if named else huggingface.tensor_file(path.resolve()).parent.name
        origin = {"source": path.resolve().name}
    elif path.exists():
        huggingface.tensor_file(path)                     # its error names the missing file
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
    if path is None:                                      # download when the file can be written
        path = huggingface.download(hub, revision, FILES)
        origin["revision"] = path.name
    config, settings, tensors = factory.read(path, dropout)
    is_lm = "wte.weight" in tensors and config.causal
    model = factory.CLASSES[type(config)][is_lm](config, seed=None)
    pieces = matched(path, by_gpt2_name(model), tensors, TABLES)
    bar = progress_bar(pieces, desc=name, unit="tensor", delay=1, progress=progress)
    folder = huggingface.tensor_file(path).parent
    tokenizer = {file: (folder / file).read_bytes() for file in FILES if (folder / file).is_file()}
    for file, data in tokenizer.items():
        beside = out.with_name(f"{out.stem}.{file}")
        if beside.exists() and not (beside.is_file() and beside.read_bytes() == data):
            raise ValueError(f"convert: {beside} is there already, of another tokenizer: choose "
                             "another --out, or remove it")

    def tensors_then_tokenizer():                         # the weight file is complete last
        for key, tensor, _ in bar:
            yield key, tensor.read()
        for file, data in tokenizer.items():
            write_beside(out.with_name(f"{out.stem}.{file}"), lambda f, data=data: f.write(data))
    save_weights(out, settings | origin, tensors_then_tokenizer(), dtype)
    return out
