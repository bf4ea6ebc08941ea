"""A run's folder: its settings, its history, its checkpoint."""

import csv
import io
import json
import os
import sys
import textwrap
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, fields

import numpy as np

from ..checks import whole
from . import (
    array_headers,
    csv_text,
    nearest_folder,
    read_json,
    read_text,
    refuse_damage,
    save_text,
    stored_json,
    write_beside,
)

COLUMNS = ["step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds"]
DIVERGED = "diverged.txt"                                 # the error of a run that diverged
OURS = "config.json", "checkpoint.npz", "metrics.csv", "curves.png", DIVERGED
RESTORE = "restore it, or choose another folder for a new run"
FORMAT = 3                                                # of config.json; others are refused
NAMED = ContextVar("NAMED", default=())                   # versions that say_what_differs skips

# The parts of a run's fingerprint in config.json, each with what an error says of another one.
PARTS = {"data": "other data",
         "model": "other layers or settings of the model, such as heads, dropout or an adapter",
         "frozen": "other frozen weights",
         "functions": "other functions in the file of --functional"}


class History(list):
    """The rows of ``metrics.csv`` as dictionaries; ``history["test_loss"]`` is a column."""

    def __getitem__(self, key):
        if isinstance(key, str):
            if key not in COLUMNS:
                raise KeyError(f"no column '{key}', expected one of {', '.join(COLUMNS)}")
            return np.array([np.nan if row[key] is None else row[key] for row in self])
        return super().__getitem__(key)

    def save(self, path):
        """Write ``metrics.csv``, with empty cells for values that were not measured."""
        save_text(path, csv_text(self, COLUMNS))

    @classmethod
    def load(cls, path):
        """Read a ``metrics.csv``.  Raises ``ValueError`` if it is damaged."""
        with refuse_damage(f"{path}: not the history of a run, or damaged"):
            reader = csv.DictReader(io.StringIO(read_text(path)), restval="missing")
            if reader.fieldnames != COLUMNS:
                raise ValueError(f"its first line is not {','.join(COLUMNS)}")
            return cls({k: whole("a row", k, int(v)) if k == "step" else
                        float(v) if v != "" else None for k, v in row.items()} for row in reader)


def check_fingerprint(path, before, now, advice=RESTORE):
    """Raise ``ValueError`` that names the first part of a run's fingerprint that has changed, with
    advice.  Only parts that both have are compared."""
    for part, value in now.items():
        if before.get(part, value) != value:
            raise ValueError(f"{path}: the run was made with {PARTS[part]}: {advice}")


def save_checkpoint(path, run):
    """Write the state of a run: its settings, trainable parameters, Adam's moments, generator and
    history."""
    optimizer = run.optimizer
    state = {"step": run.step, "seconds": run.seconds(), "since_test": run.since_test.tolist(),
             "t": optimizer.t, "lr": run.lr, "config": run.config,
             "loss": run.loss, "accuracy": run.accuracy,
             "rng": run.rng.bit_generator.state, "history": list(run.history)}
    arrays = {"state": np.array(json.dumps(state))}
    for (name, p), m, v in zip(trained(run.model), optimizer.m, optimizer.v, strict=True):
        arrays[name] = p.data
        if m is not None:
            arrays[f"m/{name}"], arrays[f"v/{name}"] = m, v
    write_beside(path, lambda f: np.savez(f, **arrays))


def load_checkpoint(path, run):
    """Read the state of a run of the same model.  Nothing changes unless all of it fits."""
    parameters, optimizer = trained(run.model), run.optimizer
    expected = {key: (p.data.shape, p.data.dtype) for name, p in parameters
                for key in (name, f"m/{name}", f"v/{name}")}
    with refuse_damage(f"{path}: not a checkpoint, or damaged"):
        # NumPy might not close a damaged file that it opened itself.
        with open(path, "rb") as f, np.load(f, allow_pickle=False) as file:
            headers = array_headers(file.zip)
            state = stored_json(file.zip, "state")
            # Other arrays are not read: they may be large.
            arrays = {key: file[key] for key in expected if headers.get(key) == expected[key]}
        config = with_defaults(state["config"], run.settings)
        rng = type(run.rng.bit_generator)()
        rng.state = state["rng"]                          # raises for a wrong state
        check_state(state, run.config["steps"])
    check_same(path, config, run.config, "was written by a run with")
    for name, _ in parameters:
        moments = f"m/{name}", f"v/{name}"                # none before the first gradient
        for key in (name, *moments) if {*moments} & {*headers} else (name,):
            if headers.get(key) != expected[key]:
                raise ValueError(f"{path}: '{key}' has {_form(headers.get(key))}, "
                                 f"expected {_form(expected[key])}")
            if not np.isfinite(arrays[key]).all() or (key == moments[1] and arrays[key].min() < 0):
                raise ValueError(f"{path}: '{key}' contains NaN, infinite or wrongly negative "
                                 "values: the file is damaged")
    for i, (name, p) in enumerate(parameters):
        p.data[...] = arrays[name]
        optimizer.m[i], optimizer.v[i] = arrays.get(f"m/{name}"), arrays.get(f"v/{name}")
    optimizer.t, run.rng.bit_generator.state = state["t"], rng.state
    run.history[:], run.since_test[:] = state["history"], state["since_test"]
    run.step, run.lr = state["step"], state["lr"]
    run.loss, run.accuracy = state.get("loss"), state.get("accuracy")      # older files lack them
    run.began -= state["seconds"]


def trained(model):
    """Return [(name, Parameter)] of the trainable parameters."""
    return [(name, p) for name, p in model.named_parameters() if p.trainable]


