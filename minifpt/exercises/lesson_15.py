"""Lesson 15, memory without attention."""

import math

import numpy as np

from . import Case, close_to, exercise, part


@exercise
def bias_for_half(rng):
    for n in (float(rng.uniform(1.5, 3)), int(rng.integers(4, 9)), int(rng.integers(20, 90))):
        f = 0.5 ** (1 / n)
        b = math.log(f / (1 - f))
        yield Case((n,), b, {
            "that is the gate, a number between 0 and 1; which bias gives it?": f,
            "the sign is the other way round: an open gate has a bias above 0": -b,
            "a gate of 1 - 1/n leaves 1/e after n steps, about 0.37, not a half":
                close_to(math.log(n - 1)),
            "that leaves 1/e after n steps, not a half": close_to(-math.log(math.expm1(1 / n))),
            "n gates one after the other multiply: f to the power of n is a half": close_to(
                0.0, math.log(0.5 / n / (1 - 0.5 / n)), math.log((1 - 0.5 / n) / (0.5 / n))),
            "the gate is a sigmoid of its bias: 1 / (1 + e^-b), not e^b": math.log(f),
            "f is (1/2)^(1/n), not (1/2)^n": close_to(-math.log(2 ** n - 1)),
        }, about="Let f^n = 1/2, solve for f, then 1 / (1 + e^-b) = f for b.")


def decay(x, f):
    """Every state c_t = f c_(t-1) + x_t, with c_(-1) = 0 in front: (T + 1, D)."""
    c = np.zeros((len(x) + 1, len(f)))
    for t in range(len(x)):
        c[t + 1] = f * c[t] + x[t]
    return c


def back_through(dy, f):
    """dx of :func:`decay`."""
    dx, dc = np.zeros_like(dy), 0.0
    for t in reversed(range(len(dy))):
        dc = dy[t] + f * dc
        dx[t] = dc
    return dx


@exercise
def decay_backward(rng):
    T, D = int(rng.integers(5, 8)), int(rng.integers(2, 5))
    x, dy = rng.standard_normal((2, T, D))
    f = rng.uniform(0.3, 0.95, D)
    c, dx = decay(x, f), back_through(dy, f)
    df = (dx * c[:-1]).sum(axis=0)

    return Case((dy, x, f), (dx, df), {
        "dx: nothing comes back from the next token: c_t is read by c_(t+1), too": part(0, dy),
        "dx: only one step back is counted: c_t reaches every later token": part(
            0, dy + f * np.vstack([dy[1:], np.zeros((1, D))])),
        "dx: a step back multiplies by f: yours multiplies by 1": part(
            0, back_through(dy, np.ones(D))),
        "dx: the way back runs from the last token to the first; yours runs forward": part(
            0, decay(dy, f)[1:]),
        "dx: that is f times too much or too little: x_t is added, without a factor": part(
            0, dx * f, dx / f),
        "df: c_(t-1) is what f multiplies, not c_t": part(1, (dx * c[1:]).sum(axis=0)),
        "df: f multiplies the state c_(t-1), not the input x": part(
            1, (dx * x).sum(axis=0)),
        "df: what arrives at a state is dx, not dy: it also comes from the tokens after": part(
            1, (dy * c[:-1]).sum(axis=0)),
        "df: a mean instead of a sum: the same f is used at every token, and the paths add up":
            part(1, df / T, df / (T - 1)),
        "df: one number for each channel: sum over the tokens": lambda out: (
            np.shape(out[1]) == (T, D)),
        "df: one number for each channel; yours sums over the channels, too": lambda out: (
            np.ndim(out[1]) == 0 or np.shape(out[1]) == (T,)),
    })


def cut_back(dy, h, u, starts, slope=None):
    """da of the recurrent network; nothing comes back from the tokens in ``starts``."""
    slope = 1 - h ** 2 if slope is None else slope
    da, dh = np.zeros_like(dy), 0.0
    for t in reversed(range(len(dy))):
        da[t] = (dy[t] + dh) * slope[t]
        dh = 0.0 if t in starts else da[t] @ u.T
    return da


