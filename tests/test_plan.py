"""The plan of a run: what it counts, how it adds up, and what a real step then needs.

That its seconds are right is a matter of measurement (``benchmarks/plan.py``): no test here
depends on how fast the machine is.
"""

import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

import minifpt
from minifpt import tasks
from minifpt.experiments import plan
from minifpt.files import weights
from minifpt.freeze import FreezeMask
from minifpt.gpt2 import SHAPES
from minifpt.trunks.names import TrunkSpec

MASKS = ["fpt", "full", "output_only", "ln", "attn,mlp,h.0.*", "input,pos,ln,attn,mlp",
         "pos,input,h.1.*", "output,attn,mlp,input,pos,ln_f.*,h.1.*,h.2.*,h.3.*"]


def config(**kw):
    return minifpt.GPT2Config(**{"n_layer": 4, "n_head": 2, "n_embd": 16, "n_positions": 40,
                                 "vocab_size": 9, "dropout": 0.0, **kw})


@dataclass
class Shape:
    """Instead of a TrunkSpec: a trunk by its config, of which there are no weights."""

    shape: minifpt.GPT2Config

    def config(self, dropout):
        return replace(self.shape, dropout=dropout)


def plan_of(task, config, mask, batch, dropout=0.0):
    return plan.plan(task, Shape(config), FreezeMask.parse(mask), batch, dropout)


def fpt(task, config, mask="fpt", seed=0):
    model = minifpt.FPT(minifpt.GPT2(config, seed), task.input_dim, task.output_dim,
                        task.output_tokens)
    model.freeze(FreezeMask.parse(mask))
    return model


@pytest.fixture
def quick(monkeypatch):
    """Three rounds of each measurement and no more."""
    monkeypatch.setattr(plan, "SECONDS", 0.0)


@pytest.mark.parametrize("mask", MASKS)
def test_the_planned_model_has_shapes_and_no_weights(quick, mask):
    task = tasks.get("bit-memory", strings=2, bits=6, patch=3)
    estimate = plan_of(task, config(), mask, 3)
    want = fpt(task, config(), mask)
    assert [(name, p.data.shape, p.trainable) for name, p in estimate.model.named_parameters()] == [
        (name, p.data.shape, p.trainable) for name, p in want.named_parameters()]
    assert not any(p.data.any() for p in estimate.model.trunk.h[0].mlp.parameters())
    assert estimate.weights == sum(p.data.nbytes for p in want.parameters())


RUNNING_BACK = [("fpt", 4), ("full", 4), ("output_only", 0), ("input,pos,attn,mlp", 4),
                ("input,pos,attn,mlp,h.0.*", 3), ("input,pos,attn,mlp,h.0.*,h.1.*,h.2.*", 1),
                ("input,pos,h.*", 0), ("h.*", 4), ("pos,h.*,input.weight", 4),
                ("input,pos,ln,attn,mlp,ln_f.*", 0), ("input,pos,h.1.*,h.0.*", 2)]


@pytest.mark.parametrize("mask, n", RUNNING_BACK)
def test_blocks_run_back_down_to_the_lowest_that_learns(mask, n):
    """What is counted, and what a model of these blocks then does: it keeps caches for them."""
    task = tasks.get("bit-xor", n=2)
    model = fpt(task, config(), mask)
    assert plan._running_back(model) == n
    logits, cache = model.forward(task.batch(np.random.default_rng(0), 2)[0], train=True,
                                  rng=np.random.default_rng(0))
    trunk = cache["trunk"]
    has_cache = [block is not None for block in trunk["h"]] if trunk else [False] * 4
    assert has_cache == [False] * (4 - n) + [True] * n


@pytest.mark.parametrize("n_layer", [1, 2, 4])
@pytest.mark.parametrize("mask", [*(mask for mask, _ in RUNNING_BACK), *MASKS])
def test_the_topmost_blocks_learn_as_in_the_whole(mask, n_layer):
    """And as many of them run back as there."""
    task = tasks.get("bit-xor", n=2)
    whole = fpt(task, config(), mask)
    model = plan._topmost(task, whole, config(n_layer=n_layer))
    assert len(model.trunk.h) == n_layer
    for block, like in zip(model.trunk.h, whole.trunk.h[-n_layer:], strict=True):
        assert [p.trainable for p in block.parameters()] == [p.trainable for p in like.parameters()]
    assert plan._running_back(model) == min(n_layer, plan._running_back(whole))
    for part, like in ((model.trunk.ln_f, whole.trunk.ln_f), (model.output, whole.output),
                       (model.input, whole.input)):
        assert [p.trainable for p in part.parameters()] == [p.trainable for p in like.parameters()]


