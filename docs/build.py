"""Build the site: ``python docs/build.py [OUT]`` (default: ``site/``).

``--pictures`` takes the pictures of the two pages again, which needs playwright and Chromium.
With ``pip install '.[lite]'`` the site has the lessons to run, too, as ``docs/lite.py`` builds
them, with ``--pyodide`` as there, and their pages link them.

Needs ``pip install '.[docs]'``, and a network once: MathJax is fetched from npm, compared with
its checksum and kept in the cache folder, so that the finished site needs no network.  The pages
keep their places of the repository, so that links work on both.  Warnings are errors, and
afterwards every link, picture and anchor of the finished pages is checked.
"""

import argparse
import base64
import contextlib
import hashlib
import html.parser
import inspect
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import lite  # noqa: E402

import minifpt  # noqa: E402
from minifpt import cli  # noqa: E402
from minifpt.files import cache_folder, write_beside  # noqa: E402
from minifpt.viewer.live import playground  # noqa: E402

MATHJAX = "https://registry.npmjs.org/mathjax/-/mathjax-3.2.2.tgz"
MATHJAX_SHA256 = "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09"
PAGES = ("RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "lessons/*.md",
         "lessons/[0-9]*.ipynb", "minifpt/viewer/live/tour.md", "weights/README.md",
         "benchmarks/README.md", "studies/*.md", "README.md")
FILES = ("docs/**/*.png", "minifpt/*.py", "docs/**/*.ipynb", "benchmarks/*.py",
         "studies/*.py", "studies/*.csv", "weights/*.png", "weights/*.csv",
         "tests/extend/*.py", "tests/gradient_cases.py", "lessons/*.py", "lessons/solutions/*.py",
         "CITATION.cff", ".github/workflows/*.yml")
API = {"tasks": "Tasks", "fpt": "The frozen pretrained transformer", "gpt2": "GPT-2",
       "layers": "Layers", "functional": "Operations and their gradients", "freeze": "Freezing",
       "training": "Training", "optim": "Optimisers", "tracing": "Tracing",
       "adapters": "Adapters",
       "gradients": "Checking gradients", "trunks": "Trunks"}
TITLES = {"surprise": "Three frozen models find a string", "curves": "Accuracy against steps",
          "memory-map": "Heads, spread and bit memory",
          "linear": "Linear classifiers",
          "paper": "The paper and ours",
          "rates": "Learning rates", "whole": "Frozen or trained whole"}

# ------------------------------------------------------------------------------- generated pages


def escaped(text):
    """Text in Markdown, where only code between double backquotes is set apart."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"``\1``", text)
    parts = re.split(r"``(.*?)``", text, flags=re.S)
    return "".join(f"`` {part} ``" if i % 2 else re.sub(r"([\\`*_\[\]<>$#|~{}])", r"\\\1", part)
                   for i, part in enumerate(parts))


def fenced(text, language=""):
    """Text as a code block, whatever is in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}\n"


def docstring(thing):
    """The docstring in Markdown: paragraphs as text, aligned or indented ones as they are."""
    text = inspect.getdoc(thing) or ""
    if text.startswith(f"{getattr(thing, '__name__', '')}("):   # Python's own, of a named tuple
        return ""
    blocks = [re.sub(r"::$", ":", block) for block in re.split(r"\n\s*\n", text)]
    aligned = re.compile(r"^\s|[^\s.:;?!)] {2,}\S|`` {2,}\S", re.M)
    return "\n".join(fenced(block) if aligned.search(block) else f"{escaped(block.strip())}\n"
                     for block in blocks if block.strip())


def entry(name, thing, level):
    """A heading, the signature and the docstring of a class or function; methods below."""
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError):
        signature = ""
    signature = re.sub(r"<([\w.]+) object at 0x\w+>", r"\1", signature)
    text = f"{'#' * level} {escaped(name)}\n\n{fenced(name + signature, 'python')}\n"
    text += docstring(thing) + "\n"
    if inspect.isclass(thing) and level < 3:
        for key, member in vars(thing).items():
            member = getattr(member, "__func__", member)
            if not key.startswith("_") and inspect.isfunction(member) and member.__doc__:
                text += entry(f"{name}.{key}", member, 3)
    return text


def api_page(module, title):
    """The reference of one module from its docstrings."""
    text = f"# {title}\n\n`minifpt.{module.__name__.partition('.')[2]}`\n\n{docstring(module)}\n"
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    for name in names:
        thing = getattr(module, name)
        ours = (getattr(thing, "__module__", None) or "").startswith(module.__name__)
        if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
            text += entry(name, thing, 2)
    return text


def command_page():
    """The command reference, from the parser."""
    text = "# Command reference\n\nThe help of every command, from its parser.\n"
    for group, commands in cli.GROUPS.items():
        text += f"\n## {group}\n"
        for name in commands:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                cli.parser([name, "--help"]).parse_args([name, "--help"])
            text += f"\n### minifpt {name}\n\n{fenced(out.getvalue().strip())}"
    return text


def pictures_of(notebook):
    """The stored pictures of a notebook, as PNG bytes."""
    return [base64.b64decode(output["data"]["image/png"])
            for cell in notebook["cells"] for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})]


# Each picture of a page: the folder of its sources in minifpt/viewer, and what is done before it is
# taken.
PICTURES = {
    "playground": ("live", "#tour=4", """async () => {
        by("acts").children[2].click();
        while (NOTES[3].busy || running || !cut_table || dirty)
            await new Promise(f => setTimeout(f, 100));
    }"""),
    "step": ("steps", "#output.linear/back", "() => toggle(0)")}


def sources(folder):
    """Return a checksum of all that makes a page of the viewer, to find a picture that is older."""
    viewer = ROOT / "minifpt" / "viewer"
    paths = [path for path in sorted((viewer / folder).iterdir())
             if path.suffix in (".js", ".css", ".html", ".md", ".json")]
    text = "".join(path.read_text(encoding="utf-8") for path in [viewer / "common.js", *paths])
    return hashlib.sha256(text.encode()).hexdigest()


def stale_pictures():
    """Return the names of the pictures in docs/ that were taken of older pages."""
    from PIL import Image
    stale = []
    for name, (folder, *_) in PICTURES.items():
        with Image.open(ROOT / "docs" / f"{name}.png") as picture:
            if picture.text.get("sources") != sources(folder):
                stale.append(name)
    return stale


def take_pictures():
    """Take the pictures of pages again, with Chromium and playwright."""
    from PIL import Image, PngImagePlugin
    from playwright.sync_api import sync_playwright
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        write_pages(Path(work))
        for name, (folder, address, script) in PICTURES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto((Path(work) / f"{name}.html").as_uri() + address)
            page.wait_for_timeout(2000)                   # the first step is there
            page.evaluate(script)
            page.wait_for_timeout(1000)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("P", palette=Image.ADAPTIVE)
            remark = PngImagePlugin.PngInfo()
            remark.add_text("sources", sources(folder))
            picture.save(ROOT / "docs" / f"{name}.png", pnginfo=remark, optimize=True)
        browser.close()


def write_pages(folder):
    """Write the live page, whose last station links the site around it, and the page of a step."""
    page = playground(site="../")
    (folder / "playground.html").write_text(page, encoding="utf-8")
    if cli.main(["steps", "bit-xor", "--out", folder / "step.html", "--force"]):
        raise ValueError("minifpt steps failed")


def gallery(stage):
    """Pictures, each a link: the live page, results, the largest picture of each lesson."""
    cards = [("The live page", "playground.png", "live.md"),
             ("One training step", "step.png", "step.md")]
    (stage / "docs" / "gallery").mkdir()
    cards += [(TITLES.get(path.stem, path.stem.replace("-", " ")),
               os.path.relpath(path, stage / "docs"), "../RESULTS.md")
              for path in sorted((stage / "docs" / "results").glob("*.png"))]
    for path in sorted((stage / "lessons").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        title = "".join(notebook["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
        if pictures := pictures_of(notebook):
            picture = stage / "docs" / "gallery" / f"{path.stem}.png"
            picture.write_bytes(max(pictures, key=len))
            cards.append((f"Lesson {title}", f"gallery/{picture.name}", f"../lessons/{path.name}"))
    lines = ["", ":::{container} gallery", ""]
    for title, picture, link in cards:
        lines += [f"[![{escaped(title)}]({picture})]({link})", f"[{escaped(title)}]({link})", ""]
    return "\n".join([*lines, ":::", ""])


# -------------------------------------------------------------------------------------- building


def mathjax(folder):
    """Put MathJax into a folder, from the cache or from npm."""
    archive_path = cache_folder() / "mathjax-3.2.2.tgz"
    if not archive_path.exists():
        with urllib.request.urlopen(MATHJAX, timeout=120) as answer:
            data = answer.read()
        if hashlib.sha256(data).hexdigest() != MATHJAX_SHA256:
            raise ValueError(f"{MATHJAX}: the file has another checksum than expected")
        write_beside(archive_path, lambda file: file.write(data))
    needed_files = re.compile(r"package/es5/(tex-chtml\.js|output/chtml/fonts/.*)$")
    with tarfile.open(archive_path) as archive:
        for member in archive.getmembers():
            if (match := needed_files.match(member.name)) and member.isfile():
                path = folder / match[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.extractfile(member).read())


def plain_folders(text, folder):
    """Markdown without links to folders, which a site does not list."""
    return re.sub(r"\[([^]]*)\]\(([^)#:\s]+)\)",
                  lambda m: m[1] if (folder / m[2]).is_dir() else m[0], text)


def launch_links(text):
    """The addresses of Binder and Colab as links, where ``MINIFPT_HOME`` names the repository."""
    repository = os.environ.get("MINIFPT_HOME", "").removeprefix("https://github.com/")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        return text
    return re.sub(r"^    (https://\S*)OWNER/NAME(\S*)$",
                  rf"- [\g<1>{repository}\g<2>](\g<1>{repository}\g<2>)", text, flags=re.M)


def station_links(text):
    """The texts of the tour, each station with a link to it."""
    head, *stations = text.split("\n## ")
    page = "../../../pages/playground.html"
    return head + "".join(
        f'\n## {station}\n<a href="{page}#tour={n}">Open station {n}</a>\n'
        for n, station in enumerate(stations, 1))


# Below the title of a lesson's page, and on the front page: what one knows before the click.  What
# is different in the tab stands there, see ``NOTE`` in lite.py.
RUN_LINK = """<a href="../lite/lab/index.html?path={name}.ipynb">Run in your browser</a>, with
nothing to install: the first lesson loads about {size} MB, which the browser then keeps. It needs a
computer with {memory} GB of free memory, and Chromium or Firefox; phones, other browsers and
private windows have not been tried."""
RUN_FIRST = """
- <a href="../lite/lab/index.html?path={name}.ipynb">Run the first lesson in this browser</a>, with
  nothing to install; it loads about {size} MB. Each of the twelve has such a link on its page.
"""


def with_link(path):
    """Return the text of a lesson's notebook with a link below its title that runs it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    text = RUN_LINK.format(name=path.stem, size=lite.SIZE, memory=lite.MEMORY)
    notebook["cells"].insert(1, {"cell_type": "markdown", "id": "run", "metadata": {},
                                 "source": text})
    return json.dumps(notebook)


def lay_out(stage, runs=()):
    """Copy and make every page under ``stage``, as in the repository; those of the lessons ``runs``
    get links that run them."""
    for pattern in (*PAGES, *FILES):
        for path in ROOT.glob(pattern):
            target = stage / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                text = path.read_text(encoding="utf-8")
                text = launch_links(plain_folders(text, path.parent))
                if path.name == "tour.md":
                    text = station_links(text)
                if runs and path == ROOT / "docs" / "index.md":
                    first = RUN_FIRST.format(name=runs[0].stem, size=lite.SIZE)
                    text = text.replace("\n- [Results]", f"{first}- [Results]")
                alone = "---\norphan: true\n---\n" * (path.name == "README.md"
                                                     and path.parent == ROOT)
                target.write_text(alone + text, encoding="utf-8")
            elif path in runs:
                target.write_text(with_link(path), encoding="utf-8")
            else:
                shutil.copy(path, target)
    docs = stage / "docs"
    (docs / "reference.md").write_text(command_page(), encoding="utf-8")
    with open(docs / "gallery.md", "a", encoding="utf-8") as page:
        page.write(gallery(stage))
    (docs / "api").mkdir()
    for name, title in API.items():
        (docs / "api" / f"{name}.md").write_text(api_page(getattr(minifpt, name), title),
                                                 encoding="utf-8")
    names = "\n".join(API)
    (docs / "api" / "index.md").write_text(
        f"# In code, by module\n\nFrom the docstrings.\n\n```{{toctree}}\n{names}\n```\n",
        encoding="utf-8")
    (stage / "_static").mkdir()
    shutil.copy(ROOT / "docs" / "site.css", stage / "_static")
    mathjax(stage / "_static" / "mathjax")


def build(out, pyodide=None):
    """Build the site; returns a list of problems."""
    from sphinx.cmd.build import build_main
    os.environ["COLUMNS"] = "88"                          # of the help texts
    with tempfile.TemporaryDirectory() as work:
        stage = Path(work) / "site"
        stage.mkdir()
        lay_out(stage, [] if lite.missing_packages() else lite.spine())
        shutil.copy(ROOT / "docs" / "conf.py", stage)
        if build_main(["-W", "--keep-going", "-q", "-b", "html", "-d", f"{work}/doctrees",
                       str(stage), f"{work}/build/html"]):
            return ["Sphinx reported problems, see above"]
        shutil.copytree(f"{work}/build/html", out, dirs_exist_ok=True)
    (out / "pages").mkdir(exist_ok=True)
    write_pages(out / "pages")
    (out / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>minifpt</title>'
        '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        '<a href="docs/index.html">minifpt</a>\n', encoding="utf-8")
    if not lite.missing_packages():
        lite.build(out / "lite", pyodide)
    return check(out)


# -------------------------------------------------------------------------------------- checking


class Links(html.parser.HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.add(attributes["href"])
        elif attributes.get("src"):
            self.loads.add(attributes["src"])
        elif tag == "link" and attributes.get("href"):
            self.loads.add(attributes["href"])


def check(out):
    """Return a line for each link, picture or anchor that leads nowhere, and for each thing that
    a page would load from the network."""
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")
             if "lite" not in path.relative_to(out).parts}           # those are JupyterLite's
    problems = []
    for path, page in pages.items():
        for target in sorted(page.links | page.loads):
            url = urllib.parse.urlsplit(target)
            if url.scheme in ("http", "https") or url.netloc:
                if target in page.loads:
                    problems.append(f"{path.relative_to(out)} loads {target}")
                continue
            if url.scheme:                                # data:, mailto:
                continue
            to = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            to = to / "index.html" if to.is_dir() else to
            anchor = urllib.parse.unquote(url.fragment)
            if not to.exists():
                problems.append(f"{path.relative_to(out)}: {target} leads nowhere")
            elif to.name == "playground.html":            # what follows # are its settings
                continue
            elif anchor and to in pages and anchor not in pages[to].ids:
                problems.append(f"{path.relative_to(out)}: {target} has no such place")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument("--pictures", action="store_true",
                        help="take docs/playground.png and docs/step.png again, no site")
    parser.add_argument("--pyodide", type=Path, metavar="FOLDER",
                        help="an unpacked Pyodide distribution for the lessons to run")
    args = parser.parse_args()
    if args.pyodide and lite.missing_packages():
        parser.error("--pyodide is for the lessons to run: pip install '.[lite]'")
    if args.pictures:
        return take_pictures()
    out = args.out.resolve()
    problems = build(out, args.pyodide)
    print("\n".join(problems) or f"{out}: open index.html")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
