"""Commands for the lessons, the reader's own file, and teachers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from ..exercises import closed, own
from ..exercises import grade as grading
from ..exercises.lesson import unpack
from .formatting import say
from .options import option, path, takes, whole


@takes(
    option("folder", nargs="?", type=path, default=Path("minifpt-lessons"), metavar="FOLDER",
           help="folder to copy to (default: minifpt-lessons)"),
    option("--no-open", action="store_true", help="copy them, do not start JupyterLab"))
def lessons(args):
    written = unpack(args.folder)
    say(f"{args.folder}: {len(written)} files copied; what was there already stays as it was")
    if args.no_open:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise FileNotFoundError("JupyterLab is not installed: pip install jupyterlab")
    first = min(args.folder.glob("*.ipynb"))
    # -P: no file of the folder, such as a random.py, is imported in place of a library.
    return subprocess.call([sys.executable, "-P", "-m", "jupyterlab", first.name], cwd=args.folder)


@takes(
    option("file", type=path, metavar="FILE", help="a new file, such as mine.py"),
    option("--bare", action="store_true", help="leave out the formulas of the gradients"),
    description="Write the skeleton of a functional.py of your own: every signature and formula "
                "of the mathematics, the bodies to be written.")
def new(args):
    own.new(args.file, args.bare)
    say(f"{args.file}: {len(own.FUNCTIONS)} functions to write; 'minifpt check {args.file}' says "
          "what is next")


@takes(
    option("file", type=path, metavar="FILE", help="a file begun by 'minifpt new'"),
    description="Say of each function of your own file whether it is done, wrong, with a hint, or "
                "not written, and what is next.")
def check(args):
    return int(own.check(args.file) > 0)


@takes(
    option("folder", type=path, metavar="FOLDER", help="folder of what was handed in"),
    option("--out", type=path, default=Path("grades"), metavar="FOLDER",
           help="folder for grades.csv and summary.md (default: grades)"),
    option("--seconds", type=whole, default=60, help=(
        "longest time for one file, a quarter of it for each exercise (default: 60)")),
    description="Check the notebooks and functional files that students hand in: "
                "STUDENT/NN_name.ipynb or STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py. Of a "
                "notebook the answers and what they need are run. Each file has a process of its "
                "own, with a limit of time and memory, without network, which writes in its own "
                f"folder only. {grading.NOTE}",
    epilog=grading.CONTAINER)
def grade(args):
    rows = grading.grade(args.folder, args.out, args.seconds)
    print(f"{len({row['student'] for row in rows})} students, "
          f"{sum(row['passed'] == 'yes' for row in rows)} of {len(rows)} passed\n"
          f"{args.out}: grades.csv summary.md\n{closed.protection()}")
