"""Solutions of lesson 10, tokens and vectors.  Run the file to have them checked."""

from collections import Counter

import numpy as np
from scipy.special import expit

from minifpt.exercises import Case, check_solutions, exercise


def merge_step(words, times):
    """A word that occurs n times adds n at each of its places.  The new list is made from the left:
    a symbol that completes the pair joins the symbol before it."""
    pairs = Counter()
    for word, n in zip(words, times, strict=True):
        for pair in zip(word[:-1], word[1:], strict=True):
            pairs[pair] += n
    best = max(pairs, key=pairs.get)
    after = []
    for word in words:
        after.append([])
        for symbol in word:
            if after[-1] and (after[-1][-1], symbol) == best:
                after[-1][-1] += symbol
            else:
                after[-1].append(symbol)
    return best, after


@exercise(merge_step, {
    "return the pair and the list of words": [
        "return best, after -> return best, after, 26", "return best, after -> return after"],
    "return the pair as two symbols, (str, str)": "best, after -> ''.join(best), after",
    "how often a word occurs is not counted: in a word with times 20 a pair counts 20 times":
        "pairs[pair] += n -> pairs[pair] += 1",
    "a pair can stand in a word more than once: each place counts": [
        "zip(word[:-1], _, strict=True) -> {*zip(word[:-1], _, strict=True)}",
        "zip(word[:-1], _, strict=True) -> [tuple(word[:2])] if word[1:] else []",
        "zip(word[:-1], _, strict=True) -> zip(word[::2], word[1::2])"],
    "the order counts: two symbols the other way round are another pair": [
        "pairs[pair] -> pairs[tuple(sorted(pair))]",
        "pairs[pair] -> pairs[tuple(sorted(pair))[::-1]]"],
    "a symbol may have several characters: count pairs of symbols":
        "zip(word[:-1], _, strict=True) -> zip(''.join(word)[:-1], ''.join(word)[1:])",
    "the least frequent pair is taken, or a frequent one that is not the most frequent": [
        "max(pairs, key=_) -> min(pairs, key=_)", "pairs[pair] -> pairs[pair[::-1]]"],
    "return a list of symbols for each word": [
        "return best, after -> return best, [''.join(word) for word in after]",
        "return best, after -> return best, [w for w in after if ''.join(best) in w]"],
    "the words are as before: make one symbol of the pair":
        "return best, after -> return best, words",
    "only the first place of the pair in a word is merged":
        "_ == best -> _ == best and ''.join(best) not in after[-1]",
    "a symbol that ends, or begins, with one of the two is another symbol":
        "return best, after -> return best, [' '.join(w).replace(' '.join(best), ''.join(best))"
        ".split() for w in words]",
    "of three equal symbols the first two become one": (
        "best = _ -> best = _\nwords = [word[::-1] for word in words]",
        "(after[-1][-1], symbol) -> (symbol, after[-1][-1])",
        "after[-1][-1] += symbol -> after[-1][-1] = symbol + after[-1][-1]",
        "return best, after -> return best, [word[::-1] for word in after]"),
    "the two symbols do not stand beside the merged one any more":
        "after[-1][-1] += symbol -> after[-1][-1] += symbol; after[-1].append(symbol)",
    "each symbol of a word stands in the new word once, alone or in a merged pair":
        "return best, after -> return best, [sorted(word) for word in after]",
}, about="Each symbol of a word stands in the new word once, alone or in a merged pair.")
def _(rng):
    p, q, r, s, u, v, x, y = (str(letter) for letter in rng.permutation(list("abcdefgh")))
    shown = [([x, y, p, x, y], 10), ([q, x, y], 6), ([p, q], 20), ([r, s, q], 14), ([s, r, x], 13),
             ([u, v], 1), ([u, v, p], 1), ([u, v, r], 2), ([s, u, v], 1), ([q + s], 30),
             ([s + x, y, r], 3)]                          # x y: 26 times
    equal = [([x, x, x], 9), ([y, x, x, x, x], 4), ([y, x, v], 7), ([u, y], 2)]
    for pair, rows in (((x, y), shown), ((x, x), equal)):
        rows = [rows[i] for i in rng.permutation(len(rows))]
        many = int(rng.integers(1, 5))
        words, times = [list(word) for word, _ in rows], [many * n for _, n in rows]
        yield Case((words, times), mistakes={
            "return the pair and the list of words": lambda out: len(out) != 2,
            "the least frequent pair is taken, or a frequent one that is not the most frequent":
                lambda out, pair=pair: len(out[0]) == 2 and tuple(out[0]) != pair,
            "return a list of symbols for each word": lambda out, words=words: (
                len(out[1]) != len(words) or any(isinstance(word, str) for word in out[1]))})


