"""Generating and scoring text: with kept keys and values as without."""

import math

import numpy as np
import pytest
from conftest import refused, rng

import minifpt
from minifpt import functional as F
from minifpt.gpt2 import sample

SHAPE = dict(n_layer=2, n_head=2, n_embd=8, n_positions=12, vocab_size=11)


def make(randomise, dtype=np.float64, **changes):
    config = minifpt.GPT2Config(**SHAPE | changes)
    return randomise(minifpt.LanguageModel(config, dtype=dtype))


@pytest.fixture
def model(randomise):
    return make(randomise)


# ---------------------------------------------------------------------------- generate


def uncached(model, ids, n_tokens, temperature=1.0, top_k=None, seed=0, top_p=1.0):
    """As the docstring says, from all logits at each token."""
    text, generator = np.atleast_2d(ids), rng(seed)
    start, N = max(0, text.shape[1] - model.config.n_positions), model.config.n_positions
    for _ in range(n_tokens):
        if text.shape[1] - start > N:
            start = text.shape[1] - max(1, N // 2)
        logits = model.logits(text[:, start:])[:, -1]
        text = np.concatenate([text, sample(logits, temperature, top_k, generator, top_p)[:, None]],
                              1)
    return text.reshape(*np.shape(ids)[:-1], -1)


@pytest.mark.parametrize("ids", [[5], [[1, 2], [3, 4], [5, 6]], list(range(11)) * 2])
@pytest.mark.parametrize("N, how", [
    *((N, dict(temperature=0.5, seed=4)) for N in (1, 3, 12, 64)),
    (12, dict(temperature=0)), (12, dict(seed=3)), (12, dict(temperature=2.0, top_k=3, seed=5)),
    (12, dict(temperature=2.0, top_p=0.4, seed=5))])
def test_generating_equals_scoring_the_whole_text_each_time(randomise, ids, how, N):
    """Also far beyond the trunk's positions."""
    model = make(randomise, n_positions=N)
    got = model.generate(ids, 20, **how)
    np.testing.assert_array_equal(got, uncached(model, ids, 20, **how))
    assert got.shape == (*np.shape(ids)[:-1], np.shape(ids)[-1] + 20)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got[..., :np.shape(ids)[-1]], ids)


def test_generating_follows_the_seed_and_leaves_the_model_as_it_was(model):
    text = model.generate([1], 20, seed=1)
    for ids, seed in ((np.array([1]), 1), ([1], rng(1))):
        np.testing.assert_array_equal(text, model.generate(ids, 20, seed=seed))
    assert (text != model.generate([1], 20, seed=2)).any()
    np.testing.assert_array_equal(model.generate([[4, 2]], 0), [[4, 2]])
    model.freeze(minifpt.FreezeMask.fpt())
    before = [(p.trainable, p.grad) for p in model.parameters()]
    model.generate([1, 2, 3], 15)
    model.perplexity(range(10))
    assert before == [(p.trainable, p.grad) for p in model.parameters()]


@pytest.mark.parametrize("stop, is_end", [
    (lambda text: text[5], lambda new, text: new[-1] == text[5]),
    (lambda text: text[7:10], lambda new, text: [*new[-3:]] == [*text[7:10]]),
    (lambda text: lambda new: len(new) == 8, lambda new, text: len(new) == 8),
    (lambda text: lambda new: np.sum(new) < 0, lambda new, text: False)])
def test_generating_ends_behind_a_token_or_some_in_a_row(model, stop, is_end):
    """The same tokens as without it.  What stands in the prompt does not count, and several texts
    go on until each has had its end."""
    text = model.generate([4, 5, 4], 30, seed=2, temperature=2.0)
    ends = [n for n in range(4, 34) if is_end(text[3:n], text)]
    got = model.generate([4, 5, 4], 30, seed=2, temperature=2.0, stop=stop(text))
    np.testing.assert_array_equal(got, text[:min(ends, default=33)])
    both = model.generate([[4, 5, 4], [1, 2, 3]], 30, seed=2, temperature=2.0)
    ends = [[n for n in range(4, 34) if is_end(row[3:n], text)] for row in both]
    got = model.generate([[4, 5, 4], [1, 2, 3]], 30, seed=2, temperature=2.0, stop=stop(text))
    np.testing.assert_array_equal(got, both[:, :max(min(end, default=33) for end in ends)])


