"""The command line and its terminal: help, lines of 80 columns, bars, pipes, Ctrl-C."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import child

from minifpt import cli, progress

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("cwd")
TRAIN = ["train", "bit-xor", "--model", "random:1x2x16", "--batch-size", "2"]


def help_of(capsys, line):
    """Return the help of a command."""
    with pytest.raises(SystemExit) as error:
        cli.main([*line.split(), "--help"])
    assert error.value.code == 0
    return capsys.readouterr().out


def python(*words, path=ROOT, **options):
    """Return a process of Python that has ended; its modules are searched in ``path`` first."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    return child(sys.executable, *words, env=env, **options)


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_fits_the_terminal_in_at_most_60_lines(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, command)
    assert text.startswith(f"usage: minifpt {command}".rstrip())
    assert max(map(len, text.splitlines())) <= 80 and not re.search(r"\w-\n", text)
    assert text.count("\n") <= 60
    assert "SUPPRESS" not in text and "None" not in text
    assert command or all(name in text for name in cli.COMMANDS)


def test_help_imports_no_numpy():
    code = ("import sys\nfrom minifpt.__main__ import main\ntry:\n    main()\n"
            "except SystemExit:\n    sys.exit('numpy' in sys.modules)")
    assert "Start here" in python("-c", code, "--help").stdout


def test_help_shows_the_options_of_the_chosen_task(capsys):
    assert help_of(capsys, "compare").startswith("usage: minifpt compare [options] TASK [TASK ..")
    anyone, chosen = help_of(capsys, "train"), help_of(capsys, "train bit-memory")
    assert "'minifpt train TASK --help' shows them" in anyone
    assert "options of bit-memory:" in chosen
    assert re.search(r"--strings VALUE +.*default: 5", chosen)
    assert "--strings" not in anyone and "--n VALUE" not in chosen


def test_a_bar_at_80_columns_shows_steps_loss_and_accuracy():
    """On a terminal of its own."""
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, b"\30\0\120\0\0\0\0\0")
    with subprocess.Popen([sys.executable, "-m", "minifpt", *TRAIN, "--steps", "20",
                           "--eval-every", "10"], stdout=follower, stderr=follower):
        os.close(follower)
        text = b""
        with open(leader, "rb", buffering=0) as terminal, suppress(OSError):    # at its end
            while part := terminal.read(65536):
                text += part
    lines = re.split(r"[\r\n]+", text.decode())
    assert max(map(len, lines)) <= 80                     # older ones of tqdm fill the line
    assert re.search(r"bit-xor 20/20 \|█+\| 00:00 left, loss \d\.\d{4}, accuracy \d\d\.\d %",
                     text.decode())


@pytest.mark.parametrize("module, is_inner_shown", [("ipykernel.iostream", True),
                                                    ("pyodide_kernel.display", False)])
def test_a_bar_in_a_notebook_is_on_stdout(module, is_inner_shown, monkeypatch, capfd):
    stream = type("OutStream", (io.StringIO,), {"__module__": module})()
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in progress.progress_bar(range(3), desc="outer"):
        for _ in progress.progress_bar(range(2), desc="inner"):
            pass
    assert "3/3" in stream.getvalue() and capfd.readouterr().err == ""
    assert ("inner" in stream.getvalue()) == is_inner_shown


def test_ctrl_c_names_a_command_that_resumes(monkeypatch, capsys):
    from minifpt import training
    step, calls = training.step, []

    def interrupted(*args, **kw):
        calls.append(0)
        if len(calls) == 3:
            os.kill(os.getpid(), 2)
        return step(*args, **kw)
    monkeypatch.setattr(training, "step", interrupted)
    assert cli.main([*TRAIN, "--steps", "5"]) == 130
    message = capsys.readouterr().err.strip()
    assert message.startswith("minifpt: stopped at step 3, go on from runs/bit-xor: minifpt ")
    again = shlex.split(message.partition(": minifpt ")[2])
    assert cli.main(again) == 0
    assert len(calls) == 5 and "after 5 steps" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_while_it_starts_are_one_line(signum, tmp_path):
    (tmp_path / "tqdm.py").write_text(f"import os\nos.kill(os.getpid(), {signum:d})")
    run = python("-m", "minifpt", "train", path=tmp_path, status=130)
    assert run.stderr == "minifpt: interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_twice_prints_no_traceback(tmp_path):
    """The second one while Python ends."""
    (tmp_path / "tqdm.py").write_text("import atexit, os\n"
                                      "atexit.register(os.kill, os.getpid(), 2)\n"
                                      "os.kill(os.getpid(), 2)")
    run = python("-m", "minifpt", "train", path=tmp_path, status=-signal.SIGINT)
    assert run.stderr == "minifpt: interrupted\n"


def test_ctrl_c_is_raised_in_a_program_of_someone_else_s(tmp_path):
    (tmp_path / "tqdm.py").write_text("raise KeyboardInterrupt")
    assert "KeyboardInterrupt" in python("-c", "import minifpt.cli, minifpt.training",
                                         path=tmp_path, status=-signal.SIGINT).stderr


def test_a_terminal_that_cannot_spell_it(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.main(["generate", "é", "--tokens", "1"]) == 0
    assert raw.getvalue().startswith(b"?")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's way of closing")
@pytest.mark.parametrize("line, status, err", [
    ("MINIFPT summary --model nonsense >&- 2>&-", 2, ""),
    ("{ MINIFPT info; echo $? >&2; } | :", 0, "1\n")])
def test_closed_streams_and_pipes_are_no_traceback(line, status, err, tmp_path):
    run = child("sh", "-c", line.replace("MINIFPT", f"{sys.executable} -m minifpt"), cwd=tmp_path,
                status=status, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (run.stdout, run.stderr) == ("", err)
