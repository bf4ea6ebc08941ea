"""Why a frozen random transformer finds a string: the studies behind docs/results/why.md.

    python -m studies.why [STUDY ...] [--out FOLDER]

Each study is a list of runs; without a name all studies are run in their order.  A run trains one
trunk on bit memory until its test accuracy reaches a goal, or to its last step, and follows the
**match** of the first block: the trace of the form of two inputs over the form's norm, see
:func:`match`.  Every run is a row of ``FOLDER/why-STUDY.csv`` (by default
``studies/results``), written as it ends: the command goes on where it was stopped.

The study *mechanism* looks into a trained block.  The studies of ``GRIDS`` keep their runs in
``runs/why-STUDY``.
"""

import argparse
import itertools
import re
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

import minifpt
from minifpt import functional, optim, training
from minifpt.experiments import tables
from minifpt.experiments.compare import Arm, Column
from minifpt.files import save_text
from minifpt.machine import single_threaded_blas
from minifpt.trunks import forms
from studies import style
from studies.runs import NEVER, RESULTS, fill, read_rows, spread, train_until, trained, write_rows
from studies.sweeps import grid

# What a run depends on, and the defaults: one block, 5 strings of 100 bits in patches of 20.
DEFAULTS = {"task": "bit-memory", "trunk": "random:1x1x128@1.41", "angle": "90", "start": "",
            "freeze": "fpt", "bits": 100, "patch": 20, "lr": 1e-2, "batch_size": 16,
            "dropout": 0.0, "warmup": 0, "seed": 0, "steps": 2000, "goal": 0.95, "every": 25,
            "optimizer": "Adam", "biases": 0.0, "own_token": "read"}
MEASURED = "reached", "last_step", "accuracy", "seconds", "curve", "matches"
ANGLES = *range(0, 181, 15),
COARSE = 0, 60, 75, 90, 105, 120, 150
NAMES = forms.Heads._fields[:4]                           # share, trace, positive, negative


def match(model):
    """Return the match of a model's first block: ``tr F / |F|`` with ``F = sum_h U W_q W_k' U'``,
    where U (inputs, C) is the input layer's weight, centred and times the layer norm's scale.

    Two tokens with the same bits score ``tr F`` more than two with independent bits, whose scores
    have the standard deviation ``|F|``, up to a common factor."""
    form = forms.summed_form(model.trunk, model.input.weight.data)
    return np.trace(form) / np.linalg.norm(form)


def settings(**lists):
    """Return a list of settings, one for each combination of the lists."""
    lists = {key: value if isinstance(value, (list, tuple, range)) else [value]
             for key, value in lists.items()}
    return [DEFAULTS | dict(zip(lists, values, strict=True))
            for values in itertools.product(*lists.values())]


