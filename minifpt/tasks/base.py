"""What a task is, and what the built-in ones share."""

import re
from typing import Any, Protocol

import numpy as np

from .. import fast as ops
from ..checks import array, brief, generator, whole

FILE_NAME = re.compile(r"\w[\w .,+=()-]{0,59}")            # a task's name is that of its folder


class Task(Protocol):
    """What training asks of a task.  Any object will do that has these.

    ``name``; ``tokens`` and ``input_dim`` (what comes in); ``output_tokens`` and
    ``output_dim`` (what is read: scores at each of the last tokens).  Some more are used where
    they are there:

    ``label``              its name in tables and pictures
    ``chance``             chance accuracy, 0 ... 1: that of a model that has learned nothing
    ``options``            the keyword arguments that build the task again
    ``defaults``           what a run takes unless told otherwise
    ``test_set()``         ``(x, y)`` of all that is held out
    ``ids``                whether x is ids (a plan makes some up where the data is not at hand)
    ``token_names()``      what the tokens are called, the same in every example
    ``tokens_as_text(x)``  the tokens of one example as the task writes them
    ``as_images(x)``       examples as pictures (B, height, width) or (B, height, width, 3)
    ``needed(x)``          bool (B, tokens, tokens): where a token has to look; rows without any
                           are not asked
    """

    name: str
    input_dim: int
    tokens: int
    output_dim: int
    output_tokens: int

    def batch(self, rng: np.random.Generator, size: int, split: str
              ) -> tuple[np.ndarray, np.ndarray]:
        """``size`` examples of the split "train" or "test", drawn from ``rng``: x float32
        (B, tokens, input_dim), or ids (B, tokens), and y integer (B, ...)."""

    def loss(self, logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """logits (B, output_tokens, output_dim) -> a float, and dlogits of the same shape."""

    def accuracy(self, logits: np.ndarray, y: np.ndarray) -> float:
        """The share that is right, a float in 0 ... 1."""


def check_task(task, name):
    """Raise a ``ValueError`` of one line for what is no :class:`Task`."""
    if isinstance(task, type):
        raise ValueError(f"{name} is a class, expected a task that was made from it")
    for part in ("name", "input_dim", "tokens", "output_dim", "output_tokens", "batch", "loss",
                 "accuracy"):
        if not hasattr(task, part):
            raise ValueError(f"{name} is no task: it has no '{part}' (see minifpt.tasks.Task; "
                             "minifpt.tasks.get makes one by its name)")
    if not isinstance(task.name, str) or not FILE_NAME.fullmatch(task.name):
        raise ValueError(f"{name}: the task's name is {brief(task.name)}, expected one that a "
                         "folder can have: at most 60 letters, digits, spaces and -_.,+=()")
    for part in ("input_dim", "tokens", "output_dim", "output_tokens"):
        whole(f"{name}: the task", part, getattr(task, part))


def draw(task, rng, size, split):
    """Return ``task.batch(rng, size, split)``, checked to be ``size`` examples."""
    pair = task.batch(rng, size, split)
    check_examples(task, pair, "batch")
    if len(pair[0]) != size:
        raise ValueError(f"train: {task.name}: batch was asked for {size} examples of '{split}' "
                         f"and returned {len(pair[0])}")
    return pair


def check_examples(task, pair, method):
    """Raise a ``ValueError`` of one line for what is no pair of x and y of equal length."""
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2
            and all(isinstance(a, np.ndarray) and a.ndim and a.size for a in pair)):
        raise ValueError(f"train: {task.name}: {method} must return x and y, two arrays that are "
                         "not empty")
    x, y = pair
    if x.shape[:1] != y.shape[:1]:
        raise ValueError(f"train: {task.name}: {method} returned x of shape {x.shape} and y of "
                         f"shape {y.shape}, expected as many examples in both")


