"""The command for a single run: ``train``."""

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from .. import tasks
from ..exercises import own
from ..experiments import runs
from ..files import read_json
from ..gradients import gradcheck
from ..training import train as training
from . import options as shared
from .options import option, takes

SOLVED_ACCURACY = 0.95                                    # `train` names the first step that has it


def new_folder(task):
    """Return ``runs/TASK``, or the first of ``runs/TASK-2``, ``-3``, ... that does not exist."""
    folder, n = Path("runs") / task, 2
    while folder.exists():
        folder, n = Path("runs") / f"{task}-{n}", n + 1
    return folder


def newest_folder(task):
    """Return the folder of the task's newest run in ``runs/``."""
    runs = [p.parent for p in Path("runs").glob(f"{task}*/config.json")
            if p.parent.name == task or p.parent.name.removeprefix(f"{task}-").isdigit()]
    if not runs:
        raise FileNotFoundError(f"no run of {task} in {Path('runs').resolve()}: "
                                "choose a folder with --out")
    return max(runs, key=lambda p: ((p / "checkpoint.npz").exists(),      # the others failed
                                    (p / "config.json").stat().st_mtime))


def wrong_loss(task):
    """Return what is wrong with the gradient of a task's loss, or "".  Other faults of the task
    are errors of the run."""
    rng = np.random.default_rng(0)
    try:
        _, y = task.batch(rng, 2, "train")
        report = gradcheck(lambda logits: task.loss(logits, y), lambda dy, dlogits: dy * dlogits,
                           (rng.standard_normal((2, task.output_tokens, task.output_dim)),),
                           eps=1e-3, tolerance=0.01, elementwise=0, directions=2, far=None)
        return "" if report else report.notes[0]
    except Exception as e:
        return str(e) if str(e).startswith("gradcheck: ") else ""


@takes(
    shared.TASKS, shared.MODEL, shared.FREEZE,
    *shared.run_options("steps", "batch_size", "lr", "until",
                        until="the task's own, 0.995 for bit-xor, unless --steps is given"),
    shared.SEED,
    shared.out_option("the run's folder", "a new runs/TASK"),
    option("--resume", action="store_true",
           help="continue the run in --out, or the task's newest run"),
    shared.ADAPT, shared.START,
    *shared.run_options("schedule", "dropout", "clip", "warmup", "eval_every", "test_examples",
                        clip="1", eval_every="100", test_examples="256, in the last all"),
    option("--checkpoint-every", type=int, default=500, metavar="N",
           help="steps between checkpoints (default: 500)"),
    shared.FUNCTIONAL,
    option("--skip-check", action="store_true",
           help="train even if a function of that file is wrong"),
    epilog=shared.KINDS)
def train(args):
    task = shared.make_task(args)
    out = args.out = args.out or (newest_folder if args.resume else new_folder)(task.name)
    if args.resume and args.steps is None and (out / "config.json").is_file():
        saved = read_json(out / "config.json")            # to the run's own end, not the task's
        args.steps, args.until = saved.get("steps"), args.until or saved.get("target_accuracy")
    if args.skip_check and not args.functional:
        raise ValueError("train: --skip-check needs --functional FILE")
    name = args.tasks[0]
    if ".py:" in name and not args.resume and (message := wrong_loss(task)):
        print(f"{name}: the gradient of its loss is wrong: {message} (docs/guide/task.md: check "
              "it)", file=sys.stderr)
    settings = shared.given_options(args, *shared.RUN_SETTINGS)
    if args.test_examples is not None:
        settings["final_test_examples"] = args.test_examples
    settings["target_accuracy"] = settings.pop("until", None)
    with own.using(args.functional, args.skip_check) if args.functional else nullcontext() as file:
        if file and not file.functions:
            raise ValueError(f"{file.path}: none of its functions is written, so the run would use "
                             "minifpt's only; 'minifpt check' names the first to write")
        for r in file.wrong if file else ():
            print(f"{file.path}: {r.name} is wrong. {r.hint}", file=sys.stderr)
        model, history = runs.run(
            task, args.model, out, freeze=args.freeze, adapt=args.adapt, start=args.start,
            seed=args.seed, resume=args.resume, source=name,
            checkpoint_every=args.checkpoint_every, config=file and file.settings,
            **settings)
    last = history[-1]
    total, trained = (sum(n) for n in zip(*model.counts(task.tokens).values(), strict=True))
    if model.recipe.n_positions is not None:
        print(f"{args.model} has fewer positions than the {task.tokens:,} of the task: the others "
              "were drawn as for a new trunk")
    is_whole = not args.test_examples and last["step"] == (
        args.steps or tasks.defaults_of(task)["steps"])
    test_set = tasks.optional(task, "test_set")() if is_whole else None
    examples = (
        f"{len(test_set[0])} examples" if test_set else
        f"{args.test_examples or training.__kwdefaults__['test_examples']} random examples")
    solved = next((row["step"] for row in history if row["test_accuracy"] >= SOLVED_ACCURACY), None)
    print(f"{task.name}: {100 * last['test_accuracy']:.2f} % test accuracy ({examples}) after "
          f"{last['step']} steps, {last['seconds']:.0f} s"
          + ("\n" if solved is None else f"\n{100 * SOLVED_ACCURACY:.0f} % after {solved} steps; ")
          + f"{trained:,} of {total:,} parameters trained"
          f"\n{out}: config.json metrics.csv checkpoint.npz curves.png")
    if file:
        print(f"{file.path}: {len(file.calls)} of its functions ran, {file.calls.total():,} times, "
              "not counting calls within the file")
        if uncalled := [name for name in file.functions if name not in file.calls]:
            print(f"{file.path}: this model never called {', '.join(uncalled)}")
    print(f"next: minifpt report {shlex.quote(str(out))}")