PAPER = {"bits": 1000, "patch": 50, "lr": 1e-3, "batch_size": 4, "dropout": 0.1, "every": 100}
STUDIES = {
    # The angle between queries and keys, then one factor at a time.
    "angle": [*settings(angle=ANGLES, seed=range(3)),
              *settings(angle=COARSE, seed=range(3), trunk=[
                  f"random:1x{heads}x128@1.41" for heads in (2, 4, 8)]),
              *settings(angle=COARSE, seed=range(3), patch=[10, 50]),
              *settings(angle=COARSE, seed=range(3), trunk=[
                  f"random:1x1x128@{scale}" for scale in (0.55, 2.83)]),
              *settings(angle=COARSE, seed=range(3), trunk="random:2x1x128@1.41"),
              *settings(angle=COARSE, seed=range(1), trunk="random:6x1x128@1.41")],
    # The same angles with the input layer started in the heads' positive directions, and on a task
    # that needs places instead of contents.
    "aligned": settings(angle=ANGLES, start="aligned", seed=range(3)),
    "xor": settings(task="bit-xor", trunk="random:1x4x128@1.41", angle=ANGLES, seed=range(3),
                    lr=3e-3, steps=4000, goal=0.995),
    # Angles between those of the study angle, which tests how growth predicts the steps.
    "slope": settings(angle=[95, 100, 110, 115, 125, 130], seed=range(2), steps=10_000),
    # Beyond the cliff: more steps and other learning rates.
    "budget": [*settings(angle=[135, 150, 180, "antisymmetric"], seed=range(2), lr=[1e-2],
                         steps=20_000),
               *settings(angle=[90, 120], start="opposed", seed=range(2), steps=20_000),
               *settings(angle=[135, 180, "antisymmetric"], lr=[3e-3, 3e-2], steps=20_000),
               *settings(angle=135, lr=3e-2, seed=[101, 102], steps=20_000)],
    # Which of the trained parts turns the contents: each is frozen, or starts elsewhere, alone.
    "parts": settings(angle=[90, 120], seed=range(3), steps=4000, freeze=[
        "attn,mlp,ln", "attn,mlp,pos", "attn,mlp,input"]),
    # The same weights, the input layer starts elsewhere.
    "basins": [*settings(angle=[0, 60, 90, 105, 120], start="opposed", seed=range(3)),
               *settings(angle=["antisymmetric"], start=["", "aligned"], seed=range(3))],
    # Antisymmetric forms with the positions frozen, and in more than one block.
    "depth": [*settings(angle="antisymmetric", freeze=["fpt", "attn,mlp,pos"], steps=8000,
                        seed=range(3)),
              *settings(trunk="minigpt-bits", angle="antisymmetric", freeze=["fpt", "attn,mlp,pos"],
                        lr=3e-2, steps=3000, seed=range(5)),
              *settings(trunk=["random:2x1x128@1.41", "random:6x1x128@1.41"], lr=[1e-2, 3e-2],
                        angle="antisymmetric", steps=20_000, seed=range(2))],
    # The paper's size and settings.
    "paper": [*settings(trunk="random:1x12x768", start="aligned", seed=range(3), steps=3000,
                        **PAPER),
              *settings(trunk="random:1x12x768", start="opposed", steps=3000, **PAPER)],
    # What the other studies hold fixed: optimizer, batch, dropout, biases, the task.
    "attack": [*itertools.chain.from_iterable(
                   settings(angle=[60, 90, 120, 150, "antisymmetric", 180], steps=6000,
                            seed=range(2), **change)
                   for change in ({"batch_size": 4}, {"batch_size": 64}, {"dropout": 0.1},
                                  {"biases": 1.0})),
               *settings(optimizer="SGD", lr=0.1, seed=range(2), steps=20_000,
                         angle=[60, 90, 105, 120, 135, "antisymmetric", 180]),
               # Where scores are small, as the derivation assumes.
               *settings(trunk="random:1x1x128@0.35", optimizer="SGD", lr=0.1, angle=[105, 120],
                         seed=range(2), steps=30_000, every=200),
               *settings(task="studies/why.py:Nearest", goal=0.9, seed=range(2), steps=6000,
                         angle=[0, 60, 90, 105, 120, 135, "antisymmetric", 180]),
               *settings(task="studies/why.py:Nearest", goal=0.9, seed=range(2), steps=6000,
                         angle=[120, 180], start="aligned")],
    "twelve": [*settings(trunk="random:12x12x768", start="aligned", seed=range(2), steps=4000,
                         **PAPER),
               *settings(trunk="random:12x12x768", steps=4000, **PAPER | {"every": 200})],
    # No token but the first reads itself.
    "itself": [*settings(angle=[0, 30, 60, 75, 90, 120], start=["", "aligned"], seed=range(3),
                         own_token="masked"),
               *settings(task="bit-xor", trunk="random:1x4x128@1.41", angle=[0, 15, 30, 90, 180],
                         seed=range(3), lr=3e-3, steps=4000, goal=0.995, own_token="masked")],
}


