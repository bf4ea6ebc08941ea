"""The paper's tables as grids of runs: task x trunk x seed, each run in a folder of its own.

A grid that was stopped goes on where it stood: a finished run is read, not run again, and
an unfinished one resumes from its checkpoint.
"""

import inspect
from pathlib import Path

import numpy as np

from .. import plots, tasks
from ..files import write_beside
from ..files.runs import crc
from ..fpt import FPT
from ..freeze import FreezeMask
from ..training import train
from .trunks import USERS_OWN, TrunkSpec, load_object

# What is right, in per cent, without having learned the task.  Half of bit memory's bits are
# visible; the majority of the five strings, whichever was asked for, gives 11/16 of the rest.
FLOORS = {"bit-xor": {"guessing": 50}, "mnist": {"guessing": 10}, "digits": {"guessing": 10},
          "bit-memory": {"guessing what is masked": 75, "majority of the five strings": 84.375}}
LABELS = {"bit-xor": "bit XOR", "bit-memory": "bit memory", "mnist": "MNIST", "digits": "digits"}


def task_class(name):
    """The class of a task by its name, or by ``FILE.py:NAME`` for one of the user's own."""
    return load_object(name) if USERS_OWN.fullmatch(name) else tasks.task_class(name)


def make_task(name, given=None):
    """The task of that name; ``FILE.py:NAME`` is a class or function of the user's own.

    given   {option: value}, or text as it stands on a command line, which is read as what the
            option's default is.  ``data`` is left out where the task has no such option.
    """
    function = task_class(name)
    known, options = inspect.signature(function).parameters, {}
    for option, value in (given or {}).items():
        if option in known:
            options[option] = read_option(f"{name}: {option}", value, known[option])
        elif option != "data":
            options[option] = value                       # an error, which make() words
    return tasks.make(function, name, options)


def read_option(what, value, parameter):
    """An option's value, of the type of its default or its annotation, where it is text."""
    kind = next((k for k in (parameter.annotation, type(parameter.default))
                 if k in (bool, int, float)), str)
    if not isinstance(value, str) or kind is str:
        return value
    try:
        return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{what} must be {expected}, got '{value}'") from None


def run(task, model, out=None, *, freeze="fpt", seed=0, dropout=None, **options):
    """One run of the paper's protocol: build the FPT for a task, freeze it, train it.

    ``options`` go to :func:`minifpt.train`.  Returns (model, history).
    """
    mask = FreezeMask.parse(freeze)
    trunk = TrunkSpec.parse(model).make(seed, dropout)
    fpt = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens, seed=seed)
    fpt.freeze(mask)
    config = {"model": TrunkSpec.parse(model).text, "freeze": str(mask),
              "trunk_crc": crc(p.data for _, p in trunk.named_parameters()),
              "dropout": getattr(trunk.config, "dropout", 0.0)}
    return fpt, train(fpt, task, seed=seed, out=out, config=config, **options)


def grid(out, task_names, models, seeds, *, task_options=None, options=None, progress=True):
    """Run every task with every model and seed; ``{task: {label of model: [History, ...]}}``.

    Each run has its folder ``OUT/TASK/MODEL/SEED``.  ``options`` replaces a task's own
    defaults of steps, batch_size and lr for all of them; each of ``task_options`` goes to the
    tasks that have it.
    """
    out, results = Path(out), {}
    if not (task_names and models and len(seeds)):
        raise ValueError("compare: expected at least one task, one model and one seed")
    task_options, taken, made = task_options or {}, set(), []
    task_names, models, seeds = map(dict.fromkeys, (task_names, models, seeds))   # each once
    for name in task_names:
        known = inspect.signature(task_class(name)).parameters
        made.append(make_task(name, {k: v for k, v in task_options.items() if k in known}))
        taken |= {*known}
    for option in {*task_options} - taken - {"data"}:
        raise ValueError(f"compare: none of the tasks has an option '{option}'")
    called = [task.name for task in made]
    if len({*called}) < len(called):
        raise ValueError(f"compare: two tasks have one name: {', '.join(called)}")
    specs = [TrunkSpec.parse(model) for model in models]
    # Missing data or weights show before the first run.
    for task in made:
        task.batch(np.random.default_rng(0), 1, "test")
    for spec in specs:
        spec.make()
    for task in made:
        settings = getattr(task, "defaults", tasks.DEFAULTS) | (options or {})
        for spec in specs:
            # Two trunks may have one label: two files of one name in two folders.
            alone = [other.label for other in specs].count(spec.label) == 1
            for seed in seeds:
                folder = out / task.name / spec.folder / str(seed)
                # A run that has come to its end is read, and checked to be this one.
                _, history = run(task, spec, folder, seed=seed, progress=progress,
                                 resume=(folder / "config.json").exists(), **settings)
                results.setdefault(task.name, {}).setdefault(
                    spec.label if alone else spec.text, []).append(history)
    return results


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
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(results, path):
    """Test accuracy against steps, an axis a task, a line a trunk, its range shaded."""
    fig, axes = plots.figure(len(results))
    for ax, (task, models) in zip(axes, results.items(), strict=True):
        for model, runs in models.items():
            color = plots.COLORS.get(model.partition(" ")[0])
            plots.band(ax, runs, "test_accuracy", color, model)
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
