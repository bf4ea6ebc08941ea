"""Lesson 21, from GPT-2 to today."""

import numpy as np
from scipy.special import expit

from . import Case, either, exercise, part


@exercise
def cache_bytes(rng):
    G = int(rng.integers(4, 7))
    H, D = G * int(rng.choice([7, 9])), int(rng.choice([22, 26, 34]))
    T = int(rng.choice([53, 59, 61, 67, 71, 73, 79, 83, 89, 97]))     # primes: T G is never H D / G
    for L, size in ((7, 8), (int(rng.integers(11, 30)), int(rng.choice([1, 2, 4])))):
        C, answer = H * D, 2 * L * T * G * D * size
        yield Case((L, H, G, C, T, size), answer, {
            "that is what all heads of queries would keep: keys and values have only n_group heads":
                2 * L * T * C * size,
            "keys are kept, and values as well": answer / 2,
            "queries are not kept: a token's query is used once": L * T * size * (2 * G + H) * D,
            "a head has n_embd / n_head channels, not n_embd": answer * H,
            "n_group heads of n_embd / n_head channels are kept, not n_head / n_group heads, and "
            "not n_embd / n_group channels": 2 * L * T * size * C // G,
            "each block keeps its own": answer / L,
            "each token keeps its own": answer / T,
            "numbers, not bytes: a number takes size bytes": answer / size,
            "bytes, not bits": 8 * answer,
            "that has T * T scores in it: they are not kept": 2 * L * T * T * G * size,
            "one group is counted: there are n_group": answer / G,
            "each head has n_embd / n_head channels: they are missing":
                answer / D,
        }, about="Keys and values, of each block, token and group, n_embd / n_head channels each.")


def _rotate(x, position, base, theta=None):
    """x (D,) rotated as in the library; ``theta`` in place of base^(-2i/D)."""
    half = len(x) // 2
    theta = base ** (-np.arange(half) / half) if theta is None else theta
    a, b, cos, sin = x[:half], x[half:], np.cos(position * theta), np.sin(position * theta)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])


@exercise
def rotated_score(rng):
    for D in rng.permutation([6, 8, 10]):
        D, half, base = int(D), int(D) // 2, float(rng.uniform(20, 60))
        q, k = rng.standard_normal((2, D))
        n = int(rng.integers(6, 10))
        m = n + int(rng.integers(2, 6))                   # the query comes later; not m = 2n
        i, root = np.arange(half), np.sqrt(D)

        def score(theta=None, m=m, n=n, q=q, k=k, base=base, root=root):
            return float(_rotate(q, m, base, theta) @ _rotate(k, n, base, theta) / root)

        # Even channels and then odd ones: with these, neighbours are rotated together.
        apart = np.arange(D).reshape(half, 2).T.ravel()
        answer = score()
        yield Case((q, k, m, n, base), answer, {
            "no rotation is left: that is the score without positions": float(q @ k / root),
            "the key is rotated, too: by its own position": score(n=0),
            "the query is rotated, too: by its own position": score(m=0),
            "query and key turn the same way, each by its position: you add the two angles":
                score(n=-n),
            "the other way round: with the key before the query, the angle of the key against the "
            "query is (n - m) theta": score(m=-m, n=-n),
            "channel i belongs to channel i + D/2, not to its neighbour":
                score(q=q[apart], k=k[apart]),
            "theta is base^(-2i/D): the 2 is missing": score(base ** (-i / D)),
            "theta is base^(-2i/D): the minus is missing": score(base ** (2 * i / D)),
            "theta is base^(-2i/D), and i begins at 0": score(base ** (-2 * (i + 1) / D)),
            "theta is base^(-2i/D), divided by D and not by D/2": score(base ** (-4 * i / D)),
            "one angle for all planes: plane i has its own": score(np.ones(half)),
            "base is an argument: do you use it?": score(10_000.0 ** (-2 * i / D)),
            "angles are in radians": score(np.pi / 180 * base ** (-2 * i / D)),
            "divide by the square root of D, as every score": answer * root,
            "the square root of D is missing: you divide by D": answer / root,
            "the root is of all D channels, not of D/2": answer * np.sqrt(2),
            "a score is one number, a sum over the channels": lambda out, D=D, half=half: np.shape(
                out) in ((D,), (half,)),
        }, about="Rotate both by their positions, multiply, divide by the square root of D.")


