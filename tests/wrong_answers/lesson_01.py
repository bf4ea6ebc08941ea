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


def _first_entry_only(f, x, gradient):
    d = np.zeros_like(x)
    d[0, 0] = 1e-5
    return abs((f(x + d) - f(x - d)) / 2e-5 - gradient[0, 0]) < 1e-4 * abs(gradient[0, 0])


def _divides_by_entries(f, x, gradient):
    return bool((np.abs(gradient - _numerical(f, x)) / np.abs(gradient) < 1e-5).all())


def _wide(f, x, gradient):
    n = _numerical(f, x)
    return bool(np.abs(gradient - n).max() < 0.1 * np.abs(n).max())


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
        ("every entry", _first_entry_only),
        ("absolute", _absolute),
        ("was 0", _divides_by_entries),
        ("too wide", _wide),
        ("step", _step_too_small),
        ("in place", _forgets_to_put_back),
    ],
    "choose_step": [
        ("too long", lambda f, x: 1e-5),
        ("too short", lambda f, x: 1e-9),
        ("too short", lambda f, x: 1e-15),
        ("above 0", lambda f, x: 0.0),
        ("too long", lambda f, x: 1e-3 * max(1, abs(x))),
    ],
}
