"""One HTML page on a run: its result, its answers, and what moved.

The page is one file: pictures are in it, nothing is fetched and nothing runs.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import functional as F
from ..experiments.runs import at_start, read_history, read_run
from ..files import outputs, plots
from ..freeze import GROUPS
from ..progress import progress_bar
from ..training import evaluate
from . import attention
from .html import figure, figures, images, number, page, paragraph, table

SHOWN = 24                                                # wrong examples
KIND = "report"                                           # of the page


# ---------------------------------------------------------------------------- numbers


class Tested(NamedTuple):
    """A model on test examples: x, y, logits, and loss and accuracy as in ``metrics.csv``."""

    x: np.ndarray
    y: np.ndarray
    logits: np.ndarray
    loss: float
    accuracy: float


def test(task, run, progress=True):
    """Return :class:`Tested`: a run's model on test examples, for a finished run those of the last
    row of its history."""
    held_out = task.test_set() if hasattr(task, "test_set") else None
    x, y = held_out or task.batch(np.random.default_rng([run.settings["seed"], 1, run.step]),
                                  run.settings["test_examples"], "test")
    scores = evaluate(run.model, task, x, y, progress, logits := [])
    return Tested(x, y, np.concatenate(logits), *scores)


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


def joined(moved, key):
    """Return {key(name, group): (norm before, norm of the change, their ratio)}; parameters with
    the same key are joined.  ``moved`` is {name: (group, norm before, norm of the change)}."""
    sums = {}
    for name, (group, size, far) in moved.items():
        total = sums.setdefault(key(name, group), np.zeros(2))
        total += size ** 2, far ** 2
    return {k: (*np.sqrt(v), np.sqrt(v[1] / v[0]) if v[0] else np.nan) for k, v in sums.items()}


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
    tested = test(task, run, progress)
    check_tested(folder, run, history[-1], tested)
    parts = {
        "Result": lambda: result_section(folder, task, run, history, tested),
        "Answers": lambda: answers_section(task, tested),
        "Parameters that moved": lambda: moves_section(start, run.model, task),
        "Attention that moved": lambda: attention_section(folder, run),
        "Settings": lambda: table([[key, str(value)] for key, value in run.settings.items()],
                                  caption="config.json")}
    sections = {}
    with progress_bar(parts.items(), desc="report", leave=False, progress=progress) as bar:
        for heading, make in bar:
            bar.set_postfix_str(heading)
            sections[heading] = make()
    outputs.write_text(html, KIND, page(f"{task.name} with {run.settings['model']}", sections))
    return html


def result_section(folder, task, run, history, tested):
    """Return the accuracy in a sentence, the curves, and the number of test examples, as HTML."""
    chance = getattr(task, "chance", None)
    text = f"{100 * tested.accuracy:.2f} % test accuracy on {len(tested.x):,} examples"
    steps = run.settings["steps"]
    stopped = f" of {steps:,} steps, where the run stopped" if run.step < steps else " steps"
    parts = [f'<p class="result">{escape(text)} after {run.step:,}{stopped}'
             + (f"; chance is {100 * chance:.3g} %" if chance is not None else "") + ".</p>"]
    if history[-1]["step"] != run.step:
        parts.append(paragraph(
            f"metrics.csv stands at step {history[-1]['step']}. All but the curves is of the "
            f"checkpoint, step {run.step}."))
    parts.append(figures(
        [(fig, f"{name} against training steps") for name, fig in zip(
            ("Loss", "Accuracy"), curves_pictures(task.name, history, chance), strict=True)],
        "Training: the mean since the point before, with dropout where the run has it. Test: on "
        "held-out examples, without."))
    rows = {"run": str(folder), "step of the checkpoint": run.step, "test examples": len(tested.x),
            "test loss": tested.loss, "test accuracy": f"{100 * tested.accuracy:.2f} %",
            "seconds of training": round(history[-1]["seconds"])}
    return "\n".join([*parts, table([[key, number(value)] for key, value in rows.items()])])


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
        return text + paragraph(f"{caption}: its answer, and the right one.") + images(
            task.as_images(tested.x[chosen]), titles)
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
    symbols = getattr(task, "symbols_as_text", lambda ids: [str(i) for i in ids])
    wide = max(map(len, symbols([*y, *answers])))         # of an answer
    width = max([k * wide, *map(len, tokens)]) if len(y) > 1 else k * wide
    tokens = [""] * (-len(tokens) % n) + [*tokens]        # the last line is that of the answers
    lines = [f"{'in' if i == 0 else '':8}"
             + escape(" ".join(token.ljust(width) for token in tokens[i:i + n])).rstrip()
             for i in range(0, len(tokens), n)]
    for name, values in (("right", y), ("answer", answers)):
        cells = []
        for i in range(0, len(y), k):
            texts = symbols(values[i:i + k])
            marked = "".join(f"<mark>{escape(s)}</mark>" if name == "answer" and v != w
                             else escape(s) for s, v, w in
                             zip(texts, values[i:i + k], y[i:i + k], strict=True))
            cells.append(marked + " " * (width - sum(map(len, texts))))
        lines.append(f"{name:8}{' '.join(cells).rstrip()}")
    return "<pre>" + "\n".join(lines) + "</pre>"


def moves_section(before, after, task):
    """Return as HTML how many parameters each group has and trains, and how far they moved."""
    was, counts = dict(before.named_parameters()), after.counts(task.tokens)
    moved = {name: (p.group, float(np.linalg.norm(was[name].data)),
                    float(np.linalg.norm(p.data - was[name].data)))
             for name, p in after.named_parameters()}
    groups = joined(moved, lambda name, group: group)
    trained = {name for name, p in after.named_parameters() if p.trainable}
    layers = joined({k: v for k, v in moved.items() if k in trained},
                    lambda name, group: name.rpartition(".")[0].removeprefix("trunk."))
    rows = [[group, GROUPS[group], *counts[group], *map(float, groups[group])]
            for group in counts if group in groups]
    total, n_trained = (sum(n) for n in zip(*counts.values(), strict=True))
    return (table(rows, ["group", "", "parameters", "trained", "norm at the start",
                         "norm of the change", "ratio"])
            + paragraph(f"{n_trained:,} of {total:,} parameters are trained, "
                        f"{100 * n_trained / total:.2f} %. Of the positions the {task.tokens} "
                        "count that the task has tokens for.")
            + figure(bars([*layers], [ratio for _, _, ratio in layers.values()],
                          "norm of the change / norm at the start"),
                     "Bars: how far each trained layer moved from where it started",
                     "Each trained layer, weight and bias together. A ratio of 1: as far from the "
                     "start as the start is from zero. What is frozen has not changed by one bit."))


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
            + figures(attention.panels(task, x, shown), "The attention of a token (row) to a "
                      "token (column), white for none, all heads of all layers and one head.")
            + table(cells[1:], cells[0], "Where needed: the share of attention that lies where the "
                    "task needs it, over all maps, in the best one, and if each token attended "
                    "evenly to all it may see. In brackets layer.head."
                    if shown[0].before.needed is not None else "In brackets layer.head."))


# --------------------------------------------------------------------------- pictures


def curves_pictures(name, history, chance=None):
    """Draw loss and accuracy, in training and in tests; return two figures."""
    (losses, (left,)), (accuracies, (right,)) = plots.figure(), plots.figure()
    plots.draw_curves(left, right, history, name, chance)
    right.plot(history["step"], 100 * history["train_accuracy"], ":",
               color=right.lines[0].get_color(), label="training")
    right.lines[0].set_label("test")
    right.legend(frameon=False)
    return losses, accuracies


def heat(values, rows, columns, label, text=False, xlabel="", ylabel=""):
    """Draw a heat map with its colour bar; with ``text`` each field shows its rounded number."""
    values = np.asarray(values, float)
    fig, (ax,) = plots.figure(width=max(4.2, min(9, 1.8 + 0.42 * values.shape[1])),
                              height=max(1.8, min(16, 0.9 + 0.26 * len(values))))
    ax.grid(False)
    image = ax.imshow(values, aspect="auto", cmap="cividis")
    every = -(-values.shape[1] // 16)
    ax.set_xticks(range(0, values.shape[1], every), columns[::every], fontsize=8)
    ax.set_yticks(range(len(values)), rows, fontsize=8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    for (i, j), v in np.ndenumerate(values) if text else ():
        r, g, b, _ = image.cmap(image.norm(v))
        ax.text(j, i, f"{v:.0f}", ha="center", va="center", fontsize=8,
                color="black" if r + g + b > 1.5 else "white")
    fig.colorbar(image, ax=ax, label=label)
    return fig


def bars(names, values, label):
    """Draw horizontal bars."""
    fig, (ax,) = plots.figure(width=6.4, height=0.8 + 0.2 * len(names))
    ax.barh(range(len(names)), values, color=plots.TRAINED, height=0.7)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel=label)
    return fig
