"""Lesson 3, layer norm."""

import numpy as np

from . import Case, exercise


@exercise
def offset_gradient(rng):
    dy = rng.standard_normal((*rng.choice([2, 3, 4, 5], 2, replace=False), 7))
    return Case((dy,), dy.sum(axis=(0, 1)), {
        "a mean for a sum: every token adds its whole share": dy.mean(axis=(0, 1)),
        "a mean over one axis of rows: every token adds its whole share": lambda db: any(
            np.allclose(db, wrong) for wrong in (dy.sum(axis=0).mean(axis=0),
                                                 dy.mean(axis=0).sum(axis=0))),
        "the wrong axis: you sum over the channels, but each channel has its own offset":
            lambda db: np.shape(db) == dy.shape[:2],
        "one axis of rows is still there: the offset is shared by all tokens of all sequences":
            lambda db: np.shape(db) in (dy.shape[1:], (dy.shape[0], dy.shape[2])),
        "a sum over everything: the offset has one number for each channel": dy.sum(),
        "only some of the rows: the offset is shared by all tokens of all sequences":
            lambda db: any(np.allclose(db, part) for part in (
                dy[0].sum(axis=0), dy[-1].sum(axis=0), dy[:, 0].sum(axis=0),
                dy[:, -1].sum(axis=0))),
    })


@exercise
def sees_the_future(rng):
    T = int(rng.integers(4, 7))
    x = rng.standard_normal((T, 3))

    def standardised(axis):
        def op(x):
            centred = x - x.mean(axis=axis, keepdims=True)
            return centred / np.sqrt((centred ** 2).mean(axis=axis, keepdims=True) + 1e-5)
        return op

    def running_mean(x):
        return np.cumsum(x, axis=0) / np.arange(1, len(x) + 1)[:, None]

    def last_to_first(x):
        y = x.copy()
        y[0] += 1e-3 * np.tanh(x[-1])
        return y

    def next_row(x):
        return x + 0.1 * np.roll(x, -1, axis=0) * (np.arange(len(x)) < len(x) - 1)[:, None]

    yield Case((standardised(-1), x), False, {
        "layer norm does not mix tokens, and your check says that it does: does each output "
        "row's own input row count as later?": True})
    yield Case((standardised(0), x), True, {
        "a norm over the tokens sees the future, and your check says no: after moving a later "
        "row, do you look at the earlier outputs?": False})
    yield Case((running_mean, x), False, {
        "a mean over the tokens so far does not see the future, and your check says that it "
        "does: only an *earlier* output may not move": True})
    yield Case((last_to_first, x), True, {
        "an operation that lets a little of the last token into the first, and your check says "
        "no: do you try every pair of rows, and any difference, however small?": False})
    yield Case((next_row, x), True, {
        "an operation in which each row sees the next one, and your check says no: do you try "
        "every pair of rows?": False})


def _rms(rng):
    x = rng.standard_normal((4, 6)) * rng.uniform(0.5, 2, (4, 1)) + 0.7
    w = 1 + 0.5 * rng.standard_normal(6)
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
    return x, w, rstd, x * rstd


@exercise
def rms_norm(rng):
    x, w, rstd, xhat = _rms(rng)
    centred = x - x.mean(axis=-1, keepdims=True)
    yield Case((x, w), xhat * w, {
        "that is layer norm: RMS norm takes no mean away":
            centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w,
        "the mean is taken away above the line: RMS norm leaves it in": centred * rstd * w,
        "a deviation in the denominator: it knows the mean; take the mean of the squares":
            x / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w,
        "a sum for a mean: the squares are averaged":
            x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-5) * w,
        "the wrong axis: each row is normalised alone":
            x / np.sqrt((x * x).mean(axis=0, keepdims=True) + 1e-5) * w,
        "one number for the whole array: each row is normalised alone":
            x / np.sqrt((x * x).mean() + 1e-5) * w,
        "the square root is missing": x * rstd ** 2 * w,
        "the scale w is missing": xhat,
    }, rtol=1e-4)
    zero = np.zeros((2, 6))
    yield Case((zero, w), zero, about="A row of zeros must stay 0: where does eps belong?")


