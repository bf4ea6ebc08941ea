"""Each command of a guide runs, in the guide's order, and does what the guide says of it."""

import csv
import re
import subprocess
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_data import write_cifar10, write_homology, write_mnist
from test_docs import ROOT, code_blocks, commands, write_files

import minifpt
from minifpt import cli
from minifpt.experiments import reproduce

GUIDES = [ROOT / "README.md", *sorted(ROOT.glob("docs/guide/*.md"))]
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="there is no checkout")
# Commands that need what a test does not have, and what that is.
ELSEWHERE = {"--dask": "a cluster", "convert gpt2": "a download", "--model gpt2": "a download",
             "random:gpt2": "a gigabyte", "pythia": "a download"}
DEFINED = """
def linear(x, w, b, need=(True, True, True)):
    return x @ w + b, LinearCache(x, w, need)
"""


def run_of(argv, folder):
    """Return a guide's command with what its placeholders stand for, and with fewer steps."""
    data = {"train": "data", "pretrain": "texts", "perplexity": "texts/a.txt"}.get(argv[0], "")
    argv = [data if word in ("FILE", "FOLDER") else word for word in argv if word != "--open"]
    for name, value in {"--steps": "2", "--seeds": "1"}.items():
        if name in argv:
            argv[argv.index(name) + 1] = value
    if argv[0] in ("train", "pretrain", "compare") and "--steps" not in argv:
        argv += ["--steps", "2"]
    if argv[0] == "compare" and "--seeds" not in argv:
        argv += ["--seeds", "1"]
    if argv[0] in ("train", "compare"):
        argv += ["--batch-size", "2"] * ("--batch-size" not in argv)
    argv += ["--no-open"] * (argv[0] == "lessons")
    argv += ["--test-examples", "2"] * (argv[0] == "train")
    argv += ["--shape", "1x1x8"] * (argv[0] == "pretrain")
    return argv + (["--out", f"runs/{len([*Path(folder).rglob('config.json')])}"]
                   if argv[0] == "compare" else [])


@pytest.fixture
def folder(cwd, monkeypatch):
    """A reader's folder, with data; tables are short."""
    monkeypatch.setenv("MINIFPT_DATA", str(cwd / "data"))
    for write in (write_mnist, write_cifar10, write_homology):
        write(cwd / "data")
    (cwd / "texts").mkdir()
    (cwd / "texts" / "a.txt").write_text("It was a dark night, and she said so. " * 200)
    for path in (ROOT / "docs" / "guide").glob("*.md"):
        write_files(path, cwd)
    table = reproduce.TABLES["table2"]
    monkeypatch.setitem(reproduce.TABLES, "table2", replace(
        table, columns=(reproduce.Column("bit-xor", {}, {"steps": 2, "batch_size": 2}),),
        arms=table.arms[:1], rates=(1e-3,)))
    monkeypatch.setattr(webbrowser, "open", lambda address: True)
    return cwd


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in GUIDES if commands(path)],
                         ids=lambda path: path.name)
def test_the_commands_of_a_guide_run_in_its_order(path, folder, capsys):
    count = 0
    for argv in commands(path):
        line = " ".join(argv)
        if any(words in line for words in ELSEWHERE):
            continue
        if argv[0] == "new":                              # beside that of the guide on tasks
            Path("mine.py").unlink(missing_ok=True)
        if "--functional" in argv:
            text = Path("mine.py").read_text()
            Path("mine.py").write_text(text if DEFINED in text else text + DEFINED)
        assert cli.main(run_of(argv, folder)) == 0, (line, capsys.readouterr().err)
        count += 1
    assert count or path.name == "gpt2.md"


