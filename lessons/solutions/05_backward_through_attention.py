"""Solutions of lesson 5, backward through attention.  Run the file to have them checked."""

import numpy as np

from minifpt import functional as F
from minifpt.exercises import Case, Wrong, check_solutions, exercise

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


def alignment(wrong, right):
    """The cosine of the angle between two long vectors, into which the arrays are joined."""
    a, b = (np.concatenate([np.ravel(part) for part in parts]) for parts in (wrong, right))
    return a @ b / np.sqrt((a @ a) * (b @ b))


@exercise(alignment, {
    "one vector of all arrays, not a mean of one cosine for each array": [
        "return _ -> return np.average([np.sum(x * y) / np.sqrt(np.sum(x * x) * np.sum(y * y)) "
        f"for x, y in zip(wrong, right)], weights=[{weight} for x in wrong])"
        for weight in ("1", "x.size")],
    "one length for the whole vector: the squares of its parts' lengths add up, not the lengths": [
        "np.sqrt(_) -> sum(map(np.linalg.norm, wrong)) * sum(map(np.linalg.norm, right))",
        "np.sqrt(_) -> sum(np.linalg.norm(x) * np.linalg.norm(y) for x, y in zip(wrong, right))"],
    "the first array alone: join all of them":
        "return _ -> x, y = np.ravel(wrong[0]), np.ravel(right[0]); "
        "return x @ y / np.sqrt((x @ x) * (y @ y))",
    "divide by both lengths: a vector twice as long has the same direction": [
        "return _ -> return a @ b", "return _ -> return a @ b / (b @ b)",
        "return _ -> return a @ b / (a @ a)"],
    "a length is the root of the sum of squares: the root is missing":
        "np.sqrt((a @ a) * (b @ b)) -> (a @ a) * (b @ b)",
    "a length is the root of the sum of squares, not a sum of sizes":
        "np.sqrt((a @ a) * (b @ b)) -> np.abs(a).sum() * np.abs(b).sum()",
    "the cosine of the angle, not the angle": [
        f"return _ -> return {unit} * np.arccos(a @ b / np.sqrt((a @ a) * (b @ b)))"
        for unit in ("1", "180 / np.pi")],
    "the cosine itself, not 1 minus the cosine":
        "return _ -> return 1 - a @ b / np.sqrt((a @ a) * (b @ b))",
    "the cosine of the angle, not how far the two are apart":
        "return _ -> return np.linalg.norm(a - b) / np.linalg.norm(b)",
    "no mean is subtracted: that would be a correlation": [
        "return _ -> return np.corrcoef(a, b)[0, 1]",
        "return _ -> return np.mean(a * b) / (a.std() * b.std())"],
    "the numbers count, not only their signs": [
        "return _ -> return np.mean(np.sign(a) == np.sign(b))",
        "return _ -> return np.mean(np.sign(a * b))"],
    "the sign counts: a gradient that points the other way has -1":
        "return _ -> return abs(a @ b) / np.sqrt((a @ a) * (b @ b))",
})
def _(rng):
    shapes = [tuple(int(n) for n in rng.choice([2, 3, 4, 5], 2, replace=False)) for _ in range(3)]
    right = [3.0 ** -i * (1 + rng.standard_normal(shape)) for i, shape in enumerate(shapes)]
    noise = [rng.standard_normal(shape) for shape in shapes]
    yield [0.5 * (n - x) for x, n in zip(right, noise, strict=True)], right


def revealing_data(dy):
    """One choice of many.  The loss reads row t and channel c of y.  A query there makes dk, and
    two values that differ in channel c make the row of dS."""
    t, c = np.unravel_index(np.abs(dy).argmax(), dy.shape)
    q, k, v = np.zeros((3, *dy.shape))
    q[t, 0] = v[0, c] = 1
    return q, k, v


# Any data is right on which each of the three mistakes changes a gradient.
@exercise(revealing_data, refused={
    "three arrays": "return _ -> return q",
    "more than three": "return _ -> return q + 1, k, v + 1",
    "dS is 0": ["q[t, 0] = v[0, c] = 1 -> q[t, 0] = v[0, c - 1] = 1",
                "q[t, 0] = v[0, c] = 1 -> q[t, 0] = k[0, 0] = 1",
                "return _ -> return q, k, np.roll(v, -1, axis=0)"],
    "transpose": "q[t, 0] = v[0, c] = 1 -> k[t, 0] = v[0, c] = 1",
    "root": "q[t, 0] = v[0, c] = 1 -> q[0, 0] = v[0, c] = 1",
})
def _(rng):
    def drawn(sign):
        T, D = int(rng.integers(5, 8)), int(rng.integers(2, 5))
        dy = np.zeros((T, D))
        dy[int(rng.integers(2, T - 1)), int(rng.integers(D))] = sign * rng.uniform(0.5, 2)
        return dy

    for sign in rng.permutation([-1, 1]):                 # the largest entry, or the smallest
        yield revealing_case(drawn(sign))


def revealing_case(dy):
    T, D = dy.shape

    def arrays(out):
        if not np.iterable(out) or [np.shape(part) for part in out] != 3 * [dy.shape]:
            raise Wrong("Return three arrays of dy's shape: q, k and v.")
        return [np.asarray(part, float) for part in out]

    def gradients(out, mistake=""):
        q, k, v = arrays(out)
        A, _ = F.softmax(q @ k.T / np.sqrt(D) + np.triu(np.full((T, T), -np.inf), 1))
        dA, root = dy @ v.T, 1 if mistake == "root" else np.sqrt(D)
        dS = A * (dA - (0 if mistake == "mean" else (A * dA).sum(axis=1, keepdims=True)))
        return dS, dS @ k / root, (dS if mistake == "transpose" else dS.T) @ q / root

    def hides(out, mistake):
        pairs = zip(gradients(out)[1:], gradients(out, mistake)[1:], strict=True)
        return all(np.abs(x - y).max() < 1e-6 for x, y in pairs)

    def has_too_many(out):
        return sum(map(np.count_nonzero, arrays(out))) > 3

    def right(out):
        return not has_too_many(out) and not any(
            hides(out, mistake) for mistake in ("mean", "transpose", "root"))

    return Case((dy,), right, {
        "more than three numbers are not 0: which do you need?": has_too_many,
        "dS is 0: the values that dy's row reads must differ, and in dy's channel":
            lambda out: np.abs(gradients(out)[0]).max() < 1e-6,
        "the transpose does not show: dk needs a query in a row of dS that is not 0":
            lambda out: hides(out, "transpose"),
        "the root does not show: dq and dk are both 0": lambda out: hides(out, "root"),
    }, about="The missing weighted mean does not show: it must not be 0.")


if __name__ == "__main__":
    check_solutions(globals())
