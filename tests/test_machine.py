"""The machine: its cores, its BLAS, its locks, and others: in a browser and on Windows.  What each
lacks is taken away here."""

import errno
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import minifpt
from minifpt import cli, fast, machine
from minifpt import functional as F
from minifpt.files import runs

ROOT = Path(__file__).resolve().parent.parent
LINE = ["--models", "random:1x2x8", "--steps", "4", "--batch-size", "2", "--seeds", "2", "--out"]

# What runs as a process starts, in those that it starts as well.
ANYWHERE = """
import os, signal, sys, warnings
for module in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[module] = None
for name in ("sched_getaffinity", "register_at_fork", "fork", "forkpty", "killpg", "mkfifo"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("pthread_sigmask", "setitimer", "SIGHUP"):
    if hasattr(signal, name):
        delattr(signal, name)
warnings.filterwarnings("error", category=EncodingWarning, module="minifpt")
"""
BROWSER = ANYWHERE + """
import ctypes, threading
def start(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
sys.modules["_multiprocessing"] = None
class Library:
    def __init__(self, name):
        pass
ctypes.CDLL = Library
"""


def elsewhere(tmp_path, lacks, *args, **env):
    """Python's output, run in another folder where this is lacking; text is ASCII by default."""
    (tmp_path / "lacks").mkdir(exist_ok=True)
    (tmp_path / "lacks" / "sitecustomize.py").write_text(lacks, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "lacks"), str(ROOT)]),
                        "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",
                        "PYTHONWARNDEFAULTENCODING": "1", **env}
    process = subprocess.run([sys.executable, *map(str, args)], cwd=tmp_path, env=env, timeout=120,
                             capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture
def no_threads(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", start)


# --------------------------------------------------------------------------- a browser's Python


IN_A_BROWSER = """
import minifpt
from minifpt import checks
trunk = minifpt.GPT2(minifpt.GPT2Config(2, 2, 8, 16, dropout=0.1))
pretrained = minifpt.GPT2.from_pretrained("minigpt-language")
task = minifpt.tasks.get("bit-xor", n=2)
model = minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
minifpt.train(model, task, 3, lr=1e-2, out="run", weight_decay=0.1, progress=False)
found = [checks.crc(p.data for p in m.parameters()) for m in (pretrained, model)]
"""


@pytest.mark.slow
def test_a_model_is_made_loaded_and_trained_in_a_browser(tmp_path, monkeypatch):
    """To the same bits as here, without threads, ctypes' libraries, locks or forks."""
    monkeypatch.chdir(tmp_path)
    here = {}
    exec(IN_A_BROWSER, here)
    (tmp_path / "run").rename(tmp_path / "here")
    output = elsewhere(tmp_path, BROWSER, "-W", "error", "-W", "ignore:tqdm", "-W",
                       "ignore::EncodingWarning", "-W", "ignore::DeprecationWarning", "-c",
                       IN_A_BROWSER + "print(found)")
    assert output == f"{here['found']}\n"
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_work_stays_on_one_core_where_no_thread_starts(no_threads, monkeypatch):
    n, why = machine.cores_and_why.__wrapped__()
    assert n == 1 and "starts no threads" in why
    monkeypatch.setattr(machine, "cores", lambda: machine.cores_and_why.__wrapped__()[0])
    pieces = []
    machine.run_in_threads(pieces.append, [3, 1, 2])
    assert pieces == [3, 1, 2]
    assert minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8), seed=0).wpe.weight.data.any()


# ---------------------------------------------------------------------- another C, another BLAS


@pytest.fixture(params=["it has other names", "it is no file"])
def other_blas(request, monkeypatch):
    """NumPy's BLAS is not OpenBLAS, as on a Mac."""
    if request.param == "it is no file":                  # built into Python
        monkeypatch.delattr(np.linalg._umath_linalg, "__file__")

    def library(name):
        return types.SimpleNamespace(cblas_sgemm=None)
    monkeypatch.setattr(machine.ctypes, "CDLL", library)
    for name in ("get", "set"):
        monkeypatch.setattr(machine, f"_{name}_threads", machine._openblas(f"{name}_num_threads"))


def test_training_runs_with_another_blas(other_blas, capsys):
    assert machine._get_threads is machine._set_threads is machine.blas_threads(2) is None
    assert machine.blas_kernels() == "kernels unknown"
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 2, 70, 2))
    y, cache = fast.attention(q, k, v)
    np.testing.assert_allclose(y, F.attention(q, k, v)[0], rtol=1e-9, atol=1e-12)
    assert all(grad.shape == q.shape for grad in fast.attention_backward(y, cache)[:3])
    assert cli.main(["info"]) == 0 and "kernels unknown" in capsys.readouterr().out


# ---------------------------------------------------------------------------------- Windows' files


def test_cores_are_counted_without_a_process_s_affinity(monkeypatch):
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores_and_why.__wrapped__()[0] == 1


def test_a_run_needs_neither_mallopt_nor_locks(tmp_path, monkeypatch):
    """A second writer is not refused there, and a first one even less."""
    fcntl = pytest.importorskip("fcntl")

    def flock(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: types.SimpleNamespace(malloc=None))
    with machine.kept_memory, runs.locked(tmp_path / "run"):
        (tmp_path / "run" / "config.json").write_bytes(b"")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["config.json"]


@pytest.mark.slow
def test_a_grid_of_two_processes_runs_on_windows(tmp_path, capsys):
    """Spawned, without POSIX's signals, locks and text encoding; the same table as here."""
    assert cli.main(["compare", "bit-xor", *LINE, tmp_path / "here"]) == 0
    here = capsys.readouterr().out
    output = elsewhere(tmp_path, ANYWHERE, "-m", "minifpt", "compare", "bit-xor", *LINE,
                       tmp_path / "there", "--jobs", 2)
    assert output == here.replace("here", "there")
    files = {p.relative_to(tmp_path / "there") for p in (tmp_path / "there").rglob("*")}
    assert files == {p.relative_to(tmp_path / "here") for p in (tmp_path / "here").rglob("*")}


@pytest.mark.slow
def test_a_reader_s_own_file_is_checked_on_windows(tmp_path):
    elsewhere(tmp_path, ANYWHERE, "-m", "minifpt", "new", "mine.py")
    assert "linear" in elsewhere(tmp_path, ANYWHERE, "-m", "minifpt", "check", "mine.py")
