"""minifpt: a GPT-2 in plain NumPy, every gradient by hand, frozen and put to other work."""

from . import functional, optim, tasks
from .fpt import FPT
from .freeze import FreezeMask
from .gpt2 import GPT2, GPT2Config, LanguageModel
from .gradcheck import gradcheck, gradcheck_layer
from .train import Diverged, History, train

__version__ = "0.1.0"
__all__ = ["FPT", "GPT2", "Diverged", "FreezeMask", "GPT2Config", "History", "LanguageModel",
           "functional", "gradcheck", "gradcheck_layer", "optim", "tasks", "train"]
