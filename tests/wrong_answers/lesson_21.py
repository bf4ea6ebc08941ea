"""Plausible wrong answers to lesson 21: (a word of the hint that fits, the answer)."""

import numpy as np


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


def _score(theta=lambda i, D, base: base ** (-2 * i / D), places=lambda m, n: (m, n),
           neighbours=False, root=np.sqrt):
    """A rotated score by matrices, plane by plane, with one thing wrong."""
    def answer(q, k, m, n, base):
        D, total = len(q), 0.0
        for i in range(D // 2):
            plane = [2 * i, 2 * i + 1] if neighbours else [i, i + D // 2]
            turned = []
            for x, place in zip((q, k), places(m, n), strict=True):
                a = place * theta(i, D, base)
                turned.append(np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
                              @ x[plane])
            total += turned[0] @ turned[1]
        return total / root(D)
    return answer


def _products(q, k, m, n, base):
    """The products channel by channel, not summed; right but for that."""
    half = len(q) // 2
    theta = base ** (-np.arange(half) / half)
    c, s = np.cos((m - n) * theta), np.sin((m - n) * theta)
    x, y = q[:half], q[half:]
    return np.concatenate([x * c + y * s, y * c - x * s]) * k / np.sqrt(len(q))


def _gate(dgate=lambda dy, z, s, u: dy * u * s * (1 + z * (1 - s)),
          dup=lambda dy, z, s, u: dy * z * s,
          out=lambda x, dgate, dup, W_g, W_u: (dgate @ W_g.T + dup @ W_u.T, x.T @ dgate,
                                               x.T @ dup)):
    """The backward pass of a gate, with one thing wrong."""
    def answer(dy, x, W_g, W_u):
        z, u = x @ W_g, x @ W_u
        values = dy, z, _sigmoid(z), u
        return out(x, dgate(*values), dup(*values), W_g, W_u)
    return answer


def _overflows(dy, x, W_g, W_u):
    z, u = x @ W_g, x @ W_u
    s = np.exp(z) / (1 + np.exp(z))
    dgate, dup = dy * u * s * (1 + z * (1 - s)), dy * z * s
    return dgate @ W_g.T + dup @ W_u.T, x.T @ dgate, x.T @ dup


def _turns(D, tokens, turns):
    """1 / theta of a plane that turns so often."""
    return tokens / (2 * np.pi * turns)


WRONG = {
    "cache_bytes": [
        ("only n_group heads", lambda L, H, G, C, T, s: 2 * L * T * C * s),
        ("values as well", lambda L, H, G, C, T, s: L * T * G * C // H * s),
        ("queries are not kept", lambda L, H, G, C, T, s: L * T * s * (C + 2 * G * C // H)),
        ("not n_embd", lambda L, H, G, C, T, s: 2 * L * T * G * C * s),
        ("not n_embd / n_group", lambda L, H, G, C, T, s: 2 * L * T * (C // G) * s),
        ("heads of n_embd", lambda L, H, G, C, T, s: 2 * L * T * (H // G) * (C // H) * s),
        ("each block", lambda L, H, G, C, T, s: 2 * T * G * C // H * s),
        ("each token", lambda L, H, G, C, T, s: 2 * L * G * C // H * s),
        ("not bytes", lambda L, H, G, C, T, s: 2 * L * T * G * C // H),
        ("not bits", lambda L, H, G, C, T, s: 16 * L * T * G * C // H * s),
        ("not kept", lambda L, H, G, C, T, s: 2 * L * T * T * G * s),
        ("one group", lambda L, H, G, C, T, s: 2 * L * T * C // H * s),
        ("they are missing", lambda L, H, G, C, T, s: 2 * L * T * G * s),
    ],
    "rotated_score": [
        ("without positions", _score(places=lambda m, n: (0, 0))),
        ("without positions", _score(places=lambda m, n: (m, m))),
        ("key is rotated", _score(places=lambda m, n: (m, 0))),
        ("query is rotated", _score(places=lambda m, n: (0, n))),
        ("add the two angles", _score(places=lambda m, n: (m, -n))),
        ("other way round", _score(places=lambda m, n: (n, m))),
        ("neighbour", _score(neighbours=True)),
        ("2 is missing", _score(lambda i, D, base: base ** (-i / D))),
        ("minus is missing", _score(lambda i, D, base: base ** (2 * i / D))),
        ("begins at 0", _score(lambda i, D, base: base ** (-2 * (i + 1) / D))),
        ("not by D/2", _score(lambda i, D, base: base ** (-2 * i / (D // 2)))),
        ("has its own", _score(lambda i, D, base: 1.0)),
        ("do you use it", _score(lambda i, D, base: 10_000.0 ** (-2 * i / D))),
        ("radians", _score(lambda i, D, base: np.radians(base ** (-2 * i / D)))),
        ("square root", _score(root=lambda D: 1)),
        ("divide by D", _score(root=lambda D: D)),
        ("not of D/2", _score(root=lambda D: np.sqrt(D // 2))),
        ("one number", _products),
    ],
    "gate_backward": [
        ("as if the gate", _gate(dgate=lambda dy, z, s, u: 0 * dy)),
        ("what comes through", _gate(dup=lambda dy, z, s, u: 0 * dy)),
        ("exchanged", _gate(lambda dy, z, s, u: dy * z * s,
                            lambda dy, z, s, u: dy * u * s * (1 + z * (1 - s)))),
        ("exchanged", _gate(dup=lambda dy, z, s, u: dy * u)),
        ("without the other factor", _gate(lambda dy, z, s, u: dy * s * (1 + z * (1 - s)))),
        ("without the other factor", _gate(dup=lambda dy, z, s, u: dy)),
        ("slope of silu is missing", _gate(lambda dy, z, s, u: dy * u)),
        ("where its slope belongs", _gate(lambda dy, z, s, u: dy * u * z * s)),
        ("slope of the sigmoid", _gate(lambda dy, z, s, u: dy * u * s * (1 - s))),
        ("two terms", _gate(lambda dy, z, s, u: dy * u * s)),
        ("two terms", _gate(lambda dy, z, s, u: dy * u * z * s * (1 - s))),
        ("sign in the slope", _gate(lambda dy, z, s, u: dy * u * s * (1 - z * (1 - s)))),
        ("not at z", _gate(lambda dy, z, s, u: dy * u * _sigmoid(z * s) * (
            1 + z * s * (1 - _sigmoid(z * s))))),
        ("not x W_g", _gate(dup=lambda dy, z, s, u: dy * z)),
        ("not its sigmoid", _gate(dup=lambda dy, z, s, u: dy * s)),
        ("through the gate alone", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_g.T, x.T @ g, x.T @ u))),
        ("through W_u alone", _gate(out=lambda x, g, u, W_g, W_u: (u @ W_u.T, x.T @ g, x.T @ u))),
        ("they add up", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_g.T - u @ W_u.T, x.T @ g, x.T @ u))),
        ("its own matrix", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_u.T + u @ W_g.T, x.T @ g, x.T @ u))),
        ("dW_g and dW_u are exchanged", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_g.T + u @ W_u.T, x.T @ u, x.T @ g))),
        ("not a mean", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_g.T + u @ W_u.T, x.T @ g / len(x), x.T @ u / len(x)))),
        ("not its transpose", _gate(out=lambda x, g, u, W_g, W_u: (
            g @ W_g.T + u @ W_u.T, g.T @ x, u.T @ x))),
        ("overflows", _overflows),
    ],
    "slow_base": [
        ("count from 0", _turns),
        ("the base is asked for", lambda D, tokens, turns: 2 * np.pi * turns / tokens),
        ("2 pi is missing", lambda D, tokens, turns: (tokens / turns) ** (D / (D - 2))),
        ("not pi", lambda D, tokens, turns: (tokens / (np.pi * turns)) ** (D / (D - 2))),
        ("where you should multiply", lambda D, tokens, turns: (
            2 * np.pi * tokens / turns) ** (D / (D - 2))),
        ("not 360", lambda D, tokens, turns: (tokens / (360 * turns)) ** (D / (D - 2))),
        ("upside down", lambda *a: _turns(*a) ** ((a[0] - 2) / a[0])),
        ("sign of the exponent", lambda *a: _turns(*a) ** (-a[0] / (a[0] - 2))),
        ("the 2 is missing", lambda *a: _turns(*a) ** (a[0] / (a[0] / 2 - 1))),
        ("below the fraction line", lambda D, tokens, turns: (
            tokens * turns / (2 * np.pi)) ** (D / (D - 2))),
        ("do you use turns", lambda D, tokens, turns: (tokens / (2 * np.pi)) ** (D / (D - 2))),
        ("logarithm", lambda *a: a[0] / (a[0] - 2) * np.log(_turns(*a))),
        ("exponent is missing", lambda *a: _turns(*a) ** (1 / (a[0] - 2))),
        ("base 10,000", lambda D, tokens, turns: tokens * 10_000 ** (2 / D - 1) / (2 * np.pi)),
        ("another plane", lambda *a: _turns(*a) ** (a[0] / (a[0] - 4))),
    ],
}
