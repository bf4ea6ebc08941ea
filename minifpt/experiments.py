"""The paper's tables as grids of runs: task x trunk x seed, each run in a folder of its own.

A grid that was stopped goes on where it stood: a finished run is read, not run again, and
an unfinished one resumes from its checkpoint.
"""

import json
import re
from pathlib import Path

import numpy as np

from . import plots, tasks
from .fpt import FPT
from .freeze import FreezeMask
from .gpt2 import GPT2, SHAPES, GPT2Config, standard_normal
from .train import History, train
from .weights import write_beside

# What is right, in per cent, without having learned the task.  Half of bit memory's bits are
# visible; the majority of the five strings, whichever was asked for, gives 11/16 of the rest.
FLOORS = {"bit-xor": {"guessing": 50}, "mnist": {"guessing": 10}, "digits": {"guessing": 10},
          "bit-memory": {"guessing what is masked": 75, "majority of the five strings": 84.375}}
LABELS = {"bit-xor": "bit XOR", "bit-memory": "bit memory", "mnist": "MNIST", "digits": "digits"}


def make_trunk(model, seed=0, dropout=None, dtype=np.float32):
    """A trunk from what ``--model`` takes.

    A name or path of weights; ``random``, the shape of the shipped weights drawn from
    ``seed``; ``random:SHAPE`` (``random:gpt2``); or ``statistics:NAME``, random too, but each
    array with the mean and the standard deviation of the pretrained one.  ``A+MASK=B`` is the
    trunk A with those parameters of B that a freeze mask names (``random+attn,h.0.*=NAME``).
    """
    if "+" in model and not Path(model).exists():
        return mixed_trunk(model, seed, dropout, dtype)
    kind, _, rest = model.partition(":")
    if kind == "statistics":
        trunk = GPT2.from_pretrained(rest, dtype=dtype, dropout=dropout)
        for name, p in trunk.named_parameters():
            mean, std = float(p.data.mean()), float(p.data.std())
            p.data[...] = mean + std * standard_normal(p.data.shape, seed, name)
        return trunk
    if kind != "random":
        return GPT2.from_pretrained(model, dtype=dtype, dropout=dropout)
    if (rest or "minigpt") not in SHAPES:
        raise ValueError(f"--model {model}: no shape '{rest}', expected one of "
                         f"{', '.join(SHAPES)}")
    config = GPT2Config(**SHAPES[rest or "minigpt"], dropout=0.1 if dropout is None else dropout)
    return GPT2(config, seed=seed, dtype=dtype)


def mixed_trunk(model, seed, dropout, dtype):
    """The trunk ``A+MASK=B``; A may be such a trunk itself."""
    model, _, part = model.rpartition("+")
    mask, equals, other = part.partition("=")
    if not (mask and equals and other):
        raise ValueError(f"--model: '+{part}', expected +MASK=MODEL, as in +attn=random")
    mask = FreezeMask.parse(mask)
    trunk, other = (make_trunk(name, seed, dropout, dtype) for name in (model, other))
    theirs = dict(other.named_parameters())
    for name, p in trunk.named_parameters():
        if mask.frozen(name):
            if name not in theirs or theirs[name].data.shape != p.data.shape:
                raise ValueError(f"--model: '+{part}': the trunks have different shapes, "
                                 f"see {name}")
            p.data[...] = theirs[name].data
    return trunk


def run(task, model, out=None, *, freeze="fpt", seed=0, dropout=None, **options):
    """One run of the paper's protocol: build the FPT for a task, freeze it, train it.

    ``options`` go to :func:`minifpt.train`.  Returns (model, history).
    """
    mask = FreezeMask.parse(freeze)
    trunk = make_trunk(model, seed, dropout)
    fpt = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=seed)
    fpt.freeze(mask)
    config = {"model": str(model), "freeze": str(mask), "dropout": trunk.config.dropout}
    return fpt, train(fpt, task, seed=seed, out=out, config=config, **options)


