"""Solutions of lesson 0, a language model learns XOR.  Run the file to have them checked."""

import math

import numpy as np

from minifpt.exercises import EXERCISES, Case, check_solutions, exercise


def strings_right(logits, y):
    """All bits of an example at once."""
    right = logits.argmax(axis=-1) == y                   # (B, T)
    return right.all(axis=1).mean()


@exercise(strings_right, {
    "that is the share of bits: a string counts only when all of its bits are right": [
        "_.all(axis=1) -> _", "_.all(axis=1) -> _.mean(axis=1)"],
    "one right bit is not enough: all of them must be": "_.all(axis=1) -> _.any(axis=1)",
    "only one of the bits is looked at: all of them must be right": [
        "_.all(axis=1) -> _[:, 0]", "_.all(axis=1) -> _[:, -1]"],
    "most bits are not all bits": ["_.all(axis=1) -> (_.mean(axis=1) > 0.5)",
                                   "_.all(axis=1) -> (_.sum(axis=1) >= y.shape[1] - 1)"],
    "that multiplies probabilities, which are never 1: take the bit with the higher score": (
        "right = _ -> e = np.exp(logits)",
        "right.all(axis=1) -> np.take_along_axis(e / e.sum(axis=-1, keepdims=True), y[..., None], "
        "axis=-1).prod(axis=(1, 2))"),
    "those are the strings one by one; their share is one number": "_.mean() -> _",
    "the wrong axis: you ask which position is right in all examples":
        "_.all(axis=1) -> _.all(axis=0)",
    "that is the share of strings with a mistake": "return _ -> return 1 - _",
    "the share of bits to the power of T is right only if mistakes are independent of each other; "
    "count instead": "return _ -> return right.mean() ** y.shape[1]",
    "a number of strings, not their share": "_.mean() -> _.sum()",
    "the answer is the bit with the *higher* of its two scores, whatever their signs":
        "logits.argmax(axis=-1) -> (logits[..., 1] > 0)",
    "none is right: the lower score is taken as the answer, or you ask whether every string is":
        ["logits.argmax(axis=-1) -> logits.argmin(axis=-1)",
         "_.all(axis=1).mean() -> float(_.all())"],
    "a share from 0 to 1, not per cent": "return _ -> return 100 * _",
    "a share of the strings: divide by the B strings, not by all bits":
        "right.all(axis=1).mean() -> right.all(axis=1).sum() / y.size",
})
def _(rng):
    while True:
        B, T = int(rng.integers(60, 90)), int(rng.choice([4, 5, 6]))
        y = rng.integers(0, 2, (B, T))
        rates = np.full(T, 0.25)
        rates[rng.integers(1, T - 1)] = 0                 # one bit is right in every example
        higher = np.where(rng.random((B, T)) < rates, 1 - y, y)       # which bit scores higher
        low = rng.normal(size=(B, T))
        high = low + rng.uniform(0.5, 2, (B, T))
        logits = np.where(np.arange(2) == higher[..., None], high[..., None], low[..., None])
        right = strings_right(logits, y)
        wrong = {(hint, np.round(np.float64(mistake(logits, y)), 6).tobytes())
                 for hint, mistake in EXERCISES["strings_right"].wrong_answers}
        outputs = {output for _, output in wrong}
        if right > 0.1 and len(outputs) == len(wrong) and np.round(
                right, 6).tobytes() not in outputs:
            break                                         # no two mistakes look alike
    yield logits, y


def parameters_trained(n_layer, n_embd, tokens, input_dim, output_dim):
    """Two layers, the positions, two layer norms in each block and one at the end.

    What is frozen grows with C^2, what is trained with C.  For GPT-2 base and bit XOR it is 49,154
    of 85 million, 0.06 %.  (Its 124 million include the table of tokens, which FPT leaves out.)
    """
    C = n_embd
    norms = (2 * n_layer + 1) * 2 * C
    return (input_dim * C + C) + tokens * C + norms + (C * output_dim + output_dim)


