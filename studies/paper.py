"""Every result of the paper beside ours: ``paper.csv`` has its number, our run and a verdict."""

from minifpt.experiments import reproduce, tables
from studies import numbers
from studies.runs import ROOT, read_rows

PAPER = ROOT / "studies" / "paper.csv"
# By the first words of a verdict; the longer ones come first.
SIGNS = {"agrees in part": "≈", "agrees": "=", "contradicts": "≠", "differs": "≠",
         "below": "…", "shorter run": "({} steps)", "not run": ""}


def table():
    """Return the Markdown table of every result of the paper, ours beside it and a sign for the
    verdict: a row for each model and a column for each task."""
    rows = read_rows(PAPER)
    columns = list(dict.fromkeys(row["task"] for row in rows))
    lines = {}
    for row in rows:
        ours = ""
        if row["arm"]:
            grid = numbers.grid_of(row["file"])
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
