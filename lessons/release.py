"""Write lessons as assignments for nbgrader, which hands them out, collects and marks them.

    python lessons/release.py 3 5 --out COURSE      # COURSE/source/lesson_03 and lesson_05
    cd COURSE && nbgrader generate_assignment lesson_03

An assignment is the whole lesson, without outputs.  Each exercise has a cell with our solution,
which nbgrader strips, and below it a cell whose test is worth a point.
"""

import argparse
import ast
import dis
import json
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from minifpt.exercises.lesson import without_outputs  # noqa: E402
from minifpt.files import save_text  # noqa: E402

TEST = """\
from minifpt.exercises import require

require("{0}", {0})"""


def assignment(lesson):
    """Return the text of the notebook that nbgrader releases for a lesson, the path of one."""
    notebook = json.loads(without_outputs(lesson))
    solutions = (HERE / "solutions" / f"{lesson.stem}.py").read_text(encoding="utf-8")
    cells = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        cell["source"] = re.sub(r"Solutions are\s+in\s+(the folder )?`solutions\S*`\.", "", text)
        cells.append(cell)
        if cell["cell_type"] == "code" and (match := re.search(r'^check\("(\w+)"', text, re.M)):
            name = match[1]
            cell["source"] = with_solution(name, text, solutions)
            cell["metadata"] = marks(name, solution=True)
            cells.append({"cell_type": "code", "id": f"test-{name}"[:64], "execution_count": None,
                          "outputs": [], "source": TEST.format(name),
                          "metadata": marks(f"test-{name}", grade=True, locked=True, points=1)})
    notebook["cells"] = cells
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def marks(identifier, **settings):
    """Return nbgrader's metadata of a cell."""
    return {"nbgrader": {"schema_version": 3, "grade_id": identifier, "solution": False,
                         "grade": False, "locked": False, "task": False} | settings}


def with_solution(name, cell, solutions):
    """Return a cell with the body of our solution, between nbgrader's marks, instead of the stub's.
    What the solution needs of its file stands before it."""
    statements = ast.parse(solutions).body
    sources = needed(name, statements)
    names = set().union(*(names_in(code_of(s)) for s in sources if isinstance(s, ast.FunctionDef)))
    function = next(s for s in sources if getattr(s, "name", "") == name)
    body = function.body[ast.get_docstring(function) is not None:]
    parts = [lines_of(solutions, s, s) for s in sources
             if s is not function and defined(s) & names]
    parts.append(textwrap.dedent(lines_of(solutions, body[0], body[-1])))
    stub = next(s for s in ast.parse(cell).body if getattr(s, "name", "") == name)
    lines = cell.splitlines()
    lines[stub.lineno - 1:stub.end_lineno] = [
        f"def {name}({ast.unparse(function.args)}):",
        lines_of(cell, stub.body[0], stub.body[0]),
        "    ### BEGIN SOLUTION",
        textwrap.indent("\n".join(parts), "    "),
        "    ### END SOLUTION"]
    return "\n".join(lines)


def code_of(statement):
    """Return the code object of a statement."""
    return compile(ast.Module([statement], []), "solutions", "exec")


def defined(statement):
    """Return the names that a statement at the top level defines."""
    return {line.argval for line in dis.get_instructions(code_of(statement))
            if line.opname == "STORE_NAME"}


def names_in(code):
    """Return the names that a code object, or one within it, reads or defines outside itself."""
    return {*code.co_names}.union(*(names_in(c) for c in code.co_consts if hasattr(c, "co_names")))


def needed(name, statements):
    """Return the statements that the definition of a name needs: those that define it, those that
    define a name in these, and so on, and all imports."""
    names, chosen = {name}, []
    while True:
        more = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))
                or defined(s) & names]
        if more == chosen:
            return chosen
        chosen = more
        names = names.union(*(names_in(code_of(s)) for s in chosen))


def lines_of(text, first, last):
    """Return the lines of a text from one statement to another."""
    return "\n".join(text.splitlines()[first.lineno - 1:last.end_lineno])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="+", type=int, metavar="LESSON", help="numbers, such as 3")
    parser.add_argument("--out", type=Path, required=True, metavar="COURSE",
                        help="folder of the course; assignments are written into its source/")
    args = parser.parse_args()
    for number in args.lessons:
        lesson = next(HERE.glob(f"{number:02}_*.ipynb"), None)
        if lesson is None:
            parser.error(f"lesson {number} does not exist")
        target = args.out / "source" / f"lesson_{number:02}" / lesson.name
        if target.exists():
            parser.error(f"{target} is there already, and is left as it is: remove it first")
        save_text(target, assignment(lesson))
        print(target)


if __name__ == "__main__":
    main()
