"""The claims of lesson 8 on five seeds: where XOR is computed, and the best trunk of each rate.

    python -m studies.inside [xor] [looks] [rates] [--seeds N]

Each run is a row of ``results/inside-STUDY.csv``, written as it ends: the command goes on where it
was stopped.

*xor*: a frozen trunk is trained on bit XOR, 500 steps of 4 at 2e-3.  Then, in per cent right:

    right        as it is.
    attn, mlp, both   without the **product**: for the bits a of one place and b of its partner,
                 an output is a constant, a share of a, a share of b, and a share of their product;
                 the last is taken from each output of attention, of the feed-forward part, or of
                 both, at the token of b, in all blocks.
    same_look    all heads with their mean probabilities over the examples, in all blocks.

*looks*: the same runs of *language*.  *head* is the one whose tokens 5 to 9 give most to the token
five back, the share that it *gives*; *mute* is the accuracy without it, *worst* the lowest without
any one head.  *back*: accuracies where no head of any block looks 1, 2, ..., 6 tokens back from
there, the other shares scaled up.

*rates*: bit memory as in lesson 8, 450 steps of 8 at 0.02 and 0.06.
"""

import argparse

import numpy as np

import minifpt
from minifpt.machine import single_threaded_blas
from studies.runs import RESULTS, fill

TRUNKS = {"language": "minigpt-language", "as in the paper": "random",
          "statistics": "statistics:minigpt-language"}
N = 5                                                     # bits of a string
PRODUCT = np.array([[1, -1], [-1, 1]])[..., None]         # the sign of each pair (a, b)


def train(task, trunk, seed, **settings):
    """Return a trained FPT and its history."""
    model = minifpt.FPT.for_task(task, TRUNKS[trunk], seed=seed, dropout=0.0)
    return model, minifpt.train(model, task, seed=seed, test_examples=128, progress=False,
                                **settings)


def run(model, x, change=None):
    """Return the logits (B, N, 2) with some values changed, and the trace."""
    with minifpt.trace(model, change=change) as t:
        logits = model.predict(x)
    return logits.reshape(len(x), N, 2), t


def without_product(place):
    """Return a change that takes the product of bits ``place`` from the token of b.  The examples
    are four for each context, with (a, b) = 00, 01, 10, 11."""
    def change(y):
        v = y[:, place - N].reshape(-1, 2, 2, y.shape[-1])
        v = v - PRODUCT * (PRODUCT * v).mean(axis=(1, 2), keepdims=True)
        y[:, place - N] = v.reshape(-1, y.shape[-1])
        return y
    return change


def same_look(probabilities):
    return np.broadcast_to(probabilities.mean(axis=0), probabilities.shape)


def examples(bits):
    return bits[..., None].astype(np.float32), bits[:, :N] ^ bits[:, N:]


def parts(model):
    """Return {column: per cent right} of a trained model."""
    rng, rows = np.random.default_rng(1), []
    x, y = examples(rng.integers(0, 2, (256, 2 * N)))
    for place in range(N):
        bits = np.repeat(rng.integers(0, 2, (24, 2 * N)), 4, axis=0)
        bits[:, [place, N + place]] = np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (24, 1))
        inputs, answers = examples(bits)
        take = without_product(place)
        changes = {"right": None, "attn": {"trunk.h.*.attn": take}, "mlp": {"trunk.h.*.mlp": take},
                   "both": {"trunk.h.*.attn": take, "trunk.h.*.mlp": take}}
        rows.append({name: (run(model, inputs, change)[0].argmax(-1) == answers)[:, place].mean()
                     for name, change in changes.items()})
    means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    looks = run(model, x, {"trunk.h.*.attn.softmax": same_look})[0]
    means["same_look"] = (looks.argmax(-1) == y).mean()
    return {name: round(100 * float(value), 1) for name, value in means.items()}


def without_looks(back):
    """Return a change of the probabilities (..., T', T): the last N tokens do not look ``back``."""
    def change(probabilities):
        p, keys = probabilities.copy(), np.arange(N, 2 * N) - back
        p[..., np.arange(-N, 0)[keys >= 0], keys[keys >= 0]] = 0
        return p / p.sum(axis=-1, keepdims=True)
    return change


