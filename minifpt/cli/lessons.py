"""The commands for the lessons and for the reader's own file."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from ..exercises import checking, own
from ..exercises.lesson import lessons_folder, unpack
from ..files import outputs
from .formatting import quoted
from .options import FORCE, option, takes

FOLDER = Path("minifpt-lessons")


@takes(
    option("folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER|N",
           help=f"folder to copy to, or the number of the lesson to open (default: {FOLDER})"),
    option("--no-open", action="store_true", help="do not start JupyterLab"),
    option("--no-solutions", action="store_true", help="leave out the solutions"))
def lessons(args):
    folder, number = args.folder, ""
    if str(folder).isdecimal() and not folder.exists():
        folder, number = FOLDER, f"{int(str(folder)):02}_"
    if not (names := sorted(p.name for p in lessons_folder().glob(f"{number}*.ipynb"))):
        raise ValueError(f"there is no lesson {args.folder}: expected a lower number, or a folder")
    written = unpack(folder, solutions=not args.no_solutions)
    print(f"{folder}: {len(written)} files copied; existing files stay unchanged")
    if args.no_open:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise FileNotFoundError("JupyterLab is not installed: pip install jupyterlab")
    # -P: a file in the folder, such as random.py, must not replace a library.
    return subprocess.call([sys.executable, "-P", "-m", "jupyterlab", names[0]], cwd=folder)


@takes(
    option("file", type=Path, metavar="FILE", help="a new file, such as mine.py"),
    option("--bare", action="store_true", help="leave out the formulas of the gradients"),
    FORCE,
    description="Write the skeleton of a functional.py of your own: the signatures and formulas of "
                "all functions, whose bodies you write.")
def new(args):
    own.new(args.file, args.bare, args.force)
    test, is_new = own.new_test(args.file)
    print(f"{args.file}: {len(own.FUNCTIONS)} functions to write\n{test}: "
          + ("the same checks for pytest" if is_new else "is there already, and is left as it is"))
    print(f"next: minifpt check {quoted(str(args.file))}")


@takes(
    option("files", nargs="+", type=Path, metavar="FILE",
           help="a file begun by 'minifpt new', or a lesson's notebook"),
    option("--csv", type=Path, metavar="FILE", help="append a row for each file to this table"),
    description="Check each function of your own file, or each exercise of a notebook: done, wrong "
                "(with a hint) or not written. The last line names the next function. Of a "
                "notebook, only the functions and what they need are run. Each file runs in a "
                f"process of its own, where a function may take {checking.SECONDS} s. This is not "
                "a sandbox: check only files that you would run.")
def check(args):
    if args.csv:
        outputs.check(args.csv, force=True)               # rows are appended
    status = 0
    for file in args.files:
        if len(args.files) > 1:
            print(f"{file}:")
        checked, error = [], ""
        try:
            checked, lessons = checking.results(file)
            status = max(status, own.print_results(checked, lessons) > 0)
        except (ValueError, OSError) as e:
            status, error = 2, str(e)
            print(f"minifpt: {error}", file=sys.stderr)
        if args.csv:
            checking.append_row(args.csv, file, checked, error)
    return int(status)
