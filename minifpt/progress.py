"""Progress bars, on a terminal and in a notebook."""

import sys

from tqdm import tqdm


def progress_bar(*args, progress=True, **options):
    """Return a bar of tqdm.  A terminal shows it on stderr and a notebook on stdout, where it has
    no coloured box; elsewhere, such as in a pipe or a file, nothing is written."""
    notebook = type(sys.stdout).__module__ == "ipykernel.iostream"
    file = sys.stdout if notebook else sys.stderr
    shown = progress and (notebook or (file is not None and file.isatty()))
    return tqdm(*args, file=file, disable=not shown, dynamic_ncols=not notebook, **options)
