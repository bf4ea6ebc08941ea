"""Lesson 10, tokens and vectors."""

import numpy as np
from scipy.special import expit

from . import Case, close_to, exercise, part


def _scatter(dy, ids, V):
    """dy (..., C), ids (...) -> (V, C), where each position adds to its row."""
    return np.eye(V)[ids.reshape(-1)].T @ dy.reshape(ids.size, -1)


def _last_wins(dy, ids, V):
    """What ``dw[ids] += dy`` leaves of it."""
    dw = np.zeros((V, dy.shape[-1]))
    dw[ids] += dy
    return dw


def _merged(symbols, pair):
    """Each neighbouring ``pair`` as one symbol, from the left."""
    out = []
    for symbol in symbols:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return out


def _first_only(symbols, pair):
    """Only the first place of the pair is merged."""
    for i in range(len(symbols) - 1):
        if tuple(symbols[i:i + 2]) == pair:
            return symbols[:i] + ["".join(pair)] + symbols[i + 2:]
    return symbols


@exercise
def merge_step(rng):
    p, q, r, s, u, v, x, y = (str(letter) for letter in rng.permutation(list("abcdefgh")))
    shown = [([x, y, p, x, y], 10), ([q, x, y], 6), ([p, q], 20), ([r, s, q], 14), ([s, r, x], 13),
             ([u, v], 1), ([u, v, p], 1), ([u, v, r], 2), ([s, u, v], 1), ([q + s], 30),
             ([s + x, y, r], 3)]                          # x y: 26 times
    equal = [([x, x, x], 9), ([y, x, x, x, x], 4), ([y, x, v], 7), ([u, y], 2)]
    for pair, rows in (((x, y), shown), ((x, x), equal)):
        rows = [rows[i] for i in rng.permutation(len(rows))]
        many = int(rng.integers(1, 5))
        words, times = [list(word) for word, _ in rows], [many * n for _, n in rows]

        def after(merge, pair=pair, words=words):
            return lambda out: [list(w) for w in out[1]] == [merge(w, pair) for w in words]

        def chose(*pairs):
            return lambda out: tuple(out[0]) in pairs

        def has(symbol):
            return lambda out: any(symbol in word for word in out[1])

        right = after(_merged)

        def good(out, pair=pair, right=right):
            return (len(out) == 2 and not isinstance(out[0], str) and tuple(out[0]) == pair
                    and right(out))

        yield Case((words, times), good, {
            "return the pair and the list of words": lambda out: len(out) != 2,
            "return the pair as two symbols, (str, str)": lambda out: (
                isinstance(out[0], str) or len(out[0]) != 2),
            "how often a word occurs is not counted: in a word with times 20 a pair counts 20 "
            "times": chose((u, v)),
            "a pair can stand in a word more than once: each place counts": chose((p, q)),
            "the order counts: two symbols the other way round are another pair":
                chose((r, s), (s, r)),
            "a symbol may have several characters: count pairs of symbols": chose((q, s)),
            "the least frequent pair is taken, or a frequent one that is not the most frequent":
                lambda out, pair=pair: tuple(out[0]) != pair,
            "return a list of symbols for each word": lambda out, words=words: (
                len(out[1]) != len(words) or any(isinstance(word, str) for word in out[1])),
            "the words are as before: make one symbol of the pair": after(lambda w, pair: w),
            "only the first place of the pair in a word is merged": after(_first_only),
            "a symbol that ends, or begins, with one of the two is another symbol":
                has(s + x + y),
            "of three equal symbols the first two become one": after(
                lambda w, pair: _merged(w[::-1], pair)[::-1]),
            "the two symbols do not stand beside the merged one any more": after(
                lambda w, pair: [t for a, b in zip(w, [*w[1:], ""], strict=True)
                                 for t in ([a + b] if (a, b) == pair else [a])]),
        }, about="Each symbol of a word stands in the new word once, alone or in a merged pair.")


@exercise
def row_gradient(rng):
    B, T, C = (int(n) for n in rng.permutation([5, 6, 7]))
    ids, dy = rng.integers(2, 6, (B, T)), rng.standard_normal((B, T, C))
    v = int(rng.integers(2, 6))
    ids[ids == v] = 1
    for b in rng.permutation(B)[:2]:                      # twice in each of two passages
        ids[b, rng.permutation(T)[:2]] = v
    here = ids == v
    right = dy[here].sum(axis=0)
    first, last = (dy[here][i] for i in (0, -1))
    yield Case((dy, ids, v), right, {
        "you take only the last place where v stands: every place adds its gradient": last,
        "you take only the first place where v stands: every place adds its gradient": first,
        "a mean instead of a sum: every place adds its whole gradient": right / 4,
        "you take one passage only: v stands in others, too":
            close_to(*(dy[b][here[b]].sum(axis=0) for b in range(B))),
        "a sum over all places: only those where ids is v belong to row v": dy.sum(axis=(0, 1)),
        "that is dy at those places, one row each: add them up":
            lambda out: np.shape(out) == (4, C),
        "those are the places where ids is *not* v": dy[~here].sum(axis=0),
    }, rtol=1e-5)
    yield Case((dy, ids, 7), np.zeros(C), {
        "a row that no token asked for has gradient 0, as an array (C,)":
            lambda out: np.shape(out) != (C,) or not np.any(out) or not np.isfinite(out).all(),
    }, about="7 stands nowhere in ids: what does a row that is not used change?", rtol=1e-5)


