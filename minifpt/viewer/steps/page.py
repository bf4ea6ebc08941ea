"""One training step to step through, forward and backward, in one HTML file.

    minifpt.steps(model, task).save("step.html")

Everything in it comes from a :class:`minifpt.trace` of :func:`minifpt.training.step`.
"""

import base64
import copy
import html
import inspect
import re
from unittest.mock import patch

import numpy as np

from ... import training
from ...checks import whole
from ...files import outputs
from ...fpt import FPT
from ...gradients.diagnosis import rms
from ...machine import single_threaded_blas
from ...optim import Adam, clip_grad_norm
from ...tasks import optional
from ...tasks.base import dry_run
from ...tracing import trace
from ...trunks import TrunkSpec, config_for
from .. import encoded, fill, read, to_json
from . import differences as compared
from .frames import MIN_TOKENS, TOKENS, Frames, Store, axes_of_weight

MAX_PARAMETERS = 20_000_000
MAX_WORK = 2e9                                            # parameters x tokens of the batch
CLIP = 1.0                                                # largest norm of all gradients
# How much of an axis a file holds, by its name.  Examples and tokens are cut further where the
# arrays would be larger than ROOM.
CUT = {"head": 8, "class": 24, "symbol": 24, "choice": 24}
CHANNELS = "channel of the head", "channel", "in", "out"
# (examples, tokens, channels): the first that has room.
TIGHTER = ((4, 32, 400), (4, 32, 24), (2, 32, 24), (1, 32, 24), (1, 16, 24),
           (1, MIN_TOKENS, 24))
ROOM = 1_250_000                                          # bytes, a third more as text
PAGE = ("steps/page.html", "steps/page.css", "common.js", "steps/page.js", "steps/ribbon.js",
        "steps/frames.js", "steps/after.js", "steps/ends.js")


class Steps:
    """A training step to step through, which a notebook shows; ``data`` holds it as plain JSON."""

    def __init__(self, data):
        self.data = data

    def html(self):
        """Return the page as text, with data, style and scripts, and a list of all operations for
        a browser without scripts."""
        rows = (f"<li>{'back: ' * s['back']}{html.escape(s['name'])}" + "".join(
            f", {html.escape(p['name'])} {self.data['arrays'][p['array']]['shape']}"
            for p in s["out"] if "array" in p) + "</li>" for s in self.data["steps"])
        page, style, *scripts = PAGE
        return fill(page, {"TITLE": html.escape(self.data["title"]), "STYLE": read(style),
                           "LIST": f"<ol>{''.join(rows)}</ol>", "DATA": to_json(self.data),
                           "SCRIPT": "\n".join(map(read, scripts))})

    def save(self, path, force=False):
        """Write the HTML file, in one rename; return its size in bytes.  Raises ``ValueError``
        where there is a file, unless ``force`` replaces it."""
        return outputs.write_text(path, self.html(), force)

    def array(self, number):
        """Return an array of the file, by its number; lesson 24 draws one."""
        a = self.data["arrays"][number]
        return np.frombuffer(base64.b64decode(a["data"]), a["dtype"]).reshape(a["shown"])

    def _repr_html_(self):
        return (f'<iframe srcdoc="{html.escape(self.html())}" width="100%" height="820" '
                'style="border:0" title="One training step"></iframe>')


@single_threaded_blas
def steps(model, task, *, batch_size=None, lr=None, seed=0, trunk="", differences=60,
          progress=True):
    """Take one step of training and return it to step through: a :class:`Steps`.

    model, task      as for :func:`minifpt.train`; the model stays unchanged.
    batch_size, lr   ``None`` takes the task's default.
    trunk            the trunk's name on the page.
    differences      number of entries of the parameters' gradients, the largest of each first, to
                     compare with finite differences in float64.

    The numbers are those of ``minifpt.train`` with the same seed, but for the dropout of a batch
    that runs in parts there (see ``parallel``).  The page also shows the results
    of five wrong backward passes.  Raises ``ValueError`` for a model that is too large.
    """
    dry_run(model, task)
    settings = training.Settings.for_task(task, batch_size=batch_size, lr=lr)
    count = whole("steps", "differences", differences, 0)
    check(model, task, settings.batch_size)
    model, rng = copy.deepcopy(model), np.random.default_rng([whole("steps", "seed", seed, 0), 0])
    optimizer = Adam([p for p in model.parameters() if p.trainable],
                     settings.lr * settings.factor(0))
    x, y = task.batch(rng, settings.batch_size, "train")
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    loss_before, _ = training.evaluate(model, task, x, y)
    fast = task.loss(model.forward(x, train=True, rng=copy.deepcopy(rng))[0], y)[0]
    norms, T = [], x.shape[1]

    def clip(parameters, most):
        norms.append(clip_grad_norm(parameters, most))
        return norms[-1]
    with trace(model) as t, patch.object(training, "clip_grad_norm", clip):
        loss, accuracy = training.step(model, task, optimizer, x, y, CLIP, copy.deepcopy(rng))
    after = {name: p.data.copy() for name, p in model.named_parameters()}
    loss_after, _ = training.evaluate(model, task, x, y)
    for name, p in model.named_parameters():              # the trace holds these very arrays
        p.data[...] = before[name]
    data = {
        "title": f"One training step: {task.name}", "task": task.name, "about": about(task),
        "trunk": re.sub(r".*[/\\]", "", trunk),          # without a folder of the user's
        "loss": loss, "fast": fast, "accuracy": accuracy,
        **tokens_of(task, x[:TIGHTER[0][0]]), "tokens": int(T), "batch": len(x),
        "lr": optimizer.lr, "counts": model.counts(T), "losses": [loss_before, loss_after]}
    for examples, tokens, channels in TIGHTER:
        store = Store(CUT | dict.fromkeys(TOKENS, tokens) | dict.fromkeys(CHANNELS, channels)
                      | {"example": examples}, T)
        frames = Frames(t, store, model)
        others = {"x": store.add(x, ("example", "token", "channel")[:x.ndim]),
                  "y": store.add(y, ("example", "token", "choice", "axis")[:y.ndim]),
                  "adam": adam(model, optimizer, store, before, after, norms[0]),
                  "unseen": frames.unread()}
        if store.bytes <= ROOM:
            break
    contents = {"steps": frames.steps, "sources": frames.sources(), "runs": frames.runs(), **others}
    rows, unchecked = [], ""
    try:
        rows = compared.differences(t, model, task, x, y, rng, count, progress)
    except ValueError as e:
        unchecked = str(e)
    return Steps(data | contents | {
        "arrays": store.arrays, "differences": rows, "unchecked": unchecked,
        "breaks": compared.breaks(t, model, task, x, y, rng, rows)})


