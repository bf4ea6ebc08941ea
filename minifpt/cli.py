"""The command line: ``minifpt COMMAND --help`` says what each takes."""

import argparse
import errno
import importlib.util
import inspect
import os
import platform
import re
import subprocess
import sys
import textwrap
import traceback
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from . import __version__, examples, machine, tasks, tracing
from .exercises import closed, own
from .exercises import grade as grading
from .exercises.lesson import unpack
from .experiments import compare as experiments
from .experiments import dose as doses
from .experiments import plan, pretrain, reproduce, runs_table, workers
from .experiments import runs as run_folders
from .files import cache_folder, outputs, read_text, tokenizer, users, weights
from .files.huggingface import HUB
from .fpt import FPT
from .freeze import FreezeMask
from .gpt2 import GPT2, SHAPES, GPT2Config, LanguageModel
from .gradients import gradcheck_layer
from .reports import attention as attention_maps
from .reports import report as reporting
from .training import train as training
from .trunks import convert as converting
from .trunks.lstm import LSTM, LSTMConfig
from .trunks.names import USERS_OWN, TrunkSpec
from .viewer import playground as playing
from .viewer import steps as stepping
from .viewer import still

MODEL = "minigpt-language"
NAMES = tasks.names()


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse puts the usage before it."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def main(argv=None):
    """Run a command; returns the exit status: 0, 2 for bad input, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else [str(a) for a in argv]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:                    # closed by who started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # what it cannot spell is a "?"
            getattr(sys, name).reconfigure(errors="replace")
    try:
        with warnings.catch_warnings(), users.users_code():     # a run that diverges says so itself
            warnings.simplefilter("ignore", RuntimeWarning)
            args = parser(argv).parse_args(argv)
            status = args.run(args) or 0
            sys.stdout.flush()
            return status
    except BrokenPipeError:                               # what reads our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, MemoryError) as e:
        what = "not enough memory: " * isinstance(e, MemoryError)
        if getattr(e, "errno", None) == errno.ENOSPC and e.filename is None:
            what = "the output cannot be written: "
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if "--traceback" in argv:
            traceback.print_exc()
        print(f"minifpt: {what}{' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as e:
        print(f"minifpt: {str(e) or 'interrupted'}", file=sys.stderr)
        return 130
    except Exception as e:
        if "--traceback" in argv or not users.loaded():
            raise
        print(f"minifpt: {users.message(e)}: a task or trunk of your own returned what minifpt "
              "cannot use; --traceback shows where", file=sys.stderr)
        return 2


def parser(argv=()):
    """The argument parser.  A task of the user's own that ``argv`` names adds its options."""
    top = Parser(prog="minifpt", description=__doc__)
    top.add_argument("--version", action="version", version=f"minifpt {__version__}")
    traceback_option = {"action": "store_true", "default": argparse.SUPPRESS,
                        "help": "print the traceback of an error, too"}
    top.add_argument("--traceback", **traceback_option)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(run, text):
        name = run.__name__.removesuffix("_command").replace("_", "-")
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(run=run)
        sub.add_argument("--traceback", **traceback_option)
        return sub

    def model_options(sub):
        sub.add_argument("--model", default=MODEL, metavar="MODEL", help=(
            f"the trunk: weights by name or path; random, or random:SHAPE, one of "
            f"{', '.join(SHAPES)}, with @0.55 at a spread of 0.55 / sqrt(channels), GPT-2's own at "
            "its width; mimetic, the same with attention that looks pretrained; statistics:NAME, "
            "random with the mean and spread of each array of those weights; spectrum:NAME, "
            "random with the singular values of each matrix; "
            "lstm:LAYERSxCHANNELS, a random LSTM, as in lstm:3x128, with ,residual and "
            ",positions; A+MASK=B, A with the parameters of B that a mask names; or "
            f"FILE.py:FUNCTION, which makes one of your own (default: {MODEL})"))
        sub.add_argument("--freeze", default="fpt", metavar="MASK", help=(
            "fpt, full, output_only, or groups and patterns: 'attn,mlp,h.3.ln_1.*' (default: fpt)"))

    def run_options(sub, *names, whose="the task's"):
        kinds = {"--steps": whole, "--batch-size": whole, "--lr": float, "--dropout": float}
        for name in names:
            sub.add_argument(name, type=kinds.get(name), help=f"default: {whose}",
                             choices=["constant", "cosine"] if name == "--schedule" else None)

    def where_options(sub):
        where = sub.add_mutually_exclusive_group()
        where.add_argument("--jobs", type=whole, default=1, metavar="N",
                           help="processes at a time, each with one BLAS thread (default: 1)")
        where.add_argument("--dask", metavar="ADDRESS", help=(
            "run on the Dask cluster whose scheduler is at tcp://HOST:PORT, each run with one BLAS "
            "thread. The scheduler and all workers need minifpt; all workers must see --out, "
            "weights and data under the same paths"))

    def task_options(sub, runs=False):
        """The tasks and the options of all of them.  One that has the name of an option of the
        command itself is written --task-NAME."""
        sub.add_argument("tasks", nargs="*", metavar="TASK", help=(
            f"{', '.join(NAMES)}, or FILE.py:CLASS, one of your own"
            + "; or RUN, the folders of runs" * runs))
        sub.add_argument("--task", action="append", default=[], metavar="TASK",
                         help="the same as TASK")
        of = {}
        for name in NAMES + own_tasks(argv):
            for option in inspect.signature(experiments.task_class(name)).parameters:
                of.setdefault(option, []).append(name)
        taken = {flag for action in sub._actions for flag in action.option_strings}
        for option, by in sorted(of.items()):
            flag, shown = option.replace("_", "-"), f"option of {', '.join(by)}"
            for f in (f"--{flag}", f"--task-{flag}"):     # the longer one works everywhere
                if f not in taken:
                    sub.add_argument(f, dest=f"option:{option}", metavar="VALUE", help=shown)
                    shown = argparse.SUPPRESS
                    taken.add(f)

    sub = command(train, "Train a frozen pretrained transformer on a task.")
    model_options(sub)
    run_options(sub, "--steps", "--batch-size", "--lr", "--schedule", "--dropout")
    sub.add_argument("--seed", type=seed, default=0, help="default: 0")
    sub.add_argument("--out", type=path, help="the run's folder (default: a new runs/TASK)")
    sub.add_argument("--resume", action="store_true",
                     help="go on from the checkpoint in --out, or in the task's newest run")
    sub.add_argument("--checkpoint-every", type=whole, default=500, metavar="STEPS",
                     help="default: 500")
    sub.add_argument("--functional", type=path, metavar="FILE", help=(
        "run the functions of this file, begun by 'minifpt new', in place of the library's"))
    sub.add_argument("--anyway", action="store_true",
                     help="train even if one of them is wrong")
    task_options(sub)

    sub = command(compare, "Train several trunks on several tasks, with several seeds, or lay runs "
                           "that exist side by side; write table.md, runs.csv and curves.png.")
    sub.add_argument("--models", nargs="+", default=[MODEL, "random"], metavar="MODEL")
    sub.add_argument("--seeds", type=whole, default=5, help="how many (default: 5)")
    sub.add_argument("--first-seed", type=seed, default=0, metavar="SEED", help="default: 0")
    sub.add_argument("--lrs", type=float, nargs="+", default=(), metavar="LR",
                     help="learning rates of which each trunk takes the best, on validation draws")
    sub.add_argument("--choices", type=whole, default=experiments.CHOICES, metavar="SEEDS",
                     help="validation seeds used to choose the learning rate (default: 2)")
    where_options(sub)
    run_options(sub, "--steps", "--batch-size", "--lr", "--schedule", "--dropout")
    sub.add_argument("--out", type=path,
                     help="default: runs/compare, or runs/compared for runs that exist")
    sub.add_argument("--threshold", type=float, metavar="PERCENT", help=(
        "of runs that exist: the test accuracy to which steps are counted (default: "
        f"{100 * runs_table.SHARE:g} %% of the best arm's final accuracy)"))
    task_options(sub, runs=True)

    sub = command(attention, "Draw where trained runs attend, before and after training, and say "
                             "how much of it lies where the task needs it.")
    sub.add_argument("runs", nargs="+", type=path, metavar="RUN", help="folders of runs")
    sub.add_argument("--model", action="append", metavar="MODEL", help=(
        "an untrained trunk as a reference, may be given again (default: random weights of the "
        "run's shape where there is one run, of pretrained weights; none: no reference)"))
    sub.add_argument("--examples", type=whole, default=64, metavar="N",
                     help="test examples that the maps are the mean of (default: 64)")
    sub.add_argument("--example", type=whole, metavar="I", help="only one of them, from 0")
    sub.add_argument("--map", metavar="LAYER.HEAD", help=(
        "which map is shown large, both from 0 (default: the one with most where needed)"))
    sub.add_argument("--out", type=path, help="a .png, beside it a .csv (default: in the first "
                                              "run's folder)")

    sub = command(report, "Make one HTML page on a run: settings, curves, answers, gradients, what "
                          "moved, time and memory.")
    sub.add_argument("run_folder", type=path, metavar="RUN", help="the folder of a run")
    sub.add_argument("--html", type=path, metavar="FILE", help="default: RUN/report.html")

    sub = command(reproduce_command, "Make one of the paper's tables: NAME.md, NAME.csv, NAME.png.")
    sub.add_argument("name", nargs="?", metavar="NAME",
                     help=f"{', '.join(reproduce.TABLES)}, dose; without it, what each shows")
    sub.add_argument("--scale", choices=["mini", "paper"], default="mini",
                     help="mini: what ships; paper: GPT-2 and the paper's settings (default: mini)")
    sub.add_argument("--tasks", nargs="+", metavar="TASK", dest="only",
                     help="only these (default: the table's)")
    sub.add_argument("--seeds", type=whole, help="how many (default: 5; for dose 3)")
    sub.add_argument("--lrs", type=float, nargs="+", metavar="LR",
                     help="learning rates to choose from (default: the table's)")
    sub.add_argument("--text", nargs="+", metavar="FILE|FOLDER",
                     help="novels that dose pretrains on: files or folders of *.txt")
    where_options(sub)
    sub.add_argument("--plan", action="store_true", help="only say how long it would take")
    sub.add_argument("--out", type=path, default=Path("runs/reproduce"),
                     help="all tables of one folder share their runs (default: runs/reproduce)")

    sub = command(summary, "Show a model's parameter groups and what is trained.")
    model_options(sub)
    task_options(sub)

    sub = command(plan_command, "Predict a run's time and memory, from a few seconds of it.")
    model_options(sub)
    run_options(sub, "--steps", "--batch-size", "--dropout")
    task_options(sub)

    sub = command(steps_command, "Step through one training step, forward and backward, in one "
                                 "HTML file.")
    model_options(sub)
    run_options(sub, "--batch-size", "--lr", "--dropout")
    sub.add_argument("--seed", type=seed, default=0, help="default: 0")
    sub.add_argument("--html", type=path, metavar="FILE", help="default: TASK-step.html")
    sub.add_argument("--still", type=path, metavar="FILE",
                     help="draw its frames as a picture, .png or .svg; the page too with --html")
    sub.add_argument("--every", type=int, default=0, metavar="N",
                     help="train on, and keep a picture every N steps (default: 0, none)")
    sub.add_argument("--frames", type=int, default=24, metavar="N",
                     help="how many pictures (default: 24)")
    task_options(sub, runs=True)

    sub = command(playground, "Write one HTML file in which a frozen transformer trains live.")
    sub.add_argument("--model", default=playing.MODEL, metavar="MODEL", help=(
        f"the pretrained trunk, a GPT-2 by name or path (default: {playing.MODEL})"))
    sub.add_argument("--task", choices=playing.TASKS, default=playing.TASKS[0],
                     help=f"what the page opens with (default: {playing.TASKS[0]})")
    sub.add_argument("--out", type=path, default=Path("playground.html"), metavar="FILE",
                     help="default: playground.html")

    sub = command(new, "Write the skeleton of a functional.py of your own: every signature and "
                       "formula of the mathematics, the bodies to be written.")
    sub.add_argument("file", type=path, metavar="FILE", help="a new file, such as mine.py")
    sub.add_argument("--bare", action="store_true",
                     help="leave out the formulas of the gradients")

    sub = command(check, "Say of each function of your own file whether it is done, wrong, with "
                         "a hint, or not written, and what is next.")
    sub.add_argument("file", type=path, metavar="FILE", help="what 'minifpt new' has begun")

    sub = command(grade, "Check the notebooks and functional files that students hand in: "
                         "STUDENT/NN_name.ipynb or STUDENT_NN.ipynb, STUDENT/NAME.py or "
                         "STUDENT.py. Of a notebook the answers and what they need are run. Each "
                         "file has a process of its own, with a limit of time and memory, without "
                         f"network, which writes in its own folder only. {grading.NOTE}")
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.description = textwrap.fill(sub.description, 79)
    sub.epilog = grading.CONTAINER
    sub.add_argument("folder", type=path, metavar="FOLDER", help="what was handed in")
    sub.add_argument("--out", type=path, default=Path("grades"), metavar="FOLDER",
                     help="gets grades.csv and summary.md (default: grades)")
    sub.add_argument("--seconds", type=whole, default=60, help=(
        "the most that one file may take, a quarter of it for each exercise (default: 60)"))

    sub = command(gradcheck_command, "Hold every hand-written gradient against a numerical one.")
    sub.add_argument("--seed", type=seed, default=0)

    sub = command(pretrain_command, "Make pretrained weights.")
    sub.add_argument("source", choices=list(pretrain.SOURCES), metavar="SOURCE",
                     help=", ".join(f"{k} ({v})" for k, v in pretrain.SOURCES.items()))
    sub.add_argument("--text", nargs="+", metavar="FILE|FOLDER",
                     help="text files, or folders of *.txt, for language, masked and trigrams")
    sub.add_argument("--data", metavar="FOLDER", help="where MNIST's files are, for images, vision")
    sub.add_argument("--shape", metavar="BxHxC", help=(
        "blocks x heads x channels, as in 1x2x256 (default: 6x4x128, as the weights that ship)"))
    sub.add_argument("--out", type=path, help="weight file (default: minigpt-SOURCE.npz)")
    run_options(sub, "--steps", "--batch-size", "--lr", whose="the source's")
    sub.add_argument("--seed", type=seed, default=0)
    sub.add_argument("--resume", action="store_true")

    sub = command(convert, "Convert a GPT-2 that Transformers saved, or one from the hub.")
    sub.add_argument("source", metavar="NAME|PATH",
                     help=f"{', '.join(HUB)}, another hub id OWNER/NAME, or a folder or file")
    sub.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    sub.add_argument("--out", type=path, help="weight file (default: in the user's cache folder)")
    sub.add_argument("--dropout", type=float, help="instead of the source's")
    sub.add_argument("--revision", metavar="COMMIT",
                     help="a commit, tag or branch of the hub id (default: the newest)")

    sub = command(generate, "Continue a text.")
    sub.add_argument("prompt", nargs="?", default="It was ", help="default: 'It was '")
    sub.add_argument("--model", default=MODEL, metavar="NAME|PATH")
    sub.add_argument("--tokens", type=whole, default=200, help="how many more (default: 200)")
    sub.add_argument("--temperature", type=float, default=0.8, help="default: 0.8; 0 is greedy")
    sub.add_argument("--top-k", type=whole, help="draw among the k likeliest only")
    sub.add_argument("--seed", type=seed, default=0)

    sub = command(perplexity_command, "Measure how well a language model predicts a text.")
    sub.add_argument("file", type=path, metavar="FILE", help="a text file, UTF-8")
    sub.add_argument("--model", default=MODEL, metavar="NAME|PATH")
    sub.add_argument("--stride", type=whole, help="tokens between windows (default: half a window)")

    sub = command(lessons_command, "Copy the lessons into a folder and open the first.")
    sub.add_argument("folder", nargs="?", type=path, default=Path("minifpt-lessons"),
                     metavar="FOLDER", help="default: minifpt-lessons")
    sub.add_argument("--no-open", action="store_true", help="copy them, do not start JupyterLab")

    command(info, "Show versions, BLAS, threads, and where weights and data are looked for.")
    return top


