"""Pretrain the weights in ``weights/``: ``minifpt pretrain SOURCE``."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from .. import tasks
from ..checks import one_of, whole
from ..files import outputs
from ..files.families import registry
from ..fpt import FPT
from ..gpt2 import SHAPES, GPT2Config
from ..training import train
from ..trunks.names import shape_of

SHAPE = SHAPES["minigpt"]                                 # by default
ON_TEXT = {"steps": 4500, "batch_size": 16, "lr": 3e-3, "weight_decay": 0.1}
ON_MNIST = ON_TEXT | {"steps": 8000, "batch_size": 32, "lr": 1e-3}


class Source(NamedTuple):
    """What a trunk is pretrained on: its task, its settings, what the task reads."""

    task: type
    settings: dict
    reads: str = ""                                       # "files", text, or "data"
    causal: bool = True


SOURCES = {
    "language": Source(tasks.Text, ON_TEXT, "files"),
    "masked": Source(tasks.Masked, ON_TEXT, "files", causal=False),
    "bits": Source(tasks.BitMemory, ON_TEXT | {"steps": 2000, "lr": 1e-3}),
    "images": Source(tasks.MNIST, ON_MNIST, "data"),
    "vision": Source(tasks.MNIST, ON_MNIST, "data", causal=False)}
SEED_OFFSET = 1 << 40                                     # further than the seeds of later runs


def weight_file(out):
    """Return the path of the weight file of a trunk named ``out``; it ends in ``.npz``."""
    out = Path(out)
    return out if out.suffix == ".npz" else out.with_name(out.name + ".npz")


def pretrain(source, out, *, shape=None, tokens=None, text=None, data=None, seed=0, resume=False,
             force=False, progress=True, **options):
    """Train a trunk from random weights, all of it, and save it as ``OUT.npz``.

    source   ``language``: a byte-level language model on ``text``, files or folders of
             ``*.txt``, of which 5 % are held out.  ``masked``: a model that sees the whole passage
             and predicts the hidden bytes in it (:class:`minifpt.tasks.Masked`).
             ``bits``, ``images`` and ``vision``: the trunk of an FPT with nothing frozen, on bit
             memory or on MNIST (its files in ``data``).  ``vision`` has no causal mask, like the
             paper's image transformer; ``images`` has one.
    out      path of the weight file; the run's folder stands beside it, without ``.npz``.
    shape    blocks x heads x channels, such as ``1x2x256``, or the name of one of ``SHAPES``; by
             default the shape of the weights that ship.  Positions and vocabulary do not change.
             Another family's name may stand before it, that of an encoder for sources that are seen
             from both sides.
    tokens   tokens in a passage, by default the trunk's positions, 256; positions beyond them are
             not trained.  Not for ``bits``, ``images`` and ``vision``.
    options  ``steps``, ``batch_size``, ``lr`` and ``weight_decay``, by default the source's.

    AdamW with 200 steps of warm-up, a tenth of the steps if these are at most 200, cosine decay to
    a tenth, no dropout.  Returns the run's history.
    """
    one_of("pretrain", "the source", source, SOURCES)
    make_task, settings, reads, causal = SOURCES[source]
    on_text = reads == "files"
    if on_text != bool(text):
        raise ValueError(f"pretrain: {source} {'takes no' if text else 'needs'} text: language and "
                         "masked need text, files or folders of *.txt, and no other source takes "
                         "it")
    if data is not None and reads != "data":
        raise ValueError(f"pretrain: data is for images and vision, not for {source}")
    if tokens is not None and not on_text:
        raise ValueError(f"pretrain: tokens is for language and masked, not for {source}")
    size = SHAPE | ({} if shape is None else shape_of(shape, "pretrain"))
    family = registry()[size.get("model_type", "gpt2")]
    kind = family.config
    if kind is not GPT2Config and kind.causal != causal:
        raise ValueError(f"pretrain: {source} needs a trunk with{'' if causal else 'out'} a causal "
                         f"mask, and {shape} has {'none' if causal else 'one'}")
    if on_text and family.language_model is None:
        raise ValueError(f"pretrain: minifpt has no language model of a {family.title}, which "
                         f"{source} needs")
    out, options = weight_file(out), settings | options
    outputs.check(out, force or resume)
    # Dropout is 0 here; the file has 0.1, with which the paper fine-tunes.
    trunk = family.trunk(kind(**size, dropout=0.0, causal=causal), seed=seed)
    length = size["n_positions"] if tokens is None else whole("pretrain", "tokens", tokens, 2,
                                                              size["n_positions"])
    task_options = {"tokens": length} if on_text else {}
    if reads:
        task_options[reads] = text or data
    task = make_task(**task_options)
    if not on_text:
        # A later FPT with this seed must begin with other layers than those the trunk has seen.
        model, saved = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens,
                           seed=seed + SEED_OFFSET), trunk
    else:
        model = saved = family.language_model(trunk)
    provenance = {"text": sorted(Path(file).name for file in task.files)} if text else {
        "task": task.name}
    steps = options["steps"]
    history = train(model, task, seed=seed, out=out.with_suffix(""), resume=resume,
                    schedule="cosine", warmup=200 if steps > 200 else steps // 10,
                    eval_every=250, test_examples=128, checkpoint_every=250, progress=progress,
                    config={"pretraining": source} | asdict(trunk.config), **options)
    trunk.config = saved.config = replace(saved.config, dropout=0.1)
    arguments = {"shape": shape, "tokens": tokens} | options
    command = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in arguments.items()
                       if value is not None)
    saved.save(out, force=True, source=source,
               command=f"minifpt pretrain {source} {command} --seed {seed}",
               test_loss=round(history[-1]["test_loss"], 4),
               test_accuracy=round(history[-1]["test_accuracy"], 4),
               seconds=round(history[-1]["seconds"]), **provenance)
    return history
