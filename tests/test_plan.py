"""The plan of a run: what it counts, how it adds up, and what a real step then needs.

That its seconds are right is a matter of measurement (``benchmarks/plan.py``): no test here
depends on how fast the machine is.
"""

import tracemalloc

import numpy as np
import pytest

import minifpt
from minifpt import plan, tasks
from minifpt.freeze import FreezeMask
from minifpt.gpt2 import SHAPES

MASKS = ["fpt", "full", "output_only", "ln", "attn,mlp,h.0.*", "input,pos,ln,attn,mlp",
         "tok,pos,input,h.1.*", "output,attn,mlp,input,pos,ln_f.*,h.1.*,h.2.*,h.3.*"]


def config(**kw):
    return minifpt.GPT2Config(**{"n_layer": 4, "n_head": 2, "n_embd": 16, "n_positions": 40,
                                 "vocab_size": 9, "dropout": 0.0, **kw})


def fpt(task, config, mask="fpt"):
    model = minifpt.FPT(minifpt.GPT2(config), task.input_dim, task.output_dim, task.output_tokens)
    model.freeze(FreezeMask.parse(mask))
    return model


@pytest.fixture
def quick(monkeypatch):
    """Three rounds of each measurement and no more."""
    monkeypatch.setattr(plan, "SECONDS", 0.0)


@pytest.mark.parametrize("mask", MASKS)
def test_parameters_are_the_model_s(mask):
    task = tasks.get("bit-memory", strings=2, bits=6, patch=3)
    want = {name: (p.data.shape, p.trainable)
            for name, p in fpt(task, config(), mask).named_parameters()}
    assert plan.parameters(task, config(), FreezeMask.parse(mask)) == want


def test_blocks():
    """What of each is trained, and whether anything below it is."""
    def blocks(mask):
        every = plan.parameters(tasks.get("bit-xor"), config(n_layer=3), FreezeMask.parse(mask))
        return [(sum(flags), below) for flags, below in plan._blocks(every, 3)]
    assert blocks("fpt") == [(4, True)] * 3
    assert blocks("full") == [(12, True)] * 3
    assert blocks("output_only") == [(0, False)] * 3
    assert blocks("input,pos,attn,mlp,h.0.*") == [(0, False), (4, False), (4, True)]
    assert blocks("pos,h.*,input.weight") == [(0, True)] * 3


@pytest.mark.parametrize("mask, kinds, want", [
    ("fpt", 1, (2.0 + 3 * 0.5, 0.25 + 3 * 0.125)),
    # Blocks 0 and 1 run forward only, block 2 is the lowest that learns.
    ("input,pos,attn,mlp,h.0.*,h.1.*", 2, (2.0 + 2 * 0.5 + 1.0, 0.25 + 2 * 0.125 + 0.25))])
def test_how_it_adds_up(monkeypatch, mask, kinds, want):
    """Blocks by their kinds, in proportion to the batch."""
    asked = []

    def measured(model, task, part, test_part, arrange, all_kinds):
        asked.extend((part, test_part, len(all_kinds) - 1))
        # Seconds of a step, of a test, bytes of caches: with one block, then with three more.
        base = np.array([2.0, 0.25, 1000.0])
        each = np.array([0.5, 0.125, 500.0])
        return [base, *(base + 3 * (i + 1) * each for i in range(kinds))], np.array([200., 100.])
    monkeypatch.setattr(plan, "_measure", measured)
    task = tasks.get("bit-xor", n=5)                      # 10 tokens: 51 examples are measured
    made = plan.plan(task, config(), FreezeMask.parse(mask), 102)
    assert asked == [51, 51, kinds] and made.measured == 4
    assert made.step == pytest.approx(2 * want[0]) and made.test == pytest.approx(want[1] / 51)


