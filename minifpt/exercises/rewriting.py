"""Change a function by a pattern of its syntax, so that the function may be reworded.

A change is ``"pattern -> replacement"``, both Python, such as ``"xhat * w + b -> xhat * w"``.  The
pattern stands for all code of the same form, whatever its layout and whatever the function calls
its variables.  ``_``, ``_1`` ... ``_9`` stand for any expression.  The replacement is written with
the pattern's names.
"""

import ast
import builtins
import inspect
import re
import textwrap
from collections import namedtuple

# function: the changed one.  lines: the first and the last line, in the function's file, of the
# statement that changes; with several changes, those of the last one.  text: what stands there
# instead.
Rewritten = namedtuple("Rewritten", "function lines text")
NAME = r"(?<![\w.])[A-Za-z_]\w*"                          # not that of an attribute


def rewrite(function, *changes):
    """Return ``function`` with each of the ``changes`` made, one after the other, at each place of
    its pattern: a :class:`Rewritten`.  Raises ``ValueError`` where a pattern does not occur."""
    function = inspect.unwrap(function)                   # the formula, without its guard
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    tree.body[0].decorator_list = []
    fixed = {*function.__globals__, *vars(builtins)}
    for change in changes:
        pattern, _, replacement = change.partition(" -> ")
        (form,), code = ast.parse(pattern).body, ast.parse(replacement).body
        if isinstance(form, ast.Expr) and len(code) == 1 and isinstance(code[0], ast.Expr):
            form = form.value                             # an expression for an expression
        for renames in (False, True):                     # the pattern's own names come first
            places = {node: names for node in ast.walk(tree)
                      if same(form, node, names := {}, fixed, renames)}
            if places:
                break
        else:
            raise ValueError(f"'{pattern}' is not in {function.__name__}")
        statement = min((s for s in ast.walk(tree) if isinstance(s, ast.stmt)
                         and any(node in places for node in ast.walk(s))),
                        key=lambda s: (hasattr(s, "body"), s.lineno))   # a simple one, if any
        replacer = Replacer(places, replacement, statement)
        tree = ast.fix_missing_locations(replacer.visit(tree))
    namespace = {}
    exec(compile(tree, f"<{function.__name__}, changed>", "exec"), function.__globals__, namespace)
    return Rewritten(namespace[function.__name__], (
        first + statement.lineno - 1, first + statement.end_lineno - 1), replacer.text)


def same(form, node, names, fixed, renames):
    """Return whether ``node`` has the form of a pattern; fills ``names`` {the pattern's name: the
    code that it stands for}."""
    if isinstance(form, ast.Name) and isinstance(node, ast.expr):
        if re.fullmatch(r"_\d?", form.id):
            return names.setdefault(form.id, node) is node
        if renames and isinstance(node, ast.Name) and not {form.id, node.id} & fixed:
            names_in_use = {n.id for key, n in names.items() if key[0] != "_" and key != form.id}
            return names.setdefault(form.id, node).id == node.id and node.id not in names_in_use
    if isinstance(form, list):
        return isinstance(node, list) and len(form) == len(node) and all(
            same(a, b, names, fixed, renames) for a, b in zip(form, node, strict=True))
    if not isinstance(form, ast.AST):
        return form == node
    return type(form) is type(node) and all(
        same(getattr(form, key), getattr(node, key), names, fixed, renames)
        for key in form._fields if key != "ctx")


class Replacer(ast.NodeTransformer):
    """Puts a replacement at the places of a pattern; ``text`` is what becomes of one statement."""

    def __init__(self, places, replacement, statement):
        self.places, self.replacement, self.statement = places, replacement, statement

    def visit(self, node):
        result = super().visit(node)
        if node in self.places:
            texts = {name: f"({ast.unparse(code)})" for name, code in self.places[node].items()}
            text = re.sub(NAME, lambda match: texts.get(match[0], match[0]), self.replacement)
            result = ast.parse(text).body
            if isinstance(node, ast.expr):
                result = result[0].value
                if hasattr(node, "ctx"):                  # what is assigned to stays so
                    result.ctx = node.ctx
        if node is self.statement:
            self.text = "\n".join(map(ast.unparse, result if isinstance(result, list)
                                      else [result]))
        return result
