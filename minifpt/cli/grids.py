"""The commands for many runs: ``compare`` and ``reproduce``."""

from pathlib import Path

from ..experiments import compare as experiments
from ..experiments import reproduce as paper
from ..experiments.tables import AXES
from ..tasks import optional, task_class
from . import options as shared
from .formatting import print_rows
from .options import option, takes

SETTINGS = ("steps", "batch_size", "lr", "schedule", "dropout")


def executor_of(address):
    """Return the executor of the Dask cluster at this address, ``None`` for ``None``."""
    if address is None:
        return None
    try:
        from distributed import Client
    except ImportError:
        raise ValueError("--dask needs the package distributed: pip install distributed") from None
    return Client(address, timeout=10).get_executor()


@takes(
    shared.TASKS,
    option("--models", nargs="+", metavar="MODEL",
           help=f"trunks to compare (default: {' '.join(experiments.MODELS)})"),
    *(option(f"--{name}", nargs="+", **axis["option"]) for name, axis in AXES.items()),
    option("--seeds", type=int, default=5, metavar="N",
           help="number of seeds, from --first-seed on (default: 5)"),
    option("--first-seed", type=int, default=0, metavar="SEED",
           help="lowest seed (default: 0)"),
    option("--rates", type=float, nargs="+", metavar="LR", help=(
        "learning rates, as 1e-3 3e-3, that each trunk tries (default: none)")),
    option("--all-rates", action="store_true",
           help="run each of --rates with each seed (default: each trunk chooses one)"),
    option("--choices", type=int, metavar="SEEDS",
           help="validation seeds used to choose the learning rate "
                f"(default: {experiments.VALIDATION_SEEDS})"),
    shared.WHERE,
    *shared.run_options(*SETTINGS),
    shared.out_option("folder to write", "runs/compare",
                      default=Path("runs/compare")),
    shared.FORCE,
    epilog=shared.KINDS, usage="minifpt compare [options] TASK [TASK ...]")
def compare(args):
    names = shared.task_names(args)
    for name in names if args.rates and not args.all_rates else ():
        kind = task_class(name)
        if isinstance(kind, type) and "validation" not in optional(kind, "splits"):
            print(f"{name} has no split 'validation': its learning rates are chosen on training "
                  "examples")
    text = str(experiments.compare(
        names, args.models or experiments.MODELS, seeds=args.seeds, first_seed=args.first_seed,
        rates=args.rates or (), all_rates=args.all_rates, choices=args.choices, jobs=args.jobs,
        executor=executor_of(args.dask), out=args.out, force=args.force,
        task_options=shared.task_options_of(args),
        **shared.given_options(args, *SETTINGS, *AXES)))
    print(text)
    if args.seeds > 1:
        print("In brackets after an accuracy: the lowest and the highest of its seeds.")
    if "(edge)" in text:
        print("(edge): the smallest or largest of --rates, so one beyond may be better.")
    if "| difference |" in text:
        print("A difference is the mean over pairs of runs with the same seed, in points"
              + ", with a 95 % interval" * (args.seeds > 1)
              + ". Area: the same for the mean accuracy over the curve.")
    print(f"{args.out}: table.md runs.csv curves.png")


@takes(
    option("name", nargs="?", metavar="NAME",
           help=f"{', '.join(paper.TABLES)} (default: list them)"),
    option("--tasks", nargs="+", metavar="TASK", dest="only",
           help="train only these tasks (default: the table's)"),
    option("--seeds", type=int, default=5, help="number of seeds (default: 5)"),
    option("--rates", type=float, nargs="+", metavar="LR",
           help="learning rates of the sweep (default: the table's)"),
    shared.WHERE,
    shared.out_option("folder of all tables and runs", "runs/reproduce",
                      default=Path("runs/reproduce")),
    shared.FORCE)
def reproduce(args):
    if args.name is None:
        print_rows({name: table.shows for name, table in paper.TABLES.items()})
    else:
        table = paper.table_of(args.name, args.only, args.rates)
        print(experiments.reproduce(args.name, table, args.out, args.seeds, jobs=args.jobs,
                                    executor=executor_of(args.dask), force=args.force))
        print(f"{args.out}: {args.name}.md {args.name}.csv {args.name}.png")