def test_memory_by_hand(monkeypatch):
    monkeypatch.setattr(plan, "_measure", lambda *a: (
        [np.array([0, 0, 1000.0]), np.array([0, 0, 1600.0])], np.array([200.0, 100.0])))
    task, mask = tasks.get("bit-xor"), FreezeMask.fpt()
    made = plan.plan(task, config(), mask, 4)
    C = 16
    ln, block = 4 * C, 12 * C * C + 13 * C
    trained = 4 * ((1 + 1) * C + 40 * C + 4 * ln + 2 * C + 2 * C + 2)
    weights = 4 * (2 * C + 40 * C + 4 * block + 2 * C + 2 * C + 2)
    assert made.weights == weights
    kept = 1000 + 3 * 600 / 3
    assert made.peak == pytest.approx(plan.PROCESS + weights + plan.HOLES * (
        2 * trained + kept + 200 + trained))


@pytest.mark.parametrize("mask", ["fpt", "full"])
@pytest.mark.parametrize("batch", [4, 200])
def test_memory_of_a_real_step(quick, mask, batch):
    """The peak of a model of eight blocks, predicted from five of them and 64 examples; for
    Adam two numbers more for each that is trained."""
    task, shape = tasks.get("bit-memory", strings=1, bits=20, patch=5), config(n_layer=8,
                                                                            n_embd=128)
    made = plan.plan(task, shape, FreezeMask.parse(mask), batch)
    assert made.measured == 5
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
    predicted = (made.peak - plan.PROCESS - made.weights) / plan.HOLES
    assert predicted == pytest.approx(max(step, test) + 2 * trained, rel=0.2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("n_layer", [1, 2, 3, 9])
def test_every_mask_and_depth(quick, mask, n_layer):
    if any(f"h.{i}" in mask for i in range(n_layer, 4)):
        return
    made = plan.plan(tasks.get("bit-xor", n=2), config(n_layer=n_layer), FreezeMask.parse(mask), 3)
    assert made.step > 0 and made.test > 0 and made.measured == min(n_layer, 5)
    assert made.peak > made.weights > 0


def test_the_whole_model_is_never_there(quick, monkeypatch):
    built = []

    def small(config, seed):
        built.append(config)
        return minifpt.GPT2(config, seed)
    monkeypatch.setattr(plan, "GPT2", small)
    made = plan.plan(tasks.get("bit-xor"), config(n_layer=5000), FreezeMask.fpt(), 4)
    assert built == [config(n_layer=5)] and made.measured == 5 and made.weights > 5000 * 12 * 16**2


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
    monkeypatch.setattr(plan.weights, "folders", lambda: [])
    want = minifpt.GPT2Config(**SHAPES[name], dropout=0.3)
    assert plan.shape_of(name, 0.3) == plan.shape_of(f"random:{name}", 0.3) == want
    assert plan.shape_of("random").n_embd == SHAPES["minigpt"]["n_embd"]


def test_shapes_of_weights(tmp_path):
    minifpt.GPT2(config(dropout=0.1)).save(tmp_path / "t.npz")
    for model in (tmp_path / "t.npz", f"statistics:{tmp_path / 't.npz'}"):
        assert plan.shape_of(str(model), 0.2) == config(dropout=0.2)
    assert plan.shape_of("minigpt-language").n_layer == 6
    assert plan.shape_of("gpt2-xl+attn=random:gpt2-xl+mlp=nope").n_layer == 48


@pytest.mark.parametrize("model, kind, message", [
    ("nope", FileNotFoundError, "no weights 'nope'"),
    ("statistics:nope", FileNotFoundError, "no weights 'nope'"),
    ("random:nope", ValueError, "no shape 'nope', expected one of gpt2, ")])
def test_no_such_model(model, kind, message):
    with pytest.raises(kind, match=f"^[^\n]*{message}[^\n]*$"):
        plan.shape_of(model)


@pytest.mark.parametrize("mask, batch, message", [
    ("fpt", 0, "batch_size is 0"), ("h.7.*", 4, "'h.7.\\*' matches no parameter"),
    ("input,pos,ln,attn,mlp,output", 4, "every parameter is frozen")])
def test_errors(mask, batch, message):
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        plan.plan(tasks.get("bit-xor"), config(), FreezeMask.parse(mask), batch)


def test_too_many_tokens(quick):
    with pytest.raises(ValueError, match="100 tokens, the trunk has 40 positions"):
        plan.plan(tasks.get("bit-xor", n=50), config(), FreezeMask.fpt(), 4)
