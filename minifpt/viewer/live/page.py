"""One HTML file in which a frozen transformer trains live: ``minifpt playground``."""

import html
import json
import re

import numpy as np

from ... import __version__, functional, tasks, trunks
from ...checks import one_of, whole
from ...files import outputs, weights
from ...fpt import FPT
from ...gpt2 import GPT2, LanguageModel
from ...trunks import forms
from .. import encoded, fill, read, to_json
from ..steps.differences import BREAKS, broken
from ..steps.frames import source_of

MODEL = "minigpt-tiny"
TASKS = "bit-xor", "majority", "bit-memory"               # those that tasks.js has
MAX_TOKENS = 12                                           # of these tasks
ENTRIES = 40                                              # gradients that the page compares singly
PAGE = "common.js", *(f"live/{name}.js" for name in (
    "drawing", "page", "address", "panels", "looking", "stations", "tour", "start"))
# It runs in the worker and in the page.
ENGINE = tuple(f"live/{name}.js" for name in ("engine", "model", "forms", "tasks"))


def playground(model=MODEL, task="bit-xor", tour=None, site=None):
    """Return the page as text, with a GPT-2 trunk as its pretrained weights.

    model  what ``--model`` takes, where that is a GPT-2: its numbers are stored as float16.
    task   the task of the free page, one of ``TASKS``.
    tour   the station that the page opens with; by default the first one, but the free page for
           another model or task.
    site   the path from the page to the site's root, for its last links; commands without one.
    """
    one_of("playground", "the task", task, TASKS)
    if tour is None and (model, task) == (MODEL, "bit-xor"):
        tour = 1
    return fill("live/page.html", {
        "TITLE": "A transformer that trains in this page",
        "DATA": to_json({"task": task, "tour": tour, "site": site, **page_data(model)}),
        "STYLE": read("live/page.css"), "ENGINE": "".join(map(read, ENGINE)),
        "WORKER": read("live/worker.js"),
        "SCRIPT": "".join(map(read, PAGE))})


def page_data(model=MODEL):
    """Return what the page is told of a model, as a dictionary for JSON."""
    spec = trunks.TrunkSpec.parse(model)
    trunk = trunks.get(spec, 0, dropout=0.0, dtype=np.float64)
    check(spec.text, trunk)
    statistics = {name: [float(p.data.mean()), float(p.data.std())]
                  for name, p in trunk.named_parameters()}
    trunk.wpe.weight.data = trunk.wpe.weight.data[:MAX_TOKENS]
    for _, p in trunk.named_parameters():
        p.data = p.data.astype(np.float16).astype(np.float64)
    arrays = {name: p.data for name, p in trunk.named_parameters()}
    config, tensors = weights.read(weights.find(spec.name)) if spec.kind == "weights" else ({}, {})
    if "wte.weight" in tensors and tensors["wte.weight"].shape[0] == 256:      # letters as bytes
        arrays["wte.weight"] = LanguageModel.from_pretrained(spec.name).wte.weight.data
    return {"version": __version__,
            "model": re.sub(r".*[/\\]", "", spec.text),  # without a folder of the user's
            "config": {key: getattr(trunk.config, key)
                       for key in ("n_layer", "n_head", "n_embd", "causal")},
            "statistics": statistics,
            # What it was pretrained on, if that is known.
            "source": weights.PRETRAINED_ON.get(config.get("source")),
            "trunk": [[name, list(a.shape)] for name, a in arrays.items()],
            "weights": encoded(np.concatenate([a.ravel() for a in arrays.values()]).astype("<f2")),
            **json.loads(read("live/measured.json")),
            "reference": reference(trunk), "stations": stations(), "faults": faults()}


def save(path, model=MODEL, task="bit-xor", force=False):
    """Write the page and return its size in bytes.  Raises ``ValueError`` where there is a file,
    unless ``force`` replaces it."""
    outputs.check(path, force)                            # before the page, which takes seconds
    return outputs.write_text(path, playground(model, task), force)


class LivePage:
    """The page at a station of its tour, 1 to 11, as a notebook shows it: ``viewer.tour(9)``."""

    def __init__(self, station=1):
        self.station = whole("tour", "station", station, 1, len(stations()))

    def _repr_html_(self):
        return (f'<iframe srcdoc="{html.escape(playground(tour=self.station))}" width="100%" '
                'height="820" style="border:0" title="The tour of the live page"></iframe>')


