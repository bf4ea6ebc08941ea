"""Options as data: what several commands take, and the options of tasks."""

import argparse
import inspect
from pathlib import Path
from typing import NamedTuple

from .. import tasks
from ..experiments import compare as experiments
from ..trunks.names import USERS_OWN

MODEL_NAME = "minigpt-language"
TRUNKS = """\
A MODEL is one of
    minigpt-language      shipped weights ('minifpt info' lists them)
    FILE or FOLDER        weights of your own
    random, random:SHAPE  random weights, of minigpt's shape or that of gpt2,
                          gpt2-medium, gpt2-large or gpt2-xl
    random:1x2x256@1.41   blocks x heads x channels, with a standard deviation
                          of 1.41 / sqrt(channels); GPT-2's is 0.55
    random@paper          as the paper's: 0.02 at 768 channels, nothing divided
    mimetic               random, with attention that looks pretrained
    statistics:NAME       random, with each array's mean and spread
    spectrum:NAME         random, with each matrix's singular values
    lstm:3x128            a random LSTM; ,residual and ,positions add these
    A+MASK=B              A with the parameters of B that a mask names
    FILE.py:FUNCTION      a trunk of your own
"""


class Option(NamedTuple):
    """An option or argument of a command, as argparse takes it."""

    flags: tuple
    settings: dict
    alias: str = ""                                       # a former name, not shown


def option(*flags, alias="", **settings):
    """Return an :class:`Option`."""
    return Option(flags, settings, alias)


def takes(*options, **texts):
    """Give a command its options.  A list of options excludes one another.  ``texts`` may be a
    ``description`` and an ``epilog`` of its help."""
    def decorate(run):
        run.options = options
        vars(run).update(texts)
        return run
    return decorate


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


MODEL = option("--model", default=MODEL_NAME, metavar="MODEL",
               help=f"the trunk, see below (default: {MODEL_NAME})")
FREEZE = option("--freeze", default="fpt", metavar="MASK", help=(
    "fpt, full, output_only, or groups and patterns: 'attn,mlp,h.3.ln_1.*' (default: fpt)"))
SEED = option("--seed", type=seed, default=0, help="seed of everything random (default: 0)")
WHERE = [
    option("--jobs", type=whole, default=1, metavar="N",
           help="processes at a time, each with one BLAS thread (default: 1)"),
    option("--dask", metavar="ADDRESS", help=(
        "run on the Dask cluster whose scheduler is at tcp://HOST:PORT; it and all workers need "
        "minifpt, and all workers see --out, weights and data under the same paths"))]
RUN = {                                                   # settings of a run
    "steps": (whole, "training steps"), "batch_size": (whole, "examples in a step"),
    "lr": (float, "learning rate"), "dropout": (float, "share of activations set to 0"),
    "schedule": (None, "learning rate over time"),
    "clip": (float, "largest norm of all gradients together"),
    "warmup": (whole, "steps over which the learning rate rises"),
    "eval_every": (whole, "steps between tests")}


def run_options(*names, default="the task's", **defaults):
    """Return options for the settings of a run, see ``RUN``."""
    return [option(f"--{name.replace('_', '-')}", type=RUN[name][0],
                   help=f"{RUN[name][1]} (default: {defaults.get(name, default)})",
                   choices=["constant", "cosine"] if name == "schedule" else None)
            for name in names]


NAMES = ", ".join(tasks.names())
TASKS = option("tasks", nargs="*", metavar="TASK",
               help=f"{NAMES}, or FILE.py:CLASS, a task of your own")
TASKS_OR_RUNS = option("tasks", nargs="*", metavar="TASK|RUN", help=(
    f"{NAMES}, or FILE.py:CLASS, a task of your own; or the folders of finished runs"))
# What the options of tasks do.
TASK_OPTIONS = {
    "n": "bits in a string", "digits": "digits of a number", "strings": "strings to remember",
    "bits": "bits in a string", "patch": "numbers, or pixels of a side, in a token",
    "augment": "shift and mirror the training images: true or false",
    "data": "folder of the data's files", "side": "pixels of a side",
    "size": "pixels of a side", "folds": "kinds of folds", "length": "tokens in an example",
    "families": "families to tell apart",
    "distance": "share of places in which families differ",
    "mutation": "share of places that mutate", "world": "seed of the made-up families",
    "of": "task that the images are from", "labels": "labelled examples to train on",
    "draw": "seed that draws the labelled examples",
    "holdout": "what of the test is not trained on",
    "depth": "deepest nesting", "arguments": "most arguments of an operation",
    "least": "fewest tokens", "files": "text or data files", "p": "prime modulus",
    "symbols": "symbols in the alphabet", "tokens": "tokens in an example",
    "source": "where the symbols come from", "held_out": "share of each text that is the test",
    "share": "share of letters that are typos"}


