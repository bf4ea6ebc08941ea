"""Make the tables, numbers and pictures of pages again, from the rows, and print what is wrong.

    python -m studies [PAGE ...]          # such as README, why, performance; without a name all
    python -m studies --check [PAGE ...]  # print only
"""

import argparse
import sys

from studies import pages, pictures


def main():
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    texts = [path for path in pages.TEXTS if not args.pages or path.stem in args.pages]
    if unknown := {*args.pages} - {path.stem for path in texts}:
        parser.error(f"no page '{min(unknown)}', expected one of "
                     f"{', '.join(path.stem for path in pages.TEXTS)}")
    if not args.check:
        for path in texts:
            pages.write(path)
            pictures.draw(path)
    lines = [line for path in texts for line in pages.problems(path)] + pages.unused()
    print("\n".join(lines) or "the texts say what the rows say")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
