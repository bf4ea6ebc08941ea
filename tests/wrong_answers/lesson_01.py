"""Plausible wrong answers to lesson 1: (a word of the hint that fits, the answer)."""

import numpy as np


def _numerical(f, x, h=1e-5, one_sided=False):
    n = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        if not one_sided:
            down[i] -= h
        n[i] = (f(up) - f(down)) / (h if one_sided else 2 * h)
    return n


def _absolute(f, x, gradient):
    return bool(np.abs(gradient - _numerical(f, x)).max() < 1e-6)


def _one_entry_only(which):
    def answer(f, x, gradient):
        d = np.zeros_like(x)
        d.flat[which] = 1e-5
        return (abs((f(x + d) - f(x - d)) / 2e-5 - gradient.flat[which])
                <= 1e-4 * np.abs(gradient).max())
    return answer


def _all_at_once(f, x, gradient):
    n = (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
    return bool(abs(n - gradient.sum()) <= 1e-6 * np.abs(gradient).max())


def _along_one_direction(f, x, gradient, h=1e-5):
    d = (f(x + h) - f(x - h)) / (2 * h)
    return bool(abs(d - gradient.sum()) <= 1e-6 * abs(d))


def _largest_entry(f, x, gradient):
    n = _numerical(f, x)
    return bool(np.abs(gradient - n).max() <= 1e-6 * n.max())


def _two_axes(f, x, gradient):
    n = np.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            up, down = x.copy(), x.copy()
            up[i, j] += 1e-5
            down[i, j] -= 1e-5
            n[i, j] = (f(up) - f(down)) / 2e-5
    return bool(np.abs(gradient - n).max() <= 1e-6 * np.abs(n).max())


def _rows_at_once(f, x, gradient):
    n = np.zeros(len(x))
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i] += 1e-5
        down[i] -= 1e-5
        n[i] = (f(up) - f(down)) / 2e-5
    rows = gradient.reshape(len(x), -1).sum(axis=1)
    return bool(np.abs(rows - n).max() <= 1e-6 * np.abs(gradient).max())


def _divided_by_h(f, x, gradient):
    return bool(np.abs(gradient - 2 * _numerical(f, x)).max() < 1e-6 * np.abs(gradient).max())


def _divides_by_entries(f, x, gradient):
    return bool((np.abs(gradient - _numerical(f, x)) / np.abs(gradient) < 1e-5).all())


def _wide(f, x, gradient, tolerance=0.1):
    n = _numerical(f, x)
    return bool(np.abs(gradient - n).max() < tolerance * np.abs(n).max())


def _step_too_small(f, x, gradient):
    n = _numerical(f, x, h=1e-14)
    return bool(np.abs(gradient - n).max() < 1e-6 * np.abs(n).max())


def _forgets_to_put_back(f, x, gradient):
    n = _numerical(f, x)
    x += 1e-5
    return bool(np.abs(gradient - n).max() < 1e-6 * np.abs(n).max())


WRONG = {
    "bias_gradient": [
        ("mean", lambda dy: dy.mean(axis=(0, 1))),
        ("axis", lambda dy: dy.sum(axis=0)),
        ("over the outputs", lambda dy: dy.sum(axis=-1)),
        ("everything", lambda dy: dy.sum()),
        ("some of the rows", lambda dy: dy[:, -1].sum(axis=0)),
        ("sign", lambda dy: -dy.sum(axis=(0, 1))),
        ("some of the rows", lambda dy: dy[0].sum(axis=0)),
        ("shape", lambda dy: dy.sum(axis=(0, 2))),
        ("largest difference", lambda dy: dy.max(axis=(0, 1))),
        ("shape", lambda dy: dy.sum(axis=(0, 1), keepdims=True)),
    ],
    "shared_weight_gradient": [
        ("second use of w alone", lambda x, w, dy: (x @ w).T @ dy),
        ("first use of w alone", lambda x, w, dy: x.T @ (dy @ w.T)),
        ("transpose", lambda x, w, dy: x.T @ (dy @ w) + (x @ w).T @ dy),
        ("its input is x w", lambda x, w, dy: x.T @ (dy @ w.T) + x.T @ dy),
        ("adds", lambda x, w, dy: (x.T @ (dy @ w.T) + (x @ w).T @ dy) / 2),
        ("twice", lambda x, w, dy: 2 * (x @ w).T @ dy),
        ("dy itself", lambda x, w, dy: x.T @ dy + (x @ w).T @ dy),
    ],
    "gradient_is_right": [
        ("every entry", lambda f, x, gradient: True),
        ("no", lambda f, x, gradient: False),
        ("every entry", _one_entry_only(0)),
        ("every entry", _one_entry_only(-1)),
        ("each entry alone", _all_at_once),
        ("gradient was", _along_one_direction),
        ("gradient was right", _largest_entry),
        ("each entry alone", _rows_at_once),
        ("any number of axes", lambda f, x, gradient: x.ndim == 2
         and _wide(f, x, gradient, 1e-6)),
        ("IndexError", _two_axes),
        ("divided by all of it", _divided_by_h),
        ("absolute", _absolute),
        ("was 0", _divides_by_entries),
        ("too wide", lambda f, x, gradient: _wide(f, x, gradient, 0.01)),
        ("step", _step_too_small),
        ("in place", _forgets_to_put_back),
    ],
    "choose_step": [
        ("too long", lambda f, x: 1e-5),
        ("too short", lambda f, x: 1e-9),
        ("too short", lambda f, x: 1e-15),
        ("above 0", lambda f, x: 0.0),
        ("too long", lambda f, x: 1e-3 * max(1, abs(x))),
        ("too short", lambda f, x: 1e-7),
        ("too short", lambda f, x: (3 * np.finfo(float).eps * abs(f(x))) ** (1 / 3) * 1e-2),
    ],
}
