"""The machine: its threads, cores, BLAS and memory, and others: in a browser and on Windows.  What
each lacks is taken away here."""

import errno
import os
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import child, on

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
    return child(sys.executable, *args, cwd=tmp_path, env=env).stdout


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
def test_a_model_is_made_loaded_and_trained_in_a_browser(cwd):
    """To the same bits as here, without threads, ctypes' libraries, locks or forks."""
    here = {}
    exec(IN_A_BROWSER, here)
    (cwd / "run").rename(cwd / "here")
    output = elsewhere(cwd, BROWSER, "-W", "error", "-W", "ignore:tqdm", "-W",
                       "ignore::EncodingWarning", "-W", "ignore::DeprecationWarning", "-c",
                       IN_A_BROWSER + "print(found)")
    assert output == f"{here['found']}\n"
    assert (cwd / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------- threads


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_every_piece_is_done_once_or_its_error_comes_out(cores):
    with on(cores):
        for n in range(5):
            done = []
            machine.run_in_threads(done.append, list(range(n)))
            assert sorted(done) == list(range(n))
        for bad in (0, 3):
            with pytest.raises(ZeroDivisionError):
                machine.run_in_threads(lambda i, bad=bad: 1 // (i - bad), [0, 1, 2, 3])
        machine.run_in_threads(done.append, [4, 5])       # and the threads still work
    assert sorted(done) == [0, 1, 2, 3, 4, 5]


def test_within_one_core_nothing_is_shared():
    """Within ``one_core`` nobody helps; a piece that shares its work does not wait for itself."""
    seen = []
    with on(3), machine.one_core:
        machine.run_in_threads(lambda i: seen.append(threading.get_ident()), range(5))
    assert seen == 5 * [threading.get_ident()]
    done = []
    with on(2):
        machine.run_in_threads(lambda i: machine.run_in_threads(done.append, [i, i]), range(4))
    assert sorted(done) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_after_an_interrupt_nothing_runs_on():
    """Running pieces end, no other piece begins, and then Ctrl-C is raised."""
    begun, together = [], threading.Barrier(2, timeout=20)

    def work(i):
        begun.append(i)
        if i < 2:
            together.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.02)
        begun.append("ended")
    with on(2), pytest.raises(KeyboardInterrupt):
        machine.run_in_threads(work, range(50))
    assert "ended" in begun and len(begun) < 50
    n = len(begun)
    time.sleep(0.02)
    assert len(begun) == n


@pytest.mark.parametrize("files, group, cores", [
    ({"cpu.max": "max 100000"}, "/", np.inf), ({"cpu.max": "250000 100000"}, "/", 2.5),
    ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, "/a", 0.5),
    ({"cpu.max": "50000 100000"}, "/a", 0.5),
    ({"a/cpu.max": "300000 100000", "cpu.max": "400000 100000"}, "/a", 3.0),
    ({"cpu.max": "nonsense"}, "/", np.inf), ({}, "/", np.inf), ({}, None, np.inf),
    ({"a:b/cpu.max": "50000 100000"}, "/a:b", 0.5),
    ({"cpu/cpu.cfs_quota_us": "50000"}, "/", np.inf)])
def test_the_quota_of_a_container_is_read(tmp_path, files, group, cores):
    for folder in ("a", "a:b", "cpu"):
        (tmp_path / "root" / folder).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "root" / name).write_text(text + "\n")
    if group:
        (tmp_path / "group").write_text(f"7:memory:/b\n4:cpu,cpuacct:{group}\n0::{group}\n")
    assert machine.quota(tmp_path / "root", tmp_path / "group") == cores


OPENBLAS, OMP = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"


@pytest.mark.parametrize("variables, quota, cores, why", [
    ({}, np.inf, 3, "the machine"), ({}, 2.0, 2, "the container's quota"),
    ({}, 2.5, 2, "the container's quota"), ({}, 0.5, 1, "the container's quota"),
    ({OPENBLAS: "1"}, np.inf, 1, OPENBLAS), ({OMP: "1"}, np.inf, 1, OMP),
    ({OPENBLAS: "1", OMP: "64"}, np.inf, 1, OPENBLAS), ({OMP: "many"}, np.inf, 3, "the machine"),
    ({OMP: "0"}, np.inf, 3, "the machine"), ({OMP: "9999"}, np.inf, 3, "the machine")])
def test_cores_listen_to_quota_and_environment(monkeypatch, variables, quota, cores, why):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {*range(pid, 3)},
                        raising=False)
    monkeypatch.setattr(machine, "quota", lambda: quota)
    for name in (OPENBLAS, OMP):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert machine.cores_and_why.__wrapped__() == (cores, why)


# -------------------------------------------------------------- settings of the process


def test_the_last_of_four_threads_undoes_a_setting():
    """The first thread makes it, and the last one to end undoes it; a nested ``with`` does not."""
    events, inside = [], threading.Barrier(5, timeout=20)

    @machine.ProcessSetting
    def setting():
        events.append("made")
        yield
        events.append("undone")

    def work(i):
        with setting, setting:
            inside.wait()
            assert turns[i].wait(20)
    for _ in range(2):                                    # and again
        events.clear()
        turns = [threading.Event() for _ in range(4)]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        inside.wait()                                     # all four are inside
        for i in (0, 2, 3, 1):                            # and leave one by one
            assert events == ["made"]
            turns[i].set()
            threads[i].join(20)
        assert events == ["made", "undone"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads():
    """The child has none of its parent's threads, and starts its own."""
    def together():
        barrier = threading.Barrier(2, timeout=10)        # passed by two at once, or never
        with on(2):
            machine.run_in_threads(lambda i: barrier.wait(), [0, 1])
        return 0
    assert together() == 0
    child = os.fork()
    if child == 0:
        try:
            os._exit(together())
        finally:                                          # it must not come back
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("before", [1, 2])
def test_single_threaded_blas_restores_the_count(before):
    """Nested, after an error, and in a model."""
    get, first = machine.blas_threads, machine.blas_threads()
    if first is None or get(before) != before:
        pytest.skip(f"NumPy's BLAS is no OpenBLAS, or cannot have {before} threads")
    try:
        with pytest.raises(ZeroDivisionError), machine.single_threaded_blas:
            with machine.single_threaded_blas:
                assert get() == 1
            assert get() == 1
            raise ZeroDivisionError
        assert get() == before
        model, threads = minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8, 2, 0.0)), []
        attn = model.h[0].attn
        forward = attn.forward
        attn.forward = lambda *args, **reads: (threads.append(get()), forward(*args, **reads))[1]
        model.forward(np.ones((2, 5, 4), np.float32))
        assert threads == [1] and get() == before
    finally:
        get(first)


def resident():
    """Return the megabytes of this process that are in memory."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc; glibc's malloc")
def test_kept_memory_is_given_back_at_the_end():
    def while_it_lives():
        array = np.ones(10_000_000)                       # 80 MB
        return resident() * array[0]
    with machine.kept_memory:
        with machine.kept_memory:
            most = while_it_lives()
        assert resident() > most - 10                     # kept for the next array
    assert resident() < most - 60
    array = np.ones(10_000_000)                           # and then as by default: a large array
    small = [np.ones(10_000) for _ in range(500)]         # lies apart from small ones
    most = resident()
    del array
    assert resident() < most - 60 and len(small) == 500


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