def row_gradient(dy, ids, v):
    """Each place where v stands adds its gradient; where it stands nowhere the sum is 0."""
    return dy[ids == v].sum(axis=0)


@exercise(row_gradient, {
    "you take only the last place where v stands: every place adds its gradient":
        "_.sum(axis=0) -> [*np.zeros_like(dy[0, :1]), *_][-1]",
    "you take only the first place where v stands: every place adds its gradient":
        "_.sum(axis=0) -> [*_, 0 * dy[0, 0]][0]",
    "a mean instead of a sum: every place adds its whole gradient":
        "_.sum(axis=0) -> _.sum(axis=0) / max(1, (ids == v).sum())",
    "you take one passage only: v stands in others, too": [
        f"dy[ids == v] -> dy[b][ids[b] == v] if (b := (ids == v).any(axis=1).{which}()) + 1 else _"
        for which in ("argmax", "argmin")],
    "a sum over all places: only those where ids is v belong to row v": "ids == v -> ids > 0",
    "that is dy at those places, one row each: add them up": "_.sum(axis=0) -> _",
    "those are the places where ids is *not* v": "ids == v -> ids != v",
}, rtol=1e-5)
def _(rng):
    B, T, C = (int(n) for n in rng.permutation([5, 6, 7]))
    ids, dy = rng.integers(2, 6, (B, T)), rng.standard_normal((B, T, C))
    v = int(rng.integers(2, 6))
    ids[ids == v] = 1
    for b in rng.permutation(B)[:2]:                      # twice in each of two passages
        ids[b, rng.permutation(T)[:2]] = v
    yield dy, ids, v
    yield Case((dy, ids, 7), mistakes={
        "a row that no token asked for has gradient 0, as an array (C,)":
            lambda out: np.shape(out) != (C,) or not np.any(out) or not np.isfinite(out).all(),
    }, about="7 stands nowhere in ids: what does a row that is not used change?")


def mean_gradient(dy, ids, V):
    """Each word of text b has the share 1 / (number of words of b) in y_b, and a word that stands
    twice has it twice.  ``np.add.at`` adds for equal ids, where ``dw[ids] +=`` does not."""
    real = ids > 0
    each = dy[:, None] * (real / real.sum(axis=1, keepdims=True))[:, :, None]     # (B, T, C)
    dw = np.zeros((V, dy.shape[1]))
    np.add.at(dw, ids, each)
    return dw


@exercise(mean_gradient, {
    "the division by the number of words is missing: y is a mean": "real / _ -> real",
    "you divide by T: only the words that are not 0 count": "real / _ -> real / ids.shape[1]",
    "you divide by T, and id 0 gets a gradient: it stands for no word":
        "real / _ -> np.ones(ids.shape) / ids.shape[1]",
    "id 0 gets a gradient: it stands for no word": [
        "real / _ -> np.ones(ids.shape) / _", "real / _ -> np.ones(ids.shape)"],
    "dw[ids] += ... keeps one of several equal ids: a scatter-add must add them all":
        "np.add.at(dw, ids, each) -> dw[ids] += each; dw[0] = 0",
    "a word that stands twice in a text counts twice":
        "np.add.at(_, _1, _2) -> for b in range(len(ids)): dw[ids[b]] += each[b]",
    "a mean over the *different* words of a text: a word that stands twice counts twice, above "
    "and below the fraction line": (
        "np.add.at(_, _1, _2) -> for b in range(len(ids)): dw[ids[b]] += each[b]",
        "real.sum(axis=1, keepdims=True) -> [[len({*row} - {0})] for row in ids.tolist()]"),
    "you divide by the number of all words of all texts: each text has its own mean":
        "real.sum(axis=1, keepdims=True) -> real.sum()",
    "you divide by the number of texts as well: each y has its own gradient":
        "return dw -> return dw / len(ids)",
    "the number of a text's words is a sum over its places, axis 1":
        "real.sum(axis=1, keepdims=True) -> real.sum(axis=0)",
}, rtol=1e-5)
def _(rng):
    B, T, C, V = 4, 6, 3, 9
    ids = np.zeros((B, T), int)
    for b, n in enumerate(rng.permutation([1, 3, 4, 6])):
        ids[b, :n] = rng.integers(1, V - 1, n)            # the last id is never used
        ids[b, 0] = ids[0, 0]                             # a word in all texts, twice in some
        if n > 2:
            ids[b, 1] = ids[b, 0]
    yield Case((rng.standard_normal((B, C)), ids, V), mistakes={
        "id 0 gets a gradient: it stands for no word": lambda out: (
            np.shape(out) == (V, C) and np.any(np.asarray(out)[0]))})


