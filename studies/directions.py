"""Directions start, the spectrum finishes: the study behind docs/results/directions.md.

    python -m studies.directions [STUDY ...] [--workers N] [--out FOLDER]
    python -m studies.directions --report         # print the tables, and what was predicted

A head compares tokens by its form ``W_q W_k'``.  The **spectrum** of a form is its singular values
over their norm, its **directions** are its singular vectors.  An arm is a trunk whose forms get
another spectrum, another norm or another trace before training on bit memory with five strings of
five patches each.  The queries' biases keep what they add to the score of each key.

    dose          random blocks; spectra from flat to a single strong direction
    transplants   the pretrained trunk and its control exchange spectrum and norm
    trace         keys turned towards the queries or away from them
    decay         trunks of ``studies.decay --shape 6x4x128``, from its folder ``runs``

**The rule** is one for all arms.  Three learning rates are tried with three validation seeds.  A
validation run ends at level 95, at its last step, or at the step at which another rate reached
level 95 with the same seed.  On each seed the rate wins that reaches level 95 first, then the one
that is more accurate there.  The rate with most wins is chosen, of three winners the middle rate;
the third seed is not run if the first two agree (:func:`winner`, :func:`choose_rate`).  Five test
seeds are then trained to ``MOST_STEPS`` at most.  They end at level 99, with six blocks, which take
six times as long, at level 95.

With 20 or more bits in a patch a level is a test accuracy.  With fewer bits a model that compares
single patches cannot reach 100 %, and levels are shares of its gain: see :func:`level`.

Every run is a row of ``FOLDER/directions-STUDY.csv``, by default in ``studies/results``, with its
whole curve.  It is written as the run ends; a run that is there is skipped, so the command goes on
where it was stopped.  Arms run in the order in which they are declared.
"""

import argparse
import csv
import io
import itertools
import math
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

import minifpt
from minifpt.experiments.tables import markdown
from minifpt.machine import kept_memory, one_core
from studies import style, trunks
from studies.runs import NEVER, RESULTS, curve_of, first_step, number, read_rows, spread, train_to

RATES = 1e-2, 3e-2, 3e-3                                  # the likeliest first; 1e-2 is the middle
VALIDATION_SEEDS, SEEDS = (2001, 2002, 2003), (2101, 2102, 2103, 2104, 2105)
MOST_STEPS, EVERY = 1500, 25                              # a test comes every 25 steps
LEVELS = 80, 85, 90, 95, 99
PRETRAINED, CONTROL = "minigpt-language", "statistics:minigpt-language"


class Arm(NamedTuple):
    """What a run depends on, beside its learning rate and its seed.

    spectrum  ``own``; ``flat``; ``half flat``, the square roots; ``tau T``, ``exp(-i / T)``;
              ``other``, that of the other trunk of ``OTHER``, head by head.
    size      what stays of the form: its ``norm`` or its ``largest`` singular value; or the
              ``norm of other``.
    trace     trace of the form over its norm, to which the keys are turned; "" leaves them.
    """

    trunk: str
    patch: int = 20
    spectrum: str = "own"
    size: str = "norm"
    trace: str = ""


OTHER = {PRETRAINED: CONTROL, CONTROL: PRETRAINED}
COLUMNS = (*Arm._fields, "lr", "seed", "reached", "last_step", "accuracy", "directions", "norm",
           "largest", "mean_trace", "seconds", "curve")
