"""The plan of a run: what it measures, and what a real step then needs.

That its seconds are right is a matter of measurement (``benchmarks/plan.py``): no test here
depends on how fast the machine is.
"""

import tracemalloc

import numpy as np
import pytest

import minifpt
from minifpt import cli, tasks
from minifpt.experiments import plan


def plan_of(task, model, mask="fpt", batch=3, **options):
    return plan.plan(task, model, mask, batch, **options)


@pytest.mark.parametrize("model, mask", [
    *(("random:4x2x16", mask) for mask in ("fpt", "full", "output_only", "ln", "attn,mlp,h.0.*")),
    ("lstm:2x16", "full"), ("random:llama:1x2x16", "attn,mlp,h.0.*")])
def test_the_planned_model_is_that_of_a_run(model, mask):
    task = tasks.get("bit-memory", strings=2, bits=6, patch=3)
    estimate, run = plan_of(task, model, mask), minifpt.FPT.for_task(task, model, mask)
    assert [(name, p.data.shape, p.trainable) for name, p in estimate.model.named_parameters()] == [
        (name, p.data.shape, p.trainable) for name, p in run.named_parameters()]
    assert estimate.weights == sum(p.data.nbytes for p in run.parameters()) < estimate.peak
    assert estimate.step > 0 and estimate.test > 0


def test_a_plan_has_positions_for_a_long_task_and_its_dropout():
    estimate = plan_of(tasks.get("bit-xor", n=150), "minigpt-tiny", dropout=0.25)
    assert len(estimate.model.trunk.wpe.weight.data) == 300
    assert estimate.model.trunk.config.dropout == 0.25


@pytest.mark.parametrize("mask", ["fpt", "full"])
def test_memory_is_that_of_weights_and_of_a_step_with_adams_arrays(mask):
    task, name = tasks.get("bit-memory", strings=1, bits=20, patch=5), "random:8x2x64"
    estimate, model = plan_of(task, name, mask, 100), minifpt.FPT.for_task(task, name, mask)
    x, y = task.batch(np.random.default_rng(0), 100)
    tracemalloc.start()
    logits, cache = model.forward(x, train=True, rng=np.random.default_rng(0))
    model.backward(task.loss(logits, y)[1], cache)
    step = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    trained = sum(p.data.nbytes for p in model.parameters() if p.trainable)
    expected = plan.PROCESS + estimate.weights + step + 2 * trained
    assert estimate.peak == pytest.approx(expected, rel=0.1)    # Adam joins small ones


def test_a_trunk_that_memory_does_not_hold_is_refused_at_once(capsys):
    for command in ("train", "plan", "summary"):
        with pytest.raises(SystemExit) as error:
            cli.main([command, "bit-xor", "--model", "random:9999x64x9984"])
        assert error.value.code == 2
        line = capsys.readouterr().err
        assert "the weights of random:9999x64x9984 take 47,842 GB" in line and line.count("\n") == 1
