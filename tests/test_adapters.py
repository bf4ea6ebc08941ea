"""Adapters: unchanged at the start, right gradients, merged to equal outputs, saved with a run."""

import copy
import json

import numpy as np
import pytest
from conftest import assert_a_mask_only_takes_away, gradients, refused

import minifpt
from minifpt import adapters, cli
from minifpt.gradients import gradcheck

LORA = "lora:rank=3,alpha=2,on=attn.*+mlp.*+output"
TRUNKS = ["random:2x2x8", "random:llama:2x2/1x8"]


def fpt(trunk="random:2x2x8", mask="attn,mlp,ln", dtype=np.float64, dropout=0.0):
    model = minifpt.FPT(minifpt.trunks.get(trunk, dropout=dropout, dtype=dtype), 3, 4, 2)
    model.freeze(minifpt.FreezeMask.parse(mask))
    return model


def batch(B=3, T=5):
    return np.random.default_rng(1).standard_normal((B, T, 3))


def randomised(model, size=0.3):
    rng = np.random.default_rng(5)
    for p in model.parameters():
        p.data += size * rng.standard_normal(p.data.shape)
    return model


@pytest.mark.parametrize("trunk", TRUNKS)
def test_at_the_start_the_model_is_unchanged_and_the_seed_draws_the_rest(trunk):
    model = fpt(trunk)
    before, names = model.predict(batch()), {name for name, _ in model.named_parameters()}
    adapters.adapt(model, LORA, seed=3)
    assert np.array_equal(model.predict(batch()), before)
    drawn = [[p.data for p in adapters.adapt(fpt(trunk), LORA, seed).parameters()
              if p.group == "adapter" and p.data.any()] for seed in (3, 4)]
    ours = [p.data for n, p in model.named_parameters() if n not in names and p.data.any()]
    assert ours and all(map(np.array_equal, ours, drawn[0]))
    assert not any(map(np.array_equal, ours, drawn[1]))


@pytest.mark.parametrize("kind, trunk", [
    (LORA, "random:1x2x8"), (LORA, "random:llama:1x2/1x8"), ("bitfit", "random:1x2x8")])
def test_gradients_are_right(kind, trunk):
    """Those of the model in full by differences, and under each mask those that it leaves."""
    model = randomised(adapters.adapt(fpt(trunk, "full", dropout=0.2), kind))
    report = gradcheck(model, batch(), elementwise=0, directions=1, far=None)
    assert report.max_relative_error <= 1e-6, str(report)
    full = gradients(model, batch())
    for mask in ("attn,mlp,ln", "output_only"):
        model = randomised(adapters.adapt(fpt(trunk, mask, dropout=0.2), kind))
        assert_a_mask_only_takes_away(model, batch(), full)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_merged_weights_equal_the_adapted_outputs(trunk):
    model = randomised(adapters.adapt(fpt(trunk), "lora:rank=2,alpha=6,on=attn.*+mlp.*"))
    want = model.predict(batch())
    adapters.merge(model)
    np.testing.assert_allclose(model.predict(batch()), want, atol=1e-12)
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in fpt(trunk).named_parameters()]


def test_a_low_rank_adapter_adds_alpha_over_rank_times_its_product():
    layer = randomised(adapters.adapt(fpt(), "lora:rank=4,alpha=6,on=output")).output
    hidden = np.random.default_rng(2).standard_normal((3, 8))
    want = hidden @ (layer.weight.data + 6 / 4 * layer.lora_a.data @ layer.lora_b.data)
    np.testing.assert_allclose(layer.forward(hidden)[0], want + layer.bias.data, atol=1e-12)


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_run_of_a_trunk_built_in_code_loads_with_it(tmp_path, is_merged):
    task, trunk = minifpt.tasks.get("bit-xor", n=2), minifpt.trunks.get("random:1x1x8", dropout=0.0)
    model = minifpt.FPT.for_task(task, copy.deepcopy(trunk), adapt="lora:rank=2,on=mlp.*")
    if is_merged:                                         # merged, it is a trunk like any other
        trunk = copy.deepcopy(adapters.merge(randomised(model)).trunk)
    minifpt.train(model, task, steps=2, batch_size=2, out=tmp_path / "run", progress=False)
    with refused("its trunk was built in code: pass it"):
        minifpt.load(tmp_path / "run")
    x, _ = task.batch(np.random.default_rng(0), 3, "test")
    again = minifpt.load(tmp_path / "run", trunk)
    assert np.array_equal(again.predict(x), model.predict(x))


