"""Solutions of lesson 24, who gets the gradient.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import Case, Wrong, check_solutions, exercise


def causal_map(rng, *shape, size=1.5):
    """A random attention map (..., T, T)."""
    mask = np.triu(np.full(shape[-2:], -np.inf), 1)
    return F.softmax(size * rng.standard_normal(shape) + mask)[0]


def value_gradient(dy, A):
    """A value collects from each token that looked at it, times the share that it got."""
    return A.T @ dy


@exercise(value_gradient, {
    "a mean instead of a sum: each token that looked adds its whole share":
        "_ @ dy -> _ @ dy / len(A)",
    "the shares are missing: a token that looked with a share of 0.1 adds a tenth of its dy": [
        "A.T -> (A > 0).T", "A.T -> np.ones_like(A).T"],
    "the shares of a column need not sum to 1: a value that many look at gets more":
        "A.T -> (A / A.sum(axis=0)).T",
    "only the token with the largest share gets something: every share counts":
        "A.T -> np.eye(A.shape[1])[A.argmax(axis=1)].T",
    "one gradient for each of the T values, not for each of the n queries": "A.T -> A[:, :len(A)]",
    "the tokens without a query have values too, and later tokens look at them":
        "A.T -> (A * (np.arange(A.shape[1]) >= A.shape[1] - len(A))).T",
    "a value gets something from each token that looked at it, not from its own token alone": [
        "return _ -> return np.eye(A.shape[1])[:, A.shape[1] - len(A):] @ dy",
        "return _ -> return (A * np.eye(A.shape[1])[A.shape[1] - len(A):]).T @ dy"],
    "all n queries looked, not the last one alone": "return _ -> return np.outer(A[-1], dy[-1])",
    "A needs no second mask: what the mask hides has a share of 0": [
        "A.T -> np.tril(A).T", "A.T -> np.triu(A).T"],
    "A holds shares already, and y has them as factors: no second softmax and no slope of it": [
        "return _ -> return (A * (1 - A)).T @ dy",
        "return _ -> return (np.exp(A) / np.exp(A).sum(axis=-1, keepdims=True)).T @ dy"],
    "row i of A belongs to row i of dy": "return _ -> return A[::-1].T @ dy",
    "each token that looked brings its own dy, not their mean":
        "return _ -> return A.sum(axis=0)[:, None] * dy.mean(axis=0)",
})
def _(rng):
    T = int(rng.integers(6, 9))
    yield rng.standard_normal((T - 2, 3)), causal_map(rng, T, T)[2:]


def weighted_means(dy, y):
    """The sum over r of A_tr dA_tr is dy_t times the sum of A_tr v_r, which is y_t."""
    return (dy * y).sum(axis=-1)


@exercise(weighted_means, {
    "one number for each row of dA: sum over the channels":
        "(dy * y).sum(axis=-1) -> (dy * y).sum(axis=0)",
    "one number for each row of dA, not one for all rows":
        "(dy * y).sum(axis=-1) -> (dy * y).sum()",
    "a mean over the channels instead of a sum: what is a row of A times v?":
        "(dy * y).sum(axis=-1) -> (dy * y).mean(axis=-1)",
    "only each row with itself: row t of dA has the mean that belongs to row t of y":
        ["return _ -> return dy @ y.T", "return _ -> return (dy @ y.T).sum(axis=1)",
         "return _ -> return (dy @ y.T).mean(axis=1)"],
    "each row by itself: nothing is added up over the rows before it":
        "(dy * y).sum(axis=-1) -> np.cumsum((dy * y).sum(axis=-1))",
    "nothing is divided: the shares of a row sum to 1": [
        f"(dy * y).sum(axis=-1) -> (dy * y).sum(axis=-1) / {divisor}" for divisor in (
            "len(y)", "y.sum(axis=-1)", "np.sqrt((dy * dy).sum(axis=-1) * (y * y).sum(axis=-1))")],
    "y is A v already, so the shares are in it: no softmax is needed":
        "dy * y -> dy * F.softmax(y)[0]",
    "no square root of D: it stands in the scores, and dA is dy times v transposed":
        "(dy * y).sum(axis=-1) -> (dy * y).sum(axis=-1) / np.sqrt(y.shape[-1])",
    "dy is missing: dA has it as a factor": ["dy * y -> y", "dy * y -> y * y"],
    "y is missing: it is the mean of v with the shares as weights": "dy * y -> dy",
    "a sum of products, not a product of sums":
        "(dy * y).sum(axis=-1) -> dy.sum(axis=-1) * y.sum(axis=-1)",
    "sum over the channels: the products are not added up yet":
        "(dy * y).sum(axis=-1) -> dy * y",
    "the sign is turned": "dy * y -> -dy * y",
})
def _(rng):
    T, D = (int(n) for n in rng.choice([3, 4, 5, 6], 2, replace=False))
    dy, v = rng.standard_normal((2, T, D))
    yield dy, causal_map(rng, T, T) @ v


def worth_computing(A, n):
    """One choice of many: for a random dA with variance 1 the mean of dS squared is
    A^2 (1 - 2 A + sum of A^2 over the row).  A (1 - A) is nearly as good, and shorter.
    The largest shares are not: where a share is 1, dS is 0."""
    expected = A ** 2 * (1 - 2 * A + (A ** 2).sum(axis=-1, keepdims=True))
    mask = np.zeros(A.size, bool)
    mask[np.argsort(expected, axis=None)[-n:]] = True
    return mask.reshape(A.shape)


# Any choice is right whose entries hold most of dS: the case says what is wrong with others.
@exercise(worth_computing, refused={
    "largest shares": "expected = _ -> expected = A",
    "from each row": "expected = _ -> expected = A / 99 - np.argsort(np.argsort(-A))",
    "above the diagonal": "expected = _ -> expected = np.random.default_rng(0).random(A.shape)",
    "exactly n": "return _ -> return A > 0.01",
    "True and False": ["return _ -> return np.argsort(-A, axis=None)[:n]",
                       "return _ -> return A * (1 - A)"],
    "bracket": "expected = _ -> expected = np.where(A > 0, A ** 0.1, 0) * (A < 0.2)",
})
def _(rng):
    def case(T):
        n = T * T // 16

        def top(measure):
            chosen = np.zeros(measure.size, bool)
            chosen[np.argsort(-measure, axis=None, kind="stable")[:n]] = True
            return chosen.reshape(measure.shape)

        def chosen(out):
            if np.shape(out) != (T, T) or not np.isin(out, (0, 1)).all():
                raise Wrong("Return an array (T, T) of True and False.")
            return np.asarray(out, bool)

        def spread(mask):
            return np.ptp(mask.sum(axis=1)[4:])

        A, held = np.eye(T), 1
        while spread(top(A)) < 4 or held > 0.94:          # else a wrong choice is as good
            size = rng.permutation(np.repeat([0.5, 2.5, 15.0, 15.0], T // 4))[:, None]
            A = causal_map(rng, T, T, size=size)
            gain = A ** 2 * (1 - 2 * A + (A ** 2).sum(axis=-1, keepdims=True)) # mean of dS^2
            held = gain[top(gain / (A + 1e-9))].sum() / gain[top(gain)].sum()

        def right(out):
            return chosen(out).sum() == n and (
                gain[chosen(out)].sum() >= 0.95 * gain[top(gain)].sum())

        return Case((A, n), right, {
            "choose exactly n entries, in the whole array": lambda out: chosen(out).sum() != n,
            "you choose entries above the diagonal: what is dS there?":
                lambda out: np.triu(chosen(out), 1).any(),
            "you choose the largest shares: what is dS for a token that gets a whole row?":
                lambda out: (chosen(out) & top(A)).sum() > 0.97 * n,
            "you choose as many from each row: does each row hold as much of dS?":
                lambda out: spread(chosen(out)) <= 1,
        }, about="Other entries hold more of dS: look at A times its bracket.")

    yield from map(case, rng.permutation([24, 28]).tolist())


if __name__ == "__main__":
    check_solutions(globals())