@exercise(parameters_trained, {
    "the layer norm at the trunk's end is missing": "2 * n_layer + 1 -> 2 * n_layer",
    "one layer norm at the trunk's end, not two": "2 * n_layer + 1 -> 2 * n_layer + 2",
    "each block has two layer norms": [f"2 * n_layer + 1 -> n_layer{one}" for one in (" + 1", "")],
    "a layer norm has two vectors, a scale and a bias": "_ * 2 * C -> _ * C",
    "each block has two layer norms; the third is there once, at the trunk's end":
        "2 * n_layer + 1 -> 3 * n_layer",
    "input and output are two layers, from input_dim to C and from C to output_dim": [
        "return _ -> return input_dim * output_dim + output_dim + tokens * C + norms",
        "return _ -> return input_dim * output_dim + tokens * C + norms"],
    "each vector of a layer norm has C numbers": "_ * 2 * C -> _ * 2",
    "the positions are missing: a vector of C numbers for each token": "_ + tokens * C -> _",
    "a position is a vector of C numbers": [
        f"tokens * C -> {n}" for n in ("tokens", "tokens * tokens", "tokens * input_dim", "C")],
    "the input and output layer have biases too": [
        ("input_dim * C + C -> input_dim * C", "_ + output_dim -> _"), "_ + output_dim -> _"],
    "C numbers are missing: the input layer's bias, or one of the last layer norm's two vectors":
        "input_dim * C + C -> input_dim * C",
    "a layer from n to m numbers has m biases": [(
        "input_dim * C + C -> input_dim * C + input_dim",
        "C * output_dim + output_dim -> C * output_dim + C"),
        "input_dim * C + C -> input_dim * C + input_dim",
        "C * output_dim + output_dim -> C * output_dim + C"],
    "all tokens share a layer's numbers: only the positions are multiplied by tokens": [
        "_ + norms -> _ + tokens * norms", (
            "input_dim * C + C -> tokens * (input_dim * C + C)",
            "C * output_dim + output_dim -> tokens * (C * output_dim + output_dim)"),
        "input_dim * C + C -> tokens * (input_dim * C + C)",
        "C * output_dim + output_dim -> tokens * (C * output_dim + output_dim)"],
    "the layer norms are missing: they are trained in every block": "_ + norms -> _",
    "the trunk's own weights are counted too, and they are frozen":
        "return _ -> return _ + n_layer * (12 * C * C + 9 * C)",
    "the output layer is missing": "return _ -> return _ - (C * output_dim + output_dim)",
    "the input layer is missing": "return _ -> return _ - (input_dim * C + C)",
    "the input and the output layer are missing": "return _ -> return tokens * C + norms",
}, about="Four parts are trained: input layer, positions, layer norms, output layer. Which of them "
         "comes out as in the table above, for 6 blocks and C = 128?")
def _(rng):
    L, C = (int(n) for n in rng.permutation([4, 5, 6, 7, 8, 9])[:2])
    T = int(rng.choice([43, 47, 53, 59, 61]))             # primes; no two mistakes look alike
    n_in, n_out = (int(n) for n in rng.permutation([20, 22, 24, 26])[:2])   # not 2 L
    C *= 16
    args = L, C, T, n_in, n_out
    yield Case(args, mistakes={"the trunk's own weights are counted too, and they are frozen":
                               lambda n: n > parameters_trained(*args) + 8 * L * C * C})


def steps_to_learn(steps, accuracy, level):
    """The step after the last one that is below the level."""
    below = np.flatnonzero(accuracy < level)
    first = below[-1] + 1 if len(below) else 0
    return steps[first] if first < len(steps) else math.inf


@exercise(steps_to_learn, {
    "that is the number of the row, or of rows; return the step": [
        "steps[first] -> first", "return _ -> return (accuracy >= level).sum()"],
    "that is the last step below the level: the one after it is the first that is not":
        "below[-1] + 1 -> below[-1]",
    "it is learned there, and you say that it never is": "return _ -> return math.inf",
    "it falls below the level again after that: from which step on does it stay?":
        "first = _ -> first = np.argmax(accuracy >= level)",
    "that is how many steps it stays, not where that begins":
        "steps[first] -> steps[-1] - steps[first]",
}, {"exactly at the level": "accuracy < level -> accuracy <= level",
    "has not learned": "first = _ -> first = min(_, len(steps) - 1)"})
def _(rng):
    n, every = int(rng.integers(9, 13)), int(rng.choice([20, 25, 50]))
    steps, level = every * np.arange(1, n + 1), 0.9

    def case(high, about, exact=None, mistakes=None, answer=None):
        accuracy = np.where(high, rng.uniform(0.92, 1.0, n), rng.uniform(0.5, 0.88, n))
        if exact is not None:
            accuracy[exact] = level
        return Case((steps, accuracy, level), answer, mistakes or {}, about=about)

    # So that the steps from there to the end are not those of another mistake.
    dip = int(rng.choice([i for i in range(4, n - 2)
                          if i != n - 5 and 2 * i not in (n - 3, n - 1)]))
    high = np.arange(n) >= 2
    high[dip] = False
    yield case(high, "A curve that rises, falls once, and rises again.", mistakes={
        "that is where the accuracy is highest, or another step above the level": lambda out: (
            np.ndim(out) == 0 and out in steps)})
    yield case(np.arange(n) >= dip, "A curve that is exactly at the level for a step.", dip, {
        "a value exactly at the level is not below it": int(steps[dip + 1])})
    never = np.arange(n) >= 3
    never[-1] = False
    yield case(never, "A curve that is below the level at its last step: math.inf.", mistakes={
        "it is below the level at its last step: it has not learned, answer math.inf":
            lambda out: np.ndim(out) == 0 and np.isfinite(out),
        "here it has never learned: answer math.inf, a number, not None": None},
               answer=lambda out: np.ndim(out) == 0 and out == math.inf)
    yield case(np.ones(n, bool), "A curve that is never below the level: the first step.")


if __name__ == "__main__":
    check_solutions(globals())
