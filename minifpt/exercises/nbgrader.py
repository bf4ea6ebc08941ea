"""The exercises of the lessons as assignments of nbgrader.

nbgrader releases, collects and grades notebooks.  An assignment here has a lesson's exercises, each
with its text, a cell for the answer that holds our solution, and a cell whose hidden check gives a
point.  The lesson lies beside them, in the folder ``lesson``, to be read and run there, so that
grading trains no model.
"""

import ast
import json
import re
import textwrap
from pathlib import Path

from ..files import save_text
from . import notebooks
from .lesson import lessons_folder, without_outputs

SEEDS = 5                                                 # draws that an answer must pass
CONFIG = """\
c = get_config()
c.CourseDirectory.course_id = "minifpt"
c.ExecutePreprocessor.timeout = 120                       # seconds for a cell
"""
HIDDEN = """\
check("{name}", {answer})
### BEGIN HIDDEN TESTS
from minifpt.exercises import examine
for seed in range({seeds}):
    result = examine("{name}", {answer}, seed)
    assert result.status == "passed", str(result)
### END HIDDEN TESTS"""


def write_assignments(folder):
    """Write nbgrader's configuration and an assignment for each lesson; return their paths.

    Raises ``ValueError`` where there is an assignment already: a teacher may have changed it.
    """
    folder, lessons = Path(folder), lessons_folder()
    targets = {path: folder / "source" / f"lesson_{path.stem[:2]}" / path.name
               for path in sorted(lessons.glob("[0-9][0-9]_*.ipynb"))}
    if existing := [*filter(Path.exists, targets.values())]:           # before the first is written
        raise ValueError(f"{existing[0]} is there already: choose another folder")
    for path, target in targets.items():
        cells, metadata = assignment(path, lessons / "solutions" / f"{path.stem}.py")
        save_text(target, notebooks.text_of(cells, **metadata))
        save_text(target.parent / "lesson" / path.name, without_outputs(path))
    if not (folder / "nbgrader_config.py").exists():
        save_text(folder / "nbgrader_config.py", CONFIG)
    return [*targets.values()]


def assignment(path, solutions):
    """Return the cells and metadata of an assignment with solutions and hidden checks."""
    lesson = json.loads(path.read_text(encoding="utf-8"))
    statements, _ = notebooks.read_cells("".join(cell["source"]) for cell in lesson["cells"]
                                         if cell["cell_type"] == "code")
    calls = notebooks.checks(statements)
    answers = [s for s in ast.parse(solutions.read_text(encoding="utf-8")).body
               if not isinstance(s, ast.If)]
    imports = [ast.unparse(s) for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))
               and "tqdm" not in ast.unparse(s)]
    title = "".join(lesson["cells"][0]["source"]).partition("\n")[0]
    cells = [notebooks.cell("title", f"{title}: exercises\n\nRead [the lesson](lesson/{path.name}) "
                  "first: it explains the words and symbols. A check says at once what is "
                  "right. Leave the names of the functions as they are.", "markdown"),
             code("imports", "\n".join(imports), locked=True)]
    text = ""
    for cell in lesson["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Without the heading and the path of the solutions.
            text = re.sub(r"\A.*?(?=\*\*\d+\.\*\*)", "", source, flags=re.DOTALL)
            continue
        for name, (answer, _) in calls.items():
            if f'check("{name}",' in source:
                cells += [notebooks.cell(f"text-{name}", text, "markdown"),
                          code(name, solved(name, statements, answers), solution=True),
                          code(f"check-{name}", HIDDEN.format(
                              name=name, answer=ast.unparse(answer), seeds=SEEDS), points=1)]
    return cells, lesson["metadata"] | {"minifpt": {}}


def solved(name, statements, answers):
    """Return the definition of an answer as the lesson has it, with nbgrader's marks around our
    solution and around the statements that it needs from the file of solutions."""
    stub, function = (next(s for s in body if isinstance(s, ast.FunctionDef) and s.name == name)
                      for body in (statements, answers))
    needed = [s for s in notebooks.needed(ast.Name(name, ast.Load()), answers)
              if s is not function and "minifpt.exercises" not in ast.unparse(s)]
    body = function.body[ast.get_docstring(function) is not None:]
    lines = "\n".join(ast.unparse(s) for s in [*needed, *body])
    shapes = textwrap.indent(f'"""{ast.get_docstring(stub)}"""', "    ")
    return (f"def {name}({ast.unparse(function.args)}):\n{shapes}\n    ### BEGIN SOLUTION\n"
            + textwrap.indent(lines, "    ") + "\n    ### END SOLUTION")


def code(identifier, source, solution=False, points=None, locked=False):
    """Return a code cell with nbgrader's metadata: an answer, a check with points, or imports."""
    marks = {"schema_version": 3, "grade_id": identifier, "solution": solution, "task": False,
             "grade": points is not None, "locked": locked or points is not None}
    return notebooks.cell(identifier, source, nbgrader=marks | (
        {} if points is None else {"points": points}))
