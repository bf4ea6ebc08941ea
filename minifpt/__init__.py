"""minifpt: a GPT-2 in plain NumPy, every gradient written by hand, frozen and retrained."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:                                         # at run time: __getattr__ below
    from . import files, functional, optim, tasks
    from .exercises.own import new
    from .experiments.runs import load
    from .files.runs import History
    from .fpt import FPT
    from .freeze import FreezeMask
    from .gpt2 import GPT2, GPT2Config, LanguageModel
    from .gradients import assert_gradients, gradcheck
    from .tracing import trace
    from .training import Diverged, train
    from .trunks.forms import heads
    from .trunks.lstm import LSTM, LSTMConfig
    from .viewer.steps import steps

__version__ = "0.1.0"
# {name: its module}, for public names that are not modules.
MODULES = {"FPT": "fpt", "GPT2": "gpt2", "LSTM": "trunks.lstm", "Diverged": "training",
           "FreezeMask": "freeze", "GPT2Config": "gpt2", "History": "files.runs",
           "LSTMConfig": "trunks.lstm", "LanguageModel": "gpt2", "assert_gradients": "gradients",
           "gradcheck": "gradients", "heads": "trunks.forms", "load": "experiments.runs",
           "new": "exercises.own", "steps": "viewer.steps", "trace": "tracing", "train": "training"}


def __getattr__(name):
    """Import a public name at its first use: ``minifpt --help`` needs none of them, and Ctrl-C
    during a command's start reaches its entry point."""
    if name in MODULES:
        value = getattr(import_module(f".{MODULES[name]}", __name__), name)
    else:
        try:
            value = import_module(f".{name}", __name__)
        except ModuleNotFoundError as e:
            if e.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'") from None
    globals()[name] = value
    return value


__all__ = ["FPT", "GPT2", "LSTM", "Diverged", "FreezeMask", "GPT2Config", "History", "LSTMConfig",
           "LanguageModel", "assert_gradients", "files", "functional", "gradcheck", "heads", "load",
           "new", "optim", "steps", "tasks", "trace", "train"]
