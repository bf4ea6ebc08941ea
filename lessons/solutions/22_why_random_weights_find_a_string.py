"""Solutions of lesson 22, why random weights find a string.  Run the file to have them checked."""

import numpy as np
from scipy.linalg import expm  # noqa: F401, for a mistake
from scipy.optimize import brentq

from minifpt.exercises import Case, check_solutions, exercise


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
        "(M + M.T) / 2 -> np.triu(M)", "(M + M.T) / 2 -> np.triu(M) + np.triu(M, 1).T",
        "(M + M.T) / 2 -> np.maximum(M, M.T)", "(M + M.T) / 2 -> np.diag(np.diag(M))"],
})
def _(rng):
    C, D = rng.permutation([3, 4, 5, 6])[:2]
    yield rng.standard_normal((C, D)), rng.standard_normal((C, D))


def trace_after(W, S, eta, n):
    """Each step adds 2 eta W S."""
    for _ in range(n):
        W = W + 2 * eta * W @ S
    return np.trace(W @ S @ W.T)


def by_eigenvalues(growth, weighs=True):
    """The trace as a sum over eigenvalues l, each with its growth(eta l, n)."""
    def answer(W, S, eta, n):
        values, vectors = np.linalg.eigh(S)
        along = ((W @ vectors) ** 2).sum(axis=0) if weighs else 1
        return (values * along * growth(eta * values, n)).sum()
    return answer


@exercise(trace_after, {
    "the factor 2 is missing: W is used twice in F": "2 * eta -> eta",
    "the minus sign is too much: the step goes down the loss, and the trace goes up":
        ["W + 2 * eta * W @ S -> W - 2 * eta * W @ S", "W + 2 * eta * W @ S -> W - eta * W @ S"],
    "that is the trace at the start: take the steps first": "range(n) -> range(0)",
    "that is one step with n times the rate: each step starts from the W of the step before":
        ("range(n) -> range(1)", "2 * eta -> 2 * eta * n"),
    "one step is missing": "range(n) -> range(n - 1)",
    "one step too many": "range(n) -> range(n + 1)",
    "that is tr(W W'), the length of W: S is missing in the trace": "W @ S @ W.T -> W @ W.T",
    "that is continuous time, exp(2 l t); the steps here are finite, 1 + 2 eta l each": [
        ("range(n) -> range(1)", "W + 2 * eta * W @ S -> W @ expm(2 * eta * n * S)")],
    "W stands twice in the trace, so a direction's growth 1 + 2 eta l counts squared: to the "
    "power 2 n": [by_eigenvalues(lambda s, n: (1 + 2 * s) ** n),
                  by_eigenvalues(lambda s, n: (1 + s) ** n),
                  by_eigenvalues(lambda s, n: np.exp(2 * s * n))],
    "the square of 1 + 2 eta l has three terms": by_eigenvalues(lambda s, n: (1 + 4 * s) ** n),
    "a direction counts by how much of W lies along it: the sum of the squares of W u": [
        by_eigenvalues(lambda s, n: (1 + 2 * s) ** (2 * n), False),
        by_eigenvalues(lambda s, n: np.exp(2 * s * n), False),
        by_eigenvalues(lambda s, n: np.exp(4 * s * n), False)],
    "the factor of a step is 2: the trace has both W's, and the square makes 4 of it":
        "2 * eta -> 4 * eta",
    "a step is added to W: yours takes its place": "W + 2 * eta * W @ S -> 2 * eta * W @ S",
    "the trace is the sum of the diagonal, not of all entries":
        "np.trace(W @ S @ W.T) -> (W @ S @ W.T).sum()",
    "that is F itself: its trace is one number": "np.trace(W @ S @ W.T) -> W @ S @ W.T",
})
def _(rng):
    C, inputs = 5, 3
    S = rng.standard_normal((C, C))
    yield (rng.standard_normal((inputs, C)), (S + S.T) / 2, rng.uniform(0.04, 0.08),
           int(rng.integers(4, 8)))


def aligned(S, n, length):
    """eigh sorts upwards: the last n columns."""
    _, vectors = np.linalg.eigh(S)
    return length / np.sqrt(n) * vectors[:, -n:].T


def largest_in_size(S, n, length):
    values, vectors = np.linalg.eigh(S)
    return vectors[:, np.argsort(np.abs(values))[-n:]].T * length / np.sqrt(n)


# Any rotation of the right rows is right: the case compares what does not depend on it.
@exercise(aligned, refused={
    "most negative": "vectors[:, -n:] -> vectors[:, :n]",
    "rows": "vectors[:, -n:].T -> vectors[-n:]",
    "largest in size": largest_in_size,
    "the whole of W": ["length / np.sqrt(n) -> length", "length / np.sqrt(n) -> 1"],
    "right angles": "vectors[:, -n:].T -> np.repeat(vectors[:, -1:], n, axis=1).T",
    "all of one length": "vectors[:, -n:].T -> vectors[:, -n:].T * np.arange(1, n + 1)[:, None]",
    "shape": "vectors[:, -n:].T -> vectors[:, -n:]",
})
def _(rng):
    C = 7
    turn = np.linalg.qr(rng.standard_normal((C, C)))[0]
    values = np.array([-9.0, -7.5, -2.0, 0.7, 2.5, 4.0, 5.5]) + rng.uniform(-0.4, 0.4, C)
    S, n, length = (turn * values) @ turn.T, int(rng.integers(3, 5)), float(rng.uniform(2, 5))

    def gram(chosen):                                     # what all rotations share
        return chosen @ chosen.T * length ** 2 / n

    def like(matrix):
        return lambda W: np.shape(W) == (n, C) and np.allclose(np.asarray(W).T @ W, matrix)

    by_size = np.argsort(np.abs(values))[-n:]

    def products(W):                                      # of each row with each
        return np.asarray(W, float) @ np.asarray(W, float).T

    yield Case((S, n, length), like(gram(turn[:, -n:])), {
        f"expected the shape {(n, C)}: one row for each direction":
            lambda W: np.shape(W) != (n, C),
        "those are the most negative directions": like(gram(turn[:, :n])),
        "those eigenvalues are largest in size, and some of them are negative":
            like(gram(turn[:, by_size])),
        "the rows are not at right angles": lambda W: not np.allclose(np.triu(products(W), 1), 0),
        "the rows are not all of one length": lambda W: np.ptp(np.diag(products(W))) > 1e-6,
        "the directions are right, but the whole of W has another length than the given one":
            lambda W: np.allclose(np.asarray(W).T @ W / np.sum(np.square(W)),
                                  gram(turn[:, -n:]) / length ** 2),
        "eigh returns the directions as columns; those are rows of its matrix": lambda W: True,
    }, about="Any rotation of the right rows is right.")


def time_to_grow(values):
    """The sum grows with t: search between 0 and a time that is long enough."""
    def trace(t):
        return (values * np.exp(2 * values * t)).sum()
    return 0.0 if trace(0) >= 1 else brentq(lambda t: trace(t) - 1, 0, 100)


@exercise(time_to_grow, {
    "twice as long: the exponent is 2 l t": "np.exp(2 * values * t) -> np.exp(values * t)",
    "the factor l in front is missing: the trace has l exp(2 l t)":
        "values * np.exp(_) -> np.exp(_) / len(values)",
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
    values = rng.uniform(0.5, 1, 3)
    yield values / np.linalg.norm(values),                # they sum to more than 1 at the start


if __name__ == "__main__":
    check_solutions(globals())
