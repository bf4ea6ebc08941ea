"""The numbers that come with a lesson are those of benchmarks/results."""

import ast
import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grids import read_rows

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "results").exists(),
                                reason="the results are not in this checkout")


def constants(lesson):
    """{NAME: value} of the constants that a lesson's source assigns."""
    path = next((ROOT / "lessons" / "src").glob(f"{lesson}_*.py"))
    values = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:                            # computed, not a constant
                continue
    return values


def accuracy(history):
    return round(100 * history[-1]["test_accuracy"], 2)


def test_the_sweep_of_lesson_12_is_the_measured_one():
    found, given = read_rows(ROOT / "benchmarks" / "results" / "memory.csv"), constants("12")
    sweeps, results = found.sweeps["bit-memory"], found.results["bit-memory"]
    assert set(given["MEMORY_SWEEP"]) == set(given["MEMORY_TESTS"]) <= set(results)
    for trunk, values in given["MEMORY_SWEEP"].items():
        want = [np.mean([accuracy(h) for h in sweeps[trunk][lr]]) for lr in given["MEMORY_RATES"]]
        np.testing.assert_allclose(values, want, atol=0.006)
        np.testing.assert_allclose(given["MEMORY_TESTS"][trunk], [
            accuracy(history) for history in results[trunk]], atol=0.006)


def test_the_products_of_lesson_8_are_the_measured_ones():
    path = ROOT / "benchmarks" / "results" / "inside-xor.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    for trunk, values in constants("08")["WITHOUT_PRODUCT"].items():
        want = [tuple(float(row[part]) for part in ("right", "attn", "mlp"))
                for row in rows if row["trunk"] == trunk.replace("matched random", "statistics")]
        np.testing.assert_allclose(values, want, atol=0.51)


def test_the_runs_of_lesson_13_are_the_measured_ones():
    results = read_rows(ROOT / "benchmarks" / "results" / "few.csv").results["few-digits"]
    for trunk, values in constants("13")["FEW_TESTS"].items():
        np.testing.assert_allclose(values, [accuracy(h) for h in results[trunk]], atol=0.051)


def test_the_ladder_of_lesson_14_is_the_measured_one():
    given = constants("14")
    for file, task in (("xor", "bit XOR"), ("memory", "bit memory"), ("few", "few labels"),
                       ("typos", "typos")):
        measured, = read_rows(ROOT / "benchmarks" / "results" / f"{file}.csv").results.values()
        for trunk, names in (
                ("random, too small", ["random"]), ("random, rescaled", ["random (spread 0.55)"]),
                ("matched random", ["statistics", "statistics:minigpt-language"]),
                ("pretrained on novels", ["language"])):
            runs = next(measured[name] for name in names if name in measured)
            np.testing.assert_allclose(given["LADDER"][task][trunk],
                                       [accuracy(h) for h in runs], atol=0.051)
    measured, = read_rows(ROOT / "benchmarks" / "results" / "memory-paper.csv").results.values()
    for trunk, values in given["PAPER_SIZE"].items():
        np.testing.assert_allclose(values, [accuracy(h) for h in measured[trunk]], atol=0.006)


def test_the_steps_of_lesson_22_are_the_measured_ones():
    def steps(*studies, start=""):
        """{angle: steps of each seed}, of the runs with the defaults of ``benchmarks.why``."""
        runs = {}
        for study in studies:
            path = ROOT / "benchmarks" / "results" / f"why-{study}.csv"
            for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
                if row["reached"] and row["start"] == start and row["patch"] == "20" and (
                        row["trunk"] == "random:1x1x128@1.41" and float(row["lr"]) == 1e-2):
                    runs.setdefault(row["angle"], []).append(int(row["reached"]))
        return {angle: tuple(values) for angle, values in runs.items()}
    lesson = constants("22")
    for name, measured in (("STEPS", steps("angle", "slope", "budget")),
                           ("ALIGNED", steps("aligned", start="aligned"))):
        for angle, values in lesson[name].items():
            assert values == measured[str(angle)], (name, angle)
