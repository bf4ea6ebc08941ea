"""How a grid's runs are carried out: one after the other, in processes, on a Dask cluster; what
stops them, and that they go on."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import child, refused
from short_runs import checkpoint, same_checkpoint
from test_data import write_mnist

from minifpt import Diverged, training
from minifpt.cli import main
from minifpt.experiments import compare, tables
from minifpt.files import data
from minifpt.files.runs import DIVERGED, History
from minifpt.plugins import load_object
from studies.grids import read_rows

MODEL = "random:1x2x8"
SMALL = {"steps": 4, "batch_size": 2, "test_examples": 8}
HUGE = 1e38                                               # a learning rate


def grid(out, names=("bit-xor",), seeds=range(2), models=(MODEL,), **kw):
    return compare.grid(out, list(names), list(models), seeds,
                        **{"progress": False, "options": SMALL} | kw)


def folders(out):
    """{its path below OUT: a run's folder}, those with a checkpoint."""
    return {p.parent.relative_to(out).as_posix(): p.parent for p in out.rglob("checkpoint.npz")}


def same_grids(a, b):
    """The same runs, to the last bit."""
    assert folders(a).keys() == folders(b).keys()
    for name, folder in folders(a).items():
        same_checkpoint(folder, folders(b)[name])


@pytest.fixture
def steps(monkeypatch):
    """A list that gets longer with every step of training."""
    calls, step = [], training.step
    monkeypatch.setattr(training, "step", lambda *a, **kw: (calls.append(1), step(*a, **kw))[1])
    return calls


# ------------------------------------------------------------------ runs that diverge


def test_a_rate_that_diverges_is_the_worst(tmp_path, steps, drawn):
    result = grid(tmp_path / "g", rates=[HUGE, 1e-3], choices=2)
    (task, label, tried), = [(t, m, r) for t, ms in result.sweeps.items() for m, r in ms.items()]
    assert result.rates[task][label] == 1e-3 and len(result.results[task][label]) == 2
    assert tables.diverged(tried[HUGE]) and not tables.diverged(tried[1e-3])
    assert [h[-1]["step"] for h in tried[HUGE]] == [2, 2]
    folder = next((tmp_path / "g/choice/bit-xor").glob("*/1e+38/1001"))
    assert (folder / DIVERGED).read_text().startswith("step 2: the loss is not finite, first in ")
    assert "lr 0.001 (edge), 1e+38 diverged |" in tables.table(result)
    (tmp_path / "runs.csv").write_text(tables.rows(result))
    assert tables.table(read_rows(tmp_path / "runs.csv")) == tables.table(result)
    steps.clear()                                         # again: not run again, and the same
    assert str(grid(tmp_path / "g", rates=[HUGE, 1e-3], choices=2)) == str(result) and not steps
    with pytest.raises(ValueError, match="the run has batch_size = 2, not 3"):
        grid(tmp_path / "g", rates=[HUGE], choices=2, options=SMALL | {"batch_size": 3})


@pytest.mark.parametrize("kw, message", [
    ({"rates": [HUGE, HUGE / 2]}, "compare: .* on bit-xor diverged at every learning rate, "
                                  "1e[+]38, 5e[+]37: try smaller ones$"),
    ({"options": SMALL | {"lr": HUGE}}, "g/bit-xor/random-.*/0: step 2: the loss is not finite, ")])
def test_a_grid_that_diverges_stops_with_one_line(tmp_path, steps, kw, message):
    for _ in "ab":                                        # the second time without a step
        with pytest.raises(Diverged, match=message):
            grid(tmp_path / "g", **kw)
        count, steps[:] = len(steps), []
    assert count == 0


def test_another_rate_in_the_same_folder_has_its_own_runs(tmp_path, steps, monkeypatch):
    """Each rate has its own runs: what was there stays, and is found again."""
    monkeypatch.setattr(compare.Job, "best_rate", lambda cell, sweep: max(sweep))
    first = grid(tmp_path / "g", rates=[1e-9])
    assert len(steps) == 16                               # two seeds choose, two are tested
    second = grid(tmp_path / "g", rates=[1e-9, 1e-2])     # the new one wins
    assert len(steps) == 32 and second.results != first.results
    assert grid(tmp_path / "g", rates=[1e-9]).results == first.results and len(steps) == 32
    grid(tmp_path / "g", options=SMALL | {"lr": 0.5})     # and one that was not chosen
    assert grid(tmp_path / "g", rates=[1e-9, 1e-2]).results == second.results
    close = grid(tmp_path / "g", rates=[0.01, 0.0100000001])
    assert len(*(tried for trunks in close.sweeps.values() for tried in trunks.values())) == 2


# -------------------------------------------------------- going on, and what is in the way


SLOW = """
import os, pathlib, signal
from minifpt.tasks import BitXOR
class Slow(BitXOR):
    \"\"\"Ctrl-C comes in the first final test.\"\"\"
    name = "slow"
    def test_set(self):
        if not pathlib.Path("stopped").exists():
            pathlib.Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return self.batch(__import__("numpy").random.default_rng(0), 4, "test")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_at_the_end_of_a_run_stops_the_grid(cwd):
    Path("slow.py").write_text(SLOW)
    with pytest.raises(KeyboardInterrupt, match="^stopped, go on from g$"):
        grid("g", ["slow.py:Slow"])
    assert len(folders(Path("g"))) == 1
    result = grid("g", ["slow.py:Slow"])                  # the same command goes on
    assert [len(h) for histories in result.results["slow"].values() for h in histories] == [1, 1]


OWN = """
import minifpt
def trunk(seed=0):
    config = minifpt.GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=16, causal=True)
    return minifpt.GPT2(config, seed)
