"""Make the notebooks from their sources and run them.

    python lessons/build.py             build what has changed
    python lessons/build.py 01 03       build these lessons, changed or not
    python lessons/build.py --all       build every lesson
    python lessons/build.py --check     say which notebooks are out of date; runs nothing
    python lessons/build.py --sources   bring the library's source that the notebooks show up to
                                        date; runs nothing, needs neither Jupyter nor Jupytext
    python lessons/build.py --text      bring the notebooks' text up to date where no code has
                                        changed; runs nothing
    python lessons/build.py --glossary  make glossary.md from the terms that the spine defines
    python lessons/build.py --pull 03   take a notebook that was edited in Jupyter back
                                        into its source; build it afterwards

A lesson is written in ``src/NN_name.py`` (Jupytext's percent format); ``NN_name.ipynb`` is
made from it, run from a clean kernel, and committed with its outputs.  The notebook's
metadata hold the hash of the code that its outputs came from.  The minifpt that runs, and whose
source is shown, is the one beside this folder.
"""

import argparse
import ast
import hashlib
import importlib
import json
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECONDS = 120                                             # a lesson may take no longer
BAR = re.compile(r"\d+%\||\d+/\d+ \||\dit \[")
MAX_HTML = 100_000                                        # characters of an output
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def sources():
    """The sources of all lessons, in their order."""
    return sorted((HERE / "src").glob("[0-9][0-9]_*.py"))


def notebook_of(source):
    """The notebook that is made from a source."""
    return HERE / f"{source.stem}.ipynb"


def digest(text):
    """A short hash of a text, the same on each system."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()[:16]


def cells_digest(notebook):
    """The hash of a notebook's cells without their outputs."""
    cells = [[c["cell_type"], "".join(c["source"])] for c in notebook["cells"]]
    return digest(json.dumps(cells))


