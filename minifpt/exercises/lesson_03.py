"""Lesson 3, layer norm."""

import numpy as np

from . import Case, exercise, part


def _standardise(x, axis=-1):
    """Layer norm with scale 1 and bias 0."""
    centred = x - x.mean(axis=axis, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(axis=axis, keepdims=True) + 1e-5)


@exercise
def unseen_change(rng):
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

    def shape(y):
        return np.shape(y) != x.shape

    def by_token(y):
        move = y - x
        return np.allclose(move, move[:1])                # one number for each channel

    return Case((x,), right, {
        "another shape: return an array (T, C)": shape,
        "that is the old array: every number must differ by at least 0.1":
            lambda y: np.allclose(y, x),
        "some numbers hardly change: a row that is only stretched keeps its 0": lambda y: (
            same(y) and not differs(y)),
        "the sign: a row times a negative number is mirrored, and so is its x̂": lambda y: (
            np.allclose(_standardise(np.asarray(y, float)), -before, rtol=0, atol=1e-3)),
        "each channel gets a number of its own: the shift must be the same for all channels of a "
        "row": lambda y: by_token(y) and not same(y),
        "a stretch with another factor for each channel: it must be the same for all channels of "
        "a row": lambda y: np.allclose((y / x)[:, :2], (y / x)[:1, :2]) and not same(y),
    }, about="Layer norm gives something else for it. Which two changes of a row does it remove?")


@exercise
def sees_the_future(rng):
    T, C = int(rng.integers(4, 7)), 3
    x = rng.standard_normal((T, C))

    def running_mean(x):
        return np.cumsum(x, axis=0) / np.arange(1, len(x) + 1)[:, None]

    def past_only(x):                                     # each row sees the one before it
        y = x.copy()
        y[1:] += np.tanh(x[:-1])
        return y

    yield Case((_standardise, x), False, {
        "layer norm does not mix tokens, and your check says that it does: does each output "
        "row's own input row count as later?": True})
    yield Case((lambda x: _standardise(x, axis=0), x), True, {
        "a norm over the tokens sees the future, and your check says no: after moving a later "
        "row, do you look at the earlier outputs?": False})
    for op in (running_mean, past_only):
        yield Case((op, x), False, {
            "an operation that reads only tokens so far, and your check says that it sees the "
            "future: only an *earlier* output may not move": True})
    # Each pair of rows leaks once, through one channel into another.
    pairs = [(s, t) for t in range(T) for s in range(t)]
    for n, (s, t) in enumerate(rng.permutation(pairs)):
        def leaks(x, s=s, t=t, c=n % C):
            y = x.copy()
            y[s, (c + 1) % C] += 1e-3 * x[t, c]
            return y

        yield Case((leaks, x), True, {
            f"output row {s} reads a thousandth of channel {n % C} of input row {t}, of {T} rows, "
            "and your check says no: try every pair of rows, every channel, and any difference, "
            "however small": False})

    def through_a_norm(x):
        y = x.copy()
        y[:-1] += _standardise(x[1:])
        return y

    def through_differences(x):                           # exactly blind to a shift
        y = x.copy()
        y[:-1] += np.roll(x[1:], 1, axis=1) - x[1:]
        return y

    exact = np.round(1024 * x) / 1024                     # a shift by a whole number rounds nothing
    for op, start in ((through_a_norm, x), (through_differences, exact)):
        yield Case((op, start), True, {
            "each row reads the next one through a layer norm, and your check says no: you move a "
            "row in a way to which layer norm is blind": False})


def _rms(rng):
    """Rows of different size, and one so small that it matters where eps stands."""
    size = rng.permutation([1e-3, *rng.uniform(0.5, 2, 3)])[:, None]
    x = size * (rng.standard_normal((4, 6)) + 0.7)
    w = 1 + 0.5 * rng.standard_normal(6)
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
    return x, w, rstd, x * rstd


