"""Build the lessons that run in the browser: ``python docs/lite.py [OUT] [--pyodide FOLDER]``.

Needs ``pip install '.[lite]'``, and a network while it builds.  JupyterLite shows the lessons of
the spine.  minifpt is installed in the tab from a wheel beside the page, without weights and
outputs.  Each file of weights has a wheel of its own, which the first cell of a lesson asks for if
the lesson names it.  By default the browser loads Python (Pyodide), NumPy, SciPy and Matplotlib,
about 40 MB, from Pyodide's host.  With ``--pyodide`` they come from a copy of that folder, an
unpacked distribution, beside the page, and the site needs no network.
"""

import argparse
import base64
import hashlib
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
KERNEL = "@jupyterlite/pyodide-kernel-extension:kernel"


def spine():
    """Return the paths of the spine's notebooks, from the first table of lessons/README.md."""
    text = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| \d+\. \[.*?\]\((\w+\.ipynb)\)", text.partition("\n## Side")[0], re.M)
    return [ROOT / "lessons" / name for name in names]


def notebook(path):
    """Return a lesson without outputs, whose first cell installs minifpt and the weights."""
    text = without_outputs(path)
    content, weights = json.loads(text), [name for name in WEIGHTS if name in text]
    install = " ".join(["%pip install -q minifpt", *weights])
    content["cells"].insert(1, {"cell_type": "code", "id": "install", "metadata": {},
                                "outputs": [], "execution_count": None, "source": [install]})
    content["metadata"]["kernelspec"] = {"name": "python", "display_name": "Python (Pyodide)",
                                      "language": "python"}
    return json.dumps(content)


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
    write_wheel(folder, "minifpt", version, kept | notebooks, "\n".join(required) + "\n")
    for name, path in WEIGHTS.items():
        write_wheel(folder, name, version, {f"minifpt/pretrained/{path.name}": path.read_bytes()})


def build(out, pyodide=None):
    """Build the wheels, the notebooks and the site."""
    def python(*arguments):
        subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=work, check=True)

    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        for folder in ("lessons", "whole", "wheels"):
            (work / folder).mkdir()
        for path in spine():
            (work / "lessons" / path.name).write_text(notebook(path), encoding="utf-8")
        python("build", "--wheel", "-o", work / "whole", ROOT)
        split(next((work / "whole").glob("*.whl")), work / "wheels")
        python("pip", "download", "-q", "--no-deps", "-d", work / "wheels", "tqdm", "comm")
        wheels = [argument for path in sorted((work / "wheels").glob("*.whl"))
                  for argument in ("--piplite-wheels", path)]
        python("jupyter", "lite", "build", "--lite-dir", work, "--contents", work / "lessons",
               "--output-dir", out, *wheels)
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
    args = parser.parse_args()
    build(args.out.resolve(), args.pyodide)


if __name__ == "__main__":
    main()
