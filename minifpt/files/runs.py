"""A run's folder: its settings, its history, its checkpoint."""

import csv
import io
import json
import os
import sys
import textwrap
import zlib
from contextlib import contextmanager, suppress

import numpy as np

from ..checks import whole
from . import (
    DAMAGE,
    csv_text,
    heads,
    make_folder,
    one_line,
    read_bytes,
    read_json,
    regular,
    stored_json,
    to_json,
    write_beside,
)

COLUMNS = ["step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds"]
MOST_STATE = 1 << 28                                      # bytes of a checkpoint's state
DIVERGED = "diverged.txt"                                 # in a folder whose run ends in infinities


class History(list):
    """The rows of ``metrics.csv`` as dictionaries; ``history["test_loss"]`` is a column."""

    def __getitem__(self, key):
        if isinstance(key, str):
            return np.array([np.nan if row[key] is None else row[key] for row in self])
        return super().__getitem__(key)

    def save(self, path):
        """Write ``metrics.csv``; what was not measured is left empty."""
        write_beside(path, lambda f: f.write(csv_text(self, COLUMNS)), "w")

    @classmethod
    def load(cls, path):
        """Read a ``metrics.csv``.  Raises ``ValueError`` for one that is damaged."""
        try:
            text = io.StringIO(read_bytes(path, MOST_STATE).decode("utf-8"), newline="")
            reader = csv.DictReader(text, restval="missing")
            if reader.fieldnames != COLUMNS:
                raise ValueError(f"its first line is not {','.join(COLUMNS)}")
            rows = cls({k: int(v) if k == "step" else float(v) if v != "" else None
                        for k, v in row.items()} for row in reader)
            for row in rows:
                whole("a row", "step", row["step"])
            return rows
        except (*DAMAGE, csv.Error) as e:
            raise ValueError(f"{path}: not the history of a run, or damaged ({one_line(e)})"
                             ) from None


def crc(arrays):
    """CRC-32 of arrays, as text: whether they are what they were."""
    value = 0
    for a in arrays:
        value = zlib.crc32(str((a.shape, a.dtype)).encode(), value)
        value = zlib.crc32(np.ascontiguousarray(a), value)
    return f"{value:08x}"


class Run:
    """All that a run needs to go on: parameters, Adam's moments, generator, history; and its
    settings, by which its checkpoint is known.

    ``norms`` has a row for each row of the history: of each trained parameter the norm of its
    gradient in that step to six digits, as Adam got it, after clipping; NaN where an older
    version ran.
    """

    def __init__(self, model, optimizer, rng, settings):
        self.model, self.optimizer, self.rng = model, optimizer, rng
        self.settings = json.loads(to_json(settings))     # as they come back from a file
        self.history, self.norms = History(), []
        self.step, self.seconds, self.sums = 0, 0.0, np.zeros(3)

    def named(self, trainable=True):
        """(name, Parameter) of what is trained, or of what is frozen."""
        return [(n, p) for n, p in self.model.named_parameters() if p.trainable == trainable]

    def frozen(self):
        """CRC-32 of all frozen parameters: they are not in the checkpoint."""
        return crc(p.data for _, p in self.named(trainable=False))

    def keep_norms(self):
        """Add a row to ``norms``."""
        norms = [0.0 if p.grad is None else np.linalg.norm(p.grad) for _, p in self.named()]
        self.norms.append([float(f"{norm:.6g}") for norm in norms])

    def save(self, path):
        """Write the checkpoint, in one rename."""
        state = {"step": self.step, "seconds": self.seconds, "sums": self.sums.tolist(),
                 "t": self.optimizer.t, "frozen": self.frozen(), "settings": self.settings,
                 "rng": self.rng.bit_generator.state, "history": list(self.history),
                 "norms": self.norms}
        arrays = {"state": np.array(json.dumps(state))}
        for (name, p), m, v in zip(self.named(), self.optimizer.m, self.optimizer.v, strict=True):
            arrays[name] = p.data
            if m is not None:
                arrays[f"m/{name}"], arrays[f"v/{name}"] = m, v
        write_beside(path, lambda f: np.savez(f, **arrays))

    def load(self, path):
        """Read a checkpoint of the same model; nothing changes unless all of it fits."""
        wanted = {key: (p.data.shape, p.data.dtype) for name, p in self.named()
                  for key in (name, f"m/{name}", f"v/{name}")}
        try:
            # Of a damaged file that it opened itself NumPy would leave the closing to chance.
            with open(regular(path), "rb") as f, np.load(f, allow_pickle=False) as file:
                there = heads(file.zip)
                state = stored_json(file.zip, "state", MOST_STATE)
                # What the model has no use for is not read, however large it is.
                arrays = {key: file[key] for key in wanted if there.get(key) == wanted[key]}
            frozen, settings = state["frozen"], dict(state["settings"])
            rng = type(self.rng.bit_generator)()
            rng.state = state["rng"]                      # raises what a wrong one raises
            check_state(state, self.settings["steps"])
        except (*DAMAGE, OSError) as e:
            raise ValueError(f"{path}: not a checkpoint, or damaged ({one_line(e)})") from None
        check_same(path, settings, self.settings, "was written by a run with")
        if frozen != self.frozen():
            raise ValueError(f"{path}: was written over other frozen weights")
        for name, _ in self.named():
            moments = f"m/{name}", f"v/{name}"            # none before the first gradient
            for key in (name, *moments) if {*moments} & {*there} else (name,):
                if there.get(key) != wanted[key]:
                    raise ValueError(f"{path}: '{key}' has {_form(there.get(key))}, "
                                     f"the model wants {_form(wanted[key])}")
                if not np.isfinite(arrays[key]).all() or (key == moments[1]
                                                          and arrays[key].min() < 0):
                    raise ValueError(f"{path}: '{key}' holds numbers that no run comes to")
        unknown = [np.nan] * len(self.named())
        norms = state.get("norms", [unknown for _ in state["history"]])
        if not (isinstance(norms, list) and len(norms) == len(state["history"]) and all(
                isinstance(row, list) and len(row) == len(unknown)
                and all(type(norm) is float for norm in row) for row in norms)):
            raise ValueError(f"{path}: has no norm of each gradient for each row of its history")
        for i, (name, p) in enumerate(self.named()):
            p.data[...] = arrays[name]
            self.optimizer.m[i] = arrays.get(f"m/{name}")
            self.optimizer.v[i] = arrays.get(f"v/{name}")
        self.optimizer.t = state["t"]
        self.rng.bit_generator.state = rng.state
        self.history[:], self.norms = state["history"], norms
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums[:] = state["sums"]


