"""One training step to step through, forward and backward, in one HTML file.

    minifpt.steps(model, task).save("step.html")

Everything in it comes from a :class:`minifpt.trace` of :func:`minifpt.training.step`.
"""

import base64
import copy
import html
import inspect
import json
import re
from importlib.resources import files

import numpy as np

from .. import training
from ..checks import whole
from ..files import outputs
from ..files.runs import Run
from ..fpt import FPT
from ..functional import softmax
from ..gpt2 import GPT2Config
from ..optim import Adam, clip_grad_norm
from ..progress import progress_bar
from ..tasks import defaults_of
from ..tracing import swapped, trace
from ..trunks.names import TrunkSpec
from . import differences, formulas
from .frames import Store, Telling, fold_of

LARGEST = 20_000_000                                      # parameters
WORK = 2e9                                                # parameters x tokens of the batch
# How much of an axis a file holds, by its name.  Examples and tokens are cut further where the
# arrays would be larger than ROOM.
CUT = {"head": 8, "channel of the head": 8, "channel": 24, "in": 24, "out": 24, "class": 24,
       "symbol": 24, "choice": 24}
TIGHTER = (4, 32), (2, 32), (1, 32), (1, 16), (1, 8)
SURE = 8                                                  # tokens and rows that every file shows
ROOM = 1_050_000                                          # bytes, a third more as text
FLOATS = "value", "numerical", "nudge", "scale", "noise"    # of a difference
PAGE = "steps.html", "steps.css", "steps.js", "steps_frames.js", "steps_ends.js"
KIND = "steps"                                            # of the page
PICTURES = 32                                             # tokens of an attention map in the film


