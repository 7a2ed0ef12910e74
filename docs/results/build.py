"""Writes the tables and figures of the results page from archives of runs.

    python docs/results/build.py [FOLDER]

FOLDER (default: the folder of this file) holds README.md, runs/, figures/ and sweeps/. Needs the
extra `report`.
"""

import sys
from pathlib import Path

from results_page.page import write_results

from brt.storage.regular_files import printable


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    written, problems = write_results(folder)
    print(f"Written: {written} files in {folder}")
    for problem in problems:
        print(f"Note: {printable(problem)}")


if __name__ == "__main__":
    main()
