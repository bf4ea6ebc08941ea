"""Which of a transformer's parts matters?  The study behind docs/results/trunks.md.

    python -m studies.trunks [STUDY ...] [--folder FOLDER] [--out FOLDER]

Each study is a list of arms: a trunk, a change to it, and a task.  An arm is trained at four
learning rates with a validation seed, then at the best one with three other seeds, until its test
accuracy reaches a goal, or to its last step.  If the best rate is the smallest or the largest, a
smaller or a larger one is tried, too.  Every run is a row of ``OUT/trunks-STUDY.csv``, by default
in ``studies/results``, written as it ends: the command goes on where it was stopped.  Two rates
of ``minigpt-language`` with flat forms were 25 steps apart, so two more validation seeds chose one.
Two rates of nine other arms were as close, and those arms got no more seeds.  The study *rate* has
the runs at the rate that the first validation seed chooses.

``FOLDER`` holds the weights that the study pretrained, one command for each:

    minifpt pretrain masked --text TEXT --shape SHAPE --lr RATE --out FOLDER/NAME

    NAME               SHAPE                  RATE
    masked-bert        bert:6x4x128           1e-3
    masked-t5          t5:6x4x128             3e-3
    masked-longformer  longformer:32:6x4x128  1e-3

The study *forms* measures their heads.  The study *accuracy*, typos and MNIST, keeps its runs in
``runs/trunks``, and chooses a rate on half and on a tenth of the steps.
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np

import minifpt
from minifpt import tasks
from minifpt.experiments import tables
from minifpt.experiments.compare import Arm
from minifpt.files import save_text
from minifpt.machine import single_threaded_blas
from minifpt.trunks import forms
from studies import style
from studies.runs import NEVER, RESULTS, first_step, number, read_rows, spread, train_to, write_rows
from studies.sweeps import grid
from studies.tables import TYPOS, long

RATES = 1e-2, 3e-3, 3e-2, 1e-3                            # the likeliest first
VALIDATION_SEED, SEEDS, EXAMPLES = 1000, range(3), 128    # of a test
# Most steps and the goal of each task.
TASKS = {"bit-memory": (3000, 0.95), "bit-xor": (4000, 0.995)}
COLUMNS = ("task", "trunk", "change", "lr", "seed", "reached", "last_step", "accuracy", "seconds",
           "curve")
GPT2, PRETRAINED = "random:6x4x128@1.41", ("masked-bert", "masked-t5", "masked-longformer")
# The pretrained trunks, in the picture's words.
NAMES = {"minigpt-language": "next byte", "masked-bert": "masked, BERT's form",
         "masked-t5": "masked, T5's form", "masked-longformer": "masked, Longformer's form"}


def unmask(attn):
    """Let every token read all tokens."""
    attn.causal = False


def multiply_queries(attn):
    """Undo the division of the scores by the root of the heads' width."""
    attn.c_attn.weight.data[:, :128] *= 32 ** 0.5


def multiply_both(attn):
    """Multiply queries and keys so that the scores are those of :func:`multiply_queries`."""
    attn.c_attn.weight.data[:, :256] *= 32 ** 0.25


def forget_places(attn):
    """Start T5's relative positions at 0."""
    attn.bias.weight.data[...] = 0.0


def enlarge_output(attn):
    """Make what the attention adds to the residual stream 8 times as large."""
    attn.c_proj.weight.data *= 8.0


def flatten(attn):
    """Give each head's form equal singular values, with its directions and its norm.  What the
    queries' bias adds to the score of a key stays."""
    w, b = attn.c_attn.weight.data, attn.c_attn.bias.data
    for columns in np.arange(128).reshape(attn.n_head, -1):
        (q, rq), (k, rk) = np.linalg.qr(w[:, columns]), np.linalg.qr(w[:, 128 + columns])
        u, s, vt = np.linalg.svd(rq @ rk.T)
        size = np.sqrt(np.sqrt(np.mean(s ** 2)))          # of a query and of a key each
        w[:, columns], w[:, 128 + columns] = size * q @ u, size * k @ vt.T
        b[columns] = vt @ rk @ b[columns] / size


def forget_query_biases(attn):
    """Set the biases of the queries to 0, so that no key is preferred by all queries."""
    attn.c_attn.bias.data[:128] = 0.0