def name_of(trunk, angle):
    """Return the name of a trunk with its queries and keys at an angle; 90 degrees is as drawn."""
    return trunk if str(angle) == "90" else f"{trunk},qk={angle}"


class Nearest(minifpt.tasks.Classification):
    """Which of eight labels stands with the vector that is most like the query?

    Six tokens hold a random vector of 16 numbers and a label, the last one a noisy copy of one of
    the vectors and no label."""

    name, input_dim, tokens, output_dim, output_tokens, classes = "nearest", 24, 7, 8, 1, 8
    options = {}

    def draw(self, rng, size, split):
        x = np.zeros((size, 7, 24), np.float32)
        x[..., :16] = rng.standard_normal((size, 7, 16))
        labels, which = rng.integers(0, 8, (size, 6)), rng.integers(0, 6, size)
        rows = np.arange(size)
        x[:, -1, :16] = (x[rows, which, :16] + x[:, -1, :16]) / 2 ** 0.5
        x[rows[:, None], range(6), 16 + labels] = 1
        return x, labels[rows, which][:, None]


def mask_of_others(n_query, n_key, dtype, mask=functional.causal_mask):
    """Return the causal mask in which no token but the first reads itself."""
    return np.where(np.eye(n_query, n_key, dtype=bool) & (np.arange(n_key) > 0), -np.inf,
                    mask(n_query, n_key, dtype)).astype(dtype)


class SGD:
    """Gradient descent with a momentum of 0.9."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr, self.t = parameters, lr, 0
        self.speed = [np.zeros_like(p.data) for p in parameters]

    def step(self):
        self.t += 1
        for p, speed in zip(self.parameters, self.speed, strict=True):
            speed *= 0.9
            speed += p.grad
            p.data -= self.lr * speed


def run(setting):
    """Train one model; return the setting with what was measured, a row of the CSV file."""
    if setting["own_token"] == "masked":
        with patch.object(functional, "causal_mask", mask_of_others):
            return run(setting | {"own_token": "read"}) | {"own_token": "masked"}
    s = setting
    task = minifpt.tasks.get(s["task"], **({"bits": s["bits"], "patch": s["patch"]}
                                           if s["task"] == "bit-memory" else {}))
    model = minifpt.FPT.for_task(task, name_of(s["trunk"], s["angle"]), s["freeze"], s["seed"],
                                 s["dropout"], start=s["start"] or None)
    optimizer = {"Adam": optim.Adam, "SGD": SGD}[s["optimizer"]](trained(model), s["lr"])
    begin = time.perf_counter()
    for block in model.trunk.h if s["biases"] else ():
        bias = block.attn.c_attn.bias.data                # of queries, keys and values
        bias[:] = s["biases"] * np.random.default_rng([s["seed"], 2]).standard_normal(bias.shape)
    curve, matches = [], [f"0:{match(model):.3f}"]
    for step, accuracy in train_until(
            s["goal"], model, task, optimizer, s["seed"], rate=s["lr"],
            batch_size=s["batch_size"], warmup=s["warmup"], steps=s["steps"], every=s["every"]):
        curve.append(f"{step}:{accuracy:.4f}")
        matches.append(f"{step}:{match(model):.3f}")
    return s | dict(zip(MEASURED, (step if accuracy >= s["goal"] else "", step, f"{accuracy:.4f}",
                                   round(time.perf_counter() - begin), " ".join(curve),
                                   " ".join(matches)), strict=True))


def mechanism(seed):
    """Train the base model and yield rows of ``MECHANISM``: the share of the input layer in the
    positive directions, and the accuracy without a part of the head's form."""
    task = minifpt.tasks.get("bit-memory")
    model = minifpt.FPT.for_task(task, DEFAULTS["trunk"], seed=seed)
    attn, C = model.trunk.h[0].attn.c_attn.weight.data, model.trunk.config.n_embd
    m = attn[:, :C].astype(float) @ attn[:, C:2 * C].T    # one head: D = C
    values, vectors = np.linalg.eigh((m + m.T) / 2)
    positive = values > 0
    optimizer = optim.Adam(trained(model), DEFAULTS["lr"])
    test = task.batch(np.random.default_rng([seed, 1]), 1024, "test")
    tests = train_until(np.inf, model, task, optimizer, seed, rate=DEFAULTS["lr"], steps=501)
    for step in itertools.chain([0], (step for step, _ in tests)):
        inputs = forms.through_norm(model.trunk, 0, model.input.weight.data)
        share = ((inputs @ vectors[:, positive]) ** 2).sum() / (inputs ** 2).sum()
        yield seed, "input layer in positive directions", step, share
    parts = {"positive part": (vectors * np.maximum(values, 0)) @ vectors.T,
             "negative part": (vectors * np.minimum(values, 0)) @ vectors.T,
             "antisymmetric part": (m - m.T) / 2}
    yield seed, "accuracy, whole form", step, training.evaluate(model, task, *test)[1]
    for name, part in parts.items():
        attn[:, :C], attn[:, C:2 * C] = m - part, np.eye(C)
        yield seed, f"accuracy, without the {name}", step, training.evaluate(model, task, *test)[1]
        if name == "negative part":
            with patch.object(functional, "causal_mask", mask_of_others):
                yield (seed, f"accuracy, without the {name}, own token masked", step,
                       training.evaluate(model, task, *test)[1])


