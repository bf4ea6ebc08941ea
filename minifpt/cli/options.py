"""Options as data: the options that several commands share, and the options of tasks."""

import argparse
import inspect
import math
import os
import sys
from pathlib import Path
from typing import NamedTuple

from .. import tasks
from ..experiments import compare as experiments
from ..trunks import TrunkSpec, config_for, forms
from ..user_files import USERS_OWN

MODEL_NAME = "minigpt-language"
TRUNKS = """\
A MODEL is one of
    minigpt-language      shipped weights ('minifpt info' lists them)
    FILE or FOLDER        your own weights, also of a Llama, BERT, ViT or T5
    random, random:SHAPE  random weights, of minigpt's shape or that of gpt2,
                          gpt2-medium, gpt2-large or gpt2-xl
    random:1x2x256@1.41   blocks x heads x channels, with a standard deviation
                          of 1.41 / sqrt(channels); GPT-2's is 0.55
    random:llama:6x4x128  a random Llama; 6x4/2x128: 2 heads of keys and values
    random:bert:6x4x128   a random BERT; also roberta:, vit:, t5:, and
                          longformer:32:6x4x128 with a window of 32 tokens
    random@paper          random as in the paper: 0.02 at 768 channels
    statistics:NAME       random, with each array's mean and standard deviation
    lstm:3x128            a random LSTM; ,residual and ,positions add these
    ...,qk=105            after a random one: 105 degrees between each head's
                          queries and keys, or positive (0), negative (180),
                          antisymmetric; after a pretrained one the positive,
                          negative, symmetric or antisymmetric part
    A+MASK=B              A with the parameters of B that a mask names
    FILE.py:FUNCTION      your own trunk
"""


class Option(NamedTuple):
    """An option or argument of a command, for argparse; only ``--help-all`` shows a rare one."""

    flags: tuple
    settings: dict
    is_rare: bool = False


def option(*flags, **settings):
    """Return an :class:`Option`."""
    return Option(flags, settings)


def rare(*options):
    """Return the options as rare ones."""
    return [one._replace(is_rare=True) for one in options]


def takes(*options, **texts):
    """Give a command its options, and its help a ``description`` or ``epilog``.  Of the options
    in a list only one can be used."""
    def decorate(run):
        run.options = options
        vars(run).update(texts)
        return run
    return decorate


def seed(text):
    """Return a seed from the command line."""
    if not text.isdecimal() or len(text) > 18:            # 18 digits fit into 64 bits
        raise argparse.ArgumentTypeError("expected a whole number, at least 0 and below "
                                         f"10^18, got '{text:.30}'")
    return int(text)


def whole(text):
    """Return a whole number from the command line, which must fit into 32 bits."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: '{text}'") from None
    if value >= 2**31:
        raise argparse.ArgumentTypeError(f"expected at most {2**31 - 1:,}, got {text:.20}")
    return value


def path(text):
    """Return a path from the command line."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return Path(text)


def model(text):
    """Return the name of a trunk from the command line.  Of a large random one, say at once that
    it takes long to build or does not fit into memory."""
    try:
        spec = TrunkSpec.parse(text)
        config = config_for(spec) if spec.kind in ("random", "lstm") else None
    except (ValueError, OSError):                         # the command says what is wrong
        return text
    weights = 12 * config.n_layer * config.n_embd ** 2 if config else 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(
        os, "sysconf") else math.inf
    if 4 * weights > memory:
        raise argparse.ArgumentTypeError(f"the weights of {text} take {weights / 2.5e8:,.0f} GB, "
                                         f"this machine has {memory / 1e9:,.0f} GB")
    if weights > 5e8 or (config and config.n_layer > 200):
        print(f"{text}: {config.n_layer:,} blocks of {config.n_embd:,} channels take a while to "
              "build", file=sys.stderr)
    return text


MODEL = option("--model", type=model, default=MODEL_NAME, metavar="MODEL",
               help=f"trunk, see below (default: {MODEL_NAME})")
FREEZE = option("--freeze", default="fpt", metavar="MASK", help=(
    "frozen parts: fpt (attn,mlp), full (none), output_only (all but the output), or groups and "
    "patterns: 'attn,mlp,h.3.ln_1.*' (default: fpt)"))
ADAPT = option("--adapt", metavar="ADAPTER", help=(
    "lora:rank=4,on=attn.c_attn, bottleneck:size=8 or bitfit (default: none)"))
START = option("--start", choices=forms.STARTS, help=(
    "start the input layer in the directions in which the first block's heads look for likeness, "
    "or away from it (default: random)"))
SEED = option("--seed", type=seed, default=0, help="seed of all random numbers (default: 0)")
WHERE = [
    option("--jobs", type=whole, default=1, metavar="N",
           help="processes at a time, each with one BLAS thread (default: 1)"),
    option("--dask", metavar="ADDRESS", help=(
        "run on the Dask cluster at tcp://HOST:PORT, whose machines have minifpt and see --out, "
        "weights and data under the same paths (default: none)"))]
OPEN = option("--open", action="store_true", help="open the page in a browser")
RUN = {                                                   # settings of a run
    "steps": (whole, "training steps"), "batch_size": (whole, "examples in a step"),
    "lr": (float, "learning rate"), "dropout": (float, "share of activations set to 0"),
    "schedule": (None, "learning rate over time"),
    "clip": (float, "largest norm of all gradients together"),
    "warmup": (whole, "steps over which the learning rate rises"),
    "eval_every": (whole, "steps between tests")}