CHANGES = {"": lambda attn: None, "no causal mask": unmask, "unscaled": multiply_queries,
           "larger queries and keys": multiply_both, "no relative positions": forget_places,
           "larger output": enlarge_output, "flat forms": flatten,
           "no query biases": forget_query_biases}
STUDIES = {                                               # (task, trunk, change) of each arm
    "mask": [(task, GPT2, change) for task in TASKS for change in ("", "no causal mask")],
    "scale": [(task, GPT2, change) for task in TASKS
              for change in ("unscaled", "larger queries and keys")],
    "random": [(task, f"random:{kind}:6x4x128@1.41", "") for task in TASKS
               for kind in ("t5", "bert", "longformer:32")],
    "window": [("bit-memory", f"random:{kind}:{blocks}x4x128@1.41", "") for blocks, kinds in (
        (1, ("bert", *(f"longformer:{window}" for window in (8, 16, 24, 32, 40, 64)))),
        (2, ("bert", "longformer:32"))) for kind in kinds],
    "pretrained": [(task, f"{control}{trunk}", "") for trunk in NAMES
                   for task in TASKS for control in ("", "statistics:")],
    "reasons": [("bit-memory", "statistics:masked-bert", "larger queries and keys"),
                ("bit-memory", "masked-bert", "larger queries and keys"),
                ("bit-memory", "statistics:masked-bert", "larger output"),
                ("bit-memory", "masked-t5", "no relative positions"),
                ("bit-memory", "masked-t5", "flat forms"),
                ("bit-memory", "minigpt-language", "flat forms"),
                ("bit-memory", "minigpt-language", "no query biases"),
                ("bit-memory", "minigpt-language", "flat forms, no query biases"),
                ("bit-memory", "masked-bert", "flat forms")]}


# What is changed in a trunk, for the table that ranks the parts: (words, rows with, rows without),
# where rows are named by study, trunk and change.
CHANGED = [
    ("a window of 32, random BERT", ("random", "random:longformer:32:6x4x128@1.41", ""),
     ("random", "random:bert:6x4x128@1.41", "")),
    ("equal singular values, pretrained T5", ("reasons", "masked-t5", "flat forms"),
     ("pretrained", "masked-t5", "")),
    ("equal singular values, pretrained BERT", ("reasons", "masked-bert", "flat forms"),
     ("pretrained", "masked-bert", "")),
    ("equal singular values, next byte", ("reasons", "minigpt-language", "flat forms"),
     ("pretrained", "minigpt-language", "")),
    ("scores not divided by 5.66, random GPT-2", ("scale", GPT2, "unscaled"), ("mask", GPT2, "")),
    ("scores 5.66 times as large, BERT's control",
     ("reasons", "statistics:masked-bert", "larger queries and keys"),
     ("pretrained", "statistics:masked-bert", "")),
    ("scores 5.66 times as large, pretrained BERT",
     ("reasons", "masked-bert", "larger queries and keys"), ("pretrained", "masked-bert", "")),
    ("BERT's form instead of GPT-2's, random", ("random", "random:bert:6x4x128@1.41", ""),
     ("mask", GPT2, "")),
    ("T5's form instead of GPT-2's, random", ("random", "random:t5:6x4x128@1.41", ""),
     ("mask", GPT2, "")),
    ("no causal mask, random GPT-2", ("mask", GPT2, "no causal mask"), ("mask", GPT2, "")),
    ("queries' biases 0, next byte", ("reasons", "minigpt-language", "no query biases"),
     ("pretrained", "minigpt-language", "")),
    ("relative positions start at 0, pretrained T5",
     ("reasons", "masked-t5", "no relative positions"), ("pretrained", "masked-t5", ""))]