def grid(out, task_names, models, seeds, *, data=None, options=None, progress=True):
    """Run every task with every model and seed; ``{task: {model: [History, ...]}}``.

    Each run has its folder ``OUT/TASK/MODEL/SEED``.  ``options`` replaces a task's own
    defaults of steps, batch_size and lr for all of them.
    """
    out, results = Path(out), {}
    if not (task_names and models and len(seeds)):
        raise ValueError("compare: expected at least one task, one model and one seed")
    made = {name: tasks.get(name, **({"data": data} if name == "mnist" else {}))
            for name in task_names}
    # Missing data or weights show before the first run.
    for task in made.values():
        task.batch(np.random.default_rng(0), 1, "test")
    for model in models:
        make_trunk(model)
    for name, task in made.items():
        settings = task.defaults | (options or {})
        for model in models:
            for seed in seeds:
                folder = out / name / folder_name(model) / str(seed)
                history = finished(folder, settings)
                if history is None:
                    if progress:
                        print(f"{name}, {model}, seed {seed}")
                    _, history = run(task, model, folder, seed=seed, progress=progress,
                                     resume=(folder / "config.json").exists(), **settings)
                results.setdefault(name, {}).setdefault(model, []).append(history)
    return results


def folder_name(model):
    """What the folder of a model's runs is called."""
    return re.sub(r"[^\w.+=,-]", "-", model if "+" in model else Path(model).stem)


def finished(folder, settings):
    """The history of a run with these settings that has come to its end, else ``None``."""
    try:
        history = History.load(folder / "metrics.csv")
        done = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    same = all(done.get(key) == value for key, value in settings.items())
    return history if history and same and history[-1]["step"] == done["steps"] else None


def table(results):
    """Final test accuracy in per cent, mean and (least to largest) over seeds, as Markdown."""
    models = list(dict.fromkeys(model for task in results.values() for model in task))
    lines = ["| trunk | " + " | ".join(LABELS.get(t, t) for t in results) + " |",
             "|---" * (len(results) + 1) + "|"]
    for model in models:
        cells = []
        for task in results.values():
            last = 100 * np.array([h[-1]["test_accuracy"] for h in task.get(model, [])])
            cells.append(f"{last.mean():.1f} ({last.min():.1f} to {last.max():.1f}), "
                         f"{len(last)} seed{'s' * (len(last) > 1)}" if len(last) else "")
        lines.append(f"| {label(model)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def label(model):
    """What a model is called in tables and pictures: ``minigpt-language`` is language,
    ``statistics:minigpt-language`` statistics."""
    if "+" in model:
        model, _, part = model.rpartition("+")
        mask, _, other = part.partition("=")
        return f"{label(model)} + {mask} of {label(other)}"
    kind, _, rest = model.partition(":")
    if kind in ("random", "statistics"):
        return f"random ({rest})" if kind == "random" and rest else kind
    return Path(model).stem.removeprefix("minigpt-")


def picture(results, path):
    """Test accuracy against steps, an axis a task, a line a trunk, its range shaded."""
    fig, axes = plots.figure(len(results))
    for ax, (task, models) in zip(axes, results.items(), strict=True):
        for model, runs in models.items():
            color = plots.COLORS.get(label(model).partition(" ")[0])
            plots.band(ax, runs, "test_accuracy", color, label(model))
        for text, share in FLOORS.get(task, {}).items():
            ax.axhline(share, color="0.5", linewidth=0.8, linestyle=":")
            ax.text(1, share, text, fontsize=7, color="0.4", ha="right", va="top",
                    transform=ax.get_yaxis_transform())
        ax.set(title=LABELS.get(task, task), xlabel="step", ylabel="test accuracy (%)")
        ax.legend(frameon=False)
    plots.save(fig, path)


def compare(out, task_names, models, seeds, **options):
    """Run a grid, write ``OUT/table.md`` and ``OUT/curves.png``; returns the table."""
    results = grid(out, task_names, models, seeds, **options)
    text = table(results)
    write_beside(Path(out) / "table.md", lambda f: f.write(text + "\n"), "w")
    picture(results, Path(out) / "curves.png")
    return text