@exercise
def mean_gradient(rng):
    B, T, C, V = 4, 6, 3, 9
    ids = np.zeros((B, T), int)
    for b, n in enumerate(rng.permutation([1, 3, 4, 6])):
        ids[b, :n] = rng.integers(1, V - 1, n)            # the last id is never used
        ids[b, 0] = ids[0, 0]                             # a word in all texts, twice in some
        if n > 2:
            ids[b, 1] = ids[b, 0]
    dy = rng.standard_normal((B, C))
    real = ids > 0
    lengths = real.sum(axis=1)
    each = dy[:, None] * real[:, :, None]                 # (B, T, C)
    shared = each / lengths[:, None, None]
    right = _scatter(shared, ids, V)
    all_words = np.broadcast_to(dy[:, None], (B, T, C))
    once, kinds = np.zeros((2, V, C))
    for b in range(B):
        different = np.unique(ids[b][real[b]])
        once[different] += dy[b] / lengths[b]
        kinds[different] += dy[b] / len(different)
    return Case((dy, ids, V), right, {
        "the division by the number of words is missing: y is a mean": _scatter(each, ids, V),
        "you divide by T: only the words that are not 0 count":
            _scatter(each / T, ids, V),
        "you divide by T, and id 0 gets a gradient: it stands for no word":
            _scatter(all_words / T, ids, V),
        "id 0 gets a gradient: it stands for no word": lambda out: (
            np.shape(out) == right.shape and np.any(np.asarray(out)[0])),
        "dw[ids] += ... keeps one of several equal ids: a scatter-add must add them all":
            _last_wins(shared, ids, V) * (np.arange(V) > 0)[:, None],
        "a word that stands twice in a text counts twice": once,
        "a mean over the *different* words of a text: a word that stands twice counts twice, above "
        "and below the fraction line": kinds,
        "you divide by the number of all words of all texts: each text has its own mean":
            _scatter(each, ids, V) / lengths.sum(),
        "you divide by the number of texts as well: each y has its own gradient": right / B,
        "the number of a text's words is a sum over its places, axis 1":
            _scatter(each / real.sum(axis=0)[:, None], ids, V),
    }, rtol=1e-5)


@exercise
def cbow_backward(rng):
    N, K, C = (int(n) for n in rng.permutation([3, 5, 7]))            # none of them 1 + K
    u = rng.standard_normal((N, C)) + 0.3
    v = rng.standard_normal((1 + K, C))
    x = u.mean(axis=0)
    label = np.eye(1, 1 + K)[0]

    def gradients(ds, x=x):
        return np.broadcast_to(ds @ v / N, (N, C)), np.outer(ds, x)

    s = v @ x
    ds = expit(s) - label
    du, dv = gradients(ds)
    p = np.exp(s) / np.exp(s).sum()

    def both(ds, x=x):
        du, dv = gradients(ds, x)
        return close_to((du, dv), (du * N, dv))

    return Case((u, v), (du, dv), {
        "x is a mean of N rows: each of them gets an N-th of dx": part(0, du * N),
        "x is the mean of the rows, and you take their sum":
            both(expit(v @ u.sum(axis=0)) - label, u.sum(axis=0)),
        "ds is the probability minus the label, and the label of the first is 1": both(expit(s)),
        "ds has the wrong sign: it is the probability minus the truth": both(-ds),
        "the first is the real one, and you take the last": both(expit(s) - label[::-1]),
        "a softmax over the scores: here each pair is a question of its own, with a sigmoid":
            both(p - label),
        "ds is not divided: the loss is a sum over the pairs": part(1, dv / (1 + K)),
        "all labels are 1: the drawn words are not real": both(expit(s) - 1),
        "the sigmoid is missing: it turns a score into a probability": both(s - label),
        "dv: it is ds times x, the mean, for each pair": part(1, np.outer(ds, u.sum(axis=0))),
        "du: only the real word passes something back: the drawn ones do as well":
            part(0, np.broadcast_to(ds[0] * v[0] / N, (N, C))),
        "du has one row for each of the N neighbours, all alike":
            lambda out: np.shape(out[0]) == (C,),
    }, rtol=1e-5)


@exercise
def tied_gradient(rng):
    B, T, C, V = (int(n) for n in rng.permutation([2, 5, 4, 7]))
    ids = rng.integers(0, V, (B, T))
    ids.flat[rng.permutation(B * T)[:3]] = rng.integers(V)            # at least one three times
    dx, y = rng.standard_normal((2, B, T, C))
    dlogits = rng.standard_normal((B, T, V))
    first = _scatter(dx, ids, V)
    second = dlogits.reshape(-1, V).T @ y.reshape(-1, C)

    return Case((dx, ids, dlogits, y), first + second, {
        "the output's part is missing: the table makes the scores as well": first,
        "the input's part is missing: the table is looked up as well": second,
        "dw[ids] += dx keeps one of several equal ids: a scatter-add must add them all":
            _last_wins(dx, ids, V) + second,
        "a mean of the two parts instead of their sum": (first + second) / 2,
        "the difference of the two parts: both uses add": close_to(
            first - second, second - first),
        "the result is transposed: the table is (V, C)": lambda out: (
            np.shape(out) == (C, V)),
        "one gradient for each passage: the passages share the table":
            lambda out: np.ndim(out) == 3,
        "the output's part of one passage only": close_to(
            *(first + dlogits[b].T @ y[b] for b in range(B))),
        "a mean over places instead of a sum: every place adds its whole gradient":
            close_to((first + second) / (B * T), first + second / (B * T),
                     first / (B * T) + second, first + second / B, first + second / T,
                     (first + second) / B, (first + second) / T),
        "dx and y are exchanged":
            _scatter(y, ids, V) + dlogits.reshape(-1, V).T @ dx.reshape(-1, C),
    }, rtol=1e-5)


@exercise
def best_table(rng):
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
