"""Progress bars on a terminal and in a notebook."""

import sys

from tqdm import tqdm

from .machine import IN_BROWSER

if IN_BROWSER:
    tqdm.monitor_interval = 0                             # it would need a thread


def progress_bar(*args, progress=True, **options):
    """Return a bar of tqdm, which writes to a terminal or a notebook and never to a pipe or file.

    A notebook gets it on stdout, where it has no coloured box.  A browser's tab shows no bar inside
    another, because its output cannot go up a line."""
    module = type(sys.stdout).__module__
    in_tab = module == "pyodide_kernel.display"
    in_notebook = in_tab or module == "ipykernel.iostream"
    file = sys.stdout if in_notebook else sys.stderr
    is_shown = progress and (in_notebook or (file is not None and file.isatty())) and not (
        in_tab and tqdm._instances)
    return tqdm(*args, file=file, disable=not is_shown, dynamic_ncols=not in_notebook, **options)
