"""One run: do it, and read its folder back: its task, its model, its settings."""

import inspect
import os
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from types import NoneType
from typing import Any

from .. import tasks
from ..checks import brief
from ..files import read_json, refuse_damage
from ..files.runs import RESTORE, check_fingerprint, load_checkpoint, say_what_differs
from ..fpt import FPT, Recipe
from ..freeze import frozen_crc, train_as_recorded
from ..layers import settings_crc
from ..record import texts
from ..tasks.base import fingerprint
from ..training import Run, Settings, train
from .validation import MARK, Validation

# Keys of every run's config.json.
SETTINGS = {"task": str, "options": dict, "steps": int, "batch_size": int, "lr": float,
            "seed": int, "schedule": str, "clip": float, "eval_every": int, "test_examples": int,
            "warmup": int, "weight_decay": float, "recipe": (dict, NoneType), "trained": dict,
            "fingerprint": dict, "versions": dict, "format": int}


def run(task, trunk, out=None, *, seed=0, source=None, config=None, **options):
    """Do one run of the paper's protocol: build the FPT for a task, freeze it, train it.

    ``source`` is the name by which ``tasks.get`` made the task, by default the task's own.
    ``config.json`` holds it and ``config``, so that the run can be read back.  ``options`` go to
    :meth:`minifpt.FPT.for_task` and :func:`minifpt.train`.  Returns (model, history).
    """
    names = {*inspect.signature(FPT.for_task).parameters} & {*options}
    model = FPT.for_task(task, trunk, seed=seed, **{name: options.pop(name) for name in names})
    mark = MARK if isinstance(task, Validation) else {}
    config = {"source": source or task.name} | mark | (config or {})
    return model, train(model, task, seed=seed, out=out, config=config, **options)


def load(folder: str | os.PathLike, trunk: Any = None) -> FPT:
    """Return the model of a run of ``minifpt train``, ``compare`` or ``minifpt.train``, as its last
    checkpoint has it.

    trunk   for a model that was built in code from a trunk without a name: the trunk as it was
            before training, a function that returns it, or its name if it has no dropout.

    ``model.run`` has the run's settings: ``model.run["task"]`` is its task's name,
    ``model.run["steps"]`` the number of steps that it was to do, and ``model.run["step"]`` of those
    that it has done.  The task's data are not read.

    Raises ``FileNotFoundError`` or ``ValueError`` of one line for a folder without a run, and for a
    trunk that has changed.  A changed text of a trunk's file is named on stderr.
    """
    config = read_config(folder)
    model = at_start(folder, config, trunk)
    check_fingerprint(folder, config["fingerprint"], {
        "model": settings_crc(model), "frozen": frozen_crc(model)},
        RESTORE if trunk is None else "pass the trunk as it was before training")
    model.run = config | {"step": read_checkpoint(folder, model, config).step}
    say_what_differs(folder, config, texts(model.recipe.trunk))
    return model


def read_run(folder):
    """Return ``(task, Run)`` of a run whose trunk has a name, as its last checkpoint has it.

    Raises ``FileNotFoundError`` or ``ValueError`` of one line where the folder holds no such run,
    where it is damaged or was changed, and where its weights or a file of the user's own are
    missing.  A changed text of such a file is named on stderr.
    """
    config = read_config(folder)
    task = task_of(folder, config)
    state = read_checkpoint(folder, at_start(folder, config), config, task)
    # Last: damaged settings fail before.
    data = remake(folder, "its data", lambda: fingerprint(task))
    check_fingerprint(folder, config["fingerprint"], {
        "model": settings_crc(state.model), "frozen": frozen_crc(state.model), "data": data})
    say_what_differs(folder, config, texts(config.get("source"), state.model.recipe.trunk))
    return task, state


def read_checkpoint(folder, model, config, task=None):
    """Return the ``Run`` of a model, with what the folder's last checkpoint holds."""
    path = Path(folder) / "checkpoint.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: there is no checkpoint.npz; a run writes it every "
                                "--checkpoint-every steps and at its end")
    with refuse_damage(f"{folder}: its settings cannot be read"):
        state = Run(model, task, Settings.from_config(config))
    state.config = config
    load_checkpoint(path, state)
    return state


def read_config(folder):
    """Return a run's ``config.json``, checked to have the keys of this version."""
    if not isinstance(folder, (str, os.PathLike)):
        raise ValueError(f"load: the folder is {brief(folder)}, expected a path")
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: " + (
            "it holds no run (no config.json)" if path.parent.is_dir() else
            "it is a file, expected the folder of a run" if path.parent.is_file() else
            "there is no such folder"))
    settings = read_json(path)
    if "pretraining" in settings:
        raise ValueError(f"{folder}: a run of minifpt pretrain; its weights are {folder}.npz")
    for key, kind in SETTINGS.items():
        if not isinstance(settings.get(key), kind):
            has = "has no" if key not in settings else f"has {brief(settings[key])} for"
            raise ValueError(f"{path}: {has} '{key}': it is damaged, not of minifpt, or of an "
                             "older version, which can read it")
    return settings


def task_of(folder, config):
    """Return the task of a run, made again from its ``config.json``."""
    name = str(config.get("source") or config["task"])
    if name == config["task"] and name not in tasks.names() and ".py:" not in name:
        raise ValueError(f"{folder}: its task {brief(name)} was built in code, or is of another "
                         "version: train with FILE.py:CLASS, from which it can be made again")
    task = remake(folder, "its task", lambda: tasks.get(name, **config["options"]))
    if task.name != config["task"]:
        raise ValueError(f"{folder}: its task was {brief(config['task'])}, {name} now makes "
                         f"'{task.name}'")
    return Validation(task) if {*MARK} <= {*config} else task


def at_start(folder, config, trunk=None):
    """Return a run's model as it was before the first step: same trunk, same seed, and the
    same parameters and columns frozen, by a mask or by hand.

    trunk   the trunk as it was, or a function that returns it, where it has no name."""
    if not config["recipe"]:
        raise ValueError(f"{folder}: its model is not an FPT: build it, and take its parameters "
                         "from checkpoint.npz, by name")
    with refuse_damage(f"{folder}: its recipe cannot be read"):
        recipe = Recipe(**config["recipe"])
    if trunk is not None:
        is_name = isinstance(trunk, (str, os.PathLike))
        recipe = replace(recipe, trunk=str(trunk) if is_name else None, dropout=0.0)
    elif recipe.trunk is None:
        raise ValueError(f"{folder}: its trunk was built in code: pass it, too, "
                         "minifpt.load(folder, trunk)")
    model = remake(folder, "its model", lambda: FPT.from_recipe(
        recipe, trunk() if callable(trunk) else trunk))
    with refuse_damage(f"{folder}: its trained parameters cannot be read"):
        train_as_recorded(model, config["trained"])
    return model


def remake(folder, part, make):
    """Return ``make()``; its errors name the run and the part."""
    try:
        return make()
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{folder}: {part} cannot be made again: {shorten(str(e), 300)}; "
                                "its paths are relative to where it was trained: start "
                                "there") from None
    except ValueError as e:
        raise ValueError(f"{folder}: {part} cannot be made again: {shorten(str(e), 300)}") from None
