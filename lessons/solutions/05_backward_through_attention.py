"""Solutions of lesson 5, backward through attention.  Run the file to have them checked."""

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
    "row i of A belongs to row i of dy": [
        "return _ -> return A[::-1].T @ dy"],
    "each token that looked brings its own dy, not their mean": [
        "return _ -> return A.sum(axis=0)[:, None] * dy.mean(axis=0)"],
})
def _(rng):
    T = int(rng.integers(6, 9))
    yield rng.standard_normal((T - 2, 3)), causal_map(rng, T, T)[2:]


PLAIN = ["A * (dA - dA.mean(axis=-1, keepdims=True))",    # means that are not weighted
         "A * (dA - (dA * (A > 0)).sum(-1, keepdims=True) / (A > 0).sum(-1, keepdims=True))"]
SOFTMAX = "F.softmax_backward(dA, F.SoftmaxCache(A)) -> "
DIVIDED = {"the shares of a row sum to 1, so their weighted mean is a sum: do not divide by T":
           SOFTMAX + "A * (dA - (dA * A).mean(axis=-1, keepdims=True))"}


def multi_query_backward(dy, q, k, v, A):
    """As for one head; a key now has a path through each head, and the paths add up."""
    root, dA = np.sqrt(q.shape[-1]), dy @ v.T
    dS = F.softmax_backward(dA, F.SoftmaxCache(A)) / root                 # (H, T, T)
    keys, values = dS.swapaxes(-1, -2) @ q, A.swapaxes(-1, -2) @ dy
    return dS @ k, keys.sum(axis=0), values.sum(axis=0)


@exercise(multi_query_backward, DIVIDED | {
    "a mean over the heads instead of a sum: each head is a path, and rates add up":
        "return _, _1, _2 -> return _, keys.mean(axis=0), values.mean(axis=0)",
    "only one head's part: all heads read the same keys and values": [
        f"return _, _1, _2 -> h = {h} % len(q); return _, keys[h], values[h]" for h in range(5)],
    "the weighted mean is missing in dS: a row of A sums to 1, whatever moves": SOFTMAX + "A * dA",
    "the mean in dS is weighted: each entry of the row of dA counts with its share in A": [
        SOFTMAX + plain for plain in PLAIN],
    "the weighted mean in dS runs along a row of A, the last axis": [
        SOFTMAX + f"A * (dA - (dA * A).sum({axes}, keepdims=True))"
        for axes in ("0", "-2", "None", "(-2, -1)")],
    "in dS the bracket is multiplied by A: what nobody looks at gets nothing":
        SOFTMAX + "dA - (dA * A).sum(axis=-1, keepdims=True)",
    "dA is dy times v transposed: A was multiplied by v, not by k": "dy @ v.T -> dy @ k.T",
    "dq: each head has queries of its own, so there is nothing to add up":
        "dS @ k -> np.broadcast_to((dS @ k).sum(axis=0), q.shape)",
    "dk: the scores are products with q, so dk has q in it, and dq has k":
        "dS.swapaxes(-1, -2) @ q -> dS.swapaxes(-1, -2) @ k",
    "dS is not dA: the way back leads through the softmax": SOFTMAX + "dA",
    "the factor is missing on the way back: S was divided by the square root of D": "_ / root -> _",
    "divide once by the square root of D on the way back, as on the way forward":
        "_ / root -> _ / root ** 2",
    "dA is dy times v transposed: a row of dA belongs to a row of y":
        "dy @ v.T -> v @ dy.swapaxes(-1, -2)",
    "dq: a query moves its own row of y alone, so dS is not transposed":
        "dS @ k -> dS.swapaxes(-1, -2) @ k",
    "dv: the square root of D is in the scores, and v is not":
        "values.sum(axis=0) -> values.sum(axis=0) / root",
    "dk and dv are exchanged": "return _, _1, _2 -> return _, _2, _1",
    "dk: each key collects from the queries that looked at it: a column of dS, not a row":
        "dS.swapaxes(-1, -2) -> dS",
    "dk: the factor is missing on the way back": "keys.sum(axis=0) -> keys.sum(axis=0) * root",
    "dv: each value collects from the tokens that looked at it: a column of A, not a row":
        "A.swapaxes(-1, -2) -> A",
    "dv: y is the product of v with A, not with the scores":
        "A.swapaxes(-1, -2) @ dy -> root * dS.swapaxes(-1, -2) @ dy",
    "the heads are summed before the product: each head has its own part, and the parts add up": [
        f"return _, _1, _2 -> return _, dS.{f}(0).T @ q.{f}(0), A.{f}(0).T @ dy.{f}(0)"
        for f in ("sum", "mean")],
    "one set of keys and values, so one gradient for them: what do the paths through the heads do?":
        "return _, _1, _2 -> return _, keys, values",
})
def _(rng):
    H, T, D = (int(n) for n in rng.permutation([2, 5, 3]))
    q, dy = rng.standard_normal((2, H, T, D))
    k, v = rng.standard_normal((2, T, D))
    A, _ = F.softmax(q @ k.T / np.sqrt(D) + np.triu(np.full((T, T), -np.inf), 1))
    yield dy, q, k, v, A


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
