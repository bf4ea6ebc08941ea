import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
# Where the repository is, as https://HOST/OWNER/NAME.  The release workflow says so; elsewhere
# nobody does, and the package's page has no links to it.
HOME = os.environ.get("MINIFPT_HOME", "")


class BuildPy(build_py):
    """Starts from an empty ``build/lib``, which would bring back what an older version had, and
    leaves out the scripts in ``lessons``: of that folder the package takes notebooks and
    solutions."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package, package_dir):
        if package == "minifpt.lessons":
            return []
        return super().find_package_modules(package, package_dir)


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


def long_description():
    """The README for the package's page, where a link has to name its host; without a host only
    the links to other sites stay links."""
    def absolute(match):
        mark, text, target = match.groups()
        if re.match(r"https?://", target):
            return match[0]
        kind = "raw" if mark else "blob"
        return f"{mark}[{text}]({HOME}/{kind}/HEAD/{target})" if HOME else "" if mark else text
    text = re.sub(r"(!)\[([^]]*)\]\(([^)]*)\)", absolute, read("README.md"))
    picture = r"!\[[^]]*\]\([^)]*\)"                       # a link's text may be a picture
    return re.sub(rf"(?<!!)()\[((?:{picture}|[^]])*)\]\(([^)]*)\)", absolute, text)


setup(
    name="minifpt",
    version=re.search(r'^__version__ = "(.*)"', read("minifpt/__init__.py"), re.M)[1],
    description="A GPT-2 in plain NumPy, every gradient by hand, that reproduces "
                "'Pretrained Transformers as Universal Computation Engines'",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="the minifpt authors",                         # as in CITATION.cff
    license="MIT",
    license_files=["LICENSE"],
    keywords="transformer GPT-2 NumPy backpropagation gradients frozen pretrained teaching",
    project_urls={"Paper": "https://arxiv.org/abs/2103.05247"} | ({
        "Source": HOME, "Changes": f"{HOME}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{HOME}/issues"} if HOME else {}),
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)),
        "Topic :: Education",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed"],
    python_requires=">=3.11",
    packages=["minifpt", *(f"minifpt.{name}" for name in (
        "cli", "exercises", "experiments", "files", "gradients", "lessons", "pretrained", "reports",
        "tasks", "trunks", "viewer", "viewer.live", "viewer.steps"))],
    # Weights and lessons are beside the package in a clone and inside it when installed.
    package_dir={"minifpt.pretrained": "weights", "minifpt.lessons": "lessons"},
    package_data={"minifpt": ["py.typed"],
                  "minifpt.viewer": ["*.js"],
                  "minifpt.viewer.live": ["*.html", "*.css", "*.js", "*.md"],
                  "minifpt.viewer.steps": ["*.html", "*.css", "*.js"],
                  "minifpt.pretrained": ["*.npz", "*.txt"],
                  "minifpt.lessons": ["*.ipynb", "solutions/*.py"]},
    cmdclass={"build_py": BuildPy},
    install_requires=["numpy>=2.0", "scipy>=1.13", "matplotlib>=3.9", "tqdm>=4.60"],
    extras_require={
        "dask": ["distributed"],
        "data": ["pooch"],
        "docs": ["sphinx", "myst-nb", "furo"],
        "gpt2": ["huggingface_hub", "tokenizers"],
        "lessons": ["jupyterlab", "ipykernel"],
        "lite": ["jupyterlite-core", "jupyterlite-pyodide-kernel", "jupyter_server", "build"],
        "test": ["pytest", "pytest-xdist", "hypothesis", "tokenizers", "setuptools>=70.1"],
        "dev": ["jupytext", "nbclient", "nbformat", "ipykernel", "ruff", "build", "mypy", "mutmut"],
    },
    entry_points={"console_scripts": ["minifpt=minifpt.__main__:main"]},
)
