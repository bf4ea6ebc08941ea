"""Measure how long each lesson is, so that none grows back.

    python lessons/measure.py            a table of all lessons, with what is above a limit
    python lessons/measure.py --write    write minutes and exercises into README.md's tables

What stands before *Going further* counts.  Minutes are those of a slow reader: words / 180 + lines
of code to be read, the library's too, / 5 + the time that the notebook computes + half a minute
for each guess + 7 for each exercise + what ``MINUTES`` says for each function of the reader's own
file.

A cell whose first line begins with ``# Not to be read`` is not read, but its lines count for the
limit of the code.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
NOT_READ = "# Not to be read"
MINUTES = {"linear": 5, "linear_backward": 7, "layer_norm": 5, "layer_norm_backward": 8,
           "softmax_backward": 5, "cross_entropy_backward": 5, "positions": 2,
           "positions_backward": 2, "attention": 15, "attention_backward": 20,
           "gelu_backward": 5}
OTHER_FUNCTION = 3                                        # minutes for each of the others
SIDE_ROADS = 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23


class Measure(NamedTuple):
    """The length of a lesson."""
    lesson: str
    words: int
    code: int                                             # lines without blank ones and comments
    read: int                                             # lines to be read, the library's too
    guesses: int
    cells: int
    exercises: int
    functions: tuple                                      # of the reader's own file
    seconds: int                                          # of one core, for the whole notebook
    all_words: int                                        # of the whole lesson

    @property
    def minutes(self):
        """The minutes that a student needs."""
        return round(self.words / 180 + self.read / 5 + self.seconds / 60 + self.guesses / 2 +
                     7 * self.exercises +
                     sum(MINUTES.get(name, OTHER_FUNCTION) for name in self.functions))

    @property
    def excess(self):
        """The fields that are above their limits, {name: limit}."""
        limits = {"words": 1000, "code": 100, "cells": 24, "exercises": 2, "functions": 3,
                  "seconds": 60 if self.lesson.startswith("00") else 45, "minutes": 50}
        if int(self.lesson[:2]) in SIDE_ROADS:
            limits = {"words": 1400}
        lengths = self._asdict() | {"functions": len(self.functions), "minutes": self.minutes}
        return {name: most for name, most in limits.items() if lengths[name] > most}


def measure(source):
    """Measure the lesson of a source, ``src/NN_name.py``; its seconds are its notebook's."""
    cells = [cell.partition("\n") for cell in re.split(
        r"^# %%", source.read_text(encoding="utf-8"), flags=re.M)[1:]]
    texts = [(kind.strip() == "[markdown]", text) for kind, _, text in cells]
    begin = [i for i, (is_text, text) in enumerate(texts)
             if is_text and re.match(r"\s*# ## Going further", text)]
    core = texts[:begin[0]] if begin else texts
    text, *codes = ["\n".join(text for is_text, text in core if is_text),
                    *(text for is_text, text in core if not is_text)]
    code = "\n".join(codes)
    notebook = json.loads((HERE / f"{source.stem}.ipynb").read_text(encoding="utf-8"))
    return Measure(
        source.stem, count_words(text), count_lines(code),
        sum(count_lines(code) for code in codes if not code.startswith(NOT_READ)) + sum(
            map(count_shown, notebook["cells"][:len(core)])),
        code.count("guess = ..."), len(core),
        len(set(re.findall(r"^check\(\"(\w+)\"", code, re.M))), tuple(functions_asked(text)),
        notebook["metadata"].get("minifpt", {}).get("seconds", 0),
        count_words("\n".join(text for is_text, text in texts if is_text)))


def count_lines(code):
    """Count the lines of code that are neither blank nor comments."""
    return sum(bool(line.strip()) and not line.lstrip().startswith("#")
               for line in code.split("\n"))


def count_shown(cell):
    """Count the lines of the library's code, without docstrings, that a notebook's cell shows."""
    return sum(count_lines(re.sub(r'"""[\s\S]*?"""', "", "".join(output["data"]["text/plain"])))
               for output in cell.get("outputs", [])
               if "shows" in output.get("metadata", {}).get("minifpt", {}))


def functions_asked(text):
    """Return the names of the functions that a text asks for in the reader's own file."""
    lists = re.findall(r"Write ([^.]*?) in\s+`mine\.py`", re.sub(r"\n# ?", " ", text))
    return [name for names in lists for name in re.findall(r"`(\w+)`", names)]


def count_words(text):
    """Count the words of a markdown text whose lines begin with ``#``."""
    return len(re.sub(r"^# ?", "", text, flags=re.M).split())


def written(readme, measures):
    """Return README's text with the minutes and exercises of its lessons."""
    for each in measures:
        row = re.search(rf"^\|[^|]*\({each.lesson}\.ipynb\)[^\n]*$", readme, re.M)
        cells = row[0].split(" | ")
        cells[1] = str(5 * round(each.minutes / 5))
        readme = readme.replace(row[0], " | ".join(cells))
    return readme


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    measures = [measure(source) for source in sorted((HERE / "src").glob("[0-9]*.py"))]
    if args.write:
        path = HERE / "README.md"
        path.write_text(written(path.read_text(encoding="utf-8"), measures), encoding="utf-8")
    print(f"{'lesson':35} words code read guesses cells exercises functions seconds minutes  "
          "all words")
    for each in measures:
        print(f"{each.lesson[:35]:35} {each.words:5} {each.code:4} {each.read:4} "
              f"{each.guesses:7} {each.cells:5} {each.exercises:9} {len(each.functions):9} "
              f"{each.seconds:7} {each.minutes:7} {each.all_words:10}  {', '.join(each.excess)}")
    spine = sum(each.minutes for each in measures if int(each.lesson[:2]) not in SIDE_ROADS)
    print(f"{sum(each.all_words for each in measures)} words in all; the spine takes {spine} "
          "minutes")
    return 1 if any(each.excess for each in measures) else 0


if __name__ == "__main__":
    sys.exit(main())