def seed(text):
    """A seed from the command line."""
    if not text.isdecimal() or len(text) > 18:            # one that fits into 64 bits
        raise argparse.ArgumentTypeError("expected a whole number, at least 0 and below "
                                         f"10^18, got '{text:.30}'")
    return int(text)


def whole(text):
    """A number of something from the command line, one that fits into 32 bits."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: '{text}'") from None
    if value >= 2**31:
        raise argparse.ArgumentTypeError(f"expected at most {2**31 - 1:,}, got {text:.20}")
    return value


def path(text):
    """A path from the command line."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return Path(text)


def own_tasks(argv):
    """The tasks of the user's own that a command line names, ``FILE.py:CLASS``."""
    found, flag = [], ""
    argv = [text for text in argv if text != "--traceback"]
    if not {*argv[:1]} & {"train", "compare", "summary", "plan", "steps"}:
        return found
    for text in argv:
        if text.startswith("--") and not text.startswith("--task="):
            flag = text
        elif flag not in ("--model", "--models", "--out") and USERS_OWN.fullmatch(
                text.removeprefix("--task=")):
            found.append(text.removeprefix("--task="))
        elif flag in ("--model", "--out"):                # that was its value, one only
            flag = ""
    return list(dict.fromkeys(found))


def task_names(args, default=None):
    """The tasks that were named, at least one."""
    named = [*args.tasks, *args.task] or ([default] if default else [])
    if not named:
        raise ValueError(f"no TASK given: expected one of {', '.join(NAMES)}, or FILE.py:CLASS")
    return named


