"""What a reader's own functional file may do besides being wrong: loop, exit, print, write, raise
what nobody raises.  ``minifpt check`` judges the rest, or says in one line why it cannot."""

import os
import textwrap

import pytest

from minifpt.exercises import apart, own

DEEDS = [
    "while True: pass", "import time; time.sleep(1e6)", "input()", "1 / 0", "raise SystemExit(0)",
    "raise SystemExit('bye')", "raise KeyboardInterrupt", "raise BaseException('x')",
    "raise GeneratorExit", "raise NotImplementedError", "raise StopIteration",
    "raise MemoryError", "raise RecursionError", "raise OSError(28, 'full')",
    "raise Exception('two\\nlines')", "raise ExceptionGroup('g', [ValueError('x')])",
    "import os; os._exit(0)", "import os; os._exit(7)", "import os; os.abort()",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "import sys; sys.exit()",
    "print('x' * 10 ** 6)", "import sys; sys.stderr.write('noise')", "print(b'\\xff', '\\ud800')",
    "open('here', 'w').write('x' * 10 ** 5)", "import os; os.mkdir('deep'); os.chdir('deep')",
    "import os; os.chdir('/')", "import sys; sys.setrecursionlimit(50)",
    "import sys; sys.stdout.close()", "import sys; sys.stdout = None", "import os; os.close(1)",
    "import os; os.closerange(3, 50)", "import sys; sys.modules.clear()",
    "import numpy; numpy.exp = None", "import builtins; builtins.print = None",
    "import builtins; builtins.open = None; builtins.len = None", "import json; json.dumps = None",
    "x = [0] * 10 ** 13", "x = 'a' * 10 ** 8", "import threading; threading.Thread("
    "target=lambda: [i for i in iter(int, 1)], daemon=False).start()",
    "import atexit; atexit.register(lambda: [i for i in iter(int, 1)])",
    "import subprocess; subprocess.Popen(['sleep', '1000'])", "import os; os.fork()",
    "import ctypes; ctypes.string_at(0)", "def f(n): return f(n + 1) + 1\nf(0)",
    "import warnings; warnings.simplefilter('error')", "import numpy; numpy.seterr(all='raise')",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", "del linear", "linear = 3",
    "class softmax: pass", "return 3", "yield 3", "async def gelu(x): pass", "gelu = lambda x: x",
    "import sys; sys.settrace(lambda *a: 1 / 0)", "from os import *", "exit()", "quit(1)",
]


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("place", ["{}def gelu(x):\n", "def gelu(x):\n{}"])
def test_check_judges_the_rest_of_a_file(deed, place, tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "QUIET", 3.0)
    monkeypatch.setattr(apart, "SECONDS", 60.0)
    monkeypatch.chdir(tmp_path)
    lines = textwrap.indent(f"{deed}\n", "    " * place.endswith("{}"))
    text, path = own.solution().read_text(encoding="utf-8"), tmp_path / "mine.py"
    path.write_text(text.replace("def gelu(x):\n", place.format(lines)), encoding="utf-8")
    before = path.read_bytes()
    try:
        hints = {r.name: r.hint for r in own.results(path) if r.status == own.WRONG}
        assert all("\n" not in hint and 10 < len(hint) < 1500 for hint in hints.values())
        assert len(hints) < len(own.FUNCTIONS)
    except ValueError as e:
        assert str(path) in str(e) and "\n" not in str(e) and 10 < len(str(e)) < 600
    assert os.listdir() == ["mine.py"] and path.read_bytes() == before
