"""What a reader's own functional file may do besides being wrong: loop, exit, print, write, raise
what nobody raises.  One statement of ``DEEDS`` is put at a random place into a file that is
otherwise right, and ``minifpt check`` must judge the rest.

    python -m tests.fuzz.wild --seconds 600
"""

import argparse
import contextlib
import io
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from minifpt.exercises import apart, own

QUIET = 3.0                                               # seconds of silence that mean a loop
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


def made(seed):
    """(a file's text, what it does besides)."""
    rng = random.Random(seed)
    lines = own.solution().read_text(encoding="utf-8").split("\n")
    starts = [i for i, line in enumerate(lines) if line.startswith("def ")]
    deed = rng.choice(DEEDS)
    if rng.randrange(2):                                  # between two functions
        at, indent = rng.choice(starts), ""
    else:                                                 # the first line of one
        at, indent = rng.choice(starts), "    "
        at = next(i for i in range(at, len(lines)) if lines[i].endswith(":")) + 1
    lines[at:at] = [indent + line for line in deed.split("\n")]
    return "\n".join(lines), f"{deed!r} in {'a function' if indent else 'the file'}"


def judged(path):
    """What ``minifpt check`` says of a file: how many are wrong, or its line of refusal."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            own.check(path)
    except (ValueError, OSError) as e:
        assert "\n" not in str(e) and str(path) in str(e) and 10 < len(str(e)) < 600, str(e)
        return str(e)
    lines = said.getvalue().splitlines()
    named = [name for line in lines[:-1]                  # those not written share a line
             for name in re.findall(r"\w+", line.split(": ")[1 if "not written:" in line else 0])]
    assert len([n for n in named if n in own.FUNCTIONS]) == len(own.FUNCTIONS), said.getvalue()
    for line in lines[:-1]:
        word = r"\w+: (done$|wrong\. .{10,1500}$)|not written: \w"
        assert re.match(rf"lesson +\d+  . ({word})", line), line
    return lines[-1]


def one(seed):
    """What went wrong with one file, or None; and what was said of it."""
    text, deed = made(seed)
    apart.QUIET, apart.SECONDS = QUIET, 60.0
    with tempfile.TemporaryDirectory() as top:
        path, before = Path(top) / "mine.py", os.getcwd()
        path.write_text(text)
        os.chdir(top)
        start = time.monotonic()
        try:
            said = judged(path)
            if os.listdir(top) != ["mine.py"] or path.read_text() != text:
                return f"{deed}: it left {os.listdir(top)}", ""
            if time.monotonic() - start > 60:
                return f"{deed}: it took {time.monotonic() - start:.0f} s", ""
            return None, said
        except Exception as e:
            return f"{deed}: {type(e).__name__}: {e}", ""
        finally:
            os.chdir(before)


def main():
    top = argparse.ArgumentParser(prog="python -m tests.fuzz.wild",
                                  description=__doc__.split("\n\n")[0])
    top.add_argument("--seconds", type=float, default=60)
    top.add_argument("--seed", type=int, default=0, help="of the first file")
    args = top.parse_args()
    end, seed, wrong, kinds = time.monotonic() + args.seconds, args.seed, 0, Counter()
    while time.monotonic() < end:
        finding, said = one(seed)
        if finding:
            wrong += 1
            print(f"  {seed}: {finding}", flush=True)
        kinds[re.sub(r"\d+|/\S+", "0", said)[:80]] += 1
        seed += 1
    print(f"{seed - args.seed} files, {wrong} wrong")
    for said, n in kinds.most_common(12):
        print(f"  {n} times: {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