def task_options_of(args):
    """{option: text} of the tasks' options that were given."""
    return {key.partition(":")[2]: text for key, text in vars(args).items()
            if key.startswith("option:") and text is not None}


def make_task(args, default=None):
    """The one task that the arguments ask for; an option of another task is an error."""
    named = task_names(args, default)
    if len(named) > 1:
        raise ValueError(f"expected one TASK, got {' '.join(named)}")
    return experiments.make_task(named[0], task_options_of(args))


def given(args, *names):
    """The options among ``names`` that were given, as keyword arguments."""
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}


def new_folder(task):
    """``runs/TASK``, or the first of ``runs/TASK-2``, ``-3``, ... that does not exist."""
    folder, n = Path("runs") / task, 2
    while folder.exists():
        folder, n = Path("runs") / f"{task}-{n}", n + 1
    return folder


def newest_folder(task):
    """The folder of the task's newest run below ``runs/``."""
    runs = [p.parent for p in Path("runs").glob(f"{task}*/config.json")
            if p.parent.name == task or p.parent.name.removeprefix(f"{task}-").isdigit()]
    if not runs:
        raise FileNotFoundError(f"there is no run of {task} in {Path('runs').resolve()}: "
                                "say which with --out")
    return max(runs, key=lambda p: (p / "config.json").stat().st_mtime)


