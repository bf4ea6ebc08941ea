"""Trunks by name, and trunks other than GPT-2.

    trunk = minifpt.trunks.get("random:1x4x256@1.41", seed=0)

See :class:`TrunkSpec` for the names.
"""

import numpy as np

from .names import TrunkSpec

__all__ = ["TrunkSpec", "get"]


def get(name, seed=0, dropout=None, dtype=np.float32):
    """Return the trunk that ``--model NAME`` makes; its random weights are drawn from ``seed``.

    ``dropout`` replaces the dropout of the weights.  Raises ``ValueError`` for an unknown name,
    ``FileNotFoundError`` for weights that are not there.
    """
    return TrunkSpec.parse(name).make(seed, dropout, dtype)