TAUS = "own", "tau 8", "tau 4", "tau 2", "flat", "tau 16", "tau 1"      # the slowest last
ONE_BLOCK = "random:1x4x128@1.41"
STUDIES = {
    "dose": [*(Arm(ONE_BLOCK, patch, spectrum) for patch in (20, 40, 10) for spectrum in TAUS[:-1]),
             *(Arm(ONE_BLOCK, 20, spectrum, "largest") for spectrum in TAUS[1:-1]),
             *(Arm("random:2x4x128@1.41", 20, spectrum) for spectrum in TAUS[:-1]),
             *(Arm(ONE_BLOCK, patch, "tau 1", size) for patch, size in (
                 (20, "norm"), (10, "norm"), (20, "largest"), (40, "norm"))),
             Arm("random:2x4x128@1.41", 20, "tau 1"),
             *(Arm(f"random:{blocks}x4x128@1.41", patch, spectrum) for blocks, patch in (
                 (1, 5), (6, 20)) for spectrum in TAUS)],
    # First directions and spectra crossed at the pretrained norm.
    "transplants": [Arm(trunk, 20, spectrum, size) for trunk, spectrum, size in (
        (PRETRAINED, "own", "norm"), (CONTROL, "own", "norm"), (PRETRAINED, "flat", "norm"),
        (CONTROL, "other", "norm of other"), (CONTROL, "flat", "norm of other"),
        (CONTROL, "flat", "norm"), (PRETRAINED, "other", "norm of other"),
        (PRETRAINED, "flat", "norm of other"), (PRETRAINED, "own", "norm of other"),
        (CONTROL, "other", "norm"), (PRETRAINED, "other", "norm"),
        (CONTROL, "own", "norm of other"), (PRETRAINED, "half flat", "norm"),
        (CONTROL, "half flat", "norm"))],
    "trace": [Arm(trunk, 20, spectrum, "norm", trace) for trunk, spectra in (
        (ONE_BLOCK, ("own", "tau 2", "flat")), (PRETRAINED, ("own", "flat")))
        for spectrum in spectra for trace in ("-0.5", "0", "0.25", "0.5")],
    "decay": [Arm(f"runs/6x4x128-{text}-0.npz", 20, spectrum) for spectrum in ("own", "flat")
              for text in ("in-order-0", "in-order-0.3", "shuffled-0.1")]}


# ------------------------------------------------------------------------------- forms of the heads


class Form(NamedTuple):
    """The form of a head as ``left * values @ right'``, float64, and what its queries' bias adds to
    the score of a key, ``W_k b_q``."""

    left: np.ndarray                                      # (C, D)
    values: np.ndarray                                    # (D,), the largest first
    right: np.ndarray                                     # (C, D)
    preference: np.ndarray                                # (C,)


def columns_of(attn, head):
    """Return the columns of a head's queries in ``c_attn``, and those of its keys."""
    channels = attn.c_attn.weight.data.shape[1] // 3
    queries = np.arange(channels).reshape(attn.n_head, -1)[head]
    return queries, channels + queries


def form_of(attn, head):
    """Return the :class:`Form` of a head."""
    queries, keys = columns_of(attn, head)
    w, b = attn.c_attn.weight.data.astype(np.float64), attn.c_attn.bias.data
    (q, r_q), (k, r_k) = np.linalg.qr(w[:, queries]), np.linalg.qr(w[:, keys])
    u, values, vt = np.linalg.svd(r_q @ r_k.T)
    return Form(q @ u, values, k @ vt.T, w[:, keys] @ b[queries])


def set_form(attn, head, form):
    """Write a :class:`Form` into a head's queries, keys and queries' biases, in place.  A query
    and its key share each singular value evenly."""
    queries, keys = columns_of(attn, head)
    w, b = attn.c_attn.weight.data, attn.c_attn.bias.data
    roots = np.sqrt(np.maximum(form.values, 1e-8 * form.values.max()))    # a bias is divided by it
    w[:, queries], w[:, keys] = form.left * roots, form.right * roots
    b[queries] = form.right.T @ form.preference / roots


def new_values(values, spectrum, size, other):
    """Return the singular values of a form with another spectrum, at the size that an arm keeps;
    ``other`` are those of the same head of the other trunk."""
    name, _, tau = spectrum.partition("tau ")
    shape = (np.exp(-np.arange(len(values)) / float(tau)) if tau else
             {"own": values, "flat": np.ones_like(values), "half flat": np.sqrt(values),
              "other": other}[name])
    if size == "largest":
        return shape * values.max() / shape.max()
    wanted = other if size == "norm of other" else values
    return shape * np.linalg.norm(wanted) / np.linalg.norm(shape)


def turned(form, trace):
    """Return a form whose right directions are turned along the left ones, or away from them, until
    its trace over its norm is ``trace``; left directions and values stay.

    The right directions become the orthonormal ones nearest to ``right + t left``; t is found by
    halving an interval."""
    def right_of(t):
        u, _, vt = np.linalg.svd(form.right + t * form.left, full_matrices=False)
        return u @ vt

    def trace_of(t):
        return np.sum(form.values * np.sum(form.left * right_of(t), axis=0)) / np.linalg.norm(
            form.values)
    low, high = -10.0, 10.0
    if not trace_of(low) < trace < trace_of(high):
        raise ValueError(f"no turn gives a trace over norm of {trace:g}")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if trace_of(middle) < trace else (low, middle)
    return form._replace(right=right_of(middle))


