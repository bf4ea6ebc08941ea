"""Plausible wrong answers to lesson 12: (a word of the hint that fits, the answer)."""

import numpy as np


def _adamw(c1=True, c2=True, late=0, swap=False, coupled=False, rate=True, decay=1, inside=False,
           eps_of=None, root=np.sqrt, top="m", sign=1, order=None, return_corrected=False,
           square=True, m_of=None):
    def answer(x, g, m, v, t, lr, b1, b2, eps, lam):
        if swap:
            b1, b2 = b2, b1
        t = t + late
        lam = lam * decay
        if coupled:
            g, lam = g + lam * x, 0
        old = m
        m = b1 * m + (1 - b1) * g if m_of is None else m_of(m, g, b1)
        v = b2 * v + (1 - b2) * (g * g if square else g)
        mh, vh = m / (1 - b1 ** t) if c1 else m, v / (1 - b2 ** t) if c2 else v
        above = {"m": mh, "g": g, "old": old / (1 - b1 ** t)}[top]
        e = eps if eps_of is None else eps_of(eps)
        step = above / (root(vh + e) if inside else root(vh) + e)
        if order == "after":
            new = (x - sign * lr * step) * (1 - lr * lam)
        else:
            new = x - sign * lr * step - (lr if rate else 1) * lam * x
        return (new, mh, vh) if return_corrected else (new, m, v)
    return answer


def _trapezoid(step_of=lambda s: s + 1, left_of=lambda n, s: n - s, below=lambda c: c + 1, up=True,
               down=True):
    def answer(step, steps, warmup, cooldown):
        parts = [1.0]
        if up:
            parts.append(step_of(step) / warmup)
        if down:
            parts.append(left_of(steps, step) / below(cooldown))
        return min(parts)
    return answer


def _best(mean, edge=None, index=False):
    def answer(rates, accuracy):
        values = mean(accuracy)
        i = int(np.nanargmax(values))
        at = rates[i] in (rates.min(), rates.max()) if edge is None else edge(rates, accuracy, i)
        return (i if index else rates[i]), at
    return answer


def _strict(accuracy):
    return np.where(np.isnan(accuracy).any(axis=1), -1, accuracy.mean(axis=1))


