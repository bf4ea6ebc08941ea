"""Solutions of lesson 9, pictures as tokens.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import check


def pixel_of(t, j, p, W):
    """There are W / p patches in a row of the picture, and p pixels in a row of a patch."""
    patch_row, patch_column = divmod(t, W // p)
    row, column = divmod(j, p)
    return patch_row * p + row, patch_column * p + column


def colour_patches(images, p):
    """As for grey images: the new axis is the last one, and it stays there."""
    B, H, W, colours = images.shape
    x = images.reshape(B, H // p, p, W // p, p, colours)
    x = x.transpose(0, 1, 3, 2, 4, 5)                     # patch row and column, then pixels
    return x.reshape(B, (H // p) * (W // p), p * p * colours)


def overlapping_backward(dy, p, s, H, W):
    """A pixel gets the sum over all patches that it is in."""
    columns = (W - p) // s + 1
    dimages = np.zeros((len(dy), H, W), dy.dtype)
    for t in range(dy.shape[1]):
        row, column = (s * n for n in divmod(t, columns))
        dimages[:, row:row + p, column:column + p] += dy[:, t].reshape(-1, p, p)
    return dimages


def neighbour_score(s, rows, columns):
    """Two positions are neighbours if they are one step apart on the grid."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    steps = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    return s[steps == 1].mean() - s[steps > 1].mean()


if __name__ == "__main__":
    for solution in (pixel_of, colour_patches, overlapping_backward, neighbour_score):
        check(solution.__name__, solution)