def change(trunk, arm, seed):
    """Give the heads of a trunk the forms of an arm, in place."""
    needs_other = "other" in arm.spectrum + arm.size
    other = minifpt.trunks.get(OTHER[arm.trunk], seed) if needs_other else trunk
    for block, other_block in zip(trunk.h, other.h, strict=True):
        for head in range(block.attn.n_head):
            form = form_of(block.attn, head)
            values = new_values(form.values, arm.spectrum, arm.size,
                                form_of(other_block.attn, head).values)
            form = form._replace(values=values)
            set_form(block.attn, head, turned(form, float(arm.trace)) if arm.trace else form)


def measures(trunk):
    """Return means over a trunk's heads: the participation ratio of the form's singular values,
    ``(sum of squares)^2 / sum of fourth powers``, its norm, its largest singular value, and its
    trace over its norm."""
    forms = [form_of(block.attn, head) for block in trunk.h for head in range(block.attn.n_head)]
    numbers = []
    for form in forms:
        squares, norm = form.values ** 2, np.linalg.norm(form.values)
        numbers.append((squares.sum() ** 2 / (squares ** 2).sum(), norm, form.values.max(),
                        np.sum(form.values * np.sum(form.left * form.right, axis=0)) / norm))
    return np.mean(numbers, axis=0)


# --------------------------------------------------------------------------------------------- runs


def reach_of_patches(bits):
    """Return the largest test accuracy of a model that compares single patches of so many bits.

    Half of the bits are hidden.  Of the four wrong strings some agree with all visible bits; a
    hidden bit is guessed by a vote of the right string and of those."""
    right = 0.0
    for visible, wrong in itertools.product(range(bits), range(5)):       # at least one is hidden
        agree = 0.5 ** visible
        p = (math.comb(bits, visible) * 0.5 ** bits * (bits - visible) / bits * math.comb(4, wrong)
             * agree ** wrong * (1 - agree) ** (4 - wrong))
        for same in range(wrong + 1):                     # of the wrong strings, in this bit
            lead = 2 * (1 + same) - (1 + wrong)
            right += p * math.comb(wrong, same) * 0.5 ** wrong * (lead > 0 or 0.5 * (lead == 0))
    return 0.5 + right                                    # the visible bits are right


def level(percent, patch):
    """Return the test accuracy of a level.  With fewer than 20 bits in a patch it is the same share
    of the way from 75 % to :func:`reach_of_patches` as the level is from 75 to 100 %."""
    share = (percent / 100 - 0.75) / 0.25
    return 0.75 + share * ((reach_of_patches(patch) if patch < 20 else 1.0) - 0.75)


def last_level(arm):
    """Return the level at which the test runs of an arm end."""
    return 99 if arm.trunk.startswith(("random:1x", "random:2x")) else 95


@one_core
@kept_memory
def run(arm, lr, seed, goal, most_steps):
    """Train one model to a test accuracy, at most ``most_steps`` steps; return its row."""
    begin = time.perf_counter()
    task = minifpt.tasks.get("bit-memory", bits=5 * arm.patch, patch=arm.patch)
    model = minifpt.FPT.for_task(task, arm.trunk, seed=seed, dropout=0.0)
    change(model.trunk, arm, seed)
    numbers = [f"{number:.4g}" for number in measures(model.trunk)]
    curve, reached, step = train_to(model, task, lr, seed, most_steps, goal)
    last = curve[-1].split(":")[1] if curve else "nan"
    return dict(zip(COLUMNS, map(str, (*arm, f"{lr:g}", seed, reached, step, last, *numbers,
                                       round(time.perf_counter() - begin), " ".join(curve))),
                    strict=True))


def steps_to(percent, row):
    """Return the step of a run's first test at a level, or ``NEVER``."""
    return first_step(level(percent, int(row["patch"])), row)


def winner(rows):
    """Return the learning rate that wins on one validation seed: fewest steps to level 95, then the
    highest accuracy at the last test that all runs took."""
    common = min(max(curve_of(row), default=0) for row in rows)
    return min(rows, key=lambda row: (steps_to(95, row), -curve_of(row).get(common, 0)))["lr"]


def choose_rate(winners):
    """Return the learning rate that won on most validation seeds, or the middle one of three."""
    most = max(winners, key=winners.count)
    return most if winners.count(most) > 1 else f"{sorted(RATES)[1]:g}"