@exercise
def rms_norm_backward(rng):
    x, w, rstd, xhat = _rms(rng)
    dy = rng.standard_normal(x.shape) + 0.5 * xhat + 0.5
    g = dy * w

    def along(v):
        return (v * xhat).mean(axis=-1, keepdims=True)

    dx, dw = (g - xhat * along(g)) * rstd, (dy * xhat).sum(axis=0)

    def with_dx(wrong):
        return lambda out: np.allclose(out[0], wrong)

    def with_dw(wrong):
        return lambda out: np.shape(out[1]) == wrong.shape and np.allclose(out[1], wrong)

    return Case((dy, x, w), (dx, dw), {
        "dx still removes the mean of g: that is layer norm's backward, here a shift counts":
            with_dx((g - g.mean(axis=-1, keepdims=True) - xhat * along(g)) * rstd),
        "dx: the part along xhat is not removed: moving x also moves the row's size":
            with_dx(g * rstd),
        "dx: a sum for a mean in the part along xhat":
            with_dx((g - xhat * along(g) * x.shape[-1]) * rstd),
        "dx: the scale is forgotten: what arrives at xhat is dy times w":
            with_dx((dy - xhat * along(dy)) * rstd),
        "dx: the division by the row's size is missing": with_dx(g - xhat * along(g)),
        "dx: the part along x is removed with x itself: it must be xhat, both times":
            with_dx((g - x * (g * x).mean(axis=-1, keepdims=True)) * rstd),
        "dx: the sign of the second term": with_dx((g + xhat * along(g)) * rstd),
        "dw: the scale multiplies xhat, not x": with_dw((dy * x).sum(axis=0)),
        "dw: a mean for a sum: every row adds its whole share": with_dw((dy * xhat).mean(axis=0)),
        "dw: what arrives at the scale is dy, without w": with_dw((g * xhat).sum(axis=0)),
        "dw: the wrong axis: each channel has its own scale, shared by the rows":
            lambda out: np.shape(out[1]) == (len(x),),
        "dw: that is an offset's gradient: the scale's rate is xhat": with_dw(dy.sum(axis=0)),
    })


@exercise
def most_moved_scale(rng):
    norms = [f"trunk.h.{i}.ln_{k}" for i in range(3) for k in (1, 2)] + ["trunk.ln_f"]
    winner, other, balanced = (str(n) for n in rng.choice(norms, 3, replace=False))

    def signs(n):
        return rng.permutation(np.repeat([-1.0, 1.0], n // 2))

    before, after = {}, {}
    for name in ["input.weight", "trunk.wpe.weight", "trunk.h.0.attn.c_attn.weight"]:
        before[name] = rng.standard_normal((8, 8))
        after[name] = before[name] + rng.standard_normal((8, 8)) * (name == "trunk.wpe.weight")
    for n in norms:
        before[f"{n}.weight"] = rng.uniform(0.95, 1.05, 8)
        after[f"{n}.weight"] = before[f"{n}.weight"] + 0.01 * rng.standard_normal(8)
        before[f"{n}.bias"] = 0.1 * rng.standard_normal(8)
        after[f"{n}.bias"] = before[f"{n}.bias"] + 0.02 * rng.standard_normal(8)
    after[f"{winner}.weight"] = before[f"{winner}.weight"] + 0.5 * signs(8)
    after[f"{other}.weight"] = before[f"{other}.weight"] + 0.2
    after[f"{balanced}.bias"] = before[f"{balanced}.bias"] + 1.5
    return Case((before, after), f"{winner}.weight", {
        "it rose the most, but another scale moved further, half up and half down: moves of "
        "both signs count": f"{other}.weight",
        "that is an offset (bias); the scales are called weight": f"{balanced}.bias",
        "that is no layer norm: choose among the names with ln_ and weight":
            lambda name: isinstance(name, str) and "ln_" not in name,
        "return the name of one parameter, a text": lambda name: not isinstance(name, str),
        "the full name, as it is in the dictionaries": lambda name: name not in before,
    }, about="Another scale moved further: is it the difference of before and after that you "
             "measure, or how large the scale is?")