def sentences(path):
    """Return a text without line breaks."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@pytest.mark.slow
def test_cutting_a_line_of_attention_costs_the_answer_that_needs_it():
    assert "the fourth answer falls from 100 to about 50 %, and no other one" in sentences(
        "docs/guide/change.md")
    first, cut = code_blocks(ROOT / "docs" / "guide" / "change.md")[:2]
    names = {}
    exec(first.replace("steps=50", "steps=2000"), names)
    before = (names["answers"].reshape(*names["y"].shape, 2).argmax(-1) == names["y"]).mean(axis=0)
    exec(cut, names)
    after = names["right"].mean(axis=0)
    np.testing.assert_array_equal(before, 1)
    assert abs(after[3] - 0.5) < 0.15 and (np.delete(after, 3) > 0.95).all(), after


@pytest.mark.slow
def test_heads_at_an_angle_end_where_the_guide_says(tmp_path):
    text = sentences("docs/guide/change.md")
    numbers = [float(x) for x in re.search(
        r"With `--seed 101` and `--seed 202` the first three end at ([^.]*\.\d[^%]*%(?:, [^%]*%)*)",
        text)[1].replace(" %", "").replace(" and", ",").split(", ")]
    lines = [argv for argv in commands(ROOT / "docs" / "guide" / "change.md")
             if argv[0] == "train" and any("qk=" in word for word in argv)]
    assert len(lines) == 3 and len(numbers) == 6
    measured = []
    for i, argv in enumerate(lines):
        for seed in "101", "202":
            out = tmp_path / f"{i}-{seed}"
            assert cli.main([*argv, "--seed", seed, "--out", str(out)]) == 0
            measured.append(100 * minifpt.History.load(out / "metrics.csv")[-1]["test_accuracy"])
    np.testing.assert_allclose(measured, numbers, atol=1)         # of another processor


@pytest.mark.slow
def test_the_comparison_of_adapters_shows_that_one_helps(cwd):
    argv, = [argv for argv in commands(ROOT / "docs" / "guide" / "change.md") if "none" in argv]
    assert "All five runs with the low-rank adapter have every answer right" in sentences(
        "docs/guide/change.md")
    assert cli.main(argv) == 0
    with open("runs/compare/runs.csv", newline="") as f:
        rows = [*csv.DictReader(f)]
    ends = {name: [float(row["test_accuracy"]) for row in rows if row["adapt"] == name]
            for name in ("none", "lora:rank=4", "bitfit")}
    assert len(rows) == 15 and min(ends["lora:rank=4"]) > 0.995, ends
    assert min(ends["none"]) < 0.98 and min(ends["bitfit"]) < 0.98, ends


@pytest.mark.slow
def test_an_echo_learns_the_majority_and_not_bit_xor(folder):
    argv, = [argv for argv in commands(ROOT / "docs/guide/trunk.md") if "echo.py:Echo" in argv]
    assert cli.main([*argv, "--out", "a"]) == 0
    assert minifpt.History.load("a/metrics.csv")[-1]["test_accuracy"] > 0.995
    assert cli.main([argv[0], "bit-xor", *argv[2:], "--out", "b"]) == 0
    assert minifpt.History.load("b/metrics.csv")[-1]["test_accuracy"] < 0.6


def test_generate_stops_behind_a_sentence(capsys):
    argv, = [argv for argv in commands(ROOT / "docs" / "guide" / "commands.md") if "--stop" in argv]
    assert cli.main(argv) == 0
    text = capsys.readouterr().out.strip()
    assert text.startswith(argv[1]) and text.endswith(".") and text.count(".") == 1
    assert 5 <= len(text.split()) <= 40 and not re.search(r"\b(Mr|Mrs|Dr|St)\.", text)


def test_the_site_of_lessons_without_its_extra_says_what_to_install(tmp_path):
    """Of the modules that it needs, none is found."""
    hidden = "import runpy, importlib.util as u, sys; u.find_spec = lambda name: None; "
    process = subprocess.run(
        [sys.executable, "-c", f"{hidden}sys.argv = ['lite.py', 'out']; "
         f"runpy.run_path({str(ROOT / 'docs' / 'lite.py')!r}, run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 2, process.stderr
    assert process.stderr.endswith("pip install '.[lite]'\n") and not [*tmp_path.iterdir()]
    assert "Traceback" not in process.stderr