def cbow_backward(u, v):
    """ds is the probability minus the label.  All scores share x, so dx collects from all; x is a
    mean, so each neighbour gets an N-th of dx."""
    x = u.mean(axis=0)
    ds = expit(v @ x)
    ds[0] -= 1
    dx = ds @ v
    return np.tile(dx / len(u), (len(u), 1)), np.outer(ds, x)


@exercise(cbow_backward, {
    "x is a mean of N rows: each of them gets an N-th of dx": "dx / len(u) -> dx",
    "x is the mean of the rows, and you take their sum": [
        "_.mean(axis=0) -> _.sum(axis=0)", ("_.mean(axis=0) -> sum(_)", "dx / len(u) -> dx")],
    "ds is the probability minus the label, and the label of the first is 1": "ds[0] -= 1 -> pass",
    "ds has the wrong sign: it is the probability minus the truth":
        "ds[0] -= 1 -> ds[0] -= 1\nds *= -1",
    "the first is the real one, and you take the last": "ds[0] -= 1 -> ds[-1] -= 1",
    "a softmax over the scores: here each pair is a question of its own, with a sigmoid":
        "expit(_) -> (np.exp(_) / np.exp(_).sum())",
    "ds is not divided: the loss is a sum over the pairs": "ds[0] -= 1 -> ds[0] -= 1; ds /= len(v)",
    "all labels are 1: the drawn words are not real": "ds[0] -= 1 -> ds -= 1",
    "the sigmoid is missing: it turns a score into a probability": "expit(_) -> _",
    "dv: it is ds times x, the mean, for each pair":
        "np.outer(ds, x) -> np.outer(ds, u.sum(axis=0))",
    "du: only the real word passes something back: the drawn ones do as well":
        "ds @ v -> ds[0] * v[0]",
    "du has one row for each of the N neighbours, all alike": "np.tile(_, _1) -> _",
}, rtol=1e-5)
def _(rng):
    N, K, C = (int(n) for n in rng.permutation([3, 5, 7]))            # none of them 1 + K
    yield rng.standard_normal((N, C)) + 0.3, rng.standard_normal((1 + K, C))


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
    "its rows are long": ["np.linalg.norm(table, axis=1, keepdims=True) -> 1",
        "int(_) -> int(np.argmax([np.abs(table).mean() for table in tables]))"],
    "its rows are short": "cosines[a, b].mean() - _ -> -np.abs(table[a] - table[b]).max()",
    "length of a row": ("table / _ -> table", "cosines[a, b].mean() - _ -> "
        "-(cosines[a] > cosines[a, b][:, None]).mean()"),
    "*all* words are alike": "cosines[a, b].mean() - _ -> cosines[a, b].mean()",
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

    def planted(like, length=1.0):
        """Partners at a cosine of about ``like``, all else at random."""
        table = rng.standard_normal((V, C))
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        side = rng.standard_normal((n, C))
        side -= (side * table[a]).sum(axis=1, keepdims=True) * table[a]
        side /= np.linalg.norm(side, axis=1, keepdims=True)
        table[b] = like * table[a] + np.sqrt(1 - like ** 2) * side
        return length * table

    good = planted(0.85, np.where(np.isin(np.arange(V), words[:2 * n]), 0.3, 3.0)[:, None])
    loud, quiet = planted(0.3, 30.0), planted(0.3, 0.01)
    common = planted(0.0) + 8 * rng.standard_normal(C) / np.sqrt(C)
    opposite = planted(-0.98)
    names = ["good", "loud", "quiet", "common", "opposite"]
    mistakes = {
        "loud": "its rows are long, and so its dot products are large: does the length of a row "
                "say what it is like?",
        "quiet": "its rows are short, and so all its distances are small: does the length of a row "
                 "say what it is like?",
        "common": "in that table *all* words are alike: compare a pair with other words",
        "opposite": "in that table partners point in opposite directions: a cosine of -1 is not "
                    "likeness"}
    for place in rng.permutation(5)[:3]:                  # the same tables, at other places
        rest = [str(k) for k in rng.permutation(names[1:])]
        shown = rest[:place] + ["good"] + rest[place:]
        tables = [{"good": good, "loud": loud, "quiet": quiet, "common": common,
                   "opposite": opposite}[k] for k in shown]

        def chose(k, shown=shown):
            return lambda out: np.ndim(out) == 0 and shown[int(out)] == k and int(out) == out >= 0

        yield Case((tables, pairs), chose("good"), {
            **{hint: chose(k) for k, hint in mistakes.items()},
            "return the index of one table, a whole number": lambda out, c=chose: not any(
                c(k)(out) for k in names)},
            about="Return the index of one table, a whole number from 0.")


if __name__ == "__main__":
    check_solutions(globals())