@pytest.mark.parametrize("kind, count", [
    ("lora:rank=3,on=attn.c_attn", 2 * 3 * (8 + 24)), ("lora:rank=1,on=h.1.mlp.c_fc", 8 + 32),
    ("bitfit", 2 * (24 + 8 + 32 + 8 + 2 * 8) + 8)])
def test_the_summary_counts_an_adapter_and_a_mask_freezes_it(kind, count):
    model = adapters.adapt(fpt(mask="attn,mlp,ln,pos"), kind)
    assert model.counts()["adapter"] == (count, count) and "adapter adapters" in model.summary()
    model.freeze(minifpt.FreezeMask.parse("adapter,attn"))
    assert model.counts()["adapter"] == (count, 0)


def test_names_of_columns_leave_low_rank_matrices_alone():
    model = adapters.adapt(fpt(), "lora:rank=6,on=attn.c_attn")
    model.freeze(minifpt.FreezeMask.parse("mlp,*.c_attn.*.queries,*.c_attn.*.keys"))
    columns = {name: p.frozen_columns for name, p in model.named_parameters()}
    assert columns["trunk.h.0.attn.c_attn.weight"] == (slice(0, 8), slice(8, 16))
    assert columns["trunk.h.0.attn.c_attn.lora_a"] == ()


def adapted(kind, trunk="random:2x2x8"):
    model = fpt(trunk)
    try:
        return adapters.adapt(model, kind)
    except ValueError:
        assert not model.recipe.adapt               # minifpt.load would add it
        raise


@pytest.mark.parametrize("call, says", [
    *((lambda text=text: adapted(text), says) for text, says in [
        ("lora:rank=0", "rank"), ("lora:rank=x", "rank"), ("lora:size=3", "'size=3'"),
        ("lore", "lore"), ("lora:on=mlp.x", "attn.c_attn"), ("lora:alpha=-1", "alpha"),
        ("bitfit:x=1", "no options"), ("lora:rank", "rank=..."),
        ("lora:alpha=x", "alpha"), ("lora:on=attn.c_attn+mlp.c_fcc", "on=mlp.c_fcc"),
        ("prefix:tokens=4", "expected one of lora, bitfit"), (3, "expected a text")]),
    (lambda: adapters.adapt(adapted("lora:on=output"), "lora"), "has an adapter"),
    (lambda: adapted("lora", "lstm:1x8"), "on=attn.* names no linear layer"),
    (lambda: adapted("bitfit", "random:llama:1x2x8"), "has none"),
    (lambda: adapters.adapt({}, "lora"), "adapt: the model is"),
    (lambda: adapters.merge({}), "merge: the model is"),
    (lambda: adapters.adapt(minifpt.FPT.for_task("bit-xor", "random:1x1x8"), "lora", -1), "seed"),
    (lambda: adapted(LORA).trunk.save("x.npz"), "save: the model has adapters"),
    (lambda: adapted(LORA).save("folder"), "save: the model has adapters")])
def test_what_is_refused_in_one_line(cwd, call, says):
    with refused() as error:
        call()
    assert says in str(error.value) and not [*cwd.iterdir()]


@pytest.mark.parametrize("kind", [LORA, "bitfit"])
def test_a_run_keeps_its_adapter(cwd, fails, kind):
    line = ["train", "bit-xor", "--model", "random:1x2x8", "--freeze", "attn,mlp,ln", "--out", "r",
            "--checkpoint-every", 3]
    assert cli.main([*line, "--adapt", kind, "--steps", 3]) == 0
    assert json.loads((cwd / "r" / "config.json").read_text())["recipe"]["adapt"] == kind
    names = np.load(cwd / "r" / "checkpoint.npz").files
    assert kind == "bitfit" or any("lora" in name for name in names)
    assert cli.main([*line, "--adapt", kind, "--steps", 4, "--resume"]) == 0
    assert "adapt" in fails(*line, "--steps", 5, "--resume")
    assert cli.main(["convert", "r", "--out", "folder"]) == 0
    minifpt.GPT2.from_pretrained("folder")
