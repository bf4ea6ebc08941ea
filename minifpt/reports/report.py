"""One HTML page on a run: what was trained, what came of it, what moved, what it cost.

The page is one file: pictures are in it, nothing is fetched and nothing runs.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from .. import functional as F
from ..experiments import timing
from ..experiments.runs import at_start, read_history, read_run
from ..files import outputs
from ..freeze import GROUPS
from ..progress import progress_bar
from ..training import TEST_BATCH
from . import attention
from .html import figure, number, page, paragraph, table
from .run_pictures import (
    bars,
    costs_picture,
    curves_picture,
    groups_picture,
    heat,
    images_picture,
    seconds_of,
)

SHOWN = 24                                                # wrong examples
KIND = "report"                                           # of the page


# ---------------------------------------------------------------------------- numbers


@dataclass
class Tested:
    """A model on test examples: x, y, logits, and loss and accuracy as ``metrics.csv`` has
    them."""

    x: np.ndarray
    y: np.ndarray
    logits: np.ndarray
    loss: float
    accuracy: float


def test(model, task, x, y, progress=True):
    """Test a model on examples; return a :class:`Tested`."""
    total, logits = np.zeros(2), []
    for i in progress_bar(range(0, len(x), TEST_BATCH), desc="test", leave=False,
                          progress=progress):
        xi, yi = x[i:i + TEST_BATCH], y[i:i + TEST_BATCH]
        logits.append(model.predict(xi))
        total += np.multiply((task.loss(logits[-1], yi)[0], task.accuracy(logits[-1], yi)), len(xi))
    return Tested(x, y, np.concatenate(logits), *map(float, total / len(x)))


def test_examples(task, run):
    """Return test examples; for a finished run, those of the last row of its history."""
    held_out = task.test_set() if hasattr(task, "test_set") else None
    return held_out or task.batch(np.random.default_rng([run.settings["seed"], 1, run.step]),
                                  run.settings["test_examples"], "test")


def check_tested(folder, run, last, tested):
    """Raise ``ValueError`` if a finished run's model no longer gives the accuracy and loss in the
    last row of its history; rounding on another machine may change a few answers."""
    if run.step == last["step"] == run.settings["steps"] and not (
            abs(tested.accuracy - last["test_accuracy"]) < 0.02
            and abs(tested.loss - last["test_loss"]) < 0.02 * max(1, abs(last["test_loss"]))):
        raise ValueError(
            f"{folder}: metrics.csv ends with a test accuracy of {100 * last['test_accuracy']:.2f} "
            f"%, the model now has {100 * tested.accuracy:.2f} %: code that the run used has "
            "changed, such as a module that your file imports, or --functional")


def confusion(answers, y, classes):
    """Return a confusion matrix (classes, classes): rows are right answers, columns the model's."""
    return np.bincount(classes * y.ravel() + answers.ravel(),
                       minlength=classes ** 2).reshape(classes, classes)


def moves(before, after):
    """Return {parameter's name: (group, norm before training, norm of its change)}."""
    was = dict(before.named_parameters())
    return {name: (p.group, float(np.linalg.norm(was[name].data)),
                   float(np.linalg.norm(p.data - was[name].data)))
            for name, p in after.named_parameters()}


def joined(moved, key):
    """Return {key(name, group): (norm before, norm of the change, their ratio)}; parameters with
    the same key are joined."""
    sums = {}
    for name, (group, size, far) in moved.items():
        total = sums.setdefault(key(name, group), np.zeros(2))
        total += size ** 2, far ** 2
    return {k: (*np.sqrt(v), np.sqrt(v[1] / v[0]) if v[0] else np.nan) for k, v in sums.items()}


def layer_of(name, group=None):
    """Return the layer of a parameter: its name without the last part and without ``trunk.``."""
    return name.rpartition(".")[0].removeprefix("trunk.")