def train(args):
    task = make_task(args)
    out = args.out or (newest_folder if args.resume else new_folder)(task.name)
    options = tasks.defaults_of(task) | given(args, "steps", "batch_size", "lr", "schedule",
                                              "dropout")
    if args.anyway and not args.functional:
        raise ValueError("train: --anyway is for --functional FILE")
    with own.using(args.functional, args.anyway) if args.functional else nullcontext() as mine:
        for r in mine.wrong if mine else ():
            print(f"{mine.path}: {r.name} is wrong. {r.hint}", file=sys.stderr)
        model, history = experiments.run(
            task, args.model, out, freeze=args.freeze, seed=args.seed, resume=args.resume,
            source=task_names(args)[0], checkpoint_every=args.checkpoint_every,
            config=mine and mine.settings, **options)
    last = history[-1]
    total, trained = (sum(n) for n in zip(*model.counts(task.tokens).values(), strict=True))
    held_out = task.test_set() if hasattr(task, "test_set") else None
    n = f"{len(held_out[0])} examples" if held_out else "fresh draws"
    print(f"{task.name}: {100 * last['test_accuracy']:.2f} % test accuracy ({n}) after "
          f"{last['step']} steps, {last['seconds']:.0f} s, {trained:,} of {total:,} parameters "
          f"trained\n{out}: config.json metrics.csv checkpoint.npz curves.png")
    if mine:
        print(f"{mine.path}: {len(mine.calls)} of its functions ran, {mine.calls.total():,} times, "
              "without what they call inside the file")
        if uncalled := [name for name in mine.functions if name not in mine.calls]:
            print(f"{mine.path}: this model never called {', '.join(uncalled)}")


