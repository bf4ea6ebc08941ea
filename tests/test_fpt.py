"""The Frozen Pretrained Transformer: its gradients, and the work that freezing saves."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import refused, rng

import minifpt
from minifpt import layers
from minifpt.fpt import orthogonal
from minifpt.gpt2 import SHAPES
from minifpt.gradients import gradcheck


def build(dtype=np.float64, input_dim=5, output_tokens=1, seed=0, dropout=0.2, **kw):
    config = minifpt.GPT2Config(**{"n_layer": 2, "n_head": 2, "n_embd": 6, "n_positions": 7,
                                   "vocab_size": 9, "dropout": dropout, **kw})
    return minifpt.FPT(minifpt.GPT2(config, seed=seed, dtype=dtype), input_dim, 3,
                       output_tokens, seed)


def batch(ids=False, B=2, T=5, dtype=np.float64):
    return rng(1).integers(0, 5, (B, T)) if ids else rng(1).standard_normal((B, T, 5)).astype(dtype)


def backward_once(model, x, seed=2):
    model.zero_grad()
    logits, cache = model.forward(x, True, rng(seed))
    assert model.backward(np.cos(logits), cache) is None
    return logits, cache


def test_output_only_keeps_only_what_the_output_reads(arrays_in):
    """No activation and no dropout mask of the trunk outlives the forward pass."""
    model = build(output_tokens=2)
    model.freeze(minifpt.FreezeMask.output_only())
    _, cache = model.forward(batch(), True, rng())
    assert sum(a.size for a in arrays_in(cache)) <= 2 * 2 * 6 + 6 * 3


def test_ids_are_one_hot_vectors():
    model, ids = build(), batch(ids=True)
    logits, _ = backward_once(model, ids)
    grads = [p.grad for p in model.parameters()]
    one_hot, _ = backward_once(model, np.eye(5)[ids])
    np.testing.assert_allclose(logits, one_hot)
    for p, grad in zip(model.parameters(), grads, strict=True):
        np.testing.assert_allclose(p.grad, grad, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_last_tokens_are_read(k):
    model, x = build(output_tokens=k), batch()
    hidden, _ = model.trunk.forward(x @ model.input.weight.data + model.input.bias.data)
    want = hidden[:, 5 - k:] @ model.output.weight.data + model.output.bias.data
    np.testing.assert_allclose(model.forward(x)[0], want)


@pytest.mark.parametrize("other", [np.float32, np.float64, np.int64, np.float16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inputs_and_gradients_take_the_models_dtype(dtype, other):
    trunk = minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8, 7, dropout=0.0), dtype=dtype)
    for model, x in ((minifpt.FPT(trunk, 3, 2), np.ones((2, 3, 3), other)),
                     (minifpt.FPT(trunk, 3, 2), np.ones((2, 3), int)),
                     (minifpt.LanguageModel(trunk), np.ones((2, 3), int)),
                     (trunk, np.ones((2, 3, 4), other))):
        if x.dtype == np.int64 and x.ndim > 2:            # ids have two axes
            continue
        model.zero_grad()
        y, cache = model.forward(x)
        model.backward(np.ones(y.shape, other), cache)
        arrays = [y, *(p.grad for p in model.parameters() if p.grad is not None)]
        assert len(arrays) > 1 and {a.dtype for a in arrays} == {np.dtype(dtype)}


def test_a_seed_draws_the_same_weights_in_every_version():
    """As in the paper: input orthogonal with gain 1.41, output uniform within 1 / sqrt(C)."""
    model, draws = build(np.float32, seed=0), rng([0, 0xF47])
    np.testing.assert_array_equal(model.input.weight.data,
                                  orthogonal(draws, 5, 6, 1.41).astype(np.float32))
    assert not model.input.bias.data.any() and all(p.trainable for p in model.parameters())
    for p in model.output.parameters():
        want = draws.uniform(-6**-0.5, 6**-0.5, p.data.shape)
        np.testing.assert_allclose(p.data, want, rtol=1e-6)
    again = minifpt.FPT(model.trunk, 5, 3)                # seed 0 is the default
    np.testing.assert_array_equal(again.input.weight.data, model.input.weight.data)
    assert again.output_tokens == 1


@pytest.mark.parametrize("n_in, n_out", [(3, 8), (8, 3), (5, 5)])
def test_orthogonal_gives_orthogonal_rows_or_columns(n_in, n_out):
    w = orthogonal(rng(), n_in, n_out, gain=2.0)
    assert w.shape == (n_in, n_out)
    gram = w @ w.T if n_in < n_out else w.T @ w
    np.testing.assert_allclose(gram, 4 * np.eye(min(n_in, n_out)), atol=1e-12)
    draws = rng().standard_normal((max(n_in, n_out), min(n_in, n_out)))
    r = (w if n_in >= n_out else w.T).T @ draws           # triangular, with a positive diagonal
    np.testing.assert_allclose(np.tril(r, -1), 0, atol=1e-12)
    assert (np.diag(r) > 0).all()


class Mixer(layers.Layer):
    """A user's trunk with only the required members: each token reads those before it."""

    def __init__(self, n_embd, dtype):
        self.config, self.dtype = SimpleNamespace(n_embd=n_embd), np.dtype(dtype)
        self.scale = layers.Parameter(np.linspace(1, 2, n_embd).astype(dtype), "attn")

    def forward(self, x, train=False, rng=None):
        total = x.cumsum(axis=1)
        return total * self.scale.data, total

    def backward(self, dy, cache):
        self.scale.add_grad((dy * cache).sum(axis=(0, 1)))
        return (dy * self.scale.data)[:, ::-1].cumsum(axis=1)[:, ::-1]


