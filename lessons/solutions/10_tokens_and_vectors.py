"""Solutions of lesson 10, tokens and vectors.  Run the file to have them checked."""

import numpy as np

from minifpt.exercises import Case, check_solutions, exercise


def row_gradient(dy, ids, v):
    """Each place where v stands adds its gradient; where it stands nowhere the sum is 0."""
    return dy[ids == v].sum(axis=0)


@exercise(row_gradient, {
    "you take only the last place where v stands: every place adds its gradient":
        "_.sum(axis=0) -> [*np.zeros_like(dy[0, :1]), *_][-1]",
    "you take only the first place where v stands: every place adds its gradient":
        "_.sum(axis=0) -> [*_, 0 * dy[0, 0]][0]",
    "a mean instead of a sum: every place adds its whole gradient": [
        "_.sum(axis=0) -> _.sum(axis=0) / max(1, (ids == v).sum())",
        "_.sum(axis=0) -> _.sum(axis=0) / ids.size", "_.sum(axis=0) -> _.sum(axis=0) / len(ids)"],
    "you take one passage only: v stands in others, too": [
        f"dy[ids == v] -> dy[b][ids[b] == v] if (b := (ids == v).any(axis=1).{which}()) + 1 else _"
        for which in ("argmax", "argmin")],
    "a sum over all places: only those where ids is v belong to row v": "ids == v -> ids > 0",
    "that is dy at those places, one row each: add them up": "_.sum(axis=0) -> _",
    "those are the places where ids is *not* v": "ids == v -> ids != v",
    "v is a word, not a place: at which places does it stand?": "_[ids == v] -> _[v]",
    "the channels stay apart: add over the places": [
        "_.sum(axis=0) -> _.sum()", "_.sum(axis=0) -> _.sum(axis=1)"],
    "add over passages and over places: the result is one row, (C,)": [
        f"return _ -> return (dy * (ids == v)[:, :, None]).sum(axis={axis})" for axis in (0, 1)],
    "v is an id: the places are those where ids is v": [
        "return _ -> return dy.reshape(-1, dy.shape[-1])[v]",
        "return _ -> return dy[:, v % dy.shape[1]].sum(axis=0)"],
    "add dy at those places; yours counts them": [
        "return _ -> return np.full(dy.shape[-1], float((ids == v).sum()))"],
}, rtol=1e-5)
def _(rng):
    B, T, C = (int(n) for n in rng.permutation([5, 6, 7]))
    ids, dy = rng.integers(2, 6, (B, T)), rng.standard_normal((B, T, C))
    v = int(rng.integers(2, 5))
    ids[ids == v] = 1
    for b in 1 + rng.permutation(B - 1)[:2]:              # twice in each of two passages
        places = rng.permutation(T)[:2]
        ids[b, places] = v
        dy[b, places[1]] = dy[b, places[0]]               # equal gradients count twice, too
    yield dy, ids, v
    yield Case((dy, ids, 7), mistakes={
        "a row that no token asked for has gradient 0, as an array (C,)":
            lambda out: np.shape(out) != (C,) or not np.any(out) or not np.isfinite(out).all(),
    }, about="7 stands nowhere in ids: what does a row that is not used change?")


def tied_gradient(dx, ids, dlogits, y):
    """The table is used twice, and the gradients of both uses add up."""
    V, C = dlogits.shape[-1], y.shape[-1]
    dw = dlogits.reshape(-1, V).T @ y.reshape(-1, C)
    np.add.at(dw, ids, dx)
    return dw


@exercise(tied_gradient, {
    "the output's part is missing: the table makes the scores as well":
        "dlogits.reshape(-1, V).T @ y.reshape(-1, C) -> np.zeros((V, C))",
    "the input's part is missing: the table is looked up as well": "np.add.at(dw, ids, dx) -> pass",
    "dw[ids] += dx keeps one of several equal ids: a scatter-add must add them all":
        "np.add.at(dw, ids, dx) -> last = np.zeros((V, C)); last[ids] += dx; dw += last",
    "the input's part of one passage only":
        [f"np.add.at(dw, ids, dx) -> np.add.at(dw, ids[{b}], dx[{b}])" for b in (0, -1)],
    "a product of the two parts: both uses add":
        "np.add.at(dw, ids, dx) -> of_input = np.zeros((V, C)); np.add.at(of_input, ids, dx); "
        "dw *= of_input",
    "a mean of the two parts instead of their sum": "return dw -> return dw / 2",
    "the difference of the two parts: both uses add": [
        "dx -> -dx", "dlogits.reshape(-1, V) -> -dlogits.reshape(-1, V)"],
    "the result is transposed: the table is (V, C)": "return dw -> return dw.T",
    "one gradient for each passage: the passages share the table":
        "return dw -> return dlogits.swapaxes(1, 2) @ y",
    "the output's part of one passage only":
        [f"_.T @ _1 -> dlogits[{b}].T @ y[{b}]" for b in (0, -1)],
    "a mean over places instead of a sum: every place adds its whole gradient": [
        "return dw -> return dw / ids.size", "return dw -> return dw / len(ids)",
        "return dw -> return dw / ids.shape[1]", "dx -> dx / ids.size", "dx -> dx / ids.shape[1]",
        "_ @ _1 -> _ @ _1 / ids.size",
        "_ @ _1 -> _ @ _1 / len(ids)", "_ @ _1 -> _ @ _1 / ids.shape[1]"],
    "dx and y are exchanged": "return dw -> dw = dlogits.reshape(-1, V).T @ dx.reshape(-1, C)\n"
                              "np.add.at(dw, ids, y)\nreturn dw",
    "both gradients belong to dw: the look-up's is added to the output's": [
        "np.add.at(dw, ids, dx) -> dw[ids] = dx"],
    "the look-up's gradient is dx, the output's is dlogits times y": [
        "np.add.at(dw, ids, dx) -> np.add.at(dw, ids, dx + y)",
        "_ @ y.reshape(-1, C) -> _ @ dx.reshape(-1, C)",
        "dw = _ -> dw = np.zeros((V, C))\nnp.add.at(dw, ids, dx + y)",
        "dw = _ -> dw = np.zeros((V, C))\nnp.add.at(dw, ids, np.take_along_axis(dlogits, "
        "ids[..., None], -1) * y)"],
    "dlogits has all of the softmax and the target in it: subtract nothing": [
        "dw = _ -> dw = (dlogits - np.eye(V)[ids]).reshape(-1, V).T @ y.reshape(-1, C)"],
}, rtol=1e-5)
def _(rng):
    B, T, C, V = (int(n) for n in rng.permutation([3, 5, 4, 7]))
    ids = rng.integers(0, V, (B, T))
    ids.flat[rng.permutation(B * T)[:3]] = rng.integers(V)            # at least one three times
    dx, y = rng.standard_normal((2, B, T, C))
    yield dx, ids, rng.standard_normal((B, T, V)), y


