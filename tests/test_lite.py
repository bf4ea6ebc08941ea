"""The lessons in the browser: JupyterLite builds, opens and lists them, with the wheel beside them.

Python itself (Pyodide) is loaded from its host when a notebook is opened; that is not tested here.
"""

import functools
import http.server
import json
import threading
from pathlib import Path

import pytest
from test_site import built

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("jupyterlite_core", reason="pip install '.[lite]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not (ROOT / "docs" / "lite.py").exists(), reason="needs a checkout")]
LESSONS = "01", "02", "03", "04", "05", "06", "10"


@pytest.fixture(scope="module")
def lite(tmp_path_factory):
    return built("lite.py", tmp_path_factory.mktemp("lite"), 600)


def test_wheel_and_lessons_are_there(lite):
    assert len([*(lite / "pypi").glob("minifpt-*.whl")]) == 1
    names = sorted(path.name for path in (lite / "files").glob("*.ipynb"))
    assert tuple(name[:2] for name in names) == LESSONS
    notebook = json.loads((lite / "files" / names[0]).read_text(encoding="utf-8"))
    assert notebook["cells"][1]["source"][0].startswith("%pip install")
    assert all(not c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code")


def test_a_browser_lists_the_lessons(lite, browser):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(lite)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{server.server_port}/lab/index.html")
        page.wait_for_selector(".jp-DirListing-item", timeout=120_000)
        listed = page.locator(".jp-DirListing-itemName").all_inner_texts()
        assert tuple(sorted(name.strip()[:2] for name in listed)) == LESSONS
        page.close()
    finally:
        server.shutdown()
        server.server_close()
