"""minifpt: a GPT-2 in plain NumPy, every gradient by hand, frozen and put to other work."""

from . import functional, optim
from .fpt import FPT
from .freeze import FreezeMask
from .gpt2 import GPT2, GPT2Config, LanguageModel
from .gradcheck import gradcheck, gradcheck_layer

__version__ = "0.1.0"
__all__ = ["FPT", "GPT2", "FreezeMask", "GPT2Config", "LanguageModel", "functional",
           "gradcheck", "gradcheck_layer", "optim"]
