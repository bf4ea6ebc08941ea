"""Grids of long runs: each arm takes the learning rate that was best in shorter runs."""

from dataclasses import dataclass, replace

from minifpt.experiments import compare, reproduce, tables
from minifpt.experiments.compare import Arm

LADDER = [float(f"{digit}e{power}") for power in range(-6, 1) for digit in (1, 3)]


def grid(out, columns, arms, seeds, rates, share, **options):
    """Return the ``tables.Grid`` of some arms on some tasks.

    The runs of an arm's sweep have a ``share`` of the steps, and the sweep grows until its best
    rate is not at its edge.  The runs are in OUT, those of the sweeps in OUT/short.  An arm with
    the attribute ``seeds`` has so many of the ``seeds``."""
    results = tables.Grid({}, {}, {}, [*seeds])
    for column in columns:
        steps = max(1, int(share * column.settings["steps"]))
        short = replace(column, settings=column.settings | {"steps": steps})
        for arm in arms:
            title, label, rate, sweep = swept(out / "short", short, arm, rates, **options)
            whole = replace(column, settings=column.settings | {"lr": rate})
            runs = compare.grid(out, [whole], [replace(arm, rates=())],
                                results.seeds[:getattr(arm, "seeds", None)], **options)
            results.add(title, label, runs.results[title][label], rate, sweep)
            results.chances |= runs.chances
    return results


def swept(out, column, arm, rates, **options):
    """Return the title of a task, the label of an arm, its best learning rate and its sweep."""
    rates = arm.sweep(rates)
    while True:
        part = compare.grid(out, [column], [arm], [0], rates=rates, **options)
        (title, models), = part.sweeps.items()
        (label, sweep), = models.items()
        best = part.rates[title][label]
        beyond = [rate for rate in LADDER if rate > best][:1] if best == max(sweep) else (
            [rate for rate in LADDER if rate < best][-1:] if best == min(sweep) else [])
        if not beyond:
            return title, label, best, sweep
        rates = [*rates, *beyond]


@dataclass(frozen=True)
class LongArm(Arm):
    """An arm with a number of seeds of its own."""

    seeds: int = 3


def long_arm(arm, seeds=3):
    """Return an arm of long runs, with its number of seeds and its further learning rates."""
    rates = (1e-2, 3e-2) if arm.freeze == "fpt" else (1e-4, 3e-4)
    return LongArm(**vars(replace(arm, rates=rates)), seeds=seeds)


@dataclass(frozen=True)
class LongTable(reproduce.Table):
    """A table of long runs, whose arms are of :func:`long_arm`."""

    rates: tuple = (1e-3, 3e-3)
    share: float = 0.25


def grid_of(table, out, seeds, **options):
    """Do as ``compare.grid_of``, also for a :class:`LongTable`."""
    if not isinstance(table, LongTable):
        return compare.grid_of(table, out, seeds, **options)
    return grid(out / "long", table.columns, table.arms, range(seeds), table.rates, table.share,
                **options)
