"""``python -m minifpt``, and the command ``minifpt``."""

import sys


def main():
    """Run the command line; its exit status."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:                             # while it is imported
        print("minifpt: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
