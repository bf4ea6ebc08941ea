"""What all tests share: reproducible hypothesis, arrays that refuse float64."""
# ruff: noqa: E402

import functools
import gc
import importlib.util
import io
import os
import shutil
import subprocess
import tracemalloc
from contextlib import contextmanager

gc.disable()                                              # until all tests are read
# Two processes share the tests: BLAS's threads would wait for each other.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.pop("COLUMNS", None)                           # lines are wrapped for a terminal only

import numpy as np
import pytest
from hypothesis import Phase, settings

import minifpt
from minifpt import cli, machine, observers

# How many examples hypothesis tries of each property; more for a long look.
EXAMPLES = int(os.environ.get("MINIFPT_EXAMPLES", 6))

# A test that fails on one machine must fail on the next, and a slow core is no failure.  Without
# the phase ``explain``, which repeats a failing test hundreds of times, for minutes.
settings.register_profile("minifpt", deadline=None, derandomize=True, max_examples=EXAMPLES,
                          database=None, phases=[p for p in Phase if p != Phase.explain])
settings.load_profile("minifpt")


def pytest_ignore_collect(collection_path, config):
    """Read no file of which no test is wanted, and so import no PyTorch and no Transformers."""
    expression, name = config.option.markexpr, collection_path.name
    is_unwanted = ("not oracle" in expression and name.startswith("test_oracle")
                   or "not slow" in expression and name.endswith("browser.py"))
    return True if is_unwanted else None


@pytest.hookimpl(trylast=True)                            # of the tests that are selected
def pytest_collection_modifyitems(config, items):
    """Let each process begin with gradient checks of the operations, so that a wrong formula is
    accused where it stands, and not where it is used."""
    n = getattr(config, "workerinput", {}).get("workercount", 1)
    first = [item for item in items if "test_functional.py::test_gradients_are_r" in item.nodeid]
    items[:], size = [item for item in items if item not in first], len(items) // n
    for process in range(n):                              # each gets the items in a row
        items[process * size:process * size] = first[process::n]


def pytest_collection_finish():
    """Collect garbage among what the tests make, and not among all that was imported."""
    gc.freeze()
    gc.enable()


def load_module(path):
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rng(*seed):
    return np.random.default_rng(seed or 0)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def child(*command, status=0, **options):
    """Return a program that has run to its end with this exit status, with its output as text; a
    test that fails shows what it wrote to stderr."""
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    process = subprocess.run([str(part) for part in command], **options)
    assert process.returncode == status, (
        f"exit {process.returncode}, expected {status}: {command}\n{process.stdout}\n"
        f"{process.stderr}")
    return process


@contextmanager
def refused(match=None, kind=ValueError):
    """Expects an error of one line."""
    with pytest.raises(kind, match=match) as error:
        yield error
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 500, message


@contextmanager
def changed(module, **values):
    """Set names of a module within a ``with``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(module, name, value)
        yield


def on(cores):
    """Let this machine have ``cores`` cores within a ``with``."""
    return changed(machine, cores=lambda: cores)


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """The test's own folder, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fails(capsys):
    """Runs a command that exits 2, and returns its one line."""
    def run(*words):
        capsys.readouterr()
        assert cli.main(words) == 2
        err = capsys.readouterr().err
        assert err.startswith("minifpt") and err.count("\n") == 1, err
        return err.rstrip("\n")
    return run


class Float32Only(np.ndarray):
    """An array that passes itself on through every ufunc and refuses to meet float64, so
    that a hidden detour through float64 shows even where the result is float32 again."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        for x in inputs:
            if isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.float64:
                raise AssertionError(f"{ufunc.__name__}: an operand is float64")
        if out is not None:
            kwargs["out"] = tuple(_plain(x) for x in out)
        y = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        if getattr(y, "dtype", None) == np.float64:
            raise AssertionError(f"{ufunc.__name__}: the result is float64")
        if out is not None:
            return out[0]
        return y.view(Float32Only) if isinstance(y, np.ndarray) else y


def _plain(x):
    return x.view(np.ndarray) if isinstance(x, Float32Only) else x


def _arrays_in(tree):
    """Every array in nested tuples, lists and dictionaries."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, dict):
        yield from _arrays_in(list(tree.values()))
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _arrays_in(item)


