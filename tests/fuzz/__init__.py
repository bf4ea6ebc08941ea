"""Fuzzers: each format that the package reads, damaged in small ways, again and again.

    python -m tests.fuzz                            # every format, a minute each
    python -m tests.fuzz npz index --seconds 600    # two of them, ten minutes each
    python -m tests.fuzz npz --case 1234            # one case again, with its files and traceback
    python -m tests.fuzz.kills                      # processes that are killed, see kills.py

A file is made, damaged (``damage.py``) and read as a user's command reads it (``formats.py``).  It
must load, and then be right, or be refused by a ``ValueError`` or ``OSError`` of one line that
names the file: in a few seconds, with little memory, and nothing from the file may be run.  The
same seed and number give the same case.
"""

from .run import Report, examine, run  # noqa: F401
