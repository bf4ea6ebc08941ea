"""Lesson 14, which part of pretraining is enough."""

import numpy as np

from . import Case, close_to, either, exercise


@exercise
def same_spread(rng):
    std, C, new = (float(rng.uniform(0.01, 0.05)), *(int(n) for n in rng.permutation(
        [96, 200, 384, 640, 1024])[:2]))
    return Case((std, C, new), std * np.sqrt(C / new), {
        "the other way round: a sum over fewer channels needs larger weights":
            std * np.sqrt(new / C),
        "the spread of a sum grows with the root of the number of terms": std * C / new,
        "the other way round, and without the root": std * new / C,
        "with unchanged weights, fewer channels make the products smaller": std,
        "that is the spread of the products; divide by the root of the new channels":
            std * np.sqrt(C),
        "it is relative to the old weights, not to 1": np.sqrt(C / new),
        "the lesson's 0.55 is for one standard deviation, 0.02 at 768 channels: compute it from "
        "yours": close_to(
                *(relative / np.sqrt(new) for relative in (0.55, 0.02 * np.sqrt(768))), rtol=1e-4),
        "the fourth root is for both queries and keys; here one product stays the same":
            std * (C / new) ** 0.25,
    })


def _head(rng):
    C, D = (int(n) for n in (rng.choice([9, 11, 13]), rng.choice([4, 5])))
    directions = np.geomspace(1, rng.uniform(0.1, 0.3), D)
    w_v = rng.standard_normal((C, D)) * directions
    w_o = rng.standard_normal((D, C)) * rng.uniform(0.3, 2)
    return w_v, w_o, np.linalg.svd(w_v @ w_o, compute_uv=False)[:D]


def _ratio(s):
    return s.sum() ** 2 / (s ** 2).sum()


@exercise
def directions(rng):
    w_v, w_o, s = _head(rng)

    def singular_values(M):
        return np.linalg.svd(M, compute_uv=False)

    return Case((w_v, w_o), _ratio(s ** 2), {
        "the squares of the singular values count, not the values": _ratio(s),
        "the fourth powers are in the denominator alone; yours squares once too often":
            _ratio(s ** 4),
        "that is the rank: it counts a direction that passes next to nothing like any other":
            lambda out: out == len(s),
        "the fraction is upside down": 1 / _ratio(s ** 2),
        "the numerator is the square of the sum, not the sum of the squares":
            close_to((s ** 2).sum() / (s ** 4).sum(), 1.0),
        "what a head passes on goes through both matrices: take their product, first":
            close_to(*(_ratio(singular_values(M) ** k) for M in (w_v, w_o) for k in (1, 2))),
        "the product is (C, C): x @ w_v @ w_o": _ratio(singular_values(w_o @ w_v) ** 2),
        "those are the product's entries; turn to its singular values": close_to(
            *(_ratio(np.abs(w_v @ w_o).ravel() ** k) for k in (1, 2))),
        "return the number of directions, not the singular values": lambda out: np.size(out) > 1,
        "take sums above and below the fraction line, no means": close_to(
            *(_ratio(s ** 2) * float(len(s)) ** power for power in (1, -1, -2))),
        "it is a number from 1 to D: above and below the fraction line stand fourth powers":
            lambda out: not 0.999 <= out <= 1.001 * len(s),
    }, rtol=1e-5)


@exercise
def keep_directions(rng):
    w_v, w_o, s = _head(rng)
    M = w_v @ w_o
    U, S, V = np.linalg.svd(M)
    k = int(rng.integers(2, len(s)))

    def cut(which, power=1.0):
        values = np.zeros(len(S))
        values[which] = S[which]
        return (U * values ** power) @ V

    def norm(A):
        return A * np.linalg.norm(M) / np.linalg.norm(A)

    best, smallest = cut(slice(0, k)), cut(slice(len(s) - k, len(s)))
    return Case((w_v, w_o, k), norm(best), {
        "the length is smaller than the product's: then the head would say less *and* say it more "
        "quietly, two differences at once": best,
        "the largest singular values stay, not the smallest": close_to(
            smallest, norm(smallest)),
        "nothing is cut": M,
        "one direction too many or too few": close_to(
            *(norm(cut(slice(0, j))) for j in (k - 1, k + 1))),
        "the length is the root of the sum of all squares, not the largest singular value "
        "and not the sum of the singular values":
            lambda out: np.shape(out) == M.shape and (
                np.allclose(out / np.abs(out).max(), best / np.abs(best).max())
                and np.abs(out).max() > 0),
        "the product is cut, not each of its two factors": lambda out: np.shape(out) != M.shape,
        "the singular values that are kept stay in proportion": norm(U[:, :k] @ V[:k]),
    }, about="Cut the singular value decomposition of w_v @ w_o to its k largest values, then "
             "multiply by one number.", rtol=1e-5)


@exercise
def fair_arms(rng):
    names = [str(n) for n in rng.permutation(["trunk", "lr", "steps", "spread", "seeds"])]
    control = {name: int(rng.integers(1, 50)) for name in names}
    one, two = dict(control), dict(control)
    one[names[0]] += 1
    two[names[1]] += 1
    two[names[2]] += 1
    more = {**control, "dropout": int(rng.integers(1, 9))}
    lacks = {name: value for name, value in control.items() if name != names[3]}
    swapped = {name: value for name, value in lacks.items()} | {"blocks": 3}
    turned = dict(reversed(control.items())) | {names[4]: control[names[4]] + 2}
    back = dict(control) | {names[0]: control[names[0]] + 1, names[1]: control[names[1]] - 1}
    arms = [(one, True), (two, False), (dict(control), False), (more, True), (lacks, True),
            (swapped, False), (turned, True), (back, False)]
    arms = [arms[i] for i in rng.permutation(len(arms))]
    right = [fair for _, fair in arms]

    def where(arm):
        return next(i for i, (a, _) in enumerate(arms) if a is arm)

    def says(arm, verdict):
        return lambda out: len(out) == len(arms) and bool(out[where(arm)]) == verdict

    control_again = next(a for a, fair in arms if a == control)
    return Case((control, [arm for arm, _ in arms]),
                lambda out: [bool(fair) for fair in out] == right, {
        "return a list with True or False for each arm":
            lambda out: np.shape(out) != (len(arms),),
        "an arm that does not differ at all is the control once more, and no arm":
            says(control_again, True),
        "an arm that differs in two things cannot say which one it was":
            either(says(two, True), says(back, True)),
        "the order of the settings does not matter": says(turned, False),
        "a setting that the arm lacks is a difference, too": says(lacks, False),
        "a setting that only the arm has is a difference, too":
            either(says(more, False), says(swapped, True)),
    }, about="An arm is fair when it differs from the control in exactly one setting.")
