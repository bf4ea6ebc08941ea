"""Build the lessons that run in the browser: ``python docs/lite.py [OUT]``, by default
``site/lite``.

Needs ``pip install '.[lite]'``.  JupyterLite shows lessons 1 to 6 and 10, which train nothing, with
minifpt's wheel beside them.  When a notebook is opened, the browser loads Python (Pyodide), NumPy,
SciPy and Matplotlib from Pyodide's host, so that reading needs a network.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = "01", "02", "03", "04", "05", "06", "10"
INSTALL = "%pip install -q minifpt tqdm                       # the wheel beside this page"


def notebook(path):
    """A lesson without outputs, whose first cell installs minifpt in the browser."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    content["cells"].insert(1, {"cell_type": "code", "id": "install", "metadata": {},
                             "source": [INSTALL], "outputs": [], "execution_count": None})
    content["metadata"]["kernelspec"] = {"name": "python", "display_name": "Python (Pyodide)",
                                      "language": "python"}
    return json.dumps(content)


def build(out):
    """Build the wheel, the notebooks and the site."""
    def python(*arguments):
        subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=work, check=True)

    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        (work / "lessons").mkdir()
        for number in LESSONS:
            path, = (ROOT / "lessons").glob(f"{number}_*.ipynb")
            (work / "lessons" / path.name).write_text(notebook(path), encoding="utf-8")
        python("build", "--wheel", "-o", work / "wheels", ROOT)
        wheel, = (work / "wheels").glob("*.whl")
        python("jupyter", "lite", "build", "--lite-dir", work, "--contents", work / "lessons",
               "--output-dir", out, "--piplite-wheels", wheel)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site" / "lite")
    out = parser.parse_args().out.resolve()
    if missing := [name for name in ("jupyterlite_core", "jupyterlite_pyodide_kernel", "build")
                   if importlib.util.find_spec(name) is None]:
        parser.error(f"needs {' '.join(missing)}: pip install '.[lite]'")
    build(out)


if __name__ == "__main__":
    main()
