import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Starts from an empty ``build/lib``, which would bring back what an older version had, and
    leaves out ``lessons/build.py``: of that folder the package takes notebooks and solutions."""

    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def find_package_modules(self, package, package_dir):
        if package == "minifpt.lessons":
            return []
        return super().find_package_modules(package, package_dir)


setup(
    name="minifpt",
    version="0.1.0",
    description="A GPT-2 in plain NumPy, every gradient by hand, that reproduces "
                "'Pretrained Transformers as Universal Computation Engines'",
    license="MIT",
    python_requires=">=3.11",
    packages=["minifpt", "minifpt.cli", "minifpt.exercises", "minifpt.experiments",
              "minifpt.files", "minifpt.lessons", "minifpt.pretrained", "minifpt.reports",
              "minifpt.tasks", "minifpt.trunks", "minifpt.viewer"],
    # Weights and lessons are beside the package in a clone and inside it when installed.
    package_dir={"minifpt.pretrained": "weights", "minifpt.lessons": "lessons"},
    package_data={"minifpt": ["py.typed"],
                  "minifpt.viewer": ["*.html", "*.css", "*.js"],
                  "minifpt.pretrained": ["*.npz", "*.txt"],
                  "minifpt.lessons": ["*.ipynb", "solutions/*.py"]},
    cmdclass={"build_py": BuildPy},
    install_requires=["numpy>=2.0", "scipy>=1.13", "matplotlib>=3.9", "tqdm>=4.60"],
    extras_require={
        "dask": ["distributed"],
        "data": ["pooch"],
        "gpt2": ["huggingface_hub", "tokenizers"],
        "lessons": ["jupyterlab", "ipykernel"],
        "test": ["pytest", "pytest-xdist", "hypothesis", "tokenizers", "setuptools>=70.1"],
        "dev": ["jupytext", "nbclient", "nbformat", "ipykernel", "ruff", "build", "mypy"],
    },
    entry_points={"console_scripts": ["minifpt=minifpt.__main__:main"]},
)
