from setuptools import setup

setup(
    name="minifpt",
    version="0.1.0",
    description="A GPT-2 in plain NumPy, every gradient by hand, that reproduces "
                "'Pretrained Transformers as Universal Computation Engines'",
    license="MIT",
    python_requires=">=3.11",
    packages=["minifpt", "minifpt.exercises", "minifpt.tasks", "minifpt.pretrained",
              "minifpt.notebooks"],
    # Weights and lessons lie beside the package in a checkout and inside it when installed.
    package_dir={"minifpt.pretrained": "weights", "minifpt.notebooks": "lessons"},
    package_data={"minifpt.pretrained": ["*.npz"],
                  "minifpt.notebooks": ["*.ipynb", "solutions/*.py"]},
    install_requires=["numpy>=2.0", "scipy", "matplotlib", "tqdm"],
    extras_require={
        "data": ["pooch"],
        "gpt2": ["huggingface_hub"],
        "lessons": ["jupyterlab", "ipykernel"],
        "test": ["pytest", "hypothesis"],
    },
    entry_points={"console_scripts": ["minifpt=minifpt.cli:main"]},
)
