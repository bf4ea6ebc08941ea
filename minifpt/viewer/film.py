"""Continue the training after the step and record pictures of attention, loss and accuracy."""

import numpy as np

from .. import training
from ..functional import softmax
from ..progress import progress_bar
from ..tracing import trace
from . import encoded

HEADS, TOKENS = 8, 32                                     # of an attention map
SOLVED = 0.98                                             # accuracy at which the film ends
MOST = 40                                                 # pictures of a film without a length


def film(run, task, every, frames, x, y, before, loss, number, progress):
    """Train on and return a picture after each ``every`` steps, as plain JSON.

    With ``frames=None`` the film runs until the task is solved or the run's steps are over; each
    time that it has more than ``MOST`` pictures, every second one is dropped.
    """
    if not every:
        return None
    after = {name: p.data.copy() for name, p in run.model.named_parameters()}
    restore(run.model, before)
    pictures, losses = [picture(run, task, x, y, 0)], [loss]
    restore(run.model, after)
    length = every * frames if frames else max(every, run.settings["steps"] - run.step)
    for n in progress_bar(range(1, length + 1), desc="film", unit="step", progress=progress,
                          delay=1, leave=False):
        if n > 1:
            run.optimizer.lr = training.learning_rate(run.settings, min(
                run.step, run.settings["steps"] - 1))
            inputs = task.batch(run.rng, run.settings["batch_size"], "train")
            losses.append(training.step(run.model, task, run.optimizer, *inputs,
                                        run.settings["clip"], run.rng)[0])
            run.step += 1
        if n % every == 0:
            pictures.append(picture(run, task, x, y, n))
            if not frames and pictures[-1]["accuracy"] >= SOLVED:
                break
            if not frames and len(pictures) > MOST:
                pictures, every = pictures[::2], 2 * every
    return {"every": every, "first": number, "losses": losses, "frames": pictures,
            "layers": pictures[0].pop("layers"), "tokens": int(x.shape[1])}


def restore(model, data):
    """Copy ``data`` back into each parameter, in place."""
    for name, p in model.named_parameters():
        p.data[...] = data[name]


def picture(run, task, x, y, n):
    """Return attention and the right answers' probabilities on an example, and test accuracy."""
    test = task.batch(np.random.default_rng([run.settings["seed"], 1]), 64, "test")
    _, accuracy = training.evaluate(run.model, task, *test)
    with run.model.all_frozen(), trace(run.model) as t:
        task.loss(run.model.forward(x)[0], y)
    shot = {"step": n, "accuracy": accuracy, "right": []} | (
        {} if n else {"layers": list(t.attention)})
    for s in t.steps:
        if s.op == "cross_entropy" and not s.backward:
            p, _ = softmax(s.inputs["logits"])
            p = np.take_along_axis(p, s.inputs["targets"][..., None], -1)
            shot["right"] = [round(float(v), 4) for v in p.ravel()[-TOKENS:]]
    maps = [a[0, :HEADS, -TOKENS:, -TOKENS:] for a in t.attention.values()]
    shot["maps"] = [{"shape": list(a.shape), "data": encoded(np.round(255 * a).astype(np.uint8))}
                    for a in maps]
    return shot