# The predictions on the steps of bit memory: (number, words, least, largest, rows), with 1 and
# ``NEVER`` for an open end.
BOUNDS = [
    ("5", "BERT: over twice its control's", 4150, NEVER, ("pretrained", "masked-bert", "")),
    ("8", "window of 32: 2 to 10 times 825", 1650, 8250,
     ("random", "random:longformer:32:6x4x128@1.41", "")),
    ("9", "unscaled: 1.5 to 4 times 450", 675, 1800, ("scale", GPT2, "unscaled")),
    ("10", "no mask: 0.67 to 1.5 times 450", 300, 675, ("mask", GPT2, "no causal mask")),
    ("11", "random T5: 0.5 to 1.5 times 450", 225, 675,
     ("random", "random:t5:6x4x128@1.41", "")),
    ("12", "random BERT: 0.5 to 2 times 450", 225, 900,
     ("random", "random:bert:6x4x128@1.41", "")),
    ("15", "BERT's control, larger queries and keys", 1, 1037,
     ("reasons", "statistics:masked-bert", "larger queries and keys")),
    ("15", "BERT, larger queries and keys", 1, 1287,
     ("reasons", "masked-bert", "larger queries and keys")),
    ("16", "T5, no relative positions", 1, 1075, ("reasons", "masked-t5", "no relative positions")),
    ("18", "Longformer's control", 1500, 2500, ("pretrained", "statistics:masked-longformer", "")),
    ("19", "T5, flat forms", 1, 1075, ("reasons", "masked-t5", "flat forms")),
    ("20", "next byte, flat forms", 1, 525, ("rate", "minigpt-language", "flat forms")),
    ("21", "BERT, flat forms", 1600, 2500, ("reasons", "masked-bert", "flat forms")),
    ("22", "next byte, no query biases", 1, 600,
     ("reasons", "minigpt-language", "no query biases")),
    ("23", "next byte, both", 1, 525,
     ("reasons", "minigpt-language", "flat forms, no query biases"))]


def found(trunk, folder):
    """Return the name of a trunk with the path of its weights where the study pretrained them."""
    name = trunk.removeprefix("statistics:")
    return trunk.replace(name, str(folder / f"{name}.npz")) if name in PRETRAINED else trunk


@single_threaded_blas
def run(task_name, trunk, change, lr, seed, most, folder):
    """Train one model, at most ``most`` steps; return the row of the CSV file."""
    steps, goal = TASKS[task_name]
    task, begin = minifpt.tasks.get(task_name), time.perf_counter()
    model = minifpt.FPT.for_task(task, found(trunk, folder), seed=seed, dropout=0.0)
    for block in model.trunk.h:
        for part in change.split(", "):
            CHANGES[part](block.attn)
    curve, reached, step = train_to(model, task, lr, seed, min(steps, most), goal)
    return dict(zip(COLUMNS, (task_name, trunk, change, f"{lr:g}", seed, reached, step,
                              curve[-1].split(":")[1] if curve else "nan",
                              round(time.perf_counter() - begin), " ".join(curve)), strict=True))


def in_reach(window, seed):
    """Return the accuracy on the test of bit memory of a seed, where the strings in a window are
    found, and half of the hidden bits of the others are guessed."""
    x, y = tasks.get("bit-memory").batch(np.random.default_rng([seed, 1]), EXAMPLES, "test")
    *strings, query = x.reshape(EXAMPLES, 6, -1).transpose(1, 0, 2)
    answer = y.reshape(EXAMPLES, -1)
    is_answer = [np.all((string > 0) == answer, axis=1) for string in strings]
    distance = 5 * (5 - np.argmax(is_answer, axis=0))     # in tokens, 5 for each string
    guessed = np.mean(query == 0, axis=1) / 2
    return np.mean(np.where(distance <= window / 2, 1, 1 - guessed))


def rank(row):
    """Return a key by which the better of two runs comes first: fewer steps, else accuracy."""
    return int(row["reached"] or NEVER), -float(np.nan_to_num(float(row["accuracy"])))


def run_arm(arm, rows, path, folder):
    """Do the runs of an arm that ``rows`` lacks, and write them to the CSV file ``path``."""
    def done(lr, seed, most=NEVER):
        key = (*arm, f"{lr:g}", str(seed))
        for row in rows:
            if tuple(str(row[name]) for name in COLUMNS[:5]) == key:
                return row
        rows.append(run(*arm, lr, seed, most, folder))
        write_rows(path, rows, COLUMNS)
        print(*list(rows[-1].values())[:9])
        return rows[-1]
    trials = []
    for lr in RATES:                                      # no more steps than the best so far
        trials.append(done(lr, VALIDATION_SEED, min([NEVER, *(
            int(row["reached"]) for row in trials if row["reached"])])))
    while True:
        rates, best = [float(row["lr"]) for row in trials], min(trials, key=rank)
        lr = float(best["lr"])
        if min(rates) < lr < max(rates) or len(trials) > 6:
            break
        lr = float(f"{lr * (3.2 if lr == max(rates) else 0.32):.0e}")
        trials.append(done(lr, VALIDATION_SEED, int(best["reached"] or NEVER)))
    for seed in SEEDS:
        done(float(best["lr"]), seed)


