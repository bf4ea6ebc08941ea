"""One HTML page on a run: what was trained, what came of it, what moved, what it cost.

The page is one file: pictures are in it, nothing is fetched and nothing runs.
"""

import base64
import io
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from .. import functional as F
from ..experiments import timing
from ..experiments.runs import at_start, load, read_history
from ..files import outputs
from ..freeze import GROUPS
from ..progress import progress_bar
from ..training import TEST_BATCH
from . import attention, plots

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
    """The :class:`Tested` of a model on examples."""
    total, logits = np.zeros(2), []
    for i in progress_bar(range(0, len(x), TEST_BATCH), desc="test", leave=False,
                          progress=progress):
        xi, yi = x[i:i + TEST_BATCH], y[i:i + TEST_BATCH]
        logits.append(model.predict(xi))
        total += np.multiply((task.loss(logits[-1], yi)[0], task.accuracy(logits[-1], yi)), len(xi))
    return Tested(x, y, np.concatenate(logits), *map(float, total / len(x)))


def test_examples(task, run):
    """Those that the run's last row was tested on, if the run has come to its end."""
    held_out = task.test_set() if hasattr(task, "test_set") else None
    return held_out or task.batch(np.random.default_rng([run.settings["seed"], 1, run.step]),
                                  run.settings["test_examples"], "test")


def check_tested(folder, run, last, tested):
    """Raise a ``ValueError`` where a finished run's model no longer does on the same examples what
    the last row of its history says; rounding on another machine may change a few answers."""
    if run.step == last["step"] == run.settings["steps"] and not (
            abs(tested.accuracy - last["test_accuracy"]) < 0.02
            and abs(tested.loss - last["test_loss"]) < 0.02 * max(1, abs(last["test_loss"]))):
        raise ValueError(
            f"{folder}: metrics.csv ends with a test accuracy of {100 * last['test_accuracy']:.2f} "
            f"%, the model now has {100 * tested.accuracy:.2f} %: code that the run used has "
            "changed, such as a module that your file imports, or --functional")


def confusion(answers, y, classes):
    """(classes, classes): how often the class of the row was answered with that of the column."""
    return np.bincount(classes * y.ravel() + answers.ravel(),
                       minlength=classes ** 2).reshape(classes, classes)


def moves(before, after):
    """{parameter's name: (group, size of it before, how far it moved)}, norms."""
    was = dict(before.named_parameters())
    return {name: (p.group, float(np.linalg.norm(was[name].data)),
                   float(np.linalg.norm(p.data - was[name].data)))
            for name, p in after.named_parameters()}


def joined(moved, key):
    """{key(name, group): (size, moved, moved / size)} of several parameters together."""
    sums = {}
    for name, (group, size, far) in moved.items():
        total = sums.setdefault(key(name, group), np.zeros(2))
        total += size ** 2, far ** 2
    return {k: (*np.sqrt(v), np.sqrt(v[1] / v[0]) if v[0] else np.nan) for k, v in sums.items()}


def layer_of(name, group=None):
    """The layer of a parameter: its name without the last part, and without ``trunk.``."""
    return name.rpartition(".")[0].removeprefix("trunk.")


def norms_by_layer(run):
    """``({layer: norms}, steps)``: of all gradients of a layer together, at each row of the
    history; rows that an older version left without are left out."""
    norms = np.array(run.norms).reshape(len(run.history), -1)
    kept = np.isfinite(norms).all(axis=1)
    layers = {}
    for (name, _), column in zip(run.named(), norms[kept].T, strict=True):
        layers[layer_of(name)] = layers.get(layer_of(name), 0.0) + column ** 2
    return {layer: np.sqrt(s) for layer, s in layers.items()}, run.history["step"][kept]


# --------------------------------------------------------------------------- pictures


def groups_picture(model, tokens):
    """Parameters of each group, trained or frozen."""
    counts = model.counts(tokens)
    fig, (ax,) = plots.figure(width=6.4, height=0.5 + 0.38 * len(counts))
    for i, (_, (total, trained)) in enumerate(counts.items()):
        parts = (0, trained, plots.TRAINED, ""), (trained, total - trained, plots.FROZEN, "///")
        for left, width, color, hatch in parts:
            ax.barh(i, width, left=left, color=color, hatch=hatch, edgecolor="white", height=0.7)
        state = "trained" if trained == total else "frozen" if not trained else "partly trained"
        ax.text(max(total, 1) * 1.15, i, f"{total:,} {state}", va="center", fontsize=8)
    ax.set_yticks(range(len(counts)), counts)
    ax.invert_yaxis()
    most = max(total for total, _ in counts.values())
    ax.set(xscale="log", xlim=(10, most * 60), xlabel="parameters, logarithmic (hatched: frozen)")
    return fig


