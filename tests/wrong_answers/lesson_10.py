"""Plausible wrong answers to lesson 10: (a word of the hint that fits, the answer)."""

from collections import Counter

import numpy as np
from scipy.special import expit, softmax


def _apply(word, pair):
    out = []
    for symbol in word:
        if out and (out[-1], symbol) == pair:
            out[-1] += symbol
        else:
            out.append(symbol)
    return out


def _merge(weight=lambda n: n, pairs_of=lambda w: zip(w, w[1:]), choose=max,  # noqa: B905
           apply=_apply):
    def answer(words, times):
        found = Counter()
        for word, n in zip(words, times, strict=True):
            for pair in pairs_of(word):
                found[pair] += weight(n)
        best = choose(found, key=found.get)
        return best, [apply(word, best) for word in words]
    return answer


def _by_replace(word, pair):
    return " ".join(word).replace(" ".join(pair), "".join(pair)).split()


def _from_the_right(word, pair):
    return [s[::-1] for s in _apply([s[::-1] for s in word[::-1]],
                                    tuple(s[::-1] for s in pair[::-1]))][::-1]


def _first_place(word, pair):
    for i in range(len(word) - 1):
        if tuple(word[i:i + 2]) == pair:
            return word[:i] + ["".join(pair)] + word[i + 2:]
    return word


def _keeps_second(word, pair):
    return [t for a, b in zip(word, [*word[1:], ""], strict=True)
            for t in ([a + b] if (a, b) == pair else [a])]


def _removes(word, pair):
    out, i = [], 0
    while i < len(word):
        gone = tuple(word[i:i + 2]) == pair
        out += [] if gone else [word[i]]
        i += 2 if gone else 1
    return out


def _most_frequent_symbols(words, times):
    found = Counter()
    for word, n in zip(words, times, strict=True):
        for symbol in word:
            found[symbol] += n
    best = tuple(symbol for symbol, _ in found.most_common(2))
    return best, [_apply(word, best) for word in words]


def _scatter(dy, ids, V, add=True):
    dw = np.zeros((V, dy.shape[-1]))
    if add:
        np.add.at(dw, ids, dy)
    else:
        dw[ids] += dy
    return dw


def _first(dy, ids, v):
    return dy[ids == v][0] if (ids == v).any() else np.zeros(dy.shape[-1])


def _last(dy, ids, v):
    return dy[ids == v][-1] if (ids == v).any() else np.zeros(dy.shape[-1])


def _different(dy, ids, V):
    dw = np.zeros((V, dy.shape[1]))
    for b, row in enumerate(ids):
        words = np.unique(row[row > 0])
        dw[words] += dy[b] / len(words)
    return dw


def _mean_gradient(divide="words", zero=False, add=True, once=False):
    def answer(dy, ids, V):
        real = ids > 0
        if once:
            dw = np.zeros((V, dy.shape[1]))
            for b, row in enumerate(ids):
                dw[np.unique(row[row > 0])] += dy[b] / (row > 0).sum()
            return dw
        n = {"words": real.sum(axis=1)[:, None, None], "T": ids.shape[1], "nothing": 1,
             "all": real.sum(), "places": real.sum(axis=0)[:, None],
             "texts": real.sum(axis=1)[:, None, None] * len(ids)}[divide]
        each = dy[:, None] * np.ones(ids.shape)[:, :, None] / n
        if not zero:
            each = each * real[:, :, None]
        dw = _scatter(each, ids, V, add)
        return dw
    return answer


def _cbow(label=None, squash=expit, mean=True, share=True, sign=1, du=None, dv=None, divide=False):
    def answer(u, v):
        x = u.mean(axis=0) if mean else u.sum(axis=0)
        labels = np.eye(1, len(v))[0] if label is None else label(len(v))
        ds = sign * (squash(v @ x) - labels) / (len(v) if divide else 1)
        dx = ds @ v if du is None else du(ds, v)
        return (np.tile(dx / (len(u) if share else 1), (len(u), 1)),
                np.outer(ds, x) if dv is None else dv(ds, u))
    return answer


