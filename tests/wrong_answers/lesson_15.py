"""Plausible wrong answers to lesson 15: (a word of the hint that fits, the answer)."""

import numpy as np


def _decay(back="all", into="state", sums=lambda M: M.sum(axis=0), factor=None):
    def answer(dy, x, f):
        c = [0 * f]
        for row in x:
            c.append(f * c[-1] + row)
        c = np.array(c)
        dx, dc = np.zeros_like(dy), 0
        order = range(len(dy)) if back == "forward" else reversed(range(len(dy)))
        for t in order:
            dx[t] = dy[t] + (0 if back == "none" else dc)
            dc = (dy[t] if back == "one" else dx[t]) * (1 if factor else f)
        read = {"state": c[:-1], "late": c[1:], "x": x}[into]
        return dx, sums(dx * read)
    return answer


def _decay_dy(dy, x, f):
    dx, df = _decay()(dy, x, f)
    _, wrong = _decay(back="none")(dy, x, f)
    return dx, wrong


def _truncated(first=lambda t, T, k: t % k == 0, slope=lambda h: 1 - h ** 2, turn=lambda u: u.T):
    def answer(dy, h, u, k):
        T, da, dh = len(dy), np.zeros_like(dy), 0
        for t in reversed(range(T)):
            da[t] = (dy[t] + dh) * slope(h[t])
            dh = 0 if first(t, T, k) else da[t] @ turn(u)
        return da
    return answer


def _last_piece(dy, h, u, k):
    da = _truncated()(dy, h, u, k)
    da[:(len(dy) - 1) // k * k] = 0
    return da


def _below(level, last=False):
    """The first step below a share of the first length, or the last one above it."""
    def answer(lengths):
        above = lengths > level * lengths[:, :1]
        if last:
            return np.array([np.flatnonzero(row).max() for row in above])
        return np.array([np.argmin(row) if not row.all() else len(row) for row in above])
    return answer


def _centre(lengths):
    return (lengths * np.arange(lengths.shape[1])).sum(axis=1) / lengths.sum(axis=1)


WRONG = {
    "bias_for_half": [
        ("which bias gives it", lambda n: 0.5 ** (1 / n)),
        ("sign is the other way", lambda n: np.log(2 ** (1 / n) - 1)),
        ("leaves 1/e after n steps", lambda n: np.log(n - 1)),
        ("leaves 1/e after n steps", lambda n: -np.log(np.exp(1 / n) - 1)),
        ("multiply", lambda n: 0.0),
        ("multiply", lambda n: np.log((1 - 0.5 / n) / (0.5 / n))),
        ("a sigmoid", lambda n: np.log(0.5) / n),
        ("not (1/2)^n", lambda n: np.log(0.5 ** n / (1 - 0.5 ** n))),
    ],
    "decay_backward": [
        ("nothing comes back", _decay("none")),
        ("only one step back", _decay("one")),
        ("yours multiplies by 1", _decay(factor=1)),
        ("runs forward", _decay("forward")),
        ("f times too much", lambda dy, x, f: (_decay()(dy, x, f)[0] * f, _decay()(dy, x, f)[1])),
        ("not c_t", _decay(into="late")),
        ("not the input x", _decay(into="x")),
        ("not dy", _decay_dy),
        ("mean instead of a sum", _decay(sums=lambda M: M.mean(axis=0))),
        ("sum over the tokens", _decay(sums=lambda M: M)),
        ("over the channels", _decay(sums=lambda M: M.sum())),
        ("over the channels", _decay(sums=lambda M: M.sum(axis=1))),
    ],
    "truncated_backward": [
        ("nothing is cut", _truncated(lambda t, T, k: False)),
        ("one token off", _truncated(lambda t, T, k: (t - 1) % k == 0)),
        ("one token off", _truncated(lambda t, T, k: (t + 1) % k == 0)),
        ("not from the end", _truncated(lambda t, T, k: (T - t) % k == 0)),
        ("only the last piece", _last_piece),
        ("also within a piece", _truncated(lambda t, T, k: True)),
        ("slope of tanh is missing", _truncated(slope=lambda h: 1)),
        ("another one", _truncated(slope=lambda h: h ** 2)),
        ("another one", _truncated(slope=lambda h: 1 - h)),
        ("another one", _truncated(slope=lambda h: 1 - np.tanh(h) ** 2)),
        ("u is transposed", _truncated(turn=lambda u: u)),
        ("before the slope", lambda dy, h, u, k: _truncated()(dy, h, u, k) / (1 - h ** 2)),
    ],
    "reach": [
        ("one number for each row", lambda lengths: float(_below(0.5)(lengths).mean())),
        ("far too small decides", _below(0.4)),
        ("far too large decides", _below(0.01, last=True)),
        ("far too large decides", _centre),
        ("unit matters", lambda lengths: lengths.sum(axis=1)),
        ("unit matters", lambda lengths: (lengths > 0.1).sum(axis=1)),
        ("other way round", lambda lengths: -np.median(np.diff(np.log(lengths)), axis=1)),
        ("not finite", lambda lengths: np.log(0.5) / np.median(np.diff(np.log(lengths)), axis=1)),
        ("at least to its end", lambda lengths: np.log(0.5) / (
            np.median(np.diff(np.log(lengths)), axis=1) - 1e-3)),
        ("all curves reach the same", lambda lengths: np.full(len(lengths), lengths.shape[1])),
    ],
}
