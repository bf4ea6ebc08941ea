"""Which part of a trained model does it: activation patching, direct logit attribution, and the
logit lens with its backward twin.

**Patching** runs the model on corrupted inputs and replaces one value by what it is on the clean
inputs.  A value that restores the clean answers carries what they need (Meng et al. 2022, arXiv
2202.05262).  The **score** is the mean over all answers of the right class's logit minus the mean
of the other logits.
"""

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from ..adapters import LoRA
from ..checks import whole
from ..experiments.runs import read_run
from ..files import outputs, plots
from ..tracing import swapped, trace

KIND = "patching maps"                                    # of the picture
COLUMNS = ["map", "layer", "head", "token", "value"]
PARTS = {"block": "residual stream after a block", "attn": "output of attention",
         "mlp": "output of the feed-forward part"}


class Patching(NamedTuple):
    """How much each value restores: 0 is the corrupted score and 1 the clean score.

    parts      {``block``, ``attn`` or ``mlp``: (layers, tokens)}, one part at one token.
    heads      (layers, heads), the output of one head at all tokens.
    clean, corrupted  the two scores.
    """

    parts: dict
    heads: np.ndarray
    clean: float
    corrupted: float


class Attribution(NamedTuple):
    """How much each part adds to the score directly, through the last norm with its scale frozen
    and through the output layer.  The sum of all of them and ``rest`` is the score.

    heads      (layers, heads), ``mlp`` (layers,), ``embedding`` a number.
    rest       biases of attention, of the last norm and of the output layer, and a bottleneck
               behind attention.
    """

    heads: np.ndarray
    mlp: np.ndarray
    embedding: float
    rest: float


class Lens(NamedTuple):
    """Answers read from the residual stream before each block and after the last, (layers + 1,).

    accuracy   share of answers that are right if the stream is read there (the logit lens).
    backward   share of answers whose right class comes out if the gradient of the score there is
               read through the output layer's matrix: whether the stream is to be moved towards
               the answer itself (after Katz et al. 2024, arXiv 2402.12865).
    """

    accuracy: np.ndarray
    backward: np.ndarray


def blocks_of(model):
    """Return a trunk's blocks.  Raises ``ValueError`` unless they share one residual stream."""
    trunk = getattr(model, "trunk", model)
    blocks = getattr(trunk, "h", [])
    if not blocks or not hasattr(trunk, "ln_f") or not all(
            hasattr(block, part) for block in blocks for part in ("attn", "mlp")):
        raise ValueError(f"patch: {type(trunk).__name__} has no blocks of attention and "
                         "feed-forward parts around one residual stream, expected a GPT-2 or a "
                         "Llama")
    return blocks


def projection(attn):
    """Return (name, layer) of the projection that mixes the heads of an attention layer."""
    return next((name, getattr(attn, name)) for name in ("c_proj", "o_proj") if hasattr(attn, name))


def matrix(layer):
    """Return the matrix of a linear layer, with its low-rank adapter if it has one."""
    return layer.merged() if isinstance(layer, LoRA) else layer.weight.data


def readout(model):
    """Return (weight, bias) of the layer that turns hidden states into logits: the output layer of
    an FPT, the token table of a language model."""
    if hasattr(model, "output"):
        return matrix(model.output), model.output.bias.data
    return model.lm_head.weight.data.T, 0.0


def start_of_stream(t):
    """Return the name of the layer whose output enters the first block, in a trace."""
    return next(name for name in ("trunk.wpe", "input", "wte") if name in t.outputs)


def gradient_of_score(logits, y, classes):
    """Return the score's gradient with respect to the logits, which does not depend on them."""
    if (y.dtype.kind not in "iu" or y.size * classes != logits.size or y.min() < 0
            or y.max() >= classes):
        raise ValueError(f"patch: the answers are {y.dtype} of shape {y.shape}, expected integers "
                         f"below {classes} for logits of shape {logits.shape}")
    right = np.arange(classes) == y.reshape(*logits.shape[:-1], -1, 1)
    gradient = np.where(right, 1.0, -1.0 / (classes - 1)) / right.sum()
    return gradient.reshape(logits.shape).astype(logits.dtype)


