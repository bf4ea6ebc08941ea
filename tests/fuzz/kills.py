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
from collections import Counter
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
    changes of files it makes, about.  ``made(folder)``: what is the same at each end."""

    line: Callable
    made: Callable
    changes: int
    who: tuple = ("command",)


@dataclass
class Killed:
    """What happened to a command: kills, the moments at which they fell, findings, its ends."""

    kills: int = 0
    ends: int = 0
    seconds: float = 0.0
    moments: Counter = field(default_factory=Counter)
    findings: list = field(default_factory=list)


# -------------------------------------------------------------------------- the commands


def train_line(folder):
    out = folder / "run"
    return ["train", "bit-xor", "--n", "2", "--model", "random:1x2x8", "--steps", "300",
            "--batch-size", "4", "--checkpoint-every", "5", "--out", out,
            *["--resume"] * (out / "config.json").exists()]


def pretrain_line(folder):
    out = folder / "w"
    return ["pretrain", "bits", "--steps", "300", "--batch-size", "2", "--out", out,
            *["--resume"] * (out / "config.json").exists()]


def convert_line(folder):
    source = folder.parent / "source"
    if not source.exists():
        make_source(source)
    if (folder / "w.npz").exists():                       # it has come to its end
        assert (folder / "w.merges.txt").exists(), "weights without the tokenizer that they need"
        (folder / "w.npz").rename(folder / f"w{len([*folder.iterdir()])}.npz")
    return ["convert", source, "--out", folder / "w.npz"]


def make_source(source, n_embd=256, vocab_size=8000):
    """A GPT-2, of some megabytes, as Transformers saves it."""
    made = source.with_name(f"source.{os.getpid()}")
    config = minifpt.GPT2Config(2, 2, n_embd, 64, vocab_size)
    minifpt.LanguageModel(config, seed=0).save(made)
    (made / "merges.txt").write_text("l o\nlo w\n")
    (made / "vocab.json").write_text("{}")
    made.rename(source)


def grid_line(folder):
    return ["compare", "bit-xor", "--models", "random:1x2x8", "--steps", "700", "--seeds", "3",
            "--batch-size", "2", "--jobs", "2", "--out", folder / "grid"]


def checkpoints(folder):
    """{path: what is in it but the seconds} of each checkpoint and each history below a folder."""
    made = {}
    for path in sorted(folder.rglob("checkpoint.npz")):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: (a.dtype.str, a.shape, a.tobytes()) for name, a in file.items()
                      if name != "state"}
            state = json.loads(str(file["state"]))
        for row in [state, *state["history"]]:
            row.pop("seconds")
        rows = [{**row, "seconds": None} for row in History.load(path.with_name("metrics.csv"))]
        made[path.relative_to(folder).as_posix()] = arrays, state, rows
    return made


def weights_made(folder):
    """{array: bytes} of each weight file in a folder, and its settings but the seconds."""
    made = checkpoints(folder)
    for path in sorted(folder.glob("*.npz")):
        config, tensors = read(path)
        config.pop("seconds", None)
        made[path.name] = config, {name: t.read().tobytes() for name, t in tensors.items()}
    return made


def converted(folder):
    """The last weight file, and what is beside it."""
    made = weights_made(folder)
    beside = {path.name: path.read_bytes() for path in folder.glob("w.*.*")}
    return made.get("w.npz"), beside


COMMANDS = {
    "train": Command(train_line, checkpoints, 40),
    "pretrain": Command(pretrain_line, weights_made, 20),
    "convert": Command(convert_line, converted, 6),
    "grid": Command(grid_line, checkpoints, 24, ("command", "child", "all")),
}


# --------------------------------------------------------------------------- the killing


def start(line, folder):
    script = folder.parent / "run.py"                     # a file: the grid's processes import it
    if not script.exists():
        script.write_text(RUN)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    return subprocess.Popen([sys.executable, str(script), *map(str, line)], cwd=folder, env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def seen(folder):
    """What a look at the files below a folder tells, and which are being written."""
    found, writing = [], 0
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except OSError:                                   # renamed just now
            continue
        found.append((str(path), stat.st_mtime_ns, stat.st_size))
        writing += path.name.startswith(".")
    return found, writing


def session(pid):
    """(pid, its command line) of the processes of a session that are still there."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,sess=,stat=,args="], text=True,
                            capture_output=True).stdout
    rows = (line.split(None, 3) for line in listed.splitlines())
    return [(int(p), args) for p, s, stat, args in rows if int(s) == pid and stat[0] != "Z"]


