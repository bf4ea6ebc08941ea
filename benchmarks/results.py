"""Tables, numbers and pictures of the results, from the runs that are kept beside this file.

    python -m benchmarks.results            print each table
    python -m benchmarks.results --check    fail where a table or a number differs from the runs
    python -m benchmarks.results --write    write tables and numbers into the texts
    python -m benchmarks.results --picture  draw the pictures

``minifpt compare`` writes every run into ``runs.csv``, ``minifpt reproduce`` and
``benchmarks.tables`` into ``NAME.csv``; copies of these are in ``benchmarks/results/``; a CSV with
columns of its own is shown as it is.
``simple.csv`` holds methods without a transformer (``benchmarks.simple``).  To add a table, copy
its CSV there, put one of these lines into a page of ``docs/results/``, and run ``--write``:

    <!-- NAME.csv -->               the table of that file
    <!-- NAME.csv: differences -->  the paired differences from its first arm
    <!-- dose.csv: controls -->     the paired differences of ``dose`` or ``sources``
    <!-- NAME.csv: TABLE -->        the same runs in the form of another of these tables
    <!-- paper.csv -->              every result of the paper beside ours (``benchmarks/paper.csv``)

In README.md and RESULTS.md each number with one decimal, before a per cent sign, or with a comma
between its thousands is checked.  Below its paragraph stands a comment with one source for each
number, in order:

    <!-- runs: memory / bit-memory / language; memory / bit-memory / statistics - language -->

A source is a file, a task and an arm, or two arms whose means are subtracted.  A fourth part
chooses another figure: ``least``, ``largest``, ``median``, ``training``, ``steps`` or ``paper``.  A
source in ``memory-settings.csv`` is a trunk with its rate, dropout and warm-up; its figure is the
steps to 95 %.  A number that no run gives, such as a length in the paper, has the source ``none``.
"""

import argparse
import csv
import itertools
import re
import sys
from pathlib import Path

import numpy as np

from benchmarks import dose, memory_map, why
from benchmarks.tables import STUDIES
from minifpt import tasks
from minifpt.experiments import reproduce, tables
from minifpt.reports import plots

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TABLES = reproduce.TABLES | STUDIES
RUNS = HERE / "results"
PAGES = ROOT / "docs" / "results"
TEXTS = ROOT / "README.md", ROOT / "RESULTS.md"           # whose numbers are checked
BASELINES = ("softmax regression", "logistic regression", "two layers, 256 hidden",
             "letter pairs, forward filter", "contexts of up to 5 bytes")
MARK = re.compile(r"<!-- ([\w-]+)\.csv(?:: ([\w-]+))? -->")
NUMBER = re.compile(r"(?<![\w.,])(\d+\.\d(?!\.?\w)|\d{1,3}(,\d{3})+|[\d.]+(?= ?%| per cent\b))")
# Code, tables, pictures and the targets of links, in which no number is checked.
HIDDEN = re.compile(r"^```.*?^```|^    .*?$|^\|.*?$|`[^`]*`|!\[[^]]*\]|\]\([^)]*\)", re.M | re.S)

# ---------------------------------------------------------------------------------------- tables


def table(name, form=None):
    """The Markdown table of ``NAME.csv``: a line for each task and method of ``simple.csv``, that
    of ``minifpt reproduce`` by its name, else as ``minifpt compare`` writes it; a file with other
    columns as it is."""
    if name == "paper":
        return paper_table()
    path = RUNS / f"{name}.csv"
    if name == "memory-map":                              # written by benchmarks.memory_map
        return memory_map.table(path)
    if name == "memory-settings":
        return memory_map.settings_table(path)
    if name.startswith("why-"):
        return why.table(path)
    if name.endswith("-losses"):
        groups = itertools.groupby(losses(name).items(), lambda item: item[0][:2])
        return tables.markdown([["source", "steps", "nats"], *(
            [source, str(steps), tables.spread([nats for _, nats in group], "{:.2f}")]
            for (source, steps), group in groups)])
    with open(path, newline="", encoding="utf-8") as f:
        head, *rest = csv.reader(f)
    if head != tables.CSV:                                # of no grid: as it is
        return tables.markdown([head, *rest])
    grid = tables.read_rows(path)
    if form == "differences":
        return tables.differences(grid)
    if form == "controls":
        return dose.differences(dose.EXPERIMENTS[name], grid)
    if name == "simple":
        return short(tables.markdown([["task", "method", "accuracy"], *(
            [tasks.label_of(task), method, tables.final(grid, task, method)]
            for task, methods in grid.results.items() for method in methods)]))
    form, forms = form or name, TABLES
    add_baselines(grid, with_curves=form == "table4")
    return short(forms[form].text(grid) if form in forms else tables.table(grid))