def looks(model):
    """Return what heads give to the token five back, and accuracies without looks."""
    x, y = examples(np.random.default_rng(3).integers(0, 2, (256, 2 * N)))

    def right(change=None):
        return round(100 * float((run(model, x, change)[0].argmax(-1) == y).mean()), 1)

    maps = np.stack([*run(model, x)[1].attention.values()]).mean(axis=1)      # (L, H, T, T)
    share = maps[:, :, np.arange(N, 2 * N), np.arange(N)].mean(axis=-1)
    mute = np.zeros_like(share)
    for block, head in np.ndindex(mute.shape):
        w = model.trunk.h[block].attn.c_proj.weight.data
        whole = w.copy()
        w.reshape(mute.shape[1], -1, w.shape[1])[head] = 0
        mute[block, head] = right()
        w[:] = whole
    top = np.unravel_index(share.argmax(), share.shape)
    return {"right": right(), "head": "block {} head {}".format(*top),
            "gives": round(100 * float(share[top])), "mute": round(float(mute[top]), 1),
            "worst": round(float(mute.min()), 1), "back": " ".join(
                str(right({"trunk.h.*.attn.softmax": without_looks(k)})) for k in range(1, 7))}


def xor_model(trunk, seed):
    return train(minifpt.tasks.get("bit-xor"), trunk, seed, steps=500, batch_size=4, lr=2e-3,
                 eval_every=500)[0]


def rate_run(trunk, lr, seed):
    task = minifpt.tasks.get("bit-memory", strings=5, bits=40, patch=10)
    _, history = train(task, trunk, seed, steps=450, batch_size=8, lr=lr, schedule="cosine",
                       warmup=50, eval_every=75)
    return {"curve": " ".join(f"{100 * value:.1f}" for value in history["test_accuracy"])}


def over_seeds(head, *rows):
    """Return the header of a CSV and a row for each arm, whose cells are means over the seeds.  A
    cell may hold several numbers; a single one has the least and the largest behind it."""
    at, arms = head.index("seed"), {}
    for row in rows:
        arms.setdefault(tuple(row[:at]), []).append(row[at + 1:])
    return [[*head[:at], *head[at + 1:]],
            *([*arm, *map(mean_cell, zip(*runs, strict=True))] for arm, runs in arms.items())]


def mean_cell(cells):
    """Return the mean of cells such as ``98.5`` or ``1.00 0.33``, with as many decimals."""
    decimals = len(cells[0].partition(" ")[0].partition(".")[2])
    values = np.array([cell.split() for cell in cells], float)
    ends = f" ({values.min():.{decimals}f}…{values.max():.{decimals}f})"
    return (" ".join(f"{mean:z.{decimals}f}" for mean in values.mean(axis=0))
            + ends * (values.shape[1] == 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", default=["xor", "looks", "rates"])
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    plans = {"xor": [{"trunk": trunk, "seed": seed} for seed in range(args.seeds)
                     for trunk in TRUNKS],
             "looks": [{"trunk": "language", "seed": seed} for seed in range(args.seeds)],
             "rates": [{"trunk": trunk, "lr": lr, "seed": seed} for seed in range(args.seeds)
                       for trunk in ("language", "statistics") for lr in (0.02, 0.06)]}
    if unknown := {*args.studies} - {*plans}:
        parser.error(f"no study '{min(unknown)}', expected some of {', '.join(plans)}")
    measures = {"xor": lambda **plan: parts(xor_model(**plan)),
                "looks": lambda **plan: looks(xor_model(**plan)), "rates": rate_run}
    for study in args.studies:
        names = [*plans[study][0]]
        fill(RESULTS / f"inside-{study}.csv", plans[study],
             lambda plan, study=study: plan | measures[study](**plan),
             lambda row, names=names: [str(row[name]) for name in names])


if __name__ == "__main__":
    with single_threaded_blas:
        main()
