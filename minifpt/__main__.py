"""``python -m minifpt``, and the command ``minifpt``."""

import signal
import sys


def main():
    """Run the command line and return its exit status.  SIGTERM is as Ctrl-C."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from .cli import main as run
    except KeyboardInterrupt:                             # Ctrl-C during the import
        print("minifpt: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