def norms_by_layer(run):
    """Return ``({layer: norms}, steps)``: the norm of all gradients of a layer together at each row
    of the history, without the rows of older versions, which have no norms."""
    norms = np.array(run.norms).reshape(len(run.history), -1)
    complete = np.isfinite(norms).all(axis=1)
    layers = {}
    for (name, _), column in zip(run.named(), norms[complete].T, strict=True):
        layers[layer_of(name)] = layers.get(layer_of(name), 0.0) + column ** 2
    return {layer: np.sqrt(s) for layer, s in layers.items()}, run.history["step"][complete]


# --------------------------------------------------------------------------- sections


def report(folder, html=None, progress=True):
    """Write the page of a run, by default to ``RUN/report.html``; return its path."""
    folder = Path(folder)
    html = folder / "report.html" if html is None else Path(html)
    if folder.is_dir():                                   # else the default has no folder either
        outputs.check(html, KIND)
    task, run = read_run(folder)
    history = read_history(folder)
    if list(history[:len(run.history)]) != list(run.history):
        raise ValueError(f"{folder}: metrics.csv is not the history that checkpoint.npz holds: one "
                         "of them is another run's, or was changed")
    start = at_start(folder, run.settings, task)
    tested = test(run.model, task, *test_examples(task, run), progress)
    check_tested(folder, run, history[-1], tested)
    sections = {
        "Result": result_section(folder, task, run, history, tested),
        "Parameters": parameters_section(run, task),
        "Answers": answers_section(task, tested),
        "Gradients": gradients_section(run),
        "Parameters that moved": moves_section(start, run.model),
        "Attention that moved": attention_section(folder, run),
        "Time and memory": costs_section(start, task, run),
        "Settings": table([[key, str(value)] for key, value in run.settings.items()],
                          caption="config.json")}
    outputs.write_text(html, KIND, page(f"{task.name} with {run.settings['model']}", sections))
    return html


def result_section(folder, task, run, history, tested):
    """Return the accuracy in a sentence, the curves, and the number of test examples, as HTML."""
    chance = getattr(task, "chance", None)
    text = f"{100 * tested.accuracy:.2f} % test accuracy on {len(tested.x):,} examples"
    parts = [f'<p class="result">{escape(text)} after {run.step:,} steps'
             + (f"; chance is {100 * chance:.3g} %" if chance is not None else "") + ".</p>"]
    if history[-1]["step"] != run.step:
        parts.append(paragraph(
            f"The run goes on: metrics.csv stands at step {history[-1]['step']}. All but the "
            f"curves is of the checkpoint, step {run.step}."))
    parts.append(figure(
        curves_picture(task.name, history, chance), "Loss and accuracy against training steps",
        "Training: the mean since the point before, with dropout where the run has it. Test: on "
        "held-out examples, without."))
    rows = {"run": str(folder), "step of the checkpoint": run.step, "test examples": len(tested.x),
            "test loss": tested.loss, "test accuracy": f"{100 * tested.accuracy:.2f} %",
            "seconds of training": round(history[-1]["seconds"])}
    return "\n".join([*parts, table([[key, number(value)] for key, value in rows.items()])])


def parameters_section(run, task):
    counts = run.model.counts(task.tokens)
    rows = [[group, GROUPS[group], total, trained] for group, (total, trained) in counts.items()]
    total, trained = (sum(n) for n in zip(*counts.values(), strict=True))
    rows.append(["total", "", total, trained])
    return (figure(groups_picture(run.model, task.tokens),
                   "Bars: the parameters of each group, trained or frozen")
            + table(rows, ["group", "", "parameters", "trained"])
            + paragraph(f"{100 * trained / total:.2f} % of the parameters are trained. Of the "
                        f"positions the {task.tokens} count that the task has tokens for."))


