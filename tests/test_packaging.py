"""What a wheel and a source archive hold, and that any of them installs."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import minifpt
from minifpt.viewer.steps import PAGE

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("setuptools", reason="setuptools builds packages")
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="there is no checkout")


def setup(*args, cwd=ROOT):
    subprocess.run([sys.executable, "setup.py", "-q", *map(str, args)], cwd=cwd, check=True,
                   timeout=120, capture_output=True)


def tracked():
    """The files of the repository."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("there is no git repository")
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def unpack(archive, folder):
    """The one folder that an archive holds."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def wheel(source, tmp_path):
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
                 "pretrained/held-out.txt", "viewer/engine.js", "viewer/playground.html",
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
    want = wheel(ROOT, folders["clone"])
    assert "minifpt/py.typed" in want and "minifpt/pretrained/minigpt-language.npz" in want
    setup("egg_info", "--egg-base", folders["sdist"], "sdist", "--dist-dir", folders["sdist"])
    source = unpack(next(folders["sdist"].glob("*.tar.gz")), folders["sdist"] / "source")
    assert wheel(source, folders["sdist"]) == want

    with tarfile.open(tmp_path / "minifpt.tar.gz", "w:gz", compresslevel=1) as tar:
        for name in sorted(tracked()):
            tar.add(ROOT / name, f"minifpt-main/{name}")
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps",
                    "--no-build-isolation", "--target", site, tmp_path / "minifpt.tar.gz"],
                   check=True, timeout=120, capture_output=True)
    assert {name: (site / name).read_bytes() for name in want if ".dist-info/" not in name} == {
        name: held for name, held in want.items() if ".dist-info/" not in name}
    ran = subprocess.run([sys.executable, "-m", "minifpt", "info"], cwd=folders["archive"],
                         env=os.environ | {"PYTHONPATH": str(site)}, check=True,
                         capture_output=True, text=True).stdout
    assert f"in {site}" in ran and "minigpt-language" in ran


def test_the_version_is_the_same_everywhere():
    version = minifpt.__version__
    shown = subprocess.run([sys.executable, "setup.py", "-q", "--version"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()[-1]
    assert shown == version                               # setup.py reads it from the package
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$",
                     (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