class Steps:
    """A training step that can be looked at: ``data`` is all of it, as plain JSON.

    In a notebook it shows itself.  ``save(path)`` writes the HTML file, ``still(path)`` a picture
    of its frames, PNG or SVG.
    """

    def __init__(self, data):
        self.data = data

    def html(self):
        """The page as text: data, style and script in one."""
        page, style, *scripts = ((files(__package__) / name).read_text(encoding="utf-8")
                                 for name in PAGE)
        data = json.dumps(self.data, separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")              # no "</script>", and no "<!-- <script>"
        for mark, text in (("TITLE", html.escape(self.data["title"])), ("LIST", self._list()),
                           ("STYLE", style), ("SCRIPT", "\n".join(scripts)), ("DATA", data)):
            page = page.replace(f"<!--{mark}-->", text)
        return page

    def _list(self):
        """Every operation in a line, for where scripts do not run."""
        rows = (f"<li>{'back: ' * s['back']}{html.escape(s['name'])}" + "".join(
            f", {html.escape(p['name'])} {self.data['arrays'][p['array']]['shape']}"
            for p in s["out"] if "array" in p) + "</li>" for s in self.data["steps"])
        return f"<ol>{''.join(rows)}</ol>"

    def save(self, path):
        """Write the HTML file, in one rename; returns its size in bytes."""
        return outputs.write_text(path, KIND, self.html())

    def still(self, path):
        """Write a filmstrip of the frames as a picture, ``.png`` or ``.svg``, and a film that is
        there beside it; returns the paths."""
        from .still import still
        return still(self.data, path)

    def figure(self, *names):
        """The filmstrip as a Matplotlib figure, for a notebook: of the operations with these
        names, by default one of each kind."""
        from .still import draw
        return draw(self.data, names)

    def film(self, layer=0):
        """Attention while the model is trained on, as a Matplotlib figure; for ``every`` > 0."""
        from .still import film
        return film(self.data, layer)

    def _repr_html_(self):
        return (f'<iframe srcdoc="{html.escape(self.html())}" width="100%" height="820" '
                'style="border:0" title="One training step"></iframe>')

    def differences(self):
        """{step, name, at, value, numerical, nudge, scale, noise, error} of each entry that has a
        finite difference."""
        packed = self.data["differences"]
        floats = np.frombuffer(base64.b64decode(packed["floats"])).reshape(-1, len(FLOATS))
        rows = [{"step": i, "name": name, "at": tuple(at)} | dict(zip(FLOATS, row, strict=True))
                for i, name, at, row in zip(packed["step"], packed["name"], packed["at"],
                                            floats.tolist(), strict=True)]
        return [row | {"error": differences.relative(row["value"], row["numerical"], row["scale"],
                                                     row["noise"])} for row in rows]

    def array(self, number):
        """An array of the file, by its number."""
        a = self.data["arrays"][number]
        return np.frombuffer(base64.b64decode(a["data"]), a["dtype"]).reshape(a["shown"])


def steps(model, task, *, batch_size=None, lr=None, seed=0, trunk="", every=0, frames=24,
          numerical=True, progress=True):
    """One step of training to step through: a :class:`Steps`.

    model, task      as for :func:`minifpt.train`; the model stays as it is.
    batch_size, lr   the task's own where they are not given.
    trunk            what to call the trunk.
    every, frames    keep ``frames`` pictures of the training that follows, one every so many
                     steps; 0 keeps none.
    numerical        False leaves out the differences and wrong passes, which take seconds.

    The numbers are those of ``minifpt.train`` with the same seed, as a trace sees them.  Besides
    it holds differences of the loss in float64, for some entries of each gradient, and what five
    wrong backward passes would have given.  Raises ``ValueError`` for a model that is too large.
    """
    training.first_look(model, task)
    options = defaults_of(task)
    options |= {k: v for k, v in (("batch_size", batch_size), ("lr", lr)) if v is not None}
    settings = {key: options[key] for key in ("steps", "batch_size", "lr", "schedule", "warmup")}
    settings["batch_size"] = whole("steps", "batch_size", settings["batch_size"])
    settings |= {"seed": whole("steps", "seed", seed, 0), "clip": 1.0}
    model = copy.deepcopy(model)
    trained = [p for p in model.parameters() if p.trainable]
    run = Run(model, Adam(trained, settings["lr"]), np.random.default_rng([seed, 0]), settings)
    return of_run(run, task, trunk=trunk, every=every, frames=frames, numerical=numerical,
                  progress=progress)


def of_task(task, model, *, freeze="fpt", dropout=None, seed=0, **options):
    """As :func:`steps`, of the first step of ``minifpt train``; ``model`` is what ``--model`` takes
    and ``dropout`` the task's own where it is not given."""
    spec = TrunkSpec.parse(model)
    check_config(spec.config())
    fpt = FPT.for_task(task, spec, freeze, seed, dropout)
    return steps(fpt, task, seed=seed, trunk=spec.text, **options)


def of_run(run, task, *, trunk="", every=0, frames=24, numerical=True, progress=True):
    """As :func:`steps`, of the next step of a ``Run``, which is taken."""
    every, frames = whole("steps", "every", every, 0), whole("steps", "frames", frames)
    model, settings = run.model, run.settings
    check(run, task)
    for _, p in model.named_parameters():
        p.grad = None
    run.optimizer.lr = training.learning_rate(settings, run.step)
    run.optimizer.weight_decay = settings.get("weight_decay", 0.0)
    x, y = task.batch(run.rng, settings["batch_size"], "train")
    rng, double = copy.deepcopy(run.rng), differences.in_float64(model)
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    loss_before, _ = training.evaluate(model, task, x, y)
    fast = task.loss(model.forward(x, train=True, rng=copy.deepcopy(rng))[0], y)[0]
    norms = []

    def clip(parameters, most):
        norms.append(clip_grad_norm(parameters, most))
        return norms[-1]
    with trace(model) as t, swapped(vars(training), "clip_grad_norm", clip):
        loss, accuracy = training.step(model, task, run.optimizer, x, y, settings["clip"],
                                       run.rng, run.step)
    after = {name: p.data.copy() for name, p in model.named_parameters()}
    loss_after, _ = training.evaluate(model, task, x, y)
    restore(model, before)                                # the trace holds these very arrays
    data = {
        "title": f"One training step: {task.name}", "task": task.name, "about": about(task),
        "trunk": re.sub(r".*[/\\]", "", trunk),          # without a folder of the user's
        "number": run.step + 1, "loss": loss, "fast": fast, "accuracy": accuracy,
        "names": task.token_names() if hasattr(task, "token_names") and x.shape[1] <= 32 else [],
        "tokens": int(x.shape[1]), "batch": len(x), "lr": run.optimizer.lr,
        "counts": counts(model, x.shape[1]), "losses": [loss_before, loss_after]}
    found = (checked(t, double, task, x, y, rng, progress) if numerical
             else left_out("nobody asked for them"))
    for examples, tokens in TIGHTER:
        store = Store(CUT | dict.fromkeys(("token", "query", "key", "position"), tokens)
                      | {"example": examples})
        told = Telling(t, store, model)
        frames_of = {"steps": told.steps, "sources": told.sources, "runs": told.runs,
                     "x": store.add(x, ("example", "token", "channel")[:x.ndim]),
                     "y": store.add(y, ("example", "token", "choice", "axis")[:y.ndim]),
                     "adam": adam(run, store, before, after, norms[0]), "unseen": told.unseen()}
        if store.bytes <= ROOM:
            break
    data |= frames_of | found | {"arrays": store.arrays}
    restore(model, after)
    run.step += 1
    data["film"] = film(run, task, every, frames, x[:1], y[:1], before, data, progress)
    return Steps(data)


def check(run, task):
    """Raise a ``ValueError`` for what cannot be stepped through."""
    n = sum(p.data.size for p in run.model.parameters())
    if not any(p.trainable for p in run.model.parameters()):
        raise ValueError("steps: every parameter is frozen, there is nothing to train")
    check_size(n)
    batch = run.settings["batch_size"]
    if n * batch * task.tokens > WORK:
        raise ValueError(f"steps: {batch} examples of {task.tokens} tokens are too many for a "
                         f"model of {n:,} parameters: choose a smaller batch, at most "
                         f"{max(1, int(WORK / n / task.tokens))}, or a smaller trunk")


def check_size(n):
    """Raise a ``ValueError`` for a model of too many parameters."""
    if n > LARGEST:
        raise ValueError(f"steps: the model has {n:,} parameters, at most {LARGEST:,} can be "
                         "stepped through: choose minigpt-language, or random:2x4x128")


def check_config(config):
    """The same before a GPT-2 of that config is made."""
    if isinstance(config, GPT2Config):
        C = config.n_embd
        check_size(config.n_layer * (12 * C * C + 13 * C) + (config.n_positions + 2) * C)


def about(task):
    """The first paragraph of a task's docstring as plain text; empty where it has none."""
    text = (inspect.getdoc(type(task)) or "").split("\n\n")[0]
    return " ".join(re.sub(r":\w+:|`", "", text).split())


def restore(model, data):
    """Put each parameter's numbers back, in place."""
    for name, p in model.named_parameters():
        p.data[...] = data[name]


def counts(model, tokens):
    """{group: [parameters, trained]}; of the positions only those that are used."""
    if hasattr(model, "counts"):
        return {group: list(n) for group, n in model.counts(tokens).items()}
    found = {}
    for _, p in model.named_parameters():
        total, trained = found.get(p.group, (0, 0))
        found[p.group] = [total + p.data.size, trained + p.data.size * p.trainable]
    return found


# ------------------------------------------------------------------ differences and breaks


def checked(t, double, task, x, y, rng, progress):
    """Differences of the loss for some entries of each gradient, and what each of the ``BREAKS``
    gives there.  ``{"unchecked": why}`` where the model does not run in float64."""
    frozen = copy.deepcopy(double)
    try:
        right = traced(double, task, x, y, rng)
        if [s.name for s in right.steps] != [s.name for s in t.steps]:
            raise ValueError("it runs other operations in float64")
        work = x.shape[1] * len(x) * sum(p.data.size for p in double.parameters())
        entries = 4 if work < 2e8 else 2 if work < 4e8 else 1
        own = {id(p.data) for _, p in double.named_parameters()}
        blocks = list(dict.fromkeys(fold_of(s.layer) for s in right.steps))
        blocks = {*blocks[:2], blocks[-1]} if work > 4e8 else {*blocks}   # the ends will do
        asked, values = [], {}
        forward = [s for s in right.steps if not s.backward]
        for i, step in enumerate(right.steps):
            if (step.backward and step.partner is not None and fold_of(step.layer) in blocks
                    and not (step.op == "log_sum_exp" and step.inside)):    # its dy is no loss's
                n = forward.index(step.partner)
                for name, grad in gradients_of(step).items():
                    if grad is not None:
                        values[i, name] = grad
                        every = work < 1e8 and id(step.partner.inputs.get(name)) in own
                        asked.append((i, n, name, grad, shown_places(step, grad, x.shape[1])
                                      if every else places(grad, entries)))
        with differences.Nudged(frozen, task, x, y, rng) as nudged:
            if len(nudged.calls) != len(forward):
                raise ValueError("it runs other operations without gradients")
            found = differences.measure(nudged, list(as_inputs(asked, right.steps)),
                                        progress)
    except (ValueError, TypeError, AttributeError) as e:
        return left_out(f"this model does not run in float64 ({' '.join(str(e).split())})")
    flat = [(i, name, at) for i, _, name, _, ats in asked for at in ats]
    sizes = {key: differences.size(grad) for key, grad in values.items()}
    rows = [{"step": i, "name": name, "at": at, "value": float(values[i, name][at]),
             "numerical": d.numerical, "nudge": d.nudge, "scale": sizes[i, name], "noise": d.noise}
            for (i, name, at), d in zip(flat, found, strict=True)]
    return {"differences": packed(rows),
            "breaks": [tried(it, double, task, x, y, rng, rows)
                       for it in differences.BREAKS]}


def left_out(why):
    return {"differences": packed([]), "breaks": [], "unchecked": why}


def traced(model, task, x, y, rng):
    """A trace of forward, loss and backward."""
    for _, p in model.named_parameters():
        p.grad = None
    rng = copy.deepcopy(rng)
    with trace(model) as t:
        logits, cache = model.forward(x, train=True, rng=rng)
        _, dlogits = task.loss(logits, y)
        model.backward(dlogits, cache)
    return t


def gradients_of(step):
    """{forward input's name: gradient} of a backward step; attention's as q, k and v."""
    return formulas.gradients(step, {**step.inputs, **formulas.fields(step.inputs.get("cache"))})


def places(grad, entries):
    """Which entries of a gradient are asked for: of the first example and head, the first columns
    of the last row that every file shows."""
    if grad.ndim < 2:
        return [(j,) for j in range(min(entries, grad.size))]
    where = (*(0,) * (grad.ndim - 2), min(grad.shape[-2], SURE) - 1)
    return [(*where, j) for j in range(min(entries, grad.shape[-1]))]


def shown_places(step, grad, tokens):
    """All entries of a trained parameter's gradient that a file shows."""
    cut = [min(CUT["channel"], n) for n in grad.shape]
    if step.op == "positions":
        cut[0] = min(tokens, TIGHTER[0][1])               # the others are 0
    return list(np.ndindex(*cut))


def packed(rows):
    """Rows as columns, the floats among them as base64 of float64."""
    floats = np.array([[row[name] for name in FLOATS] for row in rows], "<f8")
    return {**{name: [row[name] for row in rows] for name in ("step", "name", "at")},
            "floats": base64.b64encode(floats.tobytes()).decode()}


def as_inputs(asked, steps):
    """The same for :func:`differences.measure`: q, k and v are parts of the input qkv."""
    for i, n, name, grad, ats in asked:
        shape, wanted = grad.shape, {at: grad[at] for at in ats}
        if steps[i].op == "attention":
            _, H, _, D = grad.shape
            wanted = {(b, t, "qkv".index(name) * H * D + h * D + d): value
                      for (b, h, t, d), value in wanted.items()}
            name, shape = "qkv", steps[i].output.shape
        yield n, name, shape, differences.size(grad), wanted


def tried(it, model, task, x, y, rng, rows):
    """One broken backward pass, run, and held against the same differences."""
    _, lines, text = differences.broken(it)
    told = {"title": it.title, "op": it.op, "lines": lines, "instead": text, "why": it.why,
            "first": None, "wrong": {}}
    with differences.running(it):
        wrong = [s for s in traced(model, task, x, y, rng).steps
                 if s.backward or s.inside is None or not s.inside.backward]
    values, worst = [], {}
    for row in rows:
        i, name = row["step"], row["name"]
        value = float(gradients_of(wrong[i])[name][tuple(row["at"])])
        error = differences.relative(value, row["numerical"], row["scale"], row["noise"])
        worst[i] = max(worst.get(i, 0.0), float(error))
        values.append(value)
    bad = [i for i in sorted(worst) if worst[i] > differences.TOLERANCE]
    return told | {"values": base64.b64encode(np.array(values, "<f8").tobytes()).decode(),
                   "first": bad[0] if bad else None, "wrong": {i: worst[i] for i in bad}}


# ------------------------------------------------------------------------- Adam and the film


def adam(run, store, before, after, norm):
    """What Adam did to each parameter, and its settings."""
    optimizer, rows = run.optimizer, []
    at = {id(p): i for i, p in enumerate(optimizer.parameters)}
    for name, p in run.model.named_parameters():
        row = {"name": name, "group": p.group, "trained": p.trainable, "shape": list(p.data.shape),
               "moved": differences.size(after[name] - before[name]),
               "changed": int((after[name] != before[name]).sum()),
               "size": differences.size(before[name])}
        i = at.get(id(p))
        if i is not None and p.grad is not None:
            axes = ("in", "out") if p.data.ndim == 2 else ("channel",) * p.data.ndim
            row |= {key: store.add(a, axes) for key, a in (
                ("before", before[name]), ("grad", p.grad), ("m", optimizer.m[i]),
                ("v", optimizer.v[i]), ("after", after[name]))}
        rows.append(row)
    clip = run.settings["clip"]
    return {"rows": rows, "norm": norm, "clip": clip, "factor": clip / max(norm, clip),
            "decay": optimizer.weight_decay, "t": optimizer.t, "betas": list(optimizer.betas),
            "eps": optimizer.eps}


def film(run, task, every, frames, x, y, before, data, progress):
    """Go on training, and keep attention, losses and certainty every so many steps."""
    if not every:
        return None
    after = {name: p.data.copy() for name, p in run.model.named_parameters()}
    restore(run.model, before)
    kept, losses = [picture(run, task, x, y, 0)], [data["loss"]]
    restore(run.model, after)
    for n in progress_bar(range(1, every * frames + 1), desc="film", unit="step", progress=progress,
                  delay=1, leave=False):
        if n > 1:
            run.optimizer.lr = training.learning_rate(run.settings, min(
                run.step, run.settings["steps"] - 1))
            inputs = task.batch(run.rng, run.settings["batch_size"], "train")
            losses.append(training.step(run.model, task, run.optimizer, *inputs,
                                        run.settings["clip"], run.rng, run.step)[0])
            run.step += 1
        if n % every == 0:
            kept.append(picture(run, task, x, y, n))
    return {"every": every, "first": data["number"], "losses": losses, "frames": kept,
            "layers": kept[0].pop("layers"), "tokens": int(x.shape[1])}


def picture(run, task, x, y, n):
    """Attention on one example, accuracy on 64 tests, and the probability of each right answer."""
    test = task.batch(np.random.default_rng([run.settings["seed"], 1]), 64, "test")
    _, accuracy = training.evaluate(run.model, task, *test)
    with run.model.all_frozen(), trace(run.model) as t:
        task.loss(run.model.forward(x)[0], y)
    told = {"step": n, "accuracy": accuracy, "layers": list(t.attention), "right": []}
    for s in t.steps:
        if s.op == "cross_entropy" and not s.backward:
            p, _ = softmax(s.inputs["logits"])
            p = np.take_along_axis(p, s.inputs["targets"][..., None], -1)
            told["right"] = [round(float(v), 4) for v in p.ravel()[:PICTURES]]
    maps = [a[0, :CUT["head"], :PICTURES, :PICTURES] for a in t.attention.values()]
    told["maps"] = [{"shape": list(a.shape), "data": base64.b64encode(
        np.round(255 * a).astype(np.uint8).tobytes()).decode()} for a in maps]
    if n:
        told.pop("layers")
    return told