def answers_section(task, tested):
    """Return a confusion matrix if there is one answer, else the share of mistakes at each place,
    and some wrong examples, as HTML."""
    if not (hasattr(task, "choices") and hasattr(task, "classes")):
        return paragraph("This task does not say which answers its scores stand for (no choices).")
    scores = task.choices(tested.logits, tested.y)        # (*y.shape, classes)
    answers, y = scores.argmax(axis=-1), tested.y
    mistakes = np.flatnonzero((answers != y).reshape(len(y), -1).any(axis=1))
    text = paragraph(f"{len(mistakes):,} of {len(y):,} test examples have a wrong answer; of all "
                     f"answers {100 * (answers != y).mean():.3g} % are wrong.")
    if y[0].size == 1 and task.classes <= 50:
        counts = confusion(answers, y, task.classes)
        digits = [str(i) for i in range(task.classes)]
        text += figure(heat(counts, digits, digits, "examples", text=True, xlabel="answer",
                            ylabel="right answer"),
                       "Confusion matrix: rows are right answers, columns the model's",
                       "How often what should have been answered (row) was answered how (column).")
    if not len(mistakes):
        return text
    if y[0].size > 1:
        text += wrong_places(task, answers != y)
    p, _ = F.softmax(scores)
    sure = (p.max(axis=-1) * (answers != y)).reshape(len(y), -1).max(axis=1)
    chosen = mistakes[np.argsort(-sure[mistakes], kind="stable")][:SHOWN]
    caption = "Wrong examples, first those of which the model is surest"
    if hasattr(task, "as_images"):
        titles = [f"{answers[i].item()}, not {y[i].item()}" for i in chosen]
        return text + figure(images_picture(task.as_images(tested.x[chosen]), titles),
                             "Images that were answered wrongly",
                             f"{caption}: its answer, and the right one.")
    return text + paragraph(f"{caption}; what is wrong is underlined.") + "\n".join(
        wrong_example(task, tested.x[i], answers[i].ravel(), y[i].ravel()) for i in chosen[:10])


def wrong_places(task, mistakes):
    """Return the share of wrong answers at each output token, or at each choice of a token."""
    share = 100 * mistakes.mean(axis=0)                   # (output_tokens,) or (output_tokens, k)
    names = task.token_names()[-task.output_tokens:] if hasattr(task, "token_names") else [
        str(i + 1) for i in range(task.output_tokens)]
    caption = "Wrong answers at each output token, per cent."
    if share.ndim == 2 and share.shape[1] > 1:
        return figure(heat(share, names, range(1, share.shape[1] + 1), "wrong (%)",
                           text=share.size <= 400,
                           xlabel="answer of a token", ylabel="output token"), caption, caption)
    share = share.reshape(-1)
    return figure(bars(names, share, "wrong (%)"), caption, caption) + table(
        [[name, float(s)] for name, s in zip(names, share, strict=True)],
        ["output token", "wrong (%)"])


def wrong_example(task, x, answers, y):
    """Return an example as text: its input, the right answer and the model's."""
    tokens = task.tokens_as_text(x) if hasattr(task, "tokens_as_text") else []
    k = len(y) // task.output_tokens                      # answers a token
    n = task.output_tokens if len(y) > 1 else len(tokens) or 1  # a line, above each other
    width = max([k, *map(len, tokens)]) if len(y) > 1 else k
    tokens = [""] * (-len(tokens) % n) + [*tokens]        # the last line is that of the answers
    lines = [f"{'in' if i == 0 else '':8}"
             + escape(" ".join(token.ljust(width) for token in tokens[i:i + n])).rstrip()
             for i in range(0, len(tokens), n)]
    for name, values in (("right", y), ("answer", answers)):
        cells = []
        for i in range(0, len(y), k):
            marked = "".join(f"<mark>{v}</mark>" if name == "answer" and v != w else str(v)
                             for v, w in zip(values[i:i + k], y[i:i + k], strict=True))
            cells.append(marked + " " * (width - k))
        lines.append(f"{name:8}{' '.join(cells).rstrip()}")
    return "<pre>" + "\n".join(lines) + "</pre>"