def problems(source):
    """Why a lesson's notebook is not what its source says: a list of lines, empty if it is."""
    path = notebook_of(source)
    build = f"run 'python lessons/build.py {source.stem[:2]}'"
    if not path.exists():
        return [f"{path.name} is missing: {build}"]
    notebook = json.loads(path.read_text(encoding="utf-8"))
    made = notebook["metadata"].get("minifpt", {})
    found = []
    if made.get("source") != digest(source.read_text(encoding="utf-8")):
        found.append(f"{source.name} has changed since its notebook was run: {build}")
    if made.get("cells") != cells_digest(notebook):
        found.append(f"{path.name} was edited by hand: 'python lessons/build.py --pull "
                     f"{source.stem[:2]}' takes that into its source")
    counts = [c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code"]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"{path.name} was not run once from top to bottom: {build}")
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    if any(o["output_type"] == "error" or o.get("name") == "stderr" for o in outputs):
        found.append(f"{path.name} has an error or a warning in its outputs")
    for name, output in shown_sources(notebook):
        now = current_source(name)
        if now is None:
            found.append(f"{path.name} shows {name}, which is gone: {build}")
        elif not is_shown(now, output):
            found.append(f"{path.name} shows an older {name}: run 'python lessons/build.py "
                         "--sources'")
    return found


def shown_sources(notebook):
    """(``module:object.attribute``, output) for each source that a notebook shows."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("minifpt", {}).get("shows")
            if name:
                yield name, output


def current_source(name):
    """Return what ``lesson.show`` shows of ``module:object.attribute``, or of some of its lines, in
    the library as it is now, {MIME type: text}; ``None`` where they are gone."""
    from minifpt.exercises.lesson import shown
    name, *lines = name.split("|")
    module, path = name.split(":")
    try:
        obj = importlib.import_module(module)
        for part in path.split("."):
            obj = getattr(obj, part)
        return shown(obj, *lines)
    except (ImportError, AttributeError, StopIteration):
        return None


def is_shown(now, output):
    """Whether an output shows a source as it is now."""
    return all("".join(output["data"][kind]) == text for kind, text in now.items())


def refresh_sources(source):
    """Rewrite the library's sources that a notebook shows, as they are now; a line in words for
    each that was older.  Nothing runs: where code has changed, not only its comments and
    docstrings, the line says that the lesson must be built again."""
    path = notebook_of(source)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    lines = []
    for name, output in shown_sources(notebook):
        now = current_source(name)
        if now is None or is_shown(now, output):          # one that is gone is for --check
            continue
        same = code_of("".join(output["data"]["text/plain"])) == code_of(now["text/plain"])
        output["data"] = {kind: text.splitlines(keepends=True) for kind, text in now.items()}
        lines.append(f"{path.name}: {name} brought up to date" + (
            "" if same else "; its code has changed, so run 'python lessons/build.py "
            f"{source.stem[:2]}' as well"))
    if lines:                                             # as nbformat writes it
        write(path, json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return lines


def code_of(text):
    """Python code without its comments and docstrings, to be compared."""
    try:
        tree = ast.parse(text)
    except SyntaxError:                                   # edited by hand
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
                ast.get_docstring(node) is not None):
            node.body = node.body[1:]
    return ast.dump(tree)


def read(source):
    """A source as a notebook without outputs; its cells are numbered, so that a notebook
    that is made twice is the same twice."""
    import jupytext
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i:02d}"
        cell.metadata = {}
    return notebook


def fold(notebook):
    """Fold away the outputs that answer a guess: in JupyterLab, and on the site by the tag."""
    for cell in notebook.cells:
        if "reveal(guess" in cell.source and cell.cell_type == "code":
            cell.metadata = {"jupyter": {"outputs_hidden": True}, "tags": ["hide-output"]}


def run(notebook, folder, seconds=5 * SECONDS):
    """Run a notebook from a clean kernel in ``folder``; raises where a cell does, or takes
    longer than ``seconds``."""
    import nbclient
    nbclient.NotebookClient(notebook, timeout=seconds, kernel_name="python3",
                            resources={"metadata": {"path": str(folder)}},
                            record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(o for o in map(tidy, cell.outputs)
                                  if not is_progress(o) and not is_page(o))


def is_progress(output):
    """Whether nothing is left of an output without its progress bars."""
    return output["output_type"] == "stream" and not output["text"].strip()


def without_bars(text):
    """What is left of a text on the screen without its progress bars, which are of no use
    afterwards.  A bar rewrites its line, and one below another moves up."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    if not BAR.search(text):
        return text
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(line for line in lines if not BAR.search(line))


def is_page(output):
    """Whether an output is a step page, which is too large for a notebook that is committed: it
    appears when a reader runs the cell."""
    return len(output.get("data", {}).get("text/html", "")) > MAX_HTML


def joined(outputs):
    """What was printed without a pause in between as one text: how the kernel cuts it up
    differs from run to run."""
    found = []
    for output in outputs:
        if found and "name" in output and output["name"] == found[-1].get("name"):
            found[-1]["text"] += output["text"]
        else:
            found.append(output)
    return found


def tidy(output):
    """Without progress bars, and without the addresses of objects, which differ from run to run."""
    if output["output_type"] == "stream":
        output["text"] = re.sub(r" at 0x[0-9a-f]+", "", without_bars(output["text"]))
    return output


def build(source):
    """Make, run and write one notebook; its size and time in words."""
    import nbformat
    notebook, path = read(source), notebook_of(source)
    if not path.exists():                                 # the checks ask which lessons there are
        write(path, nbformat.writes(notebook) + "\n")
    start = children_seconds()
    os.environ["MINIFPT_RECORDS"] = str(HERE / "results")
    run(notebook, HERE)
    seconds = round(children_seconds() - start)
    notebook.metadata["minifpt"] = {"source": digest(source.read_text(encoding="utf-8")),
                                    "cells": cells_digest(notebook), "seconds": seconds}
    fold(notebook)
    write(path, nbformat.writes(notebook) + "\n")
    return f"{path.name}: {seconds} s of a processor, {path.stat().st_size / 1024:.0f} KB"


def children_seconds():
    """Return the processor's seconds of the kernels that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def retext(source):
    """Take a source's text into its notebook and keep the outputs, where the code is the same;
    what was done, in words, or ``None`` where nothing has changed."""
    import nbformat
    path, fresh = notebook_of(source), read(source)
    before = nbformat.read(path, as_version=4)
    code, code_before = ([cell for cell in notebook.cells if cell.cell_type == "code"]
                         for notebook in (fresh, before))
    if [cell.source for cell in code] != [cell.source for cell in code_before]:
        return (f"{source.name}: its code has changed: run 'python lessons/build.py "
                f"{source.stem[:2]}'")
    for cell, cell_before in zip(code, code_before, strict=True):
        cell.outputs, cell.execution_count = cell_before.outputs, cell_before.execution_count
    fold(fresh)
    fresh.metadata = before.metadata | {"minifpt": before.metadata.get("minifpt", {}) | {
        "source": digest(source.read_text(encoding="utf-8")), "cells": cells_digest(fresh)}}
    text = nbformat.writes(fresh) + "\n"
    if text == path.read_text(encoding="utf-8"):
        return None
    write(path, text)
    return f"{path.name}: text brought up to date"


TERM = re.compile(r"\*\*((?!Next|What we|This is)[A-Za-z][\w -]+)\*\*")   # bold where introduced
NO_TERMS = {"cut"}                                        # bold for another reason
SENTENCE = re.compile(r"(?:(?<=[.?!])|(?<=[.?!]\))|(?<=[.?!]\*\*))\s+(?=[A-Z*$`(])")
ABOUT = """# Glossary

Terms as a lesson of the spine introduces them. The number is the lesson's.
Made by `python lessons/build.py --glossary`.
"""
SPINE = [0, 1, 2, 3, 4, 24, 5, 6, 7, 8, 13, 22]           # in the order of the course


def glossary():
    """Return the text of ``glossary.md``: each term in the sentence that introduces it."""
    def singular(term):
        return term.lower().rstrip("s")
    introduced, lines = set(), {}
    number = {int(source.stem[:2]): source for source in sources()}
    for source in [number[n] for n in SPINE]:
        text = source.read_text(encoding="utf-8").partition("\n# ## Going further")[0]
        path = notebook_of(source)
        for cell in re.findall(r"^# %% \[markdown\]\n((?:#.*\n?)+)", text, re.M):
            for paragraph in re.split(r"\n\n|\n- ", re.sub("^# ?", "", cell, flags=re.M)):
                paragraph = " ".join(paragraph.split())
                for sentence in SENTENCE.split(paragraph):
                    terms = [term for term in dict.fromkeys(TERM.findall(sentence))
                             if term.lower() not in NO_TERMS
                             and singular(term) not in introduced]
                    if not terms or len(sentence.split()) < 6:
                        continue
                    introduced |= {singular(term) for term in terms}
                    clauses = sentence.split("; ")
                    while not TERM.search(clauses[-1]):   # what follows the term's own clause
                        clauses.pop()
                    says = TERM.sub(r"*\1*", "; ".join(clauses)).rstrip(".:,")
                    if says.startswith("("):
                        says = says[1:].removesuffix(")").rstrip(".")
                    lines[terms[0].lower()] = (
                        f"- **{'**, **'.join(terms)}** ([{path.stem[:2]}]({path.name})): "
                        f"{says}{'' if says.endswith('?') else '.'}")
    return "\n".join([ABOUT, *(line for _, line in sorted(lines.items()))]) + "\n"


def write(path, text):
    """Write a file in one rename, so that a crash leaves the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def pull(source):
    """Write a notebook's cells back into its source."""
    import jupytext
    notebook = jupytext.read(notebook_of(source))
    notebook.metadata = {}
    for cell in notebook.cells:
        cell.metadata = {}
    text = jupytext.writes(notebook, fmt="py:percent", config=jupytext.config.
                           JupytextConfiguration(notebook_metadata_filter="-all"))
    source.write_text(re.sub(r"\A# ---\n(#.*\n)*?# ---\n+", "", text), encoding="utf-8")
    return f"{source.name}: taken from {notebook_of(source).name}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", help="numbers, such as 03")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--pull", action="store_true")
    parser.add_argument("--glossary", action="store_true")
    args = parser.parse_args()
    # Here and in the kernel that runs a notebook, the library beside this folder.
    root = str(HERE.parent)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    chosen = [s for s in sources() if not args.lessons or s.stem[:2] in args.lessons]
    unknown = set(args.lessons) - {s.stem[:2] for s in chosen}
    if unknown:
        parser.error(f"no lesson {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(s.stem[:2] for s in sources())}")
    if args.check:
        found = [line for s in chosen for line in problems(s)]
        print("\n".join(found) or "all notebooks are up to date")
        return 1 if found else 0
    if args.sources:
        lines = [line for s in chosen for line in refresh_sources(s)]
        print("\n".join(lines) or "every notebook shows the library's sources as they are")
        return 0
    if args.text:
        lines = [line for s in chosen if (line := retext(s))]
        print("\n".join(lines) or "every notebook has the text of its source")
        return 1 if any("has changed" in line for line in lines) else 0
    if args.glossary:
        write(HERE / "glossary.md", glossary())
        return 0
    if args.pull and not args.lessons:
        parser.error("--pull wants the numbers of the lessons to take back")
    for source in chosen:
        if args.pull:
            print(pull(source))
        elif args.all or args.lessons or problems(source):
            print(build(source), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
