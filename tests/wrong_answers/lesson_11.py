"""Plausible wrong answers to lesson 11: (a word of the hint that fits, the answer)."""

import zlib

import numpy as np
from scipy.special import softmax


def _drawn(power=-1, keep=None, order="cut first", after=False):
    def answer(z, temperature, top_k):
        scores = z * temperature ** power
        k = top_k if keep is None else keep(top_k)
        kept = scores >= np.sort(scores)[-min(k, len(z))]
        return softmax(np.where(kept, scores, -np.inf))
    return answer


def _sorted(z, temperature, top_k):
    return np.sort(_drawn()(z, temperature, top_k))[::-1]


def _unstable(z, temperature, top_k):
    e = np.exp(z / temperature) * (z >= np.sort(z)[-top_k])
    return e / e.sum()


def _bigram(log=np.log2, above=None, below=None, add=True, axis=1, source="train", mean=np.mean,
            swap=False, divide=True, keepdims=True):
    def answer(train, test, V, alpha):
        text = train if source == "train" else test
        n = np.zeros((V, V))
        if add:
            np.add.at(n, (text[:-1], text[1:]), 1)
        else:
            n[text[:-1], text[1:]] += 1
        n = n.T if swap else n
        top = n + (alpha if above is None else above)
        bottom = (n + (alpha if below is None else below)).sum(axis=axis, keepdims=keepdims)
        bottom = bottom if divide else 1
        with np.errstate(all="ignore"):
            return -mean(log((top / bottom)[test[:-1], test[1:]]))
    return answer


def _only_above(floor):
    def answer(train, test, V, alpha):
        n = np.zeros((V, V))
        np.add.at(n, (train[:-1], train[1:]), 1)
        p = (n + alpha) / np.maximum(n.sum(axis=1, keepdims=True), floor)
        return -np.log2(p[test[:-1], test[1:]]).mean()
    return answer


def _unigram(train, test, V, alpha):
    n = np.bincount(train, minlength=V) + alpha
    return -np.log2((n / n.sum())[test[1:]]).mean()


def _count(linear=12, look=2, shift=0, own=1, blocks=True, whole=False, first=None):
    def answer(P, n, C, L, kept):
        def cost(tokens, start=1):
            return sum(linear * C * C + look * C * (tokens if whole else t - 1 + own)
                       for t in range(start, tokens + 1))

        last = P + n - 1 + shift
        if kept:
            total = cost(last) if first is None else cost(last, P + 1)
        else:
            total = sum(cost(m) for m in (range(P, last + 1) if first is None else range(1, n)))
        return total * (L if blocks else 1)
    return answer


def _grams(size, share=True):
    def answer(texts):
        found = []
        for text in texts:
            strings = [text[i:i + size] for i in range(len(text) - size + 1)]
            found.append((len(strings) - len(set(strings))) / (len(strings) if share else 1))
        return int(np.argmax(found))
    return answer


def _start_only(texts):
    return _grams(9)([text[:40] for text in texts])