def kill(command, folder, rng, process):
    """Kill a process at a random moment; at which it was, or None where it came to its end."""
    end, changes = time.monotonic() + PATIENCE, rng.randrange(command.changes + 1)
    before = seen(folder)[0]
    if changes == 0:                                      # while it starts
        time.sleep(rng.uniform(0, 0.8))
    while changes and process.poll() is None and time.monotonic() < end:
        now = seen(folder)[0]
        changes -= now != before
        before = now
        time.sleep(0.002)
    time.sleep(rng.choice((0, 0, rng.uniform(0, 0.003), rng.uniform(0, 0.05))))
    who = rng.choice(command.who)
    there = [] if who == "command" else session(process.pid)
    if who == "child":
        there = [pair for pair in there if "multiprocessing.spawn" in pair[1]]
        there = [rng.choice(there)] if there else []
    who = who if there else "command"
    for pid, _ in there or [(process.pid, "")]:
        kill_one(pid)
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it did not end within {PATIENCE} s of the death of a child"
                             ) from None
    assert "Traceback" not in said or who != "child", said[-500:]
    while left := session(process.pid):
        assert time.monotonic() < end + PATIENCE, f"it left {left}"
        time.sleep(0.02)
    if process.returncode == 0:
        return None
    assert process.returncode == -signal.SIGKILL or who == "child", said[-500:]
    return f"{who}, {'writing' if seen(folder)[1] else 'between'}"


def kill_one(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def whole(folder):
    """Raise for a file that is half.  {run: its step}."""
    steps = {}
    for path in folder.rglob("*"):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.name == "config.json":
            steps[str(path.parent)] = 0
            assert read_json(path)
        elif path.name == "metrics.csv" or path.suffix == ".csv" and path.stem == "w":
            History.load(path)
        elif path.name == "checkpoint.npz":
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)                       # checks all sums
            steps[str(path.parent)] = json.loads(str(arrays["state"]))["step"]
        elif path.suffix == ".npz":
            for tensor in read(path)[1].values():
                tensor.read()
        elif path.suffix == ".png":
            assert path.read_bytes().endswith(PNG_END), f"{path} is half"
        else:
            assert path.read_bytes(), f"{path} is empty"
    return steps


def to_its_end(command, folder):
    """Run a command to its end; what it made."""
    folder.mkdir(parents=True, exist_ok=True)
    process = start(command.line(folder), folder)
    _, said = process.communicate()
    assert process.returncode == 0, f"it could not go on: {said[-300:]}"
    return command.made(folder)


def run(name, kills, seed=0):
    """Kill a command so often; a :class:`Killed`."""
    command, report, rng = COMMANDS[name], Killed(), random.Random(f"{name} {seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="minifpt-kills-") as top:
        want = to_its_end(command, Path(top) / "undisturbed")
        while report.kills < kills and len(report.findings) < 10:
            folder, steps = Path(top) / f"{report.ends}", {}
            folder.mkdir()
            try:
                for _ in range(min(IN_A_ROW, kills - report.kills)):
                    moment = kill(command, folder, rng, start(command.line(folder), folder))
                    if moment is None:
                        break
                    report.kills += 1
                    report.moments[moment] += 1
                    now = whole(folder)
                    for out, step in steps.items():
                        assert now.get(out, -1) >= step, f"{out} was at step {step}, now {now}"
                    steps = now
                got = to_its_end(command, folder) if moment else command.made(folder)
                whole(folder)
                assert got == want, "it ends in other bits"
                left = [str(p) for p in folder.rglob(".*")]
                report.moments["a hidden file is left at the end"] += bool(left)
            except (AssertionError, ValueError, OSError) as e:
                report.findings.append(f"after {report.kills} kills: {e}")
            report.ends += 1
            print(f"{name}: {report.kills} kills", end="\r", file=sys.stderr, flush=True)
    report.seconds = time.monotonic() - began
    return report


def main():
    top = argparse.ArgumentParser(prog="python -m tests.fuzz.kills",
                                  description=__doc__.split("\n\n")[0])
    top.add_argument("names", nargs="*", metavar="COMMAND", help=f"of {', '.join(COMMANDS)}")
    top.add_argument("--kills", type=int, default=50, help="of each command")
    top.add_argument("--seed", type=int, default=0)
    args = top.parse_args()
    wrong = 0
    for name in args.names or COMMANDS:
        report = run(name, args.kills, args.seed)
        print(f"{name}: {report.kills} kills, {report.ends} runs to their end, "
              f"{report.seconds:.0f} s, {len(report.findings)} wrong; "
              + ", ".join(f"{n} {moment}" for moment, n in sorted(report.moments.items())),
              flush=True)
        print(*(f"  {finding}" for finding in report.findings), sep="\n", end="", flush=True)
        wrong += len(report.findings)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
