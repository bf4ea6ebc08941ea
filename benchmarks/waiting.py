"""Time what a user waits for, command by command, in turn with an earlier state of the project.

    python -m benchmarks.waiting BEFORE [--rounds 3] [--only TEXT]

``BEFORE`` is a folder with a checkout of that state.  Each round runs each command in both states,
one after the other, in a new folder.  The table has medians: seconds by the clock, and seconds that
all cores computed.  Commands for the tests and the lesson are run in one round only.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from minifpt.files import csv_text, save_text

HERE = Path(__file__).resolve().parent.parent
LESSON = "00_a_language_model_learns_xor.ipynb"
# Each command, and commands that must have run before it.
COMMANDS = {
    "minifpt --help": (),
    "minifpt train bit-xor": (),
    "minifpt check whole.py": ("cp {state}/minifpt/functional.py whole.py",),
    "minifpt playground": (),
    "minifpt steps bit-xor": (),
    "minifpt report run": ("minifpt train bit-xor --steps 300 --out run",),
    "minifpt compare bit-xor --models minigpt-language minigpt-bits random --seeds 3 --steps 500 "
    "--jobs 2": (),
    f"jupyter execute {LESSON}": (f"cp {{state}}/lessons/{LESSON} .",),
    "pytest": ()}
LONG = "jupyter", "pytest"


def seconds(command, state, folder):
    """Run a command of the project's ``state``, a folder; return seconds by the clock and of
    computing."""
    words = command.format(state=state).split()
    if words[0] in ("minifpt", "pytest"):
        words = [sys.executable, "-m", *words]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run(words, cwd=state if command == "pytest" else folder, text=True,
                            capture_output=True, env={**os.environ, "PYTHONPATH": str(state)})
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if answer.returncode:
        sys.exit(f"{command} in {state}: {answer.stdout[-2000:]}{answer.stderr[-2000:]}")
    return (time.perf_counter() - begin,
            used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime)


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("before", metavar="BEFORE", type=Path)
    top.add_argument("--rounds", type=int, default=3)
    top.add_argument("--only", default="", help="run the commands with this text alone")
    args = top.parse_args()
    rows = []
    for command, first in COMMANDS.items():
        if args.only not in command:
            continue
        times = {args.before.resolve(): [], HERE: []}
        for _ in range(1 if command.startswith(LONG) else args.rounds):
            for state, measured in times.items():
                with tempfile.TemporaryDirectory() as folder:
                    for preparation in first:
                        seconds(preparation, state, folder)
                    measured.append(seconds(command, state, folder))
        before, now = (list(map(statistics.median, zip(*measured, strict=True)))
                       for measured in times.values())
        rows.append(dict(zip(
            ("command", "before (s)", "now (s)", "before, computing (s)", "now, computing (s)"),
            (f"`{command}`", *(f"{pair[i]:.3g}" for i in (0, 1) for pair in (before, now))),
            strict=True)))
        print(*rows[-1].values(), flush=True)
    if not args.only:
        save_text(HERE / "benchmarks/results/speed-waiting.csv", csv_text(rows))


if __name__ == "__main__":
    main()
