"""A run that is interrupted or killed: at any moment, and it ends with the same bits."""

import functools
import random
import signal
import sys

import numpy as np
import pytest
from conftest import child
from short_runs import WithTestSet, at_step, checkpoint, go, rows, same_checkpoint, trunk

import minifpt
from minifpt import cli
from minifpt.tasks import BitXOR

STEPS = 200


def command(weight_file, out, checkpoint_every, *more):
    return ["train", "bit-xor", "--n", "2", "--model", str(weight_file), "--steps", str(STEPS),
            "--batch-size", "8", "--out", str(out), "--checkpoint-every", str(checkpoint_every),
            *more]


# The program of a process that is killed at a random moment after a file of the run has been
# written: the command line, and a timer.  It counts the process's own time, so that a busy machine
# does not delay it.
HIT = """
import signal, sys
from minifpt import cli
from minifpt.files import runs
first, seconds = sys.argv[1], float(sys.argv[2])
write_beside = runs.write_beside
def writing(path, *args):
    write_beside(path, *args)
    if path.name == first:
        runs.write_beside = write_beside
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
runs.write_beside = writing
sys.exit(cli.main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a whole run, beside the weights that it began with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    trunk().save(folder / "tiny.npz")
    assert cli.main(command(folder / "tiny.npz", folder / "run", 50)) == 0
    return folder / "run"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX's timers")
@pytest.mark.parametrize("first, seed", [
    ("checkpoint.npz", 0), *(pytest.param("checkpoint.npz", seed, marks=pytest.mark.slow)
                             for seed in range(1, 20)),
    pytest.param("config.json", 2, marks=pytest.mark.slow)])
def test_killed_run_ends_with_the_same_bits(undisturbed, tmp_path, first, seed):
    out, weight_file = tmp_path / "run", undisturbed.parent / "tiny.npz"
    every = 7 if first == "checkpoint.npz" else 10 * STEPS
    seconds = str(random.Random(seed).uniform(0.001, 0.05))
    child(sys.executable, "-c", HIT, first, seconds, *command(weight_file, out, every),
          status=-signal.SIGVTALRM)
    assert (out / "checkpoint.npz").exists() == (first == "checkpoint.npz")
    assert cli.main(command(weight_file, out, 50, "--resume")) == 0
    same_checkpoint(out, undisturbed)
    histories = [minifpt.History.load(f / "metrics.csv") for f in (out, undisturbed)]
    assert rows(histories[0]) == rows(histories[1])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_step_and_writes_a_checkpoint(tmp_path, signum):
    """The step is finished, the checkpoint written, the old handler restored."""
    before = signal.getsignal(signum)
    task = at_step(BitXOR(n=2), 10, lambda: signal.raise_signal(signum))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 10") as error:
        go(tmp_path / "b", task=task)
    assert (error.value.step, error.value.folder) == (10, tmp_path / "b")
    assert signal.getsignal(signum) is before
    assert checkpoint(tmp_path / "b")[1]["step"] == 10
    go(tmp_path / "b", resume=True)
    go(tmp_path / "a")
    same_checkpoint(tmp_path / "a", tmp_path / "b")


def test_a_second_interrupt_waits_for_the_checkpoint(tmp_path, monkeypatch):
    savez, ctrl_c = np.savez, functools.partial(signal.raise_signal, signal.SIGINT)
    monkeypatch.setattr(np, "savez", lambda *args, **arrays: (ctrl_c(), savez(*args, **arrays)))
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "b", task=at_step(BitXOR(n=2), 10, ctrl_c), checkpoint_every=99)
    assert checkpoint(tmp_path / "b")[1]["step"] == 10


@pytest.mark.parametrize("step", [10, 24])                # a test on the way, and the last one
def test_a_signal_ends_a_test_and_the_run_goes_on_with_it(tmp_path, step):
    task, batches = WithTestSet(n=2), []

    def accuracy(logits, y):
        batches.append(len(y))
        if len(y) == 64 and batches.count(64) == -(-step // 5):
            signal.raise_signal(signal.SIGTERM)
        return WithTestSet.accuracy(task, logits, y)
    task.accuracy = accuracy
    with pytest.raises(KeyboardInterrupt, match=f"stopped at step {step}, go on from"):
        go(tmp_path / "b", task=task, test_examples=70)
    _, state = checkpoint(tmp_path / "b")
    assert state["step"] == step and state["history"][-1]["step"] < step
    assert batches.count(6) == batches.count(64) - 1      # its second batch was not run
    losses = {"a": [], "b": []}
    for folder, resume in (("b", True), ("a", False)):
        go(tmp_path / folder, task=WithTestSet(n=2), test_examples=70, resume=resume,
           callback=lambda run, pairs=losses[folder]: pairs.append((run.loss, run.accuracy)))
    assert losses["b"] == losses["a"][step - 1:]          # also of the step whose test was ended
    same_checkpoint(tmp_path / "a", tmp_path / "b")
