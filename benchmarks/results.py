"""The tables of RESULTS.md, from the runs that are kept beside this file.

    python -m benchmarks.results            prints each table
    python -m benchmarks.results --check    fails where RESULTS.md says something else

``minifpt compare`` writes every run's end into ``runs.csv``; copies of these are in
``benchmarks/results/``.  In RESULTS.md the line ``<!-- NAME.csv -->`` stands above each table
that comes from one.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

from minifpt.lab.compare import LABELS

HERE = Path(__file__).resolve().parent


def table(path):
    """The Markdown table of one file, as a list of lines."""
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    trunks = list(dict.fromkeys(row["trunk"] for row in rows if row["choice"] == "0"))
    lines = ["| trunk | " + " | ".join(LABELS.get(t, t) for t in tasks) + " |",
             "|---" * (len(tasks) + 1) + "|"]
    for trunk in trunks:
        cells = []
        for task in tasks:
            mine = [row for row in rows if (row["task"], row["trunk"]) == (task, trunk)]
            ends = [100 * float(row["test_accuracy"]) for row in mine if row["choice"] == "0"]
            tried = sorted({float(row["lr"]) for row in mine if row["choice"] == "1"})
            cell = f"{np.mean(ends):.1f} ({min(ends):.1f} to {max(ends):.1f}), {len(ends)} seeds"
            if tried:
                rate = float(next(row["lr"] for row in mine if row["choice"] == "0"))
                cell += f", lr {rate:g}{' (edge)' * (rate in (tried[0], tried[-1]))}"
            cells.append(cell)
        lines.append(f"| {trunk} | " + " | ".join(cells) + " |")
    return lines


def problems(text, folder=HERE / "results"):
    """What is wrong in the text of RESULTS.md, a list of lines."""
    lines, found = text.splitlines(), []
    for path in sorted(folder.glob("*.csv")):
        mark = f"<!-- {path.name} -->"
        if mark not in lines:
            found.append(f"{path.name}: RESULTS.md has no table marked {mark}")
            continue
        start = lines.index(mark) + 1
        want = table(path)
        while start < len(lines) and not lines[start]:
            start += 1
        for line, wanted in zip(lines[start:start + len(want)], want, strict=False):
            if line != wanted:
                found.append(f"{path.name}: RESULTS.md says '{line}', the runs say '{wanted}'")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        for path in sorted((HERE / "results").glob("*.csv")):
            print(f"<!-- {path.name} -->\n" + "\n".join(table(path)) + "\n")
        return 0
    found = problems((HERE.parent / "RESULTS.md").read_text(encoding="utf-8"))
    print("\n".join(found) or "RESULTS.md says what the runs say")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
