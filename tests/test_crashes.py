"""Killed processes and full disks: nothing half, nothing lost."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuzz import kills
from fuzz.kills import PNG_END
from test_grids import needs_sessions

import minifpt
from minifpt import cli
from minifpt.files import write_beside

ROOT = Path(__file__).resolve().parent.parent
SHAPE = dict(n_layer=1, n_head=2, n_embd=8, n_positions=32, vocab_size=256)


@pytest.mark.slow
@needs_sessions
@pytest.mark.parametrize("name", ["pretrain", "convert"])
def test_work_killed_at_random_moments_ends_with_the_same_bits(name):
    """For runs and grids see ``test_train.py`` and ``test_grids.py``."""
    report = kills.run(name, 3)
    assert not report.findings and report.kills


# ------------------------------------------------------------------------------ full disks

COMMANDS = {
    "train": ("train bit-xor --n 2 --model random:1x2x8 --steps 4 --batch-size 2 --out OUT/run "
              "--checkpoint-every 2", "OUT/run/config.json"),
    "pretrain": ("pretrain bits --steps 3 --batch-size 2 --out OUT/w", "OUT/w/config.json"),
    "convert": ("convert SOURCE --out OUT/w.npz", None),
    "compare": ("compare bit-xor --models random:1x2x8 --steps 4 --seeds 2 --batch-size 2 "
                "--out OUT/grid", None),
}


@pytest.fixture
def go(tmp_path, monkeypatch, capsys):
    """``go(name, folder)``: run that command to write in the folder, or to go on there; its exit
    status and the lines of its error."""
    monkeypatch.setattr("minifpt.experiments.pretrain.SHAPE", SHAPE)
    def picture(figure, path, *_):
        write_beside(path, lambda f: f.write(b"\x89PNG" + 50 * b"-" + PNG_END))
    monkeypatch.setattr("minifpt.files.plots.save", picture)
    monkeypatch.setattr("minifpt.observers.curves", picture)

    def run(name, folder):
        line, there = COMMANDS[name]
        line = line.replace("OUT", str(folder)).replace("SOURCE", str(tmp_path / "source"))
        goes_on = there and Path(there.replace("OUT", str(folder))).exists()
        status = cli.main([*line.split(), *["--resume"] * bool(goes_on)])
        err = [text for text in capsys.readouterr().err.split("\n") if text.startswith("minifpt")]
        return status, err
    return run


@contextmanager
def room(size):
    """Within, no file gets larger than so many bytes: writing more is an ``OSError``, as on a full
    disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def whole(folder):
    """Nothing half, and nothing hidden."""
    kills.contents(folder)
    assert not [*folder.rglob(".*")]


def write_source(folder):
    """A GPT-2 as Transformers saves it, with a tokenizer."""
    minifpt.LanguageModel(minifpt.GPT2Config(2, 2, 16, 64, 300), seed=0).save(folder)
    (folder / "merges.txt").write_text("l o\nlo w\n")
    (folder / "vocab.json").write_text("{}")


# NumPy 2.0 leaves the archive of a savez open that failed, and Python complains as it closes it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function ZipFile.__del__"
                            ":pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_line_and_the_work_goes_on(name, go, tmp_path):
    """Whatever file does not fit: one line, and with more room it goes on to the same end."""
    write_source(tmp_path / "source")
    (tmp_path / "want").mkdir()
    assert go(name, tmp_path / "want")[0] == 0
    want = kills.contents(tmp_path / "want")
    folder = tmp_path / "full"
    folder.mkdir()
    for size in (0, 100, 600, 1500, 6000, 20000):
        with room(size):
            status, err = go(name, folder)
        if status == 0:
            break
        assert status == 2 and len(err) == 1 and "File too large" in err[0], err
        assert str(folder) in err[0], err
        whole(folder)
    assert size > 600                                     # several did not fit
    if status:
        assert go(name, folder)[0] == 0
    whole(folder)
    assert want and kills.contents(folder) == want


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        process = command("summary", stdout=full)
    assert process.returncode == 2 and process.stderr.count("\n") == 1, process.stderr
    assert process.stderr.startswith("minifpt: the output cannot be written: [Errno 28]")


def command(*args, **options):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "minifpt", *map(str, args)], env=env, text=True,
                          timeout=120, stderr=subprocess.PIPE, **options)


# -------------------------------------------------------------------- folders that are closed


# --------------------------------------------------------------------------- two in a folder
