"""Read a run's folder: its task, its model, its settings."""

import os
from pathlib import Path
from textwrap import shorten
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import tasks
from ..checks import brief
from ..files import read_json, refuse_damage
from ..files.runs import RESTORE, Run, check_fingerprint, crc, train_as_recorded
from ..fpt import FPT
from ..optim import Adam
from ..plugins import code_crc
from ..training import model_fingerprint, task_fingerprint
from .validation import Validation

# Keys of every run's config.json.
SETTINGS = {"task": str, "options": dict, "steps": int, "batch_size": int, "lr": float,
            "seed": int, "schedule": str, "clip": float, "eval_every": int, "test_examples": int,
            "warmup": int, "weight_decay": float, "built": dict, "fingerprint": dict, "format": int}


def load(folder: str | os.PathLike, trunk: Any = None) -> FPT:
    """Return the model of a run of ``minifpt train``, ``compare`` or ``minifpt.train``, as its last
    checkpoint has it.

    trunk   for a model that was built in code from a trunk without a name: the trunk as it was
            before training, a function that returns it, or its name if it has no dropout.

    ``model.run`` has the run's settings: ``model.run["task"]`` is its task's name,
    ``model.run["steps"]`` the number of steps that it was to do, and ``model.run["step"]`` of those
    that it has done.  The task's data are not read.

    Raises ``FileNotFoundError`` or ``ValueError`` of one line for a folder without a run, and for a
    trunk or a file of your own that has changed.
    """
    settings = read_settings(folder)
    model = at_start(folder, settings, trunk)
    check_fingerprint(folder, settings["fingerprint"], model_fingerprint(model),
                      RESTORE if trunk is None else "pass the trunk as it was before training")
    run = read_checkpoint(folder, model, settings)
    model.run = settings | {"step": run.step}
    return model


def read_run(folder):
    """Return ``(task, Run)`` of a run whose trunk has a name, as its last checkpoint has it.

    Raises ``FileNotFoundError`` or ``ValueError`` of one line where the folder holds no such run,
    where it is damaged or was changed, and where its weights or a file of the user's own are
    missing or have changed.
    """
    settings = read_settings(folder)
    task = task_of(folder, settings)
    check_code(folder, settings)
    run = read_checkpoint(folder, at_start(folder, settings), settings)
    # Last: damaged settings fail before.
    parts = remake(folder, "its data", lambda: task_fingerprint(task))
    check_fingerprint(folder, settings["fingerprint"], parts)
    return task, run


def read_checkpoint(folder, model, settings):
    """Return the ``Run`` of a model, with what the folder's last checkpoint holds."""
    path = Path(folder) / "checkpoint.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: there is no checkpoint.npz; a run writes it every "
                                "--checkpoint-every steps and at its end")
    trained = [p for p in model.parameters() if p.trainable]
    run = Run(model, Adam(trained), np.random.default_rng(), settings)
    run.load(path)
    return run


def read_settings(folder):
    """Return a run's ``config.json``, checked to have the keys of this version."""
    if not isinstance(folder, (str, os.PathLike)):
        raise ValueError(f"load: the folder is {brief(folder)}, expected a path")
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: " + (
            "it holds no run (no config.json)" if path.parent.is_dir() else
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


def task_of(folder, settings):
    """Return the task of a run, made again from its settings."""
    options = dict(settings["options"])
    is_validation = options.pop("validation", False)
    name = str(settings.get("source") or settings["task"])
    if name == settings["task"] and name not in tasks.names() and ".py:" not in name:
        raise ValueError(f"{folder}: its task {brief(name)} was built in code, or is of another "
                         "version: train with FILE.py:CLASS, from which it can be made again")
    task = remake(folder, "its task", lambda: tasks.get(name, **options))
    if task.name != settings["task"]:
        raise ValueError(f"{folder}: its task was {brief(settings['task'])}, {name} now makes "
                         f"'{task.name}'")
    return Validation(task) if is_validation else task


def at_start(folder, settings, trunk=None):
    """Return a run's model as it was before the first step: same trunk, same seed, and the
    same parameters and columns frozen, by a mask or by hand.

    trunk   the trunk as it was, or a function that returns it, where it has no name."""
    built = settings["built"]
    if not {"input_dim", "output_dim", "output_tokens", "seed"} <= {*built}:
        raise ValueError(f"{folder}: its model is not an FPT: build it, and take its parameters "
                         "from checkpoint.npz, by name")
    if trunk is None and "model" not in built:
        raise ValueError(f"{folder}: its trunk was built in code: pass it, too, "
                         "minifpt.load(folder, trunk)")
    if trunk is None and ".py:" in str(built["model"]):
        check_code(folder, settings)
    model = remake(folder, "its model", lambda: FPT.for_task(
        SimpleNamespace(**built), built["model"] if trunk is None else
        trunk_from(trunk) if callable(trunk) else trunk, built.get("freeze", "full"), built["seed"],
        built.get("dropout", 0.0), built.get("adapt"), built.get("start")))
    if "n_positions" in built:                            # frozen after they had been added
        model.trunk.add_positions(built["n_positions"], built["seed"])
    if "trained" in built:
        with refuse_damage(f"{folder}: its trained parameters cannot be read"):
            train_as_recorded(model, built["trained"])
    if trunk is None:
        weights = crc(p.data for _, p in model.trunk.named_parameters())
        check_fingerprint(folder, settings["fingerprint"], {"weights": weights})
    return model


def trunk_from(make_trunk):
    """Return the trunk that a function or class returns when it is called without arguments."""
    try:
        return make_trunk()
    except TypeError as e:
        if e.__traceback__.tb_next:                       # from within the function
            raise
        raise ValueError(f"the trunk is made by {brief(make_trunk)}, which takes arguments: pass "
                         "a function without, or the trunk itself") from None


def check_code(folder, settings):
    """Raise ``ValueError`` where a user's own file, of a task or a trunk, has changed."""
    source, model = settings.get("source") or settings["task"], settings["built"].get("model", "")
    code = remake(folder, "its code", lambda: code_crc(str(source), str(model)))
    check_fingerprint(folder, settings["fingerprint"], {"code": code})


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
