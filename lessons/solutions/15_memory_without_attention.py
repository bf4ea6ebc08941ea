"""Solutions of lesson 15, memory without attention.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def bias_for_half(n):
    """f^n = 1/2, so f = 2^(-1/n); f = 1 / (1 + e^-b) gives b = -log(1/f - 1)."""
    f = 0.5 ** (1 / n)
    return -np.log(1 / f - 1)


@exercise(bias_for_half, {
    "that is the gate, a number between 0 and 1; which bias gives it?": "return _ -> return f",
    "the sign is the other way round: an open gate has a bias above 0": "-np.log(_) -> np.log(_)",
    "a gate of 1 - 1/n leaves 1/e after n steps, about 0.37, not a half": "f = _ -> f = 1 - 1 / n",
    "that leaves 1/e after n steps, not a half": "0.5 ** _ -> np.exp(-1) ** _",
    "n gates one after the other multiply: f to the power of n is a half": [
        "f = _ -> f = 0.5", "f = _ -> f = 0.5 / n", "f = _ -> f = 1 - 0.5 / n"],
    "the gate is a sigmoid of its bias: 1 / (1 + e^-b), not e^b": "return _ -> return np.log(f)",
    "f is (1/2)^(1/n), not (1/2)^n": ["1 / n -> n", "return _ -> return n * np.log(2)"],
    "log(2) / n is minus the logarithm of the gate: which bias gives that gate?":
        "return _ -> return np.log(2) / n",
    "that takes f = 1 - log(2) / n, which is near for a large n only": [
        "f = _ -> f = 1 - np.log(2) / n", "return _ -> return np.log(n / np.log(2))"],
    "that is the sigmoid of the gate: its inverse is asked for":
        "return _ -> return 1 / (1 + np.exp(-f))",
    "take the natural logarithm, that of base e": "np.log -> np.log10",
    "that is e^-b: a logarithm is missing": [
        "-np.log(_) -> _", "return _ -> return f / (1 - f)"],
    "that takes another number of gates than n": [
        "return _ -> return -np.log(2 ** (1 / (n + 1)) - 1)",
        "return _ -> return -np.log(2 ** (1 / max(n - 1, 0.5)) - 1)",
        "return _ -> return -np.log(2 ** (1 / np.sqrt(n)) - 1)"],
    "a half is to be left, not a quarter or another share": [
        "return _ -> return -np.log(4 ** (1 / n) - 1)"],
    "the sigmoid's inverse is log(f / (1 - f))": [
        "return _ -> return np.arctanh(f)",
        "return _ -> return -np.log(1 - f)",
        "return _ -> return np.arctanh(2 * f - 1)"],
    "that grows with log n, but what is f?": [
        "return _ -> return np.log(n)",
        "return _ -> return np.log2(n)",
        "return _ -> return np.log(n + 1)"],
    "one bias for every n is no answer: f^n = 1/2": [
        "return _ -> return 2.0",
        "return _ -> return 1.0"],
    "f^n = 1/2 gives f = (1/2)^(1/n): yours is 1 - (1/2)^n": [
        "return _ -> return np.log((1 - 0.5 ** n) * 2 ** n)"],
}, about="Let f^n = 1/2, solve for f, then 1 / (1 + e^-b) = f for b.")
def _(rng):
    for n in (float(rng.uniform(1.5, 3)), int(rng.integers(4, 9)), int(rng.integers(20, 90))):
        yield n,


def decay_backward(dy, x, f):
    """A state is read as an output and by the next token; f multiplies the state before it."""
    T = len(x)
    c = np.zeros((T + 1, len(f)))                         # c[t] is the state before token t
    for t in range(T):
        c[t + 1] = f * c[t] + x[t]
    dx = np.zeros_like(x)
    dc = np.zeros_like(f)                                 # what comes back from the next token
    for t in reversed(range(T)):
        dx[t] = dy[t] + dc
        dc = f * dx[t]
    return dx, (dx * c[:-1]).sum(axis=0)


@exercise(decay_backward, {
    "return them in the order dx, df": "return _, _1 -> return _1, _",
    "dx: nothing comes back from the next token: c_t is read by c_(t+1), too":
        "dy[t] + dc -> dy[t]",
    "dx: only one step back is counted: c_t reaches every later token": "f * dx[t] -> f * dy[t]",
    "dx: a step back multiplies by f: yours multiplies by 1": "f * dx[t] -> dx[t]",
    "dx: the way back runs from the last token to the first; yours runs forward":
        "reversed(range(T)) -> range(T)",
    "dx: that is f times too much or too little: x_t is added, without a factor": [
        "return dx, _ -> return dx * f, _", "return dx, _ -> return dx / f, _"],
    "dx: a power of f counts the steps from c_t on, not from token 0":
        "return dx, _ -> return np.array([(dy * f ** np.arange(T)[:, None])[t:].sum(axis=0) "
        "for t in range(T)]), _",
    "dx: each token has a dy of its own, not the last one alone":
        "return dx, _ -> return dy[-1] * f ** (T - 1 - np.arange(T))[:, None], _",
    "df: c_(t-1) is what f multiplies, not c_t": [
        "c[:-1] -> c[1:]", "dx * c[:-1] -> dx[:-1] * c[1:-1]"],
    "df: the rate of f c_(t-1) with f is c_(t-1): a factor f is too much":
        "dx * c[:-1] -> f * dx * c[:-1]",
    "df: the same f is used at every token, not at the last one alone": "_.sum(axis=0) -> _[-1]",
    "df: f multiplies the state c_(t-1), not the input x": "c[:-1] -> x",
    "df: what arrives at a state is dx, not dy: it also comes from the tokens after":
        "dx * c[:-1] -> dy * c[:-1]",
    "df: a mean instead of a sum: the same f is used at every token, and the paths add up": [
        "_.sum(axis=0) -> _.mean(axis=0)", "_.sum(axis=0) -> _.sum(axis=0) / (T - 1)"],
    "df: one number for each channel: sum over the tokens": "_.sum(axis=0) -> _",
    "df: one number for each channel; yours sums over the channels, too": [
        "_.sum(axis=0) -> _.sum()", "_.sum(axis=0) -> _.sum(axis=1)"],
    "f is used as it is: no 1 - f and no square in dx": [
        "dc = f * dx[t] -> dc = (1 - f) * dx[t]",
        "dc = f * dx[t] -> dc = f * f * dx[t]"],
    "df: f is a weight, not a sigmoid of one: no factor f (1 - f) or 1 / f": [
        "(dx * c[:-1]).sum(axis=0) -> (dx * c[:-1]).sum(axis=0) * f * (1 - f)",
        "(dx * c[:-1]).sum(axis=0) -> (dx * c[:-1]).sum(axis=0) / f"],
    "df: before the first token the state is 0, and later states are one place on": [
        "(dx * c[:-1]).sum(axis=0) -> (dx[:-1] * c[2:]).sum(axis=0)",
        "(dx * c[:-1]).sum(axis=0) -> (dx * np.concatenate([x[:1], c[1:-1]])).sum(axis=0)"],
})
def _(rng):
    T, D = int(rng.integers(5, 8)), int(rng.integers(2, 5))
    x, dy = rng.standard_normal((2, T, D))
    yield dy, x, rng.uniform(0.3, 0.95, D)


def reach(lengths):
    """One choice of many: the first half life.  The median of the factors from step to step is
    not moved by a single step.  A curve that does not fade reaches to its end."""
    K = lengths.shape[1]
    fades = -np.median(np.diff(np.log(lengths), axis=1), axis=1)
    return np.log(2) / np.maximum(fades, np.log(2) / (K - 1))


FIRST = "return _ -> above = lengths > %s * lengths[:, :1]; return np.array([%s for row in above])"
BELOW = "np.argmin(row) if not row.all() else len(row)"


# Any measure is right that orders the curves: the case says where a wrong one fails.
@exercise(reach, refused={
    "one number for each row": FIRST.replace("np.array(", "np.mean(") % (0.5, BELOW),
    "far too small decides": FIRST % (0.4, BELOW),
    "far too large decides": [FIRST % (0.01, "np.flatnonzero(row).max()"),
        "return _ -> return (lengths * np.arange(K)).sum(axis=1) / lengths.sum(axis=1)"],
    "unit matters": ["return _ -> return lengths.sum(axis=1)",
                     "return _ -> return (lengths > 0.1).sum(axis=1)"],
    "other way round": "return _ -> return fades",
    "not finite": "return _ -> return np.log(2) / fades",
    "at least to its end": "return _ -> return np.log(2) / (fades + 1e-3)",
    "all curves reach the same": "return _ -> return np.full(len(lengths), K)",
    "loses an eighth": "return _ -> return np.minimum(np.log(1e9) / np.maximum(fades, 1e-9), K)",
})
def _(rng):
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

    yield Case((lengths,), right, {
        "one number for each row: (N,)": lambda out: np.shape(out) != (len(rows),),
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
        "a curve that loses an eighth at each of its steps reaches less far than it goes":
            lambda out: by_row(out)[0][3] >= K - 1,
        "count steps: two of these curves fade at different rates and get the same number":
            lambda out: not (np.diff(by_row(out)[0][::2]) > 0).all(),
    }, about="Think of a curve that fades by a constant factor each step: which number of steps "
             "says how fast?")


if __name__ == "__main__":
    check_solutions(globals())