MECHANISM = "seed", "measure", "step", "value"


def drawn_anew(seed=0, dropout=0.0, dtype=np.float32):
    """Return the trunk that has read novels, with the queries and keys of each head drawn anew, at
    the norm that their form had."""
    trunk = minifpt.trunks.get("minigpt-language", seed, dropout, dtype)
    rng = np.random.default_rng([seed, 3])
    for block in trunk.h:
        for q, k in zip(*forms.queries_and_keys(block), strict=True):
            new = rng.standard_normal((2, *q.shape))
            scale = (np.linalg.norm(q @ k.T) / np.linalg.norm(new[0] @ new[1].T)) ** 0.5
            q[:], k[:] = scale * new
    return trunk


def mechanisms():
    """Yield the rows of the study *mechanism*."""
    for seed in range(3):
        for *names, value in mechanism(seed):
            yield dict(zip(MECHANISM, (*names, f"{value:.4f}"), strict=True))


FORMS = {"positive": ",qk=0", "independent": "", "antisymmetric": ",qk=antisymmetric",
         "negative": ",qk=180"}
TASKS = {"bit-memory": 1500, "bit-xor": 3000, "mnist": 2000, "typos": 600}


def columns(*names, end=""):
    """Return the columns of a grid, for tasks by name."""
    return [Column(name, {}, {"steps": TASKS[name], "eval_every": TASKS[name] // 15,
                              "test_examples": 1000}, name + end) for name in names]


def of(model, forms):
    """Return the arms of a trunk whose heads have other forms, {label: end of the name}."""
    return [Arm(f"{model}{end}", label=label) for label, end in forms.items()]


# Grids of runs, each arm at its own best learning rate: (columns, arms) of each part.
GRIDS = {
    # Four kinds of head.
    "arms": [(columns(*TASKS), of("random:1x4x128@1.41", FORMS)),
             (columns("bit-memory", "bit-xor", end="-6"), of("random:6x4x128@1.41", FORMS))],
    # Pretrained heads, whole, with a part of their own forms, and drawn anew.
    "bits": [(columns("bit-memory"), of("minigpt-bits", {
                 "whole": "", "antisymmetric": ",qk=antisymmetric"}))],
    "own": [(columns("bit-memory", "bit-xor", "typos"), [
                 *of("minigpt-language", {"whole": ""} | {
                     part: f",qk={part}" for part in forms.PARTS}),
                 Arm("studies/why.py:drawn_anew", label="drawn anew")])],
    # The start of the input layer with the pretrained trunk.
    "start": [(columns("bit-memory", "mnist", "typos"), [
                  Arm("minigpt-language", label=start or "as drawn", start=start)
                  for start in (None, *forms.STARTS[:1])])],
}