def check_accuracy(task, value):
    """Raise a ``ValueError`` of one line for an accuracy that is no number in 0 ... 1."""
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ValueError(f"train: {task.name}: accuracy must return a number from 0 to 1, "
                         f"got {brief(value)}")


# What a run takes unless the task says otherwise.  The paper's are batch 4, a constant 1e-3 and
# dropout 0.1; a trunk six times narrower than GPT-2 learns with larger steps, and dropout hurts
# it more.
DEFAULTS = {"steps": 2000, "batch_size": 4, "lr": 3e-3, "dropout": 0.0, "schedule": "constant",
            "warmup": 0}
COSINE = {"batch_size": 16, "lr": 1e-2, "dropout": 0.0, "schedule": "cosine", "warmup": 100}


def defaults_of(task):
    """Return the settings of a run of this task, where no others are given."""
    return DEFAULTS | getattr(task, "defaults", {})


class Choices:
    """A :class:`Task` whose answers are choices among ``classes``, as all built-in ones are.

    A subclass sets ``name``, ``input_dim``, ``tokens``, ``output_dim``, ``output_tokens``,
    ``classes`` and ``options``, and has ``draw(rng, size, split)``, which :meth:`batch` checks
    the arguments for.
    """

    name: str
    input_dim: int
    tokens: int
    output_dim: int
    output_tokens: int
    classes: int
    options: dict[str, Any]
    label, chance = "", None
    defaults, ids = DEFAULTS, False
    splits = "train", "test"                              # and "validation", where there is one

    def batch(self, rng, size, split="train"):
        """``size`` examples drawn from ``rng``, a ``np.random.Generator``.

        Returns x (B, tokens, input_dim) float32, or ids (B, tokens) int64, and y int64
        (B, output_tokens), or (B, output_tokens, k) for k choices at each token.  Raises
        ``ValueError`` for a ``split`` that is not one of ``splits`` or a ``size`` below 1.
        """
        if split not in self.splits:
            raise ValueError(f"{self.name}: split must be {' or '.join(map(repr, self.splits))}, "
                             f"got {split!r}")
        return self.draw(generator(self.name, rng), whole(self.name, "size", size), split)

    def test_set(self):
        """``(x, y)`` of all that is held out, or ``None`` where every batch is fresh."""
        return None

    def loss(self, logits, y):
        """Cross-entropy, the mean over all choices, in nats.

        logits (B, output_tokens, output_dim), y as :meth:`batch` gives it -> a float and
        dlogits, of the shape and dtype of logits.
        """
        loss, cache = ops.cross_entropy(self.choices(logits, y), y)
        return float(loss), ops.cross_entropy_backward(1.0, cache).reshape(logits.shape)

    def accuracy(self, logits, y):
        """The share of right choices, a float in 0 ... 1; shapes as in :meth:`loss`.  It is NaN
        where a logit is NaN, as the loss is."""
        return float(self.right(logits, y).mean())

    def right(self, logits, y):
        """1 for each choice of ``logits`` that is right and 0 for a wrong one, of the shape of y;
        NaN where a logit is NaN."""
        logits = self.choices(logits, y)
        return np.where(np.isnan(logits.max(axis=-1)), np.nan, logits.argmax(axis=-1) == y)

    def choices(self, logits, y):
        """logits (B, output_tokens, output_dim) -> (*y.shape, classes)."""
        array(self.name, "logits", logits, "f")
        array(self.name, "y", y, "iu")
        want = (len(logits), self.output_tokens, self.output_dim)
        if logits.shape != want:
            raise ValueError(f"{self.name}: logits have shape {logits.shape}, expected {want}")
        if len(y) != len(logits) or y.size * self.classes != logits.size:
            k = self.output_dim // self.classes           # choices at each token
            raise ValueError(f"{self.name}: y has shape {y.shape}, expected "
                             f"{want[:2] if k == 1 else (*want[:2], k)}: logits of shape {want} "
                             f"choose among {self.classes} classes")
        return logits.reshape(*y.shape, self.classes)
