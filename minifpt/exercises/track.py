"""The reader's own file on its way through the lessons: what is written in it runs, see ``own``."""

from contextlib import contextmanager
from pathlib import Path

from ..files import one_line
from . import lesson, own
from .operations import CALLS


@contextmanager
def written(path, *names):
    """Let the library run the functions of a reader's file, and print the check of ``names`` and of
    the functions that belong to them.

    The ``with`` gives a text for the title of a curve, which says whose functions it shows.
    Without such a file all of them are the library's.  If one of these functions is wrong, it runs
    all the same; if another one is, or if a check did not end, the library's runs.  Raises
    :class:`own.Raised`, which a notebook shows as one line, if the file cannot be run, or ends the
    block by an error.
    """
    if not Path(path).is_file():
        print(f"There is no {path} in this folder, so the library's functions run. "
              f'minifpt.new("{path}", lesson={own.FUNCTIONS[names[0]]}) begins yours')
        yield whose(names, ())
        return
    ops = {name.removesuffix("_backward") for name in names}
    ops = ops.union(*(CALLS.get(op, ()) for op in ops))
    needed = [name for name in own.FUNCTIONS if name.removesuffix("_backward") in ops]
    wrong, is_running = [], False
    try:
        checked = own.results(path)
        for result in checked:
            if result.name in names or result.status == own.WRONG and result.name in needed:
                print(result)
            elif result.status == own.WRONG:
                print(f"{result.name} is wrong; it is not needed here, and the library's runs. "
                      f"'minifpt check {path}' gives a hint")
        endless = {r.name.removesuffix("_backward") for r in checked if r.is_endless} & ops
        for op in sorted(endless):
            print(f"So that this cell ends, the library's {op} and {op}_backward run")
        needed = [name for name in needed if name.removesuffix("_backward") not in endless]
        wrong = [r.name for r in checked if r.status == own.WRONG and r.name in needed]
        if wrong:
            lesson.wrong_runs[lesson.cell_number()] = wrong
            print(f"Wrong, and running all the same, to show what it costs: {', '.join(wrong)}")
        with own.using(path, skip_check=True, names=needed, checked=checked) as file:
            is_running = True
            yield whose(names, file.functions)
    except own.Raised:
        raise
    except Exception as e:
        if is_running and not wrong:                      # an error of the cell's own
            raise
        raise own.Raised(f"{path}: with a wrong {', '.join(wrong)}, this ended in {one_line(e)}"
                         if wrong else str(e)) from None


def whose(names, mine):
    """Return which of the functions ``names`` are the reader's, those in ``mine``, as text."""
    if len(names) > 4:
        if not set(mine) & set(names):
            return f"all {len(names)} functions are the library's"
        return f"{sum(name in mine for name in names)} of {len(names)} functions are yours"
    owners = {"yours": [name for name in names if name in mine],
              "the library's": [name for name in names if name not in mine]}
    return "; ".join(f"{owner}: {', '.join(some)}" for owner, some in owners.items() if some)