def append(path, row):
    """Add a row to a CSV file in one write, so that several processes can do so."""
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerow(row)
    with path.open("a", newline="", encoding="utf-8") as file:
        file.write(text.getvalue())
    print(path.stem, *list(row.values())[:15], flush=True)


def run_arm(arm, path):
    """Do the runs of an arm that the CSV file ``path`` lacks, and append them to it."""
    rows = {(row["lr"], row["seed"]): row for row in read_rows(path)
            if key_of(row) == arm}

    def row_of(lr, seed, goal, most_steps=MOST_STEPS):
        key = f"{lr:g}", str(seed)
        if key not in rows:
            rows[key] = run(arm, lr, seed, goal, most_steps)
            append(path, rows[key])
        return rows[key]
    winners = []
    for seed in VALIDATION_SEEDS:
        if len(winners) == 2 and winners[0] == winners[1]:
            break                                         # the third seed cannot change the choice
        trials = []
        for lr in RATES:
            most = min([MOST_STEPS, *(steps_to(95, row) for row in trials)])
            trials.append(row_of(lr, seed, level(95, arm.patch), most))
        winners.append(winner(trials))
    for seed in SEEDS:
        row_of(float(choose_rate(winners)), seed, level(last_level(arm), arm.patch))


# ---------------------------------------------------------------------------------------- the page


PREDICTIONS = RESULTS.parent / "directions-predictions.csv"
WORDS = {PRETRAINED: "pretrained", CONTROL: "control",
         "runs/6x4x128-in-order-0-0.npz": "decay 0", "runs/6x4x128-in-order-0.3-0.npz": "decay 0.3",
         "runs/6x4x128-shuffled-0.1-0.npz": "shuffled, decay 0.1"}
# Trunks of the study of trunks.
FAMILIES = {PRETRAINED: ("next byte", style.PRETRAINED),
            "masked-t5": ("T5's form", style.COLORS["masked-t5"]),
            "masked-bert": ("BERT's form", style.COLORS["masked-bert"])}


class Outcome(NamedTuple):
    """The test runs of an arm: medians of five seeds, ``NEVER`` where most did not get there."""

    lr: str
    rows: list
    directions: float                                     # participation ratio, mean of the seeds
    steps: dict                                           # {level: median}
    way: float                                            # median of the steps from 80 to 95 %


def key_of(row):
    """Return the arm of a row."""
    return Arm(row["trunk"], int(row["patch"]), *(row[name] for name in Arm._fields[2:]))


def outcomes(study, folder=RESULTS):
    """Return {arm: :class:`Outcome`} of the arms of a study whose five test seeds are run."""
    by_arm = {}
    for row in read_rows(folder / f"directions-{study}.csv"):
        if int(row["seed"]) in SEEDS:
            by_arm.setdefault(key_of(row), []).append(row)
    return {arm: outcome_of(by_arm[arm]) for arm in STUDIES[study]
            if len(by_arm.get(arm, ())) == len(SEEDS)}


def outcome_of(rows):
    """Return the :class:`Outcome` of the test rows of an arm."""
    steps = {percent: float(np.median([steps_to(percent, row) for row in rows]))
             for percent in LEVELS}
    return Outcome(rows[0]["lr"], rows, float(np.mean([float(row["directions"]) for row in rows])),
                   steps, float(np.median([way_of(row) for row in rows])))


def way_of(row):
    """Return the steps of a run from level 80 to level 95.  A run that ended before level 95 took
    more than its steps since level 80; that is ``NEVER`` plus these steps."""
    start, end = steps_to(80, row), steps_to(95, row)
    return end - start if end < NEVER else NEVER + max(0, int(row["last_step"]) - start)


def name_of(arm):
    """Return the words for an arm's spectrum and trace."""
    words = {"own": "own", "other": "the other's"}.get(arm.spectrum, arm.spectrum)
    return words + f", trace {arm.trace}" * bool(arm.trace)


def norm_of(arm):
    """Return whose norm the forms of an arm have."""
    return OTHER[arm.trunk] if arm.size == "norm of other" else arm.trunk


def spectrum_of(arm):
    """Return whose spectrum the forms of a transplant have, or its name."""
    return {"own": arm.trunk, "other": OTHER.get(arm.trunk)}.get(arm.spectrum, arm.spectrum)


