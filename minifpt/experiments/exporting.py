"""Trained weights written for other programs: ``minifpt convert RUN --out FOLDER``."""

from pathlib import Path

from .. import adapters
from ..files import export as folders
from ..files import huggingface, weights
from ..trunks import factory
from .runs import read_run


def is_source(source, out):
    """Return whether :func:`export` takes ``source`` and ``out``: the folder of a run, or a weight
    file of ours and a folder."""
    to_folder = out is not None and Path(out).suffix != ".npz"
    return is_run(source) or to_folder and not huggingface.is_checkpoint(source) and (
        str(source) in weights.available() or Path(source).suffix == ".npz")


def is_run(source):
    """Return whether a path is the folder of a run."""
    return (Path(source) / "config.json").is_file() and not huggingface.is_checkpoint(source)


def export(source, out, dtype=None):
    """Write a run's trained model, or a weight file of ours; return where.

    source  the folder of a run, or the name or path of weights.
    out     a new folder, in the format of Transformers; for a run also an ``.npz`` file, which
            ``--model`` takes and which holds the trunk alone.
    dtype   ``float16`` or ``float32``; float32 for a folder and float16 for a file when ``None``.

    The tokenizer's files are written into the folder where there are any.  Raises ``ValueError``
    or ``FileNotFoundError`` with one line.
    """
    if out is None:
        raise ValueError(f"convert: {source} is a run, so --out must say where its weights go")
    out = Path(out)
    if is_run(source):
        _, run = read_run(source)
        model, settings = run.model, run.settings
        origin = {"run": Path(source).resolve().name} | {
            key: settings[key] for key in ("task", "model", "freeze", "adapt") if key in settings}
        if "adapt" in settings:
            adapters.merge(model)
        if out.suffix != ".npz":
            model.save(out, dtype, **origin)
            return f"{out}: model.safetensors config.json layers.safetensors"
        if out.exists():
            raise ValueError(f"convert: {out} is there already: choose another --out, or remove it")
        if not hasattr(model.trunk, "save"):
            raise ValueError(f"convert: {type(model.trunk).__name__} cannot be written as an "
                             ".npz file, expected one that Transformers has, too")
        model.trunk.save(out, dtype, **origin)
        return str(out)
    path = weights.find(source)
    config, settings, tensors = factory.read(path)
    is_lm = "wte.weight" in tensors and config.causal
    files = folders.tokenizer_files(path, config.vocab_size) if is_lm else {}
    model = factory.CLASSES[type(config)][is_lm].from_pretrained(path)
    folders.save_folder(model, out, dtype, {
        key: settings[key] for key in ("source", "command", "revision") if key in settings}, files)
    return f"{out}: {' '.join(['model.safetensors', 'config.json', *files])}"
