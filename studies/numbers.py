"""The numbers of the texts: the rows give each, or its source is named.

A comment that no reader sees stands below a part of a text and lists its numbers in their order::

    <!-- numbers
    99.7 = memory / bit-memory / random
    4.0 2.4 5.6 = overfitting / few-mnist-10 / random - language
    75.8: the paper's table 2
    limit: strings of 100 bits
    -->

The rows give a number before ``=``; behind ``:`` stands another source, behind ``limit:`` a note.
A number need not be listed where it stands in a table of its page that rows make, or in a phrase of
``SETTING``, such as "128 channels".  The rows are named by

- a file of ``studies/results``, a task and an arm, or two arms whose difference counts, paired by
  seed.  Up to three numbers are the mean, the least and the largest, or, of a difference, the mean
  and the ends of its 95 % interval.  A fourth part chooses ``least``, ``largest``, ``low``,
  ``high``, ``training``, ``paper`` or ``to 95``, the median of the steps to 95 %;
- a file of another form and its rows, as ``why-angle / angle=120; patch=20``: the median of their
  steps, the least and the largest; or ``rounded`` to hundreds, ``to 80``, ``mean COLUMN`` or
  ``percent COLUMN``.

A number keeps the decimals with which it was written.
"""

import functools
import re

import numpy as np
from scipy.special import stdtrit

from minifpt.experiments import reproduce
from studies import grids
from studies.runs import NEVER, RESULTS, first_step, read_rows
from studies.tables import ALL

# What a number is: not a single digit, a year, a version, an arXiv number or a part of a name.
NUMBER = re.compile(r"(?<![\w.,/@])(?<!\w-)(?!(?:19|20)\d\d\b)(?!\d{4}\.\d{5})-?"
                    r"(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+e-\d+|\d{2,}|\d(?= ?%| to \d+ ?%))"
                    r"(?![\w/])")
# Code, formulas, links' targets, numbers of lessons and headings: no number is looked for in them.
HIDDEN = re.compile(r"^```.*?^```|^#+ \d+\.|^    .*?$|`[^`]*`|\$[^$\n]+\$|\]\([^)]*\)|<!--.*?-->|"
                    r"https?://\S+|[Ll]essons?\s+\d\d?(?:(?:,|\s+to|\s+and)\s+\d\d?\b)*",
                    re.M | re.S)
# Phrases whose numbers are settings.
UNITS = (r"degrees|channels|heads|blocks|bits|labels|labelled|tokens|symbols|examples|validation|"
         r"positions|entries|passages|seeds|images|test images|million parameters|steps of \d+")
STEPS = "300|500|600|900|1,000|1,500|2,000|2,400|4,000|4,500|5,000|6,000|8,000|20,000"
SETTING = re.compile(
    rf"[\d.,]+(?:°|\s(?:{UNITS})\b)|\b(?:{STEPS})\s(?:steps|expressions)|\b[Aa]t\s\de-\d(?!\sto)|"
    r"(?:rate\sof|paper's)\s\de-\d|95\s%\s(?:interval|on)|(?:to|at|passes)\s9(?:5|9.5)\s%|"
    r"GPT-2's\s0.02|deviation\sof\s[\d.]+|[\d.]+\s/\s√|scale\sof\s[\d.]+|(?:heads|batches|steps|"
    r"patches|dropout|window)\sof\s[\d.]+|(?:Python|NumPy|OpenBLAS|PyTorch|Llama)\s[\d.]+")
TABLE = re.compile(r"<!-- ([\w-]+)\.csv(?:: ([\w+-]+))? -->\n+((?:\|.*\n?)*)")    # of rows
LIST = re.compile(r"<!-- numbers\n(.*?)-->", re.S)
LINE = re.compile(r"^([-\d][-\d.,e ]*)( =|:) (.+)$", re.M)
VALIDATION_SEEDS = "1000", "2001", "2002", "2003"         # of trunks, and of directions
ENDS = {"least": 1, "low": 1, "largest": 2, "high": 2}

# ---------------------------------------------------------------------------- from the rows


@functools.cache
def grid_of(file):
    """Return the grid of runs of a CSV file."""
    return grids.read_rows(RESULTS / f"{file}.csv")


@functools.cache
def values(run):
    """Return up to three numbers that the rows of ``run`` give."""
    file, where, *rest = run.split(" / ")
    is_grid = "=" not in where
    figure = rest.pop() if len(rest) > is_grid else ""
    numbers = of_grid(file, where, *rest, figure) if is_grid else of_rows(file, where, figure)
    return [numbers[ENDS[figure]]] if figure in ENDS else numbers