def losses(name):
    """The losses of the pretraining: {(source, steps, seed): nats}."""
    with open(RUNS / f"{name}.csv", newline="", encoding="utf-8") as f:
        return {(source, int(steps), int(seed)): float(nats)
                for source, steps, seed, nats in [*csv.reader(f)][1:]}


def add_baselines(grid, with_curves=False):
    """Add the rows of ``BASELINES`` to a table; ``with_curves``: only what is trained step by
    step."""
    simple = tables.read_rows(RUNS / "simple.csv")
    for task, name in itertools.product(grid.results, BASELINES):
        histories = simple.results.get(task, {}).get(name)
        if histories and len(histories[0]) > with_curves:
            grid.results[task][name] = histories
            grid.rates[task][name] = simple.rates[task][name]
            if name in simple.sweeps.get(task, {}):
                grid.sweeps.setdefault(task, {})[name] = simple.sweeps[task][name]


def short(text):
    """Take out of a table's cells what the legend says once: five seeds, the words for an edge;
    the levels of accuracy of a column go into its head."""
    text = re.sub(r", 5 seeds", "", text)
    text = re.sub(r", lr ([\w.-]+)( \(edge\))?", lambda m: f"; lr {m[1]}{'†' * bool(m[2])}", text)
    rows = [line.split(" | ") for line in text.splitlines()]
    for column in range(1, len(rows[0])):
        levels = next((m for row in rows[2:] if column < len(row)
                       for m in [re.search(r" to ([\d. /]+ %);", row[column])] if m), None)
        if levels:
            head, end = re.fullmatch(r"(.*?)( \|)?", rows[0][column]).groups()
            rows[0][column] = f"{head}, steps to {levels[1]}{end or ''}"
            for row in rows[2:]:
                row[column] = row[column].replace(levels[0], ";")
    return "\n".join(" | ".join(row) for row in rows)


