"""Short runs of bit XOR for the tests of training and of its files, and what they compare."""

import json

import numpy as np
from conftest import refused

import minifpt
from minifpt.tasks import BitXOR

FILES = ["checkpoint.npz", "config.json", "curves.png", "metrics.csv"]


def trunk(dropout=0.1, dtype=np.float32, seed=0):
    config = minifpt.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16, vocab_size=11,
                                dropout=dropout)
    return minifpt.GPT2(config, seed=seed, dtype=dtype)


def build(task=None, freeze="fpt", seed=0, **kw):
    task = task or BitXOR(n=2)
    model = minifpt.FPT(trunk(seed=seed, **kw), task.input_dim, task.output_dim,
                        task.output_tokens, seed=seed)
    model.freeze(freeze)
    return model


def go(out=None, model=None, task=None, **kw):
    """Train a short run, and return the model and its history."""
    task = task or BitXOR(n=2)
    model = model or build(task)
    options = {"steps": 24, "eval_every": 5, "test_examples": 8, "checkpoint_every": 7} | kw
    return model, minifpt.train(model, task, out=out, progress=False, **options)


def data(model):
    return {n: p.data.copy() for n, p in model.named_parameters()}


def checkpoint(folder):
    """Return a checkpoint's arrays, and its state without the seconds."""
    with np.load(folder / "checkpoint.npz", allow_pickle=False) as file:
        arrays = dict(file)
    state = json.loads(str(arrays.pop("state")))
    for each in (state, *state["history"]):
        each.pop("seconds")
    return arrays, state


def same_checkpoint(a, b):
    (arrays, state), (others, other) = checkpoint(a), checkpoint(b)
    assert state == other
    assert {k: a.dtype for k, a in arrays.items()} == {k: a.dtype for k, a in others.items()}
    np.testing.assert_equal(arrays, others)


def rows(history):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def refuse(out, error, message, **kw):
    """A run into a folder is refused and leaves the folder as it was."""
    before = contents(out)
    with refused(message, error):
        go(out, **kw)
    assert contents(out) == before


class Stop(Exception):
    """Raised to end a run in the middle."""


def at_step(task, step, action):
    """Have the task call ``action()`` before the training batch of that step."""
    batch, sizes = task.batch, []

    def acting(rng, size, split="train"):
        if split == "train" and size == 4:                # a step's batch
            sizes.append(size)
            if len(sizes) == step:
                action()
        return batch(rng, size, split)
    task.batch = acting
    return task


def stop_at(step):
    """Return a task that raises ``Stop`` at that step."""
    def stop():
        raise Stop
    return at_step(BitXOR(n=2), step, stop)


class WithTestSet(BitXOR):
    """Bit XOR with a test set of its own."""

    def test_set(self):
        return self.batch(np.random.default_rng(99), 70, "test")