@pytest.mark.parametrize("mask, back", [
    ("fpt", 9), ("output_only", 0), ("input,pos,attn,mlp,h.0.*", 8),
    ("input,pos,attn,mlp,h.0.*,h.1.*,h.2.*", 6), ("input,pos,attn,mlp,h.[0-6].*", 2)])
def test_the_plan_adds_up_blocks(monkeypatch, mask, back):
    """Five of nine blocks are measured.  Of the others some run back, and those below run
    forward only, which takes of a step as long as of a test."""
    calls = []

    def measured(models, task, part, test_part):
        calls.extend((part, test_part, [len(model.trunk.h) for model in models]))
        # Seconds of a step, of a test, bytes of caches: with five blocks, then with one.
        one = np.array([2.0, 0.25, 1000.0])
        each = np.array([0.5, 0.125, 500.0])
        return [one + 4 * each, one], np.array([200., 100.])
    monkeypatch.setattr(plan, "_measure", measured)
    task = tasks.get("bit-xor", n=5)                      # 10 tokens: 51 tests are measured
    estimate = plan_of(task, config(n_layer=9), mask, 17)
    assert calls == [17, 51, [5, 1]] and estimate.measured == 5
    more = max(back, 5) - 5                               # of the four others
    assert estimate.step == pytest.approx(2.0 + (4 + more) * 0.5 + (4 - more) * 0.125 * 17 / 51)
    assert estimate.test == pytest.approx((0.25 + 8 * 0.125) / 51)
    # A batch too large to be measured: in proportion.
    assert plan_of(task, config(n_layer=9), mask, 102).step == pytest.approx(
        2 * (2.0 + (4 + more) * 0.5 + (4 - more) * 0.125))


def test_a_trunk_that_is_measured_whole_is_not_extrapolated(monkeypatch):
    """Nothing is added up where no block is left."""
    cost = np.array([3.0, 0.5, 1000.0])
    monkeypatch.setattr(plan, "_measure", lambda models, *a: (
        [cost, cost / 7][:len(models)], np.array([200.0, 100.0])))
    for n_layer in (1, 2, 5):
        estimate = plan_of(tasks.get("bit-xor"), config(n_layer=n_layer),
                           "input,pos,attn,mlp,h.0.*", 4)
        assert estimate.step == 3.0 and estimate.test == 0.5 / 51 and estimate.measured == n_layer


def test_a_disturbed_clock_gives_no_negative_time(monkeypatch):
    """More blocks never take less time than fewer."""
    monkeypatch.setattr(plan, "_measure", lambda models, *a: (
        [np.array([1.0, 0.5, 1600.0]), np.array([9.0, 9.0, 1000.0])], np.array([200.0, 100.0])))
    estimate = plan_of(tasks.get("bit-xor"), config(n_layer=1000), "fpt", 4)
    assert estimate.step == 1.0 and estimate.test == 0.5 / 51


def test_memory_equals_the_sum_by_hand(monkeypatch):
    monkeypatch.setattr(plan, "_measure", lambda *a: (
        [np.array([0, 0, 1600.0]), np.array([0, 0, 1000.0])], np.array([200.0, 100.0])))
    task = tasks.get("bit-xor")
    estimate = plan_of(task, config(n_layer=6), "fpt", 4)
    C = 16
    ln, block = 4 * C, 12 * C * C + 13 * C
    trained = 4 * ((1 + 1) * C + 40 * C + 6 * ln + 2 * C + 2 * C + 2)
    weights = 4 * (2 * C + 40 * C + 6 * block + 2 * C + 2 * C + 2)
    assert estimate.weights == weights
    cached = 1600 + 600 / 4                               # of the sixth block
    assert estimate.peak == pytest.approx(plan.PROCESS + weights + plan.HOLES * (
        2 * trained + cached + 200 + trained))


