"""Commands that are killed at random moments, and go on: nothing half is taken for whole, no run is
lost, and the end is the same to the last bit.

    python -m tests.fuzz.kills                            # 50 kills of each command, some minutes
    python -m tests.fuzz.kills train grid --kills 200
    python -m tests.fuzz.kills --seed 3                   # other moments

Each command is started, and killed by SIGKILL once a random number of files has changed and a few
random milliseconds have passed; then all that it left is looked at, and the same command goes on
with it.  After some kills it is left in peace, and what it made is held against what an
undisturbed one makes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import minifpt
from minifpt.files import read_json
from minifpt.files.runs import History
from minifpt.files.weights import read

ROOT = Path(__file__).resolve().parents[2]
IN_A_ROW = 9                                              # kills before a command may end
PNG_END = b"IEND\xaeB`\x82"
PATIENCE = 60.0                                           # seconds
# The command line with a small shape for ``pretrain``, which has no option for it.
RUN = """
import sys
from minifpt import cli
from minifpt.experiments import pretrain
pretrain.SHAPE = dict(n_layer=1, n_head=2, n_embd=8, n_positions=32, vocab_size=256)
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


@dataclass
class Command:
    """``line(folder)``: what is run in a folder, to go on where it stands.  ``changes``: how many
    changes of files it makes, about.  ``victims``: the command, one of its children, or all."""

    line: Callable
    changes: int
    victims: tuple = ("command",)


@dataclass
class Report:
    """What happened to a command: how often it was killed, and what was wrong."""

    kills: int = 0
    findings: list = field(default_factory=list)


# -------------------------------------------------------------------------- the commands


def resumed(out):
    return ["--out", out, *["--resume"] * (out / "config.json").exists()]


def train_line(folder):
    return ["train", "bit-xor", "--n", "2", "--model", "random:1x2x8", "--steps", "300",
            "--batch-size", "4", "--checkpoint-every", "5", *resumed(folder / "run")]


def pretrain_line(folder):
    return ["pretrain", "bits", "--steps", "300", "--batch-size", "2", *resumed(folder / "w")]


def convert_line(folder):
    """Convert a GPT-2 of some megabytes; each end gets a name of its own."""
    source = folder.parent / "source"
    if not source.exists():
        new = source.with_name(f"source.{os.getpid()}")
        config = minifpt.GPT2Config(2, 2, 256, 64, 8000)
        minifpt.LanguageModel(config, seed=0).save(new)
        (new / "merges.txt").write_text("l o\nlo w\n")
        (new / "vocab.json").write_text("{}")
        new.rename(source)
    if (folder / "w.npz").exists():                       # it has come to its end
        assert (folder / "w.merges.txt").exists(), "weights without the tokenizer that they need"
        (folder / "w.npz").rename(folder / f"w{len([*folder.iterdir()])}.npz")
    return ["convert", source, "--out", folder / "w.npz"]


def grid_line(folder):
    return ["compare", "bit-xor", "--models", "random:1x2x8", "--steps", "700", "--seeds", "3",
            "--batch-size", "2", "--jobs", "2", "--out", folder / "grid"]


COMMANDS = {"train": Command(train_line, 40), "pretrain": Command(pretrain_line, 20),
            "convert": Command(convert_line, 6),
            "grid": Command(grid_line, 24, ("command", "child", "all"))}


def contents(folder):
    """Read every file below a folder, whole; return {path: what is in it but the seconds}."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name.startswith("."):                     # it was being written
            continue
        if path.name == "config.json":
            assert read_json(path)
        elif path.suffix == ".csv" and path.stem in ("metrics", "w"):
            found[name] = [row | {"seconds": None} for row in History.load(path)]
        elif path.name == "checkpoint.npz":
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)                       # checks all sums
            state = json.loads(str(arrays.pop("state")))
            for row in [state, *state["history"]]:
                row.pop("seconds")
            found[name] = state, {key: (a.dtype.str, a.tobytes()) for key, a in arrays.items()}
        elif path.suffix == ".npz":
            config, tensors = read(path)
            config.pop("seconds", None)
            found["w.npz"] = config, {key: t.read().tobytes() for key, t in tensors.items()}
        elif path.suffix == ".png":
            assert path.read_bytes().endswith(PNG_END), f"{path} is half"
        else:
            assert path.read_bytes(), f"{path} is empty"
    return found


# --------------------------------------------------------------------------- the killing


def start(line, folder):
    script = folder.parent / "run.py"                     # a file: the grid's processes import it
    script.write_text(RUN)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    return subprocess.Popen([sys.executable, str(script), *map(str, line)], cwd=folder, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def look(folder):
    """Return what the files below a folder look like from outside."""
    stats = []
    for path in folder.rglob("*"):
        try:
            stats.append((str(path), path.stat().st_mtime_ns, path.stat().st_size))
        except OSError:                                   # renamed just now
            continue
    return stats


def session(pid):
    """Return (pid, its command line) of the processes of a session that are still there."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,sess=,stat=,args="], text=True,
                            capture_output=True).stdout
    rows = (line.split(None, 3) for line in listed.splitlines())
    return [(int(p), args) for p, s, stat, args in rows if int(s) == pid and stat[0] != "Z"]


