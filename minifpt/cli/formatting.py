"""Format help, rows and tables so that they fit the terminal."""

import argparse
import re
import shlex
import shutil
import sys
import textwrap
from itertools import groupby, zip_longest

from ..spelling import suggestion


def wrap(text, width):
    """Return the lines of a text, broken between words only; an empty text is one line."""
    return textwrap.wrap(text, max(1, width), break_long_words=False,
                         break_on_hyphens=False) or [""]


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that breaks lines between words only, and leaves indented text as it is."""

    def _split_lines(self, text, width):
        return wrap(" ".join(text.split()), width)

    def _fill_text(self, text, width, indent):
        return text if "\n" in text else "\n".join(self._split_lines(text, width))


class Parser(argparse.ArgumentParser):
    """A parser with errors of one line, without argparse's usage before it."""

    def __init__(self, *args, **options):
        super().__init__(*args, formatter_class=HelpFormatter, **options)

    def error(self, message):
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"no '{value}'{suggestion(value, action.choices)}: expected one of "
                        f"{', '.join(action.choices)}")


def quoted(word):
    """Return a word of a command for a shell, also where the terminal's encoding lacks a sign."""
    try:
        word.encode(sys.stdout.encoding or "utf-8")
        return shlex.quote(word)
    except UnicodeEncodeError:
        raw = word.encode("utf-8", "surrogateescape")
        return "$'" + "".join(chr(b) if 31 < b < 127 and b not in b"'\\" else f"\\x{b:02x}"
                              for b in raw) + "'"


def columns():
    """Return the width of the terminal; without one, a width that breaks no line."""
    return shutil.get_terminal_size((10_000, 24)).columns


def labelled(label, text, indent):
    """Return a label with a text beside it, whose lines are indented."""
    lines = wrap(text, max(columns() - 1 - indent, 20))
    if len(label) < indent:
        lines[0] = f"{label:{indent}}{lines[0]}".rstrip()
    else:
        lines = [label, *lines]
    return f"\n{' ' * indent}".join(lines)


def say(text):
    """Print a text, its lines broken between words to fit the terminal.  A Markdown table in it
    gets aligned columns."""
    for is_table, lines in groupby(str(text).split("\n"), lambda line: line.startswith("|")):
        if is_table:
            head, _, *rows = [[cell.strip().replace("\\|", "|")
                               for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
            print(aligned([head, *rows]))
        else:
            for line in lines:
                print("\n".join(wrap(line, columns() - 1)))


def print_rows(rows):
    """Print {name: value}, a line each."""
    for name, value in rows.items():
        print(labelled(name, str(value), 19))


def aligned(rows):
    """Return rows of cells as text in aligned columns, the first row as a head.  Where they are
    wider than the terminal, the lines of the widest columns are broken between words."""
    cells_of = [*zip(*rows, strict=True)]
    widths = [max(map(len, cells)) for cells in cells_of]
    words = [max(len(word) for cell in cells for word in cell.split() or [""])
             for cells in cells_of]
    while sum(widths) + 2 * len(widths) > columns() + 1 and widths != words:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > words[i]) * widths[i])
        widths[widest] -= 1
    lines = []
    for row in [rows[0], ["-" * width for width in widths], *rows[1:]]:
        cells = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines += ["  ".join(map(str.ljust, parts, widths)).rstrip()
                  for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join(lines)
