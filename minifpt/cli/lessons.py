"""The commands for the lessons, for the reader's own file and for teachers."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

from ..exercises import grade as grading
from ..exercises import own, sandbox
from ..exercises import worksheet as sheets
from ..exercises.lesson import unpack
from ..exercises.nbgrader import write_assignments
from .formatting import say
from .options import option, path, takes, whole


@takes(
    option("folder", nargs="?", type=path, default=Path("minifpt-lessons"), metavar="FOLDER",
           help="folder to copy to (default: minifpt-lessons)"),
    option("--no-open", action="store_true", help="do not start JupyterLab"),
    option("--no-solutions", action="store_true", help="leave out the solutions"),
    option("--nbgrader", action="store_true",
           help="write their exercises as assignments for nbgrader"))
def lessons(args):
    if args.nbgrader:
        written = write_assignments(args.folder)
        say(f"{args.folder}: {len(written)} assignments; next, in that folder: "
            f"nbgrader generate_assignment {written[0].parent.name}")
        return 0
    written = unpack(args.folder, solutions=not args.no_solutions)
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
    say(f"{args.file}: {len(own.FUNCTIONS)} functions to write\n"
        f"{own.new_test(args.file)}: the same checks for pytest")
    print(f"next: minifpt check {shlex.quote(str(args.file))}")


@takes(
    option("file", type=path, metavar="FILE", help="a file begun by 'minifpt new'"),
    description="Check each function of your own file: done, wrong (with a hint) or not written. "
                "The last line names the next function.")
def check(args):
    return int(own.check(args.file, say) > 0)


@takes(
    option("folder", type=path, metavar="FOLDER", help="folder of the students' files"),
    option("--out", type=path, default=Path("grades"), metavar="FOLDER",
           help="folder for the tables and pages, not in the first one (default: grades)"),
    option("--lessons", metavar="N,N", help=(
        "what was set, such as 1,3 or own (default: what most handed in)")),
    option("--seconds", type=whole, default=60, help=(
        "time limit of a file; an exercise gets a quarter (default: 60)")),
    option("--no-sandbox", action="store_true", help="run the files without bubblewrap"),
    description="Check the notebooks and functional files that students hand in: "
                "STUDENT/NAME.ipynb or STUDENT_NN.ipynb, STUDENT/NAME.py or STUDENT.py. In a "
                "notebook, the answers and the cells that they need are run. Each file runs in a "
                "sandbox of its own, with limits of time, memory and processes, without network, "
                f"and sees no other file. {grading.NOTE}",
    epilog=grading.CONTAINER)
def grade(args):
    lessons = [name.strip().zfill(2) for name in args.lessons.split(",")] if args.lessons else None
    if not args.no_sandbox and (why := sandbox.missing()):
        print(grading.CONTAINER, file=sys.stderr)
        raise ValueError(f"{why}: use the container above, or --no-sandbox if you trust all files")
    rows = grading.grade(args.folder, args.out, args.seconds, lessons=lessons,
                         has_sandbox=not args.no_sandbox)
    judged = [row for row in rows if "/" in row["exercise"]]
    print(f"{len({row['student'] for row in rows})} students, "
          f"{sum(row['passed'] == 'yes' for row in judged)} of {len(judged)} passed, "
          f"{len(rows) - len(judged)} files could not be judged\n"
          f"{args.out}: grades.csv students.csv summary.md students/")


@takes(
    option("lesson", type=whole, metavar="LESSON", help="number of a lesson, such as 5"),
    option("--seed", type=whole, default=0, help="another seed, another sheet (default: 0)"),
    option("--items", type=whole, default=6, help="functions on the sheet (default: 6)"),
    option("--out", type=path, default=Path("."), metavar="FOLDER",
           help="folder of the three files (default: this one)"),
    description="Write functions of a lesson in which one line may be wrong, one in four of them "
                "right: a page to print, a notebook, and the key in a file of its own. Files "
                "that are there already and differ are not replaced.")
def worksheet(args):
    for written in sheets.write(args.lesson, args.out, args.seed, args.items):
        say(f"{written}")
