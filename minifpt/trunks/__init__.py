"""Trunks by name, and trunks other than GPT-2.

    trunk = minifpt.trunks.get("random:1x4x256@1.41", seed=0)

See :class:`TrunkSpec` for the names.
"""

import numpy as np

from . import factory
from .factory import config_for, get
from .llama import Llama, LlamaConfig, LlamaLM
from .names import TrunkSpec

__all__ = ["Llama", "LlamaConfig", "LlamaLM", "TrunkSpec", "config_for", "get", "language_model"]


def language_model(name, dtype=np.float32, dropout=None):
    """Return the language model of weights by their name or path, a GPT-2 or a Llama.

    Raises ``ValueError`` or ``FileNotFoundError`` with one line, as ``from_pretrained`` does.
    """
    config, *_ = factory.read(name, dropout)
    return factory.CLASSES[type(config)][1].from_pretrained(name, dtype, dropout)
