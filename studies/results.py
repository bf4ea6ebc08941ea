"""Tables, claims and pictures of the results, from the runs that are kept beside this file.

    python -m studies.results --check    fail where a table, a claim or a number differs
    python -m studies.results --write    write the tables into the texts
    python -m studies.results --picture  draw the pictures

``minifpt compare`` writes every run into ``runs.csv``, ``minifpt reproduce`` into ``NAME.csv``;
copies of these are in ``studies/results/``; a CSV with columns of its own is shown as it is.
``simple.csv`` holds methods without a transformer (``studies.simple``).  To add a table, copy
its CSV there, put one of these lines into a text, and run ``--write``:

    <!-- NAME.csv -->               the table of that file
    <!-- NAME.csv: means -->        the mean over the seeds of each column behind ``seed``
    <!-- NAME.csv: TABLE -->        the same runs in the form of another of these tables
    <!-- NAME.csv: TASK+TASK -->    the columns of these tasks
    <!-- paper.csv -->              every result of the paper beside ours (``studies/paper.csv``)
    <!-- claims.toml: predicted --> a table of ``docs/results/claims.toml``

A number in the texts stands in such a table or in a claim, see :mod:`studies.claims`.  To change
a claim, change it in ``docs/results/claims.toml`` and in the texts: ``--check`` prints a sentence
that no text has.  Tables and pictures call the arms by the words of :mod:`studies.words`; the
CSVs keep the names that the commands write.
"""

import argparse
import csv
import functools
import itertools
import re
import sys
from unittest.mock import patch

import numpy as np
from matplotlib.text import Text

from minifpt import tasks
from minifpt.experiments import reproduce, tables
from minifpt.files import plots
from studies import claims, directions, memory_map, trunks, why
from studies.grids import read_rows, task_of
from studies.runs import PAGES, RESULTS, ROOT
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
MARK = re.compile(r"<!-- ([\w-]+)\.(?:csv|toml)(?:: ([\w+-]+))? -->")

# Tables of several files.
MADE = {"trunks-ranking": functools.partial(trunks.ranking, RESULTS),
        "trunks-levels": functools.partial(trunks.levels, RESULTS),
        "directions-trunks": directions.table_of_trunks,
        **{f"directions-{study}": functools.partial(directions.table, study)
           for study in directions.STUDIES}}

# ---------------------------------------------------------------------------------------- tables


@functools.cache
def table(name, form=None):
    """Return the Markdown table of ``NAME.csv`` in one of the forms at the top of this file."""
    if name == "paper":
        return paper_table()
    if name == "claims":
        return claims.table(form)
    if name in MADE:
        return MADE[name]()
    path = next(path for folder in RUNS if (path := folder / f"{name}.csv").exists())
    if name == "memory-map":                              # written by studies.memory_map
        return memory_map.table(path)
    with open(path, newline="", encoding="utf-8") as f:
        head, *rest = csv.reader(f)
    for study in (why, trunks):
        if name.startswith(f"{study.__name__.rpartition('.')[2]}-") and head != tables.CSV:
            return short(study.table(path))
    if head != tables.CSV:                                # of no grid: as it is
        return tables.markdown(over_seeds(head, rest) if form == "means" else [head, *rest])
    grid = read_rows(path)
    if name == "simple":
        return short(simple_table(grid))
    if form and {*form.split("+")} <= {*grid.results}:
        grid.results = {task: grid.results[task] for task in form.split("+")}
        form = None
    form = form or name
    if name not in WITHOUT_BASELINES:
        add_baselines(grid, with_curves=form == "table4")
    text = ALL[form].text(grid) if form in ALL else tables.table(grid)
    return short(renamed(text))


