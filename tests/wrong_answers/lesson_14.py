"""Plausible wrong answers to lesson 14: (a word of the hint that fits, the answer)."""

import numpy as np


def _svd(M):
    return np.linalg.svd(M, compute_uv=False)


def _ratio(s):
    return s.sum() ** 2 / (s ** 2).sum()


def _cut(which=lambda k, n: slice(0, k), length=np.linalg.norm, off=0):
    def answer(w_v, w_o, k):
        M = w_v @ w_o
        U, s, V = np.linalg.svd(M)
        kept = np.zeros(len(s))
        where = which(k + off, w_v.shape[1])
        kept[where] = s[where]
        cut = U * kept @ V
        return cut if length is None else cut * length(M) / length(cut)
    return answer


def _equal(M, k):
    U, _, V = np.linalg.svd(M)
    return U[:, :k] @ V[:k] * np.linalg.norm(M) / k ** 0.5


def _fair(names, right=lambda n: n == 1):
    def answer(control, arms):
        return [right(sum(control.get(n) != arm.get(n) for n in names(control, arm)))
                for arm in arms]
    return answer


WRONG = {
    "same_spread": [
        ("fewer channels", lambda s, c, n: s * np.sqrt(n / c)),
        ("with the root", lambda s, c, n: s * c / n),
        ("without the root", lambda s, c, n: s * n / c),
        ("unchanged", lambda s, c, n: s),
        ("divide by the root", lambda s, c, n: s * c ** 0.5),
        ("relative", lambda s, c, n: (c / n) ** 0.5),
        ("from yours", lambda s, c, n: 0.55 / n ** 0.5),
        ("fourth root", lambda s, c, n: s * (c / n) ** 0.25),
    ],
    "directions": [
        ("not the values", lambda v, o: _ratio(_svd(v @ o))),
        ("once too often", lambda v, o: _ratio(_svd(v @ o) ** 4)),
        ("rank", lambda v, o: np.linalg.matrix_rank(v @ o)),
        ("upside down", lambda v, o: 1 / _ratio(_svd(v @ o) ** 2)),
        ("square of the sum", lambda v, o: (_svd(v @ o) ** 2).sum() / (_svd(v @ o) ** 4).sum()),
        ("both matrices", lambda v, o: _ratio(_svd(v) ** 2)),
        ("both matrices", lambda v, o: _ratio(_svd(o) ** 2)),
        ("entries", lambda v, o: _ratio(np.abs(v @ o).ravel() ** 2)),
        ("not the singular values", lambda v, o: _svd(v @ o)),
        ("no means", lambda v, o: _ratio(_svd(v @ o) ** 2) / v.shape[1]),
        ("fourth powers", lambda v, o: (_svd(v @ o) ** 2).sum()),
    ],
    "keep_directions": [
        ("more quietly", _cut(length=None)),
        ("not the smallest", _cut(which=lambda k, n: slice(n - k, n))),
        ("too many or too few", _cut(off=-1)),
        ("nothing is cut", lambda v, o, k: v @ o),
        ("the length is", _cut(length=lambda M: np.abs(M).max())),
        ("root of the sum", _cut(length=lambda M: np.abs(M).sum())),
        ("sum of the singular values", _cut(length=lambda M: _svd(M).sum())),
        ("root of the sum", lambda v, o, k: 2 * _cut()(v, o, k)),
        ("each of its two factors", lambda v, o, k: v[:, :k]),
        ("in proportion", lambda v, o, k: _equal(v @ o, k)),
        ("singular value decomposition", lambda v, o, k: v[:, :k] @ o[:k]),
    ],
    "fair_arms": [
        ("once more", _fair(lambda c, a: c | a, lambda n: n <= 1)),
        ("two things", _fair(lambda c, a: c | a, lambda n: 1 <= n <= 2)),
        ("once more", lambda c, arms: [True for _ in arms]),
        ("only the arm has", _fair(lambda c, a: c)),
        ("lacks", lambda c, arms: [sum(c[n] != a[n] if n in c else 1 for n in a) == 1
                                   for a in arms]),
        ("order", lambda c, arms: [sum(x != y for x, y in zip(
            c.items(), a.items(), strict=False)) + abs(len(c) - len(a)) == 1 for a in arms]),
        ("for each arm", lambda c, arms: True),
        ("two things", lambda c, arms: [abs(sum(a.values()) - sum(c.values())) > 0
                                        or len(a) != len(c) or a != c for a in arms]),
    ],
}