@exercise
def gate_backward(rng):
    N, C, inner = (int(n) for n in rng.permutation([3, 4, 5]))
    x, dy = rng.standard_normal((N, C)), rng.standard_normal((N, inner))
    W_g, W_u = rng.standard_normal((2, C, inner))

    def gradients(dgate, dup):
        return dgate @ W_g.T + dup @ W_u.T, x.T @ dgate, x.T @ dup

    z, u = x @ W_g, x @ W_u
    s = expit(z)
    slope = s * (1 + z * (1 - s))
    dgate, dup = dy * u * slope, dy * z * s
    right = gradients(dgate, dup)

    def wrong_slope(value):
        return part(1, gradients(dy * u * value, dup)[1])

    yield Case((dy, x, W_g, W_u), right, {
        "dW_g and dW_u are exchanged: return dx, dW_g, dW_u":
            lambda out: part(0, right[0])(out) and part(1, right[2])(out),
        "dW_g is 0, as if the gate were a constant: each factor gets dy times the other one":
            part(1, np.zeros((C, inner))),
        "dW_u is 0, as if what comes through were a constant": part(2, np.zeros((C, inner))),
        "the factors are exchanged: dW_g has x W_u in it, and dW_u has silu(x W_g)":
            part(2, gradients(dup, dgate)[2], x.T @ (dy * u)),
        "dW_g is without the other factor: dy times x W_u":
            part(1, gradients(dy * slope, dup)[1]),
        "dW_u is without the other factor: dy times silu(x W_g)": part(2, x.T @ dy),
        "the slope of silu is missing: dgate is dy times x W_u, and then goes back through silu":
            wrong_slope(1.0),
        "that is silu where its slope belongs": wrong_slope(z * s),
        "that is the slope of the sigmoid, s (1 - s): silu is z times it": wrong_slope(s * (1 - s)),
        "silu is a product of z and sigmoid(z), and its slope has two terms":
            either(wrong_slope(s), wrong_slope(z * s * (1 - s))),
        "a sign in the slope of silu: s (1 + z (1 - s))": wrong_slope(s * (1 - z * (1 - s))),
        "the slope is taken at silu(z), not at z": wrong_slope(
            expit(z * s) * (1 + z * s * (1 - expit(z * s)))),
        "dW_u has silu(x W_g) in it, not x W_g": part(2, x.T @ (dy * z)),
        "dW_u has silu(x W_g) in it, not its sigmoid": part(2, x.T @ (dy * s)),
        "dx: x went two ways, and both come back. The way through the gate alone is there":
            part(0, dgate @ W_g.T),
        "dx: x went two ways, and both come back. The way through W_u alone is there":
            part(0, dup @ W_u.T),
        "dx: a difference of the two ways, they add up": part(
            0, dgate @ W_g.T - dup @ W_u.T, dup @ W_u.T - dgate @ W_g.T),
        "dx: each way goes back through its own matrix": part(0, dgate @ W_u.T + dup @ W_g.T),
        "dW is a sum over the rows, not a mean":
            either(part(1, right[1] / N), part(2, right[2] / N)),
        "dW_g has the shape of W_g: x.T @ ..., not its transpose": lambda out: np.shape(
            out[1]) == (inner, C),
    }, about="Two factors, and x goes into both.")
    # Gates that are shut or wide open: far from 0 a sigmoid may overflow.
    far = np.where(rng.random((N, inner)) < 0.5, -900.0, 900.0)
    shut = np.zeros((N, N)) + np.eye(N)
    s = (far > 0).astype(float)
    yield Case((dy, shut, far, u), (
        (dy * u * s) @ far.T + (dy * far * s) @ u.T, dy * u * s, dy * far * s),
        about="Here z = x W_g is -900 or 900: e^900 overflows. Take exp of negative numbers only, "
              "or 1 / (1 + exp(-z)), which is 0 where exp(-z) is infinite.")


@exercise
def slow_base(rng):
    for D in rng.choice([8, 10, 12, 16], 3, replace=False):
        D, T = int(D), int(rng.integers(300, 5000))
        turns = float(rng.choice([0.2, 0.4, 0.75, 2.5, 3.5]))
        ratio = T / (2 * np.pi * turns)                   # 1 / theta of the slowest plane
        answer, slowest = ratio ** (D / (D - 2)), D // 2 - 1

        yield Case((D, T, turns), answer, {
            "planes count from 0, so the slowest has i = D/2 - 1": ratio,
            "that is theta of the slowest plane: the base is asked for": 1 / ratio,
            "a turn has 2 pi radians: the 2 pi is missing": (T / turns) ** (D / (D - 2)),
            "a turn has 2 pi radians, not pi": (2 * ratio) ** (D / (D - 2)),
            "2 pi belongs to the turns: you divide by it where you should multiply":
                (2 * np.pi * T / turns) ** (D / (D - 2)),
            "a turn has 2 pi radians, not 360": (T / (360 * turns)) ** (D / (D - 2)),
            "the exponent is upside down: base^((D - 2) / D) is 1 / theta":
                ratio ** ((D - 2) / D),
            "the sign of the exponent: theta is base^(-2i/D)": ratio ** (-D / (D - 2)),
            "the exponent is -2i/D: the 2 is missing": ratio ** (D / slowest),
            "more turns need a larger angle: turns belongs below the fraction line":
                (T * turns / (2 * np.pi)) ** (D / (D - 2)),
            "that is the base for one turn: do you use turns?":
                (T / (2 * np.pi)) ** (D / (D - 2)),
            "that is a logarithm of the base": np.log(answer),
            "the exponent is missing: base^((D - 2) / D) is 1 / theta, with D - 2 only":
                ratio ** (1 / (D - 2)),
            "that is how often the slowest plane turns with base 10,000":
                T * 10_000.0 ** (-(D - 2) / D) / (2 * np.pi),
            "that is 1 / theta of another plane, the one before the slowest":
                ratio ** (D / (D - 4)),
        }, about="With theta = base^(-(D - 2) / D), tokens * theta is 2 pi * turns.")
