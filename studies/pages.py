"""The tables and numbers of the pages, from the rows of the runs.

``minifpt compare`` writes every run into ``runs.csv``, ``minifpt reproduce`` and
``python -m studies.tables`` into ``NAME.csv``; copies of these are in ``studies/results``, those of
speed in ``benchmarks/results``.  A CSV with columns of its own is shown as it is.  To add a table,
copy its CSV there, put one of these lines into a text, and run ``python -m studies PAGE``:

    <!-- NAME.csv -->               the table of that file
    <!-- NAME.csv: means -->        the mean over the seeds of each column behind ``seed``
    <!-- NAME.csv: TABLE -->        the same runs in the form of another of these tables
    <!-- NAME.csv: TASK+TASK -->    the columns of these tasks
    <!-- paper.csv -->              every result of the paper beside ours (``studies/paper.csv``)

Other numbers are those of :mod:`studies.numbers`.  Tables and pictures call the arms by the words
of :mod:`studies.words`; the CSVs keep the names that the commands write.
"""

import functools
import itertools
import re

from minifpt import tasks
from minifpt.experiments import tables
from studies import directions, inside, memory_map, numbers, paper, trunks, why
from studies.grids import read_rows
from studies.runs import RESULTS, ROOT
from studies.runs import read_rows as read_csv
from studies.tables import ALL
from studies.words import word

RUNS = RESULTS, ROOT / "benchmarks" / "results"           # of studies, and of speed
TEXTS = (ROOT / "README.md", ROOT / "RESULTS.md", *sorted((ROOT / "docs").rglob("*.md")),
         ROOT / "lessons" / "claims.md", ROOT / "minifpt" / "viewer" / "live" / "tour.md")
BASELINES = ("softmax regression", "two layers, 256 hidden", "letter pairs, forward filter",
             "contexts of up to 5 bytes")
# Their arms are compared among themselves.
WITHOUT_BASELINES = ("why-own", "why-bits", "why-start", "groups", "paper-lstm", "blocks",
                     "trunks-accuracy")

# ---------------------------------------------------------------------------------------- tables


@functools.cache
def table(name, form=None):
    """Return the Markdown table of ``NAME.csv`` in one of the forms at the top of this file."""
    if name in MADE:
        return MADE[name]()
    path = next(path for folder in RUNS if (path := folder / f"{name}.csv").exists())
    rows = read_csv(path)
    if [*rows[0]] == tables.CSV:
        return short(grid_table(name, form, read_rows(path)))
    for study in (why, trunks):
        if name.startswith(f"{study.__name__.rpartition('.')[2]}-"):
            return short(study.table(path))
    lines = [[*rows[0]], *([*row.values()] for row in rows)]      # of no grid: as it is
    return tables.markdown(inside.over_seeds(*lines) if form == "means" else lines)


def grid_table(name, form, grid):
    """Return the table of a grid, with the baselines of its tasks."""
    if form and {*form.split("+")} <= {*grid.results}:
        grid.results = {task: grid.results[task] for task in form.split("+")}
        form = None
    form = form or name
    if name == "simple":
        return simple_table(grid)
    if name not in WITHOUT_BASELINES:
        add_baselines(grid, with_curves=form == "table4")
    return renamed(ALL[form].text(grid) if form in ALL else tables.table(grid))


def simple_table(grid):
    """Return the table of methods without a transformer: a row for each task."""
    linear, lines = "softmax regression", [["task", "linear classifier", "other methods"]]
    for task, methods in grid.results.items():
        cells = {method: tables.final(grid, task, method) for method in methods}
        lines.append([word(tasks.label_of(task)), cells.pop(linear, ""),
                      "; ".join(f"{method}: {cell}" for method, cell in cells.items())])
    return tables.markdown(lines)


def renamed(text):
    """Return a table whose first cells, or second ones behind a task, are in words."""
    head, _, *lines = cells_of(text)
    column = int(head[0] == "task")
    for line in lines:
        line[column] = " - ".join(word(arm) for arm in line[column].split(" - "))
    lines = [list(line) for line in dict.fromkeys(map(tuple, lines))]       # one arm, two labels
    return tables.markdown([[*map(word, head)], *lines])


