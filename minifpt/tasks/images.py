"""Images, cut into patches, a patch a token."""

import numpy as np

from .. import data as files
from .base import Task, whole


class MNIST(Task):
    """Which digit is it?  The last token says.

    x (B, (size / patch)^2, patch^2), pixels in 0 ... 1; y (B, 1) in 0 ... 9.  ``size`` is 28,
    or 32 for two rows of zeros around the image, as in the paper.  ``data`` is the folder of
    the files, see :func:`minifpt.data.find`; they are read when they are first asked for.
    """

    name = "mnist"
    output_dim, output_tokens, classes = 10, 1, 10
    defaults = {"steps": 5000, "batch_size": 16, "lr": 1e-2, "dropout": 0.0,
                "schedule": "cosine", "warmup": 100}

    def __init__(self, patch=4, size=28, data=None):
        if size not in (28, 32):
            raise ValueError(f"{self.name}: size must be 28 or 32, got {size!r}")
        self.patch, self.size = whole(self.name, "patch", patch), int(size)
        if self.size % self.patch:
            raise ValueError(f"{self.name}: size must be divisible by patch, "
                             f"got size={size} and patch={patch}")
        self.data = None if data is None else str(data)
        self.input_dim, self.tokens = self.patch ** 2, (self.size // self.patch) ** 2
        self.options = {"patch": self.patch, "size": self.size, "data": self.data}
        self.read = {}                                    # split -> images, labels: as bytes

    def images(self, split):
        """All of a split as it is stored: uint8 (N, 28, 28) and labels uint8 (N,)."""
        if split not in self.read:
            self.read[split] = files.mnist(split, self.data)
        return self.read[split]

    def draw(self, rng, size, split):
        images, labels = self.images(split)
        chosen = rng.integers(0, len(images), size)       # with replacement: no epoch to keep
        return self.prepare(images[chosen], labels[chosen])

    def test_set(self):
        """``(x, y)`` of all test images, the official 10,000."""
        return self.prepare(*self.images("test"))

    def prepare(self, images, labels):
        x = images.astype(np.float32) / 255
        border = (self.size - 28) // 2
        x = np.pad(x, ((0, 0), (border, border), (border, border)))
        return patches(x, self.patch), labels.astype(np.int64)[:, None]


def patches(images, p):
    """images (B, H, W) -> (B, H/p * W/p, p * p): patches, and pixels in each, row by row."""
    B, H, W = images.shape
    x = images.reshape(B, H // p, p, W // p, p)
    return x.transpose(0, 1, 3, 2, 4).reshape(B, (H // p) * (W // p), p * p)