def of_task(task, model, *, freeze="fpt", dropout=None, adapt=None, seed=0, **options):
    """Do as :func:`steps` for the first step of ``minifpt train``; ``model`` is a name as
    ``--model`` takes it, and ``dropout=None`` takes the task's default."""
    spec = TrunkSpec.parse(model)
    if config := config_for(spec):                        # too large a one is not even made
        check_size(8 * config.n_layer * config.n_embd ** 2)
    fpt = FPT.for_task(task, spec, freeze, seed, dropout, adapt)
    return steps(fpt, task, seed=seed, trunk=spec.text, **options)


def check(model, task, batch_size):
    """Raise ``ValueError`` for a model that cannot be stepped through."""
    n = sum(p.data.size for p in model.parameters())
    if not any(p.trainable for p in model.parameters()):
        raise ValueError("steps: every parameter is frozen, there is nothing to train")
    check_size(n)
    if n * batch_size * task.tokens > MAX_WORK:
        raise ValueError(f"steps: {batch_size} examples of {task.tokens} tokens are too many for a "
                         f"model of {n:,} parameters: choose a smaller batch, at most "
                         f"{max(1, int(MAX_WORK / n / task.tokens))}, or a smaller trunk")


def check_size(n):
    """Raise ``ValueError`` for a model with too many parameters."""
    if n > MAX_PARAMETERS:
        raise ValueError(f"steps: the model has {n:,} parameters, at most {MAX_PARAMETERS:,} can "
                         "be stepped through: choose minigpt-language, or random:2x4x128")


def tokens_of(task, x):
    """Return the names of the tokens, or their text in each example, and the examples' pictures."""
    names = optional(task, "token_names")() or []
    texts = [] if names else [*filter(None, map(optional(task, "tokens_as_text"), x))]
    images = optional(task, "as_images")(x)
    if images is not None:
        images = np.asarray(images, np.float64) - np.min(images)
        pixels = np.round(255 * images / max(images.max(), 1e-9)).astype(np.uint8)
        images = {"shape": list(pixels.shape), "data": encoded(pixels)}
    return {"names": names, "texts": texts, "images": images}


def about(task):
    """Return the first paragraph of a task's docstring as plain text, "" without a docstring."""
    text = (inspect.getdoc(type(task)) or "").split("\n\n")[0]
    return " ".join(re.sub(r":\w+:|`", "", text).split())


def adam(model, optimizer, store, before, after, norm):
    """Return what Adam did to each parameter, and its settings."""
    at, rows = {id(p): i for i, p in enumerate(optimizer.parameters)}, []
    for name, p in model.named_parameters():
        row = {"name": name, "group": p.group, "trained": p.trainable, "shape": list(p.data.shape),
               "moved": rms(after[name] - before[name]),
               "changed": int((after[name] != before[name]).sum())}
        i = at.get(id(p))
        if i is not None and p.grad is not None:
            row |= {key: store.add(a, axes_of_weight(None, a)) for key, a in (
                ("before", before[name]), ("grad", p.grad), ("m", optimizer.m[i]),
                ("v", optimizer.v[i]), ("after", after[name]))}
        rows.append(row)
    return {"rows": rows, "norm": norm, "clip": CLIP, "factor": CLIP / max(norm, CLIP),
            "t": optimizer.t, "betas": list(optimizer.betas), "eps": optimizer.eps}