def patch(model, clean, corrupted, score):
    """Return the :class:`Patching` of a model.

    clean, corrupted  inputs of one shape, (B, T, ...).
    score             a function of the logits, which gives a number.

    Raises ``ValueError`` where both inputs have one score.
    """
    if clean.shape != corrupted.shape:
        raise ValueError(f"patch: the clean inputs have shape {clean.shape}, the corrupted ones "
                         f"{corrupted.shape}, expected one shape")
    blocks, T = blocks_of(model), clean.shape[1]
    clean_values = {}

    def keep(key):
        return lambda value: clean_values.setdefault(key, value.copy())
    with model.all_frozen():
        with ExitStack() as stack:
            for i, block in enumerate(blocks):
                for part, layer in parts(block).items():
                    stack.enter_context(changed_output(layer, keep((part, i))))
                stack.enter_context(changed_input(projection(block.attn)[1], keep(("heads", i))))
            best = score(model.forward(clean)[0])
        worst = score(model.forward(corrupted)[0])
        if abs(best - worst) < 1e-6 * max(abs(best), abs(worst), 1e-30):
            raise ValueError("patch: the clean and the corrupted inputs have one score, so there "
                             "is nothing to restore")

        def restored():
            return (score(model.forward(corrupted)[0]) - worst) / (best - worst)
        maps = {part: np.zeros((len(blocks), T)) for part in PARTS}
        for i, block in enumerate(blocks):
            for part, layer in parts(block).items():
                # The last block computes only the tokens that are read.
                value = clean_values[part, i]
                first = T - value.shape[1]
                for t in range(max(first, 0), T):
                    at = np.s_[:, t - first]
                    with changed_output(layer, lambda y, v=value, at=at: replaced(y, v, at)):
                        maps[part][i, t] = restored()
        H = model.trunk.config.n_head
        heads = np.zeros((len(blocks), H))
        for (i, head), _ in np.ndenumerate(heads):
            value = clean_values["heads", i]
            D = value.shape[-1] // H
            at = np.s_[..., head * D:(head + 1) * D]
            with changed_input(projection(blocks[i].attn)[1],
                               lambda y, v=value, at=at: replaced(y, v, at)):
                heads[i, head] = restored()
    return Patching(maps, heads, float(best), float(worst))


def parts(block):
    """Return {name in ``PARTS``: layer} of a block."""
    return {"block": block, "attn": block.attn, "mlp": block.mlp}


def replaced(y, value, at):
    """Return a copy of y with ``y[at] = value[at]``."""
    y = y.copy()
    y[at] = value[at]
    return y


def changed_output(layer, function):
    """Within, apply ``function`` to a layer's output; a trace, which records all, takes longer."""
    forward = layer.forward

    def changed(*args, **options):
        y, cache = forward(*args, **options)
        return function(y), cache
    return swapped(vars(layer), "forward", changed)


def changed_input(layer, function):
    """Within, apply ``function`` to a layer's input."""
    forward = layer.forward
    return swapped(vars(layer), "forward", lambda x: forward(function(x)))


def attribute(model, x, y, classes):
    """Return the :class:`Attribution` of a model's score on inputs x with the answers y.

    model  an FPT, or a language model, whose answers are the next tokens and whose ``classes`` are
           the size of its vocabulary.
    """
    blocks = blocks_of(model)
    with model.all_frozen(), trace(model) as t:
        logits, _ = model.forward(x)
    n, H = logits.shape[1], model.trunk.config.n_head
    names = [f"trunk.h.{i}" for i in range(len(blocks))]
    total, norm = t.outputs[names[-1]][:, -n:], model.trunk.ln_f
    variance = total.var(axis=-1, keepdims=True) if hasattr(norm, "bias") else (
        total * total).mean(axis=-1, keepdims=True)       # of an RMS norm, which does not centre
    gradient = gradient_of_score(logits, y, classes)
    direction = gradient @ readout(model)[0].T * norm.weight.data / np.sqrt(variance + norm.eps)
    if hasattr(norm, "bias"):
        direction -= direction.mean(axis=-1, keepdims=True)

    def share(value):
        return float((value[:, -n:] * direction).sum(dtype=np.float64))
    heads = np.zeros((len(blocks), H))
    mixed = {step.layer: step.output for step in t.steps
             if step.op == "attention" and not step.backward}
    for i, block in enumerate(blocks):
        y_heads, layer = mixed[f"{names[i]}.attn"], projection(block.attn)[1]
        w = matrix(layer)
        D = w.shape[0] // H
        for head in range(H):
            rows = slice(head * D, (head + 1) * D)
            heads[i, head] = share(y_heads[..., rows] @ w[rows])
    mlp = np.array([share(t.outputs[f"{name}.mlp"]) for name in names])
    start = t.outputs[start_of_stream(t)]
    score = float((logits * gradient).sum(dtype=np.float64))
    return Attribution(heads, mlp, share(start), score - heads.sum() - mlp.sum() - share(start))


def lens(model, x, y, classes):
    """Return the :class:`Lens` of a model on inputs x with the answers y, see :func:`attribute`."""
    blocks = blocks_of(model)
    before = {id(p): (p.trainable, p.grad) for p in model.parameters()}
    for p in model.parameters():                          # so that gradients come back to the start
        p.trainable, p.grad = True, None
    try:
        with trace(model) as t:
            logits, cache = model.forward(x)
            model.backward(gradient_of_score(logits, y, classes), cache)
        right = y.reshape(*logits.shape[:-1], -1)
        n, (w, b) = logits.shape[1], readout(model)
        names = [start_of_stream(t), *(f"trunk.h.{i}" for i in range(len(blocks)))]

        def share(scores):
            return float((scores.reshape(*right.shape, classes).argmax(-1) == right).mean())
        accuracy = [share(model.trunk.ln_f.forward(t.outputs[name][:, -n:])[0] @ w + b)
                    for name in names]
        backward = [share(t.grads[name][:, -n:] @ w) for name in names]
    finally:
        for p in model.parameters():
            p.trainable, p.grad = before[id(p)]
    return Lens(np.array(accuracy), np.array(backward))


