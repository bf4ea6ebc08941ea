"""Solutions of lesson 21, from GPT-2 to today.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def rotated_score(q, k, m, n, base):
    """One rotation is enough, of the key by the distance: as complex numbers, pair by pair."""
    half = len(q) // 2
    theta = base ** (-2 * np.arange(half) / len(q))
    x, y = (a[:half] + 1j * a[half:] for a in (q, k))
    products = np.real(np.conj(x) * y * np.exp(1j * (n - m) * theta))
    return products.sum() / np.sqrt(len(q))


def reflected(q, k, m, n, base):
    """A minus is missing in both rotations."""
    half = len(q) // 2
    theta = base ** (-2 * np.arange(half) / len(q))

    def turn(a, position):
        x, y, c, s = a[:half], a[half:], np.cos(position * theta), np.sin(position * theta)
        return np.concatenate([x * c + y * s, x * s + y * c])
    return turn(q, m) @ turn(k, n) / np.sqrt(len(q))


@exercise(rotated_score, {
    "a rotation is (x cos - y sin, x sin + y cos): a minus is missing": reflected,
    "theta is base^(-2i/D): D is missing": "-2 * _ / len(q) -> -2.0 * _",
    "no rotation is left: that is the score without positions": "n - m -> 0",
    "the key is rotated, too: by its own position": "n - m -> -m",
    "the query is rotated, too: by its own position": "n - m -> n",
    "query and key turn the same way, each by its position: you add the two angles":
        "n - m -> -n - m",
    "the other way round: with the key before the query, the angle of the key against the query is "
    "(n - m) theta": "n - m -> m - n",
    "channel i belongs to channel i + D/2, not to its neighbour": "x, y = _ -> "
    "x, y = (a[::2] + 1j * a[1::2] for a in (q, k))",
    "theta is base^(-2i/D): the 2 is missing": "-2 -> -1",
    "theta is base^(-2i/D): the minus is missing": "-2 -> 2",
    "theta is base^(-2i/D), and i begins at 0": "np.arange(half) -> np.arange(1, half + 1)",
    "theta is base^(-2i/D), divided by D and not by D/2": "-2 -> -4",
    "one angle for all pairs: pair i has its own": "theta = _ -> theta = 1.0",
    "base is an argument: do you use it?": "base ** _ -> 10_000.0 ** _",
    "angles are in radians": "theta = _ -> theta = np.radians(_)",
    "divide by the square root of D, as every score": "_ / np.sqrt(len(q)) -> _",
    "the square root of D is missing: you divide by D": "np.sqrt(len(q)) -> len(q)",
    "the root is of all D channels, not of D/2": "np.sqrt(len(q)) -> np.sqrt(half)",
    "a score is one number, a sum over the channels": [
        "products.sum() -> products", "products.sum() -> np.tile(products / 2, 2)"],
}, about="Rotate both by their positions, multiply, divide by the square root of D.")
def _(rng):
    for D in rng.permutation([6, 8, 10]):
        base = float(rng.uniform(20, 60))
        q, k = rng.standard_normal((2, int(D)))
        n = int(rng.integers(6, 10))
        m = n + int(rng.integers(2, 6))                   # the query comes later; not m = 2n
        yield q, k, m, n, base
        yield Case((q, k, n, m, base), about="Here the key comes after the query: the angle has a "
                   "sign.")


def gate_backward(dy, x, W_g, W_u):
    """The product rule, then back through silu, then through both matrices."""
    z, u = x @ W_g, x @ W_u
    s = 1 / (1 + np.exp(-z))
    dup = dy * (z * s)
    dgate = dy * u * (s * (1 + z * (1 - s)))
    return dgate @ W_g.T + dup @ W_u.T, x.T @ dgate, x.T @ dup


SLOPE = "s * (1 + z * (1 - s)) -> "


@exercise(gate_backward, {
    "dW_g and dW_u are exchanged: return dx, dW_g, dW_u": "return _, _1, _2 -> return _, _2, _1",
    "dW_g is 0, as if the gate were a constant: each factor gets dy times the other one":
        "dgate = _ -> dgate = 0 * dy",
    "dW_u is 0, as if what comes through were a constant": "dup = _ -> dup = 0 * dy",
    "the factors are exchanged: dW_g has x W_u in it, and dW_u has silu(x W_g)": [
        "dgate = _ -> dgate, dup = dup, _", "dup = _ -> dup = dy * u",
        "dgate = dy * u * _ -> dgate = dy * (z * s) * _"],
    "dW_g is without the other factor: dy times x W_u": "dy * u -> dy",
    "dW_u is without the other factor: dy times silu(x W_g)": "dup = _ -> dup = dy",
    "the slope of silu is missing: dgate is dy times x W_u, and then goes back through silu":
        SLOPE + "1",
    "silu's slope is s + z s (1 - s): a factor of the second term is missing": [
        SLOPE + "s + z * (1 - s)", SLOPE + "s + s * (1 - s)", SLOPE + "s + z * s"],
    "that is the slope of ReLU, not of silu": SLOPE + "(z > 0)",
    "that is silu where its slope belongs": SLOPE + "z * s",
    "that is the slope of the sigmoid, s (1 - s): silu is z times it": SLOPE + "s * (1 - s)",
    "silu is a product of z and sigmoid(z), and its slope has two terms": [
        SLOPE + "s", SLOPE + "z * s * (1 - s)"],
    "a sign in the slope of silu: s (1 + z (1 - s))": SLOPE + "s * (1 - z * (1 - s))",
    "the slope is taken at silu(z), not at z":
        "dgate = _ -> z = z * s; s = 1 / (1 + np.exp(-z)); dgate = _",
    "dW_u has silu(x W_g) in it, not x W_g": "dup = _ -> dup = dy * z",
    "dW_u has silu(x W_g) in it, not its sigmoid": "dup = _ -> dup = dy * s",
    "dx: x went two ways, and both come back. The way through the gate alone is there":
        "_ + dup @ W_u.T -> _",
    "dx: x went two ways, and both come back. The way through W_u alone is there":
        "dgate @ W_g.T + _ -> _",
    "dx: the two ways add up": [
        "_ + dup @ W_u.T -> _ - dup @ W_u.T", "_ + dup @ W_u.T -> dup @ W_u.T - _",
        "_ + dup @ W_u.T -> _ * (dup @ W_u.T)"],
    "dx: each way goes back through its own matrix": [
        "dgate @ W_g.T + dup @ W_u.T -> dgate @ W_u.T + dup @ W_g.T",
        "dgate @ W_g.T + dup @ W_u.T -> (dgate + dup) @ (W_g + W_u).T"],
    "dW is a sum over the rows, not a mean":
        "return _, _1, _2 -> return _, _1 / len(x), _2 / len(x)",
    "dW_g has the shape of W_g: x.T @ ..., not its transpose": "x.T @ dgate -> dgate.T @ x",
}, {"e^900 overflows": "1 / (1 + np.exp(-z)) -> np.exp(z) / (1 + np.exp(z))"},
   about="Two factors, and x goes into both.")
def _(rng):
    N, C, inner = (int(n) for n in rng.permutation([3, 4, 5]))
    x, dy = rng.standard_normal((N, C)), rng.standard_normal((N, inner))
    W_g, W_u = rng.standard_normal((2, C, inner))
    W_g[:, 0] *= -np.sign(x[0] @ W_g[:, 0])               # one gate at least is shut
    yield dy, x, W_g, W_u
    # Gates that are shut or wide open: far from 0 a sigmoid may overflow.
    far = np.where(rng.random((N, inner)) < 0.5, -900.0, 900.0)
    yield Case((dy, np.eye(N), far, x @ W_u), mistakes={
        "here z = x W_g is -900 or 900: e^900 overflows. Take exp of negative numbers only, or "
        "1 / (1 + exp(-z)), which is 0 where exp(-z) is infinite": lambda out: not all(
            np.isfinite(part).all() for part in out)})


def slow_base(D, tokens, turns):
    """1 / theta of the slowest pair is base^((D - 2) / D)."""
    longest = tokens / (2 * np.pi * turns)
    return longest ** (D / (D - 2))


@exercise(slow_base, {
    "pairs count from 0, so the slowest has i = D/2 - 1": "longest ** _ -> longest",
    "that is theta of the slowest pair: the base is asked for": "longest ** _ -> 1 / longest",
    "a turn has 2 pi radians: the 2 pi is missing": "2 * np.pi * turns -> turns",
    "a turn has 2 pi radians, not pi": "2 * np.pi * turns -> np.pi * turns",
    "2 pi belongs to the turns: you divide by it where you should multiply":
        "2 * np.pi * turns -> turns / (2 * np.pi)",
    "a turn has 2 pi radians, not 360": "2 * np.pi -> 360",
    "the exponent is upside down: base^((D - 2) / D) is 1 / theta": "D / (D - 2) -> (D - 2) / D",
    "the sign of the exponent: theta is base^(-2i/D)": "D / (D - 2) -> -D / (D - 2)",
    "the exponent is -2i/D: the 2 is missing": "D / (D - 2) -> D / (D / 2 - 1)",
    "the exponent is -2i/D, divided by D and not by D/2": "D / (D - 2) -> D / 2 / (D - 2)",
    "a head has D/2 pairs, and they count from 0: the slowest has i = D/2 - 1": [
        "D / (D - 2) -> D / (2 * D - 2)", "D / (D - 2) -> D / (D - 1)"],
    "the turns are over all the tokens, not over one less": "tokens / _ -> (tokens - 1) / _",
    "more turns need a larger angle: turns belongs below the fraction line":
        "tokens / _ -> tokens * turns / (2 * np.pi)",
    "that is the base for one turn: do you use turns?": "2 * np.pi * turns -> 2 * np.pi",
    "that is a logarithm of the base": "return _ -> return np.log(_)",
    "the exponent is missing: base^((D - 2) / D) is 1 / theta, with D - 2 only":
        "D / (D - 2) -> 1 / (D - 2)",
    "that is how often the slowest pair turns with base 10,000":
        "return _ -> return tokens * 10_000.0 ** (2 / D - 1) / (2 * np.pi)",
    "that is 1 / theta of another pair, the one before the slowest": "D - 2 -> D - 4",
}, about="With theta = base^(-(D - 2) / D), tokens * theta is 2 pi * turns.")
def _(rng):
    for D in rng.choice([8, 10, 12, 16], 3, replace=False):
        yield int(D), int(rng.integers(300, 5000)), float(rng.choice([0.2, 0.4, 0.75, 2.5, 3.5]))


if __name__ == "__main__":
    check_solutions(globals())