def kill(command, folder, rng, process):
    """Kill a process at a random moment; return whether that came before its end."""
    end, changes = time.monotonic() + PATIENCE, rng.randrange(command.changes + 1)
    before = look(folder)
    if changes == 0:                                      # while it starts
        time.sleep(rng.uniform(0, 0.8))
    while changes and process.poll() is None and time.monotonic() < end:
        now = look(folder)
        changes -= now != before
        before = now
        time.sleep(0.002)
    time.sleep(rng.choice((0, 0, rng.uniform(0, 0.003), rng.uniform(0, 0.05))))
    victim = rng.choice(command.victims)
    pids = [] if victim == "command" else [
        pid for pid, args in session(process.pid)
        if victim == "all" or "multiprocessing.spawn" in args]
    if victim == "child":
        pids = rng.sample(pids, min(1, len(pids)))
    for pid in pids or [process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it did not end within {PATIENCE} s of a death") from None
    while left := session(process.pid):
        assert time.monotonic() < end + PATIENCE, f"it left {left}"
        time.sleep(0.02)
    is_child = victim == "child" and pids
    assert "Traceback" not in errors or not is_child, errors[-500:]
    assert process.returncode in (0, -signal.SIGKILL) or is_child, errors[-500:]
    return process.returncode != 0


def finish(command, folder):
    """Run a command to its end; return what it made."""
    folder.mkdir(parents=True, exist_ok=True)
    process = start(command.line(folder), folder)
    _, errors = process.communicate()
    assert process.returncode == 0, f"it could not go on: {errors[-300:]}"
    return contents(folder)


def steps_of(found):
    """Return {checkpoint: its step}."""
    return {name: value[0]["step"] for name, value in found.items() if "checkpoint" in name}


def run(name, kills, seed=0):
    """Kill a command so often; return a :class:`Report`."""
    command, report, rng = COMMANDS[name], Report(), random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="minifpt-kills-") as top:
        expected, ends = finish(command, Path(top) / "undisturbed"), 0
        while report.kills < kills and len(report.findings) < 10:
            folder, steps, ends = Path(top) / f"{ends}", {}, ends + 1
            folder.mkdir()
            try:
                for _ in range(min(IN_A_ROW, kills - report.kills)):
                    if not kill(command, folder, rng, start(command.line(folder), folder)):
                        break
                    report.kills += 1
                    now = steps_of(contents(folder))
                    for out, step in steps.items():
                        assert now.get(out, -1) >= step, f"{out} was at step {step}, now {now}"
                    steps = now
                assert finish(command, folder) == expected, "it ends in other bits"
            except (AssertionError, ValueError, OSError) as e:
                report.findings.append(f"after {report.kills} kills: {e}")
            print(f"{name}: {report.kills} kills", end="\r", file=sys.stderr, flush=True)
    return report


def main():
    top = argparse.ArgumentParser(prog="python -m tests.fuzz.kills",
                                  description=__doc__.split("\n\n")[0])
    top.add_argument("names", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}")
    top.add_argument("--kills", type=int, default=50, help="of each command")
    top.add_argument("--seed", type=int, default=0)
    args = top.parse_args()
    reports = {name: run(name, args.kills, args.seed) for name in args.names or COMMANDS}
    for name, report in reports.items():
        print(f"{name}: {report.kills} kills, {len(report.findings)} wrong")
        print(*(f"  {finding}\n" for finding in report.findings), sep="", end="")
    return int(any(report.findings for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