def of_grid(file, task, arms, figure):
    """Return the mean of an arm with the least and the largest, or another figure."""
    if figure == "paper":
        return [float(str(ALL[file].paper[arms, task]).replace(",", ""))]
    histories = [grid_of(file).results[task][arm] for arm in arms.split(" - ")]
    if figure.startswith("to "):
        return [float(reproduce.median_step(histories[0], int(figure[3:]) / 100).replace(",", ""))]
    column = "train_accuracy" if figure == "training" else "test_accuracy"
    first, *others = ([100 * h[-1][column] for h in runs] for runs in histories)
    if not others:
        return np.mean(first), min(first), max(first)
    gaps = [a - b for a, b in zip(first, others[0], strict=False)]
    half = stdtrit(len(gaps) - 1, 0.975) * np.std(gaps, ddof=1) / len(gaps) ** 0.5
    return np.mean(gaps), np.mean(gaps) - half, np.mean(gaps) + half


def of_rows(file, where, figure):
    """Return the median of the steps of some rows with the least and the largest, or another
    figure."""
    wanted = [pair.split("=") for pair in where.split("; ")]
    rows = [row for row in read_rows(RESULTS / f"{file}.csv")
            if all(row[key] == value for key, value in wanted)
            and row.get("seed") not in VALIDATION_SEEDS]
    if not rows:
        raise ValueError(f"{file}.csv has no row with {where}")
    kind, _, column = figure.partition(" ")
    if kind in ("mean", "percent"):
        return [(100 if kind == "percent" else 1) * np.mean([float(row[column]) for row in rows])]
    steps = [first_step(int(figure[3:]) / 100, row) if figure.startswith("to ") else
             int(row.get("reached", row.get("steps_to_95")) or NEVER) for row in rows]
    return np.round(np.median(steps), -2 * (figure == "rounded")), min(steps), max(steps)


# ------------------------------------------------------------------------------ in the texts


def blank(match):
    """Return spaces for a match, so that places stay."""
    return re.sub(r"[^\n]", " ", match[0])


def listed(comment):
    """Return (number, run or "", its place, line) of each number that a comment lists.  Raises
    ``ValueError`` for a line that has no number and is no limit."""
    entries = []
    for line in comment.splitlines():
        if match := LINE.fullmatch(line):
            run = match[3] if match[2] == " =" else ""
            entries += [(number, run, i, line) for i, number in enumerate(match[1].split())]
        elif not line.startswith("limit: "):
            raise ValueError(f"'{line}', expected 'NUMBER = FILE / TASK / ARM' or 'NUMBER: SOURCE'")
    return entries


def renewed(number, run, i):
    """Return a number as the rows give it now, with as many decimals."""
    return f"{values(run)[i]:z,.{len(number.partition('.')[2])}f}" if run else number


def renewed_line(match):
    """Return a line of a comment with the numbers that the rows give now."""
    old, sign, run = match.groups()
    return " ".join(renewed(number, run * (sign == " ="), i) for i, number in enumerate(
        old.split())) + f"{sign} {run}"


def with_numbers(text):
    """Return a text with the numbers that the rows give now, and a line for each part of it whose
    numbers its comment does not list."""
    in_tables = "".join(match[3] for match in TABLE.finditer(text))
    known = {match[0] for match in NUMBER.finditer(re.sub("[–…]", " ", in_tables))}
    settings = [match.span() for match in SETTING.finditer(text)]
    plain, pieces, problems, end = HIDDEN.sub(blank, TABLE.sub(blank, text)), [], [], 0
    for comment in [*LIST.finditer(text), None]:
        entries = listed(comment[1]) if comment else []
        for match in NUMBER.finditer(plain, end, comment.start() if comment else len(text)):
            start, number = match.start(), match[0]
            is_setting = any(a <= start < b for a, b in settings)
            if entries and number == entries[0][0] and (entries[0][1] or not is_setting):
                _, run, i, _ = entries.pop(0)
                pieces += [text[end:start], renewed(number, run, i)]
                end = match.end()
            elif number not in known and not is_setting:
                around = " ".join(text[max(0, start - 40):match.end() + 30].split())
                problems.append(f"'{around}' has {number}, its comment " + (
                    f"has '{entries[0][-1]}'" if entries else "lists no such number"))
                break
        else:
            problems += [f"no text above it has {number}, in this order: '{line}'"
                         for number, _, _, line in entries[:1]]
        if comment:
            pieces += [text[end:comment.start(1)], LINE.sub(renewed_line, comment[1])]
            end = comment.end(1)
    return "".join([*pieces, text[end:]]), problems