def over_seeds(head, rows):
    """The header of a CSV and a row for each arm, whose cells are means over the seeds.  A cell may
    hold several numbers; a single one has the least and the largest behind it."""
    at, arms = head.index("seed"), {}
    for row in rows:
        arms.setdefault(tuple(row[:at]), []).append(row[at + 1:])
    return [[*head[:at], *head[at + 1:]],
            *([*arm, *map(mean_cell, zip(*runs, strict=True))] for arm, runs in arms.items())]


def mean_cell(cells):
    """The mean of cells such as ``98.5`` or ``1.00 0.33``, with as many decimals."""
    decimals = len(cells[0].partition(" ")[0].partition(".")[2])
    values = np.array([cell.split() for cell in cells], float)
    ends = f" ({values.min():.{decimals}f}…{values.max():.{decimals}f})"
    return (" ".join(f"{mean:z.{decimals}f}" for mean in values.mean(axis=0))
            + ends * (values.shape[1] == 1))


def simple_table(grid):
    """Return the table of methods without a transformer: a row for each task."""
    linear, lines = "softmax regression", [["task", "linear classifier", "other methods"]]
    for task, methods in grid.results.items():
        cells = {method: tables.final(grid, task, method) for method in methods}
        lines.append([word(tasks.label_of(task)), cells.pop(linear, ""),
                      "; ".join(f"{method}: {cell}" for method, cell in cells.items())])
    return tables.markdown(lines)


def renamed(text):
    """A table whose first cells, or second ones where the first is a task, are in words."""
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
    """The cells of a Markdown table, a list for each line."""
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in text.splitlines()]


def short(text):
    """A table without what the legend says once: the seeds that most cells share, the words for a
    rate and its edge, the area, the levels of accuracy of a column."""
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


# The longer words come first.
SIGNS = {"agrees in part": "≈", "agrees": "=", "contradicts": "≠", "differs": "≠",
         "below": "…", "shorter run": "({} steps)", "not run": ""}


def paper_rows():
    """The rows of ``studies/paper.csv``."""
    with open(ROOT / "studies" / "paper.csv", newline="", encoding="utf-8") as f:
        return [*csv.DictReader(f)]


def paper_table():
    """Every result of the paper, ours beside it and a sign for what follows: a row for each model
    and a column for each task."""
    rows = paper_rows()
    columns = list(dict.fromkeys(row["task"] for row in rows))
    lines = {}
    for row in rows:
        ours = ""
        if row["arm"]:
            grid = claims.grid_of(row["file"])
            arms = grid.results[row["column"]]
            if row["place"] == "table 4":                 # of the two arms that it compares
                two = {arm: arms[arm] for arm in ("language", "random")}
                level = reproduce.levels(tables.Grid({row["column"]: two}, {}, {}, [],
                                                     grid.chances), row["column"])[-1]
                ours = reproduce.median_step(arms[row["arm"]], level)
            else:
                ours = tables.final(grid, row["column"], row["arm"]).partition(" ")[0].rstrip(",")
            sign = next(sign for words, sign in SIGNS.items() if row["verdict"].startswith(words))
            ours = f" / {ours} {sign.format(arms[row['arm']][0][-1]['step'])}"
        cells = lines.setdefault((row["place"], row["model"]), dict.fromkeys(columns, ""))
        cells[row["task"]] = row["paper"] + ours
    return tables.markdown([["in the paper", "model", *columns], *(
        [*key, *cells.values()] for key, cells in lines.items())])


def with_tables(text):
    """A page with each marked table as the runs have it."""
    lines, out = text.splitlines(), []
    while lines:
        out.append(lines.pop(0))
        if mark := MARK.fullmatch(out[-1]):
            while lines and not lines[0].strip():
                lines.pop(0)
            while lines and lines[0].startswith("|"):
                lines.pop(0)
            out += ["", *table(*mark.groups()).splitlines()]
            if lines and lines[0].strip():
                out.append("")
    return "\n".join(out) + "\n"


# ------------------------------------------------------------------------------------ the check


def generated(text):
    """The tables of a text that stand below a mark."""
    return "".join(match[3] for match in re.finditer(MARK.pattern + r"\n+((?:\|.*\n?)+)", text))


