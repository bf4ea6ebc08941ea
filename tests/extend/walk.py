"""A task of your own: on which side of its start does a walk end, seen through noise?

    minifpt train walk.py:Walk --noise 0.3 --task-steps 31

Each option is read as its default is: ``noise`` a number, ``steps`` a whole one.  As
``--steps`` is the number of training steps, the task's own is ``--task-steps``.
"""

import numpy as np

from minifpt.tasks import Classification


class Walk(Classification):
    """x (B, steps, 1): -1 or 1 with noise on it; y (B, 1): whether their sum is above 0."""

    name = "walk"
    input_dim, output_dim, output_tokens, classes = 1, 2, 1, 2

    def __init__(self, steps=15, noise=0.1):
        if steps < 1 or steps % 2 == 0:                   # an even walk may end where it began
            raise ValueError(f"walk: steps must be odd, got {steps}")
        self.tokens, self.noise = steps, noise
        self.options = {"steps": steps, "noise": noise}

    def draw(self, rng, size, split):
        walk = rng.choice([-1.0, 1.0], (size, self.tokens, 1))
        x = walk + rng.normal(0.0, self.noise, walk.shape)
        return x.astype(np.float32), (walk.sum(axis=1) > 0).astype(np.int64)
