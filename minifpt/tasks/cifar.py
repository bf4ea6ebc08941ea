"""CIFAR-10: small pictures of ten kinds of things, in colour or in grey."""

import numpy as np

from ..files import data as files
from .base import COSINE
from .images import Stored, patches

# Of red, green and blue over the 50,000 official training pictures.  The paper's code divides by
# 0.2023, 0.1994 and 0.2010, which is the mean of each picture's own deviation.
MEAN, STD = (np.array(numbers, np.float32) for numbers in (
    (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
PADDING, DEGREES = 4, 20                                  # of what is augmented
LUMA = 0.2989, 0.5870, 0.1140                             # grey of red, green and blue (ITU-R 601)


class CIFAR10(Stored):
    """What is in the picture?  The last token says: one of ten kinds of things.

    x (B, (32 / patch)^2, 3 patch^2), a pixel's three colours side by side, each colour less its
    mean and divided by its deviation (``MEAN``, ``STD``); y (B, 1) in 0 ... 9.  ``augment``:
    training pictures are moved, mirrored and turned, see :func:`moved`; others never are.  The
    last tenth of the training pictures, 5,000, is the validation split.
    """

    name = "cifar10"
    label = "CIFAR-10"
    chance = 0.1
    defaults = COSINE | {"steps": 5000}
    held_out = 10

    def __init__(self, patch=4, augment=True, data=None):
        if not isinstance(augment, (bool, np.bool_)):
            raise ValueError(f"{self.name}: augment must be true or false, got {augment!r}")
        super().__init__(patch, 32, data)
        self.input_dim *= 3
        self.augment = bool(augment)
        self.options = {"patch": self.patch, "augment": self.augment, "data": self.data}

    def load(self, split):
        return files.cifar10(split, self.data)            # uint8 (N, 3, 32, 32) and (N,)

    def prepare(self, images, labels, rng=None):
        if self.augment and rng is not None:
            images = augmented(images, rng)
        x = np.stack([patches(plane, self.patch) for plane in images.swapaxes(0, 1)], axis=-1)
        x = (x - 255 * MEAN) / (255 * STD)                # (B, T, patch^2, 3) float32
        return x.reshape(*x.shape[:2], -1), labels.astype(np.int64)[:, None]


class CIFAR10Gray(Stored):
    """CIFAR-10 in grey, a pixel a token, as in the Long Range Arena (Tay et al. 2020, arXiv
    2011.04006).  The last token says what is in the picture.

    x (B, side^2, 1), grey in 256 levels from -1 to 1; y (B, 1) in 0 ... 9.  Nothing is
    augmented.  A ``side`` of 16, 8 or 4 averages squares of pixels: 256, 64 or 16 tokens in
    place of 1,024, for trunks with fewer positions.
    """

    name = "cifar10-gray"
    label = "CIFAR-10 LRA"
    chance = 0.1
    defaults = COSINE | {"steps": 2000}
    held_out = 10

    def __init__(self, side=32, data=None):
        if side not in (32, 16, 8, 4):
            raise ValueError(f"{self.name}: side must be 32, 16, 8 or 4, got {side!r}")
        super().__init__(1, 32, data)
        self.size, self.tokens = int(side), int(side) ** 2
        self.options = {"side": self.size, "data": self.data}

    def load(self, split):
        return files.cifar10(split, self.data)            # uint8 (N, 3, 32, 32) and (N,)

    def prepare(self, images, labels, rng=None):
        grey = np.rint(sum(np.float32(w) * images[:, c] for c, w in enumerate(LUMA)))
        k = 32 // self.size
        grey = grey.reshape(-1, self.size, k, self.size, k).mean(axis=(2, 4))
        return patches(grey / 127.5 - 1, 1), labels.astype(np.int64)[:, None]


def augmented(images, rng):
    """images (B, C, H, W) -> the same in other places: each one cropped at random from itself
    with 4 black pixels around, mirrored with probability 1/2, and then turned by up to 20
    degrees, which is the paper's order.  The numbers are drawn from ``rng``."""
    B = len(images)
    crop = rng.integers(-PADDING, PADDING + 1, (B, 2))
    mirrored = rng.integers(0, 2, B) == 1
    return moved(images, crop, mirrored, np.radians(rng.uniform(-DEGREES, DEGREES, B)))


def moved(images, crop, mirrored, angle):
    """images (B, C, H, W) -> the same shape and dtype: shifted, mirrored, turned, in this order.

    crop       (B, 2) integer: the row and column of the image where the result begins.
    mirrored   (B,) bool: left and right are exchanged.
    angle      (B,): turned about the middle, in radians, counter-clockwise.

    Each pixel is the nearest one of the image, as in the paper; what comes from outside the
    image, or from outside the shifted one, is 0.
    """
    B, C, H, W = images.shape
    i, j = (n - n.mean() for n in np.indices((H, W), np.float64))
    cos, sin = (f(angle)[:, None, None] for f in (np.cos, np.sin))
    # Back from a pixel of the result, (B, H, W): where it was before the turn, ...
    row = np.rint(cos * i + sin * j + (H - 1) / 2).astype(int)
    column = np.rint(cos * j - sin * i + (W - 1) / 2).astype(int)
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
    # ... before it was mirrored, and before it was shifted.
    column = np.where(mirrored[:, None, None], W - 1 - column, column) + crop[:, 1, None, None]
    row = row + crop[:, 0, None, None]
    inside &= (row >= 0) & (row < H) & (column >= 0) & (column < W)
    index = np.where(inside, row * W + column, 0).reshape(B, 1, H * W)
    pixels = np.take_along_axis(images.reshape(B, C, H * W), index, axis=2)
    return (pixels * inside.reshape(B, 1, H * W)).reshape(images.shape)