def phrases():
    """The claims, {id: pattern}, and the patterns of everything that covers a number of a text."""
    every, rest = claims.read()
    known = {name: claims.pattern(claims.sentence(claim)) for name, claim in every.items()}
    return known, [*known.values(), *map(claims.pattern, rest["settings"])]


def text_problems(name, text, covers):
    """Return a line for each table of a text that differs from the runs, and for each number that
    nothing covers."""
    new, tables_of_text = with_tables(text), generated(text)
    lines = [f"{name} says '{was}', the runs say '{now}'" for was, now in
             itertools.zip_longest(text.splitlines(), new.splitlines()) if was != now]
    for line in tables_of_text.splitlines():
        text = text.replace(line, "")
    return lines + [f"{name}: no claim and no table has {number}"
                    for number in claims.uncovered(text, covers, tables_of_text)]


def problems(paths=TEXTS):
    """Return a line for each place where a text differs from the runs, for each number that no
    claim and no table covers, and for each claim or CSV that no text has."""
    known, covers = phrases()
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    lines = [line for name, text in texts.items() for line in text_problems(name, text, covers)]
    every, rest = claims.read()
    lines += [f"no text has the claim {name}: {claims.sentence(every[name])}"
              for name, claim in known.items() if not any(map(claim.search, texts.values()))]
    used = {run.split(" / ")[0] for claim in [*every.values(), *rest["paper"]]
            for run in claim.get("runs", ())}
    used |= {name for text in texts.values() for name, _ in MARK.findall(text)}
    lines += [f"no text has a table or a claim of {path.name}"
              for folder in RUNS for path in sorted(folder.glob("*.csv")) if path.stem not in used]
    return lines


def write():
    """Write every table into the texts."""
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        if (new := with_tables(text)) != text:
            path.write_text(new, encoding="utf-8")


# -------------------------------------------------------------------------------------- pictures

PICTURE = "xor", "memory", "few", "typos"
TRUNKS = {"language": "language", "images": "images", "statistics": "statistics",
          "statistics:minigpt-language": "statistics",
          "random": "random", "random (spread 0.55)": "random (spread 0.55)",
          "random (0.02)": "random (0.02)"}


def label_of(title):
    """The label of a task, also of its long runs."""
    return tasks.label_of(task_of(title))


# {panel: {row: (file, task, arm)}} of pictures of final accuracies.
LONG = "mnist-long", "cifar10-long", "listops-long"
WHOLE = {label_of(title): {
    "pretrained on novels, frozen": (sweep, title, "language"),
    "pretrained on novels, trained whole": (sweep, title, "language, all trained"),
    "random, frozen": (sweep, title, "random"),
    "random, trained whole": (sweep, title, "random, all trained"),
    "LSTM, trained whole": (figure, title, "LSTM, all trained")}
    for title, sweep, figure in (
        ("bit-xor", "learning-rates", "figure1"), ("bit-memory", "learning-rates", "figure1"),
        *((title, title, title) for title in LONG))}
LINEAR = {title: {"pretrained on novels": (file, task, "language"),
                  "random": (file, task, "random"),
                  "two layers, 256 hidden": ("simple", task, "two layers, 256 hidden"),
                  "linear classifier": ("simple", task, "softmax regression")}
          for title, file, task in (
              *((label_of(title), title, title) for title in LONG),
              ("MNIST, 100 labels", "overfitting", "few-mnist-100"),
              ("digits, 200 labels", "few", "few-digits"))}


def draw_result(ax, y, ends, color, paper=None):
    """Draw an arm's final accuracies: a dot for the mean, a line from the least to the largest, an
    open diamond for the paper's number, if it has one."""
    ax.plot([min(ends), max(ends)], [y, y], "-", color=color, linewidth=3, alpha=0.5)
    ax.plot(np.mean(ends), y, "o", color=color, markersize=7, label="minifpt")
    if paper is not None:
        ax.plot(paper, y, "D", color="black", fillstyle="none", markersize=8, label="paper")


