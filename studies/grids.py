"""Read the CSV of a grid of runs, as ``minifpt compare`` and ``minifpt reproduce`` write it."""

import csv

from minifpt import tasks
from minifpt.experiments.tables import CSV, Grid
from minifpt.files.runs import History


def task_of(title):
    """Return the name of the task of a column, also of its long runs."""
    return title.removesuffix("-long").removesuffix("-512")


def read_rows(path):
    """Return the :class:`Grid` of a file that ``tables.rows`` wrote.  Raises ``ValueError`` where
    two arms have other seeds, apart from some that are missing at the end."""
    grid, seeds = Grid({}, {}, {}, []), {}
    with open(path, newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            task, trunk, rate = row["task"], row["trunk"], float(row["lr"])
            points = [point.split(":") for point in row["curve"].split()]
            history = History({"step": int(step), "test_accuracy": float(accuracy)}
                              for step, accuracy in points)
            history[-1] |= {name: float(row[name]) for name in CSV[6:9]}
            if row["choice"] == "1":
                sweep = grid.sweeps.setdefault(task, {}).setdefault(trunk, {})
                sweep.setdefault(rate, []).append(history)
            else:
                grid.results.setdefault(task, {}).setdefault(trunk, []).append(history)
                grid.rates.setdefault(task, {})[trunk] = rate
                seeds.setdefault((task, trunk), []).append(int(row["seed"]))
    grid.chances = {title: tasks.chance_of(task_of(title)) for title in grid.results}
    grid.seeds = max(seeds.values(), key=len, default=[])
    for (task, trunk), arm_seeds in seeds.items():
        if arm_seeds != grid.seeds[:len(arm_seeds)]:
            raise ValueError(f"{path}: {trunk} on {task} has the seeds {arm_seeds}, another arm "
                             f"{grid.seeds}: they cannot be paired")
    return grid
