"""Few labels: another task, of which only some examples may be trained on."""

import inspect

import numpy as np

from ..checks import generator, whole
from ..files.runs import crc
from .bits import BitMemory, BitXOR
from .cifar import CIFAR10, CIFAR10Gray
from .images import MNIST, Digits
from .listops import ListOps
from .proteins import Families, Homology
from .text import Typos

OF = {task.name: task for task in (BitMemory, BitXOR, CIFAR10, CIFAR10Gray, Digits, Families,
                                   Homology, ListOps, MNIST, Typos)}


class Few:
    """The task ``of``, trained on ``labels`` of its training examples only, again and again.

    They are drawn as a batch is: of stored examples one may be drawn twice.  Which they are
    depends on ``draw`` alone; ``minifpt compare`` and ``minifpt reproduce`` take the seed of each
    run for it.  Nothing is augmented.  Tests are the other task's own.
    """

    name = "few"
    splits = "train", "validation", "test"
    redrawn = "draw"                                      # the option that a grid sets to the seed

    def __init__(self, of="digits", labels=200, draw=0, data=None):
        if of not in [*OF]:
            raise ValueError(f"few: of is {of!r}, expected the name of another task, one of "
                             f"{', '.join(OF)}")
        takes = inspect.signature(OF[of]).parameters
        self.task = OF[of](**{option: value for option, value in (("data", data), (
            "augment", False)) if option in takes})
        self.labels = whole("few", "labels", labels)
        self.which = whole("few", "draw", draw, 0, np.inf)
        self.name = f"few-{of}"
        self.options = {"of": of, "labels": self.labels, "draw": self.which, "data": data}
        self.kept = None

    def __getattr__(self, name):
        if name == "task":                                # not made yet
            raise AttributeError(name)
        return getattr(self.task, name)

    def examples(self):
        """``(x, y)`` of what may be trained on."""
        if self.kept is None:
            rng = np.random.default_rng([self.which, 0xFE3])
            self.kept = self.task.batch(rng, self.labels, "train")
        return self.kept

    def batch(self, rng, size, split="train"):
        """As the other task's; the split "train" draws from the few."""
        if split != "train":
            return self.task.batch(rng, size, split)
        x, y = self.examples()
        chosen = generator("few", rng).integers(0, self.labels, whole("few", "size", size))
        return x[chosen], y[chosen]

    def fingerprint(self):
        """CRC-32 of some of the data that the labels are drawn from; ``draw`` is an option."""
        return crc(a for split in ("train", "test")
                   for a in self.task.batch(np.random.default_rng(0), 16, split))
