"""What a run's folder records of its model and task, so that only the same run goes on there."""

import json
import zlib
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from .files import PACKAGE, to_json
from .files.runs import FORMAT, open_folder
from .freeze import frozen_crc, trained_record
from .layers import settings_crc
from .machine import blas_kernels
from .plugins import USERS_OWN
from .tasks.base import check_repeats, fingerprint, optional


def open_run(folder, resume, run, more):
    """Start the folder of a run, or go on there; ``more`` are entries for its ``config.json``."""
    run.config = config_of(run, more)                     # may read all data
    open_folder(folder, resume, run)
    if 0 < run.step < run.settings.steps:                 # of a run that goes on
        check_repeats(run.task)


def config_of(run, more):
    """Return the ``config.json`` of a run, with ``more`` entries, as it is read from the file."""
    model, task = run.model, run.task
    recipe = getattr(model, "recipe", None)               # a language model has none
    parts = {"data": fingerprint(task), "model": settings_crc(model), "frozen": frozen_crc(model)}
    sources = more.get("source", task.name), recipe and recipe.trunk
    return json.loads(to_json(
        {"task": task.name, "options": optional(task, "options")} | more
        | {"recipe": recipe and asdict(recipe)} | run.settings.as_json()
        | {"trained": trained_record(model), "fingerprint": more.get("fingerprint", {}) | parts,
           "versions": versions() | texts(*sources), "format": FORMAT}))


@cache
def versions():
    """Return {part: version} of minifpt's code and the libraries, which decide a run's bits."""
    code = [path.read_bytes() for folder in ("", "tasks", "trunks")
            for path in sorted((PACKAGE / folder).glob("*.py"))]
    return {"code of minifpt": f"{zlib.crc32(b''.join(code)):08x}", "NumPy": np.__version__,
            "BLAS": blas_kernels()}


def texts(*names):
    """Return {part: version} of the text of each file in names of the form ``FILE.py:NAME``."""
    files = [Path(match[1]) for name in names if (match := USERS_OWN.fullmatch(str(name)))]
    return {f"text of {path.name}": f"{zlib.crc32(path.read_bytes()):08x}" for path in files
            if path.is_file()}
