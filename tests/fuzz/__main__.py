"""``python -m tests.fuzz``: see ``tests/fuzz/__init__.py``."""

import argparse
import os
import sys
import traceback
from pathlib import Path

from .formats import FORMATS
from .run import damaged, examine, put, run


def main():
    top = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    top.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FORMATS)}")
    top.add_argument("--seconds", type=float, help="of each; 60 without --cases")
    top.add_argument("--cases", type=int)
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--case", type=int, help="this one again; its files stay in a folder")
    args = top.parse_args()
    names = args.names or [*FORMATS]
    if unknown := {*names} - {*FORMATS}:
        top.error(f"no format {', '.join(unknown)}, expected {', '.join(FORMATS)}")
    if args.case is not None:
        return [again(name, args.seed, args.case) for name in names] and 0
    seconds = args.seconds or (None if args.cases else 60)
    wrong = 0
    for name in names:
        report = run(name, args.cases, seconds, args.seed)
        print(report, flush=True)
        wrong += bool(report.findings)
    return 1 if wrong else 0


def again(name, seed, number):
    """One case here, with its traceback."""
    form, folder = FORMATS[name], Path(f"fuzz-{name}-{number}").absolute()
    os.makedirs(folder / "good", exist_ok=True)
    form.make(folder / "good")
    bytes_of = {path.name: path.read_bytes() for path in sorted((folder / "good").iterdir())}
    put(folder / "again", bytes_of)
    right = form.read(folder / "again")
    print(examine(form, folder / "case", bytes_of, right, seed, number) or "as it should be")
    put(folder / "case", damaged(form, bytes_of, seed, number)[0])
    try:
        form.read(folder / "case")
    except BaseException:
        traceback.print_exc()
    put(folder / "case", damaged(form, bytes_of, seed, number)[0])
    print(f"its files are in {folder / 'case'}")


if __name__ == "__main__":
    sys.exit(main())
