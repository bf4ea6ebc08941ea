"""The command line on a terminal: help by task, lines that fit 80 columns, bars, Ctrl-C."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from minifpt import cli, progress
from minifpt.cli import formatting

TRAIN = ["train", "bit-xor", "--model", "random:1x2x16", "--batch-size", "2"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def help_of(capsys, line):
    with pytest.raises(SystemExit) as e:
        cli.main(f"{line} --help".split())
    assert e.value.code == 0
    return capsys.readouterr().out


def on_terminal(*words):
    """Return what a command writes to a terminal of 80 columns."""
    pty = pytest.importorskip("pty")
    import fcntl
    import struct
    import termios
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = subprocess.Popen([sys.executable, "-m", "minifpt", *words], stdin=follower,
                               stdout=follower, stderr=follower)
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 65536):
            text += part
    except OSError:                                       # it has ended
        pass
    os.close(leader)
    assert command.wait(60) == 0, text.decode()
    return text.decode()


def test_help_lists_the_commands_under_their_headings(capsys):
    text = help_of(capsys, "")
    headings = re.findall(r"^(\w[\w ]+):$", text, re.M)
    assert headings == ["Start here", "Look inside", "Compare", "Weights", "Lessons"]
    assert text.index("Start here") < text.index("  train ") < text.index("Look inside")


def test_help_imports_no_numpy():
    code = ("import sys\nfrom minifpt.__main__ import main\ntry:\n    main()\n"
            "except SystemExit:\n    sys.exit('numpy' in sys.modules)")
    process = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True,
                             timeout=60)
    assert process.returncode == 0 and b"Start here" in process.stdout


def test_help_of_train_shows_the_options_of_the_chosen_task_only(capsys):
    text = help_of(capsys, "train bit-memory")
    assert "options of bit-memory:" in text and re.search(r"--strings VALUE +.*default: 5", text)
    assert "--labels" not in text and "--n VALUE" not in text
    text = help_of(capsys, "train")
    assert "'minifpt train TASK --help' shows them" in text and "--strings" not in text
    assert "[TASK]" in text and "[TASK|RUN ...]" in help_of(capsys, "compare")


def test_help_of_train_fits_on_a_screen_and_help_all_shows_the_rest(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, "train")
    assert 24 <= text.count("\n") <= 40 and "--clip" not in text and "lstm" not in text
    with pytest.raises(SystemExit):
        cli.main(["train", "--help-all"])
    text = capsys.readouterr().out
    assert "more options:" in text and "--clip" in text and "lstm:3x128" in text


@pytest.mark.parametrize(("command", "width"), [("", 40), *((c, 80) for c in cli.COMMANDS)])
def test_help_fits_the_terminal_and_breaks_between_words(command, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = help_of(capsys, command)
    assert max(map(len, text.splitlines())) <= width and not re.search(r"\w-\n", text)


def test_options_of_the_loop_have_their_names_in_python(folder):
    assert cli.main([*TRAIN, "--steps", "4", "--clip", "0.5", "--warmup", "2", "--eval-every", "2",
                     "--out", "a"]) == 0
    config = json.loads((folder / "a/config.json").read_text())
    assert (config["clip"], config["warmup"], config["eval_every"]) == (0.5, 2, 2)


def test_a_markdown_table_is_printed_in_aligned_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    formatting.say("| trunk | bit XOR |\n|---|---|\n| a | 54.5 (53.4 to 55.7), 2 seeds |\n"
                   "| random + mlp of language | 5 |\n\nthe end")
    assert capsys.readouterr().out == """\
trunk               bit XOR
------------------  -------------------
a                   54.5 (53.4 to
                    55.7), 2 seeds
random + mlp of     5
language

the end
"""


@pytest.mark.parametrize("width", ["1", "2", "7"])
def test_the_narrowest_terminals_get_every_word(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    formatting.say("One two.\n| a | b c |\n| - | - |\n| d | e f |")
    words = capsys.readouterr().out.replace("-", "").split()
    assert sorted(words) == sorted("One two. a b c d e f".split())


def test_a_bar_at_80_columns_shows_steps_loss_and_accuracy():
    text = on_terminal(*TRAIN, "--steps", "20", "--eval-every", "10")
    assert max(len(part) for part in re.split(r"[\r\n]+", text)) < 80
    assert re.search(r"bit-xor 20/20 \|█+\| 00:00 left, loss \d\.\d{4}, accuracy \d\d\.\d %", text)


def test_lines_on_a_terminal_break_between_words():
    text = on_terminal("info")
    # The environment in so many words: readline gives COLUMNS to processes behind Python's back.
    piped = subprocess.run([sys.executable, "-m", "minifpt", "info"], text=True, timeout=60,
                           env={**os.environ}, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT).stdout
    assert text.split() == piped.split() and text.count("\n") > piped.count("\n")
    assert all(len(line) < 80 or " " not in line.strip() for line in text.splitlines()
               if not line.startswith("minifpt: "))       # a warning is one line at any width


def test_a_bar_in_a_notebook_is_on_stdout(monkeypatch, capfd):
    import io
    Stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in progress.progress_bar(range(3), desc="x"):
        pass
    assert "3/3" in stream.getvalue() and capfd.readouterr().err == ""


def test_ctrl_c_names_a_command_that_resumes(folder, monkeypatch, capsys):
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