WRONG = {
    "largest_rate": [
        ("lands on the minimum", lambda H: 1 / np.linalg.eigvalsh(H).max()),
        ("flattest", lambda H: 2 / np.linalg.eigvalsh(H).min()),
        ("diagonal", lambda H: 2 / np.diag(H).max()),
        ("diagonal", lambda H: 2 / np.diag(H).min()),
        ("sum of all", lambda H: 2 / np.trace(H)),
        ("whole matrix", lambda H: 2 / np.linalg.norm(H)),
        ("that is the curvature", lambda H: np.linalg.eigvalsh(H).max()),
        ("that is the curvature", lambda H: np.linalg.eigvalsh(H).max() / 2),
        ("begin to diverge", lambda H: 2 / np.linalg.eigvalsh(H)[[0, -1]].sum()),
        ("1 - lr h", lambda H: 0.01),
    ],
    "adamw_step": [
        ("neither", _adamw(c1=False, c2=False)),
        ("m is not corrected", _adamw(c1=False)),
        ("v is not corrected", _adamw(c2=False)),
        ("for the step only", _adamw(return_corrected=True)),
        ("one step late", _adamw(late=1)),
        ("exchanged", _adamw(swap=True)),
        ("into the gradient", _adamw(coupled=True)),
        ("learning rate", _adamw(rate=False)),
        ("decay is missing", _adamw(decay=0)),
        ("wrong sign", _adamw(decay=-1)),
        ("from the old x", _adamw(order="after")),
        ("not inside", _adamw(inside=True)),
        ("eps is missing", _adamw(eps_of=lambda e: 0)),
        ("eps is missing", _adamw(eps_of=lambda e: 1e-8)),
        ("root of v", _adamw(root=lambda v: v)),
        ("which remembers", _adamw(top="g")),
        ("old m", _adamw(top="old")),
        ("uphill", _adamw(sign=-1, decay=1)),
        ("squares", _adamw(square=False)),
        ("fades with t", lambda x, g, m, v, t, *rest: _adamw()(x, g, m, v, min(t, 1), *rest)),
        ("same share of each x", lambda x, *rest: (
            _adamw()(x, *rest)[0] + rest[4] * rest[-1] * (x - 1), *_adamw()(x, *rest)[1:])),
        ("rate is missing", lambda x, g, m, v, t, lr, b1, b2, eps, lam: _adamw()(
            x, g, m, v, t, 1, b1, b2, eps, lr * lam)),
        ("m is not b1 m", _adamw(m_of=lambda m, g, b: b * m - (1 - b) * g)),
        ("v is not b2 v", lambda x, g, m, v, *rest: _adamw()(x, g, m, 0 * v, *rest)),
        ("m and v are right", _adamw(eps_of=lambda e: -e)),
        ("counts 1 - b1", _adamw(m_of=lambda m, g, b: b * m + g)),
        ("return 3 values", lambda x, *rest: x),
    ],
    "trapezoid": [
        ("not move at all", _trapezoid(step_of=lambda s: s)),
        ("warm-up is missing", _trapezoid(up=False)),
        ("cool-down is missing", _trapezoid(down=False)),
        ("reaches 0", _trapezoid(left_of=lambda n, s: n - s - 1, below=lambda c: c)),
        ("one step late", _trapezoid(below=lambda c: c)),
        ("end of the warm-up", lambda s, n, w, c: min(1, (s + 1) / w, (n - s) / (n - w + 1))),
        ("are exchanged", lambda s, n, w, c: min(1, (s + 1) / c, (n - s) / (w + 1))),
        ("never exceeds", lambda s, n, w, c: (s + 1) / w),
        ("never exceeds", lambda s, n, w, c: min((s + 1) / w, (n - s) / (c + 1))),
        ("one cosine", lambda s, n, w, c: (s + 1) / w if s < w else
         0.5 + 0.5 * np.cos(np.pi * (s - w) / (n - w))),
        ("warm-up is missing", lambda s, n, w, c: 1.0),
        ("it is wrong at", lambda s, n, w, c: 0.123),
    ],
    "best_rate": [
        ("best single run", _best(lambda a: np.nan_to_num(a).max(axis=1))),
        ("does not count", _best(lambda a: np.nanmean(a, axis=1))),
        ("not its number", _best(_strict, index=True)),
        ("in no order", _best(_strict, edge=lambda r, a, i: i in (0, len(r) - 1))),
        ("and diverged", _best(_strict, edge=lambda r, a, i: r[i] in (
            r[~np.isnan(a).any(axis=1)].min(), r[~np.isnan(a).any(axis=1)].max()))),
        ("in no order", _best(_strict, edge=lambda r, a, i: False)),
        ("in no order", _best(_strict, edge=lambda r, a, i: True)),
        ("2 values", lambda r, a: r[0]),
        ("mean over the seeds", lambda r, a: (r.min(), True)),
        ("does not count", _best(lambda a: np.nan_to_num(a).mean(axis=1))),
        ("does not count", _best(lambda a: np.nan_to_num(a).sum(axis=1))),
        ("best worst run", _best(lambda a: np.nanmedian(a, axis=1))),
        ("best worst run", _best(lambda a: np.nanmin(a, axis=1))),
        ("best worst run", _best(lambda a: np.nan_to_num(a).min(axis=1))),
        ("best worst run", _best(lambda a: np.nan_to_num(np.median(a, axis=1)))),
        ("best worst run", _best(lambda a: _strict(a) - np.nan_to_num(a.std(axis=1), nan=9))),
        ("best single run", _best(lambda a: np.where(np.isnan(a).any(axis=1), 0, a.max(axis=1)))),
        ("mean over the seeds", lambda r, a: (r.max(), True)),
        ("mean over the seeds", lambda r, a: (np.median(r), False)),
        ("2 values", lambda r, a: r[np.nanargmax(_strict(a))]),
    ],
}
