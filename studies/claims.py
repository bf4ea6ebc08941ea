"""Fill the claims of the texts from the runs, and find numbers that no claim has.

``docs/results/claims.toml`` has every claim once::

    [memory-random]
    says = "Frozen random weights have {} % on bit memory."
    runs = ["memory / bit-memory / random"]
    limit = "strings of 100 bits"
    state = "weak"                      # "stands" unless said otherwise

Each ``{}`` stands for the number of one of ``runs``, in order; ``source`` says where the other
numbers of a claim come from, if they are results.  A run names

- a file of ``studies/results``, a task and an arm, or two arms whose difference counts; a fourth
  part chooses ``least``, ``largest``, ``median``, ``training``, ``paper``, ``steps`` (the last
  one), ``to 95`` (the median of the steps to 95 %), or ``low`` and ``high``, the ends of a
  difference's 95 % interval;
- a file of another form and its rows, as ``why-angle / angle=120; patch=20``: the median of their
  steps, or ``least``, ``largest``, ``rounded`` to hundreds, or ``accuracy``; the mean of nats.

``settings`` are phrases whose numbers are no results, such as "128 channels"; ``[[paper]]``,
``[[predicted]]``, ``[[task]]``, ``[[lesson]]`` and ``[[trunk]]`` are the rows of tables.
"""

import functools
import re
import tomllib

import numpy as np
from scipy.special import stdtrit

from minifpt.experiments import reproduce, tables
from studies import grids
from studies.runs import RESULTS, ROOT, read_rows
from studies.tables import ALL

TABLES = "paper", "predicted", "task", "lesson", "trunk"
FILE = ROOT / "docs" / "results" / "claims.toml"
# What a number is: not a single digit, a year, a version, an arXiv number or a part of a name.
NUMBER = re.compile(r"(?<![\w.,/@])(?<!\w-)(?!(?:19|20)\d\d\b)(?!\d{4}\.\d{5})"
                    r"(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+e-\d+|\d{2,}|\d(?= ?%| to \d+ ?%))"
                    r"(?![\w/])")
# Code, formulas, the targets of links and numbers of lessons, in which no number is looked for.
HIDDEN = re.compile(r"^```.*?^```|^    .*?$|`[^`]*`|\$[^$\n]+\$|\]\([^)]*\)|<!--.*?-->|"
                    r"https?://\S+|[Ll]essons?\s+\d\d?(?:(?:,|\s+to|\s+and)\s+\d\d?\b)*",
                    re.M | re.S)

# -------------------------------------------------------------------------- numbers of the runs


@functools.cache
def grid_of(file):
    return grids.read_rows(RESULTS / f"{file}.csv")


def rows_of(file, where):
    """Return the rows of a CSV whose columns have the values of ``"column=value; ..."``."""
    wanted = [pair.split("=") for pair in where.split("; ")]
    rows = [row for row in read_rows(RESULTS / f"{file}.csv")
            if all(row[key] == value for key, value in wanted)]
    if not rows:
        raise ValueError(f"claims.toml: {file}.csv has no row with {where}")
    return rows


def number(run):
    """Return the number that a run names, see the top of this file, as text."""
    file, where, *rest = (part.strip() for part in run.split(" / "))
    if "=" in where:
        figure, = rest or ["median"]
        rows = rows_of(file, where)
        if "nats" in rows[0]:
            return f"{np.mean([float(row['nats']) for row in rows]):.2f}"
        if "value" in rows[0] or figure == "accuracy":
            return f"{100 * np.mean([float(r.get('value') or r['accuracy']) for r in rows]):.1f}"
        steps = [int(r.get("reached") or r.get("steps_to_95")) for r in rows]
        return f"{REDUCE[figure](steps):,.0f}"
    arms, figure = [*rest, "mean"][:2]
    if figure == "paper":
        return str(ALL[file].paper[arms, where])
    names = arms.split(" - ")
    histories = [grid_of(file).results[where][name] for name in names]
    if figure == "steps":
        return f"{max(h[-1]['step'] for h in histories[0]):,}"
    if figure == "to 95":
        return f"{float(reproduce.median_step(histories[0], 0.95)):,.0f}"
    column = "train_accuracy" if figure == "training" else "test_accuracy"
    n = min(map(len, histories))                          # a difference is paired
    values = [np.array([100 * h[-1][column] for h in runs[:n]]) for runs in histories]
    if figure in ("low", "high"):
        gap = values[0] - values[1]
        half = stdtrit(n - 1, 0.975) * np.std(gap, ddof=1) / np.sqrt(n)
        return f"{np.mean(gap) + (half if figure == 'high' else -half):.1f}"
    results = [REDUCE[figure](each) for each in values]
    return f"{results[0] - sum(results[1:]):.1f}"


REDUCE = {"mean": np.mean, "least": np.min, "largest": np.max, "median": np.median,
          "training": np.mean, "rounded": lambda steps: round(np.median(steps), -2)}


# ------------------------------------------------------------------------------- the claims' file


def read(path=FILE):
    """Return the claims, {id: its table}, and the rest of the file."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    rest = {key: content.pop(key) for key in ("settings", *TABLES)}
    return content, rest


def sentence(claim):
    """Return a claim's sentence with the numbers of its runs."""
    return fill(claim["says"], claim.get("runs", []))


def fill(text, runs):
    """Return a text with the numbers of runs in its places ``{}``."""
    if text.count("{}") != len(runs):
        raise ValueError(f"claims.toml: {text.count('{}')} places and {len(runs)} runs in '{text}'")
    return text.format(*map(number, runs))


def table(form):
    """Return the Markdown table of one of the file's tables, such as ``predicted``."""
    rows = read()[1][form]
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "runs"]
    lines = []
    for row in rows:
        runs = iter(row.get("runs", ()))
        cells = [str(row.get(key, "")) for key in columns]
        lines.append([fill(cell, [next(runs) for _ in range(cell.count("{}"))]) for cell in cells])
    return tables.markdown([[column.replace("_", " ") for column in columns], *lines])


# -------------------------------------------------------------------------------------- the texts


def pattern(phrase):
    """Return a phrase as a pattern that matches it across line breaks."""
    return re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, phrase.split())) + r"(?!\w)")


def uncovered(text, covers, generated=""):
    """Yield each number of a text that is in none of the phrases ``covers`` and not in its
    ``generated`` tables, with the words around it."""
    known = {m[0] for m in NUMBER.finditer(generated.translate({ord(c): " " for c in "–…"}))}

    def hide(match):
        return re.sub(r"[^\n]", " ", match[0])
    plain = HIDDEN.sub(hide, text)
    for phrase in covers:                                 # may share words, or hold code
        for match in phrase.finditer(text):
            plain = plain[:match.start()] + hide(match) + plain[match.end():]
    for match in NUMBER.finditer(plain):
        if match[0].rstrip(",") not in known:
            around = text[max(0, match.start() - 40):match.end() + 30]
            yield f"{match[0]} in '{' '.join(around.split())}'"
