"""Format help so that it fits the terminal, and rows."""

import argparse
import textwrap

from ..spelling import suggestion


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that breaks lines between words only, and leaves indented text as it is."""

    def _split_lines(self, text, width):
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False,
                             break_on_hyphens=False)

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


def print_rows(rows):
    """Print {name: value}, a line each."""
    width = max(18, *map(len, rows)) + 1
    for name, value in rows.items():
        print(f"{name:{width}}{value}")