def gradients_section(run):
    layers, steps = norms_by_layer(run)
    if not len(steps):
        return paragraph("The checkpoint holds no norms of gradients: an older version wrote it.")
    ends = [0, -1] if len(steps) > 1 else [0]
    at = [f"{step:.0f}" for step in steps]
    return figure(
        heat([*layers.values()], [*layers], at, "norm", log=True, xlabel="step"),
        "Heat map: the norm of the gradient of each trained layer over training",
        "The norm of each trained layer's gradient, weight and bias together, in the one step at "
        f"each test, as Adam gets it: after all of them are clipped to {run.settings['clip']:g} "
        "together. Frozen layers have no gradient.") + table(
        [[layer, *map(float, norms[ends])] for layer, norms in layers.items()],
        ["layer", *(f"step {at[end]}" for end in ends)])


def moves_section(before, after):
    moved = moves(before, after)
    groups = joined(moved, lambda name, group: group)
    trained = {name for name, p in after.named_parameters() if p.trainable}
    layers = joined({k: v for k, v in moved.items() if k in trained}, layer_of)
    rows = [[group, *map(float, groups[group])] for group in GROUPS if group in groups]
    return (table(rows, ["group", "norm at the start", "norm of the change", "ratio"])
            + figure(bars([*layers], [ratio for _, _, ratio in layers.values()],
                          "norm of the change / norm at the start"),
                     "Bars: how far each trained layer moved from where it started",
                     "Each trained layer, weight and bias together.")
            + paragraph("A ratio of 1: as far from the start as the start is from zero. "
                        "What is frozen has not changed by one bit."))


def attention_section(folder, run):
    """Return the attention maps before and after training, or a sentence if the trunk has none."""
    try:
        task, x, shown = attention.subjects([folder], attention.like(run.settings))
    except ValueError as e:
        return paragraph(f"No maps: {e}.")
    moved, cells = shown[0].moved, attention.summary(attention.rows(task, x, shown))
    frozen = not any(p.trainable for _, p in run.model.named_parameters() if p.group == "attn")
    why = ("The attention layers are frozen: their weights are the same bits as at the start. What "
           "they attend to has moved all the same, because what comes in has." if frozen else
           "The attention layers are trained, at least some of them.")
    return (paragraph(f"{why} {attention.percent(moved.mean())} of the attention lies elsewhere "
                      "after training, in the mean over all maps.")
            + figure(heat(100 * moved, range(moved.shape[0]), range(moved.shape[1]), "per cent",
                          text=True, xlabel="head", ylabel="layer"),
                     "Heat map: how much attention moved in each layer and head",
                     "How much of each token's attention lies on other tokens than before: half "
                     "the sum of differences, the mean over tokens. Maps are means of "
                     f"{len(x)} test examples.")
            + figure(attention.picture(task, x, shown), "Attention maps before and after training")
            + table(cells[1:], cells[0], "Where needed: the share of attention that lies where the "
                    "task needs it, over all maps, in the best one, and if each token attended "
                    "evenly to all it may see. In brackets layer.head."
                    if shown[0].before.needed is not None else "In brackets layer.head."))


def costs_section(model, task, run):
    costs = timing.costs(model, task, run.settings["batch_size"])
    listed = sorted(costs.operations.items(), key=lambda each: -sum(seconds_of(each[1])))
    rows = [[op, c.calls, 1e3 * c.forward, 1e3 * c.backward, c.kept / 1e6] for op, c in listed]
    rest = costs.seconds - sum(sum(seconds_of(c)) for _, c in listed)
    rows.append(["all else", "", 1e3 * rest, "", ""])
    return (figure(costs_picture(costs), "Bars: time and memory of a step by operation")
            + table(rows, ["operation", "calls", "forward (ms)", "backward (ms)", "kept (MB)"])
            + paragraph(
                f"Of a step of {1e3 * costs.seconds:.3g} ms with a batch of "
                f"{run.settings['batch_size']}, measured on this machine when this page was made: "
                "a clock around each operation, the fastest of some steps of the run's model as it "
                "was at its start. An operation's time leaves out other operations that it calls; "
                "all else is Python in between. Kept: the arrays in its caches, each counted once, "
                f"where it is kept first. At most {costs.peak / 1e6:,.1f} MB of arrays beside the "
                "parameters (tracemalloc)."))
