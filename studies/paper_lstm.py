"""Train the paper's LSTM, and LSTMs that lack one of its oddities, on the bit tasks.

    pip install torch==2.13.0
    python -m studies.paper_lstm [--tasks TASK ...] [--rates LR ...] [--seeds N] [--steps N]
                                    [--shape LAYERSxCHANNELS] [--out FILE]

The LSTM in the paper's code (github.com/kzl/universal-computation) has layer norms inside its cell,
as in Ba, Kiros and Hinton (2016), but draws their gains and biases from ±1/sqrt(channels) instead
of 1 and 0.  It also draws the state before the first token anew at each forward pass, in training
and in tests.  Four arms separate the two: paper, gains 1, state 0, and both.  Input and output
layers and Adam are the same for all.  Every run is a row of the CSV file.  This file needs PyTorch,
whose autograd runs the cell backward.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch
from torch import nn

from minifpt import tasks
from minifpt.experiments import tables
from studies.runs import RESULTS, write_rows

ARMS = {"paper's LSTM": (False, False), "gains 1, random state": (True, False),
        "random gains, state 0": (False, True), "gains 1, state 0": (True, True)}
TEST_EXAMPLES, EVALUATIONS, BATCH = 256, 10, 4            # the batch is the paper's


class Layer(nn.Module):
    """One layer: a linear map of x and one of h, each with a layer norm, and one for the cell."""

    def __init__(self, channels, gains_one, state_zero):
        super().__init__()
        self.from_x, self.from_h = (nn.Linear(channels, 4 * channels) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(n, eps=1e-6)
                                   for n in (4 * channels, 4 * channels, channels))
        self.std = 0.0 if state_zero else channels ** -0.5    # Xavier: sqrt(2 / (in + out))
        if not gains_one:
            for p in self.norms.parameters():
                nn.init.uniform_(p, -len(p) ** -0.5, len(p) ** -0.5)

    def forward(self, x):
        """Run over the tokens of x (B, T, C); return h of each, (B, T, C)."""
        h, c = self.std * torch.randn(2, len(x), x.shape[2])
        outputs = []
        for from_x in self.norms[0](self.from_x(x)).unbind(1):
            i, f, o, g = (from_x + self.norms[1](self.from_h(h))).chunk(4, dim=1)
            c = self.norms[2](f.sigmoid() * c + i.sigmoid() * g.tanh())
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1)


def run(task, arm, rate, seed, steps, shape):
    """Train one LSTM; a row of the CSV file, as ``minifpt compare`` writes it."""
    torch.manual_seed(seed)
    layers, channels = shape
    model = nn.Sequential(nn.Linear(task.input_dim, channels),
                          *(Layer(channels, *ARMS[arm]) for _ in range(layers)),
                          nn.Linear(channels, task.output_dim))
    nn.init.orthogonal_(model[0].weight, gain=1.41)
    optimizer = torch.optim.Adam(model.parameters(), rate)

    def scores(x, y):
        logits = model(torch.from_numpy(x))[:, -task.output_tokens:]
        return (logits.reshape(*y.shape, 2), torch.from_numpy(y))

    def evaluate(x, y):
        with torch.no_grad():
            logits, y = scores(x, y)
        return (logits.argmax(-1) == y).double().mean().item(), loss(logits, y).item()

    def loss(logits, y):
        return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    rng = np.random.default_rng([seed, 0])
    test = task.batch(np.random.default_rng([seed, 1]), TEST_EXAMPLES, "test")
    curve, correct = [], []
    for number in range(1, steps + 1):
        logits, y = scores(*task.batch(rng, BATCH))
        optimizer.zero_grad()
        loss(logits, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        correct.append((logits.argmax(-1) == y).double().mean().item())
        if number % (steps // EVALUATIONS) == 0:
            accuracy, test_loss = evaluate(*test)
            curve.append(f"{number}:{accuracy:.4f}")
    return dict(zip(tables.CSV, (task.name, arm, f"{rate:g}", str(seed), "0", str(steps),
                              f"{np.mean(correct[-100:]):.6f}", f"{accuracy:.6f}",
                              f"{test_loss:.6f}", " ".join(curve)), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=["bit-xor", "bit-memory"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--shape", default="3x768")
    parser.add_argument("--out", type=Path, default=RESULTS / "paper-lstm.csv")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, shape = [], tuple(map(int, args.shape.split("x")))
    for name, seed, arm, rate in itertools.product(args.tasks, range(args.seeds), ARMS, args.rates):
        rows.append(run(tasks.get(name), arm, rate, seed, args.steps, shape))
        write_rows(args.out, rows, tables.CSV)
        print(f"{name}, {arm}, {rate:g}, seed {seed}: {rows[-1]['test_accuracy']}", flush=True)


if __name__ == "__main__":
    main()