def paper_table():
    """Every result of the paper, ours beside it and what follows."""
    lines = [["in the paper", "task", "model", "paper", "ours", "verdict"]]
    with open(HERE / "paper.csv", newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            ours = ""
            if row["arm"]:
                grid = tables.read_rows(RUNS / f"{row['file']}.csv")
                cell = reproduce.steps_to if row["place"] == "table 4" else tables.final
                ours = short(cell(grid, row["column"], row["arm"])).partition("; area")[0]
            lines.append([row["place"], row["task"], row["model"], row["paper"], ours,
                          row["verdict"]])
    return tables.markdown(lines)


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


# --------------------------------------------------------------------------- numbers in sentences


def value(source):
    """The number that a source names, see the top of this file."""
    file, task, arms, *figure = (part.strip() for part in source.split(" / "))
    figure, = figure or ["mean"]
    if figure == "paper":
        return float(TABLES[file].paper[arms, task])
    reduce = {"least": np.min, "largest": np.max, "median": np.median}.get(figure, np.mean)
    if file == "memory-settings":                         # task: a trunk, arms: its settings
        return reduce([int(row["steps_to_95"]) for row in memory_map.read_rows(RUNS / f"{file}.csv")
                       if row["trunk"] == task and arms == ", ".join(
                           row[name] for name in ("rate", "dropout", "warmup"))])
    grid = tables.read_rows(RUNS / f"{file}.csv")
    if figure == "steps":
        return max(h[-1]["step"] for h in grid.results[task][arms])
    column = "train_accuracy" if figure == "training" else "test_accuracy"
    values = [reduce([100 * h[-1][column] for h in grid.results[task][arm]])
              for arm in arms.split(" - ")]
    return values[0] - sum(values[1:])


def with_numbers(text, complain=None):
    """A text with each checked number as the runs have it; ``complain`` is called with a line for
    each paragraph whose numbers and sources are not as many."""
    plain = HIDDEN.sub(lambda m: re.sub(r"[^\n]", "~", m[0]), text)
    paragraphs = [*re.finditer(r"\S.*?(?=\n\s*\n|\Z)", plain, re.S)]
    for paragraph, after in [*zip(paragraphs, [*paragraphs[1:], None], strict=True)][::-1]:
        if paragraph[0].startswith("<!-- runs:"):
            continue
        numbers = [*NUMBER.finditer(plain, *paragraph.span())]
        comment = after and re.fullmatch(r"<!-- runs:(.*)-->", after[0], re.S)
        sources = " ".join(comment[1].split()).split("; ") if comment else []
        if len(numbers) != len(sources):
            if complain:
                complain(f"{len(numbers)} numbers and {len(sources)} sources: "
                         f"{' '.join(paragraph[0].split())[:90]}")
            continue
        for number, source in [*zip(numbers, sources, strict=True)][::-1]:
            if source != "none":
                comma, decimals = "," * ("," in number[0]), len(number[0].partition(".")[2])
                text = (text[:number.start()] + f"{value(source):{comma}.{decimals}f}"
                        + text[number.end():])
    return text


def problems(pages=PAGES, texts=TEXTS):
    """Return a line for each place where a page or a text differs from the runs."""
    lines, marked = [], set()
    for path in [*sorted(pages.glob("*.md")), *texts]:
        text = path.read_text(encoding="utf-8")
        if path in texts:
            new = with_numbers(text, lambda line, path=path: lines.append(f"{path.name}: {line}"))
        else:
            marked |= {name for name, _ in MARK.findall(text)}
            new = with_tables(text)
        for was, now in itertools.zip_longest(text.splitlines(), new.splitlines()):
            if was != now:
                lines.append(f"{path.name} says '{was}', the runs say '{now}'")
    return lines + [f"no page has a table marked <!-- {path.name} -->"
                    for path in sorted(RUNS.glob("*.csv")) if path.stem not in marked]


# -------------------------------------------------------------------------------------- pictures

PICTURE = "xor", "memory", "few", "typos"
TRUNKS = {"language": "language", "images": "images", "statistics": "statistics",
          "statistics:minigpt-language": "statistics",
          "random (paper)": "random (paper)", "random (spread 0.55)": "random (spread 0.55)",
          "random": "random"}
# {panel: {row: (file, task, arm)}} of pictures of final accuracies.
WHOLE = {tasks.label_of(task): {
    "language, frozen": ("learning-rates", task, "language"),
    "language, trained whole": ("learning-rates", task, "language, all trained"),
    "random, frozen": ("learning-rates", task, "random (paper)"),
    "random, trained whole": ("learning-rates", task, "random (paper), all trained"),
    "LSTM, trained whole": ("figure1", task, "LSTM, all trained")}
    for task in ("bit-xor", "bit-memory", "mnist")}
LINEAR = {title: {"best frozen trunk": best, "frozen language": language,
                  "logistic regression": ("simple", task, "logistic regression"),
                  "softmax regression": ("simple", task, "softmax regression")}
          for title, task, language, best in (
              ("MNIST", "mnist", ("mnist", "mnist", "language"),
               ("statistics", "mnist", "mimetic")),
              ("CIFAR-10", "cifar10", ("table1", "cifar10", "language"),
               ("table1", "cifar10", "language")),
              ("digits, 200 labels", "few-digits", ("few", "few-digits", "language"),
               ("few", "few-digits", "images")),
              ("MNIST, 100 labels", "few-mnist-100", ("overfitting", "few-mnist-100", "language"),
               ("overfitting", "few-mnist-100", "random (paper)")))}
PAPER = {tasks.label_of(task): {
    "language, frozen": ("table2", task, "language"),
    "random, frozen": ("table2", task, "random (paper)"),
    "transformer, trained whole": ("figure1", task, "random (paper), all trained"),
    "LSTM, frozen": ("table3", task, "LSTM (3x128)"),
    "LSTM, trained whole": ("figure1", task, "LSTM, all trained")}
    for task in ("bit-xor", "bit-memory", "mnist")}


def dots(panels, path, with_paper=False):
    """Final accuracies, a panel a task: a dot for the mean, a line from the least to the largest,
    an open diamond for the paper's number."""
    rows = 1 if len(panels) < 4 else 2
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    fig, axes = plots.figure(-(-len(panels) // rows), rows, 3.3, 0.9 + 0.32 * len(names))
    colors = dict(zip(names, (plots.COLORS["language"], plots.PAPER, *plots.OTHERS), strict=False))
    for i, (ax, (title, panel)) in enumerate(zip(axes, panels.items(), strict=False)):
        for y, name in enumerate(names[::-1]):
            if name not in panel:
                continue
            file, task, arm = panel[name]
            ends = [100 * h[-1]["test_accuracy"]
                    for h in tables.read_rows(RUNS / f"{file}.csv").results[task][arm]]
            ax.plot([min(ends), max(ends)], [y, y], "-", color=colors[name], linewidth=3, alpha=0.5)
            ax.plot(np.mean(ends), y, "o", color=colors[name], markersize=7, label="minifpt")
            ax.text(np.mean(ends), y + 0.2, f"{np.mean(ends):.1f}", ha="center", fontsize=8)
            paper = TABLES[file].paper.get((arm, task)) if with_paper else None
            if paper is not None:
                ax.plot(float(paper), y, "D", color="black", fillstyle="none", markersize=8,
                        label="paper")
        chance = tasks.chance_of("mnist" if task.startswith("few") else task)
        if chance:                                        # of the next byte it is not known
            ax.axvline(100 * chance, color="0.5", linestyle=":", linewidth=1)
        ax.set(title=title, xlim=(min(100 * (chance or 0), 45) - 4, 104),
               ylim=(-0.6, len(names) - 0.3), xlabel="test accuracy (%)", yticks=range(len(names)),
               yticklabels=names[::-1] if i % (len(panels) // rows) == 0 else [])
    if with_paper:
        handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
        fig.legend(handles.values(), handles, loc="outside lower right", ncols=2, frameon=False)
    plots.save(fig, path, tables.KIND)


def pictures():
    """Draw every picture of the results."""
    panels = {}
    for name in PICTURE:
        (task, trunks), = tables.read_rows(RUNS / f"{name}.csv").results.items()
        trunks = {TRUNKS.get(trunk, trunk): runs for trunk, runs in trunks.items()}
        panels[task] = {trunk: trunks[trunk] for trunk in TRUNKS.values() if trunk in trunks}
    tables.picture(panels, HERE / "curves.png")
    tables.picture(tables.read_rows(RUNS / "statistics.csv").results, HERE / "statistics.png")
    memory_map.picture(RUNS / "memory-map.csv", HERE / "memory-map.png")
    tables.sweep_picture(tables.read_rows(RUNS / "learning-rates.csv").sweeps, PAGES / "rates.png")
    for name, experiment in dose.EXPERIMENTS.items():
        dose.picture(experiment, tables.read_rows(RUNS / f"{name}.csv"), losses(f"{name}-losses"),
                     PAGES / f"{name}.png")
    why.picture(RUNS, PAGES / "why.png")
    tables.picture(tables.read_rows(RUNS / "mnist-long.csv").results, PAGES / "images.png")
    dots(WHOLE, PAGES / "whole.png")
    dots(LINEAR, PAGES / "linear.png")
    dots(PAPER, PAGES / "paper.png", with_paper=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--picture", action="store_true")
    args = parser.parse_args()
    if args.picture:
        pictures()
    if args.write:
        for path, new in [*((path, with_tables) for path in sorted(PAGES.glob("*.md"))),
                          *((path, with_numbers) for path in TEXTS)]:
            text = path.read_text(encoding="utf-8")
            path.write_text(new(text), encoding="utf-8")
    if args.check:
        lines = problems()
        print("\n".join(lines) or "the texts say what the runs say")
        return int(bool(lines))
    if not (args.picture or args.write):
        for path in sorted(RUNS.glob("*.csv")):
            print(f"<!-- {path.name} -->\n\n{table(path.stem)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