class Task(minifpt.tasks.BitXOR):
    name = "a task"
    defaults = {"steps": 2}
    def accuracy(self, logits, y):
        return 0.25
class Soft(minifpt.tasks.BitXOR):
    def loss(self, logits, y):
        a, b = super().loss(logits, y)
        return a / 10, b / 10
"""


def test_a_changed_file_of_the_user_s_own_is_named_once_and_runs_go_on(cwd, capsys):
    Path("own.py").write_text(OWN)
    options = {"models": ["own.py:trunk"], "names": ["own.py:Task"]}
    first = grid("g", **options).results
    assert grid("g", **options).results == first and not capsys.readouterr().err
    Path("own.py").write_text(OWN.replace("return 0.25", "return 0.75"))
    for _ in range(2):                                    # and not forgotten
        assert grid("g", **options).results == first
        assert capsys.readouterr().err == (
            "minifpt: g was begun with another text of own.py: its results may differ\n")
    Path("own.py").write_text(OWN.replace("n_head=1", "n_head=2"))
    with refused("was made with other layers or settings of the model, such as heads"):
        grid("g", **options)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(1)], ids=["none", "one"])
@pytest.mark.parametrize("file", ["task.py", "trunk.py"])
def test_a_file_that_changes_while_a_grid_runs_stops_the_next_run(file, executor, cwd, steps,
                                                                  monkeypatch):
    """All runs of a table are of one task and one trunk; the finished ones stay."""
    def edit(*args, **kw):
        result = run(*args, **kw)
        Path(file).write_text(OWN + "# edited\n")
        return result
    run = compare.run
    for name in ("task.py", "trunk.py"):
        Path(name).write_text(OWN)
    options = {"names": ["task.py:Task"], "models": ["trunk.py:trunk"], "executor": executor}
    with monkeypatch.context() as m:
        m.setattr(compare, "run", edit)
        with refused(f"the text of {file} has changed since the grid began: restore it and give"):
            grid("g", **options)
    assert [len(folders(Path("g"))), len(steps)] == [1, 4]
    Path(file).write_text(OWN)
    grid("g", **options)
    assert [len(folders(Path("g"))), len(steps)] == [2, 8]


@pytest.mark.parametrize("file", ["own.py", "c++/own.py"])
def test_a_new_run_has_the_changed_module_beside_the_user_s_own_file(file, cwd):
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("import sizes_of_a_user\n" + OWN + "    SIZE = sizes_of_a_user.SIZE\n")
    module = Path(file).with_name("sizes_of_a_user.py")
    for text in ("SIZE = 2\n", "SIZE = 77\n"):
        module.write_text(text)
        grid(text[7:-1], names=[f"{file}:Task"])
    assert load_object(f"{file}:Soft").SIZE == 77


def test_a_task_of_the_user_s_own_is_not_resumed_as_the_built_in_one(cwd, capsys):
    """They have one name, and the same data, and another loss."""
    Path("own.py").write_text(OWN)
    line = ["train", "--model", "random:1x1x4", "--schedule", "constant", "--out", "r", "--steps"]
    assert main([*line, 2, "own.py:Soft"]) == 0
    capsys.readouterr()
    assert main([*line, 4, "bit-xor", "--resume"]) == 2
    error = capsys.readouterr().err
    assert "source = own.py:Soft, not bit-xor: give own.py:Soft to resume it, or choose" in error


def test_a_grid_with_a_schedule_of_ones_own_goes_on(tmp_path, steps):
    options = {"options": SMALL | {"schedule": lambda step: 0.5}}
    first = grid(tmp_path / "g", **options).results
    assert grid(tmp_path / "g", **options).results == first and len(steps) == 8
    with refused("the run has schedule = function, not constant"):
        grid(tmp_path / "g")


def test_a_grid_goes_on_over_leftovers_of_killed_processes(tmp_path):
    """Of processes that were killed: before the settings, after them, in a checkpoint."""
    grid(tmp_path / "whole", seeds=range(4))
    grid(tmp_path / "g", seeds=range(4))
    base = next((tmp_path / "g").glob("bit-xor/*"))
    for seed, files in enumerate(([], ["config.json"], ["config.json", "metrics.csv"])):
        for path in (base / str(seed)).iterdir():
            if path.name not in files:
                path.unlink()
        (base / str(seed) / ".minifpt.checkpoint.npz").write_bytes(b"PK half of it")
    if sys.platform != "win32":                           # killed with the lock in its hands
        child(sys.executable, "-c", "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY);"
              "fcntl.flock(f, fcntl.LOCK_EX); os.kill(os.getpid(), 9)", base / "3", status=-9)
    grid(tmp_path / "g", seeds=range(4))
    same_grids(tmp_path / "g", tmp_path / "whole")
    assert not [*tmp_path.rglob(".*")]


@pytest.fixture
def terminal(capsys, monkeypatch):
    """stderr as a terminal, to which bars are written."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)