def curves_picture(history):
    """Loss and accuracy, training and test."""
    fig, axes = plots.figure(2, height=3.2)
    for ax, what, scale, label in zip(axes, ("loss", "accuracy"), (1, 100),
                                      ("cross-entropy (nats)", "accuracy (%)"), strict=True):
        for split, style in (("train", "-"), ("test", "--")):
            ax.plot(history["step"], scale * history[f"{split}_{what}"], style,
                    marker="o" if len(history) < 3 else None,
                    label="training" if split == "train" else "test")
        ax.set(xlabel="step", ylabel=label)
        ax.legend(frameon=False)
    return fig


def heat(values, rows, columns, label, log=False, text=False, xlabel="", ylabel=""):
    """A heat map with its colour bar; with ``text`` each field has its number, rounded."""
    from matplotlib.colors import LogNorm
    values = np.asarray(values, float)
    fig, (ax,) = plots.figure(width=max(4.2, min(9, 1.8 + 0.42 * values.shape[1])),
                              height=max(1.8, min(16, 0.9 + 0.26 * len(values))))
    ax.grid(False)
    positive = values[values > 0]
    norm = LogNorm(positive.min(), positive.max()) if log and len({*positive}) > 1 else None
    image = ax.imshow(values, aspect="auto", norm=norm, cmap="cividis")
    every = -(-values.shape[1] // 16)
    ax.set_xticks(range(0, values.shape[1], every), columns[::every], fontsize=7)
    ax.set_yticks(range(len(values)), rows, fontsize=7)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    for (i, j), v in np.ndenumerate(values) if text else ():
        r, g, b, _ = image.cmap(image.norm(v))
        ax.text(j, i, f"{v:.0f}", ha="center", va="center", fontsize=7,
                color="black" if r + g + b > 1.5 else "white")
    fig.colorbar(image, ax=ax, label=label)
    return fig


def bars(names, values, label):
    """Horizontal bars."""
    fig, (ax,) = plots.figure(width=6.4, height=0.8 + 0.2 * len(names))
    ax.barh(range(len(names)), values, color=plots.TRAINED, height=0.7)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.invert_yaxis()
    ax.set(xlabel=label)
    return fig


def costs_picture(costs):
    """Time of each operation, forward and backward, and the memory that it keeps."""
    names = sorted(costs.operations, key=lambda op: -sum(_seconds(costs.operations[op])))
    fig, (left, right) = plots.figure(2, width=4.6, height=0.9 + 0.24 * len(names))
    each = [costs.operations[name] for name in names]
    at, forward = range(len(names)), np.array([1e3 * c.forward for c in each])
    left.barh(at, forward, color=plots.TRAINED, height=0.7, label="forward")
    left.barh(at, [1e3 * c.backward for c in each], left=forward, color=plots.FROZEN, height=0.7,
              hatch="///", edgecolor="white", label="backward")
    left.legend(frameon=False, loc="lower right")
    left.set(xlabel="milliseconds in a step")
    right.barh(at, [c.kept / 1e6 for c in each], color=plots.FROZEN, height=0.7)
    right.set(xlabel="MB kept for the way back")
    for ax, labels in ((left, names), (right, [""] * len(names))):
        ax.set_yticks(at, labels, fontsize=8)
        ax.invert_yaxis()
    return fig


def _seconds(cost):
    return cost.forward, cost.backward


def images_picture(images, titles):
    """Small pictures with a line above each."""
    columns = 8
    fig, axes = plots.figure(columns, -(-len(images) // columns), width=1.1, height=1.35)
    for ax in axes:
        ax.axis("off")
    for ax, image, title in zip(axes, images, titles, strict=False):
        low, high = image.min(), image.max()
        ax.imshow((image - low) / ((high - low) or 1), cmap="gray_r" if image.ndim == 2 else None)
        ax.set_title(title, fontsize=8)
    return fig


# ------------------------------------------------------------------------------- HTML


STYLE = """
:root { color-scheme: light dark; --line: #c8c8c8; --soft: #f4f4f2; }
@media (prefers-color-scheme: dark) { :root { --line: #555; --soft: #262626; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
figure { margin: 1rem 0; }
img { max-width: max(100%, 40rem); height: auto; background: #fff; padding: 4px; }
figcaption, caption { font-size: .9rem; text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; text-align: left;
         white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; font-size: .85rem; }
mark { background: none; color: inherit; font-weight: bold; text-decoration: underline wavy #c0392b;
       outline: 1px solid #c0392b; }
@media print { body { max-width: none; } h2, figure, tr { break-inside: avoid; } }
"""


def figure(fig, alt, caption=""):
    """A Matplotlib figure as HTML, its PNG within; ``alt`` says what it shows."""
    raw = io.BytesIO()
    fig.savefig(raw, format="png", dpi=110)
    data = base64.b64encode(raw.getvalue()).decode()
    text = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (f'<figure class="wide"><img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
            f"{text}</figure>")


def table(rows, head=None, caption=""):
    """Rows of cells as an HTML table; what is no text in the first row is set to the right."""
    right = [not isinstance(cell, str) for cell in rows[0]]
    kinds = [' class="n"' if r else "" for r in right]
    parts = ['<div class="wide"><table>', f"<caption>{escape(caption)}</caption>" * bool(caption)]
    if head:
        cells = "".join(f'<th scope="col"{kind}>{escape(h)}</th>'
                        for h, kind in zip(head, kinds, strict=True))
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for first, *rest in rows:
        cells = "".join(f"<td{kind}>{escape(number(cell))}</td>"
                        for cell, kind in zip(rest, kinds[1:], strict=True))
        parts.append(f'<tr><th scope="row">{escape(number(first))}</th>{cells}</tr>')
    return "\n".join([*filter(None, parts), "</tbody></table></div>"])


def number(cell):
    """A cell as text."""
    if isinstance(cell, (int, np.integer)) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, (float, np.floating)) else str(cell)


def paragraph(text):
    return f"<p>{escape(text)}</p>"


def page(title, sections):
    """The whole page from ``{heading: HTML}``."""
    ids = {heading: heading.lower().replace(" ", "-") for heading in sections}
    links = " · ".join(f'<a href="#{i}">{escape(h)}</a>' for h, i in ids.items())
    body = "\n".join(f'<section aria-labelledby="{ids[h]}"><h2 id="{ids[h]}">{escape(h)}</h2>\n'
                     f"{html}\n</section>" for h, html in sections.items())
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{escape(title)}</h1>\n<nav>{links}</nav>\n{body}\n</main>\n</body>\n</html>\n")


# --------------------------------------------------------------------------- sections


def report(folder, html=None, progress=True):
    """Write the page, ``RUN/report.html`` unless ``html`` says where; returns its path."""
    folder = Path(folder)
    html = folder / "report.html" if html is None else Path(html)
    if folder.is_dir():                                   # else the default has no folder either
        outputs.check(html, KIND)
    task, run = load(folder)
    history = read_history(folder)
    if list(history[:len(run.history)]) != list(run.history):
        raise ValueError(f"{folder}: metrics.csv is not the history that checkpoint.npz holds: one "
                         "of them is another run's, or was changed")
    start = at_start(folder, run.settings, task)
    tested = test(run.model, task, *test_examples(task, run), progress)
    check_tested(folder, run, history[-1], tested)
    sections = {
        "Settings": settings_section(folder, run, history, tested),
        "Parameters": parameters_section(run, task),
        "Curves": figure(curves_picture(history), "Loss and accuracy against training steps",
                         "Training: the mean since the point before, with dropout where the run "
                         "has it. Test: on held-out examples, without."),
        "Answers": answers_section(task, tested),
        "Gradients": gradients_section(run),
        "Parameters that moved": moves_section(start, run.model),
        "Attention that moved": attention_section(folder, run),
        "Time and memory": costs_section(start, task, run)}
    outputs.write_text(html, KIND, page(f"{task.name} with {run.settings['model']}", sections))
    return html


def settings_section(folder, run, history, tested):
    last = {"run": str(folder), "step of the checkpoint": run.step,
            "test examples": len(tested.x), "test loss": tested.loss,
            "test accuracy": f"{100 * tested.accuracy:.2f} %",
            "seconds of training": round(history[-1]["seconds"])}
    rows = [[key, number(value)] for key, value in last.items()]
    text = [] if history[-1]["step"] == run.step else [paragraph(
        f"The run goes on: metrics.csv stands at step {history[-1]['step']}. All but the curves "
        f"is of the checkpoint, step {run.step}.")]
    return "\n".join([*text, table(rows, caption="What came of it"), table(
        [[key, str(value)] for key, value in run.settings.items()], caption="config.json")])


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
    """A confusion matrix where one answer is asked for, else what is wrong where; and some
    examples that are wrong."""
    if not (hasattr(task, "choices") and hasattr(task, "classes")):
        return paragraph("This task does not say which answers its scores stand for (no choices).")
    scores = task.choices(tested.logits, tested.y)        # (*y.shape, classes)
    answers, y = scores.argmax(axis=-1), tested.y
    wrong = np.flatnonzero((answers != y).reshape(len(y), -1).any(axis=1))
    text = paragraph(f"{len(wrong):,} of {len(y):,} test examples have a wrong answer; of all "
                     f"answers {100 * (answers != y).mean():.3g} % are wrong.")
    if y[0].size == 1 and task.classes <= 50:
        counts = confusion(answers, y, task.classes)
        digits = [str(i) for i in range(task.classes)]
        text += figure(heat(counts, digits, digits, "examples", text=True, xlabel="answer",
                            ylabel="right answer"),
                       "Confusion matrix: rows are right answers, columns the model's",
                       "How often what should have been answered (row) was answered how (column).")
    if not len(wrong):
        return text
    if y[0].size > 1:
        text += wrong_places(task, answers != y)
    p, _ = F.softmax(scores)
    sure = (p.max(axis=-1) * (answers != y)).reshape(len(y), -1).max(axis=1)
    chosen = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
    caption = "Wrong examples, first those of which the model is surest"
    if hasattr(task, "as_images"):
        titles = [f"{answers[i].item()}, not {y[i].item()}" for i in chosen]
        return text + figure(images_picture(task.as_images(tested.x[chosen]), titles),
                             "Images that were answered wrongly",
                             f"{caption}: its answer, and the right one.")
    return text + paragraph(f"{caption}; what is wrong is underlined.") + "\n".join(
        wrong_example(task, tested.x[i], answers[i].ravel(), y[i].ravel()) for i in chosen[:10])


def wrong_places(task, wrong):
    """The share of wrong answers at each output token, and at each choice of a token."""
    share = 100 * wrong.mean(axis=0)                      # (output_tokens,) or (output_tokens, k)
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
    """An example as text: what came in, what was right, what was answered."""
    tokens = task.tokens_as_text(x) if hasattr(task, "tokens_as_text") else []
    k = len(y) // task.output_tokens                      # answers a token
    n = task.output_tokens if len(y) > 1 else len(tokens) or 1  # a line, above each other
    width = max([k, *map(len, tokens)]) if len(y) > 1 else k
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
    return (table(rows, ["group", "norm at the start", "norm of what changed", "ratio"])
            + figure(bars([*layers], [ratio for _, _, ratio in layers.values()],
                          "norm of what changed / norm at the start"),
                     "Bars: how far each trained layer moved from where it started",
                     "Each trained layer, weight and bias together.")
            + paragraph("A ratio of 1: as far from the start as the start is from zero. "
                        "What is frozen has not changed by one bit."))


def attention_section(folder, run):
    """The maps before and after; a word where a trunk has none."""
    try:
        task, x, found = attention.subjects([folder], attention.like(run.settings))
    except ValueError as e:
        return paragraph(f"No maps: {e}.")
    moved, cells = found[0].moved, attention.summary(attention.rows(task, x, found))
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
            + figure(attention.picture(task, x, found), "Attention maps before and after training")
            + table(cells[1:], cells[0], "Where needed: the share of attention that lies where the "
                    "task needs it, over all maps, in the best one, and if each token attended "
                    "evenly to all it may see. In brackets layer.head."
                    if found[0].before.needed is not None else "In brackets layer.head."))


def costs_section(model, task, run):
    costs = timing.costs(model, task, run.settings["batch_size"])
    listed = sorted(costs.operations.items(), key=lambda each: -sum(_seconds(each[1])))
    rows = [[op, c.calls, 1e3 * c.forward, 1e3 * c.backward, c.kept / 1e6] for op, c in listed]
    rest = costs.seconds - sum(sum(_seconds(c)) for _, c in listed)
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
