"""Read a submitted notebook, or Python file: its exercises, its guesses, what an answer needs.

Only a part of a notebook is run: the imports, the functions that ``check`` gets, and the statements
that these need.  So a cell that trains or draws is left out unless an answer needs it.
"""

import ast
import functools
import json
import re
import symtable

from ..files import one_line

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def reader():
    """Return :func:`contents`; for :mod:`apart`."""
    return contents


def contents(raw, is_notebook):
    """Return what the bytes of a file contain, a dict: ``cells`` of code, ``names`` of functions
    and ``checks`` of exercises in them, ``guesses`` as [(question, guess, what the lesson said)],
    and ``error`` if it cannot be read."""
    raw = bytes(raw)
    try:
        cells = [                                         # (is code, text, outputs)
            (cell["cell_type"] == "code", "".join(cell["source"]), cell.get("outputs", []))
            for cell in json.loads(raw)["cells"]] if is_notebook else [
                (True, raw.decode("utf-8-sig"), [])]
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as e:
        kind = "a notebook, or damaged" if is_notebook else "a text in UTF-8"
        return {"error": f"It is not {kind} ({one_line(e)})."}
    code = [text for is_code, text, _ in cells if is_code]
    statements, unread = read_cells(code)
    if unread and not is_notebook:
        return {"error": f"It is not Python ({unread[0][1]})."}
    return {"error": "", "cells": code, "checks": [*checks(statements)], "guesses": guesses(cells),
            "names": [s.name for s in statements if isinstance(s, ast.FunctionDef)]}


def cell(identifier, source, kind="code", **metadata):
    """Return a new cell of a notebook."""
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": identifier[:64], "metadata": metadata,
            "source": source.splitlines(keepends=True)} | more


def text_of(cells, **metadata):
    """Return the text of a notebook."""
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def read_cells(cells):
    """Return (statements, unread) of the texts of cells: the syntax trees of all top-level
    statements in order, and (text, error) of each cell that is not Python."""
    statements, unread = [], []
    for text in cells:
        if text.startswith("%%") and not text.startswith(("%%time", "%%capture")):
            continue                                      # another language
        try:
            statements += parsed(text)
        except UNREADABLE as e:
            unread.append((text, one_line(e)))
    return statements, unread


def guesses(cells):
    """Return [(question, guess, what the lesson said)] of the cells that set ``guess``."""
    question, rows = "", []
    for is_code, text, outputs in cells:
        if not is_code:
            question = " ".join(re.split(r"\n\s*\n", text.strip())[-1].split())
            continue
        match = re.search(r"^guess = (.+?)(\s+#.*)?$", text, re.M)
        said = re.search(r"Your guess: .*", json.dumps(outputs).replace("\\n", "\n"))
        if said and rows and not rows[-1][2]:
            rows[-1][2] = said[0].split('"')[0]
        if match and "..." not in match[1]:
            rows.append([question[-300:], match[1][:100], ""])
    return rows


def parsed(text):
    """Return the statements of a cell.  Lines for Jupyter that are not Python, such as
    ``%time f()``, ``!ls`` and ``np.sum?``, become ``pass``."""
    lines = text.split("\n")
    while True:
        try:
            return ast.parse("\n".join(lines)).body
        except SyntaxError as e:
            i = min(e.lineno or 1, len(lines)) - 1
            line = re.sub(r"^(\s*)([%!?].*|.*\?\s*)$", r"\1pass", lines[i])
            if line == lines[i]:
                raise
            lines[i] = line


def checks(statements):
    """Return {exercise: (expression, end)} of the last ``check("exercise", expression)`` of each.
    The statements before ``end`` had run by then."""
    return {node.args[0].value: (node.args[1], i + 1)
            for i, statement in enumerate(statements) for node in ast.walk(statement)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check"
            and len(node.args) == 2 and isinstance(node.args[0], ast.Constant)}


def load(cells):
    """Return a function of an exercise's name that returns its answer, as :func:`answered` does;
    for :mod:`apart`."""
    statements, unread = read_cells(cells)
    calls = checks(statements)
    return lambda name: answered(name, calls.get(name), statements, unread)


def answered(name, call, statements, unread):
    """Run the statements that an answer needs; return (answer, what failed before it).  Raises
    ``ValueError`` with the reason if there is none.

    ``call`` is its value of :func:`checks`, ``None`` where no ``check`` has the answer."""
    expression, end = call or (ast.Name(name, ast.Load()), None)
    namespace, failed = {"__name__": "notebook"}, ""
    for statement in needed(expression, statements[:end]):
        try:
            exec(compile(ast.Module([statement], []), "notebook", "exec"), namespace)
        except Exception as e:
            failed = failed or f" Before that, '{ast.unparse(statement):.60}' raised {one_line(e)}."
    try:
        answer = eval(compile(ast.Expression(ast.fix_missing_locations(expression)), "notebook",
                              "eval"), namespace)
    except Exception as e:
        broken = [f"The cell of {name} is not Python: {error}." for text, error in unread
                  if re.search(rf"\b{name}\b", text)]
        if broken or failed or not isinstance(e, NameError):
            raise ValueError(broken[0] if broken else f"It raised {one_line(e)}.{failed}") from None
        answer = None
    return answer, failed


def needed(expression, statements):
    """Return the statements that an expression depends on, in order: those that define or change a
    name that it reads, or that one of these statements reads, and so on."""
    parts = [names_of(statement) for statement in statements]
    modules = set().union(*(gives for statement, (gives, _, _) in zip(
        statements, parts, strict=True) if isinstance(statement, (ast.Import, ast.ImportFrom))))
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    chosen = set()
    while True:
        more = {i for i, (gives, changes, _) in enumerate(parts)
                if (gives | changes - modules) & names or "*" in gives}
        if more == chosen:
            return [statements[i] for i in sorted(chosen)]
        chosen = more
        names = names.union(*(parts[i][2] for i in chosen))


@functools.cache
def names_of(statement):
    """Return the names that a top-level statement defines, the names that it changes, as in
    ``a.append(1)``, and the names that it reads."""
    try:
        table = symtable.symtable(ast.unparse(statement), "notebook", "exec")
    except UNREADABLE:                                    # thousands of signs after each other
        return set(), set(), set()
    symbols = table.get_symbols()
    gives = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    reads = {s.get_name() for s in symbols if s.is_referenced()}
    inner = table.get_children()
    while inner:
        child = inner.pop()
        reads |= {s.get_name() for s in child.get_symbols() if s.is_global()}
        inner += child.get_children()
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        gives.add("*")
    changes = {root(node) for node in ast.walk(statement)              # a[0] = 1, a.b = 1
               if isinstance(node, (ast.Attribute, ast.Subscript))
               and isinstance(node.ctx, (ast.Store, ast.Del))}
    if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        changes |= {root(node.value.func) for node in ast.walk(statement)
                    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)}
    return gives, changes - {None}, reads


def root(node):
    """Return the name ``a`` of ``a.b[0].c``; ``None`` if there is none, and for ``a`` itself."""
    name = getattr(node, "value", None)
    while isinstance(name, (ast.Attribute, ast.Subscript)):
        name = name.value
    return getattr(name, "id", None)