def test_the_bar_counts_finished_runs_at_once(tmp_path, capsys, terminal):
    grid(tmp_path / "g")
    grid(tmp_path / "g", seeds=range(3), progress=True)
    shown = capsys.readouterr().err
    counts = [int(n) for n in re.findall(r"\| (\d)/3 ", shown)]
    assert counts == sorted(counts) and {*counts} == {0, 2, 3}
    assert shown.index("| 2/3 ") < shown.index("bit-xor ")  # before the first run was read


def test_where_output_is_redirected_each_finished_run_is_a_line(tmp_path, capsys):
    own = ThreadPoolExecutor(2)
    for more in {"seeds": [0]}, {"executor": own}, {"seeds": range(3), "rates": [HUGE, 1e-3]}:
        grid(tmp_path / "g", progress=True, **more)
    own.shutdown()
    lines = [re.fullmatch(r"(\d) of (\d) runs: (.+), (nan|\d+\.\d) % (\w+) accuracy", line)
             for line in capsys.readouterr().err.splitlines()]
    runs = {Path(line[3]).relative_to(tmp_path / "g"): line for line in lines}
    assert len(runs) == len(lines) == 1 + 1 + 4 + 3       # a run that was finished before has none
    assert [(line[1], line[2]) for line in lines] == [("1", "1"), ("2", "2"), *(
        (str(n), "7") for n in range(1, 8))]
    for path, line in runs.items():
        folder = tmp_path / "g" / path
        assert line[5] == ("validation" if path.parts[0] == "choice" else "test")
        assert line[4] == "nan" if (folder / DIVERGED).exists() else (
            f"{100 * History.load(folder / 'metrics.csv')[-1]['test_accuracy']:.1f}")