def table(study, folder=RESULTS):
    """Return the Markdown table of a study: a row for each arm whose runs are complete."""
    results = outcomes(study, folder)
    head = {"dose": ["blocks", "bits", "spectrum", "same"],
            "transplants": ["directions", "spectrum", "norm"],
            "trace": ["trunk", "spectrum", "trace"],
            "decay": ["trunk", "spectrum"]}[study]
    lines = [[*head, "r", "80 %", "95 %", "80 to 95 %", "99 %", "rate"]]
    for arm, outcome in results.items():
        blocks = arm.trunk.partition(":")[2].partition("x")[0]
        first = {"dose": [blocks, str(arm.patch), name_of(arm), arm.size],
                 "transplants": [WORDS.get(key, key) for key in (
                     arm.trunk, spectrum_of(arm), norm_of(arm))],
                 "trace": [WORDS.get(arm.trunk, "random block"), arm.spectrum, arm.trace],
                 "decay": [WORDS.get(arm.trunk), arm.spectrum]}[study]
        lines.append([*first, f"{outcome.directions:.1f}",
                      *(spread([steps_to(percent, row) for row in outcome.rows], MOST_STEPS)
                        for percent in (80, 95)),
                      spread([way_of(row) for row in outcome.rows], MOST_STEPS),
                      number(outcome.steps[99], MOST_STEPS) * (last_level(arm) == 99), outcome.lr])
    return markdown(lines)


def table_of_trunks():
    """Return the Markdown table of three pretrained trunks, with a flat spectrum, and of their
    controls, from the study of trunks."""
    lines = [["trunk", "spectrum", "80 %", "95 %", "80 to 95 %", "rate"]]
    for trunk, (words, _) in FAMILIES.items():
        for name, change, spectrum in ((trunk, "", "pretrained"), (trunk, "flat forms", "flat"),
                                       (f"statistics:{trunk}", "", "control's")):
            rows = runs_of_trunks(name, change)
            lines.append([words if spectrum != "control's" else f"{words}, control",
                          spectrum if spectrum != "control's" else "own",
                          *(spread([steps_to(percent, row) for row in rows], 3000)
                            for percent in (80, 95)),
                          spread([way_of(row) for row in rows], 3000), rows[0]["lr"]])
    return markdown(lines)


def judged(folder=RESULTS):
    """Yield (study, arm, level, low, high, median, whether it lies within) for each interval of
    the predictions whose arm is run."""
    for row in read_rows(PREDICTIONS):
        outcome = outcomes(row["study"], folder).get(key_of(row))
        if outcome is None:
            continue
        for percent in (80, 95):
            low, high = (NEVER if row[f"{end}_{percent}"] == "never"
                         else float(row[f"{end}_{percent}"]) for end in ("low", "high"))
            median = outcome.steps[percent]
            yield row["study"], key_of(row), percent, low, high, median, low <= median <= high


def pairs(folder=RESULTS):
    """Return the pairs of transplants that the predictions name, as lists of (first, second):
    ``directions`` of equal spectrum and norm, pretrained first; ``spectra`` of equal directions and
    norm, the pretrained spectrum first."""
    results = outcomes("transplants", folder)
    by_parts = {(arm.trunk, spectrum_of(arm), norm_of(arm)): outcome
                for arm, outcome in results.items()}
    both, spectra = (PRETRAINED, CONTROL), (PRETRAINED, CONTROL, "flat")
    directions = [((PRETRAINED, spectrum, norm), (CONTROL, spectrum, norm))
                  for spectrum in spectra for norm in both]
    others = [((trunk, PRETRAINED, norm), (trunk, spectrum, norm))
              for trunk in both for norm in both for spectrum in (CONTROL, "flat")]
    return by_parts, *([(one, two) for one, two in each if {one, two} <= {*by_parts}]
                       for each in (directions, others))


def report(folder=RESULTS):
    """Print the tables, the outcome of each predicted interval, and the ratios of the pairs."""
    for study in STUDIES:
        if outcomes(study, folder):
            print(f"{study}\n\n{table(study, folder)}\n")
    results = [*judged(folder)]
    for study, arm, percent, low, high, median, holds in results:
        low, high, median = (number(steps, MOST_STEPS) for steps in (low, high, median))
        print(study, *arm, f"{percent} %: {low} to {high}, {median},",
              "held" if holds else "missed")
    for study in STUDIES:
        own = [result for result in results if result[0] == study]
        print(study, f"{sum(result[-1] for result in own)} of {len(own)} intervals held")
    by_parts, directions, spectra = pairs(folder)
    for name, chosen in ("directions", directions), ("spectra", spectra):
        for one, two in chosen:
            a, b = by_parts[one], by_parts[two]
            print(name, *(WORDS.get(key, key) for key in (*one, "against", *two)),
                  f"to 80 %: {a.steps[80] / b.steps[80]:.2f}, way: {a.way / b.way:.2f}")


