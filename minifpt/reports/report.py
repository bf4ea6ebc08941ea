"""One HTML page on a run: its result, its answers, and what moved.

The page is one file: pictures are in it, nothing is fetched and nothing runs.
"""

from collections import namedtuple
from html import escape

import numpy as np

from .. import functional as F
from ..experiments.validation import Validation
from ..files import outputs, plots
from ..freeze import GROUPS
from ..observers import draw_test
from ..tasks import optional
from ..training import evaluate
from . import attention
from .html import figures, images, page, paragraph, table

MAX_EXAMPLES = 24                                         # wrong ones that the page shows


# ---------------------------------------------------------------------------- numbers


# A model on test examples; loss and accuracy are those of ``metrics.csv``.
Tested = namedtuple("Tested", "x y logits loss accuracy")


def test(task, run, progress=True):
    """Return :class:`Tested`: a run's model on test examples, for a finished run those of the last
    row of its history."""
    x, y = draw_test(task, run.settings, run.step, is_last=True)
    scores = evaluate(run.model, task, x, y, progress, logits := [])
    return Tested(x, y, np.concatenate(logits), *scores)


# --------------------------------------------------------------------------- sections


def report(folder, task, run, start, html, force=False):
    """Write the page of a run to ``html``: its folder, its task, its ``Run``, and its model before
    the first step.  Only by ``force`` it replaces a file."""
    if not run.history:
        raise ValueError(f"{folder}: the run has no test yet: go on with 'minifpt train --resume'")
    tested = test(task, run)
    outputs.write_text(html, page(f"{task.name} with {run.config['recipe']['trunk']}", {
        "Result": result_section(folder, task, run, tested),
        "Answers": answers_section(task, tested),
        "Parameters that moved": moves_section(start, run.model, task),
        "Attention that moved": attention_section(folder, task, run, start),
        "Settings": table([[key, str(value)] for key, value in run.config.items()],
                          caption="config.json")}), force)


def result_section(folder, task, run, tested):
    """Return the accuracy in a sentence, the curves, and the number of test examples, as HTML."""
    steps, chance = run.settings.steps, optional(task, "chance")
    is_whole = run.step == steps or run.is_solved()
    split = "validation" if isinstance(task, Validation) else "test"
    text = (f"{100 * tested.accuracy:.2f} % {split} accuracy on {len(tested.x):,} examples after "
            f"{run.step:,}"
            + (" steps" if is_whole else f" of {steps:,} steps, where the run stopped")
            + (f"; chance is {100 * chance:.3g} %" if chance is not None else ""))
    (losses, (loss_axis,)), (accuracies, (accuracy_axis,)) = plots.figure(), plots.figure()
    plots.draw_curves(loss_axis, accuracy_axis, run.history, task.name, chance)
    return f'<p class="result">{escape(text)}.</p>' + figures(
        [(losses, "Loss against training steps"), (accuracies, "Accuracy against training steps")],
        "Training: the mean since the point before, with dropout where the run has it. Test: on "
        "held-out examples, without.") + table([
            ["run", str(folder)], ["step of the checkpoint", f"{run.step:,}"],
            [f"{split} examples", f"{len(tested.x):,}"], [f"{split} loss", f"{tested.loss:.4g}"],
            [f"{split} accuracy", f"{100 * tested.accuracy:.2f} %"],
            ["seconds of training", f"{run.history[-1]['seconds']:,.0f}"]])


def answers_section(task, tested):
    """Return a confusion matrix if there is one answer, else the share of mistakes at each place,
    and some wrong examples, as HTML."""
    if optional(task, "classes") is None or not hasattr(task, "choices"):
        return paragraph("This task does not say which answers its scores stand for (no choices).")
    scores, y = task.choices(tested.logits, tested.y), tested.y     # scores (*y.shape, classes)
    answers = scores.argmax(axis=-1)
    errors = (answers != y).reshape(len(y), -1)
    mistakes = np.flatnonzero(errors.any(axis=1))
    html = paragraph(f"{len(mistakes):,} of {len(y):,} test examples have a wrong answer; of all "
                     f"answers {100 * errors.mean():.3g} % are wrong.")
    if y[0].size == 1 and task.classes <= 50:
        k = task.classes
        counts = np.bincount(k * y.ravel() + answers.ravel(), minlength=k * k).reshape(k, k)
        fig = heat(counts, range(k), range(k), "examples", "answer", "right answer")
        html += figures([(fig, "Confusion matrix: rows are right answers, columns the model's")],
                        "How often the right answer (row) was answered with which (column).")
    if not len(mistakes):
        return html
    if y[0].size > 1:
        html += wrong_places(task, answers != y)
    p, _ = F.softmax(scores)
    sure = (p.max(axis=-1).reshape(errors.shape) * errors).max(axis=1)
    worst = mistakes[np.argsort(-sure[mistakes], kind="stable")][:MAX_EXAMPLES]
    caption = "Wrong examples, first those of which the model is surest"
    pictures = optional(task, "as_images")(tested.x[worst])
    if pictures is not None:
        titles = [f"{answers[i].item()}, not {y[i].item()}" for i in worst]
        return html + paragraph(f"{caption}: its answer, and the right one.") + images(
            pictures, titles)
    return html + paragraph(f"{caption}; wrong answers are underlined.") + "\n".join(
        wrong_example(task, tested.x[i], answers[i].ravel(), y[i].ravel()) for i in worst[:10])


def wrong_places(task, errors):
    """Return the share of wrong answers at each output token, and at each answer of a token."""
    share = 100 * errors.mean(axis=0).reshape(task.output_tokens, -1)
    names = (optional(task, "token_names")() or range(1, task.tokens + 1))[-len(share):]
    caption = "Wrong answers at each output token, per cent."
    fig = heat(share, names, range(1, share.shape[1] + 1), "wrong (%)", "answer of a token",
               "output token")
    return figures([(fig, caption)], caption)