def test_the_first_seed_counts_from_there_and_is_no_validation_seed(cwd, capsys):
    line = f"compare bit-xor --models {MODEL} --steps 2 --seeds 2 --first-seed".split()
    assert main([*line, "7"]) == 0
    assert [p.name for p in sorted(cwd.glob("runs/compare/bit-xor/*/*"))] == ["7", "8"]
    assert main([*line, "999", "--rates", "1e-3", "--out", "x"]) == 2
    assert "the seeds 1000 to 1001 are the validation seeds" in capsys.readouterr().err
    assert main([*line, "1000", "--out", "y"]) == 0       # without rates they are as others
    assert ",1000,0,2," in Path("y/runs.csv").read_text()


# ------------------------------------------------------------------------- tasks


def test_a_grid_reads_its_data_once(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data")
    splits, read = [], data.mnist
    monkeypatch.setattr(data, "mnist", lambda split, *a: (splits.append(split), read(split, *a))[1])
    for _ in "ab":                                        # another grid: it may have changed
        grid(tmp_path / "a", ["mnist"], task_options={"data": tmp_path / "data"})
        assert sorted(splits) == ["test", "test", "train", "train"]   # and before the first run
        splits.clear()


# --------------------------------------------------------------------- being stopped


RAISES = """
import minifpt
class Trunk(minifpt.GPT2):
    def forward(self, x, train=False, rng=None):
        if train: raise RuntimeError("no disk")
        return super().forward(x, train, rng)
    def __init__(self):
        super().__init__(minifpt.GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=16))
"""


def test_one_error_stops_the_other_runs(tmp_path):
    """The run that goes on at that moment stops with a checkpoint."""
    (tmp_path / "own.py").write_text(RAISES)
    with refused("own.py, line 5, in Trunk.forward: RuntimeError: no disk"):
        grid(tmp_path / "g", models=[MODEL, f"{tmp_path}/own.py:Trunk"], seeds=[0], jobs=2,
             options={"steps": 10**6, "batch_size": 2, "eval_every": 10**6})
    assert not [*tmp_path.rglob(".*")]


FAILS = """
import os
from minifpt.tasks import BitXOR
class Mine(Exception):
    def __init__(self, a, b):
        super().__init__("no disk")
class Broken(BitXOR):
    def test_set(self):
        raise Mine(1, 2)
class Killed(BitXOR):
    def test_set(self):
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("task, error, message", [
    ("Broken", ValueError, "^own.py, line 9, in Broken.test_set: Mine: no disk$"),
    pytest.param("Killed", ChildProcessError, "^a process of the grid was killed, perhaps for lack "
                 "of memory: the same command goes on; in a", marks=pytest.mark.slow)])
def test_a_failure_of_a_child_process_is_one_line(task, error, message, cwd):
    Path("own.py").write_text(FAILS)
    with refused(message, error):
        grid("g", [f"own.py:{task}"], jobs=2)


def test_processes_and_any_executor_give_the_same_bits(cwd):
    options = {"rates": [1e-3, 1e-2], "choices": 1, "seeds": [0]}
    grid("one", **options)
    grid("two", jobs=2, **options)
    with ThreadPoolExecutor(2) as executor:
        grid("three", executor=executor, **options)
    same_grids(Path("one"), Path("two"))
    same_grids(Path("one"), Path("three"))


# ------------------------------------------------------- real processes, real signals


LONG = 900                                                # steps: some seconds


def start(out, *more, steps=LONG, seeds=3):
    """``minifpt compare`` in a process, and a session, of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "minifpt", "compare", "bit-xor", "--models", MODEL, "--steps",
         str(steps), "--seeds", str(seeds), "--batch-size", "2", "--out", str(out), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_ctrl_c)


def heed_ctrl_c():
    """What is started in a shell's background ignores it, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(true, seconds=150):
    """Wait until ``true()``; what it gives."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def begun(out):
    return len([*Path(out).rglob("config.json")])


def session(pid):
    """The processes of a session that are still there."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True,
                            text=True).stdout
    lines = [line.split() for line in listed.splitlines()]
    return [int(p) for p, s, stat in lines if int(s) == pid and not stat.startswith("Z")]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The same grid, run by run."""
    out = tmp_path_factory.mktemp("serial") / "g"
    grid(out, seeds=range(3), options={"steps": LONG, "batch_size": 2})
    return out


