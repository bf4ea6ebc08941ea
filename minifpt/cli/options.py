"""Options as data: the options that several commands share, and the options of tasks."""

import argparse
import inspect
import textwrap
from pathlib import Path

from .. import tasks
from ..plugins import USERS_OWN
from ..trunks import forms
from ..trunks.names import others

DEFAULT_MODEL = "minigpt-language"
KINDS = "'minifpt summary --help' lists every kind of MODEL"
FAMILIES = textwrap.fill(f"as random:SHAPE, for another family: {others()}", 54)
TRUNKS = f"""\
A MODEL is one of
    minigpt-language      shipped weights ('minifpt info' lists them)
    FILE or FOLDER        your own weights, also of another family
    random, random:SHAPE  random weights as the paper draws them for the width,
                          of minigpt's shape or that of gpt2, gpt2-medium,
                          gpt2-large or gpt2-xl
    random:1x2x256@1.41   blocks x heads x channels, with a standard deviation
                          of 1.41 / sqrt(channels); that of random is 0.55
    random@gpt2           GPT-2's own 0.02, too small for 128 channels
    random:FAMILY:SHAPE   {textwrap.indent(FAMILIES, ' ' * 26).lstrip()}
    statistics:NAME       random, with each array's mean and standard deviation
    lstm:3x128            a random LSTM; ,residual and ,positions add these
    ...,qk=105            after a random one: 105 degrees between each head's
                          queries and keys, or positive (0), negative (180),
                          antisymmetric; after a pretrained one the positive,
                          negative, symmetric or antisymmetric part
    A+MASK=B              A with the parameters of B that a mask names
    FILE.py:FUNCTION      your own trunk
"""


def option(*flags, **settings):
    """Return an option or argument of a command: its flags, and its settings for argparse."""
    return flags, settings


def takes(*options, **texts):
    """Give a command its options, and its help a ``description`` or ``epilog``.  Of the options
    in a list only one can be used."""
    def decorate(run):
        run.options = options
        vars(run).update(texts)
        return run
    return decorate


MODEL = option("--model", default=DEFAULT_MODEL, metavar="MODEL",
               help=f"the trunk, by name or path (default: {DEFAULT_MODEL})")
FREEZE = option("--freeze", default="fpt", metavar="MASK", help=(
    "frozen parts: fpt, full (none), output_only, 'attn,mlp,h.3-5.ln_1.*', or 'only:ln,output', "
    "which trains these (default: fpt)"))
ADAPT = option("--adapt", metavar="ADAPTER", help=(
    "lora:rank=4,on=attn.c_attn or bitfit (default: none)"))
START = option("--start", choices=forms.STARTS, help=(
    "the input layer starts towards likeness for the first heads, or away (default: random)"))
