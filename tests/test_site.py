"""The site: it builds without a warning, its links lead somewhere, and a browser can read it."""

import re
import sys
from pathlib import Path

import pytest
from conftest import child, load_module

from minifpt import viewer

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "docs" / "build.py").exists(),
                                reason="needs a checkout")
# Twenty pages of every kind.
PAGES = ["index", "docs/index", "docs/live", "docs/step", "docs/gallery", "RESULTS",
         "docs/results/index", "docs/results/why", "docs/results/scale",
         "docs/results/paper", "docs/performance", "docs/guide/code", "docs/guide/task",
         "docs/guide/start", "docs/reference", "docs/api/functional", "lessons/README",
         "lessons/03_layer_norm", "lessons/14_which_part_of_pretraining", "CONTRIBUTING"]


@pytest.fixture(scope="module")
def builder():
    return load_module(ROOT / "docs" / "build.py")


def built(script, out, seconds, *options):
    """Run a script of docs/ that builds a site into a folder, and return the folder."""
    child(sys.executable, ROOT / "docs" / script, out, *options, cwd=out, timeout=seconds)
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(package, reason="pip install '.[docs]'")
    return built("build.py", tmp_path_factory.mktemp("site"), 900)


def test_docstrings_become_markdown(builder):
    def scale(x):
        """Multiply ``x_i`` by *two*.

        x    an array
        """
    assert builder.docstring(scale) == (
        "Multiply `` x_i `` by \\*two\\*.\n\n```\nx    an array\n```\n")


def test_links_that_lead_nowhere_are_found(builder, tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="#there">2</a><a href="b.html">3</a>'
        '<img src="https://example.org/x.png"><a href="https://example.org">4</a>')
    assert builder.check(tmp_path) == [
        "a.html: #there has no such place", "a.html: b.html leads nowhere",
        "a.html loads https://example.org/x.png"]


def test_the_published_site_links_binder_and_colab(builder, monkeypatch):
    text = (ROOT / "docs" / "guide" / "launch.md").read_text(encoding="utf-8")
    monkeypatch.delenv("MINIFPT_HOME", raising=False)
    assert builder.launch_links(text) == text
    monkeypatch.setenv("MINIFPT_HOME", "https://github.com/owner/name")
    links = builder.launch_links(text)
    assert "](https://mybinder.org/v2/gh/owner/name/HEAD" in links
    assert "](https://colab.research.google.com/github/owner/name/" in links


def test_the_pictures_of_pages_are_of_the_pages_of_today(builder):
    assert builder.stale_pictures() == [], "python docs/build.py --pictures"


def test_a_picture_of_an_older_page_is_found(builder, monkeypatch):
    monkeypatch.setattr(builder, "sources", lambda folder: "of another page")
    assert builder.stale_pictures() == ["playground", "step"]


def test_each_file_that_a_page_links_is_in_the_site(builder):
    staged = {path for pattern in (*builder.PAGES, *builder.FILES) for path in ROOT.glob(pattern)}
    for page in sorted(path for path in staged if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            assert linked in staged or linked.is_dir(), f"{page} links {target}"


@pytest.mark.slow
def test_every_page_of_the_repository_is_there(site):
    for lesson in (ROOT / "lessons").glob("[0-9]*.ipynb"):
        page = (site / "lessons" / f"{lesson.stem}.html").read_text(encoding="utf-8")
        assert "cell_output" in page, lesson              # the stored outputs
    assert "minifpt gradcheck" in (site / "docs/reference.html").read_text(encoding="utf-8")
    assert (site / "searchindex.js").stat().st_size > 10_000
    links = re.findall(r'"([\w/]+\.html)"', viewer.read("live/tour.js"))      # of the last station
    assert len(links) == 4 and all((site / link).exists() for link in links)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_reads_twenty_pages(site, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.add_init_script("Storage.prototype.setItem = null")              # storage is refused
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url)
            if not request.url.startswith((site.as_uri(), "blob:", "data:")) else None)
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri(), wait_until="load")
        page.wait_for_url("**/docs/index.html" if name == "index" else f"**/{name}.html")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator("h1").count() == 1, name
        broken = page.evaluate("[...document.images].filter("
                               "i => i.complete && !i.naturalWidth).map(i => i.src)")
        assert broken == [], name
    page.goto((site / "lessons/03_layer_norm.html").as_uri())
    page.wait_for_selector("mjx-container", timeout=20_000)        # formulas are drawn
    page.goto((site / "search.html").as_uri() + "?q=layer_norm")
    page.wait_for_selector("ul.search li a", timeout=20_000)
    assert complaints == [], complaints
    page.close()


@pytest.mark.slow
def test_the_pages_run_under_the_policy_that_the_guide_names(site, browser):
    guide = (ROOT / "docs" / "guide" / "launch.md").read_text(encoding="utf-8")
    policy = re.search(r"^    (default-src .*)$", guide, re.M)[1]
    page = browser.new_page()
    page.route("http://site/**", lambda route: route.fulfill(
        path=site / route.request.url.removeprefix("http://site/").partition("?")[0],
        headers={"Content-Security-Policy": policy}))
    page.add_init_script("""document.addEventListener("securitypolicyviolation", event => {
        throw Error(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`); })""")
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name in [*PAGES, "pages/playground", "pages/step"]:
        page.goto(f"http://site/{name}.html")
        page.wait_for_timeout(500)
    assert complaints == []
    page.close()
