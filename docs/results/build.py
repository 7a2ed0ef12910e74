"""Writes the tables and figures of the pages of results from archives of runs.

    python docs/results/build.py [FOLDER]

FOLDER (default: the folder of this file) holds README.md and other pages, runs/ and figures/. Needs
the extra `report`.
"""

import sys
from pathlib import Path

from results_page.page import write_results

from brt.terminal import printable


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    found = write_results(folder)
    print(f"Written: the pages and figures of {folder}")
    for problem in found.problems:
        print(f"Note: {printable(problem)}")


if __name__ == "__main__":
    main()
