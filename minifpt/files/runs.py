"""A run's folder: its settings, its history, its checkpoint."""

import csv
import io
import json
import os
import sys
import textwrap
import zlib
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from ..checks import whole
from . import (
    MOST_SETTINGS,
    array_headers,
    csv_text,
    nearest_folder,
    read_json,
    read_text,
    refuse_damage,
    save_text,
    stored_json,
    to_json,
    write_beside,
)

COLUMNS = ["step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds"]
DIVERGED = "diverged.txt"                                 # the error of a run that diverged
OURS = "config.json", "checkpoint.npz", "metrics.csv", "curves.png", DIVERGED
UNTIL_TESTS = 3                                           # in a row, see Run.is_solved
RESTORE = "restore it, or choose another folder for a new run"
FORMAT = 2                                                # of config.json; others are refused

# The parts of a run's fingerprint in config.json, each with what an error says of another one.
PARTS = {"data": "other data",
         "loss": "another loss or accuracy of its task",
         "model": "other layers or settings of the model, such as heads, dropout or an adapter",
         "frozen": "other frozen weights",
         "weights": "other weights at its start",
         "code": "other code in a file of your own",
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


def crc(arrays):
    """Return a CRC-32 of arrays, as text."""
    value = 0
    for a in arrays:
        value = zlib.crc32(str((a.shape, a.dtype)).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(a), value)
    return f"{value:08x}"


def frozen_crc(model):
    """Return a CRC-32 of all frozen parameters, which are not in the checkpoint, and of all frozen
    columns."""
    return crc(array for _, p in model.named_parameters() for array in (
        [p.data[..., columns] for columns in p.frozen_columns] if p.trainable else [p.data]))


def trained_record(model):
    """Return ``{name: frozen columns}`` of the trained parameters, for ``config.json``; columns
    are lists of first, end and step, as of a slice."""
    return {name: [[columns.start, columns.stop, columns.step] for columns in p.frozen_columns]
            for name, p in model.named_parameters() if p.trainable}


def train_as_recorded(model, record):
    """Freeze the parameters of a model as :func:`trained_record` says, whoever froze them."""
    parameters = dict(model.named_parameters())
    for name in record:
        if name not in parameters:
            raise ValueError(f"the model has no parameter '{name}'")
    for name, p in parameters.items():
        p.trainable = name in record
        if p.trainable:
            p.frozen_columns = tuple(slice(*columns) for columns in record[name])


def check_fingerprint(path, before, now, advice=RESTORE):
    """Raise ``ValueError`` that names the first part of a run's fingerprint that has changed, with
    advice.  Only parts that both have are compared."""
    for part, value in now.items():
        if before.get(part, value) != value:
            raise ValueError(f"{path}: the run was made with {PARTS[part]}: {advice}")


class Run:
    """The state of a run: parameters, Adam's moments, generator and history, which a checkpoint
    holds together with the run's settings.

    ``loss`` and ``accuracy`` are those of the last step's batch, ``None`` before a step."""

    def __init__(self, model, optimizer, rng, settings):
        self.model, self.optimizer, self.rng = model, optimizer, rng
        self.settings = json.loads(to_json(settings))     # as read from a file
        self.history = History()
        self.step, self.seconds, self.sums = 0, 0.0, np.zeros(3)
        self.loss, self.accuracy = None, None

    def is_test_due(self):
        """Return whether the run's step is one of a test, and has none yet."""
        is_due = self.step == self.settings["steps"] or self.step % self.settings["eval_every"] == 0
        return 0 < self.step and is_due and not (
            self.history and self.history[-1]["step"] == self.step)

    def is_solved(self):
        """Return whether the last tests all reached the accuracy ``until`` of the settings."""
        until, last = self.settings.get("until"), self.history[-UNTIL_TESTS:]
        return isinstance(until, float) and len(last) == UNTIL_TESTS and all(
            row["test_accuracy"] >= until for row in last)

    def named(self):
        """Return [(name, Parameter)] of the trainable parameters."""
        return [(n, p) for n, p in self.model.named_parameters() if p.trainable]

    def save(self, path):
        """Write the checkpoint."""
        state = {"step": self.step, "seconds": self.seconds, "sums": self.sums.tolist(),
                 "t": self.optimizer.t, "settings": self.settings,
                 "rng": self.rng.bit_generator.state, "history": list(self.history)}
        arrays = {"state": np.array(json.dumps(state))}
        for (name, p), m, v in zip(self.named(), self.optimizer.m, self.optimizer.v, strict=True):
            arrays[name] = p.data
            if m is not None:
                arrays[f"m/{name}"], arrays[f"v/{name}"] = m, v
        write_beside(path, lambda f: np.savez(f, **arrays))

    def load(self, path):
        """Read a checkpoint of the same model.  Nothing changes unless all of it fits."""
        expected = {key: (p.data.shape, p.data.dtype) for name, p in self.named()
                    for key in (name, f"m/{name}", f"v/{name}")}
        with refuse_damage(f"{path}: not a checkpoint, or damaged"):
            # NumPy might not close a damaged file that it opened itself.
            with open(path, "rb") as f, np.load(f, allow_pickle=False) as file:
                headers = array_headers(file.zip)
                state = stored_json(file.zip, "state", MOST_SETTINGS)
                # Other arrays are not read: they may be large.
                arrays = {key: file[key] for key in expected if headers.get(key) == expected[key]}
            settings = dict(state["settings"])
            before = dict(settings["fingerprint"])
            rng = type(self.rng.bit_generator)()
            rng.state = state["rng"]                      # raises for a wrong state
            check_state(state, self.settings["steps"])
        check_same(path, settings, self.settings, "was written by a run with")
        check_fingerprint(path, before, {"frozen": frozen_crc(self.model)})
        for name, _ in self.named():
            moments = f"m/{name}", f"v/{name}"            # none before the first gradient
            for key in (name, *moments) if {*moments} & {*headers} else (name,):
                if headers.get(key) != expected[key]:
                    raise ValueError(f"{path}: '{key}' has {_form(headers.get(key))}, "
                                     f"expected {_form(expected[key])}")
                if not np.isfinite(arrays[key]).all() or (key == moments[1]
                                                          and arrays[key].min() < 0):
                    raise ValueError(f"{path}: '{key}' contains NaN, infinite or wrongly negative "
                                     "values: the file is damaged")
        for i, (name, p) in enumerate(self.named()):
            p.data[...] = arrays[name]
            self.optimizer.m[i] = arrays.get(f"m/{name}")
            self.optimizer.v[i] = arrays.get(f"v/{name}")
        self.optimizer.t = state["t"]
        self.rng.bit_generator.state = rng.state
        self.history[:] = state["history"]
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums[:] = state["sums"]


def check_state(state, steps):
    """Raise ``ValueError`` for numbers in a checkpoint that no run of ``steps`` steps writes."""
    rows, step = state["history"], state["step"]
    numbers = [step, state["seconds"], *state["sums"], *(x for row in rows for x in row.values())]
    if not (all(type(x) in (int, float) and not abs(x) > sys.float_info.max for x in numbers)
            and 0 <= step <= steps and state["t"] == step and len(state["sums"]) == 3
            and all({*row} == {*COLUMNS} and row["step"] <= step for row in rows)
            and state["sums"][2] == step - (rows[-1]["step"] if rows else 0)):
        raise ValueError("its state is none that a run writes")


def _form(head):
    """Return an array's shape and dtype, or that there is none, as text."""
    return "no array" if head is None else "shape {} and dtype {}".format(*head)


@contextmanager
def without_empty(*folders):
    """Yield those of some folders and their parents that are not there yet; at the end those of
    them that are empty are removed."""
    new_folders = {path for folder in folders for path in (folder, *folder.parents)
                   if not path.exists()}
    try:
        yield new_folders
    finally:
        for path in sorted(new_folders, key=lambda path: -len(path.parts)):
            with suppress(OSError):                       # rmdir removes only empty folders
                path.rmdir()


@contextmanager
def locked(folder):
    """Make a run's folder and lock it for this process.

    A second process gets a ``ValueError``, except on Windows and on file systems without locks.
    At the end a new folder is removed if it is empty, or if its run failed before its first test.
    """
    nearest_folder(folder)
    try:
        import fcntl
    except ImportError:                                   # Windows: no such lock on a folder
        fcntl = None
    with without_empty(folder) as new_folders, ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
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
        before = read_json(config)
        if before.get("format") != FORMAT or not isinstance(before.get("fingerprint"), dict):
            raise ValueError(f"{config}: damaged, or a run of an older version of minifpt: go on "
                             "with that version, or choose another folder for a new run")
        check_same(config, before, run.settings, "the run has")
        if checkpoint.exists():                           # otherwise start from step 0
            run.load(checkpoint)
            if run.history and not (out / "metrics.csv").exists():
                run.history.save(out / "metrics.csv")
            if run.step < run.settings["steps"]:
                say_what_differs(out, before.get("made_with"), run.settings["made_with"])
        parts = before["fingerprint"] | run.settings["fingerprint"]
        run.settings = before | run.settings | {"fingerprint": parts}     # what was there stays
    write_beside(config, lambda f: json.dump(run.settings, f, indent=1), "w")


def say_what_differs(out, before, now):
    """Say on stderr which of minifpt's code, NumPy and BLAS has changed since the run began: its
    last digits may differ.  Runs of older versions have no record of them."""
    parts = [part for part in now if isinstance(before, dict) and before.get(part) != now[part]]
    if parts:
        print(f"minifpt: {out} was begun with another {' and another '.join(parts)}: it goes on, "
              "and its last digits may differ", file=sys.stderr)


def check_same(path, before, now, verb):
    """Raise ``ValueError`` if settings or the fingerprint have changed.  Allowed are more steps at
    a constant learning rate, another ``until``, and another path of the task's file or of the
    functions' file."""
    for key, value in now.items():
        if key in ("functional", "built", "fingerprint", "made_with", "until"):
            continue
        was = before.get(key)
        if key == "source" and (".py:" not in f"{was}{value}" or str(was).rpartition(":")[2]
                                == str(value).rpartition(":")[2]):
            continue                                      # the file may have moved
        is_longer = (key == "steps" and now["schedule"] == "constant"
                     and type(was) is int and 0 < was < value)
        if was != value and not is_longer:
            key, was, value = (textwrap.shorten(str(x), 100) for x in (key, was, value))
            raise ValueError(f"{path}: {verb} {key} = {was}, not {value}: give "
                             f"{was} to resume it, or choose another folder")
    check_fingerprint(path, before["fingerprint"], now["fingerprint"])
