"""The protocol of tasks, its checks, and the base class of the built-in tasks."""

import math
import random
import re
from typing import Any, Protocol

import numpy as np

from ..checks import array, arrays_in, brief, crc, generator, one_of, whole
from ..fast import ops

FILE_NAME = re.compile(r"\w[\w .,+=()-]{0,59}")            # a task's name names its folder
COMPARED = 512                                            # examples of a split, see fingerprint


class Task(Protocol):
    """A task that a model can be trained on.  Any object with these members is a task.

    ``name``; ``tokens`` and ``input_dim``, the shape of an example; ``output_tokens``, the number
    of tokens that are read, from the end, and ``output_dim``, the scores at each.  A task may also
    have the members of :class:`TaskDefaults`.
    """

    name: str
    input_dim: int
    tokens: int
    output_dim: int
    output_tokens: int

    def batch(self, rng: np.random.Generator, size: int, split: str
              ) -> tuple[np.ndarray, np.ndarray]:
        """Draw ``size`` examples of the split "train" or "test" from ``rng``: x float32
        (B, tokens, input_dim), or ids (B, tokens), and y integer (B, ...)."""

    def loss(self, logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """logits (B, output_tokens, output_dim) -> a float, and dlogits of the same shape."""

    def accuracy(self, logits: np.ndarray, y: np.ndarray) -> float:
        """Return the share of right answers, a float in 0 ... 1."""


class TaskDefaults:
    """The optional members of a task, with their defaults; :func:`optional` reads them."""

    label: str = ""                                       # its name in tables and pictures
    chance: float | None = None                           # chance accuracy, 0 ... 1
    target_accuracy: float | None = None                  # accuracy that ends a run, see train
    options: dict[str, Any] = {}                          # keyword arguments that build it again
    defaults: dict[str, Any] = {}                         # default settings of a run
    splits: tuple[str, ...] = "train", "test"             # "validation" chooses learning rates
    ids: bool = False                                     # whether x is ids
    classes: int | None = None                            # of each choice, see Classification
    redrawn: str | None = None                            # option that a grid sets to the seed

    def test_set(self):
        """Return ``(x, y)`` of all held-out examples, or ``None`` if every batch is fresh."""

    def fingerprint(self):
        """Return a text that changes with the data, or ``None`` to compare some examples."""

    def token_names(self):
        """Return names of the tokens, the same in every example, or ``None``."""

    def tokens_as_text(self, x):
        """Return the tokens of one example as texts, or ``None``."""

    def symbols_as_text(self, ids):
        """Return answers as texts."""
        return [str(i) for i in ids]

    def as_images(self, x):
        """Return examples as pictures (B, height, width) or (B, height, width, 3), or ``None``."""

    def needed(self, x):
        """Return which tokens each token has to attend to, bool (B, tokens, tokens), or ``None``.
        A token without any does not count."""


def optional(task, name):
    """Return an optional member of a task or of its class, or its default in
    :class:`TaskDefaults`."""
    return getattr(task, name, getattr(TaskDefaults(), name))


def check_task(task, name):
    """Raise ``ValueError`` for an object that breaks the protocol :class:`Task`."""
    if isinstance(task, type):
        raise ValueError(f"{name} is a class, expected an object of that class")
    for part in ("name", "input_dim", "tokens", "output_dim", "output_tokens", "batch", "loss",
                 "accuracy"):
        if not hasattr(task, part):
            raise ValueError(f"{name} is not a task: it has no '{part}' (see minifpt.tasks.Task; "
                             "minifpt.tasks.get makes one by its name)")
    if not isinstance(task.name, str) or not FILE_NAME.fullmatch(task.name):
        raise ValueError(f"{name}: the task's name is {brief(task.name)}, expected a folder's "
                         "name: at most 60 letters, digits, spaces and -_.,+=()")
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


def check_repeats(task):
    """Raise ``ValueError`` for a task that draws other examples from the same generator: it keeps
    a place in its data, or a generator of its own, which a resumed run begins anew."""
    first, again = (task.batch(np.random.default_rng(0), 16, "train") for _ in range(2))
    if not all(map(np.array_equal, first, again)):
        raise ValueError(f"train: {task.name}: batch returns other examples for the same "
                         "generator, so a resumed run would not see those of a whole one: draw "
                         "from the generator alone, or begin a new run in another folder")


def fingerprint(task):
    """Return a text that changes with a task's data: by the task's method ``fingerprint``, or a
    CRC-32 of ``COMPARED`` examples of each split and of the arrays that the task holds.  Data
    elsewhere, in files or globals, are not compared."""
    if text := optional(task, "fingerprint")():
        return text
    arrays = [np.asarray(a) for split in ("train", "test") for rng in [np.random.default_rng(0)]
              for _ in range(COMPARED // 16) for a in task.batch(rng, 16, split)]
    arrays += [a for a in arrays_in(task) if not a.dtype.hasobject]       # some are read by a draw
    return crc(arrays)


def check_examples(task, pair, method):
    """Raise ``ValueError`` unless ``pair`` is two arrays, x and y, with equally many examples."""
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2
            and all(isinstance(a, np.ndarray) and a.ndim and a.size for a in pair)):
        raise ValueError(f"train: {task.name}: {method} must return x and y, two arrays that are "
                         "not empty")
    x, y = pair
    if x.shape[:1] != y.shape[:1]:
        raise ValueError(f"train: {task.name}: {method} returned x of shape {x.shape} and y of "
                         f"shape {y.shape}, expected as many examples in both")
    if x.shape[1:2] != (task.tokens,):
        raise ValueError(f"train: {task.name}: {method} returned x of shape {x.shape}, expected "
                         f"(B, {task.tokens}, ...) for its {task.tokens} tokens")


def check_accuracy(task, value):
    """Raise ``ValueError`` unless an accuracy is a number in 0 ... 1."""
    if not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ValueError(f"train: {task.name}: accuracy must return a number from 0 to 1, "
                         f"got {brief(value)}")


def dry_run(model, task):
    """Return an example of a task, and the model's loss on it.  Raises ``ValueError`` if task or
    model lack a method, or if a method returns the wrong kind of value."""
    if isinstance(model, type) or not all(hasattr(model, part) for part in (
            "forward", "backward", "named_parameters", "all_frozen")):
        raise ValueError(f"train: the model is {brief(model)}, expected a minifpt.FPT, as "
                         "minifpt.FPT.for_task(task) makes it, a LanguageModel or another Layer")
    check_task(task, f"train: {brief(task)}")

    def global_state():
        state = [np.asarray(part).tobytes() for part in np.random.get_state()]   # noqa: NPY002
        return state, random.getstate()
    before = global_state()
    for split in ("train", "test"):                       # both are there; the second is looked at
        x, y = draw(task, np.random.default_rng(0), 1, split)
    if global_state() != before:
        raise ValueError(f"train: {task.name}: batch draws from np.random or random, expected from "
                         "the generator that it gets: no seed would repeat the run")
    with model.all_frozen():
        logits, _ = model.forward(x)
    pair = task.loss(logits, y)
    form = logits.shape, logits.dtype
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and np.ndim(pair[0]) == 0
            and (getattr(pair[1], "shape", None), getattr(pair[1], "dtype", None)) == form):
        raise ValueError(f"train: {task.name}: loss must return a number and its gradient, of the "
                         f"logits' shape {logits.shape} and dtype {logits.dtype}")
    if math.isfinite(pair[0]):                            # otherwise the caller raises Diverged
        check_accuracy(task, task.accuracy(logits, y))
    return x, float(pair[0])


# The default settings of a run.  The paper has batch size 4, a constant learning rate of 1e-3 and
# dropout 0.1.  A trunk that is six times narrower than GPT-2 learns with larger learning rates,
# and dropout hurts it more.
DEFAULTS = {"steps": 2000, "batch_size": 4, "lr": 3e-3, "dropout": 0.0, "schedule": "constant",
            "warmup": 0}
COSINE = {"batch_size": 16, "lr": 1e-2, "dropout": 0.0, "schedule": "cosine", "warmup": 100}


def defaults_of(task):
    """Return the default settings of a run of this task."""
    return DEFAULTS | optional(task, "defaults")


class Classification(TaskDefaults):
    """The base class of the built-in tasks: each answer is a choice among ``classes``.

    A subclass sets ``name``, ``input_dim``, ``tokens``, ``output_dim``, ``output_tokens``,
    ``classes`` and ``options``.  It has ``draw(rng, size, split)``, which :meth:`batch` calls with
    checked arguments.
    """

    name: str
    input_dim: int
    tokens: int
    output_dim: int
    output_tokens: int
    classes: int
    defaults = DEFAULTS

    def batch(self, rng, size, split="train"):
        """Draw ``size`` examples from ``rng``, a ``np.random.Generator``.

        Returns x (B, tokens, input_dim) float32, or ids (B, tokens) int64, and y int64
        (B, output_tokens), or (B, output_tokens, k) for k choices at each token.  Raises
        ``ValueError`` for an unknown ``split`` or a ``size`` below 1.
        """
        one_of(self.name, "split", split, self.splits)
        return self.draw(generator(self.name, rng), whole(self.name, "size", size), split)

    def loss(self, logits, y):
        """Return the cross-entropy, the mean over all choices in nats, and its gradient.

        logits (B, output_tokens, output_dim), y from :meth:`batch` -> a float, and dlogits with
        the shape and dtype of logits.
        """
        loss, cache = ops().cross_entropy(self.choices(logits, y), y)
        return float(loss), ops().cross_entropy_backward(1.0, cache).reshape(logits.shape)

    def accuracy(self, logits, y):
        """Return the share of right choices, a float in 0 ... 1; shapes as in :meth:`loss`.  If a
        logit is NaN, it is NaN, as the loss is."""
        return float(self.right(logits, y).mean())

    def right(self, logits, y):
        """Return, in y's shape, 1 for right choices, 0 for wrong ones, NaN where a logit is NaN."""
        logits = self.choices(logits, y)
        return np.where(np.isnan(logits.max(axis=-1)), np.nan, logits.argmax(axis=-1) == y)

    def choices(self, logits, y):
        """Return each choice's scores: (B, output_tokens, output_dim) -> (*y.shape, classes)."""
        array(self.name, "logits", logits, "f")
        array(self.name, "y", y, "iu")
        shape = (*logits.shape[:1], self.output_tokens, self.output_dim)
        if logits.shape != shape:
            raise ValueError(f"{self.name}: logits have shape {logits.shape}, expected {shape}")
        if self.output_dim % self.classes:
            raise ValueError(f"{self.name}: output_dim is {self.output_dim}, expected a multiple "
                             f"of its {self.classes} classes")
        if y.max(initial=0) >= self.classes:
            raise ValueError(f"{self.name}: y has the class {y.max()}, expected 0 to "
                             f"{self.classes - 1}")
        if y.shape[:1] != logits.shape[:1] or y.size * self.classes != logits.size:
            k = self.output_dim // self.classes           # choices at each token
            raise ValueError(f"{self.name}: y has shape {y.shape}, expected "
                             f"{shape[:2] if k == 1 else (*shape[:2], k)}: logits of shape {shape} "
                             f"choose among {self.classes} classes")
        return logits.reshape(*y.shape, self.classes)


class FileTask(Classification):
    """The base class of tasks whose examples are in files, which are read at their first use.

    A subclass has ``stored(split)``, which returns all examples of a split and their answers, two
    arrays, and ``prepare(examples, answers, rng)``, which returns x and y for some of them; ``rng``
    is ``None`` but for training.
    """

    def fingerprint(self):
        """Return a CRC-32 of all examples and answers."""
        return crc(a for split in self.splits for a in self.stored(split))

    def draw(self, rng, size, split):
        examples, answers = self.stored(split)
        chosen = rng.integers(0, len(examples), size)     # with replacement: no epoch to keep
        return self.prepare(examples[chosen], answers[chosen], rng if split == "train" else None)

    def test_set(self):
        """Return ``(x, y)`` of all test examples."""
        return self.prepare(*self.stored("test"))