def _tied(first=1.0, second=1.0, add=True):
    def answer(dx, ids, dlogits, y):
        V, C = dlogits.shape[-1], y.shape[-1]
        return (first * _scatter(dx, ids, V, add)
                + second * dlogits.reshape(-1, V).T @ y.reshape(-1, C))
    return answer


def _best(measure, largest=True):
    def answer(tables, pairs):
        a, b = np.array(pairs).T
        found = [measure(t, a, b) for t in tables]
        return int(np.argmax(found) if largest else np.argmin(found))
    return answer


def _cosine(t, a, b):
    unit = t / np.linalg.norm(t, axis=1, keepdims=True)
    return (unit[a] * unit[b]).sum(axis=1)


def _all(t):
    unit = t / np.linalg.norm(t, axis=1, keepdims=True)
    return (unit @ unit.T).mean()


WRONG = {
    "merge_step": [
        ("how often a word", _merge(weight=lambda n: 1)),
        ("each place counts", _merge(pairs_of=lambda w: set(zip(w[:-1], w[1:], strict=True)))),
        ("order counts", _merge(pairs_of=lambda w: (
            tuple(sorted(pair)) for pair in zip(w[:-1], w[1:], strict=True)))),
        ("order counts", _merge(pairs_of=lambda w: (
            tuple(sorted(pair, reverse=True)) for pair in zip(w[:-1], w[1:], strict=True)))),
        ("several characters", _merge(pairs_of=lambda w: zip(
            "".join(w)[:-1], "".join(w)[1:], strict=True))),
        ("least frequent", _merge(choose=min)),
        ("least frequent", _most_frequent_symbols),
        ("least frequent", _merge(pairs_of=lambda w: zip(w[1:], w[:-1], strict=True))),
        ("each place counts", _merge(pairs_of=lambda w: [tuple(w[:2])] if len(w) > 1 else [])),
        ("each place counts", _merge(pairs_of=lambda w: zip(w[::2], w[1::2]))),  # noqa: B905
        ("two symbols", lambda *a: ("".join(_merge()(*a)[0]), _merge()(*a)[1])),
        ("the pair and the list", lambda *a: (*_merge()(*a), 26)),
        ("the pair and the list", lambda *a: _merge()(*a)[1]),
        ("words are as before", _merge(apply=lambda word, pair: word)),
        ("first place", _merge(apply=_first_place)),
        ("ends, or begins", _merge(apply=_by_replace)),
        ("first two become one", _merge(apply=_from_the_right)),
        ("do not stand beside", _merge(apply=_keeps_second)),
        ("stands in the new word once", _merge(apply=_removes)),
        ("list of symbols for each", _merge(apply=lambda word, pair: "".join(_apply(word, pair)))),
        ("list of symbols for each", lambda *a: (_merge()(*a)[0], [
            word for word in _merge()(*a)[1] if "".join(_merge()(*a)[0]) in word])),
        ("stands in the new word once", _merge(apply=lambda word, pair: sorted(
            _apply(word, pair)))),
    ],
    "row_gradient": [
        ("only the last", _last),
        ("only the first", _first),
        ("mean instead of a sum", lambda dy, ids, v: (
            dy[ids == v].sum(axis=0) / max(1, (ids == v).sum()))),
        ("only those where ids is v", lambda dy, ids, v: dy.sum(axis=(0, 1))),
        ("not* v", lambda dy, ids, v: dy[ids != v].sum(axis=0)),
        ("add them up", lambda dy, ids, v: dy[ids == v]),
        ("one passage only", lambda dy, ids, v: dy[(ids == v).any(axis=1).argmax()][
            ids[(ids == v).any(axis=1).argmax()] == v].sum(axis=0)),
        ("shape", lambda dy, ids, v: dy[ids == v].sum(axis=-1)),
        ("row that no token asked for", lambda dy, ids, v: (
            dy[ids == v].sum(axis=0) if (ids == v).any() else 0.0)),
        ("row that is not used", lambda dy, ids, v: (
            dy[ids == v].sum(axis=0) if (ids == v).any() else np.ones(dy.shape[-1]))),
    ],
    "mean_gradient": [
        ("y is a mean", _mean_gradient("nothing")),
        ("you divide by T: only", _mean_gradient("T")),
        ("id 0 gets a gradient", _mean_gradient("T", zero=True)),
        ("id 0 gets a gradient", _mean_gradient(zero=True)),
        ("id 0 gets a gradient", _mean_gradient("nothing", zero=True)),
        ("scatter-add", _mean_gradient(add=False)),
        ("twice", _mean_gradient(once=True)),
        ("mean over the *different*", _different),
        ("each text has its own mean", _mean_gradient("all")),
        ("number of texts", _mean_gradient("texts")),
        ("axis 1", _mean_gradient("places")),
        ("shape", lambda dy, ids, V: _mean_gradient()(dy, ids, V).T),
        ("shape", lambda dy, ids, V: _mean_gradient()(dy, ids, V)[1:]),
    ],
    "cbow_backward": [
        ("N-th", _cbow(share=False)),
        ("their sum", _cbow(mean=False)),
        ("their sum", _cbow(mean=False, share=False)),
        ("label of the first", _cbow(label=np.zeros)),
        ("wrong sign", _cbow(sign=-1)),
        ("you take the last", _cbow(label=lambda n: np.eye(1, n)[0][::-1])),
        ("softmax", _cbow(squash=softmax)),
        ("all labels", _cbow(label=np.ones)),
        ("sigmoid is missing", _cbow(squash=lambda s: s)),
        ("not divided", _cbow(divide=True)),
        ("dv", _cbow(dv=lambda ds, u: np.outer(ds, u.sum(axis=0)))),
        ("du", _cbow(du=lambda ds, v: ds[0] * v[0])),
        ("one row for each", lambda u, v: (_cbow()(u, v)[0][0], _cbow()(u, v)[1])),
    ],
    "tied_gradient": [
        ("output's part is missing", _tied(second=0.0)),
        ("input's part is missing", _tied(first=0.0)),
        ("scatter-add", _tied(add=False)),
        ("mean of the two", _tied(0.5, 0.5)),
        ("difference", _tied(1, -1)),
        ("difference", _tied(-1, 1)),
        ("transposed", lambda *args: _tied()(*args).T),
        ("share the table", lambda dx, ids, dlogits, y: dlogits.swapaxes(1, 2) @ y),
        ("one passage", lambda dx, ids, dlogits, y: (
            _scatter(dx, ids, dlogits.shape[-1]) + dlogits[0].T @ y[0])),
        ("exchanged", lambda dx, ids, dlogits, y: _tied()(y, ids, dlogits, dx)),
        ("mean over places", lambda dx, ids, dlogits, y: _tied()(dx, ids, dlogits, y) / ids.size),
        ("mean over places", lambda dx, ids, dlogits, y: (
            _tied(1.0, 1.0 / len(ids))(dx, ids, dlogits, y))),
    ],
    "best_table": [
        ("long", _best(lambda t, a, b: (t[a] * t[b]).sum(axis=1).mean())),
        ("short", _best(lambda t, a, b: np.linalg.norm(t[a] - t[b], axis=1).mean(), False)),
        ("short", _best(lambda t, a, b: np.abs(t[a] - t[b]).max(), False)),
        ("all* words", _best(lambda t, a, b: _cosine(t, a, b).mean())),
        ("opposite", _best(lambda t, a, b: np.abs(_cosine(t, a, b)).mean() - _all(t))),
        ("opposite", _best(lambda t, a, b: _cosine(t, a, b).mean() - _all(t), False)),
        ("length of a row", _best(lambda t, a, b: np.mean(
            [(t[i] @ t.T > t[i] @ t[j]).mean() for i, j in zip(a, b, strict=True)]), False)),
        ("index", lambda tables, pairs: tables[0]),
        ("index", lambda tables, pairs: len(tables)),
        ("length", lambda tables, pairs: int(np.argmax([np.abs(t).mean() for t in tables]))),
    ],
}
