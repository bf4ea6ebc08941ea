"""Solutions of lesson 22, why random weights find a string.  Run the file to have them checked."""

import numpy as np
from scipy.optimize import brentq

from minifpt.exercises import Case, check_solutions, either, exercise


def symmetric_form(W_q, W_k):
    """The form's mean with its own transpose."""
    M = W_q @ W_k.T
    return (M + M.T) / 2


@exercise(symmetric_form, {
    "that is the whole form M: take the mean of M and its transpose": [
        "(M + M.T) / 2 -> M", "(M + M.T) / 2 -> M.T"],
    "that is the antisymmetric part: the sum of M and its transpose is symmetric": [
        "(M + M.T) / 2 -> (M - M.T) / 2", "(M + M.T) / 2 -> (M.T - M) / 2",
        "(M + M.T) / 2 -> M - M.T"],
    "twice as large: M is the sum of S and A, so each has a factor 1/2": "(M + M.T) / 2 -> M + M.T",
    "M is C x C: W_q times the transpose of W_k, not the other way round":
        "W_q @ W_k.T -> W_q.T @ W_k",
    "that is the form of queries with queries: the keys are missing": "W_q @ W_k.T -> W_q @ W_q.T",
    "that is the form of keys with keys: the queries are missing": "W_q @ W_k.T -> W_k @ W_k.T",
    "take the mean of M and its transpose, not of W_q and W_k: queries meet keys alone": [
        "W_q @ W_k.T -> (W_q + W_k) @ (W_q + W_k).T / 2",
        "W_q @ W_k.T -> (W_q + W_k) @ (W_q + W_k).T / 4",
        "W_q @ W_k.T -> (W_q @ W_q.T + W_k @ W_k.T) / 2"],
    "M and its transpose are added, not multiplied": [
        "(M + M.T) / 2 -> M @ M.T", "(M + M.T) / 2 -> M @ M.T / 2"],
    "brackets are missing: the sum is halved, not the transpose alone":
        "(M + M.T) / 2 -> M + M.T / 2",
    "the form leaves out the factor 1 / sqrt(D)":
        "(M + M.T) / 2 -> (M + M.T) / 2 / np.sqrt(W_q.shape[1])",
    "those are C numbers: the whole matrix is wanted":
        "(M + M.T) / 2 -> np.linalg.eigvalsh((M + M.T) / 2)",
    "an entry is the mean of M[i, j] and M[j, i], also above the diagonal": [
        f"(M + M.T) / 2 -> {part}" for part in (
            "np.triu(M)", "np.triu(M) + np.triu(M, 1).T", "np.triu(M) + np.triu(M).T", "np.tril(M)",
            "np.tril(M) + np.tril(M, -1).T", "np.maximum(M, M.T)", "np.diag(np.diag(M))")],
    "the entries keep their signs": [
        "M = _ -> M = abs(W_q @ W_k.T)",
        "return _ -> return abs(M + M.T) / 2"],
    "M and its transpose are added, entry by entry": [
        "return _ -> return M * M.T"],
    "that is the positive part of S: all of S is asked for": [
        "return _ -> w, V = np.linalg.eigh((M + M.T) / 2)\nreturn (V * np.maximum(w, 0)) @ V.T"],
})
def _(rng):
    C, D = rng.permutation([3, 4, 5, 6])[:2]
    yield rng.standard_normal((C, D)), rng.standard_normal((C, D))


def aligned(S, n, length):
    """eigh sorts upwards: the last n columns."""
    _, vectors = np.linalg.eigh(S)
    return length / np.sqrt(n) * vectors[:, -n:].T


def by_size(S, n, length):
    """The largest eigenvalues in size, of either sign."""
    values, vectors = np.linalg.eigh(S)
    return vectors[:, np.argsort(np.abs(values))[-n:]].T * length / np.sqrt(n)


