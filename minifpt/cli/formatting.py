"""Format help, rows and tables so that they fit the terminal."""

import argparse
import re
import shutil
import textwrap
from itertools import zip_longest

from ..users import suggestion


def wrap(text, width):
    """Return the lines of a text, broken between words only."""
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that breaks lines between words only, and leaves indented text as it is."""

    def _format_args(self, action, default_metavar):      # more than one is refused with its reason
        text = super()._format_args(action, default_metavar)
        is_one = action.dest == "tasks" and not self._prog.endswith(" compare")
        return text.replace(" ...", "") if is_one else text

    def _split_lines(self, text, width):
        return wrap(" ".join(text.split()), width)

    def _fill_text(self, text, width, indent):
        if "\n    " in text:
            return textwrap.indent(text, indent)
        return "\n".join(indent + line for line in wrap(" ".join(text.split()), width))


class Parser(argparse.ArgumentParser):
    """A parser with errors of one line, without argparse's usage before it.  Its help lists the
    commands in ``groups``, {heading: {command: (module, text)}}."""

    def __init__(self, *args, groups=None, **options):
        super().__init__(*args, formatter_class=HelpFormatter, **options)
        self.groups = groups

    def error(self, message):
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")

    def flags(self):
        """Return the options that the parser knows."""
        return [flag for action in self._actions for flag in action.option_strings]

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"no '{value}'{suggestion(value, action.choices)}: expected one of "
                        f"{', '.join(action.choices)}")

    def format_help(self):
        if not self.groups:
            return super().format_help()
        lines = ["usage: minifpt COMMAND ...", ""]
        for heading, commands in self.groups.items():
            lines.append(f"{heading}:")
            for name, (_, text) in commands.items():
                lines += labelled(f"  {name}", text, 14)
            lines.append("")
        end = ("minifpt COMMAND --help shows a command's options, minifpt --version the version; "
               "--traceback, before or after a command, prints the traceback of an error, too.")
        return "\n".join([*lines, *wrap(end, min(columns() - 1, 79)), ""])


def columns():
    """Return the width of the terminal; without one, a width that breaks no line."""
    return shutil.get_terminal_size((10_000, 24)).columns


def labelled(label, text, indent):
    """Return the lines of a label with a text beside it."""
    lines = wrap(text, max(columns() - 1 - indent, 20)) or [""]
    if len(label) < indent:
        label, lines = f"{label:{indent}}{lines[0]}", lines[1:]
    return [label.rstrip(), *(" " * indent + line for line in lines)]


def say(text):
    """Print a text, its lines broken between words to fit the terminal.  A Markdown table in it
    gets aligned columns."""
    table = []
    for line in [*str(text).split("\n"), None]:
        if line is not None and line.startswith("|"):
            table.append([cell.strip().replace("\\|", "|")
                          for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            continue
        if table:
            print(aligned([table[0], *table[2:]]))        # the second line is Markdown's rule
            table = []
        if line is not None:
            print("\n".join(wrap(line, columns() - 1)) if len(line) >= columns() else line)


def print_rows(rows):
    """Print {name: value}, a line each."""
    for name, value in rows.items():
        print("\n".join(labelled(name, str(value), 19)))


def aligned(rows):
    """Return rows of cells as text in aligned columns.  If they are wider than the terminal, the
    lines of the widest columns are broken between words."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    least = [max(len(word) for cell in cells for word in cell.split() or [""])
             for cells in zip(*rows, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) >= columns():
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        if not max(spare):
            break
        widths[max(range(len(widths)), key=lambda i: (spare[i] > 0) * widths[i])] -= 1
    lines = []
    for i, row in enumerate(rows):
        cells = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines += ["  ".join(map(str.ljust, parts, widths)).rstrip()
                  for parts in zip_longest(*cells, fillvalue="")]
        if i == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)
