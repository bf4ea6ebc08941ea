"""Mutants of the core modules: do the plain tests of a module notice a small mistake in it?

    python tests/core_mutants.py --sample 100             # of each module; about two hours
    python tests/core_mutants.py optim freeze             # all mutants of these modules
    python tests/core_mutants.py gpt2 --only sample       # those in functions of this name

A mutant is a module with one small mistake, as ``tests/mutants.py`` makes them in solutions; here
also a condition that always or never holds, a call or a keyword left out, no value returned, a
number 1 % off.  What errors say is left as it is.  A mutant runs in a fork of a process that has
imported all but minifpt, against the tests in TESTS that call the mutant's function, the quickest
first, until one fails.  Results are added to ``build/mutants/MODULE.jsonl``.
A later run takes from there what was killed, as long as the module is the same, and tries again
what survived.  A survivor is either a gap in the tests, or it stands in EQUIVALENT with the reason.
"""
# ruff: noqa: E402

import argparse
import ast
import contextlib
import copy
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
    "fast": ["fast", "edges recurrent gpt2"],
    "tracing": ["trace", "refusals"],
    "recurrent": ["recurrent", "refusals"],
}
LIMIT = 5.0                                               # seconds, and 20 times the usual


def more_variants(node):
    """Small mistakes that ``mutants.variants`` does not make."""
    def changed(**fields):
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

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
    elif isinstance(node, ast.Return) and node.value is not None:
        yield changed(value=None)
    elif isinstance(node, ast.Call):
        for i in range(len(node.keywords)):
            yield changed(keywords=node.keywords[:i] + node.keywords[i + 1:])


def places(tree):
    """(number, node, function) of each node of a module that may be mutated: no docstring, import
    or annotation, nothing of what an error says.  ``function`` is the innermost around it."""
    skipped, owner = set(), {}
    for node in ast.walk(tree):                           # from the outside to the inside
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            skipped |= {id(n) for n in node.body if mutants.is_docstring(n, node)}
        if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom)) or id(node) in skipped:
            skipped |= {id(inner) for inner in ast.walk(node)}
        for note in ("annotation", "returns", "decorator_list"):
            for part in [getattr(node, note, None) or []]:
                for each in part if isinstance(part, list) else [part]:
                    skipped |= {id(inner) for inner in ast.walk(each)}
        if isinstance(node, ast.FunctionDef):
            owner |= {id(inner): node for inner in ast.walk(node) if inner is not node}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped:
            yield number, node, owner.get(id(node))


def all_mutants(tree):
    """{what: (number of the node, its stand-in, first line of the function)} of a module."""
    found, same = {}, Counter()
    for number, node, function in places(tree):
        for new in [*mutants.variants(node), *more_variants(node)]:
            old, text = (ast.unparse(ast.fix_missing_locations(copy.deepcopy(n))).split("\n")[0]
                         for n in (node, new))
            if ast.dump(node) == ast.dump(new):
                continue
            first = min([function.lineno, *(d.lineno for d in function.decorator_list)]
                        ) if function else None
            where = f"{function.name if function else ''}:{getattr(node, 'lineno', 0)}"
            what = f"{where} {old} -> {text}"
            same[what] += 1
            found[what + f" [{same[what]}]" * (same[what] > 1)] = number, new, first
    return found


# ------------------------------------------------------------------------ in the fork


class Mutated(importlib.machinery.SourceFileLoader):
    """Imports a module from another tree than its file's; gives itself for its name alone."""

    def __init__(self, module, tree):
        self.path = str(ROOT / "minifpt" / f"{module}.py")
        super().__init__(f"minifpt.{module}", self.path)
        self.tree = tree

    def get_code(self, name):
        return compile(self.tree, self.path, "exec")

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)


class Order:
    """A plugin: the order of the tests, a time limit for each, and what it finds of each."""

    def __init__(self, module, usual=None, first=None):
        self.usual, self.first, self.found = usual or {}, first, {}
        self.path = str(ROOT / "minifpt" / f"{module}.py")
        self.touched, self.failed = set(), None

    def pytest_configure(self):
        """Hypothesis is not to look for the simplest example."""
        settings.register_profile("once", settings.get_profile("minifpt"),
                                  report_multiple_bugs=False,
                                  phases=[Phase.explicit, Phase.generate])
        settings.load_profile("once")

    def pytest_collection_modifyitems(self, items):
        if self.usual:
            items.sort(key=lambda item: self.usual[item.nodeid]["seconds"])
        if self.first is not None:
            items[:] = [item for item in items if self.first in self.usual[item.nodeid]["touched"]]

    def saw(self, frame, event, arg):
        if event == "call" and frame.f_code.co_filename == self.path:
            self.touched.add(frame.f_code.co_firstlineno)

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


