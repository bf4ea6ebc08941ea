"""Make the tables, numbers and pictures of pages again, from the rows of the studies.

    python -m studies [PAGE ...]          # such as README, why, performance; without a name all
    python -m studies --check [PAGE ...]  # a line for each number that the rows do not give
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
    if args.check:
        lines = pages.problems(texts)
        print(*lines, sep="\n")
        return int(bool(lines))
    for path in texts:
        pages.write(path)
        pictures.draw(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
