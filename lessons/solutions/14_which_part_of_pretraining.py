"""Solutions of lesson 14, which part of pretraining is enough.  Run the file to have them
checked."""

from itertools import pairwise

import numpy as np

from minifpt.exercises import Case, check_solutions, either, exercise


def same_spread(std, channels, new_channels):
    """A product is a sum over the channels; its spread is std times the root of their number."""
    return std * np.sqrt(channels / new_channels)


@exercise(same_spread, {
    "the other way round: a sum over fewer channels needs larger weights":
        "channels / new_channels -> new_channels / channels",
    "the spread of a sum grows with the root of the number of terms": [
        "np.sqrt(_) -> (_)", "np.sqrt(_) -> (_) ** 2"],
    "the number of channels that std belongs to counts, too":
        "channels / new_channels -> 1 / new_channels",
    "the other way round, and without the root": "np.sqrt(_) -> (new_channels / channels)",
    "with unchanged weights, fewer channels make the products smaller": "return _ -> return std",
    "that is the spread of the products; divide by the root of the new channels":
        "channels / new_channels -> channels",
    "it is relative to the old weights, not to 1": "std * _ -> _",
    "the lesson's 0.55 is for one standard deviation, 0.02 at 768 channels: compute it from yours":
        [f"return _ -> return {relative} / np.sqrt(new_channels)"
         for relative in (0.55, "0.02 * np.sqrt(768)")],
    "the fourth root is for both queries and keys; here one product stays the same":
        "np.sqrt(_) -> np.sqrt(np.sqrt(_))",
    "the standard deviation that the old model has counts, and both numbers of channels": [
        "return _ -> return 1 / np.sqrt(new_channels)",
        "return _ -> return 0.02"],
    "std is a standard deviation: the root is of the channels alone": [
        "return _ -> return np.sqrt(std * channels / new_channels)",
        "return _ -> return std ** 2 * channels / new_channels"],
    "a quotient under one root: channels / new_channels": [
        "return _ -> return std * np.sqrt(abs(channels - new_channels))",
        "return _ -> return std * np.sqrt(channels) / new_channels",
        "return _ -> return std * np.sqrt(channels / (channels + new_channels))",
        "return _ -> return std * np.sqrt(channels * new_channels)"],
    "one of the two numbers of channels is missing": [
        "return _ -> return std * channels",
        "return _ -> return std * np.sqrt(new_channels)",
        "return _ -> return std * new_channels"],
    "no logarithm: a sum of n random terms is as large as the root of n": [
        "return _ -> return std * np.log(channels) / np.log(new_channels)"],
})
def _(rng):
    C, new = (int(n) for n in rng.permutation([96, 200, 384, 640, 1024])[:2])
    yield float(rng.uniform(0.01, 0.05)), C, new


def directions(w_v, w_o):
    """The participation ratio of the squared singular values."""
    s = np.linalg.svd(w_v @ w_o, compute_uv=False)
    s2 = s ** 2
    return s2.sum() ** 2 / (s2 ** 2).sum()


def random_head(rng):
    C, D = (int(n) for n in (rng.choice([9, 11, 13]), rng.choice([4, 5])))
    w_v = rng.standard_normal((C, D)) * np.geomspace(1, rng.uniform(0.1, 0.3), D)
    return w_v, rng.standard_normal((D, C)) * rng.uniform(0.3, 2)


@exercise(directions, {
    "the squares of the singular values count, not the values": "s2 = s ** 2 -> s2 = s",
    "the fourth powers are in the denominator alone; yours squares once too often":
        "s ** 2 -> s ** 4",
    "that is the rank: it counts a direction that passes next to nothing like any other":
        "return _ -> return np.linalg.matrix_rank(w_v @ w_o)",
    "the fraction is upside down": "return _ / _1 -> return _1 / _",
    "the numerator is the square of the sum, not the sum of the squares": [
        "s2.sum() ** 2 -> s2.sum()", "s2.sum() ** 2 -> (s2 ** 2).sum()"],
    "the denominator is the sum of the fourth powers, not a power of a sum": [
        "(s2 ** 2).sum() -> s.sum() ** 4", "(s2 ** 2).sum() -> s.sum() ** 2"],
    "what a head passes on goes through both matrices: take their product, first": [
        "w_v @ w_o -> w_v", "w_v @ w_o -> w_o", ("w_v @ w_o -> w_v", "s2 = s ** 2 -> s2 = s"),
        ("w_v @ w_o -> w_o", "s2 = s ** 2 -> s2 = s")],
    "the product is (C, C): x @ w_v @ w_o": "w_v @ w_o -> w_o @ w_v",
    "those are the product's entries; turn to its singular values": [
        "s = _ -> s = np.abs(w_v @ w_o)", "s2 = _ -> s2 = np.abs(w_v @ w_o)"],
    "return the number of directions, not the singular values": "return _ -> return s",
    "those are eigenvalues; the singular values come from np.linalg.svd":
        "s = _ -> s = np.abs(np.linalg.eigvals(w_v @ w_o))",
    "np.linalg.svd returns U, s and V transposed: take s":
        ["s = _ -> s = np.linalg.svd(w_v @ w_o)[0]", "s = _ -> s = np.linalg.svd(w_v @ w_o)[2]"],
    "take sums above and below the fraction line, no means": [
        f"return _ -> return _ * w_v.shape[1] ** {power}." for power in (1, -1, -2)],
    "that compares with the strongest alone; the participation ratio has fourth powers below": [
        "return _ -> return s2.sum() / s2.max()",
        "return _ -> return s.sum() / s.max()"],
    "that is another measure, of the entropy": [
        "return _ -> return np.exp(-(s2 / s2.sum() * np.log(s2 / s2.sum() + 1e-300)).sum())"],
    "the singular values are of the product, not those of each matrix put together": [
        "s = _ -> s = np.linalg.svd(w_v, compute_uv=False) * np.linalg.svd(w_o, compute_uv=False)"],
}, {"fourth powers": "return _ -> return s2.sum()"}, rtol=1e-5)
def _(rng):
    w_v, w_o = random_head(rng)
    yield Case((w_v, w_o), mistakes={
        "it is a number from 1 to D: above and below the fraction line stand fourth powers":
            lambda out: not 0.999 <= out <= 1.001 * len(w_o)})


