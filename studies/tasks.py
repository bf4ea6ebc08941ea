"""A task of the studies in this folder that the package does not have: few labelled examples.

    minifpt train studies/tasks.py:Few --of mnist --labels 100
"""

import inspect

import numpy as np

from minifpt.checks import crc, generator, one_of, whole
from minifpt.tasks import CIFAR10, MNIST, Digits

OF = {task.name: task for task in (CIFAR10, Digits, MNIST)}


class Few:
    """The task ``of``, trained on only ``labels`` of its training examples.

    These are drawn like a batch, so that a stored example may be drawn twice.  The choice depends
    only on ``draw``, for which ``minifpt compare`` and ``minifpt reproduce`` take the seed of
    each run.  Nothing is augmented.  The tests are those of the other task.
    """

    name = "few"
    splits = "train", "validation", "test"
    redrawn = "draw"                                      # the option that a grid sets to the seed

    def __init__(self, of="digits", labels=200, draw=0, data=None):
        one_of("few", "of", of, OF)
        takes = inspect.signature(OF[of]).parameters
        options = {"data": data, "augment": False}
        self.task = OF[of](**{name: options[name] for name in options if name in takes})
        self.labels = whole("few", "labels", labels)
        self.which = whole("few", "draw", draw, 0, np.inf)
        self.name = f"few-{of}"
        self.options = {"of": of, "labels": self.labels, "draw": self.which, "data": data}
        self.training_set = None

    def __getattr__(self, name):
        if name == "task":                                # during __init__
            raise AttributeError(name)
        return getattr(self.task, name)

    def examples(self):
        """Return ``(x, y)`` of the training examples."""
        if self.training_set is None:
            rng = np.random.default_rng([self.which, 0xFE3])
            self.training_set = self.task.batch(rng, self.labels, "train")
        return self.training_set

    def batch(self, rng, size, split="train"):
        """Draw a batch as the other task does, but for "train" from the few examples."""
        if split != "train":
            return self.task.batch(rng, size, split)
        x, y = self.examples()
        chosen = generator("few", rng).integers(0, self.labels, whole("few", "size", size))
        return x[chosen], y[chosen]

    def fingerprint(self):
        """Return a CRC-32 of the training and some test examples, and of the other task's own."""
        other = self.task.fingerprint() if hasattr(self.task, "fingerprint") else ""
        return crc([*self.examples(), *self.task.batch(np.random.default_rng(0), 16, "test"),
                    np.frombuffer(other.encode(), np.uint8)])
