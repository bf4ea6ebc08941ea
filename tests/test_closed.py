"""Other people's code does no harm, whether the kernel holds its process or Python's audit hook."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from test_grade import notebook

from minifpt import cli
from minifpt.exercises import apart, closed, own
from minifpt.exercises import grade as grading

LESSONS = Path(__file__).resolve().parent.parent / "lessons"

needs_unix = pytest.mark.skipif(sys.platform == "win32", reason="the attacks are calls of Unix")
needs_kernel = pytest.mark.skipif(
    not closed.by_kernel(), reason="the kernel has no Landlock (Linux 6.2) or no seccomp that we "
    "know the numbers of, so Python's audit hook alone holds a closed process")
# The hook is tried without the kernel, and the kernel without the hook.
WAYS = [pytest.param("hook", marks=needs_unix), pytest.param("kernel", marks=needs_kernel)]
CHILD = """
import os, sys
from minifpt.exercises import closed
if sys.argv[1] == "hook":
    closed.has_seccomp, closed.landlock_version = lambda: False, lambda: 0
else:
    sys.addaudithook = lambda hook: None
for attack in sys.argv[3:]:
    if os.fork() == 0:
        try:
            os.setsid()
            closed.limit(60)
            closed.close(sys.argv[2])
            exec(attack)
            print("nothing refused it")
        except BaseException as e:
            print(f"{type(e).__name__}: {e}".replace(chr(10), " "))
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        print("ended by a signal")
    sys.stdout.flush()
