"""The command line: ``minifpt COMMAND --help`` shows a command's options."""

import argparse
import importlib
import os
import shlex
import sys
import traceback
import warnings

from .. import __version__, plugins
from ..spelling import suggestion
from .formatting import Parser

# {heading in --help: {command: (its module, its help)}}
GROUPS = {
    "Start here": {
        "train": ("training", "Train a frozen pretrained transformer on a task."),
        "playground": ("viewing", "Write an HTML file in which a frozen transformer trains live."),
        "info": ("weights", "Show versions, threads, and the folders of weights and data.")},
    "Look inside": {
        "summary": ("viewing", "Show a model's parameter groups and which are trained."),
        "steps": ("viewing", "Show one training step, forward and backward, as an HTML file."),
        "report": ("viewing", "Write a page on a run: result, curves, answers, what moved."),
        "attention": ("viewing", "Draw attention maps of runs, and how much lies where it should."),
        "gradcheck": ("viewing", "Check every hand-written gradient against a numerical one.")},
    "Compare": {
        "compare": ("grids", "Train several models on several tasks, and tabulate them."),
        "reproduce": ("grids", "Reproduce a table of the paper: NAME.md, NAME.csv, NAME.png.")},
    "Weights": {
        "pretrain": ("weights", "Pretrain a trunk on text, bits or images."),
        "convert": ("weights", "Convert weights from Transformers or the hub, or to their format."),
        "generate": ("weights", "Continue a text."),
        "perplexity": ("weights", "Measure how well a language model predicts a text.")},
    "Lessons": {
        "lessons": ("lessons", "Copy the lessons into a folder and open the first."),
        "new": ("lessons", "Write a functional.py of your own, with the bodies left to you."),
        "check": ("lessons", "Check your own file or notebooks, and name the next function.")}}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def main(argv=None):
    """Run a command and return its exit status: 0, 2 for bad input, 130 for Ctrl-C."""
    argv = [str(a) for a in (sys.argv[1:] if argv is None else argv)] or ["--help"]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:                    # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(getattr(sys, name), "reconfigure"):  # "?" for what its encoding lacks
            getattr(sys, name).reconfigure(errors="replace")
    args = argparse.Namespace()
    try:
        with warnings.catch_warnings(), plugins.users_code():
            warnings.simplefilter("ignore", RuntimeWarning)     # Diverged tells more
            _, unknown = parser(argv).parse_known_args(argv, args)
            if unknown:
                args.parser.error(f"unrecognized arguments: {' '.join(unknown)}"
                                  + suggestion(unknown[0].partition("=")[0],
                                               args.parser._option_string_actions,
                                               {"version": "minifpt --version"}))
            status = args.run(args) or 0
            sys.stdout.flush()
            return status
    except BrokenPipeError:                               # the reader of our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, MemoryError) as e:
        message = " ".join(str(e).split())
        if getattr(e, "strerror", None) and e.filename is not None:
            message = f"{e.filename}: {e.strerror}"
        if isinstance(e, MemoryError):
            message = f"not enough memory: {message}"
        if "--traceback" in argv:
            traceback.print_exc()
        print(f"minifpt: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as e:
        message = str(e) or "interrupted"
        if getattr(e, "folder", None) is not None:        # of training.Interrupted
            message += f": {resuming(args, argv)}"
        print(f"minifpt: {message}", file=sys.stderr)
        return 130
    except Exception as e:
        if "--traceback" in argv or not plugins.loaded():
            raise
        print(f"minifpt: {plugins.message(e)}: a method of your own task or trunk is missing, "
              "or takes or returns something else than it should; --traceback shows where",
              file=sys.stderr)
        return 2


def resuming(args, argv):
    """Return the command that continues an interrupted run or grid."""
    words = ["minifpt", *argv]
    if not getattr(args, "resume", True):
        words.append("--resume")
    if args.out is not None and not any(word.startswith(("--out", "-o")) for word in argv):
        words += ["--out", str(args.out)]
    return shlex.join(words)


def parser(argv=()):
    """Return the argument parser.  Only the command that ``argv`` names gets its options, and its
    help shows the options of the tasks that ``argv`` names."""
    groups = [f"{heading}:\n" + "\n".join(f"  {name:12}{text}"
                                          for name, (_, text) in commands.items())
              for heading, commands in GROUPS.items()]
    top = Parser(prog="minifpt", usage="minifpt COMMAND ...", description="\n\n".join(groups),
                 epilog="'minifpt COMMAND --help' shows a command's options")
    top.add_argument("--version", action="version", version=f"minifpt {__version__}",
                     help="show the version")
    traceback_option = {"action": "store_true", "default": argparse.SUPPRESS,
                        "help": "print the traceback of an error, too"}
    top.add_argument("--traceback", **traceback_option)
    commands = top.add_subparsers(required=True, prog=top.prog, metavar="COMMAND",
                                  help=argparse.SUPPRESS)
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is None:
        flags = top._option_string_actions
        for word in argv:
            if not any(flag.startswith(word) for flag in flags):
                top.error(f"unrecognized arguments: {word}{suggestion(word, flags)}")
        return top
    if command not in COMMANDS:
        from ..tasks import TASKS
        near = suggestion(command, COMMANDS, {task: f"train {task}" for task in TASKS})
        top.error(f"no command '{command}'{near}")
    module, text = COMMANDS[command]
    run = getattr(importlib.import_module(f"{__name__}.{module}"), command)
    from .options import add_options  # imports all tasks
    sub = commands.add_parser(command, description=getattr(run, "description", text),
                              allow_abbrev=False)
    sub.set_defaults(run=run, parser=sub)
    sub.add_argument("--traceback", **traceback_option)
    add_options(sub, run, argv)
    return top
