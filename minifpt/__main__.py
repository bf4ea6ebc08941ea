"""``python -m minifpt``, and the command ``minifpt``."""

import signal
import sys


def main():
    """Run the command line and return its exit status.  SIGTERM is as Ctrl-C.  Either ends Python
    without a traceback, also after the command."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from .cli import main as run
        return run()
    except KeyboardInterrupt:                             # during the import, or a second one
        print("minifpt: interrupted", file=sys.stderr)
        return 130
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(signum) == signal.default_int_handler:
                signal.signal(signum, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