def forked(module, files, tree=None, usual=None, first=None, limit=600.0):
    """Run these test files in a fork, with the mutated module if ``tree`` is given: (exit status
    or "time", the first test that failed, what :class:`Order` found)."""
    import resource  # not where there is no fork

    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        child = os.fork()
        if child == 0:
            status = 3
            with contextlib.suppress(BaseException):
                os.setsid()
                os.chdir(ROOT)
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(nowhere, number)
                if tree is not None:
                    sys.meta_path.insert(0, Mutated(module, tree))
                order = Order(module, usual, first)
                status = int(pytest.main(
                    ["-x", "-q", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider", "-o",
                     "addopts=", "-m", "not oracle and not slow",
                     *(f"tests/test_{name}.py" for name in files)], plugins=[order]))
                note.write_text(json.dumps([order.failed, order.found]))
            os._exit(status)
        end = time.monotonic() + limit
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if done == (0, 0):
            os.waitpid(child, 0)
            return "time", None, {}
        failed, found = json.loads(note.read_text()) if note.exists() else (None, {})
        code = os.waitstatus_to_exitcode(done[1])
        return "time" if code in (-signal.SIGALRM, -signal.SIGKILL) else code, failed, found


def run(module, chosen, tree, source, results):
    """Try mutants; yields (what, how it ended), how is "" for one that survived."""
    known = {}
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    if results.exists():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            known[row["what"], row["key"]] = row["by"]
    usual = {}
    for what in chosen:
        if known.get((what, key)):
            yield what, known[what, key]
            continue
        number, new, first = chosen[what]
        mutated = ast.fix_missing_locations(mutants.Replace(number, new).of(tree))
        by = ""
        for files in TESTS[module]:
            if files not in usual:
                status, failed, usual[files] = forked(module, files.split())
                if status != 0:
                    raise SystemExit(f"{module}: without a mistake, {failed or 'a test'} fails")
            status, failed, _ = forked(module, files.split(), mutated, usual[files], first)
            if status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                by = failed or ("too long" if status == "time" else f"exit status {status}")
                break
        with open(results, "a") as f:
            f.write(json.dumps({"what": what, "key": key, "by": by}) + "\n")
        yield what, by


def equivalent(module, what):
    """Why a mutant that survives is no mistake, or ``None``."""
    what = re.sub(r":\d+ ", ": ", what, count=1)
    return next((why for name, pattern, why in EQUIVALENT
                 if name == module and re.search(pattern, what)), None)


# Module, pattern of "function: old -> new", why no test can or need see it.
EQUIVALENT = [
    ("optim", r"^(__init__)?: (1 << 1[58]|1|15|18|8) -> ", "how the work is cut: speed only"),
    ("optim", r"^_update: 1.0 -> |^_update: if keep != 1.0: -> if True", "x times 1 is x"),
    ("optim", r"^_square: 1e-30 -> |^_square: if .* -> if True", "float64 is right everywhere"),
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
        tree = ast.parse(source)
        found = {what: m for what, m in all_mutants(tree).items() if re.search(args.only, what)}
        names = sorted(found)
        random.Random(args.seed).shuffle(names)
        chosen = {what: found[what] for what in names[:args.sample]}
        counts = Counter()
        shown = tqdm.tqdm(run(module, chosen, tree, source, args.results / f"{module}.jsonl"),
                          module, len(chosen), unit="mutant", disable=not sys.stderr.isatty())
        for what, by in shown:
            why = None if by else equivalent(module, what)
            counts["killed" if by else "equivalent" if why else "survived"] += 1
            if not by:
                tqdm.tqdm.write(f"  {module}.{what}" + (f"   ({why})" if why else ""))
        weak += counts["survived"]
        share = counts["killed"] / max(1, sum(counts.values()))
        print(f"{module}: {counts['killed']} of {len(chosen)} killed ({100 * share:.1f} %), "
              f"{counts['equivalent']} equivalent, {counts['survived']} survived, of "
              f"{len(found)} in all", flush=True)
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