def run_grid(name, folder):
    """Do the runs of a grid with five seeds, and write its CSV file after each column."""
    whole = tables.Grid({}, {}, {}, range(5))
    for column, arms in ((column, arms) for columns, arms in GRIDS[name] for column in columns):
        part = grid(Path("runs", f"why-{name}"), [column], arms, range(5), share=0.5,
                    rates=(3e-3, 1e-2, 3e-2, 1e-1))
        for field in "results", "rates", "sweeps":
            getattr(whole, field).update(getattr(part, field))
        save_text(folder / f"why-{name}.csv", tables.rows(whole))


def by_measure(rows):
    """Return the Markdown table of the accuracies of the study *mechanism*."""
    forms = {}
    for row in rows:
        kind, _, form = row["measure"].partition("accuracy, ")
        if not kind:
            forms.setdefault(form, []).append(100 * float(row["value"]))
    seeds = len({row["seed"] for row in rows})
    return tables.markdown([["form after 500 steps", f"accuracy, {seeds} seeds"], *(
        [form, tables.spread(numbers)] for form, numbers in forms.items())])


def table(path):
    """Return a study's Markdown table: a row for each setting, with the steps of each seed."""
    rows, study = read_rows(path), path.stem.removeprefix("why-")
    if study == "mechanism":
        return by_measure(rows)
    if study == "aligned":                                # beside other starts
        others = [row for name in ("angle", "budget", "basins")
                  for row in read_rows(path.with_name(f"why-{name}.csv"))
                  if is_base(row) and (name != "basins" or row["start"]
                                       or row["angle"] == "antisymmetric")]
        rows = longest(sorted(others + rows, key=lambda row: row["start"]))
        return by_angle(rows, (0, *COARSE[1:-1], 135, 150, 165, 180, "antisymmetric"))
    if study == "itself":                                 # beside the same runs with the own token
        same = {key(row | {"own_token": "read"}) for row in rows}
        read = [row for name in ("angle", "aligned", "xor")
                for row in read_rows(path.with_name(f"why-{name}.csv")) if key(row) in same]
        rows = sorted(read + rows, key=lambda row: (row["task"] == "bit-xor", row["start"]))
    if study in ("attack", "itself"):
        return by_angle(rows, sorted({row["angle"] for row in rows}, key=lambda angle: float(
            angle) if angle.isdigit() else 170.0))        # antisymmetric ones before 180 degrees
    return by_angle(rows)


def is_base(row):
    """Return whether a run differs from the base in angle, start, seed and steps alone."""
    return all((row.get(name) or str(default)) == str(default) for name, default in
               DEFAULTS.items() if name not in ("angle", "start", "seed", "steps"))


def longest(rows):
    """Return the rows of the longest runs at each start and angle."""
    most = {}
    for row in rows:
        where = row["start"], row["angle"]
        most[where] = max(most.get(where, 0), int(row["steps"]))
    return [row for row in rows if int(row["steps"]) == most[row["start"], row["angle"]]]


def by_angle(rows, angles=COARSE):
    """Return the Markdown table of the studies *angle* and *attack*: a row for what differs from
    the base, and a column for each of the angles."""
    base = re.split("[:x@]", DEFAULTS["trunk"])
    cells, angles = {}, [*map(str, angles)]
    for row in rows:
        _, blocks, heads, _, scale = re.split("[:x@]", row["trunk"])
        values = [("{} heads", heads, base[2]), ("scale {}", scale, base[4]),
                  ("{} blocks", blocks, base[1]), *((text, row.get(name), str(DEFAULTS[name]))
                                                    for name, text in CHANGES.items())]
        name = ", ".join(text.format(value) for text, value, default in values
                         if value and value != default) or "base"
        name = name.replace("studies/why.py:Nearest", "the task *nearest*")
        name = name.replace("bit-xor", "bit XOR")
        cells.setdefault(name, {}).setdefault(row["angle"], []).append(row)
    heads = [f"{angle}°" if angle.isdigit() else angle for angle in angles]
    return tables.markdown([["steps at the angle", *heads], *(
        [name, *(answer(runs[angle]) if angle in runs else "" for angle in angles)]
        for name, runs in cells.items())])