def goes_on(out, serial):
    """After a stop: nothing left over but runs, and these end as they would have."""
    assert not [*out.rglob(".*")]
    result = grid(out, seeds=range(3), options={"steps": LONG, "batch_size": 2})
    same_grids(out, serial)
    assert [len(h) for h in result.results["bit-xor"].values()] == [3]


def stopped(command, out):
    """An interrupted command's end: one line beside the bar, 130, each run with a checkpoint."""
    _, err = command.communicate(timeout=150)
    bar, _, message = err.rstrip("\n").rpartition("\n")
    assert command.returncode == 130 and "Traceback" not in err, err
    assert message.startswith(f"minifpt: stopped, go on from {out}: minifpt ")
    assert 2 <= len(folders(out)) == begun(out)
    assert any(checkpoint(f)[1]["step"] < LONG for f in folders(out).values())


needs_sessions = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs POSIX signals")


@pytest.mark.slow
@needs_sessions
@pytest.mark.parametrize("kill", [os.kill, getattr(os, "killpg", None)], ids=["one", "all"])
def test_ctrl_c_stops_all_processes(serial, tmp_path, kill):
    """The terminal's, and one that reaches the command alone."""
    out = tmp_path / "g"
    command = start(out, "--jobs", "2")
    until(lambda: begun(out) == 2)
    kill(command.pid, signal.SIGINT)
    stopped(command, out)
    until(lambda: not session(command.pid))
    goes_on(out, serial)


@pytest.mark.slow
@needs_sessions
def test_ctrl_c_while_the_processes_start_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\nif '--multiprocessing-fork' in sys.orig_argv:\n"
        "    open(f'{os.path.dirname(__file__)}/{os.getpid()}.began', 'w').close()\n"
        "    time.sleep(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    command = start(tmp_path / "g", "--jobs", "2")
    until(lambda: len([*tmp_path.glob("*.began")]) == 2)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=150)
    assert command.returncode == 130 and "Traceback" not in err, err
    until(lambda: not session(command.pid))


@pytest.mark.slow
@needs_sessions
def test_no_process_outlives_a_command_that_is_killed(serial, tmp_path):
    out = tmp_path / "g"
    command = start(out, "--jobs", "2")
    until(lambda: begun(out) == 2)
    command.kill()
    command.communicate()
    until(lambda: not session(command.pid))
    grid(out, seeds=range(3), options={"steps": LONG, "batch_size": 2})
    same_grids(out, serial)


# ------------------------------------------------------------------------------ Dask


@pytest.fixture
def dask():
    """The address of a cluster of two processes, and a client of it."""
    distributed = pytest.importorskip("distributed",
                                      reason="the package distributed is not installed")
    with (distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
          as cluster, distributed.Client(cluster) as client):
        yield cluster.scheduler_address, client


@pytest.mark.slow
@needs_sessions
def test_a_grid_survives_a_killed_dask_worker(dask, tmp_path):
    """In the middle of a grid: no run is lost, none is there twice, all bits are the same."""
    address, client = dask
    options = {"seeds": range(6), "options": {"steps": 600, "batch_size": 2}}
    serial = grid(tmp_path / "serial", **options)
    out = tmp_path / "g"
    command = start(out, "--dask", address, steps=600, seeds=6)
    until(lambda: len(folders(out)) >= 1 and begun(out) >= 3)
    pids = client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    text, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    assert "6 seeds" in text
    same_grids(out, tmp_path / "serial")
    rows = tables.rows(serial).replace(f"{tmp_path / 'serial'}{os.sep}", f"{out}{os.sep}")
    assert (out / "runs.csv").read_text() == rows
    assert not [*out.rglob(".*")]
    assert set(client.run(os.getpid).values()) - set(pids.values())       # it was one of them


@pytest.mark.slow
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "no-such-host"])
def test_an_address_where_nobody_answers_is_refused(tmp_path, address):
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    command = start(tmp_path / "g", "--dask", address)
    _, err = command.communicate(timeout=150)
    assert command.returncode == 2 and not (tmp_path / "g").exists()
    assert err.rstrip("\n").rpartition("\n")[2].startswith("minifpt: "), err