@pytest.mark.parametrize("ids, tokens", [(False, 1), (True, 2), (False, 5)])
def test_a_trunk_of_ones_own(ids, tokens, randomise):
    """FPT picks the last tokens itself if the trunk has no such keyword."""
    model = randomise(minifpt.FPT(Mixer(6, np.float64), 5, 3, tokens))
    assert model.forward(batch(ids))[0].shape == (2, tokens, 3)
    names = {"input.weight", "input.bias", "trunk.scale", "output.weight", "output.bias"}
    for mask, frozen in (("full", set()), ("attn", {"trunk.scale"})):
        model.freeze(mask)
        report = gradcheck(model, batch(ids), elementwise=6, directions=2)
        assert report and set(report.errors) == names - frozen, str(report)
    assert model.counts()["attn"] == (6, 0)


def test_backward_is_not_called_without_a_cache():
    """A cache of None means that nothing learns: backward is not called."""
    class Frozen(Mixer):
        def forward(self, x, train=False, rng=None):
            return super().forward(x)[0], None

        def backward(self, dy, cache):
            raise AssertionError("called")
    model = minifpt.FPT(Frozen(6, np.float64), 5, 3)
    backward_once(model, batch())
    assert [n for n, p in model.named_parameters() if p.grad is not None] == [
        "output.weight", "output.bias"]


class Noting(Mixer):
    """A trunk that notes the keywords that it gets."""

    def note(self, x, **keywords):
        self.keywords = keywords
        return super().forward(x[:, -keywords.get("last", len(x[0])):])


@pytest.mark.parametrize("kind", [
    type("NeedDx", (Noting,), {"forward": lambda self, x, train=False, rng=None, need_dx=None:
                               self.note(x, need_dx=need_dx)}),
    type("Last", (Noting,), {"forward": lambda self, x, train, rng, *, last:
                             self.note(x, last=last)}),
    type("Both", (Noting,), {"forward": lambda self, x, train, rng, last, need_dx:
                             self.note(x, need_dx=need_dx, last=last)})])