SEED = option("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
WHERE = [
    option("--jobs", type=int, default=1, metavar="N",
           help="processes at a time, each with one BLAS thread (default: 1)"),
    option("--dask", metavar="ADDRESS", help=(
        "run on the Dask cluster at tcp://HOST:PORT, whose machines have minifpt and see --out, "
        "weights and data under the same paths (default: none)"))]


def out_option(text, place, **settings):
    """Return the option for the file or folder that a command writes, by default at ``place``."""
    return option("-o", "--out", type=Path, metavar="PATH", help=f"{text} (default: {place})",
                  **settings)


FORCE = option("--force", action="store_true", help="replace a file that is there")
FUNCTIONAL = option("--functional", type=Path, metavar="FILE",
                    help="run your functions from a file by 'minifpt new'")
OPEN = option("--open", action="store_true", help="open the page in a browser")
RUN_SETTINGS = {                                          # name: (type, help)
    "steps": (int, "training steps"), "batch_size": (int, "examples in a step"),
    "lr": (float, "learning rate"),
    "until": (float, "end once three tests in a row reach this accuracy, at most 1"),
    "dropout": (float, "share of activations set to 0"),
    "schedule": (None, "learning rate over time"),
    "weight_decay": (float, "weight decay of AdamW"),
    "clip": (float, "largest norm of all gradients together"),
    "warmup": (int, "steps over which the learning rate rises"),
    "eval_every": (int, "steps between tests"),
    "test_examples": (int, "examples in each test")}
# Names of options: a task's option of such a name is --task-NAME.
RESERVED = {*RUN_SETTINGS, "model", "freeze", "adapt", "start", "seed", "out"}


def run_options(*names, default="the task's", **defaults):
    """Return options for settings of a run, by the names in ``RUN_SETTINGS``."""
    return [option(f"--{name.replace('_', '-')}", type=RUN_SETTINGS[name][0],
                   metavar="N" if RUN_SETTINGS[name][0] is int else None,
                   help=f"{RUN_SETTINGS[name][1]} (default: {defaults.get(name, default)})",
                   choices=["constant", "cosine"] if name == "schedule" else None)
            for name in names]


TASK_NAMES = ", ".join(tasks.names())
TASKS = option("tasks", nargs="*", metavar="TASK",
               help=f"{TASK_NAMES}, or FILE.py:CLASS, your own task")
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


def add_options(sub, run, argv):
    """Add the options of a command to its parser.  A command with tasks gets the options of all
    tasks and shows those of the tasks that ``argv`` names."""
    for entry in run.options:
        options = entry if isinstance(entry, list) else [entry]
        target = sub.add_mutually_exclusive_group() if isinstance(entry, list) else sub
        for flags, settings in options:
            if settings.get("nargs") == "+" and flags[0].startswith("-"):
                settings = settings | {"action": "extend"}     # given twice: both
            target.add_argument(*flags, **settings)
    if run.options and run.options[0] is TASKS:
        add_task_options(sub, argv)
    places = [place.metavar or place.dest.upper() for place in sub._get_positional_actions()]
    sub.usage = getattr(run, "usage", " ".join([sub.prog, "[options]", *places]))
    sub.epilog = getattr(run, "epilog", None)


def add_task_options(sub, argv):
    """Add the options of all tasks."""
    named = named_tasks(sub, argv)
    owners, flags = {}, sub._option_string_actions
    for task in dict.fromkeys([*tasks.names(), *named]):
        for name, parameter in inspect.signature(tasks.task_class(task)).parameters.items():
            owners.setdefault(name, {})[task] = parameter.default
    group = sub.add_argument_group(
        f"options of {', '.join(named)}" if named else "options of the task",
        None if named else f"'{sub.prog} TASK --help' shows them")
    for name, defaults in sorted(owners.items()):
        defaults = {task: defaults[task] for task in named if task in defaults}
        flag = f"--{name.replace('_', '-')}"
        if name in RESERVED or flag in flags:
            flag = f"--task-{flag.removeprefix('--')}"
        group.add_argument(flag, dest=f"option:{name}", metavar="VALUE", help=(
            task_option_help(name, defaults, named) if defaults else argparse.SUPPRESS))


def task_option_help(name, defaults, named):
    """Return the help of a task's option from {task: its default}; ``named`` are all tasks that
    the command line names."""
    is_known = not all(".py:" in task for task in defaults)     # in a user's it may mean anything
    values = list(dict.fromkeys(map(str, defaults.values())))
    default = values[0] if len(values) == 1 else ", ".join(f"{v} for {t}"
                                                           for t, v in defaults.items())
    if default == str(inspect.Parameter.empty):
        default = "none, it must be given"
    elif default == "None":
        default = "MINIFPT_DATA" if name == "data" else "none"
    owners = f"; of {', '.join(defaults)}" if len(named) > len(defaults) else ""
    is_switch = all(isinstance(value, bool) for value in defaults.values())
    meaning = TASK_OPTIONS.get(name, "") if is_known else "true or false" if is_switch else ""
    text = f"{meaning} (default: {default}){owners}"
    return text.strip().replace("%", "%%")


def named_tasks(sub, argv):
    """Return the tasks that a command line names, also as ``FILE.py:CLASS``."""
    words = [word for word in argv[argv.index(sub.prog.split()[-1]) + 1:]
             if word not in ("-h", "--help")]
    named = sub.parse_known_args(words)[0].tasks
    return [text for text in dict.fromkeys(named)
            if text in tasks.TASKS or USERS_OWN.fullmatch(text)]


def task_names(args, default=None):
    """Return the tasks that the command line names, at least one."""
    named = args.tasks or ([default] if default else [])
    if not named:
        raise ValueError(f"no TASK given: expected one of {TASK_NAMES}, or FILE.py:CLASS")
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
    return tasks.get(named[0], **task_options_of(args))


def given_options(args, *names):
    """Return the options among ``names`` that the command line has, as keyword arguments."""
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
