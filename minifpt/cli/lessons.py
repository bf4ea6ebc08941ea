"""The commands for the lessons, for the reader's own file and for teachers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from ..exercises import closed, own
from ..exercises import grade as grading
from ..exercises.lesson import unpack
from ..exercises.nbgrader import write_assignments
from .formatting import say
from .options import option, path, takes, whole


@takes(
    option("folder", nargs="?", type=path, default=Path("minifpt-lessons"), metavar="FOLDER",
           help="folder to copy to (default: minifpt-lessons)"),
    option("--no-open", action="store_true", help="do not start JupyterLab"),
    option("--nbgrader", action="store_true",
           help="write their exercises as assignments for nbgrader"))
def lessons(args):
    if args.nbgrader:
        written = write_assignments(args.folder)
        say(f"{args.folder}: {len(written)} assignments; next, in that folder: "
            f"nbgrader generate_assignment {written[0].parent.name}")
        return 0
    written = unpack(args.folder)
    say(f"{args.folder}: {len(written)} files copied; existing files stay unchanged")
    if args.no_open:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise FileNotFoundError("JupyterLab is not installed: pip install jupyterlab")
    first = min(args.folder.glob("*.ipynb"))
    # -P: a file in the folder, such as random.py, must not replace a library.
    return subprocess.call([sys.executable, "-P", "-m", "jupyterlab", first.name], cwd=args.folder)


@takes(
    option("file", type=path, metavar="FILE", help="a new file, such as mine.py"),
    option("--bare", action="store_true", help="leave out the formulas of the gradients"),
    description="Write the skeleton of a functional.py of your own: the signatures and formulas of "
                "all functions, whose bodies you write.")
def new(args):
    own.new(args.file, args.bare)
    say(f"{args.file}: {len(own.FUNCTIONS)} functions to write; 'minifpt check {args.file}' names "
        f"the next one\n{own.new_test(args.file)}: the same checks for pytest")


@takes(
    option("file", type=path, metavar="FILE", help="a file begun by 'minifpt new'"),
    description="Check each function of your own file: done, wrong (with a hint) or not written. "
                "The last line names the next function.")
def check(args):
    return int(own.check(args.file) > 0)


@takes(
    option("folder", type=path, metavar="FOLDER", help="folder of the students' files"),
    option("--out", type=path, default=Path("grades"), metavar="FOLDER",
           help="folder for the tables and summary.md (default: grades)"),
    option("--seconds", type=whole, default=60, help=(
        "time limit of a file; an exercise gets a quarter (default: 60)")),
    description="Check the notebooks and functional files that students hand in: "
                "STUDENT/NN_name.ipynb or STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py. In a "
                "notebook, the answers and the cells that they need are run. Each file runs in its "
                "own process with limits of time and memory, without network, and can write only "
                f"in its own folder. {grading.NOTE}",
    epilog=grading.CONTAINER)
def grade(args):
    rows = grading.grade(args.folder, args.out, args.seconds)
    print(f"{len({row['student'] for row in rows})} students, "
          f"{sum(row['passed'] == 'yes' for row in rows)} of {len(rows)} passed\n"
          f"{args.out}: grades.csv students.csv summary.md\n{closed.protection()}")