def add_baselines(grid, with_curves=False):
    """Add the rows of ``BASELINES`` to a table; ``with_curves``: only what is trained step by
    step."""
    simple = read_rows(RESULTS / "simple.csv")
    for task, name in itertools.product(grid.results, BASELINES):
        histories = simple.results.get(task, {}).get(name)
        if histories and len(histories[0]) > with_curves:
            grid.results[task][name] = histories
            grid.rates[task][name] = simple.rates[task][name]
            if name in simple.sweeps.get(task, {}):
                grid.sweeps.setdefault(task, {})[name] = simple.sweeps[task][name]


def cells_of(text):
    """Return the cells of a Markdown table, a list for each line."""
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in text.splitlines()]


def short(text):
    """Return a table without what the legend says once: the seeds that most cells share, the words
    for a rate and its edge, the area, the levels of accuracy of a column."""
    text = re.sub(r", lr ([\w.-]+)( \(edge\))?", lambda m: f"; {m[1]}{'†' * bool(m[2])}", text)
    text = re.sub(r"; area [^;|]*(?=[;|])", "", text)
    text = re.sub(r"([+-]?[\d.,]+) to ((?:> )?[+-]?[\d.,]+)\)", r"\1…\2)", text).replace(" / ", "/")
    counts = re.findall(r", (\d) seeds?", text)
    common = max(counts, key=counts.count, default="5")
    if counts.count(common) < 0.8 * len(counts):
        common = "5"                                      # as docs/results/index.md says
    text = re.sub(rf", {common} seeds?", "", text)
    if common != "5":
        text = text.replace("| trunk |", f"| {common} seed{'s' * (common != '1')} each |", 1)
    rows = cells_of(text)
    for column in range(1, len(rows[0]) if rows else 0):
        levels = next((m for row in rows[2:] if column < len(row)
                       for m in [re.search(r" to ([\d./]+ %)", row[column])] if m), None)
        if levels:
            rows[0][column] += f", steps to {levels[1]}"
            for row in rows[2:]:
                row[column] = row[column].replace(levels[0], "")
    return "\n".join(f"| {' | '.join(row)} |" if i != 1 else row[0]
                     for i, row in enumerate(rows))


# Tables of several files, or of a form of their own.
MADE = {"paper": paper.table,
        "memory-map": functools.partial(memory_map.table, RESULTS / "memory-map.csv"),
        "trunks-ranking": functools.partial(trunks.ranking, RESULTS),
        "trunks-levels": functools.partial(trunks.levels, RESULTS),
        "directions-trunks": directions.table_of_trunks,
        **{f"directions-{study}": functools.partial(directions.table, study)
           for study in directions.STUDIES}}


def with_tables(text):
    """Return a page with each marked table as the rows have it."""
    def renewed(match):
        name, form, old = match.groups()
        mark = f"<!-- {name}.csv{f': {form}' * bool(form)} -->"
        return f"{mark}\n\n{table(name, form)}\n" + "\n" * (not old)
    return numbers.TABLE.sub(renewed, text)


def problems(path):
    """Return a line for each place where a text differs from the rows, and for each number without
    a source."""
    text = path.read_text(encoding="utf-8")
    new, lines = numbers.with_numbers(with_tables(text))
    lines += [f"says '{was}', the rows say '{now}': python -m studies {path.stem}" for was, now in
              itertools.zip_longest(text.splitlines(), new.splitlines()) if was != now]
    return [f"{path.name}: {line}" for line in lines]


def unused():
    """Return a line for each CSV that no text uses."""
    text = "".join(path.read_text(encoding="utf-8") for path in TEXTS)
    used = {name for name, *_ in numbers.TABLE.findall(text)} | {
        run.split(" / ")[0] for _, run, *_ in numbers.listed("".join(numbers.LIST.findall(text)))}
    return [f"no text has a table or a number of {path.name}" for folder in RUNS
            for path in sorted(folder.glob("*.csv")) if path.stem not in used]


def write(path):
    """Write tables and numbers into a text."""
    text = path.read_text(encoding="utf-8")
    new, _ = numbers.with_numbers(with_tables(text))
    if new != text:
        path.write_text(new, encoding="utf-8")