def check_state(state, steps):
    """Raise a ``ValueError`` for a checkpoint's numbers that no run of so many steps writes."""
    def numbers(values):
        return all(type(x) in (int, float) and not abs(x) > sys.float_info.max for x in values)

    for key, good in (
            ("step", lambda x: type(x) is int and 0 <= x <= steps),
            ("t", lambda x: type(x) is int and x == state["step"]),
            ("seconds", lambda x: numbers([x]) and x >= 0),
            ("sums", lambda x: len(x) == 3 and numbers(x)),
            ("history", lambda rows: isinstance(rows, list) and all(
                {*row} == {*COLUMNS} and numbers(row.values()) and type(row["step"]) is int
                and row["step"] <= state["step"] for row in rows))):
        if not good(state[key]):
            raise ValueError(f"its {key} is {state[key]!r:.60}")
    if state["step"] == steps and not state["history"]:
        raise ValueError("it has come to its end without a history")


def _form(head):
    return "no array" if head is None else "shape {} and dtype {}".format(*head)


@contextmanager
def locked(folder):
    """Within, this process alone writes into a run's folder, which is made where it is not
    there; a second one gets a ``ValueError``, where folders can be locked (not on Windows).  A new
    folder that stays empty is removed, and one of a run that failed before its first test."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder")
    made, handle = [path for path in (folder, *folder.parents) if not path.exists()], None
    try:
        import fcntl
    except ImportError:                                   # Windows: no such lock on a folder
        fcntl = None
    try:
        make_folder(folder)
        if fcntl:
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another run is writing there") from None
            except OSError:                               # NFS and others: no locks on folders
                pass
        for left in folder.glob(".*.[0-9]*"):             # by write_beside, when it was killed
            left.unlink(missing_ok=True)
        yield
    except BaseException as e:                            # a KeyboardInterrupt may be gone on from
        if (made and not isinstance(e, KeyboardInterrupt) and not getattr(e, "keeps_folder", False)
                and folder.is_dir() and os.listdir(folder) == ["config.json"]):
            (folder / "config.json").unlink()
        raise
    finally:
        if handle is not None:
            os.close(handle)
        for path in made:                                 # those that hold nothing
            with suppress(OSError):                       # another run may be in the same place
                path.rmdir()


def open_folder(out, resume, run):
    """Start a new run's folder, or load the one that is to go on."""
    known, checkpoint = out / "config.json", out / "checkpoint.npz"
    if not resume:
        there = [name for name in ("config.json", "checkpoint.npz", "metrics.csv", "curves.png")
                 if (out / name).exists()]
        if there:
            what = f"a run ({', '.join(there)}): resume it, or" if known.exists() else (
                f"{', '.join(there)}:")
            raise ValueError(f"{out} already holds {what} choose another folder")
    elif not known.exists():
        raise FileNotFoundError(f"{out}: there is no run to resume")
    else:
        check_same(known, read_json(known), run.settings, "the run has")
        if checkpoint.exists():                           # else it was killed before the first
            run.load(checkpoint)
            if run.history and not (out / "metrics.csv").exists():
                run.history.save(out / "metrics.csv")
    write_beside(known, lambda f: json.dump(run.settings, f, indent=1), "w")


def check_same(path, before, now, what):
    """Raise a ``ValueError`` for settings that are not those of before; a run at a constant rate
    may be made longer, and its task's file, or that of its functions, be found by another path."""
    for key, value in ({"functional_hash": None} | now).items():
        if key in ("source", "functional"):
            continue
        was = before.get(key)
        longer = (key == "steps" and now["schedule"] == "constant"
                  and type(was) is int and 0 < was < value)
        if was != value and not longer:
            hint = {"data_crc": ": other data", "trunk_crc": ": other weights",
                    "code_crc": ": other code in a file of your own",
                    "functional_hash": ": --functional must name the same functions"}.get(key, "")
            key, was, value = (textwrap.shorten(str(x), 100) for x in (key, was, value))
            raise ValueError(f"{path}: {what} {key} = {was}, not {value}{hint}")
