"""Solutions of lesson 9, pictures as tokens.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import EXERCISES, check_solutions, exercise


def pixel_of(t, j, p, W):
    """There are W / p patches in a row of the picture, and p pixels in a row of a patch."""
    patch_row, patch_column = divmod(t, W // p)
    row, column = divmod(j, p)
    return patch_row * p + row, patch_column * p + column


@exercise(pixel_of, {
    "row and column are exchanged": "return _, _1 -> return _1, _",
    "that is the plain reshape: strips of the picture, not squares":
        "return _ -> return divmod(t * p * p + j, W)",
    "that is where the patch begins; which of its pixels is j?": "divmod(j, p) -> 0, 0",
    "that is where the pixel is in its patch; where does the patch begin?":
        "divmod(t, W // p) -> 0, 0",
    "within a patch the pixels are counted row by row": "row, column = _ -> column, row = _",
    "the patches are counted row by row, too":
        "patch_row, patch_column = _ -> patch_column, patch_row = _",
    "W is in pixels: how many patches are there in a row?": "W // p -> W",
    "there are W / p patches in a row of the picture, not p": "W // p -> p",
    "that is the patch's row and column; each patch is p pixels high and wide":
        "return _ -> return patch_row, patch_column",
    "where does patch row r begin? Each patch is p pixels high":
        "return _ -> return patch_row + row, patch_column + column",
    "rows and columns are counted from 0": "return _, _1 -> return _ + 1, _1 + 1",
})
def _(rng):
    n_cases = 0
    while n_cases < 3:
        p, columns = (int(n) for n in rng.choice(np.arange(4, 8), 2, replace=False))
        W = columns * p
        r, c = (int(n) for n in rng.choice(np.arange(1, 4), 2, replace=False))
        a, b = (int(n) for n in rng.choice(np.arange(1, p), 2, replace=False))
        args = r * columns + c, a * p + b, p, W
        answers = {mistake(*args) for _, mistake in EXERCISES["pixel_of"].wrong_answers}
        if len(answers | {pixel_of(*args)}) == 12:        # all of them differ
            n_cases += 1
            yield args


def colour_patches(images, p):
    """As for grey images: the new axis is the last one, and it stays there."""
    B, H, W, colours = images.shape
    x = images.reshape(B, H // p, p, W // p, p, colours)
    x = x.transpose(0, 1, 3, 2, 4, 5)                     # patch row and column, then pixels
    return x.reshape(B, (H // p) * (W // p), p * p * colours)


@exercise(colour_patches, {
    "that is the plain reshape: strips of the picture, not squares; a transpose is missing":
        "_.transpose(0, 1, 3, 2, 4, 5) -> _",
    "a pixel's three colours are side by side; yours are three pictures, one after the other":
        "_.transpose(0, 1, 3, 2, 4, 5) -> _.transpose(0, 1, 3, 5, 2, 4)",
    "the patches are counted row by row; yours run down the columns":
        "_.transpose(0, 1, 3, 2, 4, 5) -> _.transpose(0, 3, 1, 2, 4, 5)",
    "within a patch the pixels are counted row by row; yours run down its columns":
        "_.transpose(0, 1, 3, 2, 4, 5) -> _.transpose(0, 1, 3, 4, 2, 5)",
    "the picture is turned: rows and columns are exchanged, of patches and of pixels":
        "_.transpose(0, 1, 3, 2, 4, 5) -> _.transpose(0, 3, 1, 4, 2, 5)",
    "a token has all three colours; yours has one, or their mean":
        "return _ -> return x.reshape(B, -1, p * p, 3).mean(axis=-1)",
    "each colour has become tokens of its own; a token is a patch with all its colours": [
        "return _ -> return x.reshape(B, -1, p * p, 3).swapaxes(2, 3)",
        "return _ -> return np.hstack([*np.moveaxis(x.reshape(B, -1, p * p, 3), 3, 0)])"],
    "a patch is one row of numbers: p * p * 3 of them": [
        "return _ -> return x.reshape(B, -1, p, p, 3)", "return _ -> return x",
        "return _ -> return x.reshape(B, -1, p * p, 3)"],
})
def _(rng):
    B, p, rows, columns = (int(n) for n in rng.permutation([2, 4, 5, 6]))       # 3 are the colours
    yield rng.uniform(0, 1, (B, rows * p, columns * p, 3)), p


def neighbour_score(s, rows, columns):
    """Two positions are neighbours if they are one step apart on the grid."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    steps = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    near, others = steps == 1, steps > 1
    return s[near].mean() - s[others].mean()


NEAR = ("near, others = _, _1 -> down, aside = abs(row[:, None] - row), "
        "abs(column[:, None] - column); near = %s; others = ~near & (steps > 0)")


@exercise(neighbour_score, {
    "only pairs side by side are counted; one above the other are neighbours, too":
        NEAR % "(down == 0) & (aside == 1)",
    "only pairs one above the other are counted; side by side are neighbours, too":
        NEAR % "(down == 1) & (aside == 0)",
    "those are neighbours in the sequence; on the grid, is the end of a row beside the start of "
    "the next?": [NEAR % "abs(columns * (row[:, None] - row) + column[:, None] - column) == 1",
              NEAR % "np.isin(abs(columns * (row[:, None] - row) + column[:, None] - column), "
                     "(1, columns))"],
    "patches that touch at a corner only are not neighbours": NEAR % "np.maximum(down, aside) == 1",
    "the grid has an edge: the left end of a row is not beside its right end":
        NEAR % "np.minimum(down, rows - down) + np.minimum(aside, columns - aside) == 1",
    "a position and itself are not a pair": "steps > 1 -> steps != 1",
    "the others are the pairs that are not neighbours; yours has all pairs":
        ["steps > 1 -> steps > 0", "steps > 1 -> steps >= 0"],
    "a position is not its own neighbour": "steps == 1 -> steps <= 1",
    "the mean of the other pairs is missing: subtract it": "_ - s[others].mean() -> _",
    "sums instead of means: there are fewer neighbours than other pairs": [
        "return _ -> return s[near].sum() - s[others].sum()",
        "return _ -> return (s[near].sum() - s[others].sum()) / 2"],
    "rows and columns are exchanged: how many positions are there in a row?":
        "np.divmod(_, columns) -> np.divmod(_, rows)",
    "a quotient of the two means: take their difference":
        "s[near].mean() - s[others].mean() -> s[near].mean() / s[others].mean()",
    "the other way round: neighbours minus others": "return _ -> return -(_)",
})
def _(rng):
    rows, columns = (int(n) for n in rng.choice([3, 4, 5], 2, replace=False))
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, aside = np.abs(row[:, None] - row), np.abs(column[:, None] - column)
    s = rng.uniform(-0.4, 0.4, 2 * (rows * columns,))
    s = (s + s.T) / 2 + 0.2
    np.fill_diagonal(s, 1)
    s[(down == 0) & (aside == 1)] += rng.uniform(0.3, 0.5)
    s[(down == 1) & (aside == 0)] += rng.uniform(0.1, 0.2)
    s[down + aside == 2] -= 0.2
    yield s, rows, columns


if __name__ == "__main__":
    check_solutions(globals())
