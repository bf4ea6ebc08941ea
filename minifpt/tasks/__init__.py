"""The tasks a model is put to, by name.

    task = minifpt.tasks.get("bit-xor", n=5)
    x, y = task.batch(np.random.default_rng(0), 32)

See :class:`Task` for what each of them has.
"""

import inspect

from .base import Task
from .bits import BitMemory, BitXOR
from .images import MNIST, Digits
from .text import Text

TASKS = {task.name: task for task in (BitMemory, BitXOR, Digits, MNIST, Text)}
__all__ = ["MNIST", "BitMemory", "BitXOR", "Digits", "Task", "Text", "get", "names"]


def names():
    """The names of all tasks, in alphabetical order."""
    return sorted(TASKS)


def get(name, **options):
    """The task called ``name``.  Raises ``ValueError`` for a name or option that is none."""
    if name not in TASKS:
        raise ValueError(f"no task '{name}': expected one of {', '.join(names())}")
    known = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option '{option}': its options are "
                             f"{', '.join(known)}")
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in options:
            raise ValueError(f"{name} needs the option '{option}'")
    return TASKS[name](**options)