def wrong_example(task, x, answers, y):
    """Return an example as text: its input, the right answer and the model's, above each other."""
    tokens, symbols = optional(task, "tokens_as_text")(x) or [], optional(task, "symbols_as_text")
    k = len(y) // task.output_tokens                      # answers of a token
    n = task.output_tokens if len(y) > 1 else len(tokens) or 1      # tokens of a line
    tokens = [""] * (-len(tokens) % n) + [*tokens]        # the last line is that of the answers

    def cells(values):
        texts = symbols(values)
        marked = [escape(text) if v == w else f"<mark>{escape(text)}</mark>"
                  for text, v, w in zip(texts, values, y, strict=True)]
        return [("".join(texts[i:i + k]), "".join(marked[i:i + k])) for i in range(0, len(y), k)]
    lines = [("" if i else "in", [(token, escape(token)) for token in tokens[i:i + n]])
             for i in range(0, len(tokens), n)] + [("right", cells(y)), ("answer", cells(answers))]
    width = max(len(text) for _, line in lines for text, _ in line) if len(y) > 1 else 0
    return "<pre>" + "\n".join(f"{name:8}" + " ".join(
        html + " " * (width - len(text)) for text, html in line).rstrip()
        for name, line in lines) + "</pre>"


def moves_section(before, after, task):
    """Return as HTML how many parameters each group has and trains, and how far they moved."""
    was, counts = dict(before.named_parameters()), after.counts(task.tokens)
    groups, layers = {}, {}                               # sums of squares: start, changes
    for name, p in after.named_parameters():
        squares = np.array([np.sum(a * a, dtype=np.float64) for a in (
            was[name].data, p.data - was[name].data)])
        groups[p.group] = groups.get(p.group, 0) + squares
        if p.trainable:
            layer = name.rpartition(".")[0].removeprefix("trunk.")
            layers[layer] = layers.get(layer, 0) + squares

    def ratio(squares):
        return float(np.sqrt(squares[1] / squares[0])) if squares[0] else np.nan
    rows = [[group, GROUPS[group], *counts[group], *map(float, np.sqrt(groups[group])),
             ratio(groups[group])] for group in counts if group in groups]
    total, n_trained = (sum(n) for n in zip(*counts.values(), strict=True))
    return (table(rows, ["group", "", "parameters", "trained", "norm at the start",
                         "norm of the change", "ratio"])
            + paragraph(f"{n_trained:,} of {total:,} parameters are trained, "
                        f"{100 * n_trained / total:.2f} %. Of the positions the {task.tokens} "
                        "count that the task has tokens for.")
            + figures([(bars([*layers], [*map(ratio, layers.values())],
                             "norm of the change / norm at the start"),
                        "Bars: how far each trained layer moved from where it started")],
                      "Each trained layer, weight and bias together. A ratio of 1: as far from the "
                      "start as the start is from zero. What is frozen has not changed by one "
                      "bit."))


def attention_section(folder, task, run, start):
    """Return the attention maps before and after training, or a sentence if the trunk has none."""
    try:
        _, x, shown = attention.subjects([(folder, task, run, start)])
    except ValueError as e:
        return paragraph(f"No maps: {e}.")
    moved, cells = shown[0].moved, attention.summary(shown)
    is_frozen = not any(p.trainable for _, p in run.model.named_parameters() if p.group == "attn")
    why = ("The attention layers are frozen: their weights are the same bits as at the start. What "
           "they attend to has moved all the same, because what comes in has." if is_frozen else
           "The attention layers are trained, at least some of them.")
    needed = ("Where needed: the share of attention that lies where the task needs it, over all "
              "maps, in the best one, and if each token attended evenly to all it may see. "
              if shown[0].before.needed is not None else "")
    frames = (" Red frames: where a token has to look for this task. The per cent above a map: how "
              "much of its attention lies there." if needed else "")
    fig = heat(100 * moved, *(range(1, n + 1) for n in moved.shape), "per cent", "head", "block")
    return (paragraph(f"{why} {attention.percent(moved.mean())} of the attention lies elsewhere "
                      "after training, in the mean over all maps.")
            + figures([(fig, "Heat map: how much attention moved in each block and head")],
                      "How much of each token's attention lies on other tokens than before: half "
                      "the sum of differences, the mean over tokens. Maps are means of "
                      f"{len(x)} test examples.")
            + figures([(attention.picture(task, x, shown),
                        "Attention maps before and after training, of all heads and of one")],
                      "The attention of a token (row) to a token (column), white for none, all "
                      "heads of all blocks and one head." + frames)
            + table(cells[1:], cells[0], f"{needed}In brackets block.head, counted from 1."))


# --------------------------------------------------------------------------- pictures


def heat(values, rows, columns, label, xlabel, ylabel):
    """Draw a heat map with its colour bar; each field of a small one shows its rounded number."""
    fig, (ax,) = plots.figure(width=max(4.2, min(9, 1.8 + 0.42 * values.shape[1])),
                              height=max(1.8, min(16, 0.9 + 0.26 * len(values))))
    ax.grid(False)
    image = ax.imshow(values, aspect="auto", cmap="cividis")
    every = -(-values.shape[1] // 16)
    ax.set_xticks(range(0, values.shape[1], every), columns[::every], fontsize=8)
    ax.set_yticks(range(len(values)), rows, fontsize=8)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    for (i, j), v in np.ndenumerate(values) if values.size <= 2500 else ():
        ax.text(j, i, f"{v:.0f}", ha="center", va="center", fontsize=8,
                color="black" if image.norm(v) > 0.5 else "white")
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