def patch_run(folder, out, examples=64):
    """Write the maps of a run as a picture and, beside it, as a CSV; return a summary as text.

    The corrupted input of a test example is the test example before it, while the answers stay.
    Raises ``ValueError`` or ``FileNotFoundError`` with one line.
    """
    examples = whole("patch", "examples", examples, 2)
    outputs.check_picture("patch", out, KIND)
    outputs.check(out.with_suffix(".csv"), COLUMNS)
    task, run = read_run(folder)
    classes = getattr(task, "classes", None)
    if classes is None:
        raise ValueError(f"patch: {task.name} does not say how many classes an answer has")
    x, y = task.batch(np.random.default_rng([0, 2]), examples, "test")  # no run draws these
    if classes < 2:
        raise ValueError(f"patch: {task.name} has {classes} classes, expected at least 2")

    def score(logits):
        return float((logits * gradient_of_score(logits, y, classes)).sum(dtype=np.float64))
    patching = patch(run.model, x, np.roll(x, 1, axis=0), score)
    direct, by_layer = attribute(run.model, x, y, classes), lens(run.model, x, y, classes)
    names = (task.token_names() if hasattr(task, "token_names")
             else [str(t + 1) for t in range(x.shape[1])])
    plots.save(picture(task.name, examples, names, patching, direct, by_layer), out, KIND)
    outputs.write_csv(out.with_suffix(".csv"), COLUMNS, rows(names, patching, direct, by_layer))
    layer, head = np.unravel_index(patching.heads.argmax(), patching.heads.shape)
    best = np.round(100 * patching.heads[layer, head])
    return (f"score (logit of the right class minus the mean of the others): {patching.clean:.3f}\n"
            f"on clean inputs, {patching.corrupted:.3f} on corrupted ones\n" + (
                "clean inputs score no higher, so there is nothing to restore"
                if patching.clean <= patching.corrupted else
                f"head {layer}.{head} restores most, {best:.0f} % of the difference"
                if best > 0 else "no head restores any of the difference"))


def rows(names, patching, direct, by_layer):
    """Return the CSV's lines, {map, layer, head, token, value}, "" where one does not apply."""
    lines = []

    def add(name, value, layer="", head="", token=""):
        lines.append({"map": name, "layer": layer, "head": head, "token": token,
                      "value": f"{value:.6g}"})
    for part, values in patching.parts.items():
        for (layer, t), value in np.ndenumerate(values):
            add(f"patch {part}", value, layer, token=names[t])
    for name, values in (("patch head", patching.heads), ("direct head", direct.heads),
                         ("direct mlp", direct.mlp), ("lens accuracy", by_layer.accuracy),
                         ("lens backward", by_layer.backward),
                         ("direct embedding", direct.embedding), ("direct rest", direct.rest),
                         ("clean score", patching.clean), ("corrupted score", patching.corrupted)):
        for place, value in np.ndenumerate(values):       # (layer, head), (layer,) or ()
            add(name, value, *place)
    return lines


def picture(task, examples, names, patching, direct, by_layer):
    """Return the maps as a Matplotlib figure."""
    fig, axes = plots.figure(3, 2, width=4.6, height=3.4)
    every = -(-len(names) // 40)
    for ax, (part, title) in zip(axes, PARTS.items(), strict=False):
        heat(fig, ax, patching.parts[part], f"Restored by the\n{title}", 1)
        ax.set_xticks(range(0, len(names), every), names[::every], rotation=90, fontsize=6)
        ax.set_xlabel("token")
    heat(fig, axes[3], patching.heads, "Restored by one head\nat all tokens", 1)
    table = np.column_stack([direct.heads, direct.mlp])
    heat(fig, axes[4], table, "Added to the score directly\nby a head or a feed-forward part",
         np.abs(table).max())
    H = direct.heads.shape[1]
    axes[3].set(xlabel="head", xticks=range(H))
    axes[4].set_xticks(range(H + 1), [*map(str, range(H)), "mlp"])
    axes[4].set_xlabel("head")
    for values, label, style in ((by_layer.accuracy, "residual stream (logit lens)", "-o"),
                                 (by_layer.backward, "gradient of the score", "--s")):
        axes[5].plot(100 * values, style, label=label)
    axes[5].set_title("Right answers when read\nthrough the output layer", fontsize=10)
    axes[5].set(ylabel="%", xlabel="blocks before", xticks=range(len(by_layer.accuracy)))
    axes[5].legend(frameon=False, fontsize=8)
    fig.suptitle(f"{task}: mean over {examples} test examples; a corrupted input is another "
                 "example", fontsize=11)
    return fig


def heat(fig, ax, values, title, most):
    """Draw a map with a row for each block, white at 0."""
    image = ax.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto",
                      interpolation="nearest")
    ax.grid(False)
    ax.set_title(title, fontsize=10)
    ax.set(ylabel="block", yticks=range(len(values)))
    fig.colorbar(image, ax=ax, shrink=0.8)
