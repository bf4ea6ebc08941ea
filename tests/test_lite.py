"""The lessons in a browser's tab.  The tests that run them there need a Pyodide distribution: set
``MINIFPT_PYODIDE`` to its folder, which ``python docs/lite.py --get-pyodide FOLDER`` fills.  They
run two lessons; with ``MINIFPT_TAB=all`` they run the whole spine, in half an hour."""

import functools
import http.server
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest
from conftest import load_module
from test_site import built

ROOT = Path(__file__).resolve().parent.parent
without_bars = load_module(ROOT / "lessons" / "build.py").without_bars
PYODIDE = os.environ.get("MINIFPT_PYODIDE")
SPINE = re.findall(r"^\| \d+\. \[.*?\]\((\w+)\.ipynb\)", (ROOT / "lessons" / "README.md").read_text(
    encoding="utf-8").partition("\n## Side")[0], re.M)
LISTED = sorted([*SPINE, "23_before_the_first"])
TRIED = SPINE if os.environ.get("MINIFPT_TAB") == "all" else [SPINE[0], SPINE[2]]
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
LEFT_OUT = re.compile(r"^worst:|\btimes?\b|^\s*$")       # the largest rounding error, times
# Of one seed in a tab, not of five, or of images whose letters another version draws.
OTHER_DATA = re.compile(r"^(before:|# % at step|(fine-tuned|probe on pixels) - )")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lite(tmp_path_factory):
    pytest.importorskip("jupyterlite_core", reason="pip install '.[lite]'")
    out = tmp_path_factory.mktemp("lite")
    return built("lite.py", out, 600, *(["--pyodide", PYODIDE] if PYODIDE else []))


