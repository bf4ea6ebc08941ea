"""A grid's child process in the tests, which draws no pictures."""

from minifpt import training
from minifpt.experiments import workers


def write_dot(histories, path, *_):
    """Write a file instead of the learning curves."""
    path.write_bytes(b"none")


if __name__ == "__main__":
    training.curves = write_dot
    workers.child()
