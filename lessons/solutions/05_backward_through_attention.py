"""Solutions of lesson 5, backward through attention.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import check_solutions, exercise

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


if __name__ == "__main__":
    check_solutions(globals())
