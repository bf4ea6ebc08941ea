"""``minifpt check``: a file of functions, in a process of its own."""

import os
import re
from pathlib import Path

import pytest
from conftest import refused
from test_own import SKELETON, body, with_bodies

from minifpt import cli
from minifpt.exercises import checking, own


@pytest.fixture
def here(cwd, monkeypatch):
    """An empty working folder, and four seconds of the processor for a function that loops."""
    monkeypatch.setattr(checking, "SECONDS", 4)
    return cwd


def test_the_table_has_what_is_done_wrong_and_next(here, capsys):
    (here / "mine.py").write_text(with_bodies(
        SKELETON, linear=body("linear"), linear_backward="return dy, dy, dy",
        relu="while True: pass", relu_backward="return dy * (cache.x > 0)",
        gelu="import os\nos._exit(3)", gelu_exact="raise SystemExit(0)",
        bias="print('/tmp/a/mine.py:3: here')\nreturn x - b, BiasCache(x.shape)",
        softmax="x = softmax(x)"), encoding="utf-8")
    assert cli.main(["check", "mine.py"]) == 1
    out = capsys.readouterr().out.splitlines()
    lines = {line.split()[3].rstrip(":"): line for line in out}
    for name, part in {
            "linear": "✓ linear: done", "relu": "not end within 4 s: is there a loop?",
            "linear_backward": "wrong. dx is wrong. The result has shape",
            "relu_backward": "✓ relu_backward: done",     # with the library's forward pass
            "gelu": "It ended Python, with exit status 3.", "softmax": "RecursionError",
            "gelu_exact": "SystemExit in line", "bias": "It printed: mine.py:3: here"}.items():
        assert part in lines[name]
    assert "lesson 15  · not written: lstm, lstm_backward" in out
    assert "2 of 40 done, 6 wrong. Next: linear_backward, lesson 1." in " ".join(out[-2:])
    assert sum("not written:" in line for line in out) == 10     # all but lesson 1, which is begun
    assert os.listdir() == ["mine.py"]


@pytest.mark.parametrize(("text", "part"), [
    ("raise KeyError('x')", "line 1: KeyError"),
    ("\nraise SystemExit(4)", "line 2: it ends the program"),
    ("def f(:", "line 1: SyntaxError: invalid syntax"), ("x = '\0'", "not text")])
def test_a_file_that_cannot_be_run_is_one_line(here, text, part):
    (here / "bad.py").write_text(text)
    with refused(f"^bad.py.*{re.escape(part)}"):
        own.load(Path("bad.py"))


def test_a_file_that_ends_its_process_each_time_it_loads_anew_is_one_line(here, fails):
    (here / "mine.py").write_text("import os\nfrom pathlib import Path\n"
                                  "if Path('seen').exists():\n    os._exit(3)\n"
                                  "Path('seen').touch()\n"
                                  "def relu(x):\n    os._exit(4)\n", encoding="utf-8")
    assert "mine.py: It ended Python, with exit status 3" in fails("check", "mine.py")


@pytest.mark.parametrize(("name", "text", "part"), [
    ("bad.py", "import os; os._exit(5)", "exit status 5"),
    ("bad.py", "\n1 / 0", "line 2: ZeroDivisionError"),
    ("bad.py", None, "'minifpt new bad.py' makes it"),
    ("bad.ipynb", "{}", "A notebook's own cells check its exercises")])
def test_the_process_of_a_bad_file_ends_in_one_line(here, fails, name, text, part):
    if text is not None:
        (here / name).write_text(text)
    line = fails("check", name)
    assert part in line and line.count(f"{name}") == 1 + ("new" in part)