@pytest.mark.parametrize("mask", ["fpt", "full"])
@pytest.mark.parametrize("batch", [4, 100])
def test_memory_equals_that_of_a_real_step(quick, mask, batch):
    """The peak of a model of eight blocks, predicted from five of them and 64 examples; for
    Adam two numbers more for each that is trained."""
    task, shape = tasks.get("bit-memory", strings=1, bits=20, patch=5), config(n_layer=8,
                                                                            n_embd=64)
    estimate = plan_of(task, shape, mask, batch)
    assert estimate.measured == 5
    model = fpt(task, shape, mask)
    x, y = task.batch(np.random.default_rng(0), batch)
    tracemalloc.start()
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
    model.backward(task.loss(logits, y)[1], cache)
    step = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del logits, cache
    tracemalloc.start()
    model.predict(np.resize(x, (64, *x.shape[1:])))
    test = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    trained = sum(p.data.nbytes for p in model.parameters() if p.trainable)
    predicted = (estimate.peak - plan.PROCESS - estimate.weights) / plan.HOLES
    assert predicted == pytest.approx(max(step, test) + 2 * trained, rel=0.2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("n_layer", [1, 2, 3, 9])
def test_every_mask_and_depth_has_a_plan(quick, mask, n_layer):
    if any(f"h.{i}" in mask for i in range(n_layer, 4)):
        return
    estimate = plan_of(tasks.get("bit-xor", n=2), config(n_layer=n_layer), mask, 3)
    assert estimate.step > 0 and estimate.test > 0 and estimate.measured == min(n_layer, 5)
    assert estimate.peak > estimate.weights > 0


def test_a_plan_never_holds_the_whole_model(quick, monkeypatch):
    """Of hundreds of blocks all but a few are zeros that were never written."""
    built = []

    def recorded(config, seed):
        built.append((config.n_layer, seed))
        return minifpt.GPT2(config, seed)
    monkeypatch.setattr(plan, "GPT2", recorded)
    estimate = plan_of(tasks.get("bit-xor"), config(n_layer=400), "fpt", 4)
    assert built == [(400, None), (5, 0), (1, 0)] and estimate.measured == 5
    assert estimate.weights > 400 * 12 * 16**2 * 4


def test_the_planned_model_has_its_dropout(quick):
    estimate = plan_of(tasks.get("bit-xor", n=2), config(n_layer=2), "fpt", 3, dropout=0.25)
    assert estimate.model.trunk.config.dropout == 0.25


OWN = """
from minifpt import GPT2, GPT2Config

def three(seed=0, dropout=0.0):
    return GPT2(GPT2Config(3, 2, 16, 40, 9, dropout), seed)
"""


@pytest.mark.parametrize("mask", ["fpt", "full", "output_only"])
def test_a_trunk_of_the_user_s_own_is_measured_whole(quick, tmp_path, mask):
    (tmp_path / "mine.py").write_text(OWN)
    spec, task = TrunkSpec.parse(f"{tmp_path / 'mine.py'}:three"), tasks.get("bit-xor", n=2)
    estimate = plan.plan(task, spec, FreezeMask.parse(mask), 3)
    assert estimate.measured == 0 and estimate.step > 0 and estimate.test > 0
    assert estimate.weights == sum(p.data.nbytes for p in fpt(task, config(n_layer=3)).parameters())
    assert estimate.peak > estimate.weights


@pytest.mark.parametrize("task", ["mnist", "bit-xor", "bit-memory"])
def test_examples_need_no_data(task, monkeypatch):
    monkeypatch.setattr(tasks.MNIST, "images", None)
    task = tasks.get(task)
    x, y = plan.examples(task, np.random.default_rng(0), 3)
    assert x.shape == (3, task.tokens, task.input_dim) and x.dtype == np.float32
    loss, dlogits = task.loss(np.zeros((3, task.output_tokens, task.output_dim), np.float32), y)
    assert loss == pytest.approx(np.log(task.classes), rel=1e-6)


# ------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_by_name_need_no_weights(name, monkeypatch):
    monkeypatch.setattr(weights, "folders", lambda: [])
    want = minifpt.GPT2Config(**SHAPES[name], dropout=0.3)
    assert TrunkSpec.parse(name).config(0.3) == want
    assert TrunkSpec.parse(f"random:{name}").config(0.3) == want
    assert TrunkSpec.parse(f"{name}+attn=random:{name}+mlp={name}").config(0.3) == want


@pytest.mark.parametrize("model", ["nope", "statistics:nope", "nope+attn=random",
                                   "random+attn=nope"])
def test_an_unknown_model_is_refused(model):
    with pytest.raises(FileNotFoundError, match="^[^\n]*no weights 'nope'[^\n]*$"):
        plan.plan(tasks.get("bit-xor"), TrunkSpec.parse(model), FreezeMask.fpt(), 4)