@exercise
def rms_norm(rng):
    x, w, rstd, xhat = _rms(rng)
    square = (x * x).mean(axis=-1, keepdims=True)
    centred = x - x.mean(axis=-1, keepdims=True)
    mistakes = {
        "that is layer norm: RMS norm does not subtract the mean":
            centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w,
        "the mean is subtracted above the fraction line: RMS norm leaves it in":
            centred * rstd * w,
        "the standard deviation is below the fraction line: take the mean of the squares, without "
        "subtracting the mean": x / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w,
        "a sum for a mean: the squares are averaged":
            x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-5) * w,
        "the wrong axis: each row is normalised alone":
            x / np.sqrt((x * x).mean(axis=0, keepdims=True) + 1e-5) * w,
        "one number for the whole array: each row is normalised alone":
            x / np.sqrt((x * x).mean() + 1e-5) * w,
        "the square root is missing": x * rstd ** 2 * w,
        "the scale w is missing": xhat,
        "eps is added outside the square root: it is added to the mean of the squares":
            x / (np.sqrt(square) + 1e-5) * w,
        "eps is missing, and one row is so small that it counts": x / np.sqrt(square) * w,
    }
    yield Case((x, w), xhat * w, mistakes, rtol=1e-4)
    yield Case((x, w, 0.1), x / np.sqrt(square + 0.1) * w, {
        "eps is an argument: do you use it?": xhat * w,
        "eps is added outside the square root: it is added to the mean of the squares":
            x / (np.sqrt(square) + 0.1) * w}, rtol=1e-4)
    zero = np.zeros((2, 6))
    yield Case((zero, w), zero, about="A row of zeros must stay 0: where does eps belong?")


@exercise
def rms_norm_backward(rng):
    x, w, rstd, xhat = _rms(rng)
    dy = rng.standard_normal(x.shape) + 0.5 * xhat + 0.5
    dy[np.abs(xhat).max(axis=-1) < 1] *= 1e-3             # so that the small row does not rule dx
    g = dy * w

    def along(v):
        return (v * xhat).mean(axis=-1, keepdims=True)

    dx, dw = (g - xhat * along(g)) * rstd, (dy * xhat).sum(axis=0)

    return Case((dy, x, w), (dx, dw), {
        "dx still removes the mean of g: that is layer norm's backward, here a shift counts":
            part(0, (g - g.mean(axis=-1, keepdims=True) - xhat * along(g)) * rstd),
        "dx: the part along xhat is not removed: moving x also changes the row's size":
            part(0, g * rstd),
        "dx: a sum for a mean in the part along xhat":
            part(0, (g - xhat * along(g) * x.shape[-1]) * rstd),
        "dx: the scale is missing: what arrives at xhat is dy times w":
            part(0, (dy - xhat * along(dy)) * rstd),
        "dx: the division by the row's size is missing": part(0, g - xhat * along(g)),
        "dx: the part along x is removed with x itself: it must be xhat, both times":
            part(0, (g - x * (g * x).mean(axis=-1, keepdims=True)) * rstd),
        "dx: the second term has the wrong sign": part(0, (g + xhat * along(g)) * rstd),
        "dw: the scale multiplies xhat, not x": part(1, (dy * x).sum(axis=0)),
        "dw: a mean for a sum: every row adds its whole share": part(1, (dy * xhat).mean(axis=0)),
        "dw: what arrives at the scale is dy, without w": part(1, (g * xhat).sum(axis=0)),
        "dw: the wrong axis: each channel has its own scale, shared by the rows":
            lambda out: np.shape(out[1]) == (len(x),),
        "dw: that is a bias's gradient; the scale is multiplied by xhat": part(1, dy.sum(axis=0)),
    })


@exercise
def most_moved_scale(rng):
    norms = [f"trunk.h.{i}.ln_{k}" for i in range(3) for k in (1, 2)] + ["trunk.ln_f"]

    def signs(n):
        return rng.permutation(np.repeat([-1.0, 1.0], n // 2))

    for winner in rng.permutation(norms):                 # each of them once
        others = rng.permutation([n for n in norms if n != winner])
        rises, loud, of_a_bias = (str(n) for n in others[:3])
        before = {name: rng.standard_normal((8, 8)) for name in (
            "input.weight", "trunk.wpe.weight", "trunk.h.0.attn.c_attn.weight")}
        for n in rng.permutation(norms):                  # in no order
            before[f"{n}.weight"] = rng.uniform(0.95, 1.05, 8)
            before[f"{n}.bias"] = 0.1 * rng.standard_normal(8)
        before[f"{loud}.weight"] = rng.uniform(4, 8, 8)
        after = {name: value + 0.01 * rng.uniform(-1, 1, value.shape)
                 for name, value in before.items()}
        after["trunk.wpe.weight"] = before["trunk.wpe.weight"] + rng.standard_normal((8, 8))
        after[f"{winner}.weight"] = before[f"{winner}.weight"] + 0.5 * signs(8)
        after[f"{rises}.weight"] = before[f"{rises}.weight"] + 0.2
        after[f"{of_a_bias}.bias"] = before[f"{of_a_bias}.bias"] + 1.5

        def chosen(name):
            return lambda out: isinstance(out, str) and out == name

        yield Case((before, after), chosen(f"{winner}.weight"), {
            f"it rose the most, but {winner}.weight moved further, half up and half down: do "
            "moves of both signs count, and do you look at every scale?": chosen(f"{rises}.weight"),
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
