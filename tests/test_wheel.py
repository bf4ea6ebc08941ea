"""The built wheel, installed in a fresh environment, away from the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("build", reason="the package build makes the wheel: pip install build")
pytestmark = [pytest.mark.slow,
              pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs a checkout")]
HOME = "https://example.org/owner/minifpt"


def run(*command, cwd, **variables):
    """What a command prints, away from this repository."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MINIFPT_HOME")}
    process = subprocess.run([str(part) for part in command], cwd=cwd, env=clean | variables,
                          capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the source archive and the wheel, as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(
        ".git", "runs", "site", "build", "dist", "*.egg-info", ".venv", ".pytest_cache"))
    run(sys.executable, "-m", "build", "-o", folder, source, cwd=folder, MINIFPT_HOME=HOME)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """The programs of a fresh environment that holds the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "-q", wheel, cwd=folder)
    return programs


def test_twine_accepts_the_metadata(dist):
    pytest.importorskip("twine", reason="twine checks metadata: pip install twine")
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.glob("minifpt*"), cwd=dist)


def test_every_link_of_the_description_names_its_host(bin_folder, tmp_path):
    shown = run(bin_folder / "python", "-c", "from importlib.metadata import metadata as m;"
                "d = m('minifpt'); print(d['Author']); print(d.get_all('Project-URL'));"
                "print(d.get_payload() or d['Description'])", cwd=tmp_path)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert "the minifpt authors" in shown and f"Source, {HOME}" in shown
    assert len(targets) > 10 and all(t.startswith("https://") for t in targets)
    for target in targets:                                # and each file is in the repository
        if target.startswith(HOME):
            assert (ROOT / target.split("/HEAD/")[1].split("#")[0]).exists(), target


def test_the_wheel_trains(bin_folder, tmp_path):
    shown = run(bin_folder / "minifpt", "train", "bit-xor", "--steps", "20", cwd=tmp_path)
    assert "after 20 steps" in shown and (tmp_path / "runs/bit-xor/checkpoint.npz").exists()


def test_the_wheel_copies_the_lessons(bin_folder, tmp_path):
    run(bin_folder / "minifpt", "lessons", "--no-open", cwd=tmp_path)
    copies = sorted((tmp_path / "minifpt-lessons").glob("[0-9]*.ipynb"))
    assert len(copies) == len([*(ROOT / "lessons").glob("[0-9]*.ipynb")])


def test_the_wheel_writes_the_live_page(bin_folder, tmp_path):
    run(bin_folder / "minifpt", "playground", cwd=tmp_path)
    page = (tmp_path / "playground.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(page) > 100_000   # weights are in it


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_the_wheel_trains_without_being_installed(tool, wheel, tmp_path):
    program = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"there is no {tool}")
    options = ["--from", wheel] if tool == "uvx" else ["run", "--spec", wheel]
    shown = run(program, *options, "minifpt", "train", "bit-xor", "--steps", "20", cwd=tmp_path,
                PIPX_HOME=str(tmp_path / "pipx"), UV_CACHE_DIR=str(tmp_path / "uv"))
    assert "after 20 steps" in shown and (tmp_path / "runs/bit-xor").is_dir()


def test_the_first_cell_of_the_notebook_installs_the_wheel(wheel, tmp_path):
    """As on Colab: a Python without minifpt runs the first code cell."""
    notebook = json.loads((ROOT / "docs/guide/start.ipynb").read_text(encoding="utf-8"))
    first = next("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-c", first, cwd=tmp_path, MINIFPT_WHEEL=str(wheel))
    shown = run(python, "-c", "import minifpt; print(minifpt.__file__)", cwd=tmp_path)
    assert str(tmp_path) in shown
