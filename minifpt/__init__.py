"""minifpt: a GPT-2 in plain NumPy, every gradient written by hand, frozen and retrained."""

import os
import sys

try:
    from . import files, functional, optim, tasks
    from .files.runs import History
    from .fpt import FPT
    from .freeze import FreezeMask
    from .gpt2 import GPT2, GPT2Config, LanguageModel
    from .gradients import gradcheck, gradcheck_layer
    from .tracing import trace
    from .training import Diverged, train
    from .trunks.lstm import LSTM, LSTMConfig
except KeyboardInterrupt:                                 # Ctrl-C while the command starts
    if os.path.basename(sys.argv[0]) not in ("minifpt", "-m"):
        raise
    print("minifpt: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

__version__ = "0.1.0"


def __getattr__(name):
    """``minifpt.steps`` is read when it is first asked for: it needs half of the package."""
    if name != "steps":
        raise AttributeError(f"module 'minifpt' has no attribute '{name}'")
    from .viewer.steps import steps
    globals()["steps"] = steps
    return steps


__all__ = ["FPT", "GPT2", "LSTM", "Diverged", "FreezeMask", "GPT2Config", "History", "LSTMConfig",
           "LanguageModel", "files", "functional", "gradcheck", "gradcheck_layer", "optim", "steps",
           "tasks", "trace", "train"]