# Names of options: a task's option of such a name is --task-NAME.
RESERVED = {*RUN, "model", "freeze", "adapt", "start", "seed", "out"}


def run_options(*names, default="the task's", **defaults):
    """Return options for settings of a run, by the names in ``RUN``."""
    return [option(f"--{name.replace('_', '-')}", type=RUN[name][0],
                   metavar="N" if RUN[name][0] is whole else None,
                   help=f"{RUN[name][1]} (default: {defaults.get(name, default)})",
                   choices=["constant", "cosine"] if name == "schedule" else None)
            for name in names]


NAMES = ", ".join(tasks.names())
TASKS = option("tasks", nargs="*", metavar="TASK", help=f"{NAMES}, or FILE.py:CLASS, your own task")
TASKS_OR_RUNS = option("tasks", nargs="*", metavar="TASK|RUN", help=(
    f"{NAMES}, or FILE.py:CLASS, your own task; or the folder of a finished run"))
# The help of each option of a task.
TASK_OPTIONS = {
    "n": "bits in a string", "strings": "strings to remember",
    "bits": "bits in a string", "patch": "numbers in a token, or pixels along its side",
    "augment": "shift and mirror the training images: true or false",
    "data": "folder of the data's files", "side": "pixels along a side",
    "size": "pixels along a side", "length": "tokens in an example",
    "holdout": "which test cases are not in training",
    "depth": "deepest nesting", "arguments": "most arguments of an operation",
    "least": "fewest tokens", "files": "text or data files", "tokens": "tokens in an example",
    "held_out": "share of each text for the test",
    "share": "share of letters that are typos", "cut": "first symbols to show, without ']'"}


def add_options(sub, options, argv):
    """Add a command's options to its parser.  A command with tasks gets the options of all tasks
    and shows those of the tasks that ``argv`` names."""
    more = sub.add_argument_group("more options")
    for one in options:
        if isinstance(one, list):
            group = sub.add_mutually_exclusive_group()
            for each in one:
                group.add_argument(*each.flags, **each.settings)
        else:
            is_hidden = one.is_rare and "--help-all" not in argv
            settings = one.settings | ({"help": argparse.SUPPRESS} if is_hidden else {})
            (more if one.is_rare else sub).add_argument(*one.flags, **settings)
    if options and options[0] in (TASKS, TASKS_OR_RUNS):
        add_task_options(sub, argv)


def add_task_options(sub, argv):
    """Add the options of all tasks."""
    named = named_tasks(argv)
    owners = {}
    for name in dict.fromkeys([*tasks.names(), *named]):
        for parameter in inspect.signature(experiments.task_class(name)).parameters.values():
            owners.setdefault(parameter.name, {})[name] = parameter.default
    command = sub.prog.split()[-1]
    group = sub.add_argument_group(
        f"options of {', '.join(named)}" if named else "options of the task",
        None if named else f"'minifpt {command} TASK --help' shows them")
    flags = {flag for action in sub._actions for flag in action.option_strings}
    for name, defaults in sorted(owners.items()):
        shown = {task: defaults[task] for task in named if task in defaults}
        text = task_option_help(name, shown, named) if shown else argparse.SUPPRESS
        flag = f"--{name.replace('_', '-')}"
        if name in RESERVED or flag in flags:
            flag = f"--task-{flag.removeprefix('--')}"
        group.add_argument(flag, dest=f"option:{name}", metavar="VALUE", help=text)


def task_option_help(name, defaults, named):
    """Return the help of a task's option from {task: its default}; ``named`` are all tasks that
    the command line names."""
    known = not all(".py:" in task for task in defaults)  # in a user's task it may mean anything
    values = list(dict.fromkeys(map(str, defaults.values())))
    default = values[0] if len(values) == 1 else ", ".join(f"{v} for {t}"
                                                           for t, v in defaults.items())
    if default == str(inspect.Parameter.empty):
        default = "none, it must be given"
    elif default == "None":
        default = "MINIFPT_DATA" if name == "data" else "none"
    text = f"{TASK_OPTIONS.get(name, '') if known else ''} (default: {default})".strip()
    only = f"; of {', '.join(defaults)}" if len(named) > len(defaults) else ""
    return (text + only).replace("%", "%%")


def named_tasks(argv):
    """Return the tasks that a command line names, also as ``FILE.py:CLASS``."""
    named, flag = [], ""
    for text in argv:
        if text == "--traceback":
            continue
        if text.startswith("--"):
            flag = text
        elif flag not in ("--model", "--models", "--out") and (
                text in tasks.TASKS or USERS_OWN.fullmatch(text)):
            named.append(text)
        elif flag in ("--model", "--out"):                # these take one value
            flag = ""
    return list(dict.fromkeys(named))


def task_names(args, default=None):
    """Return the tasks that the command line names, at least one."""
    named = args.tasks or ([default] if default else [])
    if not named:
        raise ValueError(f"no TASK given: expected one of {NAMES}, or FILE.py:CLASS")
    return named


def task_options_of(args):
    """Return {option: text} of the tasks' options on the command line."""
    return {key.partition(":")[2]: text for key, text in vars(args).items()
            if key.startswith("option:") and text is not None}


def make_task(args, default=None):
    """Return the one task of the command line.  Raises ``ValueError`` for options that it lacks."""
    named = task_names(args, default)
    if len(named) > 1:
        raise ValueError(f"expected one TASK, got {' '.join(named)}")
    return experiments.make_task(named[0], task_options_of(args), shared=())


def given_options(args, *names):
    """Return the options among ``names`` that the command line has, as keyword arguments."""
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