def add_options(sub, options, argv):
    """Add a command's options to its parser.  One that takes tasks gets the options of all tasks,
    and shows those of the tasks that ``argv`` names."""
    for one in options:
        if isinstance(one, list):
            group = sub.add_mutually_exclusive_group()
            for each in one:
                group.add_argument(*each.flags, **each.settings)
            continue
        action = sub.add_argument(*one.flags, **one.settings)
        if one.alias:
            sub.add_argument(one.alias, **one.settings | {"dest": action.dest,
                                                          "help": argparse.SUPPRESS})
    if options and options[0] in (TASKS, TASKS_OR_RUNS):
        add_task_options(sub, argv)


def add_task_options(sub, argv):
    """Add the options of all tasks.  An option with the name of one of the command
    itself is written --task-NAME."""
    sub.add_argument("--task", action="append", default=[], metavar="TASK",
                     help="the same as TASK")
    asked = named_tasks(argv)
    owners = {}
    for name in dict.fromkeys([*tasks.names(), *asked]):
        for parameter in inspect.signature(experiments.task_class(name)).parameters.values():
            owners.setdefault(parameter.name, {})[name] = parameter.default
    command = sub.prog.split()[-1]
    group = sub.add_argument_group(
        f"options of {', '.join(asked)}" if asked else "options of the task",
        None if asked else f"'minifpt {command} TASK --help' shows them")
    taken = {flag for action in sub._actions for flag in action.option_strings}
    for name, defaults in sorted(owners.items()):
        shown = {task: defaults[task] for task in asked if task in defaults}
        text = task_option_help(name, shown, asked) if shown else argparse.SUPPRESS
        for flag in (f"--{name.replace('_', '-')}", f"--task-{name.replace('_', '-')}"):
            if flag not in taken:                         # the longer one works everywhere
                group.add_argument(flag, dest=f"option:{name}", metavar="VALUE", help=text)
                text = argparse.SUPPRESS
                taken.add(flag)


def task_option_help(name, defaults, asked):
    """Return the help of a task's option from {task: its default}."""
    known = not all(".py:" in task for task in defaults)  # else a user's own, of another meaning
    values = list(dict.fromkeys(map(str, defaults.values())))
    default = values[0] if len(values) == 1 else ", ".join(f"{v} for {t}"
                                                           for t, v in defaults.items())
    if default == str(inspect.Parameter.empty):
        default = "none, it must be given"
    elif default == "None":
        default = "MINIFPT_DATA" if name == "data" else "none"
    text = f"{TASK_OPTIONS.get(name, '') if known else ''} (default: {default})".strip()
    only = f"; of {', '.join(defaults)}" if len(asked) > len(defaults) else ""
    return (text + only).replace("%", "%%")


def named_tasks(argv):
    """Return the tasks that a command line names: ours, and ``FILE.py:CLASS``."""
    named, flag = [], ""
    for text in argv:
        if text == "--traceback":
            continue
        name = text.removeprefix("--task=")
        if text.startswith("--") and name == text:
            flag = text
        elif flag not in ("--model", "--models", "--out") and (
                name in tasks.TASKS or USERS_OWN.fullmatch(name)):
            named.append(name)
        elif flag in ("--model", "--out"):                # that was its value, one only
            flag = ""
    return list(dict.fromkeys(named))


def task_names(args, default=None):
    """Return the tasks that were named, at least one."""
    named = [*args.tasks, *args.task] or ([default] if default else [])
    if not named:
        raise ValueError(f"no TASK given: expected one of {NAMES}, or FILE.py:CLASS")
    return named


def task_options_of(args):
    """Return {option: text} of the tasks' options that were given."""
    return {key.partition(":")[2]: text for key, text in vars(args).items()
            if key.startswith("option:") and text is not None}


def make_task(args, default=None):
    """Return the one task that the arguments ask for; an option of another task is an error."""
    named = task_names(args, default)
    if len(named) > 1:
        raise ValueError(f"expected one TASK, got {' '.join(named)}")
    return experiments.make_task(named[0], task_options_of(args))


def given(args, *names):
    """Return the options among ``names`` that were given, as keyword arguments."""
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