def stations():
    """Return the texts of the tour, of each station {title, text, options, more}."""
    texts = []
    tour = re.sub(r"\n<!--.*?-->\n", "", read("live/tour.md"), flags=re.S)
    for section in tour.split("\n## ")[1:]:
        title, text, *options, more = (" ".join(part.split()) for part in section.split("\n\n"))
        texts.append({
            "title": title.split(". ", 1)[1], "text": text, "more": more.removeprefix("More: "),
            "options": [option for part in options for option in part[2:].split(" - ")]})
    return texts


def faults():
    """Return the faults that the page can make, each with its right and its wrong line."""
    rows = []
    for fault in BREAKS:
        faulty = broken(fault)
        lines = dict(source_of(vars(functional)[f"{fault.op}_backward"])["lines"])
        first, last = faulty.lines
        right_lines = "\n".join(lines[n].strip() for n in range(first, last + 1))
        rows.append({"id": fault.id, "title": fault.title, "op": fault.op, "why": fault.why,
                     "cut": right_lines, "put": faulty.text})
    return rows + [{"id": "residual", "title": "A forgotten residual", "op": "block",
                    "why": "Only the way through a part comes back; what went past it is lost.",
                    "cut": "dy = dy + dm", "put": "dy = dm"}]         # of layers.Block.backward


def check(name, trunk):
    """Raise ``ValueError`` for a trunk that the engine cannot compute."""
    if not isinstance(trunk, GPT2):
        raise ValueError(f"playground: {name} is of kind {type(trunk).__name__}, expected GPT-2")
    c = trunk.config
    if c.n_positions < MAX_TOKENS or c.layer_norm_epsilon != 1e-5 or c.activation_function not in (
            "gelu_new", "gelu_pytorch_tanh"):
        raise ValueError(f"playground: {name} has {c.n_positions} positions, "
                         f"{c.activation_function} and epsilon {c.layer_norm_epsilon:g}, expected "
                         f"at least {MAX_TOKENS}, gelu_new and 1e-05")


def reference(trunk):
    """Compute a step with NumPy in float64, which the page repeats in float32; return parameters
    and batch, the loss, the norm of every parameter's gradient, and some of its entries."""
    task, rng = tasks.get("bit-xor"), np.random.default_rng(0)
    model = FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)
    outer = {}
    for name, p in model.named_parameters():
        if not name.startswith("trunk."):
            p.data = p.data.astype(np.float64).round(4)   # short in the file
            outer[name] = p.data.ravel().tolist()
    x, y = task.batch(rng, 4)
    logits, cache = model.forward(x.astype(np.float64))
    loss, dlogits = task.loss(logits, y)
    model.backward(dlogits, cache)
    grads = {name: p.grad[:task.tokens] if "wpe" in name else p.grad
             for name, p in model.named_parameters()}
    names, entries = [*grads], []
    for i in range(ENTRIES):
        grad = grads[names[i % len(names)]].ravel()
        at = int(rng.integers(grad.size))
        entries.append([names[i % len(names)], at, float(grad[at])])
    return reference_forms(trunk, rng) | {
            "outer": outer, "x": x.astype(int).ravel().tolist(), "y": y.ravel().tolist(),
            "loss": float(loss), "entries": entries,
            "norms": {name: float(np.linalg.norm(grad)) for name, grad in grads.items()}}


def reference_forms(trunk, rng):
    """Compute with NumPy what the page does with attention itself: two cuts, keys turned against
    queries, and the eigenvalues of the first block's symmetric form."""
    qkv, cuts, degrees = rng.standard_normal((1, 4, 12)).round(3), [[2, 0], [3, 1]], 120
    heads = functional.split_heads(qkv, 6)
    q, k, v = heads[:, :2], heads[:, 2:4], heads[:, 4:]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(2) + functional.causal_mask(4, 4, qkv.dtype)
    for query, key in cuts:
        scores[..., query, key] = -np.inf
    output = functional.merge_heads(functional.softmax(scores)[0] @ v)
    turned, angle = qkv[0].copy(), np.deg2rad(degrees)
    turned[:, 4:8] = np.cos(angle) * turned[:, :4] + np.sin(angle) * turned[:, 4:8]
    m = forms.summed_form(trunk, np.eye(trunk.config.n_embd))
    return {"qkv": qkv.ravel().tolist(), "cuts": cuts, "cut_output": output.ravel().tolist(),
            "degrees": degrees, "turned": turned.ravel().tolist(),
            "eigenvalues": np.linalg.eigvalsh((m + m.T) / 2).tolist()}
