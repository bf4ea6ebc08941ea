"""Progress bars on a terminal and in a notebook."""

import sys

from tqdm import tqdm

if sys.platform == "emscripten":
    tqdm.monitor_interval = 0                             # a browser has no threads


def progress_bar(*args, progress=True, **options):
    """Return a bar of tqdm, which writes to a terminal or a notebook and never to a pipe or file.

    A notebook gets it on stdout, where it has no coloured box."""
    in_notebook = type(sys.stdout).__module__ in ("ipykernel.iostream", "pyodide_kernel.display")
    file = sys.stdout if in_notebook else sys.stderr
    is_shown = progress and (in_notebook or (file is not None and file.isatty()))
    return tqdm(*args, file=file, disable=not is_shown, dynamic_ncols=not in_notebook, **options)
