"""A worksheet on paper: functions of a lesson in which one line may be wrong.

The wrong lines are the mistakes that the checks know.  The hint of each is its key.
"""

import ast
import html
import inspect
import itertools
import textwrap
from functools import cache
from pathlib import Path

import numpy as np

from .. import checks
from ..files import read_text, save_text
from . import EXERCISES, _load, _sentence, own
from .notebooks import cell, text_of
from .operations import OPERATIONS
from .rewriting import rewrite

QUESTIONS = ("In each function one line may be wrong; some are right as they stand. Which line? "
             "What should it be? What does the mistake do to the result, and which data would show "
             "it?")
STYLE = ("body{font:15px/1.4 sans-serif;max-width:46em;margin:2em auto}pre{background:#f5f5f5;"
         "padding:.6em;break-inside:avoid}.answer{border-bottom:1px solid #999;height:1.6em}")


@cache
def pool(lesson):
    """Return {function's name: [(code, key)]} of a lesson, two digits; the first is right, and each
    other one has one wrong line."""
    _load()
    functions = {name: e for name, e in EXERCISES.items() if e.__module__[-2:] == lesson}
    functions |= {name: e for name, e in OPERATIONS.items()
                  if own.FUNCTIONS.get(name) == int(lesson)}
    items = {}
    for name, exercise in functions.items():
        lines, first = inspect.getsourcelines(exercise.solution)
        right = plain(lines)
        items[name] = [(right, "right as it stands")]
        for hint, ways in exercise.mistakes.items():
            way = ways[0] if isinstance(ways, list) else ways
            if not isinstance(way, str):                  # it changes more than one place
                continue
            (start, end), text = rewrite(exercise.solution, way)[1:]
            start, end = start - first, end - first + 1
            indent = lines[start][:len(lines[start]) - len(lines[start].lstrip())]
            changed = plain([*lines[:start], textwrap.indent(text, indent) + "\n", *lines[end:]])
            pairs = itertools.zip_longest(right.splitlines(), changed.splitlines())
            rows = [row for row, other in pairs if row != other]
            if len(rows) == 1 and rows[0] and changed not in dict(items[name]):
                items[name].append((changed, f"{_sentence(hint)} It should be\n\n{rows[0]}"))
    return {name: variants for name, variants in items.items() if len(variants) > 1}


def plain(lines):
    """Return a function's source in one style, without docstring and comments, which give hints."""
    function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    function.body = function.body[ast.get_docstring(function) is not None:]
    return ast.unparse(function)


def draw(lesson, seed=0, items=6):
    """Return [(code, key)], one in four right.  Raises ``ValueError`` for too few mistakes."""
    seed, functions = checks.seed("worksheet", seed), pool(f"{lesson:02}") if lesson >= 0 else {}
    rng = np.random.default_rng([max(0, lesson), seed])
    items = checks.whole("worksheet", "items", items)
    if not functions:
        raise ValueError(f"worksheet: there is no lesson {lesson}")
    names = [str(name) for name in rng.permutation(list(functions))]
    n_right = min(round(items / 4), len(names) - 1)
    sheet = [functions[name][0] for name in names[:n_right]]
    mistakes = {name: [functions[name][i] for i in 1 + rng.permutation(len(functions[name]) - 1)]
                for name in names}
    # One of each function in turn; those that stand there as they are come last.
    turns = [item for some in (names[n_right:], names[:n_right]) for turn in
             itertools.zip_longest(*(mistakes[name] for name in some)) for item in turn if item]
    if items - n_right > len(turns):
        raise ValueError(f"worksheet: lesson {lesson} has too few mistakes for {items} items, "
                         f"expected at most {n_right + len(turns)}")
    sheet += turns[:items - n_right]
    return [sheet[i] for i in rng.permutation(items)]


def write(lesson, folder, seed=0, items=6):
    """Write a page, a notebook and the key into a folder; return their paths.  Raises
    ``ValueError`` for one that is there and differs, such as a notebook with answers."""
    sheet, folder = draw(lesson, seed, items), Path(folder)
    title = f"Lesson {lesson}, worksheet {seed}"
    name = f"worksheet-{lesson:02}-{seed}"
    page = [f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>",
            f"<h1>{title}</h1><p>{QUESTIONS}</p>"]
    cells = [cell("title", f"# {title}\n\n{QUESTIONS}", "markdown")]
    key = [f"# {title}: key"]
    for i, (code, answer) in enumerate(sheet, start=1):
        rows = [f"{n:2}  {row}" for n, row in enumerate(code.splitlines(), start=1)]
        page.append(f"<h2>{i}</h2><pre>{html.escape(chr(10).join(rows))}</pre>"
                    + "<div class=answer></div>" * 3)
        cells += [cell(f"number-{i}", f"**{i}.**", "markdown"), cell(f"code-{i}", code),
                  cell(f"answer-{i}", "*Answer:* ", "markdown")]
        key.append(f"**{i}.** {answer}")
    texts = {folder / f"{name}.html": "\n".join(page) + "\n",
             folder / f"{name}.ipynb": text_of(cells),
             folder / f"{name}-key.md": "\n\n".join(key) + "\n"}
    for path, text in texts.items():
        if path.exists() and read_text(path) != text:
            raise ValueError(f"{path} is there already and differs from this sheet: choose another "
                             "folder with --out")
    for path, text in texts.items():
        save_text(path, text)
    return [*texts]