def attention(args):
    out = args.out or args.runs[0] / "attention.png"
    models = args.model if args.model != ["none"] else []
    print(attention_maps.attention(args.runs, out, models, args.examples, args.example, args.map))
    print(f"{out} {out.with_suffix('.csv')}")


def report(args):
    print(reporting.report(args.run_folder, args.html))


def compare_runs(args):
    """``compare`` over run folders; an option that only training takes is an error."""
    plain = vars(parser().parse_args(["compare"]))
    for name, value in vars(args).items():
        if (name not in ("tasks", "task", "out", "threshold", "traceback")
                and value != plain.get(name)):
            flag = name.partition(":")[2] or name
            raise ValueError(f"compare: --{flag.replace('_', '-')} is for training: of runs that "
                             "exist only --threshold and --out can be chosen")
    out = args.out or Path("runs/compared")
    print(runs_table.compare_runs(out, task_names(args), args.threshold))
    print(f"{out}: table.md runs.csv curves.png")


def compare(args):
    if runs_table.are_runs(task_names(args)):
        return compare_runs(args)
    if args.threshold is not None:
        raise ValueError("compare: --threshold is for runs that exist")
    out = args.out or Path("runs/compare")
    if args.lrs and args.lr is not None:
        raise ValueError("compare: expected --lr or --lrs, not both")
    with workers.cluster(args.dask) as executor:
        print(experiments.compare(
            out, task_names(args), args.models,
            range(args.first_seed, args.first_seed + args.seeds), rates=args.lrs,
            choices=args.choices, jobs=args.jobs, executor=executor,
            task_options=task_options_of(args),
            options=given(args, "steps", "batch_size", "lr", "schedule", "dropout")))
    print(f"{out}: table.md runs.csv curves.png{' sweep.png' * bool(args.lrs)}")


