"""Plausible wrong answers to lesson 9: (a word of the hint that fits, the answer)."""

import numpy as np


def _pixel(within=lambda j, p: divmod(j, p), patch=lambda t, p, W: divmod(t, W // p), p_of=None):
    def answer(t, j, p, W):
        (r, c), (a, b) = patch(t, p, W), within(j, p)
        size = p if p_of is None else p_of(p)
        return r * size + a, c * size + b
    return answer


def _cut(*order):
    def answer(images, p):
        B, H, W, n = images.shape
        x = images.reshape(B, H // p, p, W // p, p, n).transpose(order)
        return x.reshape(B, (H // p) * (W // p), p * p * n)
    return answer


def _grey(images, p):
    return _cut(0, 1, 3, 2, 4, 5)(images.mean(axis=-1, keepdims=True), p)


def _fold(put, starts=lambda t, rows, columns, p, s: [s * n for n in divmod(t, columns)],
          pixels=lambda d: d):
    def answer(dy, p, s, H, W):
        rows, columns = (H - p) // s + 1, (W - p) // s + 1
        out = np.zeros((len(dy), H + 2 * p * p, W + 2 * p * p))           # room for mistakes
        for t in range(dy.shape[1]):
            r, c = starts(t, rows, columns, p, s)
            here = np.s_[:, r:r + p, c:c + p]
            out[here] = put(out[here], pixels(dy[:, t].reshape(-1, p, p)))
        return out[:, :H, :W]
    return answer


def _add(a, b):
    return a + b


_right = _fold(_add)


def _mean(dy, *args):
    return _right(dy, *args) / np.maximum(_right(np.ones_like(dy), *args), 1)


def _steps(rows, columns):
    r, c = np.divmod(np.arange(rows * columns), columns)
    return np.abs(r[:, None] - r), np.abs(c[:, None] - c)


def _score(near, rest=lambda near, own: ~near & ~own, mean=np.mean):
    def answer(s, rows, columns):
        n = near(*_steps(rows, columns))
        own = np.eye(len(s), dtype=bool)
        return mean(s[n]) - mean(s[rest(n, own)])
    return answer


def _beside(down, aside):
    return down + aside == 1


def _line(s, rows, columns):
    return s.diagonal(1).mean() - s[np.triu_indices(len(s), 2)].mean()


def _torus(s, rows, columns):
    down, aside = _steps(rows, columns)
    near = np.minimum(down, rows - down) + np.minimum(aside, columns - aside) == 1
    return s[near].mean() - s[~near & ~np.eye(len(s), dtype=bool)].mean()


WRONG = {
    "pixel_of": [
        ("exchanged", lambda t, j, p, W: _pixel()(t, j, p, W)[::-1]),
        ("strips", lambda t, j, p, W: divmod(t * p * p + j, W)),
        ("patch begins", _pixel(within=lambda j, p: (0, 0))),
        ("in its patch", _pixel(patch=lambda t, p, W: (0, 0))),
        ("within a patch", _pixel(within=lambda j, p: divmod(j, p)[::-1])),
        ("patches are counted", _pixel(patch=lambda t, p, W: divmod(t, W // p)[::-1])),
        ("in pixels", _pixel(patch=lambda t, p, W: divmod(t, W))),
        ("not p", _pixel(patch=lambda t, p, W: divmod(t, p))),
        ("high and wide", lambda t, j, p, W: divmod(t, W // p)),
        ("pixels high", _pixel(p_of=lambda p: 1)),
    ],
    "colour_patches": [
        ("strips", lambda x, p: x.reshape(len(x), -1, p * p * 3)),
        ("side by side", _cut(0, 1, 3, 5, 2, 4)),
        ("patches are counted", _cut(0, 3, 1, 2, 4, 5)),
        ("within a patch", _cut(0, 1, 3, 4, 2, 5)),
        ("turned", _cut(0, 3, 1, 4, 2, 5)),
        ("all three colours", _grey),
        ("tokens of its own", lambda x, p: np.concatenate(
            [_grey(x[..., [k]], p) for k in range(3)], axis=1)),
        ("one row of numbers", lambda x, p: _cut(0, 1, 3, 2, 4, 5)(x, p).reshape(
            len(x), -1, p, p, 3)),
    ],
    "overlapping_backward": [
        ("overwrites", _fold(lambda a, b: b)),
        ("overwrites", _fold(lambda a, b: np.where(a == 0, b, a))),
        ("mean over the patches", _mean),
        ("s pixels apart", _fold(_add, lambda t, rows, columns, p, s: [
            p * n for n in divmod(t, columns)])),
        ("patches are counted", _fold(_add, lambda t, rows, columns, p, s: [
            s * n for n in divmod(t, rows)[::-1]])),
        ("within a patch", _fold(_add, pixels=lambda d: d.swapaxes(1, 2))),
        ("of its own", lambda dy, *args: _right(dy, *args).sum(axis=0)),
        ("number of patches", lambda dy, *args: _right(np.ones_like(dy), *args)),
        ("sign", lambda *args: -_right(*args)),
    ],
    "neighbour_score": [
        ("one above the other are neighbours", _score(lambda down, aside: (down == 0)
                                                      & (aside == 1))),
        ("side by side are neighbours", _score(lambda down, aside: (down == 1) & (aside == 0))),
        ("in the sequence", _line),
        ("corner only", _score(lambda down, aside: np.maximum(down, aside) == 1)),
        ("has an edge", _torus),
        ("are not a pair", _score(_beside, lambda near, own: ~near)),
        ("has all pairs", _score(_beside, lambda near, own: ~own)),
        ("has all pairs", _score(_beside, lambda near, own: near | ~near)),
        ("its own neighbour", _score(lambda down, aside: down + aside <= 1)),
        ("subtract", lambda s, rows, columns: s[_beside(*_steps(rows, columns))].mean()),
        ("sums instead", _score(_beside, mean=np.sum)),
        ("exchanged", lambda s, rows, columns: _score(_beside)(s, columns, rows)),
        ("other way round", lambda *args: -_score(_beside)(*args)),
    ],
}
