"""Solutions of lesson 3, layer norm.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def _standardise(x, axis=-1):
    """Layer norm with scale 1 and bias 0."""
    centred = x - x.mean(axis=axis, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(axis=axis, keepdims=True) + 1e-5)


def unseen_change(x):
    """A shift: the same number for all channels of a row.  A stretch by a positive factor would
    do as well, for rows without a number near 0."""
    return x + 1.0


# Any shift, or stretch without zeros, is right: the case says what is wrong with other changes.
@exercise(unseen_change, refused={
    "old array": "x + 1.0 -> x.copy()",
    "only stretched": ["x + 1.0 -> 2 * x", "x + 1.0 -> x / 2"],
    "less than 0.1": ["1.0 -> 0.05", "1.0 -> 0.099", "1.0 -> np.arange(len(x))[:, None]"],
    "the sign": ["x + 1.0 -> -x", "x + 1.0 -> 3 - 2 * x"],
    "all channels of a row": ["1.0 -> np.arange(1, x.shape[1] + 1)", "1.0 -> 3 + x.mean(axis=0)",
                              "x + 1.0 -> x - x.mean(axis=0)"],
    "positive factor": "x + 1.0 -> 0 * x",
    "another factor": "x + 1.0 -> x * (2 + np.arange(x.shape[1]))",
    "which two changes": ["x + 1.0 -> x ** 3 + 9", "x + 1.0 -> x[:, ::-1] + 5",
                          "x + 1.0 -> x[::-1] + 5"],
    "another shape": ["x + 1.0 -> x[:, :-1]", "x + 1.0 -> x.T + 1"],
})
def _(rng):
    T, C = int(rng.integers(3, 6)), int(rng.integers(6, 9))
    x = rng.uniform(-2, 2, (T, C))
    x[:, 0], x[:, 1] = rng.uniform(-2, -1.5, T), rng.uniform(1.5, 2, T)      # no row is flat
    x[np.arange(T), rng.integers(2, C, T)] = 0.0          # doubling a row leaves its 0
    before = _standardise(x)

    def same(y):
        return np.allclose(_standardise(np.asarray(y, float)), before, rtol=0, atol=1e-3)

    def differs(y):
        return (np.abs(y - x) > 0.1 * (1 - 1e-6)).all()

    def right(y):
        return np.shape(y) == x.shape and bool(np.isfinite(y).all()) and differs(y) and same(y)

    yield Case((x,), right, {
        "another shape: return an array (T, C)": lambda y: np.shape(y) != x.shape,
        "that is the old array: every number must differ by at least 0.1":
            lambda y: np.allclose(y, x),
        "a row that is only stretched keeps its 0, so that number hardly changes": lambda y: (
            same(y) and np.allclose(y, x * (y[:, :1] / x[:, :1]))),
        "layer norm is blind to that change, but some numbers differ by less than 0.1 from the old "
        "ones": same,
        "the sign: a row times a negative number is mirrored, and so is its x̂": lambda y: (
            np.allclose(_standardise(np.asarray(y, float)), -before, rtol=0, atol=1e-3)),
        "nothing is left of the rows: a stretch is by a positive factor": lambda y: not np.any(y),
        "each channel gets a number of its own: the shift must be the same for all channels of a "
        "row": lambda y: np.allclose(y - x, (y - x)[:1]),
        "a stretch with another factor for each channel: it must be the same for all channels of "
        "a row": lambda y: np.allclose((y / x)[:, :2], (y / x)[:1, :2]),
    }, about="Layer norm gives something else for it. Which two changes of a row does it remove?")


def hostile_rows(rng):
    """x and w: rows of different size, and one so small that it matters where eps stands."""
    size = rng.permutation([1e-3, *rng.uniform(0.5, 2, 3)])[:, None]
    return size * (rng.standard_normal((4, 6)) + 0.7), 1 + 0.5 * rng.standard_normal(6)


NORMED = "((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps))"


def rms_norm_backward(dy, x, w, eps=1e-5):
    """As layer norm's, without the mean term.  RMS norm is still blind to a stretch of the row, and
    no longer to a shift, so that part of the gradient passes back."""
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    xhat = x * rstd
    g = dy * w
    along = xhat * (g * xhat).mean(axis=-1, keepdims=True)
    dx = (g - along) * rstd
    return dx, (dy * xhat).sum(axis=0)


@exercise(rms_norm_backward, {
    "dx still removes the mean of g: that is layer norm's backward, here a shift counts": [
        "g - along -> g - along - g.mean(axis=-1, keepdims=True)",
        "g - along -> g - g.mean(axis=-1, keepdims=True)"],
    "dx: xhat stands twice in the part along it, in the mean and before it": [
        f"along = _ -> along = {part}.mean(axis=-1, keepdims=True)" for part in (
            "(g * xhat)", "xhat * g")],
    "dx: the mean has w too: it is of g = dy w, times xhat":
        "along = _ -> along = xhat * (dy * xhat).mean(axis=-1, keepdims=True)",
    "dx: the part along xhat is not removed: moving x also changes the row's size":
        "g - along -> g",
    "dx: a sum for a mean in the part along xhat": "g - along -> g - along * x.shape[-1]",
    "dx: the scale is missing: what arrives at xhat is dy times w": "dy * w -> dy",
    "dx: the division by the row's size is missing": "(g - along) * rstd -> g - along",
    "dx: the division by the row's size is a multiplication":
        "(g - along) * rstd -> (g - along) / rstd",
    "dx: w comes before the mean: first g = dy w, then the part along xhat":
        "g - along -> w * (dy - xhat * (dy * xhat).mean(axis=-1, keepdims=True))",
    "dx: the square gives a 2 and the root a 1/2, and they cancel": [
        "g - along -> g - 2 * along", "g - along -> g - along / 2"],
    "eps is missing, and one row is so small that it counts": "_ + eps -> _",
    "the eps belongs under the root": "np.sqrt(_ + eps) -> (np.sqrt(_) + eps)",
    "a row's size is the root of the mean of the squares, not of their sum":
        "(x * x).mean(axis=-1, keepdims=True) -> (x * x).sum(axis=-1, keepdims=True)",
    "return dx first, then dw": "return _, _1 -> return _1, _",
    "dx: the part along x is removed with x itself: it must be xhat, both times": [
        f"g - along -> g - x * (g * {x}).mean(axis=-1, keepdims=True)" for x in ("x", "xhat")],
    "dx: that xhat is layer norm's, without the mean; here it is x divided by the row's size": [
        f"along = _ -> n = {NORMED}; along = {a} * (g * {b}).mean(axis=-1, keepdims=True)"
        for a, b in ("nn", ("n", "xhat"), ("xhat", "n"))],
    "dx: each row has its own mean, along the channels": [
        f"along = _ -> along = xhat * (g * xhat).mean({axis})" for axis in ("axis=0", "")],
    "dx: the second term has the wrong sign": "g - along -> g + along",
    "dw: the scale multiplies xhat, not x": "dy * xhat -> dy * x",
    "dw: that xhat is layer norm's, without the mean; here it is x divided by the row's size":
        f"dy * xhat -> dy * {NORMED}",
    "dw: a mean for a sum: every row adds its whole share":
        "(dy * xhat).sum(axis=0) -> (dy * xhat).mean(axis=0)",
    "dw: what arrives at the scale is dy, without w": "dy * xhat -> g * xhat",
    "dw: all rows share the scale: add over them": "(dy * xhat).sum(axis=0) -> dy * xhat",
    "dw: the wrong axis: each channel has its own scale, shared by the rows":
        "(dy * xhat).sum(axis=0) -> (dy * xhat).sum(axis=-1)",
    "dw: that is a bias's gradient; the scale is multiplied by xhat": "dy * xhat -> dy",
})
def _(rng):
    x, w = hostile_rows(rng)
    xhat = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
    dy = rng.standard_normal(x.shape) + 0.5 * xhat + 0.5
    dy[np.abs(xhat).max(axis=-1) < 1] *= 1e-3             # so that the small row does not rule dx
    yield dy, x, w


def most_moved_scale(before, after):
    """One choice of many: the root mean square of the difference.  Divided by the scale's own size
    it is as good a choice, since the scales of a trained trunk differ in size."""
    moves = {name: np.sqrt(np.mean((after[name] - before[name]) ** 2))
             for name in before if "ln_" in name and name.endswith("weight")}
    return max(moves, key=moves.get)


# Any measure of a move is right, so the name alone tells the mistake.
@exercise(most_moved_scale, refused={
    "both signs": ["np.sqrt(_) -> (after[name] - before[name]).mean()",
                   "np.sqrt(_) -> np.linalg.norm(after[name]) - np.linalg.norm(before[name])"],
    "channels moved apart": [f"np.sqrt(_) -> {measure}" for measure in (
        "(after[name] - before[name])[0]", "(after[name] - before[name]).std()",
        "np.ptp(after[name] - before[name])", "(after[name] - before[name]).max()",
        "-(after[name] - before[name]).min()", "abs(after[name] - before[name])[-1]")],
    "that is a bias": "_ and name.endswith('weight') -> _",
    "not a layer norm": ("'ln_' in name and _ -> _", "np.mean -> np.sum"),
    "was so before": [f"np.sqrt(_) -> {size}" for size in (
        "np.abs(after[name]).mean()", "np.abs(after[name]).max()", "np.abs(after[name] - 1).mean()",
        "after[name].std()", "before[name].max()")],
    "every scale": ["'ln_' in name -> 'ln_' in name and 'ln_f' not in name", "'ln_' -> 'ln_1'",
                    "'ln_' -> 'h.0.ln'", "return _ -> return 'trunk.ln_f.weight'"],
    "name of one parameter": "return _ -> return max(moves.values())",
    "full name": "return _ -> return 'h.0.ln_1.weight'",
})
def _(rng):
    norms = [f"trunk.h.{i}.ln_{k}" for i in range(3) for k in (1, 2)] + ["trunk.ln_f"]

    def signs(n):
        return rng.permutation(np.repeat([-1.0, 1.0], n // 2))

    # Each of them wins once: half up and half down, all up, or all down; not in its outer channels.
    ways = rng.permutation(["apart", "apart", "apart", "up", "up", "down", "down"])
    for winner, way in zip(rng.permutation(norms), ways, strict=True):
        others = rng.permutation([n for n in norms if n != winner])
        rises, loud, of_a_bias, split = (str(n) for n in others[:4])
        before = {name: rng.standard_normal((8, 8)) for name in (
            "input.weight", "trunk.wpe.weight", "trunk.h.0.attn.c_attn.weight")}
        for n in rng.permutation(norms):                  # in no order
            before[f"{n}.weight"] = rng.uniform(0.95, 1.05, 8)
            before[f"{n}.bias"] = 0.1 * rng.standard_normal(8)
        before[f"{loud}.weight"] = rng.uniform(4, 8, 8)
        after = {name: value + 0.01 * rng.uniform(-1, 1, value.shape)
                 for name, value in before.items()}
        after["trunk.wpe.weight"] = before["trunk.wpe.weight"] + rng.standard_normal((8, 8))
        way_of = {"apart": signs(6), "up": np.ones(6), "down": -np.ones(6)}[way]
        after[f"{winner}.weight"] = before[f"{winner}.weight"] + 0.5 * np.r_[0.1, way_of, -0.1]
        after[f"{rises}.weight"] = before[f"{rises}.weight"] + 0.2
        after[f"{split}.weight"] = before[f"{split}.weight"] + 0.3 * np.r_[1, signs(6), -1]
        after[f"{of_a_bias}.bias"] = before[f"{of_a_bias}.bias"] + 1.5

        def chosen(name):
            return lambda out: isinstance(out, str) and out == name

        yield Case((before, after), chosen(f"{winner}.weight"), {
            f"it rose, but {winner}.weight moved further: do moves of both signs count, and do you "
            "look at every scale?": chosen(f"{rises}.weight"),
            f"its channels moved apart, but {winner}.weight moved further: do all channels count, "
            "moves of both signs as far as they go, and do you look at every scale?":
                chosen(f"{split}.weight"),
            "that scale is the largest, and was so before: ask of every scale how far it *moved*":
                chosen(f"{loud}.weight"),
            "that is a bias; the scales are called weight": chosen(f"{of_a_bias}.bias"),
            "that is not a layer norm: choose among the names with ln_ and weight":
                lambda name: isinstance(name, str) and "ln_" not in name,
            "return the name of one parameter, a text": lambda name: not isinstance(name, str),
            "return the full name, as it is in the dictionaries":
                lambda name, before=before: name not in before,
        }, about=f"{winner}.weight moved further: do you look at every scale, and at the "
                 "difference of after and before?")


if __name__ == "__main__":
    check_solutions(globals())