def median_curve(rows, last):
    """Return steps, and the median, least and largest accuracy of some runs at each, in per cent,
    until half of the runs have ended.  A run that has ended keeps its last accuracy."""
    end = np.median([max(curve_of(row)) for row in rows])
    steps = np.arange(EVERY, min(last, end) + 1, EVERY)
    curves = np.array([[max((step, accuracy) for step, accuracy in curve_of(row).items()
                            if step <= at)[1] for at in steps] for row in rows])
    return steps, *(100 * f(curves, axis=0) for f in (np.median, np.min, np.max))


def runs_of_trunks(trunk, change=""):
    """Return the rows on bit memory of a trunk in the study of trunks: three seeds, which end at
    95 %."""
    study = "reasons" if change else "pretrained"
    return [row | {"patch": "20"} for row in
            trunks.test_runs(RESULTS, (study, trunk, change))]


def picture_of_curves(target, last=725):
    """Draw the learning curves of the pretrained trunk, of its flat spectrum, and of the control:
    the median of three seeds of the study of trunks, and their range."""
    fig, (ax,) = style.figure(height=4.4)
    for trunk, change, label, colour, dash in (
            (PRETRAINED, "", "pretrained", style.PRETRAINED, "-"),
            (PRETRAINED, "flat forms", "pretrained, flat spectrum", style.PRETRAINED, "--"),
            (CONTROL, "", "matched random control", style.CONTROL, "-.")):
        steps, median, least, largest = median_curve(runs_of_trunks(trunk, change), last)
        ax.plot(steps, median, dash, color=colour, linewidth=2.2, label=label)
        ax.fill_between(steps, least, largest, color=colour, alpha=0.18, linewidth=0)
    for percent in (80, 95):
        ax.axhline(percent, color="0.5", linewidth=1)
    style.mark_chance(ax, 75)
    ax.set(xlabel="training steps", ylabel="bits right (%)", ylim=(73.5, 98), xlim=(0, last),
           yticks=(75, 80, 85, 90, 95))
    ax.legend(frameon=False, loc=(0.68, 0.08))
    style.save(fig, target, "The pretrained trunk is first at 80 % and last at 95 %")


def law(ratio, bits=20):
    """Return the steps from level 80 to level 95 of one block with four heads, by the participation
    ratio of its heads and the bits in a patch: fitted by hand to 20 and 10 bits at equal norm."""
    return 50 + 135 * bits / np.asarray(ratio) ** 2


def picture_of_dose(target, folder=RESULTS):
    """Draw steps of one block against the participation ratio: to each level with 20 bits in a
    patch at equal norm; and from level 80 to level 95 with several numbers of bits."""
    every = {arm: outcome for arm, outcome in outcomes("dose", folder).items()
             if arm.trunk == ONE_BLOCK}
    results = {arm: outcome for arm, outcome in every.items() if arm.patch == 20}
    fig, (left, right) = style.figure(2, 1, 4.2)
    order = sorted((outcome for arm, outcome in results.items() if arm.size == "norm"),
                   key=lambda outcome: outcome.directions)
    for percent, colour in zip((80, 90, 95, 99), style.SHADES, strict=True):
        points = [(outcome.directions, outcome.steps[percent]) for outcome in order]
        solved = [point for point in points if point[1] < NEVER]
        left.plot(*zip(*solved, strict=True), "o-", color=colour, label=f"{percent} %")
        for x in (x for x, steps in points if steps == NEVER):
            style.mark_limit(left, x, MOST_STEPS, colour)
    light, middle, dark, _ = style.SHADES
    for bits, size, marker, colour in ((40, "norm", "^", dark), (20, "norm", "o", middle),
                                       (20, "largest", "s", middle), (10, "norm", "v", light)):
        points = [(outcome.directions, outcome.way) for arm, outcome in every.items()
                  if (arm.patch, arm.size) == (bits, size)]
        right.plot(*zip(*(point for point in points if point[1] < NEVER), strict=True), marker,
                   color=colour, markersize=7,
                   label=f"{bits} bits" + ", equal largest value" * (size == "largest"))
        for x, way in points:
            if way >= NEVER:
                style.mark_limit(right, x, way - NEVER, colour, marker)
        if size == "norm" and bits != 40:                 # it fails there
            ratios = np.geomspace(1.2, 32, 50)
            right.plot(ratios, law(ratios, bits), color=colour, zorder=0, linewidth=1)
    right.plot([], [], color="0.4", linewidth=1, label="50 + 135 bits / r²")
    for ax, title in (left, "Steps to a level, 20 bits"), (right, "Steps from 80 to 95 %"):
        style.count_steps(ax.xaxis, (1, 2, 4, 8, 16, 32))
        style.count_steps(ax.yaxis, (50, 100, 200, 500, 1000, 2000))
        ax.set(ylim=(40, 2400), title=title, xlabel="strong directions of a head, r",
               ylabel="steps")
        ax.legend(frameon=False)
    style.save(fig, target, "Few strong directions delay each level, the highest levels most")


