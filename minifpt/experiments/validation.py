"""The view of a task by which a learning rate is chosen."""

import numpy as np

from ..tasks.base import fingerprint, optional

VALIDATION_EXAMPLES = 2000                                # used to choose a learning rate
MARK = {"validation_examples": VALIDATION_EXAMPLES}       # of such a run, in its config.json


class Validation:
    """A task whose tests use its validation split, or fresh training draws where it has none.

    Learning rates are chosen by it.  The last test of a run has ``VALIDATION_EXAMPLES`` examples,
    the same for all trunks, learning rates and seeds."""

    def __init__(self, task):
        self.task, self.validation_set = task, None
        self.split = "validation" if "validation" in optional(task, "splits") else "train"

    def __getattr__(self, name):
        if name == "task":                                # a copy asks before it has one
            raise AttributeError(name)
        return getattr(self.task, name)

    def fingerprint(self):
        """Return the fingerprint of the task's data."""
        return fingerprint(self.task)

    def batch(self, rng, size, split):
        """Return a batch of the task, with validation examples for the split ``test``."""
        return self.task.batch(rng, size, self.split if split == "test" else split)

    def test_set(self):
        """Return ``(x, y)`` of the validation examples."""
        if self.validation_set is None:
            rng = np.random.default_rng(0xC401CE)
            self.validation_set = self.batch(rng, VALIDATION_EXAMPLES, "test")
        return self.validation_set