WRONG = {
    "bits_per_byte": [
        ("bits per token", lambda p, n_bytes: -np.log2(p).mean()),
        ("nats per token", lambda p, n_bytes: -np.log(p).mean()),
        ("those are nats: a bit", lambda p, n_bytes: -np.log(p).sum() / n_bytes),
        ("you multiply by log 2", lambda p, n_bytes: -np.log(p).sum() * np.log(2) / n_bytes),
        ("not averaged", lambda p, n_bytes: -np.log2(p).mean() / n_bytes),
        ("upside down", lambda p, n_bytes: n_bytes / -np.log2(p).sum()),
        ("base 10", lambda p, n_bytes: -np.log10(p).sum() / n_bytes),
        ("whole text", lambda p, n_bytes: -np.log2(p).sum()),
        ("logarithm of the mean", lambda p, n_bytes: -np.log2(p.mean())),
        ("logarithm of the mean", lambda p, n_bytes: -np.log2(p.mean()) * len(p) / n_bytes),
        ("sign", lambda p, n_bytes: np.log2(p).sum() / n_bytes),
        ("perplexity", lambda p, n_bytes: np.exp(-np.log(p).mean())),
        ("perplexity", lambda p, n_bytes: 2 ** (-np.log2(p).sum() / n_bytes)),
        ("too small for a number", lambda p, n_bytes: -np.log2(np.prod(p)) / n_bytes),
        ("too small for a number", lambda p, n_bytes: -np.log(p.prod()) / np.log(2) / n_bytes),
        ("too small for a number", lambda p, n_bytes: np.log2(1 / p.prod()) / n_bytes),
        ("too small for a number", lambda p, n_bytes: -np.log2(p.prod() ** (1 / n_bytes))),
        ("nats per token", lambda p, n_bytes: -sum(np.log(p)) / len(p)),
        ("sign", lambda p, n_bytes: sum(np.log2(p)) / n_bytes),
        ("largest difference", lambda p, n_bytes: -np.log2(p[1:]).sum() / n_bytes),
        ("logarithm of the mean", lambda p, n_bytes: np.log2(len(p) / p.sum())),
    ],
    "drawn_from": [
        ("multiplies", _drawn(1)),
        ("temperature is not used", _drawn(0)),
        ("divides probabilities", lambda z, t, k: softmax(z) / t),
        ("divides probabilities", lambda z, t, k: softmax(z) / t * (z >= np.sort(z)[-k])),
        ("top-k is not used", lambda z, t, k: softmax(z / t)),
        ("sum to 1", lambda z, t, k: softmax(z / t) * (z >= np.sort(z)[-k])),
        ("one too many", lambda z, t, k: _drawn()(z, t, min(k + 1, len(z)))),
        ("sum to 1", lambda z, t, k: np.exp(z / t - z.max() / t) * (z >= np.sort(z)[-k])),
        ("least", lambda z, t, k: softmax(np.where(z >= np.sort(z)[-k], -np.inf, z / t))),
        ("one too few", _drawn(keep=lambda k: k - 1)),
        ("least", lambda z, t, k: softmax(np.where(z <= np.sort(z)[k - 1], z / t, -np.inf))),
        ("first k", lambda z, t, k: softmax(np.where(np.arange(len(z)) < k, z / t, -np.inf))),
        ("minus infinity", lambda z, t, k: softmax(np.where(z >= np.sort(z)[-k], z / t, 0))),
        ("place", _sorted),
        ("exponentials overflow", _unstable),
        ("one is missing", lambda z, t, k: _drawn()(z, t, min(k, len(z) - 1))),
    ],
    "bigram_bits": [
        ("nats", _bigram(np.log)),
        ("per token", _bigram(mean=np.sum)),
        ("first one is not asked", lambda train, test, V, alpha: (
            _bigram(mean=np.sum)(train, test, V, alpha) / len(test))),
        ("sign", lambda *args: -_bigram()(*args)),
        ("pair's probability", _bigram(axis=(0, 1))),
        ("columns", _bigram(axis=0)),
        ("exchanged", _bigram(swap=True)),
        ("scatter-add", _bigram(add=False)),
        ("not below", _bigram(below=0)),
        ("not below", _only_above(1)),
        ("not below", _only_above(1e-12)),
        ("from the test", _bigram(source="test")),
        ("alpha is 1", _bigram(above=1, below=1)),
        ("unigram", _unigram),
        ("infinite", _bigram(above=0)),
        ("not probabilities", _bigram(log=lambda p: np.log2(p), divide=False)),
        ("keepdims", _bigram(keepdims=False)),
        ("not by its mean", lambda train, test, V, alpha: (
            _bigram()(train, test, V, alpha) - np.log2(V))),
        ("mean of the logarithms", lambda *args: _bigram(
            log=lambda p: np.log2(p.mean()), mean=float)(*args)),
    ],
    "multiplications": [
        ("other case", lambda P, n, C, L, kept: _count()(P, n, C, L, not kept)),
        ("look at kept", lambda P, n, C, L, kept: _count()(P, n, C, L, True)),
        ("look at kept", lambda P, n, C, L, kept: _count()(P, n, C, L, False)),
        ("single block", _count(blocks=False)),
        ("goes through nothing", _count(shift=1)),
        ("a token is missing", _count(shift=-1)),
        ("prompt", _count(first="new")),
        ("how many does token number t see", lambda P, n, C, L, kept: L * sum(
            12 * C * C + 2 * C for m in ([P + n - 1] if kept else range(P, P + n))
            for _ in range(m))),
        ("itself, too", _count(own=0)),
        ("not the whole text", _count(whole=True)),
        ("linear layers alone", _count(look=0)),
        ("attention alone", _count(linear=0)),
        ("one for the score", _count(look=1)),
    ],
    "in_circles": [
        ("few letters", lambda texts: int(np.argmin(
            [len(zlib.compress(t.encode())) / len(t) for t in texts]))),
        ("few letters", lambda texts: int(np.argmin([len(set(t)) for t in texts]))),
        ("few letters", _grams(3)),
        ("few letters", _grams(2)),
        ("few letters", lambda texts: int(np.argmin([len(set(t)) / len(t) for t in texts]))
            if min(len(set(t)) for t in texts) < 3 else 0),
        ("long", lambda texts: int(np.argmax([len(t) for t in texts]))),
        ("short", lambda texts: int(np.argmin(
            [len({t[i:i + 14] for i in range(len(t) - 13)}) for t in texts]))),
        ("phrase", lambda texts: int(np.argmax(
            [max(t.count(t[i:i + 6]) if len(set(t)) > 2 else 0 for i in range(len(t) - 6))
             for t in texts]))),
        ("leaves it", _start_only),
        ("index", lambda texts: texts[0]),
        ("index", lambda texts: len(texts)),
    ],
}