def test_optional_keywords_of_a_trunk_are_passed_if_its_signature_has_them(kind):
    model = minifpt.FPT(kind(6, np.float64), 5, 3, 2)
    for mask, need_dx in (("full", True), ("input", False)):
        model.freeze(mask)
        assert model.forward(batch())[0].shape == (2, 2, 3)
        expected = {"need_dx": need_dx, "last": 2}
        assert model.trunk.keywords.items() <= expected.items() and model.trunk.keywords
    assert {*model.trunk.keywords} == {*model.trunk_options}


def members(*names):
    """An object that has these members of a trunk and no others."""
    return SimpleNamespace(**dict.fromkeys(names, SimpleNamespace(n_embd=4)))


def changed(**members):
    """A good trunk with other members."""
    trunk = Mixer(6, np.float64)
    vars(trunk).update(members)
    return trunk


@pytest.mark.parametrize("trunk, message", [
    *[(wrong, "it has no config, dtype") for wrong in (
        Mixer, minifpt.GPT2, layers.Linear(2, 2), "minigpt-language", minifpt.GPT2Config(1, 1, 4),
        build())],
    (None, "it has no config, dtype, forward, backward, named_parameters"),
    (minifpt.LanguageModel(minifpt.trunks.get("random:1x1x4")), "it is a language model, expected"),
    (layers.Layer(), "it has no config, dtype, forward, backward"),
    (members("config", "dtype", "forward", "backward"), "it has no named_parameters"),
    (members("config", "dtype", "forward", "named_parameters"), "it has no backward"),
    (members("config", "forward", "backward", "named_parameters"), "it has no dtype"),
    (type("Ready", (), {"config": SimpleNamespace(n_embd=2), "dtype": np.dtype(float)} | {
        name: len for name in ("forward", "backward", "named_parameters")}),
     "it has no config.n_embd"),
    *[(changed(config=config), "it has no config.n_embd") for config in (None, {"n_embd": 4})],
    *[(changed(config=SimpleNamespace(n_embd=n)), f"config.n_embd is {n!r}, expected a whole numb")
      for n in ("4", 2.0, 0)],
    (changed(dtype="f4"), "dtype is 'f4', expected np.float32 or np.float64"),
    (changed(dtype=int), "dtype is <class 'int'>, expected np.float32"),
    (changed(forward=lambda x: x), "forward: too many positional arguments"),
    (changed(backward=lambda dy: dy), "backward: too many positional arguments"),
    *[(changed(named_parameters=lambda found=found: found),
       "named_parameters must give pairs \\(name, Parameter\\)")
      for p in [layers.Parameter(np.ones(2), "ln")]
      for found in ([("w", np.ones(2))], [["w", p]], {"w": p}, [p])]])
def test_an_object_that_is_no_trunk_is_refused(trunk, message):
    with refused(f"^FPT: <class [^\n]* is not a trunk: {message}"):
        minifpt.FPT(trunk, 2, 2)


def test_a_model_for_a_task_has_its_dropout_or_the_one_asked_for():
    task = minifpt.tasks.get("bit-xor", n=5)
    for dropout, expected in ((None, minifpt.tasks.defaults_of(task)["dropout"]), (0.35, 0.35),
                              (0.0, 0.0)):
        model = minifpt.FPT.for_task(task, "random:1x1x8", dropout=dropout)
        assert model.trunk.config.dropout == model.recipe.dropout == expected


def returning(change):
    """Pass three tokens through an FPT whose trunk returns ``change(hidden, cache)``."""
    trunk = minifpt.GPT2(minifpt.GPT2Config(1, 1, 4, 8))
    right = trunk.forward
    trunk.forward = lambda x, train=False, rng=None: change(*right(x, train, rng))
    minifpt.FPT(trunk, 3, 2, 2).forward(np.ones((1, 3, 3)))


def through(trunk_backward):
    """Go back through an FPT whose trunk's backward pass is this function."""
    model = build()
    logits, cache = model.forward(batch())
    model.trunk.backward = trunk_backward
    model.backward(logits, cache)