@pytest.fixture(scope="module")
def address(lite):
    """The address of the site, which is served from this machine under the guide's policy."""
    guide = (ROOT / "docs" / "guide" / "launch.md").read_text(encoding="utf-8")
    policy = re.search(r"^    (default-src .*'unsafe-eval'.*)$", guide, re.M)[1]

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def end_headers(self):
            self.send_header("Content-Security-Policy", policy)
            super().end_headers()
    config = lite / "jupyter-lite.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["jupyter-config-data"]["exposeAppInBrowser"] = True
    config.write_text(json.dumps(settings), encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(
        Quiet, directory=str(lite)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/lab/index.html"
    server.shutdown()
    server.server_close()


def test_wheels_and_lessons_are_there(lite):
    sizes = {path.name.partition("-")[0]: path.stat().st_size
             for path in (lite / "pypi").glob("*.whl")}
    assert sizes["minifpt"] < 1.5e6 < sizes["minigpt_language"]
    names = sorted(path.stem for path in (lite / "files").glob("*.ipynb"))
    assert names == LISTED
    for name in names:                                    # no link leads nowhere
        text = (lite / "files" / f"{name}.ipynb").read_text(encoding="utf-8")
        assert {*re.findall(r"\]\((?!https?:)(.*?)\.\w+\)", text)} <= {*names}
    notebook = json.loads((lite / "files" / f"{names[0]}.ipynb").read_text(encoding="utf-8"))
    note, install = notebook["cells"][1:3]
    assert note["source"].startswith("**In the browser.**") and "Of the long runs" in note["source"]
    assert install["source"].startswith("%pip install -q minifpt minigpt-language minigpt-tiny\n")
    assert all(not c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code")


def test_a_browser_lists_the_lessons(address, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address.removesuffix("lab/index.html"))     # leads to the first lesson
    page.wait_for_url(f"**/lab/index.html?path={SPINE[0]}.ipynb")
    page.wait_for_selector(".jp-DirListing-item", timeout=120_000)
    listed = page.locator(".jp-DirListing-itemName").all_inner_texts()
    listed = sorted(name.strip().removesuffix(".ipynb") for name in listed)
    assert listed == [*LISTED, "solutions"]
    page.close()


# ------------------------------------------------------------------ in a tab, with Pyodide


@pytest.fixture
def tab(address, browser):
    """Open a notebook in a tab and wait for its kernel."""
    if not PYODIDE:
        pytest.skip("needs a Pyodide distribution in MINIFPT_PYODIDE")
    pages = []

    def tab(name):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        pages.append(page)
        page.goto(f"{address}?path={name}.ipynb")
        wait(page, "notebook.sessionContext.session?.kernel?.status === 'idle'", 240)
        return page
    yield tab
    for page in pages:
        page.close()


NOTEBOOK = """[...window.jupyterapp?.shell?.widgets("main") ?? []].find(
    widget => widget.content?.model?.sharedModel?.cells)"""


def wait(page, expression, seconds):
    """Wait until an expression of the open ``notebook`` is true."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"""() => {{
            const notebook = {NOTEBOOK};
            return Boolean(notebook && {expression}); }}"""):
        assert time.monotonic() < end, f"{expression} is still false"
        page.wait_for_timeout(500)


def run_cells(page, seconds):
    """Run all cells of the open notebook; return its code cells."""
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    wait(page, "notebook.content.model.sharedModel.cells.filter(c => c.cell_type === 'code')"
               ".every(c => c.execution_count !== null)"
               " && notebook.sessionContext.session.kernel.status === 'idle'", seconds)
    content = page.evaluate(f"() => ({NOTEBOOK}).content.model.sharedModel.toJSON()")
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def printed(cell):
    """Return what a cell printed: of each line its words and its numbers."""
    text = "".join("".join(output["text"]) for output in cell["outputs"]
                   if output.get("name") == "stdout")
    return [(NUMBER.sub("#", line).split(), [float(number.replace(",", ""))
                                             for number in NUMBER.findall(line)])
            for line in without_bars(text).split("\n") if not LEFT_OUT.search(line)]


@pytest.mark.parametrize("name", TRIED)
def test_a_lesson_runs_in_a_tab_and_its_exercises_know_right_answers(tab, name):
    page = tab(name)
    cells = run_cells(page, 600)
    errors = [output for cell in cells for output in cell["outputs"]
              if output["output_type"] == "error"]
    assert errors == []
    notebook = json.loads((ROOT / "lessons" / f"{name}.ipynb").read_text(encoding="utf-8"))
    expected = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, before in zip(cells[1:], expected, strict=True):
        for (words, numbers), (words_before, numbers_before) in zip(
                printed(cell), printed(before), strict=True):
            if not OTHER_DATA.match(" ".join(words)):
                assert words == words_before
                assert numbers == pytest.approx(numbers_before, rel=0.1, abs=1e-6), words
    names = re.findall(r'^check\("(\w+)"', "\n".join(
        "".join(cell["source"]) for cell in expected), re.M)
    answers = page.evaluate(RUN, CHECK_SOLUTIONS.format(names))
    assert names and answers.count(" passed") == len(names), answers


CHECK_SOLUTIONS = """
from minifpt.exercises import EXERCISES, check, load_exercises
load_exercises()
for name in {}:
    check(name, EXERCISES[name].solution)"""
RUN = """async code => {
    const kernel = (NOTEBOOK).sessionContext.session.kernel;
    const future = kernel.requestExecute({code});
    let text = "";
    future.onIOPub = message => {
        text += message.content.text ?? "";
        text += message.content.ename ? `${message.content.ename}: ${message.content.evalue}` : "";
    };
    await Promise.race([future.done, new Promise(end => setTimeout(end, 120000))]);
    return text; }""".replace("NOTEBOOK", NOTEBOOK)


def test_a_file_of_ones_own_is_there_after_a_reload_and_a_check_of_an_endless_loop_ends(
        tab, address):
    page = tab(SPINE[1])
    page.evaluate(RUN, "%pip install -q minifpt minigpt-tiny\n"
                       "import minifpt\nminifpt.new('mine.py', lesson=1)")
    file = page.evaluate("() => window.jupyterapp.serviceManager.contents.get("
                         "'mine.py', {content: true})")
    shown = page.evaluate(RUN, "print(minifpt.viewer.tour(5)._repr_html_()[:7])")
    assert "<iframe" in shown                             # with the lesson's weights alone
    assert "def linear(" in file["content"]               # text for the editor, not base64
    page.goto(f"{address}?path={SPINE[1]}.ipynb")         # JupyterLab has shortened the address
    wait(page, "notebook.sessionContext.session?.kernel?.status === 'idle'", 240)
    assert "def linear(" in page.evaluate(RUN, "print(open('mine.py').read())")
    endless = """%pip install -q minifpt
from minifpt.exercises import engine
engine.SECONDS = 1
def bias_gradient(dy):
    while True:
        pass
engine.check("bias_gradient", bias_gradient)"""
    assert "It did not end within 1 s" in page.evaluate(RUN, endless)
