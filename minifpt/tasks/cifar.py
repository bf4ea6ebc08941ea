"""CIFAR-10: small pictures of ten kinds of things, in colour or in grey."""

import numpy as np

from ..checks import flag
from ..files import data as files
from .base import COSINE
from .images import StoredImages, patches

# Mean and standard deviation of red, green and blue over the 50,000 official training pictures.
# The paper's code divides by 0.2023, 0.1994 and 0.2010, the mean of each picture's deviation.
MEAN, STD = (np.array(numbers, np.float32) for numbers in (
    (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
PADDING, DEGREES = 4, 20                                  # largest shift and turn of a picture
LUMA = 0.2989, 0.5870, 0.1140                             # grey of red, green and blue (ITU-R 601)


class CIFAR10(StoredImages):
    """Classify a picture, at the last token: one of ten kinds of things.

    x (B, (32 / patch)^2, 3 patch^2), the three colours of a pixel side by side, normalised by
    each colour's ``MEAN`` and ``STD``; y (B, 1) in 0 ... 9.  With ``augment`` the training
    pictures are shifted, mirrored and turned, see :func:`moved`.  The last tenth of the training
    pictures, 5,000, is the validation split.
    """

    name = "cifar10"
    label = "CIFAR-10"
    defaults = COSINE | {"steps": 20000}
    held_out = 10

    def __init__(self, patch=4, augment=True, data=None):
        super().__init__(patch, 32, data)
        self.input_dim *= 3
        self.augment = flag(self.name, "augment", augment)
        self.options = {"patch": self.patch, "augment": self.augment, "data": self.data}

    def load(self, split):
        return files.cifar10(split, self.data)            # uint8 (N, 3, 32, 32) and (N,)

    def prepare(self, images, labels, rng=None):
        if self.augment and rng is not None:
            images = augmented(images, rng)
        x = np.stack([patches(plane, self.patch) for plane in images.swapaxes(0, 1)], axis=-1)
        x = (x - 255 * MEAN) / (255 * STD)                # (B, T, patch^2, 3) float32
        return x.reshape(*x.shape[:2], -1), labels.astype(np.int64)[:, None]


class CIFAR10Gray(StoredImages):
    """Classify a grey picture of CIFAR-10, with a pixel in each token, as in the Long Range Arena
    (Tay et al. 2020, arXiv 2011.04006).  The answer is read at the last token.

    x (B, side^2, 1), grey in 256 levels from -1 to 1; y (B, 1) in 0 ... 9.  Nothing is
    augmented.  A ``side`` of 16, 8 or 4 averages squares of pixels: 256, 64 or 16 tokens instead
    of 1,024, for trunks with fewer positions.
    """

    name = "cifar10-gray"
    label = "CIFAR-10 LRA"
    defaults = COSINE | {"steps": 2000}
    held_out, load = 10, CIFAR10.load

    def __init__(self, side=32, data=None):
        if side not in (32, 16, 8, 4):
            raise ValueError(f"{self.name}: side must be 32, 16, 8 or 4, got {side!r}")
        super().__init__(1, 32, data)
        self.size, self.tokens = int(side), int(side) ** 2
        self.options = {"side": self.size, "data": self.data}

    def prepare(self, images, labels, rng=None):
        grey = np.rint(sum(np.float32(w) * images[:, c] for c, w in enumerate(LUMA)))
        k = 32 // self.size
        grey = grey.reshape(-1, self.size, k, self.size, k).mean(axis=(2, 4))
        return patches(grey / 127.5 - 1, 1), labels.astype(np.int64)[:, None]


def augmented(images, rng):
    """Shift images (B, C, H, W) by up to 4 pixels, mirror them with probability 1/2, and turn
    them by up to 20 degrees, in the paper's order; the numbers are drawn from ``rng``."""
    B = len(images)
    crop = rng.integers(-PADDING, PADDING + 1, (B, 2))
    is_mirrored = rng.integers(0, 2, B) == 1
    return moved(images, crop, is_mirrored, np.radians(rng.uniform(-DEGREES, DEGREES, B)))


def moved(images, crop, is_mirrored, angle):
    """Shift, mirror and turn images (B, C, H, W), in this order; the result has the same shape
    and dtype.

    crop          (B, 2) integer: the image's row and column at which the result begins.
    is_mirrored   (B,) bool: whether left and right are exchanged.
    angle         (B,): turn about the middle, in radians, counter-clockwise.

    Each pixel is the image's nearest one, as in the paper; pixels from outside the image, or from
    outside the shifted image, are 0.
    """
    B, C, H, W = images.shape
    i, j = (n - n.mean() for n in np.indices((H, W), np.float64))
    cos, sin = (f(angle)[:, None, None] for f in (np.cos, np.sin))
    # For each pixel of the result, (B, H, W), its place before the turn, ...
    row = np.rint(cos * i + sin * j + (H - 1) / 2).astype(int)
    column = np.rint(cos * j - sin * i + (W - 1) / 2).astype(int)
    inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
    # ... and before the image was mirrored and shifted.
    column = np.where(is_mirrored[:, None, None], W - 1 - column, column) + crop[:, 1, None, None]
    row = row + crop[:, 0, None, None]
    inside &= (row >= 0) & (row < H) & (column >= 0) & (column < W)
    index = np.where(inside, row * W + column, 0).reshape(B, 1, H * W)
    pixels = np.take_along_axis(images.reshape(B, C, H * W), index, axis=2)
    return (pixels * inside.reshape(B, 1, H * W)).reshape(images.shape)
