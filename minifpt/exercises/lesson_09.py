"""Lesson 9, pictures as tokens."""

import numpy as np

from . import Case, close_to, exercise


@exercise
def pixel_of(rng):
    n_cases = 0
    while n_cases < 3:
        p, columns = (int(n) for n in rng.choice(np.arange(4, 8), 2, replace=False))
        W = columns * p
        r, c = (int(n) for n in rng.choice(np.arange(1, 4), 2, replace=False))
        a, b = (int(n) for n in rng.choice(np.arange(1, p), 2, replace=False))
        t, j = r * columns + c, a * p + b
        answer = (r * p + a, c * p + b)
        mistakes = {
            "row and column are exchanged": answer[::-1],
            "that is the plain reshape: strips of the picture, not squares":
                divmod(t * p * p + j, W),
            "that is where the patch begins; which of its pixels is j?": (r * p, c * p),
            "that is where the pixel is in its patch; where does the patch begin?": (a, b),
            "within a patch the pixels are counted row by row": (r * p + b, c * p + a),
            "the patches are counted row by row, too": (c * p + a, r * p + b),
            "W is in pixels: how many patches are there in a row?":
                (t // W * p + a, t % W * p + b),
            "there are W / p patches in a row of the picture, not p":
                (t // p * p + a, t % p * p + b),
            "that is the patch's row and column; each patch is p pixels high and wide": (r, c),
            "where does patch row r begin? Each patch is p pixels high": (r + a, c + b),
        }
        if len({answer, *mistakes.values()}) > len(mistakes):          # all of them differ
            n_cases += 1
            yield Case((t, j, p, W), answer, mistakes)


def cut(images, p, order=(0, 1, 3, 2, 4, 5)):
    """(B, H, W, c) -> tokens; the axes are image, patch row, pixel row, patch column, pixel
    column, colour, and are put in this order."""
    B, H, W, c = images.shape
    x = images.reshape(B, H // p, p, W // p, p, c).transpose(order)
    return x.reshape(B, (H // p) * (W // p), p * p * c)


@exercise
def colour_patches(rng):
    B, p, rows, columns = (int(n) for n in rng.permutation([2, 4, 5, 6]))       # 3 are the colours
    images = rng.uniform(0, 1, (B, rows * p, columns * p, 3))
    T = rows * columns
    answer = cut(images, p)
    return Case((images, p), answer, {
        "that is the plain reshape: strips of the picture, not squares; a transpose is missing":
            images.reshape(B, T, -1),
        "a pixel's three colours are side by side; yours are three pictures, one after the "
        "other": cut(images, p, (0, 1, 3, 5, 2, 4)),
        "the patches are counted row by row; yours run down the columns":
            cut(images, p, (0, 3, 1, 2, 4, 5)),
        "within a patch the pixels are counted row by row; yours run down its columns":
            cut(images, p, (0, 1, 3, 4, 2, 5)),
        "the picture is turned: rows and columns are exchanged, of patches and of pixels":
            cut(images, p, (0, 3, 1, 4, 2, 5)),
        "a token has all three colours; yours has one, or their mean": lambda out: (
            np.shape(out) == (B, T, p * p)),
        "each colour has become tokens of its own; a token is a patch with all its colours":
            lambda out: np.shape(out) in ((B, 3 * T, p * p), (B, T, 3, p * p)),
        "a patch is one row of numbers: p * p * 3 of them": lambda out: (
            np.ndim(out) > 3 and np.size(out) == images.size),
    })


def fold(dy, p, s, H, W, stride=None, grid="C", pixels="C", join="sum"):
    """The backward of overlapping patches, with one thing wrong."""
    rows, columns = (H - p) // s + 1, (W - p) // s + 1
    stride = stride or s
    total, count = np.zeros((len(dy), H, W)), np.zeros((H, W))
    for t in range(rows * columns):
        r, c = divmod(t, columns) if grid == "C" else divmod(t, rows)[::-1]
        r, c = r * stride, c * stride
        d = dy[:, t].reshape(-1, p, p)
        d = (d if pixels == "C" else d.swapaxes(1, 2))[:, :max(H - r, 0), :max(W - c, 0)]
        here = np.s_[:, r:r + d.shape[1], c:c + d.shape[2]]
        if join == "last":
            total[here] = d
        elif join == "first":
            total[here] += np.where(count[here[1:]] == 0, d, 0)
        else:
            total[here] += d
        count[here[1:]] += 1
    return total / np.maximum(count, 1) if join == "mean" else total


@exercise
def overlapping_backward(rng):
    B = int(rng.integers(2, 4))
    for p, s, edge, about in (
            (3, 2, 0, "Each patch begins s pixels after the one before."),
            (4, int(rng.integers(1, 3)), 0, "Here a pixel is in up to (p / s)^2 patches."),
            (3, 3, 0, "Here s = p, and nothing overlaps: it is the backward pass of the lesson."),
            (4, 3, 2, "Here the last pixels of a row are in no patch: their gradient is 0.")):
        rows, columns = (int(n) for n in rng.choice([2, 3, 4], 2, replace=False))
        H, W = (rows - 1) * s + p + edge, (columns - 1) * s + p + edge
        dy = rng.standard_normal((B, rows * columns, p * p))
        args = (dy, p, s, H, W)
        overlap = s < p
        mistakes = {
            "where patches overlap, one overwrites the other: a pixel that is in several tokens "
            "changes the loss through each of them": close_to(
                *(fold(*args, join=j) for j in ("last", "first"))),
            "that is a mean over the patches of a pixel: take the sum, each of them is a path":
                fold(*args, join="mean"),
        } if overlap else {}
        mistakes |= {
            "the patches begin s pixels apart, not p": lambda out, a=args: a[1] != a[2] and (
                np.allclose(out, fold(*a, stride=a[1]))),
            "the patches are counted row by row; yours run down the columns":
                fold(*args, grid="F"),
            "within a patch the pixels are counted row by row; yours run down its columns":
                fold(*args, pixels="F"),
            "each image has a gradient of its own: neither sum nor average over the images":
                lambda out, a=args: np.shape(out) in ((a[3], a[4]), (1, a[3], a[4])),
            "that is the number of patches that a pixel is in; which gradients come from them?":
                fold(np.ones_like(dy), *args[1:]),
        }
        yield Case(args, fold(*args), mistakes, about=about)


@exercise
def neighbour_score(rng):
    rows, columns = (int(n) for n in rng.choice([3, 4, 5], 2, replace=False))
    T = rows * columns
    s = rng.uniform(-0.4, 0.4, (T, T))
    s = (s + s.T) / 2 + 0.2
    t = np.arange(T)
    np.fill_diagonal(s, 1)

    def near(columns=columns, rows=rows):
        """(T, T): steps down and steps aside between two positions on the grid."""
        r, c = np.divmod(t, columns)
        return np.abs(r[:, None] - r), np.abs(c[:, None] - c)

    down, aside = near()
    side, above, apart = (down == 0) & (aside == 1), (down == 1) & (aside == 0), down + aside > 0
    pair = side | above
    s[side] += rng.uniform(0.3, 0.5)
    s[above] += rng.uniform(0.1, 0.2)
    s[down + aside == 2] -= 0.2

    def score(near, rest=None):
        return s[near].mean() - s[apart & ~near if rest is None else rest].mean()

    def around(steps, n):
        return np.minimum(steps, n - steps)

    down_w, aside_w = near(columns=rows)
    line = np.abs(t[:, None] - t) == 1
    return Case((s, rows, columns), score(pair), {
        "only pairs side by side are counted; one above the other are neighbours, too":
            score(side),
        "only pairs one above the other are counted; side by side are neighbours, too":
            score(above),
        "those are neighbours in the sequence; on the grid, is the end of a row beside the "
        "start of the next?": close_to(score(line), score(line | above)),
        "patches that touch at a corner only are not neighbours":
            score(pair | ((down == 1) & (aside == 1))),
        "the grid has an edge: the left end of a row is not beside its right end":
            score(around(down, rows) + around(aside, columns) == 1),
        "a position and itself are not a pair": score(pair, ~pair),
        "the others are the pairs that are not neighbours; yours has all pairs":
            close_to(score(pair, apart), score(pair, apart | ~apart)),
        "a position is not its own neighbour": score(pair | ~apart),
        "the mean of the other pairs is missing: subtract it": s[pair].mean(),
        "sums instead of means: there are fewer neighbours than other pairs": close_to(
            *(f * (s[pair].sum() - s[apart & ~pair].sum()) for f in (0.5, 1))),
        "rows and columns are exchanged: how many positions are there in a row?":
            score(down_w + aside_w == 1),
        "the other way round: neighbours minus others": -score(pair),
    })