def best_table(tables, pairs):
    """One choice of many: how much larger the pairs' cosines are than those of all words, in the
    mean.  The share of words that are nearer than the partner is as good."""
    def gap(table):
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        cosines = unit @ unit.T
        a, b = np.array(pairs).T
        return cosines[a, b].mean() - cosines[np.triu_indices(len(unit), 1)].mean()

    return int(np.argmax([gap(table) for table in tables]))


# Any measure will do that finds the planted pairs, so the index alone tells the mistake.
@exercise(best_table, refused={
    "rows are long": ["np.linalg.norm(table, axis=1, keepdims=True) -> 1",
        "int(_) -> int(np.argmax([np.abs(table).mean() for table in tables]))"],
    "rows are short": "cosines[a, b].mean() - _ -> -np.abs(table[a] - table[b]).max()",
    "length of a row": ("table / _ -> table", "cosines[a, b].mean() - _ -> "
        "-(cosines[a] > cosines[a, b][:, None]).mean()"),
    "*all* words are alike": "cosines[a, b].mean() - _ -> cosines[a, b].mean()",
    "one pair alone is alike": "cosines[a, b].mean() - _ -> cosines[a, b].max()",
    "no pair is unlike": "cosines[a, b].mean() -> cosines[a, b].min()",
    "opposite directions": ["cosines[a, b].mean() -> np.abs(cosines[a, b]).mean()",
                            "np.argmax -> np.argmin"],
    "return the index of one table": ["return int(_) -> return tables[0]",
                                      "return int(_) -> return len(tables)"],
})
def _(rng):
    V, C, n = 60, 16, 12
    words = rng.permutation(V)
    pairs = [(int(a), int(b)) for a, b in words[:2 * n].reshape(n, 2)]
    a, b = np.array(pairs).T

    def all_but_one(like, first):                         # cosines: one pair alone says nothing
        return np.where(np.arange(n) > 0, like, first)[:, None]

    def planted(like, length=1.0):
        """Partners at a cosine of about ``like``, all else at random."""
        table = rng.standard_normal((V, C))
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        side = rng.standard_normal((n, C))
        side -= (side * table[a]).sum(axis=1, keepdims=True) * table[a]
        side /= np.linalg.norm(side, axis=1, keepdims=True)
        table[b] = like * table[a] + np.sqrt(1 - like ** 2) * side
        return length * table

    good = planted(all_but_one(0.85, -0.6))
    good[words[2 * n:]] *= 5
    some = all_but_one(0.3, -0.1)
    others = {"loud": planted(some, 60.0), "quiet": planted(some, 0.01),
              "lucky": planted(all_but_one(0.0, 1.0)), "even": planted(0.2),
              "common": planted(0.0) + 25 * rng.standard_normal(C) / np.sqrt(C),
              "opposite": planted(-0.98)}
    names = ["good", *others]
    mistakes = {
        "loud": "that table's rows are long, so that all dot products are large: does the length "
                "of a row say what it is like?",
        "quiet": "that table's rows are short, so that all distances are small: does the length of "
                 "a row say what it is like?",
        "common": "in that table *all* words are alike: compare a pair with other words",
        "lucky": "in that table one pair alone is alike: look at all pairs",
        "even": "in that table no pair is unlike, but none is much alike: do not count the sign "
                "alone, or the least alike pair alone",
        "opposite": "in that table partners point in opposite directions: a cosine of -1 is not "
                    "likeness"}
    for place in rng.permutation(len(names))[:3]:         # the same tables, at other places
        shown = [str(k) for k in rng.permutation([*others])]
        shown.insert(place, "good")
        tables = [{"good": good, **others}[k] for k in shown]

        def chose(k, shown=shown):
            return lambda out: np.ndim(out) == 0 and shown[int(out)] == k and int(out) == out >= 0

        yield Case((tables, pairs), chose("good"), {
            **{hint: chose(k) for k, hint in mistakes.items()},
            "return the index of one table, a whole number": lambda out, c=chose: not any(
                c(k)(out) for k in names)},
            about="Return the index of one table, a whole number from 0.")


if __name__ == "__main__":
    check_solutions(globals())
