"""Plausible wrong answers to lesson 3: (a word of the hint that fits, the answer)."""

import numpy as np


def _leaks(readers, moved_rows, tolerance=0.0, move=None):
    """A check that moves some rows and looks at some outputs."""
    def answer(op, x):
        y = op(x)
        for t in moved_rows(len(x)):
            z = x.copy()
            z[t] += np.arange(1, x.shape[1] + 1) if move is None else move
            if (np.abs(op(z) - y)[readers(t)] > tolerance).any():
                return True
        return False
    return answer


def _one_cut(op, x):
    z = x.copy()
    z[len(x) // 2:] *= -2.0
    return bool((op(z) != op(x))[:len(x) // 2].any())


def _mean(v, axis=-1):
    return v.mean(axis=axis, keepdims=True)


def _rms(x, eps=1e-5):
    return 1 / np.sqrt(_mean(x * x) + eps)


def _var(x):
    return x.var(axis=-1, keepdims=True)


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
    """The name with the largest size(before, after) of those that keep(name)."""
    def answer(before, after):
        found = {n: size(before[n], after[n]) for n in before if keep(n)}
        return max(found, key=found.get)
    return answer


def _moved(before, after):
    return np.abs(after - before).max()


def _is_scale(name):
    return "ln_" in name and name.endswith("weight")


WRONG = {
    "unseen_change": [
        ("old array", lambda x: x.copy()),
        ("only stretched", lambda x: 2 * x),
        ("sign", lambda x: -x),
        ("sign", lambda x: 3 - 2 * x),
        ("all channels of a row", lambda x: x + np.arange(1, x.shape[1] + 1)),
        ("all channels of a row", lambda x: x + 3 + x.mean(axis=0)),
        ("another factor", lambda x: x * (2 + np.arange(x.shape[1]))),
        ("which two changes", lambda x: x ** 3 + 9),
        ("which two changes", lambda x: x[:, ::-1] + 5),
        ("which two changes", lambda x: x[::-1] + 5),
        ("another shape", lambda x: x[:, :-1]),
        ("another shape", lambda x: x.T + 1),
        ("only stretched", lambda x: x / 2),
        ("hardly change", lambda x: x + 0.05),
        ("all channels of a row", lambda x: x - x.mean(axis=0)),
    ],
    "sees_the_future": [
        ("says that it does", lambda op, x: True),
        ("after moving a later row", lambda op, x: False),
        ("own input row", _leaks(lambda t: slice(0, t + 1), lambda T: range(1, T))),
        ("every pair", _leaks(lambda t: slice(0, t), lambda T: [T // 2])),
        ("every pair", _leaks(lambda t: slice(0, t), lambda T: [T - 1])),
        ("every pair", _leaks(lambda t: slice(0, 1), lambda T: range(1, T))),
        ("every pair", _leaks(lambda t: slice(t - 1, t), lambda T: range(1, T))),
        ("every pair", _one_cut),
        ("every channel", _leaks(lambda t: slice(0, t), lambda T: range(1, T),
                                 move=np.array([1.0, 0, 0]))),
        ("blind", _leaks(lambda t: slice(0, t), lambda T: range(1, T), move=1.0)),
        ("*earlier*", _leaks(lambda t: slice(t + 1, None), range)),
        ("however small", _leaks(lambda t: slice(0, t), range, tolerance=0.01)),
        ("blind", _leaks(lambda t: slice(0, t), lambda T: range(1, T), 1e-9, move=1.0)),
    ],
    "rms_norm": [
        ("layer norm", lambda x, w, eps=1e-5: (x - _mean(x)) / np.sqrt(_var(x) + eps) * w),
        ("above the fraction line", lambda x, w, eps=1e-5: (x - _mean(x)) * _rms(x, eps) * w),
        ("deviation", lambda x, w, eps=1e-5: x / np.sqrt(_var(x) + eps) * w),
        ("sum for a mean", lambda x, w, eps=1e-5: x / np.sqrt(
            (x * x).sum(axis=-1)[:, None] + eps) * w),
        ("axis", lambda x, w, eps=1e-5: x / np.sqrt(_mean(x * x, 0) + eps) * w),
        ("whole array", lambda x, w, eps=1e-5: x / np.sqrt((x * x).mean() + eps) * w),
        ("square root is missing", lambda x, w, eps=1e-5: x * _rms(x, eps) ** 2 * w),
        ("scale w is missing", lambda x, w, eps=1e-5: x * _rms(x, eps)),
        ("eps is missing", lambda x, w, eps=1e-5: x * _rms(x, 0.0) * w),
        ("outside the square root", lambda x, w, eps=1e-5: x / (1 / _rms(x, 0.0) + eps) * w),
        ("do you use it", lambda x, w, eps=1e-5: x * _rms(x) * w),
    ],
    "rms_norm_backward": [
        ("layer norm's backward", _backward(mean=True)),
        ("not removed", _backward(factor=lambda C: 0.0)),
        ("sum for a mean", _backward(factor=lambda C: C)),
        ("scale is missing", _backward(scale=False)),
        ("division", _backward(rstd=False)),
        ("not x", _backward(dw=lambda dy, x, xhat, w: (dy * x).sum(axis=0))),
        ("dw: a mean", _backward(dw=lambda dy, x, xhat, w: (dy * xhat).mean(axis=0))),
        ("without w", _backward(dw=lambda dy, x, xhat, w: (dy * w * xhat).sum(axis=0))),
        ("axis", _backward(dw=lambda dy, x, xhat, w: (dy * xhat).sum(axis=-1))),
        ("bias", _backward(dw=lambda dy, x, xhat, w: dy.sum(axis=0))),
    ],
    "most_moved_scale": [
        ("both signs", _largest(lambda b, a: (a - b).mean(), _is_scale)),
        ("both signs", _largest(lambda b, a: np.linalg.norm(a) - np.linalg.norm(b), _is_scale)),
        ("bias", _largest(lambda b, a: np.abs(a - b).mean(), lambda n: "ln_" in n)),
        ("not a layer norm", _largest(lambda b, a: np.abs(a - b).sum(),
                                   lambda n: n.endswith("weight"))),
        ("was so before", _largest(lambda b, a: np.abs(a).mean(), _is_scale)),
        ("was so before", _largest(lambda b, a: np.abs(a).max(), _is_scale)),
        ("was so before", _largest(lambda b, a: np.abs(a - 1).mean(), _is_scale)),
        ("was so before", _largest(lambda b, a: a.std(), _is_scale)),
        ("was so before", _largest(lambda b, a: b.max(), _is_scale)),
        ("every scale", _largest(_moved, lambda n: _is_scale(n) and "ln_f" not in n)),
        ("every scale", _largest(_moved, lambda n: _is_scale(n) and "ln_2" not in n)),
        ("every scale", _largest(_moved, lambda n: _is_scale(n) and "h.0" in n)),
        ("every scale", lambda before, after: "trunk.ln_f.weight"),
        ("name of one parameter", lambda before, after: max(
            np.abs(after[n] - before[n]).max() for n in before)),
        ("full name", lambda before, after: "h.0.ln_1.weight"),
    ],
}