def reproduce_command(args):
    if args.name is None:
        print_rows({name: table.shows for name, table in reproduce.TABLES.items()}
                   | {"dose": doses.SHOWS})
    elif args.name == "dose":
        if args.plan or args.scale != "mini":
            raise ValueError("reproduce: dose has neither --plan nor --scale")
        with workers.cluster(args.dask) as executor:
            print(doses.dose(args.out, args.text, only=args.only, rates=args.lrs, jobs=args.jobs,
                             executor=executor, **given(args, "seeds")))
        print(f"{args.out}: dose.md dose.csv dose.png")
    elif args.text:
        raise ValueError("reproduce: --text is for dose")
    elif args.plan:
        print(reproduce.cost(reproduce.table_of(args.name, args.scale, args.only, args.lrs),
                             5 if args.seeds is None else args.seeds))
    else:
        with workers.cluster(args.dask) as executor:
            print(reproduce.reproduce(args.name, args.out, scale=args.scale, only=args.only,
                                      rates=args.lrs, jobs=args.jobs, executor=executor,
                                      **given(args, "seeds")))
        stem = reproduce.stem(args.name, args.scale)
        print(f"{args.out}: {stem}.md {stem}.csv {stem}.png")


def summary(args):
    task = make_task(args, "bit-xor")
    model = FPT.for_task(task, args.model, args.freeze)
    most = getattr(model.trunk.config, "n_positions", task.tokens)
    if task.tokens > most:
        raise ValueError(f"summary: {task.tokens} tokens, the trunk has {most} positions")
    print(f"{args.model} on {task.name}: in {task.tokens} x {task.input_dim}, "
          f"out {task.output_tokens} x {task.output_dim} (tokens x numbers)\n"
          f"{model.summary(task.tokens)}")