@pytest.mark.parametrize("call, message", [
    *[(lambda x=x: build(output_tokens=2).forward(x), message) for x, message in (
        (np.ones((2, 5)), r"\(2, 5\), expected \(B, T, 5\)"),
        (np.ones((2, 5, 4)), r"\(2, 5, 4\), expected \(B, T, 5\)"),
        (np.ones((2, 5, 5), int), r"\(2, 5, 5\), expected \(B, T\), as integers are ids"),
        (np.ones((2, 1, 5)), "1 tokens, expected at least 2"),
        (np.ones((2, 8, 5)), "8 tokens, the trunk has 7 positions"),
        (np.full((2, 3), 5), "expected 0 to 4"))],
    *[(lambda change=change: returning(change), "^FPT: the trunk's forward must return a pair: "
       r"hidden, of shape \(1, 3, 4\) and dtype float32, and its cache; got an? \w+")
      for change in (
        lambda y, c: y, lambda y, c: [y, c], lambda y, c: (y,), lambda y, c: (y, c, None),
        lambda y, c: (y[:, -1], c), lambda y, c: (y[:, :1], c), lambda y, c: (y[:, :, 1:], c),
        lambda y, c: (y * 1j, c), lambda y, c: (y.astype(np.float64), c))],
    *[(lambda f=f: through(f), r"^FPT: the trunk's backward must return .* an array \(B, T, 6\)")
      for f in (lambda dy, cache: None, lambda dy, cache: dy[0], lambda dy, cache: dy[:, :, 1:])],
    (lambda: build().forward([[0.5]]), "FPT: x is a list"),
    (lambda: build().forward(batch(), train=True, rng=0), "rng is 0: pass rng=np.random.default_"),
    (lambda: build().backward(np.ones((2, 1)), build().forward(batch())[1]), "the gradient is"),
    (lambda: build().backward(np.ones((2, 1)), []), "FPT: the cache is .*that forward returned"),
    (lambda: minifpt.FPT(build().trunk, 0, 2), "FPT: input_dim must be a whole number, at least 1"),
    (lambda: minifpt.FPT(build().trunk, 1, 2, seed=-1), "FPT: seed must be a whole number"),
    (lambda: build().freeze({"attn": True}), "expected a FreezeMask, or its text"),
    (lambda: minifpt.FPT.for_task(5), "the task is 5, expected a task or its name"),
    (lambda: build().counts(-1), "tokens must be a whole number, at least 1, got -1")])
def test_wrong_arguments_are_refused(call, message):
    with refused(message):
        call()


MODELS = {
    "fpt": lambda: (build(np.float32), batch(dtype=np.float32)),
    "lm": lambda: (minifpt.LanguageModel(minifpt.GPT2Config(1, 1, 4, 8, 3)), np.zeros((2, 5), int)),
    **{name: lambda name=name: (minifpt.trunks.get(name), np.ones((2, 5, 4), np.float32))
       for name in ("random:1x1x4", "lstm:1x4", "random:llama:1x1x4")}}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_takes_no_other_gradient_than_its_output_has(kind):
    model, x = MODELS[kind]()
    y, cache = model.forward(x)
    for dy in (y[:1], y[:, :, :-1], np.concatenate([y, y]), y.swapaxes(0, 2), y[0],
               y.astype(complex), y.astype(str), [*y], None):
        with refused("expected numbers of the shape of forward's output"):
            model.backward(dy, cache)
    model.backward(y, cache)


# ------------------------------------------------------------------ counts and summary


@pytest.mark.parametrize("shape, paper", [("gpt2", 106), ("gpt2-medium", 190),
                                          ("gpt2-large", 300)])
