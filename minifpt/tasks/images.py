"""Tasks on images, which are cut into patches, one for each token."""

from functools import cache
from pathlib import Path

import numpy as np

from ..checks import whole
from ..files import data as files
from .base import COSINE, Classification, FileTask


class Images(Classification):
    """The base class of tasks that classify a square image; ``patch`` and ``size`` are the pixels
    along a side of a patch and of an image."""

    splits = "train", "validation", "test"
    output_dim, output_tokens, classes, chance = 10, 1, 10, 0.1

    def __init__(self, patch=4, size=28):
        self.patch, self.size = whole(self.name, "patch", patch), whole(self.name, "size", size, 8)
        if self.size % self.patch:
            raise ValueError(f"{self.name}: size must be divisible by patch, "
                             f"got size={size} and patch={patch}")
        self.input_dim, self.tokens = self.patch ** 2, (self.size // self.patch) ** 2
        self.options = {"patch": self.patch, "size": self.size}

    def token_names(self):
        side = range(1, self.size // self.patch + 1)
        return [f"{row},{column}" for row in side for column in side]

    def as_images(self, x):
        n, p = self.size // self.patch, self.patch
        pixels = x.reshape(len(x), n, n, p, p, -1).transpose(0, 1, 3, 2, 4, 5)
        pixels = pixels.reshape(len(x), self.size, self.size, -1)
        return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


class StoredImages(FileTask, Images):
    """The base class of tasks on images in files.

    ``data`` is the folder of the files, see :func:`minifpt.files.data.find`.  A subclass has
    ``load(split)`` for "train" and "test", and ``prepare(images, labels, rng)``.  The last
    ``1 / held_out`` of the training images are the validation split.
    """

    def __init__(self, patch, size, data):
        super().__init__(patch, size)
        self.data = self.options["data"] = None if data is None else str(data)
        self.read = {}                                    # {split: (images, labels)}, as bytes

    def stored(self, split):
        """Return all images uint8 (N, ...) and labels uint8 (N,) of a split."""
        if split not in self.read:
            if split == "test":
                self.read["test"] = self.load("test")
            else:
                images, labels = self.load("train")
                n = len(labels) - len(labels) // self.held_out
                if n == len(labels):
                    raise ValueError(f"{self.name}: {n} training images, expected at least "
                                     f"{self.held_out}: some are for validation")
                self.read["train"] = images[:n], labels[:n]
                self.read["validation"] = images[n:], labels[n:]
        return self.read[split]


class MNIST(StoredImages):
    """Classify a handwritten digit, at the last token.

    x (B, (size / patch)^2, patch^2), pixels in 0 ... 1; y (B, 1) in 0 ... 9.  ``size`` is 28,
    or 32 for a border of two zeros around the image, as in the paper.  ``data`` is the folder of
    the files, see :func:`minifpt.files.data.find`.  The last 5,000 of the official 60,000
    training images are the validation split.
    """

    name = "mnist"
    label = "MNIST"
    defaults = COSINE | {"steps": 5000}
    held_out = 12

    def __init__(self, patch=4, size=28, data=None):
        if size not in (28, 32):
            raise ValueError(f"{self.name}: size must be 28 or 32, got {size!r}")
        super().__init__(patch, int(size), data)

    def load(self, split):
        return files.mnist(split, self.data)              # uint8 (N, 28, 28) and (N,)

    def prepare(self, images, labels, rng=None):
        x = images.astype(np.float32) / 255
        border = (self.size - 28) // 2
        x = np.pad(x, ((0, 0), (border, border), (border, border)))
        return patches(x, self.patch), labels.astype(np.int64)[:, None]


# Fonts that come with Matplotlib.  The families of the test are not in training: STIX, which looks
# like Times, in four styles, and Computer Modern without serifs.
FONTS = {
    "train": ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
              "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique",
              "DejaVuSansMono-BoldOblique", "DejaVuSerif", "DejaVuSerif-Bold",
              "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "cmr10", "cmb10", "cmtt10"],
    "test": ["STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "STIXGeneralBolIta", "cmss10"],
}
GLYPH = 56                                                # pixels along a glyph's square
HEIGHT = 40                                               # pixels of the glyph's height


class Digits(Images):
    """Classify a printed digit, at the last token.  No files are needed: the digits are drawn from
    fonts that come with Matplotlib, then turned, stretched, shifted and blurred.

    x (B, (size / patch)^2, patch^2), pixels in 0 ... 1; y (B, 1) in 0 ... 9.  Training and test
    have different families of fonts, see ``FONTS``.
    """

    name = "digits"
    label = "digits"
    defaults = COSINE | {"steps": 800, "warmup": 50}

    def images(self, rng, size, split):
        """Draw images float32 (B, size, size) in 0 ... 1 and labels int64 (B,)."""
        # (fonts, 10, GLYPH, GLYPH); validation draws afresh from the training fonts.
        shapes = glyphs("test" if split == "test" else "train")
        font, digit = rng.integers(0, len(shapes), size), rng.integers(0, 10, size)
        return distort(shapes[font, digit], rng, self.size), digit

    def draw(self, rng, size, split):
        images, digit = self.images(rng, size, split)
        return patches(images, self.patch), digit[:, None]

    def test_set(self):
        """Return ``(x, y)`` of 1,000 test images, always the same."""
        return self.draw(np.random.default_rng(0xD161), 1000, "test")


def distort(shapes, rng, size):
    """Turn shapes (B, G, G) by up to 15 degrees, stretch, shift and blur them, by numbers drawn
    from ``rng`` -> (B, size, size)."""
    from scipy.ndimage import affine_transform, gaussian_filter
    B, G, _ = shapes.shape
    angle = np.radians(rng.uniform(-15, 15, B))
    scale = rng.uniform(0.8, 1.1, (B, 2))                 # for height and width
    middle = (size - 1) / 2 + size * rng.uniform(-0.06, 0.06, (B, 2))
    blur = size / 28 * rng.uniform(0.2, 0.7, B)           # standard deviation in pixels
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    back = G / size * turn.transpose(2, 0, 1) / scale[..., None]  # from a pixel to the glyph
    start = (G - 1) / 2 - (back @ middle[..., None])[..., 0]
    images = np.empty((B, size, size), np.float32)
    for i in range(B):
        affine_transform(shapes[i], back[i], start[i], output=images[i],
                         output_shape=(size, size), order=1)
        gaussian_filter(images[i], blur[i], output=images[i], mode="constant", truncate=3)
    return images


@cache
def glyphs(split):
    """Return the digits of a split's fonts, float32 (fonts, 10, GLYPH, GLYPH) in 0 ... 1, all of
    the same height, each in the middle of its square."""
    import matplotlib
    from matplotlib.ft2font import FT2Font
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    shapes = np.zeros((len(FONTS[split]), 10, GLYPH, GLYPH), np.float32)
    for squares, name in zip(shapes, FONTS[split], strict=True):
        font = FT2Font(str(folder / f"{name}.ttf"))
        for digit, square in enumerate(squares):
            points = HEIGHT                               # corrected after the first drawing
            for _ in range(2):
                font.set_size(points, 72)
                font.set_text(str(digit))
                font.draw_glyphs_to_bitmap(antialiased=True)
                ink = np.array(font.get_image())
                ink = ink[ink.any(axis=1)][:, ink.any(axis=0)]
                points *= HEIGHT / len(ink)
            row, column = (GLYPH - ink.shape[0]) // 2, (GLYPH - ink.shape[1]) // 2
            square[row:row + ink.shape[0], column:column + ink.shape[1]] = ink / 255
    shapes.flags.writeable = False
    return shapes


def patches(images, p):
    """Cut images (B, H, W) into patches (B, H/p * W/p, p * p), both row by row."""
    B, H, W = images.shape
    x = images.reshape(B, H // p, p, W // p, p)
    return x.transpose(0, 1, 3, 2, 4).reshape(B, (H // p) * (W // p), p * p)