def plan_command(args):
    task = make_task(args)
    options = tasks.defaults_of(task) | given(args, "steps", "batch_size", "dropout")
    steps, batch = options["steps"], options["batch_size"]
    if steps < 1:
        raise ValueError(f"plan: steps is {steps}, expected at least 1")
    spec, mask = TrunkSpec.parse(args.model), FreezeMask.parse(args.freeze)
    made = plan.plan(task, spec, mask, batch, options["dropout"])
    config = made.model.trunk.config
    shape = f"{config.n_layer} blocks, " if made.measured else ""
    every, examples = map(training.__kwdefaults__.get, ("eval_every", "test_examples"))
    tests = -(-steps // every) * examples
    print_rows({
        "run": f"{task.name} with {args.model}: {shape}{config.n_embd} channels, "
               f"{batch} x {task.tokens} tokens, frozen: {mask}",
        "a step": plan.duration(made.step),
        f"{steps:,} steps": plan.duration(steps * made.step),
        f"{tests:,} tests": f"{plan.duration(tests * made.test)}, {examples} every {every} steps",
        "memory": f"{made.peak / 1e6:,.0f} MB at most, {made.weights / 1e6:,.0f} MB of it weights",
        "measured on": (f"{made.measured} of {config.n_layer} blocks" if made.measured else
                        "the whole trunk") + f", {machine.cores()} threads"})


def steps_command(args):
    if args.still:
        stills = still.paths(args.still, has_film=args.every > 0)
        if args.html in stills:
            raise ValueError(f"--html {args.html}: --still draws a picture there")
    film = {"every": args.every, "frames": args.frames}
    folder = next((Path(name) for name in args.tasks if Path(name).is_dir()
                   or (Path(name).name != name and ".py:" not in name)), None)
    if folder is not None:
        own = [*given(args, "batch_size", "lr", "dropout"), *task_options_of(args), *args.task,
               *args.tasks[1:], *[args.seed] * bool(args.seed)]
        if own or (args.model, args.freeze) != (MODEL, "fpt"):
            raise ValueError(f"{folder} is a run: it has its own task, model and settings")
        task, run = run_folders.load(folder)
        make = partial(stepping.of_run, run, task, trunk=run.settings["model"], **film)
    else:
        task = make_task(args)
        make = partial(stepping.of_task, task, args.model, freeze=args.freeze, seed=args.seed,
                       **film, **given(args, "batch_size", "lr", "dropout"))
    name = re.sub(r"[^\w.,-]", "-", task.name).lstrip(".")    # a user's own may be no file's name
    out = args.html or (None if args.still else Path(f"{name}-step.html"))
    if out:
        outputs.check(out, stepping.KIND)
    made = make()
    if args.still:
        for path in made.still(args.still):
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    if out:
        size = made.save(out)
        before, after = made.data["losses"]
        print(f"{out}: {size / 1e6:.2f} MB, {len(made.data['steps'])} operations, the loss of the "
              f"batch {before:.4f} before and {after:.4f} after; open it in a browser")


def playground(args):
    size = playing.save(args.out, args.model, args.task)
    print(f"{args.out}: {size / 1e3:,.0f} kB; open it in a browser")


def print_rows(rows):
    """Print {name: value}, a line each."""
    for name, value in rows.items():
        print(f"{name:18} {value}")


def new(args):
    own.new(args.file, args.bare)
    print(f"{args.file}: {len(own.FUNCTIONS)} functions to write; 'minifpt check {args.file}' says "
          "what is next")


def check(args):
    return int(own.check(args.file) > 0)


def grade(args):
    rows = grading.grade(args.folder, args.out, args.seconds)
    print(f"{len({row['student'] for row in rows})} students, "
          f"{sum(row['passed'] == 'yes' for row in rows)} of {len(rows)} passed\n"
          f"{args.out}: grades.csv summary.md\n{closed.protection()}")


def gradcheck_command(args):
    rng = np.random.default_rng(args.seed)
    n, ids = rng.standard_normal, rng.integers(0, 7, (2, 5))
    reports = {op: examples.check(op, args.seed) for op in tracing.OPERATIONS}

    def off_zero(model):                                  # scales and biases off 1 and 0
        for p in model.parameters():
            p.data += 0.3 * n(p.data.shape)
        return model
    for activation, causal in (("gelu_new", True), ("gelu", False), ("relu", False)):
        config = GPT2Config(2, 2, 8, 6, 7, 0.2, activation_function=activation, causal=causal)
        trunk = off_zero(GPT2(config, args.seed, np.float64))
        reports[f"GPT2, {activation}{', causal' * causal}"] = gradcheck_layer(trunk, n((2, 5, 8)))
    config = GPT2Config(2, 2, 8, 6, 7, dropout=0.2)
    lm = off_zero(LanguageModel(config, args.seed, np.float64))
    reports["LanguageModel"] = gradcheck_layer(lm, ids)
    trunk = off_zero(LSTM(LSTMConfig(2, 4, 6, 0.2, True, True), args.seed, np.float64))
    reports["LSTM"] = gradcheck_layer(trunk, n((2, 5, 4)))
    for preset in ("full", "fpt", "output_only"):
        model = FPT(off_zero(GPT2(config, args.seed, np.float64)), 3, 4, 2, seed=args.seed)
        model.freeze(FreezeMask.parse(preset))
        reports[f"FPT, {preset}"] = gradcheck_layer(model, n((2, 5, 3)))
    print(f"{'':24}{'largest relative error':>24}  worst at")
    for name, report in reports.items():
        print(f"{name:24}{report.max_relative_error:24.1e}  {report.worst[0]}"
              f"{'' if report else '  FAILED'}")
    failed = sum(not report for report in reports.values())
    print(f"{len(reports) - failed} passed, {failed} failed")
    return int(failed > 0)


def pretrain_command(args):
    out = pretrain.weight_file(args.out or f"minigpt-{args.source}")
    last = pretrain.pretrain(args.source, out, shape=args.shape, text=args.text, data=args.data,
                             seed=args.seed, resume=args.resume,
                             **given(args, "steps", "batch_size", "lr"))[-1]
    print(f"{out}: {last['test_loss']:.3f} nats, {100 * last['test_accuracy']:.1f} % right on "
          f"what was held out, {pretrain.SOURCES[args.source]}")


def convert(args):
    print(converting.convert(args.source, args.out, args.dtype, dropout=args.dropout,
                             revision=args.revision))


def load_with_tokenizer(model):
    """A language model and the tokenizer that belongs to it."""
    lm = LanguageModel.from_pretrained(model)
    return lm, tokenizer.find(weights.find(model), lm.config.vocab_size)


def generate(args):
    if not args.prompt:
        raise ValueError("generate: the prompt is empty, expected some text to go on from")
    lm, words = load_with_tokenizer(args.model)
    ids = lm.generate(words.encode(args.prompt), args.tokens, args.temperature, args.top_k,
                      args.seed)
    print(words.decode(ids))


def perplexity_command(args):
    lm, words = load_with_tokenizer(args.model)
    if not args.file.is_file():
        raise FileNotFoundError(f"{args.file}: there is no such file")
    ids, unit = words.encode(read_text(args.file)), "token"
    if isinstance(words, tokenizer.Bytes):
        unit = "byte"
    if len(ids) < 2:
        raise ValueError(f"{args.file}: has {len(ids)} {unit}s, expected at least 2")
    score = lm.perplexity(ids, args.stride, progress=True)
    print(f"{args.file}: perplexity {score['perplexity']:.3f} a {unit}, "
          f"{score['bits_per_token']:.3f} bits, {score['nats_per_token']:.3f} nats a {unit}, "
          f"{score['tokens']:,} {unit}s scored")


def lessons_command(args):
    written = unpack(args.folder)
    print(f"{args.folder}: {len(written)} files copied; what was there already stays as it was")
    if args.no_open:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise FileNotFoundError("JupyterLab is not installed: pip install jupyterlab")
    first = min(args.folder.glob("*.ipynb"))
    # -P: no file of the folder, such as a random.py, is imported in place of a library.
    return subprocess.call([sys.executable, "-P", "-m", "jupyterlab", first.name], cwd=args.folder)


def info(args):
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print_rows({
        "minifpt": f"{__version__} in {Path(__file__).resolve().parent}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name')} {blas.get('version')}, {machine.blas_kernels()}",
        "cores": "{}, limited by {}; OMP_NUM_THREADS lowers it".format(*machine.cores_and_why()),
        "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE", "not set"),
        "weights": "none found" * (not weights.available()),
        **{f"  {name}": weights.origin(name) for name in weights.available()},
        "looked for in": ", ".join(map(str, weights.folders())),
        "data": os.environ.get("MINIFPT_DATA", "MINIFPT_DATA is not set") + ", then "
                + str(cache_folder() / "data")})