def run_forms(folder, out):
    """Write four numbers of each head's form: the share of the symmetric part, its trace over the
    form's norm, the norm, and the number of positive directions: the participation ratio of the
    positive eigenvalues, (sum of squares)^2 / sum of fourth powers."""
    rows = []
    for trunk in NAMES:
        for name in (trunk, f"statistics:{trunk}"):
            model = minifpt.trunks.get(found(name, folder))
            heads = forms.heads(model)
            for (i, j), share in np.ndenumerate(heads.share):
                q, k = (a[j].astype(np.float64) for a in forms.queries_and_keys(model.h[i]))
                _, form = forms.small_form(q, k)
                values = np.linalg.eigvalsh(form + form.T)
                squares = values[values > 0] ** 2
                rows.append({"trunk": name, "block": i + 1, "head": j + 1, "share": f"{share:.4f}",
                             "trace": f"{heads.trace[i, j]:.4f}",
                             "norm": f"{np.linalg.norm(form):.3f}",
                             "directions": f"{squares.sum() ** 2 / (squares ** 2).sum():.2f}"})
    write_rows(out / "trunks-forms.csv", rows, list(rows[0]))


def run_rate(folder, out):
    """Do the test runs of ``minigpt-language`` with flat forms at 3e-2, the rate that the first
    validation seed chooses; those at 1e-2, which three seeds chose, are in the study *reasons*."""
    path = out / "trunks-rate.csv"
    rows = read_rows(path)
    for seed in list(SEEDS)[len(rows):]:
        rows.append(run("bit-memory", "minigpt-language", "flat forms", 3e-2, seed, NEVER, folder))
        write_rows(path, rows, COLUMNS)


def run_accuracy(folder, out):
    """Do the runs of typos and MNIST of the masked trunks, and write their table; those of the
    shipped trunk are in ``typos.csv`` and ``mnist-long.csv``."""
    arms = [Arm(found(f"{control}{trunk}", folder), label=label + trunk) for trunk in PRETRAINED
            for control, label in (("", ""), ("statistics:", "control of "))]
    typos, mnist = (tables.rows(grid(Path("runs/trunks"), [column], arms, range(seeds),
                                     (3e-3, 1e-2, 3e-2), share, choices=1))
                    for column, seeds, share in ((TYPOS, 3, 0.5), (long("mnist", {}), 2, 0.1)))
    save_text(out / "trunks-accuracy.csv", typos + mnist.partition("\n")[2])


OTHERS = {"forms": run_forms, "rate": run_rate, "accuracy": run_accuracy}


def table(path):
    """Return a study's Markdown table: a row for each trunk and change, a column for each task; of
    the forms, means over the heads."""
    arms, names, rows = {}, {}, read_rows(path)
    if "share" in rows[0]:
        return tables.markdown([["trunk", "share (%)", "trace", "norm", "positive directions"], *(
            [f"`{trunk}`", f"{100 * mean(rows, trunk, 'share'):.1f}",
             f"{mean(rows, trunk, 'trace'):.2f}", f"{mean(rows, trunk, 'norm'):.1f}",
             f"{mean(rows, trunk, 'directions'):.1f}"]
            for trunk in dict.fromkeys(row["trunk"] for row in rows))])
    for row in of_test_seeds(rows):
        by_task = arms.setdefault((row["trunk"], row["change"]), {})
        by_task.setdefault(row["task"], []).append(row)
        names[row["task"]] = tasks.label_of(row["task"])
    return tables.markdown([["trunk", "change", *names.values()], *(
        [f"`{trunk}`", change, *(answer(by_task.get(name, [])) for name in names)]
        for (trunk, change), by_task in arms.items())])


