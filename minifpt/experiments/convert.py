"""Weights written anew, for minifpt or for Transformers: ``minifpt convert SOURCE``."""

import os
import re
from pathlib import Path

from .. import adapters
from ..files import cache_folder, export, huggingface, outputs, weights, write_beside
from ..files.huggingface import HUB
from ..files.tokenizer import FILES
from ..gpt2 import SHAPES, GPT2Config
from ..trunks import factory
from .runs import load as load_run


def convert(source, out=None, dtype=None, dropout=None, revision=None):
    """Write weights anew, with their tokenizer's files, and return the path.

    source     a name in ``minifpt.files.huggingface.HUB``, any hub id ``owner/name``, or the path
               of a folder or file that Transformers saved; the name or path of a weight file of
               ours; or the folder of a run.
    out        for what Transformers saved the weight file to write, or a folder for it, by default
               the user's cache folder, where ``GPT2.from_pretrained`` finds it by the source's
               name.  For weights of ours and for a run a new folder, in the format of Transformers;
               for a run also an ``.npz`` file, which ``--model`` takes and which holds the trunk.
    dtype      ``float16`` or ``float32``, by default float16 for a file and float32 for a folder.
    dropout    replaces that of the source, which Transformers saved.
    revision   a commit, tag or branch of a hub id, by default the newest.  The file's config holds
               the commit.

    The whole model is in memory meanwhile, in float32.  Raises ``FileNotFoundError`` or
    ``ValueError`` with one line.
    """
    if dtype is not None:
        export.weight_dtype(dtype)                              # raises before any download
    source, is_saved = os.fspath(source), huggingface.is_checkpoint(source)
    is_file = out is not None and Path(out).suffix == ".npz"
    is_run = not is_saved and (Path(source) / "checkpoint.npz").is_file()
    is_ours = not is_saved and not is_file and (
        source.endswith(".npz") or source in {*weights.available()} - {*HUB}
        or out is not None and source in weights.available())
    if not (is_run or is_ours):
        return import_weights(source, out, dtype, dropout, revision)
    if dropout is not None or revision is not None:
        raise ValueError("convert: --dropout and --revision are for weights that Transformers "
                         f"saved, not for {source}")
    if out is None:
        raise ValueError(f"convert: {source} needs --out, the folder to write"
                         + ", or an .npz file" * is_run)
    return (export_run if is_run else export_weights)(source, Path(out), dtype)


def import_weights(source, out, dtype, dropout, revision):
    """Write a weight file of a model that Transformers saved, and return its path.  A language
    model keeps its tables of tokens; other files hold the trunk.  The tokenizer's files are copied
    beside the file as ``NAME.merges.txt`` and so on."""
    hub, path = HUB.get(source, source), Path(source)
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
        path, name, origin = None, weights.file_name(source), {"source": hub}
    else:
        raise FileNotFoundError(f"convert: '{source}' is neither a path, nor one of "
                                f"{', '.join(HUB)}, nor a hub id owner/name")
    out = Path(out) if out else cache_folder() / "weights" / f"{name}.npz"
    if out.is_dir():
        out = out / f"{name}.npz"
    out = new_file(out if out.suffix == ".npz" else out.with_name(out.name + ".npz"))
    if path is None:                                      # download when the file can be written
        path = huggingface.download(hub, revision, FILES)
        origin["revision"] = path.name
    model, _ = load(path, dropout)
    folder = huggingface.tensor_file(path).parent
    tokenizer = {out.with_name(f"{out.stem}.{file}"): (folder / file).read_bytes()
                 for file in FILES if (folder / file).is_file()}
    for beside, data in tokenizer.items():
        if beside.exists() and not (beside.is_file() and beside.read_bytes() == data):
            raise ValueError(f"convert: {beside} is there already, of another tokenizer: choose "
                             "another --out, or remove it")
    for beside, data in tokenizer.items():
        write_beside(beside, lambda f, data=data: f.write(data))
    model.save(out, dtype, **origin)                      # last: a file that is there is complete
    return out


def export_run(folder, out, dtype):
    """Write the trained model of a run, and return the path."""
    model = load_run(folder)
    origin = {"run": Path(folder).resolve().name} | {
        key: model.run[key] for key in ("task", "model", "freeze", "adapt") if key in model.run}
    model = adapters.merge(model)
    if out.suffix == ".npz":
        model, out = model.trunk, new_file(out)
        if not hasattr(model, "save"):
            raise ValueError(f"convert: {type(model).__name__} cannot be written as an .npz file, "
                             "expected one that Transformers has, too")
    model.save(out, dtype, **origin)
    return out


def export_weights(source, out, dtype):
    """Write a weight file of ours as a folder for Transformers, and return its path."""
    path = weights.find(source)
    model, settings = load(path)
    is_lm = hasattr(model, "wte")
    export.save_folder(model, out, dtype, {
        key: settings[key] for key in ("source", "command", "revision") if key in settings},
        export.tokenizer_files(path, model.config.vocab_size) if is_lm else {})
    return out


def load(path, dropout=None):
    """Return the language model of weights, or their trunk where they hold no more, and the config
    of the file."""
    config, settings, tensors = factory.read(path, dropout)
    is_lm = "wte.weight" in tensors and config.causal and (
        getattr(config, "tied", True) or "lm_head.weight" in tensors)       # a LlamaModel has none
    return factory.CLASSES[type(config)][is_lm].from_pretrained(path, dropout=dropout), settings


def new_file(path):
    """Return a path at which a new weight file can be written."""
    if path.exists():
        raise ValueError(f"convert: {path} is there already: choose another --out, or remove it")
    outputs.check(path, "weights")
    return path