def test_the_paper_s_counts(shape, paper):
    """Table 6 counts a token of 16 numbers, 64 positions, the blocks' layer norms and ten output
    columns.  The last layer norm and both biases are trained, too."""
    C, n_layer = SHAPES[shape]["n_embd"], SHAPES[shape]["n_layer"]
    config = minifpt.GPT2Config(**SHAPES[shape] | {"n_layer": 1, "vocab_size": 1})
    model = minifpt.FPT(minifpt.GPT2(config, seed=None), 16, 10)
    model.freeze(minifpt.FreezeMask.fpt())
    counts = model.counts(tokens=64)
    theirs = C * (16 + 64 + 4 * n_layer + 10)
    assert round(theirs / 1000) == paper
    assert sum(t for _, t in counts.values()) + 4 * C * (n_layer - 1) == theirs + 3 * C + 10
    assert counts["ln"] == (6 * C,) * 2 and counts["output"] == (10 * C + 10,) * 2
    assert counts["pos"] == (64 * C,) * 2 and counts["input"] == (17 * C,) * 2
    assert counts["attn"] == (4 * C * C + 4 * C, 0) and counts["mlp"] == (8 * C * C + 5 * C, 0)


def test_counts_and_summary_are_of_each_group():
    """Without ``tokens`` all positions count.  A group may be frozen in part."""
    model = build()
    assert model.counts()["pos"] == model.counts(7)["pos"] == model.counts(99)["pos"] == (42, 42)
    total = sum(p.data.size for p in model.parameters())
    assert sum(n for n, _ in model.counts().values()) == total
    model.freeze(minifpt.FreezeMask.fpt())
    lines = model.summary(tokens=5).splitlines()
    assert [[line.split()[0], *line.split()[-2:]] for line in lines[1:-1]] == [
        ["input", "36", "36"], ["pos", "30", "30"], ["ln", "60", "60"], ["attn", "336", "frozen"],
        ["mlp", "636", "frozen"], ["output", "21", "21"], ["total", "1,119", "147"]]
    assert lines[-1] == "13.14 % of the parameters are trained"
    assert len({len(line) for line in lines[:-1]}) == 1   # columns end below each other
    model.freeze("attn,mlp,h.1.ln_1.*")
    assert model.counts()["ln"] == (60, 48)
    assert "       60           48" in model.summary()


@pytest.mark.parametrize("mask", ["fpt", "attn,mlp,h.1-2.ln_*", "mlp,*.queries.1,*.bias.*",
                                  "only:h.1-2.ln_1.*,output,*.weight.keys,*.keys.1"])
def test_the_summary_names_what_is_trained_of_a_group(mask):
    """In the notation of masks: a mask of these names trains the same."""
    model, other = (minifpt.FPT.for_task("bit-xor", "random:4x2x8", mask) for _ in range(2))
    names, parts = [], re.sub(r"\n {8}(?!trained)", " ", model.summary())
    for line, below in itertools.pairwise([*parts.splitlines()[1:-2], ""]):
        if below.startswith("        trained: "):
            names += below.removeprefix("        trained: ").split(", ")
        elif not line.startswith(" ") and not line.endswith("frozen"):
            names.append(line.split()[0])
    other.freeze("full")
    other.freeze(f"only:{','.join(names)}")
    assert [p.trained_size() for p in other.parameters()] == [
        p.trained_size() for p in model.parameters()]
    assert {*names} >= ({"h.1-2.ln_1.weight"} if "only:" in mask else {"input", "output"})
    assert ("ln" in names) is (mask in ("fpt", "mlp,*.queries.1,*.bias.*"))


def test_dropout_after_the_input_layer():
    """It has the probability of the trunk's config and acts in training only."""
    model, x, inputs = build(dropout=0.5), batch(B=20, T=7), []
    forward = model.trunk.forward
    model.trunk.forward = lambda x, *args, **kw: inputs.append(x) or forward(x, *args, **kw)
    model.forward(x, train=True, rng=rng())
    model.forward(x)
    dropped, whole = inputs
    np.testing.assert_array_equal(whole, model.input.forward(x)[0])
    assert 0.4 < (dropped == 0).mean() < 0.6
    np.testing.assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0])