def draw_legend(fig, ax):
    """Write the legend of :func:`draw_result` below the axes."""
    handles = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    fig.legend(handles.values(), handles, loc="outside lower right", ncols=2, frameon=False)


def paper_runs():
    """The rows of ``paper.csv`` with a run of ours, apart from the steps of table 4."""
    return [row for row in paper_rows() if row["arm"] and row["place"] != "table 4"]


def paper_numbers():
    """The paper's accuracies in per cent, by our file, task and arm.  Where two tables of the paper
    have the arm, the first one counts."""
    return {(row["file"], row["column"], row["arm"]): float(row["paper"].partition(" ")[0])
            for row in reversed(paper_runs())}


def paper_panels():
    """The runs beside five of the paper's models, in the form of ``WHOLE``."""
    runs = {(row["task"], row["model"]): (row["file"], row["column"], row["arm"])
            for row in paper_runs()}
    return {task: {model.replace("language", "pretrained on novels"): runs[task, model]
                   for model in ("language, frozen", "random, frozen", "transformer, trained whole",
                                 "LSTM, frozen", "LSTM, trained whole") if (task, model) in runs}
            for task in dict.fromkeys(task for task, _ in runs)}


def dots(panels, path, paper=None):
    """Final accuracies, a panel a task; ``paper`` has the paper's by file, task and arm.  An arm
    that was not run is left out."""
    rows = 1 if len(panels) < 4 else 2
    columns = -(-len(panels) // rows)
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    fig, axes = plots.figure(columns, rows, 3.3, 0.9 + 0.32 * len(names))
    for ax in axes[len(panels):]:
        ax.remove()
    inks = plots.COLORS["language"], plots.COLORS["random"], *plots.OTHER_COLORS
    colors = dict(zip(names, inks, strict=False))
    for i, (ax, (title, panel)) in enumerate(zip(axes, panels.items(), strict=False)):
        for y, name in enumerate(names[::-1]):
            if name not in panel:
                continue
            file, task, arm = panel[name]
            ends = [100 * h[-1]["test_accuracy"]
                    for h in claims.grid_of(file).results[task].get(arm, ())]
            if ends:
                draw_result(ax, y, ends, colors[name], (paper or {}).get((file, task, arm)))
                ax.text(np.mean(ends), y + 0.2, f"{np.mean(ends):.1f}", ha="center", fontsize=8)
        chance = tasks.chance_of("mnist" if task.startswith("few") else task_of(task))
        if chance:                                        # of the next byte it is not known
            ax.axvline(100 * chance, color="0.5", linestyle=":", linewidth=1)
        ax.set(title=title, xlim=(min(100 * (chance or 0), 45) - 4, 104),
               ylim=(-0.6, len(names) - 0.3), xlabel="test accuracy (%)", yticks=range(len(names)),
               yticklabels=names[::-1] if i % columns == 0 else [])
    if paper:
        draw_legend(fig, axes[0])
    plots.save(fig, path)


def surprise(path):
    """Draw the README's picture: three frozen models on bit memory, the mean over five seeds."""
    runs = read_rows(RESULTS / "memory.csv").results["bit-memory"]
    fig, (ax,) = plots.figure(width=8, height=3.4)
    for arm, label, right in (("random", "random", 101.3), ("language", "has read novels", 95.5),
                              ("random (0.02)", "random, too small", 83.5)):
        steps, curves = plots.common(runs[arm], "test_accuracy")
        color = plots.color_of(arm)
        ax.plot(steps, 100 * curves.mean(axis=0), color=color, linewidth=2.5)
        ax.text(2000, right, label, color=color, fontsize=12, ha="right")
    ax.axhline(75, color="0.5", linestyle=":")
    ax.text(2000, 73.2, "a guess at the hidden bits", color="0.35", fontsize=10, ha="right")
    ax.set(title="Does it find the string? Three frozen models", xlabel="training steps",
           ylabel="bits right (%)", xlim=(0, 2010), ylim=(72, 104), yticks=range(75, 101, 5),
           xticks=range(0, 2001, 500))
    plots.save(fig, path)


def save_in_words(fig, path, save=plots.save):
    """Save a figure whose texts call the arms by their words."""
    for ax in fig.axes:
        labels = [text.get_text() for text in ax.get_yticklabels()]
        if [*map(word, labels)] != labels:                # set anew, or a drawing restores them
            ax.set_yticklabels(map(word, labels))
    for text in fig.findobj(Text):
        text.set_text(word(text.get_text()))
    save(fig, path)


def pictures():
    """Draw every picture of the results."""
    memory_map.picture(RESULTS / "memory-map.csv", PAGES / "memory-map.png")
    why.picture(RESULTS, PAGES / "why.png")
    trunks.picture(RESULTS / "trunks-pretrained.csv", PAGES / "trunks.png")
    trunks.window_picture(RESULTS / "trunks-window.csv", PAGES / "trunks-window.png")
    trunks.predictions_picture(RESULTS, PAGES / "trunks-predictions.png")
    directions.pictures(PAGES)
    surprise(PAGES / "surprise.png")
    dots(WHOLE, PAGES / "whole.png")
    dots(LINEAR, PAGES / "linear.png")
    dots(paper_panels(), PAGES / "paper.png", paper_numbers())
    with patch.object(plots, "save", save_in_words):
        pictures_of_grids()


def pictures_of_grids():
    """Draw the pictures whose labels are those of the CSVs."""
    panels = {}
    for name in PICTURE:
        (task, arms), = read_rows(RESULTS / f"{name}.csv").results.items()
        arms = {TRUNKS.get(arm, arm): runs for arm, runs in arms.items()}
        panels[task] = {arm: arms[arm] for arm in TRUNKS.values() if arm in arms}
    tables.picture(tables.Grid(panels, {}, {}, []), PAGES / "curves.png")
    tables.picture(read_rows(RESULTS / "statistics.csv"), PAGES / "statistics.png")
    sweep_picture(read_rows(RESULTS / "learning-rates.csv"), PAGES / "rates.png")


def sweep_picture(grid, path):
    """Draw validation accuracy against the learning rate.

    Each task has an axis, each trunk a line.  A cross at the lower edge marks a rate at which a run
    diverged."""
    fig, axes = plots.figure(len(grid.sweeps), width=3.3)
    for ax, (task, models) in zip(axes, grid.sweeps.items(), strict=True):
        colors, dashes = plots.colors_of(models), plots.dashes_of(models)
        for i, (model, by_rate) in enumerate(models.items()):
            bad = [rate for rate, histories in by_rate.items() if tables.diverged(histories)]
            rates = sorted({*by_rate} - {*bad})
            ends = [np.mean([100 * h[-1]["test_accuracy"] for h in by_rate[r]]) for r in rates]
            line, = ax.plot(rates, ends, marker=("osv^D*XPph" * 9)[i], label=model,
                            color=colors[model], linestyle=dashes[model])
            ax.plot(bad, [0.03 + 0.05 * i] * len(bad), "x", color=line.get_color(),
                    label=f"{model}: diverged" if bad else None,
                    transform=ax.get_xaxis_transform())
        plots.mark_level(ax, grid.chance(task), "chance")
        ax.set(title=tasks.label_of(task), xlabel="learning rate",
               ylabel="validation accuracy (%)", xscale="log")
    plots.legend(fig, axes)
    plots.save(fig, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--picture", action="store_true")
    args = parser.parse_args()
    if args.picture:
        pictures()
    if args.write:
        write()
    if args.check or not (args.picture or args.write):
        lines = problems()
        print("\n".join(lines) or "the texts say what the runs say")
        return int(bool(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