@pytest.fixture(scope="session")
def float32_only():
    """Turns an array into one that raises AssertionError when float64 comes near."""
    return lambda x: np.asarray(x, np.float32).view(Float32Only)


@pytest.fixture(scope="session")
def arrays_in():
    """Lists the arrays that a cache holds."""
    return lambda tree: list(_arrays_in(tree))


@pytest.fixture(scope="session")
def randomise():
    """Fills a layer's parameters with numbers at which every gradient is well above 0."""
    def fill(layer, seed=0, size=0.4):
        rng = np.random.default_rng(seed)
        for _, p in layer.named_parameters():
            centre = 1.0 if p.data.ndim == 1 and (p.data == 1).all() else 0.0
            p.data[:] = centre + size * rng.standard_normal(p.data.shape)
        return layer
    return fill


@pytest.fixture(scope="session", autouse=True)
def savefig():
    """Nothing waits for the disk, and no figure is drawn: drawing takes Matplotlib longer than a
    tiny run takes.  Figure's own ``savefig``."""
    # Slow to import, and not needed where the tests are only shared out.
    from matplotlib.figure import Figure
    savefig = Figure.savefig

    @functools.cache
    def dot(metadata):
        file = io.BytesIO()
        savefig(Figure((0.1, 0.1)), file, format="png", metadata=dict(metadata))
        return file.getvalue()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(Figure, "savefig", lambda fig, file, metadata=None, **options: file.write(
            dot(tuple((metadata or {}).items()))))
        patch.setattr(observers, "curves", lambda histories, path, *_: path.write_bytes(b"none"))
        yield savefig


@pytest.fixture
def drawn(monkeypatch, savefig):
    """Draws figures, but for the curves of a run, for tests that look at them."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)


def gradients(model, x):
    """{name: gradient} of a pass with dropout, and the output."""
    for _, p in model.named_parameters():
        p.grad = None
    y, cache = model.forward(x, True, np.random.default_rng(2))
    if cache is not None:
        model.backward(np.cos(y), cache)
    return {name: p.grad for name, p in model.named_parameters()} | {"output": y}


def traced(model, x):
    """Return the trace of a pass with dropout, and compare its results to those without a trace."""
    expected = gradients(model, x)
    with minifpt.trace(model) as t:
        results = gradients(model, x)
    for name, array in expected.items():
        assert (results[name] is None) == (array is None), name
        if array is not None:
            np.testing.assert_allclose(results[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    return t


def memory(work):
    """Return the megabytes that the result of ``work()`` takes, and the peak."""
    tracemalloc.start()
    try:
        result = work()
        now, peak = tracemalloc.get_traced_memory()
        del result
        return now / 1e6, peak / 1e6
    finally:
        tracemalloc.stop()


def assert_a_mask_only_takes_away(model, x, full):
    """Trained parameters get the gradients of full training, to the bit, and frozen ones none."""
    trained = {name for name, p in model.named_parameters() if p.trainable} | {"output"}
    for name, grad in gradients(model, x).items():
        np.testing.assert_equal(grad, full[name] if name in trained else None, name)


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, by playwright, one for all tests."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if chromium is None:
        pytest.skip("no Chromium or Chrome is installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe():
    """Serious findings of axe-core on a page, which is no part of this repository."""
    module = pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python")

    def findings(page):
        page.add_script_tag(path=os.path.join(module.__path__[0], "axe.min.js"))
        found = page.evaluate("axe.run().then(r => r.violations)")
        return [[rule["id"], node["target"]] for rule in found for node in rule["nodes"]
                if rule["impact"] in ("serious", "critical")]
    return findings