@exercise
def truncated_backward(rng):
    D = int(rng.integers(2, 4))
    for k, T, about in ((4, 14, ""), (5, 13, ""),
                        (1, 7, "Here k = 1: nothing comes back at all."),
                        (9, 8, "Here k is more than there are tokens: nothing is cut.")):
        a, dy = rng.standard_normal((2, T, D))
        u, h = rng.standard_normal((D, D)) + 0.5, np.tanh(a)
        starts = set(range(0, T, k))
        answer = cut_back(dy, h, u, starts)

        def near(*values, answer=answer):
            """As :func:`close_to`, without the mistakes that make no difference in this case."""
            return close_to(*(v for v in values if not np.allclose(v, answer)))

        late = {t + 1 for t in starts}
        yield Case((dy, h, u, k), answer, {
            "nothing is cut: the gradient must not go from one piece to the piece before":
                near(cut_back(dy, h, u, set())),
            "the cut is one token off: the first piece is the tokens 0 to k - 1": near(
                cut_back(dy, h, u, late), cut_back(dy, h, u, {t - 1 for t in starts})),
            "the pieces are counted from token 0, not from the end": near(
                cut_back(dy, h, u, set(range(T, -1, -k)))),
            "only the last piece gets a gradient: each piece has its own dy": near(
                np.where(np.arange(T)[:, None] >= (T - 1) // k * k, answer, 0)),
            "nothing comes back from the next token, also within a piece": near(
                cut_back(dy, h, u, set(range(T)))),
            "the slope of tanh is missing: 1 - h^2": near(
                cut_back(dy, h, u, starts, np.ones_like(h))),
            "the slope of tanh is 1 - h^2; yours has another one": near(
                *(cut_back(dy, h, u, starts, s) for s in (h ** 2, 1 - h, 1 - np.tanh(h) ** 2))),
            "u is transposed on the way back": near(cut_back(dy, h, u.T, starts)),
            "that is dh, before the slope of tanh": near(answer / (1 - h ** 2)),
            "the state goes on through the cut, so da_t exists for all T tokens": lambda out, T=T: (
                len(out) < T),
        }, about=about)


@exercise
def reach(rng):
    K = int(rng.choice([70, 90]))
    k = np.arange(K)
    rates = 1 - np.array([0.5, 0.35, 0.2, 0.12, 0.08]) * rng.uniform(0.9, 1.1)
    slow = rates[3] ** k
    spike = slow.copy()
    spike[int(rng.integers(2, 4))] *= 1e-6                # one step out of line, far too small
    bump = slow.copy()
    bump[K - int(rng.integers(2, 9))] = 0.9               # and one that is far too large
    unit = slow * 10.0 ** rng.uniform(2, 5)
    small = slow * 10.0 ** -rng.uniform(2, 5)
    grows = 1.05 ** k
    rows = [*(r ** k for r in rates), spike, bump, unit, small, np.ones(K), grows]
    order = rng.permutation(len(rows))
    lengths = np.array(rows)[order]

    def by_row(out):
        out = np.asarray(out, float)
        if out.shape != (len(rows),):
            raise ValueError("one number for each row")
        named = np.empty(len(rows))
        named[order] = out
        return named[:5], *named[5:]

    def right(out):
        fading, spike, bump, unit, small, flat, grows = by_row(out)
        same = fading[3]
        # A definition that counts whole steps may give two neighbours the same number.
        return (np.isfinite(out).all() and (np.diff(fading) >= 0).all() and fading[0] > 0
                and (fading[2:] > fading[:-2]).all() and fading[4] > 2.5 * fading[0]
                and np.allclose([unit, small], same, rtol=1e-3)
                and np.abs(np.array([spike, bump]) / same - 1).max() < 0.25
                and min(flat, grows) >= 0.9 * (K - 1) and fading[3] < K - 1)

    def no_row(out):
        return np.shape(out) != (len(rows),)

    return Case((lengths,), right, {
        "one number for each row: (N,)": no_row,
        "it is not finite for a row that does not fade": lambda out: not np.isfinite(out).all(),
        "the unit matters: a curve that is multiplied by a number reaches as far as before":
            lambda out: not np.allclose(by_row(out)[3:5], by_row(out)[0][3], rtol=1e-3),
        "a single step that is far too small decides: nearly all the others are in line":
            lambda out: abs(by_row(out)[1] / by_row(out)[0][3] - 1) >= 0.25,
        "a single step that is far too large decides: nearly all the others are in line":
            lambda out: abs(by_row(out)[2] / by_row(out)[0][3] - 1) >= 0.25,
        "it is the other way round: a curve that fades more slowly reaches further":
            lambda out: (np.diff(by_row(out)[0]) < 0).all(),
        "a curve that does not fade reaches at least to its end":
            lambda out: min(by_row(out)[5:]) < 0.9 * (K - 1),
        "all curves reach the same": lambda out: np.ptp(out) == 0,
        "count steps: two of these curves fade at different rates and get the same number":
            lambda out: not (np.diff(by_row(out)[0][::2]) > 0).all(),
    }, about="Think of a curve that fades by a constant factor each step: which number of steps "
             "says how fast?")