def of_test_seeds(rows):
    """Return the rows of a study without those of the validation seeds."""
    return [row for row in rows if int(row["seed"]) < VALIDATION_SEED]


def mean(rows, trunk, column):
    """Return the mean of a column over the rows of a trunk."""
    return np.mean([float(row[column]) for row in rows if row["trunk"] == trunk])


def answer(rows):
    """Return the median of the steps to the goal with the least and the largest, or the last
    accuracies where half of the seeds did not get there; then the learning rate."""
    if not rows:
        return ""
    steps = [int(row["reached"] or NEVER) for row in rows]
    if np.median(steps) < NEVER:
        return f"{spread(steps, TASKS[rows[0]['task']][0])}; {rows[0]['lr']}"
    accuracies = [100 * float(row["accuracy"]) for row in rows]
    last = max(int(row["last_step"]) for row in rows)
    return f"{tables.spread(accuracies)} % after {last:,}; {rows[0]['lr']}"


def test_runs(folder, name):
    """Return the rows on bit memory of the test seeds of ``(study, trunk, change)``."""
    study, *arm = name
    return [row for row in of_test_seeds(read_rows(folder / f"trunks-{study}.csv"))
            if [row["task"], row["trunk"], row["change"]] == ["bit-memory", *arm]]


def median_steps(level, rows):
    """Return the median of :func:`steps_to` as text, or the last step of the runs behind ``>``."""
    return number(np.median([first_step(level, row) for row in rows]),
                  max(int(row["last_step"]) for row in rows))


def ranking(folder):
    """Return the Markdown table of the changes of one part, the largest effect first: medians of
    the steps to 95 % on bit memory without and with the change, and their ratio."""
    lines = []
    for words, *names in CHANGED:
        after, before = (test_runs(folder, name) for name in names)
        medians = [np.median([first_step(0.95, row) for row in rows]) for rows in (after, before)]
        most = max(int(row["last_step"]) for row in after)
        factor = min(medians[0], most) / medians[1]
        lines.append((abs(np.log(factor)) if medians[0] < NEVER else np.inf,
                      [words, median_steps(0.95, before), median_steps(0.95, after),
                       ">" * int(medians[0] >= NEVER) + f"{factor:.1f}"]))
    lines.sort(key=lambda line: -line[0])
    return tables.markdown([["change", "steps without", "steps with", "ratio"],
                            *(line for _, line in lines)])


def levels(folder):
    """Return the Markdown table of the steps of the pretrained trunks and their controls to four
    levels on bit memory."""
    lines = []
    for trunk, words in NAMES.items():
        for control in ("", "statistics:"):
            rows = test_runs(folder, ("pretrained", control + trunk, ""))
            lines.append([words + ", control" * bool(control), *(
                median_steps(level, rows) for level in (0.8, 0.85, 0.9, 0.95))])
    return tables.markdown([["trunk", "80 %", "85 %", "90 %", "95 %"], *lines])


def window_picture(target, path=RESULTS / "trunks-window.csv"):
    """Draw what random blocks reach with a window, beside the accuracy that is in reach of it on
    the same tests: a mark for each of three seeds, with an arrow where the run ended at 95 %."""
    fig, (ax,) = style.figure(height=4.2)
    windows = range(1, 65)
    reach = [[100 * in_reach(window, seed) for window in windows] for seed in SEEDS]
    ax.fill_between(windows, np.min(reach, axis=0), np.max(reach, axis=0), step="post",
                    color=style.COLORS["range"], label="in reach of the window, three tests")
    for row in of_test_seeds(read_rows(path)):
        if match := re.match(r"random:longformer:(\d+):([12])x", row["trunk"]):
            window, blocks = map(int, match.groups())
            color, x = style.SHADES[2 * (blocks == 1)], window + blocks - 1
            if row["reached"]:
                style.mark_limit(ax, x, 100 * float(row["accuracy"]), color)
            else:
                ax.plot(x, 100 * float(row["accuracy"]), "os"[blocks - 1], color=color,
                        label=f"{blocks} random block{'s' * (blocks == 2)}" * (
                            row["seed"] == "0" and window == 32))
    ax.plot([], [], "o", color=style.RANDOM, fillstyle="none", linestyle="",
            label="ended at 95 %")
    style.mark_chance(ax, 75)
    ax.set(xlabel="window (tokens, half to each side)", ylabel="bits right (%)",
           xticks=(8, 16, 24, 32, 40, 48, 56, 64), ylim=(73, 101))
    ax.legend(frameon=False, loc="upper left")
    style.save(fig, target, "Random blocks find what their window reaches, and no more")


