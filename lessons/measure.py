"""Measure how long each lesson is, so that none grows back.

    python lessons/measure.py            a table of all lessons, with what is above a limit
    python lessons/measure.py --write    write minutes and exercises into README.md's tables

What stands before *Going further* counts.  Minutes are words / 130 + lines of code / 8 + the time
that the notebook computes + 7 for each exercise + 4 for each function of the reader's own file.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SIDE_ROADS = 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23


class Measure(NamedTuple):
    """The length of a lesson."""
    lesson: str
    words: int
    code: int                                             # lines without blank ones and comments
    cells: int
    exercises: int
    functions: int                                        # of the reader's own file
    seconds: int                                          # of one core, for the whole notebook
    all_words: int                                        # of the whole lesson

    @property
    def minutes(self):
        """The minutes that a student needs."""
        return round(self.words / 130 + self.code / 8 + self.seconds / 60 +
                     7 * self.exercises + 4 * self.functions)

    @property
    def excess(self):
        """The fields that are above their limits, {name: limit}."""
        limits = {"words": 1000, "code": 100, "cells": 24, "exercises": 2, "functions": 3,
                  "seconds": 60 if self.lesson.startswith("00") else 45}
        if int(self.lesson[:2]) in SIDE_ROADS:
            limits = {"words": 1400}
        return {name: most for name, most in limits.items() if getattr(self, name) > most}


def measure(source):
    """Measure the lesson of a source, ``src/NN_name.py``; its seconds are its notebook's."""
    cells = [cell.partition("\n") for cell in re.split(
        r"^# %%", source.read_text(encoding="utf-8"), flags=re.M)[1:]]
    texts = [(kind.strip() == "[markdown]", text) for kind, _, text in cells]
    begin = [i for i, (is_text, text) in enumerate(texts)
             if is_text and re.match(r"\s*# ## Going further", text)]
    core = texts[:begin[0]] if begin else texts
    text, code = ("\n".join(text for is_text, text in core if is_text is kind)
                  for kind in (True, False))
    metadata = json.loads((HERE / f"{source.stem}.ipynb").read_text(encoding="utf-8"))["metadata"]
    return Measure(
        source.stem, count_words(text),
        sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in code.split("\n")),
        len(core), len(set(re.findall(r"^check\(\"(\w+)\"", code, re.M))),
        len(functions_asked(text)),
        metadata.get("minifpt", {}).get("seconds", 0),
        count_words("\n".join(text for is_text, text in texts if is_text)))


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
    print(f"{'lesson':35} words code cells exercises functions seconds minutes  all words")
    for each in measures:
        print(f"{each.lesson[:35]:35} {each.words:5} {each.code:4} {each.cells:5} "
              f"{each.exercises:9} {each.functions:9} {each.seconds:7} {each.minutes:7} "
              f"{each.all_words:10}  {', '.join(each.excess)}")
    print(f"{sum(each.all_words for each in measures)} words in all")
    return 1 if any(each.excess for each in measures) else 0


if __name__ == "__main__":
    sys.exit(main())
