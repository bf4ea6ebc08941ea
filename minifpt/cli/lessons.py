"""The commands for the lessons and for the reader's own file."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

from ..exercises import own
from ..exercises.engine import SECONDS
from ..exercises.lesson import lessons_folder, unpack
from .options import option, takes

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
    option("file", type=Path, metavar="FILE", help="a Python file, such as mine.py; new or not"),
    option("--lesson", type=int, metavar="N",
           help="only the functions that lesson N asks for, without its formulas (default: all)"),
    description="Append stubs to a functional.py of your own: signatures, shapes and formulas of "
                "the functions whose bodies you write. What is in the file stays.")
def new(args):
    names = own.new(args.file, args.lesson)
    print(f"{args.file}: " + (f"{len(names)} functions to write: {', '.join(names)}" if names else
                              "these functions are there already"))
    print(f"next: minifpt check {shlex.quote(str(args.file))}")


@takes(
    option("file", type=Path, metavar="FILE", help="a file begun by 'minifpt new'"),
    description="Check each function of your own file: done, wrong (with a hint) or not written. "
                "The last line names the next function. A function may take "
                f"{SECONDS} s. The file runs: check only a file that you would run.")
def check(args):
    return int(own.print_results(own.results(args.file)) > 0)
