"""Mutants of the core modules: do the plain tests of a module notice a small mistake in it?

    python tests/core_mutants.py --sample 100             # of each module; about two hours
    python tests/core_mutants.py optim freeze             # all mutants of these modules
    python tests/core_mutants.py gpt2 --only sample       # those in functions of this name

A mutant is a module with one small mistake, as ``tests/mutants.py`` makes them in solutions; here
also a condition that always or never holds, a call or a keyword left out, no value returned, a
number 1 % off.  What errors say is left as it is.  A mutant runs in a fork, against the tests in
TESTS that call its function, the quickest first, until one fails: a function gets other code in a
fork of a process that has collected the tests; what stands outside of functions, or in a function
that runs while its module is imported, is imported again.  Threads that a test starts run the
mutant too; a process that it starts anew, other than by a fork, does not.  Results are added to
``build/mutants/MODULE.jsonl``.  A later run takes from there what was killed, as long as the module
is the same, and tries again what survived.  A survivor is either a gap in the tests, or it stands
in EQUIVALENT with the reason.
"""
# ruff: noqa: E402

import argparse
import ast
import contextlib
import copy
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"                                # a fork must not lose BLAS's threads

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import matplotlib.pyplot  # noqa: F401
import mutants
import pytest
import scipy.special  # noqa: F401
import tqdm  # noqa: F401
from hypothesis import Phase, settings

# A module's own tests first; the files after them only for what these let pass.
TESTS = {
    "functional": ["functional", "edges recurrent"],
    "layers": ["layers", "refusals"],
    "gpt2": ["gpt2", "generate", "refusals"],
    "fpt": ["fpt", "refusals"],
    "freeze": ["freeze", "refusals"],
    "optim": ["optim", "refusals"],
    "fast": ["fast", "edges recurrent"],
    "machine": ["fast", "elsewhere"],
    "tracing": ["trace", "refusals"],
    "trunks/lstm": ["recurrent", "refusals"], "trunks/base": ["fpt", "refusals"],
}
LIMIT = 5.0                                               # seconds, and 20 times the usual


def more_variants(node):
    """Small mistakes that ``mutants.variants`` does not make."""
    changed = functools.partial(mutants.with_fields, node)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        for value in (True, False):
            yield changed(test=ast.Constant(value))
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            others = {ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,)}.get(type(op), ())
            for other in mutants.COMPARE.get(type(op), ()) if len(node.ops) > 1 else others:
                yield changed(ops=[*node.ops[:i], other(), *node.ops[i + 1:]])
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield changed(value=node.value * 1.01)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield changed(value=None)
    elif isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg != "strict":                   # that only checks what is so anyway
                yield changed(keywords=node.keywords[:i] + node.keywords[i + 1:])


def places(tree):
    """Yield (number, node, inner, outer) for each node of a module that may be mutated; docstrings,
    imports, annotations and the texts of errors may not.  ``inner`` and ``outer`` are the innermost
    function around it and the outermost one that has it in its body."""
    skipped, inner, outer = set(), {}, {}
    for node in ast.walk(tree):                           # from the outside to the inside
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            skipped |= {id(n) for n in node.body if mutants.is_docstring(n, node)}
        if (isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom)) or id(node) in skipped
                or getattr(node, "arg", "") == "strict"):
            skipped |= {id(part) for part in ast.walk(node)}
        if getattr(getattr(node, "func", None), "attr", "") == "reshape":
            skipped |= {id(arg.operand) for arg in node.args  # -2 means the rest as -1 does
                        if isinstance(arg, ast.UnaryOp)}
        for note in ("annotation", "returns", "decorator_list"):
            for part in [getattr(node, note, None) or []]:
                for each in part if isinstance(part, list) else [part]:
                    skipped |= {id(part) for part in ast.walk(each)}
        if isinstance(node, ast.FunctionDef):
            inner |= {id(part): node for part in ast.walk(node) if part is not node}
            for statement in node.body:
                for part in ast.walk(statement):
                    outer.setdefault(id(part), node)
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped:
            yield number, node, inner.get(id(node)), outer.get(id(node))


def first_line(function):
    """As ``co_firstlineno`` counts; ``None`` outside of functions."""
    return function and min([function.lineno, *(d.lineno for d in function.decorator_list)])


def all_mutants(tree):
    """{what: (number of the node, its stand-in, first lines of the functions)} of a module."""
    by_label, same = {}, Counter()
    for number, node, inner, outer in places(tree):
        for new in [*mutants.variants(node), *more_variants(node)]:
            old, text = (ast.unparse(ast.fix_missing_locations(copy.deepcopy(n))).split("\n")[0]
                         for n in (node, new))
            if ast.dump(node) == ast.dump(new):
                continue
            what = f"{inner.name if inner else ''}:{getattr(node, 'lineno', 0)} {old} -> {text}"
            same[what] += 1
            by_label[what + f" [{same[what]}]" * (same[what] > 1)] = (
                number, new, first_line(inner), first_line(outer))
    return by_label