def picture_of_plane(target, folder=RESULTS):
    """Draw arms by their steps to 80 % and their steps from 80 to 95 %: one random block with other
    spectra, and three pretrained trunks, as they are, with a flat spectrum, and their controls."""
    fig, (ax,) = style.figure(height=4.4)
    results = {arm: outcome for arm, outcome in outcomes("dose", folder).items()
               if (arm.trunk, arm.patch) == (ONE_BLOCK, 20) and outcome.way < NEVER}
    for size, dash in ("norm", "-"), ("largest", ":"):
        order = sorted((outcome for arm, outcome in results.items() if arm.size == size),
                       key=lambda outcome: outcome.directions)
        words = {"norm": "equal norm", "largest": "equal largest value"}[size]
        ax.plot([outcome.steps[80] for outcome in order], [outcome.way for outcome in order], dash,
                marker=".", color="0.45", label=f"one random block,\n{words}")
        if size == "norm":
            for outcome in order[:3]:                     # the others lie close together
                ax.annotate(f"r = {outcome.directions:.0f}", (outcome.steps[80], outcome.way),
                            xytext=(-8, -3), textcoords="offset points", ha="right", fontsize=9,
                            color="0.35")
    for trunk, (words, colour) in FAMILIES.items():
        points = []
        for name, change, marker in ((trunk, "", "o"), (trunk, "flat forms", "D"),
                                     (f"statistics:{trunk}", "", "^")):
            rows = runs_of_trunks(name, change)
            ways = [way_of(row) for row in rows]
            points.append((np.median([steps_to(80, row) for row in rows]), np.median(ways)))
            ax.plot(*points[-1], marker, color=colour, markersize=10)
        ax.annotate("", points[1], points[0], arrowprops={
            "arrowstyle": "->", "color": colour, "shrinkA": 7, "shrinkB": 7})
        ax.plot([], [], "s", color=colour, label=f"six blocks, {words}")
    for marker, text in (("o", "pretrained"), ("D", "pretrained, flat spectrum"),
                         ("^", "random control")):
        ax.plot([], [], marker, color="0.45", label=text, linestyle="")
    ax.set(xlabel="steps to 80 %", ylabel="steps from 80 to 95 %")
    style.count_steps(ax.xaxis, (100, 200, 300, 500, 1000, 2000))
    style.count_steps(ax.yaxis, (50, 100, 200, 500, 1000, 2000))
    fig.legend(loc="outside right upper", frameon=False)
    style.save(fig, target, "A flat spectrum shortens the way from 80 to 95 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    parser.add_argument("--report", action="store_true", help="print tables and outcomes; no runs")
    args = parser.parse_args()
    if args.report:
        report(args.out)
        return
    for name in args.studies or STUDIES:
        if name not in STUDIES:
            parser.error(f"no study '{name}', expected one of {', '.join(STUDIES)}")
        path = args.out / f"directions-{name}.csv"
        if not path.exists():
            path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
        arms = STUDIES[name]
        if args.workers == 1:
            for arm in arms:
                run_arm(arm, path)
        else:
            with ProcessPoolExecutor(args.workers) as pool:
                list(pool.map(run_arm, arms, [path] * len(arms)))


if __name__ == "__main__":
    main()
