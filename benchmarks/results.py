"""The tables of RESULTS.md, from the runs that are kept beside this file.

    python -m benchmarks.results            prints each table
    python -m benchmarks.results --check    fails where RESULTS.md says something else
    python -m benchmarks.results --write    puts the tables into RESULTS.md
    python -m benchmarks.results --picture  draws curves.png, statistics.png and
                                            memory-map.png from them

``minifpt compare`` writes every run into ``runs.csv``, ``minifpt reproduce`` into ``NAME.csv``;
copies of these are in ``benchmarks/results/``.  In RESULTS.md the line ``<!-- NAME.csv -->``
stands above each table that comes from one, ``<!-- NAME.csv differences -->`` above one of its
paired differences.  ``simple.csv`` has what methods without a transformer reach
(``benchmarks.simple``); its ``BASELINES`` are rows of each other table that has their tasks.
"""

import argparse
import itertools
import sys
from pathlib import Path

from minifpt import tasks
from minifpt.experiments import reproduce, tables

HERE = Path(__file__).resolve().parent
SIMPLE = "simple.csv"
BASELINES = ("softmax regression", "logistic regression", "letter pairs, forward filter",
             "contexts of up to 5 bytes")


def table(path):
    """The Markdown table of one file: that of ``minifpt reproduce`` by its name, a line for each
    task and method of ``simple.csv``, else as ``minifpt compare`` writes it."""
    found = tables.read_rows(path)
    if path.name == SIMPLE:
        return tables.markdown([["task", "method", "accuracy"], *(
            [tasks.label_of(task), name, tables.final(found, task, name)]
            for task, methods in found.results.items() for name in methods)])
    add_baselines(found, tables.read_rows(HERE / "results" / SIMPLE),
                  with_curves=path.stem == "table4")
    made = reproduce.TABLES
    return made[path.stem].text(found) if path.stem in made else tables.table(found)


def add_baselines(found, simple, with_curves=False):
    """Add the rows of ``BASELINES`` to a table; ``with_curves``: only what is trained step by
    step."""
    for task, name in itertools.product(found.results, BASELINES):
        histories = simple.results.get(task, {}).get(name)
        if histories and len(histories[0]) > with_curves:
            found.results[task][name] = histories
            found.rates[task][name] = simple.rates[task][name]
            if name in simple.sweeps.get(task, {}):
                found.sweeps.setdefault(task, {})[name] = simple.sweeps[task][name]


def marked_tables(text, folder=HERE / "results"):
    """{a mark of RESULTS.md: the Markdown table below it}: the table of every file, and the paired
    differences of each that ``text`` has a mark for."""
    made = {}
    for path in sorted(folder.glob("*.csv")):
        made[f"<!-- {path.name} -->"] = table(path)
        mark = f"<!-- {path.name} differences -->"
        if mark in text:
            made[mark] = tables.differences(tables.read_rows(path))
    return made


def problems(text, folder=HERE / "results"):
    """What is wrong in the text of RESULTS.md, a list of lines."""
    lines, found = text.splitlines(), []
    for mark, want in marked_tables(text, folder).items():
        if mark not in lines:
            found.append(f"RESULTS.md has no table marked {mark}")
            continue
        start, want = lines.index(mark) + 1, want.splitlines()
        while start < len(lines) and not lines[start]:
            start += 1
        end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
        for line, wanted in itertools.zip_longest(lines[start:end], want):
            if line != wanted:
                found.append(f"{mark}: RESULTS.md says '{line}', the runs say '{wanted}'")
    return found


def rewritten(text, folder=HERE / "results"):
    """The text of RESULTS.md with each marked table as the runs have it."""
    for mark, table_text in marked_tables(text, folder).items():
        before, found, after = text.partition(f"{mark}\n\n")
        if found:
            rest = after.partition("\n\n")[2]
            text = f"{before}{mark}\n\n{table_text}\n\n{rest}"
    return text


def picture(path, folder=HERE / "results"):
    """Test accuracy against steps on four tasks, each trunk at its own learning rate."""
    found = {}
    for name in PICTURE:
        (task, trunks), = tables.read_rows(folder / f"{name}.csv").results.items()
        trunks = {TRUNKS.get(trunk, trunk): runs for trunk, runs in trunks.items()}
        found[task] = {trunk: trunks[trunk] for trunk in TRUNKS.values() if trunk in trunks}
    tables.picture(found, path)


PICTURE = "xor", "memory", "few", "typos"
TRUNKS = {"language": "language", "images": "images", "statistics": "statistics",
          "statistics:minigpt-language": "statistics",
          "random (paper)": "random (paper)", "random (spread 0.55)": "random (spread 0.55)",
          "random": "random"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--picture", action="store_true")
    args = parser.parse_args()
    if args.picture:
        picture(HERE / "curves.png")
        ladder = tables.read_rows(HERE / "results" / "statistics.csv")
        tables.picture(ladder.results, HERE / "statistics.png")
        large = tables.read_rows(HERE / "results" / "memory-paper.csv")
        reproduce.heat_map(large.results, HERE / "memory-map.png")
        return 0
    results = HERE.parent / "RESULTS.md"
    if args.write:
        results.write_text(rewritten(results.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if not args.check:
        for path in sorted((HERE / "results").glob("*.csv")):
            print(f"<!-- {path.name} -->\n" + table(path) + "\n")
        return 0
    found = problems(results.read_text(encoding="utf-8"))
    print("\n".join(found) or "RESULTS.md says what the runs say")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