def predictions_picture(target, folder=RESULTS):
    """Draw the predicted intervals of the steps on bit memory, and the median of each outcome."""
    fig, (ax,) = style.figure(height=5.6)
    ends, held = (180, 9000), 0
    for y, (_, _, least, largest, name) in enumerate(BOUNDS):
        rows = test_runs(folder, name)
        median = np.median([first_step(0.95, row) for row in rows])
        most = max(int(row["last_step"]) for row in rows)
        ax.plot(np.clip((least, largest), *ends), [y, y], color=style.COLORS["range"], linewidth=8,
                solid_capstyle="butt")
        is_held = least <= median <= largest
        held += is_held
        if median >= NEVER:
            style.mark_limit(ax, most, y, "black", "o", (22, 0))
        else:
            ax.plot(median, y, "o" if is_held else "X", color="black", markersize=8)
    for marker, text in ("o", "held"), ("X", "missed"):
        ax.plot([], [], marker, color="black", label=text, linestyle="")
    ax.plot([], [], "o", color="black", fillstyle="none", label="not there at the last step",
            linestyle="")
    ax.plot([], [], color=style.COLORS["range"], linewidth=8, label="predicted")
    style.count_steps(ax.xaxis, (200, 500, 1000, 2000, 4000, 8000))
    ax.set(xlim=ends, xlabel="steps to 95 % on bit memory", yticks=range(len(BOUNDS)),
           yticklabels=[f"{words} ({number})" for number, words, *_ in BOUNDS])
    ax.invert_yaxis()
    style.legend(fig, [ax], 4)
    style.save(fig, target, f"{held} of {len(BOUNDS)} predictions on the steps held")


def picture(target, path=RESULTS / "trunks-pretrained.csv"):
    """Draw the steps of the pretrained trunks and of their controls: a dot for the median, a line
    from the least to the largest; an open dot where a seed did not get there."""
    rows = of_test_seeds(read_rows(path))
    fig, axes = style.figure(len(TASKS), 1, 3.3)
    for ax, task in zip(axes, TASKS, strict=True):
        for y, trunk in enumerate(NAMES):
            for control, color, dy in ("", style.PRETRAINED, -0.17), (
                    "statistics:", style.CONTROL, 0.17):
                runs = [row for row in rows
                        if (row["task"], row["trunk"]) == (task, control + trunk)]
                steps = [int(row["last_step"]) for row in runs]
                ax.plot([min(steps), max(steps)], [y + dy] * 2, color=color, linewidth=4,
                        alpha=0.45)
                if all(row["reached"] for row in runs):
                    ax.plot(np.median(steps), y + dy, "o", color=color, markersize=7,
                            label="matched random control" if control else "pretrained")
                else:
                    style.mark_limit(ax, np.median(steps), y + dy, color, "o", (20, 0))
        style.count_steps(ax.xaxis, (50, 200, 1000, 4000))
        ax.set(title=tasks.label_of(task), xlabel=f"steps to {100 * TASKS[task][1]:g} %",
               xlim=(40, 7000), ylim=(-0.6, len(NAMES) - 0.4), yticks=range(len(NAMES)),
               yticklabels=NAMES.values() if ax is axes[0] else [])
        ax.invert_yaxis()
    style.legend(fig, axes, 2)
    style.save(fig, target, "On bit memory pretrained trunks need more steps than their controls")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY",
                        choices=[*STUDIES, *OTHERS, []])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    for name in args.studies or [*STUDIES, *OTHERS]:
        if name in STUDIES:
            path = args.out / f"trunks-{name}.csv"
            rows = read_rows(path)
            for arm in STUDIES[name]:
                run_arm(arm, rows, path, args.folder)
        else:
            OTHERS[name](args.folder, args.out)


if __name__ == "__main__":
    main()