def mutated(tree, mutant):
    return ast.fix_missing_locations(mutants.Replace(*mutant[:2]).of(tree))


# ------------------------------------------------------------------------ in the fork


class Mutated(importlib.machinery.SourceFileLoader):
    """Imports a module from another tree than its file's; gives itself for its name alone."""

    def __init__(self, module, tree):
        self.path = str(ROOT / "minifpt" / f"{module}.py")
        super().__init__(f"minifpt.{module.replace('/', '.')}", self.path)
        self.tree = tree

    def get_code(self, name):
        return compile(self.tree, self.path, "exec")

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)


def exchange(path, tree, line):
    """Give the function that begins in this line of an imported module its code in ``tree``."""
    codes = [compile(tree, path, "exec")]
    for code in codes:                                    # grows
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    new = next(code for code in codes[1:] if code.co_firstlineno == line and code.co_name[0] != "<")
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            old = function.__code__
            if (old.co_filename, old.co_firstlineno, old.co_name) == (path, line, new.co_name):
                function.__code__ = new


class Order:
    """A plugin: the order of the tests, a time limit for each, and what it finds of each."""

    def __init__(self, module, note, usual=None, first=None):
        self.note, self.usual, self.first, self.found = note, usual or {}, first, {}
        self.path = str(ROOT / "minifpt" / f"{module}.py")
        self.touched, self.failed = set(), None
        if not self.usual:                                # what runs as the module is imported
            sys.setprofile(self.saw)

    def pytest_configure(self):
        """Hypothesis is not to look for the simplest example."""
        settings.register_profile("once", settings.get_profile("minifpt"),
                                  report_multiple_bugs=False,
                                  phases=[Phase.explicit, Phase.generate])
        settings.load_profile("once")

    @pytest.hookimpl(trylast=True)                        # once the slow ones are left out
    def pytest_collection_modifyitems(self, items):
        if self.usual:
            items.sort(key=lambda item: self.usual[item.nodeid]["seconds"])
        if self.first is not None:
            calls = [item for item in items if self.first in self.usual[item.nodeid]["touched"]]
            items[:] = calls or items                     # perhaps it is called in another process

    def saw(self, frame, event, arg):
        if event == "call" and frame.f_code.co_filename == self.path:
            self.touched.add(frame.f_code.co_firstlineno)
        if (event, frame.f_code.co_filename, frame.f_code.co_name) == (
                "return", self.path, "<module>"):         # the module is imported
            sys.setprofile(None)
            self.found[""] = {"touched": sorted(self.touched)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        began = time.monotonic()
        if self.usual:                                    # the signal ends the process
            signal.setitimer(signal.ITIMER_REAL,
                             LIMIT + 20 * self.usual[item.nodeid]["seconds"])
        else:
            self.touched = set()
            threading.setprofile(self.saw)
            sys.setprofile(self.saw)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.found[item.nodeid] = {"seconds": time.monotonic() - began,
                                       "touched": sorted(self.touched)}

    def pytest_runtest_logreport(self, report):
        if report.failed and self.failed is None:
            self.failed = report.nodeid


class Server(Order):
    """Once the tests are collected, forks for each of some mutants, all of them in functions:
    ``say(what, status, failed)``."""

    def __init__(self, module, note, usual, tree, chosen, say):
        super().__init__(module, note, usual)
        self.tree, self.chosen, self.say = tree, chosen, say

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        for label, mutant in self.chosen.items():
            note = Path(f"{self.note}.{mutant[0]}")
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                self.note, self.first = note, mutant[2]
                exchange(self.path, mutated(self.tree, mutant), mutant[3])
                self.pytest_collection_modifyitems(session.items)
                return None                               # and pytest runs them, in the child
            self.say(label, *waited(child, note)[:2])
        return True


def forked(module, files, plugin, *args, tree=None):
    """Run pytest on test files in a fork, with the module mutated if ``tree`` is given; as
    :func:`waited`."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                os.setpgid(0, 0)
                os.chdir(ROOT)
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(nowhere, number)
                if tree is not None:
                    signal.setitimer(signal.ITIMER_REAL, 24 * LIMIT)      # for the import
                    sys.meta_path.insert(0, Mutated(module, tree))
                plugin = plugin(module, note, *args)
                status = int(pytest.main(
                    ["-x", "-q", "--tb=no", "--capture=sys", "-p", "no:xdist", "-p",
                     "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-o",
                     "addopts=", "-m", "not oracle and not slow",
                     *(f"tests/test_{name}.py" for name in files.split())], plugins=[plugin]))
                plugin.note.write_text(json.dumps([plugin.failed, plugin.found]))
                os._exit(status)
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
        return waited(child, note)


def waited(child, note):
    """(exit status or "time", the first test that failed, what :class:`Order` found)."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)                  # what its tests started
    failed, found = json.loads(note.read_text()) if note.exists() else (None, {})
    return "time" if code == -signal.SIGALRM else code, failed, found


def run(module, chosen, tree, say):
    """Try mutants; ``say(what, by)`` for each that is killed.  Gives those that survive."""
    def done(what, status, failed):
        if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        say(what, failed or ("too long" if status == "time" else f"exit status {status}"))
        with open(killed, "a") as f:
            f.write(what + "\n")

    with tempfile.TemporaryDirectory() as folder:
        killed = Path(folder, "killed")
        killed.touch()
        for files in TESTS[module]:
            status, failed, usual = forked(module, files, Order)
            if status != 0:
                raise SystemExit(f"{module}: without a mistake, {failed or 'a test'} fails")
            early = {None, *usual[""]["touched"]}
            quick = {what: m for what, m in chosen.items() if m[3] not in early}
            status, *_ = forked(module, files, Server, usual, tree, quick, done)
            if status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                raise SystemExit(f"{module}: the tests ended with status {status}")
            for what, mutant in chosen.items():
                if what not in quick:
                    first = None if mutant[2] in early else mutant[2]
                    done(what, *forked(module, files, Order, usual, first,
                                       tree=mutated(tree, mutant))[:2])
            killed_labels = set(killed.read_text().splitlines())
            chosen = {what: mutant for what, mutant in chosen.items() if what not in killed_labels}
            if not chosen:
                break
    return chosen


def equivalent(module, label):
    """Return why a surviving mutant is no mistake, or ``None``."""
    label = re.sub(r":\d+ ", ": ", label, count=1)
    return next((why for name, pattern, why in EQUIVALENT
                 if name in (module, "") and re.search(pattern, label)), None)


# Module ("" for any), pattern of "function: old -> new", why no test can or need see it.
EQUIVALENT = [
    ("", r"astype\((.*), copy=False\) -> .*astype\(\1\)$", "a copy more: speed only"),
    ("", r"\.swapaxes\(-1, -2\) -> .*\.swapaxes\(-2, -1\)$", "the same two axes"),
    ("", r"np\.(v(?:ec)?dot|multiply)\((\w+), ([^,]+)(.*)\) -> np\.\1\(\3, \2\4\)$", "any order"),
    ("machine", r"^quota: (suppress\(|\('max'|2 -> -2|0 -> -1)", "any order; both files or none"),
    ("layers", r"^(forward|backward): 1 -> -1", "the second of a pair is the last"),
    ("layers", r"residual_backward\(dy, da\) -> ", "a sum; both arrays are its own"),
    ("layers", r"ops\.residual\(x, (a|m)\) -> ops\.residual\(\1, x\)", "a sum; only a trace tells"),
    ("layers", r"^__repr__: 0 -> ", "the width of no rows"),
    ("gpt2", r"1e\+30 -> 1.01e\+30", "a bound that nothing comes near"),
    ("gpt2", r"^perplexity: (22 -> 2\d|1 -> 0)", "how many logits at once: speed only"),
    ("gpt2", r"^perplexity: 0 -> -1", "all windows of a group have one length"),
    ("gpt2", r"^sample: (1 -> -1|-1 -> 1)", "the second axis is the last"),
    ("gpt2", r"^sample: rng.* \* total\[:, -1:\] -> .* / total", "the total is 1 to rounding"),
    ("fast", r"^\w+: _even\(.*\) -> _even\(|^gelu: 1 -> 0",
     "how the work is cut: speed only"),
    ("fast", r"^(large_)?product: .*(_TO_SWAP|few)", "which way round: speed only"),
    ("fast", r"^large_product: 64 -> 63 \[2\]$", "where it is cut: speed only"),
    ("fast", r"^part: 2 -> -2|axis=0\) -> .*axis=-2\)$", "the same axis from the other end"),
    ("fast", r"^(part|(large_)?product|linear|unembedding)(_backward)?: 1 -> -1",
     "of two axes the second is the last"),
    ("fast", r"^: \d+ -> ", "the size of a piece: speed only"),
    ("machine", r"^shared: (if )?helpers < 1.* -> |^shared: 1 -> (0|-1)|^run: while", "as slow"),
    ("machine", r"^quota: (3 -> 4|3: -> 3 \+ 1:)$", "the slash goes anyway"),
    ("machine", r"read_text\(encoding='utf-8'\) -> .*read_text\(\)$", "the default of the tests"),
    ("machine", r"^quota: \(folder, .* -> |^_openblas: \(OSError, .* -> ", "any order"),
    ("machine", r"^cores_and_why: (20 -> |1 -> 2 \[2\])", "more cores than any machine has"),
    ("machine", r"^cores_and_why: .*Thread\(target=int\) -> .*Thread\(\)", "neither does anything"),
    ("machine", r"^: if hasattr\(os, 'register_at_fork'\): -> if True", "the tests have one"),
    ("tracing", r"^recorded: reversed\(", "two runs do not leave one and the same cache"),
    ("tracing", r"^_ran_back: g if g.shape == .* -> g\[:, -", "the last of all tokens are all"),
    ("optim", r"^(__init__)?: (1 << 1[58]|1|15|18|8) -> ", "how the work is cut: speed only"),
    ("optim", r"^step: len\(pieces\) < MIN_SHARED_BLOCKS -> .* <=", "how work is cut: speed only"),
    ("optim", r"^_update: 1.0 -> |^_update: if keep != 1.0: -> if True", "x times 1 is x"),
    ("optim", r"^clip_grad_norm: norm > max_norm -> .* >=", "x times 1 is x"),
    ("optim", r"^_square: 1e-30 (-> .*e-3|<)|^_square: if .* -> if True", "float64 is right, too"),
    ("optim", r"^_square: float\(.*astype.*\) -> np", "its root is a float anyway"),
    ("optim", r"^cosine: steps? - warmup -> warmup - ", "the cosine is even"),
    ("fpt", r"^counts: (-1 -> 1|1 -> -1)", "the second of two is the last"),
    ("trunks/base", r"^misfits: \(\(?(int|type|'forward'), .* -> |^forward: \(x\.shape, .* -> ",
     "order"),
    ("trunks/base", r"^misfits: (\('dy', 'cache'\)|False) -> ",
     "only how many there are is looked at"),
    ("trunks/base", r"^forward: False -> ", "the stub of the protocol never runs"),
    ("fpt", r"^orthogonal: gain \* np\.sign.* -> gain / ", "a sign is 1 or -1"),
    ("freeze", r"^parse: 0 -> -1", "of one item the first is the last"),
    ("freeze", r"^__post_init__: \(True, False\) -> \(False, True\)", "either order"),
]


def main():
    top = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    top.add_argument("modules", nargs="*", help=f"of {', '.join(TESTS)}; all by default")
    top.add_argument("--sample", type=int, help="so many mutants of each module; all by default")
    top.add_argument("--seed", type=int, default=0, help="of the sample")
    top.add_argument("--only", default="", help="mutants whose text matches this pattern")
    top.add_argument("--results", type=Path, default=ROOT / "build" / "mutants")
    args = top.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    for name in [name for name in sys.modules if name.split(".")[0] == "minifpt"]:
        del sys.modules[name]                             # each fork imports it anew
    weak = 0
    for module in args.modules or TESTS:
        source = (ROOT / "minifpt" / f"{module}.py").read_text(encoding="utf-8")
        tree, key = ast.parse(source), hashlib.sha256(source.encode()).hexdigest()[:16]
        results = args.results / f"{module.replace('/', '-')}.jsonl"
        results.touch()
        known = {row["what"] for row in map(json.loads, results.read_text().splitlines())
                 if row["key"] == key and row["by"]}
        candidates = {label: mutant for label, mutant in all_mutants(tree).items()
                      if re.search(args.only, label)}
        names = sorted(candidates)
        random.Random(args.seed).shuffle(names)
        names = names[:args.sample]

        def say(label, by, results=results, key=key):
            with open(results, "a") as f:
                f.write(json.dumps({"what": label, "key": key, "by": by}) + "\n")
        untried = {label: candidates[label] for label in names if label not in known}
        alive = run(module, untried, tree, say)
        reasons = {label: equivalent(module, label) for label in alive}
        for label, why in reasons.items():
            say(label, "")
            print(f"  {module}.{label}" + (f"   ({why})" if why else ""))
        same = sum(why is not None for why in reasons.values())
        weak += len(alive) - same
        killed = len(names) - len(alive)
        print(f"{module}: {killed} of {len(names)} killed ({100 * killed / max(1, len(names)):.1f} "
              f"%), {same} equivalent, {len(alive) - same} survived, of {len(candidates)} in all",
              flush=True)
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