# Any rotation of the right rows is right: the case compares what does not depend on it.
@exercise(aligned, refused={
    "most negative": "vectors[:, -n:] -> vectors[:, :n]",
    "as columns": ["vectors[:, -n:].T -> vectors[-n:]", "vectors[:, -n:].T -> vectors[:n]"],
    "largest in size": by_size,
    "not the n with the largest": [
        "vectors[:, -n:] -> vectors[:, -n - 1:-1]", "vectors[:, -n:] -> vectors[:, ::2][:, :n]",
        "vectors[:, -n:] -> vectors[:, 1:n + 1]"],
    "the whole of W": [f"length / np.sqrt(n) -> {factor}" for factor in (
        "length", "1", "length / n", "length * np.sqrt(n)", "length / len(S)",
        "length / np.sqrt(len(S))")],
    "right angles": ["vectors[:, -n:].T -> np.repeat(vectors[:, -1:], n, axis=1).T",
                     "vectors[:, -n:].T -> S[:n]", "vectors[:, -n:].T -> S[np.argsort("
                     "np.diag(S))[-n:]]"],
    "all of one length": [
        "vectors[:, -n:].T -> vectors[:, -n:].T * np.arange(1, n + 1)[:, None]",
        "_, vectors = np.linalg.eigh(S) -> values, vectors = np.linalg.eigh(S); "
        "vectors = vectors * values"],
    "shape": ["vectors[:, -n:].T -> vectors[:, -n:]", "vectors[:, -n:].T -> vectors.T",
              "vectors[:, -n:].T -> vectors[:, -5:].T", "vectors[:, -n:].T -> _"],
    "lie in none": "vectors[:, -n:].T -> np.eye(len(S))[:n]",
})
def _(rng):
    C = 9                                                 # six positive ones, more than n
    turn = np.linalg.qr(rng.standard_normal((C, C)))[0]
    values = np.array([-9.0, -7.5, -2.0, 0.7, 1.6, 2.5, 3.2, 4.0, 5.5]) + rng.uniform(-0.4, 0.4, C)
    S, n, length = (turn * values) @ turn.T, int(rng.integers(3, 5)), float(rng.uniform(2, 5))
    _, vectors = np.linalg.eigh(S)

    def square(W):                                        # what all rotations share; its trace is 1
        W = np.asarray(W, float)
        return W.T @ W / np.sum(W * W)

    def has(rows):
        return lambda W: np.allclose(square(W), square(rows))

    def products(W):                                      # of each row with each
        return np.asarray(W, float) @ np.asarray(W, float).T

    def is_right(W):
        return (np.shape(W) == (n, C) and has(vectors[:, -n:].T)(W)
                and np.isclose(np.linalg.norm(W), length))

    yield Case((S, n, length), is_right, {
        f"expected the shape {(n, C)}: one row for each direction":
            lambda W: np.shape(W) != (n, C),
        "those are the most negative directions": has(vectors[:, :n].T),
        "those eigenvalues are largest in size, and some of them are negative":
            has(by_size(S, n, length)),
        "np.linalg.eigh returns the directions as columns; those are rows of its matrix":
            either(has(vectors[-n:]), has(vectors[:n])),
        "the directions are right, but the whole of W has another length than the given one":
            has(vectors[:, -n:].T),
        "the rows are not at right angles": lambda W: not np.allclose(np.triu(products(W), 1), 0),
        "the rows are not all of one length": lambda W: np.ptp(np.diag(products(W))) > 1e-6,
        "those are eigendirections, but not the n with the largest eigenvalues":
            lambda W: np.allclose(square(W) @ S, S @ square(W)),
        "the rows lie in none of the eigendirections of S: np.linalg.eigh gives them":
            lambda W: True,
    }, about="Any rotation of the right rows is right.")


def time_to_grow(values):
    """The sum grows with t: search between 0 and a time that is long enough."""
    def trace(t):
        return (values * np.exp(2 * values * t)).sum()
    return 0.0 if trace(0) >= 1 else brentq(lambda t: trace(t) - 1, 0, 100)


@exercise(time_to_grow, {
    "twice as long: the exponent is 2 l t": "np.exp(2 * values * t) -> np.exp(values * t)",
    "at the start this sum is below 1: each term is l exp(2 l t), where l has its sign": [
        "values * np.exp(_) -> np.exp(_) / len(values)", "values * np.exp(_) -> np.exp(_)",
        "values * np.exp(_) -> np.abs(values) * np.exp(_)"],
    "the sum over j is wanted, not the mean":
        "(values * np.exp(_)).sum() -> (values * np.exp(_)).mean()",
    "half as long: the exponent is 2 l t": "np.exp(2 * values * t) -> np.exp(4 * values * t)",
    "three digits are asked: those times are too far apart": [
        f"brentq(_, 0, 100) -> np.ceil({n} * brentq(_, 0, 100)) / {n}" for n in (1, 10, 100)],
    "all eigenvalues count, the negative ones, too":
        "(values * np.exp(_)).sum() -> (values * np.exp(_))[values > 0].sum()",
    "all eigenvalues count, not the largest alone":
        "(values * np.exp(_)).sum() -> (values * np.exp(_)).max()",
    "a time below 0: where the sum is 1 or more at the start, the time is 0": [
        ("0.0 if trace(0) >= 1 else brentq(_, 0, 100) -> brentq(_, -50, 100)")],
}, rtol=2e-3)
def _(rng):
    for _ in range(2):                                    # the two positive ones sum to less than 1
        values = np.append(-rng.uniform(1, 2, 10), rng.uniform(0.8, 1.5, 2))
        yield values / np.linalg.norm(values),
    values = rng.standard_normal(8)
    values += rng.uniform(0.1, 0.2) - values.mean()
    yield values / np.linalg.norm(values),                # the sum is between 0 and 1 at the start
    values = np.append(-rng.uniform(1, 2, 10), rng.uniform(0.2, 0.3))
    yield values / np.linalg.norm(values),                # the time is above 10
    values = rng.uniform(0.5, 1, 3)
    yield values / np.linalg.norm(values),                # they sum to more than 1 at the start


if __name__ == "__main__":
    check_solutions(globals())
