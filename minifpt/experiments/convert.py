"""Weights written anew, for minifpt or for Transformers: ``minifpt convert SOURCE``."""

import re
from pathlib import Path

from .. import adapters
from ..files import cache_folder, export, huggingface, outputs, weights, write_beside
from ..files.families import family_of
from ..files.huggingface import HUB
from ..files.tokenizer import FILES
from ..gpt2 import GPT2Config


def import_weights(source, out=None, dtype=None, dropout=None, revision=None, force=False):
    """Write a weight file of a model that Transformers saved, and return its path.

    source     a name in ``minifpt.files.huggingface.HUB``, any hub id ``owner/name``, or the path
               of a folder or file that Transformers saved.
    out        the weight file to write, or a folder for it, by default the user's cache folder,
               where ``GPT2.from_pretrained`` finds it by the source's name.
    dtype      ``float16`` or ``float32``, by default float16.
    dropout    replaces that of the source.
    revision   a commit, tag or branch of a hub id, by default the newest.  The file's config holds
               the commit.
    force      replaces files that are there.

    A language model keeps its tables of tokens; other files hold the trunk.  The tokenizer's files
    are copied beside the file as ``NAME.tokenizer.json`` and so on.  The whole model is in memory
    meanwhile, in float32.  Raises ``FileNotFoundError`` or ``ValueError`` with one line.
    """
    # Both raise before any download.
    dtype = export.weight_dtype("float16" if dtype is None else dtype)
    GPT2Config(dropout=0.0 if dropout is None else dropout)
    source, path = str(source), Path(source)
    hub = HUB.get(source, source)
    if revision is not None and (path.exists() or not revision):
        raise ValueError(f"convert: revision '{revision}' of {source}, expected a commit, tag or "
                         "branch of a hub id owner/name, not of a path")
    if huggingface.is_checkpoint(path):
        file, origin = huggingface.tensor_file(path), {"source": path.resolve().name}
        name = file.parent.resolve().name if file.stem.split(".")[0] == "model" else file.stem
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
    out = out if out.suffix == ".npz" else out.with_name(out.name + ".npz")
    outputs.check(out, force)
    if path is None:                                      # download when the file can be written
        path = huggingface.download(hub, revision, FILES)
        origin["revision"] = path.name
    folder = huggingface.tensor_file(path).parent
    model, _ = load(path, dropout)
    tokenizer = {out.with_name(f"{out.stem}.{file}"): (folder / file).read_bytes()
                 for file in FILES if (folder / file).is_file()}
    for beside, data in tokenizer.items():
        outputs.check(beside, force or beside.is_file() and beside.read_bytes() == data)
    for beside, data in tokenizer.items():
        write_beside(beside, lambda f, data=data: f.write(data))
    model.save(out, dtype, force, **origin)               # last: a file that is there is complete
    return out


def export_run(model, folder, out, dtype=None, force=False):
    """Write the trained model of a run, which ``minifpt.load(folder)`` returned: to a new folder
    as Transformers saves it, or to an ``.npz`` file, which ``--model`` takes and which holds the
    trunk."""
    recipe = model.recipe
    origin = {"run": Path(folder).resolve().name, "task": model.run["task"],
              "model": recipe.trunk, "freeze": recipe.freeze, "adapt": recipe.adapt}
    model = adapters.merge(model)
    if out.suffix == ".npz":
        model, origin = model.trunk, origin | {"force": force}
        if not hasattr(model, "save"):
            raise ValueError(f"convert: {type(model).__name__} cannot be written as an .npz file, "
                             "expected one that Transformers has, too")
    model.save(out, dtype, **origin)


def export_weights(source, out, dtype=None):
    """Write weights of ours, by their name or path, with their tokenizer's files as a new folder
    for Transformers."""
    path = weights.find(source)
    model, settings = load(path)
    export.save_folder(model, out, dtype, {
        key: settings[key] for key in ("source", "command", "revision") if key in settings},
        export.tokenizer_files(path, model.config.vocab_size) if hasattr(model, "wte") else {})


def load(path, dropout=None):
    """Return the language model of weights, or their trunk where they hold no more, and the config
    of the file."""
    config, settings, tensors, _ = weights.described(path, dropout)
    family = family_of(config)
    is_lm = family.language_model is not None and "wte.weight" in tensors and config.causal and (
        getattr(config, "tied", True) or "lm_head.weight" in tensors)       # some trunks have none
    kind = family.language_model if is_lm else family.trunk
    return kind.from_pretrained(path, dropout=dropout), settings
