"""The training loop, its history, its checkpoints."""

import csv
import io
import json
import math
import signal
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .huggingface import one_line
from .layers import Layer
from .optim import Adam, clip_grad_norm, cosine
from .weights import DAMAGE, write_beside

COLUMNS = ["step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds"]
TEST_BATCH = 64                                           # examples in one forward pass


class Diverged(ValueError):
    """The loss or a gradient is no longer finite."""


class History(list):
    """The rows of ``metrics.csv`` as dictionaries; ``history["test_loss"]`` is a column."""

    def __getitem__(self, key):
        if isinstance(key, str):
            return np.array([np.nan if row[key] is None else row[key] for row in self])
        return super().__getitem__(key)

    def save(self, path):
        """Write ``metrics.csv``; what was not measured is left empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self)
        write_beside(path, lambda f: f.write(text.getvalue()), "w")

    @classmethod
    def load(cls, path):
        """Read a ``metrics.csv``."""
        with open(path, newline="", encoding="utf-8") as f:
            return cls({k: (int(v) if k == "step" else float(v)) if v else None
                        for k, v in row.items()} for row in csv.DictReader(f))


def train(model, task, steps, batch_size=4, lr=1e-3, seed=0, out=None, *, resume=False,
          schedule="constant", warmup=0, weight_decay=0.0, clip=1.0, eval_every=100,
          test_examples=256, checkpoint_every=500, config=None, progress=True):
    """Train the trainable parameters of a model on a task, by Adam.

    model, task       as in the README: ``model.forward/backward``, ``task.batch/loss``.
    lr, schedule      learning rate, ``"constant"`` or ``"cosine"`` after ``warmup`` steps.
    clip              largest norm of all gradients together.
    eval_every        steps between tests on ``test_examples`` held-out examples.  The last
                      row is tested on all of the task's test set where it has one.
    out               folder for ``config.json``, ``metrics.csv``, ``checkpoint.npz`` and
                      ``curves.png``; ``None`` writes nothing.
    resume            go on from ``out``'s checkpoint, to the same bits as without a stop.
    checkpoint_every  steps between checkpoints.
    config            more to be kept in ``config.json`` (where the trunk came from).

    Returns the :class:`History`.  Ctrl-C ends the run after the step with a checkpoint and
    raises ``KeyboardInterrupt``.  Raises ``ValueError`` when ``out`` holds another run, and
    ``Diverged`` when the loss is no longer finite; the last checkpoint stays.
    """
    if (min(steps, batch_size, eval_every, test_examples, checkpoint_every) < 1
            or not 0 < lr < math.inf):
        raise ValueError("train: steps, batch_size, eval_every, test_examples, "
                         "checkpoint_every and lr must be positive")
    if seed < 0:
        raise ValueError(f"train: seed is {seed}, expected 0 or more")
    if schedule not in ("constant", "cosine"):
        raise ValueError(f"train: schedule is '{schedule}', expected 'constant' or 'cosine'")
    # Missing data, or a task that the model does not fit, show before anything is written.
    task.batch(np.random.default_rng(0), 1, "train")
    x, y = task.batch(np.random.default_rng(0), 1, "test")
    loss, _ = evaluate(model, task, None, 1, (x, y))
    if not (resume or math.isfinite(loss)):
        raise _diverged("the start", "loss", model, x)
    parameters = [p for p in model.parameters() if p.trainable]
    if not parameters:
        raise ValueError("train: every parameter is frozen, there is nothing to train")
    settings = {"task": task.name, "options": task.options, **(config or {}),
                "steps": steps, "batch_size": batch_size, "lr": lr, "seed": seed,
                "schedule": schedule, "warmup": warmup, "weight_decay": weight_decay,
                "clip": clip, "eval_every": eval_every, "test_examples": test_examples}
    optimizer = Adam(parameters, lr, weight_decay=weight_decay)
    run = Run(model, optimizer, np.random.default_rng([seed, 0]))
    out = Path(out) if out is not None else None
    if out is not None:
        _open_folder(out, settings, resume, run)
    elif resume:
        raise ValueError("train: resume needs out, the folder of the run")

    start = time.perf_counter() - run.seconds
    bar = tqdm(total=steps, initial=run.step, desc=task.name, unit="step",
               disable=not progress, dynamic_ncols=True, mininterval=0.3)
    with bar, _interrupts() as interrupted:
        while run.step < steps:
            if schedule == "cosine":
                optimizer.lr = lr * cosine(run.step, steps, warmup)
            elif warmup:
                optimizer.lr = lr * min(1.0, (run.step + 1) / warmup)
            x, y = task.batch(run.rng, batch_size, "train")
            loss, accuracy = step(model, task, optimizer, x, y, clip, run.rng, run.step)
            run.step += 1
            run.sums += loss, accuracy, 1
            bar.update()
            stop = bool(interrupted)
            if run.step % eval_every == 0 or run.step == steps:
                row = dict.fromkeys(COLUMNS)
                row["step"] = run.step
                row["train_loss"], row["train_accuracy"] = map(float, run.sums[:2] / run.sums[2])
                run.sums[:] = 0
                everything = task.test_set() if run.step == steps else None
                row["test_loss"], row["test_accuracy"] = evaluate(
                    model, task, np.random.default_rng([seed, 1, run.step]), test_examples,
                    everything, progress)
                if not math.isfinite(row["test_loss"]):
                    raise _diverged(f"step {run.step}", "test loss", model, x)
                row["seconds"] = round(time.perf_counter() - start, 3)
                run.history.append(row)
                bar.set_postfix_str(f"loss {row['train_loss']:.4f}, "
                                    f"test accuracy {100 * row['test_accuracy']:.1f} %")
                if out is not None:
                    run.history.save(out / "metrics.csv")
            if out is not None and (stop or run.step % checkpoint_every == 0
                                    or run.step == steps):
                if not math.isfinite(evaluate(model, task, None, 1, (x, y))[0]):
                    raise _diverged(f"step {run.step}", "loss", model, x)
                run.seconds = time.perf_counter() - start
                run.save(out / "checkpoint.npz")
            if stop and run.step < steps:
                raise KeyboardInterrupt(f"stopped at step {run.step}" + (
                    f", go on from {out}" if out is not None else ""))
    if out is not None:
        from .plots import curves
        curves({task.name: run.history}, out / "curves.png")
    return run.history


def step(model, task, optimizer, x, y, clip, rng, number=0):
    """One step of training: forward, backward, clip, Adam.  Returns (loss, accuracy)."""
    for p in optimizer.parameters:
        p.grad = None
    logits, cache = model.forward(x, train=True, rng=rng)
    loss, dlogits = task.loss(logits, y)
    if math.isfinite(loss):
        model.backward(dlogits, cache)
        if math.isfinite(clip_grad_norm(optimizer.parameters, clip)):
            optimizer.step()
            return loss, task.accuracy(logits, y)
    raise _diverged(f"step {number + 1}", "gradient" if math.isfinite(loss) else "loss", model, x)


def _diverged(when, what, model, x):
    return Diverged(f"{when}: the {what} is not finite, first in {first_nonfinite(model, x)}; "
                    "try a smaller learning rate")


def evaluate(model, task, rng, examples, everything=None, progress=False):
    """(loss, accuracy) on ``examples`` held-out examples drawn from ``rng``, or on all of
    ``everything = (x, y)``, without dropout."""
    x, y = everything if everything is not None else task.batch(rng, examples, "test")
    total = np.zeros(2)
    starts = range(0, len(x), TEST_BATCH)
    with model.all_frozen():
        for i in tqdm(starts, desc="test", leave=False, delay=2, disable=not progress):
            xi, yi = x[i:i + TEST_BATCH], y[i:i + TEST_BATCH]
            logits, _ = model.forward(xi)
            total += np.multiply((task.loss(logits, yi)[0], task.accuracy(logits, yi)), len(xi))
    return tuple(map(float, total / len(x)))


def first_nonfinite(model, x):
    """The name of the first parameter, else of the first layer's output, that holds an
    infinity or a NaN for this input, without dropout; else of the last parameter, the first
    on the way back, with such a gradient."""
    for name, p in model.named_parameters():
        if not np.isfinite(p.data).all():
            return name
    found = []

    def watch(layer, prefix):
        for name, child in layer.children():
            if isinstance(child, Layer):
                watch(child, f"{prefix}{name}.")
        forward = layer.forward

        def watched(*args, **kwargs):
            y, cache = forward(*args, **kwargs)
            if not np.isfinite(y).all():
                found.append(prefix.rstrip(".") or "the model's output")
            return y, cache
        layer.forward = watched                           # on this object, over the class's

    def unwatch(layer):
        del layer.forward
        for _, child in layer.children():
            if isinstance(child, Layer):
                unwatch(child)

    watch(model, "")
    try:
        with np.errstate(all="ignore"), model.all_frozen():
            model.forward(x)
    finally:
        unwatch(model)
    if found:
        return found[0]
    grads = [name for name, p in model.named_parameters()
             if p.grad is not None and not np.isfinite(p.grad).all()]
    return f"the gradient of {grads[-1]}" if grads else "the backward pass"


class Run:
    """All that a run needs to go on: parameters, Adam's moments, generator, history."""

    def __init__(self, model, optimizer, rng):
        self.model, self.optimizer, self.rng = model, optimizer, rng
        self.history = History()
        self.step, self.seconds, self.sums = 0, 0.0, np.zeros(3)

    def named(self):
        return [(n, p) for n, p in self.model.named_parameters() if p.trainable]

    def fingerprint(self):
        """CRC-32 of all frozen parameters: they are not in the checkpoint."""
        crc = 0
        for _, p in self.model.named_parameters():
            if not p.trainable:
                crc = zlib.crc32(np.ascontiguousarray(p.data), crc)
        return crc

    def save(self, path):
        """Write the checkpoint, in one rename."""
        state = {"step": self.step, "seconds": self.seconds, "sums": self.sums.tolist(),
                 "t": self.optimizer.t, "frozen": self.fingerprint(),
                 "rng": self.rng.bit_generator.state, "history": list(self.history)}
        arrays = {"state": np.array(json.dumps(state))}
        for (name, p), m, v in zip(self.named(), self.optimizer.m, self.optimizer.v, strict=True):
            arrays[name] = p.data
            if m is not None:
                arrays[f"m/{name}"], arrays[f"v/{name}"] = m, v
        write_beside(path, lambda f: np.savez(f, **arrays))

    def load(self, path):
        """Read a checkpoint of the same model; nothing changes unless all of it fits."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            state = json.loads(str(arrays["state"]))
            frozen = state["frozen"]
        except (*DAMAGE, AttributeError) as e:
            raise ValueError(f"{path}: not a checkpoint, or damaged ({one_line(e)})") from None
        if frozen != self.fingerprint():
            raise ValueError(f"{path}: was written over other frozen weights")
        for name, p in self.named():
            for key in (name, f"m/{name}", f"v/{name}"):
                a = arrays.get(key, p.data if key != name else None)
                if a is None or (a.shape, a.dtype) != (p.data.shape, p.data.dtype):
                    raise ValueError(f"{path}: '{key}' has {_form(a)}, "
                                     f"the model wants {_form(p.data)}")
        for i, (name, p) in enumerate(self.named()):
            p.data[...] = arrays[name]
            self.optimizer.m[i] = arrays.get(f"m/{name}")
            self.optimizer.v[i] = arrays.get(f"v/{name}")
        self.optimizer.t = state["t"]
        self.rng.bit_generator.state = state["rng"]
        self.history[:] = state["history"]
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums[:] = state["sums"]


def _form(a):
    return "no array" if a is None else f"shape {a.shape} and dtype {a.dtype}"


def _open_folder(out, settings, resume, run):
    """Start a new run's folder, or load the one that is to go on."""
    known, checkpoint = out / "config.json", out / "checkpoint.npz"
    if not resume:
        if known.exists():
            raise ValueError(f"{out} already holds a run: resume it, or choose another folder")
        write_beside(known, lambda f: json.dump(settings, f, indent=1), "w")
        return
    if not known.exists():
        raise FileNotFoundError(f"{out}: there is no run to resume")
    try:
        before = dict(json.loads(known.read_text(encoding="utf-8")))
        before["steps"] = int(before["steps"])
    except (ValueError, TypeError, KeyError) as e:
        raise ValueError(f"{known}: not a run's settings, or damaged ({one_line(e)})") from None
    for key, value in json.loads(json.dumps(settings)).items():
        longer = key == "steps" and settings["schedule"] == "constant" and value > before[key]
        if before.get(key) != value and not longer:
            raise ValueError(f"{out}: the run has {key} = {before.get(key)}, not {value}")
    if checkpoint.exists():                               # else it was killed before the first
        run.load(checkpoint)
    write_beside(known, lambda f: json.dump(settings, f, indent=1), "w")


@contextmanager
def _interrupts():
    """Within, the first Ctrl-C only fills the list that this gives, so that a step is
    finished and saved; the second one interrupts at once."""
    caught = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handler(signum, frame):
        if caught:
            raise KeyboardInterrupt
        caught.append(signum)
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