@pytest.mark.parametrize("method, args, message", [
    *[("generate", args, message) for args, message in (
        (([], 3), "at least one"), (([[]], 3), "at least one"), (([[[1]]], 3), "at least one"),
        ((3, 3), "at least one"), (([1.5], 3), "expected integers"),
        (("abc", 3), "expected integers"),
        (([11], 3), "ids run from 11 to 11, the vocabulary from 0 to 10"),
        (([-1], 3), "from -1"), (([1], -1), "n_tokens must be"), (([1], 1.5), "n_tokens must be"),
        (([1], True), "n_tokens must"), (([1], 3, -0.1), "temperature is -0.1"),
        (([1], 3, math.nan), "temperature is nan"), (([1], 3, math.inf), "temperature is inf"),
        (([1], 3, 1.0, 0), "top_k must be"), (([1], 3, 1.0, None, 0, 0.0), "top_p is 0.0"),
        (([1], 3, 1.0, None, 0, 1.5), "top_p is 1.5"), (([1], 3, 1.0, None, -1), "seed must be"),
        *((([1], 3, 1.0, None, 0, None, stop), f"^generate: stop is .*: token ids .*{message}")
          for stop, message in (("x", "expected integers"), (11, "run from 11"),
                                ([], "at least one"))))],
    *[("perplexity", args, message) for args, message in (
        (([1],), "at least 2"), (([[1, 2]],), r"expected \(T,\)"), (([],), "at least one"),
        (([1, 99],), "run from 1 to 99"), (([1, 2], 0), "stride must be"),
        (([1, 2], 13), "stride must be .* at most 12"))]])
def test_wrong_arguments_are_refused(model, method, args, message):
    with refused(message):
        getattr(model, method)(*args)


def test_a_model_that_is_not_causal_has_logits_but_predicts_no_next_token(randomise):
    model = make(randomise, causal=False)
    assert model.logits([[1, 2, 3]]).shape == (1, 3, 11)
    for method, args in (("generate", ([1, 2], 3)), ("perplexity", ([1, 2, 3],))):
        with refused(f"^{method}: the model is not causal"):
            getattr(model, method)(*args)


# ------------------------------------------------------------------------------ sample


@pytest.mark.parametrize("temperature, top_k, top_p, expected", [
    (1, None, 1, [0.1, 0, 0.6, 0.3]), (0.5, None, 1, [1 / 46, 0, 36 / 46, 9 / 46]),
    (1, 2, 1, [0, 0, 2 / 3, 1 / 3]), (1, 9, 1, [0.1, 0, 0.6, 0.3]), (1, 1, 1, [0, 0, 1, 0]),
    (0, None, 1, [0, 0, 1, 0]), (1, None, 0.5, [0, 0, 1, 0]), (1, None, 1e-9, [0, 0, 1, 0]),
    (1, None, 0.7, [0, 0, 2 / 3, 1 / 3]), (1, None, 0.95, [0.1, 0, 0.6, 0.3])])
def test_sample_follows_the_probabilities(temperature, top_k, top_p, expected):
    logits = np.log(np.array([[0.1, 0.0, 0.6, 0.3]]) + 1e-300).repeat(20_000, 0)
    ids = sample(logits, temperature, top_k, rng(), top_p)
    share = np.bincount(ids, minlength=4) / 20_000
    np.testing.assert_allclose(share, expected, atol=0.015)
    assert (share[np.array(expected) == 0] == 0).all()


# -------------------------------------------------------------------------- perplexity


def by_hand(model, ids, stride):
    """The mean of -log p, one token and one window after the other."""
    N, last = model.config.n_positions, len(ids) - 1
    total, scored, start = 0.0, 0, 0
    while scored < last:
        window = np.array(ids[start:start + N + 1])
        logits = model.logits(window[None, :-1])[0].astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        for i, token in enumerate(window[1:]):
            if start + i >= scored:                       # not scored by the window before
                total -= math.log(p[i, token])
                scored += 1
        start += stride
    assert scored == last
    return total / last


@pytest.mark.parametrize("N, stride", [(12, 1), (12, 5), (12, 6), (12, 12), (1, 1)])
def test_perplexity_equals_the_sum_by_hand(randomise, N, stride):
    model = make(randomise, n_positions=N)
    for T in (2, 5, 12, 13, 14, 18, 19, 24, 25, 26, 60):
        ids = rng(T).integers(0, 11, T)
        result, nats = model.perplexity(ids, stride), by_hand(model, ids, stride)
        assert result["tokens"] == T - 1
        assert math.isclose(result["nats_per_token"], nats, rel_tol=1e-12)
        assert math.isclose(result["perplexity"], math.exp(nats), rel_tol=1e-12)
        assert math.isclose(result["bits_per_token"], nats / math.log(2), rel_tol=1e-12)
        if stride == max(1, N // 2):                      # the default
            assert model.perplexity(ids.tolist()) == result
    for p in model.parameters():
        p.data *= 100                                     # sure and wrong
    assert model.perplexity([1, 2, 3, 4])["perplexity"] > 1e9


def test_perplexity_with_more_scores_than_are_made_at_once():
    """The same as of all of them."""
    lm = minifpt.LanguageModel(minifpt.GPT2Config(n_layer=1, n_head=1, n_embd=2, n_positions=64,
                                                  vocab_size=70_000))
    ids = np.random.default_rng(0).integers(0, 70_000, 65)
    want, _ = F.cross_entropy(lm.logits(ids[None, :-1]), ids[None, 1:])
    assert lm.perplexity(ids)["nats_per_token"] == pytest.approx(float(want), rel=1e-6)