def check_state(state, steps):
    """Raise ``ValueError`` for numbers in a checkpoint that no run of ``steps`` steps writes."""
    rows, step = state["history"], state["step"]
    last = [state[name] for name in ("loss", "accuracy") if state.get(name) is not None]
    numbers = [step, state["seconds"], state["lr"], *last, *state["since_test"],
               *(x for row in rows for x in row.values())]
    if not (all(type(x) in (int, float) and not abs(x) > sys.float_info.max for x in numbers)
            and 0 <= step <= steps and state["t"] == step and len(state["since_test"]) == 3
            and all({*row} == {*COLUMNS} and row["step"] <= step for row in rows)
            and state["since_test"][2] == step - (rows[-1]["step"] if rows else 0)):
        raise ValueError("its state is none that a run writes")


def _form(head):
    """Return an array's shape and dtype, or that there is none, as text."""
    return "no array" if head is None else "shape {} and dtype {}".format(*head)


@contextmanager
def locked(folder):
    """Make a run's folder and lock it for this process.

    A second process gets a ``ValueError``, except on Windows and on file systems without locks.
    At the end new folders are removed if they are empty; a run that failed before its first test
    leaves none.
    """
    nearest_folder(folder)
    try:
        import fcntl
    except ImportError:                                   # Windows: no such lock on a folder
        fcntl = None
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if fcntl:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another run is writing there") from None
            except OSError:                               # NFS and others cannot lock folders
                pass
        try:
            yield
        except BaseException as e:                        # after Ctrl-C a run may be resumed
            if (new_folders and not isinstance(e, KeyboardInterrupt)
                    and not getattr(e, "keeps_folder", False)
                    and folder.is_dir() and os.listdir(folder) == ["config.json"]):
                (folder / "config.json").unlink()
            raise
        finally:
            with suppress(OSError):                       # rmdir removes only empty folders
                for path in new_folders:
                    path.rmdir()


def open_folder(out, resume, run):
    """Start the folder of a new run, or load the run to resume."""
    config, checkpoint = out / "config.json", out / "checkpoint.npz"
    if not resume:
        files = [name for name in OURS if (out / name).exists()]
        if files:
            content = f"a run ({', '.join(files)}): resume it, or" if config.exists() else (
                f"{', '.join(files)}:")
            raise ValueError(f"{out} already holds {content} choose another folder")
    elif not config.exists():
        raise FileNotFoundError(f"{out}: there is no run to resume")
    else:
        before = with_defaults(read_json(config), run.settings)
        check_same(config, before, run.config, "the run has")
        if checkpoint.exists():                           # otherwise start from step 0
            load_checkpoint(checkpoint, run)
            if run.history and not (out / "metrics.csv").exists():
                run.history.save(out / "metrics.csv")
        say_what_differs(out, before, {
            part: version for part, version in run.config["versions"].items()
            if part.startswith("text") or 0 < run.step < run.config["steps"]})
        parts = before["fingerprint"] | run.config["fingerprint"]
        run.config = before | run.config | {"fingerprint": parts}         # what was there stays
        if run.is_done():                                 # made with these, not with those of now
            run.config["versions"] = before.get("versions", run.config["versions"])
    write_beside(config, lambda f: json.dump(run.config, f, indent=1), "w")


def with_defaults(config, settings):
    """Return the ``config.json`` of a run in which each setting that it lacks, because it is newer
    than the run, has its default; ``settings`` is ``training.Settings``, or an instance."""
    return config | {field.name: field.default for field in fields(settings)
                     if field.default is not MISSING and field.name not in config}


def say_what_differs(out, config, now):
    """Say on stderr which of the versions in ``now`` the run in a folder was not begun with."""
    before = config.get("versions", {})
    parts = [part for part, version in now.items()
             if before.get(part, version) != version and part not in NAMED.get()]
    if parts:
        print(f"minifpt: {out} was begun with another {' and another '.join(parts)}: its "
              "results may differ", file=sys.stderr)


def check_same(path, before, now, verb, may_be_longer=True):
    """Raise ``ValueError`` if settings, the model's recipe or the fingerprint have changed.
    Allowed are more steps of a learning rate that does not depend on their number, unless the run
    may not become longer, another ``target_accuracy``, and another path of a user's file."""
    if before.get("format") != FORMAT or not isinstance(before.get("fingerprint"), dict):
        raise ValueError(f"{path}: damaged, or a run of an older version of minifpt: go on with "
                         "that version, or choose another folder for a new run")
    had = compared(before)
    for key, value in compared(now).items():
        was = had.get(key)
        if key in ("source", "trunk") and ".py:" in f"{was}{value}" and (
                str(was).rpartition(":")[2] == str(value).rpartition(":")[2]):
            continue                                      # the file may have moved
        if key == "source" and was is None:               # of a task object, or an older run
            continue
        is_longer = (key == "steps" and may_be_longer and now["schedule"] != "cosine"
                     and type(was) is int and 0 < was < value)
        if was != value and not is_longer:
            key, was, value = (textwrap.shorten(str(x), 100) for x in (key, was, value))
            raise ValueError(f"{path}: {verb} {key} = {was}, not {value}: give "
                             f"{was} to resume it, or choose another folder")
    library = {"functions": None}                         # of a run without --functional
    check_fingerprint(path, library | before["fingerprint"], library | now["fingerprint"])


def compared(config):
    """Return the entries of a ``config.json`` that a resumed run may not change."""
    entries = {}
    for key, value in config.items():                     # the run's own seed comes later
        entries |= (value or {}) if key == "recipe" else {key: value}
    return {key: value for key, value in entries.items() if key not in (
        "functional", "trained", "fingerprint", "versions", "target_accuracy")}
