"""The reader's own file on its way through the lessons: what is written in it runs, see ``own``."""

from contextlib import contextmanager
from pathlib import Path

from . import own


@contextmanager
def written(path, *names):
    """Let the library run the functions of a reader's file, and print the check of ``names``.

    The ``with`` gives a text for the title of a curve, which says whose functions it shows.
    Without such a file all of them are the library's.  Raises ``ValueError`` if one of ``names`` is
    wrong; where another function is wrong, the library's runs.
    """
    if not Path(path).is_file():
        print(f"There is no {path} in this folder, so the library's functions run. To begin yours, "
              f"type in a terminal in this folder: minifpt new {path} --bare")
        yield whose(names, ())
        return
    checked = own.results(path)
    for result in checked:
        if result.name in names:
            print(result)
        elif result.status == own.WRONG:
            print(f"{result.name} is wrong; it is not needed here, and the library's runs. "
                  f"'minifpt check {path}' gives a hint")
    with own.using(path, names=names, checked=checked) as file:
        yield whose(names, file.functions)


def whose(names, mine):
    """Return which of the functions ``names`` are the reader's, those in ``mine``, as text."""
    if len(names) > 4:
        return f"{sum(name in mine for name in names)} of {len(names)} functions are yours"
    owners = {"yours": [name for name in names if name in mine],
              "the library's": [name for name in names if name not in mine]}
    return "; ".join(f"{owner}: {', '.join(some)}" for owner, some in owners.items() if some)
