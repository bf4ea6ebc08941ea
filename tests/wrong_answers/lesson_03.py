"""Plausible wrong answers to lesson 3: (a word of the hint that fits, the answer)."""

import numpy as np


def _leaks(readers, moved_rows, tolerance=0.0):
    """A check that moves some rows and looks at some outputs."""
    def answer(op, x):
        y = op(x)
        for t in moved_rows(len(x)):
            z = x.copy()
            z[t] += 1.0
            if (np.abs(op(z) - y)[readers(t)] > tolerance).any():
                return True
        return False
    return answer


def _mean(v, axis=-1):
    return v.mean(axis=axis, keepdims=True)


def _rms(x, eps=1e-5):
    return 1 / np.sqrt(_mean(x * x) + eps)


def _backward(mean=False, factor=None, scale=True, rstd=True, dw=None):
    def answer(dy, x, w, eps=1e-5):
        xhat = x * _rms(x)
        g = dy * w if scale else dy
        n = 1.0 if factor is None else factor(x.shape[-1])
        dx = g - xhat * n * _mean(g * xhat) - (_mean(g) if mean else 0)
        dx = dx * _rms(x) if rstd else dx
        return dx, ((dy * xhat).sum(axis=0) if dw is None else dw(dy, x, xhat, w))
    return answer


def _largest(size, keep):
    def answer(before, after):
        found = {n: size(after[n] - before[n], after[n]) for n in before if keep(n)}
        return max(found, key=found.get)
    return answer


def _is_scale(name):
    return "ln_" in name and name.endswith("weight")


WRONG = {
    "offset_gradient": [
        ("mean", lambda dy: dy.mean(axis=(0, 1))),
        ("over the channels", lambda dy: dy.sum(axis=-1)),
        ("one axis of rows", lambda dy: dy.sum(axis=0)),
        ("everything", lambda dy: dy.sum()),
        ("one axis", lambda dy: dy.mean(axis=0).sum(axis=0)),
        ("some of the rows", lambda dy: dy[0].sum(axis=0)),
    ],
    "sees_the_future": [
        ("says that it does", lambda op, x: True),
        ("after moving a later row", lambda op, x: False),
        ("own input row", _leaks(lambda t: slice(0, t + 1), lambda T: range(1, T))),
        ("every pair", _leaks(lambda t: slice(0, t), lambda T: [T // 2])),
        ("*earlier*", _leaks(lambda t: slice(t + 1, None), range)),
        ("however small", _leaks(lambda t: slice(0, t), range, tolerance=0.01)),
    ],
    "rms_norm": [
        ("layer norm", lambda x, w: (x - _mean(x)) / np.sqrt(x.var(axis=-1)[:, None] + 1e-5) * w),
        ("above the line", lambda x, w: (x - _mean(x)) * _rms(x) * w),
        ("deviation", lambda x, w: x / np.sqrt(x.var(axis=-1)[:, None] + 1e-5) * w),
        ("sum for a mean", lambda x, w: x / np.sqrt((x * x).sum(axis=-1)[:, None] + 1e-5) * w),
        ("axis", lambda x, w: x / np.sqrt(_mean(x * x, 0) + 1e-5) * w),
        ("square root", lambda x, w: x * _rms(x) ** 2 * w),
        ("scale w is missing", lambda x, w: x * _rms(x)),
        ("where does eps belong", lambda x, w: x * _rms(x, 0.0) * w),
    ],
    "rms_norm_backward": [
        ("layer norm's backward", _backward(mean=True)),
        ("not removed", _backward(factor=lambda C: 0.0)),
        ("sum for a mean", _backward(factor=lambda C: C)),
        ("scale is forgotten", _backward(scale=False)),
        ("division", _backward(rstd=False)),
        ("not x", _backward(dw=lambda dy, x, xhat, w: (dy * x).sum(axis=0))),
        ("dw: a mean", _backward(dw=lambda dy, x, xhat, w: (dy * xhat).mean(axis=0))),
        ("without w", _backward(dw=lambda dy, x, xhat, w: (dy * w * xhat).sum(axis=0))),
        ("axis", _backward(dw=lambda dy, x, xhat, w: (dy * xhat).sum(axis=-1))),
        ("offset", _backward(dw=lambda dy, x, xhat, w: dy.sum(axis=0))),
    ],
    "most_moved_scale": [
        ("both signs", _largest(lambda move, now: move.mean(), _is_scale)),
        ("offset", _largest(lambda move, now: np.abs(move).mean(), lambda n: "ln_" in n)),
        ("no layer norm", _largest(lambda move, now: np.abs(move).sum(),
                                   lambda n: n.endswith("weight"))),
        ("name of one parameter", lambda before, after: max(
            np.abs(after[n] - before[n]).max() for n in before)),
        ("full name", lambda before, after: "h.0.ln_1.weight"),
    ],
}