"""


def attacked(way, folder, attacks):
    """What each attack ended with, in a process that is closed in one of the two ways; the
    submissions are in ``folder``/class, the home is ``folder``/home."""
    (folder / "home").mkdir(exist_ok=True)
    home = str(folder / "home")
    result = subprocess.run(
        [sys.executable, "-c", CHILD, way, str(folder / "class"), *attacks], cwd=home, text=True,
        env=os.environ | {"HOME": home, "TMPDIR": home, "PYTHONPATH": apart.ROOT,
                          "PYTHONWARNINGS": "ignore"}, capture_output=True, timeout=120)
    lines = result.stdout.splitlines()
    assert len(lines) == len(attacks), (lines, result.stderr)
    return lines


@pytest.fixture
def folder(tmp_path):
    """A folder with a submission of another student and with a file of the teacher's."""
    for name in ("class/bob/01_x.ipynb", "teacher/deep/grades.txt", "teacher/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    return tmp_path


def teachers_files(folder):
    """The teacher's files, their texts and modes."""
    return {p.relative_to(folder): (p.is_file() and p.read_text(), p.stat().st_mode)
            for p in (folder / "teacher").rglob("*")}


AT_FILES = """
import shutil; shutil.rmtree("../teacher")
import os; os.unlink("notes.txt", dir_fd=os.open("../teacher", os.O_RDONLY))
import os; os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=os.open("../teacher", os.O_RDONLY))
import os; os.makedirs("a/b"); f = os.open(".", os.O_RDONLY); os.chdir("a/b"); os.open("../new", os.O_CREAT, dir_fd=f)
import os; os.rename("notes.txt", "x", src_dir_fd=os.open("../teacher", os.O_RDONLY))
import os; os.truncate("../teacher/notes.txt", 0)
import os; os.chmod("../teacher/notes.txt", 0o777)
import os; os.chmod(os.open("../teacher/notes.txt", os.O_RDONLY), 0o777)
import os; os.symlink("../teacher", "link"); open("link/new", "w")
import os; os.mkfifo("../teacher/pipe")
import os; os.mknod("../teacher/node")
import sqlite3; sqlite3.connect("../teacher/new").execute("create table t (x)")
import ctypes; assert ctypes.CDLL(None).unlink(b"../teacher/notes.txt") == 0
import _xxsubinterpreters as i; i.run_string(i.create(), "open('../teacher/new', 'w')")
open("../class/bob/01_x.ipynb").read()
import os; open(os.open("../class/bob/01_x.ipynb", os.O_RDONLY)).read()
import ctypes; assert ctypes.CDLL(None).open(b"../class/bob/01_x.ipynb", 0) >= 0
with open("big", "wb") as f: f.truncate(200 << 20)
x = bytearray(5 << 30)
""".strip().splitlines()  # noqa: E501
AT_PROCESSES = """
import os; os.fork()
import os; os.posix_spawn("/bin/true", ["true"], {})
import _posixsubprocess as p; p.fork_exec([b"x"], [b"/bin/true"], True, (), None, None, *[-1] * 6, 3, 4, True, False, 0, None, None, None, -1, None, True)
import subprocess; subprocess.Popen(["sleep", "1000"])
import ctypes; assert ctypes.CDLL(None).fork() >= 0
import ctypes; assert ctypes.CDLL(None).system(b"true") == 0
import os, signal; os.kill(os.getppid(), signal.SIGCONT)
import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGCONT)
import os, ctypes; assert ctypes.CDLL(None).kill(os.getppid(), 18) == 0
import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)
import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))
import socket; socket.socket()
import ctypes; assert ctypes.CDLL(None).socket(2, 1, 0) >= 0
""".strip().splitlines()  # noqa: E501


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outside_the_home_is_changed_and_no_other_work_is_read(way, folder):
    before = teachers_files(folder)
    for attack, end in zip(AT_FILES, attacked(way, folder, AT_FILES), strict=True):
        assert "nothing refused it" not in end, attack
    assert teachers_files(folder) == before
    assert (folder / "home" / "big").stat().st_size == 0


@pytest.mark.parametrize("way", WAYS)
def test_no_process_is_started_and_none_is_signalled(way, folder):
    for attack, end in zip(AT_PROCESSES, attacked(way, folder, AT_PROCESSES), strict=True):
        assert "nothing refused it" not in end and "errpipe" not in end, attack


@pytest.mark.parametrize("way", WAYS)
def test_what_an_answer_may_need_still_runs(way, folder):
    fine = ["open('a', 'w').write('x'); import os; os.mkdir('d'); os.rename('a', 'd/a'); "
            "import shutil; shutil.rmtree('d')",
            "import tempfile; tempfile.TemporaryDirectory().cleanup()",
            "import threading; t = threading.Thread(target=int); t.start(); t.join()",
            "import numpy as np; assert (np.ones((300, 300)) @ np.ones((300, 300))).max() == 300",
            "import minifpt; minifpt.GPT2.from_pretrained('minigpt-language')",
            "import scipy.stats, json; open('/dev/null', 'w')"]
    assert attacked(way, folder, fine) == ["nothing refused it"] * len(fine)


# ----------------------------------------------------------------- in check and in grade


def alive(mark):
    """Whether a process has this text among its arguments, where the system says so."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):                # it has ended
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return any(mark in line for line in commands)


def submission(path, text):
    """A notebook whose answer runs this text."""
    body = textwrap.indent(text, "    ")
    notebook(path, f"def bias_gradient(dy):\n{body}\n    return dy.sum((0, 1))")


@needs_unix
def test_grade_leaves_the_teachers_files_and_no_daemon(folder, capsys):
    """And says once what held the students' code."""
    mark = f"sleep 54{os.getpid()}"
    submission(folder / "class" / "ada" / "01_x.ipynb",
               f"import shutil\nshutil.rmtree({str(folder / 'teacher')!r})")
    submission(folder / "class" / "cy" / "01_x.ipynb",
               f"import ctypes\nctypes.CDLL(None).system(b'setsid {mark} &')")
    submission(folder / "class" / "dan" / "01_x.ipynb",
               "import os, signal, ctypes\nctypes.CDLL(None).kill(os.getppid(), signal.SIGCONT)\n"
               "os.remove('rows')\nos.mkfifo('rows')")
    submission(folder / "class" / "eve" / "01_x.ipynb", "open('rows', 'a').write("
               "'{\"name\": [1], \"lost\": 3}\\n{\"name\": \"x\"}\\n')")
    (folder / "class" / "bob" / "01_x.ipynb").unlink()
    before = teachers_files(folder)
    assert cli.main(["grade", folder / "class", "--out", folder / "out"]) == 0
    assert teachers_files(folder) == before and not alive(mark)
    output = capsys.readouterr().out
    assert output.count(closed.protection()) == 1
    assert ("Landlock" in output) == closed.by_kernel()
    text = (folder / "out" / "grades.csv").read_text()
    assert "eve,[1],no,3" in text                         # forged, and no error of the teacher's
    assert "PermissionError" in next(line for line in text.splitlines() if "ada,01/bias" in line)


CAREFREE = """
def relu(x):
    import os
    while True:
        os.fork()

def gelu_exact(x):
    return bytearray(5 << 30)

def gelu(x):
    open("big", "wb").truncate(200 << 20)

def last_tokens(x, n):
    import ctypes
    while ctypes.CDLL(None).fork() >= 0:
        pass
    raise PermissionError
"""


@needs_unix
def test_check_limits_processes_memory_and_files(tmp_path):
    """The last function is a fork bomb that only the kernel stops."""
    path, mark = tmp_path / "mine.py", "def last_tokens(x, n):\n    import"
    text = own.skeleton() + CAREFREE
    path.write_text(text if closed.has_seccomp() else text[:text.index(mark)])
    hints = {r.name: r.hint for r in own.results(path)}
    assert "PermissionError: os.fork" in hints["relu"]
    assert "MemoryError" in hints["gelu_exact"]
    assert "File too large" in hints["gelu"]
    if closed.has_seccomp():
        assert "PermissionError" in hints["last_tokens"]


def rows_of(name, skip):
    """Work for :func:`apart.apart`: a process that takes long, and whose time is counted."""
    yield {"begin": ""}
    yield {"begin": "x"}
    print(name)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)


@needs_unix
def test_a_process_that_stops_itself_is_ended():
    rows = apart.apart(f"{__name__}:rows_of", "x", quiet=0.5, most=5.0)
    assert rows[0]["name"] == "" or "loop" in rows[0]["lost"]


def test_the_help_of_grade_and_the_teachers_page_have_the_command_for_a_container(capsys):
    with pytest.raises(SystemExit):
        cli.main(["grade", "--help"])
    command = grading.CONTAINER.split("\n\n")[1]
    assert command in capsys.readouterr().out
    page = (LESSONS / "teaching.md").read_text(encoding="utf-8")
    assert textwrap.dedent(command).strip() in page
