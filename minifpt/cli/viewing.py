"""The commands that look inside a model or a run."""

import re
import sys
import webbrowser
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .. import gradients, tracing
from ..experiments import runs as run_folders
from ..experiments.tables import markdown
from ..files import outputs
from ..fpt import FPT
from ..gpt2 import GPT2, GPT2Config, LanguageModel
from ..layers import check_tokens
from ..reports import attention as attention_maps
from ..reports import report as reporting
from ..trunks.lstm import LSTM, LSTMConfig
from ..viewer.live import page as live
from ..viewer.steps import page as stepping
from . import options as shared
from .options import option, takes


@takes(
    option("--model", default=live.MODEL, metavar="MODEL",
           help=f"pretrained GPT-2, by name or path (default: {live.MODEL})"),
    option("task", nargs="?", metavar="TASK", choices=live.TASKS, default=live.TASKS[0],
           help=f"first task of the page: {', '.join(live.TASKS)} (default: "
                f"{live.TASKS[0]})"),
    shared.out_option("page to write", "playground.html",
                      default=Path("playground.html")),
    shared.FORCE, shared.OPEN)
def playground(args):
    with showing(args, args.out):
        live.save(args.out, args.model, args.task, args.force)


def read(folder):
    """Return a run's folder, its task, its ``Run``, and its model before the first step."""
    task, run = run_folders.read_run(folder)
    return folder, task, run, run_folders.at_start(folder, run.config)


@contextmanager
def showing(args, page):
    """Print what the block has written, and open the page if --open asks for it."""
    yield
    print(f"{page}: {page.stat().st_size / 1e3:,.0f} kB"
          + ("" if args.open else "; open it in a browser, or with --open"))
    if args.open and not webbrowser.open(page.resolve().as_uri()):
        print(f"minifpt: no browser was found to open {page}", file=sys.stderr)


@takes(shared.TASKS, shared.MODEL, shared.FREEZE, shared.ADAPT, epilog=shared.TRUNKS, description=(
    "Show a model's parameter groups and which are trained, for bit-xor unless a TASK is given."))
def summary(args):
    task = shared.make_task(args, "bit-xor")
    model = FPT.for_task(task, args.model, args.freeze, adapt=args.adapt)
    config = model.trunk.config                           # raises as a forward pass would
    check_tokens("summary", config, np.empty((1, task.tokens, config.n_embd)))
    print(f"{args.model} on {task.name}: in {task.tokens} x {task.input_dim}, "
          f"out {task.output_tokens} x {task.output_dim} (tokens x numbers)\n"
          f"{model.summary(task.tokens)}")


@takes(
    shared.TASKS, option("--model", default=live.MODEL, metavar="MODEL",
                         help=f"frozen trunk (default: {live.MODEL}, which has two blocks)"),
    shared.FREEZE, shared.ADAPT,
    *shared.run_options("batch_size", "lr", "dropout"), shared.SEED,
    shared.out_option("page to write", "TASK-step.html"),
    option("--differences", type=int, default=60, metavar="N",
           help="finite differences to compute (default: 60)"),
    shared.FORCE, shared.OPEN,
    epilog=shared.KINDS)
def steps(args):
    task = shared.make_task(args)
    name = re.sub(r"[^\w.,-]", "-", task.name).lstrip(".")    # as a file's name
    out = args.out or Path(f"{name}-step.html")
    outputs.check(out, args.force)
    page = stepping.of_task(task, args.model, freeze=args.freeze, adapt=args.adapt, seed=args.seed,
                            differences=args.differences,
                            **shared.given_options(args, "batch_size", "lr", "dropout"))
    with showing(args, out):
        page.save(out, args.force)
    before, after = page.data["losses"]
    print(f"{len(page.data['steps'])} operations, the loss of the batch {before:.4f} before and "
          f"{after:.4f} after")


@takes(
    option("run_folder", type=Path, metavar="RUN", help="a run's folder"),
    shared.out_option("page to write", "RUN/report.html"),
    shared.FORCE, shared.OPEN)
def report(args):
    page = args.out or args.run_folder / "report.html"
    if args.run_folder.is_dir():                          # else the default has no folder either
        outputs.check(page, args.force)
    with showing(args, page):
        reporting.report(*read(args.run_folder), page, args.force)


@takes(
    option("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs"),
    option("--examples", type=int, default=64, metavar="N",
           help="test examples to average over (default: 64)"),
    shared.out_option("a .png file", "attention.png in the first run's folder"),
    shared.FORCE)
def attention(args):
    out = args.out or args.runs[0] / "attention.png"
    attention_maps.check_place(out, args.force)                       # before any run is read
    head, *rows = attention_maps.attention([*map(read, args.runs)], out, args.examples)
    print(markdown([head, *rows]))
    if "where needed" in head:
        print("where needed: share of attention on the tokens that the answer needs, mean of all "
              "maps; best map: the largest share (layer.head); if even: the share if attention "
              "were spread evenly")
    if "moved" in head:
        print("moved: share of attention that training moved, mean of all maps; most: the map with "
              "the largest")
    print(out)


@takes(shared.SEED)
def gradcheck(args):
    rng, seed, dtype = np.random.default_rng(args.seed), args.seed, np.float64
    x, models = rng.standard_normal((2, 5, 8)), {}
    for activation, causal in (("gelu_new", True), ("gelu", False), ("relu", False)):
        config = GPT2Config(2, 2, 8, 6, 7, 0.2, activation_function=activation, causal=causal)
        models[f"GPT2, {activation}{', causal' if causal else ''}"] = GPT2(config, seed, dtype), x
    config = GPT2Config(2, 2, 8, 6, 7, dropout=0.2)
    models["LanguageModel"] = LanguageModel(config, seed, dtype), rng.integers(0, 7, (2, 5))
    models["LSTM"] = LSTM(LSTMConfig(2, 4, 6, 0.2, True, True), seed, dtype), x[..., :4]
    for preset in ("full", "fpt", "output_only"):
        model = FPT(GPT2(config, seed, dtype), 3, 4, 2, seed=seed)
        model.freeze(preset)
        models[f"FPT, {preset}"] = model, x[..., :3]
    reports = {op: gradients.examples.check(op, seed) for op in tracing.OPERATIONS}
    for name, (model, inputs) in models.items():
        for p in model.parameters():                      # no scale is 1, and no bias 0
            p.data += 0.3 * rng.standard_normal(p.data.shape)
        reports[name] = gradients.gradcheck(model, inputs)
    print(f"{'':24}{'largest relative error':>24}  worst at")
    for name, report in reports.items():
        print(f"{name:24}{report.max_relative_error:24.1e}  {report.worst[0]}"
              f"{'' if report else '  FAILED'}")
    failed = [name for name, report in reports.items() if not report]
    for name in failed:
        print(f"\n{name}:\n{reports[name]}")
    print("\n" * bool(failed) + f"{len(reports) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))