def fair_arms(control, arms):
    """A setting that one of the two lacks is a difference as well."""
    def differences(arm):
        missing = object()
        return sum(control.get(name, missing) != arm.get(name, missing)
                   for name in control.keys() | arm.keys())
    return [differences(arm) == 1 for arm in arms]


IS_OTHER = "control.get(name, missing) != arm.get(name, missing)"


# The arms come in a random order, so the case says which of them was judged wrongly.
@exercise(fair_arms, refused={
    "once more": ["_ == 1 -> _ <= 1", "_ == 1 -> True"],
    "two things": ["_ == 1 -> 1 <= _ <= 2", "_ == 1 -> _ > 0"],
    "only the arm has": "control.keys() | arm.keys() -> control.keys()",
    "lacks": "control.keys() | arm.keys() -> arm.keys()",
    "order": "differences(arm) -> sum(a != b for a, b in zip(control.items(), arm.items())) "
             "+ abs(len(control) - len(arm))",
    "for each arm": "return [_ for arm in arms] -> return True",
    "before it": lambda control, arms: [fair_arms(before, [arm])[0]
                                        for before, arm in pairwise([control, *arms])],
    "another value": ["differences(arm) -> len(control.items() ^ arm.items())",
                      "differences(arm) -> len(control.keys() ^ arm.keys())"],
    "one value": [f"{IS_OTHER} -> {form}(control.get(name, 0)) != {form}(arm.get(name, 0))"
                  for form in ("str", "id")],
    "None is": ["missing = _ -> missing = None", f"{IS_OTHER} -> name not in control.keys() & arm "
                "or None not in (control[name], arm[name]) and control[name] != arm[name]"],
    "added": "_ == 1 -> 1 in (_, sum(control[n] != arm[n] for n in control.keys() & arm))",
    "small": f"{IS_OTHER} -> name not in control.keys() & arm or control[name] != arm[name] and "
             "(None in (control[name], arm[name]) or abs(control[name] - arm[name]) > 1e-3)",
})
def _(rng):
    names = [str(n) for n in rng.permutation(["trunk", "lr", "steps", "spread", "seeds"])]
    control = {name: int(rng.integers(1, 50)) for name in names}
    control["lr"] *= 1e-5
    one = {name: float(value) for name, value in control.items()} | {"warmup": None}   # 2.0 is 2
    one[names[0]] += 1
    control["warmup"] = None
    finer, filled = control | {"lr": 1.5 * control["lr"]}, control | {"warmup": 7}
    two = dict(control)
    two[names[1]] += 1
    two[names[2]] += 1
    more = {**control, "dropout": int(rng.integers(1, 9))}
    lacks = {name: value for name, value in control.items() if name != names[3]}
    swapped = {name: value for name, value in lacks.items()} | {"blocks": 3}
    turned = dict(reversed(control.items())) | {names[4]: control[names[4]] + 2}
    nothing = dict(control) | {"start": None}
    both = more | {names[0]: control[names[0]] + 1}
    back = dict(control) | {names[0]: control[names[0]] + 1, names[1]: control[names[1]] - 1}
    arms = [(one, True), (two, False), (dict(control), False), (more, True), (lacks, True),
            (swapped, False), (turned, True), (back, False), (nothing, True), (both, False),
            (finer, True), (filled, True)]
    arms = [arms[i] for i in rng.permutation(len(arms))]
    right = [fair for _, fair in arms]

    def where(arm):
        return next(i for i, (a, _) in enumerate(arms) if a is arm)

    def says(arm, verdict):
        return lambda out: len(out) == len(arms) and bool(out[where(arm)]) == verdict

    chain = [control, *(arm for arm, _ in arms)]
    to_the_last = [fair_arms(before, [arm])[0] for before, arm in pairwise(chain)]
    control_again = next(a for a, fair in arms if a == control)
    yield Case((control, [arm for arm, _ in arms]),
                lambda out: [bool(fair) for fair in out] == right, {
        "return a list with True or False for each arm":
            lambda out: np.shape(out) != (len(arms),),
        "compare each arm with the control, not with the arm before it":
            lambda out: [bool(fair) for fair in out] == to_the_last,
        "another value of a setting that both have is one difference":
            lambda out: not any(says(arm, True)(out) for arm in (one, turned, finer)),
        "a small difference is a difference, too": says(finer, False),
        "2 and 2.0 are one value: compare with !=": says(one, False),
        "an arm that does not differ at all is the control once more, and no arm":
            says(control_again, True),
        "an arm that differs in two things cannot say which one it was":
            either(says(two, True), says(back, True)),
        "the order of the settings does not matter": says(turned, False),
        "a setting that the arm lacks is a difference, too": says(lacks, False),
        "a setting that only the arm has is a difference, too":
            either(says(more, False), says(swapped, True)),
        "None is a value like any other, and not the same as no setting":
            either(says(nothing, False), says(filled, False)),
        "one setting changed and another added: these are two differences": says(both, True),
    }, about="An arm is fair when it differs from the control in exactly one setting.")


if __name__ == "__main__":
    check_solutions(globals())
