import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
HOME = os.environ.get("MINIFPT_HOME", "")                 # the repository's, from a workflow
HOST = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+)", HOME)
URLS = {"Paper": "https://arxiv.org/abs/2103.05247"}
if HOME:
    URLS["Source"] = HOME
if HOST:
    URLS["Documentation"] = f"https://{HOST[1]}.github.io/{HOST[2]}/"
TESTS = f"{HOME}/actions/workflows/test.yml"
BADGE = f"[![tests]({TESTS}/badge.svg)]({TESTS})\n\n" if HOST else ""


class BuildPy(build_py):
    """Begins with an empty ``build/lib``, and takes notebooks but no scripts from ``lessons``."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package, folder):
        return [] if package == "minifpt.lessons" else super().find_package_modules(package, folder)


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


def with_host(match):
    kind = "raw" if match[1].endswith(".png") else "blob"
    return f"]({HOME}/{kind}/HEAD/{match[1]})"


setup(
    name="minifpt",
    version=re.search(r'^__version__ = "(.*)"', read("minifpt/__init__.py"), re.M)[1],
    description="A GPT-2 in plain NumPy, every gradient by hand, that reproduces "
                "'Pretrained Transformers as Universal Computation Engines'",
    long_description=BADGE + re.sub(r"\]\((?!https?://)(.*?)\)", with_host, read("README.md")),
    long_description_content_type="text/markdown",
    author=re.search('- name: "(.*)"', read("CITATION.cff"))[1],
    license="MIT", license_files=["LICENSE"],
    keywords="transformer GPT-2 NumPy backpropagation gradients frozen pretrained teaching",
    project_urls=URLS,
    python_requires=">=3.11",
    packages=["minifpt", *(f"minifpt.{name}" for name in (
        "cli", "exercises", "experiments", "files", "gradients", "lessons", "pretrained", "reports",
        "tasks", "trunks", "viewer", "viewer.live", "viewer.steps"))],
    # Weights and lessons are beside the package in a clone and inside it when installed.
    package_dir={"minifpt.pretrained": "weights", "minifpt.lessons": "lessons"},
    package_data={"minifpt": ["py.typed"], "minifpt.pretrained": ["*.npz", "*.txt"],
                  "minifpt.viewer": ["*.js", "*/*.html", "*/*.css", "*/*.js", "*/*.json", "*/*.md"],
                  "minifpt.lessons": ["*.ipynb", "solutions/*.py"]},
    cmdclass={"build_py": BuildPy},
    install_requires=["numpy>=2.0", "scipy>=1.13", "matplotlib>=3.8.4", "tqdm>=4.60"],
    extras_require={
        "dask": ["distributed"], "data": ["pooch"], "docs": ["sphinx", "myst-nb", "furo"],
        "gpt2": ["huggingface_hub", "tokenizers"], "lessons": ["jupyterlab", "ipykernel"],
        "lite": ["jupyterlite-core==0.6.4", "jupyterlite-pyodide-kernel==0.6.1", "jupyter_server",
                 "build"],
        "test": ["pytest", "pytest-xdist", "hypothesis", "tokenizers", "setuptools>=70.1"],
        "dev": ["jupytext", "nbclient", "nbformat", "ruff", "build", "mypy", "mutmut"]},
    entry_points={"console_scripts": ["minifpt=minifpt.__main__:main"]})
