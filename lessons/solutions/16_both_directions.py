"""Solutions of lesson 16, both directions.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def prefix_mask(T, P):
    """The causal mask, and the columns of the prefix for everybody."""
    t, s = np.arange(T)[:, None], np.arange(T)
    return (s <= t) | (s < P)


@exercise(prefix_mask, {
    "that is the causal mask: the first P tokens see each other in both directions":
        "_ | (s < P) -> _",
    "everything sees everything: after the first P no token may look ahead":
        "_ | (s < P) -> _ | (s >= 0)",
    "that moves the diagonal: the prefix is the first P tokens": [
        "return _ -> return np.tri(T, k=P)", "return _ -> return np.tri(T, k=P - 1)"],
    "a token of the prefix sees the prefix alone, not what comes after it": "s < P -> t < P",
    "the prefix is one token too long": "s < P -> s <= P",
    "the prefix is one token too short": "s < P -> s < P - 1",
    "rows and columns are exchanged: row t says what token t sees": "return _ -> return (_).T",
    "True says that a token is *seen*": "return _ -> return ~(_)",
    "the tokens after the prefix see it as well, and each other backward":
        "return _ -> return (s < P) & (t < P)",
    "each token sees itself, too": ["s <= t -> s < t", "return _ -> return (_) & (s != t)"],
    "a token is seen if it stands before or in the prefix: or, not and": "_ | _1 -> _ & _1",
    "a token sees what comes before it, not after it": "s <= t -> s >= t",
    "a token after the prefix sees those before it, not only itself":
        "return _ -> return (s < P) & (t < P) | (s == t)",
    "the tokens after the prefix see it as well":
        "return _ -> return (s < P) & (t < P) | (s <= t) & (s >= P)",
    "a token after the prefix sees the others before it as well, not only the prefix":
        "s <= t -> s + t < 0",
    "a later token sees all before it: no window": [
        "return _ -> return (s <= t) & (s > t - P)"],
    "the prefix are the first P tokens, not the last": [
        "return _ -> return (s <= t) | (s >= T - P)"],
    "a later token sees the later ones before it, too": [
        "return _ -> return (s < P) | (s == t)"],
}, {"True and False": "return _ -> return np.where(np.tri(T) > 0, 0, -np.inf)"})
def _(rng):
    T = int(rng.integers(6, 9))
    for P in (int(rng.integers(3, T - 2)), 0, T):
        yield Case((T, P), mistakes={
            "return an array (T, T) of True and False, or of 1 and 0":
                lambda out: np.shape(out) != (T, T) or not np.isin(out, (0, 1)).all()},
            about=f"T = {T}, P = {P}: what does each token see?")


def missing_token(P, left, right):
    """The token comes with P[left, token], and then the right one follows with P[token, right].
    Only their product counts, as a share of all."""
    both = P[left] * P[:, right]
    return both / both.sum()


@exercise(missing_token, {
    "the probabilities must sum to 1": ["_ / _1 -> _", "_ / _1.sum() -> _ / _1.max()"],
    "one number for each token is asked for, not one in all":
        "return _ -> return (P @ P)[left, right]",
    "that is what comes two tokens after `left`: `right` is known":
        "return _ -> return (P @ P)[left]",
    "divide by the sum over all tokens, not by P[left, right]":
        "_ / _1.sum() -> _ / P[left, right]",
    "that is what follows `left`: the right side is not used": "P[left] * P[:, right] -> P[left]",
    "that looks at the right side only": ["P[left] * P[:, right] -> P[:, right]",
                                          "return _ -> return P[:, right]"],
    "that is what *follows* `right`: it is the token that comes after the missing one": [
        "P[left] * P[:, right] -> P[right]", "P[:, right] -> P[right]"],
    "left and right are exchanged": "P[left] * P[:, right] -> P[right] * P[:, left]",
    "you take a column for `left`: what follows it stands in its row": "P[left] -> P[:, left]",
    "a sum instead of a product: both must happen": [
        "_ * _1 -> _ + _1", "_ * _1 -> _ + _1 / _1.sum()", "_ / _1.sum() -> P[left] + P[:, right]",
        "_ / _1.sum() -> (P[left] + P[:, right]) / 2"],
    "a softmax of probabilities: they only have to be divided by their sum":
        "both = _ -> both = np.exp(_)",
    "the logarithm must be undone before the sum is made 1": "both = _ -> both = np.log(_)",
    "both must happen: a product, not a quotient": [
        "P[left] * P[:, right] -> P[left] / P[:, right]"],
    "those are logarithms: probabilities are asked for": [
        "return _ -> return np.log(P[left]) + np.log(P[:, right])",
        "return _ -> return np.log(both / both.sum())"],
    "each token has a chance; yours gives all to the likeliest": [
        "return _ -> return np.eye(len(P))[both.argmax()]"],
    "the product as it is: no root, and no other factor": [
        "both = _ -> both = np.sqrt(P[left] * P[:, right])",
        "both = _ -> both = P[left] * P[:, right] * P.mean(axis=0)"],
}, rtol=1e-5)
def _(rng):
    V = int(rng.integers(5, 9))
    P = rng.dirichlet(np.full(V, 0.8), V) + 0.02
    yield P / P.sum(axis=1, keepdims=True), *(int(i) for i in rng.permutation(V)[:2])


def better_of_two(a, b):
    """One choice of many: the mean difference on the same questions against its standard error,
    and the question that counts most left out."""
    d = a - b
    d = np.delete(d, np.abs(d - np.median(d)).argmax())
    z = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
    return "neither" if abs(z) < 3 else "b" if z > 0 else "a"


# Any rule is right that keeps to the differences: the case says what a wrong one missed.
Z = "return _ -> z = %s; return 'neither' if abs(z) < %s else 'b' if z > 0 else 'a'"


@exercise(better_of_two, refused={
    "spread": [Z % ("(a.mean() - b.mean()) / np.sqrt(a.var() / len(a) + b.var() / len(b))", 3),
               Z % ("(a - b).mean()", "(a - b).std()")],
    "other way": "'b' if z > 0 else 'a' -> 'a' if z > 0 else 'b'",
    "1.4 standard errors": [Z % ("(a - b).mean() / (a - b).std(ddof=1) * np.sqrt(len(a))", 1.28),
                            "abs(z) < 3 -> abs(z) < 1"],
    "difference": ["return _ -> return 'neither'", Z % ("z", "(3 if z > 0 else 0)"),
        Z % ("np.median(a) - np.median(b)", 0), Z % ("a.min() - b.min()", 0),
        *(Z % ("(a - b).mean()", limit) for limit in (0, 0.01, 0.1, 1.0, "0.03 * a.mean()")),
        *(Z % ("(a - b).mean() / (a - b).std() * np.sqrt(len(a))", limit) for limit in (0, 1.0)),
        Z % ("(b < a).mean() - (a < b).mean()", 0.1)],
    "return 'a', 'b' or 'neither'": [
        "return _ -> return a.mean() - b.mean()", "return _ -> return (_).upper()"],
})
def _(rng):
    n = int(rng.integers(300, 500))
    n += n % 2
    shared = rng.gamma(0.8, 3.0, n)                       # hard questions are hard for both
    noise = rng.uniform(0.05, 0.35, n)

    def balanced(size):
        """Numbers as often up as down, so that their mean is 0."""
        half = size[:n // 2]
        return rng.permutation(np.concatenate([half, -half]))

    steady = 0.12 + balanced(noise)                       # about 10 standard errors, either sign
    tie = balanced(noise)
    tie += 1.4 * tie.std(ddof=1) / np.sqrt(n)             # chance does that one time in six
    one_large = balanced(noise)
    one_large[rng.integers(n)] += 60.0
    few = 7                                               # five of them up
    cases = [("b", shared, shared - steady), ("a", shared - steady, shared),
             ("neither", shared, shared - tie), ("neither", shared - tie, shared),
             ("neither", shared + one_large, shared.copy()),
             ("neither", shared.copy(), shared + one_large),
             ("neither", shared[:few], shared[:few] - rng.permutation(
                 np.r_[-1.3, -1.2, rng.uniform(0.25, 0.5, few - 2)]))]
    why = ["b is lower on the same questions, steadily: look at the difference of each question, "
           "not at how the two spread",
           "a is lower on the same questions, steadily: look at the difference of each question, "
           "not at how the two spread",
           "b is lower by 1.4 standard errors of the differences: chance does that one time in six",
           "a is lower by 1.4 standard errors of the differences: chance does that one time in six",
           "a single question makes the whole difference of the means",
           "a single question makes the whole difference of the means",
           "so few questions, and differences of both signs: nothing can be said"]
    for i in rng.permutation(len(cases)):
        right, a, b = cases[i]
        scale = 10.0 ** rng.uniform(-2, 1)                # no difference is large by itself
        yield Case((scale * a, scale * b), right, {
            "return 'a', 'b' or 'neither'": lambda out: out not in ("a", "b", "neither"),
            "the difference has the other sign, the other way round: the lower loss is better":
                lambda out, right=right: {out, right} == {"a", "b"},
            why[i]: lambda out, right=right: out != right,
        })


if __name__ == "__main__":
    check_solutions(globals())
