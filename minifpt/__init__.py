"""minifpt: a GPT-2 in plain NumPy, every gradient written by hand, frozen and retrained."""

from . import files, functional, optim, tasks
from .files.runs import History
from .fpt import FPT
from .freeze import FreezeMask
from .gpt2 import GPT2, GPT2Config, LanguageModel
from .gradients import gradcheck, gradcheck_layer
from .tracing import trace
from .training import Diverged, train

__version__ = "0.1.0"
__all__ = ["FPT", "GPT2", "Diverged", "FreezeMask", "GPT2Config", "History", "LanguageModel",
           "files", "functional", "gradcheck", "gradcheck_layer", "optim", "tasks", "trace",
           "train"]
