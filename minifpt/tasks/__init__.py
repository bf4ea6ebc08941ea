"""The tasks, by name.

    task = minifpt.tasks.get("bit-xor", n=5)
    x, y = task.batch(np.random.default_rng(0), 32)

See :class:`Task` for their methods and attributes.
"""

import inspect
import types
import typing
from contextlib import suppress
from typing import Any

from ..plugins import USERS_OWN, load_object
from ..spelling import suggestion
from .base import (
    DEFAULTS,
    Classification,
    Task,
    TaskDefaults,
    check_task,
    defaults_of,
    optional,
)
from .bits import BitMemory, BitXOR
from .cifar import CIFAR10, CIFAR10Gray
from .images import MNIST, Digits
from .listops import ListOps
from .proteins import Homology
from .text import Masked, Text, Typos

# All classes above with a label.  ``Masked`` has none: only trunks are pretrained on it.
TASKS = {task.name: task for task in [*globals().values()]
         if isinstance(task, type) and vars(task).get("label")}

UNIONS = typing.Union, types.UnionType


def names():
    """Return the names of all tasks, in alphabetical order."""
    return sorted(TASKS)


def task_class(name):
    """Return the class of a task's name or ``FILE.py:CLASS``; ``ValueError`` for an unknown one."""
    if str(name).endswith(".py"):
        raise ValueError(f"{name}: expected the class in this file, too: {name}:CLASS")
    if USERS_OWN.fullmatch(str(name)):
        return load_object(name)
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"no task {str(name)!r:.100}{suggestion(name, TASKS)}: expected one of "
                         f"{', '.join(names())}, or FILE.py:CLASS")
    return TASKS[name]


def get(name: str, /, **options: Any) -> Classification:
    """Return the task ``name``, or that of ``FILE.py:CLASS``.  An option that is a text, as from a
    command line, is converted to the option's type.  Raises ``ValueError`` for an unknown name or
    option."""
    task = make(task_class(name), name, options)
    if USERS_OWN.fullmatch(name):
        with suppress(AttributeError):                    # of a frozen class
            task.minifpt_source = name                    # a run's config.json has it, see train
    return task


def make(function, name, options):
    """Return the task that a class, or a function, makes, and check that it is a :class:`Task`.

    Raises ``ValueError`` for an unknown option, a missing option, or a task that breaks the
    protocol.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except Exception:                                     # an annotation names what is not there
        parameters = inspect.signature(function).parameters
    for option in options:
        if option not in parameters:
            raise ValueError(f"{name} has no option '{option}'{suggestion(option, parameters)}: "
                             f"its options are {', '.join(parameters) or '(none)'}")
    for option, parameter in parameters.items():
        if (parameter.default is parameter.empty and option not in options
                and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)):
            raise ValueError(f"{name} needs the option '{option}'")
    options = {option: read_option(f"{name}: {option}", value, parameters[option])
               for option, value in options.items()}
    task = function(**options)
    check_task(task, name)
    if options and not optional(task, "options"):
        with suppress(AttributeError):                    # of a frozen class, or a property
            task.options = dict(options)                  # runs with other options are not the same
    return task


def read_option(label, value, parameter):
    """Return an option's value.  A text is converted to the type of its annotation or default, the
    parts of a text between commas to that of the first entry of a default tuple or list; where
    there is neither, and where the default is ``None``, it stays a text."""
    hint, default = parameter.annotation, parameter.default
    kinds = typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)  # bool | None
    kind = next((k for k in (str, bool, float, int) if k in kinds), type(default))
    if isinstance(value, list) and kind is tuple:         # from a run's config.json
        return tuple(value)
    if not isinstance(value, str) or kind in (str, type, type(None)):
        return value
    try:
        if isinstance(default, (tuple, list)):
            entry = inspect.Parameter("entry", parameter.kind, default=[*default, ""][0])
            return kind(read_option(label, part, entry) for part in value.split(","))
        return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError, TypeError) as e:
        if str(e).startswith(label):                      # of an entry
            raise
        expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(
            kind, f"of the kind {kind.__name__}")
        raise ValueError(f"{label} must be {expected}, got '{value}'") from None


def label_of(name):
    """Return the label of the task ``name`` in tables and pictures."""
    return optional(TASKS.get(name), "label") or name


def chance_of(name):
    """Return the chance accuracy of the task ``name``, 0 ... 1; ``None`` if it is unknown."""
    return optional(TASKS.get(name), "chance")
