"""Solutions of lesson 17, how fast can NumPy go?  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, either, exercise


def sizes(rng, n, low, high):
    """n different whole numbers."""
    return [int(i) for i in rng.choice(np.arange(low, high), n, replace=False)]


def scale_intensity(N, C, bytes_each):
    """One multiplication a number; x and w are read, y is written."""
    numbers = 2 * N * C + C
    return N * C / (bytes_each * numbers)


@exercise(scale_intensity, {
    "that is operations for each number; how many bytes has a number?":
        "bytes_each * numbers -> numbers",
    "that counts 4 bytes a number: they have bytes_each": "bytes_each -> 4",
    "w is read, too: C numbers": "2 * N * C + C -> 2 * N * C",
    "w has C numbers, not N of them for each row: it is read once": "2 * N * C + C -> 3 * N * C",
    "x is read and y is written, too": "2 * N * C + C -> N * C + C",
    "x is read and w is read, too": "2 * N * C + C -> N * C",
    "bytes, not bits": "return _ -> return _ / 8",
    "each number takes one operation: a multiplication, and nothing is added":
        "return _ -> return 2 * _",
    "those are bytes for each operation; it is the other way round":
        "return _ / _1 -> return _1 / _",
    "that is the number of bytes; divide the operations by it": "return _ / _1 -> return _1",
    "that is the number of operations; divide it by the bytes": "return _ / _1 -> return _",
    "w has C numbers, as a row of x; there are N rows": "2 * N * C + C -> 2 * N * C + N",
    "y is written once, and x and w are read once": [
        "return _ -> return N * C / ((3 * N * C + C) * bytes_each)",
        "return _ -> return N * C / ((2 * N * C + 2 * C) * bytes_each)"],
    "each of the three arrays has bytes_each bytes a number":
        "return _ -> return N * C / (2 * N * C + C * bytes_each)",
    "one multiplication for each of the N C numbers of y": [
        "return _ -> return (N * C + C) / ((2 * N * C + C) * bytes_each)"],
    "that is a matrix product; here each number is multiplied by one number of w": [
        "return _ -> return 2 * N * C * C / ((2 * N * C + C * C) * bytes_each)"],
}, about="One multiplication for each number of y. Read are x and w, written is y.")
def _(rng):
    for bytes_each in (4, 8, 2):
        yield *sizes(rng, 2, 3, 40), bytes_each


def fewest_operations(a, b, c, d):
    """(A B) C has a product (a, b) by (b, c) and one (a, c) by (c, d).  For q kᵀ v with T tokens
    and D channels, q (kᵀ v) takes 4 T D² operations in place of 4 T² D."""
    left = 2 * a * b * c, 2 * a * c * d
    right = 2 * b * c * d, 2 * a * b * d
    return min(sum(left), sum(right))


# Rules that choose (A B) C without counting its operations, and are wrong for some sizes.
RULES = [
    lambda a, b, c, d: a * c < b * d, lambda a, b, c, d: a + c < b + d,
    lambda a, b, c, d: min(a, c) < min(b, d), lambda a, b, c, d: max(a, c) < max(b, d),
    lambda a, b, c, d: a < d, lambda a, b, c, d: c < b, lambda a, b, c, d: a < c,
    lambda a, b, c, d: b > d, lambda a, b, c, d: a < b, lambda a, b, c, d: c < d,
    lambda a, b, c, d: max(a * b * c, a * c * d) < max(b * c * d, a * b * d),
    lambda a, b, c, d: min(a * b * c, a * c * d) < min(b * c * d, a * b * d)]


@exercise(fewest_operations, {
    "that is the dearer of the two orders: count all operations of each, then compare": [
        "min -> max", *(f"return _ -> return sum(left if RULES[{i}](a, b, c, d) else right)"
                        for i in range(len(RULES)))],
    "each term takes a multiplication and an addition: twice as many": "return _ -> return _ / 2",
    "that counts K - 1 additions for each result: the lesson counts K": "min(_, _1) -> "
        "min(sum(left) - a * c - a * d, sum(right) - b * d - a * d)",
    "that is one of the two products; count both": [
        "return _ -> return min(left + right)", "min(_, _1) -> min(left[0], right[0])",
        "min(_, _1) -> min(left[1], right[1])", "return _ -> return max(left + right)",
        "return _ -> return max(left[0], right[0])", "return _ -> return max(left[1], right[1])"],
    "A B has the rows of A and the columns of B, (a, c); B C is (b, d)": [
        "return _ -> return left[0] + right[0]", "return _ -> return left[0] + right[1]",
        "return _ -> return right[0] + left[1]"],
    "there are two products, one after the other: add their operations": [
        "return _ -> return a * b * c * d", "return _ -> return 2 * a * b * c * d"],
    "return the operations, not a name": "return _ -> return '(A B) C'",
    "that is both orders together: one of them is taken": [
        "return _ -> return sum(left) + sum(right)",
        "return _ -> return (sum(left) + sum(right)) / 2"],
    "that is the size of the matrix in between: count operations": [
        "return _ -> return min(a * c, b * d)",
        "return _ -> return 2 * min(a * c, b * d)"],
    "those are numbers that are stored: count operations": [
        "return _ -> return 2 * (a * b + b * c + c * d)",
        "return _ -> return a * b + b * c + c * d"],
}, rtol=1e-9)
def _(rng):
    lefts = rng.permutation(np.arange(len(RULES)) % 2 == 0)
    for rule, ab_first in zip(RULES, lefts, strict=True):
        while True:
            a, b, c, d = sizes(rng, 4, 3, 60)
            ab, bc = 2 * a * b * c, 2 * b * c * d         # A B, B C
            left_last, right_last = 2 * a * c * d, 2 * a * b * d           # (A B) C, A (B C)
            cheap, dear = sorted([ab + left_last, bc + right_last])
            if ab_first == (cheap == ab + left_last) != rule(a, b, c, d) and (
                    cheap < 0.95 * dear and len({
                        ab, bc, left_last, right_last, ab + bc, ab + right_last, bc + left_last,
                        a * b * c * d, 2 * a * b * c * d, cheap, dear, cheap // 2}) == 12):
                break
        yield Case((a, b, c, d), mistakes={
            "return the operations, not a name": lambda out: isinstance(out, str)},
            about="Here (A B) C is cheaper." if ab_first else "Here A (B C) is cheaper.")


def predict(operations, moved, calls, peak, bandwidth, call):
    """One choice of many: arithmetic and bytes go on at the same time, calls come before."""
    return np.maximum(operations / peak, moved / bandwidth) + calls * call


LIMITS = "return _ -> a, b, c = operations / peak, moved / bandwidth, calls * call; return "


# Any time is right from the slowest limit to the sum of the three: the case tells what is not.
@exercise(predict, refused={
    "one time for each": LIMITS + "sum(a)",
    "divide by the rate": "operations / peak -> operations * peak",
    "arithmetic is not counted": LIMITS + "np.maximum(b, c)",
    "the bytes are not counted": LIMITS + "np.maximum(a, c)",
    "the calls are not counted": ["_ + calls * call -> _", LIMITS + "a + b"],
    "the fastest limit": LIMITS + "np.minimum(a, np.minimum(b, c))",
    "a mean of the limits": LIMITS + "(a + b + c) / 3",
    "only one of the three": [LIMITS + limit for limit in "abc"],
    "faster than their slowest": LIMITS + "0.9 * np.maximum(a, np.maximum(b, c))",
    "slower than": LIMITS + "1.1 * (a + b + c)",
})
def _(rng):
    peak, bandwidth, call = 10.0 ** rng.uniform([9, 9, -7], [11, 11, -5])
    N = int(rng.integers(12, 16))
    limits = 10.0 ** rng.uniform(-6, -2, (3, N))          # seconds by each limit alone
    slow = rng.permutation(np.arange(N) % 3)              # which limit is the slowest
    limits[slow, np.arange(N)] = limits.max(axis=0) * 10.0 ** rng.uniform(0, 1, N)
    limits[2] = np.ceil(limits[2] / call) * call          # whole calls
    slowest, after_each_other = limits.max(axis=0), limits.sum(axis=0)
    args = limits[0] * peak, limits[1] * bandwidth, np.round(limits[2] / call)

    def right(out):
        out = np.asarray(out, float)
        return (out.shape == (N,) and (out >= slowest * (1 - 1e-9)).all()
                and (out <= after_each_other * (1 + 1e-9)).all())

    def near(times):
        return lambda out: np.shape(out) == (N,) and np.allclose(out, times, rtol=1e-6, atol=0)

    yield Case((*args, peak, bandwidth, call), right, {
        "return one time for each of the N operations": lambda out: np.shape(out) != (N,),
        "operations times the rate is not a time: divide by the rate": lambda out: (
            np.max(out) > 1e6 * after_each_other.max()),
        "arithmetic is not counted": near(np.maximum(limits[1], limits[2])),
        "the bytes are not counted": near(np.maximum(limits[0], limits[2])),
        "the calls are not counted":
            either(near(np.maximum(limits[0], limits[1])), near(limits[0] + limits[1])),
        "the fastest limit does not decide, but the slowest": near(limits.min(axis=0)),
        "a mean of the limits is less than the slowest of them": near(limits.mean(axis=0)),
        "only one of the three limits is counted": either(*map(near, limits)),
        "some are faster than their slowest limit allows": lambda out: (
            np.asarray(out) < slowest * (1 - 1e-9)).any(),
        "some are slower than arithmetic, bytes and calls after each other": lambda out: (
            np.asarray(out) > after_each_other * (1 + 1e-9)).any(),
    }, about="For each operation, what does each of the three limits need alone?")


if __name__ == "__main__":
    check_solutions(globals())