CHANGES = {"patch": "patches of {}", "task": "{}", "batch_size": "batches of {}",
           "dropout": "dropout of {}", "biases": "biases of {}", "optimizer": "{}", "start": "{}",
           "own_token": "own token {}"}


def answer(rows):
    """Return the median of the steps to the goal and their range, where a run that did not get
    there counts as later than all others."""
    steps = [int(row["reached"] or NEVER) for row in rows]
    return spread(steps, int(rows[0]["last_step" if min(steps) == NEVER else "steps"]))


def picture(target, folder=RESULTS):
    """Draw the steps to the goal against the angle between queries and keys."""
    lines = {"bit memory, random start": (("angle", "slope", "budget"), style.RANDOM, "o"),
             "bit memory, aligned start": (("aligned",), style.COLORS["aligned"], "s"),
             "bit XOR, random start": (("xor",), style.COLORS["neutral"], "^")}
    fig, (ax,) = style.figure(height=4.6)
    for label, (studies, color, marker) in lines.items():
        rows = [row for study in studies for row in read_rows(folder / f"why-{study}.csv")
                if row["angle"] != "antisymmetric" and row["start"] != "opposed"
                and (study == "xor" or is_base(row))]
        runs = {}
        for row in longest(rows):
            runs.setdefault(float(row["angle"]), []).append(row)
        medians = {angle: np.median([int(row["reached"] or NEVER) for row in runs[angle]])
                   for angle in sorted(runs)}
        solved = {angle: median for angle, median in medians.items() if median < NEVER / 2}
        ax.plot([*solved], [*solved.values()], "-", marker=marker, color=color, label=label)
        for angle in {*medians} - {*solved}:
            most = int(runs[angle][0]["steps"])
            if most >= max(solved.values()):              # else too few to compare
                style.mark_limit(ax, angle, most, color, marker)
    ax.axvline(90, color="0.4", linestyle=":", linewidth=1)
    ax.text(91, 14, "as random weights are", color="0.3")
    style.count_steps(ax.yaxis, (10, 30, 100, 300, 1000, 3000, 10_000, 30_000))
    ax.set(xlabel="angle between the frozen queries and keys (degrees)",
           ylabel="steps until solved", xticks=range(0, 181, 30), ylim=(12, 60_000))
    ax.legend(loc="upper left", frameon=False)
    style.save(fig, target, "Beyond a right angle a random start needs ever more steps")


def key(setting):
    """Return what a run depends on, as texts; a row of a file may lack a column."""
    return tuple(str(setting.get(name, "")) or str(default) for name, default in DEFAULTS.items())


def run_all(names, folder):
    """Fill the CSV file of each study with a row for each of its runs."""
    for name in names:
        if name in GRIDS:
            run_grid(name, folder)
            continue
        path = folder / f"why-{name}.csv"
        if name == "mechanism":
            with single_threaded_blas:
                write_rows(path, [*mechanisms()], MECHANISM)
            continue
        with single_threaded_blas:
            fill(path, STUDIES[name], run, key)


def main():
    every = *STUDIES, "mechanism", *GRIDS
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(every))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSVs")
    args = parser.parse_args()
    names = args.studies or every
    for name in names:
        if name not in every:
            parser.error(f"no study '{name}', expected one of {', '.join(every)}")
    run_all(names, args.out)


if __name__ == "__main__":
    main()
