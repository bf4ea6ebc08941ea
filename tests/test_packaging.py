"""What a wheel and a source archive hold, that each installs, and the types that they promise."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import typed_user
from conftest import child

import minifpt
from minifpt.viewer.steps.page import PAGE

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("setuptools", reason="setuptools builds packages")
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="there is no checkout")
HOME = "https://example.org/owner/minifpt"


def run(*command, cwd=ROOT, **variables):
    """Return what a command prints, which must succeed without this repository on the path."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MINIFPT_HOME")}
    return child(*command, cwd=cwd, env=clean | variables, timeout=600).stdout


def setup(*args, cwd=ROOT):
    return run(sys.executable, "setup.py", "-q", *args, cwd=cwd)


def tracked():
    """The files of the repository."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("there is no git repository")
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard")
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def wheel_of(source, tmp_path):
    """{file: its bytes} of the wheel that a folder's source gives."""
    setup("egg_info", "--egg-base", tmp_path, "build", "--build-base", tmp_path / "build",
          "bdist_wheel", "--bdist-dir", tmp_path / "bdist", "--dist-dir", tmp_path, cwd=source)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_all_modules_and_data_are_installed(tmp_path):
    """All modules, the type marker, weights and lessons; not what builds the lessons."""
    setup("build", "--build-base", tmp_path / "base", "--build-lib", tmp_path / "lib")
    lib = tmp_path / "lib" / "minifpt"
    for file in ("py.typed", "pretrained/minigpt-language.npz", "pretrained/minigpt-tiny.npz",
                 "pretrained/held-out.txt", "viewer/live/engine.js", "viewer/live/page.html",
                 "lessons/solutions/03_layer_norm.py", "lessons/03_layer_norm.ipynb",
                 *(f"viewer/{name}" for name in PAGE)):
        assert (lib / file).is_file(), file
    assert not (lib / "lessons" / "build.py").exists()
    modules = {p.relative_to(ROOT / "minifpt") for p in (ROOT / "minifpt").rglob("*.py")}
    assert modules <= {p.relative_to(lib) for p in lib.rglob("*.py")}


def test_what_the_source_archive_holds(tmp_path):
    setup("egg_info", "--egg-base", tmp_path, "sdist", "--formats", "tar", "--dist-dir", tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for file in ("minifpt/py.typed", "CITATION.cff", "CHANGELOG.md", "README.md", "setup.py",
                 "tests/test_packaging.py", "lessons/build.py", "weights/minigpt-language.npz"):
        assert file in held, file
    # But for what only a clone and its host use.
    assert {name for name in tracked() - held if not name.startswith(".")} == set()


@pytest.mark.slow
def test_every_archive_gives_the_wheel_of_the_clone(tmp_path):
    """The source archive, and one of the repository as its host offers for download."""
    folders = {name: tmp_path / name for name in ("clone", "sdist", "archive")}
    for folder in folders.values():
        folder.mkdir()
    want = wheel_of(ROOT, folders["clone"])
    assert "minifpt/py.typed" in want and "minifpt/pretrained/minigpt-language.npz" in want
    setup("egg_info", "--egg-base", folders["sdist"], "sdist", "--dist-dir", folders["sdist"])
    shutil.unpack_archive(next(folders["sdist"].glob("*.tar.gz")), folders["sdist"], filter="data")
    source = next(path.parent for path in folders["sdist"].glob("*/setup.py"))
    assert wheel_of(source, folders["sdist"]) == want

    with tarfile.open(tmp_path / "minifpt.tar.gz", "w:gz", compresslevel=1) as tar:
        for name in sorted(tracked()):
            tar.add(ROOT / name, f"minifpt-main/{name}")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
        "--target", site, tmp_path / "minifpt.tar.gz")
    files = {name: held for name, held in want.items() if ".dist-info/" not in name}
    assert {name: (site / name).read_bytes() for name in files} == files
    shown = run(sys.executable, "-m", "minifpt", "info", cwd=folders["archive"],
                PYTHONPATH=str(site))
    assert f"in {site}" in shown and "minigpt-language" in shown


def test_the_version_is_the_same_everywhere():
    version = minifpt.__version__
    assert setup("--version").split()[-1] == version      # setup.py reads it from the package
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$",
                     (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_importing_loads_nothing_heavy():
    modules = run(sys.executable, "-c", "import sys, minifpt.tasks, minifpt.training, "
                  "minifpt.trunks\nprint(*{name.split('.')[0] for name in sys.modules})").split()
    assert "minifpt" in modules
    assert not {"matplotlib", "scipy", "torch", "transformers", "pooch", "huggingface_hub",
                "IPython", "PIL"} & {*modules}


# ------------------------------------------------------------------------------ types


def test_what_a_type_checker_finds_right_runs():
    typed_user.main()


@pytest.mark.slow
def test_a_type_checker_finds_what_is_wrong_and_no_more(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install '.[dev]'")
    file = Path(typed_user.__file__)
    process = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent",
                              "--cache-dir", tmp_path, file], cwd=ROOT, text=True,
                             capture_output=True)
    errors = {int(n) for n in re.findall(r"typed_user\.py:(\d+): error", process.stdout)}
    lines = file.read_text(encoding="utf-8").splitlines()
    assert errors == {n for n, line in enumerate(lines, 1) if line.endswith("# error")}, process


# ------------------------------------------------- the wheel, in an environment of its own


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the source archive and the wheel, as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(
        ".git", "runs", "site", "build", "dist", "*.egg-info", ".venv", ".pytest_cache"))
    pytest.importorskip("build", reason="the package build makes the wheel: pip install build")
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


@pytest.mark.slow
def test_twine_accepts_the_metadata(dist):
    pytest.importorskip("twine", reason="twine checks metadata: pip install twine")
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.glob("minifpt*"), cwd=dist)


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_wheel_trains_copies_the_lessons_and_writes_the_live_page(bin_folder, tmp_path):
    shown = run(bin_folder / "minifpt", "train", "bit-xor", "--steps", "20", cwd=tmp_path)
    assert "after 20 steps" in shown and (tmp_path / "runs/bit-xor/checkpoint.npz").exists()
    run(bin_folder / "minifpt", "lessons", "--no-open", cwd=tmp_path)
    copies = sorted((tmp_path / "minifpt-lessons").glob("[0-9]*.ipynb"))
    assert len(copies) == len([*(ROOT / "lessons").glob("[0-9]*.ipynb")])
    run(bin_folder / "minifpt", "playground", cwd=tmp_path)
    page = (tmp_path / "playground.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(page) > 100_000   # weights are in it


@pytest.mark.slow
def test_the_first_cell_of_the_notebook_installs_the_wheel(wheel, tmp_path):
    """As on Colab: a Python without minifpt runs the first code cell."""
    notebook = json.loads((ROOT / "docs/guide/start.ipynb").read_text(encoding="utf-8"))
    first = next("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-c", first, cwd=tmp_path, MINIFPT_WHEEL=str(wheel))
    shown = run(python, "-c", "import minifpt; print(minifpt.__file__)", cwd=tmp_path)
    assert str(tmp_path) in shown
